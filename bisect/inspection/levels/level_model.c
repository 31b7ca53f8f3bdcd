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
static double phi_of(const lb_level_noise *noise)
{
    const double square = fmax(noise->square - noise->digit * noise->digit / 12, noise->product);
    return square > 0 ? fmax(0, fmin(LARGEST_PHI, noise->product / square)) : 0;
}

static double clipped(double x, double limit)
{
    return fmax(-limit, fmin(limit, x));
}

/* At least a thousandth of what counts at all: numbers without noise; and a third of the last digit that the log
 * prints. */
static double deviation_of(const lb_level_noise *noise, double least)
{
    return fmax(TO_NORMAL * fmax(noise->deviation, 1e-3 * least), noise->digit / 3);
}

/* The same where the noise is wider just now. What rises does not widen it: scatter is about the mean of the last
 * numbers. */
static double deviation_now(const lb_level_noise *noise, double least)
{
    return fmax(deviation_of(noise, least), TO_NORMAL * noise->scatter);
}

static void scatter(lb_level_noise *noise, double error)
{
    const double off = clipped(error - noise->lately, 5 * noise->deviation);
    noise->lately += LATELY * off;
    noise->scatter += LATELY * (fabs(off) - noise->scatter);
}

/* Numbers that means of u's squares and products are over: their rate forgets older ones. */
static double remembered(const lb_level_noise *noise)
{
    return fmin((double)noise->learned, 4 / LEARN);
}

/* How far u scatters at most. Its square is a mean over numbers of which (1 - phi) / (1 + phi) are independent:
 * standard errors of a variance are added; and where the noise is wider just now, that counts. */
static double scatter_of(const lb_level_noise *noise, double least)
{
    const double phi = phi_of(noise), seen = fmax(remembered(noise) * (1 - phi) / (1 + phi), 1);
    const double square = noise->square * (1 + LB_NOISE_MARGIN * sqrt(2 / seen));
    return fmax(fmax(sqrt(square), TO_NORMAL * noise->scatter / sqrt(1 - phi * phi)), 1e-3 * least);
}

/* What the number before does not explain; behind a level that was set anew there is none, and u scatters as far as it
 * ever does. */
static double whitened(const lb_level_noise *noise, double u)
{
    const double phi = phi_of(noise);
    return noise->fresh ? u * sqrt(1 - phi * phi) : u - phi * noise->before;
}

/* The last digit as it shows: the smallest difference of two numbers that follow each other. */
static void take_digit(lb_level_model *model, double number)
{
    const double apart = fabs(number - model->number);
    if (model->n && apart > 0 && (model->digit == 0 || apart < model->digit)) model->digit = apart;
    model->number = number;
    model->near.digit = model->far.digit = log1p(model->digit / number);
}

static void learn_noise(lb_level_noise *noise, const float last[3], double least)
{
    const uint64_t k = noise->learned++;
    const double rate = fmax(0.5 * LEARN, 1.0 / (double)(k + 1)),
                 error = (double)last[0] - phi_of(noise) * (double)last[1];
    const double limit = k < 16 ? INFINITY : 5 * sqrt(noise->square);
    double off[3];
    for (int i = 0; i < 3; i++) off[i] = clipped((double)last[i] - noise->mean, limit);
    noise->mean += fmax(2 * LEARN, rate) * off[0];
    noise->square += rate * (off[0] * off[0] - noise->square);
    noise->product += rate * (off[0] * off[1] - noise->product);
    noise->product_of_two += rate * (off[0] * off[2] - noise->product_of_two);
    noise->deviation +=
        fmax(LEARN, rate) * (fmin(fabs(error), k < 16 ? INFINITY : 5 * noise->deviation) - noise->deviation);
    if (k < 32) return;
    const double relative = error / deviation_of(noise, least) - noise->centre;
    noise->centre += fmax(0.5 * LEARN, 1.0 / (double)(k + 1)) * clipped(relative, 4) * noise->centred;
    lb_noise_law_add(&noise->law, relative);
    lb_noise_memory_add(&noise->memory, clipped(relative, LB_NOISE_CLIP));
}

/* ---- learning ---------------------------------------------------------------------------------------------------- */

static double log_p(uint64_t n)
{
    const double at = (double)n + 1000, spent = log(at);
    return -log(LB_WATCH_FALSE_ALARMS * log(1000) / (at * spent * spent) / (2 * LB_LEVEL_STATISTICS));
}

