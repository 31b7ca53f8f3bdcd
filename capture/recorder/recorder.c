/* Life of a recorder: the archive, its steps, and how it ends. See lastbit/capture.h. */
#include "recorder/operation.h"
#include "recorder/recorder.h"
#include "recorder/value_intake.h"
#include "recorder/routing.h"

#include <lastbit/maintenance.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

lb_status lb_recorder_no_memory(lb_err *err)
{
    return lb_fail(err, LB_ERR_NOMEM, "out of memory in the recorder");
}

/* ---- coverage ---------------------------------------------------------------------------------------------------- */

void lb_recorder_note(lb_recorder *recorder, const char *kind, const char *message)
{
    json_t *of_kind = json_object_get(recorder->coverage.notes, kind);
    if (!of_kind) {
        of_kind = json_object();
        if (json_object_set_new(recorder->coverage.notes, kind, of_kind) != 0) return;
    }
    json_t *times = json_object_get(of_kind, message);
    if (!times && json_object_size(of_kind) >= 100) message = "and others", times = json_object_get(of_kind, message);
    json_object_set_new(of_kind, message, json_integer(times ? json_integer_value(times) + 1 : 1));
    recorder->coverage.changed = true;
}

static lb_status write_table(lb_recorder *recorder, const char *name, const char *json, lb_err *err)
{
    return recorder->archive.queue ? lb_write_queue_table(recorder->archive.queue, name, json, err)
                                   : lb_writer_table(recorder->archive.writer, name, json, err);
}

/* malloc'ed; NULL when out of memory. */
static char *coverage_text(const lb_recorder *recorder, bool closed)
{
    const lb_keep *keep = &recorder->keep;
    json_t *table = json_pack(
        "{s:i, s:i, s:s, s:s, s:O, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:O, s:o*, s:o*}", "rank", recorder->rank,
        "world", recorder->world, "level_asked", lb_keep_level_name(keep->asked), "level",
        lb_keep_level_name(keep->reached), "levels", recorder->coverage.levels, "steps",
        (json_int_t)recorder->coverage.n_steps, "ops", (json_int_t)recorder->coverage.n_ops, "values",
        (json_int_t)recorder->coverage.n_values, "unseen_writes", (json_int_t)recorder->coverage.n_unseen,
        "skipped_values", (json_int_t)keep->skipped_values, "skipped_bytes", (json_int_t)keep->skipped_bytes, "closed",
        closed, "notes", recorder->coverage.notes, "devices", lb_devices_account(&recorder->devices), "stopped",
        recorder->dead ? json_string(recorder->why.message) : NULL);
    char *text = table ? json_dumps(table, JSON_COMPACT) : NULL;
    json_decref(table);
    return text;
}

static lb_status write_coverage(lb_recorder *recorder, bool closed, lb_err *err)
{
    if (!recorder->archive.writer) return LB_OK;
    char *text = coverage_text(recorder, closed);
    lb_status status = text ? write_table(recorder, "coverage", text, err) : lb_recorder_no_memory(err);
    free(text);
    recorder->coverage.changed = false;
    return status;
}

/* What was committed stays, and says why it ended. On a full disk there is room for that where the step in flight was
 * cut off. */
static void write_last_words(lb_recorder *recorder)
{
    char *text = recorder->archive.writer ? coverage_text(recorder, false) : NULL;
    if (text && (lb_writer_table(recorder->archive.writer, "coverage", text, NULL) != LB_OK ||
                 lb_writer_commit(recorder->archive.writer, NULL) != LB_OK))
        lb_writer_last_table(recorder->archive.writer, "coverage", text, NULL);
    free(text);
}

