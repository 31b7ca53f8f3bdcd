/* The contents of a value: digests and statistics, at once or beside the run, and its bytes where they are kept.
 *
 * Where the host promised to hold storages (lb_recorder_async), large results are measured by another thread while the
 * host goes on. Their windows carry a promise until then; whatever is about to change, free or compare such bytes
 * settles the storage first. Nothing that is recorded depends on how long that took. */
#include "recorder/recorder.h"
#include "recorder/value_intake.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

static lb_status no_memory(lb_err *err)
{
    return lb_fail(err, LB_ERR_NOMEM, "out of memory in the recorder");
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static lb_tensor tensor_of(const lb_host_tensor *seen)
{
    return (lb_tensor){(void *)(uintptr_t)seen->data, seen->dtype, seen->layout};
}

static void count_nonfinite(lb_recorder *recorder, const lb_value *value, const lb_statistics *statistics)
{
    const uint32_t never = LB_VALUE_PARAMETER | LB_VALUE_GRADIENT | LB_VALUE_STATE;
    if (value->flags & never && lb_statistics_nonfinite(statistics) > 0) recorder->n_nonfinite++;
}

void lb_value_bytes_arrived(lb_recorder *recorder, lb_tracked_window *window, uint32_t statistics,
                            lb_measured *measured)
{
    free(window->leaves);
    window->leaves = measured->leaves;
    window->n_leaves = measured->n_leaves;
    window->logical = measured->logical;
    window->blob = measured->blob;
    window->statistics = statistics;
    lb_value *value = &recorder->program->values[window->row];
    value->statistics = window->statistics;
    value->logical = window->logical;
    if (!lb_digest_is_none(window->blob) || !(value->flags & LB_VALUE_KEPT)) value->blob = window->blob;
    count_nonfinite(recorder, value, &measured->statistics);
}

lb_status lb_value_bytes_note(lb_recorder *recorder, lb_tracked_window *window, lb_measured *measured, lb_err *err)
{
    const uint32_t statistics = lb_program_add_statistics(recorder->program, &measured->statistics);
    if (statistics == LB_NONE) {
        free(measured->leaves);
        return no_memory(err);
    }
    lb_value_bytes_arrived(recorder, window, statistics, measured);
    return LB_OK;
}

lb_measuring lb_value_bytes_measuring(const lb_tracked *storage, const lb_host_tensor *seen, int64_t first,
                                      int64_t last, unsigned what)
{
    return (lb_measuring){
        .tensor = tensor_of(seen), .dense = storage->base + first, .dense_bytes = (size_t)(last - first), .what = what};
}

lb_status lb_value_bytes_measure(lb_recorder *recorder, const lb_tracked *storage, lb_tracked_window *window,
                                 const lb_host_tensor *seen, bool blob, lb_err *err)
{
    lb_measuring item = lb_value_bytes_measuring(storage, seen, window->first, window->last,
                                                 LB_MEASURE_STATISTICS | (blob ? LB_MEASURE_BLOB : 0));
    bool there;
    LB_TRY(lb_device_bytes_take(recorder, storage, &item, blob, &there, err));
    return there ? lb_value_bytes_note(recorder, window, &item.out, err) : LB_OK;
}

/* Views of measured bytes whose elements lie in the same order cost no new pass. */
bool lb_value_bytes_derive(lb_recorder *recorder, lb_tracked_window *view, const lb_tracked_window *measured)
{
    if (lb_digest_is_none(measured->blob)) return false;
    lb_value *value = &recorder->program->values[view->row];
    value->blob = view->blob = measured->blob;
    view->kept = measured->kept;
    if (measured->kept) value->flags |= LB_VALUE_KEPT;
    if (!measured->leaves || measured->dtype != view->dtype || !lb_layout_is_contiguous(&value->layout)) return false;
    value->logical = view->logical = lb_measure_logical(
        measured->leaves, measured->n_leaves, (uint64_t)(view->last - view->first), view->dtype, &value->layout);
    value->statistics = view->statistics = measured->statistics;
    return true;
}

/* ---- keeping ----------------------------------------------------------------------------------------------------- */

static bool is_stored(const lb_recorder *recorder, lb_digest blob)
{
    return recorder->archive.queue ? lb_write_queue_has(recorder->archive.queue, blob)
           : recorder->ring.flight ? lb_flight_ring_has_blob(recorder->ring.flight, blob)
                                   : lb_writer_has_blob(recorder->archive.writer, blob);
}

static lb_status store(lb_recorder *recorder, lb_tracked_window *window, const void *bytes, uint64_t size, bool *stored,
                       lb_err *err)
{
    lb_err refused = LB_ERR_INIT;
    /* The last eighth of a budget is for programs and tables: a step without bytes beats none. */
    const uint64_t room = recorder->archive.budget_bytes - recorder->archive.budget_bytes / 8;
    lb_status status;
    if (!recorder->ring.flight && recorder->archive.budget_bytes &&
        lb_writer_bytes(recorder->archive.writer) + size > room)
        status = is_stored(recorder, window->blob) ? LB_OK : LB_ERR_LIMIT;
    else
        status = recorder->archive.queue
                     ? lb_write_queue_blob(recorder->archive.queue, window->blob, window->dtype, bytes, size, &refused)
                 : recorder->ring.flight
                     ? lb_flight_ring_blob(recorder->ring.flight, window->blob, window->dtype, bytes, size, &refused)
                     : lb_writer_blob(recorder->archive.writer, window->blob, window->dtype, bytes, size, &refused);
    *stored = status == LB_OK;
    if (status == LB_OK) return LB_OK;
    if (status == LB_ERR_LIMIT && !recorder->ring.flight) {
        lb_keep_refused(&recorder->keep, size);
        lb_recorder_note(recorder, "budget", "bytes were left out: the budget is used up");
        return LB_OK;
    }
    return lb_fail(err, status, "%s", refused.message);
}

/* Where the step no longer fits at its level: what was above the level that is left is gone, and no value says that it
 * was kept. */
static lb_status outgrow(lb_recorder *recorder)
{
    lb_keep *keep = &recorder->keep;
    lb_flight_stage *stage = recorder->stage;
    /* Bytes that turned out to be a source's are the sources' in this count. */
    if (!lb_keep_outgrown(
            keep, lb_flight_stage_bytes(stage, LB_LEVEL_SOURCES) + lb_flight_stage_bytes(stage, LB_LEVEL_LAYERS),
            lb_flight_stage_bytes(stage, LB_LEVEL_OPS)))
        return LB_OK;
    lb_flight_stage_drop(stage, keep->level);
    lb_program *program = recorder->program;
    for (uint32_t v = 0; v < program->n_values; v++) {
        lb_value *value = &program->values[v];
        if (value->flags & LB_VALUE_KEPT && !is_stored(recorder, value->blob) &&
            !lb_flight_stage_has(stage, value->blob))
            value->flags &= ~(uint32_t)LB_VALUE_KEPT;
    }
    for (uint32_t i = 0; i < recorder->storages.n; i++) {
        const lb_tracked *tracked = recorder->storages.list[i];
        for (uint32_t w = 0; w < tracked->n_windows && tracked->program == recorder->serial; w++)
            if (tracked->windows[w].row != LB_NONE && tracked->windows[w].kept && !tracked->windows[w].coming)
                tracked->windows[w].kept = program->values[tracked->windows[w].row].flags & LB_VALUE_KEPT;
    }
    return LB_OK;
}

static lb_status stage(lb_recorder *recorder, lb_tracked_window *window, const void *bytes, uint64_t size,
                       lb_keep_purpose purpose, lb_err *err)
{
    bool fresh;
    const lb_blob_bytes blob = {window->blob, window->dtype, bytes, size};
    LB_TRY(lb_flight_stage_blob(recorder->stage, &blob, lb_keep_level_of(purpose), &fresh, err));
    window->kept = true;
    recorder->program->values[window->row].flags |= LB_VALUE_KEPT;
    if (fresh && purpose == LB_FOR_LAYER && recorder->keep.level == LB_LEVEL_LAYERS)
        lb_keep_of_layers(&recorder->keep, size);
    return fresh ? outgrow(recorder) : LB_OK;
}

lb_status lb_value_bytes_keep(lb_recorder *recorder, const lb_tracked *storage, lb_tracked_window *window,
                              lb_keep_purpose purpose, lb_err *err)
{
    if (window->last <= window->first) return LB_OK;
    if (window->kept) {
        if (recorder->stage) lb_flight_stage_lower(recorder->stage, window->blob, lb_keep_level_of(purpose));
        return LB_OK;
    }
    const uint8_t *bytes = lb_device_bytes_of(recorder, storage, (uint64_t)window->first, (uint64_t)window->last);
    return bytes ? lb_value_bytes_keep_bytes(recorder, window, bytes, purpose, err) : LB_OK; /* its device is lost */
}

lb_status lb_value_bytes_keep_bytes(lb_recorder *recorder, lb_tracked_window *window, const uint8_t *bytes,
                                    lb_keep_purpose purpose, lb_err *err)
{
    const uint64_t size = (uint64_t)(window->last - window->first);
    if (lb_digest_is_none(window->blob)) {
        window->blob = lb_digest_bytes(bytes, size);
        recorder->program->values[window->row].blob = window->blob;
    }
    const bool known = is_stored(recorder, window->blob);
    if (recorder->stage && !known && (purpose != LB_FOR_SOURCE || lb_flight_stage_has(recorder->stage, window->blob)))
        return stage(recorder, window, bytes, size, purpose, err);
    LB_TRY(store(recorder, window, bytes, size, &window->kept, err));
    if (!window->kept) return LB_OK;
    recorder->program->values[window->row].flags |= LB_VALUE_KEPT;
    if (known) return LB_OK;
    lb_keep_spent(&recorder->keep, purpose, size);
    return recorder->stage ? outgrow(recorder) : LB_OK;
}

bool lb_value_bytes_covered(lb_recorder *recorder, const lb_tracked *storage, const lb_tracked_window *window,
                            lb_keep_purpose purpose)
{
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_tracked_window *other = &storage->windows[w];
        if (!other->kept || other->row == LB_NONE || other->first > window->first || other->last < window->last)
            continue;
        if (other->coming)
            lb_in_flight_lower(other->coming, purpose);
        else if (recorder->stage)
            lb_flight_stage_lower(recorder->stage, other->blob, lb_keep_level_of(purpose));
        return true;
    }
    return false;
}

