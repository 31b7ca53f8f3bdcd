/* Telling contributions: see contributions.h. */
#include "contributions.h"

#include "collective.h"
#include "orders.h"

#include <lastbit/compare.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 64 };

static const lb_side *side_of(const lb_place *p, int side)
{
    return side ? p->source->b : p->source->a;
}

static int32_t rank_of_value(const lb_place *p, int side, uint32_t value)
{
    uint32_t row;
    return lb_side_recorded(side_of(p, side), value, &row)->rank;
}

/* ---- who brought other numbers ---- */

static void list_ranks(const int32_t *ranks, uint32_t n, char *text, size_t room)
{
    size_t used = (size_t)snprintf(text, room, n == 1 ? "rank" : "ranks");
    for (uint32_t i = 0; i < n && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s %d", i ? "," : "", ranks[i]);
}

/* Ranks of which some input differs between the sides, each once. */
static uint32_t differing_ranks(const lb_place *p, int32_t *ranks)
{
    const lb_stretch_side *s = &p->stretch->sides[0];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_leaves; i++) {
        const int32_t rank = rank_of_value(p, 0, s->leaves[i]);
        bool known = false;
        for (uint32_t k = 0; k < n; k++) known |= ranks[k] == rank;
        if (known || n == MOST_RANKS || s->partners[i] == LB_NONE) continue;
        if (lb_stretch_differs(p->source, s->leaves[i], s->partners[i])) ranks[n++] = rank;
    }
    return n;
}

static void join(lb_cause_found *found, const char *text)
{
    const size_t used = strlen(found->why);
    snprintf(found->why + used, sizeof found->why - used, "%s%s", used ? "; " : "", text);
}

static void tell_inputs(const lb_place *p, lb_cause_found *found)
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

/* ---- an all-reduce as arithmetic ---- */

typedef struct sum {
    const lb_place *place;
    int bits; /* whose */
    uint32_t n;
    int64_t count;
    lb_dtype dtype;
    lb_reduction reduction;
    int32_t ranks[MOST_RANKS];
    void *inputs[MOST_RANKS]; /* dense */
    void *targets[MOST_RANKS];
    void *result, *spare; /* spare: of a contribution that was changed */
} sum;

static void release_sum(sum *s)
{
    for (uint32_t r = 0; r < s->n; r++) free(s->inputs[r]), free(s->targets[r]);
    free(s->result), free(s->spare);
}

static void *dense_copy(const lb_tensor *t, lb_dtype dtype, int64_t count)
{
    void *bytes = NULL;
    if (t->dtype == dtype && lb_layout_numel(&t->layout) == count)
        bytes = malloc(lb_dtype_bytes(dtype, (size_t)count) + 1);
    if (bytes && lb_tensor_gather(t, bytes, NULL) == LB_OK) return bytes;
    free(bytes);
    return NULL;
}

/* The reduction of an all-reduce whose members bring and get one tensor each; false of anything else. */
static bool is_plain(const lb_place *p, lb_reduction *reduction)
{
    const lb_stretch_side *s = &p->stretch->sides[0];
    const lb_program *program = side_of(p, 0)->program, *recorded;
    if (!p->stretch->pair) return false;
    const lb_collective *row = lb_side_collective(side_of(p, 0), s->ops[0], &recorded);
    return row && s->n_ops == row->ranks && s->n_leaves == s->n_ops && p->stretch->n_outputs == s->n_ops &&
           s->n_ops <= MOST_RANKS && strstr(lb_op_name(program, &program->ops[s->ops[0]]), "all") &&
           strstr(lb_op_name(program, &program->ops[s->ops[0]]), "reduce") &&
           lb_reduction_parse(lb_program_text(recorded, row->reduce), reduction);
}

