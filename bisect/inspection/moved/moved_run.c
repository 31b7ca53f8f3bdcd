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

static run *run_of(const joint_run *j, int32_t rank)
{
    return &j->ranks[lb_moved_run_of(j->runs, j->n, rank)];
}

static bool has_all_losses(const joint_run *j)
{
    for (uint32_t i = 0; i < j->n; i++)
        if (j->ranks[i].first || j->ranks[i].seen < j->ranks[i].moved->n_roots) return false;
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
static uint32_t key_of(const lb_moved_run *p, uint32_t site)
{
    return p->sites[site].first_site != LB_NONE ? p->sites[site].first_site : site;
}

/* The direction of one element of a site. */
static double along(const lb_moved_site *s, uint32_t seed, uint32_t key, int64_t element)
{
    return s->left_out >= 0 && element / s->width == s->left_out ? 0 : direction(seed, key, element);
}

/* A value of nothing but zeros (an adapter's second factor, a bias) is moved by a hundredth. */
static double reach(const lb_moved_site *s)
{
    return s->size > 0 ? s->size : 0.01;
}

static bool is_real(const lb_tensor *t)
{
    return t->data && lb_dtype_is_float(t->dtype) && !lb_dtype_is_complex(t->dtype);
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

static void measure_value(lb_moved_site *s, const lb_tensor *t)
{
    double *x = is_real(t) ? lb_shadow_numbers_copy(t) : NULL;
    if (!x) return;
    s->size = root_mean_square(x, lb_layout_numel(&t->layout)), s->moved = isfinite(s->size);
    free(x);
}

/* Products of a gradient with the directions; returns the root of its mean square, NaN where it has no numbers. */
static double multiply(const lb_moved_site *s, uint32_t key, const lb_tensor *t, double dots[LB_MOVED_RUN_SEEDS])
{
    double *x = is_real(t) ? lb_shadow_numbers_copy(t) : NULL;
    const int64_t n = x ? lb_layout_numel(&t->layout) : 0;
    for (uint32_t seed = 0; x && seed < LB_MOVED_RUN_SEEDS; seed++) {
        dots[seed] = 0;
        for (int64_t i = 0; i < n; i++) dots[seed] += x[i] * along(s, seed, key, i) * reach(s);
    }
    const double norm = x ? root_mean_square(x, n) : NAN;
    free(x);
    return norm;
}

static void move(const run *r, uint32_t row, const lb_tensor *t)
{
    double *x = is_real(t) ? lb_shadow_numbers_copy(t) : NULL;
    const int64_t n = x ? lb_layout_numel(&t->layout) : 0;
    const lb_moved_site *s = &r->moved->sites[row];
    const double size = r->step * reach(s) * s->weight;
    for (int64_t i = 0; i < n; i++) x[i] += size * along(s, r->seed, key_of(r->moved, row), i);
    if (x) lb_shadow_put(t, x);
    free(x);
}

static void measure_gradients(run *r, const lb_event *event)
{
    lb_moved_run *p = r->moved;
    for (uint32_t i = 0; i < p->n_sites; i++) {
        lb_moved_site *s = &p->sites[i];
        lb_tensor t;
        if (s->gradient != LB_NONE && p->graph.giver[s->gradient] == event->op &&
            lb_event_exact(event, s->gradient, &t))
            s->norm = multiply(s, key_of(p, i), &t, s->dots), s->measured = isfinite(s->norm);
        if (s->read != LB_NONE && p->graph.giver[s->read] == event->op && lb_event_exact(event, s->read, &t))
            multiply(s, key_of(p, i), &t, s->read_dots);
    }
}

static void note_losses(run *r, const lb_event *event)
{
    lb_moved_run *p = r->moved;
    for (uint32_t i = 0; i < p->n_roots; i++) {
        lb_tensor t;
        if (p->graph.giver[p->roots[i].value] != event->op || !lb_event_exact(event, p->roots[i].value, &t)) continue;
        if (!is_real(&t) || lb_layout_numel(&t.layout) != 1) continue;
        lb_shadow_numbers(&t, &r->losses[i]);
        r->seen++, p->roots[i].seen = true;
        if (r->first) p->roots[i].loss = r->losses[i];
    }
}

static void look_at(run *r, uint32_t v, const lb_tensor *t)
{
    lb_moved_run *p = r->moved;
    const uint32_t row = p->site_of[v];
    if (r->first && row != LB_NONE) measure_value(&p->sites[row], t);
    if (r->first) return;
    if (row != LB_NONE && p->active[row]) move(r, row, t);
}

static bool note_op(void *context, const lb_event *event)
{
    const joint_run *j = context;
    run *r = run_of(j, event->rank);
    if (r->first && r->moved->note) r->moved->note(r->moved->context, event);
    if (!event->shadow) return true;
    for (uint32_t i = 0; i < event->n_results; i++)
        if (event->values[i] != LB_NONE && event->shadow[i].data) look_at(r, event->values[i], &event->shadow[i]);
    note_losses(r, event);
    if (r->first) measure_gradients(r, event);
    return !has_all_losses(j);
}

static bool take_source(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    run *r = run_of(context, rank);
    lb_moved_run *p = r->moved;
    (void)step;
    const uint32_t row = value < p->program->n_values ? p->site_of[value] : LB_NONE;
    lb_tensor t;
    for (uint32_t i = 0; r->first && i < p->n_sites; i++)
        if (p->sites[i].start == value && lb_program_view_value(p->view, value, &t, NULL) == LB_OK)
            multiply(&p->sites[i], key_of(p, i), &t, p->sites[i].start_dots);
    if (row == LB_NONE || lb_program_view_value(p->view, value, &t, NULL) != LB_OK) return false;
    if (r->first) measure_value(&p->sites[row], &t);
    if (r->first || !p->active[row] || !is_real(&t)) return false;
    free(r->source);
    r->source = lb_shadow_numbers_copy(&t);
    if (!r->source) return false;
    *tensor = (lb_tensor){r->source, LB_F64, lb_layout_contiguous(t.layout.ndim, t.layout.shape)};
    move(r, row, tensor);
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

static lb_moved_run *rank_at(const lb_moved_run *p, uint32_t i)
{
    return p->together ? p->together[i] : (lb_moved_run *)p;
}

static uint32_t ranks_of(const lb_moved_run *p)
{
    return p->together ? p->n_together : 1;
}

/* Ranks with a loss of their own: of a pipeline its last stages. */
static uint32_t ranks_with_losses(const lb_moved_run *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ranks_of(p); i++) n += rank_at(p, i)->n_roots > 0;
    return n ? n : 1;
}

/* As `how` says, on each rank; `*losses`: the mean over ranks that have some of the losses whose bits `roots` has. */
static lb_status run_once(lb_moved_run *p, const run *how, uint64_t roots, double *losses, double *largest, lb_err *err)
{
    lb_moved_run *alone[1] = {p};
    joint_run j = {p->together ? p->together : alone, calloc(ranks_of(p), sizeof *j.ranks), ranks_of(p)};
    if (!j.ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", j.n);
    for (uint32_t i = 0; i < j.n; i++) j.ranks[i] = *how, j.ranks[i].moved = j.runs[i];
    const lb_observer observer = {.context = &j, .op = note_op, .source = take_source};
    p->runs++;
    const lb_status status = lb_moved_run_exact(j.runs, j.n, &observer, err);
    *losses = 0;
    for (uint32_t i = 0; i < j.n && status == LB_OK; i++)
        for (uint32_t k = 0; k < j.ranks[i].moved->n_roots; k++) {
            if (!(roots >> k & 1)) continue;
            *losses += j.ranks[i].losses[k] / ranks_with_losses(p);
            *largest = fmax(*largest, fabs(j.ranks[i].losses[k]));
        }
    for (uint32_t i = 0; i < j.n; i++) free(j.ranks[i].source);
    free(j.ranks);
    return status;
}

/* What a site changes the loss by, whatever the signs of its direction: n numbers of variance 1/3. */
static double change_of(const lb_moved_run *p, const lb_moved_site *s)
{
    const int64_t n = lb_layout_numel(&p->program->values[s->value].layout);
    return s->measured ? s->norm * reach(s) * sqrt((double)n / 3) : 0;
}

/* Sites above the lowest quarter are moved by as little as changes the loss like that. Copies of a parameter on several
 * ranks are moved alike: by what the first of them says, whose rank was weighed before. */
static bool weigh(lb_moved_run *p, const lb_moved_run *whole)
{
    double *changes = malloc(((size_t)p->n_sites + 1) * sizeof *changes), largest = 0;
    uint32_t n = 0;
    if (!changes) return false;
    for (uint32_t i = 0; i < p->n_sites; i++)
        if (change_of(p, &p->sites[i]) > 0) changes[n++] = change_of(p, &p->sites[i]);
    if (n) qsort(changes, n, sizeof *changes, lb_by_f64);
    for (uint32_t i = 0; i < p->n_roots; i++) largest = fmax(largest, fabs(p->roots[i].loss));
    const double enough = n ? fmax(changes[n / 4], 1e-6 * largest) : 0;
    free(changes);
    for (uint32_t i = 0; i < p->n_sites; i++) {
        lb_moved_site *s = &p->sites[i];
        const double change = change_of(p, s);
        s->weight = change > enough ? enough / change : 1;
        if (s->first_site != LB_NONE) s->weight = rank_at(whole, s->first_rank)->sites[s->first_site].weight;
        for (uint32_t seed = 0; seed < LB_MOVED_RUN_SEEDS; seed++)
            s->dots[seed] = (s->dots[seed] - s->start_dots[seed]) * s->weight, s->read_dots[seed] *= s->weight;
    }
    return true;
}

lb_status lb_moved_run_measure(lb_moved_run *p, lb_err *err)
{
    const run r = {.first = true};
    double losses, largest = 0;
    LB_TRY(run_once(p, &r, 0, &losses, &largest, err));
    for (uint32_t i = 0; i < ranks_of(p); i++) {
        if (!weigh(rank_at(p, i), p)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u places", p->n_sites);
        rank_at(p, i)->measured = true;
    }
    return LB_OK;
}

/* The loss on both sides of the step as it is. */
typedef struct sides {
    double slope; /* (loss(+step) - loss(-step)) / 2 step */
    double bend; /* (loss(+step) + loss(-step) - 2 loss(0)) / step: of the order of the step where the loss is smooth */
} sides;

static double loss_of(lb_moved_run *p, uint64_t roots)
{
    double sum = 0;
    for (uint32_t i = 0; i < ranks_of(p); i++)
        for (uint32_t k = 0; k < rank_at(p, i)->n_roots; k++)
            if (roots >> k & 1) sum += rank_at(p, i)->roots[k].loss / ranks_of(p);
    return sum;
}

/* `*largest`: of the losses' sizes. */
static lb_status try_sides(lb_moved_run *p, uint32_t seed, uint64_t roots, double step, sides *sides, double *largest,
                           lb_err *err)
{
    double sums[2];
    for (int side = 0; side < 2; side++) {
        const run r = {.seed = seed, .step = side ? -step : step};
        LB_TRY(run_once(p, &r, roots, &sums[side], largest, err));
    }
    sides->slope = (sums[0] - sums[1]) / (2 * step);
    sides->bend = (sums[0] + sums[1] - 2 * loss_of(p, roots)) / step;
    return LB_OK;
}

/* What the slopes on the two sides of the step differ by, however small it is: numbers that stand exactly at a kink (a
 * relu of 0) have no one derivative, and autograd takes one of many. A smooth loss has less with each smaller step. */
static double kink_of(const sides *s)
{
    const double first = 2 * s[1].bend - s[0].bend, second = 2 * s[2].bend - s[1].bend;
    return fabs(second - first) <= 0.25 * fabs(second) ? fabs(second) : 0;
}

lb_status lb_moved_run_quotient(lb_moved_run *p, uint32_t seed, uint64_t roots, double step, lb_quotient *q,
                                lb_err *err)
{
    sides s[3];
    double largest = 0;
    for (int i = 0; i < 3; i++) LB_TRY(try_sides(p, seed, roots, ldexp(step, -i), &s[i], &largest, err));
    const double first = (4 * s[1].slope - s[0].slope) / 3, second = (4 * s[2].slope - s[1].slope) / 3;
    *q = (lb_quotient){.derivative = (16 * second - first) / 15};
    q->noise = 0x1p-46 * largest / step;
    q->error = fabs(second - first) + kink_of(s) + q->noise;
    for (uint32_t k = 0; k < ranks_of(p); k++) {
        const lb_moved_run *rank = rank_at(p, k);
        for (uint32_t i = 0; i < rank->n_sites; i++) {
            const lb_moved_site *s = &rank->sites[i];
            const double dot = rank->active[i] ? (p->reads ? s->read_dots : s->dots)[seed] * s->share : 0;
            q->said += dot, q->scale += fabs(dot);
        }
    }
    return LB_OK;
}

bool lb_moved_run_add_site(lb_moved_run *p, uint32_t value, uint32_t gradient, uint32_t at, uint32_t row)
{
    if (p->site_of[value] != LB_NONE) return false;
    lb_moved_site *sites = lb_array_grow(p->sites, p->n_sites, sizeof *sites);
    if (!sites) return false;
    p->sites = sites;
    p->sites[p->n_sites] = (lb_moved_site){
        .value = value, .gradient = gradient, .at = at, .row = row, .read = LB_NONE, .start = LB_NONE, .left_out = -1};
    p->sites[p->n_sites].first_site = LB_NONE, p->sites[p->n_sites].share = 1.0 / ranks_with_losses(p);
    p->site_of[value] = p->n_sites++;
    return true;
}

lb_status lb_moved_run_open(const lb_program_view *view, lb_moved_run *p, lb_err *err)
{
    *p = (lb_moved_run){.view = view, .program = view->program};
    const size_t n = (size_t)view->program->n_values + 1;
    LB_TRY(lb_value_graph_make(view->program, &p->graph, err));
    LB_TRY(lb_prepared_make(view->program, NULL, NULL, &p->prepared, err));
    p->site_of = malloc(n * sizeof *p->site_of), p->active = calloc(n, 1), p->spare = lb_memory_new(0);
    if (!p->site_of || !p->active || !p->spare) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu values", n);
    memset(p->site_of, 0xFF, n * sizeof *p->site_of);
    return LB_OK;
}

void lb_moved_run_close(lb_moved_run *p)
{
    free(p->active), free(p->site_of), free(p->sites);
    lb_memory_free(p->spare);
    lb_prepared_free(p->prepared);
    lb_value_graph_release(&p->graph);
    *p = (lb_moved_run){0};
}
