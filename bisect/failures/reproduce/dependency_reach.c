/* Forward from the culprit: what it and its cure change, and all that follows from it, through later steps and other
 * ranks. */
#include "reproduce/dependency_parts.h"

#include "program/muon.h"

#include <stdio.h>
#include <string.h>

/* ---- the culprit ------------------------------------------------------------------------------------------------- */

static lb_status seed_muon(const lb_dependency_slice_part *part, const lb_culprit *culprit, lb_err *err)
{
    lb_muon muon;
    LB_TRY(lb_muon_find(part->program, part->flow, &muon, err));
    for (uint32_t s = 0; s < muon.n; s++) {
        const char *owner = lb_program_text(part->program, part->program->scopes[muon.slices[s].scope].path);
        bool same = !strcmp(owner, culprit->layer);
        /* A slice whose owner has no name is known by the culprit's op being in it. */
        for (uint32_t i = 0; i < muon.slices[s].n_ops; i++) same |= !*owner && muon.slices[s].ops[i] == culprit->row;
        for (uint32_t i = 0; i < muon.slices[s].n_ops && same; i++) part->seeded[muon.slices[s].ops[i]] = 1;
    }
    lb_muon_release(&muon);
    return LB_OK;
}

/* The op that gives what the block around this layer returns, LB_NONE where none is seen: a block that is to be skipped
 * must be seen to be one. */
static lb_status block_output(const lb_dependency_slice_part *part, const char *layer, uint32_t *output, lb_err *err)
{
    const lb_program *program = part->program;
    char block[160];
    *output = LB_NONE;
    LB_TRY(lb_dependency_slice_block_around(part, layer, block, sizeof block, err));
    for (uint32_t b = 0; b < program->n_boundaries; b++) {
        const lb_boundary *row = &program->boundaries[b];
        if (!row->output || row->recompute || strcmp(lb_program_text(program, program->scopes[row->scope].path), block))
            continue;
        /* The last op before the boundary that gives the value; a recomputed forward pass gives it
         * once more, and is passed over. */
        for (uint32_t i = row->op; i-- > 0;)
            for (uint32_t r = 0; r < program->ops[i].results; r++)
                if (lb_op_results(program, &program->ops[i])[r] == row->value) {
                    *output = i;
                    return LB_OK;
                }
    }
    return LB_OK;
}

/* The culprit and what its cure changes: for Muon its slices, for a layer its ops of that phase, else the op itself. */
static lb_status seed(lb_dependency_slice_part *part, const lb_culprit *culprit, bool whole_block, lb_err *err)
{
    char layer[160];
    if (culprit->axis == LB_AXIS_MUON) return seed_muon(part, culprit, err);
    /* An op outside the modules is called by the owner of what it serves, and is none of that module's. */
    const char *own = culprit->row < part->program->n_ops
                          ? lb_op_layer(part->program, &part->program->ops[culprit->row])
                          : culprit->layer;
    /* An op of the optimizer is named by the layer whose parameter it updates; seeding that layer
     * would put its whole forward pass into a reproducer of one update. */
    const char *stands = lb_dependency_layer_is_within(own, culprit->layer) ? culprit->layer : own;
    snprintf(layer, sizeof layer, "%s", stands);
    if (whole_block) LB_TRY(lb_dependency_slice_block_around(part, stands, layer, sizeof layer, err));
    /* These causes are cured for a layer at once, and bisecting the program subset cures the same ops
     * again: a layer of which some were left out would be another site. */
    bool layers =
        culprit->axis == LB_AXIS_PRECISION || culprit->axis == LB_AXIS_BLOCK || culprit->axis == LB_AXIS_ORDER;
    /* Skipping a block changes its forward pass, whichever phase showed the fault; without it, the
     * program subset would have no block that could be skipped. */
    bool later = culprit->axis == LB_AXIS_BLOCK && culprit->phase != LB_PHASE_FORWARD;
    if (later) LB_TRY(block_output(part, stands, &part->anchor, err));
    for (uint32_t i = 0; i < part->program->n_ops; i++) {
        const lb_op *op = &part->program->ops[i];
        bool phase = op->phase == culprit->phase || (later && op->phase == LB_PHASE_FORWARD);
        bool inside = layers && phase && lb_dependency_layer_is_within(lb_op_layer(part->program, op), layer) &&
                      strncmp(lb_op_name(part->program, op), "lb::", 4);
        if (i == culprit->row || inside) part->seeded[i] = 1;
    }
    return LB_OK;
}

