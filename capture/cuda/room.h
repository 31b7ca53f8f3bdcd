/* Room in a range of bytes: pieces of any size, taken and given back in any order (see space.h for those that go in the order in which
 * they came). The first gap behind the piece that was taken last is taken, then the first of all.
 *
 * It knows offsets only. */
#ifndef LB_ROOM_H
#define LB_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#define LB_ROOM_ALIGN 256

typedef struct lb_room_piece {
    uint64_t at, end;
} lb_room_piece;

typedef struct lb_room {
    uint64_t size;
    lb_room_piece *pieces; /* taken, by offset */
    uint32_t n, last;      /* the piece that was taken last */
} lb_room;

void lb_room_init(lb_room *room, uint64_t size);
void lb_room_release(lb_room *room);
/* False when no gap is large enough (or no memory for the book). `bytes` is not 0. */
bool lb_room_take(lb_room *room, uint64_t bytes, uint64_t *at);
void lb_room_give(lb_room *room, uint64_t at);

#endif
