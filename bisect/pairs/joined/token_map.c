/* Tokens beside tokens: see token_map.h. */
#include "joined/token_map.h"

#include "joined/joined_steps.h"
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

uint32_t lb_token_map_looked_up(const lb_program *program, const lb_op *op, bool indexed)
{
    static const char *const names[] = {"aten::embedding", "aten::index"};
    const int which = op->phase == LB_PHASE_FORWARD ? lb_op_name_among(program, op, names, 2) : -1;
    const lb_arg *args = op->args >= 2 ? lb_op_args(program, op) : NULL;
    if (which != (int)indexed || !args || args[0].tag != LB_ARG_VALUE || args[0].u.value == LB_NONE) return LB_NONE;
    if (which == 1 && args[1].tag == LB_ARG_LIST && args[1].count == 1) args = &program->args[args[1].u.first] - 1;
    if (args[1].tag != LB_ARG_VALUE || args[1].u.value == LB_NONE) return LB_NONE;
    const lb_value *table = &program->values[lb_op_args(program, op)[0].u.value],
                   *rows = &program->values[args[1].u.value];
    const bool fits = table->layout.ndim == 2 && table->flags & LB_VALUE_PARAMETER && lb_dtype_is_float(table->dtype) &&
                      lb_dtype_is_integer(rows->dtype) && (rows->layout.ndim == 1 || rows->layout.ndim == 2);
    return fits ? args[1].u.value : LB_NONE;
}

/* The program that has the part's ops and values, and which of its ops are the part's. */
static const lb_program *program_of(const lb_program_view *view, uint32_t part, uint32_t *first, uint32_t *end)
{
    const lb_program *program = view->by_calls ? view->program : view->parts[part].program;
    *first = view->by_calls ? view->parts[part].first_op : 0;
    *end = view->by_calls && part + 1 < view->n_parts ? view->parts[part + 1].first_op : program->n_ops;
    return program;
}

/* Of all that a part looks up the most, of these the first: a sequence has one row of positions. */
static uint32_t tokens_of(const lb_program_view *view, uint32_t part)
{
    uint32_t found = LB_NONE, first, end;
    const lb_program *program = program_of(view, part, &first, &end);
    int64_t most = 0;
    for (int indexed = 0; indexed < 2 && found == LB_NONE; indexed++)
        for (uint32_t i = first; i < end; i++) {
            const uint32_t v = lb_token_map_looked_up(program, &program->ops[i], indexed);
            if (v == LB_NONE || lb_layout_numel(&program->values[v].layout) <= most) continue;
            found = v, most = lb_layout_numel(&program->values[v].layout);
        }
    return found;
}

/* As recorded; of a window on what was kept, that. */
static bool read_numbers(const lb_program_view *view, const lb_program_view_part *part, uint32_t value,
                         lb_tensor *numbers)
{
    const lb_program *program = view->by_calls ? view->program : part->program;
    const lb_value *read = &program->values[value];
    if (lb_program_view_value(view, part->first_value + value, numbers, NULL) == LB_OK && numbers->data) return true;
    for (uint32_t w = 0; w < program->n_values; w++) {
        int64_t first[2], last[2];
        if (program->values[w].storage != read->storage || program->values[w].version != read->version ||
            lb_layout_dense_range(&program->values[w].layout, &first[0], &last[0], NULL) != LB_OK ||
            lb_layout_dense_range(&read->layout, &first[1], &last[1], NULL) != LB_OK || first[1] < first[0] ||
            last[1] > last[0] || !lb_layout_is_contiguous(&program->values[w].layout) ||
            lb_program_view_value(view, part->first_value + w, numbers, NULL) != LB_OK || !numbers->data)
            continue;
        numbers->data = (char *)numbers->data + (read->layout.offset - program->values[w].layout.offset) *
                                                    (int64_t)(lb_dtype_bits(read->dtype) / 8);
        numbers->layout = read->layout;
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

/* Does a call read floats that the call before gave or wrote? */
static bool reads_call_before(const lb_program_view *view, uint32_t part)
{
    uint32_t first, end, from, to;
    const lb_program *program = program_of(view, part, &first, &end);
    program_of(view, part - 1, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        const lb_op *op = &program->ops[i];
        const uint32_t v = lb_op_outcomes(op) && !(op->flags & LB_OP_VIEW) && !lb_op_is_source(program, op)
                               ? lb_op_outcome(program, op, 0)
                               : LB_NONE;
        if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype) ||
            lb_layout_numel(&program->values[v].layout) < 2)
            continue;
        for (uint32_t k = first; k < end; k++)
            if (!lb_op_is_source(program, &program->ops[k]) &&
                lb_op_reads(program, &program->ops[k], program->values[v].storage) != LB_NONE)
                return true;
    }
    return false;
}

