/* Regions without a difference of their own: see inherited.h. */
#include "implementations/inherited.h"

#include <string.h>

enum { MOST_COMPARED = 1024, MOST_INPUTS = 16 };

typedef struct comparison {
    const lb_region_frontier *f;
    uint32_t left; /* values that may still be compared */
} comparison;

static bool is_given(const comparison *c, int side, uint32_t v)
{
    return c->f->same[side][v] || lb_region_is_source(c->f->asked->sides[side], v);
}

/* Is a value of B, or what it shows all of, put in the place of a value of A? */
static bool are_counterparts(const comparison *c, uint32_t va, uint32_t vb)
{
    const lb_counterparts *all = c->f->asked->counterparts;
    const uint32_t a = lb_value_graph_whole(&c->f->asked->sides[0]->graph, va),
                   b = lb_value_graph_whole(&c->f->asked->sides[1]->graph, vb);
    for (uint32_t i = 0; i < all->n; i++) {
        const lb_counterpart *one = &all->list[i];
        if (one->state == LB_COUNTERPART_UNKNOWN || (one->b != vb && one->b != b)) continue;
        for (uint32_t k = 0; k < one->n; k++) {
            const uint32_t piece = all->pieces[one->first + k].tensor;
            if (piece == va || piece == a) return true;
        }
    }
    return false;
}

/* Do both show the same elements of a tensor that both hold in one layout? */
static bool show_one_source(const comparison *c, uint32_t va, uint32_t vb)
{
    const lb_exact_side *a = c->f->asked->sides[0], *b = c->f->asked->sides[1];
    const uint32_t sa = lb_value_graph_source(&a->graph, va), sb = lb_value_graph_source(&b->graph, vb);
    const uint32_t row = sb == LB_NONE ? LB_NONE : c->f->asked->sources[1]->row_of[sb];
    if (sa == LB_NONE || row == LB_NONE) return false;
    const lb_content *content = &c->f->asked->contents->list[row];
    const lb_content_run *run = &c->f->asked->contents->runs[content->first];
    const lb_layout *x = &a->program->values[va].layout, *y = &b->program->values[vb].layout;
    return content->n == 1 && content->shift == 0 && run->from == 0 && run->to == 0 && run->n == content->all &&
           c->f->asked->sources[0]->row_of[sa] == run->tensor && lb_layout_same_shape(x, y) &&
           !memcmp(x->stride, y->stride, (size_t)x->ndim * sizeof x->stride[0]);
}

/* Both are where the search ended: are they the same numbers there, in the same order? */
static bool stand_for_each_other(const comparison *c, uint32_t va, uint32_t vb)
{
    if (lb_region_is_source(c->f->asked->sides[0], va) || lb_region_is_source(c->f->asked->sides[1], vb))
        return show_one_source(c, va, vb);
    return are_counterparts(c, va, vb) ||
           (lb_region_are_alike(c->f, va, vb) && !lb_region_is_in_another_order(c->f->asked, va, vb));
}

/* Does a window show of its op's result what the other shows of that op's? */
static bool show_alike(const comparison *c, uint32_t va, uint32_t wa, uint32_t vb, uint32_t wb)
{
    const lb_layout *x = &c->f->asked->sides[0]->program->values[va].layout,
                    *y = &c->f->asked->sides[1]->program->values[vb].layout,
                    *a = &c->f->asked->sides[0]->program->values[wa].layout,
                    *b = &c->f->asked->sides[1]->program->values[wb].layout;
    return lb_layout_same_shape(x, y) && lb_layout_same_shape(a, b) && x->offset - a->offset == y->offset - b->offset &&
           !memcmp(x->stride, y->stride, (size_t)x->ndim * sizeof x->stride[0]);
}

static bool compute_alike(comparison *c, uint32_t va, uint32_t vb);

typedef struct inputs {
    uint32_t list[MOST_INPUTS], n;
} inputs;

static void note_input(void *context, uint32_t value)
{
    inputs *in = context;
    if (value != LB_NONE && in->n <= MOST_INPUTS && in->n++ < MOST_INPUTS) in->list[in->n - 1] = value;
}

static bool run_alike(comparison *c, uint32_t a, uint32_t b)
{
    const lb_program *pa = c->f->asked->sides[0]->program, *pb = c->f->asked->sides[1]->program;
    inputs x = {.n = 0}, y = {.n = 0};
    if (strcmp(lb_op_name(pa, &pa->ops[a]), lb_op_name(pb, &pb->ops[b])) || pa->ops[a].args != pb->ops[b].args ||
        !lb_op_same_args(pa, &pa->ops[a], pb, &pb->ops[b], 0))
        return false;
    lb_op_each_input(pa, &pa->ops[a], note_input, &x), lb_op_each_input(pb, &pb->ops[b], note_input, &y);
    if (x.n != y.n || x.n > MOST_INPUTS) return false;
    bool alike = true;
    for (uint32_t k = 0; k < x.n && alike; k++) alike = compute_alike(c, x.list[k], y.list[k]);
    if (!alike && x.n == 2 && lb_value_graph_adds(pa, a)) /* the order of a sum's terms is none */
        alike = compute_alike(c, x.list[0], y.list[1]) && compute_alike(c, x.list[1], y.list[0]);
    return alike;
}

static bool compute_alike(comparison *c, uint32_t va, uint32_t vb)
{
    const lb_value_graph *a = &c->f->asked->sides[0]->graph, *b = &c->f->asked->sides[1]->graph;
    if (!c->left) return false;
    c->left--;
    if (is_given(c, 0, va) || is_given(c, 1, vb))
        return is_given(c, 0, va) && is_given(c, 1, vb) && stand_for_each_other(c, va, vb);
    if (a->giver[va] == LB_NONE || b->giver[vb] == LB_NONE || a->given[va] != b->given[vb]) return false;
    if (a->given[va]) return run_alike(c, a->giver[va], b->giver[vb]);
    const uint32_t i = a->first_pred[va], k = b->first_pred[vb];
    return a->first_pred[va + 1] - i == 1 && b->first_pred[vb + 1] - k == 1 &&
           show_alike(c, va, a->preds[i], vb, b->preds[k]) && compute_alike(c, a->preds[i], b->preds[k]);
}

bool lb_inherited_is_region(const lb_region_frontier *f, const lb_region *r)
{
    const lb_counterparts *all = f->asked->counterparts;
    const lb_counterpart *root = &all->list[r->counterpart];
    comparison c = {f, MOST_COMPARED};
    if (r->reason != LB_REGION_OPS || (root->n != 1 && !root->turned_by_shape)) return false;
    const uint32_t va = all->pieces[root->first].tensor, a = f->asked->sides[0]->graph.giver[va],
                   b = f->asked->sides[1]->graph.giver[root->b];
    if (a == LB_NONE || b == LB_NONE || !f->asked->sides[0]->graph.given[va] ||
        !f->asked->sides[1]->graph.given[root->b])
        return false;
    return run_alike(&c, a, b);
}
