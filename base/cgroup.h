/* base/cgroup.h - what this process may use of its host: control groups, version 2 and 1.
 *
 * Layer:   base.
 * Threads: any; files are read at each call, so ask at start.
 * root:    "" outside of tests, else a folder put before every path.
 * The own group and all its ancestors that can be seen count; the tightest limit is the answer.
 */
#ifndef BD_CGROUP_H
#define BD_CGROUP_H

#include <stddef.h>

/* The limit of memory in bytes; 0: none. */
size_t bd_cgroup_memory_bytes(const char *root);
/* The quota of CPU time in whole CPUs, a started one counted; 0: none. */
int bd_cgroup_cpus(const char *root);

/* CPUs that this process may use at once, at least 1: those it may run on, or its quota if that is
 * less. What numbers of threads follow by default. */
int bd_cpus(void);

#endif
