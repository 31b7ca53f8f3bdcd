/* What `lastbit watch` prints: see watch_output.h. */
#include "cli/watch_output.h"

#include "command/command_line.h"

#include <lastbit/text.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { ALARMS_SHOWN = 30, ROWS_SHOWN = 8 };

/* ---- as it happens ----------------------------------------------------------------------------------------------- */

void lb_watch_print_alarm(FILE *out, const lb_watch_alarm *alarm)
{
    fprintf(out, "step %" PRId64 ": %s %s (%s): %s%s%s\n", alarm->step, lb_alarm_level_name(alarm->level),
            lb_alarm_kind_name(alarm->kind), lb_alarm_detector_name(alarm->detector), alarm->why,
            *alarm->shard ? "; shard " : "", alarm->shard);
    fflush(out);
}

void lb_watch_print_hold(FILE *out, const lb_watch_hold *hold)
{
    if (hold->open)
        fprintf(out, "step %" PRId64 ": hold: no checkpoint should be written\n", hold->from);
    else
        fprintf(out, "step %" PRId64 ": the hold that began at step %" PRId64 " is over\n", hold->to, hold->from);
    fflush(out);
}

/* ---- what can be said at all ------------------------------------------------------------------------------------- */

bool lb_watch_is_unreadable(const lb_watch_counts *counts)
{
    return counts->records && counts->complaints >= counts->records;
}

bool lb_watch_is_foreign(const lb_watched_log *log, const lb_watch_report *report)
{
    const lb_watch_format format = log->counts.format;
    return !report->records && (!log->counts.names.n_others || format == LB_WATCH_AUTO) && format != LB_WATCH_CAPTURE;
}

const char *lb_watch_verdict(const lb_watched_log *log, const lb_watch_report *report)
{
    const bool series = report->rows[LB_WATCH_loss] || report->rows[LB_WATCH_gnorm] || report->rows[LB_WATCH_tok_sec] ||
                        report->rows[LB_WATCH_dt] || report->rows[LB_WATCH_tokens] || report->rows[LB_WATCH_counts] ||
                        report->rows[LB_WATCH_skipped] || report->rows[LB_WATCH_lr] || report->rows[LB_WATCH_lrm];
    if (report->n_alarms) return "found";
    return !report->records || !series || lb_watch_is_unreadable(&log->counts) ? "undecided" : "clean";
}

/* ---- both detectors side by side --------------------------------------------------------------------------------- */

typedef struct tally {
    uint32_t n;
    int64_t first;
} tally;

static tally tally_of(const lb_watch_report *report, lb_alarm_kind kind, lb_alarm_detector detector)
{
    tally t = {0, -1};
    for (uint32_t i = 0; i < report->n_alarms; i++) {
        if (report->alarms[i].kind != kind || report->alarms[i].detector != detector) continue;
        if (!t.n++) t.first = report->alarms[i].step;
    }
    return t;
}

static const lb_alarm_kind JUDGED_TWICE[] = {LB_ALARM_GRAD_NORM, LB_ALARM_LOSS};
enum { TWICE = sizeof JUDGED_TWICE / sizeof *JUDGED_TWICE, NAMES_SHOWN = 12, RULE_NEEDS_LOSSES = 30 };

static int64_t judged_from(const lb_watch_report *report, lb_watch_field field)
{
    return field == LB_WATCH_loss    ? report->loss_since
           : field == LB_WATCH_gnorm ? report->norm_since
           : report->rows[field]     ? report->first_step
                                     : -1;
}

static const lb_watch_field READ[] = {LB_WATCH_loss, LB_WATCH_gnorm};
static const char *const READ_NAMES[] = {"loss", "gradient norm"};

/* "loss from train/loss, 800 rows; gradient norm: none in this log; the model judges from step 64". */
static void print_read(const lb_watched_log *log, const lb_watch_report *report)
{
    const lb_watch_names *names = &log->counts.names;
    printf("%-10s", "read");
    for (int i = 0; i < TWICE; i++) {
        const lb_watch_field field = READ[i];
        if (!report->rows[field])
            printf("%s: none in this log; ", READ_NAMES[i]);
        else if (*names->of[field])
            printf("%s from %s, %" PRIu64 " row%s; ", READ_NAMES[i], names->of[field], report->rows[field],
                   report->rows[field] == 1 ? "" : "s");
        else
            printf("%s, %" PRIu64 " row%s; ", READ_NAMES[i], report->rows[field], report->rows[field] == 1 ? "" : "s");
    }
    const int64_t loss = report->loss_since, norm = report->norm_since,
                  since = loss < 0                  ? norm
                          : norm < 0 || loss < norm ? loss
                                                    : norm;
    if (since < 0)
        printf("the model cannot judge yet: it needs 64 rows of a loss or a norm\n");
    else
        printf("the model judges from step %" PRId64 "\n", since);
    if (log->counts.numbered)
        printf("%-10sno step in %" PRIu64 " of %" PRIu64 " rows: rows are counted instead\n", "", log->counts.numbered,
               log->counts.records);
}

