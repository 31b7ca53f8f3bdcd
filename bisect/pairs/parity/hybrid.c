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
    const lb_program *p = donor->program;
    for (const char *end = path; end && strpbrk(end, "0123456789");
         end = strchr(end, '.') ? strchr(end, '.') + 1 : NULL) {
        uint32_t found = LB_NONE, n = 0;
        for (uint32_t i = 0; i < donor->blocks.n; i++) {
            const char *theirs = lb_program_text(p, p->scopes[donor->blocks.rows[i].scope].path);
            if (strcmp(theirs, end) == 0) return donor->blocks.rows[i].scope;
            if (ends_with(theirs, end)) found = donor->blocks.rows[i].scope, n++;
        }
        if (n) return n == 1 ? found : LB_NONE;
    }
    return LB_NONE;
}

static bool add_exchange(builder *b, const lb_module_call *base, const lb_module_call *donor)
{
    exchange *more = lb_array_grow(b->exchanges, b->n_exchanges, sizeof *more);
    if (!more) return false;
    b->exchanges = more;
    more[b->n_exchanges++] = (exchange){*base, *donor};
    return true;
}

static lb_status pair_calls(builder *b, uint32_t base_scope, uint32_t donor_scope)
{
    lb_module_call *x = NULL, *y = NULL;
    uint32_t n = 0, m = 0;
    bool ok = true;
    LB_TRY(lb_block_module_calls(b->base->program, base_scope, &x, &n, b->err));
    lb_status status = lb_block_module_calls(b->donor->program, donor_scope, &y, &m, b->err);
    for (uint32_t i = 0; status == LB_OK && ok && i < n && i < m; i++)
        if (!x[i].recompute && !y[i].recompute && x[i].first < b->base->end && y[i].first < b->donor->end)
            ok = add_exchange(b, &x[i], &y[i]);
    free(x), free(y);
    if (status == LB_OK && !ok) status = lb_fail(b->err, LB_ERR_NOMEM, "out of memory");
    return status;
}

static int by_call(const void *a, const void *b)
{
    const exchange *x = a, *y = b;
    return (x->base.first > y->base.first) - (x->base.first < y->base.first);
}

static lb_status find_exchanges(builder *b, const char *classes)
{
    for (uint32_t i = 0; i < b->base->blocks.n; i++) {
        const lb_block *block = &b->base->blocks.rows[i];
        if (!strchr(classes, block->letter)) continue;
        const uint32_t there =
            partner_block(b->donor, lb_program_text(b->base->program, b->base->program->scopes[block->scope].path));
        if (there != LB_NONE) LB_TRY(pair_calls(b, block->scope, there));
    }
    if (b->n_exchanges) qsort(b->exchanges, b->n_exchanges, sizeof *b->exchanges, by_call);
    return LB_OK;
}

/* ---- what goes in and comes out ---- */

static bool is_of(const lb_boundary *row, const lb_module_call *call, bool output)
{
    return row->scope == call->scope && row->call == call->call && row->output == output && !row->recompute &&
           row->value != LB_NONE;
}

/* The other side's value at the same position; LB_NONE: none. */
static uint32_t counterpart(const lb_program *p, const lb_module_call *call, const lb_boundary *row)
{
    for (uint32_t i = 0; i < p->n_boundaries; i++)
        if (is_of(&p->boundaries[i], call, row->output) && p->boundaries[i].position == row->position)
            return p->boundaries[i].value;
    return LB_NONE;
}

/* Marks the ops before `end` that define anything in the value's storage. */
static void mark_definers(const lb_program *p, uint32_t value, uint32_t begin, uint32_t end, uint8_t *marks)
{
    const int64_t storage = p->values[value].storage;
    for (uint32_t i = begin; i < end; i++) {
        const lb_op *op = &p->ops[i];
        if (!lb_slice_op_defines(p, op)) continue;
        for (uint32_t r = 0; r < lb_op_outcomes(op); r++) {
            const uint32_t v = lb_op_outcome(p, op, r);
            if (v != LB_NONE && p->values[v].storage == storage) marks[i] = 1;
        }
    }
}

static void need(void *context, uint32_t value)
{
    uint8_t *needed = context;
    if (value != LB_NONE) needed[value] = 1;
}

/* Views that marked ops, and who wants the `needed` values, read through. */
static void mark_views(const lb_program *p, uint32_t begin, uint32_t end, uint8_t *needed, uint8_t *marks)
{
    for (uint32_t i = end; i-- > begin;) {
        const lb_op *op = &p->ops[i];
        for (uint32_t r = 0; !marks[i] && !lb_slice_op_defines(p, op) && r < op->results; r++)
            if (lb_op_results(p, op)[r] != LB_NONE && needed[lb_op_results(p, op)[r]]) marks[i] = 1;
        if (marks[i]) lb_op_each_input(p, op, need, needed);
    }
}

