/* Tensors that two sides cut differently: see cut_tensors.h. */
#include "pair/cut_tensors.h"

#include "pair/cut_results.h"
#include "program/shard_cover.h"

#include "base/array.h"
#include "program/state_name.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct holdings {
    lb_held_part *list;
    uint32_t n;
    bool failed;
} holdings;

/* ---- what each rank holds ---- */

static void claim_all(lb_held_part *part, const lb_layout *layout)
{
    part->elements = lb_layout_numel(layout);
    for (int32_t d = 0; d < layout->ndim; d++)
        part->own[d] = (lb_extent){.dim = d, .whole = layout->shape[d], .from = 0, .size = layout->shape[d]};
}

static void add_holding(holdings *list, const lb_held_part *part, const char *name, const lb_layer_names_map *rules)
{
    lb_held_part *grown = lb_array_grow(list->list, list->n, sizeof *grown);
    char *mapped = lb_layer_names_map_apply(rules, name);
    if (grown) list->list = grown;
    if (!grown || !mapped) {
        free(mapped), list->failed = true;
        return;
    }
    list->list[list->n] = *part;
    list->list[list->n++].name = mapped;
}

/* False: nothing that is looked for here. */
static bool kind_of(const lb_program *program, const lb_value *value, lb_cut_kind *kind)
{
    const char *name = lb_program_text(program, value->name);
    if (!*name) return false;
    *kind = value->source == LB_SOURCE_BATCH ? LB_CUT_BATCH
            : lb_state_name_before(name) > 0 ? LB_CUT_STATE
                                             : LB_CUT_PARAMETER;
    return value->source == LB_SOURCE_BATCH || value->source == LB_SOURCE_PARAMETER || *kind == LB_CUT_STATE ||
           (value->source == LB_SOURCE_CARRIED && value->flags & LB_VALUE_PARAMETER);
}

static bool is_one_of(const lb_program *program, const lb_shard *shards, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(lb_program_text(program, shards[i].name), name)) return true;
    return false;
}

/* The parameter of that name and rank that holds several, and is none of them; NULL. */
static const lb_shard *find_flat(const lb_program_view *side, uint32_t rank, const char *name, uint32_t *n)
{
    const lb_program *program = side->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t v =
            lb_op_is_source(program, &program->ops[i]) ? lb_op_results(program, &program->ops[i])[0] : LB_NONE;
        if (v == LB_NONE || !(program->values[v].flags & LB_VALUE_PARAMETER) ||
            lb_program_view_part_of(side, i) != rank || strcmp(lb_program_text(program, program->values[v].name), name))
            continue;
        const lb_shard *shards = lb_program_shards_of(program, v, n);
        if (*n > 1) return is_one_of(program, shards, *n, name) ? NULL : shards;
    }
    return NULL;
}

/* The one number that an optimizer keeps of a parameter (its step) is that of each that lies in it. */
static bool add_numbers(holdings *list, const lb_held_part *part, const lb_layer_names_map *rules)
{
    const lb_program *program = part->side->program;
    const char *name = lb_program_text(program, program->values[part->value].name), *bare = strchr(name, ':');
    uint32_t n = 0;
    const lb_shard *shards =
        part->kind == LB_CUT_STATE && part->elements == 1 ? find_flat(part->side, part->rank, bare + 1, &n) : NULL;
    for (uint32_t i = 0; shards && i < n; i++) {
        char text[600];
        snprintf(text, sizeof text, "%.*s%s", (int)(bare + 1 - name), name, lb_program_text(program, shards[i].name));
        add_holding(list, part, text, rules);
    }
    return shards != NULL;
}

static void add_source(holdings *list, const lb_program_view *side, const lb_layer_names_map *rules, uint32_t op,
                       bool free)
{
    const lb_program *program = side->program;
    const uint32_t v = lb_op_results(program, &program->ops[op])[0];
    const lb_value *value = &program->values[v];
    uint32_t n;
    const lb_shard *shards = lb_program_shards_of(program, v, &n);
    lb_held_part h = {.side = side, .op = op, .value = v, .rank = lb_program_view_part_of(side, op), .free = free};
    if (!kind_of(program, value, &h.kind)) return;
    if (!shards) claim_all(&h, &value->layout);
    if (!shards && !add_numbers(list, &h, rules)) add_holding(list, &h, lb_program_text(program, value->name), rules);
    for (uint32_t i = 0; shards && i < n; i++) {
        const lb_layout part = lb_shard_part(program, &shards[i]);
        h.shard = &shards[i], h.at = shards[i].at, h.elements = lb_layout_numel(&part);
        const uint32_t name = shards[i].name == LB_NONE ? value->name : shards[i].name;
        if (h.elements) add_holding(list, &h, lb_program_text(program, name), rules);
    }
}

