/* Biases beside the matrices whose rows they go with: see content_features.h. */
#include "contents/content_features.h"

#include "base/array.h"
#include <lastbit/program.h>

#include <stdlib.h>
#include <string.h>

typedef lb_content_feature feature;

typedef struct order {
    lb_content_order is;
    uint32_t b;
    bool plain;         /* rows in the order in which one tensor of A has them */
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

int64_t lb_content_features_in(const lb_layout *l, bool columns)
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
static bool add_run(const lb_content_order *o, const lb_content_run *r, const lb_layout *a, const lb_layout *b)
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

bool lb_content_order_of(const lb_content_run *runs, uint32_t n, const lb_content_tensor *a, const lb_layout *b,
                         lb_content_order *o)
{
    *o = (lb_content_order){{false, false}, 0, NULL};
    if (!n || b->ndim < 2) return true;
    o->of_columns[0] = runs[0].from_stride > 1, o->of_columns[1] = runs[0].to_stride > 1;
    o->n = lb_content_features_in(b, o->of_columns[1]);
    if (o->n < 2 || o->n > LONGEST) return true;
    if (!(o->list = malloc((size_t)o->n * sizeof *o->list))) return false;
    bool whole = true;
    for (int64_t i = 0; i < o->n; i++) o->list[i] = (feature){LB_NONE, 0};
    for (uint32_t k = 0; k < n && whole; k++)
        whole = a[runs[k].tensor].tensor.layout.ndim >= 2 && add_run(o, &runs[k], &a[runs[k].tensor].tensor.layout, b);
    for (int64_t i = 0; i < o->n && whole; i++) whole = o->list[i].tensor != LB_NONE;
    if (!whole) free(o->list), o->list = NULL;
    return true;
}

/* Each tensor by the place where it first appears. */
static uint64_t structure_of(const finder *f, const lb_content_order *o)
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
                              (uint64_t)lb_content_features_in(&f->a[last].tensor.layout, o->of_columns[0]) << 44;
        hash = (hash ^ word) * UINT64_C(0xFF51AFD7ED558CCD), hash ^= hash >> 32;
    }
    return hash;
}

static bool is_plain(const finder *f, const lb_content_order *o)
{
    bool plain = lb_content_features_in(&f->a[o->list[0].tensor].tensor.layout, o->of_columns[0]) == o->n;
    for (int64_t i = 0; i < o->n && plain; i++) plain = o->list[i].tensor == o->list[0].tensor && o->list[i].at == i;
    return plain;
}

