/* Which parameters an op serves: see owner.h. Here owners are made, in rounds, and asked. */
#include "program/owner_state.h"

#include "program/foreach_elements.h"

#include <stdlib.h>

/* What one round comes to own, the next one starts from. */
enum { MOST_ROUNDS = 3 };

/* ---- life-cycle ------------------------------------------------------------------------------------------------- */

static lb_status number_nodes(lb_owners *owners, lb_err *err)
{
    const lb_program *program = owners->program;
    owners->first_node = malloc(((size_t)program->n_ops + 1) * sizeof *owners->first_node);
    if (!owners->first_node) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    uint32_t n = 0;
    for (uint32_t i = 0; i < program->n_ops; i++)
        owners->first_node[i] = n, n += lb_foreach_count(program, &program->ops[i]);
    owners->first_node[program->n_ops] = n;
    owners->from = calloc((size_t)n + 1, sizeof *owners->from);
    owners->to = calloc((size_t)n + 1, sizeof *owners->to);
    owners->owner = calloc((size_t)n + 1, sizeof *owners->owner);
    owners->whole = calloc((size_t)program->n_ops + 1, sizeof *owners->whole);
    owners->followed = calloc((size_t)program->n_ops + 1, 1);
    owners->anchors = calloc(owners->flow->n_storages + 1, sizeof *owners->anchors);
    return owners->from && owners->to && owners->owner && owners->whole && owners->followed && owners->anchors
               ? LB_OK
               : lb_fail(err, LB_ERR_NOMEM, "out of memory for the owners of %u ops", program->n_ops);
}

lb_status lb_owners_new(const lb_slice_flow *flow, const lb_program *next, lb_owners **out, lb_err *err)
{
    const lb_program *const programs[2] = {flow->program, next};
    lb_owners *owners = calloc(1, sizeof *owners);
    *out = NULL;
    if (!owners) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    owners->flow = flow, owners->program = flow->program;
    bool any = true;
    lb_status status = lb_owners_list_names(owners, programs, err);
    if (status == LB_OK) status = lb_owner_sets_init(&owners->sets, owners->n_names, err);
    if (status == LB_OK) status = number_nodes(owners, err);
    if (status == LB_OK) status = lb_owners_anchor(owners, programs, err);
    for (int round = 0; round < MOST_ROUNDS && any && status == LB_OK; round++) {
        lb_owners_follow(owners);
        status = lb_owners_adopt(owners, &any, err);
    }
    if (status == LB_OK) lb_owners_take_over_from_next(owners);
    if (status == LB_OK) status = lb_owners_write_texts(owners, err);
    if (status == LB_OK)
        *out = owners;
    else
        lb_owners_free(owners);
    return status;
}

void lb_owners_free(lb_owners *owners)
{
    if (!owners) return;
    for (uint32_t i = 0; i < owners->n_texts; i++) {
        free(owners->texts[i].name);
        free(owners->texts[i].module);
    }
    free(owners->texts);
    lb_owner_sets_release(&owners->sets);
    free(owners->names);
    free(owners->anchors);
    free(owners->first_node);
    free(owners->from);
    free(owners->to);
    free(owners->owner);
    free(owners->whole);
    free(owners->followed);
    free(owners);
}

/* ---- questions -------------------------------------------------------------------------------------------------- */

uint32_t lb_owner_elements(const lb_owners *owners, uint32_t op)
{
    return owners->first_node[op + 1] - owners->first_node[op];
}

uint32_t lb_owner_element(const lb_owners *owners, uint32_t op, uint32_t value)
{
    const uint32_t n = lb_owner_elements(owners, op);
    return n == 1 ? LB_OWNER_WHOLE : lb_foreach_find(owners->program, &owners->program->ops[op], n, value, 0);
}

static uint32_t set_at(const lb_owners *owners, uint32_t op, uint32_t element)
{
    return element < lb_owner_elements(owners, op) ? owners->owner[owners->first_node[op] + element]
                                                   : owners->whole[op];
}

const char *lb_owner_of(const lb_owners *owners, uint32_t op, uint32_t element)
{
    return lb_owners_text(owners, set_at(owners, op, element))->name;
}

const char *lb_owner_module(const lb_owners *owners, uint32_t op, uint32_t element)
{
    const lb_op *row = &owners->program->ops[op];
    if (row->scope && row->phase != LB_PHASE_OPTIMIZER) return lb_op_layer(owners->program, row);
    return lb_owners_text(owners, set_at(owners, op, element))->module;
}

uint32_t lb_owner_count(const lb_owners *owners, uint32_t op, uint32_t element)
{
    return lb_owner_set_count(&owners->sets, set_at(owners, op, element));
}

const char *lb_owner_of_value(const lb_owners *owners, uint32_t value)
{
    return lb_owners_text(owners, owners->anchors[owners->flow->storage_of[value]])->name;
}
