/* Shards: those of ranks' files, whose places are not recorded, and parts of placed tensors, which must tile them.
 *
 * The hard idea: copies (norms, routers, half of each adapter) are equal on all ranks and rightly so. A tensor is known
 * to be sharded by its siblings, whose shards differ, or by its module's usual name where other modules are sharded. */
#include "audit/inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ranks' files ------------------------------------------------------------------------------------------------ */

/* Of one name: how its pieces of several ranks compare. */
typedef struct shards {
    bool several, all_equal, some_equal, informative; /* informative: not constant, of some size */
} shards;

static bool equal_pieces(const lb_inventory *inventory, uint32_t a, uint32_t b)
{
    return lb_digest_equal(inventory->measured[a].digest, inventory->measured[b].digest);
}

static shards compare_shards(const lb_inventory *inventory, const lb_inventory_name *name)
{
    shards shards = {name->n > 1, true, false, true};
    for (uint32_t i = 0; i < name->n; i++) {
        const lb_piece_measured *measured = &inventory->measured[name->first + i];
        if (lb_inventory_is_constant(measured) || measured->statistics.elements < 16) shards.informative = false;
        shards.all_equal &= equal_pieces(inventory, name->first, name->first + i);
        for (uint32_t k = 0; k < i; k++) shards.some_equal |= equal_pieces(inventory, name->first + k, name->first + i);
    }
    return shards;
}

/* Ranks that have nothing of their own, or whose file is damaged, are told once. */
static bool *present_ranks(lb_audit_gathering *gathering, const lb_checkpoint *checkpoint)
{
    bool *present = (bool *)calloc((size_t)checkpoint->ranks + 1u, sizeof *present);
    if (!present) return gathering->failed = true, NULL;
    for (uint32_t i = 0; i < checkpoint->n_pieces; i++)
        if (checkpoint->pieces[i].rank >= 0 && checkpoint->pieces[i].rank < checkpoint->ranks)
            present[checkpoint->pieces[i].rank] = true;
    for (int32_t r = 0; r < checkpoint->ranks; r++) {
        bool told = false;
        for (uint32_t i = 0; i < checkpoint->n_faults; i++)
            told |= checkpoint->faults[i].rank == r && !checkpoint->faults[i].tensor;
        if (!present[r] && !told)
            lb_audit_find(gathering, LB_AUDIT_SHARD_MISSING, (lb_audit_where){NULL, NULL, &r, 1},
                          "there are files of rank %d and of ranks above it, none of rank %d", r ? r - 1 : r + 1, r);
        if (told) present[r] = false;
    }
    return present;
}

static bool is_faulted(const lb_checkpoint *checkpoint, const char *tensor, int32_t rank)
{
    for (uint32_t i = 0; i < checkpoint->n_faults; i++)
        if (checkpoint->faults[i].rank == rank && checkpoint->faults[i].tensor &&
            strcmp(checkpoint->faults[i].tensor, tensor) == 0)
            return true;
    return false;
}

enum { MOST_RANKS = 1024, MOST_KINDS = 16 };

/* Ranks that should hold a name: those with a file of a kind and a stage that hold it anywhere. Other kinds of files,
 * and other stages of a pipeline, hold different names. Gives how many there are. */
static uint32_t expected_ranks(const lb_checkpoint *checkpoint, const lb_inventory_name *name,
                               bool expected[MOST_RANKS])
{
    const lb_checkpoint_file *kinds[MOST_KINDS];
    uint32_t n = 0, count = 0;
    memset(expected, 0, MOST_RANKS);
    for (uint32_t i = 0; i < name->n; i++) {
        const lb_checkpoint_file *file = &checkpoint->files[checkpoint->pieces[name->first + i].file];
        uint32_t k = 0;
        while (k < n && (kinds[k]->kind != file->kind || kinds[k]->stage != file->stage)) k++;
        if (k == n && n < MOST_KINDS) kinds[n++] = file;
    }
    for (uint32_t i = 0; i < checkpoint->n_files; i++) {
        const lb_checkpoint_file *file = &checkpoint->files[i];
        for (uint32_t k = 0; k < n; k++)
            if (file->rank >= 0 && file->rank < MOST_RANKS && kinds[k]->kind == file->kind &&
                kinds[k]->stage == file->stage)
                count += !expected[file->rank], expected[file->rank] = true;
    }
    return count;
}

