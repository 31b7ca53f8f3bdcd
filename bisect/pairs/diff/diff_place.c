/* Naming the place: see diff_place.h. */
#include "diff/diff_place.h"

#include "shadow/cross_feed.h"
#include "diff/diff_arguments.h"
#include "diff/diff_rows.h"
#include "diff/diff_values.h"
#include "diff/lone_suspects.h"
#include "kernel/value_memory.h"
#include "program/state_name.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED = 4 };

/* ---- arguments ---- */

/* A number from the source text: six digits say it all. What was computed of a number that Python read has
 * seventeen. */
static bool is_literal(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", x);
    return strtod(text, NULL) == x;
}

static bool follows(const lb_read_numbers *read, const lb_diff_walk *walk, const lb_arg *a, uint32_t na,
                    const lb_arg *b, uint32_t nb)
{
    if (na != nb) return read->integers;
    for (uint32_t i = 0; i < na; i++) {
        if (a[i].tag != b[i].tag) return false;
        if (a[i].tag == LB_ARG_LIST || a[i].tag == LB_ARG_COMPLEX) {
            if (!follows(read, walk, walk->pa->args + a[i].u.first, a[i].count, walk->pb->args + b[i].u.first,
                         b[i].count))
                return false;
        } else if (a[i].tag == LB_ARG_FLOAT) {
            const double x = a[i].u.f, y = b[i].u.f;
            if (x != y && is_literal(x) && is_literal(y) && !read->integers) return false;
            if (x != y && !(fabs(x - y) <= 8 * read->ratio * fmax(fabs(x), fabs(y)))) return false;
        } else if (a[i].tag == LB_ARG_INT || a[i].tag == LB_ARG_BOOL) {
            if (a[i].u.i != b[i].u.i && !read->integers) return false;
        } else if (!lb_op_kind_same_arg(walk->pa, &a[i], walk->pb, &b[i])) {
            return false; /* a word ("tanh") is no number that was computed */
        }
    }
    return true;
}

bool lb_place_args_follow(const lb_diff_walk *walk, uint32_t ia, uint32_t ib)
{
    const lb_op *a = &walk->pa->ops[ia], *b = &walk->pb->ops[ib];
    if (walk->past->read.verdict == LB_VERDICT_IDENTICAL) return false;
    return follows(&walk->past->read, walk, lb_op_args(walk->pa, a), a->args, lb_op_args(walk->pb, b), b->args);
}

/* ---- parameters ---- */

/* Who an op outside the modules serves; made when it is first asked for. The next step has the names of tensors that
 * this one made. */
static const lb_owners *owners_of(lb_diff_walk *walk, int side)
{
    const lb_program_view *view = side ? walk->b : walk->a;
    const lb_program *next = NULL;
    if (walk->owners[side]) return walk->owners[side];
    if (view->n_parts == 1 &&
        lb_capture_program(view->capture, view->program->rank, view->program->step + 1, &next, NULL) != LB_OK)
        next = NULL;
    if (lb_owners_new(walk->merged.flows[side], next, &walk->owners[side], NULL) != LB_OK) walk->owners[side] = NULL;
    return walk->owners[side];
}

/* Of an op in no module that is no forward code: the parameter that it serves, and its module. `outcome`: the one that
 * differs first, of ops over lists; LB_NONE: any. */
static void name_owner(lb_diff_walk *walk, int side, uint32_t op, uint32_t outcome, lb_diff_row *row)
{
    const lb_program *program = lb_diff_walk_side(walk, side);
    const lb_owners *owners = *lb_op_layer(program, &program->ops[op]) ? NULL : owners_of(walk, side);
    if (!owners) return;
    const uint32_t value =
        outcome < lb_op_outcomes(&program->ops[op]) ? lb_op_outcome(program, &program->ops[op], outcome) : LB_NONE;
    const uint32_t element = value == LB_NONE ? LB_OWNER_WHOLE : lb_owner_element(owners, op, value);
    const char *name = lb_owner_of(owners, op, element);
    if (!*name) return;
    row->parameter = lb_report_keep(walk->report, name);
    row->layer = lb_report_keep(walk->report, lb_owner_module(owners, op, element));
    row->value = false;
}

/* ---- between modules ---- */

static bool is_around(const char *outer, const char *inner)
{
    return !*outer || lb_program_name_extends(inner, outer);
}

