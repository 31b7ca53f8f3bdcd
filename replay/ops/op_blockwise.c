/* bitsandbytes' optimizers on a CPU: states in f32, or in 8 bits with one scale to 256 numbers.
 *
 *      m = β1 m + (1 - β1) g        v = β2 v + (1 - β2) g²        p = (1 - lr λ) p - lr √(1 - β2^t) / (1 - β1^t) m /
 *                                   (√v + ε √(1 - β2^t))
 *
 * for adam and lamb, and as run_number has them for momentum, lars, lion, rmsprop and adagrad. A state of 8 bits is
 * code[q] scale; behind the update the scale is the block's largest magnitude, and q the nearest code. bitsandbytes
 * finds it in steps of 2^-16 (measured: no code is farther away than 2^-15 more than the nearest one), so that of two
 * codes which are that near either is right: the recorded one is taken (lb_call.branch). Limits on an update's norm and
 * AdEMAMix are left to others, and so is CUDA, where weight decay comes after the update. Source:
 * bitsandbytes/backends/cpu/ops.py. */
#include "functions/elementary.h"
#include "kernel/frame.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256, CODES = 256 };
#define SEARCH 0x1p-15
#define UNDETERMINED 0x1p128 /* where rounding decides a sign nothing is said */

typedef enum rule { ADAM, MOMENTUM, LION, RMSPROP, ADAGRAD, UNKNOWN } rule;

static rule rule_of(const char *name)
{
    static const struct {
        const char *name;
        rule rule;
    } known[] = {{"adam", ADAM}, {"lamb", ADAM},       {"momentum", MOMENTUM}, {"lars", MOMENTUM},
                 {"lion", LION}, {"rmsprop", RMSPROP}, {"adagrad", ADAGRAD}};
    for (size_t i = 0; name && i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name)) return known[i].rule;
    return UNKNOWN;
}

/* Where the args stand; of what is written, in this order, the results are. 0: there is none. */
typedef struct places {
    uint8_t written[8];
    uint8_t beta1, eps, decay, step, lr, scale, most_norm;
    bool coded;
} places;
enum { G, P, FIRST, SECOND, CODE_1, CODE_2, SCALE_1, SCALE_2 };

static const places plain = {{1, 2, 3, 4, 5}, .beta1 = 8, .eps = 12,   .decay = 13,
                             .step = 14,      .lr = 15,   .scale = 16, .most_norm = 6};
static const places coded = {
    {1, 2, 3, 4, 12, 13, 14, 15}, .beta1 = 5, .eps = 9, .step = 10, .lr = 11, .decay = 16, .scale = 17, .coded = true};

typedef struct settings {
    rule rule;
    double beta1, beta2, eps, decay, lr, scale, correction1, correction2;
    bool first, twin;
} settings;

/* One number: parameter, gradient and states, new values in their place; of each the magnitudes that were added up. */
typedef struct number {
    double p, g, m, v;
    double p_size, m_size, v_size;
} number;

