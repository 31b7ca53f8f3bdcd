/* Telling contributions: see rank_terms.h. */
#include "explain/rank_terms.h"

#include "pair/orders.h"
#include "orders/sum_fault.h"
#include "exchanges/collective_results.h"
#include "explain/sum_terms.h"

#include <lastbit/compare.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = LB_MOST_SUM_TERMS };

static const lb_program_view *side_of(const lb_match_site *site, int side)
{
    return side ? site->source->b : site->source->a;
}

static int32_t rank_of_value(const lb_match_site *site, int side, uint32_t value)
{
    uint32_t row;
    return lb_program_view_recorded(side_of(site, side), value, &row)->rank;
}

/* ---- who brought different numbers ---- */

static void list_ranks(const int32_t *ranks, uint32_t n, char *text, size_t room)
{
    size_t used = (size_t)snprintf(text, room, n == 1 ? "rank" : "ranks");
    for (uint32_t i = 0; i < n && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s %d", i ? "," : "", ranks[i]);
}

/* Ranks of which some input differs between the sides, each once. */
static uint32_t differing_ranks(const lb_match_site *site, int32_t *ranks)
{
    const lb_matched_region_side *side = &site->region->sides[0];
    uint32_t n = 0;
    for (uint32_t i = 0; i < side->n_leaves; i++) {
        const int32_t rank = rank_of_value(site, 0, side->leaves[i]);
        bool known = false;
        for (uint32_t k = 0; k < n; k++) known |= ranks[k] == rank;
        if (known || n == MOST_RANKS || side->partners[i] == LB_NONE) continue;
        if (lb_matched_region_differs(site->source, side->leaves[i], side->partners[i])) ranks[n++] = rank;
    }
    return n;
}

static void join(lb_attribution_found *found, const char *text)
{
    const size_t used = strlen(found->why);
    snprintf(found->why + used, sizeof found->why - used, "%s%s", used ? "; " : "", text);
}

static void tell_inputs(const lb_match_site *site, lb_attribution_found *found)
{
    int32_t ranks[MOST_RANKS];
    char names[80], text[112];
    const uint32_t n = differing_ranks(site, ranks);
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

static void release_sum(sum *sum)
{
    lb_sum_terms_release(&sum->of);
    free(sum->result), free(sum->spare);
}

/* `*plain`: it can be computed as arithmetic on what one side's members brought. */
static lb_status open_sum(const lb_match_site *site, int runner, int bits, sum *s, bool *plain, lb_err *err)
{
    *s = (sum){0};
    LB_TRY(lb_sum_terms_open(site, runner, bits, &s->of, plain, err));
    if (!*plain) return LB_OK;
    const size_t bytes = lb_dtype_bytes(s->of.dtype, (size_t)s->of.count) + 1;
    s->result = malloc(bytes), s->spare = malloc(bytes);
    return s->result && s->spare ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
}

static bool same_numbers(const sum *sum, const lb_received *received)
{
    const lb_layout layout = lb_layout_contiguous(1, &received->n);
    const size_t size = lb_dtype_bits(sum->of.dtype) / 8;
    lb_tensor a = {(char *)sum->result + (size_t)received->from * size, sum->of.dtype, layout},
              b = {received->data, sum->of.dtype, layout};
    lb_difference difference;
    return lb_compare_numbers(&a, &b, &difference, NULL) == LB_OK && !difference.differing;
}

/* Which members received what was computed? Of several outputs of one rank, all of them. */
static uint32_t members_with_result(const sum *sum, int32_t *others)
{
    uint32_t with = 0, without = 0;
    for (uint32_t i = 0; i < sum->of.n_received; i++) {
        const int32_t rank = sum->of.received[i].rank;
        bool first = true, same = true;
        for (uint32_t k = 0; k < i; k++) first &= sum->of.received[k].rank != rank;
        if (!first) continue;
        for (uint32_t k = i; k < sum->of.n_received && same; k++)
            same = sum->of.received[k].rank != rank || same_numbers(sum, &sum->of.received[k]);
        if (same)
            with++;
        else
            others[without++] = rank;
    }
    return with;
}

static uint32_t count_members(const sum *sum)
{
    int32_t none[LB_MOST_SUM_TERMS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < sum->of.n_received; i++) {
        bool known = false;
        for (uint32_t k = 0; k < n; k++) known |= none[k] == sum->of.received[i].rank;
        if (!known) none[n++] = sum->of.received[i].rank;
    }
    return n;
}

/* Contributions to try all orders on. */
typedef struct trial {
    sum *s;
    const void *inputs[MOST_RANKS + 1];
    uint32_t n;
    double factor;                        /* of the result */
    char order[LB_COLLECTIVE_ORDER_NAME]; /* the last one tried */
    int32_t others[MOST_RANKS];           /* who received something else than it gives */
    uint32_t n_others;
} trial;

static void start(trial *t, sum *sum)
{
    *t = (trial){.s = sum, .factor = 1};
}

static void add(trial *trial, const void *contribution)
{
    trial->inputs[trial->n++] = contribution;
}

/* All of them, once. */
static void start_whole(trial *trial, sum *sum)
{
    start(trial, sum);
    for (uint32_t k = 0; k < sum->of.n; k++) add(trial, sum->of.streams[k]);
}

/* 1 + the place of the only member that receives; 0: several do. */
static uint32_t only_receiver(const lb_sum_terms *terms)
{
    uint32_t place = 0;
    for (uint32_t i = 1; i < terms->n_received; i++)
        if (terms->received[i].rank != terms->received[0].rank) return 0;
    while (terms->n_received && place < terms->n && terms->ranks[place] != terms->received[0].rank) place++;
    return terms->n_received && place < terms->n ? place + 1 : 0;
}

/* Each receives its block of a sum whose elements they share out evenly. */
static bool are_blocks(const lb_sum_terms *terms)
{
    bool blocks = terms->n_received == terms->n && terms->count % terms->n == 0;
    for (uint32_t i = 0; i < terms->n_received && blocks; i++) blocks = terms->received[i].n * terms->n == terms->count;
    return blocks;
}

/* Elements [from, from + n) of the sum. */
static bool reduce_part(const trial *trial, const lb_collective_order *order, int64_t from, int64_t n)
{
    const void *inputs[MOST_RANKS + 1];
    const lb_sum_terms *of = &trial->s->of;
    const size_t offset = (size_t)from * (lb_dtype_bits(of->dtype) / 8);
    for (uint32_t k = 0; k < trial->n; k++) inputs[k] = (const char *)trial->inputs[k] + offset;
    const lb_rank_terms terms = {inputs, trial->n, of->dtype, n};
    char *out = (char *)trial->s->result + offset;
    lb_collective_order mine = *order;
    if (trial->n == of->n && n == of->count && are_blocks(of))
        return lb_collective_reduce_blocks(order, of->reduction, &terms, out, NULL) == LB_OK;
    mine.home = only_receiver(of);
    return lb_collective_reduce(&mine, of->reduction, &terms, out, NULL) == LB_OK;
}

static bool reduce(const trial *trial)
{
    lb_collective_order order;
    const lb_sum_terms *of = &trial->s->of;
    const uint32_t parts = trial->s->apart ? of->tensors : 1;
    bool done = trial->n && lb_collective_order_parse(trial->order, &order, NULL) == LB_OK;
    for (uint32_t k = 0; k < parts && done; k++) {
        const int64_t from = trial->s->apart ? of->starts[k] : 0, end = trial->s->apart ? of->starts[k + 1] : of->count;
        done = reduce_part(trial, &order, from, end - from);
    }
    const size_t size = lb_dtype_bits(of->dtype) / 8;
    for (int64_t i = 0; trial->factor != 1 && i < of->count && done; i++) {
        char *at = (char *)trial->s->result + (size_t)i * size;
        lb_from_f64(of->dtype, at, trial->factor * lb_to_f64(of->dtype, at), NULL);
    }
    return done;
}

/* Is there an order that gives what all members received (`some`: what some did)? */
static bool has_order(trial *trial, bool some)
{
    const uint32_t members = count_members(trial->s);
    for (int apart = 0; apart < (trial->s->of.tensors > 1 ? 2 : 1); apart++)
        for (const char *at = LB_COLLECTIVE_ORDERS; lb_collective_order_next(&at, trial->order);) {
            trial->s->apart = apart;
            if (!reduce(trial)) continue;
            const uint32_t with = members_with_result(trial->s, trial->others);
            trial->n_others = members - with;
            if (!trial->n_others || (some && with)) return true;
        }
    return false;
}

/* ---- faults ---- */

static void tell_fault(lb_attribution_found *found, const trial *trial, const char *what)
{
    char text[160];
    snprintf(text, sizeof text, "%s, order %s gives all of them", what, trial->order);
    join(found, text);
}

static bool is_missing(sum *sum, uint32_t r, trial *trial)
{
    start(trial, sum);
    for (uint32_t k = 0; k < sum->of.n; k++)
        if (k != r) add(trial, sum->of.streams[k]);
    return has_order(trial, false);
}

/* The rank takes part, with zeros, and that is seen in the order of the others. */
static bool is_zeros(sum *sum, uint32_t r, trial *trial)
{
    memset(sum->spare, 0, lb_dtype_bytes(sum->of.dtype, (size_t)sum->of.count));
    if (!sum->of.reduces) return false;
    start(trial, sum);
    for (uint32_t k = 0; k < sum->of.n; k++) add(trial, k == r ? sum->spare : sum->of.streams[k]);
    return has_order(trial, false);
}

/* A second time before contribution `at`; n: after all of them. */
static bool is_repeated(sum *sum, uint32_t r, uint32_t at, trial *trial)
{
    start(trial, sum);
    for (uint32_t k = 0; k < sum->of.n; k++) {
        if (k == at) add(trial, sum->of.streams[r]);
        add(trial, sum->of.streams[k]);
    }
    if (at == sum->of.n) add(trial, sum->of.streams[r]);
    return has_order(trial, false);
}

static bool is_narrow(sum *sum, uint32_t r, lb_dtype dtype, trial *trial)
{
    const size_t n = (size_t)sum->of.count;
    if (lb_dtype_precision(dtype) >= lb_dtype_precision(sum->of.dtype)) return false;
    void *narrow = malloc(lb_dtype_bytes(dtype, n) + 1);
    if (!narrow) return false;
    lb_convert(dtype, narrow, sum->of.dtype, sum->of.streams[r], n, NULL);
    lb_convert(sum->of.dtype, sum->spare, dtype, narrow, n, NULL);
    free(narrow);
    start(trial, sum);
    for (uint32_t k = 0; k < sum->of.n; k++) add(trial, k == r ? sum->spare : sum->of.streams[k]);
    return has_order(trial, false);
}

static bool tell_fault_of_rank(sum *sum, uint32_t rank, lb_attribution_found *found)
{
    static const lb_dtype narrow[] = {LB_BF16, LB_F16};
    char what[80] = "";
    trial trial;
    if (is_missing(sum, rank, &trial))
        snprintf(what, sizeof what, "without the contribution of rank %d", sum->of.ranks[rank]);
    else if (is_zeros(sum, rank, &trial))
        snprintf(what, sizeof what, "with zeros for the contribution of rank %d", sum->of.ranks[rank]);
    else if (is_repeated(sum, rank, sum->of.n, &trial) || is_repeated(sum, rank, rank, &trial))
        snprintf(what, sizeof what, "with the contribution of rank %d added twice", sum->of.ranks[rank]);
    for (size_t k = 0; k < sizeof narrow / sizeof *narrow && !*what; k++)
        if (is_narrow(sum, rank, narrow[k], &trial))
            snprintf(what, sizeof what, "with the contribution of rank %d in %s", sum->of.ranks[rank],
                     lb_dtype_name(narrow[k]));
    if (*what) tell_fault(found, &trial, what);
    return *what;
}

static bool tell_division(sum *sum, lb_attribution_found *found)
{
    trial trial;
    for (int often = 0; often < 2; often++) {
        start_whole(&trial, sum);
        trial.factor = often ? 1.0 / sum->of.n : sum->of.n;
        if (!has_order(&trial, false)) continue;
        tell_fault(found, &trial, often ? "divided by the number of ranks besides" : "times the number of ranks");
        return true;
    }
    return false;
}

/* Members that received different bits than the rest. */
static bool tell_receivers(sum *sum, lb_attribution_found *found)
{
    trial trial;
    char names[80], text[200];
    start_whole(&trial, sum);
    if (!has_order(&trial, true) || !trial.n_others) return false;
    list_ranks(trial.others, trial.n_others, names, sizeof names);
    snprintf(text, sizeof text, "%u of %u members received what order %s gives; %s received other bits",
             count_members(sum) - trial.n_others, count_members(sum), trial.order, names);
    join(found, text);
    return true;
}

/* ---- a few elements that are wrong ---- */

enum { FEW = 16 };

/* Elements of what was received that are not those of this sum, all members together. */
static int64_t misses_of(const lb_sum_terms *terms, const char *sum)
{
    const size_t width = lb_dtype_bits(terms->dtype) / 8;
    int64_t n = 0;
    for (uint32_t i = 0; i < terms->n_received; i++)
        for (int64_t k = 0; k < terms->received[i].n; k++)
            n += memcmp((char *)terms->received[i].data + (size_t)k * width,
                        sum + (size_t)(terms->received[i].from + k) * width, width) != 0;
    return n;
}

/* Elements that the order does not give; INT64_MAX: it cannot be had. `sum` is written over. */
static int64_t misses_in(const lb_sum_terms *t, const lb_rank_terms *terms, const lb_collective_order *order, char *sum)
{
    lb_collective_order mine = *order;
    mine.home = only_receiver(t);
    const lb_status status = are_blocks(t) ? lb_collective_reduce_blocks(order, t->reduction, terms, sum, NULL)
                                           : lb_collective_reduce(&mine, t->reduction, terms, sum, NULL);
    return status == LB_OK ? misses_of(t, sum) : INT64_MAX;
}

/* The sum in the order that misses fewest; false: each misses many. */
static bool find_nearest_order(const lb_sum_terms *sums, const lb_rank_terms *terms, int64_t *least, char *sum)
{
    const size_t size = (size_t)terms->count * (lb_dtype_bits(terms->dtype) / 8);
    char *best = malloc(size + 1);
    bool found = false;
    *least = (int64_t)FEW * sums->n + 1;
    char name[LB_COLLECTIVE_ORDER_NAME];
    for (const char *at = LB_COLLECTIVE_ORDERS; best && *least && lb_collective_order_next(&at, name);) {
        lb_collective_order one;
        if (lb_collective_order_parse(name, &one, NULL) != LB_OK) continue;
        const int64_t misses = misses_in(sums, terms, &one, sum);
        if (misses >= *least) continue;
        *least = misses, found = true;
        memcpy(best, sum, size);
    }
    if (found) memcpy(sum, best, size);
    free(best);
    return found;
}

typedef struct asked_element {
    const lb_sum_terms *t;
    const lb_rank_terms *terms;
    int64_t at, least;
    char *room;
} asked_element;

static bool may_be(void *context, lb_collective_order *order)
{
    const asked_element *asked = context;
    const bool fits = misses_in(asked->t, asked->terms, order, asked->room) == asked->least;
    order->home = only_receiver(asked->t);
    if (are_blocks(asked->t) && lb_collective_order_ends_at_home(order))
        order->home = (uint32_t)(asked->at / (asked->t->count / asked->t->n)) + 1;
    return fits;
}

/* The first element that no order gives, or that not all received alike, and who received what of it. */
typedef struct flip {
    int64_t at; /* in the sum; -1: none */
    const void *received[LB_MOST_SUM_TERMS];
    const char *value;
    int32_t rank;
} flip;

static const char *received_at(const lb_sum_terms *terms, const lb_received *received, int64_t at)
{
    const size_t width = lb_dtype_bits(terms->dtype) / 8;
    return at >= received->from && at < received->from + received->n
               ? (char *)received->data + (size_t)(at - received->from) * width
               : NULL;
}

/* Has another member this element as the order gives it? */
static bool others_have(const lb_sum_terms *terms, int64_t at, const char *right)
{
    const size_t width = lb_dtype_bits(terms->dtype) / 8;
    for (uint32_t i = 0; i < terms->n_received; i++) {
        const char *v = received_at(terms, &terms->received[i], at);
        if (v && !memcmp(v, right, width)) return true;
    }
    return false;
}

static void find_flip(const lb_sum_terms *first, const lb_rank_terms *terms, const char *sum, flip *found)
{
    const size_t width = lb_dtype_bits(first->dtype) / 8;
    *found = (flip){.at = -1};
    for (uint32_t i = 0; i < first->n_received && found->at < 0; i++) {
        const lb_received *received = &first->received[i];
        for (int64_t at = received->from; at < received->from + received->n && found->at < 0; at++) {
            const char *v = received_at(first, received, at);
            const char *right = sum + (size_t)at * width;
            if (memcmp(v, right, width) && (others_have(first, at, right) ||
                                            lb_sum_fault_of(first->reduction, terms, at, v) == LB_SUM_FAULT_PROVEN))
                found->at = at, found->value = v, found->rank = received->rank;
        }
    }
    for (uint32_t i = 0; i < first->n_received && found->at >= 0; i++)
        for (uint32_t r = 0; r < first->n; r++)
            if (first->ranks[r] == first->received[i].rank && !found->received[r])
                found->received[r] = received_at(first, &first->received[i], found->at);
}

static void print_bits(uint64_t bits, char *text, size_t room)
{
    const int one = lb_sum_fault_one_bit(bits);
    size_t used = (size_t)snprintf(text, room, one >= 0 ? "bit %d" : "bits", one);
    for (int b = 0, n = 0; one < 0 && b < 64 && used < room; b++)
        if (bits >> b & 1) used += (size_t)snprintf(text + used, room - used, "%s%d", n++ ? "," : " ", b);
}

/* "bit 17, or bit 19 on the way from rank 3 to rank 4", as collective_result_text.c says it of one capture. */
static void print_hops(const lb_sum_terms *terms, const lb_sum_fault_way *way, char *text, size_t room)
{
    enum { FEW_HOPS = 4 };
    const lb_sum_fault_hop *hops = way->hops;
    const uint32_t n = way->possible <= FEW_HOPS ? way->n : FEW_HOPS;
    bool one_hop = true;
    size_t used = 0;
    for (uint32_t i = 1; i < way->n; i++) one_hop &= hops[i].from == hops[0].from && hops[i].to == hops[0].to;
    for (uint32_t i = 0; i < n && used < room; i++) {
        const bool last = i + 1 == n || hops[i + 1].from != hops[i].from || hops[i + 1].to != hops[i].to;
        char bits[200];
        print_bits(hops[i].bits, bits, sizeof bits);
        used += (size_t)snprintf(text + used, room - used, "%s%s", i ? ", or " : "", bits);
        if (last && used < room)
            used += (size_t)snprintf(text + used, room - used, " on the way from rank %d to rank %d",
                                     terms->ranks[hops[i].from], terms->ranks[hops[i].to]);
    }
    if (n < way->possible && used < room)
        used += (size_t)snprintf(text + used, room - used, ", or one of %" PRIu32 " more", way->possible - n);
    if (!one_hop && used < room)
        snprintf(text + used, room - used,
                 ": each of these %" PRIu32 " gives what was received, and the bits do not tell which it was",
                 way->possible);
}

/* "element 77 that rank 2 received has bit 3 turned over, …"; "" where all elements are legal, or many are not. */
static lb_status tell_flip(const lb_sum_terms *sums, char *text, size_t room, lb_err *err)
{
    const size_t width = lb_dtype_bits(sums->dtype) / 8;
    const lb_rank_terms terms = {(const void *const *)sums->streams, sums->n, sums->dtype, sums->count};
    enum { WAYS = 2 };
    lb_sum_fault_way ways[WAYS];
    int64_t least;
    flip flip;
    *text = '\0';
    if (!sums->reduces || !width || !sums->count || lb_dtype_is_complex(sums->dtype)) return LB_OK;
    char *sum = malloc((size_t)sums->count * width + 1);
    if (!sum) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    flip.at = -1;
    if (find_nearest_order(sums, &terms, &least, sum)) find_flip(sums, &terms, sum, &flip);
    if (flip.at >= 0) {
        const int bit = lb_sum_fault_bit(flip.value, sum + (size_t)flip.at * width, width);
        size_t used = (size_t)snprintf(text, room, "element %" PRId64 " that rank %d received ", flip.at, flip.rank);
        if (bit >= 0)
            used += (size_t)snprintf(text + used, room - used, "has bit %d turned over", bit);
        else
            used += (size_t)snprintf(text + used, room - used, "is not what the order gives");
        asked_element asked = {sums, &terms, flip.at, least, sum};
        const lb_sum_fault_question question = {sums->reduction, &terms, flip.at, flip.received, NULL, may_be, &asked};
        const uint32_t n = lb_sum_fault_ways(&question, ways, WAYS);
        for (uint32_t i = 0; i < n && used < room; i++) {
            used += (size_t)snprintf(text + used, room - used,
                                     i ? "; in order %s, which gives the same sums, " : ": in order %s it is ",
                                     ways[i].order);
            if (used < room) print_hops(sums, &ways[i], text + used, room - used);
            used = strlen(text);
        }
    }
    free(sum);
    return LB_OK;
}

/* The step of the collective among the ops of a side, of the one that was found if it is given; false: it is none of
 * them. */
static bool find_step(const lb_match_site *site, int side, const lb_collective_finding *finding, int64_t *step)
{
    const lb_program_view *view = side_of(site, side);
    const lb_matched_region_side *s = &site->region->sides[side];
    for (uint32_t i = 0; i < s->n_ops; i++) {
        const lb_program *recorded;
        const lb_collective *row = lb_collective_of_side(view, s->ops[i], &recorded);
        if (!row || (finding && (recorded->rank != finding->rank || row->op != finding->op))) continue;
        *step = recorded->step;
        return true;
    }
    return false;
}

/* What is told of the collective by its own capture: an earlier contribution, or (`calls`) a call that does not fit the
 * others. */
static lb_status tell_results(const lb_match_site *site, int side, bool calls, lb_attribution_found *found, bool *known,
                              lb_err *err)
{
    lb_collective_results results;
    int64_t step;
    if (!find_step(site, side, NULL, &step)) return LB_OK;
    LB_TRY(lb_collective_results_check_step(side_of(site, side)->capture, step, &results, err));
    for (uint32_t i = 0; i < results.n && !*known; i++) {
        const lb_collective_finding *finding = &results.list[i];
        const bool names = calls ? finding->calls : finding->brought >= 0 || finding->from >= 0;
        if (finding->kind != LB_COLLECTIVE_RESULT || !names || !find_step(site, side, finding, &step)) continue;
        join(found, finding->message);
        *known = true;
    }
    lb_collective_results_release(&results);
    return LB_OK;
}

/* Nothing where a legal order gives that side's bits, or where it is no plain sum. */
static lb_status tell_faults(const lb_match_site *site, int runner, int bits, lb_attribution_found *found, bool *told,
                             lb_err *err)
{
    sum sum;
    bool plain;
    trial trial;
    lb_status status = open_sum(site, runner, bits, &sum, &plain, err);
    if (status == LB_OK && plain) {
        start_whole(&trial, &sum);
        *told = !has_order(&trial, false);
        if (*told)
            join(found, bits || site->source->all ? "no legal order of these inputs gives these bits"
                                                  : "no legal order of the first side's inputs gives its bits");
        bool known = !*told || tell_receivers(&sum, found) || tell_division(&sum, found);
        for (uint32_t r = 0; r < sum.of.n && !known; r++) known = tell_fault_of_rank(&sum, r, found);
        char flip[320] = "";
        if (*told) status = tell_flip(&sum.of, flip, sizeof flip, err);
        if (*flip) join(found, flip), known = true;
        if (*told && !known && status == LB_OK) status = tell_results(site, bits, false, found, &known, err);
        found->fault = *told && known;
        if (!known && !sum.of.reduces) *told = false, *found->why = '\0';
    }
    release_sum(&sum);
    return status;
}

/* One collective each brings the same on both sides; other ops may have left something out on one of them. */
static lb_status tell_faults_of_sides(const lb_match_site *site, lb_attribution_found *found, bool *told, lb_err *err)
{
    for (int bits = site->source->all ? 0 : 1; bits >= 0 && !*told; bits--)
        LB_TRY(tell_results(site, bits, true, found, told, err));
    found->fault |= *told;
    for (int bits = site->source->all ? 0 : 1; bits >= 0; bits--)
        for (int runner = 0; runner < (site->source->all || site->region->pair ? 1 : 2) && !*told; runner++)
            LB_TRY(tell_faults(site, runner, bits, found, told, err));
    return LB_OK;
}

lb_status lb_rank_terms_tell(const lb_match_site *site, lb_attribution_found *found, lb_err *err)
{
    bool told = false;
    if (found->cause == LB_CAUSE_UNEXPLAINED && found->tried) {
        char why[sizeof found->why];
        memcpy(why, found->why, sizeof why);
        *found->why = '\0';
        LB_TRY(tell_faults_of_sides(site, found, &told, err));
        if (!told) memcpy(found->why, why, sizeof why);
    }
    if (!site->source->all && site->source->collective_matches[0]) tell_inputs(site, found);
    return LB_OK;
}
