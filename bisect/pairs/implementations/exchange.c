/* A difference put right: see exchange.h. */
#include "implementations/exchange.h"

#include "implementations/differences.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* ---- arguments ---- */

typedef struct values {
    uint32_t *list, n, next;
    const lb_program *from; /* whose strings are looked up */
    lb_program *to;
    bool failed;
} values;

static void list_value(values *out, uint32_t v)
{
    uint32_t *more = lb_array_grow(out->list, out->n, sizeof *more);
    out->failed |= !more;
    if (more) out->list = more, out->list[out->n++] = v;
}

static void list_values(const lb_program *p, const lb_arg *args, uint32_t n, values *out)
{
    for (uint32_t i = 0; i < n; i++) {
        if (args[i].tag == LB_ARG_LIST) list_values(p, p->args + args[i].u.first, args[i].count, out);
        if (args[i].tag != LB_ARG_VALUE) continue;
        list_value(out, args[i].u.value);
    }
}

static uint32_t next_value(void *context, uint32_t value)
{
    values *v = context;
    (void)value;
    if (v->next < v->n) return v->list[v->next++];
    v->failed = true;
    return LB_NONE;
}

static uint32_t same_string(void *context, uint32_t string)
{
    values *v = context;
    return string == LB_NONE ? LB_NONE : lb_program_string(v->to, lb_program_text(v->from, string));
}

/* Do both ops give as many elements? With the other's arguments they would otherwise give results of another shape
 * (more experts). */
static bool give_as_many(const lb_exact_side *a, const lb_exact_side *b, const uint32_t op[2])
{
    const lb_op *x = &a->own->ops[op[0]], *y = &b->own->ops[op[1]];
    if (!lb_op_outcomes(x) || !lb_op_outcomes(y)) return false;
    const uint32_t va = lb_op_outcome(a->own, x, 0), vb = lb_op_outcome(b->own, y, 0);
    return va != LB_NONE && vb != LB_NONE &&
           lb_layout_numel(&a->own->values[va].layout) == lb_layout_numel(&b->own->values[vb].layout);
}

/* A's arguments for B's op: its scalars, with B's own tensors in their places. False: the two do not take as many
 * tensors, or give as many elements. */
static bool take_arguments(const lb_exact_side *a, const lb_exact_side *b, const uint32_t op[2], lb_exchange *x)
{
    if (!give_as_many(a, b, op)) return false;
    const lb_op *mine = &b->own->ops[op[1]], *other = &a->own->ops[op[0]];
    values of_a = {0}, v = {.from = a->own, .to = b->own};
    list_values(a->own, lb_op_args(a->own, other), other->args, &of_a);
    list_values(b->own, lb_op_args(b->own, mine), mine->args, &v);
    const lb_arg_rename rename = {next_value, same_string, &v};
    const bool fits = !of_a.failed && !v.failed && of_a.n == v.n;
    const uint32_t first =
        fits ? lb_program_copy_args(b->own, a->own, lb_op_args(a->own, other), other->args, &rename) : LB_NONE;
    if (fits && first != LB_NONE && !v.failed)
        x->op = op[1], x->first_arg[0] = mine->first_arg, x->args[0] = mine->args, x->first_arg[1] = first,
        x->args[1] = other->args;
    free(of_a.list), free(v.list);
    return x->op != LB_NONE;
}

/* What a number has to be for an op to hand on its other operand as it is; false: there is none. */
static bool neutral_of(const lb_program *p, const lb_op *op, double *neutral)
{
    static const char *const factors[] = {"aten::mul",  "aten::div",  "aten::pow",
                                          "aten::mul_", "aten::div_", "aten::pow_"};
    static const char *const terms[] = {"aten::add", "aten::sub", "aten::add_", "aten::sub_"};
    const bool factor = lb_op_name_among(p, op, factors, sizeof factors / sizeof *factors) >= 0;
    *neutral = factor;
    return factor || lb_op_name_among(p, op, terms, sizeof terms / sizeof *terms) >= 0;
}

