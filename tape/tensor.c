#include "tape/tensor.h"

#include "base/assert.h"
#include "base/mem.h"

#include "tape/kernels.h"

#include <string.h>

size_t tp_cols(const tp_tensor *t)
{
    size_t c = 1;
    for (int i = 1; i < t->n_dims; i++) {
        c *= t->dims[i];
    }
    return c;
}

/* Fills shape and size; checks that the bytes fit a size_t. */
static bd_status set_shape(tp_tensor *t, num_dtype dtype, int n_dims, const size_t *dims,
                           size_t *n_bytes, bd_err *err)
{
    if (n_dims < 1 || n_dims > TP_MAX_DIMS || num_dtype_bytes((int)dtype) == 0) {
        return bd_err_set(err, BD_E_INVALID, "tensor: %d dimensions of dtype %d", n_dims,
                          (int)dtype);
    }
    t->dtype = dtype;
    t->n_dims = n_dims;
    t->n_elems = 1;
    for (int i = 0; i < n_dims; i++) {
        t->dims[i] = dims[i];
        if (!bd_mul_size(t->n_elems, dims[i], &t->n_elems)) {
            return bd_err_set(err, BD_E_INVALID, "tensor: too many elements");
        }
    }
    if (!bd_mul_size(t->n_elems, num_dtype_bytes((int)dtype), n_bytes)) {
        return bd_err_set(err, BD_E_INVALID, "tensor: too many bytes");
    }
    return BD_OK;
}

bd_status tp_tensor_new(tp_device *dev, const char *name, num_dtype dtype, int n_dims,
                        const size_t *dims, tp_tensor **out, bd_err *err)
{
    size_t n_bytes = 0;
    tp_tensor *t = bd_calloc(1, sizeof(*t));
    if (t == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "tensor: out of memory");
    }
    t->dev = dev;
    bd_status rc = set_shape(t, dtype, n_dims, dims, &n_bytes, err);
    if (rc != BD_OK) {
        goto out;
    }
    t->own_data = tp_device_alloc(dev, n_bytes);
    t->data = t->own_data;
    t->name = name == NULL ? NULL : bd_strdup(name);
    if (t->data == NULL || (name != NULL && t->name == NULL)) {
        rc = bd_err_set(err, BD_E_NOMEM, "tensor %s: out of memory", name == NULL ? "" : name);
        goto out;
    }
    dev->ops->zero(dev, t->data, n_bytes);
    *out = t;
    t = NULL;
out:
    tp_tensor_free(t);
    return rc;
}

bd_status tp_param_new(tp_device *dev, const char *name, int n_dims, const size_t *dims,
                       tp_tensor **out, bd_err *err)
{
    tp_tensor *t = NULL, *grad = NULL;
    bd_status rc = tp_tensor_new(dev, name, NUM_F32, n_dims, dims, &t, err);
    if (rc == BD_OK) {
        rc = tp_tensor_new(dev, name, NUM_F32, n_dims, dims, &grad, err);
    }
    if (rc != BD_OK || t == NULL) {
        tp_tensor_free(t);
        return rc;
    }
    t->grad = grad;
    t->requires_grad = true;
    t->is_param = true;
    *out = t;
    return BD_OK;
}

void tp_tensor_free(tp_tensor *t)
{
    if (t == NULL) {
        return;
    }
    tp_tensor_free(t->grad);
    tp_device_mem_free(t->dev, t->own_data);
    bd_free(t->name);
    bd_free(t);
}

void tp_param_bind_grad(tp_tensor *param, float *mem)
{
    BD_ASSERT(param->is_param);
    param->grad->data = mem == NULL ? param->grad->own_data : mem;
}

void tp_tensor_zero_grad(tp_tensor *t)
{
    if (t->grad != NULL) {
        t->dev->ops->zero(t->dev, t->grad->data, t->n_elems * sizeof(float));
    }
}

void tp_set_ready_hook(tp_tensor *leaf, tp_ready_fn fn, void *user)
{
    leaf->on_ready = fn;
    leaf->on_ready_user = user;
}

void tp_set_part_hook(tp_tensor *leaf, tp_part_fn fn, void *user, size_t part_elems)
{
    leaf->on_part = fn;
    leaf->on_part_user = user;
    leaf->part_elems = part_elems;
}

bd_status tp_read(const tp_tensor *t, const void **host, bd_err *err)
{
    bd_status rc = tp_device_wait(t->dev, err);
    if (rc != BD_OK) {
        return rc;
    }
    return t->dev->ops->host_view(t->dev, t->data, t->n_elems * num_dtype_bytes((int)t->dtype),
                                  host, err);
}

bd_status tp_write(tp_tensor *t, const void *host, bd_err *err)
{
    t->dev->ops->copy(t->dev, t->data, host, t->n_elems * num_dtype_bytes((int)t->dtype));
    return tp_device_check(t->dev, err);
}
