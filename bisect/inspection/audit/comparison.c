/* See comparison.h. Names meet by the user's rules, by known spellings, and where one side has a prefix more ("model.",
 * "module."). What a name leads to and what holds different numbers, as well as what has no like name, is looked for by
 * its numbers. Weights are judged apart from the state of a run: slots of an optimizer and random numbers, which one
 * side alone may hold. */
#include "audit/comparison.h"

#include "audit/arrangement.h"
#include "audit/gguf_names.h"
#include "contents/content_map.h"
#include "pair/layer_names.h"

#include "base/array.h"
#include <lastbit/program.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef lb_comparison_side side;

static const side *sorted;
#pragma omp threadprivate(sorted)

static int by_side_name(const void *a, const void *b)
{
    return strcmp(sorted->names[*(const uint32_t *)a], sorted->names[*(const uint32_t *)b]);
}

static uint32_t find(const side *side, const char *name)
{
    uint32_t low = 0, high = side->inventory->n_names;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        int order = strcmp(side->names[side->order[middle]], name);
        if (order == 0) return side->order[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return LB_NONE;
}

static bool side_init(side *from, const lb_inventory *inventory, const lb_layer_names_map *rules)
{
    const uint32_t n = inventory->n_names;
    *from = (side){inventory, calloc(n + 1u, sizeof(char *)), malloc((n + 1u) * sizeof(uint32_t)),
                   calloc(n + 1u, sizeof *from->states), malloc((n + 1u) * sizeof(uint32_t))};
    const bool made = from->names && from->order && from->states && from->partners;
    for (uint32_t i = 0; made && i < n; i++) {
        char *spelled = lb_gguf_names_spell(inventory->names[i].name);
        from->names[i] = spelled ? lb_layer_names_map_apply(rules, spelled) : NULL;
        free(spelled);
        from->order[i] = i, from->partners[i] = LB_NONE;
        if (!from->names[i]) return false;
    }
    return made;
}

static void side_sort(side *side)
{
    sorted = side;
    if (side->inventory->n_names) qsort(side->order, side->inventory->n_names, sizeof *side->order, by_side_name);
}

static void side_release(side *side)
{
    for (uint32_t i = 0; side->names && i < side->inventory->n_names; i++) free(side->names[i]);
    free(side->names), free(side->order), free(side->states), free(side->partners);
}

/* ---- two tensors ------------------------------------------------------------------------------------------------- */

void lb_comparison_add(lb_audit_gathering *gathering, const lb_comparison_pair *pair, const lb_value_match *match,
                       const lb_audit_where *where)
{
    const lb_tensor *a = pair->a, *b = pair->b;
    lb_audit_pair *row = lb_audit_add_pair(gathering);
    char at[160];
    if (!row) return;
    row->name = lb_audit_text(gathering, pair->name);
    row->other = lb_audit_text(gathering, pair->other);
    row->how = lb_audit_text(gathering, pair->how);
    row->first = lb_audit_text(gathering, pair->first ? pair->first : pair->name), row->folded = pair->folded;
    row->match = match->match, row->rounded = match->rounded, row->difference = match->difference;
    row->dtype = a->dtype, row->other_dtype = b->dtype;
    if (match->worst >= 0) {
        int64_t rest = match->worst;
        row->ndim = b->layout.ndim;
        for (int d = row->ndim - 1; d >= 0; d--) {
            int64_t size = b->layout.shape[d] > 0 ? b->layout.shape[d] : 1;
            row->index[d] = rest % size;
            rest /= size;
        }
    }
    if (match->match == LB_AUDIT_IS_DIFFERENT)
        lb_audit_find(gathering, LB_AUDIT_DIFFERS, *where,
                      "differs from %s%s%s: %lld of %lld elements, by %.3g at most, at %s; relative L2 %.3g; %s%s%s",
                      pair->other, *pair->how ? ", " : "", pair->how, (long long)match->difference.differing,
                      (long long)match->difference.elements, match->difference.max_abs,
                      lb_inventory_index_text(&b->layout, match->worst, at), match->difference.rel_l2,
                      lb_compare_pattern_text(match->difference.pattern), *match->difference.detail ? ": " : "",
                      match->difference.detail);
}

/* Pieces of several ranks, each as large as the whole and of different numbers: experts that every rank numbers from 0.
 */
static bool are_others(const lb_inventory *inventory, const lb_inventory_name *name, const lb_layout *whole)
{
    const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[name->first];
    bool differ = false;
    for (uint32_t i = 1; i < name->n; i++)
        differ |=
            !lb_digest_equal(inventory->measured[name->first].digest, inventory->measured[name->first + i].digest);
    return differ && !piece->placed && lb_layout_same_shape(&piece->tensor.layout, whole);
}

/* Two tensors are to be compared, unless they are known to be different ones. */
static bool meet(lb_comparison *comparison, uint32_t i, uint32_t k, bool last)
{
    const lb_inventory_name *na = &comparison->a.inventory->names[i], *nb = &comparison->b.inventory->names[k];
    lb_comparison_named_pair *grown = lb_array_grow(comparison->named_pairs, comparison->n_named_pairs, sizeof *grown);
    if (!grown) return false;
    comparison->named_pairs = grown;
    if (are_others(comparison->a.inventory, na, &comparison->b.inventory->checkpoint->pieces[nb->first].whole))
        return true;
    comparison->a.partners[i] = k, comparison->b.partners[k] = i;
    comparison->named_pairs[comparison->n_named_pairs++] = (lb_comparison_named_pair){i, k, last};
    return true;
}

/* What the names of two tensors say of their numbers. Nothing is told yet of tensors that differ: their numbers may
 * stand elsewhere. `last`: they stand nowhere. */
static void tell_pair(lb_comparison *comparison, uint32_t i, uint32_t k, const lb_comparison_outcome *outcome,
                      bool last)
{
    side *a = &comparison->a, *b = &comparison->b;
    const lb_inventory_name *na = &a->inventory->names[i], *nb = &b->inventory->names[k];
    const lb_audit_where where = lb_inventory_where(a->inventory, &a->inventory->checkpoint->pieces[na->first]);
    char one[160], two[160];
    const bool found = outcome->fits && outcome->match.match != LB_AUDIT_IS_DIFFERENT;
    const char *how = outcome->turned ? "transposed" : outcome->joined ? "shards put together" : "";
    if (found || (last && outcome->fits))
        lb_comparison_add(comparison->gathering,
                          &(lb_comparison_pair){na->name, nb->name, how, &outcome->a, &outcome->b}, &outcome->match,
                          &where);
    else if (last)
        lb_audit_find(comparison->gathering, LB_AUDIT_SHAPE, where, "is %s, %s is %s",
                      lb_inventory_shape_text(&outcome->a.layout, one), nb->name,
                      lb_inventory_shape_text(&outcome->b.layout, two));
    if (found || last) a->states[i] = b->states[k] = outcome->turned ? LB_COMPARISON_TURNED : LB_COMPARISON_STRAIGHT;
}

/* The same of a pair that was compared, and of which nothing was told. */
void lb_comparison_tell_last(lb_comparison *comparison, uint32_t i)
{
    if (comparison->kept[i]) tell_pair(comparison, i, comparison->a.partners[i], comparison->kept[i], true);
}

lb_status lb_comparison_take(lb_comparison *comparison, uint64_t pair, const lb_comparison_outcome *outcome,
                             lb_err *err)
{
    const lb_comparison_named_pair *m = &comparison->named_pairs[pair];
    tell_pair(comparison, m->a, m->b, outcome, m->last);
    if (m->last || comparison->a.states[m->a] != LB_COMPARISON_OPEN) return LB_OK;
    if (!(comparison->kept[m->a] = malloc(sizeof *outcome))) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    *comparison->kept[m->a] = *outcome;
    return LB_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool is_open(const side *side, uint32_t row)
{
    return row != LB_NONE && side->states[row] == LB_COMPARISON_OPEN && side->partners[row] == LB_NONE;
}

static bool meet_by_name(lb_comparison *comparison)
{
    bool room = true;
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++) {
        const uint32_t k = find(&comparison->b, comparison->a.names[i]);
        if (is_open(&comparison->a, i) && is_open(&comparison->b, k)) room &= meet(comparison, i, k, false);
    }
    return room;
}

/* The row of `s` that has this name behind a prefix less; LB_NONE. At least two words are left. */
static uint32_t find_shorter(const side *side, const char *name)
{
    for (const char *at = strchr(name, '.'); at && strchr(at + 1, '.'); at = strchr(at + 1, '.')) {
        const uint32_t row = find(side, at + 1);
        if (is_open(side, row)) return row;
    }
    return LB_NONE;
}

/* "model.layers.0…" against "layers.0…". */
static bool meet_by_suffix(lb_comparison *comparison)
{
    bool room = true;
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++) {
        const uint32_t k = is_open(&comparison->a, i) ? find_shorter(&comparison->b, comparison->a.names[i]) : LB_NONE;
        if (k != LB_NONE) room &= meet(comparison, i, k, false);
    }
    for (uint32_t k = 0; k < comparison->b.inventory->n_names; k++) {
        const uint32_t i = is_open(&comparison->b, k) ? find_shorter(&comparison->a, comparison->b.names[k]) : LB_NONE;
        if (i != LB_NONE) room &= meet(comparison, i, k, false);
    }
    return room;
}

