/* The block stage: which residual blocks, then which one, which step, which op. See stages.h.
 *
 * Skipping cures on either side of a fault inside a block (what feeds it, what it feeds), so skips find the block and
 * the step, and the op is found otherwise: the first in the block that broke its result, unless keeping an earlier one
 * in f64 cures (an underflow that becomes 0/0 later).
 */
#include "stages/stages.h"

#include "program/block.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lb_status blocks_of(lb_bisect_session *session, lb_blocks *blocks, const lb_program **program, lb_err *err)
{
    *blocks = (lb_blocks){0};
    for (uint32_t s = 0; s < session->n_steps; s++) {
        const lb_program *p = lb_trial_program(session, session->failure.rank, session->steps[s]);
        lb_slice_flow *flow;
        if (!p) continue;
        LB_TRY(lb_slice_flow_new(p, &flow, err));
        lb_status status = lb_blocks_find(p, flow, blocks, err);
        lb_slice_flow_free(flow);
        LB_TRY(status);
        *program = p;
        if (blocks->n) return LB_OK;
        lb_blocks_release(blocks);
    }
    return LB_OK;
}

/* ---- the op ----------------------------------------------------------------------------------------------------- */

/* The first op inside the block and step that broke its result. */
static uint32_t first_broken_inside(const lb_bisect_session *session, const char *block, int64_t step)
{
    const lb_trace_row *row = lb_trace_find(session->trace, session->failure.rank, step);
    for (uint32_t i = 0; row && i < row->program->n_ops; i++)
        if (lb_program_name_extends(lb_op_layer(row->program, &row->program->ops[i]), block) && lb_trace_broke(row, i))
            return i;
    return LB_NONE;
}

/* Nothing there broke: the op whose result grew most against the step before, at least a hundredfold. */
static uint32_t most_grown_inside(const lb_bisect_session *session, const char *block, int64_t step)
{
    const lb_trace_row *row = lb_trace_find(session->trace, session->failure.rank, step), *before = NULL;
    size_t n = strlen(block);
    uint32_t best = LB_NONE;
    double growth = 100;
    for (uint32_t s = 0; s < session->n_steps && session->steps[s] < step; s++)
        before = lb_trace_find(session->trace, session->failure.rank, session->steps[s]);
    for (uint32_t i = 0; row && before && i < row->program->n_ops && i < before->program->n_ops; i++) {
        const char *layer = lb_op_layer(row->program, &row->program->ops[i]);
        const double then = lb_trace_size(before, i), now = lb_trace_size(row, i);
        if (strncmp(layer, block, n) || (layer[n] && layer[n] != '.') || !(then > 0) || isinf(then)) continue;
        if (row->program->ops[i].name !=
                before->program->ops[i].name && /* programs of one archive share no string table */
            strcmp(lb_op_name(row->program, &row->program->ops[i]),
                   lb_op_name(before->program, &before->program->ops[i])))
            continue;
        if (now / then > growth * 1.01) growth = now / then, best = i;
    }
    return best;
}

/* Float ops of the block in the program's step, of the phase of op `last`. */
static lb_status list_wide_ops(const lb_program *program, const char *block, uint32_t last, lb_sites *sites,
                               uint32_t *rows, lb_err *err)
{
    size_t n = strlen(block);
    char before[64], body[16];
    snprintf(before, sizeof before, "step=%" PRId64 "&index=", program->step);
    lb_site_form form = {LB_SWAP_PRECISION, "f64", before, "", ','};
    for (uint32_t i = 0; i < program->n_ops && sites->n < 4096; i++) {
        const lb_op *op = &program->ops[i];
        const char *layer = lb_op_layer(program, op);
        if (strncmp(layer, block, n) || (layer[n] && layer[n] != '.') || !lb_slice_op_defines(program, op) ||
            op->phase != program->ops[last].phase)
            continue;
        if (!strncmp(lb_op_name(program, op), "lb::", 4)) continue;
        rows[sites->n] = i;
        snprintf(body, sizeof body, "%u", i);
        LB_TRY(lb_sites_add(sites, &form, body, err));
    }
    lb_sites_name(sites, "ops of %s up to the one that broke, in f64", block);
    return LB_OK;
}

