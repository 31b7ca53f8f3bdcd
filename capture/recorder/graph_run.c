/* Runs of a graph (see graph_tape.h): each passes the tape again, as ops of the open step.
 *
 * A run is recorded before the host program launches it. So what the graph reads is read then, as for any op: digests,
 * and bytes where they are kept. What it computes is named by its slots, and comes when the run has ended
 * (lb_in_flight). Until then the bytes in a storage that the graph writes are older than what is recorded of it, and
 * no code looks at them. */
#include "recorder/recorder.h"

#include <stdlib.h>

bool lb_graph_is_running(const lb_graph_run *run)
{
    return run->tape && pthread_equal(run->thread, pthread_self());
}

bool lb_graph_is_ahead(const lb_graph_run *run, const lb_tracked *storage)
{
    return run->tape && storage->ahead && !run->reads_older;
}

const lb_taped_slot *lb_graph_slot(const lb_graph_run *run, const lb_tracked *storage, uint64_t hash)
{
    const lb_tape *tape = run->tape;
    if (!lb_graph_is_running(run)) return NULL;
    LB_HASH_EACH(row, &run->by_key, (uint64_t)storage->key)
    if (lb_tape_key(tape, row) == storage->key) return lb_tape_slot(tape, row, hash);
    return NULL;
}

void lb_graph_left(lb_recorder *recorder, lb_keep_purpose purpose)
{
    lb_keep_limit(&recorder->keep, (lb_level)(lb_keep_level_of(purpose) - 1));
    lb_recorder_note(
        recorder, "graph",
        "bytes of values inside a graph were left out: its capture found no room for them on the device, or kept less");
}

lb_status lb_graph_keep(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen,
                        lb_keep_purpose purpose, lb_err *err)
{
    lb_tracked *storage = lb_tracked_set_find(&recorder->storages, seen->storage);
    lb_tracked_window *window = storage ? lb_tracked_find_window(storage, lb_tracked_window_hash(seen)) : NULL;
    if (!window || window->last <= window->first) return LB_OK;
    if (window->coming && lb_in_flight_has_bytes(window->coming)) {
        lb_in_flight_lower(window->coming, purpose);
        return LB_OK;
    }
    if (lb_value_bytes_covered(recorder, storage, window, purpose)) return LB_OK;
    const lb_taped_slot *slot = lb_graph_slot(&recorder->run, storage, window->hash);
    if (!slot || !slot->each_run) {
        lb_graph_left(recorder, purpose);
        return LB_OK;
    }
    lb_op_site here = *at; /* it comes once more, with its bytes */
    here.keep = true;
    here.keep_for = purpose;
    LB_TRY(lb_value_bytes_later(recorder, &here, storage, window, seen, err));
    return lb_value_bytes_measure_late(recorder, err);
}

/* Before an op of the run ends: what it writes is newer from here on than the bytes that lie there. */
static void write_ahead(lb_recorder *recorder, const lb_taped *entry)
{
    lb_tape *tape = recorder->run.tape;
    pthread_mutex_lock(&recorder->lock);
    for (uint32_t w = 0; w < entry->n_written; w++) {
        tape->storages[entry->written[w]].version++;
        lb_tracked *storage = lb_tracked_set_find(&recorder->storages, lb_tape_key(tape, entry->written[w]));
        if (storage) storage->ahead = true;
    }
    recorder->run.makes = true;
    pthread_mutex_unlock(&recorder->lock);
}

typedef struct play {
    lb_recorder *recorder;
    lb_tape *tape;
    lb_pending **pending; /* by entry */
    uint32_t *ops;        /* rows, by op of the tape */
    lb_place *places;     /* by number */
    uint32_t n_ops, first_row;
} play;

static lb_place place_of(const play *play, lb_place place)
{
    const uint32_t number = place.call & ~LB_TAPED_PLACE;
    return place.call & LB_TAPED_PLACE && number < play->tape->n_places ? play->places[number] : place;
}

static lb_status play_begin(play *play, uint32_t number, lb_err *err)
{
    lb_recorded_call call = play->tape->entries[number].call;
    call.place = place_of(play, call.place);
    return lb_recorder_op_begin(play->recorder, &call, &play->pending[number], err);
}

static lb_status play_end(play *play, const lb_taped *entry, lb_err *err)
{
    lb_recorder *recorder = play->recorder;
    lb_pending *pending = play->pending[entry->at];
    play->pending[entry->at] = NULL;
    write_ahead(recorder, entry);
    const lb_status status = (entry->deferred ? lb_recorder_op_defer : lb_recorder_op_end)(
        recorder, pending, entry->results, entry->n, &play->ops[play->n_ops], err);
    recorder->run.makes = false;
    play->n_ops++;
    return status;
}

