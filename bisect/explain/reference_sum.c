/* Naming the orders of sums written out by hand: see reference_sum.h. */
#include "reference_sum.h"

#include <lastbit/compare.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One side's sum as an op of its own. */
typedef struct model {
    lb_program *program;
    lb_subprogram *subprogram;
    lb_tensor rows, target; /* (outputs, terms) and (outputs) */
    void *dense;
} model;

/* The float leaf whose rows are summed; LB_NONE. */
static uint32_t leaf_of_rows(const lb_match_site *p, int side, int64_t *terms)
{
    const lb_matched_region_side *s = &p->region->sides[side];
    const lb_tensor *inputs = p->inputs[side][side];
    const int64_t outputs = lb_layout_numel(&p->targets[side][0].layout);
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < s->n_leaves; i++) {
        const lb_layout *l = &inputs[i].layout;
        if (!lb_dtype_is_float(inputs[i].dtype)) continue;
        if (found != LB_NONE || !l->ndim || outputs < 1) return LB_NONE;
        *terms = l->shape[l->ndim - 1];
        if (*terms < 3 || lb_layout_numel(l) != outputs * *terms) return LB_NONE;
        found = i;
    }
    return found;
}

static uint32_t add_value(lb_program *p, int64_t storage, const lb_tensor *tensor, bool source)
{
    lb_value v = {
        .storage = storage, .layout = tensor->layout, .dtype = tensor->dtype, .name = LB_NONE, .statistics = LB_NONE};
    if (source) v.flags = LB_VALUE_SOURCE, v.source = LB_SOURCE_OTHER;
    return lb_program_add_value(p, &v);
}

static lb_status make_model(const lb_match_site *site, int side, model *m, lb_err *err)
{
    int64_t terms = 0;
    *m = (model){0};
    if (!lb_match_site_can(site, side, side) || site->region->n_outputs != 1) return LB_OK;
    const uint32_t leaf = leaf_of_rows(site, side, &terms);
    if (leaf == LB_NONE) return LB_OK;
    const lb_tensor *x = &site->inputs[side][side][leaf], *y = &site->targets[side][0];
    const int64_t n = lb_layout_numel(&y->layout), shape[] = {n, terms};
    m->dense = malloc(lb_dtype_bytes(x->dtype, (size_t)(n * terms)) + 1);
    m->program = lb_program_new();
    if (!m->dense || !m->program || lb_tensor_gather(x, m->dense, NULL) != LB_OK)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
    m->rows = (lb_tensor){m->dense, x->dtype, lb_layout_contiguous(2, shape)};
    m->target = (lb_tensor){NULL, y->dtype, lb_layout_contiguous(1, shape)};
    const lb_tensor result = {NULL, x->dtype, m->target.layout};
    const uint32_t leaf_value = add_value(m->program, 0, &m->rows, true),
                   sum = add_value(m->program, 1, &result, false);
    const lb_arg last = {.tag = LB_ARG_INT, .u.i = 1};
    lb_arg args[] = {{.tag = LB_ARG_VALUE, .u.value = leaf_value},
                     {.tag = LB_ARG_LIST, .count = 1, .u.first = lb_program_add_args(m->program, &last, 1)},
                     {.tag = LB_ARG_BOOL},
                     {.tag = LB_ARG_NONE}};
    lb_op op = {.name = lb_program_string(m->program, "aten::sum.dim_IntList"),
                .first_arg = lb_program_add_args(m->program, args, 4),
                .args = 4,
                .first_result = lb_program_add_refs(m->program, &sum, 1),
                .results = 1,
                .first_written = m->program->n_refs,
                .node_name = LB_NONE,
                .node = -1};
    const uint32_t row = lb_program_add_op(m->program, &op);
    if (row == LB_NONE) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
    const lb_subprogram_parts parts = {m->program, &row, &leaf_value, &sum, 1, 1, 1};
    return lb_subprogram_new(&parts, &m->subprogram, err);
}

static void release_model(model *m)
{
    lb_subprogram_free(m->subprogram);
    lb_program_free(m->program);
    free(m->dense);
}

static bool gives(const model *m, const lb_tensor *target, const lb_candidate *c)
{
    lb_tensor result, flat;
    lb_difference d;
    if (lb_subprogram_run(m->subprogram, &m->rows, c->swaps, c->n_swaps, &result, NULL) != LB_OK || !result.data)
        return false;
    const size_t n = (size_t)lb_layout_numel(&target->layout);
    void *dense = malloc(lb_dtype_bytes(target->dtype, n) + 1), *cast = malloc(lb_dtype_bytes(target->dtype, n) + 1);
    bool same = dense && cast && lb_tensor_gather(target, dense, NULL) == LB_OK;
    if (same) lb_convert(target->dtype, cast, result.dtype, result.data, n, NULL);
    flat = m->target, flat.data = dense, result.dtype = target->dtype;
    lb_tensor rounded = flat;
    rounded.data = cast;
    same = same && lb_compare_numbers(&flat, &rounded, &d, NULL) == LB_OK && !d.differing;
    free(dense), free(cast), free(result.data);
    return same;
}

static void name_order(const model *m, const lb_match_site *site, int side, const lb_candidate *list, uint32_t n,
                       lb_reference_sum *out)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i && list[i].cause != LB_CAUSE_ORDER) continue;
        if (lb_layout_numel(&m->target.layout) < list[i].few) continue;
        out->tried += !side;
        if (!gives(m, &site->targets[side][0], &list[i])) {
            out->excluded[side]++;
            continue;
        }
        if (!*out->order[side]) snprintf(out->order[side], sizeof out->order[side], "%s", i ? list[i].name : "torch:1");
    }
}

lb_status lb_reference_sum_find(const lb_match_site *site, lb_reference_sum *sum, lb_err *err)
{
    model models[2] = {{0}, {0}};
    lb_candidate *list = NULL;
    uint32_t n = 0;
    *sum = (lb_reference_sum){0};
    lb_status status = make_model(site, 0, &models[0], err);
    if (status == LB_OK && models[0].subprogram) status = make_model(site, 1, &models[1], err);
    const uint32_t op = 0;
    if (status == LB_OK && models[1].subprogram)
        status =
            lb_candidates_list(&(lb_candidate_ops){models[0].program, &op, 1, NULL, true, NULL}, NULL, &list, &n, err);
    for (int side = 0; side < 2 && list && status == LB_OK; side++) name_order(&models[side], site, side, list, n, sum);
    sum->found = *sum->order[0] && *sum->order[1];
    free(list);
    release_model(&models[0]), release_model(&models[1]);
    return status;
}