lb_status lb_recorder_die(lb_recorder *recorder, const lb_err *err)
{
    if (recorder->dead) return err->status;
    recorder->dead = true;
    recorder->why = *err;
    lb_value_bytes_drop(recorder);
    lb_in_flight_drop(&recorder->in_flight, false);
    if (lb_write_queue_free(recorder->archive.queue)) recorder->archive.queue = NULL;
    lb_flight_stage_free(recorder->stage);
    recorder->stage = NULL;
    lb_program_free(recorder->program);
    recorder->program = NULL;
    lb_flight_ring_free(recorder->ring.flight);
    recorder->ring.flight = NULL;
    lb_tracked_set_release(&recorder->storages);
    lb_sharding_notes_release(&recorder->shardings);
    recorder->unmeasured.n = 0;
    if (!recorder->archive.queue) write_last_words(recorder);
    return err->status;
}

/* ---- life-cycle -------------------------------------------------------------------------------------------------- */

static void recorder_free(lb_recorder *recorder, bool forked)
{
    if (!recorder) return;
    lb_value_bytes_drop(recorder);
    lb_in_flight_drop(&recorder->in_flight, forked);
    lb_devices_close(&recorder->devices, forked);
    lb_graphs_release(&recorder->graphs);
    lb_hash_release(&recorder->run.by_key);
    free(recorder->promises.unheld);
    lb_flight_stage_free(recorder->stage);
    lb_program_free(recorder->program);
    lb_flight_ring_free(recorder->ring.flight);
    lb_tracked_set_release(&recorder->storages);
    lb_sharding_notes_release(&recorder->shardings);
    lb_op_context_release(&recorder->context);
    lb_keep_release(&recorder->keep);
    lb_like_close(recorder->like);
    lb_operation_pending_free(recorder->spare);
    free(recorder->ahead.list);
    free(recorder->unmeasured.list);
    free(recorder->unclassified.list);
    json_decref(recorder->coverage.notes);
    json_decref(recorder->coverage.levels);
    free(recorder->archive.folder);
    free(recorder->archive.path);
    pthread_mutex_destroy(&recorder->lock);
    free(recorder);
}

static uint64_t quarter_of_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size / 4 : 1ull << 30;
}

static lb_status open_archive(lb_recorder *recorder, const char *folder, const lb_recorder_options *options,
                              lb_err *err)
{
    const int why = lb_output_folder_make(folder, (lb_output_sync)options->sync);
    if (why && why != EEXIST) return lb_fail(err, LB_ERR_IO, "cannot create the folder %s: %s", folder, strerror(why));
    if (options->close_each && options->ring)
        return lb_fail(err, LB_ERR_INVALID, "a ring is written at its end: there is nothing to close after each step");
    recorder->archive.close_each = options->close_each;
    if (options->close_each && !(recorder->archive.folder = strdup(folder))) return lb_recorder_no_memory(err);
    recorder->archive.path = options->close_each ? lb_capture_part_path(folder, options->rank, 0)
                                                 : lb_capture_archive_path(folder, options->rank);
    if (!recorder->archive.path) return lb_recorder_no_memory(err);
    lb_writer_options writing = LB_WRITER_OPTIONS_INIT;
    writing.overwrite = options->overwrite;
    writing.budget_bytes = options->budget_bytes;
    writing.sync = options->sync;
    writing.in_place = options->close_each;
    return lb_writer_open(recorder->archive.path, &writing, &recorder->archive.writer, err);
}

