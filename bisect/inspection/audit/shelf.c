/* See shelf.h. */
#include "audit/shelf.h"

#include <lastbit/program.h>

#include <stdlib.h>

/* Shards of ranks' files, whose places no file tells. */
static bool is_in_shards(const lb_inventory *v, const lb_inventory_name *name)
{
    bool differ = false;
    if (name->n < 2 || v->checkpoint->pieces[name->first].placed) return false;
    for (uint32_t i = 1; i < name->n; i++)
        differ |= !lb_digest_equal(v->measured[name->first].digest, v->measured[name->first + i].digest);
    return differ;
}

bool lb_shelf_init(lb_shelf *s, const lb_comparison_side *side)
{
    *s = (lb_shelf){.side = side, .list = calloc(side->v->checkpoint->n_pieces + 1u, sizeof *s->list)};
    for (uint32_t i = 0; s->list && i < side->v->n_names; i++) {
        const lb_inventory_name *name = &side->v->names[i];
        const bool shards = is_in_shards(side->v, name);
        if (side->states[i] == LB_COMPARISON_STATE) continue;
        for (uint32_t part = 0; part < (shards ? name->n : 1); part++)
            s->list[s->n++] = (lb_shelf_weight){.row = i, .part = shards ? part : LB_NONE};
    }
    return s->list != NULL;
}

void lb_shelf_release(lb_shelf *s)
{
    for (uint32_t i = 0; s->list && i < s->n; i++)
        if (s->list[i].open) lb_whole_release(&s->list[i].whole);
    free(s->list);
}

const char *lb_shelf_name(const lb_shelf *s, uint32_t i)
{
    return s->side->v->names[s->list[i].row].name;
}

const lb_checkpoint_piece *lb_shelf_piece(const lb_shelf *s, uint32_t i)
{
    const lb_shelf_weight *w = &s->list[i];
    return &s->side->v->checkpoint->pieces[s->side->v->names[w->row].first + (w->part == LB_NONE ? 0 : w->part)];
}

lb_layout lb_shelf_layout(const lb_shelf *s, uint32_t i)
{
    const lb_checkpoint_piece *p = lb_shelf_piece(s, i);
    return s->list[i].part == LB_NONE && p->placed ? p->whole : p->tensor.layout;
}

static lb_status put_together(lb_shelf *s, lb_shelf_weight *w, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const lb_status status = lb_whole_init(s->side->v, &s->side->v->names[w->row], -1, &w->whole, &why);
    if (lb_is_refusal(status) && s->refused.status == LB_OK) s->refused = why;
    return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", why.message);
}

lb_status lb_shelf_open(lb_shelf *s, uint32_t i, lb_err *err)
{
    lb_shelf_weight *w = &s->list[i];
    if (w->open) return LB_OK;
    if (w->part == LB_NONE)
        LB_TRY(put_together(s, w, err));
    else
        w->whole = (lb_whole){lb_shelf_piece(s, i)->tensor, NULL};
    w->open = true;
    return LB_OK;
}

bool lb_shelf_is_pending(const lb_shelf *s, uint32_t i)
{
    return s->side->states[s->list[i].row] == LB_COMPARISON_OPEN;
}

bool lb_shelf_any_pending(const lb_shelf *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (lb_shelf_is_pending(s, i)) return true;
    return false;
}
