/* What the numbers look like: none that is no number, nothing dead, nothing that an initialiser left, one dtype.
 *
 * A tensor is judged beside its siblings: the same tensor of other layers, experts and ranks. What all of them are
 * (biases of zero, norms of one, a model before its first step) is how the model is. */
#include "audit/inventory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The pieces of a group of names. */
typedef struct group {
    uint32_t *pieces;
    uint32_t n;
    uint32_t constant, zero, nonfinite;
    double median_rms;
} group;

static double rms(const lb_piece_measured *measured)
{
    return measured->statistics.elements
               ? sqrt(measured->statistics.sum_squares / (double)measured->statistics.elements)
               : 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool judged(const lb_inventory *inventory, uint32_t piece)
{
    const lb_checkpoint_piece *held = &inventory->checkpoint->pieces[piece];
    return lb_dtype_is_float(held->tensor.dtype) && inventory->measured[piece].statistics.elements > 1;
}

static void describe(const lb_inventory *inventory, group *group, double *sizes)
{
    uint32_t n = 0;
    group->constant = group->zero = group->nonfinite = 0;
    for (uint32_t i = 0; i < group->n; i++) {
        const lb_piece_measured *measured = &inventory->measured[group->pieces[i]];
        group->constant += lb_inventory_is_constant(measured);
        group->zero += lb_inventory_is_zero(measured);
        group->nonfinite += measured->first_bad >= 0;
        sizes[n++] = rms(measured);
    }
    if (n) qsort(sizes, n, sizeof *sizes, by_size);
    group->median_rms = n ? sizes[n / 2] : 0;
}

/* ---- no elements ------------------------------------------------------------------------------------------------- */

static bool is_parameter(const char *name)
{
    const char *dot = strrchr(name, '.');
    const char *word = dot ? dot + 1 : name;
    return !lb_inventory_is_state(name) &&
           (strcmp(word, "weight") == 0 || strcmp(word, "bias") == 0 || lb_inventory_lora_half(name));
}

/* Parameters that a wrapper keeps in shards have no elements of their own until they are gathered: what was saved
 * before is [0] everywhere. A shard that came out empty beside others that did not is how tensors are cut; [0, n] of an
 * adapter is a rank that was pruned. */
static void find_empty(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    for (uint32_t i = 0; i < inventory->n_names; i++) {
        const lb_inventory_name *name = &inventory->names[i];
        const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[name->first];
        bool empty = lb_dtype_is_float(piece->tensor.dtype) && is_parameter(name->name);
        for (uint32_t k = 0; k < name->n; k++) empty &= lb_layout_numel(&piece[k].whole) == 0;
        if (empty && !(lb_inventory_lora_half(name->name) && piece->whole.ndim > 1))
            lb_audit_find(gathering, LB_AUDIT_EMPTY, lb_inventory_where(inventory, piece),
                          "has no elements: it was saved while a wrapper (DeepSpeed's ZeRO-3, FSDP) held it in shards, "
                          "without gathering them");
    }
}

/* ---- no numbers, zeros, constants -------------------------------------------------------------------------------- */

static bool find_nonfinite(lb_audit_gathering *gathering, const lb_inventory *inventory, uint32_t piece)
{
    const lb_checkpoint_piece *held = &inventory->checkpoint->pieces[piece];
    const lb_piece_measured *measured = &inventory->measured[piece];
    int64_t infinite = measured->statistics.pos_inf + measured->statistics.neg_inf;
    char at[160];
    if (measured->first_bad < 0 || (strstr(held->name, "mask") && !measured->statistics.nan)) return false;
    lb_audit_find(gathering, LB_AUDIT_NONFINITE, lb_inventory_where(inventory, held),
                  "%lld NaN and %lld infinite of %lld elements, the first at %s", (long long)measured->statistics.nan,
                  (long long)infinite, (long long)measured->statistics.elements,
                  lb_inventory_index_text(&held->tensor.layout, measured->first_bad, at));
    return true;
}

/* A weight matrix proper: two sizes above one. */
static bool is_matrix(const lb_checkpoint_piece *piece)
{
    const lb_layout *layout = &piece->tensor.layout;
    size_t n = strlen(piece->name);
    int wide = 0;
    for (int d = 0; d < layout->ndim; d++) wide += layout->shape[d] > 1;
    return wide >= 2 && n >= 6 && strcmp(piece->name + n - 6, "weight") == 0;
}

/* What is often initialised with zeros, so that a block or a branch begins as the identity. */
static bool begins_at_zero(const char *name)
{
    static const char *const words[] = {"controlnet", "zero",  "proj_out",   "conv_out", "to_out",
                                        "adaln",      "adaLN", "modulation", "final",    "gate",
                                        "scale",      "head",  "gamma",      "residual", NULL};
    for (const char *const *word = words; *word; word++)
        if (strstr(name, *word)) return true;
    return lb_inventory_is_outgoing(name);
}

static bool find_constant(lb_audit_gathering *gathering, const lb_inventory *inventory, const group *group,
                          uint32_t piece)
{
    const lb_checkpoint_piece *held = &inventory->checkpoint->pieces[piece];
    const lb_piece_measured *measured = &inventory->measured[piece];
    const bool zero = lb_inventory_is_zero(measured), siblings_vary = group->n >= 3 && group->constant * 2 < group->n,
               matrix = is_matrix(held);
    const uint32_t others = group->n - 1;
    if (!lb_inventory_is_constant(measured)) return false;
    if (lb_audit_is_found(gathering, held->name)) return true; /* some parts of it are zero, and others are not */
    if (zero && lb_inventory_lora_half(held->name) == 'B' && group->zero == group->n)
        return true; /* a fresh adapter: told as a whole */
    if (zero && siblings_vary && matrix && lb_inventory_is_outgoing(held->name) && !lb_inventory_lora_half(held->name))
        lb_audit_find(gathering, LB_AUDIT_NOOP, lb_inventory_where(inventory, held),
                      "is zero: its block adds nothing, and learns late (%u of %u siblings are zero)", group->zero - 1,
                      others);
    else if (siblings_vary || (group->n == 2 && group->constant == 1 && matrix) ||
             (matrix && group->n == 1 && !lb_inventory_lora_half(held->name) && !(zero && begins_at_zero(held->name))))
        lb_audit_find(gathering, zero ? LB_AUDIT_ZERO : LB_AUDIT_CONSTANT, lb_inventory_where(inventory, held),
                      "all %lld elements are %g, and %u of %u siblings vary", (long long)measured->statistics.elements,
                      measured->statistics.min, group->n - group->constant, others);
    else if (matrix)
        lb_audit_note(gathering, zero ? LB_AUDIT_ZERO : LB_AUDIT_CONSTANT, lb_inventory_where(inventory, held),
                      "all elements are %g, as are its siblings'", measured->statistics.min);
    return true;
}

static bool find_dead(lb_audit_gathering *gathering, const lb_inventory *inventory, const group *group, uint32_t piece)
{
    double size = rms(&inventory->measured[piece]);
    if (group->n < 3 || !(size < 1e-6 * group->median_rms)) return false;
    lb_audit_find(gathering, LB_AUDIT_DEAD, lb_inventory_where(inventory, &inventory->checkpoint->pieces[piece]),
                  "its elements are of size %.3g, those of its siblings of %.3g", size, group->median_rms);
    return true;
}

/* ---- as an initialiser left it ----------------------------------------------------------------------------------- */

/* What torch.nn.init and transformers' _init_weights draw from, for fan-in f and fan-out o. */
typedef struct initialiser {
    const char *name;
    bool uniform;
    double size; /* the bound, or the standard deviation */
} initialiser;

enum { INITIALISERS = 10 };
static void initialisers(const lb_checkpoint_piece *piece, initialiser out[INITIALISERS])
{
    const lb_layout *layout = &piece->whole;
    double fan_out = (double)layout->shape[0], fan_in = 1;
    for (int d = 1; d < layout->ndim; d++) fan_in *= (double)layout->shape[d];
    for (int d = 2; d < layout->ndim; d++) fan_out *= (double)layout->shape[d];
    const initialiser all[INITIALISERS] = {
        {"normal of 0.02", false, 0.02},
        {"normal of 1", false, 1},
        {"kaiming-normal", false, sqrt(2 / fan_in)},
        {"kaiming-normal of fan-out", false, sqrt(2 / fan_out)},
        {"xavier-normal", false, sqrt(2 / (fan_in + fan_out))},
        {"normal of 1/sqrt(fan-in)", false, sqrt(1 / fan_in)},
        {"torch's default, uniform of 1/sqrt(fan-in)", true, sqrt(1 / fan_in)},
        {"xavier-uniform", true, sqrt(6 / (fan_in + fan_out))},
        {"kaiming-uniform", true, sqrt(6 / fan_in)},
        {"uniform of sqrt(3/fan-in)", true, sqrt(3 / fan_in)},
    };
    memcpy(out, all, sizeof all);
}

static double fourth_moment(const lb_tensor *tensor, double mean, double deviation)
{
    double sum = 0, row[1024];
    int64_t n = 0;
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r);)
        for (int64_t i = 0; i < r.count; i += 1024) {
            size_t take = (size_t)(r.count - i < 1024 ? r.count - i : 1024);
            const char *at =
                (const char *)tensor->data + (r.offset + i * r.stride) * (int64_t)lb_dtype_bits(tensor->dtype) / 8;
            lb_load_f64_strided(row, tensor->dtype, at, (ptrdiff_t)r.stride, take);
            for (size_t k = 0; k < take; k++) {
                double x = (row[k] - mean) / deviation;
                sum += x * x * (x * x);
            }
            n += (int64_t)take;
        }
    return n ? sum / (double)n : 0;
}

