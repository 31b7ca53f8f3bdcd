/* See comparison.h. Names meet by the user's rules and known spellings; what one side alone has is looked for among what the other
 * fuses or stacks: q, k and v in one matrix (side by side, or head group by head group), gate and up, experts. */
#include "comparison.h"

#include "layer_names.h"
#include "value_match.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One side: its names as the other may call them. */
typedef struct side {
    const lb_inventory *v;
    char **names;    /* by row of v->names */
    uint32_t *order; /* rows by those names */
    bool *done;
} side;

static const side *sorted;
#pragma omp threadprivate(sorted)

static int by_side_name(const void *a, const void *b)
{
    return strcmp(sorted->names[*(const uint32_t *)a], sorted->names[*(const uint32_t *)b]);
}

static uint32_t find(const side *s, const char *name)
{
    uint32_t low = 0, high = s->v->n_names;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        int order = strcmp(s->names[s->order[middle]], name);
        if (order == 0) return s->order[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT32_MAX;
}

static bool side_init(side *s, const lb_inventory *v, const lb_map_rules *rules)
{
    const uint32_t n = v->n_names;
    *s = (side){v, (char **)calloc(n + 1u, sizeof(char *)), (uint32_t *)malloc((n + 1u) * sizeof(uint32_t)),
                (bool *)calloc(n + 1u, 1)};
    for (uint32_t i = 0; s->names && s->order && s->done && i < n; i++) {
        s->names[i] = lb_map_rules_apply(rules, v->names[i].name);
        s->order[i] = i;
        if (!s->names[i]) return false;
    }
    return s->names && s->order && s->done;
}

static void side_sort(side *s)
{
    sorted = s;
    if (s->v->n_names) qsort(s->order, s->v->n_names, sizeof *s->order, by_side_name);
}

static void side_release(side *s)
{
    for (uint32_t i = 0; s->names && i < s->v->n_names; i++) free(s->names[i]);
    free(s->names);
    free(s->order);
    free(s->done);
}

/* ---- two tensors ---------------------------------------------------------------------------------------------------------- */

static lb_tensor transposed(const lb_tensor *t)
{
    lb_tensor turned = *t;
    const int n = t->layout.ndim;
    turned.layout.shape[n - 2] = t->layout.shape[n - 1], turned.layout.shape[n - 1] = t->layout.shape[n - 2];
    turned.layout.stride[n - 2] = t->layout.stride[n - 1], turned.layout.stride[n - 1] = t->layout.stride[n - 2];
    return turned;
}

/* The better of: as it is, its last two dimensions exchanged. False when neither has b's shape. */
static lb_status match_either_way(const lb_tensor *a, const lb_tensor *b, lb_value_match *m, bool *fits, bool *turned,
                                  lb_err *err)
{
    lb_value_match other;
    *fits = lb_layout_same_shape(&a->layout, &b->layout);
    *turned = false;
    if (*fits) LB_TRY(lb_value_match_of(a, b, m, err));
    if (a->layout.ndim < 2 || a->layout.ndim != b->layout.ndim || (*fits && m->match != LB_AUDIT_IS_DIFFERENT) ||
        lb_dtype_bits(a->dtype) < 8)
        return LB_OK;
    lb_tensor t = transposed(a);
    if (!lb_layout_same_shape(&t.layout, &b->layout)) return LB_OK;
    LB_TRY(lb_value_match_of(&t, b, &other, err));
    if (!*fits || other.match != LB_AUDIT_IS_DIFFERENT) *m = other, *turned = true;
    *fits = true;
    return LB_OK;
}

/* A tensor as both sides call it and hold it; `how`: what was done to make them one shape, or "". */
typedef struct held {
    const char *name, *other, *how;
    const lb_tensor *a, *b;
} held;

static void add_pair(lb_audit_gathering *g, const held *h, const lb_value_match *m, const lb_audit_where *where)
{
    const lb_tensor *a = h->a, *b = h->b;
    lb_audit_pair *p = lb_audit_add_pair(g);
    char at[160];
    if (!p) return;
    p->name = lb_audit_text(g, h->name);
    p->other = lb_audit_text(g, h->other);
    p->how = lb_audit_text(g, h->how);
    p->match = m->match, p->rounded = m->rounded, p->difference = m->difference;
    p->dtype = a->dtype, p->other_dtype = b->dtype;
    if (m->worst >= 0) {
        int64_t rest = m->worst;
        p->ndim = b->layout.ndim;
        for (int d = p->ndim - 1; d >= 0; d--) {
            int64_t size = b->layout.shape[d] > 0 ? b->layout.shape[d] : 1;
            p->index[d] = rest % size;
            rest /= size;
        }
    }
    if (m->match == LB_AUDIT_IS_DIFFERENT)
        lb_audit_find(g, LB_AUDIT_DIFFERS, *where,
                      "differs from %s%s%s: %lld of %lld elements, by %.3g at most, at %s; relative L2 %.3g; %s%s%s",
                      h->other, *h->how ? ", " : "", h->how, (long long)m->difference.differing,
                      (long long)m->difference.elements, m->difference.max_abs, lb_index_text(&b->layout, m->worst, at),
                      m->difference.rel_l2, lb_pattern_text(m->difference.pattern), *m->difference.detail ? ": " : "",
                      m->difference.detail);
}

/* Along which dimension shards of ranks' files make up a tensor of this shape; -1: each is a copy of it. */
static int shard_dimension(const lb_inventory *v, const lb_named *name, const lb_layout *target)
{
    const lb_checkpoint_piece *p = &v->checkpoint->pieces[name->first];
    if (!v->checkpoint->rank_files || name->n < 2 || lb_layout_same_shape(&p->tensor.layout, target)) return -1;
    for (int d = 0; d < p->tensor.layout.ndim && p->tensor.layout.ndim == target->ndim; d++) {
        int64_t sum = 0;
        bool others = true;
        for (uint32_t i = 0; i < name->n; i++) sum += p[i].tensor.layout.shape[d];
        for (int k = 0; k < target->ndim; k++) others &= k == d || p->tensor.layout.shape[k] == target->shape[k];
        if (others && sum == target->shape[d]) return d;
    }
    return -1;
}

static lb_status open_both(const side *a, uint32_t i, const side *b, uint32_t k, lb_whole *x, lb_whole *y, lb_err *err)
{
    const lb_named *na = &a->v->names[i], *nb = &b->v->names[k];
    const lb_layout *la = &a->v->checkpoint->pieces[na->first].whole, *lb = &b->v->checkpoint->pieces[nb->first].whole;
    const bool both = a->v->checkpoint->rank_files && b->v->checkpoint->rank_files && na->n == nb->n;
    LB_TRY(lb_whole_init(a->v, na, both ? 0 : shard_dimension(a->v, na, lb), x, err));
    lb_status status = lb_whole_init(b->v, nb, both ? 0 : shard_dimension(b->v, nb, la), y, err);
    if (status != LB_OK) lb_whole_release(x);
    return status;
}

static lb_status compare_pair(lb_audit_gathering *g, side *a, uint32_t i, side *b, uint32_t k, lb_err *err)
{
    const lb_named *na = &a->v->names[i], *nb = &b->v->names[k];
    const lb_audit_where where = lb_where(a->v, &a->v->checkpoint->pieces[na->first]);
    lb_value_match m = {LB_AUDIT_IS_IDENTICAL, LB_NO_DTYPE, {0}, -1};
    char one[160], two[160];
    bool fits = true, turned = false;
    lb_whole x, y;
    a->done[i] = b->done[k] = true;
    LB_TRY(open_both(a, i, b, k, &x, &y, err));
    const bool untouched =
        !x.owned && !y.owned && lb_digest_equal(a->v->measured[na->first].digest, b->v->measured[nb->first].digest);
    lb_status status = LB_OK;
    if (untouched)
        m.difference = (lb_difference){.elements = lb_layout_numel(&x.tensor.layout), .first = -1, .cosine = 1};
    else
        status = match_either_way(&x.tensor, &y.tensor, &m, &fits, &turned, err);
    const char *how = turned ? "transposed" : x.owned || y.owned ? "shards put together" : "";
    if (status == LB_OK && fits)
        add_pair(g, &(held){na->name, nb->name, how, &x.tensor, &y.tensor}, &m, &where);
    else if (status == LB_OK)
        lb_audit_find(g, LB_AUDIT_SHAPE, where, "is %s, %s is %s", lb_shape_text(&x.tensor.layout, one), nb->name,
                      lb_shape_text(&y.tensor.layout, two));
    lb_whole_release(&x);
    lb_whole_release(&y);
    return status;
}

/* Experts numbered from 0 on each rank: number e of rank r is r * local + e on the other side. */
static lb_status compare_local_experts(lb_audit_gathering *g, side *a, side *b, bool *any, lb_err *err)
{
    for (uint32_t i = 0; a->v->checkpoint->rank_files && !b->v->checkpoint->rank_files && i < a->v->n_names; i++) {
        const lb_named *name = &a->v->names[i];
        const char *at = strstr(a->names[i], "experts.");
        if (a->done[i] || !at || name->n < 2 || lb_word_in(a->names[i], (const char *const[]){"shared_experts", NULL}))
            continue;
        at += strlen("experts.");
        size_t digits = strspn(at, "0123456789");
        if (!digits || lb_digest_equal(a->v->measured[name->first].digest, a->v->measured[name->first + 1].digest))
            continue;
        long local = 0, e = strtol(at, NULL, 10);
        for (char other[1024];; local++) { /* how many there are on each rank */
            snprintf(other, sizeof other, "%.*s%ld%s", (int)(at - a->names[i]), a->names[i], local, at + digits);
            if (find(a, other) == UINT32_MAX) break;
        }
        for (uint32_t r = 0; r < name->n; r++) {
            char other[1024], how[64];
            const lb_checkpoint_piece *p = &a->v->checkpoint->pieces[name->first + r];
            snprintf(other, sizeof other, "%.*s%ld%s", (int)(at - a->names[i]), a->names[i], p->rank * local + e,
                     at + digits);
            uint32_t k = find(b, other);
            const lb_checkpoint_piece *q = k == UINT32_MAX ? NULL : &b->v->checkpoint->pieces[b->v->names[k].first];
            if (!q || !lb_layout_same_shape(&q->tensor.layout, &p->tensor.layout)) break;
            lb_audit_where where = lb_where(a->v, p);
            lb_value_match m;
            LB_TRY(lb_value_match_of(&p->tensor, &q->tensor, &m, err));
            snprintf(how, sizeof how, "expert %ld of rank %d", e, (int)p->rank);
            add_pair(g, &(held){name->name, q->name, how, &p->tensor, &q->tensor}, &m, &where);
            a->done[i] = b->done[k] = *any = true;
        }
    }
    return LB_OK;
}

/* ---- fused and stacked ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *fused;
    const char *parts[4];
} fusions[] = {
    {"qkv_proj", {"q_proj", "k_proj", "v_proj", NULL}},
    {"query_key_value", {"q_proj", "k_proj", "v_proj", NULL}},
    {"Wqkv", {"q_proj", "k_proj", "v_proj", NULL}},
    {"c_attn", {"q_proj", "k_proj", "v_proj", NULL}},
    {"linear_qkv", {"q_proj", "k_proj", "v_proj", NULL}},
    {"qkv", {"q_proj", "k_proj", "v_proj", NULL}},
    {"qkv", {"q", "k", "v", NULL}},
    {"query_key_value", {"query", "key", "value", NULL}},
    {"qkv_proj", {"query", "key", "value", NULL}},
    {"in_proj", {"q_proj", "k_proj", "v_proj", NULL}},
    {"gate_up_proj", {"gate_proj", "up_proj", NULL}},
    {"linear_fc1", {"gate_proj", "up_proj", NULL}},
    {"w13", {"w1", "w3", NULL}},
    {"gate_up_proj", {"w1", "w3", NULL}},
    {"w12", {"w1", "w2", NULL}},
    {"down_proj", {"down_proj", NULL}},
    {"down_proj", {"w2", NULL}},
    {"w2", {"w2", NULL}},
};

/* The parts of one fused matrix, each [rows, width] of one dtype. */
typedef struct parts {
    lb_whole whole[4];
    uint32_t rows[4]; /* of the side */
    uint32_t n;
} parts;

static void parts_release(parts *p)
{
    for (uint32_t i = 0; i < p->n; i++) lb_whole_release(&p->whole[i]);
    p->n = 0;
}

/* `name` with `fused` replaced by `part` and `expert` put before it (-1: none), with ".weight" where the stack has none. */
static void part_name(const char *name, const char *fused, const char *part, int64_t expert, char out[1100])
{
    const char *at = NULL;
    for (const char *next = name; (next = strstr(next, fused)); next++) at = next;
    const char *rest = at + strlen(fused);
    char number[32] = "";
    if (expert >= 0) snprintf(number, sizeof number, "%lld.", (long long)expert);
    snprintf(out, 1100, "%.*s%s%s%s", (int)(at - name), name, number, part, expert >= 0 && !*rest ? ".weight" : rest);
}

static lb_status open_parts(const side *s, const char *name, size_t fusion, int64_t expert, parts *p, lb_err *err)
{
    char part[1100];
    p->n = 0;
    for (const char *const *word = fusions[fusion].parts; *word; word++) {
        part_name(name, fusions[fusion].fused, *word, expert, part);
        uint32_t row = find(s, part);
        if (row == UINT32_MAX || lb_dtype_bits(s->v->checkpoint->pieces[s->v->names[row].first].tensor.dtype) < 8) {
            parts_release(p);
            return LB_OK;
        }
        p->rows[p->n] = row;
        LB_TRY(lb_whole_init(s->v, &s->v->names[row], -1, &p->whole[p->n], err));
        p->n++;
    }
    return LB_OK;
}

static int64_t rows_of(const lb_whole *w)
{
    return w->tensor.layout.shape[0];
}

/* Rows of all parts into `to`, in `groups` turns: of each part its first share, then of each its second, … False where a part
 * does not divide. */
static bool lay_out(const parts *p, int64_t groups, const uint32_t *turn, char *to, size_t row_bytes, lb_err *err)
{
    char *dense[4] = {NULL};
    bool done = true;
    for (uint32_t i = 0; i < p->n && done; i++) {
        const lb_tensor *t = &p->whole[i].tensor;
        dense[i] = (char *)malloc(lb_dtype_bytes(t->dtype, (size_t)lb_layout_numel(&t->layout)) + 1);
        done = dense[i] && rows_of(&p->whole[i]) % groups == 0 && lb_tensor_gather(t, dense[i], err) == LB_OK;
    }
    for (int64_t group = 0; group < groups && done; group++)
        for (uint32_t i = 0; i < p->n; i++) {
            size_t bytes = (size_t)(rows_of(&p->whole[turn[i]]) / groups) * row_bytes;
            memcpy(to, dense[turn[i]] + (size_t)group * bytes, bytes);
            to += bytes;
        }
    for (uint32_t i = 0; i < p->n; i++) free(dense[i]);
    return done;
}

/* Whether parts side by side, group by group, or in another turn are this matrix; the best layout is left in `*best`. */
static lb_status match_layouts(const parts *p, const lb_tensor *fused, char *buffer, lb_value_match *best,
                               char how[128], bool *fits, lb_err *err)
{
    static const uint32_t straight[4] = {0, 1, 2, 3}, reversed[4] = {1, 0, 2, 3};
    lb_layout layout = p->whole[0].tensor.layout;
    const lb_dtype dtype = p->whole[0].tensor.dtype;
    int64_t smallest = rows_of(&p->whole[0]);
    layout.shape[0] = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        layout.shape[0] += rows_of(&p->whole[i]);
        if (rows_of(&p->whole[i]) < smallest) smallest = rows_of(&p->whole[i]);
    }
    layout = lb_layout_contiguous(layout.ndim, layout.shape);
    const size_t row_bytes =
        lb_dtype_bytes(dtype, (size_t)lb_layout_numel(&layout)) / (size_t)(layout.shape[0] ? layout.shape[0] : 1);
    bool tried = false;
    for (int64_t groups = 1; groups <= smallest; groups++) {
        if (smallest % groups) continue;
        for (int way = 0; way < (p->n == 2 ? 2 : 1); way++) {
            lb_tensor made = {buffer, dtype, layout};
            lb_value_match m;
            bool fit, turned;
            if (!lay_out(p, groups, way ? reversed : straight, buffer, row_bytes, err)) continue;
            LB_TRY(match_either_way(&made, fused, &m, &fit, &turned, err));
            if (!fit) return LB_OK;
            *fits = true;
            if (tried && m.difference.rel_l2 >= best->difference.rel_l2 && m.match >= best->match) continue;
            tried = true, *best = m;
            if (groups == 1)
                snprintf(how, 128, "%u parts side by side%s%s", p->n, way ? ", the second first" : "",
                         turned ? ", transposed" : "");
            else
                snprintf(how, 128, "%u parts in %lld groups%s%s", p->n, (long long)groups,
                         way ? ", the second first" : "", turned ? ", transposed" : "");
            if (m.match != LB_AUDIT_IS_DIFFERENT) return LB_OK;
        }
    }
    return LB_OK;
}

