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

lb_tensor lb_attention_heads_first(const lb_attention_call *a, const lb_tensor *tensor)
{
    lb_tensor view = *tensor;
    lb_layout *l = &view.layout;
    if ((!a->form->tokens_first && !a->ragged) || l->ndim < 3) return view;
    int at = l->ndim - 3;
    int64_t shape = l->shape[at], stride = l->stride[at];
    l->shape[at] = l->shape[at + 1], l->stride[at] = l->stride[at + 1];
    l->shape[at + 1] = shape, l->stride[at + 1] = stride;
    return view;
}

/* Dimension `from_end` (1 is the last) of a (…, heads, tokens, size) tensor; heads of a 2- or 3-d one are 1. */
static int64_t size_at(const lb_tensor *t, int from_end)
{
    return t->layout.ndim >= from_end ? t->layout.shape[t->layout.ndim - from_end] : 1;
}

/* The mask as (batch, heads, queries, keys) reals: bools become 0 and -inf. */
static const void *expanded_mask(lb_attention_call *a, const lb_tensor *mask, const lb_tensor *query)
{
    lb_frame *f = &a->frame;
    lb_tensor wide = *mask;
    int ndim = query->layout.ndim;
    wide.layout.ndim = ndim;
    if (mask->layout.ndim > ndim) {
        lb_frame_fail(f, LB_ERR_INVALID, "a mask of another number of dimensions");
        return NULL;
    }
    for (int d = 0; d < ndim; d++) {
        int own = d - (ndim - mask->layout.ndim);
        int64_t size = own >= 0 ? mask->layout.shape[own] : 1,
                want = d == ndim - 1 ? a->h.keys : query->layout.shape[d];
        if (size != 1 && size != want) lb_frame_fail(f, LB_ERR_INVALID, "a mask of another shape");
        wide.layout.shape[d] = want;
        wide.layout.stride[d] = size == 1 ? 0 : mask->layout.stride[own];
    }
    if (mask->dtype != LB_BOOL || a->form->added_bools) return lb_frame_tensor(f, &wide);
    const int64_t *keep = lb_frame_integers(f, &wide);
    int64_t n = lb_tensor_numel(&wide);
    void *x = lb_frame_reals(f, n);
    for (int64_t i = 0; x && i < n; i++) {
        if (f->wide)
            ((double *)x)[i] = keep[i] ? 0 : -INFINITY;
        else
            ((float *)x)[i] = keep[i] ? 0 : -INFINITY;
    }
    return x;
}

/* Which keys a query sees, from causal flag, mask type and window. */
static void read_window(lb_attention_call *a, const lb_call *call)
{
    const lb_attention_form *form = a->form;
    int64_t type = int_at(call, form->mask_type, 0);
    bool causal = int_at(call, form->causal, 0) != 0 || type != 0;
    a->h.left = int_at(call, form->left, -1), a->h.right = int_at(call, form->right, -1);
    if (a->h.left >= 0 && !form->right) a->h.left--; /* efficient attention counts the query's own key */
    if (causal) a->h.right = 0;
}
static void set_shift(lb_attention_call *a, const lb_call *call)
{
    bool bottom = a->form->corner == LB_BOTTOM_RIGHT || int_at(call, a->form->mask_type, 0) == 2;
    a->h.shift = bottom ? a->h.keys - a->h.queries : 0;
}

static void read_borders(lb_attention_call *a, const lb_call *call)
{
    lb_frame *f = &a->frame;
    const lb_tensor *queries = lb_attention_tensor(call, a->form->borders),
                    *keys = lb_attention_tensor(call, (uint8_t)(a->form->borders + 1));
    a->sequences = 1;
    if (!a->ragged) return;
    a->sequences = queries ? lb_tensor_numel(queries) - 1 : 0;
    a->query_borders = lb_frame_integers(f, queries), a->key_borders = lb_frame_integers(f, keys);
    if (!lb_frame_ok(f)) return;
    bool fits = keys && lb_tensor_numel(keys) == a->sequences + 1 && a->query_borders[a->sequences] <= a->tokens &&
                a->key_borders[a->sequences] <= a->kv_tokens;
    for (int64_t s = 0; fits && s < a->sequences; s++)
        fits = a->query_borders[s] >= 0 && a->query_borders[s] <= a->query_borders[s + 1] && a->key_borders[s] >= 0 &&
               a->key_borders[s] <= a->key_borders[s + 1];
    if (!fits) lb_frame_fail(f, LB_ERR_INVALID, "borders of sequences do not ascend inside the tensors");
}

