/* While a graph is captured (see graph_tape.h): what is passed goes to its tape, and its values are measured by nodes
 * of the graph.
 *
 * Whether an op is part of the capture its tensors tell: they lie on the device, and their stream is being captured.
 * What the host computes meanwhile it computes once, and no run does so again. */
#include "recorder/recorder.h"

#include "base/array.h"
#include <stdlib.h>

/* ---- what belongs to a capture ----------------------------------------------------------------------------------- */

/* The first tensor of a device among them; NULL. */
static const lb_host_tensor *of_device(const lb_recorded_operand *operands, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const lb_recorded_operand *operand = &operands[i];
        const lb_host_tensor *seen = NULL;
        if (operand->tag == LB_ARG_VALUE && operand->u.tensor->device) seen = operand->u.tensor;
        if (operand->tag == LB_ARG_LIST) seen = of_device(operand->u.items, operand->count);
        if (seen) return seen;
    }
    return NULL;
}

static bool has_tensor(const lb_recorded_operand *operands, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (operands[i].tag == LB_ARG_VALUE ||
            (operands[i].tag == LB_ARG_LIST && has_tensor(operands[i].u.items, operands[i].count)))
            return true;
    return false;
}

/* Whether what is queued for this tensor now becomes part of the graph. Only a back end that works on streams can tell,
 * while it does. */
static bool is_captured(lb_recorder *recorder, const lb_host_tensor *seen)
{
    lb_device *device = lb_device_of(recorder, seen);
    if (!device || !device->ops->asynchronous || *device->ops->why_lost(device)) return true;
    return device->ops->is_capturing(device, seen->stream) || *device->ops->why_lost(device);
}

bool lb_graph_is_captured(const lb_recorder *recorder)
{
    return recorder->graphs.captured && !lb_graph_is_running(&recorder->run);
}

bool lb_graph_takes_op(lb_recorder *recorder, const lb_recorded_call *call)
{
    const lb_host_tensor *seen = of_device(call->args, call->n_args);
    return seen ? is_captured(recorder, seen) : !has_tensor(call->args, call->n_args); /* its results will tell */
}