/* Is the part a step, or a call, that begins with a cache of the one before? */
static bool goes_on(const lb_program_view *view, uint32_t part)
{
    if (view->by_calls) return reads_call_before(view, part);
    const lb_program *program = view->parts[part].program, *before = view->parts[part - 1].program;
    bool cache = false;
    for (uint32_t v = 0; v < program->n_values && !cache; v++) cache = lb_joined_steps_is_cache(&program->values[v]);
    return cache && program->rank == before->rank && program->step > before->step;
}

static bool add_part(const lb_program_view *view, uint32_t part, tokens *out)
{
    const uint32_t v = tokens_of(view, part);
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
    out->parts[part] = (lb_token_part){rows, read && rows ? n / rows : 0, out->n, 0, false};
    if (part && rows == out->parts[part - 1].rows) out->parts[part].goes_on = goes_on(view, part);
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
    uint32_t *order;  /* the tokens of coarse, row by row: a row goes on through the steps that go on with it */
    row *rows;
    uint32_t n_rows;
} finder;

/* Place `at` of rows from `row` on. */
typedef struct place {
    uint32_t row, at;
} place;

static uint32_t token_at(const lb_token_part *part, uint32_t r, uint32_t at)
{
    return part->first + r * (uint32_t)part->length + at;
}

/* Do `n` rows of a part from place `at` on, one token each, stand in as many rows of coarse one behind the other? */
static bool is_alike(const finder *finder, const lb_token_part *part, uint32_t r, uint32_t n, uint32_t at, place place)
{
    for (uint32_t i = 0; i < n; i++) {
        const row *other = place.row + i < finder->n_rows ? &finder->rows[place.row + i] : NULL;
        const uint32_t token = other && place.at < other->length ? finder->order[other->first + place.at] : LB_NONE;
        if (token == LB_NONE || finder->taken[token] ||
            finder->coarse->list[token] != finder->fine->list[token_at(part, r + i, at)])
            return false;
    }
    return true;
}

static uint32_t run_from(const finder *finder, const lb_token_part *part, uint32_t r, uint32_t n, uint32_t at,
                         place place)
{
    uint32_t length = 0;
    while (at + length < part->length && is_alike(finder, part, r, n, at + length, place)) length++, place.at++;
    return length;
}

/* Where the longest run begins; 0: there is none. One token alone has to be the only one like it. */
static uint32_t longest(const finder *finder, const lb_token_part *part, uint32_t r, uint32_t n, uint32_t at,
                        place *found)
{
    uint32_t most = 0, as_long = 0;
    for (uint32_t k = 0; k + n <= finder->n_rows; k++)
        for (uint32_t i = 0; i < finder->rows[k].length; i++) {
            const uint32_t length = run_from(finder, part, r, n, at, (place){k, i});
            if (!length || length < most) continue;
            as_long = length == most ? as_long + 1 : 0;
            if (length > most) *found = (place){k, i}, most = length;
        }
    return most * n > 1 || !as_long ? most : 0;
}

/* Rows [r, r + n) of a part. `cursor`: behind what the part before was in these rows; its row LB_NONE: not known. */
static uint32_t match_rows(finder *finder, const lb_token_part *part, uint32_t row, uint32_t n, place *cursor)
{
    uint32_t found = 0;
    for (uint32_t at = 0; at < part->length;) {
        place from = *cursor;
        uint32_t length = from.row == LB_NONE ? 0 : run_from(finder, part, row, n, at, from);
        if (!length) length = longest(finder, part, row, n, at, &from);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < length; k++) {
                const uint32_t other = finder->order[finder->rows[from.row + i].first + from.at + k];
                finder->beside[token_at(part, row + i, at + k)] = other, finder->taken[other] = 1;
            }
        *cursor = (place){length ? from.row : LB_NONE, from.at + length};
        at += length ? length : 1, found += length;
    }
    return found;
}

