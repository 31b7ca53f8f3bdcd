/* Tokens by their rows: see token_rows.h. */
#include "exact/token_rows.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A row of fewer elements may agree by chance; rows that more tokens share say little; AGREE is far above the rounding
 * of f64 and far below what tells tokens apart. */
enum { LEAST_WIDTH = 4, MOST_SHARED = 8, MOST_READINGS = 4, MOST_VOTES = 1 << 24 };
static const double AGREE = 1e-9;

/* What a token has in a value, as two sums with fixed weights. */
typedef struct token_row {
    int64_t width;
    double key, check, size; /* `size`: the sum of magnitudes */
    uint32_t token;
} token_row;

typedef struct rows {
    token_row *list;
    uint32_t n;
    bool failed;
} rows;

/* In [-1, 1], the same for each place on both sides (splitmix64: Steele, Lea, Flood 2014). */
static double weight_of(int64_t place, uint64_t seed)
{
    uint64_t x = (uint64_t)place * UINT64_C(0x9E3779B97F4A7C15) + seed;
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (double)(int64_t)(x ^ (x >> 31)) * 0x1p-63;
}

/* The dimensions of rows and of their tokens; equal: one dimension has all tokens. */
typedef struct reading {
    int row, time;
} reading;

static uint32_t list_readings(const lb_layout *l, const lb_token_part *p, reading *out)
{
    uint32_t n = 0;
    for (int d = 0; d < l->ndim && n < MOST_READINGS; d++)
        if (l->shape[d] == p->rows * p->length) out[n++] = (reading){d, d};
    for (int r = 0; r < l->ndim; r++)
        for (int t = 0; t < l->ndim && n < MOST_READINGS; t++)
            if (r != t && p->rows > 1 && p->length > 1 && l->shape[r] == p->rows && l->shape[t] == p->length)
                out[n++] = (reading){r, t};
    return n;
}

/* Which token of its part an element is of; `*place`: where it stands among the token's. */
static int64_t token_of(const lb_layout *l, reading how, const lb_token_part *p, int64_t element, int64_t *place)
{
    int64_t at[LB_MAX_DIMS], rest = 0;
    for (int d = l->ndim; d-- > 0; element /= l->shape[d]) at[d] = element % l->shape[d];
    for (int d = 0; d < l->ndim; d++)
        if (d != how.row && d != how.time) rest = rest * l->shape[d] + at[d];
    *place = rest;
    return how.row == how.time ? at[how.row] : at[how.row] * p->length + at[how.time];
}

static void add_reading(rows *out, const lb_exact_side *s, uint32_t v, const lb_token_part *p, reading how)
{
    const lb_layout *l = &s->program->values[v].layout;
    const int64_t tokens = p->rows * p->length, n = lb_layout_numel(l), width = n / tokens;
    token_row *more = width < LEAST_WIDTH ? NULL : realloc(out->list, ((size_t)out->n + (size_t)tokens) * sizeof *more);
    if (width < LEAST_WIDTH) return;
    out->failed |= !more;
    if (!more) return;
    out->list = more;
    token_row *first = out->list + out->n;
    for (int64_t i = 0; i < tokens; i++) first[i] = (token_row){width, 0, 0, 0, p->first + (uint32_t)i};
    for (int64_t i = 0; i < n; i++) {
        int64_t place;
        token_row *row = &first[token_of(l, how, p, i, &place)];
        const double x = s->kept[v][i];
        row->key += weight_of(place, 1) * x, row->check += weight_of(place, 2) * x, row->size += fabs(x);
    }
    uint32_t kept = 0; /* not of zeros, of masks and of what is not finite */
    for (int64_t i = 0; i < tokens; i++)
        if (first[i].size > 0 && first[i].size < 0x1p96) first[kept++] = first[i];
    out->n += kept;
}

static void list_rows(const lb_exact_side *s, const lb_token_map *m, int side, rows *out)
{
    const lb_program *p = s->program;
    for (uint32_t v = 0; v < p->n_values && !out->failed; v++) {
        const uint32_t op = s->graph.given[v] ? s->graph.giver[v] : LB_NONE;
        if (op == LB_NONE || !s->kept[v] || !lb_dtype_is_float(p->values[v].dtype) ||
            p->ops[op].phase == LB_PHASE_BACKWARD || !lb_value_graph_computes(p, &p->ops[op]) ||
            !lb_program_view_is_recorded(s->view, v))
            continue;
        const lb_token_part *part = &m->parts[side][lb_program_view_part_of(s->view, op)];
        reading list[MOST_READINGS];
        const uint32_t n = part->rows * part->length > 0 ? list_readings(&p->values[v].layout, part, list) : 0;
        for (uint32_t i = 0; i < n && !out->failed; i++) add_reading(out, s, v, part, list[i]);
    }
}

static int by_key(const void *x, const void *y)
{
    const token_row *a = x, *b = y;
    if (a->width != b->width) return a->width < b->width ? -1 : 1;
    return (a->key > b->key) - (a->key < b->key);
}

static bool agree(const token_row *x, const token_row *y)
{
    const double reach = AGREE * fmax(x->size, y->size);
    return x->width == y->width && fabs(x->key - y->key) <= reach && fabs(x->check - y->check) <= reach;
}

typedef struct ballot {
    lb_token_map *map;
    uint16_t *votes; /* per token of the first side and of the second */
} ballot;

static uint16_t *votes_of(const ballot *b, uint32_t of_a, uint32_t of_b)
{
    return &b->votes[(size_t)of_a * b->map->n[1] + of_b];
}