/* The base's ops: what the scores follow from, going round the exchanged modules. */
static lb_status mark_base(builder *b)
{
    const lb_program *p = b->base->program;
    uint8_t *stop = calloc(p->n_ops + 1u, 1), *needed = calloc(p->n_values + 1u, 1);
    if (!stop || !needed) {
        free(stop), free(needed);
        return lb_fail(b->err, LB_ERR_NOMEM, "out of memory");
    }
    for (uint32_t e = 0; e < b->n_exchanges; e++) {
        const lb_module_call *call = &b->exchanges[e].base;
        for (uint32_t i = call->first; i < call->last; i++)
            stop[i] = lb_block_scope_within(p, p->ops[i].scope, call->scope);
    }
    mark_definers(p, b->base->scores, 0, b->base->end, b->base_marks);
    needed[b->base->scores] = 1;
    for (uint32_t e = 0; e < b->n_exchanges; e++)
        for (uint32_t i = 0; i < p->n_boundaries; i++)
            if (is_of(&p->boundaries[i], &b->exchanges[e].base, false)) {
                mark_definers(p, p->boundaries[i].value, 0, b->exchanges[e].base.first, b->base_marks);
                needed[p->boundaries[i].value] = 1;
            }
    for (uint32_t i = 0; i < p->n_ops; i++) b->base_marks[i] &= (uint8_t)!stop[i];
    lb_slice_grow(b->base->flow, true, 0, stop, b->base_marks);
    mark_views(p, 0, b->base->end, needed, b->base_marks);
    for (uint32_t i = 0; i < p->n_ops; i++) b->base_marks[i] &= (uint8_t)!stop[i];
    free(stop), free(needed);
    return LB_OK;
}

/* The donor's: the modules' own, and what they need that is not handed to them. */
static lb_status mark_donor(builder *b)
{
    const lb_program *p = b->donor->program;
    uint8_t *needed = calloc(p->n_values + 1u, 1);
    if (!needed) return lb_fail(b->err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t e = 0; e < b->n_exchanges; e++) {
        const lb_module_call *call = &b->exchanges[e].donor;
        for (uint32_t i = 0; i < p->n_boundaries; i++)
            if (is_of(&p->boundaries[i], call, false))
                mark_definers(p, p->boundaries[i].value, 0, call->first, b->held);
        for (uint32_t i = call->first; i < call->last; i++)
            if (lb_block_scope_within(p, p->ops[i].scope, call->scope) && lb_slice_op_defines(p, &p->ops[i]))
                b->donor_marks[i] = 1;
        for (uint32_t i = 0; i < p->n_boundaries; i++)
            if (is_of(&p->boundaries[i], call, true)) needed[p->boundaries[i].value] = 1;
    }
    for (uint32_t i = 0; i < p->n_ops; i++) /* one module may feed the next directly */
        if (b->donor_marks[i]) b->held[i] = 0;
    lb_slice_grow(b->donor->flow, true, 0, b->held, b->donor_marks);
    mark_views(p, 0, b->donor->end, needed, b->donor_marks);
    free(needed);
    return LB_OK;
}

/* ---- building ---- */

static uint32_t checked(builder *b, uint32_t row)
{
    b->failed |= row == LB_NONE;
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
    side *s = context;
    builder *b = s->b;
    const uint32_t at = b->out->n_values;
    row->storage += s->shift;
    row->statistics = LB_NONE;
    row->name = lb_copier_string(&s->copier, row->name);
    origin *more = lb_array_grow(b->origins, at, sizeof *more);
    s->copier.failed |= !more;
    if (!more) return;
    b->origins = more;
    more[at] = (origin){s->model, value};
}

/* A value's row in the hybrid. */
static uint32_t value_row(side *s, uint32_t value)
{
    const uint32_t row = lb_copier_value(&s->copier, value);
    s->b->failed |= s->copier.failed;
    return row;
}

static void put_op(side *s, uint32_t index)
{
    const lb_program *p = s->model->program;
    lb_op copy = lb_copier_op(&s->copier, &p->ops[index]);
    copy.line = lb_copier_check(&s->copier, lb_program_copy_line(s->b->out, p, p->ops[index].line));
    s->b->failed |= s->copier.failed;
    if (!s->b->failed) checked(s->b, lb_program_add_op(s->b->out, &copy));
}

