/* A detector of rises whose rate of false alarms is stated: see level_model.h. */
#include "level_model.h"

#include <lastbit/watch.h>

#include <math.h>
#include <string.h>

#define RATE (1.0 / 200) /* of the level */
#define SPREAD_RATE (1. / 100)
#define CLIP 3.0       /* of an innovation, in mean deviations */
#define WINSOR 8.0     /* of what goes into means */
#define QUANTILE 0.05  /* what counts as tail */
#define RARE 0.01      /* and as its far part */
#define FORGET 16384.0 /* samples after which old ones count half */
#define LEAST_SAMPLES 256.0
#define LEAST_TAIL 4.0 /* independent samples in the tail */
#define LARGEST_SHAPE 0.4
#define SILENT 0.05 /* a spread below so much of `least`: numbers without noise */
#define BACK 0.1    /* of its peak: the rise is over */
enum { FIT_EVERY = 64, QUIET_STEPS = 10, LONGEST = 2000 };

static const double P = LB_WATCH_FALSE_ALARMS / 100000 / (2 * LB_LEVEL_STATISTICS);
static const double WIDTH[LB_LEVEL_STATISTICS] = {2, 16, 64}; /* steps that one independent sample takes */

const char *lb_level_statistic(int statistic)
{
    static const char *const names[LB_LEVEL_STATISTICS] = {"the second highest of 4 steps", "the mean of 16 steps",
                                                           "the mean of 64 steps"};
    return names[statistic];
}

/* ---- the tail of one statistic -------------------------------------------------------------------------------------- */

enum { OCTAVE = 16, LOWEST = -24 };

static int bin_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> 52 & 2047) - 1023, part = (int)(bits >> 48 & 15);
    const int bin = (exponent - LOWEST) * OCTAVE + part;
    return bin < 0 ? 0 : bin >= LB_TAIL_BINS ? LB_TAIL_BINS - 1 : bin;
}

static double middle_of(int bin)
{
    return ldexp(1 + (bin % OCTAVE + 0.5) / OCTAVE, bin / OCTAVE + LOWEST);
}

/* Lower border of the bins that hold the highest `share` of all. */
static int tail_begin(const lb_tail *t, double share, double *weight)
{
    int bin = LB_TAIL_BINS;
    *weight = 0;
    while (bin > 0 && *weight < share * t->total) *weight += t->weight[--bin];
    return bin;
}

/* The height that the tail above the highest `share` crosses with probability P; infinite where too few samples are in it. */
static double far_quantile(const lb_tail *t, double share, double width)
{
    double k, sum = 0, squares = 0;
    const int begin = tail_begin(t, share, &k);
    const double independent = k / width, u = ldexp(1 + begin % OCTAVE / (double)OCTAVE, begin / OCTAVE + LOWEST);
    if (t->total < LEAST_SAMPLES || independent < LEAST_TAIL) return INFINITY;
    for (int i = begin; i < LB_TAIL_BINS; i++) {
        const double excess = middle_of(i) - u;
        sum += t->weight[i] * excess, squares += t->weight[i] * excess * excess;
    }
    const double mean = sum / k, variance = squares / k - mean * mean;
    double shape = variance > 0 ? 0.5 * (1 - mean * mean / variance) : 0;
    shape = shape < 0 ? 0 : shape > LARGEST_SHAPE ? LARGEST_SHAPE : shape;
    const double scale = mean * (1 - shape) * (1 + 2 / sqrt(independent)), far = log(k / t->total / P);
    return u + scale * (shape > 1e-3 ? expm1(shape * far) / shape : far);
}

/* A mixture (noise, and rare bursts) has another tail further out: where that can be seen the higher threshold counts. */
static void fit(lb_tail *t, double width, bool silent)
{
    const double near = far_quantile(t, QUANTILE, width), far = far_quantile(t, RARE, width);
    t->threshold = isfinite(far) ? fmax(near, far) : near;
    if (silent && !isfinite(near) && t->total >= LEAST_SAMPLES)
        t->threshold = 0; /* no tail to speak of: `least` decides */
}

static void learn(lb_tail *t, double s, double width, bool silent)
{
    t->total += 1;
    if (s > 0) t->weight[bin_of(s)] += 1;
    if (++t->fresh < FIT_EVERY) return;
    t->fresh = 0;
    if (t->total >= FORGET) {
        for (int i = 0; i < LB_TAIL_BINS; i++) t->weight[i] *= 0.5;
        t->total *= 0.5;
    }
    fit(t, width, silent);
}

/* ---- the statistics ------------------------------------------------------------------------------------------------- */

static double second_of(const double r[4])
{
    const double a = fmax(r[0], r[1]), b = fmin(r[0], r[1]), c = fmax(r[2], r[3]), d = fmin(r[2], r[3]);
    return a > c ? fmax(b, c) : fmax(a, d);
}