/* Whether a sample of n numbers is one of this initialiser: its deviation within 4 standard errors (and 0.2 % for a
 * narrow dtype's grid), its mean too, and its kurtosis that of the distribution. Of a uniform one the extremes speak,
 * too. `loosely`: the deviation within 16 standard errors and 10 %, the kurtosis within a half: a few steps of training
 * lie between. */
static bool fits(const lb_checkpoint_piece *piece, const lb_piece_measured *measured, const initialiser *initialiser,
                 bool loosely)
{
    const double n = (double)measured->statistics.elements, mean = measured->statistics.sum / n,
                 deviation = sqrt(measured->statistics.sum_squares / n - mean * mean),
                 expected = initialiser->uniform ? initialiser->size / sqrt(3) : initialiser->size,
                 error = (initialiser->uniform ? 4 * sqrt(0.2 / n) : 4 / sqrt(2 * n)) + 0.002;
    double top = fabs(measured->statistics.max) > fabs(measured->statistics.min) ? fabs(measured->statistics.max)
                                                                                 : fabs(measured->statistics.min);
    if (loosely && !(fabs(deviation / expected - 1) < 4 * error + 0.1)) return false;
    if (loosely) return fabs(fourth_moment(&piece->tensor, mean, deviation) - (initialiser->uniform ? 1.8 : 3)) < 0.5;
    if (!(fabs(deviation / expected - 1) < error) || fabs(mean) > 4 * expected / sqrt(n)) return false;
    if (initialiser->uniform &&
        (top > initialiser->size * (1 + 1.0 / 256) || top < initialiser->size * (1 - 20 / n - 1.0 / 256)))
        return false;
    double kurtosis = fourth_moment(&piece->tensor, mean, deviation), wanted = initialiser->uniform ? 1.8 : 3;
    return fabs(kurtosis - wanted) < 4 * sqrt(24 / n) + 0.02;
}

