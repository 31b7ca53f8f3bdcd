/* The search against simulated runs: what it finds, what that costs, and what it does when its assumption breaks. */
#include "search_world.h"

/* Mean number of trials; every verdict must be exactly the culprits. */
static double mean_trials(uint32_t n, uint32_t k, int repeats)
{
    double sum = 0;
    uint32_t culprits[16];
    for (int r = 0; r < repeats; r++) {
        draw(n, k, culprits);
        world w = {.n = n, .culprits = culprits, .k = k, .poison = -1, .untestable = -1};
        lb_search *search = new_search(n, 0, 0);
        lb_search_verdict v = run(search, &w);
        assert_int_equal(v.kind, LB_SEARCH_FOUND);
        assert_true(v.monotone);
        assert_int_equal(v.n_culprits, k);
        assert_memory_equal(v.culprits, culprits, k * sizeof *culprits);
        assert_string_equal(v.note, "");
        sum += v.trials;
        lb_search_free(search);
    }
    return sum / repeats;
}

static void every_single_culprit_of_every_small_size_is_found(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 40; n++)
        for (uint32_t c = 0; c < n; c++) {
            world w = {.n = n, .culprits = &c, .k = 1, .poison = -1, .untestable = -1};
            lb_search *search = new_search(n, 0, 0);
            lb_search_verdict v = run(search, &w);
            assert_int_equal(v.kind, LB_SEARCH_FOUND);
            assert_int_equal(v.n_culprits, 1);
            assert_int_equal(v.culprits[0], c);
            lb_search_free(search);
        }
}

static void every_set_of_culprits_of_eight_is_found(void **state)
{
    (void)state;
    for (uint32_t bits = 1; bits < 256; bits++) {
        uint32_t culprits[8], k = 0;
        for (uint32_t i = 0; i < 8; i++)
            if (bits >> i & 1) culprits[k++] = i;
        world w = {.n = 8, .culprits = culprits, .k = k, .poison = -1, .untestable = -1};
        lb_search *search = new_search(8, 0, 0);
        lb_search_verdict v = run(search, &w);
        assert_int_equal(v.n_culprits, k);
        assert_memory_equal(v.culprits, culprits, k * sizeof *culprits);
        lb_search_free(search);
    }
}

/* The information bound is log2 C(n, k): 10, 19, 35, 65, 116 for n = 1024. The checks at the end cost k more. */
static void trials_stay_near_the_information_bound(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, k;
        double limit;
    } cases[] = {{128, 1, 10},  {128, 2, 18},  {128, 4, 36},  {128, 8, 62},   {1024, 1, 14},
                 {1024, 2, 27}, {1024, 4, 50}, {1024, 8, 90}, {1024, 16, 165}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double mean = mean_trials(cases[i].n, cases[i].k, 60);
        print_message("n %4u k %2u: %.1f trials\n", cases[i].n, cases[i].k, mean);
        assert_true(mean <= cases[i].limit);
    }
}

static void a_failure_that_needs_two_sites_names_the_earlier(void **state)
{
    (void)state;
    for (int r = 0; r < 200; r++) {
        uint32_t culprits[2];
        draw(200, 2, culprits);
        world w = {.n = 200, .culprits = culprits, .k = 2, .any = true, .poison = -1, .untestable = -1};
        lb_search *search = new_search(200, 0, 0);
        lb_search_verdict v = run(search, &w);
        assert_int_equal(v.kind, LB_SEARCH_FOUND);
        assert_int_equal(v.n_culprits, 1);
        assert_int_equal(v.culprits[0], culprits[0]);
        lb_search_free(search);
    }
}

static void a_change_that_does_not_cure_is_said_after_one_trial(void **state)
{
    (void)state;
    world w = {.n = 100, .k = 0, .any = true, .poison = -1, .untestable = -1};
    lb_search *search = new_search(100, 0, 0);
    lb_search_verdict v = run(search, &w);
    assert_int_equal(v.kind, LB_SEARCH_NOTHING);
    assert_int_equal(v.trials, 1);
    assert_int_equal(v.n_culprits, 0);
    lb_search_free(search);
}

static void masking_sites_are_noticed_and_the_answer_still_cures(void **state)
{
    (void)state;
    for (int r = 0; r < 300; r++) {
        uint32_t culprits[3], others[2];
        draw(60, 3, culprits);
        draw(60, 2, others);
        world w = {.n = 60,
                   .culprits = culprits,
                   .k = 3,
                   .poison = (int32_t)others[0],
                   .antidote = others[1],
                   .untestable = -1};
        lb_search *search = new_search(60, 0, 0);
        uint64_t set[1] = {0};
        lb_search_verdict v = run(search, &w);
        for (uint32_t i = 0; i < v.n_culprits; i++) set[0] |= (uint64_t)1 << v.culprits[i];
        if (v.kind == LB_SEARCH_FOUND) {
            assert_true(cured(&w, set));
            for (uint32_t i = 0; i < v.n_culprits; i++) {
                uint64_t less[1] = {set[0] & ~((uint64_t)1 << v.culprits[i])};
                assert_false(cured(&w, less));
            }
        } else
            assert_int_equal(v.kind, LB_SEARCH_NOTHING);
        lb_search_free(search);
    }
}

