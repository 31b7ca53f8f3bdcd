/* Masters: what an optimizer holds, in more digits, in the place of the parameter that forward reads.
 *
 *      p bf16 ──▶ forward ──▶ … ──▶ gradient of p ──▶ gradient of w ──┐
 *      ▲  └ p.float() ┄┄┄▶ w f32 ─────────────────────────────────────┴▶ optimizer ──▶ w ──┐
 *      └───────────────────────────────── copy ────────────────────────────────────────────┘
 *
 * Which p belongs to which w is told by what the step shows, the surest first: w was made of p; the gradient that the
 * optimizer read follows from that of p; w rounds to p as the step begins; p gets a copy of w. */
#ifndef LB_BISECT_MASTERS_H
#define LB_BISECT_MASTERS_H

#include "moved/moved_run.h"

/* Is an op of that name a copy, from a master or another tensor that has the digits? */
bool lb_masters_copies(const lb_program *program, const lb_op *op);
/* A part of a parameter may lie flat where the step begins with it. */
bool lb_masters_has_form(const lb_layout *layout, const lb_layout *like);
/* The value with which a step begins in a storage; LB_NONE: with none. */
uint32_t lb_masters_source(const lb_moved_run *run, int64_t storage);
/* The first value that the step gives to a storage; LB_NONE: it begins with one, or has none. */
uint32_t lb_masters_first(const lb_moved_run *run, int64_t storage);
/* What a group's step begins with there: a source, or what was made of something else before. LB_NONE: nothing. */
uint32_t lb_masters_held(const lb_moved_run *run, const lb_group *group, int64_t storage);
/* Does a loss follow from what an op gives? */
bool lb_masters_leads(const lb_moved_run *run, uint32_t op);
/* The source of which a value is a cast or a copy; LB_NONE: of none, or `value` is. */
uint32_t lb_masters_made_of(const lb_moved_run *run, uint32_t value);
/* The parameter of which a group holds a master, as the step begins with it; LB_NONE: it holds no master.
 * `read`: the gradient that its optimizer read; LB_NONE. */
uint32_t lb_masters_copy(const lb_moved_run *run, const lb_group *group, const lb_group_param *param, uint32_t held,
                         uint32_t read);
/* Of all that the gradient which an optimizer read follows from, element by element: what is the gradient of a
 * parameter of fewer digits; LB_NONE: nothing, or of several. `*copy`: that parameter, as the step begins with it. */
uint32_t lb_masters_gradient(const lb_moved_run *run, uint32_t held, uint32_t read, uint32_t *copy);
/* Rounded to the parameter's dtype it is the parameter, in every bit, and it has more digits. */
bool lb_masters_rounds_to(const lb_tensor *master, const lb_tensor *parameter);

#endif
