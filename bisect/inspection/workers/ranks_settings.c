/* Settings of one run side by side: see lastbit/ranks.h. */
#include "compare/number_word.h"

#include <lastbit/ranks.h>
#include <lastbit/text_stream.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LOSS, NORM, DIRECTION, MEASURES };
enum { FEWEST_STEPS = 7 }; /* of which a coin falls all on one side in less than one of a hundred runs */
static const char *const measures[MEASURES] = {"loss dispersion", "gradient-norm dispersion",
                                               "spread of the gradients' directions"};

static const lb_ranks_step *step_of(const lb_ranks_report *report, int64_t step)
{
    for (uint32_t i = 0; i < report->n_steps; i++)
        if (report->steps[i].step == step) return &report->steps[i];
    return NULL;
}

static double measured(const lb_ranks_step *step, int measure)
{
    return measure == LOSS   ? step->loss_std
           : measure == NORM ? step->all.grad_norm_std
                             : 1 - step->all.grad_cosine_mean;
}

/* Steps that all of them have. */
static uint32_t common_steps(const lb_ranks_report *const *reports, uint32_t n, int64_t *steps)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < reports[0]->n_steps; i++) {
        bool all = true;
        for (uint32_t k = 1; k < n; k++) all &= step_of(reports[k], reports[0]->steps[i].step) != NULL;
        if (all) steps[found++] = reports[0]->steps[i].step;
    }
    return found;
}

static double mean_of(const lb_ranks_report *report, const int64_t *steps, uint32_t n,
                      double (*number)(const lb_ranks_step *s))
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += number(step_of(report, steps[i]));
    return n ? sum / n : NAN;
}

static double loss_mean(const lb_ranks_step *step)
{
    return step->loss_mean;
}
static double loss_std(const lb_ranks_step *step)
{
    return step->loss_std;
}
static double loss_range(const lb_ranks_step *step)
{
    return step->loss_range;
}
static double norm_mean(const lb_ranks_step *step)
{
    return step->all.grad_norm_mean;
}
static double norm_std(const lb_ranks_step *step)
{
    return step->all.grad_norm_std;
}
static double cosine(const lb_ranks_step *step)
{
    return step->all.grad_cosine_mean;
}

/* Does a fair coin fall so often on one side, or more often, in less than one of a hundred runs of n? */
static bool is_no_chance(uint32_t times, uint32_t n)
{
    double sum = 0, ways = 1;
    for (uint32_t k = n; k + 1 > times; k--) {
        sum += ways;
        if (!k) break;
        ways *= (double)k / (n - k + 1);
    }
    return n && sum * exp2(-(double)n) < 0.01;
}

static void judge(const lb_ranks_report *report, const lb_ranks_report *closest, const int64_t *steps, uint32_t n,
                  lb_ranks_setting *out)
{
    uint32_t apart = 0, always = 0;
    for (int m = 0; m < MEASURES; m++) {
        double mine = 0, theirs = 0;
        uint32_t known = 0;
        for (uint32_t i = 0; i < n; i++) {
            const double x = measured(step_of(report, steps[i]), m), y = measured(step_of(closest, steps[i]), m);
            if (isnan(x) || isnan(y)) continue;
            known++, mine += x, theirs += y, out->wider[m] += x > y;
        }
        const bool much = mine >= 1.25 * theirs;
        out->apart[m] = is_no_chance(out->wider[m], known) && much;
        apart += out->apart[m], always += known && out->wider[m] == known && much;
    }
    out->inconsistent = apart >= 2;
    out->untold = !out->inconsistent && n < FEWEST_STEPS && always >= 2;
}

/* What is found comes before what cannot be told. */
static lb_ranks_verdict verdict_of(const lb_ranks_settings *settings, const lb_ranks_report *const *reports)
{
    lb_ranks_verdict verdict = LB_RANKS_CLEAN;
    for (uint32_t i = 0; i < settings->n; i++) {
        if (settings->list[i].inconsistent || reports[i]->verdict == LB_RANKS_FOUND) return LB_RANKS_FOUND;
        if (settings->list[i].untold || reports[i]->verdict != LB_RANKS_CLEAN) verdict = LB_RANKS_UNTESTABLE;
    }
    return verdict;
}

lb_status lb_ranks_settings_compare(const lb_ranks_report *const *reports, uint32_t n, lb_ranks_settings **settings,
                                    lb_err *err)
{
    int64_t *steps = malloc((reports[0]->n_steps + 1) * sizeof *steps);
    lb_ranks_settings *made = calloc(1, sizeof *made);
    *settings = NULL;
    if (made) made->list = calloc(n + 1, sizeof *made->list);
    lb_status status = steps && made && made->list ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for settings");
    if (status == LB_OK) made->n = n, made->n_steps = common_steps(reports, n, steps);
    if (status == LB_OK && !made->n_steps)
        status = lb_fail(err, LB_ERR_NOT_FOUND, "these captures have no step in common: record the same steps of each");
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        lb_ranks_setting *setting = &made->list[i];
        setting->loss_mean = mean_of(reports[i], steps, made->n_steps, loss_mean);
        setting->loss_std = mean_of(reports[i], steps, made->n_steps, loss_std);
        setting->loss_range = mean_of(reports[i], steps, made->n_steps, loss_range);
        setting->grad_norm_mean = mean_of(reports[i], steps, made->n_steps, norm_mean);
        setting->grad_norm_std = mean_of(reports[i], steps, made->n_steps, norm_std);
        setting->grad_cosine_mean = mean_of(reports[i], steps, made->n_steps, cosine);
        if (setting->loss_std < made->list[made->closest].loss_std) made->closest = i;
    }
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        if (i != made->closest) judge(reports[i], reports[made->closest], steps, made->n_steps, &made->list[i]);
        made->found |= made->list[i].inconsistent;
    }
    free(steps);
    if (status == LB_OK) made->verdict = verdict_of(made, reports);
    if (status == LB_OK)
        *settings = made;
    else
        lb_ranks_settings_free(made);
    return status;
}

