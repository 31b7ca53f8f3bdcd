/* lastbit watch: reads the log of a run, finished or growing, and says what goes wrong in it. */
#include "command/command_line.h"
#include "cli/watch_action.h"
#include "cli/watch_output.h"

#include <ctype.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "watch"
enum { COMPLAINTS_SHOWN = 5 };

typedef struct options {
    char *format, *pattern, **fields, *schedule, *hold, *checkpoints, *shards, *on_alarm, *exit_on, *trigger, *webhook,
        *alarm_file, *html, **levels;
    long long iterations, every;
    double warmup, floor, decay, idle;
    int follow, same_seed;
    lb_watch_log_options log;
    lb_watch_options watch;
    lb_alarm_level exit_level; /* 0: none */
} options;

/* ---- shards from a file of their own ----------------------------------------------------------------------------- */

typedef struct shard_row {
    int64_t step;
    char name[80];
} shard_row;
typedef struct shard_list {
    shard_row *rows; /* by step */
    size_t n, room;
    bool failed;
} shard_list;

static void take_shard(void *context, const lb_watch_record *record)
{
    shard_list *list = (shard_list *)context;
    if (!lb_watch_has(record, LB_WATCH_shard) || list->failed) return;
    if (list->n == list->room) {
        const size_t room = list->room ? 2 * list->room : 256;
        shard_row *grown = realloc(list->rows, room * sizeof *grown);
        if (!grown) {
            list->failed = true;
            return;
        }
        list->rows = grown, list->room = room;
    }
    const lb_watch_word word = record->word[0];
    list->rows[list->n].step = record->step;
    snprintf(list->rows[list->n++].name, sizeof list->rows->name, "%.*s", (int)(word.n < 79 ? word.n : 79), word.text);
}

static int by_step(const void *a, const void *b)
{
    const int64_t x = ((const shard_row *)a)->step, y = ((const shard_row *)b)->step;
    return (x > y) - (x < y);
}

static lb_status read_shards(const char *path, shard_list *list, lb_err *err)
{
    const lb_watch_log_options plain = LB_WATCH_LOG_OPTIONS_INIT;
    const lb_watch_sink sink = {list, take_shard, NULL, NULL};
    lb_watch_log *log;
    LB_TRY(lb_watch_log_new(&plain, &sink, &log, err));
    lb_status status = lb_watch_log_read(log, path, NULL, err);
    lb_watch_log_free(log);
    if (status == LB_OK && list->failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && !list->n)
        status = lb_fail(err, LB_ERR_INVALID,
                         "--shards %s: no step with a shard in it; expected rows such as {\"step\": 100, \"shard\": "
                         "\"part-03.bin\"} or a table step,shard",
                         path);
    if (list->n) qsort(list->rows, list->n, sizeof *list->rows, by_step);
    return status;
}

/* The last row at or before a step. */
static const char *shard_at(const shard_list *list, int64_t step)
{
    size_t low = 0, high = list->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (list->rows[middle].step <= step)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? list->rows[low - 1].name : NULL;
}

/* ---- one log ----------------------------------------------------------------------------------------------------- */

typedef struct session {
    const options *options;
    const char *path;
    lb_watch *watch;
    const shard_list *shards;
    lb_watch_actions *actions;
    FILE *live;              /* NULL: nothing is said before the end */
    lb_watch_curves *curves; /* NULL: not asked for */
    uint64_t complaints;
    bool enough; /* --exit-on */
} session;

static volatile sig_atomic_t interrupted;
static void interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static void on_record(void *context, const lb_watch_record *record)
{
    session *session = context;
    if (session->enough) return;
    if (session->curves) lb_watch_curves_take(session->curves, record);
    if (!session->shards->n || lb_watch_has(record, LB_WATCH_shard)) {
        lb_watch_take(session->watch, record);
        return;
    }
    lb_watch_record with = *record;
    const char *shard = shard_at(session->shards, record->step);
    if (shard) with.word[0] = (lb_watch_word){shard, (uint32_t)strlen(shard)}, with.has |= 1u << LB_WATCH_shard;
    lb_watch_take(session->watch, &with);
}