/* What --field could mean: names of numbers that were not read. */
static void print_fields(const lb_watched_log *log, const lb_watch_report *report)
{
    const lb_watch_names *names = &log->counts.names;
    if (!names->n_others || (report->rows[LB_WATCH_loss] && report->rows[LB_WATCH_gnorm])) return;
    const char *field = !report->records              ? "step=NAME and --field loss"
                        : report->rows[LB_WATCH_loss] ? "gnorm"
                                                      : "loss";
    printf("%-10s--field %s=NAME, where NAME is one of ", "", field);
    for (uint32_t i = 0; i < names->n_others && i < NAMES_SHOWN; i++) {
        char name[4 * LB_WATCH_NAME];
        lb_text_escape(LB_TEXT_NAME, names->others[i], strlen(names->others[i]), name, sizeof name);
        printf("%s%s", i ? ", " : "", name);
    }
    printf("%s\n", names->n_others > NAMES_SHOWN ? ", ..." : "");
}

static void print_tally(const char *name, const tally *tally, uint64_t rows, bool judges)
{
    if (tally->n)
        printf("%s %u alarm%s, the first at step %" PRId64, name, tally->n, tally->n == 1 ? "" : "s", tally->first);
    else if (!rows)
        printf("%s has nothing to read", name);
    else if (!judges)
        printf("%s cannot judge yet, after %" PRIu64 " row%s", name, rows, rows == 1 ? "" : "s");
    else
        printf("%s silent", name);
}

static void print_detectors(const lb_watch_report *report)
{
    for (int i = 0; i < TWICE; i++) {
        const tally rule = tally_of(report, JUDGED_TWICE[i], LB_DETECTOR_RULE),
                    model = tally_of(report, JUDGED_TWICE[i], LB_DETECTOR_MODEL);
        const lb_watch_field field = JUDGED_TWICE[i] == LB_ALARM_LOSS ? LB_WATCH_loss : LB_WATCH_gnorm;
        const uint64_t rows = report->rows[field];
        printf("%-10s%-10s", i ? "" : "detectors", lb_alarm_kind_name(JUDGED_TWICE[i]));
        print_tally("rule", &rule, rows, rows >= (field == LB_WATCH_loss ? RULE_NEEDS_LOSSES : 2));
        printf("; ");
        print_tally("model", &model, rows, judged_from(report, field) >= 0);
        if (rule.n && model.n && model.first < rule.first)
            printf(" (%" PRId64 " steps before)", rule.first - model.first);
        printf("\n");
    }
}

/* ---- in words ---------------------------------------------------------------------------------------------------- */

static const char *pattern_text(lb_watch_pattern pattern)
{
    switch (pattern) {
    case LB_SPIKE_IMMEDIATE_NAN:
        return "numbers are not finite from the start: the optimizer or the precision, not the data";
    case LB_SPIKE_EARLY:
        return "a spike of the first steps that settles: mostly harmless; see whether other settings have it, too";
    case LB_SPIKE_LATE_TRANSIENT: return "the loss rises late: a shard, a border between shards, or the schedule";
    default: return "";
    }
}

static void print_alarm(const lb_watch_alarm *alarm, const char *title)
{
    printf("%-10s%-8s %-10s %-9s %" PRId64, title, lb_alarm_level_name(alarm->level), lb_alarm_kind_name(alarm->kind),
           lb_alarm_detector_name(alarm->detector), alarm->step);
    if (alarm->until > alarm->step) printf(" to %" PRId64, alarm->until);
    printf(": %s%s%s\n", alarm->why, *alarm->shard ? "; shard " : "", alarm->shard);
}

