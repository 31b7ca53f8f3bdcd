/* Fused selective scans: h_t = exp(e_t) h_{t-1} + (dt_t u_t) B_t and y_t = C_t h_t, per head, channel and state.
 *
 *      sequential                  step by step
 *      blocks:THREADSxITEMS        pairs (a, b) under (a, b) then (c, d) = (c a, c b + d): ITEMS one after the other in
 *                                  every thread, Kogge-Stone over the 32 threads of a warp, warps one after the other,
 *                                  blocks one after the other
 *      chunked:SIZE                inside a chunk all pairs of steps, sum over s of (C_t B_s) exp(c_t - c_s) dt u_s
 *                                  with c the running sum of e; and (C_t S) exp(c_t) from the state S before the chunk,
 *                                  S' = exp(c_last) S + sum exp(c_last - c_s) dt u_s B_s
 *
 * e may also be dt A, and S u be added to y, each product rounded. Sums over states and steps are sequential, from the
 * first. In f64 every kernel is the recurrence. Where: blocks is cub's BlockScan with warp scans, as state-spaces/mamba
 * csrc/selective_scan/selective_scan_fwd_kernel.cuh uses it; chunked is "state space duality", Dao and Gu 2024
 * (arXiv:2405.21060, section 6), as mamba_ssm/ops/triton/ssd_combined.py cuts it. */
#include "functions/elementary.h"
#include "fused/fused.h"

#include <math.h>
#include <string.h>

enum { SEQUENTIAL, BLOCKS, CHUNKED, WARP = 32 };

typedef struct kernel {
    int form;
    int64_t threads, items, chunk;
    lb_dtype state; /* what the state is rounded to after every step, or between chunks; 0: not */
    bool fma, read_t, pairs_t;
} kernel;

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded ops"},
    {"sequential", "sequential", "the recurrence, step by step: decoding, and Hugging Face's slow path of Mamba"},
    {"blocks", "blocks:THREADSxITEMS", "a parallel scan by blocks: mamba_ssm's selective_scan_fwd"},
    {"chunked", "chunked:SIZE",
     "pairs inside chunks, states between them: Mamba-2's chunked scan; one scalar decay per head"},
    {NULL, NULL, NULL}};
#define OPTIONS                                                                                                        \
    "state:f32|bf16|f16 (what the state is kept in), fma:off|on, read:f32|t (t: the state is rounded to the "          \
    "type of C before it meets it), pairs:f32|t (chunked: pairs rounded before they meet u)"

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    int64_t n[2];
    *k = (kernel){.form = !strcmp(text->name, "blocks")    ? BLOCKS
                          : !strcmp(text->name, "chunked") ? CHUNKED
                                                           : SEQUENTIAL};
    const int state = lb_fused_text_choice(text, "state", "f32|bf16|f16", 0),
              fma = lb_fused_text_choice(text, "fma", "off|on", 0),
              read = lb_fused_text_choice(text, "read", "f32|t", 0),
              pairs = lb_fused_text_choice(text, "pairs", "f32|t", 0);
    bool known = state >= 0 && fma >= 0 && read >= 0 && pairs >= 0;
    if (k->form == BLOCKS) {
        known &=
            lb_fused_text_numbers(text->parameters, n, 2) == 2 && n[0] >= 1 && n[0] <= 1024 && n[1] >= 1 && n[1] <= 64;
        if (known) k->threads = n[0], k->items = n[1];
        known = known && lb_fused_text_keys(text, "fma read");
    } else if (k->form == CHUNKED) {
        known &= lb_fused_text_numbers(text->parameters, n, 1) == 1 && n[0] >= 1 && n[0] <= 4096;
        if (known) k->chunk = n[0];
        known = known && lb_fused_text_keys(text, "state fma pairs");
    } else {
        known = known && !strcmp(text->name, "sequential") && !*text->parameters &&
                lb_fused_text_keys(text, "state fma read");
    }
    k->state = state == 1 ? LB_BF16 : state == 2 ? LB_F16 : LB_NO_DTYPE;
    k->fma = fma == 1, k->read_t = read == 1, k->pairs_t = pairs == 1;
    return known;
}
/* ---- one head of one sample -------------------------------------------------------------------------------------- */