/* All rows of a part are cut alike, at the same places; where they are not, each by itself. */
static void match_part(finder *finder, const lb_token_part *part, place *cursor)
{
    const uint32_t rows = (uint32_t)part->rows;
    if (rows > finder->n_rows || !match_rows(finder, part, 0, rows, cursor))
        for (uint32_t r = 0; r < rows; r++) {
            place none = {LB_NONE, 0};
            match_rows(finder, part, r, 1, &none);
        }
}

static void match_all(finder *finder)
{
    place cursor = {LB_NONE, 0};
    for (uint32_t k = 0; k < finder->fine->n_parts; k++) {
        const lb_token_part *part = &finder->fine->parts[k];
        if (k && part->rows != part[-1].rows) cursor.row = LB_NONE;
        match_part(finder, part, &cursor);
    }
}

/* How many parts of coarse, this one among them, have the rows of part `k`. */
static uint32_t parts_of_row(const tokens *coarse, uint32_t k)
{
    uint32_t n = 1;
    while (k + n < coarse->n_parts && coarse->parts[k + n].goes_on) n++;
    return n;
}

static bool list_rows(finder *finder)
{
    const lb_token_part *parts = finder->coarse->parts;
    finder->rows = malloc(((size_t)finder->coarse->n + 1) * sizeof *finder->rows);
    finder->order = malloc(((size_t)finder->coarse->n + 1) * sizeof *finder->order);
    const bool room = finder->rows && finder->order;
    uint32_t n = 0;
    for (uint32_t k = 0, together; k < finder->coarse->n_parts && room; k += together) {
        together = parts_of_row(finder->coarse, k);
        for (uint32_t r = 0; r < parts[k].rows && parts[k].length; r++) {
            const uint32_t first = n;
            for (uint32_t i = k; i < k + together; i++)
                for (uint32_t at = 0; at < parts[i].length; at++) finder->order[n++] = token_at(&parts[i], r, at);
            finder->rows[finder->n_rows++] = (row){first, n - first};
        }
    }
    return room;
}

/* ---- the map ---- */

static bool has_any(const lb_token_map *map, int side, uint32_t part)
{
    const lb_token_part *p = &map->parts[side][part];
    for (int64_t i = 0; i < p->rows * p->length; i++)
        if (map->beside[side][p->first + i] != LB_NONE) return true;
    return false;
}

uint32_t lb_token_map_lone(const lb_token_map *map, int side)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < map->n[side]; i++) n += map->beside[side][i] == LB_NONE;
    return n;
}

static uint32_t part_with(const lb_token_map *map, int side, uint32_t token)
{
    uint32_t part = map->n_parts[side] - 1;
    while (part && map->parts[side][part].first > token) part--;
    return part;
}

/* The token behind another one of its sequence, which may go on in the next part; LB_NONE: not known. */
static uint32_t next_of(const lb_token_map *map, int side, uint32_t token)
{
    const uint32_t part = part_with(map, side, token);
    const lb_token_part *p = &map->parts[side][part];
    const uint32_t at = token - p->first, row = at / (uint32_t)p->length;
    if ((at + 1) % p->length) return token + 1;
    return part + 1 < map->n_parts[side] && p[1].goes_on ? token_at(&p[1], row, 0) : LB_NONE;
}

/* Is the token the last of its sequence in its part? A row may have several sequences, packed. */
static bool is_end(const lb_token_map *map, int side, const lb_token_part *part, uint32_t token)
{
    const uint32_t other = map->beside[side][token];
    if ((token - part->first + 1) % part->length == 0) return true;
    if (part->rows > 1 || other == LB_NONE) return false;
    const uint32_t next = next_of(map, !side, other);
    return next == LB_NONE || map->beside[side][token + 1] != next;
}

/* Of the tokens from this one on in its sequence: are those that the other side has, too, one run? Padding may stand
 * before it. */
static bool is_one_run(const lb_token_map *map, int side, uint32_t token)
{
    bool had = false, ended = false;
    for (; token != LB_NONE; token = next_of(map, side, token)) {
        const bool found = map->beside[side][token] != LB_NONE;
        if (found && ended) return false;
        ended |= had && !found, had |= found;
    }
    return true;
}

