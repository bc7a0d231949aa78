#include "ps_server/ps_spec.h"

#include "base/mem.h"
#include "base/option.h"

#include "ps_server/ps_policy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "braid/v1/parameter_server.pb-c.h"

uint32_t ps_table_id(const char *name)
{
    uint32_t id = (uint32_t)bd_hash64(name, strlen(name), 0);
    return id == 0 ? 1 : id;
}

bool ps_name_ok(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > PS_MAX_NAME_BYTES || name[0] == '.') {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '.' || c == '-';
        if (!ok) {
            return false;
        }
    }
    return true;
}

static bd_status parse_init(const Braid__V1__TableSpec *msg, ps_spec *s, bd_err *err)
{
    const char *name = msg->initializer[0] == '\0' ? "uniform" : msg->initializer;
    const char *names[NUM_INIT_MAX_PARAMS];
    double values[NUM_INIT_MAX_PARAMS];
    size_t n = msg->n_init_params;
    s->init = num_init_find(name);
    if (s->init == NULL) {
        return bd_err_set(err, BD_E_INVALID, "table \"%s\": unknown initializer \"%s\"", s->name,
                          name);
    }
    if (n > NUM_INIT_MAX_PARAMS) {
        return bd_err_set(err, BD_E_INVALID, "table \"%s\": %zu initializer parameters", s->name,
                          n);
    }
    for (size_t i = 0; i < n; i++) {
        names[i] = msg->init_params[i]->name;
        values[i] = msg->init_params[i]->value;
    }
    bd_status rc = num_init_params(s->init, names, values, n, s->init_param, err);
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "table \"%s\": initializer", s->name);
}

static bd_status parse_optimizer(const Braid__V1__TableSpec *msg, ps_spec *s, bd_err *err)
{
    const char *name = msg->optimizer[0] == '\0' ? "sgd" : msg->optimizer;
    s->opt = num_optim_find(name);
    if (s->opt == NULL) {
        return bd_err_set(err, BD_E_INVALID, "table \"%s\": unknown optimizer \"%s\"", s->name,
                          name);
    }
    size_t n = msg->n_opt_params;
    if (n > NUM_OPTIM_MAX_HYPER) {
        return bd_err_set(err, BD_E_INVALID, "table \"%s\": %zu optimizer parameters", s->name, n);
    }
    const char *names[NUM_OPTIM_MAX_HYPER];
    double values[NUM_OPTIM_MAX_HYPER];
    for (size_t i = 0; i < n; i++) {
        names[i] = msg->opt_params[i]->name;
        values[i] = msg->opt_params[i]->value;
    }
    bd_status rc = num_optim_hyper(s->opt, names, values, n, s->hyper, err);
    if (rc != BD_OK) {
        return bd_err_wrap(err, "table \"%s\": optimizer %s", s->name, name);
    }
    s->state_elems = s->opt->state_elems(s->dim);
    return BD_OK;
}

/* Row types by their number on the wire. */
static const int dtypes[] = {NUM_F32, NUM_F32, NUM_F16, NUM_BF16, NUM_I8};

static int dtype_of(Braid__V1__DType wire)
{
    return (size_t)wire < sizeof dtypes / sizeof dtypes[0] ? dtypes[wire] : 0;
}

static Braid__V1__DType wire_dtype(int dtype)
{
    int wire = BRAID__V1__DTYPE__DTYPE_F32;
    while (dtypes[wire] != dtype) { /* a parsed spec's is there */
        wire++;
    }
    return (Braid__V1__DType)wire;
}

