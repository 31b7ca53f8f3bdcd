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

static pass *pass_of(const joint_pass *joint_pass, int32_t rank)
{
    return &joint_pass->ranks[lb_moved_run_of(joint_pass->runs, joint_pass->n, rank)];
}

static bool is_real(const lb_tensor *tensor)
{
    return tensor->data && lb_dtype_is_float(tensor->dtype) && !lb_dtype_is_complex(tensor->dtype);
}

/* ---- what is compared ---- */

static bool add_aim(lb_rounding_runs *runs, uint32_t value, bool gradient)
{
    if (value == LB_NONE || runs->run->graph.giver[value] == LB_NONE || runs->aim_of[value] != LB_NONE) return true;
    lb_rounding_aim *aims = lb_array_grow(runs->aims, runs->n_aims, sizeof *aims);
    if (!aims) return false;
    runs->aims = aims;
    runs->aim_of[value] = runs->n_aims;
    aims[runs->n_aims++] = (lb_rounding_aim){value, gradient, NULL};
    const uint32_t giver = runs->run->graph.giver[value];
    if (giver > runs->last) runs->last = giver;
    return true;
}

static lb_status add_logits(lb_rounding_runs *runs, lb_err *err)
{
    lb_token_heads heads;
    LB_TRY(lb_token_heads_find(runs->run->program, NULL, NULL, &heads, err));
    bool added = true;
    for (uint32_t i = 0; i < heads.n; i++) added = added && add_aim(runs, heads.list[i].scores, false);
    lb_token_heads_release(&heads);
    return added ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for logits");
}

lb_status lb_rounding_runs_open(lb_moved_run *run, const lb_trained *trained, const lb_rounding_log *log,
                                lb_rounding_runs *runs, lb_err *err)
{
    const size_t n = (size_t)run->program->n_values + 1;
    *runs = (lb_rounding_runs){.run = run, .log = log};
    runs->aim_of = malloc(n * sizeof *runs->aim_of), runs->watch = calloc(n, 1);
    runs->apart = calloc(n, sizeof *runs->apart), runs->exact = calloc(n, sizeof *runs->exact);
    if (!runs->aim_of || !runs->watch || !runs->apart || !runs->exact)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu values", n);
    memset(runs->aim_of, 0xFF, n * sizeof *runs->aim_of);
    for (uint32_t i = 0; i < run->n_roots; i++) {
        const uint32_t giver = run->graph.giver[run->roots[i].value];
        if (giver != LB_NONE && giver > runs->last) runs->last = giver;
    }
    LB_TRY(add_logits(runs, err));
    for (uint32_t i = 0; i < trained->n; i++)
        if (trained->rows[i].has_gradient && !add_aim(runs, trained->rows[i].read, true))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for gradients");
    return LB_OK;
}

void lb_rounding_runs_close(lb_rounding_runs *runs)
{
    for (uint32_t i = 0; i < runs->n_aims; i++) free(runs->aims[i].exact);
    for (uint32_t v = 0; runs->exact && v < runs->run->program->n_values; v++) free(runs->exact[v]);
    free(runs->aims), free(runs->aim_of), free(runs->watch), free(runs->products), free(runs->spreads);
    free(runs->apart), free(runs->exact);
    *runs = (lb_rounding_runs){0};
}

/* ---- one run ---- */

static void add_rounding(pass *pass, uint32_t v, const lb_tensor *tensor)
{
    const float *rounded = pass->runs->log->rounded[v];
    const int64_t n = lb_layout_numel(&tensor->layout);
    if (!rounded || !is_real(tensor)) return;
    double *in_place = lb_number_blocks_in_place(tensor), *x = in_place ? in_place : lb_shadow_numbers_copy(tensor);
    pass->failed |= !x;
    if (x) lb_rounding_sums_put(x, rounded, n);
    if (x && !in_place) lb_shadow_put(tensor, x);
    if (!in_place) free(x);
}

static void note_loss(pass *pass, const lb_event *event)
{
    const lb_moved_run *run = pass->runs->run;
    for (uint32_t i = 0; i < run->n_roots; i++) {
        lb_tensor tensor;
        double x;
        if (run->graph.giver[run->roots[i].value] != event->op) continue;
        if (!lb_event_exact(event, run->roots[i].value, &tensor) || !is_real(&tensor) ||
            lb_layout_numel(&tensor.layout) != 1)
            continue;
        lb_shadow_numbers(&tensor, &x);
        pass->loss += x, pass->losses++;
    }
}

/* How far the numbers are from exact ones; of the first run, which has none yet, NULL: how large they are. */
static bool compare(const lb_tensor *tensor, const double *exact, lb_rounding_apart *apart)
{
    lb_number_blocks blocks;
    double room[LB_NUMBER_BLOCK];
    if (!lb_number_blocks_open(tensor, &blocks)) return false;
    for (int64_t i = 0, n; i < blocks.n; i += n) {
        n = lb_number_blocks_count(&blocks, i);
        const double *numbers = lb_number_blocks_at(&blocks, i, n, room);
        lb_rounding_apart_add(apart, numbers, exact ? exact + i : numbers, n);
    }
    lb_number_blocks_close(&blocks);
    return true;
}

