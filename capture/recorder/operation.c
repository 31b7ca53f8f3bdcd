/* Recording one op: arguments before it ran, results and new versions after.
 *
 * An op that writes no argument may be passed as a whole after it ran; for others the two halves matter: what it reads
 * must be digested and kept before it is overwritten. */
#include "recorder/leftover_digest.h"
#include "recorder/operation.h"
#include "recorder/recorder.h"
#include "recorder/value_intake.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct target { /* a written argument */
    lb_host_tensor seen;
    bool overwritten;
} target;

struct lb_pending {
    lb_pending *next; /* spare list */
    lb_op op;
    lb_op_site at;
    char name[160];
    uint64_t serial; /* of its program */
    uint64_t taped;  /* serial of the tape that has it, 0: none has */
    uint32_t entry;  /* of the tape; LB_NONE: it is of no step, and of no graph */
    bool undefined;  /* an input that is only read has undefined bytes */
    lb_unclassified loose;
    uint32_t first_row; /* of the program's ops when it began */
    int64_t *read;      /* storages of all arguments */
    uint32_t n_read, cap_read;
    target *written;
    uint32_t n_written, cap_written;
    bool late;            /* what it copies to the host may arrive later; */
    lb_host_tensor *from; /* tensors of devices that it only reads then */
    uint32_t n_from, cap_from;
    lb_arg *args; /* scratch */
    uint32_t cap_args;
};

static lb_status no_memory(lb_err *err)
{
    return lb_fail(err, LB_ERR_NOMEM, "out of memory in the recorder");
}

static lb_pending *take_pending(lb_recorder *recorder)
{
    lb_pending *pending = recorder->spare;
    if (!pending) return calloc(1, sizeof *pending);
    recorder->spare = pending->next;
    pending->n_read = pending->n_written = pending->n_from = 0;
    pending->undefined = false;
    pending->taped = 0;
    return pending;
}

static void put_pending(lb_recorder *recorder, lb_pending *pending)
{
    pending->next = recorder->spare;
    recorder->spare = pending;
}

void lb_operation_pending_free(lb_pending *pending)
{
    while (pending) {
        lb_pending *next = pending->next;
        free(pending->read);
        free(pending->written);
        free(pending->from);
        free(pending->args);
        free(pending);
        pending = next;
    }
}

const lb_host_tensor *lb_operation_late_from(const lb_pending *pending)
{
    return pending->n_from ? pending->from : NULL;
}