/* The module that ran last before the op, or runs next, where that is another one; NULL: none in its phase. */
static const char *neighbour(const lb_program *program, uint32_t op, int step)
{
    const char *own = lb_op_layer(program, &program->ops[op]);
    for (int64_t i = (int64_t)op + step; i >= 0 && i < program->n_ops; i += step) {
        const lb_op *other = &program->ops[i];
        if (!lb_op_computes(program, other)) continue;
        if (other->phase != program->ops[op].phase) return NULL;
        const char *layer = lb_op_layer(program, other);
        if (strcmp(layer, own)) return layer;
    }
    return NULL;
}

void lb_place_neighbours(lb_diff_report *report, const lb_program *program, uint32_t op, lb_diff_row *row)
{
    const char *own = lb_op_layer(program, &program->ops[op]);
    const char *before = neighbour(program, op, -1), *after = neighbour(program, op, 1);
    char text[800];
    if ((!before || !is_around(own, before)) && (!after || !is_around(own, after))) return;
    if (before) row->before = lb_report_keep(report, before);
    if (after) row->after = lb_report_keep(report, after);
    if (before && after)
        snprintf(text, sizeof text, "%s; between %.250s and %.250s", row->why, *before ? before : "(top level)",
                 *after ? after : "(top level)");
    else
        snprintf(text, sizeof text, "%s; %s %.250s", row->why, before ? "behind" : "before",
                 before ? (*before ? before : "(top level)") : (*after ? after : "(top level)"));
    row->why = lb_report_keep(report, text);
}

/* ---- ops of one side alone ---- */

static void list_names(const lb_program *program, const uint32_t *ops, uint32_t n, char *text, size_t size)
{
    size_t used = 0;
    *text = '\0';
    for (uint32_t i = 0; i < n && i < NAMED && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                                 lb_op_name(program, &program->ops[ops[i]]));
    if (n > NAMED && used < size) snprintf(text + used, size - used, ", and %u more", n - NAMED);
}

static void describe_lone(const lb_diff_walk *walk, const lb_divergence *divergence, lb_diff_row *row)
{
    char lists[2][300], why[800];
    const uint32_t *ops[] = {walk->divergences.lone + divergence->first[0],
                             walk->divergences.lone + divergence->first[1]};
    for (int side = 0; side < 2; side++)
        list_names(lb_diff_walk_side(walk, side), ops[side], divergence->n[side], lists[side ^ walk->swapped],
                   sizeof lists[0]);
    const uint32_t n[] = {divergence->n[walk->swapped], divergence->n[!walk->swapped]};
    if (n[0] && n[1])
        snprintf(why, sizeof why, "the first side runs %s here, the second %s, which differs in exact arithmetic",
                 lists[0], lists[1]);
    else
        snprintf(why, sizeof why, "the %s side alone runs %s here, and what follows differs in exact arithmetic",
                 n[0] ? "first" : "second", n[0] ? lists[0] : lists[1]);
    row->why = lb_report_keep(walk->report, why);
}

/* Of ops that one side alone runs; `op`: the one that the row names. */
static void name_meaning(const lb_diff_walk *walk, const lb_divergence *divergence, int side, uint32_t op,
                         lb_diff_row *row)
{
    char text[160];
    const uint32_t *ops = divergence->n[side] == 1 ? &op : walk->divergences.lone + divergence->first[side];
    lb_arguments_meaning(lb_diff_walk_side(walk, side), ops, divergence->n[side],
                         side ? walk->alignment.a_of_b : walk->alignment.b_of_a, text, sizeof text);
    if (*text) row->means = lb_report_keep(walk->report, text);
}

static uint32_t first_lone(const lb_diff_walk *walk, const lb_divergence *divergence, int side)
{
    return divergence->n[side] ? walk->divergences.lone[divergence->first[side]] : LB_NONE;
}

static uint8_t phase_of_lone(const lb_diff_walk *walk, const lb_divergence *divergence, int side)
{
    const uint8_t phase = lb_diff_walk_side(walk, side)->ops[first_lone(walk, divergence, side)].phase;
    return phase == LB_PHASE_COMMUNICATION ? LB_PHASE_BACKWARD : phase;
}

/* Where an op of one side alone stands among A's: behind the last op before it that has a partner, B's behind that
 * partner. */
static uint32_t order_in_a(const lb_diff_walk *walk, int side, uint32_t op)
{
    const lb_alignment *al = &walk->alignment;
    const uint32_t *partner = side ? al->a_of_b : al->b_of_a, *join = side ? al->join_of_b : al->join_of_a;
    for (uint32_t i = op; i-- > 0;) {
        if (partner[i] != LB_NONE) return side ? partner[i] : i;
        if (join[i] != LB_NONE) return side ? al->joins.list[join[i]].whole : i;
    }
    return 0;
}

