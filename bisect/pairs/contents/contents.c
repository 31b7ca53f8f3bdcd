/* Matching by numbers: see contents.h. */
#include "contents/contents.h"

#include "contents/content_features.h"
#include "contents/content_vectors.h"

#include "base/array.h"
#include "base/hash.h"
#include <lastbit/program.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *lb_content_relation_name(lb_content_relation relation)
{
    static const char *const names[] = {"none",  "same",  "renamed", "reshaped", "transposed", "permuted",
                                        "fused", "split", "padded",  "named",    "shifted"};
    return names[relation];
}

/* ---- what A holds ---- */

/* A vector of A, by its number among those of a cut. */
typedef struct place {
    uint32_t tensor;
    uint32_t cut;
    int64_t at;
} place;

typedef struct holder {
    const lb_content_tensor *a;
    uint32_t n_a;
    lb_content_numbers *sources; /* per tensor of A; t NULL: it cannot be held */
    place *list;
    uint32_t n;
    lb_hash index;
    uint8_t *used; /* per tensor of A: some tensor of B is made of it */
} holder;

static bool can_hold(const lb_tensor *t)
{
    return t->data && t->dtype < LB_DTYPE_COUNT && lb_dtype_bits(t->dtype) >= 8 && !lb_dtype_is_complex(t->dtype) &&
           lb_layout_numel(&t->layout) > 0;
}

static lb_content_vector vector_of(const holder *h, uint32_t row)
{
    const place *p = &h->list[row];
    return lb_content_vectors_at(p->tensor, &h->a[p->tensor].tensor.layout, (lb_content_cut)p->cut, p->at);
}

/* Of near vectors all with the same signs have one hash: where these are all alike, they tell nothing. */
enum { MOST_ALIKE = 64 };

/* Of equal vectors behind each other (rows of zeros) the first one alone is in the index: the others are met as its
 * successors. Of near ones the first few are. */
static bool add_vectors(holder *h, uint32_t tensor, lb_content_cut how)
{
    const lb_content_vectors all = lb_content_vectors_of(&h->a[tensor].tensor.layout, how);
    const size_t n = all.count > 0 && all.count < UINT32_MAX / 2 ? (size_t)all.count : 0;
    place *more = lb_array_reserve(h->list, h->n, n, sizeof *more);
    uint64_t *hashes = malloc((n + 1) * sizeof *hashes);
    if (more) h->list = more;
    bool room = more && hashes && n < LB_NONE - h->n;
    if (room && n) lb_content_vectors_hash(&h->sources[tensor], how, hashes);
    const uint32_t most_alike = h->sources[tensor].digits == LB_NO_DTYPE ? 1 : MOST_ALIKE;
    uint32_t alike = 0;
    for (size_t i = 0; i < n && room; i++) {
        h->list[h->n] = (place){tensor, (uint32_t)how, (int64_t)i};
        alike = i && hashes[i] == hashes[i - 1] ? alike + 1 : 0;
        if (alike < most_alike) room = lb_hash_add(&h->index, hashes[i], h->n);
        h->n++;
    }
    free(hashes);
    return room;
}

static void close_holder(holder *h)
{
    for (uint32_t i = 0; h->sources && i < h->n_a; i++) free(h->sources[i].owned);
    free(h->sources), free(h->list), free(h->used);
    lb_hash_release(&h->index);
}

/* Whole vectors, those that are one but for what rounded them, and but for a factor besides; then, behind those that go
 * with matrices, vectors of one number; then single elements. */
typedef enum stage { VECTORS, ROUNDINGS, SCALED, CONSTANTS, ELEMENTS } stage;

/* A parameter that was flattened for sharding is no vector of a model; a larger tensor of several dimensions is no
 * bias. */
enum { LONGEST_VECTOR = 1 << 16, LONGEST_BIAS = 1 << 13 };

static bool may_be_bias(const lb_layout *l)
{
    return lb_layout_numel(l) <= (l->ndim == 1 ? LONGEST_VECTOR : LONGEST_BIAS);
}

/* A few numbers with the same signs may be near each other by chance: each says how many digits it has in common. */
static bool is_telling(int64_t n, double room)
{
    const double bits = 48;
    return room > 0 && (double)n * -log2(room) >= bits;
}

