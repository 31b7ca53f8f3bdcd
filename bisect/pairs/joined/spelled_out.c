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
static uint32_t write_as(lb_join *join, const char *name, const lb_arg *args, uint32_t n, lb_dtype dtype,
                         const lb_layout *shape, uint32_t into)
{
    const lb_layout copy = *shape; /* it may be a value's, and these move when one is added */
    const uint32_t result = into == LB_NONE ? lb_join_fresh(join, dtype, &copy) : into;
    if (!join->failed) lb_join_write_op(join, name, args, n, result);
    return result;
}

/* Elementwise, of two values or of one and a number, in the shape of the first. */
static uint32_t write(lb_join *join, const char *name, uint32_t x, lb_arg arg, uint32_t into)
{
    const lb_arg args[] = {lb_join_value_arg(x), arg};
    if (join->failed) return LB_NONE;
    return write_as(join, name, args, arg.tag == LB_ARG_NONE ? 1 : 2, join->p->values[x].dtype,
                    &join->p->values[x].layout, into);
}

static uint32_t apply(lb_join *join, const char *name, uint32_t x)
{
    return write(join, name, x, NOTHING, LB_NONE);
}

/* x + y, x - y: their factor is 1. */
static uint32_t write_sum(lb_join *join, const char *name, uint32_t x, uint32_t y, uint32_t into)
{
    const lb_arg args[] = {lb_join_value_arg(x), lb_join_value_arg(y), lb_join_int_arg(1)};
    if (join->failed) return LB_NONE;
    return write_as(join, name, args, 3, join->p->values[x].dtype, &join->p->values[x].layout, into);
}

static uint32_t write_total(lb_join *join, uint32_t x, uint32_t into)
{
    const lb_layout scalar = lb_layout_contiguous(0, NULL);
    const lb_arg args[] = {lb_join_value_arg(x), NOTHING};
    if (join->failed) return LB_NONE;
    return write_as(join, "aten::sum", args, 2, join->p->values[x].dtype, &scalar, into);
}

/* The logarithm of the sum of exponentials along a dimension, which stays, of one element. */
static uint32_t write_logarithm(lb_join *join, uint32_t x, int64_t dimension)
{
    lb_layout shape = join->p->values[x].layout;
    const lb_arg entry = lb_join_int_arg(dimension);
    const uint32_t first = join->failed ? LB_NONE : lb_program_add_args(join->p, &entry, 1);
    const lb_arg args[] = {
        lb_join_value_arg(x), {.tag = LB_ARG_LIST, .count = 1, .u.first = first}, {.tag = LB_ARG_BOOL, .u.i = 1}};
    join->failed |= first == LB_NONE;
    if (join->failed) return LB_NONE;
    shape.shape[dimension] = 1;
    return write_as(join, "aten::logsumexp", args, 3, join->p->values[x].dtype, &shape, LB_NONE);
}

/* What a loss of each element becomes: it is `into` itself, its mean or its sum. */
static void write_reduced(lb_join *join, uint32_t x, int64_t reduction, uint32_t into)
{
    const double n = join->failed ? 1 : (double)lb_join_numel(join, x);
    if (reduction == REDUCE_SUM)
        write_total(join, x, into);
    else if (reduction == REDUCE_MEAN)
        write(join, "aten::div.Tensor", write_total(join, x, LB_NONE), float_arg(n), into);
    else
        lb_join_write_clone(join, x, into);
}

/* ---- the ops ---- */

/* A fused op's call. */
typedef struct fused {
    lb_join *j;
    const lb_op *op;
    lb_arg *args;
    uint32_t result; /* its first */
} fused;

static uint32_t value_of(const fused *fused, uint32_t arg)
{
    return arg < fused->op->args && fused->args[arg].tag == LB_ARG_VALUE ? fused->args[arg].u.value : LB_NONE;
}

static int64_t whole_of(const fused *fused, uint32_t arg, int64_t otherwise)
{
    return arg < fused->op->args && fused->args[arg].tag == LB_ARG_INT ? fused->args[arg].u.i : otherwise;
}

