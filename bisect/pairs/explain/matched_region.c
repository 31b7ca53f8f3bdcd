/* Finding matched regions: see matched_region.h.
 * A cut through both data flows at values that correspond. The cuts are as dense as the alignment
 * allows: of one op orders, kernels and a bound are known, of several together hardly anything, and
 * what upstream did wrong is in the recorded inputs and cancels. Where the alignment has a hole, the
 * matched region reaches back over it, so that no difference is left that no matched region ends in. */
#include "explain/matched_region_finder.h"

#include "ranks/collective_names.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* One value, or another view of all of it. */
/* The same contents are read through several views, by an op and as a module's output. Without this
 * one difference would be reported once for each reader. */
static bool same_output(const lb_region_finder *f, int side, uint32_t a, uint32_t b)
{
    const uint32_t n = f->p[side]->n_values; /* assemblies of B are numbered after them */
    if (a == b || a >= n || b >= n) return a == b;
    const lb_value *x = &f->p[side]->values[a], *y = &f->p[side]->values[b];
    return x->storage == y->storage && x->version == y->version && x->dtype == y->dtype &&
           x->layout.offset == y->layout.offset && lb_layout_numel(&x->layout) == lb_layout_numel(&y->layout);
}

static bool same_slice(const lb_region_finder *f, int side, const lb_matched_region *a, const lb_matched_region *b)
{
    const lb_matched_region_side *x = &a->sides[side], *y = &b->sides[side];
    return x->n_ops == y->n_ops && x->op == y->op && same_output(f, side, *x->outputs, *y->outputs);
}

static bool is_known(const lb_region_finder *f, const lb_matched_region *s)
{
    /* From the back, since the readers of one value follow each other. The search is quadratic in
     * matched regions that are no pairs, and those are the exceptions of a step. */
    for (uint32_t i = f->out->n; i-- > 0;) {
        const lb_matched_region *o = &f->out->list[i];
        if (!o->pair && same_slice(f, 0, o, s) && same_slice(f, 1, o, s)) return true;
    }
    return false;
}

static void add_region(lb_region_finder *f, lb_matched_region *s)
{
    /* The list may move while it grows, for nothing points into it before it is complete. */
    lb_matched_region *grown = lb_array_grow(f->out->list, f->out->n, sizeof *grown);
    if (!grown) {
        f->failed = true;
        lb_region_finder_release_side(&s->sides[0]), lb_region_finder_release_side(&s->sides[1]);
        return;
    }
    f->out->list = grown;
    f->out->list[f->out->n++] = *s;
}

/* A value of each side, as an op reads it or as it stands before one. */
typedef struct sight {
    uint32_t reader, before, value;
} sight;

/* What two matched regions end in corresponds, as results of aligned ops do: other matched regions may begin there.
 * Otherwise a second matched region behind the first would reach back through it to the same anchors,
 * contain its ops again, and report its difference as part of its own. */
static void note_end(lb_region_finder *f, const lb_matched_region *s)
{
    uint32_t op[2];
    for (int k = 0; k < 2; k++) {
        op[k] = s->sides[k].op;
        if (op[k] == LB_NONE) return;
        const lb_op *last = &f->p[k]->ops[op[k]];
        const uint32_t v = last->results ? lb_op_results(f->p[k], last)[0] : LB_NONE;
        /* The first result stands for the op. Where the output is another of its results, whoever
         * begins there would get the wrong one. */
        const lb_value *whole = v == LB_NONE ? NULL : &f->p[k]->values[v],
                       *output = &f->p[k]->values[s->sides[k].outputs[0]];
        if (!whole || whole->storage != output->storage) return;
        /* Of two implementations: a window on a fused product is not the product. */
        if (f->source->held[0] && lb_layout_numel(&whole->layout) != lb_layout_numel(&output->layout)) return;
    }
    f->ends[0][op[0]] = op[1], f->ends[1][op[1]] = op[0];
}