static bool is_asked_in(stage stage, const lb_tensor *t)
{
    if (stage == VECTORS) return true;
    if (stage == SCALED) return t->layout.ndim > 1 && lb_layout_numel(&t->layout) > 1;
    if (stage != ROUNDINGS) return may_be_bias(&t->layout);
    return lb_dtype_is_float(t->dtype) && lb_layout_numel(&t->layout) > 1;
}

/* Does some tensor of B have its numbers in another dtype than these? `digits`: per dtype, one has. */
static bool is_rounded_elsewhere(const bool digits[LB_DTYPE_COUNT], lb_dtype own)
{
    for (int dtype = 0; dtype < LB_DTYPE_COUNT; dtype++)
        if (digits[dtype] && dtype != (int)own) return true;
    return false;
}

/* `digits`: what is_rounded_elsewhere asks, of the stage ROUNDINGS. */
static bool open_holder(holder *h, const lb_content_tensor *a, uint32_t n_a, const lb_dtype *as, stage stage,
                        const bool digits[LB_DTYPE_COUNT])
{
    const lb_content_cut end = stage <= SCALED      ? LB_VECTORS_CUTS
                               : stage == CONSTANTS ? LB_VECTORS_WHOLE + 1
                                                    : LB_VECTORS_WHOLE;
    *h = (holder){.a = a, .n_a = n_a, .sources = calloc(n_a + 1, sizeof *h->sources), .used = calloc(n_a + 1, 1)};
    bool room = h->sources && h->used;
    for (uint32_t i = 0; i < n_a && room; i++) {
        if (!can_hold(&a[i].tensor) || !is_asked_in(stage, &a[i].tensor)) continue;
        room = lb_content_vectors_open(&h->sources[i], &a[i].tensor, as);
        if (room && stage == SCALED) h->sources[i].scaled = true, h->sources[i].digits = LB_F64;
        if (room && stage == ROUNDINGS) {
            h->sources[i].digits = lb_content_vectors_digits(&h->sources[i]);
            if (!is_rounded_elsewhere(digits, h->sources[i].digits)) continue;
        }
        for (lb_content_cut how = LB_VECTORS_WHOLE; how < end && room; how++) room = add_vectors(h, i, how);
    }
    return room;
}

/* ---- one tensor of B ---- */

typedef struct finder {
    holder *holder;
    const lb_content_tensor *b;
    lb_content_numbers x; /* of b */
    lb_contents *out;
    struct element *elements; /* of A's biases, when they were first asked for */
    uint32_t n_elements;
    uint8_t *filter; /* of the numbers that they hold */
    bool listed, failed;
} finder;

/* Which of two vectors of A that hold the same numbers it rather is: the one behind the last one, one of a tensor by
 * that name, of that shape, one of a tensor that no other one is made of. */
static int liking(const finder *f, const lb_content_vector *v, const lb_content_vector *last)
{
    const lb_content_tensor *a = &f->holder->a[v->tensor], *b = f->b;
    const bool behind = last && last->tensor == v->tensor && last->cut == v->cut &&
                        (v->start == last->start + last->n * last->stride || v->start == last->start + 1);
    const bool same = last && last->tensor == v->tensor;
    return 16 * behind + 8 * same + 4 * (*b->name && !strcmp(a->name, b->name)) +
           2 * lb_layout_same_shape(&a->tensor.layout, &b->tensor.layout) + !f->holder->used[v->tensor];
}

/* Is some of what was found so far in this tensor of A? */
static bool is_taken_from(const finder *f, uint32_t first, uint32_t tensor)
{
    for (uint32_t k = first; k < f->out->n_runs; k++)
        if (f->out->runs[k].tensor == tensor) return true;
    return false;
}

/* `last`: the row of the vector that was found before, or LB_NONE. Its successor is what is liked best. `among`: in
 * tensors alone that runs from this one on name; LB_NONE: in all. */
