/* Elements that stand in another order on the other side: see counterpart_orders.h. */
#include "counterparts/counterpart_orders.h"

#include "shadow/shadow_numbers.h"

static int64_t numel(const lb_program *p, uint32_t v)
{
    return lb_layout_numel(&p->values[v].layout);
}

/* ---- by their shapes ---- */

typedef struct dimensions {
    int64_t size[LB_MAX_DIMS], stride[LB_MAX_DIMS]; /* those above 1; strides of row-major order */
    int n;
} dimensions;

static dimensions dimensions_of(const lb_layout *l)
{
    dimensions d = {.n = 0};
    int64_t stride = 1;
    for (int k = l->ndim; k-- > 0; stride *= l->shape[k]) {
        if (l->shape[k] == 1) continue;
        for (int i = d.n++; i > 0; i--) d.size[i] = d.size[i - 1], d.stride[i] = d.stride[i - 1];
        d.size[0] = l->shape[k], d.stride[0] = stride;
    }
    return d;
}

static int find_size(const dimensions *d, int64_t size)
{
    for (int k = 0; k < d->n; k++)
        if (d->size[k] == size) return k;
    return -1;
}

/* `d` with dimension `k` moved behind all others. */
static dimensions moved_last(const dimensions *d, int k)
{
    dimensions moved = {.n = 0};
    for (int i = 0; i < d->n; i++)
        if (i != k) moved.size[moved.n] = d->size[i], moved.stride[moved.n++] = d->stride[i];
    moved.size[moved.n] = d->size[k], moved.stride[moved.n++] = d->stride[k];
    return moved;
}

/* The dimension of `first` that is the last one of `last`, where features come first and are followed by places, and
 * where they come last, behind (row, place) in one dimension or in several: (2, 64, 11) and (22, 64). -1: none, or
 * several might be. */
static int features_first(const dimensions *first, const dimensions *last)
{
    const int64_t width = last->n ? last->size[last->n - 1] : 0;
    int found = -1, times = 0;
    for (int k = 0; k < first->n; k++)
        if (first->size[k] == width) found = k, times++;
    for (int k = 0; k < last->n; k++) times += k + 1 < last->n && last->size[k] == width;
    if (times != 1 || found + 1 == first->n || first->n == last->n) return -1;
    const dimensions moved = moved_last(first, found);
    int i = 0;
    for (int k = 0; k < last->n; k++) {
        int64_t size = 1;
        while (size < last->size[k] && i < moved.n) size *= moved.size[i++];
        if (size != last->size[k]) return -1;
    }
    return i == moved.n ? found : -1;
}

bool lb_counterpart_orders_channels(const lb_layout *x, const lb_layout *y)
{
    const dimensions a = dimensions_of(x), b = dimensions_of(y);
    return lb_layout_numel(x) == lb_layout_numel(y) && (features_first(&a, &b) >= 0 || features_first(&b, &a) >= 0);
}

/* One run for each place: the features of one side lie side by side. */
bool lb_counterpart_orders_add_channels(lb_counterparts *out, uint32_t va, const lb_layout *x, const lb_layout *y)
{
    const dimensions a = dimensions_of(x), b = dimensions_of(y);
    const bool of_a = features_first(&a, &b) >= 0;
    const dimensions *first = of_a ? &a : &b;
    const dimensions moved = moved_last(first, features_first(first, of_a ? &b : &a));
    const int64_t width = moved.size[moved.n - 1], across = moved.stride[moved.n - 1],
                  places = lb_layout_numel(x) / width;
    for (int64_t place = 0; place < places; place++) {
        int64_t at = 0, rest = place;
        for (int k = moved.n - 1; k-- > 0; rest /= moved.size[k]) at += rest % moved.size[k] * moved.stride[k];
        const lb_content_run run = of_a ? (lb_content_run){va, at, across, place * width, 1, width}
                                        : (lb_content_run){va, place * width, 1, at, across, width};
        if (!lb_counterparts_add_piece(out, run)) return false;
    }
    return true;
}

bool lb_counterpart_orders_turned(const lb_layout *x, const lb_layout *y)
{
    const dimensions a = dimensions_of(x), b = dimensions_of(y);
    bool moved = false;
    if (a.n != b.n) return false;
    for (int k = 0; k < a.n; k++) {
        if (find_size(&a, a.size[k]) != k || find_size(&b, a.size[k]) < 0) return false;
        moved |= a.size[k] != b.size[k];
    }
    return moved;
}