/* `only`: whether that one fits loosely. */
static bool initialiser_of(const lb_inventory *inventory, uint32_t piece, const initialiser *only, initialiser *found)
{
    const lb_checkpoint_piece *held = &inventory->checkpoint->pieces[piece];
    initialiser all[INITIALISERS];
    initialisers(held, all);
    for (int i = 0; i < INITIALISERS; i++)
        if ((!only || strcmp(only->name, all[i].name) == 0) &&
            fits(held, &inventory->measured[piece], &all[i], only != NULL))
            return *found = all[i], true;
    return false;
}

/* Fresh among trained: an initialiser fits one, and at most a third of the others even loosely. */
static void find_fresh(lb_audit_gathering *gathering, const lb_inventory *inventory, const group *group)
{
    for (uint32_t i = 0; i < group->n && group->n >= 3; i++) {
        const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[group->pieces[i]];
        initialiser found, again;
        uint32_t same = 0;
        if (piece->tensor.layout.ndim < 2 || inventory->measured[group->pieces[i]].statistics.elements < 1024 ||
            lb_inventory_lora_half(piece->name) || inventory->measured[group->pieces[i]].first_bad >= 0 ||
            lb_inventory_is_constant(&inventory->measured[group->pieces[i]]) ||
            !initialiser_of(inventory, group->pieces[i], NULL, &found))
            continue;
        for (uint32_t k = 0; k < group->n; k++)
            same += k != i && !lb_inventory_is_constant(&inventory->measured[group->pieces[k]]) &&
                    inventory->measured[group->pieces[k]].first_bad < 0 &&
                    (initialiser_of(inventory, group->pieces[k], &found, &again) ||
                     initialiser_of(inventory, group->pieces[k], NULL, &again));
        if (same * 3 <= group->n - 1)
            lb_audit_find(gathering, LB_AUDIT_FRESH, lb_inventory_where(inventory, piece),
                          "is as an initialiser leaves it (%s, deviation %.4g), and %u of its %u siblings are not",
                          found.name, rms(&inventory->measured[group->pieces[i]]), group->n - 1 - same, group->n - 1);
    }
}