static void run_number(const settings *settings, number *number)
{
    const bool coupled = settings->rule == MOMENTUM || settings->rule == RMSPROP || settings->rule == ADAGRAD;
    double g = number->g * settings->scale, g_size = fabs(g), update = 0, update_size = 0;
    if (coupled) g_size += fabs(settings->decay * number->p), g += settings->decay * number->p;
    const double before = number->m, p = coupled ? number->p : number->p * (1 - settings->lr * settings->decay);
    const double rest = 1 - settings->beta1;
    switch (settings->rule) {
    case ADAM:
        number->m = settings->beta1 * before + rest * g,
        number->m_size = fabs(settings->beta1 * before) + fabs(rest * g);
        number->v = number->v_size = settings->beta2 * number->v + (1 - settings->beta2) * g * g;
        update = __builtin_sqrt(number->v) + settings->eps * settings->correction2;
        update_size = number->m_size / update * settings->correction2 / settings->correction1;
        update = number->m / update * settings->correction2 / settings->correction1;
        break;
    case MOMENTUM:
        number->m = settings->first ? g : settings->beta1 * before + g,
        number->m_size = (settings->first ? 0 : fabs(settings->beta1 * before)) + g_size;
        update = number->m, update_size = number->m_size;
        break;
    case LION:
        update = settings->beta1 * before + rest * g, update_size = fabs(settings->beta1 * before) + fabs(rest * g);
        number->m = settings->beta2 * before + (1 - settings->beta2) * g,
        number->m_size = fabs(settings->beta2 * before) + fabs((1 - settings->beta2) * g);
        update_size = fabs(update) > 0x1p-20 * update_size || update_size == 0 ? 1 : UNDETERMINED;
        update = (update > 0) - (update < 0);
        break;
    case RMSPROP:
    case ADAGRAD:
        number->m = settings->rule == ADAGRAD ? before + g * g : settings->beta1 * before + rest * g * g;
        number->m_size = settings->rule == ADAGRAD ? fabs(before) + g_size * g_size
                                                   : fabs(settings->beta1 * before) + rest * g_size * g_size;
        update = g / (__builtin_sqrt(number->m) + settings->eps);
        update_size =
            g_size / (__builtin_sqrt(number->m) + settings->eps) * (number->m > 0 ? number->m_size / number->m : 1);
        break;
    default: break;
    }
    number->p = p - settings->lr * update;
    number->p_size = fabs(p) + fabs(settings->lr) * update_size;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

static int nearest(const double *code, double x)
{
    int best = 0;
    for (int k = 1; k < CODES; k++)
        if (fabs(code[k] - x) < fabs(code[best] - x)) best = k;
    return best;
}

/* The recorded code where it is as near as the nearest but for rounding of the number. */
static int code_of(const double *code, double x, double doubt, const int64_t *recorded, int64_t i)
{
    const int best = nearest(code, x);
    if (!recorded || recorded[i] < 0 || recorded[i] >= CODES) return best;
    return fabs(code[recorded[i]] - x) <= fabs(code[best] - x) + doubt ? (int)recorded[i] : best;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

typedef struct state {
    double *x, *size; /* numbers, and the magnitudes that were added up */
    double code[CODES];
    const void *scales;
    bool given;
} state;

typedef struct update {
    lb_frame frame;
    const places *at;
    int64_t n;
    uint32_t result[8]; /* of each written arg; UINT32_MAX: it is none */
    state states[2];
} update;

static const lb_tensor *written(const update *update, int which)
{
    return update->at->written[which] ? lb_frame_arg_tensor(update->frame.call, update->at->written[which]) : NULL;
}

static bool read_settings(const lb_call *call, const places *at, settings *read)
{
    const double step = lb_frame_arg_float(call, at->step, 1);
    *read = (settings){.rule = call->args[0].tag == LB_OPERAND_STRING ? rule_of(call->args[0].string) : UNKNOWN,
                       .beta1 = lb_frame_arg_float(call, at->beta1, 0),
                       .beta2 = lb_frame_arg_float(call, at->beta1 + 1u, 0),
                       .eps = lb_frame_arg_float(call, at->eps, 0),
                       .decay = lb_frame_arg_float(call, at->decay, 0),
                       .lr = lb_frame_arg_float(call, at->lr, 0),
                       .scale = lb_frame_arg_float(call, at->scale, 1),
                       .first = step == 1};
    read->correction1 = 1 - lb_pow(read->beta1, step);
    read->correction2 = __builtin_sqrt(1 - lb_pow(read->beta2, step));
    return read->rule != UNKNOWN && !(at->most_norm && lb_frame_arg_float(call, at->most_norm, 0) > 0);
}

static void read_state(update *update, int which)
{
    state *state = &update->states[which];
    lb_frame *frame = &update->frame;
    const lb_tensor *tensor = written(update, FIRST + which);
    if (!tensor) return;
    state->given = true;
    state->x = lb_frame_scratch(frame, (size_t)(update->n + 1) * sizeof(double));
    state->size = lb_frame_scratch(frame, (size_t)(update->n + 1) * sizeof(double));
    if (lb_tensor_numel(tensor) != update->n) lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "a state of another size");
    if (!update->at->coded) {
        const void *x = lb_frame_tensor(frame, tensor);
        for (int64_t i = 0; lb_frame_ok(frame) && i < update->n; i++) state->x[i] = lb_frame_get(frame, x, i);
        return;
    }
    const lb_tensor *code = written(update, CODE_1 + which), *scales = written(update, SCALE_1 + which);
    if (!code || !scales || lb_tensor_numel(code) != CODES ||
        lb_tensor_numel(scales) != (update->n + BLOCK - 1) / BLOCK) {
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "codes or scales of another size");
        return;
    }
    const void *numbers = lb_frame_tensor(frame, code);
    const int64_t *q = lb_frame_integers(frame, tensor);
    state->scales = lb_frame_tensor(frame, scales);
    for (int k = 0; lb_frame_ok(frame) && k < CODES; k++) state->code[k] = lb_frame_get(frame, numbers, k);
    for (int64_t i = 0; lb_frame_ok(frame) && i < update->n; i++) {
        const double x = state->code[q[i] & (CODES - 1)] * lb_frame_get(frame, state->scales, i / BLOCK);
        state->x[i] = frame->wide ? x : (double)(float)x;
    }
}