/* to := from, of other types where need be. */
static void put_copy(builder *b, uint32_t from, uint32_t to)
{
    const lb_dtype dtype = b->out->values[to].dtype;
    lb_arg args[7] = {{.tag = LB_ARG_VALUE, .u.value = from}, {.tag = LB_ARG_DTYPE, .u.i = dtype}};
    for (int i = 2; i < 7; i++) args[i] = (lb_arg){.tag = LB_ARG_NONE};
    args[5] = (lb_arg){.tag = LB_ARG_BOOL};
    lb_op op = {.name = checked(b, lb_program_string(b->out, "aten::_to_copy")),
                .args = 7,
                .results = 1,
                .node_name = LB_NONE,
                .node = -1};
    op.phase = LB_PHASE_FORWARD;
    op.first_arg = checked(b, lb_program_add_args(b->out, args, 7));
    op.first_result = checked(b, lb_program_add_refs(b->out, &to, 1));
    op.first_written = b->out->n_refs;
    if (!b->failed) checked(b, lb_program_add_op(b->out, &op));
}

static lb_status cannot(const builder *b, const exchange *e, const char *why)
{
    return lb_fail(b->err, LB_ERR_UNSUPPORTED, "%s: %s",
                   lb_program_text(b->base->program, b->base->program->scopes[e->base.scope].path), why);
}

/* Inputs of the donor's call := those of the base's, or the other way round of outputs. */
static lb_status put_copies(builder *b, side *base, side *donor, const exchange *e, bool output)
{
    const lb_program *p = b->donor->program;
    bool any = false;
    for (uint32_t i = 0; i < p->n_boundaries && !b->failed; i++) {
        const lb_boundary *row = &p->boundaries[i];
        if (!is_of(row, &e->donor, output)) continue;
        const uint32_t theirs = counterpart(b->base->program, &e->base, row);
        if (theirs == LB_NONE) {
            if (output) continue; /* attention weights that one side alone returns */
            return cannot(b, e, "the sides hand it other arguments");
        }
        if (!lb_layout_same_shape(&p->values[row->value].layout, &b->base->program->values[theirs].layout))
            return cannot(b, e, "the sides hand it, or get from it, tensors of other shapes");
        any = true;
        if (output ? lb_copier_has_value(&base->copier, theirs) : lb_copier_has_value(&donor->copier, row->value))
            continue; /* the same value at two positions */
        const uint32_t from = output ? value_row(donor, row->value) : value_row(base, theirs);
        const uint32_t to = output ? value_row(base, theirs) : value_row(donor, row->value);
        if (!b->failed) put_copy(b, from, to);
    }
    return any ? LB_OK : cannot(b, e, "what goes in or comes out was not recorded");
}

static lb_status put_exchange(builder *b, side *base, side *donor, const exchange *e)
{
    const lb_program *p = b->donor->program;
    LB_TRY(put_copies(b, base, donor, e, false));
    for (uint32_t i = 0; i < e->donor.last && !b->failed; i++) {
        const bool own = i >= e->donor.first && lb_block_scope_within(p, p->ops[i].scope, e->donor.scope);
        bool other = false; /* of another exchanged call, which puts it itself */
        for (uint32_t k = 0; !own && k < b->n_exchanges && !other; k++)
            other = i >= b->exchanges[k].donor.first && i < b->exchanges[k].donor.last &&
                    lb_block_scope_within(p, p->ops[i].scope, b->exchanges[k].donor.scope);
        if (!b->donor_marks[i] || b->donor_done[i] || other) continue;
        put_op(donor, i), b->donor_done[i] = 1;
    }
    return b->failed ? lb_fail(b->err, LB_ERR_NOMEM, "out of memory") : put_copies(b, base, donor, e, true);
}

/* The scores by themselves at the end: they may be a view of what an op gave. */
static void put_scores(side *base)
{
    builder *b = base->b;
    const uint32_t from = value_row(base, b->base->scores);
    if (b->failed) return;
    lb_value row = b->out->values[from];
    row.storage = INT64_MAX / 4, row.version = 0, row.name = LB_NONE, row.flags = 0, row.source = LB_SOURCE_NOT;
    row.layout = lb_layout_contiguous(row.layout.ndim, row.layout.shape);
    b->wanted = checked(b, lb_program_add_value(b->out, &row));
    if (!b->failed) put_copy(b, from, b->wanted);
}

