/* Matching by numbers: see contents.h. */
#include "contents.h"

#include <lastbit/array.h>
#include <lastbit/hash.h>
#include <lastbit/program.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *lb_content_relation_name(lb_content_relation relation)
{
    static const char *const names[] = {"none",     "same",  "renamed", "reshaped", "transposed",
                                        "permuted", "fused", "split",   "padded",   "named"};
    return names[relation];
}

/* ---- vectors ---- */

/* The ways a tensor is cut into vectors. */
typedef enum cut { WHOLE, ROWS, FLAT_ROWS, COLUMNS, CUTS } cut;

typedef struct vector {
    uint32_t tensor;
    uint8_t cut;
    int64_t start, stride, n; /* elements, row-major */
} vector;

typedef struct vectors {
    int64_t count, n; /* how many, and numbers of each */
} vectors;

static vectors vectors_of(const lb_layout *layout, cut how)
{
    const int32_t d = layout->ndim;
    const int64_t all = lb_layout_numel(layout);
    if (all <= 0) return (vectors){0, 0};
    switch (how) {
    case WHOLE: return (vectors){1, all};
    case ROWS: return d >= 2 ? (vectors){all / layout->shape[d - 1], layout->shape[d - 1]} : (vectors){0, 0};
    case FLAT_ROWS: return d >= 3 ? (vectors){layout->shape[0], all / layout->shape[0]} : (vectors){0, 0};
    case COLUMNS: return d >= 2 ? (vectors){all / layout->shape[d - 2], layout->shape[d - 2]} : (vectors){0, 0};
    case CUTS: break;
    }
    return (vectors){0, 0};
}

static vector vector_at(uint32_t tensor, const lb_layout *layout, cut how, int64_t i)
{
    const vectors all = vectors_of(layout, how);
    vector v = {tensor, (uint8_t)how, i * all.n, 1, all.n};
    if (how != COLUMNS) return v;
    const int64_t width = layout->shape[layout->ndim - 1];
    v.start = i / width * all.n * width + i % width, v.stride = width;
    return v;
}

/* ---- numbers ---- */

/* The numbers of a tensor in row-major order; of a float dtype `as` rounded to it. malloc'ed. */
static double *numbers_of(const lb_tensor *t, const lb_dtype *as)
{
    const int64_t n = lb_layout_numel(&t->layout);
    const lb_cast exact = LB_CAST_INIT;
    double *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x), *at = x;
    char room[8];
    if (!x) return NULL;
    for (lb_rows r = lb_rows_of(&t->layout); lb_rows_next(&r); at += r.count) {
        const char *p = (const char *)t->data + r.offset * (int64_t)(lb_dtype_bits(t->dtype) / 8);
        lb_load_f64_strided(at, t->dtype, p, r.stride, (size_t)r.count);
    }
    for (int64_t i = 0; as && i < n; i++) {
        lb_store_f64_strided(*as, room, 1, &x[i], 1, &exact);
        lb_load_f64_strided(&x[i], *as, room, 1, 1);
    }
    return x;
}

static uint64_t hash_of(const double *x, const vector *v)
{
    uint64_t hash = (uint64_t)v->n * UINT64_C(0x9E3779B97F4A7C15);
    for (int64_t i = 0; i < v->n; i++) {
        const double number = x[v->start + i * v->stride] + 0.0; /* -0 is 0 */
        uint64_t bits;
        memcpy(&bits, &number, sizeof bits);
        hash = (hash ^ bits) * UINT64_C(0xFF51AFD7ED558CCD);
        hash ^= hash >> 32;
    }
    return hash;
}

static bool is_constant(const double *x, const vector *v)
{
    for (int64_t i = 1; i < v->n; i++)
        if (x[v->start + i * v->stride] != x[v->start]) return false;
    return true;
}

static bool are_equal(const double *x, const vector *v, const double *y, const vector *w)
{
    for (int64_t i = 0; i < v->n; i++)
        if (x[v->start + i * v->stride] != y[w->start + i * w->stride]) return false;
    return true;
}

/* ---- what A holds ---- */

typedef struct holder {
    const lb_content_tensor *a;
    uint32_t n_a;
    double **numbers; /* per tensor of A, loaded */
    vector *list;
    uint32_t n;
    lb_hash index;
    uint8_t *used; /* per tensor of A: some tensor of B is made of it */
} holder;

static bool can_hold(const lb_tensor *t)
{
    return t->data && t->dtype < LB_DTYPE_COUNT && lb_dtype_bits(t->dtype) >= 8 && !lb_dtype_is_complex(t->dtype) &&
           lb_layout_numel(&t->layout) > 0;
}

