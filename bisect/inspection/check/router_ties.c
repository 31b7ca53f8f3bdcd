/* How near choices of the k largest are to a tie: see digits.h.
 *
 * What is chosen from are probabilities in f32, made of logits of fewer digits: a softmax and its like leave the order
 * as it is, so that the logits are looked at, and their dtype says what one rounding is. */
#include "check/digits.h"

#include "base/array.h"
#include "pair/op_kind.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct choice {
    int64_t rows, near;
    double closest, middle; /* gaps, in roundings of the dtype */
    lb_dtype dtype;
    uint32_t made; /* op that gave the logits; LB_NONE */
} choice;

static bool keeps_order(const lb_program *program, uint32_t op)
{
    static const char *const names[] = {"aten::_softmax", "aten::sigmoid", "aten::_to_copy", "aten::clone"};
    return lb_op_name_among(program, &program->ops[op], names, 4) >= 0;
}

/* The numbers of fewest digits whose order decides. */
static uint32_t decided_by(const lb_digits *digits, uint32_t value)
{
    const lb_program *program = digits->run.program;
    uint32_t best = value;
    for (int i = 0; i < 8; i++) {
        const uint32_t whole = lb_value_graph_whole(&digits->run.graph, value), giver = digits->run.graph.giver[whole];
        if (giver == LB_NONE || !keeps_order(program, giver) || !program->ops[giver].args) break;
        const lb_arg *arg = &lb_op_args(program, &program->ops[giver])[0];
        if (arg->tag != LB_ARG_VALUE ||
            !lb_layout_same_shape(&program->values[arg->u.value].layout, &program->values[value].layout))
            break;
        value = arg->u.value;
        if (lb_dtype_is_float(program->values[value].dtype) &&
            lb_dtype_precision(program->values[value].dtype) <= lb_dtype_precision(program->values[best].dtype))
            best = value;
    }
    return best;
}

static double unit_of(lb_dtype dtype, double x)
{
    int exponent;
    frexp(x, &exponent);
    return fmax(ldexp(1, exponent - lb_dtype_precision(dtype)), lb_dtype_min_subnormal(dtype));
}

/* Gaps between the k-th and the next one of each row. */
static double *list_gaps(const double *x, int64_t rows, int64_t columns, int64_t k, lb_dtype dtype)
{
    double *gaps = malloc((size_t)(rows + 1) * sizeof *gaps), *row = malloc((size_t)columns * sizeof *row);
    for (int64_t i = 0; gaps && row && i < rows; i++) {
        memcpy(row, x + i * columns, (size_t)columns * sizeof *row);
        qsort(row, (size_t)columns, sizeof *row, lb_by_f64);
        const double a = row[columns - k], b = row[columns - k - 1];
        gaps[i] = (a - b) / unit_of(dtype, fmax(fabs(a), fabs(b)));
    }
    if (gaps && row) qsort(gaps, (size_t)rows, sizeof *gaps, lb_by_f64);
    if (!row) free(gaps), gaps = NULL;
    free(row);
    return gaps;
}

/* What a choice of the k largest along the last dimension follows from; LB_NONE: the op is none. */
static uint32_t chosen_from(const lb_digits *digits, uint32_t op)
{
    static const char *const names[] = {"aten::topk"};
    const lb_program *program = digits->run.program;
    const lb_op *o = &program->ops[op];
    if (o->phase != LB_PHASE_FORWARD || lb_op_name_among(program, o, names, 1) < 0 || o->args < 3) return LB_NONE;
    const lb_arg *arg = lb_op_args(program, o);
    if (arg[0].tag != LB_ARG_VALUE || arg[1].tag != LB_ARG_INT || arg[2].tag != LB_ARG_INT) return LB_NONE;
    const lb_value *value = &program->values[arg[0].u.value];
    if (!lb_dtype_is_float(value->dtype) || (arg[2].u.i != -1 && arg[2].u.i != value->layout.ndim - 1)) return LB_NONE;
    return decided_by(digits, arg[0].u.value);
}

void lb_digits_want_routers(lb_digits *digits)
{
    for (uint32_t i = 0; i < digits->run.program->n_ops; i++) {
        const uint32_t v = chosen_from(digits, i);
        if (v != LB_NONE) lb_rounding_log_want(&digits->log, v);
    }
}

/* Of as many, from the same numbers: a loss that balances experts chooses once more what a layer did. */
static bool is_chosen_before(const lb_digits *digits, uint32_t op, uint32_t from)
{
    const lb_program *program = digits->run.program;
    const lb_value *value = &program->values[from];
    for (uint32_t i = 0; i < op; i++) {
        const uint32_t before = chosen_from(digits, i);
        if (before == LB_NONE ||
            lb_op_args(program, &program->ops[i])[1].u.i != lb_op_args(program, &program->ops[op])[1].u.i)
            continue;
        const lb_value *w = &program->values[before];
        if (w->storage == value->storage && w->version == value->version && w->layout.offset == value->layout.offset &&
            lb_layout_numel(&w->layout) == lb_layout_numel(&value->layout))
            return true;
    }
    return false;
}

/* False: it is no choice, one that was listed, or its numbers are not known. */
static bool look_at(const lb_digits *digits, uint32_t op, choice *looked_at)
{
    const lb_program *program = digits->run.program;
    const lb_arg *arg = lb_op_args(program, &program->ops[op]);
    const uint32_t value = chosen_from(digits, op);
    if (value == LB_NONE || is_chosen_before(digits, op, value)) return false;
    const lb_layout *layout = &program->values[value].layout;
    const int64_t columns = layout->ndim ? layout->shape[layout->ndim - 1] : 0, k = arg[1].u.i;
    int64_t n;
    double *x = lb_rounding_log_numbers(&digits->log, value, &n);
    double *gaps =
        x && n && k > 0 && k < columns ? list_gaps(x, n / columns, columns, k, program->values[value].dtype) : NULL;
    free(x);
    if (!gaps) return false;
    *looked_at = (choice){.rows = n / columns,
                          .closest = gaps[0],
                          .middle = gaps[n / columns / 2],
                          .dtype = program->values[value].dtype};
    looked_at->made = digits->run.graph.giver[lb_value_graph_whole(&digits->run.graph, value)];
    for (int64_t i = 0; i < looked_at->rows; i++) looked_at->near += gaps[i] <= 1;
    free(gaps);
    return true;
}

bool lb_digits_routers(lb_digits *digits)
{
    const lb_program *program = digits->run.program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        choice choice;
        if (!look_at(digits, i, &choice)) continue;
        lb_check_digit *row = lb_digit_list_add(digits->report, LB_CHECK_DIGIT_ROUTER, program);
        if (!row) return false;
        const bool made = choice.made != LB_NONE && !lb_op_is_source(program, &program->ops[choice.made]);
        lb_digit_list_place(row, program, made ? choice.made : i);
        row->dtype = choice.dtype, row->numbers = choice.rows, row->share = (double)choice.near / (double)choice.rows;
        snprintf(row->message, sizeof row->message,
                 "of %lld choices %lld are within one rounding of %s of a tie; "
                 "the gap to the next one is %.3g roundings in the middle, %.3g at least",
                 (long long)choice.rows, (long long)choice.near, lb_dtype_name(choice.dtype), choice.middle,
                 choice.closest);
        if (choice.near && lb_dtype_precision(choice.dtype) < lb_dtype_precision(LB_F32))
            snprintf(row->cure, sizeof row->cure, "the logits of the router in f32");
    }
    return true;
}