static bool has_lone_in(const lb_diff_walk *walk, const lb_divergence *divergence, int side, const char *layer)
{
    const lb_program *program = lb_diff_walk_side(walk, side);
    for (uint32_t i = 0; i < divergence->n[side]; i++)
        if (!strcmp(lb_op_layer(program, &program->ops[walk->divergences.lone[divergence->first[side] + i]]), layer))
            return true;
    return false;
}

/* Where both sides run ops of their own, that one has the word whose begin in the earlier phase, or behind an
 * earlier op, then that which goes on in the layer in which the other's begin, having begun in one that the other
 * does not touch, then that in whose layer the other's stand, or else A. Whichever side is named first, the place is
 * the same. */
static int place_side(const lb_diff_walk *walk, const lb_divergence *divergence)
{
    const uint32_t a = first_lone(walk, divergence, 0), b = first_lone(walk, divergence, 1);
    if (a == LB_NONE || b == LB_NONE) return a == LB_NONE;
    const uint8_t phases[] = {phase_of_lone(walk, divergence, 0), phase_of_lone(walk, divergence, 1)};
    if (phases[0] != phases[1]) return phases[1] < phases[0];
    const uint32_t before[] = {order_in_a(walk, 0, a), order_in_a(walk, 1, b)};
    if (before[0] != before[1]) return before[1] < before[0];
    const char *x = lb_op_layer(walk->pa, &walk->pa->ops[a]), *y = lb_op_layer(walk->pb, &walk->pb->ops[b]);
    const bool goes_on[] = {has_lone_in(walk, divergence, 0, y), has_lone_in(walk, divergence, 1, x)};
    if (goes_on[0] != goes_on[1]) return goes_on[1];
    return strcmp(x, y) && is_around(y, x);
}

/* The op of that side that both share next. */
static uint32_t next_shared(const lb_diff_walk *walk, const lb_divergence *divergence, int side)
{
    if (divergence->node == LB_NONE) return walk->merged.merged.sinks[divergence->sink].op[side];
    const lb_node *node = &walk->merged.nodes[divergence->node];
    return node->n[side] ? walk->merged.ops[node->first[side]] : LB_NONE;
}

/* Of a collective, the member in the part that stands for that of the other side's op `lone`: a fault of rank 1 is in
 * no op of rank 0, though it is there that the sides meet again. Other ops are what they are. */
static uint32_t member_beside(const lb_diff_walk *walk, int side, uint32_t op, uint32_t lone)
{
    const lb_program_view *mine = side ? walk->b : walk->a, *other = side ? walk->a : walk->b;
    const lb_collective_matches *all = &walk->collective_matches[side];
    if (op == LB_NONE || lone == LB_NONE || !all->of_op || all->of_op[op] == LB_NONE) return op;
    const uint32_t wanted = lb_program_view_group(other, mine, lb_program_view_part_of(other, lone));
    const lb_collective_match *meeting = &all->list[all->of_op[op]];
    for (uint32_t k = 0; k < meeting->n; k++)
        if (lb_program_view_group(mine, other, lb_program_view_part_of(mine, all->ops[meeting->first + k])) == wanted)
            return all->ops[meeting->first + k];
    return op;
}

/* Ops of a layer in that phase; `name`: of that name alone, NULL: of any. */
static uint32_t count_ops(const lb_program *program, const char *layer, int phase, const char *name)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < program->n_ops; i++)
        n += program->ops[i].phase == phase && !strcmp(lb_op_layer(program, &program->ops[i]), layer) &&
             (!name || !strcmp(lb_op_name(program, &program->ops[i]), name));
    return n;
}

/* That side runs a layer backward which the other runs forward alone. Layers that one side calls under different names
 * (one product in place of three) are run by it in no phase, so that a fusion beside the cut says nothing. */
static bool lacks_a_backward(const lb_diff_walk *walk, const lb_divergence *divergence, int side)
{
    const lb_program *program = lb_diff_walk_side(walk, side), *other = lb_diff_walk_side(walk, !side);
    const char *asked = NULL;
    for (uint32_t i = 0; i < divergence->n[side]; i++) {
        const lb_op *op = &program->ops[walk->divergences.lone[divergence->first[side] + i]];
        const char *layer = lb_op_layer(program, op);
        if (op->phase != LB_PHASE_BACKWARD || !*layer || layer == asked) continue;
        asked = layer;
        if (count_ops(other, layer, LB_PHASE_FORWARD, NULL) && !count_ops(other, layer, LB_PHASE_BACKWARD, NULL))
            return true;
    }
    return false;
}

