/* Finding matched regions: see matched_region.h.
 * A cut through both data flows at values that correspond. The cuts are as dense as the alignment
 * allows: of one op orders, kernels and a bound are known, of several together hardly anything, and
 * what upstream did wrong is in the recorded inputs and cancels. Where the alignment has a hole, the
 * matched region reaches back over it, so that no difference is left that no matched region ends in. */
#include "explain/matched_region_finder.h"

#include "ranks/collective_names.h"
#include "subprogram/rank_rows.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* One value, or another view of all of it. */
/* The same contents are read through several views, by an op and as a module's output. Without this
 * one difference would be reported once for each reader. */
static bool same_output(const lb_region_finder *finder, int side, uint32_t a, uint32_t b)
{
    const uint32_t n = finder->p[side]->n_values; /* assemblies of B are numbered after them */
    if (a == b || a >= n || b >= n) return a == b;
    const lb_value *x = &finder->p[side]->values[a], *y = &finder->p[side]->values[b];
    return x->storage == y->storage && x->version == y->version && x->dtype == y->dtype &&
           x->layout.offset == y->layout.offset && lb_layout_numel(&x->layout) == lb_layout_numel(&y->layout);
}

static bool same_slice(const lb_region_finder *finder, int side, const lb_matched_region *a, const lb_matched_region *b)
{
    const lb_matched_region_side *x = &a->sides[side], *y = &b->sides[side];
    return x->n_ops == y->n_ops && x->op == y->op && same_output(finder, side, *x->outputs, *y->outputs);
}

static bool is_known(const lb_region_finder *finder, const lb_matched_region *s)
{
    /* From the back, since the readers of one value follow each other. The search is quadratic in
     * matched regions that are no pairs, and those are the exceptions of a step. */
    for (uint32_t i = finder->out->n; i-- > 0;) {
        const lb_matched_region *region = &finder->out->list[i];
        if (!region->pair && same_slice(finder, 0, region, s) && same_slice(finder, 1, region, s)) return true;
    }
    return false;
}

static void add_region(lb_region_finder *finder, lb_matched_region *region)
{
    /* The list may move while it grows, for nothing points into it before it is complete. */
    lb_matched_region *grown = lb_array_grow(finder->out->list, finder->out->n, sizeof *grown);
    if (!grown) {
        finder->failed = true;
        lb_region_finder_release_side(&region->sides[0]), lb_region_finder_release_side(&region->sides[1]);
        return;
    }
    finder->out->list = grown;
    finder->out->list[finder->out->n++] = *region;
}

/* A value of each side, as an op reads it or as it stands before one. */
typedef struct sight {
    uint32_t reader, before, value;
} sight;

/* What two matched regions end in corresponds, as results of aligned ops do: other matched regions may begin there.
 * Otherwise a second matched region behind the first would reach back through it to the same anchors,
 * contain its ops again, and report its difference as part of its own. */
static void note_end(lb_region_finder *finder, const lb_matched_region *region)
{
    uint32_t op[2];
    for (int k = 0; k < 2; k++) {
        op[k] = region->sides[k].op;
        if (op[k] == LB_NONE) return;
        const lb_op *last = &finder->p[k]->ops[op[k]];
        const uint32_t v = last->results ? lb_op_results(finder->p[k], last)[0] : LB_NONE;
        /* The first result stands for the op. Where the output is another of its results, a region
         * that begins there would get the wrong one. */
        const lb_value *whole = v == LB_NONE ? NULL : &finder->p[k]->values[v],
                       *output = &finder->p[k]->values[region->sides[k].outputs[0]];
        if (!whole || whole->storage != output->storage) return;
        /* Of two implementations: a window on a fused product is not the product. */
        if (finder->source->held[0] && lb_layout_numel(&whole->layout) != lb_layout_numel(&output->layout)) return;
    }
    finder->ends[0][op[0]] = op[1], finder->ends[1][op[1]] = op[0];
}

