/* The search backwards: see divergence.h.
 * In the terms of program slicing (Weiser 1981) each walk is a backward slice over the data
 * dependences of both sides at once that is cut off at nodes which are the same. A full slice of a
 * parameter is the whole step; the cut is what makes the answer small.
 *
 * Cost: a walk is linear in the ops that it sees, and there is one for each sink and each node that
 * is apart and leads to one. Stamps in place of cleared sets keep a short walk cheap in a step of
 * 10^5 ops. */
#include "merged/divergence.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* A set of ops of both sides that is being walked back from. */
typedef struct search {
    const lb_merged *m;
    lb_divergences *out;
    /* per side: ops to visit, all of this walk, and the walk that saw an op last */
    uint32_t *stack[2], *seen[2], *stamp[2];
    uint32_t n_stack[2], n_seen[2], walk;
    uint32_t *queue, n_queue; /* nodes that are apart and lead to a sink, in the order in which they were met */
    uint32_t self;            /* the node that the walk began at: it does not count as met */
    bool met;                 /* some other node that is apart */
    bool flipped;             /* a decision that was made differently */
    uint32_t *first_succ[2], *succs[2]; /* preds the other way round */
    uint8_t *inner, *sinks; /* per node: INNER_…; whether it is one, or stands for one that was taken over */
    bool failed;
} search;

enum { INNER_UNKNOWN, INNER_NO, INNER_YES };

/* Each op enters the stack at most once in a walk, so that stacks of n_ops never overflow and
 * circles (an op of A reached through B and back) end. */
static void visit(search *search, int side, uint32_t op)
{
    if (search->stamp[side][op] == search->walk) return;
    search->stamp[side][op] = search->walk;
    search->stack[side][search->n_stack[side]++] = op;
    search->seen[side][search->n_seen[side]++] = op;
}

/* Entering by either side continues on both: what B's op reads has to be followed even where the
 * way there led through A's. */
static void visit_node(search *search, uint32_t node)
{
    const lb_node *n = &search->m->nodes[node];
    for (int side = 0; side < 2; side++)
        for (uint32_t k = 0; k < n->n[side]; k++) visit(search, side, search->m->ops[n->first[side] + k]);
}

/* A node joins the queue once, from whichever sink it is reached first, so that faults which lead to a thousand
 * parameters are still one walk each. */
static void meet(search *search, uint32_t node)
{
    if (node == search->self) return;
    search->met = true;
    if (search->out->leads[node]) return;
    search->out->leads[node] = 1;
    search->queue[search->n_queue++] = node;
}

static void note_lone(search *search, int side, uint32_t op, uint8_t blame)
{
    /* Copies and casts stand on one side of every mixed-precision run, and would bury the one op
     * that computes. */
    if (search->m->sides[side].may_differ[op] != blame) return;
    uint32_t *more = lb_array_grow(search->out->lone, search->out->n_lone, sizeof *more);
    search->failed |= !more;
    if (!more) return;
    search->out->lone = more;
    search->out->lone[search->out->n_lone++] = op;
}

static void read_pred(search *search, int side, uint32_t op)
{
    const uint32_t node = search->m->sides[side].node_of[op];
    if (node == LB_NONE) {
        visit(search, side, op);
        return;
    }
    switch ((lb_node_state)search->m->nodes[node].state) {
    /* This is the cut. A choice that the sides made differently is noted on the way: exact values
     * agree behind it only because one side's was taken over. */
    case LB_NODE_SAME: search->flipped |= search->m->nodes[node].flipped; return;
    case LB_NODE_APART:
        /* The walk stops here, too: whatever is wrong before this node is found by the walk that
         * begins at it, and blaming both would report one fault as many. */
        if (search->inner[node] != INNER_YES) {
            meet(search, node);
            return;
        }
        visit_node(search, node);
        return;
    /* An op that could not be run exactly may be innocent, and the difference may have passed
     * through it: neither stopping nor accusing it would be right. */
    case LB_NODE_UNKNOWN:
        if (search->m->nodes[node].takes_terms)
            meet(search, node);
        else
            visit_node(search, node);
        return;
    }
}

