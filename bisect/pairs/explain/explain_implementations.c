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
    if (session->options->table) return LB_OK; /* a table of tensors is asked of values, whatever their names are */
    return *are ? lb_strangers_are(session->a, session->b, are, err) : LB_OK;
}

/* ---- partners ---- */

/* The value of B that is the very quantity, element by element; LB_NONE. The numbers of the exact runs say so: one
 * quantity in another order of elements is no partner here. */
static uint32_t partner_of(const lb_implementations *implementations, uint32_t va)
{
    const uint32_t vb = implementations->met[0] ? implementations->met[0][va] : LB_NONE;
    if (vb == LB_NONE || !implementations->sides[1].graph.given[vb]) return LB_NONE;
    const lb_value *a = &implementations->sides[0].program->values[va],
                   *b = &implementations->sides[1].program->values[vb];
    if (!lb_dtype_is_float(a->dtype) || !lb_dtype_is_float(b->dtype) || !lb_layout_same_shape(&a->layout, &b->layout))
        return LB_NONE;
    static const double NEAR[2] = {1e-6, 0.1}; /* exact runs; recorded numbers, as anchors are anywhere */
    const double *kept[2] = {implementations->sides[0].kept[va], implementations->sides[1].kept[vb]};
    double *read[2] = {kept[0] && kept[1] ? NULL : lb_exact_side_recorded(&implementations->sides[0], va),
                       kept[0] && kept[1] ? NULL : lb_exact_side_recorded(&implementations->sides[1], vb)};
    const double *p = read[0] ? read[0] : kept[0], *q = read[1] ? read[1] : kept[1];
    const bool near = p && q && lb_counterparts_distance(p, q, lb_layout_numel(&a->layout)) < NEAR[read[0] != NULL];
    free(read[0]), free(read[1]);
    return near ? vb : LB_NONE;
}

static uint32_t first_outcome(const lb_program *program, uint32_t op)
{
    return lb_op_outcomes(&program->ops[op]) ? lb_op_outcome(program, &program->ops[op], 0) : LB_NONE;
}

static void pair_ops(const lb_implementations *implementations, lb_alignment *alignment)
{
    const lb_program *pa = implementations->sides[0].program, *pb = implementations->sides[1].program;
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        const uint32_t va = lb_op_computes(pa, &pa->ops[i]) ? first_outcome(pa, i) : LB_NONE;
        const uint32_t vb =
            va == LB_NONE || lb_op_is_source(pa, &pa->ops[i]) ? LB_NONE : partner_of(implementations, va);
        const uint32_t j = vb == LB_NONE ? LB_NONE : implementations->sides[1].graph.giver[vb];
        if (j == LB_NONE || lb_op_is_source(pb, &pb->ops[j]) || first_outcome(pb, j) != vb ||
            alignment->a_of_b[j] != LB_NONE)
            continue;
        alignment->b_of_a[i] = j, alignment->a_of_b[j] = i;
        alignment->pairs++;
    }
}

/* Sources that hold the same numbers in the same places. Others that are held in another layout stay what they are on
 * either side. */
static void pair_sources(const lb_implementations *implementations, lb_alignment *alignment)
{
    const lb_program *pa = implementations->sides[0].program, *pb = implementations->sides[1].program;
    for (uint32_t i = 0; i < implementations->contents.n; i++) {
        const lb_content *content = &implementations->contents.list[i];
        const lb_content_run *run = &implementations->contents.runs[content->first];
        if (content->n != 1 || content->found != content->all || run->from || run->to || run->n != content->all ||
            run->from_stride != run->to_stride)
            continue;
        const lb_step_source *b = &implementations->sources[1].list[i],
                             *a = &implementations->sources[0].list[run->tensor];
        if (!lb_layout_same_shape(&pa->values[a->value].layout, &pb->values[b->value].layout)) continue;
        alignment->source_b_of_a[a->op] = b->op;
    }
}

/* Per value of a side: a source whose numbers the other side holds, however they lie there. */
static lb_status list_held(const lb_implementations *implementations, lb_step_pair *pair, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        uint8_t *rows = lb_step_sources_held(&implementations->contents, k, implementations->sources[k].n, false);
        pair->held[k] = calloc(implementations->sides[k].program->n_values + 1, 1);
        for (uint32_t i = 0; rows && pair->held[k] && i < implementations->sources[k].n; i++)
            pair->held[k][implementations->sources[k].list[i].value] = rows[i];
        free(rows);
        if (!rows || !pair->held[k]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for sources");
    }
    return LB_OK;
}

/* ---- where they are not the same function ---- */

static lb_status mark_regions(const lb_implementations *implementations, lb_step_pair *pair, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        pair->other_function[k] = calloc(implementations->sides[k].program->n_ops + 1, 1);
        if (!pair->other_function[k]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for ops");
        for (uint32_t i = 0; i < implementations->regions.n; i++) {
            const lb_region *region = &implementations->regions.list[i];
            if (region->op[k] != LB_NONE) pair->other_function[k][region->op[k]] = 1;
            for (uint32_t j = 0; j < region->n[k]; j++)
                pair->other_function[k][implementations->regions.ops[region->first[k] + j]] = 1;
        }
    }
    return LB_OK;
}

/* The layer of A: of the op that is named there, or beside that of B's. */
static const char *layer_of(const lb_implementations *implementations, const lb_region *region,
                            uint32_t *const beside[2])
{
    const lb_program *a = implementations->sides[0].program, *b = implementations->sides[1].program;
    if (region->op[0] != LB_NONE) return lb_op_layer(a, &a->ops[region->op[0]]);
    const uint32_t module = beside[1] ? beside[1][b->ops[region->op[1]].scope] : 0;
    return module && module != LB_NONE ? lb_program_text(a, a->scopes[module].path)
                                       : lb_op_layer(b, &b->ops[region->op[1]]);
}