/* ---- what follows ------------------------------------------------------------------------------------------------ */

/* What an earlier reached op of that rank left in the storage of a carried source. */
static bool reached_before(const lb_dependency_slice *slice, const lb_dependency_slice_part *part, int64_t storage)
{
    for (uint32_t k = 0; k < slice->n && &slice->parts[k] != part; k++) {
        const lb_dependency_slice_part *before = &slice->parts[k];
        if (before->program->rank != part->program->rank) continue;
        uint32_t last;
        for (uint32_t w = lb_dependency_slice_writers_of(before, storage, &last); w < last; w++)
            if (before->reached[before->writers[w].op]) return true;
    }
    return false;
}

/* Carried sources first, then the slice from all that is marked: parts are ordered by step, so that
 * whatever earlier steps left is known when this one is asked. */
static void reach_within(const lb_dependency_slice *slice, lb_dependency_slice_part *part)
{
    const lb_program *program = part->program;
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (!part->reached[i] && lb_op_is_source(program, &program->ops[i]) &&
            lb_dependency_slice_source(program, i)->source == LB_SOURCE_CARRIED)
            part->reached[i] = reached_before(slice, part, lb_dependency_slice_source(program, i)->storage);
    lb_slice_grow(part->flow, false, 0, NULL, part->reached);
}

/* Through collectives to the other members; true when something new was reached.
 * All members of a collective are reached by a fault of one: an all-reduce hands a NaN of rank 1 to
 * every rank, and the failure may be seen first on another. */
static bool reach_across(lb_dependency_slice *slice, const lb_dependency_slice_part *part)
{
    bool more = false;
    for (uint32_t i = 0; i < part->program->n_collectives; i++) {
        const lb_collective *collective = &part->program->collectives[i];
        for (uint32_t k = 0; k < slice->n && part->reached[collective->op]; k++) {
            lb_dependency_slice_part *other = &slice->parts[k];
            if (other->program->step != part->program->step || other == part) continue;
            uint32_t op = lb_dependency_slice_partner(part->program, collective, other->program);
            if (op == LB_NONE || other->reached[op]) continue;
            other->reached[op] = 1, more = true;
        }
    }
    return more;
}

lb_status lb_dependency_slice_reach(lb_dependency_slice *slice, const lb_culprit *culprits, uint32_t n,
                                    bool whole_block, lb_err *err)
{
    for (uint32_t k = 0; k < slice->n; k++)
        memset(slice->parts[k].seeded, 0, slice->parts[k].program->n_ops), slice->parts[k].anchor = LB_NONE;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < slice->n; k++) {
            const lb_program *program = slice->parts[k].program;
            bool here = false;
            for (uint32_t r = 0; r < culprits[i].n_ranks; r++) here |= culprits[i].ranks[r] == program->rank;
            if (here && program->step == culprits[i].step)
                LB_TRY(seed(&slice->parts[k], &culprits[i], whole_block, err));
        }
    for (uint32_t k = 0; k < slice->n; k++)
        /* From here on marks are only ever set, so that the loop below ends: at the latest when all
         * ops are marked, in practice after a round for each collective on the way between ranks. */
        memcpy(slice->parts[k].reached, slice->parts[k].seeded, slice->parts[k].program->n_ops);
    for (bool more = true; more;) {
        more = false;
        for (uint32_t k = 0; k < slice->n; k++) reach_within(slice, &slice->parts[k]);
        for (uint32_t k = 0; k < slice->n; k++) more |= reach_across(slice, &slice->parts[k]);
    }
    return LB_OK;
}
