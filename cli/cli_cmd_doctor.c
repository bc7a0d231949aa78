/* `braid doctor`: what this host gives Braid, and what is missing. Reads the system, changes
 * nothing. */
#include "base/build_info.h"
#include "base/cgroup.h"
#include "base/clock.h"
#include "base/exit_code.h"
#include "base/json.h"
#include "base/mem.h"

#include "cli/cli_cmd.h"
#include "cli/cli_host.h"

#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum {
    WANTED_FDS = 4096,
    WANTED_SHM_MIB = 256,
    OLDEST_CLOCK_S = 1700000000 /* November 2023: before it the clock is not set */
};

typedef struct doctor {
    FILE *out;
    bd_json *json; /* NULL: as a table */
    int n_problems;
} doctor;

typedef struct doctor_flags {
    const char *format;
} doctor_flags;

static const bd_opt table[] = {
    {"format", BD_OPT_ENUM, offsetof(doctor_flags, format), "table", 0, 0, "table|json",
     "What is printed; also -o."},
};

/* hint NULL: fine. */
static void say(doctor *d, const char *what, const char *value, const char *hint)
{
    d->n_problems += hint != NULL;
    if (d->json != NULL) {
        bd_json_obj(d->json);
        bd_json_put_str(d->json, "what", what);
        bd_json_key(d->json, "ok");
        bd_json_bool(d->json, hint == NULL);
        bd_json_put_str(d->json, "value", value);
        bd_json_put_str(d->json, "hint", hint == NULL ? "" : hint);
        bd_json_obj_end(d->json);
        return;
    }
    (void)fprintf(d->out, "%-4s %-16s %s\n", hint == NULL ? "ok" : "BAD", what, value);
    if (hint != NULL) {
        (void)fprintf(d->out, "     %-16s %s\n", "", hint);
    }
}

static void check_limit_fds(doctor *d)
{
    struct rlimit limit = {0};
    char text[64];
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)limit.rlim_cur);
    say(d, "open files", text,
        limit.rlim_cur >= WANTED_FDS ? NULL : "raise it: ulimit -n 65536, or LimitNOFILE=65536");
}

static void check_shm(doctor *d)
{
    struct statvfs st;
    char text[64];
    if (statvfs("/dev/shm", &st) != 0) {
        say(d, "/dev/shm", "missing", "mount a tmpfs there: ranks of one host reduce through it");
        return;
    }
    double mib = (double)st.f_bavail * (double)st.f_frsize / (1 << 20);
    (void)snprintf(text, sizeof text, "%.0f MiB free", mib);
    say(d, "/dev/shm", text,
        mib >= WANTED_SHM_MIB ? NULL : "too small for GPUs: --shm-size, or an emptyDir in memory");
}

/* The number in a small file of the system, -1 where there is none. */
static void check_memory(doctor *d)
{
    struct sysinfo info = {0};
    char text[96];
    (void)sysinfo(&info);
    double host = (double)info.totalram * info.mem_unit;
    double limit = (double)bd_cgroup_memory_bytes("");
    bool limited = limit > 0 && limit < host;
    (void)snprintf(text, sizeof text, "%.1f GiB, limit of this container: %s%.1f GiB",
                   host / (1 << 30), limited ? "" : "none, ", (limited ? limit : host) / (1 << 30));
    say(d, "memory", text, NULL);
}

static void check_clock(doctor *d)
{
    char text[32] = "";
    time_t now = (time_t)(bd_wall_ns() / BD_NS_PER_S);
    struct tm tm;
    if (gmtime_r(&now, &tm) != NULL) {
        (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    }
    say(d, "clock", text, now > OLDEST_CLOCK_S ? NULL : "the clock is not set");
}

static void list_interfaces(doctor *d)
{
    struct ifaddrs *all = NULL;
    char text[256] = "";
    size_t n = 0;
    if (getifaddrs(&all) == 0) {
        for (const struct ifaddrs *i = all; i != NULL && n < sizeof text - 32; i = i->ifa_next) {
            bool real = i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET &&
                        (i->ifa_flags & (unsigned)IFF_UP) != 0 &&
                        (i->ifa_flags & (unsigned)IFF_LOOPBACK) == 0;
            n += real ? (size_t)snprintf(text + n, sizeof text - n, "%s%.16s", n > 0 ? " " : "",
                                         i->ifa_name)
                      : 0;
        }
        freeifaddrs(all);
    }
    say(d, "network", n > 0 ? text : "loopback alone (one host only)", NULL);
}

static void count_gpus(doctor *d)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%d (programs: %s)", cli_host_gpus(),
                   strstr(bd_build_features(), "cuda=yes") != NULL ? "with CUDA" : "without CUDA");
    say(d, "GPUs", text, NULL);
}

static void check_program(doctor *d, const char *name)
{
    char self[512] = "";
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 64);
    char *slash = n > 0 ? strrchr(self, '/') : NULL;
    if (slash == NULL) {
        return;
    }
    (void)snprintf(slash + 1, sizeof self - (size_t)(slash + 1 - self), "%s", name);
    say(d, name, self, access(self, X_OK) == 0 ? NULL : "not beside `braid`: `braid run` needs it");
}

static void check_all(doctor *d)
{
    struct utsname u = {0};
    char text[256];
    (void)uname(&u);
    (void)snprintf(text, sizeof text, "%.32s %.64s, %ld cores, %d of them for us", u.machine,
                   u.release, sysconf(_SC_NPROCESSORS_ONLN), bd_cpus());
    say(d, "build", bd_build_line("braid"), NULL);
    say(d, "host", text, NULL);
    check_program(d, "braid-ps");
    check_program(d, "braid-worker");
    check_memory(d);
    check_limit_fds(d);
    check_shm(d);
    list_interfaces(d);
    count_gpus(d);
    check_clock(d);
}

static bd_status print_json(doctor *d, bd_err *err)
{
    bd_json j;
    bd_json_init(&j);
    bd_json_obj(&j);
    bd_json_key(&j, "checks");
    bd_json_arr(&j);
    d->json = &j;
    check_all(d);
    bd_json_arr_end(&j);
    bd_json_put_i64(&j, "problems", d->n_problems);
    bd_json_obj_end(&j);
    const char *text = bd_json_text(&j);
    if (text != NULL) {
        (void)fprintf(d->out, "%s\n", text);
    }
    d->json = NULL;
    bd_json_deinit(&j);
    return text != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "doctor");
}

static bd_status run_doctor(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    doctor d = {.out = io->out};
    doctor_flags f = {0};
    bd_options o;
    bd_status rc = bd_options_init(&o, table, sizeof table / sizeof table[0], &f, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = cli_cmd_parse(&o, &argc, argv, NULL, NULL, err);
    if (rc == BD_OK && strcmp(f.format, "json") == 0) {
        rc = print_json(&d, err);
    } else if (rc == BD_OK) {
        check_all(&d);
    }
    *exit_code = d.n_problems > 0 ? BD_EXIT_FAILURE : BD_EXIT_OK;
    bd_options_deinit(&o);
    return rc;
}

const cli_cmd cli_cmd_doctor = {.name = "doctor",
                                .usage = "[-o table|json]",
                                .help = "Shows what this host gives Braid; exit code 1 when "
                                        "something is missing.",
                                CLI_OPTIONS(table),
                                .run = run_doctor};