static void list_lone(search *search, lb_divergence *divergence, uint8_t blame)
{
    for (int side = 0; side < 2; side++) {
        divergence->first[side] = search->out->n_lone;
        for (uint32_t k = 0; k < search->n_seen[side]; k++)
            if (search->m->sides[side].node_of[search->seen[side][k]] == LB_NONE) {
                note_lone(search, side, search->seen[side][k], blame);
                divergence->sources[side] |=
                    search->m->sides[side].may_differ[search->seen[side][k]] == LB_BLAME_SOURCE;
            }
        divergence->n[side] = search->out->n_lone - divergence->first[side];
        if (divergence->n[side])
            qsort(search->out->lone + divergence->first[side], divergence->n[side], sizeof *search->out->lone,
                  lb_by_u32);
    }
}

/* Walks until both stacks are empty. Going through an unknown node of one side fills the other's, so that lone ops are
 * gathered per side at the end. `o`: where they are listed; the ops of node `self` are no lone ones. */
static void walk_back(search *search, lb_divergence *divergence)
{
    for (bool more = true; more;) {
        more = false;
        for (int side = 0; side < 2; side++)
            while (search->n_stack[side]) {
                const lb_merged_side *m = &search->m->sides[side];
                const uint32_t op = search->stack[side][--search->n_stack[side]];
                for (uint32_t k = m->first_pred[op]; k < m->first_pred[op + 1]; k++)
                    read_pred(search, side, m->preds[k]);
                more = true;
            }
    }
    divergence->flipped = search->flipped;
    list_lone(search, divergence, LB_BLAME_OP);
    if (!divergence->n[0] && !divergence->n[1]) list_lone(search, divergence, LB_BLAME_MOVE);
}

static void begin(search *search, uint32_t self)
{
    /* A new number of the walk empties both sets at once. */
    search->walk++, search->self = self, search->met = search->flipped = false;
    search->n_seen[0] = search->n_seen[1] = 0;
}

static void add_origin(search *search, const lb_divergence *divergence)
{
    lb_divergence *more = lb_array_grow(search->out->list, search->out->n, sizeof *more);
    search->failed |= !more;
    if (!more) return;
    search->out->list = more;
    search->out->list[search->out->n++] = *divergence;
}

/* What was listed for a walk that found no origin is given back. */
static void end(search *search, const lb_divergence *divergence, bool is_origin)
{
    if (is_origin)
        add_origin(search, divergence);
    else
        search->out->n_lone = divergence->first[0];
}

static void search_sink(search *search, uint32_t row)
{
    const lb_sink *sink = &search->m->sinks[row];
    lb_divergence divergence = {.node = LB_NONE, .sink = row};
    /* A node that leaves the step needs no walk of its own: it is queued and asked like any other. */
    if (sink->node != LB_NONE && !sink->inputs) {
        begin(search, LB_NONE);
        if (search->m->nodes[sink->node].state == LB_NODE_APART) meet(search, sink->node);
        return;
    }
    begin(search, LB_NONE);
    /* Inputs of a decision: the op's own outcome was taken over and says nothing, so that the walk
     * begins before it. */
    if (sink->node != LB_NONE)
        visit_node(search, sink->node);
    else
        for (int side = 0; side < 2; side++)
            if (sink->op[side] != LB_NONE) read_pred(search, side, sink->op[side]);
    walk_back(search, &divergence);
    /* A value that is apart although nothing before it is must itself be what differs. Inputs of a
     * decision never are: an op that is apart among them was queued, and is reported by itself. */
    end(search, &divergence, sink->node == LB_NONE && !search->met);
}

static void search_node(search *search, uint32_t node)
{
    lb_divergence divergence = {.node = node, .sink = LB_NONE, .integers = search->m->nodes[node].integers};
    begin(search, node);
    visit_node(search, node);
    walk_back(search, &divergence);
    end(search, &divergence, !search->met);
}

