/* A detector of rises whose rate of false alarms is stated: of the logarithm of a loss or of a gradient norm.
 *
 *      x = log(number) ──▶ r = x − level ──▶ s1 = second largest of the last 4 r       ──▶ s > threshold(s)?  alarm
 *                               │            s2 = mean of the last 16 (winsorised)
 *                               ▼            s3 = mean of the last 64
 *                level += clipped r / 200
 *
 * The level is an exponential average of innovations clipped at three mean deviations (Huber's psi), so that one outlier hardly moves
 * it. Noise is never assumed to be of a kind: the distribution of each statistic s is taken from its own past, so that correlated
 * noise (a log that smooths) widens the threshold of the means by itself. A threshold lies where a tail beyond all that was
 * seen is crossed with probability p a step. The tail above the 95th percentile u is a generalised Pareto distribution (Pickands
 * 1975; peaks over threshold in streams: Siffer et al., KDD 2017), fitted by moments (Hosking and Wallis 1987), of shape 0 at least:
 *
 *      threshold = u + sigma (1 + 2 / sqrt k) ((F / p)^xi − 1) / xi         F: the share above u, k: how many independent ones that is
 *
 * On logarithms shape 0 is a tail that falls like a power of the number itself, so heavy-tailed norms are covered. p is
 * LB_WATCH_FALSE_ALARMS / 100,000 steps / 6 statistics (three of each of two signals); consecutive crossings are one alarm, so that
 * the true rate is lower. What a step says is learned 128 steps later, and not at all when an alarm came in between: a
 * slow rise does not teach the detector that it is normal. A rise below `least` is none, however sure it is.
 *
 * Stated for one signal: 0.025 false alarms in 100,000 steps. Measured (bench_watch, 11 million steps a shape): none of normal, Laplace,
 * exponential and correlated noise (phi 0.9) on the logarithm; 0.02 of Student's t with 4 and with 3 degrees of freedom. A mixture
 * whose far part is too rare to be seen in 16,000 steps is worse than stated: 0.13 where one step in a hundred has four times the noise. */
#ifndef LB_LEVEL_MODEL_H
#define LB_LEVEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum { LB_LEVEL_STATISTICS = 3, LB_LEVEL_WINDOW = 64, LB_LEVEL_DELAY = 128, LB_TAIL_BINS = 480 };

/* The positive part of a distribution, on a grid of 16 bins an octave from 2^-24 to 2^6; old samples fade. */
typedef struct lb_tail {
    double weight[LB_TAIL_BINS], total;
    double threshold; /* infinite until enough is known */
    uint32_t fresh;   /* samples since it was fitted */
} lb_tail;

typedef struct lb_level_model {
    double least; /* the smallest rise that counts, in nats */
    double level, spread;
    uint64_t n; /* numbers taken */
    double window[LB_LEVEL_WINDOW], recent[4], sum16, sum64;
    uint32_t filled; /* of the window, 0 after an alarm */
    lb_tail tails[LB_LEVEL_STATISTICS];
    float pending[LB_LEVEL_DELAY][LB_LEVEL_STATISTICS];
    uint64_t pended; /* since it was emptied */
    bool out;
    uint32_t out_for, quiet;
    double peak;
    /* of the last step: which statistic was over its threshold, how high it was, and the threshold */
    int statistic;
    double height, threshold;
} lb_level_model;

typedef enum lb_level_answer { LB_LEVEL_QUIET, LB_LEVEL_RISES, LB_LEVEL_OUT, LB_LEVEL_BACK } lb_level_answer;

void lb_level_init(lb_level_model *model, double least);
/* A number above 0. RISES: an alarm begins; BACK: it was over with the step before the last ten. */
lb_level_answer lb_level_take(lb_level_model *model, double number);
/* The run was restarted from before: what was out is over, the level stays. */
void lb_level_restart(lb_level_model *model);
/* Whether one of its statistics has a threshold. */
bool lb_level_is_ready(const lb_level_model *model);
/* The number that it takes for usual now. */
double lb_level_usual(const lb_level_model *model);
/* "the second largest of 4 steps", … */
const char *lb_level_statistic(int statistic);

#endif