/* What the rows of B's matrix are. */
static void list_order(finder *f, uint32_t b)
{
    const lb_content *c = &f->out->list[b];
    order o = {.b = b};
    if (c->relation == LB_CONTENT_NONE || c->found != c->all) return;
    f->failed |= !lb_content_order_of(&f->out->runs[c->first], c->n, f->a, &f->b[b].tensor.layout, &o.is);
    if (!o.is.list) return;
    o.plain = is_plain(f, &o.is);
    o.structure = structure_of(f, &o.is);
    order *more = lb_array_grow(f->orders, f->n_orders, sizeof *more);
    f->failed |= !more;
    if (!more) {
        free(o.is.list);
        return;
    }
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
static bool stands_beside(const double *a, const lb_content_order *o, uint32_t matrix, const double *b)
{
    for (int64_t i = 0; i < o->n; i++)
        if (o->list[i].tensor == matrix && a[o->list[i].at] != b[i]) return false;
    return true;
}

/* The vector of A that goes with one of its matrices, and holds what B's holds; LB_NONE. */
static uint32_t find_beside(finder *f, const lb_content_order *o, uint32_t matrix, const double *b, lb_dtype as)
{
    const int64_t n = lb_content_features_in(&f->a[matrix].tensor.layout, o->of_columns[0]);
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
static bool list_matrices(const lb_content_order *o, uint32_t **list, uint32_t *n)
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

static lb_content_relation relation_of_names(const finder *f, uint32_t a, uint32_t b)
{
    if (!lb_layout_same_shape(&f->a[a].tensor.layout, &f->b[b].tensor.layout)) return LB_CONTENT_RESHAPED;
    return *f->a[a].name && !strcmp(f->a[a].name, f->b[b].name) ? LB_CONTENT_SAME : LB_CONTENT_RENAMED;
}

static void use(finder *f, const lb_content_order *o, const uint32_t *matrices, const uint32_t *vectors, uint32_t n,
                uint32_t row, bool cast)
{
    const uint32_t first = f->out->n_runs;
    int64_t held = 0;
    for (int64_t i = 0; i < o->n && !f->failed; i++) {
        uint32_t k = 0;
        while (matrices[k] != o->list[i].tensor) k++;
        f->failed |= !lb_contents_add_run(f->out, first, (lb_content_run){vectors[k], o->list[i].at, 1, i, 1, 1});
    }
    for (uint32_t k = 0; k < n; k++) held += lb_layout_numel(&f->a[vectors[k]].tensor.layout);
    const bool straight = f->out->n_runs == first + 1;
    const lb_content_relation relation = n > 1         ? LB_CONTENT_FUSED
                                         : held > o->n ? LB_CONTENT_SPLIT
                                         : straight    ? relation_of_names(f, vectors[0], row)
                                                       : LB_CONTENT_PERMUTED;
    f->out->list[row] = (lb_content){relation, cast, vectors[0], first, f->out->n_runs - first, o->n, o->n, true};
}

/* Is B's vector made, in this order, of vectors of A? */
static bool try_order(finder *f, const lb_content_order *o, uint32_t row, const double *b, lb_dtype as)
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
    if (best->is.n != lb_layout_numel(&f->b[row].tensor.layout)) return NULL;
    for (uint32_t i = 0; i < f->n_orders; i++) {
        const order *o = &f->orders[i];
        if (o->structure != f->orders[from].structure || o->is.n != best->is.n) continue;
        if (i < from) return NULL;
        if (alike(f->b[o->b].name, f->b[row].name) > alike(f->b[best->b].name, f->b[row].name)) best = o;
    }
    return best;
}

/* A plain order says nothing of a vector that the vector does not say itself, unless it is one number all over. Then
 * the matrix has to be of its module: so have its biases, and not its norms. */
static bool may_tell(const finder *f, const order *o, uint32_t row, bool constant)
{
    const char *vector = f->b[row].name, *matrix = f->b[o->b].name,
               *ends[] = {strrchr(vector, '.'), strrchr(matrix, '.')};
    if (!constant) return !o->plain;
    if (!ends[0] || !ends[1]) return false;
    const size_t n = alike(vector, matrix);
    return n >= (size_t)(ends[0] - vector) && n >= (size_t)(ends[1] - matrix);
}

static bool is_constant(const double *x, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if (x[i] != x[0]) return false;
    return true;
}

/* `as`: of A's numbers that are rounded to it. */
static bool try_orders(finder *f, uint32_t row, const double *b, lb_dtype as)
{
    const bool constant = b && is_constant(b, lb_layout_numel(&f->b[row].tensor.layout));
    bool done = false;
    for (uint32_t i = 0; b && i < f->n_orders && !done && !f->failed; i++) {
        const order *o = nearest_order(f, row, i);
        done = o && may_tell(f, o, row, constant) && try_order(f, &o->is, row, b, as);
    }
    return done;
}

/* As it is, with A's numbers rounded to its dtype, and rounded itself to one of 16 bits that A may hold it in. */
static void match_vector(finder *f, uint32_t row)
{
    const lb_tensor *t = &f->b[row].tensor;
    double *b = load(t, LB_NO_DTYPE);
    static const lb_dtype narrow[] = {LB_BF16, LB_F16};
    f->failed |= !b;
    bool done = try_orders(f, row, b, LB_NO_DTYPE) || try_orders(f, row, b, t->dtype);
    for (size_t i = 0; i < 2 && !done && !f->failed && lb_dtype_bits(t->dtype) > 16; i++) {
        double *rounded = load(t, narrow[i]);
        f->failed |= !rounded;
        done = try_orders(f, row, rounded, LB_NO_DTYPE);
        if (done) f->out->list[row].cast = true;
        free(rounded);
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
    for (uint32_t i = 0; i < f.n_orders; i++) free(f.orders[i].is.list);
    free(f.numbers), free(f.rounded), free(f.orders);
    return !f.failed;
}