/* Does what both sides have in one shape follow, on the side with the larger batch, from values that carry its rows? */
static bool is_over_others(const lb_region_finder *f, const lb_matched_region *s)
{
    const lb_matched_region_side *b = &s->sides[1];
    bool any = false;
    for (uint32_t i = 0; i < b->n_leaves && f->source->alignment->joins.rows && b->n_ops; i++)
        any |= b->partners[i] != LB_NONE && !lb_region_finder_same_shape(f, b->partners[i], b->leaves[i]);
    return any;
}

/* The comparison comes last, because it may read both tensors: most slices between two anchors are
 * empty, and what is known already needs none. */
/* Does one side begin at a value whose partner the other side does not begin at? Where a result goes from one rank to
 * the others on one side, and each rank makes its own on the other, the region of rank 1 would begin on one side where
 * that of rank 0 ends. */
static bool begins_alone(const lb_matched_region *s)
{
    for (int side = 0; side < 2; side++) {
        const lb_matched_region_side *x = &s->sides[side], *y = &s->sides[!side];
        for (uint32_t i = 0; i < x->n_leaves; i++) {
            bool there = x->partners[i] == LB_NONE;
            for (uint32_t k = 0; k < y->n_leaves && !there; k++) there = y->leaves[k] == x->partners[i];
            if (!there) return true;
        }
    }
    return false;
}

static bool slice_both(lb_region_finder *f, sight a, sight b, lb_matched_region *s)
{
    return lb_region_finder_make_slice(f, 0, a.reader, a.before, a.value, &s->sides[0]) &&
           lb_region_finder_make_slice(f, 1, b.reader, b.before, b.value, &s->sides[1]);
}

static void look(lb_region_finder *f, sight a, sight b)
{
    if (!lb_region_finder_same_shape(f, a.value, b.value)) return;
    lb_matched_region s = {.n_outputs = 1};
    bool made = slice_both(f, a, b, &s);
    if (made && f->source->collective_matches[0] && begins_alone(&s)) {
        lb_matched_region longer = {.n_outputs = 1};
        f->no_ends = true;
        made = slice_both(f, a, b, &longer);
        f->no_ends = false;
        const bool better = made && !begins_alone(&longer);
        for (int k = 0; k < 2; k++) lb_region_finder_release_side(better ? &s.sides[k] : &longer.sides[k]);
        if (better) s = longer;
    }
    /* No ops on either side: the value is an anchor's result, and the pair that gave it owns the
     * difference. */
    bool apart = s.sides[0].n_ops || s.sides[1].n_ops;
    if (made && apart && is_over_others(f, &s)) {
        f->out->over_others++;
        apart = false;
    }
    if (made && apart && !is_known(f, &s) && lb_matched_region_differs(f->source, a.value, b.value)) {
        note_end(f, &s);
        add_region(f, &s);
    } else
        lb_region_finder_release_side(&s.sides[0]), lb_region_finder_release_side(&s.sides[1]);
}

/* ---- pairs ---- */

static uint32_t *copied(lb_region_finder *f, const uint32_t *list, uint32_t n)
{
    uint32_t *copy = malloc((n + 1) * sizeof *copy);
    f->failed |= !copy;
    if (copy && n) memcpy(copy, list, n * sizeof *copy);
    return copy;
}

/* `op` is named, `list` is run. */
typedef struct run_ops {
    uint32_t op;
    const uint32_t *list;
    uint32_t n;
} run_ops;