static void number_holdings(holdings *list)
{
    for (uint32_t i = 0; i < list->n; i++) {
        lb_held_part *part = &list->list[i];
        for (uint32_t k = i; k-- > 0 && list->list[k].rank == part->rank;)
            part->nth += !strcmp(list->list[k].name, part->name);
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

static void list_holdings(const lb_program_view *const sides[2], const lb_layer_names_map *const rules[2],
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
            const lb_program *program = sides[k]->program;
            const uint32_t v =
                lb_op_is_source(program, &program->ops[i]) ? lb_op_results(program, &program->ops[i])[0] : LB_NONE;
            if (v == LB_NONE) continue;
            const uint32_t j = k ? LB_NONE : al->source_b_of_a[i];
            const bool met = k ? paired[i] : j != LB_NONE && paired[j];
            const uint32_t part = lb_program_view_part_of(sides[k], i);
            const bool stands = lb_program_view_group(sides[k], sides[!k], part) != LB_NONE;
            add_source(&lists[k], sides[k], rules[k], i,
                       stands && !met && (k ? al->join_of_b : al->join_of_a)[i] == LB_NONE);
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
        status = lb_layer_names_meet(names[0], lists[0].n, names[1], lists[1].n, err);
        for (int k = 0; k < 2; k++)
            for (uint32_t i = 0; i < lists[k].n; i++) lists[k].list[i].name = names[k][i];
    }
    free(names[0]), free(names[1]);
    return status;
}

/* ---- what is cut differently ---- */

/* The holdings of one tensor on one side. */
typedef struct group {
    const lb_held_part *all;
    uint32_t *rows, n;
    bool free, told; /* some of them is; of all of them something was said */
} group;

static bool gather_group(const holdings *all, const lb_held_part *like, group *g)
{
    *g = (group){.all = all->list, .rows = malloc((all->n + 1) * sizeof *g->rows), .told = true};
    for (uint32_t i = 0; g->rows && i < all->n; i++) {
        const lb_held_part *part = &all->list[i];
        if (part->nth != like->nth || part->kind != like->kind || strcmp(part->name, like->name)) continue;
        g->rows[g->n++] = i, g->free |= part->free, g->told &= part->shard != NULL;
    }
    return g->rows != NULL;
}

static const lb_held_part *member(const group *group, uint32_t i)
{
    return &group->all[group->rows[i]];
}

static const lb_value *value_of(const lb_held_part *part)
{
    return &part->side->program->values[part->value];
}

static bool have_whole(const group *group, const lb_layout *whole)
{
    for (uint32_t i = 0; i < group->n; i++) {
        const lb_layout mine = lb_held_part_whole(member(group, i));
        if (!lb_layout_same_shape(&mine, whole)) return false;
    }
    return group->n;
}

static bool are_all_the_same(const group *group)
{
    for (uint32_t i = 1; i < group->n; i++)
        if (!lb_digest_equal(value_of(member(group, i))->logical, value_of(member(group, 0))->logical)) return false;
    return true;
}

/* Do the ranks share one whole? Of several sets of ranks that share one each, they are of the same set. */
static bool share_one(const lb_program_view *side, uint32_t x, uint32_t y)
{
    bool sets = false;
    for (uint32_t p = 0; side->copy_of && p < side->n_parts; p++) sets |= side->copy_of[p] != p;
    return !sets || side->copy_of[x] == side->copy_of[y];
}

/* Where the part of member `i` begins along `dim`, and where the last of its set ends. */
static int64_t place_in_set(const group *group, uint32_t i, int dim, int64_t *end)
{
    int64_t from = 0;
    *end = 0;
    for (uint32_t k = 0; k < group->n; k++) {
        if (!share_one(member(group, i)->side, member(group, k)->rank, member(group, i)->rank)) continue;
        *end += value_of(member(group, k))->layout.shape[dim];
        if (k < i) from += value_of(member(group, k))->layout.shape[dim];
    }
    return from;
}

/* Tensors of which nothing was said, one of each rank: do they make that whole, one behind the other? */
static bool follow_each_other(group *group, lb_held_part *all, const lb_layout *whole)
{
    const lb_layout *first = &value_of(member(group, 0))->layout;
    int64_t end;
    int dim = 0;
    if (first->ndim != whole->ndim || !whole->ndim || group->n != member(group, 0)->side->n_parts) return false;
    while (dim < whole->ndim - 1 && first->shape[dim] == whole->shape[dim]) dim++;
    for (uint32_t i = 0; i < group->n; i++) {
        const lb_held_part *part = member(group, i);
        const lb_layout *layout = &value_of(part)->layout;
        if (part->shard || part->rank != i || layout->ndim != whole->ndim) return false;
        for (int d = 0; d < whole->ndim; d++)
            if (d != dim && layout->shape[d] != whole->shape[d]) return false;
    }
    for (uint32_t i = 0; i < group->n; i++) {
        lb_extent *extent = &all[group->rows[i]].own[dim];
        extent->from = place_in_set(group, i, dim, &end);
        if (end != whole->shape[dim]) return false;
    }
    for (uint32_t i = 0; i < group->n; i++) all[group->rows[i]].own[dim].whole = whole->shape[dim];
    return true;
}

/* No shard says that these are parts, and all ranks hold the same: are they copies of a smaller tensor? What is one
 * number all over (a bias that nothing has changed) may be parts of it. */
static bool are_copies(const group group[2], const lb_cut_tensor *cut)
{
    for (int k = 0; k < 2; k++) {
        const lb_layout mine = value_of(member(&group[k], 0))->layout;
        const bool part = !member(&group[k], 0)->shard && !lb_layout_same_shape(&mine, &cut->whole);
        if (part && cut->kind != LB_CUT_BATCH && cut->wrong != LB_NONE && are_all_the_same(&group[k])) return true;
    }
    return false;
}

/* Both sides hold parts of one whole, whose shape is set. */
static bool are_parts(group group[2], holdings lists[2], lb_layout *whole)
{
    for (int k = 0; k < 2; k++) { /* the one side says what the whole is */
        *whole = lb_held_part_whole(member(&group[k], 0));
        if (!have_whole(&group[k], whole)) continue;
        if (have_whole(&group[!k], whole))
            return group[0].told || group[1].told || member(&group[0], 0)->kind == LB_CUT_STATE;
        if (follow_each_other(&group[!k], lists[!k].list, whole)) return true;
    }
    return false;
}

/* ---- element by element ---- */

static void draw(lb_held_image *to, const group *group)
{
    for (uint32_t i = 0; i < group->n; i++) {
        uint8_t *bytes = lb_held_part_bytes(member(group, i), to->element);
        if (bytes) lb_held_image_draw(to, member(group, i), bytes);
        free(bytes);
    }
}

static const lb_held_part *find_wrong(const lb_held_image *other, const group *group)
{
    for (uint32_t i = 0; i < group->n; i++) {
        uint8_t *bytes = lb_held_part_bytes(member(group, i), other->element);
        const bool differs = bytes && lb_held_image_differs(other, member(group, i), bytes);
        free(bytes);
        if (differs) return member(group, i);
    }
    return NULL;
}

/* How far a part is from what stands in its place, of its own size; 0: that is not known. */
static double distance_from(const lb_held_image *other, const lb_held_part *part, uint8_t dtype)
{
    const size_t n = (size_t)part->elements;
    uint8_t *mine = lb_held_part_bytes(part, other->element), *there = calloc(n + 1, other->element);
    double *x = malloc((2 * n + 1) * sizeof *x), apart = 0, size = 0;
    if (mine && there && x && lb_dtype_is_float(dtype)) {
        lb_held_image_cut(other, part, there);
        lb_load_f64(x, dtype, mine, n), lb_load_f64(x + n, dtype, there, n);
        for (size_t i = 0; i < n; i++) apart += (x[i] - x[n + i]) * (x[i] - x[n + i]), size += x[i] * x[i];
    }
    free(mine), free(there), free(x);
    return size > 0 ? apart / size : 0;
}

/* Parts of which nothing was said, none of which is near what stands in its place one behind the other: they lie in
 * another order. */
static bool lie_otherwise(const lb_held_image *other, const group *group, const lb_cut_tensor *cut)
{
    static const double FAR = 0.25; /* squared, and no update's rounding */
    for (uint32_t i = 0; i < group->n; i++) {
        const lb_held_part *part = member(group, i);
        if (part->shard || lb_layout_same_shape(&value_of(part)->layout, &cut->whole)) return false;
        if (distance_from(other, part, cut->dtype) < FAR) return false;
    }
    return group->n > 1 && cut->kind != LB_CUT_BATCH;
}

static bool has_dtype(const group *group, uint8_t dtype)
{
    for (uint32_t i = 0; i < group->n; i++)
        if (value_of(member(group, i))->dtype != dtype) return false;
    return true;
}

/* A's numbers are there for all that B holds, and B's shadow can begin with them. */
static bool covers(const lb_held_image *image, const group *group)
{
    for (uint32_t i = 0; i < group->n; i++)
        if (lb_held_image_lacks(image, member(group, i))) return false;
    return true;
}

/* The rank of the side that has the same bytes in another part; -1. Of tensors that are the same number all over it
 * says nothing. */
static int32_t find_twin(const lb_held_part *part)
{
    const lb_program *program = part->side->program;
    const lb_value *value = value_of(part);
    lb_tensor t;
    const lb_layout whole = lb_held_part_whole(part);
    if (part->elements == lb_layout_numel(&whole)) return -1; /* others have copies of it */
    if (lb_digest_is_none(value->logical) || lb_program_view_value(part->side, part->value, &t, NULL) != LB_OK)
        return -1;
    const size_t size = lb_dtype_bits(t.dtype) / 8, n = (size_t)lb_layout_numel(&t.layout);
    if (!lb_layout_is_contiguous(&t.layout) || n < 2 || !memcmp(t.data, (char *)t.data + size, (n - 1) * size))
        return -1;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t other =
            lb_op_is_source(program, &program->ops[i]) ? lb_op_results(program, &program->ops[i])[0] : LB_NONE;
        const uint32_t rank = lb_program_view_part_of(part->side, i);
        if (other == LB_NONE || rank == part->rank || !lb_digest_equal(program->values[other].logical, value->logical))
            continue;
        if (!lb_shard_is_copy(program, part->value, program, other)) return part->side->parts[rank].program->rank;
    }
    return -1;
}