bool lb_graph_takes(lb_recorder *recorder, const lb_host_tensor *tensors, uint32_t n)
{
    if (!lb_graph_is_captured(recorder)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (tensors[i].device) return is_captured(recorder, &tensors[i]);
    return !recorder->program;
}

/* ---- measuring in it --------------------------------------------------------------------------------------------- */

typedef struct wish { /* a value that a node is to measure */
    lb_device_work work;
    lb_device *device;
    void *stream;
    lb_taped_slot slot;
} wish;

typedef struct wishes {
    wish *list;
    uint32_t n;
    bool bytes; /* are wanted of each run, too */
    bool reads_floats;
} wishes;

static bool make_wish(lb_recorder *recorder, const lb_host_tensor *seen, bool bytes, wish *made)
{
    lb_tape *tape = recorder->graphs.captured;
    const uint32_t storage = lb_tape_find(tape, seen->storage);
    const size_t width = lb_dtype_bits(seen->dtype) / 8;
    lb_device *device = seen->device && width ? lb_device_of(recorder, seen) : NULL;
    int64_t first, last;
    if (storage == LB_NONE || !tape->storages[storage].version || !device || !device->ops->capture || !seen->data ||
        lb_layout_dense_range(&seen->layout, &first, &last, NULL) != LB_OK)
        return false;
    const uint64_t hash = lb_tracked_window_hash(seen);
    const lb_tracked whole = {.base = (const uint8_t *)seen->data - seen->layout.offset * (int64_t)width};
    first *= (int64_t)width;
    last *= (int64_t)width;
    bytes &= !lb_tape_covers(tape, storage, first, last);
    if (lb_tape_slot(tape, storage, hash) && !bytes) return false;
    const unsigned what = LB_MEASURE_STATISTICS | (bytes ? LB_MEASURE_BLOB : 0);
    *made = (wish){.work = {.item = lb_value_bytes_measuring(&whole, seen, first, last, what),
                            .measured = true,
                            .each_run = bytes,
                            .storage = seen->storage,
                            .first = (uint64_t)first},
                   .device = device,
                   .stream = seen->stream,
                   .slot = {.storage = storage,
                            .version = tape->storages[storage].version,
                            .hash = hash,
                            .first = first,
                            .last = last}};
    return true;
}

static void add_wish(lb_recorder *recorder, wishes *wishes, const lb_host_tensor *seen, bool bytes)
{
    wish made;
    if (!make_wish(recorder, seen, bytes, &made)) return;
    for (uint32_t i = 0; i < wishes->n; i++)
        if (wishes->list[i].slot.storage == made.slot.storage && wishes->list[i].slot.hash == made.slot.hash) return;
    wish *list = lb_array_grow(wishes->list, wishes->n, sizeof *list);
    if (!list) return; /* a value without a digest */
    wishes->list = list;
    wishes->list[wishes->n++] = made;
}

static bool keeps_sources(const lb_recorder *recorder)
{
    return lb_keep_wants(&recorder->keep, LB_FOR_SOURCE, "", "");
}

/* As lb_value_bytes_later has it. */
static bool is_kept_choice(const lb_recorder *recorder, const wishes *wishes, const lb_host_tensor *seen)
{
    return wishes->reads_floats && !lb_dtype_is_float(seen->dtype) && keeps_sources(recorder);
}

static bool reads_floats(const lb_recorded_operand *operands, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if ((operands[i].tag == LB_ARG_VALUE && lb_dtype_is_float(operands[i].u.tensor->dtype)) ||
            (operands[i].tag == LB_ARG_LIST && reads_floats(operands[i].u.items, operands[i].count)))
            return true;
    return false;
}

/* Whether bytes of an op's results are kept, by the level of now. */
static bool keeps_results(lb_recorder *recorder, const lb_recorded_call *call)
{
    const char *const layer = lb_op_context_scope_path(&recorder->context, call->place.scope);
    const lb_liking liking =
        recorder->like ? lb_like_op(recorder->like, call->phase, layer, call->name) : LB_LIKING_UNKNOWN;
    lb_keep_purpose purpose;
    if (call->flags & (LB_OP_RANDOM | LB_OP_COMPOSITE | LB_OP_COLLECTIVE) && keeps_sources(recorder)) return true;
    if (liking != LB_LIKING_UNKNOWN) return liking == LB_LIKING_KEPT;
    return lb_keep_wants_result(&recorder->keep, layer, call->name, &purpose);
}

/* ... and those of what it reads, which judge the results of this op alone. */
static bool keeps_inputs(const lb_recorder *recorder, const lb_recorded_call *call)
{
    return recorder->keep.level == LB_LEVEL_OPS || call->flags & LB_OP_COLLECTIVE;
}

/* Of arguments: those of which at least one of `wanted` is true, and none of `unwanted`. */
static void add_wishes(lb_recorder *recorder, wishes *wishes, const lb_recorded_operand *operands, uint32_t n,
                       unsigned inherited, unsigned wanted, unsigned unwanted)
{
    for (uint32_t i = 0; i < n; i++) {
        const unsigned flags = inherited | operands[i].flags;
        const bool is_wanted = (!wanted || flags & wanted) && !(flags & unwanted);
        if (operands[i].tag == LB_ARG_VALUE && is_wanted)
            add_wish(recorder, wishes, operands[i].u.tensor,
                     wishes->bytes || is_kept_choice(recorder, wishes, operands[i].u.tensor));
        if (operands[i].tag == LB_ARG_LIST)
            add_wishes(recorder, wishes, operands[i].u.items, operands[i].count, flags, wanted, unwanted);
    }
}

/* Nodes of the graph, one launch for all that lie on one stream. */
static void grant(lb_recorder *recorder, wishes *wishes)
{
    lb_device_work **works = malloc((wishes->n + 1) * sizeof *works);
    for (uint32_t i = 0, first = 0; works && i < wishes->n; i++) {
        works[i] = &wishes->list[i].work;
        const bool last = i + 1 == wishes->n || wishes->list[i + 1].device != wishes->list[i].device ||
                          wishes->list[i + 1].stream != wishes->list[i].stream;
        if (!last) continue;
        wishes->list[i].device->ops->capture(wishes->list[i].device, works + first, i + 1 - first,
                                             wishes->list[i].stream);
        first = i + 1;
    }
    for (uint32_t i = 0; works && i < wishes->n; i++) {
        wishes->list[i].slot.slot = wishes->list[i].work.slot;
        wishes->list[i].slot.each_run = wishes->list[i].work.each_run;
        if (wishes->list[i].work.state == LB_WORK_DONE) free(wishes->list[i].work.item.out.leaves);
        if (wishes->list[i].work.state == LB_WORK_SKIPPED && wishes->list[i].slot.slot)
            lb_tape_add_slot(recorder->graphs.captured, wishes->list[i].device, &wishes->list[i].slot);
    }
    free(works);
    free(wishes->list);
}

/* ---- ops and modules of a capture -------------------------------------------------------------------------------- */

static lb_taped *add(lb_recorder *recorder, lb_taped_kind kind)
{
    return lb_tape_add(recorder->graphs.captured, kind);
}

uint32_t lb_graph_op_begin(lb_recorder *recorder, const lb_recorded_call *call)
{
    lb_tape *tape = recorder->graphs.captured;
    lb_recorded_call copy = *call;
    copy.name = lb_tape_text(tape, call->name);
    copy.node_name = lb_tape_text(tape, call->node_name);
    copy.args = lb_tape_operands(tape, call->args, call->n_args);
    lb_taped *entry = add(recorder, LB_TAPED_BEGIN);
    if (!entry) return LB_NONE;
    entry->call = copy;
    if (!(call->flags & LB_OP_VIEW)) {
        wishes wishes = {.bytes = keeps_results(recorder, call) && keeps_inputs(recorder, call)};
        add_wishes(recorder, &wishes, call->args, call->n_args, 0, 0, LB_OPERAND_OVERWRITTEN);
        grant(recorder, &wishes);
    }
    return tape->n_entries - 1;
}

/* A new version of the storage, once in an op. */
static void write(lb_tape *tape, lb_taped *entry, int64_t key)
{
    const uint32_t storage = lb_tape_storage(tape, key);
    if (storage == LB_NONE) return;
    for (uint32_t w = 0; w < entry->n_written; w++)
        if (entry->written[w] == storage) return;
    uint32_t *written = lb_array_grow(entry->written, entry->n_written, sizeof *written);
    if (!written) return;
    entry->written = written;
    entry->written[entry->n_written++] = storage;
    tape->storages[storage].version++;
}

static void write_arguments(lb_tape *tape, lb_taped *entry, const lb_recorded_operand *operands, uint32_t n,
                            unsigned flags)
{
    for (uint32_t i = 0; i < n; i++) {
        const unsigned all = flags | operands[i].flags;
        if (operands[i].tag == LB_ARG_VALUE && all & LB_OPERAND_WRITTEN)
            write(tape, entry, operands[i].u.tensor->storage);
        if (operands[i].tag == LB_ARG_LIST) write_arguments(tape, entry, operands[i].u.items, operands[i].count, all);
    }
}

static bool is_argument(const lb_recorded_operand *operands, uint32_t n, int64_t key)
{
    for (uint32_t i = 0; i < n; i++)
        if ((operands[i].tag == LB_ARG_VALUE && operands[i].u.tensor->storage == key) ||
            (operands[i].tag == LB_ARG_LIST && is_argument(operands[i].u.items, operands[i].count, key)))
            return true;
    return false;
}

/* What it wrote is measured, and what it made; not what it looks at in another way. */
static void wish_results(lb_recorder *recorder, wishes *wishes, const lb_taped *entry,
                         const lb_recorded_operand *results, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) {
        if (results[r].tag != LB_ARG_VALUE) continue;
        const uint32_t storage = lb_tape_find(recorder->graphs.captured, results[r].u.tensor->storage);
        for (uint32_t i = 0; i < entry->n_written; i++)
            if (entry->written[i] == storage)
                add_wish(recorder, wishes, results[r].u.tensor,
                         wishes->bytes || is_kept_choice(recorder, wishes, results[r].u.tensor));
    }
}

