/* Tokens beside tokens: see token_map.h. */
#include "joined/token_map.h"

#include "pair/op_kind.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* ---- what each part is given ---- */

typedef struct tokens {
    int64_t *list;
    lb_token_part *parts;
    uint32_t n, n_parts;
} tokens;

/* The whole numbers by which the op looks rows of a table up (`indexed`: one that is written as an index); LB_NONE: it
 * is none such. */
static uint32_t looked_up(const lb_program *p, const lb_op *op, bool indexed)
{
    static const char *const names[] = {"aten::embedding", "aten::index"};
    const int which = lb_op_name_among(p, op, names, 2);
    const lb_arg *args = op->args >= 2 ? lb_op_args(p, op) : NULL;
    if (which != (int)indexed || !args || args[0].tag != LB_ARG_VALUE || args[0].u.value == LB_NONE) return LB_NONE;
    if (which == 1 && args[1].tag == LB_ARG_LIST && args[1].count == 1) args = &p->args[args[1].u.first] - 1;
    if (args[1].tag != LB_ARG_VALUE || args[1].u.value == LB_NONE) return LB_NONE;
    const lb_value *table = &p->values[lb_op_args(p, op)[0].u.value], *rows = &p->values[args[1].u.value];
    const bool fits = table->layout.ndim == 2 && table->flags & LB_VALUE_PARAMETER && lb_dtype_is_float(table->dtype) &&
                      lb_dtype_is_integer(rows->dtype) && (rows->layout.ndim == 1 || rows->layout.ndim == 2);
    return fits ? args[1].u.value : LB_NONE;
}

/* Of all that a part looks up the most, of these the first: a sequence has one row of positions. */
static uint32_t tokens_of(const lb_program *p)
{
    uint32_t found = LB_NONE;
    int64_t most = 0;
    for (int indexed = 0; indexed < 2 && found == LB_NONE; indexed++)
        for (uint32_t i = 0; i < p->n_ops; i++) {
            const uint32_t v = p->ops[i].phase == LB_PHASE_FORWARD ? looked_up(p, &p->ops[i], indexed) : LB_NONE;
            if (v == LB_NONE || lb_layout_numel(&p->values[v].layout) <= most) continue;
            found = v, most = lb_layout_numel(&p->values[v].layout);
        }
    return found;
}

/* As recorded; of a window on what was kept, that. */
static bool read_numbers(const lb_program_view *view, const lb_program_view_part *part, uint32_t value, lb_tensor *t)
{
    const lb_program *p = part->program;
    const lb_value *v = &p->values[value];
    if (lb_program_view_value(view, part->first_value + value, t, NULL) == LB_OK && t->data) return true;
    for (uint32_t w = 0; w < p->n_values; w++) {
        int64_t first[2], last[2];
        if (p->values[w].storage != v->storage || p->values[w].version != v->version ||
            lb_layout_dense_range(&p->values[w].layout, &first[0], &last[0], NULL) != LB_OK ||
            lb_layout_dense_range(&v->layout, &first[1], &last[1], NULL) != LB_OK || first[1] < first[0] ||
            last[1] > last[0] || !lb_layout_is_contiguous(&p->values[w].layout) ||
            lb_program_view_value(view, part->first_value + w, t, NULL) != LB_OK || !t->data)
            continue;
        t->data =
            (char *)t->data + (v->layout.offset - p->values[w].layout.offset) * (int64_t)(lb_dtype_bits(v->dtype) / 8);
        t->layout = v->layout;
        return true;
    }
    return false;
}

static double *numbers_of(const lb_tensor *t, int64_t n)
{
    double *list = malloc((size_t)n * sizeof *list), *at = list;
    for (lb_rows r = lb_rows_of(&t->layout); list && lb_rows_next(&r); at += r.count)
        lb_load_f64_strided(at, t->dtype, (const char *)t->data + r.offset * (int64_t)(lb_dtype_bits(t->dtype) / 8),
                            r.stride, (size_t)r.count);
    return list;
}

