/* `braid ckpt list|verify|diff|prune`: what checkpoints there are, whether they are whole, what
 * changed between two, and which go. */
#include "base/exit_code.h"
#include "base/json.h"
#include "base/mem.h"

#include "ps_server/ps_catalog.h"
#include "ps_server/ps_diff.h"
#include "ps_server/ps_offline.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bd_status print_json(ps_offline *o, bd_json *j, bd_err *err)
{
    const char *text = bd_json_text(j);
    if (text == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "no memory");
    }
    (void)fprintf(o->out, "%s\n", text);
    return BD_OK;
}

/* Why it is damaged; NULL: it is not. */
static const bd_err *reason(const ps_checkpoint *k)
{
    for (size_t i = 0; i < k->n_parts; i++) {
        if (k->parts[i].damaged) {
            return &k->parts[i].why;
        }
    }
    return k->dense.damaged ? &k->dense.why : NULL;
}

static const char *trainer_text(const ps_checkpoint *k)
{
    return k->dense.folder == NULL ? "none" : k->dense.damaged ? "damaged" : "whole";
}

/* ---- list ---- */
static void put_checkpoint(bd_json *j, const ps_checkpoint *k)
{
    bd_json_put_str(j, "name", k->name);
    bd_json_put_str(j, "state", ps_ckpt_state_text(ps_checkpoint_state(k)));
    bd_json_put_u64(j, "step", k->step);
    bd_json_put_u64(j, "job_epoch", k->epoch);
    bd_json_put_u64(j, "servers", k->servers);
    bd_json_put_u64(j, "parts", k->n_parts);
    bd_json_put_u64(j, "rows", k->n_rows);
    bd_json_put_u64(j, "bytes", k->n_bytes);
    bd_json_put_u64(j, "own_bytes", k->own_bytes);
    bd_json_put_str(j, "trainer", trainer_text(k));
    if (reason(k) != NULL) {
        bd_json_put_str(j, "error", bd_err_text(reason(k)));
    }
    bd_json_key(j, "folders");
    bd_json_arr(j);
    for (size_t i = 0; i < k->n_parts; i++) {
        bd_json_str(j, k->parts[i].folder);
    }
    bd_json_arr_end(j);
}

static bd_status list(ps_offline *o, const ps_catalog *c, bd_err *err)
{
    bd_json j;
    bd_status rc = BD_OK;
    bd_json_init(&j);
    bd_json_arr(&j);
    if (!o->json) {
        (void)fprintf(o->out, "%-24s %10s %6s %8s %12s %10s %10s %-8s %s\n", "checkpoint", "step",
                      "job", "parts", "rows", "MB", "own MB", "trainer", "state");
    }
    for (size_t i = 0; i < c->n; i++) {
        const ps_checkpoint *k = &c->items[i];
        char parts[32];
        if (o->json) {
            bd_json_obj(&j);
            put_checkpoint(&j, k);
            bd_json_obj_end(&j);
            continue;
        }
        (void)snprintf(parts, sizeof parts, "%zu/%u", k->n_parts, k->servers);
        (void)fprintf(
            o->out,
            "%-24s %10" PRIu64 " %6" PRIu64 " %8s %12" PRIu64 " %10.1f %10.1f %-8s %s%s%s\n",
            k->name, k->step, k->epoch, parts, k->n_rows, (double)k->n_bytes / 1e6,
            (double)k->own_bytes / 1e6, trainer_text(k), ps_ckpt_state_text(ps_checkpoint_state(k)),
            reason(k) != NULL ? ": " : "", reason(k) != NULL ? bd_err_text(reason(k)) : "");
    }
    bd_json_arr_end(&j);
    rc = o->json ? print_json(o, &j, err) : BD_OK;
    bd_json_deinit(&j);
    return rc;
}