static uint32_t find_vector(const finder *f, uint64_t hash, const lb_content_vector *w, uint32_t last, uint32_t among)
{
    const holder *h = f->holder;
    const lb_content_vector before = last == LB_NONE ? (lb_content_vector){0} : vector_of(h, last);
    uint32_t best = LB_NONE;
    int most = -1;
    if (last != LB_NONE && last + 1 < h->n && h->list[last + 1].tensor == before.tensor &&
        h->list[last + 1].cut == before.cut) {
        const lb_content_vector next = vector_of(h, last + 1);
        if (next.n == w->n && lb_content_vectors_are_equal(&h->sources[next.tensor], &next, &f->x, w)) return last + 1;
    }
    LB_HASH_EACH(row, &h->index, hash)
    {
        const lb_content_vector v = vector_of(h, row);
        if (v.n != w->n ||
            (f->x.digits != LB_NO_DTYPE && !is_telling(v.n, lb_content_vectors_room(&h->sources[v.tensor], &f->x))))
            continue;
        if (among != LB_NONE && !is_taken_from(f, among, v.tensor)) continue;
        const int now = liking(f, &v, last == LB_NONE ? NULL : &before);
        if (now <= most || !lb_content_vectors_are_equal(&h->sources[v.tensor], &v, &f->x, w)) continue;
        most = now, best = row;
    }
    return best;
}

/* Does a run go on where the other one ends? */
static bool goes_on(const lb_content_run *last, const lb_content_run *r)
{
    return last->tensor == r->tensor && r->from_stride == 1 && r->to_stride == 1 && last->from_stride == 1 &&
           last->to_stride == 1 && last->from + last->n == r->from && last->to + last->n == r->to;
}

bool lb_contents_add_run(lb_contents *contents, uint32_t first, lb_content_run run)
{
    if (contents->n_runs > first && goes_on(&contents->runs[contents->n_runs - 1], &run)) {
        contents->runs[contents->n_runs - 1].n += run.n;
        return true;
    }
    lb_content_run *more = lb_array_grow(contents->runs, contents->n_runs, sizeof *more);
    if (!more) return false;
    contents->runs = more, contents->runs[contents->n_runs++] = run;
    return true;
}

/* Vectors that each have a factor of their own stay apart. */
static void add_run(finder *f, const lb_content_vector *v, const lb_content_vector *w, uint32_t first)
{
    f->failed |= !lb_contents_add_run(f->out, f->x.scaled ? f->out->n_runs : first,
                                      (lb_content_run){v->tensor, v->start, v->stride, w->start, w->stride, v->n});
}

/* What is left of a tensor, some of which was found, is padding where it is one number all over. */
static bool is_padding(const finder *f, lb_content_cut how, int64_t found)
{
    const lb_content_vectors all = lb_content_vectors_of(&f->b->tensor.layout, how);
    const lb_content_vector last = lb_content_vectors_at(0, &f->b->tensor.layout, how, all.count - 1);
    const double filler = lb_content_vectors_first(&f->x, &last);
    int64_t left = 0;
    for (int64_t i = 0; i < all.count; i++) {
        const lb_content_vector w = lb_content_vectors_at(0, &f->b->tensor.layout, how, i);
        if (lb_content_vectors_is_constant(&f->x, &w) && lb_content_vectors_first(&f->x, &w) == filler) left += w.n;
    }
    return found > 0 && found + left >= all.count * all.n;
}

static int by_place(const void *x, const void *y)
{
    const lb_content_run *a = x, *b = y;
    return (a->to > b->to) - (a->to < b->to);
}

/* Runs in the order in which B has them, those that follow each other put together. */
static void sort_runs(finder *f, uint32_t first)
{
    lb_contents *out = f->out;
    lb_content_run *runs = out->runs;
    uint32_t kept = first;
    qsort(runs + first, out->n_runs - first, sizeof *runs, by_place);
    for (uint32_t k = first; k < out->n_runs; k++) {
        if (kept > first && !f->x.scaled && goes_on(&runs[kept - 1], &runs[k]))
            runs[kept - 1].n += runs[k].n;
        else
            runs[kept++] = runs[k];
    }
    out->n_runs = kept;
}

/* Cuts B's tensor in that way and looks up each vector; `found`: elements. A row that is one number all over is in
 * every tensor that has such a row: it is taken from one that the other rows came from. Where there is none it is left
 * out: rows of zeros that pad a table are no bias of zeros. */
