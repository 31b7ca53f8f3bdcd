/* Biases beside the matrices whose rows they go with: see content_features.h. */
#include "contents/content_features.h"

#include "base/array.h"
#include <lastbit/program.h>

#include <stdlib.h>
#include <string.h>

/* A row or a column of a matrix of A. */
typedef struct feature {
    uint32_t tensor;
    int64_t at;
} feature;

/* What the rows (or columns) of a matrix of B are. */
typedef struct order {
    uint32_t b;
    bool of_columns[2]; /* of A's matrices, of B's: a feature is a column */
    int64_t n;
    feature *list;
    uint64_t structure; /* a hash of it without the tensors' names: layers that were converted alike have one */
} order;

typedef struct finder {
    const lb_content_tensor *a, *b;
    uint32_t n_a, n_b;
    lb_contents *out;
    order *orders;
    uint32_t n_orders;
    double **numbers, **rounded; /* per tensor of A, when they were first asked for; `rounded`: to `as` */
    lb_dtype as;
    bool failed;
} finder;

enum { LONGEST = 1 << 16 };

static bool is_vector(const lb_content_tensor *t)
{
    const int64_t n = lb_layout_numel(&t->tensor.layout);
    return t->tensor.data && t->tensor.dtype < LB_DTYPE_COUNT && lb_dtype_is_float(t->tensor.dtype) &&
           lb_dtype_bits(t->tensor.dtype) >= 8 && n > 0 && n <= LONGEST;
}

/* ---- rows and columns ---- */

static int64_t width_of(const lb_layout *l)
{
    return l->shape[l->ndim - 1];
}

static int64_t height_of(const lb_layout *l)
{
    return l->shape[l->ndim - 2];
}

static int64_t count_features(const lb_layout *l, bool columns)
{
    const int64_t size = columns ? height_of(l) : width_of(l);
    return size > 0 ? lb_layout_numel(l) / size : 0;
}

/* Which row or column it is, of `n` elements from `start` on; -1: neither. */
static int64_t feature_at(const lb_layout *l, bool columns, int64_t start, int64_t stride, int64_t n)
{
    const int64_t width = width_of(l), height = height_of(l);
    if (!columns) return stride == 1 && n == width && start % width == 0 ? start / width : -1;
    return stride == width && n == height ? start / (width * height) * width + start % width : -1;
}

/* The rows of a run that holds one or several of them behind each other. False: it holds no whole ones. */
static bool add_run(const order *o, const lb_content_run *r, const lb_layout *a, const lb_layout *b)
{
    const int64_t each = o->of_columns[1] ? height_of(b) : width_of(b);
    if (each <= 0 || r->n % each || (r->n > each && (o->of_columns[0] || o->of_columns[1]))) return false;
    for (int64_t k = 0; k < r->n; k += each) {
        const int64_t from = feature_at(a, o->of_columns[0], r->from + k, r->from_stride, each),
                      to = feature_at(b, o->of_columns[1], r->to + k, r->to_stride, each);
        if (from < 0 || to < 0 || to >= o->n) return false;
        o->list[to] = (feature){r->tensor, from};
    }
    return true;
}

/* Each tensor by the place where it first appears. */
static uint64_t structure_of(const finder *f, const order *o)
{
    uint64_t hash = (uint64_t)o->n;
    uint32_t part = 0, last = LB_NONE;
    for (int64_t i = 0; i < o->n; i++) {
        const feature *now = &o->list[i];
        if (now->tensor != last) {
            last = now->tensor, part = 0;
            for (int64_t k = 0; k < i && o->list[k].tensor != last; k++) part++; /* where it appeared first */
        }
        const uint64_t word = (uint64_t)part << 32 ^ (uint64_t)now->at ^
                              (uint64_t)count_features(&f->a[last].tensor.layout, o->of_columns[0]) << 44;
        hash = (hash ^ word) * UINT64_C(0xFF51AFD7ED558CCD), hash ^= hash >> 32;
    }
    return hash;
}

/* Rows in the order in which one tensor of A has them say nothing that the vector does not say itself. */
static bool is_plain(const finder *f, const order *o)
{
    bool plain = count_features(&f->a[o->list[0].tensor].tensor.layout, o->of_columns[0]) == o->n;
    for (int64_t i = 0; i < o->n && plain; i++) plain = o->list[i].tensor == o->list[0].tensor && o->list[i].at == i;
    return plain;
}

