/* See comparison.h. Names meet by the user's rules, by known spellings, and where one side has a prefix more ("model.",
 * "module."). What a name leads to and what holds different numbers, as well as what has no like name, is looked for by
 * its numbers. Weights are judged apart from the state of a run: slots of an optimizer and random numbers, which one
 * side alone may hold. */
#include "audit/comparison.h"

#include "audit/arrangement.h"
#include "audit/gguf_names.h"
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

static uint32_t find(const side *s, const char *name)
{
    uint32_t low = 0, high = s->inventory->n_names;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        int order = strcmp(s->names[s->order[middle]], name);
        if (order == 0) return s->order[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return LB_NONE;
}

static bool side_init(side *s, const lb_inventory *inventory, const lb_layer_names_map *rules)
{
    const uint32_t n = inventory->n_names;
    *s = (side){inventory, calloc(n + 1u, sizeof(char *)), malloc((n + 1u) * sizeof(uint32_t)),
                calloc(n + 1u, sizeof *s->states), malloc((n + 1u) * sizeof(uint32_t))};
    const bool made = s->names && s->order && s->states && s->partners;
    for (uint32_t i = 0; made && i < n; i++) {
        char *spelled = lb_gguf_names_spell(inventory->names[i].name);
        s->names[i] = spelled ? lb_layer_names_map_apply(rules, spelled) : NULL;
        free(spelled);
        s->order[i] = i, s->partners[i] = LB_NONE;
        if (!s->names[i]) return false;
    }
    return made;
}

static void side_sort(side *s)
{
    sorted = s;
    if (s->inventory->n_names) qsort(s->order, s->inventory->n_names, sizeof *s->order, by_side_name);
}

static void side_release(side *s)
{
    for (uint32_t i = 0; s->names && i < s->inventory->n_names; i++) free(s->names[i]);
    free(s->names), free(s->order), free(s->states), free(s->partners);
}

/* ---- two tensors ------------------------------------------------------------------------------------------------- */

static lb_tensor transposed(const lb_tensor *tensor)
{
    lb_tensor turned = *tensor;
    const int n = tensor->layout.ndim;
    turned.layout.shape[n - 2] = tensor->layout.shape[n - 1], turned.layout.shape[n - 1] = tensor->layout.shape[n - 2];
    turned.layout.stride[n - 2] = tensor->layout.stride[n - 1],
                             turned.layout.stride[n - 1] = tensor->layout.stride[n - 2];
    return turned;
}

/* The better of: as it is, its last two dimensions exchanged. False when neither has b's shape. */
static lb_status match_either_way(const lb_tensor *a, const lb_tensor *b, lb_value_match *match, bool *fits,
                                  bool *turned, lb_err *err)
{
    lb_value_match other;
    *fits = lb_layout_same_shape(&a->layout, &b->layout);
    *turned = false;
    if (*fits) LB_TRY(lb_value_match_of(a, b, match, err));
    if (a->layout.ndim < 2 || a->layout.ndim != b->layout.ndim || (*fits && match->match != LB_AUDIT_IS_DIFFERENT) ||
        lb_dtype_bits(a->dtype) < 8)
        return LB_OK;
    lb_tensor t = transposed(a);
    if (!lb_layout_same_shape(&t.layout, &b->layout)) return LB_OK;
    LB_TRY(lb_value_match_of(&t, b, &other, err));
    if (!*fits || other.match != LB_AUDIT_IS_DIFFERENT) *match = other, *turned = true;
    *fits = true;
    return LB_OK;
}

void lb_comparison_add(lb_audit_gathering *gathering, const lb_comparison_pair *pair, const lb_value_match *match,
                       const lb_audit_where *where)
{
    const lb_tensor *a = pair->a, *b = pair->b;
    lb_audit_pair *p = lb_audit_add_pair(gathering);
    char at[160];
    if (!p) return;
    p->name = lb_audit_text(gathering, pair->name);
    p->other = lb_audit_text(gathering, pair->other);
    p->how = lb_audit_text(gathering, pair->how);
    p->match = match->match, p->rounded = match->rounded, p->difference = match->difference;
    p->dtype = a->dtype, p->other_dtype = b->dtype;
    if (match->worst >= 0) {
        int64_t rest = match->worst;
        p->ndim = b->layout.ndim;
        for (int d = p->ndim - 1; d >= 0; d--) {
            int64_t size = b->layout.shape[d] > 0 ? b->layout.shape[d] : 1;
            p->index[d] = rest % size;
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

/* Along which dimension shards of ranks' files make up a tensor of this shape; -1: each is a copy of it. */
static int shard_dimension(const lb_inventory *inventory, const lb_inventory_name *name, const lb_layout *target)
{
    const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[name->first];
    if (!inventory->checkpoint->rank_files || name->n < 2 || lb_layout_same_shape(&piece->tensor.layout, target))
        return -1;
    for (int d = 0; d < piece->tensor.layout.ndim && piece->tensor.layout.ndim == target->ndim; d++) {
        int64_t sum = 0;
        bool others = true;
        for (uint32_t i = 0; i < name->n; i++) sum += piece[i].tensor.layout.shape[d];
        for (int k = 0; k < target->ndim; k++) others &= k == d || piece->tensor.layout.shape[k] == target->shape[k];
        if (others && sum == target->shape[d]) return d;
    }
    return -1;
}

static lb_status open_both(const lb_comparison_side *a, uint32_t i, const lb_comparison_side *b, uint32_t k,
                           lb_whole *x, lb_whole *y, lb_err *err)
{
    const lb_inventory_name *na = &a->inventory->names[i], *nb = &b->inventory->names[k];
    const lb_layout *la = &a->inventory->checkpoint->pieces[na->first].whole,
                    *lb = &b->inventory->checkpoint->pieces[nb->first].whole;
    const bool both = a->inventory->checkpoint->rank_files && b->inventory->checkpoint->rank_files && na->n == nb->n;
    LB_TRY(lb_whole_init(a->inventory, na, both ? 0 : shard_dimension(a->inventory, na, lb), x, err));
    lb_status status = lb_whole_init(b->inventory, nb, both ? 0 : shard_dimension(b->inventory, nb, la), y, err);
    if (status != LB_OK) lb_whole_release(x);
    return status;
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

/* What the names of two tensors say of their numbers. Nothing is told yet of tensors that differ: their numbers may
 * stand elsewhere. `last`: they stand nowhere. */
static lb_status compare_pair(lb_comparison *comparison, uint32_t i, uint32_t k, bool last, lb_err *err)
{
    side *a = &comparison->a, *b = &comparison->b;
    const lb_inventory_name *na = &a->inventory->names[i], *nb = &b->inventory->names[k];
    const lb_audit_where where = lb_inventory_where(a->inventory, &a->inventory->checkpoint->pieces[na->first]);
    lb_value_match match = {LB_AUDIT_IS_IDENTICAL, LB_NO_DTYPE, {0}, -1};
    char one[160], two[160];
    bool fits = true, turned = false;
    lb_whole x, y;
    if (are_others(a->inventory, na, &b->inventory->checkpoint->pieces[nb->first].whole)) return LB_OK;
    a->partners[i] = k, b->partners[k] = i;
    LB_TRY(open_both(a, i, b, k, &x, &y, err));
    const bool untouched =
        !x.owned && !y.owned &&
        lb_digest_equal(a->inventory->measured[na->first].digest, b->inventory->measured[nb->first].digest);
    lb_status status = LB_OK;
    if (untouched)
        match.difference = (lb_difference){.elements = lb_layout_numel(&x.tensor.layout), .first = -1, .cosine = 1};
    else
        status = match_either_way(&x.tensor, &y.tensor, &match, &fits, &turned, err);
    const bool found = status == LB_OK && fits && match.match != LB_AUDIT_IS_DIFFERENT;
    const char *how = turned ? "transposed" : x.owned || y.owned ? "shards put together" : "";
    if (found || (last && fits && status == LB_OK))
        lb_comparison_add(comparison->gathering, &(lb_comparison_pair){na->name, nb->name, how, &x.tensor, &y.tensor},
                          &match, &where);
    else if (last && status == LB_OK)
        lb_audit_find(comparison->gathering, LB_AUDIT_SHAPE, where, "is %s, %s is %s",
                      lb_inventory_shape_text(&x.tensor.layout, one), nb->name,
                      lb_inventory_shape_text(&y.tensor.layout, two));
    if (found || last) a->states[i] = b->states[k] = turned ? LB_COMPARISON_TURNED : LB_COMPARISON_STRAIGHT;
    lb_whole_release(&x), lb_whole_release(&y);
    return status;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool is_open(const side *s, uint32_t row)
{
    return row != LB_NONE && s->states[row] == LB_COMPARISON_OPEN && s->partners[row] == LB_NONE;
}

static lb_status compare_by_name(lb_comparison *comparison, lb_err *err)
{
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++) {
        const uint32_t k = find(&comparison->b, comparison->a.names[i]);
        lb_audit_progress(comparison->gathering, "comparing", i, comparison->a.inventory->n_names);
        if (is_open(&comparison->a, i) && is_open(&comparison->b, k))
            LB_TRY(compare_pair(comparison, i, k, false, err));
    }
    return LB_OK;
}

/* The row of `s` that has this name behind a prefix less; LB_NONE. At least two words are left. */
static uint32_t find_shorter(const side *s, const char *name)
{
    for (const char *at = strchr(name, '.'); at && strchr(at + 1, '.'); at = strchr(at + 1, '.')) {
        const uint32_t row = find(s, at + 1);
        if (is_open(s, row)) return row;
    }
    return LB_NONE;
}

/* "model.layers.0…" against "layers.0…". */
static lb_status compare_by_suffix(lb_comparison *comparison, lb_err *err)
{
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++) {
        const uint32_t k = is_open(&comparison->a, i) ? find_shorter(&comparison->b, comparison->a.names[i]) : LB_NONE;
        if (k != LB_NONE) LB_TRY(compare_pair(comparison, i, k, false, err));
    }
    for (uint32_t k = 0; k < comparison->b.inventory->n_names; k++) {
        const uint32_t i = is_open(&comparison->b, k) ? find_shorter(&comparison->a, comparison->b.names[k]) : LB_NONE;
        if (i != LB_NONE) LB_TRY(compare_pair(comparison, i, k, false, err));
    }
    return LB_OK;
}

/* ---- the state of a run ------------------------------------------------------------------------------------------ */

static lb_status compare_states(lb_comparison *comparison, uint32_t *met, lb_err *err)
{
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++) {
        const uint32_t k =
            comparison->a.states[i] == LB_COMPARISON_STATE ? find(&comparison->b, comparison->a.names[i]) : LB_NONE;
        if (k == LB_NONE || comparison->b.states[k] != LB_COMPARISON_STATE) continue;
        LB_TRY(compare_pair(comparison, i, k, true, err));
        comparison->a.states[i] = comparison->b.states[k] = LB_COMPARISON_STRAIGHT;
        ++*met;
    }
    return LB_OK;
}

static uint32_t mark_states(side *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->inventory->n_names; i++)
        if (lb_inventory_is_run_state(s->inventory, &s->inventory->names[i])) s->states[i] = LB_COMPARISON_STATE, n++;
    return n;
}

/* Where both hold the state of one optimizer, what one of them lacks is a finding; where one alone holds it, it is no
 * weight. */
static void tell_states(lb_audit_gathering *gathering, const side *s, const side *other, uint32_t met)
{
    uint32_t n = 0;
    const lb_inventory_name *first = NULL;
    for (uint32_t i = 0; i < s->inventory->n_names; i++)
        if (s->states[i] == LB_COMPARISON_STATE) n++, first = first ? first : &s->inventory->names[i];
    for (uint32_t i = 0; i < s->inventory->n_names && met; i++)
        if (s->states[i] == LB_COMPARISON_STATE)
            lb_audit_find(gathering, LB_AUDIT_OPTIMIZER_MISSING,
                          (lb_audit_where){s->inventory->names[i].name, NULL, NULL, 0}, "%s has it, %s does not",
                          s->inventory->checkpoint->path, other->inventory->checkpoint->path);
    if (n && !met)
        lb_audit_note(gathering, LB_AUDIT_UNEXPECTED, (lb_audit_where){NULL, NULL, NULL, 0},
                      "%u tensors of %s are the state of a run (optimizer, random numbers), such as %s; "
                      "%s holds none of them, and they are not compared",
                      n, s->inventory->checkpoint->path, first->name, other->inventory->checkpoint->path);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* A name more for what another name holds: a head tied to its embedding, which one side stores twice. */
static bool is_tied(const lb_comparison_side *side, uint32_t row)
{
    const lb_inventory *inventory = side->inventory;
    const lb_inventory_name *name = &inventory->names[row];
    const lb_piece_measured *m = &inventory->measured[name->first];
    for (uint32_t i = 0; i < inventory->n_names; i++) {
        const lb_inventory_name *other = &inventory->names[i];
        bool same_bytes = inventory->checkpoint->pieces[other->first].tensor.data ==
                          inventory->checkpoint->pieces[name->first].tensor.data;
        if (other != name && side->states[i] != LB_COMPARISON_OPEN &&
            lb_digest_equal(inventory->measured[other->first].digest, m->digest) &&
            (same_bytes || !lb_inventory_is_constant(m)))
            return true;
    }
    return false;
}

static void tell_rest(lb_audit_gathering *gathering, const side *a, const side *b)
{
    for (uint32_t i = 0; i < b->inventory->n_names; i++)
        if (b->states[i] == LB_COMPARISON_OPEN && !is_tied(b, i) && !lb_audit_is_found(gathering, b->names[i]))
            lb_audit_find(gathering, LB_AUDIT_MISSING, (lb_audit_where){b->inventory->names[i].name, NULL, NULL, 0},
                          "%s has it, and its numbers are in no tensor of %s", b->inventory->checkpoint->path,
                          a->inventory->checkpoint->path);
    for (uint32_t i = 0; i < a->inventory->n_names; i++)
        if (a->states[i] == LB_COMPARISON_OPEN && !is_tied(a, i))
            lb_audit_find(
                gathering, LB_AUDIT_UNEXPECTED,
                lb_inventory_where(a->inventory, &a->inventory->checkpoint->pieces[a->inventory->names[i].first]),
                "its numbers are in no tensor of %s", b->inventory->checkpoint->path);
}

/* Two checkpoints of one run differ in every weight: then names say all. Unless a tensor is another one's to the
 * bit. */
static bool are_other_weights(const lb_comparison *comparison)
{
    uint32_t differ = 0, same = 0;
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++) {
        if (comparison->a.partners[i] == LB_NONE) continue;
        const bool open = comparison->a.states[i] == LB_COMPARISON_OPEN;
        const lb_piece_measured *m = &comparison->a.inventory->measured[comparison->a.inventory->names[i].first];
        differ += open, same += !open;
        for (uint32_t k = 0; open && !lb_inventory_is_constant(m) && k < comparison->b.inventory->n_names; k++)
            if (lb_digest_equal(comparison->b.inventory->measured[comparison->b.inventory->names[k].first].digest,
                                m->digest))
                return false;
    }
    return differ > same;
}

static lb_status compare_by_contents(lb_comparison *comparison, lb_err *err)
{
    if (are_other_weights(comparison))
        for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++)
            if (comparison->a.states[i] == LB_COMPARISON_OPEN && comparison->a.partners[i] != LB_NONE)
                LB_TRY(compare_pair(comparison, i, comparison->a.partners[i], true, err));
    LB_TRY(lb_arrangement_find(comparison, err));
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++) {
        const uint32_t k = comparison->a.partners[i];
        if (k == LB_NONE || comparison->a.states[i] != LB_COMPARISON_OPEN ||
            comparison->b.states[k] != LB_COMPARISON_OPEN)
            continue;
        LB_TRY(compare_pair(comparison, i, k, true, err));
    }
    return LB_OK;
}

