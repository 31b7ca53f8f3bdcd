/* Making the merged program: see merged_steps.h.
 * Nothing is judged here: this turns alignment, shadows and exits into the arrays that the search
 * in divergence.c reads. The search stays free of programs and can be tested as a table; the price
 * is one copy of the edges of both sides. */
#include "merged/merged_steps.h"

#include "shadow/cross_feed.h"
#include "pair/cut_tensors.h"

#include "base/array.h"
#include "program/input_name.h"
#include <stdlib.h>
#include <string.h>

typedef struct maker {
    const lb_program_view *sides[2];
    const lb_alignment *al;
    const lb_collective_matches *collective_matches; /* of A, of B */
    const uint8_t *differs;
    const lb_shadow_pair *shadows;
    const lb_step_outputs *exits;
    lb_merged_steps *out;
    uint32_t n_ops; /* rows of out->ops */
    bool uneven;    /* B calls its layers more often, or is more programs */
    bool updates;   /* both sides' steps write parameters */
} maker;

static const lb_op *op_of(const maker *maker, int side, uint32_t op)
{
    return &maker->sides[side]->program->ops[op];
}

static bool is_source(const maker *maker, int side, uint32_t op)
{
    return lb_op_is_source(maker->sides[side]->program, op_of(maker, side, op));
}

/* ---- what an op reads from ---- */

static uint32_t preds_of(const lb_slice_flow *flow, uint32_t op)
{
    return flow->first_def[op + 1] - flow->first_def[op];
}

static const lb_collective_match *meeting_of(const maker *maker, int side, uint32_t op)
{
    const lb_collective_matches *all = &maker->collective_matches[side];
    return all->of_op && all->of_op[op] != LB_NONE ? &all->list[all->of_op[op]] : NULL;
}

/* Collectives depend on what all their members brought.
 * Otherwise rank 1's fault would enter rank 0 through an all-reduce whose own inputs on rank 0 are
 * the same, and the collective would be called the culprit. Two passes, first counting and then
 * filling, keep the edges in one array per side, a list of neighbours in compressed rows; room
 * grows with the members of a collective squared, since each op of a meeting lists the inputs of
 * all. */
static bool list_preds(maker *maker, int side)
{
    const lb_slice_flow *flow = maker->out->flows[side];
    const uint32_t n = maker->sides[side]->program->n_ops;
    uint64_t total = 0;
    uint32_t *first = maker->out->first_pred[side] = malloc((n + 1) * sizeof *first), at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const lb_collective_match *meeting = meeting_of(maker, side, i);
        for (uint32_t k = 0; k < (meeting ? meeting->n : 1); k++)
            total += preds_of(flow, meeting ? maker->collective_matches[side].ops[meeting->first + k] : i);
    }
    uint32_t *preds = maker->out->preds[side] = malloc((total + 1) * sizeof *preds);
    if (!first || !preds || total > UINT32_MAX) return false;
    for (uint32_t i = 0; i < n; i++) {
        const lb_collective_match *meeting = meeting_of(maker, side, i);
        first[i] = at;
        for (uint32_t k = 0; k < (meeting ? meeting->n : 1); k++) {
            const uint32_t member = meeting ? maker->collective_matches[side].ops[meeting->first + k] : i,
                           more = preds_of(flow, member);
            if (more)
                memcpy(preds + at, flow->defs + flow->first_def[member],
                       more * sizeof *preds); /* a file of weights has no defs at all */
            at += more;
        }
    }
    first[n] = at;
    return true;
}

/* ---- nodes ---- */

/* Weights and moments that one side alone holds can be the cause; a batch or an index without a
 * partner is a way of feeding the model, and whatever it does wrong shows in an op that reads it. */
static uint8_t blame_of_source(const lb_program *program, const lb_op *op)
{
    const uint32_t v = op->results ? lb_op_results(program, op)[0] : LB_NONE;
    if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype)) return LB_BLAME_NOT;
    return program->values[v].flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE) ||
                   program->values[v].source == LB_SOURCE_CARRIED
               ? LB_BLAME_SOURCE
               : LB_BLAME_NOT;
}

/* Copies and casts are the identity in exact arithmetic.
 * Naming one would be wrong in every bf16 run, where casts stand on one side only. `empty` gives no
 * number at all until something is written. */
