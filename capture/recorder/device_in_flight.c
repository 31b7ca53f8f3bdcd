/* Results on a device that goes on meanwhile: their digests, statistics and bytes are on their way until they are
 * needed, at the latest when the step ends.
 *
 *     op ends ─▶ submit ─▶ coming ─┬─▶ arrived: the row of its value, the windows of its bytes, the archive
 *                                  └─▶ its storage is written or freed first: detached, the rows alone are waited for
 *
 * The device reads in the order of its stream, so that nothing here waits before bytes change. */
#include "recorder/recorder.h"

#include "base/array.h"
#include <stdlib.h>

#define MOST_COMING (256ull << 20) /* bytes of host memory that wait to be filled */

struct lb_in_flight {
    lb_device_work work;
    lb_in_flight *next;   /* of the recorder, oldest first */
    lb_in_flight *beside; /* of the same storage */
    lb_device *device;
    void *stream;        /* where it is read */
    lb_tracked *storage; /* NULL: detached */
    uint64_t hash;       /* of the window, */
    int64_t first;       /* and where it begins */
    uint32_t row, statistics;
    lb_dtype dtype;
    lb_keep_purpose purpose;  /* of its bytes */
    uint32_t *views, n_views; /* once detached: rows of other values of the same bytes */
};

/* Where its bytes are read: what a copy brings to the host later lies on the device, too, and is measured there, behind
 * the copy. */
static lb_tracked *where(const lb_unmeasured *late)
{
    return late->twin.dtype ? late->late_from : late->storage;
}

bool lb_in_flight_is_possible(const lb_recorder *recorder, const lb_unmeasured *late)
{
    const lb_tracked *lies = where(late);
    if (!lies->device || late->storage->escaped) return false;
    if (lb_graph_slot(&recorder->run, late->storage, late->hash)) return true;
    return lies->device->ops->asynchronous && !lies->ahead && !(late->late_from && lb_graph_is_running(&recorder->run));
}

static void coming_free(lb_in_flight_list *list, lb_in_flight *in_flight)
{
    if (in_flight->work.bytes) list->bytes -= in_flight->work.item.dense_bytes;
    free(in_flight->work.bytes);
    free(in_flight->views);
    free(in_flight);
}

/* ---- setting out ------------------------------------------------------------------------------------------------- */

static lb_in_flight *add(lb_in_flight_list *list, lb_tracked *storage, const lb_tracked *lies, const lb_measuring *item,
                         bool bytes)
{
    lb_in_flight *in_flight = calloc(1, sizeof *in_flight);
    if (!in_flight) return NULL;
    in_flight->work.item = *item;
    in_flight->work.storage = lies->key;
    in_flight->work.first = (uint64_t)((const uint8_t *)item->dense - lies->base);
    if (bytes && !(in_flight->work.bytes = malloc(item->dense_bytes ? item->dense_bytes : 1))) {
        free(in_flight);
        return NULL;
    }
    if (bytes) list->bytes += item->dense_bytes;
    in_flight->device = lies->device;
    in_flight->stream = lies->stream;
    in_flight->storage = storage;
    in_flight->beside = storage->coming;
    storage->coming = in_flight;
    *list->end = in_flight;
    list->end = &in_flight->next;
    return in_flight;
}

