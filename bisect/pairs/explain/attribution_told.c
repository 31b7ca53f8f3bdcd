/* What is said of a place once it is known what gives its bits: names, the cause, swaps that make the change. Nothing
 * is tried here. */
#include "explain/attribution_finder.h"

#include "kernel/ops.h"

#include <lastbit/compare.h>
#include <stdio.h>
#include <string.h>

/* ---- names ---- */

const lb_value *lb_attribution_output(const lb_attribution_finder *finder, int side)
{
    return lb_matched_region_value(finder->site->source, side, finder->site->region->sides[side].outputs[0]);
}

/* The order in which replay reduces among the runner's ranks; NULL: the region holds no collective that says it. */
static const char *own_rank_order(const lb_attribution_finder *finder, int runner)
{
    const lb_matched_region_source *source = finder->site->source;
    const lb_program_view *view = runner ? source->b : source->a;
    const lb_matched_region_side *side = &finder->site->region->sides[runner];
    for (uint32_t i = 0; i < side->n_ops; i++) {
        const lb_program *program;
        const lb_op *op = &view->program->ops[side->ops[i]];
        const lb_collective *row =
            op->flags & LB_OP_COLLECTIVE ? lb_collective_of_side(view, side->ops[i], &program) : NULL;
        if (row && row->algorithm != LB_NONE) return lb_program_text(program, row->algorithm);
        if (row && !strncmp(lb_op_name(view->program, op), "nccl::", 6)) return "ring";
    }
    return NULL;
}

/* What ops do by themselves has a name where they are one sum or one product. */
const char *lb_attribution_own_name(const lb_attribution_finder *finder, int runner)
{
    bool sum = false, product = false;
    const char *among_ranks = own_rank_order(finder, runner);
    if (among_ranks) return among_ranks;
    for (uint32_t i = 0; i < finder->n[runner]; i++) {
        if (!strcmp(finder->list[runner][i].name, "gloo")) return "gloo";
        sum |= !strcmp(finder->list[runner][i].name, "pairwise");
        product |= !strncmp(finder->list[runner][i].name, "tensorcore", 10);
    }
    /* A user reads "torch:1 against splitk:4" and not "own against splitk:4"; through several ops
     * there is no one order to name. */
    return finder->site->region->sides[0].n_ops != 1 ? "own" : product ? "sequential" : sum ? "torch:1" : "own";
}

const char *lb_attribution_name(const lb_attribution_finder *finder, int runner, uint32_t row)
{
    return row ? finder->list[runner][row].name : lb_attribution_own_name(finder, runner);
}

/* The recorded bits are rounded to a narrower dtype than the runner computes its result in.
 * Wider is no such case: numbers that were rounded to bf16 once do not get their bits back by a
 * cast to f32. */
bool lb_attribution_rounds_at_end(const lb_attribution_finder *finder, int runner, int bits)
{
    const lb_value *mine = lb_attribution_output(finder, runner), *theirs = lb_attribution_output(finder, bits);
    return mine->dtype != theirs->dtype && lb_dtype_is_float(theirs->dtype) &&
           lb_dtype_bits(theirs->dtype) < lb_dtype_bits(mine->dtype);
}

/* ---- swaps ---- */

static void add_swap(lb_attribution_found *found, lb_swap_kind kind, const char *argument)
{
    if (found->n_swaps == 3) return;
    found->kinds[found->n_swaps] = kind;
    snprintf(found->arguments[found->n_swaps++], sizeof *found->arguments, "%s", argument);
}

void lb_attribution_add_rounding(lb_attribution_found *found, const char *dtype)
{
    char storage[48];
    snprintf(storage, sizeof storage, "storage:%s", dtype);
    add_swap(found, LB_SWAP_PRECISION, storage);
}

void lb_attribution_add_swaps(lb_attribution_found *found, const lb_candidate *candidate, const char *narrow)
{
    for (uint32_t i = 0; i < candidate->n_swaps; i++)
        add_swap(found, candidate->swaps[i].kind, candidate->arguments[i]);
    if (narrow) lb_attribution_add_rounding(found, narrow);
}

/* ---- a match ---- */

/* Are there ops among the runner's that add up many numbers? */
static bool has_sums(const lb_attribution_finder *finder, int runner)
{
    const lb_matched_region_side *side = &finder->site->region->sides[runner];
    const lb_program *program = lb_matched_region_program(finder->site->source, runner);
    for (uint32_t i = 0; i < side->n_ops; i++) {
        lb_op_form form;
        const lb_op_row *row = lb_op_find(lb_op_name(program, &program->ops[side->ops[i]]), &form);
        if (row && row->flags & (LB_ROW_REDUCTION | LB_ROW_MATMUL)) return true;
    }
    return false;
}

static bool stores_f64(const lb_attribution_finder *finder, int side)
{
    const lb_matched_region_side *s = &finder->site->region->sides[side];
    const lb_program *program = lb_matched_region_program(finder->site->source, side);
    for (uint32_t i = 0; i < s->n_ops; i++)
        for (uint32_t k = 0; k < program->ops[s->ops[i]].results; k++) {
            const uint32_t v = lb_op_results(program, &program->ops[s->ops[i]])[k];
            if (v != LB_NONE && program->values[v].dtype == LB_F64) return true;
        }
    return false;
}

/* What gives the bits as well, but for the same thing by another name. */
static void list_others(const lb_attribution_finder *finder, int runner, const char *narrow,
                        const lb_attribution_scan *scan)
{
    lb_attribution_found *out = finder->found;
    size_t used = 0;
    for (uint32_t i = 1; i < scan->n; i++) {
        const char *name = finder->list[runner][scan->matches[i]].name;
        if ((narrow && !strcmp(name, narrow)) || !strcmp(name, lb_attribution_own_name(finder, runner))) continue;
        if (used + strlen(name) + 3 > sizeof out->also) break;
        used += (size_t)snprintf(out->also + used, sizeof out->also - used, "%s%s", used ? "; " : "",
                                 lb_attribution_name(finder, runner, scan->matches[i]));
    }
}

