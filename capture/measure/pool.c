/* See pool.h. Work is taken from a shared counter, so that a thread that the system does not run holds up no other for
 * more than the part it has begun. */
#define _GNU_SOURCE /* CPU_COUNT */
#include "measure/pool.h"

#include "measure/thread.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST_THREADS 64
#define SPIN 200 /* looks at the number of the job before sleeping: some 10 us, less than it takes to be woken */

typedef struct pool {
    pid_t owner;
    unsigned helpers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    _Atomic uint64_t job; /* number of the job at hand */
    atomic_uint working;  /* helpers that may still touch it */
    atomic_size_t next;
    /* parts; 0 once all are taken: who comes too late finds nothing. With `part` and `context` under `lock` */
    size_t n;
    void (*part)(void *, size_t);
    void *context;
} pool;

static atomic_uint wanted = 1;
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; /* held by the call that has the threads */
static pool *the_pool;

static unsigned from_environment(void)
{
    static atomic_uint known; /* threads + 1; 0: not looked at */
    unsigned k = atomic_load(&known);
    if (k) return k - 1;
    const char *text = getenv("LASTBIT_THREADS");
    long n = text ? strtol(text, NULL, 10) : 0;
    k = n > 0 ? (unsigned)(n < MOST_THREADS ? n : MOST_THREADS) : 0;
    atomic_store(&known, k + 1);
    return k;
}

unsigned lb_pool_threads(void)
{
    unsigned n = from_environment();
    return n ? n : atomic_load(&wanted);
}

void lb_pool_use(unsigned threads)
{
    atomic_store(&wanted, threads < 1 ? 1 : threads < MOST_THREADS ? threads : MOST_THREADS);
}

bool lb_pool_has_room(void)
{
    cpu_set_t cores;
    const unsigned asked = from_environment();
    if (asked) return asked > 1;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 && (unsigned)CPU_COUNT(&cores) > atomic_load(&wanted);
}

/* A part that was taken is run, even when all others have been by now: so `n` is what it was when the work was
 * joined. */
static void work(pool *pool, size_t n, void (*part)(void *, size_t), void *context)
{
    for (size_t i; (i = atomic_fetch_add(&pool->next, 1)) < n;) part(context, i);
}

static void *help(void *argument)
{
    pool *p = (pool *)argument;
    uint64_t done = 0;
    for (;;) {
        for (int spin = 0; spin < SPIN && atomic_load(&p->job) == done; spin++)
#if defined(__x86_64__)
            __builtin_ia32_pause();
#else
            ;
#endif
        pthread_mutex_lock(&p->lock);
        while (atomic_load(&p->job) == done) pthread_cond_wait(&p->wake, &p->lock);
        done = atomic_load(&p->job);
        atomic_fetch_add(&p->working, 1);
        const size_t n = p->n;
        void (*part)(void *, size_t) = p->part;
        void *context = p->context;
        pthread_mutex_unlock(&p->lock);
        work(p, n, part, context);
        atomic_fetch_sub(&p->working, 1);
    }
    return NULL;
}

static void start(pool *pool, unsigned helpers)
{
    pthread_t thread;
    while (pool->helpers < helpers && lb_thread_start(&thread, "lastbit", help, pool)) { /* fewer do as well */
        pthread_detach(thread);
        pool->helpers++;
    }
}

/* Ours, with as many helpers as there may be; NULL when there is no memory. `busy` is held. */
static pool *get(unsigned helpers)
{
    if (!the_pool || the_pool->owner != getpid()) {
        pool *p = calloc(1, sizeof *p); /* a parent's pool stays where it is: its state is unknown */
        if (!p) return NULL;
        p->owner = getpid();
        pthread_mutex_init(&p->lock, NULL);
        pthread_cond_init(&p->wake, NULL);
        the_pool = p;
    }
    if (the_pool->helpers < helpers) start(the_pool, helpers);
    return the_pool;
}

static void run_here(size_t n, void (*part)(void *, size_t), void *context)
{
    for (size_t i = 0; i < n; i++) part(context, i);
}

void lb_pool_run(size_t n, void (*part)(void *context, size_t i), void *context)
{
    const unsigned threads = lb_pool_threads();
    if (threads < 2 || n < 2 || pthread_mutex_trylock(&busy) != 0) {
        run_here(n, part, context);
        return;
    }
    pool *pool = get(threads - 1);
    if (!pool || !pool->helpers) {
        pthread_mutex_unlock(&busy);
        run_here(n, part, context);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->working)) { /* a helper that woke too late for the job before */
        pthread_mutex_unlock(&pool->lock);
        sched_yield();
        pthread_mutex_lock(&pool->lock);
    }
    pool->n = n;
    pool->part = part;
    pool->context = context;
    atomic_store(&pool->next, 0);
    atomic_fetch_add(&pool->job, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    work(pool, n, part, context);
    pthread_mutex_lock(&pool->lock); /* who joins from now on finds no parts; what they work on may be gone */
    pool->n = 0;
    pthread_mutex_unlock(&pool->lock);
    while (atomic_load(&pool->working)) sched_yield();
    pthread_mutex_unlock(&busy);
}
