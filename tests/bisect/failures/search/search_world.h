/* Simulated runs for the search: which sites cure, what breaks the assumption, how noisy the answers are. */
#ifndef LB_TESTS_SEARCH_WORLD_H
#define LB_TESTS_SEARCH_WORLD_H

#include "search/group_search.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t seed = 1;

static inline uint64_t random_bits(void)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed * 0x2545f4914f6cdd1du;
}

static inline double uniform(void)
{
    return (double)(random_bits() >> 11) / 9007199254740992.0;
}

/* Changing all of `with` undoes a cure, unless one of `unless` is changed too. */
typedef struct spoiler {
    uint32_t with[2], n_with, unless[2], n_unless;
} spoiler;

/* A simulated run. */
typedef struct world {
    uint32_t n;
    const uint32_t *culprits;
    uint32_t k;
    bool any; /* changing any one of them cures; otherwise all must be changed */
    double miss, alarm;
    int32_t poison;                 /* changing this site undoes every cure, -1: none … */
    uint32_t antidote;              /* … unless this one is left alone */
    const struct spoiler *spoilers; /* each undoes a cure */
    uint32_t n_spoilers;
    int32_t untestable; /* sets that hold this site but not its right neighbour cannot be run, -1: none */
} world;

static inline bool cured(const world *w, const uint64_t *sites)
{
    uint32_t hit = 0;
    for (uint32_t i = 0; i < w->k; i++) hit += lb_site_in(sites, w->culprits[i]);
    bool cure = w->any ? hit > 0 : hit == w->k;
    if (w->poison >= 0 && lb_site_in(sites, (uint32_t)w->poison) && lb_site_in(sites, w->antidote)) cure = false;
    for (uint32_t i = 0; i < w->n_spoilers; i++) {
        const spoiler *s = &w->spoilers[i];
        bool with = true, unless = false;
        for (uint32_t k = 0; k < s->n_with; k++) with &= lb_site_in(sites, s->with[k]);
        for (uint32_t k = 0; k < s->n_unless; k++) unless |= lb_site_in(sites, s->unless[k]);
        if (with && !unless) cure = false;
    }
    return cure;
}

static inline lb_search_outcome outcome(const world *w, const uint64_t *sites)
{
    if (w->untestable >= 0 && lb_site_in(sites, (uint32_t)w->untestable) &&
        !lb_site_in(sites, (uint32_t)w->untestable + 1))
        return LB_OUTCOME_INVALID;
    bool cure = cured(w, sites);
    if (cure ? uniform() < w->alarm : uniform() < w->miss) cure = !cure;
    return cure ? LB_OUTCOME_CURED : LB_OUTCOME_SAME;
}

static inline lb_search *new_search(uint32_t n, double miss, double alarm)
{
    lb_search_options options = LB_SEARCH_OPTIONS_INIT;
    options.sites = n, options.miss = miss, options.alarm = alarm;
    lb_search *search;
    assert_int_equal(lb_search_new(&options, &search, NULL), LB_OK);
    return search;
}

static inline lb_search_verdict run(lb_search *search, const world *w)
{
    for (;;) {
        lb_search_step step;
        lb_search_trial trial;
        assert_int_equal(lb_search_next(search, &step, &trial, NULL), LB_OK);
        if (step == LB_SEARCH_DONE) break;
        assert_int_equal(lb_search_tell(search, trial.sites, outcome(w, trial.sites), NULL), LB_OK);
    }
    lb_search_verdict verdict;
    assert_int_equal(lb_search_verdict_get(search, &verdict, NULL), LB_OK);
    return verdict;
}

static inline int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static inline void draw(uint32_t n, uint32_t k, uint32_t *culprits)
{
    for (uint32_t i = 0; i < k; i++) {
    again:
        culprits[i] = (uint32_t)(random_bits() % n);
        for (uint32_t j = 0; j < i; j++)
            if (culprits[j] == culprits[i]) goto again;
    }
    qsort(culprits, k, sizeof *culprits, ascending);
}

#endif
