/* Flips and their margins: see routing_diff.h. */
#include "routing_diff.h"

#include "diff_report.h"
#include "flip.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One decision of one side, row-major. */
typedef struct decision {
    int64_t tokens, choices, experts;
    int64_t *ids;
    double *logits; /* NULL: not recorded */
    lb_dtype dtype;
} decision;

static int64_t last_dim(const lb_program *p, uint32_t value)
{
    const lb_layout *l = &p->values[value].layout;
    return l->ndim ? l->shape[l->ndim - 1] : 0;
}

static void release_decision(decision *d)
{
    free(d->ids), free(d->logits);
}

static bool load_decision(const lb_witness *w, const lb_routing *row, decision *d)
{
    const lb_program *p = w->program;
    lb_tensor t;
    bool exact;
    memset(d, 0, sizeof *d);
    if (row->ids == LB_NONE || !lb_witness_value(w, row->ids, &t, &exact)) return false;
    int64_t n = lb_layout_numel(&t.layout);
    d->choices = last_dim(p, row->ids);
    if (d->choices < 1 || d->choices > LB_MOST_CHOICES || !(d->ids = malloc((size_t)n * sizeof *d->ids + 1)))
        return false;
    d->tokens = n / d->choices;
    if (!lb_flip_load_ids(&t, d->ids)) return false;
    if (row->logits == LB_NONE || !lb_witness_value(w, row->logits, &t, &exact)) return true;
    d->experts = last_dim(p, row->logits), d->dtype = t.dtype;
    if (lb_layout_numel(&t.layout) != d->tokens * d->experts || !lb_dtype_is_float(t.dtype)) return true;
    d->logits = malloc((size_t)(d->tokens * d->experts) * sizeof *d->logits + 1);
    if (d->logits) lb_flip_load_scores(&t, d->logits);
    for (int64_t i = 0; d->logits && i < n; i++)
        if (d->ids[i] < 0 || d->ids[i] >= d->experts) free(d->logits), d->logits = NULL;
    return true;
}

/* ---- one token ---- */

static void weigh_flip(const decision *a, const decision *b, int64_t token, lb_flip f, lb_diff_routing *row)
{
    const double *la = a->logits + token * a->experts, *lb = b->logits ? b->logits + token * b->experts : NULL;
    const double margin = la[f.lost] - la[f.won];
    if (!(margin <= row->largest_margin)) row->largest_margin = margin;
    row->near_ties += margin <= lb_flip_rounding(la, a->experts, a->dtype);
    row->explained += lb && margin <= fabs(la[f.lost] - lb[f.lost]) + fabs(la[f.won] - lb[f.won]);
}

static void compare_token(const decision *a, const decision *b, int64_t token, lb_diff_routing *row)
{
    lb_flip flips[LB_MOST_CHOICES];
    const int64_t k = a->choices, *x = a->ids + token * k, *y = b->ids + token * k;
    const double *logits = a->logits ? a->logits + token * a->experts : NULL;
    const int64_t n = lb_flips_of(x, y, k, logits, flips);
    row->flips += n;
    for (int64_t i = 0; logits && i < n; i++)
        if (flips[i].won >= 0) weigh_flip(a, b, token, flips[i], row);
}

/* ---- layers ---- */

static lb_diff_routing *row_of(lb_diff_report *r, const lb_program *p, const char *layer)
{
    for (uint32_t i = r->n_routings; i-- > 0;)
        if (r->routings[i].step == p->step && r->routings[i].rank == p->rank &&
            !strcmp(r->routings[i].layer, layer))
            return &r->routings[i];
    lb_diff_routing row = {
        .step = p->step, .rank = p->rank, .layer = lb_report_keep(r, layer), .largest_margin = NAN};
    uint32_t before = r->n_routings;
    APPEND(r->routings, r->n_routings, row);
    return r->n_routings > before ? &r->routings[before] : NULL;
}

static const lb_routing *partner_of(const lb_program *pb, const char *path, uint32_t call)
{
    for (uint32_t i = 0; i < pb->n_routings; i++)
        if (pb->routings[i].call == call &&
            !strcmp(lb_program_text(pb, pb->scopes[pb->routings[i].scope].path), path))
            return &pb->routings[i];
    return NULL;
}

static void compare_decisions(const lb_witness *wa, const lb_witness *wb, const lb_routing *ra,
                              const lb_routing *rb, lb_diff_report *report)
{
    const char *layer = lb_program_text(wa->program, wa->program->scopes[ra->scope].path);
    decision a = {0}, b = {0};
    lb_diff_routing *row = NULL;
    bool loaded = load_decision(wa, ra, &a);
    loaded = load_decision(wb, rb, &b) && loaded;
    if (loaded && a.tokens == b.tokens && a.choices == b.choices) row = row_of(report, wa->program, layer);
    if (row) {
        row->tokens += a.tokens, row->choices += a.tokens * a.choices;
        for (int64_t t = 0; t < a.tokens; t++) compare_token(&a, &b, t, row);
    }
    release_decision(&a), release_decision(&b);
}

static void compare_all(const lb_witness *wa, const lb_witness *wb, const lb_map_rules *rules,
                        lb_diff_report *report)
{
    const lb_program *pa = wa->program;
    for (uint32_t i = 0; i < pa->n_routings; i++) {
        char *path = lb_map_rules_apply(rules, lb_program_text(pa, pa->scopes[pa->routings[i].scope].path));
        const lb_routing *other = path ? partner_of(wb->program, path, pa->routings[i].call) : NULL;
        if (other) compare_decisions(wa, wb, &pa->routings[i], other, report);
        free(path);
    }
}

static void want_all(lb_witness *w)
{
    for (uint32_t i = 0; i < w->program->n_routings; i++)
        lb_witness_want(w, w->program->routings[i].ids), lb_witness_want(w, w->program->routings[i].logits);
}

lb_status lb_routing_diff_add(const lb_side *a, const lb_side *b, const lb_map_rules *rules,
                              lb_diff_report *report, lb_err *err)
{
    const lb_program *pa = a->program, *pb = b->program;
    lb_witness wa, wb;
    if (!pa->n_routings || !pb->n_routings) return LB_OK;
    LB_TRY(lb_witness_init(a, &wa, err));
    lb_status status = lb_witness_init(b, &wb, err);
    if (status == LB_OK) {
        want_all(&wa), want_all(&wb);
        status = lb_witness_run(&wa, err);
        if (status == LB_OK) status = lb_witness_run(&wb, err);
        if (status == LB_OK) compare_all(&wa, &wb, rules, report);
        lb_witness_release(&wb);
    }
    lb_witness_release(&wa);
    return status;
}
