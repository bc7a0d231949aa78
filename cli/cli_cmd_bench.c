/* `braid bench WHAT`: picks the benchmark. */
#include "base/exit_code.h"

#include "cli/cli_bench.h"

#include <string.h>

static const cli_cmd *const all[] = {&cli_bench_allreduce, &cli_bench_ps, NULL};

static bd_status run(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    *exit_code = BD_EXIT_OK;
    if (argc < 2) {
        return bd_err_set(err, BD_E_USAGE, "bench: which one? There are: allreduce, ps");
    }
    for (size_t i = 0; all[i] != NULL; i++) {
        if (strcmp(argv[1], all[i]->name) == 0) {
            argv[1] = argv[0]; /* errors point to `braid help bench` */
            return all[i]->run(argc - 1, argv + 1, io, exit_code, err);
        }
    }
    return bd_err_set(err, BD_E_USAGE, "unknown benchmark \"%.64s\"; there are: allreduce, ps",
                      argv[1]);
}

const cli_cmd cli_cmd_bench = {.name = "bench",
                               .usage = "allreduce|ps [OPTIONS]",
                               .help = "Measures the ring, or parameter servers, on this machine.",
                               .subs = all,
                               .run = run};
