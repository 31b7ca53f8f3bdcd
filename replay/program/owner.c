/* Which parameters an op serves: see owner.h. Here owners are made, in rounds, and asked. */
#include "program/owner_state.h"

#include "program/foreach_elements.h"

#include <stdlib.h>

/* What one round comes to own, the next one starts from. */
enum { MOST_ROUNDS = 3 };

/* ---- life-cycle ------------------------------------------------------------------------------------------------- */

static lb_status number_nodes(lb_owners *o, lb_err *err)
{
    const lb_program *p = o->program;
    o->first_node = malloc(((size_t)p->n_ops + 1) * sizeof *o->first_node);
    if (!o->first_node) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) o->first_node[i] = n, n += lb_foreach_count(p, &p->ops[i]);
    o->first_node[p->n_ops] = n;
    o->from = calloc((size_t)n + 1, sizeof *o->from);
    o->to = calloc((size_t)n + 1, sizeof *o->to);
    o->owner = calloc((size_t)n + 1, sizeof *o->owner);
    o->whole = calloc((size_t)p->n_ops + 1, sizeof *o->whole);
    o->followed = calloc((size_t)p->n_ops + 1, 1);
    o->anchors = calloc(o->flow->n_storages + 1, sizeof *o->anchors);
    return o->from && o->to && o->owner && o->whole && o->followed && o->anchors
               ? LB_OK
               : lb_fail(err, LB_ERR_NOMEM, "out of memory for the owners of %u ops", p->n_ops);
}

lb_status lb_owners_new(const lb_slice_flow *flow, const lb_program *next, lb_owners **out, lb_err *err)
{
    const lb_program *const programs[2] = {flow->program, next};
    lb_owners *o = calloc(1, sizeof *o);
    *out = NULL;
    if (!o) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    o->flow = flow, o->program = flow->program;
    bool any = true;
    lb_status status = lb_owners_list_names(o, programs, err);
    if (status == LB_OK) status = lb_owner_sets_init(&o->sets, o->n_names, err);
    if (status == LB_OK) status = number_nodes(o, err);
    if (status == LB_OK) status = lb_owners_anchor(o, programs, err);
    for (int round = 0; round < MOST_ROUNDS && any && status == LB_OK; round++) {
        lb_owners_follow(o);
        status = lb_owners_adopt(o, &any, err);
    }
    if (status == LB_OK) lb_owners_take_over_from_next(o);
    if (status == LB_OK) status = lb_owners_write_texts(o, err);
    if (status == LB_OK)
        *out = o;
    else
        lb_owners_free(o);
    return status;
}

void lb_owners_free(lb_owners *o)
{
    if (!o) return;
    for (uint32_t i = 0; i < o->n_texts; i++) {
        free(o->texts[i].name);
        free(o->texts[i].module);
    }
    free(o->texts);
    lb_owner_sets_release(&o->sets);
    free(o->names);
    free(o->anchors);
    free(o->first_node);
    free(o->from);
    free(o->to);
    free(o->owner);
    free(o->whole);
    free(o->followed);
    free(o);
}

/* ---- questions -------------------------------------------------------------------------------------------------- */

uint32_t lb_owner_elements(const lb_owners *o, uint32_t op)
{
    return o->first_node[op + 1] - o->first_node[op];
}

uint32_t lb_owner_element(const lb_owners *o, uint32_t op, uint32_t value)
{
    const uint32_t n = lb_owner_elements(o, op);
    return n == 1 ? LB_OWNER_WHOLE : lb_foreach_find(o->program, &o->program->ops[op], n, value, 0);
}

static uint32_t set_at(const lb_owners *o, uint32_t op, uint32_t element)
{
    return element < lb_owner_elements(o, op) ? o->owner[o->first_node[op] + element] : o->whole[op];
}

const char *lb_owner_of(const lb_owners *o, uint32_t op, uint32_t element)
{
    return lb_owners_text(o, set_at(o, op, element))->name;
}

const char *lb_owner_module(const lb_owners *o, uint32_t op, uint32_t element)
{
    const lb_op *row = &o->program->ops[op];
    if (row->scope && row->phase != LB_PHASE_OPTIMIZER) return lb_op_layer(o->program, row);
    return lb_owners_text(o, set_at(o, op, element))->module;
}

uint32_t lb_owner_count(const lb_owners *o, uint32_t op, uint32_t element)
{
    return lb_owner_set_count(&o->sets, set_at(o, op, element));
}

const char *lb_owner_of_value(const lb_owners *o, uint32_t value)
{
    return lb_owners_text(o, o->anchors[o->flow->storage_of[value]])->name;
}
