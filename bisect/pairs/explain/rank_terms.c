/* Telling contributions: see rank_terms.h. */
#include "explain/rank_terms.h"

#include "pair/orders.h"
#include "compare/sum_fault.h"
#include "explain/sum_terms.h"

#include <lastbit/compare.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = LB_MOST_SUM_TERMS };

static const lb_program_view *side_of(const lb_match_site *p, int side)
{
    return side ? p->source->b : p->source->a;
}

static int32_t rank_of_value(const lb_match_site *p, int side, uint32_t value)
{
    uint32_t row;
    return lb_program_view_recorded(side_of(p, side), value, &row)->rank;
}

/* ---- who brought other numbers ---- */

static void list_ranks(const int32_t *ranks, uint32_t n, char *text, size_t room)
{
    size_t used = (size_t)snprintf(text, room, n == 1 ? "rank" : "ranks");
    for (uint32_t i = 0; i < n && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s %d", i ? "," : "", ranks[i]);
}

/* Ranks of which some input differs between the sides, each once. */
static uint32_t differing_ranks(const lb_match_site *p, int32_t *ranks)
{
    const lb_matched_region_side *s = &p->region->sides[0];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_leaves; i++) {
        const int32_t rank = rank_of_value(p, 0, s->leaves[i]);
        bool known = false;
        for (uint32_t k = 0; k < n; k++) known |= ranks[k] == rank;
        if (known || n == MOST_RANKS || s->partners[i] == LB_NONE) continue;
        if (lb_matched_region_differs(p->source, s->leaves[i], s->partners[i])) ranks[n++] = rank;
    }
    return n;
}

static void join(lb_attribution_found *found, const char *text)
{
    const size_t used = strlen(found->why);
    snprintf(found->why + used, sizeof found->why - used, "%s%s", used ? "; " : "", text);
}

static void tell_inputs(const lb_match_site *p, lb_attribution_found *found)
{
    int32_t ranks[MOST_RANKS];
    char names[80], text[112];
    const uint32_t n = differing_ranks(p, ranks);
    list_ranks(ranks, n, names, sizeof names);
    if (n)
        snprintf(text, sizeof text, "%s brought other numbers", names);
    else
        snprintf(text, sizeof text, "all ranks brought the same bits");
    join(found, text);
}

/* ---- a sum over ranks as arithmetic ---- */

typedef struct sum {
    lb_sum_terms of;
    void *result, *spare; /* spare: of a contribution that was changed */
    bool apart;           /* each tensor is reduced by itself */
} sum;

static void release_sum(sum *s)
{
    lb_sum_terms_release(&s->of);
    free(s->result), free(s->spare);
}

/* `*plain`: it can be computed as arithmetic on what one side's members brought. */
static lb_status open_sum(const lb_match_site *p, int runner, int bits, sum *s, bool *plain, lb_err *err)
{
    *s = (sum){0};
    LB_TRY(lb_sum_terms_open(p, runner, bits, &s->of, plain, err));
    if (!*plain) return LB_OK;
    const size_t bytes = lb_dtype_bytes(s->of.dtype, (size_t)s->of.count) + 1;
    s->result = malloc(bytes), s->spare = malloc(bytes);
    return s->result && s->spare ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
}

static bool same_numbers(const sum *s, const lb_received *x)
{
    const lb_layout layout = lb_layout_contiguous(1, &x->n);
    const size_t size = lb_dtype_bits(s->of.dtype) / 8;
    lb_tensor a = {(char *)s->result + (size_t)x->from * size, s->of.dtype, layout}, b = {x->data, s->of.dtype, layout};
    lb_difference d;
    return lb_compare_numbers(&a, &b, &d, NULL) == LB_OK && !d.differing;
}

/* Which members received what was computed? Of several outputs of one rank, all of them. */
static uint32_t members_with_result(const sum *s, int32_t *others)
{
    uint32_t with = 0, without = 0;
    for (uint32_t i = 0; i < s->of.n_received; i++) {
        const int32_t rank = s->of.received[i].rank;
        bool first = true, same = true;
        for (uint32_t k = 0; k < i; k++) first &= s->of.received[k].rank != rank;
        if (!first) continue;
        for (uint32_t k = i; k < s->of.n_received && same; k++)
            same = s->of.received[k].rank != rank || same_numbers(s, &s->of.received[k]);
        if (same)
            with++;
        else
            others[without++] = rank;
    }
    return with;
}

