/* Which of several parts of a tensor are the whole, and in which order: some ranks may hold what others do. */
#ifndef LB_SHARD_COVER_H
#define LB_SHARD_COVER_H

#include <lastbit/program.h>

/* Of `n` values those that make a whole of this shape along one dimension, each with one range of it: sets order[0 …]
 * to their places in `values` and returns how many; 0 where they make none, or one of them says nothing. The first of
 * equal parts counts. */
uint32_t lb_shard_cover(const lb_program *program, const lb_layout *whole, const uint32_t *values, uint32_t n,
                        uint32_t *order);
/* Are two values equal parts of one tensor: the same ranges of a whole of one shape, and terms of no sum? */
bool lb_shard_is_copy(const lb_program *p, uint32_t a, const lb_program *q, uint32_t b);

#endif
