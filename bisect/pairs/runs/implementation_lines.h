/* Which lines of a program's code a place lies in that differs between two implementations.
 *
 *      88   loss.backward()          ─┐ the last line of what was right
 *      89   rate = peak * progress    │ runs no op: Python makes the number
 *      90   total = clip(gradients)   │ gives what the other side gives
 *      91   p -= rate * p.grad       ─┘ the op that is named
 *
 * A region (regions.h) lies between values that meet; its ops have lines. Where what differs has no op of its own (a
 * number that Python makes, rows of a batch that were chosen, a factor that a loss lacks, a gradient that was dropped),
 * the line is that of the op behind it, and all lines are listed that it may lie in. */
#ifndef LB_BISECT_IMPLEMENTATION_LINES_H
#define LB_BISECT_IMPLEMENTATION_LINES_H

#include "implementations/implementations.h"
#include <lastbit/diff.h>

/* The op of A and of B whose line is said; LB_NONE. Where one side runs no such op, the one in its place. */
void lb_implementation_lines_ops(const lb_implementations *x, const lb_region *region, uint32_t ops[2]);
/* All lines of either side, of the file of the line that is said. */
void lb_implementation_lines_list(const lb_implementations *x, const lb_region *region, const lb_code_line said[2],
                                  lb_diff_lines lines[2]);

#endif