/* Does what both sides have in one shape follow, on the side with the larger batch, from values that carry its rows? */
static bool is_over_others(const lb_region_finder *finder, const lb_matched_region *region)
{
    const lb_matched_region_side *side = &region->sides[1];
    bool any = false;
    for (uint32_t i = 0; i < side->n_leaves && finder->source->alignment->joins.rows && side->n_ops; i++)
        any |= side->partners[i] != LB_NONE && !lb_region_finder_same_shape(finder, side->partners[i], side->leaves[i]);
    return any;
}

/* The comparison comes last, because it may read both tensors: most slices between two anchors are
 * empty, and what is known already needs none. */
/* Does one side begin at a value whose partner the other side does not begin at? Where a result goes from one rank to
 * the others on one side, and each rank makes its own on the other, the region of rank 1 would begin on one side where
 * that of rank 0 ends. */
static bool begins_alone(const lb_matched_region *region)
{
    for (int side = 0; side < 2; side++) {
        const lb_matched_region_side *x = &region->sides[side], *y = &region->sides[!side];
        for (uint32_t i = 0; i < x->n_leaves; i++) {
            bool there = x->partners[i] == LB_NONE;
            for (uint32_t k = 0; k < y->n_leaves && !there; k++) there = y->leaves[k] == x->partners[i];
            if (!there) return true;
        }
    }
    return false;
}

static bool slice_both(lb_region_finder *finder, sight a, sight b, lb_matched_region *region)
{
    return lb_region_finder_make_slice(finder, 0, a.reader, a.before, a.value, &region->sides[0]) &&
           lb_region_finder_make_slice(finder, 1, b.reader, b.before, b.value, &region->sides[1]);
}

static void look(lb_region_finder *finder, sight a, sight b)
{
    if (!lb_region_finder_same_shape(finder, a.value, b.value)) return;
    lb_matched_region region = {.n_outputs = 1};
    bool made = slice_both(finder, a, b, &region);
    if (made && finder->source->collective_matches[0] && begins_alone(&region)) {
        lb_matched_region longer = {.n_outputs = 1};
        finder->no_ends = true;
        made = slice_both(finder, a, b, &longer);
        finder->no_ends = false;
        const bool better = made && !begins_alone(&longer);
        for (int k = 0; k < 2; k++) lb_region_finder_release_side(better ? &region.sides[k] : &longer.sides[k]);
        if (better) region = longer;
    }
    /* No ops on either side: the value is an anchor's result, and the pair that gave it owns the
     * difference. */
    bool apart = region.sides[0].n_ops || region.sides[1].n_ops;
    if (made && apart && is_over_others(finder, &region)) {
        finder->out->over_others++;
        apart = false;
    }
    if (made && apart && !is_known(finder, &region) && lb_matched_region_differs(finder->source, a.value, b.value)) {
        note_end(finder, &region);
        add_region(finder, &region);
    } else
        lb_region_finder_release_side(&region.sides[0]), lb_region_finder_release_side(&region.sides[1]);
}

/* ---- pairs ---- */