/* Has the other side something of each sequence that begins on this one? */
static bool has_each_sequence(const lb_token_map *map, int side)
{
    for (uint32_t i = 0; i < map->n_parts[side]; i++) {
        const lb_token_part *part = &map->parts[side][i];
        for (uint32_t r = 0; r < part->rows && part->length && !part->goes_on; r++) {
            uint32_t token = token_at(part, r, 0);
            while (token != LB_NONE && map->beside[side][token] == LB_NONE) token = next_of(map, side, token);
            if (token == LB_NONE) return false;
        }
    }
    return true;
}

/* Of two that answer differently from some token on: is every sequence the other side's until then, and most of it? */
static bool part_ways(const lb_token_map *map)
{
    const uint32_t least = map->n[0] < map->n[1] ? map->n[0] : map->n[1], found = map->n[0] - lb_token_map_lone(map, 0);
    bool do_part = map->of_one_rank && 2 * found >= least;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < map->n_parts[k]; i++) {
            const lb_token_part *part = &map->parts[k][i];
            for (uint32_t r = 0; r < part->rows && part->length && !part->goes_on && do_part; r++)
                do_part = is_one_run(map, k, token_at(part, r, 0));
        }
    return do_part;
}

void lb_token_map_judge(lb_token_map *map)
{
    map->sound = !lb_token_map_lone(map, 0) || !lb_token_map_lone(map, 1);
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < map->n_parts[k]; i++) map->sound &= has_any(map, k, i);
    map->sound |= part_ways(map);
    map->sound &= !map->by_calls || (has_each_sequence(map, 0) && has_each_sequence(map, 1));
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < map->n_parts[k]; i++) {
            const lb_token_part *part = &map->parts[k][i];
            uint32_t ends = 0;
            for (uint32_t t = part->first; t < part->first + part->rows * part->length; t++)
                map->end_of[k][t] = is_end(map, k, part, t) ? ends++ : LB_NONE;
            map->parts[k][i].ends = ends;
        }
}

static bool fill_map(lb_token_map *map, const tokens of[2])
{
    const bool in_parts = of[0].n_parts > 1 || of[1].n_parts > 1;
    const int fine = in_parts ? of[1].n_parts >= of[0].n_parts : of[1].n < of[0].n;
    finder finder = {.fine = &of[fine], .coarse = &of[!fine], .beside = map->beside[fine]};
    finder.taken = calloc((size_t)finder.coarse->n + 1, 1);
    const bool room = list_rows(&finder) && finder.taken;
    if (room) match_all(&finder);
    for (uint32_t i = 0; i < finder.fine->n && room; i++)
        if (finder.beside[i] != LB_NONE) map->beside[!fine][finder.beside[i]] = i;
    free(finder.taken), free(finder.rows), free(finder.order);
    return room;
}

/* Of one part each: as many rows, and longer ones on one side, which pads them. */
static bool are_padded(const tokens of[2])
{
    const lb_token_part *a = of[0].parts, *b = of[1].parts;
    return a->rows == b->rows && a->length > 1 && b->length > 1 && a->length != b->length;
}

/* Are parts of a side steps of one rank, or calls in a step? */
static bool is_of_one_rank(const lb_program_view *view)
{
    if (view->by_calls) return true;
    return view->n_parts > 1 && view->parts[0].program->rank == view->parts[1].program->rank;
}

lb_status lb_token_map_make(const lb_program_view *const views[2], lb_token_map **out, lb_err *err)
{
    tokens of[2] = {{0}, {0}};
    *out = NULL;
    const bool in_parts = views[0]->n_parts > 1 || views[1]->n_parts > 1 || views[0]->by_calls;
    const bool told = list_tokens(views[0], &of[0]) && list_tokens(views[1], &of[1]) && (in_parts || are_padded(of));
    lb_token_map *map = told ? calloc(1, sizeof *map) : NULL;
    bool room = !told || map;
    for (int k = 0; k < 2 && map; k++) {
        map->parts[k] = of[k].parts, of[k].parts = NULL, map->n_parts[k] = of[k].n_parts, map->n[k] = of[k].n;
        map->beside[k] = malloc(((size_t)of[k].n + 1) * sizeof *map->beside[k]);
        map->end_of[k] = malloc(((size_t)of[k].n + 1) * sizeof *map->end_of[k]);
        room = room && map->beside[k] && map->end_of[k];
        if (map->beside[k]) memset(map->beside[k], 0xFF, ((size_t)of[k].n + 1) * sizeof *map->beside[k]);
    }
    if (map && room) {
        of[0].parts = map->parts[0], of[1].parts = map->parts[1];
        room = fill_map(map, of);
        of[0].parts = of[1].parts = NULL;
        for (int k = 0; k < 2; k++) map->tokens[k] = of[k].list, of[k].list = NULL;
        map->by_calls = views[0]->by_calls;
        map->of_one_rank = is_of_one_rank(views[0]) || is_of_one_rank(views[1]);
        if (room) lb_token_map_judge(map);
    }
    for (int k = 0; k < 2; k++) free(of[k].list), free(of[k].parts);
    if (map && (!room || (!map->sound && !map->of_one_rank))) lb_token_map_free(map), map = NULL;
    *out = map;
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for tokens");
}