static void on_complaint(void *context, uint64_t line, const char *why)
{
    session *session = context;
    if (++session->complaints > COMPLAINTS_SHOWN) return;
    fprintf(stderr, "lastbit watch: %s: line %" PRIu64 " was skipped: %s\n", session->path, line, why);
}

static void on_checkpoint(void *context, int64_t step, const char *text)
{
    session *session = context;
    if (!session->enough) lb_watch_checkpoint_written(session->watch, step, text);
}

static void on_alarm(void *context, const lb_watch_alarm *alarm)
{
    session *session = context;
    if (session->live) lb_watch_print_alarm(session->live, alarm);
    lb_watch_actions_alarm(session->actions, alarm);
    if (session->options->exit_level && alarm->level >= session->options->exit_level) session->enough = true;
}

static void on_hold(void *context, const lb_watch_hold *hold)
{
    session *session = context;
    if (session->live) lb_watch_print_hold(session->live, hold);
    lb_watch_actions_hold(session->actions, hold);
}

static bool should_stop(void *context)
{
    session *session = context;
    lb_watch_actions_poll(session->actions);
    return session->enough || interrupted;
}

static void on_absent(void *context, const char *why)
{
    const session *session = context;
    fprintf(stderr, "lastbit watch: %s; waiting for %s\n", why, session->path);
}