static uint32_t count_members(const sum *s)
{
    int32_t none[LB_MOST_SUM_TERMS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->of.n_received; i++) {
        bool known = false;
        for (uint32_t k = 0; k < n; k++) known |= none[k] == s->of.received[i].rank;
        if (!known) none[n++] = s->of.received[i].rank;
    }
    return n;
}

/* Contributions to try all orders on. */
typedef struct trial {
    sum *s;
    const void *inputs[MOST_RANKS + 1];
    uint32_t n;
    double factor;              /* of the result */
    char order[24];             /* the last one tried */
    int32_t others[MOST_RANKS]; /* who received something else than it gives */
    uint32_t n_others;
} trial;

static void start(trial *t, sum *s)
{
    *t = (trial){.s = s, .factor = 1};
}

static void add(trial *t, const void *contribution)
{
    t->inputs[t->n++] = contribution;
}

/* All of them, once. */
static void start_whole(trial *t, sum *s)
{
    start(t, s);
    for (uint32_t k = 0; k < s->of.n; k++) add(t, s->of.streams[k]);
}

/* Elements [from, from + n) of the sum. */
static bool reduce_part(const trial *t, const lb_collective_order *order, int64_t from, int64_t n)
{
    const void *inputs[MOST_RANKS + 1];
    const lb_sum_terms *of = &t->s->of;
    const size_t offset = (size_t)from * (lb_dtype_bits(of->dtype) / 8);
    for (uint32_t k = 0; k < t->n; k++) inputs[k] = (const char *)t->inputs[k] + offset;
    const lb_rank_terms terms = {inputs, t->n, of->dtype, n};
    return lb_collective_reduce(order, of->reduction, &terms, (char *)t->s->result + offset, NULL) == LB_OK;
}

static bool reduce(const trial *t)
{
    lb_collective_order order;
    const lb_sum_terms *of = &t->s->of;
    const uint32_t parts = t->s->apart ? of->tensors : 1;
    bool done = t->n && lb_collective_order_parse(t->order, &order, NULL) == LB_OK;
    for (uint32_t k = 0; k < parts && done; k++) {
        const int64_t from = t->s->apart ? of->starts[k] : 0, end = t->s->apart ? of->starts[k + 1] : of->count;
        done = reduce_part(t, &order, from, end - from);
    }
    const size_t size = lb_dtype_bits(of->dtype) / 8;
    for (int64_t i = 0; t->factor != 1 && i < of->count && done; i++) {
        char *at = (char *)t->s->result + (size_t)i * size;
        lb_from_f64(of->dtype, at, t->factor * lb_to_f64(of->dtype, at), NULL);
    }
    return done;
}

/* Is there an order that gives what all members received (`some`: what some did)? */
static bool has_order(trial *t, bool some)
{
    const uint32_t members = count_members(t->s);
    for (int apart = 0; apart < (t->s->of.tensors > 1 ? 2 : 1); apart++)
        for (const char *at = LB_ORDERS_RANKS; *at; at += strspn(at, " ")) {
            const int length = (int)strcspn(at, " ");
            snprintf(t->order, sizeof t->order, "%.*s", length, at);
            at += length;
            t->s->apart = apart;
            if (!reduce(t)) continue;
            const uint32_t with = members_with_result(t->s, t->others);
            t->n_others = members - with;
            if (!t->n_others || (some && with)) return true;
        }
    return false;
}

/* ---- faults ---- */

static void tell_fault(lb_attribution_found *found, const trial *t, const char *what)
{
    char text[160];
    snprintf(text, sizeof text, "%s, order %s gives all of them", what, t->order);
    join(found, text);
}

static bool is_missing(sum *s, uint32_t r, trial *t)
{
    start(t, s);
    for (uint32_t k = 0; k < s->of.n; k++)
        if (k != r) add(t, s->of.streams[k]);
    return has_order(t, false);
}

/* A second time before contribution `at`; n: after all of them. */
static bool is_repeated(sum *s, uint32_t r, uint32_t at, trial *t)
{
    start(t, s);
    for (uint32_t k = 0; k < s->of.n; k++) {
        if (k == at) add(t, s->of.streams[r]);
        add(t, s->of.streams[k]);
    }
    if (at == s->of.n) add(t, s->of.streams[r]);
    return has_order(t, false);
}