static double number_of(const fused *fused, uint32_t arg, double otherwise)
{
    if (arg >= fused->op->args) return otherwise;
    return fused->args[arg].tag == LB_ARG_FLOAT ? fused->args[arg].u.f
           : fused->args[arg].tag == LB_ARG_INT ? (double)fused->args[arg].u.i
                                                : otherwise;
}

static bool have_one_shape(const lb_join *join, uint32_t x, uint32_t y)
{
    return lb_layout_same_shape(&join->p->values[x].layout, &join->p->values[y].layout);
}

/* Of a matrix of log-probabilities and a row of classes, no weights: what the op also gives is the number of classes
 * that count. */
static bool spell_nll_loss(fused *fused)
{
    lb_join *join = fused->j;
    const uint32_t x = value_of(fused, 0), target = value_of(fused, 1),
                   weight = lb_op_outcomes(fused->op) > 1 ? lb_op_outcome(join->p, fused->op, 1) : LB_NONE;
    if (x == LB_NONE || target == LB_NONE || value_of(fused, 2) != LB_NONE || weight == LB_NONE) return false;
    if (join->p->values[x].layout.ndim != 2 || join->p->values[target].layout.ndim != 1) return false;
    const lb_layout row = join->p->values[target].layout;
    const int64_t reduction = whole_of(fused, 3, REDUCE_MEAN), ignored = whole_of(fused, 4, -100),
                  column[] = {row.shape[0], 1};
    const lb_layout shape = lb_layout_contiguous(2, column);
    const lb_arg ne[] = {lb_join_value_arg(target), lb_join_int_arg(ignored)};
    const uint32_t counts = write_as(join, "aten::ne.Scalar", ne, 2, LB_BOOL, &row, LB_NONE),
                   within = write(join, "aten::clamp_min", lb_join_dense(join, target), lb_join_int_arg(0), LB_NONE);
    if (join->failed) return true;
    const lb_arg gather[] = {lb_join_value_arg(x),
                             lb_join_int_arg(1),
                             lb_join_value_arg(lb_join_reshaped(join, within, &shape, 0)),
                             {.tag = LB_ARG_BOOL}};
    const uint32_t picked = write_as(join, "aten::gather", gather, 4, join->p->values[x].dtype, &shape, LB_NONE);
    if (join->failed) return true;
    const uint32_t loss = apply(join, "aten::neg", lb_join_reshaped(join, picked, &row, 0)),
                   kept = write(join, "aten::mul.Tensor", loss, lb_join_value_arg(counts), LB_NONE);
    if (join->failed) return true;
    write_total(join, counts, weight);
    if (reduction == REDUCE_MEAN)
        write(join, "aten::div.Tensor", write_total(join, kept, LB_NONE), lb_join_value_arg(weight), fused->result);
    else
        write_reduced(join, kept, reduction, fused->result);
    return true;
}

static bool spell_mse(fused *fused)
{
    const uint32_t x = value_of(fused, 0), y = value_of(fused, 1);
    if (x == LB_NONE || y == LB_NONE || !have_one_shape(fused->j, x, y)) return false;
    const uint32_t apart = write_sum(fused->j, "aten::sub.Tensor", x, y, LB_NONE);
    write_reduced(fused->j, write(fused->j, "aten::pow.Tensor_Scalar", apart, lb_join_int_arg(2), LB_NONE),
                  whole_of(fused, 2, REDUCE_MEAN), fused->result);
    return true;
}

/* near = min(|d|, border): half its square, and border times the rest; smooth_l1 is that over the border. */
static bool spell_bordered(fused *fused, bool smooth)
{
    lb_join *join = fused->j;
    const uint32_t x = value_of(fused, 0), y = value_of(fused, 1);
    const double border = number_of(fused, 3, 1);
    if (x == LB_NONE || y == LB_NONE || !have_one_shape(join, x, y) || !(border > 0)) return false;
    const uint32_t size = apply(join, "aten::abs", write_sum(join, "aten::sub.Tensor", x, y, LB_NONE)),
                   near = write(join, "aten::clamp_max", size, float_arg(border), LB_NONE),
                   far = write_sum(join, "aten::sub.Tensor", size, near, LB_NONE),
                   square = write(join, "aten::pow.Tensor_Scalar", near, lb_join_int_arg(2), LB_NONE),
                   half = write(join, "aten::mul.Tensor", square, float_arg(0.5), LB_NONE),
                   rest = write(join, "aten::mul.Tensor", far, float_arg(border), LB_NONE);
    uint32_t loss = write_sum(join, "aten::add.Tensor", half, rest, LB_NONE);
    if (smooth) loss = write(join, "aten::div.Tensor", loss, float_arg(border), LB_NONE);
    write_reduced(join, loss, whole_of(fused, 2, REDUCE_MEAN), fused->result);
    return true;
}