/* Of two sides that differ one rank may have what another of its own side has: it is to blame then. */
static void blame(const group group[2], const lb_held_part *wrong, int side, lb_cut_tensor *cut)
{
    cut->wrong_like = find_twin(wrong);
    for (uint32_t i = 0; i < group[!side].n && cut->wrong_like < 0; i++) {
        const int32_t like = member(&group[!side], i)->shard ? find_twin(member(&group[!side], i)) : -1;
        if (like >= 0) wrong = member(&group[!side], i), side = !side, cut->wrong_like = like;
    }
    cut->wrong = wrong->op, cut->wrong_side = side;
    lb_held_part_text(wrong, cut->wrong_part, sizeof cut->wrong_part);
}

/* Against the other side's whole, first B's parts, then A's; where B has none, the other way round. False: out of
 * memory. */
static bool compare(const group group[2], lb_cut_tensor *cut)
{
    const size_t element = lb_dtype_bits(cut->dtype) / 8;
    if (lb_dtype_bits(cut->dtype) < 8 || !has_dtype(&group[0], cut->dtype) || !has_dtype(&group[1], cut->dtype))
        return true;
    bool room = true, otherwise = false;
    const int first = lb_layout_same_shape(&value_of(member(&group[1], 0))->layout, &cut->whole) ? 0 : 1;
    for (int n = 0; n < 2 && room; n++) {
        const int k = n ? !first : first;
        lb_held_image other;
        room = lb_held_image_open(&other, &cut->whole, element);
        if (room) draw(&other, &group[!k]);
        otherwise |= room && lie_otherwise(&other, &group[k], cut);
        const lb_held_part *part = room && cut->wrong == LB_NONE ? find_wrong(&other, &group[k]) : NULL;
        if (room && k)
            cut->known = cut->kind <= LB_CUT_STATE && lb_dtype_is_float(cut->dtype) && covers(&other, &group[1]);
        if (part) blame(group, part, k, cut);
        lb_held_image_release(&other);
    }
    if (otherwise) cut->known = false, cut->wrong = LB_NONE;
    return room;
}