/* ---- verify ---- */
/* One, or all. Exit code 3 when one is not whole; the first of them is the error. */
static bd_status verify(ps_offline *o, const ps_catalog *c, bd_err *err)
{
    const ps_checkpoint *one = NULL;
    bd_json j;
    bd_err first = BD_ERR_INIT;
    bd_status rc = o->n_words > 0 ? ps_catalog_find(c, o->words[0], &one, err) : BD_OK;
    if (rc != BD_OK) {
        return rc;
    }
    bd_json_init(&j);
    bd_json_arr(&j);
    for (size_t i = 0; i < c->n; i++) {
        const ps_checkpoint *k = &c->items[i];
        bd_err why = BD_ERR_INIT;
        if (one != NULL && k != one) {
            continue;
        }
        if (ps_checkpoint_state(k) == PS_CKPT_UNFINISHED) {
            (void)fprintf(stderr, "%s is unfinished and not looked at\n", k->name);
            continue;
        }
        bd_status got = ps_checkpoint_verify(k, &why);
        if (got != BD_OK) {
            (void)bd_err_wrap(&why, "checkpoint \"%s\"", k->name);
            bd_err_keep_first(&first, &why);
        }
        if (o->json) {
            bd_json_obj(&j);
            bd_json_put_str(&j, "name", k->name);
            bd_json_put_u64(&j, "step", k->step);
            bd_json_put_u64(&j, "job_epoch", k->epoch);
            bd_json_put_bool(&j, "whole", got == BD_OK);
            bd_json_put_u64(&j, "rows", k->n_rows);
            if (got != BD_OK) {
                bd_json_put_str(&j, "status", bd_status_name(got));
                bd_json_put_str(&j, "error", bd_err_text(&why));
            }
            bd_json_obj_end(&j);
        } else if (got == BD_OK) {
            (void)fprintf(o->out, "%-24s whole: %" PRIu64 " rows, %.1f MB read\n", k->name,
                          k->n_rows, (double)k->n_bytes / 1e6);
        } else {
            (void)fprintf(o->out, "%-24s %s\n", k->name, bd_status_name(got));
        }
    }
    bd_json_arr_end(&j);
    rc = o->json ? print_json(o, &j, err) : BD_OK;
    bd_json_deinit(&j);
    if (rc == BD_OK && first.code != BD_OK) {
        *err = first;
        rc = first.code;
        o->exit_code = BD_EXIT_DATA;
    }
    return rc;
}

/* ---- diff ---- */
static bd_status print_diff(ps_offline *o, const ps_table_diff *d, size_t n, bd_err *err)
{
    bd_json j;
    bd_json_init(&j);
    bd_json_arr(&j);
    if (!o->json) {
        (void)fprintf(o->out, "%-32s %12s %12s %12s %12s %12s\n", "table", "same", "changed",
                      "only first", "only second", "largest");
    }
    for (size_t i = 0; i < n; i++) {
        if (!o->json) {
            (void)fprintf(
                o->out, "%-32s %12" PRIu64 " %12" PRIu64 " %12" PRIu64 " %12" PRIu64 " %12.4g%s\n",
                d[i].name, d[i].same, d[i].changed, d[i].only_a, d[i].only_b, d[i].largest,
                d[i].spec_differs ? " (another table of that name)" : "");
            continue;
        }
        bd_json_obj(&j);
        bd_json_put_str(&j, "table", d[i].name);
        bd_json_put_u64(&j, "same", d[i].same);
        bd_json_put_u64(&j, "changed", d[i].changed);
        bd_json_put_u64(&j, "only_first", d[i].only_a);
        bd_json_put_u64(&j, "only_second", d[i].only_b);
        bd_json_put_f64(&j, "largest_change", d[i].largest);
        bd_json_put_u64(&j, "largest_key", d[i].largest_key);
        bd_json_put_bool(&j, "spec_differs", d[i].spec_differs);
        bd_json_obj_end(&j);
    }
    bd_json_arr_end(&j);
    bd_status rc = o->json ? print_json(o, &j, err) : BD_OK;
    bd_json_deinit(&j);
    return rc;
}

/* Exit code 1 when they differ, as diff(1) has it. */
static bd_status diff(ps_offline *o, const ps_catalog *c, bd_err *err)
{
    const ps_checkpoint *a = NULL, *b = NULL;
    ps_table_diff *d = NULL;
    size_t n = 0;
    if (o->n_words != 2) {
        return bd_err_set(err, BD_E_USAGE, "ckpt diff: the names of two checkpoints");
    }
    bd_status rc = ps_catalog_find(c, o->words[0], &a, err);
    if (rc == BD_OK) {
        rc = ps_catalog_find(c, o->words[1], &b, err);
    }
    if (rc == BD_OK) {
        rc = ps_checkpoint_diff(a, b, &d, &n, err);
    }
    if (rc == BD_OK) {
        rc = print_diff(o, d, n, err);
    }
    for (size_t i = 0; i < n && rc == BD_OK; i++) {
        if (d[i].changed + d[i].only_a + d[i].only_b > 0 || d[i].spec_differs) {
            o->exit_code = BD_EXIT_FAILURE;
        }
    }
    bd_free(d);
    return rc;
}

