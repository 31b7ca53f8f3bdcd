/* Layers and ranks of a diff, counted: see drift_summary.h. */
#include "report/drift_summary.h"

#include "report/column_table.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one row of a diff ---- */

static const char *text_of(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

/* NaN: not measured. Infinite numbers are words in JSON. */
static double number_of(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    if (json_is_number(value)) return fabs(json_number_value(value));
    return json_is_string(value) ? INFINITY : NAN;
}

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : isnan(x) ? json_null() : json_string("inf");
}

static json_int_t rank_of(const json_t *row)
{
    return json_integer_value(json_object_get(row, "rank"));
}

/* ---- rows by layer and phase ---- */

typedef struct layer_phase {
    const char *layer, *phase, *why;
    int verdict, local, inherited;
    double numbers[4];
    json_int_t worst_rank, differing, elements;
    json_t *ranks; /* those on which it differs */
} layer_phase;

static const char *const MEASURES[] = {"rel_l2", "max_abs", "max_ulp", "bound_ratio"};

static void add_row(layer_phase *layer_phase, const json_t *row)
{
    const int verdict = lb_column_verdict_rank(text_of(row, "verdict"));
    const int local = lb_column_verdict_rank(text_of(row, "local"));
    const int inherited = lb_column_verdict_rank(text_of(row, "inherited"));
    const double size = number_of(row, "rel_l2");
    if (verdict > layer_phase->verdict || (verdict == layer_phase->verdict && size > layer_phase->numbers[0]))
        layer_phase->worst_rank = rank_of(row), layer_phase->why = text_of(row, "why");
    if (verdict > layer_phase->verdict) layer_phase->verdict = verdict;
    if (local > layer_phase->local) layer_phase->local = local;
    if (inherited > layer_phase->inherited) layer_phase->inherited = inherited;
    for (size_t i = 0; i < sizeof MEASURES / sizeof *MEASURES; i++) {
        const double x = number_of(row, MEASURES[i]);
        if (!(x <= layer_phase->numbers[i]) && x == x) layer_phase->numbers[i] = x;
    }
    layer_phase->differing += json_integer_value(json_object_get(row, "differing"));
    layer_phase->elements += json_integer_value(json_object_get(row, "elements"));
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)rank_of(row));
    if (verdict > 0) json_object_set_new(layer_phase->ranks, name, json_null());
}

static const char *word_of(int rank)
{
    return rank < 0 ? "" : lb_verdict_words[rank];
}

static json_t *layer_json(const layer_phase *layer_phase)
{
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s}", "layer", layer_phase->layer, "phase",
                  layer_phase->phase, "verdict", word_of(layer_phase->verdict), "local", word_of(layer_phase->local),
                  "inherited", word_of(layer_phase->inherited), "ranks",
                  (json_int_t)json_object_size(layer_phase->ranks), "worst_rank", layer_phase->worst_rank, "differing",
                  layer_phase->differing, "elements", layer_phase->elements, "why", layer_phase->why);
    for (size_t i = 0; i < sizeof MEASURES / sizeof *MEASURES; i++)
        json_object_set_new(object, MEASURES[i], number(layer_phase->numbers[i]));
    return object;
}

/* The row number of a key, given out in the order of first appearance. */
static size_t id_of(json_t *ids, const char *key)
{
    json_t *id = json_object_get(ids, key);
    if (id) return (size_t)json_integer_value(id);
    json_object_set_new(ids, key, json_integer((json_int_t)json_object_size(ids)));
    return json_object_size(ids) - 1;
}

static json_t *by_layer_json(const json_t *rows)
{
    const size_t n = json_array_size(rows);
    layer_phase *all = calloc(n, sizeof *all);
    json_t *ids = json_object(), *list = json_array();
    for (size_t i = 0; all && i < n; i++) {
        const json_t *row = json_array_get(rows, i);
        json_t *key = json_sprintf("%s\n%s", text_of(row, "phase"), text_of(row, "layer"));
        layer_phase *phase = key ? &all[id_of(ids, json_string_value(key))] : NULL;
        json_decref(key);
        if (!phase) continue;
        if (!phase->ranks)
            *phase = (layer_phase){text_of(row, "layer"), text_of(row, "phase"), "", -1, -1,           -1,
                                   {NAN, NAN, NAN, NAN},  rank_of(row),          0,  0,  json_object()};
        add_row(phase, row);
    }
    for (size_t i = 0; all && i < json_object_size(ids); i++) {
        json_array_append_new(list, layer_json(&all[i]));
        json_decref(all[i].ranks);
    }
    json_decref(ids);
    free(all);
    return list;
}

