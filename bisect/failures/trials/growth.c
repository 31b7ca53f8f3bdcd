/* Where numbers grew too large while they stayed finite: see growth.h. */
#include "trials/growth.h"

#include "pair/op_kind.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MUCH = 30 }; /* times, from one step to the next */

typedef struct growth {
    const lb_trace_row *row;
    uint32_t op;
    double before, now;
    const lb_group *group;
    const lb_group_param *param;
} growth;

/* Largest magnitude of a parameter when the step began: what the step before left, or what the recording held. */
static double before_step(const lb_trace_row *row, int64_t storage)
{
    const lb_program *program = row->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        const lb_value *value = &program->values[lb_op_results(program, &program->ops[i])[0]];
        if (value->storage != storage || value->statistics == LB_NONE) continue;
        const lb_statistics *statistics = &program->statistics[value->statistics];
        return statistics->elements > lb_statistics_nonfinite(statistics)
                   ? fmax(fabs(statistics->min), fabs(statistics->max))
                   : 0;
    }
    return 0;
}

/* The first op of the step, mostly of its optimizer, that leaves more than `limit` in it; LB_NONE when none does. */
static uint32_t update_of(const lb_trace_row *row, int64_t storage, double limit)
{
    const lb_program *program = row->program;
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (lb_trace_size(row, i) > limit && lb_op_writes(program, &program->ops[i], storage) != LB_NONE) return i;
    return LB_NONE;
}

/* The parameter that grew most in that step. A bias that was 0 has nothing to be compared with. */
static bool grown_parameter(const lb_trace_row *row, growth *grown)
{
    const lb_program *program = row->program;
    double most = MUCH;
    grown->op = LB_NONE;
    for (uint32_t k = 0; k < program->n_groups; k++)
        for (uint32_t i = 0; i < program->groups[k].params; i++) {
            const lb_group_param *param = &program->group_params[program->groups[k].first_param + i];
            const double before = before_step(row, param->storage);
            const uint32_t op = before > 0 ? update_of(row, param->storage, most * before) : LB_NONE;
            if (op == LB_NONE) continue;
            most = lb_trace_size(row, op) / before;
            *grown = (growth){row, op, before, most * before, &program->groups[k], param};
        }
    return grown->op != LB_NONE;
}

/* The first op of that step whose result is much larger than in the step before, where both run the same ops. */
static bool grown_op(const lb_trace_row *row, const lb_trace_row *earlier, growth *g)
{
    const lb_program *p = row->program, *q = earlier->program;
    for (uint32_t i = 0; i < p->n_ops && i < q->n_ops; i++) {
        const double before = lb_trace_size(earlier, i), now = lb_trace_size(row, i);
        if (strcmp(lb_op_name(p, &p->ops[i]), lb_op_name(q, &q->ops[i]))) return false;
        if (!(before > 0) || !(now > 100 * before)) continue;
        *g = (growth){row, i, before, now, NULL, NULL};
        return true;
    }
    return false;
}

static double learning_rate(const lb_program *program, const lb_group *group)
{
    for (uint32_t i = 0; group && i < group->options; i++) {
        const lb_scalar *scalar = &program->scalars[group->first_option + i];
        const char *name = lb_program_text(program, scalar->name);
        if (!strncmp(name, "lr", 2)) return scalar->number;
    }
    return NAN;
}

/* `what` was written and is larger than before, or not finite. */
static void say_growth(const char *who, const char *what, const char *with, double before, double now, char *text,
                       size_t size)
{
    if (isfinite(now))
        snprintf(text, size, "%s makes %.100s %.3g times as large%s: its largest element was %.3g and is %.3g", who,
                 what, now / before, with, before, now);
    else
        snprintf(text, size, "%s writes numbers that are not finite into %.100s%s: its largest element was %.3g", who,
                 what, with, before);
}

static void describe(const growth *growth, lb_origin *origin)
{
    const lb_program *program = growth->row->program;
    const lb_op *op = &program->ops[growth->op];
    *origin = (lb_origin){.step = program->step,
                          .rank = program->rank,
                          .phase = (lb_phase)op->phase,
                          .op = growth->op,
                          .broken = LB_NONE};
    snprintf(origin->layer, sizeof origin->layer, "%s", lb_op_layer(program, op));
    snprintf(origin->name, sizeof origin->name, "%s", lb_op_name(program, op));
    if (!growth->param) {
        snprintf(origin->text, sizeof origin->text,
                 "its largest result is %.3g, and was %.3g in the step before: "
                 "the first op to give more than a hundred times as much",
                 growth->now, growth->before);
        return;
    }
    const double rate = learning_rate(program, growth->group);
    origin->growth = growth->now / growth->before;
    char with[80] = "";
    const bool optimizer = growth->row->optimizer[growth->op];
    if (isfinite(rate) && optimizer) snprintf(with, sizeof with, " at a learning rate of %.3g", rate);
    say_growth(optimizer ? lb_program_text(program, growth->group->optimizer) : "it",
               lb_program_text(program, growth->param->name), with, growth->before, growth->now, origin->text,
               sizeof origin->text);
}

