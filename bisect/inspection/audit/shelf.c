/* See shelf.h. */
#include "audit/shelf.h"

#include <lastbit/program.h>

#include <stdlib.h>

/* Shards of ranks' files, whose places no file tells. */
static bool is_in_shards(const lb_inventory *inventory, const lb_inventory_name *name)
{
    bool differ = false;
    if (name->n < 2 || inventory->checkpoint->pieces[name->first].placed) return false;
    for (uint32_t i = 1; i < name->n; i++)
        differ |=
            !lb_digest_equal(inventory->measured[name->first].digest, inventory->measured[name->first + i].digest);
    return differ;
}

bool lb_shelf_init(lb_shelf *shelf, const lb_comparison_side *side)
{
    *shelf = (lb_shelf){.side = side, .list = calloc(side->inventory->checkpoint->n_pieces + 1u, sizeof *shelf->list)};
    for (uint32_t i = 0; shelf->list && i < side->inventory->n_names; i++) {
        const lb_inventory_name *name = &side->inventory->names[i];
        const bool shards = is_in_shards(side->inventory, name);
        if (side->states[i] == LB_COMPARISON_STATE) continue;
        for (uint32_t part = 0; part < (shards ? name->n : 1); part++)
            shelf->list[shelf->n++] = (lb_shelf_weight){.row = i, .part = shards ? part : LB_NONE};
    }
    return shelf->list != NULL;
}

void lb_shelf_release(lb_shelf *shelf)
{
    for (uint32_t i = 0; shelf->list && i < shelf->n; i++)
        if (shelf->list[i].open) lb_whole_release(&shelf->list[i].whole);
    free(shelf->list);
}

const char *lb_shelf_name(const lb_shelf *shelf, uint32_t i)
{
    return shelf->side->inventory->names[shelf->list[i].row].name;
}

const lb_checkpoint_piece *lb_shelf_piece(const lb_shelf *shelf, uint32_t i)
{
    const lb_shelf_weight *weight = &shelf->list[i];
    return &shelf->side->inventory->checkpoint->pieces[shelf->side->inventory->names[weight->row].first +
                                                       (weight->part == LB_NONE ? 0 : weight->part)];
}

lb_layout lb_shelf_layout(const lb_shelf *shelf, uint32_t i)
{
    const lb_checkpoint_piece *piece = lb_shelf_piece(shelf, i);
    return shelf->list[i].part == LB_NONE && piece->placed ? piece->whole : piece->tensor.layout;
}

static lb_status put_together(lb_shelf *shelf, lb_shelf_weight *weight, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const lb_status status =
        lb_whole_init(shelf->side->inventory, &shelf->side->inventory->names[weight->row], -1, &weight->whole, &why);
    if (lb_is_refusal(status) && shelf->refused.status == LB_OK) shelf->refused = why;
    return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", why.message);
}

lb_status lb_shelf_open(lb_shelf *shelf, uint32_t i, lb_err *err)
{
    lb_shelf_weight *weight = &shelf->list[i];
    if (weight->open) return LB_OK;
    if (weight->part == LB_NONE)
        LB_TRY(put_together(shelf, weight, err));
    else
        weight->whole = (lb_whole){lb_shelf_piece(shelf, i)->tensor, NULL};
    weight->open = true;
    return LB_OK;
}

bool lb_shelf_is_pending(const lb_shelf *shelf, uint32_t i)
{
    return shelf->side->states[shelf->list[i].row] == LB_COMPARISON_OPEN;
}

bool lb_shelf_has_rest(const lb_shelf *shelf, uint32_t i)
{
    const lb_layout layout = lb_shelf_layout(shelf, i);
    return lb_shelf_is_pending(shelf, i) || (shelf->side->states[shelf->list[i].row] == LB_COMPARISON_ARRANGED &&
                                             shelf->list[i].used < lb_layout_numel(&layout));
}

bool lb_shelf_any_pending(const lb_shelf *shelf)
{
    for (uint32_t i = 0; i < shelf->n; i++)
        if (lb_shelf_is_pending(shelf, i)) return true;
    return false;
}