static lb_tensor slice_of(const lb_tensor *stack, int64_t i)
{
    lb_tensor t = *stack;
    t.data = (char *)stack->data + i * stack->layout.stride[0] * (int64_t)lb_dtype_bits(stack->dtype) / 8;
    t.layout.ndim--;
    memmove(t.layout.shape, t.layout.shape + 1, sizeof(int64_t) * (LB_MAX_DIMS - 1));
    memmove(t.layout.stride, t.layout.stride + 1, sizeof(int64_t) * (LB_MAX_DIMS - 1));
    return t;
}

/* One fused matrix: `expert` of a stack, or the whole tensor (-1). */
typedef struct fused_matrix {
    side *one, *many; /* the one that has it, the one that has its parts */
    bool first_is_fused;
    uint32_t row; /* of `one` */
    size_t fusion;
    int64_t expert;
} fused_matrix;

static void add_fused_pair(lb_audit_gathering *g, const fused_matrix *f, const parts *p, const lb_tensor *fused,
                           const lb_value_match *best, const char *how)
{
    char name[1200], other[1200];
    const lb_inventory *one = f->one->v, *many = f->many->v, *a = f->first_is_fused ? one : many;
    const uint32_t of = f->first_is_fused ? f->row : p->rows[0];
    const lb_audit_where where = lb_where(a, &a->checkpoint->pieces[a->names[of].first]);
    snprintf(name, sizeof name, "%s", one->names[f->row].name);
    if (f->expert >= 0) snprintf(name, sizeof name, "%s[%lld]", one->names[f->row].name, (long long)f->expert);
    snprintf(other, sizeof other, "%s%s", many->names[p->rows[0]].name, p->n > 1 ? " …" : "");
    const held h = f->first_is_fused ? (held){name, other, how, fused, &p->whole[0].tensor}
                                     : (held){other, name, how, &p->whole[0].tensor, fused};
    add_pair(g, &h, best, &where);
}

