/* Taints: see taint.h. A step touches tens of thousands of storages, and a walk asks for several per op. */
#include "merged/taint.h"

#include "base/array.h"
#include "base/hash.h"
#include <lastbit/program.h>

void lb_taints_release(lb_taints *t)
{
    free(t->rows);
    lb_hash_release(&t->by_storage);
    *t = (lb_taints){0};
}

lb_taint *lb_taint_of(lb_taints *t, int64_t storage)
{
    const uint32_t n = t->by_storage.n;
    LB_HASH_EACH(row, &t->by_storage, (uint64_t)storage)
    if (t->rows[row].storage == storage) return &t->rows[row];
    lb_taint *rows = lb_array_grow(t->rows, n, sizeof *rows);
    if (rows) t->rows = rows;
    const bool added = rows && lb_hash_add(&t->by_storage, (uint64_t)storage, n);
    t->failed |= !added;
    lb_taint *taint = added ? &rows[n] : &t->spare;
    *taint = LB_TAINT_CLEAN(storage);
    return taint;
}
