/* tests/util/tu_etcd.h - one etcd on loopback with a folder of its own, where etcd is installed.
 *
 * Failures end the test. tu_etcd_kill is SIGKILL; a start after it goes on with folder and ports.
 */
#ifndef TU_ETCD_H
#define TU_ETCD_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct tu_etcd {
    char dir[64], client[64], peer[64], url[80]; /* url: etcd://127.0.0.1:port */
    pid_t pid;
} tu_etcd;

bool tu_etcd_installed(void);
void tu_etcd_init(tu_etcd *e); /* folder and ports; starts it */
void tu_etcd_start(tu_etcd *e);
void tu_etcd_kill(tu_etcd *e);
void tu_etcd_deinit(tu_etcd *e); /* kills it, removes the folder */

#endif