static uint8_t may_differ(const lb_program *program, const lb_op *op)
{
    static const char *const same[] = {"aten::lift_fresh",       "aten::copy_",     "aten::empty",
                                       "aten::empty_like",       "aten::new_empty", "aten::empty_strided",
                                       "aten::new_empty_strided"};
    if (lb_op_is_source(program, op)) return blame_of_source(program, op);
    /* The overload changes the arguments and not what is computed. */
    if (lb_cross_feed_op_hands_on(program, op) || lb_op_name_among(program, op, same, sizeof same / sizeof *same) >= 0)
        return LB_BLAME_NOT;
    return lb_op_computes(program, op) ? LB_BLAME_OP : LB_BLAME_NOT;
}

/* Ops that put numbers elsewhere as they are: how FSDP makes parameters whole. */
static bool moves(const lb_program *program, const lb_op *op)
{
    static const char *const words[] = {"allgather", "all_gather", "_foreach_copy_", "split_with_sizes_copy",
                                        "chunk_cat"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(lb_op_name(program, op), words[i])) return true;
    return false;
}

/* Does it read parameters alone, or what such ops made of them? Members of a collective stand behind each other. */
static bool moves_parameters(const maker *maker, int side, uint32_t op)
{
    const lb_merged_steps *steps = maker->out;
    const lb_program *program = maker->sides[side]->program;
    bool any = false;
    for (uint32_t k = steps->first_pred[side][op]; k < steps->first_pred[side][op + 1]; k++) {
        const uint32_t from = steps->preds[side][k];
        const bool source = is_source(maker, side, from);
        const bool parameter =
            source && program->values[lb_op_results(program, &program->ops[from])[0]].flags & LB_VALUE_PARAMETER;
        if (parameter || steps->may_differ[side][from] == LB_BLAME_MOVE) any = true;
        if (!parameter && (source || steps->may_differ[side][from] == LB_BLAME_OP)) return false;
    }
    return any;
}

static void find_moves(maker *maker, int side)
{
    const lb_program *program = maker->sides[side]->program;
    uint8_t *blame = maker->out->may_differ[side];
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = 0; i < program->n_ops; i++)
            if (blame[i] == LB_BLAME_OP && moves(program, &program->ops[i]) && moves_parameters(maker, side, i))
                blame[i] = LB_BLAME_MOVE, more = true;
    }
}

static uint32_t meets(const maker *maker, int side, uint32_t op)
{
    return maker->shadows->meets[side] ? maker->shadows->meets[side][op] : LB_NONE;
}

static void add_node(maker *maker, uint32_t a, const uint32_t *b, uint32_t n, lb_node_state state)
{
    lb_merged_steps *steps = maker->out;
    lb_node *node = &steps->nodes[steps->merged.n_nodes];
    const bool same_bits = meets(maker, 0, a) == LB_NONE && !maker->differs[a];
    *node = (lb_node){.first = {maker->n_ops, maker->n_ops + 1}, .n = {1, n}, .state = (uint8_t)state};
    node->told = state == LB_NODE_SAME && (same_bits || (maker->shadows->rows && maker->shadows->rows[a].told));
    steps->ops[maker->n_ops++] = a;
    steps->node_of[0][a] = steps->merged.n_nodes;
    for (uint32_t k = 0; k < n; k++) {
        steps->ops[maker->n_ops++] = b[k];
        steps->node_of[1][b[k]] = steps->merged.n_nodes;
    }
    steps->merged.n_nodes++;
}

/* Draws are sources: whether they may differ is asked of them, not of what follows.
 * Without shadows nothing is known to be apart, and bits that differ are unknown: the search passes
 * through them and accuses no op. An op whose bits are equal may still be apart where the exact
 * values disagree, because rounding can hide a difference (a term below the last bit). */
