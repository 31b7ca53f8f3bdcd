/* A training loop in plain C that records itself: a perceptron with one hidden layer learns the sum of two of its
 * inputs.
 *
 *     train_in_c run.lb && lastbit ls run.lb && lastbit replay run.lb
 *
 * Every computation is followed by one call that says what it was, in the words of PyTorch's operators: that is all
 * that `lastbit replay` needs to run it again, also in another precision or order of summation. The products are summed
 * as lastbit's own are, in order of k with fused multiply-adds, so that the replay is equal to the last bit.
 */
#include <lastbit/capture.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 64, I = 4, H = 16, O = 1, STEPS = 8 }; /* batch, inputs, hidden units, outputs */

static lb_recorder *recorder;
static lb_place place; /* the layer that runs */

typedef struct matrix {
    float *data;
    int64_t rows, columns;
    bool transposed; /* a view: columns and rows are exchanged, the data is not */
} matrix;

static lb_host_tensor seen(matrix m)
{
    lb_host_tensor s = lb_host_tensor_of(m.data, LB_F32, 2, (int64_t[]){m.rows, m.columns});
    if (m.transposed) {
        s.layout.stride[0] = 1;
        s.layout.stride[1] = m.rows;
    }
    return s;
}

static float at(matrix m, int64_t r, int64_t c)
{
    return m.data[m.transposed ? c * m.rows + r : r * m.columns + c];
}

static matrix make(int64_t rows, int64_t columns)
{
    matrix m = {calloc((size_t)(rows * columns), sizeof(float)), rows, columns, false};
    if (!m.data) abort();
    return m;
}

/* Memory may be used again: the recorder must know that what comes there next is something else. */
static void drop(matrix m)
{
    lb_recorder_forget(recorder, seen(m).storage);
    free(m.data);
}

/* ---- one op: what it read goes in before it runs if it writes an argument, otherwise after ----------------------- */

static lb_recorded_operand tensor(const lb_host_tensor *s)
{
    return (lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = s};
}
static lb_recorded_operand number(double f)
{
    return (lb_recorded_operand){.tag = LB_ARG_FLOAT, .u.f = f};
}
static lb_recorded_operand integer(int64_t i)
{
    return (lb_recorded_operand){.tag = LB_ARG_INT, .u.i = i};
}

static lb_pending *begin(const char *name, lb_phase phase, uint32_t flags, const lb_recorded_operand *args, uint32_t n)
{
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = name;
    call.phase = phase;
    call.place = place;
    call.flags = flags;
    call.args = args;
    call.n_args = n;
    lb_recorder_op_begin(recorder, &call, &pending, NULL);
    return pending;
}

static void record(const char *name, lb_phase phase, const lb_recorded_operand *args, uint32_t n, matrix result)
{
    lb_host_tensor out = seen(result);
    lb_recorded_operand results[] = {tensor(&out)};
    lb_recorder_op_end(recorder, begin(name, phase, 0, args, n), results, 1, NULL, NULL);
}

/* ---- the arithmetic ---------------------------------------------------------------------------------------------- */

static matrix transpose(matrix m, lb_phase phase)
{
    matrix t = {m.data, m.columns, m.rows, !m.transposed};
    lb_host_tensor s = seen(m);
    record("aten::t", phase, (lb_recorded_operand[]){tensor(&s)}, 1, t);
    return t;
}

static matrix multiply(matrix a, matrix b, lb_phase phase)
{
    matrix c = make(a.rows, b.columns);
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < b.columns; j++)
            for (int64_t k = 0; k < a.columns; k++)
                c.data[i * c.columns + j] = fmaf(at(a, i, k), at(b, k, j), c.data[i * c.columns + j]);
    lb_host_tensor x = seen(a), y = seen(b);
    record("aten::mm", phase, (lb_recorded_operand[]){tensor(&x), tensor(&y)}, 2, c);
    return c;
}

static matrix relu(matrix m)
{
    matrix r = make(m.rows, m.columns);
    for (int64_t i = 0; i < m.rows * m.columns; i++) r.data[i] = m.data[i] > 0 ? m.data[i] : 0;
    lb_host_tensor x = seen(m);
    record("aten::relu", LB_PHASE_FORWARD, (lb_recorded_operand[]){tensor(&x)}, 1, r);
    return r;
}

static matrix relu_backward(matrix gradient, matrix output)
{
    matrix g = make(output.rows, output.columns);
    for (int64_t i = 0; i < g.rows * g.columns; i++) g.data[i] = output.data[i] > 0 ? gradient.data[i] : 0;
    lb_host_tensor x = seen(gradient), y = seen(output);
    record("aten::threshold_backward", LB_PHASE_BACKWARD, (lb_recorded_operand[]){tensor(&x), tensor(&y), integer(0)},
           3, g);
    return g;
}

