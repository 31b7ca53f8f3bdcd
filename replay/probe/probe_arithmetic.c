/* What the additions of a tree are: random terms are summed by the kernel and along the tree in every arithmetic that
 * might be its own; the one that gives all the bits is it. See probe.h. */
#include "probe/probe.h"
#include "kernel/product.h"
#include "orders/schedule.h"
#include "orders/sum_tree.h"
#include "orders/tensor_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32 };

/* Sums in `type`, each addition rounded to `accumulate`, the last one to `result`. */
typedef struct candidate {
    lb_dtype type, accumulate, result;
    bool chained;
    int unit;  /* fused sums as tensor core `unit` does them; -1: exact, rounded once */
    int scale; /* 0: none; a mean: 1 divides by n, 2 multiplies by 1/n */
} candidate;

typedef struct trial {
    lb_prober *prober;
    const lb_sum_tree *tree;
    uint32_t n;
    const uint32_t *position; /* NULL: all */
    char *terms;              /* ROWS rows of n elements */
    char *factors;            /* n elements of the kernel's whole row, or NULL */
    double *wide_terms, *wide_factors, *sums, *got;
    float *narrow_terms, *narrow_factors, *narrow_sums;
} trial;

static uint32_t place(const trial *trial, uint32_t i)
{
    return trial->position ? trial->position[i] : i;
}

static void fill_random(void *context, uint64_t i, void *terms)
{
    const trial *trial = context;
    const size_t size = lb_dtype_bits(trial->prober->kernel->shape.dtype) / 8;
    for (uint32_t k = 0; k < trial->n; k++)
        memcpy((char *)terms + place(trial, k) * size, trial->terms + ((size_t)i * trial->n + k) * size, size);
}

/* ---- random terms and the kernel's sums of them ------------------------------------------------------------------ */

static bool room(trial *trial)
{
    const lb_probe_shape *shape = &trial->prober->kernel->shape;
    const size_t size = lb_dtype_bits(shape->dtype) / 8, n = trial->n;
    trial->terms = malloc(ROWS * n * size + 1);
    trial->factors = calloc(shape->n + 1, size);
    trial->wide_terms = malloc(ROWS * n * sizeof(double) + 1);
    trial->wide_factors = malloc(n * sizeof(double) + 1);
    trial->narrow_terms = malloc(ROWS * n * sizeof(float) + 1);
    trial->narrow_factors = malloc(n * sizeof(float) + 1);
    trial->sums = malloc(ROWS * sizeof(double));
    trial->got = malloc(ROWS * sizeof(double));
    trial->narrow_sums = malloc(ROWS * sizeof(float));
    return trial->terms && trial->factors && trial->wide_terms && trial->wide_factors && trial->narrow_terms &&
           trial->narrow_factors && trial->sums && trial->got && trial->narrow_sums;
}

