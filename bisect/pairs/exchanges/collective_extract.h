/* The collectives and messages of a rank's step as a program of their own, with nothing else in it: what meets, and
 * with which bytes, is told from it alone, so that no worker holds a thousand programs to ask about one call.
 *
 * The capture gives the bytes of its values as it gives those of the whole program. */
#ifndef LB_BISECT_COLLECTIVE_EXTRACT_H
#define LB_BISECT_COLLECTIVE_EXTRACT_H

#include <lastbit/program.h>

typedef struct lb_collective_extract {
    lb_program *program;
    uint32_t *numbers; /* per op: its row in the whole program */
} lb_collective_extract;

/* LB_ERR_NOMEM is the only failure. */
lb_status lb_collective_extract_make(const lb_program *whole, lb_collective_extract *extract, lb_err *err);
void lb_collective_extract_release(lb_collective_extract *extract);

#endif
