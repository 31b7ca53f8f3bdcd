/* Products with weights: see products.h. */
#include "counterparts/products.h"

#include "shadow/shadow_numbers.h"

#include "base/array.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct product {
    uint32_t op, source, use;      /* `use`: which of its rank's products with this weight, a source, it is */
    uint32_t part;                 /* the rank */
    uint32_t result;               /* the value with its bias */
    int64_t batch, rows, features; /* of the result: (batch, rows, features), features of all batches numbered on */
    int64_t behind; /* rows that run faster than features: (rows / behind, features, behind); 1: features are last */
    bool biased;
    uint32_t bias;  /* the source that is added; LB_NONE */
    uint64_t *keys; /* per feature: its column of the operand; 0: all of it is one number */
} product;

typedef struct products {
    const lb_exact_side *side;
    product *list;
    uint32_t n;
} products;

/* A feature of one of A's products. */
typedef struct column {
    uint64_t key;
    uint32_t product, use;
    int64_t feature;
} column;

typedef struct columns {
    column *list; /* by key */
    uint64_t n;
} columns;

struct lb_products {
    products of[2]; /* A's, B's */
    columns columns;
};

/* ---- operands ---- */

static int weight_position(const lb_program *p, const lb_op *op)
{
    static const char *const names[] = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"};
    const int at = lb_op_name_among(p, op, names, sizeof names / sizeof *names);
    return at < 0 ? -1 : at < 2 ? 1 : 2;
}

static uint32_t value_at(const lb_program *p, const lb_op *op, int position)
{
    if (position < 0 || (uint32_t)position >= op->args) return LB_NONE;
    const lb_arg *arg = &lb_op_args(p, op)[position];
    return arg->tag == LB_ARG_VALUE ? arg->u.value : LB_NONE;
}

/* The numbers of a value seen through the layout of a view of it, which may be any. malloc'ed. */
static double *seen_through(const lb_value *view, const lb_value *whole, lb_tensor t)
{
    if (!t.data || !lb_layout_is_contiguous(&whole->layout) || !lb_layout_is_contiguous(&t.layout)) return NULL;
    const int64_t start = view->layout.offset - whole->layout.offset;
    t.data = (char *)t.data + start * (int64_t)(lb_dtype_bits(t.dtype) / 8);
    t.layout = view->layout, t.layout.offset = 0;
    return lb_shadow_numbers_copy(&t);
}

static lb_tensor as_tensor(double *numbers, const lb_value *v)
{
    return (lb_tensor){numbers, LB_F64, lb_layout_contiguous(v->layout.ndim, v->layout.shape)};
}

/* What a run reads there: of a copy its kept numbers, else the source's own. malloc'ed; NULL: they are not known. */
static double *operand_numbers(const lb_exact_side *s, uint32_t v, uint32_t source)
{
    const lb_value *values = s->program->values;
    const uint32_t first = s->graph.first_pred[v], giver = s->graph.giver[v];
    if (s->kept[v]) return lb_shadow_numbers_copy(&(lb_tensor){s->kept[v], LB_F64, as_tensor(NULL, &values[v]).layout});
    if (giver == LB_NONE) return NULL;
    if (!lb_op_is_source(s->program, &s->program->ops[giver])) {
        const uint32_t copy = s->graph.first_pred[v + 1] - first == 1 ? s->graph.preds[first] : v;
        return copy == v || !s->kept[copy]
                   ? NULL
                   : seen_through(&values[v], &values[copy], as_tensor(s->kept[copy], &values[copy]));
    }
    lb_tensor t;
    if (s->held[source])
        t = as_tensor(s->held[source], &values[source]);
    else if (lb_program_view_value(s->view, source, &t, NULL) != LB_OK)
        return NULL;
    return seen_through(&values[v], &values[source], t);
}

/* ---- columns ---- */

