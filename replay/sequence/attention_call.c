/* Reading calls of attention: see attention_call.h. */
#include "sequence/attention_call.h"

#include <math.h>

const lb_tensor *lb_attention_tensor(const lb_call *call, uint8_t position)
{
    return position ? lb_frame_arg_tensor(call, position - 1u) : NULL;
}
static int64_t int_at(const lb_call *call, uint8_t position, int64_t otherwise)
{
    return position ? lb_frame_arg_int(call, position - 1u, otherwise) : otherwise;
}

lb_tensor lb_attention_heads_first(const lb_attention_call *attention, const lb_tensor *tensor)
{
    lb_tensor view = *tensor;
    lb_layout *layout = &view.layout;
    if ((!attention->form->tokens_first && !attention->ragged) || layout->ndim < 3) return view;
    int at = layout->ndim - 3;
    int64_t shape = layout->shape[at], stride = layout->stride[at];
    layout->shape[at] = layout->shape[at + 1], layout->stride[at] = layout->stride[at + 1];
    layout->shape[at + 1] = shape, layout->stride[at + 1] = stride;
    return view;
}

/* Dimension `from_end` (1 is the last) of a (…, heads, tokens, size) tensor; heads of a 2- or 3-d one are 1. */
static int64_t size_at(const lb_tensor *tensor, int from_end)
{
    return tensor->layout.ndim >= from_end ? tensor->layout.shape[tensor->layout.ndim - from_end] : 1;
}

/* The mask as (batch, heads, queries, keys) reals: bools become 0 and -inf. */
static const void *expanded_mask(lb_attention_call *attention, const lb_tensor *mask, const lb_tensor *query)
{
    lb_frame *frame = &attention->frame;
    lb_tensor wide = *mask;
    int ndim = query->layout.ndim;
    wide.layout.ndim = ndim;
    if (mask->layout.ndim > ndim) {
        lb_frame_fail(frame, LB_ERR_INVALID, "a mask of another number of dimensions");
        return NULL;
    }
    for (int d = 0; d < ndim; d++) {
        int own = d - (ndim - mask->layout.ndim);
        int64_t size = own >= 0 ? mask->layout.shape[own] : 1,
                want = d == ndim - 1 ? attention->h.keys : query->layout.shape[d];
        if (size != 1 && size != want) lb_frame_fail(frame, LB_ERR_INVALID, "a mask of another shape");
        wide.layout.shape[d] = want;
        wide.layout.stride[d] = size == 1 ? 0 : mask->layout.stride[own];
    }
    if (mask->dtype != LB_BOOL || attention->form->added_bools) return lb_frame_tensor(frame, &wide);
    const int64_t *keep = lb_frame_integers(frame, &wide);
    int64_t n = lb_tensor_numel(&wide);
    void *x = lb_frame_reals(frame, n);
    for (int64_t i = 0; x && i < n; i++) {
        if (frame->wide)
            ((double *)x)[i] = keep[i] ? 0 : -INFINITY;
        else
            ((float *)x)[i] = keep[i] ? 0 : -INFINITY;
    }
    return x;
}

/* Which keys a query sees, from causal flag, mask type and window. */
static void read_window(lb_attention_call *attention, const lb_call *call)
{
    const lb_attention_form *form = attention->form;
    int64_t type = int_at(call, form->mask_type, 0);
    bool causal = int_at(call, form->causal, 0) != 0 || type != 0;
    attention->h.left = int_at(call, form->left, -1), attention->h.right = int_at(call, form->right, -1);
    if (attention->h.left >= 0 && !form->right)
        attention->h.left--; /* efficient attention counts the query's own key */
    if (causal) attention->h.right = 0;
}
static void set_shift(lb_attention_call *attention, const lb_call *call)
{
    bool bottom = attention->form->corner == LB_BOTTOM_RIGHT || int_at(call, attention->form->mask_type, 0) == 2;
    attention->h.shift = bottom ? attention->h.keys - attention->h.queries : 0;
}

static void read_borders(lb_attention_call *attention, const lb_call *call)
{
    lb_frame *frame = &attention->frame;
    const lb_tensor *queries = lb_attention_tensor(call, attention->form->borders),
                    *keys = lb_attention_tensor(call, (uint8_t)(attention->form->borders + 1));
    attention->sequences = 1;
    if (!attention->ragged) return;
    attention->sequences = queries ? lb_tensor_numel(queries) - 1 : 0;
    attention->query_borders = lb_frame_integers(frame, queries),
    attention->key_borders = lb_frame_integers(frame, keys);
    if (!lb_frame_ok(frame)) return;
    bool fits = keys && lb_tensor_numel(keys) == attention->sequences + 1 &&
                attention->query_borders[attention->sequences] <= attention->tokens &&
                attention->key_borders[attention->sequences] <= attention->kv_tokens;
    for (int64_t s = 0; fits && s < attention->sequences; s++)
        fits = attention->query_borders[s] >= 0 && attention->query_borders[s] <= attention->query_borders[s + 1] &&
               attention->key_borders[s] >= 0 && attention->key_borders[s] <= attention->key_borders[s + 1];
    if (!fits) lb_frame_fail(frame, LB_ERR_INVALID, "borders of sequences do not ascend inside the tensors");
}

