/* The numbers that stochastic rounding draws: Philox4x32-10 in blocks (Salmon, Moraes, Dror, Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3", SC'11; constants and known answers from their Random123).
 *
 * Element i of a cast draws word (counter + i) % 4 of block (counter + i) / 4, whatever array or thread it is rounded
 * in.
 */
#ifndef LB_PHILOX_H
#define LB_PHILOX_H

#include <lastbit/dtype.h>

#define LB_PHILOX_DRAWN 508 /* numbers that one draw serves */

typedef struct random_source {
    const lb_cast *cast;
    uint32_t words[LB_PHILOX_DRAWN + 4];
} random_source;

/* The words of elements [at, at + n), n <= PHILOX_DRAWN; NULL when the cast draws none. */
const uint32_t *random_draw(random_source *source, size_t at, size_t n);

#endif
