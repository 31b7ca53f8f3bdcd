/* Sources that hold nearly the other side's numbers: a window from the middle of two trainings begins with weights and
 * states that the steps before it have moved apart, by rounding or by a fault that came before this step.
 *
 *      A   layers.1.attn.q_proj.weight            B   h.1.qkv.weight       each row is 1e-5 from a row of A's three
 *          layers.1.norm2.weight                      h.1.ln_b.w           1e-2 from it, and from the next norm as far:
 *                                                                          both are read between the same two matrices
 *
 * A source is looked for, in this order: by its name; among whole tensors (also transposed); vector by vector among all
 * vectors of the other side; among what is read between the same matrices; by where the tensors stand whose names
 * differ from its name in a number alone; as the only one of its size that is left on both sides. Numbers tell where
 * the nearest is at most a tenth of its size away, and the next one at least three times as far. */
#ifndef LB_BISECT_NEAR_SOURCES_H
#define LB_BISECT_NEAR_SOURCES_H

#include "sources/step_sources.h"

/* Fills rows of `contents` whose numbers A does not hold, or by name alone, where the other side's numbers are near: as
 * by relation, with `found` 0. `failed`: set when out of memory. Returns how many parameters it found. */
uint32_t lb_near_sources_find(const lb_step_sources *a, const lb_step_sources *b, lb_contents *contents, bool *failed);

#endif