static const char DETACH[] = "aten::detach";

/* A gradient that one side alone has, and a detach that the other alone runs: that is where it was cut. LB_NONE:
 * nowhere. */
static uint32_t find_cut(const lb_diff_walk *walk, const lb_divergence *divergence, int side)
{
    const lb_program *program = lb_diff_walk_side(walk, !side), *other = lb_diff_walk_side(walk, side);
    if (other->ops[first_lone(walk, divergence, side)].phase != LB_PHASE_BACKWARD)
        return LB_NONE; /* a collective that is left out cuts no gradient */
    if (divergence->n[!side] && phase_of_lone(walk, divergence, !side) <= LB_PHASE_BACKWARD &&
        !lacks_a_backward(walk, divergence, side))
        return LB_NONE;
    for (uint32_t i = program->n_ops; i-- > 0;) {
        const lb_op *op = &program->ops[i];
        if (op->phase != LB_PHASE_FORWARD || strcmp(lb_op_name(program, op), DETACH)) continue;
        const char *layer = lb_op_layer(program, op);
        if (count_ops(program, layer, LB_PHASE_FORWARD, DETACH) > count_ops(other, layer, LB_PHASE_FORWARD, DETACH))
            return i;
    }
    return LB_NONE;
}

void lb_place_order(const lb_diff_walk *walk, lb_diff_row *row)
{
    if (row->index == LB_NONE && row->other != LB_NONE) row->order = order_in_a(walk, 1, row->other);
}

/* Where it begins, in A's order, whichever side runs more. */
static void order_lone(const lb_diff_walk *walk, const lb_divergence *divergence, lb_diff_row *row)
{
    const uint32_t a = first_lone(walk, divergence, 0), b = first_lone(walk, divergence, 1);
    const uint32_t from_b = b == LB_NONE ? LB_NONE : order_in_a(walk, 1, b);
    row->order = a < from_b ? a : from_b;
    row->lone = divergence->n[0] + divergence->n[1];
}

static lb_diff_row cut_row(const lb_diff_walk *walk, const lb_divergence *divergence, int side, uint32_t cut)
{
    char why[400], names[300];
    const uint32_t lone = first_lone(walk, divergence, side);
    lb_diff_row row = lb_diff_walk_row(walk, side ? cut : LB_NONE, side ? LB_NONE : cut);
    list_names(lb_diff_walk_side(walk, side), walk->divergences.lone + divergence->first[side], divergence->n[side],
               names, sizeof names);
    row.index = side ? cut : lone, row.other = side ? lone : cut;
    order_lone(walk, divergence, &row);
    row.local = row.verdict = LB_VERDICT_DIVERGED, row.phase = LB_PHASE_BACKWARD;
    snprintf(why, sizeof why, "detached here on the %s side only, which lacks %s in backward",
             (side == 0) != walk->swapped ? "second" : "first", names);
    row.why = lb_report_keep(walk->report, why);
    return row;
}

/* A factor of a loss stands in forward and again in backward. Is `x` of forward what `o` of backward is, arguments and
 * all? */
static bool is_in_forward(const lb_program *program, const lb_op *x, const lb_op *o)
{
    return x->phase == LB_PHASE_FORWARD && x->call == o->call &&
           !strcmp(lb_op_name(program, x), lb_op_name(program, o)) &&
           !strcmp(lb_op_layer(program, x), lb_op_layer(program, o)) && lb_op_same_args(program, x, program, o, 0);
}

/* The forward op of a factor that one side alone has in a loss without readers: only its op in backward leads to
 * anything. LB_NONE: there is none. */
static uint32_t forward_of_lone(const lb_diff_walk *walk, int side, uint32_t op)
{
    const lb_program *program = lb_diff_walk_side(walk, side);
    const uint32_t *partner = side ? walk->alignment.a_of_b : walk->alignment.b_of_a,
                   *join = side ? walk->alignment.join_of_b : walk->alignment.join_of_a;
    if (op == LB_NONE) return LB_NONE;
    const lb_op *o = &program->ops[op];
    const uint32_t v = lb_op_outcomes(o) == 1 ? lb_op_outcome(program, o, 0) : LB_NONE;
    if (o->phase != LB_PHASE_BACKWARD || v == LB_NONE || lb_layout_numel(&program->values[v].layout) != 1)
        return LB_NONE;
    for (uint32_t i = 0; i < op; i++)
        if (partner[i] == LB_NONE && join[i] == LB_NONE && is_in_forward(program, &program->ops[i], o)) return i;
    return LB_NONE;
}

