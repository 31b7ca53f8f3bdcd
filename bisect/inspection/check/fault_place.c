/* Where a wrong gradient was made: all results of forward from some op on are moved at once, and by bisection the last
 * one is found whose gradient is not the derivative. What comes behind it is right, so that the fault lies between. */
#include "check/fault_place.h"

#include "base/array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Late results change the loss by more than early ones: a fault there shows as a small share. */
static const double FINE = 1e-6;

typedef struct place {
    uint32_t at, behind, site;
} place;

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    if (x->behind != y->behind) return x->behind < y->behind ? -1 : 1;
    return (x->site > y->site) - (x->site < y->site);
}

static place *list_places(const lb_check_step *step, uint64_t roots, uint32_t *n)
{
    const lb_moved_run *run = &step->run;
    place *list = malloc(((size_t)run->n_sites + 1) * sizeof *list);
    *n = 0;
    for (uint32_t i = 0; list && i < run->n_sites; i++) {
        const lb_moved_site *site = &run->sites[i];
        if (!site->moved || !site->measured) continue;
        if (site->row != LB_NONE && (run->together || step->trained.rows[site->row].roots != roots)) continue;
        list[(*n)++] = (place){site->at, site->row == LB_NONE, i};
    }
    if (list) qsort(list, *n, sizeof *list, by_place);
    return list;
}

/* Places of a list, from `first` up to `end`, which are moved together. */
typedef struct span {
    const place *list;
    uint32_t first, end;
} span;

static lb_status ask(lb_check_step *step, span span, const lb_check_question *question, lb_quotient *quotient,
                     bool *differs, lb_err *err)
{
    lb_check_answer answer;
    memset(step->run.active, 0, step->run.n_sites);
    for (uint32_t i = span.first; i < span.end; i++) step->run.active[span.list[i].site] = 1;
    LB_TRY(lb_check_step_ask(step, question, quotient, &answer, err));
    *differs = answer == LB_ANSWER_DIFFERS;
    return LB_OK;
}

/* The last place with which the end of the list differs; n: none does. */
static lb_status last_wrong(lb_check_step *step, uint64_t roots, const place *list, uint32_t n, uint32_t *found,
                            lb_err *err)
{
    const lb_check_question question = {.roots = roots, .least = FINE};
    uint32_t low = 0, high = n;
    lb_quotient quotient;
    bool differs;
    LB_TRY(ask(step, (span){list, 0, n}, &question, &quotient, &differs, err));
    *found = n;
    if (!differs) return LB_OK;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        LB_TRY(ask(step, (span){list, middle, n}, &question, &quotient, &differs, err));
        if (differs)
            low = middle;
        else
            high = middle;
    }
    *found = low;
    return LB_OK;
}

static uint32_t culprit(const lb_check_step *step, uint32_t gradient)
{
    uint32_t ops[256];
    const lb_program *program = step->run.program;
    const uint32_t n = lb_cotangents_between(&step->run, gradient, ops, 256);
    for (uint32_t i = 0; i < n; i++)
        if (lb_cotangents_is_custom(program, ops[i]) && !(program->ops[ops[i]].flags & LB_OP_VIEW)) return ops[i];
    for (uint32_t i = 0; i < n; i++)
        if (lb_cotangents_is_foreign(&step->run, ops[i]) && !(program->ops[ops[i]].flags & LB_OP_VIEW)) return ops[i];
    return step->run.graph.giver[gradient];
}

void lb_fault_place_factor_text(uint32_t losses, double factor, char *text, size_t room)
{
    *text = 0;
    if (losses > 1 && fabs(factor * losses - 1) < 1e-4)
        snprintf(text, room, ", which is 1 / %u, the number of micro-batches", losses);
    else if (losses > 1 && fabs(factor / losses - 1) < 1e-4)
        snprintf(text, room, ", which is the number of micro-batches");
    else if (factor < 0.75 && fabs(1 / factor - nearbyint(1 / factor)) < 1e-4)
        snprintf(text, room, ", which is 1 / %.0f", 1 / factor);
}

bool lb_fault_place_is_count(double factor)
{
    const double n = fabs(factor) < 1 ? 1 / fabs(factor) : fabs(factor);
    return n > 1.5 && n < 1e6 && fabs(n - nearbyint(n)) <= 1e-5 * n;
}