static uint64_t mixed(double number)
{
    uint64_t x;
    if (number == 0) number = 0; /* -0 is 0 */
    memcpy(&x, &number, sizeof x);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9), x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static uint64_t column_key(const double *w, int64_t n, int64_t stride)
{
    uint64_t key = 0;
    bool one = true;
    for (int64_t i = 0; i < n; i++) key += mixed(w[i * stride]), one &= w[i * stride] == w[0];
    return one ? 0 : key;
}

/* ---- the bias ---- */

static bool is_forward(const lb_program *p, uint32_t op)
{
    return p->ops[op].phase == LB_PHASE_FORWARD;
}

/* How many elements of a sum stand behind each feature of a bias that is added: 1 for (12, 64) + (64), 16 for
 * (2, 64, 16) + (64, 1). 0: it has several dimensions. */
static int64_t elements_behind(const lb_layout *sum, const lb_layout *bias, int64_t features)
{
    int64_t behind = 1;
    int d = bias->ndim - 1, of_sum = sum->ndim - 1;
    for (; d >= 0 && bias->shape[d] != features; d--, of_sum--) {
        if (bias->shape[d] != 1 || of_sum < 0) return 0;
        behind *= sum->shape[of_sum];
    }
    return d >= 0 && of_sum >= 0 && sum->shape[of_sum] == features ? behind : 0;
}

/* The sum with a bias of as many features, where the next op takes it; else the value itself. */
static uint32_t with_bias(const lb_exact_side *s, uint32_t product, uint32_t value, int64_t features, uint32_t *bias,
                          int64_t *behind)
{
    const lb_program *p = s->program;
    const uint32_t op = lb_exact_side_only_reader(s, product, value);
    if (op == LB_NONE || !lb_value_graph_adds(p, op) || !lb_op_outcomes(&p->ops[op])) return value;
    const uint32_t result = lb_op_outcome(p, &p->ops[op], 0);
    if (result == LB_NONE || lb_layout_numel(&p->values[result].layout) != lb_layout_numel(&p->values[value].layout))
        return value;
    for (int k = 0; k < 2; k++) {
        const uint32_t other = value_at(p, &p->ops[op], k),
                       source = other == LB_NONE ? LB_NONE : lb_value_graph_source(&s->graph, other);
        if (source != LB_NONE && p->values[source].flags & LB_VALUE_PARAMETER &&
            lb_layout_numel(&p->values[source].layout) == features) {
            const int64_t n = elements_behind(&p->values[result].layout, &p->values[other].layout, features);
            if (!n) return value;
            *bias = source, *behind = n;
            return result;
        }
    }
    return value;
}

/* ---- a side's products ---- */

static uint32_t count_uses(const products *all, uint32_t source, uint32_t part)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < all->n; i++) n += all->list[i].source == source && all->list[i].part == part;
    return n;
}

/* The parameter that an operand is, or of one put together from parts of several ranks (`depth` copies and
 * concatenations deep) the first; LB_NONE. */
static uint32_t weight_of(const lb_exact_side *s, uint32_t v, uint32_t depth)
{
    static const char *const moves[] = {"aten::cat"};
    const lb_program *p = s->program;
    const uint32_t source = lb_value_graph_source(&s->graph, v), giver = s->graph.giver[v];
    uint32_t least = LB_NONE;
    if (source != LB_NONE) return p->values[source].flags & LB_VALUE_PARAMETER ? source : LB_NONE;
    if (!depth || giver == LB_NONE || s->view->n_parts < 2) return LB_NONE;
    if (lb_value_graph_is_computed(&s->graph, v) && lb_op_name_among(p, &p->ops[giver], moves, 1) < 0) return LB_NONE;
    for (uint32_t k = s->graph.first_pred[v]; k < s->graph.first_pred[v + 1]; k++) {
        const uint32_t of = weight_of(s, s->graph.preds[k], depth - 1);
        if (of == LB_NONE) return LB_NONE;
        if (of < least) least = of;
    }
    return least;
}

