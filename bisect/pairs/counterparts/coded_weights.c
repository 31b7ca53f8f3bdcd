/* Weights beside the codes that they were made of: see coded_weights.h. */
#include "counterparts/coded_weights.h"

#include "base/array.h"
#include "counterparts/weight_tensors.h"
#include "shadow/shadow_numbers.h"

#include <lastbit/dtype.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A scale that was rounded itself, and the weight. */
static const double ROUNDINGS = 4;

/* ---- scales ---- */

/* Floats of the side of the codes, as they lie and sorted. */
typedef struct scales {
    double *numbers, *sorted;
    int64_t n;
} scales;

typedef struct scale_lists {
    scales *list;
    uint32_t n;
} scale_lists;

/* There are at most as many scales as rows of weights. Little of what a step makes is one. */
enum { MOST_HELD = 1 << 20, MOST_MADE = 1 << 16 };

static void release_scales(scale_lists *lists)
{
    for (uint32_t i = 0; i < lists->n; i++) free(lists->list[i].numbers), free(lists->list[i].sorted);
    free(lists->list);
}

/* Takes the numbers. False: out of memory, the numbers' own (NULL), too. */
static bool add_list(scale_lists *lists, double *numbers, int64_t n)
{
    double *sorted = malloc(((size_t)n + 1) * sizeof *sorted);
    lists->list[lists->n++] = (scales){numbers, sorted, n};
    if (!numbers || !sorted) return false;
    memcpy(sorted, numbers, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, lb_by_f64);
    return true;
}

static bool add_scales(scale_lists *lists, const lb_weight_tensors *tensors, int64_t most)
{
    bool room = true;
    for (uint32_t i = 0; i < tensors->n && room; i++) {
        const int64_t n = lb_layout_numel(&tensors->list[i].tensor.layout);
        if (n <= most) room = add_list(lists, lb_shadow_numbers_copy(&tensors->list[i].tensor), n);
    }
    return room;
}

/* Numbers that the side's ops are called with: the alpha of a product may be the scale. Each once. */
static bool add_called_with(scale_lists *lists, const lb_program *program)
{
    double *all = malloc(((size_t)program->n_args + 1) * sizeof *all);
    uint32_t n = 0, kept = 0;
    for (uint32_t i = 0; all && i < program->n_args && n < MOST_MADE; i++)
        if (program->args[i].tag == LB_ARG_FLOAT && program->args[i].u.f > 0) all[n++] = program->args[i].u.f;
    if (n) qsort(all, n, sizeof *all, lb_by_f64);
    for (uint32_t i = 0; i < n; i++)
        if (!kept || all[i] != all[kept - 1]) all[kept++] = all[i];
    if (all && kept) return add_list(lists, all, kept);
    free(all);
    return all != NULL;
}

static bool open_scales(scale_lists *lists, const lb_table_question *asked, int side)
{
    lb_weight_tensors held = {0}, made = {0};
    bool room = lb_weight_tensors_held(asked, side, &held) && lb_weight_tensors_made(asked, side, &made);
    *lists = (scale_lists){.list = calloc((size_t)held.n + made.n + 1 /* called with */, sizeof *lists->list)};
    room = room && lists->list && add_scales(lists, &held, MOST_HELD) && add_scales(lists, &made, MOST_MADE) &&
           add_called_with(lists, asked->sides[side]->program);
    lb_weight_tensors_release(&held), lb_weight_tensors_release(&made);
    return room;
}

/* The scale nearest to a factor; NAN: none is within `room`, relative. */
static double nearest_scale(const scales *s, double factor, double room)
{
    const size_t at = lb_array_first(s->sorted, (size_t)s->n, sizeof *s->sorted, &factor, lb_by_f64);
    double best = NAN;
    for (size_t k = at ? at - 1 : 0; k < (size_t)s->n && k <= at; k++)
        if (fabs(s->sorted[k] - factor) <= room * factor && !(fabs(best - factor) <= fabs(s->sorted[k] - factor)))
            best = s->sorted[k];
    return best;
}

/* ---- one weight ---- */

typedef struct coded {
    const lb_content_run *runs; /* a row of the weight each */
    uint32_t n;
    const lb_weight_tensors *codes;
    double **numbers; /* per tensor of codes; NULL: not read yet */
    double *weight, *factors;
    double room; /* of a factor, relative */
} coded;

/* Which of its tensor's rows (or columns) a run shows. */
static int64_t row_of(const coded *coded, uint32_t run)
{
    const lb_content_run *r = &coded->runs[run];
    return r->from_stride == 1 ? r->from / r->n
                               : r->from / (r->from_stride * r->n) * r->from_stride + r->from % r->from_stride;
}

/* Fits the factor of each row. */
static bool fit(coded *coded)
{
    for (uint32_t k = 0; k < coded->n; k++) {
        const lb_content_run *r = &coded->runs[k];
        double **codes = &coded->numbers[r->tensor], both = 0, size = 0;
        if (!*codes && !(*codes = lb_shadow_numbers_copy(&coded->codes->list[r->tensor].tensor))) return false;
        for (int64_t i = 0; i < r->n; i++) {
            const double code = (*codes)[r->from + i * r->from_stride];
            both += code * coded->weight[r->to + i * r->to_stride], size += code * code;
        }
        coded->factors[k] = size > 0 ? both / size : 0;
    }
    return true;
}

/* How far the scale is from the factor that was fitted, relative; 0 for a row of zeros. */
static double error_of(const coded *coded, uint32_t run, double scale)
{
    return coded->factors[run] ? fabs(scale - coded->factors[run]) / coded->factors[run] : 0;
}