static bool add_part(const lb_program_view *view, uint32_t part, tokens *out)
{
    const uint32_t v = tokens_of(view->parts[part].program);
    lb_tensor t;
    if (v == LB_NONE || !read_numbers(view, &view->parts[part], v, &t)) return false;
    const int64_t n = lb_layout_numel(&t.layout);
    double *numbers = n > 0 && n < 1 << 24 ? numbers_of(&t, n) : NULL;
    int64_t *list = numbers ? realloc(out->list, ((size_t)out->n + (size_t)n) * sizeof *list) : NULL;
    const bool read = list != NULL;
    if (read) out->list = list;
    for (int64_t i = 0; i < n && read; i++) out->list[out->n + i] = (int64_t)numbers[i];
    free(numbers);
    const int64_t rows = t.layout.ndim == 2 ? t.layout.shape[0] : 1;
    out->parts[part] = (lb_token_part){rows, read && rows ? n / rows : 0, out->n};
    if (read) out->n += (uint32_t)n;
    return read;
}

static bool list_tokens(const lb_program_view *view, tokens *out)
{
    *out = (tokens){.parts = calloc((size_t)view->n_parts + 1, sizeof *out->parts), .n_parts = view->n_parts};
    bool all = out->parts != NULL;
    for (uint32_t k = 0; k < view->n_parts && all; k++) all = add_part(view, k, out);
    return all;
}

/* ---- runs of the same tokens ---- */

typedef struct row {
    uint32_t first, length;
} row;

/* `fine` is cut into runs that stand in `coarse`. */
typedef struct finder {
    const tokens *fine, *coarse;
    uint32_t *beside; /* per token of fine */
    uint8_t *taken;   /* per token of coarse */
    row *rows;        /* of coarse, part by part */
    uint32_t n_rows;
} finder;

/* Place `at` of rows from `row` on. */
typedef struct place {
    uint32_t row, at;
} place;

static uint32_t token_at(const lb_token_part *p, uint32_t r, uint32_t at)
{
    return p->first + r * (uint32_t)p->length + at;
}

/* Do `n` rows of a part from place `at` on, one token each, stand in as many rows of coarse one behind the other? */
static bool is_alike(const finder *f, const lb_token_part *p, uint32_t r, uint32_t n, uint32_t at, place c)
{
    for (uint32_t i = 0; i < n; i++) {
        const row *other = c.row + i < f->n_rows ? &f->rows[c.row + i] : NULL;
        if (!other || c.at >= other->length || f->taken[other->first + c.at] ||
            f->coarse->list[other->first + c.at] != f->fine->list[token_at(p, r + i, at)])
            return false;
    }
    return true;
}

static uint32_t run_from(const finder *f, const lb_token_part *p, uint32_t r, uint32_t n, uint32_t at, place c)
{
    uint32_t length = 0;
    while (at + length < p->length && is_alike(f, p, r, n, at + length, c)) length++, c.at++;
    return length;
}

/* Where the longest run begins; 0: there is none. One token alone has to be the only one like it. */
static uint32_t longest(const finder *f, const lb_token_part *p, uint32_t r, uint32_t n, uint32_t at, place *found)
{
    uint32_t most = 0, as_long = 0;
    for (uint32_t k = 0; k + n <= f->n_rows; k++)
        for (uint32_t i = 0; i < f->rows[k].length; i++) {
            const uint32_t length = run_from(f, p, r, n, at, (place){k, i});
            if (!length || length < most) continue;
            as_long = length == most ? as_long + 1 : 0;
            if (length > most) *found = (place){k, i}, most = length;
        }
    return most * n > 1 || !as_long ? most : 0;
}

/* Rows [r, r + n) of a part. `cursor`: behind what the part before was in these rows; its row LB_NONE: not known. */
static uint32_t match_rows(finder *f, const lb_token_part *p, uint32_t r, uint32_t n, place *cursor)
{
    uint32_t found = 0;
    for (uint32_t at = 0; at < p->length;) {
        place from = *cursor;
        uint32_t length = from.row == LB_NONE ? 0 : run_from(f, p, r, n, at, from);
        if (!length) length = longest(f, p, r, n, at, &from);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < length; k++) {
                const uint32_t other = f->rows[from.row + i].first + from.at + k;
                f->beside[token_at(p, r + i, at + k)] = other, f->taken[other] = 1;
            }
        *cursor = (place){length ? from.row : LB_NONE, from.at + length};
        at += length ? length : 1, found += length;
    }
    return found;
}

