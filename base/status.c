#include "base/status.h"

const char *bd_status_name(int code)
{
    switch (code) {
#define BD_X(name, num, text) \
    case (num):               \
        return #name;
        BD_STATUS_MAP(BD_X)
#undef BD_X
    default:
        return "E_UNKNOWN";
    }
}

const char *bd_status_text(int code)
{
    switch (code) {
#define BD_X(name, num, text) \
    case (num):               \
        return text;
        BD_STATUS_MAP(BD_X)
#undef BD_X
    default:
        return "unknown status";
    }
}

bd_status bd_status_known(int code)
{
    switch (code) {
#define BD_X(name, num, text) case (num):
        BD_STATUS_MAP(BD_X)
#undef BD_X
        return (bd_status)code;
    default:
        return BD_E_INTERNAL;
    }
}