static bool reserve(void **array, uint32_t *capacity, uint32_t need, size_t size)
{
    void *grown = lb_array_fit(*array, capacity, need, size);
    if (grown) *array = grown;
    return grown;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* These bytes are not read again; what is known of the others stays. */
static lb_status before_write(lb_recorder *recorder, const lb_host_tensor *seen, lb_err *err)
{
    lb_tracked *storage;
    LB_TRY(lb_value_intake_storage(recorder, seen, &storage, err));
    lb_value_bytes_settle(recorder, storage);
    const uint64_t width = lb_dtype_bits(seen->dtype) / 8;
    if ((uint64_t)lb_layout_numel(&seen->layout) * width == storage->bytes || !lb_device_bytes_readable(storage, seen))
        return LB_OK;
    int64_t first, last;
    LB_TRY(lb_layout_dense_range(&seen->layout, &first, &last, err));
    lb_leftover_before_part(recorder, storage, (uint64_t)first * width, (uint64_t)last * width);
    storage->partial = true;
    return LB_OK;
}

static lb_status add_tensor(lb_recorder *recorder, lb_pending *pending, const lb_recorded_operand *operand,
                            unsigned flags, uint32_t *row, lb_err *err)
{
    const lb_host_tensor *seen = operand->u.tensor;
    unsigned how = 0;
    if (flags & LB_OPERAND_WRITTEN) LB_TRY(before_write(recorder, seen, err));
    if (flags & LB_OPERAND_OVERWRITTEN) how |= LB_READ_OVERWRITTEN;
    if (pending->op.flags & LB_OP_VIEW) how |= LB_READ_LAYOUT;
    LB_TRY(lb_value_intake_value(recorder, &pending->at, seen, how, row, err));
    if (!reserve((void **)&pending->read, &pending->cap_read, pending->n_read + 1, sizeof pending->read[0]))
        return no_memory(err);
    pending->read[pending->n_read++] = seen->storage;
    pending->at.reads_floats |= lb_dtype_is_float(seen->dtype);
    if (flags & LB_OPERAND_CHANGED && recorder->program->values[*row].flags & LB_VALUE_UNDEFINED)
        pending->undefined = true;
    if (flags & LB_OPERAND_WRITTEN) {
        if (!reserve((void **)&pending->written, &pending->cap_written, pending->n_written + 1,
                     sizeof pending->written[0]))
            return no_memory(err);
        pending->written[pending->n_written++] = (target){*seen, flags & LB_OPERAND_OVERWRITTEN};
    } else if (recorder->program->values[*row].flags & LB_VALUE_UNDEFINED) {
        pending->undefined |=
            lb_layout_numel(&seen->layout) > 0; /* empty(0) stands for an argument that is not there */
    }
    if (!pending->late || seen->device == 0 || flags & LB_OPERAND_WRITTEN) return LB_OK;
    if (!reserve((void **)&pending->from, &pending->cap_from, pending->n_from + 1, sizeof pending->from[0]))
        return no_memory(err);
    pending->from[pending->n_from++] = *seen;
    return LB_OK;
}

/* Fills `arg` from `operand`; lists put their items into the program first. `depth` bounds nesting. */
static lb_status add_arg(lb_recorder *recorder, lb_pending *pending, const lb_recorded_operand *operand, unsigned flags,
                         int depth, lb_arg *arg, lb_err *err)
{
    memset(arg, 0, sizeof *arg);
    arg->tag = operand->tag;
    flags |= operand->flags;
    switch (operand->tag) {
    case LB_ARG_VALUE: return add_tensor(recorder, pending, operand, flags, &arg->u.value, err);
    case LB_ARG_FLOAT: arg->u.f = operand->u.f; return LB_OK;
    case LB_ARG_STRING:
        arg->u.string = lb_program_name(recorder->program, operand->u.text ? operand->u.text : "");
        return arg->u.string == LB_NONE ? no_memory(err) : LB_OK;
    case LB_ARG_LIST:
    case LB_ARG_COMPLEX: break;
    case LB_ARG_NONE: return LB_OK;
    default: arg->u.i = operand->u.i; return LB_OK;
    }
    if (depth > 8) return lb_fail(err, LB_ERR_INVALID, "an argument of %s nests deeper than 8 lists", pending->name);
    lb_arg few[16] = {{0}}, *items = operand->count <= 16 ? few : malloc(operand->count * sizeof items[0]);
    if (!items) return no_memory(err);
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < operand->count && status == LB_OK; i++)
        status = add_arg(recorder, pending, &operand->u.items[i], flags, depth + 1, &items[i], err);
    if (status == LB_OK) {
        arg->count = operand->count;
        arg->u.first = lb_program_add_args(recorder->program, items, operand->count);
        if (arg->u.first == LB_NONE) status = no_memory(err);
    }
    if (items != few) free(items);
    return status;
}

