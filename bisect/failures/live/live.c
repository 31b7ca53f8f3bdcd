/* Bisecting a live job: see lastbit/bisect.h.
 *
 *      CMD                      fails?          otherwise there is nothing to bisect
 *      CMD + flags of a stage   succeeds?       the first stage whose flags cure is the axis; which of them it takes is
 *                               searched
 *      CMD + flags of all       succeeds?       several culprits: the fewest flags that cure
 *
 * It is the same search as on a recorded window; a trial is a run. Where runs are noisy every answer is repeated until
 * it is sound.
 */
#include "search/journal.h"
#include "live/live_job.h"
#include "search/group_search.h"

#include "base/array.h"
#include <lastbit/clock.h>
#include <lastbit/bisect.h>
#include <lastbit/text_stream.h>

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "block:E=--no-experts" */
typedef struct flag {
    lb_bisect_axis axis;
    char label[64];
    const char *words;
} flag;

typedef struct live {
    const lb_live_options *options;
    lb_bisection *out;
    lb_live_log_pattern *pattern;
    lb_journal *journal;
    flag *flags; /* by stage, in the playbook's order */
    uint32_t n_flags;
} live;

static void say(const live *l, const char *format, ...) LB_PRINTF(2, 3);
static void say(const live *live, const char *format, ...)
{
    char line[512];
    va_list args;
    if (!live->options->say) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    live->options->say(live->options->context, line);
}

/* ---- flags ------------------------------------------------------------------------------------------------------- */

static lb_status parse_flag(const char *text, flag *parsed, lb_err *err)
{
    const char *equals = strchr(text, '='), *colon = memchr(text, ':', equals ? (size_t)(equals - text) : 0);
    size_t n = colon ? (size_t)(colon - text) : equals ? (size_t)(equals - text) : 0;
    for (lb_bisect_axis axis = LB_AXIS_MUON; equals && axis <= LB_AXIS_ORDER; axis++) {
        if (strlen(lb_bisect_axis_name(axis)) != n || strncmp(text, lb_bisect_axis_name(axis), n)) continue;
        *parsed = (flag){.axis = axis, .words = equals + 1};
        if (colon) snprintf(parsed->label, sizeof parsed->label, "%.*s", (int)(equals - colon - 1), colon + 1);
        return LB_OK;
    }
    return lb_fail(err, LB_ERR_INVALID,
                   "flag \"%s\": expected STAGE=FLAGS or STAGE:LABEL=FLAGS, the stage being muon, precision, rank, "
                   "block, source, kernel or order, e.g. 'muon=--optimizer adamw'",
                   text);
}

static int by_axis(const void *a, const void *b)
{
    return (int)((const flag *)a)->axis - (int)((const flag *)b)->axis;
}

static lb_status parse_flags(live *live, lb_err *err)
{
    const lb_live_options *options = live->options;
    live->flags = calloc(options->n_flags + 1, sizeof *live->flags);
    if (!live->flags) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < options->n_flags; i++)
        LB_TRY(parse_flag(options->flags[i], &live->flags[live->n_flags++], err));
    /* A stable order: of one stage, as given. */
    for (uint32_t i = 1; i < live->n_flags; i++)
        for (uint32_t k = i; k > 0 && by_axis(&live->flags[k - 1], &live->flags[k]) > 0; k--) {
            flag flag = live->flags[k];
            live->flags[k] = live->flags[k - 1], live->flags[k - 1] = flag;
        }
    return LB_OK;
}

/* The words of the chosen ones of flags [from, to), NULL: all. */
static char *words_of(const live *live, uint32_t from, uint32_t to, const uint64_t *set)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    for (uint32_t i = from; i < to; i++)
        if (!set || lb_site_in(set, i - from)) fprintf(out, "%s%s", ftell(out) ? " " : "", live->flags[i].words);
    fclose(out);
    return text;
}

/* The command with the words where "{}" stands, or at its end. */
static char *with_words(const char *command, const char *words)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    const char *gap = strstr(command, "{}");
    if (!out) return NULL;
    if (gap)
        fprintf(out, "%.*s%s%s", (int)(gap - command), command, words, gap + 2);
    else
        fprintf(out, "%s%s%s", command, *words ? " " : "", words);
    fclose(out);
    return text;
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */

