/* One class of blocks taken from the other side: see lastbit/parity.h. */
#include "parity/hybrid.h"
#include "pair/token_heads.h"
#include "parity/token_set.h"

#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void close_model(lb_model *model)
{
    if (model->flow) lb_blocks_release(&model->blocks);
    lb_slice_flow_free(model->flow);
    lb_capture_close(model->capture);
}

static lb_status open_model(const char *path, lb_model *model, lb_err *err)
{
    const int64_t *steps;
    const int32_t *ranks;
    lb_token_heads heads;
    LB_TRY(lb_capture_open(path, &model->capture, err));
    if (!lb_capture_steps(model->capture, &steps) || !lb_capture_ranks(model->capture, &ranks))
        return lb_fail(err, LB_ERR_INVALID, "%s: no step was recorded", path);
    LB_TRY(lb_capture_program(model->capture, ranks[0], steps[0], &model->program, err));
    LB_TRY(lb_token_heads_find(model->program, NULL, NULL, &heads, err));
    if (heads.n) model->scores = heads.list[heads.n - 1].scores, model->end = heads.list[heads.n - 1].op;
    lb_token_heads_release(&heads);
    if (!model->end) return lb_fail(err, LB_ERR_INVALID, "%s: its first step scores no tokens", path);
    LB_TRY(lb_slice_flow_new(model->program, &model->flow, err));
    return lb_blocks_find(model->program, model->flow, &model->blocks, err);
}

typedef struct comparison {
    const lb_model *base, *donor;
    const lb_token_set *wanted; /* what the donor said */
    const lb_parity_options *options;
    lb_block_swap *rows;
    uint32_t n;
    lb_err *err;
} comparison;

static lb_status score(comparison *comparison, const lb_tensor *scores, lb_block_swap *row)
{
    lb_token_set *set;
    lb_parity_report *report;
    lb_parity_options plain = *comparison->options;
    plain.noise = NULL, plain.worst = 0;
    LB_TRY(lb_token_set_of_step(comparison->base->capture, comparison->base->program, scores, &set, comparison->err));
    lb_status status = lb_parity_run(comparison->wanted, set, &plain, &report, comparison->err);
    lb_token_set_free(set);
    LB_TRY(status);
    row->all = report->all, row->all.name = "all";
    row->run = report->all.count > 0, row->worst = 0;
    if (!row->run) snprintf(row->message, sizeof row->message, "no token was scored on both sides");
    for (uint32_t i = 0; i < report->n_kinds; i++) {
        if (i && report->kinds[i].k3 <= row->worst) continue;
        row->worst = report->kinds[i].k3;
        snprintf(row->worst_kind, sizeof row->worst_kind, "%.39s", report->kinds[i].name);
    }
    lb_parity_report_free(report);
    return LB_OK;
}

/* A class that cannot be exchanged is a row that says why. */
static lb_status exchange_classes(comparison *comparison, const char *classes)
{
    lb_block_swap *more = lb_array_grow(comparison->rows, comparison->n, sizeof *more);
    if (!more) return lb_fail(comparison->err, LB_ERR_NOMEM, "out of memory");
    comparison->rows = more;
    lb_block_swap *row = &more[comparison->n++];
    *row = (lb_block_swap){.worst = NAN};
    snprintf(row->classes, sizeof row->classes, "%s", classes);
    if (!*classes) return score(comparison, NULL, row);
    lb_err why = LB_ERR_INIT;
    lb_tensor scores;
    lb_status status = lb_hybrid_run(comparison->base, comparison->donor, classes, &scores, &row->blocks, &why);
    if (status == LB_ERR_NOMEM) return lb_fail(comparison->err, status, "%s", why.message);
    if (status == LB_OK && !row->blocks)
        snprintf(row->message, sizeof row->message, "the sides have no block of this class in common");
    if (status != LB_OK) snprintf(row->message, sizeof row->message, "%.230s", why.message);
    if (status == LB_OK && row->blocks) status = score(comparison, &scores, row);
    free(scores.data);
    return status == LB_OK || why.status != LB_OK ? LB_OK : status;
}

/* The donor run by itself, without an exchange: what replay alone leaves. */
static lb_status measure_floor(comparison *compared, lb_block_swap *floor)
{
    lb_err why = LB_ERR_INIT;
    lb_tensor scores;
    *floor = (lb_block_swap){.worst = NAN};
    comparison own = *compared;
    own.base = compared->donor;
    lb_status status = lb_hybrid_run(compared->donor, compared->donor, "", &scores, &floor->blocks, &why);
    if (status == LB_OK) status = score(&own, &scores, floor);
    if (why.status == LB_ERR_NOMEM) return lb_fail(compared->err, why.status, "%s", why.message);
    if (why.status != LB_OK) snprintf(floor->message, sizeof floor->message, "%.230s", why.message), status = LB_OK;
    free(scores.data);
    return status;
}

static lb_status exchange_each(comparison *comparison)
{
    char all[8] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < comparison->base->blocks.n; i++) {
        const char letter = comparison->base->blocks.rows[i].letter;
        if (n < sizeof all - 1 && !strchr(all, letter)) all[n++] = letter, all[n] = '\0';
    }
    for (size_t i = 0; i < n; i++) LB_TRY(exchange_classes(comparison, (const char[]){all[i], '\0'}));
    return n > 1 ? exchange_classes(comparison, all) : LB_OK;
}

lb_status lb_block_swaps(const char *base_path, const char *donor_path, const char *classes,
                         const lb_parity_options *options, lb_block_swap *floor, lb_block_swap **rows, uint32_t *n,
                         lb_err *err)
{
    lb_err own = LB_ERR_INIT;
    lb_parity_options o = LB_PARITY_OPTIONS_INIT;
    if (options) o = *options;
    if (!err) err = &own;
    lb_model base = {0}, donor = {0};
    lb_token_set *wanted = NULL;
    comparison comparison = {.base = &base, .donor = &donor, .options = &o, .err = err};
    lb_status status = open_model(base_path, &base, err);
    if (status == LB_OK) status = open_model(donor_path, &donor, err);
    if (status == LB_OK) status = lb_token_set_of_step(donor.capture, donor.program, NULL, &wanted, err);
    comparison.wanted = wanted;
    if (status == LB_OK) status = measure_floor(&comparison, floor);
    if (status == LB_OK) status = exchange_classes(&comparison, "");
    if (status == LB_OK)
        status = classes && *classes ? exchange_classes(&comparison, classes) : exchange_each(&comparison);
    lb_token_set_free(wanted);
    close_model(&base), close_model(&donor);
    if (status != LB_OK) free(comparison.rows), comparison.rows = NULL, comparison.n = 0;
    *rows = comparison.rows, *n = comparison.n;
    return status;
}
