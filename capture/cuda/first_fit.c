/* See first_fit.h. */
#include "cuda/first_fit.h"

#include "base/array.h"

void lb_first_fit_init(lb_first_fit *room, uint64_t size)
{
    *room = (lb_first_fit){.size = size / LB_ROOM_ALIGN * LB_ROOM_ALIGN};
}

void lb_first_fit_release(lb_first_fit *room)
{
    free(room->pieces);
    *room = (lb_first_fit){0};
}

static uint64_t begin_of_gap(const lb_first_fit *room, uint32_t before)
{
    return before ? room->pieces[before - 1].end : 0;
}

static uint64_t gap(const lb_first_fit *room, uint32_t before)
{
    return (before < room->n ? room->pieces[before].at : room->size) - begin_of_gap(room, before);
}

/* Before which piece there is a gap of so many bytes; n + 1: before none, nor behind the last. */
static uint32_t find_gap(const lb_first_fit *room, uint64_t bytes)
{
    const uint32_t from = room->n ? room->last + 1 : 0;
    for (uint32_t i = from; i <= room->n; i++)
        if (gap(room, i) >= bytes) return i;
    for (uint32_t i = 0; i < from; i++)
        if (gap(room, i) >= bytes) return i;
    return room->n + 1;
}

bool lb_first_fit_take(lb_first_fit *room, uint64_t bytes, uint64_t *at)
{
    if (bytes > room->size) return false;
    bytes = (bytes + LB_ROOM_ALIGN - 1) / LB_ROOM_ALIGN * LB_ROOM_ALIGN;
    const uint32_t before = find_gap(room, bytes);
    lb_first_fit_piece *pieces = before <= room->n ? lb_array_grow(room->pieces, room->n, sizeof *pieces) : NULL;
    if (!pieces) return false;
    room->pieces = pieces;
    *at = begin_of_gap(room, before);
    memmove(pieces + before + 1, pieces + before, (room->n - before) * sizeof *pieces);
    pieces[before] = (lb_first_fit_piece){*at, *at + bytes};
    room->last = before;
    room->n++;
    return true;
}

void lb_first_fit_give(lb_first_fit *room, uint64_t at)
{
    const uint32_t from = (uint32_t)lb_array_first(room->pieces, room->n, sizeof room->pieces[0], &at, lb_by_u64);
    if (from == room->n || room->pieces[from].at != at) return;
    room->n--;
    memmove(room->pieces + from, room->pieces + from + 1, (room->n - from) * sizeof room->pieces[0]);
    if (room->last && room->last >= from) room->last--;
}
