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

static uint32_t place(const trial *t, uint32_t i)
{
    return t->position ? t->position[i] : i;
}

static void fill_random(void *context, uint64_t i, void *terms)
{
    const trial *t = context;
    const size_t size = lb_dtype_bits(t->prober->kernel->shape.dtype) / 8;
    for (uint32_t k = 0; k < t->n; k++)
        memcpy((char *)terms + place(t, k) * size, t->terms + ((size_t)i * t->n + k) * size, size);
}

/* ---- random terms and the kernel's sums of them ------------------------------------------------------------------ */

static bool room(trial *t)
{
    const lb_probe_shape *s = &t->prober->kernel->shape;
    const size_t size = lb_dtype_bits(s->dtype) / 8, n = t->n;
    t->terms = malloc(ROWS * n * size + 1);
    t->factors = calloc(s->n + 1, size);
    t->wide_terms = malloc(ROWS * n * sizeof(double) + 1);
    t->wide_factors = malloc(n * sizeof(double) + 1);
    t->narrow_terms = malloc(ROWS * n * sizeof(float) + 1);
    t->narrow_factors = malloc(n * sizeof(float) + 1);
    t->sums = malloc(ROWS * sizeof(double));
    t->got = malloc(ROWS * sizeof(double));
    t->narrow_sums = malloc(ROWS * sizeof(float));
    return t->terms && t->factors && t->wide_terms && t->wide_factors && t->narrow_terms && t->narrow_factors &&
           t->sums && t->got && t->narrow_sums;
}