static void say(const lb_check_step *step, lb_check_finding *finding, const lb_moved_site *site,
                const lb_quotient *quotient)
{
    const lb_program *program = step->run.program;
    char what[200], counted[120] = "";
    if (site->row != LB_NONE)
        snprintf(what, sizeof what, "%s", step->trained.rows[site->row].name);
    else
        snprintf(what, sizeof what, "the result of %s in %s", lb_op_name(program, &program->ops[site->at]),
                 *lb_op_layer(program, &program->ops[site->at]) ? lb_op_layer(program, &program->ops[site->at])
                                                                : "(outside)");
    if (!isnan(finding->factor))
        lb_fault_place_factor_text(step->run.n_roots, finding->factor, counted, sizeof counted);
    if (finding->kind == LB_CHECK_SCALE)
        snprintf(finding->message, sizeof finding->message,
                 "the gradient of %s is %.6g times the derivative of the loss%s: %.6g along a random direction, "
                 "where a difference quotient gives %.6g +- %.1g; those of all later results are right",
                 what, finding->factor, counted, quotient->said, quotient->derivative, quotient->error);
    else
        snprintf(finding->message, sizeof finding->message,
                 "the gradient of %s is not the derivative of the loss: %.6g along a random direction, "
                 "where a difference quotient gives %.6g +- %.1g; those of all later results are right",
                 what, quotient->said, quotient->derivative, quotient->error);
}

/* ---- other draws ---- */

/* The op of forward that an op repeats, by the order of such ops in its module. */
static uint32_t repeated(const lb_program *program, uint32_t op)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < op; i++)
        k += program->ops[i].flags & LB_OP_RECOMPUTE && program->ops[i].scope == program->ops[op].scope &&
             program->ops[i].name == program->ops[op].name;
    for (uint32_t i = 0; i < op; i++) {
        const lb_op *o = &program->ops[i];
        if (o->phase != LB_PHASE_FORWARD || o->scope != program->ops[op].scope || o->name != program->ops[op].name)
            continue;
        if (!k--) return i;
    }
    return LB_NONE;
}

/* The first op of a recomputation that drew different numbers than the forward that it repeats; LB_NONE. */
static uint32_t redrawn(const lb_program *program, uint32_t *first)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (!(op->flags & LB_OP_RECOMPUTE) || !(op->flags & LB_OP_RANDOM) || !lb_op_outcomes(op)) continue;
        *first = repeated(program, i);
        if (*first == LB_NONE || !lb_op_outcomes(&program->ops[*first])) continue;
        const uint32_t a = lb_op_outcome(program, op, 0), b = lb_op_outcome(program, &program->ops[*first], 0);
        if (a != LB_NONE && b != LB_NONE && !lb_digest_equal(program->values[a].logical, program->values[b].logical))
            return i;
    }
    return LB_NONE;
}

static lb_status add_redrawn(lb_check_step *step, uint32_t op, uint32_t first, const lb_quotient *quotient, lb_err *err)
{
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_REDRAWN, step->run.program);
    if (!finding) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    lb_proof_list_place(finding, step->run.program, op, first, step->path);
    finding->effect = fabs(quotient->said - quotient->derivative) / fabs(quotient->derivative);
    snprintf(finding->message, sizeof finding->message,
             "the gradients are not the derivative of the loss (%.6g along a random direction, "
             "where a difference quotient gives %.6g +- %.1g): "
             "the recomputation drew other numbers than op %u of forward, which it repeats",
             quotient->said, quotient->derivative, quotient->error, first);
    return LB_OK;
}

/* ---- memory that no op wrote ---- */

/* What lies there is another thing in every run: the exact one reads zeros. */
static lb_status add_unwritten(lb_check_step *step, uint32_t op, uint32_t maker, const lb_quotient *quotient,
                               lb_err *err)
{
    const lb_program *program = step->run.program;
    const lb_code_line line = lb_op_line(program, &program->ops[maker]);
    char made[240];
    lb_code_line_text(&line, made, sizeof made);
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_UNWRITTEN, program);
    if (!finding) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    lb_proof_list_place(finding, program, op, step->run.graph.forward[op], step->path);
    finding->effect = fabs(quotient->said - quotient->derivative) / fabs(quotient->derivative);
    snprintf(finding->message, sizeof finding->message,
             "it reads numbers that no op wrote: %s made their memory%s%s; "
             "with zeros there the gradients are not the derivative of the loss (%.6g along a random direction, "
             "where a difference quotient gives %.6g +- %.1g)",
             lb_op_name(program, &program->ops[maker]), *made ? " at " : "", made, quotient->said, quotient->derivative,
             quotient->error);
    return LB_OK;
}

