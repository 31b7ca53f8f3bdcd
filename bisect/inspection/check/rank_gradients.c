/* Gradients over ranks: their programs run together, copies of a parameter are moved alike on all ranks that hold one,
 * and whatever a rank holds alone (parts of FSDP and of tensor parallelism, stages of a pipeline) by itself. The mean
 * of their losses changes by the mean of the copies' gradients and by those of the rest. */
#include "check/rank_gradients.h"
#include "check/cuts.h"
#include "check/fault_place.h"

#include "ranks/message_key.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- whether they can be judged ---- */

/* Why the ranks are not judged together; NULL: they are. */
static const char *lacks(const lb_check_step *steps, uint32_t n)
{
    uint32_t losses = 0;
    for (uint32_t k = 0; k < n; k++) {
        const lb_check_step *step = &steps[k];
        const char *why = lb_check_step_forbids(step);
        if (why) return why;
        if (step->trained.unseen) return "the step was not seen to begin with all parameters";
        if (step->run.n_roots && losses && step->run.n_roots != losses)
            return "its ranks differentiate other numbers of losses";
        if (step->run.n_roots) losses = step->run.n_roots;
    }
    return losses ? NULL : "no scalar was seen from which backward began";
}

static const lb_program *program_of(const lb_check_step *steps, uint32_t n, int32_t rank)
{
    for (uint32_t k = 0; k < n; k++)
        if (steps[k].run.program->rank == rank) return steps[k].run.program;
    return NULL;
}

/* All messages of that stream are sent and received in the step. */
static lb_status meets(const lb_check_step *steps, uint32_t n, const lb_message_key *key, bool *all, lb_err *err)
{
    const lb_program *sender = program_of(steps, n, key->sender), *receiver = program_of(steps, n, key->receiver);
    lb_message_stream sent = {0}, received = {0};
    int64_t shift = 0;
    *all = sender && receiver;
    if (!*all) return LB_OK;
    lb_status status = lb_message_stream_read(sender, LB_MESSAGE_SENT, key, &sent, err);
    if (status == LB_OK) status = lb_message_stream_read(receiver, LB_MESSAGE_RECEIVED, key, &received, err);
    *all = sent.n == received.n && lb_message_streams_align(&sent, &received, &shift) && shift == 0;
    free(sent.contents), free(received.contents);
    return status;
}

/* A stage of a pipeline may post the first receive of a step before its step begins: what it received then is no part
 * of the run. */
static lb_status messages_lack(const lb_check_step *steps, uint32_t n, const char **why, lb_err *err)
{
    for (uint32_t k = 0; k < n; k++) {
        const lb_program *program = steps[k].run.program;
        for (uint32_t i = 0; i < program->n_collectives; i++) {
            lb_message_key key;
            bool all = true;
            if (lb_message_key_of(program, &program->collectives[i], &key) == LB_MESSAGE_NONE || key.number) continue;
            LB_TRY(meets(steps, n, &key, &all, err));
            if (!all) {
                *why = "a message of the step was received in another step, or sent there";
                return LB_OK;
            }
        }
    }
    return LB_OK;
}

static const char *losses_lack(const lb_check_step *steps, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < steps[k].run.n_roots; i++)
            if (!steps[k].run.roots[i].seen || !isfinite(steps[k].run.roots[i].loss))
                return "a loss has no exact number";
    return NULL;
}

/* ---- gradients ---- */

bool lb_rank_gradients_follow(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group, uint64_t roots)
{
    if (copies->doubtful[group]) return false;
    for (uint32_t k = 0; k < copies->ranks; k++) {
        const lb_moved_site *site = lb_rank_copies_site(copies, steps, group, k);
        if (site && (!site->moved || !site->measured || site->gradient == LB_NONE)) return false;
        if (site && steps[k].run.n_roots && steps[k].trained.rows[site->row].roots != roots) return false;
    }
    return true;
}

/* A parameter is moved on all ranks that hold it or on none; returns how many are. */
static uint32_t activate(const lb_rank_copies *copies, lb_check_step *steps, uint64_t roots)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < copies->n; g++) {
        const bool all = lb_rank_gradients_follow(copies, steps, g, roots);
        n += all;
        for (uint32_t k = 0; k < copies->ranks; k++) {
            const lb_moved_site *site = lb_rank_copies_site(copies, steps, g, k);
            if (site) steps[k].run.active[site - steps[k].run.sites] = all;
        }
    }
    return n;
}

