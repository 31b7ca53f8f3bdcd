/* Exact runs with the rounding of some ops: see rounding_runs.h. */
#include "check/rounding_runs.h"

#include "base/array.h"
#include "shadow/number_blocks.h"
#include "pair/token_heads.h"
#include "ranks/rank_run.h"
#include "shadow/shadow_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One rank in a run. */
typedef struct pass {
    lb_rounding_runs *runs;
    bool first;
    const uint8_t *added;
    double loss;
    lb_rounding_apart apart[2]; /* of logits, of gradients */
    bool seen[2];
    uint32_t losses;
    bool failed, done; /* done: behind all that is compared */
} pass;

typedef struct joint_pass {
    lb_moved_run **runs;
    pass *ranks; /* one for each */
    uint32_t n;
} joint_pass;

static pass *pass_of(const joint_pass *j, int32_t rank)
{
    return &j->ranks[lb_moved_run_of(j->runs, j->n, rank)];
}

static bool is_real(const lb_tensor *t)
{
    return t->data && lb_dtype_is_float(t->dtype) && !lb_dtype_is_complex(t->dtype);
}

/* ---- what is compared ---- */

static bool add_aim(lb_rounding_runs *r, uint32_t value, bool gradient)
{
    if (value == LB_NONE || r->run->graph.giver[value] == LB_NONE || r->aim_of[value] != LB_NONE) return true;
    lb_rounding_aim *aims = lb_array_grow(r->aims, r->n_aims, sizeof *aims);
    if (!aims) return false;
    r->aims = aims;
    r->aim_of[value] = r->n_aims;
    aims[r->n_aims++] = (lb_rounding_aim){value, gradient, NULL};
    const uint32_t giver = r->run->graph.giver[value];
    if (giver > r->last) r->last = giver;
    return true;
}

static lb_status add_logits(lb_rounding_runs *r, lb_err *err)
{
    lb_token_heads heads;
    LB_TRY(lb_token_heads_find(r->run->program, NULL, NULL, &heads, err));
    bool added = true;
    for (uint32_t i = 0; i < heads.n; i++) added = added && add_aim(r, heads.list[i].scores, false);
    lb_token_heads_release(&heads);
    return added ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for logits");
}

lb_status lb_rounding_runs_open(lb_moved_run *run, const lb_trained *trained, const lb_rounding_log *log,
                                lb_rounding_runs *r, lb_err *err)
{
    const size_t n = (size_t)run->program->n_values + 1;
    *r = (lb_rounding_runs){.run = run, .log = log};
    r->aim_of = malloc(n * sizeof *r->aim_of), r->watch = calloc(n, 1);
    r->apart = calloc(n, sizeof *r->apart), r->exact = calloc(n, sizeof *r->exact);
    if (!r->aim_of || !r->watch || !r->apart || !r->exact)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu values", n);
    memset(r->aim_of, 0xFF, n * sizeof *r->aim_of);
    for (uint32_t i = 0; i < run->n_roots; i++) {
        const uint32_t giver = run->graph.giver[run->roots[i].value];
        if (giver != LB_NONE && giver > r->last) r->last = giver;
    }
    LB_TRY(add_logits(r, err));
    for (uint32_t i = 0; i < trained->n; i++)
        if (trained->rows[i].has_gradient && !add_aim(r, trained->rows[i].read, true))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for gradients");
    return LB_OK;
}

void lb_rounding_runs_close(lb_rounding_runs *r)
{
    for (uint32_t i = 0; i < r->n_aims; i++) free(r->aims[i].exact);
    for (uint32_t v = 0; r->exact && v < r->run->program->n_values; v++) free(r->exact[v]);
    free(r->aims), free(r->aim_of), free(r->watch), free(r->products), free(r->spreads);
    free(r->apart), free(r->exact);
    *r = (lb_rounding_runs){0};
}

/* ---- one run ---- */

static void add_rounding(pass *s, uint32_t v, const lb_tensor *t)
{
    const float *rounded = s->runs->log->rounded[v];
    const int64_t n = lb_layout_numel(&t->layout);
    if (!rounded || !is_real(t)) return;
    double *in_place = lb_number_blocks_in_place(t), *x = in_place ? in_place : lb_shadow_numbers_copy(t);
    s->failed |= !x;
    if (x) lb_rounding_sums_put(x, rounded, n);
    if (x && !in_place) lb_shadow_put(t, x);
    if (!in_place) free(x);
}

static void note_loss(pass *s, const lb_event *event)
{
    const lb_moved_run *run = s->runs->run;
    for (uint32_t i = 0; i < run->n_roots; i++) {
        lb_tensor t;
        double x;
        if (run->graph.giver[run->roots[i].value] != event->op) continue;
        if (!lb_event_exact(event, run->roots[i].value, &t) || !is_real(&t) || lb_layout_numel(&t.layout) != 1)
            continue;
        lb_shadow_numbers(&t, &x);
        s->loss += x, s->losses++;
    }
}

