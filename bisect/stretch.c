/* Finding stretches: see stretch.h. Contents are followed through storages (slice.h of replay), so that views need no rule:
 * ops read windows of what some op wrote. */
#include "stretch.h"

#include "slice.h"

#include <lastbit/compare.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEFS = 64, MOST_OPS = 4096, UNKNOWN = 0, SURE, DOUBTED };
#define NEAR 0.1 /* relative L2 distance of what two aligned ops gave, in a group with strangers */

typedef struct finder {
    const lb_stretch_source *source;
    const lb_program *p[2];
    lb_flow *flow[2];
    uint8_t *trust;          /* per op of A: is its pair believed? */
    uint32_t *source_a_of_b; /* per op of B */
    uint32_t *ends[2]; /* per op: the op of the other side where a stretch ends together with it; LB_NONE */
    lb_stretches *out;
    uint32_t room;
    uint8_t *marks[2]; /* per op, while a slice is gathered */
    bool failed;
} finder;

/* ---- small things ---- */

static uint32_t outcomes(const lb_op *op)
{
    return op->results + op->written;
}

static uint32_t outcome(const lb_program *p, const lb_op *op, uint32_t i)
{
    return i < op->results ? lb_op_results(p, op)[i] : lb_op_written(p, op)[i - op->results];
}

typedef struct values {
    uint32_t *list, n, room;
    bool failed;
} values;

static void add_value(void *context, uint32_t value)
{
    values *v = context;
    if (v->n == v->room) {
        uint32_t room = v->room ? 2 * v->room : 8, *grown = realloc(v->list, room * sizeof *grown);
        if (!grown) {
            v->failed = true;
            return;
        }
        v->list = grown, v->room = room;
    }
    v->list[v->n++] = value;
}

static bool has_value(const values *v, uint32_t value)
{
    for (uint32_t i = 0; i < v->n; i++)
        if (v->list[i] == value) return true;
    return false;
}

const lb_value *lb_stretch_value(const lb_stretch_source *s, int side, uint32_t value)
{
    return side ? lb_assemblies_row(s->assemblies, value) : &s->a->program->values[value];
}

bool lb_stretch_bytes(const lb_stretch_source *s, int side, uint32_t value, lb_tensor *tensor)
{
    bool exact;
    if (side && value >= s->b->program->n_values) return lb_assemblies_bytes(s->assemblies, value, tensor);
    return lb_witness_value(s->bytes[side], value, tensor, &exact) && exact;
}

static bool bytes_of(const finder *f, int side, uint32_t value, lb_tensor *tensor)
{
    return lb_stretch_bytes(f->source, side, value, tensor);
}

static bool same_shape(const finder *f, uint32_t va, uint32_t vb)
{
    return lb_layout_same_shape(&lb_stretch_value(f->source, 0, va)->layout,
                                &lb_stretch_value(f->source, 1, vb)->layout);
}

bool lb_stretch_differs(const lb_stretch_source *s, uint32_t va, uint32_t vb)
{
    const lb_value *a = lb_stretch_value(s, 0, va), *b = lb_stretch_value(s, 1, vb);
    if ((a->flags | b->flags) & LB_VALUE_UNDEFINED) return false;
    if (a->dtype == b->dtype && !lb_digest_is_none(a->logical) && !lb_digest_is_none(b->logical))
        return !lb_digest_equal(a->logical, b->logical);
    lb_tensor ta, tb;
    lb_difference d;
    if (!lb_stretch_bytes(s, 0, va, &ta) || !lb_stretch_bytes(s, 1, vb, &tb)) return true;
    return lb_compare_numbers(&ta, &tb, &d, NULL) != LB_OK || d.differing > 0;
}

/* ---- anchors ---- */

static bool are_near(const finder *f, uint32_t va, uint32_t vb)
{
    lb_tensor a, b;
    lb_difference d;
    if (va == LB_NONE || vb == LB_NONE || !same_shape(f, va, vb)) return false;
    if (!lb_stretch_differs(f->source, va, vb)) return true;
    if (!bytes_of(f, 0, va, &a) || !bytes_of(f, 1, vb, &b)) return false;
    return lb_compare_numbers(&a, &b, &d, NULL) == LB_OK && d.rel_l2 < NEAR;
}

