/* Whose an element of an op is, by where its result goes and what it is made of.
 *
 * Nodes are elements of ops. `from` is filled in order of execution (what a node is made of), `to` against it (where
 * its result goes); both are cut at storages that have one owner. Storages that come to be owned by these rules begin
 * the next round. */
#include "program/owner_state.h"

#include "program/foreach_elements.h"

#include <stdlib.h>
#include <string.h>

/* ---- flows ------------------------------------------------------------------------------------------------------ */

/* One thing to do with every value that an element reads. */
typedef struct reader {
    lb_owners *o;
    uint32_t op, element, node;
    void (*visit)(const struct reader *reader, uint32_t value);
} reader;

static void visit_value(void *context, uint32_t value)
{
    const reader *r = context;
    r->visit(r, value);
}

static void each_read(const reader *r)
{
    lb_foreach_each_input(r->o->program, &r->o->program->ops[r->op], lb_owner_elements(r->o, r->op), r->element,
                          visit_value, (void *)r);
}

/* The nodes of op `def` that wrote what is read as `value`: one, or all. */
static void nodes_that_wrote(const lb_owners *o, uint32_t def, uint32_t value, uint32_t guess, uint32_t *first,
                             uint32_t *last)
{
    const uint32_t e = lb_foreach_find(o->program, &o->program->ops[def], lb_owner_elements(o, def), value, guess);
    *first = o->first_node[def] + (e == LB_ELEMENT_ALL ? 0 : e);
    *last = e == LB_ELEMENT_ALL ? o->first_node[def + 1] : *first + 1;
}

static bool has_one_owner(const lb_owners *o, uint32_t value)
{
    return lb_owner_set_count(&o->sets, o->anchors[o->flow->storage_of[value]]) == 1;
}

static void take_from(const reader *r, uint32_t value)
{
    lb_owners *o = r->o;
    uint32_t defs[16], *into = &o->from[r->node], n = 0;
    if (!has_one_owner(o, value)) n = lb_slice_flow_defs_of(o->flow, r->op, value, defs, 16);
    bool inside = false;
    for (uint32_t d = 0; d < n && d < 16; d++) {
        uint32_t first, last;
        if (!o->followed[defs[d]]) continue;
        inside = true;
        nodes_that_wrote(o, defs[d], value, r->element, &first, &last);
        for (uint32_t k = first; k < last; k++) lb_owners_join(o, into, o->from[k]);
    }
    if (!inside) lb_owners_join(o, into, o->anchors[o->flow->storage_of[value]]);
}

static void give_to(const reader *r, uint32_t value)
{
    lb_owners *o = r->o;
    uint32_t defs[16];
    if (has_one_owner(o, value)) return;
    const uint32_t n = lb_slice_flow_defs_of(o->flow, r->op, value, defs, 16);
    for (uint32_t d = 0; d < n && d < 16; d++) {
        uint32_t first, last;
        nodes_that_wrote(o, defs[d], value, r->element, &first, &last);
        for (uint32_t k = first; k < last; k++) lb_owners_join(o, &o->to[k], o->to[r->node]);
    }
}

/* Owners of what an op writes: `single` those of storages with one, else of the others. */
static void join_written(lb_owners *o, uint32_t i, bool single, uint32_t *sets)
{
    const lb_op *op = &o->program->ops[i];
    if (!lb_slice_op_defines(o->program, op)) return;
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        const bool result = r < op->results;
        const uint32_t v = result ? lb_op_results(o->program, op)[r] : lb_op_written(o->program, op)[r - op->results];
        if (v == LB_NONE || has_one_owner(o, v) != single) continue;
        const uint32_t set = o->anchors[o->flow->storage_of[v]], n = lb_owner_elements(o, i);
        const uint32_t e = set ? lb_foreach_find(o->program, op, n, v, result ? r : r - op->results) : 0;
        if (!set) continue;
        for (uint32_t k = e == LB_ELEMENT_ALL ? 0 : e; k < (e == LB_ELEMENT_ALL ? n : e + 1); k++)
            if (single || !sets[o->first_node[i] + k]) lb_owners_join(o, &sets[o->first_node[i] + k], set);
    }
}

static bool stands_outside(const lb_op *op)
{
    return op->phase == LB_PHASE_OPTIMIZER || op->phase == LB_PHASE_COMMUNICATION || !op->scope;
}

static void follow_flows(lb_owners *o)
{
    const lb_program *p = o->program;
    memset(o->to, 0, o->first_node[p->n_ops] * sizeof *o->to);
    memset(o->from, 0, o->first_node[p->n_ops] * sizeof *o->from);
    for (uint32_t i = p->n_ops; i-- > 0;) {
        if (!stands_outside(&p->ops[i])) continue;
        bool flows = p->ops[i].phase == LB_PHASE_OPTIMIZER || p->ops[i].phase == LB_PHASE_COMMUNICATION;
        join_written(o, i, true, o->to);
        join_written(o, i, false, o->to);
        for (uint32_t k = o->first_node[i]; k < o->first_node[i + 1]; k++) {
            const reader r = {o, i, k - o->first_node[i], k, give_to};
            flows |= o->to[k] != 0;
            if (o->to[k]) each_read(&r);
        }
        o->followed[i] = flows;
    }
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t k = o->first_node[i]; o->followed[i] && k < o->first_node[i + 1]; k++) {
            const reader r = {o, i, k - o->first_node[i], k, take_from};
            each_read(&r);
        }
}

