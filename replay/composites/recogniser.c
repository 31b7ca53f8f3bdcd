/* Where values come from: see recogniser.h. */
#include "composites/recogniser.h"

#include "kernel/ops.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

bool lb_recogniser_is(const lb_recogniser *t, uint32_t op, const char *base)
{
    if (op == LB_NONE) return false;
    const char *name = lb_op_known_as(lb_op_name(t->program, &t->program->ops[op]));
    const size_t n = strlen(base);
    if (strncmp(name, "aten::", 6) || strncmp(name + 6, base, n)) return false;
    name += 6 + n;
    if (*name == '_') name++;
    return !*name || *name == '.';
}

bool lb_recogniser_is_any(const lb_recogniser *t, uint32_t op, const char *const *bases)
{
    for (; *bases; bases++)
        if (lb_recogniser_is(t, op, *bases)) return true;
    return false;
}

bool lb_recogniser_forward(const lb_recogniser *t, uint32_t i)
{
    const lb_op *op = &t->program->ops[i];
    if (!lb_slice_op_defines(t->program, op)) return false;
    return op->phase == LB_PHASE_FORWARD || (op->phase == LB_PHASE_BACKWARD && op->flags & LB_OP_RECOMPUTE);
}

bool lb_recogniser_same_call(const lb_recogniser *t, uint32_t a, uint32_t b)
{
    const lb_op *x = &t->program->ops[a], *y = &t->program->ops[b];
    return x->scope == y->scope && x->call == y->call && x->phase == y->phase;
}

lb_reading lb_recogniser_arg(const lb_recogniser *t, uint32_t op, uint32_t i)
{
    const lb_op *row = &t->program->ops[op];
    if (i >= row->args || lb_op_args(t->program, row)[i].tag != LB_ARG_VALUE) return (lb_reading){LB_NONE, LB_NONE};
    return (lb_reading){op, lb_op_args(t->program, row)[i].u.value};
}

bool lb_recogniser_number(const lb_recogniser *t, uint32_t op, uint32_t i, double *number)
{
    const lb_op *row = &t->program->ops[op];
    if (i >= row->args) return false;
    const lb_arg *arg = &lb_op_args(t->program, row)[i];
    if (arg->tag == LB_ARG_FLOAT)
        *number = arg->u.f;
    else if (arg->tag == LB_ARG_INT)
        *number = (double)arg->u.i;
    else
        return false;
    return true;
}

uint32_t lb_recogniser_maker(const lb_recogniser *t, lb_reading r)
{
    uint32_t defs[2];
    if (r.op == LB_NONE || lb_slice_flow_defs_of(t->flow, r.op, r.value, defs, 2) != 1) return LB_NONE;
    return defs[0];
}

const lb_value *lb_recogniser_value(const lb_recogniser *t, uint32_t value)
{
    return &t->program->values[value];
}

uint32_t lb_recogniser_result(const lb_recogniser *t, uint32_t op)
{
    const lb_op *row = &t->program->ops[op];
    if (row->results) return lb_op_results(t->program, row)[0];
    return row->written ? lb_op_written(t->program, row)[0] : LB_NONE;
}

/* A copy whose elements are those of its input, in the same places: both layouts have the same shape. */
static bool is_cast(const lb_recogniser *t, uint32_t op)
{
    static const char *const casts[] = {"_to_copy", "clone", "to", NULL};
    return lb_recogniser_is_any(t, op, casts);
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

uint32_t lb_recogniser_cast(const lb_recogniser *t, lb_reading r)
{
    const uint32_t maker = lb_recogniser_maker(t, r);
    if (maker == LB_NONE || !is_cast(t, maker) || lb_recogniser_arg(t, maker, 0).op == LB_NONE) return LB_NONE;
    const uint32_t result = lb_recogniser_result(t, maker);
    return result != LB_NONE && same_window(lb_recogniser_value(t, result), lb_recogniser_value(t, r.value)) ? maker
                                                                                                             : LB_NONE;
}

lb_reading lb_recogniser_peel(const lb_recogniser *t, lb_reading r)
{
    for (uint32_t cast; (cast = lb_recogniser_cast(t, r)) != LB_NONE;) r = lb_recogniser_arg(t, cast, 0);
    return r;
}

bool lb_recogniser_same(const lb_recogniser *t, lb_reading a, lb_reading b)
{
    if (a.op == LB_NONE || b.op == LB_NONE) return false;
    a = lb_recogniser_peel(t, a), b = lb_recogniser_peel(t, b);
    const lb_value *x = lb_recogniser_value(t, a.value), *y = lb_recogniser_value(t, b.value);
    return same_window(x, y) && x->version == y->version;
}

uint32_t lb_recogniser_users(const lb_recogniser *t, uint32_t op, uint32_t *users, uint32_t room)
{
    uint32_t n = 0;
    for (uint32_t e = t->flow->first_use[op]; e < t->flow->first_use[op + 1]; e++) {
        const uint32_t user = t->flow->uses[e];
        if (!lb_recogniser_forward(t, user)) continue;
        if (n < room) users[n] = user;
        n++;
    }
    return n;
}

bool lb_recogniser_last_dim(const lb_recogniser *t, uint32_t op, uint32_t i, int ndim)
{
    const lb_op *row = &t->program->ops[op];
    if (i >= row->args) return false;
    const lb_arg *arg = &lb_op_args(t->program, row)[i];
    if (arg->tag == LB_ARG_LIST && arg->count == 1) arg = &t->program->args[arg->u.first];
    return arg->tag == LB_ARG_INT && (arg->u.i == -1 || arg->u.i == ndim - 1);
}

lb_reading lb_recogniser_item(const lb_recogniser *t, uint32_t op, uint32_t arg, uint32_t i)
{
    const lb_op *row = &t->program->ops[op];
    if (arg >= row->args) return (lb_reading){LB_NONE, LB_NONE};
    const lb_arg *list = &lb_op_args(t->program, row)[arg];
    if (list->tag != LB_ARG_LIST || i >= list->count || t->program->args[list->u.first + i].tag != LB_ARG_VALUE)
        return (lb_reading){LB_NONE, LB_NONE};
    return (lb_reading){op, t->program->args[list->u.first + i].u.value};
}

bool lb_recogniser_position(const lb_recogniser *t, uint32_t op, const char *name, uint32_t *at)
{
    const lb_op_row *row = lb_op_find(lb_op_name(t->program, &t->program->ops[op]), NULL);
    const size_t n = strlen(name);
    *at = 0;
    for (const char *p = row ? row->args : ""; *p; p += strcspn(p, " "), p += *p == ' ', ++*at)
        if (strcspn(p, " " LB_ARG_MARKS) == n && !strncmp(p, name, n)) return true;
    return false;
}

/* ---- what is found ----------------------------------------------------------------------------------------------- */

lb_composite lb_recogniser_composite(const lb_recogniser *t, lb_composite_kind kind)
{
    lb_composite c = {.kind = kind, .program = t->program};
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++) c.inputs[i] = LB_NONE;
    for (int i = 0; i < LB_COMPOSITE_OUTPUTS; i++) c.outputs[i] = LB_NONE;
    return c;
}

