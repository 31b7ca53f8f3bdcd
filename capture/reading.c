/* From a tensor as the host holds it to a value of the program: measuring, keeping, and making sources.
 *
 * A value is measured once, when its bytes come into being (a result, a write) or are first met (a source). Views of
 * measured bytes get their digests from the same leaves where the elements lie in the same order. */
#include "recorder.h"
#include "measure.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static size_t width_of(lb_dtype dtype) { return lb_dtype_bits(dtype) / 8; }

static bool readable(const lb_known *storage, const lb_seen *seen)
{
    return seen->device == 0 && storage->base && width_of(seen->dtype) > 0;
}

static lb_status no_memory(lb_err *err) { return lb_fail(err, LB_ERR_NOMEM, "out of memory in the recorder"); }

lb_status lb_reading_storage(lb_recorder *recorder, const lb_seen *seen, lb_known **storage, lb_err *err)
{
    bool fresh;
    lb_known *s = *storage = lb_knowns_get(&recorder->storages, seen->storage, &fresh);
    if (!s) return no_memory(err);
    const size_t width = width_of(seen->dtype);
    const uint8_t *base = seen->data ? (const uint8_t *)seen->data - seen->layout.offset * (int64_t)width : NULL;
    int64_t first, last;
    LB_TRY(lb_layout_dense_range(&seen->layout, &first, &last, err));
    if (first < 0 || (uint64_t)last > (width ? seen->storage_bytes / width : 0))
        if (last > 0 && seen->device == 0 && width)
            return lb_fail(err, LB_ERR_INVALID, "a tensor reaches element %" PRId64 " of a storage of %" PRIu64 " bytes", last,
                           seen->storage_bytes);
    if (fresh) {
        s->base = base;
        s->bytes = seen->storage_bytes;
    } else if (s->bytes != seen->storage_bytes || (base && s->base != base)) {
        /* Resized or moved: what lies there now nobody said. */
        lb_known_move(s, base ? base : s->base, seen->storage_bytes, LB_BYTES_UNKNOWN);
    }
    lb_known_enter(s, recorder->serial);
    return s->n_deferred ? lb_reading_settle(recorder, s, err) : LB_OK;
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

static lb_window *window_of(lb_known *storage, const lb_seen *seen, lb_err *err)
{
    uint64_t hash = lb_window_hash(seen);
    lb_window *window = lb_known_window(storage, hash);
    if (window) return window;
    int64_t first, last, width = (int64_t)width_of(seen->dtype);
    if (lb_layout_dense_range(&seen->layout, &first, &last, err) != LB_OK) return NULL;
    window = lb_known_add_window(storage, seen, hash, first * width, last * width);
    if (!window) no_memory(err);
    return window;
}

static lb_status add_row(lb_recorder *recorder, lb_known *storage, lb_window *window, const lb_seen *seen, uint32_t flags,
                         uint8_t source, lb_err *err)
{
    lb_value value = {.storage = storage->id,
                      .version = storage->version,
                      .flags = flags,
                      .layout = seen->layout,
                      .dtype = seen->dtype,
                      .source = source,
                      .device = seen->device,
                      .name = LB_NONE,
                      .statistics = LB_NONE};
    const lb_role *role = lb_known_role(storage, window->first);
    if (role) {
        value.flags |= role->flags;
        value.name = lb_program_string(recorder->program, role->name);
    }
    window->row = lb_program_add_value(recorder->program, &value);
    if (window->row == LB_NONE) return no_memory(err);
    recorder->n_values++;
    return LB_OK;
}

static lb_tensor tensor_of(const lb_seen *seen)
{
    return (lb_tensor){(void *)(uintptr_t)seen->data, seen->dtype, seen->layout};
}

static void count_nonfinite(lb_recorder *recorder, const lb_value *value, const lb_statistics *statistics)
{
    const uint32_t never = LB_VALUE_PARAMETER | LB_VALUE_GRADIENT | LB_VALUE_STATE;
    if (value->flags & never && lb_statistics_nonfinite(statistics) > 0) recorder->n_nonfinite++;
}

/* Puts what was measured into the window and the row. */
static lb_status note_measured(lb_recorder *recorder, lb_window *window, lb_measured *measured, lb_err *err)
{
    free(window->leaves);
    window->leaves = measured->leaves;
    window->n_leaves = measured->n_leaves;
    window->logical = measured->logical;
    window->blob = measured->blob;
    window->statistics = lb_program_add_statistics(recorder->program, &measured->statistics);
    if (window->statistics == LB_NONE) return no_memory(err);
    lb_value *value = &recorder->program->values[window->row];
    value->statistics = window->statistics;
    value->logical = window->logical;
    value->blob = window->blob;
    count_nonfinite(recorder, value, &measured->statistics);
    return LB_OK;
}

static lb_measuring measuring_of(const lb_known *storage, const lb_seen *seen, int64_t first, int64_t last,
                                 unsigned what)
{
    return (lb_measuring){.tensor = tensor_of(seen),
                          .dense = storage->base + first,
                          .dense_bytes = (size_t)(last - first),
                          .what = what};
}

static lb_status measure(lb_recorder *recorder, const lb_known *storage, lb_window *window, const lb_seen *seen,
                         bool blob, lb_err *err)
{
    lb_measuring item = measuring_of(storage, seen, window->first, window->last,
                                     LB_MEASURE_STATISTICS | (blob ? LB_MEASURE_BLOB : 0));
    return lb_measure(&item, 1) ? note_measured(recorder, window, &item.out, err) : no_memory(err);
}

/* ---- keeping ------------------------------------------------------------------------------------------------------- */

static lb_status store(lb_recorder *recorder, lb_window *window, const void *bytes, uint64_t size, bool *stored, lb_err *err)
{
    lb_err refused = LB_ERR_INIT;
    /* The last eighth of a budget is for programs and tables: a step without bytes beats none. */
    const uint64_t room = recorder->budget_bytes - recorder->budget_bytes / 8;
    lb_status status;
    if (!recorder->ring && recorder->budget_bytes && lb_writer_bytes(recorder->writer) + size > room)
        status = lb_writer_has_blob(recorder->writer, window->blob) ? LB_OK : LB_ERR_LIMIT;
    else
        status = recorder->ring
                           ? lb_ring_blob(recorder->ring, window->blob, window->dtype, bytes, size, &refused)
                           : lb_writer_blob(recorder->writer, window->blob, window->dtype, bytes, size, &refused);
    *stored = status == LB_OK;
    if (status == LB_OK) return LB_OK;
    if (status == LB_ERR_LIMIT && !recorder->ring) {
        lb_keep_refused(&recorder->keep, size);
        lb_recorder_note(recorder, "budget", "bytes were left out: the budget is used up");
        return LB_OK;
    }
    return lb_fail(err, status, "%s", refused.message);
}

static lb_status keep(lb_recorder *recorder, const lb_known *storage, lb_window *window, lb_purpose purpose, lb_err *err)
{
    if (window->kept || window->last <= window->first) return LB_OK;
    const uint8_t *bytes = storage->base + window->first;
    const uint64_t size = (uint64_t)(window->last - window->first);
    if (lb_digest_is_none(window->blob)) {
        window->blob = lb_digest_bytes(bytes, size);
        recorder->program->values[window->row].blob = window->blob;
    }
    bool known = recorder->ring ? lb_ring_has_blob(recorder->ring, window->blob)
                                : lb_writer_has_blob(recorder->writer, window->blob);
    LB_TRY(store(recorder, window, bytes, size, &window->kept, err));
    if (!window->kept) return LB_OK;
    recorder->program->values[window->row].flags |= LB_VALUE_KEPT;
    if (!known) lb_keep_spent(&recorder->keep, purpose, size, recorder->writer ? lb_writer_bytes(recorder->writer) : 0);
    return LB_OK;
}

/* True when kept bytes of this very version contain the window. */
static bool covered(const lb_known *storage, const lb_window *window)
{
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_window *other = &storage->windows[w];
        if (other->kept && other->row != LB_NONE && other->first <= window->first && other->last >= window->last) return true;
    }
    return false;
}