static bool is_on_every_rank(const lb_checkpoint *checkpoint, const lb_inventory_name *name)
{
    bool expected[MOST_RANKS];
    return name->n == expected_ranks(checkpoint, name, expected);
}

static void find_absent(lb_audit_gathering *gathering, const lb_inventory *inventory, const lb_inventory_name *name,
                        const bool *present, bool group_is_whole)
{
    const lb_checkpoint *checkpoint = inventory->checkpoint;
    int32_t absent[MOST_RANKS];
    bool expected[MOST_RANKS];
    uint32_t n = 0;
    if (checkpoint->ranks < 2 || checkpoint->ranks > MOST_RANKS || (name->n == 1 && !group_is_whole)) return;
    const uint32_t all = expected_ranks(checkpoint, name, expected);
    for (int32_t r = 0; r < checkpoint->ranks; r++) {
        bool there = !expected[r] || !present[r] || is_faulted(checkpoint, name->name, r);
        for (uint32_t i = 0; i < name->n && !there; i++) there = checkpoint->pieces[name->first + i].rank == r;
        if (!there) absent[n++] = r;
    }
    if (n)
        lb_audit_find(gathering, LB_AUDIT_SHARD_MISSING, (lb_audit_where){name->name, NULL, absent, n},
                      "%u of %u ranks have a shard of it; that of rank %d%s is absent", name->n, all, absent[0],
                      n > 1 ? " and others" : "");
}

static void check_shapes(lb_audit_gathering *gathering, const lb_inventory *inventory, const lb_inventory_name *name)
{
    const lb_checkpoint_piece *first = &inventory->checkpoint->pieces[name->first];
    char one[160], other[160];
    for (uint32_t i = 1; i < name->n; i++) {
        const lb_checkpoint_piece *piece = first + i;
        int differ = piece->tensor.layout.ndim != first->tensor.layout.ndim ? 2 : 0;
        for (int axis = 0; axis < piece->tensor.layout.ndim && differ < 2; axis++)
            differ += piece->tensor.layout.shape[axis] != first->tensor.layout.shape[axis];
        if (differ > 1 || piece->tensor.dtype != first->tensor.dtype)
            lb_audit_find(gathering, differ > 1 ? LB_AUDIT_SHAPE : LB_AUDIT_DTYPE, lb_inventory_where(inventory, piece),
                          "is %s %s on rank %d, %s %s on rank %d: shards differ along one dimension at most",
                          lb_dtype_name(piece->tensor.dtype), lb_inventory_shape_text(&piece->tensor.layout, one),
                          piece->rank, lb_dtype_name(first->tensor.dtype),
                          lb_inventory_shape_text(&first->tensor.layout, other), first->rank);
    }
}

static void find_equal(lb_audit_gathering *gathering, const lb_inventory *inventory, const lb_inventory_name *name,
                       const char *why)
{
    bool told[1024] = {false};
    for (uint32_t i = 0; i < name->n && name->n <= 1024; i++) {
        int32_t ranks[1024];
        uint32_t n = 0;
        for (uint32_t k = i; k < name->n && !told[i]; k++)
            if (equal_pieces(inventory, name->first + i, name->first + k)) {
                ranks[n++] = inventory->checkpoint->pieces[name->first + k].rank;
                told[k] |= k != i;
            }
        if (n > 1)
            lb_audit_find(
                gathering, LB_AUDIT_SHARDS_EQUAL,
                (lb_audit_where){name->name,
                                 inventory->checkpoint->files[inventory->checkpoint->pieces[name->first].file].path,
                                 ranks, n},
                "ranks %d and %d%s hold the same bits, and %s: one shard was taken for a copy of the other, "
                "the rest is lost",
                ranks[0], ranks[1], n > 2 ? " and others" : "", why);
    }
}