static lb_node_state state_of(const maker *maker, uint32_t a)
{
    if (is_source(maker, 0, a) || op_of(maker, 0, a)->flags & LB_OP_RANDOM) return LB_NODE_SAME;
    if (maker->al->join_of_a[a] != LB_NONE && lb_op_counts_anew(maker->sides[0]->program, op_of(maker, 0, a)))
        return LB_NODE_SAME;
    if (!maker->shadows->rows) return maker->differs[a] ? LB_NODE_UNKNOWN : LB_NODE_SAME;
    if (!maker->differs[a] && maker->shadows->rows[a].agreement != LB_SHADOW_DISAGREES) return LB_NODE_SAME;
    switch (maker->shadows->rows[a].agreement) {
    case LB_SHADOW_AGREES: return LB_NODE_SAME;
    /* Parameters that the ranks of the sides cut differently lie in another order while they are put together. */
    case LB_SHADOW_DISAGREES:
        return maker->al->cuts && maker->al->cuts->n && maker->out->may_differ[0][a] == LB_BLAME_MOVE ? LB_NODE_UNKNOWN
                                                                                                      : LB_NODE_APART;
    case LB_SHADOW_UNKNOWN: break;
    }
    return LB_NODE_UNKNOWN;
}

/* In a layer or an update that the sides write by different ops, names alone make pairs of what has nothing to do with
 * each other: a root divided by its correction here, a moment by its own there; scores masked by block here, all at
 * once there. Other arguments and other exact values: they are not a pair. */
static bool is_no_pair(const maker *maker, uint32_t a, uint32_t b)
{
    const lb_op *x = op_of(maker, 0, a), *y = op_of(maker, 1, b);
    return maker->al->irregular[a] && maker->differs[a] && maker->shadows->rows &&
           maker->shadows->rows[a].agreement == LB_SHADOW_DISAGREES &&
           !lb_op_same_args(maker->sides[0]->program, x, maker->sides[1]->program, y, 0);
}

/* What a rank gives that stands against none, for another has the same, is the node of the other. */
static void add_copies(maker *maker)
{
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; maker->sides[side]->original && i < maker->sides[side]->program->n_ops; i++) {
            const uint32_t original = maker->sides[side]->original[i];
            if (original != LB_NONE) maker->out->node_of[side][i] = maker->out->node_of[side][original];
        }
}

static void make_nodes(maker *maker)
{
    const lb_alignment *al = maker->al;
    for (uint32_t a = 0; a < maker->sides[0]->program->n_ops; a++) {
        /* Equal exact values are stronger evidence than equal names: a partner by name is taken
         * only where neither op has met another one. Otherwise a fused projection and a split one,
         * which compute the same in ops of different names, would never be one node. */
        uint32_t b = meets(maker, 0, a);
        if (b != LB_NONE) {
            add_node(maker, a, &b, 1, LB_NODE_SAME);
            continue;
        }
        b = al->b_of_a[a] != LB_NONE ? al->b_of_a[a] : al->source_b_of_a[a];
        if (b != LB_NONE && meets(maker, 1, b) == LB_NONE && !is_no_pair(maker, a, b))
            add_node(maker, a, &b, 1, state_of(maker, a));
        /* A join comes last: an op has either a partner or parts. */
        if (b != LB_NONE || al->join_of_a[a] == LB_NONE) continue;
        const lb_reassembly *join = &al->joins.list[al->join_of_a[a]];
        add_node(maker, a, al->joins.part_ops + join->first, join->parts, state_of(maker, a));
    }
    add_copies(maker);
}

/* ---- sinks ---- */

static bool add_sink(maker *maker, lb_sink sink, uint32_t final, uint32_t exit)
{
    lb_merged_steps *steps = maker->out;
    /* The three arrays grow together; each is stored as soon as it has moved, so that none is
     * lost when a later one gets no memory. */
    const uint32_t n = steps->merged.n_sinks;
    lb_sink *sinks = lb_array_grow(steps->sinks, n, sizeof *sinks);
    if (sinks) steps->sinks = sinks;
    uint32_t *finals = lb_array_grow(steps->sink_final, n, sizeof *finals);
    if (finals) steps->sink_final = finals;
    uint32_t *exits = lb_array_grow(steps->sink_exit, n, sizeof *exits);
    if (exits) steps->sink_exit = exits;
    if (!sinks || !finals || !exits) return false;
    steps->sink_final[steps->merged.n_sinks] = final, steps->sink_exit[steps->merged.n_sinks] = exit;
    steps->sinks[steps->merged.n_sinks++] = sink;
    return true;
}

/* A value that is apart, by the ops that give it: the node that they are, if that is apart, too.
 * A final can differ although its node is the same: a slice is written at another place. Then the
 * sink stands for itself, and the search begins at both givers. */
