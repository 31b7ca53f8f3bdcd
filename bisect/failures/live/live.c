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
static void say(const live *l, const char *format, ...)
{
    char line[512];
    va_list args;
    if (!l->options->say) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    l->options->say(l->options->context, line);
}

/* ---- flags ------------------------------------------------------------------------------------------------------- */

static lb_status parse_flag(const char *text, flag *f, lb_err *err)
{
    const char *equals = strchr(text, '='), *colon = memchr(text, ':', equals ? (size_t)(equals - text) : 0);
    size_t n = colon ? (size_t)(colon - text) : equals ? (size_t)(equals - text) : 0;
    for (lb_bisect_axis axis = LB_AXIS_MUON; equals && axis <= LB_AXIS_ORDER; axis++) {
        if (strlen(lb_bisect_axis_name(axis)) != n || strncmp(text, lb_bisect_axis_name(axis), n)) continue;
        *f = (flag){.axis = axis, .words = equals + 1};
        if (colon) snprintf(f->label, sizeof f->label, "%.*s", (int)(equals - colon - 1), colon + 1);
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

static lb_status parse_flags(live *l, lb_err *err)
{
    const lb_live_options *o = l->options;
    l->flags = calloc(o->n_flags + 1, sizeof *l->flags);
    if (!l->flags) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < o->n_flags; i++) LB_TRY(parse_flag(o->flags[i], &l->flags[l->n_flags++], err));
    /* A stable order: of one stage, as given. */
    for (uint32_t i = 1; i < l->n_flags; i++)
        for (uint32_t k = i; k > 0 && by_axis(&l->flags[k - 1], &l->flags[k]) > 0; k--) {
            flag f = l->flags[k];
            l->flags[k] = l->flags[k - 1], l->flags[k - 1] = f;
        }
    return LB_OK;
}

/* The words of the chosen ones of flags [from, to), NULL: all. */
static char *words_of(const live *l, uint32_t from, uint32_t to, const uint64_t *set)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    for (uint32_t i = from; i < to; i++)
        if (!set || lb_site_in(set, i - from)) fprintf(out, "%s%s", ftell(out) ? " " : "", l->flags[i].words);
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

static lb_status judge(const live *l, const lb_job_result *r, lb_search_outcome *outcome, char *what, size_t size,
                       lb_err *err)
{
    bool by_log = l->pattern != NULL;
    *outcome = LB_OUTCOME_SAME;
    if (r->timed_out) {
        *outcome = LB_OUTCOME_INVALID;
        snprintf(what, size, "killed after %.0f s", l->options->timeout_seconds);
    } else if (by_log && r->matched) {
        snprintf(what, size, "it says: %s", r->line);
    } else if (r->code == 0) {
        *outcome = LB_OUTCOME_CURED;
        what[0] = '\0';
    } else if (r->code == 126 || r->code == 127) {
        return lb_fail(
            err, LB_ERR_UNSUPPORTED,
            "the job ended with exit code %d, as a shell does where a program %s: nothing ran that could fail%s%s",
            r->code, r->code == 126 ? "cannot be executed" : "is not found", *r->line ? "; it says: " : "", r->line);
    } else if (r->code == 125 || by_log) {
        *outcome = LB_OUTCOME_INVALID;
        snprintf(what, size, "exit code %d%s%s", r->code, *r->line ? ": " : "", r->line);
    } else if (r->code >= 128) {
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "the job ended with exit code %d, which says neither good nor bad (its last line: %s); --log "
                       "tells failures by what it prints",
                       r->code, r->line);
    } else
        snprintf(what, size, "exit code %d%s%s", r->code, *r->line ? ": " : "", r->line);
    return LB_OK;
}

static lb_trial *add_trial(live *l, const char *purpose, lb_err *err)
{
    lb_bisection *b = l->out;
    lb_trial *more = lb_array_grow(b->trials, b->n_trials, sizeof *more);
    if (!more) {
        lb_fail(err, LB_ERR_NOMEM, "out of memory");
        return NULL;
    }
    b->trials = more;
    lb_trial *t = &b->trials[b->n_trials];
    *t = (lb_trial){.stage = b->n_stages - 1};
    snprintf(t->purpose, sizeof t->purpose, "%s", purpose);
    return t;
}

/* How often these words have been tried. */
static uint32_t times_tried(const lb_bisection *b, const char *words)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_trials; i++) n += !strcmp(b->trials[i].change, words);
    return n;
}

