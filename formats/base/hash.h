/* Rows of an array by hash: 64 bits of a key to the numbers of the rows that may have it.
 *
 * The rows, and what makes two of them equal, are the caller's: the table gives candidates, one in 2^32 of them wrong,
 * and the caller compares. So it knows no keys, rows may move in memory as their array grows, and it grows by itself.
 *
 *     LB_HASH_EACH (row, &set->index, hash)
 *         if (strcmp(set->names[row], name) == 0) return row;
 *     return lb_hash_add(&set->index, hash, set->n) ? append(set, name) : LB_NONE;
 *
 * Any hash will do, an id or an address among them: it is mixed here. Open addressing with linear probing, at most half
 * full.
 */
#ifndef LASTBIT_HASH_H
#define LASTBIT_HASH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zero-initialise. */
typedef struct lb_hash {
    uint64_t *slots;  /* 32 bits of the mixed hash, row + 1; 0: free */
    uint32_t n, size; /* size: a power of two, or 0 */
} lb_hash;

/* Fibonacci hashing (Knuth): the upper bits of the product are the well-mixed ones. */
static inline uint64_t lb_hash_tag(uint64_t hash)
{
    return (hash ^ hash >> 32) * UINT64_C(0x9E3779B97F4A7C15) >> 32 << 32;
}

static inline uint32_t lb_hash_home(const lb_hash *table, uint64_t slot)
{
    return (uint32_t)((slot >> 32) * table->size >> 32);
}

/* The next row that may have this hash, UINT32_MAX (which is LB_NONE) behind the last; `*probes` begins at 0. */
static inline uint32_t lb_hash_next(const lb_hash *table, uint64_t hash, uint32_t *probes)
{
    const uint64_t tag = lb_hash_tag(hash);
    if (!table->size) return UINT32_MAX;
    for (uint32_t at = lb_hash_home(table, tag) + *probes;; at++) {
        const uint64_t slot = table->slots[at & (table->size - 1)];
        ++*probes;
        if (!slot) return UINT32_MAX;
        if ((slot ^ tag) >> 32 == 0) return (uint32_t)slot - 1;
    }
}

#define LB_HASH_EACH(row, table, hash)                                                                                 \
    for (uint32_t row##_probes = 0, row; (row = lb_hash_next((table), (hash), &row##_probes)) != UINT32_MAX;)

static inline void lb_hash_put(lb_hash *table, uint64_t slot)
{
    uint32_t at = lb_hash_home(table, slot);
    while (table->slots[at & (table->size - 1)]) at++;
    table->slots[at & (table->size - 1)] = slot;
}

/* Adds a row, which is not in it. False when out of memory: the table is as it was. */
static inline bool lb_hash_add(lb_hash *table, uint64_t hash, uint32_t row)
{
    if (2 * ((uint64_t)table->n + 1) > table->size) {
        lb_hash larger = {NULL, table->n, table->size ? 2 * table->size : 64};
        if (larger.size) larger.slots = (uint64_t *)calloc(larger.size, sizeof *larger.slots);
        if (!larger.slots) return false;
        for (uint32_t i = 0; i < table->size; i++)
            if (table->slots[i]) lb_hash_put(&larger, table->slots[i]);
        free(table->slots);
        *table = larger;
    }
    lb_hash_put(table, lb_hash_tag(hash) | (row + 1u));
    table->n++;
    return true;
}

/* Takes out a row, which is in it. */
static inline void lb_hash_remove(lb_hash *table, uint64_t hash, uint32_t row)
{
    const uint64_t slot = lb_hash_tag(hash) | (row + 1u);
    const uint32_t mask = table->size - 1;
    uint32_t hole = lb_hash_home(table, slot) & mask;
    while (table->slots[hole] != slot) hole = (hole + 1) & mask;
    /* What was pushed beyond the hole moves into it, unless its home lies between. */
    for (uint32_t at = (hole + 1) & mask; table->slots[at]; at = (at + 1) & mask)
        if (((at - lb_hash_home(table, table->slots[at])) & mask) >= ((at - hole) & mask))
            table->slots[hole] = table->slots[at], hole = at;
    table->slots[hole] = 0;
    table->n--;
}

/* No rows, the same room. */
static inline void lb_hash_clear(lb_hash *table)
{
    if (table->size) memset(table->slots, 0, table->size * sizeof *table->slots);
    table->n = 0;
}

static inline void lb_hash_release(lb_hash *table)
{
    free(table->slots);
    table->slots = NULL;
    table->n = table->size = 0;
}

#ifdef __cplusplus
}
#endif
#endif