static lb_status play_boundary(play *play, const lb_taped *entry, lb_err *err)
{
    lb_host_tensor *tensors = malloc((entry->n + 1) * sizeof *tensors);
    if (!tensors) return lb_recorder_no_memory(err);
    for (uint32_t i = 0; i < entry->n; i++) tensors[i] = *entry->tensors[i];
    lb_status status;
    if (entry->kind == LB_TAPED_ENTER)
        status = lb_recorder_enter(play->recorder, entry->place.scope, tensors, entry->n, entry->recompute,
                                   &play->places[entry->place.call & ~LB_TAPED_PLACE], err);
    else
        status =
            lb_recorder_leave(play->recorder, place_of(play, entry->place), tensors, entry->n, entry->recompute, err);
    free(tensors);
    return status;
}

static int64_t key_of(const lb_tape *tape, int64_t row)
{
    return row < 0 || row >= tape->n_storages ? -1 : lb_tape_key(tape, (uint32_t)row);
}

static lb_status play_group(play *play, const lb_taped *entry, lb_err *err)
{
    const lb_taped_group *group = &entry->u.group;
    const uint32_t first = entry->at && entry->at <= play->n_ops ? play->ops[entry->at - 1] + 1 : play->first_row;
    lb_member *members = malloc((group->n_members + 1) * sizeof *members);
    if (!members) return lb_recorder_no_memory(err);
    for (uint32_t m = 0; m < group->n_members; m++)
        members[m] = (lb_member){group->members[m].name, key_of(play->tape, group->members[m].storage),
                                 key_of(play->tape, group->members[m].gradient)};
    const lb_status status = lb_recorder_group(play->recorder, group->optimizer, group->index, first, members,
                                               group->n_members, group->options, group->n_options, err);
    free(members);
    return status;
}

static lb_status play_entry(play *play, uint32_t number, lb_err *err)
{
    const lb_taped *entry = &play->tape->entries[number];
    lb_recorder *recorder = play->recorder;
    const lb_taped_collective *collective = &entry->u.collective;
    lb_host_tensor *const *tensors = entry->tensors;
    switch (entry->kind) {
    case LB_TAPED_BEGIN: return play_begin(play, number, err);
    case LB_TAPED_END: return play_end(play, entry, err);
    case LB_TAPED_FAILED:
        if (entry->at != LB_NONE)
            lb_recorder_op_failed(recorder, play->pending[entry->at]), play->pending[entry->at] = NULL;
        return LB_OK;
    case LB_TAPED_ENTER:
    case LB_TAPED_LEAVE: return play_boundary(play, entry, err);
    case LB_TAPED_ROUTING:
        return lb_recorder_routing(recorder, place_of(play, entry->place), tensors[0], tensors[1], tensors[2],
                                   tensors[3], tensors[4], err);
    case LB_TAPED_COLLECTIVE:
        return entry->at < play->n_ops
                   ? lb_recorder_collective(recorder, play->ops[entry->at], collective->group, collective->reduce,
                                            collective->algorithm, collective->sequence, collective->ranks,
                                            collective->n_ranks, err)
                   : LB_OK;
    case LB_TAPED_GROUP: return play_group(play, entry, err);
    case LB_TAPED_FORGET: return lb_recorder_forget(recorder, lb_tape_key(play->tape, entry->at)), LB_OK;
    }
    return LB_OK;
}

static lb_status play_all(lb_recorder *recorder, lb_tape *tape, lb_err *err)
{
    play play = {.recorder = recorder,
                 .tape = tape,
                 .pending = calloc(tape->n_entries + 1, sizeof(lb_pending *)),
                 .ops = malloc((tape->n_ops + 1) * sizeof(uint32_t)),
                 .places = calloc(tape->n_places + 1, sizeof(lb_place)),
                 .first_row = lb_recorder_next_op(recorder)};
    lb_status status = play.pending && play.ops && play.places ? LB_OK : lb_recorder_no_memory(err);
    for (uint32_t e = 0; e < tape->n_entries && status == LB_OK; e++) status = play_entry(&play, e, err);
    for (uint32_t e = 0; e < tape->n_entries && play.pending; e++)
        if (play.pending[e]) lb_recorder_op_failed(recorder, play.pending[e]);
    free(play.pending);
    free(play.ops);
    free(play.places);
    return status;
}