void lb_token_map_free(lb_token_map *map)
{
    for (int k = 0; k < 2 && map; k++)
        free(map->parts[k]), free(map->beside[k]), free(map->tokens[k]), free(map->end_of[k]);
    free(map);
}

/* ---- where tokens lie in values ---- */

/* The dimensions of sequences and of their tokens; equal: one dimension has all tokens of a part, row by row. */
typedef struct reading {
    int row, time; /* time -1: there is none */
    bool last;     /* of each row the last token alone */
} reading;

static const lb_token_part *part_of(const lb_token_map *map, int side, const lb_token_group *group, uint32_t i)
{
    return &map->parts[side][group->parts[i]];
}

static bool fits(const lb_token_map *map, int side, const lb_token_group *group, reading how)
{
    bool longer = false, wider = false;
    for (uint32_t i = 0; i < group->n; i++) {
        const lb_layout *layout = group->layouts[i];
        const lb_token_part *part = part_of(map, side, group, i);
        const int64_t length = how.last ? 1 : part->length, rows = how.last ? part->ends : part->rows;
        if (layout->ndim != group->layouts[0]->ndim) return false;
        if (how.row == how.time
                ? layout->shape[how.row] != rows * length
                : layout->shape[how.row] != rows || (how.time >= 0 && layout->shape[how.time] != length))
            return false;
        longer |= part->length > 1, wider |= rows > 1;
    }
    /* Of one row, or of one token each, one dimension says it all. */
    return how.last ? longer && how.time < 0 : how.row == how.time || (longer && wider);
}

/* All other dimensions, without those of one element. */
static int rest_of(const lb_layout *layout, reading how, int64_t *size, int64_t *stride)
{
    int n = 0;
    int64_t along = 1;
    for (int d = layout->ndim; d-- > 0; along *= layout->shape[d])
        if (d != how.row && d != how.time && layout->shape[d] != 1) size[n] = layout->shape[d], stride[n++] = along;
    return n; /* the fastest first */
}

static bool same_rest(const lb_token_group *a, reading of_a, const lb_token_group *b, reading of_b)
{
    int64_t first[LB_MAX_DIMS], size[LB_MAX_DIMS], stride[LB_MAX_DIMS];
    const int n = rest_of(a->layouts[0], of_a, first, stride);
    for (int side = 0; side < 2; side++) {
        const lb_token_group *group = side ? b : a;
        for (uint32_t i = 0; i < group->n; i++)
            if (rest_of(group->layouts[i], side ? of_b : of_a, size, stride) != n ||
                memcmp(size, first, sizeof *size * (size_t)n))
                return false;
    }
    return true;
}

enum { MOST_READINGS = 2 * LB_MAX_DIMS * LB_MAX_DIMS + 2 * LB_MAX_DIMS };

static uint32_t list_readings(const lb_token_map *map, int side, const lb_token_group *group, bool ends, reading *out)
{
    uint32_t n = 0;
    const int ndim = group->layouts[0]->ndim;
    for (int last = 0; last < (ends ? 2 : 1) && !n; last++)
        for (int row = 0; row < ndim; row++)
            for (int time = -1; time < ndim; time++) {
                const reading how = {row, time, last};
                if ((time >= 0 || last) && fits(map, side, group, how)) out[n++] = how;
            }
    return n;
}

