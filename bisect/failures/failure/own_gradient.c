/* Gradients before ranks meet: see own_gradient.h. */
#define _GNU_SOURCE /* asprintf */
#include "failure/own_gradient.h"

#include "failure/watched.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One value that AccumulateGrad left. */
typedef struct left {
    /* `held`: where the gradient lies now, with what others brought */
    uint32_t value, held, name, scope, ordinal, pass;
    uint32_t op, taken; /* `taken`: the value that autograd gave it, LB_NONE where it was added to another */
    bool gone;          /* a later one holds it, too */
} left;

typedef struct search {
    const lb_program *program;
    const lb_slice_flow *flow;
    left *rows;
    uint32_t n, room, pass;
    lb_own_gradients *out;
    lb_err *err;
} search;

/* "add" of any library: "aten::add.Tensor". */
static bool op_is(const lb_program *program, const lb_op *op, const char *base)
{
    const char *name = lb_op_name(program, op), *after = strstr(name, "::");
    return lb_program_name_extends(after ? after + 2 : name, base);
}

static bool op_is_one(const lb_program *program, const lb_op *op, const char *const *bases)
{
    for (; *bases; bases++)
        if (op_is(program, op, *bases)) return true;
    return false;
}

static uint32_t arg_value(const lb_program *program, const lb_op *op, uint32_t i)
{
    const lb_arg *args = lb_op_args(program, op);
    return i < op->args && args[i].tag == LB_ARG_VALUE ? args[i].u.value : LB_NONE;
}

/* ---- what AccumulateGrad leaves ---------------------------------------------------------------------------------- */

static bool same_window(const lb_program *program, uint32_t a, uint32_t b)
{
    const lb_value *x = &program->values[a], *y = &program->values[b];
    return x->storage == y->storage && x->layout.offset == y->layout.offset;
}

/* The value that this op of AccumulateGrad leaves as the gradient, LB_NONE when it does something else (a hook's copy
 * into a bucket). `before`: what was there, which it now holds, too. */
static uint32_t left_by(const lb_program *program, uint32_t i, uint32_t *before)
{
    static const char *const taken[] = {"detach", "clone", NULL}, *const added[] = {"add_", "add", NULL};
    static const char *const made[] = {"new_empty_strided", "empty_strided", NULL};
    const lb_op *op = &program->ops[i];
    const uint32_t first = arg_value(program, op, 0), second = arg_value(program, op, 1);
    *before = LB_NONE;
    if (op->flags & LB_OP_FAILED || !lb_op_outcomes(op) || first == LB_NONE) return LB_NONE;
    if (op_is_one(program, op, taken)) return lb_op_outcome(program, op, 0);
    if (op_is_one(program, op, added) && second != LB_NONE &&
        lb_layout_same_shape(&program->values[first].layout, &program->values[second].layout)) {
        *before = first;
        return lb_op_outcome(program, op, 0);
    }
    if (op_is(program, op, "copy_") && i && op_is_one(program, &program->ops[i - 1], made) &&
        lb_op_outcomes(&program->ops[i - 1]) &&
        same_window(program, first, lb_op_outcome(program, &program->ops[i - 1], 0)))
        return lb_op_outcome(program, op, 0);
    return LB_NONE;
}

static uint32_t scope_of(const search *search, uint32_t op, uint32_t value, uint32_t name)
{
    uint32_t def;
    if (name != LB_NONE) return lb_program_owner(search->program, lb_program_text(search->program, name));
    if (search->program->ops[op].scope) return search->program->ops[op].scope;
    return value != LB_NONE && lb_slice_flow_defs_of(search->flow, op, value, &def, 1) ? search->program->ops[def].scope
                                                                                       : 0;
}

/* The gradient that this value holds so far; NULL: none of this step. */
static left *find_window(search *search, uint32_t value)
{
    for (uint32_t k = search->n; k-- > 0;)
        if (!search->rows[k].gone && same_window(search->program, search->rows[k].held, value)) return &search->rows[k];
    return NULL;
}

static bool has_room(search *search)
{
    if (search->n < search->room) return true;
    const uint32_t room = search->room ? search->room * 2 : 64;
    left *grown = realloc(search->rows, room * sizeof *grown);
    if (grown) search->rows = grown, search->room = room;
    return grown != NULL;
}

/* Two values that are one: a window of one storage at one version. */
static bool same_contents(const lb_program *program, uint32_t a, uint32_t b)
{
    return same_window(program, a, b) && program->values[a].version == program->values[b].version;
}

