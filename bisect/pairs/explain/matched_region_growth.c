/* Growing matched regions to the composites, or to the sums of what was gathered, that they are part of: see
 * matched_region.h. Dense anchors have a price: where products with the weights line up, an MoE finalise is cut in two,
 * and no kernel for the whole can be tried on a half. Growing keeps the small matched region and adds the large one as
 * `whole`, which is told only if it explains more. */
#include "explain/matched_region_finder.h"

#include <lastbit/composite.h>
#include <stdlib.h>
#include <string.h>

static bool has_op(const uint32_t *ops, uint32_t n, uint32_t op)
{
    for (uint32_t i = 0; i < n; i++)
        if (ops[i] == op) return true;
    return false;
}

/* The largest composite that ends where the side does and has ops that the side has not; NULL. */
static const lb_composite *composite_of(const lb_composites *all, const lb_matched_region_side *side)
{
    const lb_composite *best = NULL;
    for (uint32_t i = 0; i < all->n; i++) {
        const lb_composite *composite = &all->rows[i];
        bool more = false;
        if (side->op == LB_NONE || !composite->n_ops || composite->ops[composite->n_ops - 1] != side->op) continue;
        /* A composite that the matched region has already needs no growing, and of several the largest is
         * taken: its kernels include what the smaller ones do. */
        for (uint32_t k = 0; k < composite->n_ops && !more; k++)
            more = !has_op(side->ops, side->n_ops, composite->ops[k]);
        if (more && (!best || composite->n_ops > best->n_ops)) best = composite;
    }
    return best;
}

/* One side that can run on the other's bits is enough to try candidates. With a leaf that has no
 * partner neither could, and the grown matched region is dropped. */
static bool begins_alike(const lb_matched_region_side *side)
{
    for (uint32_t i = 0; i < side->n_leaves; i++)
        if (side->partners[i] == LB_NONE) return false;
    return side->n_ops > 0;
}

/* The matched region with every op of the composite on that side, back to what both sides have before it. */
static void grow(lb_region_finder *finder, lb_matched_region *region, int side, const lb_composite *composite)
{
    lb_matched_region whole = {.n_outputs = 1, .composite = composite->kind};
    /* Marking the ops of one side closes their partners on the other as well (is_inside), and the
     * marks are undone right after: anchors are closed for this one matched region. */
    for (uint32_t i = 0; i < composite->n_ops; i++) finder->inside[side][composite->ops[i]] = 1;
    bool made = true;
    for (int k = 0; k < 2 && made; k++)
        made = lb_region_finder_make_slice(finder, k, LB_NONE, region->sides[k].op + 1, region->sides[k].outputs[0],
                                           &whole.sides[k]);
    for (uint32_t i = 0; i < composite->n_ops; i++) finder->inside[side][composite->ops[i]] = 0;
    if (made && (begins_alike(&whole.sides[0]) || begins_alike(&whole.sides[1])) &&
        (region->whole = malloc(sizeof *region->whole))) {
        *region->whole = whole;
        return;
    }
    finder->failed |= made && !region->whole && begins_alike(&whole.sides[0]);
    lb_region_finder_release_side(&whole.sides[0]), lb_region_finder_release_side(&whole.sides[1]);
}

/* ---- sums of what was gathered ---- */

/* Prefixes, so that overloads and in-place forms (add_, add.Tensor, sum.dim_IntList) count alike.
 * What is none of these on the way means more than a sum, and the growth is given up rather than
 * made of half an idea. */
static bool is_arithmetic(const char *name)
{
    static const char *const names[] = {"add",   "sub", "mul",   "div",      "sum",  "mean",
                                        "stack", "cat", "clone", "_to_copy", "zeros"};
    if (strncmp(name, "aten::", 6)) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(name + 6, names[i], strlen(names[i]))) return true;
    return false;
}

typedef struct way {
    lb_region_finder *f;
    int side;
    uint32_t op; /* whose inputs are followed */
    uint32_t gathered;
    bool foreign;
} way;

