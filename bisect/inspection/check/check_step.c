/* The gradient of one step against the derivative of its loss: see check_step.h. */
#include "check/check_step.h"
#include "check/cuts.h"
#include "check/fault_place.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A gradient that is off by less than that, beside all that was moved with it, is not called wrong: what ops hand
 * backward as they recorded it (a log-sum-exp in f32) is right to no more digits. */
static const double LEAST = 1e-4;

lb_status lb_check_step_ask(lb_check_step *step, const lb_check_question *question, lb_quotient *quotient,
                            lb_check_answer *answer, lb_err *err)
{
    const double least = question->least;
    static const int smaller[] = {-10, -16, -21}, larger[] = {-10, -4, 0};
    const int *exponents = smaller;
    *answer = LB_ANSWER_UNCLEAR;
    for (size_t i = 0; i < sizeof smaller / sizeof *smaller && *answer == LB_ANSWER_UNCLEAR; i++) {
        LB_TRY(
            lb_moved_run_quotient(&step->run, question->seed, question->roots, ldexp(1, exponents[i]), quotient, err));
        const double scale = fmax(quotient->scale, fabs(quotient->derivative)),
                     gap = fabs(quotient->derivative - quotient->said);
        if (!isfinite(gap) || !isfinite(quotient->error)) continue;
        if (i == 0 && quotient->noise > quotient->error / 4) exponents = larger;
        if (gap <= least / 10 * scale && quotient->error <= least / 10 * scale) *answer = LB_ANSWER_AGREES;
        if (gap > least * scale && gap > 100 * quotient->error) *answer = LB_ANSWER_DIFFERS;
    }
    return LB_OK;
}

/* ---- the parameters that follow from the same losses ---- */

static uint32_t activate(lb_check_step *step, uint64_t roots)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->run.n_sites; i++) {
        const lb_moved_site *site = &step->run.sites[i];
        step->run.active[i] =
            site->row != LB_NONE && site->moved && site->measured && step->trained.rows[site->row].roots == roots;
        n += step->run.active[i];
    }
    return n;
}

static uint64_t all_roots(const lb_check_step *step)
{
    return step->run.n_roots == 64 ? UINT64_MAX : ((uint64_t)1 << step->run.n_roots) - 1;
}

/* Gradients that the exact run has no numbers of: behind an op of backward that it cannot compute. */
static bool leave_unmeasured(lb_check_step *step)
{
    uint32_t n = 0;
    const char *name = "";
    for (uint32_t i = 0; i < step->run.n_sites; i++) {
        const lb_moved_site *site = &step->run.sites[i];
        if (site->row == LB_NONE || site->gradient == LB_NONE || (site->moved && site->measured)) continue;
        if (!n++) name = step->trained.rows[site->row].name;
    }
    char what[160];
    snprintf(what, sizeof what, "the gradients of %u parameters in step %lld", n, (long long)step->run.program->step);
    return !n || lb_proof_list_leave(step->report, what,
                                     "they have no exact numbers: an op before them is not known to replay, "
                                     "or bytes were not kept (%s, and %u others)",
                                     name, n - 1);
}

/* What is proven is proven of exact numbers: those that were recorded may have left the range of their dtype. */
static bool leave_not_finite(lb_check_step *step)
{
    const lb_program *program = step->run.program;
    uint32_t n = 0;
    const char *name = "";
    for (uint32_t i = 0; i < step->trained.n; i++) {
        const uint32_t v = step->trained.rows[i].read;
        if (v == LB_NONE || program->values[v].statistics == LB_NONE) continue;
        if (!lb_statistics_nonfinite(&program->statistics[program->values[v].statistics])) continue;
        if (!n++) name = step->trained.rows[i].name;
    }
    char what[160];
    snprintf(what, sizeof what, "the recorded numbers of the gradients of %u parameters in step %lld", n,
             (long long)program->step);
    return !n || lb_proof_list_leave(step->report, what,
                                     "they are NaN or infinite (%s, and %u others): "
                                     "`lastbit bisect` says where that begins; "
                                     "what is said of exact numbers does not hold for them",
                                     name, n - 1);
}

/* Losses of micro-batches are differentiated by one line of code. */
static bool are_micro_batches(const lb_check_step *step)
{
    const lb_program *program = step->run.program;
    for (uint32_t i = 1; i < step->run.n_roots; i++)
        if (!program->ops[step->run.roots[i].op].line ||
            program->ops[step->run.roots[i].op].line != program->ops[step->run.roots[0].op].line)
            return false;
    return step->run.n_roots > 1;
}

