/* What answers are put together from: the sentence, facts, places. See answer.h. */
#ifndef LB_REPORT_ANSWER_PARTS_H
#define LB_REPORT_ANSWER_PARTS_H

#include <lastbit/error.h>

#include <lastbit/json_text.h>
#include <stdbool.h>

enum { LB_ANSWER_PARTS_TEXT = 600 };

/* The sentence, and how to take it. */
void lb_answer_parts_tell(json_t *answer, const char *tone, const char *format, ...) LB_PRINTF(3, 4);
/* A fact behind those told before. */
void lb_answer_parts_fact(json_t *answer, const char *name, const char *format, ...) LB_PRINTF(3, 4);
/* The same of a text that may not be there: then nothing is told. */
void lb_answer_parts_fact_text(json_t *answer, const char *name, const json_t *text);

/* Appends what fits into `size` bytes; a character is never cut in two. */
void lb_answer_parts_append(char *text, size_t size, const char *format, ...) LB_PRINTF(3, 4);

/* A field's text, "" where it has none; a field's number, NaN where it has none (infinities are words in JSON). */
const char *lb_answer_parts_text(const json_t *row, const char *key);
double lb_answer_parts_number(const json_t *row, const char *key);
/* "rank 2", "ranks 2, 5"; "" where no rank is named. */
void lb_answer_parts_ranks(const json_t *row, char text[LB_ANSWER_PARTS_TEXT]);
/* "layers.2.scan, aten::exp", "the top level" */
void lb_answer_parts_site(const json_t *at, char text[LB_ANSWER_PARTS_TEXT]);
/* "step 2, rank 0, forward, layers.2.scan, aten::exp, op 186" */
void lb_answer_parts_place(const json_t *at, char text[LB_ANSWER_PARTS_TEXT]);
/* The lines of code of a place, as facts: of both sides, or of a backward and its forward. */
void lb_answer_parts_lines(json_t *answer, const json_t *at);

/* One for each command. */
void lb_answer_parts_bisect(json_t *answer, const json_t *result);
void lb_answer_parts_watch(json_t *answer, const json_t *result);
void lb_answer_parts_ranks_result(json_t *answer, const json_t *result);
void lb_answer_parts_fingerprint(json_t *answer, const json_t *result);
void lb_answer_parts_check(json_t *answer, const json_t *result);
void lb_answer_parts_audit(json_t *answer, const json_t *result);
void lb_answer_parts_diff(json_t *answer, const json_t *result);
void lb_answer_parts_explain(json_t *answer, const json_t *result);
void lb_answer_parts_parity(json_t *answer, const json_t *result);
void lb_answer_parts_replay(json_t *answer, const json_t *result);

#endif
