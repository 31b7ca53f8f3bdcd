/* See thread.h. A thread inherits the mask of the one that starts it, so there is no moment in which it could take a
 * signal. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "measure/thread.h"

#include <signal.h>

bool lb_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(thread, NULL, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_setname_np(*thread, name);
    return started;
}
