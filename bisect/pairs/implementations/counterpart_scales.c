/* What differs by one factor: see counterpart_scales.h. */
#include "implementations/counterpart_scales.h"

#include "counterparts/counterpart_orders.h"
#include "implementations/differences.h"
#include "shadow/shadow_numbers.h"

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

/* ---- losses ---- */

/* What losses are scaled by before backward: a power of two, a number of micro-batches or of ranks, or one over
 * these. */
static bool is_scale(double ratio)
{
    const double size = ratio < 1 ? 1 / ratio : ratio;
    return ratio > 0 && size > 1.5 && size <= 0x1p24 && fabs(size - round(size)) <= 1e-9 * size;
}

uint32_t lb_counterpart_scales_seeded(const lb_exact_side *s, uint32_t at)
{
    static const char *const seeds[] = {"aten::ones_like"};
    const lb_program *p = s->program;
    const lb_op *op = &p->ops[at];
    if (op->phase != LB_PHASE_BACKWARD || lb_op_name_among(p, op, seeds, 1) < 0 || !op->args || !lb_op_outcomes(op) ||
        lb_op_args(p, op)->tag != LB_ARG_VALUE || lb_op_args(p, op)->u.value == LB_NONE)
        return LB_NONE;
    const uint32_t loss = lb_value_graph_whole(&s->graph, lb_op_args(p, op)->u.value);
    return lb_layout_numel(&p->values[loss].layout) == 1 ? loss : LB_NONE;
}

/* All losses that a side goes back from, together. */
static double total_loss(const lb_exact_side *s)
{
    double total = 0;
    for (uint32_t i = 0; i < s->program->n_ops; i++) {
        const uint32_t loss = lb_counterpart_scales_seeded(s, i);
        if (loss != LB_NONE) total += s->kept[loss] ? *s->kept[loss] : NAN;
    }
    return total;
}

static bool is_number(const lb_implementations *x, const lb_counterpart *c)
{
    return lb_layout_numel(&x->sides[1].program->values[c->b].layout) == 1;
}

static bool is_together(double ratio)
{
    return fabs(ratio - 1) <= 1e-9;
}

void lb_counterpart_scales_settle_losses(lb_implementations *x)
{
    uint32_t finals = 0, apart = 0;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        if (c->kind == LB_COUNTERPART_FINAL && c->state != LB_COUNTERPART_SAME) return;
        finals += c->kind == LB_COUNTERPART_FINAL;
        if (c->kind != LB_COUNTERPART_EXIT || c->state != LB_COUNTERPART_APART) continue;
        if (!is_number(x, c)) return;
        apart++;
    }
    const double ratio = finals && apart ? total_loss(&x->sides[1]) / total_loss(&x->sides[0]) : NAN;
    if (!is_together(ratio) && !is_scale(ratio)) return;
    x->loss.ratio = is_together(ratio) ? 0 : ratio;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        lb_counterpart *c = &x->counterparts.list[i];
        if (c->kind == LB_COUNTERPART_EXIT && c->state == LB_COUNTERPART_APART) c->state = LB_COUNTERPART_SAME;
    }
}

/* Runs go back from numbers in the place of ones; NaN: from ones again. False when out of memory. */
static bool seed(lb_exact_side *s, double number)
{
    for (uint32_t i = 0; i < s->program->n_ops; i++) {
        if (lb_counterpart_scales_seeded(s, i) == LB_NONE) continue;
        double *numbers = isnan(number) ? NULL : malloc(sizeof *numbers);
        if (!numbers && !isnan(number)) return false;
        if (numbers) *numbers = number;
        lb_exact_side_hold(s, lb_op_outcome(s->program, &s->program->ops[i], 0), numbers);
    }
    return true;
}

