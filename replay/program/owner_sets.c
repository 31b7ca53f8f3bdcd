/* Sets kept once: see owner_sets.h. */
#include "program/owner_sets.h"

#include "base/array.h"
#include "base/hash.h"
#include <stdlib.h>
#include <string.h>

static uint64_t hash(const uint64_t *words, uint32_t width)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < width; i++) h = (h ^ words[i]) * 0xff51afd7ed558ccdu, h ^= h >> 32;
    return h;
}

static uint64_t *row_words(const lb_owner_sets *sets, uint32_t row)
{
    return sets->words + (size_t)row * sets->width;
}

/* Room for a row behind the last, to try a set in. */
static bool grow(lb_owner_sets *sets)
{
    uint64_t *words = lb_array_grow(sets->words, sets->n, sets->width * sizeof *words);
    if (words) sets->words = words;
    uint32_t *counts = lb_array_grow(sets->counts, sets->n, sizeof *counts);
    if (counts) sets->counts = counts;
    return words && counts;
}

/* The row of the set that stands behind the last row. */
static uint32_t keep_tried(lb_owner_sets *sets)
{
    const uint64_t *words = row_words(sets, sets->n), h = hash(words, sets->width);
    LB_HASH_EACH(row, &sets->by_words, h)
    if (memcmp(row_words(sets, row), words, sets->width * sizeof *words) == 0) return row;
    uint32_t count = 0;
    for (uint32_t i = 0; i < sets->width; i++) count += (uint32_t)__builtin_popcountll(words[i]);
    const uint32_t row = sets->n++;
    sets->counts[row] = count;
    if (!grow(sets))
        sets->n--, sets->failed = true;
    else if (!lb_hash_add(&sets->by_words, h, row))
        sets->failed = true;
    return sets->failed ? 0 : row;
}

lb_status lb_owner_sets_init(lb_owner_sets *sets, uint32_t universe, lb_err *err)
{
    *sets = (lb_owner_sets){.width = universe / 64 + 1};
    if (!grow(sets)) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    memset(row_words(sets, 0), 0, sets->width * sizeof *sets->words);
    keep_tried(sets);
    return LB_OK;
}

void lb_owner_sets_release(lb_owner_sets *sets)
{
    free(sets->words);
    free(sets->counts);
    lb_hash_release(&sets->by_words);
    *sets = (lb_owner_sets){0};
}

uint32_t lb_owner_set_of(lb_owner_sets *sets, uint32_t number)
{
    uint64_t *words = row_words(sets, sets->n);
    memset(words, 0, sets->width * sizeof *words);
    words[number / 64] |= (uint64_t)1 << (number % 64);
    return keep_tried(sets);
}

uint32_t lb_owner_set_join(lb_owner_sets *sets, uint32_t a, uint32_t b)
{
    if (a == b || !b) return a;
    if (!a) return b;
    uint64_t *words = row_words(sets, sets->n);
    const uint64_t *x = row_words(sets, a), *y = row_words(sets, b);
    for (uint32_t i = 0; i < sets->width; i++) words[i] = x[i] | y[i];
    return keep_tried(sets);
}

uint32_t lb_owner_set_next(const lb_owner_sets *sets, uint32_t row, uint32_t from)
{
    const uint64_t *words = row_words(sets, row);
    for (uint32_t i = from / 64; i < sets->width; i++) {
        const uint64_t rest = words[i] & (i == from / 64 ? ~(uint64_t)0 << (from % 64) : ~(uint64_t)0);
        if (rest) return 64 * i + (uint32_t)__builtin_ctzll(rest);
    }
    return UINT32_MAX;
}
