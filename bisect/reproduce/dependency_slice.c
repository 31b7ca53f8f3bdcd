/* Cones: see dependency_slice.h.
 * What lies between a culprit and a failure is the intersection of a forward slice from the one
 * with a backward slice from the other: a chop (Jackson and Rollins 1994), over recorded executions
 * of several steps and ranks at once.
 *
 *      culprit ─▶ forward: reached[] ──┐
 *                                      ├─▶ kept; what kept ops read besides becomes a source
 *      failure ─▶ backward ────────────┘
 *
 * A slice alone proves nothing: it holds what may matter, and whether the program subset still fails alike
 * is decided by bisecting it (shrink.c). So a doubt here is settled by keeping less; the larger
 * candidates come after. */
#include "dependency_slice.h"

#include "block.h"
#include "muon.h"

#include <lastbit/array.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const lb_value *source_value(const lb_program *p, uint32_t op)
{
    return &p->values[lb_op_results(p, &p->ops[op])[0]];
}

/* Storages outlive steps while values are numbered anew in each: what a step left for the next is
 * found by storage, in a sorted list, since a scan of each earlier step for each source would be
 * quadratic. */
static int by_storage(const void *a, const void *b)
{
    const lb_dependency_slice_writer *x = a, *y = b;
    if (x->storage != y->storage) return x->storage < y->storage ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

static lb_status list_writers(lb_dependency_slice_part *t, lb_err *err)
{
    const lb_program *p = t->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (op->flags & LB_OP_VIEW) continue;
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            uint32_t v = lb_op_outcome(p, op, r);
            if (v == LB_NONE) continue;
            lb_dependency_slice_writer *more = lb_array_grow(t->writers, t->n_writers, sizeof *more);
            if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            t->writers = more;
            t->writers[t->n_writers++] = (lb_dependency_slice_writer){p->values[v].storage, i};
        }
    }
    if (t->n_writers) qsort(t->writers, t->n_writers, sizeof *t->writers, by_storage);
    return LB_OK;
}

/* The ops that write a storage: rows [first, last) of writers. */
static uint32_t find_writers(const lb_dependency_slice_part *t, int64_t storage, uint32_t *last)
{
    uint32_t low = 0, high = t->n_writers;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (t->writers[mid].storage < storage)
            low = mid + 1;
        else
            high = mid;
    }
    for (*last = low; *last < t->n_writers && t->writers[*last].storage == storage; ++*last) continue;
    return low;
}

lb_status lb_dependency_slice_init(lb_dependency_slice *slice, lb_bisect_session *q, int64_t first_step, lb_err *err)
{
    *slice = (lb_dependency_slice){.q = q};
    slice->parts = calloc((size_t)q->n_steps * q->n_ranks + 1, sizeof *slice->parts);
    if (!slice->parts) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < q->n_steps; s++)
        for (uint32_t r = 0; r < q->n_ranks; r++) {
            const lb_program *p = lb_bisect_session_program(q, q->ranks[r], q->steps[s]);
            /* Steps behind the failure cannot have led to it. */
            if (!p || q->steps[s] < first_step || q->steps[s] > q->failure.step) continue;
            lb_dependency_slice_part *t = &slice->parts[slice->n++];
            t->program = p;
            t->wanted = -1;
            t->anchor = LB_NONE;
            t->seeded = calloc((size_t)p->n_ops + 1, 1);
            t->reached = calloc((size_t)p->n_ops + 1, 1);
            t->pass = calloc((size_t)p->n_ops + 1, 1);
            t->fates = calloc((size_t)p->n_ops + 1, 1);
            if (!t->seeded || !t->reached || !t->pass || !t->fates) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            LB_TRY(lb_flow_new(p, &t->flow, err));
            LB_TRY(list_writers(t, err));
        }
    return LB_OK;
}

void lb_dependency_slice_release(lb_dependency_slice *slice)
{
    for (uint32_t k = 0; k < slice->n; k++) {
        lb_flow_free(slice->parts[k].flow);
        free(slice->parts[k].writers);
        free(slice->parts[k].seeded);
        free(slice->parts[k].reached);
        free(slice->parts[k].pass);
        free(slice->parts[k].fates);
    }
    free(slice->parts);
    *slice = (lb_dependency_slice){0};
}

