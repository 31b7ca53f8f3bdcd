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

static double get(const work *work, const void *x, int64_t i)
{
    return lb_frame_get(&work->frame, x, i);
}

/* Element (b, h, t) of something with `heads` heads. */
static int64_t place(const work *work, int64_t heads, int64_t time, int64_t b, int64_t h, int64_t t)
{
    return work->time_first ? (b * time + t) * heads + h : (b * heads + h) * time + t;
}

static double b_at(const work *work, const void *x, bool turned, int64_t b, int64_t h, int64_t t, int64_t n)
{
    const int64_t g = h / (work->heads / work->groups);
    if (turned) return get(work, x, ((b * work->groups + g) * work->states + n) * work->time + t);
    return get(work, x, place(work, work->groups, work->time, b, g, t) * work->states + n);
}

static double multiplied(const work *work, double x, double y)
{
    return work->frame.wide ? x * y : (double)((float)x * (float)y);
}

static double exponent_at(const work *work, int64_t b, int64_t h, int64_t t, int64_t n)
{
    const int64_t i = place(work, work->heads, work->time, b, h, t);
    if (work->rate) return multiplied(work, get(work, work->e, i), get(work, work->rate, h * work->states + n));
    return get(work, work->e, work->per_state ? i * work->states + n : i);
}

/* dt u, or dt B u of a state. */
static double x_at(const work *work, int64_t b, int64_t h, int64_t t, int64_t p)
{
    const int64_t i = place(work, work->heads, work->time, b, h, t);
    const double u = get(work, work->u, i * (work->driven ? work->states : work->size) + p);
    return work->dt ? multiplied(work, get(work, work->dt, i), u) : u;
}

/* What goes past the state. */
static double skipped_at(const work *work, int64_t b, int64_t h, int64_t t, int64_t p)
{
    return multiplied(work, get(work, work->skip, h),
                      get(work, work->u, place(work, work->heads, work->time, b, h, t) * work->size + p));
}

/* ---- f32 --------------------------------------------------------------------------------------------------------- */

static void load_head(const work *work, int64_t b, int64_t h)
{
    const int64_t each = work->per_state ? work->states : 1, wide = work->driven ? work->states : work->size;
    for (int64_t t = 0; t < work->time; t++) {
        for (int64_t n = 0; n < each; n++) work->decay[t * each + n] = (float)exponent_at(work, b, h, t, n);
        for (int64_t p = 0; p < wide; p++) work->x[t * wide + p] = (float)x_at(work, b, h, t, p);
        for (int64_t n = 0; n < work->states; n++) {
            if (!work->driven) work->bs[t * work->states + n] = (float)b_at(work, work->b, work->turned, b, h, t, n);
            work->cs[t * work->states + n] = (float)b_at(work, work->c, false, b, h, t, n);
        }
    }
}

static float times_plus(const work *work, float a, float b, float c)
{
    return work->kernel.fma ? fmaf(a, b, c) : a * b + c;
}

static float driven_by(const work *work, int64_t t, int64_t p, int64_t n)
{
    return work->driven ? work->x[t * work->states + n] : work->x[t * work->size + p] * work->bs[t * work->states + n];
}

static void sequential(const work *work, int64_t p)
{
    for (int64_t n = 0; n < work->states; n++) work->h[n] = 0;
    for (int64_t t = 0; t < work->time; t++) {
        float y = 0;
        for (int64_t n = 0; n < work->states; n++) {
            const float a = work->decay[work->per_state ? t * work->states + n : t];
            work->h[n] =
                lb_fused_rounded(times_plus(work, a, work->h[n], driven_by(work, t, p, n)), work->kernel.state);
            const float h = work->kernel.read_t ? lb_fused_rounded(work->h[n], work->narrow) : work->h[n];
            y = times_plus(work, work->cs[t * work->states + n], h, y);
        }
        work->ys[t * work->size + p] = y;
    }
}

typedef struct link {
    float a, b;
} link;

static link then(const work *work, link first, link second)
{
    return (link){second.a * first.a, times_plus(work, second.a, first.b, second.b)};
}

/* One block of a chain: items [0, threads * items) of a and add, those beyond `n` being (1, 0); add becomes the
 * states. */
