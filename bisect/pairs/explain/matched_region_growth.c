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
        const lb_composite *c = &all->rows[i];
        bool more = false;
        if (side->op == LB_NONE || !c->n_ops || c->ops[c->n_ops - 1] != side->op) continue;
        /* A composite that the matched region has already needs no growing, and of several the largest is
         * taken: its kernels include what the smaller ones do. */
        for (uint32_t k = 0; k < c->n_ops && !more; k++) more = !has_op(side->ops, side->n_ops, c->ops[k]);
        if (more && (!best || c->n_ops > best->n_ops)) best = c;
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
static void grow(lb_region_finder *f, lb_matched_region *s, int side, const lb_composite *c)
{
    lb_matched_region whole = {.n_outputs = 1, .composite = c->kind};
    /* Marking the ops of one side closes their partners on the other as well (is_inside), and the
     * marks are undone right after: anchors are closed for this one matched region. */
    for (uint32_t i = 0; i < c->n_ops; i++) f->inside[side][c->ops[i]] = 1;
    bool made = true;
    for (int k = 0; k < 2 && made; k++)
        made = lb_region_finder_make_slice(f, k, LB_NONE, s->sides[k].op + 1, s->sides[k].outputs[0], &whole.sides[k]);
    for (uint32_t i = 0; i < c->n_ops; i++) f->inside[side][c->ops[i]] = 0;
    if (made && (begins_alike(&whole.sides[0]) || begins_alike(&whole.sides[1])) &&
        (s->whole = malloc(sizeof *s->whole))) {
        *s->whole = whole;
        return;
    }
    f->failed |= made && !s->whole && begins_alike(&whole.sides[0]);
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
    way *w = context;
    uint32_t defs[8];
    if (value == LB_NONE) return;
    const lb_program *p = w->f->p[w->side];
    const uint32_t n = lb_slice_flow_defs_of(w->f->flow[w->side], w->op, value, defs, 8);
    /* Nothing before it, or more than 8 writers: not what gathered pieces look like. */
    w->foreign |= n == 0 || n > 8;
    for (uint32_t i = 0; i < n && i < 8 && !w->foreign; i++) {
        const lb_op *op = &p->ops[defs[i]];
        if (op->flags & LB_OP_COLLECTIVE) {
            w->foreign |= !strstr(lb_op_name(p, op), "gather");
            w->gathered++;
            continue;
        }
        w->foreign |= !is_arithmetic(lb_op_name(p, op));
        if (w->foreign || w->f->inside[w->side][defs[i]]) continue;
        w->f->inside[w->side][defs[i]] = 1;
        const uint32_t reader = w->op;
        w->op = defs[i];
        lb_op_each_input(p, op, go_back, w);
        w->op = reader;
    }
}

/* Partial sums correspond where one side leaves a term out, or takes one twice; what each rank brought shows in the
 * whole. The fault then sits between two anchors that look right, and as a whole the contributions can be tried as
 * arithmetic: which of them, counted how often, give the bits. */
static void grow_to_gathered(lb_region_finder *f, lb_matched_region *s)
{
    lb_matched_region whole = {.n_outputs = 1, .composite = LB_COMPOSITE_KIND_COUNT};
    bool made = true;
    for (int side = 0; side < 2; side++) {
        const lb_matched_region_side *x = &s->sides[side];
        /* Where a side has no ops, its output is what the other side's leaf corresponds to. */
        way w = {f, side, x->op, 0, false};
        const lb_program *p = f->p[side];
        if (x->op == LB_NONE) {
            uint32_t at = p->n_ops;
            while (at-- > 0 && !x->n_ops) {
                bool gives = false;
                for (uint32_t k = 0; k < lb_op_outcomes(&p->ops[at]) && lb_slice_op_defines(p, &p->ops[at]); k++)
                    gives |= x->n_leaves == 1 && lb_op_outcome(p, &p->ops[at], k) == x->leaves[0];
                if (gives) break;
            }
            w.op = at < p->n_ops ? at : LB_NONE;
        }
        made = made && w.op != LB_NONE && is_arithmetic(lb_op_name(p, &p->ops[w.op]));
        if (!made) break;
        f->inside[side][w.op] = 1;
        lb_op_each_input(p, &p->ops[w.op], go_back, &w);
        made = !w.foreign && w.gathered > 0;
        whole.sides[side].op = w.op;
    }
    for (int k = 0; k < 2 && made; k++)
        made =
            lb_region_finder_make_slice(f, k, LB_NONE, whole.sides[k].op + 1, s->sides[k].outputs[0], &whole.sides[k]);
    /* The walk back marked ops as it went, on both sides and even where it failed, so that all is
     * cleared. */
    for (int k = 0; k < 2; k++) memset(f->inside[k], 0, f->p[k]->n_ops);
    if (made && (begins_alike(&whole.sides[0]) || begins_alike(&whole.sides[1])) &&
        (s->whole = malloc(sizeof *s->whole))) {
        *s->whole = whole;
        return;
    }
    lb_region_finder_release_side(&whole.sides[0]), lb_region_finder_release_side(&whole.sides[1]);
}

lb_status lb_region_finder_grow(lb_region_finder *f, lb_err *err)
{
    for (int side = 0; side < 2; side++) {
        lb_composites all = {0};
        LB_TRY(lb_composites_find(f->p[side], &all, err));
        for (uint32_t i = 0; i < f->out->n && !f->failed; i++) {
            lb_matched_region *s = &f->out->list[i];
            if (s->whole || s->pair || s->parts || s->sides[0].op == LB_NONE || s->sides[1].op == LB_NONE) continue;
            const lb_composite *c = composite_of(&all, &s->sides[side]);
            if (c) grow(f, s, side, c);
        }
        lb_composites_release(&all);
    }
    /* With the ranks side by side a gather is followed to what each brought, and no growth is
     * needed. */
    for (uint32_t i = 0; i < f->out->n && !f->failed && !f->source->collective_matches[0]; i++) {
        lb_matched_region *s = &f->out->list[i];
        if (!s->whole && !s->pair && !s->parts) grow_to_gathered(f, s);
    }
    return LB_OK;
}