static bool add_value(maker *maker, uint32_t a, uint32_t b, uint32_t final, uint32_t exit)
{
    const uint32_t node = a == LB_NONE ? LB_NONE : maker->out->node_of[0][a];
    const bool is_node = node != LB_NONE && b != LB_NONE && maker->out->node_of[1][b] == node &&
                         maker->out->nodes[node].state == LB_NODE_APART;
    return add_sink(maker, (lb_sink){is_node ? node : LB_NONE, false, {a, b}}, final, exit);
}

static bool add_finals(maker *maker)
{
    for (uint32_t f = 0; f < maker->shadows->n_finals; f++) {
        const lb_shadow_final *final = &maker->shadows->finals[f];
        /* Unknown is no sink: what could not be run is said to be missing elsewhere and never
         * accused. */
        if (final->agreement != LB_SHADOW_DISAGREES) continue;
        if (!add_value(maker, final->whole.op, maker->shadows->final_parts[final->first].op, f, LB_NONE)) return false;
    }
    return true;
}

/* Where both sides' ops are one quantity with others, it was the use that misled: keys and values may be read in
 * another order. */
static bool have_met_others(const maker *maker, const lb_step_output *exit)
{
    const uint32_t a = maker->out->node_of[0][exit->op[0]], b = maker->out->node_of[1][exit->op[1]];
    return a != LB_NONE && b != LB_NONE && a != b && maker->out->nodes[a].state == LB_NODE_SAME &&
           maker->out->nodes[b].state == LB_NODE_SAME;
}

/* Marks hand on nothing of what they read, views what reads them.
 * A loss that is only printed is read by a view and a mark at most, and it leaves the step by being
 * seen. */
static bool is_read(const maker *maker, int side, uint32_t op)
{
    const lb_slice_flow *flow = maker->out->flows[side];
    for (uint32_t k = flow->first_use[op]; k < flow->first_use[op + 1]; k++) {
        const uint32_t reader = flow->uses[k];
        if (lb_op_computes(maker->sides[side]->program, op_of(maker, side, reader))) return true;
        if (reader > op && is_read(maker, side, reader)) return true;
    }
    return false;
}

static bool updates(const lb_program *program)
{
    for (uint32_t i = program->n_ops; i-- > 0;)
        if (program->ops[i].phase == LB_PHASE_OPTIMIZER && lb_op_computes(program, &program->ops[i])) return true;
    return false;
}

/* A batch that one side packs and the other pads: results of different shapes which the loss reads, and inputs of the
 * next step, which judges them. In a step that updates parameters these say what came of it. */
static bool leads_to_parameters(const maker *maker, const lb_step_output *exit)
{
    if (!exit->other_shape || !maker->updates) return false;
    if (exit->name) return lb_input_name_is(exit->name);
    return is_read(maker, 0, exit->op[0]) && is_read(maker, 1, exit->op[1]);
}

static bool add_exits(maker *maker)
{
    for (uint32_t e = 0; e < maker->exits->n; e++) {
        const lb_step_output *exit = &maker->exits->list[e];
        if (exit->agreement == LB_SHADOW_AGREES || exit->by_place) continue;
        /* Behind a choice that fell differently a logged norm is over different tokens' gradients, which are not judged
         * either. */
        if (exit->logged && maker->shadows->first_flip != LB_NONE) continue;
        if (exit->agreement != LB_SHADOW_DISAGREES && !exit->other_shape) continue;
        if (leads_to_parameters(maker, exit)) continue;
        if (exit->by_use && have_met_others(maker, exit)) continue;
        if (!add_value(maker, exit->op[0], exit->op[1], LB_NONE, e)) return false;
    }
    return true;
}

/* Where B calls its layers more often, one loss stands beside the several that it is made of: such a pair is none. */
static bool is_doubtful(const maker *maker, const lb_node *node)
{
    return maker->uneven && node->n[1] == 1 && maker->al->irregular[maker->out->ops[node->first[0]]];
}