/* ---- what outlives a step ---------------------------------------------------------------------------------------- */

/* Times by which something that a step leaves to the next may change before it is looked at: a parameter by optimizers
 * (a few steps of healthy training do not), anything by different ops. */
enum { BY_OPTIMIZER = 8, BY_OTHERS = 100 };

/* A write that made a parameter, a buffer or optimizer state something else. */
typedef struct jump {
    const lb_trace_row *row;
    uint32_t op, value; /* the value as the op left it */
    double before, now;
} jump;

/* Not a batch, not a random draw, no number that Python made for once. */
static bool outlives(const lb_value *value)
{
    return lb_dtype_is_float(value->dtype) &&
           (value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE) || value->source == LB_SOURCE_CARRIED) &&
           !(value->flags & (LB_VALUE_INPUT | LB_VALUE_GRADIENT));
}

/* Largest finite magnitude of a storage when the step began; NAN when the step does not read it. */
static double at_start(const lb_trace_row *row, int64_t storage)
{
    const lb_program *program = row->program;
    double largest = NAN;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        const lb_value *value = &program->values[lb_op_results(program, &program->ops[i])[0]];
        if (value->storage != storage || value->statistics == LB_NONE) continue;
        const lb_statistics *statistics = &program->statistics[value->statistics];
        const double found = statistics->elements > lb_statistics_nonfinite(statistics)
                                 ? fmax(fabs(statistics->min), fabs(statistics->max))
                                 : 0;
        largest = fmax(isnan(largest) ? 0 : largest, found);
    }
    return largest;
}

static bool is_far(double before, double now, double times)
{
    return before > 0 ? now > times * before || now * 1e6 < before : false;
}

/* What an op left in what it wrote; infinite for NaN, too: an op that reads it has lost what was there. */
static double after_op(const lb_trace_row *row, uint32_t op)
{
    return row->bits[op] & LB_TRACE_BAD ? INFINITY : row->sums[op].largest;
}

/* The op of that step, before `until`, whose write of the storage is far from what the storage was; no module's own. */
static bool far_write(const lb_trace_row *row, int64_t storage, uint32_t until, double before, jump *j)
{
    const lb_program *program = row->program;
    for (uint32_t i = 0; i < until && i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        const bool optimizer = row->optimizer[i];
        const uint32_t value = op->scope && !optimizer ? LB_NONE : lb_op_writes(program, op, storage);
        if (value == LB_NONE || !(row->bits[i] & LB_TRACE_RAN)) continue;
        /* State that an optimizer makes larger is what its gradient is. */
        if (optimizer && program->values[value].flags & LB_VALUE_STATE) continue;
        /* What made NaN of its numbers is no update that is too large. */
        if (optimizer && row->sums[i].nan) continue;
        if (!is_far(before, after_op(row, i), optimizer ? BY_OPTIMIZER : BY_OTHERS)) continue;
        *j = (jump){row, i, value, before, after_op(row, i)};
        return true;
    }
    return false;
}

/* The first write of the window, up to op `until` of step `last`, that took the storage far from what it was when the
 * window began. */
static bool first_jump(const lb_bisect_session *session, const lb_trace_row *last, int64_t storage, uint32_t until,
                       jump *jump)
{
    double first = NAN;
    for (uint32_t s = 0; s < session->n_steps && session->steps[s] <= last->program->step; s++) {
        const lb_trace_row *row = lb_trace_find(session->trace, last->program->rank, session->steps[s]);
        if (!row) continue;
        const double start = at_start(row, storage);
        if (isnan(first)) first = start;
        if (!isnan(first) && far_write(row, storage, row == last ? until : row->program->n_ops, first, jump))
            return true;
    }
    return false;
}

