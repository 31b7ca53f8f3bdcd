/* Tensors that two sides cut otherwise: see cut_tensors.h. */
#include "cut_tensors.h"

#include "cut_results.h"
#include "shard_cover.h"

#include <lastbit/array.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Some of a named tensor: what one source holds of it. */
typedef struct holding {
    char *name; /* mapped */
    const lb_program_view *side;
    uint32_t op, value, rank; /* rank: the part of the side */
    uint32_t nth;             /* of the sources of this rank that have the name */
    bool batch, free;         /* free: no source of the other side stands for it */
    const lb_shard *shard;    /* NULL: nothing was said */
    lb_extent own[LB_MAX_DIMS];
    const lb_extent *extents;
    uint32_t n_extents;
    int64_t at, elements; /* elements of the value from `at` on */
} holding;

typedef struct holdings {
    holding *list;
    uint32_t n;
    bool failed;
} holdings;

/* ---- who holds what ------------------------------------------------------------------------------------------------ */

static void claim_all(holding *h, const lb_layout *layout)
{
    h->extents = h->own, h->n_extents = (uint32_t)layout->ndim, h->elements = lb_layout_numel(layout);
    for (int32_t d = 0; d < layout->ndim; d++)
        h->own[d] = (lb_extent){.dim = d, .whole = layout->shape[d], .from = 0, .size = layout->shape[d]};
}

static void add_holding(holdings *list, const holding *h, const char *name, const lb_map_rules *rules)
{
    holding *grown = lb_array_grow(list->list, list->n, sizeof *grown);
    char *mapped = lb_map_rules_apply(rules, name);
    if (grown) list->list = grown;
    if (!grown || !mapped) {
        free(mapped), list->failed = true;
        return;
    }
    list->list[list->n] = *h;
    list->list[list->n++].name = mapped;
}

static void add_source(holdings *list, const lb_program_view *side, const lb_map_rules *rules, uint32_t op, bool free)
{
    const lb_program *p = side->program;
    const uint32_t v = lb_op_results(p, &p->ops[op])[0];
    const lb_value *value = &p->values[v];
    uint32_t n;
    const lb_shard *shards = lb_program_shards_of(p, v, &n);
    holding h = {.side = side, .op = op, .value = v, .rank = lb_program_view_part_of(side, op), .free = free};
    h.batch = value->source == LB_SOURCE_BATCH;
    if (!shards) claim_all(&h, &value->layout), add_holding(list, &h, lb_program_text(p, value->name), rules);
    for (uint32_t i = 0; shards && i < n; i++) {
        const lb_layout part = lb_shard_part(p, &shards[i]);
        h.shard = &shards[i], h.at = shards[i].at, h.elements = lb_layout_numel(&part);
        h.extents = p->extents + shards[i].first_extent, h.n_extents = shards[i].extents;
        const uint32_t name = shards[i].name == LB_NONE ? value->name : shards[i].name;
        if (h.elements) add_holding(list, &h, lb_program_text(p, name), rules);
    }
}

static void number_holdings(holdings *list)
{
    for (uint32_t i = 0; i < list->n; i++) {
        holding *h = &list->list[i];
        if (h->extents && !h->shard) h->extents = h->own; /* the list may have moved */
        for (uint32_t k = i; k-- > 0 && list->list[k].rank == h->rank;) h->nth += !strcmp(list->list[k].name, h->name);
    }
}

/* Of pairs by name the parts may be others all the same. */
static bool is_other_part(const lb_program *pa, uint32_t op_a, const lb_program *pb, uint32_t op_b)
{
    const uint32_t va = lb_op_results(pa, &pa->ops[op_a])[0], vb = lb_op_results(pb, &pb->ops[op_b])[0];
    uint32_t n, m;
    const lb_shard *x = lb_program_shards_of(pa, va, &n), *y = lb_program_shards_of(pb, vb, &m);
    return x && y && n == 1 && m == 1 && !lb_shard_is_copy(pa, va, pb, vb);
}

static void list_holdings(const lb_program_view *const sides[2], const lb_map_rules *const rules[2],
                          const lb_alignment *al, holdings lists[2])
{
    const lb_program *pa = sides[0]->program, *pb = sides[1]->program;
    uint8_t *paired = calloc(pb->n_ops + 1, 1);
    lists[0].failed |= !paired;
    for (uint32_t i = 0; paired && i < pa->n_ops; i++) {
        const uint32_t j = al->source_b_of_a[i];
        if (j != LB_NONE) paired[j] = !is_other_part(pa, i, pb, j);
    }
    for (int k = 0; paired && k < 2; k++)
        for (uint32_t i = 0; i < sides[k]->program->n_ops; i++) {
            const lb_program *p = sides[k]->program;
            const uint32_t v = lb_op_is_source(p, &p->ops[i]) ? lb_op_results(p, &p->ops[i])[0] : LB_NONE;
            if (v == LB_NONE || !*lb_program_text(p, p->values[v].name)) continue;
            if (p->values[v].source != LB_SOURCE_PARAMETER && p->values[v].source != LB_SOURCE_BATCH) continue;
            const uint32_t j = k ? LB_NONE : al->source_b_of_a[i];
            const bool met = k ? paired[i] : j != LB_NONE && paired[j];
            add_source(&lists[k], sides[k], rules[k], i, !met && (k ? al->join_of_b : al->join_of_a)[i] == LB_NONE);
        }
    free(paired);
    number_holdings(&lists[0]), number_holdings(&lists[1]);
}