/* Arguments one by one; a value that is read twice is one leaf. */
static void make_pair_side(lb_region_finder *f, run_ops ops, const lb_region_finder_values *mine,
                           const lb_region_finder_values *theirs, const lb_region_finder_values *outs,
                           lb_matched_region_side *out)
{
    lb_region_finder_values leaves = {0}, partners = {0};
    for (uint32_t k = 0; k < mine->n; k++) {
        /* x * x has one leaf: two would let a subprogram hold two numbers for one input. */
        if (mine->list[k] == LB_NONE || lb_region_finder_values_has(&leaves, mine->list[k])) continue;
        lb_region_finder_values_add(&leaves, mine->list[k]);
        lb_region_finder_values_add(&partners, mine->n == theirs->n ? theirs->list[k] : LB_NONE);
    }
    f->failed |= leaves.failed || partners.failed;
    *out = (lb_matched_region_side){.ops = copied(f, ops.list, ops.n),
                                    .n_ops = ops.n,
                                    .leaves = leaves.list,
                                    .n_leaves = leaves.n,
                                    .partners = partners.list,
                                    .outputs = copied(f, outs->list, outs->n),
                                    .op = ops.op};
}

/* Outcomes that correspond, one after the other; true: some pair of them differs. */
static bool pair_outcomes(lb_region_finder *f, uint32_t i, uint32_t j, lb_region_finder_values *mine,
                          lb_region_finder_values *theirs)
{
    const lb_op *a = &f->p[0]->ops[i], *b = &f->p[1]->ops[j];
    bool differs = false;
    for (uint32_t k = 0; k < lb_op_outcomes(a) && k < lb_op_outcomes(b); k++) {
        uint32_t va = lb_op_outcome(f->p[0], a, k), vb = lb_op_outcome(f->p[1], b, k);
        if (va == LB_NONE || vb == LB_NONE || !lb_region_finder_same_shape(f, va, vb)) continue;
        /* What `empty` left in memory differs from run to run and means nothing. */
        if ((f->p[0]->values[va].flags | f->p[1]->values[vb].flags) & LB_VALUE_UNDEFINED) continue;
        if (lb_region_finder_values_has(mine, va)) continue;
        lb_region_finder_values_add(mine, va), lb_region_finder_values_add(theirs, vb);
        differs |= lb_matched_region_differs(f->source, va, vb);
    }
    return differs;
}

/* Do both read the same things, one by one? */
static bool reads_partners(lb_region_finder *f, uint32_t i, uint32_t j)
{
    const lb_alignment *al = f->source->alignment;
    lb_region_finder_values x = {0}, y = {0};
    lb_op_each_input(f->p[0], &f->p[0]->ops[i], lb_region_finder_values_add, &x);
    lb_op_each_input(f->p[1], &f->p[1]->ops[j], lb_region_finder_values_add, &y);
    bool all = x.n == y.n;
    for (uint32_t k = 0; k < x.n && all; k++) {
        if (x.list[k] == LB_NONE || y.list[k] == LB_NONE) {
            all = x.list[k] == y.list[k];
            continue;
        }
        const uint32_t a = lb_region_finder_maker(f, 0, i, x.list[k]), b = lb_region_finder_maker(f, 1, j, y.list[k]);
        all = a != LB_NONE && b != LB_NONE && (al->b_of_a[a] == b || al->source_b_of_a[a] == b);
    }
    f->failed |= x.failed || y.failed;
    free(x.list), free(y.list);
    return all;
}

/* Of two implementations ops are partners by what they give: they may be other ops, or read other things. Then what
 * lies before them, back to where the sides meet, is one region. */
static bool looks_behind(lb_region_finder *f, uint32_t i, uint32_t j)
{
    const lb_op *a = &f->p[0]->ops[i], *b = &f->p[1]->ops[j];
    if (!f->source->held[0] || !lb_op_outcomes(a) || !lb_op_outcomes(b)) return false;
    if (!strcmp(lb_op_name(f->p[0], a), lb_op_name(f->p[1], b)) && reads_partners(f, i, j)) return false;
    f->opened[0] = i, f->opened[1] = j;
    look(f, (sight){LB_NONE, i + 1, lb_op_outcome(f->p[0], a, 0)},
         (sight){LB_NONE, j + 1, lb_op_outcome(f->p[1], b, 0)});
    f->opened[0] = f->opened[1] = LB_NONE;
    return true;
}

