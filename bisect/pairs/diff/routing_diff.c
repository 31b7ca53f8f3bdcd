/* Flips and their margins: see routing_diff.h. */
#include "diff/routing_diff.h"

#include "diff/diff_report.h"
#include "composites/expert_flip.h"

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

static int64_t last_dim(const lb_program *program, uint32_t value)
{
    const lb_layout *l = &program->values[value].layout;
    return l->ndim ? l->shape[l->ndim - 1] : 0;
}

static void release_decision(decision *made)
{
    free(made->ids), free(made->logits);
}

static bool load_decision(const lb_regenerated *regenerated, const lb_routing *row, decision *made)
{
    const lb_program *program = regenerated->program;
    lb_tensor tensor;
    bool exact;
    memset(made, 0, sizeof *made);
    if (row->ids == LB_NONE || !lb_regenerated_value(regenerated, row->ids, &tensor, &exact)) return false;
    int64_t n = lb_layout_numel(&tensor.layout);
    made->choices = last_dim(program, row->ids);
    if (made->choices < 1 || made->choices > LB_MOST_CHOICES ||
        !(made->ids = malloc((size_t)n * sizeof *made->ids + 1)))
        return false;
    made->tokens = n / made->choices;
    if (!lb_expert_flip_load_ids(&tensor, made->ids)) return false;
    if (row->logits == LB_NONE || !lb_regenerated_value(regenerated, row->logits, &tensor, &exact)) return true;
    made->experts = last_dim(program, row->logits), made->dtype = tensor.dtype;
    if (lb_layout_numel(&tensor.layout) != made->tokens * made->experts || !lb_dtype_is_float(tensor.dtype))
        return true;
    made->logits = lb_expert_flip_scores(&tensor);
    for (int64_t i = 0; made->logits && i < n; i++)
        if (made->ids[i] < 0 || made->ids[i] >= made->experts) free(made->logits), made->logits = NULL;
    return true;
}

/* ---- one token ---- */

static void weigh_flip(const decision *a, const decision *b, int64_t token, lb_expert_flip f, lb_diff_routing *row)
{
    const double *la = a->logits + token * a->experts, *lb = b->logits ? b->logits + token * b->experts : NULL;
    const double margin = la[f.lost] - la[f.won];
    if (!(margin <= row->largest_margin)) row->largest_margin = margin;
    row->near_ties += margin <= lb_expert_flip_rounding(la, a->experts, a->dtype);
    row->explained += lb && margin <= fabs(la[f.lost] - lb[f.lost]) + fabs(la[f.won] - lb[f.won]);
}

static void compare_token(const decision *a, const decision *b, int64_t token, lb_diff_routing *row)
{
    lb_expert_flip flips[LB_MOST_CHOICES];
    const int64_t k = a->choices, *x = a->ids + token * k, *y = b->ids + token * k;
    const double *logits = a->logits ? a->logits + token * a->experts : NULL;
    const int64_t n = lb_flips_of(x, y, k, logits, flips);
    row->flips += n;
    for (int64_t i = 0; logits && i < n; i++)
        if (flips[i].won >= 0) weigh_flip(a, b, token, flips[i], row);
}

/* ---- layers ---- */

static lb_diff_routing *row_of(lb_diff_report *r, int64_t step, int32_t rank, const char *layer)
{
    for (uint32_t i = r->n_routings; i-- > 0;)
        if (r->routings[i].step == step && r->routings[i].rank == rank && !strcmp(r->routings[i].layer, layer))
            return &r->routings[i];
    lb_diff_routing row = {.step = step, .rank = rank, .layer = lb_report_keep(r, layer), .largest_margin = NAN};
    uint32_t before = r->n_routings;
    LB_DIFF_APPEND(r, routings, n_routings, row);
    return r->n_routings > before ? &r->routings[before] : NULL;
}

/* The parts of a side that meet some of the other: an n-th of both. */
typedef struct group {
    const lb_regenerated *regenerated;
    uint32_t first_part, parts;
} group;

static const char *path_of(const lb_program *program, const lb_routing *row)
{
    return lb_program_text(program, program->scopes[row->scope].path);
}

/* What part `k` of the group decided there. */
static const lb_routing *find_routing(const group *group, uint32_t k, const char *path, uint32_t call)
{
    const lb_program *program = group->regenerated->program;
    for (uint32_t i = 0; i < program->n_routings; i++) {
        const lb_routing *row = &program->routings[i];
        if (row->call == call && row->ids != LB_NONE && !strcmp(path_of(program, row), path) &&
            lb_program_view_part_of_value(group->regenerated->side, row->ids) == group->first_part + k)
            return row;
    }
    return NULL;
}