/* A fused matrix against its parts on the other side. */
static lb_status compare_fused(lb_audit_gathering *g, const fused_matrix *f, bool *done, lb_err *err)
{
    side *one = f->one, *many = f->many;
    const uint32_t row = f->row;
    parts p;
    lb_whole whole;
    char how[128] = "";
    bool fits = false;
    lb_value_match best;
    *done = false;
    LB_TRY(open_parts(many, one->names[row], f->fusion, f->expert, &p, err));
    if (!p.n) return LB_OK;
    size_t bytes = 0;
    bool alike = true;
    for (uint32_t i = 0; i < p.n; i++) {
        const lb_tensor *t = &p.whole[i].tensor;
        bytes += lb_dtype_bytes(t->dtype, (size_t)lb_layout_numel(&t->layout));
        alike &= t->dtype == p.whole[0].tensor.dtype && t->layout.ndim == p.whole[0].tensor.layout.ndim &&
                 t->layout.ndim > 0 && (t->layout.ndim < 2 || t->layout.shape[1] == p.whole[0].tensor.layout.shape[1]);
    }
    char *buffer = alike ? (char *)malloc(bytes + 1) : NULL;
    lb_status status = lb_whole_init(one->v, &one->v->names[row], -1, &whole, err);
    if (status == LB_OK) {
        lb_tensor fused = f->expert >= 0 ? slice_of(&whole.tensor, f->expert) : whole.tensor;
        if (buffer) status = match_layouts(&p, &fused, buffer, &best, how, &fits, err);
        if (status == LB_OK && fits) {
            add_fused_pair(g, f, &p, &fused, &best, how);
            one->done[row] = *done = true;
            for (uint32_t i = 0; i < p.n; i++) many->done[p.rows[i]] = true;
        }
        lb_whole_release(&whole);
    }
    free(buffer);
    parts_release(&p);
    return status;
}