void lb_graph_op_end(lb_recorder *recorder, uint32_t begun, const lb_recorded_operand *results, uint32_t n,
                     bool deferred, uint32_t *op)
{
    lb_tape *tape = recorder->graphs.captured;
    if (begun == LB_NONE) return;
    const lb_recorded_call *call = &tape->entries[begun].call;
    if (!of_device(call->args, call->n_args) && !of_device(results, n)) {
        tape->entries[begun].kind = LB_TAPED_FAILED; /* an op of the host, which ran now and not with the graph */
        tape->entries[begun].at = LB_NONE;
        return;
    }
    lb_recorded_operand *copies = lb_tape_operands(tape, results, n);
    lb_taped *entry = add(recorder, LB_TAPED_END);
    if (!entry) return;
    entry->at = begun;
    entry->deferred = deferred;
    entry->results = copies;
    entry->n = n;
    if (op) *op = tape->n_ops;
    tape->n_ops++;
    call = &tape->entries[begun].call;
    if (call->flags & LB_OP_VIEW) return;
    write_arguments(tape, entry, call->args, call->n_args, 0);
    for (uint32_t r = 0; r < n; r++)
        if (results[r].tag == LB_ARG_VALUE && !is_argument(call->args, call->n_args, results[r].u.tensor->storage))
            write(tape, entry, results[r].u.tensor->storage);
    if (call->flags & LB_OP_UNDEFINED) return;
    wishes wishes = {.bytes = keeps_results(recorder, call), .reads_floats = reads_floats(call->args, call->n_args)};
    add_wishes(recorder, &wishes, call->args, call->n_args, 0, LB_OPERAND_WRITTEN, 0);
    wish_results(recorder, &wishes, entry, results, n);
    grant(recorder, &wishes);
}

