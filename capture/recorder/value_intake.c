/* From a tensor as the host holds it to a value of the program: measuring, keeping, and making sources.
 *
 * A value is measured once, when its bytes come into being (a result, a write) or are first met (a source). Views of
 * measured bytes get their digests from the same leaves where the elements lie in the same order. */
#include "recorder/leftover_digest.h"
#include "recorder/recorder.h"
#include "recorder/value_intake.h"
#include "measure/measure.h"

#include "base/array.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static size_t width_of(lb_dtype dtype)
{
    return lb_dtype_bits(dtype) / 8;
}

static lb_status no_memory(lb_err *err)
{
    return lb_fail(err, LB_ERR_NOMEM, "out of memory in the recorder");
}

lb_status lb_value_intake_storage(lb_recorder *recorder, const lb_host_tensor *seen, lb_tracked **storage, lb_err *err)
{
    bool fresh;
    lb_tracked *tracked = *storage = lb_tracked_set_get(&recorder->storages, seen->storage, &fresh);
    if (!tracked) return no_memory(err);
    if (fresh) tracked->device = lb_device_of(recorder, seen);
    if (fresh) tracked->ahead = recorder->run.makes && lb_graph_is_running(&recorder->run);
    tracked->stream = seen->stream;
    const size_t width = width_of(seen->dtype);
    const bool reachable = seen->data && (seen->device == 0 || tracked->device);
    const uint8_t *base = reachable ? (const uint8_t *)seen->data - seen->layout.offset * (int64_t)width : NULL;
    int64_t first, last;
    LB_TRY(lb_layout_dense_range(&seen->layout, &first, &last, err));
    if (first < 0 || (uint64_t)last > (width ? seen->storage_bytes / width : 0))
        if (last > 0 && (seen->device == 0 || tracked->device) && width)
            return lb_fail(err, LB_ERR_INVALID,
                           "a tensor reaches element %" PRId64 " of a storage of %" PRIu64 " bytes", last,
                           seen->storage_bytes);
    if (fresh) {
        tracked->base = base;
        tracked->bytes = seen->storage_bytes;
    } else if (tracked->bytes != seen->storage_bytes || (base && tracked->base != base)) {
        /* Resized or moved: what lies there now is unknown. */
        lb_value_bytes_settle(recorder, tracked);
        lb_tracked_move(tracked, base ? base : tracked->base, seen->storage_bytes, LB_BYTES_UNKNOWN);
    }
    if (tracked->program != recorder->serial)
        lb_tracked_enter(tracked, recorder->serial, lb_leftover_unchanged(recorder, tracked));
    return tracked->n_deferred ? lb_value_intake_settle(recorder, tracked, err) : LB_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static lb_tracked_window *window_of(lb_tracked *storage, const lb_host_tensor *seen, lb_err *err)
{
    uint64_t hash = lb_tracked_window_hash(seen);
    lb_tracked_window *window = lb_tracked_find_window(storage, hash);
    if (window) return window;
    int64_t first, last, width = (int64_t)width_of(seen->dtype);
    if (lb_layout_dense_range(&seen->layout, &first, &last, err) != LB_OK) return NULL;
    window = lb_tracked_add_window(storage, seen, hash, first * width, last * width);
    if (!window) no_memory(err);
    return window;
}

static lb_status add_row(lb_recorder *recorder, lb_tracked *storage, lb_tracked_window *window,
                         const lb_host_tensor *seen, uint32_t flags, uint8_t source, lb_err *err)
{
    lb_value value = {.storage = storage->id,
                      .version = storage->version,
                      .flags = flags | seen->lazy,
                      .layout = seen->layout,
                      .dtype = seen->dtype,
                      .source = source,
                      .device = seen->device,
                      .name = LB_NONE,
                      .statistics = LB_NONE};
    const lb_tracked_role *role = lb_tracked_find_role(storage, window->first, window->last);
    if (role) {
        value.flags |= role->flags;
        value.name = lb_program_name(recorder->program, role->name);
    }
    window->row = lb_program_add_value(recorder->program, &value);
    if (window->row == LB_NONE) return no_memory(err);
    recorder->coverage.n_values++;
    return LB_OK;
}

/* ---- sources ----------------------------------------------------------------------------------------------------- */

static lb_status add_source_op(lb_recorder *recorder, const lb_op_site *at, uint32_t row, lb_err *err)
{
    lb_program *program = recorder->program;
    const lb_value *value = &program->values[row];
    uint32_t scope = at->scope;
    /* The first reader has no part in an unseen write: it belongs to the module that owns the tensor. */
    if (value->source == LB_SOURCE_UNSEEN && value->name != LB_NONE)
        scope = lb_op_context_owner_row(recorder, lb_program_text(program, value->name), scope);
    lb_op op = {.name = lb_program_string(program, "lb::source"),
                .scope = scope,
                .call = scope == at->scope ? at->call : 0,
                .first_result = lb_program_add_refs(program, &row, 1),
                .results = 1,
                .node_name = LB_NONE,
                .node = -1,
                .phase = at->phase,
                .thread = at->thread};
    if (op.name == LB_NONE || op.first_result == LB_NONE || lb_program_add_op(program, &op) == LB_NONE)
        return no_memory(err);
    return LB_OK;
}

static lb_status add_unseen_notice(lb_recorder *recorder, const lb_op_site *at, uint32_t row, lb_err *err)
{
    lb_program *program = recorder->program;
    const char *name = lb_program_text(program, program->values[row].name);
    char text[600];
    snprintf(text, sizeof text,
             "bytes of %s changed between their last recorded use and %s, and no recorded op wrote them",
             *name ? name : "a tensor", at->name ? at->name : "here");
    lb_notice notice = {.kind = lb_program_string(program, "unseen_write"),
                        .op = program->n_ops - 1, /* the source */
                        .value = row,
                        .message = lb_program_string(program, text)};
    recorder->coverage.n_unseen++;
    lb_recorder_note(recorder, "unseen_write", text);
    return lb_program_add_notice(program, &notice) == LB_NONE ? no_memory(err) : LB_OK;
}

/* What an earlier program left in these very bytes, or NULL. */
static const lb_tracked_window *left_there(lb_tracked *storage, uint64_t hash, int64_t first, int64_t last)
{
    const lb_tracked_window *window = lb_tracked_find_window(storage, hash);
    if (window && window->row == LB_NONE && !lb_digest_is_none(window->logical)) return window;
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        window = &storage->windows[w];
        if (window->row == LB_NONE && window->first == first && window->last == last &&
            !lb_digest_is_none(window->blob))
            return window;
    }
    return NULL;
}