/* ---- the state of a run ------------------------------------------------------------------------------------------ */

static bool meet_states(lb_comparison *comparison, uint32_t *met)
{
    bool room = true;
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++) {
        const uint32_t k =
            comparison->a.states[i] == LB_COMPARISON_STATE ? find(&comparison->b, comparison->a.names[i]) : LB_NONE;
        if (k == LB_NONE || comparison->b.states[k] != LB_COMPARISON_STATE) continue;
        room &= meet(comparison, i, k, true);
        comparison->a.states[i] = comparison->b.states[k] = LB_COMPARISON_STRAIGHT;
        ++*met;
    }
    return room;
}

static uint32_t mark_states(side *side)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < side->inventory->n_names; i++)
        if (lb_inventory_is_run_state(side->inventory, &side->inventory->names[i]))
            side->states[i] = LB_COMPARISON_STATE, n++;
    return n;
}

/* Where both hold the state of one optimizer, what one of them lacks is a finding; where one alone holds it, it is no
 * weight. */
static void tell_states(lb_audit_gathering *gathering, const side *from, const side *other, uint32_t met)
{
    uint32_t n = 0;
    const lb_inventory_name *first = NULL;
    for (uint32_t i = 0; i < from->inventory->n_names; i++)
        if (from->states[i] == LB_COMPARISON_STATE) n++, first = first ? first : &from->inventory->names[i];
    for (uint32_t i = 0; i < from->inventory->n_names && met; i++)
        if (from->states[i] == LB_COMPARISON_STATE)
            lb_audit_find(gathering, LB_AUDIT_OPTIMIZER_MISSING,
                          (lb_audit_where){from->inventory->names[i].name, NULL, NULL, 0}, "%s has it, %s does not",
                          from->inventory->checkpoint->path, other->inventory->checkpoint->path);
    if (n && !met)
        lb_audit_note(gathering, LB_AUDIT_UNEXPECTED, (lb_audit_where){NULL, NULL, NULL, 0},
                      "%u tensors of %s are the state of a run (optimizer, random numbers), such as %s; "
                      "%s holds none of them, and they are not compared",
                      n, from->inventory->checkpoint->path, first->name, other->inventory->checkpoint->path);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* A name more for what another name holds: a head tied to its embedding, which one side stores twice. */
static bool is_tied(lb_audit_gathering *gathering, const lb_comparison_side *side, uint32_t row)
{
    const lb_inventory *inventory = side->inventory;
    const lb_inventory_name *name = &inventory->names[row];
    const lb_piece_measured *measured = &inventory->measured[name->first];
    for (uint32_t i = 0; i < inventory->n_names; i++) {
        const lb_inventory_name *other = &inventory->names[i];
        bool same_bytes = inventory->checkpoint->pieces[other->first].tensor.data ==
                          inventory->checkpoint->pieces[name->first].tensor.data;
        if (other != name && side->states[i] != LB_COMPARISON_OPEN &&
            lb_digest_equal(inventory->measured[other->first].digest, measured->digest) &&
            (same_bytes || !lb_inventory_is_constant(measured))) {
            if (!lb_audit_is_found(gathering, other->name)) lb_audit_excuse(gathering, LB_AUDIT_DEAD, name->name);
            return true;
        }
    }
    return false;
}

/* A mask or a table of angles that one side keeps is what the other side computes: worth knowing, and nothing wrong. */
static void tell_alone(lb_audit_gathering *gathering, const side *from, uint32_t row, bool of_a, const side *other)
{
    const lb_inventory_name *name = &from->inventory->names[row];
    const bool computed = lb_inventory_is_buffer(name->name);
    void (*say)(lb_audit_gathering *, lb_audit_kind, lb_audit_where, const char *, ...) =
        computed ? lb_audit_note : lb_audit_find;
    const char *path = other->inventory->checkpoint->path, *why = computed ? ": a table that a model can compute" : "";
    if (of_a)
        say(gathering, LB_AUDIT_UNEXPECTED,
            lb_inventory_where(from->inventory, &from->inventory->checkpoint->pieces[name->first]),
            "its numbers are in no tensor of %s%s", path, why);
    else
        say(gathering, LB_AUDIT_MISSING, (lb_audit_where){name->name, NULL, NULL, 0},
            "%s has it, and its numbers are in no tensor of %s%s", from->inventory->checkpoint->path, path, why);
}

/* Tensors of a side that hold one number all over, as many times as this one of side `s` does. */
static uint32_t count_like(const side *of, const side *from, uint32_t row)
{
    const lb_piece_measured *own = &from->inventory->measured[from->inventory->names[row].first];
    uint32_t n = 0;
    for (uint32_t i = 0; i < of->inventory->n_names; i++) {
        const lb_piece_measured *m = &of->inventory->measured[of->inventory->names[i].first];
        n += lb_inventory_is_constant(m) && m->statistics.min == own->statistics.min &&
             m->statistics.elements == own->statistics.elements;
    }
    return n;
}

/* Which of several biases of zeros is which no number says: where both sides have as many, each has its like. */
static bool has_like(const side *from, uint32_t row, const side *other)
{
    const lb_inventory_name *name = &from->inventory->names[row];
    return name->n == 1 && lb_inventory_is_constant(&from->inventory->measured[name->first]) &&
           count_like(other, from, row) >= count_like(from, from, row);
}

static void tell_rest(lb_audit_gathering *gathering, const side *a, const side *b)
{
    for (uint32_t i = 0; i < b->inventory->n_names; i++)
        if (b->states[i] == LB_COMPARISON_OPEN && !is_tied(gathering, b, i) && !has_like(b, i, a) &&
            !lb_audit_is_found(gathering, b->names[i]))
            tell_alone(gathering, b, i, false, a);
    for (uint32_t i = 0; i < a->inventory->n_names; i++)
        if (a->states[i] == LB_COMPARISON_OPEN && !is_tied(gathering, a, i) && !has_like(a, i, b))
            tell_alone(gathering, a, i, true, b);
}

/* Two checkpoints of one run differ in every weight: then names say all. Unless a tensor is another one's to the
 * bit. */
static bool are_other_weights(const lb_comparison *comparison)
{
    uint32_t differ = 0, same = 0;
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++) {
        if (comparison->a.partners[i] == LB_NONE) continue;
        const bool open = comparison->a.states[i] == LB_COMPARISON_OPEN;
        const lb_piece_measured *measured = &comparison->a.inventory->measured[comparison->a.inventory->names[i].first];
        differ += open, same += !open;
        for (uint32_t k = 0; open && !lb_inventory_is_constant(measured) && k < comparison->b.inventory->n_names; k++)
            if (lb_digest_equal(comparison->b.inventory->measured[comparison->b.inventory->names[k].first].digest,
                                measured->digest))
                return false;
    }
    return differ > same;
}

