/* A detector whose rate of false alarms is stated, of the logarithm of a loss or of a gradient norm: spike, step,
 * drift, wider noise.
 *
 *      x = log(number) ─▶ u = x - expected (near: 24 steps, far: 160) ─▶ e = u - phi u' ─▶ v = e / deviation, clipped at 8
 *                              local_level.h                              whitened                │
 *                    ┌────────────────────────────────────────────────────────────────────────────┘
 *                    ├─▶ spike   v itself, the second and third highest of 4: above the tail of the past (far_tail.h)
 *                    ├─▶ step    sums of near v, kappa 1, 2, 4 ─┐
 *                    ├─▶ drift   sums of far v, kappa 0.3, 0.7 ─┼─ above -log p / theta (rising_sum.h, noise_law.h)
 *                    └─▶ spread  sum of |v - its last mean|, kappa 1.7 ┘
 *
 * The model of the noise: v are independent draws of one law, which is not assumed to be of a kind but taken from what
 * was seen; a correlation of the first order is removed (phi), what is left of it widens the thresholds by way of the
 * sums' own excursions. A loss falls, which the levels follow with half of their slope; what rises is followed late.
 * Nothing is judged before 64 steps, and what a step says is learned 128 steps later (a quarter of the run so far, if
 * that is less), and not at all when an alarm came in between: a slow rise does not teach the detector that it is
 * normal. A rise smaller than `least` plus one digit does not count, however sure it is; nor does one as large as a
 * series that wanders makes by itself: its deviation over the steps that a level looks back, and more by the root of
 * the time over more steps. Wider noise has to be wider than the width becomes by chance; a past holds few independent
 * widths, so that the bounds of that are wide.
 *
 * p of step n is LB_WATCH_FALSE_ALARMS x log(1000) / ((n + 1000) log²(n + 1000)) / 18 statistics (nine of each of two
 * signals): the sum over all steps of a run of any length is below LB_WATCH_FALSE_ALARMS, the probability that a run
 * without an event has an alarm. This holds where the model of the noise does; where it does not (noise whose width
 * wanders, memory that the first order does not catch) it is what was measured that counts: tests/BENCHMARKS.md. */
#ifndef LB_LEVEL_MODEL_H
#define LB_LEVEL_MODEL_H

#include "levels/far_tail.h"
#include "levels/local_level.h"
#include "levels/noise_memory.h"
#include "levels/rising_sum.h"

#include <stdbool.h>
#include <stdint.h>

enum { LB_LEVEL_WINDOW = 16, LB_LEVEL_DELAY = 128, LB_LEVEL_BEGIN = 64 };
typedef enum lb_level_statistic {
    LB_LEVEL_SPIKE,
    LB_LEVEL_SPIKES,
    LB_LEVEL_THREE_SPIKES,
    LB_LEVEL_STEP_1,
    LB_LEVEL_STEP_2,
    LB_LEVEL_STEP_4,
    LB_LEVEL_DRIFT_03,
    LB_LEVEL_DRIFT_07,
    LB_LEVEL_SPREAD,
    LB_LEVEL_STATISTICS
} lb_level_statistic;
enum { LB_LEVEL_SUMS = LB_LEVEL_STATISTICS - LB_LEVEL_STEP_1 };

/* Innovations of one level, whitened and standardised. */
typedef struct lb_level_noise {
    lb_local_level at;
    double before;      /* u of the step before */
    double before_that; /* and of the one before it */
    /* of u, u², u u' and u u'', clipped, about the mean: phi, and how much of u goes on for long */
    double mean, square, product, product_of_two;
    double deviation;       /* mean of |e| */
    bool fresh;             /* the level was set anew, and no number has followed it */
    double lately, scatter; /* mean of the last 32 e, and of their distance from it: noise may be wide for a while */
    double centre, centred; /* mean of e in deviations; of the far level alone, which lies low: 1 */
    double digit;           /* that the log prints last, in nats */
    uint64_t learned;
    lb_noise_law law;
    lb_noise_memory memory;
} lb_level_noise;

/* What a step will teach when it has stood for some time. */
typedef struct lb_level_pending {
    float near[3], far[3]; /* u of this step and of the two before */
    float v, spread, second, third, width;
} lb_level_pending;

/* Of the logarithm of how far the last numbers scatter. */
typedef struct lb_level_width {
    double mean, square; /* square: of the distance from the mean */
    uint64_t n;
} lb_level_width;

typedef struct lb_level_model {
    double least;         /* the smallest rise that counts, in nats */
    double number, digit; /* the last one; the smallest difference of two */
    uint64_t n;           /* numbers taken */
    uint64_t settled;     /* from then on the spread is judged: levels that were set anew have found their place */
    double stopped;       /* where the level was when the run was restarted; 0: nothing to choose from */
    lb_level_noise near, far;
    lb_noise_law absolute;
    lb_noise_memory absolute_memory;
    lb_level_width width;
    lb_rising_sum sums[LB_LEVEL_SUMS];
    lb_far_tail single, second, third;
    double single_height, second_height, third_height;
    uint64_t next_fit;
    double logp;
    double recent[4];
    lb_level_pending pending[LB_LEVEL_DELAY];
    uint64_t pended, taken; /* since it was emptied */
    bool out;
    uint32_t out_for, quiet;
    /* while out: the level that it left, its peak, and how far above the level the last numbers were */
    double base, peak, window[LB_LEVEL_WINDOW];
    /* of the last alarm: which statistic was over its threshold, how far the numbers were above the level, and over how
     * many steps */
    lb_level_statistic statistic;
    double height;
    uint32_t length;
} lb_level_model;

typedef enum lb_level_answer { LB_LEVEL_QUIET, LB_LEVEL_RISES, LB_LEVEL_OUT, LB_LEVEL_BACK } lb_level_answer;

void lb_level_init(lb_level_model *model, double least);
/* A number above 0. RISES: an alarm begins; BACK: it was over with the step before the last ten. */
lb_level_answer lb_level_take(lb_level_model *model, double number);
/* The run was restarted from before, where the level was `usual` (0: not known), and goes over `again` steps again:
 * what was out is over, the law of the noise stays, and whether it got wider is asked behind them. */
void lb_level_restart(lb_level_model *model, double usual, uint64_t again);
/* Whether it has seen enough to judge. */
bool lb_level_is_ready(const lb_level_model *model);
/* The number that it takes for usual now. */
double lb_level_usual(const lb_level_model *model);

#endif