/* Back from an op to what an all_gather gave; every op on the way is marked as inside. */
static void go_back(void *context, uint32_t value)
{
    way *way = context;
    uint32_t defs[8];
    if (value == LB_NONE) return;
    const lb_program *program = way->f->p[way->side];
    const uint32_t n = lb_slice_flow_defs_of(way->f->flow[way->side], way->op, value, defs, 8);
    /* Nothing before it, or more than 8 writers: not what gathered pieces look like. */
    way->foreign |= n == 0 || n > 8;
    for (uint32_t i = 0; i < n && i < 8 && !way->foreign; i++) {
        const lb_op *op = &program->ops[defs[i]];
        if (op->flags & LB_OP_COLLECTIVE) {
            way->foreign |= !strstr(lb_op_name(program, op), "gather");
            way->gathered++;
            continue;
        }
        way->foreign |= !is_arithmetic(lb_op_name(program, op));
        if (way->foreign || way->f->inside[way->side][defs[i]]) continue;
        way->f->inside[way->side][defs[i]] = 1;
        const uint32_t reader = way->op;
        way->op = defs[i];
        lb_op_each_input(program, op, go_back, way);
        way->op = reader;
    }
}

/* Partial sums correspond where one side leaves a term out, or takes one twice; what each rank brought shows in the
 * whole. The fault then sits between two anchors that look right, and as a whole the contributions can be tried as
 * arithmetic: which of them, counted how often, give the bits. */
static void grow_to_gathered(lb_region_finder *finder, lb_matched_region *region)
{
    lb_matched_region whole = {.n_outputs = 1, .composite = LB_COMPOSITE_KIND_COUNT};
    bool made = true;
    for (int side = 0; side < 2; side++) {
        const lb_matched_region_side *x = &region->sides[side];
        /* Where a side has no ops, its output is what the other side's leaf corresponds to. */
        way way = {finder, side, x->op, 0, false};
        const lb_program *program = finder->p[side];
        if (x->op == LB_NONE) {
            uint32_t at = program->n_ops;
            while (at-- > 0 && !x->n_ops) {
                bool gives = false;
                for (uint32_t k = 0;
                     k < lb_op_outcomes(&program->ops[at]) && lb_slice_op_defines(program, &program->ops[at]); k++)
                    gives |= x->n_leaves == 1 && lb_op_outcome(program, &program->ops[at], k) == x->leaves[0];
                if (gives) break;
            }
            way.op = at < program->n_ops ? at : LB_NONE;
        }
        made = made && way.op != LB_NONE && is_arithmetic(lb_op_name(program, &program->ops[way.op]));
        if (!made) break;
        finder->inside[side][way.op] = 1;
        lb_op_each_input(program, &program->ops[way.op], go_back, &way);
        made = !way.foreign && way.gathered > 0;
        whole.sides[side].op = way.op;
    }
    for (int k = 0; k < 2 && made; k++)
        made = lb_region_finder_make_slice(finder, k, LB_NONE, whole.sides[k].op + 1, region->sides[k].outputs[0],
                                           &whole.sides[k]);
    /* The walk back marked ops as it went, on both sides and even where it failed, so that all is
     * cleared. */
    for (int k = 0; k < 2; k++) memset(finder->inside[k], 0, finder->p[k]->n_ops);
    if (made && (begins_alike(&whole.sides[0]) || begins_alike(&whole.sides[1])) &&
        (region->whole = malloc(sizeof *region->whole))) {
        *region->whole = whole;
        return;
    }
    lb_region_finder_release_side(&whole.sides[0]), lb_region_finder_release_side(&whole.sides[1]);
}

lb_status lb_region_finder_grow(lb_region_finder *finder, lb_err *err)
{
    for (int side = 0; side < 2; side++) {
        lb_composites all = {0};
        LB_TRY(lb_composites_find(finder->p[side], &all, err));
        for (uint32_t i = 0; i < finder->out->n && !finder->failed; i++) {
            lb_matched_region *region = &finder->out->list[i];
            if (region->whole || region->pair || region->parts || region->sides[0].op == LB_NONE ||
                region->sides[1].op == LB_NONE)
                continue;
            const lb_composite *composite = composite_of(&all, &region->sides[side]);
            if (composite) grow(finder, region, side, composite);
        }
        lb_composites_release(&all);
    }
    /* With the ranks side by side a gather is followed to what each brought, and no growth is
     * needed. */
    for (uint32_t i = 0; i < finder->out->n && !finder->failed && !finder->source->collective_matches[0]; i++) {
        lb_matched_region *region = &finder->out->list[i];
        if (!region->whole && !region->pair && !region->parts) grow_to_gathered(finder, region);
    }
    return LB_OK;
}
