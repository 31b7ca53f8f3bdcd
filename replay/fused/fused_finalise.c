/* MoE finalise: y[token] = sum over the slots of a token of weight * output, in the order and with the roundings of a
 * kernel.
 *
 *                 order    product   sum        of
 *   index_add     expert   T         T          Hugging Face's eager: index_add_ into zeros of T, expert by expert
 *   batched       slot     T         f32        Hugging Face's grouped_mm and batched_mm: view(tokens, slots,
 *                 hidden).sum(1)
 *   batched-f32   slot     f32       f32        a sum in f32 that is cast once; DeepEP's low-latency combine
 *   score-bf16    slot     T         T          weights rounded to T too: TensorRT-LLM's `acc += rT(x * scale)`
 *   slots         slot     T         T          the same with the weights as they are
 *   ranks:R[xN]   rank     f32, T    f32        every rank's part summed in f32 and sent as T, ranks added in order, in
 *                 f32, cast once
 *                                               (DeepEP intranode); with N nodes each node's sum is rounded to T first
 *                                               (internode)
 *
 * `order:last` adds from the last slot to the first. f32 sums start from 0 and add slot by slot; of the recorded sum
 * torch's order differs from it for more than four slots. */
#include "fused/fused.h"
#include "kernel/value_memory.h"

#include <math.h>
#include <string.h>

enum { FROM_FIRST, BY_EXPERT, FROM_LAST };

typedef struct kernel {
    int order;
    bool product_t, sum_t, weight_t, fma;
    int64_t ranks, nodes;
} kernel;

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded ops, one by one"},
    {"index_add", "index_add",
     "experts in ascending order, product and every sum rounded to the type: Hugging Face's eager experts"},
    {"batched", "batched",
     "slots in order, product rounded to the type, summed in f32, cast once: Hugging Face's grouped_mm, "
     "batched_mm"},
    {"batched-f32", "batched-f32", "slots in order, product and sum in f32, cast once: DeepEP's low-latency combine"},
    {"score-bf16", "score-bf16",
     "slots in order, weight, product and every sum rounded to the type: TensorRT-LLM's finalise"},
    {"slots", "slots", "slots in order, product and every sum rounded to the type"},
    {"ranks", "ranks:RANKS[xNODES]",
     "experts spread over ranks: f32 sums sent as the type, added in f32 by rank, per node rounded: DeepEP"},
    {NULL, NULL, NULL}};
#define OPTIONS "order:slot|expert|last, product:f32|t, sum:f32|t, weight:f32|t, fma:off|on"

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    static const struct {
        const char *name;
        kernel kernel;
    } named[] = {{"index_add", {.order = BY_EXPERT, .product_t = true, .sum_t = true}},
                 {"batched", {.product_t = true}},
                 {"batched-f32", {0}},
                 {"score-bf16", {.product_t = true, .sum_t = true, .weight_t = true}},
                 {"slots", {.product_t = true, .sum_t = true}},
                 {"ranks", {.order = BY_EXPERT}}};
    int64_t numbers[2] = {0, 1};
    bool ok = false;
    for (size_t i = 0; i < sizeof named / sizeof *named && !ok; i++)
        if ((ok = !strcmp(text->name, named[i].name))) *k = named[i].kernel;
    const bool ranks = !strcmp(text->name, "ranks");
    const int n = lb_fused_text_numbers(text->parameters, numbers, ranks ? 2 : 0);
    if (!ok || n < 0 || (ranks && (n < 1 || numbers[0] % numbers[1]))) return false;
    k->ranks = numbers[0], k->nodes = numbers[1];
    const int order = lb_fused_text_choice(text, "order", "slot|expert|last", k->order),
              product = lb_fused_text_choice(text, "product", "f32|t", k->product_t),
              sum = lb_fused_text_choice(text, "sum", "f32|t", k->sum_t),
              weight = lb_fused_text_choice(text, "weight", "f32|t", k->weight_t),
              fma = lb_fused_text_choice(text, "fma", "off|on", 0);
    if (order < 0 || product < 0 || sum < 0 || weight < 0 || fma < 0 ||
        !lb_fused_text_keys(text, ranks ? "fma weight" : "order product sum weight fma") || (fma && product))
        return false;
    k->order = order, k->product_t = product, k->sum_t = sum, k->weight_t = weight, k->fma = fma;
    return true;
}

