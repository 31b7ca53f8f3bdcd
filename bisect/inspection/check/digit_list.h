/* The rows of `digits` as they are gathered. */
#ifndef LB_BISECT_DIGIT_LIST_H
#define LB_BISECT_DIGIT_LIST_H

#include <lastbit/check.h>

#include <stdio.h>

/* A new row with nothing said yet; NULL when out of memory. */
lb_check_digit *lb_digit_list_add(lb_check_report *report, lb_check_digit_kind kind, const lb_program *program);
/* Names the op. */
void lb_digit_list_place(lb_check_digit *digit, const lb_program *program, uint32_t op);
/* Do the names of two layers differ in numbers alone? `wide`: one name for both, "blocks.*.n1" for "blocks.0.n1" and
 * "blocks.1.n1". */
bool lb_digit_list_alike(const char *a, const char *b, char *wide, size_t room);
/* The row is of that layer, too: it gets the name of both where they are alike. */
void lb_digit_list_widen(lb_check_digit *digit, const char *layer);
/* What a rounding costs, as one number: its largest effect. */
double lb_digit_list_cost(const lb_check_effect *effect);
/* By kind, and within one by what it costs. */
void lb_digit_list_sort(lb_check_report *report);
/* For a person: the first rows of each kind. */
void lb_digit_list_print(const lb_check_report *report, FILE *out);
void lb_digit_list_release(lb_check_report *report);

#endif
