/* Ops by themselves: see rehearsal.h. The machine of replay runs them; the recording that it asks for bytes is the list of
 * leaves. */
#include "rehearsal.h"

#include "choices.h"
#include "fuse.h"
#include "machine.h"
#include "operand_rounding.h"

#include <stdlib.h>
#include <string.h>

struct lb_rehearsal {
    lb_program *program;
    lb_prepared *prepared;
    uint32_t *leaves, n_leaves; /* rows of `program` */
    uint32_t *outputs, n_outputs;
};

/* ---- the program ---- */

typedef struct builder {
    const lb_program *in;
    lb_program *out;
    const lb_rehearsal_parts *parts;
    uint32_t *from, *to; /* open addressing: values of `in` and their rows in `out` */
    uint32_t size;
    uint8_t *loaded; /* per leaf: its source stands */
    bool failed;
} builder;

static uint32_t checked(builder *b, uint32_t row)
{
    b->failed |= row == LB_NONE;
    return row;
}

static uint32_t *slot_of(builder *b, uint32_t value)
{
    uint32_t at = (value * 0x9E3779B9u) & (b->size - 1);
    while (b->from[at] != value && b->from[at] != LB_NONE) at = (at + 1) & (b->size - 1);
    return &b->from[at];
}

static uint32_t text_of(void *context, uint32_t string)
{
    builder *b = context;
    return string == LB_NONE ? LB_NONE : checked(b, lb_program_string(b->out, lb_program_text(b->in, string)));
}

static uint32_t leaf_row(const builder *b, uint32_t value)
{
    for (uint32_t i = 0; i < b->parts->n_leaves; i++)
        if (b->parts->leaves[i] == value) return i;
    return LB_NONE;
}

/* What a recipe calls a weight: the contents of a parameter's storage, whatever view of it is read. */
static bool is_parameter(const lb_program *p, uint32_t value)
{
    for (uint32_t v = 0; v < p->n_values; v++)
        if (p->values[v].storage == p->values[value].storage &&
            (p->values[v].flags & LB_VALUE_PARAMETER || p->values[v].source == LB_SOURCE_PARAMETER))
            return true;
    return false;
}

/* Values of other shapes than recorded lie in storages of their own. */
static void reshape(builder *b, uint32_t value, lb_value *row)
{
    static const int64_t fresh = INT64_MAX / 4;
    const lb_layout *given = NULL;
    for (uint32_t i = 0; b->parts->output_layouts && i < b->parts->n_outputs; i++)
        if (b->parts->outputs[i] == value) given = &b->parts->output_layouts[i];
    if (b->parts->leaf_layouts && leaf_row(b, value) != LB_NONE)
        given = &b->parts->leaf_layouts[leaf_row(b, value)];
    if (given) row->layout = *given, row->storage = fresh + (int64_t)b->out->n_values, row->version = 0;
}

static uint32_t value_of(void *context, uint32_t value)
{
    builder *b = context;
    if (value == LB_NONE) return LB_NONE;
    uint32_t *slot = slot_of(b, value), at = (uint32_t)(slot - b->from);
    if (*slot == value) return b->to[at];
    lb_value row = b->in->values[value];
    row.name = row.statistics = LB_NONE;
    row.logical = row.blob = (lb_digest){0};
    row.flags &= LB_VALUE_UNDEFINED;
    row.source = LB_SOURCE_NOT;
    reshape(b, value, &row);
    if (leaf_row(b, value) != LB_NONE) {
        const bool weight = is_parameter(b->in, value);
        row.flags = LB_VALUE_SOURCE | (weight ? LB_VALUE_PARAMETER : 0);
        row.source = weight ? LB_SOURCE_PARAMETER : LB_SOURCE_OTHER;
    }
    *slot = value;
    return b->to[at] = checked(b, lb_program_add_value(b->out, &row));
}

static uint32_t refs_of(builder *b, const uint32_t *refs, uint32_t count)
{
    uint32_t first = b->out->n_refs;
    uint32_t *copy = malloc((count + 1) * sizeof *copy);
    for (uint32_t i = 0; copy && i < count; i++) copy[i] = value_of(b, refs[i]);
    if (copy && count) first = checked(b, lb_program_add_refs(b->out, copy, count));
    b->failed |= !copy;
    free(copy);
    return first;
}

static lb_op plain_op(builder *b, const char *name)
{
    return (lb_op){.name = checked(b, lb_program_string(b->out, name)),
                   .first_arg = b->out->n_args,
                   .first_written = b->out->n_refs,
                   .node_name = LB_NONE,
                   .node = -1};
}