static bool is_rebased(const maker *maker, const lb_node *node)
{
    const uint32_t a = maker->out->ops[node->first[0]], b = maker->out->ops[node->first[1]];
    /* A collective whose members are all here is computed by both shadows, and hides nothing. */
    if (op_of(maker, 0, a)->flags & LB_OP_RANDOM || is_source(maker, 0, a) || meeting_of(maker, 0, a)) return false;
    return lb_cross_feed_rebases(maker->al, maker->sides[0], a, maker->sides[1], b);
}

/* Are integers or bools of it not the same on both sides? */
static bool decides(const maker *maker, const lb_node *node)
{
    const lb_program *pa = maker->sides[0]->program, *pb = maker->sides[1]->program;
    const lb_op *a = &pa->ops[maker->out->ops[node->first[0]]], *b = &pb->ops[maker->out->ops[node->first[1]]];
    for (uint32_t i = 0; i < a->results && i < b->results; i++) {
        const uint32_t va = lb_op_results(pa, a)[i], vb = lb_op_results(pb, b)[i];
        if (va == LB_NONE || vb == LB_NONE || !lb_dtype_is_integer(lb_dtype_part(pa->values[va].dtype))) continue;
        if (lb_program_view_values_differ(maker->sides[0], va, maker->sides[1], vb)) return true;
    }
    return false;
}

/* A value that some op still reads is judged by what it leads to; one without a reader can only be
 * judged itself. */
static bool is_unread(const maker *maker, const lb_node *node)
{
    for (int side = 0; side < 2; side++)
        for (uint32_t k = 0; k < node->n[side]; k++)
            if (is_read(maker, side, maker->out->ops[node->first[side] + k])) return false;
    return true;
}

static bool is_result(const lb_program *program, int64_t storage)
{
    for (uint32_t i = 0; i < program->n_boundaries; i++)
        if (program->boundaries[i].output && program->boundaries[i].value != LB_NONE &&
            program->values[program->boundaries[i].value].storage == storage)
            return true;
    return false;
}

/* Does the step behind this one begin with what that storage holds? */
static bool goes_on(const maker *maker, int side, uint32_t op, int64_t storage)
{
    const lb_program_view *view = maker->sides[side];
    const uint32_t part = lb_program_view_part_of(view, op);
    const lb_program *program = view->parts[part].program, *next;
    if (lb_capture_program(view->capture, program->rank, program->step + 1, &next, NULL) != LB_OK) return false;
    for (uint32_t i = 0; i < next->n_ops; i++) {
        const uint32_t v = lb_op_is_source(next, &next->ops[i]) ? lb_op_results(next, &next->ops[i])[0] : LB_NONE;
        if (v != LB_NONE && lb_program_view_storage(view, part, next->values[v].storage) == storage) return true;
    }
    return false;
}

static bool is_seen(const maker *maker, int side, uint32_t op)
{
    const lb_slice_flow *flow = maker->out->flows[side];
    for (uint32_t k = flow->first_use[op]; k < flow->first_use[op + 1]; k++)
        if (op_of(maker, side, flow->uses[k])->flags & LB_OP_DECISION) return true;
    return false;
}

/* The state that a recurrence is left with behind its last row: a module made it, and no result of a module holds it.
 * In a step that updates parameters it is for nothing, and two spellings of the recurrence may scale it otherwise. */
static bool is_for_nothing(const maker *maker, int side, uint32_t op)
{
    const lb_program *program = maker->sides[side]->program;
    const lb_op *o = op_of(maker, side, op);
    if (o->phase != LB_PHASE_FORWARD || !*lb_op_layer(program, o) || is_seen(maker, side, op)) return false;
    for (uint32_t i = 0; i < lb_op_outcomes(o); i++) {
        const uint32_t v = lb_op_outcome(program, o, i);
        if (v == LB_NONE) continue;
        if (is_result(program, program->values[v].storage) || goes_on(maker, side, op, program->values[v].storage))
            return false;
    }
    return true;
}

static bool node_is_for_nothing(const maker *maker, const lb_node *node)
{
    for (int side = 0; side < 2; side++)
        for (uint32_t k = 0; k < node->n[side]; k++)
            if (!is_for_nothing(maker, side, maker->out->ops[node->first[side] + k])) return false;
    return maker->updates;
}