/* What stands for outcome `k` of op `i` of A where several ops of B make it; LB_NONE. */
static uint32_t joined_outcome(finder *f, uint32_t i, uint32_t k)
{
    const lb_alignment *al = f->source->alignment;
    if (al->join_of_a[i] == LB_NONE) return LB_NONE;
    const lb_join *join = &al->joins.list[al->join_of_a[i]];
    uint32_t *parts = malloc(join->parts * sizeof *parts), value = LB_NONE,
             whole = outcome(f->p[0], &f->p[0]->ops[i], k);
    f->failed |= !parts;
    if (parts && whole != LB_NONE && lb_join_values(&al->joins, join, f->p[1], k, parts))
        value = lb_assemblies_value(f->source->assemblies, f->p[0], whole, parts, join->parts);
    free(parts);
    return value;
}

/* Input `k` of the ops of a join, put together; LB_NONE. */
static uint32_t joined_input(finder *f, const lb_join *join, uint32_t whole, uint32_t k, uint32_t count)
{
    uint32_t *parts = malloc(join->parts * sizeof *parts), value = LB_NONE;
    bool all = parts && whole != LB_NONE;
    f->failed |= !parts;
    for (uint32_t n = 0; all && n < join->parts; n++) {
        values in = {0};
        const uint32_t op = f->source->alignment->joins.part_ops[join->first + n];
        lb_op_each_input(f->p[1], &f->p[1]->ops[op], add_value, &in);
        all = in.n == count && !in.failed;
        if (all) parts[n] = in.list[k];
        free(in.list);
    }
    if (all) value = lb_assemblies_value(f->source->assemblies, f->p[0], whole, parts, join->parts);
    free(parts);
    return value;
}

/* A join whose inputs cannot be put together (a cache that grows from part to part) is where what they do is no op's business. */
static bool has_whole_inputs(finder *f, uint32_t i)
{
    const lb_join *join = &f->source->alignment->joins.list[f->source->alignment->join_of_a[i]];
    values in = {0};
    bool all = true;
    lb_op_each_input(f->p[0], &f->p[0]->ops[i], add_value, &in);
    for (uint32_t k = 0; k < in.n && all; k++)
        all = in.list[k] == LB_NONE || joined_input(f, join, in.list[k], k, in.n) != LB_NONE;
    f->failed |= in.failed;
    free(in.list);
    return all;
}

/* Is op `i` of A's partner, or are its parts, really what they are? */
static bool is_trusted(finder *f, uint32_t i)
{
    const lb_alignment *al = f->source->alignment;
    uint32_t j = al->b_of_a[i];
    if (j == LB_NONE && al->join_of_a[i] == LB_NONE) return false;
    if (f->trust[i] == UNKNOWN) {
        const lb_op *a = &f->p[0]->ops[i], *b = j == LB_NONE ? NULL : &f->p[1]->ops[j];
        bool sure = !al->irregular[i] || !outcomes(a);
        if (!b && !has_whole_inputs(f, i)) {
            f->trust[i] = DOUBTED;
            return false;
        }
        if (!sure && !b) sure = are_near(f, outcome(f->p[0], a, 0), joined_outcome(f, i, 0));
        if (!sure && b && outcomes(a) == outcomes(b))
            sure = are_near(f, outcome(f->p[0], a, 0), outcome(f->p[1], b, 0));
        f->trust[i] = sure ? SURE : DOUBTED;
    }
    return f->trust[i] == SURE;
}

/* The op of the other side that gives what op `i` gives; LB_NONE. */
static uint32_t partner_op(finder *f, int side, uint32_t i)
{
    const lb_alignment *al = f->source->alignment;
    uint32_t a = side ? al->a_of_b[i] : i;
    if (a != LB_NONE && al->b_of_a[a] != LB_NONE && is_trusted(f, a)) return side ? a : al->b_of_a[a];
    return side ? f->source_a_of_b[i] : al->source_b_of_a[i];
}

/* ---- slices ---- */

static bool can_run(const lb_program *p, const lb_op *op)
{
    return lb_op_computes(p, op) && !(op->flags & (LB_OP_COLLECTIVE | LB_OP_RANDOM));
}

