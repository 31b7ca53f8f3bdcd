/* Back from the failure: of what the culprit reaches, the ops that the failure follows from are kept; what these read
 * besides becomes a source. Of several failures the one that leaves the fewest ops between is taken. */
#include "reproduce/dependency_parts.h"

#include <string.h>

/* ---- what is kept ------------------------------------------------------------------------------------------------ */

/* What op i of a part reads from: of one that is passed, from the argument that goes on. */
static uint32_t defs_of(const lb_dependency_slice_part *part, uint32_t i, const uint32_t **defs, uint32_t *own,
                        uint32_t room)
{
    if (part->pass[i]) {
        uint32_t value = lb_op_args(part->program, &part->program->ops[i])[part->pass[i] - 1].u.value;
        uint32_t n = lb_slice_flow_defs_of(part->flow, i, value, own, room);
        *defs = own;
        /* The count goes on beyond what was stored, and only what was stored may be read. */
        return n < room ? n : room;
    }
    *defs = part->flow->defs + part->flow->first_def[i];
    return part->flow->first_def[i + 1] - part->flow->first_def[i];
}

static bool keep(lb_dependency_slice_part *part, uint32_t op)
{
    /* The answer says whether something is new: the fixed point of select_from stops by it. */
    if (part->fates[op] == LB_PROGRAM_SUBSET_KEEP) return false;
    part->fates[op] = LB_PROGRAM_SUBSET_KEEP;
    part->used = true;
    return true;
}

/* Definitions come before their readers: one pass downwards. */
static void keep_within(lb_dependency_slice_part *part)
{
    uint32_t own[64];
    const uint32_t *defs;
    for (uint32_t i = part->program->n_ops; i-- > 0;) {
        if (part->fates[i] != LB_PROGRAM_SUBSET_KEEP) continue;
        uint32_t n = defs_of(part, i, &defs, own, 64);
        for (uint32_t e = 0; e < n; e++)
            /* This is the intersection: going back from the failure, only what the culprit reaches
             * is kept. All else that kept ops read has the same bytes with and without the fault,
             * and is recorded as a source. */
            if (part->reached[defs[e]]) keep(part, defs[e]);
    }
}

/* Kept sources that an earlier step left, kept collectives of other ranks; true when something new is kept. */
static bool keep_across(lb_dependency_slice *slice, lb_dependency_slice_part *part)
{
    bool more = false;
    const lb_program *program = part->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (part->fates[i] != LB_PROGRAM_SUBSET_KEEP) continue;
        const lb_collective *collective =
            program->ops[i].flags & LB_OP_COLLECTIVE ? lb_dependency_slice_collective(program, i) : NULL;
        for (uint32_t k = 0; k < slice->n; k++) {
            lb_dependency_slice_part *other = &slice->parts[k];
            if (collective && other->program->step == program->step && other != part) {
                uint32_t op = lb_dependency_slice_partner(program, collective, other->program);
                /* A collective needs every member, or the program subset would wait for a rank that it
                 * does not have. */
                if (op != LB_NONE) more |= keep(other, op);
            }
            if (!lb_op_is_source(program, &program->ops[i]) || other->program->rank != program->rank ||
                other->program->step >= program->step)
                continue;
            uint32_t last;
            for (uint32_t w =
                     lb_dependency_slice_writers_of(other, lb_dependency_slice_source(program, i)->storage, &last);
                 w < last; w++) {
                uint32_t writer = other->writers[w].op;
                if (!other->reached[writer]) continue;
                /* A weight that no op of that step wrote went through it untouched: the step is
                 * kept for its contents alone. */
                if (lb_op_is_source(other->program, &other->program->ops[writer]))
                    other->wanted = lb_dependency_slice_source(program, i)->storage;
                more |= keep(other, writer);
            }
        }
    }
    return more;
}

/* A carried source stays one only if an op of the program subset leaves it; otherwise its bytes
 * have to come along. */
static bool carried_inside(const lb_dependency_slice *slice, const lb_dependency_slice_part *part, uint32_t op)
{
    const lb_value *value = lb_dependency_slice_source(part->program, op);
    if (value->source != LB_SOURCE_CARRIED) return false;
    for (uint32_t k = 0; k < slice->n && &slice->parts[k] != part; k++) {
        const lb_dependency_slice_part *before = &slice->parts[k];
        if (before->program->rank != part->program->rank) continue;
        uint32_t last;
        for (uint32_t w = lb_dependency_slice_writers_of(before, value->storage, &last); w < last; w++) {
            uint32_t writer = before->writers[w].op;
            if (before->fates[writer] == LB_PROGRAM_SUBSET_KEEP) return true;
            if (before->seeded[writer] && before->fates[writer] != LB_PROGRAM_SUBSET_DROP) return true;
        }
    }
    return false;
}

