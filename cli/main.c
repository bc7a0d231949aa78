/* braid - the launcher and its helpers; everything is in cli_cmd.c. */
#include "cli/cli_cmd.h"

#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    /* A closed terminal or pipe is an error of a write, not a death that leaves processes behind.
     */
    (void)signal(SIGPIPE, SIG_IGN);
    cli_io io = {.out = stdout, .err = stderr, .colour = isatty(STDERR_FILENO) == 1};
    return cli_main(argc, argv, &io);
}
