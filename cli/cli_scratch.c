#include "cli/cli_scratch.h"

#include "base/mem.h"

#include "cli/cli_rundir.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX         ".predict-"
#define N_OPEN_FOLDERS 16

static bd_status no_memory(bd_err *err)
{
    return bd_err_set(err, BD_E_NOMEM, "scratch folder");
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

/* Removes the entry and what is below it; symbolic links are not followed. */
static bd_status remove_tree(const char *path, bd_err *err)
{
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): only with FTW_CHDIR */
    return nftw(path, remove_one, N_OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT
               ? BD_OK
               : bd_err_errno(err, BD_E_IO, errno, "remove %s", path);
}

static int is_left_over(const struct dirent *e)
{
    return strncmp(e->d_name, PREFIX, strlen(PREFIX)) == 0;
}

static int is_checkpoint(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* What a killed `braid predict` left. The run's lock is held: nobody else makes such folders now.
 */
static bd_status remove_left_over(const char *run_dir, bd_err *err)
{
    struct dirent **list = NULL; /* libc's memory */
    bd_status rc = BD_OK;
    int n = scandir(run_dir, &list, is_left_over, NULL);
    if (n < 0) {
        return bd_err_errno(err, BD_E_IO, errno, "open %s", run_dir);
    }
    for (int i = 0; i < n; i++) {
        char *path = bd_strfmt("%s/%s", run_dir, list[i]->d_name);
        if (rc == BD_OK) {
            rc = path != NULL ? remove_tree(path, err) : no_memory(err);
        }
        bd_free(path);
        free(list[i]);
    }
    free(list);
    return rc;
}

static bd_status link_one(const char *from, const char *to, const char *name, bd_err *err)
{
    char *target = bd_strfmt("%s/%s", from, name), *path = bd_strfmt("%s/%s", to, name);
    bd_status rc = BD_OK;
    if (target == NULL || path == NULL) {
        rc = no_memory(err);
    } else if (symlink(target, path) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "link %s", path);
    }
    bd_free(target);
    bd_free(path);
    return rc;
}

/* to/<name> -> from/<name> for everything that looks like a checkpoint. */
static bd_status link_checkpoints(const char *from, const char *to, bd_err *err)
{
    struct dirent **list = NULL; /* libc's memory */
    bd_status rc = BD_OK;
    int n = scandir(from, &list, is_checkpoint, NULL);
    if (n < 0) { /* this server has none: restoring will say so */
        return errno == ENOENT ? BD_OK : bd_err_errno(err, BD_E_IO, errno, "open %s", from);
    }
    for (int i = 0; i < n; i++) {
        rc = rc == BD_OK ? link_one(from, to, list[i]->d_name, err) : rc;
        free(list[i]);
    }
    free(list);
    return rc;
}

/* root: run_dir as an absolute path, for links hold their target as text. */
static bd_status make_server(const char *root, const char *scratch, int i, bd_err *err)
{
    char *from = bd_strfmt("%s/ps-%d/checkpoints", root, i);
    char *to = bd_strfmt("%s/ps-%d/checkpoints", scratch, i);
    bd_status rc = from != NULL && to != NULL ? cli_mkdirs(to, err) : no_memory(err);
    if (rc == BD_OK) {
        rc = link_checkpoints(from, to, err);
    }
    bd_free(from);
    bd_free(to);
    return rc;
}

bd_status cli_scratch_make(const char *run_dir, int n_servers, char **out, bd_err *err)
{
    char *root = realpath(run_dir, NULL);
    char *path = root != NULL ? bd_strfmt("%s/" PREFIX "%ld", root, (long)getpid()) : NULL;
    bd_status rc = path != NULL ? remove_left_over(run_dir, err)
                                : bd_err_errno(err, BD_E_IO, errno, "%s", run_dir);
    for (int i = 0; i < n_servers && rc == BD_OK; i++) {
        rc = make_server(root, path, i, err);
    }
    free(root); /* libc's memory */
    if (rc == BD_OK) {
        *out = path;
        return BD_OK;
    }
    *out = NULL;
    (void)cli_scratch_remove(path, NULL);
    return rc;
}

bd_status cli_scratch_remove(char *path, bd_err *err)
{
    bd_status rc = path != NULL ? remove_tree(path, err) : BD_OK;
    bd_free(path);
    return rc;
}