static bool is_doubled(const double *one, const double *other, int64_t n)
{
    double size = 0;
    for (int64_t i = 0; i < n; i++) size = fmax(size, fabs(one[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(other[i] - 2 * one[i]) <= 0x1p-40 * size)) return false;
    return size > 0;
}

/* Twice the loss: what is doubled? */
static lb_status find_linear(lb_implementations *x, int side, lb_err *err)
{
    lb_exact_side *s = &x->sides[side];
    double **kept = NULL;
    x->loss.linear[side] = calloc((size_t)s->program->n_values + 1, 1);
    if (!x->loss.linear[side] || !seed(s, 2)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for losses");
    const lb_status status = lb_exact_side_run_aside(s, &kept, err);
    for (uint32_t v = 0; v < s->program->n_values && status == LB_OK; v++)
        x->loss.linear[side][v] = s->kept[v] && kept[v] && s->graph.giver[v] != LB_NONE &&
                                  is_doubled(s->kept[v], kept[v], lb_layout_numel(&s->program->values[v].layout));
    lb_exact_side_free_kept(s, kept);
    seed(s, NAN);
    return status;
}

static bool is_in_units(const lb_implementations *x, uint32_t v)
{
    const lb_exact_side *a = &x->sides[0];
    return x->loss.in_units && x->loss.linear[0][v] && a->program->ops[a->graph.giver[v]].phase == LB_PHASE_BACKWARD;
}

double lb_counterpart_scales_own(const lb_implementations *x, uint32_t v)
{
    return is_in_units(x, v) ? 1 / x->loss.ratio : 1;
}

/* As if A went back from B's loss, up to what leaves backward. Its next runs find none of their numbers here. */
static void put_in_units(lb_implementations *x)
{
    lb_exact_side *a = &x->sides[0];
    const double ratio = x->loss.ratio;
    x->loss.in_units = true;
    a->former.is_there = false;
    for (uint32_t v = 0; v < a->program->n_values; v++) {
        if (!is_in_units(x, v)) continue;
        lb_quantity *q = &a->quantities[v];
        for (int64_t i = 0; i < lb_layout_numel(&a->program->values[v].layout); i++) a->kept[v][i] *= ratio;
        lb_exact_side_note_change(a, v);
        a->noise[v] *= ratio;
        q->mean[2] *= ratio, q->scale[2] *= ratio, q->noise[2] *= ratio; /* the others are by its size (quantity.c) */
        q->tells &= !q->whole;
    }
}

/* Has a side the other one's loss, too, before its own factor? Otherwise the factor is one of the loss itself. */
static bool has_other_loss(const lb_implementations *x, const lb_counterpart *c)
{
    return x->met[0][x->counterparts.pieces[c->first].tensor] != LB_NONE || x->met[1][c->b] != LB_NONE;
}

/* Has one side all the losses that the other goes back from, before its own factor? What leaves may be their sum, which
 * is the same on both. */
static bool have_losses_of_other(const lb_implementations *x)
{
    for (int k = 0; k < 2; k++) {
        uint32_t n = 0, met = 0;
        for (uint32_t i = 0; i < x->sides[k].program->n_ops; i++) {
            const uint32_t loss = lb_counterpart_scales_seeded(&x->sides[k], i);
            n += loss != LB_NONE, met += loss != LB_NONE && x->met[k][loss] != LB_NONE;
        }
        if (n && met == n) return true;
    }
    return false;
}

/* Losses that are apart by the ratio, or, where they are the same together, that both sides go back from. False: some
 * other number that leaves forward is apart, or all that is apart leaves there. */
static bool list_scaled(const lb_implementations *x, double ratio, uint32_t *rows, uint32_t *n)
{
    bool updated = false;
    *n = 0;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        updated |= c->kind == LB_COUNTERPART_FINAL && c->state == LB_COUNTERPART_APART;
        if (c->kind != LB_COUNTERPART_EXIT || c->state != LB_COUNTERPART_APART) continue;
        const double *a = x->sides[0].kept[x->counterparts.pieces[c->first].tensor], *b = x->sides[1].kept[c->b];
        if (!is_number(x, c) || !a || !b) return false;
        const bool other = has_other_loss(x, c), scaled = fabs(*b - ratio * *a) <= 1e-9 * fabs(*b);
        if (!is_together(ratio) && !scaled && other) continue; /* a norm that nothing reads, beside another number */
        if (!is_together(ratio) && (!scaled || !other)) return false;
        rows[(*n)++] = i;
    }
    return updated && (*n || (!is_together(ratio) && have_losses_of_other(x)));
}

static bool is_all_updated_the_same(const lb_implementations *x)
{
    for (uint32_t i = 0; i < x->counterparts.n; i++)
        if (x->counterparts.list[i].kind == LB_COUNTERPART_FINAL &&
            x->counterparts.list[i].state != LB_COUNTERPART_SAME)
            return false;
    return true;
}

/* B goes back from a loss with A's factor; where that does not help, from its own again. */
static lb_status try_scaled(lb_implementations *x, lb_err *err)
{
    lb_exact_side *b = &x->sides[1];
    if (!seed(b, 1 / x->loss.ratio)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for losses");
    LB_TRY(lb_exact_side_run(b, err));
    lb_counterparts_compare(&x->counterparts, &x->sides[0], b);
    x->loss.alone = is_all_updated_the_same(x);
    if (x->loss.alone) return LB_OK;
    seed(b, NAN);
    return lb_exact_side_run(b, err);
}

/* Losses, and numbers of one side that the other has elsewhere: they stand for nothing beside each other. */
static void drop_numbers(lb_implementations *x)
{
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        lb_counterpart *c = &x->counterparts.list[i];
        if (c->kind == LB_COUNTERPART_EXIT && c->state == LB_COUNTERPART_APART && is_number(x, c) &&
            has_other_loss(x, c))
            drop(c);
    }
}

/* `any`: losses are apart by the ratio where they leave. */
static lb_status settle_scaled(lb_implementations *x, bool any, lb_err *err)
{
    for (int k = 0; k < 2; k++) LB_TRY(find_linear(x, k, err));
    if (any) LB_TRY(try_scaled(x, err)); /* else what leaves forward is the same, and the factor a place of the loop */
    if (!x->loss.alone) {
        drop_numbers(x);
        put_in_units(x);
    }
    lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    return lb_differences_meet(x, err);
}

lb_status lb_counterpart_scales_find_losses(lb_implementations *x, lb_err *err)
{
    const double ratio = total_loss(&x->sides[1]) / total_loss(&x->sides[0]);
    uint32_t n, *rows = malloc((x->counterparts.n + 1) * sizeof *rows);
    lb_status status = rows ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for losses");
    if (status == LB_OK && (is_together(ratio) || is_scale(ratio)) && x->sides[0].view->n_parts == 1 &&
        x->sides[1].view->n_parts == 1 && list_scaled(x, ratio, rows, &n)) {
        if (is_together(ratio)) {
            for (uint32_t i = 0; i < n; i++) drop(&x->counterparts.list[rows[i]]);
        } else {
            x->loss.ratio = ratio;
            status = settle_scaled(x, n > 0, err);
        }
    }
    free(rows);
    return status;
}
