/* Messages of an order: see collective_hops.h. */
#include "orders/collective_hops.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct lister {
    lb_collective_hops *hops;
    uint16_t turn;
    bool failed;
} lister;

static void add_hop(lister *lister, uint32_t from, uint32_t to, bool adds, bool own)
{
    lb_collective_hop *grown =
        lister->failed ? NULL : lb_array_grow(lister->hops->list, lister->hops->n, sizeof *grown);
    lister->failed |= !grown;
    if (!grown) return;
    lister->hops->list = grown;
    grown[lister->hops->n++] = (lb_collective_hop){(uint16_t)from, (uint16_t)to, lister->turn, adds, own};
}

/* A hop that waits for all before it. */
static void then(lister *lister, uint32_t from, uint32_t to, bool adds, bool own)
{
    lister->turn++;
    add_hop(lister, from, to, adds, own);
}

/* ---- rings and those who read from all --------------------------------------------------------------------------- */

/* The first rank's register takes in one rank after the other (ring_folds of collective_order.c). */
static uint32_t on_path(const lb_collective_slice *piece, uint32_t k)
{
    return k ? piece->folds[k - 1].src : piece->folds[0].dst;
}

static void go_around(lister *lister, const lb_collective_slice *piece, uint32_t n, uint32_t home)
{
    const uint32_t last = on_path(piece, n - 1);
    for (uint32_t k = 1; k < n; k++) then(lister, on_path(piece, k - 1), on_path(piece, k), true, false);
    if (home && home - 1 != last) then(lister, last, home - 1, false, false);
    for (uint32_t k = 0; k + 1 < n && !home; k++)
        then(lister, on_path(piece, (n - 1 + k) % n), on_path(piece, k), false, false);
}

/* One member takes all contributions from where they were brought. */
static void take_all(lister *lister, const lb_collective_slice *piece, uint32_t n, uint32_t who, uint32_t home)
{
    for (uint32_t k = 0; k < n; k++) then(lister, on_path(piece, k), who, k > 0, true);
    if (home && home - 1 != who) then(lister, who, home - 1, false, false);
    lister->turn++;
    for (uint32_t r = 0; r < n && !home; r++)
        if (r != who) add_hop(lister, who, r, false, false);
}

/* ---- trees ------------------------------------------------------------------------------------------------------- */

static void go_up_and_down(lister *lister, const lb_collective_slice *piece, uint32_t n, uint32_t home)
{
    for (uint32_t k = 0; k + 1 < n; k++) then(lister, piece->folds[k].src, piece->folds[k].dst, true, false);
    if (home && home - 1 != piece->root) then(lister, piece->root, home - 1, false, false);
    for (uint32_t k = n - 1; k-- > 0 && !home;) then(lister, piece->folds[k].dst, piece->folds[k].src, false, false);
}

/* ---- doubling and halving ---------------------------------------------------------------------------------------- */

/* The members that are left when surplus ones have handed theirs over. */
typedef struct survivors {
    uint32_t power, extra;
    bool odd;
} survivors;

static survivors survivors_of(uint32_t n, bool odd)
{
    survivors survivors = {1, 0, odd};
    while (survivors.power * 2 <= n) survivors.power *= 2;
    survivors.extra = n - survivors.power;
    return survivors;
}

static uint32_t member_of(const survivors *survivors, uint32_t v)
{
    return v < survivors->extra ? 2 * v + survivors->odd : v + survivors->extra;
}

static void fold_surplus(lister *lister, const survivors *survivors)
{
    lister->turn++;
    for (uint32_t v = 0; v < survivors->extra; v++)
        add_hop(lister, 2 * v + !survivors->odd, 2 * v + survivors->odd, true, false);
}
static void serve_surplus(lister *lister, const survivors *survivors)
{
    lister->turn++;
    for (uint32_t v = 0; v < survivors->extra; v++)
        add_hop(lister, 2 * v + survivors->odd, 2 * v + !survivors->odd, false, false);
}

static void double_up(lister *lister, uint32_t n)
{
    const survivors survivors = survivors_of(n, true);
    fold_surplus(lister, &survivors);
    for (uint32_t mask = 1; mask < survivors.power; mask *= 2) {
        lister->turn++;
        for (uint32_t v = 0; v < survivors.power; v++)
            add_hop(lister, member_of(&survivors, v), member_of(&survivors, v ^ mask), true, false);
    }
    serve_surplus(lister, &survivors);
}