/* (depth, width) or (batch, depth, width), and a result of as many dimensions? */
static bool is_matrix(const lb_layout *operand, const lb_layout *result)
{
    const int n = operand->ndim;
    return (n == 2 || n == 3) && result->ndim == n && operand->shape[n - 2] >= 2 &&
           operand->shape[n - 1] == result->shape[n - 1] && (n == 2 || operand->shape[0] == result->shape[0]);
}

static uint64_t *list_keys(const lb_exact_side *s, uint32_t w, const product *x)
{
    const lb_layout *l = &s->program->values[w].layout;
    const int64_t depth = l->shape[l->ndim - 2], width = l->shape[l->ndim - 1];
    double *numbers = operand_numbers(s, w, x->source);
    uint64_t *keys = numbers ? malloc((size_t)x->features * sizeof *keys) : NULL;
    for (int64_t j = 0; keys && j < x->features; j++)
        keys[j] = column_key(numbers + j / width * depth * width + j % width, depth, width);
    free(numbers);
    return keys;
}

/* False when out of memory. */
static bool add_product(products *all, uint32_t op, int position)
{
    const lb_exact_side *s = all->side;
    const lb_program *p = s->program;
    const uint32_t w = value_at(p, &p->ops[op], position), source = w == LB_NONE ? LB_NONE : weight_of(s, w, 12),
                   result = lb_op_outcomes(&p->ops[op]) ? lb_op_outcome(p, &p->ops[op], 0) : LB_NONE;
    if (source == LB_NONE || result == LB_NONE) return true;
    const lb_layout *l = &p->values[w].layout, *r = &p->values[result].layout;
    if (!is_matrix(l, r)) return true;
    product x = {.op = op, .source = source, .result = result, .bias = LB_NONE, .behind = 1};
    x.part = lb_program_view_part_of(s->view, op), x.use = count_uses(all, source, x.part);
    x.batch = l->ndim == 3 ? l->shape[0] : 1;
    x.rows = r->shape[r->ndim - 2], x.features = x.batch * l->shape[l->ndim - 1];
    x.keys = list_keys(s, w, &x);
    if (!x.keys) return true; /* its numbers are not known */
    if (x.batch == 1) x.result = with_bias(s, op, result, x.features, &x.bias, &x.behind);
    x.biased = x.result != result || position == 2;
    const uint32_t added = x.result == result && position == 2 ? value_at(p, &p->ops[op], 0) : LB_NONE;
    if (added != LB_NONE) x.bias = lb_value_graph_source(&s->graph, added);
    product *more = lb_array_grow(all->list, all->n, sizeof *more);
    if (!more) return free(x.keys), false;
    all->list = more, all->list[all->n++] = x;
    return true;
}

static bool list_products(const lb_exact_side *s, products *all)
{
    *all = (products){.side = s};
    for (uint32_t i = 0; i < s->program->n_ops; i++) {
        const int position = is_forward(s->program, i) ? weight_position(s->program, &s->program->ops[i]) : -1;
        if (position >= 0 && !add_product(all, i, position)) return false;
    }
    return true;
}

/* ---- beside each other ---- */

static int by_key(const void *x, const void *y)
{
    const column *a = x, *b = y;
    if (a->key != b->key) return (a->key > b->key) - (a->key < b->key);
    if (a->use != b->use) return (a->use > b->use) - (a->use < b->use);
    if (a->product != b->product) return (a->product > b->product) - (a->product < b->product);
    return (a->feature > b->feature) - (a->feature < b->feature);
}

static columns sort_columns(const products *all)
{
    columns c = {0};
    uint64_t most = 0;
    for (uint32_t i = 0; i < all->n; i++) most += (uint64_t)all->list[i].features;
    c.list = malloc((most + 1) * sizeof *c.list);
    for (uint32_t i = 0; i < all->n && c.list; i++)
        for (int64_t j = 0; j < all->list[i].features; j++)
            if (all->list[i].keys[j]) c.list[c.n++] = (column){all->list[i].keys[j], i, all->list[i].use, j};
    if (c.list && c.n) qsort(c.list, c.n, sizeof *c.list, by_key);
    return c;
}