static link scan_block(const work *work, float *a, float *add, int64_t n, link before)
{
    link sums[1024], total = {1, 0};
    const int64_t items = work->kernel.items;
    for (int64_t k = 0; k < work->kernel.threads; k++) {
        link s = k * items < n ? (link){a[k * items], add[k * items]} : (link){1, 0};
        for (int64_t i = k * items + 1; i < (k + 1) * items; i++)
            s = then(work, s, i < n ? (link){a[i], add[i]} : (link){1, 0});
        sums[k] = s;
    }
    for (int64_t first = 0; first < work->kernel.threads; first += WARP) {
        const int64_t lanes = work->kernel.threads - first < WARP ? work->kernel.threads - first : WARP;
        for (int64_t d = 1; d < lanes; d *= 2)
            for (int64_t lane = lanes - 1; lane >= d; lane--)
                sums[first + lane] = then(work, sums[first + lane - d], sums[first + lane]);
        for (int64_t lane = 0; lane < lanes; lane++) {
            link s = before;
            if (lane && first)
                s = then(work, before, then(work, total, sums[first + lane - 1]));
            else if (lane)
                s = then(work, before, sums[first + lane - 1]);
            else if (first)
                s = then(work, before, total);
            for (int64_t i = (first + lane) * items; i < (first + lane + 1) * items && i < n; i++) {
                s = then(work, s, (link){a[i], add[i]});
                add[i] = s.b;
            }
        }
        total = first ? then(work, total, sums[first + lanes - 1]) : sums[first + lanes - 1];
    }
    return then(work, before, total);
}

static void blocks(const work *work, int64_t p)
{
    const int64_t size = work->kernel.threads * work->kernel.items;
    for (int64_t t = 0; t < work->time; t++) work->ys[t * work->size + p] = 0;
    for (int64_t n = 0; n < work->states; n++) {
        link state = {1, 0};
        for (int64_t t = 0; t < work->time; t++)
            work->a[t] = work->decay[work->per_state ? t * work->states + n : t],
            work->add[t] = driven_by(work, t, p, n);
        for (int64_t t = 0; t < work->time; t += size)
            state = scan_block(work, work->a + t, work->add + t, work->time - t < size ? work->time - t : size, state);
        for (int64_t t = 0; t < work->time; t++) {
            const float h = work->kernel.read_t ? lb_fused_rounded(work->add[t], work->narrow) : work->add[t];
            work->ys[t * work->size + p] =
                times_plus(work, work->cs[t * work->states + n], h, work->ys[t * work->size + p]);
        }
    }
}

static float exp_f32(float x)
{
    lb_exp_f32(&x, &x, 1);
    return x;
}

/* Of all of u at once; work->decay has the exponents, work->a becomes their running sums, work->h is (size, states). */
static void chunked(const work *work)
{
    memset(work->h, 0, (size_t)(work->size * work->states) * sizeof *work->h);
    for (int64_t first = 0; first < work->time; first += work->kernel.chunk) {
        const int64_t end = first + work->kernel.chunk < work->time ? first + work->kernel.chunk : work->time;
        for (int64_t t = first; t < end; t++) work->a[t] = (t > first ? work->a[t - 1] : 0) + work->decay[t];
        for (int64_t t = first; t < end; t++) {
            float *y = work->ys + t * work->size;
            const float *c = work->cs + t * work->states;
            memset(y, 0, (size_t)work->size * sizeof *y);
            for (int64_t s = first; s <= t; s++) {
                float pair = 0;
                for (int64_t n = 0; n < work->states; n++)
                    pair = times_plus(work, c[n], work->bs[s * work->states + n], pair);
                pair *= exp_f32(work->a[t] - work->a[s]);
                if (work->kernel.pairs_t) pair = lb_fused_rounded(pair, work->narrow);
                for (int64_t p = 0; p < work->size; p++)
                    y[p] = times_plus(work, pair, work->x[s * work->size + p], y[p]);
            }
            const float decay = exp_f32(work->a[t]);
            for (int64_t p = 0; p < work->size && first; p++) {
                float from_state = 0;
                for (int64_t n = 0; n < work->states; n++)
                    from_state = times_plus(work, c[n], work->h[p * work->states + n], from_state);
                y[p] += from_state * decay;
            }
        }
        const float last = work->a[end - 1], decay = exp_f32(last);
        for (int64_t s = first; s < end; s++) work->add[s] = exp_f32(last - work->a[s]);
        for (int64_t i = 0; i < work->size * work->states; i++) {
            const int64_t p = i / work->states, n = i % work->states;
            float sum = 0;
            for (int64_t s = first; s < end; s++)
                sum = times_plus(work, work->x[s * work->size + p], work->bs[s * work->states + n] * work->add[s], sum);
            work->h[i] = lb_fused_rounded(times_plus(work, decay, work->h[i], sum), work->kernel.state);
        }
    }
}