/* Op `i` adds to what was there, `before`. True: the row is complete, and is that of the sum. */
static bool goes_on(search *search, uint32_t i, uint32_t before, left *row)
{
    const lb_program *program = search->program;
    const uint32_t brought = arg_value(program, &program->ops[i], 1);
    for (uint32_t k = 0; k < search->n; k++) /* what a hook looked at before it was added */
        search->rows[k].gone |= same_contents(program, search->rows[k].held, brought);
    left *old = find_window(search, before);
    if (old && program->values[old->held].version == program->values[before].version) {
        old->gone = true;
        if (row->name == LB_NONE) row->name = old->name;
        row->scope = old->scope, row->ordinal = old->ordinal, row->pass = old->pass;
        return true;
    }
    /* What was there came from another step, or ranks have met over it since (DDP without no_sync): only what is added
     * is its own. */
    row->value = brought;
    if (program->values[before].flags & LB_VALUE_GRADIENT) row->name = program->values[before].name;
    if (old && row->name == LB_NONE) row->name = old->name;
    if (old)
        row->scope = old->scope, row->ordinal = old->ordinal;
    else if (row->name != LB_NONE)
        row->scope = scope_of(search, i, LB_NONE, row->name);
    return old || row->name != LB_NONE;
}

/* A hook's own copy of what AccumulateGrad takes next; or a name again: the optimizer gets the last one alone. True:
 * the row takes its place from an older one. */
static bool replaces_older(search *search, left *row)
{
    bool inherits = false;
    for (uint32_t k = 0; k < search->n; k++) {
        left *old = &search->rows[k];
        const bool again =
            row->taken != LB_NONE && old->taken != LB_NONE && same_contents(search->program, old->taken, row->taken);
        if (old->gone || !(again || (row->name != LB_NONE && old->name == row->name))) continue;
        old->gone = true;
        if (row->name == LB_NONE) row->name = old->name;
        row->scope = old->scope, row->ordinal = old->ordinal, row->pass = old->pass, inherits = true;
    }
    return inherits;
}

static lb_status add_left(search *search, uint32_t i, uint32_t value, uint32_t before)
{
    const lb_program *program = search->program;
    const lb_value *parameter = &program->values[value];
    const bool copies = op_is(program, &program->ops[i], "copy_"), adds = before != LB_NONE;
    left row = {.value = value,
                .held = value,
                .op = i,
                .pass = search->pass,
                .name = parameter->flags & LB_VALUE_GRADIENT ? parameter->name : LB_NONE,
                .taken = !adds && !copies ? arg_value(program, &program->ops[i], 0) : LB_NONE};
    if (!has_room(search)) return lb_fail(search->err, LB_ERR_NOMEM, "out of memory for gradients");
    row.scope = scope_of(search, i, arg_value(program, &program->ops[i], adds || copies ? 1 : 0), row.name);
    const bool placed = adds ? goes_on(search, i, before, &row) : replaces_older(search, &row);
    for (uint32_t k = 0; k < search->n && !placed; k++)
        row.ordinal += search->rows[k].pass == row.pass && !search->rows[k].gone &&
                       search->rows[k].scope == row.scope &&
                       lb_layout_same_shape(&program->values[search->rows[k].value].layout, &parameter->layout);
    search->rows[search->n++] = row;
    return LB_OK;
}

/* ---- where it goes ----------------------------------------------------------------------------------------------- */

/* What hands a gradient on as it is, in different shapes, dtypes and scales, or adds another micro-batch's. */
static bool hands_on(const lb_program *program, const lb_op *op)
{
    static const char *const names[] = {"copy_",
                                        "clone",
                                        "mul",
                                        "mul_",
                                        "div",
                                        "div_",
                                        "_to_copy",
                                        "to",
                                        "cat",
                                        "stack",
                                        "add",
                                        "add_",
                                        "chunk_cat",
                                        "_chunk_cat",
                                        "_foreach_copy_",
                                        "_foreach_mul_",
                                        "_foreach_mul",
                                        "_foreach_div_",
                                        "_foreach_div",
                                        "_foreach_add_",
                                        "nan_to_num",
                                        "nan_to_num_",
                                        "_amp_foreach_non_finite_check_and_unscale_",
                                        "split_with_sizes_copy",
                                        "contiguous",
                                        "flatten",
                                        "constant_pad_nd",
                                        "where",
                                        NULL};
    return op_is_one(program, op, names);
}

enum { FOLLOWED = 64, STORAGES = 128 };