bool lb_value_bytes_left(const lb_tracked *storage, const lb_tracked_window *window)
{
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_tracked_window *other = &storage->windows[w];
        if ((other->kept || other->left) && other->row != LB_NONE && other->first <= window->first &&
            other->last >= window->last)
            return true;
    }
    return false;
}

static lb_status put_blob(void *context, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size, lb_err *err)
{
    return lb_writer_blob(context, digest, dtype, bytes, size, err);
}

/* What they took is what the next step is expected to take. */
lb_status lb_value_bytes_unstage(lb_recorder *recorder, lb_err *err)
{
    lb_flight_stage *stage = recorder->stage;
    if (!stage) return LB_OK;
    const uint64_t sources = lb_flight_stage_bytes(stage, LB_LEVEL_SOURCES),
                   layers = lb_flight_stage_bytes(stage, LB_LEVEL_LAYERS),
                   ops = lb_flight_stage_bytes(stage, LB_LEVEL_OPS);
    lb_keep_spent(&recorder->keep, LB_FOR_SOURCE, sources + layers + ops);
    lb_keep_measured(&recorder->keep, layers, ops);
    recorder->stage = NULL;
    if (recorder->archive.queue) return lb_write_queue_stage(recorder->archive.queue, stage, err);
    const lb_status status = lb_flight_stage_each(stage, put_blob, recorder->archive.writer, err);
    lb_flight_stage_free(stage);
    return status;
}