static lb_in_flight *add_late(lb_recorder *recorder, const lb_unmeasured *late)
{
    lb_tracked_window *window = lb_tracked_find_window(late->storage, late->hash);
    const lb_host_tensor *seen = late->twin.dtype ? &late->twin : &late->seen;
    const int64_t moved = (seen->layout.offset - late->seen.layout.offset) * (int64_t)(lb_dtype_bits(seen->dtype) / 8);
    const lb_measuring item = lb_value_bytes_measuring(where(late), seen, window->first + moved, window->last + moved,
                                                       LB_MEASURE_STATISTICS | (late->wanted ? LB_MEASURE_BLOB : 0));
    lb_in_flight *in_flight =
        add(&recorder->in_flight, late->storage, where(late), &item, late->wanted && window->last > window->first);
    if (!in_flight) return NULL;
    if (late->late_from) late->storage->late = ++recorder->in_flight.n_late;
    in_flight->first = window->first;
    in_flight->work.measured = true;
    const lb_taped_slot *slot = lb_graph_slot(&recorder->run, late->storage, late->hash);
    in_flight->work.slot = slot ? slot->slot : 0;
    in_flight->hash = late->hash;
    in_flight->row = window->row;
    in_flight->dtype = window->dtype;
    in_flight->statistics = late->statistics;
    in_flight->purpose = late->purpose;
    window->coming = in_flight;
    window->kept = in_flight->work.bytes != NULL;
    window->verified = late->verified;
    return in_flight;
}

/* Works of values that a graph is about to write have the name of the node that measures them. */
static void submit(lb_recorder *recorder, lb_device_work *const *works, size_t n, lb_device *device, void *stream)
{
    const bool may_wait = recorder->keep.level == LB_LEVEL_OPS;
    if (n && lb_graph_is_running(&recorder->run))
        device->ops->expect(device, works, n, may_wait);
    else if (n)
        device->ops->submit(device, works, n, stream, may_wait);
}

lb_status lb_in_flight_submit(lb_recorder *recorder, const lb_unmeasured *late, uint32_t n, lb_err *err)
{
    lb_device_work *few[16], **works = n <= 16 ? few : malloc(n * sizeof *works);
    if (!works) return lb_recorder_no_memory(err);
    lb_status status = LB_OK;
    size_t first = 0, end = 0;
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        const lb_tracked *tracked = where(&late[i]), *before = i ? where(&late[i - 1]) : tracked;
        if (tracked->device != before->device || tracked->stream != before->stream) {
            submit(recorder, works + first, end - first, before->device, before->stream);
            first = end;
        }
        lb_in_flight *in_flight = add_late(recorder, &late[i]);
        if (in_flight)
            works[end++] = &in_flight->work;
        else
            status = lb_recorder_no_memory(err);
    }
    if (end > first)
        submit(recorder, works + first, end - first, where(&late[n - 1])->device, where(&late[n - 1])->stream);
    if (works != few) free(works);
    return status;
}

/* ---- arriving ---------------------------------------------------------------------------------------------------- */

/* Bytes that came, as those of the value's window; where they are kept the row says so. */
static lb_status keep(lb_recorder *recorder, lb_in_flight *in_flight, bool *kept, lb_err *err)
{
    const lb_value *value = &recorder->program->values[in_flight->row];
    lb_tracked_window window = {.row = in_flight->row,
                                .dtype = in_flight->dtype,
                                .blob = value->blob,
                                .first = in_flight->first,
                                .last = in_flight->first + (int64_t)in_flight->work.item.dense_bytes};
    LB_TRY(lb_value_bytes_keep_bytes(recorder, &window, in_flight->work.bytes, in_flight->purpose, err));
    *kept = window.kept;
    return LB_OK;
}

/* What a value is whose storage has gone on: as lb_value_bytes_derive has it. */
static void derive_row(lb_recorder *recorder, const lb_in_flight *in_flight, uint32_t row, bool kept)
{
    const lb_value *main = &recorder->program->values[in_flight->row];
    const lb_measured *out = &in_flight->work.item.out;
    lb_tracked_window measured = {.row = in_flight->row,
                                  .first = in_flight->first,
                                  .last = in_flight->first + (int64_t)in_flight->work.item.dense_bytes,
                                  .dtype = in_flight->dtype,
                                  .blob = main->blob,
                                  .leaves = out->leaves,
                                  .n_leaves = out->n_leaves,
                                  .statistics = main->statistics,
                                  .kept = kept};
    lb_tracked_window view = measured;
    view.row = row;
    view.dtype = (lb_dtype)recorder->program->values[row].dtype;
    lb_value_bytes_derive(recorder, &view, &measured);
}