/* `*plain`: it can be computed as arithmetic on what one side's members brought. */
static lb_status open_sum(const lb_place *p, int bits, sum *s, bool *plain, lb_err *err)
{
    *s = (sum){.place = p, .bits = bits};
    *plain = lb_place_can(p, 0, bits) && is_plain(p, &s->reduction);
    if (!*plain) return LB_OK;
    const lb_stretch_side *x = &p->stretch->sides[0];
    s->dtype = p->inputs[0][bits][0].dtype, s->count = lb_layout_numel(&p->inputs[0][bits][0].layout);
    *plain = lb_dtype_is_float(s->dtype) && lb_dtype_bits(s->dtype) >= 16 && s->count > 0;
    for (uint32_t r = 0; r < x->n_leaves && *plain; r++) {
        s->ranks[r] = rank_of_value(p, 0, x->leaves[r]);
        s->inputs[r] = dense_copy(&p->inputs[0][bits][r], s->dtype, s->count);
        s->targets[r] = dense_copy(&p->targets[bits][r], s->dtype, s->count);
        s->n = r + 1;
        *plain = s->inputs[r] && s->targets[r];
    }
    s->result = malloc(lb_dtype_bytes(s->dtype, (size_t)s->count) + 1);
    s->spare = malloc(lb_dtype_bytes(s->dtype, (size_t)s->count) + 1);
    return s->result && s->spare ? LB_OK
                                 : lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
}

static bool same_numbers(const sum *s, void *x, void *y)
{
    const lb_layout layout = lb_layout_contiguous(1, &s->count);
    lb_tensor a = {x, s->dtype, layout}, b = {y, s->dtype, layout};
    lb_difference d;
    return lb_compare_numbers(&a, &b, &d, NULL) == LB_OK && !d.differing;
}

/* Which members received what was computed? */
static uint32_t members_with_result(const sum *s, int32_t *others)
{
    uint32_t with = 0;
    for (uint32_t r = 0; r < s->n; r++)
        if (same_numbers(s, s->result, s->targets[r]))
            with++;
        else
            others[r - with] = s->ranks[r];
    return with;
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
    for (uint32_t k = 0; k < s->n; k++) add(t, s->inputs[k]);
}

static bool reduce(const trial *t)
{
    lb_order order;
    sum *s = t->s;
    if (!t->n || lb_order_parse(t->order, &order, NULL) != LB_OK ||
        lb_collective_reduce(&order, s->reduction, t->n, t->inputs, s->dtype, s->count, s->result, NULL) !=
            LB_OK)
        return false;
    const size_t size = lb_dtype_bits(s->dtype) / 8;
    for (int64_t i = 0; t->factor != 1 && i < s->count; i++) {
        char *at = (char *)s->result + (size_t)i * size;
        lb_from_f64(s->dtype, at, t->factor * lb_to_f64(s->dtype, at), NULL);
    }
    return true;
}

/* Is there an order that gives what all members received (`some`: what some did)? */
static bool has_order(trial *t, bool some)
{
    for (const char *at = LB_ORDERS_RANKS; *at; at += strspn(at, " ")) {
        const int length = (int)strcspn(at, " ");
        snprintf(t->order, sizeof t->order, "%.*s", length, at);
        at += length;
        if (!reduce(t)) continue;
        const uint32_t with = members_with_result(t->s, t->others);
        t->n_others = t->s->n - with;
        if (!t->n_others || (some && with)) return true;
    }
    return false;
}

/* ---- faults ---- */

static void tell_fault(lb_cause_found *found, const trial *t, const char *what)
{
    char text[160];
    snprintf(text, sizeof text, "%s, order %s gives all of them", what, t->order);
    join(found, text);
}

static bool is_missing(sum *s, uint32_t r, trial *t)
{
    start(t, s);
    for (uint32_t k = 0; k < s->n; k++)
        if (k != r) add(t, s->inputs[k]);
    return has_order(t, false);
}

/* A second time before contribution `at`; n: after all of them. */
static bool is_repeated(sum *s, uint32_t r, uint32_t at, trial *t)
{
    start(t, s);
    for (uint32_t k = 0; k < s->n; k++) {
        if (k == at) add(t, s->inputs[r]);
        add(t, s->inputs[k]);
    }
    if (at == s->n) add(t, s->inputs[r]);
    return has_order(t, false);
}