static bd_status parse_policy(const Braid__V1__TableSpec *msg, ps_spec *s, bd_err *err)
{
    double most = msg->max_gradient_norm;
    s->policy = msg->bad_gradient == 0 ? PS_POLICY_REJECT : (ps_policy)msg->bad_gradient;
    if (s->policy < PS_POLICY_REJECT || s->policy > PS_POLICY_HALT) {
        return bd_err_set(err, BD_E_INVALID, "table \"%s\": bad_gradient %d", s->name,
                          (int)msg->bad_gradient);
    }
    if (!(most == 0 || (most >= 1e-30 && most <= 1e30))) { /* a NaN is refused too */
        return bd_err_set(err, BD_E_INVALID, "table \"%s\": max_gradient_norm %g", s->name, most);
    }
    if (s->policy == PS_POLICY_CLIP && most == 0) {
        return bd_err_set(err, BD_E_INVALID,
                          "table \"%s\": bad_gradient clip needs a max_gradient_norm", s->name);
    }
    s->max_grad_norm = (float)most;
    return BD_OK;
}

static bd_status parse_admission(const Braid__V1__TableSpec *msg, ps_spec *s, bd_err *err)
{
    const ps_rule_form *forms[8];
    size_t n = 0;
    s->admit = &ps_admit_all;
    if (msg->admission == NULL) {
        return BD_OK;
    }
    s->admit = ps_admit_find(msg->admission->name);
    for (; ps_admit_at(n) != NULL && n < sizeof forms / sizeof forms[0]; n++) {
        forms[n] = &ps_admit_at(n)->form;
    }
    bd_status rc = s->admit == NULL
                       ? ps_rule_unknown("rule", msg->admission->name, forms, n, err)
                       : ps_rule_params(&s->admit->form, msg->admission, s->admit_param, err);
    return rc == BD_OK ? rc : bd_err_wrap(err, "table \"%s\": admission", s->name);
}

static bd_status parse_evictions(const Braid__V1__TableSpec *msg, ps_spec *s, bd_err *err)
{
    const ps_rule_form *forms[8];
    size_t n = 0;
    bd_status rc = BD_OK;
    for (; ps_evict_at(n) != NULL && n < sizeof forms / sizeof forms[0]; n++) {
        forms[n] = &ps_evict_at(n)->form;
    }
    if (msg->n_evictions > PS_MAX_EVICTS) {
        return bd_err_set(err, BD_E_INVALID, "table \"%s\": %zu evictions, at most %d", s->name,
                          msg->n_evictions, PS_MAX_EVICTS);
    }
    for (size_t i = 0; i < msg->n_evictions && rc == BD_OK; i++) {
        ps_eviction *e = &s->evicts[s->n_evicts++];
        e->rule = ps_evict_find(msg->evictions[i]->name);
        rc = e->rule == NULL ? ps_rule_unknown("rule", msg->evictions[i]->name, forms, n, err)
                             : ps_rule_params(&e->rule->form, msg->evictions[i], e->param, err);
    }
    return rc == BD_OK ? rc : bd_err_wrap(err, "table \"%s\": eviction", s->name);
}

