/* Traces: see trace.h. */
#include "failure/trace.h"

#include "program/optimizer_ops.h"
#include "program/slice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

lb_status lb_trace_new(lb_capture *capture, int64_t first_step, int64_t last_step, lb_trace **out, lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps);
    lb_trace *trace = calloc(1, sizeof *trace);
    *out = NULL;
    if (trace) trace->rows = calloc((size_t)n_ranks * n_steps + 1, sizeof *trace->rows);
    lb_status status = trace && trace->rows ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < n_steps && status == LB_OK; s++)
        for (uint32_t r = 0; r < n_ranks && status == LB_OK; r++) {
            const lb_program *program;
            if (steps[s] < first_step || steps[s] > last_step ||
                lb_capture_program(capture, ranks[r], steps[s], &program, NULL) != LB_OK)
                continue;
            lb_trace_row *row = &trace->rows[trace->n_rows++];
            row->program = program;
            row->bits = calloc((size_t)program->n_ops + 1, 1);
            row->sums = calloc((size_t)program->n_ops + 1, sizeof *row->sums);
            if (!row->bits || !row->sums)
                status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
            else
                status = lb_slice_flow_new(program, &row->flow, err);
            if (status == LB_OK && !(row->optimizer = lb_optimizer_ops(row->flow)))
                status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
        }
    if (status == LB_OK)
        *out = trace;
    else
        lb_trace_free(trace);
    return status;
}

void lb_trace_free(lb_trace *trace)
{
    if (!trace) return;
    for (uint32_t i = 0; i < trace->n_rows; i++) {
        free(trace->rows[i].bits);
        free(trace->rows[i].sums);
        free(trace->rows[i].optimizer);
        lb_slice_flow_free(trace->rows[i].flow);
    }
    free(trace->rows);
    free(trace);
}

void lb_trace_clear(lb_trace *trace)
{
    for (uint32_t i = 0; i < trace->n_rows; i++) {
        memset(trace->rows[i].bits, 0, (size_t)trace->rows[i].program->n_ops + 1);
        memset(trace->rows[i].sums, 0, ((size_t)trace->rows[i].program->n_ops + 1) * sizeof *trace->rows[i].sums);
    }
}

const lb_trace_row *lb_trace_find(const lb_trace *trace, int32_t rank, int64_t step)
{
    for (uint32_t i = 0; trace && i < trace->n_rows; i++)
        if (trace->rows[i].program->rank == rank && trace->rows[i].program->step == step) return &trace->rows[i];
    return NULL;
}

static bool fills(const char *name)
{
    static const char *const words[] = {"masked_fill", "full", "fill_", "scalar_tensor", "lift_fresh",
                                        "where",       "lb::", "triu",  "tril"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i])) return true;
    return false;
}

/* A source tells no event: its recorded statistics speak. */
static bool masked(const lb_trace_row *row, uint32_t op)
{
    const lb_program *program = row->program;
    if (row->bits[op] & LB_TRACE_RAN) return row->bits[op] & LB_TRACE_MASKED;
    for (uint32_t r = 0; r < program->ops[op].results; r++) {
        uint32_t v = lb_op_results(program, &program->ops[op])[r];
        if (v != LB_NONE && program->values[v].statistics != LB_NONE && lb_dtype_is_float(program->values[v].dtype) &&
            program->statistics[program->values[v].statistics].neg_inf)
            return true;
    }
    return false;
}

/* A -inf that follows from a mask is one; what follows from anything bad is bad. */
static bool reads_mask(const lb_trace_row *row, uint32_t op)
{
    bool mask = false;
    for (uint32_t e = row->flow->first_def[op]; e < row->flow->first_def[op + 1]; e++) {
        if (lb_trace_bad(row, row->flow->defs[e])) return false;
        mask |= masked(row, row->flow->defs[e]);
    }
    return mask;
}

void lb_trace_add(lb_trace_sum *sum, const lb_statistics *more)
{
    bool first = sum->elements == sum->nan + sum->inf;
    sum->elements += more->elements, sum->nan += more->nan, sum->inf += more->pos_inf + more->neg_inf;
    sum->masked += more->neg_inf, sum->zero += more->zero;
    if (more->elements == lb_statistics_nonfinite(more)) return;
    sum->least = first ? more->min : fmin(sum->least, more->min);
    sum->largest = fmax(sum->largest, fmax(fabs(more->min), fabs(more->max)));
}

/* A source tells no event: its recorded statistics speak. */
void lb_trace_add_op(lb_trace_sum *sum, const lb_trace_row *row, uint32_t op)
{
    const lb_program *program = row->program;
    if (row->bits[op] & LB_TRACE_RAN) {
        const lb_trace_sum *s = &row->sums[op];
        const bool first = sum->elements == sum->nan + sum->inf, any = s->elements > s->nan + s->inf;
        sum->elements += s->elements, sum->nan += s->nan, sum->inf += s->inf, sum->masked += s->masked;
        sum->zero += s->zero, sum->largest = fmax(sum->largest, s->largest);
        if (any) sum->least = first ? s->least : fmin(sum->least, s->least);
        return;
    }
    for (uint32_t i = 0; i < program->ops[op].results; i++) {
        const uint32_t v = lb_op_results(program, &program->ops[op])[i];
        if (v != LB_NONE && program->values[v].statistics != LB_NONE && lb_dtype_is_float(program->values[v].dtype))
            lb_trace_add(sum, &program->statistics[program->values[v].statistics]);
    }
}