static uint8_t source_kind(const lb_tracked *storage, const lb_tracked_window *old, uint64_t hash, int64_t first,
                           int64_t last, const lb_measured *now)
{
    if (old && old->hash == hash)
        return lb_digest_equal(old->logical, now->logical) ? LB_SOURCE_CARRIED : LB_SOURCE_UNSEEN;
    if (old && !lb_digest_is_none(now->blob))
        return lb_digest_equal(old->blob, now->blob) ? LB_SOURCE_CARRIED : LB_SOURCE_UNSEEN;
    const lb_tracked_role *role = lb_tracked_find_role(storage, first, last);
    return role ? role->kind : LB_SOURCE_OTHER;
}

static lb_status make_source(lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage,
                             const lb_host_tensor *seen, uint8_t forced, lb_err *err)
{
    const uint64_t hash = lb_tracked_window_hash(seen);
    int64_t first, last;
    const size_t width = width_of(seen->dtype);
    LB_TRY(lb_layout_dense_range(&seen->layout, &first, &last, err));
    first *= (int64_t)width;
    last *= (int64_t)width;
    lb_measuring item = lb_value_bytes_measuring(storage, seen, first, last, LB_MEASURE_STATISTICS | LB_MEASURE_BLOB);
    const bool undefined = lb_tracked_map_has(&storage->map, &seen->layout, width, LB_BYTES_UNDEFINED);
    bool bytes = lb_device_bytes_readable(storage, seen);
    const bool wanted = lb_keep_wants(&recorder->keep, LB_FOR_SOURCE, at->layer, "lb::source");
    if (bytes && !undefined) LB_TRY(lb_device_bytes_take(recorder, storage, &item, wanted, &bytes, err));
    const lb_tracked_window *old = bytes ? left_there(storage, hash, first, last) : NULL;
    uint8_t kind = forced;
    if (!kind) kind = source_kind(storage, old, hash, first, last, &item.out);
    if (kind == LB_SOURCE_UNSEEN) {
        lb_value_bytes_settle(recorder, storage);
        lb_tracked_change(storage);
    }
    lb_tracked_window *window = window_of(storage, seen, err);
    lb_status status = window ? add_row(recorder, storage, window, seen, LB_VALUE_SOURCE, kind, err) : LB_ERR_NOMEM;
    if (status == LB_OK && bytes && !undefined) {
        status = lb_value_bytes_note(recorder, window, &item.out, err);
        item.out.leaves = NULL;
    }
    free(item.out.leaves);
    LB_TRY(status);
    window->verified = at->phase == LB_PHASE_OPTIMIZER;
    if (undefined) recorder->program->values[window->row].flags |= LB_VALUE_UNDEFINED;
    const bool lacks = !bytes && !undefined && storage->device;
    /* Memory that was freed, which another graph has filled in a run that was not recorded; or its device did not give
     * it. */
    if (lacks && lb_tape_is_ours(storage->key)) lb_graph_left(recorder, LB_FOR_SOURCE);
    if (lacks) lb_keep_limit(&recorder->keep, LB_LEVEL_STATS);
    const bool carried_on =
        kind == LB_SOURCE_CARRIED && (recorder->ring.flight ? !recorder->ring.base : recorder->keep.lean);
    if (bytes && !undefined && !carried_on && wanted)
        LB_TRY(lb_value_bytes_keep(recorder, storage, window, LB_FOR_SOURCE, err));
    const uint32_t row = window->row;
    LB_TRY(add_source_op(recorder, at, row, err));
    return kind == LB_SOURCE_UNSEEN ? add_unseen_notice(recorder, at, row, err) : LB_OK;
}

