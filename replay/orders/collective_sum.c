/* Reductions over ranks: see collective_sum.h. */
#include "orders/collective_sum.h"

#include "base/array.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- names ------------------------------------------------------------------------------------------------------ */

bool lb_collective_reduction_parse(const char *text, lb_collective_reduction *reduction)
{
    static const struct {
        const char *name;
        lb_collective_reduction reduction;
    } names[] = {{"sum", LB_REDUCE_SUM},         {"avg", LB_REDUCE_AVG},      {"mean", LB_REDUCE_AVG},
                 {"product", LB_REDUCE_PRODUCT}, {"prod", LB_REDUCE_PRODUCT}, {"min", LB_REDUCE_MIN},
                 {"max", LB_REDUCE_MAX},         {"band", LB_REDUCE_BAND},    {"bor", LB_REDUCE_BOR},
                 {"bxor", LB_REDUCE_BXOR}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcasecmp(text, names[i].name)) {
            *reduction = names[i].reduction;
            return true;
        }
    return false;
}

lb_status lb_collective_order_parse(const char *text, lb_collective_order *order, lb_err *err)
{
    static const struct {
        const char *name;
        lb_collective_order_kind kind;
    } names[] = {
        {"gloo", LB_ORDER_GLOO},       {"ring", LB_ORDER_RING},         {"mpi_ring", LB_ORDER_MPI_RING},
        {"tree", LB_ORDER_TREE},       {"rank", LB_ORDER_RANK},         {"wide", LB_ORDER_WIDE},
        {"rotated", LB_ORDER_ROTATED}, {"doubling", LB_ORDER_DOUBLING}, {"rabenseifner", LB_ORDER_RABENSEIFNER}};
    size_t n = strcspn(text, ":");
    *order = (lb_collective_order)LB_ORDER_INIT;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i].name) != n || strncmp(text, names[i].name, n)) continue;
        order->kind = names[i].kind;
        const char *p = text + n;
        char *end = (char *)p;
        if (*p == ':') order->channels = strtoll(p + 1, &end, 10);
        if (*end == ':') order->chunk = strtoll(end + 1, &end, 10);
        if (*end == '\0' && order->channels >= 1 && order->channels <= 65536 && order->chunk >= 0) return LB_OK;
    }
    return lb_fail(
        err, LB_ERR_INVALID,
        "\"%s\" is no order of a collective: gloo, ring[:CHANNELS[:CHUNK]], mpi_ring, tree[:RANKS_PER_NODE], rank, "
        "wide, rotated, doubling, rabenseifner",
        text);
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

/* Surplus ranks are folded pairwise, the survivors form a balanced binary tree. */
static uint16_t doubling_folds(lb_collective_fold *folds, uint32_t n, bool odd_survives)
{
    uint16_t alive[LB_COLLECTIVE_MAX_RANKS];
    uint32_t power = 1, f = 0, k = 0;
    while (power * 2 <= n) power *= 2;
    uint32_t extra = n - power;
    for (uint32_t r = 0; r < n; r++) {
        if (r >= 2 * extra) {
            alive[k++] = (uint16_t)r;
        } else if (r % 2 == 0) {
            uint16_t survivor = (uint16_t)(odd_survives ? r + 1 : r);
            folds[f++] = (lb_collective_fold){survivor, (uint16_t)(odd_survives ? r : r + 1)};
            alive[k++] = survivor;
        }
    }
    for (uint32_t mask = 1; mask < power; mask *= 2)
        for (uint32_t v = 0; v < power; v += 2 * mask) folds[f++] = (lb_collective_fold){alive[v], alive[v + mask]};
    return alive[0];
}

/* Children of a node in NCCL's binary tree (ncclGetBtree), -1 for none. */
static void tree_children(int64_t nodes, int64_t r, int64_t child[2])
{
    int64_t bit = 1;
    child[0] = child[1] = -1;
    while (bit < nodes && !(bit & r)) bit <<= 1;
    if (r == 0) {
        if (nodes > 1) child[1] = bit >> 1;
        return;
    }
    int64_t low = bit >> 1;
    if (low == 0) return;
    child[0] = r - low;
    while (low && r + low >= nodes) low >>= 1;
    child[1] = low ? r + low : -1;
}