/* The critical ones first, each in order of their steps. */
static void print_alarms(const lb_watch_alarm *alarms, uint32_t n, const char *title)
{
    uint32_t shown = 0;
    for (int level = LB_ALARM_CRITICAL; level >= 0; level--)
        for (uint32_t i = 0; i < n && shown < ALARMS_SHOWN; i++)
            if ((int)alarms[i].level == level) print_alarm(&alarms[i], shown++ ? "" : title);
    if (n > ALARMS_SHOWN) printf("%-10sand %u more: --json lists them\n", "", n - ALARMS_SHOWN);
}

static void print_holds(const lb_watch_report *report)
{
    for (uint32_t i = 0; i < report->n_holds && i < ROWS_SHOWN; i++)
        printf("%-10sno checkpoint from step %" PRId64 " to %" PRId64 "%s\n", i ? "" : "holds", report->holds[i].from,
               report->holds[i].to, report->holds[i].open ? ", and not over yet" : "");
    if (report->n_holds > ROWS_SHOWN) printf("%-10sand %u more\n", "", report->n_holds - ROWS_SHOWN);
    for (uint32_t i = 0; i < report->n_checkpoints && i < ROWS_SHOWN; i++) {
        const lb_watch_checkpoint *checkpoint = &report->checkpoints[i];
        printf("%-10sthe checkpoint of step %" PRId64 " was written while the run was out of its usual range (%" PRId64
               " to %" PRId64 ")%s%s\n",
               i ? "" : "spoiled", checkpoint->step, checkpoint->from, checkpoint->to, *checkpoint->text ? ": " : "",
               checkpoint->text);
    }
}

static bool has_kind(const lb_watch_report *report, lb_alarm_kind kind)
{
    for (uint32_t i = 0; i < report->n_alarms; i++)
        if (report->alarms[i].kind == kind) return true;
    return false;
}

/* What a capture has recorded can be looked into at once. */
static void print_next_of_capture(const char *path, const lb_watch_report *report, const char *title)
{
    int64_t step = INT64_MIN;
    for (uint32_t i = 0; i < report->n_alarms && step == INT64_MIN; i++)
        if (report->alarms[i].kind != LB_ALARM_DATA && report->alarms[i].kind != LB_ALARM_THROUGHPUT)
            step = report->alarms[i].step;
    if (step == INT64_MIN) return;
    printf("%-10slastbit bisect %s; the step alone: lastbit replay %s --steps %" PRId64 "\n", title, path, path, step);
}

static void print_next(const lb_watched_log *log, const lb_watch_report *report)
{
    const char *title = "next";
    if (report->restart_from >= 0) {
        printf("%-10srestart from the checkpoint of step %" PRId64 "%s\n", title, report->restart_from,
               report->n_checkpoints ? ", not from a spoiled one" : "");
        title = "";
    }
    if (log->counts.format == LB_WATCH_CAPTURE) {
        print_next_of_capture(log->path, report, title);
        return;
    }
    if (report->pattern == LB_SPIKE_IMMEDIATE_NAN) {
        printf("%-10srecord the first steps: lastbit record -o run.lb --steps 0-3 -- CMD; then lastbit bisect run.lb\n",
               title);
        title = "";
    } else if (has_kind(report, LB_ALARM_LOSS) || has_kind(report, LB_ALARM_GRAD_NORM) ||
               has_kind(report, LB_ALARM_NONFINITE)) {
        printf("%-10sgo over these steps again under lastbit record --ring 20, with lastbit watch --follow --trigger "
               "FOLDER\n",
               title);
        title = "";
    }
    if (report->pattern == LB_SPIKE_LATE_TRANSIENT)
        printf("%-10sgive the logs of reruns together, with their shards: "
               "a spike that comes back with a file is that file's\n",
               title);
}

static void print_findings(const lb_watch_report *report)
{
    for (uint32_t i = 0; i < report->n_findings && i < ROWS_SHOWN; i++) {
        printf("%-10s", i ? "" : "noted");
        if (report->findings[i].step != INT64_MIN) printf("step %" PRId64 ": ", report->findings[i].step);
        printf("%s\n", report->findings[i].text);
    }
    if (report->skipped || report->nonfinite)
        printf("%-10s%" PRIu64 " steps not finite, %" PRIu64 " skipped; %s\n", "guard", report->nonfinite,
               report->skipped,
               report->schedule_stood == 1   ? "the schedule stood still meanwhile"
               : report->schedule_stood == 0 ? "the schedule went on meanwhile"
                                             : "whether the schedule stood still does not show");
}

