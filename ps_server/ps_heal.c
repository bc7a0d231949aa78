/* After a write that the disk refused, RocksDB's log must not be touched again (what it holds of
 * the facts is unknown, and a build with assertions ends the process): it is opened anew once the
 * disk takes writes. Records are not in there (ps_log.h) and need none of this. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_journal_int.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define TRY_NS      (500 * BD_NS_PER_MS)
#define PROBE_BYTES (4u << 20) /* more than opening it anew writes at once */
#define BLOCK_BYTES 65536u

static bd_status write_zeros(int fd, const char *name, bd_err *err)
{
    static const uint8_t zeros[BLOCK_BYTES];
    for (size_t at = 0; at < PROBE_BYTES; at += BLOCK_BYTES) {
        if (write(fd, zeros, sizeof zeros) != (ssize_t)sizeof zeros) {
            return bd_err_errno(err, BD_E_IO, errno == 0 ? ENOSPC : errno, "write %s", name);
        }
    }
    return BD_OK; /* not synced: a file system says at the write that there is no room */
}

bd_status ps_disk_probe(const char *beside, bd_err *err)
{
    char *name = bd_strfmt("%s.probe", beside);
    if (name == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s: no memory", beside);
    }
    bd_status rc = BD_OK;
    errno = 0;
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "create %s", name);
    } else {
        rc = write_zeros(fd, name, err);
        (void)close(fd);
        (void)unlink(name);
    }
    bd_free(name);
    return rc;
}

/* db_lock is held for writing. */
static bd_status open_anew(ps_journal *j, bd_err *err)
{
    char *path = bd_strdup(j->rocks.path);
    if (path == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "journal: no memory");
    }
    ps_rocks_close(&j->rocks);
    bd_status rc = ps_rocks_open(&j->rocks, path, true, err);
    if (rc != BD_OK) {
        j->rocks.path = path; /* for the next try */
        return rc;
    }
    bd_free(path);
    if (j->memtable_bytes != 0) {
        rc = ps_rocks_limit_memtables(&j->rocks, j->memtable_bytes, err);
    }
    atomic_store(&j->has_failed, rc != BD_OK);
    if (rc == BD_OK) {
        BD_LOG(INFO, "facts can be written again", "path", j->rocks.path);
    }
    return rc;
}

static bd_status heal(ps_journal *j, bd_err *err)
{
    bd_status rc = BD_OK;
    int64_t now = bd_mono_ns();
    (void)pthread_rwlock_wrlock(&j->db_lock);
    if (atomic_load(&j->has_failed) && now < j->next_try_ns) {
        rc = ps_disk_probe(j->rocks.path, err); /* its text says what is wrong */
        if (rc == BD_OK) {
            rc = bd_err_set(err, BD_E_IO, "write %s: refused a moment ago", j->rocks.path);
        }
    } else if (atomic_load(&j->has_failed)) {
        j->next_try_ns = now + TRY_NS;
        rc = ps_disk_probe(j->rocks.path, err);
        rc = rc == BD_OK ? open_anew(j, err) : rc;
    }
    (void)pthread_rwlock_unlock(&j->db_lock);
    return rc;
}

bd_status ps_journal_begin_write(ps_journal *j, bd_err *err)
{
    for (;;) {
        (void)pthread_rwlock_rdlock(&j->db_lock);
        if (!atomic_load(&j->has_failed)) {
            return BD_OK;
        }
        (void)pthread_rwlock_unlock(&j->db_lock);
        bd_status rc = heal(j, err);
        if (rc != BD_OK) {
            return rc;
        }
    }
}

bd_status ps_journal_end_write(ps_journal *j, bd_status rc)
{
    if (rc == BD_E_IO || rc == BD_E_CORRUPT) {
        atomic_store(&j->has_failed, true);
    }
    (void)pthread_rwlock_unlock(&j->db_lock);
    return rc;
}

bd_status ps_journal_begin_read(ps_journal *j, bd_err *err)
{
    (void)pthread_rwlock_rdlock(&j->db_lock);
    if (j->rocks.db != NULL) {
        return BD_OK;
    }
    (void)pthread_rwlock_unlock(&j->db_lock);
    return bd_err_set(err, BD_E_IO, "read %s: the disk has failed", j->rocks.path);
}

void ps_journal_end_read(ps_journal *j)
{
    (void)pthread_rwlock_unlock(&j->db_lock);
}
