/* Where values come from: see recogniser.h. */
#include "composites/recogniser.h"

#include "kernel/ops.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

bool lb_recogniser_is(const lb_recogniser *recogniser, uint32_t op, const char *base)
{
    if (op == LB_NONE) return false;
    const char *name = lb_op_known_as(lb_op_name(recogniser->program, &recogniser->program->ops[op]));
    const size_t n = strlen(base);
    if (strncmp(name, "aten::", 6) || strncmp(name + 6, base, n)) return false;
    name += 6 + n;
    if (*name == '_') name++;
    return !*name || *name == '.';
}

bool lb_recogniser_is_any(const lb_recogniser *recogniser, uint32_t op, const char *const *bases)
{
    for (; *bases; bases++)
        if (lb_recogniser_is(recogniser, op, *bases)) return true;
    return false;
}

bool lb_recogniser_forward(const lb_recogniser *recogniser, uint32_t op)
{
    const lb_op *record = &recogniser->program->ops[op];
    if (!lb_slice_op_defines(recogniser->program, record)) return false;
    return record->phase == LB_PHASE_FORWARD || (record->phase == LB_PHASE_BACKWARD && record->flags & LB_OP_RECOMPUTE);
}

bool lb_recogniser_same_call(const lb_recogniser *recogniser, uint32_t a, uint32_t b)
{
    const lb_op *x = &recogniser->program->ops[a], *y = &recogniser->program->ops[b];
    return x->scope == y->scope && x->call == y->call && x->phase == y->phase;
}

lb_reading lb_recogniser_arg(const lb_recogniser *recogniser, uint32_t op, uint32_t i)
{
    const lb_op *row = &recogniser->program->ops[op];
    if (i >= row->args || lb_op_args(recogniser->program, row)[i].tag != LB_ARG_VALUE)
        return (lb_reading){LB_NONE, LB_NONE};
    return (lb_reading){op, lb_op_args(recogniser->program, row)[i].u.value};
}

bool lb_recogniser_number(const lb_recogniser *recogniser, uint32_t op, uint32_t i, double *number)
{
    const lb_op *row = &recogniser->program->ops[op];
    if (i >= row->args) return false;
    const lb_arg *arg = &lb_op_args(recogniser->program, row)[i];
    if (arg->tag == LB_ARG_FLOAT)
        *number = arg->u.f;
    else if (arg->tag == LB_ARG_INT)
        *number = (double)arg->u.i;
    else
        return false;
    return true;
}

uint32_t lb_recogniser_maker(const lb_recogniser *recogniser, lb_reading reading)
{
    uint32_t defs[2];
    if (reading.op == LB_NONE || lb_slice_flow_defs_of(recogniser->flow, reading.op, reading.value, defs, 2) != 1)
        return LB_NONE;
    return defs[0];
}

const lb_value *lb_recogniser_value(const lb_recogniser *recogniser, uint32_t value)
{
    return &recogniser->program->values[value];
}

uint32_t lb_recogniser_result(const lb_recogniser *recogniser, uint32_t op)
{
    const lb_op *row = &recogniser->program->ops[op];
    if (row->results) return lb_op_results(recogniser->program, row)[0];
    return row->written ? lb_op_written(recogniser->program, row)[0] : LB_NONE;
}

/* A copy whose elements are those of its input, in the same places: both layouts have the same shape. */
static bool is_cast(const lb_recogniser *recogniser, uint32_t op)
{
    static const char *const casts[] = {"_to_copy", "clone", "to", NULL};
    return lb_recogniser_is_any(recogniser, op, casts);
}

static bool same_window(const lb_value *a, const lb_value *b)
{
    if (a->storage != b->storage || a->layout.offset != b->layout.offset || a->layout.ndim != b->layout.ndim)
        return false;
    for (int d = 0; d < a->layout.ndim; d++)
        if (a->layout.shape[d] != b->layout.shape[d] ||
            (a->layout.shape[d] > 1 && a->layout.stride[d] != b->layout.stride[d]))
            return false;
    return true;
}