/* What side `one` fuses or stacks and side `many` holds apart. */
static lb_status compare_fusions(lb_audit_gathering *g, side *one, side *many, bool first_is_fused, lb_err *err)
{
    for (uint32_t i = 0; i < one->v->n_names; i++) {
        const lb_layout *layout = &one->v->checkpoint->pieces[one->v->names[i].first].whole;
        for (size_t f = 0; f < sizeof fusions / sizeof *fusions && !one->done[i]; f++) {
            if (!strstr(one->names[i], fusions[f].fused)) continue;
            fused_matrix m = {one, many, first_is_fused, i, f, -1};
            bool done = true;
            if (layout->ndim <= 2) {
                if (fusions[f].parts[1]) LB_TRY(compare_fused(g, &m, &done, err));
                continue;
            }
            if (layout->ndim == 3 && strstr(one->names[i], "experts"))
                for (m.expert = 0; m.expert < layout->shape[0] && done; m.expert++)
                    LB_TRY(compare_fused(g, &m, &done, err));
        }
    }
    return LB_OK;
}

/* ---- all ------------------------------------------------------------------------------------------------------------------ */

/* A name more for what another name holds: a head tied to its embedding, which one side stores twice. */
static bool is_tied(const side *s, uint32_t row)
{
    const lb_inventory *v = s->v;
    const lb_named *name = &v->names[row];
    const lb_measured *m = &v->measured[name->first];
    for (uint32_t i = 0; i < v->n_names; i++) {
        const lb_named *other = &v->names[i];
        bool same_bytes =
            v->checkpoint->pieces[other->first].tensor.data == v->checkpoint->pieces[name->first].tensor.data;
        if (other != name && s->done[i] && lb_digest_equal(v->measured[other->first].digest, m->digest) &&
            (same_bytes || !lb_is_constant(m)))
            return true;
    }
    return false;
}

