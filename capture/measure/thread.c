/* See thread.h. A thread inherits the mask of the one that starts it, so there is no moment in which it could take a
 * signal. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "measure/thread.h"

#include <signal.h>

/* Measuring holds a leaf of 64 KB and more; the system's default is what `ulimit -s` allows the host. */
enum { LEAST_STACK = 1 << 20 };

static bool start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    pthread_attr_t attributes;
    size_t stack = 0;
    if (pthread_attr_init(&attributes) != 0) return false;
    bool started = pthread_attr_getstacksize(&attributes, &stack) == 0;
    if (started && stack < LEAST_STACK) started = pthread_attr_setstacksize(&attributes, LEAST_STACK) == 0;
    started = started && pthread_create(thread, &attributes, run, argument) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

bool lb_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = start(thread, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_setname_np(*thread, name);
    return started;
}