/* ---- who contributes --------------------------------------------------------------------------------------------- */

typedef struct term {
    int64_t expert, slot;
    const char *row;
    double weight;
} term;

typedef struct work {
    lb_frame frame;
    kernel kernel;
    lb_dtype narrow;
    int64_t tokens, hidden, slots, experts, element;
    term *terms; /* (tokens, slots): by slot */
    float *part, *node;
} work;

static double weight_at(const work *work, const void *weights, int64_t i)
{
    return work->frame.wide ? ((const double *)weights)[i] : ((const float *)weights)[i];
}

static void put_term(work *work, int64_t token, int64_t slot, int64_t expert, const char *row, double weight)
{
    if (token < 0 || token >= work->tokens || slot < 0 || slot >= work->slots)
        lb_frame_fail(&work->frame, LB_ERR_INVALID, "a token or slot out of range");
    else
        work->terms[token * work->slots + slot] = (term){expert, slot, row, weight};
    if (expert >= work->experts) work->experts = expert + 1;
}

/* The elements of tensor `i` of the list, dense, at `to`. */
static int64_t load_item(const lb_operand *list, uint32_t i, lb_dtype dtype, void *to)
{
    const lb_tensor *from = &list->tensors[i];
    const lb_tensor dense = {to, dtype, lb_layout_contiguous(from->layout.ndim, from->layout.shape)};
    lb_memory_tensor_copy(&dense, from, NULL);
    return lb_tensor_numel(from);
}

/* Per expert: its rows, their tokens, their slots. */
static void read_list(work *work, lb_call *call, const void *weights)
{
    const lb_operand *list = &call->args[LB_FUSED_LIST];
    const bool by_slot = lb_fused_flags(call) & LB_FINALISE_BY_SLOT;
    int64_t rows = 0, at = 0;
    for (uint32_t e = 0; e + 2 < list->count; e += 3) {
        const int64_t n = lb_tensor_numel(&list->tensors[e + 1]);
        if (n * work->hidden != lb_tensor_numel(&list->tensors[e]) || n != lb_tensor_numel(&list->tensors[e + 2]) ||
            !by_slot)
            lb_frame_fail(&work->frame, LB_ERR_INVALID, "rows, tokens and slots of an expert do not match");
        rows += n;
    }
    char *x = lb_frame_reals(&work->frame, rows * work->hidden + 1);
    int64_t *tokens = lb_frame_scratch(&work->frame, (size_t)(2 * rows + 2) * sizeof *tokens),
            *slots = tokens ? tokens + rows : NULL;
    for (uint32_t e = 0; lb_frame_ok(&work->frame) && e + 2 < list->count; e += 3) {
        load_item(list, e, work->frame.type, x + at * work->hidden * work->element);
        load_item(list, e + 2, LB_I64, slots + at);
        const int64_t end = at + load_item(list, e + 1, LB_I64, tokens + at);
        for (; lb_frame_ok(&work->frame) && at < end; at++)
            put_term(work, tokens[at], slots[at], e / 3, x + at * work->hidden * work->element,
                     tokens[at] < 0 || tokens[at] >= work->tokens || slots[at] < 0 || slots[at] >= work->slots
                         ? 0
                         : weight_at(work, weights, tokens[at] * work->slots + slots[at]));
        at = end;
    }
}

