/* The edits of one op: see repair_edits.h. */
#include "implementations/repair_edits.h"

#include "pair/op_kind.h"

#include "base/array.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NUMBERS = 48, MOST_EDITS = 800 };

enum { BY_OTHERS_NUMBER, BY_OP, BY_NUMBER, BY_UPDATES, BY_COUNT, BY_UNWRITTEN };

typedef struct number {
    double x;
    uint32_t op;     /* of the other side; LB_NONE: a count, or one that changes nothing */
    bool of_updates; /* not of the region, but of what the other side's optimizer does elsewhere */
} number;

typedef struct numbers {
    number list[MOST_NUMBERS];
    uint32_t n;
} numbers;

typedef struct lister {
    const lb_exact_side *const *sides;
    const lb_regions *regions;
    const lb_region *region;
    int side;
    uint32_t times; /* ops that are edited as one */
    numbers own, others;
    lb_repair_edits *out;
    bool failed;
} lister;

static bool is_near(double x, double y)
{
    return x == y || fabs(x - y) <= 1e-9 * fmax(fabs(x), fabs(y));
}

static const number *find(const numbers *all, double x)
{
    for (uint32_t i = 0; i < all->n; i++)
        if (is_near(all->list[i].x, x)) return &all->list[i];
    return NULL;
}

static void add_number(numbers *all, double x, uint32_t op)
{
    if (isfinite(x) && all->n < MOST_NUMBERS && !find(all, x)) all->list[all->n++] = (number){x, op, false};
}

/* Ops whose whole-number arguments are numbers to calculate with, and no dimensions. */
static bool calculates(const lb_program *p, const lb_op *op)
{
    static const char *const names[] = {"aten::add",  "aten::sub",   "aten::mul",       "aten::div",      "aten::pow",
                                        "aten::rsub", "aten::add_",  "aten::sub_",      "aten::mul_",     "aten::div_",
                                        "aten::pow_", "aten::clamp", "aten::clamp_min", "aten::clamp_max"};
    return lb_op_name_among(p, op, names, sizeof names / sizeof *names) >= 0;
}

static bool number_of(const lb_program *p, const lb_op *op, uint32_t arg, double *x)
{
    const lb_arg *a = &lb_op_args(p, op)[arg];
    if (a->tag == LB_ARG_FLOAT)
        *x = a->u.f;
    else if (a->tag == LB_ARG_INT && arg && calculates(p, op))
        *x = (double)a->u.i;
    else
        return false;
    return isfinite(*x);
}

static const uint32_t *ops_of(const lister *l, int side)
{
    return l->regions->ops + l->region->first[side];
}

static void list_numbers(const lister *l, int side, numbers *out)
{
    const lb_program *p = l->sides[side]->own;
    for (uint32_t i = 0; i < l->region->n[side]; i++) {
        const uint32_t at = ops_of(l, side)[i];
        double x;
        for (uint32_t k = 0; k < p->ops[at].args; k++)
            if (number_of(p, &p->ops[at], k, &x)) add_number(out, x, at);
    }
}

/* How many elements the op makes one of: what a mean divides by. */
static double count_of(const lb_program *p, const lb_op *op)
{
    static const char *const names[] = {"aten::mean",
                                        "aten::mse_loss",
                                        "aten::huber_loss",
                                        "aten::smooth_l1_loss",
                                        "aten::binary_cross_entropy_with_logits",
                                        "aten::nll_loss_forward"};
    const lb_arg *first = op->args ? lb_op_args(p, op) : NULL;
    const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(p, op, 0) : LB_NONE;
    if (!first || first->tag != LB_ARG_VALUE || first->u.value == LB_NONE || v == LB_NONE ||
        lb_op_name_among(p, op, names, sizeof names / sizeof *names) < 0)
        return NAN;
    const int64_t n = lb_layout_numel(&p->values[v].layout);
    return n > 0 ? (double)lb_layout_numel(&p->values[first->u.value].layout) / (double)n : NAN;
}

