/* Fused ops of a loss written as elementary ones: see spelled_out.h. */
#include "joined/spelled_out.h"

#include "joined/join.h"
#include "pair/op_kind.h"

#include <stdlib.h>
#include <string.h>

enum { REDUCE_NONE, REDUCE_MEAN, REDUCE_SUM };

/* ---- one elementary op ---- */

static lb_arg float_arg(double x)
{
    return (lb_arg){.tag = LB_ARG_FLOAT, .u.f = x};
}

static const lb_arg NOTHING = {.tag = LB_ARG_NONE};

/* `into`: the value that it gives; LB_NONE: a fresh one of that shape. */
static uint32_t write_as(lb_join *j, const char *name, const lb_arg *args, uint32_t n, lb_dtype dtype,
                         const lb_layout *shape, uint32_t into)
{
    const lb_layout copy = *shape; /* it may be a value's, and these move when one is added */
    const uint32_t result = into == LB_NONE ? lb_join_fresh(j, dtype, &copy) : into;
    if (!j->failed) lb_join_write_op(j, name, args, n, result);
    return result;
}

/* Elementwise, of two values or of one and a number, in the shape of the first. */
static uint32_t write(lb_join *j, const char *name, uint32_t x, lb_arg y, uint32_t into)
{
    const lb_arg args[] = {lb_join_value_arg(x), y};
    if (j->failed) return LB_NONE;
    return write_as(j, name, args, y.tag == LB_ARG_NONE ? 1 : 2, j->p->values[x].dtype, &j->p->values[x].layout, into);
}

static uint32_t apply(lb_join *j, const char *name, uint32_t x)
{
    return write(j, name, x, NOTHING, LB_NONE);
}

/* x + y, x - y: their factor is 1. */
static uint32_t write_sum(lb_join *j, const char *name, uint32_t x, uint32_t y, uint32_t into)
{
    const lb_arg args[] = {lb_join_value_arg(x), lb_join_value_arg(y), lb_join_int_arg(1)};
    if (j->failed) return LB_NONE;
    return write_as(j, name, args, 3, j->p->values[x].dtype, &j->p->values[x].layout, into);
}

static uint32_t write_total(lb_join *j, uint32_t x, uint32_t into)
{
    const lb_layout scalar = lb_layout_contiguous(0, NULL);
    const lb_arg args[] = {lb_join_value_arg(x), NOTHING};
    if (j->failed) return LB_NONE;
    return write_as(j, "aten::sum", args, 2, j->p->values[x].dtype, &scalar, into);
}

/* The logarithm of the sum of exponentials along a dimension, which stays, of one element. */
static uint32_t write_logarithm(lb_join *j, uint32_t x, int64_t dimension)
{
    lb_layout shape = j->p->values[x].layout;
    const lb_arg entry = lb_join_int_arg(dimension);
    const uint32_t first = j->failed ? LB_NONE : lb_program_add_args(j->p, &entry, 1);
    const lb_arg args[] = {
        lb_join_value_arg(x), {.tag = LB_ARG_LIST, .count = 1, .u.first = first}, {.tag = LB_ARG_BOOL, .u.i = 1}};
    j->failed |= first == LB_NONE;
    if (j->failed) return LB_NONE;
    shape.shape[dimension] = 1;
    return write_as(j, "aten::logsumexp", args, 3, j->p->values[x].dtype, &shape, LB_NONE);
}

/* What a loss of each element becomes: it is `into` itself, its mean or its sum. */
static void write_reduced(lb_join *j, uint32_t x, int64_t reduction, uint32_t into)
{
    const double n = j->failed ? 1 : (double)lb_join_numel(j, x);
    if (reduction == REDUCE_SUM)
        write_total(j, x, into);
    else if (reduction == REDUCE_MEAN)
        write(j, "aten::div.Tensor", write_total(j, x, LB_NONE), float_arg(n), into);
    else
        lb_join_write_clone(j, x, into);
}

/* ---- the ops ---- */

/* A fused op's call. */
typedef struct fused {
    lb_join *j;
    const lb_op *op;
    lb_arg *args;
    uint32_t result; /* its first */
} fused;

static uint32_t value_of(const fused *f, uint32_t arg)
{
    return arg < f->op->args && f->args[arg].tag == LB_ARG_VALUE ? f->args[arg].u.value : LB_NONE;
}

