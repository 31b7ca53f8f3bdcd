/* Room in a range of bytes: pieces of any size, taken and given back in any order (see ring_space.h for those that go
 * in the order in which they came). The first gap behind the piece that was taken last is taken, then the first of all.
 *
 * It knows offsets only. */
#ifndef LB_FIRST_FIT_H
#define LB_FIRST_FIT_H

#include <stdbool.h>
#include <stdint.h>

#define LB_ROOM_ALIGN 256

typedef struct lb_first_fit_piece {
    uint64_t at, end;
} lb_first_fit_piece;

typedef struct lb_first_fit {
    uint64_t size;
    lb_first_fit_piece *pieces; /* taken, by offset */
    uint32_t n, last;           /* the piece that was taken last */
} lb_first_fit;

void lb_first_fit_init(lb_first_fit *room, uint64_t size);
void lb_first_fit_release(lb_first_fit *room);
/* False when no gap is large enough (or no memory for the book). `bytes` is not 0. */
bool lb_first_fit_take(lb_first_fit *room, uint64_t bytes, uint64_t *at);
void lb_first_fit_give(lb_first_fit *room, uint64_t at);

#endif