/* ---- sources ------------------------------------------------------------------------------------------------------- */

static lb_status add_source_op(lb_recorder *recorder, const lb_standing *at, uint32_t row, lb_err *err)
{
    lb_program *program = recorder->program;
    lb_op op = {.name = lb_program_string(program, "lb::source"),
                .scope = at->scope,
                .call = at->call,
                .first_result = lb_program_add_refs(program, &row, 1),
                .results = 1,
                .node_name = LB_NONE,
                .node = -1,
                .phase = at->phase,
                .thread = at->thread};
    if (op.name == LB_NONE || op.first_result == LB_NONE || lb_program_add_op(program, &op) == LB_NONE) return no_memory(err);
    return LB_OK;
}

static lb_status add_unseen_notice(lb_recorder *recorder, const lb_standing *at, uint32_t row, lb_err *err)
{
    lb_program *program = recorder->program;
    const char *name = lb_program_text(program, program->values[row].name);
    char text[600];
    snprintf(text, sizeof text, "bytes of %s changed between their last recorded use and %s, and no recorded op wrote them",
             *name ? name : "a tensor", at->name ? at->name : "here");
    lb_notice notice = {.kind = lb_program_string(program, "unseen_write"),
                        .op = program->n_ops - 1, /* the source */
                        .value = row,
                        .message = lb_program_string(program, text)};
    recorder->n_unseen++;
    lb_recorder_note(recorder, "unseen_write", text);
    return lb_program_add_notice(program, &notice) == LB_NONE ? no_memory(err) : LB_OK;
}