static int64_t whole_of(const fused *f, uint32_t arg, int64_t otherwise)
{
    return arg < f->op->args && f->args[arg].tag == LB_ARG_INT ? f->args[arg].u.i : otherwise;
}

static double number_of(const fused *f, uint32_t arg, double otherwise)
{
    if (arg >= f->op->args) return otherwise;
    return f->args[arg].tag == LB_ARG_FLOAT ? f->args[arg].u.f
           : f->args[arg].tag == LB_ARG_INT ? (double)f->args[arg].u.i
                                            : otherwise;
}

static bool have_one_shape(const lb_join *j, uint32_t x, uint32_t y)
{
    return lb_layout_same_shape(&j->p->values[x].layout, &j->p->values[y].layout);
}

/* Of a matrix of log-probabilities and a row of classes, no weights: what the op also gives is the number of classes
 * that count. */
static bool spell_nll_loss(fused *f)
{
    lb_join *j = f->j;
    const uint32_t x = value_of(f, 0), target = value_of(f, 1),
                   weight = lb_op_outcomes(f->op) > 1 ? lb_op_outcome(j->p, f->op, 1) : LB_NONE;
    if (x == LB_NONE || target == LB_NONE || value_of(f, 2) != LB_NONE || weight == LB_NONE) return false;
    if (j->p->values[x].layout.ndim != 2 || j->p->values[target].layout.ndim != 1) return false;
    const lb_layout row = j->p->values[target].layout;
    const int64_t reduction = whole_of(f, 3, REDUCE_MEAN), ignored = whole_of(f, 4, -100), column[] = {row.shape[0], 1};
    const lb_layout shape = lb_layout_contiguous(2, column);
    const lb_arg ne[] = {lb_join_value_arg(target), lb_join_int_arg(ignored)};
    const uint32_t counts = write_as(j, "aten::ne.Scalar", ne, 2, LB_BOOL, &row, LB_NONE),
                   within = write(j, "aten::clamp_min", lb_join_dense(j, target), lb_join_int_arg(0), LB_NONE);
    if (j->failed) return true;
    const lb_arg gather[] = {lb_join_value_arg(x),
                             lb_join_int_arg(1),
                             lb_join_value_arg(lb_join_reshaped(j, within, &shape, 0)),
                             {.tag = LB_ARG_BOOL}};
    const uint32_t picked = write_as(j, "aten::gather", gather, 4, j->p->values[x].dtype, &shape, LB_NONE);
    if (j->failed) return true;
    const uint32_t loss = apply(j, "aten::neg", lb_join_reshaped(j, picked, &row, 0)),
                   kept = write(j, "aten::mul.Tensor", loss, lb_join_value_arg(counts), LB_NONE);
    if (j->failed) return true;
    write_total(j, counts, weight);
    if (reduction == REDUCE_MEAN)
        write(j, "aten::div.Tensor", write_total(j, kept, LB_NONE), lb_join_value_arg(weight), f->result);
    else
        write_reduced(j, kept, reduction, f->result);
    return true;
}

static bool spell_mse(fused *f)
{
    const uint32_t x = value_of(f, 0), y = value_of(f, 1);
    if (x == LB_NONE || y == LB_NONE || !have_one_shape(f->j, x, y)) return false;
    const uint32_t apart = write_sum(f->j, "aten::sub.Tensor", x, y, LB_NONE);
    write_reduced(f->j, write(f->j, "aten::pow.Tensor_Scalar", apart, lb_join_int_arg(2), LB_NONE),
                  whole_of(f, 2, REDUCE_MEAN), f->result);
    return true;
}