static lb_status run_once(live *l, const char *words, const char *purpose, lb_search_outcome *outcome, lb_err *err)
{
    char key[1200];
    const char *known;
    lb_trial *t = add_trial(l, purpose, err);
    if (!t) return LB_ERR_NOMEM;
    t->change = strdup(words);
    if (!t->change) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    snprintf(t->description, sizeof t->description, "%s", *words ? words : "unchanged");
    snprintf(key, sizeof key, "%.1000s #%u", words, times_tried(l->out, words));
    lb_status status = LB_OK;
    if (lb_journal_find(l->journal, key, outcome, &known)) {
        snprintf(t->what, sizeof t->what, "%s", known);
    } else {
        lb_job_result result = {0};
        char *command = with_words(l->options->command, words);
        status = command ? lb_job_run(command, l->pattern, l->options->timeout_seconds, &result, err)
                         : lb_fail(err, LB_ERR_NOMEM, "out of memory");
        free(command);
        if (status == LB_OK) status = judge(l, &result, outcome, t->what, sizeof t->what, err);
        t->seconds = result.seconds;
        if (status == LB_OK) status = lb_journal_add(l->journal, key, *outcome, t->what, t->seconds, err);
    }
    if (status != LB_OK) {
        free(t->change);
        return status;
    }
    snprintf(t->outcome, sizeof t->outcome, "%s", lb_search_outcome_name(*outcome));
    l->out->n_trials++;
    l->out->stages[t->stage].trials++;
    say(l, "  %-11s %-56s %7.1f s  %s", t->outcome, t->description, t->seconds, t->what);
    return LB_OK;
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

static lb_status begin_stage(live *l, const char *name, lb_err *err)
{
    lb_bisection *b = l->out;
    lb_bisect_stage *more = lb_array_grow(b->stages, b->n_stages, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    b->stages = more;
    b->stages[b->n_stages++] = (lb_bisect_stage){.name = name};
    return LB_OK;
}

static void end_stage(live *l, const char *outcome, const char *note)
{
    lb_bisect_stage *s = &l->out->stages[l->out->n_stages - 1];
    snprintf(s->outcome, sizeof s->outcome, "%s", outcome);
    snprintf(s->note, sizeof s->note, "%s", note);
    say(l, "%-10s %s%s%s", s->name, s->outcome, *note ? ": " : "", note);
}

/* The command as it is must fail, or there is nothing to find. Where failures are missed it gets as many chances as
 * make it unlikely that a failing one was taken for a good one. */
static lb_status check_failure(live *l, bool *fails, lb_err *err)
{
    const lb_live_options *o = l->options;
    double risk = o->risk > 0 ? o->risk : 0.01;
    int chances = o->miss > 0 ? (int)ceil(log(risk) / log(o->miss)) : 1;
    lb_search_outcome outcome = LB_OUTCOME_CURED;
    *fails = false;
    LB_TRY(begin_stage(l, "run", err));
    for (int i = 0; i < chances && outcome == LB_OUTCOME_CURED; i++) LB_TRY(run_once(l, "", "whole", &outcome, err));
    const lb_trial *last = &l->out->trials[l->out->n_trials - 1];
    if (outcome == LB_OUTCOME_CURED) {
        l->out->outcome = LB_BISECT_CLEAN;
        end_stage(l, "clean", "the command as it is succeeds");
    } else if (outcome == LB_OUTCOME_INVALID) {
        end_stage(l, "undecided", last->what);
    } else {
        *fails = true;
        l->out->failure.kind = LB_FAILURE_PREDICATE;
        snprintf(l->out->failure.what, sizeof l->out->failure.what, "%s", last->what);
        end_stage(l, "fails", "the command as it is");
    }
    return LB_OK;
}

static lb_status add_culprit(live *l, const flag *f, bool alone, lb_err *err)
{
    lb_bisection *b = l->out;
    lb_culprit *more = lb_array_grow(b->culprits, b->n_culprits, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    b->culprits = more;
    lb_culprit *c = &b->culprits[b->n_culprits++];
    *c = (lb_culprit){.axis = f->axis, .row = LB_NONE, .step = -1, .phase = LB_PHASE_OTHER};
    char *end;
    long rank = strtol(f->label, &end, 10);
    if (f->axis == LB_AXIS_BLOCK && strlen(f->label) == 1 && isupper((unsigned char)f->label[0]))
        c->block = f->label[0];
    else if (f->axis == LB_AXIS_RANK && *f->label && !*end) {
        c->ranks = malloc(sizeof *c->ranks);
        if (!c->ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        c->ranks[0] = (int32_t)rank, c->n_ranks = 1;
    } else
        snprintf(c->layer, sizeof c->layer, "%s", f->label);
    snprintf(c->why, sizeof c->why, "With \"%.150s\", %s, the command succeeds.", f->words,
             alone ? "and nothing else changed" : "and the other culprits cured");
    b->outcome = LB_BISECT_FOUND;
    return LB_OK;
}

static lb_status report(live *l, uint32_t from, const lb_search_verdict *v, lb_err *err)
{
    uint64_t *set = calloc(LB_SITE_WORDS(l->n_flags) + 1, sizeof *set);
    if (!set) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < v->n_culprits && status == LB_OK; i++) {
        set[v->culprits[i] / 64] |= (uint64_t)1 << (v->culprits[i] % 64);
        status = add_culprit(l, &l->flags[from + v->culprits[i]], v->n_culprits == 1, err);
    }
    char *words = words_of(l, from, l->n_flags, set);
    l->out->cure = words ? with_words(l->options->command, words) : NULL;
    free(words);
    free(set);
    return status;
}

/* Flags [from, to) together, and which of them it takes. */
static lb_status try_flags(live *l, const char *name, uint32_t from, uint32_t to, bool *found, lb_err *err)
{
    lb_search_options options = LB_SEARCH_OPTIONS_INIT;
    lb_search *search;
    lb_search_step step;
    lb_search_trial trial;
    lb_search_verdict verdict = {0};
    options.sites = to - from;
    options.miss = l->options->miss, options.alarm = l->options->alarm, options.risk = l->options->risk;
    options.max_trials = l->options->max_trials;
    LB_TRY(begin_stage(l, name, err));
    LB_TRY(lb_search_new(&options, &search, err));
    lb_status status;
    while ((status = lb_search_next(search, &step, &trial, err)) == LB_OK && step == LB_SEARCH_TRIAL) {
        lb_search_outcome outcome;
        char *words = words_of(l, from, to, trial.sites);
        status = words ? run_once(l, words, lb_search_purpose_name(trial.purpose), &outcome, err)
                       : lb_fail(err, LB_ERR_NOMEM, "out of memory");
        free(words);
        if (status == LB_OK) status = lb_search_tell(search, trial.sites, outcome, err);
        if (status != LB_OK) break;
    }
    if (status == LB_OK) status = lb_search_verdict_get(search, &verdict, err);
    *found = status == LB_OK && verdict.n_culprits > 0;
    if (*found) status = report(l, from, &verdict, err);
    const char *note = *verdict.note || verdict.monotone ? verdict.note : "in some run changing more undid a cure";
    if (status == LB_OK)
        end_stage(l, *found ? "cured" : verdict.kind == LB_SEARCH_UNDECIDED ? "undecided" : "cleared", note);
    lb_search_free(search);
    return status;
}

static lb_status run_stages(live *l, lb_err *err)
{
    bool fails, found = false;
    LB_TRY(check_failure(l, &fails, err));
    if (!fails) return LB_OK;
    uint32_t stages = 0;
    for (uint32_t from = 0, to; from < l->n_flags && !found; from = to) {
        for (to = from + 1; to < l->n_flags && l->flags[to].axis == l->flags[from].axis;) to++;
        LB_TRY(try_flags(l, lb_bisect_axis_name(l->flags[from].axis), from, to, &found, err));
        stages++;
    }
    if (!found && stages > 1) LB_TRY(try_flags(l, "several", 0, l->n_flags, &found, err));
    return LB_OK;
}

static lb_status open_all(live *l, lb_err *err)
{
    const lb_live_options *o = l->options;
    char about[1400];
    if (!o->n_flags)
        return lb_fail(err, LB_ERR_INVALID, "a live job needs at least one flag to try, e.g. 'muon=--optimizer adamw'");
    LB_TRY(parse_flags(l, err));
    if (o->log) LB_TRY(lb_live_log_pattern_new(o->log, &l->pattern, err));
    snprintf(about, sizeof about, "run %.1000s log %.300s", o->command, o->log ? o->log : "-");
    return o->journal ? lb_journal_open(o->journal, about, o->resume, &l->journal, err) : LB_OK;
}

lb_status lb_bisect_live(const lb_live_options *given, lb_bisection **bisection, lb_err *err)
{
    lb_live_options options = LB_LIVE_OPTIONS_INIT;
    memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    live l = {.options = &options};
    const double begin = lb_clock_seconds();
    *bisection = NULL;
    l.out = calloc(1, sizeof *l.out);
    if (!l.out) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    l.out->outcome = LB_BISECT_UNDECIDED;
    l.out->failure = (lb_failure){.op = LB_NONE, .rank = -1, .step = -1};
    l.out->origin.op = LB_NONE; /* a job shows no op */
    l.out->command = with_words(options.command, "");
    lb_status status = open_all(&l, err);
    if (status == LB_OK) status = run_stages(&l, err);
    const lb_status closed = lb_journal_close(l.journal, status == LB_OK ? err : NULL);
    if (status == LB_OK) status = closed;
    lb_live_log_pattern_free(l.pattern);
    free(l.flags);
    l.out->seconds = lb_clock_seconds() - begin;
    if (status == LB_OK)
        *bisection = l.out;
    else
        lb_bisection_free(l.out);
    return status;
}
