/* Where a gradient stops on one side alone: see region_detached.h. */
#include "implementations/region_detached.h"

#include <stdlib.h>
#include <string.h>

/* Per op of a side, by its autograd nodes. */
typedef struct nodes {
    const lb_exact_side *side;
    uint8_t *made; /* the op made one */
    uint8_t *ran;  /* and backward went through it */
} nodes;

/* Ops that a fused one was spelled out as have its node, and are what it is. */
static const lb_op *recorded_op(const lb_exact_side *s, uint32_t op)
{
    const lb_program_view *view = s->view;
    const lb_program *recorded = view->parts[0].program;
    if (!view->op_of) return &recorded->ops[op];
    uint32_t low = 0, high = recorded->n_ops;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (view->op_of[middle] <= op)
            low = middle;
        else
            high = middle;
    }
    return &recorded->ops[low];
}

/* Their backward hands the gradient on, and runs no op. */
static bool hands_gradient_on(const lb_program *p, const lb_op *op)
{
    static const char *const names[] = {"aten::add", "aten::sub", "aten::rsub"};
    return lb_op_name_among(p, op, names, sizeof names / sizeof *names) >= 0;
}

static bool note_nodes(const lb_exact_side *s, nodes *out)
{
    const lb_program *recorded = s->view->parts[0].program, *p = s->program;
    int64_t last = -1, most = 0;
    for (uint32_t i = 0; i < recorded->n_ops; i++)
        if (recorded->ops[i].node > most) most = recorded->ops[i].node;
    uint8_t *of_op = calloc((size_t)recorded->n_ops + 1, 1),
            *of_node = calloc((size_t)(most < 1 << 28 ? most : 0) + 2, 1);
    *out = (nodes){s, calloc((size_t)p->n_ops + 1, 1), calloc((size_t)p->n_ops + 1, 1)};
    const bool room = of_op && of_node && out->made && out->ran && most < 1 << 28;
    for (uint32_t i = 0; i < recorded->n_ops && room; i++) {
        const lb_op *op = &recorded->ops[i];
        if (op->phase == LB_PHASE_BACKWARD && op->node >= 0) of_node[op->node] = 1;
        if (op->phase != LB_PHASE_FORWARD || lb_op_is_source(recorded, op)) continue;
        of_op[i] = last >= 0 && op->node > last;
        if (op->node > last) last = op->node;
    }
    for (uint32_t i = 0; i < p->n_ops && room; i++) {
        const lb_op *op = recorded_op(s, i);
        out->made[i] = of_op[op - recorded->ops];
        out->ran[i] = out->made[i] && op->node > 0 && (of_node[op->node - 1] || hands_gradient_on(recorded, op));
    }
    free(of_op), free(of_node);
    return room;
}

static uint32_t first_outcome(const lb_program *p, uint32_t op)
{
    return lb_op_outcomes(&p->ops[op]) ? lb_op_outcome(p, &p->ops[op], 0) : LB_NONE;
}

/* Does a gradient reach some value that the op reads? One that backward gave is differentiated once more. */
static bool reads_followed(const nodes *n, uint32_t v)
{
    const lb_value_graph *g = &n->side->graph;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) {
        const uint32_t giver = g->giver[g->preds[k]];
        if (giver != LB_NONE && (n->made[giver] || g->program->ops[giver].phase == LB_PHASE_BACKWARD)) return true;
    }
    return false;
}

/* Is the value read by an op whose node backward never went through either? Then it is not where the gradient stops. */
static bool is_read_before_stop(const nodes *n, uint32_t value)
{
    const lb_value_graph *g = &n->side->graph;
    for (uint32_t v = 0; v < g->program->n_values; v++) {
        if (g->first_use[v] == g->first_use[v + 1] || lb_value_graph_whole(g, v) != value) continue;
        for (uint32_t k = g->first_use[v]; k < g->first_use[v + 1]; k++) {
            const uint32_t op = g->uses[k];
            if (g->program->ops[op].phase == LB_PHASE_FORWARD && n->made[op] && !n->ran[op]) return true;
        }
    }
    return false;
}

static bool stops_at(const nodes *n, uint32_t op, uint32_t value)
{
    if (n->ran[op]) return false;
    return n->made[op] ? !is_read_before_stop(n, value) : reads_followed(n, value);
}