/* Follows a value through what hands it on, to the first collective. `rows`: per op, row of the program's
 * collectives. */
static uint32_t collective_of(const search *search, const left *from, const uint32_t *rows)
{
    const lb_program *program = search->program;
    uint32_t queue[FOLLOWED], n = 0, defs[4], found = LB_NONE;
    int64_t storages[STORAGES];
    uint32_t n_storages = 0;
    storages[n_storages++] = program->values[from->held].storage;
    const lb_op *op = &program->ops[from->op];
    if (lb_slice_op_defines(program, op) && !(op->flags & LB_OP_VIEW))
        queue[n++] = from->op;
    else {
        const uint32_t count = lb_slice_flow_defs_of(search->flow, from->op, arg_value(program, op, 0), defs, 4);
        for (uint32_t k = 0; k < count && k < 4; k++) queue[n++] = defs[k];
    }
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t u = search->flow->first_use[queue[k]]; u < search->flow->first_use[queue[k] + 1]; u++) {
            const uint32_t use = search->flow->uses[u];
            const lb_op *reader = &program->ops[use];
            bool reads = false, known = false;
            for (uint32_t t = 0; t < n_storages && !reads; t++)
                reads = lb_op_reads(program, reader, storages[t]) != LB_NONE;
            if (!reads || (use < from->op && queue[k] == queue[0])) continue;
            if (reader->flags & LB_OP_COLLECTIVE) {
                /* A stage of a pipeline sends on what autograd leaves for its input, which is no parameter. */
                const char *name = lb_op_name(program, reader);
                if (reader->phase != LB_PHASE_FORWARD && rows[use] != LB_NONE && !strstr(name, "send") &&
                    !strstr(name, "recv") && use < (found == LB_NONE ? use + 1 : found))
                    found = use;
                continue;
            }
            for (uint32_t t = 0; t < n; t++) known |= queue[t] == use;
            if (known || n == FOLLOWED || !hands_on(program, reader)) continue;
            queue[n++] = use;
            for (uint32_t r = 0; r < lb_op_outcomes(reader); r++) {
                const uint32_t v = lb_op_outcome(program, reader, r);
                if (v != LB_NONE && n_storages < STORAGES) storages[n_storages++] = program->values[v].storage;
            }
        }
    return found == LB_NONE ? LB_NONE : rows[found];
}

static uint32_t *collective_rows(const lb_program *program)
{
    uint32_t *rows = malloc((program->n_ops + 1) * sizeof *rows);
    for (uint32_t i = 0; rows && i < program->n_ops; i++) rows[i] = LB_NONE;
    for (uint32_t c = 0; rows && c < program->n_collectives; c++) rows[program->collectives[c].op] = c;
    return rows;
}