/* A window that a node of its own measured, over bytes that came for another one. */
static void derive_kept(lb_recorder *recorder, const lb_tracked *storage, lb_tracked_window *window)
{
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_tracked_window *other = &storage->windows[w];
        const bool same = other->first == window->first && other->last == window->last && other->row != LB_NONE;
        if (other != window && same && !other->coming && other->kept) {
            lb_value_bytes_derive(recorder, window, other);
            return;
        }
    }
}

static lb_status arrive(lb_recorder *recorder, lb_in_flight *in_flight, lb_err *err)
{
    bool kept = false;
    lb_tracked_window *window = in_flight->storage ? lb_tracked_find_window(in_flight->storage, in_flight->hash) : NULL;
    if (in_flight->work.state != LB_WORK_DONE) {
        lb_device_bytes_missing(recorder, in_flight->device, in_flight->work.state);
    } else if (in_flight->work.measured) {
        recorder->program->statistics[in_flight->statistics] = in_flight->work.item.out.statistics;
        lb_tracked_window alone = {.row = in_flight->row};
        lb_value_bytes_arrived(recorder, window ? window : &alone, in_flight->statistics, &in_flight->work.item.out);
    }
    lb_status status = LB_OK;
    if (in_flight->work.state == LB_WORK_DONE && in_flight->work.left_out)
        lb_device_bytes_missing(recorder, in_flight->device, LB_WORK_SKIPPED);
    if (in_flight->work.state == LB_WORK_DONE && in_flight->work.bytes && !in_flight->work.left_out)
        status = keep(recorder, in_flight, &kept, err);
    if (window) {
        window->coming = NULL;
        window->kept = kept;
    }
    for (uint32_t w = 0; in_flight->storage && w < in_flight->storage->n_windows; w++) {
        lb_tracked_window *view = &in_flight->storage->windows[w];
        if (view->coming != in_flight) continue;
        view->coming = NULL;
        view->kept = false;
        lb_value_bytes_derive(recorder, view, window);
    }
    if (window && !kept) derive_kept(recorder, in_flight->storage, window);
    for (uint32_t v = 0; v < in_flight->n_views; v++) derive_row(recorder, in_flight, in_flight->views[v], kept);
    if (!window) free(in_flight->work.item.out.leaves);
    return status;
}

static void unlink_storage(lb_in_flight *in_flight)
{
    if (!in_flight->storage) return;
    lb_in_flight **link = &in_flight->storage->coming;
    while (*link != in_flight) link = &(*link)->beside;
    *link = in_flight->beside;
}

/* Values that have not come, before others are left for the next look: thousands may be under way at each op. */
#define MOST_PASSED 16

/* False when nothing is under way. */
static bool collect(lb_in_flight_list *list, bool wait)
{
    lb_device *before = NULL;
    int passed = 0;
    for (lb_in_flight *in_flight = list->first; in_flight && (wait || passed < MOST_PASSED);
         in_flight = in_flight->next, passed++) {
        if (in_flight->work.state != LB_WORK_UNDER_WAY) continue;
        if (in_flight->device != before) in_flight->device->ops->collect(in_flight->device, NULL, wait);
        before = in_flight->device;
    }
    if (wait) list->n_arrived = list->n_late;
    return list->first;
}

const lb_in_flight *lb_in_flight_after(const lb_in_flight *one)
{
    return one->next;
}

const lb_in_flight *lb_in_flight_next(const lb_in_flight *from, const lb_device **device, void **stream)
{
    while (from && from->work.state != LB_WORK_UNDER_WAY) from = from->next;
    if (!from) return NULL;
    *device = from->device;
    *stream = from->stream;
    return from;
}

void lb_in_flight_wait(lb_in_flight_list *list)
{
    collect(list, true);
}