/* ---- forward ------------------------------------------------------------------------------------------------------ */

static lb_status seed_muon(const lb_dependency_slice_part *t, const lb_culprit *c, lb_err *err)
{
    lb_muon muon;
    LB_TRY(lb_muon_find(t->program, t->flow, &muon, err));
    for (uint32_t s = 0; s < muon.n; s++) {
        const char *owner = lb_program_text(t->program, t->program->scopes[muon.slices[s].scope].path);
        bool same = !strcmp(owner, c->layer);
        /* A slice whose owner has no name is known by the culprit's op being in it. */
        for (uint32_t i = 0; i < muon.slices[s].n_ops; i++) same |= !*owner && muon.slices[s].ops[i] == c->row;
        for (uint32_t i = 0; i < muon.slices[s].n_ops && same; i++) t->seeded[muon.slices[s].ops[i]] = 1;
    }
    lb_muon_release(&muon);
    return LB_OK;
}

static bool path_within(const char *path, const char *layer)
{
    size_t n = strlen(layer);
    /* The dot matters: layers.1 is no part of layers.10. */
    return n && !strncmp(path, layer, n) && (!path[n] || path[n] == '.');
}

/* Path of the residual block around a layer; the layer itself when there is none. */
static void block_around(const lb_dependency_slice_part *t, const char *layer, char *path, size_t size)
{
    lb_blocks blocks;
    snprintf(path, size, "%s", layer);
    if (lb_blocks_find(t->program, t->flow, &blocks, NULL) != LB_OK) return;
    for (uint32_t i = 0; i < blocks.n; i++) {
        const char *block = lb_program_text(t->program, t->program->scopes[blocks.rows[i].scope].path);
        if (path_within(layer, block)) snprintf(path, size, "%s", block);
    }
    lb_blocks_release(&blocks);
}

/* The op that gives what the block around this layer returns: a block that is to be skipped must be seen to be one. */
static uint32_t block_output(const lb_dependency_slice_part *t, const char *layer)
{
    const lb_program *p = t->program;
    char block[160];
    block_around(t, layer, block, sizeof block);
    for (uint32_t b = 0; b < p->n_boundaries; b++) {
        const lb_boundary *row = &p->boundaries[b];
        if (!row->output || row->recompute || strcmp(lb_program_text(p, p->scopes[row->scope].path), block)) continue;
        /* The last op before the boundary that gives the value; a recomputed forward pass gives it
         * once more, and is passed over. */
        for (uint32_t i = row->op; i-- > 0;)
            for (uint32_t r = 0; r < p->ops[i].results; r++)
                if (lb_op_results(p, &p->ops[i])[r] == row->value) return i;
    }
    return LB_NONE;
}

/* The culprit and what its cure changes: for Muon its slices, for a layer its ops of that phase, else the op itself. */
static lb_status seed(lb_dependency_slice_part *t, const lb_culprit *c, bool whole_block, lb_err *err)
{
    char layer[160];
    if (c->axis == LB_AXIS_MUON) return seed_muon(t, c, err);
    /* An op outside the modules is called by the owner of what it serves, and is none of that module's. */
    const char *own = c->row < t->program->n_ops ? lb_op_layer(t->program, &t->program->ops[c->row]) : c->layer;
    /* An op of the optimizer is named by the layer whose parameter it updates; seeding that layer
     * would put its whole forward pass into a reproducer of one update. */
    const char *stands = path_within(own, c->layer) ? c->layer : own;
    snprintf(layer, sizeof layer, "%s", stands);
    if (whole_block) block_around(t, stands, layer, sizeof layer);
    /* These causes are cured for a layer at once, and bisecting the program subset cures the same ops
     * again: a layer of which some were left out would be another site. */
    bool layers = c->axis == LB_AXIS_PRECISION || c->axis == LB_AXIS_BLOCK || c->axis == LB_AXIS_ORDER;
    /* Skipping a block changes its forward pass, whichever phase showed the fault; without it, the
     * program subset would have no block that could be skipped. */
    bool later = c->axis == LB_AXIS_BLOCK && c->phase != LB_PHASE_FORWARD;
    if (later) t->anchor = block_output(t, stands);
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        const lb_op *op = &t->program->ops[i];
        bool phase = op->phase == c->phase || (later && op->phase == LB_PHASE_FORWARD);
        bool inside = layers && phase && path_within(lb_op_layer(t->program, op), layer) &&
                      strncmp(lb_op_name(t->program, op), "lb::", 4);
        if (i == c->row || inside) t->seeded[i] = 1;
    }
    return LB_OK;
}