static void look_at_pair(lb_region_finder *f, uint32_t i, uint32_t j)
{
    uint32_t n[2];
    const uint32_t *ops[] = {lb_matched_region_members(f->source, 0, &i, &n[0]),
                             lb_matched_region_members(f->source, 1, &j, &n[1])};
    lb_region_finder_values in[2] = {{0}, {0}}, outs[2] = {{0}, {0}};
    bool differs = f->source->all;
    /* A collective is one act of all its members. Only the first of them is looked at; each of the
     * others would tell the same difference once more. */
    if (!lb_region_finder_can_run(f, 0, i) || !lb_region_finder_can_run(f, 1, j) || n[0] != n[1] || *ops[0] != i)
        return; /* one for all members */
    if (looks_behind(f, i, j)) return;
    for (uint32_t k = 0; k < n[0]; k++) {
        /* A member that receives nothing (of a gather to rank 0) leaves what it had, and a
         * difference there was not made here. */
        if (n[0] == 1 || lb_collective_run_receives(f->p[0], &f->p[0]->ops[ops[0][k]], k))
            differs |= pair_outcomes(f, ops[0][k], ops[1][k], &outs[0], &outs[1]);
        for (int side = 0; side < 2; side++)
            lb_op_each_input(f->p[side], &f->p[side]->ops[ops[side][k]], lb_region_finder_values_add, &in[side]);
    }
    if (differs && outs[0].n) {
        lb_matched_region s = {.n_outputs = outs[0].n, .pair = true};
        make_pair_side(f, (run_ops){i, ops[0], n[0]}, &in[0], &in[1], &outs[0], &s.sides[0]);
        make_pair_side(f, (run_ops){j, ops[1], n[1]}, &in[1], &in[0], &outs[1], &s.sides[1]);
        add_region(f, &s);
    }
    for (int side = 0; side < 2; side++) {
        f->failed |= in[side].failed || outs[side].failed;
        free(in[side].list), free(outs[side].list);
    }
}

/* ---- one op against several ---- */

/* A's side of what several ops of B stand for; B has but the output.
 * Running B's ops as well would need them to run together on the whole, which is what A's op is; so
 * what can be asked is whether A's kernel gives the bits of B's parts. */
static void add_joined(lb_region_finder *f, lb_matched_region *s, uint32_t output, const lb_reassembly *join,
                       bool same_op)
{
    lb_matched_region_side *b = &s->sides[1];
    *b = (lb_matched_region_side){.outputs = copied(f, &output, 1),
                                  .op = same_op ? f->source->alignment->joins.part_ops[join->first] : LB_NONE};
    /* One output: several would have to come together along the same pieces, which outcomes of one
     * op need not. */
    s->n_outputs = 1, s->parts = join->parts;
    /* A's ops run on B's parts put together, so that every leaf needs a partner; with one missing,
     * A's own number in its place would make a difference of sides one of parts. Integers line up
     * by counting and have no order of sums to be explained by. */
    bool whole = s->sides[0].n_ops > 0 && lb_dtype_is_float(lb_matched_region_value(f->source, 1, output)->dtype);
    for (uint32_t k = 0; k < s->sides[0].n_leaves; k++) whole &= s->sides[0].partners[k] != LB_NONE;
    if (whole && !f->failed && !is_known(f, s) && lb_matched_region_differs(f->source, s->sides[0].outputs[0], output))
        add_region(f, s);
    else
        lb_region_finder_release_side(&s->sides[0]), lb_region_finder_release_side(&s->sides[1]);
}

