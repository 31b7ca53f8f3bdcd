/* A shard that was lost inside a whole tensor. Of a tensor that was gathered from ranks, what one rank did not give
 * stays as the memory was: zero, or what another rank had given.
 *
 *      rows  0..31   a part of rank 0          rows  0..31   a part of rank 0
 *      rows 32..63   zero                      rows 32..63   the same once more
 *
 * The rows, columns or experts of a tensor are cut into 2, 3, … equal parts; the smallest cut in which every part is
 * zero or holds no zero slice, or in which two parts hold the same numbers, is the finding. A part is known by its
 * slices: those of a table in which every row is the same say nothing. */
#include "audit/inventory.h"

#include "base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTS = 64, ROWS_TO_TELL = 2, NUMBERS_TO_TELL = 8 };

/* One axis of a piece, cut. `marks`: of each part the first one that holds the same, or -1: it is zero. */
typedef struct cutting {
    const lb_profile_axis *axis;
    int64_t parts, width;
    int marks[MOST_PARTS];
    bool vector; /* its slices are single elements */
} cutting;

/* ---- which parts are alike --------------------------------------------------------------------------------------- */

static bool is_zero_slice(const lb_profile_axis *axis, int64_t i)
{
    return axis->sizes[i] == 0;
}

static bool marks_zeros(cutting *cutting)
{
    uint32_t zeros = 0;
    for (int64_t part = 0; part < cutting->parts; part++) {
        int64_t n = 0;
        for (int64_t i = 0; i < cutting->width; i++) n += is_zero_slice(cutting->axis, part * cutting->width + i);
        if (n && n < cutting->width) return false;
        cutting->marks[part] = n ? -1 : (int)part;
        zeros += n > 0;
    }
    return zeros > 0 && zeros < cutting->parts;
}

/* Nine in ten of its slices are different: what was written once, and no table that repeats itself. Elements of a
 * vector may well be equal. */
static bool is_varied(const cutting *cutting, int64_t part)
{
    uint64_t *sorted = malloc((size_t)cutting->width * sizeof *sorted);
    int64_t different = 1;
    if (!sorted) return false;
    memcpy(sorted, cutting->axis->hashes + part * cutting->width, (size_t)cutting->width * sizeof *sorted);
    qsort(sorted, (size_t)cutting->width, sizeof *sorted, lb_by_u64);
    for (int64_t i = 1; i < cutting->width; i++) different += sorted[i] != sorted[i - 1];
    free(sorted);
    return cutting->vector ? different >= NUMBERS_TO_TELL : different * 10 >= cutting->width * 9;
}

static bool are_alike(const cutting *cutting, int64_t x, int64_t y)
{
    return memcmp(cutting->axis->hashes + x * cutting->width, cutting->axis->hashes + y * cutting->width,
                  (size_t)cutting->width * sizeof(uint64_t)) == 0;
}

static bool is_zero_part(const cutting *cutting, int64_t part)
{
    for (int64_t i = 0; i < cutting->width; i++)
        if (!is_zero_slice(cutting->axis, part * cutting->width + i)) return false;
    return true;
}

static bool marks_repeats(cutting *cutting)
{
    bool any = false;
    for (int64_t part = 0; part < cutting->parts; part++) {
        cutting->marks[part] = (int)part;
        for (int64_t i = 0; i < part && !is_zero_part(cutting, part); i++)
            if (cutting->marks[i] == i && are_alike(cutting, i, part)) {
                cutting->marks[part] = (int)i;
                break;
            }
        if (cutting->marks[part] < part && !is_varied(cutting, part)) return false;
        any |= cutting->marks[part] < part;
    }
    return any;
}

/* The smallest number of parts that shows it; of parts that are all alike the largest, since halves of four like
 * quarters are alike, too. */
static bool find_cut(cutting *tried, bool (*mark)(cutting *), int64_t least)
{
    cutting best = *tried;
    bool found = false;
    for (int64_t parts = 2; parts <= MOST_PARTS && tried->axis->n / parts >= least; parts++) {
        if (tried->axis->n % parts || (found && parts % best.parts)) continue;
        cutting now = *tried;
        now.parts = parts, now.width = tried->axis->n / parts;
        if (!mark(&now)) continue;
        bool all = true;
        for (int64_t i = 1; i < parts; i++) all &= now.marks[i] == now.marks[0];
        if (found && !all) break;
        best = now, found = true;
        if (!all) break;
    }
    *tried = best;
    return found;
}

/* Over how many ranks: 1 part of 2 of each of several matrices in one is a shard of 2 ranks, too. */
static int64_t ranks_of(const cutting *cutting)
{
    int64_t different = 0, zeros = 0;
    for (int64_t i = 0; i < cutting->parts; i++)
        zeros += cutting->marks[i] < 0, different += cutting->marks[i] == (int)i;
    for (int64_t period = 2; zeros && period <= cutting->parts; period++) {
        bool periodic = cutting->parts % period == 0;
        for (int64_t i = period; i < cutting->parts && periodic; i++)
            periodic = (cutting->marks[i] < 0) == (cutting->marks[i - period] < 0);
        if (periodic && period < cutting->parts) return period;
    }
    for (int64_t ranks = 2; zeros && ranks <= MOST_PARTS; ranks++)
        if (zeros * ranks == cutting->parts || zeros * ranks == cutting->parts * (ranks - 1)) return ranks;
    return !zeros && different && cutting->parts % different == 0 ? cutting->parts / different : cutting->parts;
}