/* ---- all of it ---- */

static bool is_joined(const lb_alignment *al, const group group[2])
{
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < group[k].n; i++)
            if ((k ? al->join_of_b : al->join_of_a)[member(&group[k], i)->op] != LB_NONE) return true;
    return false;
}

static bool add_cut(lb_cut_tensors *out, holdings lists[2], group groups[2], lb_alignment *al)
{
    lb_layout whole;
    const bool parts = are_parts(groups, lists, &whole), told = groups[0].told && groups[1].told;
    const lb_held_part *first = member(&groups[0], 0);
    if (!parts && !told) return true; /* other shapes, and no shard says that they are parts */
    lb_cut_tensor *grown = lb_array_grow(out->list, out->n, sizeof *grown);
    if (!grown) return false;
    out->list = grown;
    lb_cut_tensor cut = {.name = strdup(first->name), .kind = first->kind, .wrong = LB_NONE, .wrong_like = -1};
    cut.whole = whole, cut.dtype = value_of(first)->dtype, cut.other_whole = !parts;
    if (!cut.name) return false;
    for (int k = 0; k < 2; k++) {
        cut.op[k] = member(&groups[k], 0)->op,
        lb_held_part_text(member(&groups[k], 0), cut.part[k], sizeof cut.part[k]);
        cut.rows[k] = groups[k].rows, cut.n_rows[k] = groups[k].n, groups[k].rows = NULL;
    }
    const group held[2] = {{.all = lists[0].list, .rows = cut.rows[0], .n = groups[0].n},
                           {.all = lists[1].list, .rows = cut.rows[1], .n = groups[1].n}};
    const bool room = !parts || compare(held, &cut);
    if (parts && are_copies(held, &cut)) {
        free(cut.name), free(cut.rows[0]), free(cut.rows[1]);
        return room;
    }
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < cut.n_rows[k]; i++) out->held[k][lists[k].list[cut.rows[k][i]].op] = LB_HELD_OTHERWISE;
    cut.known &= !is_joined(al, held);
    out->list[out->n++] = cut;
    out->unknown += !cut.known;
    return room;
}