/* The `detach` by which it stops: of what the op gives, or of what it reads; the op itself where there is none. */
static uint32_t detach_near(const nodes *n, uint32_t op, uint32_t value)
{
    const lb_program *p = n->side->program;
    const lb_value_graph *g = &n->side->graph;
    uint32_t found = op;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *o = &p->ops[i];
        if (o->phase != LB_PHASE_FORWARD || strcmp(lb_op_name(p, o), "aten::detach") || !o->args ||
            lb_op_args(p, o)->tag != LB_ARG_VALUE)
            continue;
        const uint32_t v = lb_value_graph_whole(g, lb_op_args(p, o)->u.value);
        bool reads = n->made[op] && v == value && i > op;
        for (uint32_t k = g->first_pred[value]; k < g->first_pred[value + 1] && !n->made[op]; k++)
            reads |= i < op && lb_value_graph_whole(g, g->preds[k]) == v;
        if (reads) found = i;
    }
    return found;
}

static bool forward_differs(const lb_region_question *asked)
{
    const lb_exact_side *b = asked->sides[1];
    for (uint32_t i = 0; i < asked->counterparts->n; i++) {
        const lb_counterpart *c = &asked->counterparts->list[i];
        const uint32_t giver = b->graph.giver[c->b];
        if (c->state != LB_COUNTERPART_APART || giver == LB_NONE) continue;
        /* A parameter that is never updated ends as the source that it was. */
        const lb_op *op = &b->program->ops[giver];
        if (op->phase == LB_PHASE_FORWARD && !lb_op_is_source(b->program, op)) return true;
    }
    return false;
}

/* A value that both sides have, and that a gradient passes on one of them alone. */
typedef struct stop {
    uint32_t ops[2], values[2];
    int side; /* on which it stops */
} stop;

/* The next one from op `from` of B on; false: there is none. */
static bool next_stop(const lb_region_question *asked, const nodes of[2], uint32_t from, stop *out)
{
    const lb_exact_side *b = asked->sides[1];
    for (uint32_t i = from; i < b->program->n_ops; i++) {
        const uint32_t vb = first_outcome(b->program, i);
        if (b->program->ops[i].phase != LB_PHASE_FORWARD || vb == LB_NONE || !b->graph.given[vb] ||
            !lb_value_graph_computes(b->program, &b->program->ops[i]) || asked->met[1][vb] == LB_NONE)
            continue;
        const uint32_t va = asked->met[1][vb], a = asked->sides[0]->graph.giver[va];
        if (a == LB_NONE || asked->met[0][va] != vb || asked->sides[0]->program->ops[a].phase != LB_PHASE_FORWARD)
            continue;
        *out = (stop){{a, i}, {va, vb}, 0};
        for (; out->side < 2; out->side++)
            if (stops_at(&of[out->side], out->ops[out->side], out->values[out->side]) &&
                of[!out->side].ran[out->ops[!out->side]])
                return true;
    }
    return false;
}

/* Is something of backward apart that B computes behind the gradient of the weight before it, and before op `until`? */
static bool is_apart_before(const lb_region_question *asked, uint32_t until)
{
    const lb_exact_side *b = asked->sides[1];
    uint32_t from = 0, last = 0;
    for (uint32_t i = 0; i < asked->counterparts->n; i++) {
        const lb_counterpart *c = &asked->counterparts->list[i];
        const uint32_t giver = b->graph.giver[c->b];
        if (giver == LB_NONE || giver >= until || b->program->ops[giver].phase != LB_PHASE_BACKWARD) continue;
        if (c->kind == LB_COUNTERPART_GRADIENT && b->program->values[c->b].layout.ndim > 1 && giver > from)
            from = giver;
        if (c->state == LB_COUNTERPART_APART && giver > last) last = giver;
    }
    return last > from;
}

/* Do both sides end with the same gradient of B's parameter, and not only because B went on from A's numbers of what it
 * is made of? */
static bool has_same_gradient(const lb_region_question *asked, uint32_t parameter)
{
    const lb_exact_side *b = asked->sides[1];
    for (uint32_t i = 0; i < asked->counterparts->n; i++) {
        const lb_counterpart *c = &asked->counterparts->list[i];
        if (c->kind != LB_COUNTERPART_GRADIENT || b->program->values[c->b].name != b->program->values[parameter].name)
            continue;
        const uint32_t giver = b->graph.giver[c->b];
        return c->state == LB_COUNTERPART_SAME && giver != LB_NONE && !is_apart_before(asked, giver);
    }
    return false;
}