/* Two ops that are like each other, over different parts, and are called with different arguments. */
static lb_diff_row other_args_row(lb_diff_walk *walk, const uint32_t ops[2])
{
    lb_diff_row row = lb_diff_walk_row(walk, ops[0], ops[1]);
    row.index = ops[0], row.other = ops[1], row.order = ops[0], row.lone = 2;
    row.local = row.verdict = LB_VERDICT_DIVERGED;
    row.why = "called with other arguments, which give other exact values";
    if (walk->pa->ops[ops[0]].phase == LB_PHASE_FORWARD || walk->pa->ops[ops[0]].phase == LB_PHASE_BACKWARD)
        lb_place_neighbours(walk->report, walk->pa, ops[0], &row);
    name_owner(walk, 0, ops[0], LB_NONE, &row);
    return row;
}

static lb_diff_row lone_row(lb_diff_walk *walk, const lb_divergence *found)
{
    lb_lone_suspects suspects;
    const bool narrowed = lb_lone_suspects_find(walk, found, &suspects);
    if (narrowed && suspects.other[0] != LB_NONE) return other_args_row(walk, suspects.other);
    const lb_divergence *divergence =
        narrowed && (suspects.alone.n[0] || suspects.alone.n[1]) ? &suspects.alone : found;
    const int side = place_side(walk, divergence);
    const uint32_t firsts[] = {first_lone(walk, divergence, 0), first_lone(walk, divergence, 1)};
    const uint32_t earlier = forward_of_lone(walk, side, firsts[side]),
                   op = earlier != LB_NONE ? earlier : firsts[side];
    const uint32_t a = side ? firsts[0] : op, b = side ? op : firsts[1];
    const lb_program *program = lb_diff_walk_side(walk, side);
    const uint32_t cut = find_cut(walk, divergence, side);
    if (cut != LB_NONE) return cut_row(walk, divergence, side, cut);
    const uint32_t hidden = divergence->n[!side] && lacks_a_backward(walk, divergence, !side)
                                ? find_cut(walk, divergence, !side)
                                : LB_NONE; /* beside a fusion of this side */
    if (hidden != LB_NONE) return cut_row(walk, divergence, !side, hidden);
    lb_diff_row row = lb_diff_walk_row(walk, side ? LB_NONE : a, side ? b : LB_NONE);
    row.index = a != LB_NONE ? a : member_beside(walk, 0, next_shared(walk, divergence, 0), b);
    row.other = b != LB_NONE ? b : member_beside(walk, 1, next_shared(walk, divergence, 1), a);
    order_lone(walk, divergence, &row);
    row.local = row.verdict = LB_VERDICT_DIVERGED;
    describe_lone(walk, divergence, &row);
    if (divergence->n[side] && !divergence->n[!side]) name_meaning(walk, divergence, side, op, &row);
    if (program->ops[op].phase == LB_PHASE_FORWARD || program->ops[op].phase == LB_PHASE_BACKWARD)
        lb_place_neighbours(walk->report, program, op, &row);
    name_owner(walk, side, op, LB_NONE, &row);
    return row;
}

/* ---- divergences ---- */

/* Where Python reads how many tokens each expert has, the same ops run in different shapes. */
static bool is_same_in_other_shapes(const lb_diff_walk *walk, const lb_divergence *divergence)
{
    if (walk->shadows.first_flip == LB_NONE || !divergence->n[0] || divergence->n[0] != divergence->n[1]) return false;
    for (uint32_t k = 0; k < divergence->n[0]; k++) {
        const uint32_t a = walk->divergences.lone[divergence->first[0] + k],
                       b = walk->divergences.lone[divergence->first[1] + k];
        if (b < walk->shadows.first_flip) return false;
        if (strcmp(lb_op_name(walk->pa, &walk->pa->ops[a]), lb_op_name(walk->pb, &walk->pb->ops[b]))) return false;
        if (!lb_op_same_args(walk->pa, &walk->pa->ops[a], walk->pb, &walk->pb->ops[b], 0)) return false;
    }
    return true;
}

/* A pair in a layer that runs in different shapes behind a choice: as many tokens as on the other side need not be the
 * same ones. */