static lb_status judge_lost(lb_check_step *step, uint64_t roots, uint32_t n, lb_err *err)
{
    const uint64_t lost = all_roots(step) & ~roots;
    const lb_program *program = step->run.program;
    lb_quotient quotient;
    if (!lost || !are_micro_batches(step)) return LB_OK;
    LB_TRY(lb_moved_run_quotient(&step->run, 1, lost, 0x1p-10, &quotient, err));
    if (fabs(quotient.derivative) <= 1e-6 * quotient.scale || fabs(quotient.derivative) <= 100 * quotient.error)
        return LB_OK;
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_LOST, program);
    if (!finding) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    const uint32_t missing = (uint32_t)__builtin_popcountll(lost);
    lb_proof_list_place(finding, program, step->run.roots[__builtin_ctzll(lost)].op, LB_NONE, step->path);
    finding->effect = fabs(quotient.derivative) / fmax(quotient.scale, fabs(quotient.derivative));
    finding->factor = NAN;
    snprintf(finding->message, sizeof finding->message,
             "the gradients of %u parameters that the optimizer read lack %u of %u losses that were differentiated, "
             "by which they would change: the derivative of those is %.4g along the direction tried, not 0",
             n, missing, step->run.n_roots, quotient.derivative);
    return LB_OK;
}

static lb_status judge_roots(lb_check_step *step, uint64_t roots, lb_err *err)
{
    const uint32_t n = activate(step, roots);
    lb_quotient quotient;
    lb_check_answer answer;
    if (!n) return LB_OK;
    LB_TRY(lb_check_step_ask(step, &(lb_check_question){.roots = roots, .least = LEAST}, &quotient, &answer, err));
    char what[160];
    snprintf(what, sizeof what, "the gradients of %u parameters in step %lld", n, (long long)step->run.program->step);
    if (answer == LB_ANSWER_AGREES) {
        lb_proof_list_prove(step->report,
                            "step %lld: the gradients of %u parameters are the derivative of %s: "
                            "%.10g along a random direction, a difference quotient gives %.10g +- %.1g",
                            (long long)step->run.program->step, n,
                            step->run.n_roots > 1 ? "the sum of the losses" : "the loss", quotient.said,
                            quotient.derivative, quotient.error);
        return judge_lost(step, roots, n, err);
    }
    const char *why = NULL;
    uint32_t cut;
    LB_TRY(lb_cuts_find(step, &step->run, roots, &cut, &why, err));
    if (cut != LB_NONE)
        return lb_cuts_leave(step, what, cut, why) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (answer == LB_ANSWER_UNCLEAR) {
        lb_proof_list_leave(step->report, what,
                            "the difference quotient does not settle (%.6g +- %.2g, backward says %.6g)",
                            quotient.derivative, quotient.error, quotient.said);
        return LB_OK;
    }
    return lb_fault_place_find(step, roots, &quotient, err);
}

/* ---- parameters without a gradient ---- */

/* Its reader made a node of autograd that never ran: a gradient was asked for, and the way to the loss is cut. */
static bool was_asked_for(const lb_check_step *step, const lb_trained_row *row)
{
    const lb_program *program = step->run.program;
    int64_t node;
    if (row->has_gradient || row->reader == LB_NONE || !lb_cotangents_node(program, row->reader, &node)) return false;
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].phase == LB_PHASE_BACKWARD && program->ops[i].node == node) return false;
    return true;
}

static uint32_t first_detach_behind(const lb_check_step *step, uint32_t reader)
{
    const char *why;
    const uint32_t cut = lb_cuts_next(step, 0, &why);
    return cut != LB_NONE && cut > reader ? cut : reader;
}

static lb_status judge_detached(lb_check_step *step, uint32_t site, lb_err *err)
{
    const lb_program *program = step->run.program;
    const lb_trained_row *row = &step->trained.rows[step->run.sites[site].row];
    lb_quotient quotient;
    lb_check_answer answer;
    memset(step->run.active, 0, step->run.n_sites);
    step->run.active[site] = 1;
    const lb_check_question question = {.roots = all_roots(step), .least = LEAST};
    LB_TRY(lb_check_step_ask(step, &question, &quotient, &answer, err));
    double largest = 0;
    for (uint32_t i = 0; i < step->run.n_roots; i++) largest = fmax(largest, fabs(step->run.roots[i].loss));
    if (answer != LB_ANSWER_DIFFERS || fabs(quotient.derivative) < 1e-9 * largest) return LB_OK;
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_DETACHED, program);
    if (!finding) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    lb_proof_list_place(finding, program, first_detach_behind(step, row->reader), LB_NONE, step->path);
    snprintf(finding->layer, sizeof finding->layer, "%s", lb_op_layer(program, &program->ops[row->reader]));
    finding->factor = 0, finding->effect = 1;
    snprintf(finding->message, sizeof finding->message,
             "the loss depends on %s (derivative %.4g along the direction tried), autograd was to follow it, "
             "and it has no gradient",
             row->name, quotient.derivative);
    return LB_OK;
}

/* ---- the step ---- */