/* Nodes whose sides cross each other's may each reach the other: then the first of them stands for all.
 * Without this a difference that is certain (a sink is apart) would end in no finding at all. Which of
 * them is the cause cannot be known; the first in A's order is where a reader begins to look. */
static void break_circle(search *search)
{
    uint32_t first = LB_NONE, row = UINT32_MAX;
    for (uint32_t q = 0; q < search->n_queue; q++) {
        const lb_node *n = &search->m->nodes[search->queue[q]];
        if (n->n[0] && search->m->ops[n->first[0]] < row) row = search->m->ops[n->first[0]], first = search->queue[q];
    }
    if (first == LB_NONE) return;
    lb_divergence divergence = {.node = first, .sink = LB_NONE};
    divergence.first[0] = divergence.first[1] = search->out->n_lone;
    add_origin(search, &divergence);
}

/* ---- what meets again ---- */

/* A counting sort by target, in two passes over the edges. Counts are written two places ahead and
 * the second pass fills through the place between, so that first[] ends as the row starts without
 * another copy. */
static bool turn_round(search *search, int side)
{
    const lb_merged_side *m = &search->m->sides[side];
    uint32_t *first = search->first_succ[side] = calloc(m->n_ops + 2, sizeof *first);
    uint32_t *succs = search->succs[side] = malloc((m->first_pred[m->n_ops] + 1) * sizeof *succs);
    if (!first || !succs) return false;
    for (uint32_t k = 0; k < m->first_pred[m->n_ops]; k++) first[m->preds[k] + 2]++;
    for (uint32_t i = 0; i < m->n_ops; i++) first[i + 2] += first[i + 1];
    for (uint32_t i = 0; i < m->n_ops; i++)
        for (uint32_t k = m->first_pred[i]; k < m->first_pred[i + 1]; k++) succs[first[m->preds[k] + 1]++] = i;
    return true;
}

/* A node that is a sink leaves the step; one whose inputs are one is the same only because its outcome was taken
 * over. */
static bool mark_sinks(search *search)
{
    search->sinks = calloc(search->m->n_nodes + 1, 1);
    for (uint32_t i = 0; search->sinks && i < search->m->n_sinks; i++) {
        const lb_sink *sink = &search->m->sinks[i];
        if (sink->node != LB_NONE) search->sinks[sink->node] = 1;
        for (int side = 0; side < 2; side++)
            if (sink->op[side] != LB_NONE && search->m->sides[side].node_of[sink->op[side]] != LB_NONE)
                search->sinks[search->m->sides[side].node_of[sink->op[side]]] = 1;
    }
    return search->sinks != NULL;
}

static bool same_phase(const lb_merged_side *m, uint32_t a, uint32_t b)
{
    return !m->phase || m->phase[a] == m->phase[b];
}

/* What an op's result goes into, in its phase: through ops without a node to the next nodes, whose states are added up.
 * Each walk has a stamp of its own. */
typedef struct onward {
    bool same, apart;
    uint32_t *apart_nodes, n_apart;
} onward;

static void go_on(search *search, int side, uint32_t from, onward *onward)
{
    const lb_merged_side *m = &search->m->sides[side];
    search->walk++, search->n_stack[side] = 0, search->n_seen[side] = 0;
    visit(search, side, from);
    while (search->n_stack[side]) {
        const uint32_t op = search->stack[side][--search->n_stack[side]];
        for (uint32_t k = search->first_succ[side][op]; k < search->first_succ[side][op + 1]; k++) {
            const uint32_t next = search->succs[side][k], node = m->node_of[next];
            /* Backward reads scores and probabilities a second time. Counting those reads would
             * make no masked score an inner value, although the result of the softmax is the same. */
            if (!same_phase(m, from, next)) continue;
            if (node == LB_NONE) {
                visit(search, side, next);
            } else if (search->m->nodes[node].state == LB_NODE_SAME && !search->sinks[node]) {
                onward->same = true;
            } else if (search->m->nodes[node].state == LB_NODE_APART && onward->n_apart < search->m->n_nodes) {
                onward->apart_nodes[onward->n_apart++] = node;
            } else {
                onward->apart = true;
            }
        }
    }
}

