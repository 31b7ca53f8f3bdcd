/* Growing stretches to the composites that they are part of: see stretch.h. */
#include "stretch_finder.h"

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
static const lb_composite *composite_of(const lb_composites *all, const lb_stretch_side *side)
{
    const lb_composite *best = NULL;
    for (uint32_t i = 0; i < all->n; i++) {
        const lb_composite *c = &all->rows[i];
        bool more = false;
        if (side->op == LB_NONE || !c->n_ops || c->ops[c->n_ops - 1] != side->op) continue;
        for (uint32_t k = 0; k < c->n_ops && !more; k++) more = !has_op(side->ops, side->n_ops, c->ops[k]);
        if (more && (!best || c->n_ops > best->n_ops)) best = c;
    }
    return best;
}

static bool begins_alike(const lb_stretch_side *side)
{
    for (uint32_t i = 0; i < side->n_leaves; i++)
        if (side->partners[i] == LB_NONE) return false;
    return side->n_ops > 0;
}

/* The stretch with every op of the composite on that side, back to what both sides have before it. */
static void grow(lb_finder *f, lb_stretch *s, int side, const lb_composite *c)
{
    lb_stretch whole = {.n_outputs = 1, .composite = c->kind};
    for (uint32_t i = 0; i < c->n_ops; i++) f->inside[side][c->ops[i]] = 1;
    bool made = true;
    for (int k = 0; k < 2 && made; k++)
        made = lb_finder_make_slice(f, k, LB_NONE, s->sides[k].op + 1, s->sides[k].outputs[0], &whole.sides[k]);
    for (uint32_t i = 0; i < c->n_ops; i++) f->inside[side][c->ops[i]] = 0;
    if (made && (begins_alike(&whole.sides[0]) || begins_alike(&whole.sides[1])) &&
        (s->whole = malloc(sizeof *s->whole))) {
        *s->whole = whole;
        return;
    }
    f->failed |= made && !s->whole && begins_alike(&whole.sides[0]);
    lb_finder_release_side(&whole.sides[0]), lb_finder_release_side(&whole.sides[1]);
}

lb_status lb_finder_grow(lb_finder *f, lb_err *err)
{
    for (int side = 0; side < 2; side++) {
        lb_composites all = {0};
        LB_TRY(lb_composites_find(f->p[side], &all, err));
        for (uint32_t i = 0; i < f->out->n && !f->failed; i++) {
            lb_stretch *s = &f->out->list[i];
            if (s->whole || s->pair || s->parts || s->sides[0].op == LB_NONE || s->sides[1].op == LB_NONE)
                continue;
            const lb_composite *c = composite_of(&all, &s->sides[side]);
            if (c) grow(f, s, side, c);
        }
        lb_composites_release(&all);
    }
    return LB_OK;
}