static lb_status judge(const live *live, const lb_job_result *result, lb_search_outcome *outcome, char *what,
                       size_t size, lb_err *err)
{
    bool by_log = live->pattern != NULL;
    *outcome = LB_OUTCOME_SAME;
    if (result->timed_out) {
        *outcome = LB_OUTCOME_INVALID;
        snprintf(what, size, "killed after %.0f s", live->options->timeout_seconds);
    } else if (by_log && result->matched) {
        snprintf(what, size, "it says: %s", result->line);
    } else if (result->code == 0) {
        *outcome = LB_OUTCOME_CURED;
        what[0] = '\0';
    } else if (result->code == 126 || result->code == 127) {
        return lb_fail(
            err, LB_ERR_UNSUPPORTED,
            "the job ended with exit code %d, as a shell does where a program %s: nothing ran that could fail%s%s",
            result->code, result->code == 126 ? "cannot be executed" : "is not found",
            *result->line ? "; it says: " : "", result->line);
    } else if (result->code == 125 || by_log) {
        *outcome = LB_OUTCOME_INVALID;
        snprintf(what, size, "exit code %d%s%s", result->code, *result->line ? ": " : "", result->line);
    } else if (result->code >= 128) {
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "the job ended with exit code %d, which says neither good nor bad (its last line: %s); "
                       "--log tells failures by what it prints",
                       result->code, result->line);
    } else
        snprintf(what, size, "exit code %d%s%s", result->code, *result->line ? ": " : "", result->line);
    return LB_OK;
}

static lb_trial *add_trial(live *live, const char *purpose, lb_err *err)
{
    lb_bisection *bisection = live->out;
    lb_trial *more = lb_array_grow(bisection->trials, bisection->n_trials, sizeof *more);
    if (!more) {
        lb_fail(err, LB_ERR_NOMEM, "out of memory");
        return NULL;
    }
    bisection->trials = more;
    lb_trial *trial = &bisection->trials[bisection->n_trials];
    *trial = (lb_trial){.stage = bisection->n_stages - 1};
    snprintf(trial->purpose, sizeof trial->purpose, "%s", purpose);
    return trial;
}

/* How often these words have been tried. */
static uint32_t times_tried(const lb_bisection *bisection, const char *words)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < bisection->n_trials; i++) n += !strcmp(bisection->trials[i].change, words);
    return n;
}

