/* Where the numbers went bad: see origin.h.
 *
 * The walk goes from the failing op to what it read, through non-finite results only, and over the border of a step
 * where a parameter or state came out of the one before. It ends where nothing that was read is bad. */
#include "trials/origin.h"

#include "trials/growth.h"
#include "program/owner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

typedef bool (*condition)(const lb_trace_row *row, uint32_t op);

/* The first op, in order of execution, that `start` depends on through bad results and that reads nothing bad. */
static uint32_t first_bad(const lb_trace_row *row, uint32_t start, condition bad)
{
    const lb_slice_flow *flow = row->flow;
    uint8_t *seen = calloc((size_t)row->program->n_ops + 1, 1);
    uint32_t best = start, *todo = malloc(((size_t)row->program->n_ops + 1) * sizeof *todo), n = 0;
    bool any = false;
    if (seen && todo) todo[n++] = start, seen[start] = 1;
    while (n) {
        const uint32_t op = todo[--n];
        bool reads_bad = false;
        for (uint32_t e = flow->first_def[op]; e < flow->first_def[op + 1]; e++) {
            const uint32_t def = flow->defs[e];
            if (!bad(row, def)) continue;
            reads_bad = true;
            if (!seen[def]) seen[def] = 1, todo[n++] = def;
        }
        if (!reads_bad && (!any || op < best)) best = op, any = true;
    }
    free(seen);
    free(todo);
    return best;
}

/* The last op of an earlier step that wrote that storage, bad as it is; LB_NONE when it was not bad then. */
static uint32_t last_write(const lb_trace_row *row, int64_t storage, condition bad)
{
    const lb_program *program = row->program;
    for (uint32_t i = program->n_ops; i-- > 0;) {
        const lb_op *op = &program->ops[i];
        for (uint32_t k = 0; k < op->results + op->written; k++) {
            const uint32_t v = lb_op_outcome(program, op, k);
            if (v == LB_NONE || program->values[v].storage != storage || op->flags & LB_OP_VIEW) continue;
            return bad(row, i) ? i : LB_NONE;
        }
    }
    return LB_NONE;
}

static const lb_trace_row *step_before(const lb_bisect_session *session, const lb_trace_row *row)
{
    const lb_trace_row *before = NULL;
    for (uint32_t s = 0; s < session->n_steps && session->steps[s] < row->program->step; s++)
        before = lb_trace_find(session->trace, row->program->rank, session->steps[s]);
    return before;
}

/* ---- what it shows ----------------------------------------------------------------------------------------------- */

static const char *dtype_of_result(const lb_program *program, const lb_op *op)
{
    for (uint32_t i = 0; i < op->results + op->written; i++) {
        const uint32_t v = lb_op_outcome(program, op, i);
        if (v != LB_NONE && lb_dtype_is_float(program->values[v].dtype)) return lb_dtype_name(program->values[v].dtype);
    }
    return "";
}

static bool named(const char *op, const char *const *words)
{
    for (; *words; words++)
        if (strstr(op, *words)) return true;
    return false;
}

/* Why such an op makes such numbers of such inputs; "" when that is not known. describe_op reads of it whether a 0 is
 * at work. */
static const char *reason(const char *op, const char *dtype, const lb_trace_sum *in, const lb_trace_sum *out)
{
    static const char *const quotients[] = {"div", "reciprocal", "rsqrt", NULL}, *const logs[] = {"log", NULL},
                             *const roots[] = {"sqrt", "log", "pow", NULL};
    if (strstr(op, "softmax") && !strstr(op, "backward") && out->nan && in->masked)
        return ": a row that is -inf throughout, every key of a query is masked";
    if (strstr(op, "nll_loss") && out->nan && !strstr(op, "backward"))
        return ": no target counts, the mean is over nothing";
    if (named(op, quotients) && in->zero) return out->nan ? ": 0 divided by 0" : ": a division by 0";
    if (named(op, logs) && !strstr(op, "softmax") && in->zero && out->inf) return ": the logarithm of 0";
    if (named(op, roots) && out->nan && in->least < 0) return ": the root or logarithm of a negative number";
    if (out->inf && !out->nan && in->elements) return ": more than its dtype can hold";
    if (out->nan && !out->inf && in->elements && !strcmp(dtype, "e4m3fn")) /* which has no infinity */
        return ": more than its dtype can hold, the cast overflows to NaN";
    return "";
}

/* Of an op that gives several tensors (a list of parameters, a result and its statistics): the first that was recorded
 * so, by itself. */