/* ---- beside the run ---------------------------------------------------------------------------------------------- */

#define TOO_SMALL (64u << 10)     /* bytes that are read sooner than another thread is told of them */
#define MOST_BEHIND (64ull << 20) /* bytes that may wait: the host keeps them alive */

struct lb_promise {
    lb_work work;
    lb_promise *next; /* of the same storage */
    lb_tracked *storage;
    uint64_t hash;       /* of the window */
    uint32_t statistics; /* row that is free for it */
};

static bool may_wait(const lb_recorder *recorder, const lb_unmeasured *late)
{
    return recorder->promises.async && !late->wanted && !late->filled && !late->storage->escaped &&
           !late->storage->device &&
           lb_dtype_bytes(late->seen.dtype, (size_t)lb_layout_numel(&late->seen.layout)) >= TOO_SMALL;
}

bool lb_value_bytes_promised(const lb_tracked_window *window, const lb_host_tensor *seen)
{
    const lb_promise *promise = window->promise;
    const lb_tensor *main = &promise->work.item.tensor;
    return window->hash == promise->hash || (main->dtype == seen->dtype && lb_layout_is_contiguous(&main->layout) &&
                                             lb_layout_is_contiguous(&seen->layout));
}

static lb_status note_unheld(lb_recorder *recorder, int64_t key, lb_err *err)
{
    if (recorder->promises.n_unheld && recorder->promises.unheld[recorder->promises.n_unheld - 1] == key) return LB_OK;
    int64_t *keys = lb_array_fit(recorder->promises.unheld, &recorder->promises.cap_unheld,
                                 recorder->promises.n_unheld + 1, sizeof *keys);
    if (!keys) return no_memory(err);
    recorder->promises.unheld = keys;
    recorder->promises.unheld[recorder->promises.n_unheld++] = key;
    return LB_OK;
}

