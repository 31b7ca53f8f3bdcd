/* Which lines of code a place lies in: see implementation_lines.h. */
#include "runs/implementation_lines.h"

#include "implementations/counterpart_scales.h"

#include <string.h>

static uint32_t first_value(const lb_program *program, uint32_t op)
{
    return lb_op_outcomes(&program->ops[op]) ? lb_op_outcome(program, &program->ops[op], 0) : LB_NONE;
}

/* ---- the op whose line is said ---- */

/* An op of the other side's part of a region that reads the value; LB_NONE. */
static uint32_t reader_in_region(const lb_implementations *x, const lb_region *region, int side, uint32_t value)
{
    const lb_value_graph *g = &x->sides[side].graph;
    const uint32_t *ops = x->regions.ops + region->first[side];
    for (uint32_t i = 0; i < region->n[side]; i++)
        for (uint32_t k = g->first_use[value]; k < g->first_use[value + 1]; k++)
            if (g->uses[k] == ops[i]) return ops[i];
    return LB_NONE;
}

/* Does the op hand on what it reads, so that it does nothing: times one, the size of what is positive? */
static bool does_nothing(const lb_implementations *x, int side, uint32_t op, uint32_t value)
{
    const lb_exact_side *s = &x->sides[side];
    const lb_op *o = &x->sides[side].program->ops[op];
    const uint32_t v = first_value(x->sides[side].program, op);
    return v != LB_NONE && o->phase != LB_PHASE_BACKWARD && lb_value_graph_computes(x->sides[side].program, o) &&
           s->graph.given[v] &&
           lb_layout_numel(&x->sides[side].program->values[v].layout) ==
               lb_layout_numel(&x->sides[side].program->values[value].layout) &&
           lb_quantities_agree(&s->quantities[v], &s->quantities[value]);
}

/* An op of the side that reads the value, or a window on all of it, and does nothing with it; LB_NONE. */
static uint32_t idle_reader(const lb_implementations *x, int side, uint32_t value)
{
    const lb_value_graph *g = &x->sides[side].graph;
    for (uint32_t v = 0; v < x->sides[side].program->n_values; v++)
        for (uint32_t k = g->first_use[v]; k < g->first_use[v + 1] && lb_value_graph_whole(g, v) == value; k++)
            if (does_nothing(x, side, g->uses[k], value)) return g->uses[k];
    return LB_NONE;
}

enum { MOST_FACTORS = 4 };

/* A factor of one that went into the value, a few products before it: what the other side multiplies by may stand at
 * any of them. LB_NONE. */
static uint32_t idle_factor(const lb_implementations *x, int side, uint32_t value, uint32_t depth)
{
    static const char *const factors[] = {"aten::mul", "aten::div", "aten::mul_", "aten::div_"};
    const lb_value_graph *g = &x->sides[side].graph;
    const uint32_t op = g->given[value] ? g->giver[value] : LB_NONE;
    if (op != LB_NONE && lb_op_name_among(x->sides[side].program, &x->sides[side].program->ops[op], factors, 4) < 0)
        return LB_NONE;
    for (uint32_t k = g->first_pred[value]; k < g->first_pred[value + 1] && depth; k++) {
        if (op != LB_NONE && does_nothing(x, side, op, g->preds[k])) return op;
        const uint32_t found = idle_factor(x, side, g->preds[k], depth - 1);
        if (found != LB_NONE) return found;
    }
    return LB_NONE;
}

/* Where all that a side has of a region is right, what it lacks would stand behind that: an op that does nothing
 * there, else the first that goes on; LB_NONE. */
static uint32_t op_behind_served(const lb_implementations *x, const lb_region *region, int side)
{
    const lb_counterparts *all = &x->counterparts;
    const lb_counterpart *c = &all->list[region->counterpart];
    const uint32_t end = side ? c->b : all->pieces[c->first].tensor;
    const lb_value_graph *g = &x->sides[side].graph;
    bool served = false;
    for (uint32_t i = 0; i < all->n; i++)
        served |= all->list[i].kind == LB_COUNTERPART_SERVES &&
                  (side ? all->list[i].b : all->pieces[all->list[i].first].tensor) == end;
    if (!served) return LB_NONE;
    uint32_t first = idle_reader(x, side, end);
    for (uint32_t v = 0; v < x->sides[side].program->n_values && first == LB_NONE; v++)
        for (uint32_t k = g->first_use[v]; k < g->first_use[v + 1] && lb_value_graph_whole(g, v) == end; k++)
            if (g->uses[k] < first && x->sides[side].program->ops[g->uses[k]].phase == LB_PHASE_FORWARD)
                first = g->uses[k];
    return first;
}

