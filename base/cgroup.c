#include "base/cgroup.h"

#include "base/mem.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads one group's limit; SIZE_MAX: none. dir: the group's folder. */
typedef size_t (*limit_fn)(const char *dir);

static bool read_line(const char *dir, const char *name, char *text, size_t n_text)
{
    char *path = bd_strfmt("%s/%s", dir, name);
    FILE *f = path == NULL ? NULL : fopen(path, "re");
    bool ok = f != NULL && fgets(text, (int)n_text, f) != NULL;
    if (f != NULL) {
        (void)fclose(f);
    }
    bd_free(path);
    return ok;
}

/* "max" is no number; version 1 says "none" by -1 or a number near 2^63. */
static size_t number(const char *text, char **end)
{
    unsigned long long v = strtoull(text, end, 10);
    return *end == text || v >= (1ull << 60) ? SIZE_MAX : (size_t)v;
}

static size_t bytes_in(const char *dir, const char *name)
{
    char text[64], *end = NULL;
    return read_line(dir, name, text, sizeof text) ? number(text, &end) : SIZE_MAX;
}

static size_t memory_v2(const char *dir)
{
    return bytes_in(dir, "memory.max");
}

static size_t memory_v1(const char *dir)
{
    return bytes_in(dir, "memory.limit_in_bytes");
}

static size_t cpus_of(size_t quota, size_t period)
{
    return quota == SIZE_MAX || quota == 0 || period == SIZE_MAX || period == 0
               ? SIZE_MAX
               : (quota + period - 1) / period;
}

static size_t cpu_v2(const char *dir)
{
    char text[64], *end = NULL; /* "QUOTA PERIOD" */
    if (!read_line(dir, "cpu.max", text, sizeof text)) {
        return SIZE_MAX;
    }
    size_t quota = number(text, &end);
    return quota == SIZE_MAX ? SIZE_MAX : cpus_of(quota, number(end, &end));
}

static size_t cpu_v1(const char *dir)
{
    return cpus_of(bytes_in(dir, "cpu.cfs_quota_us"), bytes_in(dir, "cpu.cfs_period_us"));
}

/* The tightest limit of the group and its ancestors. Inside a container the mount shows only the
 * own group, whatever path /proc says: the root of the mount is looked at too. */
static size_t walk_up(const char *root, const char *mount, const char *group, limit_fn limit)
{
    size_t least = SIZE_MAX;
    char *dir = bd_strfmt("%s%s%s", root, mount, group);
    size_t top = strlen(root) + strlen(mount);
    while (dir != NULL) {
        size_t here = limit(dir);
        least = here < least ? here : least;
        char *slash = strrchr(dir + top, '/');
        if (slash == NULL) {
            break;
        }
        *slash = '\0';
    }
    bd_free(dir);
    return least;
}

/* word is one of the comma-separated ones. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *c = list; *c != '\0'; c += strspn(c, ",")) {
        size_t k = strcspn(c, ",");
        if (k == n && strncmp(c, word, n) == 0) {
            return true;
        }
        c += k;
    }
    return false;
}

static size_t least_of(const char *root, const char *controller, limit_fn v2, limit_fn v1)
{
    char line[4096];
    size_t least = SIZE_MAX;
    char *path = bd_strfmt("%s/proc/self/cgroup", root);
    char *mount = bd_strfmt("/sys/fs/cgroup/%s", controller);
    FILE *f = path == NULL || mount == NULL ? NULL : fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) { /* NUMBER:CONTROLLERS:GROUP */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        size_t here = SIZE_MAX;
        if (controllers[1] == '\0') {
            here = walk_up(root, "/sys/fs/cgroup", group, v2);
        } else if (has_word(controllers + 1, controller)) {
            here = walk_up(root, mount, group, v1);
        }
        least = here < least ? here : least;
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    bd_free(mount);
    bd_free(path);
    return least == SIZE_MAX ? 0 : least;
}

size_t bd_cgroup_memory_bytes(const char *root)
{
    return least_of(root, "memory", memory_v2, memory_v1);
}

int bd_cgroup_cpus(const char *root)
{
    size_t n = least_of(root, "cpu", cpu_v2, cpu_v1);
    return n > CPU_SETSIZE ? CPU_SETSIZE : (int)n;
}

int bd_cpus(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = bd_cgroup_cpus("");
    n = quota > 0 && quota < n ? quota : n;
    return n > 0 ? n : 1;
}