static void put_source(builder *b, uint32_t row)
{
    lb_op op = plain_op(b, "lb::source");
    b->loaded[row] = 1;
    op.first_result = refs_of(b, &b->parts->leaves[row], 1), op.results = 1;
    op.first_written = b->out->n_refs;
    checked(b, lb_program_add_op(b->out, &op));
}

/* Before `value` is read: the leaves that lie in its storage, for it may be a window of one. */
static void put_sources_of(void *context, uint32_t value)
{
    builder *b = context;
    for (uint32_t i = 0; value != LB_NONE && i < b->parts->n_leaves; i++) {
        const lb_value *leaf = &b->in->values[b->parts->leaves[i]], *read = &b->in->values[value];
        if (!b->loaded[i] && leaf->storage == read->storage && leaf->version <= read->version) put_source(b, i);
    }
}

static void put_op(builder *b, const lb_op *op)
{
    lb_op row = *op;
    lb_op_each_input(b->in, op, put_sources_of, b);
    row.name = text_of(b, op->name);
    row.node_name = LB_NONE, row.node = -1;
    row.scope = row.call = 0;
    row.flags &= ~(uint32_t)LB_OP_DECISION;
    row.first_arg = checked(b, lb_program_copy_args(b->out, b->in, lb_op_args(b->in, op), op->args,
                                                    &(lb_arg_rename){value_of, text_of, b}));
    row.first_result = refs_of(b, lb_op_results(b->in, op), op->results);
    row.first_written = refs_of(b, lb_op_written(b->in, op), op->written);
    checked(b, lb_program_add_op(b->out, &row));
}

/* What an op computed is told to the observer; what is only a view of it, or a leaf, through a copy. */
static uint32_t put_copy(builder *b, uint32_t value)
{
    static const int64_t fresh = INT64_MAX / 2;
    put_sources_of(b, value);
    lb_value row = b->in->values[value];
    lb_arg arg = {.tag = LB_ARG_VALUE, .u.value = value_of(b, value)};
    row.storage = fresh + (int64_t)b->out->n_values, row.version = 0;
    row.layout = lb_layout_contiguous(row.layout.ndim, row.layout.shape);
    row.name = row.statistics = LB_NONE, row.flags = 0, row.source = LB_SOURCE_NOT;
    row.logical = row.blob = (lb_digest){0};
    uint32_t copied = checked(b, lb_program_add_value(b->out, &row));
    lb_op op = plain_op(b, "lb::copy");
    op.first_arg = checked(b, lb_program_add_args(b->out, &arg, 1)), op.args = 1;
    op.first_result = checked(b, lb_program_add_refs(b->out, &copied, 1)), op.results = 1;
    op.first_written = b->out->n_refs;
    checked(b, lb_program_add_op(b->out, &op));
    return copied;
}

static bool computed_by(const lb_rehearsal_parts *parts, uint32_t value)
{
    for (uint32_t i = 0; i < parts->n_ops; i++) {
        const lb_op *op = &parts->program->ops[parts->ops[i]];
        if (op->flags & LB_OP_VIEW) continue;
        for (uint32_t k = 0; k < op->results + op->written; k++)
            if ((k < op->results ? lb_op_results(parts->program, op)[k]
                                 : lb_op_written(parts->program, op)[k - op->results]) == value)
                return true;
    }
    return false;
}

static void build(builder *b, lb_rehearsal *r)
{
    const lb_rehearsal_parts *parts = b->parts;
    b->out->step = b->in->step, b->out->rank = b->in->rank, b->out->world = 1;
    for (uint32_t i = 0; i < parts->n_ops; i++) put_op(b, &b->in->ops[parts->ops[i]]);
    for (uint32_t i = 0; i < parts->n_leaves; i++) r->leaves[i] = value_of(b, parts->leaves[i]);
    for (uint32_t i = 0; i < parts->n_outputs; i++)
        r->outputs[i] = computed_by(parts, parts->outputs[i]) ? value_of(b, parts->outputs[i])
                                                              : put_copy(b, parts->outputs[i]);
}

static uint32_t count_refs(const lb_rehearsal_parts *parts)
{
    uint32_t n = parts->n_leaves + parts->n_outputs + 16;
    for (uint32_t i = 0; i < parts->n_ops; i++) {
        const lb_op *op = &parts->program->ops[parts->ops[i]];
        n += op->results + op->written + op->args;
        for (uint32_t k = 0; k < op->args; k++) n += lb_op_args(parts->program, op)[k].count;
    }
    return n;
}