static bool is_narrow(sum *s, uint32_t r, lb_dtype dtype, trial *t)
{
    const size_t n = (size_t)s->of.count;
    if (lb_dtype_precision(dtype) >= lb_dtype_precision(s->of.dtype)) return false;
    void *narrow = malloc(lb_dtype_bytes(dtype, n) + 1);
    if (!narrow) return false;
    lb_convert(dtype, narrow, s->of.dtype, s->of.streams[r], n, NULL);
    lb_convert(s->of.dtype, s->spare, dtype, narrow, n, NULL);
    free(narrow);
    start(t, s);
    for (uint32_t k = 0; k < s->of.n; k++) add(t, k == r ? s->spare : s->of.streams[k]);
    return has_order(t, false);
}

static bool tell_fault_of_rank(sum *s, uint32_t r, lb_attribution_found *found)
{
    static const lb_dtype narrow[] = {LB_BF16, LB_F16};
    char what[80] = "";
    trial t;
    if (is_missing(s, r, &t))
        snprintf(what, sizeof what, "without the contribution of rank %d", s->of.ranks[r]);
    else if (is_repeated(s, r, s->of.n, &t) || is_repeated(s, r, r, &t))
        snprintf(what, sizeof what, "with the contribution of rank %d added twice", s->of.ranks[r]);
    for (size_t k = 0; k < sizeof narrow / sizeof *narrow && !*what; k++)
        if (is_narrow(s, r, narrow[k], &t))
            snprintf(what, sizeof what, "with the contribution of rank %d in %s", s->of.ranks[r],
                     lb_dtype_name(narrow[k]));
    if (*what) tell_fault(found, &t, what);
    return *what;
}

static bool tell_division(sum *s, lb_attribution_found *found)
{
    trial t;
    for (int often = 0; often < 2; often++) {
        start_whole(&t, s);
        t.factor = often ? 1.0 / s->of.n : s->of.n;
        if (!has_order(&t, false)) continue;
        tell_fault(found, &t, often ? "divided by the number of ranks besides" : "times the number of ranks");
        return true;
    }
    return false;
}

/* Members that received other bits than the rest. */
static bool tell_receivers(sum *s, lb_attribution_found *found)
{
    trial t;
    char names[80], text[200];
    start_whole(&t, s);
    if (!has_order(&t, true) || !t.n_others) return false;
    list_ranks(t.others, t.n_others, names, sizeof names);
    snprintf(text, sizeof text, "%u of %u members received what order %s gives; %s received other bits",
             count_members(s) - t.n_others, count_members(s), t.order, names);
    join(found, text);
    return true;
}

/* ---- a few elements that are wrong ---- */

enum { FEW = 16, MOST_HOPS = 4 };

/* Elements of what was received that are not those of this sum, all members together. */
static int64_t misses_of(const lb_sum_terms *t, const char *sum)
{
    const size_t width = lb_dtype_bits(t->dtype) / 8;
    int64_t n = 0;
    for (uint32_t i = 0; i < t->n_received; i++)
        for (int64_t k = 0; k < t->received[i].n; k++)
            n += memcmp((char *)t->received[i].data + (size_t)k * width,
                        sum + (size_t)(t->received[i].from + k) * width, width) != 0;
    return n;
}

/* The order that misses fewest; false: each misses many. */
static bool find_nearest_order(const lb_sum_terms *t, const lb_rank_terms *terms, lb_collective_order *order, char *sum)
{
    static const char *const likely[] = {"ring", "gloo", "mpi_ring", "tree", "rank", "wide", "doubling"};
    for (size_t i = 0; i < sizeof likely / sizeof *likely; i++)
        if (lb_collective_order_parse(likely[i], order, NULL) == LB_OK &&
            lb_collective_reduce(order, t->reduction, terms, sum, NULL) == LB_OK && misses_of(t, sum) <= FEW * t->n)
            return true;
    return false;
}

/* The first element that no order gives, and who received it so. */
typedef struct flip {
    int64_t at; /* in the sum; -1: none */
    bool wrong[LB_MOST_SUM_TERMS];
    uint32_t n_wrong;
    const char *value;
    int32_t rank;
} flip;

static void find_flip(const lb_sum_terms *t, const lb_rank_terms *terms, const char *sum, flip *f)
{
    const size_t width = lb_dtype_bits(t->dtype) / 8;
    *f = (flip){.at = -1};
    for (uint32_t i = 0; i < t->n_received; i++) {
        const lb_received *x = &t->received[i];
        for (int64_t k = 0; k < x->n; k++) {
            const char *v = (char *)x->data + (size_t)k * width;
            if (!memcmp(v, sum + (size_t)(x->from + k) * width, width) || (f->at >= 0 && x->from + k != f->at))
                continue;
            if (f->at < 0 && lb_sum_fault_of(t->reduction, terms, x->from + k, v) != LB_SUM_FAULT_PROVEN) continue;
            if (f->at < 0) f->at = x->from + k, f->value = v, f->rank = x->rank;
            for (uint32_t r = 0; r < t->n; r++)
                if (t->ranks[r] == x->rank) f->wrong[r] = true, f->n_wrong++;
            break;
        }
    }
}