/* ---- the same bits in two layers, another dtype ------------------------------------------------------------------ */

/* Runs of pieces with one digest. A class that is most of the group is how the model is (a table of positions in each
 * layer). */
static const lb_inventory *sorted;
#pragma omp threadprivate(sorted)

static int by_digest(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    const lb_digest *x = &sorted->measured[i].digest, *y = &sorted->measured[k].digest;
    if (x->hi != y->hi) return x->hi < y->hi ? -1 : 1;
    if (x->lo != y->lo) return x->lo < y->lo ? -1 : 1;
    return (i > k) - (i < k);
}

static void find_copied(lb_audit_gathering *gathering, const lb_inventory *inventory, const group *group)
{
    uint32_t *order = (uint32_t *)malloc((group->n + 1u) * sizeof *order);
    gathering->failed |= !order;
    if (order && group->n) memcpy(order, group->pieces, group->n * sizeof *order);
    sorted = inventory;
    if (order && group->n) qsort(order, group->n, sizeof *order, by_digest);
    for (uint32_t i = 0, end; order && i < group->n; i = end) {
        const lb_checkpoint_piece *first = &inventory->checkpoint->pieces[order[i]];
        const lb_piece_measured *measured = &inventory->measured[order[i]];
        for (end = i + 1; end < group->n && lb_digest_equal(inventory->measured[order[end]].digest, measured->digest);)
            end++;
        if (end - i < 2 || (end - i - 1) * 2 >= group->n - 1 || lb_inventory_is_constant(measured) ||
            measured->statistics.elements < 64 || lb_inventory_lora_half(first->name) == 'A')
            continue;
        for (uint32_t k = i + 1; k < end; k++) {
            const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[order[k]];
            if (strcmp(piece->name, first->name) != 0 && piece->tensor.data != first->tensor.data)
                lb_audit_find(gathering, LB_AUDIT_COPIED, lb_inventory_where(inventory, piece), "has the bits of %s",
                              first->name);
        }
    }
    free(order);
}