/* ---- prune ---- */
/* Files are shared by hard links, so every checkpoint is whole by itself: none needs another. */
static bool goes(const ps_catalog *c, size_t i, int64_t keep, const char **why)
{
    const ps_checkpoint *k = &c->items[i];
    int64_t newer = 0;
    bool busy = false;
    for (size_t n = 0; n < k->n_parts; n++) {
        busy = busy || k->parts[n].busy;
    }
    switch (ps_checkpoint_state(k)) {
    case PS_CKPT_UNFINISHED:
        *why = busy ? "its server runs: it may be at work on it" : "unfinished";
        return !busy;
    case PS_CKPT_DAMAGED:
        *why = "damaged: look at it, then remove it by hand";
        return false;
    case PS_CKPT_INCOMPLETE:
        *why = "parts of it are elsewhere";
        return false;
    default:
        break;
    }
    for (size_t n = i + 1; n < c->n; n++) {
        newer += ps_checkpoint_state(&c->items[n]) == PS_CKPT_WHOLE;
    }
    *why = newer >= keep ? "old" : "kept";
    return newer >= keep;
}

static bd_status prune(ps_offline *o, const ps_catalog *c, bd_err *err)
{
    bd_json j;
    bd_status rc = BD_OK;
    bd_json_init(&j);
    bd_json_arr(&j);
    for (size_t i = 0; i < c->n && rc == BD_OK; i++) {
        const ps_checkpoint *k = &c->items[i];
        const char *why = "";
        bool gone = goes(c, i, o->opt.keep, &why);
        if (gone && o->opt.yes) {
            rc = ps_checkpoint_remove(k, err);
        }
        if (rc != BD_OK) {
            break;
        }
        if (o->json) {
            bd_json_obj(&j);
            bd_json_put_str(&j, "name", k->name);
            bd_json_put_u64(&j, "step", k->step);
            bd_json_put_bool(&j, "removed", gone && o->opt.yes);
            bd_json_put_str(&j, "why", why);
            bd_json_obj_end(&j);
        } else {
            (void)fprintf(o->out, "%-24s %10" PRIu64 " %-13s %s\n", k->name, k->step,
                          !gone        ? "stays"
                          : o->opt.yes ? "removed"
                                       : "would go",
                          why);
        }
    }
    bd_json_arr_end(&j);
    if (rc == BD_OK && o->json) {
        rc = print_json(o, &j, err);
    }
    bd_json_deinit(&j);
    if (rc == BD_OK && !o->opt.yes) {
        (void)fprintf(stderr, "nothing was changed: --yes removes them\n");
    }
    return rc;
}

bd_status ps_offline_ckpt(ps_offline *o, const char *verb, bd_err *err)
{
    static const struct {
        const char *name;
        int most_words;
        bd_status (*fn)(ps_offline *o, const ps_catalog *c, bd_err *err);
    } verbs[] = {{"list", 0, list}, {"verify", 1, verify}, {"diff", 2, diff}, {"prune", 0, prune}};
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        ps_catalog c;
        if (strcmp(verbs[i].name, verb) != 0) {
            continue;
        }
        if (o->n_words > verbs[i].most_words) {
            return bd_err_set(err, BD_E_USAGE, "ckpt %s: what is \"%.200s\" for?", verb,
                              o->words[verbs[i].most_words]);
        }
        bd_status rc = ps_catalog_read(&c, o->folders, o->n_folders, err);
        if (rc == BD_OK) {
            rc = verbs[i].fn(o, &c, err);
            ps_catalog_deinit(&c);
        }
        return rc;
    }
    return bd_err_set(err, BD_E_USAGE,
                      "ckpt: \"%.64s\" is unknown; it has list, verify, diff, prune", verb);
}