bool lb_attention_begin(lb_attention_call *a, lb_call *call, const lb_attention_form *form)
{
    *a = (lb_attention_call){.frame = lb_frame_begin(call), .form = form};
    const lb_tensor *q = lb_attention_tensor(call, form->query),
                    *k = lb_attention_tensor(call, (uint8_t)(form->query + 1));
    const lb_tensor *v = lb_attention_tensor(call, (uint8_t)(form->query + 2));
    lb_frame *f = &a->frame;
    a->ragged = lb_attention_tensor(call, form->borders) &&
                lb_tensor_numel(lb_attention_tensor(call, form->borders)) > 1 &&
                (q->layout.ndim == 3 || form->tokens_first);
    if (form->dropout && lb_frame_arg_float(call, form->dropout - 1u, 0) != 0)
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "dropout inside attention");
    if (form->cap && lb_frame_arg_float(call, form->cap - 1u, 0) != 0)
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "scores that are capped");
    for (int i = 0; i < 4; i++)
        if (form->refused[i] && lb_frame_arg_given(call, form->refused[i] - 1u))
            lb_frame_fail(f, LB_ERR_UNSUPPORTED, "slopes, block tables and key lengths are not computed");
    if (q->layout.ndim < (form->tokens_first ? 3 : 2) || k->layout.ndim != q->layout.ndim ||
        v->layout.ndim != q->layout.ndim)
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "attention between tensors of different dimensions");
    if (!lb_frame_ok(f)) return false;
    lb_tensor qs = lb_attention_heads_first(a, q), ks = lb_attention_heads_first(a, k),
              vs = lb_attention_heads_first(a, v);
    a->heads = size_at(&qs, 3), a->kv_heads = size_at(&ks, 3);
    a->tokens = size_at(&qs, 2), a->kv_tokens = size_at(&ks, 2);
    a->batch = 1;
    for (int d = 0; d + 3 < qs.layout.ndim; d++) {
        a->batch *= qs.layout.shape[d];
        if (ks.layout.shape[d] != qs.layout.shape[d] || vs.layout.shape[d] != qs.layout.shape[d])
            lb_frame_fail(f, LB_ERR_UNSUPPORTED, "batches that are broadcast");
    }
    a->h = (lb_attention_head){.type = f->type,
                               .method = call->method,
                               .queries = a->tokens,
                               .keys = a->kv_tokens,
                               .size = size_at(&qs, 1),
                               .values = size_at(&vs, 1),
                               .empty_lse = form->of_cpu         ? 0
                                            : form->lse_plus_inf ? INFINITY
                                                                 : -INFINITY};
    a->h.scale = 1 / sqrt((double)a->h.size);
    if (form->scale) a->h.scale = lb_frame_arg_float(call, form->scale - 1u, a->h.scale);
    if (!f->wide) a->h.scale = (float)a->h.scale;
    bool narrow = lb_dtype_bits(q->dtype) == 16 && lb_dtype_bits(call->results[0].dtype) == 16 && !form->wide;
    a->h.rounds = narrow && !f->wide ? q->dtype : LB_NO_DTYPE;
    if (size_at(&vs, 3) != a->kv_heads || !a->kv_heads || a->heads % a->kv_heads || size_at(&vs, 2) != a->kv_tokens ||
        size_at(&ks, 1) != a->h.size)
        lb_frame_fail(f, LB_ERR_INVALID, "query, key and value do not match");
    read_window(a, call);
    read_borders(a, call);
    a->q = lb_frame_tensor(f, &qs), a->k = lb_frame_tensor(f, &ks), a->v = lb_frame_tensor(f, &vs);
    const lb_tensor *mask = lb_attention_tensor(call, form->mask);
    if (mask && lb_tensor_numel(mask) && a->ragged)
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "a mask over ragged sequences");
    a->mask = mask && lb_frame_ok(f) && lb_tensor_numel(mask) ? expanded_mask(a, mask, &qs) : NULL;
    if (form->of_cpu) a->h.vector = q->dtype == LB_F64 ? 8 : 16; /* AVX-512; with AVX2 it is half as much */
    if (form->of_cpu && q->dtype != LB_F64) a->h.fast_exp = q->dtype;
    a->h.skips_nan = a->h.vector && !a->mask;
    a->element = f->wide ? 8 : 4;
    return lb_frame_ok(f);
}

