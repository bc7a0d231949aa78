/* Reductions and scaling of vectors on the device; references: num_reduce_ref and num_scale, whose
 * expressions (base/num/reduce_int.h, dtype_int.h) are used here too. */
extern "C" {
#include "base/num/reduce_cuda.h"
#include "base/num/reduce_int.h"
}
#include "base/num/launch_cuda_int.h"

/* ---- elements: what is stored, and the types in which sums and comparisons are taken ---- */

template <typename T, typename Uns> struct plain {
    typedef T raw;
    typedef Uns sum; /* unsigned for integers: they wrap */
    typedef T cmp;
    static __device__ T up(T v)
    {
        return v;
    }
    template <typename W> static __device__ T down(W v)
    {
        return (T)v;
    }
};

struct f16 {
    typedef uint16_t raw;
    typedef float sum;
    typedef float cmp;
    static __device__ float up(uint16_t v)
    {
        return num_f16_widen(v);
    }
    static __device__ uint16_t down(float v)
    {
        return num_f16_narrow(v);
    }
};

struct bf16 {
    typedef uint16_t raw;
    typedef float sum;
    typedef float cmp;
    static __device__ float up(uint16_t v)
    {
        return num_bf16_widen(v);
    }
    static __device__ uint16_t down(float v)
    {
        return num_bf16_narrow(v);
    }
};

/* ---- reductions ---- */

template <typename E, int OP>
static __global__ void reduce_kernel(typename E::raw *acc, const typename E::raw *x, size_t n)
{
    for (size_t i = NUM_CUDA_FIRST; i < n; i += NUM_CUDA_STRIDE) {
        if constexpr (OP == NUM_MIN || OP == NUM_MAX) {
            typename E::cmp a = E::up(acc[i]), b = E::up(x[i]);
            acc[i] = E::down(OP == NUM_MIN ? NUM_OP_MIN(a, b) : NUM_OP_MAX(a, b));
        } else {
            typename E::sum a = (typename E::sum)E::up(acc[i]), b = (typename E::sum)E::up(x[i]);
            if constexpr (OP == NUM_SUM) {
                acc[i] = E::down(NUM_OP_SUM(a, b));
            } else if constexpr (OP == NUM_PROD) {
                acc[i] = E::down(NUM_OP_PROD(a, b));
            } else if constexpr (OP == NUM_BAND) {
                acc[i] = E::down(NUM_OP_BAND(a, b));
            } else {
                acc[i] = E::down(NUM_OP_BOR(a, b));
            }
        }
    }
}

typedef struct job {
    void *acc;
    const void *x;
    size_t n;
    cudaStream_t stream;
} job;

template <typename E, int OP> static void launch(const job *j)
{
    reduce_kernel<E, OP><<<num_cuda_grid(j->n), NUM_CUDA_BLOCK, 0, j->stream>>>(
        (typename E::raw *)j->acc, (const typename E::raw *)j->x, j->n);
}

/* False: not an operation of these elements. */
template <typename E> static bool reduce_any(const job *j, int op)
{
    switch (op) {
    case NUM_SUM:
    case NUM_AVG: /* the caller divides */
        launch<E, NUM_SUM>(j);
        return true;
    case NUM_MIN:
        launch<E, NUM_MIN>(j);
        return true;
    case NUM_MAX:
        launch<E, NUM_MAX>(j);
        return true;
    case NUM_PROD:
        launch<E, NUM_PROD>(j);
        return true;
    default:
        return false;
    }
}

template <typename E> static bool reduce_int(const job *j, int op)
{
    if (op == NUM_BAND) {
        launch<E, NUM_BAND>(j);
        return true;
    }
    if (op == NUM_BOR) {
        launch<E, NUM_BOR>(j);
        return true;
    }
    return reduce_any<E>(j, op);
}

static bool reduce_dtype(const job *j, int dtype, int op)
{
    switch (dtype) {
    case NUM_F32:
        return reduce_any<plain<float, float>>(j, op);
    case NUM_F16:
        return reduce_any<f16>(j, op);
    case NUM_BF16:
        return reduce_any<bf16>(j, op);
    case NUM_F64:
        return reduce_any<plain<double, double>>(j, op);
    case NUM_I32:
        return reduce_int<plain<int32_t, uint32_t>>(j, op);
    case NUM_I64:
        return reduce_int<plain<int64_t, uint64_t>>(j, op);
    case NUM_U8:
        return reduce_int<plain<uint8_t, uint8_t>>(j, op);
    default:
        return reduce_int<plain<int8_t, uint8_t>>(j, op);
    }
}

