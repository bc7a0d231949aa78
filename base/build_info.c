#include "base/build_info.h"

#include "base/braid_build_info.h" /* made at build time by deploy/cmake/BraidBuildInfo.cmake */

#include <stdio.h>

const char *bd_build_version(void)
{
    return BRAID_VERSION;
}

const char *bd_build_commit(void)
{
    return BRAID_BUILD_COMMIT;
}

const char *bd_build_features(void)
{
    return BRAID_BUILD_FEATURES;
}

const char *bd_build_line(const char *program)
{
    static _Thread_local char line[512];
    (void)snprintf(line, sizeof line, "%s %s (commit %s of %s; %s)", program, BRAID_VERSION,
                   BRAID_BUILD_COMMIT, BRAID_BUILD_DATE, BRAID_BUILD_FEATURES);
    return line;
}