/* How far the numbers are from exact ones; of the first run, which has none yet, NULL: how large they are. */
static bool compare(const lb_tensor *t, const double *exact, lb_rounding_apart *apart)
{
    lb_number_blocks x;
    double room[LB_NUMBER_BLOCK];
    if (!lb_number_blocks_open(t, &x)) return false;
    for (int64_t i = 0, n; i < x.n; i += n) {
        n = lb_number_blocks_count(&x, i);
        const double *numbers = lb_number_blocks_at(&x, i, n, room);
        lb_rounding_apart_add(apart, numbers, exact ? exact + i : numbers, n);
    }
    lb_number_blocks_close(&x);
    return true;
}

static void note_aim(pass *s, lb_rounding_aim *aim, const lb_tensor *t)
{
    if (s->first && !aim->exact) {
        aim->exact = lb_shadow_numbers_copy(t);
        s->failed |= !aim->exact;
    }
    if (!aim->exact) return;
    s->failed |= !compare(t, s->first ? NULL : aim->exact, &s->apart[aim->gradient]);
    s->seen[aim->gradient] = true;
}

static void note_aims(pass *s, const lb_event *event)
{
    lb_rounding_runs *r = s->runs;
    for (uint32_t i = 0; i < r->n_aims; i++) {
        lb_tensor t;
        if (r->run->graph.giver[r->aims[i].value] != event->op) continue;
        if (lb_event_exact(event, r->aims[i].value, &t) && is_real(&t)) note_aim(s, &r->aims[i], &t);
    }
}

/* ---- the first run: which rounding the loss feels, to first order ---- */

static void multiply_site(pass *s, uint32_t i, const float *rounded, const lb_tensor *t)
{
    lb_rounding_runs *r = s->runs;
    lb_number_blocks x;
    double room[LB_NUMBER_BLOCK];
    r->products[i] = r->spreads[i] = NAN;
    if (lb_layout_numel(&t->layout) != r->log->sizes[r->run->sites[i].value].numbers) return;
    s->failed |= !lb_number_blocks_open(t, &x);
    if (s->failed) return;
    r->products[i] = r->spreads[i] = 0;
    for (int64_t k = 0, n; k < x.n; k += n) {
        n = lb_number_blocks_count(&x, k);
        lb_rounding_sums_multiply(lb_number_blocks_at(&x, k, n, room), rounded + k, n, &r->products[i], &r->spreads[i]);
    }
    lb_number_blocks_close(&x);
}

static void multiply(pass *s, const lb_event *event)
{
    const lb_moved_run *run = s->runs->run;
    for (uint32_t i = 0; i < run->n_sites; i++) {
        const lb_moved_site *site = &run->sites[i];
        const float *rounded = site->value < run->program->n_values ? s->runs->log->rounded[site->value] : NULL;
        lb_tensor t;
        if (!rounded || site->gradient == LB_NONE || run->graph.giver[site->gradient] != event->op) continue;
        if (lb_event_exact(event, site->gradient, &t) && is_real(&t)) multiply_site(s, i, rounded, &t);
    }
}

/* Of a value that is watched: its numbers in the first run, and how far from them it is with all rounding. */
static void note_watched(pass *s, uint32_t v, const lb_tensor *t)
{
    lb_rounding_runs *r = s->runs;
    if (!r->watch[v] || !is_real(t)) return;
    if (s->first) {
        free(r->exact[v]);
        r->exact[v] = lb_shadow_numbers_copy(t);
        s->failed |= !r->exact[v];
    } else if (!s->added && r->exact[v]) {
        s->failed |= !compare(t, r->exact[v], &r->apart[v]);
    }
}

static bool are_done(const joint_pass *j)
{
    for (uint32_t k = 0; k < j->n; k++)
        if (!j->ranks[k].done) return false;
    return true;
}

static bool note_op(void *context, const lb_event *event)
{
    const joint_pass *j = context;
    pass *s = pass_of(j, event->rank);
    const lb_program *p = s->runs->run->program;
    for (uint32_t k = 0; event->shadow && k < event->n_results; k++) {
        const uint32_t v = event->values[k];
        if (v == LB_NONE || v >= p->n_values || !event->shadow[k].data) continue;
        if (!lb_rounding_log_is_first(p, event->op, k)) continue;
        if (!s->first && (!s->added || s->added[event->op])) add_rounding(s, v, &event->shadow[k]);
        note_watched(s, v, &event->shadow[k]);
    }
    note_loss(s, event);
    note_aims(s, event);
    if (s->first) multiply(s, event);
    s->done |= event->op >= s->runs->last;
    return !s->failed && !are_done(j);
}

