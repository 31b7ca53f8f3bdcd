/* What the search promises, over random worlds: the answer cures, nothing in it can be left out, it costs about
 * k log2(n / k) trials, a broken assumption is noticed, and noise costs trials but not correctness. */
#include "search_world.h"

#include <stdio.h>

enum { MOST_SITES = 400, MOST_TRIALS = 20000 };

/* Everything that was told to one search. */
typedef struct log_book {
    uint64_t sets[MOST_TRIALS][LB_SITE_WORDS(MOST_SITES)];
    lb_search_outcome outcomes[MOST_TRIALS];
    uint32_t n;
} log_book;
static log_book book;

static lb_search_verdict run_logged(lb_search *search, const world *w)
{
    lb_search_verdict verdict;
    book.n = 0;
    for (;;) {
        lb_search_step step;
        lb_search_trial trial;
        assert_int_equal(lb_search_next(search, &step, &trial, NULL), LB_OK);
        if (step == LB_SEARCH_DONE) break;
        assert_true(book.n < MOST_TRIALS);
        memset(book.sets[book.n], 0, sizeof book.sets[0]);
        memcpy(book.sets[book.n], trial.sites, LB_SITE_WORDS(w->n) * sizeof(uint64_t));
        book.outcomes[book.n] = outcome(w, trial.sites);
        assert_int_equal(lb_search_tell(search, book.sets[book.n], book.outcomes[book.n], NULL), LB_OK);
        book.n++;
    }
    assert_int_equal(lb_search_verdict_get(search, &verdict, NULL), LB_OK);
    return verdict;
}

static bool inside(const uint64_t *a, const uint64_t *b)
{
    for (uint32_t i = 0; i < LB_SITE_WORDS(MOST_SITES); i++)
        if (a[i] & ~b[i]) return false;
    return true;
}

/* Does some set that failed hold one that was cured? Looked up here, not asked of the search. */
static bool contradicted(void)
{
    for (uint32_t a = 0; a < book.n; a++)
        for (uint32_t b = 0; b < book.n && book.outcomes[a] == LB_OUTCOME_CURED; b++)
            if (book.outcomes[b] == LB_OUTCOME_SAME && inside(book.sets[a], book.sets[b])) return true;
    return false;
}

/* The answer cures; no member of it can be left out. */
static void check_sound(const world *w, const lb_search_verdict *v)
{
    uint64_t set[LB_SITE_WORDS(MOST_SITES)] = {0};
    for (uint32_t i = 0; i < v->n_culprits; i++) {
        assert_true(v->culprits[i] < w->n);
        assert_true(i == 0 || v->culprits[i] > v->culprits[i - 1]);
        set[v->culprits[i] / 64] |= (uint64_t)1 << (v->culprits[i] % 64);
    }
    assert_true(cured(w, set));
    for (uint32_t i = 0; i < v->n_culprits; i++) {
        set[v->culprits[i] / 64] &= ~((uint64_t)1 << (v->culprits[i] % 64));
        assert_false(cured(w, set));
        set[v->culprits[i] / 64] |= (uint64_t)1 << (v->culprits[i] % 64);
    }
}

static uint32_t between(uint32_t low, uint32_t high)
{
    return low + (uint32_t)(random_bits() % (high - low + 1));
}

static void monotone_worlds_are_solved_exactly_and_cheaply(void **state)
{
    (void)state;
    double worst = 0, sum = 0;
    enum { WORLDS = 3000 };
    for (int r = 0; r < WORLDS; r++) {
        uint32_t n = between(1, MOST_SITES), k = between(1, n < 3 ? n : 3), culprits[3];
        draw(n, k, culprits);
        world w = {.n = n, .culprits = culprits, .k = k, .poison = -1, .untestable = -1};
        lb_search *search = new_search(n, 0, 0);
        lb_search_verdict v = run_logged(search, &w);
        assert_int_equal(v.kind, LB_SEARCH_FOUND);
        assert_int_equal(v.n_culprits, k);
        assert_memory_equal(v.culprits, culprits, k * sizeof *culprits);
        assert_true(v.monotone);
        assert_string_equal(v.note, "");
        double information = k * log2((double)n / k) + k;
        assert_true(v.trials <= 1.5 * information + 2 * k + 3);
        worst = fmax(worst, v.trials / (information + 1)), sum += v.trials / (information + 1);
        lb_search_free(search);
    }
    print_message("trials over k log2(n / k) + k + 1: mean %.2f, worst %.2f\n", sum / WORLDS, worst);
}

static void any_of_several_cures_is_answered_by_one_of_them(void **state)
{
    (void)state;
    for (int r = 0; r < 1000; r++) {
        uint32_t n = between(2, MOST_SITES), k = between(2, n < 3 ? n : 3), culprits[3];
        draw(n, k, culprits);
        world w = {.n = n, .culprits = culprits, .k = k, .any = true, .poison = -1, .untestable = -1};
        lb_search *search = new_search(n, 0, 0);
        lb_search_verdict v = run_logged(search, &w);
        assert_int_equal(v.n_culprits, 1);
        assert_int_equal(v.culprits[0], culprits[0]); /* the earliest in causal order */
        assert_true(v.trials <= log2(n) * 1.5 + 5);
        lb_search_free(search);
    }
}