/* Rows of the tape's storages by the keys that they have in this run. */
static bool index_keys(lb_hash *by_key, const lb_tape *tape)
{
    lb_hash_clear(by_key);
    for (uint32_t s = 0; s < tape->n_storages; s++)
        if (!lb_hash_add(by_key, (uint64_t)lb_tape_key(tape, s), s)) return false;
    return true;
}

lb_status lb_recorder_graph_run(lb_recorder *recorder, int64_t graph, void *stream, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status == LB_OK && recorder->run.tape) status = lb_fail(err, LB_ERR_STATE, "another graph is about to run");
    if (status != LB_OK) return lb_recorder_unlock(recorder, status);
    lb_tape *tape = *lb_graph_find(&recorder->graphs, graph);
    if (tape) lb_devices_run(tape);
    if (!tape || !recorder->program || !index_keys(&recorder->run.by_key, tape))
        return lb_recorder_unlock(recorder, LB_OK);
    lb_tape_rewind(tape, stream);
    recorder->run.tape = tape;
    recorder->run.thread = pthread_self();
    for (uint32_t d = 0; d < tape->n_devices; d++) { /* reads of what it has left before */
        lb_device *device = tape->devices[d].device;
        device->ops->order_before(device, stream);
    }
    lb_recorder_unlock(recorder, LB_OK);
    return play_all(recorder, tape, err);
}

/* A value that no node measured: if it is what the run left there, it can be had now. */
static lb_status look_behind(lb_recorder *recorder, lb_tracked *storage, lb_tracked_window *window, lb_err *err)
{
    const lb_value *value = &recorder->program->values[window->row];
    const lb_op_site at = {.name = "", .layer = ""};
    lb_host_tensor seen = {.storage = storage->key,
                           .data = storage->base + value->layout.offset * (int64_t)(lb_dtype_bits(value->dtype) / 8),
                           .storage_bytes = storage->bytes,
                           .layout = value->layout,
                           .dtype = value->dtype,
                           .device = value->device,
                           .lazy = value->flags & (LB_VALUE_CONJUGATED | LB_VALUE_NEGATED),
                           .stream = storage->stream};
    return lb_value_bytes_later(recorder, &at, storage, window, &seen, err);
}

static lb_status catch_up(lb_recorder *recorder, lb_tracked *storage, lb_err *err)
{
    storage->ahead = false;
    /* Under a key of ours, memory that was freed: the graph may have used it again. */
    if (!storage->base || storage->program != recorder->serial || lb_tape_is_ours(storage->key)) return LB_OK;
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        lb_tracked_window *window = &storage->windows[w];
        if (window->row != LB_NONE && !window->coming && lb_digest_is_none(window->logical))
            LB_TRY(look_behind(recorder, storage, window, err));
    }
    return LB_OK;
}

/* What was recorded of the storage did not happen. */
static lb_status take_back(lb_recorder *recorder, lb_tracked *storage, lb_err *err)
{
    storage->ahead = false;
    if (storage->program != recorder->serial) return LB_OK;
    lb_value_bytes_settle(recorder, storage);
    lb_tracked_change(storage);
    const bool done = lb_tracked_map_set_range(&storage->map, storage->bytes, 0, storage->bytes, LB_BYTES_UNKNOWN);
    return done ? LB_OK : lb_recorder_no_memory(err);
}

lb_status lb_recorder_graph_ran(lb_recorder *recorder, int64_t graph, bool launched, void *stream, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    const lb_tape *tape = status == LB_OK ? *lb_graph_find(&recorder->graphs, graph) : NULL;
    if (!tape) return lb_recorder_unlock(recorder, status);
    lb_devices_ran(tape, launched, stream);
    const bool recorded = recorder->run.tape == tape;
    if (recorded) recorder->run.tape = NULL;
    if (recorded && !launched)
        lb_recorder_note(recorder, "graph", "the launch of a graph failed: its ops are in the step, without results");
    lb_err cause = LB_ERR_INIT;
    for (uint32_t i = 0; recorded && i < recorder->storages.n && status == LB_OK; i++)
        if (recorder->storages.list[i]->ahead)
            status = (launched ? catch_up : take_back)(recorder, recorder->storages.list[i], &cause);
    if (recorded && status == LB_OK && recorder->program) status = lb_value_bytes_measure_late(recorder, &cause);
    if (recorded && status == LB_OK && recorder->program) status = lb_in_flight_advance(recorder, false, &cause);
    return lb_recorder_settled(recorder, status, &cause, err);
}
