/* Sets kept once: see owner_sets.h. */
#include "owner_sets.h"

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

/* The slot that holds an equal set, or the free one where it would go. */
static uint32_t *slot_of(const lb_owner_sets *sets, const uint64_t *words)
{
    uint32_t at = (uint32_t)hash(words, sets->width) & (sets->n_slots - 1);
    while (sets->slots[at] && memcmp(row_words(sets, sets->slots[at] - 1), words, sets->width * sizeof *words) != 0)
        at = (at + 1) & (sets->n_slots - 1);
    return &sets->slots[at];
}

/* Room for twice as many rows, and one more to try a set in. */
static bool grow(lb_owner_sets *sets)
{
    const uint32_t room = 2 * sets->room + 64, n_slots = sets->n_slots ? 4 * sets->n_slots : 256;
    uint64_t *words = realloc(sets->words, ((size_t)room + 1) * sets->width * sizeof *words);
    if (words) sets->words = words;
    uint32_t *counts = realloc(sets->counts, room * sizeof *counts), *slots = calloc(n_slots, sizeof *slots);
    if (counts) sets->counts = counts;
    if (!words || !counts || !slots) {
        free(slots);
        return false;
    }
    free(sets->slots);
    sets->slots = slots, sets->n_slots = n_slots, sets->room = room;
    for (uint32_t i = 0; i < sets->n; i++) *slot_of(sets, row_words(sets, i)) = i + 1;
    return true;
}

/* The row of the set that stands behind the last row. */
static uint32_t keep_tried(lb_owner_sets *sets)
{
    uint64_t *words = row_words(sets, sets->n);
    uint32_t *slot = slot_of(sets, words);
    if (*slot) return *slot - 1;
    uint32_t count = 0;
    for (uint32_t i = 0; i < sets->width; i++) count += (uint32_t)__builtin_popcountll(words[i]);
    const uint32_t row = sets->n++;
    *slot = row + 1;
    sets->counts[row] = count;
    if (sets->n == sets->room && !grow(sets)) sets->n--, *slot = 0, sets->failed = true;
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
    free(sets->slots);
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
