/* Sources whose numbers are nearly those of the other side: see near_sources.h. */
#include "sources/near_sources.h"

#include "shadow/shadow_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_APART 0.1
#define MOST_APART_BY_NAME 0.5
#define TIMES_FARTHER 3.0

/* Numbers of one source, as rows of one width. */
typedef struct matrix {
    double *x;
    int64_t rows, width;
    bool turns;    /* of two dimensions: columns are vectors, too */
    int64_t found; /* of A: elements that are some of B's */
    bool taken;    /* of A: all of them are; of B: it was found */
} matrix;

typedef struct finder {
    const lb_step_sources *a, *b;
    lb_contents *contents;
    matrix *of_a, *of_b; /* per row; x is NULL where there is nothing to look for */
    bool failed;
} finder;

/* ---- what is looked for, and among what ---- */

static bool may_move(const lb_step_sources *s, uint32_t row)
{
    const lb_tensor *t = &s->tensors[row].tensor;
    return t->data && lb_dtype_is_float(t->dtype) && lb_dtype_bits(t->dtype) >= 16 && lb_layout_numel(&t->layout) > 1 &&
           (s->list[row].learnt || s->list[row].kept || s->list[row].kind == LB_SOURCE_CARRIED);
}

static int64_t numel(const matrix *m)
{
    return m->rows * m->width;
}

static matrix matrix_of(const lb_tensor *t)
{
    enum { LEAST_WIDTH = 8 };
    const lb_layout *l = &t->layout;
    const int64_t n = lb_layout_numel(l);
    matrix m = {.x = lb_shadow_numbers_copy(t), .rows = 1, .width = n};
    if (l->ndim < 2) return m;
    m.width = l->shape[l->ndim - 1];
    if (l->ndim > 2 && m.width < LEAST_WIDTH) m.width = n / l->shape[0];
    m.rows = n / m.width, m.turns = l->ndim == 2;
    return m;
}

static bool is_parameter(const lb_step_source *s)
{
    return s->learnt && !lb_step_source_is_state(s);
}

/* Weights in bf16 are those in f32, cast, that an optimizer has of them; one of their own dtype that is near is nearer.
 */
static bool is_unmatched(const lb_content *content)
{
    return content->relation == LB_CONTENT_NONE || content->relation == LB_CONTENT_NAMED || content->cast;
}

/* Per tensor of A: how many of its elements B holds; malloc'ed, NULL: out of memory. */
static int64_t *count_held(const finder *finder)
{
    int64_t *held = calloc(finder->a->n + 1u, sizeof *held);
    for (uint32_t i = 0; i < finder->contents->n && held; i++) {
        const lb_content *content = &finder->contents->list[i];
        for (uint32_t k = 0; k < content->n && !is_unmatched(content); k++)
            held[finder->contents->runs[content->first + k].tensor] += finder->contents->runs[content->first + k].n;
    }
    return held;
}

static void load(finder *finder)
{
    int64_t *held = count_held(finder);
    finder->of_a = calloc(finder->a->n + 1u, sizeof *finder->of_a),
    finder->of_b = calloc(finder->b->n + 1u, sizeof *finder->of_b);
    finder->failed |= !held || !finder->of_a || !finder->of_b;
    for (uint32_t i = 0; i < finder->a->n && !finder->failed; i++) {
        if (!may_move(finder->a, i) || held[i] >= lb_layout_numel(&finder->a->tensors[i].tensor.layout)) continue;
        finder->of_a[i] = matrix_of(&finder->a->tensors[i].tensor), finder->of_a[i].found = held[i],
        finder->failed |= !finder->of_a[i].x;
    }
    for (uint32_t i = 0; i < finder->b->n && !finder->failed; i++) {
        if (!may_move(finder->b, i) || !is_unmatched(&finder->contents->list[i])) continue;
        finder->of_b[i] = matrix_of(&finder->b->tensors[i].tensor), finder->failed |= !finder->of_b[i].x;
    }
    free(held);
}

static bool is_open(const finder *finder, uint32_t row)
{
    return finder->of_b[row].x && !finder->of_b[row].taken;
}

/* ---- distances ---- */