static bool add_vectors(holder *h, uint32_t tensor, cut how)
{
    const lb_layout *layout = &h->a[tensor].tensor.layout;
    const vectors all = vectors_of(layout, how);
    for (int64_t i = 0; i < all.count; i++) {
        const vector v = vector_at(tensor, layout, how, i);
        vector *more = lb_array_grow(h->list, h->n, sizeof *more);
        if (!more) return false;
        h->list = more;
        h->list[h->n] = v;
        if (!lb_hash_add(&h->index, hash_of(h->numbers[tensor], &v), h->n++)) return false;
    }
    return true;
}

static void close_holder(holder *h)
{
    for (uint32_t i = 0; h->numbers && i < h->n_a; i++) free(h->numbers[i]);
    free(h->numbers), free(h->list), free(h->used);
    lb_hash_release(&h->index);
}

static bool open_holder(holder *h, const lb_content_tensor *a, uint32_t n_a, const lb_dtype *as)
{
    *h = (holder){.a = a, .n_a = n_a, .numbers = calloc(n_a + 1, sizeof *h->numbers), .used = calloc(n_a + 1, 1)};
    bool room = h->numbers && h->used;
    for (uint32_t i = 0; i < n_a && room; i++) {
        if (!can_hold(&a[i].tensor)) continue;
        room = (h->numbers[i] = numbers_of(&a[i].tensor, lb_dtype_is_float(a[i].tensor.dtype) ? as : NULL)) != NULL;
        for (cut how = WHOLE; how < CUTS && room; how++) room = add_vectors(h, i, how);
    }
    return room;
}

/* ---- one tensor of B ---- */

typedef struct finder {
    holder *holder;
    const lb_content_tensor *b;
    const double *x;
    lb_contents *out;
    bool failed;
} finder;

/* Which of two vectors of A that hold the same numbers it rather is: the one behind the last one, one of a tensor by that name, of that shape,
 * one of a tensor that no other one is made of. */
static int liking(const finder *f, const vector *v, const vector *last)
{
    const lb_content_tensor *a = &f->holder->a[v->tensor], *b = f->b;
    const bool behind = last && last->tensor == v->tensor && last->cut == v->cut &&
                        (v->start == last->start + last->n * last->stride || v->start == last->start + 1);
    const bool same = last && last->tensor == v->tensor;
    return 16 * behind + 8 * same + 4 * (*b->name && !strcmp(a->name, b->name)) +
           2 * lb_layout_same_shape(&a->tensor.layout, &b->tensor.layout) + !f->holder->used[v->tensor];
}

static uint32_t find_vector(const finder *f, const vector *w, const vector *last)
{
    uint32_t best = LB_NONE;
    int most = -1;
    LB_HASH_EACH(row, &f->holder->index, hash_of(f->x, w))
    {
        const vector *v = &f->holder->list[row];
        if (v->n != w->n) continue;
        const int now = liking(f, v, last);
        if (now <= most || !are_equal(f->holder->numbers[v->tensor], v, f->x, w)) continue;
        most = now, best = row;
    }
    return best;
}

static void add_run(finder *f, const vector *v, const vector *w, uint32_t first)
{
    lb_contents *out = f->out;
    lb_content_run *last = out->n_runs > first ? &out->runs[out->n_runs - 1] : NULL;
    if (last && last->tensor == v->tensor && v->stride == 1 && w->stride == 1 && last->from_stride == 1 &&
        last->to_stride == 1 && last->from + last->n == v->start && last->to + last->n == w->start) {
        last->n += v->n;
        return;
    }
    lb_content_run *more = lb_array_grow(out->runs, out->n_runs, sizeof *more);
    f->failed |= !more;
    if (!more) return;
    out->runs = more;
    out->runs[out->n_runs++] = (lb_content_run){v->tensor, v->start, v->stride, w->start, w->stride, v->n};
}

/* What is left of a tensor, some of which was found, is padding where it is one number all over. */
static bool is_padding(const finder *f, cut how, int64_t found)
{
    const vectors all = vectors_of(&f->b->tensor.layout, how);
    const vector last = vector_at(0, &f->b->tensor.layout, how, all.count - 1);
    const double filler = f->x[last.start];
    int64_t left = 0;
    for (int64_t i = 0; i < all.count; i++) {
        const vector w = vector_at(0, &f->b->tensor.layout, how, i);
        if (is_constant(f->x, &w) && f->x[w.start] == filler) left += w.n;
    }
    return found > 0 && found + left >= all.count * all.n;
}

/* Cuts B's tensor in that way and looks up each vector; `*found`: elements. */
static void try_cut(finder *f, cut how, lb_content *out)
{
    const lb_layout *layout = &f->b->tensor.layout;
    const vectors all = vectors_of(layout, how);
    vector last = {0};
    bool any = false;
    out->first = f->out->n_runs, out->found = 0, out->all = all.count * all.n;
    for (int64_t i = 0; i < all.count && !f->failed; i++) {
        const vector w = vector_at(0, layout, how, i);
        const uint32_t row = find_vector(f, &w, any ? &last : NULL);
        if (row == LB_NONE) continue;
        last = f->holder->list[row], any = true;
        add_run(f, &last, &w, out->first);
        out->found += w.n;
    }
    out->n = f->out->n_runs - out->first;
}