static bool spell_huber(fused *fused)
{
    return spell_bordered(fused, false);
}

static bool spell_smooth(fused *fused)
{
    return spell_bordered(fused, true);
}

static uint32_t write_softplus(lb_join *join, uint32_t x)
{
    const lb_arg args[] = {lb_join_value_arg(x), lb_join_int_arg(1), lb_join_int_arg(1000)};
    if (join->failed) return LB_NONE;
    return write_as(join, "aten::softplus", args, 3, join->p->values[x].dtype, &join->p->values[x].layout, LB_NONE);
}

/* y softplus(-x), times what positives weigh, and (1 - y) softplus(x). */
static bool spell_logits(fused *fused)
{
    lb_join *join = fused->j;
    const uint32_t x = value_of(fused, 0), y = value_of(fused, 1), weight = value_of(fused, 3);
    if (x == LB_NONE || y == LB_NONE || value_of(fused, 2) != LB_NONE || !have_one_shape(join, x, y)) return false;
    const lb_arg one_minus[] = {lb_join_value_arg(y), lb_join_int_arg(1), lb_join_int_arg(1)};
    uint32_t positive = write(join, "aten::mul.Tensor", y,
                              lb_join_value_arg(write_softplus(join, apply(join, "aten::neg", x))), LB_NONE);
    if (weight != LB_NONE) positive = write(join, "aten::mul.Tensor", positive, lb_join_value_arg(weight), LB_NONE);
    if (join->failed) return true;
    const uint32_t others = write_as(join, "aten::rsub.Scalar", one_minus, 3, join->p->values[y].dtype,
                                     &join->p->values[y].layout, LB_NONE),
                   negative =
                       write(join, "aten::mul.Tensor", others, lb_join_value_arg(write_softplus(join, x)), LB_NONE);
    write_reduced(join, write_sum(join, "aten::add.Tensor", positive, negative, LB_NONE),
                  whole_of(fused, 4, REDUCE_MEAN), fused->result);
    return true;
}

/* -softplus(-x). What it keeps for backward is exp(-|x|). */
static bool spell_log_sigmoid(fused *fused)
{
    const uint32_t x = value_of(fused, 0),
                   kept = lb_op_outcomes(fused->op) > 1 ? lb_op_outcome(fused->j->p, fused->op, 1) : LB_NONE;
    if (x == LB_NONE) return false;
    if (kept != LB_NONE && have_one_shape(fused->j, x, kept))
        write(fused->j, "aten::exp", apply(fused->j, "aten::neg", apply(fused->j, "aten::abs", x)), NOTHING, kept);
    write(fused->j, "aten::neg", write_softplus(fused->j, apply(fused->j, "aten::neg", x)), NOTHING, fused->result);
    return true;
}

/* x less the logarithm of the sum of exponentials. */
static bool spell_log_softmax(fused *fused)
{
    lb_join *join = fused->j;
    const uint32_t x = value_of(fused, 0);
    int64_t dimension = whole_of(fused, 1, 0);
    if (x == LB_NONE || !join->p->values[x].layout.ndim) return false;
    if (dimension < 0) dimension += join->p->values[x].layout.ndim;
    write_sum(join, "aten::sub.Tensor", x, write_logarithm(join, x, dimension), fused->result);
    return true;
}