/* "element 77 that rank 2 received has bit 3 turned over, …"; "" where all elements are legal, or many are not. */
static lb_status tell_flip(const lb_sum_terms *t, char *text, size_t room, lb_err *err)
{
    const size_t width = lb_dtype_bits(t->dtype) / 8;
    const lb_rank_terms terms = {(const void *const *)t->streams, t->n, t->dtype, t->count};
    lb_collective_order order = LB_ORDER_INIT;
    lb_sum_fault_hop hops[MOST_HOPS];
    flip f;
    *text = '\0';
    if (!t->reduces || !width || !t->count || lb_dtype_is_complex(t->dtype)) return LB_OK;
    char *sum = malloc((size_t)t->count * width + 1);
    if (!sum) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    f.at = -1;
    if (find_nearest_order(t, &terms, &order, sum)) find_flip(t, &terms, sum, &f);
    if (f.at >= 0) {
        const int bit = lb_sum_fault_bit(f.value, sum + (size_t)f.at * width, width);
        size_t used = (size_t)snprintf(text, room, "element %" PRId64 " that rank %d received ", f.at, f.rank);
        if (bit >= 0)
            used += (size_t)snprintf(text + used, room - used, "has bit %d turned over", bit);
        else
            used += (size_t)snprintf(text + used, room - used, "is one that no order gives");
        uint32_t n = 0;
        if (f.n_wrong < t->n)
            n = lb_sum_fault_late(&order, &terms, f.at, f.wrong, hops);
        else
            n = lb_sum_fault_hops(&order, t->reduction, &terms, f.at, f.value, hops, MOST_HOPS);
        for (uint32_t i = 0; i < n && i < MOST_HOPS && used < room; i++)
            used += (size_t)snprintf(text + used, room - used, "%s rank %d to rank %d%s",
                                     i ? ", or from" : ", changed from", t->ranks[hops[i].from], t->ranks[hops[i].to],
                                     f.n_wrong < t->n ? "" : " in a partial sum");
    }
    free(sum);
    return LB_OK;
}

/* Nothing where a legal order gives that side's bits, or where it is no plain sum. */
static lb_status tell_faults(const lb_match_site *p, int runner, int bits, lb_attribution_found *found, bool *told,
                             lb_err *err)
{
    sum s;
    bool plain;
    trial t;
    lb_status status = open_sum(p, runner, bits, &s, &plain, err);
    if (status == LB_OK && plain) {
        start_whole(&t, &s);
        *told = !has_order(&t, false);
        if (*told)
            join(found, bits || p->source->all ? "no legal order of these inputs gives these bits"
                                               : "no legal order of the first side's inputs gives its bits");
        bool known = !*told || tell_receivers(&s, found) || tell_division(&s, found);
        for (uint32_t r = 0; r < s.of.n && !known; r++) known = tell_fault_of_rank(&s, r, found);
        char flip[240] = "";
        if (*told) status = tell_flip(&s.of, flip, sizeof flip, err);
        if (*flip) join(found, flip), known = true;
        found->fault = *told && known;
        if (!known && !s.of.reduces) *told = false, *found->why = '\0';
    }
    release_sum(&s);
    return status;
}

/* One collective each brings the same on both sides; other ops may have left something out on one of them. */
static lb_status tell_faults_of_sides(const lb_match_site *p, lb_attribution_found *found, bool *told, lb_err *err)
{
    for (int bits = p->source->all ? 0 : 1; bits >= 0; bits--)
        for (int runner = 0; runner < (p->source->all || p->region->pair ? 1 : 2) && !*told; runner++)
            LB_TRY(tell_faults(p, runner, bits, found, told, err));
    return LB_OK;
}

lb_status lb_rank_terms_tell(const lb_match_site *p, lb_attribution_found *found, lb_err *err)
{
    bool told = false;
    if (found->cause == LB_CAUSE_UNEXPLAINED && found->tried) {
        char why[sizeof found->why];
        memcpy(why, found->why, sizeof why);
        *found->why = '\0';
        LB_TRY(tell_faults_of_sides(p, found, &told, err));
        if (!told) memcpy(found->why, why, sizeof why);
    }
    if (!p->source->all && p->source->collective_matches[0]) tell_inputs(p, found);
    return LB_OK;
}