static bool is_joined(finder *f, uint32_t i)
{
    return f->source->alignment->join_of_a[i] != LB_NONE && is_trusted(f, i);
}

static void add_leaf(finder *f, int side, const lb_op *op, uint32_t at, int64_t storage, values *leaves,
                     values *partners)
{
    uint32_t other = partner_op(f, side, at);
    if (other == LB_NONE) other = f->ends[side][at];
    const lb_op *o = other == LB_NONE ? NULL : &f->p[!side]->ops[other];
    for (uint32_t k = 0; k < outcomes(op); k++) {
        uint32_t v = outcome(f->p[side], op, k), w = LB_NONE;
        if (v == LB_NONE || f->p[side]->values[v].storage != storage || has_value(leaves, v)) continue;
        if (o && k < outcomes(o)) w = outcome(f->p[!side], o, k);
        if (!o && !side && is_joined(f, at)) w = joined_outcome(f, at, k);
        add_value(leaves, v), add_value(partners, w);
    }
}

typedef struct slicing {
    finder *f;
    int side;
    uint32_t op; /* whose inputs are followed */
    bool first;  /* it is the reader of what the slice gives */
    values *ops, *leaves, *partners;
} slicing;

static void follow(void *context, uint32_t value);

static void enter(slicing *s, uint32_t def, int64_t storage)
{
    finder *f = s->f;
    const lb_program *p = f->p[s->side];
    const lb_op *op = &p->ops[def];
    if (f->marks[s->side][def]) return;
    const bool anchored = partner_op(f, s->side, def) != LB_NONE || (!s->side && is_joined(f, def)) ||
                          (!s->first && f->ends[s->side][def] != LB_NONE);
    if (!can_run(p, op) || anchored || s->ops->n >= MOST_OPS) {
        add_leaf(f, s->side, op, def, storage, s->leaves, s->partners);
        return;
    }
    f->marks[s->side][def] = 1;
    add_value(s->ops, def);
    slicing inner = *s;
    inner.op = def, inner.first = false;
    lb_op_each_input(p, op, follow, &inner);
}

static void follow(void *context, uint32_t value)
{
    slicing *s = context;
    uint32_t defs[MOST_DEFS];
    if (value == LB_NONE) return;
    const lb_program *p = s->f->p[s->side];
    uint32_t n = lb_flow_defs_of(s->f->flow[s->side], s->op, value, defs, MOST_DEFS);
    for (uint32_t i = 0; i < n && i < MOST_DEFS; i++) enter(s, defs[i], p->values[value].storage);
}

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* What gives `value` as op `reader` reads it; reader LB_NONE: as it is left by op `before - 1`. */
static bool make_slice(finder *f, int side, uint32_t reader, uint32_t before, uint32_t value,
                       lb_stretch_side *out)
{
    values ops = {0}, leaves = {0}, partners = {0};
    slicing s = {f, side, reader, true, &ops, &leaves, &partners};
    const lb_program *p = f->p[side];
    int64_t storage = p->values[value].storage;
    memset(out, 0, sizeof *out);
    if (reader != LB_NONE)
        follow(&s, value);
    else
        for (uint32_t i = before; i-- > 0;) {
            bool gives = false;
            for (uint32_t k = 0; k < outcomes(&p->ops[i]) && lb_op_defines(p, &p->ops[i]); k++) {
                uint32_t v = outcome(p, &p->ops[i], k);
                gives |= v != LB_NONE && p->values[v].storage == storage;
            }
            if (!gives) continue;
            enter(&s, i, storage);
            break;
        }
    for (uint32_t i = 0; i < ops.n; i++) f->marks[side][ops.list[i]] = 0;
    if (ops.n) qsort(ops.list, ops.n, sizeof *ops.list, ascending);
    f->failed |= ops.failed || leaves.failed || partners.failed;
    *out = (lb_stretch_side){.ops = ops.list,
                             .n_ops = ops.n,
                             .leaves = leaves.list,
                             .n_leaves = leaves.n,
                             .partners = partners.list,
                             .outputs = malloc(sizeof *out->outputs)};
    if (out->outputs) *out->outputs = value;
    f->failed |= !out->outputs;
    out->op = ops.n ? ops.list[ops.n - 1] : LB_NONE;
    return !f->failed;
}

