/* Two implementations of one model: see explain_session.h. Their ops line up by what they compute, and not by names:
 * both run exactly from the same numbers (bisect/pairs/implementations), and where two ops give one quantity, in one
 * shape, they are partners. Between such places the two sides compute the same function in ops of their own, and each
 * place whose bits differ is asked for its cause as any other is. Where they do not compute the same function, the
 * place is told in the words of `diff`. */
#include "explain/explain_session.h"

#include "implementations/implementations.h"
#include "exact/modules.h"
#include "implementations/region_op.h"
#include "sources/strangers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

lb_status lb_explain_are_implementations(const lb_explain_session *session, bool *are, lb_err *err)
{
    *are = false;
    if (session->b) LB_TRY(lb_strangers_run_alone(session->a, session->b, are, err));
    return *are ? lb_strangers_are(session->a, session->b, are, err) : LB_OK;
}

/* ---- partners ---- */

/* The value of B that is the very quantity, element by element; LB_NONE. The numbers of the exact runs say so: one
 * quantity in another order of elements is no partner here. */
static uint32_t partner_of(const lb_implementations *x, uint32_t va)
{
    const uint32_t vb = x->met[0] ? x->met[0][va] : LB_NONE;
    if (vb == LB_NONE || !x->sides[1].graph.given[vb]) return LB_NONE;
    const lb_value *a = &x->sides[0].program->values[va], *b = &x->sides[1].program->values[vb];
    if (!lb_dtype_is_float(a->dtype) || !lb_dtype_is_float(b->dtype) || !lb_layout_same_shape(&a->layout, &b->layout))
        return LB_NONE;
    static const double NEAR[2] = {1e-6, 0.1}; /* exact runs; recorded numbers, as anchors are anywhere */
    const double *kept[2] = {x->sides[0].kept[va], x->sides[1].kept[vb]};
    double *read[2] = {kept[0] && kept[1] ? NULL : lb_exact_side_recorded(&x->sides[0], va),
                       kept[0] && kept[1] ? NULL : lb_exact_side_recorded(&x->sides[1], vb)};
    const double *p = read[0] ? read[0] : kept[0], *q = read[1] ? read[1] : kept[1];
    const bool near = p && q && lb_counterparts_distance(p, q, lb_layout_numel(&a->layout)) < NEAR[read[0] != NULL];
    free(read[0]), free(read[1]);
    return near ? vb : LB_NONE;
}

static uint32_t first_outcome(const lb_program *p, uint32_t op)
{
    return lb_op_outcomes(&p->ops[op]) ? lb_op_outcome(p, &p->ops[op], 0) : LB_NONE;
}

static void pair_ops(const lb_implementations *x, lb_alignment *alignment)
{
    const lb_program *pa = x->sides[0].program, *pb = x->sides[1].program;
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        const uint32_t va = lb_op_computes(pa, &pa->ops[i]) ? first_outcome(pa, i) : LB_NONE;
        const uint32_t vb = va == LB_NONE || lb_op_is_source(pa, &pa->ops[i]) ? LB_NONE : partner_of(x, va);
        const uint32_t j = vb == LB_NONE ? LB_NONE : x->sides[1].graph.giver[vb];
        if (j == LB_NONE || lb_op_is_source(pb, &pb->ops[j]) || first_outcome(pb, j) != vb ||
            alignment->a_of_b[j] != LB_NONE)
            continue;
        alignment->b_of_a[i] = j, alignment->a_of_b[j] = i;
        alignment->pairs++;
    }
}

/* Sources that hold the same numbers in the same places. Others that are held in another layout stay what they are on
 * either side. */
static void pair_sources(const lb_implementations *x, lb_alignment *alignment)
{
    const lb_program *pa = x->sides[0].program, *pb = x->sides[1].program;
    for (uint32_t i = 0; i < x->contents.n; i++) {
        const lb_content *c = &x->contents.list[i];
        const lb_content_run *r = &x->contents.runs[c->first];
        if (c->n != 1 || c->found != c->all || r->from || r->to || r->n != c->all || r->from_stride != r->to_stride)
            continue;
        const lb_step_source *b = &x->sources[1].list[i], *a = &x->sources[0].list[r->tensor];
        if (!lb_layout_same_shape(&pa->values[a->value].layout, &pb->values[b->value].layout)) continue;
        alignment->source_b_of_a[a->op] = b->op;
    }
}

/* Per value of a side: a source whose numbers the other side holds, however they lie there. */
static lb_status list_held(const lb_implementations *x, lb_step_pair *s, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        uint8_t *rows = lb_step_sources_held(&x->contents, k, x->sources[k].n, false);
        s->held[k] = calloc(x->sides[k].program->n_values + 1, 1);
        for (uint32_t i = 0; rows && s->held[k] && i < x->sources[k].n; i++)
            s->held[k][x->sources[k].list[i].value] = rows[i];
        free(rows);
        if (!rows || !s->held[k]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for sources");
    }
    return LB_OK;
}

/* ---- where they are not the same function ---- */

static lb_status mark_regions(const lb_implementations *x, lb_step_pair *s, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        s->other_function[k] = calloc(x->sides[k].program->n_ops + 1, 1);
        if (!s->other_function[k]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for ops");
        for (uint32_t i = 0; i < x->regions.n; i++) {
            const lb_region *r = &x->regions.list[i];
            if (r->op[k] != LB_NONE) s->other_function[k][r->op[k]] = 1;
            for (uint32_t j = 0; j < r->n[k]; j++) s->other_function[k][x->regions.ops[r->first[k] + j]] = 1;
        }
    }
    return LB_OK;
}

