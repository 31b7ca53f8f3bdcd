/* Sums and differences that are small beside their terms: the digits that cancel were right, what the terms had been
 * rounded by stays. See digits.h. */
#include "check/digits.h"

#include "pair/op_kind.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bits from which one is told; and how many times the rounding of its terms its result shows. */
static const double LEAST_BITS = 3, SHOWN = 4;

typedef struct cancellation {
    double bits; /* log2 of the larger term beside the result, roots of mean squares; NaN: none */
    double unit; /* unit roundoff of the coarser term */
} cancellation;

static double size_of(const lb_digits *digits, uint32_t v)
{
    const lb_rounding_size *size = &digits->log.sizes[lb_value_graph_whole(&digits->run.graph, v)];
    if (size->numbers) return sqrt(size->apart.whole / (double)size->numbers);
    lb_tensor tensor;
    double *x = lb_moved_run_recorded(&digits->run, v, &tensor), sum = 0;
    const int64_t n = x ? lb_layout_numel(&tensor.layout) : 0;
    int64_t counted = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]) && fabs(x[i]) < 0x1p96) sum += x[i] * x[i], counted++;
    free(x);
    return counted ? sqrt(sum / (double)counted) : NAN;
}

static bool is_sum(const lb_program *program, const lb_op *op)
{
    static const char *const names[] = {"aten::add", "aten::sub", "aten::rsub", "aten::add_", "aten::sub_"};
    if (op->phase == LB_PHASE_OPTIMIZER || op->args < 2 || lb_op_outcomes(op) < 1) return false;
    return lb_op_name_among(program, op, names, 5) >= 0 && lb_op_args(program, op)[0].tag == LB_ARG_VALUE &&
           lb_op_args(program, op)[1].tag == LB_ARG_VALUE;
}

static cancellation measure(const lb_digits *digits, uint32_t op)
{
    const lb_program *program = digits->run.program;
    const lb_op *o = &program->ops[op];
    cancellation cancellation = {NAN, 0};
    const uint32_t v = lb_op_outcome(program, o, 0);
    if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype)) return cancellation;
    const double result = size_of(digits, v);
    double most = 0;
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t term = lb_op_args(program, o)[k].u.value;
        if (!lb_dtype_is_float(program->values[term].dtype)) return cancellation;
        cancellation.unit = fmax(cancellation.unit, lb_dtype_unit_roundoff(program->values[term].dtype));
        most = fmax(most, size_of(digits, term));
    }
    if (result > 0 && most > 0) cancellation.bits = log2(most / result);
    return cancellation;
}

static uint32_t watched(const lb_digits *digits, uint32_t op)
{
    const lb_program *program = digits->run.program;
    const uint32_t v = is_sum(program, &program->ops[op]) ? lb_op_outcome(program, &program->ops[op], 0) : LB_NONE;
    return v != LB_NONE && digits->runs.watch[v] ? v : LB_NONE;
}

bool lb_digits_watch_cancellations(lb_digits *digits)
{
    const lb_program *program = digits->run.program;
    for (uint32_t i = 0; i < program->n_ops && i <= digits->runs.last; i++)
        if (is_sum(program, &program->ops[i]) && measure(digits, i).bits >= LEAST_BITS)
            digits->runs.watch[lb_op_outcome(program, &program->ops[i], 0)] = 1;
    return true;
}

/* The row of the same line; NULL: there is none yet. */
static lb_check_digit *row_of(const lb_digits *digits, uint32_t op)
{
    const lb_program *program = digits->run.program;
    const lb_code_line line = lb_op_line(program, &program->ops[op]);
    for (uint32_t i = 0; i < digits->report->n_digits; i++) {
        lb_check_digit *row = &digits->report->digits[i];
        if (row->kind != LB_CHECK_DIGIT_CANCELLATION || row->step != program->step) continue;
        if (!line.number && row->rank != program->rank) continue;
        if (row->line.number == line.number && strcmp(row->line.file, line.file) == 0 &&
            strcmp(row->op, lb_op_name(program, &program->ops[op])) == 0)
            return row;
    }
    return NULL;
}

static bool add_row(lb_digits *digits, uint32_t op, uint32_t value, const cancellation *cancellation, double wrong)
{
    const lb_program *program = digits->run.program;
    lb_check_digit *row = row_of(digits, op);
    if (!row) {
        row = lb_digit_list_add(digits->report, LB_CHECK_DIGIT_CANCELLATION, program);
        if (!row) return false;
        lb_digit_list_place(row, program, op);
        row->dtype = program->values[value].dtype, row->bits = 0, row->ops = 0, row->share = 0;
    }
    lb_digit_list_widen(row, lb_op_layer(program, &program->ops[op]));
    row->ops++, row->numbers += lb_layout_numel(&program->values[value].layout);
    row->bits = fmax(row->bits, cancellation->bits), row->share = fmin(1, fmax(row->share, wrong));
    row->digits = -log10(row->share);
    int n = snprintf(row->message, sizeof row->message, "the result is 2^-%.1f of its larger term", row->bits);
    if (row->share < 1)
        snprintf(row->message + n, sizeof row->message - (size_t)n,
                 ", and wrong by %.2g of itself, where its terms have %.1f digits", row->share,
                 -log10(cancellation->unit));
    else
        snprintf(row->message + n, sizeof row->message - (size_t)n,
                 ", and rounding alone: none of its digits is right");
    snprintf(row->cure, sizeof row->cure, "another way to write it, or terms in a wider dtype");
    return true;
}

bool lb_digits_cancellations(lb_digits *digits)
{
    const lb_program *program = digits->run.program;
    for (uint32_t i = 0; i < program->n_ops && i <= digits->runs.last; i++) {
        const uint32_t v = watched(digits, i);
        if (v == LB_NONE || !digits->runs.exact[v]) continue;
        const cancellation cancellation = measure(digits, i);
        const double whole = digits->runs.apart[v].whole,
                     wrong = whole > 0 ? sqrt(digits->runs.apart[v].squares / whole) : INFINITY;
        if (cancellation.bits >= LEAST_BITS && wrong > SHOWN * cancellation.unit &&
            !add_row(digits, i, v, &cancellation, wrong))
            return false;
    }
    return true;
}