static lb_status promise(lb_recorder *recorder, const lb_unmeasured *late, lb_tracked_window *window, lb_err *err)
{
    LB_TRY(note_unheld(recorder, late->storage->key, err));
    lb_promise *promised = calloc(1, sizeof *promised);
    if (!promised) return no_memory(err);
    promised->work.item =
        lb_value_bytes_measuring(late->storage, &late->seen, window->first, window->last, LB_MEASURE_STATISTICS);
    promised->storage = late->storage;
    promised->hash = late->hash;
    promised->statistics = late->statistics;
    if (!lb_measure_queue_add(recorder->promises.queue, &promised->work)) {
        free(promised);
        return no_memory(err);
    }
    promised->next = late->storage->promises;
    late->storage->promises = promised;
    window->promise = promised;
    window->verified = late->verified;
    recorder->promises.n_made++;
    return LB_OK;
}

/* What was measured gets to its window, and to the views of the same bytes that were met meanwhile. */
static void fulfil(lb_recorder *recorder, lb_promise *promise)
{
    lb_tracked *storage = promise->storage;
    lb_promise **link = &storage->promises;
    while (*link != promise) link = &(*link)->next;
    *link = promise->next;
    promise->storage = NULL;
    lb_tracked_window *main = lb_tracked_find_window(storage, promise->hash);
    recorder->program->statistics[promise->statistics] = promise->work.item.out.statistics;
    lb_value_bytes_arrived(recorder, main, promise->statistics, &promise->work.item.out);
    main->promise = NULL;
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        lb_tracked_window *view = &storage->windows[w];
        if (view->promise != promise) continue;
        view->promise = NULL;
        lb_value_bytes_derive(recorder, view, main);
    }
}

/* Those that are done leave the queue, and as many as make it that short. */
static void advance(lb_recorder *recorder, uint64_t most_bytes)
{
    lb_measure_queue *queue = recorder->promises.queue;
    for (lb_work *oldest; queue && (oldest = lb_measure_queue_oldest(queue));) {
        if (!lb_measure_queue_is_done(oldest)) {
            if (lb_measure_queue_bytes(queue) <= most_bytes) return;
            lb_measure_queue_finish(queue, oldest);
        }
        lb_promise *promise = (lb_promise *)oldest;
        if (promise->storage) fulfil(recorder, promise);
        lb_measure_queue_remove_oldest(queue);
        free(promise);
        recorder->promises.n_fulfilled++;
    }
}

void lb_value_bytes_settle(lb_recorder *recorder, lb_tracked *storage)
{
    lb_in_flight_detach(storage);
    /* The newest comes first in the list, and the helper begins with the oldest. */
    while (storage->promises) {
        lb_promise *promise = storage->promises;
        lb_measure_queue_finish(recorder->promises.queue, &promise->work);
        fulfil(recorder, promise);
    }
}

void lb_value_bytes_settle_all(lb_recorder *recorder)
{
    advance(recorder, 0);
}

void lb_value_bytes_drop(lb_recorder *recorder)
{
    lb_work *work = recorder->promises.queue ? lb_measure_queue_oldest(recorder->promises.queue) : NULL;
    if (!lb_measure_queue_free(recorder->promises.queue)) work = NULL;
    recorder->promises.queue = NULL;
    recorder->promises.n_unheld = 0;
    recorder->promises.async = false;
    recorder->promises.n_fulfilled = recorder->promises.n_made;
    while (work) {
        lb_promise *promise = (lb_promise *)work;
        work = work->next;
        if (promise->storage) free(promise->work.item.out.leaves);
        free(promise);
    }
}