/* The layer of A: of the op that is named there, or beside that of B's. */
static const char *layer_of(const lb_implementations *x, const lb_region *r, uint32_t *const beside[2])
{
    const lb_program *a = x->sides[0].program, *b = x->sides[1].program;
    if (r->op[0] != LB_NONE) return lb_op_layer(a, &a->ops[r->op[0]]);
    const uint32_t module = beside[1] ? beside[1][b->ops[r->op[1]].scope] : 0;
    return module && module != LB_NONE ? lb_program_text(a, a->scopes[module].path) : lb_op_layer(b, &b->ops[r->op[1]]);
}

/* What the op reads and the other side does not hold is an input: "parameter up.weight". */
static void tell_source(lb_explain_report *report, const lb_implementations *x, const lb_region *r,
                        lb_explain_finding *row)
{
    char text[300];
    const int side = r->source[0] == LB_NONE;
    const lb_program *p = x->sides[side].program;
    const uint32_t v = r->source[side];
    if (r->reason != LB_REGION_SOURCE || v == LB_NONE) return;
    snprintf(text, sizeof text, "%s%s%.200s", lb_source_kind_name((lb_source_kind)p->values[v].source),
             p->values[v].name == LB_NONE ? "" : " ", lb_program_text(p, p->values[v].name));
    row->cause = LB_CAUSE_INPUT;
    row->op = row->other_op = LB_EXPLAIN_SOURCE;
    row->schedule = lb_explain_findings_keep(report, text);
}

static const char *op_text(lb_explain_report *report, const lb_program *p, uint32_t op)
{
    return op == LB_NONE ? "" : lb_explain_findings_keep(report, lb_op_name(p, &p->ops[op]));
}

static lb_status add_region(lb_explain_session *session, const lb_implementations *x, const lb_region *r,
                            uint32_t *const beside[2], lb_err *err)
{
    char why[700];
    const int side = r->op[0] == LB_NONE;
    const lb_program *p[] = {x->sides[0].program, x->sides[1].program};
    const lb_counterpart *c = &x->counterparts.list[r->counterpart];
    lb_explain_report *report = session->report;
    if (r->op[side] == LB_NONE) return LB_OK;
    lb_region_op_text(x, r, why, sizeof why);
    lb_explain_finding row = {.step = p[0]->step,
                              .rank = p[0]->rank,
                              .phase = (lb_phase)p[side]->ops[r->op[side]].phase,
                              .layer = lb_explain_findings_keep(report, layer_of(x, r, beside)),
                              .op = op_text(report, p[0], r->op[0]),
                              .other_op = op_text(report, p[1], r->op[1]),
                              .index = r->op[0],
                              .other = r->op[1],
                              .cause = LB_CAUSE_UNEXPLAINED,
                              .elements = lb_layout_numel(&p[1]->values[c->b].layout),
                              .local = c->distance,
                              .total = c->distance,
                              .schedule = "",
                              .first = "",
                              .also = "",
                              .why = lb_explain_findings_keep(report, why)};
    tell_source(report, x, r, &row);
    for (int k = 0; k < 2; k++)
        if (r->op[k] != LB_NONE) row.lines[k] = lb_explain_findings_keep_line(report, p[k], r->op[k]);
    return lb_explain_findings_add(report, &row, err);
}

static lb_status add_regions(lb_explain_session *session, const lb_implementations *x, lb_err *err)
{
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    uint32_t *beside[2] = {NULL, NULL};
    if (!x->regions.n) return LB_OK;
    lb_status status = lb_modules_beside(sides, x->met, beside) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < x->regions.n && status == LB_OK; i++)
        status = add_region(session, x, &x->regions.list[i], beside, err);
    free(beside[0]), free(beside[1]);
    return status;
}

/* ---- a step ---- */

static void say_missing(lb_explain_session *session, const lb_implementations *x)
{
    char text[400];
    if (x->judged && (x->same || x->regions.n)) return;
    snprintf(text, sizeof text, "step %lld: %s", (long long)x->sides[0].program->step,
             *x->missing ? x->missing : "what leaves the step differs, and no place was found");
    lb_explain_findings_add_missing(session->report, text);
}

static lb_status explain_judged(lb_explain_session *session, const lb_implementations *x, lb_step_pair *s, lb_err *err)
{
    const uint32_t first = session->report->n_findings;
    pair_ops(x, &s->alignment), pair_sources(x, &s->alignment);
    LB_TRY(list_held(x, s, err));
    LB_TRY(mark_regions(x, s, err));
    session->report->ops += s->alignment.pairs;
    say_missing(session, x);
    LB_TRY(lb_step_pair_read(session, s, err));
    for (uint32_t i = 0; i < s->regions.n; i++) session->report->differing += s->regions.list[i].pair;
    LB_TRY(add_regions(session, x, err));
    LB_TRY(lb_explain_places(session, s, err));
    return lb_explain_findings_add_layers(session->report, first, err);
}

lb_status lb_explain_implementations(lb_explain_session *session, const lb_program_pair *m, lb_source_memory *memory,
                                     lb_err *err)
{
    lb_step_pair s = {0};
    lb_implementations x;
    session->shared++;
    session->turned = false;
    lb_explain_grant_work(session, m);
    lb_status status = lb_step_pair_open(session, m, &s, err);
    if (status == LB_OK) status = lb_implementations_judge(&s.sides[0], &s.sides[1], memory, &x, err);
    if (status == LB_OK) {
        status = explain_judged(session, &x, &s, err);
        lb_implementations_release(&x);
    }
    lb_step_pair_close(&s);
    return status;
}
