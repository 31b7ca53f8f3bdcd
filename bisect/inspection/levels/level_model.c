/* A detector of rises whose rate of false alarms is stated: see level_model.h. */
#include "levels/level_model.h"

#include <lastbit/watch.h>

#include <math.h>
#include <string.h>

#define SPAN 24.0
#define FAR_UP 0.15 /* of the far level: 160 steps upwards, 24 downwards */
#define CLIP 3.0    /* of an innovation that a level follows, in mean deviations */
#define LATELY (1.0 / 32)
#define LEARN 0.01 /* rate of the deviation */
#define LARGEST_PHI 0.98
#define SPIKE_LOGP 16.0
#define SINGLE_HEIGHT 22.0
#define SECOND_HEIGHT 8.0
#define THIRD_HEIGHT 5.0
#define TO_NORMAL 1.2533141373155 /* standard deviation of a normal number by its mean deviation */
#define BACK 0.1                  /* of its peak: the rise is over */
#define WANDERS 6.0
#define WIDER 3.5 /* times the usual deviation: noise that is wider */
enum {
    SPREAD_BEGIN = 640,
    SHORT_SPIKE = 16,
    DRIFT_BEGIN = 256,
    LONGEST_RISE = 300,
    SETTLING = 64,
    QUIET_STEPS = 10,
    LONGEST = 2000,
    WIDTHS = 4096, /* numbers after which old widths fade */
    LONGEST_FIT = 256
};

static const double KAPPA[LB_LEVEL_SUMS] = {1, 2, 4, 0.3, 0.7, 1.7};

/* ---- the noise of one level -------------------------------------------------------------------------------------- */

/* What rounding adds to the square is no part of what u would be. */
static double phi_of(const lb_level_noise *s)
{
    const double square = fmax(s->square - s->digit * s->digit / 12, s->product);
    return square > 0 ? fmax(0, fmin(LARGEST_PHI, s->product / square)) : 0;
}

static double clipped(double x, double limit)
{
    return fmax(-limit, fmin(limit, x));
}

/* At least a thousandth of what counts at all: numbers without noise; and a third of the last digit that the log
 * prints. */
static double deviation_of(const lb_level_noise *s, double least)
{
    return fmax(TO_NORMAL * fmax(s->deviation, 1e-3 * least), s->digit / 3);
}

/* The same where the noise is wider just now. What rises does not widen it: scatter is about the mean of the last
 * numbers. */
static double deviation_now(const lb_level_noise *s, double least)
{
    return fmax(deviation_of(s, least), TO_NORMAL * s->scatter);
}

static void scatter(lb_level_noise *s, double e)
{
    const double off = clipped(e - s->lately, 5 * s->deviation);
    s->lately += LATELY * off;
    s->scatter += LATELY * (fabs(off) - s->scatter);
}

/* Numbers that means of u's squares and products are over: their rate forgets older ones. */
static double remembered(const lb_level_noise *s)
{
    return fmin((double)s->learned, 4 / LEARN);
}

/* How far u scatters at most. Its square is a mean over numbers of which (1 - phi) / (1 + phi) are independent:
 * standard errors of a variance are added; and where the noise is wider just now, that counts. */
static double scatter_of(const lb_level_noise *s, double least)
{
    const double phi = phi_of(s), seen = fmax(remembered(s) * (1 - phi) / (1 + phi), 1);
    const double square = s->square * (1 + LB_NOISE_MARGIN * sqrt(2 / seen));
    return fmax(fmax(sqrt(square), TO_NORMAL * s->scatter / sqrt(1 - phi * phi)), 1e-3 * least);
}

/* What the number before does not explain; behind a level that was set anew there is none, and u scatters as far as it
 * ever does. */
static double whitened(const lb_level_noise *s, double u)
{
    const double phi = phi_of(s);
    return s->fresh ? u * sqrt(1 - phi * phi) : u - phi * s->before;
}

