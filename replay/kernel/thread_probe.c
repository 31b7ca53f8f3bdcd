/* See thread_probe.h. */
#include "kernel/thread_probe.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

static void *pass(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

long lb_thread_probe(long wanted, int *error)
{
    pthread_t *started = calloc((size_t)wanted + 1, sizeof *started);
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    long n = 0;
    *error = started ? 0 : ENOMEM;
    pthread_mutex_lock(&gate);
    while (*error == 0 && n < wanted) {
        *error = pthread_create(&started[n], NULL, pass, &gate);
        n += *error == 0;
    }
    pthread_mutex_unlock(&gate);
    for (long i = 0; i < n; i++) pthread_join(started[i], NULL);
    free(started);
    return n;
}