static void release_side(lb_stretch_side *side)
{
    free(side->ops), free(side->leaves), free(side->partners), free(side->outputs);
    memset(side, 0, sizeof *side);
}

static bool same_slice(const lb_stretch_side *a, const lb_stretch_side *b)
{
    return a->n_ops == b->n_ops && a->op == b->op && *a->outputs == *b->outputs;
}

static bool is_known(const finder *f, const lb_stretch *s)
{
    for (uint32_t i = f->out->n; i-- > 0;) {
        const lb_stretch *o = &f->out->list[i];
        if (!o->pair && same_slice(&o->sides[0], &s->sides[0]) && same_slice(&o->sides[1], &s->sides[1]))
            return true;
    }
    return false;
}

static void add_stretch(finder *f, lb_stretch *s)
{
    if (f->out->n == f->room) {
        uint32_t room = f->room ? 2 * f->room : 64;
        lb_stretch *grown = realloc(f->out->list, room * sizeof *grown);
        if (!grown) {
            f->failed = true;
            release_side(&s->sides[0]), release_side(&s->sides[1]);
            return;
        }
        f->out->list = grown, f->room = room;
    }
    f->out->list[f->out->n++] = *s;
}

/* A value of each side, as an op reads it or as it stands before one. */
typedef struct sight {
    uint32_t reader, before, value;
} sight;

/* What two stretches end in corresponds, as results of aligned ops do: other stretches may begin there. */
static void note_end(finder *f, const lb_stretch *s)
{
    uint32_t op[2];
    for (int k = 0; k < 2; k++) {
        op[k] = s->sides[k].op;
        if (op[k] == LB_NONE) return;
        const lb_op *last = &f->p[k]->ops[op[k]];
        const uint32_t v = last->results ? lb_op_results(f->p[k], last)[0] : LB_NONE;
        if (v == LB_NONE || f->p[k]->values[v].storage != f->p[k]->values[s->sides[k].outputs[0]].storage)
            return;
    }
    f->ends[0][op[0]] = op[1], f->ends[1][op[1]] = op[0];
}

static void look(finder *f, sight a, sight b)
{
    if (!same_shape(f, a.value, b.value)) return;
    lb_stretch s = {.n_outputs = 1};
    bool made = make_slice(f, 0, a.reader, a.before, a.value, &s.sides[0]) &&
                make_slice(f, 1, b.reader, b.before, b.value, &s.sides[1]);
    bool apart = s.sides[0].n_ops || s.sides[1].n_ops;
    if (made && apart && !is_known(f, &s) && lb_stretch_differs(f->source, a.value, b.value)) {
        note_end(f, &s);
        add_stretch(f, &s);
    } else
        release_side(&s.sides[0]), release_side(&s.sides[1]);
}

/* ---- pairs ---- */

static uint32_t *copied(finder *f, const uint32_t *list, uint32_t n)
{
    uint32_t *copy = malloc((n + 1) * sizeof *copy);
    f->failed |= !copy;
    if (copy && n) memcpy(copy, list, n * sizeof *copy);
    return copy;
}

/* Arguments one by one; a value that is read twice is one leaf. */
static void make_pair_side(finder *f, int side, uint32_t op, const values *mine, const values *theirs,
                           const uint32_t *outs, uint32_t n_outs, lb_stretch_side *out)
{
    values leaves = {0}, partners = {0};
    for (uint32_t k = 0; k < mine->n; k++) {
        if (mine->list[k] == LB_NONE || has_value(&leaves, mine->list[k])) continue;
        add_value(&leaves, mine->list[k]);
        add_value(&partners, mine->n == theirs->n ? theirs->list[k] : LB_NONE);
    }
    (void)side;
    f->failed |= leaves.failed || partners.failed;
    *out = (lb_stretch_side){.ops = copied(f, &op, 1),
                             .n_ops = 1,
                             .leaves = leaves.list,
                             .n_leaves = leaves.n,
                             .partners = partners.list,
                             .outputs = copied(f, outs, n_outs),
                             .op = op};
}