static bool is_among_other_shapes(const lb_diff_walk *walk, const lb_divergence *divergence)
{
    if (walk->shadows.first_flip == LB_NONE || divergence->node == LB_NONE ||
        !walk->merged.nodes[divergence->node].n[1])
        return false;
    const lb_node *node = &walk->merged.nodes[divergence->node];
    const uint32_t a = walk->merged.ops[node->first[0]], b = walk->merged.ops[node->first[1]];
    return b > walk->shadows.first_flip && walk->alignment.irregular[a] &&
           walk->pa->ops[a].phase <= LB_PHASE_BACKWARD &&
           lb_op_same_args(walk->pa, &walk->pa->ops[a], walk->pb, &walk->pb->ops[b], 0);
}

bool lb_place_is_unknown(const lb_diff_walk *walk, const lb_divergence *divergence, const char **why)
{
    const bool sources =
        walk->given_more || (divergence->sources[0] && divergence->sources[1]) || walk->held_otherwise || walk->cut;
    const bool lone = divergence->n[0] || divergence->n[1];
    const bool flipped = (divergence->flipped && (lone || divergence->integers)) ||
                         (lone ? is_same_in_other_shapes(walk, divergence) : is_among_other_shapes(walk, divergence));
    if (why)
        *why = walk->cut          ? LB_WHY_CUT
               : walk->given_more ? LB_WHY_KEPT
               : sources          ? LB_WHY_UNKNOWN_SOURCES
                                  : LB_WHY_FLIPPED;
    return sources || flipped;
}

/* A view of a storage that holds the same need not show the same: it may be transposed on one side. Views have no
 * digest. */
static bool shows_same(const lb_diff_walk *walk, uint32_t va, uint32_t vb)
{
    const lb_value *a = &walk->pa->values[va], *b = &walk->pb->values[vb];
    lb_tensor x, y;
    if (!lb_digest_is_none(a->logical) && !lb_digest_is_none(b->logical))
        return !lb_diff_walk_value_differs(walk, va, vb);
    if (lb_program_view_value(walk->a, va, &x, NULL) == LB_OK && lb_program_view_value(walk->b, vb, &y, NULL) == LB_OK)
        return lb_memory_tensor_same(&x, &y);
    return lb_layout_same_shape(&a->layout, &b->layout) &&
           !memcmp(a->layout.stride, b->layout.stride, (size_t)a->layout.ndim * sizeof *a->layout.stride);
}

/* Of ops with the same arguments. */
static bool reads_same(const lb_diff_walk *walk, const lb_arg *a, const lb_arg *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].tag == LB_ARG_VALUE && !shows_same(walk, a[i].u.value, b[i].u.value)) return false;
        if (a[i].tag == LB_ARG_LIST &&
            !reads_same(walk, walk->pa->args + a[i].u.first, walk->pb->args + b[i].u.first, a[i].count))
            return false;
    }
    return true;
}

/* A sum or a maximum: what a collective reduces by is none of its recorded arguments. */
static bool reduces_alike(const lb_diff_walk *walk, uint32_t ia)
{
    const uint32_t ib = walk->alignment.b_of_a[ia];
    const lb_program *p, *q;
    const lb_collective *collective = lb_collective_of_side(walk->a, ia, &p),
                        *y = ib == LB_NONE ? NULL : lb_collective_of_side(walk->b, ib, &q);
    return !collective || !y || !strcmp(lb_program_text(p, collective->reduce), lb_program_text(q, y->reduce));
}

static bool reads_same_inputs(const lb_diff_walk *walk, uint32_t ia)
{
    const uint32_t ib = walk->alignment.b_of_a[ia];
    const lb_op *op = &walk->pa->ops[ia];
    return ib == LB_NONE ||
           reads_same(walk, lb_op_args(walk->pa, op), lb_op_args(walk->pb, &walk->pb->ops[ib]), op->args);
}

/* The source that a cast or a copy reads, and nothing else; LB_NONE: it reads something else. */
static uint32_t source_of(const lb_diff_walk *walk, int side, uint32_t op)
{
    const lb_program *program = lb_diff_walk_side(walk, side);
    const lb_slice_flow *flow = walk->merged.flows[side];
    if (op == LB_NONE || !lb_cross_feed_op_hands_on(program, &program->ops[op]) ||
        flow->first_def[op + 1] != flow->first_def[op] + 1)
        return LB_NONE;
    const uint32_t source = flow->defs[flow->first_def[op]];
    return lb_op_is_source(program, &program->ops[source]) ? source : LB_NONE;
}

/* What only hands on gives no other values by itself: sources that are no partners came in there. */
static bool name_sources(const lb_diff_walk *walk, uint32_t ia, lb_diff_row *row)
{
    const uint32_t a = source_of(walk, 0, ia), b = source_of(walk, 1, walk->alignment.b_of_a[ia]);
    if (a == LB_NONE || b == LB_NONE || walk->alignment.source_b_of_a[a] == b) return false;
    row->index = a, row->other = b, row->op = lb_report_keep(walk->report, "lb::source");
    row->why = "another value came in here, from outside the step or from before it";
    return true;
}