void lb_ranks_settings_free(lb_ranks_settings *settings)
{
    if (settings) free(settings->list);
    free(settings);
}

/* ---- for a person ------------------------------------------------------------------------------------------------ */

static void print_reading(FILE *out, const lb_ranks_settings *settings, uint32_t i, const char *const *names)
{
    const lb_ranks_setting *x = &settings->list[i], *closest = &settings->list[settings->closest];
    const double mine[] = {x->loss_std, x->grad_norm_std, 1 - x->grad_cosine_mean},
                 theirs[] = {closest->loss_std, closest->grad_norm_std, 1 - closest->grad_cosine_mean};
    fprintf(out, "%s: %s", names[i],
            x->inconsistent ? "silent inconsistency: its workers are further apart"
            : x->untold     ? "its workers are further apart in every step, which are too few to rule out chance"
                            : "not told apart from chance");
    for (int m = 0; m < MEASURES; m++)
        if (!isnan(mine[m]) && theirs[m] > 0)
            fprintf(out, "%s %s %.2f times (in %u of %u steps)", m ? "," : ":", measures[m], mine[m] / theirs[m],
                    x->wider[m], settings->n_steps);
    char t[2][16];
    fprintf(out, "; mean loss %s for %s\n", lb_number_word(x->loss_mean, 5, t[0]),
            lb_number_word(closest->loss_mean, 5, t[1]));
}

static void print_steps(FILE *out, const lb_ranks_settings *settings, const lb_ranks_report *const *reports,
                        const char *const *names)
{
    fprintf(out, "%8s  %-24s %11s %11s %11s %11s %11s %11s\n", "step", "setting", "loss mean", "loss std", "loss range",
            "norm mean", "norm std", "cosine mean");
    for (uint32_t k = 0; k < reports[0]->n_steps; k++) {
        const int64_t step = reports[0]->steps[k].step;
        bool all = true;
        for (uint32_t i = 0; i < settings->n; i++) all &= step_of(reports[i], step) != NULL;
        for (uint32_t i = 0; all && i < settings->n; i++) {
            const lb_ranks_step *x = step_of(reports[i], step);
            char t[6][16], number[24] = "";
            if (!i) snprintf(number, sizeof number, "%" PRId64, step);
            fprintf(out, "%8s  %-24s %11s %11s %11s %11s %11s %11s\n", number, names[i],
                    lb_number_word(x->loss_mean, 5, t[0]), lb_number_word(x->loss_std, 5, t[1]),
                    lb_number_word(x->loss_range, 5, t[2]), lb_number_word(x->all.grad_norm_mean, 5, t[3]),
                    lb_number_word(x->all.grad_norm_std, 5, t[4]), lb_number_word(x->all.grad_cosine_mean, 5, t[5]));
        }
    }
}

static const char *seeds_words(lb_ranks_seeds seeds)
{
    return seeds == LB_RANKS_SEEDS_ONE    ? "; all its workers draw from one seed (S1-1)"
           : seeds == LB_RANKS_SEEDS_SOME ? "; some of its workers share a seed and others do not (S1-2)"
           : seeds == LB_RANKS_SEEDS_EACH ? "; each of its workers draws from a seed of its own (S1-3)"
                                          : "";
}

char *lb_ranks_settings_text(const lb_ranks_settings *settings, const lb_ranks_report *const *reports,
                             const char *const *names)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    fprintf(out, "verdict: %s\n", lb_ranks_verdict_name(settings->verdict));
    for (uint32_t i = 0; i < settings->n; i++)
        if (settings->list[i].inconsistent) print_reading(out, settings, i, names);
    for (uint32_t i = 0; i < settings->n; i++)
        if (reports[i]->verdict == LB_RANKS_FOUND)
            fprintf(out, "%s: has findings of its own, as `lastbit ranks %s` lists them\n", names[i], names[i]);
    fprintf(out, "%s: its workers are closest together%s\n", names[settings->closest],
            seeds_words(reports[settings->closest]->seeds));
    for (uint32_t i = 0; i < settings->n; i++) {
        if (i == settings->closest) continue;
        if (!settings->list[i].inconsistent) print_reading(out, settings, i, names);
        if (*seeds_words(reports[i]->seeds)) fprintf(out, "%s%s\n", names[i], seeds_words(reports[i]->seeds));
    }
    if (settings->n_steps < FEWEST_STEPS)
        fprintf(out, "%u steps are too few to tell an inconsistency from chance: record %d or more\n",
                settings->n_steps, FEWEST_STEPS);
    fputc('\n', out);
    print_steps(out, settings, reports, names);
    fclose(out);
    return text;
}