bd_status ps_spec_parse(const Braid__V1__TableSpec *msg, ps_spec *out, bd_err *err)
{
    ps_spec s = {0};
    if (msg->name == NULL || !ps_name_ok(msg->name)) {
        return bd_err_set(err, BD_E_INVALID,
                          "table name must be 1..%u of [A-Za-z0-9_.-] and not start with a dot",
                          PS_MAX_NAME_BYTES);
    }
    (void)snprintf(s.name, sizeof s.name, "%s", msg->name);
    if (msg->dim == 0 || msg->dim > PS_MAX_DIM) {
        return bd_err_set(err, BD_E_INVALID, "table \"%s\": dim %u is outside 1..%u", s.name,
                          msg->dim, PS_MAX_DIM);
    }
    s.dtype = dtype_of(msg->dtype);
    if (s.dtype == 0) {
        return bd_err_set(err, BD_E_UNSUPPORTED, "table \"%s\": dtype %d (f32, f16, bf16, i8)",
                          s.name, (int)msg->dtype);
    }
    s.durability = msg->durability == 0 ? PS_DURABILITY_JOURNAL : (ps_durability)msg->durability;
    if (msg->durability > BRAID__V1__DURABILITY__DURABILITY_SYNC) {
        return bd_err_set(err, BD_E_INVALID, "table \"%s\": durability %d", s.name,
                          (int)msg->durability);
    }
    bd_status rc = parse_policy(msg, &s, err);
    if (rc == BD_OK) {
        rc = parse_admission(msg, &s, err);
    }
    if (rc == BD_OK) {
        rc = parse_evictions(msg, &s, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    s.dim = msg->dim;
    s.weight_words = num_row_bytes(s.dtype, s.dim) / sizeof(float);
    s.seed = msg->seed;
    s.id = ps_table_id(s.name);
    s.name_hash = bd_hash64(s.name, strlen(s.name), 0);
    s.init_key = num_init_key(s.seed, s.name);
    rc = parse_init(msg, &s, err);
    if (rc == BD_OK) {
        rc = parse_optimizer(msg, &s, err);
    }
    if (rc == BD_OK) {
        *out = s;
    }
    return rc;
}

static bd_status differ(const ps_spec *s, const char *field, double have, double want, bd_err *err)
{
    return bd_err_set(err, BD_E_MISMATCH, "table \"%s\" exists with %s %.9g, not %.9g", s->name,
                      field, have, want);
}

/* All rules of a table as one text. */
static void rules_text(const ps_spec *s, char *out, size_t out_bytes)
{
    char one[256];
    ps_rule_text(&s->admit->form, s->admit_param, one, sizeof one);
    int at = snprintf(out, out_bytes, "admission %s", one);
    for (size_t i = 0; i < s->n_evicts && at > 0 && (size_t)at < out_bytes; i++) {
        ps_rule_text(&s->evicts[i].rule->form, s->evicts[i].param, one, sizeof one);
        at += snprintf(out + at, out_bytes - (size_t)at, "%s %s", i == 0 ? ", eviction" : ";", one);
    }
}

static bd_status same_rules(const ps_spec *have, const ps_spec *want, bd_err *err)
{
    char x[1536], y[1536];
    rules_text(have, x, sizeof x);
    rules_text(want, y, sizeof y);
    if (strcmp(x, y) != 0) {
        return bd_err_set(err, BD_E_MISMATCH, "table \"%s\" exists with %.180s, not %.180s",
                          have->name, x, y);
    }
    return BD_OK;
}

bd_status ps_spec_same(const ps_spec *have, const ps_spec *want, bd_err *err)
{
    if (strcmp(have->name, want->name) != 0 || have->hidden != want->hidden) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "tables \"%s\" and \"%s\" share the id %u: rename one of them",
                          have->name, want->name, have->id);
    }
    if (have->dim != want->dim) {
        return differ(have, "dim", have->dim, want->dim, err);
    }
    if (have->dtype != want->dtype) {
        return bd_err_set(err, BD_E_MISMATCH, "table \"%s\" exists with dtype %s, not %s",
                          have->name, num_dtype_name(have->dtype), num_dtype_name(want->dtype));
    }
    if (have->seed != want->seed) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "table \"%s\" exists with seed %" PRIu64 ", not %" PRIu64, have->name,
                          have->seed, want->seed);
    }
    if (have->init != want->init) {
        return bd_err_set(err, BD_E_MISMATCH, "table \"%s\" exists with initializer %s, not %s",
                          have->name, have->init->name, want->init->name);
    }
    for (size_t i = 0; i < have->init->n_params; i++) {
        if (have->init_param[i] != want->init_param[i]) {
            return differ(have, have->init->params[i].name, (double)have->init_param[i],
                          (double)want->init_param[i], err);
        }
    }
    if (have->opt != want->opt) {
        return bd_err_set(err, BD_E_MISMATCH, "table \"%s\" exists with optimizer %s, not %s",
                          have->name, have->opt->name, want->opt->name);
    }
    const num_hyper *h = NULL;
    size_t at = 0;
    for (size_t i = 0; (h = num_optim_hyper_at(have->opt, i, &at)) != NULL; i++) {
        if (have->hyper[at] != want->hyper[at]) {
            return differ(have, h->name, (double)have->hyper[at], (double)want->hyper[at], err);
        }
    }
    if (have->durability != want->durability) {
        return differ(have, "durability", have->durability, want->durability, err);
    }
    if (have->policy != want->policy) {
        return bd_err_set(err, BD_E_MISMATCH, "table \"%s\" exists with bad_gradient %s, not %s",
                          have->name, ps_policy_name(have->policy), ps_policy_name(want->policy));
    }
    if (have->max_grad_norm != want->max_grad_norm) {
        return differ(have, "max_gradient_norm", (double)have->max_grad_norm,
                      (double)want->max_grad_norm, err);
    }
    return same_rules(have, want, err);
}