static void try_cut(finder *f, lb_content_cut how, lb_content *out)
{
    const lb_layout *layout = &f->b->tensor.layout;
    const lb_content_vectors all = lb_content_vectors_of(layout, how);
    uint64_t *hashes = malloc((size_t)(all.count > 0 ? all.count : 1) * sizeof *hashes);
    bool any_constant = false;
    out->first = f->out->n_runs, out->found = 0, out->all = all.count * all.n;
    f->failed |= !hashes;
    if (hashes && all.count > 0) lb_content_vectors_hash(&f->x, how, hashes);
    for (int constants = 0; constants <= any_constant && !f->failed; constants++) {
        uint32_t last = LB_NONE;
        for (int64_t i = 0; i < all.count && !f->failed; i++) {
            const lb_content_vector w = lb_content_vectors_at(0, layout, how, i);
            const bool constant = how != LB_VECTORS_WHOLE && all.n > 1 && lb_content_vectors_is_constant(&f->x, &w);
            any_constant |= constant;
            if (constant != (constants > 0)) continue;
            const uint32_t row = find_vector(f, hashes[i], &w, last, constant ? out->first : LB_NONE);
            if (row == LB_NONE) continue;
            const lb_content_vector v = vector_of(f->holder, row);
            last = row;
            add_run(f, &v, &w, out->first);
            out->found += w.n;
        }
    }
    free(hashes);
    if (any_constant && f->out->n_runs > out->first) sort_runs(f, out->first);
    out->n = f->out->n_runs - out->first;
}

static lb_content_relation relation_of(const finder *f, const lb_content *c, lb_content_cut how)
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
    if (!in_order && how != LB_VECTORS_WHOLE) return LB_CONTENT_PERMUTED;
    if (!lb_layout_same_shape(&a->tensor.layout, &f->b->tensor.layout)) return LB_CONTENT_RESHAPED;
    return *a->name && !strcmp(a->name, f->b->name) ? LB_CONTENT_SAME : LB_CONTENT_RENAMED;
}

/* Elements of a vector of B stand in A's vectors in another order (biases of permuted rows) or behind each other (of
 * fused ones). A bias may have several dimensions (heads, size) on either side. */
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

/* A bit for each number that a bias of A may hold: what lacks one is not made of them, so that nothing is sorted. */
enum { FILTER_BITS = 22 };

static uint64_t bit_of(double number)
{
    const double x = number + 0.0;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits * UINT64_C(0x9E3779B97F4A7C15) >> (64 - FILTER_BITS);
}

static uint8_t *make_filter(const holder *h)
{
    double x[LB_CONTENT_PORTION];
    uint8_t *filter = calloc((size_t)1 << (FILTER_BITS - 3), 1);
    for (uint32_t t = 0; filter && t < h->n_a; t++) {
        const lb_layout *l = &h->a[t].tensor.layout;
        const int64_t all = lb_layout_numel(l);
        if (!h->sources[t].t || !may_be_bias(l)) continue;
        for (int64_t i = 0; i < all; i++) {
            if (i % LB_CONTENT_PORTION == 0)
                lb_content_vectors_load(&h->sources[t], i, 1,
                                        all - i < LB_CONTENT_PORTION ? all - i : LB_CONTENT_PORTION, x);
            const uint64_t bit = bit_of(x[i % LB_CONTENT_PORTION]);
            filter[bit >> 3] |= (uint8_t)(1 << (bit & 7));
        }
    }
    return filter;
}

/* May all numbers of B's tensor be among those of A's biases? */
static bool may_be_made_of_elements(finder *f)
{
    const int64_t all = lb_layout_numel(&f->b->tensor.layout);
    double x[LB_CONTENT_PORTION];
    if (!f->filter && !(f->filter = make_filter(f->holder))) return true;
    for (int64_t i = 0; i < all; i++) {
        if (i % LB_CONTENT_PORTION == 0)
            lb_content_vectors_load(&f->x, i, 1, all - i < LB_CONTENT_PORTION ? all - i : LB_CONTENT_PORTION, x);
        const uint64_t bit = bit_of(x[i % LB_CONTENT_PORTION]);
        if (!(f->filter[bit >> 3] & 1 << (bit & 7))) return false;
    }
    return true;
}