/* Relative L2 of `n` strided numbers of A to as many of B; 2 where it is more than `limit`, or cannot be told. */
static double apart(const double *x, int64_t step_x, const double *y, int64_t step_y, int64_t n, double limit)
{
    double all = 0, size = 0;
    for (int64_t i = 0; i < n; i++) size += x[i * step_x] * x[i * step_x];
    const double most = limit * limit * size;
    for (int64_t i = 0; i < n; i++) {
        const double d = x[i * step_x] - y[i * step_y];
        all += d * d;
        if (!(all <= most)) return 2;
    }
    return size > 0 ? sqrt(all / size) : 2;
}

/* The same of all numbers, where A's matrix is turned. */
static double apart_turned(const matrix *x, const matrix *y)
{
    double worst = 0;
    for (int64_t r = 0; r < y->rows; r++) {
        const double d = apart(x->x + r, x->width, y->x + r * y->width, 1, y->width, MOST_APART);
        if (d > worst) worst = d;
    }
    return worst;
}

typedef struct nearest {
    double best, next; /* 2: none */
    uint32_t row;
    int64_t at; /* what is near it there: the caller's number */
} nearest;

#define NEAREST_NONE ((nearest){2, 2, LB_NONE, 0})

static void consider(nearest *n, double distance, uint32_t row, int64_t at)
{
    if (distance < n->best) {
        n->next = n->best;
        *n = (nearest){distance, n->next, row, at};
    } else if (distance < n->next) {
        n->next = distance;
    }
}

static bool tells(const nearest *n)
{
    return n->row != LB_NONE && n->best <= MOST_APART && n->next >= TIMES_FARTHER * n->best;
}

/* ---- what was found ---- */

static void take(finder *finder, uint32_t row, const lb_content_run *runs, uint32_t n, lb_content_relation relation)
{
    lb_contents *all = finder->contents;
    const uint32_t first = all->n_runs;
    for (uint32_t i = 0; i < n && !finder->failed; i++) finder->failed |= !lb_contents_add_run(all, first, runs[i]);
    if (finder->failed) return;
    const lb_content before = all->list[row];
    all->list[row] = (lb_content){.relation = relation,
                                  .tensor = all->runs[first].tensor,
                                  .first = first,
                                  .n = all->n_runs - first,
                                  .all = before.all};
    for (uint32_t i = first; i < all->n_runs; i++) {
        matrix *x = &finder->of_a[all->runs[i].tensor];
        x->found += all->runs[i].n, x->taken = x->found >= numel(x);
    }
    finder->of_b[row].taken = true;
}

static void take_whole(finder *finder, uint32_t row, uint32_t from)
{
    const bool named = *finder->b->list[row].name && !strcmp(finder->a->list[from].name, finder->b->list[row].name);
    const lb_content_run run = {from, 0, 1, 0, 1, numel(&finder->of_b[row])};
    take(finder, row, &run, 1, named ? LB_CONTENT_SAME : LB_CONTENT_RENAMED);
}

static bool has_one_kind(const finder *finder, uint32_t from, uint32_t row)
{
    return finder->a->tensors[from].tensor.dtype == finder->b->tensors[row].tensor.dtype;
}

/* ---- by name ---- */

static void find_by_name(finder *finder, uint32_t row)
{
    const char *name = finder->b->list[row].name;
    for (uint32_t i = 0; i < finder->a->n && *name; i++) {
        if (!finder->of_a[i].x || finder->of_a[i].taken || strcmp(finder->a->list[i].name, name)) continue;
        if (finder->a->list[i].part != finder->b->list[row].part ||
            numel(&finder->of_a[i]) != numel(&finder->of_b[row]))
            continue;
        if (finder->contents->list[row].cast && !has_one_kind(finder, i, row)) continue;
        if (apart(finder->of_a[i].x, 1, finder->of_b[row].x, 1, numel(&finder->of_b[row]), MOST_APART_BY_NAME) >
            MOST_APART_BY_NAME)
            continue;
        take_whole(finder, row, i);
        return;
    }
}

/* ---- whole tensors ---- */