/* Room for a rule's message: protobuf-c wants char *, not const char *. */
typedef struct rule_msg {
    Braid__V1__Rule rule;
    Braid__V1__Param params[PS_RULE_MAX_PARAMS], *list[PS_RULE_MAX_PARAMS];
    char name[64], names[PS_RULE_MAX_PARAMS][64];
} rule_msg;

static Braid__V1__Rule *pack_rule(const ps_rule_form *f, const double *param, rule_msg *m)
{
    braid__v1__rule__init(&m->rule);
    (void)snprintf(m->name, sizeof m->name, "%s", f->name);
    m->rule.name = m->name;
    m->rule.params = m->list;
    for (size_t i = 0; i < f->n_params; i++) {
        (void)snprintf(m->names[i], sizeof m->names[i], "%s", f->params[i].name);
        braid__v1__param__init(&m->params[i]);
        m->params[i].name = m->names[i];
        m->params[i].value = param[i];
        m->list[m->rule.n_params++] = &m->params[i];
    }
    return &m->rule;
}

bd_buf *ps_spec_pack(const ps_spec *s)
{
    rule_msg admission, evictions[PS_MAX_EVICTS];
    Braid__V1__Rule *evict_list[PS_MAX_EVICTS];
    Braid__V1__TableSpec msg;
    Braid__V1__Param params[NUM_INIT_MAX_PARAMS + NUM_OPTIM_MAX_HYPER];
    Braid__V1__Param *init[NUM_INIT_MAX_PARAMS], *opt[NUM_OPTIM_MAX_HYPER];
    char text[3][PS_MAX_NAME_BYTES + 1];
    char names[NUM_INIT_MAX_PARAMS + NUM_OPTIM_MAX_HYPER]
              [64]; /* protobuf-c wants char *, not const char * */
    size_t n = 0;

    braid__v1__table_spec__init(&msg);
    (void)snprintf(text[0], sizeof text[0], "%s", s->name);
    (void)snprintf(text[1], sizeof text[1], "%s", s->init->name);
    (void)snprintf(text[2], sizeof text[2], "%s", s->opt->name);
    msg.name = text[0];
    msg.initializer = text[1];
    msg.optimizer = text[2];
    msg.dim = s->dim;
    msg.dtype = wire_dtype(s->dtype);
    msg.seed = s->seed;
    msg.durability = (Braid__V1__Durability)s->durability;
    msg.bad_gradient = (Braid__V1__BadGradient)s->policy;
    msg.max_gradient_norm = (double)s->max_grad_norm;
    for (size_t i = 0; i < s->init->n_params; i++, n++) {
        (void)snprintf(names[n], sizeof names[n], "%s", s->init->params[i].name);
        braid__v1__param__init(&params[n]);
        params[n].name = names[n];
        params[n].value = (double)s->init_param[i];
        init[msg.n_init_params++] = &params[n];
    }
    const num_hyper *h = NULL;
    size_t at = 0;
    for (size_t i = 0; (h = num_optim_hyper_at(s->opt, i, &at)) != NULL; i++, n++) {
        (void)snprintf(names[n], sizeof names[n], "%s", h->name);
        braid__v1__param__init(&params[n]);
        params[n].name = names[n];
        params[n].value = (double)s->hyper[at];
        opt[msg.n_opt_params++] = &params[n];
    }
    if (s->admit != &ps_admit_all) {
        msg.admission = pack_rule(&s->admit->form, s->admit_param, &admission);
    }
    for (size_t i = 0; i < s->n_evicts; i++) {
        evict_list[msg.n_evictions++] =
            pack_rule(&s->evicts[i].rule->form, s->evicts[i].param, &evictions[i]);
    }
    msg.evictions = evict_list;
    msg.init_params = init;
    msg.opt_params = opt;
    bd_buf *b = bd_buf_new(braid__v1__table_spec__get_packed_size(&msg));
    if (b != NULL) {
        (void)braid__v1__table_spec__pack(&msg, b->bytes);
    }
    return b;
}

