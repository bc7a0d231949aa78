/* cli/cli_host.h - questions to this host.
 *
 * Layer: cli. Threads: one at a time.
 */
#ifndef CLI_HOST_H
#define CLI_HOST_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* GPUs that the driver knows, 0: no driver. */
int cli_host_gpus(void);
/* The own address that packets to `endpoint` ("host:port", "[v6]:port") leave from, as text.
 * BD_E_UNAVAILABLE: the name is not known, or nothing leads there. */
bd_status cli_host_address_to(const char *endpoint, char *out, size_t n_out,
                              bd_err *err) BD_MUST_CHECK;
/* True: `endpoint` is an address of this host. */
bool cli_host_is_own(const char *endpoint);
/* Splits "host:port" and "[v6]:port"; *port is default_port without one. BD_E_USAGE. */
bd_status cli_host_split(const char *endpoint, int default_port, char *host, size_t n_host,
                         int *port, bd_err *err) BD_MUST_CHECK;
/* The program's path: as given with a slash, else from PATH. NULL: there is none. Owned. */
char *cli_host_program(const char *name);

#endif