uint32_t lb_recogniser_cast(const lb_recogniser *recogniser, lb_reading reading)
{
    const uint32_t maker = lb_recogniser_maker(recogniser, reading);
    if (maker == LB_NONE || !is_cast(recogniser, maker) || lb_recogniser_arg(recogniser, maker, 0).op == LB_NONE)
        return LB_NONE;
    const uint32_t result = lb_recogniser_result(recogniser, maker);
    return result != LB_NONE &&
                   same_window(lb_recogniser_value(recogniser, result), lb_recogniser_value(recogniser, reading.value))
               ? maker
               : LB_NONE;
}

lb_reading lb_recogniser_peel(const lb_recogniser *recogniser, lb_reading reading)
{
    for (uint32_t cast; (cast = lb_recogniser_cast(recogniser, reading)) != LB_NONE;)
        reading = lb_recogniser_arg(recogniser, cast, 0);
    return reading;
}

bool lb_recogniser_same(const lb_recogniser *recogniser, lb_reading a, lb_reading b)
{
    if (a.op == LB_NONE || b.op == LB_NONE) return false;
    a = lb_recogniser_peel(recogniser, a), b = lb_recogniser_peel(recogniser, b);
    const lb_value *x = lb_recogniser_value(recogniser, a.value), *y = lb_recogniser_value(recogniser, b.value);
    return same_window(x, y) && x->version == y->version;
}

uint32_t lb_recogniser_users(const lb_recogniser *recogniser, uint32_t op, uint32_t *users, uint32_t room)
{
    uint32_t n = 0;
    for (uint32_t e = recogniser->flow->first_use[op]; e < recogniser->flow->first_use[op + 1]; e++) {
        const uint32_t user = recogniser->flow->uses[e];
        if (!lb_recogniser_forward(recogniser, user)) continue;
        if (n < room) users[n] = user;
        n++;
    }
    return n;
}

bool lb_recogniser_last_dim(const lb_recogniser *recogniser, uint32_t op, uint32_t i, int ndim)
{
    const lb_op *row = &recogniser->program->ops[op];
    if (i >= row->args) return false;
    const lb_arg *arg = &lb_op_args(recogniser->program, row)[i];
    if (arg->tag == LB_ARG_LIST && arg->count == 1) arg = &recogniser->program->args[arg->u.first];
    return arg->tag == LB_ARG_INT && (arg->u.i == -1 || arg->u.i == ndim - 1);
}

lb_reading lb_recogniser_item(const lb_recogniser *recogniser, uint32_t op, uint32_t arg, uint32_t i)
{
    const lb_op *row = &recogniser->program->ops[op];
    if (arg >= row->args) return (lb_reading){LB_NONE, LB_NONE};
    const lb_arg *list = &lb_op_args(recogniser->program, row)[arg];
    if (list->tag != LB_ARG_LIST || i >= list->count ||
        recogniser->program->args[list->u.first + i].tag != LB_ARG_VALUE)
        return (lb_reading){LB_NONE, LB_NONE};
    return (lb_reading){op, recogniser->program->args[list->u.first + i].u.value};
}

bool lb_recogniser_position(const lb_recogniser *recogniser, uint32_t op, const char *name, uint32_t *at)
{
    const lb_op_row *row = lb_op_find(lb_op_name(recogniser->program, &recogniser->program->ops[op]), NULL);
    const size_t n = strlen(name);
    *at = 0;
    for (const char *p = row ? row->args : ""; *p; p += strcspn(p, " "), p += *p == ' ', ++*at)
        if (strcspn(p, " " LB_ARG_MARKS) == n && !strncmp(p, name, n)) return true;
    return false;
}

/* ---- what is found ----------------------------------------------------------------------------------------------- */