static void take_worst(const lb_program *program, const lb_op *op, lb_trace_sum *sum)
{
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
        const uint32_t v = lb_op_outcome(program, op, i);
        if (v == LB_NONE || program->values[v].statistics == LB_NONE || !lb_dtype_is_float(program->values[v].dtype))
            continue;
        const lb_statistics *statistics = &program->statistics[program->values[v].statistics];
        if (!lb_statistics_nonfinite(statistics)) continue;
        *sum = (lb_trace_sum){0};
        lb_trace_add(sum, statistics);
        return;
    }
}

static bool describe_op(const lb_trace_row *row, uint32_t op, char *text, size_t size)
{
    const lb_program *program = row->program;
    lb_trace_sum in = {0}, out = {0};
    char inputs[80] = "its inputs are finite", bad[80] = "its result is not";
    lb_trace_add_inputs(&in, row, op);
    lb_trace_add_op(&out, row, op);
    take_worst(program, &program->ops[op], &out);
    if (in.elements > in.inf)
        snprintf(inputs, sizeof inputs, "its inputs are %s, the largest %.3g", in.masked ? "finite or -inf" : "finite",
                 in.largest);
    if (out.nan || out.inf)
        snprintf(bad, sizeof bad, "of its result %lld of %lld elements (%s) are %s",
                 (long long)(out.nan ? out.nan : out.inf), (long long)out.elements,
                 dtype_of_result(program, &program->ops[op]), out.nan ? "NaN" : "infinite");
    const char *why =
        reason(lb_op_name(program, &program->ops[op]), dtype_of_result(program, &program->ops[op]), &in, &out);
    snprintf(text, size, "%s; %s%s", inputs, bad, why);
    return strstr(why, "by 0") || strstr(why, "of 0");
}

static void describe_source(const lb_trace_row *row, uint32_t op, char *text, size_t size)
{
    const lb_program *program = row->program;
    const lb_value *value = &program->values[lb_op_results(program, &program->ops[op])[0]];
    const char *name = lb_program_text(program, value->name);
    const bool nameless = !*name && value->source == LB_SOURCE_OTHER;
    lb_trace_sum out = {0};
    lb_trace_add_op(&out, row, op);
    snprintf(text, size, "%s%s%s had %lld non-finite of %lld elements before any op of this window wrote it",
             nameless ? "a tensor from outside" : lb_source_kind_name((lb_source_kind)value->source), *name ? " " : "",
             name, (long long)out.nan + out.inf, (long long)out.elements);
}

/* A number that Python made has no name: the op that writes it somewhere says more. LB_NONE: `op` is no such source. */
static uint32_t writer_of_constant(const lb_trace_row *row, uint32_t op)
{
    const lb_program *program = row->program;
    const lb_slice_flow *flow = row->flow;
    if (!lb_op_is_source(program, &program->ops[op])) return LB_NONE;
    const lb_value *value = &program->values[lb_op_results(program, &program->ops[op])[0]];
    if (value->source != LB_SOURCE_OTHER || value->layout.ndim) return LB_NONE;
    for (uint32_t u = flow->first_use[op]; u < flow->first_use[op + 1]; u++)
        if (program->ops[flow->uses[u]].flags & LB_OP_MUTABLE) return flow->uses[u];
    return LB_NONE;
}

/* A gradient that fails may have broken by itself; when the loss of its step is bad too, that came first. */
static uint32_t start_of(const lb_bisect_session *session, const lb_trace_row *row)
{
    const uint8_t *marks = lb_failure_monitor_marks(session->monitor, row->program->rank, row->program->step);
    for (uint32_t i = 0; marks && session->failure.kind == LB_FAILURE_GRADIENT && i < row->program->n_ops; i++)
        if (marks[i] & LB_WATCH_LOSS && lb_trace_nonfinite(row, i)) return i;
    return session->failure.op;
}

/* ---- state that no optimizer leaves ------------------------------------------------------------------------------ */

static bool has_negative(const lb_trace_row *row, uint32_t op)
{
    lb_trace_sum sum = {0};
    lb_trace_add_op(&sum, row, op);
    return sum.elements > sum.nan + sum.inf && sum.least < 0;
}

/* Where the negative numbers come from that an optimizer's root was drawn of: the state that came into the window so;
 * LB_NONE when they were made in it. */