/* A match under "f64" must not become the claim that a side computed in f64: any form with fewer roundings gives the
 * same bits. Where no sum could have been carried in f64, and nothing was stored in it, that is all that is said. */
static void say_rounded_once(const lb_attribution_finder *finder, int runner)
{
    lb_attribution_found *out = finder->found;
    if (has_sums(finder, runner) || stores_f64(finder, !runner)) return;
    out->cause = LB_CAUSE_KERNEL;
    snprintf(out->schedule, sizeof out->schedule, "rounded once");
    snprintf(out->why, sizeof out->why,
             "the %s side's ops evaluated exactly and rounded once at the end give these bits: "
             "the other form rounds less on the way (a fused multiply-add, "
             "a division where there was a product with the reciprocal, …)",
             runner ? "second" : "first");
}

void lb_attribution_tell_match(lb_attribution_finder *finder, int runner, int bits, const lb_attribution_scan *scan)
{
    lb_attribution_found *out = finder->found;
    const lb_candidate *candidate = &finder->list[runner][scan->matches[0]];
    const char *narrow = lb_attribution_rounds_at_end(finder, runner, bits)
                             ? lb_dtype_name(lb_attribution_output(finder, bits)->dtype)
                             : NULL;
    out->proof = LB_PROOF_BITS, out->reversed = runner == 1;
    out->matched = out->elements = scan->best_score.elements;
    out->tried = scan->tried, out->excluded = scan->excluded;
    /* A narrower dtype at the end outranks the order: it changes nearly every element, the order only some, and naming
     * the order alone would not give the bits. */
    out->cause = narrow ? LB_CAUSE_PRECISION : candidate->cause;
    out->fused = lb_candidate_is_fused(candidate);
    if (narrow && scan->matches[0] && strcmp(candidate->name, narrow))
        snprintf(out->schedule, sizeof out->schedule, "%s, %.80s", narrow, candidate->name);
    else
        snprintf(out->schedule, sizeof out->schedule, "%s",
                 narrow ? narrow : lb_attribution_name(finder, runner, scan->matches[0]));
    list_others(finder, runner, narrow, scan);
    /* Swaps are carried out in A's program by the budget: what was found in B's has no meaning there. */
    if (runner == 0 && bits == 1) lb_attribution_add_swaps(out, candidate, narrow);
    if (!strcmp(candidate->name, "f64") && !narrow) say_rounded_once(finder, runner);
    if (*candidate->alike && scan->matches[0])
        snprintf(out->why, sizeof out->why, "for this number of terms %.80s is the same order as %.90s",
                 candidate->name, candidate->alike);
    lb_attribution_memory_note(finder->memory, candidate->name);
}

void lb_attribution_tell_input(lb_attribution_finder *finder, lb_proof proof, const lb_score *score, const char *why)
{
    lb_attribution_found *out = finder->found;
    out->cause = LB_CAUSE_INPUT, out->proof = proof;
    out->matched = score->matched, out->elements = score->elements;
    snprintf(out->why, sizeof out->why, "%s", why);
}

/* ---- a side's own bits, and none ---- */

void lb_attribution_keep_own(lb_attribution_finder *finder, const lb_candidate *candidate)
{
    /* What A's program needs to give A's own bits is kept apart from the cause: a budget starts its
     * replay from these swaps and then makes the change. */
    finder->found->n_own = candidate->n_swaps;
    for (uint32_t i = 0; i < candidate->n_swaps; i++) {
        finder->found->own[i].kind = candidate->swaps[i].kind;
        snprintf(finder->found->own_arguments[i], sizeof *finder->found->own_arguments, "%s", candidate->arguments[i]);
    }
}

/* One op on both sides, whose recorded bits lie inside its bound on that side's own inputs: what is unknown is an order
 * or a kernel, not what was computed. */
static bool is_the_library_s(const lb_attribution_finder *finder)
{
    bool inside = finder->site->region->pair;
    for (int side = 0; side < 2 && inside; side++)
        if (lb_match_site_reaches(finder->site, 0, side, &inside, NULL) != LB_OK) return false;
    return inside;
}

void lb_attribution_tell_unexplained(lb_attribution_finder *finder)
{
    lb_attribution_found *out = finder->found;
    lb_difference difference;
    out->cause = LB_CAUSE_UNEXPLAINED, out->proof = LB_PROOF_NONE;
    if (!out->elements && finder->site->targets[0] && finder->site->targets[1] &&
        lb_compare_numbers(&finder->site->targets[0][0], &finder->site->targets[1][0], &difference, NULL) == LB_OK)
        out->elements = difference.elements, out->matched = difference.elements - difference.differing;
    if (!out->tried)
        snprintf(out->why, sizeof out->why, "nothing could be tried: %s",
                 *finder->site->why ? finder->site->why : "no kernel here");
    else
        snprintf(out->why, sizeof out->why, "under none of %u candidates do the recorded inputs give the recorded bits",
                 out->tried);
    if (out->tried && is_the_library_s(finder)) {
        const size_t said = strlen(out->why);
        out->proof = LB_PROOF_BOUND;
        snprintf(out->why + said, sizeof out->why - said,
                 "; each side's elements lie inside the op's bound on its own inputs: "
                 "an order or a kernel of the library's own, which it chooses by processor and shapes");
    }
}
