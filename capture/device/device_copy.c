/* Works are done one after the other, while the caller waits. See device_copy.h.
 *
 * In a graph the host program copies values aside, one node each; what a run left there is fetched when it has been
 * queued. */
#include "device/device_copy.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

#define MOST_HELD (64u << 20) /* bytes of host memory that are kept from one work to the next */

typedef struct held {      /* a copy that a graph makes at each run */
    uint64_t slot, number; /* of the host program; 0: of no bytes */
    size_t bytes;
    lb_device_work *expecting; /* what the next run leaves there, and others behind it */
} held;

typedef struct copying_device {
    lb_device device;
    lb_device_access access;
    void *room;
    size_t room_bytes;
    uint64_t skipped;
    const char *why_lost;
    held *held; /* by slot */
    uint32_t n_held;
    uint64_t slots, held_bytes, most_held_bytes;
} copying_device;

static void *make_room(copying_device *copying, size_t bytes)
{
    if (copying->room && copying->room_bytes >= bytes) return copying->room;
    free(copying->room);
    copying->room = malloc(bytes ? bytes : 1);
    copying->room_bytes = copying->room ? bytes : 0;
    return copying->room;
}

static lb_work_state state_of(copying_device *copying, int answer)
{
    if (answer == 0) return LB_WORK_DONE;
    copying->skipped++;
    if (answer > 0) return LB_WORK_SKIPPED;
    copying->why_lost = "the host program could not copy from it";
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

static int fetch(const copying_device *copying, const lb_device_work *work, const held *held, void *to)
{
    const size_t size = work->item.dense_bytes;
    if (size == 0) return 0;
    if (held) return copying->access.copy_held(copying->access.context, held->number, size, to);
    const void *base = (const char *)work->item.dense - work->first;
    return copying->access.copy(copying->access.context, work->storage, base, work->first, work->first + size, to);
}

/* From where it lies, or from where a graph copied it. */
static lb_work_state run(copying_device *copying, lb_device_work *work, const held *held)
{
    if (*copying->why_lost) return LB_WORK_LOST;
    void *bytes = work->bytes ? work->bytes : make_room(copying, work->item.dense_bytes);
    if (!bytes) return state_of(copying, 1);
    const int answer = fetch(copying, work, held, bytes);
    if (answer == 0 && work->measured && !measure(work, bytes)) return state_of(copying, 1);
    return state_of(copying, answer);
}

static void trim_room(copying_device *copying)
{
    if (copying->room_bytes <= MOST_HELD) return;
    free(copying->room);
    copying->room = NULL;
    copying->room_bytes = 0;
}

static void submit(lb_device *device, lb_device_work *const *works, size_t n, void *stream, bool may_wait)
{
    copying_device *copying = (copying_device *)device;
    (void)stream;
    (void)may_wait;
    for (size_t i = 0; i < n; i++) works[i]->state = run(copying, works[i], NULL);
    trim_room(copying);
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

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static bool hold(copying_device *copying, const lb_device_work *work, held *h)
{
    const size_t size = work->item.dense_bytes;
    const uint64_t most = copying->access.device_bytes ? copying->access.device_bytes : LB_CUDA_DEVICE_BYTES;
    *h = (held){.bytes = size};
    if (*copying->why_lost || !copying->access.hold || size > most - copying->held_bytes) return false;
    const void *base = (const char *)work->item.dense - work->first;
    if (size)
        h->number = copying->access.hold(copying->access.context, work->storage, base, work->first, work->first + size);
    return h->number || size == 0;
}

static void let_go(copying_device *copying, const held *held)
{
    if (held->number) copying->access.let_go(copying->access.context, held->number);
    copying->held_bytes -= held->bytes;
}

static void capture(lb_device *device, lb_device_work *const *works, size_t n, void *stream)
{
    copying_device *copying = (copying_device *)device;
    (void)stream;
    for (size_t i = 0; i < n; i++) {
        held *list = lb_array_grow(copying->held, copying->n_held, sizeof *list);
        if (list) copying->held = list;
        works[i]->state = LB_WORK_SKIPPED;
        works[i]->slot = 0;
        if (list && hold(copying, works[i], &list[copying->n_held])) {
            copying->held_bytes += list[copying->n_held].bytes;
            if (copying->held_bytes > copying->most_held_bytes) copying->most_held_bytes = copying->held_bytes;
            list[copying->n_held++].slot = works[i]->slot = ++copying->slots;
        } else {
            copying->skipped++;
        }
        works[i]->each_run = works[i]->slot;
    }
}

/* Where the first slot stands that is not below that one. */
static uint32_t find(const copying_device *copying, uint64_t slot)
{
    return (uint32_t)lb_array_first(copying->held, copying->n_held, sizeof copying->held[0], &slot, lb_by_u64);
}

static void expect(lb_device *device, lb_device_work *const *works, size_t n, bool may_wait)
{
    copying_device *copying = (copying_device *)device;
    (void)may_wait;
    for (size_t i = 0; i < n; i++) {
        const uint32_t at = find(copying, works[i]->slot);
        held *held = works[i]->slot && at < copying->n_held && copying->held[at].slot == works[i]->slot
                         ? &copying->held[at]
                         : NULL;
        works[i]->state = held ? LB_WORK_UNDER_WAY : state_of(copying, 1);
        if (!held) continue;
        works[i]->next = held->expecting;
        held->expecting = works[i];
    }
}

static void runs(lb_device *device, uint64_t first, uint64_t last)
{
    (void)device;
    (void)first;
    (void)last;
}

static void ran(lb_device *device, uint64_t first, uint64_t last, void *stream)
{
    copying_device *copying = (copying_device *)device;
    (void)stream;
    for (uint32_t i = find(copying, first); i < copying->n_held && copying->held[i].slot <= last; i++) {
        held *held = &copying->held[i];
        for (lb_device_work *work = held->expecting; work; work = work->next) work->state = run(copying, work, held);
        held->expecting = NULL;
    }
    trim_room(copying);
}

static void failed(lb_device *device, uint64_t first, uint64_t last)
{
    copying_device *copying = (copying_device *)device;
    for (uint32_t i = find(copying, first); i < copying->n_held && copying->held[i].slot <= last; i++) {
        for (lb_device_work *work = copying->held[i].expecting; work; work = work->next)
            work->state = state_of(copying, 1);
        copying->held[i].expecting = NULL;
    }
}

static void forget(lb_device *device, uint64_t first, uint64_t last)
{
    copying_device *copying = (copying_device *)device;
    const uint32_t from = find(copying, first), to = find(copying, last + 1);
    failed(device, first, last);
    for (uint32_t i = from; i < to; i++) let_go(copying, &copying->held[i]);
    if (from < to) memmove(copying->held + from, copying->held + to, (copying->n_held - to) * sizeof copying->held[0]);
    copying->n_held -= to - from;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void account(const lb_device *device, uint64_t *memory_bytes, uint64_t *skipped)
{
    *memory_bytes = ((const copying_device *)device)->most_held_bytes;
    *skipped = ((const copying_device *)device)->skipped;
}

static const char *why_lost(const lb_device *device)
{
    return ((const copying_device *)device)->why_lost;
}

/* Graphs that copy something aside may run after this: the host program holds that as long as they live. */
static void close_device(lb_device *device)
{
    copying_device *copying = (copying_device *)device;
    free(copying->room);
    free(copying->held);
    free(copying);
}

static const lb_device_ops copies = {.name = "copies",
                                     .asynchronous = false,
                                     .submit = submit,
                                     .order_before = order_before,
                                     .is_capturing = is_capturing,
                                     .capture = capture,
                                     .expect = expect,
                                     .runs = runs,
                                     .ran = ran,
                                     .failed = failed,
                                     .forget = forget,
                                     .collect = collect,
                                     .account = account,
                                     .why_lost = why_lost,
                                     .close = close_device,
                                     .abandon = close_device};

lb_device *lb_device_copy_new(const lb_device_access *access)
{
    copying_device *copying = calloc(1, sizeof *copying);
    if (!copying) return NULL;
    copying->device.ops = &copies;
    copying->access = *access;
    copying->why_lost = "";
    return &copying->device;
}
