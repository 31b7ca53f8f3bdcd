/* Exact runs in which values are moved: see moved_run.h. */
#include "moved/moved_run.h"

#include "ranks/rank_run.h"
#include "shadow/shadow_numbers.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    lb_moved_run *moved;
    bool first; /* nothing is moved, and everything measured */
    uint32_t seed;
    double step;
    double losses[LB_MOVED_RUN_MAX_ROOTS];
    uint32_t seen;
    double *source; /* numbers of the source that was asked for last */
} run;

/* Ranks that run together: one, mostly. */
typedef struct joint_run {
    lb_moved_run *const *runs;
    run *ranks; /* one for each */
    uint32_t n;
} joint_run;

static run *run_of(const joint_run *joint_run, int32_t rank)
{
    return &joint_run->ranks[lb_moved_run_of(joint_run->runs, joint_run->n, rank)];
}

static bool has_all_losses(const joint_run *joint_run)
{
    for (uint32_t i = 0; i < joint_run->n; i++)
        if (joint_run->ranks[i].first || joint_run->ranks[i].seen < joint_run->ranks[i].moved->n_roots) return false;
    return true;
}

/* Uniform in (-1, 1), a function of its arguments alone. */
static double direction(uint32_t seed, uint32_t site, int64_t element)
{
    uint64_t x = ((uint64_t)seed << 56) ^ ((uint64_t)site << 40) ^ (uint64_t)element;
    for (int round = 0; round < 2; round++) { /* splitmix64 */
        x += UINT64_C(0x9E3779B97F4A7C15);
        x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
        x ^= x >> 31;
    }
    return ((double)(x >> 11) + 0.5) * 0x1p-52 - 1;
}

/* Copies have the direction of the first one. */
static uint32_t key_of(const lb_moved_run *run, uint32_t site)
{
    return run->sites[site].first_site != LB_NONE ? run->sites[site].first_site : site;
}

/* The direction of one element of a site. */
static double along(const lb_moved_site *site, uint32_t seed, uint32_t key, int64_t element)
{
    return site->left_out >= 0 && element / site->width == site->left_out ? 0 : direction(seed, key, element);
}

/* A value of nothing but zeros (an adapter's second factor, a bias) is moved by a hundredth. */
static double reach(const lb_moved_site *site)
{
    return site->size > 0 ? site->size : 0.01;
}

static bool is_real(const lb_tensor *tensor)
{
    return tensor->data && lb_dtype_is_float(tensor->dtype) && !lb_dtype_is_complex(tensor->dtype);
}

static double root_mean_square(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return n > 0 ? sqrt(sum / (double)n) : 0;
}

double *lb_moved_run_recorded(const lb_moved_run *run, uint32_t value, lb_tensor *tensor)
{
    if (lb_program_view_value(run->view, value, tensor, NULL) != LB_OK || !is_real(tensor)) return NULL;
    return lb_shadow_numbers_copy(tensor);
}

static void measure_value(lb_moved_site *site, const lb_tensor *tensor)
{
    double *x = is_real(tensor) ? lb_shadow_numbers_copy(tensor) : NULL;
    if (!x) return;
    site->size = root_mean_square(x, lb_layout_numel(&tensor->layout)), site->moved = isfinite(site->size);
    free(x);
}

/* Products of a gradient with the directions; returns the root of its mean square, NaN where it has no numbers. */
static double multiply(const lb_moved_site *site, uint32_t key, const lb_tensor *tensor,
                       double dots[LB_MOVED_RUN_SEEDS])
{
    double *x = is_real(tensor) ? lb_shadow_numbers_copy(tensor) : NULL;
    const int64_t n = x ? lb_layout_numel(&tensor->layout) : 0;
    for (uint32_t seed = 0; x && seed < LB_MOVED_RUN_SEEDS; seed++) {
        dots[seed] = 0;
        for (int64_t i = 0; i < n; i++) dots[seed] += x[i] * along(site, seed, key, i) * reach(site);
    }
    const double norm = x ? root_mean_square(x, n) : NAN;
    free(x);
    return norm;
}

static void move(const run *run, uint32_t row, const lb_tensor *tensor)
{
    double *x = is_real(tensor) ? lb_shadow_numbers_copy(tensor) : NULL;
    const int64_t n = x ? lb_layout_numel(&tensor->layout) : 0;
    const lb_moved_site *site = &run->moved->sites[row];
    const double size = run->step * reach(site) * site->weight;
    for (int64_t i = 0; i < n; i++) x[i] += size * along(site, run->seed, key_of(run->moved, row), i);
    if (x) lb_shadow_put(tensor, x);
    free(x);
}