/* The one pair of readings that leaves the same other dimensions; of several the one that is alike on both sides. */
static bool choose(const lb_token_map *map, const lb_token_group *a, const lb_token_group *b, bool ends, reading of[2])
{
    reading lists[2][MOST_READINGS];
    const uint32_t n[] = {list_readings(map, 0, a, ends, lists[0]), list_readings(map, 1, b, ends, lists[1])};
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

/* Where token `at` of a part begins in a value; -1: it is not there. */
static int64_t offset_of(const lb_token_map *map, int side, const lb_layout *layout, reading how,
                         const lb_token_part *part, int64_t at)
{
    int64_t strides[LB_MAX_DIMS], along = 1;
    const uint32_t end = map->end_of[side][part->first + at];
    for (int d = layout->ndim; d-- > 0; along *= layout->shape[d]) strides[d] = along;
    if (how.last) return end == LB_NONE ? -1 : end * strides[how.row];
    if (how.row == how.time) return at * strides[how.row];
    return at / part->length * strides[how.row] + (how.time < 0 ? 0 : at % part->length * strides[how.time]);
}

typedef struct writer {
    lb_token_run *list;
    uint32_t n;
} writer;

static bool add_run(writer *writer, lb_token_run run)
{
    lb_token_run *more = lb_array_grow(writer->list, writer->n, sizeof *more);
    if (!more) return false;
    writer->list = more;
    lb_token_run *before = writer->n ? &writer->list[writer->n - 1] : NULL;
    if (before && before->a == run.a && before->b == run.b && before->from_stride == run.from_stride &&
        before->to_stride == run.to_stride && before->from + before->n * run.from_stride == run.from &&
        before->to + before->n * run.to_stride == run.to)
        before->n += run.n;
    else
        writer->list[writer->n++] = run;
    return true;
}

/* All that a token has: a run along the fastest of the other dimensions for each place in those before it. */
static bool add_token(writer *writer, lb_token_run run, const lb_layout *a, reading of_a, const lb_layout *b,
                      reading of_b)
{
    int64_t size[LB_MAX_DIMS], from[LB_MAX_DIMS], to[LB_MAX_DIMS], at[LB_MAX_DIMS] = {0};
    const int n = rest_of(a, of_a, size, from);
    rest_of(b, of_b, size, to);
    const lb_token_run first = run;
    run.n = n ? size[0] : 1, run.from_stride = n ? from[0] : 1, run.to_stride = n ? to[0] : 1;
    for (;;) {
        run.from = first.from, run.to = first.to;
        for (int d = 1; d < n; d++) run.from += at[d] * from[d], run.to += at[d] * to[d];
        if (!add_run(writer, run)) return false;
        int d = 1;
        for (; d < n && ++at[d] == size[d]; d++) at[d] = 0;
        if (d >= n) return true;
    }
}

/* The row of a group that a part has, and its token that is counted so. */
static uint32_t find_in(const lb_token_map *map, int side, const lb_token_group *group, uint32_t token)
{
    for (uint32_t i = 0; i < group->n; i++) {
        const lb_token_part *part = part_of(map, side, group, i);
        if (token >= part->first && token < part->first + part->rows * part->length) return i;
    }
    return LB_NONE;
}

static bool add_value(const lb_token_map *map, const lb_token_group *a, const lb_token_group *b, uint32_t row,
                      const reading of[2], writer *writer)
{
    const lb_token_part *part = part_of(map, 1, b, row);
    for (int64_t i = 0; i < part->rows * part->length; i++) {
        const uint32_t token = map->beside[1][part->first + i];
        const uint32_t other = token == LB_NONE ? LB_NONE : find_in(map, 0, a, token);
        if (other == LB_NONE) continue;
        const lb_token_part *from = part_of(map, 0, a, other);
        const lb_token_run run = {.a = other,
                                  .b = row,
                                  .from = offset_of(map, 0, a->layouts[other], of[0], from, token - from->first),
                                  .to = offset_of(map, 1, b->layouts[row], of[1], part, i)};
        if (run.from < 0 || run.to < 0) continue;
        if (!add_token(writer, run, a->layouts[other], of[0], b->layouts[row], of[1])) return false;
    }
    return true;
}

bool lb_token_map_runs(const lb_token_map *map, const lb_token_group *a, const lb_token_group *b, bool ends,
                       lb_token_run **runs, uint32_t *n)
{
    reading of[2];
    writer writer = {0};
    *runs = NULL, *n = 0;
    if (!a->n || !b->n || !choose(map, a, b, ends, of)) return true;
    for (uint32_t i = 0; i < b->n; i++)
        if (!add_value(map, a, b, i, of, &writer)) {
            free(writer.list);
            return false;
        }
    *runs = writer.list, *n = writer.n;
    return true;
}
