/* See pinned_memory.h. Each piece begins with a header, and ends where the next one begins. */
#include "pinned_memory.h"

#include <pthread.h>
#include <stdbool.h>

#define ALIGNED 256
#define PORTABLE 1u /* CU_MEMHOSTALLOC_PORTABLE: of every context */

typedef struct piece {
    size_t bytes; /* with the header */
    bool taken;
} piece;

static struct {
    char *data;
    size_t at; /* of the piece that is looked at first */
    bool refused;
    pthread_mutex_t lock;
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static piece *piece_at(size_t at)
{
    return (piece *)(void *)(memory.data + at);
}

/* With the lock. */
static void prepare(const lb_stream_driver *cuda)
{
    void *data = NULL;
    if (memory.data || memory.refused) return;
    memory.refused = cuda->cuMemHostAlloc(&data, LB_PINNED_BYTES, PORTABLE) != LB_CUDA_SUCCESS;
    if (memory.refused) return;
    memory.data = data;
    memory.at = 0;
    *piece_at(0) = (piece){LB_PINNED_BYTES, false};
}

void lb_pinned_memory_prepare(const lb_stream_driver *cuda)
{
    pthread_mutex_lock(&memory.lock);
    prepare(cuda);
    pthread_mutex_unlock(&memory.lock);
}

/* Of a piece that is free: with those behind it that are. */
static size_t room_at(size_t at)
{
    piece *piece = piece_at(at);
    while (at + piece->bytes < LB_PINNED_BYTES && !piece_at(at + piece->bytes)->taken)
        piece->bytes += piece_at(at + piece->bytes)->bytes;
    return piece->bytes;
}

static void *take(size_t need)
{
    const size_t from = memory.at;
    size_t at = from;
    for (bool round = false; !round || at < from;) {
        piece *p = piece_at(at);
        if (!p->taken && room_at(at) >= need) {
            if (p->bytes > need) *piece_at(at + need) = (piece){p->bytes - need, false};
            *p = (piece){need, true};
            memory.at = at + need < LB_PINNED_BYTES ? at + need : 0;
            return memory.data + at + ALIGNED;
        }
        at += p->bytes;
        if (at < LB_PINNED_BYTES) continue;
        if (round) break;
        round = true;
        at = 0;
    }
    memory.at = 0; /* which is always where a piece begins */
    return NULL;
}

void *lb_pinned_memory_take(const lb_stream_driver *cuda, size_t bytes)
{
    if (bytes > LB_PINNED_BYTES) return NULL;
    pthread_mutex_lock(&memory.lock);
    prepare(cuda);
    void *data = memory.data ? take(ALIGNED + (bytes + ALIGNED - 1) / ALIGNED * ALIGNED) : NULL;
    pthread_mutex_unlock(&memory.lock);
    return data;
}

void lb_pinned_memory_give(void *data)
{
    pthread_mutex_lock(&memory.lock);
    const size_t at = (size_t)((char *)data - memory.data) - ALIGNED;
    piece_at(at)->taken = false;
    pthread_mutex_unlock(&memory.lock);
}

void lb_pinned_memory_drop(void)
{
    memory.data = NULL;
    memory.refused = false;
    pthread_mutex_init(&memory.lock, NULL);
}