/* Those of one half hand this element to their partners of the other half, whose bits are those of `owner`; `known`:
 * the bits in which who still has it agrees with that. */
static void halve_once(lister *lister, const survivors *survivors, uint32_t owner, uint32_t mask, uint32_t known)
{
    lister->turn++;
    for (uint32_t v = 0; v < survivors->power; v++)
        if ((v & known) == (owner & known) && (v & mask) != (owner & mask))
            add_hop(lister, member_of(survivors, v), member_of(survivors, v ^ mask), true, false);
}

/* In which half of each half this element lies says who ends up with it. */
static uint32_t owner_of(const survivors *survivors, int64_t count, int64_t at)
{
    uint32_t owner = 0;
    for (uint32_t mask = 1; mask < survivors->power; mask *= 2) {
        const int64_t lower = count / 2;
        if (at >= lower)
            owner |= mask, at -= lower, count -= lower;
        else
            count = lower;
    }
    return owner;
}

static void halve_and_gather(lister *lister, uint32_t n, int64_t count, int64_t at, uint32_t home)
{
    const survivors survivors = survivors_of(n, false);
    const uint32_t owner = owner_of(&survivors, count, at), holder = member_of(&survivors, owner);
    uint32_t known = 0;
    fold_surplus(lister, &survivors);
    for (uint32_t mask = 1; mask < survivors.power; known |= mask, mask *= 2)
        halve_once(lister, &survivors, owner, mask, known);
    if (home && home - 1 != holder) then(lister, holder, home - 1, false, false);
    for (uint32_t mask = survivors.power / 2; mask && !home; mask /= 2) {
        known &= ~mask;
        lister->turn++;
        for (uint32_t v = 0; v < survivors.power; v++)
            if ((v & known) == (owner & known) && (v & mask) == (owner & mask))
                add_hop(lister, member_of(&survivors, v), member_of(&survivors, v ^ mask), false, false);
    }
    if (!home) serve_surplus(lister, &survivors);
}

/* A reduce-scatter: the element goes to the member whose block it is in. */
static void halve_to_blocks(lister *lister, uint32_t n, int64_t count, int64_t at)
{
    const survivors survivors = survivors_of(n, false);
    const uint32_t to = (uint32_t)(at / ((count + n - 1) / n));
    const uint32_t owner = to < 2 * survivors.extra ? to / 2 : to - survivors.extra;
    uint32_t known = 0;
    fold_surplus(lister, &survivors);
    for (uint32_t mask = survivors.power / 2; mask; known |= mask, mask /= 2)
        halve_once(lister, &survivors, owner, mask, known);
    if (member_of(&survivors, owner) != to) then(lister, member_of(&survivors, owner), to, false, false);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static void list_hops(lister *lister, const lb_collective_order *order, const lb_collective_slice *piece, uint32_t n,
                      int64_t count, int64_t at)
{
    const uint32_t home = order->home ? (order->home - 1) % n + 1 : 0;
    switch (order->kind) {
    case LB_ORDER_GLOO:
    case LB_ORDER_RING:
    case LB_ORDER_MPI_RING:
    case LB_ORDER_MPICH_RING:
    case LB_ORDER_NBC_RING: go_around(lister, piece, n, home); break;
    case LB_ORDER_LINEAR: take_all(lister, piece, n, home ? home - 1 : 0, home); break;
    case LB_ORDER_PAIRWISE:
    case LB_ORDER_ROTATED: take_all(lister, piece, n, on_path(piece, 0), home); break;
    case LB_ORDER_RANK:
    case LB_ORDER_WIDE:
        for (uint32_t r = 0; r < n; r++)
            if (!home || home - 1 == r) take_all(lister, piece, n, r, r + 1);
        break;
    case LB_ORDER_DOUBLING: double_up(lister, n); break;
    case LB_ORDER_RABENSEIFNER: halve_and_gather(lister, n, count, at, home); break;
    case LB_ORDER_HALVING: halve_to_blocks(lister, n, count, at); break;
    default: go_up_and_down(lister, piece, n, home); break;
    }
}

lb_status lb_collective_hops_list(const lb_collective_order *order, uint32_t n, int64_t count, size_t element_bytes,
                                  int64_t at, lb_collective_hops *hops, lb_err *err)
{
    lb_collective_pieces pieces;
    lister lister = {.hops = hops};
    *hops = (lb_collective_hops){.wide = order->kind == LB_ORDER_WIDE || order->kind == LB_ORDER_ROTATED};
    if (n > LB_COLLECTIVE_HOPS_RANKS)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "the hops of %u ranks (at most %d)", n, LB_COLLECTIVE_HOPS_RANKS);
    if (at < 0 || at >= count) return lb_fail(err, LB_ERR_INVALID, "no element of a collective");
    LB_TRY(lb_collective_order_pieces(order, n, count, element_bytes, &pieces, err));
    for (uint32_t p = 0; p < pieces.n && n > 1; p++)
        if (at >= pieces.pieces[p].first && at < pieces.pieces[p].last)
            list_hops(&lister, order, &pieces.pieces[p], n, count, at);
    lb_collective_pieces_release(&pieces);
    if (!lister.failed) return LB_OK;
    lb_collective_hops_release(hops);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for the hops of a collective");
}