extern "C" bd_status num_reduce_cuda(void *acc, const void *x, size_t n_elems, num_dtype dtype,
                                     num_reduce_op op, cudaStream_t stream, bd_err *err)
{
    const job j = {acc, x, n_elems, stream};
    bool is_float = dtype == NUM_F32 || dtype == NUM_F16 || dtype == NUM_BF16 || dtype == NUM_F64;
    if ((int)dtype < 1 || (int)dtype >= NUM_N_DTYPES || (int)op < 1 || (int)op >= NUM_N_OPS) {
        return bd_err_set(err, BD_E_INVALID, "reduce on the device: dtype %d, op %d", (int)dtype,
                          (int)op);
    }
    if (is_float && (op == NUM_BAND || op == NUM_BOR)) {
        return bd_err_set(err, BD_E_UNSUPPORTED, "reduce on the device: %s of floats",
                          op == NUM_BAND ? "band" : "bor");
    }
    if (n_elems == 0) {
        return BD_OK;
    }
    (void)reduce_dtype(&j, (int)dtype, (int)op); /* both are checked */
    return num_cuda_launched("reduce", err);
}

/* ---- scaling ---- */

/* As clamp_i64 in reduce.c: truncated into [lo, hi], NaN gives 0. */
static __device__ int64_t clamped(double v, int64_t lo, int64_t hi, double hi_excl)
{
    if (v != v) {
        return 0;
    }
    if (v >= hi_excl) {
        return hi;
    }
    return v <= (double)lo ? lo : (int64_t)v;
}

template <typename E> static __global__ void scale_half(uint16_t *b, size_t n, float factor)
{
    for (size_t i = NUM_CUDA_FIRST; i < n; i += NUM_CUDA_STRIDE) {
        b[i] = E::down(E::up(b[i]) * factor);
    }
}

template <typename T> static __global__ void scale_real(T *b, size_t n, double factor)
{
    for (size_t i = NUM_CUDA_FIRST; i < n; i += NUM_CUDA_STRIDE) {
        b[i] = (T)((double)b[i] * factor);
    }
}

template <typename T>
static __global__ void scale_int(T *b, size_t n, double factor, int64_t lo, int64_t hi,
                                 double hi_excl)
{
    for (size_t i = NUM_CUDA_FIRST; i < n; i += NUM_CUDA_STRIDE) {
        b[i] = (T)clamped((double)b[i] * factor, lo, hi, hi_excl);
    }
}

extern "C" bd_status num_scale_cuda(void *buf, size_t n_elems, num_dtype dtype, double factor,
                                    cudaStream_t stream, bd_err *err)
{
    const unsigned block = NUM_CUDA_BLOCK;
    if ((int)dtype < 1 || (int)dtype >= NUM_N_DTYPES) {
        return bd_err_set(err, BD_E_INVALID, "scale on the device: dtype %d", (int)dtype);
    }
    if (n_elems == 0) {
        return BD_OK;
    }
    unsigned grid = num_cuda_grid(n_elems);
    switch (dtype) {
    case NUM_F32:
        scale_real<<<grid, block, 0, stream>>>((float *)buf, n_elems, factor);
        break;
    case NUM_F64:
        scale_real<<<grid, block, 0, stream>>>((double *)buf, n_elems, factor);
        break;
    case NUM_F16:
        scale_half<f16><<<grid, block, 0, stream>>>((uint16_t *)buf, n_elems, (float)factor);
        break;
    case NUM_BF16:
        scale_half<bf16><<<grid, block, 0, stream>>>((uint16_t *)buf, n_elems, (float)factor);
        break;
    case NUM_I32:
        scale_int<<<grid, block, 0, stream>>>((int32_t *)buf, n_elems, factor, INT32_MIN, INT32_MAX,
                                              0x1p31);
        break;
    case NUM_I64:
        scale_int<<<grid, block, 0, stream>>>((int64_t *)buf, n_elems, factor, INT64_MIN, INT64_MAX,
                                              0x1p63);
        break;
    case NUM_U8:
        scale_int<<<grid, block, 0, stream>>>((uint8_t *)buf, n_elems, factor, 0, UINT8_MAX, 256.0);
        break;
    case NUM_I8:
        scale_int<<<grid, block, 0, stream>>>((int8_t *)buf, n_elems, factor, INT8_MIN, INT8_MAX,
                                              128.0);
        break;
    }
    return num_cuda_launched("scale", err);
}