typedef struct tree {
    int64_t nodes, per_node, ranks;
    bool mirrored; /* tree 1: node r plays the part of n-1-r (even n) or r-1 (odd n) in tree 0 */
    lb_collective_fold *folds;
    uint32_t n;
} tree;

static int64_t played_by(const tree *t, int64_t part)
{
    if (!t->mirrored) return part;
    return t->nodes % 2 == 0 ? t->nodes - 1 - part : (part + 1) % t->nodes;
}

/* A node: its ranks are a chain that ends at its first rank, which then takes the children in order. */
static uint16_t fold_node(tree *t, int64_t part)
{
    int64_t head = played_by(t, part) * t->per_node, last = head + t->per_node - 1, child[2];
    if (last >= t->ranks) last = t->ranks - 1;
    for (int64_t r = last; r > head; r--) t->folds[t->n++] = (lb_collective_fold){(uint16_t)(r - 1), (uint16_t)r};
    tree_children(t->nodes, part, child);
    for (int c = 0; c < 2; c++) {
        if (child[c] < 0) continue;
        uint16_t from = fold_node(t, child[c]);
        t->folds[t->n++] = (lb_collective_fold){(uint16_t)head, from};
    }
    return (uint16_t)head;
}

static uint16_t tree_folds(lb_collective_fold *folds, uint32_t n, int64_t per_node, bool mirrored)
{
    tree t = {(n + per_node - 1) / per_node, per_node, n, mirrored, folds, 0};
    return fold_node(&t, 0);
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

/* gloo cuts bytes into segments; a chunk is segments / n of them (kMaxSegmentSize is 1 MiB). */
static int64_t gloo_chunk(uint32_t n, int64_t count, int64_t size)
{
    int64_t bytes = count * size, segments = ceil_div(bytes, 1 << 20);
    if (segments < 2 * (int64_t)n) segments = 2 * (int64_t)n;
    segments = round_up(segments, n);
    return segments / n * round_up(ceil_div(bytes, segments), size) / size;
}

typedef struct cut {
    lb_collective_pieces *pieces;
    uint32_t n;
    lb_err *err;
} cut;

/* Adds [first, last) reduced by fold list number `list` (of n - 1 folds each). */
static lb_status add_piece(cut *c, int64_t first, int64_t last, uint32_t list, uint16_t root)
{
    if (first >= last) return LB_OK;
    lb_collective_slice *grown = lb_array_grow(c->pieces->pieces, c->pieces->n, sizeof *grown);
    if (!grown) return lb_fail(c->err, LB_ERR_NOMEM, "out of memory cutting a collective into pieces");
    c->pieces->pieces = grown;
    c->pieces->pieces[c->pieces->n++] =
        (lb_collective_slice){first, last, root, c->pieces->folds + (size_t)list * (c->n - 1)};
    return LB_OK;
}

/* One channel of NCCL's ring: loops of n chunks, the last loop with smaller ones. */
static lb_status cut_channel(cut *c, const lb_collective_order *order, int64_t first, int64_t last, int64_t size,
                             const uint16_t *roots)
{
    const int64_t most = last - first > 16 ? last - first : 16; /* a chunk of more holds no more */
    int64_t chunk = order->chunk ? order->chunk : (1 << 19) / size;
    if (chunk > most) chunk = most;
    for (int64_t at = first; at < last;) {
        int64_t left = last - at, one = chunk;
        if (left < chunk * c->n) one = round_up(ceil_div(left, c->n), size < 16 ? 16 / size : 1);
        if (one > chunk) one = chunk;
        for (uint32_t k = 0; k < c->n; k++) {
            int64_t from = at + k * one, to = from + one < last ? from + one : last;
            LB_TRY(add_piece(c, from, to, k, roots[k]));
        }
        at += one * c->n;
    }
    return LB_OK;
}

static lb_status cut_equal(cut *c, int64_t count, int64_t chunk, const uint16_t *roots)
{
    for (uint32_t k = 0; k < c->n; k++) {
        int64_t last = k + 1 == c->n ? count : (k + 1) * chunk;
        LB_TRY(add_piece(c, k * chunk < count ? k * chunk : count, last < count ? last : count, k, roots[k]));
    }
    return LB_OK;
}

static lb_status cut_mpi(cut *c, int64_t count, const uint16_t *roots)
{
    int64_t at = 0;
    for (uint32_t k = 0; k < c->n; k++) {
        int64_t here = count / c->n + (k < count % c->n);
        LB_TRY(add_piece(c, at, at + here, k, roots[k]));
        at += here;
    }
    return LB_OK;
}

static void make_folds(const lb_collective_order *order, uint32_t n, lb_collective_fold *folds, uint16_t *roots)
{
    for (uint32_t k = 0; k < n; k++) {
        lb_collective_fold *list = folds + (size_t)k * (n - 1);
        switch (order->kind) {
        case LB_ORDER_GLOO: roots[k] = ring_folds(list, n, (int64_t)k - 1, -1); break;
        case LB_ORDER_RING: roots[k] = ring_folds(list, n, (int64_t)k + 1, 1); break;
        case LB_ORDER_MPI_RING:
        case LB_ORDER_ROTATED: roots[k] = ring_folds(list, n, k, 1); break;
        case LB_ORDER_TREE: roots[k] = tree_folds(list, n, order->channels, k == 1); break;
        case LB_ORDER_DOUBLING:
        case LB_ORDER_RABENSEIFNER: roots[k] = doubling_folds(list, n, order->kind == LB_ORDER_DOUBLING); break;
        default: roots[k] = ring_folds(list, n, 0, 1); break;
        }
        bool alike = order->kind == LB_ORDER_DOUBLING || order->kind == LB_ORDER_RABENSEIFNER ||
                     order->kind == LB_ORDER_RANK || order->kind == LB_ORDER_WIDE;
        if (alike || (order->kind == LB_ORDER_TREE && k == 1)) break;
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
    cut c = {pieces, n, err};
    lb_status status = LB_OK;
    if (!roots || !pieces->folds) {
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective over %u ranks", n);
        goto done;
    }
    if (n > 1) make_folds(order, n, pieces->folds, roots);
    switch (n > 1 ? order->kind : LB_ORDER_RANK) {
    case LB_ORDER_GLOO: status = cut_equal(&c, count, gloo_chunk(n, count, size), roots); break;
    case LB_ORDER_ROTATED: status = cut_equal(&c, count, count / n > 0 ? count / n : 1, roots); break;
    case LB_ORDER_MPI_RING: status = cut_mpi(&c, count, roots); break;
    case LB_ORDER_RING:
        if (order->home) {
            const uint32_t last = (order->home - 1) % n;
            status = add_piece(&c, 0, count, last, roots[last]);
            break;
        }
        for (int64_t k = 0; k < order->channels && status == LB_OK; k++)
            status =
                cut_channel(&c, order, count * k / order->channels, count * (k + 1) / order->channels, size, roots);
        break;
    case LB_ORDER_TREE:
        status = add_piece(&c, 0, ceil_div(count, 2), 0, roots[0]);
        if (status == LB_OK) status = add_piece(&c, ceil_div(count, 2), count, 1, roots[1]);
        break;
    default: status = add_piece(&c, 0, count, 0, roots[0]);
    }
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

/* ---- arithmetic ------------------------------------------------------------------------------------------------- */

enum { BLOCK = 512 }; /* elements of all ranks' registers that are worked on at one time */

/* What a fold does, and in which type the registers are. `to`: every sum and product is rounded to that grid. */
typedef struct folder {
    lb_collective_reduction reduction;
    lb_dtype dtype; /* payload */
    lb_dtype to;    /* 0: the register type's own rounding is enough */
} folder;

#define FOLD_LOOP(expression)                                                                                          \
    for (int64_t i = 0; i < n; i++) a[i] = (expression);                                                               \
    break

static void fold_f32(const folder *f, float *a, const float *b, int64_t n)
{
    switch (f->reduction) {
    case LB_REDUCE_PRODUCT: FOLD_LOOP(a[i] * b[i]);
    case LB_REDUCE_MIN: FOLD_LOOP(isnan(a[i]) || a[i] < b[i] ? a[i] : b[i]);
    case LB_REDUCE_MAX: FOLD_LOOP(isnan(a[i]) || a[i] > b[i] ? a[i] : b[i]);
    default: FOLD_LOOP(a[i] + b[i]);
    }
    if (f->to) lb_round_to_grid_f32(a, (size_t)n, f->to, NULL);
}

static void fold_f64(const folder *f, double *a, const double *b, int64_t n)
{
    switch (f->reduction) {
    case LB_REDUCE_PRODUCT: FOLD_LOOP(a[i] * b[i]);
    case LB_REDUCE_MIN: FOLD_LOOP(isnan(a[i]) || a[i] < b[i] ? a[i] : b[i]);
    case LB_REDUCE_MAX: FOLD_LOOP(isnan(a[i]) || a[i] > b[i] ? a[i] : b[i]);
    default: FOLD_LOOP(a[i] + b[i]);
    }
    if (f->to) lb_round_to_grid_f64(a, (size_t)n, f->to, NULL);
}

/* Sums and products wrap, so they are done unsigned; comparisons know the sign. */
static void fold_int(const folder *f, int64_t *a, const int64_t *b, int64_t n)
{
    bool is_unsigned = f->dtype == LB_U64, is_bool = f->dtype == LB_BOOL;
    switch (f->reduction) {
    case LB_REDUCE_PRODUCT: FOLD_LOOP((int64_t)((uint64_t)a[i] * (uint64_t)b[i]));
    case LB_REDUCE_MIN: FOLD_LOOP((is_unsigned ? (uint64_t)a[i] < (uint64_t)b[i] : a[i] < b[i]) ? a[i] : b[i]);
    case LB_REDUCE_MAX: FOLD_LOOP((is_unsigned ? (uint64_t)a[i] > (uint64_t)b[i] : a[i] > b[i]) ? a[i] : b[i]);
    case LB_REDUCE_BAND: FOLD_LOOP(a[i] & b[i]);
    case LB_REDUCE_BOR: FOLD_LOOP(a[i] | b[i]);
    case LB_REDUCE_BXOR: FOLD_LOOP(a[i] ^ b[i]);
    default: FOLD_LOOP(is_bool ? (a[i] | b[i]) : (int64_t)((uint64_t)a[i] + (uint64_t)b[i]));
    }
}

typedef struct reduction_run {
    folder fold;
    uint32_t n;
    const void *const *inputs;
    lb_dtype dtype;
    double scale; /* AVG: of each contribution (per-hop orders) or of the sum (wide ones) */
    bool scale_last;
    bool divides;    /* … by n, rather than multiplied by 1/n */
    char *registers; /* n * BLOCK of 8 bytes */
    void *out;
} reduction_run;

static void *reg(const reduction_run *r, uint32_t k, size_t width)
{
    return r->registers + (size_t)k * BLOCK * width;
}

static void scale_f32(const reduction_run *r, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = r->divides ? x[i] / (float)r->n : x[i] * (float)r->scale;
    if (r->fold.to) lb_round_to_grid_f32(x, (size_t)n, r->fold.to, NULL);
}

static void block_f32(const reduction_run *r, const lb_collective_slice *piece, int64_t at, int64_t n)
{
    size_t size = lb_dtype_bits(r->dtype) / 8;
    for (uint32_t k = 0; k < r->n; k++) {
        lb_load_f32(reg(r, k, 4), r->dtype, (const char *)r->inputs[k] + at * (int64_t)size, (size_t)n);
        if (r->scale != 1 && !r->scale_last) scale_f32(r, reg(r, k, 4), n);
    }
    for (uint32_t f = 0; f + 1 < r->n; f++)
        fold_f32(&r->fold, reg(r, piece->folds[f].dst, 4), reg(r, piece->folds[f].src, 4), n);
    if (r->scale != 1 && r->scale_last) scale_f32(r, reg(r, piece->root, 4), n);
    lb_store_f32(r->dtype, (char *)r->out + at * (int64_t)size, reg(r, piece->root, 4), (size_t)n, NULL);
}

static void block_f64(const reduction_run *r, const lb_collective_slice *piece, int64_t at, int64_t n)
{
    size_t size = lb_dtype_bits(r->dtype) / 8;
    for (uint32_t k = 0; k < r->n; k++) {
        double *x = reg(r, k, 8);
        lb_load_f64(x, r->dtype, (const char *)r->inputs[k] + at * (int64_t)size, (size_t)n);
        for (int64_t i = 0; r->scale != 1 && !r->scale_last && i < n; i++) x[i] *= r->scale;
    }
    for (uint32_t f = 0; f + 1 < r->n; f++)
        fold_f64(&r->fold, reg(r, piece->folds[f].dst, 8), reg(r, piece->folds[f].src, 8), n);
    double *root = reg(r, piece->root, 8);
    for (int64_t i = 0; r->scale != 1 && r->scale_last && i < n; i++)
        root[i] = r->divides ? root[i] / r->n : root[i] * r->scale;
    lb_store_f64(r->dtype, (char *)r->out + at * (int64_t)size, root, (size_t)n, NULL);
}

static void block_int(const reduction_run *r, const lb_collective_slice *piece, int64_t at, int64_t n)
{
    size_t size = lb_dtype_bits(r->dtype) / 8;
    for (uint32_t k = 0; k < r->n; k++)
        lb_convert(LB_I64, reg(r, k, 8), r->dtype, (const char *)r->inputs[k] + at * (int64_t)size, (size_t)n, NULL);
    for (uint32_t f = 0; f + 1 < r->n; f++)
        fold_int(&r->fold, reg(r, piece->folds[f].dst, 8), reg(r, piece->folds[f].src, 8), n);
    int64_t *root = reg(r, piece->root, 8);
    for (int64_t i = 0; r->scale_last && i < n; i++) root[i] /= (int64_t)r->n; /* AVG of integers: SumPostDiv */
    lb_convert(r->dtype, (char *)r->out + at * (int64_t)size, LB_I64, root, (size_t)n, NULL);
}

/* Complex sums are sums of their parts; nothing else is defined on them. */
static lb_dtype arithmetic_dtype(lb_dtype dtype, int64_t *count)
{
    if (!lb_dtype_is_complex(dtype)) return dtype;
    *count *= 2;
    return lb_dtype_part(dtype);
}

lb_status lb_collective_reduce(const lb_collective_order *order, lb_collective_reduction reduction,
                               const lb_rank_terms *terms, void *out, lb_err *err)
{
    const uint32_t n = terms->n;
    const lb_dtype dtype = terms->dtype;
    bool bits = reduction >= LB_REDUCE_BAND, complex = lb_dtype_is_complex(dtype);
    if ((bits && !lb_dtype_is_integer(dtype)) || (complex && reduction != LB_REDUCE_SUM) || lb_dtype_bits(dtype) % 8)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "a reduction over ranks that %s doesn't have", lb_dtype_name(dtype));
    lb_collective_pieces pieces;
    /* Pieces count whole complex numbers; the arithmetic then runs over their parts. */
    LB_TRY(lb_collective_order_pieces(order, n, terms->count, lb_dtype_bits(dtype) / 8, &pieces, err));
    int64_t parts = 1;
    reduction_run r = {
        .n = n, .inputs = terms->inputs, .dtype = arithmetic_dtype(dtype, &parts), .out = out, .scale = 1};
    bool wide = order->kind == LB_ORDER_WIDE || order->kind == LB_ORDER_ROTATED, integer = lb_dtype_is_integer(r.dtype);
    bool f64 = r.dtype == LB_F64 || (wide && r.dtype == LB_F32);
    r.fold = (folder){reduction, r.dtype, wide || r.dtype == LB_F32 || r.dtype == LB_F64 ? LB_NO_DTYPE : r.dtype};
    if (reduction == LB_REDUCE_AVG) {
        r.divides = order->kind == LB_ORDER_GLOO; /* torch's ProcessGroupGloo divides the sum, seen with 2.13 */
        r.scale_last = wide || integer || r.divides;
        r.scale = 1.0 / n;
        if (!integer && !wide && r.dtype != LB_F64) {
            float scale = (float)r.scale;
            if (r.fold.to) lb_round_to_grid_f32(&scale, 1, r.fold.to, NULL);
            r.scale = scale;
        }
    }
    r.registers = malloc((size_t)n * BLOCK * 8);
    if (!r.registers) {
        lb_collective_pieces_release(&pieces);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective over %u ranks", n);
    }
    for (uint32_t p = 0; p < pieces.n; p++)
        for (int64_t at = pieces.pieces[p].first * parts; at < pieces.pieces[p].last * parts; at += BLOCK) {
            int64_t left = pieces.pieces[p].last * parts - at, k = left < BLOCK ? left : BLOCK;
            if (integer)
                block_int(&r, &pieces.pieces[p], at, k);
            else if (f64)
                block_f64(&r, &pieces.pieces[p], at, k);
            else
                block_f32(&r, &pieces.pieces[p], at, k);
        }
    free(r.registers);
    lb_collective_pieces_release(&pieces);
    return LB_OK;
}