static lb_content_relation relation_of(const finder *f, const lb_content *c, cut how)
{
    const lb_content_run *runs = f->out->runs + c->first;
    const lb_content_tensor *a = &f->holder->a[runs[0].tensor];
    bool several = false, across = false, in_order = true;
    for (uint32_t i = 0; i < c->n; i++) {
        several |= runs[i].tensor != runs[0].tensor;
        across |= (runs[i].from_stride == 1) != (runs[i].to_stride == 1);
        in_order &= runs[i].from == runs[i].to && runs[i].from_stride == runs[i].to_stride;
    }
    if (several) return LB_CONTENT_FUSED;
    if (across) return LB_CONTENT_TRANSPOSED;
    if (c->found < c->all) return LB_CONTENT_PADDED;
    if (lb_layout_numel(&a->tensor.layout) > c->all) return LB_CONTENT_SPLIT;
    if (!in_order && how != WHOLE) return LB_CONTENT_PERMUTED;
    if (!lb_layout_same_shape(&a->tensor.layout, &f->b->tensor.layout)) return LB_CONTENT_RESHAPED;
    return *a->name && !strcmp(a->name, f->b->name) ? LB_CONTENT_SAME : LB_CONTENT_RENAMED;
}

/* Elements of a vector of B stand in A's vectors in another order (biases of permuted rows) or behind each other (of fused ones). Only of
 * numbers that A's vectors hold once each: others tell nothing. */
typedef struct element {
    double number;
    uint32_t tensor;
    int64_t at;
} element;

static int by_number(const void *x, const void *y)
{
    const double a = ((const element *)x)->number, b = ((const element *)y)->number;
    return (a > b) - (a < b);
}

static uint32_t list_elements(const holder *h, element **out)
{
    uint32_t n = 0;
    *out = NULL;
    for (uint32_t t = 0; t < h->n_a; t++) {
        if (!h->numbers[t] || h->a[t].tensor.layout.ndim != 1) continue;
        for (int64_t i = 0; i < h->a[t].tensor.layout.shape[0]; i++) {
            element *more = lb_array_grow(*out, n, sizeof *more);
            if (!more) return n;
            *out = more;
            (*out)[n++] = (element){h->numbers[t][i] + 0.0, t, i};
        }
    }
    if (n) qsort(*out, n, sizeof **out, by_number);
    return n;
}

static void try_elements(finder *f, const element *list, uint32_t n, lb_content *out)
{
    const int64_t all = lb_layout_numel(&f->b->tensor.layout);
    element last = {0};
    bool any = false;
    out->first = f->out->n_runs, out->found = 0, out->all = all;
    for (int64_t i = 0; i < all && !f->failed; i++) {
        const double number = f->x[i] + 0.0;
        uint32_t low = 0, high = n, best = LB_NONE;
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            if (list[middle].number < number)
                low = middle + 1;
            else
                high = middle;
        }
        for (uint32_t k = low; k < n && list[k].number == number; k++) {
            const bool behind = any && list[k].tensor == last.tensor && list[k].at == last.at + 1;
            if (best == LB_NONE || behind) best = k;
            if (behind) break;
        }
        if (best == LB_NONE) break;
        const vector v = {list[best].tensor, ROWS, list[best].at, 1, 1}, w = {0, ROWS, i, 1, 1};
        last = list[best], any = true;
        add_run(f, &v, &w, out->first);
        out->found++;
    }
    out->n = f->out->n_runs - out->first;
}

/* Elements that were found one by one are a match where they lie behind each other, or use up all of the tensors that they come from. */
static bool is_convincing(const finder *f, const lb_content *c)
{
    int64_t used = 0;
    if (c->found < c->all) return false;
    if (c->n <= c->all / 4 + 1) return true;
    for (uint32_t i = 0; i < c->n; i++) {
        const lb_content_run *run = &f->out->runs[c->first + i];
        bool listed = false;
        for (uint32_t k = 0; k < i && !listed; k++) {
            const lb_content_run *before = &f->out->runs[c->first + k];
            if (before->tensor == run->tensor && before->from < run->from + run->n &&
                run->from < before->from + before->n)
                return false;
            listed = before->tensor == run->tensor;
        }
        if (!listed) used += lb_layout_numel(&f->holder->a[run->tensor].tensor.layout);
    }
    return used == c->all;
}

static void use(finder *f, lb_content *c, cut how, bool cast)
{
    c->relation = relation_of(f, c, how), c->tensor = f->out->runs[c->first].tensor, c->cast = cast;
    for (uint32_t i = 0; i < c->n; i++) f->holder->used[f->out->runs[c->first + i].tensor] = 1;
}