/* Dimensions: batch, heads, time, size (of u), states. */
typedef struct work {
    lb_frame frame;
    kernel kernel;
    lb_dtype narrow;                                       /* type of C where it has 16 bits */
    int64_t batch, heads, time, size, states, groups, out; /* out: time of the result */
    bool time_first, turned, driven, per_state, twin;
    const void *e, *u, *b, *c, *dt, *rate, *skip; /* rate: A, which e is to be multiplied with */
    void *y;
    float *decay, *x, *bs, *cs, *ys; /* of a head: (time[, states]), (time, size), (time, states) twice, (time, size) */
    float *h, *a, *add;              /* (states), or pairs of a chain */
    double *state, scale;            /* f64; scale: of the twin */
} work;

static double get(const work *w, const void *x, int64_t i)
{
    return lb_frame_get(&w->frame, x, i);
}

/* Element (b, h, t) of something with `heads` heads. */
static int64_t place(const work *w, int64_t heads, int64_t time, int64_t b, int64_t h, int64_t t)
{
    return w->time_first ? (b * time + t) * heads + h : (b * heads + h) * time + t;
}

static double b_at(const work *w, const void *x, bool turned, int64_t b, int64_t h, int64_t t, int64_t n)
{
    const int64_t g = h / (w->heads / w->groups);
    if (turned) return get(w, x, ((b * w->groups + g) * w->states + n) * w->time + t);
    return get(w, x, place(w, w->groups, w->time, b, g, t) * w->states + n);
}

static double multiplied(const work *w, double x, double y)
{
    return w->frame.wide ? x * y : (double)((float)x * (float)y);
}

static double exponent_at(const work *w, int64_t b, int64_t h, int64_t t, int64_t n)
{
    const int64_t i = place(w, w->heads, w->time, b, h, t);
    if (w->rate) return multiplied(w, get(w, w->e, i), get(w, w->rate, h * w->states + n));
    return get(w, w->e, w->per_state ? i * w->states + n : i);
}

/* dt u, or dt B u of a state. */
static double x_at(const work *w, int64_t b, int64_t h, int64_t t, int64_t p)
{
    const int64_t i = place(w, w->heads, w->time, b, h, t);
    const double u = get(w, w->u, i * (w->driven ? w->states : w->size) + p);
    return w->dt ? multiplied(w, get(w, w->dt, i), u) : u;
}

/* What goes past the state. */
static double skipped_at(const work *w, int64_t b, int64_t h, int64_t t, int64_t p)
{
    return multiplied(w, get(w, w->skip, h), get(w, w->u, place(w, w->heads, w->time, b, h, t) * w->size + p));
}

/* ---- f32 --------------------------------------------------------------------------------------------------------- */

static void load_head(const work *w, int64_t b, int64_t h)
{
    const int64_t each = w->per_state ? w->states : 1, wide = w->driven ? w->states : w->size;
    for (int64_t t = 0; t < w->time; t++) {
        for (int64_t n = 0; n < each; n++) w->decay[t * each + n] = (float)exponent_at(w, b, h, t, n);
        for (int64_t p = 0; p < wide; p++) w->x[t * wide + p] = (float)x_at(w, b, h, t, p);
        for (int64_t n = 0; n < w->states; n++) {
            if (!w->driven) w->bs[t * w->states + n] = (float)b_at(w, w->b, w->turned, b, h, t, n);
            w->cs[t * w->states + n] = (float)b_at(w, w->c, false, b, h, t, n);
        }
    }
}

static float times_plus(const work *w, float a, float b, float c)
{
    return w->kernel.fma ? fmaf(a, b, c) : a * b + c;
}

static float driven_by(const work *w, int64_t t, int64_t p, int64_t n)
{
    return w->driven ? w->x[t * w->states + n] : w->x[t * w->size + p] * w->bs[t * w->states + n];
}