static void take_turned(finder *finder, uint32_t row, uint32_t from)
{
    const matrix *x = &finder->of_a[from], *y = &finder->of_b[row];
    lb_content_run *runs = malloc((size_t)y->rows * sizeof *runs);
    finder->failed |= !runs;
    for (int64_t r = 0; r < y->rows && runs; r++)
        runs[r] = (lb_content_run){from, r, x->width, r * y->width, 1, y->width};
    if (runs) take(finder, row, runs, (uint32_t)y->rows, LB_CONTENT_TRANSPOSED);
    free(runs);
}

/* Of one dtype first: weights in f32 are near those in bf16 that a model has of them. */
static nearest nearest_whole(const finder *finder, uint32_t row, bool of_kind)
{
    const matrix *y = &finder->of_b[row];
    nearest found = NEAREST_NONE;
    for (uint32_t i = 0; i < finder->a->n; i++) {
        const matrix *x = &finder->of_a[i];
        if (!x->x || x->taken || numel(x) != numel(y) || (of_kind && !has_one_kind(finder, i, row))) continue;
        consider(&found, apart(x->x, 1, y->x, 1, numel(y), 1), i, 0);
        if (x->turns && y->turns && x->rows == y->width) consider(&found, apart_turned(x, y), i, 1);
    }
    return found;
}

static void find_whole(finder *finder, uint32_t row)
{
    if (finder->of_b[row].rows == 1) return; /* may as well be a part of a longer one */
    nearest found = nearest_whole(finder, row, true);
    if (found.row == LB_NONE && !finder->contents->list[row].cast) found = nearest_whole(finder, row, false);
    if (!tells(&found)) return;
    /* Another source of B may be nearer to it. */
    const matrix *x = &finder->of_a[found.row];
    for (uint32_t i = 0; i < finder->b->n; i++)
        if (i != row && is_open(finder, i) && numel(&finder->of_b[i]) == numel(x) &&
            has_one_kind(finder, found.row, i) && apart(x->x, 1, finder->of_b[i].x, 1, numel(x), 1) < found.best)
            return;
    if (found.at)
        take_turned(finder, row, found.row);
    else
        take_whole(finder, row, found.row);
}

/* ---- vector by vector ---- */

/* A vector of A: a row, or a column, of one of its matrices. */
typedef struct place {
    uint32_t row; /* of the sources; LB_NONE */
    bool column;
    int64_t number;
} place;

static double apart_from_place(const finder *finder, place p, const double *y, int64_t step, int64_t width,
                               double limit)
{
    const matrix *x = &finder->of_a[p.row];
    const bool fits = p.number >= 0 && (p.column ? x->turns && x->rows == width && p.number < x->width
                                                 : x->width == width && p.number < x->rows);
    if (!fits) return 2;
    return p.column ? apart(x->x + p.number, x->width, y, step, width, limit)
                    : apart(x->x + p.number * width, 1, y, step, width, limit);
}

static place nearest_vector(const finder *finder, uint32_t row, const double *y, int64_t step, int64_t width)
{
    nearest found = NEAREST_NONE;
    bool column = false;
    for (uint32_t i = 0; i < finder->a->n; i++) {
        const matrix *x = &finder->of_a[i];
        if (!x->x || x->taken || !has_one_kind(finder, i, row)) continue;
        for (int k = 0; k < 1 + x->turns; k++) {
            const int64_t n = k ? x->width : x->rows;
            for (int64_t r = 0; r < n; r++) {
                const double limit = fmin(1, TIMES_FARTHER * fmax(found.best, 1e-12)),
                             d = apart_from_place(finder, (place){i, k, r}, y, step, width, found.best < 2 ? limit : 1);
                if (d < found.best) column = k;
                consider(&found, d, i, r);
            }
        }
    }
    return tells(&found) ? (place){found.row, column, found.at} : (place){LB_NONE, false, 0};
}

/* Zeros stand anywhere: such a vector stands behind the one before it, or before the one behind it. */
static uint32_t fill_gaps(place *places, int64_t n)
{
    uint32_t gaps = 0;
    for (int64_t i = 1; i < n; i++)
        if (places[i].row == LB_NONE && places[i - 1].row != LB_NONE) places[i] = places[i - 1], places[i].number++;
    for (int64_t i = n - 1; i-- > 0;)
        if (places[i].row == LB_NONE && places[i + 1].row != LB_NONE) places[i] = places[i + 1], places[i].number--;
    for (int64_t i = 0; i < n; i++) gaps += places[i].row == LB_NONE;
    return gaps;
}

