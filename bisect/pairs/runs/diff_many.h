/* A diff of many ranks, each judged by itself.
 *
 * Ranks that are taken together are one program, and one exact run holds all of them. Of more than LB_DIFF_TOGETHER
 * that is neither memory's nor time's friend, and it is not needed: rank i of one side stands against rank i of the
 * other, and what ranks hand each other was recorded. So a rank is a unit of work (lastbit/parts.h): its programs are
 * compared and run from what it received, on both sides from the first side's. Of a step in which something differs
 * each rank then gives what it called (collective_extract.h), so that no worker holds the programs of all; and a
 * collective in which something differs is a unit of its own:
 *
 *   a result is none that its members' inputs give   diverged there, with the side, and rank, hop and bit where known
 *   the inputs are the same                          rounding: another legal order
 *   some rank brought different numbers                  what differs behind it comes from there
 *
 * How bad what comes from there is, the rank that brought it knows. Put together it spreads: what a collective hands on
 * is as bad as the worst that any member brought to it. Within a rank only the latest collective behind a difference is
 * remembered, so that what follows from several is as bad as the worst of those up to it. */
#ifndef LB_BISECT_DIFF_MANY_H
#define LB_BISECT_DIFF_MANY_H

#include "diff/diff_half.h"

enum { LB_DIFF_TOGETHER = 16 };

/* As many ranks on both sides, and more than are taken together. */
bool lb_diff_are_many(const lb_diff_half *first, const lb_diff_half *second);
lb_status lb_diff_many(lb_diff_session *session, const lb_diff_half *first, const lb_diff_half *second, lb_err *err);

#endif
