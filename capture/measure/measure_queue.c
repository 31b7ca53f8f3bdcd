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
static void run_part(lb_measure_queue *queue, lb_work *work)
{
    const size_t i = work->taken++;
    pthread_mutex_unlock(&queue->lock);
    lb_measure_run(work->parts, i);
    pthread_mutex_lock(&queue->lock);
    if (--work->left > 0) return;
    pthread_mutex_unlock(&queue->lock); /* it belongs to this thread until it is done */
    lb_measure_join(&work->item, work->parts, work->n);
    pthread_mutex_lock(&queue->lock);
    atomic_store_explicit(&work->done, true, memory_order_release);
}

static lb_work *open_work(lb_measure_queue *queue)
{
    while (queue->open && queue->open->taken == queue->open->n) queue->open = queue->open->next;
    return queue->open;
}

static void *help(void *argument)
{
    lb_measure_queue *queue = (lb_measure_queue *)argument;
    pthread_mutex_lock(&queue->lock);
    while (!queue->ending) {
        lb_work *work = open_work(queue);
        if (work) {
            run_part(queue, work);
            continue;
        }
        const unsigned seen = atomic_load(&queue->added);
        pthread_mutex_unlock(&queue->lock);
        for (int spin = 0; spin < SPIN && atomic_load(&queue->added) == seen; spin++) pause_briefly();
        pthread_mutex_lock(&queue->lock);
        queue->asleep = true;
        while (atomic_load(&queue->added) == seen && !queue->ending) pthread_cond_wait(&queue->wake, &queue->lock);
        queue->asleep = false;
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

lb_measure_queue *lb_measure_queue_new(void)
{
    lb_measure_queue *queue = calloc(1, sizeof *queue);
    if (!queue) return NULL;
    queue->owner = getpid();
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->wake, NULL);
    if (!lb_thread_start(&queue->helper, "lastbit", help, queue)) {
        free(queue);
        return NULL;
    }
    return queue;
}

bool lb_measure_queue_free(lb_measure_queue *queue)
{
    if (!queue) return true;
    if (queue->owner != getpid()) return false;
    pthread_mutex_lock(&queue->lock);
    queue->ending = true;
    pthread_cond_signal(&queue->wake);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->helper, NULL);
    for (lb_work *work = queue->oldest; work; work = work->next) {
        if (lb_measure_queue_is_done(work)) continue;
        free(work->parts);
        free(work->item.out.leaves);
        work->item.out.leaves = NULL;
    }
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->wake);
    free(queue);
    return true;
}

bool lb_measure_queue_add(lb_measure_queue *queue, lb_work *work)
{
    work->parts = lb_measure_cut(&work->item, &work->n);
    if (!work->parts) return false;
    work->next = NULL;
    work->taken = 0;
    work->left = work->n;
    work->bytes = lb_dtype_bytes(work->item.tensor.dtype, (size_t)lb_layout_numel(&work->item.tensor.layout));
    atomic_init(&work->done, false);
    pthread_mutex_lock(&queue->lock);
    if (queue->newest)
        queue->newest->next = work;
    else
        queue->oldest = work;
    queue->newest = work;
    if (!queue->open) queue->open = work;
    queue->bytes += work->bytes;
    atomic_fetch_add(&queue->added, 1);
    const bool asleep = queue->asleep;
    pthread_mutex_unlock(&queue->lock);
    if (asleep) pthread_cond_signal(&queue->wake);
    return true;
}

void lb_measure_queue_finish(lb_measure_queue *queue, lb_work *work)
{
    if (lb_measure_queue_is_done(work)) return;
    pthread_mutex_lock(&queue->lock);
    while (work->taken < work->n) run_part(queue, work);
    pthread_mutex_unlock(&queue->lock);
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

lb_work *lb_measure_queue_oldest(const lb_measure_queue *queue)
{
    return queue->oldest;
}

void lb_measure_queue_remove_oldest(lb_measure_queue *queue)
{
    pthread_mutex_lock(&queue->lock); /* the thread that finished it has let go of it */
    lb_work *work = queue->oldest;
    queue->oldest = work->next;
    if (!queue->oldest) queue->newest = NULL;
    if (queue->open == work) queue->open = work->next;
    queue->bytes -= work->bytes;
    pthread_mutex_unlock(&queue->lock);
}

uint64_t lb_measure_queue_bytes(const lb_measure_queue *queue)
{
    return queue->bytes;
}