static lb_status run_once(live *live, const char *words, const char *purpose, lb_search_outcome *outcome, lb_err *err)
{
    char key[1200];
    const char *known;
    lb_trial *trial = add_trial(live, purpose, err);
    if (!trial) return LB_ERR_NOMEM;
    trial->change = strdup(words);
    if (!trial->change) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    snprintf(trial->description, sizeof trial->description, "%s", *words ? words : "unchanged");
    snprintf(key, sizeof key, "%.1000s #%u", words, times_tried(live->out, words));
    lb_status status = LB_OK;
    if (lb_journal_find(live->journal, key, outcome, &known)) {
        snprintf(trial->what, sizeof trial->what, "%s", known);
    } else {
        lb_job_result result = {0};
        char *command = with_words(live->options->command, words);
        status = command ? lb_job_run(command, live->pattern, live->options->timeout_seconds, &result, err)
                         : lb_fail(err, LB_ERR_NOMEM, "out of memory");
        free(command);
        if (status == LB_OK) status = judge(live, &result, outcome, trial->what, sizeof trial->what, err);
        trial->seconds = result.seconds;
        if (status == LB_OK) status = lb_journal_add(live->journal, key, *outcome, trial->what, trial->seconds, err);
    }
    if (status != LB_OK) {
        free(trial->change);
        return status;
    }
    snprintf(trial->outcome, sizeof trial->outcome, "%s", lb_search_outcome_name(*outcome));
    live->out->n_trials++;
    live->out->stages[trial->stage].trials++;
    say(live, "  %-11s %-56s %7.1f s  %s", trial->outcome, trial->description, trial->seconds, trial->what);
    return LB_OK;
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

static lb_status begin_stage(live *live, const char *name, lb_err *err)
{
    lb_bisection *bisection = live->out;
    lb_bisect_stage *more = lb_array_grow(bisection->stages, bisection->n_stages, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    bisection->stages = more;
    bisection->stages[bisection->n_stages++] = (lb_bisect_stage){.name = name};
    return LB_OK;
}

static void end_stage(live *live, const char *outcome, const char *note)
{
    lb_bisect_stage *stage = &live->out->stages[live->out->n_stages - 1];
    snprintf(stage->outcome, sizeof stage->outcome, "%s", outcome);
    snprintf(stage->note, sizeof stage->note, "%s", note);
    say(live, "%-10s %s%s%s", stage->name, stage->outcome, *note ? ": " : "", note);
}

/* The command as it is must fail, or there is nothing to find. Where failures are missed it gets as many chances as
 * make it unlikely that a failing one was taken for a good one. */
static lb_status check_failure(live *live, bool *fails, lb_err *err)
{
    const lb_live_options *options = live->options;
    double risk = options->risk > 0 ? options->risk : 0.01;
    int chances = options->miss > 0 ? (int)ceil(log(risk) / log(options->miss)) : 1;
    lb_search_outcome outcome = LB_OUTCOME_CURED;
    *fails = false;
    LB_TRY(begin_stage(live, "run", err));
    for (int i = 0; i < chances && outcome == LB_OUTCOME_CURED; i++) LB_TRY(run_once(live, "", "whole", &outcome, err));
    const lb_trial *last = &live->out->trials[live->out->n_trials - 1];
    if (outcome == LB_OUTCOME_CURED) {
        live->out->outcome = LB_BISECT_CLEAN;
        end_stage(live, "clean", "the command as it is succeeds");
    } else if (outcome == LB_OUTCOME_INVALID) {
        end_stage(live, "undecided", last->what);
    } else {
        *fails = true;
        live->out->failure.kind = LB_FAILURE_PREDICATE;
        snprintf(live->out->failure.what, sizeof live->out->failure.what, "%s", last->what);
        end_stage(live, "fails", "the command as it is");
    }
    return LB_OK;
}

static lb_status add_culprit(live *live, const flag *flag, bool alone, lb_err *err)
{
    lb_bisection *bisection = live->out;
    lb_culprit *more = lb_array_grow(bisection->culprits, bisection->n_culprits, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    bisection->culprits = more;
    lb_culprit *culprit = &bisection->culprits[bisection->n_culprits++];
    *culprit = (lb_culprit){.axis = flag->axis, .row = LB_NONE, .step = -1, .phase = LB_PHASE_OTHER};
    char *end;
    long rank = strtol(flag->label, &end, 10);
    if (flag->axis == LB_AXIS_BLOCK && strlen(flag->label) == 1 && isupper((unsigned char)flag->label[0]))
        culprit->block = flag->label[0];
    else if (flag->axis == LB_AXIS_RANK && *flag->label && !*end) {
        culprit->ranks = malloc(sizeof *culprit->ranks);
        if (!culprit->ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        culprit->ranks[0] = (int32_t)rank, culprit->n_ranks = 1;
    } else
        snprintf(culprit->layer, sizeof culprit->layer, "%s", flag->label);
    snprintf(culprit->why, sizeof culprit->why, "With \"%.150s\", %s, the command succeeds.", flag->words,
             alone ? "and nothing else changed" : "and the other culprits cured");
    bisection->outcome = LB_BISECT_FOUND;
    return LB_OK;
}

static lb_status report(live *live, uint32_t from, const lb_search_verdict *verdict, lb_err *err)
{
    uint64_t *set = calloc(LB_SITE_WORDS(live->n_flags) + 1, sizeof *set);
    if (!set) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < verdict->n_culprits && status == LB_OK; i++) {
        set[verdict->culprits[i] / 64] |= (uint64_t)1 << (verdict->culprits[i] % 64);
        status = add_culprit(live, &live->flags[from + verdict->culprits[i]], verdict->n_culprits == 1, err);
    }
    char *words = words_of(live, from, live->n_flags, set);
    live->out->cure = words ? with_words(live->options->command, words) : NULL;
    free(words);
    free(set);
    return status;
}

/* Flags [from, to) together, and which of them it takes. */
static lb_status try_flags(live *live, const char *name, uint32_t from, uint32_t to, bool *found, lb_err *err)
{
    lb_search_options options = LB_SEARCH_OPTIONS_INIT;
    lb_search *search;
    lb_search_step step;
    lb_search_trial trial;
    lb_search_verdict verdict = {0};
    options.sites = to - from;
    options.miss = live->options->miss, options.alarm = live->options->alarm, options.risk = live->options->risk;
    options.max_trials = live->options->max_trials;
    LB_TRY(begin_stage(live, name, err));
    LB_TRY(lb_search_new(&options, &search, err));
    lb_status status;
    while ((status = lb_search_next(search, &step, &trial, err)) == LB_OK && step == LB_SEARCH_TRIAL) {
        lb_search_outcome outcome;
        char *words = words_of(live, from, to, trial.sites);
        status = words ? run_once(live, words, lb_search_purpose_name(trial.purpose), &outcome, err)
                       : lb_fail(err, LB_ERR_NOMEM, "out of memory");
        free(words);
        if (status == LB_OK) status = lb_search_tell(search, trial.sites, outcome, err);
        if (status != LB_OK) break;
    }
    if (status == LB_OK) status = lb_search_verdict_get(search, &verdict, err);
    *found = status == LB_OK && verdict.n_culprits > 0;
    if (*found) status = report(live, from, &verdict, err);
    const char *note = *verdict.note || verdict.monotone ? verdict.note : "in some run changing more undid a cure";
    if (status == LB_OK)
        end_stage(live, *found ? "cured" : verdict.kind == LB_SEARCH_UNDECIDED ? "undecided" : "cleared", note);
    lb_search_free(search);
    return status;
}

static lb_status run_stages(live *live, lb_err *err)
{
    bool fails, found = false;
    LB_TRY(check_failure(live, &fails, err));
    if (!fails) return LB_OK;
    uint32_t stages = 0;
    for (uint32_t from = 0, to; from < live->n_flags && !found; from = to) {
        for (to = from + 1; to < live->n_flags && live->flags[to].axis == live->flags[from].axis;) to++;
        LB_TRY(try_flags(live, lb_bisect_axis_name(live->flags[from].axis), from, to, &found, err));
        stages++;
    }
    if (!found && stages > 1) LB_TRY(try_flags(live, "several", 0, live->n_flags, &found, err));
    return LB_OK;
}

static lb_status open_all(live *live, lb_err *err)
{
    const lb_live_options *options = live->options;
    char about[1400];
    if (!options->n_flags)
        return lb_fail(err, LB_ERR_INVALID, "a live job needs at least one flag to try, e.g. 'muon=--optimizer adamw'");
    LB_TRY(parse_flags(live, err));
    if (options->log) LB_TRY(lb_live_log_pattern_new(options->log, &live->pattern, err));
    snprintf(about, sizeof about, "run %.1000s log %.300s", options->command, options->log ? options->log : "-");
    return options->journal ? lb_journal_open(options->journal, about, options->resume, &live->journal, err) : LB_OK;
}

lb_status lb_bisect_live(const lb_live_options *given, lb_bisection **bisection, lb_err *err)
{
    lb_live_options options = LB_LIVE_OPTIONS_INIT;
    memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    live live = {.options = &options};
    const double begin = lb_clock_seconds();
    *bisection = NULL;
    live.out = calloc(1, sizeof *live.out);
    if (!live.out) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    live.out->outcome = LB_BISECT_UNDECIDED;
    live.out->failure = (lb_failure){.op = LB_NONE, .rank = -1, .step = -1};
    live.out->origin.op = LB_NONE; /* a job shows no op */
    live.out->command = with_words(options.command, "");
    lb_status status = open_all(&live, err);
    if (status == LB_OK) status = run_stages(&live, err);
    const lb_status closed = lb_journal_close(live.journal, status == LB_OK ? err : NULL);
    if (status == LB_OK) status = closed;
    lb_live_log_pattern_free(live.pattern);
    free(live.flags);
    live.out->seconds = lb_clock_seconds() - begin;
    if (status == LB_OK)
        *bisection = live.out;
    else
        lb_bisection_free(live.out);
    return status;
}
