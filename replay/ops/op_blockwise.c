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

static void run_number(const settings *s, number *n)
{
    const bool coupled = s->rule == MOMENTUM || s->rule == RMSPROP || s->rule == ADAGRAD;
    double g = n->g * s->scale, g_size = fabs(g), update = 0, update_size = 0;
    if (coupled) g_size += fabs(s->decay * n->p), g += s->decay * n->p;
    const double before = n->m, p = coupled ? n->p : n->p * (1 - s->lr * s->decay);
    const double rest = 1 - s->beta1;
    switch (s->rule) {
    case ADAM:
        n->m = s->beta1 * before + rest * g, n->m_size = fabs(s->beta1 * before) + fabs(rest * g);
        n->v = n->v_size = s->beta2 * n->v + (1 - s->beta2) * g * g;
        update = __builtin_sqrt(n->v) + s->eps * s->correction2;
        update_size = n->m_size / update * s->correction2 / s->correction1;
        update = n->m / update * s->correction2 / s->correction1;
        break;
    case MOMENTUM:
        n->m = s->first ? g : s->beta1 * before + g, n->m_size = (s->first ? 0 : fabs(s->beta1 * before)) + g_size;
        update = n->m, update_size = n->m_size;
        break;
    case LION:
        update = s->beta1 * before + rest * g, update_size = fabs(s->beta1 * before) + fabs(rest * g);
        n->m = s->beta2 * before + (1 - s->beta2) * g, n->m_size = fabs(s->beta2 * before) + fabs((1 - s->beta2) * g);
        update_size = fabs(update) > 0x1p-20 * update_size || update_size == 0 ? 1 : UNDETERMINED;
        update = (update > 0) - (update < 0);
        break;
    case RMSPROP:
    case ADAGRAD:
        n->m = s->rule == ADAGRAD ? before + g * g : s->beta1 * before + rest * g * g;
        n->m_size =
            s->rule == ADAGRAD ? fabs(before) + g_size * g_size : fabs(s->beta1 * before) + rest * g_size * g_size;
        update = g / (__builtin_sqrt(n->m) + s->eps);
        update_size = g_size / (__builtin_sqrt(n->m) + s->eps) * (n->m > 0 ? n->m_size / n->m : 1);
        break;
    default: break;
    }
    n->p = p - s->lr * update;
    n->p_size = fabs(p) + fabs(s->lr) * update_size;
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

static const lb_tensor *written(const update *u, int which)
{
    return u->at->written[which] ? lb_frame_arg_tensor(u->frame.call, u->at->written[which]) : NULL;
}

static bool read_settings(const lb_call *call, const places *at, settings *s)
{
    const double step = lb_frame_arg_float(call, at->step, 1);
    *s = (settings){.rule = call->args[0].tag == LB_OPERAND_STRING ? rule_of(call->args[0].string) : UNKNOWN,
                    .beta1 = lb_frame_arg_float(call, at->beta1, 0),
                    .beta2 = lb_frame_arg_float(call, at->beta1 + 1u, 0),
                    .eps = lb_frame_arg_float(call, at->eps, 0),
                    .decay = lb_frame_arg_float(call, at->decay, 0),
                    .lr = lb_frame_arg_float(call, at->lr, 0),
                    .scale = lb_frame_arg_float(call, at->scale, 1),
                    .first = step == 1};
    s->correction1 = 1 - lb_pow(s->beta1, step);
    s->correction2 = __builtin_sqrt(1 - lb_pow(s->beta2, step));
    return s->rule != UNKNOWN && !(at->most_norm && lb_frame_arg_float(call, at->most_norm, 0) > 0);
}

static void read_state(update *u, int which)
{
    state *s = &u->states[which];
    lb_frame *f = &u->frame;
    const lb_tensor *t = written(u, FIRST + which);
    if (!t) return;
    s->given = true;
    s->x = lb_frame_scratch(f, (size_t)(u->n + 1) * sizeof(double));
    s->size = lb_frame_scratch(f, (size_t)(u->n + 1) * sizeof(double));
    if (lb_tensor_numel(t) != u->n) lb_frame_fail(f, LB_ERR_UNSUPPORTED, "a state of another size");
    if (!u->at->coded) {
        const void *x = lb_frame_tensor(f, t);
        for (int64_t i = 0; lb_frame_ok(f) && i < u->n; i++) s->x[i] = lb_frame_get(f, x, i);
        return;
    }
    const lb_tensor *code = written(u, CODE_1 + which), *scales = written(u, SCALE_1 + which);
    if (!code || !scales || lb_tensor_numel(code) != CODES || lb_tensor_numel(scales) != (u->n + BLOCK - 1) / BLOCK) {
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "codes or scales of another size");
        return;
    }
    const void *numbers = lb_frame_tensor(f, code);
    const int64_t *q = lb_frame_integers(f, t);
    s->scales = lb_frame_tensor(f, scales);
    for (int k = 0; lb_frame_ok(f) && k < CODES; k++) s->code[k] = lb_frame_get(f, numbers, k);
    for (int64_t i = 0; lb_frame_ok(f) && i < u->n; i++) {
        const double x = s->code[q[i] & (CODES - 1)] * lb_frame_get(f, s->scales, i / BLOCK);
        s->x[i] = f->wide ? x : (double)(float)x;
    }
}