/* Outcomes of a larger batch's op that A's rows have a share in; true: some of them differ. */
static bool rows_outcomes(lb_region_finder *f, uint32_t i, lb_region_finder_values *mine,
                          lb_region_finder_values *theirs)
{
    const lb_alignment *al = f->source->alignment;
    const lb_op *op = &f->p[0]->ops[i];
    const uint32_t other = al->joins.part_ops[al->joins.list[al->join_of_a[i]].first];
    const bool reads = lb_alignment_reads_rows(al, f->p[0], i, f->p[1], other);
    bool differs = false, over_others = false;
    for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
        const uint32_t va = lb_op_outcome(f->p[0], op, k), vb = lb_region_finder_joined_outcome(f, i, k);
        if (va == LB_NONE || vb == LB_NONE || lb_region_finder_values_has(mine, va)) continue;
        const lb_value *theirs_row = lb_matched_region_value(f->source, 1, vb);
        if ((f->p[0]->values[va].flags | theirs_row->flags) & LB_VALUE_UNDEFINED) continue;
        /* A mean over all rows has one shape in both batches: it is no assembly of rows, and
         * differs because the batches do. It is counted and said, and never explained. */
        if (reads && vb < f->p[1]->n_values) {
            over_others |= lb_dtype_is_float(theirs_row->dtype);
            continue;
        }
        if (!lb_dtype_is_float(theirs_row->dtype)) continue;
        lb_region_finder_values_add(mine, va), lb_region_finder_values_add(theirs, vb);
        differs |= lb_matched_region_differs(f->source, va, vb);
    }
    f->out->over_others += over_others;
    return differs;
}

/* One op against one with a larger batch. */
/* Here both sides can run: the larger batch's op as well, on rows in the shape of the smaller's.
 * With several parts B is only looked at, since its ops saw pieces that no single op of A saw. */
static void look_at_rows(lb_region_finder *f, uint32_t i, const lb_region_finder_values *in,
                         const lb_region_finder_values *others)
{
    const lb_alignment *al = f->source->alignment;
    const uint32_t other = al->joins.part_ops[al->joins.list[al->join_of_a[i]].first];
    lb_region_finder_values mine = {0}, theirs = {0};
    const bool differs = lb_region_finder_can_run(f, 0, i) && rows_outcomes(f, i, &mine, &theirs);
    if (differs && !mine.failed && !theirs.failed) {
        lb_matched_region s = {.n_outputs = mine.n, .parts = 1};
        make_pair_side(f, (run_ops){i, &i, 1}, in, others, &mine, &s.sides[0]);
        make_pair_side(f, (run_ops){other, &other, 1}, others, in, &theirs, &s.sides[1]);
        add_region(f, &s);
    }
    f->failed |= mine.failed || theirs.failed;
    free(mine.list), free(theirs.list);
}

static void look_at_join(lb_region_finder *f, uint32_t i)
{
    const lb_reassembly *join = &f->source->alignment->joins.list[f->source->alignment->join_of_a[i]];
    const lb_op *op = &f->p[0]->ops[i];
    lb_region_finder_values in = {0}, others = {0};
    lb_op_each_input(f->p[0], op, lb_region_finder_values_add, &in);
    for (uint32_t k = 0; k < in.n; k++) {
        const uint32_t other = lb_region_finder_joined_input(f, join, in.list[k], k, in.n);
        lb_region_finder_values_add(&others, other);
        lb_matched_region s = {0};
        /* First what lies before the join, input by input, then the joined op itself: a difference
         * that entered with an input is told where it was made. */
        if (other != LB_NONE && lb_region_finder_make_slice(f, 0, i, i, in.list[k], &s.sides[0]))
            add_joined(f, &s, other, join, false);
    }
    uint32_t mine = lb_op_outcomes(op) ? lb_op_outcome(f->p[0], op, 0) : LB_NONE;
    const uint32_t theirs = lb_region_finder_joined_outcome(f, i, 0);
    lb_matched_region s = {0};
    if (f->source->alignment->joins.rows)
        look_at_rows(f, i, &in, &others);
    else if (lb_region_finder_can_run(f, 0, i) && mine != LB_NONE && theirs != LB_NONE) {
        make_pair_side(f, (run_ops){i, &i, 1}, &in, &others, &(lb_region_finder_values){.list = &mine, .n = 1},
                       &s.sides[0]);
        add_joined(f, &s, theirs, join, true);
    }
    f->failed |= in.failed || others.failed;
    free(in.list), free(others.list);
}