/* `more` behind `d`; false when they don't fit. */
static bool append_decision(decision *made, const decision *more)
{
    if (more->choices != made->choices || more->experts != made->experts || !more->logits != !made->logits)
        return false;
    const int64_t tokens = made->tokens + more->tokens, k = made->choices, n = made->experts;
    int64_t *ids = realloc(made->ids, (size_t)(tokens * k) * sizeof *ids + 1);
    if (!ids) return false;
    made->ids = ids;
    memcpy(ids + made->tokens * k, more->ids, (size_t)(more->tokens * k) * sizeof *ids);
    if (made->logits) {
        double *logits = realloc(made->logits, (size_t)(tokens * n) * sizeof *logits + 1);
        if (!logits) return false;
        made->logits = logits;
        memcpy(logits + made->tokens * n, more->logits, (size_t)(more->tokens * n) * sizeof *logits);
    }
    made->tokens = tokens;
    return true;
}

/* What the group decided about `tokens` tokens (0: as many as there are): all parts one behind the other, or, where the
 * first alone has as many (ranks that share weights out route all tokens each), the first. */
static bool load_group(const group *group, const char *path, uint32_t call, int64_t tokens, decision *made)
{
    for (uint32_t k = 0; k < group->parts; k++) {
        const lb_routing *row = find_routing(group, k, path, call);
        decision more;
        bool fits = row && load_decision(group->regenerated, row, k ? &more : made);
        if (k && fits) fits = append_decision(made, &more);
        if (k && row) release_decision(&more);
        if (!fits) return false;
        if (made->tokens == tokens) break;
    }
    return true;
}

static void compare_groups(const group *a, const group *b, const lb_routing *ra, const lb_layer_names_map *rules,
                           lb_diff_report *report)
{
    const lb_program *pa = a->regenerated->program;
    const char *layer = path_of(pa, ra);
    char *mapped = lb_layer_names_map_apply(rules, layer);
    decision x = {0}, y = {0};
    lb_diff_routing *row = NULL;
    bool loaded = mapped != NULL;
    if (a->parts == 1) /* who is one knows how many tokens there are */
        loaded = loaded && load_group(a, layer, ra->call, 0, &x) && load_group(b, mapped, ra->call, x.tokens, &y);
    else
        loaded = loaded && load_group(b, mapped, ra->call, 0, &y) && load_group(a, layer, ra->call, y.tokens, &x);
    if (loaded && x.tokens == y.tokens && x.choices == y.choices)
        row = row_of(report, pa->step, a->regenerated->side->parts[a->first_part].program->rank, layer);
    if (row) {
        row->tokens += x.tokens, row->choices += x.tokens * x.choices;
        for (int64_t t = 0; t < x.tokens; t++) compare_token(&x, &y, t, row);
    }
    release_decision(&x), release_decision(&y);
    free(mapped);
}

static void compare_all(const lb_regenerated *wa, const lb_regenerated *wb, const lb_layer_names_map *rules,
                        lb_diff_report *report)
{
    const lb_program *pa = wa->program;
    for (uint32_t i = 0; i < pa->n_routings; i++) {
        const lb_routing *row = &pa->routings[i];
        if (row->ids == LB_NONE) continue;
        const uint32_t part = lb_program_view_part_of_value(wa->side, row->ids),
                       number = lb_program_view_group(wa->side, wb->side, part);
        group a = {.regenerated = wa}, b = {.regenerated = wb};
        a.first_part = lb_program_view_first_of(wa->side, wb->side, number, &a.parts);
        b.first_part = lb_program_view_first_of(wb->side, wa->side, number, &b.parts);
        if (number != LB_NONE && part == a.first_part) compare_groups(&a, &b, row, rules, report);
    }
}

static void want_all(lb_regenerated *regenerated)
{
    for (uint32_t i = 0; i < regenerated->program->n_routings; i++)
        lb_regenerated_want(regenerated, regenerated->program->routings[i].ids),
            lb_regenerated_want(regenerated, regenerated->program->routings[i].logits);
}

lb_status lb_routing_diff_add(const lb_program_view *a, const lb_program_view *b, const lb_layer_names_map *rules,
                              lb_diff_report *report, lb_err *err)
{
    const lb_program *pa = a->program, *pb = b->program;
    lb_regenerated wa, wb;
    if (!pa->n_routings || !pb->n_routings) return LB_OK;
    LB_TRY(lb_regenerated_init(a, &wa, err));
    lb_status status = lb_regenerated_init(b, &wb, err);
    if (status == LB_OK) {
        want_all(&wa), want_all(&wb);
        status = lb_regenerated_run(&wa, err);
        if (status == LB_OK) status = lb_regenerated_run(&wb, err);
        if (status == LB_OK) compare_all(&wa, &wb, rules, report);
        lb_regenerated_release(&wb);
    }
    lb_regenerated_release(&wa);
    return status;
}