static lb_status run_passes(joint_pass *j, lb_err *err)
{
    const lb_observer observer = {.context = j, .op = note_op};
    j->runs[0]->runs++;
    LB_TRY(lb_moved_run_exact(j->runs, j->n, &observer, err));
    for (uint32_t k = 0; k < j->n; k++)
        if (j->ranks[k].failed) return lb_fail(err, LB_ERR_NOMEM, "out of memory for an exact run");
    return LB_OK;
}

static void add_apart(lb_rounding_apart *sum, const lb_rounding_apart *one)
{
    sum->squares += one->squares, sum->whole += one->whole;
    sum->largest = fmax(sum->largest, one->largest), sum->reach = fmax(sum->reach, one->reach);
}

/* What all ranks found, as if it were one. */
static void sum_up(const joint_pass *j, pass *sum)
{
    uint32_t with_loss = 0;
    *sum = (pass){.loss = 0};
    for (uint32_t k = 0; k < j->n; k++) {
        const pass *s = &j->ranks[k];
        sum->loss += s->losses == s->runs->run->n_roots ? s->loss : NAN;
        with_loss += s->runs->run->n_roots > 0;
        for (int what = 0; what < 2; what++)
            add_apart(&sum->apart[what], &s->apart[what]), sum->seen[what] |= s->seen[what];
    }
    sum->loss = with_loss ? sum->loss / with_loss : NAN;
}

static lb_status run_once(lb_rounding_ranks *r, bool first, uint8_t *const *added, pass *sum, lb_err *err)
{
    joint_pass j = {malloc(((size_t)r->n + 1) * sizeof *j.runs), calloc((size_t)r->n + 1, sizeof *j.ranks), r->n};
    lb_status status = j.ranks && j.runs ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", r->n);
    for (uint32_t k = 0; k < r->n && status == LB_OK; k++) {
        j.ranks[k] = (pass){.runs = r->list[k], .first = first, .added = added ? added[k] : NULL};
        j.runs[k] = r->list[k]->run;
    }
    if (status == LB_OK) status = run_passes(&j, err);
    if (status == LB_OK) sum_up(&j, sum);
    free(j.runs), free(j.ranks);
    return status;
}

/* The mean over ranks. */
static double recorded_loss(const lb_rounding_ranks *r)
{
    double sum = 0;
    uint32_t with_loss = 0;
    for (uint32_t k = 0; k < r->n; k++) {
        const lb_moved_run *run = r->list[k]->run;
        with_loss += run->n_roots > 0;
        for (uint32_t i = 0; i < run->n_roots; i++) {
            int64_t n;
            double *x = lb_rounding_log_numbers(r->list[k]->log, run->roots[i].value, &n);
            sum += x ? *x : NAN;
            free(x);
        }
    }
    return with_loss ? sum / with_loss : NAN;
}

lb_status lb_rounding_ranks_first(lb_rounding_ranks *r, lb_err *err)
{
    pass s;
    for (uint32_t k = 0; k < r->n; k++) {
        lb_rounding_runs *one = r->list[k];
        one->products = calloc((size_t)one->run->n_sites + 1, sizeof *one->products);
        one->spreads = calloc((size_t)one->run->n_sites + 1, sizeof *one->spreads);
        if (!one->products || !one->spreads)
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u places", one->run->n_sites);
    }
    LB_TRY(run_once(r, true, NULL, &s, err));
    r->sizes[0] = s.apart[0].whole, r->sizes[1] = s.apart[1].whole, r->reach = s.apart[0].reach;
    for (uint32_t k = 0; k < r->n; k++) r->losses += r->list[k]->run->n_roots > 0;
    r->loss = s.loss, r->recorded = recorded_loss(r);
    return LB_OK;
}

lb_status lb_rounding_ranks_add(lb_rounding_ranks *r, uint8_t *const *added, lb_check_effect *effect, lb_err *err)
{
    pass s;
    LB_TRY(run_once(r, false, added, &s, err));
    *effect = (lb_check_effect){NAN, NAN, NAN, NAN, NAN};
    if (isfinite(r->loss) && r->loss != 0 && !isnan(s.loss))
        effect->loss = fabs(s.loss - r->loss) / fabs(r->loss), effect->reached = s.loss;
    if (s.seen[0] && r->sizes[0] > 0)
        effect->logits = sqrt(s.apart[0].squares / r->sizes[0]), effect->largest_logit = s.apart[0].largest / r->reach;
    if (s.seen[1] && r->sizes[1] > 0) effect->gradients = sqrt(s.apart[1].squares / r->sizes[1]);
    return LB_OK;
}