/* Are terms of a sum among what it reads? Views and copies hand them on. */
static bool reads_terms(const maker *maker, uint32_t b, uint32_t depth)
{
    const lb_merged_steps *steps = maker->out;
    for (uint32_t k = steps->first_pred[1][b]; k < steps->first_pred[1][b + 1]; k++) {
        const uint32_t from = steps->preds[1][k], join = maker->al->join_of_b[from];
        if (join != LB_NONE && maker->shadows->rows[maker->al->joins.list[join].whole].terms) return true;
        if (join != LB_NONE || depth == 0 || steps->may_differ[1][from] != LB_BLAME_NOT || is_source(maker, 1, from))
            continue;
        if (reads_terms(maker, from, depth - 1)) return true;
    }
    return false;
}

static void find_taken_terms(maker *maker)
{
    enum { VIEWS = 8 };
    for (uint32_t i = 0; maker->shadows->rows && i < maker->out->merged.n_nodes; i++) {
        lb_node *node = &maker->out->nodes[i];
        const uint32_t b = maker->out->ops[node->first[1]];
        node->takes_terms = node->state == LB_NODE_UNKNOWN && maker->al->join_of_b[b] != LB_NONE &&
                            !(op_of(maker, 1, b)->flags & LB_OP_COLLECTIVE) && reads_terms(maker, b, VIEWS);
    }
}

static bool add_nodes(maker *maker)
{
    find_taken_terms(maker);
    for (uint32_t i = 0; i < maker->out->merged.n_nodes; i++) {
        lb_node *node = &maker->out->nodes[i];
        node->integers = !is_source(maker, 0, maker->out->ops[node->first[0]]) && decides(maker, node);
        /* Exact arithmetic agrees and the recorded integers do not: that is a near tie which
         * rounding decided. */
        node->flipped = node->state == LB_NODE_SAME && node->integers;
        if (is_doubtful(maker, node)) continue;
        const bool rebased = is_rebased(maker, node);
        if (rebased && !add_sink(maker, (lb_sink){i, true, {LB_NONE, LB_NONE}}, LB_NONE, LB_NONE)) return false;
        /* Equal bits with other exact values end at this node as far as the recording goes, since
         * nothing behind it can differ for its sake in this step. The next input may not be rounded
         * alike, so that it counts as a sink of its own. */
        if (node->state == LB_NODE_APART && is_unread(maker, node) && node_is_for_nothing(maker, node)) continue;
        if (node->state == LB_NODE_APART &&
            (is_unread(maker, node) || !maker->differs[maker->out->ops[node->first[0]]]) &&
            !add_sink(maker, (lb_sink){i, false, {LB_NONE, LB_NONE}}, LB_NONE, LB_NONE))
            return false;
    }
    return true;
}

/* ---- results without a reader that both sides compute in ops of their own ---- */

static const lb_value *lone_result(const maker *maker, int side, uint32_t op)
{
    const lb_program *program = maker->sides[side]->program;
    const lb_op *o = &program->ops[op];
    if (maker->out->node_of[side][op] != LB_NONE || maker->out->may_differ[side][op] != LB_BLAME_OP ||
        o->results != 1 || o->written)
        return NULL;
    const uint32_t v = lb_op_results(program, o)[0];
    if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype) || is_read(maker, side, op)) return NULL;
    return &program->values[v];
}

/* Neither name nor arguments are asked: these are ops that the sides write differently, and only
 * where they stand and the shape of what they give is left in common. */
static bool same_spot(const maker *maker, uint32_t a, const lb_value *va, uint32_t b, const lb_value *vb)
{
    const lb_op *x = op_of(maker, 0, a), *y = op_of(maker, 1, b);
    return x->phase == y->phase && x->call == y->call && lb_layout_same_shape(&va->layout, &vb->layout) &&
           !strcmp(lb_op_layer(maker->sides[0]->program, x), lb_op_layer(maker->sides[1]->program, y));
}

/* What agrees has met. The last of each layer is what it was all computed for.
 * Both loops run from the end, so that last meets last. A loss in fused form here and in ops there
 * has no partner on either side; unless the two are compared with each other, no difference in it
 * reaches a sink. */
