/* The source of one step that is a source of another: what a swap by "step:N" takes. Named ones are the same by name,
 * nameless ones by their place among those that look alike. */
#ifndef LB_REPLAY_SOURCE_TWIN_H
#define LB_REPLAY_SOURCE_TWIN_H

#include <lastbit/program.h>

/* Have two values the same name, dtype and shape? */
bool lb_source_alike(const lb_program *pa, const lb_value *a, const lb_program *pb, const lb_value *b);
/* Of a source that gives `value`: the op of `other` that is its twin; LB_NONE when there is none. */
uint32_t lb_source_twin(const lb_program *program, uint32_t value, const lb_program *other);

#endif