static lb_status meet_names(holdings lists[2], lb_err *err)
{
    char **names[2];
    for (int k = 0; k < 2; k++) names[k] = malloc((lists[k].n + 1) * sizeof *names[k]);
    lb_status status = names[0] && names[1] ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for names");
    for (int k = 0; k < 2 && status == LB_OK; k++)
        for (uint32_t i = 0; i < lists[k].n; i++) names[k][i] = lists[k].list[i].name;
    if (status == LB_OK) {
        status = lb_names_meet(names[0], lists[0].n, names[1], lists[1].n, err);
        for (int k = 0; k < 2; k++)
            for (uint32_t i = 0; i < lists[k].n; i++) lists[k].list[i].name = names[k][i];
    }
    free(names[0]), free(names[1]);
    return status;
}

/* ---- what is cut otherwise ----------------------------------------------------------------------------------------- */

/* The holdings of one tensor on one side. */
typedef struct group {
    holding **list;
    uint32_t n;
    bool free, told; /* some of them is; of all of them something was said */
} group;

static bool gather_group(const holdings *all, const holding *like, group *g)
{
    *g = (group){.list = malloc((all->n + 1) * sizeof *g->list), .told = true};
    for (uint32_t i = 0; g->list && i < all->n; i++) {
        holding *h = &all->list[i];
        if (h->nth != like->nth || h->batch != like->batch || strcmp(h->name, like->name)) continue;
        g->list[g->n++] = h, g->free |= h->free, g->told &= h->shard != NULL;
    }
    return g->list != NULL;
}

static lb_layout whole_of(const holding *h)
{
    if (h->shard) return lb_shard_whole(h->side->program, h->shard);
    return h->side->program->values[h->value].layout;
}

static bool have_whole(const group *g, const lb_layout *whole)
{
    for (uint32_t i = 0; i < g->n; i++) {
        const lb_layout mine = whole_of(g->list[i]);
        if (!lb_layout_same_shape(&mine, whole)) return false;
    }
    return g->n;
}

/* Batches of which nothing was said, one of each rank: do they make that whole, one behind the other? */
static bool follow_each_other(group *g, const lb_layout *whole)
{
    const lb_layout *first = &g->list[0]->side->program->values[g->list[0]->value].layout;
    int64_t total = 0;
    int dim = 0;
    if (first->ndim != whole->ndim || !whole->ndim) return false;
    while (dim < whole->ndim - 1 && first->shape[dim] == whole->shape[dim]) dim++;
    for (uint32_t i = 0; i < g->n; i++) {
        const lb_layout *l = &g->list[i]->side->program->values[g->list[i]->value].layout;
        if (g->list[i]->shard || !g->list[i]->batch || g->list[i]->rank != i || l->ndim != whole->ndim) return false;
        for (int d = 0; d < whole->ndim; d++)
            if (d != dim && l->shape[d] != whole->shape[d]) return false;
        total += l->shape[dim];
    }
    if (total != whole->shape[dim] || g->n != g->list[0]->side->n_parts) return false;
    int64_t at = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        lb_extent *e = &g->list[i]->own[dim];
        e->from = at, e->whole = whole->shape[dim], at += e->size;
    }
    return true;
}

/* Both sides hold parts of one whole, whose shape is set. */
static bool are_parts(group g[2], lb_layout *whole)
{
    for (int k = 0; k < 2; k++) { /* the one side says what the whole is */
        *whole = whole_of(g[k].list[0]);
        if (!have_whole(&g[k], whole)) continue;
        if (have_whole(&g[!k], whole)) return g[0].told || g[1].told;
        if (follow_each_other(&g[!k], whole)) return true;
    }
    return false;
}

/* ---- element by element -------------------------------------------------------------------------------------------- */

/* What a side holds of the whole. */
typedef struct image {
    uint8_t *bytes, *there; /* there: per element */
    size_t element;
} image;

typedef struct passage {
    image *to;
    const uint8_t *from;
    int64_t done;
    bool compare, differs;
} passage;