/* The last digit as it shows: the smallest difference of two numbers that follow each other. */
static void take_digit(lb_level_model *m, double number)
{
    const double apart = fabs(number - m->number);
    if (m->n && apart > 0 && (m->digit == 0 || apart < m->digit)) m->digit = apart;
    m->number = number;
    m->near.digit = m->far.digit = log1p(m->digit / number);
}

static void learn_noise(lb_level_noise *s, const float u[3], double least)
{
    const uint64_t k = s->learned++;
    const double rate = fmax(0.5 * LEARN, 1.0 / (double)(k + 1)), e = (double)u[0] - phi_of(s) * (double)u[1];
    const double limit = k < 16 ? INFINITY : 5 * sqrt(s->square);
    double off[3];
    for (int i = 0; i < 3; i++) off[i] = clipped((double)u[i] - s->mean, limit);
    s->mean += fmax(2 * LEARN, rate) * off[0];
    s->square += rate * (off[0] * off[0] - s->square);
    s->product += rate * (off[0] * off[1] - s->product);
    s->product_of_two += rate * (off[0] * off[2] - s->product_of_two);
    s->deviation += fmax(LEARN, rate) * (fmin(fabs(e), k < 16 ? INFINITY : 5 * s->deviation) - s->deviation);
    if (k < 32) return;
    const double v = e / deviation_of(s, least) - s->centre;
    s->centre += fmax(0.5 * LEARN, 1.0 / (double)(k + 1)) * clipped(v, 4) * s->centred;
    lb_noise_law_add(&s->law, v);
    lb_noise_memory_add(&s->memory, clipped(v, LB_NOISE_CLIP));
}

/* ---- learning ---------------------------------------------------------------------------------------------------- */

static double log_p(uint64_t n)
{
    const double at = (double)n + 1000, spent = log(at);
    return -log(LB_WATCH_FALSE_ALARMS * log(1000) / (at * spent * spent) / (2 * LB_LEVEL_STATISTICS));
}

static void fit(lb_level_model *m)
{
    if (m->n < m->next_fit) return;
    const uint64_t pause = m->n / 16;
    m->next_fit = m->n + (pause < 8 ? 8 : pause > LONGEST_FIT ? LONGEST_FIT : pause);
    m->logp = log_p(m->n);
    const double near = lb_noise_memory_of(&m->near.memory), spread = lb_noise_memory_of(&m->absolute_memory);
    const double phi = phi_of(&m->far), far = lb_noise_memory_of(&m->far.memory) * sqrt((1 + phi) / (1 - phi));
    for (int i = 0; i < LB_LEVEL_SUMS; i++) {
        const int statistic = LB_LEVEL_STEP_1 + i;
        if (statistic == LB_LEVEL_SPREAD)
            lb_rising_sum_fit(&m->sums[i], &m->absolute, spread);
        else if (statistic >= LB_LEVEL_DRIFT_03)
            lb_rising_sum_fit(&m->sums[i], &m->far.law, far);
        else /* large numbers come together where the noise is wide for a while */
            lb_rising_sum_fit(&m->sums[i], &m->near.law, statistic > LB_LEVEL_STEP_1 ? fmax(near, 0.6 * spread) : near);
    }
    m->single_height = fmax(SINGLE_HEIGHT, lb_far_tail_height(&m->single, 1, SPIKE_LOGP));
    /* Two of four are as rare as one is, twice, in six ways: that shows where two were hardly ever seen. */
    const double twice = lb_far_tail_height(&m->single, 1, 0.5 * (1.2 * SPIKE_LOGP + log(6)));
    /* They are not whitened: of numbers near each other one is independent in (1 + phi) / (1 - phi). */
    const double alike = (1 + phi_of(&m->near)) / (1 - phi_of(&m->near));
    m->second_height = fmax(fmax(SECOND_HEIGHT, isfinite(twice) ? twice : 0),
                            lb_far_tail_height(&m->second, 2 * alike, 1.2 * SPIKE_LOGP));
    m->third_height = fmax(THIRD_HEIGHT, lb_far_tail_height(&m->third, 3 * alike, SPIKE_LOGP));
}

static void learn_width(lb_level_width *w, double width)
{
    const double rate = fmax(1.0 / WIDTHS, 1.0 / (double)++w->n), off = width - w->mean;
    w->mean += rate * off;
    w->square += rate * ((1 - rate) * off * off - w->square);
}

