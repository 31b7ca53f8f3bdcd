/* See hybrid.h. Choices and shapes that a model took from its numbers (experts' token lists) are those that were
 * recorded of the side whose op it is. */
#include "parity/hybrid.h"

#include "program/copier.h"
#include "ranks/rank_run.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* A call of a module that both sides have. */
typedef struct exchange {
    lb_module_call base, donor;
} exchange;

/* Where a value of the hybrid comes from. */
typedef struct origin {
    const lb_model *model;
    uint32_t value;
} origin;

typedef struct builder {
    const lb_model *base, *donor;
    lb_program *out;
    exchange *exchanges;
    uint32_t n_exchanges;
    uint8_t *base_marks, *donor_marks; /* ops that are part of the hybrid */
    uint8_t *held;                     /* of the donor: ops whose results come from the base */
    uint8_t *donor_done;               /* per op of the donor: it stands in the hybrid */
    origin *origins;                   /* per value of the hybrid */
    int64_t shift;                     /* of the donor's storages */
    uint32_t wanted;                   /* row in the hybrid: the scores */
    bool failed;
    lb_err *err;
} builder;

/* ---- which calls ---- */

/* Path b ends with path a, which begins at a dot or is all of it. */
static bool ends_with(const char *b, const char *a)
{
    const size_t n = strlen(a), m = strlen(b);
    return m >= n && strcmp(b + m - n, a) == 0 && (m == n || b[m - n - 1] == '.');
}

/* The block of the donor that is called alike. One side may be wrapped (PeftModel's base_model.model., DDP's module.),
 * so that the longest end of the path that one block alone has decides; it holds the number of a layer. LB_NONE: none,
 * or several. */
static uint32_t partner_block(const lb_model *donor, const char *path)
{
    const lb_program *program = donor->program;
    for (const char *end = path; end && strpbrk(end, "0123456789");
         end = strchr(end, '.') ? strchr(end, '.') + 1 : NULL) {
        uint32_t found = LB_NONE, n = 0;
        for (uint32_t i = 0; i < donor->blocks.n; i++) {
            const char *theirs = lb_program_text(program, program->scopes[donor->blocks.rows[i].scope].path);
            if (strcmp(theirs, end) == 0) return donor->blocks.rows[i].scope;
            if (ends_with(theirs, end)) found = donor->blocks.rows[i].scope, n++;
        }
        if (n) return n == 1 ? found : LB_NONE;
    }
    return LB_NONE;
}

static bool add_exchange(builder *builder, const lb_module_call *base, const lb_module_call *donor)
{
    exchange *more = lb_array_grow(builder->exchanges, builder->n_exchanges, sizeof *more);
    if (!more) return false;
    builder->exchanges = more;
    more[builder->n_exchanges++] = (exchange){*base, *donor};
    return true;
}

static lb_status pair_calls(builder *builder, uint32_t base_scope, uint32_t donor_scope)
{
    lb_module_call *x = NULL, *y = NULL;
    uint32_t n = 0, m = 0;
    bool ok = true;
    LB_TRY(lb_block_module_calls(builder->base->program, base_scope, &x, &n, builder->err));
    lb_status status = lb_block_module_calls(builder->donor->program, donor_scope, &y, &m, builder->err);
    for (uint32_t i = 0; status == LB_OK && ok && i < n && i < m; i++)
        if (!x[i].recompute && !y[i].recompute && x[i].first < builder->base->end && y[i].first < builder->donor->end)
            ok = add_exchange(builder, &x[i], &y[i]);
    free(x), free(y);
    if (status == LB_OK && !ok) status = lb_fail(builder->err, LB_ERR_NOMEM, "out of memory");
    return status;
}

static int by_call(const void *a, const void *b)
{
    const exchange *x = a, *y = b;
    return (x->base.first > y->base.first) - (x->base.first < y->base.first);
}

static lb_status find_exchanges(builder *builder, const char *classes)
{
    for (uint32_t i = 0; i < builder->base->blocks.n; i++) {
        const lb_block *block = &builder->base->blocks.rows[i];
        if (!strchr(classes, block->letter)) continue;
        const uint32_t there = partner_block(
            builder->donor, lb_program_text(builder->base->program, builder->base->program->scopes[block->scope].path));
        if (there != LB_NONE) LB_TRY(pair_calls(builder, block->scope, there));
    }
    if (builder->n_exchanges) qsort(builder->exchanges, builder->n_exchanges, sizeof *builder->exchanges, by_call);
    return LB_OK;
}