static void find_dtypes(lb_audit_gathering *gathering, const lb_inventory *inventory, const group *group)
{
    uint32_t counts[LB_DTYPE_COUNT] = {0};
    lb_dtype most = LB_NO_DTYPE, least = LB_NO_DTYPE;
    for (uint32_t i = 0; i < group->n; i++) counts[inventory->checkpoint->pieces[group->pieces[i]].tensor.dtype]++;
    for (lb_dtype d = 1; d < LB_DTYPE_COUNT; d++)
        if (counts[d] > counts[most]) most = d;
    for (lb_dtype d = 1; d < LB_DTYPE_COUNT; d++)
        if (counts[d] && d != most) least = d;
    bool odd = group->n >= 3 && least && counts[least] + counts[most] == group->n && counts[least] * 4 <= group->n + 1;
    for (uint32_t i = 0; i < group->n && odd && lb_dtype_bits(most) > 8;
         i++) { /* narrow ones leave some layers wide on purpose */
        const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[group->pieces[i]];
        if (piece->tensor.dtype == least)
            lb_audit_find(gathering, LB_AUDIT_DTYPE, lb_inventory_where(inventory, piece),
                          "is %s, its %u siblings are %s", lb_dtype_name(piece->tensor.dtype), counts[most],
                          lb_dtype_name(most));
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static void judge_state(lb_audit_gathering *gathering, const lb_inventory *inventory, uint32_t piece)
{
    const lb_checkpoint_piece *held = &inventory->checkpoint->pieces[piece];
    if (find_nonfinite(gathering, inventory, piece)) return;
    if (strstr(held->name, "exp_avg_sq") && inventory->measured[piece].statistics.min < 0)
        lb_audit_find(gathering, LB_AUDIT_OPTIMIZER_INVALID, lb_inventory_where(inventory, held),
                      "a second moment is below zero: %g", inventory->measured[piece].statistics.min);
}

static void judge_group(lb_audit_gathering *gathering, const lb_inventory *inventory, group *group, double *sizes)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < group->n; i++) {
        const uint32_t piece = group->pieces[i];
        if (!lb_dtype_is_float(inventory->checkpoint->pieces[piece].tensor.dtype)) continue;
        if (lb_inventory_is_state(inventory->checkpoint->pieces[piece].name))
            judge_state(gathering, inventory, piece);
        else
            group->pieces[kept++] = piece;
    }
    group->n = kept;
    describe(inventory, group, sizes);
    for (uint32_t i = 0; i < group->n; i++) {
        if (find_nonfinite(gathering, inventory, group->pieces[i]) || !judged(inventory, group->pieces[i])) continue;
        if (!find_constant(gathering, inventory, group, group->pieces[i]))
            find_dead(gathering, inventory, group, group->pieces[i]);
    }
    find_fresh(gathering, inventory, group);
    find_copied(gathering, inventory, group);
    find_dtypes(gathering, inventory, group);
}

static bool is_in_safetensors(const lb_inventory *inventory, const lb_checkpoint_piece *piece)
{
    const char *path = inventory->checkpoint->files[piece->file].path;
    const size_t n = strlen(path);
    return n > 12 && strcmp(path + n - 12, ".safetensors") == 0;
}

/* Blocks that were reserved and never written read as zeros. Of a zip they would be no file at all; a safetensors
 * header may stand alone. */
static bool is_never_written(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    uint32_t n = 0, zero = 0;
    for (uint32_t i = 0; i < inventory->checkpoint->n_pieces; i++)
        if (judged(inventory, i) && !lb_inventory_is_state(inventory->checkpoint->pieces[i].name))
            n++, zero += lb_inventory_is_zero(&inventory->measured[i]) &&
                         is_in_safetensors(inventory, &inventory->checkpoint->pieces[i]);
    if (n < 2 || zero < n) return false;
    lb_audit_find(gathering, LB_AUDIT_ZERO, (lb_audit_where){NULL, NULL, NULL, 0},
                  "every number of all %u tensors is zero: a file that was allocated and never written", n);
    return true;
}

void lb_audit_health(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    const uint32_t all = inventory->checkpoint->n_pieces;
    group group = {(uint32_t *)malloc((all + 1u) * sizeof(uint32_t)), 0, 0, 0, 0, 0};
    double *sizes = (double *)malloc((all + 1u) * sizeof *sizes);
    gathering->failed |= !group.pieces || !sizes;
    find_empty(gathering, inventory);
    if (is_never_written(gathering, inventory)) goto done;
    for (uint32_t i = 0, end; group.pieces && sizes && i < inventory->n_names; i = end) {
        end = lb_inventory_group(inventory, i);
        group.n = 0;
        for (uint32_t k = i; k < end; k++)
            for (uint32_t j = 0; j < inventory->names[inventory->siblings[k]].n; j++)
                group.pieces[group.n++] = inventory->names[inventory->siblings[k]].first + j;
        judge_group(gathering, inventory, &group, sizes);
    }
done:
    free(group.pieces);
    free(sizes);
}