static lb_status make_program(const lb_rehearsal_parts *parts, lb_rehearsal *r, lb_err *err)
{
    builder b = {.in = parts->program, .out = r->program, .parts = parts, .size = 64};
    while (b.size < 4 * count_refs(parts)) b.size *= 2;
    b.from = malloc(b.size * sizeof *b.from), b.to = malloc(b.size * sizeof *b.to);
    b.loaded = calloc(parts->n_leaves + 1, 1);
    b.failed = !b.from || !b.to || !b.loaded;
    if (b.from) memset(b.from, 0xFF, b.size * sizeof *b.from);
    if (!b.failed) build(&b, r);
    free(b.from), free(b.to), free(b.loaded);
    if (b.failed)
        return lb_fail(err, LB_ERR_NOMEM, "explain: out of memory for a stretch of %u ops", parts->n_ops);
    LB_TRY(lb_program_validate(r->program, err));
    return lb_prepare(r->program, NULL, NULL, &r->prepared, err);
}

lb_status lb_rehearsal_new(const lb_rehearsal_parts *parts, lb_rehearsal **out, lb_err *err)
{
    *out = NULL;
    for (uint32_t i = 0; i < parts->n_ops; i++)
        if (parts->program->ops[parts->ops[i]].flags & LB_OP_COLLECTIVE)
            return lb_fail(err, LB_ERR_UNSUPPORTED, "%s needs its other ranks",
                           lb_op_name(parts->program, &parts->program->ops[parts->ops[i]]));
    lb_rehearsal *r = calloc(1, sizeof *r);
    if (!r) return lb_fail(err, LB_ERR_NOMEM, "explain: out of memory");
    r->program = lb_program_new();
    r->leaves = malloc((parts->n_leaves + 1) * sizeof *r->leaves), r->n_leaves = parts->n_leaves;
    r->outputs = malloc((parts->n_outputs + 1) * sizeof *r->outputs), r->n_outputs = parts->n_outputs;
    lb_status status = LB_ERR_NOMEM;
    if (r->program && r->leaves && r->outputs) status = make_program(parts, r, err);
    if (status == LB_OK)
        *out = r;
    else
        lb_rehearsal_free(r);
    return status;
}

void lb_rehearsal_free(lb_rehearsal *r)
{
    if (!r) return;
    lb_prepared_free(r->prepared);
    lb_program_free(r->program);
    free(r->leaves), free(r->outputs);
    free(r);
}

const lb_program *lb_rehearsal_program(const lb_rehearsal *r)
{
    return r->program;
}

/* ---- running it ---- */

typedef struct run {
    const lb_rehearsal *rehearsal;
    const lb_tensor *inputs, *targets;
    lb_tensor *results;
    uint64_t touched[4]; /* ops that each swap concerns */
    bool lost;           /* something was not computed */
    bool out_of_reach, no_memory;
} run;

static lb_status given_value(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor,
                             lb_err *err)
{
    const run *r = context;
    const lb_rehearsal *rehearsal = r->rehearsal;
    (void)program;
    for (uint32_t i = 0; i < rehearsal->n_leaves; i++)
        if (rehearsal->leaves[i] == value) {
            *tensor = r->inputs[i];
            return LB_OK;
        }
    for (uint32_t i = 0; r->targets && i < rehearsal->n_outputs; i++)
        if (rehearsal->outputs[i] == value && r->targets[i].data) {
            *tensor = r->targets[i];
            return LB_OK;
        }
    return lb_fail(err, LB_ERR_NOT_CAPTURED, "not given");
}

static void keep_result(run *r, uint32_t row, const lb_tensor *computed)
{
    lb_tensor *kept = &r->results[row];
    if (kept->data) return;
    size_t bytes = lb_dtype_bytes(computed->dtype, (size_t)lb_layout_numel(&computed->layout));
    *kept = (lb_tensor){malloc(bytes + 1), computed->dtype,
                        lb_layout_contiguous(computed->layout.ndim, computed->layout.shape)};
    r->no_memory |= !kept->data;
    if (kept->data && lb_tensor_gather(computed, kept->data, NULL) != LB_OK)
        free(kept->data), kept->data = NULL;
}

static bool note_event(void *context, const lb_event *event)
{
    run *r = context;
    r->lost |= event->verdict == LB_VERDICT_OPAQUE || (event->verdict == LB_VERDICT_MISSING && !r->targets);
    r->out_of_reach |= event->verdict == LB_VERDICT_DIVERGED || event->verdict == LB_VERDICT_MISSING;
    for (uint32_t i = 0; r->results && i < event->n_results; i++)
        for (uint32_t k = 0; k < r->rehearsal->n_outputs; k++)
            if (event->values[i] == r->rehearsal->outputs[k] && event->computed[i].data)
                keep_result(r, k, &event->computed[i]);
    return !r->lost && !r->no_memory;
}

/* The program with a kernel in the place of some of its ops, where a swap asks for that. */
typedef struct fusion {
    lb_program *program;
    uint32_t *origin;
    lb_prepared *prepared; /* NULL: the program as it is */
} fusion;

