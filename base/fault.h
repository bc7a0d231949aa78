/* base/fault.h - faults as an ordinary test parameter.
 *
 * Layer:   base.
 * Threads: settings are process-wide atomics; set them before the threads under test start.
 * Cost:    one relaxed load per question while nothing is armed.
 *
 * Allocation faults: bd_fault_fail_alloc(n) makes the n-th allocation from now fail (0 = the next
 * one), once; -1 disarms.
 *
 * Named points: code asks `bd_fault_hit("ps.journal.append")` at a place where the outside world
 * could fail; a test or the environment arms it. BRAID_FAULTS="name=kind[:nth][,name=...]" is read
 * at the first question. Kinds: `fail` (the caller returns its error), `kill` (SIGKILL to the own
 * process: what a power button does), `hold` (the thread stays there until everything is disarmed:
 * a test does meanwhile what must not matter). nth: which hit fires, counted from 0 (default 0); it
 * fires once. `share` fails again and again: nth is the share of hits in thousandths, drawn by a hash of
 * the hit's number.
 */
#ifndef BD_FAULT_H
#define BD_FAULT_H

#include <stdbool.h>

void bd_fault_fail_alloc(long nth);
bool bd_fault_alloc_fails(void);

/* Arms `name` to fire at hit number nth (from now); kind "fail", "kill", "hold" or "share". Returns
 * false for an unknown kind or when the table (32 points) is full. */
bool bd_fault_arm(const char *name, const char *kind, long nth);
/* Also lets go of the threads that are held. */
void bd_fault_disarm_all(void);
/* Waits until a thread is held at the point, which is armed as `hold`. */
void bd_fault_await_hold(const char *name);
/* True when the armed point fires as `fail`. */
bool bd_fault_hit(const char *name);

#endif
