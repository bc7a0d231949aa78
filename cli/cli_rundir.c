#include "cli/cli_rundir.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bd_status cli_mkdirs(const char *path, bd_err *err)
{
    bd_status rc = BD_OK;
    char *copy = bd_strdup(path);
    if (copy == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "create %s", path);
    }
    for (char *at = copy + 1; rc == BD_OK; at++) {
        char c = *at;
        if (c != '/' && c != '\0') {
            continue;
        }
        *at = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            rc = bd_err_errno(err, BD_E_IO, errno, "create folder %s", path);
        }
        *at = c;
        if (c == '\0') {
            break;
        }
    }
    bd_free(copy);
    return rc;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Folders ps-0, ps-1, ... in a row. */
static int count_servers(const char *run_dir)
{
    int n = 0;
    for (; n < 4096; n++) {
        char *path = bd_strfmt("%s/ps-%d", run_dir, n);
        bool there = path != NULL && is_folder(path);
        bd_free(path);
        if (!there) {
            break;
        }
    }
    return n;
}

static char *fresh_path(const char *parent)
{
    char stamp[32];
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm) == NULL || strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &tm) == 0) {
        return NULL;
    }
    return bd_strfmt("%s/%s-%ld", parent, stamp, (long)getpid());
}

/* <parent>/latest's target as a path; NULL: there is none, or no memory. */
static char *latest_path(const char *parent)
{
    char target[PATH_MAX];
    char *link = bd_strfmt("%s/latest", parent);
    if (link == NULL) {
        return NULL;
    }
    ssize_t n = readlink(link, target, sizeof target - 1);
    bd_free(link);
    if (n <= 0) {
        return NULL;
    }
    target[n] = '\0';
    char *path = target[0] == '/' ? bd_strdup(target) : bd_strfmt("%s/%s", parent, target);
    if (path != NULL && !is_folder(path)) {
        bd_free(path);
        path = NULL;
    }
    return path;
}

/* A new link beside the old one, then a rename: at no time is there no latest. */
static bd_status remember_latest(const char *parent, const char *run_dir, bd_err *err)
{
    bd_status rc = BD_OK;
    char *link = bd_strfmt("%s/latest", parent);
    char *temp = bd_strfmt("%s/latest.%ld", parent, (long)getpid());
    const char *slash = strrchr(run_dir, '/');
    if (link == NULL || temp == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "link %s/latest", parent);
    } else if (symlink(slash == NULL ? run_dir : slash + 1, temp) != 0 || rename(temp, link) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "link %s", link);
        (void)unlink(temp);
    }
    bd_free(link);
    bd_free(temp);
    return rc;
}

static bd_status lock(cli_rundir *d, bd_err *err)
{
    bd_status rc = BD_OK;
    char *path = bd_strfmt("%s/lock", d->path);
    if (path == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "lock %s", d->path);
    }
    d->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (d->lock_fd < 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "open %s", path);
    } else if (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        rc = bd_err_set(err, BD_E_USAGE, "%s: in use by another braid", d->path);
    }
    bd_free(path);
    return rc;
}

static bd_status choose(cli_rundir *d, const cli_rundir_request *req, bd_err *err)
{
    if (req->exact != NULL) {
        d->path = bd_strdup(req->exact);
    } else {
        d->path = req->resume ? latest_path(req->parent) : NULL;
        if (d->path == NULL && !req->must_exist) {
            d->path = fresh_path(req->parent);
        }
    }
    if (req->must_exist && (d->path == NULL || !is_folder(d->path))) {
        (void)bd_err_set(err, BD_E_NOT_FOUND, "%s: no run to resume",
                         req->exact != NULL ? req->exact : req->parent);
        return BD_E_NOT_FOUND;
    }
    if (d->path == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "run folder");
        return BD_E_NOMEM;
    }
    return BD_OK;
}

bd_status cli_rundir_open(cli_rundir *d, const cli_rundir_request *req, bd_err *err)
{
    *d = (cli_rundir){.lock_fd = -1};
    bd_status rc = choose(d, req, err);
    if (rc == BD_OK) {
        rc = cli_mkdirs(d->path, err);
    }
    if (rc == BD_OK) {
        rc = lock(d, err);
    }
    if (rc == BD_OK) {
        d->n_servers = count_servers(d->path);
        d->fresh = d->n_servers == 0;
        if (!d->fresh && !req->resume) {
            rc = bd_err_set(err, BD_E_USAGE,
                            "%s: holds a run already; go on with --resume auto, or name another "
                            "folder with --run-dir",
                            d->path);
        }
    }
    if (rc == BD_OK && req->exact == NULL) {
        rc = remember_latest(req->parent, d->path, err);
    }
    if (rc != BD_OK) {
        cli_rundir_deinit(d);
    }
    return rc;
}

void cli_rundir_deinit(cli_rundir *d)
{
    if (d->lock_fd >= 0) {
        (void)close(d->lock_fd);
        d->lock_fd = -1;
    }
    bd_free(d->path);
    d->path = NULL;
}
