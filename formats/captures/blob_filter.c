/* See blob_filter.h. */
#include "captures/blob_filter.h"

#include <stdlib.h>

enum { LINE_BITS = 512, LINE_WORDS = LINE_BITS / 64, BITS_SET = 8, BITS_PER_DIGEST = 16 };

struct lb_blob_filter {
    uint64_t lines; /* a power of two */
    uint64_t words[];
};

lb_blob_filter *lb_blob_filter_new(uint64_t digests)
{
    uint64_t lines = 1;
    if (digests > UINT64_MAX / BITS_PER_DIGEST) return NULL;
    while (lines < digests * BITS_PER_DIGEST / LINE_BITS) lines *= 2;
    lb_blob_filter *filter = (lb_blob_filter *)calloc(1, sizeof *filter + lines * LINE_WORDS * sizeof(uint64_t));
    if (filter) filter->lines = lines;
    return filter;
}

void lb_blob_filter_free(lb_blob_filter *filter)
{
    free(filter);
}

/* A digest is hashed bits already: the upper half says which line, the lower one nine bits at a time which bits in
 * it. */
static uint64_t line_of(const lb_blob_filter *filter, lb_digest digest)
{
    return (digest.hi & (filter->lines - 1)) * LINE_WORDS;
}

static unsigned bit_of(lb_digest digest, int i)
{
    return (i < 7 ? digest.lo >> 9 * i : digest.hi >> 55) & (LINE_BITS - 1);
}

void lb_blob_filter_add(lb_blob_filter *filter, lb_digest digest)
{
    uint64_t *line = filter->words + line_of(filter, digest);
    for (int i = 0; i < BITS_SET; i++) line[bit_of(digest, i) / 64] |= UINT64_C(1) << bit_of(digest, i) % 64;
}

bool lb_blob_filter_may_hold(const lb_blob_filter *filter, lb_digest digest)
{
    const uint64_t *line = filter->words + line_of(filter, digest);
    for (int i = 0; i < BITS_SET; i++)
        if (!(line[bit_of(digest, i) / 64] & UINT64_C(1) << bit_of(digest, i) % 64)) return false;
    return true;
}
