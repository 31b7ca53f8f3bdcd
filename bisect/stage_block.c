/* The block stage: which residual blocks, then which one, which step, which op. See stages.h.
 *
 * Skipping cures on either side of a fault inside a block (what feeds it, what it feeds), so skips find the block and the
 * step, and the op is found otherwise: the first in the block that broke its result, unless keeping an earlier one in f64
 * cures (an underflow that becomes 0/0 later).
 */
#include "stages.h"

#include "block.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lb_status blocks_of(lb_inquiry *q, lb_blocks *blocks, const lb_program **program, lb_err *err)
{
    *blocks = (lb_blocks){0};
    for (uint32_t s = 0; s < q->n_steps; s++) {
        const lb_program *p = lb_inquiry_program(q, q->failure.rank, q->steps[s]);
        lb_flow *flow;
        if (!p) continue;
        LB_TRY(lb_flow_new(p, &flow, err));
        lb_status status = lb_blocks_find(p, flow, blocks, err);
        lb_flow_free(flow);
        LB_TRY(status);
        *program = p;
        if (blocks->n) return LB_OK;
        lb_blocks_release(blocks);
    }
    return LB_OK;
}

/* ---- the op ----------------------------------------------------------------------------------------------------- */

/* The first op inside the block and step that broke its result. */
static uint32_t first_broken_inside(const lb_inquiry *q, const char *block, int64_t step)
{
    const lb_trace_row *row = lb_trace_find(q->trace, q->failure.rank, step);
    size_t n = strlen(block);
    for (uint32_t i = 0; row && i < row->program->n_ops; i++) {
        const char *layer = lb_op_layer(row->program, &row->program->ops[i]);
        if (!strncmp(layer, block, n) && (!layer[n] || layer[n] == '.') && lb_trace_broke(row, i)) return i;
    }
    return LB_NONE;
}

/* Nothing there is non-finite: the op whose result grew most against the step before, at least a hundredfold. */
static uint32_t most_grown_inside(const lb_inquiry *q, const char *block, int64_t step)
{
    const lb_trace_row *row = lb_trace_find(q->trace, q->failure.rank, step), *before = NULL;
    size_t n = strlen(block);
    uint32_t best = LB_NONE;
    double growth = 100;
    for (uint32_t s = 0; s < q->n_steps && q->steps[s] < step; s++)
        before = lb_trace_find(q->trace, q->failure.rank, q->steps[s]);
    for (uint32_t i = 0; row && before && i < row->program->n_ops && i < before->program->n_ops; i++) {
        const char *layer = lb_op_layer(row->program, &row->program->ops[i]);
        if (strncmp(layer, block, n) || (layer[n] && layer[n] != '.') || !(before->sums[i].largest > 0))
            continue;
        if (row->program->ops[i].name !=
                before->program->ops[i].name && /* programs of one archive share no string table */
            strcmp(lb_op_name(row->program, &row->program->ops[i]),
                   lb_op_name(before->program, &before->program->ops[i])))
            continue;
        if (row->sums[i].largest / before->sums[i].largest > growth * 1.01)
            growth = row->sums[i].largest / before->sums[i].largest, best = i;
    }
    return best;
}

/* Float ops of the block in that step, up to `last`. */
static lb_status list_wide_ops(lb_inquiry *q, const char *block, int64_t step, uint32_t last, lb_sites *sites,
                               uint32_t *rows, lb_err *err)
{
    const lb_program *p = lb_inquiry_program(q, q->failure.rank, step);
    size_t n = strlen(block);
    char before[64], body[16];
    snprintf(before, sizeof before, "step=%" PRId64 "&index=", step);
    lb_site_form form = {LB_SWAP_PRECISION, "f64", before, "", ','};
    for (uint32_t i = 0; i < p->n_ops && sites->n < 4096; i++) {
        const lb_op *op = &p->ops[i];
        const char *layer = lb_op_layer(p, op);
        if (strncmp(layer, block, n) || (layer[n] && layer[n] != '.') || !lb_op_defines(p, op) ||
            op->phase != p->ops[last].phase)
            continue;
        if (!strncmp(lb_op_name(p, op), "lb::", 4)) continue;
        rows[sites->n] = i;
        snprintf(body, sizeof body, "%u", i);
        LB_TRY(lb_sites_add(sites, &form, body, err));
    }
    lb_sites_name(sites, "ops of %s up to the one that broke, in f64", block);
    return LB_OK;
}