/* No recorded op made the bytes of this window: measure them and let an lb::source produce them. Nor does a graph whose
 * run is being recorded: they lie there now. */
static lb_status add_source(lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage,
                            const lb_host_tensor *seen, uint8_t forced, lb_err *err)
{
    recorder->run.reads_older = true;
    const lb_status status = make_source(recorder, at, storage, seen, forced, err);
    recorder->run.reads_older = false;
    return status;
}

/* Bytes that no op of this program produced. */
static bool is_strange(const lb_tracked *storage, const lb_host_tensor *seen)
{
    const size_t width = width_of(seen->dtype);
    return lb_tracked_map_has(&storage->map, &seen->layout, width, LB_BYTES_UNKNOWN) ||
           lb_tracked_map_has(&storage->map, &seen->layout, width, LB_BYTES_LEFT);
}

/* Sources for those of them that are in `state`. */
static lb_status add_sources_of(lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage,
                                const lb_host_tensor *seen, lb_tracked_bytes state, lb_err *err)
{
    const uint8_t kind = state == LB_BYTES_LEFT ? LB_SOURCE_CARRIED : LB_SOURCE_NOT;
    const size_t width = width_of(seen->dtype);
    int64_t first, last;
    LB_TRY(lb_layout_dense_range(&seen->layout, &first, &last, err));
    const uint64_t begin = (uint64_t)first * width, stop = (uint64_t)last * width;
    uint64_t at_byte = begin, end = 0;
    while (lb_tracked_map_run(&storage->map, &at_byte, stop, state, &end)) {
        /* A source has no holes: all of its range is there when it has been loaded. */
        if (at_byte == begin && end == stop && lb_layout_numel(&seen->layout) == last - first) {
            LB_TRY(add_source(recorder, at, storage, seen, kind, err));
        } else {
            int64_t shape[1] = {(int64_t)((end - at_byte) / width)};
            lb_host_tensor piece = *seen;
            piece.layout = lb_layout_contiguous(1, shape);
            piece.layout.offset = (int64_t)(at_byte / width);
            piece.data = storage->base ? storage->base + at_byte : NULL;
            LB_TRY(add_source(recorder, at, storage, &piece, kind, err));
        }
        if (!lb_tracked_map_set_range(&storage->map, storage->bytes, at_byte, end, LB_BYTES_DEFINED))
            return no_memory(err);
        at_byte = end;
    }
    return LB_OK;
}