static bool are_in_bounds(const finder *finder, const place *places, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const matrix *x = &finder->of_a[places[i].row];
        if (places[i].number < 0 || places[i].number >= (places[i].column ? x->width : x->rows)) return false;
    }
    return true;
}

static void take_vectors(finder *finder, uint32_t row, const place *places, int64_t n, bool columns)
{
    const matrix *y = &finder->of_b[row];
    const int64_t width = columns ? y->rows : y->width;
    lb_content_run *runs = malloc((size_t)n * sizeof *runs);
    bool several = false;
    finder->failed |= !runs;
    for (int64_t i = 0; i < n && runs; i++) {
        const place *p = &places[i];
        const matrix *x = &finder->of_a[p->row];
        several |= p->row != places[0].row;
        runs[i] = (lb_content_run){p->row,
                                   p->column ? p->number : p->number * x->width,
                                   p->column ? x->width : 1,
                                   columns ? i : i * y->width,
                                   columns ? y->width : 1,
                                   width};
    }
    const bool part = numel(&finder->of_a[places[0].row]) != numel(y);
    if (runs)
        take(finder, row, runs, (uint32_t)n,
             several ? LB_CONTENT_FUSED
             : part  ? LB_CONTENT_SPLIT
                     : LB_CONTENT_PERMUTED);
    free(runs);
}

static bool find_vectors_along(finder *finder, uint32_t row, bool columns)
{
    const matrix *y = &finder->of_b[row];
    const int64_t n = columns ? y->width : y->rows, width = columns ? y->rows : y->width;
    place *places = malloc((size_t)n * sizeof *places);
    int64_t known = 0;
    finder->failed |= !places;
    for (int64_t i = 0; i < n && places; i++) {
        const double *vector = columns ? y->x + i : y->x + i * width;
        const int64_t step = columns ? y->width : 1;
        place next = i && places[i - 1].row != LB_NONE ? places[i - 1] : (place){LB_NONE, false, 0};
        next.number++;
        const bool goes_on = next.row != LB_NONE && apart_from_place(finder, next, vector, step, width, 0.01) <= 0.01;
        places[i] = goes_on ? next : nearest_vector(finder, row, vector, step, width);
        known += places[i].row != LB_NONE;
        if (i >= 16 && !known) break; /* none of the first ones is near any */
    }
    const bool found = places && 2 * known > n && !fill_gaps(places, n) && are_in_bounds(finder, places, n);
    if (found) take_vectors(finder, row, places, n, columns);
    free(places);
    return found;
}

/* Several tensors of one dimension in one, or one that is a part of a longer one. */
static bool find_pieces(finder *finder, uint32_t row)
{
    enum { MOST = 64 };
    const matrix *y = &finder->of_b[row];
    lb_content_run runs[MOST];
    uint32_t n = 0;
    for (int64_t at = 0; at < y->width;) {
        nearest found = NEAREST_NONE;
        for (uint32_t i = 0; i < finder->a->n; i++) {
            const matrix *x = &finder->of_a[i];
            if (!x->x || x->taken || x->rows != 1 || !has_one_kind(finder, i, row)) continue;
            const int64_t size = x->width < y->width - at ? x->width : y->width - at;
            if (x->width > y->width - at && at) continue;
            for (int64_t from = 0; from + size <= x->width; from++)
                consider(&found, apart(x->x + from, 1, y->x + at, 1, size, 1), i, from);
        }
        if (!tells(&found) || n == MOST) return false;
        const matrix *x = &finder->of_a[found.row];
        const int64_t size = x->width < y->width - at ? x->width : y->width - at;
        runs[n++] = (lb_content_run){found.row, found.at, 1, at, 1, size};
        at += size;
    }
    if (n == 1 && runs[0].n == finder->of_a[runs[0].tensor].width)
        take_whole(finder, row, runs[0].tensor);
    else
        take(finder, row, runs, n, n > 1 ? LB_CONTENT_FUSED : LB_CONTENT_SPLIT);
    return true;
}

static void find_by_vectors(finder *finder, uint32_t row)
{
    const matrix *y = &finder->of_b[row];
    if (y->rows == 1)
        find_pieces(finder, row);
    else if (!find_vectors_along(finder, row, false) && y->turns)
        find_vectors_along(finder, row, true);
}

