#include "worker/wk_dense_optim.h"

#include "base/mem.h"
#include "base/num/vec.h"
#include "base/rand.h"

#include <math.h>
#include <string.h>

static const char magic[8] = {'B', 'D', 'D', 'E', 'N', 'S', 'E', '1'};

typedef struct dense_slot {
    const wk_model_param *param; /* borrowed */
    float *state;                /* in o->states */
    size_t n_state;              /* 0 for a buffer */
} dense_slot;

struct wk_dense_optim {
    const num_optim *opt;
    float hyper[NUM_OPTIM_MAX_HYPER]; /* [0] learning rate, [1] l2: set per step and parameter */
    float l2, weight_decay;           /* of parameters that decay */
    size_t decay_at; /* place of weight_decay in hyper[], NUM_OPTIM_MAX_HYPER: none */
    double clip_norm;
    dense_slot *slots; /* owned */
    size_t n_slots;
    float *states;  /* owned: all state vectors */
    float *scratch; /* owned: a scaled gradient of the largest parameter */
};

enum { HYPER_LR, HYPER_L2 };

static bd_status check_config(const wk_dense_optim_config *cfg, const num_optim **opt, float *hyper,
                              bd_err *err)
{
    *opt = num_optim_find(cfg->optimizer);
    if (*opt == NULL) {
        return bd_err_set(err, BD_E_INVALID, "unknown optimiser %s", cfg->optimizer);
    }
    if (!(cfg->l2 >= 0) || !(cfg->clip_norm >= 0)) {
        return bd_err_set(err, BD_E_INVALID, "l2 %g and clip_norm %g must not be negative", cfg->l2,
                          cfg->clip_norm);
    }
    return num_optim_hyper(*opt, cfg->hyper_names, cfg->hyper_values, cfg->n_hypers, hyper, err);
}

/* Sizes of all states and of the largest gradient. */
static bool sum_sizes(const wk_dense_optim *o, size_t *n_states, size_t *n_largest)
{
    *n_states = 0;
    *n_largest = 0;
    for (size_t i = 0; i < o->n_slots; i++) {
        size_t n = o->slots[i].param->value->n_elems;
        *n_largest = n > *n_largest ? n : *n_largest;
        if (!bd_add_size(*n_states, o->slots[i].n_state, n_states)) {
            return false;
        }
    }
    return true;
}

static bd_status make_slots(wk_dense_optim *o, const wk_model_param *params, bd_err *err)
{
    size_t n_states, n_largest;
    o->slots = bd_calloc(o->n_slots, sizeof(*o->slots));
    if (o->slots == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "dense optimiser: out of memory");
    }
    for (size_t i = 0; i < o->n_slots; i++) {
        o->slots[i].param = &params[i];
        o->slots[i].n_state =
            params[i].grad == NULL ? 0 : o->opt->state_elems(params[i].value->n_elems);
    }
    if (!sum_sizes(o, &n_states, &n_largest)) {
        return bd_err_set(err, BD_E_INVALID, "dense optimiser: too many elements");
    }
    o->states = bd_calloc(n_states, sizeof(float));
    o->scratch = bd_calloc(n_largest, sizeof(float));
    if (o->states == NULL || o->scratch == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "dense optimiser: out of memory for %zu state elements",
                          n_states);
    }
    float *next = o->states;
    for (size_t i = 0; i < o->n_slots; i++) {
        o->slots[i].state = next;
        next += o->slots[i].n_state;
        if (o->slots[i].param->grad != NULL) {
            o->opt->init(o->hyper, o->slots[i].state, params[i].value->n_elems);
        }
    }
    return BD_OK;
}