static lb_status add_sources(lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage,
                             const lb_host_tensor *seen, lb_err *err)
{
    LB_TRY(add_sources_of(recorder, at, storage, seen, LB_BYTES_UNKNOWN, err));
    return add_sources_of(recorder, at, storage, seen, LB_BYTES_LEFT, err);
}

/* Compares a value that this program knows with its bytes: has something else written there? */
static lb_status verify(lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage, const lb_host_tensor *seen,
                        lb_err *err)
{
    lb_tracked_window *window = lb_tracked_find_window(storage, lb_tracked_window_hash(seen));
    if (window && window->promise && !window->verified) lb_value_bytes_settle(recorder, storage);
    if (window && window->coming && !window->verified) LB_TRY(lb_in_flight_advance(recorder, true, err));
    if (!window || window->row == LB_NONE || lb_digest_is_none(window->logical) ||
        !lb_device_bytes_readable(storage, seen) || lb_graph_is_ahead(&recorder->run, storage))
        return LB_OK;
    if (window->verified && !storage->escaped) return LB_OK;
    lb_measuring item = lb_value_bytes_measuring(storage, seen, window->first, window->last, 0);
    bool there;
    LB_TRY(lb_device_bytes_take(recorder, storage, &item, false, &there, err));
    if (!there) return LB_OK;
    free(item.out.leaves);
    window->verified = true;
    if (lb_digest_equal(item.out.logical, window->logical)) return LB_OK;
    return add_source(recorder, at, storage, seen, LB_SOURCE_UNSEEN, err);
}

/* ---- what an op reads -------------------------------------------------------------------------------------------- */

/* Takes what is known of the same bytes from another window, or has a part in its promise. */
static void derive(lb_recorder *recorder, lb_tracked *storage, lb_tracked_window *window)
{
    lb_promise *promise = NULL;
    lb_in_flight *coming = NULL;
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_tracked_window *other = &storage->windows[w];
        if (other == window || other->row == LB_NONE || other->first != window->first || other->last != window->last)
            continue;
        if (other->promise)
            promise = other->promise;
        else if (other->coming)
            coming = other->coming;
        else if (lb_value_bytes_derive(recorder, window, other))
            return;
    }
    window->promise = promise;
    window->coming = coming;
    window->kept |= coming && lb_in_flight_has_bytes(coming);
}

lb_status lb_value_intake_alias(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen, uint32_t *row,
                                lb_err *err)
{
    lb_tracked *storage;
    LB_TRY(lb_value_intake_storage(recorder, seen, &storage, err));
    lb_tracked_window *window = window_of(storage, seen, err);
    if (!window) return LB_ERR_NOMEM;
    if (window->row == LB_NONE) {
        LB_TRY(lb_value_bytes_measure_late(recorder, err)); /* what it is a view of */
        const bool undefined =
            lb_tracked_map_has(&storage->map, &seen->layout, width_of(seen->dtype), LB_BYTES_UNDEFINED);
        /* What an older program measured here may have changed since. */
        free(window->leaves);
        window->leaves = NULL;
        window->logical = window->blob = (lb_digest){0, 0};
        LB_TRY(add_row(recorder, storage, window, seen, undefined ? LB_VALUE_UNDEFINED : 0, LB_SOURCE_NOT, err));
        if (!undefined) derive(recorder, storage, window);
        if (!undefined && lb_graph_slot(&recorder->run, storage, window->hash)) { /* a node measures this very view */
            window->coming = NULL;
            LB_TRY(lb_value_bytes_later(recorder, at, storage, window, seen, err));
            LB_TRY(lb_value_bytes_measure_late(recorder, err));
        }
    }
    *row = window->row;
    return LB_OK;
}

/* Large tensors of which a view takes a part (a data set) are not read as a whole. */
#define MAX_EAGER_VIEW (16 << 20)

static bool needs_bytes(const lb_tracked *storage, const lb_host_tensor *seen, unsigned how)
{
    if (how & LB_READ_OVERWRITTEN) return false;
    if (!(how & LB_READ_LAYOUT)) return true;
    return storage->n_roles > 0 ||
           lb_dtype_bytes(seen->dtype, (size_t)lb_layout_numel(&seen->layout)) <= MAX_EAGER_VIEW;
}

