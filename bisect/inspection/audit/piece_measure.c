/* See piece_measure.h. A contiguous tensor is cut where the statistics begin a piece anew, which is where a leaf of the
 * digest begins, too: so each part is read once for both, and parts are joined in their order. */
#include "audit/piece_measure.h"

#include <math.h>
#include <stdlib.h>

enum { LARGE = 4 << 20 };

/* Row-major index of the first element from `from` on that is no finite number; only asked where the statistics say
 * there is one. */
static int64_t first_nonfinite(const lb_tensor *tensor, int64_t from)
{
    const int64_t n = lb_layout_numel(&tensor->layout);
    const int64_t width = (int64_t)lb_dtype_bits(tensor->dtype) / 8;
    int64_t at = 0;
    if (lb_layout_is_contiguous(&tensor->layout)) {
        for (at = from; at < n; at++)
            if (!isfinite(lb_to_f64(tensor->dtype, (const char *)tensor->data + at * width))) return at;
        return -1;
    }
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r);)
        for (int64_t i = 0; i < r.count; i++, at++)
            if (!isfinite(lb_to_f64(tensor->dtype, (const char *)tensor->data + (r.offset + i * r.stride) * width)))
                return at;
    return -1;
}

static bool has_elements(const lb_tensor *tensor)
{
    return lb_dtype_bits(tensor->dtype) >= 8 && !lb_dtype_is_complex(tensor->dtype);
}

bool lb_piece_is_large(const lb_tensor *tensor)
{
    const int64_t n = lb_layout_numel(&tensor->layout);
    return has_elements(tensor) && lb_layout_is_contiguous(&tensor->layout) && n > 0 &&
           lb_dtype_bytes(tensor->dtype, (size_t)n) >= LARGE;
}

/* In one go. */
static lb_piece_measured measure_whole(const lb_tensor *tensor)
{
    lb_piece_measured measured = {lb_statistics_of(tensor), lb_digest_tensor(tensor), -1};
    if (lb_statistics_nonfinite(&measured.statistics))
        measured.first_bad = has_elements(tensor) ? first_nonfinite(tensor, 0) : 0;
    return measured;
}

static void measure_part(const lb_tensor *tensor, size_t i, size_t elements, lb_statistics_state *state,
                         uint64_t *leaves)
{
    const size_t width = lb_dtype_bits(tensor->dtype) / 8, first = i * LB_STATISTICS_PIECE;
    const size_t count = elements - first < LB_STATISTICS_PIECE ? elements - first : LB_STATISTICS_PIECE;
    const char *bytes = (const char *)tensor->data + first * width;
    lb_statistics_begin(state);
    lb_statistics_add(state, tensor->dtype, bytes, count);
    for (size_t at = 0, leaf = first * width / LB_DIGEST_LEAF; at < count * width; at += LB_DIGEST_LEAF, leaf++) {
        const size_t left = count * width - at;
        leaves[leaf] = lb_digest_leaf(bytes + at, left < LB_DIGEST_LEAF ? left : LB_DIGEST_LEAF, leaf);
    }
}

static int64_t bad_in(const lb_statistics_state *state)
{
    return state->nan + state->pos_inf + state->neg_inf;
}

lb_piece_measured lb_piece_measure(const lb_tensor *tensor)
{
    if (!lb_piece_is_large(tensor)) return measure_whole(tensor);
    const size_t elements = (size_t)lb_layout_numel(&tensor->layout), bytes = lb_dtype_bytes(tensor->dtype, elements);
    const size_t parts = (elements + LB_STATISTICS_PIECE - 1) / LB_STATISTICS_PIECE;
    const size_t n_leaves = (bytes + LB_DIGEST_LEAF - 1) / LB_DIGEST_LEAF;
    lb_statistics_state *states = (lb_statistics_state *)malloc(parts * sizeof *states);
    uint64_t *leaves = (uint64_t *)malloc(n_leaves * sizeof *leaves);
    lb_piece_measured measured = {.first_bad = -1};
    if (states && leaves) {
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < parts; i++) measure_part(tensor, i, elements, &states[i], leaves);
        for (size_t i = 0; i < parts && measured.first_bad < 0; i++)
            if (bad_in(&states[i])) measured.first_bad = first_nonfinite(tensor, (int64_t)i * LB_STATISTICS_PIECE);
        for (size_t i = 1; i < parts; i++) lb_statistics_join(&states[0], &states[i]);
        measured.statistics = lb_statistics_end(&states[0]);
        measured.digest = lb_digest_of_leaves(leaves, n_leaves, tensor);
    } else {
        measured = measure_whole(tensor);
    }
    free(states);
    free(leaves);
    return measured;
}