static void learn(lb_level_model *m, const lb_level_pending *p)
{
    learn_noise(&m->near, p->near, m->least);
    learn_noise(&m->far, p->far, m->least);
    if (m->near.learned <= 32) return;
    learn_width(&m->width, (double)p->width);
    lb_noise_law_add(&m->absolute, (double)p->spread);
    lb_noise_memory_add(&m->absolute_memory, fmin((double)p->spread, LB_NOISE_CLIP));
    lb_far_tail_add(&m->single, (double)p->v);
    lb_far_tail_add(&m->second, (double)p->second);
    lb_far_tail_add(&m->third, (double)p->third);
}

static void learn_later(lb_level_model *m, const lb_level_pending *step)
{
    if (m->n < LB_LEVEL_BEGIN) {
        learn(m, step);
        return;
    }
    const uint64_t delay = m->n / 4 < LB_LEVEL_DELAY ? m->n / 4 : LB_LEVEL_DELAY;
    for (; m->pended - m->taken >= delay; m->taken++) learn(m, &m->pending[m->taken % LB_LEVEL_DELAY]);
    m->pending[m->pended++ % LB_LEVEL_DELAY] = *step;
}

/* ---- judging ----------------------------------------------------------------------------------------------------- */

static double second_of(const double r[4])
{
    const double a = fmax(r[0], r[1]), b = fmin(r[0], r[1]), c = fmax(r[2], r[3]), d = fmin(r[2], r[3]);
    return a > c ? fmax(b, c) : fmax(a, d);
}

/* The third highest of four is the second lowest. */
static double third_of(const double r[4])
{
    const double turned[4] = {-r[0], -r[1], -r[2], -r[3]};
    return -second_of(turned);
}

static bool is_over(lb_level_model *m, lb_level_statistic statistic, double height, uint32_t length)
{
    m->statistic = statistic, m->height = height, m->length = length;
    return true;
}

/* Numbers that wander, each near the one before, drift by a few of their deviations at any time. Where white noise lies
 * over what wanders, correlations of the first and the second order are c phi and c phi², of which c is the share that
 * wanders: its deviation, times phi², is the root of c phi^4. A past of n steps, as far as it is remembered, shows as
 * much of it as n (1 - phi) / (1 + phi) independent numbers would; a standard error of the variance is added. */
static double wandering(const lb_level_noise *s)
{
    const double second = fmin(s->product_of_two, LARGEST_PHI * s->product);
    if (s->product <= 0 || second <= 0) return 0;
    const double phi = second / s->product, seen = remembered(s) * (1 - phi) / (1 + phi);
    return sqrt(second * phi * phi * (1 + sqrt(2 / seen)));
}

/* The smallest rise that counts: half a digit of the number and half a digit of the level are rounding. */
static double least_rise(const lb_level_model *m)
{
    return m->least + m->near.digit;
}

/* What wanders moves by its deviation while the level follows it, and diffuses: over so many times as long by their
 * root. */
static double least_drift(const lb_level_model *m, uint32_t length)
{
    const double spans = fmax(length / SPAN, 1);
    return m->n < DRIFT_BEGIN ? INFINITY : fmax(least_rise(m), WANDERS * wandering(&m->far) * sqrt(spans));
}

/* By how much a variance that so many independent draws show may be too low: of few draws its law is far from normal.
 * The lower quantile of chi-square at LB_NOISE_MARGIN deviations (Wilson and Hilferty 1931). */
static double most_of_variance(double draws)
{
    const double part = 2 / (9 * draws), root = 1 - part - LB_NOISE_MARGIN * sqrt(part);
    return root > 0 ? 1 / (root * root * root) : INFINITY;
}

/* How many times its usual width the noise may have by chance. Widths are lognormal, as far as they were seen: means of
 * 32 numbers, of which one in 64 is independent of those before. */