static uint32_t negative_state(const lb_trace_row *row, uint32_t op)
{
    static const char *const roots[] = {"sqrt", NULL};
    const lb_program *program = row->program;
    if (program->ops[op].phase != LB_PHASE_OPTIMIZER || !named(lb_op_name(program, &program->ops[op]), roots))
        return LB_NONE;
    for (uint32_t at = op, next;; at = next) {
        next = LB_NONE;
        for (uint32_t e = row->flow->first_def[at]; e < row->flow->first_def[at + 1]; e++)
            if (has_negative(row, row->flow->defs[e]) && program->ops[row->flow->defs[e]].phase == LB_PHASE_OPTIMIZER &&
                (next == LB_NONE || lb_op_is_source(program, &program->ops[row->flow->defs[e]])))
                next = row->flow->defs[e];
        if (next == LB_NONE) return LB_NONE;
        if (lb_op_is_source(program, &program->ops[next]))
            return program->values[lb_op_results(program, &program->ops[next])[0]].flags & LB_VALUE_STATE ? next
                                                                                                          : LB_NONE;
    }
}

static void describe_negative(const lb_trace_row *row, uint32_t source, char *text, size_t size)
{
    const lb_program *program = row->program;
    const lb_value *value = &program->values[lb_op_results(program, &program->ops[source])[0]];
    lb_trace_sum sum = {0};
    lb_trace_add_op(&sum, row, source);
    snprintf(text, size, "%s came in with negative numbers, down to %.3g, and a root is drawn of it",
             lb_program_text(program, value->name), sum.least);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

/* What stands in no module is where the parameter is that it serves. */
static void place(const lb_bisect_session *session, lb_origin *origin)
{
    const lb_trace_row *row = lb_trace_find(session->trace, origin->rank, origin->step);
    lb_owners *owners;
    if (*origin->layer || !row || lb_owners_new(row->flow, NULL, &owners, NULL) != LB_OK) return;
    snprintf(origin->layer, sizeof origin->layer, "%s", lb_owner_module(owners, origin->op, LB_OWNER_WHOLE));
    lb_owners_free(owners);
}

static void find(lb_bisect_session *session)
{
    lb_origin *origin = &session->out->origin;
    const lb_trace_row *row = lb_trace_find(session->trace, session->failure.rank, session->failure.step), *before;
    origin->op = LB_NONE;
    if (session->failure.kind == LB_FAILURE_NONE || !row || session->failure.op >= row->program->n_ops) return;
    uint32_t op = start_of(session, row);
    if (!lb_trace_nonfinite(row, op)) {
        lb_growth_find(session, origin);
        return;
    }
    /* Where the failure itself is a -inf no -inf on the way is a mask. */
    const condition bad = lb_trace_bad(row, op) ? lb_trace_bad : lb_trace_nonfinite;
    for (;;) {
        op = first_bad(row, op, bad);
        const lb_program *program = row->program;
        if (!lb_op_is_source(program, &program->ops[op]) || !(before = step_before(session, row))) break;
        const uint32_t left =
            last_write(before, program->values[lb_op_results(program, &program->ops[op])[0]].storage, bad);
        if (left == LB_NONE) break;
        row = before, op = left;
    }
    const uint32_t writer = writer_of_constant(row, op);
    const bool data = writer == LB_NONE && lb_op_is_source(row->program, &row->program->ops[op]);
    if (writer != LB_NONE) op = writer;
    if (!data && writer == LB_NONE && lb_growth_read(session, row, op, origin)) return;
    const uint32_t broken = data || writer != LB_NONE ? LB_NONE : op,
                   state = broken == LB_NONE ? LB_NONE : negative_state(row, op);
    if (state != LB_NONE) op = state;
    const lb_op *found = &row->program->ops[op];
    *origin = (lb_origin){.step = row->program->step,
                          .rank = row->program->rank,
                          .phase = (lb_phase)found->phase,
                          .op = op,
                          .broken = broken};
    snprintf(origin->layer, sizeof origin->layer, "%s", lb_op_layer(row->program, found));
    snprintf(origin->name, sizeof origin->name, "%s", lb_op_name(row->program, found));
    if (state != LB_NONE)
        describe_negative(row, op, origin->text, sizeof origin->text);
    else if (data)
        describe_source(row, op, origin->text, sizeof origin->text);
    else if (writer != LB_NONE)
        snprintf(origin->text, sizeof origin->text, "it writes a constant that is not finite");
    else
        origin->by_zero = describe_op(row, op, origin->text, sizeof origin->text);
}

void lb_origin_find(lb_bisect_session *session)
{
    session->out->origin.broken = LB_NONE;
    find(session);
    if (session->out->origin.op != LB_NONE) place(session, &session->out->origin);
}