static void push(lb_level_model *m, double r)
{
    const uint32_t at = m->n % LB_LEVEL_WINDOW;
    const double limit = WINSOR * m->spread, soft = m->out ? r : fmax(-limit, fmin(limit, r));
    m->recent[m->n % 4] = r;
    m->sum64 += soft - m->window[at];
    m->sum16 += soft - m->window[(at + LB_LEVEL_WINDOW - 16) % LB_LEVEL_WINDOW];
    m->window[at] = soft;
    if (m->filled < LB_LEVEL_WINDOW) m->filled++;
    if (at != LB_LEVEL_WINDOW - 1) return;
    m->sum64 = m->sum16 = 0; /* what rounding left in the sums goes */
    for (int i = 0; i < LB_LEVEL_WINDOW; i++) {
        m->sum64 += m->window[i];
        if (i >= LB_LEVEL_WINDOW - 16) m->sum16 += m->window[i];
    }
}

static void empty(lb_level_model *m)
{
    memset(m->window, 0, sizeof m->window);
    m->sum16 = m->sum64 = 0;
    m->filled = 0, m->pended = 0;
}

/* Sets what is over its threshold by most; false: nothing is. */
static bool look(lb_level_model *m, const double s[LB_LEVEL_STATISTICS])
{
    static const uint32_t needs[LB_LEVEL_STATISTICS] = {4, 16, 64};
    double most = 1;
    for (int i = 0; i < LB_LEVEL_STATISTICS; i++) {
        const double threshold = fmax(m->tails[i].threshold, m->least);
        if (m->filled < needs[i] || !(s[i] > most * threshold)) continue;
        most = s[i] / threshold;
        m->statistic = i, m->height = s[i], m->threshold = threshold;
    }
    return most > 1;
}

/* ---- the life of an alarm ------------------------------------------------------------------------------------------- */

static void settle(lb_level_model *m, double offset)
{
    m->level += offset;
    m->out = false;
    empty(m);
}

/* Mean of the last `n` residuals, at most LB_LEVEL_WINDOW. */
static double mean_of_last(const lb_level_model *m, uint32_t n)
{
    double sum = 0;
    for (uint32_t back = 1; back <= n; back++) sum += m->window[(m->n - back) % LB_LEVEL_WINDOW];
    return sum / n;
}

/* Back is a tenth of the peak or what noise explains, by the last four steps: longer windows would still hold what is over. */
static lb_level_answer stay_out(lb_level_model *m, const double s[LB_LEVEL_STATISTICS])
{
    const double mean = mean_of_last(m, 4), second = fmax(m->tails[0].threshold, m->least);
    m->peak = fmax(m->peak, mean);
    m->out_for++;
    const double noise = 0.5 * fmin(fmax(m->tails[1].threshold, m->least), second), back = BACK * m->peak;
    const bool inside = m->out_for >= 4 && mean < fmax(noise, back) && s[0] < fmax(second, back);
    m->quiet = inside ? m->quiet + 1 : 0;
    if (m->quiet < QUIET_STEPS && m->out_for < LONGEST) return LB_LEVEL_OUT;
    settle(m, mean_of_last(m, QUIET_STEPS));
    return LB_LEVEL_BACK;
}

static void follow(lb_level_model *m, double r, const double s[LB_LEVEL_STATISTICS])
{
    const double rate = fmax(RATE, 1.0 / (double)(m->n + 1)), spread_rate = fmax(SPREAD_RATE, 1.0 / (double)(m->n + 1));
    const double clip = CLIP * m->spread;
    m->level += rate * (m->n < 16 ? r : fmax(-clip, fmin(clip, r)));
    m->spread += spread_rate * (fmin(fabs(r), m->n < 16 ? INFINITY : 5 * m->spread) - m->spread);
    m->spread = fmax(m->spread, 1e-9);
    float *slot = m->pending[m->pended % LB_LEVEL_DELAY];
    if (m->pended++ >= LB_LEVEL_DELAY)
        for (int i = 0; i < LB_LEVEL_STATISTICS; i++)
            learn(&m->tails[i], (double)slot[i], WIDTH[i], m->spread < SILENT * m->least);
    for (int i = 0; i < LB_LEVEL_STATISTICS; i++) slot[i] = (float)s[i];
}

void lb_level_init(lb_level_model *m, double least)
{
    memset(m, 0, sizeof *m);
    m->least = least;
    for (int i = 0; i < LB_LEVEL_STATISTICS; i++) m->tails[i].threshold = INFINITY;
}

lb_level_answer lb_level_take(lb_level_model *m, double number)
{
    const double x = log(number), r = m->n ? x - m->level : 0;
    if (!m->n) m->level = x;
    push(m, r);
    m->n++;
    const double s[LB_LEVEL_STATISTICS] = {second_of(m->recent), m->sum16 / 16, m->sum64 / LB_LEVEL_WINDOW};
    if (m->out) return stay_out(m, s);
    if (look(m, s)) {
        m->out = true, m->out_for = m->quiet = 0, m->peak = s[1], m->pended = 0;
        return LB_LEVEL_RISES;
    }
    follow(m, r, s);
    return LB_LEVEL_QUIET;
}

void lb_level_restart(lb_level_model *m)
{
    if (m->out) settle(m, 0);
}

bool lb_level_is_ready(const lb_level_model *m)
{
    for (int i = 0; i < LB_LEVEL_STATISTICS; i++)
        if (isfinite(m->tails[i].threshold)) return true;
    return false;
}

double lb_level_usual(const lb_level_model *m)
{
    return exp(m->level);
}
