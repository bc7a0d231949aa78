/* base/exit_code.h - what a program's exit status means, for scripts and the launcher.
 *
 * 0 done; 2 wrong usage (flags, job file); 3 bad input data; 4 a peer (or its rows) was lost or
 * never came; 5 not a finite number; 1 anything else; 128+n ended by signal n.
 */
#ifndef BD_EXIT_CODE_H
#define BD_EXIT_CODE_H

#include "base/status.h"

/* name, number, text */
#define BD_EXIT_MAP(X)                              \
    X(OK, 0, "done")                                \
    X(FAILURE, 1, "another failure")                \
    X(USAGE, 2, "wrong usage, or a wrong job file") \
    X(DATA, 3, "bad input data")                    \
    X(PEER, 4, "a peer was lost or never came")     \
    X(NUMERIC, 5, "not a finite number")

enum {
#define BD_X(name, code, text) BD_EXIT_##name = (code),
    BD_EXIT_MAP(BD_X)
#undef BD_X
};

static inline int bd_exit_code(bd_status rc)
{
    switch (rc) {
    case BD_OK:
        return BD_EXIT_OK;
    case BD_E_USAGE:
    case BD_E_INVALID:
    case BD_E_UNSUPPORTED:
        return BD_EXIT_USAGE;
    case BD_E_DATA:
    case BD_E_NOT_FOUND:
        return BD_EXIT_DATA;
    case BD_E_PEER_LOST:
    case BD_E_UNAVAILABLE:
    case BD_E_TIMEOUT:
    case BD_E_ABORTED:
    case BD_E_MISMATCH:
    case BD_E_LOST:
        return BD_EXIT_PEER;
    case BD_E_NUMERIC:
        return BD_EXIT_NUMERIC;
    default:
        return BD_EXIT_FAILURE;
    }
}

#endif