/* Marks the op and everything before it in its step that it was computed from. */
static uint8_t *ancestors(const lb_trace_row *row, uint32_t op)
{
    const lb_slice_flow *flow = row->flow;
    uint8_t *marks = calloc((size_t)row->program->n_ops + 1, 1);
    if (!marks) return NULL;
    marks[op] = 1;
    for (uint32_t i = op + 1; i-- > 0;)
        for (uint32_t e = flow->first_def[i]; marks[i] && e < flow->first_def[i + 1]; e++) marks[flow->defs[e]] = 1;
    return marks;
}

static bool is_earlier(const jump *a, const jump *b)
{
    if (a->row->program->step != b->row->program->step) return a->row->program->step < b->row->program->step;
    return a->op < b->op;
}

/* The earliest jump of anything that the op was computed from, or that it writes itself. *reader: who reads it in that
 * step. */
static bool earliest_jump(const lb_bisect_session *session, const lb_trace_row *row, uint32_t op, uint32_t *reader,
                          jump *found)
{
    const lb_program *program = row->program;
    uint8_t *marks = ancestors(row, op);
    bool any = false;
    for (uint32_t i = 0; marks && i <= op; i++) {
        jump j;
        if (!marks[i] || !lb_op_is_source(program, &program->ops[i])) continue;
        const lb_value *value = &program->values[lb_op_results(program, &program->ops[i])[0]];
        if (!outlives(value) || !first_jump(session, row, value->storage, op + 1, &j) ||
            (any && !is_earlier(&j, found)))
            continue;
        *found = j, any = true;
        *reader = op;
        for (uint32_t u = row->flow->first_use[i + 1]; u-- > row->flow->first_use[i];)
            if (marks[row->flow->uses[u]] && !(program->ops[row->flow->uses[u]].flags & LB_OP_VIEW))
                *reader = row->flow->uses[u];
    }
    free(marks);
    return any;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Per op the same op of the step before, LB_NONE where none is: ops that one side alone runs are passed. NULL when out
 * of memory. */
static uint32_t *twins(const lb_program *p, const lb_program *q)
{
    enum { AHEAD = 64 };
    uint32_t *twin = malloc(((size_t)p->n_ops + 1) * sizeof *twin);
    for (uint32_t i = 0, k = 0; twin && i < p->n_ops; i++) {
        uint32_t at = k;
        while (at < q->n_ops && at < k + AHEAD && !lb_op_same_place(p, i, q, at)) at++;
        const bool found = at < q->n_ops && at < k + AHEAD;
        twin[i] = found ? at : LB_NONE;
        if (found) k = at + 1;
    }
    return twin;
}

/* Did an op of forward or backward, among those that `op` was computed from, give over a hundred times what it gave in
 * the step before? Then an update is as large as its gradient. */
static bool gradient_grew(const lb_bisect_session *session, const lb_trace_row *row, uint32_t op)
{
    const lb_trace_row *before = NULL;
    for (uint32_t s = 0; s < session->n_steps && session->steps[s] < row->program->step; s++)
        before = lb_trace_find(session->trace, row->program->rank, session->steps[s]);
    uint8_t *marks = before ? ancestors(row, op) : NULL;
    uint32_t *twin = marks ? twins(row->program, before->program) : NULL;
    bool grew = false;
    for (uint32_t i = 0; twin && i < op && !grew; i++) {
        const bool computes =
            row->program->ops[i].phase != LB_PHASE_OPTIMIZER && row->program->ops[i].phase != LB_PHASE_OTHER;
        if (!marks[i] || !computes || twin[i] == LB_NONE || lb_op_is_source(row->program, &row->program->ops[i]))
            continue;
        grew = is_far(before->sums[twin[i]].largest, after_op(row, i), BY_OTHERS) &&
               after_op(row, i) > before->sums[twin[i]].largest;
    }
    free(marks);
    free(twin);
    return grew;
}

/* ---- what is told ------------------------------------------------------------------------------------------------ */

static const char *name_of_storage(const lb_program *program, int64_t storage)
{
    for (uint32_t i = 0; i < program->n_group_params; i++)
        if (program->group_params[i].storage == storage) return lb_program_text(program, program->group_params[i].name);
    for (uint32_t v = 0; v < program->n_values; v++)
        if (program->values[v].storage == storage && program->values[v].name != LB_NONE)
            return lb_program_text(program, program->values[v].name);
    return "a tensor without a name";
}

static void describe_jump(const jump *jump, lb_origin *origin)
{
    const lb_program *program = jump->row->program;
    const lb_op *op = &program->ops[jump->op];
    const int64_t storage = program->values[jump->value].storage;
    const bool optimizer = jump->row->optimizer[jump->op];
    const lb_group *group = optimizer ? lb_program_group_of(program, storage) : NULL;
    const double rate = learning_rate(program, group);
    char with[80] = "";
    *origin = (lb_origin){.step = program->step,
                          .rank = program->rank,
                          .phase = (lb_phase)op->phase,
                          .op = jump->op,
                          .written = true,
                          .updates = optimizer,
                          .broken = LB_NONE};
    origin->growth = jump->now / jump->before;
    origin->storage = storage;
    snprintf(origin->layer, sizeof origin->layer, "%s", lb_op_layer(program, op));
    snprintf(origin->name, sizeof origin->name, "%s", lb_op_name(program, op));
    if (isfinite(rate)) snprintf(with, sizeof with, " at a learning rate of %.3g", rate);
    say_growth(group ? lb_program_text(program, group->optimizer) : "it", name_of_storage(program, storage), with,
               jump->before, jump->now, origin->text, sizeof origin->text);
}

/* Of the parameters that the optimizers of that step took far the one that grew most, and the write that did most of
 * it. */
static void take_largest(jump *j)
{
    const lb_trace_row *row = j->row;
    const lb_program *program = row->program;
    double most = 0;
    for (uint32_t k = 0; k < program->n_group_params; k++) {
        const int64_t storage = program->group_params[k].storage;
        const double before = at_start(row, storage);
        double largest = 0;
        uint32_t op = LB_NONE, value = LB_NONE;
        for (uint32_t i = 0; before > 0 && i < program->n_ops; i++) {
            const uint32_t v = row->optimizer[i] ? lb_op_writes(program, &program->ops[i], storage) : LB_NONE;
            if (v == LB_NONE || row->sums[i].nan || !(after_op(row, i) > 2 * largest)) continue;
            largest = after_op(row, i), op = i, value = v;
        }
        if (op == LB_NONE || !(largest / before > most) || !is_far(before, largest, BY_OPTIMIZER)) continue;
        most = largest / before;
        *j = (jump){row, op, value, before, largest};
    }
}

bool lb_growth_read(const lb_bisect_session *session, const lb_trace_row *row, uint32_t broken, lb_origin *origin)
{
    const lb_program *program = row->program;
    uint32_t reader = broken, again;
    jump jump, earlier;
    if (!earliest_jump(session, row, broken, &reader, &jump)) return false;
    /* An update follows from what it was made of: state that was changed, or a gradient that grew. */
    while (jump.row->optimizer[jump.op] && earliest_jump(session, jump.row, jump.op, &again, &earlier) &&
           is_earlier(&earlier, &jump))
        jump = earlier;
    if (jump.row->optimizer[jump.op] && gradient_grew(session, jump.row, jump.op)) return false;
    if (jump.row->optimizer[jump.op]) take_largest(&jump);
    describe_jump(&jump, origin);
    if (row == jump.row && broken == jump.op) return true;
    const char *layer = lb_op_layer(program, &program->ops[reader]);
    const size_t used = strlen(origin->text);
    const char *ends = lb_trace_nonfinite(row, broken) ? "overflows" : "grows";
    snprintf(origin->text + used, sizeof origin->text - used, "; %s%s%.80s reads it%s%s%s%s%s",
             lb_op_name(program, &program->ops[reader]), *layer ? " of " : "", layer,
             reader == broken ? " and " : ", and ",
             reader == broken ? ends : lb_op_name(program, &program->ops[broken]), reader == broken ? "" : " ",
             reader == broken ? "" : ends, reader == broken ? "" : " in the end");
    return true;
}

void lb_growth_find(const lb_bisect_session *session, lb_origin *origin)
{
    const lb_trace_row *earlier = NULL,
                       *failing = lb_trace_find(session->trace, session->failure.rank, session->failure.step);
    if (failing && session->failure.op < failing->program->n_ops &&
        lb_growth_read(session, failing, session->failure.op, origin))
        return;
    for (uint32_t s = 0; s < session->n_steps && session->steps[s] <= session->failure.step; s++) {
        const lb_trace_row *row = lb_trace_find(session->trace, session->failure.rank, session->steps[s]);
        growth growth;
        if (!row) continue;
        /* A step's forward runs before its optimizer. */
        if ((earlier && grown_op(row, earlier, &growth)) || grown_parameter(row, &growth)) {
            describe(&growth, origin);
            return;
        }
        earlier = row;
    }
}
