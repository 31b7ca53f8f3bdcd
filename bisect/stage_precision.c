/* The precision stage: every float below f32 in f32, then the smallest region that needs it. See stages.h.
 *
 * A region must hold both ends: what writes a narrow value and what reads it, for at a region's border values are rounded as
 * they were. So sites are layers, then ops, that touch narrow floats, not casts alone.
 */
#include "stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool narrow_value(const lb_program *p, uint32_t v)
{
    return v != LB_NONE && lb_dtype_is_float(p->values[v].dtype) && lb_dtype_bits(p->values[v].dtype) < 32;
}

typedef struct narrow_reader {
    const lb_program *p;
    bool found;
} narrow_reader;

static void note_narrow(void *context, uint32_t value)
{
    narrow_reader *r = context;
    r->found |= narrow_value(r->p, value);
}

/* Reads or gives a float below f32. */
static bool narrow_op(const lb_program *p, const lb_op *op)
{
    narrow_reader r = {p, false};
    if (op->flags & LB_OP_VIEW || !strncmp(lb_op_name(p, op), "lb::", 4)) return false;
    for (uint32_t k = 0; k < op->results; k++) r.found |= narrow_value(p, lb_op_results(p, op)[k]);
    for (uint32_t k = 0; k < op->written; k++) r.found |= narrow_value(p, lb_op_written(p, op)[k]);
    if (!r.found) lb_op_each_input(p, op, note_narrow, &r);
    return r.found;
}

/* One site per layer that touches narrow floats in this step, in order of execution; ops outside every module go by phase. */
static lb_status list_layers(lb_inquiry *q, int64_t step, lb_sites *sites, uint32_t **scopes, lb_err *err)
{
    const lb_program *p = lb_inquiry_program(q, q->failure.rank, step);
    uint8_t *seen = p ? calloc(p->n_scopes + 8, 1) : NULL;
    *scopes = p ? malloc((p->n_scopes + 8) * sizeof **scopes) : NULL;
    if (p && (!seen || !*scopes)) {
        free(seen);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    char before[64];
    snprintf(before, sizeof before, "step=%" PRId64 "&^(?:", step);
    lb_site_form in_layers = {LB_SWAP_PRECISION, "f32", before, ")/", '|'};
    char phases[64];
    snprintf(phases, sizeof phases, "step=%" PRId64 "&^/&phase=", step);
    lb_site_form outside = {LB_SWAP_PRECISION, "f32", phases, "", ','};
    lb_status status = LB_OK;
    for (uint32_t i = 0; p && i < p->n_ops && status == LB_OK; i++) {
        const lb_op *op = &p->ops[i];
        uint32_t slot = op->scope ? op->scope : p->n_scopes + op->phase;
        if (seen[slot] || !narrow_op(p, op)) continue;
        seen[slot] = 1;
        (*scopes)[sites->n] = op->scope;
        char pattern[320];
        lb_escape(lb_op_layer(p, op), pattern, sizeof pattern);
        status = op->scope ? lb_sites_add(sites, &in_layers, pattern, err)
                           : lb_sites_add(sites, &outside, lb_phase_name((lb_phase)op->phase), err);
    }
    free(seen);
    return status;
}

/* One site per narrow op of these layers in that step; site k is op rows[k]. */
static lb_status list_ops(lb_inquiry *q, int64_t step, const uint32_t *scopes, uint32_t n_scopes,
                          lb_sites *sites, uint32_t **rows, lb_err *err)
{
    const lb_program *p = lb_inquiry_program(q, q->failure.rank, step);
    *rows = malloc(((size_t)p->n_ops + 1) * sizeof **rows);
    if (!*rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    char before[64], body[16];
    snprintf(before, sizeof before, "step=%" PRId64 "&index=", step);
    lb_site_form form = {LB_SWAP_PRECISION, "f32", before, "", ','};
    for (uint32_t i = 0; i < p->n_ops; i++) {
        bool inside = false;
        for (uint32_t k = 0; k < n_scopes; k++) inside |= p->ops[i].scope == scopes[k];
        if (!inside || !narrow_op(p, &p->ops[i])) continue;
        (*rows)[sites->n] = i;
        snprintf(body, sizeof body, "%u", i);
        LB_TRY(lb_sites_add(sites, &form, body, err));
    }
    return LB_OK;
}

static bool gives_narrow(const lb_program *p, uint32_t row)
{
    const lb_op *op = &p->ops[row];
    for (uint32_t k = 0; k < op->results; k++)
        if (narrow_value(p, lb_op_results(p, op)[k])) return true;
    return false;
}

/* Steps after the first that the cure needs, changed beside what is tried in the first. */
static lb_status add_later(lb_sites *sites, const char *later, lb_err *err)
{
    lb_site_form form = {LB_SWAP_PRECISION, "f32", "step=", "", ','};
    return *later ? lb_sites_add(sites, &form, later, err) : LB_OK;
}

/* One culprit per layer of the region: the first op that gives a narrow float there, which is the one that loses. */
static lb_status blame_ops(lb_inquiry *q, const lb_program *p, const uint32_t *rows, uint32_t n, bool later,
                           lb_err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t size = 0, row = rows[i];
        bool first = true;
        for (uint32_t k = 0; k < n; k++) {
            if (p->ops[rows[k]].scope != p->ops[rows[i]].scope) continue;
            first &= k >= i;
            if (!gives_narrow(p, row) && gives_narrow(p, rows[k])) row = rows[k];
            size++;
        }
        if (!first) continue;
        lb_culprit *c;
        LB_TRY(lb_culprit_add(q, LB_AXIS_PRECISION, q->failure.rank, p->step, row, &c, err));
        LB_TRY(lb_culprit_all_ranks(q, c, err));
        snprintf(c->why, sizeof c->why,
                 "With %u %s of this layer%s kept in f32 instead of being rounded below it, and nothing else "
                 "changed, the "
                 "window ends without the failure.",
                 size, size == 1 ? "op" : "ops", later ? " (and later steps)" : "");
    }
    return LB_OK;
}

static lb_status narrow_to_ops(lb_inquiry *q, int64_t step, const uint32_t *scopes, uint32_t n_scopes,
                               const char *later, lb_err *err)
{
    lb_sites sites = {0};
    uint32_t *rows = NULL, *found = NULL, n = 0;
    const lb_program *p = lb_inquiry_program(q, q->failure.rank, step);
    lb_status status = list_ops(q, step, scopes, n_scopes, &sites, &rows, err);
    uint32_t n_ops = sites.n;
    if (status == LB_OK) status = add_later(&sites, later, err);
    if (status == LB_OK) status = lb_narrow(q, &sites, &found, &n, err);
    if (status == LB_OK && n) status = lb_cure_set(q, &sites, found, n, err);
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n; i++)
        if (found[i] < n_ops) found[n_rows++] = rows[found[i]];
    if (status == LB_OK && n_rows) status = blame_ops(q, p, found, n_rows, *later != 0, err);
    for (uint32_t i = 0; status == LB_OK && !n_rows && i < n_scopes;
         i++) { /* no smaller region than the layers */
        lb_culprit *c;
        status = lb_culprit_add(q, LB_AXIS_PRECISION, q->failure.rank, step, LB_NONE, &c, err);
        if (status != LB_OK) break;
        snprintf(c->layer, sizeof c->layer, "%s", lb_program_text(p, p->scopes[scopes[i]].path));
        snprintf(c->why, sizeof c->why, "This layer needs f32 as a whole: no smaller set of its ops cures.");
        status = lb_culprit_all_ranks(q, c, err);
    }
    lb_sites_release(&sites);
    free(rows);
    free(found);
    return status;
}