/* ---- findings ---------------------------------------------------------------------------------------------------- */

static const char *slices_word(const lb_layout *layout, int axis)
{
    if (layout->ndim == 1) return "elements";
    if (layout->ndim > 2 && axis == 0) return "slices";
    return layout->ndim == 2 && axis == 1 ? "columns" : "rows";
}

/* "48:96 and 144:192". */
static void parts_text(const cutting *cutting, bool zero, char text[160])
{
    int at = 0;
    for (int64_t i = 0; i < cutting->parts && at < 100; i++) {
        const bool told = zero ? cutting->marks[i] < 0 : cutting->marks[i] < i;
        if (!told || (i && (zero ? cutting->marks[i - 1] < 0 : cutting->marks[i - 1] < i - 1) == told)) continue;
        int64_t end = i;
        while (end < cutting->parts && (zero ? cutting->marks[end] < 0 : cutting->marks[end] < end)) end++;
        at += snprintf(text + at, 160 - (size_t)at, "%s%lld:%lld", at ? " and " : "", (long long)(i * cutting->width),
                       (long long)(end * cutting->width));
    }
}

static void tell(lb_audit_gathering *gathering, const lb_inventory *inventory, uint32_t piece, int axis,
                 const cutting *cutting, bool zero)
{
    const lb_checkpoint_piece *at = &inventory->checkpoint->pieces[piece];
    const lb_layout *layout = &at->tensor.layout;
    const long long ranks = (long long)ranks_of(cutting);
    lb_audit_where where = lb_inventory_where(inventory, at);
    int32_t lost[MOST_PARTS];
    char text[160];
    if (at->rank < 0 && ranks == cutting->parts) {
        where.ranks = lost, where.n_ranks = 0;
        for (int32_t i = 0; i < cutting->parts; i++)
            if (zero ? cutting->marks[i] < 0 : cutting->marks[i] < i) lost[where.n_ranks++] = i;
    }
    parts_text(cutting, zero, text);
    const char *word = slices_word(layout, axis);
    if (zero)
        lb_audit_find(
            gathering, LB_AUDIT_SHARD_MISSING, where,
            "its %s %s of %lld are zero, as if a shard of %lld ranks was lost (tensor or expert parallelism over %lld)",
            word, text, (long long)cutting->axis->n, ranks, ranks);
    else
        lb_audit_find(gathering, LB_AUDIT_SHARDS_EQUAL, where,
                      "its %s %s of %lld repeat those before, "
                      "as if one rank's shard stands in another's place (tensor or expert parallelism over %lld)",
                      word, text, (long long)cutting->axis->n, ranks);
}

/* Rows of a table of tokens or positions are zero where a token pads, and behind its last one. */
static bool is_padding(const lb_inventory *inventory, uint32_t piece, int axis, const cutting *cutting)
{
    int64_t zeros = 0;
    for (int64_t i = 0; i < cutting->axis->n; i++) zeros += is_zero_slice(cutting->axis, i);
    return axis == 0 && lb_inventory_is_table(inventory->checkpoint->pieces[piece].name) &&
           zeros * 16 <= cutting->axis->n;
}

/* A vocabulary that was padded: rows behind the last token, fewer than a shard of four ranks has. */
static bool is_padded(const lb_inventory *inventory, uint32_t piece, int axis, const cutting *cutting, int64_t zeros,
                      int64_t first)
{
    return axis == 0 && lb_inventory_is_table(inventory->checkpoint->pieces[piece].name) &&
           first + zeros == cutting->axis->n && zeros * 4 < cutting->axis->n;
}

/* Columns of an adapter of an embedding: those of tokens that training never met stay zero. */
static bool are_tokens(const char *name, int axis)
{
    return axis == 1 && strstr(name, "embedding_A") != NULL;
}

/* The other side's slices are all one: a table that says the same in each row, whose columns are numbers of their
 * own. */
static bool is_broadcast(const lb_profile *profile, int axis)
{
    const lb_profile_axis *other = &profile->axes[axis ? 0 : 2];
    for (int64_t i = 1; i < other->n; i++)
        if (other->hashes[i] != other->hashes[0]) return false;
    return other->n > 1;
}