lb_status lb_in_flight_advance(lb_recorder *recorder, bool wait, lb_err *err)
{
    lb_in_flight_list *list = &recorder->in_flight;
    wait |= list->bytes > MOST_COMING;
    if (!collect(list, wait)) return LB_OK;
    lb_status status = LB_OK;
    int passed = 0;
    for (lb_in_flight **link = &list->first, *c; (c = *link) && (wait || passed < MOST_PASSED);) {
        if (c->work.state == LB_WORK_UNDER_WAY || c->work.state == LB_WORK_NEW) {
            link = &c->next;
            passed++;
            continue;
        }
        if (status == LB_OK) status = arrive(recorder, c, err);
        unlink_storage(c);
        *link = c->next;
        if (!c->next) list->end = link;
        coming_free(list, c);
    }
    return status;
}

/* ---- what happens to storages meanwhile -------------------------------------------------------------------------- */

static bool add_view(lb_in_flight *in_flight, uint32_t row)
{
    uint32_t *views = lb_array_grow(in_flight->views, in_flight->n_views, sizeof *views);
    if (!views) return false;
    in_flight->views = views;
    views[in_flight->n_views++] = row;
    return true;
}

/* What brings the same bytes for another window. */
static lb_in_flight *bytes_of(const lb_tracked *storage, const lb_tracked_window *window)
{
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_tracked_window *other = &storage->windows[w];
        if (other->coming && other->coming->work.bytes && other->first == window->first && other->last == window->last)
            return other->coming;
    }
    return NULL;
}

void lb_in_flight_detach(lb_tracked *storage)
{
    if (storage->coming && storage->device) storage->device->ops->order_before(storage->device, storage->stream);
    for (lb_in_flight *in_flight = storage->coming; in_flight; in_flight = in_flight->beside) in_flight->storage = NULL;
    storage->coming = NULL;
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_tracked_window *window = &storage->windows[w];
        lb_in_flight *in_flight = window->coming;
        if (in_flight && window->hash == in_flight->hash && !in_flight->work.bytes)
            in_flight = bytes_of(storage, window);
        /* Out of memory costs the digest of a view. */
        if (in_flight && window->row != LB_NONE && window->hash != in_flight->hash) add_view(in_flight, window->row);
    }
    for (uint32_t w = 0; w < storage->n_windows; w++) storage->windows[w].coming = NULL;
}

void lb_in_flight_drop(lb_in_flight_list *list, bool forked)
{
    if (!forked) collect(list, true);
    for (lb_in_flight *in_flight = list->first, *next; in_flight; in_flight = next) {
        next = in_flight->next;
        if (in_flight->work.state == LB_WORK_DONE) free(in_flight->work.item.out.leaves);
        coming_free(list, in_flight);
    }
    list->first = NULL;
    list->end = &list->first;
}

/* ---- what needs it ----------------------------------------------------------------------------------------------- */

bool lb_in_flight_brings(const lb_tracked_window *window, const lb_host_tensor *seen)
{
    const lb_tensor *main = &window->coming->work.item.tensor;
    return window->hash == window->coming->hash ||
           (main->dtype == seen->dtype && lb_layout_is_contiguous(&main->layout) &&
            lb_layout_is_contiguous(&seen->layout));
}

bool lb_in_flight_has_bytes(const lb_in_flight *coming)
{
    return coming->work.bytes;
}

void lb_in_flight_lower(lb_in_flight *coming, lb_keep_purpose purpose)
{
    if (lb_keep_level_of(purpose) < lb_keep_level_of(coming->purpose)) coming->purpose = purpose;
}

lb_status lb_in_flight_keep(lb_recorder *recorder, lb_tracked_window *window, lb_keep_purpose purpose, bool *coming,
                            lb_err *err)
{
    lb_in_flight *in_flight = window->coming;
    *coming = in_flight->work.bytes && in_flight->work.item.dense_bytes == (size_t)(window->last - window->first);
    if (*coming) lb_in_flight_lower(in_flight, purpose);
    return *coming ? LB_OK : lb_in_flight_advance(recorder, true, err);
}