static void sequential(const work *w, int64_t p)
{
    for (int64_t n = 0; n < w->states; n++) w->h[n] = 0;
    for (int64_t t = 0; t < w->time; t++) {
        float y = 0;
        for (int64_t n = 0; n < w->states; n++) {
            const float a = w->decay[w->per_state ? t * w->states + n : t];
            w->h[n] = lb_fused_rounded(times_plus(w, a, w->h[n], driven_by(w, t, p, n)), w->kernel.state);
            const float h = w->kernel.read_t ? lb_fused_rounded(w->h[n], w->narrow) : w->h[n];
            y = times_plus(w, w->cs[t * w->states + n], h, y);
        }
        w->ys[t * w->size + p] = y;
    }
}

typedef struct link {
    float a, b;
} link;

static link then(const work *w, link first, link second)
{
    return (link){second.a * first.a, times_plus(w, second.a, first.b, second.b)};
}

/* One block of a chain: items [0, threads * items) of a and add, those beyond `n` being (1, 0); add becomes the
 * states. */
static link scan_block(const work *w, float *a, float *add, int64_t n, link before)
{
    link sums[1024], total = {1, 0};
    const int64_t items = w->kernel.items;
    for (int64_t k = 0; k < w->kernel.threads; k++) {
        link s = k * items < n ? (link){a[k * items], add[k * items]} : (link){1, 0};
        for (int64_t i = k * items + 1; i < (k + 1) * items; i++)
            s = then(w, s, i < n ? (link){a[i], add[i]} : (link){1, 0});
        sums[k] = s;
    }
    for (int64_t first = 0; first < w->kernel.threads; first += WARP) {
        const int64_t lanes = w->kernel.threads - first < WARP ? w->kernel.threads - first : WARP;
        for (int64_t d = 1; d < lanes; d *= 2)
            for (int64_t lane = lanes - 1; lane >= d; lane--)
                sums[first + lane] = then(w, sums[first + lane - d], sums[first + lane]);
        for (int64_t lane = 0; lane < lanes; lane++) {
            link s = before;
            if (lane && first)
                s = then(w, before, then(w, total, sums[first + lane - 1]));
            else if (lane)
                s = then(w, before, sums[first + lane - 1]);
            else if (first)
                s = then(w, before, total);
            for (int64_t i = (first + lane) * items; i < (first + lane + 1) * items && i < n; i++) {
                s = then(w, s, (link){a[i], add[i]});
                add[i] = s.b;
            }
        }
        total = first ? then(w, total, sums[first + lanes - 1]) : sums[first + lanes - 1];
    }
    return then(w, before, total);
}

static void blocks(const work *w, int64_t p)
{
    const int64_t size = w->kernel.threads * w->kernel.items;
    for (int64_t t = 0; t < w->time; t++) w->ys[t * w->size + p] = 0;
    for (int64_t n = 0; n < w->states; n++) {
        link state = {1, 0};
        for (int64_t t = 0; t < w->time; t++)
            w->a[t] = w->decay[w->per_state ? t * w->states + n : t], w->add[t] = driven_by(w, t, p, n);
        for (int64_t t = 0; t < w->time; t += size)
            state = scan_block(w, w->a + t, w->add + t, w->time - t < size ? w->time - t : size, state);
        for (int64_t t = 0; t < w->time; t++) {
            const float h = w->kernel.read_t ? lb_fused_rounded(w->add[t], w->narrow) : w->add[t];
            w->ys[t * w->size + p] = times_plus(w, w->cs[t * w->states + n], h, w->ys[t * w->size + p]);
        }
    }
}

static float exp_f32(float x)
{
    lb_exp_f32(&x, &x, 1);
    return x;
}