static const int64_t *recorded_codes(update *u, uint32_t result)
{
    const lb_call *call = u->frame.call;
    const lb_tensor *b = call->branch && result < call->n_results ? &call->branch[result] : NULL;
    return b && b->data && lb_tensor_numel(b) == u->n ? lb_frame_integers(&u->frame, b) : NULL;
}

/* Scales and codes of the new numbers. */
static void write_codes(update *u, int which, bool twin)
{
    state *s = &u->states[which];
    lb_frame *f = &u->frame;
    const int64_t blocks = (u->n + BLOCK - 1) / BLOCK;
    const int64_t *recorded = recorded_codes(u, u->result[FIRST + which]);
    int64_t *q = lb_frame_output_integers(f, u->result[FIRST + which], u->n);
    void *scales = lb_frame_output(f, u->result[SCALE_1 + which], blocks);
    for (int64_t b = 0; lb_frame_ok(f) && b < blocks; b++) {
        const int64_t first = b * BLOCK, end = first + BLOCK < u->n ? first + BLOCK : u->n;
        double largest = 0, size = 0;
        for (int64_t i = first; i < end; i++) largest = fmax(largest, fabs(s->x[i])), size = fmax(size, s->size[i]);
        lb_frame_set(f, scales, b, twin ? size : largest);
        for (int64_t i = first; i < end; i++)
            q[i] = code_of(s->code, largest > 0 ? s->x[i] / largest : 0,
                           SEARCH + (largest > 0 ? 0x1p-20 * size / largest : 0), recorded, i);
    }
}

static void write_state(update *u, int which, bool twin)
{
    state *s = &u->states[which];
    if (!s->given || !lb_frame_ok(&u->frame)) return;
    if (u->at->coded) {
        write_codes(u, which, twin);
        return;
    }
    void *y = lb_frame_output(&u->frame, u->result[FIRST + which], u->n);
    for (int64_t i = 0; lb_frame_ok(&u->frame) && i < u->n; i++)
        lb_frame_set(&u->frame, y, i, twin ? s->size[i] : s->x[i]);
}

/* Gradients and codes count as written, too, and stay as they are. */
static void write_unchanged(update *u, int which, bool twin)
{
    const lb_tensor *t = written(u, which);
    lb_frame *f = &u->frame;
    if (!t || !lb_frame_ok(f)) return;
    const int64_t n = lb_tensor_numel(t);
    const void *x = lb_frame_tensor(f, t);
    void *y = lb_frame_output(f, u->result[which], n);
    for (int64_t i = 0; lb_frame_ok(f) && i < n; i++) lb_frame_set(f, y, i, twin ? 0 : lb_frame_get(f, x, i));
}

static void run_all(update *u, const settings *s, const void *p, const void *g, void *y)
{
    state *m = &u->states[0], *v = &u->states[1];
    for (int64_t i = 0; lb_frame_ok(&u->frame) && i < u->n; i++) {
        number n = {.p = lb_frame_get(&u->frame, p, i), .g = lb_frame_get(&u->frame, g, i), .m = m->x[i]};
        if (v->given) n.v = v->x[i];
        run_number(s, &n);
        m->x[i] = n.m, m->size[i] = n.m_size;
        if (v->given) v->x[i] = n.v, v->size[i] = n.v_size;
        lb_frame_set(&u->frame, y, i, s->twin ? n.p_size : n.p);
    }
}

static lb_status optimizer_run(lb_call *call, const places *at, bool twin)
{
    update u = {.frame = lb_frame_begin(call), .at = at};
    settings s;
    uint32_t n_results = 0;
    for (int k = 0; k < 8; k++) u.result[k] = written(&u, k) ? n_results++ : UINT32_MAX;
    const lb_tensor *g = written(&u, G), *p = written(&u, P);
    if (call->cuda || !read_settings(call, at, &s) || n_results != call->n_results || !written(&u, FIRST) ||
        (s.rule == ADAM) != (written(&u, SECOND) != NULL) || lb_tensor_numel(g) != lb_tensor_numel(p)) {
        lb_frame_fail(&u.frame, LB_ERR_UNSUPPORTED, "a rule, a limit or a device that is not known here");
        return lb_frame_end(&u.frame);
    }
    s.twin = twin, u.n = lb_tensor_numel(p);
    const void *x = lb_frame_tensor(&u.frame, p), *dx = lb_frame_tensor(&u.frame, g);
    read_state(&u, 0), read_state(&u, 1);
    void *y = lb_frame_output(&u.frame, u.result[P], u.n);
    run_all(&u, &s, x, dx, y);
    write_state(&u, 0, twin), write_state(&u, 1, twin);
    write_unchanged(&u, G, twin);
    if (at->coded)
        write_unchanged(&u, CODE_1, twin), write_unchanged(&u, CODE_2, twin);
    else if (at->written[4] && lb_frame_arg_tensor(call, at->written[4]))
        write_unchanged(&u, 4, twin);
    return lb_frame_end(&u.frame);
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