/* Which of its copies is the odd one out: that whose bits no other has. */
static void find_odd(lb_audit_gathering *gathering, const lb_inventory *inventory, const lb_inventory_name *name)
{
    int32_t ranks[1024];
    uint32_t n = 0;
    for (uint32_t i = 0; i < name->n && name->n <= 1024; i++) {
        uint32_t same = 0;
        for (uint32_t k = 0; k < name->n; k++) same += equal_pieces(inventory, name->first + i, name->first + k);
        if (same == 1) ranks[n++] = inventory->checkpoint->pieces[name->first + i].rank;
    }
    lb_audit_find(gathering, LB_AUDIT_REPLICAS_DIFFER, (lb_audit_where){name->name, NULL, ranks, n},
                  "its copies differ between ranks, and those of the same tensor in other layers do not");
}

/* Why a tensor should be sharded, or NULL. `differing` of the `others` informative siblings differ between ranks. */
static const char *reason_to_differ(const lb_inventory_name *name, const lb_layout *layout, uint32_t differing,
                                    uint32_t others, bool any_sharded)
{
    static const char *const grouped[] = {"k_proj", "v_proj", "wk", "wv", NULL}; /* fewer heads than ranks: copied */
    lb_inventory_cut cut = lb_inventory_cut_of(name->name);
    char half = lb_inventory_lora_half(name->name);
    if (differing > 0 && differing * 2 >= others) return "those of its siblings in other layers differ";
    if (!any_sharded || cut == LB_CUT_UNKNOWN || layout->ndim < 2 || lb_inventory_word_of(name->name, grouped))
        return NULL;
    if (half) /* one half follows the cut of the module, the other is copied */
        return (half == 'B') == (cut == LB_CUT_COLUMN_PARALLEL) ? "its module is one that tensor parallelism cuts"
                                                                : NULL;
    return "its module is one that tensor parallelism cuts";
}

static void check_group(lb_audit_gathering *gathering, const lb_inventory *inventory, uint32_t first, uint32_t end,
                        const shards *all, const bool *present, bool any_sharded)
{
    const lb_checkpoint *checkpoint = inventory->checkpoint;
    uint32_t differing = 0, equal = 0, whole = 0;
    for (uint32_t i = first; i < end; i++) {
        const shards *s = &all[inventory->siblings[i]];
        whole += is_on_every_rank(checkpoint, &inventory->names[inventory->siblings[i]]);
        differing += s->several && s->informative && !s->some_equal;
        equal += s->several && s->all_equal;
    }
    for (uint32_t i = first; i < end; i++) {
        const lb_inventory_name *name = &inventory->names[inventory->siblings[i]];
        const shards *s = &all[inventory->siblings[i]];
        const lb_layout *layout = &checkpoint->pieces[name->first].tensor.layout;
        find_absent(gathering, inventory, name, present, whole * 2 > end - first);
        check_shapes(gathering, inventory, name);
        if (!s->several || lb_inventory_is_state(name->name)) continue;
        const char *why = reason_to_differ(name, layout, differing, differing + equal, any_sharded);
        if (s->informative && s->some_equal && why) find_equal(gathering, inventory, name, why);
        if (!s->all_equal && !why && equal >= 2 && equal * 2 > end - first) find_odd(gathering, inventory, name);
    }
}

static void check_rank_files(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    shards *all = (shards *)malloc((inventory->n_names + 1u) * sizeof *all);
    bool *present = present_ranks(gathering, inventory->checkpoint), any_sharded = false, any_equal = false;
    gathering->failed |= !all;
    for (uint32_t i = 0; all && i < inventory->n_names; i++) {
        all[i] = compare_shards(inventory, &inventory->names[i]);
        bool matrix = inventory->checkpoint->pieces[inventory->names[i].first].tensor.layout.ndim >= 2;
        any_sharded |= all[i].several && all[i].informative && matrix && !all[i].all_equal;
        any_equal |= all[i].several && all[i].informative && matrix && all[i].all_equal;
    }
    for (uint32_t i = 0, end; all && present && i < inventory->n_names; i = end) {
        end = lb_inventory_group(inventory, i);
        check_group(gathering, inventory, i, end, all, present, any_sharded);
    }
    if (any_equal && !any_sharded)
        lb_audit_note(gathering, LB_AUDIT_SHARDS_EQUAL, (lb_audit_where){NULL, NULL, NULL, 0},
                      "every matrix is the same on all %d ranks: these are copies, not shards",
                      inventory->checkpoint->ranks);
    free(present);
    free(all);
}