static void look_at_op(lb_region_finder *f, uint32_t i)
{
    uint32_t j = f->source->alignment->b_of_a[i];
    /* An op is joined or paired; a pair in doubt is no anchor, and is passed through by the
     * matched regions behind it. */
    if (lb_region_finder_is_joined(f, i)) look_at_join(f, i);
    if (j == LB_NONE || !lb_region_finder_is_trusted(f, i)) return;
    lb_region_finder_values a = {0}, b = {0};
    lb_op_each_input(f->p[0], &f->p[0]->ops[i], lb_region_finder_values_add, &a);
    lb_op_each_input(f->p[1], &f->p[1]->ops[j], lb_region_finder_values_add, &b);
    for (uint32_t k = 0; k < a.n && a.n == b.n; k++)
        if (a.list[k] != LB_NONE && b.list[k] != LB_NONE) look(f, (sight){i, i, a.list[k]}, (sight){j, j, b.list[k]});
    look_at_pair(f, i, j);
    f->failed |= a.failed || b.failed;
    free(a.list), free(b.list);
}

/* ---- what modules give ---- */

/* Of several ranks a module of each has its output.
 * Its path is the same on every rank, so that the path alone would hold rank 0 against rank 1. */
static bool same_rank(const lb_region_finder *f, uint32_t va, uint32_t vb)
{
    uint32_t row;
    return !f->source->collective_matches[0] || lb_program_view_recorded(f->source->a, va, &row)->rank ==
                                                    lb_program_view_recorded(f->source->b, vb, &row)->rank;
}

/* Outputs of modules are anchors that need no aligned op: where a side computes a whole layer by
 * different ops, they are the only places that both sides agree upon. Nested loops, for a model has
 * hundreds of boundaries and each row ends its search at the first that fits. */
static void look_at_modules(lb_region_finder *f)
{
    const lb_program *a = f->p[0], *b = f->p[1];
    const lb_forwards *passes = &f->source->alignment->forwards;
    for (uint32_t i = 0; i < a->n_boundaries && !f->failed; i++) {
        const lb_boundary *x = &a->boundaries[i];
        if (!x->output || x->value == LB_NONE) continue;
        const uint32_t call = lb_forwards_call(passes, 0, a, x);
        for (uint32_t j = 0; j < b->n_boundaries; j++) {
            const lb_boundary *y = &b->boundaries[j];
            if (!y->output || y->value == LB_NONE || y->position != x->position ||
                lb_forwards_call(passes, 1, b, y) != call || y->recompute != x->recompute ||
                strcmp(f->source->paths[0][x->scope], f->source->paths[1][y->scope]) ||
                !same_rank(f, x->value, y->value))
                continue;
            /* Tokens sorted by expert in two orders are the same rows: a matched region that ends there
             * would hold each token against another one. */
            if (!lb_region_finder_is_moved(f, x->scope, LB_PHASE_FORWARD, x->value, y->value))
                look(f, (sight){LB_NONE, x->op, x->value}, (sight){LB_NONE, y->op, y->value});
            break;
        }
    }
}

/* ---- all of it ---- */

