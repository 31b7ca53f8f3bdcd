/* Decisions that the unchanged replay computed: see decisions.h. */
#include "trials/decisions.h"

#include "kernel/value_memory.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

typedef struct lb_kept_decision {
    int64_t step;
    int32_t rank;
    uint32_t value;
    void *bytes;
} lb_kept_decision;

static int compare(const void *x, const void *y)
{
    const lb_kept_decision *a = x, *b = y;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return a->value == b->value ? 0 : a->value < b->value ? -1 : 1;
}

void lb_decisions_keep(lb_decisions *decisions, int32_t rank, int64_t step, uint32_t value, const lb_tensor *contents)
{
    const size_t size = lb_dtype_bytes(contents->dtype, (size_t)lb_layout_numel(&contents->layout));
    if (decisions->bytes + size > LB_DECISIONS_BYTES) return;
    lb_kept_decision *more = lb_array_grow(decisions->list, decisions->n, sizeof *more);
    if (more) decisions->list = more;
    void *bytes = more ? malloc(size + 1) : NULL;
    if (!bytes) return;
    lb_tensor copy = {bytes, contents->dtype, lb_layout_contiguous(contents->layout.ndim, contents->layout.shape)};
    lb_memory_tensor_copy(&copy, contents, NULL);
    decisions->list[decisions->n++] = (lb_kept_decision){step, rank, value, bytes};
    decisions->bytes += size, decisions->sorted = false;
}

bool lb_decisions_find(lb_decisions *decisions, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    const lb_kept_decision key = {step, rank, value, NULL};
    if (!decisions->n) return false;
    if (!decisions->sorted) qsort(decisions->list, decisions->n, sizeof *decisions->list, compare);
    decisions->sorted = true;
    const lb_kept_decision *found = bsearch(&key, decisions->list, decisions->n, sizeof key, compare);
    if (found) tensor->data = found->bytes;
    return found != NULL;
}

void lb_decisions_release(lb_decisions *decisions)
{
    for (uint32_t i = 0; i < decisions->n; i++) free(decisions->list[i].bytes);
    free(decisions->list);
    *decisions = (lb_decisions){0};
}