/* Nodes are asked in the order of their ops from the last on, so that what follows from one is mostly known; what is
 * not is no. */
static void ask_node(search *search, uint32_t node, uint32_t *room)
{
    const lb_node *n = &search->m->nodes[node];
    onward o = {.apart_nodes = room};
    for (int side = 0; side < 2; side++)
        for (uint32_t k = 0; k < n->n[side]; k++) go_on(search, side, search->m->ops[n->first[side] + k], &o);
    /* A node that goes into nothing is no inner value: then nothing shows that its difference
     * vanishes. */
    bool inner = (o.same || o.n_apart) && !o.apart && !search->sinks[node];
    for (uint32_t k = 0; inner && k < o.n_apart; k++)
        inner = o.apart_nodes[k] == node || search->inner[o.apart_nodes[k]] == INNER_YES;
    search->inner[node] = inner ? INNER_YES : INNER_NO;
}

static bool find_inner(search *search)
{
    uint32_t *room = malloc((search->m->n_nodes + 1) * sizeof *room);
    if (!room || !mark_sinks(search) || !turn_round(search, 0) || !turn_round(search, 1)) {
        free(room);
        return false;
    }
    /* One pass from the end instead of a fixed point: ops are in an order in which results precede
     * their readers, so that only a crossing of the sides leaves something open, and "no" then errs
     * towards reporting. */
    for (uint32_t i = search->m->sides[0].n_ops; i-- > 0;) {
        const uint32_t node = search->m->sides[0].node_of[i];
        if (node != LB_NONE && search->m->nodes[node].state == LB_NODE_APART && search->inner[node] == INNER_UNKNOWN)
            ask_node(search, node, room);
    }
    free(room);
    return true;
}

lb_status lb_divergences_find(const lb_merged *merged, lb_divergences *out, lb_err *err)
{
    search search = {.m = merged, .out = out};
    *out = (lb_divergences){.leads = calloc(merged->n_nodes + 1, 1)};
    search.queue = malloc((merged->n_nodes + 1) * sizeof *search.queue);
    search.inner = calloc(merged->n_nodes + 1, 1);
    search.failed = !out->leads || !search.queue || !search.inner;
    for (int side = 0; side < 2; side++) {
        search.stack[side] = malloc((merged->sides[side].n_ops + 1) * sizeof(uint32_t));
        search.seen[side] = malloc((merged->sides[side].n_ops + 1) * sizeof(uint32_t));
        search.stamp[side] = calloc(merged->sides[side].n_ops + 1, sizeof(uint32_t));
        search.failed |= !search.stack[side] || !search.seen[side] || !search.stamp[side];
    }
    search.failed = search.failed || !find_inner(&search);
    search.n_stack[0] = search.n_stack[1] = 0;
    for (uint32_t i = 0; i < merged->n_sinks && !search.failed; i++) search_sink(&search, i);
    /* The queue grows while it is read. Each node enters it once, and the loop ends when no walk
     * finds another. */
    for (uint32_t q = 0; q < search.n_queue && !search.failed; q++) search_node(&search, search.queue[q]);
    if (!search.failed && search.n_queue && !out->n) break_circle(&search);
    for (int side = 0; side < 2; side++) {
        free(search.stack[side]), free(search.seen[side]), free(search.stamp[side]);
        free(search.first_succ[side]), free(search.succs[side]);
    }
    free(search.queue), free(search.inner), free(search.sinks);
    if (!search.failed) return LB_OK;
    lb_divergences_release(out);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", merged->sides[0].n_ops + merged->sides[1].n_ops);
}

void lb_divergences_release(lb_divergences *origins)
{
    free(origins->list), free(origins->leads), free(origins->lone);
    *origins = (lb_divergences){0};
}