static void release(trial *t)
{
    void *all[] = {t->terms,          t->factors, t->wide_terms, t->wide_factors, t->narrow_terms,
                   t->narrow_factors, t->sums,    t->got,        t->narrow_sums};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static lb_status draw(trial *t, lb_err *err)
{
    const lb_probe_shape *s = &t->prober->kernel->shape;
    const size_t size = lb_dtype_bits(s->dtype) / 8;
    const bool product = s->form >= LB_PROBE_DOT;
    for (size_t i = 0; i < (size_t)ROWS * t->n; i++) lb_prober_random_term(t->prober, t->terms + i * size);
    for (uint32_t k = 0; product && k < s->n; k++) lb_prober_random_term(t->prober, t->factors + k * size);
    for (uint32_t k = 0; k < t->n; k++) {
        t->wide_factors[k] = product ? lb_to_f64(s->dtype, t->factors + place(t, k) * size) : 1;
        t->narrow_factors[k] = (float)t->wide_factors[k];
        for (size_t i = 0; i < ROWS; i++) { /* term after term, rows side by side */
            t->wide_terms[k * ROWS + i] = lb_to_f64(s->dtype, t->terms + (i * t->n + k) * size);
            t->narrow_terms[k * ROWS + i] = (float)t->wide_terms[k * ROWS + i];
        }
    }
    return lb_prober_sums(t->prober, ROWS, fill_random, t, product ? t->factors : NULL, t->got, err);
}

/* ---- arithmetics ------------------------------------------------------------------------------------------------- */

static lb_status sums_f64(trial *t, const candidate *c)
{
    const lb_tree_rule rule = {.accumulate = c->accumulate, .chained = c->chained};
    const double n = t->prober->kernel->shape.n;
    const bool product = t->prober->kernel->shape.form >= LB_PROBE_DOT;
    LB_TRY(product ? lb_sum_tree_products_f64(t->tree, &rule, t->wide_factors, t->wide_terms, ROWS, ROWS, t->sums)
                   : lb_sum_tree_run_f64(t->tree, &rule, t->wide_terms, ROWS, ROWS, t->sums));
    for (int i = 0; c->scale && i < ROWS; i++) t->sums[i] = c->scale == 1 ? t->sums[i] / n : t->sums[i] * (1 / n);
    return LB_OK;
}

static lb_status sums_f32(trial *t, const candidate *c)
{
    const lb_dtype dtype = t->prober->kernel->shape.dtype;
    lb_tensor_core core;
    lb_tree_rule rule = {.accumulate = c->accumulate, .chained = c->chained};
    if (c->unit >= 0) {
        LB_TRY(lb_tensor_core_find(c->unit, dtype, dtype, LB_NO_DTYPE, &core, NULL));
        rule.fused = &core;
    }
    const float n = (float)t->prober->kernel->shape.n;
    const bool product = t->prober->kernel->shape.form >= LB_PROBE_DOT;
    LB_TRY(product ? lb_sum_tree_products_f32(t->tree, &rule, t->narrow_factors, t->narrow_terms, ROWS, ROWS,
                                              t->narrow_sums)
                   : lb_sum_tree_run_f32(t->tree, &rule, t->narrow_terms, ROWS, ROWS, t->narrow_sums));
    for (int i = 0; c->scale && i < ROWS; i++)
        t->narrow_sums[i] = c->scale == 1 ? t->narrow_sums[i] / n : t->narrow_sums[i] * (1 / n);
    for (int i = 0; i < ROWS; i++) t->sums[i] = t->narrow_sums[i];
    return LB_OK;
}

/* How many of the kernel's sums have the candidate's bits. */
static lb_status agreement(trial *t, const candidate *c, uint32_t *equal)
{
    *equal = 0;
    const lb_status status = c->type == LB_F64 ? sums_f64(t, c) : sums_f32(t, c);
    if (status == LB_ERR_UNSUPPORTED) return LB_OK;
    LB_TRY(status);
    for (int i = 0; i < ROWS; i++) {
        double sum = t->sums[i];
        if (c->result) {
            char element[8];
            lb_from_f64(c->result, element, sum, NULL);
            sum = lb_to_f64(c->result, element);
        }
        *equal += sum == t->got[i];
    }
    return LB_OK;
}

static void describe(const candidate *c, char *text, size_t size)
{
    int n = snprintf(text, size, "%s", lb_dtype_name(c->type));
    if (c->chained) n += snprintf(text + n, size - (size_t)n, " fma");
    if (c->accumulate) n = snprintf(text, size, "%s at every addition", lb_dtype_name(c->accumulate));
    if (c->unit >= 0) n = snprintf(text, size, "tensor core %s", lb_tensor_core_name(c->unit));
    if (c->scale) n += snprintf(text + n, size - (size_t)n, ", %s", c->scale == 1 ? "divided by n" : "times 1/n");
    if (c->result && c->result != c->type && c->result != c->accumulate)
        snprintf(text + n, size - (size_t)n, ", rounded to %s at the end", lb_dtype_name(c->result));
}

/* What the largest fused sum takes together: its terms, and what the one before it gave. */
static uint32_t fused_most(const lb_sum_tree *t)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < t->nodes; i++)
        if (t->first[i + 1] - t->first[i] > most) most = t->first[i + 1] - t->first[i];
    return most;
}

/* Does a unit add as many products at once as the tree does? */
static bool has_width(const trial *t, const candidate *c)
{
    const lb_dtype dtype = t->prober->kernel->shape.dtype;
    lb_tensor_core core;
    if (lb_tensor_core_find(c->unit, dtype, dtype, LB_NO_DTYPE, &core, NULL) != LB_OK) return false;
    return t->n <= (uint32_t)core.terms || fused_most(t->tree) == (uint32_t)core.terms + 1;
}

static bool has_fused(const lb_sum_tree *t)
{
    for (uint32_t i = 0; i < t->nodes; i++)
        if (t->first[i + 1] - t->first[i] > 2) return true;
    return false;
}

static lb_status try_candidate(trial *t, const candidate *c, lb_probe_group *g, lb_err *err)
{
    uint32_t equal;
    if (g->confirmed == ROWS || (c->unit >= 0 && !has_width(t, c))) return LB_OK;
    if (agreement(t, c, &equal) != LB_OK) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (equal > g->confirmed) g->confirmed = equal;
    if (equal == ROWS) describe(c, g->arithmetic, sizeof g->arithmetic);
    return LB_OK;
}