/* near = min(|d|, border): half its square, and border times the rest; smooth_l1 is that over the border. */
static bool spell_bordered(fused *f, bool smooth)
{
    lb_join *j = f->j;
    const uint32_t x = value_of(f, 0), y = value_of(f, 1);
    const double border = number_of(f, 3, 1);
    if (x == LB_NONE || y == LB_NONE || !have_one_shape(j, x, y) || !(border > 0)) return false;
    const uint32_t size = apply(j, "aten::abs", write_sum(j, "aten::sub.Tensor", x, y, LB_NONE)),
                   near = write(j, "aten::clamp_max", size, float_arg(border), LB_NONE),
                   far = write_sum(j, "aten::sub.Tensor", size, near, LB_NONE),
                   square = write(j, "aten::pow.Tensor_Scalar", near, lb_join_int_arg(2), LB_NONE),
                   half = write(j, "aten::mul.Tensor", square, float_arg(0.5), LB_NONE),
                   rest = write(j, "aten::mul.Tensor", far, float_arg(border), LB_NONE);
    uint32_t loss = write_sum(j, "aten::add.Tensor", half, rest, LB_NONE);
    if (smooth) loss = write(j, "aten::div.Tensor", loss, float_arg(border), LB_NONE);
    write_reduced(j, loss, whole_of(f, 2, REDUCE_MEAN), f->result);
    return true;
}

static bool spell_huber(fused *f)
{
    return spell_bordered(f, false);
}

static bool spell_smooth(fused *f)
{
    return spell_bordered(f, true);
}

static uint32_t write_softplus(lb_join *j, uint32_t x)
{
    const lb_arg args[] = {lb_join_value_arg(x), lb_join_int_arg(1), lb_join_int_arg(1000)};
    if (j->failed) return LB_NONE;
    return write_as(j, "aten::softplus", args, 3, j->p->values[x].dtype, &j->p->values[x].layout, LB_NONE);
}

/* y softplus(-x), times what positives weigh, and (1 - y) softplus(x). */
static bool spell_logits(fused *f)
{
    lb_join *j = f->j;
    const uint32_t x = value_of(f, 0), y = value_of(f, 1), weight = value_of(f, 3);
    if (x == LB_NONE || y == LB_NONE || value_of(f, 2) != LB_NONE || !have_one_shape(j, x, y)) return false;
    const lb_arg one_minus[] = {lb_join_value_arg(y), lb_join_int_arg(1), lb_join_int_arg(1)};
    uint32_t positive =
        write(j, "aten::mul.Tensor", y, lb_join_value_arg(write_softplus(j, apply(j, "aten::neg", x))), LB_NONE);
    if (weight != LB_NONE) positive = write(j, "aten::mul.Tensor", positive, lb_join_value_arg(weight), LB_NONE);
    if (j->failed) return true;
    const uint32_t others = write_as(j, "aten::rsub.Scalar", one_minus, 3, j->p->values[y].dtype,
                                     &j->p->values[y].layout, LB_NONE),
                   negative = write(j, "aten::mul.Tensor", others, lb_join_value_arg(write_softplus(j, x)), LB_NONE);
    write_reduced(j, write_sum(j, "aten::add.Tensor", positive, negative, LB_NONE), whole_of(f, 4, REDUCE_MEAN),
                  f->result);
    return true;
}

/* -softplus(-x). What it keeps for backward is exp(-|x|). */
static bool spell_log_sigmoid(fused *f)
{
    const uint32_t x = value_of(f, 0), kept = lb_op_outcomes(f->op) > 1 ? lb_op_outcome(f->j->p, f->op, 1) : LB_NONE;
    if (x == LB_NONE) return false;
    if (kept != LB_NONE && have_one_shape(f->j, x, kept))
        write(f->j, "aten::exp", apply(f->j, "aten::neg", apply(f->j, "aten::abs", x)), NOTHING, kept);
    write(f->j, "aten::neg", write_softplus(f->j, apply(f->j, "aten::neg", x)), NOTHING, f->result);
    return true;
}

/* x less the logarithm of the sum of exponentials. */
static bool spell_log_softmax(fused *f)
{
    lb_join *j = f->j;
    const uint32_t x = value_of(f, 0);
    int64_t dimension = whole_of(f, 1, 0);
    if (x == LB_NONE || !j->p->values[x].layout.ndim) return false;
    if (dimension < 0) dimension += j->p->values[x].layout.ndim;
    write_sum(j, "aten::sub.Tensor", x, write_logarithm(j, x, dimension), f->result);
    return true;
}