/* Is there an op before `broken` that only needs f64? Then it is the culprit: what it lost was finite. */
static lb_status earlier_loss(lb_inquiry *q, const char *block, int64_t step, uint32_t *broken, bool *wide,
                              lb_err *err)
{
    const lb_program *p = lb_inquiry_program(q, q->failure.rank, step);
    lb_sites sites = {0};
    uint32_t *rows = malloc(((size_t)p->n_ops + 1) * sizeof *rows), *found = NULL, n = 0;
    lb_status status = rows ? list_wide_ops(q, block, step, *broken, &sites, rows, err)
                            : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = lb_narrow(q, &sites, &found, &n, err);
    for (uint32_t i = 0; i < n; i++) {
        *wide = true;
        if (rows[found[i]] < *broken) *broken = rows[found[i]];
    }
    lb_sites_release(&sites);
    free(rows);
    free(found);
    return status;
}

/* ---- block and step ------------------------------------------------------------------------------------------------ */

static lb_status list_blocks(const lb_program *p, const lb_blocks *blocks, const char *letters, lb_sites *sites,
                             uint32_t *suspects, lb_err *err)
{
    lb_site_form form = {LB_SWAP_SKIP, "", "layer=", "", '|'};
    for (uint32_t i = 0; i < blocks->n; i++) {
        char pattern[320];
        if (!strchr(letters, blocks->rows[i].letter)) continue;
        lb_escape(lb_program_text(p, p->scopes[blocks->rows[i].scope].path), pattern, sizeof pattern);
        suspects[sites->n] = blocks->rows[i].scope;
        LB_TRY(lb_sites_add(sites, &form, pattern, err));
    }
    lb_sites_name(sites, "blocks of class %s skipped", letters);
    return LB_OK;
}

/* The steps in which the block must be skipped, first and as text: damage in a parameter stays for all later ones. */
static lb_status find_steps(lb_inquiry *q, const char *block, int64_t *step, char *list, size_t size,
                            lb_err *err)
{
    lb_sites sites = {0};
    uint32_t *found = NULL, n = 0;
    char pattern[320], after[340];
    lb_escape(block, pattern, sizeof pattern);
    snprintf(after, sizeof after, "&layer=%s", pattern);
    *step = q->failure.step;
    lb_site_form form = {LB_SWAP_SKIP, "", "step=", after, ','};
    lb_status status = lb_sites_add_steps(q, &form, q->n_steps, &sites, err);
    lb_sites_name(&sites, "steps with %s skipped", block);
    if (status == LB_OK) status = lb_narrow(q, &sites, &found, &n, err);
    snprintf(list, size, "%" PRId64, *step);
    if (status == LB_OK && n) {
        *step = q->steps[found[0]];
        lb_step_list(q, found, n, list, size);
        status = lb_cure_set(q, &sites, found, n, err);
    }
    lb_sites_release(&sites);
    free(found);
    return status;
}

/* The deepest module around the op whose skipping alone cures is the better cure. */
static lb_status deepen(lb_inquiry *q, const lb_program *p, uint32_t row, uint32_t block, const char *steps,
                        lb_err *err)
{
    for (uint32_t scope = p->ops[row].scope; scope && scope != block && scope != LB_NONE;
         scope = p->scopes[scope].parent) {
        lb_sites site = {0};
        lb_outcome outcome = LB_OUTCOME_SAME;
        char pattern[320];
        lb_escape(lb_program_text(p, p->scopes[scope].path), pattern, sizeof pattern);
        char before[300];
        snprintf(before, sizeof before, "step=%s&layer=", steps);
        lb_site_form form = {LB_SWAP_SKIP, "", before, "", '|'};
        lb_status status = lb_sites_add(&site, &form, pattern, err);
        lb_sites_name(&site, "%s skipped in step %s", lb_program_text(p, p->scopes[scope].path), steps);
        if (status == LB_OK) status = lb_try(q, &site, NULL, "confirm", &outcome, err);
        if (status == LB_OK && outcome == LB_OUTCOME_CURED) status = lb_cure_set(q, &site, NULL, 0, err);
        lb_sites_release(&site);
        LB_TRY(status);
        if (outcome == LB_OUTCOME_CURED) break;
    }
    return LB_OK;
}

/* Nothing in the module's own ops: then what the optimizer, or an op outside every module, wrote into its parameters: the one
 * that grew most. Its row and its parameter's layer. */
