/* Numbers that the program logged or read: see logged_scalars.h. */
#include "shadow/logged_scalars.h"

#include "shadow/cross_feed.h"

#include "base/array.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_same_number(double x, double y)
{
    return x == y || (x != x && y != y);
}

static const char *name_of(const lb_program *program, uint32_t row)
{
    return lb_program_text(program, program->scalars[row].name);
}

static uint32_t count_of(const lb_program *program, const char *name)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < program->n_scalars; i++)
        n += !lb_program_is_option(program, i) && !strcmp(name_of(program, i), name);
    return n;
}

/* The `nth` scalar of that name; LB_NONE. */
static uint32_t row_of(const lb_program *program, const char *name, uint32_t nth)
{
    for (uint32_t i = 0; i < program->n_scalars; i++)
        if (!lb_program_is_option(program, i) && !strcmp(name_of(program, i), name) && nth-- == 0) return i;
    return LB_NONE;
}

static void note_input(void *context, uint32_t value)
{
    *(bool *)context |= value != LB_NONE;
}

static void note_value(void *context, uint32_t value)
{
    *(uint32_t *)context = value;
}

/* Does this value hold that one number? */
static bool holds(const lb_program *program, uint32_t value, double number)
{
    if (value == LB_NONE || program->values[value].statistics == LB_NONE ||
        !lb_dtype_is_float(program->values[value].dtype))
        return false;
    const lb_statistics *s = &program->statistics[program->values[value].statistics];
    if (s->elements != 1) return false;
    return number != number ? s->nan == 1 : lb_statistics_nonfinite(s) ? false : s->sum == number;
}

/* The last op before the scalar was seen that gave its number. A constant that happens to be the same number is none:
 * it follows from nothing. `*value`: what it gave. */
static uint32_t giver_of_number(const lb_program *program, const lb_scalar *scalar, uint32_t *value)
{
    for (uint32_t i = scalar->op < program->n_ops ? scalar->op : program->n_ops; i-- > 0;) {
        const lb_op *op = &program->ops[i];
        bool reads = false;
        if (!lb_op_computes(program, op)) continue; /* views hand on what another op gave */
        lb_op_each_input(program, op, note_input, &reads);
        for (uint32_t k = 0; reads && k < lb_op_outcomes(op); k++) {
            *value = lb_op_outcome(program, op, k);
            if (holds(program, *value, scalar->number)) return i;
        }
    }
    *value = LB_NONE;
    return LB_NONE;
}

/* What `.item()` read, and the op that gave it: the scalar is seen when that op was recorded, or is about to be. */
static uint32_t giver_of_read(const lb_program *program, const lb_scalar *scalar, uint32_t *value)
{
    *value = LB_NONE;
    for (uint32_t i = scalar->op ? scalar->op - 1 : 0; i <= scalar->op && i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (strcmp(lb_op_name(program, op), "aten::_local_scalar_dense") != 0) continue;
        lb_op_each_input(program, op, note_value, value);
        const uint32_t giver = *value == LB_NONE ? LB_NONE : lb_cross_feed_giver(program, *value, i);
        if (giver != LB_NONE) return giver;
    }
    return LB_NONE;
}

static void locate(const lb_program_view *side, uint32_t part, const lb_scalar *scalar, int k, lb_logged_scalar *out)
{
    const lb_program_view_part *of = &side->parts[part];
    const uint32_t last = of->program->n_ops ? of->program->n_ops - 1 : 0;
    out->numbers[k] = scalar->number;
    out->seen[k] = of->first_op + (scalar->op && scalar->op <= last ? scalar->op - 1 : last);
    const bool read = strcmp(out->name, "item") == 0;
    out->op[k] = (read ? giver_of_read : giver_of_number)(of->program, scalar, &out->value[k]);
    if (out->op[k] != LB_NONE) out->op[k] += of->first_op, out->value[k] += of->first_value;
}

/* Numbers that one side reads (or, of micro-batches in another order, logs) earlier than another and the other side
 * later: each has its own partner, with which it is judged. */
static bool is_read_in_other_order(const lb_alignment *al, const lb_logged_scalar *s)
{
    if ((strcmp(s->name, "item") != 0 && !al->forwards.used) || s->op[0] == LB_NONE || s->op[1] == LB_NONE)
        return false;
    const uint32_t b = al->b_of_a[s->op[0]], a = al->a_of_b[s->op[1]];
    return b != LB_NONE && a != LB_NONE && b != s->op[1];
}