/* Fails the frame for what no kernel here computes. */
static void refuse(lb_attention_call *attention, lb_call *call)
{
    const lb_attention_form *form = attention->form;
    lb_frame *frame = &attention->frame;
    const lb_tensor *q = lb_attention_tensor(call, form->query),
                    *k = lb_attention_tensor(call, (uint8_t)(form->query + 1)),
                    *v = lb_attention_tensor(call, (uint8_t)(form->query + 2));
    if (form->dropout && lb_frame_arg_float(call, form->dropout - 1u, 0) != 0)
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "dropout inside attention");
    if (form->cap && lb_frame_arg_float(call, form->cap - 1u, 0) != 0)
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "scores that are capped");
    for (int i = 0; i < 4; i++)
        if (form->refused[i] && lb_frame_arg_given(call, form->refused[i] - 1u))
            lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "slopes, block tables and key lengths are not computed");
    if (q->layout.ndim < (form->tokens_first ? 3 : 2) || k->layout.ndim != q->layout.ndim ||
        v->layout.ndim != q->layout.ndim)
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "attention between tensors of different dimensions");
}

/* Heads, tokens and batches, from tensors with heads first. */
static void read_sizes(lb_attention_call *attention, const lb_tensor *q, const lb_tensor *k, const lb_tensor *v)
{
    attention->heads = size_at(q, 3), attention->kv_heads = size_at(k, 3);
    attention->tokens = size_at(q, 2), attention->kv_tokens = size_at(k, 2);
    attention->batch = 1;
    for (int d = 0; d + 3 < q->layout.ndim; d++) {
        attention->batch *= q->layout.shape[d];
        if (k->layout.shape[d] != q->layout.shape[d] || v->layout.shape[d] != q->layout.shape[d])
            lb_frame_fail(&attention->frame, LB_ERR_UNSUPPORTED, "batches that are broadcast");
    }
    attention->h.queries = attention->tokens, attention->h.keys = attention->kv_tokens;
    attention->h.size = size_at(q, 1), attention->h.values = size_at(v, 1);
    if (size_at(v, 3) != attention->kv_heads || !attention->kv_heads || attention->heads % attention->kv_heads ||
        size_at(v, 2) != attention->kv_tokens || size_at(k, 1) != attention->h.size)
        lb_frame_fail(&attention->frame, LB_ERR_INVALID, "query, key and value do not match");
}

/* How one head is computed; its sizes are known. */
static void set_numbers(lb_attention_call *attention, lb_call *call, lb_dtype dtype)
{
    const lb_attention_form *form = attention->form;
    const bool wide = attention->frame.wide;
    lb_attention_head *head = &attention->h;
    head->type = attention->frame.type, head->method = call->method;
    head->empty_lse = form->of_cpu ? 0 : form->lse_plus_inf ? INFINITY : -INFINITY;
    head->scale = 1 / sqrt((double)head->size);
    if (form->scale) head->scale = lb_frame_arg_float(call, form->scale - 1u, head->scale);
    if (!wide) head->scale = (float)head->scale;
    const bool narrow = lb_dtype_bits(dtype) == 16 && lb_dtype_bits(call->results[0].dtype) == 16 && !form->wide;
    head->rounds = narrow && !wide ? dtype : LB_NO_DTYPE;
    if (form->of_cpu) head->vector = dtype == LB_F64 ? 8 : 16; /* AVX-512; with AVX2 it is half as much */
    if (form->of_cpu && dtype != LB_F64) head->fast_exp = dtype;
    attention->element = wide ? 8 : 4;
}