static void read_rows(work *work, lb_call *call, const void *weights, int64_t n_weights)
{
    const lb_tensor *in = lb_fused_input(call, LB_FINALISE_X), *at = lb_fused_input(call, LB_FINALISE_ROWS),
                    *experts = lb_fused_input(call, LB_FINALISE_IDS);
    const bool by_slot = lb_fused_flags(call) & LB_FINALISE_BY_SLOT;
    const int64_t rows = work->hidden ? lb_tensor_numel(in) / work->hidden : 0, n = work->tokens * work->slots;
    const char *x = lb_frame_tensor(&work->frame, in);
    const int64_t *where = at ? lb_frame_integers(&work->frame, at) : NULL,
                  *ids = experts ? lb_frame_integers(&work->frame, experts) : NULL;
    if ((at && lb_tensor_numel(at) != n) || (experts && lb_tensor_numel(experts) != n) ||
        n_weights != (by_slot ? n : rows) || (!at && rows != n))
        lb_frame_fail(&work->frame, LB_ERR_INVALID, "rows, weights and experts do not match");
    if (!ids && work->kernel.order == BY_EXPERT)
        lb_frame_fail(&work->frame, LB_ERR_UNSUPPORTED,
                      "an order by experts needs their numbers, which were not found");
    for (int64_t i = 0; lb_frame_ok(&work->frame) && i < n; i++) {
        const int64_t row = where ? where[i] : i;
        if (row < 0 || row >= rows)
            lb_frame_fail(&work->frame, LB_ERR_INVALID, "a row out of range");
        else
            put_term(work, i / work->slots, i % work->slots, ids ? ids[i] : 0, x + row * work->hidden * work->element,
                     weight_at(work, weights, by_slot ? i : row));
    }
}

static void sort_by_expert(term *terms, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = i; j > 0 && terms[j].expert < terms[j - 1].expert; j--) {
            const term t = terms[j];
            terms[j] = terms[j - 1];
            terms[j - 1] = t;
        }
}