lb_composite lb_recogniser_composite(const lb_recogniser *recogniser, lb_composite_kind kind)
{
    lb_composite composite = {.kind = kind, .program = recogniser->program};
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++) composite.inputs[i] = LB_NONE;
    for (int i = 0; i < LB_COMPOSITE_OUTPUTS; i++) composite.outputs[i] = LB_NONE;
    return composite;
}

lb_status lb_recogniser_add(lb_recogniser *recogniser, const lb_composite *composite, const uint32_t *ops,
                            uint32_t n_ops)
{
    lb_composites *found = recogniser->found;
    lb_composite *more = lb_array_grow(found->rows, found->n, sizeof *more);
    if (!more) return lb_fail(recogniser->err, LB_ERR_NOMEM, "out of memory for composites");
    found->rows = more;
    lb_composite *c = &found->rows[found->n];
    *c = *composite;
    c->ops = malloc((n_ops + 1) * sizeof *c->ops);
    c->list = malloc((composite->n_list + 1) * sizeof *c->list);
    if (!c->ops || !c->list) {
        free(c->ops);
        free(c->list);
        return lb_fail(recogniser->err, LB_ERR_NOMEM, "out of memory for composites");
    }
    if (c->n_list) memcpy(c->list, composite->list, c->n_list * sizeof *c->list);
    memcpy(c->ops, ops, n_ops * sizeof *ops);
    qsort(c->ops, n_ops, sizeof *c->ops, lb_by_u32);
    c->n_ops = 0;
    for (uint32_t i = 0; i < n_ops; i++)
        if (!c->n_ops || c->ops[c->n_ops - 1] != c->ops[i]) c->ops[c->n_ops++] = c->ops[i];
    const lb_op *last = &recogniser->program->ops[c->ops[c->n_ops - 1]];
    c->scope = last->scope, c->call = last->call;
    found->n++;
    return LB_OK;
}

/* ---- all that lies between --------------------------------------------------------------------------------------- */

typedef struct between {
    const lb_recogniser *recogniser;
    const lb_composite *composite;
    uint32_t last, op;
    uint8_t *marks;
    bool foreign;
} between;

static bool is_input(const between *between, uint32_t value)
{
    const lb_value *v = lb_recogniser_value(between->recogniser, value);
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++) {
        const uint32_t in = between->composite->inputs[i];
        if (in != LB_NONE && lb_recogniser_value(between->recogniser, in)->storage == v->storage) return true;
    }
    return false;
}

static void mark_makers(void *context, uint32_t value)
{
    between *between = context;
    uint32_t defs[16];
    if (is_input(between, value)) return;
    const uint32_t n = lb_slice_flow_defs_of(between->recogniser->flow, between->op, value, defs, 16);
    between->foreign |= n == 0 || n > 16;
    for (uint32_t i = 0; i < n && i < 16; i++) {
        between->foreign |= !lb_recogniser_same_call(between->recogniser, defs[i], between->last);
        between->marks[defs[i]] = 1;
    }
}

lb_status lb_recogniser_add_between(lb_recogniser *recogniser, const lb_composite *composite, uint32_t last,
                                    bool *added)
{
    between between = {recogniser, composite, last, last, calloc((size_t)last + 1, 1), false};
    uint32_t *ops = malloc(((size_t)last + 1) * sizeof *ops), n = 0;
    lb_status status =
        between.marks && ops ? LB_OK : lb_fail(recogniser->err, LB_ERR_NOMEM, "out of memory for composites");
    if (status == LB_OK) between.marks[last] = 1;
    for (between.op = last + 1; status == LB_OK && between.op-- > 0 && !between.foreign;) {
        if (!between.marks[between.op]) continue;
        ops[n++] = between.op;
        lb_op_each_input(recogniser->program, &recogniser->program->ops[between.op], mark_makers, &between);
    }
    *added = status == LB_OK && !between.foreign;
    if (*added) status = lb_recogniser_add(recogniser, composite, ops, n);
    free(between.marks);
    free(ops);
    return status;
}