static const lb_collective *collective_of(const lb_program *p, uint32_t op)
{
    for (uint32_t i = 0; i < p->n_collectives; i++)
        if (p->collectives[i].op == op) return &p->collectives[i];
    return NULL;
}

/* The op with which `other` takes part in that collective, LB_NONE when it does not. */
static uint32_t partner(const lb_program *p, const lb_collective *c, const lb_program *other)
{
    for (uint32_t i = 0; i < other->n_collectives; i++)
        /* A group counts its collectives in one order on all members; names of ops and places in
         * the program differ between ranks. */
        if (other->collectives[i].sequence == c->sequence &&
            !strcmp(lb_program_text(other, other->collectives[i].group), lb_program_text(p, c->group)))
            return other->collectives[i].op;
    return LB_NONE;
}

/* What an earlier reached op of that rank left in the storage of a carried source. */
static bool reached_before(const lb_dependency_slice *slice, const lb_dependency_slice_part *t, int64_t storage)
{
    for (uint32_t k = 0; k < slice->n && &slice->parts[k] != t; k++) {
        const lb_dependency_slice_part *before = &slice->parts[k];
        if (before->program->rank != t->program->rank) continue;
        uint32_t last;
        for (uint32_t w = find_writers(before, storage, &last); w < last; w++)
            if (before->reached[before->writers[w].op]) return true;
    }
    return false;
}

/* Carried sources first, then the slice from all that is marked: parts are ordered by step, so that
 * whatever earlier steps left is known when this one is asked. */
static void reach_within(const lb_dependency_slice *slice, lb_dependency_slice_part *t)
{
    const lb_program *p = t->program;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (!t->reached[i] && lb_op_is_source(p, &p->ops[i]) && source_value(p, i)->source == LB_SOURCE_CARRIED)
            t->reached[i] = reached_before(slice, t, source_value(p, i)->storage);
    lb_slice_grow(t->flow, false, 0, NULL, t->reached);
}

/* Through collectives to the other members; true when something new was reached.
 * All members of a collective are reached by a fault of one: an all-reduce hands a NaN of rank 1 to
 * every rank, and the failure may be seen first on another. */