static void measure_gradients(run *run, const lb_event *event)
{
    lb_moved_run *p = run->moved;
    for (uint32_t i = 0; i < p->n_sites; i++) {
        lb_moved_site *site = &p->sites[i];
        lb_tensor tensor;
        if (site->gradient != LB_NONE && p->graph.giver[site->gradient] == event->op &&
            lb_event_exact(event, site->gradient, &tensor))
            site->norm = multiply(site, key_of(p, i), &tensor, site->dots), site->measured = isfinite(site->norm);
        if (site->read != LB_NONE && p->graph.giver[site->read] == event->op &&
            lb_event_exact(event, site->read, &tensor))
            multiply(site, key_of(p, i), &tensor, site->read_dots);
    }
}

static void note_losses(run *run, const lb_event *event)
{
    lb_moved_run *p = run->moved;
    for (uint32_t i = 0; i < p->n_roots; i++) {
        lb_tensor tensor;
        if (p->graph.giver[p->roots[i].value] != event->op || !lb_event_exact(event, p->roots[i].value, &tensor))
            continue;
        if (!is_real(&tensor) || lb_layout_numel(&tensor.layout) != 1) continue;
        lb_shadow_numbers(&tensor, &run->losses[i]);
        run->seen++, p->roots[i].seen = true;
        if (run->first) p->roots[i].loss = run->losses[i];
    }
}

static void look_at(run *run, uint32_t v, const lb_tensor *tensor)
{
    lb_moved_run *p = run->moved;
    const uint32_t row = p->site_of[v];
    if (run->first && row != LB_NONE) measure_value(&p->sites[row], tensor);
    if (run->first) return;
    if (row != LB_NONE && p->active[row]) move(run, row, tensor);
}

static bool note_op(void *context, const lb_event *event)
{
    const joint_run *joint_run = context;
    run *run = run_of(joint_run, event->rank);
    if (run->first && run->moved->note) run->moved->note(run->moved->context, event);
    if (!event->shadow) return true;
    for (uint32_t i = 0; i < event->n_results; i++)
        if (event->values[i] != LB_NONE && event->shadow[i].data) look_at(run, event->values[i], &event->shadow[i]);
    note_losses(run, event);
    if (run->first) measure_gradients(run, event);
    return !has_all_losses(joint_run);
}

static bool take_source(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    run *run = run_of(context, rank);
    lb_moved_run *p = run->moved;
    (void)step;
    const uint32_t row = value < p->program->n_values ? p->site_of[value] : LB_NONE;
    lb_tensor t;
    for (uint32_t i = 0; run->first && i < p->n_sites; i++)
        if (p->sites[i].start == value && lb_program_view_value(p->view, value, &t, NULL) == LB_OK)
            multiply(&p->sites[i], key_of(p, i), &t, p->sites[i].start_dots);
    if (row == LB_NONE || lb_program_view_value(p->view, value, &t, NULL) != LB_OK) return false;
    if (run->first) measure_value(&p->sites[row], &t);
    if (run->first || !p->active[row] || !is_real(&t)) return false;
    free(run->source);
    run->source = lb_shadow_numbers_copy(&t);
    if (!run->source) return false;
    *tensor = (lb_tensor){run->source, LB_F64, lb_layout_contiguous(t.layout.ndim, t.layout.shape)};
    move(run, row, tensor);
    return true;
}

uint32_t lb_moved_run_of(lb_moved_run *const *runs, uint32_t n, int32_t rank)
{
    uint32_t i = 0;
    while (i < n && runs[i]->program->rank != rank) i++;
    return i < n ? i : 0;
}

typedef struct exact_runs {
    lb_moved_run *const *runs;
    uint32_t n;
} exact_runs;

static lb_status value_of(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor, lb_err *err)
{
    const exact_runs *all = context;
    return lb_program_view_value(all->runs[lb_moved_run_of(all->runs, all->n, program->rank)]->view, value, tensor,
                                 err);
}

lb_status lb_moved_run_exact(lb_moved_run *const *runs, uint32_t n, const lb_observer *observer, lb_err *err)
{
    exact_runs all = {runs, n};
    const lb_prepared **prepared = malloc(((size_t)n + 1) * sizeof *prepared);
    if (!prepared) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    for (uint32_t i = 0; i < n; i++) prepared[i] = runs[i]->prepared;
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.shadow = plan.shadow_only = true;
    lb_rank_run ranks = {.programs = prepared,
                         .n_programs = n,
                         .plan = &plan,
                         .observer = observer,
                         .context = &all,
                         .value = value_of,
                         .spare = runs[0]->spare};
    if (runs[0]->progress) runs[0]->progress("replays", runs[0]->runs, 0);
    const lb_status status = lb_rank_run_all(&ranks, err);
    free(prepared);
    return status;
}