static void tells_that_contradict_the_assumption_are_reported(void **state)
{
    (void)state;
    lb_search *search = new_search(4, 0, 0);
    uint64_t small = 2, large = 3, all = 15;
    lb_search_tell(search, &all, LB_OUTCOME_CURED, NULL);
    lb_search_tell(search, &small, LB_OUTCOME_CURED, NULL);
    lb_search_tell(search, &large, LB_OUTCOME_SAME, NULL);
    lb_search_verdict v;
    assert_int_equal(lb_search_verdict_get(search, &v, NULL), LB_OK);
    assert_false(v.monotone);
    lb_search_free(search);
}

static void trials_that_cannot_be_run_do_not_stop_the_search(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 32; c++)
        for (int32_t u = 0; u < 31; u++) {
            world w = {.n = 32, .culprits = &c, .k = 1, .poison = -1, .untestable = u};
            lb_search *search = new_search(32, 0, 0);
            lb_search_verdict v = run(search, &w);
            assert_int_equal(v.kind, LB_SEARCH_FOUND);
            uint64_t set[1] = {0};
            for (uint32_t i = 0; i < v.n_culprits; i++) set[0] |= (uint64_t)1 << v.culprits[i];
            assert_true(cured(&w, set));
            assert_true(v.n_culprits <= 3);
            if (v.n_culprits > 1) assert_true(strlen(v.note) > 0);
            lb_search_free(search);
        }
}

static void a_search_resumes_from_its_tells_in_any_order(void **state)
{
    (void)state;
    enum { N = 300 };
    uint32_t culprits[3] = {7, 130, 255};
    world w = {.n = N, .culprits = culprits, .k = 3, .poison = -1, .untestable = -1};
    lb_search *first = new_search(N, 0, 0);
    static uint64_t journal[400][LB_SITE_WORDS(N)];
    static lb_search_outcome outcomes[400];
    uint32_t told = 0;
    lb_search_step step;
    lb_search_trial trial;
    while (lb_search_next(first, &step, &trial, NULL) == LB_OK && step == LB_SEARCH_TRIAL) {
        memcpy(journal[told], trial.sites, sizeof journal[told]);
        outcomes[told] = outcome(&w, trial.sites);
        lb_search_tell(first, journal[told], outcomes[told], NULL);
        told++;
    }
    for (uint32_t cut = 0; cut <= told; cut++) {
        lb_search *second = new_search(N, 0, 0);
        for (uint32_t i = 0; i < cut; i++) lb_search_tell(second, journal[cut - 1 - i], outcomes[cut - 1 - i], NULL);
        lb_search_verdict v = run(second, &w);
        assert_int_equal(v.trials, told);
        assert_int_equal(v.n_culprits, 3);
        assert_memory_equal(v.culprits, culprits, sizeof culprits);
        lb_search_free(second);
    }
    lb_search_free(first);
}

static void the_limit_of_trials_gives_the_best_set_so_far(void **state)
{
    (void)state;
    uint32_t c = 77;
    world w = {.n = 256, .culprits = &c, .k = 1, .poison = -1, .untestable = -1};
    lb_search_options options = LB_SEARCH_OPTIONS_INIT;
    options.sites = 256, options.max_trials = 5;
    lb_search *search;
    assert_int_equal(lb_search_new(&options, &search, NULL), LB_OK);
    lb_search_verdict v = run(search, &w);
    assert_int_equal(v.kind, LB_SEARCH_UNDECIDED);
    assert_int_equal(v.trials, 5);
    assert_true(v.n_culprits >= 1 && v.n_culprits < 256);
    bool has = false;
    for (uint32_t i = 0; i < v.n_culprits; i++) has |= v.culprits[i] == c;
    assert_true(has);
    lb_search_free(search);
}

static void a_good_prior_saves_trials(void **state)
{
    (void)state;
    enum { N = 512 };
    double prior[N];
    for (int i = 0; i < N; i++) prior[i] = 1;
    prior[300] = 1000;
    uint32_t c = 300;
    world w = {.n = N, .culprits = &c, .k = 1, .poison = -1, .untestable = -1};
    lb_search_options options = LB_SEARCH_OPTIONS_INIT;
    options.sites = N, options.prior = prior;
    lb_search *search;
    assert_int_equal(lb_search_new(&options, &search, NULL), LB_OK);
    lb_search_verdict v = run(search, &w);
    assert_int_equal(v.culprits[0], 300);
    assert_true(v.trials <= 7);
    lb_search_free(search);
}

