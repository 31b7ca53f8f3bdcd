/* Loading the recorder: see recorder_door.h. */
#define _GNU_SOURCE /* dladdr */
#include "calls/recorder_door.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static lb_door door;
static bool is_open, held; /* `held`: by a thread that forks, and one forks at a time */

static void *open_library(char *why, size_t room)
{
    char beside[PATH_MAX] = "liblastbit_capture.so";
    const char *named = getenv("LASTBIT_LIB"), *slash;
    Dl_info here;
    if (dladdr((void *)&door, &here) && here.dli_fname && (slash = strrchr(here.dli_fname, '/')))
        snprintf(beside, sizeof beside, "%.*s/liblastbit_capture.so", (int)(slash - here.dli_fname), here.dli_fname);
    void *library = dlopen(named && *named ? named : beside, RTLD_NOW | RTLD_LOCAL);
    const char *problem = library ? NULL : dlerror();
    if (!library) snprintf(why, room, "the recorder cannot be loaded: %s", problem ? problem : "");
    return library;
}

static bool fill(char *why, size_t room)
{
    void *library = open_library(why, room);
    if (!library) return false;
#define FILL(name)                                                                                                     \
    *(void **)&door.name = dlsym(library, #name);                                                                      \
    if (!door.name) {                                                                                                  \
        snprintf(why, room, "the recorder has no %s: it is of another version", #name);                                \
        return false;                                                                                                  \
    }
    LB_DOOR(FILL)
#undef FILL
    return true;
}

const lb_door *lb_door_open(char *why, size_t room)
{
    pthread_mutex_lock(&lock);
    if (!is_open) is_open = fill(why, room);
    const bool open = is_open;
    pthread_mutex_unlock(&lock);
    return open ? &door : NULL;
}

void lb_door_before_fork(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec++;
    held = pthread_mutex_timedlock(&lock, &end) == 0;
}

void lb_door_after_fork(bool child)
{
    if (child)
        lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    else if (held)
        pthread_mutex_unlock(&lock);
}