static lb_status watch_log(session *session, lb_watched_log *out, lb_err *err)
{
    lb_watch_options watch = session->options->watch;
    const lb_watch_sink sink = {session, on_record, on_complaint, on_checkpoint};
    lb_watch_source source = LB_WATCH_SOURCE_INIT;
    lb_watch_log *log;
    watch.context = session, watch.alarm = on_alarm, watch.hold = on_hold;
    source.follow = session->options->follow, source.idle_seconds = session->options->idle, source.stop = should_stop,
    source.context = session;
    source.absent = on_absent;
    out->path = session->path;
    session->curves = out->curves;
    session->watch = out->watch = lb_watch_new(&watch);
    if (!session->watch) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    LB_TRY(lb_watch_log_new(&session->options->log, &sink, &log, err));
    const lb_status status = lb_watch_log_read(log, session->path, &source, err);
    if (status == LB_OK) lb_watch_now(session->watch); /* an alarm that the end of the log settles is told here, too */
    out->counts = lb_watch_log_counts(log);
    if (session->complaints > COMPLAINTS_SHOWN)
        fprintf(stderr, "lastbit watch: %s: %" PRIu64 " lines were skipped in all\n", session->path,
                session->complaints);
    lb_watch_log_free(log);
    return status;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* The number that a checkpoint's path ends in, be it "step_25000", "model_025000.pt" or "25000/weights.safetensors";
 * -1: none. */
static int64_t step_of_path(const char *path)
{
    int64_t step = -1;
    for (const char *at = path; *at;) {
        const size_t digits = strspn(at, "0123456789");
        if (digits && digits < 16 && !(at > path && (isalpha((unsigned char)at[-1]) && at[digits] == 'B')))
            step = strtoll(at, NULL, 10);
        at += digits ? digits : 1;
    }
    return step;
}

static int find_checkpoints(options *options)
{
    glob_t found = {0};
    if (!options->checkpoints) return 0;
    const int rc = glob(options->checkpoints, 0, NULL, &found);
    int64_t *steps = rc == 0 ? malloc(found.gl_pathc * sizeof *steps) : NULL;
    uint32_t n = 0;
    for (size_t i = 0; steps && i < found.gl_pathc; i++) {
        steps[n] = step_of_path(found.gl_pathv[i]);
        n += steps[n] >= 0;
    }
    if (rc == 0) globfree(&found);
    options->watch.checkpoints = steps, options->watch.n_checkpoints = n;
    if (rc == 0 && !n && steps)
        return lb_command_misused(NAME, "--checkpoints '%s': none of the paths has a step in it", options->checkpoints);
    if (rc != 0) fprintf(stderr, "lastbit watch: --checkpoints '%s' finds nothing yet\n", options->checkpoints);
    return 0;
}

static int check_schedule(options *options)
{
    lb_watch_schedule *schedule = &options->watch.schedule;
    if (!options->schedule) return 0;
    if (!lb_watch_schedule_parse(options->schedule, &schedule->kind))
        return lb_command_misused(NAME, "--schedule: `%s` is none of cosine, wsd, linear, constant", options->schedule);
    if (options->iterations < 0) return lb_command_misused(NAME, "--iterations is the length of the whole run");
    if (!(options->warmup >= 0 && options->warmup <= 1 && options->floor >= 0 && options->floor <= 1 &&
          options->decay >= 0 && options->decay <= 1))
        return lb_command_misused(NAME, "--warmup-ratio, --final-lr-frac and --decay-ratio lie between 0 and 1");
    schedule->iterations = options->iterations, schedule->warmup_ratio = options->warmup,
    schedule->final_frac = options->floor, schedule->decay_ratio = options->decay;
    return 0;
}

/* "loss=critical": from which level on alarms of a metric count. */
static int check_levels(options *options)
{
    for (char **text = options->levels; text && *text; text++) {
        static const char *const names[] = {"", "warning", "critical", "off"};
        const char *equals = strchr(*text, '=');
        int kind = 0, level = LB_ALARM_WARNING;
        while (equals && kind < LB_ALARM_KINDS &&
               (strlen(lb_alarm_kind_name((lb_alarm_kind)kind)) != (size_t)(equals - *text) ||
                strncmp(lb_alarm_kind_name((lb_alarm_kind)kind), *text, (size_t)(equals - *text)) != 0))
            kind++;
        while (equals && level <= LB_ALARM_OFF && strcmp(names[level], equals + 1) != 0) level++;
        if (!equals || kind == LB_ALARM_KINDS || level > LB_ALARM_OFF)
            return lb_command_misused(NAME,
                                      "--level: `%s` is not METRIC=LEVEL; metrics are grad_norm, nonfinite, loss, "
                                      "throughput, schedule, data, levels warning, critical, off",
                                      *text);
        options->watch.least[kind] = (lb_alarm_level)level;
    }
    return 0;
}

/* 0, or the exit code of a misuse. */
static int check_options(options *options, int n_logs)
{
    options->log = (lb_watch_log_options)LB_WATCH_LOG_OPTIONS_INIT;
    options->watch = (lb_watch_options)LB_WATCH_OPTIONS_INIT;
    if (options->format && !lb_watch_format_parse(options->format, &options->log.format))
        return lb_command_misused(
            NAME, "--format: `%s` is none of auto, line, pairs, jsonl, csv, events, pattern, capture, trainer, mlflow",
            options->format);
    if (options->pattern && options->format && options->log.format != LB_WATCH_PATTERN)
        return lb_command_misused(NAME, "--pattern is a format of its own: --format %s says another", options->format);
    if (!options->pattern && options->log.format == LB_WATCH_PATTERN)
        return lb_command_misused(NAME, "--format pattern needs --pattern REGEX");
    options->log.pattern = options->pattern;
    options->log.fields = (const char *const *)options->fields;
    for (options->log.n_fields = 0; options->fields && options->fields[options->log.n_fields];) options->log.n_fields++;
    if (options->exit_on && !strcmp(options->exit_on, "warning")) options->exit_level = LB_ALARM_WARNING;
    if (options->exit_on && !strcmp(options->exit_on, "critical")) options->exit_level = LB_ALARM_CRITICAL;
    if (options->exit_on && !options->exit_level)
        return lb_command_misused(NAME, "--exit-on: `%s` is none of warning, critical", options->exit_on);
    if (n_logs > 1 && (options->follow || options->hold || options->trigger))
        return lb_command_misused(NAME, "--follow, --hold and --trigger are about one log");
    if (options->every < 0 || options->idle < 0)
        return lb_command_misused(NAME, "--checkpoint-every and --idle are above 0");
    if (options->idle > 0 && !options->follow)
        return lb_command_misused(NAME, "--idle ends --follow, which is not given");
    options->watch.checkpoint_every = options->every;
    const int levels = check_levels(options), code = levels ? levels : check_schedule(options);
    return code ? code : find_checkpoints(options);
}

/* A pattern or a field that is wrong is misuse, and known before any log is opened. */
static int check_log_options(const options *options)
{
    const lb_watch_sink none = {0};
    lb_watch_log *log;
    lb_err err = LB_ERR_INIT;
    if (lb_watch_log_new(&options->log, &none, &log, &err) == LB_OK) {
        lb_watch_log_free(log);
        return 0;
    }
    return err.status == LB_ERR_INVALID ? lb_command_misused(NAME, "%s", err.message) : lb_command_fail(NAME, &err);
}

/* ---- all logs ---------------------------------------------------------------------------------------------------- */

static void look_between(const lb_watched_log *logs, uint32_t n, bool same_seed, lb_watch_between *between)
{
    enum { ROOM = 1000 };
    lb_watch **runs = calloc(n, sizeof *runs);
    between->alarms = calloc(ROOM, sizeof *between->alarms);
    for (uint32_t i = 0; runs && i < n; i++) runs[i] = logs[i].watch;
    if (runs && between->alarms && n > 1)
        between->n_alarms = lb_watch_reruns(runs, n, same_seed, between->alarms, ROOM, &between->finding);
    free(runs);
}

static int give_report(const lb_watched_log *logs, uint32_t n, const options *options, bool json)
{
    lb_watch_between between = {0};
    uint64_t records = 0, alarms = 0;
    bool undecided = false, foreign = false;
    look_between(logs, n, options->same_seed, &between);
    for (uint32_t i = 0; i < n; i++) {
        const lb_watch_report report = lb_watch_now(logs[i].watch);
        records += report.records, alarms += report.n_alarms;
        undecided |= !strcmp(lb_watch_verdict(&logs[i], &report), "undecided");
        foreign |= lb_watch_is_foreign(&logs[i], &report) && !options->follow;
        if (!report.records)
            fprintf(stderr,
                    "lastbit watch: %s: no step was found: is it a log of training? "
                    "--format and --pattern say how it is read, --field which names are meant\n",
                    logs[i].path);
        if (lb_watch_is_unreadable(&logs[i].counts))
            fprintf(stderr,
                    "lastbit watch: %s: %" PRIu64 " of its lines could not be read, %" PRIu64
                    " could: --format or --pattern says how\n",
                    logs[i].path, logs[i].counts.complaints, report.records);
    }
    alarms += between.n_alarms;
    lb_err err = LB_ERR_INIT;
    const bool written = lb_command_write_page(NAME, options->html ? lb_watch_json(logs, n, &between) : NULL,
                                               options->html, &err) == LB_OK;
    if (json)
        lb_command_print_json(NAME, lb_watch_json(logs, n, &between));
    else
        lb_watch_print_report(logs, n, &between);
    free(between.alarms);
    if (!written) return lb_command_fail(NAME, &err);
    if (foreign) return LB_EXIT_FAILED;
    if (alarms) return LB_EXIT_DIFFERENT;
    return !records || undecided ? LB_EXIT_UNTESTABLE : LB_EXIT_SAME;
}

static int run(const options *options, const char **paths, uint32_t n, bool json)
{
    lb_err err = LB_ERR_INIT;
    shard_list shards = {0};
    lb_watch_actions actions = {.hold_file = options->hold,
                                .command = options->on_alarm,
                                .trigger = options->trigger,
                                .webhook = options->webhook,
                                .file = options->alarm_file};
    lb_watched_log *logs = calloc(n, sizeof *logs);
    lb_status status = logs ? LB_OK : lb_fail(&err, LB_ERR_NOMEM, "out of memory");
    uint32_t begun = 0;
    if (status == LB_OK) status = lb_watch_actions_begin(&actions, paths, &err);
    if (status == LB_OK && options->shards) status = read_shards(options->shards, &shards, &err);
    for (; begun < n && status == LB_OK && !interrupted; begun++) {
        session session = {.options = options, .path = paths[begun], .shards = &shards, .actions = &actions};
        if (json || options->html) logs[begun].curves = calloc(1, sizeof *logs[begun].curves);
        session.live = !options->follow ? NULL : json ? stderr : stdout;
        actions.log = session.path;
        status = watch_log(&session, &logs[begun], &err);
    }
    lb_watch_actions_end(&actions, interrupted);
    const int code = status == LB_OK ? give_report(logs, begun, options, json) : lb_command_fail(NAME, &err);
    for (uint32_t i = 0; i < n && logs; i++) lb_watch_free(logs[i].watch), free(logs[i].curves);
    free(logs);
    free(shards.rows);
    return code;
}

static void release(options *options)
{
    char *texts[] = {options->format,      options->pattern, options->schedule,   options->hold,
                     options->checkpoints, options->shards,  options->on_alarm,   options->exit_on,
                     options->trigger,     options->webhook, options->alarm_file, options->html};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) free(texts[i]);
    for (char **field = options->fields; field && *field; field++) free(*field);
    free(options->fields);
    for (char **level = options->levels; level && *level; level++) free(*level);
    free(options->levels);
    free((void *)(uintptr_t)options->watch.checkpoints);
}