void lb_graph_op_failed(lb_recorder *recorder, uint32_t begun)
{
    lb_taped *entry = begun == LB_NONE ? NULL : add(recorder, LB_TAPED_FAILED);
    if (entry) entry->at = begun;
}

static lb_taped *add_tensors(lb_recorder *recorder, lb_taped_kind kind, const lb_host_tensor *const *tensors,
                             uint32_t n, bool keeps)
{
    lb_tape *tape = recorder->graphs.captured;
    lb_host_tensor **copies = lb_tape_copy(tape, tensors, n * sizeof *copies);
    wishes wishes = {.bytes = keeps};
    for (uint32_t i = 0; i < n && copies; i++) {
        if (!tensors[i]) continue;
        copies[i] = lb_tape_seen(tape, tensors[i]);
        add_wish(recorder, &wishes, tensors[i], keeps);
    }
    grant(recorder, &wishes);
    lb_taped *entry = add(recorder, kind);
    if (!entry) return NULL;
    entry->tensors = copies;
    entry->n = n;
    return entry;
}

static bool keeps_layer(lb_recorder *recorder, uint32_t scope)
{
    const char *const layer = lb_op_context_scope_path(&recorder->context, scope);
    const lb_liking liking = recorder->like ? lb_like_layer(recorder->like, layer) : LB_LIKING_UNKNOWN;
    return liking == LB_LIKING_UNKNOWN ? lb_keep_wants(&recorder->keep, LB_FOR_LAYER, layer, "")
                                       : liking == LB_LIKING_KEPT;
}

static lb_taped *add_list(lb_recorder *recorder, lb_taped_kind kind, uint32_t scope, const lb_host_tensor *tensors,
                          uint32_t n)
{
    const lb_host_tensor **list = malloc((n + 1) * sizeof *list);
    if (!list) return NULL;
    for (uint32_t i = 0; i < n; i++) list[i] = &tensors[i];
    lb_taped *entry = add_tensors(recorder, kind, list, n, keeps_layer(recorder, scope));
    free(list);
    return entry;
}

void lb_graph_enter(lb_recorder *recorder, uint32_t scope, const lb_host_tensor *inputs, uint32_t n, bool recompute,
                    lb_place *place)
{
    *place = (lb_place){scope, LB_TAPED_PLACE | recorder->graphs.captured->n_places++};
    lb_taped *entry = add_list(recorder, LB_TAPED_ENTER, scope, inputs, n);
    if (!entry) return;
    entry->place = *place;
    entry->recompute = recompute;
}

void lb_graph_leave(lb_recorder *recorder, lb_place place, const lb_host_tensor *outputs, uint32_t n, bool recompute)
{
    lb_taped *entry = add_list(recorder, LB_TAPED_LEAVE, place.scope, outputs, n);
    if (!entry) return;
    entry->place = place;
    entry->recompute = recompute;
}

void lb_graph_routing(lb_recorder *recorder, lb_place place, const lb_host_tensor *const tensors[5])
{
    lb_taped *entry = add_tensors(recorder, LB_TAPED_ROUTING, tensors, 5, false);
    if (entry) entry->place = place;
}

void lb_graph_collective(lb_recorder *recorder, uint32_t op, const lb_taped_collective *told)
{
    lb_tape *tape = recorder->graphs.captured;
    const lb_taped_collective copy = {.group = lb_tape_text(tape, told->group),
                                      .reduce = lb_tape_text(tape, told->reduce),
                                      .algorithm = lb_tape_text(tape, told->algorithm),
                                      .sequence = told->sequence,
                                      .ranks = lb_tape_copy(tape, told->ranks, told->n_ranks * sizeof told->ranks[0]),
                                      .n_ranks = told->n_ranks};
    lb_taped *entry = add(recorder, LB_TAPED_COLLECTIVE);
    if (!entry) return;
    entry->at = op;
    entry->u.collective = copy;
}

static int64_t row_of(lb_tape *tape, int64_t key)
{
    return key < 0 ? -1 : (int64_t)lb_tape_storage(tape, key);
}