static lb_status compare_sides(lb_comparison *comparison, lb_err *err)
{
    uint32_t met = 0;
    LB_TRY(lb_layer_names_meet(comparison->a.names, comparison->a.inventory->n_names, comparison->b.names,
                               comparison->b.inventory->n_names, err));
    side_sort(&comparison->a), side_sort(&comparison->b);
    mark_states(&comparison->a), mark_states(&comparison->b);
    LB_TRY(compare_states(comparison, &met, err));
    LB_TRY(compare_by_name(comparison, err));
    LB_TRY(compare_by_suffix(comparison, err));
    LB_TRY(compare_by_contents(comparison, err));
    tell_rest(comparison->gathering, &comparison->a, &comparison->b);
    tell_states(comparison->gathering, &comparison->a, &comparison->b, met),
        tell_states(comparison->gathering, &comparison->b, &comparison->a, met);
    return LB_OK;
}

lb_status lb_comparison_audit(lb_audit_gathering *gathering, const lb_inventory *a, const lb_inventory *b, lb_err *err)
{
    lb_layer_names_map *rules = NULL;
    lb_comparison comparison = {.gathering = gathering};
    LB_TRY(lb_layer_names_map_new(gathering->options->maps, gathering->options->n_maps, &rules, err));
    lb_status status = side_init(&comparison.a, a, rules) && side_init(&comparison.b, b, NULL)
                           ? compare_sides(&comparison, err)
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    side_release(&comparison.a), side_release(&comparison.b);
    lb_layer_names_map_free(rules);
    return status;
}