lb_status lb_recorder_open(const char *folder, const lb_recorder_options *options, lb_recorder **recorder, lb_err *err)
{
    *recorder = NULL;
    if (options->size != sizeof *options)
        return lb_fail(err, LB_ERR_INVALID, "lb_recorder_options of another version of lastbit");
    lb_recorder *opened = calloc(1, sizeof *opened);
    if (!opened) return lb_recorder_no_memory(err);
    pthread_mutex_init(&opened->lock, NULL);
    opened->rank = options->rank;
    opened->world = options->world;
    opened->archive.budget_bytes = options->budget_bytes;
    opened->serial = 1;
    opened->in_flight.end = &opened->in_flight.first;
    opened->coverage.notes = json_object();
    opened->coverage.levels = json_array();
    lb_recorder_options chosen = *options;
    if (options->ring && options->level == LB_LEVEL_AUTO) chosen.level = LB_LEVEL_SOURCES;
    lb_status status = opened->coverage.notes && opened->coverage.levels ? lb_keep_init(&opened->keep, &chosen, err)
                                                                         : lb_recorder_no_memory(err);
    if (status == LB_OK && lb_recorder_scope(opened, "", NULL, LB_NONE) != 0) status = lb_recorder_no_memory(err);
    if (status == LB_OK && options->like && *options->like)
        status = lb_like_open(options->like, options->rank, &opened->like, err);
    if (status == LB_OK) status = open_archive(opened, folder, options, err);
    if (status == LB_OK && options->ring) {
        opened->ring.flight =
            lb_flight_ring_new(options->ring, options->ring_bytes ? options->ring_bytes : quarter_of_memory());
        if (!opened->ring.flight || (options->ring_files && !lb_flight_ring_keep_files(opened->ring.flight, folder,
                                                                                       options->rank, options->sync)))
            status = lb_recorder_no_memory(err);
        opened->ring.files = options->ring_files;
        opened->ring.steps = options->ring;
    }
    if (status != LB_OK) {
        lb_writer_abandon(opened->archive.writer);
        recorder_free(opened, false);
        return status;
    }
    *recorder = opened;
    return LB_OK;
}

static void remove_ring_files(const lb_recorder *recorder)
{
    char *folder = strdup(recorder->archive.path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash) *slash = 0;
    if (slash) lb_ring_files_remove(folder, recorder->rank);
    free(folder);
}

lb_status lb_recorder_close(lb_recorder *recorder, lb_err *err)
{
    if (!recorder) return LB_OK;
    lb_status status = LB_OK;
    if (!recorder->dead && recorder->program) status = lb_recorder_step_end(recorder, false, err);
    if (!recorder->dead && status == LB_OK) status = write_coverage(recorder, true, err);
    if (recorder->dead && !recorder->stopped && status == LB_OK)
        status =
            lb_fail(err, recorder->why.status, "recording stopped before the program ended: %s", recorder->why.message);
    lb_write_queue_free(recorder->archive.queue);
    if (recorder->ring.flight && recorder->ring.files == 1) remove_ring_files(recorder);
    lb_status closed = lb_writer_close(recorder->archive.writer, status == LB_OK ? err : NULL);
    recorder_free(recorder, false);
    return status == LB_OK ? closed : status;
}

void lb_recorder_abandon(lb_recorder *recorder)
{
    if (!recorder) return;
    if (lb_write_queue_free(recorder->archive.queue)) lb_writer_abandon(recorder->archive.writer);
    recorder_free(recorder, true);
}

void lb_recorder_stop(lb_recorder *recorder, const char *why)
{
    lb_err err = LB_ERR_INIT;
    lb_fail(&err, LB_ERR_STATE, "%s", why);
    pthread_mutex_lock(&recorder->lock);
    if (!recorder->dead) recorder->stopped = true;
    lb_recorder_die(recorder, &err);
    pthread_mutex_unlock(&recorder->lock);
}

const char *lb_recorder_path(const lb_recorder *recorder)
{
    return recorder->archive.path;
}

void lb_recorder_flush(lb_recorder *recorder)
{
    lb_write_queue_drain(recorder->archive.queue, NULL);
}

/* For questions: only the lock changes. */
static void lock_const(const lb_recorder *recorder)
{
    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&recorder->lock);
}

static void unlock_const(const lb_recorder *recorder)
{
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&recorder->lock);
}