typedef struct reader {
    lb_trace_sum *sum;
    const lb_trace_row *row;
    uint32_t op;
} reader;

static void take_input(void *context, uint32_t v)
{
    const reader *reader = context;
    const lb_slice_flow *flow = reader->row->flow;
    uint32_t defs[8];
    if (v == LB_NONE || !lb_dtype_is_float(flow->program->values[v].dtype)) return;
    const uint32_t n = lb_slice_flow_defs_of(flow, reader->op, v, defs, 8);
    for (uint32_t i = 0; i < n && i < 8; i++) lb_trace_add_op(reader->sum, reader->row, defs[i]);
}

void lb_trace_add_inputs(lb_trace_sum *sum, const lb_trace_row *row, uint32_t op)
{
    reader reader = {sum, row, op};
    lb_op_each_input(row->program, &row->program->ops[op], take_input, &reader);
}

/* An op that works in place gives what it wrote: one tensor, told twice. */
static bool was_told(const lb_program *program, const lb_event *event, uint32_t i)
{
    const lb_value *value = event->values[i] < program->n_values ? &program->values[event->values[i]] : NULL;
    for (uint32_t k = 0; value && k < i; k++) {
        const lb_value *u = event->values[k] < program->n_values ? &program->values[event->values[k]] : NULL;
        if (u && u->storage == value->storage && u->version == value->version &&
            u->layout.offset == value->layout.offset && lb_layout_same_shape(&u->layout, &value->layout))
            return true;
    }
    return false;
}

void lb_trace_op(lb_trace *trace, const lb_event *event)
{
    lb_trace_row *row = (lb_trace_row *)lb_trace_find(trace, event->rank, event->step);
    if (!row || event->op >= row->program->n_ops) return;
    lb_trace_sum *sum = &row->sums[event->op];
    uint8_t bits = LB_TRACE_RAN;
    *sum = (lb_trace_sum){0};
    for (uint32_t i = 0; i < event->n_results; i++) {
        if (!event->computed || !event->computed[i].data || !lb_dtype_is_float(event->computed[i].dtype)) continue;
        if (was_told(row->program, event, i)) continue;
        lb_statistics statistics = lb_statistics_of(&event->computed[i]);
        lb_trace_add(sum, &statistics);
    }
    if (sum->nan || sum->inf > sum->masked) bits |= LB_TRACE_BAD;
    if (sum->masked) bits |= LB_TRACE_MASKED;
    if (bits & LB_TRACE_MASKED && !fills(lb_op_name(row->program, &row->program->ops[event->op])) &&
        !reads_mask(row, event->op))
        bits |= LB_TRACE_BAD;
    if (sum->elements && sum->zero == sum->elements) bits |= LB_TRACE_ZERO;
    row->bits[event->op] = bits;
}

/* A source tells no event: its recorded statistics speak. */
bool lb_trace_bad(const lb_trace_row *row, uint32_t op)
{
    const lb_program *program = row->program;
    if (row->bits[op] & LB_TRACE_RAN) return row->bits[op] & LB_TRACE_BAD;
    for (uint32_t r = 0; r < program->ops[op].results; r++) {
        uint32_t v = lb_op_results(program, &program->ops[op])[r];
        if (v == LB_NONE || program->values[v].statistics == LB_NONE || !lb_dtype_is_float(program->values[v].dtype))
            continue;
        const lb_statistics *statistics = &program->statistics[program->values[v].statistics];
        if (statistics->nan || statistics->pos_inf) return true;
    }
    return false;
}

bool lb_trace_nonfinite(const lb_trace_row *row, uint32_t op)
{
    return lb_trace_bad(row, op) || masked(row, op);
}

bool lb_trace_broke(const lb_trace_row *row, uint32_t op)
{
    /* A collective's result may be bad by another rank's contribution. */
    if (!(row->bits[op] & LB_TRACE_BAD) || row->program->ops[op].flags & LB_OP_COLLECTIVE) return false;
    for (uint32_t e = row->flow->first_def[op]; e < row->flow->first_def[op + 1]; e++)
        if (lb_trace_bad(row, row->flow->defs[e])) return false;
    return true;
}

double lb_trace_size(const lb_trace_row *row, uint32_t op)
{
    if (!(row->bits[op] & LB_TRACE_RAN) || row->sums[op].nan) return NAN;
    if (!(row->bits[op] & LB_TRACE_BAD)) return row->sums[op].largest;
    return lb_trace_broke(row, op) ? INFINITY : NAN;
}