typedef struct copied {
    const lb_program *p;
    uint32_t reader, op;
    const uint32_t *partner;
} copied;

static void note_copy(void *context, uint32_t value)
{
    copied *copied = context;
    const uint32_t giver = value == LB_NONE ? LB_NONE : lb_cross_feed_giver(copied->p, value, copied->reader);
    if (giver == LB_NONE || copied->partner[giver] != LB_NONE) return;
    if (!strcmp(lb_op_name(copied->p, &copied->p->ops[giver]), "aten::clone")) copied->op = giver;
}

/* What it reads was laid out anew by a copy that one side alone makes, in another layer: heads that are flattened in
 * another order, say. */
static bool name_copy(lb_diff_walk *walk, uint32_t ia, lb_diff_row *row)
{
    const uint32_t ops[] = {ia, walk->alignment.b_of_a[ia]};
    for (int side = 0; side < 2; side++) {
        const lb_program *program = lb_diff_walk_side(walk, side);
        copied copied = {program, ops[side], LB_NONE, side ? walk->alignment.a_of_b : walk->alignment.b_of_a};
        if (ops[side] == LB_NONE) return false;
        lb_op_each_input(program, &program->ops[ops[side]], note_copy, &copied);
        if (copied.op == LB_NONE ||
            !strcmp(lb_op_layer(program, &program->ops[copied.op]), lb_op_layer(program, &program->ops[ops[side]])))
            continue;
        lb_diff_row place = lb_diff_walk_row(walk, side ? LB_NONE : copied.op, side ? copied.op : LB_NONE);
        lb_place_order(walk, &place);
        place.local = place.verdict = LB_VERDICT_DIVERGED;
        place.why = "copied on this side alone, and in another order than the other side reads it";
        lb_place_neighbours(walk->report, program, copied.op, &place);
        lb_diff_rows_report(walk, &place);
        row->local = LB_VERDICT_ROUNDING, row->inherited = LB_VERDICT_DIVERGED;
        row->why = "it reads what a copy of one side alone puts into another order";
        return true;
    }
    return false;
}

/* Ops before it run over different parts on the two sides, so that none of them meets another: which of them it was is
 * not known, but where the sides share an op again. */
static void name_behind_parts(lb_diff_walk *walk, lb_diff_row *row)
{
    char why[400];
    snprintf(why, sizeof why,
             "what it reads differs in exact arithmetic; the ops before it, back to what is the same, "
             "run over other parts on the two sides (%.160s among their layers)",
             walk->cuts.result);
    row->local = LB_VERDICT_DIVERGED, row->why = lb_report_keep(walk->report, why);
}

/* The pair of forward that is called with the same arguments as this one of backward, on each side. LB_NONE: there is
 * none. */
static uint32_t forward_twin(const lb_diff_walk *walk, uint32_t ia)
{
    const uint32_t ib = walk->alignment.b_of_a[ia];
    const lb_op *op = &walk->pa->ops[ia];
    if (op->phase != LB_PHASE_BACKWARD || ib == LB_NONE) return LB_NONE;
    for (uint32_t i = ia; i-- > 0;) {
        const uint32_t j = walk->alignment.b_of_a[i];
        if (j == LB_NONE || walk->shadows.rows[i].agreement != LB_SHADOW_DISAGREES) continue;
        const lb_op *y = &walk->pb->ops[j], *b = &walk->pb->ops[ib];
        if (is_in_forward(walk->pa, &walk->pa->ops[i], op) && lb_op_same_args(walk->pb, y, walk->pb, b, 0)) return i;
    }
    return LB_NONE;
}

static void name_forward(lb_diff_walk *walk, uint32_t ia, lb_diff_row *row)
{
    lb_diff_row place = lb_diff_walk_own_row(walk, ia);
    place.local = place.verdict = LB_VERDICT_DIVERGED;
    place.why = "called with other arguments, as backward is, from which parameters follow";
    lb_place_neighbours(walk->report, walk->pa, ia, &place);
    lb_diff_rows_report(walk, &place);
    row->local = LB_VERDICT_ROUNDING, row->inherited = LB_VERDICT_DIVERGED;
    row->why = "called with other arguments, as the same op of forward is";
}

