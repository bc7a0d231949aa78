#include "tests/util/tu_host.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static char g_host[32];
static char g_any_port[40];

/* Process numbers have 22 bits. */
static void make(void)
{
    unsigned pid = (unsigned)getpid();
    (void)snprintf(g_host, sizeof g_host, "127.%u.%u.%u", 64 + (pid >> 16 & 63), pid >> 8 & 255,
                   pid & 255);
    (void)snprintf(g_any_port, sizeof g_any_port, "%s:0", g_host);
}

const char *tu_host(void)
{
    (void)pthread_once(&g_once, make);
    return g_host;
}

const char *tu_host_any_port(void)
{
    (void)pthread_once(&g_once, make);
    return g_any_port;
}