/* Is the region one of the optimizer's? */
static bool is_update(const lister *l)
{
    const int side = l->region->n[1] ? 1 : 0;
    const uint32_t n = l->region->n[side];
    return n && l->sides[side]->program->ops[ops_of(l, side)[n - 1]].phase == LB_PHASE_OPTIMIZER;
}

/* An update's states meet the other side's, so that numbers with which these are made lie outside of the region; and of
 * two averages one is written with a decay, the other with what is left of it. */
static void list_numbers_of_updates(lister *l)
{
    const lb_program *p = l->sides[!l->side]->program;
    const uint32_t before = l->others.n;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        double x;
        for (uint32_t k = 0; p->ops[i].phase == LB_PHASE_OPTIMIZER && k < p->ops[i].args; k++)
            if (number_of(p, &p->ops[i], k, &x)) add_number(&l->others, x, LB_NONE);
    }
    const uint32_t all = l->others.n;
    for (uint32_t i = 0; i < all; i++)
        if (l->others.list[i].x > 0 && l->others.list[i].x < 1)
            add_number(&l->others, 1 - l->others.list[i].x, LB_NONE);
    for (uint32_t i = before; i < l->others.n; i++) l->others.list[i].of_updates = true;
}

/* Numbers of the other side come first, then what follows from them, then counts of either side. */
static void list_others(lister *l)
{
    list_numbers(l, !l->side, &l->others);
    const uint32_t plain = l->others.n;
    for (uint32_t i = 0; i < plain; i++) {
        const number of = l->others.list[i];
        if (of.x != 0) add_number(&l->others, 1 / of.x, of.op);
        add_number(&l->others, -of.x, of.op);
    }
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < l->region->n[k]; i++) {
            const lb_program *p = l->sides[k]->own;
            const double n = count_of(p, &p->ops[ops_of(l, k)[i]]);
            add_number(&l->others, n, LB_NONE), add_number(&l->others, 1 / n, LB_NONE);
            for (uint32_t m = 0; m < plain && n > 1;
                 m++) /* a number of all that are summed, beside one of their mean */
                add_number(&l->others, l->others.list[m].x * n, l->others.list[m].op),
                    add_number(&l->others, l->others.list[m].x / n, l->others.list[m].op);
        }
    add_number(&l->others, 1, LB_NONE), add_number(&l->others, 0, LB_NONE);
    if (is_update(l)) list_numbers_of_updates(l);
}

static void add_edit(lister *l, lb_repair edit)
{
    lb_repair *more = l->out->n < MOST_EDITS ? lb_array_grow(l->out->list, l->out->n, sizeof *more) : NULL;
    l->failed |= !more && l->out->n < MOST_EDITS;
    if (!more) return;
    l->out->list = more;
    edit.side = l->side, edit.times = l->times;
    l->out->list[l->out->n++] = edit;
}

/* The factor of a sum's second term, which is 1 where the program gives none. */
static bool is_unwritten(const lb_program *p, const lb_op *op, uint32_t arg)
{
    static const char *const names[] = {"aten::add", "aten::sub", "aten::add_", "aten::sub_", "aten::rsub"};
    return arg == 2 && lb_op_args(p, op)[arg].tag == LB_ARG_INT &&
           lb_op_name_among(p, op, names, sizeof names / sizeof *names) >= 0;
}

static void edit_number(lister *l, uint32_t at, uint32_t arg, double before, const number *other, bool swapped)
{
    const lb_program *p = l->sides[l->side]->own;
    const bool alone = other->op != LB_NONE && !find(&l->own, other->x) && !find(&l->others, before);
    const uint32_t rank = is_unwritten(p, &p->ops[at], arg)                ? BY_UNWRITTEN
                          : alone                                          ? BY_OTHERS_NUMBER
                          : other->op != LB_NONE                           ? BY_NUMBER
                          : other->of_updates && !find(&l->others, before) ? BY_UPDATES
                                                                           : BY_COUNT;
    add_edit(l, (lb_repair){.kind = LB_REPAIR_NUMBER,
                            .op = at,
                            .arg = arg,
                            .before = before,
                            .after = other->x,
                            .other = alone ? other->op : LB_NONE,
                            .alone = !find(&l->own, other->x) && !find(&l->others, before),
                            .swapped = swapped,
                            .rank = rank});
}