static uint32_t list_elements(const holder *h, element **out)
{
    uint32_t n = 0;
    double x[LB_CONTENT_PORTION];
    *out = NULL;
    for (uint32_t t = 0; t < h->n_a; t++) {
        const lb_layout *l = &h->a[t].tensor.layout;
        const int64_t all = lb_layout_numel(l);
        if (!h->sources[t].t || !may_be_bias(l)) continue;
        for (int64_t i = 0; i < all; i++) {
            if (i % LB_CONTENT_PORTION == 0)
                lb_content_vectors_load(&h->sources[t], i, 1,
                                        all - i < LB_CONTENT_PORTION ? all - i : LB_CONTENT_PORTION, x);
            element *more = lb_array_grow(*out, n, sizeof *more);
            if (!more) return n;
            *out = more;
            (*out)[n++] = (element){x[i % LB_CONTENT_PORTION] + 0.0, t, i};
        }
    }
    if (n) qsort(*out, n, sizeof **out, by_number);
    return n;
}

/* How many numbers of A's tensor from `at` on are those of B's from `to` on. */
static int64_t equal_numbers(const finder *f, uint32_t tensor, int64_t at, int64_t to)
{
    const int64_t all = lb_layout_numel(&f->b->tensor.layout),
                  there = lb_layout_numel(&f->holder->a[tensor].tensor.layout),
                  most = all - to < there - at ? all - to : there - at;
    double x[LB_CONTENT_PORTION], y[LB_CONTENT_PORTION];
    for (int64_t done = 0; done < most; done += LB_CONTENT_PORTION) {
        const int64_t n = most - done < LB_CONTENT_PORTION ? most - done : LB_CONTENT_PORTION;
        lb_content_vectors_load(&f->holder->sources[tensor], at + done, 1, n, x),
            lb_content_vectors_load(&f->x, to + done, 1, n, y);
        for (int64_t i = 0; i < n; i++)
            if (x[i] != y[i]) return done + i;
    }
    return most > 0 ? most : 0;
}

/* From each number on, the longest stretch of one of A's tensors that goes on as B's does: single numbers are all over,
 * in 16 bits above all. */
static void try_elements(finder *f, lb_content *out)
{
    if (!f->listed) f->n_elements = list_elements(f->holder, &f->elements), f->listed = true;
    const int64_t all = lb_layout_numel(&f->b->tensor.layout);
    out->first = f->out->n_runs, out->found = 0, out->all = all;
    for (int64_t i = 0; i < all && !f->failed;) {
        double number;
        lb_content_vectors_load(&f->x, i, 1, 1, &number);
        number += 0.0;
        const element *best = NULL;
        int64_t longest = 0;
        for (size_t k = lb_array_first(f->elements, f->n_elements, sizeof *f->elements, &number, lb_by_f64);
             k < f->n_elements && f->elements[k].number == number; k++) {
            const element *e = &f->elements[k];
            const int64_t n = equal_numbers(f, e->tensor, e->at, i);
            if (n > longest) best = e, longest = n;
        }
        if (!best) break;
        f->failed |=
            !lb_contents_add_run(f->out, out->first, (lb_content_run){best->tensor, best->at, 1, i, 1, longest});
        out->found += longest, i += longest;
    }
    out->n = f->out->n_runs - out->first;
}

/* In 16 bits any number is somewhere: a single one that differs is no part of another tensor. Of several dimensions
 * (heads, size) whole rows are: a matrix in whose rows some numbers differ is no bias. */
enum { SHORTEST_RUN = 4 };

static bool is_in_long_runs(const finder *f, const lb_content *c)
{
    const lb_layout *l = &f->b->tensor.layout;
    const int64_t row = l->ndim > 1 ? l->shape[l->ndim - 1] : 1, shortest = row > SHORTEST_RUN ? row : SHORTEST_RUN;
    bool convincing = true;
    for (uint32_t i = 0; i < c->n && convincing; i++) convincing = f->out->runs[c->first + i].n >= shortest;
    return convincing;
}

/* Elements that were found one by one are a match where they lie behind each other, or, of a vector, use up all of the
 * tensors that they come from. */