/* A column of A with these numbers, of the same use of its weight: the one behind the last that was found, else the
 * first. `part`: on that rank, where it is there; LB_NONE: any. */
static const column *find_column(const products *a, const columns *c, uint64_t key, uint32_t use, uint32_t part,
                                 const column *last)
{
    const column sought = {.key = key, .use = use};
    uint64_t low = 0, high = c->n;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (by_key(&c->list[middle], &sought) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    const column *first = NULL;
    for (; low < c->n && c->list[low].key == key && c->list[low].use == use; low++) {
        if (part != LB_NONE && a->list[c->list[low].product].part != part) continue;
        if (!first) first = &c->list[low];
        if (last && c->list[low].product == last->product && c->list[low].feature == last->feature + 1)
            return &c->list[low];
    }
    return first;
}

/* Where feature j lies in a result: of row r at first + r * stride. */
static int64_t first_of(const product *x, int64_t j)
{
    const int64_t width = x->features / x->batch;
    return j / width * x->rows * width + j % width;
}

/* Which rows of a product of A stand beside which of B's, where ranks of either side have parts of the batch: all, or a
 * rank's share. False: neither. */
static bool share_rows(const products *a, const product *x, const products *b, const product *y, int64_t *from,
                       int64_t *to)
{
    const int64_t ranks[] = {a->side->view->n_parts, b->side->view->n_parts};
    *from = x->rows == y->rows * ranks[1] && x->rows != y->rows ? y->part * y->rows : 0;
    *to = y->rows == x->rows * ranks[0] && x->rows != y->rows ? x->part * x->rows : 0;
    return x->rows == y->rows || x->rows == y->rows * ranks[1] || y->rows == x->rows * ranks[0];
}

/* Of as many rows, which on either side may run faster than features. */
static bool put_blocks(lb_counterparts *out, const product *x, int64_t feature, const product *y, int64_t j)
{
    const product *const of[] = {x, y};
    const int64_t features[] = {feature, j};
    int64_t block = x->rows;
    for (int k = 0; k < 2; k++)
        if (of[k]->behind != 1 && of[k]->behind < block) block = of[k]->behind;
    for (int64_t row = 0; row < x->rows; row += block) {
        int64_t at[2], stride[2];
        for (int k = 0; k < 2; k++) {
            const product *z = of[k];
            at[k] = row / z->behind * z->behind * z->features + features[k] * z->behind + row % z->behind;
            stride[k] = z->behind == 1 ? z->features : 1;
        }
        const lb_content_run run = {x->result, at[0], stride[0], at[1], stride[1], block};
        if (!lb_counterparts_add_piece(out, run)) return false;
    }
    return true;
}

static bool put_rows(lb_counterparts *out, const products *a, const product *x, int64_t feature, const products *b,
                     const product *y, int64_t j, int64_t turn)
{
    int64_t first_from, first_to;
    if (!share_rows(a, x, b, y, &first_from, &first_to) || x->biased != y->biased) return true;
    const int64_t rows = x->rows < y->rows ? x->rows : y->rows, across = x->features / x->batch,
                  width = y->features / y->batch, from = first_of(x, feature) + first_from * across,
                  to = first_of(y, j) + first_to * width;
    if (x->behind != 1 || y->behind != 1) return x->rows != y->rows || put_blocks(out, x, feature, y, j);
    const bool turns = turn && x->rows == y->rows;
    const int64_t parts = turns ? rows / turn : 1, each = turns ? turn : rows;
    for (int64_t i = 0; i < parts; i++)
        if (!lb_counterparts_add_piece(out, (lb_content_run){x->result, from + i * each * across, across,
                                                             to + i * width, turns ? parts * width : width, each}))
            return false;
    return true;
}

static const lb_token_part *tokens_of(const products *side, const product *x)
{
    const lb_token_part *part = &side->side->tokens->parts[side->side->number][x->part];
    return part->rows * part->length == x->rows ? part : NULL;
}

/* The same, where rows are tokens of a map. */
static bool put_tokens(lb_counterparts *out, const products *a, const product *x, int64_t feature, const products *b,
                       const product *y, int64_t j)
{
    const lb_token_part *of_a = tokens_of(a, x), *of_b = tokens_of(b, y);
    const uint32_t *beside = b->side->tokens->beside[b->side->number];
    const int64_t across = x->features / x->batch, width = y->features / y->batch, from = first_of(x, feature),
                  to = first_of(y, j);
    if (!of_a || !of_b || x->biased != y->biased || x->behind != 1 || y->behind != 1) return true;
    for (int64_t i = 0; i < y->rows; i++) {
        const uint32_t token = beside[of_b->first + i];
        if (token < of_a->first || token >= of_a->first + x->rows) continue; /* LB_NONE is above all */
        const lb_content_run run = {x->result, from + (token - of_a->first) * across, 1, to + i * width, 1, 1};
        if (!lb_counterparts_add_piece(out, run)) return false;
    }
    return true;
}

/* Is there a product of A on each rank that B's row counts ask for? Of as many rows on both sides that of the same
 * rank, else the first. */
static const column *find_on_rank(const products *a, const columns *c, const product *y, int64_t j, uint32_t part,
                                  const column *last)
{
    const column *found = find_column(a, c, y->keys[j], y->use, part, last);
    return found || part != y->part ? found : find_column(a, c, y->keys[j], y->use, LB_NONE, last);
}

/* Rows of B beside those of A: `turn` 0: one by one; else row (i, k) of A, counted (rows / turn, turn), is row (k, i)
 * of B. A result with its bias is not beside one without: `*other` when that is all there is. */
static bool put_beside(lb_counterparts *out, const products *a, const products *of_b, const product *b,
                       const columns *c, int64_t turn, bool *other)
{
    const column *last = NULL;
    const uint32_t first = out->n_pieces, ranks = a->side->view->n_parts;
    *other = false;
    for (int64_t j = 0; j < b->features; j++) {
        const column *found = b->keys[j] ? find_on_rank(a, c, b, j, b->part, last) : NULL;
        const product *x = found ? &a->list[found->product] : NULL;
        if (b->keys[j] && !found) { /* numbers that A does not hold: what they give is B's own */
            out->n_pieces = first;
            return true;
        }
        *other |= found && x->biased != b->biased;
        if (!found) continue;
        last = found;
        if (x->rows >= b->rows && !a->side->tokens) {
            if (!put_rows(out, a, x, found->feature, of_b, b, j, turn)) return false;
            continue;
        }
        for (uint32_t part = 0; part < ranks; part++) { /* each part of A has some of B's rows */
            const column *on = find_column(a, c, b->keys[j], b->use, part, NULL);
            const product *product = on ? &a->list[on->product] : NULL;
            if (on && !(a->side->tokens ? put_tokens(out, a, product, on->feature, of_b, b, j)
                                        : put_rows(out, a, product, on->feature, of_b, b, j, 0)))
                return false;
        }
    }
    return true;
}

static void drop_others(lb_counterparts *out, uint32_t before, const lb_exact_side *b, const product *x)
{
    const uint32_t raw = lb_op_outcome(b->program, &b->program->ops[x->op], 0);
    for (uint32_t i = 0; i < before; i++)
        if (out->list[i].kind == LB_COUNTERPART_ANCHOR && (out->list[i].b == x->result || out->list[i].b == raw))
            out->list[i].kind = LB_COUNTERPART_DROPPED, out->list[i].state = LB_COUNTERPART_UNKNOWN;
}

/* ---- rows in another order ---- */

/* What was seen of a product: others of B like it (as many rows and features, in a module of the same name in another
 * layer) are as this one. */
typedef struct turned_rows {
    int64_t rows, features, turn; /* 0: as they are */
    const char *module;
} turned_rows;

typedef struct turns {
    turned_rows *list;
    uint32_t n;
} turns;

static const char *module_of(const products *side, const product *x)
{
    return lb_op_layer(side->side->program, &side->side->program->ops[x->op]);
}

/* Are two modules one in several layers: `layers.0.attention.out` and `layers.2.attention.out`, but not `head.out`? */
static bool are_alike(const char *x, const char *y)
{
    for (;;) {
        x += strspn(x, "0123456789"), y += strspn(y, "0123456789");
        if (*x != *y) return false;
        if (!*x) return true;
        x++, y++;
    }
}

static const turned_rows *find_like(const turns *t, const products *side, const product *x)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->list[i].rows == x->rows && t->list[i].features == x->features &&
            are_alike(t->list[i].module, module_of(side, x)))
            return &t->list[i];
    return NULL;
}