/* May a factor that the loss lacks stand at the op, behind backward? What it gives is in proportion to the loss. */
static bool may_take_factor(const lb_implementations *x, int side, uint32_t op)
{
    const lb_op *o = &x->sides[side].program->ops[op];
    const uint32_t v = first_value(x->sides[side].program, op);
    return v != LB_NONE && x->loss.linear[side] && x->loss.linear[side][v] && o->phase != LB_PHASE_FORWARD &&
           o->phase != LB_PHASE_BACKWARD && lb_value_graph_computes(x->sides[side].program, o);
}

/* A gradient times one, or divided by it; LB_NONE. */
static uint32_t idle_factor_of_gradient(const lb_implementations *x, int side)
{
    static const char *const factors[] = {"aten::mul", "aten::div", "aten::mul_", "aten::div_"};
    const lb_exact_side *s = &x->sides[side];
    for (uint32_t i = 0; i < x->sides[side].program->n_ops; i++) {
        if (!may_take_factor(x, side, i) ||
            lb_op_name_among(x->sides[side].program, &x->sides[side].program->ops[i], factors, 4) < 0)
            continue;
        const uint32_t v = first_value(x->sides[side].program, i);
        for (uint32_t k = s->graph.first_pred[v]; k < s->graph.first_pred[v + 1]; k++)
            if (lb_quantities_agree(&s->quantities[s->graph.preds[k]], &s->quantities[v])) return i;
    }
    return LB_NONE;
}

/* The op by which the side goes back from the region's end; LB_NONE. */
static uint32_t op_that_goes_back(const lb_implementations *x, const lb_region *region, int side)
{
    const lb_counterpart *c = &x->counterparts.list[region->counterpart];
    const uint32_t end = side ? c->b : x->counterparts.pieces[c->first].tensor;
    for (uint32_t i = 0; i < x->sides[side].program->n_ops; i++)
        if (lb_counterpart_scales_seeded(&x->sides[side], i) == end) return i;
    return LB_NONE;
}

/* Where one side alone adds a gradient to those of backwards before it: the last op by which the other goes back;
 * LB_NONE. */
static uint32_t op_without_sum(const lb_implementations *x, const lb_region *region, int side)
{
    if (!lb_regions_accumulates(&x->sides[!side], region->op[!side]) ||
        lb_regions_accumulates(&x->sides[side], region->op[side]))
        return LB_NONE;
    for (uint32_t i = x->sides[side].program->n_ops; i-- > 0;)
        if (lb_counterpart_scales_seeded(&x->sides[side], i) != LB_NONE) return i;
    return LB_NONE;
}

static bool is_lost_scale(const lb_implementations *x, const lb_region *region)
{
    return x->loss.alone && x->counterparts.list[region->counterpart].kind == LB_COUNTERPART_EXIT;
}

/* Does the side's own factor stand in the function that goes back, and not in one that gives a loss? */
static bool is_factor_of_loop(const lb_implementations *x, const lb_region *region, int side)
{
    const lb_program *program = x->sides[side].program;
    const uint32_t back = op_that_goes_back(x, region, side);
    if (back == LB_NONE || region->op[side] == LB_NONE) return false;
    const lb_code_line factor = lb_op_line(program, &program->ops[region->op[side]]),
                       goes_back = lb_op_line(program, &program->ops[back]);
    return factor.number && !strcmp(factor.function, goes_back.function) && !strcmp(factor.file, goes_back.file);
}

/* A factor of the loss that a side lacks: where its gradients are multiplied by one, else where it goes back. */
static uint32_t op_without_scale(const lb_implementations *x, const lb_region *region, int side)
{
    const bool lost = is_lost_scale(x, region) && is_factor_of_loop(x, region, !side);
    const uint32_t idle = lost ? idle_factor_of_gradient(x, side) : LB_NONE;
    return idle != LB_NONE || !lost ? idle : op_that_goes_back(x, region, side);
}

/* Where the other side has no such op: the op that goes on from what the lone one reads, else the one that gives it;
 * LB_NONE. */