static void look_at_pair(finder *f, uint32_t i, uint32_t j, const values *in_a, const values *in_b)
{
    const lb_op *a = &f->p[0]->ops[i], *b = &f->p[1]->ops[j];
    values outs[2] = {{0}, {0}};
    bool differs = f->source->all;
    for (uint32_t k = 0; k < outcomes(a) && k < outcomes(b); k++) {
        uint32_t va = outcome(f->p[0], a, k), vb = outcome(f->p[1], b, k);
        if (va == LB_NONE || vb == LB_NONE || !same_shape(f, va, vb)) continue;
        if ((f->p[0]->values[va].flags | f->p[1]->values[vb].flags) & LB_VALUE_UNDEFINED) continue;
        if (has_value(&outs[0], va)) continue;
        add_value(&outs[0], va), add_value(&outs[1], vb);
        differs |= lb_stretch_differs(f->source, va, vb);
    }
    if (differs && outs[0].n && can_run(f->p[0], a) && can_run(f->p[1], b)) {
        lb_stretch s = {.n_outputs = outs[0].n, .pair = true};
        make_pair_side(f, 0, i, in_a, in_b, outs[0].list, outs[0].n, &s.sides[0]);
        make_pair_side(f, 1, j, in_b, in_a, outs[1].list, outs[1].n, &s.sides[1]);
        add_stretch(f, &s);
    }
    free(outs[0].list), free(outs[1].list);
}

/* ---- one op against several ---- */

/* A's side of what several ops of B stand for; B has but the output. */
static void add_joined(finder *f, lb_stretch *s, uint32_t output, const lb_join *join, bool same_op)
{
    lb_stretch_side *b = &s->sides[1];
    *b = (lb_stretch_side){.outputs = copied(f, &output, 1),
                           .op = same_op ? f->source->alignment->joins.part_ops[join->first] : LB_NONE};
    s->n_outputs = 1, s->parts = join->parts;
    bool whole = s->sides[0].n_ops > 0 && lb_dtype_is_float(lb_stretch_value(f->source, 1, output)->dtype);
    for (uint32_t k = 0; k < s->sides[0].n_leaves; k++) whole &= s->sides[0].partners[k] != LB_NONE;
    if (whole && !f->failed && !is_known(f, s) && lb_stretch_differs(f->source, s->sides[0].outputs[0], output))
        add_stretch(f, s);
    else
        release_side(&s->sides[0]), release_side(&s->sides[1]);
}

static void look_at_join(finder *f, uint32_t i)
{
    const lb_join *join = &f->source->alignment->joins.list[f->source->alignment->join_of_a[i]];
    const lb_op *op = &f->p[0]->ops[i];
    values in = {0}, others = {0};
    lb_op_each_input(f->p[0], op, add_value, &in);
    for (uint32_t k = 0; k < in.n; k++) {
        const uint32_t other = joined_input(f, join, in.list[k], k, in.n);
        add_value(&others, other);
        lb_stretch s = {0};
        if (other != LB_NONE && make_slice(f, 0, i, i, in.list[k], &s.sides[0]))
            add_joined(f, &s, other, join, false);
    }
    const uint32_t mine = outcomes(op) ? outcome(f->p[0], op, 0) : LB_NONE, theirs = joined_outcome(f, i, 0);
    lb_stretch s = {0};
    if (can_run(f->p[0], op) && mine != LB_NONE && theirs != LB_NONE) {
        make_pair_side(f, 0, i, &in, &others, &mine, 1, &s.sides[0]);
        add_joined(f, &s, theirs, join, true);
    }
    f->failed |= in.failed || others.failed;
    free(in.list), free(others.list);
}

static void look_at_op(finder *f, uint32_t i)
{
    uint32_t j = f->source->alignment->b_of_a[i];
    if (is_joined(f, i)) look_at_join(f, i);
    if (j == LB_NONE || !is_trusted(f, i)) return;
    values a = {0}, b = {0};
    lb_op_each_input(f->p[0], &f->p[0]->ops[i], add_value, &a);
    lb_op_each_input(f->p[1], &f->p[1]->ops[j], add_value, &b);
    for (uint32_t k = 0; k < a.n && a.n == b.n; k++)
        if (a.list[k] != LB_NONE && b.list[k] != LB_NONE)
            look(f, (sight){i, i, a.list[k]}, (sight){j, j, b.list[k]});
    look_at_pair(f, i, j, &a, &b);
    f->failed |= a.failed || b.failed;
    free(a.list), free(b.list);
}

