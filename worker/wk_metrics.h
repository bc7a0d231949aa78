/* worker/wk_metrics.h - how good predictions are: AUC (exact, ties count half), log loss, accuracy,
 * RMSE, normalised entropy, calibration.
 *
 * Layer:   worker. Pure.
 * Numbers: sums run in the order of the arrays, in double: the same on every rank and for any
 *          number of ranks, as the gathered arrays are in the order of the data set.
 */
#ifndef WK_METRICS_H
#define WK_METRICS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wk_metrics {
    uint64_t n, n_positive;
    double auc;          /* NaN when a class is missing, or for mse */
    double logloss;      /* mean; NaN for mse */
    double accuracy;     /* at probability 0.5; NaN for mse */
    double rmse;         /* of the probability, or of the value for mse */
    double norm_entropy; /* logloss over that of the mean label */
    double calibration;  /* mean prediction over mean label */
} wk_metrics;

/* scores[n]: logits (binary) or values; labels[n]. BD_E_NUMERIC names the first score that is not
 * finite; BD_E_NOMEM. */
bd_status wk_metrics_compute(const float *scores, const float *labels, size_t n, bool binary,
                             wk_metrics *out, bd_err *err) BD_MUST_CHECK;
/* Share of (positive, negative) pairs that are in order; a tie is half a pair. NaN without both
 * classes. A label is positive when > 0.5. O(n log n). */
bd_status wk_auc(const float *scores, const float *labels, size_t n, double *auc,
                 bd_err *err) BD_MUST_CHECK;

#endif
