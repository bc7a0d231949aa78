#include "ps_server/ps_parts.h"

#include "base/mem.h"

#include "ps_server/ps_rocks.h"
#include "rpc/rpc_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bd_status no_memory(bd_err *err)
{
    (void)bd_err_set(err, BD_E_NOMEM, "checkpoint: no memory");
    return BD_E_NOMEM;
}

static void part_deinit(ps_ckpt_part *part)
{
    bd_free(part->folder);
    ps_manifest_deinit(&part->m);
}

void ps_parts_deinit(ps_parts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        part_deinit(&p->items[i]);
    }
    bd_free(p->items);
    *p = (ps_parts){0};
}

bool ps_part_overlaps(const ps_ckpt_part *part, uint32_t first, uint32_t end)
{
    uint32_t from = 0, to = 0;
    rpc_slots_of(part->m.index, part->m.servers, &from, &to);
    return from < end && first < to;
}

/* ---- finding ---- */
typedef struct finder {
    ps_parts *parts;
    const char *name;
    uint64_t epoch; /* wanted; 0: the newest */
} finder;

static bool same_cut(const ps_manifest *a, const ps_manifest *b)
{
    return a->epoch == b->epoch && a->step == b->step && a->servers == b->servers;
}

/* Older parts go, when m is of a newer cut; false: m itself is not wanted. */
static bool make_way(finder *f, const ps_manifest *m)
{
    ps_parts *p = f->parts;
    if (f->epoch != 0 && m->epoch != f->epoch) {
        return false;
    }
    if (p->n == 0) {
        return true;
    }
    const ps_manifest *have = &p->items[0].m;
    if (same_cut(have, m)) {
        for (size_t i = 0; i < p->n; i++) {
            if (p->items[i].m.index == m->index) {
                return false; /* the same part by another path */
            }
        }
        return true;
    }
    bool newer = m->epoch != have->epoch ? m->epoch > have->epoch
                 : m->step != have->step ? m->step > have->step
                                         : m->servers > have->servers;
    if (newer) {
        for (size_t i = 0; i < p->n; i++) {
            part_deinit(&p->items[i]);
        }
        p->n = 0;
    }
    return newer;
}

/* The folder may hold a part. */
static bd_status look(finder *f, const char *data_dir, bd_err *err)
{
    ps_parts *p = f->parts;
    ps_ckpt_part part = {.folder = bd_strfmt("%s/checkpoints/%s", data_dir, f->name)};
    bd_err why = BD_ERR_INIT;
    if (part.folder == NULL) {
        return no_memory(err);
    }
    bd_status rc = ps_manifest_read(&part.m, part.folder, &why);
    if (rc == BD_OK && make_way(f, &part.m)) {
        if (bd_grow(&p->items, &p->cap, p->n + 1, sizeof *p->items)) {
            p->items[p->n++] = part;
            return BD_OK;
        }
        rc = BD_E_NOMEM;
    } else if (rc != BD_OK && rc != BD_E_NOT_FOUND && rc != BD_E_NOMEM && !p->damaged) {
        p->damaged = true;
        p->problem = why;
    }
    part_deinit(&part);
    return rc == BD_E_NOMEM ? no_memory(err) : BD_OK;
}

static bd_status look_below(void *user, const char *dir, const char *name, bd_err *err)
{
    if (name[0] == '.') {
        return BD_OK;
    }
    char *sub = bd_strfmt("%s/%s", dir, name);
    bd_status rc = sub == NULL ? no_memory(err) : look(user, sub, err);
    bd_free(sub);
    return rc;
}

/* A folder that does not exist, or is a file, has no parts. */
static bd_status look_in(finder *f, const char *dir, bd_err *err)
{
    bd_err why = BD_ERR_INIT;
    bd_status rc = look(f, dir, err);
    if (rc == BD_OK) {
        rc = ps_dir_each(dir, look_below, f, &why);
        rc = rc == BD_E_NOMEM ? no_memory(err) : BD_OK;
    }
    return rc;
}

static int by_index(const void *a, const void *b)
{
    const ps_ckpt_part *x = a, *y = b;
    return x->m.index < y->m.index ? -1 : x->m.index > y->m.index;
}

bd_status ps_parts_find(ps_parts *p, const char *own, const char *more, const char *name,
                        uint64_t epoch, bd_err *err)
{
    finder f = {.parts = p, .name = name, .epoch = epoch};
    *p = (ps_parts){0};
    bd_status rc = look(&f, own, err);
    for (const char *at = more == NULL ? "" : more; *at != '\0' && rc == BD_OK;) {
        size_t n = strcspn(at, ",");
        char *dir = bd_strfmt("%.*s", (int)n, at);
        rc = dir == NULL ? no_memory(err) : n == 0 ? BD_OK : look_in(&f, dir, err);
        bd_free(dir);
        at += at[n] == ',' ? n + 1 : n;
    }
    if (rc == BD_OK && p->n == 0) {
        if (p->damaged) {
            rc = p->problem.code;
            if (err != NULL) {
                *err = p->problem;
            }
        } else {
            rc = bd_err_set(err, BD_E_NOT_FOUND, "no part of it in %s%s%s", own,
                            more != NULL && *more != '\0' ? " or in " : "",
                            more != NULL ? more : "");
        }
    }
    if (p->n > 1) {
        qsort(p->items, p->n, sizeof *p->items, by_index);
    }
    return rc;
}

bd_status ps_parts_check(const ps_parts *p, uint32_t first, uint32_t end, bd_err *err)
{
    uint32_t servers = p->items[0].m.servers;
    for (uint32_t i = 0, at = 0; i < servers; i++) {
        uint32_t from = 0, to = 0;
        while (at < p->n && p->items[at].m.index < i) {
            at++;
        }
        rpc_slots_of(i, servers, &from, &to);
        bool here = at < p->n && p->items[at].m.index == i;
        if (!here && from < end && first < to) {
            return p->damaged
                       ? bd_err_set(err, p->problem.code, "%s", bd_err_text(&p->problem))
                       : bd_err_set(err, BD_E_NOT_FOUND,
                                    "the part of server %u of %u is missing (job epoch %" PRIu64
                                    ", step %" PRIu64 "): name its folder in restore_from",
                                    i, servers, p->items[0].m.epoch, p->items[0].m.step);
        }
    }
    return BD_OK;
}