static lb_moved_run *rank_at(const lb_moved_run *run, uint32_t i)
{
    return run->together ? run->together[i] : (lb_moved_run *)run;
}

static uint32_t ranks_of(const lb_moved_run *run)
{
    return run->together ? run->n_together : 1;
}

/* Ranks with a loss of their own: of a pipeline its last stages. */
static uint32_t ranks_with_losses(const lb_moved_run *run)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ranks_of(run); i++) n += rank_at(run, i)->n_roots > 0;
    return n ? n : 1;
}

/* As `how` says, on each rank; `*losses`: the mean over ranks that have some of the losses whose bits `roots` has. */
static lb_status run_once(lb_moved_run *moved, const run *how, uint64_t roots, double *losses, double *largest,
                          lb_err *err)
{
    lb_moved_run *alone[1] = {moved};
    joint_run joint_run = {moved->together ? moved->together : alone, calloc(ranks_of(moved), sizeof *joint_run.ranks),
                           ranks_of(moved)};
    if (!joint_run.ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", joint_run.n);
    for (uint32_t i = 0; i < joint_run.n; i++) joint_run.ranks[i] = *how, joint_run.ranks[i].moved = joint_run.runs[i];
    const lb_observer observer = {.context = &joint_run, .op = note_op, .source = take_source};
    moved->runs++;
    const lb_status status = lb_moved_run_exact(joint_run.runs, joint_run.n, &observer, err);
    *losses = 0;
    for (uint32_t i = 0; i < joint_run.n && status == LB_OK; i++)
        for (uint32_t k = 0; k < joint_run.ranks[i].moved->n_roots; k++) {
            if (!(roots >> k & 1)) continue;
            *losses += joint_run.ranks[i].losses[k] / ranks_with_losses(moved);
            *largest = fmax(*largest, fabs(joint_run.ranks[i].losses[k]));
        }
    for (uint32_t i = 0; i < joint_run.n; i++) free(joint_run.ranks[i].source);
    free(joint_run.ranks);
    return status;
}

/* What a site changes the loss by, whatever the signs of its direction: n numbers of variance 1/3. */
static double change_of(const lb_moved_run *run, const lb_moved_site *site)
{
    const int64_t n = lb_layout_numel(&run->program->values[site->value].layout);
    return site->measured ? site->norm * reach(site) * sqrt((double)n / 3) : 0;
}

/* Sites above the lowest quarter are moved by as little as changes the loss like that. Copies of a parameter on several
 * ranks are moved alike: by what the first of them says, whose rank was weighed before. */
static bool weigh(lb_moved_run *run, const lb_moved_run *whole)
{
    double *changes = malloc(((size_t)run->n_sites + 1) * sizeof *changes), largest = 0;
    uint32_t n = 0;
    if (!changes) return false;
    for (uint32_t i = 0; i < run->n_sites; i++)
        if (change_of(run, &run->sites[i]) > 0) changes[n++] = change_of(run, &run->sites[i]);
    if (n) qsort(changes, n, sizeof *changes, lb_by_f64);
    for (uint32_t i = 0; i < run->n_roots; i++) largest = fmax(largest, fabs(run->roots[i].loss));
    const double enough = n ? fmax(changes[n / 4], 1e-6 * largest) : 0;
    free(changes);
    for (uint32_t i = 0; i < run->n_sites; i++) {
        lb_moved_site *site = &run->sites[i];
        const double change = change_of(run, site);
        site->weight = change > enough ? enough / change : 1;
        if (site->first_site != LB_NONE)
            site->weight = rank_at(whole, site->first_rank)->sites[site->first_site].weight;
        for (uint32_t seed = 0; seed < LB_MOVED_RUN_SEEDS; seed++)
            site->dots[seed] = (site->dots[seed] - site->start_dots[seed]) * site->weight,
            site->read_dots[seed] *= site->weight;
    }
    return true;
}

lb_status lb_moved_run_measure(lb_moved_run *moved, lb_err *err)
{
    const run run = {.first = true};
    double losses, largest = 0;
    LB_TRY(run_once(moved, &run, 0, &losses, &largest, err));
    for (uint32_t i = 0; i < ranks_of(moved); i++) {
        if (!weigh(rank_at(moved, i), moved))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u places", moved->n_sites);
        rank_at(moved, i)->measured = true;
    }
    return LB_OK;
}

/* The loss on both sides of the step as it is. */
typedef struct sides {
    double slope; /* (loss(+step) - loss(-step)) / 2 step */
    double bend; /* (loss(+step) + loss(-step) - 2 loss(0)) / step: of the order of the step where the loss is smooth */
    double largest; /* of the losses' sizes */
} sides;

static double loss_of(lb_moved_run *run, uint64_t roots)
{
    double sum = 0;
    for (uint32_t i = 0; i < ranks_of(run); i++)
        for (uint32_t k = 0; k < rank_at(run, i)->n_roots; k++)
            if (roots >> k & 1) sum += rank_at(run, i)->roots[k].loss / ranks_of(run);
    return sum;
}

static lb_status try_sides(lb_moved_run *moved, uint32_t seed, uint64_t roots, double step, sides *sides, lb_err *err)
{
    double sums[2];
    sides->largest = 0;
    for (int side = 0; side < 2; side++) {
        const run run = {.seed = seed, .step = side ? -step : step};
        LB_TRY(run_once(moved, &run, roots, &sums[side], &sides->largest, err));
    }
    sides->slope = (sums[0] - sums[1]) / (2 * step);
    sides->bend = (sums[0] + sums[1] - 2 * loss_of(moved, roots)) / step;
    return LB_OK;
}

/* What the slopes on the two sides of the step differ by, however small it is: numbers that stand exactly at a kink (a
 * relu of 0) have no one derivative, and autograd takes one of many. A smooth loss has less with each smaller step. */
static double kink_of(const sides *sides)
{
    const double first = 2 * sides[1].bend - sides[0].bend, second = 2 * sides[2].bend - sides[1].bend;
    return fabs(second - first) <= 0.25 * fabs(second) ? fabs(second) : 0;
}

lb_status lb_moved_run_quotient(lb_moved_run *run, uint32_t seed, uint64_t roots, double step, lb_quotient *quotient,
                                lb_err *err)
{
    sides sides[3];
    double largest = 0;
    for (int i = 0; i < 3; i++) {
        LB_TRY(try_sides(run, seed, roots, ldexp(step, -i), &sides[i], err));
        largest = fmax(largest, sides[i].largest);
    }
    const double first = (4 * sides[1].slope - sides[0].slope) / 3, second = (4 * sides[2].slope - sides[1].slope) / 3;
    *quotient = (lb_quotient){.derivative = (16 * second - first) / 15};
    quotient->noise = 0x1p-46 * largest / step;
    quotient->error = fabs(second - first) + kink_of(sides) + quotient->noise;
    for (uint32_t k = 0; k < ranks_of(run); k++) {
        const lb_moved_run *rank = rank_at(run, k);
        for (uint32_t i = 0; i < rank->n_sites; i++) {
            const lb_moved_site *sides = &rank->sites[i];
            const double dot = rank->active[i] ? (run->reads ? sides->read_dots : sides->dots)[seed] * sides->share : 0;
            quotient->said += dot, quotient->scale += fabs(dot);
        }
    }
    return LB_OK;
}

bool lb_moved_run_add_site(lb_moved_run *run, uint32_t value, uint32_t gradient, uint32_t at, uint32_t row)
{
    if (run->site_of[value] != LB_NONE) return false;
    lb_moved_site *sites = lb_array_grow(run->sites, run->n_sites, sizeof *sites);
    if (!sites) return false;
    run->sites = sites;
    run->sites[run->n_sites] = (lb_moved_site){
        .value = value, .gradient = gradient, .at = at, .row = row, .read = LB_NONE, .start = LB_NONE, .left_out = -1};
    run->sites[run->n_sites].first_site = LB_NONE, run->sites[run->n_sites].share = 1.0 / ranks_with_losses(run);
    run->site_of[value] = run->n_sites++;
    return true;
}

lb_status lb_moved_run_open(const lb_program_view *view, lb_moved_run *run, lb_err *err)
{
    *run = (lb_moved_run){.view = view, .program = view->program};
    const size_t n = (size_t)view->program->n_values + 1;
    LB_TRY(lb_value_graph_make(view->program, &run->graph, err));
    LB_TRY(lb_prepared_make(view->program, NULL, NULL, &run->prepared, err));
    run->site_of = malloc(n * sizeof *run->site_of), run->active = calloc(n, 1), run->spare = lb_memory_new(0);
    if (!run->site_of || !run->active || !run->spare)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu values", n);
    memset(run->site_of, 0xFF, n * sizeof *run->site_of);
    return LB_OK;
}

void lb_moved_run_close(lb_moved_run *run)
{
    free(run->active), free(run->site_of), free(run->sites);
    lb_memory_free(run->spare);
    lb_prepared_free(run->prepared);
    lb_value_graph_release(&run->graph);
    *run = (lb_moved_run){0};
}
