/* Fused RMSNorm: one sum of squares per row in a stated order, one reciprocal root, one pass of products.
 *
 *      h = x (+ residual)   q = h²   total = sum of q in the kernel's order   s = 1/sqrt(total / n + eps)   y = h s
 *                           (offset + weight)
 *
 * butterfly is what FlashInfer and TensorRT-LLM do (trtllm_allreduce_fusion.cuh, allReduceFusionKernels.cu `rms_norm`,
 * blockReduceSumV2): a thread chains fma over its V consecutive elements, warps exchange by xor 16 to 1, then a warp
 * exchanges the warps' sums (padded with zeros to 32), then the blocks of a cluster are added in order from 0. Element
 * i belongs to thread i / V mod (T C). Without numbers its geometry is the one they launch: V = 16 bytes, clusters of
 * up to 8 blocks that are halved until they fit 132 SMs (or sms:N). flashinfer is its plain norm (norm.cuh,
 * RMSNormKernel): one block of at most 1024 threads that goes over the row in rounds. The other orders are those of
 * schedule.h over rounded squares, as ops one by one compute them. eps stands where the program has it. */
#include "fused/fused.h"

#include "functions/elementary.h"
#include "kernel/value_memory.h"
#include "orders/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct launch {
    int64_t threads, vector, cluster;
} launch;

typedef struct kernel {
    bool butterfly, fma, twice, square_t, residual_f32, multiplies, root_twice;
    int ranks; /* contributions are added: 0 rounded to T each time, 1 in f32, 2 in f32 by chunks of eight */
    launch launch;
    lb_schedule schedule;
    lb_dtype accumulate; /* LB_F32: none besides */
    int64_t sms;
} kernel;

/* ---- geometry ---------------------------------------------------------------------------------------------------- */

static launch fusion_launch(int64_t size, int64_t element_bytes, int64_t tokens, int64_t sms)
{
    launch launch = {.vector = 16 / element_bytes, .cluster = 8};
    while (launch.vector > 1 && size % launch.vector) launch.vector /= 2;
    const int64_t threads = size / launch.vector;
    while (launch.cluster > 1 && threads % launch.cluster) launch.cluster /= 2;
    launch.threads = threads / launch.cluster;
    while (launch.threads < 128 && launch.cluster > 1) launch.threads *= 2, launch.cluster /= 2;
    while (tokens * launch.cluster > sms && launch.cluster > 1 && launch.threads <= 512)
        launch.threads *= 2, launch.cluster /= 2;
    if (launch.threads > 1024) launch.threads = 1024;
    return launch;
}

static launch plain_launch(int64_t size, int64_t element_bytes)
{
    launch launch = {.vector = 16 / element_bytes, .cluster = 1};
    while (launch.vector > 1 && size % launch.vector) launch.vector /= 2;
    launch.threads = size / launch.vector < 1024 ? size / launch.vector : 1024;
    launch.threads = (launch.threads + 31) / 32 * 32;
    return launch;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded ops, one by one"},
    {"cascade", "cascade[:LANES]",
     "torch's CPU sum of rounded squares (8 lanes), f32, one rounding to the result's type"},
    {"sequential", "sequential", "squares added one after the other in f32"},
    {"butterfly", "butterfly[:THREADSxVECTOR[xCLUSTER]]",
     "fma chains per thread, xor exchange over warps, block and cluster, f32, "
     "as TensorRT-LLM and FlashInfer fuse it with an all-reduce; "
     "without numbers the geometry that they launch for the shape (sms:N, 132)"},
    {"flashinfer", "flashinfer", "FlashInfer's plain norm: a butterfly of one block that goes over the row in rounds"},
    {"pairwise", "pairwise", "squares added as a balanced tree"},
    {"numpy", "numpy", "squares added as NumPy adds a row"},
    {"lanes", "lanes:LANES", "one accumulator per lane, added in order"},
    {"blocked", "blocked:TERMS", "blocks added in order"},
    {"splitk", "splitk:SLICES", "slices added in order"},
    {"torch", "torch[:THREADS]", "torch's CPU sum with that many threads"},
    {"exact", "exact", "the real sum, rounded once"},
    {NULL, NULL, NULL}};