void lb_graph_group(lb_recorder *recorder, uint32_t first_op, const lb_taped_group *told)
{
    lb_tape *tape = recorder->graphs.captured;
    lb_taped_group copy = *told;
    copy.optimizer = lb_tape_text(tape, told->optimizer);
    copy.members = lb_tape_copy(tape, told->members, told->n_members * sizeof copy.members[0]);
    copy.options = lb_tape_copy(tape, told->options, told->n_options * sizeof copy.options[0]);
    for (uint32_t m = 0; m < told->n_members && copy.members; m++)
        copy.members[m] = (lb_member){lb_tape_text(tape, told->members[m].name), row_of(tape, told->members[m].storage),
                                      row_of(tape, told->members[m].gradient)};
    for (uint32_t o = 0; o < told->n_options && copy.options; o++)
        copy.options[o].name = lb_tape_text(tape, told->options[o].name);
    lb_taped *entry = add(recorder, LB_TAPED_GROUP);
    if (!entry) return;
    entry->at = first_op;
    entry->u.group = copy;
}

void lb_graph_forget(lb_recorder *recorder, int64_t key)
{
    lb_tape *tape = recorder->graphs.captured;
    const uint32_t row = tape ? lb_tape_find(tape, key) : LB_NONE;
    lb_taped *entry = row == LB_NONE ? NULL : add(recorder, LB_TAPED_FORGET);
    if (entry) entry->at = row;
    recorder->graphs.n_gone++;
    if (tape) lb_tape_gone(tape, key, recorder->graphs.n_gone);
    for (lb_tape *t = recorder->graphs.tapes; t; t = t->next) lb_tape_gone(t, key, recorder->graphs.n_gone);
}

/* ---- captures ---------------------------------------------------------------------------------------------------- */

lb_tape **lb_graph_find(lb_graphs *graphs, int64_t graph)
{
    lb_tape **link = &graphs->tapes;
    while (*link && (*link)->graph != graph) link = &(*link)->next;
    return link;
}

/* The graph does not run again. */
static void give_back(lb_tape *tape)
{
    for (uint32_t d = 0; d < tape->n_devices; d++) {
        lb_device *device = tape->devices[d].device;
        device->ops->forget(device, tape->devices[d].first, tape->devices[d].last);
    }
    lb_tape_free(tape);
}

static void drop(lb_graphs *graphs, int64_t graph)
{
    lb_tape **link = lb_graph_find(graphs, graph), *old = *link;
    if (!old) return;
    *link = old->next;
    give_back(old);
}

lb_status lb_recorder_graph_begin(lb_recorder *recorder, int64_t graph, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status == LB_OK && recorder->graphs.captured)
        status = lb_fail(err, LB_ERR_STATE, "another graph is being captured");
    if (status == LB_OK && recorder->run.tape) status = lb_fail(err, LB_ERR_STATE, "a graph is about to run");
    if (status != LB_OK) return lb_recorder_unlock(recorder, status);
    drop(&recorder->graphs, graph);
    recorder->graphs.captured = lb_tape_new(graph, ++recorder->graphs.n_tapes);
    return lb_recorder_unlock(recorder, recorder->graphs.captured ? LB_OK : lb_recorder_no_memory(err));
}

lb_status lb_recorder_graph_end(lb_recorder *recorder, bool whole, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    lb_tape *tape = status == LB_OK ? recorder->graphs.captured : NULL;
    if (status == LB_OK && !tape) status = lb_fail(err, LB_ERR_STATE, "no graph is being captured");
    if (!tape) return lb_recorder_unlock(recorder, status);
    recorder->graphs.captured = NULL;
    if (tape->short_of_memory)
        lb_recorder_note(recorder, "graph", "a graph's runs are not recorded: its capture took too much memory");
    if (!whole) {
        give_back(tape);
    } else if (tape->short_of_memory) {
        lb_tape_free(tape); /* its nodes stay */
    } else {
        tape->next = recorder->graphs.tapes;
        recorder->graphs.tapes = tape;
    }
    return lb_recorder_unlock(recorder, LB_OK);
}

void lb_recorder_graph_drop(lb_recorder *recorder, int64_t graph)
{
    pthread_mutex_lock(&recorder->lock);
    if (recorder->run.tape != *lb_graph_find(&recorder->graphs, graph)) drop(&recorder->graphs, graph);
    pthread_mutex_unlock(&recorder->lock);
}

void lb_graphs_release(lb_graphs *graphs)
{
    lb_tape_free(graphs->captured);
    for (lb_tape *tape = graphs->tapes, *next; tape; tape = next) {
        next = tape->next;
        lb_tape_free(tape);
    }
    graphs->captured = graphs->tapes = NULL;
}