/* An op that B alone runs, with a number: the same op with a number that changes nothing. */
static bool take_neutral(const lb_exact_side *b, uint32_t op, lb_exchange *x)
{
    const lb_op *o = &b->own->ops[op];
    double neutral;
    if (!neutral_of(b->own, o, &neutral) || o->args < 2) return false;
    lb_arg *args = malloc(o->args * sizeof *args);
    if (!args) return false;
    memcpy(args, lb_op_args(b->own, o), o->args * sizeof *args);
    const bool number = args[0].tag == LB_ARG_VALUE && (args[1].tag == LB_ARG_FLOAT || args[1].tag == LB_ARG_INT);
    if (number) args[1] = (lb_arg){.tag = LB_ARG_FLOAT, .u.f = neutral};
    const uint32_t first = number ? lb_program_add_args(b->own, args, o->args) : LB_NONE;
    free(args);
    if (first == LB_NONE) return false;
    x->op = op, x->first_arg[0] = b->own->ops[op].first_arg, x->args[0] = b->own->ops[op].args, x->first_arg[1] = first,
    x->args[1] = b->own->ops[op].args;
    return true;
}

/* An edit of A cannot be put right in B. */
static void take_repair(const lb_repair *repair, lb_exchange *x)
{
    if (repair->side == 0) return;
    x->op = repair->op;
    memcpy(x->name, repair->name, sizeof x->name);
    memcpy(x->first_arg, repair->first_arg, sizeof x->first_arg), memcpy(x->args, repair->args, sizeof x->args);
}

/* ---- tables ---- */

static bool shows_unheld(const lb_exact_side *s, const lb_regions *all, const lb_region *r, int side, uint32_t v)
{
    const uint32_t source = lb_value_graph_source(&s->graph, v);
    for (uint32_t i = 0; source != LB_NONE && i < r->n_unheld[side]; i++)
        if (all->unheld[r->first_unheld[side] + i] == source) return true;
    return false;
}

static bool is_computed_there(const lb_exact_side *s, const lb_regions *all, const lb_region *r, int side, uint32_t v)
{
    for (uint32_t i = 0; s->graph.given[v] && i < r->n[side]; i++)
        if (s->graph.giver[v] == all->ops[r->first[side] + i]) return true;
    return false;
}

/* Floats that the region reads of sources that the other side does not hold; and these with what the region
 * computes. */
static void list_candidates(const lb_exact_side *s, const lb_regions *all, const lb_region *r, int side, values *tables,
                            values *both)
{
    for (uint32_t v = 0; v < s->program->n_values; v++) {
        if (!s->kept[v] || !lb_dtype_is_float(s->program->values[v].dtype)) continue;
        const bool shows = s->graph.read[v] && shows_unheld(s, all, r, side, v);
        if (shows) list_value(tables, v);
        if (shows || is_computed_there(s, all, r, side, v)) list_value(both, v);
    }
}

/* Is the source that the value shows among those that were put beside others? */
static bool is_beside(const lb_exact_side *s, const lb_counterparts *all, uint32_t first, int side, uint32_t v)
{
    const uint32_t source = lb_value_graph_source(&s->graph, v);
    for (uint32_t i = first; i < all->n; i++) {
        const uint32_t one = side ? all->list[i].b : all->pieces[all->list[i].first].tensor;
        if (one == v || lb_value_graph_source(&s->graph, one) == source) return true;
    }
    return false;
}

/* Each table of the side takes, or gives, the numbers of what is nearest to it on the other. */
static lb_status go_through(const lb_table_question *asked, const values *tables, int side, const values *others,
                            lb_counterparts *counterparts, lb_err *err)
{
    const uint32_t first = counterparts->n;
    for (uint32_t i = 0; i < tables->n; i++) {
        if (is_beside(asked->sides[side], counterparts, first, side, tables->list[i])) continue;
        lb_table_choice choice;
        choice.values[side] = &tables->list[i], choice.n[side] = 1;
        choice.values[!side] = others->list, choice.n[!side] = others->n;
        LB_TRY(lb_tables_put_beside(asked, &choice, counterparts, err));
    }
    return LB_OK;
}

