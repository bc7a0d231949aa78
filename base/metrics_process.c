/* What Prometheus clients everywhere say of their process, under the names they all use. */
#include "base/metrics_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The start of a small file of /proc. */
static bool read_file(const char *path, char *buf, size_t n_buf)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, buf, n_buf - 1) : -1;
    if (fd >= 0) {
        (void)close(fd);
    }
    buf[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* The number behind `key` at the start of a line of /proc/stat. */
static double stat_line(const char *key)
{
    double value = 0;
    char line[512];
    FILE *f = fopen("/proc/stat", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            value = strtod(line + strlen(key), NULL);
        }
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return value;
}

static double count_fds(void)
{
    double n = 0;
    DIR *d = opendir("/proc/self/fd");
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the directory stream is this call's own
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return n > 3 ? n - 3 : 0; /* not ".", "..", nor the directory itself */
}

/* Fields of /proc/self/stat are counted from the bracket that ends the name: state is 0. */
static double stat_field(const char *stat, int field)
{
    const char *p = strrchr(stat, ')');
    p = p != NULL ? p + 2 : "";
    for (int i = 0; i < field && p != NULL; i++) {
        p = strchr(p, ' ');
        p = p != NULL ? p + 1 : NULL;
    }
    return p != NULL ? strtod(p, NULL) : 0;
}

void bd_process_read(bd_process_values *out)
{
    char stat[1024] = "";
    double tick = (double)sysconf(_SC_CLK_TCK), page = (double)sysconf(_SC_PAGESIZE);
    struct rlimit limit = {0};
    memset(out, 0, sizeof *out);
    if (read_file("/proc/self/stat", stat, sizeof stat)) {
        out->cpu_s = (stat_field(stat, 11) + stat_field(stat, 12)) / tick;
        out->start_s = stat_line("btime ") + stat_field(stat, 19) / tick;
        out->virtual_bytes = stat_field(stat, 20);
        out->resident_bytes = stat_field(stat, 21) * page;
        out->threads = stat_field(stat, 17);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        out->max_fds = (double)limit.rlim_cur;
    }
    out->open_fds = count_fds();
}