/* ---- rows that see nothing ---- */

/* Below that a score is lost where it was added to what hides it, in f64, too. */
static const double HIDDEN = -1e30;

/* A row all of whose numbers are hidden: a token of padding that is to see none but padding. */
static bool has_hidden_row(const double *x, const lb_layout *layout)
{
    const int64_t n = lb_layout_numel(layout), width = layout->ndim ? layout->shape[layout->ndim - 1] : 1;
    for (int64_t row = 0; width > 1 && row < n; row += width) {
        int64_t hidden = 0;
        while (hidden < width && x[row + hidden] <= HIDDEN && isfinite(x[row + hidden])) hidden++;
        if (hidden == width) return true;
    }
    return false;
}

/* The softmax of such a row is the same whatever the scores are, and its backward, which does not know that they were
 * lost, gives them a gradient. */
static bool softmax_sees_nothing(const lb_check_step *step, uint32_t forward)
{
    const lb_program *program = step->run.program;
    const lb_op *op = forward == LB_NONE ? NULL : &program->ops[forward];
    const bool kernel = op && strstr(lb_op_name(program, op), "scaled_dot_product");
    bool any = false;
    if (!op || !(kernel || strstr(lb_op_name(program, op), "softmax"))) return false;
    for (uint32_t i = kernel ? 3 : 0; i < op->args && (kernel || i == 0) && !any; i++) {
        lb_tensor tensor;
        if (lb_op_args(program, op)[i].tag != LB_ARG_VALUE) continue;
        double *x = lb_moved_run_recorded(&step->run, lb_op_args(program, op)[i].u.value, &tensor);
        any = x && has_hidden_row(x, &tensor.layout);
        free(x);
    }
    return any;
}

/* Such a softmax whose backward lies between a site and those behind it, which are right; LB_NONE. */
static uint32_t blind_softmax(const lb_check_step *step, const lb_moved_site *site)
{
    uint32_t ops[256];
    const uint32_t n = site->gradient == LB_NONE ? 0 : lb_cotangents_between(&step->run, site->gradient, ops, 256);
    for (uint32_t i = 0; i < n; i++)
        if (softmax_sees_nothing(step, step->run.graph.forward[ops[i]])) return step->run.graph.forward[ops[i]];
    return LB_NONE;
}

static bool leave_hidden(lb_check_step *step, uint32_t forward)
{
    const lb_program *program = step->run.program;
    const lb_code_line line = lb_op_line(program, &program->ops[forward]);
    char what[160], at[120];
    lb_code_line_text(&line, at, sizeof at);
    snprintf(what, sizeof what, "the gradients before %s in step %lld", lb_op_layer(program, &program->ops[forward]),
             (long long)program->step);
    return lb_proof_list_leave(step->report, what,
                               "rows of its softmax hide all that they could see: their scores are lost in the mask, "
                               "and backward gives them a gradient all the same: %s",
                               at);
}

/* ---- the finding ---- */

/* A gradient that is the derivative of the last loss alone lacks all others: it was overwritten, and not added to. */
static lb_status judge_overwritten(lb_check_step *step, uint64_t roots, const place *list, uint32_t k,
                                   lb_check_finding *finding, lb_err *err)
{
    const uint32_t n = (uint32_t)__builtin_popcountll(roots), row = step->run.sites[list[k].site].row;
    lb_quotient quotient;
    lb_check_answer answer;
    if (n < 2 || row == LB_NONE || finding->kind == LB_CHECK_DETACHED) return LB_OK;
    memset(step->run.active, 0, step->run.n_sites);
    step->run.active[list[k].site] = 1;
    const lb_check_question last = {.roots = (uint64_t)1 << (63 - __builtin_clzll(roots)), .least = FINE};
    LB_TRY(lb_check_step_ask(step, &last, &quotient, &answer, err));
    if (answer != LB_ANSWER_AGREES) return LB_OK;
    finding->kind = LB_CHECK_LOST, finding->factor = NAN;
    snprintf(finding->message, sizeof finding->message,
             "the gradient of %s is the derivative of the last of %u losses alone: %.6g along a random direction, "
             "where a difference quotient of that loss gives %.6g +- %.1g; the other %u are lost",
             step->trained.rows[row].name, n, quotient.said, quotient.derivative, quotient.error, n - 1);
    return LB_OK;
}