static void release(trial *trial)
{
    void *all[] = {trial->terms,          trial->factors, trial->wide_terms, trial->wide_factors, trial->narrow_terms,
                   trial->narrow_factors, trial->sums,    trial->got,        trial->narrow_sums};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static lb_status draw(trial *trial, lb_err *err)
{
    const lb_probe_shape *shape = &trial->prober->kernel->shape;
    const size_t size = lb_dtype_bits(shape->dtype) / 8;
    const bool product = shape->form >= LB_PROBE_DOT;
    for (size_t i = 0; i < (size_t)ROWS * trial->n; i++) lb_prober_random_term(trial->prober, trial->terms + i * size);
    for (uint32_t k = 0; product && k < shape->n; k++) lb_prober_random_term(trial->prober, trial->factors + k * size);
    for (uint32_t k = 0; k < trial->n; k++) {
        trial->wide_factors[k] = product ? lb_to_f64(shape->dtype, trial->factors + place(trial, k) * size) : 1;
        trial->narrow_factors[k] = (float)trial->wide_factors[k];
        for (size_t i = 0; i < ROWS; i++) { /* term after term, rows side by side */
            trial->wide_terms[k * ROWS + i] = lb_to_f64(shape->dtype, trial->terms + (i * trial->n + k) * size);
            trial->narrow_terms[k * ROWS + i] = (float)trial->wide_terms[k * ROWS + i];
        }
    }
    const lb_probe_terms terms = {fill_random, trial, product ? trial->factors : NULL};
    return lb_prober_sums(trial->prober, ROWS, &terms, trial->got, err);
}

/* ---- arithmetics ------------------------------------------------------------------------------------------------- */

static lb_status sums_f64(trial *trial, const candidate *candidate)
{
    const lb_tree_rule rule = {.accumulate = candidate->accumulate, .chained = candidate->chained};
    const double n = trial->prober->kernel->shape.n;
    const bool product = trial->prober->kernel->shape.form >= LB_PROBE_DOT;
    LB_TRY(product ? lb_sum_tree_products_f64(trial->tree, &rule, trial->wide_factors, trial->wide_terms, ROWS, ROWS,
                                              trial->sums)
                   : lb_sum_tree_run_f64(trial->tree, &rule, trial->wide_terms, ROWS, ROWS, trial->sums));
    for (int i = 0; candidate->scale && i < ROWS; i++)
        trial->sums[i] = candidate->scale == 1 ? trial->sums[i] / n : trial->sums[i] * (1 / n);
    return LB_OK;
}

static lb_status sums_f32(trial *trial, const candidate *candidate)
{
    const lb_dtype dtype = trial->prober->kernel->shape.dtype;
    lb_tensor_core core;
    lb_tree_rule rule = {.accumulate = candidate->accumulate, .chained = candidate->chained};
    if (candidate->unit >= 0) {
        LB_TRY(lb_tensor_core_find(candidate->unit, dtype, dtype, LB_NO_DTYPE, &core, NULL));
        rule.fused = &core;
    }
    const float n = (float)trial->prober->kernel->shape.n;
    const bool product = trial->prober->kernel->shape.form >= LB_PROBE_DOT;
    LB_TRY(product ? lb_sum_tree_products_f32(trial->tree, &rule, trial->narrow_factors, trial->narrow_terms, ROWS,
                                              ROWS, trial->narrow_sums)
                   : lb_sum_tree_run_f32(trial->tree, &rule, trial->narrow_terms, ROWS, ROWS, trial->narrow_sums));
    for (int i = 0; candidate->scale && i < ROWS; i++)
        trial->narrow_sums[i] = candidate->scale == 1 ? trial->narrow_sums[i] / n : trial->narrow_sums[i] * (1 / n);
    for (int i = 0; i < ROWS; i++) trial->sums[i] = trial->narrow_sums[i];
    return LB_OK;
}

/* How many of the kernel's sums have the candidate's bits. */
static lb_status agreement(trial *trial, const candidate *candidate, uint32_t *equal)
{
    *equal = 0;
    const lb_status status = candidate->type == LB_F64 ? sums_f64(trial, candidate) : sums_f32(trial, candidate);
    if (status == LB_ERR_UNSUPPORTED) return LB_OK;
    LB_TRY(status);
    for (int i = 0; i < ROWS; i++) {
        double sum = trial->sums[i];
        if (candidate->result) {
            char element[8];
            lb_from_f64(candidate->result, element, sum, NULL);
            sum = lb_to_f64(candidate->result, element);
        }
        *equal += sum == trial->got[i];
    }
    return LB_OK;
}

static void describe(const candidate *candidate, char *text, size_t size)
{
    int n = snprintf(text, size, "%s", lb_dtype_name(candidate->type));
    if (candidate->chained) n += snprintf(text + n, size - (size_t)n, " fma");
    if (candidate->accumulate) n = snprintf(text, size, "%s at every addition", lb_dtype_name(candidate->accumulate));
    if (candidate->unit >= 0) n = snprintf(text, size, "tensor core %s", lb_tensor_core_name(candidate->unit));
    if (candidate->scale)
        n += snprintf(text + n, size - (size_t)n, ", %s", candidate->scale == 1 ? "divided by n" : "times 1/n");
    if (candidate->result && candidate->result != candidate->type && candidate->result != candidate->accumulate)
        snprintf(text + n, size - (size_t)n, ", rounded to %s at the end", lb_dtype_name(candidate->result));
}

/* What the largest fused sum takes together: its terms, and what the one before it gave. */
static uint32_t fused_most(const lb_sum_tree *tree)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < tree->nodes; i++)
        if (tree->first[i + 1] - tree->first[i] > most) most = tree->first[i + 1] - tree->first[i];
    return most;
}

/* Does a unit add as many products at once as the tree does? */
static bool has_width(const trial *trial, const candidate *candidate)
{
    const lb_dtype dtype = trial->prober->kernel->shape.dtype;
    lb_tensor_core core;
    if (lb_tensor_core_find(candidate->unit, dtype, dtype, LB_NO_DTYPE, &core, NULL) != LB_OK) return false;
    return trial->n <= (uint32_t)core.terms || fused_most(trial->tree) == (uint32_t)core.terms + 1;
}

static bool has_fused(const lb_sum_tree *tree)
{
    for (uint32_t i = 0; i < tree->nodes; i++)
        if (tree->first[i + 1] - tree->first[i] > 2) return true;
    return false;
}