/* ---- scales of narrow numbers ------------------------------------------------------------------------------------ */

/* Transformer Engine keeps scales in its modules' _extra_state. */
static bool holds_scale(const lb_inventory *inventory, const lb_inventory_name *name, size_t module)
{
    return strstr(name->name + module, "scale") || (strcmp(name->name + module, "_extra_state") == 0 &&
                                                    inventory->measured[name->first].statistics.elements > 0);
}

/* Whether a name that begins as this one up to its last dot has "scale" behind it. Names are sorted: those stand
 * together. */
static bool has_scale(const lb_inventory *inventory, uint32_t row)
{
    const char *name = inventory->names[row].name, *dot = strrchr(name, '.');
    const size_t module = dot ? (size_t)(dot - name) + 1 : 0;
    for (uint32_t i = row; i-- > 0 && strncmp(inventory->names[i].name, name, module) == 0;)
        if (holds_scale(inventory, &inventory->names[i], module)) return true;
    for (uint32_t i = row + 1; i < inventory->n_names && strncmp(inventory->names[i].name, name, module) == 0; i++)
        if (holds_scale(inventory, &inventory->names[i], module)) return true;
    return false;
}

/* Numbers that were scaled to fill their type reach its upper half; those that were cast as they are lie far below.
 * Where nothing in a checkpoint has a scale, that tells whether one is lacking. */
static bool fills_its_type(const lb_checkpoint_piece *piece, const lb_statistics *statistics)
{
    const double top = fabs(statistics->max) > fabs(statistics->min) ? fabs(statistics->max) : fabs(statistics->min);
    return top > lb_dtype_max_finite(piece->tensor.dtype) / 2;
}

static void note_unscaled(lb_audit_gathering *gathering, uint32_t n)
{
    if (n)
        lb_audit_note(
            gathering, LB_AUDIT_SCALE_MISSING, (lb_audit_where){NULL, NULL, NULL, 0},
            "no tensor has a scale, and %u narrow ones lie below half of their type's range: cast as they are", n);
}

static bool is_quantised(lb_dtype dtype)
{
    return (lb_dtype_is_float(dtype) && lb_dtype_bits(dtype) <= 8) || dtype == LB_I8 || dtype == LB_U8;
}

void lb_audit_health_scales(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    bool scaled = false, any_narrow = false;
    uint32_t unscaled = 0;
    for (uint32_t i = 0; i < inventory->n_names && !scaled; i++)
        scaled = strstr(inventory->names[i].name, "scale") != NULL;
    for (uint32_t i = 0; i < inventory->checkpoint->n_pieces; i++)
        any_narrow |= is_quantised(inventory->checkpoint->pieces[i].tensor.dtype);
    for (uint32_t i = 0; i < inventory->n_names; i++) {
        const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[inventory->names[i].first];
        const lb_statistics *statistics = &inventory->measured[inventory->names[i].first].statistics;
        const char *dot = strrchr(piece->name, '.');
        bool narrow = lb_dtype_is_float(piece->tensor.dtype) && lb_dtype_bits(piece->tensor.dtype) <= 8;
        const bool lacks =
            narrow && statistics->elements > 1 && !strstr(piece->name, "scale") && !has_scale(inventory, i);
        if (lacks && !scaled && !fills_its_type(piece, statistics))
            unscaled++;
        else if (lacks)
            lb_audit_find(gathering, LB_AUDIT_SCALE_MISSING, lb_inventory_where(inventory, piece),
                          "is %s, and no scale stands beside it", lb_dtype_name(piece->tensor.dtype));
        else if (any_narrow && strstr(dot ? dot : piece->name, "_scale") && lb_dtype_is_float(piece->tensor.dtype) &&
                 statistics->elements && inventory->measured[inventory->names[i].first].first_bad < 0 &&
                 statistics->min <= 0)
            lb_audit_find(gathering, LB_AUDIT_SCALE_INVALID, lb_inventory_where(inventory, piece), "a scale is %g",
                          statistics->min);
    }
    note_unscaled(gathering, unscaled);
}