/* What a single op touches, where no flow is followed: what it writes, else what it reads, that has one owner. */
static void touch(const reader *r, uint32_t value)
{
    if (has_one_owner(r->o, value))
        lb_owners_join(r->o, &r->o->owner[r->node], r->o->anchors[r->o->flow->storage_of[value]]);
}

static void touch_results(lb_owners *o, uint32_t i)
{
    const lb_op *op = &o->program->ops[i];
    for (uint32_t r = 0; r < op->results && op->flags & LB_OP_VIEW; r++) {
        const reader at = {o, i, 0, o->first_node[i], NULL};
        if (lb_op_results(o->program, op)[r] != LB_NONE) touch(&at, lb_op_results(o->program, op)[r]);
    }
    join_written(o, i, true, o->owner);
}

/* A view that ends in no fixed point is of whose contents it shows. */
static void take_shown(const reader *r, uint32_t value)
{
    lb_owners *o = r->o;
    uint32_t def, first, last;
    if (!lb_slice_flow_defs_of(o->flow, r->op, value, &def, 1)) return;
    nodes_that_wrote(o, def, value, 0, &first, &last);
    for (uint32_t k = first; k < last; k++) lb_owners_join(o, &o->owner[r->node], o->owner[k]);
}

/* What left the tensors (a rate that became a Python number) comes back in the op that is called next. */
void lb_owners_take_over_from_next(lb_owners *o)
{
    uint32_t next = 0;
    for (uint32_t i = o->program->n_ops; i-- > 0;) {
        uint32_t whole = 0;
        if (o->program->ops[i].phase != LB_PHASE_OPTIMIZER) continue;
        for (uint32_t k = o->first_node[i]; k < o->first_node[i + 1]; k++) {
            if (!o->owner[k]) o->owner[k] = next;
            lb_owners_join(o, &whole, o->owner[k]);
        }
        if (whole) next = whole;
    }
}

static void choose(lb_owners *o)
{
    for (uint32_t i = 0; i < o->program->n_ops; i++) {
        for (uint32_t k = o->first_node[i]; k < o->first_node[i + 1]; k++) {
            const uint32_t to = o->to[k], from = o->from[k];
            const reader r = {o, i, k - o->first_node[i], k, touch};
            o->owner[k] = 0;
            if (o->followed[i])
                o->owner[k] = to && (lb_owner_set_count(&o->sets, to) == 1 || lb_owner_set_count(&o->sets, from) != 1)
                                  ? to
                                  : from;
            if (!o->owner[k] && k == o->first_node[i]) touch_results(o, i);
            if (!o->owner[k]) each_read(&r);
            const reader shown = {o, i, 0, k, take_shown};
            if (!o->owner[k] && o->program->ops[i].flags & LB_OP_VIEW && stands_outside(&o->program->ops[i]))
                each_read(&shown);
        }
    }
}

void lb_owners_follow(lb_owners *o)
{
    follow_flows(o);
    choose(o);
}

/* ---- storages without a name ------------------------------------------------------------------------------------ */

/* Storages that came in from before and have no owner. */
static void mark_strangers(const lb_owners *o, bool *stranger)
{
    const lb_program *p = o->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!lb_op_is_source(p, &p->ops[i]) || !p->ops[i].results) continue;
        const lb_value *v = &p->values[lb_op_results(p, &p->ops[i])[0]];
        const uint32_t s = o->flow->storage_of[lb_op_results(p, &p->ops[i])[0]];
        stranger[s] = !o->anchors[s] && v->source != LB_SOURCE_BATCH && v->source != LB_SOURCE_RANDOM;
    }
}

/* Whose numbers the followed ops write there; true when some storage has an owner that it had not. */
lb_status lb_owners_adopt(lb_owners *o, bool *any, lb_err *err)
{
    const lb_program *p = o->program;
    bool *stranger = calloc(o->flow->n_storages + 1, sizeof *stranger);
    uint32_t *sets = calloc(o->flow->n_storages + 1, sizeof *sets);
    *any = false;
    if (stranger && sets) mark_strangers(o, stranger);
    for (uint32_t i = 0; i < p->n_ops && stranger && sets; i++) {
        const lb_op *op = &p->ops[i];
        for (uint32_t w = 0; w < op->written; w++) {
            const uint32_t v = lb_op_written(p, op)[w];
            if (v == LB_NONE || !stranger[o->flow->storage_of[v]] || !stands_outside(op)) continue;
            uint32_t first, last;
            nodes_that_wrote(o, i, v, w, &first, &last);
            for (uint32_t k = first; k < last; k++) lb_owners_join(o, &sets[o->flow->storage_of[v]], o->owner[k]);
        }
    }
    for (uint32_t s = 0; s < o->flow->n_storages && stranger && sets; s++)
        if (sets[s]) o->anchors[s] = sets[s], *any = true;
    const bool ok = stranger && sets;
    free(stranger);
    free(sets);
    return ok && !o->sets.failed ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}