static void pass_run(passage *p, int64_t at, int64_t n)
{
    const size_t size = p->to->element;
    const uint8_t *from = p->from + (size_t)p->done * size;
    uint8_t *to = p->to->bytes + (size_t)at * size;
    p->done += n;
    if (!p->compare) memcpy(to, from, (size_t)n * size), memset(p->to->there + at, 1, (size_t)n);
    if (!p->compare || !memcmp(to, from, (size_t)n * size)) return;
    for (int64_t i = 0; i < n && !p->differs; i++)
        p->differs = p->to->there[at + i] && memcmp(to + (size_t)i * size, from + (size_t)i * size, size);
}

/* Ranges of one dimension, and those of the dimensions behind it. */
static void pass_extents(passage *p, const lb_extent *e, uint32_t n, int64_t base)
{
    uint32_t own = 1, behind;
    int64_t inner = 1;
    bool all = true;
    if (!n) {
        pass_run(p, base, 1);
        return;
    }
    while (own < n && e[own].dim == e[0].dim) own++;
    for (behind = own; behind < n; behind++) {
        if (behind == own || e[behind].dim != e[behind - 1].dim) inner *= e[behind].whole;
        all &= e[behind].size == e[behind].whole;
    }
    for (uint32_t i = 0; i < own; i++) {
        if (all) pass_run(p, base + e[i].from * inner, e[i].size * inner);
        for (int64_t k = 0; !all && k < e[i].size; k++)
            pass_extents(p, e + own, n - own, base + (e[i].from + k) * inner);
    }
}

static void pass_holding(passage *p, const holding *h)
{
    if (!lb_extents_are_flat(h->extents, h->n_extents)) {
        pass_extents(p, h->extents, h->n_extents, 0);
        return;
    }
    for (uint32_t i = 0; i < h->n_extents; i++)
        if (h->extents[i].dim == LB_EXTENT_FLAT) pass_run(p, h->extents[i].from, h->extents[i].size);
}

/* Its elements in their order, malloc'ed; NULL: they were not kept. */
static uint8_t *read_holding(const holding *h, size_t element)
{
    lb_tensor t;
    if (lb_program_view_value(h->side, h->value, &t, NULL) != LB_OK) return NULL;
    const int64_t all = lb_layout_numel(&t.layout);
    if (lb_dtype_bits(t.dtype) != 8 * element || h->at > all || h->elements > all - h->at) return NULL;
    const bool dense = lb_layout_is_contiguous(&t.layout);
    if (dense) t.layout = lb_layout_contiguous(1, &h->elements), t.data = (uint8_t *)t.data + (size_t)h->at * element;
    uint8_t *bytes = malloc((size_t)(dense ? h->elements : all) * element + 1);
    if (!bytes || lb_tensor_gather(&t, bytes, NULL) != LB_OK) {
        free(bytes);
        return NULL;
    }
    if (!dense && h->at) memmove(bytes, bytes + (size_t)h->at * element, (size_t)h->elements * element);
    return bytes;
}

static void draw(image *to, const group *g)
{
    for (uint32_t i = 0; i < g->n; i++) {
        uint8_t *bytes = read_holding(g->list[i], to->element);
        passage p = {.to = to, .from = bytes};
        if (bytes) pass_holding(&p, g->list[i]);
        free(bytes);
    }
}

static const holding *find_wrong(image *other, const group *g)
{
    for (uint32_t i = 0; i < g->n; i++) {
        uint8_t *bytes = read_holding(g->list[i], other->element);
        passage p = {.to = other, .from = bytes, .compare = true};
        if (bytes) pass_holding(&p, g->list[i]);
        free(bytes);
        if (p.differs) return g->list[i];
    }
    return NULL;
}

static bool has_dtype(const group *g, uint8_t dtype)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (g->list[i]->side->program->values[g->list[i]->value].dtype != dtype) return false;
    return true;
}

void lb_cut_shape_text(const lb_layout *l, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < l->ndim && used < size; d++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", d ? ", " : "", (long long)l->shape[d]);
    if (used < size) snprintf(text + used, size - used, "]");
}

static void describe_part(const holding *h, char *text, size_t size)
{
    char all[400];
    if (h->shard) {
        lb_shard_text(h->side->program, h->shard, all, sizeof all);
        const char *range = strstr(all, "elements [");
        if (!range) range = strchr(all, '[');
        const lb_layout *l = &h->side->program->values[h->value].layout;
        const bool more = lb_shard_is_flat(h->side->program, h->shard) && lb_layout_numel(l) > h->elements;
        const int used = snprintf(text, size, "%.110s", range ? range : all);
        if (more) snprintf(text + used, size - (size_t)used, ", flat among %lld", (long long)lb_layout_numel(l));
        return;
    }
    lb_cut_shape_text(&h->side->program->values[h->value].layout, text, size);
}