uint64_t lb_recorder_bytes(const lb_recorder *recorder)
{
    lock_const(recorder); /* so that nothing comes behind what is waited for */
    lb_write_queue_drain(recorder->archive.queue, NULL);
    const uint64_t bytes = lb_writer_bytes(recorder->archive.writer) +
                           (recorder->ring.flight ? lb_flight_ring_bytes(recorder->ring.flight) : 0);
    unlock_const(recorder);
    return bytes;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

lb_status lb_recorder_lock(lb_recorder *recorder, bool in_step, lb_err *err)
{
    pthread_mutex_lock(&recorder->lock);
    if (recorder->dead) return lb_fail(err, LB_ERR_STATE, "recording has stopped: %s", recorder->why.message);
    return !in_step || recorder->program ? LB_OK : lb_fail(err, LB_ERR_STATE, "no step is being recorded");
}

bool lb_recorder_between_steps(lb_recorder *recorder)
{
    if (recorder->program) return false;
    lb_recorder_note(recorder, "skipped", "what a thread did while another one ended the step is in no step");
    return true;
}

lb_status lb_recorder_unlock(lb_recorder *recorder, lb_status status)
{
    pthread_mutex_unlock(&recorder->lock);
    return status;
}

lb_status lb_recorder_settled(lb_recorder *recorder, lb_status status, const lb_err *cause, lb_err *err)
{
    if (status != LB_OK) {
        lb_recorder_die(recorder, cause);
        lb_fail(err, status, "%s", cause->message);
    }
    return lb_recorder_unlock(recorder, status);
}

/* Of parameters and states that the last program wrote, or took over, and whose bytes were not kept: a step that begins
 * now finds them as sources. */
static uint64_t carried_bytes(const lb_recorder *recorder)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < recorder->storages.n; i++) {
        const lb_tracked *tracked = recorder->storages.list[i];
        bool tensor = false, kept = false;
        for (uint32_t r = 0; r < tracked->n_roles; r++)
            tensor |= tracked->roles[r].kind == LB_SOURCE_PARAMETER || tracked->roles[r].kind == LB_SOURCE_STATE;
        for (uint32_t w = 0; w < tracked->n_windows && tensor; w++) kept |= tracked->windows[w].kept;
        if (tensor && !kept && tracked->n_windows && tracked->program + 1 == recorder->serial) bytes += tracked->bytes;
    }
    return bytes;
}

/* The level that the step reached, for coverage; and why it is not a higher one, where that was not asked for. */
static void note_level(lb_recorder *recorder)
{
    const lb_keep *keep = &recorder->keep;
    const char *name = lb_keep_level_name(keep->reached);
    json_t *last = json_array_get(recorder->coverage.levels, json_array_size(recorder->coverage.levels) - 1);
    const json_int_t step = (json_int_t)recorder->program->step;
    if (!last || strcmp(json_string_value(json_object_get(last, "level")), name) != 0) {
        json_array_append_new(recorder->coverage.levels, json_pack("{s:I, s:s}", "from", step, "level", name));
        recorder->coverage.changed = true;
    }
    if (keep->asked != LB_LEVEL_AUTO || keep->reached == LB_LEVEL_OPS || recorder->ring.flight) return;
    lb_recorder_note(recorder, "level",
                     keep->lean ? "the total is used up: what a step takes over from the one before is not kept again"
                     : keep->reached == LB_LEVEL_LAYERS
                         ? "layers: with the results of all ops a step takes more than auto keeps of one"
                         : "sources: with the inputs and outputs of layers a step takes more than auto keeps of one");
}