/* What the rows of B's matrix are. */
static void list_order(finder *f, uint32_t b)
{
    const lb_content *c = &f->out->list[b];
    const lb_layout *l = &f->b[b].tensor.layout;
    if (c->relation == LB_CONTENT_NONE || c->found != c->all || !c->n || l->ndim < 2) return;
    const lb_content_run *runs = &f->out->runs[c->first];
    order o = {.b = b, .of_columns = {runs[0].from_stride > 1, runs[0].to_stride > 1}};
    o.n = count_features(l, o.of_columns[1]);
    if (o.n < 2 || o.n > LONGEST) return;
    o.list = malloc((size_t)o.n * sizeof *o.list);
    f->failed |= !o.list;
    bool whole = o.list != NULL;
    for (int64_t i = 0; i < o.n && whole; i++) o.list[i] = (feature){LB_NONE, 0};
    for (uint32_t k = 0; k < c->n && whole; k++)
        whole = f->a[runs[k].tensor].tensor.layout.ndim >= 2 &&
                add_run(&o, &runs[k], &f->a[runs[k].tensor].tensor.layout, l);
    for (int64_t i = 0; i < o.n && whole; i++) whole = o.list[i].tensor != LB_NONE;
    order *more = whole && !is_plain(f, &o) ? lb_array_grow(f->orders, f->n_orders, sizeof *more) : NULL;
    f->failed |= whole && !more && !is_plain(f, &o);
    if (!more) {
        free(o.list);
        return;
    }
    o.structure = structure_of(f, &o);
    f->orders = more, f->orders[f->n_orders++] = o;
}

/* ---- numbers ---- */

static double *load(const lb_tensor *t, lb_dtype as)
{
    const lb_cast once = LB_CAST_INIT;
    const int64_t n = lb_layout_numel(&t->layout);
    double *x = malloc((size_t)n * sizeof *x + 1);
    void *rounded = as == LB_NO_DTYPE ? NULL : malloc(lb_dtype_bytes(as, (size_t)n) + 1);
    int64_t done = 0;
    for (lb_rows r = lb_rows_of(&t->layout); x && lb_rows_next(&r); done += r.count)
        lb_load_f64_strided(x + done, t->dtype,
                            (const char *)t->data + r.offset * (int64_t)(lb_dtype_bits(t->dtype) / 8),
                            (ptrdiff_t)r.stride, (size_t)r.count);
    if (x && rounded) {
        lb_store_f64_strided(as, rounded, 1, x, (size_t)n, &once);
        lb_load_f64_strided(x, as, rounded, 1, (size_t)n);
    }
    const bool failed = as != LB_NO_DTYPE && !rounded;
    free(rounded);
    if (failed) free(x), x = NULL;
    return x;
}

/* A's numbers; `as`: rounded to that dtype. NULL: out of memory. */
static const double *numbers_of(finder *f, uint32_t tensor, lb_dtype as)
{
    if (as != LB_NO_DTYPE && as != f->as) {
        for (uint32_t i = 0; i < f->n_a; i++) free(f->rounded[i]), f->rounded[i] = NULL;
        f->as = as;
    }
    double **kept = as == LB_NO_DTYPE ? &f->numbers[tensor] : &f->rounded[tensor];
    if (!*kept) *kept = load(&f->a[tensor].tensor, as), f->failed |= !*kept;
    return *kept;
}

/* ---- one vector of B ---- */

static size_t alike(const char *x, const char *y)
{
    size_t n = 0;
    while (x[n] && x[n] == y[n]) n++;
    return n;
}

/* Does the vector of A hold, in the places of one matrix's rows, what B's holds? */
static bool stands_beside(const double *a, const order *o, uint32_t matrix, const double *b)
{
    for (int64_t i = 0; i < o->n; i++)
        if (o->list[i].tensor == matrix && a[o->list[i].at] != b[i]) return false;
    return true;
}

/* The vector of A that goes with one of its matrices, and holds what B's holds; LB_NONE. */
static uint32_t find_beside(finder *f, const order *o, uint32_t matrix, const double *b, lb_dtype as)
{
    const int64_t n = count_features(&f->a[matrix].tensor.layout, o->of_columns[0]);
    uint32_t best = LB_NONE;
    size_t most = 0;
    for (uint32_t i = 0; i < f->n_a && !f->failed; i++) {
        if (i == matrix || !is_vector(&f->a[i]) || lb_layout_numel(&f->a[i].tensor.layout) != n) continue;
        const size_t now = 1 + alike(f->a[i].name, f->a[matrix].name);
        const double *x = now > most ? numbers_of(f, i, as) : NULL;
        if (x && stands_beside(x, o, matrix, b)) best = i, most = now;
    }
    return best;
}

/* The tensors of A that stand in an order, each once; false: out of memory. */
static bool list_matrices(const order *o, uint32_t **list, uint32_t *n)
{
    *list = NULL, *n = 0;
    for (int64_t i = 0; i < o->n; i++) {
        bool listed = i > 0 && o->list[i].tensor == o->list[i - 1].tensor;
        for (uint32_t k = 0; k < *n && !listed; k++) listed = (*list)[k] == o->list[i].tensor;
        uint32_t *more = listed ? *list : lb_array_grow(*list, *n, sizeof *more);
        if (!more) return free(*list), *list = NULL, false;
        *list = more;
        if (!listed) (*list)[(*n)++] = o->list[i].tensor;
    }
    return true;
}