/* How a side counts the rows of a result: (p, q), the second running faster. */
typedef struct counted_rows {
    int64_t p, q;
} counted_rows;

/* By a view of all of the result: its two dimensions that go from row to row. */
static bool count_by_view(const lb_layout *l, const product *x, counted_rows *out)
{
    int64_t size[2], stride[2];
    int n = 0;
    if (lb_layout_numel(l) != x->rows * x->features) return false;
    for (int d = 0; d < l->ndim; d++) {
        if (l->shape[d] == 1 || l->stride[d] < x->features) continue;
        if (n == 2) return false;
        size[n] = l->shape[d], stride[n++] = l->stride[d];
    }
    if (n != 2 || size[0] * size[1] != x->rows) return false;
    const int fast = stride[0] < stride[1] ? 0 : 1;
    *out = (counted_rows){size[!fast], size[fast]};
    return stride[fast] == x->features && stride[!fast] == x->features * size[fast];
}

static counted_rows count_rows(const lb_exact_side *s, const product *x)
{
    uint32_t at = 0, window;
    counted_rows found;
    if (s->graph.giver[x->result] == LB_NONE || x->behind != 1) return (counted_rows){0, 0};
    if (count_by_view(&s->program->values[x->result].layout, x, &found)) return found;
    while ((window = lb_exact_side_window(s, x->result, &at)) != LB_NONE)
        if (count_by_view(&s->program->values[window].layout, x, &found)) return found;
    return (counted_rows){0, 0};
}