bool lb_counterpart_orders_add_turned(lb_counterparts *out, uint32_t va, const lb_layout *x, const lb_layout *y)
{
    const dimensions a = dimensions_of(x), b = dimensions_of(y);
    const int64_t all = lb_layout_numel(x), width = a.size[a.n - 1];
    for (int64_t from = 0; from < all; from += width) {
        int64_t to = 0;
        for (int k = 0; k + 1 < a.n; k++) to += from / a.stride[k] % a.size[k] * b.stride[find_size(&b, a.size[k])];
        if (!lb_counterparts_add_piece(out, (lb_content_run){va, from, 1, to, b.stride[find_size(&b, width)], width}))
            return false;
    }
    return true;
}

bool lb_counterpart_orders_agree(const lb_layout *x, const lb_layout *y)
{
    int i = 0, k = 0;
    while (i < x->ndim || k < y->ndim) {
        int64_t p = i < x->ndim ? x->shape[i++] : 1, q = k < y->ndim ? y->shape[k++] : 1;
        int of_x = p != 1, of_y = q != 1;
        while (p != q) {
            if (p < q && i < x->ndim)
                of_x += x->shape[i] != 1, p *= x->shape[i++];
            else if (q < p && k < y->ndim)
                of_y += y->shape[k] != 1, q *= y->shape[k++];
            else
                return false;
        }
        if (of_x > 1 && of_y > 1) return false;
    }
    return true;
}

/* ---- by their numbers ---- */

/* Do both sides have the same numbers there, in one order on A and in another on B? */
static bool are_turned(const uint32_t of[2], const lb_exact_side *a, const lb_exact_side *b)
{
    if (of[0] == LB_NONE || of[1] == LB_NONE || !a->kept[of[0]] || !b->kept[of[1]]) return false;
    const int64_t n = numel(b->program, of[1]);
    return numel(a->program, of[0]) == n && lb_quantities_agree(&a->quantities[of[0]], &b->quantities[of[1]]) &&
           !lb_shadow_numbers_agree(a->kept[of[0]], b->kept[of[1]], n, a->noise[of[0]]);
}

bool lb_counterpart_orders_find_turned(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b)
{
    bool any = false;
    for (uint32_t i = 0; i < all->n; i++) {
        lb_counterpart *c = &all->list[i];
        if (c->kind == LB_COUNTERPART_TURNED || !are_turned(c->of, a, b)) continue;
        c->kind = LB_COUNTERPART_TURNED, c->state = LB_COUNTERPART_UNKNOWN;
        any = true;
    }
    return any;
}

/* ---- by what follows from them ---- */

enum { MOST_FOLLOWED = 64 };

static bool is_product(const lb_program *p, uint32_t op)
{
    static const char *const names[] = {"aten::mm", "aten::addmm", "aten::linear", "aten::matmul"};
    return lb_op_name_among(p, &p->ops[op], names, sizeof names / sizeof *names) >= 0;
}

static bool mixes(const lb_program *p, uint32_t op)
{
    static const char *const names[] = {"aten::bmm", "aten::baddbmm", "aten::convolution",
                                        "aten::_scaled_dot_product_flash_attention_for_cpu"};
    return is_product(p, op) || lb_op_name_among(p, &p->ops[op], names, sizeof names / sizeof *names) >= 0;
}

bool lb_counterpart_orders_leads_to_same(const lb_exact_side *s, uint32_t value, const uint32_t *met)
{
    const lb_program *p = s->program;
    uint32_t list[MOST_FOLLOWED] = {value}, n = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = 0, window;
        for (uint32_t k = s->graph.first_use[list[i]]; k < s->graph.first_use[list[i] + 1]; k++) {
            const uint32_t op = s->graph.uses[k],
                           next = lb_op_outcomes(&p->ops[op]) ? lb_op_outcome(p, &p->ops[op], 0) : LB_NONE;
            if (next == LB_NONE) continue;
            if (mixes(p, op) && met[next] != LB_NONE) return true;
            if (!mixes(p, op) && n < MOST_FOLLOWED) list[n++] = next;
        }
        if (!s->graph.given[list[i]]) continue;
        while (n < MOST_FOLLOWED && (window = lb_exact_side_window(s, list[i], &at)) != LB_NONE) list[n++] = window;
    }
    return false;
}

bool lb_counterpart_orders_find_others(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b,
                                       const uint32_t *met_of_b)
{
    bool any = false;
    for (uint32_t i = 0; i < all->n; i++) {
        lb_counterpart *c = &all->list[i];
        const uint32_t va = all->pieces[c->first].tensor;
        if (c->kind != LB_COUNTERPART_ANCHOR || c->state != LB_COUNTERPART_APART || c->n != 1 ||
            !lb_quantities_agree(&a->quantities[va], &b->quantities[c->b]) ||
            !lb_counterpart_orders_leads_to_same(b, c->b, met_of_b))
            continue;
        c->refuted = any = true;
    }
    return any;
}
