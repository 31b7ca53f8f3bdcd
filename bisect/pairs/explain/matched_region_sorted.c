/* Rows that are sorted in a larger batch: see matched_region_finder.h. Experts take tokens in the order of their
 * numbers: a token that is third alone is thirtieth among others, and how many there are of each expert is another
 * number. */
#include "pair/moved_rows.h"
#include "explain/matched_region_finder.h"

#include <stdlib.h>
#include <string.h>

/* A pair of values of an op and of its partner; LB_NONE: there is none. */
typedef struct operand_pair {
    uint32_t few, many;
} operand_pair;

static bool is_pair(const operand_pair *pair)
{
    return pair->few != LB_NONE && pair->many != LB_NONE;
}

/* Rows, but not those that stand there. */
static bool are_elsewhere(const lb_region_finder *finder, const operand_pair *pair)
{
    lb_tensor few, many;
    /* Near rows are asked before moved ones: looking for each row among all others reads both tensors
     * whole, and is left to values that do not line up. */
    return is_pair(pair) && pair->many >= finder->p[1]->n_values &&
           lb_matched_region_differs(finder->source, pair->few, pair->many) &&
           (!lb_dtype_is_float(finder->p[0]->values[pair->few].dtype) ||
            !lb_region_finder_is_near(finder, pair->few, pair->many)) &&
           lb_matched_region_bytes(finder->source, 0, pair->few, &few) &&
           lb_matched_region_bytes(finder->source, 1, lb_matched_region_recorded(finder->source, 1, pair->many),
                                   &many) &&
           lb_rows_among(&few, &many, LB_FINDER_NEAR);
}

/* Numbers of one shape that are others over more rows. */
static bool are_counts(const lb_region_finder *finder, const operand_pair *pair)
{
    return is_pair(pair) && pair->many < finder->p[1]->n_values &&
           !lb_dtype_is_float(finder->p[0]->values[pair->few].dtype) &&
           lb_region_finder_same_shape(finder, pair->few, pair->many) &&
           lb_matched_region_differs(finder->source, pair->few, pair->many);
}

static bool is_within(const lb_program *program, uint32_t scope, uint32_t outer)
{
    while (scope != outer && program->scopes[scope].parent != LB_NONE) scope = program->scopes[scope].parent;
    return scope == outer;
}

/* The module (1 + scope) where what the op reads as `value` was sorted, if that is where the op is; 0. */
static uint32_t sorted_where(lb_region_finder *finder, uint32_t i, uint32_t value)
{
    const uint32_t from = value == LB_NONE ? LB_NONE : lb_region_finder_maker(finder, 0, i, value);
    if (from == LB_NONE || from >= i) return 0;
    /* Asking for trust settles whether what `from` gives is sorted; the question goes back in
     * execution order, and each op is answered once. */
    lb_region_finder_is_trusted(finder, from);
    return finder->sorted[from] && is_within(finder->p[0], finder->p[0]->ops[i].scope, finder->sorted[from] - 1)
               ? finder->sorted[from]
               : 0;
}

/* Argument `k` of n, or then outcome k - n, on both sides. */
static operand_pair pair_of(lb_region_finder *finder, uint32_t i, const lb_region_finder_values *in,
                            const lb_region_finder_values *others, uint32_t k)
{
    const lb_alignment *al = finder->source->alignment;
    const lb_op *op = &finder->p[0]->ops[i],
                *other = al->b_of_a[i] == LB_NONE ? NULL : &finder->p[1]->ops[al->b_of_a[i]];
    if (k < in->n) {
        if (other) return (operand_pair){in->list[k], others->n == in->n ? others->list[k] : LB_NONE};
        const lb_reassembly *join = &al->joins.list[al->join_of_a[i]];
        return (operand_pair){in->list[k], lb_region_finder_joined_input(finder, join, in->list[k], k, in->n)};
    }
    k -= in->n;
    if (!other)
        return (operand_pair){lb_op_outcome(finder->p[0], op, k), lb_region_finder_joined_outcome(finder, i, k)};
    return (operand_pair){lb_op_outcome(finder->p[0], op, k),
                          k < lb_op_outcomes(other) ? lb_op_outcome(finder->p[1], other, k) : LB_NONE};
}