/* By their shapes (batch, time) of one side are (time, batch) of the other; -1: the shapes do not tell. */
static int64_t turn_of_shapes(const products *a, const product *of_a, const products *b, const product *of_b)
{
    const counted_rows x = count_rows(a->side, of_a), y = count_rows(b->side, of_b);
    if (of_a->rows != of_b->rows || x.p < 2 || x.q < 2 || x.p == x.q) return -1;
    return x.p == y.q && x.q == y.p ? x.q : x.p == y.p && x.q == y.q ? 0 : -1;
}

/* The product of A that the first column which A holds belongs to. */
static const product *find_other(const products *a, const product *x, const columns *c)
{
    for (int64_t j = 0; j < x->features; j++) {
        const column *found = x->keys[j] ? find_column(a, c, x->keys[j], x->use, LB_NONE, NULL) : NULL;
        if (found) return &a->list[found->product];
    }
    return NULL;
}

/* As the products like it are; else as the shapes say; else as others with as many rows are, where all of these are
 * alike. */
static int64_t turn_of(const turns *t, const products *a, const columns *c, const products *side, const product *x)
{
    const turned_rows *like = find_like(t, side, x);
    const product *other = like || x->batch != 1 ? NULL : find_other(a, x, c);
    int64_t turn = like ? like->turn : other && other->batch == 1 ? turn_of_shapes(a, other, side, x) : -1;
    if (turn >= 0) return turn;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->list[i].rows != x->rows) continue;
        if (turn >= 0 && turn != t->list[i].turn) return 0;
        turn = t->list[i].turn;
    }
    return turn < 0 ? 0 : turn;
}