static bool add_lone_results(maker *maker)
{
    uint8_t *taken = calloc(maker->sides[1]->program->n_ops + 1, 1);
    bool done = taken != NULL;
    for (uint32_t a = maker->sides[0]->program->n_ops; done && maker->shadows->rows && a-- > 0;) {
        const lb_value *va = lone_result(maker, 0, a), *vb;
        for (uint32_t b = va ? maker->sides[1]->program->n_ops : 0; b-- > 0;) {
            if (taken[b] || !(vb = lone_result(maker, 1, b)) || !same_spot(maker, a, va, b, vb)) continue;
            taken[b] = 1;
            if (maker->updates && is_for_nothing(maker, 0, a) && is_for_nothing(maker, 1, b)) break;
            done = add_sink(maker, (lb_sink){LB_NONE, false, {a, b}}, LB_NONE, LB_NONE);
            break;
        }
    }
    free(taken);
    return done;
}

/* ---- all of it ---- */

static lb_status open_steps(maker *maker, lb_err *err)
{
    lb_merged_steps *steps = maker->out;
    size_t all = 0;
    for (int side = 0; side < 2; side++) {
        const lb_program *program = maker->sides[side]->program;
        LB_TRY(lb_slice_flow_new(program, &steps->flows[side], err));
        steps->node_of[side] = malloc((program->n_ops + 1) * sizeof(uint32_t)),
        steps->may_differ[side] = calloc(program->n_ops + 1, 1);
        steps->phase[side] = calloc(program->n_ops + 1, 1);
        if (!steps->node_of[side] || !steps->may_differ[side] || !steps->phase[side] || !list_preds(maker, side))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", program->n_ops);
        memset(steps->node_of[side], 0xFF, (program->n_ops + 1) * sizeof(uint32_t));
        const uint8_t *held =
            maker->al->cuts ? maker->al->cuts->held[side] : NULL; /* both shadows begin with the same numbers */
        for (uint32_t i = 0; i < program->n_ops; i++) {
            steps->may_differ[side][i] =
                held && held[i] == LB_HELD_KNOWN ? LB_BLAME_NOT : may_differ(program, &program->ops[i]);
            steps->phase[side][i] = program->ops[i].phase;
        }
        find_moves(maker, side);
        all += program->n_ops + 1;
    }
    steps->nodes = malloc((maker->sides[0]->program->n_ops + 1) * sizeof *steps->nodes),
    steps->ops = malloc(all * sizeof *steps->ops);
    return steps->nodes && steps->ops ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu ops", all);
}

lb_status lb_merged_steps_make(const lb_aligned_views *views, const uint8_t *differs, const lb_shadow_pair *shadows,
                               const lb_step_outputs *exits, lb_merged_steps *out, lb_err *err)
{
    const lb_program_view *a = views->a, *b = views->b;
    *out = (lb_merged_steps){0};
    maker maker = {.sides = {a, b},
                   .al = views->alignment,
                   .collective_matches = views->collective_matches,
                   .differs = differs,
                   .shadows = shadows,
                   .exits = exits,
                   .out = out,
                   .uneven = lb_program_views_are_uneven(a, b) || lb_alignment_finer(b->program, a->program),
                   .updates = updates(a->program) && updates(b->program)};
    lb_status status = open_steps(&maker, err);
    if (status == LB_OK) {
        make_nodes(&maker);
        const bool room = add_finals(&maker) && add_exits(&maker) && add_nodes(&maker) && add_lone_results(&maker);
        if (!room) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for what leaves the step");
    }
    if (status != LB_OK) {
        lb_merged_steps_release(out);
        return status;
    }
    for (int side = 0; side < 2; side++)
        out->merged.sides[side] = (lb_merged_side){maker.sides[side]->program->n_ops,
                                                   out->first_pred[side],
                                                   out->preds[side],
                                                   out->node_of[side],
                                                   out->may_differ[side],
                                                   out->phase[side]};
    out->merged.nodes = out->nodes, out->merged.ops = out->ops, out->merged.sinks = out->sinks;
    return LB_OK;
}

void lb_merged_steps_release(lb_merged_steps *s)
{
    for (int side = 0; side < 2; side++) {
        lb_slice_flow_free(s->flows[side]);
        free(s->node_of[side]), free(s->may_differ[side]), free(s->phase[side]), free(s->first_pred[side]),
            free(s->preds[side]);
    }
    free(s->nodes), free(s->ops), free(s->sinks), free(s->sink_final), free(s->sink_exit);
    *s = (lb_merged_steps){0};
}