bd_status wk_dense_optim_new(const wk_model_param *params, size_t n_params,
                             const wk_dense_optim_config *cfg, wk_dense_optim **out, bd_err *err)
{
    wk_dense_optim *o = bd_calloc(1, sizeof(*o));
    if (o == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "dense optimiser: out of memory");
    }
    o->n_slots = n_params;
    bd_status rc = check_config(cfg, &o->opt, o->hyper, err);
    if (rc != BD_OK) {
        goto out;
    }
    o->l2 = (float)cfg->l2;
    o->decay_at = num_optim_place(o->opt, "weight_decay");
    o->weight_decay = o->decay_at < NUM_OPTIM_MAX_HYPER ? o->hyper[o->decay_at] : 0;
    o->clip_norm = cfg->clip_norm;
    rc = make_slots(o, params, err);
    if (rc != BD_OK) {
        goto out;
    }
    *out = o;
    o = NULL;
out:
    wk_dense_optim_free(o);
    return rc;
}

void wk_dense_optim_free(wk_dense_optim *o)
{
    if (o == NULL) {
        return;
    }
    bd_free(o->slots);
    bd_free(o->states);
    bd_free(o->scratch);
    bd_free(o);
}

void wk_dense_optim_zero_grad(wk_dense_optim *o)
{
    for (size_t i = 0; i < o->n_slots; i++) {
        tp_tensor_zero_grad(o->slots[i].param->value);
    }
}

/* The host's view of a tensor; the wait is in tp_read. */
static bd_status host_f32(const tp_tensor *t, const float **host, bd_err *err)
{
    const void *p = NULL;
    bd_status rc = tp_read(t, &p, err);
    *host = p;
    return rc;
}

bd_status wk_dense_optim_grad_sumsq(const wk_dense_optim *o, double *sumsq, bd_err *err)
{
    double total = 0;
    for (size_t i = 0; i < o->n_slots; i++) {
        const wk_model_param *p = o->slots[i].param;
        const float *g = NULL;
        if (p->grad == NULL) {
            continue;
        }
        bd_status rc = host_f32(p->grad, &g, err);
        if (rc != BD_OK) {
            return rc;
        }
        total += num_sumsq(g, p->grad->n_elems);
    }
    *sumsq = total;
    return BD_OK;
}

float wk_dense_optim_clip_factor(const wk_dense_optim *o, double global_sumsq)
{
    double norm = sqrt(global_sumsq);
    if (o->clip_norm == 0 || !isfinite(norm) || norm <= o->clip_norm) {
        return 1.0f;
    }
    return (float)(o->clip_norm / norm);
}

bd_status wk_dense_optim_check_finite(const wk_dense_optim *o, bd_err *err)
{
    for (size_t i = 0; i < o->n_slots; i++) {
        const wk_model_param *p = o->slots[i].param;
        const float *g = NULL;
        if (p->grad == NULL) {
            continue;
        }
        bd_status rc = host_f32(p->grad, &g, err);
        if (rc != BD_OK) {
            return rc;
        }
        size_t bad = num_first_not_finite(g, p->grad->n_elems);
        if (bad < p->grad->n_elems) {
            return bd_err_set(err, BD_E_NUMERIC, "gradient of %s is %g at element %zu", p->name,
                              (double)g[bad], bad);
        }
    }
    return BD_OK;
}

/* CPU device: parameters are stepped where they lie. */
bd_status wk_dense_optim_step(wk_dense_optim *o, float learning_rate, float factor,
                              const bool *used, bd_err *err)
{
    for (size_t i = 0; i < o->n_slots; i++) {
        const wk_model_param *p = o->slots[i].param;
        const float *g = NULL;
        if (p->grad == NULL || (used != NULL && !used[i])) {
            continue;
        }
        bd_status rc = host_f32(p->grad, &g, err);
        if (rc != BD_OK) {
            return rc;
        }
        if (factor != 1.0f) {
            for (size_t k = 0; k < p->grad->n_elems; k++) {
                o->scratch[k] = factor * g[k];
            }
            g = o->scratch;
        }
        o->hyper[HYPER_LR] = learning_rate;
        o->hyper[HYPER_L2] = p->decay ? o->l2 : 0;
        if (o->decay_at < NUM_OPTIM_MAX_HYPER) {
            o->hyper[o->decay_at] = p->decay ? o->weight_decay : 0;
        }
        num_optim_apply(o->opt, o->hyper, tp_f32(p->value), o->slots[i].state, g, p->value->n_elems,
                        o->scratch);
    }
    return BD_OK;
}

