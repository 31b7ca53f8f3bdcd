/* The answer of one result: a sentence that a reader of one line needs, how grave it is, and the few facts that follow.
 *
 * The sentence names the gravest finding and its place ("rank 2: loss, aten::div.Tensor makes step 2 fail: …"), not the
 * verdict ("found"). Title, head and cards of the page are made of it, so that they are there for readers without
 * scripts, too.
 */
#ifndef LB_REPORT_ANSWER_H
#define LB_REPORT_ANSWER_H

#include <lastbit/json_text.h>

/* {"tone", "word", "finding", "facts": [[name, text], ...]} of what `lastbit COMMAND --json` printed; new, NULL when
 * out of memory. `tone` says how to take it: bad, unknown, warn, good. `word` is the verdict as the command says it.
 * Fields that are not there, or are of another type, are left out. */
json_t *lb_answer_of(const char *command, const json_t *result);

/* 3 bad, 2 unknown, 1 warn, 0 good: graver answers come first. */
int lb_answer_gravity(const json_t *answer);

/* The runs that a result is about: "run, recorded 2026-11-25 14:02 UTC (python train.py) and other"; and in short for a
 * title, "run and other, 2026-11-25". New texts. `name` is where the result is from, for one that does not say what it
 * read; `now` the day for one that has no date. */
json_t *lb_answer_runs(const json_t *result, const char *name);
json_t *lb_answer_run_title(const json_t *result, const char *name, const char *now);

#endif