/* Spoilers never undo the cure of everything: what appeases them is always among all. */
static void draw_spoilers(uint32_t n, spoiler *spoilers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        spoiler *s = &spoilers[i];
        *s = (spoiler){.n_with = between(1, 2), .n_unless = between(1, 2)};
        for (uint32_t k = 0; k < 2; k++) s->with[k] = between(0, n - 1), s->unless[k] = between(0, n - 1);
    }
}

static void a_broken_assumption_is_noticed_and_the_answer_stays_sound(void **state)
{
    (void)state;
    uint32_t broken = 0, said = 0;
    for (int r = 0; r < 3000; r++) {
        uint32_t n = between(4, 120), k = between(1, 3), culprits[3], count = between(1, 4);
        spoiler spoilers[4];
        draw(n, k, culprits);
        draw_spoilers(n, spoilers, count);
        world w = {.n = n,
                   .culprits = culprits,
                   .k = k,
                   .spoilers = spoilers,
                   .n_spoilers = count,
                   .poison = -1,
                   .untestable = -1};
        lb_search *search = new_search(n, 0, 0);
        lb_search_verdict v = run_logged(search, &w);
        assert_int_equal(v.kind, LB_SEARCH_FOUND);
        check_sound(&w, &v);
        assert_int_equal(v.monotone, !contradicted());
        broken += contradicted(), said += contradicted() && !v.monotone;
        lb_search_free(search);
    }
    print_message("%u of 3000 worlds contradicted the assumption in their trials\n", broken);
    assert_true(broken > 100);
    assert_int_equal(broken, said);
}

static void a_search_that_was_cut_off_anywhere_ends_in_the_same_answer(void **state)
{
    (void)state;
    static log_book whole;
    for (int r = 0; r < 200; r++) {
        uint32_t n = between(2, 200), k = between(1, n < 3 ? n : 3), culprits[3];
        spoiler spoilers[2];
        draw(n, k, culprits);
        draw_spoilers(n, spoilers, 2);
        world w = {.n = n,
                   .culprits = culprits,
                   .k = k,
                   .spoilers = spoilers,
                   .n_spoilers = r % 3,
                   .poison = -1,
                   .untestable = -1};
        lb_search *first = new_search(n, 0, 0), *second = new_search(n, 0, 0);
        lb_search_verdict a = run_logged(first, &w);
        whole = book;
        uint32_t cut = between(0, whole.n);
        for (uint32_t i = 0; i < cut; i++) { /* told again in another order */
            uint32_t at = (i * 7 + (uint32_t)r) % cut;
            if (cut % 7 == 0) at = i;
            assert_int_equal(lb_search_tell(second, whole.sets[at], whole.outcomes[at], NULL), LB_OK);
        }
        lb_search_verdict b = run_logged(second, &w);
        assert_int_equal(cut + book.n, whole.n);
        assert_int_equal(b.n_culprits, a.n_culprits);
        assert_memory_equal(b.culprits, a.culprits, a.n_culprits * sizeof *a.culprits);
        lb_search_free(first);
        lb_search_free(second);
    }
}

static void noise_of_any_rate_costs_trials_not_correctness(void **state)
{
    (void)state;
    enum { WORLDS = 300 };
    int wrong = 0;
    double over = 0;
    for (int r = 0; r < WORLDS; r++) {
        uint32_t n = between(2, 200), k = between(1, n < 3 ? 1 : 2), culprits[2];
        double miss = 0.3 * uniform(), alarm = 0.2 * uniform(), p = fmax(miss, alarm);
        draw(n, k, culprits);
        world w = {.n = n, .culprits = culprits, .k = k, .miss = miss, .alarm = alarm, .poison = -1, .untestable = -1};
        lb_search *search = new_search(n, miss, alarm);
        lb_search_verdict v = run_logged(search, &w);
        wrong += v.kind != LB_SEARCH_FOUND || v.n_culprits != k || memcmp(v.culprits, culprits, k * sizeof *culprits);
        /* Bits that one noisy answer gives at least. */
        double capacity = 1 + p * log2(fmax(p, 1e-9)) + (1 - p) * log2(1 - p);
        over = fmax(over, v.trials / ((k * log2((double)n / k) + k + log2(100)) / capacity));
        lb_search_free(search);
    }
    print_message("wrong: %d of %d; trials over the information bound: at most %.1f\n", wrong, WORLDS, over);
    assert_true(wrong <= WORLDS / 50); /* risk is 0.01 */
    assert_true(over < 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(monotone_worlds_are_solved_exactly_and_cheaply),
        cmocka_unit_test(any_of_several_cures_is_answered_by_one_of_them),
        cmocka_unit_test(a_broken_assumption_is_noticed_and_the_answer_stays_sound),
        cmocka_unit_test(a_search_that_was_cut_off_anywhere_ends_in_the_same_answer),
        cmocka_unit_test(noise_of_any_rate_costs_trials_not_correctness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