#define OPTIONS                                                                                                        \
    "round:once|twice (twice: to the type before the weight too), square:f32|t (t: rounded to the type), "             \
    "fma:on|off, "                                                                                                     \
    "acc:f32|f64|bf16|f16, mean:div|mul (by 1/n), rsqrt:once|twice (twice: root and quotient rounded each)"

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    static const lb_dtype accumulators[] = {LB_F32, LB_F64, LB_BF16, LB_F16};
    *k = (kernel){.launch.cluster = 1};
    const bool flashinfer = !strcmp(text->name, "flashinfer");
    k->butterfly = flashinfer || !strcmp(text->name, "butterfly");
    const int round = lb_fused_text_choice(text, "round", "once|twice", 0),
              square = lb_fused_text_choice(text, "square", "f32|t", 0);
    const int fma = lb_fused_text_choice(text, "fma", "off|on", k->butterfly),
              acc = lb_fused_text_choice(text, "acc", "f32|f64|bf16|f16", 0);
    const int mean = lb_fused_text_choice(text, "mean", "div|mul", 0),
              root = lb_fused_text_choice(text, "rsqrt", "once|twice", 0);
    const int residual = lb_fused_text_choice(text, "residual", "t|f32", 0),
              ranks = lb_fused_text_choice(text, "ranks", "t|f32|chunks", 0);
    const char *keys = text->kind == LB_COMPOSITE_RMS_NORM       ? "round square fma acc mean rsqrt sms"
                       : text->kind == LB_COMPOSITE_ADD_RMS_NORM ? "round square fma acc mean rsqrt sms residual"
                                                                 : "round square fma acc mean rsqrt sms residual ranks";
    bool ok = round >= 0 && square >= 0 && fma >= 0 && acc >= 0 && mean >= 0 && root >= 0 && residual >= 0 &&
              ranks >= 0 && lb_fused_text_keys(text, keys);
    k->sms = 132;
    for (uint32_t i = 0; ok && i < text->n_options; i++)
        if (!strcmp(text->options[i].key, "sms")) ok = lb_fused_text_numbers(text->options[i].value, &k->sms, 1) == 1;
    if (!ok) return false;
    k->twice = round, k->square_t = square, k->fma = fma, k->multiplies = mean, k->root_twice = root,
    k->residual_f32 = residual;
    k->ranks = ranks;
    k->accumulate = accumulators[acc];
    if (k->butterfly) {
        int64_t numbers[3] = {0, 0, 1};
        const int n = lb_fused_text_numbers(text->parameters, numbers, flashinfer ? 0 : 3);
        if (n < 0 || n == 1 || numbers[0] > 1024 || numbers[2] > 16) return false;
        k->launch = (launch){numbers[0], numbers[1], numbers[2]};
        if (flashinfer) k->launch.cluster = 0; /* its own geometry */
        return true;
    }
    char schedule[72];
    strcpy(schedule, text->name);
    if (*text->parameters) strcat(strcat(schedule, ":"), text->parameters);
    const bool sequential = !strcmp(text->name, "sequential");
    if (lb_schedule_parse(schedule, &k->schedule, NULL) != LB_OK || lb_schedule_of_products(&k->schedule) ||
        k->schedule.kind == LB_SCHEDULE_TREE || (k->fma && !sequential)) {
        lb_schedule_release(&k->schedule);
        return false;
    }
    return true;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static double rounded(const kernel *kernel, double x)
{
    if (kernel->accumulate == LB_F64) return x;
    float y = (float)x;
    if (kernel->accumulate != LB_F32) lb_round_to_grid_f32(&y, 1, kernel->accumulate, NULL);
    return y;
}
/* Operands are f32, or already on the accumulator's grid: a sum of two is exact in f64 or rounded innocently, the
 * product is exact. */