bool lb_attention_begin(lb_attention_call *attention, lb_call *call, const lb_attention_form *form)
{
    *attention = (lb_attention_call){.frame = lb_frame_begin(call), .form = form};
    const lb_tensor *q = lb_attention_tensor(call, form->query),
                    *k = lb_attention_tensor(call, (uint8_t)(form->query + 1)),
                    *v = lb_attention_tensor(call, (uint8_t)(form->query + 2));
    lb_frame *frame = &attention->frame;
    attention->ragged = lb_attention_tensor(call, form->borders) &&
                        lb_tensor_numel(lb_attention_tensor(call, form->borders)) > 1 &&
                        (q->layout.ndim == 3 || form->tokens_first);
    refuse(attention, call);
    if (!lb_frame_ok(frame)) return false;
    const lb_tensor qs = lb_attention_heads_first(attention, q), ks = lb_attention_heads_first(attention, k),
                    vs = lb_attention_heads_first(attention, v);
    read_sizes(attention, &qs, &ks, &vs);
    set_numbers(attention, call, q->dtype);
    read_window(attention, call);
    read_borders(attention, call);
    attention->q = lb_frame_tensor(frame, &qs), attention->k = lb_frame_tensor(frame, &ks),
    attention->v = lb_frame_tensor(frame, &vs);
    const lb_tensor *mask = lb_attention_tensor(call, form->mask);
    if (mask && lb_tensor_numel(mask) && attention->ragged)
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "a mask over ragged sequences");
    attention->mask = mask && lb_frame_ok(frame) && lb_tensor_numel(mask) ? expanded_mask(attention, mask, &qs) : NULL;
    attention->h.skips_nan = attention->h.vector && !attention->mask;
    return lb_frame_ok(frame);
}

lb_attention_sequence lb_attention_sequence_of(lb_attention_call *attention, int64_t s)
{
    lb_attention_sequence one = {0, 0, attention->tokens, attention->kv_tokens};
    if (attention->ragged)
        one = (lb_attention_sequence){attention->query_borders[s], attention->key_borders[s],
                                      attention->query_borders[s + 1] - attention->query_borders[s],
                                      attention->key_borders[s + 1] - attention->key_borders[s]};
    attention->h.queries = one.queries, attention->h.keys = one.keys;
    set_shift(attention, attention->frame.call);
    return one;
}

/* Head i of batch * heads reads key and value head… */
static int64_t kv_index(const lb_attention_call *attention, int64_t i)
{
    return i / attention->heads * attention->kv_heads + i % attention->heads / (attention->heads / attention->kv_heads);
}

int64_t lb_attention_query_at(const lb_attention_call *attention, const lb_attention_sequence *sequence, int64_t i,
                              int64_t width)
{
    return (i * attention->tokens + sequence->first_query) * width * attention->element;
}
int64_t lb_attention_key_at(const lb_attention_call *attention, const lb_attention_sequence *sequence, int64_t i,
                            int64_t width)
{
    return (kv_index(attention, i) * attention->kv_tokens + sequence->first_key) * width * attention->element;
}
const void *lb_attention_mask_of(const lb_attention_call *attention, int64_t i)
{
    return attention->mask ? attention->mask + i * attention->h.queries * attention->h.keys * attention->element : NULL;
}

/* ---- log-sum-exps ------------------------------------------------------------------------------------------------ */

int64_t lb_attention_lse_rows(const lb_attention_call *attention, int64_t numel)
{
    if (attention->ragged && attention->form->ragged_lse_by_head) return attention->tokens;
    int64_t heads = attention->batch * attention->heads * attention->sequences;
    return heads ? numel / heads : 0;
}

int64_t lb_attention_lse_at(const lb_attention_call *attention, const lb_attention_sequence *one, int64_t s, int64_t i,
                            int64_t rows)
{
    if (attention->ragged && attention->form->ragged_lse_by_head)
        return (i * rows + one->first_query) * attention->element;
    return (s * attention->batch * attention->heads + i) * rows * attention->element;
}

int64_t lb_attention_longest(const lb_attention_call *attention)
{
    int64_t most = attention->ragged ? 0 : attention->tokens;
    for (int64_t s = 0; attention->ragged && s < attention->sequences; s++)
        if (attention->query_borders[s + 1] - attention->query_borders[s] > most)
            most = attention->query_borders[s + 1] - attention->query_borders[s];
    return most;
}

void *lb_attention_lse_output(lb_attention_call *attention, int64_t *rows)
{
    const lb_call *call = attention->frame.call;
    bool there = call->n_results > 1 && call->results[1].data && !attention->form->weights;
    *rows = there ? lb_attention_lse_rows(attention, lb_tensor_numel(&call->results[1])) : 0;
    int64_t heads = attention->batch * attention->heads *
                    (attention->ragged && attention->form->ragged_lse_by_head ? 1 : attention->sequences);
    if (*rows >= lb_attention_longest(attention) && heads) return lb_frame_output(&attention->frame, 1, heads * *rows);
    *rows =
        attention->ragged && attention->form->ragged_lse_by_head ? attention->tokens : lb_attention_longest(attention);
    return lb_frame_reals(&attention->frame, heads * *rows);
}

void lb_attention_pad_lse(const lb_attention_call *attention, char *lse, int64_t rows)
{
    for (int64_t j = attention->h.queries; j < rows && !(attention->ragged && attention->form->ragged_lse_by_head);
         j++) {
        if (attention->frame.wide)
            ((double *)lse)[j] = INFINITY;
        else
            ((float *)lse)[j] = INFINITY;
    }
}