/* The tokens of B that have the row; 0 also where these are too many. */
static uint32_t list_sharers(const ballot *b, const token_row *x, const rows *other, uint32_t *sharers)
{
    const token_row least = {x->width, x->key - 2 * AGREE * x->size, 0, 0, 0};
    uint32_t n = 0;
    for (uint32_t i = (uint32_t)lb_array_first(other->list, other->n, sizeof *other->list, &least, by_key);
         i < other->n && other->list[i].width == x->width && other->list[i].key <= x->key + 2 * AGREE * x->size; i++) {
        const uint32_t token = other->list[i].token;
        bool known = !agree(x, &other->list[i]) || b->map->tokens[1][token] != b->map->tokens[0][x->token];
        for (uint32_t k = 0; k < n && !known; k++) known = sharers[k] == token;
        if (known) continue;
        if (n == MOST_SHARED) return 0;
        sharers[n++] = token;
    }
    return n;
}

static void cast_votes(const ballot *b, const rows *mine, const rows *other)
{
    uint32_t sharers[MOST_SHARED];
    for (uint32_t i = 0; i < mine->n; i++) {
        const uint32_t n = list_sharers(b, &mine->list[i], other, sharers);
        for (uint32_t k = 0; k < n; k++) {
            uint16_t *votes = votes_of(b, mine->list[i].token, sharers[k]);
            if (*votes < UINT16_MAX - 2 * MOST_SHARED) *votes += 2 * MOST_SHARED / n;
        }
    }
}

/* ---- the pairs with most votes ---- */

typedef struct vote {
    uint32_t votes, a, b;
} vote;

static int by_votes(const void *x, const void *y)
{
    const vote *p = x, *q = y;
    if (p->votes != q->votes) return p->votes > q->votes ? -1 : 1;
    if (p->a != q->a) return p->a < q->a ? -1 : 1;
    return (p->b > q->b) - (p->b < q->b);
}

static vote *list_votes(const ballot *b, uint32_t *n)
{
    const lb_token_map *m = b->map;
    const size_t all = (size_t)m->n[0] * m->n[1];
    size_t many = 0;
    for (size_t i = 0; i < all; i++) many += b->votes[i] > 0;
    vote *list = malloc((many + 1) * sizeof *list);
    *n = 0;
    for (uint32_t i = 0; list && i < m->n[0]; i++)
        for (uint32_t j = 0; j < m->n[1]; j++) {
            const uint32_t votes = *votes_of(b, i, j);
            if (votes) list[(*n)++] = (vote){2 * votes + (m->beside[0][i] == j), i, j};
        }
    if (list && *n) qsort(list, *n, sizeof *list, by_votes);
    return list;
}

static void pair(uint32_t *const beside[2], uint32_t a, uint32_t b)
{
    if (beside[0][a] == LB_NONE && beside[1][b] == LB_NONE) beside[0][a] = b, beside[1][b] = a;
}

/* The map by votes, and by what it had where tokens got none. */
static bool take_pairs(const ballot *b)
{
    lb_token_map *m = b->map;
    uint32_t n, *beside[2] = {NULL, NULL};
    const bool was_sound = m->sound;
    vote *list = list_votes(b, &n);
    for (int k = 0; k < 2; k++) {
        beside[k] = malloc(((size_t)m->n[k] + 1) * sizeof *beside[k]);
        if (beside[k]) memset(beside[k], 0xFF, ((size_t)m->n[k] + 1) * sizeof *beside[k]);
    }
    const bool room = list && beside[0] && beside[1];
    for (uint32_t i = 0; i < n && room; i++) pair(beside, list[i].a, list[i].b);
    for (uint32_t i = 0; i < m->n[0] && room; i++)
        if (m->beside[0][i] != LB_NONE) pair(beside, i, m->beside[0][i]);
    for (int turn = 0; turn < 2 && room; turn++) { /* back again where the map was sound, and is no more */
        for (int k = 0; k < 2; k++) {
            uint32_t *had = m->beside[k];
            m->beside[k] = beside[k], beside[k] = had;
        }
        lb_token_map_judge(m);
        if (m->sound || !was_sound) break;
    }
    free(list), free(beside[0]), free(beside[1]);
    return room;
}

lb_status lb_token_rows_match(const lb_exact_side *const sides[2], lb_token_map *map, lb_err *err)
{
    const size_t all = (size_t)map->n[0] * map->n[1];
    rows of[2] = {{0}, {0}};
    if (!all || all > MOST_VOTES) return LB_OK;
    const ballot b = {map, calloc(all, sizeof *b.votes)};
    for (int k = 0; k < 2; k++) list_rows(sides[k], map, k, &of[k]);
    if (of[1].n) qsort(of[1].list, of[1].n, sizeof *of[1].list, by_key);
    bool room = b.votes && !of[0].failed && !of[1].failed;
    if (room) cast_votes(&b, &of[0], &of[1]), room = take_pairs(&b);
    free(b.votes), free(of[0].list), free(of[1].list);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for rows of %u tokens", map->n[0]);
}

/* ---- what both sides have ---- */

double *lb_token_rows_paired(const lb_exact_side *s, uint32_t v, int64_t *n)
{
    const lb_token_map *m = s->tokens;
    const lb_layout *l = &s->program->values[v].layout;
    const lb_token_part *p = &m->parts[s->number][lb_program_view_part_of(s->view, s->graph.giver[v])];
    const int64_t all = lb_layout_numel(l);
    double *numbers = malloc((size_t)(all + 1) * sizeof *numbers);
    reading list[MOST_READINGS];
    const bool read = p->rows * p->length > 0 && list_readings(l, p, list);
    *n = 0;
    for (int64_t i = 0, place; numbers && i < all; i++)
        if (!read || m->beside[s->number][p->first + token_of(l, list[0], p, i, &place)] != LB_NONE)
            numbers[(*n)++] = s->kept[v][i];
    return numbers;
}
