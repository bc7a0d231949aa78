/* Linked into a test of ring_everywhere, it makes it one of NCCL, on the fakes. */
#include "ring/ring_nccl.h"

#include "tests/fakes/fake_gpu.h"
#include "tests/util/ring_ranks.h"

static void choose_nccl(void) __attribute__((constructor));

static void choose_nccl(void)
{
    ring_ranks_set_other("nccl", ring_nccl_comm_new, fake_gpu_live);
}
