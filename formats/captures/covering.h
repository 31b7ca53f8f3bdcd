/* Which kept value contains the bytes of another.
 *
 * Views of kept bytes are not stored again: the bytes of a slice are found in a value of the same (storage, version)
 * whose dense range contains its own. The index of a program is made once, on first use. */
#ifndef LB_COVERING_H
#define LB_COVERING_H

#include <lastbit/program.h>

typedef struct lb_covering lb_covering; /* thread-safe */

lb_covering *lb_covering_new(void); /* NULL when out of memory */
void lb_covering_free(lb_covering *covering);
/* The row of a kept value that contains `value`, or LB_NONE. `lasting`: the program lives as long as `covering`, so
 * that its index may be kept. *offset: bytes from the start of that value's blob to the first byte of this one's dense
 * range. */
uint32_t lb_covering_find(lb_covering *covering, const lb_program *program, bool lasting, uint32_t value,
                          size_t *offset);

/* The program goes, and its index with it. */
void lb_covering_drop(lb_covering *covering, const lb_program *program);

#endif