/* ---- the map ---- */

static char letter_of(double rel_l2)
{
    if (!(rel_l2 == rel_l2)) return '.';
    const double steps = rel_l2 > 0 ? ceil(2 * (log10(rel_l2) + 12)) : 0;
    return (char)('a' + (steps < 0 ? 0 : steps > 25 ? 25 : steps));
}

static int by_value(const void *left, const void *right)
{
    const json_int_t a = *(const json_int_t *)left, b = *(const json_int_t *)right;
    return (a > b) - (a < b);
}

/* Ranks in order, each once; malloc'ed. */
static json_int_t *ranks_of(const json_t *rows, size_t *n)
{
    json_int_t *ranks = malloc((json_array_size(rows) + 1) * sizeof *ranks);
    size_t kept = 0;
    *n = 0;
    if (!ranks) return NULL;
    for (size_t i = 0; i < json_array_size(rows); i++) ranks[i] = rank_of(json_array_get(rows, i));
    qsort(ranks, json_array_size(rows), sizeof *ranks, by_value);
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (!kept || ranks[i] != ranks[kept - 1]) ranks[kept++] = ranks[i];
    *n = kept;
    return ranks;
}

typedef struct map {
    json_int_t *ranks;
    size_t n_ranks, n_layers, group; /* layers that share a column */
    char *verdicts, *made, *sizes;
} map;

/* A digit that stands for a verdict; the worse one of two stays. */
static void take_verdict(char *cell, const char *word)
{
    const int verdict = lb_column_verdict_rank(word);
    if (verdict >= 0 && (*cell == '.' || '0' + verdict > *cell)) *cell = (char)('0' + verdict);
}

static void fill_map(map *map, const json_t *rows, json_t *ids)
{
    const size_t columns = (map->n_layers + map->group - 1) / map->group;
    memset(map->verdicts, '.', columns * map->n_ranks), memset(map->sizes, '.', columns * map->n_ranks);
    memset(map->made, '.', columns * map->n_ranks);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const json_int_t rank = rank_of(row);
        const json_int_t *at = bsearch(&rank, map->ranks, map->n_ranks, sizeof rank, by_value);
        const size_t cell = (size_t)(at - map->ranks) * columns + id_of(ids, text_of(row, "layer")) / map->group;
        const char size = letter_of(number_of(row, "rel_l2"));
        take_verdict(&map->verdicts[cell], text_of(row, "verdict"));
        take_verdict(&map->made[cell], text_of(row, "local"));
        if (size > map->sizes[cell]) map->sizes[cell] = size;
    }
}

/* Layers alone: parameters and other values have rows of their own, and a map of both shows neither. Where there is no
 * layer, everything. New. */
static json_t *layers_of(const json_t *rows)
{
    json_t *layers = json_array();
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (!json_is_true(json_object_get(json_array_get(rows, i), "value")))
            json_array_append(layers, json_array_get(rows, i));
    if (json_array_size(layers) == 0) json_array_extend(layers, (json_t *)rows);
    return layers;
}

