#include "cli/cli_sup.h"

#include "base/assert.h"
#include "base/exit_code.h"
#include "base/mem.h"

#include <signal.h>
#include <string.h>

const char *sup_cause_text(sup_cause c)
{
    static const char *const texts[] = {
#define BD_X(name, text) text,
        SUP_CAUSE_MAP(BD_X)
#undef BD_X
    };
    return texts[c];
}

bd_status sup_init(cli_sup *s, const sup_config *cfg)
{
    *s = (cli_sup){.cfg = *cfg, .n_procs = cfg->n_servers + cfg->n_workers};
    if (s->n_procs <= 0 || cfg->n_servers < 0 || cfg->n_workers < 0) {
        return BD_E_INVALID;
    }
    size_t n = (size_t)s->n_procs;
    s->procs = bd_calloc(n, sizeof *s->procs);
    /* One step signals or starts each process at most once, and announces one restart each. */
    s->effects = bd_calloc(3 * n, sizeof *s->effects);
    if (s->procs == NULL || s->effects == NULL) {
        sup_deinit(s);
        return BD_E_NOMEM;
    }
    for (int i = 0; i < s->n_procs; i++) {
        bool server = i < cfg->n_servers;
        s->procs[i].role = server ? SUP_SERVER : SUP_WORKER;
        s->procs[i].index = server ? i : i - cfg->n_servers;
        s->procs[i].backoff_ms = cfg->backoff_min_ms;
    }
    return BD_OK;
}

void sup_deinit(cli_sup *s)
{
    bd_free(s->procs);
    bd_free(s->effects);
    s->procs = NULL;
    s->effects = NULL;
}

static sup_effect *emit(cli_sup *s, sup_effect_kind kind, int proc)
{
    BD_ASSERT(s->n_effects < 3 * (size_t)s->n_procs);
    sup_effect *fx = &s->effects[s->n_effects++];
    *fx = (sup_effect){.kind = kind, .proc = proc};
    return fx;
}

static bool is_alive(const sup_proc *p)
{
    return p->state == SUP_STARTING || p->state == SUP_UP;
}

static bool is_stopping(const cli_sup *s)
{
    return s->phase >= SUP_PHASE_STOP_WORKERS;
}

static void spawn(cli_sup *s, int i, int64_t now_ms)
{
    sup_proc *p = &s->procs[i];
    bool server = p->role == SUP_SERVER;
    p->state = server ? SUP_STARTING : SUP_UP;
    p->deadline_ms = server ? now_ms + s->cfg.ready_timeout_ms : 0;
    (void)emit(s, SUP_FX_SPAWN, i);
}

static void send_signal(cli_sup *s, int i, int signo)
{
    sup_proc *p = &s->procs[i];
    if (!is_alive(p) || p->killed || (signo == SIGTERM && p->asked_to_stop)) {
        return;
    }
    p->asked_to_stop = true;
    p->killed = signo == SIGKILL;
    emit(s, SUP_FX_KILL, i)->signo = signo;
}

static void signal_role(cli_sup *s, sup_role role, int signo)
{
    for (int i = 0; i < s->n_procs; i++) {
        if (s->procs[i].role == role) {
            send_signal(s, i, signo);
        }
    }
}

/* No process of the role runs, and none will start again. */
static bool role_gone(const cli_sup *s, sup_role role)
{
    for (int i = 0; i < s->n_procs; i++) {
        if (s->procs[i].role == role && is_alive(&s->procs[i])) {
            return false;
        }
    }
    return true;
}

static int64_t grace_ms(const cli_sup *s)
{
    return s->root.cause != SUP_CAUSE_NONE ? s->cfg.fail_grace_ms : s->cfg.stop_grace_ms;
}

/* Moves on through the stop phases as far as processes have gone. */
static void advance_stop(cli_sup *s, int64_t now_ms)
{
    if (s->phase == SUP_PHASE_STOP_WORKERS && role_gone(s, SUP_WORKER)) {
        s->phase = SUP_PHASE_STOP_SERVERS;
        s->stop_deadline_ms = now_ms + grace_ms(s);
        signal_role(s, SUP_SERVER, SIGTERM);
    }
    if (s->phase == SUP_PHASE_STOP_SERVERS && role_gone(s, SUP_SERVER)) {
        s->phase = SUP_PHASE_DONE;
        s->stop_deadline_ms = 0;
    }
}

static void begin_stop(cli_sup *s, int64_t now_ms)
{
    if (is_stopping(s)) {
        return;
    }
    for (int i = 0; i < s->n_procs; i++) {
        sup_proc *p = &s->procs[i];
        if (!is_alive(p)) {
            p->state = SUP_GONE;
        }
        p->deadline_ms = 0;
    }
    s->phase = SUP_PHASE_STOP_WORKERS;
    s->stop_deadline_ms = now_ms + grace_ms(s);
    signal_role(s, SUP_WORKER, SIGTERM);
    advance_stop(s, now_ms);
}