void lb_audit_shards(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    if (inventory->checkpoint->rank_files) check_rank_files(gathering, inventory);
}

/* ---- parts of placed tensors ------------------------------------------------------------------------------------- */

static const char *region_text(const int64_t *start, const int64_t *end, int n, char text[200])
{
    int at = 1;
    text[0] = '[';
    for (int axis = 0; axis < n && at < 150; axis++)
        at += snprintf(text + at, 200 - (size_t)at, "%s%lld:%lld", axis ? ", " : "", (long long)start[axis],
                       (long long)end[axis]);
    snprintf(text + at, 200 - (size_t)at, "]");
    return text;
}

static void end_of(const lb_checkpoint_piece *piece, int64_t end[LB_MAX_DIMS])
{
    for (int axis = 0; axis < piece->whole.ndim; axis++)
        end[axis] = piece->start[axis] + piece->tensor.layout.shape[axis];
}

static bool leaves(const lb_checkpoint_piece *piece)
{
    for (int axis = 0; axis < piece->whole.ndim; axis++)
        if (piece->start[axis] < 0 || piece->start[axis] > piece->whole.shape[axis] - piece->tensor.layout.shape[axis])
            return true;
    return false;
}

/* The region that both hold; false when they share nothing. */
static bool shared_region(const lb_checkpoint_piece *a, const lb_checkpoint_piece *b, int64_t *start, int64_t *end)
{
    int64_t a_end[LB_MAX_DIMS], b_end[LB_MAX_DIMS];
    end_of(a, a_end);
    end_of(b, b_end);
    for (int axis = 0; axis < a->whole.ndim; axis++) {
        start[axis] = a->start[axis] > b->start[axis] ? a->start[axis] : b->start[axis];
        end[axis] = a_end[axis] < b_end[axis] ? a_end[axis] : b_end[axis];
        if (start[axis] >= end[axis]) return false;
    }
    return true;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The borders of all parts cut the whole into cells; the first cell in row-major order that no part covers. */
static bool first_gap(const lb_checkpoint_piece *parts, uint32_t n, int64_t *start, int64_t *end)
{
    const lb_layout *whole = &parts->whole;
    int64_t *cuts[LB_MAX_DIMS], cells = 1, index[LB_MAX_DIMS] = {0};
    uint32_t n_cuts[LB_MAX_DIMS];
    bool found = false, ready = true;
    for (int axis = 0; axis < whole->ndim; axis++) {
        cuts[axis] = (int64_t *)malloc((2u * n + 2u) * sizeof **cuts);
        ready &= cuts[axis] != NULL;
        n_cuts[axis] = 0;
        if (!cuts[axis]) continue;
        cuts[axis][n_cuts[axis]++] = 0;
        cuts[axis][n_cuts[axis]++] = whole->shape[axis];
        for (uint32_t i = 0; i < n; i++) {
            cuts[axis][n_cuts[axis]++] = parts[i].start[axis];
            cuts[axis][n_cuts[axis]++] = parts[i].start[axis] + parts[i].tensor.layout.shape[axis];
        }
        qsort(cuts[axis], n_cuts[axis], sizeof **cuts, by_number);
        uint32_t kept = 1;
        for (uint32_t i = 1; i < n_cuts[axis]; i++)
            if (cuts[axis][i] != cuts[axis][kept - 1] && cuts[axis][i] <= whole->shape[axis])
                cuts[axis][kept++] = cuts[axis][i];
        n_cuts[axis] = kept;
        cells *= kept - 1;
    }
    for (int64_t cell = 0; ready && cell < cells && cell < 1000000 && !found; cell++) {
        int64_t rest = cell;
        for (int axis = whole->ndim - 1; axis >= 0; axis--) {
            index[axis] = rest % (n_cuts[axis] - 1);
            rest /= n_cuts[axis] - 1;
            start[axis] = cuts[axis][index[axis]];
            end[axis] = cuts[axis][index[axis] + 1];
        }
        bool covered = false;
        for (uint32_t i = 0; i < n && !covered; i++) {
            covered = true;
            for (int axis = 0; axis < whole->ndim; axis++)
                covered &= parts[i].start[axis] <= start[axis] &&
                           parts[i].start[axis] + parts[i].tensor.layout.shape[axis] >= end[axis];
        }
        found = !covered;
    }
    for (int axis = 0; axis < whole->ndim; axis++) free(cuts[axis]);
    return found;
}

/* Parts of equal bits: the key was the same, and so one rank's part stands in another's place. */
static void find_equal_parts(lb_audit_gathering *gathering, const lb_inventory *inventory,
                             const lb_inventory_name *name)
{
    const lb_checkpoint_piece *parts = &inventory->checkpoint->pieces[name->first];
    char one[200], other[200];
    int64_t end[LB_MAX_DIMS], second_end[LB_MAX_DIMS];
    for (uint32_t i = 1; i < name->n; i++)
        for (uint32_t k = 0; k < i; k++) {
            const lb_piece_measured *measured = &inventory->measured[name->first + i];
            if (!equal_pieces(inventory, name->first + i, name->first + k) || lb_inventory_is_constant(measured) ||
                measured->statistics.elements < 16)
                continue;
            int32_t ranks[2] = {parts[k].rank, parts[i].rank};
            end_of(&parts[k], end);
            end_of(&parts[i], second_end);
            lb_audit_find(gathering, LB_AUDIT_SHARDS_EQUAL,
                          (lb_audit_where){name->name, inventory->checkpoint->files[parts[i].file].path, ranks, 2},
                          "its parts %s and %s hold the same bits",
                          region_text(parts[k].start, end, parts[k].whole.ndim, one),
                          region_text(parts[i].start, second_end, parts[i].whole.ndim, other));
            break;
        }
}

static void check_tiles(lb_audit_gathering *gathering, const lb_inventory *inventory, const lb_inventory_name *name)
{
    const lb_checkpoint_piece *parts = &inventory->checkpoint->pieces[name->first];
    int64_t start[LB_MAX_DIMS], end[LB_MAX_DIMS];
    char region[200], shape[160];
    bool odd = false;
    for (uint32_t i = 0; i < name->n; i++)
        if (leaves(&parts[i])) {
            end_of(&parts[i], end);
            lb_audit_find(gathering, LB_AUDIT_OUT_OF_RANGE, lb_inventory_where(inventory, &parts[i]),
                          "its part %s leaves the tensor of %s",
                          region_text(parts[i].start, end, parts[i].whole.ndim, region),
                          lb_inventory_shape_text(&parts[i].whole, shape));
            odd = true;
        }
    for (uint32_t i = 1; i < name->n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (shared_region(&parts[k], &parts[i], start, end)) {
                int32_t ranks[2] = {parts[k].rank, parts[i].rank};
                lb_audit_find(gathering, LB_AUDIT_OVERLAP,
                              (lb_audit_where){name->name, inventory->checkpoint->files[parts[i].file].path, ranks, 2},
                              "two parts hold the region %s", region_text(start, end, parts[i].whole.ndim, region));
                odd = true;
            }
    bool told = false;
    for (uint32_t i = 0; i < inventory->checkpoint->n_faults; i++)
        told |=
            inventory->checkpoint->faults[i].tensor && strcmp(inventory->checkpoint->faults[i].tensor, name->name) == 0;
    if (!odd && !told && lb_layout_numel(&parts->whole) > 0 && first_gap(parts, name->n, start, end))
        lb_audit_find(gathering, LB_AUDIT_GAP, (lb_audit_where){name->name, NULL, NULL, 0},
                      "no part holds the region %s of %s: a rank's part is missing",
                      region_text(start, end, parts->whole.ndim, region),
                      lb_inventory_shape_text(&parts->whole, shape));
    if (!odd && !lb_inventory_is_state(name->name)) find_equal_parts(gathering, inventory, name);
}

/* ---- ranges of bytes in a file ----------------------------------------------------------------------------------- */

static const lb_checkpoint *ordered;
#pragma omp threadprivate(ordered)

static int by_offset(const void *a, const void *b)
{
    const lb_checkpoint_piece *x = &ordered->pieces[*(const uint32_t *)a], *y = &ordered->pieces[*(const uint32_t *)b];
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static uint64_t bytes_of(const lb_checkpoint_piece *piece)
{
    return lb_dtype_bytes(piece->tensor.dtype, (size_t)lb_layout_numel(&piece->tensor.layout));
}

/* Bytes of a safetensors file that no tensor claims: the library refuses such a file. `order`: its pieces by offset. */
static void find_unclaimed(lb_audit_gathering *gathering, const lb_checkpoint *checkpoint, const uint32_t *order,
                           uint32_t n)
{
    const lb_checkpoint_piece *first = &checkpoint->pieces[order[0]];
    const lb_checkpoint_file *file = &checkpoint->files[first->file];
    const size_t length = strlen(file->path);
    uint64_t header, at;
    bool faulty = length < 12 || strcmp(file->path + length - 12, ".safetensors") != 0 || first->offset < 8;
    for (uint32_t i = 0; i < checkpoint->n_faults; i++)
        faulty |= checkpoint->faults[i].file && strcmp(checkpoint->faults[i].file, file->path) == 0;
    if (faulty) return; /* a tensor of it may have been passed over */
    for (uint32_t i = 1; i < n; i++)
        if (checkpoint->pieces[order[i - 1]].offset + bytes_of(&checkpoint->pieces[order[i - 1]]) >
            checkpoint->pieces[order[i]].offset)
            return; /* two claim the same bytes, and so leave others: told above */
    memcpy(&header, (const char *)first->tensor.data - first->offset, sizeof header);
    at = 8 + header;
    for (uint32_t i = 0; i <= n; i++) {
        const uint64_t next = i < n ? checkpoint->pieces[order[i]].offset : file->size;
        if (next > at)
            lb_audit_find(gathering, LB_AUDIT_GAP, (lb_audit_where){NULL, file->path, &file->rank, 1},
                          "%llu bytes at offset %llu belong to no tensor: safetensors refuses the file",
                          (unsigned long long)(next - at), (unsigned long long)at);
        if (i < n && next + bytes_of(&checkpoint->pieces[order[i]]) > at)
            at = next + bytes_of(&checkpoint->pieces[order[i]]);
    }
}

/* A safetensors header that gives two tensors the same bytes lies; torch.save's tensors may share a storage. */
static void check_ranges(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    const lb_checkpoint *checkpoint = inventory->checkpoint;
    uint32_t *order = (uint32_t *)malloc((checkpoint->n_pieces + 1u) * sizeof *order);
    if (!order) {
        gathering->failed = true;
        return;
    }
    for (uint32_t i = 0; i < checkpoint->n_pieces; i++) order[i] = i;
    ordered = checkpoint;
    if (checkpoint->n_pieces) qsort(order, checkpoint->n_pieces, sizeof *order, by_offset);
    for (uint32_t i = 1; i < checkpoint->n_pieces; i++) {
        const lb_checkpoint_piece *a = &checkpoint->pieces[order[i - 1]], *b = &checkpoint->pieces[order[i]];
        const char *path = checkpoint->files[b->file].path;
        size_t n = strlen(path);
        if (a->file != b->file || n < 12 || strcmp(path + n - 12, ".safetensors") != 0 || !bytes_of(a) || !bytes_of(b))
            continue;
        if (a->offset + bytes_of(a) > b->offset)
            lb_audit_find(gathering, LB_AUDIT_OVERLAP, lb_inventory_where(inventory, b),
                          "its bytes at offset %llu are those of %s, too", (unsigned long long)b->offset, a->name);
    }
    for (uint32_t i = 0, end; i < checkpoint->n_pieces; i = end) {
        for (end = i + 1;
             end < checkpoint->n_pieces && checkpoint->pieces[order[end]].file == checkpoint->pieces[order[i]].file;)
            end++;
        find_unclaimed(gathering, checkpoint, order + i, end - i);
    }
    free(order);
}

void lb_audit_shard_tiles(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    for (uint32_t i = 0; i < inventory->n_names; i++)
        if (inventory->checkpoint->pieces[inventory->names[i].first].placed)
            check_tiles(gathering, inventory, &inventory->names[i]);
    check_ranges(gathering, inventory);
}