/* ---- results of an op -------------------------------------------------------------------------------------------- */

/* The value that was added last is of the host and may arrive later. */
static lb_status note_late(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen, lb_err *err)
{
    const lb_host_tensor *from = at->late_from;
    lb_tracked *storage;
    LB_TRY(lb_value_intake_storage(recorder, from, &storage, err));
    lb_unmeasured *late = &recorder->unmeasured.list[recorder->unmeasured.n - 1];
    late->late_from = storage;
    const bool same =
        at->late_copy && from->dtype == seen->dtype && from->lazy == seen->lazy &&
        lb_layout_same_shape(&from->layout, &seen->layout) &&
        !memcmp(from->layout.stride, seen->layout.stride, (size_t)seen->layout.ndim * sizeof seen->layout.stride[0]);
    if (same && lb_device_bytes_readable(storage, from)) late->twin = *from;
    return LB_OK;
}

/* All results of an op are measured together, by several threads where that pays: see lb_value_bytes_measure_late. */
lb_status lb_value_bytes_later(lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage,
                               const lb_tracked_window *window, const lb_host_tensor *seen, lb_err *err)
{
    const lb_value *value = &recorder->program->values[window->row];
    if (!lb_device_bytes_readable(storage, seen) || value->flags & LB_VALUE_UNDEFINED) return LB_OK;
    /* Like a source, a choice cannot be had from a replay that rounds differently: a tie may fall to the other side. */
    const bool choice = at->reads_floats && !lb_dtype_is_float(value->dtype);
    const bool source = value->flags & LB_VALUE_SOURCE || choice;
    const lb_keep_purpose purpose = source ? LB_FOR_SOURCE : at->keep_for;
    bool wanted = at->keep || (source && lb_keep_wants(&recorder->keep, LB_FOR_SOURCE, at->layer, at->name));
    if (wanted && lb_graph_is_ahead(&recorder->run, storage)) {
        const lb_taped_slot *slot = lb_graph_slot(&recorder->run, storage, window->hash);
        wanted = slot && slot->each_run;
        if (!wanted && window->last > window->first && !lb_value_bytes_covered(recorder, storage, window, purpose))
            lb_graph_left(recorder, purpose);
    }
    if (!wanted && !source) lb_keep_left(&recorder->keep, LB_FOR_RESULT, (uint64_t)(window->last - window->first));
    lb_unmeasured *late =
        lb_array_fit(recorder->unmeasured.list, &recorder->unmeasured.cap, recorder->unmeasured.n + 1, sizeof *late);
    if (!late) return no_memory(err);
    recorder->unmeasured.list = late;
    recorder->unmeasured.list[recorder->unmeasured.n++] = (lb_unmeasured){.storage = storage,
                                                                          .hash = window->hash,
                                                                          .seen = *seen,
                                                                          .purpose = purpose,
                                                                          .wanted = wanted,
                                                                          .filled = at->filled,
                                                                          .verified = at->phase == LB_PHASE_OPTIMIZER};
    return at->late_from && !storage->device ? note_late(recorder, at, seen, err) : LB_OK;
}

static lb_status measure_now(lb_recorder *recorder, const lb_unmeasured *late, uint32_t n, lb_err *err)
{
    lb_measuring few[4], *items = n <= 4 ? few : malloc(n * sizeof *items);
    if (!items) return no_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        const lb_tracked_window *window = lb_tracked_find_window(late[i].storage, late[i].hash);
        items[i] = lb_value_bytes_measuring(late[i].storage, &late[i].seen, window->first, window->last,
                                            LB_MEASURE_STATISTICS | (late[i].wanted ? LB_MEASURE_BLOB : 0));
    }
    lb_status status = lb_measure(items, n) ? LB_OK : no_memory(err);
    bool measured = status == LB_OK;
    for (uint32_t i = 0; i < n && measured; i++) {
        lb_tracked_window *window = lb_tracked_find_window(late[i].storage, late[i].hash);
        if (status != LB_OK) {
            free(items[i].out.leaves);
            continue;
        }
        recorder->program->statistics[late[i].statistics] = items[i].out.statistics;
        lb_value_bytes_arrived(recorder, window, late[i].statistics, &items[i].out);
        window->verified = late[i].verified;
        if (late[i].wanted) status = lb_value_bytes_keep(recorder, late[i].storage, window, late[i].purpose, err);
    }
    if (items != few) free(items);
    return status;
}