static uint32_t *copied(lb_region_finder *finder, const uint32_t *list, uint32_t n)
{
    uint32_t *copy = malloc((n + 1) * sizeof *copy);
    finder->failed |= !copy;
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
static void make_pair_side(lb_region_finder *finder, run_ops ops, const lb_region_finder_values *mine,
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
    finder->failed |= leaves.failed || partners.failed;
    *out = (lb_matched_region_side){.ops = copied(finder, ops.list, ops.n),
                                    .n_ops = ops.n,
                                    .leaves = leaves.list,
                                    .n_leaves = leaves.n,
                                    .partners = partners.list,
                                    .outputs = copied(finder, outs->list, outs->n),
                                    .op = ops.op};
}

/* Outcomes that correspond, one after the other; true: some pair of them differs. */
static bool pair_outcomes(lb_region_finder *finder, uint32_t i, uint32_t j, lb_region_finder_values *mine,
                          lb_region_finder_values *theirs)
{
    const lb_op *a = &finder->p[0]->ops[i], *b = &finder->p[1]->ops[j];
    bool differs = false;
    for (uint32_t k = 0; k < lb_op_outcomes(a) && k < lb_op_outcomes(b); k++) {
        uint32_t va = lb_op_outcome(finder->p[0], a, k), vb = lb_op_outcome(finder->p[1], b, k);
        if (va == LB_NONE || vb == LB_NONE || !lb_region_finder_same_shape(finder, va, vb)) continue;
        /* What `empty` left in memory differs from run to run and means nothing. */
        if ((finder->p[0]->values[va].flags | finder->p[1]->values[vb].flags) & LB_VALUE_UNDEFINED) continue;
        if (lb_region_finder_values_has(mine, va)) continue;
        lb_region_finder_values_add(mine, va), lb_region_finder_values_add(theirs, vb);
        differs |= lb_matched_region_differs(finder->source, va, vb);
    }
    return differs;
}

/* Do both read the same things, one by one? */
static bool reads_partners(lb_region_finder *finder, uint32_t i, uint32_t j)
{
    const lb_alignment *al = finder->source->alignment;
    lb_region_finder_values values = {0}, y = {0};
    lb_op_each_input(finder->p[0], &finder->p[0]->ops[i], lb_region_finder_values_add, &values);
    lb_op_each_input(finder->p[1], &finder->p[1]->ops[j], lb_region_finder_values_add, &y);
    bool all = values.n == y.n;
    for (uint32_t k = 0; k < values.n && all; k++) {
        if (values.list[k] == LB_NONE || y.list[k] == LB_NONE) {
            all = values.list[k] == y.list[k];
            continue;
        }
        const uint32_t a = lb_region_finder_maker(finder, 0, i, values.list[k]),
                       b = lb_region_finder_maker(finder, 1, j, y.list[k]);
        all = a != LB_NONE && b != LB_NONE && (al->b_of_a[a] == b || al->source_b_of_a[a] == b);
    }
    finder->failed |= values.failed || y.failed;
    free(values.list), free(y.list);
    return all;
}

/* Of two implementations ops are partners by what they give: they may be other ops, or read other things. Then what
 * lies before them, back to where the sides meet, is one region. */
static bool looks_behind(lb_region_finder *finder, uint32_t i, uint32_t j)
{
    const lb_op *a = &finder->p[0]->ops[i], *b = &finder->p[1]->ops[j];
    if (!finder->source->held[0] || !lb_op_outcomes(a) || !lb_op_outcomes(b)) return false;
    if (!strcmp(lb_op_name(finder->p[0], a), lb_op_name(finder->p[1], b)) && reads_partners(finder, i, j)) return false;
    finder->opened[0] = i, finder->opened[1] = j;
    look(finder, (sight){LB_NONE, i + 1, lb_op_outcome(finder->p[0], a, 0)},
         (sight){LB_NONE, j + 1, lb_op_outcome(finder->p[1], b, 0)});
    finder->opened[0] = finder->opened[1] = LB_NONE;
    return true;
}

static void look_at_pair(lb_region_finder *finder, uint32_t i, uint32_t j)
{
    uint32_t n[2];
    const uint32_t *ops[] = {lb_matched_region_members(finder->source, 0, &i, &n[0]),
                             lb_matched_region_members(finder->source, 1, &j, &n[1])};
    lb_region_finder_values in[2] = {{0}, {0}}, outs[2] = {{0}, {0}};
    bool differs = finder->source->all;
    /* A collective is one act of all its members. Only the first of them is looked at; each of the
     * others would tell the same difference once more. */
    if (!lb_region_finder_can_run(finder, 0, i) || !lb_region_finder_can_run(finder, 1, j) || n[0] != n[1] ||
        *ops[0] != i)
        return; /* one for all members */
    if (looks_behind(finder, i, j)) return;
    for (uint32_t k = 0; k < n[0]; k++) {
        /* A member that receives nothing (of a gather to rank 0) leaves what it had, and a
         * difference there was not made here. */
        if (n[0] == 1 || lb_collective_run_receives(finder->p[0], &finder->p[0]->ops[ops[0][k]], k))
            differs |= pair_outcomes(finder, ops[0][k], ops[1][k], &outs[0], &outs[1]);
        for (int side = 0; side < 2; side++)
            lb_op_each_input(finder->p[side], &finder->p[side]->ops[ops[side][k]], lb_region_finder_values_add,
                             &in[side]);
    }
    if (differs && outs[0].n) {
        lb_matched_region region = {.n_outputs = outs[0].n, .pair = true};
        make_pair_side(finder, (run_ops){i, ops[0], n[0]}, &in[0], &in[1], &outs[0], &region.sides[0]);
        make_pair_side(finder, (run_ops){j, ops[1], n[1]}, &in[1], &in[0], &outs[1], &region.sides[1]);
        add_region(finder, &region);
    }
    for (int side = 0; side < 2; side++) {
        finder->failed |= in[side].failed || outs[side].failed;
        free(in[side].list), free(outs[side].list);
    }
}

/* ---- one op against several ---- */

/* A's side of what several ops of B stand for; B has but the output.
 * Running B's ops as well would need them to run together on the whole, which is what A's op is; so
 * what can be asked is whether A's kernel gives the bits of B's parts. */
static void add_joined(lb_region_finder *finder, lb_matched_region *region, uint32_t output, const lb_reassembly *join,
                       bool same_op)
{
    lb_matched_region_side *side = &region->sides[1];
    *side = (lb_matched_region_side){.outputs = copied(finder, &output, 1),
                                     .op = same_op ? finder->source->alignment->joins.part_ops[join->first] : LB_NONE};
    /* One output: several would have to come together along the same pieces, which outcomes of one
     * op need not. */
    region->n_outputs = 1, region->parts = join->parts;
    /* A's ops run on B's parts put together, so that every leaf needs a partner; with one missing,
     * A's own number in its place would make a difference of sides one of parts. Integers line up
     * by counting and have no order of sums to be explained by. */
    bool whole =
        region->sides[0].n_ops > 0 && lb_dtype_is_float(lb_matched_region_value(finder->source, 1, output)->dtype);
    for (uint32_t k = 0; k < region->sides[0].n_leaves; k++) whole &= region->sides[0].partners[k] != LB_NONE;
    if (whole && !finder->failed && !is_known(finder, region) &&
        lb_matched_region_differs(finder->source, region->sides[0].outputs[0], output))
        add_region(finder, region);
    else
        lb_region_finder_release_side(&region->sides[0]), lb_region_finder_release_side(&region->sides[1]);
}

/* Outcomes of a larger batch's op that A's rows have a share in; true: some of them differ. */
static bool rows_outcomes(lb_region_finder *finder, uint32_t i, lb_region_finder_values *mine,
                          lb_region_finder_values *theirs)
{
    const lb_alignment *al = finder->source->alignment;
    const lb_op *op = &finder->p[0]->ops[i];
    const uint32_t other = al->joins.part_ops[al->joins.list[al->join_of_a[i]].first];
    const bool reads = lb_alignment_reads_rows(al, finder->p[0], i, finder->p[1], other);
    bool differs = false, over_others = false;
    for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
        const uint32_t va = lb_op_outcome(finder->p[0], op, k), vb = lb_region_finder_joined_outcome(finder, i, k);
        if (va == LB_NONE || vb == LB_NONE || lb_region_finder_values_has(mine, va)) continue;
        const lb_value *theirs_row = lb_matched_region_value(finder->source, 1, vb);
        if ((finder->p[0]->values[va].flags | theirs_row->flags) & LB_VALUE_UNDEFINED) continue;
        /* A mean over all rows has one shape in both batches: it is no assembly of rows, and
         * differs because the batches do. It is counted and said, and never explained. */
        if (reads && vb < finder->p[1]->n_values) {
            over_others |= lb_dtype_is_float(theirs_row->dtype);
            continue;
        }
        if (!lb_dtype_is_float(theirs_row->dtype)) continue;
        lb_region_finder_values_add(mine, va), lb_region_finder_values_add(theirs, vb);
        differs |= lb_matched_region_differs(finder->source, va, vb);
    }
    finder->out->over_others += over_others;
    return differs;
}