/* May the factor have been meant for the first term? */
static bool may_swap(const lb_program *p, const lb_op *op, uint32_t arg)
{
    const lb_arg *args = lb_op_args(p, op);
    return lb_value_graph_adds(p, (uint32_t)(op - p->ops)) && is_unwritten(p, op, arg) && args[0].tag == LB_ARG_VALUE &&
           args[1].tag == LB_ARG_VALUE && args[0].u.value != LB_NONE && args[1].u.value != LB_NONE &&
           lb_layout_same_shape(&p->values[args[0].u.value].layout, &p->values[args[1].u.value].layout);
}

static void edit_numbers(lister *l, uint32_t at)
{
    const lb_program *p = l->sides[l->side]->own;
    double x;
    for (uint32_t k = 0; k < p->ops[at].args; k++)
        for (uint32_t i = 0; number_of(p, &p->ops[at], k, &x) && i < l->others.n; i++)
            if (!is_near(x, l->others.list[i].x)) {
                edit_number(l, at, k, x, &l->others.list[i], false);
                if (may_swap(p, &p->ops[at], k)) edit_number(l, at, k, x, &l->others.list[i], true);
            }
}

/* The one value that the op gives, by writing it in place or not; LB_NONE. */
static uint32_t gives_one(const lb_program *p, const lb_op *op)
{
    const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(p, op, 0) : LB_NONE;
    for (uint32_t i = 1; i < lb_op_outcomes(op); i++)
        if (lb_op_outcome(p, op, i) != v) return LB_NONE;
    return v;
}

/* An op that gives what one of its operands could be. */
static void edit_out(lister *l, uint32_t at)
{
    const lb_program *p = l->sides[l->side]->own;
    const lb_op *op = &p->ops[at];
    const uint32_t v = gives_one(p, op);
    for (uint32_t k = 0; v != LB_NONE && k < op->args && k < 2; k++) {
        const lb_arg *a = &lb_op_args(p, op)[k];
        if (a->tag == LB_ARG_VALUE && a->u.value != LB_NONE && a->u.value != v &&
            lb_dtype_is_float(p->values[a->u.value].dtype) &&
            lb_layout_same_shape(&p->values[a->u.value].layout, &p->values[v].layout))
            add_edit(l, (lb_repair){.kind = LB_REPAIR_LEFT_OUT, .op = at, .arg = k, .other = LB_NONE, .rank = BY_OP});
    }
}

/* Functions of the same arguments that are mistaken for each other. */
static const char *const ALIKE[][6] = {
    {"aten::maximum", "aten::minimum"},
    {"aten::amax", "aten::amin"},
    {"aten::add.Tensor", "aten::sub.Tensor"},
    {"aten::mul.Tensor", "aten::div.Tensor"},
    {"aten::sum", "aten::mean"},
    {"aten::sum.dim_IntList", "aten::mean.dim"},
    {"aten::exp", "aten::expm1"},
    {"aten::log", "aten::log1p"},
    {"aten::sin", "aten::cos"},
    {"aten::sqrt", "aten::rsqrt", "aten::abs"},
    {"aten::_softmax", "aten::_log_softmax"},
    {"aten::relu", "aten::silu", "aten::tanh", "aten::sigmoid"},
};

static void edit_function(lister *l, uint32_t at)
{
    const lb_program *p = l->sides[l->side]->own;
    const char *name = lb_op_name(p, &p->ops[at]);
    for (uint32_t i = 0; i < sizeof ALIKE / sizeof *ALIKE; i++) {
        bool among = false;
        for (uint32_t k = 0; k < 6 && ALIKE[i][k]; k++) among |= !strcmp(name, ALIKE[i][k]);
        for (uint32_t k = 0; k < 6 && ALIKE[i][k] && among; k++)
            if (strcmp(name, ALIKE[i][k]))
                add_edit(l, (lb_repair){.kind = LB_REPAIR_FUNCTION,
                                        .op = at,
                                        .function = ALIKE[i][k],
                                        .other = LB_NONE,
                                        .rank = BY_OP});
    }
}

