/* JSON made small: see column_table.h. */
#include "report/column_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const lb_verdict_words[LB_VERDICT_RANKS] = {"identical", "reordered", "noise",   "rounding",
                                                        "swapped",   "undecided", "missing", "diverged"};

int lb_column_verdict_rank(const char *word)
{
    for (int i = 0; word && i < LB_VERDICT_RANKS; i++)
        if (strcmp(word, lb_verdict_words[i]) == 0) return i;
    return word && strcmp(word, "opaque") == 0 ? lb_column_verdict_rank("missing") : -1;
}

json_t *lb_column_text_cut(const json_t *text)
{
    const char *bytes = json_string_value(text);
    size_t n = json_string_length(text), characters = 0, end = n;
    for (size_t i = 0; i < n; i++) {
        if (((unsigned char)bytes[i] & 0xc0) == 0x80) continue;
        if (characters++ == LB_TEXT_KEPT) end = i;
    }
    return end == n ? json_stringn(bytes, n) : json_sprintf("%.*s… (%zu characters)", (int)end, bytes, characters);
}

/* 6 digits, as the page prints them; times and large counts to the unit. */
static json_t *round_number(double x)
{
    if (fabs(x) >= 1e5 && fabs(x) < 9e15) return json_integer((json_int_t)llround(x));
    char text[40];
    snprintf(text, sizeof text, "%.6g", x);
    return json_real(strtod(text, NULL));
}

/* ---- which rows stay ---- */

typedef struct row_weight {
    size_t row;
    int badness;
    double size;
} row_weight;

static double size_of(const json_t *row)
{
    static const char *const names[] = {"rel_l2", "max_abs", "k3", "total"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *number = json_object_get(row, names[i]);
        if (json_is_number(number)) return fabs(json_number_value(number));
        if (json_is_string(number)) return INFINITY;
    }
    return 0;
}

static int worst_first(const void *left, const void *right)
{
    const row_weight *a = left, *b = right;
    if (a->badness != b->badness) return b->badness - a->badness;
    if (a->size != b->size) return a->size > b->size ? -1 : 1;
    return a->row < b->row ? -1 : 1;
}

/* About what a row takes in columns; texts are interned, so that only the first of each counts in full. */
static size_t bytes_of(const json_t *row, json_t *seen)
{
    size_t bytes = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)row, key, value)
    {
        char *text = NULL;
        bytes += 7;
        if (json_is_string(value) && !json_object_get(seen, json_string_value(value))) {
            bytes += json_string_length(value);
            json_object_set_new(seen, json_string_value(value), json_null());
        }
        if (json_is_object(value) || json_is_array(value)) text = json_dumps(value, JSON_COMPACT);
        if (text) bytes += strlen(text);
        free(text);
    }
    return bytes;
}

/* kept[i]: row i stays. Returns how many do; at least one. */
static size_t choose_rows(const json_t *rows, bool *kept, size_t *budget)
{
    const size_t most = *budget < LB_ROW_BYTES_KEPT ? *budget : LB_ROW_BYTES_KEPT;
    const size_t n = json_array_size(rows);
    row_weight *order = malloc(n * sizeof *order);
    json_t *seen = json_object();
    size_t count = 0, bytes = 0;
    for (size_t i = 0; order && i < n; i++) {
        const json_t *row = json_array_get(rows, i);
        order[i] =
            (row_weight){i, lb_column_verdict_rank(json_string_value(json_object_get(row, "verdict"))), size_of(row)};
    }
    if (order) qsort(order, n, sizeof *order, worst_first);
    for (; order && seen && count < n && count < LB_ROWS_KEPT; count++) {
        bytes += bytes_of(json_array_get(rows, order[count].row), seen);
        if (bytes > most && count) break;
        kept[order[count].row] = true;
    }
    *budget -= bytes < *budget ? bytes : *budget;
    free(order);
    json_decref(seen);
    return count;
}

/* ---- columns ---- */

static bool is_table(const json_t *list)
{
    if (json_array_size(list) < LB_COLUMN_ROWS) return false;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_object(json_array_get(list, i))) return false;
    return true;
}

/* Every key of every kept row, in the order of their first appearance. */
static json_t *keys_of(const json_t *rows, const bool *kept)
{
    json_t *keys = json_object();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const char *key;
        json_t *value;
        if (!kept[i]) continue;
        json_object_foreach(json_array_get(rows, i), key, value)
        {
            if (!json_object_get(keys, key)) json_object_set_new(keys, key, json_null());
        }
    }
    return keys;
}

/* Texts of a column that holds nothing else (or null) as numbers of words. */
static json_t *intern(const json_t *rows, const bool *kept, const char *key)
{
    json_t *words = json_array(), *at = json_array(), *ids = json_object();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        if (!kept[i]) continue;
        const json_t *text = json_object_get(json_array_get(rows, i), key);
        if (!json_is_string(text)) {
            json_array_append_new(at, json_integer(-1));
            continue;
        }
        json_t *id = json_object_get(ids, json_string_value(text));
        if (!id) {
            id = json_integer((json_int_t)json_array_size(words));
            json_object_set_new(ids, json_string_value(text), id);
            json_array_append_new(words, lb_column_text_cut(text));
        }
        json_array_append(at, id);
    }
    json_decref(ids);
    return json_pack("{s:o, s:o}", "words", words, "at", at);
}

static json_t *column_of(const json_t *rows, const bool *kept, const char *key, size_t *budget)
{
    bool words = true;
    for (size_t i = 0; words && i < json_array_size(rows); i++) {
        const json_t *value = json_object_get(json_array_get(rows, i), key);
        words = !kept[i] || !value || json_is_string(value) || json_is_null(value);
    }
    if (words) return intern(rows, kept, key);
    json_t *column = json_array();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *value = kept[i] ? json_object_get(json_array_get(rows, i), key) : NULL;
        if (kept[i]) json_array_append_new(column, value ? lb_column_compact(value, budget) : json_null());
    }
    return column;
}

static json_t *table_of(const json_t *rows, size_t *budget)
{
    const size_t n = json_array_size(rows);
    bool *kept = calloc(n, sizeof *kept);
    if (!kept) return NULL;
    const size_t left = choose_rows(rows, kept, budget);
    json_t *columns = json_object(), *keys = keys_of(rows, kept), *unused;
    const char *key;
    json_object_foreach(keys, key, unused) json_object_set_new(columns, key, column_of(rows, kept, key, budget));
    json_decref(keys);
    free(kept);
    return json_pack("{s:I, s:I, s:o}", "rows", (json_int_t)left, "of", (json_int_t)n, "columns", columns);
}

static json_t *list_of(const json_t *list, size_t *budget)
{
    const size_t n = json_array_size(list);
    json_t *kept = json_array();
    for (size_t i = 0; i < n && i < LB_ROWS_KEPT; i++)
        json_array_append_new(kept, lb_column_compact(json_array_get(list, i), budget));
    if (n > LB_ROWS_KEPT) json_array_append_new(kept, json_sprintf("… (%zu entries)", n));
    return kept;
}

json_t *lb_column_compact(const json_t *value, size_t *budget)
{
    if (json_is_string(value)) return lb_column_text_cut(value);
    if (json_is_real(value)) return round_number(json_real_value(value));
    if (is_table(value)) return table_of(value, budget);
    if (json_is_array(value)) return list_of(value, budget);
    if (!json_is_object(value)) return json_deep_copy(value);
    json_t *object = json_object(), *inner;
    const char *key;
    json_object_foreach((json_t *)value, key, inner) json_object_set_new(object, key, lb_column_compact(inner, budget));
    return object;
}