static void tell_rest(lb_audit_gathering *g, const side *a, const side *b)
{
    for (uint32_t i = 0; i < b->v->n_names; i++) {
        bool told = b->done[i] || is_tied(b, i);
        for (uint32_t k = 0; k < g->report->n_findings && !told; k++)
            told = g->report->findings[k].tensor && strcmp(g->report->findings[k].tensor, b->names[i]) == 0;
        if (!told)
            lb_audit_find(g, LB_AUDIT_MISSING, (lb_audit_where){b->v->names[i].name, NULL, NULL, 0},
                          "%s has it, %s does not", b->v->checkpoint->path, a->v->checkpoint->path);
    }
    for (uint32_t i = 0; i < a->v->n_names; i++)
        if (!a->done[i] && !is_tied(a, i))
            lb_audit_find(g, LB_AUDIT_UNEXPECTED, lb_where(a->v, &a->v->checkpoint->pieces[a->v->names[i].first]),
                          "%s has no tensor that it could be", b->v->checkpoint->path);
}

static lb_status compare_sides(lb_audit_gathering *g, side *a, side *b, lb_err *err)
{
    bool any = false;
    LB_TRY(lb_names_meet(a->names, a->v->n_names, b->names, b->v->n_names, err));
    side_sort(a);
    side_sort(b);
    LB_TRY(compare_local_experts(g, a, b, &any, err));
    for (uint32_t i = 0; i < a->v->n_names; i++) {
        uint32_t k = a->done[i] ? UINT32_MAX : find(b, a->names[i]);
        lb_audit_progress(g, "comparing", i, a->v->n_names);
        if (k != UINT32_MAX && !b->done[k]) LB_TRY(compare_pair(g, a, i, b, k, err));
    }
    LB_TRY(compare_fusions(g, a, b, true, err));
    LB_TRY(compare_fusions(g, b, a, false, err));
    tell_rest(g, a, b);
    return LB_OK;
}

lb_status lb_audit_against(lb_audit_gathering *g, const lb_inventory *a, const lb_inventory *b, lb_err *err)
{
    lb_map_rules *rules = NULL;
    side x = {0}, y = {0};
    LB_TRY(lb_map_rules_new(g->options->maps, g->options->n_maps, &rules, err));
    lb_status status = side_init(&x, a, rules) && side_init(&y, b, NULL) ? compare_sides(g, &x, &y, err)
                                                                         : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    side_release(&x);
    side_release(&y);
    lb_map_rules_free(rules);
    return status;
}
