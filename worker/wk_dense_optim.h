/* worker/wk_dense_optim.h - the optimiser of a model's dense parameters, and their saved form.
 *
 * Layer:     worker. The steps are those of base/num/optim.h, on each parameter as one flat vector.
 * Threads:   the training thread.
 * Ownership: parameters are borrowed (the model's); state vectors belong to the optimiser.
 * Promise:   a step is a pure function of values, gradients, state and hyperparameters; save and
 *            restore keep every bit.
 *
 * Saved form (little-endian, byte-exact):
 *   "BDDENSE1"                          8 bytes
 *   u32 n_params, u32 n_name_bytes      of the optimiser's name, then the name
 *   per parameter, in the model's order:
 *     u32 n_name_bytes, name, u64 n_elems, u64 n_state_elems (0 for a buffer)
 *     f32 value[n_elems], f32 state[n_state_elems]
 *   u64 XXH3 of everything before it
 */
#ifndef WK_DENSE_OPTIM_H
#define WK_DENSE_OPTIM_H

#include "base/buf.h"
#include "base/num/optim.h"

#include "worker/wk_model.h"

typedef struct wk_dense_optim wk_dense_optim;

typedef struct wk_dense_optim_config {
    const char *optimizer;          /* a name of base/num/optim.h */
    const char *const *hyper_names; /* [n_hypers] others than learning_rate and l2 */
    const double *hyper_values;     /* [n_hypers] */
    size_t n_hypers;
    double l2; /* added to the gradient of parameters with `decay`, not to the others; weight_decay
                * spares the others too */
    double clip_norm; /* largest global norm of the gradient, 0: no limit */
} wk_dense_optim_config;

/* params: the model's, buffers included (they are saved, not stepped); borrowed for its life.
 * BD_E_INVALID names an unknown optimiser or hyperparameter; BD_E_NOMEM. */
bd_status wk_dense_optim_new(const wk_model_param *params, size_t n_params,
                             const wk_dense_optim_config *cfg, wk_dense_optim **out,
                             bd_err *err) BD_MUST_CHECK;
void wk_dense_optim_free(wk_dense_optim *o);

void wk_dense_optim_zero_grad(wk_dense_optim *o);
/* Sum of squares of all dense gradients: this part of the global norm. Waits for the device. */
bd_status wk_dense_optim_grad_sumsq(const wk_dense_optim *o, double *sumsq,
                                    bd_err *err) BD_MUST_CHECK;
/* Factor for all gradients, dense and sparse, so that the norm sqrt(global_sumsq) is at most
 * clip_norm; 1 when it is already. A norm that is not finite gives 1 (the caller decides on it). */
float wk_dense_optim_clip_factor(const wk_dense_optim *o, double global_sumsq);
/* BD_E_NUMERIC naming the first parameter whose gradient holds a NaN or an infinity. */
bd_status wk_dense_optim_check_finite(const wk_dense_optim *o, bd_err *err) BD_MUST_CHECK;
/* One step with this learning rate (already scheduled) on grad * factor. used (n_params, or NULL:
 * all): a parameter with used[i] false is left as it is. */
bd_status wk_dense_optim_step(wk_dense_optim *o, float learning_rate, float factor,
                              const bool *used, bd_err *err) BD_MUST_CHECK;

/* Values, buffers and state in the saved form; *out has one reference. */
bd_status wk_dense_optim_save(const wk_dense_optim *o, bd_buf **out, bd_err *err) BD_MUST_CHECK;
/* Back into parameters and state. BD_E_CORRUPT for broken bytes, BD_E_MISMATCH naming what differs
 * (optimiser, parameter, size); nothing is changed then. */
bd_status wk_dense_optim_restore(wk_dense_optim *o, const void *bytes, size_t n_bytes,
                                 bd_err *err) BD_MUST_CHECK;
/* Hash over names, values, buffers and state: the dense part of param_hash. */
bd_status wk_dense_optim_hash(const wk_dense_optim *o, uint64_t *hash, bd_err *err) BD_MUST_CHECK;

#endif