static bool add_pair(const lb_aligned_views *views, uint32_t part, const lb_scalar *x, const lb_scalar *y,
                     lb_logged_scalar *pair, lb_logged_scalars *scalars)
{
    if (is_same_number(x->number, y->number)) return true;
    lb_logged_scalar *more = lb_array_grow(scalars->list, scalars->n, sizeof *more);
    if (!more) return false;
    scalars->list = more;
    locate(views->a, part, x, 0, pair), locate(views->b, part, y, 1, pair);
    if (is_read_in_other_order(views->alignment, pair)) return true;
    scalars->list[scalars->n++] = *pair;
    return true;
}

/* Scalars of the same name on both sides of one part. */
static bool add_part(const lb_aligned_views *views, uint32_t part, bool swapped, lb_logged_scalars *scalars)
{
    const lb_program *a = views->a->parts[part].program, *b = views->b->parts[part].program;
    for (uint32_t i = 0; i < a->n_scalars; i++) {
        if (lb_program_is_option(a, i)) continue;
        const char *name = name_of(a, i);
        const uint32_t n[] = {count_of(a, name), count_of(b, name)};
        uint32_t nth = 0;
        for (uint32_t k = 0; k < i; k++) nth += !lb_program_is_option(a, k) && !strcmp(name_of(a, k), name);
        if (n[0] != n[1]) {
            if (n[1] && !*scalars->counts && strcmp(name, "item") != 0)
                snprintf(scalars->counts, sizeof scalars->counts,
                         "%.100s was logged %u times on the first side and %u times on the second: these numbers are "
                         "not compared",
                         name, n[swapped], n[!swapped]);
            continue;
        }
        lb_logged_scalar pair = {.name = name, .nth = nth};
        if (!add_pair(views, part, &a->scalars[i], &b->scalars[row_of(b, name, nth)], &pair, scalars)) return false;
    }
    return true;
}

lb_status lb_logged_scalars_find(const lb_aligned_views *views, bool swapped, lb_logged_scalars *scalars, lb_err *err)
{
    *scalars = (lb_logged_scalars){0};
    if (lb_program_views_are_uneven(views->a, views->b)) return LB_OK;
    for (uint32_t part = 0; part < views->a->n_parts && part < views->b->n_parts; part++)
        if (!add_part(views, part, swapped, scalars))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u scalars", scalars->n);
    return LB_OK;
}

void lb_logged_scalars_release(lb_logged_scalars *scalars)
{
    free(scalars->list);
    *scalars = (lb_logged_scalars){0};
}

static bool is_listed(const lb_step_outputs *exits, const lb_logged_scalar *s)
{
    for (uint32_t i = 0; i < exits->n; i++)
        if (!exits->list[i].input && exits->list[i].value[0] == s->value[0] && exits->list[i].value[1] == s->value[1])
            return true;
    return false;
}

bool lb_logged_scalar_is_judged(const lb_logged_scalar *s, const lb_aligned_views *views)
{
    if (s->op[0] == LB_NONE || s->op[1] == LB_NONE) return false;
    if (views->alignment->b_of_a[s->op[0]] == s->op[1]) return true;
    const lb_program *a = views->a->program, *b = views->b->program;
    const lb_value *x = &a->values[s->value[0]], *y = &b->values[s->value[1]];
    const lb_op *o = &a->ops[s->op[0]], *q = &b->ops[s->op[1]];
    return o->phase == q->phase && !strcmp(lb_op_layer(a, o), lb_op_layer(b, q)) && x->dtype == y->dtype &&
           lb_layout_same_shape(&x->layout, &y->layout);
}

lb_status lb_logged_scalars_add(const lb_logged_scalars *scalars, const lb_aligned_views *views, lb_step_outputs *exits,
                                lb_err *err)
{
    for (uint32_t i = 0; i < scalars->n; i++) {
        const lb_logged_scalar *s = &scalars->list[i];
        if (!lb_logged_scalar_is_judged(s, views) || views->alignment->b_of_a[s->op[0]] == s->op[1] ||
            is_listed(exits, s))
            continue;
        lb_step_output *more = lb_array_grow(exits->list, exits->n, sizeof *more);
        if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u results", exits->n);
        exits->list = more;
        exits->list[exits->n++] = (lb_step_output){.op = {s->op[0], s->op[1]},
                                                   .value = {s->value[0], s->value[1]},
                                                   .logged = true,
                                                   .rows = -1,
                                                   .differs = true,
                                                   .agreement = LB_SHADOW_UNKNOWN};
    }
    return LB_OK;
}
