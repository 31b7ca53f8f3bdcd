/* Finding the order of a live kernel: see lastbit/order.h and probe.h. Here: what is asked for in one call, what stands
 * for huge and for small, which results share an order, and which terms are sampled. */
#include "probe/probe.h"
#include "orders/sum_tree.h"

#include <lastbit/clock.h>
#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALL_BYTES = 1 << 22, TRIALS = 12, DEFAULT_GROUPS = 8, SAMPLE_ABOVE = 4096, SAMPLE = 1024 };

static const char *const outcomes[] = {"tree", "exact", "unstable", "no-sum", "no-tree"};
const char *lb_probe_outcome_name(lb_probe_outcome outcome)
{
    return outcomes[outcome];
}

uint32_t lb_prober_random(lb_prober *prober, uint32_t n)
{
    uint32_t words[4];
    lb_philox(prober->options.seed, prober->random++, 0, words);
    return (uint32_t)(((uint64_t)words[0] * n) >> 32);
}

static size_t element_size(const lb_probe_kernel *kernel)
{
    return lb_dtype_bits(kernel->shape.dtype) / 8;
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

lb_status lb_prober_sums(lb_prober *prober, uint64_t count, const lb_probe_terms *terms, double *sums, lb_err *err)
{
    const lb_probe_shape *shape = &prober->kernel->shape;
    const size_t row_bytes = shape->n * element_size(prober->kernel), results = (size_t)shape->rows * shape->columns;
    uint64_t most = CALL_BYTES / (row_bytes * shape->rows);
    const uint64_t wanted = (count + prober->rows - 1) / prober->rows;
    most = most < 1 ? 1 : most > wanted ? wanted : most;
    char *rows = malloc((size_t)most * shape->rows * row_bytes + 1);
    double *out = malloc((size_t)most * results * sizeof *out + 1);
    lb_status status = rows && out ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint64_t done = 0; status == LB_OK && done < count;) {
        const uint64_t left = (count - done + prober->rows - 1) / prober->rows, calls = left < most ? left : most;
        memset(rows, 0, (size_t)calls * shape->rows * row_bytes);
        for (uint64_t i = 0; i < calls * prober->rows && done + i < count; i++)
            terms->fill(terms->context, done + i,
                        rows + (i / prober->rows * shape->rows + prober->row[i % prober->rows]) * row_bytes);
        status = prober->kernel->run(prober->kernel->context, (uint32_t)calls, rows, terms->factors, out, err);
        for (uint64_t i = 0; status == LB_OK && i < calls * prober->rows && done + i < count; i++)
            sums[done + i] = out[i / prober->rows * results + (size_t)prober->row[i % prober->rows] * shape->columns +
                                 prober->column[i % prober->rows]];
        prober->calls += calls;
        done += calls * prober->rows;
    }
    prober->probes += count;
    free(rows);
    free(out);
    return status;
}

/* The three values that probes are made of, as elements. */
typedef struct marks {
    uint64_t unit, plus, minus;
    size_t size;
} marks;

static marks marks_of(const lb_prober *prober)
{
    const lb_dtype dtype = prober->kernel->shape.dtype;
    marks m = {.size = element_size(prober->kernel)};
    lb_from_f64(dtype, &m.unit, prober->units.unit, NULL);
    lb_from_f64(dtype, &m.plus, prober->units.huge, NULL);
    lb_from_f64(dtype, &m.minus, -prober->units.huge, NULL);
    return m;
}

static void put(void *terms, const marks *marks, uint32_t at, const uint64_t *mark)
{
    memcpy((char *)terms + (size_t)at * marks->size, mark, marks->size);
}

/* One query needs a probe for every `most` units. */
typedef struct asking {
    const lb_prober *prober;
    const lb_probe_query *queries;
    marks marks;
    struct asked {
        uint32_t query, from;
    } *probe;
} asking;