static bool tells(const finder *f)
{
    const vector all = {0, WHOLE, 0, 1, lb_layout_numel(&f->b->tensor.layout)};
    return all.n > 1 && !is_constant(f->x, &all);
}

/* The first way in which all of it is found; false: there is none. */
static bool match_tensor(finder *f, const element *elements, uint32_t n_elements, bool cast, lb_content *c)
{
    static const cut order[] = {WHOLE, FLAT_ROWS, ROWS, COLUMNS};
    for (size_t k = 0; k < sizeof order / sizeof *order && !f->failed; k++) {
        lb_content now = {.tensor = LB_NONE};
        if (order[k] != WHOLE && !tells(f)) break;
        try_cut(f, order[k], &now);
        if (now.found && (now.found == now.all || (order[k] == ROWS && is_padding(f, order[k], now.found)))) {
            *c = now;
            use(f, c, order[k], cast);
            return true;
        }
        f->out->n_runs = now.first;
    }
    if (f->b->tensor.layout.ndim != 1 || !tells(f)) return false;
    lb_content now = {.tensor = LB_NONE};
    try_elements(f, elements, n_elements, &now);
    if (is_convincing(f, &now)) {
        *c = now;
        use(f, c, ROWS, cast);
        return true;
    }
    f->out->n_runs = now.first;
    return false;
}

/* ---- all of them ---- */

static bool is_pending(const lb_contents *out, const lb_content_tensor *b, uint32_t i)
{
    return out->list[i].relation == LB_CONTENT_NONE && can_hold(&b[i].tensor);
}

static bool match_all(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t n_b,
                      const lb_dtype *as, lb_contents *out)
{
    holder h;
    element *elements = NULL;
    bool room = open_holder(&h, a, n_a, as);
    const uint32_t n_elements = room ? list_elements(&h, &elements) : 0;
    finder f = {.holder = &h, .out = out, .failed = !room};
    for (uint32_t i = 0; i < n_b && !f.failed; i++) {
        if (!is_pending(out, b, i) || (as && b[i].tensor.dtype != *as)) continue;
        double *x = numbers_of(&b[i].tensor, NULL);
        f.b = &b[i], f.x = x, f.failed |= !x;
        if (x) match_tensor(&f, elements, n_elements, as != NULL, &out->list[i]);
        free(x);
    }
    free(elements);
    close_holder(&h);
    return !f.failed;
}

/* A tensor of B whose numbers are not A's, by its name. */
static bool match_name(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t i,
                       lb_contents *out)
{
    for (uint32_t k = 0; k < n_a; k++) {
        if (!*b->name || strcmp(a[k].name, b->name) || !lb_layout_same_shape(&a[k].tensor.layout, &b->tensor.layout))
            continue;
        lb_content_run *more = lb_array_grow(out->runs, out->n_runs, sizeof *more);
        if (!more) return false;
        const int64_t all = lb_layout_numel(&b->tensor.layout);
        out->runs = more;
        out->runs[out->n_runs] = (lb_content_run){k, 0, 1, 0, 1, all};
        out->list[i] = (lb_content){LB_CONTENT_NAMED, false, k, out->n_runs++, 1, 0, all};
        return true;
    }
    return true;
}

lb_status lb_contents_match(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t n_b,
                            lb_contents *out, lb_err *err)
{
    *out = (lb_contents){.list = calloc(n_b + 1, sizeof *out->list), .n = n_b};
    bool room = out->list != NULL;
    for (uint32_t i = 0; i < n_b && room; i++)
        out->list[i] = (lb_content){.tensor = LB_NONE, .all = lb_layout_numel(&b[i].tensor.layout)};
    room = room && match_all(a, n_a, b, n_b, NULL, out);
    for (uint32_t i = 0; i < n_b && room; i++) {
        if (!is_pending(out, b, i) || !lb_dtype_is_float(b[i].tensor.dtype)) continue;
        const lb_dtype as = b[i].tensor.dtype;
        bool wider = false;
        for (uint32_t k = 0; k < n_a; k++)
            wider |= lb_dtype_is_float(a[k].tensor.dtype) && lb_dtype_bits(a[k].tensor.dtype) > lb_dtype_bits(as);
        if (wider) room = match_all(a, n_a, b, n_b, &as, out);
        break;
    }
    for (uint32_t i = 0; i < n_b && room; i++)
        if (out->list[i].relation == LB_CONTENT_NONE) room = match_name(a, n_a, &b[i], i, out);
    if (room) return LB_OK;
    lb_contents_release(out);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for the contents of %u and %u tensors", n_a, n_b);
}

void lb_contents_release(lb_contents *contents)
{
    free(contents->list), free(contents->runs);
    *contents = (lb_contents){0};
}