static double added(const kernel *kernel, double a, double b)
{
    if (kernel->accumulate == LB_F64) return a + b;
    return rounded(kernel, (float)a + (float)b);
}
static double chained(const kernel *kernel, double acc, float h, float q)
{
    if (!kernel->fma) return added(kernel, acc, q);
    if (kernel->accumulate == LB_F64) return fma(h, h, acc);
    return rounded(kernel, fmaf(h, h, (float)acc));
}

static double exchange(const kernel *kernel, double *lanes) /* 32 of them */
{
    for (int distance = 16; distance >= 1; distance /= 2)
        for (int t = 0; t < distance; t++) lanes[t] = added(kernel, lanes[t], lanes[t + distance]);
    return lanes[0];
}

static double block_sum(const kernel *kernel, double *partial, int64_t threads)
{
    double sums[32] = {0};
    for (int64_t w = 0; w * 32 < threads; w++) {
        double lanes[32] = {0};
        for (int64_t t = 0; t < 32 && w * 32 + t < threads; t++) lanes[t] = partial[w * 32 + t];
        sums[w] = exchange(kernel, lanes);
    }
    return exchange(kernel, sums);
}

static double butterfly_sum(const kernel *kernel, const launch *launch, const float *h, const float *q, int64_t n)
{
    double partial[16 * 1024], total = 0;
    const int64_t all = launch->threads * launch->cluster;
    for (int64_t i = 0; i < all; i++) partial[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        double *p = &partial[i / launch->vector % all];
        *p = chained(kernel, *p, h[i], q[i]);
    }
    if (launch->cluster == 1) return block_sum(kernel, partial, launch->threads);
    for (int64_t b = 0; b < launch->cluster; b++)
        total = added(kernel, total, block_sum(kernel, partial + b * launch->threads, launch->threads));
    return total;
}

/* `wide` has room for n numbers. */
static double sum_of_squares(const kernel *kernel, const launch *launch, const float *h, const float *q, double *wide,
                             int64_t n)
{
    if (kernel->butterfly) return butterfly_sum(kernel, launch, h, q, n);
    if (kernel->fma) {
        double total = 0;
        for (int64_t i = 0; i < n; i++) total = chained(kernel, total, h[i], q[i]);
        return total;
    }
    if (kernel->accumulate != LB_F64)
        return lb_schedule_sum_f32(&kernel->schedule, q, n,
                                   kernel->accumulate == LB_F32 ? LB_NO_DTYPE : kernel->accumulate);
    for (int64_t i = 0; i < n; i++) wide[i] = q[i];
    return lb_schedule_sum_f64(&kernel->schedule, wide, n, LB_NO_DTYPE);
}

