/* Taints: see taint.h. A step touches tens of thousands of storages, and a walk asks for several per op. */
#include "merged/taint.h"

#include "base/array.h"
#include "base/hash.h"
#include <lastbit/program.h>

void lb_taints_release(lb_taints *taints)
{
    free(taints->rows);
    lb_hash_release(&taints->by_storage);
    *taints = (lb_taints){0};
}

lb_taint *lb_taint_of(lb_taints *taints, int64_t storage)
{
    const uint32_t n = taints->by_storage.n;
    LB_HASH_EACH(row, &taints->by_storage, (uint64_t)storage)
    if (taints->rows[row].storage == storage) return &taints->rows[row];
    lb_taint *rows = lb_array_grow(taints->rows, n, sizeof *rows);
    if (rows) taints->rows = rows;
    const bool added = rows && lb_hash_add(&taints->by_storage, (uint64_t)storage, n);
    taints->failed |= !added;
    lb_taint *taint = added ? &rows[n] : &taints->spare;
    *taint = LB_TAINT_CLEAN(storage);
    return taint;
}
