/* Any bytes as a data file, plain or compressed: lines, or a typed error; twice the same. */
#include "base/mem.h"
#include "base/rand.h"
#include "base/reader.h"

#include "tests/fuzz/fuzz_input.h"

/* Hash over all lines up to the end or the error. A bomb of compressed bytes ends after 64 Ki
 * lines. */
static uint64_t read_all(bd_reader *r, bd_status *rc)
{
    uint64_t hash = 0;
    char *line = NULL;
    size_t n_bytes;
    *rc = BD_OK;
    for (int i = 0; i < 1 << 16; i++) {
        *rc = bd_reader_line(r, &line, &n_bytes, NULL);
        if (*rc != BD_OK || line == NULL) {
            break;
        }
        hash = bd_hash64(line, n_bytes + 1, hash); /* with the zero behind the line */
    }
    return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    char path[64];
    bd_reader *r = NULL;
    long before = bd_mem_live_blocks();
    int fd = fuzz_file(bytes, n_bytes, path);
    bd_status rc = bd_reader_open(path, &r, NULL);
    if (rc == BD_OK) {
        bd_status first, second;
        uint64_t a = read_all(r, &first);
        if (bd_reader_rewind(r, NULL) != BD_OK || read_all(r, &second) != a || first != second) {
            abort();
        }
    } else if (rc != BD_E_CORRUPT) {
        abort();
    }
    bd_reader_close(r);
    (void)close(fd);
    if (bd_mem_live_blocks() != before) {
        abort();
    }
    return 0;
}
