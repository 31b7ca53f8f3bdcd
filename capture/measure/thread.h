/* Threads of ours in the host's process: they carry a name that says whose they are, and no signal of the program ever
 * runs its handler on one of them. */
#ifndef LB_CAPTURE_THREAD_H
#define LB_CAPTURE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* Starts `run(argument)` with every signal masked, on a stack of at least 1 MB. `name`: at most 15 characters. False
 * when the system gives no thread. */
bool lb_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument);

#endif
