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
    lb_owners *owners;
    uint32_t op, element, node;
    void (*visit)(const struct reader *reader, uint32_t value);
} reader;

static void visit_value(void *context, uint32_t value)
{
    const reader *reader = context;
    reader->visit(reader, value);
}

static void each_read(const reader *reader)
{
    lb_foreach_each_input(reader->owners->program, &reader->owners->program->ops[reader->op],
                          lb_owner_elements(reader->owners, reader->op), reader->element, visit_value, (void *)reader);
}

/* The nodes of op `def` that wrote what is read as `value`: one, or all. */
static void nodes_that_wrote(const lb_owners *owners, uint32_t def, uint32_t value, uint32_t guess, uint32_t *first,
                             uint32_t *last)
{
    const uint32_t e =
        lb_foreach_find(owners->program, &owners->program->ops[def], lb_owner_elements(owners, def), value, guess);
    *first = owners->first_node[def] + (e == LB_ELEMENT_ALL ? 0 : e);
    *last = e == LB_ELEMENT_ALL ? owners->first_node[def + 1] : *first + 1;
}

static bool has_one_owner(const lb_owners *owners, uint32_t value)
{
    return lb_owner_set_count(&owners->sets, owners->anchors[owners->flow->storage_of[value]]) == 1;
}

static void take_from(const reader *reader, uint32_t value)
{
    lb_owners *owners = reader->owners;
    uint32_t defs[16], *into = &owners->from[reader->node], n = 0;
    if (!has_one_owner(owners, value)) n = lb_slice_flow_defs_of(owners->flow, reader->op, value, defs, 16);
    bool inside = false;
    for (uint32_t d = 0; d < n && d < 16; d++) {
        uint32_t first, last;
        if (!owners->followed[defs[d]]) continue;
        inside = true;
        nodes_that_wrote(owners, defs[d], value, reader->element, &first, &last);
        for (uint32_t k = first; k < last; k++) lb_owners_join(owners, into, owners->from[k]);
    }
    if (!inside) lb_owners_join(owners, into, owners->anchors[owners->flow->storage_of[value]]);
}

static void give_to(const reader *reader, uint32_t value)
{
    lb_owners *owners = reader->owners;
    uint32_t defs[16];
    if (has_one_owner(owners, value)) return;
    const uint32_t n = lb_slice_flow_defs_of(owners->flow, reader->op, value, defs, 16);
    for (uint32_t d = 0; d < n && d < 16; d++) {
        uint32_t first, last;
        nodes_that_wrote(owners, defs[d], value, reader->element, &first, &last);
        for (uint32_t k = first; k < last; k++) lb_owners_join(owners, &owners->to[k], owners->to[reader->node]);
    }
}

/* Owners of what an op writes: `single` those of storages with one, else of the others. */
static void join_written(lb_owners *owners, uint32_t i, bool single, uint32_t *sets)
{
    const lb_op *op = &owners->program->ops[i];
    if (!lb_slice_op_defines(owners->program, op)) return;
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        const bool result = r < op->results;
        const uint32_t v =
            result ? lb_op_results(owners->program, op)[r] : lb_op_written(owners->program, op)[r - op->results];
        if (v == LB_NONE || has_one_owner(owners, v) != single) continue;
        const uint32_t set = owners->anchors[owners->flow->storage_of[v]], n = lb_owner_elements(owners, i);
        const uint32_t e = set ? lb_foreach_find(owners->program, op, n, v, result ? r : r - op->results) : 0;
        if (!set) continue;
        for (uint32_t k = e == LB_ELEMENT_ALL ? 0 : e; k < (e == LB_ELEMENT_ALL ? n : e + 1); k++)
            if (single || !sets[owners->first_node[i] + k])
                lb_owners_join(owners, &sets[owners->first_node[i] + k], set);
    }
}

static bool stands_outside(const lb_op *op)
{
    return op->phase == LB_PHASE_OPTIMIZER || op->phase == LB_PHASE_COMMUNICATION || !op->scope;
}

static void follow_flows(lb_owners *owners)
{
    const lb_program *program = owners->program;
    memset(owners->to, 0, owners->first_node[program->n_ops] * sizeof *owners->to);
    memset(owners->from, 0, owners->first_node[program->n_ops] * sizeof *owners->from);
    for (uint32_t i = program->n_ops; i-- > 0;) {
        if (!stands_outside(&program->ops[i])) continue;
        bool flows = program->ops[i].phase == LB_PHASE_OPTIMIZER || program->ops[i].phase == LB_PHASE_COMMUNICATION;
        join_written(owners, i, true, owners->to);
        join_written(owners, i, false, owners->to);
        for (uint32_t k = owners->first_node[i]; k < owners->first_node[i + 1]; k++) {
            const reader reader = {owners, i, k - owners->first_node[i], k, give_to};
            flows |= owners->to[k] != 0;
            if (owners->to[k]) each_read(&reader);
        }
        owners->followed[i] = flows;
    }
    for (uint32_t i = 0; i < program->n_ops; i++)
        for (uint32_t k = owners->first_node[i]; owners->followed[i] && k < owners->first_node[i + 1]; k++) {
            const reader reader = {owners, i, k - owners->first_node[i], k, take_from};
            each_read(&reader);
        }
}