static lb_status try_candidate(trial *trial, const candidate *candidate, lb_probe_group *group, lb_err *err)
{
    uint32_t equal;
    if (group->confirmed == ROWS || (candidate->unit >= 0 && !has_width(trial, candidate))) return LB_OK;
    if (agreement(trial, candidate, &equal) != LB_OK) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (equal > group->confirmed) group->confirmed = equal;
    if (equal == ROWS) describe(candidate, group->arithmetic, sizeof group->arithmetic);
    return LB_OK;
}

/* The likeliest first, since few terms cannot tell some of them apart. */
static lb_status try_all(trial *trial, lb_probe_group *group, lb_err *err)
{
    const lb_probe_shape *shape = &trial->prober->kernel->shape;
    const bool narrow = lb_dtype_bits(shape->dtype) == 16, mean = trial->prober->response != trial->prober->units.unit;
    const bool fused = has_fused(trial->tree), product = shape->form >= LB_PROBE_DOT;
    const lb_dtype result = shape->result ? shape->result : shape->dtype;
    candidate list[5];
    int n = 0;
    if (shape->dtype != LB_F64) {
        list[n++] = (candidate){.type = LB_F32, .result = result};
        if (narrow) list[n++] = (candidate){.type = LB_F32, .accumulate = shape->dtype, .result = result};
    }
    list[n++] = (candidate){.type = LB_F64, .result = result};
    for (int i = 0; i < n; i++)
        for (int scale = mean; scale <= 2 * mean; scale++)
            for (int unit = fused && list[i].type == LB_F32 && !list[i].accumulate ? 0 : -1;; unit++) {
                if (unit >= 0 && !lb_tensor_core_name(unit)) unit = -1;
                for (int chained = product && unit < 0; chained >= 0; chained--) {
                    candidate c = list[i];
                    c.scale = scale, c.unit = unit, c.chained = chained;
                    LB_TRY(try_candidate(trial, &c, group, err));
                }
                if (unit < 0) break;
            }
    return LB_OK;
}

/* ---- products under the names ------------------------------------------------------------------------------------ */

/* Do all sums have the bits of the engine's own products under this name? */
static bool engine_gives(const trial *trial, const char *name)
{
    enum { COLUMNS = 16 }; /* of which the first is in whole fours and eights */
    lb_schedule order;
    if (lb_schedule_parse(name, &order, NULL) != LB_OK) return false;
    const lb_method method = {.schedule = &order};
    const lb_product shape = {.m = ROWS, .n = COLUMNS, .k = trial->n, .a_row = 1, .a_column = ROWS, .b_row = 1};
    float *sums = malloc(ROWS * COLUMNS * sizeof *sums);
    bool same =
        sums && lb_product_run(&shape, LB_F32, &method, trial->narrow_terms, trial->narrow_factors, sums) == LB_OK;
    for (int i = 0; same && i < ROWS; i++) same = sums[i * COLUMNS] == trial->got[i];
    free(sums);
    lb_schedule_release(&order);
    return same;
}

/* Which of the names, one alone, with its products rounded or not, has these bits: a tree does not tell where a lane
 * holds one term. It is the only name then. */
static void name_products(const trial *trial, lb_probe_group *group)
{
    char names[sizeof group->names], *rest = names;
    memcpy(names, group->names, sizeof names);
    for (char *name; (name = rest) != NULL && *name;) {
        char rounded[96];
        if ((rest = strstr(name, " = ")) != NULL) *rest = 0, rest += 3;
        const bool is_chain = !strcmp(name, "sequential"), is_folded = !strncmp(name, "folded:", 7);
        if (!is_chain && !is_folded && strcmp(name, "eights")) continue;
        snprintf(rounded, sizeof rounded, is_chain ? "lanes:1" : "%.80s,rounded", name);
        const bool plain = engine_gives(trial, name);
        if (!plain && (!strcmp(name, "eights") || !engine_gives(trial, rounded))) continue;
        group->confirmed = ROWS;
        snprintf(group->arithmetic, sizeof group->arithmetic, plain ? "f32 fma" : "f32");
        if (!plain || !is_chain) snprintf(group->names, sizeof group->names, "%s", plain ? name : rounded);
        return;
    }
}

lb_status lb_probe_confirm(lb_prober *prober, const lb_sum_tree *tree, lb_probe_group *group, lb_err *err)
{
    trial trial = {.prober = prober, .tree = tree ? tree : group->tree, .position = tree ? NULL : prober->position};
    trial.n = trial.tree->leaves;
    group->tried = ROWS;
    group->confirmed = 0;
    *group->arithmetic = 0;
    lb_status status = room(&trial) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = draw(&trial, err);
    if (status == LB_OK) status = try_all(&trial, group, err);
    const lb_probe_shape *shape = &prober->kernel->shape;
    if (status == LB_OK && shape->form >= LB_PROBE_DOT && shape->dtype == LB_F32 && trial.n == shape->n)
        name_products(&trial, group);
    release(&trial);
    return status;
}
