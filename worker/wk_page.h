/* worker/wk_page.h - a worker's /metrics page.
 *
 * Layer:   worker.
 * Threads: the training thread; the page itself is answered by base/http.h.
 * Values:  each rank tells its own times; loss, samples and steps are the job's, the same on all
 *          ranks.
 */
#ifndef WK_PAGE_H
#define WK_PAGE_H

#include "worker/wk_metrics.h"
#include "worker/wk_trainer.h"

typedef struct wk_page wk_page;

/* listen "": no page, *out NULL, which every function here accepts. BD_E_IO: the port is in use. */
bd_status wk_page_start(const wk_job *job, wk_page **out, bd_err *err) BD_MUST_CHECK;
void wk_page_stop(wk_page *p);
void wk_page_step(wk_page *p, const wk_trainer *t, const wk_step_result *r, double seconds);
void wk_page_eval(wk_page *p, const wk_metrics *m);
void wk_page_checkpoint(wk_page *p);
void wk_page_checkpoint_lost(wk_page *p);

#endif
