/* Arrays that grow as rows are appended.
 *
 * An array that holds n rows has room for the power of two at or above n, and for none while it is NULL: the count
 * alone says when it must grow. That holds as long as all growth goes through these functions. An array that was
 * allocated for exactly n rows has no such room, unless it stays empty or n is a power of two.
 *
 *     row *grown = lb_array_grow(list->rows, list->n, sizeof *grown);
 *     if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
 *     list->rows = grown;
 *     list->rows[list->n++] = new_row;
 *
 * Memory is that of malloc: the caller frees it. Fewer rows than before need no call; growth then goes on from there.
 * The orders in which such rows are sorted stand at the end, and how one is found among sorted ones.
 */
#ifndef LASTBIT_ARRAY_H
#define LASTBIT_ARRAY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `array` of `n` rows of `width` bytes with room for one more, perhaps elsewhere. NULL when out of memory: `array` is
 * as it was. */
static inline void *lb_array_grow(void *array, size_t n, size_t width)
{
    size_t bytes;
    if (n & (n - 1)) return array;
    return __builtin_mul_overflow(n ? 2 * n : 1, width, &bytes) ? NULL : realloc(array, bytes);
}

/* The same for `more` rows, perhaps none; who appends them does not ask for each again. */
static inline void *lb_array_reserve(void *array, size_t n, size_t more, size_t width)
{
    size_t wanted = 1, bytes;
    if (more > SIZE_MAX / 2 || n > SIZE_MAX / 2 - more) return NULL;
    while (wanted < n) wanted *= 2;
    if (n && n + more <= wanted) return array;
    while (wanted < n + more) wanted *= 2;
    return __builtin_mul_overflow(wanted, width, &bytes) ? NULL : realloc(array, bytes);
}

/* For an array that is emptied and filled again and again, and so knows its `*room`: room for `n` rows in all. NULL
 * when out of memory: both are as they were. */
static inline void *lb_array_fit(void *array, uint32_t *room, size_t n, size_t width)
{
    size_t larger = *room ? *room : 1, bytes;
    if (n <= *room) return array;
    if (n > UINT32_MAX) return NULL;
    while (larger < n) larger *= 2;
    if (larger > UINT32_MAX || __builtin_mul_overflow(larger, width, &bytes)) return NULL;
    void *grown = realloc(array, bytes);
    if (grown) *room = (uint32_t)larger;
    return grown;
}

/* Orders for qsort and bsearch: ascending. */
static inline int lb_by_i32(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}
static inline int lb_by_u32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}
static inline int lb_by_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}
static inline int lb_by_i64(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}
static inline int lb_by_f64(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* Of pointers to text. */
static inline int lb_by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The first of `n` sorted rows that does not come before `wanted`, or n. Orders are those of bsearch; rows whose first
 * member is the key are found by lb_by_u32 and its like. */
static inline size_t lb_array_first(const void *array, size_t n, size_t width, const void *wanted,
                                    int (*order)(const void *, const void *))
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (order((const char *)array + middle * width, wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#ifdef __cplusplus
}
#endif
#endif