/* ---- by what is read before and behind it ---- */

/* The ops of A between which B's source stands: those that first read what stands beside B's last source before it, and
 * its next one behind it, of sources that were found. */
static void neighbours(const finder *finder, uint32_t row, uint32_t between[2])
{
    uint32_t nearest_of_b[2] = {LB_NONE, LB_NONE};
    const uint32_t own = finder->b->list[row].op;
    between[0] = 0, between[1] = LB_NONE;
    for (uint32_t i = 0; i < finder->b->n; i++) {
        const lb_content *content = &finder->contents->list[i];
        const int side = finder->b->list[i].op > own;
        const uint32_t op = finder->b->list[i].op;
        if (i == row || is_unmatched(content) || !content->n || !is_parameter(&finder->b->list[i])) continue;
        if (finder->b->list[i].part != finder->b->list[row].part || finder->b->tensors[i].tensor.layout.ndim < 2)
            continue;
        if (nearest_of_b[side] != LB_NONE && (side ? op > nearest_of_b[1] : op < nearest_of_b[0])) continue;
        nearest_of_b[side] = op;
        for (uint32_t k = 0; k < content->n; k++) {
            const uint32_t of_a = finder->a->list[finder->contents->runs[content->first + k].tensor].op;
            if (!k || (side ? of_a < between[1] : of_a > between[0])) between[side] = of_a;
        }
    }
}

/* Norms of all layers hold nearly the same: it is the nearest of those that are read there. */
static void find_between(finder *finder, uint32_t row)
{
    uint32_t between[2];
    nearest found = NEAREST_NONE;
    if (!is_parameter(&finder->b->list[row]) || finder->contents->list[row].cast) return;
    neighbours(finder, row, between);
    for (uint32_t i = 0; i < finder->a->n; i++) {
        const matrix *x = &finder->of_a[i];
        if (!x->x || x->taken || !is_parameter(&finder->a->list[i]) || numel(x) != numel(&finder->of_b[row])) continue;
        if (finder->a->list[i].op < between[0] || finder->a->list[i].op > between[1]) continue;
        consider(&found, apart(x->x, 1, finder->of_b[row].x, 1, numel(x), 1), i, 0);
    }
    if (tells(&found)) take_whole(finder, row, found.row);
}

/* ---- by siblings ---- */

/* `name` with another number in the place of its first one. False: it has none, or is too long. */
static bool renumber(const char *name, int64_t by, char *text, size_t size)
{
    const lb_step_source_number number = lb_step_source_number_in(name);
    if (!number.digits || number.value + by < 0) return false;
    const int n = snprintf(text, size, "%.*s%lld%s", (int)number.at, name, (long long)(number.value + by),
                           name + number.at + number.digits);
    return n > 0 && (size_t)n < size;
}

static uint32_t find_free(const finder *finder, const char *name, uint32_t part)
{
    for (uint32_t i = 0; i < finder->a->n; i++)
        if (finder->of_a[i].x && !finder->of_a[i].taken && finder->a->list[i].part == part &&
            !strcmp(finder->a->list[i].name, name))
            return i;
    return LB_NONE;
}

/* The row stands where its sibling does, some layers on. */
static bool take_like(finder *finder, uint32_t row, uint32_t sibling, int64_t layers)
{
    const lb_content *content = &finder->contents->list[sibling];
    lb_content_run *runs = malloc((content->n + 1u) * sizeof *runs);
    bool fits = runs && content->n;
    finder->failed |= !runs;
    for (uint32_t k = 0; k < content->n && fits; k++) {
        char name[400];
        runs[k] = finder->contents->runs[content->first + k];
        const lb_step_source *of = &finder->a->list[runs[k].tensor];
        const uint32_t from =
            renumber(of->name, layers, name, sizeof name) ? find_free(finder, name, of->part) : LB_NONE;
        fits = from != LB_NONE && lb_layout_same_shape(&finder->a->tensors[from].tensor.layout,
                                                       &finder->a->tensors[runs[k].tensor].tensor.layout);
        runs[k].tensor = from;
    }
    if (fits) take(finder, row, runs, content->n, content->relation);
    free(runs);
    return fits;
}