static uint32_t most_grown_write(const lb_inquiry *q, const char *block, int64_t step, char *layer, size_t size)
{
    const lb_trace_row *row = lb_trace_find(q->trace, q->failure.rank, step);
    const lb_program *p = row ? row->program : NULL;
    uint32_t best = LB_NONE;
    double growth = 100;
    size_t n = strlen(block);
    for (uint32_t g = 0; p && g < p->n_group_params; g++) {
        const char *name = lb_program_text(p, p->group_params[g].name), *dot = strrchr(name, '.');
        if (strncmp(name, block, n) || name[n] != '.' || !dot) continue;
        double before = 0;
        for (uint32_t i = 0; i < p->n_ops; i++) {
            const lb_op *op = &p->ops[i];
            bool writes = false;
            for (uint32_t w = 0; w < op->written; w++) {
                uint32_t v = lb_op_written(p, op)[w];
                writes |= v != LB_NONE && p->values[v].storage == p->group_params[g].storage;
            }
            bool source = !strcmp(lb_op_name(p, op), "lb::source") && op->results &&
                          p->values[lb_op_results(p, op)[0]].storage == p->group_params[g].storage;
            if (source) before = lb_value_largest(q, p, lb_op_results(p, op)[0]);
            if (!writes || !(before > 0)) continue;
            double now = row->bits[i] & LB_TRACE_BAD ? INFINITY : row->sums[i].largest;
            if (!(now / before > growth)) continue;
            growth = now / before, best = i;
            snprintf(layer, size, "%.*s", (int)(dot - name), name);
        }
    }
    return best;
}

static lb_status examine_block(lb_inquiry *q, const lb_program *first, const lb_block *block, lb_err *err)
{
    const char *path = lb_program_text(first, first->scopes[block->scope].path);
    int64_t step;
    char steps[256], owner[160] = "";
    lb_culprit *c;
    bool wide = false;
    LB_TRY(find_steps(q, path, &step, steps, sizeof steps, err));
    uint32_t row = first_broken_inside(q, path, step);
    bool broke = row != LB_NONE, grew = false;
    if (!broke) row = most_grown_inside(q, path, step);
    if (row == LB_NONE) row = most_grown_write(q, path, step, owner, sizeof owner), grew = row != LB_NONE;
    const lb_program *p = lb_inquiry_program(q, q->failure.rank, step);
    if (broke) LB_TRY(earlier_loss(q, path, step, &row, &wide, err));
    if (row != LB_NONE && !grew) LB_TRY(deepen(q, p, row, block->scope, steps, err));
    LB_TRY(lb_culprit_add(q, LB_AXIS_BLOCK, q->failure.rank, step, row, &c, err));
    c->block = block->letter;
    if (row == LB_NONE || grew) snprintf(c->layer, sizeof c->layer, "%s", grew ? owner : path);
    LB_TRY(lb_culprit_all_ranks(q, c, err));
    snprintf(c->why, sizeof c->why,
             "Without block %s in step %" PRId64 ", %s, the window ends without the failure.%s", path, step,
             lb_besides(q),
             wide    ? " The op named is the first that the cure by f64 needs."
             : broke ? " The op named is the first in it whose inputs are finite and whose result is not."
             : grew
                 ? " The op named wrote the parameter of it that grew most; skipping it leaves that as it was."
                 : "");
    return LB_OK;
}

/* ---- classes ------------------------------------------------------------------------------------------------------ */

static const lb_block *block_of_scope(const lb_blocks *blocks, uint32_t scope)
{
    for (uint32_t k = 0; k < blocks->n; k++)
        if (blocks->rows[k].scope == scope) return &blocks->rows[k];
    return NULL;
}

/* Adds to the background what cures the others: narrowed where they have been examined, skipped whole where not. */
static lb_status cure_others(lb_inquiry *q, const lb_sites *base, const lb_sites *narrowed,
                             const lb_sites *sites, const uint32_t *culprits, uint32_t n, uint32_t from,
                             lb_err *err)
{
    lb_replay_summary summary = {0};
    uint64_t *later = calloc(LB_SITE_WORDS(sites->n) + 1, sizeof *later);
    if (!later) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = from; i < n; i++) later[culprits[i] / 64] |= (uint64_t)1 << (culprits[i] % 64);
    lb_sites_release(&q->background);
    lb_status status = lb_sites_append(&q->background, base, NULL, err);
    if (status == LB_OK) status = lb_sites_append(&q->background, narrowed, NULL, err);
    if (status == LB_OK) status = lb_sites_append(&q->background, sites, later, err);
    free(later);
    return status == LB_OK ? lb_inquiry_retrace(q, &summary, err) : status;
}