static void add_element(finder *f, uint32_t first, uint32_t tensor, int64_t from, int64_t to)
{
    lb_contents *out = f->out;
    lb_content_run *last = out->n_runs > first ? &out->runs[out->n_runs - 1] : NULL;
    if (last && last->tensor == tensor && last->from + last->n == from && last->to + last->n == to) {
        last->n++;
        return;
    }
    lb_content_run *more = lb_array_grow(out->runs, out->n_runs, sizeof *more);
    f->failed |= !more;
    if (!more) return;
    out->runs = more, out->runs[out->n_runs++] = (lb_content_run){tensor, from, 1, to, 1, 1};
}

static void use(finder *f, const order *o, const uint32_t *matrices, const uint32_t *vectors, uint32_t n, uint32_t row,
                bool cast)
{
    const uint32_t first = f->out->n_runs;
    int64_t held = 0;
    for (int64_t i = 0; i < o->n && !f->failed; i++) {
        uint32_t k = 0;
        while (matrices[k] != o->list[i].tensor) k++;
        add_element(f, first, vectors[k], o->list[i].at, i);
    }
    for (uint32_t k = 0; k < n; k++) held += lb_layout_numel(&f->a[vectors[k]].tensor.layout);
    const lb_content_relation relation = n > 1         ? LB_CONTENT_FUSED
                                         : held > o->n ? LB_CONTENT_SPLIT
                                                       : LB_CONTENT_PERMUTED;
    f->out->list[row] = (lb_content){relation, cast, vectors[0], first, f->out->n_runs - first, o->n, o->n};
}

/* Is B's vector made, in this order, of vectors of A? */
static bool try_order(finder *f, const order *o, uint32_t row, const double *b, lb_dtype as)
{
    uint32_t *matrices, n, found = 0;
    if (!list_matrices(o, &matrices, &n)) return f->failed = true, false;
    uint32_t *vectors = malloc((n + 1) * sizeof *vectors);
    f->failed |= !vectors;
    while (vectors && found < n && !f->failed) {
        vectors[found] = find_beside(f, o, matrices[found], b, as);
        if (vectors[found++] == LB_NONE) break;
    }
    const bool whole = vectors && n && found == n && vectors[n - 1] != LB_NONE && !f->failed;
    if (whole) use(f, o, matrices, vectors, n, row, as != LB_NO_DTYPE);
    free(matrices), free(vectors);
    return whole;
}

/* Of orders alike that of the matrix whose name begins most like the vector's; NULL: they were tried. */
static const order *nearest_order(const finder *f, uint32_t row, uint32_t from)
{
    const order *best = &f->orders[from];
    if (best->n != lb_layout_numel(&f->b[row].tensor.layout)) return NULL;
    for (uint32_t i = 0; i < f->n_orders; i++) {
        const order *o = &f->orders[i];
        if (o->structure != f->orders[from].structure || o->n != best->n) continue;
        if (i < from) return NULL;
        if (alike(f->b[o->b].name, f->b[row].name) > alike(f->b[best->b].name, f->b[row].name)) best = o;
    }
    return best;
}

static void match_vector(finder *f, uint32_t row)
{
    double *b = load(&f->b[row].tensor, LB_NO_DTYPE);
    const lb_dtype ways[] = {LB_NO_DTYPE, f->b[row].tensor.dtype};
    bool done = false;
    f->failed |= !b;
    for (int way = 0; way < 2; way++)
        for (uint32_t i = 0; b && i < f->n_orders && !done && !f->failed; i++) {
            const order *o = nearest_order(f, row, i);
            done = o && try_order(f, o, row, b, ways[way]);
        }
    free(b);
}

static void match_all(finder *f)
{
    for (uint32_t i = 0; i < f->n_b && !f->failed; i++)
        if (f->out->list[i].relation == LB_CONTENT_NONE && is_vector(&f->b[i])) match_vector(f, i);
}

static bool any_open(const finder *f)
{
    bool any = false;
    for (uint32_t i = 0; i < f->n_b && !any; i++)
        any = f->out->list[i].relation == LB_CONTENT_NONE && is_vector(&f->b[i]);
    return any;
}

bool lb_content_features_match(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t n_b,
                               lb_contents *contents)
{
    finder f = {.a = a, .b = b, .n_a = n_a, .n_b = n_b, .out = contents, .as = LB_NO_DTYPE};
    if (!any_open(&f)) return true;
    for (uint32_t i = 0; i < n_b && !f.failed; i++) list_order(&f, i);
    f.numbers = calloc((size_t)n_a + 1, sizeof *f.numbers), f.rounded = calloc((size_t)n_a + 1, sizeof *f.rounded);
    f.failed |= !f.numbers || !f.rounded;
    if (!f.failed && f.n_orders) match_all(&f);
    for (uint32_t i = 0; i < n_a && f.numbers && f.rounded; i++) free(f.numbers[i]), free(f.rounded[i]);
    for (uint32_t i = 0; i < f.n_orders; i++) free(f.orders[i].list);
    free(f.numbers), free(f.rounded), free(f.orders);
    return !f.failed;
}