bool lb_value_intake_measures(const lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage,
                              const lb_host_tensor *seen, unsigned how, unsigned *what)
{
    if (!needs_bytes(storage, seen, how) || !lb_device_bytes_readable(storage, seen) ||
        lb_graph_is_ahead(&recorder->run, storage))
        return false;
    *what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB;
    if (is_strange(storage, seen)) return !lb_keep_wants(&recorder->keep, LB_FOR_SOURCE, at->layer, "lb::source");
    *what = 0;
    if (!(at->verify || storage->escaped) || how & LB_READ_LAYOUT) return false;
    const lb_tracked_window *window = lb_tracked_find_window(storage, lb_tracked_window_hash(seen));
    return window && window->row != LB_NONE && (storage->escaped || !window->verified);
}

lb_status lb_value_intake_value(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen, unsigned how,
                                uint32_t *row, lb_err *err)
{
    lb_tracked *storage;
    LB_TRY(lb_value_intake_storage(recorder, seen, &storage, err));
    /* PyTorch's C++ fills an `empty` through a pointer (the indices of DDP's buckets): what is read then is a source
     * like any other. */
    if (!how && lb_leftover_was_filled(recorder, storage)) {
        if (!lb_tracked_map_set_range(&storage->map, storage->bytes, 0, storage->bytes, LB_BYTES_UNKNOWN))
            return no_memory(err);
        lb_tracked_change(storage);
    }
    if (needs_bytes(storage, seen, how)) {
        if (is_strange(storage, seen))
            LB_TRY(add_sources(recorder, at, storage, seen, err));
        else if ((at->verify || storage->escaped) && !(how & LB_READ_LAYOUT))
            LB_TRY(verify(recorder, at, storage, seen, err));
    }
    LB_TRY(lb_value_intake_alias(recorder, at, seen, row, err));
    if (how & LB_READ_OVERWRITTEN && is_strange(storage, seen))
        recorder->program->values[*row].flags |= LB_VALUE_UNDEFINED;
    if (how || !at->keep_inputs || !lb_device_bytes_readable(storage, seen)) return LB_OK;
    lb_tracked_window *window = window_of(storage, seen, err);
    if (!window) return LB_ERR_NOMEM;
    if (lb_graph_is_ahead(&recorder->run, storage)) {
        const bool undefined = recorder->program->values[*row].flags & LB_VALUE_UNDEFINED;
        return undefined ? LB_OK : lb_graph_keep(recorder, at, seen, at->keep_for, err);
    }
    if (window->promise) lb_value_bytes_settle(recorder, storage);
    bool coming = false;
    if (window->coming) LB_TRY(lb_in_flight_keep(recorder, window, at->keep_for, &coming, err));
    if (coming || recorder->program->values[*row].flags & LB_VALUE_UNDEFINED ||
        lb_value_bytes_covered(recorder, storage, window, at->keep_for))
        return LB_OK;
    /* Written in pieces, or a carried source of a ring: no value holds these bytes. */
    if (recorder->ring.flight && recorder->program->values[*row].source == LB_SOURCE_CARRIED) return LB_OK;
    if (lb_digest_is_none(window->logical)) LB_TRY(lb_value_bytes_measure(recorder, storage, window, seen, true, err));
    return lb_value_bytes_keep(recorder, storage, window, at->keep_for, err);
}

/* ---- what an op produces ----------------------------------------------------------------------------------------- */

lb_status lb_value_intake_result(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen,
                                 lb_result_kind kind, uint32_t *row, lb_err *err)
{
    lb_tracked *storage;
    LB_TRY(lb_value_intake_storage(recorder, seen, &storage, err));
    const bool undefined = kind.flags & LB_VALUE_UNDEFINED;
    if (!lb_tracked_map_set(&storage->map, storage->bytes, &seen->layout, width_of(seen->dtype),
                            undefined ? LB_BYTES_UNDEFINED : LB_BYTES_DEFINED))
        return no_memory(err);
    if (undefined) lb_leftover_note_fresh(recorder, storage);
    lb_tracked_window *window = window_of(storage, seen, err);
    if (!window) return LB_ERR_NOMEM;
    LB_TRY(add_row(recorder, storage, window, seen, kind.flags, kind.source, err));
    *row = window->row;
    if (!kind.deferred) return lb_value_bytes_later(recorder, at, storage, window, seen, err);
    lb_tracked_deferred *list = lb_array_grow(storage->deferred, storage->n_deferred, sizeof list[0]);
    if (!list) return no_memory(err);
    storage->deferred = list;
    list[storage->n_deferred++] = (lb_tracked_deferred){*row, *seen};
    return LB_OK;
}

