/* tests/util/tu_mem.h - live memory blocks of a process whose other threads are still tidying up.
 */
#ifndef TU_MEM_H
#define TU_MEM_H

/* Live blocks once the answers of earlier calls have been put away on the env's threads: the number
 * has to stay the same for 20 looks a millisecond apart (2000 looks at most). */
long tu_settled_blocks(void);

#endif
