/* base/status.h - the one list of result codes of Braid.
 *
 * Layer:   base (ground floor, includes nothing of Braid).
 * Numbers: wire-stable and never reused: they travel in the `braid-status` trailer of every RPC and
 *          in journal records, so a new code gets a new number at the end.
 * Reading: 0 done, negative failed, positive not yet.
 */
#ifndef BD_STATUS_H
#define BD_STATUS_H

/* name, number, text */
#define BD_STATUS_MAP(X)                                                   \
    X(OK, 0, "ok")                                                         \
    X(AGAIN, 1, "not finished, poll again")                                \
    X(E_INVALID, -1, "invalid argument")                                   \
    X(E_NOMEM, -2, "out of memory")                                        \
    X(E_IO, -3, "storage or network failure")                              \
    X(E_TIMEOUT, -4, "deadline exceeded")                                  \
    X(E_CANCELLED, -5, "cancelled")                                        \
    X(E_UNAVAILABLE, -6, "peer cannot be reached now")                     \
    X(E_PEER_LOST, -7, "peer lost")                                        \
    X(E_NOT_FOUND, -8, "not found")                                        \
    X(E_EXISTS, -9, "exists already")                                      \
    X(E_STATE, -10, "not allowed in this state")                           \
    X(E_MISMATCH, -11, "ranks or peers disagree")                          \
    X(E_EXHAUSTED, -12, "resource exhausted, slow down")                   \
    X(E_DATA, -13, "bad input data")                                       \
    X(E_CORRUPT, -14, "corrupt bytes")                                     \
    X(E_NUMERIC, -15, "not a finite number")                               \
    X(E_MOVED, -16, "slot moved, refresh the shard map")                   \
    X(E_NEED_PARTS, -17, "parts of the step are missing, send them again") \
    X(E_FENCED, -18, "request of an older job epoch")                      \
    X(E_CLIENT_EXPIRED, -19, "client lease expired")                       \
    X(E_DENIED, -20, "permission denied")                                  \
    X(E_UNSUPPORTED, -21, "not supported")                                 \
    X(E_USAGE, -22, "wrong usage")                                         \
    X(E_ABORTED, -23, "aborted by a peer")                                 \
    X(E_INTERNAL, -24, "internal error")                                   \
    X(E_LOST, -25, "rows were lost, resume from a checkpoint")             \
    X(E_UNAUTHENTICATED, -26, "no valid credentials")

typedef enum bd_status {
#define BD_X(name, num, text) BD_##name = (num),
    BD_STATUS_MAP(BD_X)
#undef BD_X
} bd_status;

#define BD_MUST_CHECK __attribute__((warn_unused_result))

/* bd_status_name - "E_IO" for BD_E_IO; "E_UNKNOWN" for a number that is not in the list. */
const char *bd_status_name(int code);
/* bd_status_text - the text beside the code; "unknown status" for a number not in the list. */
const char *bd_status_text(int code);
/* bd_status_known - code if it is in the list, else BD_E_INTERNAL: for numbers from the wire. */
bd_status bd_status_known(int code);

#endif