static bool is_convincing(const finder *f, const lb_content *c)
{
    int64_t used = 0;
    if (c->found < c->all) return false;
    if (is_in_long_runs(f, c)) return true;
    if (f->b->tensor.layout.ndim != 1) return false;
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

static void use(finder *f, lb_content *c, lb_content_cut how, bool cast)
{
    c->relation = relation_of(f, c, how), c->tensor = f->out->runs[c->first].tensor, c->cast = cast;
    for (uint32_t i = 0; i < c->n; i++) f->holder->used[f->out->runs[c->first + i].tensor] = 1;
}

static bool tells(const finder *f)
{
    const lb_content_vector all = {0, LB_VECTORS_WHOLE, 0, 1, lb_layout_numel(&f->b->tensor.layout)};
    return all.n > 1 && !lb_content_vectors_is_constant(&f->x, &all);
}

/* Is one number all over to be told by name? By its place beside a matrix, else (`last`) by any that is left. */
static bool waits(const finder *f, const lb_content *c, bool last)
{
    const lb_content_tensor *a = c->n ? &f->holder->a[f->out->runs[c->first].tensor] : NULL;
    return !last && may_be_bias(&f->b->tensor.layout) && lb_layout_numel(&f->b->tensor.layout) > 1 && !tells(f) &&
           !(a && *a->name && !strcmp(a->name, f->b->name));
}

/* The first way in which all of it is found; false: there is none. `last`: nothing else will be asked. */
static bool match_tensor(finder *f, bool cast, bool last, lb_content *c)
{
    static const lb_content_cut order[] = {LB_VECTORS_WHOLE,       LB_VECTORS_FLAT_ROWS,    LB_VECTORS_ROWS,
                                           LB_VECTORS_COLUMNS,     LB_VECTORS_FLAT_COLUMNS, LB_VECTORS_ALONG_SECOND,
                                           LB_VECTORS_ALONG_THIRD, LB_VECTORS_ALONG_FOURTH};
    for (size_t k = 0; k < sizeof order / sizeof *order && !f->failed; k++) {
        lb_content now = {.tensor = LB_NONE};
        if (order[k] != LB_VECTORS_WHOLE && !tells(f)) break;
        try_cut(f, order[k], &now);
        if (now.found && !waits(f, &now, last) &&
            (now.found == now.all ||
             (order[k] == LB_VECTORS_ROWS && f->x.digits == LB_NO_DTYPE && is_padding(f, order[k], now.found)))) {
            *c = now;
            use(f, c, order[k], cast);
            return true;
        }
        f->out->n_runs = now.first;
    }
    return false;
}

/* Numbers that stand nowhere as rows or columns, one by one. */
static bool match_elements(finder *f, bool cast, lb_content *c)
{
    if (!may_be_bias(&f->b->tensor.layout) || !tells(f) || !may_be_made_of_elements(f)) return false;
    lb_content now = {.tensor = LB_NONE};
    try_elements(f, &now);
    if (is_convincing(f, &now)) {
        *c = now;
        use(f, c, LB_VECTORS_ROWS, cast);
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

/* Per dtype: is it the coarsest one that holds all numbers of some tensor which is not known yet? */
static bool list_digits(const lb_contents *out, const lb_content_tensor *b, uint32_t n_b, bool digits[LB_DTYPE_COUNT])
{
    bool room = true;
    for (uint32_t i = 0; i < n_b && room; i++) {
        lb_content_numbers x;
        if (!is_pending(out, b, i) || !is_asked_in(ROUNDINGS, &b[i].tensor)) continue;
        room = lb_content_vectors_open(&x, &b[i].tensor, NULL);
        if (room) digits[lb_content_vectors_digits(&x)] = true;
        free(x.owned);
    }
    return room;
}

static bool match_all(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t n_b,
                      const lb_dtype *as, stage stage, double roundings, lb_contents *out)
{
    const bool by_elements = stage == ELEMENTS;
    bool digits[LB_DTYPE_COUNT] = {false};
    holder h;
    finder f = {.holder = &h, .out = out, .failed = stage == ROUNDINGS && !list_digits(out, b, n_b, digits)};
    f.failed |= !open_holder(&h, a, n_a, as, stage, digits);
    for (uint32_t i = 0; i < n_b && !f.failed; i++) {
        if (!is_pending(out, b, i) || (as && b[i].tensor.dtype != *as) || !is_asked_in(stage, &b[i].tensor)) continue;
        f.b = &b[i], f.failed |= !lb_content_vectors_open(&f.x, &b[i].tensor, NULL);
        if (!f.failed && (stage == ROUNDINGS || stage == SCALED))
            f.x.digits = lb_content_vectors_digits(&f.x), f.x.roundings = roundings, f.x.scaled = stage == SCALED;
        if (!f.failed && !by_elements)
            match_tensor(&f, as || stage == ROUNDINGS || stage == SCALED, stage == CONSTANTS, &out->list[i]);
        if (!f.failed && by_elements) match_elements(&f, as != NULL, &out->list[i]);
        free(f.x.owned);
    }
    free(f.elements), free(f.filter);
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

/* First as they are, then after rounding to B's dtypes. */
static bool match_numbers(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t n_b,
                          stage stage, lb_contents *out)
{
    bool tried[LB_DTYPE_COUNT] = {false}, any = false;
    for (uint32_t i = 0; i < n_b && !any; i++) any = is_pending(out, b, i) && is_asked_in(stage, &b[i].tensor);
    bool room = !any || match_all(a, n_a, b, n_b, NULL, stage, 1, out);
    for (uint32_t i = 0; i < n_b && room && any && stage != ROUNDINGS; i++) {
        const lb_dtype as = b[i].tensor.dtype;
        if (!is_pending(out, b, i) || !lb_dtype_is_float(as) || tried[as]) continue;
        bool wider = false;
        for (uint32_t k = 0; k < n_a; k++)
            wider |= lb_dtype_is_float(a[k].tensor.dtype) && lb_dtype_bits(a[k].tensor.dtype) > lb_dtype_bits(as);
        if (wider) room = match_all(a, n_a, b, n_b, &as, stage, 1, out);
        tried[as] = true;
    }
    return room;
}

/* Nothing is known yet of any of B's. */
static bool open_contents(const lb_content_tensor *b, uint32_t n_b, lb_contents *out)
{
    *out = (lb_contents){.list = calloc(n_b + 1, sizeof *out->list), .n = n_b};
    for (uint32_t i = 0; i < n_b && out->list; i++)
        out->list[i] = (lb_content){.tensor = LB_NONE, .all = lb_layout_numel(&b[i].tensor.layout)};
    return out->list != NULL;
}

static lb_status close_contents(bool room, uint32_t n_a, uint32_t n_b, lb_contents *out, lb_err *err)
{
    if (room) return LB_OK;
    lb_contents_release(out);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for the contents of %u and %u tensors", n_a, n_b);
}

lb_status lb_contents_match_roundings(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b,
                                      uint32_t n_b, double roundings, lb_contents *out, lb_err *err)
{
    const bool room = open_contents(b, n_b, out) && match_all(a, n_a, b, n_b, NULL, ROUNDINGS, roundings, out);
    return close_contents(room, n_a, n_b, out, err);
}

lb_status lb_contents_match_scaled(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t n_b,
                                   double roundings, lb_contents *out, lb_err *err)
{
    const bool room = open_contents(b, n_b, out) && match_all(a, n_a, b, n_b, NULL, SCALED, roundings, out);
    return close_contents(room, n_a, n_b, out, err);
}

lb_status lb_contents_match(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t n_b,
                            lb_contents *out, lb_err *err)
{
    bool room = open_contents(b, n_b, out);
    room = room && match_numbers(a, n_a, b, n_b, VECTORS, out);
    room = room && match_numbers(a, n_a, b, n_b, ROUNDINGS, out);
    room = room && lb_content_features_match(a, n_a, b, n_b, out);
    room = room && match_numbers(a, n_a, b, n_b, CONSTANTS, out);
    room = room && match_numbers(a, n_a, b, n_b, ELEMENTS, out);
    for (uint32_t i = 0; i < n_b && room; i++)
        if (out->list[i].relation == LB_CONTENT_NONE) room = match_name(a, n_a, &b[i], i, out);
    return close_contents(room, n_a, n_b, out, err);
}

void lb_contents_release(lb_contents *contents)
{
    free(contents->list), free(contents->runs);
    *contents = (lb_contents){0};
}
