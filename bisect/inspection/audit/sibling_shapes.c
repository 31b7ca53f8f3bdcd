/* A tensor that is a whole fraction of what its siblings in other layers are: a shard that was saved as if it were all
 * of it, as happens where the shards of several ranks have one key and are taken for copies of one tensor. Asked of
 * distributed checkpoints, which say who wrote what. */
#include "audit/inventory.h"

/* Among how many siblings one shape is the usual one. */
enum { FEWEST = 3, MOST_PARTS = 64 };

static const lb_checkpoint_piece *piece_of(const lb_inventory *inventory, uint32_t sibling)
{
    return &inventory->checkpoint->pieces[inventory->names[inventory->siblings[sibling]].first];
}

/* The shape that more than half of them have, as a sibling that has it; UINT32_MAX: there is none. */
static uint32_t usual_shape(const lb_inventory *inventory, uint32_t first, uint32_t end)
{
    uint32_t candidate = first, votes = 0, count = 0;
    for (uint32_t i = first; i < end; i++) {
        if (!votes) candidate = i;
        const bool same = lb_layout_same_shape(&piece_of(inventory, i)->whole, &piece_of(inventory, candidate)->whole);
        votes = same ? votes + 1 : votes - 1;
    }
    for (uint32_t i = first; i < end; i++)
        count += lb_layout_same_shape(&piece_of(inventory, i)->whole, &piece_of(inventory, candidate)->whole);
    return count * 2 > end - first ? candidate : UINT32_MAX;
}

/* How many of `small` make up `usual` side by side along one dimension; 0: none do. */
static int64_t parts_of(const lb_layout *small, const lb_layout *usual)
{
    int64_t parts = 0;
    if (small->ndim != usual->ndim) return 0;
    for (int d = 0; d < small->ndim; d++) {
        const int64_t s = small->shape[d], u = usual->shape[d];
        if (s == u) continue;
        if (parts || s <= 0 || u % s != 0) return 0;
        parts = u / s;
    }
    return parts >= 2 && parts <= MOST_PARTS ? parts : 0;
}

/* Ranks that hold parts of `other` and none of `name`. */
static uint32_t lacking_ranks(const lb_inventory *inventory, const lb_inventory_name *name,
                              const lb_inventory_name *other, int32_t ranks[MOST_PARTS])
{
    const lb_checkpoint_piece *pieces = inventory->checkpoint->pieces;
    uint32_t n = 0;
    for (uint32_t i = 0; i < other->n && n < MOST_PARTS; i++) {
        bool has = false;
        for (uint32_t k = 0; k < name->n; k++) has |= pieces[name->first + k].rank == pieces[other->first + i].rank;
        for (uint32_t k = 0; k < n; k++) has |= ranks[k] == pieces[other->first + i].rank;
        if (!has) ranks[n++] = pieces[other->first + i].rank;
    }
    return n;
}

static void check_siblings(lb_audit_gathering *gathering, const lb_inventory *inventory, uint32_t first, uint32_t end)
{
    const uint32_t usual = end - first < FEWEST ? UINT32_MAX : usual_shape(inventory, first, end);
    char has[160], wants[160];
    for (uint32_t i = first; i < end && usual != UINT32_MAX; i++) {
        const lb_checkpoint_piece *p = piece_of(inventory, i), *u = piece_of(inventory, usual);
        const lb_inventory_name *name = &inventory->names[inventory->siblings[i]];
        const int64_t parts = parts_of(&p->whole, &u->whole);
        int32_t ranks[MOST_PARTS];
        if (!parts || lb_inventory_is_state(name->name)) continue;
        const uint32_t n = lacking_ranks(inventory, name, &inventory->names[inventory->siblings[usual]], ranks);
        if (!n) continue; /* as many ranks wrote it: layers of a model may be of several widths */
        lb_audit_find(gathering, LB_AUDIT_SHARD_MISSING,
                      (lb_audit_where){name->name, inventory->checkpoint->files[p->file].path, ranks, n},
                      "is %s, its siblings in other layers are %s: 1 part of %lld, saved as if it were the whole",
                      lb_inventory_shape_text(&p->whole, has), lb_inventory_shape_text(&u->whole, wants),
                      (long long)parts);
    }
}

void lb_audit_sibling_shapes(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    if (!inventory->checkpoint->distributed) return;
    for (uint32_t i = 0, end; i < inventory->n_names; i = end) {
        end = lb_inventory_group(inventory, i);
        check_siblings(gathering, inventory, i, end);
    }
}