static void note_aim(pass *pass, lb_rounding_aim *aim, const lb_tensor *tensor)
{
    if (pass->first && !aim->exact) {
        aim->exact = lb_shadow_numbers_copy(tensor);
        pass->failed |= !aim->exact;
    }
    if (!aim->exact) return;
    pass->failed |= !compare(tensor, pass->first ? NULL : aim->exact, &pass->apart[aim->gradient]);
    pass->seen[aim->gradient] = true;
}

static void note_aims(pass *pass, const lb_event *event)
{
    lb_rounding_runs *runs = pass->runs;
    for (uint32_t i = 0; i < runs->n_aims; i++) {
        lb_tensor tensor;
        if (runs->run->graph.giver[runs->aims[i].value] != event->op) continue;
        if (lb_event_exact(event, runs->aims[i].value, &tensor) && is_real(&tensor))
            note_aim(pass, &runs->aims[i], &tensor);
    }
}

/* ---- the first run: which rounding the loss feels, to first order ---- */

static void multiply_site(pass *pass, uint32_t i, const float *rounded, const lb_tensor *tensor)
{
    lb_rounding_runs *runs = pass->runs;
    lb_number_blocks blocks;
    double room[LB_NUMBER_BLOCK];
    runs->products[i] = runs->spreads[i] = NAN;
    if (lb_layout_numel(&tensor->layout) != runs->log->sizes[runs->run->sites[i].value].numbers) return;
    pass->failed |= !lb_number_blocks_open(tensor, &blocks);
    if (pass->failed) return;
    runs->products[i] = runs->spreads[i] = 0;
    for (int64_t k = 0, n; k < blocks.n; k += n) {
        n = lb_number_blocks_count(&blocks, k);
        lb_rounding_sums_multiply(lb_number_blocks_at(&blocks, k, n, room), rounded + k, n, &runs->products[i],
                                  &runs->spreads[i]);
    }
    lb_number_blocks_close(&blocks);
}

static void multiply(pass *pass, const lb_event *event)
{
    const lb_moved_run *run = pass->runs->run;
    for (uint32_t i = 0; i < run->n_sites; i++) {
        const lb_moved_site *site = &run->sites[i];
        const float *rounded = site->value < run->program->n_values ? pass->runs->log->rounded[site->value] : NULL;
        lb_tensor tensor;
        if (!rounded || site->gradient == LB_NONE || run->graph.giver[site->gradient] != event->op) continue;
        if (lb_event_exact(event, site->gradient, &tensor) && is_real(&tensor))
            multiply_site(pass, i, rounded, &tensor);
    }
}

/* Of a value that is watched: its numbers in the first run, and how far from them it is with all rounding. */
static void note_watched(pass *pass, uint32_t value, const lb_tensor *tensor)
{
    lb_rounding_runs *runs = pass->runs;
    if (!runs->watch[value] || !is_real(tensor)) return;
    if (pass->first) {
        free(runs->exact[value]);
        runs->exact[value] = lb_shadow_numbers_copy(tensor);
        pass->failed |= !runs->exact[value];
    } else if (!pass->added && runs->exact[value]) {
        pass->failed |= !compare(tensor, runs->exact[value], &runs->apart[value]);
    }
}

static bool are_done(const joint_pass *joint_pass)
{
    for (uint32_t k = 0; k < joint_pass->n; k++)
        if (!joint_pass->ranks[k].done) return false;
    return true;
}

static bool note_op(void *context, const lb_event *event)
{
    const joint_pass *joint_pass = context;
    pass *pass = pass_of(joint_pass, event->rank);
    const lb_program *program = pass->runs->run->program;
    for (uint32_t k = 0; event->shadow && k < event->n_results; k++) {
        const uint32_t v = event->values[k];
        if (v == LB_NONE || v >= program->n_values || !event->shadow[k].data) continue;
        if (!lb_rounding_log_is_first(program, event->op, k)) continue;
        if (!pass->first && (!pass->added || pass->added[event->op])) add_rounding(pass, v, &event->shadow[k]);
        note_watched(pass, v, &event->shadow[k]);
    }
    note_loss(pass, event);
    note_aims(pass, event);
    if (pass->first) multiply(pass, event);
    pass->done |= event->op >= pass->runs->last;
    return !pass->failed && !are_done(joint_pass);
}