/* The one turn that makes B's rows A's; 0: there is none. */
static int64_t find_turn(const double *x, const double *y, int64_t rows, int64_t width)
{
    for (int64_t turn = 2; turn < rows; turn++) {
        if (rows % turn) continue;
        double difference = 0, size = 0;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t mine = r % turn * (rows / turn) + r / turn;
            for (int64_t j = 0; j < width; j++) {
                const double d = x[r * width + j] - y[mine * width + j];
                difference += d * d, size += x[r * width + j] * x[r * width + j];
            }
        }
        if (size > 0 && difference <= 0x1p-60 * size) return turn;
    }
    return 0;
}

static bool note_turn(turns *t, const lb_counterparts *all, const lb_counterpart *c, const lb_exact_side *a,
                      const products *side, const product *x)
{
    const lb_exact_side *b = side->side;
    const int64_t n = lb_layout_numel(&b->program->values[c->b].layout);
    uint8_t *known = NULL;
    double noise, *numbers = b->kept[c->b] ? lb_counterpart_expected(all, c, a, n, &known, &noise) : NULL;
    double *own = numbers ? malloc((size_t)n * sizeof *own) : NULL;
    /* Features that A lacks are left out on both sides. */
    for (int64_t i = 0; own && i < n; i++)
        numbers[i] = known[i] ? numbers[i] : 0, own[i] = known[i] ? b->kept[c->b][i] : 0;
    const bool same = own && lb_counterparts_distance(numbers, own, n) < 0x1p-30;
    const int64_t turn =
        own && !same && n % x->rows == 0 && x->behind == 1 ? find_turn(numbers, own, x->rows, n / x->rows) : 0;
    free(numbers), free(own), free(known);
    if (!same && !turn) return true;
    turned_rows *more = lb_array_grow(t->list, t->n, sizeof *more);
    if (!more) return false;
    t->list = more;
    t->list[t->n++] = (turned_rows){x->rows, x->features, turn, module_of(side, x)};
    return true;
}

/* ---- all ---- */

static bool find_all(const products *a, const products *b, const columns *c, const turns *known, turns *seen,
                     lb_counterparts *out)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const uint32_t first = out->n_pieces, before = out->n;
        const product *x = &b->list[i];
        bool other, room = put_beside(out, a, b, x, c, known ? turn_of(known, a, c, b, x) : 0, &other);
        if (room && out->n_pieces == first) {
            if (other && !seen) drop_others(out, before, b->side, x);
            continue;
        }
        lb_counterpart *made = room ? lb_counterparts_close(out, LB_COUNTERPART_ANCHOR, x->result, first) : NULL;
        if (!made) return false;
        if (!seen) {
            drop_others(out, before, b->side, x);
            continue;
        }
        room = x->batch != 1 || find_like(seen, b, x) || note_turn(seen, out, made, a->side, b, x);
        out->n = before, out->n_pieces = first;
        if (!room) return false;
    }
    return true;
}

static const product *find_product(const products *all, uint32_t op)
{
    for (uint32_t i = 0; i < all->n && op != LB_NONE; i++)
        if (all->list[i].op == op) return &all->list[i];
    return NULL;
}

/* The product of B whose rows an anchor has: what backward gives of its other operand, or the product itself where its
 * columns are none of A's. */
static const product *find_anchored(const products *b, const lb_counterpart *c)
{
    const lb_value_graph *g = &b->side->graph;
    if (c->of[1] != LB_NONE) return find_product(b, g->forward[g->giver[c->b]]);
    return b->side->graph.given[c->b] ? find_product(b, g->giver[c->b]) : NULL;
}

