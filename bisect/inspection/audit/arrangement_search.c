/* Where the numbers of B's tensors stand in A: exactly (bisect/pairs/contents), and where that fails by signs, which a
 * rounding leaves. See arrangement.h. */
#include "audit/arrangement.h"

#include <lastbit/program.h>

#include <math.h>
#include <stdlib.h>

/* Those of a shelf that are still open, as contents takes them; `rows`: of the shelf. NULL when out of memory. */
static lb_content_tensor *open_tensors(lb_shelf *shelf, const lb_arrangement *known, uint32_t **rows, uint32_t *n,
                                       lb_err *err)
{
    lb_content_tensor *tensors = calloc(shelf->n + 1u, sizeof *tensors);
    *rows = calloc(shelf->n + 1u, sizeof **rows);
    *n = 0;
    for (uint32_t i = 0; tensors && *rows && i < shelf->n; i++) {
        if (!(known ? lb_shelf_is_pending(shelf, i) && known[i].relation == LB_CONTENT_NONE
                    : lb_shelf_has_rest(shelf, i)))
            continue;
        if (lb_shelf_open(shelf, i, err) != LB_OK) continue; /* its parts do not fit: told where it stands alone */
        tensors[*n] = (lb_content_tensor){shelf->side->names[shelf->list[i].row], shelf->list[i].whole.tensor};
        (*rows)[(*n)++] = i;
    }
    if (tensors && *rows) return tensors;
    free(tensors), free(*rows), *rows = NULL;
    lb_fail(err, LB_ERR_NOMEM, "out of memory");
    return NULL;
}

/* Is it one number all over, and was it neither its use nor its name that told where it stands? */
static bool is_guessed(const lb_arrangements *arrangements, const lb_content *content, uint32_t b)
{
    const lb_inventory *inventory = arrangements->b.side->inventory;
    const lb_inventory_name *name = &inventory->names[arrangements->b.list[b].row];
    return !content->by_use && content->relation != LB_CONTENT_SAME && content->all > 1 &&
           lb_inventory_is_constant(&inventory->measured[name->first]);
}

/* B's tensors in A's. */
/* `equal`: these are numbers, not signs. `guess`: takes what holds one number all over as it was found. */
static bool take_forward(lb_arrangements *arrangements, const lb_contents *found, const uint32_t *rows_a,
                         const uint32_t *rows_b, bool equal, bool guess)
{
    bool room = true;
    for (uint32_t i = 0; i < found->n; i++) {
        const lb_content *content = &found->list[i];
        lb_arrangement *arrangement = &arrangements->list[rows_b[i]];
        if (content->relation == LB_CONTENT_NONE || content->relation == LB_CONTENT_NAMED ||
            (!guess && is_guessed(arrangements, content, rows_b[i])))
            continue;
        arrangement->relation = content->relation, arrangement->equal = equal && !content->cast;
        for (uint32_t k = 0; k < content->n && room; k++) {
            lb_content_run run = found->runs[content->first + k];
            run.tensor = rows_a[run.tensor];
            room = lb_arrangement_add(arrangement, run);
        }
    }
    return room;
}

static int by_place(const void *a, const void *b)
{
    const lb_content_run *x = a, *y = b;
    return (x->to > y->to) - (x->to < y->to);
}

/* A's tensors in B's: each tensor of B that they make up whole. */
static bool take_backward(lb_arrangements *arrangements, const lb_contents *found, const uint32_t *rows_b,
                          const uint32_t *rows_a)
{
    bool room = true;
    for (uint32_t i = 0; i < found->n; i++) {
        const lb_content *content = &found->list[i];
        if (content->relation == LB_CONTENT_NONE || content->relation == LB_CONTENT_NAMED) continue;
        for (uint32_t k = 0; k < content->n && room; k++) {
            const lb_content_run run = found->runs[content->first + k];
            room = lb_arrangement_add(
                &arrangements->list[rows_b[run.tensor]],
                (lb_content_run){rows_a[i], run.to, run.to_stride, run.from, run.from_stride, run.n});
        }
    }
    for (uint32_t i = 0; i < arrangements->b.n && room; i++) {
        lb_arrangement *arrangement = &arrangements->list[i];
        const lb_layout layout = lb_shelf_layout(&arrangements->b, i);
        int64_t held = 0;
        bool several = false;
        if (arrangement->relation != LB_CONTENT_NONE || !arrangement->n) continue;
        qsort(arrangement->runs, arrangement->n, sizeof *arrangement->runs, by_place);
        for (uint32_t k = 0; k < arrangement->n; k++)
            held += arrangement->runs[k].n, several |= arrangement->runs[k].tensor != arrangement->runs[0].tensor;
        if (held != lb_layout_numel(&layout)) {
            arrangement->n = 0;
            continue;
        }
        const bool turned = (arrangement->runs[0].from_stride == 1) != (arrangement->runs[0].to_stride == 1);
        const lb_layout whole = lb_shelf_layout(&arrangements->a, arrangement->runs[0].tensor);
        arrangement->relation = several                          ? LB_CONTENT_FUSED
                                : lb_layout_numel(&whole) > held ? LB_CONTENT_SPLIT
                                : turned                         ? LB_CONTENT_TRANSPOSED
                                                                 : LB_CONTENT_RENAMED;
    }
    return room;
}