/* A mean, or a sum: which of the two ranks train on is the program's own business. */
static bool prove(lb_check_step *step, uint32_t n, const lb_quotient *quotient, double times)
{
    return lb_proof_list_prove(step->report,
                               "step %lld: the gradients of %u ranks are the derivative of the %s of their losses: "
                               "%.10g along a random direction, a difference quotient gives %.10g +- %.1g",
                               (long long)step->run.program->step, n, times > 1 ? "sum" : "mean", quotient->said,
                               quotient->derivative * times, quotient->error * times);
}

static bool prove_reads(lb_check_step *step, uint32_t n, const lb_quotient *quotient, double times)
{
    char by[60] = "";
    if (fabs(times - 1) > LB_RANK_LEAST) snprintf(by, sizeof by, ", times %.6g", times);
    return lb_proof_list_prove(step->report,
                               "step %lld: what the optimizers of %u ranks read is the derivative of their losses%s: "
                               "%.10g along a random direction, a difference quotient gives %.10g +- %.1g",
                               (long long)step->run.program->step, n, by, quotient->said, quotient->derivative,
                               quotient->error);
}

static bool reads_are_known(const lb_rank_copies *copies, lb_check_step *steps)
{
    for (uint32_t g = 0; g < copies->n; g++)
        for (uint32_t k = 0; k < copies->ranks; k++) {
            const lb_moved_site *site = lb_rank_copies_site(copies, steps, g, k);
            if (site && (site->read == LB_NONE || site->start != LB_NONE)) return false;
        }
    return true;
}

/* Gradients that backward left unfinished (each rank's share of what all of them hold) are added up before they are
 * read: along two directions one number times the derivative. */
static lb_status judge_what_is_read(const lb_rank_copies *copies, lb_check_step *steps, uint64_t roots, bool *right,
                                    lb_err *err)
{
    lb_check_step *step = &steps[0];
    lb_quotient quotient[2];
    lb_check_answer answer;
    *right = false;
    if (!reads_are_known(copies, steps)) return LB_OK;
    step->run.reads = true;
    for (uint32_t seed = 0; seed < 2; seed++) {
        const lb_check_question question = {seed, roots, LB_RANK_LEAST};
        LB_TRY(lb_check_step_ask(step, &question, &quotient[seed], &answer, err));
    }
    step->run.reads = false;
    const double first = quotient[0].said / quotient[0].derivative, second = quotient[1].said / quotient[1].derivative;
    *right = first > 0 && fabs(first - second) <= LB_RANK_LEAST * first;
    return !*right || prove_reads(step, copies->ranks, &quotient[0], first)
               ? LB_OK
               : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
}

/* What some rank was told to leave out of the derivative. */
static lb_status leave_cut(lb_check_step *steps, uint32_t n, uint64_t roots, bool *cut, lb_err *err)
{
    *cut = false;
    for (uint32_t k = 0; k < n && !*cut; k++) {
        const char *why = NULL;
        uint32_t op;
        LB_TRY(lb_cuts_find(&steps[k], &steps[0].run, roots, &op, &why, err));
        *cut = op != LB_NONE;
        if (*cut && !lb_cuts_leave(&steps[k], "the gradients of all ranks", op, why))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    }
    return LB_OK;
}

/* `*right`: what is read is the derivative all the same. */
static lb_status judge_difference(const lb_rank_copies *copies, lb_check_step *steps, uint64_t roots,
                                  const lb_quotient *quotient, bool *right, lb_err *err)
{
    lb_check_step *step = &steps[0];
    bool cut;
    LB_TRY(leave_cut(steps, copies->ranks, roots, &cut, err));
    if (cut) return LB_OK;
    if (copies->alike) {
        for (uint32_t k = 1; k < copies->ranks; k++) memset(steps[k].run.active, 0, steps[k].run.n_sites);
        return lb_fault_place_find(step, roots, quotient, err);
    }
    LB_TRY(judge_what_is_read(copies, steps, roots, right, err));
    return *right ? LB_OK : lb_rank_parameters_locate(copies, steps, roots, err);
}

