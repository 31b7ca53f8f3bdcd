/* One recorded step of one rank, checked. */
#ifndef LB_BISECT_CHECK_STEP_H
#define LB_BISECT_CHECK_STEP_H

#include "moved/cotangents.h"
#include "moved/optimizer_step.h"
#include "check/proof_list.h"

typedef struct lb_check_step {
    lb_moved_run run;
    lb_trained trained;
    lb_check_report *report;
    const char *path; /* of the capture */
    uint32_t limit;   /* of runs for proving */
    lb_optimizer_step updates;
} lb_check_step;

/* How a quotient answers. */
typedef enum lb_check_answer { LB_ANSWER_AGREES, LB_ANSWER_DIFFERS, LB_ANSWER_UNCLEAR } lb_check_answer;

/* What a quotient is asked: along direction `seed` over the active sites, of the losses whose bits `roots` has.
 * A gap counts from the share `least` of what was moved on. */
typedef struct lb_check_question {
    uint32_t seed;
    uint64_t roots;
    double least;
} lb_check_question;

/* Asks with smaller and smaller steps until one answers: a step over a kink does not. Where the loss changes by little
 * more than f64 rounds, with larger ones. */
lb_status lb_check_step_ask(lb_check_step *step, const lb_check_question *question, lb_quotient *quotient,
                            lb_check_answer *answer, lb_err *err);
/* What the optimizer read beside what backward gave. */
bool lb_check_step_read(lb_check_step *step);
/* What its optimizers did beside the rules that they are named after: `watch` before the first run of the step. */
bool lb_check_step_watch_updates(lb_check_step *step);
lb_status lb_check_step_updates(lb_check_step *step, lb_err *err);
/* Relations between its tokens; `*judged`: the step has a loss that scores tokens. */
/* Does its loss score tokens, so that relations can be tried? */
lb_status lb_check_step_scores(lb_check_step *step, bool *scores, lb_err *err);
lb_status lb_check_step_relations(lb_check_step *step, bool *judged, lb_err *err);
/* Numbers that were read and that no op wrote, in a recording that filled such memory with NaN: whether it did is
 * `*poisoned`. */
bool lb_check_step_unwritten(lb_check_step *step, bool *poisoned);
/* The first op of backward that reads numbers which no op wrote, and whose result follows from these seeds;
 * `*maker`: the op that made their memory. LB_NONE: there is none. */
uint32_t lb_check_step_reads_unwritten(const lb_check_step *step, uint64_t roots, uint32_t *maker);
/* NaN in whose place an op gives finite numbers that follow from it, and that go on to what leaves the step. */
lb_status lb_check_step_dropped(lb_check_step *step, lb_err *err);
/* The gradients of a step of several ranks, whose runs go together, that of the first before the others. */
lb_status lb_check_step_of_ranks(lb_check_step *steps, uint32_t n, uint32_t parts, lb_err *err);
/* Sites for the parameters whose gradients the step gave; false when out of memory. */
bool lb_check_step_add_parameters(lb_check_step *step);
/* The same, whether or not it has a loss itself. */
const char *lb_check_step_forbids(const lb_check_step *step);
/* Every part that was asked for, relations left out. */
lb_status lb_check_step_run(lb_check_step *step, uint32_t parts, lb_err *err);

#endif