static lb_status put_all(builder *b, side *base, side *donor)
{
    uint32_t next = 0;
    checked(b, lb_program_scope(b->out, "", NULL, LB_NONE));
    for (uint32_t i = 0; i < b->base->end && !b->failed; i++) {
        while (next < b->n_exchanges && b->exchanges[next].base.first == i)
            LB_TRY(put_exchange(b, base, donor, &b->exchanges[next++]));
        if (b->base_marks[i]) put_op(base, i);
    }
    put_scores(base);
    return b->failed ? lb_fail(b->err, LB_ERR_NOMEM, "out of memory") : LB_OK;
}

static lb_status build(builder *b)
{
    side base = {.b = b, .model = b->base}, donor = {.b = b, .model = b->donor, .shift = b->shift};
    base.copier = (lb_copier){.from = b->base->program, .to = b->out, .change = change, .context = &base};
    donor.copier = (lb_copier){.from = b->donor->program, .to = b->out, .change = change, .context = &donor};
    const lb_status status = put_all(b, &base, &donor);
    lb_copier_release(&base.copier), lb_copier_release(&donor.copier);
    LB_TRY(status);
    b->out->complete = 1;
    return lb_program_validate(b->out, b->err);
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
    const run *r = context;
    (void)program;
    if (value == r->b->wanted) return lb_fail(err, LB_ERR_NOT_CAPTURED, "not recorded");
    const origin from = r->b->origins[value];
    return lb_capture_value(from.model->capture, from.model->program, from.value, tensor, err);
}

static bool note_event(void *context, const lb_event *event)
{
    run *r = context;
    const bool lost = event->verdict == LB_VERDICT_MISSING;
    if (lost && !r->lost) r->lost = lb_op_name(event->program, &event->program->ops[event->op]);
    for (uint32_t i = 0; i < event->n_results; i++) {
        if (event->values[i] != r->b->wanted || !event->computed[i].data) continue;
        const lb_tensor *t = &event->computed[i];
        free(r->scores->data);
        *r->scores = (lb_tensor){malloc(lb_dtype_bytes(t->dtype, (size_t)lb_layout_numel(&t->layout)) + 1), t->dtype,
                                 lb_layout_contiguous(t->layout.ndim, t->layout.shape)};
        r->no_memory |= !r->scores->data || lb_tensor_gather(t, r->scores->data, NULL) != LB_OK;
    }
    return !r->no_memory;
}

static lb_status perform(builder *b, lb_tensor *scores)
{
    run r = {.b = b, .scores = scores};
    const lb_observer observer = {.context = &r, .op = note_event};
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.force_decisions = true;
    lb_prepared *prepared = NULL;
    LB_TRY(lb_prepared_make(b->out, NULL, NULL, &prepared, b->err));
    lb_rank_run ranks = {.programs = (const lb_prepared *const *)&prepared,
                         .n_programs = 1,
                         .plan = &plan,
                         .observer = &observer,
                         .context = &r,
                         .value = given_value};
    lb_status status = lb_rank_run_all(&ranks, b->err);
    lb_prepared_free(prepared);
    if (status == LB_OK && r.no_memory) status = lb_fail(b->err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && !scores->data)
        status =
            lb_fail(b->err, LB_ERR_UNSUPPORTED, "the exchanged model does not come to its logits: %s could not be run",
                    r.lost ? r.lost : "an op");
    return status;
}

static bool allocate(builder *b)
{
    const lb_program *x = b->base->program, *y = b->donor->program;
    b->out = lb_program_new();
    b->base_marks = calloc(x->n_ops + 1u, 1), b->donor_marks = calloc(y->n_ops + 1u, 1);
    b->held = calloc(y->n_ops + 1u, 1), b->donor_done = calloc(y->n_ops + 1u, 1);
    if (!b->out || !b->base_marks || !b->donor_marks || !b->held || !b->donor_done) return false;
    for (uint32_t v = 0; v < x->n_values; v++)
        if (x->values[v].storage >= b->shift) b->shift = x->values[v].storage + 1;
    return true;
}

lb_status lb_hybrid_run(const lb_model *base, const lb_model *donor, const char *classes, lb_tensor *scores,
                        uint32_t *blocks, lb_err *err)
{
    builder b = {.base = base, .donor = donor, .err = err};
    *scores = (lb_tensor){0};
    lb_status status = allocate(&b) ? find_exchanges(&b, classes) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = mark_base(&b);
    if (status == LB_OK) status = mark_donor(&b);
    if (status == LB_OK) status = build(&b);
    if (status == LB_OK) status = perform(&b, scores);
    *blocks = b.n_exchanges;
    lb_program_free(b.out);
    free(b.exchanges), free(b.base_marks), free(b.donor_marks), free(b.held), free(b.donor_done);
    free(b.origins);
    if (status != LB_OK) free(scores->data), scores->data = NULL;
    return status;
}
