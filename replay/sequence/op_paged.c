/* Attention over a cache of keys and values in blocks, and the ops that fill it, under vLLM's names.
 *
 *      paged_attention_v1, _v2     one query per sequence; v2 also leaves partial results, which are taken as recorded
 *      reshape_and_cache           key cache (blocks, heads, size / x, block, x), value cache (blocks, heads, size,
 *                                  block)
 *      reshape_and_cache_flash     both (blocks, block, heads, size), however they are strided
 *
 * Names and schemas: vllm-project/vllm csrc/torch_bindings.cpp; layouts: csrc/cache_kernels.cu,
 * csrc/attention/attention_kernels.cuh. A cache in fp8, slopes and sparse blocks are not computed. */
#include "functions/elementary.h"
#include "kernel/frame.h"
#include "kernel/value_memory.h"

#include <math.h>
#include <string.h>

static bool is_auto(const lb_call *call, uint32_t i)
{
    return i >= call->n_args || call->args[i].tag != LB_OPERAND_STRING || !strcmp(call->args[i].string, "auto");
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Positions in the schema. The exponentials' sum has this added, so that it is never 0. */
typedef struct paged_form {
    uint8_t query, scale, tables, lengths, slopes, kind, vertical;
} paged_form;
#define SUM_FLOOR 1e-6

typedef struct paged {
    lb_frame frame;
    const lb_layout *k, *v;
    const void *q, *keys, *values;
    const int64_t *tables, *lengths;
    int64_t sequences, heads, kv_heads, size, block, per_sequence;
    double scale, rounding; /* of a twin: the weights' 16 bits */
    bool twin;
} paged;

/* One head of one sequence. `p` has a place for each of its keys, `t` too: the terms of a score, added up as
 * magnitudes. */
static void attend(const paged *paged, int64_t s, int64_t head, double *p, double *t, void *y)
{
    const int64_t length = paged->lengths[s], kv = head / (paged->heads / paged->kv_heads),
                  from = (s * paged->heads + head) * paged->size;
    const int64_t x = paged->k->shape[4], of_block = paged->kv_heads * paged->size * paged->block;
    double top = -INFINITY, total = SUM_FLOOR, weighted = 0;
    for (int64_t j = 0; j < length; j++) {
        const int64_t base = paged->tables[s * paged->per_sequence + j / paged->block] * of_block +
                             kv * paged->size * paged->block,
                      offset = j % paged->block;
        double score = 0, terms = 0;
        for (int64_t d = 0; d < paged->size; d++) {
            const double term =
                lb_frame_get(&paged->frame, paged->q, from + d) *
                lb_frame_get(&paged->frame, paged->keys, base + (d / x * paged->block + offset) * x + d % x);
            score += term, terms += fabs(term);
        }
        p[j] = score * paged->scale, t[j] = terms * fabs(paged->scale);
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < length; j++) t[j] += fabs(p[j] - top), total += p[j] = lb_exp(p[j] - top);
    for (int64_t j = 0; j < length; j++) p[j] /= total, weighted += p[j] * t[j];
    for (int64_t d = 0; d < paged->size; d++) {
        double sum = 0;
        for (int64_t j = 0; j < length; j++) {
            const int64_t base =
                paged->tables[s * paged->per_sequence + j / paged->block] * of_block + kv * paged->size * paged->block;
            const double value = lb_frame_get(&paged->frame, paged->values, base + d * paged->block + j % paged->block);
            sum += paged->twin ? p[j] * fabs(value) * (1 + paged->rounding + t[j] + weighted) : p[j] * value;
        }
        lb_frame_set(&paged->frame, y, from + d, sum);
    }
}

static bool fits(const paged *paged, const lb_tensor *keys, const lb_tensor *values, const lb_tensor *tables,
                 int64_t *longest)
{
    if (keys->layout.ndim != 5 || values->layout.ndim != 4 || tables->layout.ndim != 2 ||
        paged->heads % paged->kv_heads || paged->v->shape[2] != paged->size ||
        paged->k->shape[2] * paged->k->shape[4] != paged->size || paged->k->shape[1] != paged->kv_heads)
        return false;
    for (int64_t s = 0; s < paged->sequences; s++) {
        *longest = paged->lengths[s] > *longest ? paged->lengths[s] : *longest;
        if (paged->lengths[s] < 0 || paged->lengths[s] > paged->per_sequence * paged->block) return false;
        for (int64_t b = 0; b * paged->block < paged->lengths[s]; b++)
            if (paged->tables[s * paged->per_sequence + b] < 0 ||
                paged->tables[s * paged->per_sequence + b] >= paged->k->shape[0])
                return false;
    }
    return true;
}

static lb_status paged_attention(lb_call *call, const paged_form *paged_form, bool twin)
{
    paged paged = {.frame = lb_frame_begin(call), .twin = twin};
    const lb_tensor *q = lb_frame_arg_tensor(call, paged_form->query),
                    *keys = lb_frame_arg_tensor(call, paged_form->query + 1u),
                    *values = lb_frame_arg_tensor(call, paged_form->query + 2u),
                    *tables = lb_frame_arg_tensor(call, paged_form->tables),
                    *lengths = lb_frame_arg_tensor(call, paged_form->lengths);
    if (lb_frame_arg_given(call, paged_form->slopes) || !is_auto(call, paged_form->kind) ||
        lb_frame_arg_int(call, paged_form->vertical, 0) > 1)
        lb_frame_fail(&paged.frame, LB_ERR_UNSUPPORTED, "slopes, caches in fp8 and sparse blocks are not computed");
    if (!q || !keys || !values || !tables || !lengths || q->layout.ndim != 3 || keys->layout.ndim != 5)
        lb_frame_fail(&paged.frame, LB_ERR_UNSUPPORTED, "tensors of other dimensions than vLLM's");
    if (!lb_frame_ok(&paged.frame)) return lb_frame_end(&paged.frame);
    paged.k = &keys->layout, paged.v = &values->layout;
    paged.sequences = q->layout.shape[0], paged.heads = q->layout.shape[1], paged.size = q->layout.shape[2];
    paged.kv_heads = lb_frame_arg_int(call, paged_form->query + 3u, paged.heads), paged.block = paged.k->shape[3],
    paged.per_sequence = tables->layout.shape[1];
    paged.scale = lb_frame_arg_float(call, paged_form->scale, 1),
    paged.rounding = lb_frame_twin_rounding(call, paged_form->query);
    paged.q = lb_frame_tensor(&paged.frame, q), paged.keys = lb_frame_tensor(&paged.frame, keys),
    paged.values = lb_frame_tensor(&paged.frame, values);
    paged.tables = lb_frame_integers(&paged.frame, tables), paged.lengths = lb_frame_integers(&paged.frame, lengths);
    void *y = lb_frame_output(&paged.frame, 0, lb_tensor_numel(q));
    int64_t longest = 0;
    if (lb_frame_ok(&paged.frame) && !fits(&paged, keys, values, tables, &longest))
        lb_frame_fail(&paged.frame, LB_ERR_INVALID, "tables that point outside the cache");
    double *p = lb_frame_scratch(&paged.frame, (size_t)(longest + 1) * 16);
    for (int64_t i = 0; lb_frame_ok(&paged.frame) && i < paged.sequences * paged.heads; i++)
        attend(&paged, i / paged.heads, i % paged.heads, p, p + longest, y);
    return lb_frame_end(&paged.frame);
}

static const paged_form v1 = {
    .query = 1, .scale = 5, .tables = 6, .lengths = 7, .slopes = 10, .kind = 11, .vertical = 16};
static const paged_form v2 = {
    .query = 4, .scale = 8, .tables = 9, .lengths = 10, .slopes = 13, .kind = 14, .vertical = 19};
LB_WITH_TWIN(v1, paged_attention(call, &v1, twin))
LB_WITH_TWIN(v2, paged_attention(call, &v2, twin))

/* ---- filling the cache ------------------------------------------------------------------------------------------- */

static void *moved(const lb_tensor *tensor, int64_t elements)
{
    return (char *)tensor->data + elements * (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
}

/* A token's (heads, size) go to `slot`. In the first layout sizes are cut in pieces of x, or stand before the block. */
static void put_token(const lb_tensor *in, int64_t token, const lb_tensor *cache, int64_t slot, bool flash)
{
    const lb_layout *layout = &cache->layout;
    const int64_t heads = in->layout.shape[1], size = in->layout.shape[2],
                  block = flash ? layout->shape[1] : layout->shape[3],
                  x = !flash && layout->ndim == 5 ? layout->shape[4] : 1;
    lb_tensor from = *in, to = *cache;
    from.layout.ndim = to.layout.ndim = 3;
    const int64_t shape[3] = {heads, size / x, x},
                  in_stride[3] = {in->layout.stride[1], in->layout.stride[2] * x, in->layout.stride[2]},
                  out_stride[3] = {flash ? layout->stride[2] : layout->stride[1],
                                   flash ? layout->stride[3] : layout->stride[2],
                                   !flash && layout->ndim == 5 ? layout->stride[4] : 1};
    for (int d = 0; d < 3; d++) {
        from.layout.shape[d] = to.layout.shape[d] = shape[d];
        from.layout.stride[d] = in_stride[d], to.layout.stride[d] = out_stride[d];
    }
    from.data = moved(in, token * in->layout.stride[0]);
    to.data =
        moved(cache, slot / block * layout->stride[0] + slot % block * (flash ? layout->stride[1] : layout->stride[3]));
    lb_memory_tensor_copy(&to, &from, NULL);
}

/* key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, …; a negative slot takes nothing. */
static lb_status fill(lb_call *call, bool flash)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *slots = lb_frame_arg_tensor(call, 4);
    const int64_t *slot = lb_frame_integers(&frame, slots), n = slots ? lb_tensor_numel(slots) : 0;
    if (!is_auto(call, 5)) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "caches in fp8 are not filled");
    for (uint32_t i = 0; lb_frame_ok(&frame) && i < 2 && i < call->n_results; i++) {
        const lb_tensor *in = lb_frame_arg_tensor(call, i), *before = lb_frame_arg_tensor(call, 2 + i),
                        *cache = &call->results[i];
        if (!cache->data) continue;
        const lb_layout *layout = &cache->layout;
        const bool shaped = in && before && in->layout.ndim == 3 && n <= in->layout.shape[0] &&
                            lb_dtype_bits(cache->dtype) >= 8 &&
                            (flash ? layout->ndim == 4 && layout->shape[2] == in->layout.shape[1] &&
                                         layout->shape[3] == in->layout.shape[2]
                                   : layout->ndim == (i ? 4 : 5) && layout->shape[1] == in->layout.shape[1] &&
                                         layout->shape[2] * (i ? 1 : layout->shape[4]) == in->layout.shape[2]);
        if (!shaped) {
            lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a cache of another shape than vLLM's");
            break;
        }
        const int64_t places = layout->shape[0] * (flash ? layout->shape[1] : layout->shape[3]);
        if (before->data && before->data != cache->data) lb_memory_tensor_copy(cache, before, NULL);
        for (int64_t t = 0; lb_frame_ok(&frame) && t < n; t++) {
            if (slot[t] >= places)
                lb_frame_fail(&frame, LB_ERR_INVALID, "a slot outside the cache");
            else if (slot[t] >= 0)
                put_token(in, t, cache, slot[t], flash);
        }
    }
    return lb_frame_end(&frame);
}
static lb_status fill_blocks(lb_call *call)
{
    return fill(call, false);
}
static lb_status fill_flash(lb_call *call)
{
    return fill(call, true);
}