/* What the op reads and the other side does not hold is an input: "parameter up.weight". */
static void tell_source(lb_explain_report *report, const lb_implementations *implementations, const lb_region *region,
                        lb_explain_finding *row)
{
    char text[300];
    const int side = region->source[0] == LB_NONE;
    const lb_program *program = implementations->sides[side].program;
    const uint32_t v = region->source[side];
    if (region->reason != LB_REGION_SOURCE || v == LB_NONE) return;
    snprintf(text, sizeof text, "%s%s%.200s", lb_source_kind_name((lb_source_kind)program->values[v].source),
             program->values[v].name == LB_NONE ? "" : " ", lb_program_text(program, program->values[v].name));
    row->cause = LB_CAUSE_INPUT;
    row->op = row->other_op = LB_EXPLAIN_SOURCE;
    row->schedule = lb_explain_findings_keep(report, text);
}

static const char *op_text(lb_explain_report *report, const lb_program *program, uint32_t op)
{
    return op == LB_NONE ? "" : lb_explain_findings_keep(report, lb_op_name(program, &program->ops[op]));
}

static lb_status add_region(lb_explain_session *session, const lb_implementations *implementations,
                            const lb_region *region, uint32_t *const beside[2], lb_err *err)
{
    char why[700];
    const int side = region->op[0] == LB_NONE;
    const lb_program *program[] = {implementations->sides[0].program, implementations->sides[1].program};
    const lb_counterpart *counterpart = &implementations->counterparts.list[region->counterpart];
    lb_explain_report *report = session->report;
    if (region->op[side] == LB_NONE) return LB_OK;
    lb_region_op_text(implementations, region, why, sizeof why);
    lb_explain_finding row = {.step = program[0]->step,
                              .rank = program[0]->rank,
                              .phase = (lb_phase)program[side]->ops[region->op[side]].phase,
                              .layer = lb_explain_findings_keep(report, layer_of(implementations, region, beside)),
                              .op = op_text(report, program[0], region->op[0]),
                              .other_op = op_text(report, program[1], region->op[1]),
                              .index = region->op[0],
                              .other = region->op[1],
                              .cause = LB_CAUSE_UNEXPLAINED,
                              .elements = lb_layout_numel(&program[1]->values[counterpart->b].layout),
                              .local = counterpart->distance,
                              .total = counterpart->distance,
                              .schedule = "",
                              .first = "",
                              .also = "",
                              .why = lb_explain_findings_keep(report, why)};
    tell_source(report, implementations, region, &row);
    for (int k = 0; k < 2; k++)
        if (region->op[k] != LB_NONE) row.lines[k] = lb_explain_findings_keep_line(report, program[k], region->op[k]);
    return lb_explain_findings_add(report, &row, err);
}

static lb_status add_regions(lb_explain_session *session, const lb_implementations *implementations, lb_err *err)
{
    const lb_exact_side *const sides[] = {&implementations->sides[0], &implementations->sides[1]};
    uint32_t *beside[2] = {NULL, NULL};
    if (!implementations->regions.n) return LB_OK;
    lb_status status =
        lb_modules_beside(sides, implementations->met, beside) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < implementations->regions.n && status == LB_OK; i++)
        status = add_region(session, implementations, &implementations->regions.list[i], beside, err);
    free(beside[0]), free(beside[1]);
    return status;
}

/* ---- a step ---- */

static void say_missing(lb_explain_session *session, const lb_implementations *implementations)
{
    char text[400];
    if (implementations->judged && (implementations->same || implementations->regions.n)) return;
    snprintf(text, sizeof text, "step %lld: %s", (long long)implementations->sides[0].program->step,
             *implementations->missing ? implementations->missing
                                       : "what leaves the step differs, and no place was found");
    lb_explain_findings_add_missing(session->report, text);
}

static lb_status explain_judged(lb_explain_session *session, const lb_implementations *implementations,
                                lb_step_pair *pair, lb_err *err)
{
    const uint32_t first = session->report->n_findings;
    pair_ops(implementations, &pair->alignment), pair_sources(implementations, &pair->alignment);
    LB_TRY(list_held(implementations, pair, err));
    LB_TRY(mark_regions(implementations, pair, err));
    session->report->ops += pair->alignment.pairs;
    say_missing(session, implementations);
    LB_TRY(lb_step_pair_read(session, pair, err));
    for (uint32_t i = 0; i < pair->regions.n; i++) session->report->differing += pair->regions.list[i].pair;
    LB_TRY(add_regions(session, implementations, err));
    LB_TRY(lb_explain_places(session, pair, err));
    return lb_explain_findings_add_layers(session->report, first, err);
}

lb_status lb_explain_implementations(lb_explain_session *session, const lb_program_pair *matter,
                                     lb_source_memory *memory, lb_err *err)
{
    lb_step_pair pair = {0};
    lb_implementations implementations;
    session->shared++;
    session->turned = false;
    lb_explain_grant_work(session, matter);
    lb_status status = lb_step_pair_open(session, matter, &pair, err);
    if (status == LB_OK)
        status = lb_implementations_judge(&pair.sides[0], &pair.sides[1], memory, session->options->progress,
                                          &implementations, err);
    if (status == LB_OK) {
        status = explain_judged(session, &implementations, &pair, err);
        lb_implementations_release(&implementations);
    }
    lb_step_pair_close(&pair);
    return status;
}