/* One op against one with a larger batch. */
/* Here both sides can run: the larger batch's op as well, on rows in the shape of the smaller's.
 * With several parts B is only looked at, since its ops saw pieces that no single op of A saw. */
static void look_at_rows(lb_region_finder *finder, uint32_t i, const lb_region_finder_values *in,
                         const lb_region_finder_values *others)
{
    const lb_alignment *al = finder->source->alignment;
    const uint32_t other = al->joins.part_ops[al->joins.list[al->join_of_a[i]].first];
    lb_region_finder_values mine = {0}, theirs = {0};
    const bool differs = lb_region_finder_can_run(finder, 0, i) && rows_outcomes(finder, i, &mine, &theirs);
    if (differs && !mine.failed && !theirs.failed) {
        lb_matched_region region = {.n_outputs = mine.n, .parts = 1};
        make_pair_side(finder, (run_ops){i, &i, 1}, in, others, &mine, &region.sides[0]);
        make_pair_side(finder, (run_ops){other, &other, 1}, others, in, &theirs, &region.sides[1]);
        add_region(finder, &region);
    }
    finder->failed |= mine.failed || theirs.failed;
    free(mine.list), free(theirs.list);
}

static void look_at_join(lb_region_finder *finder, uint32_t i)
{
    const lb_reassembly *join = &finder->source->alignment->joins.list[finder->source->alignment->join_of_a[i]];
    const lb_op *op = &finder->p[0]->ops[i];
    lb_region_finder_values in = {0}, others = {0};
    lb_op_each_input(finder->p[0], op, lb_region_finder_values_add, &in);
    for (uint32_t k = 0; k < in.n; k++) {
        const uint32_t other = lb_region_finder_joined_input(finder, join, in.list[k], k, in.n);
        lb_region_finder_values_add(&others, other);
        lb_matched_region region = {0};
        /* First what lies before the join, input by input, then the joined op itself: a difference
         * that entered with an input is told where it was made. */
        if (other != LB_NONE && lb_region_finder_make_slice(finder, 0, i, i, in.list[k], &region.sides[0]))
            add_joined(finder, &region, other, join, false);
    }
    uint32_t mine = lb_op_outcomes(op) ? lb_op_outcome(finder->p[0], op, 0) : LB_NONE;
    const uint32_t theirs = lb_region_finder_joined_outcome(finder, i, 0);
    lb_matched_region region = {0};
    if (finder->source->alignment->joins.rows)
        look_at_rows(finder, i, &in, &others);
    else if (lb_region_finder_can_run(finder, 0, i) && mine != LB_NONE && theirs != LB_NONE) {
        make_pair_side(finder, (run_ops){i, &i, 1}, &in, &others, &(lb_region_finder_values){.list = &mine, .n = 1},
                       &region.sides[0]);
        add_joined(finder, &region, theirs, join, true);
    }
    finder->failed |= in.failed || others.failed;
    free(in.list), free(others.list);
}