/* ---- saved form ---- */

static uint8_t *put(uint8_t *at, const void *bytes, size_t n_bytes)
{
    if (n_bytes > 0) {
        memcpy(at, bytes, n_bytes);
    }
    return at + n_bytes;
}

static uint8_t *put_uint(uint8_t *at, uint64_t v, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        at[i] = (uint8_t)(v >> (8 * i));
    }
    return at + n_bytes;
}

static size_t saved_bytes(const wk_dense_optim *o)
{
    size_t n = sizeof(magic) + 4 + 4 + strlen(o->opt->name) + 8;
    for (size_t i = 0; i < o->n_slots; i++) {
        const dense_slot *s = &o->slots[i];
        n += 4 + strlen(s->param->name) + 8 + 8;
        n += (s->param->value->n_elems + s->n_state) * sizeof(float);
    }
    return n;
}

bd_status wk_dense_optim_save(const wk_dense_optim *o, bd_buf **out, bd_err *err)
{
    bd_status rc = BD_OK;
    size_t n_bytes = saved_bytes(o);
    bd_buf *b = bd_buf_new(n_bytes);
    if (b == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "save dense parameters: out of memory");
    }
    uint8_t *at = put(b->bytes, magic, sizeof(magic));
    at = put_uint(at, o->n_slots, 4);
    at = put_uint(at, strlen(o->opt->name), 4);
    at = put(at, o->opt->name, strlen(o->opt->name));
    for (size_t i = 0; i < o->n_slots; i++) {
        const dense_slot *s = &o->slots[i];
        const float *value = NULL;
        rc = host_f32(s->param->value, &value, err);
        if (rc != BD_OK) {
            goto out;
        }
        at = put_uint(at, strlen(s->param->name), 4);
        at = put(at, s->param->name, strlen(s->param->name));
        at = put_uint(at, s->param->value->n_elems, 8);
        at = put_uint(at, s->n_state, 8);
        at = put(at, value, s->param->value->n_elems * sizeof(float));
        at = put(at, s->state, s->n_state * sizeof(float));
    }
    (void)put_uint(at, bd_hash64(b->bytes, n_bytes - 8, 0), 8);
    *out = b;
    b = NULL;
out:
    bd_buf_unref(b);
    return rc;
}

/* A cursor over bytes from a file: never reads past the end. */
typedef struct cursor {
    const uint8_t *at;
    size_t left;
} cursor;

static bool take(cursor *c, size_t n_bytes, const uint8_t **bytes)
{
    if (n_bytes > c->left) {
        return false;
    }
    *bytes = c->at;
    c->at += n_bytes;
    c->left -= n_bytes;
    return true;
}

static bool take_uint(cursor *c, size_t n_bytes, uint64_t *v)
{
    const uint8_t *p = NULL;
    if (!take(c, n_bytes, &p)) {
        return false;
    }
    *v = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        *v |= (uint64_t)p[i] << (8 * i);
    }
    return true;
}

static bd_status cut_short(bd_err *err)
{
    return bd_err_set(err, BD_E_CORRUPT, "dense parameters: the bytes end too early");
}

static bool same_text(const uint8_t *bytes, uint64_t n_bytes, const char *text)
{
    return n_bytes == strlen(text) && memcmp(bytes, text, (size_t)n_bytes) == 0;
}

