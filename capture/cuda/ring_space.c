/* See ring_space.h. */
#include "cuda/ring_space.h"

#include <stdlib.h>

void lb_ring_space_init(lb_ring_space *space, uint64_t size)
{
    *space = (lb_ring_space){.size = size / LB_SPACE_ALIGN * LB_SPACE_ALIGN};
}

void lb_ring_space_release(lb_ring_space *space)
{
    free(space->pieces);
    *space = (lb_ring_space){0};
}

bool lb_ring_space_could_hold(const lb_ring_space *space, uint64_t bytes)
{
    return bytes <= space->size;
}

static bool grow(lb_ring_space *space)
{
    const uint64_t room = space->room ? 2 * space->room : 64;
    lb_ring_space_piece *pieces = malloc(room * sizeof *pieces);
    if (!pieces) return false;
    for (uint64_t i = space->first; i < space->next; i++) pieces[i & (room - 1)] = space->pieces[i & (space->room - 1)];
    free(space->pieces);
    space->pieces = pieces;
    space->room = room;
    return true;
}

bool lb_ring_space_take(lb_ring_space *space, uint64_t bytes, uint64_t *at, uint64_t *name)
{
    if (bytes > space->size) return false;
    if (space->next - space->first == space->room && !grow(space)) return false;
    if (space->first == space->next) space->head = space->tail = 0; /* nothing is taken: all of it lies in one piece */
    const uint64_t whole = (bytes + LB_SPACE_ALIGN - 1) / LB_SPACE_ALIGN * LB_SPACE_ALIGN;
    const uint64_t place = space->size ? space->head % space->size : 0, to_end = space->size - place;
    const uint64_t unused = whole > to_end ? to_end : 0; /* of a piece that would wrap */
    if (space->head + unused + whole - space->tail > space->size) return false;
    *at = unused ? 0 : place;
    *name = space->next;
    space->head += unused + whole;
    space->pieces[space->next++ & (space->room - 1)] = (lb_ring_space_piece){space->head, false};
    return true;
}

void lb_ring_space_give(lb_ring_space *space, uint64_t name)
{
    space->pieces[name & (space->room - 1)].given = true;
    while (space->first < space->next && space->pieces[space->first & (space->room - 1)].given)
        space->tail = space->pieces[space->first++ & (space->room - 1)].end;
}