bd_status ps_spec_unpack(const void *bytes, size_t n_bytes, ps_spec *out, bd_err *err)
{
    Braid__V1__TableSpec *msg =
        n_bytes > 65536 ? NULL : braid__v1__table_spec__unpack(NULL, n_bytes, bytes);
    if (msg == NULL) {
        return bd_err_set(err, BD_E_CORRUPT, "a stored table spec does not parse");
    }
    bd_status rc = ps_spec_parse(msg, out, err);
    braid__v1__table_spec__free_unpacked(msg, NULL);
    return rc;
}

void ps_spec_row(const ps_spec *s, uint64_t key, float *out)
{
    num_init_row(s->init, s->init_param, s->init_key, key, out, s->dim);
    num_row_round(s->dtype, out, s->dim);
}

bool ps_spec_sifts(const ps_spec *s)
{
    return s->admit->admit != NULL;
}

/* A table of n words of zeros, updated by rules alone. */
static void hidden_spec(const ps_spec *s, ps_hidden kind, size_t n_words, ps_spec *out)
{
    static const char *const prefixes[PS_N_HIDDEN] = {"", ".filter/", ".counts/"};
    char name[PS_MAX_NAME_BYTES + 16];
    int n = snprintf(name, sizeof name, "%s%s", prefixes[kind], s->name);
    *out = (ps_spec){.dim = (uint32_t)n_words,
                     .dtype = NUM_F32,
                     .init = num_init_find("constant"),
                     .opt = num_optim_find("sgd"),
                     .durability = s->durability,
                     .policy = PS_POLICY_REJECT,
                     .admit = &ps_admit_all,
                     .hidden = kind,
                     .weight_words = n_words};
    memcpy(out->name, s->name, sizeof out->name);
    out->id = (uint32_t)bd_hash64(name, (size_t)n, 0);
    out->id += out->id == 0;
}

bool ps_spec_hidden(const ps_spec *s, ps_hidden kind, ps_spec *out)
{
    if (s->hidden != PS_NOT_HIDDEN || kind == PS_NOT_HIDDEN) {
        return false;
    }
    if (kind == PS_HIDDEN_COUNTS) {
        hidden_spec(s, kind, 4, out);
        return ps_spec_sifts(s) || s->n_evicts > 0;
    }
    if (s->admit->filter_words == 0) {
        return false;
    }
    hidden_spec(s, kind, s->admit->filter_words, out);
    uint64_t steps = s->admit->forget_steps == NULL ? 0 : s->admit->forget_steps(s->admit_param);
    if (steps > 0) {
        out->evicts[0] = (ps_eviction){.rule = &ps_evict_ttl, .param = {(double)steps, 0, 1024}};
        out->n_evicts = 1;
    }
    return true;
}

bool ps_spec_owns(const ps_spec *s, uint32_t table_id, ps_spec *out)
{
    for (int kind = PS_HIDDEN_FILTER; kind < PS_N_HIDDEN; kind++) {
        if (ps_spec_hidden(s, (ps_hidden)kind, out) && out->id == table_id) {
            return true;
        }
    }
    return false;
}
