/* Numbers of workers that drift apart, against the formulas of lastbit/ranks.h computed another way: in long double,
 * deviations from squares' means, products element by element. */
#include "cmocka_first.h"

#include "worker_sample.h"
#include "workers/worker_dispersion.h"

#include <float.h>

static uint64_t seed = 5;

static double uniform(void)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53 * 2 - 1;
}

static void is_near(double found, long double expected)
{
    if (isnan((double)expected) ? !isnan(found) : !(fabsl(found - expected) <= 1e-11L * (fabsl(expected) + 1e-3L)))
        fail_msg("%.17g is not %.17Lg", found, expected);
}

/* sqrt(E[x^2] - E[x]^2), over n. */
static long double deviation(const long double *x, int n)
{
    long double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += x[i], squares += x[i] * x[i];
    const long double variance = squares / n - sum / n * (sum / n);
    return variance > 0 ? sqrtl(variance) : 0;
}

static long double mean(const long double *x, int n)
{
    long double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum / n;
}

/* Keys from `first` up to but not `end`. */
static long double product(const worker_deed *a, const worker_deed *b, int first, int end)
{
    long double sum = 0;
    for (int k = first; k < end; k++)
        for (int i = 0; i < SAMPLE_ELEMENTS; i++)
            sum += (long double)a->gradients[k][i] * (long double)b->gradients[k][i];
    return sum;
}

static void check_row(const lb_ranks_row *row, const worker_deed *deeds, int ranks, int first, int end)
{
    long double norms[SAMPLE_RANKS], sum = 0, least = 2;
    int pairs = 0;
    for (int r = 0; r < ranks; r++) norms[r] = sqrtl(product(&deeds[r], &deeds[r], first, end));
    for (int a = 0; a < ranks; a++)
        for (int b = a + 1; b < ranks; b++) {
            if (norms[a] == 0 || norms[b] == 0) continue; /* no direction */
            const long double cosine = product(&deeds[a], &deeds[b], first, end) / (norms[a] * norms[b]);
            sum += cosine, pairs++;
            least = cosine < least ? cosine : least;
        }
    is_near(row->grad_norm_mean, mean(norms, ranks)), is_near(row->grad_norm_std, deviation(norms, ranks));
    is_near(row->grad_cosine_mean, pairs ? sum / pairs : NAN), is_near(row->grad_cosine_min, pairs ? least : NAN);
}

static void check_losses(const lb_ranks_step *step, const worker_deed *deeds, int ranks)
{
    long double losses[SAMPLE_RANKS], least = LDBL_MAX, most = -LDBL_MAX;
    int n = 0;
    for (int r = 0; r < ranks; r++) {
        is_near(step->workers[r].loss, deeds[r].loss);
        if (isnan(deeds[r].loss)) continue;
        losses[n++] = deeds[r].loss;
        least = deeds[r].loss < least ? deeds[r].loss : least, most = deeds[r].loss > most ? deeds[r].loss : most;
    }
    is_near(step->loss_mean, n ? mean(losses, n) : NAN), is_near(step->loss_std, n ? deviation(losses, n) : NAN);
    is_near(step->loss_range, n ? most - least : NAN);
}

static void check_workers(const lb_ranks_step *step, const worker_deed *deeds, int ranks)
{
    assert_int_equal(step->n_workers, ranks);
    for (int a = 0; a < ranks; a++) {
        const long double own = sqrtl(product(&deeds[a], &deeds[a], 0, SAMPLE_KEYS));
        long double sum = 0;
        int n = 0;
        is_near(step->workers[a].grad_norm, own);
        for (int b = 0; b < ranks; b++) {
            const long double other = sqrtl(product(&deeds[b], &deeds[b], 0, SAMPLE_KEYS));
            if (b != a && own > 0 && other > 0)
                sum += product(&deeds[a], &deeds[b], 0, SAMPLE_KEYS) / (own * other), n++;
        }
        is_near(step->workers[a].cosine, n ? sum / n : NAN);
    }
}

/* What a worker's gradient is beside the others'. */
typedef enum kind { NOISE, SHARED, OPPOSED, ONE_ZERO, ALL_ZERO, TINY, HUGE_ONE, ALIKE, NO_LOSS, KINDS } kind;

static worker_deed deed_of(kind kind, int rank, const float *shared)
{
    worker_deed d = {.loss = (float)(3 + uniform())};
    for (int i = 0; i < SAMPLE_KEYS * SAMPLE_ELEMENTS; i++) {
        const double noise = uniform();
        const double g = kind == SHARED     ? shared[i] + 0.01 * noise
                         : kind == OPPOSED  ? (rank % 2 ? -1 : 1) * (shared[i] + 0.1 * noise)
                         : kind == ALIKE    ? shared[i]
                         : kind == TINY     ? 1e-18 * noise
                         : kind == ALL_ZERO ? 0
                                            : noise;
        d.gradients[i / SAMPLE_ELEMENTS][i % SAMPLE_ELEMENTS] = (float)(rank == 1 && kind == ONE_ZERO   ? 0
                                                                        : rank == 1 && kind == HUGE_ONE ? 1e9 * g
                                                                                                        : g);
    }
    if (kind == ALIKE) d.loss = 2.7182817f;
    if (kind == NO_LOSS && rank == 0) d.loss = NAN;
    return d;
}