static uint32_t op_beside_lone(const lb_implementations *x, const lb_region *region, int lone)
{
    const uint32_t scale = op_without_scale(x, region, !lone);
    if (scale != LB_NONE) return scale;
    const uint32_t behind = op_behind_served(x, region, !lone);
    if (behind != LB_NONE) return behind;
    const lb_exact_side *mine = &x->sides[lone], *other = &x->sides[!lone];
    const lb_op *op = &x->sides[lone].program->ops[region->op[lone]];
    for (uint32_t k = 0; k < op->args; k++) {
        const lb_arg *arg = &lb_op_args(x->sides[lone].program, op)[k];
        if (arg->tag != LB_ARG_VALUE || arg->u.value == LB_NONE) continue;
        const uint32_t v = lb_value_graph_whole(&mine->graph, arg->u.value), met = x->met[lone][v];
        const uint32_t giver = met == LB_NONE ? LB_NONE : other->graph.giver[met];
        if (giver == LB_NONE || lb_op_is_source(x->sides[!lone].program, &x->sides[!lone].program->ops[giver]) ||
            x->sides[!lone].program->ops[giver].phase != op->phase)
            continue;
        const uint32_t idle = idle_reader(x, !lone, met);
        if (idle != LB_NONE) return idle;
        const uint32_t factor = idle_factor(x, !lone, met, MOST_FACTORS);
        if (factor != LB_NONE) return factor;
        const uint32_t reader = reader_in_region(x, region, !lone, met);
        return reader != LB_NONE ? reader : giver;
    }
    return LB_NONE;
}

enum { MOST_WINDOWS = 8 };

/* The windows through which an op sees the whole numbers that it reads (rows of a batch), the last one first. */
static uint32_t list_windows(const lb_implementations *x, int side, uint32_t op, uint32_t *windows)
{
    const lb_program *program = x->sides[side].program;
    uint32_t value = LB_NONE, n = 0;
    for (uint32_t k = 0; k < program->ops[op].args && value == LB_NONE; k++) {
        const lb_arg *arg = &lb_op_args(program, &program->ops[op])[k];
        if (arg->tag == LB_ARG_VALUE && arg->u.value != LB_NONE &&
            lb_dtype_is_integer(program->values[arg->u.value].dtype))
            value = arg->u.value;
    }
    for (uint32_t i = op; i-- > 0 && value != LB_NONE && n < MOST_WINDOWS;) {
        const lb_op *window = &program->ops[i];
        if (!(window->flags & LB_OP_VIEW) || first_value(program, i) != value || !window->args ||
            lb_op_args(program, window)->tag != LB_ARG_VALUE)
            continue;
        windows[n++] = i, value = lb_op_args(program, window)->u.value;
    }
    return n;
}

/* Of two ops that look up other rows: the last window of a side's that is not the other side's; the op itself where
 * there is none. */
static uint32_t window_apart(const lb_implementations *x, int side, uint32_t op, uint32_t beside)
{
    uint32_t windows[2][MOST_WINDOWS], n[2], at = 0;
    n[side] = list_windows(x, side, op, windows[side]), n[!side] = list_windows(x, !side, beside, windows[!side]);
    for (; at < n[0] && at < n[1]; at++) {
        const lb_op *a = &x->sides[0].program->ops[windows[0][at]], *b = &x->sides[1].program->ops[windows[1][at]];
        if (strcmp(lb_op_name(x->sides[0].program, a), lb_op_name(x->sides[1].program, b)) != 0 || a->args != b->args ||
            !lb_op_same_args(x->sides[0].program, a, x->sides[1].program, b, 0))
            break;
    }
    return at < n[side] ? windows[side][at] : op;
}

static bool reads_whole_numbers(const lb_exact_side *s, uint32_t op)
{
    const uint32_t v = first_value(s->program, op);
    for (uint32_t k = v == LB_NONE ? 0 : s->graph.first_pred[v]; v != LB_NONE && k < s->graph.first_pred[v + 1]; k++)
        if (lb_dtype_is_integer(s->program->values[s->graph.preds[k]].dtype)) return true;
    return false;
}

static uint32_t count_of_kind(const lb_exact_side *s, uint64_t kind, uint32_t before)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < before; i++) n += s->kinds[i] == kind && s->program->ops[i].phase == LB_PHASE_FORWARD;
    return n;
}

/* An op that looks up rows on one side alone, where both look up as often: the other side looks up others there, which
 * it has elsewhere, too. The op that chose these; LB_NONE. */