/* The scale of a row, of a tensor that has one for each row of the codes, or one for some rows behind each other. */
static double scale_in_order(const coded *coded, uint32_t run, const scales *s)
{
    const lb_content_run *r = &coded->runs[run];
    const int64_t rows = lb_layout_numel(&coded->codes->list[r->tensor].tensor.layout) / r->n;
    return r->tensor != coded->runs[0].tensor || rows % s->n ? NAN : s->numbers[row_of(coded, run) / (rows / s->n)];
}

/* The same wherever in the tensor they stand: of so few that none is near by chance. */
static double scale_anywhere(const coded *coded, uint32_t run, const scales *s)
{
    return (double)s->n * coded->room > 0.25 ? NAN : nearest_scale(s, coded->factors[run], coded->room);
}

typedef double (*scale_of)(const coded *, uint32_t, const scales *);

/* The largest error of all rows; NAN: some row's scale is not there. */
static double error_of_all(const coded *coded, const scales *s, scale_of scale)
{
    double most = 0;
    for (uint32_t k = 0; k < coded->n; k++) {
        const double error = error_of(coded, k, scale(coded, k, s));
        if (!(error <= coded->room)) return NAN;
        most = fmax(most, error);
    }
    return most;
}

/* The tensor whose scales are nearest. False: there is none, and the factors stay as they are. */
static bool take_scales(coded *coded, const scale_lists *lists)
{
    static const scale_of ways[] = {scale_in_order, scale_anywhere};
    const scales *best = NULL;
    scale_of way = NULL;
    double least = INFINITY;
    for (size_t how = 0; how < sizeof ways / sizeof *ways && !best; how++)
        for (uint32_t i = 0; i < lists->n; i++) {
            const double error = error_of_all(coded, &lists->list[i], ways[how]);
            if (error < least) best = &lists->list[i], way = ways[how], least = error;
        }
    for (uint32_t k = 0; k < coded->n && best; k++)
        if (coded->factors[k]) coded->factors[k] = way(coded, k, best);
    return best != NULL;
}

static void multiply(coded *coded)
{
    for (uint32_t k = 0; k < coded->n; k++) {
        const lb_content_run *r = &coded->runs[k];
        for (int64_t i = 0; i < r->n; i++)
            coded->weight[r->to + i * r->to_stride] =
                coded->factors[k] * coded->numbers[r->tensor][r->from + i * r->from_stride];
    }
}

/* ---- all of them ---- */

/* Codes that a weight of the other side was made of are on both sides, then. */
static bool hold_own(lb_exact_side *s, const lb_weight_tensors *tensors, uint32_t i)
{
    const uint32_t source = lb_value_graph_source(&s->graph, tensors->values[i]);
    if (source == LB_NONE || s->held[source]) return true;
    double *own = lb_exact_side_recorded(s, source);
    lb_exact_side_hold(s, source, own);
    return own != NULL;
}

/* `side` holds the weights. */
static bool put(const lb_table_question *asked, int side, const lb_weight_tensors *weights,
                const lb_weight_tensors *codes, const lb_contents *found, bool *changed)
{
    scale_lists lists;
    bool room = open_scales(&lists, asked, !side);
    double **numbers = calloc((size_t)codes->n + 1, sizeof *numbers);
    for (uint32_t i = 0; i < found->n && room && numbers; i++) {
        const lb_content *content = &found->list[i];
        const lb_tensor *weight = &weights->list[i].tensor;
        if (content->relation == LB_CONTENT_NONE || content->found < content->all) continue;
        coded coded = {.runs = found->runs + content->first,
                       .n = content->n,
                       .codes = codes,
                       .numbers = numbers,
                       .weight = lb_shadow_numbers_copy(weight),
                       .factors = malloc(content->n * sizeof *coded.factors),
                       .room = ROUNDINGS * lb_dtype_unit_roundoff(weight->dtype)};
        room = coded.weight && coded.factors && fit(&coded);
        const bool scaled = room && take_scales(&coded, &lists);
        if (scaled) multiply(&coded);
        for (uint32_t k = 0; k < coded.n && scaled && room; k++)
            if (!k || coded.runs[k].tensor != coded.runs[k - 1].tensor)
                room = hold_own(asked->sides[!side], codes, coded.runs[k].tensor);
        if (scaled && room)
            lb_exact_side_hold(asked->sides[side], weights->values[i], coded.weight), coded.weight = NULL,
                                                                                      *changed = true;
        free(coded.weight), free(coded.factors);
    }
    for (uint32_t i = 0; numbers && i < codes->n; i++) free(numbers[i]);
    room &= numbers != NULL;
    free(numbers);
    release_scales(&lists);
    return room;
}

static lb_status find(const lb_table_question *asked, int side, bool *changed, lb_err *err)
{
    lb_weight_tensors weights = {0}, codes = {0};
    lb_contents found = {0};
    bool room = lb_weight_tensors_held(asked, side, &weights) && lb_weight_tensors_coded(asked, !side, &codes);
    lb_status status = LB_OK;
    if (room && weights.n && codes.n) {
        status = lb_contents_match_scaled(codes.list, codes.n, weights.list, weights.n, ROUNDINGS, &found, err);
        room = status != LB_OK || put(asked, side, &weights, &codes, &found, changed);
    }
    lb_contents_release(&found);
    lb_weight_tensors_release(&weights), lb_weight_tensors_release(&codes);
    return room ? status : lb_fail(err, LB_ERR_NOMEM, "out of memory for codes of weights");
}

lb_status lb_coded_weights_find(const lb_table_question *asked, bool changed[2], lb_err *err)
{
    changed[0] = changed[1] = false;
    for (int side = 0; side < 2; side++) LB_TRY(find(asked, side, &changed[side], err));
    return LB_OK;
}