/* ---- what goes in and comes out ---- */

static bool is_of(const lb_boundary *row, const lb_module_call *call, bool output)
{
    return row->scope == call->scope && row->call == call->call && row->output == output && !row->recompute &&
           row->value != LB_NONE;
}

/* The other side's value at the same position; LB_NONE: none. */
static uint32_t counterpart(const lb_program *program, const lb_module_call *call, const lb_boundary *row)
{
    for (uint32_t i = 0; i < program->n_boundaries; i++)
        if (is_of(&program->boundaries[i], call, row->output) && program->boundaries[i].position == row->position)
            return program->boundaries[i].value;
    return LB_NONE;
}

/* Marks the ops before `end` that define anything in the value's storage. */
static void mark_definers(const lb_program *program, uint32_t value, uint32_t begin, uint32_t end, uint8_t *marks)
{
    const int64_t storage = program->values[value].storage;
    for (uint32_t i = begin; i < end; i++) {
        const lb_op *op = &program->ops[i];
        if (!lb_slice_op_defines(program, op)) continue;
        for (uint32_t r = 0; r < lb_op_outcomes(op); r++) {
            const uint32_t v = lb_op_outcome(program, op, r);
            if (v != LB_NONE && program->values[v].storage == storage) marks[i] = 1;
        }
    }
}

static void need(void *context, uint32_t value)
{
    uint8_t *needed = context;
    if (value != LB_NONE) needed[value] = 1;
}

/* Views that marked ops, and who wants the `needed` values, read through. */
static void mark_views(const lb_program *program, uint32_t begin, uint32_t end, uint8_t *needed, uint8_t *marks)
{
    for (uint32_t i = end; i-- > begin;) {
        const lb_op *op = &program->ops[i];
        for (uint32_t r = 0; !marks[i] && !lb_slice_op_defines(program, op) && r < op->results; r++)
            if (lb_op_results(program, op)[r] != LB_NONE && needed[lb_op_results(program, op)[r]]) marks[i] = 1;
        if (marks[i]) lb_op_each_input(program, op, need, needed);
    }
}

/* The base's ops: what the scores follow from, going round the exchanged modules. */
static lb_status mark_base(builder *builder)
{
    const lb_program *program = builder->base->program;
    uint8_t *stop = calloc(program->n_ops + 1u, 1), *needed = calloc(program->n_values + 1u, 1);
    if (!stop || !needed) {
        free(stop), free(needed);
        return lb_fail(builder->err, LB_ERR_NOMEM, "out of memory");
    }
    for (uint32_t e = 0; e < builder->n_exchanges; e++) {
        const lb_module_call *call = &builder->exchanges[e].base;
        for (uint32_t i = call->first; i < call->last; i++)
            stop[i] = lb_block_scope_within(program, program->ops[i].scope, call->scope);
    }
    mark_definers(program, builder->base->scores, 0, builder->base->end, builder->base_marks);
    needed[builder->base->scores] = 1;
    for (uint32_t e = 0; e < builder->n_exchanges; e++)
        for (uint32_t i = 0; i < program->n_boundaries; i++)
            if (is_of(&program->boundaries[i], &builder->exchanges[e].base, false)) {
                mark_definers(program, program->boundaries[i].value, 0, builder->exchanges[e].base.first,
                              builder->base_marks);
                needed[program->boundaries[i].value] = 1;
            }
    for (uint32_t i = 0; i < program->n_ops; i++) builder->base_marks[i] &= (uint8_t)!stop[i];
    lb_slice_grow(builder->base->flow, true, 0, stop, builder->base_marks);
    mark_views(program, 0, builder->base->end, needed, builder->base_marks);
    for (uint32_t i = 0; i < program->n_ops; i++) builder->base_marks[i] &= (uint8_t)!stop[i];
    free(stop), free(needed);
    return LB_OK;
}