static const int64_t *recorded_codes(update *update, uint32_t result)
{
    const lb_call *call = update->frame.call;
    const lb_tensor *b = call->branch && result < call->n_results ? &call->branch[result] : NULL;
    return b && b->data && lb_tensor_numel(b) == update->n ? lb_frame_integers(&update->frame, b) : NULL;
}

/* Scales and codes of the new numbers. */
static void write_codes(update *update, int which, bool twin)
{
    state *state = &update->states[which];
    lb_frame *frame = &update->frame;
    const int64_t blocks = (update->n + BLOCK - 1) / BLOCK;
    const int64_t *recorded = recorded_codes(update, update->result[FIRST + which]);
    int64_t *q = lb_frame_output_integers(frame, update->result[FIRST + which], update->n);
    void *scales = lb_frame_output(frame, update->result[SCALE_1 + which], blocks);
    for (int64_t b = 0; lb_frame_ok(frame) && b < blocks; b++) {
        const int64_t first = b * BLOCK, end = first + BLOCK < update->n ? first + BLOCK : update->n;
        double largest = 0, size = 0;
        for (int64_t i = first; i < end; i++)
            largest = fmax(largest, fabs(state->x[i])), size = fmax(size, state->size[i]);
        lb_frame_set(frame, scales, b, twin ? size : largest);
        for (int64_t i = first; i < end; i++)
            q[i] = code_of(state->code, largest > 0 ? state->x[i] / largest : 0,
                           SEARCH + (largest > 0 ? 0x1p-20 * size / largest : 0), recorded, i);
    }
}

static void write_state(update *update, int which, bool twin)
{
    state *state = &update->states[which];
    if (!state->given || !lb_frame_ok(&update->frame)) return;
    if (update->at->coded) {
        write_codes(update, which, twin);
        return;
    }
    void *y = lb_frame_output(&update->frame, update->result[FIRST + which], update->n);
    for (int64_t i = 0; lb_frame_ok(&update->frame) && i < update->n; i++)
        lb_frame_set(&update->frame, y, i, twin ? state->size[i] : state->x[i]);
}

