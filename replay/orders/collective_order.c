/* Orders of reductions over ranks: see collective_order.h. */
#include "orders/collective_order.h"

#include "orders/rank_tree.h"

#include "base/array.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ------------------------------------------------------------------------------------------------------ */

bool lb_collective_order_next(const char **at, char name[LB_COLLECTIVE_ORDER_NAME])
{
    *at += strspn(*at, " ");
    const size_t n = strcspn(*at, " ");
    snprintf(name, LB_COLLECTIVE_ORDER_NAME, "%.*s", (int)n, *at);
    *at += n;
    return n > 0;
}

lb_status lb_collective_order_parse(const char *text, lb_collective_order *order, lb_err *err)
{
    static const struct {
        const char *name;
        lb_collective_order_kind kind;
        int64_t channels;
    } names[] = {{"gloo", LB_ORDER_GLOO, 1},
                 {"ring", LB_ORDER_RING, 1},
                 {"mpi_ring", LB_ORDER_MPI_RING, 1},
                 {"tree", LB_ORDER_TREE, 1},
                 {"rank", LB_ORDER_RANK, 1},
                 {"wide", LB_ORDER_WIDE, 1},
                 {"rotated", LB_ORDER_ROTATED, 1},
                 {"doubling", LB_ORDER_DOUBLING, 1},
                 {"rabenseifner", LB_ORDER_RABENSEIFNER, 1},
                 {"mpich_ring", LB_ORDER_MPICH_RING, 1},
                 {"nbc_ring", LB_ORDER_NBC_RING, 1},
                 {"pairwise", LB_ORDER_PAIRWISE, 1},
                 {"linear", LB_ORDER_LINEAR, 1},
                 {"halving", LB_ORDER_HALVING, 1},
                 {"binomial", LB_ORDER_BINOMIAL, 1},
                 {"binary", LB_ORDER_BINARY, 1},
                 {"kary", LB_ORDER_KARY, 2},
                 {"chain", LB_ORDER_CHAIN, 4},
                 {"in_order_binary", LB_ORDER_IN_ORDER_BINARY, 1},
                 {"nbc_binomial", LB_ORDER_NBC_BINOMIAL, 1},
                 {"nbc_chain", LB_ORDER_NBC_CHAIN, 1}};
    const size_t n = strcspn(text, ":@");
    *order = (lb_collective_order)LB_ORDER_INIT;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i].name) != n || strncmp(text, names[i].name, n)) continue;
        order->kind = names[i].kind, order->channels = names[i].channels;
        const char *p = text + n;
        char *end = (char *)p;
        if (*p == ':') order->channels = strtoll(p + 1, &end, 10);
        if (*end == ':') order->chunk = strtoll(end + 1, &end, 10);
        order->at_zero = lb_rank_tree_has(order->kind) && !strcmp(end, "@0");
        if (order->at_zero) end += 2;
        if (*end == '\0' && order->channels >= 1 && order->channels <= 65536 && order->chunk >= 0) return LB_OK;
    }
    return lb_fail(
        err, LB_ERR_INVALID,
        "\"%s\" is not an order of a collective: gloo, ring[:CHANNELS[:CHUNK]], mpi_ring, mpich_ring, nbc_ring, "
        "pairwise, "
        "tree[:RANKS_PER_NODE], rank, linear, wide, rotated, doubling, rabenseifner, halving, binomial, binary, "
        "kary[:K], chain[:CHAINS], in_order_binary, nbc_binomial, nbc_chain; a tree with @0 ends at rank 0",
        text);
}

bool lb_collective_order_ends_at_home(const lb_collective_order *order)
{
    return order->kind == LB_ORDER_RING || order->kind == LB_ORDER_PAIRWISE;
}

/* ---- folds ------------------------------------------------------------------------------------------------------ */

/* acc = x[start]; acc += x[start + step] … n terms, around the ring. */
static uint16_t ring_folds(lb_collective_fold *folds, uint32_t n, int64_t start, int step)
{
    uint16_t root = (uint16_t)(((start % n) + n) % n);
    for (uint32_t i = 1; i < n; i++) {
        int64_t at = start + (int64_t)step * i;
        folds[i - 1] = (lb_collective_fold){root, (uint16_t)(((at % n) + n) % n)};
    }
    return root;
}

/* Surplus ranks are folded pairwise, the survivors form a balanced binary tree: neighbours meet first, or those that
 * are furthest apart. */