/* Several blocks of one class: each is examined while the others are cured. */
static lb_status examine_each(lb_inquiry *q, const lb_program *p, const lb_blocks *blocks,
                              const uint32_t *suspects, const lb_sites *sites, const uint32_t *culprits,
                              uint32_t n, lb_err *err)
{
    lb_sites base = q->background, narrowed = {0};
    lb_failure failure = q->failure;
    lb_status status = LB_OK;
    q->background = (lb_sites){0};
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        status = cure_others(q, &base, &narrowed, sites, culprits, n, i + 1, err);
        if (status == LB_OK) status = examine_block(q, p, block_of_scope(blocks, suspects[culprits[i]]), err);
        if (status == LB_OK) status = lb_sites_append(&narrowed, &q->cure, NULL, err);
    }
    lb_sites_release(&q->background);
    lb_sites_release(&q->cure);
    q->background = base, q->cure = narrowed, q->failure = failure;
    return status;
}

static lb_status try_class(lb_inquiry *q, const lb_program *p, const lb_blocks *blocks, const char *letters,
                           bool *found, lb_err *err)
{
    lb_sites whole = {0}, sites = {0};
    lb_outcome outcome = LB_OUTCOME_SAME;
    uint32_t *suspects = malloc((blocks->n + 1) * sizeof *suspects), *culprits = NULL, n = 0;
    lb_site_form form = {LB_SWAP_SKIP, "", "block=", "", ','};
    bool any = false;
    for (uint32_t i = 0; i < blocks->n; i++) any |= strchr(letters, blocks->rows[i].letter) != NULL;
    lb_status status = suspects ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_sites_name(&whole, strlen(letters) == 1 ? "blocks of class %s skipped" : "blocks of classes %s skipped",
                  letters);
    if (status == LB_OK && any) status = lb_sites_add(&whole, &form, letters, err);
    if (status == LB_OK && any) status = lb_try(q, &whole, NULL, "whole", &outcome, err);
    if (status == LB_OK && outcome == LB_OUTCOME_CURED) {
        *found = true;
        status = lb_cure_set(q, &whole, NULL, 0, err);
        if (status == LB_OK) status = list_blocks(p, blocks, letters, &sites, suspects, err);
        if (status == LB_OK) status = lb_narrow(q, &sites, &culprits, &n, err);
        if (status == LB_OK && n == 1)
            status = examine_block(q, p, block_of_scope(blocks, suspects[culprits[0]]), err);
        else if (status == LB_OK && n)
            status = examine_each(q, p, blocks, suspects, &sites, culprits, n, err);
    }
    lb_sites_release(&whole);
    lb_sites_release(&sites);
    free(suspects);
    free(culprits);
    return status;
}

lb_status lb_stage_block(lb_inquiry *q, bool *found, lb_err *err)
{
    static const char *const classes[] = {"E", "R", "M", "A", "D", "AD"};
    lb_blocks blocks;
    const lb_program *p = NULL;
    LB_TRY(lb_stage_begin(q, "block", err));
    LB_TRY(blocks_of(q, &blocks, &p, err));
    lb_status status = LB_OK;
    const char *letter = "";
    char present[8] = "";
    for (uint32_t i = 0; i < blocks.n; i++)
        if (!strchr(present, blocks.rows[i].letter) && strlen(present) < 7)
            strncat(present, &blocks.rows[i].letter, 1);
    for (size_t i = 0; i < sizeof classes / sizeof *classes && status == LB_OK && !*found; i++) {
        bool both = strchr(present, 'A') && strchr(present, 'D');
        if (classes[i][1] && !both) continue;
        letter = classes[i];
        status = try_class(q, p, &blocks, letter, found, err);
    }
    if (status == LB_OK) {
        if (!blocks.n)
            lb_stage_end(q, "none", "no residual stream was recognised");
        else if (*found)
            lb_stage_end(q, "cured", "without blocks of class %s", letter);
        else
            lb_stage_end(q, "cleared", "fails without the blocks of any class");
    }
    lb_blocks_release(&blocks);
    return status;
}
