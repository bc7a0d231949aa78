#include "tape/cpu_int.h"

#include <cblas.h>
#include <limits.h>
#include <string.h>

static bool fits_blas(size_t v)
{
    return v <= INT_MAX;
}

/* c = beta * c for a product over nothing. */
static void scale_only(const tp_gemm_args *g)
{
    for (size_t i = 0; g->beta == 0 && i < g->m; i++) {
        memset(g->c + i * g->ldc, 0, g->n * sizeof(float));
    }
}

void tp_cpu_gemm(tp_device *dev, const tp_gemm_args *g)
{
    if (g->m == 0 || g->n == 0) {
        return;
    }
    if (g->k == 0) {
        scale_only(g);
        return;
    }
    if (!fits_blas(g->m) || !fits_blas(g->n) || !fits_blas(g->k) || !fits_blas(g->lda) ||
        !fits_blas(g->ldb) || !fits_blas(g->ldc)) {
        tp_device_fail(dev, BD_E_INVALID, "gemm: a dimension exceeds the BLAS integer");
        return;
    }
    cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans,
                g->trans_b ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n, (int)g->k, g->alpha,
                g->a, (int)g->lda, g->b, (int)g->ldb, g->beta, g->c, (int)g->ldc);
}
