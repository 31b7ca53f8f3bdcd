/* Runs of raw elements moved from one dense array to another, converted where the dtypes differ: what gathers and
 * scatters are made of. Bits are copied untouched between equal dtypes. */
#ifndef LB_REPLAY_ELEMENTS_H
#define LB_REPLAY_ELEMENTS_H

#include <lastbit/dtype.h>
#include <string.h>

typedef struct lb_elements {
    lb_dtype to, from;
    int64_t to_bytes, from_bytes;
    const lb_cast *cast;
} lb_elements;

static inline lb_elements lb_elements_of(lb_dtype to, lb_dtype from, const lb_cast *cast)
{
    lb_elements e = {to, from, (int64_t)lb_dtype_bits(to) / 8, (int64_t)lb_dtype_bits(from) / 8, cast};
    return e;
}

/* dst[i .. i+n) = src[j .. j+n) */
static inline void lb_elements_move(const lb_elements *e, void *dst, int64_t i, const void *src, int64_t j, int64_t n)
{
    char *d = (char *)dst + i * e->to_bytes;
    const char *s = (const char *)src + j * e->from_bytes;
    if (e->to != e->from)
        lb_convert(e->to, d, e->from, s, (size_t)n, e->cast);
    else if (n == 1 && e->to_bytes == 4)
        memcpy(d, s, 4);
    else if (n == 1 && e->to_bytes == 8)
        memcpy(d, s, 8);
    else
        memcpy(d, s, (size_t)(n * e->to_bytes));
}

#endif