/* x + number * y * z, or y / z. */
static bool spell_added(fused *fused, const char *name)
{
    lb_join *join = fused->j;
    const uint32_t x = value_of(fused, 0), y = value_of(fused, 1), z = value_of(fused, 2);
    const double factor = number_of(fused, 3, 1);
    if (x == LB_NONE || y == LB_NONE || z == LB_NONE || !have_one_shape(join, x, fused->result) ||
        !have_one_shape(join, y, fused->result))
        return false;
    uint32_t term = write(join, name, y, lb_join_value_arg(z), LB_NONE);
    if (factor != 1) term = write(join, "aten::mul.Tensor", term, float_arg(factor), LB_NONE);
    write_sum(join, "aten::add.Tensor", x, term, fused->result);
    return true;
}

static bool spell_addcmul(fused *fused)
{
    return spell_added(fused, "aten::mul.Tensor");
}

static bool spell_addcdiv(fused *fused)
{
    return spell_added(fused, "aten::div.Tensor");
}

static bool spell_mean(fused *fused)
{
    const uint32_t x = value_of(fused, 0);
    if (x == LB_NONE) return false;
    write_reduced(fused->j, x, REDUCE_MEAN, fused->result);
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

static uint32_t spelling_of(const lb_program *program, const lb_op *op)
{
    const char *name = lb_op_name(program, op);
    if (op->phase != LB_PHASE_FORWARD || op->flags & (LB_OP_VIEW | LB_OP_MUTABLE | LB_OP_FAILED)) return SPELLINGS;
    uint32_t i = 0;
    while (i < SPELLINGS && strcmp(name, SPELLED[i].name)) i++;
    return i;
}

static void count(const lb_program *program, uint32_t *n)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t s = spelling_of(program, &program->ops[i]);
        if (s < SPELLINGS) n[s]++;
    }
}

typedef struct speller {
    lb_join join;
    bool spelled[SPELLINGS]; /* the other side runs another number of them */
    int64_t *needed;         /* storages that lead to a product with a parameter, as the walk goes back */
    uint32_t n_needed;
    bool *tail;              /* per op of forward: it leads to none */
    const uint8_t *left_out; /* per op; NULL: none is */
} speller;

static bool is_needed(const speller *speller, int64_t storage)
{
    for (uint32_t i = speller->n_needed; i-- > 0;)
        if (speller->needed[i] == storage) return true;
    return false;
}

typedef struct reads {
    const lb_program *p;
    speller *s;
    bool parameter;
} reads;

static void note_parameter(void *context, uint32_t value)
{
    reads *reads = context;
    reads->parameter |= value != LB_NONE && reads->p->values[value].flags & LB_VALUE_PARAMETER;
}

static void note_needed(void *context, uint32_t value)
{
    reads *reads = context;
    if (value != LB_NONE && !is_needed(reads->s, reads->p->values[value].storage))
        reads->s->needed[reads->s->n_needed++] = reads->p->values[value].storage;
}

/* Back through forward: what leads to an op that reads a parameter is the model's own. */
static void mark_tail(speller *speller)
{
    const lb_program *program = speller->join.p;
    for (uint32_t i = program->n_ops; i-- > 0;) {
        const lb_op *op = &program->ops[i];
        reads reads = {program, speller, false};
        if (op->phase != LB_PHASE_FORWARD || lb_op_is_source(program, op)) continue;
        lb_op_each_input(program, op, note_parameter, &reads);
        bool leads = reads.parameter;
        for (uint32_t k = 0; k < lb_op_outcomes(op) && !leads; k++) {
            const uint32_t v = lb_op_outcome(program, op, k);
            leads = v != LB_NONE && is_needed(speller, program->values[v].storage);
        }
        speller->tail[i] = !leads;
        if (leads) lb_op_each_input(program, op, note_needed, &reads);
    }
}

static bool spell(speller *speller, uint32_t at)
{
    lb_join *join = &speller->join;
    const lb_op op = join->p->ops[at];
    const uint32_t which = spelling_of(join->p, &op);
    if (which == SPELLINGS || !speller->spelled[which] || !speller->tail[at] || !lb_op_outcomes(&op)) return false;
    fused fused = {.j = join, .op = &op, .result = lb_op_outcome(join->p, &op, 0)};
    if (fused.result == LB_NONE || !(fused.args = malloc((op.args + 1) * sizeof *fused.args))) return false;
    memcpy(fused.args, lb_op_args(join->p, &op), op.args * sizeof *fused.args);
    lb_join_stand_at(join, at, 0);
    const bool done = SPELLED[which].spell(&fused);
    free(fused.args);
    return done;
}