static lb_status judge_losses(const lb_rank_copies *copies, lb_check_step *steps, uint64_t roots, bool *right,
                              lb_err *err)
{
    lb_check_step *step = &steps[0];
    const uint32_t n = copies->ranks;
    lb_quotient quotient;
    lb_check_answer answer;
    bool said = true;
    if (!activate(copies, steps, roots)) return LB_OK;
    LB_TRY(
        lb_check_step_ask(step, &(lb_check_question){.roots = roots, .least = LB_RANK_LEAST}, &quotient, &answer, err));
    const bool sums = answer == LB_ANSWER_DIFFERS && fabs(quotient.said / quotient.derivative / n - 1) <= LB_RANK_LEAST;
    if (answer == LB_ANSWER_AGREES || sums)
        said = prove(step, n, &quotient, sums ? n : 1);
    else if (answer == LB_ANSWER_DIFFERS)
        return judge_difference(copies, steps, roots, &quotient, right, err);
    else
        said = lb_proof_list_leave(step->report, "the gradients of all ranks",
                                   "the difference quotient does not settle (%.6g +- %.2g, backward says %.6g)",
                                   quotient.derivative, quotient.error, quotient.said);
    return said ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
}

/* Parameters by the losses that their gradients follow from. */
static lb_status judge_gradients(const lb_rank_copies *copies, lb_check_step *steps, bool *right, lb_err *err)
{
    const lb_check_report *report = steps[0].report;
    const uint32_t before = report->n_findings;
    uint32_t k = 0;
    LB_TRY(lb_rank_parameters_detached(copies, steps, UINT64_MAX, err));
    if (report->n_findings > before) return LB_OK; /* what others miss follows from that */
    while (!steps[k].run.n_roots) k++;
    const lb_trained *trained = &steps[k].trained;
    for (uint32_t i = 0; i < trained->n; i++) {
        bool done = !trained->rows[i].roots;
        for (uint32_t j = 0; j < i && !done; j++) done = trained->rows[j].roots == trained->rows[i].roots;
        if (!done) LB_TRY(judge_losses(copies, steps, trained->rows[i].roots, right, err));
    }
    return LB_OK;
}

/* ---- all of it ---- */

static bool leave_doubtful(const lb_rank_copies *copies, lb_check_step *step)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < copies->n; g++) n += copies->doubtful[g];
    char what[80];
    snprintf(what, sizeof what, "%u parameters of the ranks", n);
    return !n || lb_proof_list_leave(step->report, what,
                                     "they begin as equal constants, "
                                     "and are read alike on some ranks that hold no copies of anything else: "
                                     "copies or parts is not known");
}

static lb_status judge(const lb_rank_copies *copies, lb_check_step *steps, uint32_t parts, const char *what,
                       lb_err *err)
{
    lb_check_step *step = &steps[0];
    LB_TRY(lb_moved_run_measure(&step->run, err));
    const char *why = losses_lack(steps, copies->ranks);
    if (why)
        return lb_proof_list_leave(step->report, what, "%s", why) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (!leave_doubtful(copies, step)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    const uint32_t before = step->report->n_findings;
    bool right = false; /* what was read has been judged, too */
    if (!copies->alike && parts & LB_CHECK_PART_GRADIENT) LB_TRY(judge_gradients(copies, steps, &right, err));
    right |= step->report->n_findings > before;
    if (parts & LB_CHECK_PART_STEP && !right && !lb_rank_reads_judge(copies, steps))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    return copies->alike && parts & LB_CHECK_PART_GRADIENT ? judge_gradients(copies, steps, &right, err) : LB_OK;
}

lb_status lb_check_step_of_ranks(lb_check_step *steps, uint32_t n, uint32_t parts, lb_err *err)
{
    lb_check_step *step = &steps[0];
    lb_rank_copies copies = {0};
    char what[80];
    snprintf(what, sizeof what, "step %lld of %u ranks", (long long)step->run.program->step, n);
    const char *why = lacks(steps, n);
    if (!why) LB_TRY(messages_lack(steps, n, &why, err));
    if (why)
        return lb_proof_list_leave(step->report, what, "%s", why) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t k = 0; k < n; k++)
        if (!lb_check_step_add_parameters(&steps[k])) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parameters");
    lb_status status = lb_rank_copies_make(steps, n, &copies, err);
    if (status == LB_OK) status = judge(&copies, steps, parts, what, err);
    lb_rank_copies_release(&copies);
    return status;
}