#define CACHE                                                                                                          \
    "query! key_cache value_cache num_kv_heads scale block_tables seq_lens block_size max_seq_len alibi_slopes "       \
    "kv_cache_dtype "                                                                                                  \
    "k_scale v_scale tp_rank blocksparse_local_blocks blocksparse_vert_stride blocksparse_block_size "                 \
    "blocksparse_head_sliding_step"
#define FILL "key! value key_cache value_cache slot_mapping kv_cache_dtype k_scale v_scale"
const lb_op_row lb_rows_paged[] = {
    {.name = "_C::paged_attention_v1",
     .args = "out! " CACHE,
     LB_COMPUTED_BY(v1),
     .roundings = 64,
     .flags = LB_ROW_WRITES,
     .samples = "custom"},
    {.name = "_C::paged_attention_v2",
     .args = "out! exp_sums max_logits tmp_out " CACHE,
     LB_COMPUTED_BY(v2),
     .roundings = 64,
     .flags = LB_ROW_WRITES | LB_ROW_GIVEN(1, 3),
     .samples = "custom"},
    {.name = "_C_cache_ops::reshape_and_cache",
     .args = FILL,
     .kernel = fill_blocks,
     .flags = LB_ROW_EXACT | LB_ROW_WRITES,
     .samples = "custom"},
    {.name = "_C_cache_ops::reshape_and_cache_flash",
     .args = FILL,
     .kernel = fill_flash,
     .flags = LB_ROW_EXACT | LB_ROW_WRITES,
     .samples = "custom"},
    {NULL},
};