lb_status lb_arrangement_search_contents(lb_arrangements *arrangements, bool backward, lb_err *err)
{
    uint32_t *rows_a = NULL, *rows_b = NULL, n_a, n_b;
    lb_contents found = {0};
    lb_content_tensor *tensor = open_tensors(&arrangements->a, NULL, &rows_a, &n_a, err);
    lb_content_tensor *b = tensor ? open_tensors(&arrangements->b, arrangements->list, &rows_b, &n_b, err) : NULL;
    lb_status status = tensor && b ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK && n_a && n_b)
        status = backward ? lb_contents_match(b, n_b, tensor, n_a, &found, err)
                          : lb_contents_match(tensor, n_a, b, n_b, &found, err);
    const bool room = status != LB_OK || (backward ? take_backward(arrangements, &found, rows_b, rows_a)
                                                   : take_forward(arrangements, &found, rows_a, rows_b, true, false));
    lb_contents_release(&found);
    free(tensor), free(b), free(rows_a), free(rows_b);
    return room ? status : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

/* Of a list of tensors and its rows those that hold one number all over. */
static uint32_t keep_constants(const lb_shelf *shelf, lb_content_tensor *list, uint32_t *rows, uint32_t n)
{
    const lb_inventory *inventory = shelf->side->inventory;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (lb_inventory_is_constant(&inventory->measured[inventory->names[shelf->list[rows[i]].row].first]))
            rows[kept] = rows[i], list[kept++] = list[i];
    return kept;
}

lb_status lb_arrangement_search_constants(lb_arrangements *arrangements, lb_err *err)
{
    uint32_t *rows_a = NULL, *rows_b = NULL, n_a = 0, n_b = 0;
    lb_contents found = {0};
    lb_content_tensor *a = open_tensors(&arrangements->a, NULL, &rows_a, &n_a, err);
    lb_content_tensor *b = a ? open_tensors(&arrangements->b, arrangements->list, &rows_b, &n_b, err) : NULL;
    lb_status status = a && b ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK) {
        n_b = keep_constants(&arrangements->b, b, rows_b, n_b);
        n_a = n_b ? keep_constants(&arrangements->a, a, rows_a, n_a) : 0;
    }
    if (status == LB_OK && n_a && n_b) status = lb_contents_match(a, n_a, b, n_b, &found, err);
    const bool room = status != LB_OK || take_forward(arrangements, &found, rows_a, rows_b, true, true);
    lb_contents_release(&found);
    free(a), free(b), free(rows_a), free(rows_b);
    return room ? status : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

/* ---- numbers that are near, not equal ---------------------------------------------------------------------------- */

/* A number up to half of f16's least one is 0 there: its sign is lost on that side, and must not count on the other. */
#define LOST_IN_F16 0x1p-25

/* Signs survive a rounding, and mostly a step of training. Of a matrix with both signs in each row they tell rows
 * apart. */
enum { FEWEST_SIGNS = 32, FEWEST_ROWS = 4 };

static int8_t *signs_of(const lb_tensor *tensor)
{
    const int64_t n = lb_layout_numel(&tensor->layout);
    int8_t *signs = malloc((size_t)n + 1);
    double x[256];
    int64_t at = 0, negative = 0;
    for (lb_rows r = lb_rows_of(&tensor->layout); signs && lb_rows_next(&r);)
        for (int64_t i = 0; i < r.count; i += 256) {
            const int64_t m = r.count - i < 256 ? r.count - i : 256;
            lb_load_f64_strided(x, tensor->dtype,
                                (const char *)tensor->data +
                                    (r.offset + i * r.stride) * (int64_t)(lb_dtype_bits(tensor->dtype) / 8),
                                (ptrdiff_t)r.stride, (size_t)m);
            for (int64_t k = 0; k < m; k++)
                signs[at++] = (int8_t)((x[k] > LOST_IN_F16) - (x[k] < -LOST_IN_F16)), negative += x[k] < 0;
        }
    if (signs && (negative * 10 < n || negative * 10 > n * 9)) free(signs), signs = NULL; /* they say too little */
    return signs;
}

/* Along one dimension there are enough to tell a row, along the other enough rows. */
static bool has_signs(int64_t columns, int64_t rows)
{
    return (columns >= FEWEST_SIGNS && rows >= FEWEST_ROWS) || (rows >= FEWEST_SIGNS && columns >= FEWEST_ROWS);
}