static void stand(lb_recorder *recorder, lb_pending *pending, const lb_recorded_call *call)
{
    uint8_t phase;
    pending->loose = lb_phase_of(recorder, call, &phase);
    pending->first_row = recorder->program->n_ops;
    pending->late = call->non_blocking || call->flags & LB_OP_COMPOSITE;
    snprintf(pending->name, sizeof pending->name, "%s", call->name);
    pending->at = (lb_op_site){.name = pending->name,
                               .layer = lb_op_context_scope_path(&recorder->context, call->place.scope),
                               .scope = lb_op_context_scope_row(recorder, call->place.scope),
                               .call = call->place.call,
                               .phase = phase,
                               .thread = call->thread};
    const bool view = call->flags & LB_OP_VIEW;
    pending->at.verify = !view && (pending->at.phase == LB_PHASE_OPTIMIZER || call->flags & LB_OP_COLLECTIVE);
    pending->at.keep =
        !view && lb_keep_wants_result(&recorder->keep, pending->at.layer, pending->name, &pending->at.keep_for);
    /* What each rank sent is evidence that no replay of one rank can make again. */
    const lb_liking liking = recorder->like
                                 ? lb_like_op(recorder->like, pending->at.phase, pending->at.layer, pending->name)
                                 : LB_LIKING_UNKNOWN;
    if (liking != LB_LIKING_UNKNOWN) pending->at.keep = !view && liking == LB_LIKING_KEPT;
    /* What the other capture kept of its inputs it says itself, where they come from. */
    pending->at.keep_inputs = pending->at.keep && (liking == LB_LIKING_UNKNOWN || recorder->keep.level == LB_LEVEL_OPS);
    if (call->flags & LB_OP_COLLECTIVE && !recorder->ring.flight &&
        lb_keep_wants(&recorder->keep, LB_FOR_SOURCE, "", "")) {
        pending->at.keep = pending->at.keep_inputs = true;
        pending->at.keep_for = LB_FOR_SOURCE;
    }
}

/* Is a name's first part, of so many letters, one of the list? */
static bool is_among(const char *name, size_t length, const char *const *names, size_t n)
{
    bool found = false;
    for (size_t i = 0; i < n; i++) found |= strlen(names[i]) == length && !strncmp(names[i], name, length);
    return found;
}

/* A product that is added to beta times its first argument does not read that argument where beta is 0: "nan and inf in
 * it will not be propagated" (torch.addmm, torch.baddbmm). Programs hand over memory that was never written. */
static bool leaves_first_unread(const lb_recorded_call *call)
{
    static const char *const names[] = {"aten::addmm", "aten::baddbmm", "aten::addbmm",
                                        "aten::addmv", "aten::addr",    "aten::_addmm_activation"};
    const size_t n = strcspn(call->name, "."), base = n && call->name[n - 1] == '_' ? n - 1 : n;
    const uint32_t beta = strcmp(call->name + n, ".dtype") && strcmp(call->name + n, ".dtype_out") ? 3 : 4;
    if (!is_among(call->name, base, names, sizeof names / sizeof *names) || call->n_args <= beta) return false;
    const lb_recorded_operand *given = &call->args[beta];
    return (given->tag == LB_ARG_FLOAT && given->u.f == 0) || (given->tag == LB_ARG_INT && given->u.i == 0);
}

/* An op that gives its first argument with numbers put into it, as its twin does that writes the argument: where memory
 * that was never written is filled so, both give what was put there. One that adds to what is there reads it. */
static bool puts_into_first(const lb_recorded_call *call)
{
    static const char *const names[] = {
        "aten::index_copy",       "aten::index_put",          "aten::_index_put_impl", "aten::put",
        "aten::scatter",          "aten::slice_scatter",      "aten::select_scatter",  "aten::masked_scatter",
        "aten::diagonal_scatter", "aten::as_strided_scatter", "aten::index_fill"};
    enum { ACCUMULATE = 3 };
    const lb_recorded_operand *added = call->n_args > ACCUMULATE ? &call->args[ACCUMULATE] : NULL;
    return is_among(call->name, strcspn(call->name, "."), names, sizeof names / sizeof *names) &&
           !(added && added->tag == LB_ARG_BOOL && added->u.i);
}

static lb_status begin(lb_recorder *recorder, const lb_recorded_call *call, lb_pending *pending, lb_err *err)
{
    lb_program *program = recorder->program;
    stand(recorder, pending, call);
    pending->serial = recorder->serial;
    pending->op = (lb_op){.name = lb_program_name(program, call->name),
                          .scope = pending->at.scope,
                          .call = call->place.call,
                          .flags = call->flags,
                          .args = call->n_args,
                          .node_name = lb_program_name(program, call->node_name),
                          .node = call->node,
                          .phase = pending->at.phase,
                          .thread = call->thread,
                          .line = lb_op_context_line_row(recorder, call->line)};
    if (pending->op.name == LB_NONE || pending->at.scope == LB_NONE) return no_memory(err);
    if (!reserve((void **)&pending->args, &pending->cap_args, call->n_args, sizeof pending->args[0]))
        return no_memory(err);
    lb_ahead_measure(recorder, &pending->at, call);
    lb_status status = LB_OK;
    for (uint32_t a = 0; a < call->n_args && status == LB_OK; a++) {
        status = add_arg(recorder, pending, &call->args[a], 0, 0, &pending->args[a], err);
        if (a == 0 && pending->undefined && (leaves_first_unread(call) || puts_into_first(call)))
            pending->undefined = false;
    }
    lb_ahead_end(&recorder->ahead);
    LB_TRY(status);
    pending->op.first_arg = lb_program_add_args(program, pending->args, call->n_args);
    return pending->op.first_arg == LB_NONE ? no_memory(err) : LB_OK;
}