static void fit(lb_level_model *model)
{
    if (model->n < model->next_fit) return;
    const uint64_t pause = model->n / 16;
    model->next_fit = model->n + (pause < 8 ? 8 : pause > LONGEST_FIT ? LONGEST_FIT : pause);
    model->logp = log_p(model->n);
    const double near = lb_noise_memory_of(&model->near.memory), spread = lb_noise_memory_of(&model->absolute_memory);
    const double phi = phi_of(&model->far), far = lb_noise_memory_of(&model->far.memory) * sqrt((1 + phi) / (1 - phi));
    for (int i = 0; i < LB_LEVEL_SUMS; i++) {
        const int statistic = LB_LEVEL_STEP_1 + i;
        if (statistic == LB_LEVEL_SPREAD)
            lb_rising_sum_fit(&model->sums[i], &model->absolute, spread);
        else if (statistic >= LB_LEVEL_DRIFT_03)
            lb_rising_sum_fit(&model->sums[i], &model->far.law, far);
        else /* large numbers come together where the noise is wide for a while */
            lb_rising_sum_fit(&model->sums[i], &model->near.law,
                              statistic > LB_LEVEL_STEP_1 ? fmax(near, 0.6 * spread) : near);
    }
    model->single_height = fmax(SINGLE_HEIGHT, lb_far_tail_height(&model->single, 1, SPIKE_LOGP));
    /* Two of four are as rare as one is, twice, in six ways: that shows where two were hardly ever seen. */
    const double twice = lb_far_tail_height(&model->single, 1, 0.5 * (1.2 * SPIKE_LOGP + log(6)));
    /* They are not whitened: of numbers near each other one is independent in (1 + phi) / (1 - phi). */
    const double alike = (1 + phi_of(&model->near)) / (1 - phi_of(&model->near));
    model->second_height = fmax(fmax(SECOND_HEIGHT, isfinite(twice) ? twice : 0),
                                lb_far_tail_height(&model->second, 2 * alike, 1.2 * SPIKE_LOGP));
    model->third_height = fmax(THIRD_HEIGHT, lb_far_tail_height(&model->third, 3 * alike, SPIKE_LOGP));
}

static void learn_width(lb_level_width *w, double width)
{
    const double rate = fmax(1.0 / WIDTHS, 1.0 / (double)++w->n), off = width - w->mean;
    w->mean += rate * off;
    w->square += rate * ((1 - rate) * off * off - w->square);
}

static void learn(lb_level_model *model, const lb_level_pending *pending)
{
    learn_noise(&model->near, pending->near, model->least);
    learn_noise(&model->far, pending->far, model->least);
    if (model->near.learned <= 32) return;
    learn_width(&model->width, (double)pending->width);
    lb_noise_law_add(&model->absolute, (double)pending->spread);
    lb_noise_memory_add(&model->absolute_memory, fmin((double)pending->spread, LB_NOISE_CLIP));
    lb_far_tail_add(&model->single, (double)pending->v);
    lb_far_tail_add(&model->second, (double)pending->second);
    lb_far_tail_add(&model->third, (double)pending->third);
}