/* All rows of a part are cut alike, at the same places; where they are not, each by itself. */
static void match_part(finder *f, const lb_token_part *p, place *cursor)
{
    const uint32_t rows = (uint32_t)p->rows;
    if (rows > f->n_rows || !match_rows(f, p, 0, rows, cursor))
        for (uint32_t r = 0; r < rows; r++) {
            place none = {LB_NONE, 0};
            match_rows(f, p, r, 1, &none);
        }
}

static void match_all(finder *f)
{
    place cursor = {LB_NONE, 0};
    for (uint32_t k = 0; k < f->fine->n_parts; k++) {
        const lb_token_part *p = &f->fine->parts[k];
        if (k && p->rows != p[-1].rows) cursor.row = LB_NONE;
        match_part(f, p, &cursor);
    }
}

static bool list_rows(finder *f)
{
    f->rows = malloc(((size_t)f->coarse->n + 1) * sizeof *f->rows);
    for (uint32_t k = 0; k < f->coarse->n_parts && f->rows; k++) {
        const lb_token_part *p = &f->coarse->parts[k];
        for (uint32_t r = 0; r < p->rows && p->length; r++)
            f->rows[f->n_rows++] = (row){token_at(p, r, 0), (uint32_t)p->length};
    }
    return f->rows != NULL;
}

/* ---- the map ---- */

static bool has_any(const lb_token_map *m, int side, uint32_t part)
{
    const lb_token_part *p = &m->parts[side][part];
    for (int64_t i = 0; i < p->rows * p->length; i++)
        if (m->beside[side][p->first + i] != LB_NONE) return true;
    return false;
}

uint32_t lb_token_map_lone(const lb_token_map *m, int side)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n[side]; i++) n += m->beside[side][i] == LB_NONE;
    return n;
}

/* Each part has some of the other side's tokens, and of one side all are found. */
static bool is_sound(const lb_token_map *m)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < m->n_parts[k]; i++)
            if (!has_any(m, k, i)) return false;
    return !lb_token_map_lone(m, 0) || !lb_token_map_lone(m, 1);
}

static bool fill_map(lb_token_map *m, const tokens of[2])
{
    const bool in_parts = of[0].n_parts > 1 || of[1].n_parts > 1;
    const int fine = in_parts ? of[1].n_parts >= of[0].n_parts : of[1].n < of[0].n;
    finder f = {.fine = &of[fine], .coarse = &of[!fine], .beside = m->beside[fine]};
    f.taken = calloc((size_t)f.coarse->n + 1, 1);
    const bool room = list_rows(&f) && f.taken;
    if (room) match_all(&f);
    for (uint32_t i = 0; i < f.fine->n && room; i++)
        if (f.beside[i] != LB_NONE) m->beside[!fine][f.beside[i]] = i;
    free(f.taken), free(f.rows);
    return room;
}

/* Of one part each: as many rows, and longer ones on one side, which pads them. */
static bool are_padded(const tokens of[2])
{
    const lb_token_part *a = of[0].parts, *b = of[1].parts;
    return a->rows == b->rows && a->length > 1 && b->length > 1 && a->length != b->length;
}

lb_status lb_token_map_make(const lb_program_view *const views[2], lb_token_map **out, bool *unlike, lb_err *err)
{
    tokens of[2] = {{0}, {0}};
    *out = NULL, *unlike = false;
    const bool in_parts = views[0]->n_parts > 1 || views[1]->n_parts > 1;
    const bool told = list_tokens(views[0], &of[0]) && list_tokens(views[1], &of[1]) && (in_parts || are_padded(of));
    lb_token_map *m = told ? calloc(1, sizeof *m) : NULL;
    bool room = !told || m;
    for (int k = 0; k < 2 && m; k++) {
        m->parts[k] = of[k].parts, of[k].parts = NULL, m->n_parts[k] = of[k].n_parts, m->n[k] = of[k].n;
        m->beside[k] = malloc(((size_t)of[k].n + 1) * sizeof *m->beside[k]);
        room = room && m->beside[k];
        if (m->beside[k]) memset(m->beside[k], 0xFF, ((size_t)of[k].n + 1) * sizeof *m->beside[k]);
    }
    if (m && room) {
        of[0].parts = m->parts[0], of[1].parts = m->parts[1];
        room = fill_map(m, of);
        of[0].parts = of[1].parts = NULL;
    }
    for (int k = 0; k < 2; k++) free(of[k].list), free(of[k].parts);
    const bool sound = !m || !room || is_sound(m);
    *unlike = !sound && in_parts;
    if (!sound || !room) lb_token_map_free(m), m = NULL;
    *out = m;
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for tokens");
}