static bool open_finder(lb_region_finder *f)
{
    const lb_alignment *al = f->source->alignment;
    f->trust = calloc(f->p[0]->n_ops + 1, 1);
    f->sorted = calloc(f->p[0]->n_ops + 1, sizeof *f->sorted);
    f->returned = calloc(f->p[0]->n_scopes + 1, 1), f->left = calloc(f->p[0]->n_scopes + 1, 1);
    f->source_a_of_b = malloc((f->p[1]->n_ops + 1) * sizeof *f->source_a_of_b);
    for (int k = 0; k < 2; k++) {
        f->ends[k] = malloc((f->p[k]->n_ops + 1) * sizeof *f->ends[k]);
        f->marks[k] = calloc(f->p[k]->n_ops + 1, 1), f->inside[k] = calloc(f->p[k]->n_ops + 1, 1);
        if (!f->ends[k] || !f->marks[k] || !f->inside[k]) return false;
        memset(f->ends[k], 0xFF, f->p[k]->n_ops * sizeof *f->ends[k]);
    }
    if (!f->trust || !f->sorted || !f->returned || !f->left || !f->source_a_of_b) return false;
    memset(f->source_a_of_b, 0xFF, f->p[1]->n_ops * sizeof *f->source_a_of_b);
    for (uint32_t i = 0; i < f->p[0]->n_ops; i++)
        if (al->source_b_of_a[i] != LB_NONE) f->source_a_of_b[al->source_b_of_a[i]] = i;
    return true;
}

/* A matched region without ops of A has no place among them; its leaf, or else the front, keeps the order
 * fixed. */
static uint32_t place_of(const lb_matched_region *s)
{
    return s->sides[0].op == LB_NONE ? (s->sides[0].n_leaves ? s->sides[0].leaves[0] : 0) : s->sides[0].op;
}

static int by_place(const void *x, const void *y)
{
    uint32_t a = place_of(x), b = place_of(y);
    return a < b ? -1 : a > b;
}

lb_status lb_matched_regions_find(const lb_matched_region_source *source, lb_matched_regions *out, lb_err *err)
{
    lb_region_finder f = {
        .source = source, .p = {source->a->program, source->b->program}, .out = out, .opened = {LB_NONE, LB_NONE}};
    memset(out, 0, sizeof *out);
    lb_status status = lb_slice_flow_new(f.p[0], &f.flow[0], err);
    if (status == LB_OK) status = lb_slice_flow_new(f.p[1], &f.flow[1], err);
    if (status == LB_OK) f.failed = !open_finder(&f);
    if (status == LB_OK && !f.failed && source->alignment->joins.rows) lb_region_finder_settle(&f);
    /* Two rounds instead of a fixed point: ends are found while matched regions are, so that the first round
     * may reach through an end that a later look finds; the second begins with all of those. */
    for (int round = 0; round < 2 && status == LB_OK && !f.failed;
         round++) { /* the second knows where matched regions end */
        lb_matched_regions_release(out);
        for (uint32_t i = 0; !f.failed && i < f.p[0]->n_ops; i++) look_at_op(&f, i);
        if (!f.failed) look_at_modules(&f);
    }
    if (status == LB_OK && !f.failed && out->n) {
        qsort(out->list, out->n, sizeof *out->list, by_place);
        status = lb_region_finder_grow(&f, err);
    }
    if (status == LB_OK && f.failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for matched regions");
    lb_slice_flow_free(f.flow[0]), lb_slice_flow_free(f.flow[1]);
    free(f.ends[0]), free(f.ends[1]);
    free(f.trust), free(f.sorted), free(f.returned), free(f.left), free(f.source_a_of_b), free(f.marks[0]),
        free(f.marks[1]);
    free(f.inside[0]), free(f.inside[1]);
    if (status != LB_OK) lb_matched_regions_release(out);
    return status;
}

static void release(lb_matched_region *s)
{
    if (s->whole) release(s->whole);
    free(s->whole);
    lb_region_finder_release_side(&s->sides[0]), lb_region_finder_release_side(&s->sides[1]);
}

void lb_matched_regions_release(lb_matched_regions *regions)
{
    for (uint32_t i = 0; i < regions->n; i++) release(&regions->list[i]);
    free(regions->list);
    memset(regions, 0, sizeof *regions);
}