/* A step that never closes grows by an iteration at a time: those before are dropped, and what is left says so. */
lb_status lb_recorder_bound_ring(lb_recorder *recorder, uint8_t phase, lb_err *err)
{
    const bool again = recorder->ring.phase == LB_PHASE_OPTIMIZER && phase == LB_PHASE_FORWARD;
    if (phase <= LB_PHASE_OPTIMIZER) recorder->ring.phase = phase;
    if (!again || recorder->ring.over || ++recorder->ring.cycles < 2 * recorder->ring.steps) return LB_OK;
    lb_program *fresh = lb_program_new(), *old = recorder->program;
    if (!fresh) return lb_recorder_no_memory(err);
    lb_value_bytes_settle_all(recorder);
    LB_TRY(lb_in_flight_advance(recorder, true, err));
    recorder->promises.n_unheld = 0;
    fresh->step = old->step, fresh->rank = old->rank, fresh->world = old->world;
    recorder->program = fresh;
    recorder->serial++;
    fresh->shard = lb_program_string(fresh, old->shard == LB_NONE ? NULL : lb_program_text(old, old->shard));
    lb_program_free(old);
    lb_flight_ring_drop_step(recorder->ring.flight);
    recorder->ring.base = true;
    recorder->ring.cycles = 0;
    recorder->ring.cut = true;
    lb_recorder_note(
        recorder, "ring",
        "a step went on for more than twice the iterations that the ring holds: its first ones were dropped");
    return LB_OK;
}

lb_status lb_recorder_step_begin(lb_recorder *recorder, int64_t step, const char *shard, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status != LB_OK) return lb_recorder_unlock(recorder, status);
    if (recorder->program)
        return lb_recorder_unlock(
            recorder, lb_fail(err, LB_ERR_STATE, "step %lld is still open", (long long)recorder->program->step));
    lb_err cause = LB_ERR_INIT;
    recorder->program = lb_program_new();
    if (!recorder->program) return lb_recorder_settled(recorder, lb_recorder_no_memory(&cause), &cause, err);
    recorder->serial++;
    recorder->program->step = step;
    recorder->program->rank = recorder->rank;
    recorder->program->world = recorder->world;
    recorder->program->shard = lb_program_name(recorder->program, shard);
    if (recorder->like && lb_like_step(recorder->like, step, &recorder->keep.asked, &cause) != LB_OK)
        return lb_recorder_settled(recorder, cause.status, &cause, err);
    if (recorder->like) recorder->keep.level = recorder->keep.asked;
    const bool unlimited = recorder->ring.flight || recorder->archive.queue; /* or the queue's thread has the writer */
    lb_keep_step(&recorder->keep, unlimited ? 0 : lb_writer_bytes(recorder->archive.writer), carried_bytes(recorder));
    if (recorder->keep.asked == LB_LEVEL_AUTO && recorder->keep.level > LB_LEVEL_SOURCES &&
        !(recorder->stage = lb_flight_stage_new()))
        return lb_recorder_settled(recorder, lb_recorder_no_memory(&cause), &cause, err);
    recorder->n_nonfinite = recorder->unclassified.n = 0;
    recorder->ring.base = recorder->ring.flight && lb_flight_ring_step(recorder->ring.flight);
    recorder->ring.phase = LB_PHASE_OTHER;
    recorder->ring.cycles = 0;
    recorder->ring.cut = false;
    return lb_recorder_unlock(recorder, LB_OK);
}

static lb_status write_step(lb_recorder *recorder, lb_err *err)
{
    if (recorder->ring.flight && !recorder->ring.over) {
        LB_TRY(lb_flight_ring_program(recorder->ring.flight, recorder->program, err));
        recorder->program = NULL;
        if (lb_ring_files_failed(recorder->ring.flight))
            lb_recorder_note(recorder, "ring", lb_ring_files_failed(recorder->ring.flight));
        return LB_OK;
    }
    if (recorder->ring.flight) {
        LB_TRY(lb_flight_ring_program(recorder->ring.flight, recorder->program, err));
        recorder->program = NULL;
        LB_TRY(lb_flight_ring_flush(recorder->ring.flight, recorder->archive.writer, err));
        lb_flight_ring_free(recorder->ring.flight);
        recorder->ring.flight = NULL;
        recorder->ring.over = false;
    } else if (recorder->archive.queue) {
        lb_program *program = recorder->program;
        recorder->program = NULL;
        LB_TRY(lb_write_queue_program(recorder->archive.queue, program, err));
    } else {
        LB_TRY(lb_writer_program(recorder->archive.writer, recorder->program, err));
    }
    if (recorder->coverage.changed || recorder->coverage.n_steps <= 2) LB_TRY(write_coverage(recorder, false, err));
    return recorder->archive.queue ? lb_write_queue_commit(recorder->archive.queue, err)
                                   : lb_writer_commit(recorder->archive.writer, err);
}

