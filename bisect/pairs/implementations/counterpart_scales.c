/* Products whose results differ by one factor: see counterpart_scales.h. */
#include "implementations/counterpart_scales.h"

#include "implementations/counterpart_orders.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Is each element of B's value one factor, not 1, times what it stands for? */
static bool is_scaled(const lb_counterparts *all, const lb_counterpart *c, const lb_exact_side *a,
                      const lb_exact_side *b)
{
    const int64_t n = lb_layout_numel(&b->program->values[c->b].layout);
    uint8_t *known = NULL;
    double noise, *x = b->kept[c->b] ? lb_counterpart_expected(all, c, a, n, &known, &noise) : NULL;
    double both = 0, size = 0, off = 0;
    for (int64_t i = 0; x && i < n; i++)
        if (known[i]) both += x[i] * b->kept[c->b][i], size += x[i] * x[i];
    const double factor = size > 0 ? both / size : 0;
    for (int64_t i = 0; x && i < n; i++)
        if (known[i]) off += (b->kept[c->b][i] - factor * x[i]) * (b->kept[c->b][i] - factor * x[i]);
    const bool scaled = factor != 0 && fabs(factor - 1) > 1e-9 && off <= 0x1p-60 * factor * factor * size;
    free(x), free(known);
    return scaled;
}

/* `layers.0.q_proj` and `layers.2.q_proj`. */
static bool are_alike(const char *x, const char *y)
{
    for (;; x++, y++) {
        x += strspn(x, "0123456789"), y += strspn(y, "0123456789");
        if (*x != *y) return false;
        if (!*x) return true;
    }
}

static bool is_like(const lb_exact_side *b, uint32_t x, uint32_t y)
{
    const lb_program *p = b->program;
    if (b->graph.giver[x] == LB_NONE || b->graph.giver[y] == LB_NONE) return false;
    const lb_op *one = &p->ops[b->graph.giver[x]], *other = &p->ops[b->graph.giver[y]];
    return one->name == other->name && lb_layout_same_shape(&p->values[x].layout, &p->values[y].layout) &&
           are_alike(lb_op_layer(p, one), lb_op_layer(p, other));
}

static void drop(lb_counterpart *c)
{
    c->kind = LB_COUNTERPART_DROPPED, c->state = LB_COUNTERPART_UNKNOWN;
}

void lb_counterpart_scales_drop(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b,
                                const uint32_t *met_of_b)
{
    for (uint32_t i = 0; i < all->n; i++) {
        lb_counterpart *c = &all->list[i];
        if (c->kind != LB_COUNTERPART_ANCHOR || c->state != LB_COUNTERPART_APART || c->in_parts ||
            !lb_counterpart_orders_leads_to_same(b, c->b, met_of_b) || !is_scaled(all, c, a, b))
            continue;
        drop(c);
        for (uint32_t k = 0; k < all->n; k++) {
            lb_counterpart *d = &all->list[k];
            if (d->kind == LB_COUNTERPART_ANCHOR && d->state == LB_COUNTERPART_APART && is_like(b, c->b, d->b)) drop(d);
        }
    }
}