/* Of all of u at once; w->decay has the exponents, w->a becomes their running sums, w->h is (size, states). */
static void chunked(const work *w)
{
    memset(w->h, 0, (size_t)(w->size * w->states) * sizeof *w->h);
    for (int64_t first = 0; first < w->time; first += w->kernel.chunk) {
        const int64_t end = first + w->kernel.chunk < w->time ? first + w->kernel.chunk : w->time;
        for (int64_t t = first; t < end; t++) w->a[t] = (t > first ? w->a[t - 1] : 0) + w->decay[t];
        for (int64_t t = first; t < end; t++) {
            float *y = w->ys + t * w->size;
            const float *c = w->cs + t * w->states;
            memset(y, 0, (size_t)w->size * sizeof *y);
            for (int64_t s = first; s <= t; s++) {
                float pair = 0;
                for (int64_t n = 0; n < w->states; n++) pair = times_plus(w, c[n], w->bs[s * w->states + n], pair);
                pair *= exp_f32(w->a[t] - w->a[s]);
                if (w->kernel.pairs_t) pair = lb_fused_rounded(pair, w->narrow);
                for (int64_t p = 0; p < w->size; p++) y[p] = times_plus(w, pair, w->x[s * w->size + p], y[p]);
            }
            const float decay = exp_f32(w->a[t]);
            for (int64_t p = 0; p < w->size && first; p++) {
                float from_state = 0;
                for (int64_t n = 0; n < w->states; n++)
                    from_state = times_plus(w, c[n], w->h[p * w->states + n], from_state);
                y[p] += from_state * decay;
            }
        }
        const float last = w->a[end - 1], decay = exp_f32(last);
        for (int64_t s = first; s < end; s++) w->add[s] = exp_f32(last - w->a[s]);
        for (int64_t i = 0; i < w->size * w->states; i++) {
            const int64_t p = i / w->states, n = i % w->states;
            float sum = 0;
            for (int64_t s = first; s < end; s++)
                sum = times_plus(w, w->x[s * w->size + p], w->bs[s * w->states + n] * w->add[s], sum);
            w->h[i] = lb_fused_rounded(times_plus(w, decay, w->h[i], sum), w->kernel.state);
        }
    }
}

static void head_f32(const work *w, int64_t b, int64_t h)
{
    load_head(w, b, h);
    if (w->kernel.form != CHUNKED) lb_exp_f32(w->decay, w->decay, (size_t)(w->time * (w->per_state ? w->states : 1)));
    if (w->kernel.form == CHUNKED) chunked(w);
    for (int64_t p = 0; p < w->size && w->kernel.form != CHUNKED; p++)
        if (w->kernel.form == BLOCKS)
            blocks(w, p);
        else
            sequential(w, p);
    for (int64_t t = 0; t < w->time; t++)
        for (int64_t p = 0; p < w->size; p++) {
            float y = w->ys[t * w->size + p];
            if (w->skip) y += (float)skipped_at(w, b, h, t, p);
            lb_frame_set(&w->frame, w->y, place(w, w->heads, w->out, b, h, t) * w->size + p, y);
        }
}

/* ---- f64 --------------------------------------------------------------------------------------------------------- */

