/* Works are done one after the other, while the caller waits. See device_copy.h. */
#include "device_copy.h"

#include <stdlib.h>

#define MOST_HELD (64u << 20) /* bytes of host memory that are kept from one work to the next */

typedef struct copying_device {
    lb_device device;
    lb_device_access access;
    void *room;
    size_t room_bytes;
    uint64_t skipped;
    const char *why_lost;
} copying_device;

static void *make_room(copying_device *d, size_t bytes)
{
    if (d->room && d->room_bytes >= bytes) return d->room;
    free(d->room);
    d->room = malloc(bytes ? bytes : 1);
    d->room_bytes = d->room ? bytes : 0;
    return d->room;
}

static lb_work_state state_of(copying_device *d, int answer)
{
    if (answer == 0) return LB_WORK_DONE;
    d->skipped++;
    if (answer > 0) return LB_WORK_SKIPPED;
    d->why_lost = "the host program could not copy from it";
    return LB_WORK_LOST;
}

/* As the device's bytes are in `bytes`. */
static bool measure(lb_device_work *work, const void *bytes)
{
    lb_measuring there = work->item;
    const uintptr_t data = (uintptr_t)there.tensor.data, dense = (uintptr_t)there.dense;
    there.tensor.data = (void *)((uintptr_t)bytes + (data - dense));
    there.dense = bytes;
    if (!lb_measure(&there, 1)) return false;
    work->item.out = there.out;
    return true;
}

static lb_work_state run(copying_device *d, lb_device_work *work)
{
    if (*d->why_lost) return LB_WORK_LOST;
    const size_t size = work->item.dense_bytes;
    void *bytes = work->bytes ? work->bytes : make_room(d, size);
    if (!bytes) return state_of(d, 1);
    const void *base = (const char *)work->item.dense - work->first;
    const int answer =
        size ? d->access.copy(d->access.context, work->storage, base, work->first, work->first + size, bytes) : 0;
    if (answer == 0 && work->measured && !measure(work, bytes)) return state_of(d, 1);
    return state_of(d, answer);
}

static void submit(lb_device *device, lb_device_work *const *works, size_t n, void *stream, bool may_wait)
{
    copying_device *d = (copying_device *)device;
    (void)stream;
    (void)may_wait;
    for (size_t i = 0; i < n; i++) works[i]->state = run(d, works[i]);
    if (d->room_bytes <= MOST_HELD) return;
    free(d->room);
    d->room = NULL;
    d->room_bytes = 0;
}

static void order_before(lb_device *device, void *stream)
{
    (void)device;
    (void)stream;
}

/* Its copy answers that by itself. */
static bool is_capturing(lb_device *device, void *stream)
{
    (void)device;
    (void)stream;
    return false;
}

static void collect(lb_device *device, const lb_device_work *work, bool wait)
{
    (void)device;
    (void)work;
    (void)wait;
}

static void account(const lb_device *device, uint64_t *memory_bytes, uint64_t *skipped)
{
    *memory_bytes = 0;
    *skipped = ((const copying_device *)device)->skipped;
}

static const char *why_lost(const lb_device *device)
{
    return ((const copying_device *)device)->why_lost;
}

static void release(lb_device *device)
{
    if (device) free(((copying_device *)device)->room);
    free(device);
}

static const lb_device_ops copies = {.name = "copies",
                                     .asynchronous = false,
                                     .submit = submit,
                                     .order_before = order_before,
                                     .is_capturing = is_capturing,
                                     .collect = collect,
                                     .account = account,
                                     .why_lost = why_lost,
                                     .close = release,
                                     .abandon = release};

lb_device *lb_device_copy_new(const lb_device_access *access)
{
    copying_device *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->device.ops = &copies;
    d->access = *access;
    d->why_lost = "";
    return &d->device;
}
