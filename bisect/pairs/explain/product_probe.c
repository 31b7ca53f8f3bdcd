/* A product inside of a place: see product_probe.h. */
#include "explain/product_probe.h"

#include "kernel/ops.h"
#include "explain/search_work.h"

#include <string.h>

/* A candidate is excluded where more than one of so many elements misses: bf16 hides a rounding of f32 in most
 * elements, and what follows may hide another. */
enum { MISSES = 16 };

static bool is_product(const lb_program *program, const lb_op *op)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(lb_op_name(program, op), &form);
    return row && row->flags & LB_ROW_MATMUL && op->results == 1 && !op->written && !(op->flags & LB_OP_COLLECTIVE) &&
           lb_op_results(program, op)[0] != LB_NONE;
}

static lb_dtype result_dtype(const lb_program *program, const lb_op *op)
{
    return program->values[lb_op_results(program, op)[0]].dtype;
}

/* Has the runner a product of as many terms? An order of 256 terms says nothing of a product that the other side wrote
 * as four of 64. */
static bool has_alike(const lb_match_site *site, int runner, const lb_program *theirs, const lb_op *product)
{
    const lb_program *program = lb_matched_region_program(site->source, runner);
    const lb_matched_region_side *ops = &site->region->sides[runner];
    for (uint32_t i = 0; i < ops->n_ops; i++) {
        const lb_op *op = &program->ops[ops->ops[i]];
        if (is_product(program, op) && !strcmp(lb_op_name(program, op), lb_op_name(theirs, product)) &&
            result_dtype(program, op) == result_dtype(theirs, product) &&
            lb_candidate_inner_dimension(program, op) == lb_candidate_inner_dimension(theirs, product))
            return true;
    }
    return false;
}

/* The row of the product with the longest sums that the runner has, too, of equals the largest; LB_NONE. Orders of
 * short sums are alike. */
static uint32_t longest_product(const lb_match_site *site, int runner, int bits)
{
    const lb_matched_region_side *side = &site->region->sides[bits];
    const lb_program *program = lb_matched_region_program(site->source, bits);
    uint32_t longest = LB_NONE;
    int64_t most_terms = 1;
    double most = 0;
    for (uint32_t i = 0; i < side->n_ops; i++) {
        const lb_op *op = &program->ops[side->ops[i]];
        if (!is_product(program, op)) continue;
        const int64_t terms = lb_candidate_inner_dimension(program, op);
        const double work = lb_work_of_op(program, op);
        if (terms < most_terms || (terms == most_terms && work <= most) || !has_alike(site, runner, program, op))
            continue;
        longest = side->ops[i], most_terms = terms, most = work;
    }
    return longest;
}

typedef struct leaf_list {
    lb_product_probe *probe;
    uint32_t n;
} leaf_list;

static void note_leaf(void *context, uint32_t value)
{
    enum { ROOM = sizeof((lb_product_probe *)0)->leaves / sizeof *((lb_product_probe *)0)->leaves };
    leaf_list *list = context;
    if (value == LB_NONE || list->n > ROOM) return;
    for (uint32_t i = 0; i < list->n; i++)
        if (list->probe->leaves[i] == value) return;
    if (list->n < ROOM) list->probe->leaves[list->n] = value, list->probe->partners[list->n] = LB_NONE;
    list->n++;
}

/* The product as a region of one side; the other side has nothing. */
static bool make_region(const lb_match_site *site, lb_product_probe *probe)
{
    const lb_program *program = lb_matched_region_program(site->source, probe->side);
    leaf_list leaves = {probe, 0};
    lb_op_each_input(program, &program->ops[probe->op], note_leaf, &leaves);
    probe->output = lb_op_results(program, &program->ops[probe->op])[0];
    probe->region.sides[probe->side] = (lb_matched_region_side){.ops = &probe->op,
                                                                .n_ops = 1,
                                                                .leaves = probe->leaves,
                                                                .n_leaves = leaves.n,
                                                                .partners = probe->partners,
                                                                .outputs = &probe->output,
                                                                .op = probe->op};
    probe->region.n_outputs = 1;
    return leaves.n <= sizeof probe->leaves / sizeof *probe->leaves;
}

lb_status lb_product_probe_take(const lb_match_site *site, int runner, int bits, lb_product_probe *probe, lb_err *err)
{
    *probe = (lb_product_probe){.side = bits};
    if (site->region->parts || site->source->collective_matches[bits] || site->region->sides[bits].n_ops < 2 ||
        (probe->op = longest_product(site, runner, bits)) == LB_NONE || !make_region(site, probe))
        return LB_OK;
    LB_TRY(lb_match_site_open(&probe->region, site->source, &probe->site, err));
    lb_status status = lb_match_site_try(&probe->site, bits, bits, &(lb_candidate){0}, &probe->own, err);
    if (status == LB_OK && probe->own.ran) status = lb_sample_take(&probe->site, bits, bits, &probe->sample, err);
    probe->taken = status == LB_OK && probe->own.ran;
    if (!probe->taken) lb_match_site_release(&probe->site);
    return status;
}

/* How the product came out under the candidate; as it does by itself where the candidate is none for it. */
static lb_status try_product(const lb_product_probe *probe, const lb_candidate *candidate, lb_score *score, lb_err *err)
{
    const bool sampled = probe->sample.taken && candidate->local;
    LB_TRY(lb_match_site_try(sampled ? &probe->sample.site : &probe->site, probe->side, probe->side, candidate, score,
                             err));
    if (!score->ran) *score = probe->own;
    return LB_OK;
}

/* A kernel for a whole composite may hold the product, and a precision rounds what other ops store. */
static bool concerns(const lb_candidate *candidate)
{
    return !candidate->n_swaps || candidate->swaps[0].kind != LB_SWAP_FUSE || !strncmp(candidate->name, "finalise:", 9);
}

lb_status lb_product_probe_excludes(const lb_product_probe *probe, const lb_candidate *candidate, bool *excludes,
                                    lb_err *err)
{
    lb_score score;
    *excludes = false;
    if (!probe->taken || !concerns(candidate)) return LB_OK;
    LB_TRY(try_product(probe, candidate, &score, err));
    *excludes = (score.elements - score.matched) * MISSES > score.elements;
    return LB_OK;
}

void lb_product_probe_release(lb_product_probe *probe)
{
    if (!probe->taken) return;
    lb_sample_release(&probe->sample);
    lb_match_site_release(&probe->site);
    probe->taken = false;
}