lb_attention_sequence lb_attention_sequence_of(lb_attention_call *a, int64_t s)
{
    lb_attention_sequence one = {0, 0, a->tokens, a->kv_tokens};
    if (a->ragged)
        one = (lb_attention_sequence){a->query_borders[s], a->key_borders[s],
                                      a->query_borders[s + 1] - a->query_borders[s],
                                      a->key_borders[s + 1] - a->key_borders[s]};
    a->h.queries = one.queries, a->h.keys = one.keys;
    set_shift(a, a->frame.call);
    return one;
}

/* Head i of batch * heads reads key and value head… */
static int64_t kv_index(const lb_attention_call *a, int64_t i)
{
    return i / a->heads * a->kv_heads + i % a->heads / (a->heads / a->kv_heads);
}

int64_t lb_attention_query_at(const lb_attention_call *a, const lb_attention_sequence *s, int64_t i, int64_t width)
{
    return (i * a->tokens + s->first_query) * width * a->element;
}
int64_t lb_attention_key_at(const lb_attention_call *a, const lb_attention_sequence *s, int64_t i, int64_t width)
{
    return (kv_index(a, i) * a->kv_tokens + s->first_key) * width * a->element;
}
const void *lb_attention_mask_of(const lb_attention_call *a, int64_t i)
{
    return a->mask ? a->mask + i * a->h.queries * a->h.keys * a->element : NULL;
}

/* ---- log-sum-exps ------------------------------------------------------------------------------------------------ */

int64_t lb_attention_lse_rows(const lb_attention_call *a, int64_t numel)
{
    if (a->ragged && a->form->ragged_lse_by_head) return a->tokens;
    int64_t heads = a->batch * a->heads * a->sequences;
    return heads ? numel / heads : 0;
}

int64_t lb_attention_lse_at(const lb_attention_call *a, const lb_attention_sequence *one, int64_t s, int64_t i,
                            int64_t rows)
{
    if (a->ragged && a->form->ragged_lse_by_head) return (i * rows + one->first_query) * a->element;
    return (s * a->batch * a->heads + i) * rows * a->element;
}

int64_t lb_attention_longest(const lb_attention_call *a)
{
    int64_t most = a->ragged ? 0 : a->tokens;
    for (int64_t s = 0; a->ragged && s < a->sequences; s++)
        if (a->query_borders[s + 1] - a->query_borders[s] > most) most = a->query_borders[s + 1] - a->query_borders[s];
    return most;
}

void *lb_attention_lse_output(lb_attention_call *a, int64_t *rows)
{
    const lb_call *call = a->frame.call;
    bool there = call->n_results > 1 && call->results[1].data && !a->form->weights;
    *rows = there ? lb_attention_lse_rows(a, lb_tensor_numel(&call->results[1])) : 0;
    int64_t heads = a->batch * a->heads * (a->ragged && a->form->ragged_lse_by_head ? 1 : a->sequences);
    if (*rows >= lb_attention_longest(a) && heads) return lb_frame_output(&a->frame, 1, heads * *rows);
    *rows = a->ragged && a->form->ragged_lse_by_head ? a->tokens : lb_attention_longest(a);
    return lb_frame_reals(&a->frame, heads * *rows);
}

void lb_attention_pad_lse(const lb_attention_call *a, char *lse, int64_t rows)
{
    for (int64_t j = a->h.queries; j < rows && !(a->ragged && a->form->ragged_lse_by_head); j++) {
        if (a->frame.wide)
            ((double *)lse)[j] = INFINITY;
        else
            ((float *)lse)[j] = INFINITY;
    }
}