static lb_status narrow_to_layers(lb_inquiry *q, int64_t step, const char *later, lb_err *err)
{
    lb_sites layers = {0};
    uint32_t *scopes = NULL, *guilty = NULL, n = 0, n_scopes = 0;
    lb_status status = list_layers(q, step, &layers, &scopes, err);
    uint32_t n_layers = layers.n;
    if (status == LB_OK) status = add_later(&layers, later, err);
    if (status == LB_OK) status = lb_narrow(q, &layers, &guilty, &n, err);
    if (status == LB_OK && n) status = lb_cure_set(q, &layers, guilty, n, err);
    for (uint32_t i = 0; i < n; i++)
        if (guilty[i] < n_layers) guilty[n_scopes++] = scopes[guilty[i]];
    if (status == LB_OK && n_scopes)
        status = narrow_to_ops(q, step, guilty, n_scopes, later, err);
    else if (status == LB_OK) {
        lb_culprit *c;
        status = lb_culprit_add(q, LB_AXIS_PRECISION, q->failure.rank, step, LB_NONE, &c, err);
        if (status == LB_OK)
            snprintf(c->why, sizeof c->why,
                     "No smaller region than all floats below f32 of the steps named cures.");
    }
    lb_sites_release(&layers);
    free(scopes);
    free(guilty);
    return status;
}

static lb_status narrow_precision(lb_inquiry *q, lb_err *err)
{
    lb_sites steps = {0};
    lb_site_form form = {LB_SWAP_PRECISION, "f32", "step=", "", ','};
    uint32_t *found = NULL, n = 0;
    char later[512] = "";
    lb_status status = lb_sites_add_steps(q, &form, q->n_steps, &steps, err);
    if (status == LB_OK) status = lb_narrow(q, &steps, &found, &n, err);
    if (status == LB_OK && n) status = lb_cure_set(q, &steps, found, n, err);
    if (n) lb_step_list(q, found + 1, n - 1, later, sizeof later);
    if (status == LB_OK) status = narrow_to_layers(q, n ? q->steps[found[0]] : q->failure.step, later, err);
    lb_sites_release(&steps);
    free(found);
    return status;
}

lb_status lb_stage_precision(lb_inquiry *q, bool *found, lb_err *err)
{
    lb_sites whole = {0};
    lb_outcome outcome = LB_OUTCOME_SAME;
    bool any = false;
    lb_status status = lb_stage_begin(q, "precision", err);
    for (uint32_t s = 0; s < q->n_steps && !any; s++) {
        const lb_program *p = lb_inquiry_program(q, q->failure.rank, q->steps[s]);
        for (uint32_t i = 0; p && i < p->n_ops && !any; i++) any = narrow_op(p, &p->ops[i]);
    }
    if (status == LB_OK && !any) {
        lb_stage_end(q, "none", "nothing here is narrower than f32");
        return LB_OK;
    }
    if (status == LB_OK) status = lb_sites_add_all(&whole, LB_SWAP_PRECISION, "f32", err);
    if (status == LB_OK) status = lb_try(q, &whole, NULL, "whole", &outcome, err);
    if (status == LB_OK && outcome == LB_OUTCOME_CURED) {
        *found = true;
        status = lb_cure_set(q, &whole, NULL, 0, err);
        if (status == LB_OK) status = narrow_precision(q, err);
        if (status == LB_OK) lb_stage_end(q, "cured", "by f32 in place of every float below it");
    } else if (status == LB_OK)
        lb_stage_end(q, outcome == LB_OUTCOME_INVALID ? "undecided" : "cleared",
                     "%s with f32 in place of every float below it",
                     outcome == LB_OUTCOME_INVALID ? "could not be run" : "fails");
    lb_sites_release(&whole);
    return status;
}
