#include "cli/cli_offline.h"

#include "base/mem.h"

#include <uv.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bd_status cli_find_program(const char *name, const char *wish, char **out, bd_err *err)
{
    char own[PATH_MAX];
    size_t n = sizeof own;
    const char *slash = uv_exepath(own, &n) == 0 ? strrchr(own, '/') : NULL;
    if (slash == NULL) {
        return bd_err_set(err, BD_E_IO, "cannot tell where this program is");
    }
    *out = wish[0] != '\0' ? bd_strdup(wish) : bd_strfmt("%.*s/%s", (int)(slash - own), own, name);
    if (*out == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "find %s", name);
    }
    if (access(*out, X_OK) != 0) {
        return bd_err_errno(err, BD_E_USAGE, errno, "program %s", *out);
    }
    return BD_OK;
}

bd_status cli_offline_become(const char *ps_bin, const cli_args *args, bd_err *err)
{
    char *program = NULL;
    cli_args all = {0};
    bd_status rc = cli_find_program("braid-ps", ps_bin, &program, err);
    if (rc != BD_OK) {
        bd_free(program);
        return rc;
    }
    cli_args_add(&all, "%s", program);
    cli_args_add(&all, "--offline");
    for (size_t i = 0; i < args->n; i++) {
        cli_args_add(&all, "%s", args->items[i]);
    }
    if (args->failed || all.failed || program == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "start %s", program);
    } else {
        (void)fflush(NULL);
        (void)execv(program, all.items);
        rc = bd_err_errno(err, BD_E_IO, errno, "start %s", program);
    }
    cli_args_deinit(&all);
    bd_free(program);
    return rc;
}