/* A walk back from a value, nearest first, to one that is looked for. */
typedef struct walk_back {
    const lb_exact_side *side;
    bool (*is_it)(const lb_value *value, int64_t storage);
    int64_t storage;
    uint32_t found; /* LB_NONE: it is not before the value */
} walk_back;

/* False when out of memory. */
static bool go_back(walk_back *w, uint32_t value)
{
    const lb_value_graph *g = &w->side->graph;
    const lb_program *p = w->side->program;
    uint8_t *seen = calloc((size_t)p->n_values + 1, 1);
    uint32_t *queue = malloc(((size_t)p->n_values + 1) * sizeof *queue), n = 0;
    const bool room = seen && queue;
    w->found = LB_NONE;
    if (room) queue[n++] = value, seen[value] = 1;
    for (uint32_t i = 0; i < n && w->found == LB_NONE; i++) {
        const uint32_t v = queue[i];
        if (w->is_it(&p->values[v], w->storage)) w->found = v;
        for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++)
            if (!seen[g->preds[k]]) queue[n++] = g->preds[k], seen[g->preds[k]] = 1;
    }
    free(seen), free(queue);
    return room;
}

/* A bias is none: behind it a softmax or a norm may take its gradient to zero. */
static bool is_weight(const lb_value *value, int64_t storage)
{
    (void)storage;
    return value->flags & LB_VALUE_PARAMETER && value->layout.ndim > 1;
}

static bool is_parameter_in(const lb_value *value, int64_t storage)
{
    return value->flags & LB_VALUE_PARAMETER && value->storage == storage;
}

/* Where the gradient goes on by another way (a derivative that is written by hand, a value that one side computes a
 * second time) the weight before it has the other side's gradient: `by_line` notes the line of such a stop, per side.
 * False when out of memory. */
static bool note_other_ways(const lb_region_question *asked, const nodes of[2], uint8_t *by_line[2])
{
    stop s;
    for (uint32_t i = 0; next_stop(asked, of, i, &s); i = s.ops[1] + 1) {
        walk_back weight = {.side = asked->sides[1], .is_it = is_weight};
        if (!go_back(&weight, s.values[1])) return false;
        const uint32_t line = asked->sides[s.side]->program->ops[s.ops[s.side]].line;
        if (line && weight.found != LB_NONE && has_same_gradient(asked, weight.found)) by_line[s.side][line] = 1;
    }
    return true;
}

/* The first stop that is no such way in any layer. */
static bool find(const lb_region_question *asked, const nodes of[2], lb_region_detached *out)
{
    uint8_t *by_line[2];
    stop s;
    bool found = false;
    for (int k = 0; k < 2; k++) by_line[k] = calloc((size_t)asked->sides[k]->program->n_lines + 2, 1);
    const bool noted = by_line[0] && by_line[1] && note_other_ways(asked, of, by_line);
    for (uint32_t i = 0; noted && !found && next_stop(asked, of, i, &s); i = s.ops[1] + 1)
        found = !by_line[s.side][asked->sides[s.side]->program->ops[s.ops[s.side]].line];
    if (found) {
        out->op[s.side] = detach_near(&of[s.side], s.ops[s.side], s.values[s.side]);
        out->op[!s.side] = s.ops[!s.side], out->side = s.side;
    }
    free(by_line[0]), free(by_line[1]);
    return found;
}

bool lb_region_detached_takes_from(const lb_region_question *asked, const lb_region_detached *d, int64_t storage)
{
    walk_back parameter = {.side = asked->sides[!d->side], .is_it = is_parameter_in, .storage = storage};
    const uint32_t value = d->found ? first_outcome(parameter.side->program, d->op[!d->side]) : LB_NONE;
    return value != LB_NONE && go_back(&parameter, value) && parameter.found != LB_NONE;
}

lb_region_detached lb_region_detached_find(const lb_region_question *asked)
{
    lb_region_detached out = {.op = {LB_NONE, LB_NONE}};
    nodes of[2] = {{0}, {0}};
    bool known = asked->sides[0]->view->n_parts == 1 && asked->sides[1]->view->n_parts == 1 && !forward_differs(asked);
    for (int k = 0; k < 2 && known; k++) known = note_nodes(asked->sides[k], &of[k]);
    out.found = known && find(asked, of, &out);
    for (int k = 0; k < 2; k++) free(of[k].made), free(of[k].ran);
    return out;
}