/* Of those that are free. */
static bool is_first(const holdings *all, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (all->list[k].free && all->list[k].nth == all->list[i].nth && all->list[k].kind == all->list[i].kind &&
            !strcmp(all->list[k].name, all->list[i].name))
            return false;
    return true;
}

static bool find_cuts(holdings lists[2], lb_alignment *al, lb_cut_tensors *out)
{
    bool room = true;
    for (uint32_t i = 0; i < lists[0].n && room; i++) {
        group group[2] = {{0}};
        if (!lists[0].list[i].free || !is_first(&lists[0], i)) continue;
        room = gather_group(&lists[0], &lists[0].list[i], &group[0]) &&
               gather_group(&lists[1], &lists[0].list[i], &group[1]);
        if (room && (group[1].free || (group[1].n && lists[0].list[i].kind == LB_CUT_STATE)))
            room = add_cut(out, lists, group, al);
        free(group[0].rows), free(group[1].rows);
    }
    return room;
}

/* What is known element by element is no pair of sources as well; a source with several tensors is known where all of
 * them are. */
static void mark_known(lb_cut_tensors *cuts, lb_alignment *al)
{
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < cuts->n; i++)
            for (int k = 0; k < 2 && cuts->list[i].known == !pass; k++)
                for (uint32_t r = 0; r < cuts->list[i].n_rows[k]; r++) {
                    const uint32_t op = cuts->parts[k][cuts->list[i].rows[k][r]].op;
                    cuts->held[k][op] = pass ? LB_HELD_OTHERWISE : LB_HELD_KNOWN;
                    if (!pass && !k) al->source_b_of_a[op] = LB_NONE;
                }
}