static void fill_query(void *context, uint64_t i, void *terms)
{
    const asking *asking = context;
    const lb_probe_query *query = &asking->queries[asking->probe[i].query];
    const uint32_t from = asking->probe[i].from, most = asking->prober->units.most,
                   *position = asking->prober->position;
    const uint32_t end = query->count - from < most ? query->count : from + most;
    for (uint32_t k = from; k < end; k++) put(terms, &asking->marks, position[query->set[k]], &asking->marks.unit);
    if (!from && query->extra != LB_PROBE_NONE) put(terms, &asking->marks, position[query->extra], &asking->marks.unit);
    put(terms, &asking->marks, position[query->i], &asking->marks.plus);
    put(terms, &asking->marks, position[query->j], &asking->marks.minus);
}

/* A sum as a number of units, up to `most`; LB_PROBE_NONE: it is none. */
static uint32_t units_in(const lb_prober *prober, double sum, uint32_t most)
{
    const double units = sum / prober->response, whole = rint(units);
    return !(fabs(units - whole) < 0.25) || whole < 0 || whole > most ? LB_PROBE_NONE : (uint32_t)whole;
}

lb_status lb_prober_ask(lb_prober *prober, lb_probe_query *queries, uint32_t count, lb_err *err)
{
    const uint32_t most = prober->units.most; /* and the extra term, which goes with the first probe */
    uint64_t probes = 0;
    for (uint32_t query = 0; query < count; query++) probes += (queries[query].count + most - 1) / most;
    asking asking = {prober, queries, marks_of(prober), malloc((size_t)(probes + 1) * sizeof *asking.probe)};
    double *sums = malloc((size_t)(probes + 1) * sizeof *sums);
    lb_status status = asking.probe && sums ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    uint64_t n = 0;
    for (uint32_t query = 0; status == LB_OK && query < count; query++)
        for (uint32_t from = 0; from < queries[query].count; from += most)
            asking.probe[n++] = (struct asked){query, from};
    if (status == LB_OK) status = lb_prober_sums(prober, n, &(lb_probe_terms){fill_query, &asking, NULL}, sums, err);
    for (uint32_t query = 0; status == LB_OK && query < count; query++)
        queries[query].size = queries[query].count + (queries[query].extra != LB_PROBE_NONE);
    for (uint64_t i = 0; status == LB_OK && i < n; i++) {
        lb_probe_query *query = &queries[asking.probe[i].query];
        const uint32_t survivors = units_in(prober, sums[i], most + 1);
        query->size = survivors == LB_PROBE_NONE || query->size == LB_PROBE_NONE || survivors > query->size
                          ? LB_PROBE_NONE
                          : query->size - survivors;
    }
    free(asking.probe);
    free(sums);
    return status;
}

/* ---- what stands for huge and for small -------------------------------------------------------------------------- */

/* f16 reaches from 2^-24 to 2^15: the unit is its least subnormal, or, where those are flushed, its least normal
 * number. */
static lb_probe_units units_for(lb_dtype dtype, bool normal)
{
    switch (dtype) {
    case LB_F64: return (lb_probe_units){0x1p1000, 1, LB_TREE_MAX_LEAVES};
    case LB_BF16: return (lb_probe_units){0x1p125, 1, 254};
    case LB_F16: return normal ? (lb_probe_units){0x1p15, 0x1p-14, 14} : (lb_probe_units){0x1p15, 0x1p-24, 1022};
    default: return (lb_probe_units){0x1p125, 1, LB_TREE_MAX_LEAVES - 2};
    }
}

enum { SINGLES = 16 };

typedef struct first_probes {
    const lb_prober *prober;
    marks marks;
    uint32_t singles;
} first_probes;

/* First a unit alone at some terms; then all units, from a multiple of `most` on; last a huge term and its negative. */
static void fill_first(void *context, uint64_t i, void *terms)
{
    const first_probes *first_probes = context;
    const lb_prober *prober = first_probes->prober;
    if (i < first_probes->singles) {
        put(terms, &first_probes->marks,
            prober->position[i * (prober->terms - 1) / (first_probes->singles > 1 ? first_probes->singles - 1 : 1)],
            &first_probes->marks.unit);
        return;
    }
    const uint64_t from = (i - first_probes->singles) * prober->units.most;
    for (uint64_t k = from; k < prober->terms && k < from + prober->units.most; k++)
        put(terms, &first_probes->marks, prober->position[k], &first_probes->marks.unit);
    if (from < prober->terms) return;
    put(terms, &first_probes->marks, prober->position[0], &first_probes->marks.plus);
    put(terms, &first_probes->marks, prober->position[prober->terms - 1], &first_probes->marks.minus);
}