static void head_f32(const work *work, int64_t b, int64_t h)
{
    load_head(work, b, h);
    if (work->kernel.form != CHUNKED)
        lb_exp_f32(work->decay, work->decay, (size_t)(work->time * (work->per_state ? work->states : 1)));
    if (work->kernel.form == CHUNKED) chunked(work);
    for (int64_t p = 0; p < work->size && work->kernel.form != CHUNKED; p++)
        if (work->kernel.form == BLOCKS)
            blocks(work, p);
        else
            sequential(work, p);
    for (int64_t t = 0; t < work->time; t++)
        for (int64_t p = 0; p < work->size; p++) {
            float y = work->ys[t * work->size + p];
            if (work->skip) y += (float)skipped_at(work, b, h, t, p);
            lb_frame_set(&work->frame, work->y, place(work, work->heads, work->out, b, h, t) * work->size + p, y);
        }
}

/* ---- f64 --------------------------------------------------------------------------------------------------------- */

/* The twin adds magnitudes up; running sums of exponents are off by what all of them come to. */
static void head_f64(const work *work, int64_t b, int64_t h)
{
    double all = 0;
    for (int64_t i = 0; i < work->size * work->states; i++) work->state[i] = 0;
    for (int64_t t = 0; t < work->time; t++) {
        double steepest = 0;
        for (int64_t n = 0; n < (work->per_state ? work->states : 1); n++)
            steepest = fmax(steepest, fabs(exponent_at(work, b, h, t, n)));
        all += steepest;
        for (int64_t p = 0; p < work->size; p++) {
            double y = 0;
            for (int64_t n = 0; n < work->states; n++) {
                const double drive = work->driven
                                         ? x_at(work, b, h, t, n)
                                         : x_at(work, b, h, t, p) * b_at(work, work->b, work->turned, b, h, t, n),
                             c = b_at(work, work->c, false, b, h, t, n);
                double *state = &work->state[p * work->states + n];
                *state = lb_exp(exponent_at(work, b, h, t, work->per_state ? n : 0)) * *state +
                         (work->twin ? fabs(drive) : drive);
                y += work->twin ? fabs(c) * *state : c * *state;
            }
            if (work->skip) y += work->twin ? fabs(skipped_at(work, b, h, t, p)) : skipped_at(work, b, h, t, p);
            if (work->twin)
                y *= work->scale + all * (double)(4 + (work->kernel.form == CHUNKED ? work->kernel.chunk : 0));
            lb_frame_set(&work->frame, work->y, place(work, work->heads, work->out, b, h, t) * work->size + p, y);
        }
    }
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static int64_t dim(const lb_tensor *tensor, int d)
{
    return tensor->layout.shape[d];
}

/* False: shapes that do not belong together. */
static bool measure(work *work, const lb_call *call)
{
    const lb_tensor *e = lb_fused_input(call, LB_SCAN_EXPONENT), *u = lb_fused_input(call, LB_SCAN_U),
                    *b = lb_fused_input(call, LB_SCAN_B), *c = lb_fused_input(call, LB_SCAN_C),
                    *dt = lb_fused_input(call, LB_SCAN_DT), *a = lb_fused_input(call, LB_SCAN_A),
                    *skip = lb_fused_input(call, LB_SCAN_SKIP);
    const int64_t flags = lb_fused_flags(call);
    work->time_first = flags & LB_SCAN_TIME_FIRST, work->turned = flags & LB_SCAN_TURNED,
    work->driven = flags & LB_SCAN_DRIVEN;
    if (!e || !u || !c || !b != work->driven || (work->driven && skip) || !c->layout.ndim) return false;
    if (e->layout.ndim != 3 && (e->layout.ndim != 4 || a)) return false;
    work->per_state = a || e->layout.ndim == 4;
    work->batch = dim(e, 0), work->heads = dim(e, work->time_first ? 2 : 1),
    work->time = dim(e, work->time_first ? 1 : 2);
    work->states = dim(c, c->layout.ndim - 1);
    const int64_t rows = work->batch * work->heads * work->time, each = work->batch * work->time * work->states;
    if (rows < 1 || each < 1 || (e->layout.ndim == 4 && dim(e, 3) != work->states)) return false;
    work->size = work->driven ? 1 : lb_tensor_numel(u) / rows;
    if (work->size < 1 || (a && lb_tensor_numel(a) != work->heads * work->states) ||
        (skip && lb_tensor_numel(skip) != work->heads))
        return false;
    work->groups = lb_tensor_numel(c) / each;
    work->out = lb_tensor_numel(&call->results[0]) / (work->batch * work->heads * work->size);
    return lb_tensor_numel(u) == rows * (work->driven ? work->states : work->size) && work->groups >= 1 &&
           work->heads % work->groups == 0 && lb_tensor_numel(c) == work->groups * each &&
           (!b || lb_tensor_numel(b) == work->groups * each) && (!dt || lb_tensor_numel(dt) == rows) &&
           work->out >= work->time &&
           lb_tensor_numel(&call->results[0]) == work->batch * work->heads * work->out * work->size;
}

static void take_room(work *work)
{
    lb_frame *frame = &work->frame;
    const size_t time = (size_t)work->time, states = (size_t)work->states, size = (size_t)work->size,
                 real = sizeof(float);
    work->state = lb_frame_scratch(frame, size * states * sizeof *work->state);
    work->decay = lb_frame_scratch(frame, time * states * real),
    work->bs = lb_frame_scratch(frame, time * states * real);
    work->cs = lb_frame_scratch(frame, time * states * real),
    work->x = lb_frame_scratch(frame, time * (size > states ? size : states) * real);
    work->ys = lb_frame_scratch(frame, time * size * real), work->h = lb_frame_scratch(frame, size * states * real);
    work->a = lb_frame_scratch(frame, time * real), work->add = lb_frame_scratch(frame, time * real);
}

static double twin_scale(const work *work, const lb_call *call)
{
    const double roundings = 16 + 4 * (double)work->time + 2 * (double)work->states +
                             4 * lb_frame_twin_scale(call, LB_FUSED_INPUTS + LB_SCAN_U);
    return roundings + (work->kernel.state ? 0x1p16 * (double)work->time : 0) +
           (work->kernel.read_t || work->kernel.pairs_t ? 0x1p16 : 0);
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    work work = {.frame = lb_frame_begin(call), .twin = twin};
    LB_TRY(lb_fused_kernel_of(call, kind, &work.kernel));
    if (!measure(&work, call))
        lb_frame_fail(&work.frame, LB_ERR_INVALID, "exponents, u, B, C and result do not match");
    else if (work.kernel.form == CHUNKED && (work.per_state || work.driven))
        lb_frame_fail(&work.frame, LB_ERR_UNSUPPORTED, "chunked takes one decay per head, and B by itself");
    if (!lb_frame_ok(&work.frame)) return lb_frame_end(&work.frame);
    work.narrow = lb_fused_narrow(&work.frame, lb_fused_input(call, LB_SCAN_C));
    work.e = lb_frame_input(&work.frame, LB_FUSED_INPUTS + LB_SCAN_EXPONENT),
    work.u = lb_frame_input(&work.frame, LB_FUSED_INPUTS + LB_SCAN_U);
    work.b = lb_frame_input(&work.frame, LB_FUSED_INPUTS + LB_SCAN_B),
    work.c = lb_frame_input(&work.frame, LB_FUSED_INPUTS + LB_SCAN_C);
    work.dt = lb_frame_input(&work.frame, LB_FUSED_INPUTS + LB_SCAN_DT);
    work.rate = lb_frame_input(&work.frame, LB_FUSED_INPUTS + LB_SCAN_A),
    work.skip = lb_frame_input(&work.frame, LB_FUSED_INPUTS + LB_SCAN_SKIP);
    const int64_t n = work.batch * work.heads * work.out * work.size;
    work.y = lb_frame_output(&work.frame, LB_SCAN_Y, n);
    take_room(&work);
    work.scale = twin_scale(&work, call);
    if (lb_frame_ok(&work.frame)) memset(work.y, 0, (size_t)n * (work.frame.wide ? sizeof(double) : sizeof(float)));
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < work.batch * work.heads; i++)
        if (work.frame.wide)
            head_f64(&work, i / work.heads, i % work.heads);
        else
            head_f32(&work, i / work.heads, i % work.heads);
    return lb_frame_end(&work.frame);
}

static uint32_t candidates(const lb_composite *composite, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    uint32_t n = lb_fused_candidate_add(texts, room, 0, "eager");
    const bool narrow = lb_dtype_bits(composite->program->values[composite->inputs[LB_SCAN_C]].dtype) == 16;
    if (!(composite->flags & LB_SCAN_DRIVEN) && composite->inputs[LB_SCAN_A] == LB_NONE) {
        if (composite->numbers[LB_SCAN_CHUNK] > 0)
            n = lb_fused_candidate_add(texts, room, n, "chunked:%d", (int)composite->numbers[LB_SCAN_CHUNK]);
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
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .candidates = candidates,
};