/* What an earlier program left in these very bytes, or NULL. */
static const lb_window *left_there(lb_known *storage, uint64_t hash, int64_t first, int64_t last)
{
    const lb_window *window = lb_known_window(storage, hash);
    if (window && window->row == LB_NONE && !lb_digest_is_none(window->logical)) return window;
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        window = &storage->windows[w];
        if (window->row == LB_NONE && window->first == first && window->last == last && !lb_digest_is_none(window->blob))
            return window;
    }
    return NULL;
}

static uint8_t source_kind(const lb_known *storage, const lb_window *old, uint64_t hash, int64_t first, const lb_measured *now)
{
    if (old && old->hash == hash)
        return lb_digest_equal(old->logical, now->logical) ? LB_SOURCE_CARRIED : LB_SOURCE_UNSEEN;
    if (old && !lb_digest_is_none(now->blob))
        return lb_digest_equal(old->blob, now->blob) ? LB_SOURCE_CARRIED : LB_SOURCE_UNSEEN;
    const lb_role *role = lb_known_role(storage, first);
    return role ? role->kind : LB_SOURCE_OTHER;
}

/* The bytes of this window are nobody's: measure them and let an lb::source produce them. */
static lb_status add_source(lb_recorder *recorder, const lb_standing *at, lb_known *storage, const lb_seen *seen, uint8_t forced,
                            lb_err *err)
{
    const uint64_t hash = lb_window_hash(seen);
    int64_t first, last;
    const size_t width = width_of(seen->dtype);
    LB_TRY(lb_layout_dense_range(&seen->layout, &first, &last, err));
    first *= (int64_t)width;
    last *= (int64_t)width;
    lb_measuring item = measuring_of(storage, seen, first, last, LB_MEASURE_STATISTICS | LB_MEASURE_BLOB);
    const bool bytes = readable(storage, seen);
    const bool undefined = lb_map_has(&storage->map, &seen->layout, width, LB_BYTES_UNDEFINED);
    if (bytes && !undefined && !lb_measure(&item, 1)) return no_memory(err);
    uint8_t kind = forced;
    if (!kind) kind = source_kind(storage, left_there(storage, hash, first, last), hash, first, &item.out);
    if (kind == LB_SOURCE_UNSEEN) lb_known_change(storage);
    lb_window *window = window_of(storage, seen, err);
    lb_status status = window ? add_row(recorder, storage, window, seen, LB_VALUE_SOURCE, kind, err) : LB_ERR_NOMEM;
    if (status == LB_OK && bytes && !undefined) {
        status = note_measured(recorder, window, &item.out, err);
        item.out.leaves = NULL;
    }
    free(item.out.leaves);
    LB_TRY(status);
    window->verified = at->phase == LB_PHASE_OPTIMIZER;
    if (undefined) recorder->program->values[window->row].flags |= LB_VALUE_UNDEFINED;
    const bool carried_in_ring = recorder->ring && kind == LB_SOURCE_CARRIED && !recorder->ring_base;
    if (bytes && !undefined && !carried_in_ring && lb_keep_wants(&recorder->keep, LB_FOR_SOURCE, at->layer, "lb::source"))
        LB_TRY(keep(recorder, storage, window, LB_FOR_SOURCE, err));
    const uint32_t row = window->row;
    LB_TRY(add_source_op(recorder, at, row, err));
    return kind == LB_SOURCE_UNSEEN ? add_unseen_notice(recorder, at, row, err) : LB_OK;
}