static bool no_sum(lb_probe_group *group, const char *reason, double x)
{
    group->outcome = LB_PROBE_NO_SUM;
    snprintf(group->reason, sizeof group->reason, reason, x);
    return false;
}

/* Whether the results are the sum of the terms as far as units tell. */
static bool answers_fit(lb_prober *prober, lb_probe_group *group, const double *sums, uint32_t singles, uint64_t n)
{
    prober->response = sums[0];
    if (!(fabs(prober->response) > 0) || !isfinite(prober->response))
        return no_sum(group, "a term of %g alone is lost", prober->units.unit);
    for (uint32_t i = 1; i < singles; i++)
        if (sums[i] != sums[0])
            return no_sum(group, "a unit counts as %g at one term and differently at another", sums[0]);
    for (uint64_t i = singles; i < n; i++) {
        const uint64_t from = (i - singles) * prober->units.most,
                       left = from < prober->terms ? prober->terms - from : 0;
        const uint32_t expected = (uint32_t)(left < prober->units.most ? left : prober->units.most);
        if (units_in(prober, sums[i], expected) != expected)
            return no_sum(group, expected ? "many units do not add up: %g" : "a huge term and its negative give %g",
                          sums[i]);
    }
    return true;
}

static lb_status ask_first(lb_prober *prober, lb_probe_group *group, bool *fine, lb_err *err)
{
    *fine = false;
    for (int normal = 0; normal < 2 && !*fine; normal++) {
        if (normal && prober->kernel->shape.dtype != LB_F16) break;
        prober->units = units_for(prober->kernel->shape.dtype, normal);
        first_probes first_probes = {prober, marks_of(prober), prober->terms < SINGLES ? prober->terms : SINGLES};
        const uint64_t n =
            first_probes.singles + (prober->terms + prober->units.most - 1) / prober->units.most + (prober->terms > 1);
        double *sums = malloc((size_t)n * sizeof *sums);
        if (!sums) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        const lb_status status =
            lb_prober_sums(prober, n, &(lb_probe_terms){fill_first, &first_probes, NULL}, sums, err);
        if (status == LB_OK) *fine = answers_fit(prober, group, sums, first_probes.singles, n);
        free(sums);
        LB_TRY(status);
    }
    return LB_OK;
}

/* ---- results that share an order --------------------------------------------------------------------------------- */

void lb_prober_random_term(lb_prober *prober, void *to)
{
    const uint32_t spread = prober->kernel->shape.dtype == LB_F16 ? 3 : 8;
    const double x = lb_prober_random(prober, 1u << 30) / 0x1p29 - 1,
                 scale = (double)lb_prober_random(prober, 2 * spread + 1) - spread;
    lb_from_f64(prober->kernel->shape.dtype, to, x * exp2(scale), NULL);
}

typedef struct signature {
    uint64_t hash;
    uint32_t position;
    bool unstable;
} signature;

static int by_hash(const void *a, const void *b)
{
    const signature *x = a, *y = b;
    if (x->unstable != y->unstable) return x->unstable - y->unstable;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return (x->position > y->position) - (x->position < y->position);
}

