#include "ps_server/ps_mark.h"

#include "base/log.h"
#include "base/rand.h"

#include "ps_server/ps_bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define MAGIC      0x4b4d5242u /* "BRMK" */
#define VERSION    1u
#define MARK_BYTES 64u
#define HASHED     40u

/* The id the kernel draws at each boot; zeros where there is none (nothing matches it then). */
static void read_boot_id(uint8_t out[16])
{
    char text[64] = "";
    size_t n = 0;
    memset(out, 0, 16);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t got = read(fd, text, sizeof text - 1);
    (void)close(fd);
    for (ssize_t i = 0; i < got && n < 32; i++) {
        char c = text[i];
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')) {
            unsigned digit = (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
            out[n / 2] = (uint8_t)((unsigned)out[n / 2] << 4 | digit);
            n++;
        }
    }
}

static bool is_zero(const uint8_t *b, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) {
        any |= b[i];
    }
    return any == 0;
}

static void save(const ps_mark *m)
{
    uint8_t b[MARK_BYTES] = {0};
    if (m->fd < 0) {
        return;
    }
    ps_put_le32(b, MAGIC);
    ps_put_le32(b + 4, VERSION);
    memcpy(b + 8, m->boot, sizeof m->boot);
    ps_put_le64(b + 24, m->written_n);
    ps_put_le64(b + 32, m->synced_n);
    ps_put_le64(b + HASHED, bd_hash64(b, HASHED, 0));
    (void)!pwrite(m->fd, b, sizeof b, 0); /* an older mark is true as well */
}

/* What the file promises, with this boot's id. */
static uint64_t load(ps_mark *m, const char *path)
{
    uint8_t b[MARK_BYTES];
    if (pread(m->fd, b, sizeof b, 0) != (ssize_t)sizeof b) {
        return 0; /* a new file */
    }
    if (ps_get_le32(b) != MAGIC || ps_get_le32(b + 4) != VERSION ||
        ps_get_le64(b + HASHED) != bd_hash64(b, HASHED, 0)) {
        BD_LOG(WARN, "the mark beside the journal does not read: going on without it", "path",
               path);
        return 0;
    }
    bool same_boot = memcmp(b + 8, m->boot, sizeof m->boot) == 0 && !is_zero(m->boot, 16);
    m->synced_n = ps_get_le64(b + 32);
    m->written_n = same_boot ? ps_get_le64(b + 24) : m->synced_n;
    return m->written_n > m->synced_n ? m->written_n : m->synced_n;
}

bd_status ps_mark_open(const char *path, ps_mark *m, uint64_t *must_have, bd_err *err)
{
    *m = (ps_mark){.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
    if (m->fd < 0) {
        return bd_err_errno(err, BD_E_IO, errno, "open %s", path);
    }
    read_boot_id(m->boot);
    *must_have = load(m, path);
    return BD_OK;
}

void ps_mark_written(ps_mark *m, uint64_t n)
{
    m->written_n = n;
    save(m);
}

void ps_mark_synced(ps_mark *m, uint64_t n)
{
    if (n > m->synced_n) {
        m->synced_n = n;
        m->written_n = n > m->written_n ? n : m->written_n;
        save(m);
    }
}

void ps_mark_reset(ps_mark *m)
{
    m->written_n = 0;
    m->synced_n = 0;
    save(m);
}

void ps_mark_close(ps_mark *m)
{
    if (m->fd >= 0) {
        (void)close(m->fd);
        m->fd = -1;
    }
}