static void look_at_op(lb_region_finder *finder, uint32_t i)
{
    uint32_t j = finder->source->alignment->b_of_a[i];
    /* An op is joined or paired; a pair in doubt is no anchor, and is passed through by the
     * matched regions behind it. */
    if (lb_region_finder_is_joined(finder, i)) look_at_join(finder, i);
    if (j == LB_NONE || !lb_region_finder_is_trusted(finder, i)) return;
    lb_region_finder_values values = {0}, b = {0};
    lb_op_each_input(finder->p[0], &finder->p[0]->ops[i], lb_region_finder_values_add, &values);
    lb_op_each_input(finder->p[1], &finder->p[1]->ops[j], lb_region_finder_values_add, &b);
    for (uint32_t k = 0; k < values.n && values.n == b.n; k++)
        if (values.list[k] != LB_NONE && b.list[k] != LB_NONE)
            look(finder, (sight){i, i, values.list[k]}, (sight){j, j, b.list[k]});
    look_at_pair(finder, i, j);
    finder->failed |= values.failed || b.failed;
    free(values.list), free(b.list);
}

/* ---- what modules give ---- */

/* Of several ranks a module of each has its output.
 * Its path is the same on every rank, so that the path alone would hold rank 0 against rank 1. */
static bool same_rank(const lb_region_finder *finder, uint32_t va, uint32_t vb)
{
    uint32_t row;
    return !finder->source->collective_matches[0] || lb_program_view_recorded(finder->source->a, va, &row)->rank ==
                                                         lb_program_view_recorded(finder->source->b, vb, &row)->rank;
}

