/* Longest common subsequences: see sequence.h. */
#include "pair/sequence.h"

#include <stdlib.h>

enum { CELLS = 1 << 24, AHEAD = 64 };

static void match_greedily(const uint64_t *a, uint32_t na, const uint64_t *b, uint32_t nb, uint32_t shift,
                           uint32_t *match)
{
    uint32_t i = 0, j = 0;
    while (i < na && j < nb) {
        uint32_t best = UINT32_MAX, di = 0, dj = 0;
        for (uint32_t d = 0; d < AHEAD && best == UINT32_MAX; d++)
            for (uint32_t k = 0; k <= d; k++)
                if (i + k < na && j + d - k < nb && a[i + k] == b[j + d - k]) {
                    best = d, di = k, dj = d - k;
                    break;
                }
        if (best == UINT32_MAX) {
            i++, j++;
            continue;
        }
        i += di, j += dj;
        match[i++] = shift + j++;
    }
}

static void match_by_table(const uint64_t *a, uint32_t na, const uint64_t *b, uint32_t nb, uint32_t shift,
                           uint32_t *best, uint32_t *match)
{
#define BEST(i, j) best[(size_t)(i) * (nb + 1) + (j)]
    for (uint32_t i = na; i-- > 0;)
        for (uint32_t j = nb; j-- > 0;) {
            uint32_t skip = BEST(i + 1, j) > BEST(i, j + 1) ? BEST(i + 1, j) : BEST(i, j + 1);
            BEST(i, j) = a[i] == b[j] && BEST(i + 1, j + 1) + 1 >= skip ? BEST(i + 1, j + 1) + 1 : skip;
        }
    for (uint32_t i = 0, j = 0; i < na && j < nb;) {
        if (a[i] == b[j] && BEST(i, j) == BEST(i + 1, j + 1) + 1)
            match[i++] = shift + j++;
        else if (BEST(i + 1, j) >= BEST(i, j + 1))
            i++;
        else
            j++;
    }
#undef BEST
}

void lb_sequence_match(const uint64_t *a, uint32_t na, const uint64_t *b, uint32_t nb, uint32_t *match)
{
    uint32_t head = 0;
    for (uint32_t i = 0; i < na; i++) match[i] = UINT32_MAX;
    for (; na && nb && *a == *b; a++, b++, na--, nb--, head++) *match++ = head;
    for (; na && nb && a[na - 1] == b[nb - 1]; na--, nb--) match[na - 1] = head + nb - 1;
    if (!na || !nb) return;
    uint64_t cells = (uint64_t)(na + 1) * (nb + 1);
    uint32_t *best = cells <= CELLS ? calloc(cells, sizeof *best) : NULL;
    if (best)
        match_by_table(a, na, b, nb, head, best, match);
    else
        match_greedily(a, na, b, nb, head, match);
    free(best);
}