static lb_status add_finding(lb_check_step *step, uint64_t roots, const place *list, uint32_t k, lb_err *err)
{
    const lb_program *program = step->run.program;
    const lb_moved_site *site = &step->run.sites[list[k].site];
    lb_quotient quotient[2];
    bool differs[2];
    for (uint32_t i = 0; i < 2; i++) {
        const lb_check_question question = {i, roots, FINE};
        LB_TRY(ask(step, (span){list, k, k + 1}, &question, &quotient[i], &differs[i], err));
    }
    const double ratios[2] = {quotient[0].said / quotient[0].derivative, quotient[1].said / quotient[1].derivative};
    const bool scaled = fabs(ratios[0] - ratios[1]) <= 1e-5 * fabs(ratios[0]) && site->norm > 0;
    lb_check_finding *finding = lb_proof_list_add(step->report,
                                                  site->norm == 0 ? LB_CHECK_DETACHED
                                                  : scaled        ? LB_CHECK_SCALE
                                                                  : LB_CHECK_GRADIENT,
                                                  program);
    if (!finding) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    const uint32_t op = culprit(step, site->gradient);
    uint32_t forward = step->run.graph.forward[op];
    if (forward == LB_NONE && site->row == LB_NONE) forward = site->at;
    lb_proof_list_place(finding, program, op, forward, step->path);
    finding->factor = site->norm == 0 ? 0 : scaled ? ratios[0] : NAN;
    finding->effect = fabs(quotient[0].said - quotient[0].derivative) / fabs(quotient[0].derivative);
    say(step, finding, site, &quotient[0]);
    return judge_overwritten(step, roots, list, k, finding, err);
}

/* Nothing that was moved inside the step explains it: what is known is said of the whole. */
static lb_status add_whole(lb_check_step *step, const lb_quotient *quotient, lb_err *err)
{
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_GRADIENT, step->run.program);
    if (!finding) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    lb_proof_list_place(finding, step->run.program, step->run.roots[step->run.n_roots - 1].op, LB_NONE, step->path);
    finding->effect = fabs(quotient->said - quotient->derivative) / fabs(quotient->derivative);
    snprintf(finding->message, sizeof finding->message,
             "the gradients are not the derivative of the loss: %.6g along a random direction, "
             "where a difference quotient gives %.6g +- %.1g; no op was found at which that begins",
             quotient->said, quotient->derivative, quotient->error);
    return LB_OK;
}

lb_status lb_fault_place_find(lb_check_step *step, uint64_t roots, const lb_quotient *quotient, lb_err *err)
{
    uint32_t n, found = 0, first = LB_NONE;
    const uint32_t again = redrawn(step->run.program, &first);
    if (again != LB_NONE) return add_redrawn(step, again, first, quotient, err);
    const uint32_t reader = lb_check_step_reads_unwritten(step, roots, &first);
    if (reader != LB_NONE) return add_unwritten(step, reader, first, quotient, err);
    LB_TRY(lb_cotangents_add(&step->run, &step->trained, err));
    LB_TRY(lb_moved_run_measure(&step->run, err));
    place *list = list_places(step, roots, &n);
    if (!list) return lb_fail(err, LB_ERR_NOMEM, "out of memory for places");
    lb_status status = last_wrong(step, roots, list, n, &found, err);
    const uint32_t blind =
        status == LB_OK && found < n ? blind_softmax(step, &step->run.sites[list[found].site]) : LB_NONE;
    if (blind != LB_NONE)
        status = leave_hidden(step, blind) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    else if (status == LB_OK)
        status = found < n ? add_finding(step, roots, list, found, err) : add_whole(step, quotient, err);
    free(list);
    return status;
}