/* What two boundaries share that may correspond: all ranks have the same paths. */
static int64_t module_key(const lb_region_finder *finder, int side, const lb_boundary *boundary)
{
    uint32_t row;
    const lb_program_view *view = side ? finder->source->b : finder->source->a;
    const char *path = finder->source->paths[side][boundary->scope];
    const int32_t rank =
        finder->source->collective_matches[0] ? lb_program_view_recorded(view, boundary->value, &row)->rank : 0;
    return (int64_t)(lb_digest_bytes(path, strlen(path)).lo ^ ((uint64_t)(uint32_t)rank << 32 | boundary->position));
}

static bool list_modules(lb_region_finder *finder, int side, lb_keyed_rows *modules)
{
    const lb_program *program = finder->p[side];
    for (uint32_t i = 0; i < program->n_boundaries && !finder->failed; i++)
        if (program->boundaries[i].output && program->boundaries[i].value != LB_NONE)
            finder->failed = !lb_keyed_rows_add(modules, module_key(finder, side, &program->boundaries[i]), i);
    lb_keyed_rows_sort(modules);
    return !finder->failed;
}

/* Outputs of modules are anchors that need no aligned op: where a side computes a whole layer by
 * different ops, they are the only places that both sides agree upon. */
static void look_at_modules(lb_region_finder *finder)
{
    lb_keyed_rows theirs = {0};
    finder->failed |= !list_modules(finder, 1, &theirs);
    const lb_program *a = finder->p[0], *b = finder->p[1];
    const lb_forwards *passes = &finder->source->alignment->forwards;
    for (uint32_t i = 0; i < a->n_boundaries && !finder->failed; i++) {
        const lb_boundary *boundary = &a->boundaries[i];
        if (!boundary->output || boundary->value == LB_NONE) continue;
        const uint32_t call = lb_forwards_call(passes, 0, a, boundary);
        uint32_t n;
        const lb_keyed_row *row = lb_keyed_rows_of(&theirs, module_key(finder, 0, boundary), &n);
        for (uint32_t k = 0; k < n; k++) { /* the first that fits */
            const lb_boundary *y = &b->boundaries[row[k].row];
            if (y->position != boundary->position || lb_forwards_call(passes, 1, b, y) != call ||
                y->recompute != boundary->recompute ||
                strcmp(finder->source->paths[0][boundary->scope], finder->source->paths[1][y->scope]) ||
                !same_rank(finder, boundary->value, y->value))
                continue;
            /* Tokens sorted by expert in two orders are the same rows: a matched region that ends there
             * would hold each token against another one. */
            if (!lb_region_finder_is_moved(finder, boundary->scope, LB_PHASE_FORWARD, boundary->value, y->value))
                look(finder, (sight){LB_NONE, boundary->op, boundary->value}, (sight){LB_NONE, y->op, y->value});
            break;
        }
    }
    free(theirs.list);
}

/* ---- all of it ---- */