static void print_one(const lb_watched_log *log)
{
    const lb_watch_report report = lb_watch_now(log->watch);
    if (!report.records) {
        printf("%s: no step was found\n", log->path);
        print_fields(log, &report);
        return;
    }
    printf("%s: %s, %u alarm%s in %" PRIu64 " steps (%" PRId64 " to %" PRId64 ")\n", log->path,
           lb_watch_verdict(log, &report), report.n_alarms, report.n_alarms == 1 ? "" : "s", report.records,
           report.first_step, report.last_step);
    print_read(log, &report);
    print_fields(log, &report);
    print_detectors(&report);
    print_alarms(report.alarms, report.n_alarms, "alarms");
    print_holds(&report);
    if (report.pattern != LB_SPIKE_NONE)
        printf("%-10s%s: %s\n", "pattern", lb_watch_pattern_name(report.pattern), pattern_text(report.pattern));
    print_findings(&report);
    if (report.n_alarms) print_next(log, &report);
}

void lb_watch_print_report(const lb_watched_log *logs, uint32_t n, const lb_watch_between *between)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i) printf("\n");
        print_one(&logs[i]);
    }
    if (n < 2) return;
    printf("\n%u logs together: %s\n", n, between->n_alarms ? "found" : "nothing comes back");
    print_alarms(between->alarms, between->n_alarms, "alarms");
    if (*between->finding.text) printf("%-10s%s\n", "noted", between->finding.text);
}

/* ---- as JSON ----------------------------------------------------------------------------------------------------- */

static json_t *text_or_null(const char *text)
{
    json_t *string = *text ? json_string(text) : NULL;
    return string ? string : json_null();
}

json_t *lb_watch_alarm_json(const lb_watch_alarm *alarm, const char *log)
{
    json_t *row =
        json_pack("{s:I, s:I, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:s}", "step", (json_int_t)alarm->step, "until",
                  (json_int_t)alarm->until, "kind", lb_alarm_kind_name(alarm->kind), "level",
                  lb_alarm_level_name(alarm->level), "detector", lb_alarm_detector_name(alarm->detector), "value",
                  lb_command_json_finite(alarm->value), "reference", lb_command_json_finite(alarm->reference), "ratio",
                  lb_command_json_finite(alarm->ratio), "shard", text_or_null(alarm->shard), "why", alarm->why);
    if (row && log) json_object_set_new(row, "log", json_string(log));
    return row;
}

static void add_alarms(json_t *list, const lb_watch_alarm *alarms, uint32_t n, const char *log)
{
    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, lb_watch_alarm_json(&alarms[i], log));
}

static void add_holds(json_t *list, const lb_watch_report *report, const char *log)
{
    for (uint32_t i = 0; i < report->n_holds; i++) {
        json_t *row = json_pack("{s:I, s:I, s:b}", "from", (json_int_t)report->holds[i].from, "to",
                                (json_int_t)report->holds[i].to, "open", report->holds[i].open);
        if (row && log) json_object_set_new(row, "log", json_string(log));
        json_array_append_new(list, row);
    }
}

static json_t *findings_json(const lb_watch_finding *findings, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:o, s:s}", "kind", findings[i].kind, "step",
                                        findings[i].step == INT64_MIN ? json_null() : json_integer(findings[i].step),
                                        "text", findings[i].text));
    return list;
}

static json_t *checkpoints_json(const lb_watch_report *report)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < report->n_checkpoints; i++) {
        const lb_watch_checkpoint *checkpoint = &report->checkpoints[i];
        json_array_append_new(list, json_pack("{s:I, s:I, s:I, s:o}", "step", (json_int_t)checkpoint->step, "from",
                                              (json_int_t)checkpoint->from, "to", (json_int_t)checkpoint->to, "text",
                                              text_or_null(checkpoint->text)));
    }
    return list;
}

static json_t *tally_json(const lb_watch_report *report, lb_alarm_kind kind, lb_alarm_detector detector)
{
    const tally tally = tally_of(report, kind, detector);
    return json_pack("{s:i, s:o}", "alarms", (int)tally.n, "first", tally.n ? json_integer(tally.first) : json_null());
}

static json_t *detectors_json(const lb_watch_report *report)
{
    json_t *all = json_object();
    for (int i = 0; i < TWICE; i++)
        json_object_set_new(all, lb_alarm_kind_name(JUDGED_TWICE[i]),
                            json_pack("{s:o, s:o}", "rule", tally_json(report, JUDGED_TWICE[i], LB_DETECTOR_RULE),
                                      "model", tally_json(report, JUDGED_TWICE[i], LB_DETECTOR_MODEL)));
    const int64_t loss = report->loss_since, norm = report->norm_since,
                  since = loss < 0                  ? norm
                          : norm < 0 || loss < norm ? loss
                                                    : norm;
    json_object_set_new(all, "model_since", since < 0 ? json_null() : json_integer(since));
    json_object_set_new(all, "false_alarms_per_run", json_real(LB_WATCH_FALSE_ALARMS));
    return all;
}