/* What a single op touches, where no flow is followed: what it writes, else what it reads, that has one owner. */
static void touch(const reader *reader, uint32_t value)
{
    if (has_one_owner(reader->owners, value))
        lb_owners_join(reader->owners, &reader->owners->owner[reader->node],
                       reader->owners->anchors[reader->owners->flow->storage_of[value]]);
}

static void touch_results(lb_owners *owners, uint32_t i)
{
    const lb_op *op = &owners->program->ops[i];
    for (uint32_t r = 0; r < op->results && op->flags & LB_OP_VIEW; r++) {
        const reader at = {owners, i, 0, owners->first_node[i], NULL};
        if (lb_op_results(owners->program, op)[r] != LB_NONE) touch(&at, lb_op_results(owners->program, op)[r]);
    }
    join_written(owners, i, true, owners->owner);
}

/* A view that ends in no fixed point is of whose contents it shows. */
static void take_shown(const reader *reader, uint32_t value)
{
    lb_owners *owners = reader->owners;
    uint32_t def, first, last;
    if (!lb_slice_flow_defs_of(owners->flow, reader->op, value, &def, 1)) return;
    nodes_that_wrote(owners, def, value, 0, &first, &last);
    for (uint32_t k = first; k < last; k++) lb_owners_join(owners, &owners->owner[reader->node], owners->owner[k]);
}

/* What left the tensors (a rate that became a Python number) comes back in the op that is called next. */
void lb_owners_take_over_from_next(lb_owners *owners)
{
    uint32_t next = 0;
    for (uint32_t i = owners->program->n_ops; i-- > 0;) {
        uint32_t whole = 0;
        if (owners->program->ops[i].phase != LB_PHASE_OPTIMIZER) continue;
        for (uint32_t k = owners->first_node[i]; k < owners->first_node[i + 1]; k++) {
            if (!owners->owner[k]) owners->owner[k] = next;
            lb_owners_join(owners, &whole, owners->owner[k]);
        }
        if (whole) next = whole;
    }
}

static void choose(lb_owners *owners)
{
    for (uint32_t i = 0; i < owners->program->n_ops; i++) {
        for (uint32_t k = owners->first_node[i]; k < owners->first_node[i + 1]; k++) {
            const uint32_t to = owners->to[k], from = owners->from[k];
            const reader r = {owners, i, k - owners->first_node[i], k, touch};
            owners->owner[k] = 0;
            if (owners->followed[i])
                owners->owner[k] =
                    to && (lb_owner_set_count(&owners->sets, to) == 1 || lb_owner_set_count(&owners->sets, from) != 1)
                        ? to
                        : from;
            if (!owners->owner[k] && k == owners->first_node[i]) touch_results(owners, i);
            if (!owners->owner[k]) each_read(&r);
            const reader shown = {owners, i, 0, k, take_shown};
            if (!owners->owner[k] && owners->program->ops[i].flags & LB_OP_VIEW &&
                stands_outside(&owners->program->ops[i]))
                each_read(&shown);
        }
    }
}

void lb_owners_follow(lb_owners *owners)
{
    follow_flows(owners);
    choose(owners);
}

/* ---- storages without a name ------------------------------------------------------------------------------------ */

/* Storages that came in from before and have no owner. */
static void mark_strangers(const lb_owners *owners, bool *stranger)
{
    const lb_program *program = owners->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!lb_op_is_source(program, &program->ops[i]) || !program->ops[i].results) continue;
        const lb_value *value = &program->values[lb_op_results(program, &program->ops[i])[0]];
        const uint32_t s = owners->flow->storage_of[lb_op_results(program, &program->ops[i])[0]];
        stranger[s] = !owners->anchors[s] && value->source != LB_SOURCE_BATCH && value->source != LB_SOURCE_RANDOM;
    }
}

/* Whose numbers the followed ops write there; true when some storage has an owner that it had not. */
lb_status lb_owners_adopt(lb_owners *owners, bool *any, lb_err *err)
{
    const lb_program *program = owners->program;
    bool *stranger = calloc(owners->flow->n_storages + 1, sizeof *stranger);
    uint32_t *sets = calloc(owners->flow->n_storages + 1, sizeof *sets);
    *any = false;
    if (stranger && sets) mark_strangers(owners, stranger);
    for (uint32_t i = 0; i < program->n_ops && stranger && sets; i++) {
        const lb_op *op = &program->ops[i];
        for (uint32_t w = 0; w < op->written; w++) {
            const uint32_t v = lb_op_written(program, op)[w];
            if (v == LB_NONE || !stranger[owners->flow->storage_of[v]] || !stands_outside(op)) continue;
            uint32_t first, last;
            nodes_that_wrote(owners, i, v, w, &first, &last);
            for (uint32_t k = first; k < last; k++)
                lb_owners_join(owners, &sets[owners->flow->storage_of[v]], owners->owner[k]);
        }
    }
    for (uint32_t s = 0; s < owners->flow->n_storages && stranger && sets; s++)
        if (sets[s]) owners->anchors[s] = sets[s], *any = true;
    const bool ok = stranger && sets;
    free(stranger);
    free(sets);
    return ok && !owners->sets.failed ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}