/* Against the other side's whole, first B's parts, then A's. False: out of memory. */
static bool compare(const group g[2], const lb_layout *whole, lb_cut_tensor *cut)
{
    const uint8_t dtype = g[0].list[0]->side->program->values[g[0].list[0]->value].dtype;
    const size_t element = lb_dtype_bits(dtype) / 8, n = (size_t)lb_layout_numel(whole);
    if (lb_dtype_bits(dtype) < 8 || !has_dtype(&g[0], dtype) || !has_dtype(&g[1], dtype)) return true;
    bool room = true;
    for (int k = 1; k >= 0 && cut->wrong == LB_NONE && room; k--) {
        image other = {calloc(n + 1, element), calloc(n + 1, 1), element};
        room = other.bytes && other.there;
        if (room) draw(&other, &g[!k]);
        const holding *h = room ? find_wrong(&other, &g[k]) : NULL;
        if (h) cut->wrong = h->op, cut->wrong_side = k, describe_part(h, cut->wrong_part, sizeof cut->wrong_part);
        free(other.bytes), free(other.there);
    }
    return room;
}

/* ---- all of it ----------------------------------------------------------------------------------------------------- */

static bool add_cut(lb_cut_tensors *out, group g[2])
{
    lb_layout whole;
    const bool parts = are_parts(g, &whole), told = g[0].told && g[1].told;
    if (!parts && !told) return true; /* other shapes, and nobody says that they are parts */
    lb_cut_tensor *grown = lb_array_grow(out->list, out->n, sizeof *grown);
    if (!grown) return false;
    out->list = grown;
    lb_cut_tensor cut = {.name = strdup(g[0].list[0]->name), .wrong = LB_NONE};
    cut.kind = g[0].list[0]->batch ? LB_CUT_BATCH : LB_CUT_PARAMETER;
    if (!cut.name) return false;
    for (int k = 0; k < 2; k++) {
        cut.op[k] = g[k].list[0]->op, describe_part(g[k].list[0], cut.part[k], sizeof cut.part[k]);
        for (uint32_t i = 0; i < g[k].n; i++) out->held[k][g[k].list[i]->op] = 1;
    }
    cut.other_whole = !parts;
    out->list[out->n++] = cut;
    return !parts || compare(g, &whole, &out->list[out->n - 1]);
}

/* Of those that are free. */
static bool is_first(const holdings *all, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (all->list[k].free && all->list[k].nth == all->list[i].nth && all->list[k].batch == all->list[i].batch &&
            !strcmp(all->list[k].name, all->list[i].name))
            return false;
    return true;
}

static bool find_cuts(const holdings lists[2], lb_cut_tensors *out)
{
    bool room = true;
    for (uint32_t i = 0; i < lists[0].n && room; i++) {
        group g[2] = {{0}};
        if (!lists[0].list[i].free || !is_first(&lists[0], i)) continue;
        room = gather_group(&lists[0], &lists[0].list[i], &g[0]) && gather_group(&lists[1], &lists[0].list[i], &g[1]);
        if (room && g[0].free && g[1].free) room = add_cut(out, g);
        free(g[0].list), free(g[1].list);
    }
    return room;
}

static void free_holdings(holdings *list)
{
    for (uint32_t i = 0; i < list->n; i++) free(list->list[i].name);
    free(list->list);
}

lb_status lb_cut_tensors_find(const lb_program_view *a, const lb_program_view *b, const lb_map_rules *const rules[2],
                              const lb_alignment *al, lb_cut_tensors *out, lb_err *err)
{
    const lb_program_view *const sides[2] = {a, b};
    holdings lists[2] = {{0}};
    *out = (lb_cut_tensors){.held = {calloc(a->program->n_ops + 1, 1), calloc(b->program->n_ops + 1, 1)}};
    lb_status status = LB_OK;
    bool room = out->held[0] && out->held[1];
    if (room && (a->n_parts > 1 || b->n_parts > 1 || a->program->n_shards || b->program->n_shards)) {
        list_holdings(sides, rules, al, lists);
        room = !lists[0].failed && !lists[1].failed;
        if (room) status = meet_names(lists, err);
        if (room && status == LB_OK) room = find_cuts(lists, out);
        if (room && status == LB_OK && !out->n && a->n_parts > 1 && a->n_parts == b->n_parts)
            room = lb_cut_results_find(sides, rules, out);
    }
    free_holdings(&lists[0]), free_holdings(&lists[1]);
    if (status == LB_OK && !room) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for parts of tensors");
    if (status != LB_OK) lb_cut_tensors_release(out);
    return status;
}

void lb_cut_tensors_release(lb_cut_tensors *cuts)
{
    for (uint32_t i = 0; i < cuts->n; i++) free(cuts->list[i].name);
    free(cuts->list), free(cuts->held[0]), free(cuts->held[1]);
    *cuts = (lb_cut_tensors){0};
}
