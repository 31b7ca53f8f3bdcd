/* See met_storages.h. */
#include "met_storages.h"

#include <stdlib.h>
#include <string.h>

enum { FEW = 8 };

static int64_t storage_of(const lb_program *p, uint32_t op, uint32_t outcome)
{
    const lb_op *o = &p->ops[op];
    if (outcome >= o->results + o->written) return -1;
    const uint32_t v = lb_op_outcome(p, o, outcome);
    return v == LB_NONE ? -1 : p->values[v].storage;
}

/* What a storage held last counts. */
static bool note(lb_met_storages *met, int64_t first, int64_t second)
{
    for (uint32_t i = met->n; i-- > 0;)
        if (met->list[i][0] == first || met->list[i][1] == second) {
            met->list[i][0] = first, met->list[i][1] = second;
            return true;
        }
    if (met->n == met->room) {
        const uint32_t room = met->room ? 2 * met->room : 64;
        int64_t(*more)[2] = realloc(met->list, room * sizeof *more);
        if (!more) return false;
        met->list = more, met->room = room;
    }
    met->list[met->n][0] = first, met->list[met->n][1] = second;
    met->n++;
    return true;
}

/* In the optimizer alone: that is where states without a name are written, and there are few of them. */
static bool note_node(lb_met_storages *met, const lb_side *a, const lb_side *b, const lb_merged_steps *s, const lb_node *node, bool swapped)
{
    if (node->state != LB_NODE_SAME || node->n[0] != 1 || node->n[1] != 1) return true;
    const uint32_t x = s->ops[node->first[0]], y = s->ops[node->first[1]];
    if (a->program->ops[x].phase != LB_PHASE_OPTIMIZER || !lb_op_computes(a->program, &a->program->ops[x])) return true;
    if (a->program->ops[x].results + a->program->ops[x].written > FEW) return true;
    for (uint32_t i = 0; i < a->program->ops[x].results + a->program->ops[x].written; i++) {
        const int64_t sa = storage_of(a->program, x, i), sb = storage_of(b->program, y, i);
        if (sa >= 0 && sb >= 0 && !note(met, swapped ? sb : sa, swapped ? sa : sb)) return false;
    }
    return true;
}

lb_status lb_met_storages_note(lb_met_storages *met, const lb_side *a, const lb_side *b, const lb_merged_steps *s, bool swapped, lb_err *err)
{
    met->n = 0;
    for (uint32_t i = 0; i < s->merged.n_nodes; i++)
        if (!note_node(met, a, b, s, &s->nodes[i], swapped)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u nodes", s->merged.n_nodes);
    return LB_OK;
}

static uint32_t carried(const lb_program *p, uint32_t op)
{
    if (strcmp(lb_op_name(p, &p->ops[op]), "lb::source") || !p->ops[op].results) return LB_NONE;
    const uint32_t v = lb_op_results(p, &p->ops[op])[0];
    return v != LB_NONE && p->values[v].source == LB_SOURCE_CARRIED && lb_dtype_is_float(p->values[v].dtype) ? v : LB_NONE;
}

static bool is_free(const lb_alignment *al, uint32_t n_ops, uint32_t op_b)
{
    for (uint32_t i = 0; i < n_ops; i++)
        if (al->source_b_of_a[i] == op_b) return false;
    return al->join_of_b[op_b] == LB_NONE;
}

static void pair(const lb_side *a, const lb_side *b, int64_t sb, uint32_t op_a, const lb_value *va, lb_alignment *al)
{
    for (uint32_t j = 0; j < b->program->n_ops; j++) {
        const uint32_t v = carried(b->program, j);
        if (v == LB_NONE || b->program->values[v].storage != sb || !lb_layout_same_shape(&va->layout, &b->program->values[v].layout)) continue;
        if (is_free(al, a->program->n_ops, j)) al->source_b_of_a[op_a] = j;
        return;
    }
}

void lb_met_storages_pair(const lb_met_storages *met, const lb_side *a, const lb_side *b, bool swapped, lb_alignment *al)
{
    for (uint32_t i = 0; met->n && i < a->program->n_ops; i++) {
        const uint32_t v = carried(a->program, i);
        if (v == LB_NONE || al->source_b_of_a[i] != LB_NONE || al->join_of_a[i] != LB_NONE) continue;
        for (uint32_t k = 0; k < met->n; k++)
            if (met->list[k][swapped] == a->program->values[v].storage)
                pair(a, b, met->list[k][!swapped], i, &a->program->values[v], al);
    }
}

void lb_met_storages_release(lb_met_storages *met)
{
    free(met->list);
    *met = (lb_met_storages){0};
}