static void release_fusion(fusion *f)
{
    lb_prepared_free(f->prepared);
    lb_program_free(f->program);
    free(f->origin);
}

static lb_status fuse_program(run *r, const lb_plan *plan, fusion *f, lb_err *err)
{
    for (uint32_t i = 0; i < plan->n_swaps && i < 4; i++) {
        lb_program *next = NULL;
        uint32_t *origin = NULL, touched = 0;
        if (plan->swaps[i].kind != LB_SWAP_FUSE) continue;
        if (f->program) return lb_fail(err, LB_ERR_UNSUPPORTED, "one fusion at a time");
        LB_TRY(lb_pass_fuse(r->rehearsal->program, NULL, plan->swaps, plan->n_swaps, i, &next, &origin,
                            &touched, err));
        f->program = next, f->origin = origin, r->touched[i] = touched;
    }
    return f->program ? lb_prepare(f->program, r->rehearsal->program, f->origin, &f->prepared, err) : LB_OK;
}

static void note_touched(run *r, const lb_choices *choices, const lb_plan *plan)
{
    uint64_t touched[4] = {0};
    lb_choices_touched(choices, touched);
    for (uint32_t i = 0; i < plan->n_swaps && i < 4; i++)
        if (!lb_swap_is_structural(plan->swaps[i].kind)) r->touched[i] = touched[i];
}

static lb_status perform(run *r, const lb_plan *plan, lb_err *err)
{
    lb_choices *choices = NULL;
    lb_machine *machine = NULL;
    uint8_t *choice_of = NULL;
    fusion fused = {0};
    lb_replay_summary summary = {0};
    lb_observer observer = {.context = r, .op = note_event};
    lb_run shared = {plan, &observer, {r, given_value, NULL}, &summary, false};
    lb_machine_state state;
    lb_status status = fuse_program(r, plan, &fused, err);
    const lb_prepared *prepared = fused.prepared ? fused.prepared : r->rehearsal->prepared;
    if (status == LB_OK) status = lb_choices_new(plan->swaps, plan->n_swaps, &choices, err);
    if (status == LB_OK) status = lb_choices_make(choices, prepared, NULL, &choice_of, err);
    if (status == LB_OK && plan->n_swaps) note_touched(r, choices, plan);
    if (status == LB_OK) status = lb_machine_new(&shared, prepared->program->rank, &machine, err);
    if (status == LB_OK && lb_choices_round_operands(choices, false)) {
        machine->rounding = lb_operand_rounding_new();
        status = machine->rounding ? lb_operand_rounding_step(machine->rounding, prepared, err)
                                   : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    if (status == LB_OK) status = lb_machine_declare(machine, prepared, err);
    if (status == LB_OK) status = lb_machine_begin(machine, prepared, lb_choices_rows(choices), choice_of, err);
    if (status == LB_OK) status = lb_machine_run(machine, &state, err);
    if (machine) lb_operand_rounding_free(machine->rounding);
    lb_machine_free(machine);
    free(choice_of);
    lb_choices_free(choices);
    release_fusion(&fused);
    return status;
}

lb_status lb_rehearsal_run(const lb_rehearsal *rehearsal, const lb_tensor *inputs, const lb_swap *swaps,
                           uint32_t n_swaps, lb_tensor *results, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    run r = {.rehearsal = rehearsal, .inputs = inputs, .results = results};
    memset(results, 0, rehearsal->n_outputs * sizeof *results);
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false;
    plan.swaps = swaps, plan.n_swaps = n_swaps;
    lb_status status = perform(&r, &plan, err);
    if (status == LB_OK && r.no_memory)
        status = lb_fail(err, LB_ERR_NOMEM, "explain: out of memory for results");
    for (uint32_t i = 0; status == LB_OK && i < n_swaps && i < 4; i++)
        if (!r.touched[i])
            status = lb_fail(err, LB_ERR_UNSUPPORTED, "%s means nothing to these ops", swaps[i].argument);
    if (status == LB_OK && r.lost) status = lb_fail(err, LB_ERR_UNSUPPORTED, "an op has no kernel here");
    for (uint32_t i = 0; status != LB_OK && i < rehearsal->n_outputs; i++)
        free(results[i].data), results[i].data = NULL;
    return status;
}

lb_status lb_rehearsal_reaches(const lb_rehearsal *rehearsal, const lb_tensor *inputs, const lb_tensor *targets,
                               bool *reaches, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    run r = {.rehearsal = rehearsal, .inputs = inputs, .targets = targets};
    plan.mode = LB_REPLAY_ISOLATED, plan.compare = true;
    *reaches = false;
    LB_TRY(perform(&r, &plan, err));
    *reaches = !r.lost && !r.out_of_reach;
    return LB_OK;
}