static uint32_t op_with_other_rows(const lb_implementations *x, const lb_region *region, int lone)
{
    const lb_exact_side *mine = &x->sides[lone], *other = &x->sides[!lone];
    const uint32_t op = region->op[lone];
    if (x->sides[lone].program->ops[op].phase != LB_PHASE_FORWARD || !reads_whole_numbers(mine, op)) return LB_NONE;
    const uint64_t kind = mine->kinds[op];
    if (count_of_kind(mine, kind, x->sides[lone].program->n_ops) !=
        count_of_kind(other, kind, x->sides[!lone].program->n_ops))
        return LB_NONE;
    uint32_t left = count_of_kind(mine, kind, op);
    for (uint32_t i = 0; i < x->sides[!lone].program->n_ops; i++)
        if (other->kinds[i] == kind && x->sides[!lone].program->ops[i].phase == LB_PHASE_FORWARD && !left--)
            return window_apart(x, !lone, i, op);
    return LB_NONE;
}

/* The first op outside of backward that goes on from a gradient, as an update does; LB_NONE. */
static uint32_t op_that_takes_gradient(const lb_exact_side *s, uint32_t gradient)
{
    const lb_value_graph *g = &s->graph;
    uint32_t first = LB_NONE;
    for (uint32_t v = 0; v < s->program->n_values; v++)
        for (uint32_t k = g->first_use[v]; k < g->first_use[v + 1] && lb_value_graph_whole(g, v) == gradient; k++)
            if (g->uses[k] < first && g->uses[k] > g->giver[gradient] &&
                s->program->ops[g->uses[k]].phase != LB_PHASE_BACKWARD)
                first = g->uses[k];
    return first;
}

/* Does the other side alone run something behind backward here? */
static bool lacks_behind_backward(const lb_implementations *x, const lb_region *region, int side)
{
    return region->reason == LB_REGION_MISSING && region->op[side] == LB_NONE && region->op[!side] != LB_NONE &&
           x->sides[!side].program->ops[region->op[!side]].phase != LB_PHASE_BACKWARD;
}

/* Where a side has no part in a region: what gives, all the same, the value that is apart; what lacks behind a gradient
 * lacks where that is taken. LB_NONE. */
static uint32_t op_that_gives(const lb_implementations *x, const lb_region *region, int side)
{
    const lb_counterpart *c = &x->counterparts.list[region->counterpart];
    const lb_value_graph *g = &x->sides[side].graph;
    const uint32_t end = lb_value_graph_whole(g, side ? c->b : x->counterparts.pieces[c->first].tensor),
                   giver = g->giver[end];
    const lb_program *program = x->sides[side].program;
    if (giver == LB_NONE || lb_op_is_source(program, &program->ops[giver])) return LB_NONE;
    const bool behind = program->ops[giver].phase == LB_PHASE_BACKWARD && lacks_behind_backward(x, region, side);
    const uint32_t taker = behind ? op_that_takes_gradient(&x->sides[side], end) : LB_NONE;
    return taker == LB_NONE ? giver : taker;
}

/* The region's first op of a side; what it lacks behind backward lacks at no op of that. LB_NONE. */
static uint32_t first_of_region(const lb_implementations *x, const lb_region *region, int side)
{
    const bool behind = lacks_behind_backward(x, region, side);
    for (uint32_t i = 0; i < region->n[side]; i++) {
        const uint32_t op = x->regions.ops[region->first[side] + i];
        if (!behind || x->sides[side].program->ops[op].phase != LB_PHASE_BACKWARD) return op;
    }
    return LB_NONE;
}

/* The op of either side whose line is said. Where one side has no such op, its region's first op says where it goes
 * on. */
void lb_implementation_lines_ops(const lb_implementations *x, const lb_region *region, uint32_t ops[2])
{
    for (int k = 0; k < 2; k++) {
        ops[k] = op_without_sum(x, region, k);
        if (ops[k] == LB_NONE && region->repair.kind != LB_REPAIR_NONE && region->repair.side != k)
            ops[k] = op_without_scale(x, region, k);
        if (ops[k] == LB_NONE) ops[k] = region->op[k];
        const bool lone = ops[k] == LB_NONE && region->reason == LB_REGION_MISSING && region->op[!k] != LB_NONE;
        if (lone) ops[k] = op_with_other_rows(x, region, !k);
        if (lone && ops[k] == LB_NONE) ops[k] = op_beside_lone(x, region, !k);
        if (ops[k] == LB_NONE) ops[k] = first_of_region(x, region, k);
        if (ops[k] == LB_NONE) ops[k] = op_that_gives(x, region, k);
    }
}

/* ---- all lines ---- */

