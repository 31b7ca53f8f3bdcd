/* Which one op of a region, written differently, makes both sides compute the same: so it is the difference.
 *
 *      A   lse ─▶ mul 0.01 ─▶ add ─▶ loss        B   exp ─▶ sum ─▶ log ─▶ mul 0.001 ─▶ add ─▶ loss
 *
 * Between the same two places the sides may be spelled in ways of their own, so that which op is wrong cannot be read
 * off their names. But the ops of a region are few: each is tried with another number (one that the other side has
 * there; a count; one that changes nothing), left out, or as the function it is mistaken for most easily (max for min),
 * and the region is run exactly from the numbers that it begins with. An edit that gives the other side's numbers is
 * the difference; where several ops do, the one whose number the other side alone has. Where no single edit does, two
 * numbers are tried at once (0.8 x + 0.2 y beside 0.9 x + 0.1 y), but for updates: these have a rate, so that some
 * number puts right whatever scales them. */
#ifndef LB_BISECT_REPAIRS_H
#define LB_BISECT_REPAIRS_H

#include "implementations/implementations.h"

/* Of the regions of `x` that are named by guess. B's runs go on from A's numbers at every counterpart for this: one of
 * either side more, where there is a region to try. LB_ERR_NOMEM is the only failure. */
lb_status lb_repairs_find(lb_implementations *x, lb_err *err);
/* Writes the edit into the program, or takes it out again. False when out of memory. */
bool lb_repair_set(lb_program *own, lb_repair *repair, bool on);

#endif