void lb_collective_hops_release(lb_collective_hops *hops)
{
    free(hops->list);
    *hops = (lb_collective_hops){0};
}

/* ---- what is held ------------------------------------------------------------------------------------------------ */

double lb_hops_rounded(lb_dtype dtype, double x)
{
    char bytes[8];
    double back;
    lb_store_f64(dtype, bytes, &x, 1, NULL);
    lb_load_f64(&back, dtype, bytes, 1);
    return back;
}

static double turned(lb_dtype dtype, double x, uint64_t mask)
{
    unsigned char bytes[8] = {0};
    uint64_t word;
    lb_store_f64(dtype, bytes, &x, 1, NULL);
    memcpy(&word, bytes, 8);
    word ^= mask;
    memcpy(bytes, &word, 8);
    lb_load_f64(&x, dtype, bytes, 1);
    return x;
}

double lb_hops_joined(lb_collective_reduction reduction, double a, double b)
{
    switch (reduction) {
    case LB_REDUCE_PRODUCT: return a * b;
    case LB_REDUCE_MIN: return a < b ? a : b;
    case LB_REDUCE_MAX: return a > b ? a : b;
    default: return a + b;
    }
}

void lb_collective_hops_run(const lb_collective_hops *hops, const lb_hops_element *element, lb_hops_flip flip,
                            double *held)
{
    const uint32_t n = element->n;
    const lb_dtype dtype = element->dtype;
    const double *brought = element->brought;
    const bool mean = element->reduction == LB_REDUCE_AVG, last = hops->wide || element->order->kind == LB_ORDER_GLOO;
    const double factor = hops->wide ? 1.0 / n : lb_hops_rounded(dtype, 1.0 / n);
    const lb_dtype at_once = !hops->wide ? dtype : dtype == LB_F32 || dtype == LB_F64 ? LB_F64 : LB_F32;
    double before[LB_COLLECTIVE_MAX_RANKS], own[LB_COLLECTIVE_MAX_RANKS];
    for (uint32_t r = 0; r < n; r++)
        held[r] = own[r] = mean && !last ? lb_hops_rounded(dtype, brought[r] * factor) : brought[r];
    for (uint32_t h = 0; h < hops->n; h++) {
        const lb_collective_hop *hop = &hops->list[h];
        if (!h || hop->turn != hops->list[h - 1].turn) memcpy(before, held, n * sizeof *held);
        double carried = hop->own ? own[hop->from] : before[hop->from];
        if (hops->wide && !hop->own) carried = lb_hops_rounded(dtype, carried);
        if (h == flip.hop && flip.mask) carried = turned(dtype, carried, flip.mask);
        held[hop->to] =
            hop->adds ? lb_hops_rounded(at_once, lb_hops_joined(element->reduction, held[hop->to], carried)) : carried;
    }
    for (uint32_t r = 0; r < n; r++)
        held[r] = lb_hops_rounded(dtype, !mean || !last ? held[r] : hops->wide ? held[r] * factor : held[r] / n);
}