bool lb_own_gradient_same_group(const lb_program *p, const lb_collective *a, const lb_program *q,
                                const lb_collective *b)
{
    if (a->ranks != b->ranks) return false;
    if (p == q && a->first_rank == b->first_rank) return true; /* a list is written once a step */
    return !a->ranks || !memcmp(&p->refs[a->first_rank], &q->refs[b->first_rank], a->ranks * sizeof *p->refs);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static char *key_of(const lb_program *program, const left *row)
{
    char *text = NULL, shape[160] = "";
    const lb_layout *layout = &program->values[row->value].layout;
    if (row->name != LB_NONE) return strdup(lb_program_text(program, row->name));
    for (int d = 0, at = 0; d < layout->ndim && at < 120; d++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", d ? "," : "", (long long)layout->shape[d]);
    if (asprintf(&text, "%s [%s] #%u", lb_program_text(program, program->scopes[row->scope].path), shape,
                 row->ordinal) < 0)
        return NULL;
    return text;
}

static bool same_gradient(const lb_program *program, const left *a, const left *b)
{
    if (a->name != LB_NONE || b->name != LB_NONE) return a->name == b->name;
    return a->scope == b->scope && a->ordinal == b->ordinal &&
           lb_layout_same_shape(&program->values[a->value].layout, &program->values[b->value].layout);
}

/* Does an optimizer step this parameter behind that op? */
static bool optimizer_reads(const lb_program *program, uint32_t name, uint32_t op)
{
    for (uint32_t g = 0; name != LB_NONE && g < program->n_groups; g++)
        for (uint32_t k = 0; program->groups[g].first_op > op && k < program->groups[g].params; k++)
            if (program->group_params[program->groups[g].first_param + k].name == name) return true;
    return false;
}

static lb_status add_gradient(search *search, uint32_t k, const uint32_t *rows, uint8_t *done)
{
    const lb_program *program = search->program;
    lb_own_gradients *out = search->out;
    lb_own_gradient *gradient = &out->list[out->n];
    const left *row = &search->rows[k];
    *gradient = (lb_own_gradient){.key = key_of(program, row),
                                  .name = row->name,
                                  .scope = row->scope,
                                  .first = out->n_values,
                                  .collective = LB_NONE,
                                  .late = LB_NONE};
    uint32_t late = LB_NONE;
    if (!gradient->key) return lb_fail(search->err, LB_ERR_NOMEM, "out of memory for gradients");
    out->n++;
    for (uint32_t i = k; i < search->n; i++) {
        if (search->rows[i].gone || done[i] || !same_gradient(program, row, &search->rows[i])) continue;
        done[i] = 1;
        out->values[out->n_values++] = search->rows[i].value, gradient->values++;
        const uint32_t entered = collective_of(search, &search->rows[i], rows);
        if (gradient->collective == LB_NONE) gradient->collective = entered;
        late = gradient->collective != LB_NONE && entered == LB_NONE ? search->rows[i].op : LB_NONE;
    }
    if (late != LB_NONE && optimizer_reads(program, row->name, late)) gradient->late = late;
    if (gradient->collective != LB_NONE) {
        const char *name = lb_op_name(program, &program->ops[program->collectives[gradient->collective].op]);
        gradient->whole = (strstr(name, "allreduce") || strstr(name, "all_reduce")) != 0;
    }
    return LB_OK;
}

static lb_status list_gradients(search *search)
{
    lb_own_gradients *out = search->out;
    uint32_t *rows = collective_rows(search->program);
    uint8_t *done = calloc(search->n + 1, 1);
    out->list = calloc(search->n + 1, sizeof *out->list), out->values = malloc((search->n + 1) * sizeof *out->values);
    lb_status status = rows && done && out->list && out->values
                           ? LB_OK
                           : lb_fail(search->err, LB_ERR_NOMEM, "out of memory for gradients");
    for (uint32_t k = 0; k < search->n && status == LB_OK; k++)
        if (!search->rows[k].gone && !done[k]) status = add_gradient(search, k, rows, done);
    free(rows);
    free(done);
    return status;
}

/* Of a tensor with one element, from its statistics. */
static double number_of(const lb_program *program, uint32_t value)
{
    if (value == LB_NONE || lb_layout_numel(&program->values[value].layout) != 1 ||
        program->values[value].statistics == LB_NONE)
        return NAN;
    const lb_statistics *statistics = &program->statistics[program->values[value].statistics];
    return statistics->nan ? NAN : statistics->pos_inf ? INFINITY : statistics->neg_inf ? -INFINITY : statistics->sum;
}

lb_status lb_own_gradients_find(const lb_program *program, const lb_slice_flow *flow, lb_own_gradients *own,
                                lb_err *err)
{
    search search = {.program = program, .flow = flow, .out = own, .err = err};
    lb_status status = LB_OK;
    *own = (lb_own_gradients){.program = program, .loss = NAN, .scale = 1};
    for (uint32_t i = 0; i < program->n_ops && status == LB_OK; i++) {
        const lb_op *op = &program->ops[i];
        uint32_t before, value;
        if (lb_op_is_unscaling(program, op)) {
            const double inverse = number_of(program, arg_value(program, op, 2));
            if (inverse > 0 && isfinite(inverse)) own->scale = 1 / inverse;
        }
        if (op->phase != LB_PHASE_BACKWARD) continue;
        const char *node = lb_program_text(program, op->node_name);
        if (!*node && op_is(program, op, "ones_like")) {
            const double loss = number_of(program, arg_value(program, op, 0));
            search.pass = ++own->backwards;
            own->loss = own->backwards == 1 ? loss : own->loss + loss;
        }
        if (!strstr(node, "AccumulateGrad")) continue;
        value = left_by(program, i, &before);
        if (value != LB_NONE && lb_dtype_is_float(program->values[value].dtype))
            status = add_left(&search, i, value, before);
    }
    own->loss /= own->scale;
    if (status == LB_OK) status = list_gradients(&search);
    free(search.rows);
    if (status != LB_OK) lb_own_gradients_release(own);
    return status;
}

void lb_own_gradients_release(lb_own_gradients *own)
{
    for (uint32_t i = 0; own->list && i < own->n; i++) free(own->list[i].key);
    free(own->list), free(own->values);
    *own = (lb_own_gradients){0};
}