/* Of each field that the log has: what it is called there, how many rows, and from which step on it is judged. */
static json_t *series_json(const lb_watched_log *log, const lb_watch_report *report)
{
    json_t *list = json_array();
    for (int field = 0; field < LB_WATCH_FIELDS; field++) {
        const int64_t from = judged_from(report, (lb_watch_field)field);
        if (!report->rows[field] && field != LB_WATCH_loss && field != LB_WATCH_gnorm) continue;
        json_array_append_new(
            list, json_pack("{s:s, s:o, s:I, s:o}", "field", lb_watch_field_name((lb_watch_field)field), "name",
                            text_or_null(log->counts.names.of[field]), "rows", (json_int_t)report->rows[field],
                            "judged_from", from < 0 ? json_null() : json_integer(from)));
    }
    return list;
}

static json_t *names_json(const lb_watch_names *names)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < names->n_others; i++) json_array_append_new(list, json_string(names->others[i]));
    return list;
}

static json_t *one_json(const lb_watched_log *log)
{
    const lb_watch_report report = lb_watch_now(log->watch);
    json_t *alarms = json_array(), *holds = json_array();
    add_alarms(alarms, report.alarms, report.n_alarms, NULL);
    add_holds(holds, &report, NULL);
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I}", "log",
        log->path, "format", lb_watch_format_name(log->counts.format), "verdict", lb_watch_verdict(log, &report),
        "alarms", alarms, "holds", holds, "pattern", lb_watch_pattern_name(report.pattern), "checkpoints",
        checkpoints_json(&report), "restart_from",
        report.restart_from < 0 ? json_null() : json_integer(report.restart_from), "findings",
        findings_json(report.findings, report.n_findings), "detectors", detectors_json(&report), "steps",
        (json_int_t)report.records, "first_step", (json_int_t)report.first_step, "last_step",
        (json_int_t)report.last_step, "nonfinite", (json_int_t)report.nonfinite, "skipped", (json_int_t)report.skipped,
        "lines", (json_int_t)log->counts.lines, "bad_lines", (json_int_t)log->counts.complaints, "schedule_stood",
        report.schedule_stood < 0 ? json_null() : json_boolean(report.schedule_stood), "dropped",
        (json_int_t)report.dropped);
    json_object_set_new(object, "series", series_json(log, &report));
    json_object_set_new(object, "numbered", json_integer((json_int_t)log->counts.numbered));
    json_object_set_new(object, "unread", names_json(&log->counts.names));
    if (log->curves) json_object_set_new(object, "curves", lb_watch_curves_json(log->curves));
    return object;
}

/* Several logs: what one would say of each, and all alarms and holds with the log they are of. */
json_t *lb_watch_json(const lb_watched_log *logs, uint32_t n, const lb_watch_between *between)
{
    if (n == 1) return one_json(&logs[0]);
    json_t *alarms = json_array(), *holds = json_array(), *runs = json_array();
    lb_watch_pattern pattern = LB_SPIKE_NONE;
    for (uint32_t i = 0; i < n; i++) {
        const lb_watch_report report = lb_watch_now(logs[i].watch);
        add_alarms(alarms, report.alarms, report.n_alarms, logs[i].path);
        add_holds(holds, &report, logs[i].path);
        if (pattern == LB_SPIKE_NONE) pattern = report.pattern;
        json_array_append_new(runs, one_json(&logs[i]));
    }
    add_alarms(alarms, between->alarms, between->n_alarms, NULL);
    const char *verdict = "clean";
    for (uint32_t i = 0; i < n; i++) {
        const lb_watch_report report = lb_watch_now(logs[i].watch);
        if (!strcmp(lb_watch_verdict(&logs[i], &report), "undecided")) verdict = "undecided";
    }
    if (json_array_size(alarms) > 0) verdict = "found";
    return json_pack("{s:s, s:o, s:o, s:s, s:o, s:o}", "verdict", verdict, "alarms", alarms, "holds", holds, "pattern",
                     lb_watch_pattern_name(pattern), "findings",
                     findings_json(&between->finding, *between->finding.text ? 1 : 0), "runs", runs);
}