static bool reach_across(lb_dependency_slice *slice, const lb_dependency_slice_part *t)
{
    bool more = false;
    for (uint32_t i = 0; i < t->program->n_collectives; i++) {
        const lb_collective *c = &t->program->collectives[i];
        for (uint32_t k = 0; k < slice->n && t->reached[c->op]; k++) {
            lb_dependency_slice_part *other = &slice->parts[k];
            if (other->program->step != t->program->step || other == t) continue;
            uint32_t op = partner(t->program, c, other->program);
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
            const lb_program *p = slice->parts[k].program;
            bool here = false;
            for (uint32_t r = 0; r < culprits[i].n_ranks; r++) here |= culprits[i].ranks[r] == p->rank;
            if (here && p->step == culprits[i].step) LB_TRY(seed(&slice->parts[k], &culprits[i], whole_block, err));
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

/* ---- backward ----------------------------------------------------------------------------------------------------- */

/* What op i of a part reads from: of one that is passed, from the argument that goes on. */
static uint32_t defs_of(const lb_dependency_slice_part *t, uint32_t i, const uint32_t **defs, uint32_t *own,
                        uint32_t room)
{
    if (t->pass[i]) {
        uint32_t value = lb_op_args(t->program, &t->program->ops[i])[t->pass[i] - 1].u.value;
        uint32_t n = lb_flow_defs_of(t->flow, i, value, own, room);
        *defs = own;
        /* The count goes on beyond what was stored, and only what was stored may be read. */
        return n < room ? n : room;
    }
    *defs = t->flow->defs + t->flow->first_def[i];
    return t->flow->first_def[i + 1] - t->flow->first_def[i];
}

static bool keep(lb_dependency_slice_part *t, uint32_t op)
{
    /* The answer says whether something is new: the fixed point of select_from stops by it. */
    if (t->fates[op] == LB_PROGRAM_SUBSET_KEEP) return false;
    t->fates[op] = LB_PROGRAM_SUBSET_KEEP;
    t->used = true;
    return true;
}

/* Definitions come before their readers: one pass downwards. */
static void keep_within(lb_dependency_slice_part *t)
{
    uint32_t own[64];
    const uint32_t *defs;
    for (uint32_t i = t->program->n_ops; i-- > 0;) {
        if (t->fates[i] != LB_PROGRAM_SUBSET_KEEP) continue;
        uint32_t n = defs_of(t, i, &defs, own, 64);
        for (uint32_t e = 0; e < n; e++)
            /* This is the intersection: going back from the failure, only what the culprit reaches
             * is kept. All else that kept ops read has the same bytes with and without the fault,
             * and is recorded as a source. */
            if (t->reached[defs[e]]) keep(t, defs[e]);
    }
}

/* Kept sources that an earlier step left, kept collectives of other ranks; true when something new is kept. */
static bool keep_across(lb_dependency_slice *slice, lb_dependency_slice_part *t)
{
    bool more = false;
    const lb_program *p = t->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (t->fates[i] != LB_PROGRAM_SUBSET_KEEP) continue;
        const lb_collective *c = p->ops[i].flags & LB_OP_COLLECTIVE ? collective_of(p, i) : NULL;
        for (uint32_t k = 0; k < slice->n; k++) {
            lb_dependency_slice_part *other = &slice->parts[k];
            if (c && other->program->step == p->step && other != t) {
                uint32_t op = partner(p, c, other->program);
                /* A collective needs every member, or the program subset would wait for a rank that it
                 * does not have. */
                if (op != LB_NONE) more |= keep(other, op);
            }
            if (!lb_op_is_source(p, &p->ops[i]) || other->program->rank != p->rank || other->program->step >= p->step)
                continue;
            uint32_t last;
            for (uint32_t w = find_writers(other, source_value(p, i)->storage, &last); w < last; w++) {
                uint32_t writer = other->writers[w].op;
                if (!other->reached[writer]) continue;
                /* A weight that no op of that step wrote went through it untouched: the step is
                 * kept for its contents alone. */
                if (lb_op_is_source(other->program, &other->program->ops[writer]))
                    other->wanted = source_value(p, i)->storage;
                more |= keep(other, writer);
            }
        }
    }
    return more;
}

/* A carried source stays one only if an op of the program subset leaves it; otherwise its bytes
 * have to come along. */
static bool carried_inside(const lb_dependency_slice *slice, const lb_dependency_slice_part *t, uint32_t op)
{
    const lb_value *v = source_value(t->program, op);
    if (v->source != LB_SOURCE_CARRIED) return false;
    for (uint32_t k = 0; k < slice->n && &slice->parts[k] != t; k++) {
        const lb_dependency_slice_part *before = &slice->parts[k];
        if (before->program->rank != t->program->rank) continue;
        uint32_t last;
        for (uint32_t w = find_writers(before, v->storage, &last); w < last; w++) {
            uint32_t writer = before->writers[w].op;
            if (before->fates[writer] == LB_PROGRAM_SUBSET_KEEP) return true;
            if (before->seeded[writer] && before->fates[writer] != LB_PROGRAM_SUBSET_DROP) return true;
        }
    }
    return false;
}

/* What kept ops read and no kept op computed becomes a source. */
static void close_inputs(const lb_dependency_slice *slice, lb_dependency_slice_part *t)
{
    uint32_t own[64];
    const uint32_t *defs;
    const lb_program *p = t->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (t->fates[i] != LB_PROGRAM_SUBSET_KEEP || lb_op_is_source(p, &p->ops[i])) continue;
        uint32_t n = defs_of(t, i, &defs, own, 64);
        for (uint32_t e = 0; e < n; e++)
            /* Sources are decided after everything is kept: an op that one reader made a source
             * could still be kept for another. */
            if (t->fates[defs[e]] == LB_PROGRAM_SUBSET_DROP) t->fates[defs[e]] = LB_PROGRAM_SUBSET_SOURCE;
        if (t->pass[i]) t->fates[i] = LB_PROGRAM_SUBSET_PASS + t->pass[i] - 1;
    }
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (lb_op_is_source(p, &p->ops[i]) && t->fates[i] != LB_PROGRAM_SUBSET_DROP)
            t->fates[i] = carried_inside(slice, t, i) ? LB_PROGRAM_SUBSET_CARRIED : LB_PROGRAM_SUBSET_SOURCE;
}

static void select_from(lb_dependency_slice *slice, lb_dependency_slice_part *at, uint32_t op, uint32_t regenerated)
{
    for (uint32_t k = 0; k < slice->n; k++) {
        memset(slice->parts[k].fates, LB_PROGRAM_SUBSET_DROP, slice->parts[k].program->n_ops);
        slice->parts[k].used = false;
        /* Each failure is tried from a clean state: marks of the last try would only make the next
         * one larger. */
        slice->parts[k].wanted = -1;
    }
    /* The failure, what makes it known as one, and the anchor stay whatever the culprit reaches:
     * without them the program subset would not show that it fails. */
    keep(at, op);
    if (regenerated != LB_NONE) keep(at, regenerated);
    for (uint32_t k = 0; k < slice->n; k++)
        if (slice->parts[k].anchor != LB_NONE) keep(&slice->parts[k], slice->parts[k].anchor);
    for (bool more = true; more;) {
        more = false;
        /* A round goes once through each part and then across parts; the next begins only if something
         * new was kept across. Later steps come first, for sources lead to earlier ones. */
        for (uint32_t k = slice->n; k-- > 0;) keep_within(&slice->parts[k]);
        for (uint32_t k = slice->n; k-- > 0;) more |= keep_across(slice, &slice->parts[k]);
    }
    for (uint32_t k = 0; k < slice->n; k++) close_inputs(slice, &slice->parts[k]);
}

uint64_t lb_dependency_slice_kept(const lb_dependency_slice *slice)
{
    uint64_t kept = 0;
    for (uint32_t k = 0; k < slice->n; k++)
        for (uint32_t i = 0; i < slice->parts[k].program->n_ops; i++)
            kept += slice->parts[k].fates[i] == LB_PROGRAM_SUBSET_KEEP ||
                    slice->parts[k].fates[i] >= LB_PROGRAM_SUBSET_PASS;
    return kept;
}

/* ---- which failure ------------------------------------------------------------------------------------------------ */

static uint8_t bit_of(lb_failure_kind kind)
{
    switch (kind) {
    case LB_FAILURE_GRADIENT: return LB_WATCH_GRADIENT;
    case LB_FAILURE_LOSS: return LB_WATCH_LOSS;
    case LB_FAILURE_PARAMETER: return LB_WATCH_PARAMETER;
    case LB_FAILURE_STATE: return LB_WATCH_STATE;
    case LB_FAILURE_OUTPUT: return LB_WATCH_OUTPUT;
    default: return 0;
    }
}

/* The reader by which a gradient or a loss is known as one, with the fewest other inputs.
 * Each further input would become a source with its bytes, and collectives would bring the other
 * ranks. */
static uint32_t regenerated_of(const lb_dependency_slice_part *t, const uint8_t *marks, uint32_t op)
{
    uint32_t best = LB_NONE, fewest = UINT32_MAX;
    for (uint32_t e = t->flow->first_use[op]; e < t->flow->first_use[op + 1]; e++) {
        uint32_t user = t->flow->uses[e], n = t->flow->first_def[user + 1] - t->flow->first_def[user];
        if (!(marks[user] & LB_WATCH_EVIDENCE) || t->program->ops[user].flags & LB_OP_COLLECTIVE || n >= fewest)
            continue;
        best = user, fewest = n;
    }
    return best;
}

/* Every op of the failing step that shows the same kind of failure; for other kinds than not finite, the one reported. */
static bool shows_failure(const lb_bisect_session *q, const lb_dependency_slice_part *t, const uint8_t *marks,
                          uint32_t op)
{
    uint8_t bit = bit_of(q->failure.kind);
    if (!bit) return t->program->rank == q->failure.rank && op == q->failure.op;
    const lb_trace_row *row = lb_trace_find(q->trace, t->program->rank, t->program->step);
    /* NaN spreads: one fault shows in hundreds of gradients, and the one that was reported need not be the
     * nearest. The nearest to the culprit makes the smallest reproducer. */
    return marks[op] & bit && row && row->bits[op] & LB_TRACE_BAD;
}

/* What a source takes in the cure must be there to be taken. */
static void keep_remedy(lb_dependency_slice *slice)
{
    const lb_remedy *remedy = &slice->q->remedy;
    for (uint32_t k = 0; k < slice->n && remedy->op != LB_NONE; k++) {
        lb_dependency_slice_part *t = &slice->parts[k];
        /* Data is cured by what the same source held before: a dependency slice from the culprit never reaches
         * back there, so that the cure's source is kept by hand. */
        if (t->program->rank != remedy->rank || t->program->step != remedy->step) continue;
        if (t->fates[remedy->op] == LB_PROGRAM_SUBSET_DROP) t->fates[remedy->op] = LB_PROGRAM_SUBSET_SOURCE;
        t->wanted = remedy->storage;
        t->used = true;
    }
}

bool lb_dependency_slice_select(lb_dependency_slice *slice)
{
    /* Each try is a slice of all parts, and a NaN in a large model shows in thousands of ops. The first 400
     * of them are those that ran first, which after one culprit are the near ones. */
    enum { MOST = 400 };
    lb_bisect_session *q = slice->q;
    lb_dependency_slice_part *best = NULL;
    uint32_t op = LB_NONE, regenerated = LB_NONE, tried = 0;
    uint64_t fewest = UINT64_MAX;
    for (uint32_t k = 0; k < slice->n; k++) {
        lb_dependency_slice_part *t = &slice->parts[k];
        const uint8_t *marks = lb_monitor_marks(q->monitor, t->program->rank, t->program->step);
        if (t->program->step != q->failure.step || !marks) continue;
        for (uint32_t i = 0; i < t->program->n_ops && tried < MOST; i++) {
            if (!t->reached[i] || !shows_failure(q, t, marks, i)) continue;
            uint32_t reader = regenerated_of(t, marks, i);
            select_from(slice, t, i, reader);
            tried++;
            /* Of equals the first stays, so that a capture has one reproducer whenever it is asked
             * for. */
            if (lb_dependency_slice_kept(slice) >= fewest) continue;
            fewest = lb_dependency_slice_kept(slice), best = t, op = i, regenerated = reader;
        }
    }
    /* The last try overwrote the fates of the best one; making them again is cheaper than a copy of
     * all of them per improvement. */
    if (best) select_from(slice, best, op, regenerated);
    if (best) keep_remedy(slice);
    return best != NULL;
}

/* ---- passing ------------------------------------------------------------------------------------------------------ */

static bool same_window(const lb_program *p, const lb_arg *arg, uint32_t result)
{
    return arg->tag == LB_ARG_VALUE && p->values[arg->u.value].dtype == p->values[result].dtype &&
           lb_layout_same_shape(&p->values[arg->u.value].layout, &p->values[result].layout);
}

/* The argument that comes from furthest back among those that the culprit reaches: the stream.
 * In x + f(x) the stream x was there before the branch computed anything. An argument that the
 * culprit does not reach may not go on alone: the fault would be cut off together with the branch. */
static uint8_t stream_of(const lb_dependency_slice_part *t, uint32_t i)
{
    const lb_program *p = t->program;
    const lb_op *op = &p->ops[i];
    uint8_t pass = 0;
    uint32_t furthest = LB_NONE;
    if (strcmp(lb_op_name(p, op), "aten::add.Tensor") || op->args < 2 || op->results != 1 || op->written) return 0;
    for (uint8_t a = 0; a < 2; a++) {
        const lb_arg *arg = &lb_op_args(p, op)[a];
        uint32_t defs[16];
        /* A broadcast or a cast could not be replaced by one of its arguments without changing what
         * readers get. */
        if (!same_window(p, arg, lb_op_results(p, op)[0])) return 0;
        uint32_t n = lb_flow_defs_of(t->flow, i, arg->u.value, defs, 16);
        if (n != 1 || !t->reached[defs[0]] || defs[0] >= furthest) continue;
        furthest = defs[0], pass = 1 + a;
    }
    return pass;
}

lb_status lb_dependency_slice_adds(const lb_dependency_slice *slice, const lb_culprit *culprit,
                                   lb_dependency_slice_add **adds, uint32_t *n, lb_err *err)
{
    *adds = NULL, *n = 0;
    for (uint32_t k = 0; k < slice->n; k++) {
        const lb_dependency_slice_part *t = &slice->parts[k];
        char block[160];
        block_around(t, culprit->layer, block, sizeof block);
        for (uint32_t i = 0; i < t->program->n_ops; i++) {
            if (t->fates[i] != LB_PROGRAM_SUBSET_KEEP || t->seeded[i] ||
                path_within(lb_op_layer(t->program, &t->program->ops[i]), block))
                continue;
            uint8_t pass = stream_of(t, i);
            if (!pass) continue;
            /* Adds in the culprit's own block are left alone: its branch is where the fault is, and
             * the cure may be to skip that block. */
            lb_dependency_slice_add *more = lb_array_grow(*adds, *n, sizeof *more);
            if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            *adds = more;
            (*adds)[(*n)++] = (lb_dependency_slice_add){k, i, pass};
        }
    }
    return LB_OK;
}

/* ---- a rank without the fault --------------------------------------------------------------------------------------- */

/* Ranks run one model but need not run one program: expert parallelism and pipelines give them
 * other ops, so that rows cannot be compared by number. */
static bool alike(const lb_program *p, uint32_t i, const lb_program *q, uint32_t k)
{
    return p->ops[i].phase == q->ops[k].phase && !strcmp(lb_op_name(p, &p->ops[i]), lb_op_name(q, &q->ops[k])) &&
           !strcmp(lb_op_layer(p, &p->ops[i]), lb_op_layer(q, &q->ops[k]));
}

/* The op of `other` in the same place: the k-th of its name in its layer and phase.
 * Counting is a scan of both programs for each op that is kept, and what is kept is small by then. */
static uint32_t twin_of(const lb_program *p, uint32_t op, const lb_program *other)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i < op; i++) place += alike(p, op, p, i);
    for (uint32_t i = 0; i < other->n_ops; i++)
        if (alike(p, op, other, i) && place-- == 0) return i;
    return LB_NONE;
}