static void add_line(lb_diff_lines *lines, uint32_t number)
{
    uint32_t at = lines->n;
    for (uint32_t i = 0; i < lines->n; i++)
        if (lines->list[i] == number) return;
    if (!number || at == LB_DIFF_LINES) return;
    for (; at && lines->list[at - 1] > number; at--) lines->list[at] = lines->list[at - 1];
    lines->list[at] = number, lines->n++;
}

static void add_line_of(const lb_implementations *x, int side, uint32_t op, const char *file, lb_diff_lines *lines)
{
    const lb_code_line line = lb_op_line(x->sides[side].program, &x->sides[side].program->ops[op]);
    if (line.number && !strcmp(line.file, file)) add_line(lines, line.number);
}

/* What a side lacks may stand behind the region's end as well, up to the last value from which the rest is right. */
static void list_lines_behind(const lb_implementations *x, const lb_region *region, int side, const char *file,
                              lb_diff_lines *lines)
{
    const lb_counterpart *c = &x->counterparts.list[region->counterpart];
    const uint32_t end = side ? c->b : x->counterparts.pieces[c->first].tensor, until = c->until[side];
    const uint32_t *giver = x->sides[side].graph.giver;
    if (until == LB_NONE || giver[end] == LB_NONE || giver[until] == LB_NONE) return;
    for (uint32_t i = giver[end] + 1; i <= giver[until]; i++)
        if (x->around[side][i]) add_line_of(x, side, i, file, lines);
}

/* What lacks on a side may stand where an op's inputs were given, which meet the other side's without it. */
static void list_lines_before(const lb_implementations *x, int side, uint32_t op, const char *file,
                              lb_diff_lines *lines)
{
    const lb_value_graph *g = &x->sides[side].graph;
    const uint32_t v = first_value(x->sides[side].program, op);
    for (uint32_t k = v == LB_NONE ? 0 : g->first_pred[v]; v != LB_NONE && k < g->first_pred[v + 1]; k++) {
        const uint32_t giver = g->giver[g->preds[k]];
        if (giver != LB_NONE && !lb_op_is_source(x->sides[side].program, &x->sides[side].program->ops[giver]) &&
            x->sides[side].program->ops[giver].phase == x->sides[side].program->ops[op].phase)
            add_line_of(x, side, giver, file, lines);
    }
}

/* A factor of the loss may stand anywhere from the loss to the update. */
static void list_lines_of_scale(const lb_implementations *x, const lb_region *region, int side, const char *file,
                                lb_diff_lines *lines)
{
    const uint32_t back = op_that_goes_back(x, region, side);
    if (back != LB_NONE) add_line_of(x, side, back, file, lines);
    for (uint32_t i = 0; i < x->sides[side].program->n_ops; i++)
        if (may_take_factor(x, side, i)) add_line_of(x, side, i, file, lines);
}

/* Does the op run behind backward, outside of it? */
static bool is_of_loop(const lb_implementations *x, int side, uint32_t op)
{
    const lb_op *o = &x->sides[side].program->ops[op];
    uint32_t i = 0;
    if (o->phase != LB_PHASE_OPTIMIZER && o->phase != LB_PHASE_OTHER) return false;
    while (i < op && x->sides[side].program->ops[i].phase != LB_PHASE_BACKWARD) i++;
    return i < op;
}

/* What a factor that does nothing was made of. */
static void list_lines_of_idle(const lb_implementations *x, int side, uint32_t op, const char *file,
                               lb_diff_lines *lines, uint32_t depth)
{
    const lb_value_graph *g = &x->sides[side].graph;
    const uint32_t v = first_value(x->sides[side].program, op);
    for (uint32_t k = v == LB_NONE ? 0 : g->first_pred[v]; v != LB_NONE && k < g->first_pred[v + 1]; k++) {
        const uint32_t giver = g->giver[g->preds[k]];
        if (giver == LB_NONE || lb_op_is_source(x->sides[side].program, &x->sides[side].program->ops[giver]) ||
            !is_of_loop(x, side, giver))
            continue;
        add_line_of(x, side, giver, file, lines);
        if (depth) list_lines_of_idle(x, side, giver, file, lines, depth - 1);
    }
}

/* The line from which a place of a loop may lie, whose first line is `until`: that of the last op before it in the same
 * function. Options of an optimizer may be set anywhere before it is called: that of the first one. What a side lacks
 * may have stood anywhere since it went back. */