static void turn(term *terms, int64_t n)
{
    for (int64_t i = 0; i < n / 2; i++) {
        const term t = terms[i];
        terms[i] = terms[n - 1 - i], terms[n - 1 - i] = t;
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static void add_terms(const work *work, const term *terms, int64_t n, float *y)
{
    const kernel *kernel = &work->kernel;
    const lb_dtype product = kernel->product_t ? work->narrow : LB_NO_DTYPE,
                   sum = kernel->sum_t ? work->narrow : LB_NO_DTYPE;
    memset(y, 0, (size_t)work->hidden * sizeof *y);
    for (int64_t i = 0; i < n; i++) {
        if (!terms[i].row) continue;
        const float weight = lb_fused_rounded((float)terms[i].weight, kernel->weight_t ? work->narrow : LB_NO_DTYPE),
                    *x = (const float *)terms[i].row;
        for (int64_t d = 0; d < work->hidden; d++)
            y[d] = kernel->fma ? fmaf(x[d], weight, y[d]) : y[d] + lb_fused_rounded(x[d] * weight, product);
        lb_fused_round(y, work->hidden, sum);
    }
}

/* Experts are spread over ranks in runs of equal length. */
static void add_ranks(const work *work, const term *terms, int64_t n, float *y)
{
    const int64_t per_rank = (work->experts + work->kernel.ranks - 1) / work->kernel.ranks,
                  per_node = work->kernel.ranks / work->kernel.nodes;
    memset(y, 0, (size_t)work->hidden * sizeof *y);
    for (int64_t node = 0, i = 0; node < work->kernel.nodes; node++) {
        memset(work->node, 0, (size_t)work->hidden * sizeof *work->node);
        for (int64_t rank = node * per_node; rank < (node + 1) * per_node; rank++) {
            const int64_t first = i;
            while (i < n && terms[i].expert < (rank + 1) * per_rank) i++;
            if (i == first) continue;
            add_terms(work, terms + first, i - first, work->part);
            lb_fused_round(work->part, work->hidden, work->narrow);
            for (int64_t d = 0; d < work->hidden; d++) work->node[d] += work->part[d];
        }
        if (work->kernel.nodes > 1) lb_fused_round(work->node, work->hidden, work->narrow);
        for (int64_t d = 0; d < work->hidden; d++) y[d] += work->node[d];
    }
}

static void add_f64(const work *work, const term *terms, double *y, bool twin, double scale)
{
    for (int64_t d = 0; d < work->hidden; d++) y[d] = 0;
    for (int64_t i = 0; i < work->slots; i++)
        for (int64_t d = 0; terms[i].row && d < work->hidden; d++) {
            const double p = ((const double *)terms[i].row)[d] * terms[i].weight;
            y[d] += twin ? fabs(p) * scale : p;
        }
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    work work = {.frame = lb_frame_begin(call)};
    LB_TRY(lb_fused_kernel_of(call, kind, &work.kernel));
    const lb_tensor *x = lb_fused_input(call, LB_FINALISE_X), *y = &call->results[0],
                    *weights = lb_fused_input(call, LB_FINALISE_WEIGHTS);
    const lb_operand *list = &call->args[LB_FUSED_LIST];
    const bool listed = call->n_args > LB_FUSED_LIST && list->tag == LB_OPERAND_TENSORS && list->count;
    const lb_tensor *like = listed ? &list->tensors[0] : x;
    work.slots = (int64_t)lb_fused_number(call, LB_FINALISE_SLOTS);
    if (!like || !weights || y->layout.ndim < 1 || work.slots < 1) {
        lb_frame_fail(&work.frame, LB_ERR_INVALID, "outputs of experts and their weights are needed");
        return lb_frame_end(&work.frame);
    }
    work.hidden = like->layout.shape[like->layout.ndim - 1];
    work.tokens = work.hidden ? lb_tensor_numel(y) / work.hidden : 0;
    work.element = work.frame.wide ? 8 : 4;
    work.narrow = lb_fused_narrow(&work.frame, like);
    const void *factors = lb_frame_tensor(&work.frame, weights);
    char *out = lb_frame_output(&work.frame, LB_FINALISE_Y, work.tokens * work.hidden);
    work.terms = lb_frame_scratch(&work.frame, (size_t)(work.tokens * work.slots + 1) * sizeof *work.terms);
    work.part = lb_frame_reals(&work.frame, work.hidden + 1), work.node = lb_frame_reals(&work.frame, work.hidden + 1);
    if (listed && lb_tensor_numel(weights) != work.tokens * work.slots)
        lb_frame_fail(&work.frame, LB_ERR_INVALID, "a weight per token and slot is needed");
    if (lb_frame_ok(&work.frame)) {
        memset(work.terms, 0, (size_t)(work.tokens * work.slots) * sizeof *work.terms);
        if (listed)
            read_list(&work, call, factors);
        else
            read_rows(&work, call, factors, lb_tensor_numel(weights));
    }
    const double scale =
        8 + (double)work.slots +
        (2 + 2 * (double)work.slots) *
            lb_frame_twin_scale(call, listed ? LB_FUSED_INPUTS + LB_FINALISE_WEIGHTS : LB_FUSED_INPUTS);
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < work.tokens; i++) {
        term *terms = work.terms + i * work.slots;
        if (work.kernel.order == BY_EXPERT) sort_by_expert(terms, work.slots);
        if (work.kernel.order == FROM_LAST) turn(terms, work.slots);
        char *row = out + i * work.hidden * work.element;
        if (work.frame.wide)
            add_f64(&work, terms, (double *)row, twin, scale);
        else
            (work.kernel.ranks ? add_ranks : add_terms)(&work, terms, work.slots, (float *)row);
    }
    return lb_frame_end(&work.frame);
}

const lb_fused_kind lb_fused_finalise = {
    .row = "fused::finalise",
    .kernels = kernels,
    .options = OPTIONS,
    .usual = "batched-f32",
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .fixed = "eager batched batched-f32 index_add slots score-bf16 batched-f32,fma:on "
             "batched-f32,order:expert batched,order:expert batched-f32,order:expert,fma:on "
             "slots,order:last score-bf16,order:last batched,order:last batched-f32,order:last "
             "batched-f32,weight:t index_add,product:f32 slots,product:f32 ranks:2 ranks:4 ranks:8 "
             "ranks:4x2 ranks:8x2",
};
