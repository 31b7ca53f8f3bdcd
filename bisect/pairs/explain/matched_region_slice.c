/* What a value follows from, back to where both sides have something: see matched_region_finder.h. Contents are
 * followed through storages (slice.h of replay), so that views need no rule: ops read windows of what some op wrote. A
 * backward slice (Weiser 1981) over one recorded execution, cut off at anchors. What is cut becomes a leaf, a value
 * whose recorded bits are handed in; what is inside is run again. */
#include "explain/matched_region_finder.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* The recursion below is as deep as a slice is long, and each candidate runs every op of it: the cap
 * bounds both. Two programs without an anchor for 4096 ops hardly correspond; the slice ends there in
 * leaves without partners. */
enum { MOST_DEFS = 64, MOST_OPS = 4096 };

bool lb_region_finder_can_run(const lb_region_finder *finder, int side, uint32_t at)
{
    const lb_op *op = &finder->p[side]->ops[at];
    /* A draw cannot be run again with the same outcome unless its generator was recorded at that
     * point; as a leaf it is its recorded numbers. */
    if (op->flags & LB_OP_COLLECTIVE) return lb_matched_region_is_met(finder->source, side, at);
    return lb_op_computes(finder->p[side], op) && !(op->flags & LB_OP_RANDOM);
}

static void add_leaf(lb_region_finder *finder, int side, const lb_op *op, uint32_t at, int64_t storage,
                     lb_region_finder_values *leaves, lb_region_finder_values *partners)
{
    uint32_t other = lb_region_finder_partner_op(finder, side, at);
    /* A partner of the alignment goes before the end of another matched region, which is only known
     * through it. */
    if (other == LB_NONE) other = lb_region_finder_end(finder, side, at);
    const lb_op *o = other == LB_NONE ? NULL : &finder->p[!side]->ops[other];
    for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
        uint32_t v = lb_op_outcome(finder->p[side], op, k), w = LB_NONE;
        if (v == LB_NONE || finder->p[side]->values[v].storage != storage || lb_region_finder_values_has(leaves, v))
            continue;
        if (o && k < lb_op_outcomes(o)) w = lb_op_outcome(finder->p[!side], o, k);
        if (!o && !side && lb_region_finder_is_joined(finder, at)) w = lb_region_finder_joined_outcome(finder, at, k);
        lb_region_finder_values_add(leaves, v), lb_region_finder_values_add(partners, w);
    }
}

typedef struct slicing {
    lb_region_finder *f;
    int side;
    uint32_t op; /* whose inputs are followed */
    bool first;  /* it is the reader of what the slice gives */
    lb_region_finder_values *ops, *leaves, *partners;
} slicing;

static void follow(void *context, uint32_t value);

static void enter(slicing *entered, uint32_t def, int64_t storage)
{
    lb_region_finder *finder = entered->f;
    const lb_program *program = finder->p[entered->side];
    const lb_op *op = &program->ops[def];
    /* The mark makes the walk linear: shared values (a residual stream) would otherwise be followed
     * once for each path, exponentially often. */
    if (finder->marks[entered->side][def]) return;
    /* The slice's own last op may be an end that the first round found; held back by it, the slice
     * would be empty. */
    const bool anchored =
        (def != finder->opened[entered->side] && lb_region_finder_partner_op(finder, entered->side, def) != LB_NONE) ||
        (!entered->side && lb_region_finder_is_joined(finder, def)) ||
        (!entered->first && lb_region_finder_end(finder, entered->side, def) != LB_NONE);
    if (!lb_region_finder_can_run(finder, entered->side, def) || anchored || entered->ops->n >= MOST_OPS) {
        add_leaf(finder, entered->side, op, def, storage, entered->leaves, entered->partners);
        return;
    }
    uint32_t n;
    const uint32_t *members = lb_matched_region_members(finder->source, entered->side, &def, &n);
    /* All members of a collective enter together, since none can be run without the others. */
    for (uint32_t i = 0; i < n; i++) {
        if (finder->marks[entered->side][members[i]]) continue;
        finder->marks[entered->side][members[i]] = 1;
        lb_region_finder_values_add(entered->ops, members[i]);
        slicing inner = *entered;
        inner.op = members[i], inner.first = false;
        lb_op_each_input(program, &program->ops[members[i]], follow, &inner);
    }
}

static void follow(void *context, uint32_t value)
{
    slicing *slicing = context;
    uint32_t defs[MOST_DEFS];
    if (value == LB_NONE) return;
    const lb_program *program = slicing->f->p[slicing->side];
    uint32_t n = lb_slice_flow_defs_of(slicing->f->flow[slicing->side], slicing->op, value, defs, MOST_DEFS);
    for (uint32_t i = 0; i < n && i < MOST_DEFS; i++) enter(slicing, defs[i], program->values[value].storage);
}

/* The last of the ops, of the rank that the output belongs to. */
static uint32_t last_op(const lb_region_finder *finder, int side, const lb_region_finder_values *ops, uint32_t output)
{
    const lb_program_view *ranks = side ? finder->source->b : finder->source->a;
    uint32_t row;
    if (!finder->source->collective_matches[side]) return ops->n ? ops->list[ops->n - 1] : LB_NONE;
    const lb_program *own = lb_program_view_recorded(ranks, output, &row);
    for (uint32_t i = ops->n; i-- > 0;)
        if (ranks->parts[lb_program_view_part_of(ranks, ops->list[i])].program == own) return ops->list[i];
    return LB_NONE;
}

/* What gives `value` as op `reader` reads it; reader LB_NONE: as it is left by op `before - 1`. */
bool lb_region_finder_make_slice(lb_region_finder *finder, int side, uint32_t reader, uint32_t before, uint32_t value,
                                 lb_matched_region_side *out)
{
    lb_region_finder_values ops = {0}, leaves = {0}, partners = {0};
    slicing slicing = {finder, side, reader, true, &ops, &leaves, &partners};
    const lb_program *program = finder->p[side];
    int64_t storage = program->values[value].storage;
    memset(out, 0, sizeof *out);
    if (reader != LB_NONE)
        follow(&slicing, value);
    else
        /* A module's output has no reader among the ops; the last op that writes its storage stands
         * for one. */
        for (uint32_t i = before; i-- > 0;) {
            bool gives = false;
            for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[i]) && lb_slice_op_defines(program, &program->ops[i]);
                 k++) {
                uint32_t v = lb_op_outcome(program, &program->ops[i], k);
                gives |= v != LB_NONE && program->values[v].storage == storage;
            }
            if (!gives) continue;
            enter(&slicing, i, storage);
            break;
        }
    /* Only what was marked is cleared: clearing all would cost the whole program for each of
     * thousands of slices. */
    for (uint32_t i = 0; i < ops.n; i++) finder->marks[side][ops.list[i]] = 0;
    if (ops.n) qsort(ops.list, ops.n, sizeof *ops.list, lb_by_u32);
    finder->failed |= ops.failed || leaves.failed || partners.failed;
    *out = (lb_matched_region_side){.ops = ops.list,
                                    .n_ops = ops.n,
                                    .leaves = leaves.list,
                                    .n_leaves = leaves.n,
                                    .partners = partners.list,
                                    .outputs = malloc(sizeof *out->outputs)};
    if (out->outputs) *out->outputs = value;
    finder->failed |= !out->outputs;
    out->op = last_op(finder, side, &ops, value);
    return !finder->failed;
}

void lb_region_finder_release_side(lb_matched_region_side *side)
{
    free(side->ops), free(side->leaves), free(side->partners), free(side->outputs);
    memset(side, 0, sizeof *side);
}
