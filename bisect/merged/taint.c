/* Taints: see taint.h.
 * A step touches tens of thousands of storages and a walk asks for several per op: a table with
 * linear probing keeps an answer to one or two cache lines. Nothing is ever removed, so that no
 * slot needs a tombstone. */
#include "taint.h"

#include <stdlib.h>

lb_status lb_taints_init(lb_taints *t, lb_err *err)
{
    t->mask = 1023, t->count = 0;
    t->slots = calloc((size_t)t->mask + 1, sizeof *t->slots);
    return t->slots ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

void lb_taints_release(lb_taints *t)
{
    free(t->slots);
    t->slots = NULL;
}

static lb_taint *find_slot(const lb_taints *t, int64_t storage)
{
    /* Fibonacci hashing (Knuth): storages are numbered in order, and the multiplication spreads
     * neighbours over the table; the upper bits of the product are the well-mixed ones. */
    uint32_t i = (uint32_t)((uint64_t)storage * UINT64_C(0x9E3779B97F4A7C15) >> 33) & t->mask;
    while (t->slots[i].used && t->slots[i].storage != storage) i = (i + 1) & t->mask;
    return &t->slots[i];
}

lb_taint *lb_taint_of(lb_taints *t, int64_t storage)
{
    lb_taint *slot = find_slot(t, storage);
    if (slot->used) return slot;
    /* Half full at most, for linear probing slows down sharply above. If memory ends, a crowded
     * table is still right, and a step that is nearly done is worth more than an error; only a full
     * one would search forever. */
    if (2 * (t->count + 1) > t->mask) {
        lb_taints larger = {calloc(2 * ((size_t)t->mask + 1), sizeof *larger.slots), 2 * t->mask + 1, t->count};
        LB_CHECK(larger.slots || t->count < t->mask);
        if (larger.slots) {
            for (uint32_t i = 0; i <= t->mask; i++)
                if (t->slots[i].used) *find_slot(&larger, t->slots[i].storage) = t->slots[i];
            free(t->slots);
            *t = larger;
            slot = find_slot(t, storage);
        }
    }
    *slot = LB_TAINT_CLEAN(storage);
    t->count++;
    return slot;
}
