/* Orders of reductions: see standin_reduce.h. */
#include "standin_reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int standin_number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

int standin_nodes(int ranks)
{
    const int nodes = standin_number("STANDIN_NCCL_NODES", 1);
    return nodes < ranks ? nodes : ranks;
}

/* What a rank brings: of an average its part, of a PreMulSum the product. Each rank has put its factor before its
 * bytes. */
static element contribution(const task *t, int rank, size_t at)
{
    element e = standin_load(t->dtype, t->comm->hall->slots[rank] + 64 + at * (size_t)standin_widths[t->dtype]);
    double factor;
    memcpy(&factor, t->comm->hall->slots[rank], sizeof factor);
    if (factor == 1) return e;
    if (t->dtype == 8)
        e.d *= factor;
    else if (standin_is_float(t->dtype))
        e.f *= standin_rounded(t->dtype, (element){.f = (float)factor}).f;
    else
        e.i *= (int64_t)factor;
    return standin_rounded(t->dtype, e);
}

/* ---- planted faults ---------------------------------------------------------------------------------------------- */

bool standin_flip_of(const char *name, flip *f)
{
    const char *text = getenv(name);
    return text && sscanf(text, "%d:%d:%d:%d", &f->call, &f->who, &f->element, &f->bit) == 4;
}

void standin_turn_over(int dtype, void *data, const flip *f)
{
    ((unsigned char *)data)[f->element * standin_widths[dtype] + f->bit / 8] ^= (unsigned char)(1 << f->bit % 8);
}

/* The element as the message of this hop carries it. */
static element carried(const task *t, int hop, size_t at, element e)
{
    flip f;
    char bytes[8];
    if (t->verb != ALL_REDUCE || !standin_flip_of("STANDIN_NCCL_HOP", &f) || f.call != t->comm->carried_out ||
        f.who != hop || (size_t)f.element != at)
        return e;
    standin_store(t->dtype, bytes, e);
    f.element = 0;
    standin_turn_over(t->dtype, bytes, &f);
    return standin_load(t->dtype, bytes);
}

static element around(const task *t, int first, size_t at)
{
    const int n = t->comm->ranks, me = t->comm->rank;
    element sum = contribution(t, first % n, at);
    for (int i = 1; i < n; i++)
        sum = standin_join(t->dtype, t->op, carried(t, i, at, sum), contribution(t, (first + i) % n, at));
    /* It lies at rank first + n - 1 now, and goes around once more. */
    const int way = (me - (first + n - 1) % n + n) % n;
    for (int i = 0; i < way; i++) sum = carried(t, n + i, at, sum);
    return sum;
}

/* A tree over nodes (ncclGetBtree); the ranks of a node are a chain that ends at its first. `mirror`: the second
 * tree. */
static element of_node(const task *t, int nodes, int node, bool mirror, size_t at);

static element of_tree(const task *t, int nodes, int node, bool mirror, size_t at)
{
    int bit = 1, children[2] = {-1, -1};
    while (bit < nodes && !(bit & node)) bit <<= 1;
    if (node == 0) {
        children[1] = nodes > 1 ? bit >> 1 : -1;
    } else if (bit > 1) {
        int low = bit >> 1;
        children[0] = node - low;
        while (low && node + low >= nodes) low >>= 1;
        children[1] = low ? node + low : -1;
    }
    element sum = of_node(t, nodes, node, mirror, at);
    for (int c = 0; c < 2; c++)
        if (children[c] >= 0) sum = standin_join(t->dtype, t->op, sum, of_tree(t, nodes, children[c], mirror, at));
    return sum;
}

static element of_node(const task *t, int nodes, int node, bool mirror, size_t at)
{
    const int each = (t->comm->ranks + nodes - 1) / nodes;
    const int real = !mirror ? node : nodes % 2 == 0 ? nodes - 1 - node : (node + 1) % nodes;
    int last = real * each + each - 1;
    if (last >= t->comm->ranks) last = t->comm->ranks - 1;
    element sum = contribution(t, last, at);
    for (int rank = last - 1; rank >= real * each; rank--)
        sum = standin_join(t->dtype, t->op, contribution(t, rank, at), sum);
    return sum;
}

/* Which chunk of its channel's loop an element is in: chunk c starts at rank c + 1 and ends at c. */
static int chunk_of(const task *t, size_t at)
{
    const size_t n = (size_t)t->comm->ranks, size = (size_t)standin_widths[t->dtype],
                 channels = (size_t)standin_number("STANDIN_NCCL_CHANNELS", 1);
    const size_t chunk = (512 << 10) / size, grain = 16 / size;
    for (size_t c = 0; c < channels; c++) {
        const size_t first = t->count * c / channels, last = t->count * (c + 1) / channels;
        if (at >= last) continue;
        for (size_t from = first;; from += chunk * n) {
            const size_t left = last - from;
            if (at >= from + chunk * n) continue;
            size_t one = left < chunk * n ? ((left + n - 1) / n + grain - 1) / grain * grain : chunk;
            return (int)((at - from) / (one < chunk ? one : chunk));
        }
    }
    return 0;
}

element standin_reduced(const task *t, size_t at)
{
    const char *algorithm = getenv("STANDIN_NCCL_ALGO");
    const int nodes = standin_nodes(t->comm->ranks);
    if (t->verb == REDUCE) return around(t, t->root + 1, at);
    if (t->verb == REDUCE_SCATTER) return around(t, t->comm->rank + 1, at);
    if (algorithm && !strcmp(algorithm, "tree")) return of_tree(t, nodes, 0, at >= (t->count + 1) / 2, at);
    return around(t, chunk_of(t, at) + 1, at);
}