static uint16_t doubling_folds(lb_collective_fold *folds, uint32_t n, bool odd_survives, bool largest_first)
{
    uint16_t alive[LB_COLLECTIVE_MAX_RANKS];
    uint32_t power = 1, folded = 0, k = 0;
    while (power * 2 <= n) power *= 2;
    uint32_t extra = n - power;
    for (uint32_t r = 0; r < n; r++) {
        if (r >= 2 * extra) {
            alive[k++] = (uint16_t)r;
        } else if (r % 2 == 0) {
            uint16_t survivor = (uint16_t)(odd_survives ? r + 1 : r);
            folds[folded++] = (lb_collective_fold){survivor, (uint16_t)(odd_survives ? r : r + 1)};
            alive[k++] = survivor;
        }
    }
    for (uint32_t mask = 1; mask < power && !largest_first; mask *= 2)
        for (uint32_t v = 0; v < power; v += 2 * mask)
            folds[folded++] = (lb_collective_fold){alive[v], alive[v + mask]};
    for (uint32_t mask = power / 2; mask && largest_first; mask /= 2)
        for (uint32_t v = 0; v < mask; v++) folds[folded++] = (lb_collective_fold){alive[v], alive[v + mask]};
    return alive[0];
}

/* From the last rank down. */
static uint16_t linear_folds(lb_collective_fold *folds, uint32_t n)
{
    for (uint32_t i = 0; i + 1 < n; i++) folds[i] = (lb_collective_fold){(uint16_t)(n - 1), (uint16_t)(n - 2 - i)};
    return (uint16_t)(n - 1);
}

/* Rank v of the tree takes in its children's sums. Returns the number of folds so far. */
static uint32_t fold_subtree(const lb_rank_tree *tree, uint32_t v, lb_collective_fold *folds, uint32_t n)
{
    for (uint32_t k = 0;; k++) {
        const int64_t child = lb_rank_tree_child(tree, v, k);
        if (child < 0) return n;
        n = fold_subtree(tree, (uint32_t)child, folds, n);
        folds[n++] = (lb_collective_fold){lb_rank_tree_rank(tree, v), lb_rank_tree_rank(tree, (uint32_t)child)};
    }
}

static uint16_t rank_tree_folds(const lb_collective_order *order, lb_collective_fold *folds, uint32_t n)
{
    const lb_rank_tree tree = lb_rank_tree_of(order, n);
    fold_subtree(&tree, lb_rank_tree_top(&tree), folds, 0);
    return lb_rank_tree_rank(&tree, lb_rank_tree_top(&tree));
}

/* Children of a node in NCCL's binary tree (ncclGetBtree), -1 for none. */
static void tree_children(int64_t nodes, int64_t rank, int64_t child[2])
{
    int64_t bit = 1;
    child[0] = child[1] = -1;
    while (bit < nodes && !(bit & rank)) bit <<= 1;
    if (rank == 0) {
        if (nodes > 1) child[1] = bit >> 1;
        return;
    }
    int64_t low = bit >> 1;
    if (low == 0) return;
    child[0] = rank - low;
    while (low && rank + low >= nodes) low >>= 1;
    child[1] = low ? rank + low : -1;
}

typedef struct tree {
    int64_t nodes, per_node, ranks;
    bool mirrored; /* tree 1: node r plays the part of n-1-r (even n) or r-1 (odd n) in tree 0 */
    lb_collective_fold *folds;
    uint32_t n;
} tree;

static int64_t played_by(const tree *tree, int64_t part)
{
    if (!tree->mirrored) return part;
    return tree->nodes % 2 == 0 ? tree->nodes - 1 - part : (part + 1) % tree->nodes;
}

/* A node: its ranks are a chain that ends at its first rank, which then takes the children in order. */
static uint16_t fold_node(tree *tree, int64_t part)
{
    int64_t head = played_by(tree, part) * tree->per_node, last = head + tree->per_node - 1, child[2];
    if (last >= tree->ranks) last = tree->ranks - 1;
    for (int64_t r = last; r > head; r--) tree->folds[tree->n++] = (lb_collective_fold){(uint16_t)(r - 1), (uint16_t)r};
    tree_children(tree->nodes, part, child);
    for (int c = 0; c < 2; c++) {
        if (child[c] < 0) continue;
        uint16_t from = fold_node(tree, child[c]);
        tree->folds[tree->n++] = (lb_collective_fold){(uint16_t)head, from};
    }
    return (uint16_t)head;
}