/* Gradients and codes count as written, too, and stay as they are. */
static void write_unchanged(update *update, int which, bool twin)
{
    const lb_tensor *tensor = written(update, which);
    lb_frame *frame = &update->frame;
    if (!tensor || !lb_frame_ok(frame)) return;
    const int64_t n = lb_tensor_numel(tensor);
    const void *x = lb_frame_tensor(frame, tensor);
    void *y = lb_frame_output(frame, update->result[which], n);
    for (int64_t i = 0; lb_frame_ok(frame) && i < n; i++)
        lb_frame_set(frame, y, i, twin ? 0 : lb_frame_get(frame, x, i));
}

static void run_all(update *update, const settings *settings, const void *p, const void *g, void *y)
{
    state *m = &update->states[0], *v = &update->states[1];
    for (int64_t i = 0; lb_frame_ok(&update->frame) && i < update->n; i++) {
        number number = {
            .p = lb_frame_get(&update->frame, p, i), .g = lb_frame_get(&update->frame, g, i), .m = m->x[i]};
        if (v->given) number.v = v->x[i];
        run_number(settings, &number);
        m->x[i] = number.m, m->size[i] = number.m_size;
        if (v->given) v->x[i] = number.v, v->size[i] = number.v_size;
        lb_frame_set(&update->frame, y, i, settings->twin ? number.p_size : number.p);
    }
}

static lb_status optimizer_run(lb_call *call, const places *at, bool twin)
{
    update update = {.frame = lb_frame_begin(call), .at = at};
    settings settings;
    uint32_t n_results = 0;
    for (int k = 0; k < 8; k++) update.result[k] = written(&update, k) ? n_results++ : UINT32_MAX;
    const lb_tensor *g = written(&update, G), *p = written(&update, P);
    if (call->cuda || !read_settings(call, at, &settings) || n_results != call->n_results || !written(&update, FIRST) ||
        (settings.rule == ADAM) != (written(&update, SECOND) != NULL) || lb_tensor_numel(g) != lb_tensor_numel(p)) {
        lb_frame_fail(&update.frame, LB_ERR_UNSUPPORTED, "a rule, a limit or a device that is not known here");
        return lb_frame_end(&update.frame);
    }
    settings.twin = twin, update.n = lb_tensor_numel(p);
    const void *x = lb_frame_tensor(&update.frame, p), *dx = lb_frame_tensor(&update.frame, g);
    read_state(&update, 0), read_state(&update, 1);
    void *y = lb_frame_output(&update.frame, update.result[P], update.n);
    run_all(&update, &settings, x, dx, y);
    write_state(&update, 0, twin), write_state(&update, 1, twin);
    write_unchanged(&update, G, twin);
    if (at->coded)
        write_unchanged(&update, CODE_1, twin), write_unchanged(&update, CODE_2, twin);
    else if (at->written[4] && lb_frame_arg_tensor(call, at->written[4]))
        write_unchanged(&update, 4, twin);
    return lb_frame_end(&update.frame);
}

LB_WITH_TWIN(plain, optimizer_run(call, &plain, twin))
LB_WITH_TWIN(coded, optimizer_run(call, &coded, twin))

const lb_op_row lb_rows_blockwise[] = {
    {.name = "bitsandbytes::optimizer_update_32bit",
     .args = "optimizer_name g! p! state1! state2 unorm_vec max_unorm param_norm beta1 beta2 beta3 alpha eps "
             "weight_decay step "
             "lr gnorm_scale skip_zeros",
     LB_COMPUTED_BY(plain),
     .roundings = 16,
     .flags = LB_ROW_WRITES,
     .samples = "custom"},
    {.name = "bitsandbytes::optimizer_update_8bit_blockwise",
     .args = "optimizer_name g! p! state1! state2 beta1 beta2 beta3 alpha eps step lr qmap1! qmap2 absmax1! absmax2 "
             "weight_decay gnorm_scale skip_zeros",
     LB_COMPUTED_BY(coded),
     .roundings = 16,
     .flags = LB_ROW_WRITES | LB_ROW_COMPLETES,
     .samples = "custom"},
    {NULL},
};