/* A graph is being captured: the op is part of it, or (of the host, and outside of every step) of nothing. NULL: it is
 * of the open step. */
static lb_pending *tape(lb_recorder *recorder, const lb_recorded_call *call)
{
    const bool taken = lb_graph_takes_op(recorder, call);
    lb_pending *pending = taken || !recorder->program ? take_pending(recorder) : NULL;
    if (!pending) return NULL;
    pending->taped = recorder->graphs.captured->serial;
    pending->entry = taken ? lb_graph_op_begin(recorder, call) : LB_NONE;
    return pending;
}

lb_status lb_recorder_op_begin(lb_recorder *recorder, const lb_recorded_call *call, lb_pending **pending, lb_err *err)
{
    *pending = NULL;
    pthread_mutex_lock(&recorder->lock);
    lb_err cause = LB_ERR_INIT;
    lb_status status = LB_OK;
    if (lb_graph_is_captured(recorder) && !recorder->dead && (*pending = tape(recorder, call))) {
        status = LB_OK;
    } else if (recorder->dead) {
        status = lb_fail(err, LB_ERR_STATE, "recording has stopped: %s", recorder->why.message);
    } else if (lb_recorder_between_steps(recorder)) {
        *pending = take_pending(recorder);
        if (*pending) (*pending)->serial = 0; /* of no program */
        status = *pending ? LB_OK : no_memory(err);
    } else {
        if (recorder->ring.flight && call->thread == 0) status = lb_recorder_bound_ring(recorder, call->phase, &cause);
        lb_pending *p = take_pending(recorder);
        if (status == LB_OK) status = p ? begin(recorder, call, p, &cause) : no_memory(&cause);
        if (status == LB_OK) {
            *pending = p;
        } else {
            if (p) put_pending(recorder, p);
            lb_recorder_die(recorder, &cause);
            lb_fail(err, status, "%s: %s", call->name, cause.message);
        }
    }
    pthread_mutex_unlock(&recorder->lock);
    return status;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Ops whose result takes only the shape of their argument. */
static bool takes_shape_only(const char *name)
{
    const char *base = strstr(name, "::");
    base = base ? base + 2 : name;
    size_t n = strcspn(base, ".");
    return strncmp(base, "new_", 4) == 0 || (n > 5 && strncmp(base + n - 5, "_like", 5) == 0);
}

/* Nothing that was computed goes into the results. */
static bool is_filling(const lb_pending *pending)
{
    uint32_t overwritten = 0;
    for (uint32_t w = 0; w < pending->n_written; w++) overwritten += pending->written[w].overwritten;
    return pending->n_read == overwritten || takes_shape_only(pending->name);
}

static bool was_read(const lb_pending *pending, int64_t storage)
{
    for (uint32_t i = 0; i < pending->n_read; i++)
        if (pending->read[i] == storage) return true;
    return false;
}

static lb_result_kind kind_of_results(const lb_pending *pending, bool deferred)
{
    lb_result_kind kind = {.source = LB_SOURCE_NOT, .deferred = deferred};
    if (pending->op.flags & LB_OP_RANDOM) kind.source = LB_SOURCE_RANDOM;
    if (pending->op.flags & LB_OP_COMPOSITE) kind.source = LB_SOURCE_OPAQUE;
    if (pending->op.flags & LB_OP_COLLECTIVE) kind.source = LB_SOURCE_COLLECTIVE;
    if (kind.source) kind.flags |= LB_VALUE_SOURCE;
    if (pending->op.flags & LB_OP_UNDEFINED || (pending->undefined && !takes_shape_only(pending->name)))
        kind.flags |= LB_VALUE_UNDEFINED;
    return kind;
}

/* Where the number `n` of `of` values that the op makes is copied from, if it is. A list of tensors is copied to a list
 * as long. */
static void come_from(lb_pending *pending, uint32_t n, uint32_t of)
{
    pending->at.late_copy = pending->n_from == of && !(pending->op.flags & LB_OP_COMPOSITE);
    pending->at.late_from = pending->n_from ? &pending->from[pending->at.late_copy ? n : 0] : NULL;
}

/* New versions of the written storages, then the values in them. An op that only changes its argument's layout
 * (`transpose_`) writes no byte. */
static lb_status add_written(lb_recorder *recorder, lb_pending *pending, const lb_recorded_operand *results, uint32_t n,
                             bool deferred, lb_err *err)
{
    const lb_result_kind kind = kind_of_results(pending, deferred);
    if (pending->op.flags & LB_OP_VIEW) return LB_OK;
    for (uint32_t row = 0; row < pending->n_written; row++) {
        lb_tracked *storage;
        LB_TRY(lb_value_intake_storage(recorder, &pending->written[row].seen, &storage, err));
        bool again = false;
        for (uint32_t before = 0; before < row && !again; before++)
            again = pending->written[before].seen.storage == pending->written[row].seen.storage;
        if (again) continue;
        lb_value_bytes_settle(recorder, storage); /* another thread may have read it meanwhile */
        lb_tracked_change(storage);
    }
    uint32_t few[16], *rows = pending->n_written <= 16 ? few : malloc(pending->n_written * sizeof rows[0]);
    if (!rows) return no_memory(err);
    lb_status status = LB_OK;
    for (uint32_t row = 0; row < pending->n_written && status == LB_OK; row++) {
        const lb_host_tensor *seen = &pending->written[row].seen;
        if (n == pending->n_written && results[row].tag == LB_ARG_VALUE &&
            results[row].u.tensor->storage == seen->storage)
            seen = results[row].u.tensor; /* `.out` may have resized it */
        lb_tracked *storage;
        status = lb_value_intake_storage(recorder, seen, &storage, err);
        if (status != LB_OK) break;
        lb_tracked_window *known = lb_tracked_find_window(storage, lb_tracked_window_hash(seen));
        come_from(pending, row, pending->n_written);
        if (known && known->row != LB_NONE)
            rows[row] = known->row; /* the same tensor twice in a list */
        else
            status = lb_value_intake_result(recorder, &pending->at, seen, kind, &rows[row], err);
    }
    if (status == LB_OK && pending->n_written) {
        pending->op.written = pending->n_written;
        pending->op.first_written = lb_program_add_refs(recorder->program, rows, pending->n_written);
        if (pending->op.first_written == LB_NONE) status = no_memory(err);
    }
    if (rows != few) free(rows);
    return status;
}

/* `again`: an earlier result of the same op has the same storage, as the gradients of a recurrent layer lie in one
 * buffer. */
static lb_status add_result(lb_recorder *recorder, lb_pending *pending, const lb_host_tensor *seen, bool deferred,
                            bool again, bool *alias, uint32_t *row, lb_err *err)
{
    lb_tracked *known = lb_tracked_set_find(&recorder->storages, seen->storage);
    *alias = known && was_read(pending, seen->storage);
    if (known && (deferred || again)) {
        /* The same tensor twice. Or a collective returns the argument that it is still writing: looking at the storage
         * would read it too early. */
        lb_tracked_window *written = lb_tracked_find_window(known, lb_tracked_window_hash(seen));
        if (written && written->row != LB_NONE) {
            *row = written->row;
            return LB_OK;
        }
    }
    if (*alias) return lb_value_intake_alias(recorder, &pending->at, seen, row, err);
    const lb_result_kind kind = kind_of_results(pending, deferred);
    /* A buffer from earlier, which the op returns without having been given it. */
    if (known && !again) {
        LB_TRY(lb_value_intake_storage(recorder, seen, &known, err));
        lb_value_bytes_settle(recorder, known);
        lb_tracked_change(known);
    }
    return lb_value_intake_result(recorder, &pending->at, seen, kind, row, err);
}

static bool has_storage(const lb_recorded_operand *results, uint32_t n, int64_t storage)
{
    for (uint32_t r = 0; r < n; r++)
        if (results[r].tag == LB_ARG_VALUE && results[r].u.tensor->storage == storage) return true;
    return false;
}

static lb_status add_results(lb_recorder *recorder, lb_pending *pending, const lb_recorded_operand *results, uint32_t n,
                             bool deferred, lb_err *err)
{
    uint32_t few[16], *rows = n <= 16 ? few : malloc(n * sizeof rows[0]);
    if (!rows) return no_memory(err);
    lb_status status = LB_OK;
    uint32_t aliases = 0, tensors = 0;
    for (uint32_t r = 0; r < n && status == LB_OK; r++) {
        if (results[r].tag == LB_ARG_NONE) {
            rows[pending->op.results++] = LB_NONE;
        } else if (results[r].tag == LB_ARG_VALUE) {
            bool alias = false;
            const lb_host_tensor *seen = results[r].u.tensor;
            const bool again = has_storage(results, r, seen->storage);
            come_from(pending, r, n);
            status = add_result(recorder, pending, seen, deferred, again, &alias, &rows[pending->op.results++], err);
            aliases += alias;
            tensors++;
        }
    }
    if (status == LB_OK && pending->op.results) {
        pending->op.first_result = lb_program_add_refs(recorder->program, rows, pending->op.results);
        if (pending->op.first_result == LB_NONE) status = no_memory(err);
    }
    if (!(pending->op.flags & LB_OP_MUTABLE) && tensors && aliases == tensors) pending->op.flags |= LB_OP_VIEW;
    if (aliases < tensors) pending->op.flags &= ~(uint32_t)LB_OP_VIEW;
    if (rows != few) free(rows);
    return status;
}

static lb_status finish(lb_recorder *recorder, lb_pending *pending, const lb_recorded_operand *results, uint32_t n,
                        bool deferred, uint32_t *op, lb_err *err)
{
    if (op) *op = LB_NONE;
    if (!pending) return lb_fail(err, LB_ERR_STATE, "no op was begun");
    pthread_mutex_lock(&recorder->lock);
    lb_err cause = LB_ERR_INIT;
    lb_status status = LB_OK;
    if (pending->taped) {
        if (recorder->graphs.captured && recorder->graphs.captured->serial == pending->taped)
            lb_graph_op_end(recorder, pending->entry, results, n, deferred, op);
    } else if (recorder->dead) {
        status = lb_fail(err, LB_ERR_STATE, "recording has stopped: %s", recorder->why.message);
    } else if (lb_recorder_between_steps(recorder)) {
        status = LB_OK;
    } else if (pending->serial != recorder->serial) {
        lb_recorder_note(recorder, "skipped",
                         "an op ended in another step than it began in"); /* a thread across steps */
    } else {
        pending->at.filled = is_filling(pending);
        status = add_written(recorder, pending, results, n, deferred, &cause);
        if (status == LB_OK) status = add_results(recorder, pending, results, n, deferred, &cause);
        if (status == LB_OK) status = lb_value_bytes_measure_late(recorder, &cause);
        for (uint32_t w = 0; w < pending->n_written && pending->loose; w++)
            lb_phase_made(&recorder->storages, pending->loose, pending->written[w].seen.storage);
        for (uint32_t r = 0; r < n && pending->loose; r++)
            if (results[r].tag == LB_ARG_VALUE)
                lb_phase_made(&recorder->storages, pending->loose, results[r].u.tensor->storage);
        if (status == LB_OK) {
            uint32_t row = lb_program_add_op(recorder->program, &pending->op);
            if (op) *op = row;
            recorder->coverage.n_ops++;
            if (row == LB_NONE)
                status = no_memory(&cause);
            else if (pending->loose == LB_UNCLASSIFIED_OPEN)
                status = lb_phase_remember(&recorder->unclassified, pending->first_row, row, &cause);
        }
        if (status != LB_OK) {
            lb_recorder_die(recorder, &cause);
            lb_fail(err, status, "%s: %s", pending->name, cause.message);
        }
    }
    put_pending(recorder, pending);
    pthread_mutex_unlock(&recorder->lock);
    return status;
}

lb_status lb_recorder_op_end(lb_recorder *recorder, lb_pending *pending, const lb_recorded_operand *results, uint32_t n,
                             uint32_t *op, lb_err *err)
{
    return finish(recorder, pending, results, n, false, op, err);
}

lb_status lb_recorder_op_defer(lb_recorder *recorder, lb_pending *pending, const lb_recorded_operand *results,
                               uint32_t n, uint32_t *op, lb_err *err)
{
    return finish(recorder, pending, results, n, true, op, err);
}

void lb_recorder_op_failed(lb_recorder *recorder, lb_pending *pending)
{
    if (!pending) return;
    pthread_mutex_lock(&recorder->lock);
    if (pending->taped) {
        if (recorder->graphs.captured && recorder->graphs.captured->serial == pending->taped)
            lb_graph_op_failed(recorder, pending->entry);
    } else if (!recorder->dead && recorder->program && pending->serial == recorder->serial) {
        pending->op.flags |= LB_OP_FAILED;
        lb_program_add_op(recorder->program, &pending->op);
        recorder->coverage.n_ops++;
        /* How much of its arguments it wrote before it raised is not known. */
        for (uint32_t w = 0; w < pending->n_written; w++) {
            lb_tracked *storage = lb_tracked_set_find(&recorder->storages, pending->written[w].seen.storage);
            if (!storage) continue;
            lb_value_bytes_settle(recorder, storage);
            lb_tracked_change(storage);
            lb_tracked_map_set_range(&storage->map, storage->bytes, 0, storage->bytes, LB_BYTES_UNKNOWN);
        }
    }
    put_pending(recorder, pending);
    pthread_mutex_unlock(&recorder->lock);
}

/* Groups have few members lists and many collectives, and a list may have thousands of ranks: one that an earlier
 * collective of the step has is named again. */
static uint32_t ranks_of_group(lb_program *program, const uint32_t *ranks, uint32_t n)
{
    enum { LOOKED_AT = 16 };
    for (uint32_t i = program->n_collectives; i-- > 0 && program->n_collectives - i <= LOOKED_AT;) {
        const lb_collective *earlier = &program->collectives[i];
        if (n && earlier->ranks == n && !memcmp(program->refs + earlier->first_rank, ranks, n * sizeof *ranks))
            return earlier->first_rank;
    }
    return lb_program_add_refs(program, ranks, n);
}

lb_status lb_recorder_collective(lb_recorder *recorder, uint32_t op, const char *group, const char *reduce,
                                 const char *algorithm, uint64_t sequence, const int32_t *ranks, uint32_t n_ranks,
                                 lb_err *err)
{
    pthread_mutex_lock(&recorder->lock);
    lb_status status = LB_OK;
    lb_program *program = recorder->program;
    if (lb_graph_is_captured(recorder) && !recorder->dead) {
        const lb_taped_collective told = {group, reduce, algorithm, sequence, (int32_t *)(uintptr_t)ranks, n_ranks};
        lb_graph_collective(recorder, op, &told);
    } else if (recorder->dead || !program || op >= program->n_ops) {
        status = lb_fail(err, LB_ERR_STATE, "no such op in the open step");
    } else {
        const uint32_t first = ranks_of_group(program, (const uint32_t *)ranks, n_ranks);
        lb_collective row = {.op = op,
                             .group = lb_program_name(program, group),
                             .reduce = lb_program_name(program, reduce),
                             .algorithm = lb_program_name(program, algorithm),
                             .sequence = sequence,
                             .first_rank = first,
                             .ranks = n_ranks};
        if (first == LB_NONE || lb_program_add_collective(program, &row) == LB_NONE) status = no_memory(err);
    }
    pthread_mutex_unlock(&recorder->lock);
    return status;
}