/* The step is written and committed: where it is the last of its archive, that is closed. */
static lb_status turn_archive(lb_recorder *recorder, lb_err *err)
{
    if (!recorder->archive.close_each || ++recorder->archive.in_part < recorder->archive.close_each) return LB_OK;
    char *next = lb_capture_part_path(recorder->archive.folder, recorder->rank, ++recorder->archive.part);
    if (!next) return lb_recorder_no_memory(err);
    recorder->archive.in_part = 0;
    const lb_status status = recorder->archive.queue ? lb_write_queue_turn(recorder->archive.queue, next, err)
                                                     : lb_writer_turn(recorder->archive.writer, next, err);
    free(next);
    return status;
}

static lb_status settle_all(lb_recorder *recorder, lb_err *err)
{
    const lb_tracked_set *all = &recorder->storages;
    for (uint32_t i = 0; i < all->n; i++)
        if (all->list[i]->n_deferred && all->list[i]->program == recorder->serial)
            LB_TRY(lb_value_intake_settle(recorder, all->list[i], err));
    lb_value_bytes_settle_all(recorder);
    recorder->promises.n_unheld = 0;
    return lb_in_flight_advance(recorder, true, err);
}

static int by_id(const void *a, const void *b)
{
    int64_t x = (*(lb_tracked *const *)a)->id, y = (*(lb_tracked *const *)b)->id;
    return (x > y) - (x < y);
}

/* A gradient is known for one only when backward has ended: its earlier versions get the name here. */
static lb_status name_values(lb_recorder *recorder, lb_err *err)
{
    lb_program *program = recorder->program;
    lb_tracked **named = malloc(((size_t)recorder->storages.n + 1) * sizeof named[0]);
    if (!named) return lb_recorder_no_memory(err);
    size_t n = 0;
    for (uint32_t i = 0; i < recorder->storages.n; i++) {
        lb_tracked *tracked = recorder->storages.list[i];
        if (tracked->n_roles && tracked->program == recorder->serial) named[n++] = tracked;
    }
    qsort(named, n, sizeof named[0], by_id);
    for (uint32_t v = 0; v < program->n_values && n; v++) {
        lb_value *value = &program->values[v];
        if (value->name != LB_NONE) continue;
        lb_tracked key = {.id = value->storage}, *wanted = &key;
        lb_tracked **found = bsearch(&wanted, named, n, sizeof named[0], by_id);
        int64_t first, last;
        if (!found || lb_layout_dense_range(&value->layout, &first, &last, NULL) != LB_OK) continue;
        const int64_t width = (int64_t)(lb_dtype_bits(value->dtype) / 8);
        const lb_tracked_role *role = lb_tracked_find_role(*found, first * width, last * width);
        if (!role) continue;
        value->flags |= role->flags;
        value->name = lb_program_name(program, role->name);
    }
    free(named);
    return LB_OK;
}