/* The donor's: the modules' own, and what they need that is not handed to them. */
static lb_status mark_donor(builder *builder)
{
    const lb_program *program = builder->donor->program;
    uint8_t *needed = calloc(program->n_values + 1u, 1);
    if (!needed) return lb_fail(builder->err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t e = 0; e < builder->n_exchanges; e++) {
        const lb_module_call *call = &builder->exchanges[e].donor;
        for (uint32_t i = 0; i < program->n_boundaries; i++)
            if (is_of(&program->boundaries[i], call, false))
                mark_definers(program, program->boundaries[i].value, 0, call->first, builder->held);
        for (uint32_t i = call->first; i < call->last; i++)
            if (lb_block_scope_within(program, program->ops[i].scope, call->scope) &&
                lb_slice_op_defines(program, &program->ops[i]))
                builder->donor_marks[i] = 1;
        for (uint32_t i = 0; i < program->n_boundaries; i++)
            if (is_of(&program->boundaries[i], call, true)) needed[program->boundaries[i].value] = 1;
    }
    for (uint32_t i = 0; i < program->n_ops; i++) /* one module may feed the next directly */
        if (builder->donor_marks[i]) builder->held[i] = 0;
    lb_slice_grow(builder->donor->flow, true, 0, builder->held, builder->donor_marks);
    mark_views(program, 0, builder->donor->end, needed, builder->donor_marks);
    free(needed);
    return LB_OK;
}

/* ---- building ---- */

static uint32_t checked(builder *builder, uint32_t row)
{
    builder->failed |= row == LB_NONE;
    return row;
}

typedef struct side {
    builder *b;
    const lb_model *model;
    int64_t shift; /* of its storages */
    lb_copier copier;
} side;

static void change(void *context, uint32_t value, lb_value *row)
{
    side *side = context;
    builder *builder = side->b;
    const uint32_t at = builder->out->n_values;
    row->storage += side->shift;
    row->statistics = LB_NONE;
    row->name = lb_copier_string(&side->copier, row->name);
    origin *more = lb_array_grow(builder->origins, at, sizeof *more);
    side->copier.failed |= !more;
    if (!more) return;
    builder->origins = more;
    more[at] = (origin){side->model, value};
}

/* A value's row in the hybrid. */
static uint32_t value_row(side *side, uint32_t value)
{
    const uint32_t row = lb_copier_value(&side->copier, value);
    side->b->failed |= side->copier.failed;
    return row;
}

static void put_op(side *side, uint32_t index)
{
    const lb_program *program = side->model->program;
    lb_op copy = lb_copier_op(&side->copier, &program->ops[index]);
    copy.line = lb_copier_check(&side->copier, lb_program_copy_line(side->b->out, program, program->ops[index].line));
    side->b->failed |= side->copier.failed;
    if (!side->b->failed) checked(side->b, lb_program_add_op(side->b->out, &copy));
}

/* to := from, of other types where need be. */
static void put_copy(builder *builder, uint32_t from, uint32_t to)
{
    const lb_dtype dtype = builder->out->values[to].dtype;
    lb_arg args[7] = {{.tag = LB_ARG_VALUE, .u.value = from}, {.tag = LB_ARG_DTYPE, .u.i = dtype}};
    for (int i = 2; i < 7; i++) args[i] = (lb_arg){.tag = LB_ARG_NONE};
    args[5] = (lb_arg){.tag = LB_ARG_BOOL};
    lb_op op = {.name = checked(builder, lb_program_string(builder->out, "aten::_to_copy")),
                .args = 7,
                .results = 1,
                .node_name = LB_NONE,
                .node = -1};
    op.phase = LB_PHASE_FORWARD;
    op.first_arg = checked(builder, lb_program_add_args(builder->out, args, 7));
    op.first_result = checked(builder, lb_program_add_refs(builder->out, &to, 1));
    op.first_written = builder->out->n_refs;
    if (!builder->failed) checked(builder, lb_program_add_op(builder->out, &op));
}

static lb_status cannot(const builder *builder, const exchange *exchange, const char *why)
{
    return lb_fail(builder->err, LB_ERR_UNSUPPORTED, "%s: %s",
                   lb_program_text(builder->base->program, builder->base->program->scopes[exchange->base.scope].path),
                   why);
}

