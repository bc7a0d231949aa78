/* The wire format does not change: for every message of the public API, committed bytes decode to
 * committed values and encode to the same bytes. tests/golden/wire/README.md says how a new message
 * gets its file.
 *   test_wire                golden files of tests/golden/wire (in the repository's root)
 *   test_wire list           names of all messages
 *   test_wire recode DIR     for every DIR/<message>.<n>.bin: its text to .txt, its bytes as we
 *                            encode them to .out (for tests/integ/test_wire.sh)
 */
#include "base/mem.h"

#include "tests/util/wire.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/wire"

static bd_buf *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return NULL;
    }
    uint8_t chunk[4096];
    bd_chain all = {0};
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        if (bd_chain_add_copy(&all, chunk, n) != BD_OK) {
            break;
        }
    }
    (void)fclose(f);
    bd_buf *b = bd_chain_flatten(&all);
    bd_chain_deinit(&all);
    return b;
}

static int write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL) {
        return 1;
    }
    size_t written = fwrite(bytes, 1, n, f);
    return fclose(f) != 0 || written != n;
}

/* The message's text (free) and bytes (unref) after our decoder and encoder; false: why is printed.
 */
static bool recode(const ProtobufCMessageDescriptor *type, bd_buf *bytes, char **text,
                   bd_buf **again)
{
    bd_err err = BD_ERR_INIT;
    bd_chain in = {0}, out = {0};
    size_t n = 0;
    *text = NULL;
    *again = NULL;
    FILE *to = bytes != NULL ? open_memstream(text, &n) : NULL;
    bd_status rc = to != NULL ? bd_chain_add(&in, bytes, 0, bytes->n_bytes) : BD_E_NOMEM;
    if (rc == BD_OK) {
        rc = wire_recode(type, &in, to, &out, &err);
    }
    if (to != NULL) {
        (void)fclose(to);
    }
    if (rc == BD_OK) {
        *again = bd_chain_flatten(&out);
    } else {
        (void)fprintf(stderr, "%s: %s\n", type->name, bd_err_text(&err));
    }
    bd_chain_deinit(&in);
    bd_chain_deinit(&out);
    return *again != NULL;
}

static void every_message_has_kept_its_bytes(void **state)
{
    (void)state;
    const ProtobufCMessageDescriptor *all[WIRE_MAX_MESSAGES];
    size_t n = wire_messages(all);
    assert_true(n >= 60);
    for (size_t i = 0; i < n; i++) {
        char path[256], *text;
        bd_buf *again;
        (void)snprintf(path, sizeof path, GOLDEN "/%s.bin", all[i]->name);
        bd_buf *bytes = read_file(path);
        (void)snprintf(path, sizeof path, GOLDEN "/%s.txt", all[i]->name);
        bd_buf *values = read_file(path);
        if (bytes == NULL || values == NULL) {
            fail_msg("%s has no golden bytes: see " GOLDEN "/README.md", all[i]->name);
            return;
        }
        if (!recode(all[i], bytes, &text, &again)) {
            fail_msg("%s is not understood any more", all[i]->name);
            return;
        }
        if (strlen(text) != values->n_bytes || memcmp(text, values->bytes, values->n_bytes) != 0) {
            fail_msg("%s: the committed bytes now mean\n%s", all[i]->name, text);
        }
        assert_int_equal(again->n_bytes, bytes->n_bytes);
        assert_memory_equal(again->bytes, bytes->bytes, bytes->n_bytes);
        free(text);
        bd_buf_unref(again);
        bd_buf_unref(bytes);
        bd_buf_unref(values);
    }
}

/* The bytes say something: cut anywhere, they are refused or mean something else. */
static void cut_bytes_are_noticed(void **state)
{
    (void)state;
    const ProtobufCMessageDescriptor *type = wire_find("braid.v1.PushRequest");
    char *whole, *text;
    bd_buf *again, *bytes = read_file(GOLDEN "/braid.v1.PushRequest.bin");
    if (type == NULL || bytes == NULL || !recode(type, bytes, &whole, &again)) {
        fail_msg("no PushRequest");
        return;
    }
    bd_buf_unref(again);
    for (size_t n = 0; n < bytes->n_bytes; n++) {
        bd_err err = BD_ERR_INIT;
        bd_chain in = {0}, out = {0};
        size_t len = 0;
        FILE *to = open_memstream(&text, &len);
        assert_non_null(to);
        assert_int_equal(bd_chain_add(&in, bytes, 0, n), BD_OK);
        bd_status rc = wire_recode(type, &in, to, &out, &err);
        (void)fclose(to);
        assert_true(rc == BD_E_CORRUPT || strcmp(text, whole) != 0);
        free(text);
        bd_chain_deinit(&in);
        bd_chain_deinit(&out);
    }
    free(whole);
    bd_buf_unref(bytes);
}

/* ---- as a tool ---- */
static int recode_file(const char *dir, const char *file)
{
    char name[256], path[1024], *text;
    bd_buf *again;
    (void)snprintf(name, sizeof name, "%s", file);
    name[strlen(name) - strlen(".bin")] = '\0';
    char *dot = strrchr(name, '.');
    if (dot == NULL) {
        return 1;
    }
    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    bd_buf *bytes = read_file(path);
    *dot = '\0';
    const ProtobufCMessageDescriptor *type = wire_find(name);
    *dot = '.';
    if (bytes == NULL || type == NULL || !recode(type, bytes, &text, &again)) {
        (void)fprintf(stderr, "%s: cannot be read\n", path);
        bd_buf_unref(bytes);
        return 1;
    }
    (void)snprintf(path, sizeof path, "%s/%s.txt", dir, name);
    int rc = write_file(path, text, strlen(text));
    (void)snprintf(path, sizeof path, "%s/%s.out", dir, name);
    rc |= write_file(path, again->bytes, again->n_bytes);
    free(text);
    bd_buf_unref(again);
    bd_buf_unref(bytes);
    return rc;
}

static int recode_folder(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    int rc = d == NULL, n = 0;
    while (d != NULL && (e = readdir(d)) != NULL) {
        size_t len = strlen(e->d_name);
        if (len > 4 && strcmp(e->d_name + len - 4, ".bin") == 0) {
            rc |= recode_file(dir, e->d_name);
            n++;
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return rc != 0 || n == 0;
}

static int list(void)
{
    const ProtobufCMessageDescriptor *all[WIRE_MAX_MESSAGES];
    size_t n = wire_messages(all);
    for (size_t i = 0; i < n; i++) {
        (void)printf("%s\n", all[i]->name);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_has_kept_its_bytes),
        cmocka_unit_test(cut_bytes_are_noticed),
    };
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        return list();
    }
    if (argc == 3 && strcmp(argv[1], "recode") == 0) {
        return recode_folder(argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