static double widest(const lb_level_model *m)
{
    const double seen = fmin((double)m->width.n + 1, 2.0 * WIDTHS) / 64;
    const double square = m->width.square > 0 ? m->width.square * most_of_variance(seen) : 0;
    return exp(m->width.mean + sqrt(2 * fmax(m->logp - log(64), 1) * square));
}

static bool judge_sums(lb_level_model *m)
{
    for (int i = 0; i < LB_LEVEL_SUMS; i++) {
        const lb_rising_sum *s = &m->sums[i];
        const double rise = lb_rising_sum_rise(s);
        const bool spread = i == LB_LEVEL_SPREAD - LB_LEVEL_STEP_1;
        if (spread && m->n < SPREAD_BEGIN) continue; /* how wide noise may be for a while is seen late */
        const double wider = fmax(WIDER * m->near.deviation, widest(m)) - m->near.deviation;
        /* What rises for longer than the level looks back is a drift, whatever sees it. */
        const bool drifts = i >= LB_LEVEL_DRIFT_03 - LB_LEVEL_STEP_1 || s->length > SPAN;
        const double least = spread ? fmax(0.5 * m->least, wider) : drifts ? least_drift(m, s->length) : least_rise(m);
        if (s->g > 0 && rise > least && s->g > lb_rising_sum_threshold(s, m->logp))
            return is_over(m, (lb_level_statistic)(LB_LEVEL_STEP_1 + i), rise, s->length);
    }
    return false;
}

/* Whether a statistic is over its threshold; u: of this step. */
static bool judge(lb_level_model *m, double u, const lb_level_pending *step)
{
    if (u <= least_rise(m)) return judge_sums(m);
    if ((double)step->v > m->single_height) return is_over(m, LB_LEVEL_SPIKE, u, 1);
    if ((double)step->second > m->second_height) return is_over(m, LB_LEVEL_SPIKES, u, 2);
    if ((double)step->third > m->third_height) return is_over(m, LB_LEVEL_THREE_SPIKES, u, 3);
    return judge_sums(m);
}

/* What has risen slowly for so long is how the run goes. */
static void end_long_rises(lb_level_model *m)
{
    for (int i = 0; i < LB_LEVEL_SUMS; i++) {
        const double told = m->sums[i].told;
        const int statistic = LB_LEVEL_STEP_1 + i;
        if (m->sums[i].length < LONGEST_RISE) continue;
        lb_rising_sum_drop(&m->sums[i]);
        if (statistic < LB_LEVEL_DRIFT_03)
            m->near.at.level = fmax(m->near.at.level, told);
        else if (statistic < LB_LEVEL_SPREAD)
            m->far.at.level = m->near.at.level, m->far.before = m->near.before;
    }
}

/* Whether something rises for certain, though not by as much as counts: it should not become what is usual. */
static bool is_in_doubt(const lb_level_model *m)
{
    for (int i = 0; i < LB_LEVEL_SUMS; i++)
        if (m->sums[i].g > lb_rising_sum_threshold(&m->sums[i], m->logp)) return true;
    return false;
}

static double ease_of(const lb_level_model *m)
{
    double most = 0;
    for (int i = 0; i < LB_LEVEL_SUMS - 1; i++)
        most = fmax(most, m->sums[i].g / lb_rising_sum_threshold(&m->sums[i], m->logp));
    return most > 0.3 ? 0.2 : 1;
}

/* ---- the life of an alarm ---------------------------------------------------------------------------------------- */

static void drop_sums(lb_level_model *m)
{
    for (int i = 0; i < LB_LEVEL_SUMS; i++) lb_rising_sum_drop(&m->sums[i]);
    memset(m->recent, 0, sizeof m->recent);
    m->pended = m->taken = 0;
    lb_noise_memory_break(&m->near.memory), lb_noise_memory_break(&m->far.memory),
        lb_noise_memory_break(&m->absolute_memory);
}

static void settle(lb_level_model *m, double level)
{
    lb_local_level_move(&m->near.at, level);
    lb_local_level_move(&m->far.at, level);
    m->near.before = m->far.before = m->near.before_that = m->far.before_that = 0;
    m->near.fresh = m->far.fresh = true;
    m->settled = m->n + SETTLING;
    m->out = false;
    drop_sums(m);
}