/* Is there an op before `broken` that only needs f64? Then it is the culprit: what it lost was finite. */
static lb_status earlier_loss(lb_bisect_session *session, const char *block, int64_t step, uint32_t *broken, bool *wide,
                              lb_err *err)
{
    const lb_program *program = lb_trial_program(session, session->failure.rank, step);
    lb_sites sites = {0};
    uint32_t *rows = malloc(((size_t)program->n_ops + 1) * sizeof *rows), *found = NULL, n = 0;
    lb_status status =
        rows ? list_wide_ops(program, block, *broken, &sites, rows, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = lb_trial_narrow(session, &sites, false, &found, &n, err);
    for (uint32_t i = 0; i < n; i++) {
        *wide = true;
        if (rows[found[i]] < *broken) *broken = rows[found[i]];
    }
    lb_sites_release(&sites);
    free(rows);
    free(found);
    return status;
}

/* ---- block and step ---------------------------------------------------------------------------------------------- */

/* Blocks of a program, some of which are suspects: the scope of each site. */
typedef struct suspected {
    const lb_program *program;
    const lb_blocks *blocks;
    uint32_t *scopes;
} suspected;

/* Blocks of these classes are the suspects. `steps`: the only ones in which they are skipped, as a list; "": all. */
static lb_status list_blocks(const suspected *suspected, const char *letters, const char *steps, lb_sites *sites,
                             lb_err *err)
{
    const lb_program *program = suspected->program;
    const lb_blocks *blocks = suspected->blocks;
    char before[300];
    snprintf(before, sizeof before, "%s%s%slayer=^(?:", *steps ? "step=" : "", steps, *steps ? "&" : "");
    lb_site_form form = {LB_SWAP_SKIP, "", before, ")" LB_AND_BELOW, '|'};
    for (uint32_t i = 0; i < blocks->n; i++) {
        char pattern[320];
        if (!strchr(letters, blocks->rows[i].letter)) continue;
        lb_sites_escape(lb_program_text(program, program->scopes[blocks->rows[i].scope].path), pattern, sizeof pattern);
        suspected->scopes[sites->n] = blocks->rows[i].scope;
        LB_TRY(lb_sites_add(sites, &form, pattern, err));
    }
    lb_sites_name(sites, *steps ? "blocks of class %s skipped in step %s" : "blocks of class %s skipped", letters,
                  steps);
    return LB_OK;
}

/* The steps in which a block must be skipped: their rows, the first, and all as text. */
typedef struct when {
    uint32_t *rows, n;
    int64_t first;
    char list[256];
} when;

static void set_when(const lb_bisect_session *session, when *when, uint32_t *rows, uint32_t n)
{
    free(when->rows);
    when->rows = rows, when->n = n;
    when->first = n ? session->steps[rows[0]] : session->failure.step;
    snprintf(when->list, sizeof when->list, "%" PRId64, when->first);
    if (n) lb_stage_step_list(session, rows, n, when->list, sizeof when->list);
}

/* Which of the steps of `when` (none: all of the window) cure when what `after` selects is skipped in them alone;
 * skipping it in all of them is known to. Damage in a parameter stays for all later steps.
 * `late`: not NULL, and nothing is found where lb_trial_narrow_late_steps finds nothing. */
static lb_status narrow_when(lb_bisect_session *session, const char *after, const char *what, when *when, bool *late,
                             lb_err *err)
{
    lb_sites sites = {0};
    uint32_t *found = NULL, n = 0;
    lb_site_form form = {LB_SWAP_SKIP, "", "step=", after, ','};
    lb_status status = when->n ? LB_OK : lb_stage_sites_add_steps(session, &form, session->n_steps, &sites, err);
    for (uint32_t i = 0; i < when->n && status == LB_OK; i++) {
        char body[32];
        snprintf(body, sizeof body, "%" PRId64, session->steps[when->rows[i]]);
        status = lb_sites_add(&sites, &form, body, err);
    }
    lb_sites_name(&sites, "steps with %s skipped", what);
    if (status == LB_OK && late)
        status = lb_trial_narrow_late_steps(session, &sites, &found, &n, late, err);
    else if (status == LB_OK && when->n)
        status = lb_trial_narrow(session, &sites, true, &found, &n, err);
    else if (status == LB_OK)
        status = lb_trial_narrow_steps(session, &sites, true, &found, &n, err);
    if (status == LB_OK && n) status = lb_stage_cure_set(session, &sites, found, n, err);
    for (uint32_t i = 0; i < n && when->n; i++) found[i] = when->rows[found[i]];
    set_when(session, when, found, n);
    lb_sites_release(&sites);
    return status;
}

static lb_status find_steps(lb_bisect_session *session, const char *block, when *when, lb_err *err)
{
    char pattern[320], after[340];
    lb_sites_escape(block, pattern, sizeof pattern);
    snprintf(after, sizeof after, "&layer=^%s" LB_AND_BELOW, pattern);
    return narrow_when(session, after, block, when, NULL, err);
}

/* The deepest module around the op whose skipping alone cures is the better cure. */
static lb_status deepen(lb_bisect_session *session, const lb_program *program, uint32_t row, uint32_t block,
                        const char *steps, lb_err *err)
{
    for (uint32_t scope = program->ops[row].scope; scope && scope != block && scope != LB_NONE;
         scope = program->scopes[scope].parent) {
        lb_sites site = {0};
        lb_search_outcome outcome = LB_OUTCOME_SAME;
        char pattern[320];
        lb_sites_escape(lb_program_text(program, program->scopes[scope].path), pattern, sizeof pattern);
        char before[300];
        snprintf(before, sizeof before, "step=%s&layer=^", steps);
        lb_site_form form = {LB_SWAP_SKIP, "", before, LB_AND_BELOW, 0};
        lb_status status = lb_sites_add(&site, &form, pattern, err);
        lb_sites_name(&site, "%s skipped in step %s", lb_program_text(program, program->scopes[scope].path), steps);
        if (status == LB_OK) status = lb_trial_run(session, &site, NULL, "confirm", &outcome, err);
        if (status == LB_OK && outcome == LB_OUTCOME_CURED) status = lb_stage_cure_set(session, &site, NULL, 0, err);
        lb_sites_release(&site);
        LB_TRY(status);
        if (outcome == LB_OUTCOME_CURED) break;
    }
    return LB_OK;
}

/* Nothing in the module's own ops: then what the optimizer, or an op outside every module, wrote into its parameters:
 * the one that grew most. Its row and its parameter's layer. */
static uint32_t most_grown_write(const lb_bisect_session *session, const char *block, int64_t step, char *layer,
                                 size_t size)
{
    const lb_trace_row *row = lb_trace_find(session->trace, session->failure.rank, step);
    const lb_program *program = row ? row->program : NULL;
    uint32_t best = LB_NONE;
    double growth = 100;
    size_t n = strlen(block);
    for (uint32_t g = 0; program && g < program->n_group_params; g++) {
        const char *name = lb_program_text(program, program->group_params[g].name), *dot = strrchr(name, '.');
        if (strncmp(name, block, n) || name[n] != '.' || !dot) continue;
        double before = 0;
        for (uint32_t i = 0; i < program->n_ops; i++) {
            const lb_op *op = &program->ops[i];
            const bool writes = lb_op_writes(program, op, program->group_params[g].storage) != LB_NONE;
            bool source = lb_op_is_source(program, op) &&
                          program->values[lb_op_results(program, op)[0]].storage == program->group_params[g].storage;
            if (source) before = lb_stage_value_largest(session, program, lb_op_results(program, op)[0]);
            if (!writes || !(before > 0)) continue;
            const double now = lb_trace_size(row, i);
            if (!(now / before > growth)) continue; /* NaN did not grow: its gradient was not finite */
            growth = now / before, best = i;
            snprintf(layer, size, "%.*s", (int)(dot - name), name);
        }
    }
    return best;
}

/* `known`: that the block need be skipped in no other steps than these; n 0: nothing is. */
static lb_status examine_block(lb_bisect_session *session, const lb_program *first, const lb_block *block,
                               const when *known, lb_err *err)
{
    const char *path = lb_program_text(first, first->scopes[block->scope].path);
    when broken = {0};
    char owner[160] = "";
    lb_culprit *culprit;
    bool wide = false;
    if (known->n) {
        broken.rows = malloc(known->n * sizeof *broken.rows);
        if (!broken.rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        broken.n = known->n;
        memcpy(broken.rows, known->rows, known->n * sizeof *broken.rows);
    }
    lb_status status = find_steps(session, path, &broken, err);
    const int64_t step = broken.first;
    free(broken.rows);
    LB_TRY(status);
    uint32_t row = first_broken_inside(session, path, step);
    bool broke = row != LB_NONE, grew = false;
    if (!broke) row = most_grown_inside(session, path, step);
    if (row == LB_NONE) row = most_grown_write(session, path, step, owner, sizeof owner), grew = row != LB_NONE;
    const lb_program *program = lb_trial_program(session, session->failure.rank, step);
    if (broke) LB_TRY(earlier_loss(session, path, step, &row, &wide, err));
    if (row != LB_NONE && !grew) LB_TRY(deepen(session, program, row, block->scope, broken.list, err));
    LB_TRY(lb_stage_culprit_add(session, LB_AXIS_BLOCK, (lb_stage_place){session->failure.rank, step, row}, &culprit,
                                err));
    culprit->block = block->letter;
    if (row == LB_NONE || grew) snprintf(culprit->layer, sizeof culprit->layer, "%s", grew ? owner : path);
    LB_TRY(lb_stage_culprit_all_ranks(session, culprit, err));
    snprintf(culprit->why, sizeof culprit->why,
             "Without block %s in step %" PRId64 ", %s, the window ends without the failure.%s", path, step,
             lb_stage_besides(session),
             wide    ? " The op named is the first that the cure by f64 needs."
             : broke ? " The op named is the first in it whose inputs are finite and whose result is not."
             : grew  ? " The op named wrote the parameter of it that grew most; skipping it leaves that as it was."
                     : "");
    return LB_OK;
}

/* ---- the origin first -------------------------------------------------------------------------------------------- */

/* NaN, or a division by something that is 0, may come of digits that were lost far from it: whether f64 in that step
 * cures tells. What only grew beyond its type is no loss of digits, whatever f64 would hold. */
static lb_status digits_matter(lb_bisect_session *session, const lb_trace_row *row, bool *matter, lb_err *err)
{
    const lb_origin *origin = &session->out->origin;
    lb_sites site = {0};
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    char body[32];
    *matter = false;
    if (!row->sums[origin->op].nan && !origin->by_zero) return LB_OK;
    lb_site_form form = {LB_SWAP_PRECISION, "f64", "step=", "", ','};
    snprintf(body, sizeof body, "%" PRId64, origin->step);
    lb_status status = lb_sites_add(&site, &form, body, err);
    lb_sites_name(&site, "everything in f64 in step %s (a note: no axis)", body);
    if (status == LB_OK) status = lb_trial_run(session, &site, NULL, "note", &outcome, err);
    *matter = outcome == LB_OUTCOME_CURED || outcome == LB_OUTCOME_OTHER;
    lb_sites_release(&site);
    return status;
}

static const lb_block *block_around(const lb_program *program, const lb_blocks *blocks, uint32_t scope)
{
    for (uint32_t k = 0; k < blocks->n; k++)
        if (lb_block_scope_within(program, scope, blocks->rows[k].scope)) return &blocks->rows[k];
    return NULL;
}

/* Skips that module in the step alone; where the fault comes back in a later step, from that step on. */
static lb_status skip_from(lb_bisect_session *session, const char *path, int64_t step, bool *cured, lb_err *err)
{
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    for (int later = 0; later < 2; later++) {
        lb_sites site = {0};
        char pattern[320], before[80];
        if (later && (outcome != LB_OUTCOME_OTHER || step == session->steps[session->n_steps - 1])) break;
        if (later)
            snprintf(before, sizeof before, "step=%" PRId64 "-%" PRId64 "&layer=^", step,
                     session->steps[session->n_steps - 1]);
        else
            snprintf(before, sizeof before, "step=%" PRId64 "&layer=^", step);
        lb_sites_escape(path, pattern, sizeof pattern);
        lb_site_form form = {LB_SWAP_SKIP, "", before, LB_AND_BELOW, 0};
        lb_status status = lb_sites_add(&site, &form, pattern, err);
        lb_sites_name(&site, later ? "%s skipped from step %" PRId64 " on" : "%s skipped in step %" PRId64, path, step);
        if (status == LB_OK) status = lb_trial_run(session, &site, NULL, "whole", &outcome, err);
        *cured = status == LB_OK && outcome == LB_OUTCOME_CURED;
        if (*cured) status = lb_stage_cure_set(session, &site, NULL, 0, err);
        lb_sites_release(&site);
        if (status != LB_OK || *cured) return status;
    }
    return LB_OK;
}

/* The innermost module around the origin whose skipping alone cures, up to the block that it lies in. What broke there
 * first is the culprit: a class of blocks need not be searched for another that hides it as well. */
static lb_status examine_origin(lb_bisect_session *session, const lb_blocks *blocks, bool *found, lb_err *err)
{
    const lb_origin *origin = &session->out->origin;
    const lb_trace_row *row = origin->op == LB_NONE ? NULL : lb_trace_find(session->trace, origin->rank, origin->step);
    const lb_program *program = row ? row->program : NULL;
    if (!program || origin->written || !program->ops[origin->op].scope || !lb_trace_broke(row, origin->op))
        return LB_OK;
    if (origin->phase != LB_PHASE_FORWARD && origin->phase != LB_PHASE_BACKWARD) return LB_OK;
    const lb_trace_sum *sum = &row->sums[origin->op];
    if (!sum->nan && sum->inf <= sum->masked && !origin->by_zero)
        return LB_OK; /* -inf alone is a mask that is copied */
    bool digits;
    LB_TRY(digits_matter(session, row, &digits, err));
    if (digits) return LB_OK;
    const lb_block *block = NULL;
    uint32_t scope = program->ops[origin->op].scope;
    const char *path = "";
    for (; scope && scope != LB_NONE && !*found; scope = program->scopes[scope].parent) {
        /* Programs of one capture number their scopes as they meet them. */
        block = block_around(program, blocks, scope);
        path = lb_program_text(program, program->scopes[scope].path);
        LB_TRY(skip_from(session, path, origin->step, found, err));
        if (block && block->scope == scope) break;
    }
    if (!*found) return LB_OK;
    lb_culprit *culprit;
    LB_TRY(lb_stage_culprit_add(session, LB_AXIS_BLOCK, (lb_stage_place){origin->rank, origin->step, origin->op},
                                &culprit, err));
    if (block) culprit->block = block->letter;
    LB_TRY(lb_stage_culprit_all_ranks(session, culprit, err));
    snprintf(culprit->why, sizeof culprit->why,
             "Without %s in step %" PRId64 ", %s, the window ends without the failure. "
             "The op named is the first in it whose inputs are finite and whose result is not.",
             path, origin->step, lb_stage_besides(session));
    return LB_OK;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static const lb_block *block_of_scope(const lb_blocks *blocks, uint32_t scope)
{
    for (uint32_t k = 0; k < blocks->n; k++)
        if (blocks->rows[k].scope == scope) return &blocks->rows[k];
    return NULL;
}

/* The sites that cure together. */
typedef struct culprit_list {
    const lb_sites *sites;
    const uint32_t *list; /* rows of sites */
    uint32_t n;
} culprit_list;

/* Adds to the background what cures the others: narrowed where they have been examined, skipped whole where not. */
static lb_status cure_others(lb_bisect_session *session, const lb_sites *base, const lb_sites *narrowed,
                             culprit_list others, lb_err *err)
{
    lb_replay_summary summary = {0};
    uint64_t *later = calloc(LB_SITE_WORDS(others.sites->n) + 1, sizeof *later);
    if (!later) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < others.n; i++) later[others.list[i] / 64] |= (uint64_t)1 << (others.list[i] % 64);
    lb_sites_release(&session->background);
    lb_status status = lb_sites_append(&session->background, base, NULL, err);
    if (status == LB_OK) status = lb_sites_append(&session->background, narrowed, NULL, err);
    if (status == LB_OK) status = lb_sites_append(&session->background, others.sites, later, err);
    free(later);
    return status == LB_OK ? lb_rerun_retrace(session, &summary, err) : status;
}

/* Several blocks of one class: each is examined while the others are cured. */
static lb_status examine_each(lb_bisect_session *session, const suspected *suspected, culprit_list culprits,
                              const when *known, lb_err *err)
{
    lb_sites base = session->background, narrowed = {0};
    lb_failure failure = session->failure;
    lb_status status = LB_OK;
    session->background = (lb_sites){0};
    for (uint32_t i = 0; i < culprits.n && status == LB_OK; i++) {
        const culprit_list rest = {culprits.sites, culprits.list + i + 1, culprits.n - i - 1};
        status = cure_others(session, &base, &narrowed, rest, err);
        const lb_block *block = block_of_scope(suspected->blocks, suspected->scopes[culprits.list[i]]);
        if (status == LB_OK) status = examine_block(session, suspected->program, block, known, err);
        if (status == LB_OK) status = lb_sites_append(&narrowed, &session->cure, NULL, err);
    }
    lb_sites_release(&session->background);
    lb_sites_release(&session->cure);
    session->background = base, session->cure = narrowed, session->failure = failure;
    return status;
}

/* The blocks of these classes one by one, which together cure. */
static lb_status examine_class(lb_bisect_session *session, const lb_program *program, const lb_blocks *blocks,
                               const char *letters, lb_err *err)
{
    lb_sites sites = {0};
    suspected suspected = {program, blocks, malloc((blocks->n + 1) * sizeof *suspected.scopes)};
    uint32_t *culprits = NULL, n = 0;
    char after[32], what[40];
    when when = {0};
    bool late = false;
    lb_status status = suspected.scopes ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    snprintf(after, sizeof after, "&block=%s", letters);
    snprintf(what, sizeof what, "blocks of class %s", letters);
    /* Where the failing step is the culprit's, as is usual, trials need not begin before it. */
    if (status == LB_OK) status = narrow_when(session, after, what, &when, &late, err);
    if (!late) set_when(session, &when, NULL, 0);
    if (status == LB_OK) status = list_blocks(&suspected, letters, late ? when.list : "", &sites, err);
    if (status == LB_OK) status = lb_trial_narrow(session, &sites, true, &culprits, &n, err);
    if (status == LB_OK && n == 1)
        status = examine_block(session, program, block_of_scope(blocks, suspected.scopes[culprits[0]]), &when, err);
    else if (status == LB_OK && n)
        status = examine_each(session, &suspected, (culprit_list){&sites, culprits, n}, &when, err);
    lb_sites_release(&sites);
    free(suspected.scopes);
    free(culprits);
    free(when.rows);
    return status;
}

static lb_status try_class(lb_bisect_session *session, const lb_program *program, const lb_blocks *blocks,
                           const char *letters, bool *found, lb_err *err)
{
    lb_sites whole = {0};
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    lb_site_form form = {LB_SWAP_SKIP, "", "block=", "", ','};
    bool any = false;
    for (uint32_t i = 0; i < blocks->n; i++) any |= strchr(letters, blocks->rows[i].letter) != NULL;
    lb_sites_name(&whole, strlen(letters) == 1 ? "blocks of class %s skipped" : "blocks of classes %s skipped",
                  letters);
    lb_status status = any ? lb_sites_add(&whole, &form, letters, err) : LB_OK;
    if (status == LB_OK && any) status = lb_trial_run(session, &whole, NULL, "whole", &outcome, err);
    if (status == LB_OK && outcome == LB_OUTCOME_CURED) {
        *found = true;
        status = lb_stage_cure_set(session, &whole, NULL, 0, err);
        if (status == LB_OK) status = examine_class(session, program, blocks, letters, err);
    }
    lb_sites_release(&whole);
    return status;
}

lb_status lb_stage_block(lb_bisect_session *session, bool *found, lb_err *err)
{
    static const char *const classes[] = {"E", "R", "M", "A", "D", "AD"};
    lb_blocks blocks;
    const lb_program *program = NULL;
    LB_TRY(lb_trial_stage_begin(session, "block", err));
    LB_TRY(blocks_of(session, &blocks, &program, err));
    lb_status status = LB_OK;
    const char *letter = "";
    char present[8] = "";
    for (uint32_t i = 0; i < blocks.n; i++)
        if (!strchr(present, blocks.rows[i].letter) && strlen(present) < 7) strncat(present, &blocks.rows[i].letter, 1);
    if (status == LB_OK) status = examine_origin(session, &blocks, found, err);
    const bool direct = *found;
    if (status == LB_OK && !direct) status = lb_stage_precision_note(session, err);
    for (size_t i = 0; i < sizeof classes / sizeof *classes && status == LB_OK && !*found; i++) {
        bool both = strchr(present, 'A') && strchr(present, 'D');
        if (classes[i][1] && !both) continue;
        letter = classes[i];
        status = try_class(session, program, &blocks, letter, found, err);
    }
    if (status == LB_OK) {
        if (direct)
            lb_trial_stage_end(session, "cured", "without the module that breaks first");
        else if (!blocks.n)
            lb_trial_stage_end(session, "none", "no residual stream was recognised");
        else if (*found)
            lb_trial_stage_end(session, "cured", "without blocks of class %s", letter);
        else
            lb_trial_stage_end(session, "cleared", "fails without the blocks of any class");
    }
    lb_blocks_release(&blocks);
    return status;
}
