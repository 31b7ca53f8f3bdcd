/* Room in a ring of bytes: taken at its head in pieces that do not wrap, given back in any order, free again from the
 * tail.
 *
 *     0 ........ tail ▓▓▓▓▓░░▓▓▓▓ head ........ size        ▓ taken   ░ given back, but not before what lies behind it
 *
 * It knows offsets only: the bytes may be of a device, pinned, or anything. */
#ifndef LB_RING_SPACE_H
#define LB_RING_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LB_SPACE_ALIGN 256

typedef struct lb_ring_space_piece {
    uint64_t end; /* of it, as head counts */
    bool given;
} lb_ring_space_piece;

typedef struct lb_ring_space {
    uint64_t size, head, tail;   /* head and tail only grow; a place is their remainder by size */
    lb_ring_space_piece *pieces; /* the oldest at `first`, in a ring of `room`, a power of two */
    uint64_t first, next, room;
} lb_ring_space;

void lb_ring_space_init(lb_ring_space *space, uint64_t size);
void lb_ring_space_release(lb_ring_space *space);
/* False when there is no room now (or no memory for the book). `bytes` of 0 take nothing but a name. */
bool lb_ring_space_take(lb_ring_space *space, uint64_t bytes, uint64_t *at, uint64_t *name);
void lb_ring_space_give(lb_ring_space *space, uint64_t name);
/* Whether so many bytes would find room in it when nothing is taken. */
bool lb_ring_space_could_hold(const lb_ring_space *space, uint64_t bytes);

#endif