static lb_status run_passes(joint_pass *joint_pass, lb_err *err)
{
    const lb_observer observer = {.context = joint_pass, .op = note_op};
    joint_pass->runs[0]->runs++;
    LB_TRY(lb_moved_run_exact(joint_pass->runs, joint_pass->n, &observer, err));
    for (uint32_t k = 0; k < joint_pass->n; k++)
        if (joint_pass->ranks[k].failed) return lb_fail(err, LB_ERR_NOMEM, "out of memory for an exact run");
    return LB_OK;
}

static void add_apart(lb_rounding_apart *sum, const lb_rounding_apart *one)
{
    sum->squares += one->squares, sum->whole += one->whole;
    sum->largest = fmax(sum->largest, one->largest), sum->reach = fmax(sum->reach, one->reach);
}

/* What all ranks found, as if it were one. */
static void sum_up(const joint_pass *joint_pass, pass *sum)
{
    uint32_t with_loss = 0;
    *sum = (pass){.loss = 0};
    for (uint32_t k = 0; k < joint_pass->n; k++) {
        const pass *s = &joint_pass->ranks[k];
        sum->loss += s->losses == s->runs->run->n_roots ? s->loss : NAN;
        with_loss += s->runs->run->n_roots > 0;
        for (int what = 0; what < 2; what++)
            add_apart(&sum->apart[what], &s->apart[what]), sum->seen[what] |= s->seen[what];
    }
    sum->loss = with_loss ? sum->loss / with_loss : NAN;
}

static lb_status run_once(lb_rounding_ranks *ranks, bool first, uint8_t *const *added, pass *sum, lb_err *err)
{
    joint_pass joint_pass = {malloc(((size_t)ranks->n + 1) * sizeof *joint_pass.runs),
                             calloc((size_t)ranks->n + 1, sizeof *joint_pass.ranks), ranks->n};
    lb_status status = joint_pass.ranks && joint_pass.runs
                           ? LB_OK
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", ranks->n);
    for (uint32_t k = 0; k < ranks->n && status == LB_OK; k++) {
        joint_pass.ranks[k] = (pass){.runs = ranks->list[k], .first = first, .added = added ? added[k] : NULL};
        joint_pass.runs[k] = ranks->list[k]->run;
    }
    if (status == LB_OK) status = run_passes(&joint_pass, err);
    if (status == LB_OK) sum_up(&joint_pass, sum);
    free(joint_pass.runs), free(joint_pass.ranks);
    return status;
}

/* The mean over ranks. */
static double recorded_loss(const lb_rounding_ranks *ranks)
{
    double sum = 0;
    uint32_t with_loss = 0;
    for (uint32_t k = 0; k < ranks->n; k++) {
        const lb_moved_run *run = ranks->list[k]->run;
        with_loss += run->n_roots > 0;
        for (uint32_t i = 0; i < run->n_roots; i++) {
            int64_t n;
            double *x = lb_rounding_log_numbers(ranks->list[k]->log, run->roots[i].value, &n);
            sum += x ? *x : NAN;
            free(x);
        }
    }
    return with_loss ? sum / with_loss : NAN;
}

lb_status lb_rounding_ranks_first(lb_rounding_ranks *ranks, lb_err *err)
{
    pass pass;
    for (uint32_t k = 0; k < ranks->n; k++) {
        lb_rounding_runs *one = ranks->list[k];
        one->products = calloc((size_t)one->run->n_sites + 1, sizeof *one->products);
        one->spreads = calloc((size_t)one->run->n_sites + 1, sizeof *one->spreads);
        if (!one->products || !one->spreads)
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u places", one->run->n_sites);
    }
    LB_TRY(run_once(ranks, true, NULL, &pass, err));
    ranks->sizes[0] = pass.apart[0].whole, ranks->sizes[1] = pass.apart[1].whole, ranks->reach = pass.apart[0].reach;
    for (uint32_t k = 0; k < ranks->n; k++) ranks->losses += ranks->list[k]->run->n_roots > 0;
    ranks->loss = pass.loss, ranks->recorded = recorded_loss(ranks);
    return LB_OK;
}

lb_status lb_rounding_ranks_add(lb_rounding_ranks *ranks, uint8_t *const *added, lb_check_effect *effect, lb_err *err)
{
    pass pass;
    LB_TRY(run_once(ranks, false, added, &pass, err));
    *effect = (lb_check_effect){NAN, NAN, NAN, NAN, NAN};
    if (isfinite(ranks->loss) && ranks->loss != 0 && !isnan(pass.loss))
        effect->loss = fabs(pass.loss - ranks->loss) / fabs(ranks->loss), effect->reached = pass.loss;
    if (pass.seen[0] && ranks->sizes[0] > 0)
        effect->logits = sqrt(pass.apart[0].squares / ranks->sizes[0]),
        effect->largest_logit = pass.apart[0].largest / ranks->reach;
    if (pass.seen[1] && ranks->sizes[1] > 0) effect->gradients = sqrt(pass.apart[1].squares / ranks->sizes[1]);
    return LB_OK;
}