/* Inputs of the donor's call := those of the base's, or the other way round of outputs. */
static lb_status put_copies(builder *builder, side *base, side *donor, const exchange *exchange, bool output)
{
    const lb_program *program = builder->donor->program;
    bool any = false;
    for (uint32_t i = 0; i < program->n_boundaries && !builder->failed; i++) {
        const lb_boundary *row = &program->boundaries[i];
        if (!is_of(row, &exchange->donor, output)) continue;
        const uint32_t theirs = counterpart(builder->base->program, &exchange->base, row);
        if (theirs == LB_NONE) {
            if (output) continue; /* attention weights that one side alone returns */
            return cannot(builder, exchange, "the sides hand it other arguments");
        }
        if (!lb_layout_same_shape(&program->values[row->value].layout, &builder->base->program->values[theirs].layout))
            return cannot(builder, exchange, "the sides hand it, or get from it, tensors of other shapes");
        any = true;
        if (output ? lb_copier_has_value(&base->copier, theirs) : lb_copier_has_value(&donor->copier, row->value))
            continue; /* the same value at two positions */
        const uint32_t from = output ? value_row(donor, row->value) : value_row(base, theirs);
        const uint32_t to = output ? value_row(base, theirs) : value_row(donor, row->value);
        if (!builder->failed) put_copy(builder, from, to);
    }
    return any ? LB_OK : cannot(builder, exchange, "what goes in or comes out was not recorded");
}

static lb_status put_exchange(builder *builder, side *base, side *donor, const exchange *exchange)
{
    const lb_program *program = builder->donor->program;
    LB_TRY(put_copies(builder, base, donor, exchange, false));
    for (uint32_t i = 0; i < exchange->donor.last && !builder->failed; i++) {
        const bool own =
            i >= exchange->donor.first && lb_block_scope_within(program, program->ops[i].scope, exchange->donor.scope);
        bool other = false; /* of another exchanged call, which puts it itself */
        for (uint32_t k = 0; !own && k < builder->n_exchanges && !other; k++)
            other = i >= builder->exchanges[k].donor.first && i < builder->exchanges[k].donor.last &&
                    lb_block_scope_within(program, program->ops[i].scope, builder->exchanges[k].donor.scope);
        if (!builder->donor_marks[i] || builder->donor_done[i] || other) continue;
        put_op(donor, i), builder->donor_done[i] = 1;
    }
    return builder->failed ? lb_fail(builder->err, LB_ERR_NOMEM, "out of memory")
                           : put_copies(builder, base, donor, exchange, true);
}

/* The scores by themselves at the end: they may be a view of what an op gave. */
static void put_scores(side *base)
{
    builder *builder = base->b;
    const uint32_t from = value_row(base, builder->base->scores);
    if (builder->failed) return;
    lb_value row = builder->out->values[from];
    row.storage = INT64_MAX / 4, row.version = 0, row.name = LB_NONE, row.flags = 0, row.source = LB_SOURCE_NOT;
    row.layout = lb_layout_contiguous(row.layout.ndim, row.layout.shape);
    builder->wanted = checked(builder, lb_program_add_value(builder->out, &row));
    if (!builder->failed) put_copy(builder, from, builder->wanted);
}

static lb_status put_all(builder *builder, side *base, side *donor)
{
    uint32_t next = 0;
    checked(builder, lb_program_scope(builder->out, "", NULL, LB_NONE));
    for (uint32_t i = 0; i < builder->base->end && !builder->failed; i++) {
        while (next < builder->n_exchanges && builder->exchanges[next].base.first == i)
            LB_TRY(put_exchange(builder, base, donor, &builder->exchanges[next++]));
        if (builder->base_marks[i]) put_op(base, i);
    }
    put_scores(base);
    return builder->failed ? lb_fail(builder->err, LB_ERR_NOMEM, "out of memory") : LB_OK;
}

static lb_status build(builder *builder)
{
    side base = {.b = builder, .model = builder->base},
         donor = {.b = builder, .model = builder->donor, .shift = builder->shift};
    base.copier = (lb_copier){.from = builder->base->program, .to = builder->out, .change = change, .context = &base};
    donor.copier =
        (lb_copier){.from = builder->donor->program, .to = builder->out, .change = change, .context = &donor};
    const lb_status status = put_all(builder, &base, &donor);
    lb_copier_release(&base.copier), lb_copier_release(&donor.copier);
    LB_TRY(status);
    builder->out->complete = 1;
    return lb_program_validate(builder->out, builder->err);
}

