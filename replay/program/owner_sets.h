/* Sets of small numbers, each kept once: a set is a row, rows are equal when the sets are. Row 0 is the empty set. */
#ifndef LB_REPLAY_OWNER_SETS_H
#define LB_REPLAY_OWNER_SETS_H

#include "base/hash.h"
#include <lastbit/error.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct lb_owner_sets {
    uint64_t *words; /* `width` of them per row */
    uint32_t *counts;
    uint32_t n, width;
    lb_hash by_words;
    bool failed; /* out of memory; rows given since are wrong */
} lb_owner_sets;

/* For numbers below `universe`. */
lb_status lb_owner_sets_init(lb_owner_sets *sets, uint32_t universe, lb_err *err);
void lb_owner_sets_release(lb_owner_sets *sets);
uint32_t lb_owner_set_of(lb_owner_sets *sets, uint32_t number);
uint32_t lb_owner_set_join(lb_owner_sets *sets, uint32_t a, uint32_t b);
static inline uint32_t lb_owner_set_count(const lb_owner_sets *sets, uint32_t row)
{
    return sets->counts[row];
}
/* The smallest number in the set from `from` on; UINT32_MAX when there is none. */
uint32_t lb_owner_set_next(const lb_owner_sets *sets, uint32_t row, uint32_t from);

#endif