/* ---- ops of one line ---- */

/* Does the line that calls the op call the other one alike, on the next turn of a loop? */
static bool is_called_alike(const lb_program *p, uint32_t op, uint32_t other)
{
    const lb_op *a = &p->ops[op], *b = &p->ops[other];
    return a->line && a->line == b->line && lb_op_same_numbers(p, a, b);
}

uint32_t lb_repair_edits_ops(const lb_exact_side *side, const lb_regions *regions, const lb_region *region,
                             const lb_repair *edit, uint32_t *out)
{
    const uint32_t *ops = regions->ops + region->first[edit->side];
    uint32_t n = 0;
    for (uint32_t i = 0; i < region->n[edit->side]; i++)
        if (ops[i] == edit->op || (edit->times > 1 && is_called_alike(side->program, edit->op, ops[i])))
            out[n++] = ops[i];
    return n;
}

/* How often the region has ops that are called alike; 0 where one stands before it. */
static uint32_t times_called(const lister *l, uint32_t at)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->region->n[l->side]; i++) {
        const uint32_t op = ops_of(l, l->side)[i];
        if (op != at && !is_called_alike(l->sides[l->side]->program, at, op)) continue;
        if (op < at) return 0;
        n++;
    }
    return n;
}

/* ---- all edits ---- */

/* Was it put right before? */
static bool is_edited(const lb_exact_side *s, uint32_t op)
{
    return s->own->ops[op].first_arg != s->program->ops[op].first_arg;
}

/* There is room for so many: first come ops as a whole, then numbers, then single turns of loops. */
enum { OPS, NUMBERS, TURNS, PASSES };

static void list_edits(lister *l, int pass)
{
    for (uint32_t i = 0; i < l->region->n[l->side]; i++) {
        const uint32_t at = ops_of(l, l->side)[i], times = times_called(l, at);
        if (is_edited(l->sides[l->side], at) || (pass == TURNS ? times == 1 : !times)) continue;
        l->times = pass == TURNS ? 1 : times;
        if (pass != OPS) edit_numbers(l, at);
        if (pass != NUMBERS) edit_out(l, at), edit_function(l, at);
    }
}

/* Is the number of another sign than the one that is there? */
static bool turns_sign(const lb_repair *e)
{
    return e->kind == LB_REPAIR_NUMBER && e->before * e->after < 0;
}

static int by_rank(const void *x, const void *y)
{
    const lb_repair *a = x, *b = y;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    if (turns_sign(a) != turns_sign(b)) return turns_sign(a) - turns_sign(b);
    if (a->side != b->side) return a->side > b->side ? -1 : 1;
    if ((a->times > 1) != (b->times > 1)) return a->times > 1 ? -1 : 1;
    if (a->op != b->op) return a->op < b->op ? -1 : 1;
    return a->kind != b->kind ? (int)a->kind - (int)b->kind : (int)a->arg - (int)b->arg;
}

bool lb_repair_edits_list(const lb_exact_side *const sides[2], const lb_regions *regions, const lb_region *region,
                          lb_repair_edits *out)
{
    lister of[2];
    *out = (lb_repair_edits){0};
    for (int k = 0; k < 2; k++) {
        of[k] = (lister){.sides = sides, .regions = regions, .region = region, .side = k, .out = out};
        list_numbers(&of[k], k, &of[k].own), list_others(&of[k]);
    }
    for (int pass = 0; pass < PASSES; pass++)
        for (int k = 2; k-- > 0;) list_edits(&of[k], pass);
    if (out->n > 1) qsort(out->list, out->n, sizeof *out->list, by_rank);
    return !of[0].failed && !of[1].failed;
}

void lb_repair_edits_release(lb_repair_edits *edits)
{
    free(edits->list);
    *edits = (lb_repair_edits){0};
}
