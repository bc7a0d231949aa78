#include "ps_server/ps_admit.h"

#include <string.h>

const ps_admit ps_admit_all = {.form = {.name = "all", .help = "every push makes its row"}};

static const ps_admit *const all[] = {&ps_admit_all, &ps_admit_frequency, &ps_admit_sketch,
                                      &ps_admit_probability};

const ps_admit *ps_admit_at(size_t i)
{
    return i < sizeof all / sizeof all[0] ? all[i] : NULL;
}

const ps_admit *ps_admit_find(const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i]->form.name, name) == 0) {
            return all[i];
        }
    }
    return NULL;
}