/* The first number after a restart. A level that wanders does not go back with the step: where the run stood higher
 * when it stopped than it did then, a number in between is usual. */
static void go_on(lb_level_model *m, double x)
{
    const double then = m->near.at.level;
    if (x > then && m->stopped > then) m->near.at.level = m->far.at.level = fmin(x, m->stopped);
    m->stopped = 0;
}

static void leave(lb_level_model *m, double x)
{
    m->out = true, m->out_for = m->quiet = 0;
    m->base = lb_local_level_expected(&m->near.at);
    if (m->statistic >= LB_LEVEL_STEP_1 && m->statistic < LB_LEVEL_SPREAD)
        m->base = fmin(m->base, m->sums[m->statistic - LB_LEVEL_STEP_1].from);
    for (int i = 0; i < LB_LEVEL_WINDOW; i++) m->window[i] = 0;
    m->peak = m->window[m->n % LB_LEVEL_WINDOW] = x - m->base;
    drop_sums(m);
}

/* Mean of the last `k` numbers above the base, and of their distance from that mean. */
static double mean_of_last(const lb_level_model *m, uint32_t k, double *distance)
{
    double sum = 0;
    *distance = 0;
    for (uint32_t back = 0; back < k; back++) sum += m->window[(m->n - back) % LB_LEVEL_WINDOW] / k;
    for (uint32_t back = 0; back < k; back++) *distance += fabs(m->window[(m->n - back) % LB_LEVEL_WINDOW] - sum) / k;
    return sum;
}

/* Back is a tenth of the peak or what noise explains, by the last four steps: longer windows would still hold what is
 * over. */
static lb_level_answer stay_out(lb_level_model *m, double x)
{
    double distance;
    m->window[m->n % LB_LEVEL_WINDOW] = x - m->base;
    const double mean = mean_of_last(m, 4, &distance), noise = sqrt(m->near.square);
    m->peak = fmax(m->peak, mean);
    m->out_for++;
    const double back = fmax(fmax(2 * noise, 0.5 * m->least), BACK * m->peak);
    const bool inside = m->out_for >= 4 && mean < back && x - m->base < 2 * back;
    m->quiet = inside ? m->quiet + 1 : 0;
    if (m->quiet < QUIET_STEPS && m->out_for < LONGEST) return LB_LEVEL_OUT;
    const double level = m->base + mean_of_last(m, QUIET_STEPS, &distance);
    if (m->statistic == LB_LEVEL_SPREAD) {
        const double wider = fmax(1, distance / fmax(m->near.deviation, 1e-9));
        m->near.deviation *= wider, m->far.deviation *= wider;
        m->near.square *= wider * wider, m->near.product *= wider * wider;
        m->far.square *= wider * wider, m->far.product *= wider * wider;
    }
    /* A spike that was over at once is a number that this run may have: many of them make its tail. */
    if (m->out_for <= SHORT_SPIKE) lb_far_tail_add(&m->single, m->peak / deviation_of(&m->near, m->least));
    settle(m, level);
    return LB_LEVEL_BACK;
}

static void take_sums(lb_level_model *m, double x, double near, double far, double e, double spread)
{
    const double at_near = x - near, v = e / deviation_now(&m->near, m->least);
    const double w = whitened(&m->far, far) / deviation_now(&m->far, m->least) - m->far.centre;
    for (int i = 0; i < LB_LEVEL_SUMS; i++) {
        const int statistic = LB_LEVEL_STEP_1 + i;
        lb_rising_sum *s = &m->sums[i];
        if (statistic == LB_LEVEL_SPREAD && m->n < m->settled) /* the levels are still finding their place */
            lb_rising_sum_drop(s);
        else if (statistic == LB_LEVEL_SPREAD)
            lb_rising_sum_take(s, fmin(spread, LB_NOISE_CLIP), spread * deviation_of(&m->near, m->least),
                               m->near.deviation);
        else if (statistic >= LB_LEVEL_DRIFT_03)
            lb_rising_sum_take(s, clipped(w, LB_NOISE_CLIP), x, at_near);
        else
            lb_rising_sum_take(s, clipped(v, LB_NOISE_CLIP), x, at_near);
    }
}

