/* base/metrics_int.h - the process's own numbers, for the metrics page. Layer: base, private to
 * metrics*.c. */
#ifndef BD_METRICS_INT_H
#define BD_METRICS_INT_H

typedef struct bd_process_values {
    double cpu_s, start_s; /* used; since 1970 */
    double resident_bytes, virtual_bytes;
    double open_fds, max_fds, threads;
} bd_process_values;

/* Numbers that the system does not tell are 0. */
void bd_process_read(bd_process_values *out);

#endif
