/* tests/util/tu_host.h - an address of the loopback that is this process's alone.
 *
 * A server that comes back on its port must find it free. On 127.0.0.1 any connection of any
 * process may have taken it meanwhile for its own end, and a client that tries the port again may
 * even meet itself; on this address nobody else listens, and connections start from 127.0.0.1.
 */
#ifndef TU_HOST_H
#define TU_HOST_H

/* "127.64.3.7", the same after a fork. */
const char *tu_host(void);
/* That with port 0: what a server that may come back listens on first. */
const char *tu_host_any_port(void);

#endif