static uint64_t mixed(uint64_t hash, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    hash = (hash ^ bits) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

/* Every row is given the same random terms, twice: results of one order have the same bits. */
static lb_status take_signatures(lb_prober *prober, signature *all, lb_err *err)
{
    const lb_probe_shape *shape = &prober->kernel->shape;
    const size_t size = element_size(prober->kernel), results = (size_t)shape->rows * shape->columns,
                 row_bytes = shape->n * size;
    char *terms = malloc(shape->rows * row_bytes + 1);
    double *once = malloc(2 * results * sizeof *once + 1), *twice = once + results;
    lb_status status = terms && once ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (size_t r = 0; r < results; r++) all[r] = (signature){0, (uint32_t)r, false};
    for (int trial = 0; status == LB_OK && trial < TRIALS; trial++) {
        memset(terms, 0, row_bytes);
        for (uint32_t t = 0; t < prober->terms; t++) lb_prober_random_term(prober, terms + prober->position[t] * size);
        for (uint32_t r = 1; r < shape->rows; r++) memcpy(terms + r * row_bytes, terms, row_bytes);
        status = prober->kernel->run(prober->kernel->context, 1, terms, NULL, once, err);
        if (status == LB_OK) status = prober->kernel->run(prober->kernel->context, 1, terms, NULL, twice, err);
        prober->calls += 2;
        for (size_t r = 0; status == LB_OK && r < results; r++) {
            all[r].hash = mixed(all[r].hash, once[r]);
            all[r].unstable |= memcmp(once + r, twice + r, 8) != 0;
        }
    }
    free(terms);
    free(once);
    return status;
}

/* ---- one group --------------------------------------------------------------------------------------------------- */

/* The first result of the group in every row that has one. `all` are the group's, by position. */
static void use_group(lb_prober *prober, const signature *all, uint32_t count)
{
    const uint32_t columns = prober->kernel->shape.columns;
    prober->rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t row = all[i].position / columns;
        if (prober->rows && prober->row[prober->rows - 1] == row) continue;
        prober->row[prober->rows] = row;
        prober->column[prober->rows++] = all[i].position % columns;
    }
}

/* A name read off from a sample is checked on all terms; without a name the sample is. */
static lb_status confirm(lb_prober *prober, lb_probe_group *group, lb_err *err)
{
    const lb_probe_shape *shape = &prober->kernel->shape;
    lb_sum_tree *whole = NULL;
    if (prober->terms < shape->n && *group->names) {
        char first[128];
        snprintf(first, sizeof first, "%.*s",
                 (int)(strstr(group->names, " = ") ? strstr(group->names, " = ") - group->names
                                                   : (long)strlen(group->names)),
                 group->names);
        lb_sum_tree_named(first, shape->n, lb_probe_sum_of(shape->form), shape->dtype, &whole, NULL);
    }
    lb_status status = lb_probe_confirm(prober, whole, group, err);
    if (status == LB_OK && whole && group->confirmed < group->tried)
        status = lb_probe_confirm(prober, NULL, group, err);
    lb_sum_tree_free(whole);
    return status;
}

static lb_status probe_group(lb_prober *prober, const signature *all, uint32_t count, lb_probe_group *group,
                             lb_err *err)
{
    const lb_probe_shape *shape = &prober->kernel->shape;
    *group = (lb_probe_group){
        .row = all[0].position / shape->columns, .column = all[0].position % shape->columns, .positions = count};
    if (all[0].unstable) {
        group->outcome = LB_PROBE_UNSTABLE;
        snprintf(group->reason, sizeof group->reason, "the same terms gave other bits in a second call");
        return LB_OK;
    }
    use_group(prober, all, count);
    bool fine;
    LB_TRY(ask_first(prober, group, &fine, err));
    if (!fine) return LB_OK;
    LB_TRY(lb_probe_find_tree(prober, group, err));
    if (group->outcome != LB_PROBE_TREE) return LB_OK;
    const lb_sum_of of = lb_probe_sum_of(shape->form);
    if (prober->terms == shape->n)
        lb_sum_tree_name(group->tree, of, shape->dtype, group->names, sizeof group->names);
    else
        lb_sum_tree_name_sampled(group->tree, prober->position, shape->n, of, shape->dtype, group->names,
                                 sizeof group->names);
    LB_TRY(confirm(prober, group, err));
    group->tree->rounded = of == LB_SUM_PRODUCT && *group->arithmetic && !strstr(group->arithmetic, "fma");
    return LB_OK;
}

/* ---- which terms ------------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Both ends, multiples of 32 and powers of two, where lanes, threads and blocks begin; the rest at random. */
static uint32_t sample_terms(lb_prober *prober, uint32_t *position, uint32_t most)
{
    const uint32_t n = prober->kernel->shape.n;
    uint32_t count = 0;
    for (uint32_t i = 0; i < 64 && count < most; i++) position[count++] = i;
    for (uint32_t i = 64; i <= 1024 && count < most * 3 / 8; i += 32) position[count++] = i;
    for (uint32_t i = 2048; i < n && count < most / 2; i *= 2) position[count++] = i;
    for (uint32_t i = 1; i <= 16 && count < most * 5 / 8; i++) position[count++] = n - i;
    while (count < most) position[count++] = lb_prober_random(prober, n);
    qsort(position, count, sizeof *position, ascending);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (position[i] < n && (!kept || position[i] != position[kept - 1])) position[kept++] = position[i];
    return kept;
}