/* Accuracy and cost under noise; lower bounds are log2(n) / (1 - H(p)): 8.5 at 0.05, 18.8 for n = 1024 at 0.1. */
static void noise_costs_trials_not_correctness(void **state)
{
    (void)state;
    static const struct {
        uint32_t n;
        double miss, alarm, limit;
    } cases[] = {{128, 0.05, 0.05, 24}, {128, 0.1, 0.1, 32}, {128, 0.2, 0.2, 62},
                 {1024, 0.1, 0.1, 36},  {128, 0.5, 0, 60},   {128, 0.1, 0, 22}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int right = 0, repeats = 100;
        double sum = 0;
        for (int r = 0; r < repeats; r++) {
            uint32_t c;
            draw(cases[i].n, 1, &c);
            world w = {.n = cases[i].n,
                       .culprits = &c,
                       .k = 1,
                       .miss = cases[i].miss,
                       .alarm = cases[i].alarm,
                       .poison = -1,
                       .untestable = -1};
            lb_search *search = new_search(cases[i].n, cases[i].miss, cases[i].alarm);
            lb_search_verdict v = run(search, &w);
            right += v.kind == LB_SEARCH_FOUND && v.n_culprits == 1 && v.culprits[0] == c;
            sum += v.trials;
            lb_search_free(search);
        }
        print_message("n %u miss %.2f alarm %.2f: %.1f trials, %d of %d right\n", cases[i].n, cases[i].miss,
                      cases[i].alarm, sum / repeats, right, repeats);
        assert_true(right >= 97);
        assert_true(sum / repeats <= cases[i].limit);
    }
}

static void several_culprits_are_found_under_noise(void **state)
{
    (void)state;
    int right = 0;
    for (int r = 0; r < 40; r++) {
        uint32_t culprits[2];
        draw(64, 2, culprits);
        world w = {.n = 64, .culprits = culprits, .k = 2, .miss = 0.05, .alarm = 0.05, .poison = -1, .untestable = -1};
        lb_search *search = new_search(64, 0.05, 0.05);
        lb_search_verdict v = run(search, &w);
        right += v.kind == LB_SEARCH_FOUND && v.n_culprits == 2 && memcmp(v.culprits, culprits, sizeof culprits) == 0;
        lb_search_free(search);
    }
    assert_true(right >= 39);
}

static void impossible_options_are_refused(void **state)
{
    (void)state;
    lb_search *search;
    lb_search_options options = LB_SEARCH_OPTIONS_INIT;
    assert_int_equal(lb_search_new(&options, &search, NULL), LB_ERR_INVALID);
    options.sites = 4, options.alarm = 0.7;
    assert_int_equal(lb_search_new(&options, &search, NULL), LB_ERR_INVALID);
    options.alarm = NAN;
    assert_int_equal(lb_search_new(&options, &search, NULL), LB_ERR_INVALID);
    options.alarm = 0;
    assert_int_equal(lb_search_new(&options, &search, NULL), LB_OK);
    uint64_t beyond = 16;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_search_tell(search, &beyond, LB_OUTCOME_CURED, &err), LB_ERR_INVALID);
    assert_non_null(strstr(err.message, "beyond the 4"));
    lb_search_free(search);
}

static void names_of_outcomes_survive_a_journal(void **state)
{
    (void)state;
    for (int i = 0; i <= LB_OUTCOME_NOISE; i++) {
        lb_search_outcome back;
        assert_true(lb_search_outcome_parse(lb_search_outcome_name((lb_search_outcome)i), &back));
        assert_int_equal(back, i);
    }
    lb_search_outcome back;
    assert_false(lb_search_outcome_parse("maybe", &back));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_single_culprit_of_every_small_size_is_found),
        cmocka_unit_test(every_set_of_culprits_of_eight_is_found),
        cmocka_unit_test(trials_stay_near_the_information_bound),
        cmocka_unit_test(a_failure_that_needs_two_sites_names_the_earlier),
        cmocka_unit_test(a_change_that_does_not_cure_is_said_after_one_trial),
        cmocka_unit_test(masking_sites_are_noticed_and_the_answer_still_cures),
        cmocka_unit_test(tells_that_contradict_the_assumption_are_reported),
        cmocka_unit_test(trials_that_cannot_be_run_do_not_stop_the_search),
        cmocka_unit_test(a_search_resumes_from_its_tells_in_any_order),
        cmocka_unit_test(the_limit_of_trials_gives_the_best_set_so_far),
        cmocka_unit_test(a_good_prior_saves_trials),
        cmocka_unit_test(noise_costs_trials_not_correctness),
        cmocka_unit_test(several_culprits_are_found_under_noise),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(names_of_outcomes_survive_a_journal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
