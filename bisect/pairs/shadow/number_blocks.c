/* Numbers in blocks: see number_blocks.h. */
#include "shadow/number_blocks.h"

#include "shadow/shadow_numbers.h"

#include <stdlib.h>

static bool lies_in_order(const lb_tensor *t)
{
    int64_t step = 1;
    for (int d = t->layout.ndim - 1; d >= 0; d--) {
        if (t->layout.shape[d] > 1 && t->layout.stride[d] != step) return false;
        step *= t->layout.shape[d];
    }
    return lb_dtype_bits(t->dtype) % 8 == 0;
}

bool lb_number_blocks_open(const lb_tensor *t, lb_number_blocks *b)
{
    *b = (lb_number_blocks){.n = lb_layout_numel(&t->layout), .dtype = t->dtype};
    if (!lies_in_order(t)) {
        b->copy = lb_shadow_numbers_copy(t);
        b->numbers = b->copy;
        return b->copy != NULL;
    }
    b->bytes = t->data;
    if (t->dtype == LB_F64 && (uintptr_t)b->bytes % sizeof(double) == 0) b->numbers = (const double *)b->bytes;
    return true;
}

void lb_number_blocks_close(lb_number_blocks *b)
{
    free(b->copy);
    *b = (lb_number_blocks){0};
}

int64_t lb_number_blocks_count(const lb_number_blocks *b, int64_t from)
{
    return b->n - from < LB_NUMBER_BLOCK ? b->n - from : LB_NUMBER_BLOCK;
}

const double *lb_number_blocks_at(const lb_number_blocks *b, int64_t from, int64_t n, double *room)
{
    if (b->numbers) return b->numbers + from;
    lb_load_f64_strided(room, b->dtype, b->bytes + from * (int64_t)(lb_dtype_bits(b->dtype) / 8), 1, (size_t)n);
    return room;
}

double *lb_number_blocks_in_place(const lb_tensor *t)
{
    return t->dtype == LB_F64 && lies_in_order(t) ? (double *)t->data : NULL;
}
