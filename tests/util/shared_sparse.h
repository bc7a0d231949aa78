/* tests/util/shared_sparse.h - one set of tables for several ranks that are threads of one test.
 *
 * What a server does in sync, without network: parts of all ranks are staged, the first COMMIT sums
 * them in rank order and applies them once. Every rank has its own wk_sparse handle.
 */
#ifndef TESTS_SHARED_SPARSE_H
#define TESTS_SHARED_SPARSE_H

#include "worker/wk_sparse.h"

typedef struct shared_sparse shared_sparse;

/* out[world] gets the handles, freed with wk_sparse_free; the group with shared_sparse_free, last.
 */
shared_sparse *shared_sparse_new(int world, wk_sparse **out);
void shared_sparse_free(shared_sparse *g);

#endif
