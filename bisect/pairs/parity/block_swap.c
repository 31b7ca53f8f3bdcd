/* One class of blocks taken from the other side: see lastbit/parity.h. */
#include "parity/hybrid.h"
#include "pair/token_heads.h"
#include "parity/token_set.h"

#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void close_model(lb_model *m)
{
    if (m->flow) lb_blocks_release(&m->blocks);
    lb_slice_flow_free(m->flow);
    lb_capture_close(m->capture);
}

static lb_status open_model(const char *path, lb_model *m, lb_err *err)
{
    const int64_t *steps;
    const int32_t *ranks;
    lb_token_heads heads;
    LB_TRY(lb_capture_open(path, &m->capture, err));
    if (!lb_capture_steps(m->capture, &steps) || !lb_capture_ranks(m->capture, &ranks))
        return lb_fail(err, LB_ERR_INVALID, "%s: no step was recorded", path);
    LB_TRY(lb_capture_program(m->capture, ranks[0], steps[0], &m->program, err));
    LB_TRY(lb_token_heads_find(m->program, NULL, NULL, &heads, err));
    if (heads.n) m->scores = heads.list[heads.n - 1].scores, m->end = heads.list[heads.n - 1].op;
    lb_token_heads_release(&heads);
    if (!m->end) return lb_fail(err, LB_ERR_INVALID, "%s: its first step scores no tokens", path);
    LB_TRY(lb_slice_flow_new(m->program, &m->flow, err));
    return lb_blocks_find(m->program, m->flow, &m->blocks, err);
}

typedef struct comparison {
    const lb_model *base, *donor;
    const lb_token_set *wanted; /* what the donor said */
    const lb_parity_options *options;
    lb_block_swap *rows;
    uint32_t n;
    lb_err *err;
} comparison;

static lb_status score(comparison *c, const lb_tensor *scores, lb_block_swap *row)
{
    lb_token_set *set;
    lb_parity_report *report;
    lb_parity_options plain = *c->options;
    plain.noise = NULL, plain.worst = 0;
    LB_TRY(lb_token_set_of_step(c->base->capture, c->base->program, scores, &set, c->err));
    lb_status status = lb_parity_run(c->wanted, set, &plain, &report, c->err);
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
static lb_status exchange_classes(comparison *c, const char *classes)
{
    lb_block_swap *more = lb_array_grow(c->rows, c->n, sizeof *more);
    if (!more) return lb_fail(c->err, LB_ERR_NOMEM, "out of memory");
    c->rows = more;
    lb_block_swap *row = &more[c->n++];
    *row = (lb_block_swap){.worst = NAN};
    snprintf(row->classes, sizeof row->classes, "%s", classes);
    if (!*classes) return score(c, NULL, row);
    lb_err why = LB_ERR_INIT;
    lb_tensor scores;
    lb_status status = lb_hybrid_run(c->base, c->donor, classes, &scores, &row->blocks, &why);
    if (status == LB_ERR_NOMEM) return lb_fail(c->err, status, "%s", why.message);
    if (status == LB_OK && !row->blocks)
        snprintf(row->message, sizeof row->message, "the sides have no block of this class in common");
    if (status != LB_OK) snprintf(row->message, sizeof row->message, "%.230s", why.message);
    if (status == LB_OK && row->blocks) status = score(c, &scores, row);
    free(scores.data);
    return status == LB_OK || why.status != LB_OK ? LB_OK : status;
}

/* The donor run by itself, without an exchange: what replay alone leaves. */
static lb_status measure_floor(comparison *c, lb_block_swap *floor)
{
    lb_err why = LB_ERR_INIT;
    lb_tensor scores;
    *floor = (lb_block_swap){.worst = NAN};
    comparison own = *c;
    own.base = c->donor;
    lb_status status = lb_hybrid_run(c->donor, c->donor, "", &scores, &floor->blocks, &why);
    if (status == LB_OK) status = score(&own, &scores, floor);
    if (why.status == LB_ERR_NOMEM) return lb_fail(c->err, why.status, "%s", why.message);
    if (why.status != LB_OK) snprintf(floor->message, sizeof floor->message, "%.230s", why.message), status = LB_OK;
    free(scores.data);
    return status;
}

static lb_status exchange_each(comparison *c)
{
    char all[8] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < c->base->blocks.n; i++) {
        const char letter = c->base->blocks.rows[i].letter;
        if (n < sizeof all - 1 && !strchr(all, letter)) all[n++] = letter, all[n] = '\0';
    }
    for (size_t i = 0; i < n; i++) LB_TRY(exchange_classes(c, (const char[]){all[i], '\0'}));
    return n > 1 ? exchange_classes(c, all) : LB_OK;
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
    comparison c = {.base = &base, .donor = &donor, .options = &o, .err = err};
    lb_status status = open_model(base_path, &base, err);
    if (status == LB_OK) status = open_model(donor_path, &donor, err);
    if (status == LB_OK) status = lb_token_set_of_step(donor.capture, donor.program, NULL, &wanted, err);
    c.wanted = wanted;
    if (status == LB_OK) status = measure_floor(&c, floor);
    if (status == LB_OK) status = exchange_classes(&c, "");
    if (status == LB_OK) status = classes && *classes ? exchange_classes(&c, classes) : exchange_each(&c);
    lb_token_set_free(wanted);
    close_model(&base), close_model(&donor);
    if (status != LB_OK) free(c.rows), c.rows = NULL, c.n = 0;
    *rows = c.rows, *n = c.n;
    return status;
}