static void learn_later(lb_level_model *model, const lb_level_pending *step)
{
    if (model->n < LB_LEVEL_BEGIN) {
        learn(model, step);
        return;
    }
    const uint64_t delay = model->n / 4 < LB_LEVEL_DELAY ? model->n / 4 : LB_LEVEL_DELAY;
    for (; model->pended - model->taken >= delay; model->taken++)
        learn(model, &model->pending[model->taken % LB_LEVEL_DELAY]);
    model->pending[model->pended++ % LB_LEVEL_DELAY] = *step;
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

static bool is_over(lb_level_model *model, lb_level_statistic statistic, double height, uint32_t length)
{
    model->statistic = statistic, model->height = height, model->length = length;
    return true;
}

/* Numbers that wander, each near the one before, drift by a few of their deviations at any time. Where white noise lies
 * over what wanders, correlations of the first and the second order are c phi and c phi², of which c is the share that
 * wanders: its deviation, times phi², is the root of c phi^4. A past of n steps, as far as it is remembered, shows as
 * much of it as n (1 - phi) / (1 + phi) independent numbers would; a standard error of the variance is added. */
static double wandering(const lb_level_noise *noise)
{
    const double second = fmin(noise->product_of_two, LARGEST_PHI * noise->product);
    if (noise->product <= 0 || second <= 0) return 0;
    const double phi = second / noise->product, seen = remembered(noise) * (1 - phi) / (1 + phi);
    return sqrt(second * phi * phi * (1 + sqrt(2 / seen)));
}

/* The smallest rise that counts: half a digit of the number and half a digit of the level are rounding. */
static double least_rise(const lb_level_model *model)
{
    return model->least + model->near.digit;
}

/* What wanders moves by its deviation while the level follows it, and diffuses: over so many times as long by their
 * root. */
static double least_drift(const lb_level_model *model, uint32_t length)
{
    const double spans = fmax(length / SPAN, 1);
    return model->n < DRIFT_BEGIN ? INFINITY : fmax(least_rise(model), WANDERS * wandering(&model->far) * sqrt(spans));
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
static double widest(const lb_level_model *model)
{
    const double seen = fmin((double)model->width.n + 1, 2.0 * WIDTHS) / 64;
    const double square = model->width.square > 0 ? model->width.square * most_of_variance(seen) : 0;
    return exp(model->width.mean + sqrt(2 * fmax(model->logp - log(64), 1) * square));
}

static bool judge_sums(lb_level_model *model)
{
    for (int i = 0; i < LB_LEVEL_SUMS; i++) {
        const lb_rising_sum *sum = &model->sums[i];
        const double rise = lb_rising_sum_rise(sum);
        const bool spread = i == LB_LEVEL_SPREAD - LB_LEVEL_STEP_1;
        if (spread && model->n < SPREAD_BEGIN) continue; /* how wide noise may be for a while is seen late */
        const double wider = fmax(WIDER * model->near.deviation, widest(model)) - model->near.deviation;
        /* What rises for longer than the level looks back is a drift, whatever sees it. */
        const bool drifts = i >= LB_LEVEL_DRIFT_03 - LB_LEVEL_STEP_1 || sum->length > SPAN;
        const double least = spread   ? fmax(0.5 * model->least, wider)
                             : drifts ? least_drift(model, sum->length)
                                      : least_rise(model);
        if (sum->g > 0 && rise > least && sum->g > lb_rising_sum_threshold(sum, model->logp))
            return is_over(model, (lb_level_statistic)(LB_LEVEL_STEP_1 + i), rise, sum->length);
    }
    return false;
}

/* Whether a statistic is over its threshold; u: of this step. */
static bool judge(lb_level_model *model, double u, const lb_level_pending *step)
{
    if (u <= least_rise(model)) return judge_sums(model);
    if ((double)step->v > model->single_height) return is_over(model, LB_LEVEL_SPIKE, u, 1);
    if ((double)step->second > model->second_height) return is_over(model, LB_LEVEL_SPIKES, u, 2);
    if ((double)step->third > model->third_height) return is_over(model, LB_LEVEL_THREE_SPIKES, u, 3);
    return judge_sums(model);
}

/* What has risen slowly for so long is how the run goes. */
static void end_long_rises(lb_level_model *model)
{
    for (int i = 0; i < LB_LEVEL_SUMS; i++) {
        const double told = model->sums[i].told;
        const int statistic = LB_LEVEL_STEP_1 + i;
        if (model->sums[i].length < LONGEST_RISE) continue;
        lb_rising_sum_drop(&model->sums[i]);
        if (statistic < LB_LEVEL_DRIFT_03)
            model->near.at.level = fmax(model->near.at.level, told);
        else if (statistic < LB_LEVEL_SPREAD)
            model->far.at.level = model->near.at.level, model->far.before = model->near.before;
    }
}

/* Whether something rises for certain, though not by as much as counts: it should not become what is usual. */
static bool is_in_doubt(const lb_level_model *model)
{
    for (int i = 0; i < LB_LEVEL_SUMS; i++)
        if (model->sums[i].g > lb_rising_sum_threshold(&model->sums[i], model->logp)) return true;
    return false;
}

static double ease_of(const lb_level_model *model)
{
    double most = 0;
    for (int i = 0; i < LB_LEVEL_SUMS - 1; i++)
        most = fmax(most, model->sums[i].g / lb_rising_sum_threshold(&model->sums[i], model->logp));
    return most > 0.3 ? 0.2 : 1;
}

/* ---- the life of an alarm ---------------------------------------------------------------------------------------- */

static void drop_sums(lb_level_model *model)
{
    for (int i = 0; i < LB_LEVEL_SUMS; i++) lb_rising_sum_drop(&model->sums[i]);
    memset(model->recent, 0, sizeof model->recent);
    model->pended = model->taken = 0;
    lb_noise_memory_break(&model->near.memory), lb_noise_memory_break(&model->far.memory),
        lb_noise_memory_break(&model->absolute_memory);
}

static void settle(lb_level_model *model, double level)
{
    lb_local_level_move(&model->near.at, level);
    lb_local_level_move(&model->far.at, level);
    model->near.before = model->far.before = model->near.before_that = model->far.before_that = 0;
    model->near.fresh = model->far.fresh = true;
    model->settled = model->n + SETTLING;
    model->out = false;
    drop_sums(model);
}

/* The first number after a restart. A level that wanders does not go back with the step: where the run stood higher
 * when it stopped than it did then, a number in between is usual. */
static void go_on(lb_level_model *model, double x)
{
    const double then = model->near.at.level;
    if (x > then && model->stopped > then) model->near.at.level = model->far.at.level = fmin(x, model->stopped);
    model->stopped = 0;
}

static void leave(lb_level_model *model, double x)
{
    model->out = true, model->out_for = model->quiet = 0;
    model->base = lb_local_level_expected(&model->near.at);
    if (model->statistic >= LB_LEVEL_STEP_1 && model->statistic < LB_LEVEL_SPREAD)
        model->base = fmin(model->base, model->sums[model->statistic - LB_LEVEL_STEP_1].from);
    for (int i = 0; i < LB_LEVEL_WINDOW; i++) model->window[i] = 0;
    model->peak = model->window[model->n % LB_LEVEL_WINDOW] = x - model->base;
    drop_sums(model);
}

/* Mean of the last `k` numbers above the base, and of their distance from that mean. */
static double mean_of_last(const lb_level_model *model, uint32_t k, double *distance)
{
    double sum = 0;
    *distance = 0;
    for (uint32_t back = 0; back < k; back++) sum += model->window[(model->n - back) % LB_LEVEL_WINDOW] / k;
    for (uint32_t back = 0; back < k; back++)
        *distance += fabs(model->window[(model->n - back) % LB_LEVEL_WINDOW] - sum) / k;
    return sum;
}

/* Back is a tenth of the peak or what noise explains, by the last four steps: longer windows would still hold what is
 * over. */
static lb_level_answer stay_out(lb_level_model *model, double x)
{
    double distance;
    model->window[model->n % LB_LEVEL_WINDOW] = x - model->base;
    const double mean = mean_of_last(model, 4, &distance), noise = sqrt(model->near.square);
    model->peak = fmax(model->peak, mean);
    model->out_for++;
    const double back = fmax(fmax(2 * noise, 0.5 * model->least), BACK * model->peak);
    const bool inside = model->out_for >= 4 && mean < back && x - model->base < 2 * back;
    model->quiet = inside ? model->quiet + 1 : 0;
    if (model->quiet < QUIET_STEPS && model->out_for < LONGEST) return LB_LEVEL_OUT;
    const double level = model->base + mean_of_last(model, QUIET_STEPS, &distance);
    if (model->statistic == LB_LEVEL_SPREAD) {
        const double wider = fmax(1, distance / fmax(model->near.deviation, 1e-9));
        model->near.deviation *= wider, model->far.deviation *= wider;
        model->near.square *= wider * wider, model->near.product *= wider * wider;
        model->far.square *= wider * wider, model->far.product *= wider * wider;
    }
    /* A spike that was over at once is a number that this run may have: many of them make its tail. */
    if (model->out_for <= SHORT_SPIKE)
        lb_far_tail_add(&model->single, model->peak / deviation_of(&model->near, model->least));
    settle(model, level);
    return LB_LEVEL_BACK;
}

static void take_sums(lb_level_model *model, double x, double near, double far, double error, double spread)
{
    const double at_near = x - near, near_by = error / deviation_now(&model->near, model->least);
    const double w = whitened(&model->far, far) / deviation_now(&model->far, model->least) - model->far.centre;
    for (int i = 0; i < LB_LEVEL_SUMS; i++) {
        const int statistic = LB_LEVEL_STEP_1 + i;
        lb_rising_sum *sum = &model->sums[i];
        if (statistic == LB_LEVEL_SPREAD && model->n < model->settled) /* the levels are still finding their place */
            lb_rising_sum_drop(sum);
        else if (statistic == LB_LEVEL_SPREAD)
            lb_rising_sum_take(sum, fmin(spread, LB_NOISE_CLIP), spread * deviation_of(&model->near, model->least),
                               model->near.deviation);
        else if (statistic >= LB_LEVEL_DRIFT_03)
            lb_rising_sum_take(sum, clipped(w, LB_NOISE_CLIP), x, at_near);
        else
            lb_rising_sum_take(sum, clipped(near_by, LB_NOISE_CLIP), x, at_near);
    }
}

void lb_level_init(lb_level_model *model, double least)
{
    memset(model, 0, sizeof *model);
    model->least = least;
    model->near.at.span = model->far.at.span = SPAN, model->near.at.up = 1, model->far.at.up = FAR_UP;
    model->far.centred = 1;
    lb_noise_law_init(&model->near.law, false);
    lb_noise_law_init(&model->far.law, false);
    lb_noise_law_init(&model->absolute, true);
    lb_noise_memory_init(&model->near.memory, 8);
    lb_noise_memory_init(&model->far.memory, 64);
    lb_noise_memory_init(&model->absolute_memory, 32);
    for (int i = 0; i < LB_LEVEL_SUMS; i++) lb_rising_sum_init(&model->sums[i], KAPPA[i]);
    model->single_height = model->second_height = model->third_height = INFINITY;
    model->next_fit = LB_LEVEL_BEGIN;
    model->logp = log_p(0);
}

/* What a step says, and will teach. */
static lb_level_pending read_step(lb_level_model *model, double near, double far)
{
    const double error = whitened(&model->near, near), deviation = deviation_of(&model->near, model->least);
    model->recent[model->n % 4] = near / scatter_of(&model->near, model->least);
    return (lb_level_pending){
        .near = {(float)near, (float)model->near.before, (float)model->near.before_that},
        .far = {(float)far, (float)model->far.before, (float)model->far.before_that},
        .v = (float)(error / deviation),
        .spread =
            (float)(fabs(error - model->near.lately) / deviation), /* a level that is behind is not a wide noise */
        .second = (float)second_of(model->recent),
        .third = (float)third_of(model->recent),
        .width = (float)log(fmax(model->near.scatter, 1e-3 * model->least)),
    };
}

/* A level follows by what noise is, and by a digit at least: numbers that stood still for long have none. */
static void follow(lb_level_model *model, lb_level_noise *noise, double u, double ease)
{
    const double limit = model->n < 16 ? INFINITY : CLIP * fmax(sqrt(noise->square), noise->digit / 3);
    const double error = whitened(noise, u);
    lb_local_level_follow(&noise->at, u, limit, ease);
    scatter(noise, error);
    noise->fresh = false;
    noise->before_that = noise->before, noise->before = u;
}

lb_level_answer lb_level_take(lb_level_model *model, double number)
{
    const double x = log(number);
    take_digit(model, number);
    if (!model->n) model->near.at.level = model->far.at.level = x;
    if (model->stopped != 0) go_on(model, x);
    model->n++;
    if (model->out) return stay_out(model, x);
    const double near = x - lb_local_level_expected(&model->near.at), far = x - lb_local_level_expected(&model->far.at);
    const lb_level_pending step = read_step(model, near, far);
    fit(model);
    if (lb_level_is_ready(model)) {
        end_long_rises(model);
        take_sums(model, x, near, far, whitened(&model->near, near), (double)step.spread);
        if (judge(model, near, &step)) {
            leave(model, x);
            return LB_LEVEL_RISES;
        }
    }
    const double ease = lb_level_is_ready(model) ? ease_of(model) : 1;
    if (!lb_level_is_ready(model) || !is_in_doubt(model)) learn_later(model, &step);
    follow(model, &model->near, near, ease);
    follow(model, &model->far, far, ease);
    return LB_LEVEL_QUIET;
}

void lb_level_restart(lb_level_model *model, double usual, uint64_t again)
{
    model->stopped = model->out || model->n == 0 ? 0 : lb_local_level_expected(&model->near.at);
    if (usual > 0 || model->out) settle(model, usual > 0 ? log(usual) : model->base);
    model->settled = model->n + SETTLING + again;
}

bool lb_level_is_ready(const lb_level_model *model)
{
    return model->n >= LB_LEVEL_BEGIN;
}

double lb_level_usual(const lb_level_model *model)
{
    return exp(model->out ? model->base : lb_local_level_expected(&model->near.at));
}