void lb_level_init(lb_level_model *m, double least)
{
    memset(m, 0, sizeof *m);
    m->least = least;
    m->near.at.span = m->far.at.span = SPAN, m->near.at.up = 1, m->far.at.up = FAR_UP;
    m->far.centred = 1;
    lb_noise_law_init(&m->near.law, false);
    lb_noise_law_init(&m->far.law, false);
    lb_noise_law_init(&m->absolute, true);
    lb_noise_memory_init(&m->near.memory, 8);
    lb_noise_memory_init(&m->far.memory, 64);
    lb_noise_memory_init(&m->absolute_memory, 32);
    for (int i = 0; i < LB_LEVEL_SUMS; i++) lb_rising_sum_init(&m->sums[i], KAPPA[i]);
    m->single_height = m->second_height = m->third_height = INFINITY;
    m->next_fit = LB_LEVEL_BEGIN;
    m->logp = log_p(0);
}

/* What a step says, and will teach. */
static lb_level_pending read_step(lb_level_model *m, double near, double far)
{
    const double e = whitened(&m->near, near), deviation = deviation_of(&m->near, m->least);
    m->recent[m->n % 4] = near / scatter_of(&m->near, m->least);
    return (lb_level_pending){
        .near = {(float)near, (float)m->near.before, (float)m->near.before_that},
        .far = {(float)far, (float)m->far.before, (float)m->far.before_that},
        .v = (float)(e / deviation),
        .spread = (float)(fabs(e - m->near.lately) / deviation), /* a level that is behind is not a wide noise */
        .second = (float)second_of(m->recent),
        .third = (float)third_of(m->recent),
        .width = (float)log(fmax(m->near.scatter, 1e-3 * m->least)),
    };
}

/* A level follows by what noise is, and by a digit at least: numbers that stood still for long have none. */
static void follow(lb_level_model *m, lb_level_noise *s, double u, double ease)
{
    const double limit = m->n < 16 ? INFINITY : CLIP * fmax(sqrt(s->square), s->digit / 3);
    const double e = whitened(s, u);
    lb_local_level_follow(&s->at, u, limit, ease);
    scatter(s, e);
    s->fresh = false;
    s->before_that = s->before, s->before = u;
}

lb_level_answer lb_level_take(lb_level_model *m, double number)
{
    const double x = log(number);
    take_digit(m, number);
    if (!m->n) m->near.at.level = m->far.at.level = x;
    if (m->stopped != 0) go_on(m, x);
    m->n++;
    if (m->out) return stay_out(m, x);
    const double near = x - lb_local_level_expected(&m->near.at), far = x - lb_local_level_expected(&m->far.at);
    const lb_level_pending step = read_step(m, near, far);
    fit(m);
    if (lb_level_is_ready(m)) {
        end_long_rises(m);
        take_sums(m, x, near, far, whitened(&m->near, near), (double)step.spread);
        if (judge(m, near, &step)) {
            leave(m, x);
            return LB_LEVEL_RISES;
        }
    }
    const double ease = lb_level_is_ready(m) ? ease_of(m) : 1;
    if (!lb_level_is_ready(m) || !is_in_doubt(m)) learn_later(m, &step);
    follow(m, &m->near, near, ease);
    follow(m, &m->far, far, ease);
    return LB_LEVEL_QUIET;
}

void lb_level_restart(lb_level_model *m, double usual, uint64_t again)
{
    m->stopped = m->out || m->n == 0 ? 0 : lb_local_level_expected(&m->near.at);
    if (usual > 0 || m->out) settle(m, usual > 0 ? log(usual) : m->base);
    m->settled = m->n + SETTLING + again;
}

bool lb_level_is_ready(const lb_level_model *m)
{
    return m->n >= LB_LEVEL_BEGIN;
}

double lb_level_usual(const lb_level_model *m)
{
    return exp(m->out ? m->base : lb_local_level_expected(&m->near.at));
}