/* Row (i, k) of A, counted (rows / turn, turn), is row (k, i) of B. */
static bool turn_anchors(const lb_products *all, const turns *seen, lb_counterparts *out)
{
    const products *a = &all->of[0], *b = &all->of[1];
    const uint32_t n = out->n;
    for (uint32_t i = 0; i < n; i++) {
        const lb_counterpart c = out->list[i];
        if (c.kind != LB_COUNTERPART_ANCHOR || c.n != 1) continue;
        const product *x = find_anchored(b, &c);
        const int64_t turn = x ? turn_of(seen, a, &all->columns, b, x) : 0,
                      elements = lb_layout_numel(&b->side->program->values[c.b].layout);
        if (turn <= 0 || elements % x->rows) continue;
        const int64_t width = elements / x->rows, parts = x->rows / turn;
        const uint32_t va = out->pieces[c.first].tensor, first = out->n_pieces;
        for (int64_t r = 0; r < x->rows; r++) {
            const lb_content_run row = {va, r * width, 1, (r % turn * parts + r / turn) * width, 1, width};
            if (!lb_counterparts_add_piece(out, row)) return false;
        }
        lb_counterpart *made = lb_counterparts_close(out, LB_COUNTERPART_ANCHOR, c.b, first);
        if (!made) return false;
        made->of[0] = c.of[0], made->of[1] = c.of[1];
        out->list[i].kind = LB_COUNTERPART_DROPPED, out->list[i].state = LB_COUNTERPART_UNKNOWN;
    }
    return true;
}

lb_status lb_products_find(const lb_products *x, lb_counterparts *out, lb_err *err)
{
    turns seen = {0};
    const bool room = find_all(&x->of[0], &x->of[1], &x->columns, NULL, &seen, out) &&
                      find_all(&x->of[0], &x->of[1], &x->columns, &seen, NULL, out) && turn_anchors(x, &seen, out);
    free(seen.list);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for products");
}

/* ---- biases ---- */

/* The runs of one bias; false: some feature has no bias on A. */
static bool list_runs(const products *a, const product *b, const columns *c, const lb_bias_sink *sink,
                      lb_content_run *runs, uint32_t *n)
{
    const column *last = NULL;
    *n = 0;
    for (int64_t j = 0; j < b->features; j++) {
        const column *found = b->keys[j] ? find_column(a, c, b->keys[j], b->use, LB_NONE, last) : NULL;
        const uint32_t bias = found ? a->list[found->product].bias : LB_NONE,
                       row = bias == LB_NONE ? LB_NONE : sink->row_of[0][bias];
        if (row == LB_NONE ||
            lb_layout_numel(&a->side->program->values[bias].layout) != a->list[found->product].features)
            return false;
        lb_content_run *open = *n ? &runs[*n - 1] : NULL;
        if (open && open->tensor == row && open->from + open->n == found->feature)
            open->n++;
        else
            runs[(*n)++] = (lb_content_run){row, found->feature, 1, j, 1, 1};
        last = found;
    }
    return *n > 0;
}

lb_status lb_products_biases(const lb_products *all, const lb_bias_sink *sink, lb_err *err)
{
    const products *b = &all->of[1];
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < b->n && status == LB_OK; i++) {
        const product *x = &b->list[i];
        const uint32_t row = x->bias == LB_NONE ? LB_NONE : sink->row_of[1][x->bias];
        if (row == LB_NONE || lb_layout_numel(&b->side->program->values[x->bias].layout) != x->features) continue;
        lb_content_run *runs = malloc((size_t)x->features * sizeof *runs);
        uint32_t n;
        if (!runs) return lb_fail(err, LB_ERR_NOMEM, "out of memory for products");
        if (list_runs(&all->of[0], x, &all->columns, sink, runs, &n))
            status = sink->bias(sink->context, row, runs, n, err);
        free(runs);
    }
    return status;
}

/* ---- life-cycle ---- */

lb_status lb_products_new(const lb_exact_side *a, const lb_exact_side *b, lb_products **products, lb_err *err)
{
    lb_products *x = *products = calloc(1, sizeof *x);
    bool room = x && list_products(a, &x->of[0]) && list_products(b, &x->of[1]);
    if (room) x->columns = sort_columns(&x->of[0]), room = x->columns.list != NULL;
    if (room) return LB_OK;
    lb_products_free(x);
    *products = NULL;
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for products");
}

void lb_products_free(lb_products *x)
{
    for (int k = 0; k < 2 && x; k++) {
        for (uint32_t i = 0; i < x->of[k].n; i++) free(x->of[k].list[i].keys);
        free(x->of[k].list);
    }
    if (x) free(x->columns.list);
    free(x);
}