static float reciprocal_root(const kernel *kernel, double total, int64_t n, double eps, int place)
{
    if (kernel->accumulate == LB_F64) return (float)lb_fused_inverse_root(total / (double)n, eps, place);
    const float mean = kernel->multiplies ? (float)total * (1 / (float)n) : (float)total / (float)n;
    if (kernel->root_twice) return lb_fused_inverse_root_f32(mean, (float)eps, place);
    if (place == LB_EPS_INSIDE) return (float)(1 / sqrt((double)(mean + (float)eps)));
    return (float)lb_fused_inverse_root((double)mean, eps, place);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

typedef struct work {
    lb_frame frame;
    kernel kernel;
    launch launch;
    lb_dtype narrow;
    int64_t size, rows;
    double eps, offset;
    int place; /* of eps */
    const void *x, *residual, *weight;
    void *y, *sum;
    float *h, *q;
    double *wide;
} work;

static void row_f32(work *work, int64_t at)
{
    const kernel *kernel = &work->kernel;
    const float *x = (const float *)work->x + at, *r = work->residual ? (const float *)work->residual + at : NULL,
                *weight = work->weight;
    float *y = (float *)work->y + at, *h = work->h, *q = work->q;
    const int64_t n = work->size;
    for (int64_t i = 0; i < n; i++) h[i] = r ? x[i] + r[i] : x[i];
    if (work->sum) {
        memcpy((float *)work->sum + at, h, (size_t)n * sizeof *h);
        lb_fused_round((float *)work->sum + at, n, work->narrow);
    }
    if (r && !kernel->residual_f32) lb_fused_round(h, n, work->narrow);
    for (int64_t i = 0; i < n; i++) q[i] = h[i] * h[i];
    if (kernel->square_t) lb_fused_round(q, n, work->narrow);
    const float s =
        reciprocal_root(kernel, sum_of_squares(kernel, &work->launch, h, q, work->wide, n), n, work->eps, work->place);
    for (int64_t i = 0; i < n; i++) y[i] = h[i] * s;
    if (kernel->twice) lb_fused_round(y, n, work->narrow);
    for (int64_t i = 0; i < n; i++)
        if (weight || work->offset)
            y[i] *= weight ? (work->offset ? (float)work->offset + weight[i] : weight[i]) : (float)work->offset;
}

static void row_f64(work *work, int64_t at, bool twin)
{
    const double *x = (const double *)work->x + at, *r = work->residual ? (const double *)work->residual + at : NULL,
                 *weight = work->weight;
    double *y = (double *)work->y + at, *sum = work->sum ? (double *)work->sum + at : NULL, squares = 0, terms = 0;
    for (int64_t i = 0; i < work->size; i++) {
        const double h = r ? x[i] + r[i] : x[i], a = r ? fabs(x[i]) + fabs(r[i]) : fabs(x[i]);
        squares += h * h, terms += a * a;
        if (sum) sum[i] = twin ? a : h;
    }
    const double s = lb_fused_inverse_root(squares / (double)work->size, work->eps, work->place);
    /* Of a sum with cancellation also the relative error of the root counts. */
    const double spread = 1 + (r ? terms / (squares > 0 ? squares : 1) : 1);
    for (int64_t i = 0; i < work->size; i++) {
        const double h = r ? x[i] + r[i] : x[i], a = r ? fabs(x[i]) + fabs(r[i]) : fabs(x[i]);
        const double g = weight ? work->offset + weight[i] : work->offset ? work->offset : 1;
        const double m = weight ? fabs(work->offset) + fabs(weight[i]) : fabs(g);
        y[i] = twin ? (a + fabs(h) * spread) * s * m : h * s * g;
    }
}

/* Contributions of ranks, in order, into one x: TensorRT-LLM's and FlashInfer's one-shot and two-shot kernels round
 * every sum to T unless fp32_acc is set, FlashInfer's MNNVL kernel adds chunks of eight
 * (trtllm_mnnvl_allreduce.cuh). */
static const void *sum_of_ranks(work *work, const lb_operand *list, const lb_tensor *like, bool twin)
{
    const int64_t n = lb_tensor_numel(like);
    void *sum = lb_frame_reals(&work->frame, n + 1), *chunk = lb_frame_reals(&work->frame, n + 1),
         *part = lb_frame_reals(&work->frame, n + 1);
    for (uint32_t result = 0; lb_frame_ok(&work->frame) && result < list->count; result++) {
        const lb_tensor *from = &list->tensors[result],
                        dense = {part, work->frame.type, lb_layout_contiguous(from->layout.ndim, from->layout.shape)};
        if (lb_tensor_numel(from) != n) {
            lb_frame_fail(&work->frame, LB_ERR_INVALID, "contributions of other shapes");
            return NULL;
        }
        lb_memory_tensor_copy(&dense, from, NULL);
        const bool starts = work->kernel.ranks == 2 ? result % 8 == 0 : result == 0,
                   ends = result % 8 == 7 || result + 1 == list->count;
        for (int64_t i = 0; i < n && work->frame.wide; i++) {
            const double x = ((double *)part)[i];
            ((double *)sum)[i] = (result ? ((double *)sum)[i] : 0) + (twin ? fabs(x) : x);
        }
        if (work->frame.wide) continue;
        for (int64_t i = 0; i < n; i++) ((float *)chunk)[i] = (starts ? 0 : ((float *)chunk)[i]) + ((float *)part)[i];
        if (work->kernel.ranks == 0) lb_fused_round(chunk, n, work->narrow);
        for (int64_t i = 0; i < n && work->kernel.ranks == 2 && ends; i++)
            ((float *)sum)[i] = (result < 8 ? 0 : ((float *)sum)[i]) + ((float *)chunk)[i];
    }
    void *all = work->frame.wide || work->kernel.ranks == 2 ? sum : chunk;
    if (lb_frame_ok(&work->frame) && !work->frame.wide) lb_fused_round(all, n, work->narrow);
    return all;
}

/* In roundings of f32: those of the sum, and a few to 16 bits. */
static void scale_twin(work *work, const lb_call *call, uint32_t ranks)
{
    const double sixteen = lb_frame_twin_scale(call, LB_FUSED_INPUTS + LB_NORM_WEIGHT);
    const double scale = 8 + (double)work->size +
                         (3 + (double)ranks) * (sixteen > 1 ? sixteen : lb_frame_twin_scale(call, LB_FUSED_INPUTS));
    const int64_t n = work->rows * work->size;
    for (int64_t i = 0; i < n; i++) {
        ((double *)work->y)[i] *= scale;
        if (work->sum) ((double *)work->sum)[i] *= ranks > 1 ? scale : 2;
    }
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    work work = {.frame = lb_frame_begin(call)};
    const lb_tensor *x = lb_fused_input(call, LB_NORM_X), *weight = lb_fused_input(call, LB_NORM_WEIGHT),
                    *residual = kind != LB_COMPOSITE_RMS_NORM ? lb_fused_input(call, LB_NORM_RESIDUAL) : NULL;
    LB_TRY(lb_fused_kernel_of(call, kind, &work.kernel));
    const lb_operand *list = &call->args[LB_FUSED_LIST];
    const bool ranks = kind == LB_COMPOSITE_ALLREDUCE_NORM && list->tag == LB_OPERAND_TENSORS && list->count;
    if (ranks) x = &list->tensors[0];
    work.size = x->layout.ndim ? x->layout.shape[x->layout.ndim - 1] : 1;
    work.rows = work.size ? lb_tensor_numel(x) / work.size : 0;
    work.narrow = lb_fused_narrow(&work.frame, x);
    work.eps = lb_fused_number(call, LB_NORM_EPS), work.offset = lb_fused_number(call, LB_NORM_OFFSET);
    work.place = (int)lb_fused_number(call, LB_NORM_PLACE);
    if (weight && lb_tensor_numel(weight) != work.size)
        lb_frame_fail(&work.frame, LB_ERR_INVALID, "a weight of another size than a row");
    if (residual && lb_tensor_numel(residual) != lb_tensor_numel(x))
        lb_frame_fail(&work.frame, LB_ERR_INVALID, "a residual of another shape");
    if (lb_tensor_numel(&call->results[0]) != lb_tensor_numel(x))
        lb_frame_fail(&work.frame, LB_ERR_INVALID, "a result of another shape");
    const int64_t bytes = (int64_t)lb_dtype_bits(x->dtype) / 8;
    work.launch = work.kernel.launch;
    if (work.kernel.butterfly && !work.launch.cluster) work.launch = plain_launch(work.size, bytes);
    if (work.kernel.butterfly && !work.launch.threads)
        work.launch = fusion_launch(work.size, bytes, work.rows, work.kernel.sms);
    work.x = ranks ? sum_of_ranks(&work, list, x, twin) : lb_frame_tensor(&work.frame, x),
    work.weight = weight ? lb_frame_tensor(&work.frame, weight) : NULL;
    work.residual = residual ? lb_frame_tensor(&work.frame, residual) : NULL;
    work.y = lb_frame_output(&work.frame, LB_NORM_Y, work.rows * work.size);
    work.sum = residual && lb_fused_wants(call, LB_NORM_SUM)
                   ? lb_frame_output(&work.frame, LB_NORM_SUM, work.rows * work.size)
                   : NULL;
    work.h = lb_frame_reals(&work.frame, work.size), work.q = lb_frame_reals(&work.frame, work.size);
    work.wide = lb_frame_scratch(&work.frame, (size_t)work.size * sizeof *work.wide);
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < work.rows; i++) {
        if (work.frame.wide)
            row_f64(&work, i * work.size, twin);
        else
            row_f32(&work, i * work.size);
    }
    if (twin && lb_frame_ok(&work.frame)) scale_twin(&work, call, ranks ? list->count : 1);
    return lb_frame_end(&work.frame);
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

static uint32_t candidates(const lb_composite *composite, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    const lb_value *value = &composite->program->values[composite->inputs[LB_NORM_X]];
    const int64_t size = value->layout.ndim ? value->layout.shape[value->layout.ndim - 1] : 1,
                  numel = lb_layout_numel(&value->layout);
    const int64_t bytes = (int64_t)lb_dtype_bits(value->dtype) / 8;
    const bool narrow = lb_dtype_bits(value->dtype) == 16, residual = composite->kind != LB_COMPOSITE_RMS_NORM;
    const launch fusion = fusion_launch(size, bytes, size ? numel / size : 0, 132), plain = plain_launch(size, bytes);
    static const char *const orders[] = {"cascade", "sequential", "cascade:16", "pairwise", "numpy", "exact"};
    char trees[32][40];
    uint32_t n_trees = 0, n = lb_fused_candidate_add(texts, room, 0, "eager");
    snprintf(trees[n_trees++], sizeof *trees, "%s", orders[0]);
    snprintf(trees[n_trees++], sizeof *trees, "butterfly:%dx%dx%d", (int)fusion.threads, (int)fusion.vector,
             (int)fusion.cluster);
    snprintf(trees[n_trees++], sizeof *trees, "butterfly:%dx%dx1", (int)plain.threads, (int)plain.vector);
    for (size_t i = 1; i < sizeof orders / sizeof *orders; i++)
        snprintf(trees[n_trees++], sizeof *trees, "%s", orders[i]);
    for (int64_t threads = 32; threads <= 1024 && threads <= size; threads *= 2)
        for (int64_t vector = 1; vector <= 16 / bytes; vector *= 2)
            if (n_trees < 32 && (vector == 1 || vector == 16 / bytes))
                snprintf(trees[n_trees++], sizeof *trees, "butterfly:%dx%dx1", (int)threads, (int)vector);
    for (int square = 0; square < (narrow ? 2 : 1); square++)
        for (int round = 0; round < (narrow ? 2 : 1); round++)
            for (int wide = 0; wide < (narrow && residual ? 2 : 1); wide++)
                for (uint32_t t = 0; t < n_trees; t++)
                    for (int off = 0; off < (strncmp(trees[t], "butterfly", 9) ? 1 : 2); off++)
                        n = lb_fused_candidate_add(texts, room, n, "%s%s%s%s%s", trees[t], round ? ",round:twice" : "",
                                                   square ? ",square:t" : "", wide ? ",residual:f32" : "",
                                                   off ? ",fma:off" : "");
    static const char *const ranks[] = {"f32", "chunks"};
    for (uint32_t t = 0; composite->kind == LB_COMPOSITE_ALLREDUCE_NORM && t < n_trees; t++)
        for (size_t r = 0; r < (narrow ? 2 : 1); r++)
            n = lb_fused_candidate_add(texts, room, n, "%s,ranks:%s", trees[t], ranks[r]);
    return n;
}

#define NORM(...)                                                                                                      \
    {.kernels = kernels,                                                                                               \
     .usual = "butterfly",                                                                                             \
     .run = run,                                                                                                       \
     .read = read_kernel,                                                                                              \
     .kernel_size = sizeof(kernel),                                                                                    \
     .candidates = candidates,                                                                                         \
     __VA_ARGS__}
const lb_fused_kind lb_fused_rms_norm = NORM(.row = "fused::rms_norm", .options = OPTIONS);
const lb_fused_kind lb_fused_add_rms_norm =
    NORM(.row = "fused::add_rms_norm",
         .options = OPTIONS ", residual:t|f32 (f32: the norm takes the sum before it is rounded to the type)");
const lb_fused_kind lb_fused_allreduce_norm =
    NORM(.row = "fused::allreduce_norm",
         .options = OPTIONS
         ", residual:t|f32, ranks:t|f32|chunks (contributions added in order of ranks: rounded each time, in f32, "
         "in f32 by eights)");