static void write_all(speller *speller)
{
    lb_join *join = &speller->join;
    const uint32_t n = join->p->n_ops;
    for (uint32_t i = 0; i < n && !join->failed; i++) {
        join->new_of[i] = join->n_ops;
        if (speller->left_out && speller->left_out[i]) continue;
        if (!spell(speller, i)) lb_join_append(join, join->p->ops[i]);
    }
    join->new_of[n] = join->n_ops;
}

/* ---- what the program says of its optimizers ---- */

static bool copy_scalars(const lb_join *join, const lb_program *from)
{
    bool room = true;
    for (uint32_t i = 0; i < from->n_scalars && room; i++) {
        lb_scalar scalar = from->scalars[i];
        scalar.name = lb_program_string(join->p, lb_program_text(from, scalar.name)),
        scalar.op = join->new_of[scalar.op];
        room = scalar.name != LB_NONE && lb_program_add_scalar(join->p, &scalar) != LB_NONE;
    }
    return room;
}

/* Scalars and groups have the rows that they were recorded in. */
static bool copy_groups(const lb_join *join, const lb_program *from)
{
    bool room = true;
    for (uint32_t i = 0; i < from->n_group_params && room; i++) {
        lb_group_param param = from->group_params[i];
        param.name = lb_program_string(join->p, lb_program_text(from, param.name));
        param.storage = lb_program_view_storage(join->view, 0, param.storage);
        if (param.gradient >= 0) param.gradient = lb_program_view_storage(join->view, 0, param.gradient);
        room = param.name != LB_NONE && lb_program_add_group_param(join->p, &param) != LB_NONE;
    }
    for (uint32_t i = 0; i < from->n_groups && room; i++) {
        lb_group group = from->groups[i];
        const uint32_t end = join->new_of[group.first_op + group.ops];
        group.optimizer = lb_program_string(join->p, lb_program_text(from, group.optimizer));
        group.first_op = join->new_of[group.first_op], group.ops = end - group.first_op;
        room = group.optimizer != LB_NONE && lb_program_add_group(join->p, &group) != LB_NONE;
    }
    return room;
}

lb_status lb_spelled_out_view(lb_capture *capture, const lb_program *program, const lb_program *other,
                              const uint8_t *left_out, lb_program_view *view, lb_err *err)
{
    uint32_t mine[SPELLINGS] = {0}, others[SPELLINGS] = {0};
    speller speller = {.join = {.called = LB_NONE}, .left_out = left_out};
    bool any = left_out != NULL;
    count(program, mine), count(other, others);
    for (uint32_t i = 0; i < SPELLINGS; i++) any |= speller.spelled[i] = mine[i] && mine[i] != others[i];
    if (!any) return lb_program_view_init(capture, &program, 1, view, err);
    LB_TRY(lb_program_view_init_merged(capture, &program, 1, view, err));
    lb_join *join = &speller.join;
    join->view = view, join->p = view->merged;
    join->new_of = malloc(((size_t)join->p->n_ops + 1) * sizeof *join->new_of);
    speller.needed = malloc(((size_t)join->p->n_values + 1) * sizeof *speller.needed);
    speller.tail = calloc((size_t)join->p->n_ops + 1, sizeof *speller.tail);
    join->failed = !join->new_of || !speller.needed || !speller.tail;
    if (!join->failed) mark_tail(&speller), write_all(&speller);
    if (!join->failed) join->failed = !copy_scalars(join, program) || !copy_groups(join, program);
    if (!join->failed) lb_join_hand_over(join);
    free(join->ops), free(join->part_of), free(join->ranks), free(join->new_of), free(speller.needed),
        free(speller.tail);
    if (!join->failed) return LB_OK;
    lb_program_view_release(view);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for the ops of a step");
}