lb_status lb_recogniser_add(lb_recogniser *t, const lb_composite *composite, const uint32_t *ops, uint32_t n_ops)
{
    lb_composites *found = t->found;
    lb_composite *more = lb_array_grow(found->rows, found->n, sizeof *more);
    if (!more) return lb_fail(t->err, LB_ERR_NOMEM, "out of memory for composites");
    found->rows = more;
    lb_composite *c = &found->rows[found->n];
    *c = *composite;
    c->ops = malloc((n_ops + 1) * sizeof *c->ops);
    c->list = malloc((composite->n_list + 1) * sizeof *c->list);
    if (!c->ops || !c->list) {
        free(c->ops);
        free(c->list);
        return lb_fail(t->err, LB_ERR_NOMEM, "out of memory for composites");
    }
    if (c->n_list) memcpy(c->list, composite->list, c->n_list * sizeof *c->list);
    memcpy(c->ops, ops, n_ops * sizeof *ops);
    qsort(c->ops, n_ops, sizeof *c->ops, lb_by_u32);
    c->n_ops = 0;
    for (uint32_t i = 0; i < n_ops; i++)
        if (!c->n_ops || c->ops[c->n_ops - 1] != c->ops[i]) c->ops[c->n_ops++] = c->ops[i];
    const lb_op *last = &t->program->ops[c->ops[c->n_ops - 1]];
    c->scope = last->scope, c->call = last->call;
    found->n++;
    return LB_OK;
}

/* ---- all that lies between --------------------------------------------------------------------------------------- */

typedef struct between {
    const lb_recogniser *t;
    const lb_composite *composite;
    uint32_t last, op;
    uint8_t *marks;
    bool foreign;
} between;

static bool is_input(const between *b, uint32_t value)
{
    const lb_value *v = lb_recogniser_value(b->t, value);
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++) {
        const uint32_t in = b->composite->inputs[i];
        if (in != LB_NONE && lb_recogniser_value(b->t, in)->storage == v->storage) return true;
    }
    return false;
}

static void mark_makers(void *context, uint32_t value)
{
    between *b = context;
    uint32_t defs[16];
    if (is_input(b, value)) return;
    const uint32_t n = lb_slice_flow_defs_of(b->t->flow, b->op, value, defs, 16);
    b->foreign |= n == 0 || n > 16;
    for (uint32_t i = 0; i < n && i < 16; i++) {
        b->foreign |= !lb_recogniser_same_call(b->t, defs[i], b->last);
        b->marks[defs[i]] = 1;
    }
}

lb_status lb_recogniser_add_between(lb_recogniser *t, const lb_composite *composite, uint32_t last, bool *added)
{
    between b = {t, composite, last, last, calloc((size_t)last + 1, 1), false};
    uint32_t *ops = malloc(((size_t)last + 1) * sizeof *ops), n = 0;
    lb_status status = b.marks && ops ? LB_OK : lb_fail(t->err, LB_ERR_NOMEM, "out of memory for composites");
    if (status == LB_OK) b.marks[last] = 1;
    for (b.op = last + 1; status == LB_OK && b.op-- > 0 && !b.foreign;) {
        if (!b.marks[b.op]) continue;
        ops[n++] = b.op;
        lb_op_each_input(t->program, &t->program->ops[b.op], mark_makers, &b);
    }
    *added = status == LB_OK && !b.foreign;
    if (*added) status = lb_recogniser_add(t, composite, ops, n);
    free(b.marks);
    free(ops);
    return status;
}
