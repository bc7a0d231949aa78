/* The peer of `braid bench allreduce`: MPI_Allreduce of f32 sums, same sizes, repetitions, calls
 * and ways. Built by bench/allreduce_vs_peers.sh with mpicc; not part of Braid.
 *
 *   mpirun -n N ompi_allreduce MIN_BYTES MAX_BYTES REPS [again|rewrite] [apart|inplace]
 *
 * again: calls one after the other, rank 0's time; rewrite: the input is written anew before each
 * call, outside the timed part, and the slowest rank counts. apart: input and output are two
 * vectors; inplace: one, as Braid's are. Prints "BYTES MEDIAN_US" a line. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

static double time_calls(const void *in, float *out, size_t n, size_t calls)
{
    (void)MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (size_t k = 0; k < calls; k++) {
        (void)MPI_Allreduce(in, out, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    return MPI_Wtime() - start;
}

static double time_rewritten(const void *in, float *out, float *written, size_t n, size_t calls)
{
    double sum = 0;
    for (size_t k = 0; k < calls; k++) {
        for (size_t i = 0; i < n; i++) {
            written[i] = 1.0f;
        }
        (void)MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        (void)MPI_Allreduce(in, out, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        sum += MPI_Wtime() - start;
    }
    (void)MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return sum;
}

int main(int argc, char **argv)
{
    double us[101];
    int rank = 0;
    (void)MPI_Init(&argc, &argv);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size_t min = argc > 3 ? strtoull(argv[1], NULL, 10) : 4096;
    size_t max = argc > 3 ? strtoull(argv[2], NULL, 10) : 67108864;
    int reps = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 7;
    int rewrite = argc > 4 && strcmp(argv[4], "rewrite") == 0;
    int inplace = argc > 5 && strcmp(argv[5], "inplace") == 0;
    float *out = calloc(max / 4, sizeof *out);
    float *in = inplace ? out : calloc(max / 4, sizeof *in);
    if (in == NULL || out == NULL || reps > 101) {
        return 1;
    }
    const void *source = inplace ? MPI_IN_PLACE : in;
    for (size_t n = min; n <= max; n *= 4) {
        size_t calls = ((size_t)64 << 20) / (n + 16384);
        calls = calls < 1 ? 1 : calls > 2000 ? 2000 : calls;
        for (size_t i = 0; i < n / 4; i++) {
            in[i] = 0; /* no page is the zero page; stays 0: no overflow */
        }
        for (int rep = -1; rep < reps; rep++) {
            double s = rewrite ? time_rewritten(source, out, in, n / 4, calls)
                               : time_calls(source, out, n / 4, calls);
            if (rep >= 0) {
                us[rep] = s * 1e6 / (double)calls;
            }
        }
        qsort(us, (size_t)reps, sizeof us[0], by_value);
        if (rank == 0) {
            (void)printf("%zu %.3f\n", n, us[reps / 2]);
            (void)fflush(stdout);
        }
    }
    if (!inplace) {
        free(in);
    }
    free(out);
    (void)MPI_Finalize();
    return 0;
}