/* A worker that lost its peer often ends before the peer's own end is seen: the cause that is not
 * "peer lost" is the better one, wherever it comes in the order. */
static bool is_better_root(const cli_sup *s, int exit_code, int signo)
{
    if (s->root.cause == SUP_CAUSE_NONE) {
        return true;
    }
    bool root_is_echo =
        s->root.cause == SUP_CAUSE_EXIT && s->root.signo == 0 && s->root.exit_code == BD_EXIT_PEER;
    bool is_echo = signo == 0 && exit_code == BD_EXIT_PEER;
    return root_is_echo && !is_echo;
}

static void fail(cli_sup *s, const sup_root *root, int64_t now_ms)
{
    if (is_better_root(s, root->exit_code, root->signo)) {
        s->root = *root;
    }
    begin_stop(s, now_ms);
}

/* Whether this end is what our own signal makes of a healthy process. */
static bool is_ended_by_us(const sup_proc *p, int exit_code, int signo)
{
    if (!p->asked_to_stop) {
        return false;
    }
    if (signo == 0) {
        return exit_code == 0 || exit_code == 128 + SIGTERM;
    }
    return signo == SIGTERM || (p->killed && signo == SIGKILL);
}

static void on_exit_while_stopping(cli_sup *s, int i, const sup_event *ev)
{
    const sup_proc *p = &s->procs[i];
    sup_root root = {
        .cause = SUP_CAUSE_EXIT, .proc = i, .exit_code = ev->exit_code, .signo = ev->signo};
    bool ended_well = ev->exit_code == 0 && ev->signo == 0;
    bool orderly = s->root.cause == SUP_CAUSE_NONE && s->user_signo == 0;
    bool better = s->root.cause != SUP_CAUSE_NONE && !is_ended_by_us(p, ev->exit_code, ev->signo) &&
                  is_better_root(s, ev->exit_code, ev->signo);
    if (orderly && p->killed) { /* the run was fine, but this server would not end */
        root.cause = SUP_CAUSE_STOP_TIMEOUT;
    }
    if (!ended_well && (orderly || better)) {
        s->root = root;
    }
}

static void schedule_restart(cli_sup *s, int i, int64_t now_ms)
{
    sup_proc *p = &s->procs[i];
    s->n_restarts++;
    p->state = SUP_BACKOFF;
    p->deadline_ms = now_ms + p->backoff_ms;
    emit(s, SUP_FX_RESTARTING, i)->delay_ms = p->backoff_ms;
    p->backoff_ms *= 2;
    if (p->backoff_ms > s->cfg.backoff_max_ms) {
        p->backoff_ms = s->cfg.backoff_max_ms;
    }
}

static void on_server_exit(cli_sup *s, int i, const sup_event *ev, int64_t now_ms)
{
    sup_proc *p = &s->procs[i];
    sup_root root = {
        .cause = SUP_CAUSE_EXIT, .proc = i, .exit_code = ev->exit_code, .signo = ev->signo};
    /* One that never served has a wrong set-up: starting it again would only hide the error. */
    if (!s->cfg.restart_servers || !p->was_ready) {
        fail(s, &root, now_ms);
    } else if (s->n_restarts >= s->cfg.max_restarts || p->n_unready > s->cfg.max_unready_restarts) {
        root.cause = SUP_CAUSE_RESTARTS;
        fail(s, &root, now_ms);
    } else {
        schedule_restart(s, i, now_ms);
    }
}

static void on_exit(cli_sup *s, const sup_event *ev, int64_t now_ms)
{
    sup_proc *p = &s->procs[ev->proc];
    if (!is_alive(p)) {
        return;
    }
    p->n_unready = p->state == SUP_STARTING ? p->n_unready + 1 : 0;
    p->state = SUP_GONE;
    p->deadline_ms = 0;
    if (is_stopping(s)) {
        on_exit_while_stopping(s, ev->proc, ev);
        advance_stop(s, now_ms);
    } else if (p->role == SUP_SERVER) {
        on_server_exit(s, ev->proc, ev, now_ms);
    } else if (ev->exit_code != 0 || ev->signo != 0) {
        sup_root root = {.cause = SUP_CAUSE_EXIT,
                         .proc = ev->proc,
                         .exit_code = ev->exit_code,
                         .signo = ev->signo};
        fail(s, &root, now_ms);
    } else if (role_gone(s, SUP_WORKER)) {
        begin_stop(s, now_ms);
    }
}