/* Each table of B takes the numbers of A's nearest one, or of what A computes there; where there is none, what B
 * computes takes those of A's. */
static lb_status take_tables(const lb_table_question *asked, const lb_regions *all, const lb_region *r,
                             lb_counterparts *counterparts, lb_err *err)
{
    values tables[2] = {{0}, {0}}, both[2] = {{0}, {0}};
    const uint32_t first = counterparts->n;
    lb_status status = LB_OK;
    for (int k = 0; k < 2; k++) {
        list_candidates(asked->sides[k], all, r, k, &tables[k], &both[k]);
        if (tables[k].failed || both[k].failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for tables");
    }
    for (int k = 2; k-- > 0 && status == LB_OK && counterparts->n == first;)
        status = go_through(asked, &tables[k], k, &both[!k], counterparts, err);
    for (int k = 0; k < 2; k++) free(tables[k].list), free(both[k].list);
    return status;
}

/* ---- both ---- */

/* Behind what an optimizer leaves nothing is hidden. */
static bool ends_the_step(const lb_exact_side *b, const lb_counterparts *counterparts, const lb_region *r)
{
    return lb_regions_phase(b, counterparts, r) == LB_PHASE_OPTIMIZER &&
           lb_differences_leave(&counterparts->list[r->counterpart]);
}

lb_status lb_exchange_make(const lb_table_question *asked, const lb_regions *regions, const lb_region *r,
                           lb_counterparts *counterparts, lb_exchange *x, lb_err *err)
{
    *x = (lb_exchange){.op = LB_NONE, .first_table = counterparts->n};
    if (r->also.kind != LB_REPAIR_NONE || r->repair.times > 1) return LB_OK; /* one op is exchanged, not several */
    if (r->repair.kind != LB_REPAIR_NONE && ends_the_step(asked->sides[1], counterparts, r)) return LB_OK;
    if (r->repair.kind != LB_REPAIR_NONE)
        take_repair(&r->repair, x);
    else if (r->reason == LB_REGION_ARGUMENTS)
        take_arguments(asked->sides[0], asked->sides[1], r->op, x);
    else if (r->reason == LB_REGION_MISSING && r->op[0] == LB_NONE && r->op[1] != LB_NONE)
        take_neutral(asked->sides[1], r->op[1], x);
    if (x->op != LB_NONE && x->name[0] == x->name[1]) x->name[0] = x->name[1] = asked->sides[1]->own->ops[x->op].name;
    if (r->reason == LB_REGION_SOURCE) LB_TRY(take_tables(asked, regions, r, counterparts, err));
    for (; x->first_table + x->n_tables < counterparts->n; x->n_tables++)
        counterparts->list[x->first_table + x->n_tables].state = LB_COUNTERPART_UNKNOWN;
    return LB_OK;
}

void lb_exchange_set(const lb_exchange *x, bool on, const lb_exact_side *a, lb_exact_side *b,
                     lb_counterparts *counterparts)
{
    if (x->op != LB_NONE) {
        lb_op *op = &b->own->ops[x->op];
        op->name = x->name[on], op->first_arg = x->first_arg[on], op->args = x->args[on];
    }
    for (uint32_t i = 0; i < x->n_tables; i++) {
        lb_counterpart *c = &counterparts->list[x->first_table + i];
        lb_exact_side_hold(b, c->b, on ? lb_counterpart_taken(counterparts, c, a, b) : NULL);
        c->state = on ? LB_COUNTERPART_SAME : LB_COUNTERPART_UNKNOWN;
    }
}