/* One parameter's record: compared with slot s; its values are copied when `apply`. */
static bd_status read_param(cursor *c, const dense_slot *s, bool apply, bd_err *err)
{
    uint64_t n_name, n_elems, n_state;
    const uint8_t *name = NULL, *value = NULL, *state = NULL;
    tp_tensor *t = s->param->value;
    if (!take_uint(c, 4, &n_name) || !take(c, (size_t)n_name, &name) ||
        !take_uint(c, 8, &n_elems) || !take_uint(c, 8, &n_state)) {
        return cut_short(err);
    }
    if (!same_text(name, n_name, s->param->name)) {
        return bd_err_set(err, BD_E_MISMATCH, "dense parameter %s: saved is %.*s", s->param->name,
                          (int)(n_name < 128 ? n_name : 128), (const char *)name);
    }
    if (n_elems != t->n_elems || n_state != s->n_state) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "dense parameter %s: %zu elements and %zu of state, saved are %llu and "
                          "%llu",
                          s->param->name, t->n_elems, s->n_state, (unsigned long long)n_elems,
                          (unsigned long long)n_state);
    }
    if (!take(c, t->n_elems * sizeof(float), &value) ||
        !take(c, s->n_state * sizeof(float), &state)) {
        return cut_short(err);
    }
    if (!apply) {
        return BD_OK;
    }
    if (s->n_state > 0) {
        memcpy(s->state, state, s->n_state * sizeof(float));
    }
    return tp_write(t, value, err);
}

static bd_status read_header(cursor *c, const wk_dense_optim *o, bd_err *err)
{
    uint64_t n_params, n_name;
    const uint8_t *head = NULL, *name = NULL;
    if (!take(c, sizeof(magic), &head) || memcmp(head, magic, sizeof(magic)) != 0) {
        return bd_err_set(err, BD_E_CORRUPT, "dense parameters: not a BDDENSE1 block");
    }
    if (!take_uint(c, 4, &n_params) || !take_uint(c, 4, &n_name) ||
        !take(c, (size_t)n_name, &name)) {
        return cut_short(err);
    }
    if (!same_text(name, n_name, o->opt->name)) {
        return bd_err_set(err, BD_E_MISMATCH, "dense optimiser is %s, saved is %.*s", o->opt->name,
                          (int)(n_name < 64 ? n_name : 64), (const char *)name);
    }
    if (n_params != o->n_slots) {
        return bd_err_set(err, BD_E_MISMATCH, "%zu dense parameters, saved are %llu", o->n_slots,
                          (unsigned long long)n_params);
    }
    return BD_OK;
}

static bd_status read_all(wk_dense_optim *o, const void *bytes, size_t n_bytes, bool apply,
                          bd_err *err)
{
    cursor c = {.at = bytes, .left = n_bytes};
    bd_status rc = read_header(&c, o, err);
    for (size_t i = 0; rc == BD_OK && i < o->n_slots; i++) {
        rc = read_param(&c, &o->slots[i], apply, err);
    }
    if (rc == BD_OK && c.left != 0) {
        rc = bd_err_set(err, BD_E_CORRUPT, "dense parameters: %zu bytes too many", c.left);
    }
    return rc;
}

bd_status wk_dense_optim_restore(wk_dense_optim *o, const void *bytes, size_t n_bytes, bd_err *err)
{
    const uint8_t *all = bytes;
    uint64_t want;
    if (n_bytes < sizeof(magic) + 8) {
        return cut_short(err);
    }
    cursor tail = {.at = all + n_bytes - 8, .left = 8};
    (void)take_uint(&tail, 8, &want);
    if (want != bd_hash64(all, n_bytes - 8, 0)) {
        return bd_err_set(err, BD_E_CORRUPT, "dense parameters: checksum does not match");
    }
    bd_status rc = read_all(o, all, n_bytes - 8, false, err);
    return rc == BD_OK ? read_all(o, all, n_bytes - 8, true, err) : rc;
}

bd_status wk_dense_optim_hash(const wk_dense_optim *o, uint64_t *hash, bd_err *err)
{
    uint64_t h = 0;
    for (size_t i = 0; i < o->n_slots; i++) {
        const dense_slot *s = &o->slots[i];
        const float *value = NULL;
        bd_status rc = host_f32(s->param->value, &value, err);
        if (rc != BD_OK) {
            return rc;
        }
        h = bd_hash64(s->param->name, strlen(s->param->name), h);
        h = num_hash(value, s->param->value->n_elems, h);
        h = num_hash(s->state, s->n_state, h);
    }
    *hash = h;
    return BD_OK;
}