/* ---- running ---- */

typedef struct run {
    builder *b;
    lb_tensor *scores;
    const char *lost; /* an op that could not be run */
    bool no_memory;
} run;

static lb_status given_value(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor, lb_err *err)
{
    const run *run = context;
    (void)program;
    if (value == run->b->wanted) return lb_fail(err, LB_ERR_NOT_CAPTURED, "not recorded");
    const origin from = run->b->origins[value];
    return lb_capture_value(from.model->capture, from.model->program, from.value, tensor, err);
}

static bool note_event(void *context, const lb_event *event)
{
    run *run = context;
    const bool lost = event->verdict == LB_VERDICT_MISSING;
    if (lost && !run->lost) run->lost = lb_op_name(event->program, &event->program->ops[event->op]);
    for (uint32_t i = 0; i < event->n_results; i++) {
        if (event->values[i] != run->b->wanted || !event->computed[i].data) continue;
        const lb_tensor *t = &event->computed[i];
        free(run->scores->data);
        *run->scores = (lb_tensor){malloc(lb_dtype_bytes(t->dtype, (size_t)lb_layout_numel(&t->layout)) + 1), t->dtype,
                                   lb_layout_contiguous(t->layout.ndim, t->layout.shape)};
        run->no_memory |= !run->scores->data || lb_tensor_gather(t, run->scores->data, NULL) != LB_OK;
    }
    return !run->no_memory;
}

static lb_status perform(builder *builder, lb_tensor *scores)
{
    run run = {.b = builder, .scores = scores};
    const lb_observer observer = {.context = &run, .op = note_event};
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.force_decisions = true;
    lb_prepared *prepared = NULL;
    LB_TRY(lb_prepared_make(builder->out, NULL, NULL, &prepared, builder->err));
    lb_rank_run ranks = {.programs = (const lb_prepared *const *)&prepared,
                         .n_programs = 1,
                         .plan = &plan,
                         .observer = &observer,
                         .context = &run,
                         .value = given_value};
    lb_status status = lb_rank_run_all(&ranks, builder->err);
    lb_prepared_free(prepared);
    if (status == LB_OK && run.no_memory) status = lb_fail(builder->err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && !scores->data)
        status = lb_fail(builder->err, LB_ERR_UNSUPPORTED,
                         "the exchanged model does not come to its logits: %s could not be run",
                         run.lost ? run.lost : "an op");
    return status;
}

static bool allocate(builder *builder)
{
    const lb_program *x = builder->base->program, *y = builder->donor->program;
    builder->out = lb_program_new();
    builder->base_marks = calloc(x->n_ops + 1u, 1), builder->donor_marks = calloc(y->n_ops + 1u, 1);
    builder->held = calloc(y->n_ops + 1u, 1), builder->donor_done = calloc(y->n_ops + 1u, 1);
    if (!builder->out || !builder->base_marks || !builder->donor_marks || !builder->held || !builder->donor_done)
        return false;
    for (uint32_t v = 0; v < x->n_values; v++)
        if (x->values[v].storage >= builder->shift) builder->shift = x->values[v].storage + 1;
    return true;
}

lb_status lb_hybrid_run(const lb_model *base, const lb_model *donor, const char *classes, lb_tensor *scores,
                        uint32_t *blocks, lb_err *err)
{
    builder builder = {.base = base, .donor = donor, .err = err};
    *scores = (lb_tensor){0};
    lb_status status =
        allocate(&builder) ? find_exchanges(&builder, classes) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = mark_base(&builder);
    if (status == LB_OK) status = mark_donor(&builder);
    if (status == LB_OK) status = build(&builder);
    if (status == LB_OK) status = perform(&builder, scores);
    *blocks = builder.n_exchanges;
    lb_program_free(builder.out);
    free(builder.exchanges), free(builder.base_marks), free(builder.donor_marks), free(builder.held),
        free(builder.donor_done);
    free(builder.origins);
    if (status != LB_OK) free(scores->data), scores->data = NULL;
    return status;
}