static bool copy_fates(const lb_dependency_slice_part *from, lb_dependency_slice_part *to)
{
    for (uint32_t i = 0; i < from->program->n_ops; i++) {
        if (from->fates[i] == LB_PROGRAM_SUBSET_DROP) continue;
        uint32_t twin = twin_of(from->program, i, to->program);
        /* A peer with a hole in it would differ from the guilty rank by more than the fault. */
        if (twin == LB_NONE) return false;
        to->fates[twin] = from->fates[i];
        to->pass[twin] = from->pass[i];
    }
    to->used = true;
    return true;
}

bool lb_dependency_slice_add_peer(lb_dependency_slice *slice, const lb_culprit *culprit)
{
    int32_t peer = -1;
    /* Any rank without the fault will do, and the first is taken: a rank's fault is told from one
     * of all by having one healthy rank beside it. */
    bool any = false;
    for (uint32_t r = 0; r < slice->q->n_ranks && peer < 0; r++) {
        bool guilty = false;
        for (uint32_t k = 0; k < culprit->n_ranks; k++) guilty |= culprit->ranks[k] == slice->q->ranks[r];
        if (!guilty) peer = slice->q->ranks[r];
    }
    for (uint32_t k = 0; k < slice->n; k++)
        if (slice->parts[k].used && slice->parts[k].program->rank == peer) return true; /* a collective brought it */
    for (uint32_t k = 0; k < slice->n; k++)
        for (uint32_t j = 0; j < slice->n && slice->parts[k].used; j++) {
            lb_dependency_slice_part *other = &slice->parts[j];
            if (other->program->rank != peer || other->program->step != slice->parts[k].program->step || other->used)
                continue;
            if (!copy_fates(&slice->parts[k], other)) return false;
            any = true;
        }
    return any;
}
