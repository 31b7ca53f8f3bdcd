/* Measuring inside a graph (see cuda_device.h): a launch is a node, and each run writes to another set of results.
 *
 *     REPLAYS   │ set 0: launch A, launch B, … │ set 1: A, B, … │ … │ set `replays` - 1 │
 *     TURNS     A, B, …: what the kernel adds to its slots; the node behind it moves it on by one set
 *
 * Bytes that are wanted of each run a node copies aside; when the run has been queued they are read from there, as a
 * flight.
 *
 * What a graph uses is given back when it is gone and its last run has ended; a turn goes on from where it stood. A
 * work that expects a run gets the results by the number of that run, which is how many were heard of before: the host
 * program tells of each. A run that it did not tell of shows in the turn, and what was expected then is skipped. First
 * the turns are fetched, then the results of the runs that have ended, then the turns again: a run whose set was not
 * begun to be overwritten by then is whole. */
#include "cuda/cuda_inside.h"

#include <stdlib.h>
#include <string.h>

typedef struct places {
    lb_cuda_piece pieces[LB_CUDA_RINGS];
    uint64_t scratch_at[LB_CUDA_BATCH];
} places;

static uint64_t set_bytes(const lb_cuda *device)
{
    return device->rings[LB_CUDA_REPLAYS].room.size;
}

static uint64_t set_slots(const lb_cuda *device)
{
    return set_bytes(device) / sizeof(lb_kernel_result);
}

static bool give_back(lb_cuda *device);

static bool take_places(lb_cuda *device, places *places, size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        places->scratch_at[i] = bytes;
        bytes += lb_kernel_scratch_bytes(&device->items[i]);
    }
    places->pieces[LB_CUDA_GRAPHS].bytes = bytes;
    places->pieces[LB_CUDA_REPLAYS].bytes = n * sizeof(lb_kernel_result);
    places->pieces[LB_CUDA_TURNS].bytes = sizeof(uint64_t);
    return lb_cuda_take(device, places->pieces) || (give_back(device) && lb_cuda_take(device, places->pieces));
}

static CUdeviceptr place(const lb_cuda *device, const places *places, lb_cuda_ring_name ring)
{
    return device->rings[ring].device + places->pieces[ring].at;
}