static uint32_t first_line_of_stretch(const lb_implementations *x, const lb_region *region, int side, uint32_t op,
                                      const lb_code_line *named, uint32_t until)
{
    const bool option =
        region->reason == LB_REGION_ARGUMENTS && x->sides[side].program->ops[op].phase == LB_PHASE_OPTIMIZER;
    const bool lacks = region->reason == LB_REGION_MISSING && region->op[side] == LB_NONE;
    uint32_t first = op, found = until;
    if (region->n[side] && x->regions.ops[region->first[side]] < first) first = x->regions.ops[region->first[side]];
    for (uint32_t i = 0; i < first; i++) {
        const lb_code_line line = lb_op_line(x->sides[side].program, &x->sides[side].program->ops[i]);
        if (!line.number || line.number >= until || strcmp(line.function, named->function) != 0 ||
            strcmp(line.file, named->file) != 0)
            continue;
        if (lacks && lb_counterpart_scales_seeded(&x->sides[side], i) == LB_NONE) continue;
        found = option && line.number > found ? found : line.number;
    }
    return found;
}

/* What Python makes without an op (a number, a choice of parameters) lies between two lines that run ops: where a place
 * is one of a loop, all lines are listed from what was right up to it. */
static void fill_stretch(const lb_implementations *x, const lb_region *region, int side, uint32_t op,
                         const lb_code_line *named, lb_diff_lines *lines)
{
    if (op == LB_NONE || !lines->n || !(is_of_loop(x, side, op) || op == op_without_sum(x, region, side))) return;
    const uint32_t first = lines->list[0], until = region->repair.kind == LB_REPAIR_NONE ? named->number : first,
                   before = first_line_of_stretch(x, region, side, op, named, until),
                   from = before < first ? before : first, to = lines->list[lines->n - 1];
    for (uint32_t number = from; number < to && to - from < LB_DIFF_LINES; number++) add_line(lines, number);
}

/* Where the program made a constant that the region reads and the other side does not hold. */
static void list_lines_of_source(const lb_implementations *x, const lb_region *region, int side, const char *file,
                                 lb_diff_lines *lines)
{
    const lb_program *program = x->sides[side].program;
    for (uint32_t k = 0; k < region->n_unheld[side]; k++) {
        const uint32_t source = x->regions.unheld[region->first_unheld[side] + k];
        for (uint32_t i = 0; i < program->n_ops; i++) {
            const uint32_t v = first_value(program, i);
            if (v != LB_NONE && lb_value_graph_source(&x->sides[side].graph, v) == source &&
                program->ops[i].phase == LB_PHASE_FORWARD)
                add_line_of(x, side, i, file, lines);
        }
    }
}

/* The line that is named, and where that is a guess all lines of the region in the same file. */
void lb_implementation_lines_list(const lb_implementations *x, const lb_region *region, const lb_code_line said[2],
                                  lb_diff_lines lines[2])
{
    const bool lone = region->reason == LB_REGION_MISSING;
    uint32_t ops[2];
    lb_implementation_lines_ops(x, region, ops);
    for (int k = 0; k < 2; k++) {
        const lb_code_line *named = &said[k];
        const bool repaired = region->reason == LB_REGION_REPAIRED, edited = repaired && region->repair.side == k;
        const bool beside = repaired && !edited && (region->op[k] == LB_NONE || is_of_loop(x, k, region->op[k]));
        const bool guess = region->reason == LB_REGION_OPS || region->reason == LB_REGION_SOURCE ||
                           region->reason == LB_REGION_ORDER || region->reason == LB_REGION_MASK || lone || beside;
        if (named->number) add_line(&lines[k], named->number);
        for (uint32_t i = 0; i < region->n[k] && guess && named->number; i++) {
            const uint32_t op = x->regions.ops[region->first[k] + i];
            add_line_of(x, k, op, named->file, &lines[k]);
            list_lines_before(x, k, op, named->file, &lines[k]);
        }
        /* The number may have been made behind what the op reads. */
        if (edited && named->number && is_of_loop(x, k, region->repair.op))
            list_lines_before(x, k, region->repair.op, named->file, &lines[k]);
        if (region->reason == LB_REGION_SOURCE && named->number)
            list_lines_of_source(x, region, k, named->file, &lines[k]);
        if (lone && named->number) list_lines_behind(x, region, k, named->file, &lines[k]);
        if (is_lost_scale(x, region) && named->number) list_lines_of_scale(x, region, k, named->file, &lines[k]);
        if (lone && region->op[k] == LB_NONE && ops[k] != LB_NONE && is_of_loop(x, k, ops[k]))
            list_lines_of_idle(x, k, ops[k], named->file, &lines[k], MOST_FACTORS);
        fill_stretch(x, region, k, ops[k], named, &lines[k]);
    }
}