/* Sources for those bytes of the window that no op of this program produced. */
static lb_status add_sources(lb_recorder *recorder, const lb_standing *at, lb_known *storage, const lb_seen *seen, lb_err *err)
{
    const size_t width = width_of(seen->dtype);
    int64_t first, last;
    LB_TRY(lb_layout_dense_range(&seen->layout, &first, &last, err));
    const uint64_t begin = (uint64_t)first * width, stop = (uint64_t)last * width;
    uint64_t at_byte = begin, end = 0;
    while (lb_map_run(&storage->map, &at_byte, stop, LB_BYTES_UNKNOWN, &end)) {
        /* A source has no holes: all of its range is there when it has been loaded. */
        if (at_byte == begin && end == stop && lb_layout_numel(&seen->layout) == last - first) {
            LB_TRY(add_source(recorder, at, storage, seen, LB_SOURCE_NOT, err));
        } else {
            int64_t shape[1] = {(int64_t)((end - at_byte) / width)};
            lb_seen piece = *seen;
            piece.layout = lb_layout_contiguous(1, shape);
            piece.layout.offset = (int64_t)(at_byte / width);
            piece.data = storage->base ? storage->base + at_byte : NULL;
            LB_TRY(add_source(recorder, at, storage, &piece, LB_SOURCE_NOT, err));
        }
        if (!lb_map_set_range(&storage->map, storage->bytes, at_byte, end, LB_BYTES_DEFINED)) return no_memory(err);
        at_byte = end;
    }
    return LB_OK;
}

/* Compares a value that this program knows with its bytes: has something else written there? */
static lb_status verify(lb_recorder *recorder, const lb_standing *at, lb_known *storage, const lb_seen *seen, lb_err *err)
{
    lb_window *window = lb_known_window(storage, lb_window_hash(seen));
    if (!window || window->row == LB_NONE || lb_digest_is_none(window->logical) || !readable(storage, seen)) return LB_OK;
    if (window->verified && !storage->escaped) return LB_OK;
    lb_measuring item = measuring_of(storage, seen, window->first, window->last, 0);
    if (!lb_measure(&item, 1)) return no_memory(err);
    free(item.out.leaves);
    window->verified = true;
    if (lb_digest_equal(item.out.logical, window->logical)) return LB_OK;
    return add_source(recorder, at, storage, seen, LB_SOURCE_UNSEEN, err);
}

/* ---- what an op reads ---------------------------------------------------------------------------------------------- */

/* Views of measured bytes whose elements lie in the same order cost no new pass. */
static void derive(lb_recorder *recorder, lb_known *storage, lb_window *window, const lb_seen *seen)
{
    const bool contiguous = lb_layout_is_contiguous(&seen->layout);
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_window *other = &storage->windows[w];
        if (other == window || other->row == LB_NONE || other->first != window->first || other->last != window->last) continue;
        if (lb_digest_is_none(other->blob)) continue;
        lb_value *value = &recorder->program->values[window->row];
        value->blob = window->blob = other->blob;
        window->kept = other->kept;
        if (other->kept) value->flags |= LB_VALUE_KEPT;
        if (!contiguous || !other->leaves || other->dtype != window->dtype) continue;
        value->logical = window->logical = lb_measure_logical(other->leaves, other->n_leaves, (uint64_t)(window->last - window->first),
                                                              window->dtype, &seen->layout);
        value->statistics = window->statistics = other->statistics;
        return;
    }
}

lb_status lb_reading_alias(lb_recorder *recorder, const lb_standing *at, const lb_seen *seen, uint32_t *row, lb_err *err)
{
    (void)at;
    lb_known *storage;
    LB_TRY(lb_reading_storage(recorder, seen, &storage, err));
    lb_window *window = window_of(storage, seen, err);
    if (!window) return LB_ERR_NOMEM;
    if (window->row == LB_NONE) {
        LB_TRY(lb_reading_measure_late(recorder, err)); /* what it is a view of */
        const bool undefined =
            lb_map_has(&storage->map, &seen->layout, width_of(seen->dtype), LB_BYTES_UNDEFINED);
        /* What an older program measured here need not be so any more. */
        free(window->leaves);
        window->leaves = NULL;
        window->logical = window->blob = (lb_digest){0, 0};
        LB_TRY(add_row(recorder, storage, window, seen, undefined ? LB_VALUE_UNDEFINED : 0, LB_SOURCE_NOT, err));
        if (!undefined) derive(recorder, storage, window, seen);
    }
    *row = window->row;
    return LB_OK;
}

