/* tests/util/tu_mem.h - live memory blocks of a process whose other threads are still tidying up.
 */
#ifndef TU_MEM_H
#define TU_MEM_H

#include <stdbool.h>

/* Live blocks once the answers of earlier calls have been put away on the env's threads: the number
 * has to stay the same for 20 looks a millisecond apart (2000 looks at most). */
long tu_settled_blocks(void);

/* Waits (20 s at most) until fewer than `limit` blocks live. What a busy machine does late is no
 * leak: a number that is to come down is waited for, never looked at once. */
bool tu_blocks_come_under(long limit);

#endif