/* ---- updates ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The parameters of a side that are known, as its ops name them; malloc'ed. NULL: out of memory. */
static char **list_known(const lb_cut_tensors *cuts, int side, const lb_layer_names_map *rules, uint32_t *n)
{
    char **names = malloc((cuts->n_parts[side] + 1) * sizeof *names);
    bool room = names != NULL;
    *n = 0;
    for (uint32_t i = 0; i < cuts->n && room; i++)
        for (uint32_t r = 0; r < cuts->list[i].n_rows[side] && room; r++) {
            const lb_held_part *part = &cuts->parts[side][cuts->list[i].rows[side][r]];
            const lb_program *program = part->side->program;
            const uint32_t name =
                part->shard && part->shard->name != LB_NONE ? part->shard->name : program->values[part->value].name;
            if (!cuts->list[i].known || part->kind != LB_CUT_PARAMETER) continue;
            names[*n] = lb_layer_names_map_apply(rules, lb_program_text(program, name));
            room = names[*n] != NULL, *n += room;
        }
    if (room) qsort(names, *n, sizeof *names, by_text);
    for (uint32_t i = 0; !room && names && i < *n; i++) free(names[i]);
    if (!room) free(names);
    return room ? names : NULL;
}

/* Ops that update such a parameter run over different elements on the two sides, even where their shapes fit: they are
 * no pairs. */
static bool part_updates(const lb_cut_tensors *cuts, const lb_layer_names_map *const rules[2], lb_alignment *al)
{
    bool room = true;
    for (int k = 0; k < 2 && al->served[k] && room && cuts->n > cuts->unknown; k++) {
        uint32_t n = 0;
        char **names = list_known(cuts, k, rules[k], &n);
        room = names != NULL;
        for (uint32_t i = 0; room && i < al->n_served[k]; i++) {
            const bool known = al->served[k][i] && bsearch(&al->served[k][i], names, n, sizeof *names, by_text);
            const uint32_t join = k ? al->join_of_b[i] : LB_NONE;
            const uint32_t a = !k ? i : join != LB_NONE ? al->joins.list[join].whole : al->a_of_b[i];
            if (known && a != LB_NONE) lb_alignment_part(al, a);
        }
        for (uint32_t i = 0; names && i < n; i++) free(names[i]);
        free(names);
    }
    return room;
}

static void free_parts(lb_held_part *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) free(list[i].name);
    free(list);
}

lb_status lb_cut_tensors_find(const lb_program_view *a, const lb_program_view *b,
                              const lb_layer_names_map *const rules[2], lb_alignment *alignment, lb_cut_tensors *out,
                              lb_err *err)
{
    const lb_program_view *const sides[2] = {a, b};
    holdings lists[2] = {{0}};
    *out = (lb_cut_tensors){.held = {calloc(a->program->n_ops + 1, 1), calloc(b->program->n_ops + 1, 1)}};
    lb_status status = LB_OK;
    bool room = out->held[0] && out->held[1];
    if (room && (a->n_parts > 1 || b->n_parts > 1 || a->program->n_shards || b->program->n_shards)) {
        list_holdings(sides, rules, alignment, lists);
        room = !lists[0].failed && !lists[1].failed;
        if (room) status = meet_names(lists, err);
        if (room && status == LB_OK) room = find_cuts(lists, alignment, out);
        for (int k = 0; k < 2; k++) out->parts[k] = lists[k].list, out->n_parts[k] = lists[k].n;
        if (room && status == LB_OK) mark_known(out, alignment), room = part_updates(out, rules, alignment);
        if (room && status == LB_OK && !out->unknown && a->n_parts > 1 && !lb_program_views_are_uneven(a, b))
            room = lb_cut_results_find(sides, rules, out);
    }
    if (status == LB_OK && !room) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for parts of tensors");
    if (status == LB_OK)
        alignment->cuts = out;
    else
        lb_cut_tensors_release(out);
    return status;
}

void lb_cut_tensors_release(lb_cut_tensors *cuts)
{
    for (uint32_t i = 0; i < cuts->n; i++)
        free(cuts->list[i].name), free(cuts->list[i].rows[0]), free(cuts->list[i].rows[1]);
    for (int k = 0; k < 2; k++) free_parts(cuts->parts[k], cuts->n_parts[k]);
    free(cuts->result), free(cuts->list), free(cuts->held[0]), free(cuts->held[1]);
    *cuts = (lb_cut_tensors){0};
}