void lb_token_map_free(lb_token_map *m)
{
    for (int k = 0; k < 2 && m; k++) free(m->parts[k]), free(m->beside[k]);
    free(m);
}

/* ---- where tokens lie in values ---- */

/* The dimensions of sequences and of their tokens; equal: one dimension has all tokens of a part, row by row. */
typedef struct reading {
    int row, time; /* time -1: there is none */
    bool last;     /* of each row the last token alone */
} reading;

static const lb_token_part *part_of(const lb_token_map *m, int side, const lb_token_group *g, uint32_t i)
{
    return &m->parts[side][g->parts[i]];
}

static bool fits(const lb_token_map *m, int side, const lb_token_group *g, reading how)
{
    bool longer = false, wider = false;
    for (uint32_t i = 0; i < g->n; i++) {
        const lb_layout *l = g->layouts[i];
        const lb_token_part *p = part_of(m, side, g, i);
        const int64_t length = how.last ? 1 : p->length;
        if (l->ndim != g->layouts[0]->ndim) return false;
        if (how.row == how.time ? l->shape[how.row] != p->rows * length
                                : l->shape[how.row] != p->rows || (how.time >= 0 && l->shape[how.time] != length))
            return false;
        longer |= p->length > 1, wider |= p->rows > 1;
    }
    /* Of one row, or of one token each, one dimension says it all. */
    return how.last ? longer && how.time < 0 : how.row == how.time || (longer && wider);
}

/* All other dimensions, without those of one element. */
static int rest_of(const lb_layout *l, reading how, int64_t *size, int64_t *stride)
{
    int n = 0;
    int64_t along = 1;
    for (int d = l->ndim; d-- > 0; along *= l->shape[d])
        if (d != how.row && d != how.time && l->shape[d] != 1) size[n] = l->shape[d], stride[n++] = along;
    return n; /* the fastest first */
}

static bool same_rest(const lb_token_group *a, reading of_a, const lb_token_group *b, reading of_b)
{
    int64_t first[LB_MAX_DIMS], size[LB_MAX_DIMS], stride[LB_MAX_DIMS];
    const int n = rest_of(a->layouts[0], of_a, first, stride);
    for (int side = 0; side < 2; side++) {
        const lb_token_group *g = side ? b : a;
        for (uint32_t i = 0; i < g->n; i++)
            if (rest_of(g->layouts[i], side ? of_b : of_a, size, stride) != n ||
                memcmp(size, first, sizeof *size * (size_t)n))
                return false;
    }
    return true;
}

enum { MOST_READINGS = 2 * LB_MAX_DIMS * LB_MAX_DIMS + 2 * LB_MAX_DIMS };

static uint32_t list_readings(const lb_token_map *m, int side, const lb_token_group *g, bool ends, reading *out)
{
    uint32_t n = 0;
    const int ndim = g->layouts[0]->ndim;
    for (int last = 0; last < (ends ? 2 : 1) && !n; last++)
        for (int row = 0; row < ndim; row++)
            for (int time = -1; time < ndim; time++) {
                const reading how = {row, time, last};
                if ((time >= 0 || last) && fits(m, side, g, how)) out[n++] = how;
            }
    return n;
}

/* The one pair of readings that leaves the same other dimensions; of several the one that is alike on both sides. */
static bool choose(const lb_token_map *m, const lb_token_group *a, const lb_token_group *b, bool ends, reading of[2])
{
    reading lists[2][MOST_READINGS];
    const uint32_t n[] = {list_readings(m, 0, a, ends, lists[0]), list_readings(m, 1, b, ends, lists[1])};
    uint32_t found = 0, alike = 0;
    for (uint32_t i = 0; i < n[0]; i++)
        for (uint32_t j = 0; j < n[1]; j++) {
            const reading x = lists[0][i], y = lists[1][j];
            const bool same = x.row == y.row && x.time == y.time;
            if (!same_rest(a, x, b, y)) continue;
            if (!found || (same && !alike)) of[0] = x, of[1] = y;
            found++, alike += same;
        }
    return found == 1 || alike == 1;
}

