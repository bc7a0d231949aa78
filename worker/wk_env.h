/* worker/wk_env.h - rank, world and coordinator from the variables of other launchers: Kubernetes
 * indexed jobs and JobSets, torchrun, Kubeflow TrainJobs.
 *
 * Layer:   worker (pure part).
 * Threads: pure but for `get`.
 * Order:   a flag and a BRAID_* variable win over all of these; among these the earlier line wins:
 *
 *   value        variables
 *   rank         RANK; PET_NODE_RANK * PET_NPROC_PER_NODE + LOCAL_RANK; JOB_COMPLETION_INDEX
 *   world        WORLD_SIZE; PET_NNODES * PET_NPROC_PER_NODE
 *   coordinator  MASTER_ADDR:MASTER_PORT; PET_MASTER_ADDR:PET_MASTER_PORT (the place where all
 *                meet, which for Braid is server 0)
 *
 * PET_NPROC_PER_NODE counts only with LOCAL_RANK; else a node has one process, whatever it says.
 * RANK and WORLD_SIZE are taken together or not at all, as are an address and its port.
 */
#ifndef WK_ENV_H
#define WK_ENV_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* The value of a variable, NULL: not set; like getenv. */
typedef const char *(*wk_env_get)(void *user, const char *name);

enum { WK_ENV_TEXT_BYTES = 288 };

typedef struct wk_env_value {
    char text[WK_ENV_TEXT_BYTES]; /* "": none of the variables is set */
    const char *from;             /* the variables, for errors; static */
} wk_env_value;

typedef struct wk_env {
    wk_env_value rank, world, coordinator;
} wk_env;

/* BD_E_USAGE names the variable: not a number, a number without its partner, an elastic range
 * of nodes. *out is whole on BD_OK only. */
bd_status wk_env_read(wk_env_get get, void *user, wk_env *out, bd_err *err) BD_MUST_CHECK;

#endif