/* Slices that are zero here and there. */
static void tell_dead(lb_audit_gathering *gathering, const lb_inventory *inventory, uint32_t piece, int axis,
                      const cutting *cutting, bool unusual)
{
    const lb_checkpoint_piece *at = &inventory->checkpoint->pieces[piece];
    const bool convolution = at->tensor.layout.ndim > 2 && !lb_inventory_is_stacked(at->name);
    int64_t zeros = 0, first = -1;
    for (int64_t i = cutting->axis->n; i-- > 0;)
        if (is_zero_slice(cutting->axis, i)) zeros++, first = i;
    if (!zeros || zeros == cutting->axis->n || at->tensor.layout.ndim < 2 ||
        is_broadcast(&inventory->profiles[piece], axis))
        return;
    void (*say)(lb_audit_gathering *, lb_audit_kind, lb_audit_where, const char *, ...) =
        unusual && !convolution && !is_padding(inventory, piece, axis, cutting) &&
                !is_padded(inventory, piece, axis, cutting, zeros, first)
            ? lb_audit_find
            : lb_audit_note;
    say(gathering, LB_AUDIT_DEAD, lb_inventory_where(inventory, at), "%lld of its %lld %s are zero, the first is %lld",
        (long long)zeros, (long long)cutting->axis->n, slices_word(&at->tensor.layout, axis), (long long)first);
}

static bool has_zero_slice(const lb_profile_axis *axis)
{
    for (int64_t i = 0; i < axis->n; i++)
        if (is_zero_slice(axis, i)) return true;
    return false;
}

/* Most of its siblings have slices of zeros, too: it is how the model is. */
static bool is_usual(const lb_inventory *inventory, uint32_t first, uint32_t end, int axis)
{
    uint32_t with = 0, all = 0;
    for (uint32_t i = first; i < end; i++) {
        const lb_inventory_name *name = &inventory->names[inventory->siblings[i]];
        for (uint32_t k = 0; k < name->n; k++)
            all++, with += has_zero_slice(&inventory->profiles[name->first + k].axes[axis]);
    }
    return (all >= 3 && with * 2 > all) || (all == 2 && with == 2);
}

/* The ranks of an adapter are no rows that a shard could be of. */
static bool is_rank_axis(const char *name, int axis)
{
    const char half = lb_inventory_lora_half(name);
    return (half == 'A' && axis == 0) || (half == 'B' && axis == 1);
}

static void check_axis(lb_audit_gathering *gathering, const lb_inventory *inventory, uint32_t piece, int axis,
                       bool usual)
{
    const lb_checkpoint_piece *at = &inventory->checkpoint->pieces[piece];
    const lb_layout *layout = &at->tensor.layout;
    const int which = lb_profile_axis_of(layout, axis);
    cutting cutting = {.axis = which < 0 ? NULL : &inventory->profiles[piece].axes[which], .vector = layout->ndim == 1};
    if (!cutting.axis || cutting.axis->n < 2) return;
    const int64_t least = layout->ndim == 1                                                    ? NUMBERS_TO_TELL
                          : layout->ndim > 2 && axis == 0 && lb_inventory_is_stacked(at->name) ? 1
                                                                                               : ROWS_TO_TELL;
    if (!is_padding(inventory, piece, axis, &cutting) && find_cut(&cutting, marks_zeros, least))
        tell(gathering, inventory, piece, axis, &cutting, true);
    else if (!is_rank_axis(at->name, axis) && !are_tokens(at->name, axis))
        tell_dead(gathering, inventory, piece, axis, &cutting, !usual);
    if (find_cut(&cutting, marks_repeats, least)) tell(gathering, inventory, piece, axis, &cutting, false);
}

/* Of a tensor in parts, those that are zero where others are not. */
static void check_parts(lb_audit_gathering *gathering, const lb_inventory *inventory, const lb_inventory_name *name)
{
    uint32_t zeros = 0;
    for (uint32_t i = 0; i < name->n; i++) zeros += lb_inventory_is_zero(&inventory->measured[name->first + i]);
    for (uint32_t i = 0; i < name->n && zeros < name->n; i++)
        if (lb_inventory_is_zero(&inventory->measured[name->first + i]) &&
            inventory->measured[name->first + i].statistics.elements >= NUMBERS_TO_TELL)
            lb_audit_find(gathering, LB_AUDIT_ZERO,
                          lb_inventory_where(inventory, &inventory->checkpoint->pieces[name->first + i]),
                          "all elements of this part are zero, and %u of %u other parts are not", name->n - zeros,
                          name->n - 1);
}

void lb_audit_lost_shards(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    for (uint32_t i = 0, end; i < inventory->n_names; i = end) {
        end = lb_inventory_group(inventory, i);
        bool usual[LB_PROFILE_AXES];
        for (int axis = 0; axis < LB_PROFILE_AXES; axis++) usual[axis] = is_usual(inventory, i, end, axis);
        for (uint32_t k = i; k < end; k++) {
            const lb_inventory_name *name = &inventory->names[inventory->siblings[k]];
            if (lb_inventory_is_state(name->name) || lb_inventory_is_buffer(name->name)) continue;
            check_parts(gathering, inventory, name);
            for (uint32_t part = 0; part < name->n; part++) {
                const lb_layout *layout = &inventory->checkpoint->pieces[name->first + part].tensor.layout;
                for (int d = 0; d < layout->ndim && d < LB_PROFILE_AXES; d++) {
                    const int axis = lb_profile_axis_of(layout, d);
                    if (layout->ndim > 2 && d == 2 && !lb_inventory_is_stacked(name->name)) continue;
                    if (axis >= 0) check_axis(gathering, inventory, name->first + part, d, usual[axis]);
                }
            }
        }
    }
}