lb_status lb_value_intake_settle(lb_recorder *recorder, lb_tracked *storage, lb_err *err)
{
    const uint32_t n = storage->n_deferred;
    storage->n_deferred = 0;
    for (uint32_t d = 0; d < n; d++) {
        const lb_tracked_deferred *late = &storage->deferred[d];
        lb_tracked_window *window = lb_tracked_find_window(storage, lb_tracked_window_hash(&late->seen));
        if (!window || window->row != late->row) continue;
        lb_op_site at = {.name = "deferred", .layer = "", .phase = LB_PHASE_COMMUNICATION};
        at.keep = lb_keep_wants(&recorder->keep, LB_FOR_RESULT, "", "");
        at.keep_for = LB_FOR_RESULT;
        LB_TRY(lb_value_bytes_later(recorder, &at, storage, window, &late->seen, err));
    }
    return lb_value_bytes_measure_late(recorder, err);
}

lb_status lb_value_intake_boundary(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen,
                                   uint32_t *row, lb_err *err)
{
    LB_TRY(lb_value_intake_value(recorder, at, seen, 0, row, err));
    lb_tracked *storage;
    LB_TRY(lb_value_intake_storage(recorder, seen, &storage, err));
    if (!lb_device_bytes_readable(storage, seen) || recorder->program->values[*row].flags & LB_VALUE_UNDEFINED)
        return LB_OK;
    lb_tracked_window *window = window_of(storage, seen, err);
    if (!window) return LB_ERR_NOMEM;
    const lb_liking liking = recorder->like ? lb_like_layer(recorder->like, at->layer) : LB_LIKING_UNKNOWN;
    const bool wanted_at_all = liking == LB_LIKING_UNKNOWN ? lb_keep_wants(&recorder->keep, LB_FOR_LAYER, at->layer, "")
                                                           : liking == LB_LIKING_KEPT;
    const bool ahead = lb_graph_is_ahead(&recorder->run, storage);
    if (wanted_at_all && !ahead) {
        if (window->promise) lb_value_bytes_settle(recorder, storage);
        bool coming = false;
        if (window->coming) LB_TRY(lb_in_flight_keep(recorder, window, LB_FOR_LAYER, &coming, err));
        if (coming && lb_in_flight_brings(window, seen)) return LB_OK;
        if (coming) LB_TRY(lb_in_flight_advance(recorder, true, err));
        const bool wanted = !lb_value_bytes_covered(recorder, storage, window, LB_FOR_LAYER);
        if (lb_digest_is_none(window->logical))
            LB_TRY(lb_value_bytes_measure(recorder, storage, window, seen, wanted, err));
        return wanted ? lb_value_bytes_keep(recorder, storage, window, LB_FOR_LAYER, err) : LB_OK;
    }
    if (!wanted_at_all && !lb_value_bytes_left(storage, window))
        lb_keep_left(&recorder->keep, LB_FOR_LAYER, (uint64_t)(window->last - window->first));
    window->left = !wanted_at_all;
    if (window->promise && !lb_value_bytes_promised(window, seen)) window->promise = NULL;
    if (window->coming && !lb_in_flight_brings(window, seen)) window->coming = NULL;
    const bool known = window->promise || window->coming || !lb_digest_is_none(window->logical);
    if (known) return wanted_at_all ? lb_graph_keep(recorder, at, seen, LB_FOR_LAYER, err) : LB_OK;
    lb_op_site here = *at;
    here.keep = wanted_at_all;
    here.keep_for = LB_FOR_LAYER;
    LB_TRY(lb_value_bytes_later(recorder, &here, storage, window, seen, err));
    return lb_value_bytes_measure_late(recorder, err);
}
