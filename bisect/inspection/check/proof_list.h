/* What a check has to say, as it is gathered. */
#ifndef LB_BISECT_PROOF_LIST_H
#define LB_BISECT_PROOF_LIST_H

#include "parts/part_record.h"

#include <lastbit/check.h>

/* A new finding with nothing said yet; NULL when out of memory. */
lb_check_finding *lb_proof_list_add(lb_check_report *report, lb_check_kind kind, const lb_program *program);
/* Names the op, and the forward op whose backward it is (LB_NONE: none). */
void lb_proof_list_place(lb_check_finding *finding, const lb_program *program, uint32_t op, uint32_t forward,
                         const char *path);
bool lb_proof_list_prove(lb_check_report *report, const char *format, ...) LB_PRINTF(2, 3);
bool lb_proof_list_leave(lb_check_report *report, const char *what, const char *format, ...) LB_PRINTF(3, 4);
/* The same where nothing was claimed: it leaves the verdict as it is. */
bool lb_proof_list_pass(lb_check_report *report, const char *what, const char *format, ...) LB_PRINTF(3, 4);
/* Was something left, or passed, of that? */
bool lb_proof_list_has_left(const lb_check_report *report, const char *what);
/* How many were left, passed ones not counted. */
uint32_t lb_proof_list_left(const lb_check_report *report);
/* Findings behind the first `n` are taken back. */
void lb_proof_list_cut(lb_check_report *report, uint32_t n);
/* Behind what `whole` has, digits too; what was left or passed is said once. `part` keeps nothing. False: no memory. */
bool lb_proof_list_join(lb_check_report *whole, lb_check_report *part);
/* What a unit of work has found, as a record, both ways (check_record.c); the verdict is of all units. What was read is
 * released as any other, after a failure too. */
void lb_proof_list_record(lb_part_record *record, lb_check_report *report);
void lb_proof_list_sort(lb_check_report *report);
/* All findings, and what was proven and left. */
void lb_proof_list_release(lb_check_report *report);

#endif