lb_status lb_recorder_step_end(lb_recorder *recorder, bool complete, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, true, err);
    if (status != LB_OK) return lb_recorder_unlock(recorder, status);
    lb_err cause = LB_ERR_INIT;
    status = settle_all(recorder, &cause);
    lb_devices_hear(recorder);
    if (status == LB_OK) status = lb_phase_settle(recorder, &cause);
    if (status == LB_OK) status = name_values(recorder, &cause);
    if (status == LB_OK) status = lb_routing_find(recorder->program, &cause);
    if (status == LB_OK) status = lb_sharding_notes_apply(&recorder->shardings, recorder->program, &cause);
    lb_sharding_notes_sweep(&recorder->shardings, &recorder->storages);
    if (status == LB_OK) status = lb_value_bytes_unstage(recorder, &cause);
    recorder->coverage.n_steps++;
    recorder->program->complete = complete && !recorder->ring.cut;
    recorder->program->level = (uint8_t)recorder->keep.reached;
    note_level(recorder);
    if (status == LB_OK) status = write_step(recorder, &cause);
    if (status == LB_OK) status = turn_archive(recorder, &cause);
    if (status == LB_ERR_LIMIT && !recorder->ring.flight) { /* not even the program fits: what is committed stays */
        long long step = (long long)recorder->program->step;
        lb_err_clear(&cause);
        lb_fail(&cause, status, "the budget of %llu bytes is used up in step %lld",
                (unsigned long long)recorder->archive.budget_bytes, step);
    }
    lb_program_free(recorder->program);
    recorder->program = NULL;
    return lb_recorder_settled(recorder, status, &cause, err);
}

void lb_recorder_step_skip(lb_recorder *recorder)
{
    pthread_mutex_lock(&recorder->lock);
    lb_value_bytes_settle_all(recorder);
    lb_tracked_set_distrust(&recorder->storages);
    pthread_mutex_unlock(&recorder->lock);
}

bool lb_recorder_in_step(const lb_recorder *recorder)
{
    lock_const(recorder);
    const bool in_step = recorder->program != NULL;
    unlock_const(recorder);
    return in_step;
}

uint32_t lb_recorder_next_op(const lb_recorder *recorder)
{
    lock_const(recorder);
    const uint32_t next = lb_graph_is_captured(recorder) ? recorder->graphs.captured->n_ops
                          : recorder->program            ? recorder->program->n_ops
                                                         : 0;
    unlock_const(recorder);
    return next;
}

uint64_t lb_recorder_nonfinite(lb_recorder *recorder)
{
    pthread_mutex_lock(&recorder->lock);
    lb_value_bytes_settle_all(recorder);
    lb_err cause = LB_ERR_INIT;
    if (!recorder->dead && lb_in_flight_advance(recorder, true, &cause) != LB_OK) lb_recorder_die(recorder, &cause);
    const uint64_t n = recorder->n_nonfinite;
    pthread_mutex_unlock(&recorder->lock);
    return n;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

lb_status lb_recorder_table(lb_recorder *recorder, const char *name, const char *json, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status != LB_OK) return lb_recorder_unlock(recorder, status);
    lb_err cause = LB_ERR_INIT;
    status = write_table(recorder, name, json, &cause);
    /* The flight recorder's archive gets no commit before a trigger; what a run was must outlive a kill. */
    if (status == LB_OK && recorder->ring.flight) status = lb_writer_commit(recorder->archive.writer, &cause);
    return lb_recorder_settled(recorder, status, &cause, err);
}

/* ---- flight recorder --------------------------------------------------------------------------------------------- */

lb_status lb_recorder_trigger(lb_recorder *recorder, const char *why, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status != LB_OK) return lb_recorder_unlock(recorder, status);
    lb_err cause = LB_ERR_INIT;
    lb_recorder_note(recorder, "trigger", why);
    if (recorder->ring.flight && recorder->program) {
        recorder->ring.over = true;
    } else if (recorder->ring.flight) {
        status = lb_flight_ring_flush(recorder->ring.flight, recorder->archive.writer, &cause);
        lb_flight_ring_free(recorder->ring.flight);
        recorder->ring.flight = NULL;
        if (status == LB_OK) status = write_coverage(recorder, false, &cause);
        if (status == LB_OK) status = lb_writer_commit(recorder->archive.writer, &cause);
    }
    return lb_recorder_settled(recorder, status, &cause, err);
}