int lb_cmd_watch(int argc, const char **argv)
{
    options options = {.warmup = 0.03, .decay = 0.2};
    const struct poptOption table[] = {
        {"follow", 'f', POPT_ARG_NONE, &options.follow, 0,
         "wait for more, also when the log is not there yet, is cut or rotated; alarms are printed as they come", NULL},
        {"idle", 0, POPT_ARG_DOUBLE, &options.idle, 0, "with --follow: stop when nothing has come for so long",
         "SECONDS"},
        {"format", 0, POPT_ARG_STRING, &options.format, 0,
         "line, pairs, jsonl, csv, events (TensorBoard), capture, trainer (trainer_state.json of transformers); "
         "by default found from the content",
         "FORMAT"},
        {"pattern", 0, POPT_ARG_STRING, &options.pattern, 0,
         "lines are those that match; named groups are fields: 'it (?<step>\\d+) loss=(?<loss>\\S+)'", "REGEX"},
        {"field", 0, POPT_ARG_ARGV, &options.fields, 0,
         "the log's own name of loss, gnorm, lrm, lr, dt, tok_sec, ema, shard, curriculum, tokens, counts, "
         "checkpoint, step, rank or skipped; may be given several times",
         "FIELD=NAME"},
        {"schedule", 0, POPT_ARG_STRING, &options.schedule, 0,
         "cosine, wsd, linear or constant: the first step is named whose learning rate is not the formula's", "NAME"},
        {"iterations", 0, POPT_ARG_LONGLONG, &options.iterations, 0,
         "of the schedule; by default what the log says (step 50/30000)", "N"},
        {"warmup-ratio", 0, POPT_ARG_DOUBLE, &options.warmup, 0, "of the iterations (0.03)", "R"},
        {"final-lr-frac", 0, POPT_ARG_DOUBLE, &options.floor, 0, "multiplier that it ends at (0)", "F"},
        {"decay-ratio", 0, POPT_ARG_DOUBLE, &options.decay, 0, "wsd: share of the iterations in which it falls (0.2)",
         "R"},
        {"hold", 0, POPT_ARG_STRING, &options.hold, 0, "this file exists while no checkpoint should be written",
         "FILE"},
        {"checkpoints", 0, POPT_ARG_STRING, &options.checkpoints, 0,
         "the checkpoints there are; those written while the run was out of its usual range are named", "GLOB"},
        {"checkpoint-every", 0, POPT_ARG_LONGLONG, &options.every, 0,
         "the same, of a run that writes one every N steps", "N"},
        {"shards", 0, POPT_ARG_STRING, &options.shards, 0,
         "which shard each step read: rows of step and shard, from where it began", "FILE"},
        {"same-seed", 0, POPT_ARG_NONE, &options.same_seed, 0,
         "the logs are reruns with one seed and one order: their first losses must agree", NULL},
        {"on-alarm", 0, POPT_ARG_STRING, &options.on_alarm, 0,
         "run this by sh, one at a time, with LASTBIT_ALARM_STEP, _KIND, _LEVEL, _DETECTOR, _VALUE, _REFERENCE, "
         "_RATIO, _SHARD, _WHY and LASTBIT_LOG",
         "CMD"},
        {"webhook", 0, POPT_ARG_STRING, &options.webhook, 0, "post each alarm there as JSON, one at a time (by curl)",
         "URL"},
        {"html", 0, POPT_ARG_STRING, &options.html, 0, "also write the page of `lastbit report`", "FILE"},
        {"alarm-file", 0, POPT_ARG_STRING, &options.alarm_file, 0,
         "append each alarm to this file, a line of JSON each", "FILE"},
        {"level", 0, POPT_ARG_ARGV, &options.levels, 0,
         "alarms of a metric (grad_norm, nonfinite, loss, throughput, schedule, data) count from this level on: "
         "warning (as by default), critical, off; what is below is noted, and decides no exit code; "
         "may be given several times",
         "METRIC=LEVEL"},
        {"exit-on", 0, POPT_ARG_STRING, &options.exit_on, 0, "stop at the first alarm of this level: warning, critical",
         "LEVEL"},
        {"trigger", 0, POPT_ARG_STRING, &options.trigger, 0,
         "at the first alarm of loss, norm or a NaN have the flight recorder written (lastbit record --ring)",
         "PID|FOLDER"},
        POPT_TABLEEND,
    };
    const lb_command command = {
        .name = NAME,
        .synopsis = "LOG|FOLDER|CAPTURE|- [LOG...]",
        .about = "Reads the log of a training run and says what goes wrong in it: numbers that are not finite, "
                 "the gradient norm, the loss, the throughput, the schedule, the data. "
                 "It applies rules of thumb that practitioners use and, beside them, "
                 "a detector whose rate of false alarms is stated. Several logs are taken for reruns: "
                 "a spike that comes back with the same data shard is due to the shard. A FOLDER holds event files, "
                 "the checkpoints of transformers' Trainer, or MLflow's metrics. Known names: loss, train/loss, "
                 "grad_norm, gnorm, lr, step, global_step, ...",
        .example = "  lastbit watch train.log --checkpoint-every 5000       # a finished run: "
                   "which checkpoint to restart from\n"
                   "  lastbit record -o run.lb --ring 20 -- python train.py > train.log &\n"
                   "  lastbit watch -f train.log --hold no-checkpoint --trigger run.lb",
        .options = table,
        .min_args = 1,
        .max_args = -1,
    };
    lb_command_arguments arguments;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code < 0) {
        code = check_options(&options, arguments.n_args);
        if (code == 0) code = check_log_options(&options);
        if (code == 0) {
            const struct sigaction end = {.sa_handler = interrupt, .sa_flags = SA_RESETHAND};
            if (options.follow) sigaction(SIGINT, &end, NULL), sigaction(SIGTERM, &end, NULL);
            code = run(&options, arguments.args, (uint32_t)arguments.n_args, arguments.json);
        }
        lb_command_arguments_release(&arguments);
    }
    release(&options);
    return code;
}