static bool open_finder(lb_region_finder *finder)
{
    const lb_alignment *al = finder->source->alignment;
    finder->trust = calloc(finder->p[0]->n_ops + 1, 1);
    finder->sorted = calloc(finder->p[0]->n_ops + 1, sizeof *finder->sorted);
    finder->returned = calloc(finder->p[0]->n_scopes + 1, 1), finder->left = calloc(finder->p[0]->n_scopes + 1, 1);
    finder->source_a_of_b = malloc((finder->p[1]->n_ops + 1) * sizeof *finder->source_a_of_b);
    for (int k = 0; k < 2; k++) {
        finder->ends[k] = malloc((finder->p[k]->n_ops + 1) * sizeof *finder->ends[k]);
        finder->marks[k] = calloc(finder->p[k]->n_ops + 1, 1), finder->inside[k] = calloc(finder->p[k]->n_ops + 1, 1);
        if (!finder->ends[k] || !finder->marks[k] || !finder->inside[k]) return false;
        memset(finder->ends[k], 0xFF, finder->p[k]->n_ops * sizeof *finder->ends[k]);
    }
    if (!finder->trust || !finder->sorted || !finder->returned || !finder->left || !finder->source_a_of_b) return false;
    memset(finder->source_a_of_b, 0xFF, finder->p[1]->n_ops * sizeof *finder->source_a_of_b);
    for (uint32_t i = 0; i < finder->p[0]->n_ops; i++)
        if (al->source_b_of_a[i] != LB_NONE) finder->source_a_of_b[al->source_b_of_a[i]] = i;
    return true;
}

/* A matched region without ops of A has no place among them; its leaf, or else the front, keeps the order
 * fixed. */
static uint32_t place_of(const lb_matched_region *region)
{
    return region->sides[0].op == LB_NONE ? (region->sides[0].n_leaves ? region->sides[0].leaves[0] : 0)
                                          : region->sides[0].op;
}

static int by_place(const void *x, const void *y)
{
    uint32_t a = place_of(x), b = place_of(y);
    return a < b ? -1 : a > b;
}

lb_status lb_matched_regions_find(const lb_matched_region_source *source, lb_matched_regions *out, lb_err *err)
{
    lb_region_finder finder = {
        .source = source, .p = {source->a->program, source->b->program}, .out = out, .opened = {LB_NONE, LB_NONE}};
    memset(out, 0, sizeof *out);
    lb_status status = lb_slice_flow_new(finder.p[0], &finder.flow[0], err);
    if (status == LB_OK) status = lb_slice_flow_new(finder.p[1], &finder.flow[1], err);
    if (status == LB_OK) finder.failed = !open_finder(&finder);
    if (status == LB_OK && !finder.failed && source->alignment->joins.rows) lb_region_finder_settle(&finder);
    /* Two rounds instead of a fixed point: ends are found while matched regions are, so that the first round
     * may reach through an end that a later look finds; the second begins with all of those. */
    for (int round = 0; round < 2 && status == LB_OK && !finder.failed;
         round++) { /* the second knows where matched regions end */
        lb_matched_regions_release(out);
        for (uint32_t i = 0; !finder.failed && i < finder.p[0]->n_ops; i++) look_at_op(&finder, i);
        if (!finder.failed) look_at_modules(&finder);
    }
    if (status == LB_OK && !finder.failed && out->n) {
        qsort(out->list, out->n, sizeof *out->list, by_place);
        status = lb_region_finder_grow(&finder, err);
    }
    if (status == LB_OK && finder.failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for matched regions");
    lb_slice_flow_free(finder.flow[0]), lb_slice_flow_free(finder.flow[1]);
    free(finder.ends[0]), free(finder.ends[1]);
    free(finder.trust), free(finder.sorted), free(finder.returned), free(finder.left), free(finder.source_a_of_b),
        free(finder.marks[0]), free(finder.marks[1]);
    free(finder.inside[0]), free(finder.inside[1]);
    if (status != LB_OK) lb_matched_regions_release(out);
    return status;
}

static void release(lb_matched_region *region)
{
    if (region->whole) release(region->whole);
    free(region->whole);
    lb_region_finder_release_side(&region->sides[0]), lb_region_finder_release_side(&region->sides[1]);
}

void lb_matched_regions_release(lb_matched_regions *regions)
{
    for (uint32_t i = 0; i < regions->n; i++) release(&regions->list[i]);
    free(regions->list);
    memset(regions, 0, sizeof *regions);
}