/* The likeliest first, since few terms cannot tell some of them apart. */
static lb_status try_all(trial *t, lb_probe_group *g, lb_err *err)
{
    const lb_probe_shape *s = &t->prober->kernel->shape;
    const bool narrow = lb_dtype_bits(s->dtype) == 16, mean = t->prober->response != t->prober->units.unit;
    const bool fused = has_fused(t->tree), product = s->form >= LB_PROBE_DOT;
    const lb_dtype result = s->result ? s->result : s->dtype;
    candidate list[5];
    int n = 0;
    if (s->dtype != LB_F64) {
        list[n++] = (candidate){.type = LB_F32, .result = result};
        if (narrow) list[n++] = (candidate){.type = LB_F32, .accumulate = s->dtype, .result = result};
    }
    list[n++] = (candidate){.type = LB_F64, .result = result};
    for (int i = 0; i < n; i++)
        for (int scale = mean; scale <= 2 * mean; scale++)
            for (int unit = fused && list[i].type == LB_F32 && !list[i].accumulate ? 0 : -1;; unit++) {
                if (unit >= 0 && !lb_tensor_core_name(unit)) unit = -1;
                for (int chained = product && unit < 0; chained >= 0; chained--) {
                    candidate c = list[i];
                    c.scale = scale, c.unit = unit, c.chained = chained;
                    LB_TRY(try_candidate(t, &c, g, err));
                }
                if (unit < 0) break;
            }
    return LB_OK;
}

/* ---- products under the names ------------------------------------------------------------------------------------ */

/* Do all sums have the bits of the engine's own products under this name? */
static bool engine_gives(const trial *t, const char *name)
{
    enum { COLUMNS = 16 }; /* of which the first is in whole fours and eights */
    lb_schedule order;
    if (lb_schedule_parse(name, &order, NULL) != LB_OK) return false;
    const lb_method method = {.schedule = &order};
    const lb_product shape = {.m = ROWS, .n = COLUMNS, .k = t->n, .a_row = 1, .a_column = ROWS, .b_row = 1};
    float *sums = malloc(ROWS * COLUMNS * sizeof *sums);
    bool same = sums && lb_product_run(&shape, LB_F32, &method, t->narrow_terms, t->narrow_factors, sums) == LB_OK;
    for (int i = 0; same && i < ROWS; i++) same = sums[i * COLUMNS] == t->got[i];
    free(sums);
    lb_schedule_release(&order);
    return same;
}

/* Which of the names, one alone, with its products rounded or not, has these bits: a tree does not tell where a lane
 * holds one term. It is the only name then. */
static void name_products(const trial *t, lb_probe_group *g)
{
    char names[sizeof g->names], *rest = names;
    memcpy(names, g->names, sizeof names);
    for (char *name; (name = rest) != NULL && *name;) {
        char rounded[96];
        if ((rest = strstr(name, " = ")) != NULL) *rest = 0, rest += 3;
        const bool is_chain = !strcmp(name, "sequential"), is_folded = !strncmp(name, "folded:", 7);
        if (!is_chain && !is_folded && strcmp(name, "eights")) continue;
        snprintf(rounded, sizeof rounded, is_chain ? "lanes:1" : "%.80s,rounded", name);
        const bool plain = engine_gives(t, name);
        if (!plain && (!strcmp(name, "eights") || !engine_gives(t, rounded))) continue;
        g->confirmed = ROWS;
        snprintf(g->arithmetic, sizeof g->arithmetic, plain ? "f32 fma" : "f32");
        if (!plain || !is_chain) snprintf(g->names, sizeof g->names, "%s", plain ? name : rounded);
        return;
    }
}

lb_status lb_probe_confirm(lb_prober *prober, const lb_sum_tree *tree, lb_probe_group *group, lb_err *err)
{
    trial t = {.prober = prober, .tree = tree ? tree : group->tree, .position = tree ? NULL : prober->position};
    t.n = t.tree->leaves;
    group->tried = ROWS;
    group->confirmed = 0;
    *group->arithmetic = 0;
    lb_status status = room(&t) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = draw(&t, err);
    if (status == LB_OK) status = try_all(&t, group, err);
    const lb_probe_shape *s = &prober->kernel->shape;
    if (status == LB_OK && s->form >= LB_PROBE_DOT && s->dtype == LB_F32 && t.n == s->n) name_products(&t, group);
    release(&t);
    return status;
}