bool lb_check_step_add_parameters(lb_check_step *step)
{
    for (uint32_t i = 0; i < step->trained.n; i++) {
        const lb_trained_row *row = &step->trained.rows[i];
        const bool led = row->roots || !step->run.n_roots; /* the loss of a stage of a pipeline is another rank's */
        const bool has = row->gradient != LB_NONE && led && row->reader != LB_NONE;
        if (!has && !was_asked_for(step, row)) continue;
        if (!lb_moved_run_add_site(&step->run, row->source, has ? row->gradient : LB_NONE, row->reader, i))
            return false;
        lb_moved_site *site = &step->run.sites[step->run.n_sites - 1];
        const lb_layout *layout = &step->run.program->values[row->source].layout;
        site->start = row->start;
        site->read = row->read, site->left_out = layout->ndim == 2 ? row->padding : -1,
        site->width = layout->ndim == 2 ? layout->shape[1] : 1;
    }
    return true;
}

/* Gradients that no loss was seen to lead to are not passed over in silence. */
static bool leave_unfollowed(lb_check_step *step)
{
    uint32_t n = 0;
    const char *name = "";
    for (uint32_t i = 0; i < step->trained.n; i++) {
        const lb_trained_row *row = &step->trained.rows[i];
        if (!row->has_gradient || (row->gradient != LB_NONE && row->roots && row->reader != LB_NONE)) continue;
        if (!n++) name = row->name;
    }
    char what[160];
    snprintf(what, sizeof what, "the gradients of %u parameters in step %lld", n, (long long)step->run.program->step);
    return !n ||
           lb_proof_list_leave(step->report, what,
                               "they were not seen to follow from a loss, or no op of forward reads the parameter, "
                               "as with masters and forwards of an earlier step (%s, and %u others)",
                               name, n - 1);
}

/* The derivative is judged without it; whether it was meant to be there is not known. */
static bool leave_begun(lb_check_step *step)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->trained.n; i++) n += step->trained.rows[i].start != LB_NONE;
    char what[160];
    snprintf(what, sizeof what, "what %u gradients held when step %lld began", n, (long long)step->run.program->step);
    if (n &&
        !lb_proof_list_leave(step->report, what,
                             "an earlier step left it: an accumulation over recorded steps, "
                             "or gradients that were not zeroed; without it they are compared with the derivative"))
        return false;
    snprintf(what, sizeof what, "%u parameters of optimizers in step %lld", step->trained.unseen,
             (long long)step->run.program->step);
    return !step->trained.unseen || lb_proof_list_leave(step->report, what, "the step was not seen to begin with them");
}

static lb_status judge_parameters(lb_check_step *step, lb_err *err)
{
    const uint32_t n = step->run.n_sites;
    if (!leave_unfollowed(step) || !leave_unmeasured(step) || !leave_not_finite(step) || !leave_begun(step))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t roots =
            step->run.sites[i].gradient == LB_NONE ? 0 : step->trained.rows[step->run.sites[i].row].roots;
        bool done = !roots;
        for (uint32_t k = 0; k < i && !done; k++)
            done = step->run.sites[k].gradient != LB_NONE && step->trained.rows[step->run.sites[k].row].roots == roots;
        if (!done) LB_TRY(judge_roots(step, roots, err));
    }
    for (uint32_t i = 0; i < n && step->run.runs < 10 * step->limit; i++)
        if (step->run.sites[i].gradient == LB_NONE) LB_TRY(judge_detached(step, i, err));
    return LB_OK;
}

/* Why nothing of the step can be judged, of its own and whatever other ranks do; NULL: it can. */
static const char *reason_not_to_judge(const lb_check_step *step)
{
    if (!step->run.n_roots) return "no scalar was seen from which backward began";
    return lb_check_step_forbids(step);
}

const char *lb_check_step_forbids(const lb_check_step *step)
{
    if (step->run.n_roots >= LB_MOVED_RUN_MAX_ROOTS) return "backward began from 64 losses or more";
    if (step->trained.nested) return "a loss follows from the gradient of another one";
    if (step->trained.updated) return "a loss follows from parameters that the same step updated";
    if (!step->trained.n) return "no parameter of an optimizer was recorded";
    return NULL;
}

lb_status lb_check_step_run(lb_check_step *step, uint32_t parts, lb_err *err)
{
    char what[160];
    snprintf(what, sizeof what, "step %lld of rank %d", (long long)step->run.program->step,
             (int)step->run.program->rank);
    const char *why = reason_not_to_judge(step);
    if (!why && step->run.program->world > 1) why = "it is one of several ranks, and not all of them were recorded";
    if (why)
        return lb_proof_list_leave(step->report, what, "%s", why) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (!lb_check_step_add_parameters(step)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parameters");
    LB_TRY(lb_moved_run_measure(&step->run, err));
    for (uint32_t i = 0; i < step->run.n_roots; i++)
        if (!step->run.roots[i].seen || !isfinite(step->run.roots[i].loss)) {
            lb_proof_list_leave(step->report, what,
                                "the loss has no exact number (an op that replay does not know, "
                                "or bytes that were not kept, or it is not finite)");
            return LB_OK;
        }
    if (parts & LB_CHECK_PART_STEP && !lb_check_step_read(step)) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    return parts & LB_CHECK_PART_GRADIENT ? judge_parameters(step, err) : LB_OK;
}
