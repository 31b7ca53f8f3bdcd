/* A few threads that read along while the host waits for us anyway: large values are digested by several cores.
 *
 * One pool per process, made when it is first needed and never ended; a forked child, which has none of its parent's
 * threads, makes its own. Its threads block every signal, sleep when nothing is to be done, and call nothing of the
 * host. */
#ifndef LB_POOL_H
#define LB_POOL_H

#include <stdbool.h>
#include <stddef.h>

/* How many threads work on one call, the calling one included: LASTBIT_THREADS, else what lb_pool_use said, else 1. */
unsigned lb_pool_threads(void);
void lb_pool_use(unsigned threads);
/* Whether a thread beside the host's finds a core: this process may use more of them than lb_pool_use said.
 * LASTBIT_THREADS decides where it is set: 1 says no. */
bool lb_pool_has_room(void);

/* Calls part(context, i) for every i < n, each once, in no order, and returns when all have returned. Without threads,
 * or when another call has them, the calling thread does it all. */
void lb_pool_run(size_t n, void (*part)(void *context, size_t i), void *context);

#endif