static uint32_t keep_signs(lb_content_tensor *list, uint32_t *rows, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        lb_content_tensor tensor = list[i];
        const lb_layout *layout = &tensor.tensor.layout;
        if (layout->ndim < 2 || !has_signs(layout->shape[layout->ndim - 1], layout->shape[layout->ndim - 2]) ||
            !lb_dtype_is_float(tensor.tensor.dtype) || lb_dtype_bits(tensor.tensor.dtype) < 8 ||
            !(tensor.tensor.data = signs_of(&list[i].tensor)))
            continue;
        tensor.tensor.dtype = LB_I8, tensor.tensor.layout = lb_layout_contiguous(layout->ndim, layout->shape);
        rows[kept] = rows[i], list[kept++] = tensor;
    }
    return kept;
}

/* What has A's signs; the numbers are compared afterwards. */
lb_status lb_arrangement_search_signs(lb_arrangements *arrangements, lb_err *err)
{
    uint32_t *rows_a = NULL, *rows_b = NULL, n_a = 0, n_b = 0;
    lb_contents found = {0};
    lb_content_tensor *tensor = open_tensors(&arrangements->a, NULL, &rows_a, &n_a, err);
    lb_content_tensor *b = tensor ? open_tensors(&arrangements->b, arrangements->list, &rows_b, &n_b, err) : NULL;
    lb_status status = tensor && b ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK) {
        n_b = keep_signs(b, rows_b, n_b);
        n_a = n_b ? keep_signs(tensor, rows_a, n_a) : 0;
    }
    if (status == LB_OK && n_a && n_b) status = lb_contents_match(tensor, n_a, b, n_b, &found, err);
    const bool room = status != LB_OK || take_forward(arrangements, &found, rows_a, rows_b, false, true);
    for (uint32_t i = 0; tensor && i < n_a; i++) free(tensor[i].tensor.data);
    for (uint32_t i = 0; b && i < n_b; i++) free(b[i].tensor.data);
    lb_contents_release(&found);
    free(tensor), free(b), free(rows_a), free(rows_b);
    return room ? status : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

/* Vectors (norms, biases) whose signs are all alike: each of B's with the one of A's that is nearest by far. */
enum { MOST_VECTORS = 4096 };

static double distance_of(const float *x, const float *y, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)y[i];
        difference += d * d, size += (double)y[i] * (double)y[i];
    }
    return size > 0 ? sqrt(difference / size) : INFINITY;
}

/* The open vectors of a shelf with their numbers; rows without numbers are passed over. */
typedef struct vectors {
    uint32_t rows[MOST_VECTORS];
    float *numbers[MOST_VECTORS];
    uint32_t n;
} vectors;

static void vectors_free(vectors *vectors)
{
    for (uint32_t i = 0; vectors && i < vectors->n; i++) free(vectors->numbers[i]);
    free(vectors);
}

static vectors *open_vectors(lb_shelf *shelf, const lb_arrangement *known, lb_err *err)
{
    vectors *vectors = calloc(1, sizeof *vectors);
    for (uint32_t i = 0; vectors && i < shelf->n && vectors->n < MOST_VECTORS; i++) {
        const lb_layout layout = lb_shelf_layout(shelf, i);
        if (!lb_shelf_is_pending(shelf, i) || (known && known[i].relation != LB_CONTENT_NONE) || layout.ndim != 1 ||
            layout.shape[0] < FEWEST_SIGNS || !lb_dtype_is_float(lb_shelf_piece(shelf, i)->tensor.dtype) ||
            lb_shelf_open(shelf, i, NULL) != LB_OK)
            continue;
        vectors->rows[vectors->n] = i;
        if (!(vectors->numbers[vectors->n] = lb_whole_numbers(&shelf->list[i].whole, err))) {
            vectors_free(vectors);
            return NULL;
        }
        vectors->n++;
    }
    return vectors;
}

lb_status lb_arrangement_search_vectors(lb_arrangements *arrangements, lb_err *err)
{
    vectors *vectors = open_vectors(&arrangements->a, NULL, err),
            *b = vectors ? open_vectors(&arrangements->b, arrangements->list, err) : NULL;
    lb_status status = vectors && b ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t k = 0; status == LB_OK && k < b->n; k++) {
        const lb_layout layout = lb_shelf_layout(&arrangements->b, b->rows[k]);
        double best = INFINITY, second = INFINITY;
        uint32_t nearest = 0;
        for (uint32_t i = 0; i < vectors->n; i++) {
            const lb_layout own = lb_shelf_layout(&arrangements->a, vectors->rows[i]);
            const double d = own.shape[0] == layout.shape[0]
                                 ? distance_of(vectors->numbers[i], b->numbers[k], layout.shape[0])
                                 : INFINITY;
            if (d < best)
                second = best, best = d, nearest = vectors->rows[i];
            else if (d < second)
                second = d;
        }
        if (!(best < 0.02 && second > 4 * best)) continue;
        arrangements->list[b->rows[k]].relation = LB_CONTENT_RENAMED;
        if (!lb_arrangement_add(&arrangements->list[b->rows[k]],
                                (lb_content_run){nearest, 0, 1, 0, 1, layout.shape[0]}))
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    vectors_free(vectors), vectors_free(b);
    return status;
}
