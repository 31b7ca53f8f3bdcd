/* Fused dispatches: every token copied once per choice of an expert, rows in the order of the experts. Nothing is
 * rounded; what kernels differ in is the order of the rows of one expert, which whatever adds them up later sees.
 *
 *      stable          by token and slot: a stable sort, or counting
 *      reversed        the last token first
 *      shuffled:SEED   any order: rows that claim their places by an atomic counter, as moe_align kernels of serving
 *                      stacks do */
#include "fused/fused.h"

#include <string.h>

typedef struct kernel {
    bool reversed, shuffled;
    uint64_t seed;
} kernel;

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded ops"},
    {"stable", "stable", "by expert, then by token and slot: a stable sort"},
    {"reversed", "reversed", "by expert, then the last token first"},
    {"shuffled", "shuffled:SEED", "by expert, then in an order drawn from the seed: places by an atomic counter"},
    {NULL, NULL, NULL}};

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    int64_t seed = 0;
    *k = (kernel){.reversed = !strcmp(text->name, "reversed"), .shuffled = !strcmp(text->name, "shuffled")};
    bool known = lb_fused_text_keys(text, "");
    if (k->shuffled)
        known &= lb_fused_text_numbers(text->parameters, &seed, 1) == 1;
    else
        known &= !*text->parameters && (k->reversed || !strcmp(text->name, "stable"));
    k->seed = (uint64_t)seed;
    return known;
}
/* SplitMix64, Steele, Lea and Flood 2014. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void exchange(int64_t *order, int64_t i, int64_t j)
{
    const int64_t t = order[i];
    order[i] = order[j], order[j] = t;
}

/* Rows [first, last) are one expert's. */
static void rearrange(const kernel *kernel, int64_t *order, int64_t first, int64_t last, uint64_t *state)
{
    for (int64_t i = first, j = last - 1; kernel->reversed && i < j; i++, j--) exchange(order, i, j);
    for (int64_t i = last - 1; kernel->shuffled && i > first; i--)
        exchange(order, i, first + (int64_t)(draw(state) % (uint64_t)(i - first + 1)));
}

/* A stable sort by merging halves; `room` has as many places. */
static void sort(const int64_t *ids, int64_t *order, int64_t n, int64_t *room)
{
    if (n < 2) return;
    const int64_t half = n / 2;
    sort(ids, order, half, room), sort(ids, order + half, n - half, room);
    memcpy(room, order, (size_t)half * sizeof *room);
    for (int64_t i = 0, j = half, at = 0; i < half; at++)
        order[at] = j < n && ids[order[j]] < ids[room[i]] ? order[j++] : room[i++];
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    kernel kernel;
    (void)twin; /* a copy */
    LB_TRY(lb_fused_kernel_of(call, kind, &kernel));
    const lb_tensor *x = lb_fused_input(call, LB_DISPATCH_X), *chosen = lb_fused_input(call, LB_DISPATCH_IDS);
    const int64_t slots = (int64_t)lb_fused_number(call, LB_DISPATCH_SLOTS), rows = lb_tensor_numel(chosen),
                  width = x->layout.ndim == 2 ? x->layout.shape[1] : 0;
    if (x->layout.ndim != 2 || slots < 1 || rows != x->layout.shape[0] * slots ||
        (lb_fused_wants(call, LB_DISPATCH_Y) && lb_tensor_numel(&call->results[0]) != rows * width))
        lb_frame_fail(&frame, LB_ERR_INVALID, "tokens, ids and rows do not match");
    const int64_t *ids = lb_frame_integers(&frame, chosen);
    const void *in = lb_frame_tensor(&frame, x);
    void *y = lb_frame_output(&frame, LB_DISPATCH_Y, rows * width);
    int64_t *sorted = lb_fused_wants(call, LB_DISPATCH_SORTED)
                          ? lb_frame_output_integers(&frame, LB_DISPATCH_SORTED, rows)
                          : NULL,
            *given = lb_fused_wants(call, LB_DISPATCH_ORDER) ? lb_frame_output_integers(&frame, LB_DISPATCH_ORDER, rows)
                                                             : NULL;
    int64_t *tokens =
        lb_fused_wants(call, LB_DISPATCH_TOKENS) ? lb_frame_output_integers(&frame, LB_DISPATCH_TOKENS, rows) : NULL;
    int64_t *order = lb_frame_scratch(&frame, (size_t)(2 * rows + 1) * sizeof *order);
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    for (int64_t i = 0; i < rows; i++) order[i] = i;
    sort(ids, order, rows, order + rows);
    uint64_t state = kernel.seed;
    for (int64_t first = 0, last; first < rows; first = last) {
        for (last = first + 1; last < rows && ids[order[last]] == ids[order[first]];) last++;
        rearrange(&kernel, order, first, last, &state);
    }
    for (int64_t i = 0; i < rows; i++) {
        if (sorted) sorted[i] = ids[order[i]];
        if (given) given[i] = order[i];
        if (tokens) tokens[i] = order[i] / slots;
        for (int64_t d = 0; d < width; d++)
            lb_frame_set(&frame, y, i * width + d, lb_frame_get(&frame, in, order[i] / slots * width + d));
    }
    return lb_frame_end(&frame);
}

const lb_fused_kind lb_fused_dispatch = {
    .row = "fused::dispatch",
    .kernels = kernels,
    .options = "",
    .usual = "stable",
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .fixed = "eager stable reversed",
};