static bool is_narrow(sum *s, uint32_t r, lb_dtype dtype, trial *t)
{
    const size_t n = (size_t)s->count;
    if (lb_dtype_precision(dtype) >= lb_dtype_precision(s->dtype)) return false;
    void *narrow = malloc(lb_dtype_bytes(dtype, n) + 1);
    if (!narrow) return false;
    lb_convert(dtype, narrow, s->dtype, s->inputs[r], n, NULL);
    lb_convert(s->dtype, s->spare, dtype, narrow, n, NULL);
    free(narrow);
    start(t, s);
    for (uint32_t k = 0; k < s->n; k++) add(t, k == r ? s->spare : s->inputs[k]);
    return has_order(t, false);
}

static bool tell_fault_of_rank(sum *s, uint32_t r, lb_cause_found *found)
{
    static const lb_dtype narrow[] = {LB_BF16, LB_F16};
    char what[80] = "";
    trial t;
    if (is_missing(s, r, &t))
        snprintf(what, sizeof what, "without the contribution of rank %d", s->ranks[r]);
    else if (is_repeated(s, r, s->n, &t) || is_repeated(s, r, r, &t))
        snprintf(what, sizeof what, "with the contribution of rank %d added twice", s->ranks[r]);
    for (size_t k = 0; k < sizeof narrow / sizeof *narrow && !*what; k++)
        if (is_narrow(s, r, narrow[k], &t))
            snprintf(what, sizeof what, "with the contribution of rank %d in %s", s->ranks[r],
                     lb_dtype_name(narrow[k]));
    if (*what) tell_fault(found, &t, what);
    return *what;
}

static bool tell_division(sum *s, lb_cause_found *found)
{
    trial t;
    for (int often = 0; often < 2; often++) {
        start_whole(&t, s);
        t.factor = often ? 1.0 / s->n : s->n;
        if (!has_order(&t, false)) continue;
        tell_fault(found, &t, often ? "divided by the number of ranks besides" : "times the number of ranks");
        return true;
    }
    return false;
}

/* Members that received other bits than the rest. */
static bool tell_receivers(sum *s, lb_cause_found *found)
{
    trial t;
    char names[80], text[200];
    start_whole(&t, s);
    if (!has_order(&t, true) || !t.n_others) return false;
    list_ranks(t.others, t.n_others, names, sizeof names);
    snprintf(text, sizeof text, "%u of %u members received what order %s gives; %s received other bits",
             s->n - t.n_others, s->n, t.order, names);
    join(found, text);
    return true;
}

/* Nothing where a legal order gives that side's bits, or where it is no plain sum. */
static lb_status tell_faults(const lb_place *p, int bits, lb_cause_found *found, bool *told, lb_err *err)
{
    sum s;
    bool plain;
    trial t;
    lb_status status = open_sum(p, bits, &s, &plain, err);
    if (status == LB_OK && plain) {
        start_whole(&t, &s);
        *told = !has_order(&t, false);
        if (*told)
            join(found, bits || p->source->all ? "no legal order of these inputs gives these bits"
                                               : "no legal order of the first side's inputs gives its bits");
        bool known = !*told || tell_receivers(&s, found) || tell_division(&s, found);
        for (uint32_t r = 0; r < s.n && !known; r++) known = tell_fault_of_rank(&s, r, found);
    }
    release_sum(&s);
    return status;
}

lb_status lb_contributions_tell(const lb_place *p, lb_cause_found *found, lb_err *err)
{
    bool told = false;
    if (found->cause == LB_CAUSE_UNEXPLAINED && found->tried) {
        char why[sizeof found->why];
        memcpy(why, found->why, sizeof why);
        *found->why = '\0';
        for (int bits = p->source->all ? 0 : 1; bits >= 0 && !told; bits--)
            LB_TRY(tell_faults(p, bits, found, &told, err));
        if (!told) memcpy(found->why, why, sizeof why);
    }
    if (!p->source->all) tell_inputs(p, found);
    return LB_OK;
}