static json_t *map_json(const json_t *rows)
{
    map map = {.group = 1};
    json_t *ids = json_object(), *names = json_array(), *ranks = json_array(), *found = NULL, *unused;
    const char *layer;
    for (size_t i = 0; i < json_array_size(rows); i++) id_of(ids, text_of(json_array_get(rows, i), "layer"));
    map.n_layers = json_object_size(ids);
    map.ranks = ranks_of(rows, &map.n_ranks);
    while (map.n_layers / map.group * map.n_ranks > LB_MAP_CELLS) map.group *= 2;
    map.verdicts = malloc((map.n_layers / map.group + 1) * map.n_ranks + 1);
    map.sizes = malloc((map.n_layers / map.group + 1) * map.n_ranks + 1);
    map.made = malloc((map.n_layers / map.group + 1) * map.n_ranks + 1);
    if (map.ranks && map.verdicts && map.sizes && map.made) {
        fill_map(&map, rows, ids);
        const size_t cells = (map.n_layers + map.group - 1) / map.group * map.n_ranks;
        json_object_foreach(ids, layer, unused)
        {
            json_t *name = (size_t)json_integer_value(unused) % map.group == 0 ? json_string(layer) : NULL;
            if (name) json_array_append_new(names, lb_column_text_cut(name));
            json_decref(name);
        }
        for (size_t i = 0; i < map.n_ranks; i++) json_array_append_new(ranks, json_integer(map.ranks[i]));
        found = json_pack("{s:O, s:O, s:I, s:I, s:s#, s:s#, s:s#}", "layers", names, "ranks", ranks, "group",
                          (json_int_t)map.group, "of", (json_int_t)map.n_layers, "verdicts", map.verdicts, (int)cells,
                          "made", map.made, (int)cells, "sizes", map.sizes, (int)cells);
    }
    free(map.ranks), free(map.verdicts), free(map.sizes), free(map.made);
    json_decref(ids), json_decref(names), json_decref(ranks);
    return found;
}

/* ---- histograms ---- */

/* Rows by floor(log_base x); "0" of those that are equal, "inf" of what no number holds. */
static json_t *histogram(const json_t *rows, const char *key, double base)
{
    enum { LOWEST = -60, BINS = 140 };
    json_int_t counts[BINS] = {0}, zero = 0, infinite = 0;
    json_t *bins = json_array();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const double x = number_of(json_array_get(rows, i), key);
        const double bin = floor(log(x) / log(base) + 1e-9);
        if (x == 0) zero++;
        if (isinf(x)) infinite++;
        if (x > 0 && isfinite(x) && bin >= LOWEST && bin < LOWEST + BINS) counts[(int)bin - LOWEST]++;
    }
    int first = 0, last = BINS - 1;
    while (first < BINS && !counts[first]) first++;
    while (last >= first && !counts[last]) last--;
    if (zero) json_array_append_new(bins, json_pack("[s, I]", "0", zero));
    for (int i = first; i <= last; i++)
        json_array_append_new(bins, json_pack("[o, I]", json_sprintf("%g^%d", base, i + LOWEST), counts[i]));
    if (infinite) json_array_append_new(bins, json_pack("[s, I]", "inf", infinite));
    return bins;
}

json_t *lb_drift_summary(const json_t *layers)
{
    if (json_array_size(layers) == 0) return NULL;
    json_t *mapped = layers_of(layers), *map = map_json(mapped);
    json_decref(mapped);
    return json_pack("{s:o, s:o, s:{s:o, s:o}}", "by_layer", by_layer_json(layers), "map", map, "histograms", "max_ulp",
                     histogram(layers, "max_ulp", 2), "rel_l2", histogram(layers, "rel_l2", 10));
}

/* ---- curves ---- */

static json_t *extreme(const json_t *column, size_t from, size_t to, int sign)
{
    json_t *best = json_array_get(column, from);
    for (size_t i = from; i < to; i++) {
        json_t *value = json_array_get(column, i);
        if (!json_is_number(value)) return value ? json_incref(value) : json_null();
        if (sign * json_number_value(value) > sign * json_number_value(best)) best = value;
    }
    return best ? json_incref(best) : json_null();
}

json_t *lb_drift_curves_thinned(const json_t *curves, size_t points)
{
    const size_t n = json_array_size(json_object_get(curves, "step"));
    if (n <= points || points < 2) return json_deep_copy(curves);
    const size_t run = (2 * n + points - 1) / points;
    json_t *thinned = json_object(), *column;
    const char *key;
    json_object_foreach((json_t *)curves, key, column)
    {
        json_t *kept = json_array();
        for (size_t from = 0; from < n && json_array_size(column) == n; from += run) {
            const size_t to = from + run < n ? from + run : n;
            const bool steps = strcmp(key, "step") == 0;
            json_array_append_new(kept,
                                  steps ? json_incref(json_array_get(column, from)) : extreme(column, from, to, -1));
            json_array_append_new(kept, steps ? json_incref(json_array_get(column, (from + to) / 2))
                                              : extreme(column, from, to, 1));
        }
        json_object_set_new(thinned, key, kept);
    }
    return thinned;
}
