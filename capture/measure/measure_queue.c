/* See measure_queue.h. One lock guards the queue and every work's counters; bytes are read outside it. */
#include "measure/measure_queue.h"

#include "measure/thread.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#define SPIN 300 /* looks before a thread sleeps or gives way: some 15 us */

struct lb_measure_queue {
    pid_t owner;
    pthread_t helper;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint added;
    bool ending, asleep;
    lb_work *oldest, *newest;
    lb_work *open; /* the oldest that may have parts that wait */
    uint64_t bytes;
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Runs the part that the caller has just taken. `lock` is held, and is let go meanwhile. */
static void run_part(lb_measure_queue *b, lb_work *work)
{
    const size_t i = work->taken++;
    pthread_mutex_unlock(&b->lock);
    lb_measure_run(work->parts, i);
    pthread_mutex_lock(&b->lock);
    if (--work->left > 0) return;
    pthread_mutex_unlock(&b->lock); /* it belongs to this thread until it is done */
    lb_measure_join(&work->item, work->parts, work->n);
    pthread_mutex_lock(&b->lock);
    atomic_store_explicit(&work->done, true, memory_order_release);
}

static lb_work *open_work(lb_measure_queue *b)
{
    while (b->open && b->open->taken == b->open->n) b->open = b->open->next;
    return b->open;
}

static void *help(void *argument)
{
    lb_measure_queue *b = (lb_measure_queue *)argument;
    pthread_mutex_lock(&b->lock);
    while (!b->ending) {
        lb_work *work = open_work(b);
        if (work) {
            run_part(b, work);
            continue;
        }
        const unsigned seen = atomic_load(&b->added);
        pthread_mutex_unlock(&b->lock);
        for (int spin = 0; spin < SPIN && atomic_load(&b->added) == seen; spin++) pause_briefly();
        pthread_mutex_lock(&b->lock);
        b->asleep = true;
        while (atomic_load(&b->added) == seen && !b->ending) pthread_cond_wait(&b->wake, &b->lock);
        b->asleep = false;
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

lb_measure_queue *lb_measure_queue_new(void)
{
    lb_measure_queue *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->owner = getpid();
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->wake, NULL);
    if (!lb_thread_start(&b->helper, "lastbit", help, b)) {
        free(b);
        return NULL;
    }
    return b;
}

bool lb_measure_queue_free(lb_measure_queue *b)
{
    if (!b) return true;
    if (b->owner != getpid()) return false;
    pthread_mutex_lock(&b->lock);
    b->ending = true;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->helper, NULL);
    for (lb_work *work = b->oldest; work; work = work->next) {
        if (lb_measure_queue_is_done(work)) continue;
        free(work->parts);
        free(work->item.out.leaves);
        work->item.out.leaves = NULL;
    }
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->wake);
    free(b);
    return true;
}

bool lb_measure_queue_add(lb_measure_queue *b, lb_work *work)
{
    work->parts = lb_measure_cut(&work->item, &work->n);
    if (!work->parts) return false;
    work->next = NULL;
    work->taken = 0;
    work->left = work->n;
    work->bytes = lb_dtype_bytes(work->item.tensor.dtype, (size_t)lb_layout_numel(&work->item.tensor.layout));
    atomic_init(&work->done, false);
    pthread_mutex_lock(&b->lock);
    if (b->newest)
        b->newest->next = work;
    else
        b->oldest = work;
    b->newest = work;
    if (!b->open) b->open = work;
    b->bytes += work->bytes;
    atomic_fetch_add(&b->added, 1);
    const bool asleep = b->asleep;
    pthread_mutex_unlock(&b->lock);
    if (asleep) pthread_cond_signal(&b->wake);
    return true;
}

void lb_measure_queue_finish(lb_measure_queue *b, lb_work *work)
{
    if (lb_measure_queue_is_done(work)) return;
    pthread_mutex_lock(&b->lock);
    while (work->taken < work->n) run_part(b, work);
    pthread_mutex_unlock(&b->lock);
    for (unsigned looks = 0; !lb_measure_queue_is_done(work); looks++) {
        if (looks < SPIN)
            pause_briefly();
        else
            sched_yield();
    }
}

bool lb_measure_queue_is_done(const lb_work *work)
{
    return atomic_load_explicit(&work->done, memory_order_acquire);
}

lb_work *lb_measure_queue_oldest(const lb_measure_queue *b)
{
    return b->oldest;
}

void lb_measure_queue_remove_oldest(lb_measure_queue *b)
{
    pthread_mutex_lock(&b->lock); /* the thread that finished it has let go of it */
    lb_work *work = b->oldest;
    b->oldest = work->next;
    if (!b->oldest) b->newest = NULL;
    if (b->open == work) b->open = work->next;
    b->bytes -= work->bytes;
    pthread_mutex_unlock(&b->lock);
}

uint64_t lb_measure_queue_bytes(const lb_measure_queue *b)
{
    return b->bytes;
}