/* Large tensors of which a view takes a part (a data set) are not read as a whole. */
#define MAX_EAGER_VIEW (16 << 20)

static bool needs_bytes(const lb_known *storage, const lb_seen *seen, unsigned how)
{
    if (how & LB_READ_OVERWRITTEN) return false;
    if (!(how & LB_READ_LAYOUT)) return true;
    return storage->n_roles > 0 || lb_dtype_bytes(seen->dtype, (size_t)lb_layout_numel(&seen->layout)) <= MAX_EAGER_VIEW;
}

lb_status lb_reading_value(lb_recorder *recorder, const lb_standing *at, const lb_seen *seen, unsigned how, uint32_t *row,
                           lb_err *err)
{
    lb_known *storage;
    LB_TRY(lb_reading_storage(recorder, seen, &storage, err));
    if (needs_bytes(storage, seen, how)) {
        if (lb_map_has(&storage->map, &seen->layout, width_of(seen->dtype), LB_BYTES_UNKNOWN))
            LB_TRY(add_sources(recorder, at, storage, seen, err));
        else if ((at->verify || storage->escaped) && !(how & LB_READ_LAYOUT))
            LB_TRY(verify(recorder, at, storage, seen, err));
    }
    LB_TRY(lb_reading_alias(recorder, at, seen, row, err));
    if (how & LB_READ_OVERWRITTEN && lb_map_has(&storage->map, &seen->layout, width_of(seen->dtype), LB_BYTES_UNKNOWN))
        recorder->program->values[*row].flags |= LB_VALUE_UNDEFINED;
    if (how || !at->keep || !readable(storage, seen)) return LB_OK;
    lb_window *window = window_of(storage, seen, err);
    if (!window) return LB_ERR_NOMEM;
    if (recorder->program->values[*row].flags & LB_VALUE_UNDEFINED || covered(storage, window)) return LB_OK;
    /* Written in pieces, or a carried source of a ring: no value holds these bytes. */
    if (recorder->ring && recorder->program->values[*row].source == LB_SOURCE_CARRIED) return LB_OK;
    if (lb_digest_is_none(window->logical)) LB_TRY(measure(recorder, storage, window, seen, true, err));
    return keep(recorder, storage, window, LB_FOR_RESULT, err);
}

/* ---- what an op produces ------------------------------------------------------------------------------------------- */

/* All results of an op are measured together, by several threads where that pays: see lb_reading_measure_late. */
static lb_status measure_later(lb_recorder *recorder, const lb_standing *at, lb_known *storage,
                               const lb_window *window, const lb_seen *seen, lb_err *err)
{
    const lb_value *value = &recorder->program->values[window->row];
    if (!readable(storage, seen) || value->flags & LB_VALUE_UNDEFINED) return LB_OK;
    /* Like a source, a choice cannot be had from a replay that rounds differently: a tie may fall to the other side. */
    const bool choice = at->reads_floats && !lb_dtype_is_float(value->dtype);
    const bool source = value->flags & LB_VALUE_SOURCE || choice;
    const bool wanted =
        at->keep || (source && lb_keep_wants(&recorder->keep, LB_FOR_SOURCE, at->layer, at->name));
    if (recorder->n_late == recorder->cap_late) {
        uint32_t cap = recorder->cap_late ? 2 * recorder->cap_late : 16;
        lb_late *late = realloc(recorder->late, cap * sizeof *late);
        if (!late) return no_memory(err);
        recorder->late = late;
        recorder->cap_late = cap;
    }
    recorder->late[recorder->n_late++] = (lb_late){.storage = storage,
                                                   .hash = window->hash,
                                                   .seen = *seen,
                                                   .purpose = source ? LB_FOR_SOURCE : LB_FOR_RESULT,
                                                   .wanted = wanted,
                                                   .verified = at->phase == LB_PHASE_OPTIMIZER};
    return LB_OK;
}