/* The twin adds magnitudes up; running sums of exponents are off by what all of them come to. */
static void head_f64(const work *w, int64_t b, int64_t h)
{
    double all = 0;
    for (int64_t i = 0; i < w->size * w->states; i++) w->state[i] = 0;
    for (int64_t t = 0; t < w->time; t++) {
        double steepest = 0;
        for (int64_t n = 0; n < (w->per_state ? w->states : 1); n++)
            steepest = fmax(steepest, fabs(exponent_at(w, b, h, t, n)));
        all += steepest;
        for (int64_t p = 0; p < w->size; p++) {
            double y = 0;
            for (int64_t n = 0; n < w->states; n++) {
                const double drive = w->driven ? x_at(w, b, h, t, n)
                                               : x_at(w, b, h, t, p) * b_at(w, w->b, w->turned, b, h, t, n),
                             c = b_at(w, w->c, false, b, h, t, n);
                double *state = &w->state[p * w->states + n];
                *state =
                    lb_exp(exponent_at(w, b, h, t, w->per_state ? n : 0)) * *state + (w->twin ? fabs(drive) : drive);
                y += w->twin ? fabs(c) * *state : c * *state;
            }
            if (w->skip) y += w->twin ? fabs(skipped_at(w, b, h, t, p)) : skipped_at(w, b, h, t, p);
            if (w->twin) y *= w->scale + all * (double)(4 + (w->kernel.form == CHUNKED ? w->kernel.chunk : 0));
            lb_frame_set(&w->frame, w->y, place(w, w->heads, w->out, b, h, t) * w->size + p, y);
        }
    }
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static int64_t dim(const lb_tensor *t, int d)
{
    return t->layout.shape[d];
}

/* False: shapes that do not belong together. */
static bool measure(work *w, const lb_call *call)
{
    const lb_tensor *e = lb_fused_input(call, LB_SCAN_EXPONENT), *u = lb_fused_input(call, LB_SCAN_U),
                    *b = lb_fused_input(call, LB_SCAN_B), *c = lb_fused_input(call, LB_SCAN_C),
                    *dt = lb_fused_input(call, LB_SCAN_DT), *a = lb_fused_input(call, LB_SCAN_A),
                    *skip = lb_fused_input(call, LB_SCAN_SKIP);
    const int64_t flags = lb_fused_flags(call);
    w->time_first = flags & LB_SCAN_TIME_FIRST, w->turned = flags & LB_SCAN_TURNED, w->driven = flags & LB_SCAN_DRIVEN;
    if (!e || !u || !c || !b != w->driven || (w->driven && skip) || !c->layout.ndim) return false;
    if (e->layout.ndim != 3 && (e->layout.ndim != 4 || a)) return false;
    w->per_state = a || e->layout.ndim == 4;
    w->batch = dim(e, 0), w->heads = dim(e, w->time_first ? 2 : 1), w->time = dim(e, w->time_first ? 1 : 2);
    w->states = dim(c, c->layout.ndim - 1);
    const int64_t rows = w->batch * w->heads * w->time, each = w->batch * w->time * w->states;
    if (rows < 1 || each < 1 || (e->layout.ndim == 4 && dim(e, 3) != w->states)) return false;
    w->size = w->driven ? 1 : lb_tensor_numel(u) / rows;
    if (w->size < 1 || (a && lb_tensor_numel(a) != w->heads * w->states) || (skip && lb_tensor_numel(skip) != w->heads))
        return false;
    w->groups = lb_tensor_numel(c) / each;
    w->out = lb_tensor_numel(&call->results[0]) / (w->batch * w->heads * w->size);
    return lb_tensor_numel(u) == rows * (w->driven ? w->states : w->size) && w->groups >= 1 &&
           w->heads % w->groups == 0 && lb_tensor_numel(c) == w->groups * each &&
           (!b || lb_tensor_numel(b) == w->groups * each) && (!dt || lb_tensor_numel(dt) == rows) &&
           w->out >= w->time && lb_tensor_numel(&call->results[0]) == w->batch * w->heads * w->out * w->size;
}

static void take_room(work *w)
{
    lb_frame *f = &w->frame;
    const size_t time = (size_t)w->time, states = (size_t)w->states, size = (size_t)w->size, real = sizeof(float);
    w->state = lb_frame_scratch(f, size * states * sizeof *w->state);
    w->decay = lb_frame_scratch(f, time * states * real), w->bs = lb_frame_scratch(f, time * states * real);
    w->cs = lb_frame_scratch(f, time * states * real),
    w->x = lb_frame_scratch(f, time * (size > states ? size : states) * real);
    w->ys = lb_frame_scratch(f, time * size * real), w->h = lb_frame_scratch(f, size * states * real);
    w->a = lb_frame_scratch(f, time * real), w->add = lb_frame_scratch(f, time * real);
}

static double twin_scale(const work *w, const lb_call *call)
{
    const double roundings =
        16 + 4 * (double)w->time + 2 * (double)w->states + 4 * lb_frame_twin_scale(call, LB_FUSED_INPUTS + LB_SCAN_U);
    return roundings + (w->kernel.state ? 0x1p16 * (double)w->time : 0) +
           (w->kernel.read_t || w->kernel.pairs_t ? 0x1p16 : 0);
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    work w = {.frame = lb_frame_begin(call), .twin = twin};
    LB_TRY(lb_fused_kernel_of(call, kind, &w.kernel));
    if (!measure(&w, call))
        lb_frame_fail(&w.frame, LB_ERR_INVALID, "exponents, u, B, C and result do not match");
    else if (w.kernel.form == CHUNKED && (w.per_state || w.driven))
        lb_frame_fail(&w.frame, LB_ERR_UNSUPPORTED, "chunked takes one decay per head, and B by itself");
    if (!lb_frame_ok(&w.frame)) return lb_frame_end(&w.frame);
    w.narrow = lb_fused_narrow(&w.frame, lb_fused_input(call, LB_SCAN_C));
    w.e = lb_frame_input(&w.frame, LB_FUSED_INPUTS + LB_SCAN_EXPONENT),
    w.u = lb_frame_input(&w.frame, LB_FUSED_INPUTS + LB_SCAN_U);
    w.b = lb_frame_input(&w.frame, LB_FUSED_INPUTS + LB_SCAN_B),
    w.c = lb_frame_input(&w.frame, LB_FUSED_INPUTS + LB_SCAN_C);
    w.dt = lb_frame_input(&w.frame, LB_FUSED_INPUTS + LB_SCAN_DT);
    w.rate = lb_frame_input(&w.frame, LB_FUSED_INPUTS + LB_SCAN_A),
    w.skip = lb_frame_input(&w.frame, LB_FUSED_INPUTS + LB_SCAN_SKIP);
    const int64_t n = w.batch * w.heads * w.out * w.size;
    w.y = lb_frame_output(&w.frame, LB_SCAN_Y, n);
    take_room(&w);
    w.scale = twin_scale(&w, call);
    if (lb_frame_ok(&w.frame)) memset(w.y, 0, (size_t)n * (w.frame.wide ? sizeof(double) : sizeof(float)));
    for (int64_t i = 0; lb_frame_ok(&w.frame) && i < w.batch * w.heads; i++)
        if (w.frame.wide)
            head_f64(&w, i / w.heads, i % w.heads);
        else
            head_f32(&w, i / w.heads, i % w.heads);
    return lb_frame_end(&w.frame);
}

static uint32_t candidates(const lb_composite *c, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    uint32_t n = lb_fused_candidate_add(texts, room, 0, "eager");
    const bool narrow = lb_dtype_bits(c->program->values[c->inputs[LB_SCAN_C]].dtype) == 16;
    if (!(c->flags & LB_SCAN_DRIVEN) && c->inputs[LB_SCAN_A] == LB_NONE) {
        if (c->numbers[LB_SCAN_CHUNK] > 0)
            n = lb_fused_candidate_add(texts, room, n, "chunked:%d", (int)c->numbers[LB_SCAN_CHUNK]);
        n = lb_fused_candidate_add_all(texts, room, n, "chunked:64 chunked:128 chunked:256 chunked:4096");
        if (narrow)
            n = lb_fused_candidate_add_all(texts, room, n,
                                           "chunked:64,pairs:t chunked:256,pairs:t chunked:256,state:bf16");
    }
    n = lb_fused_candidate_add_all(texts, room, n, "sequential sequential,fma:on");
    if (narrow) n = lb_fused_candidate_add_all(texts, room, n, "sequential,read:t sequential,state:bf16");
    /* selective_scan_fwd_kernel.cuh: 32 threads by 4, 8 or 16 items up to 128, 256, 512 steps, then 64 or 128 threads
     * by 16 */
    return lb_fused_candidate_add_all(
        texts, room, n,
        "blocks:32x4,fma:on blocks:32x8,fma:on blocks:32x16,fma:on blocks:64x16,fma:on blocks:128x16,fma:on "
        "blocks:32x4 blocks:32x16");
}

const lb_fused_kind lb_fused_selective_scan = {
    .row = "fused::selective_scan",
    .kernels = kernels,
    .options = OPTIONS,
    .usual = "sequential",
    .row_axis = 0,
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .candidates = candidates,
};