static uint16_t tree_folds(lb_collective_fold *folds, uint32_t n, int64_t per_node, bool mirrored)
{
    tree tree = {(n + per_node - 1) / per_node, per_node, n, mirrored, folds, 0};
    return fold_node(&tree, 0);
}

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static int64_t round_up(int64_t a, int64_t b)
{
    return ceil_div(a, b) * b;
}

/* gloo cuts bytes into segments of kMaxSegmentSize (1 MiB) at most, two for each rank at least; a chunk is segments / n
 * of them. Where more are needed an all-reduce makes all of them equally long, a reduction to one rank as long as they
 * may be (seen in torch 2.13's results). */
static int64_t gloo_chunk(uint32_t n, int64_t count, int64_t size, bool to_one)
{
    const int64_t bytes = count * size, most = 1 << 20, few = 2 * (int64_t)n, needed = ceil_div(bytes, most);
    const int64_t segments = round_up(needed < few ? few : needed, n);
    if (to_one && segments > few) return segments / n * most / size;
    return segments / n * round_up(ceil_div(bytes, segments), size) / size;
}

typedef struct cut {
    lb_collective_pieces *pieces;
    uint32_t n;
    lb_err *err;
} cut;

/* Adds [first, last) reduced by fold list number `list` (of n - 1 folds each). */
static lb_status add_piece(cut *cut, int64_t first, int64_t last, uint32_t list, uint16_t root)
{
    if (first >= last) return LB_OK;
    lb_collective_slice *grown = lb_array_grow(cut->pieces->pieces, cut->pieces->n, sizeof *grown);
    if (!grown) return lb_fail(cut->err, LB_ERR_NOMEM, "out of memory cutting a collective into pieces");
    cut->pieces->pieces = grown;
    cut->pieces->pieces[cut->pieces->n++] =
        (lb_collective_slice){first, last, root, cut->pieces->folds + (size_t)list * (cut->n - 1)};
    return LB_OK;
}

/* One channel of NCCL's ring: loops of n chunks, the last loop with smaller ones. */
static lb_status cut_channel(cut *cut, const lb_collective_order *order, int64_t first, int64_t last, int64_t size,
                             const uint16_t *roots)
{
    const int64_t most = last - first > 16 ? last - first : 16; /* a chunk of more holds no more */
    int64_t chunk = order->chunk ? order->chunk : (1 << 19) / size;
    if (chunk > most) chunk = most;
    for (int64_t at = first; at < last;) {
        int64_t left = last - at, one = chunk;
        if (left < chunk * cut->n) one = round_up(ceil_div(left, cut->n), size < 16 ? 16 / size : 1);
        if (one > chunk) one = chunk;
        for (uint32_t k = 0; k < cut->n; k++) {
            int64_t from = at + k * one, to = from + one < last ? from + one : last;
            LB_TRY(add_piece(cut, from, to, k, roots[k]));
        }
        at += one * cut->n;
    }
    return LB_OK;
}

static lb_status cut_equal(cut *cut, int64_t count, int64_t chunk, const uint16_t *roots)
{
    for (uint32_t k = 0; k < cut->n; k++) {
        int64_t last = k + 1 == cut->n ? count : (k + 1) * chunk;
        LB_TRY(add_piece(cut, k * chunk < count ? k * chunk : count, last < count ? last : count, k, roots[k]));
    }
    return LB_OK;
}

static lb_status cut_mpi(cut *cut, int64_t count, const uint16_t *roots)
{
    int64_t at = 0;
    for (uint32_t k = 0; k < cut->n; k++) {
        int64_t here = count / cut->n + (k < count % cut->n);
        LB_TRY(add_piece(cut, at, at + here, k, roots[k]));
        at += here;
    }
    return LB_OK;
}

/* How many fold lists there are; 1: all elements are added up alike. */
static uint32_t count_lists(const lb_collective_order *order, uint32_t n)
{
    switch (order->kind) {
    case LB_ORDER_GLOO:
    case LB_ORDER_RING:
    case LB_ORDER_MPI_RING:
    case LB_ORDER_MPICH_RING:
    case LB_ORDER_NBC_RING:
    case LB_ORDER_PAIRWISE:
    case LB_ORDER_ROTATED: return n;
    case LB_ORDER_TREE: return n < 2 ? n : 2;
    default: return 1;
    }
}