static CUresult add_turn(lb_cuda *device, CUdeviceptr turn, uint64_t by, CUstream stream)
{
    void *parameters[] = {&turn, &by};
    return device->cuda->LaunchKernel(device->kernels.turn, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

/* The graph has the items, too: they are parameters of its node. */
static bool pack_items(lb_cuda *device, const places *places, size_t n)
{
    lb_kernel_launch *launch = &device->launch;
    for (size_t i = 0; i < n; i++) {
        device->items[i].scratch = place(device, places, LB_CUDA_GRAPHS) + places->scratch_at[i];
        device->items[i].slot = places->pieces[LB_CUDA_REPLAYS].at / sizeof(lb_kernel_result) + i;
    }
    launch->results = device->rings[LB_CUDA_REPLAYS].device;
    launch->n_results = device->options.replays * set_slots(device);
    launch->turn = place(device, places, LB_CUDA_TURNS);
    return lb_kernel_pack(launch, device->items, n);
}

static CUresult add_nodes(lb_cuda *device, CUstream stream)
{
    const CUresult result = lb_cuda_launch(device, &device->launch, stream);
    return result ? result : add_turn(device, device->launch.turn, set_slots(device), stream);
}

/* Runs that have ended, by one of the two copies of the turns. */
static uint64_t runs_of(const lb_cuda *device, const lb_cuda_captured *captured, const void *turns)
{
    uint64_t turn;
    memcpy(&turn, (const char *)turns + captured->pieces[LB_CUDA_TURNS].at, sizeof turn);
    return turn / set_slots(device);
}

/* Bytes that are wanted of each run are copied aside, as far as there is room. */
static CUresult add_copies(lb_cuda *device, lb_cuda_captured *captured, lb_device_work *const *works, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = 0; i < captured->n && result == CUDA_SUCCESS; i++) {
        const lb_measuring *item = &works[i]->item;
        lb_cuda_piece *aside = &captured->aside[i];
        *aside = (lb_cuda_piece){.bytes = works[i]->each_run ? item->dense_bytes : 0};
        works[i]->each_run &= item->dense_bytes == 0 || lb_cuda_take_piece(device, LB_CUDA_ASIDE, aside);
        if (aside->taken)
            result = device->cuda->MemcpyDtoDAsync(device->rings[LB_CUDA_ASIDE].device + aside->at,
                                                   (CUdeviceptr)(uintptr_t)item->dense, item->dense_bytes, stream);
    }
    return result;
}

static void give_pieces(lb_cuda *device, lb_cuda_captured *captured)
{
    lb_cuda_give(device, captured->pieces);
    for (uint32_t i = 0; i < captured->n; i++) lb_cuda_give_piece(device, LB_CUDA_ASIDE, &captured->aside[i]);
}

static void note(lb_cuda *device, lb_cuda_captured *captured, lb_device_work *const *works)
{
    const lb_cuda_piece *turn = &captured->pieces[LB_CUDA_TURNS];
    captured->first_value = device->captured_values + 1;
    captured->before = captured->begun = captured->seen = runs_of(device, captured, device->rings[LB_CUDA_TURNS].host);
    for (size_t i = 0; i < captured->n; i++) {
        works[i]->state = LB_WORK_SKIPPED;
        works[i]->slot = ++device->captured_values;
    }
    *device->last_captured = captured;
    device->last_captured = &captured->next;
    if (device->turns_bytes < turn->at + turn->bytes) device->turns_bytes = turn->at + turn->bytes;
}

/* `works` are measured by device->items. */
static void capture_batch(lb_cuda *device, lb_device_work *const *works, size_t n, CUstream stream)
{
    places places;
    memset(&places, 0, sizeof places);
    lb_cuda_captured *captured = calloc(1, sizeof *captured + n * sizeof captured->aside[0]);
    if (!captured || !take_places(device, &places, n)) {
        for (size_t i = 0; i < n; i++) lb_cuda_skip(device, works[i]);
        free(captured);
        return;
    }
    memcpy(captured->pieces, places.pieces, sizeof places.pieces);
    captured->n = (uint32_t)n;
    if (!pack_items(device, &places, n)) {
        give_pieces(device, captured);
        free(captured);
        for (size_t i = 0; i < n; i++) lb_cuda_skip(device, works[i]);
        return;
    }
    CUresult result = add_nodes(device, stream);
    if (result == CUDA_SUCCESS) result = add_copies(device, captured, works, stream);
    if (result == CUDA_SUCCESS) {
        note(device, captured, works);
        return;
    }
    give_pieces(device, captured);
    free(captured);
    if (lb_cuda_is_about_capture(result))
        for (size_t i = 0; i < n; i++) lb_cuda_skip(device, works[i]);
    else
        lb_cuda_ok(device, "cuLaunchKernel", result);
}

void lb_cuda_capture(lb_cuda *device, lb_device_work *const *works, size_t n, CUstream stream)
{
    lb_device_work *batch[LB_CUDA_BATCH];
    size_t in_batch = 0;
    uint64_t words = 0, units = 0;
    for (size_t i = 0; i < n && !lb_cuda_is_lost(device); i++) {
        lb_kernel_item item;
        if (!works[i]->measured || works[i]->bytes || lb_kernel_item_of(&item, &works[i]->item, NULL) != LB_OK) {
            lb_cuda_skip(device, works[i]);
            continue;
        }
        const bool full = in_batch == LB_CUDA_BATCH || words + lb_kernel_words(&item) > LB_KERNEL_WORDS ||
                          units + lb_kernel_units(&item) > INT32_MAX;
        if (in_batch && full) {
            capture_batch(device, batch, in_batch, stream);
            in_batch = words = units = 0;
        }
        words += lb_kernel_words(&item);
        units += lb_kernel_units(&item);
        device->items[in_batch] = item;
        batch[in_batch++] = works[i];
    }
    if (in_batch && !lb_cuda_is_lost(device)) capture_batch(device, batch, in_batch, stream);
}

/* ---- what runs of graphs have left ------------------------------------------------------------------------------- */

static bool fetch_turns(lb_cuda *device, void *to)
{
    return LB_CUDA_CALL(device, MemcpyDtoHAsync, to, device->rings[LB_CUDA_TURNS].device, device->turns_bytes,
                        device->own);
}

/* Whether a run that has ended, is not given yet, and is not being overwritten by the next one, left its results in the
 * set. */
static bool wants_set(const lb_cuda *device, const lb_cuda_captured *captured, uint64_t set)
{
    const uint64_t ended = runs_of(device, captured, device->turns_before), kept = device->options.replays;
    const uint64_t oldest = ended >= kept && ended - kept + 1 > captured->seen ? ended - kept + 1 : captured->seen;
    for (uint64_t run = oldest; run < ended; run++)
        if (run % kept == set) return true;
    return false;
}

static bool fetch_piece(lb_cuda *device, uint64_t set, uint64_t from, uint64_t to)
{
    const lb_cuda_ring *sets = &device->rings[LB_CUDA_REPLAYS];
    const uint64_t at = set * set_bytes(device) + from;
    return from == to ||
           LB_CUDA_CALL(device, MemcpyDtoHAsync, sets->host + at, sets->device + at, to - from, device->own);
}

/* Launches lie in a set mostly as they follow each other in the list. */
static bool fetch_set(lb_cuda *device, uint64_t set)
{
    uint64_t from = 0, to = 0;
    for (const lb_cuda_captured *captured = device->captured; captured; captured = captured->next) {
        const uint64_t at = captured->pieces[LB_CUDA_REPLAYS].at;
        const bool wanted = wants_set(device, captured, set);
        if (!wanted || at < to) {
            if (!fetch_piece(device, set, from, to)) return false;
            from = to = 0;
        }
        if (!wanted) continue;
        if (from == to) from = at;
        to = at + captured->n * sizeof(lb_kernel_result);
    }
    return fetch_piece(device, set, from, to);
}

static bool fetch(lb_cuda *device)
{
    if (!fetch_turns(device, device->turns_before) || !LB_CUDA_CALL(device, StreamSynchronize, device->own))
        return false;
    for (uint64_t set = 0; set < device->options.replays; set++)
        if (!fetch_set(device, set)) return false;
    return fetch_turns(device, device->rings[LB_CUDA_TURNS].host) &&
           LB_CUDA_CALL(device, StreamSynchronize, device->own);
}

typedef struct taker {
    void (*take)(void *context, const lb_cuda_replay *replay); /* NULL: only works that expect them */
    void *context;
} taker;

/* To the works that expect it. False: none does. */
static bool give_work(lb_cuda_captured *captured, const lb_cuda_replay *replay)
{
    bool any = false;
    for (lb_cuda_expected *cuda_expected = captured->expected; cuda_expected; cuda_expected = cuda_expected->next) {
        if (cuda_expected->value != replay->value || cuda_expected->run != replay->number || cuda_expected->there ||
            cuda_expected->unsure)
            continue;
        cuda_expected->work->item.out = replay->out;
        if (!(cuda_expected->work->item.what & LB_MEASURE_BLOB) &&
            !lb_layout_is_contiguous(&cuda_expected->work->item.tensor.layout))
            cuda_expected->work->item.out.blob = (lb_digest){0, 0};
        cuda_expected->there = any = true;
    }
    return any;
}

/* Works of runs before `run` have what they get: what did not come does not come any more. Bytes that are still on
 * their way keep theirs waiting. */
static void end_expected(lb_cuda *device, lb_cuda_captured *captured, uint64_t run)
{
    for (lb_cuda_expected **link = &captured->expected, *e; (e = *link);) {
        if ((e->run >= run && !e->unsure) || e->copy.state == LB_WORK_UNDER_WAY) {
            link = &e->next;
            continue;
        }
        e->work->state = e->there && !e->unsure ? LB_WORK_DONE : LB_WORK_SKIPPED;
        if (e->work->state == LB_WORK_SKIPPED) device->skipped++;
        e->work->left_out = e->work->bytes && e->copy.state != LB_WORK_DONE;
        *link = e->next;
        device->n_expected--;
        free(e);
    }
}

static void give_run(lb_cuda *device, lb_cuda_captured *captured, uint64_t run, const taker *to)
{
    const char *const set = device->rings[LB_CUDA_REPLAYS].host + run % device->options.replays * set_bytes(device);
    const uint64_t at = captured->pieces[LB_CUDA_REPLAYS].at;
    const lb_kernel_result *results = (const lb_kernel_result *)(const void *)(set + at);
    const uint64_t slot = at / sizeof(lb_kernel_result) + run * set_slots(device);
    for (uint32_t i = 0; i < captured->n; i++) {
        if (results[i].whole != 1 + slot + i) {
            device->skipped++;
            continue;
        }
        const lb_cuda_replay replay = {captured->first_value + i, run - captured->before,
                                       lb_kernel_measured(&results[i])};
        if (!give_work(captured, &replay) && to->take) to->take(to->context, &replay);
    }
}

/* What was fetched waits for every run that was heard of. Where there were more, or one of them failed to begin, it is
 * not known which run is whose: works that expect one get none. */
static void compare_runs(lb_cuda *device, lb_cuda_captured *captured, uint64_t ended)
{
    if (ended == captured->begun || captured->launching) return;
    if (ended > captured->begun) device->unheard += ended - captured->begun;
    captured->begun = ended;
    for (lb_cuda_expected *cuda_expected = captured->expected; cuda_expected; cuda_expected = cuda_expected->next)
        cuda_expected->unsure = true;
}

static void give_runs(lb_cuda *device, lb_cuda_captured *captured, const taker *to)
{
    uint64_t ended = runs_of(device, captured, device->turns_before);
    const uint64_t begun =
        runs_of(device, captured, device->rings[LB_CUDA_TURNS].host) + 1; /* the next may be under way */
    if (!to->take) compare_runs(device, captured, ended);
    if (!to->take && ended > captured->begun) ended = captured->begun;
    for (; captured->seen < ended; captured->seen++) {
        if (captured->seen + device->options.replays >= begun)
            give_run(device, captured, captured->seen, to);
        else
            device->skipped += captured->n;
    }
    end_expected(device, captured, captured->seen - captured->before);
}

/* Graphs that are gone, and have run as often as was heard of: their room is free. */
static void drop_forgotten(lb_cuda *device)
{
    device->sought = NULL;
    for (lb_cuda_captured **link = &device->captured, *c; (c = *link);) {
        const bool busy = runs_of(device, c, device->rings[LB_CUDA_TURNS].host) < c->begun || c->expected;
        if (!c->forgotten || busy) {
            link = &c->next;
            continue;
        }
        *link = c->next;
        give_pieces(device, c);
        free(c);
    }
    device->last_captured = &device->captured;
    while (*device->last_captured) device->last_captured = &(*device->last_captured)->next;
}

/* No room is left. The host waits, though in a capture: for graphs that are gone. */
static bool give_back(lb_cuda *device)
{
    bool any = false;
    for (const lb_cuda_captured *captured = device->captured; captured; captured = captured->next)
        any |= captured->forgotten;
    if (!any || !fetch_turns(device, device->rings[LB_CUDA_TURNS].host) ||
        !LB_CUDA_CALL(device, StreamSynchronize, device->own))
        return false;
    drop_forgotten(device);
    return true;
}

void lb_cuda_replays(lb_device *base, void (*take)(void *context, const lb_cuda_replay *replay), void *context)
{
    lb_cuda *device = (lb_cuda *)base;
    const taker to = {take, context};
    lb_cuda_visit visit;
    if (!device->captured || !lb_cuda_enter(device, &visit)) return;
    const bool there = fetch(device);
    lb_cuda_leave(device, &visit);
    for (lb_cuda_captured *captured = there ? device->captured : NULL; captured; captured = captured->next)
        give_runs(device, captured, &to);
    if (there) drop_forgotten(device);
}

void lb_cuda_order_after(lb_device *base, void *stream)
{
    lb_cuda *device = (lb_cuda *)base;
    lb_cuda_visit visit;
    if (!device->ready || base->ops->is_capturing(base, stream) || !lb_cuda_enter(device, &visit)) return;
    CUevent event = lb_cuda_take_event(device);
    if (event && LB_CUDA_CALL(device, EventRecord, event, stream) &&
        LB_CUDA_CALL(device, StreamWaitEvent, device->own, event, 0))
        lb_cuda_give_event(device, event); /* a wait keeps what it waits for */
    lb_cuda_leave(device, &visit);
}

/* ---- what runs are expected to leave ----------------------------------------------------------------------------- */

void lb_cuda_give_expected(lb_cuda *device)
{
    if (device->n_expected) lb_cuda_replays(&device->base, NULL, NULL);
    if (lb_cuda_is_lost(device)) lb_cuda_forget_expected(device, false);
}

void lb_cuda_forget_expected(lb_cuda *device, bool silent)
{
    for (lb_cuda_captured *captured = device->captured; captured; captured = captured->next) {
        while (captured->expected) { /* no flight is under way any more */
            lb_cuda_expected *cuda_expected = captured->expected;
            if (!silent) cuda_expected->work->state = LB_WORK_LOST;
            captured->expected = cuda_expected->next;
            free(cuda_expected);
        }
    }
    device->n_expected = 0;
}

static bool measures(const lb_cuda_captured *captured, uint64_t value)
{
    return captured && value >= captured->first_value && value - captured->first_value < captured->n;
}

/* Works of a run come in the order of its capture, mostly. */
static lb_cuda_captured *find(lb_cuda *device, uint64_t value)
{
    lb_cuda_captured *captured = device->sought;
    while (captured && !measures(captured, value)) captured = captured->next;
    for (captured = captured ? captured : device->captured; captured && !measures(captured, value);
         captured = captured->next) {
    }
    return device->sought = captured;
}

static void expect(lb_cuda *device, lb_device_work *work, bool may_wait)
{
    lb_cuda_captured *captured = work->slot ? find(device, work->slot) : NULL;
    /* The next run may be the one that overwrites the oldest. */
    if (captured && may_wait && captured->expected && captured->begun - captured->seen + 1 >= device->options.replays)
        device->base.ops->collect(&device->base, NULL, true);
    lb_cuda_expected *awaited = captured && !lb_cuda_is_lost(device) ? calloc(1, sizeof *awaited) : NULL;
    if (!awaited) {
        lb_cuda_skip(device, work);
        return;
    }
    *awaited = (lb_cuda_expected){.next = captured->expected,
                                  .work = work,
                                  .value = work->slot,
                                  .run = captured->begun - captured->before,
                                  .may_wait = may_wait};
    captured->expected = awaited;
    device->n_expected++;
    work->state = LB_WORK_UNDER_WAY;
}

void lb_cuda_expect(lb_device *base, lb_device_work *const *works, size_t n, bool may_wait)
{
    for (size_t i = 0; i < n; i++) expect((lb_cuda *)base, works[i], may_wait);
}

/* The bytes that this run sets aside are read there, behind it and before the next one. */
static void read_aside(lb_cuda *device, lb_cuda_captured *captured, CUstream stream)
{
    const uint64_t run = captured->begun - captured->before;
    for (lb_cuda_expected *cuda_expected = captured->expected; cuda_expected; cuda_expected = cuda_expected->next) {
        const lb_cuda_piece *aside = &captured->aside[cuda_expected->value - captured->first_value];
        if (cuda_expected->run != run || !cuda_expected->work->bytes ||
            (!aside->taken && cuda_expected->work->item.dense_bytes))
            continue;
        cuda_expected->copy = (lb_device_work){.bytes = cuda_expected->work->bytes, .item = cuda_expected->work->item};
        cuda_expected->copy.item.dense = (const void *)(uintptr_t)(device->rings[LB_CUDA_ASIDE].device + aside->at);
        lb_device_work *work = &cuda_expected->copy;
        lb_cuda_fly(device, &work, 1, stream, lb_cuda_stream_id(device, stream), cuda_expected->may_wait);
    }
}

void lb_cuda_runs(lb_device *base, uint64_t first, uint64_t last)
{
    lb_cuda *device = (lb_cuda *)base;
    for (lb_cuda_captured *captured = device->captured; captured; captured = captured->next)
        captured->launching |= captured->first_value >= first && captured->first_value <= last;
}

void lb_cuda_ran(lb_device *base, uint64_t first, uint64_t last, void *stream)
{
    lb_cuda *device = (lb_cuda *)base;
    lb_cuda_visit visit;
    bool any = false;
    const bool can_read = device->n_expected && !base->ops->is_capturing(base, stream) && lb_cuda_enter(device, &visit);
    for (lb_cuda_captured *captured = device->captured; captured; captured = captured->next) {
        if (captured->first_value < first || captured->first_value > last) continue;
        captured->launching = false;
        if (can_read && !lb_cuda_is_lost(device)) read_aside(device, captured, stream);
        captured->begun++;
        any = true;
    }
    if (can_read) lb_cuda_leave(device, &visit);
    if (any) lb_cuda_order_after(base, stream);
}

void lb_cuda_run_failed(lb_device *base, uint64_t first, uint64_t last)
{
    lb_cuda *device = (lb_cuda *)base;
    for (lb_cuda_captured *captured = device->captured; captured; captured = captured->next) {
        if (captured->first_value < first || captured->first_value > last) continue;
        captured->launching = false;
        for (lb_cuda_expected *cuda_expected = captured->expected; cuda_expected; cuda_expected = cuda_expected->next)
            cuda_expected->unsure |= cuda_expected->run == captured->begun - captured->before;
    }
}

void lb_cuda_forget(lb_device *base, uint64_t first, uint64_t last)
{
    lb_cuda *device = (lb_cuda *)base;
    for (lb_cuda_captured *captured = device->captured; captured; captured = captured->next)
        captured->forgotten |= captured->first_value >= first && captured->first_value <= last;
}

uint64_t lb_cuda_unheard(lb_device *base)
{
    lb_cuda *device = (lb_cuda *)base;
    lb_cuda_replays(base, NULL, NULL);
    return device->unheard;
}
