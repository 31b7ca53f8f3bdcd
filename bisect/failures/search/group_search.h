/* The search: which of n sites must be changed so that a failing run is cured. Pure: no I/O, no globals, no callback.
 *
 *      loop:  lb_search_next(s, &trial)        LB_SEARCH_TRIAL: run with the sites of `trial` changed, all others not
 *             lb_search_tell(s, trial.sites, outcome)
 *      until  LB_SEARCH_DONE: lb_search_verdict(s)
 *
 * A trial is a set of sites. What "changed" means (skip, widen, replace) is the caller's, and the same for every trial
 * of one search. Nothing but the tells is state: `next` recomputes where the search stands from what it was told, so a
 * search resumes by telling it its journal again, in any order, and asks only what it does not know yet.
 *
 * What is found. C, a smallest set whose change cures: P(C) is cured and P(C without x) is not, for every x in C. One
 * culprit: |C| = 1. Several independent culprits: the change must reach them all, C holds them all. A failure that
 * needs two sites together: changing either cures, and C is the earlier one. (Sites are numbered in causal order.)
 *
 * The assumption is monotony: changing more sites never undoes a cure. It makes "P(U without G) still fails" mean "G
 * holds a site that U cannot do without", which is halved until one site is left: k culprits of n cost about k log2(n /
 * k) + k trials. It is checked at the end (every member of C is put back once) and against all tells; when it does not
 * hold the search falls back on delta debugging, whose result needs no assumption, and says so.
 *
 * Noise. With `miss` or `alarm` above 0 a tell is evidence, not truth: one culprit is sought by a Bayesian posterior
 * over the sites (each trial is the set that halves it), and every answer the proof rests on is repeated until the odds
 * of its being wrong are below `risk`.
 */
#ifndef LB_BISECT_GROUP_SEARCH_H
#define LB_BISECT_GROUP_SEARCH_H

#include <lastbit/error.h>

typedef enum lb_search_outcome {
    LB_OUTCOME_CURED,   /* ran to the end of the window without the failure */
    LB_OUTCOME_SAME,    /* fails, as before */
    LB_OUTCOME_OTHER,   /* fails, in another way: later, elsewhere, another kind */
    LB_OUTCOME_INVALID, /* could not be run to an answer: a decision changed, the swap does not apply here */
    LB_OUTCOME_NOISE    /* inside measured noise: says nothing */
} lb_search_outcome;
/* "cured", "fails-same", "fails-other", "invalid", "noise" */
LB_API const char *lb_search_outcome_name(lb_search_outcome outcome);
LB_API bool lb_search_outcome_parse(const char *name, lb_search_outcome *outcome);

/* Sets of sites: bit i of word i / 64. */
#define LB_SITE_WORDS(n) (((n) + 63) / 64)
static inline bool lb_site_in(const uint64_t *set, uint32_t site)
{
    return set[site / 64] >> (site % 64) & 1;
}

typedef struct lb_search_options {
    size_t size;    /* sizeof(lb_search_options) */
    uint32_t sites; /* 1 … 2^24 */
    /* weight of each site, NULL: all alike; copied. 0 is taken as very small, never as impossible */
    const double *prior;
    double miss;         /* probability that a run which is not cured does not show the failure */
    double alarm;        /* probability that a cured run shows it nevertheless */
    double risk;         /* accepted probability of a wrong verdict, with noise; 0: 0.01 */
    uint32_t max_trials; /* 0: no limit */
} lb_search_options;
#define LB_SEARCH_OPTIONS_INIT {.size = sizeof(lb_search_options)}

typedef struct lb_search lb_search;

/* LB_ERR_INVALID for options out of range. */
LB_API lb_status lb_search_new(const lb_search_options *options, lb_search **search, lb_err *err);
LB_API void lb_search_free(lb_search *search);

/* Why a trial is asked for. */
typedef enum lb_search_purpose {
    LB_PURPOSE_WHOLE,  /* everything changed: does this change cure at all? */
    LB_PURPOSE_NARROW, /* leaves out a part that may be unnecessary */
    LB_PURPOSE_WEIGH,  /* halves the posterior (noise) */
    LB_PURPOSE_REDUCE, /* delta debugging, after the assumption failed */
    LB_PURPOSE_CONFIRM /* checks the answer */
} lb_search_purpose;
LB_API const char *lb_search_purpose_name(lb_search_purpose purpose);

typedef struct lb_search_trial {
    const uint64_t *sites; /* valid until the next call on this search */
    uint32_t count;        /* sites in the set */
    lb_search_purpose purpose;
} lb_search_trial;

typedef enum lb_search_step { LB_SEARCH_TRIAL, LB_SEARCH_DONE } lb_search_step;

/* What to do next. Fails with LB_ERR_NOMEM only. */
LB_API lb_status lb_search_next(lb_search *search, lb_search_step *step, lb_search_trial *trial, lb_err *err);
/* What came out of changing `sites`; need not be the trial that was asked for. */
LB_API lb_status lb_search_tell(lb_search *search, const uint64_t *sites, lb_search_outcome outcome, lb_err *err);

typedef enum lb_search_kind {
    LB_SEARCH_FOUND,    /* `culprits` is smallest */
    LB_SEARCH_NOTHING,  /* changing everything does not cure */
    LB_SEARCH_UNDECIDED /* out of trials, or too many could not be run: `culprits` cures but may not be smallest */
} lb_search_kind;

typedef struct lb_search_verdict {
    lb_search_kind kind;
    const uint32_t *culprits; /* ascending; valid until the next call on this search */
    uint32_t n_culprits;
    uint32_t trials; /* told so far */
    bool monotone;   /* no tell contradicts the assumption */
    double risk;     /* bound on the probability of being wrong, by the noise given; 0 without noise */
    char note[200];  /* what the assumption check found, in words; "" when it holds */
} lb_search_verdict;
/* Meaningful once `next` says LB_SEARCH_DONE; before that it tells the best answer so far. */
LB_API lb_status lb_search_verdict_get(lb_search *search, lb_search_verdict *verdict, lb_err *err);

#endif