static matrix difference(matrix a, matrix b)
{
    matrix d = make(a.rows, a.columns);
    for (int64_t i = 0; i < a.rows * a.columns; i++) d.data[i] = a.data[i] - b.data[i];
    lb_host_tensor x = seen(a), y = seen(b);
    record("aten::sub.Tensor", LB_PHASE_FORWARD, (lb_recorded_operand[]){tensor(&x), tensor(&y), integer(1)}, 3, d);
    return d;
}

/* m += factor * other */
static void add_to(matrix m, matrix other, double factor)
{
    lb_host_tensor x = seen(m), y = seen(other);
    lb_recorded_operand args[] = {tensor(&x), tensor(&y), number(factor)}, results[] = {tensor(&x)};
    args[0].flags = LB_OPERAND_WRITTEN;
    lb_pending *pending = begin("aten::add_.Tensor", LB_PHASE_OPTIMIZER, LB_OP_MUTABLE, args, 3);
    for (int64_t i = 0; i < m.rows * m.columns; i++) m.data[i] = fmaf((float)factor, other.data[i], m.data[i]);
    lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static matrix layer(const char *name, matrix input, matrix weight)
{
    lb_host_tensor x = seen(input);
    lb_recorder_enter(recorder, lb_recorder_scope(recorder, name, "Linear", 0), &x, 1, false, &place, NULL);
    matrix output = multiply(input, transpose(weight, LB_PHASE_FORWARD), LB_PHASE_FORWARD);
    lb_host_tensor y = seen(output);
    lb_recorder_leave(recorder, place, &y, 1, false, NULL);
    return output;
}

static double train(matrix first, matrix second, matrix x, matrix target)
{
    matrix hidden = layer("first", x, first), active = relu(hidden), y = layer("second", active, second);
    lb_place second_place = place, outside = {0, 0};
    place = outside;
    matrix error = difference(y, target);
    double loss = 0;
    for (int64_t i = 0; i < B; i++) loss += (double)error.data[i] * error.data[i] / 2 / B;

    /* The gradient of half the squared error is the error itself; its mean over the batch is in the learning rate. */
    place = second_place;
    matrix grad_second = multiply(transpose(error, LB_PHASE_BACKWARD), active, LB_PHASE_BACKWARD);
    matrix grad_active = multiply(error, second, LB_PHASE_BACKWARD);
    place = outside;
    matrix grad_hidden = relu_backward(grad_active, active);
    matrix grad_first = multiply(transpose(grad_hidden, LB_PHASE_BACKWARD), x, LB_PHASE_BACKWARD);
    add_to(second, grad_second, -0.05);
    add_to(first, grad_first, -0.05);
    matrix temporaries[] = {hidden, active, y, error, grad_second, grad_active, grad_hidden, grad_first};
    for (size_t i = 0; i < sizeof temporaries / sizeof *temporaries; i++) drop(temporaries[i]);
    return loss;
}

static matrix make_random(int64_t rows, int64_t columns, lb_source_kind kind, uint32_t flags, const char *name)
{
    matrix m = make(rows, columns);
    for (int64_t i = 0; i < rows * columns; i++) m.data[i] = (float)(rand() / (double)RAND_MAX - 0.5);
    lb_host_tensor s = seen(m);
    lb_recorder_role(recorder, &s, kind, flags, name, NULL);
    return m;
}

int main(int argc, char **argv)
{
    lb_err err = LB_ERR_INIT;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    if (argc != 2) {
        fprintf(stderr, "usage: train_in_c CAPTURE\n");
        return 129;
    }
    if (lb_recorder_open(argv[1], &options, &recorder, &err) != LB_OK) {
        fprintf(stderr, "train_in_c: %s\n", err.message);
        return 1;
    }
    matrix first = make_random(H, I, LB_SOURCE_PARAMETER, LB_VALUE_PARAMETER, "first.weight");
    matrix second = make_random(O, H, LB_SOURCE_PARAMETER, LB_VALUE_PARAMETER, "second.weight");
    for (int step = 0; step < STEPS; step++) {
        matrix x = make_random(B, I, LB_SOURCE_BATCH, LB_VALUE_INPUT, "input");
        matrix target = make_random(B, O, LB_SOURCE_BATCH, LB_VALUE_INPUT, "target");
        for (int64_t i = 0; i < B; i++) target.data[i] = x.data[I * i] + x.data[I * i + 1];
        lb_recorder_step_begin(recorder, step, NULL, NULL);
        double loss = train(first, second, x, target);
        lb_recorder_scalar(recorder, "loss", loss, NULL);
        lb_recorder_step_end(recorder, true, NULL);
        printf("step %d loss %.6f\n", step, loss);
        drop(x);
        drop(target);
    }
    drop(first);
    drop(second);
    /* Recording never harms its host: failures since the first were silent, and are told here. */
    if (lb_recorder_close(recorder, &err) != LB_OK) {
        fprintf(stderr, "train_in_c: %s\n", err.message);
        return 1;
    }
    return 0;
}