/* What kept ops read and no kept op computed becomes a source. */
static void close_inputs(const lb_dependency_slice *slice, lb_dependency_slice_part *part)
{
    uint32_t own[64];
    const uint32_t *defs;
    const lb_program *program = part->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (part->fates[i] != LB_PROGRAM_SUBSET_KEEP || lb_op_is_source(program, &program->ops[i])) continue;
        uint32_t n = defs_of(part, i, &defs, own, 64);
        for (uint32_t e = 0; e < n; e++)
            /* Sources are decided after everything is kept: an op that one reader made a source
             * could still be kept for another. */
            if (part->fates[defs[e]] == LB_PROGRAM_SUBSET_DROP) part->fates[defs[e]] = LB_PROGRAM_SUBSET_SOURCE;
        if (part->pass[i]) part->fates[i] = LB_PROGRAM_SUBSET_PASS + part->pass[i] - 1;
    }
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (lb_op_is_source(program, &program->ops[i]) && part->fates[i] != LB_PROGRAM_SUBSET_DROP)
            part->fates[i] = carried_inside(slice, part, i) ? LB_PROGRAM_SUBSET_CARRIED : LB_PROGRAM_SUBSET_SOURCE;
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

/* ---- which failure ----------------------------------------------------------------------------------------------- */

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
static uint32_t regenerated_of(const lb_dependency_slice_part *part, const uint8_t *marks, uint32_t op)
{
    uint32_t best = LB_NONE, fewest = UINT32_MAX;
    for (uint32_t e = part->flow->first_use[op]; e < part->flow->first_use[op + 1]; e++) {
        uint32_t user = part->flow->uses[e], n = part->flow->first_def[user + 1] - part->flow->first_def[user];
        if (!(marks[user] & LB_WATCH_EVIDENCE) || part->program->ops[user].flags & LB_OP_COLLECTIVE || n >= fewest)
            continue;
        best = user, fewest = n;
    }
    return best;
}

/* Every op of the failing step that shows the same kind of failure; for other kinds than not finite, the one
 * reported. */
static bool shows_failure(const lb_bisect_session *session, const lb_dependency_slice_part *part, const uint8_t *marks,
                          uint32_t op)
{
    uint8_t bit = bit_of(session->failure.kind);
    if (!bit) return part->program->rank == session->failure.rank && op == session->failure.op;
    const lb_trace_row *row = lb_trace_find(session->trace, part->program->rank, part->program->step);
    /* NaN spreads: one fault shows in hundreds of gradients, and the one that was reported need not be the
     * nearest. The nearest to the culprit makes the smallest reproducer. */
    return marks[op] & bit && row && row->bits[op] & LB_TRACE_BAD;
}

/* What a source takes in the cure must be there to be taken. */
static void keep_remedy(lb_dependency_slice *slice)
{
    const lb_remedy *remedy = &slice->session->remedy;
    for (uint32_t k = 0; k < slice->n && remedy->op != LB_NONE; k++) {
        lb_dependency_slice_part *part = &slice->parts[k];
        /* Data is cured by what the same source held before: a dependency slice from the culprit never reaches
         * back there, so that the cure's source is kept by hand. */
        if (part->program->rank != remedy->rank || part->program->step != remedy->step) continue;
        if (part->fates[remedy->op] == LB_PROGRAM_SUBSET_DROP) part->fates[remedy->op] = LB_PROGRAM_SUBSET_SOURCE;
        part->wanted = remedy->storage;
        part->used = true;
    }
}

bool lb_dependency_slice_select(lb_dependency_slice *slice)
{
    /* Each try is a slice of all parts, and a NaN in a large model shows in thousands of ops. The first 400
     * of them are those that ran first, which after one culprit are the near ones. */
    enum { MOST = 400 };
    lb_bisect_session *session = slice->session;
    lb_dependency_slice_part *best = NULL;
    uint32_t op = LB_NONE, regenerated = LB_NONE, tried = 0;
    uint64_t fewest = UINT64_MAX;
    for (uint32_t k = 0; k < slice->n; k++) {
        lb_dependency_slice_part *part = &slice->parts[k];
        const uint8_t *marks = lb_failure_monitor_marks(session->monitor, part->program->rank, part->program->step);
        if (part->program->step != session->failure.step || !marks) continue;
        for (uint32_t i = 0; i < part->program->n_ops && tried < MOST; i++) {
            if (!part->reached[i] || !shows_failure(session, part, marks, i)) continue;
            uint32_t reader = regenerated_of(part, marks, i);
            select_from(slice, part, i, reader);
            tried++;
            /* Of equals the first stays, so that a capture has one reproducer whenever it is asked
             * for. */
            if (lb_dependency_slice_kept(slice) >= fewest) continue;
            fewest = lb_dependency_slice_kept(slice), best = part, op = i, regenerated = reader;
        }
    }
    /* The last try overwrote the fates of the best one; making them again is cheaper than a copy of
     * all of them per improvement. */
    if (best) select_from(slice, best, op, regenerated);
    if (best) keep_remedy(slice);
    return best != NULL;
}