static void make_folds(const lb_collective_order *order, uint32_t n, lb_collective_fold *folds, uint16_t *roots)
{
    for (uint32_t k = 0; k < count_lists(order, n); k++) {
        lb_collective_fold *list = folds + (size_t)k * (n - 1);
        switch (order->kind) {
        case LB_ORDER_GLOO: roots[k] = ring_folds(list, n, (int64_t)k - 1, -1); break;
        case LB_ORDER_MPICH_RING:
        case LB_ORDER_RING: roots[k] = ring_folds(list, n, (int64_t)k + 1, 1); break;
        case LB_ORDER_NBC_RING: roots[k] = ring_folds(list, n, (int64_t)k - 1, 1); break;
        case LB_ORDER_PAIRWISE: roots[k] = ring_folds(list, n, k, -1); break;
        case LB_ORDER_MPI_RING:
        case LB_ORDER_ROTATED: roots[k] = ring_folds(list, n, k, 1); break;
        case LB_ORDER_TREE: roots[k] = tree_folds(list, n, order->channels, k == 1); break;
        case LB_ORDER_DOUBLING: roots[k] = doubling_folds(list, n, true, false); break;
        case LB_ORDER_RABENSEIFNER: roots[k] = doubling_folds(list, n, false, false); break;
        case LB_ORDER_HALVING: roots[k] = doubling_folds(list, n, false, true); break;
        case LB_ORDER_LINEAR: roots[k] = linear_folds(list, n); break;
        default: roots[k] = lb_rank_tree_has(order->kind) ? rank_tree_folds(order, list, n) : ring_folds(list, n, 0, 1);
        }
    }
}

static lb_status cut_ring(cut *cut, const lb_collective_order *order, int64_t count, int64_t size,
                          const uint16_t *roots)
{
    for (int64_t k = 0; k < order->channels; k++)
        LB_TRY(cut_channel(cut, order, count * k / order->channels, count * (k + 1) / order->channels, size, roots));
    return LB_OK;
}

static lb_status cut_pieces(cut *cut, const lb_collective_order *order, int64_t count, int64_t size,
                            const uint16_t *roots)
{
    const uint32_t n = cut->n, home = order->home ? (order->home - 1) % n : 0;
    if (order->home && lb_collective_order_ends_at_home(order)) return add_piece(cut, 0, count, home, roots[home]);
    switch (n > 1 ? order->kind : LB_ORDER_RANK) {
    case LB_ORDER_GLOO: return cut_equal(cut, count, gloo_chunk(n, count, size, order->home != 0), roots);
    case LB_ORDER_ROTATED: return cut_equal(cut, count, count / n > 0 ? count / n : 1, roots);
    case LB_ORDER_MPICH_RING:
    case LB_ORDER_PAIRWISE: return cut_equal(cut, count, ceil_div(count, n), roots);
    case LB_ORDER_NBC_RING:
    case LB_ORDER_MPI_RING: return cut_mpi(cut, count, roots);
    case LB_ORDER_RING: return cut_ring(cut, order, count, size, roots);
    case LB_ORDER_TREE:
        LB_TRY(add_piece(cut, 0, ceil_div(count, 2), 0, roots[0]));
        return add_piece(cut, ceil_div(count, 2), count, 1, roots[1]);
    default: return add_piece(cut, 0, count, 0, roots[0]);
    }
}

lb_status lb_collective_order_pieces(const lb_collective_order *order, uint32_t n, int64_t count, size_t element_bytes,
                                     lb_collective_pieces *pieces, lb_err *err)
{
    *pieces = (lb_collective_pieces){0};
    if (n < 1 || n > LB_COLLECTIVE_MAX_RANKS)
        return lb_fail(err, LB_ERR_INVALID, "a collective over %u ranks (at most %d)", n, LB_COLLECTIVE_MAX_RANKS);
    int64_t size = element_bytes ? (int64_t)element_bytes : 1;
    uint16_t *roots = calloc(n, sizeof *roots);
    pieces->folds = calloc((size_t)n * n, sizeof *pieces->folds);
    cut cut = {pieces, n, err};
    lb_status status = LB_OK;
    if (!roots || !pieces->folds) {
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective over %u ranks", n);
        goto done;
    }
    if (n > 1) make_folds(order, n, pieces->folds, roots);
    status = cut_pieces(&cut, order, count, size, roots);
done:
    free(roots);
    if (status != LB_OK) lb_collective_pieces_release(pieces);
    return status;
}

void lb_collective_pieces_release(lb_collective_pieces *pieces)
{
    free(pieces->pieces);
    free(pieces->folds);
    *pieces = (lb_collective_pieces){0};
}