static void find_by_siblings(finder *finder, uint32_t row)
{
    const lb_step_source *own = &finder->b->list[row];
    const lb_step_source_number number = lb_step_source_number_in(own->name);
    for (uint32_t i = 0; i < finder->b->n && number.digits && !finder->contents->list[row].cast; i++) {
        char name[400];
        const lb_step_source_number other = lb_step_source_number_in(finder->b->list[i].name);
        const int64_t layers = number.value - other.value;
        if (!other.digits || !layers || !finder->contents->list[i].n || is_open(finder, i)) continue;
        if (!renumber(finder->b->list[i].name, layers, name, sizeof name) || strcmp(name, own->name)) continue;
        if (finder->b->list[i].part == own->part &&
            lb_layout_same_shape(&finder->b->tensors[i].tensor.layout, &finder->b->tensors[row].tensor.layout) &&
            take_like(finder, row, i, layers))
            return;
    }
}

/* ---- what is left ---- */

/* The only parameter of its shape that is left on both sides. */
static void find_last(finder *finder, uint32_t row)
{
    const lb_layout *shape = &finder->b->tensors[row].tensor.layout;
    uint32_t found = LB_NONE, n[2] = {0, 0};
    for (uint32_t i = 0; i < finder->a->n; i++)
        if (finder->of_a[i].x && !finder->of_a[i].taken && is_parameter(&finder->a->list[i]) &&
            lb_layout_same_shape(&finder->a->tensors[i].tensor.layout, shape))
            found = i, n[0]++;
    for (uint32_t i = 0; i < finder->b->n; i++)
        n[1] += is_open(finder, i) && is_parameter(&finder->b->list[i]) &&
                lb_layout_same_shape(&finder->b->tensors[i].tensor.layout, shape);
    if (n[0] == 1 && n[1] == 1 && !finder->contents->list[row].cast) take_whole(finder, row, found);
}

/* Names of both sides that no numbers refute: the numbers of each are far from all others. */
static void keep_name(finder *finder, uint32_t row)
{
    lb_content *content = &finder->contents->list[row];
    if (content->relation != LB_CONTENT_NAMED || !finder->b->list[row].learnt) return;
    const uint32_t from = find_free(finder, finder->b->list[row].name, finder->b->list[row].part);
    if (from != LB_NONE && numel(&finder->of_a[from]) == numel(&finder->of_b[row])) take_whole(finder, row, from);
    if (finder->of_b[row].taken) content->relation = LB_CONTENT_NAMED;
}

/* What is given anew in each step does not meet by its name. */
static void drop_names(finder *finder)
{
    for (uint32_t i = 0; i < finder->b->n; i++) {
        lb_content *content = &finder->contents->list[i];
        if (content->relation == LB_CONTENT_NAMED && !finder->b->list[i].learnt)
            *content = (lb_content){.tensor = LB_NONE, .all = content->all};
    }
}

/* ---- all ---- */

typedef void search(finder *f, uint32_t row);

static void for_open(finder *finder, search *look)
{
    for (uint32_t i = 0; i < finder->b->n && !finder->failed; i++)
        if (is_open(finder, i)) look(finder, i);
}

uint32_t lb_near_sources_find(const lb_step_sources *a, const lb_step_sources *b, lb_contents *contents, bool *failed)
{
    static search *const searches[] = {find_by_name,     find_whole, find_by_vectors, find_between,
                                       find_by_siblings, keep_name,  find_last};
    finder f = {.a = a, .b = b, .contents = contents};
    uint32_t n = 0;
    load(&f);
    for (size_t i = 0; i < sizeof searches / sizeof *searches && !f.failed; i++) for_open(&f, searches[i]);
    if (!f.failed) drop_names(&f);
    for (uint32_t i = 0; i < b->n && f.of_b && !f.failed; i++) n += f.of_b[i].taken && is_parameter(&b->list[i]);
    for (uint32_t i = 0; i < a->n && f.of_a; i++) free(f.of_a[i].x);
    for (uint32_t i = 0; i < b->n && f.of_b; i++) free(f.of_b[i].x);
    free(f.of_a), free(f.of_b);
    *failed |= f.failed;
    return n;
}