/* x + number * y * z, or y / z. */
static bool spell_added(fused *f, const char *name)
{
    lb_join *j = f->j;
    const uint32_t x = value_of(f, 0), y = value_of(f, 1), z = value_of(f, 2);
    const double factor = number_of(f, 3, 1);
    if (x == LB_NONE || y == LB_NONE || z == LB_NONE || !have_one_shape(j, x, f->result) ||
        !have_one_shape(j, y, f->result))
        return false;
    uint32_t term = write(j, name, y, lb_join_value_arg(z), LB_NONE);
    if (factor != 1) term = write(j, "aten::mul.Tensor", term, float_arg(factor), LB_NONE);
    write_sum(j, "aten::add.Tensor", x, term, f->result);
    return true;
}

static bool spell_addcmul(fused *f)
{
    return spell_added(f, "aten::mul.Tensor");
}

static bool spell_addcdiv(fused *f)
{
    return spell_added(f, "aten::div.Tensor");
}

static bool spell_mean(fused *f)
{
    const uint32_t x = value_of(f, 0);
    if (x == LB_NONE) return false;
    write_reduced(f->j, x, REDUCE_MEAN, f->result);
    return true;
}

static const struct {
    const char *name;
    bool (*spell)(fused *f); /* false: not this call, and nothing was written */
} SPELLED[] = {
    {"aten::nll_loss_forward", spell_nll_loss},
    {"aten::mse_loss", spell_mse},
    {"aten::huber_loss", spell_huber},
    {"aten::smooth_l1_loss", spell_smooth},
    {"aten::binary_cross_entropy_with_logits", spell_logits},
    {"aten::log_sigmoid_forward", spell_log_sigmoid},
    {"aten::_log_softmax", spell_log_softmax},
    {"aten::addcmul", spell_addcmul},
    {"aten::addcdiv", spell_addcdiv},
    {"aten::mean", spell_mean},
};

enum { SPELLINGS = sizeof SPELLED / sizeof *SPELLED };

/* ---- which ---- */

static uint32_t spelling_of(const lb_program *p, const lb_op *op)
{
    const char *name = lb_op_name(p, op);
    if (op->phase != LB_PHASE_FORWARD || op->flags & (LB_OP_VIEW | LB_OP_MUTABLE | LB_OP_FAILED)) return SPELLINGS;
    uint32_t i = 0;
    while (i < SPELLINGS && strcmp(name, SPELLED[i].name)) i++;
    return i;
}

static void count(const lb_program *p, uint32_t *n)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const uint32_t s = spelling_of(p, &p->ops[i]);
        if (s < SPELLINGS) n[s]++;
    }
}

typedef struct speller {
    lb_join join;
    bool spelled[SPELLINGS]; /* the other side runs another number of them */
    int64_t *needed;         /* storages that lead to a product with a parameter, as the walk goes back */
    uint32_t n_needed;
    bool *tail; /* per op of forward: it leads to none */
} speller;

static bool is_needed(const speller *s, int64_t storage)
{
    for (uint32_t i = s->n_needed; i-- > 0;)
        if (s->needed[i] == storage) return true;
    return false;
}

typedef struct reads {
    const lb_program *p;
    speller *s;
    bool parameter;
} reads;

static void note_parameter(void *context, uint32_t value)
{
    reads *r = context;
    r->parameter |= value != LB_NONE && r->p->values[value].flags & LB_VALUE_PARAMETER;
}

static void note_needed(void *context, uint32_t value)
{
    reads *r = context;
    if (value != LB_NONE && !is_needed(r->s, r->p->values[value].storage))
        r->s->needed[r->s->n_needed++] = r->p->values[value].storage;
}

/* Back through forward: what leads to an op that reads a parameter is the model's own. */
static void mark_tail(speller *s)
{
    const lb_program *p = s->join.p;
    for (uint32_t i = p->n_ops; i-- > 0;) {
        const lb_op *op = &p->ops[i];
        reads r = {p, s, false};
        if (op->phase != LB_PHASE_FORWARD || lb_op_is_source(p, op)) continue;
        lb_op_each_input(p, op, note_parameter, &r);
        bool leads = r.parameter;
        for (uint32_t k = 0; k < lb_op_outcomes(op) && !leads; k++) {
            const uint32_t v = lb_op_outcome(p, op, k);
            leads = v != LB_NONE && is_needed(s, p->values[v].storage);
        }
        s->tail[i] = !leads;
        if (leads) lb_op_each_input(p, op, note_needed, &r);
    }
}