static void dispersion_is_that_of_the_formulas(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= SAMPLE_RANKS; ranks += 2)
        for (kind first = 0; first < KINDS; first += SAMPLE_STEPS) {
            worker_run run = {.ranks = ranks};
            for (kind k = first; k < KINDS && run.steps < SAMPLE_STEPS; k++, run.steps++) {
                float shared[SAMPLE_KEYS * SAMPLE_ELEMENTS];
                for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) shared[i] = (float)uniform();
                for (int r = 0; r < ranks; r++) run.deeds[run.steps][r] = deed_of(k, r, shared);
            }
            lb_ranks_report *report = worker_report(&run);
            assert_int_equal(report->n_steps, run.steps);
            /* A rank without a loss ran no backward: that is told. */
            const bool all_ran = first + SAMPLE_STEPS <= NO_LOSS;
            assert_int_equal(report->verdict, all_ran ? LB_RANKS_CLEAN : LB_RANKS_FOUND);
            assert_int_equal(report->n_findings, all_ran ? 0 : 1);
            for (int s = 0; s < run.steps; s++) {
                const lb_ranks_step *step = &report->steps[s];
                const worker_deed *deeds = run.deeds[s];
                assert_int_equal(step->gradients, SAMPLE_KEYS);
                assert_int_equal(step->lacking, 0);
                check_losses(step, deeds, ranks), check_workers(step, deeds, ranks);
                check_row(&step->all, deeds, ranks, 0, SAMPLE_KEYS);
                assert_int_equal(step->n_layers, 2);
                assert_string_equal(step->layers[0].layer, "layers.0.a");
                check_row(&step->layers[0], deeds, ranks, 0, 2);
                check_row(&step->layers[1], deeds, ranks, 2, 3);
            }
            lb_ranks_report_free(report);
        }
}

static void same_row(const lb_ranks_row *x, const lb_ranks_row *y)
{
    const double a[] = {x->grad_norm_mean, x->grad_norm_std, x->grad_cosine_mean, x->grad_cosine_min};
    const double b[] = {y->grad_norm_mean, y->grad_norm_std, y->grad_cosine_mean, y->grad_cosine_min};
    assert_memory_equal(a, b, sizeof a);
}

static void same_rows(const lb_ranks_row *x, uint32_t n, const lb_ranks_row *y, uint32_t m)
{
    assert_int_equal(n, m);
    for (uint32_t i = 0; i < n; i++) same_row(&x[i], &y[i]);
}

static void drop_step(lb_ranks_step *step)
{
    lb_worker_dispersion_free(step->layers, step->n_layers), lb_worker_dispersion_free(step->blocks, step->n_blocks);
    free(step->workers);
}

/* Products of few workers at a time, whose gradients are read once for each few: the numbers have the same bits. */
static void bands_of_workers_change_no_bit(void **state)
{
    (void)state;
    for (kind k = 0; k < KINDS; k++) {
        worker_run run = {.ranks = SAMPLE_RANKS, .steps = 1};
        float shared[SAMPLE_KEYS * SAMPLE_ELEMENTS];
        lb_worker_steps steps;
        for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) shared[i] = (float)uniform();
        for (int r = 0; r < SAMPLE_RANKS; r++) run.deeds[0][r] = deed_of(k, r, shared);
        lb_capture *capture = worker_capture(&run);
        OK(lb_worker_steps_init(capture, INT64_MIN, INT64_MAX, &steps, &err));
        lb_ranks_step all;
        OK(lb_worker_dispersion_of(&steps, &steps.steps[0], SAMPLE_RANKS, &all, &err));
        assert_int_equal(all.n_workers, SAMPLE_RANKS);
        for (uint32_t at_once = 0; at_once < SAMPLE_RANKS; at_once++) {
            lb_ranks_step few;
            OK(lb_worker_dispersion_of(&steps, &steps.steps[0], at_once, &few, &err));
            same_row(&all.all, &few.all);
            same_rows(all.layers, all.n_layers, few.layers, few.n_layers);
            same_rows(all.blocks, all.n_blocks, few.blocks, few.n_blocks);
            assert_int_equal(all.n_workers, few.n_workers);
            for (uint32_t w = 0; w < all.n_workers; w++) {
                const double x[] = {all.workers[w].loss, all.workers[w].grad_norm, all.workers[w].cosine};
                const double y[] = {few.workers[w].loss, few.workers[w].grad_norm, few.workers[w].cosine};
                assert_memory_equal(x, y, sizeof x);
            }
            assert_int_equal(all.gradients, few.gradients), assert_int_equal(all.lacking, few.lacking);
            drop_step(&few);
        }
        drop_step(&all);
        lb_worker_steps_release(&steps);
        lb_capture_close(capture);
    }
}

/* Losses that are one number differ by nothing, although their mean rounds. */
static void losses_that_are_alike_have_no_deviation(void **state)
{
    (void)state;
    worker_run run = {.ranks = 3, .steps = 1};
    for (int r = 0; r < 3; r++) run.deeds[0][r] = deed_of(ALIKE, r, (float[SAMPLE_KEYS * SAMPLE_ELEMENTS]){0.1f});
    lb_ranks_report *report = worker_report(&run);
    assert_true(report->steps[0].loss_std == 0 && report->steps[0].loss_range == 0);
    assert_true(report->steps[0].all.grad_norm_std < 1e-15 && report->steps[0].all.grad_cosine_min > 1 - 1e-15);
    lb_ranks_report_free(report);
}

static void one_rank_cannot_be_tested(void **state)
{
    (void)state;
    worker_run run = {.ranks = 1, .steps = 1};
    run.deeds[0][0] = deed_of(NOISE, 0, NULL);
    lb_ranks_report *report = worker_report(&run);
    assert_int_equal(report->verdict, LB_RANKS_UNTESTABLE);
    lb_ranks_report_free(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dispersion_is_that_of_the_formulas),
        cmocka_unit_test(bands_of_workers_change_no_bit),
        cmocka_unit_test(losses_that_are_alike_have_no_deviation),
        cmocka_unit_test(one_rank_cannot_be_tested),
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