static bool all_servers_up(const cli_sup *s)
{
    for (int i = 0; i < s->cfg.n_servers; i++) {
        if (s->procs[i].state != SUP_UP) {
            return false;
        }
    }
    return true;
}

static void start_idle(cli_sup *s, int first, int end, int64_t now_ms)
{
    for (int i = first; i < end; i++) {
        if (s->procs[i].state == SUP_IDLE) {
            spawn(s, i, now_ms);
        }
    }
}

static void start_next(cli_sup *s, int64_t now_ms)
{
    if (s->phase != SUP_PHASE_SERVERS) {
        return;
    }
    if (s->cfg.n_servers > 0 && s->procs[0].state == SUP_UP) {
        start_idle(s, 1, s->cfg.n_servers, now_ms);
    }
    if (all_servers_up(s)) {
        s->phase = SUP_PHASE_WORK;
        start_idle(s, s->cfg.n_servers, s->n_procs, now_ms);
    }
}

static void on_ready(cli_sup *s, int i, int64_t now_ms)
{
    sup_proc *p = &s->procs[i];
    if (p->state != SUP_STARTING) {
        return;
    }
    p->state = SUP_UP;
    p->deadline_ms = 0;
    p->was_ready = true;
    p->n_unready = 0;
    start_next(s, now_ms);
}

static void on_signal(cli_sup *s, int signo, int64_t now_ms)
{
    if (s->user_signo != 0) { /* the second one: at once */
        begin_stop(s, now_ms);
        signal_role(s, SUP_WORKER, SIGKILL);
        signal_role(s, SUP_SERVER, SIGKILL);
        return;
    }
    s->user_signo = signo;
    begin_stop(s, now_ms);
}

static void on_time(cli_sup *s, int64_t now_ms)
{
    for (int i = 0; i < s->n_procs && !is_stopping(s); i++) {
        sup_proc *p = &s->procs[i];
        if (p->deadline_ms == 0 || now_ms < p->deadline_ms) {
            continue;
        }
        if (p->state == SUP_BACKOFF) {
            spawn(s, i, now_ms);
        } else if (p->state == SUP_STARTING) {
            sup_root root = {.cause = SUP_CAUSE_READY_TIMEOUT, .proc = i};
            fail(s, &root, now_ms);
        }
    }
    if (s->stop_deadline_ms != 0 && now_ms >= s->stop_deadline_ms) {
        sup_role role = s->phase == SUP_PHASE_STOP_WORKERS ? SUP_WORKER : SUP_SERVER;
        s->stop_deadline_ms = 0;
        signal_role(s, role, SIGKILL);
    }
}

void sup_step(cli_sup *s, const sup_event *ev, int64_t now_ms)
{
    s->n_effects = 0;
    switch (ev->kind) {
    case SUP_EV_START:
        if (s->cfg.n_servers > 0) {
            start_idle(s, 0, 1, now_ms);
        } else {
            start_next(s, now_ms);
        }
        break;
    case SUP_EV_READY:
        on_ready(s, ev->proc, now_ms);
        break;
    case SUP_EV_EXIT:
        on_exit(s, ev, now_ms);
        break;
    case SUP_EV_SPAWN_FAILED:
        s->procs[ev->proc].state = SUP_GONE;
        fail(s, &(sup_root){.cause = SUP_CAUSE_SPAWN, .proc = ev->proc}, now_ms);
        advance_stop(s, now_ms);
        break;
    case SUP_EV_SIGNAL:
        on_signal(s, ev->signo, now_ms);
        break;
    case SUP_EV_TIME:
        on_time(s, now_ms);
        break;
    }
}

int64_t sup_next_deadline_ms(const cli_sup *s)
{
    int64_t next = s->stop_deadline_ms != 0 ? s->stop_deadline_ms : -1;
    for (int i = 0; i < s->n_procs && !is_stopping(s); i++) {
        int64_t at = s->procs[i].deadline_ms;
        if (at != 0 && (next < 0 || at < next)) {
            next = at;
        }
    }
    return next;
}

int sup_exit_code(const cli_sup *s)
{
    switch (s->root.cause) {
    case SUP_CAUSE_NONE:
        return s->user_signo != 0 ? 128 + s->user_signo : BD_EXIT_OK;
    case SUP_CAUSE_EXIT:
    case SUP_CAUSE_RESTARTS:
        if (s->root.signo != 0) {
            return 128 + s->root.signo;
        }
        /* A server that ends with 0 although nobody asked is lost all the same. */
        return s->root.exit_code != 0 ? s->root.exit_code : BD_EXIT_PEER;
    case SUP_CAUSE_READY_TIMEOUT:
        return BD_EXIT_PEER;
    default:
        return BD_EXIT_FAILURE;
    }
}