static bool spell(speller *s, uint32_t at)
{
    lb_join *j = &s->join;
    const lb_op op = j->p->ops[at];
    const uint32_t which = spelling_of(j->p, &op);
    if (which == SPELLINGS || !s->spelled[which] || !s->tail[at] || !lb_op_outcomes(&op)) return false;
    fused f = {.j = j, .op = &op, .result = lb_op_outcome(j->p, &op, 0)};
    if (f.result == LB_NONE || !(f.args = malloc((op.args + 1) * sizeof *f.args))) return false;
    memcpy(f.args, lb_op_args(j->p, &op), op.args * sizeof *f.args);
    lb_join_stand_at(j, at, 0);
    const bool done = SPELLED[which].spell(&f);
    free(f.args);
    return done;
}

static void write_all(speller *s)
{
    lb_join *j = &s->join;
    const uint32_t n = j->p->n_ops;
    for (uint32_t i = 0; i < n && !j->failed; i++) {
        j->new_of[i] = j->n_ops;
        if (!spell(s, i)) lb_join_append(j, j->p->ops[i]);
    }
    j->new_of[n] = j->n_ops;
}

/* ---- what the program says of its optimizers ---- */

static bool copy_scalars(const lb_join *j, const lb_program *from)
{
    bool room = true;
    for (uint32_t i = 0; i < from->n_scalars && room; i++) {
        lb_scalar s = from->scalars[i];
        s.name = lb_program_string(j->p, lb_program_text(from, s.name)), s.op = j->new_of[s.op];
        room = s.name != LB_NONE && lb_program_add_scalar(j->p, &s) != LB_NONE;
    }
    return room;
}

/* Scalars and groups have the rows that they were recorded in. */
static bool copy_groups(const lb_join *j, const lb_program *from)
{
    bool room = true;
    for (uint32_t i = 0; i < from->n_group_params && room; i++) {
        lb_group_param param = from->group_params[i];
        param.name = lb_program_string(j->p, lb_program_text(from, param.name));
        param.storage = lb_program_view_storage(j->view, 0, param.storage);
        if (param.gradient >= 0) param.gradient = lb_program_view_storage(j->view, 0, param.gradient);
        room = param.name != LB_NONE && lb_program_add_group_param(j->p, &param) != LB_NONE;
    }
    for (uint32_t i = 0; i < from->n_groups && room; i++) {
        lb_group g = from->groups[i];
        const uint32_t end = j->new_of[g.first_op + g.ops];
        g.optimizer = lb_program_string(j->p, lb_program_text(from, g.optimizer));
        g.first_op = j->new_of[g.first_op], g.ops = end - g.first_op;
        room = g.optimizer != LB_NONE && lb_program_add_group(j->p, &g) != LB_NONE;
    }
    return room;
}

lb_status lb_spelled_out_view(lb_capture *capture, const lb_program *program, const lb_program *other,
                              lb_program_view *view, lb_err *err)
{
    uint32_t mine[SPELLINGS] = {0}, others[SPELLINGS] = {0};
    speller s = {.join = {.called = LB_NONE}};
    bool any = false;
    count(program, mine), count(other, others);
    for (uint32_t i = 0; i < SPELLINGS; i++) any |= s.spelled[i] = mine[i] && mine[i] != others[i];
    if (!any) return lb_program_view_init(capture, &program, 1, view, err);
    LB_TRY(lb_program_view_init_merged(capture, &program, 1, view, err));
    lb_join *j = &s.join;
    j->view = view, j->p = view->merged;
    j->new_of = malloc(((size_t)j->p->n_ops + 1) * sizeof *j->new_of);
    s.needed = malloc(((size_t)j->p->n_values + 1) * sizeof *s.needed);
    s.tail = calloc((size_t)j->p->n_ops + 1, sizeof *s.tail);
    j->failed = !j->new_of || !s.needed || !s.tail;
    if (!j->failed) mark_tail(&s), write_all(&s);
    if (!j->failed) j->failed = !copy_scalars(j, program) || !copy_groups(j, program);
    if (!j->failed) lb_join_hand_over(j);
    free(j->ops), free(j->part_of), free(j->ranks), free(j->new_of), free(s.needed), free(s.tail);
    if (!j->failed) return LB_OK;
    lb_program_view_release(view);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for the ops of a step");
}
