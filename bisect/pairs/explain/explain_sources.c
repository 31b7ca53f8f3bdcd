/* Sources that differ: see explain_session.h. What replay cannot compute (parameters, state, the batch) is where a
 * difference comes in that no op makes. What a step of the same run left there is no source of a difference: that step
 * is. */
#include "explain/explain_session.h"

#include "explain/fallback_proof.h"

#include <lastbit/compare.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOPS = 16 }; /* from a history to the cast that it scales */

static bool is_new(const lb_explain_session *session, const lb_program *program, const lb_value *value)
{
    const bool first = program->step == session->options->first_step;
    return value->source != LB_SOURCE_NOT && !(value->flags & LB_VALUE_UNDEFINED) &&
           (value->source != LB_SOURCE_CARRIED || first);
}

/* The first side's numbers rounded to the second's type? */
static bool is_rounded(const lb_tensor *a, const lb_tensor *b)
{
    const size_t n = (size_t)lb_layout_numel(&a->layout);
    if (a->dtype == b->dtype || !lb_dtype_is_float(a->dtype) || !lb_dtype_is_float(b->dtype)) return false;
    void *dense = malloc(lb_dtype_bytes(a->dtype, n) + 1), *cast = malloc(lb_dtype_bytes(b->dtype, n) + 1);
    lb_difference difference;
    bool same = dense && cast && lb_tensor_gather(a, dense, NULL) == LB_OK;
    if (same) {
        lb_convert(b->dtype, cast, a->dtype, dense, n, NULL);
        const lb_tensor rounded = {cast, b->dtype, lb_layout_contiguous(a->layout.ndim, a->layout.shape)};
        same = lb_compare_numbers(&rounded, b, &difference, NULL) == LB_OK && !difference.differing;
    }
    free(dense), free(cast);
    return same;
}

static void describe(const lb_step_pair *pair, uint32_t va, uint32_t vb, lb_explain_finding *row, char *why,
                     size_t room)
{
    lb_tensor a, b;
    lb_difference difference;
    row->elements = lb_layout_numel(&pair->sides[0].program->values[va].layout);
    if (!lb_matched_region_bytes(&pair->source, 0, va, &a) || !lb_matched_region_bytes(&pair->source, 1, vb, &b) ||
        lb_compare_numbers(&a, &b, &difference, NULL) != LB_OK) {
        snprintf(why, room, "digests differ; bytes of one side were not kept");
        return;
    }
    row->matched = difference.elements - difference.differing, row->total = difference.rel_l2;
    const lb_dtype grid = lb_fallback_quantised_to(pair->sides[0].program, va, HOPS);
    if (is_rounded(&a, &b))
        snprintf(why, room, "the second side's are the first's, rounded to %s", lb_dtype_name(b.dtype));
    else if (pair->sides[0].program->values[va].source == LB_SOURCE_STATE && grid)
        snprintf(why, room, "another history: the scale of a cast to %s follows from it", lb_dtype_name(grid));
    else
        snprintf(why, room, "it enters with other numbers");
}

static lb_status add_source(lb_explain_session *session, const lb_step_pair *pair, uint32_t i, uint32_t va, uint32_t vb,
                            lb_err *err)
{
    const lb_program *program = pair->sides[0].program;
    lb_explain_report *report = session->report;
    const lb_value *value = &program->values[va];
    char name[160], why[160];
    lb_explain_finding row = {.step = program->step,
                              .rank = program->rank,
                              .phase = (lb_phase)program->ops[i].phase,
                              .layer = lb_explain_findings_keep(report, lb_op_layer(program, &program->ops[i])),
                              .op = LB_EXPLAIN_SOURCE,
                              .other_op = LB_EXPLAIN_SOURCE,
                              .index = i,
                              .other = pair->alignment.source_b_of_a[i],
                              .cause = LB_CAUSE_INPUT,
                              .proof = LB_PROOF_BITS,
                              .first = "",
                              .also = "",
                              .local = NAN,
                              .total = NAN};
    describe(pair, va, vb, &row, why, sizeof why);
    snprintf(name, sizeof name, "%s%s%.120s", lb_source_kind_name((lb_source_kind)value->source),
             value->name == LB_NONE ? "" : " ", lb_program_text(program, value->name));
    row.schedule = lb_explain_findings_keep(report, name), row.why = lb_explain_findings_keep(report, why);
    return lb_explain_findings_add(report, &row, err);
}

/* Memory between the columns of a batch, recorded for the sake of what lies around it: its pieces are of different rows
 * on either side. */
static bool is_fragment(const lb_program *program, const lb_value *value)
{
    int64_t first, last, from, to;
    if ((value->source != LB_SOURCE_BATCH && value->source != LB_SOURCE_OTHER) || value->layout.ndim != 1) return false;
    if (lb_layout_dense_range(&value->layout, &first, &last, NULL) != LB_OK) return false;
    for (uint32_t i = 0; i < program->n_values; i++) {
        const lb_value *other = &program->values[i];
        if (other->storage == value->storage && other->dtype == value->dtype &&
            lb_layout_dense_range(&other->layout, &from, &to, NULL) == LB_OK && from <= first && last <= to &&
            to - from > last - first)
            return true;
    }
    return false;
}

/* Rows of a larger batch. */
static lb_status add_joined(lb_explain_session *session, lb_step_pair *pair, uint32_t i, lb_err *err)
{
    const lb_program *p = pair->sides[0].program, *q = pair->sides[1].program;
    const lb_reassemblies *joins = &pair->alignment.joins;
    const lb_op *op = &p->ops[i];
    const uint32_t row = pair->alignment.join_of_a[i], va = op->results ? lb_op_results(p, op)[0] : LB_NONE;
    if (row == LB_NONE || va == LB_NONE || !lb_op_is_source(p, op)) return LB_OK;
    const lb_op *other = &q->ops[joins->part_ops[joins->list[row].first]];
    const uint32_t part = lb_op_results(q, other)[0];
    const uint32_t vb = lb_assemblies_value(&pair->assemblies, p, va, &part, 1);
    if (vb == LB_NONE || !is_new(session, p, &p->values[va]) || !lb_matched_region_differs(&pair->source, va, vb))
        return LB_OK;
    return add_source(session, pair, i, va, vb, err);
}

lb_status lb_explain_sources(lb_explain_session *session, lb_step_pair *scene, lb_err *err)
{
    const lb_program *p = scene->sides[0].program, *q = scene->sides[1].program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (scene->rows && (!scene->selected || scene->selected[i])) LB_TRY(add_joined(session, scene, i, err));
        const uint32_t j = scene->alignment.source_b_of_a[i];
        if (j == LB_NONE || (scene->selected && !scene->selected[i])) continue;
        for (uint32_t k = 0; k < p->ops[i].results && k < q->ops[j].results; k++) {
            const uint32_t va = lb_op_results(p, &p->ops[i])[k], vb = lb_op_results(q, &q->ops[j])[k];
            if (va == LB_NONE || vb == LB_NONE || !is_new(session, p, &p->values[va]) ||
                !lb_layout_same_shape(&p->values[va].layout, &q->values[vb].layout) ||
                !lb_matched_region_differs(&scene->source, va, vb) || (scene->rows && is_fragment(q, &q->values[vb])))
                continue;
            LB_TRY(add_source(session, scene, i, va, vb, err));
        }
    }
    return LB_OK;
}