/* Of a device: one after the other, so that what is fetched to be measured is there to be kept. */
static lb_status take_late(lb_recorder *recorder, const lb_unmeasured *late, lb_err *err)
{
    lb_tracked_window *window = lb_tracked_find_window(late->storage, late->hash);
    lb_measuring item = lb_value_bytes_measuring(late->storage, &late->seen, window->first, window->last,
                                                 LB_MEASURE_STATISTICS | (late->wanted ? LB_MEASURE_BLOB : 0));
    bool there;
    LB_TRY(lb_device_bytes_take(recorder, late->storage, &item, late->wanted, &there, err));
    if (!there) return LB_OK;
    recorder->program->statistics[late->statistics] = item.out.statistics;
    lb_value_bytes_arrived(recorder, window, late->statistics, &item.out);
    window->verified = late->verified;
    return late->wanted ? lb_value_bytes_keep(recorder, late->storage, window, late->purpose, err) : LB_OK;
}

/* Rows have the same order however long it takes to fill them. */
static lb_status add_rows(lb_recorder *recorder, lb_err *err)
{
    const lb_statistics none = {0};
    for (uint32_t i = 0; i < recorder->unmeasured.n; i++) {
        recorder->unmeasured.list[i].statistics = lb_program_add_statistics(recorder->program, &none);
        if (recorder->unmeasured.list[i].statistics == LB_NONE) return no_memory(err);
    }
    return LB_OK;
}

/* The values of devices that go on meanwhile set out together; the others of `late` move down, and *n is how many they
 * are. */
static lb_status submit_coming(lb_recorder *recorder, uint32_t *n, lb_err *err)
{
    lb_unmeasured few[8], *coming = recorder->unmeasured.n <= 8 ? few : malloc(recorder->unmeasured.n * sizeof *coming);
    if (!coming) return no_memory(err);
    uint32_t n_coming = 0;
    *n = 0;
    for (uint32_t i = 0; i < recorder->unmeasured.n; i++) {
        const lb_unmeasured late = recorder->unmeasured.list[i];
        if (lb_in_flight_is_possible(recorder, &late))
            coming[n_coming++] = late;
        else
            recorder->unmeasured.list[(*n)++] = late;
    }
    const lb_status status = n_coming ? lb_in_flight_submit(recorder, coming, n_coming, err) : LB_OK;
    if (coming != few) free(coming);
    return status;
}

/* The host waits for what a copy brings to it. False where the device does not say that it has come: noted. */
static bool has_arrived(lb_recorder *recorder, const lb_unmeasured *late)
{
    lb_device_bytes_arrive(recorder, late->storage);
    if (!late->late_from) return true;
    if (!lb_graph_is_running(&recorder->run) && lb_device_bytes_wait(recorder, late->late_from)) return true;
    lb_device_bytes_missing(recorder, late->late_from->device, LB_WORK_SKIPPED);
    if (late->wanted) lb_graph_left(recorder, late->purpose);
    return false;
}

lb_status lb_value_bytes_measure_late(lb_recorder *recorder, lb_err *err)
{
    if (!recorder->unmeasured.n) return LB_OK;
    uint32_t n = recorder->unmeasured.n, now = 0; /* that cannot wait */
    lb_status status = add_rows(recorder, err);
    if (status == LB_OK && recorder->devices.n) status = submit_coming(recorder, &n, err);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        lb_unmeasured *late = &recorder->unmeasured.list[i];
        if (!late->storage->device && !has_arrived(recorder, late)) continue;
        if (may_wait(recorder, late))
            status = promise(recorder, late, lb_tracked_find_window(late->storage, late->hash), err);
        else if (late->storage->device)
            status = take_late(recorder, late, err);
        else
            recorder->unmeasured.list[now++] = *late;
    }
    recorder->unmeasured.n = 0;
    if (status == LB_OK && now) status = measure_now(recorder, recorder->unmeasured.list, now, err);
    advance(recorder, MOST_BEHIND);
    if (status == LB_OK) status = lb_in_flight_advance(recorder, false, err);
    lb_device_bytes_trim(&recorder->devices);
    return status;
}