/* ---- what modules give ---- */

static void look_at_modules(finder *f)
{
    const lb_program *a = f->p[0], *b = f->p[1];
    for (uint32_t i = 0; i < a->n_boundaries && !f->failed; i++) {
        const lb_boundary *x = &a->boundaries[i];
        if (!x->output || x->value == LB_NONE) continue;
        for (uint32_t j = 0; j < b->n_boundaries; j++) {
            const lb_boundary *y = &b->boundaries[j];
            if (!y->output || y->value == LB_NONE || y->call != x->call || y->position != x->position ||
                y->recompute != x->recompute ||
                strcmp(f->source->paths[0][x->scope], f->source->paths[1][y->scope]))
                continue;
            look(f, (sight){LB_NONE, x->op, x->value}, (sight){LB_NONE, y->op, y->value});
            break;
        }
    }
}

/* ---- all of it ---- */

static bool open_finder(finder *f)
{
    const lb_alignment *al = f->source->alignment;
    f->trust = calloc(f->p[0]->n_ops + 1, 1);
    f->source_a_of_b = malloc((f->p[1]->n_ops + 1) * sizeof *f->source_a_of_b);
    for (int k = 0; k < 2; k++) {
        f->ends[k] = malloc((f->p[k]->n_ops + 1) * sizeof *f->ends[k]);
        if (!f->ends[k]) return false;
        memset(f->ends[k], 0xFF, f->p[k]->n_ops * sizeof *f->ends[k]);
    }
    f->marks[0] = calloc(f->p[0]->n_ops + 1, 1), f->marks[1] = calloc(f->p[1]->n_ops + 1, 1);
    if (!f->trust || !f->source_a_of_b || !f->marks[0] || !f->marks[1]) return false;
    memset(f->source_a_of_b, 0xFF, f->p[1]->n_ops * sizeof *f->source_a_of_b);
    for (uint32_t i = 0; i < f->p[0]->n_ops; i++)
        if (al->source_b_of_a[i] != LB_NONE) f->source_a_of_b[al->source_b_of_a[i]] = i;
    return true;
}

static uint32_t place_of(const lb_stretch *s)
{
    return s->sides[0].op == LB_NONE ? (s->sides[0].n_leaves ? s->sides[0].leaves[0] : 0) : s->sides[0].op;
}

static int by_place(const void *x, const void *y)
{
    uint32_t a = place_of(x), b = place_of(y);
    return a < b ? -1 : a > b;
}

lb_status lb_stretches_find(const lb_stretch_source *source, lb_stretches *out, lb_err *err)
{
    finder f = {.source = source, .p = {source->a->program, source->b->program}, .out = out};
    memset(out, 0, sizeof *out);
    lb_status status = lb_flow_new(f.p[0], &f.flow[0], err);
    if (status == LB_OK) status = lb_flow_new(f.p[1], &f.flow[1], err);
    if (status == LB_OK) f.failed = !open_finder(&f);
    for (int round = 0; round < 2 && status == LB_OK && !f.failed;
         round++) { /* the second knows where stretches end */
        lb_stretches_release(out);
        f.room = 0;
        for (uint32_t i = 0; !f.failed && i < f.p[0]->n_ops; i++) look_at_op(&f, i);
        if (!f.failed) look_at_modules(&f);
    }
    if (status == LB_OK && f.failed)
        status = lb_fail(err, LB_ERR_NOMEM, "explain: out of memory for stretches");
    if (status == LB_OK && out->n) qsort(out->list, out->n, sizeof *out->list, by_place);
    lb_flow_free(f.flow[0]), lb_flow_free(f.flow[1]);
    free(f.ends[0]), free(f.ends[1]);
    free(f.trust), free(f.source_a_of_b), free(f.marks[0]), free(f.marks[1]);
    if (status != LB_OK) lb_stretches_release(out);
    return status;
}

void lb_stretches_release(lb_stretches *stretches)
{
    for (uint32_t i = 0; i < stretches->n; i++)
        release_side(&stretches->list[i].sides[0]), release_side(&stretches->list[i].sides[1]);
    free(stretches->list);
    memset(stretches, 0, sizeof *stretches);
}