/* Where token (r, t) of a part begins in a value; -1: it is not there. */
static int64_t offset_of(const lb_layout *l, reading how, const lb_token_part *p, int64_t r, int64_t t)
{
    int64_t strides[LB_MAX_DIMS], along = 1;
    for (int d = l->ndim; d-- > 0; along *= l->shape[d]) strides[d] = along;
    if (how.last && t + 1 != p->length) return -1;
    const int64_t place = how.last ? 0 : t, length = how.last ? 1 : p->length;
    if (how.row == how.time) return (r * length + place) * strides[how.row];
    return r * strides[how.row] + (how.time < 0 ? 0 : place * strides[how.time]);
}

typedef struct writer {
    lb_token_run *list;
    uint32_t n;
} writer;

static bool add_run(writer *w, lb_token_run run)
{
    lb_token_run *more = lb_array_grow(w->list, w->n, sizeof *more);
    if (!more) return false;
    w->list = more;
    lb_token_run *before = w->n ? &w->list[w->n - 1] : NULL;
    if (before && before->a == run.a && before->b == run.b && before->from_stride == run.from_stride &&
        before->to_stride == run.to_stride && before->from + before->n * run.from_stride == run.from &&
        before->to + before->n * run.to_stride == run.to)
        before->n += run.n;
    else
        w->list[w->n++] = run;
    return true;
}

/* All that a token has: a run along the fastest of the other dimensions for each place in those before it. */
static bool add_token(writer *w, lb_token_run run, const lb_layout *a, reading of_a, const lb_layout *b, reading of_b)
{
    int64_t size[LB_MAX_DIMS], from[LB_MAX_DIMS], to[LB_MAX_DIMS], at[LB_MAX_DIMS] = {0};
    const int n = rest_of(a, of_a, size, from);
    rest_of(b, of_b, size, to);
    const lb_token_run first = run;
    run.n = n ? size[0] : 1, run.from_stride = n ? from[0] : 1, run.to_stride = n ? to[0] : 1;
    for (;;) {
        run.from = first.from, run.to = first.to;
        for (int d = 1; d < n; d++) run.from += at[d] * from[d], run.to += at[d] * to[d];
        if (!add_run(w, run)) return false;
        int d = 1;
        for (; d < n && ++at[d] == size[d]; d++) at[d] = 0;
        if (d >= n) return true;
    }
}

/* The row of a group that a part has, and its token that is counted so. */
static uint32_t find_in(const lb_token_map *m, int side, const lb_token_group *g, uint32_t token, int64_t *r,
                        int64_t *t)
{
    for (uint32_t i = 0; i < g->n; i++) {
        const lb_token_part *p = part_of(m, side, g, i);
        const int64_t n = p->rows * p->length;
        if (token < p->first || token >= p->first + n) continue;
        *r = (token - p->first) / p->length, *t = (token - p->first) % p->length;
        return i;
    }
    return LB_NONE;
}

static bool add_value(const lb_token_map *m, const lb_token_group *a, const lb_token_group *b, uint32_t row,
                      const reading of[2], writer *w)
{
    const lb_token_part *p = part_of(m, 1, b, row);
    for (int64_t i = 0; i < p->rows * p->length; i++) {
        const uint32_t token = m->beside[1][p->first + i];
        int64_t r, t;
        const uint32_t other = token == LB_NONE ? LB_NONE : find_in(m, 0, a, token, &r, &t);
        if (other == LB_NONE) continue;
        const lb_token_run run = {.a = other,
                                  .b = row,
                                  .from = offset_of(a->layouts[other], of[0], part_of(m, 0, a, other), r, t),
                                  .to = offset_of(b->layouts[row], of[1], p, i / p->length, i % p->length)};
        if (run.from < 0 || run.to < 0) continue;
        if (!add_token(w, run, a->layouts[other], of[0], b->layouts[row], of[1])) return false;
    }
    return true;
}

bool lb_token_map_runs(const lb_token_map *m, const lb_token_group *a, const lb_token_group *b, bool ends,
                       lb_token_run **runs, uint32_t *n)
{
    reading of[2];
    writer w = {0};
    *runs = NULL, *n = 0;
    if (!a->n || !b->n || !choose(m, a, b, ends, of)) return true;
    for (uint32_t i = 0; i < b->n; i++)
        if (!add_value(m, a, b, i, of, &w)) {
            free(w.list);
            return false;
        }
    *runs = w.list, *n = w.n;
    return true;
}