static lb_status compare_by_contents(lb_comparison *comparison, lb_err *err)
{
    LB_TRY(lb_arrangement_find(comparison, are_other_weights(comparison), err));
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++) {
        const uint32_t k = comparison->a.partners[i];
        if (k == LB_NONE || comparison->a.states[i] != LB_COMPARISON_OPEN ||
            comparison->b.states[k] != LB_COMPARISON_OPEN)
            continue;
        lb_comparison_tell_last(comparison, i);
    }
    return LB_OK;
}

/* Which tensors meet follows from names, and from pieces that are known to be different ones. */
static lb_status compare_sides(lb_comparison *comparison, const lb_content_map *map, lb_err *err)
{
    uint32_t met = 0;
    LB_TRY(lb_layer_names_meet(comparison->a.names, comparison->a.inventory->n_names, comparison->b.names,
                               comparison->b.inventory->n_names, err));
    side_sort(&comparison->a), side_sort(&comparison->b);
    mark_states(&comparison->a), mark_states(&comparison->b);
    if (map) LB_TRY(lb_arrangement_take_map(comparison, map, err));
    if (!meet_states(comparison, &met) || !meet_by_name(comparison) || !meet_by_suffix(comparison))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    LB_TRY(lb_comparison_named_pairs(comparison, err));
    LB_TRY(compare_by_contents(comparison, err));
    tell_rest(comparison->gathering, &comparison->a, &comparison->b);
    tell_states(comparison->gathering, &comparison->a, &comparison->b, met),
        tell_states(comparison->gathering, &comparison->b, &comparison->a, met);
    return LB_OK;
}

lb_status lb_comparison_audit(lb_audit_gathering *gathering, const lb_inventory *a, const lb_inventory *b, lb_err *err)
{
    lb_layer_names_map *rules = NULL;
    lb_content_map map = {0};
    lb_comparison comparison = {.gathering = gathering};
    const char *table = gathering->options->table;
    if (table) LB_TRY(lb_content_map_read(table, &map, err));
    LB_TRY(lb_layer_names_map_new(gathering->options->maps, gathering->options->n_maps, &rules, err));
    comparison.kept = calloc(a->n_names + 1u, sizeof(lb_comparison_outcome *));
    lb_status status = side_init(&comparison.a, a, rules) && side_init(&comparison.b, b, NULL) && comparison.kept
                           ? compare_sides(&comparison, table ? &map : NULL, err)
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; comparison.kept && i < a->n_names; i++) free(comparison.kept[i]);
    free(comparison.kept), free(comparison.named_pairs);
    side_release(&comparison.a), side_release(&comparison.b);
    lb_layer_names_map_free(rules);
    lb_content_map_release(&map);
    return status;
}