static void choose_terms(lb_prober *prober, uint32_t *position)
{
    const uint32_t n = prober->kernel->shape.n, wanted = prober->options.sample ? prober->options.sample
                                                         : n > SAMPLE_ABOVE     ? SAMPLE
                                                                                : n;
    prober->position = position;
    prober->terms = wanted < n ? sample_terms(prober, position, wanted < 16 ? 16 : wanted) : n;
    for (uint32_t i = 0; wanted >= n && i < n; i++) position[i] = i;
}

/* ---- everything -------------------------------------------------------------------------------------------------- */

static int by_positions(const void *a, const void *b)
{
    const lb_probe_group *x = a, *y = b;
    if (x->positions != y->positions) return x->positions < y->positions ? 1 : -1;
    return (x->row > y->row) - (x->row < y->row) +
           ((x->column > y->column) - (x->column < y->column)) * (x->row == y->row);
}

static lb_status probe_groups(lb_prober *prober, const signature *all, size_t results, lb_probe_report *report,
                              lb_err *err)
{
    const uint32_t most = prober->options.most_groups ? prober->options.most_groups : DEFAULT_GROUPS;
    for (size_t from = 0, end; from < results; from = end) {
        for (end = from + 1;
             end < results && all[end].hash == all[from].hash && all[end].unstable == all[from].unstable;)
            end++;
        if (all[from].unstable) end = results; /* what wavers is one group */
        if (report->n_groups == most) {
            report->groups_left_out++;
            continue;
        }
        lb_probe_group *grown = lb_array_grow(report->groups, report->n_groups, sizeof *grown);
        if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        report->groups = grown;
        lb_probe_group *group = &report->groups[report->n_groups++];
        LB_TRY(probe_group(prober, all + from, (uint32_t)(end - from), group, err));
        if (group->outcome > report->outcome) report->outcome = group->outcome;
    }
    qsort(report->groups, report->n_groups, sizeof *report->groups, by_positions);
    return LB_OK;
}

lb_status lb_probe_run(const lb_probe_kernel *kernel, const lb_probe_options *options, lb_probe_report *report,
                       lb_err *err)
{
    *report = (lb_probe_report){0};
    const lb_probe_shape *shape = &kernel->shape;
    const size_t results = (size_t)shape->rows * shape->columns;
    const double start = lb_clock_seconds();
    lb_prober prober = {.kernel = kernel, .options = options ? *options : (lb_probe_options)LB_PROBE_OPTIONS_INIT};
    uint32_t *position = malloc(((size_t)shape->n + 16) * sizeof *position);
    signature *all = malloc((results + 1) * sizeof *all);
    prober.row = malloc((shape->rows + 1) * sizeof *prober.row);
    prober.column = malloc((shape->rows + 1) * sizeof *prober.column);
    lb_status status =
        position && all && prober.row && prober.column ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) {
        choose_terms(&prober, position);
        status = take_signatures(&prober, all, err);
    }
    if (status == LB_OK) {
        qsort(all, results, sizeof *all, by_hash);
        status = probe_groups(&prober, all, results, report, err);
    }
    report->probes = prober.probes;
    report->calls = prober.calls;
    report->seconds = lb_clock_seconds() - start;
    if (status == LB_OK && prober.terms < shape->n) {
        report->sample = position;
        report->n_sample = prober.terms;
    } else
        free(position);
    free(all);
    free(prober.row);
    free(prober.column);
    if (status != LB_OK) lb_probe_report_release(report);
    return status;
}

void lb_probe_report_release(lb_probe_report *report)
{
    for (uint32_t i = 0; i < report->n_groups; i++) lb_sum_tree_free(report->groups[i].tree);
    free(report->groups);
    free(report->sample);
    *report = (lb_probe_report){0};
}
