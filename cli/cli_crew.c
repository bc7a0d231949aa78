#include "cli/cli_crew.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include "cli/cli_proc.h"

#include <uv.h>

#include <signal.h>
#include <string.h>

/* The place of one process, started once or again. */
typedef struct place {
    cli_crew *crew;
    int idx;        /* in cli_sup.procs */
    cli_proc *proc; /* dies at its exit */
    bd_err spawn_error;
} place;

struct cli_crew {
    uv_loop_t *loop;
    uv_timer_t timer;
    cli_sup sup;
    char *guard;
    cli_crew_events events;
    place *places;      /* owned, [sup.n_procs] */
    sup_event *pending; /* owned: born while effects of another event are carried out */
    size_t n_pending;
    bool stepping;
    int stop_signo;
};

static void post(cli_crew *c, sup_event ev);

/* ---- events from outside ---- */
static void on_line(void *user, const char *line, size_t n_bytes, bool from_stderr)
{
    const place *p = user;
    p->crew->events.on_line(p->crew->events.user, p->idx, line, n_bytes, from_stderr);
}

static void on_ready(void *user, const char *text)
{
    const place *p = user;
    cli_crew *c = p->crew;
    bool ok = c->events.on_ready(c->events.user, p->idx, text);
    post(c, (sup_event){.kind = ok ? SUP_EV_READY : SUP_EV_SPAWN_FAILED, .proc = p->idx});
}

static void on_child_exit(void *user, int exit_code, int signo)
{
    place *p = user;
    cli_crew *c = p->crew;
    p->proc = NULL;
    if (c->events.on_gone != NULL) {
        c->events.on_gone(c->events.user, p->idx);
    }
    post(c,
         (sup_event){.kind = SUP_EV_EXIT, .proc = p->idx, .exit_code = exit_code, .signo = signo});
}

static void on_timer(uv_timer_t *t)
{
    post(t->data, (sup_event){.kind = SUP_EV_TIME});
}

static void on_timer_closed(uv_handle_t *h)
{
    cli_crew *c = h->data;
    c->events.on_done(c->events.user);
}

/* ---- effects ---- */
static void start_place(cli_crew *c, place *p)
{
    cli_args args = {0};
    char *const *env = NULL;
    c->events.on_start(c->events.user, p->idx, &args, &env);
    const cli_proc_spec spec = {.guard = c->guard,
                                .argv = args.items,
                                .env = env,
                                .want_ready = c->sup.procs[p->idx].role == SUP_SERVER};
    const cli_proc_events events = {
        .on_line = on_line, .on_ready = on_ready, .on_exit = on_child_exit, .user = p};
    p->spawn_error = (bd_err)BD_ERR_INIT;
    bd_status rc = args.failed ? bd_err_set(&p->spawn_error, BD_E_NOMEM, "command line")
                               : cli_proc_start(c->loop, &spec, &events, &p->proc, &p->spawn_error);
    if (rc != BD_OK) {
        post(c, (sup_event){.kind = SUP_EV_SPAWN_FAILED, .proc = p->idx});
    } else {
        c->events.on_started(c->events.user, p->idx, cli_proc_pid(p->proc));
    }
    cli_args_deinit(&args);
}

static void carry_out(cli_crew *c, const sup_effect *fx)
{
    place *p = &c->places[fx->proc];
    switch (fx->kind) {
    case SUP_FX_SPAWN:
        start_place(c, p);
        break;
    case SUP_FX_KILL:
        if (p->proc != NULL) {
            cli_proc_kill(p->proc, fx->signo == SIGTERM ? c->stop_signo : fx->signo);
        }
        break;
    case SUP_FX_RESTARTING:
        if (c->events.on_restarting != NULL) {
            c->events.on_restarting(c->events.user, fx->proc, fx->delay_ms);
        }
        break;
    }
}

static void rearm(cli_crew *c)
{
    if (c->sup.phase == SUP_PHASE_DONE) {
        if (!uv_is_closing((uv_handle_t *)&c->timer)) {
            uv_close((uv_handle_t *)&c->timer, on_timer_closed);
        }
        return;
    }
    int64_t at = sup_next_deadline_ms(&c->sup), now = bd_mono_ns() / BD_NS_PER_MS;
    (void)uv_timer_stop(&c->timer);
    if (at >= 0) {
        (void)uv_timer_start(&c->timer, on_timer, at > now ? (uint64_t)(at - now) : 0, 0);
    }
}

/* One event at a time: effects may bear events, which wait for their turn. */
static void post(cli_crew *c, sup_event ev)
{
    BD_ASSERT(c->n_pending < (size_t)c->sup.n_procs + 1); /* one failed start of each */
    c->pending[c->n_pending++] = ev;
    if (c->stepping) {
        return;
    }
    c->stepping = true;
    while (c->n_pending > 0) {
        sup_event next = c->pending[0];
        c->n_pending--;
        memmove(c->pending, c->pending + 1, c->n_pending * sizeof c->pending[0]);
        sup_step(&c->sup, &next, bd_mono_ns() / BD_NS_PER_MS);
        for (size_t i = 0; i < c->sup.n_effects; i++) {
            carry_out(c, &c->sup.effects[i]);
        }
    }
    c->stepping = false;
    rearm(c);
}

/* ---- life ---- */
bd_status cli_crew_new(uv_loop_t *loop, const sup_config *cfg, char *guard,
                       const cli_crew_events *events, cli_crew **out, bd_err *err)
{
    cli_crew *c = bd_calloc(1, sizeof *c);
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "start processes");
    }
    c->loop = loop;
    c->guard = guard;
    c->stop_signo = SIGTERM;
    c->events = *events;
    bd_status rc = sup_init(&c->sup, cfg);
    if (rc != BD_OK) {
        rc =
            bd_err_set(err, rc, "launch %d servers and %d workers", cfg->n_servers, cfg->n_workers);
    } else {
        c->places = bd_calloc((size_t)c->sup.n_procs, sizeof *c->places);
        c->pending = bd_calloc((size_t)c->sup.n_procs + 1, sizeof *c->pending);
        rc =
            c->places != NULL && c->pending != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "launch");
    }
    if (rc != BD_OK) {
        cli_crew_free(c);
        return rc;
    }
    for (int i = 0; c->places != NULL && i < c->sup.n_procs; i++) {
        c->places[i].crew = c;
        c->places[i].idx = i;
    }
    *out = c;
    return BD_OK;
}

void cli_crew_start(cli_crew *c)
{
    (void)uv_timer_init(c->loop, &c->timer);
    c->timer.data = c;
    post(c, (sup_event){.kind = SUP_EV_START});
}

void cli_crew_stop(cli_crew *c, int signo)
{
    post(c, (sup_event){.kind = SUP_EV_SIGNAL, .signo = signo});
}

void cli_crew_set_stop_signal(cli_crew *c, int signo)
{
    c->stop_signo = signo;
}

void cli_crew_forward(cli_crew *c, int signo)
{
    for (int i = 0; i < c->sup.n_procs; i++) {
        if (c->places[i].proc != NULL) {
            cli_proc_kill(c->places[i].proc, signo);
        }
    }
}

const cli_sup *cli_crew_sup(const cli_crew *c)
{
    return &c->sup;
}

const bd_err *cli_crew_spawn_error(const cli_crew *c, int proc)
{
    return &c->places[proc].spawn_error;
}

void cli_crew_free(cli_crew *c)
{
    if (c == NULL) {
        return;
    }
    sup_deinit(&c->sup);
    bd_free(c->places);
    bd_free(c->pending);
    bd_free(c);
}