lb_status lb_reading_measure_late(lb_recorder *recorder, lb_err *err)
{
    const uint32_t n = recorder->n_late;
    if (!n) return LB_OK;
    recorder->n_late = 0;
    lb_measuring few[4], *items = n <= 4 ? few : malloc(n * sizeof *items);
    if (!items) return no_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        const lb_late *late = &recorder->late[i];
        const lb_window *window = lb_known_window(late->storage, late->hash);
        items[i] = measuring_of(late->storage, &late->seen, window->first, window->last,
                                LB_MEASURE_STATISTICS | (late->wanted ? LB_MEASURE_BLOB : 0));
    }
    lb_status status = lb_measure(items, n) ? LB_OK : no_memory(err);
    bool measured = status == LB_OK;
    for (uint32_t i = 0; i < n && measured; i++) {
        const lb_late *late = &recorder->late[i];
        lb_window *window = lb_known_window(late->storage, late->hash);
        if (status != LB_OK) {
            free(items[i].out.leaves);
            continue;
        }
        status = note_measured(recorder, window, &items[i].out, err);
        window->verified = late->verified;
        if (status == LB_OK && late->wanted) status = keep(recorder, late->storage, window, late->purpose, err);
    }
    if (items != few) free(items);
    return status;
}

lb_status lb_reading_result(lb_recorder *recorder, const lb_standing *at, const lb_seen *seen, uint32_t flags, uint8_t source,
                            bool deferred, uint32_t *row, lb_err *err)
{
    lb_known *storage;
    LB_TRY(lb_reading_storage(recorder, seen, &storage, err));
    const bool undefined = flags & LB_VALUE_UNDEFINED;
    if (!lb_map_set(&storage->map, storage->bytes, &seen->layout, width_of(seen->dtype),
                    undefined ? LB_BYTES_UNDEFINED : LB_BYTES_DEFINED))
        return no_memory(err);
    lb_window *window = window_of(storage, seen, err);
    if (!window) return LB_ERR_NOMEM;
    LB_TRY(add_row(recorder, storage, window, seen, flags, source, err));
    *row = window->row;
    if (!deferred) return measure_later(recorder, at, storage, window, seen, err);
    lb_deferred *list = realloc(storage->deferred, (storage->n_deferred + 1) * sizeof list[0]);
    if (!list) return no_memory(err);
    storage->deferred = list;
    list[storage->n_deferred++] = (lb_deferred){*row, *seen};
    return LB_OK;
}

lb_status lb_reading_settle(lb_recorder *recorder, lb_known *storage, lb_err *err)
{
    const uint32_t n = storage->n_deferred;
    storage->n_deferred = 0;
    for (uint32_t d = 0; d < n; d++) {
        const lb_deferred *late = &storage->deferred[d];
        lb_window *window = lb_known_window(storage, lb_window_hash(&late->seen));
        if (!window || window->row != late->row) continue;
        lb_standing at = {.name = "deferred", .layer = "", .phase = LB_PHASE_COMMUNICATION};
        at.keep = lb_keep_wants(&recorder->keep, LB_FOR_RESULT, "", "");
        LB_TRY(measure_later(recorder, &at, storage, window, &late->seen, err));
    }
    return lb_reading_measure_late(recorder, err);
}

lb_status lb_reading_boundary(lb_recorder *recorder, const lb_standing *at, const lb_seen *seen, uint32_t *row, lb_err *err)
{
    LB_TRY(lb_reading_value(recorder, at, seen, 0, row, err));
    lb_known *storage;
    LB_TRY(lb_reading_storage(recorder, seen, &storage, err));
    if (!readable(storage, seen) || recorder->program->values[*row].flags & LB_VALUE_UNDEFINED) return LB_OK;
    lb_window *window = window_of(storage, seen, err);
    if (!window) return LB_ERR_NOMEM;
    const bool wanted = lb_keep_wants(&recorder->keep, LB_FOR_LAYER, at->layer, "") && !covered(storage, window);
    if (lb_digest_is_none(window->logical)) LB_TRY(measure(recorder, storage, window, seen, wanted, err));
    return wanted ? keep(recorder, storage, window, LB_FOR_LAYER, err) : LB_OK;
}