/* Parts are ranks, or calls of one program: micro-batches, groups of experts. */
static const char *takes_terms(lb_diff_walk *walk, uint32_t ia)
{
    const uint32_t join = walk->alignment.join_of_a[ia];
    char why[200];
    if (walk->b->n_parts > 1 || join == LB_NONE)
        return "each rank takes what it has by itself, terms of a sum, for the sum of all";
    snprintf(
        why, sizeof why,
        "the %s side runs this %u times, each with one term of the sum that the %s side gives it, for the sum of all",
        walk->swapped ? "first" : "second", walk->alignment.joins.list[join].parts, walk->swapped ? "second" : "first");
    return lb_report_keep(walk->report, why);
}

void lb_place_divergence(lb_diff_walk *walk, const lb_divergence *divergence, uint32_t ia, const lb_evidence *evidence,
                         lb_diff_row *row)
{
    const bool lone = divergence->n[0] || divergence->n[1],
               other_args = (!evidence->same_args && !evidence->args_follow) || !reduces_alike(walk, ia);
    if (evidence->own[0] == LB_VERDICT_DIVERGED || evidence->own[1] == LB_VERDICT_DIVERGED)
        return; /* said by the op itself */
    const char *why;
    if (lb_place_is_unknown(walk, divergence, &why)) {
        row->local = LB_VERDICT_MISSING, row->why = why;
        return;
    }
    /* Exact values may part where no bit does, and meet an op whose bits part by rounding of its own. */
    if (!lone && evidence->same_args && !other_args && !evidence->inputs_differ &&
        walk->alignment.join_of_a[ia] == LB_NONE && lb_verdict_is_accounted_for(evidence->own[0]) &&
        lb_verdict_is_accounted_for(evidence->own[1]) && reads_same_inputs(walk, ia)) {
        row->local = LB_VERDICT_ROUNDING, row->why = "from the same bits each side's lie inside this op's error bound";
        return;
    }
    if (!lone && !evidence->same_args && evidence->args_follow) {
        row->local = LB_VERDICT_ROUNDING, row->inherited = walk->past->read.verdict;
        row->why = "its arguments follow from numbers that Python read, which differ";
        return;
    }
    if (divergence->n[0] && divergence->n[1] && !other_args && walk->cuts.result) {
        name_behind_parts(walk, row);
        return;
    }
    if (lone && !other_args) {
        lb_diff_row place = lone_row(walk, divergence);
        lb_diff_rows_report(walk, &place);
        row->local = LB_VERDICT_ROUNDING, row->inherited = LB_VERDICT_DIVERGED;
        row->why = "it follows from ops that the two sides do not share, which compute other values";
        return;
    }
    const uint32_t twin = !lone && other_args && walk->have_shadows ? forward_twin(walk, ia) : LB_NONE;
    if (twin != LB_NONE) {
        name_forward(walk, twin, row);
        return;
    }
    row->local = LB_VERDICT_DIVERGED;
    row->why = other_args ? "called with other arguments, which give other exact values"
                          : "the same inputs give other exact values";
    if (divergence->node != LB_NONE && walk->merged.nodes[divergence->node].takes_terms)
        row->why = takes_terms(walk, ia);
    if (!lone && !other_args && (name_sources(walk, ia, row) || name_copy(walk, ia, row))) return;
    if (walk->pa->ops[ia].phase == LB_PHASE_FORWARD || walk->pa->ops[ia].phase == LB_PHASE_BACKWARD)
        lb_place_neighbours(walk->report, walk->pa, ia, row);
    name_owner(walk, 0, ia, walk->have_shadows ? walk->shadows.rows[ia].outcome : LB_NONE, row);
}

/* A parameter that is written outside modules and backward is itself the place: the op may serve several, this is one
 * of them. */
static void take_over(lb_diff_walk *walk, const lb_diff_row *place, lb_diff_row *row)
{
    row->op = place->op, row->phase = place->phase, row->index = place->index, row->other = place->other;
    row->order = place->order, row->lone = place->lone;
    row->parameter = lb_report_keep(walk->report, lb_state_name_parameter(row->layer));
}

void lb_place_final(lb_diff_walk *walk, const lb_divergence *divergence, lb_diff_row *row)
{
    if (!divergence->n[0] && !divergence->n[1]) return;
    lb_diff_row place = lone_row(walk, divergence);
    if (row->value && place.phase != LB_PHASE_FORWARD && place.phase != LB_PHASE_BACKWARD) {
        take_over(walk, &place, row);
        return;
    }
    lb_diff_rows_report(walk, &place);
    row->local = LB_VERDICT_ROUNDING, row->inherited = LB_VERDICT_DIVERGED;
}
