/* cli/cli_torch.h - torchrun's command line and variables, as `braid launch` takes them.
 *
 * Layer:     cli (no process, no socket).
 * Threads:   one, before any other.
 * Ownership: values are copied into the options.
 *
 * Option names taken over from torchrun take its forms of values: a time without a unit is in
 * seconds; rdzv_conf is KEY=VALUE,...; -m and --module may be a flag. torchrun's options without a
 * meaning here are taken where they ask for nothing else than what is so anyway, else refused with
 * the reason. The table of o has torchrun's keys with underscores.
 */
#ifndef CLI_TORCH_H
#define CLI_TORCH_H

#include "base/option.h"

/* How many of argv (from 1) are options: the first word that is none is the program. */
int cli_torch_count_own(const bd_options *o, int argc, char **argv);
/* Sets options from PET_<KEY> (certificates and tokens also from BRAID_<KEY>), from the n_own words
 * and from rdzv_conf; flags win, then variables of their own name. *module_next: -m was a flag, the
 * program's word is the module. BD_E_USAGE. */
bd_status cli_torch_load(bd_options *o, int n_own, char **argv, bool *module_next,
                         bd_err *err) BD_MUST_CHECK;

#endif