/* Does what an op made of sorted rows stand where it should? */
static bool is_back(const lb_region_finder *finder, const operand_pair *pair)
{
    return is_pair(pair) && lb_region_finder_same_shape(finder, pair->few, pair->many) &&
           (lb_dtype_is_float(finder->p[0]->values[pair->few].dtype)
                ? lb_region_finder_is_near(finder, pair->few, pair->many)
                : !lb_matched_region_differs(finder->source, pair->few, pair->many));
}

/* Is a module one whose sorted rows come back, there or in the module that calls it, or stay inside? */
/* Before `settled` everything may, for whether rows come back is known only at the end of a module.
 * Afterwards rows that went out sorted and never came back are mixed up, which is a fault and must
 * be found: a request that got another's rows looks like sorting until then. */
static bool may_sort(const lb_region_finder *finder, uint32_t scope)
{
    const uint32_t parent = finder->p[0]->scopes[scope].parent;
    return !finder->settled || finder->returned[scope] ||
           (parent != LB_NONE && (finder->returned[parent] || !finder->left[scope]));
}

/* Notes that what op `i` reads as `value` left the module where it was sorted. */
static void note_leaving(lb_region_finder *finder, uint32_t i, uint32_t value)
{
    const uint32_t from = lb_region_finder_maker(finder, 0, i, value);
    if (from != LB_NONE && finder->sorted[from]) finder->left[finder->sorted[from] - 1] = 1;
}

/* What op `i` gives of sorted rows: 0 where they are back, else the module (1 + scope). */
static uint32_t passed_on(lb_region_finder *finder, const operand_pair *pair, uint32_t reads)
{
    if (!is_back(finder, pair)) return reads;
    /* Integers that agree again prove nothing: counts do so by chance. */
    finder->returned[reads - 1] |= lb_dtype_is_float(finder->p[0]->values[pair->few].dtype);
    return 0;
}

bool lb_region_finder_sorts(lb_region_finder *finder, uint32_t i)
{
    const uint32_t j = finder->source->alignment->b_of_a[i];
    const lb_op *op = &finder->p[0]->ops[i];
    lb_region_finder_values in = {0}, others = {0};
    uint32_t reads = 0, gives = 0;
    lb_op_each_input(finder->p[0], op, lb_region_finder_values_add, &in);
    if (j != LB_NONE) lb_op_each_input(finder->p[1], &finder->p[1]->ops[j], lb_region_finder_values_add, &others);
    for (uint32_t k = 0; k < in.n && !reads; k++) reads = sorted_where(finder, i, in.list[k]);
    for (uint32_t k = 0; k < in.n + lb_op_outcomes(op) && !gives; k++) {
        const operand_pair pair = pair_of(finder, i, &in, &others, k);
        uint32_t *there = k < in.n ? &reads : &gives;
        if (*there) continue;
        /* Inputs come first in the order of k, so that by the time of the outcomes it is known
         * whether sorted rows were read. */
        if (k >= in.n && reads)
            gives = passed_on(finder, &pair, reads);
        else if (may_sort(finder, op->scope) && (are_elsewhere(finder, &pair) || are_counts(finder, &pair))) {
            *there = op->scope + 1;
            if (k < in.n) note_leaving(finder, i, in.list[k]);
        }
    }
    finder->sorted[i] = gives;
    finder->failed |= in.failed || others.failed;
    free(in.list), free(others.list);
    return reads || gives;
}

void lb_region_finder_settle(lb_region_finder *finder)
{
    const uint32_t n = finder->p[0]->n_ops;
    bool lost = false;
    for (uint32_t i = 0; i < n && !finder->failed; i++) lb_region_finder_is_trusted(finder, i);
    finder->settled = true;
    for (uint32_t i = 0; i < n && !lost; i++) lost = finder->sorted[i] && !may_sort(finder, finder->sorted[i] - 1);
    if (!lost) return;
    /* Trust that was given or refused on a wrong guess is asked again from the start: a second pass
     * over the step, and only where some module lost rows. */
    memset(finder->trust, 0, n);
    memset(finder->sorted, 0, n * sizeof *finder->sorted);
}
