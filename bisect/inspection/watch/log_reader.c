/* Logs read as they come: see lastbit/watch.h. Bytes are cut into lines (or records of an event file), the format is
 * found from the first of them, and its reader fills a record. */
#include "watch/tensorboard.h"
#include "watch/log_line.h"
#include "watch/log_match.h"
#include "watch/log_object.h"
#include "watch/log_pairs.h"
#include "watch/log_reader.h"
#include "watch/log_table.h"
#include "watch/trainer_history.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A line longer than this is no line of a log; the first so many bytes say what the format is. */
enum { LONGEST_LINE = 1 << 20, FIRST_BYTES = 12, LONGEST_COLOURED = 1 << 14 };

struct lb_watch_log {
    lb_watch_sink sink;
    lb_field_names names;
    lb_watch_format format;
    lb_line_reader line;
    lb_pairs_reader pairs;
    lb_table_reader table;
    lb_match_reader *match;
    lb_event_reader events;
    lb_history_reader history;
    lb_watch_counts counts;
    char *kept; /* what has come of a line, or of an event record */
    size_t n, room;
    bool passing;       /* the rest of a line that is too long */
    int64_t last_step;  /* of a record with a step */
    int64_t next_index; /* of records without */
};

static const struct {
    const char *name;
    lb_watch_format format;
} FORMATS[] = {{"auto", LB_WATCH_AUTO},          {"line", LB_WATCH_LINE},
               {"jsonl", LB_WATCH_JSONL},        {"csv", LB_WATCH_CSV},
               {"pairs", LB_WATCH_PAIRS},        {"events", LB_WATCH_EVENTS},
               {"tensorboard", LB_WATCH_EVENTS}, {"pattern", LB_WATCH_PATTERN},
               {"capture", LB_WATCH_CAPTURE},    {"trainer", LB_WATCH_TRAINER},
               {"mlflow", LB_WATCH_MLFLOW}};

const char *lb_watch_format_name(lb_watch_format format)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (FORMATS[i].format == format) return FORMATS[i].name;
    return "";
}

bool lb_watch_format_parse(const char *text, lb_watch_format *format)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (!strcmp(FORMATS[i].name, text)) return *format = FORMATS[i].format, true;
    return false;
}

/* ---- life-cycle -------------------------------------------------------------------------------------------------- */

lb_status lb_watch_log_new(const lb_watch_log_options *options, const lb_watch_sink *sink, lb_watch_log **out,
                           lb_err *err)
{
    *out = NULL;
    lb_watch_log *log = calloc(1, sizeof *log);
    if (!log) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    log->sink = *sink;
    log->format = options->pattern ? LB_WATCH_PATTERN : options->format;
    lb_status status = lb_field_names_init(&log->names, options->fields, options->n_fields, err);
    if (status == LB_OK && log->format == LB_WATCH_PATTERN)
        status = options->pattern ? lb_match_reader_new(&log->names, options->pattern, &log->match, err)
                                  : lb_fail(err, LB_ERR_INVALID, "the format `pattern` needs a pattern");
    log->line.names = log->events.names = &log->names;
    lb_pairs_reader_init(&log->pairs, &log->names);
    if (log->format != LB_WATCH_AUTO) log->names.seen = &log->counts.names;
    if (status != LB_OK)
        lb_watch_log_free(log);
    else
        *out = log;
    return status;
}

void lb_watch_log_free(lb_watch_log *log)
{
    if (!log) return;
    lb_field_names_release(&log->names);
    lb_match_reader_free(log->match);
    free(log->kept);
    free(log);
}

lb_watch_counts lb_watch_log_counts(const lb_watch_log *log)
{
    lb_watch_counts counts = log->counts;
    counts.format = log->format;
    return counts;
}

/* ---- what is given on -------------------------------------------------------------------------------------------- */

static void complain(lb_watch_log *log, const char *why)
{
    log->counts.complaints++;
    if (log->sink.complaint) log->sink.complaint(log->sink.context, log->counts.lines, why);
}

void lb_watch_log_give(lb_watch_log *log, lb_watch_record *record)
{
    if (!lb_watch_has(record, LB_WATCH_step)) {
        record->step = log->next_index, record->has |= 1u << LB_WATCH_step;
        log->counts.numbered++;
    }
    if (record->step < 0) {
        complain(log, "its step is negative");
        return;
    }
    log->next_index = record->step + 1;
    log->last_step = record->step;
    record->line = log->counts.lines;
    log->counts.records++;
    log->sink.record(log->sink.context, record);
}

void lb_watch_log_is(lb_watch_log *log, lb_watch_format format)
{
    log->format = format;
    log->names.seen = &log->counts.names;
}
lb_field_names *lb_watch_log_names(lb_watch_log *log)
{
    return &log->names;
}

void lb_watch_log_give_checkpoint(lb_watch_log *log, int64_t step, const char *path)
{
    if (log->sink.checkpoint) log->sink.checkpoint(log->sink.context, step, path);
}

bool lb_watch_log_is_whole(const lb_watch_log *log)
{
    return lb_history_is_whole(&log->history);
}

/* ---- lines that are no step -------------------------------------------------------------------------------------- */

static bool contains(const char *line, size_t n, const char *word)
{
    const size_t length = strlen(word);
    for (size_t at = 0; at + length <= n; at++)
        if (!strncasecmp(line + at, word, length)) return true;
    return false;
}

/* Of the numbers in a line about a checkpoint the one that is its step: the last that the log may have reached. */
static int64_t step_named(const lb_watch_log *log, const char *line, size_t n)
{
    int64_t found = log->last_step;
    for (size_t at = 0; at < n; at++) {
        int64_t number = 0;
        size_t digits = 0;
        while (at + digits < n && isdigit((unsigned char)line[at + digits]) && digits < 15)
            number = number * 10 + (line[at + digits++] - '0');
        if (digits && number && number <= log->last_step + 1 && number * 2 >= log->last_step) found = number;
        at += digits;
    }
    return found;
}

static bool speaks_of_checkpoint(const char *line, size_t n)
{
    return (contains(line, n, "checkpoint") || contains(line, n, "ckpt")) &&
           (contains(line, n, "sav") || contains(line, n, "writ") || contains(line, n, "wrote")) &&
           !contains(line, n, "fail");
}

static bool is_text(const char *line, size_t n)
{
    for (size_t at = 0; at < n; at++)
        if ((unsigned char)line[at] < ' ' && line[at] != '\t') return false;
    return true;
}

static void other_line(lb_watch_log *log, const char *line, size_t n)
{
    char text[160];
    if (!n) return;
    if (n < 4096 && speaks_of_checkpoint(line, n)) {
        snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1), line);
        if (log->sink.checkpoint) log->sink.checkpoint(log->sink.context, step_named(log, line, n), text);
        return;
    }
    if (log->format == LB_WATCH_PAIRS && is_text(line, n)) return; /* what a program says besides */
    if (contains(line, n < 4096 ? n : 4096, "%|")) return;         /* a progress bar */
    if (log->format != LB_WATCH_AUTO || !is_text(line, n))
        complain(log, "it is not a step"); /* before, any text may stand */
}

/* ---- formats ----------------------------------------------------------------------------------------------------- */

static lb_watch_format format_of(lb_watch_log *log, const char *line, size_t n)
{
    lb_watch_record record;
    const char *why;
    if (lb_history_begins(line, n)) return LB_WATCH_TRAINER;
    if (n && *line == '{') return LB_WATCH_JSONL;
    const bool is_line = lb_line_read(&log->line, line, n, &record, &why) != LB_LINE_OTHER;
    const uint32_t by_line = is_line ? record.has : 0;
    if (!is_line && lb_table_header(&log->table, &log->names, line, n)) return LB_WATCH_CSV;
    const bool is_pairs = lb_pairs_read(&log->pairs, line, n, &record, &why) == LB_LINE_RECORD;
    if (is_line) return is_pairs && (record.has & ~by_line) ? LB_WATCH_PAIRS : LB_WATCH_LINE;
    return is_pairs ? LB_WATCH_PAIRS : LB_WATCH_AUTO;
}

static bool read_line(lb_watch_log *log, const char *line, size_t n, lb_watch_record *record, bool *is_other,
                      const char **why)
{
    *is_other = false;
    switch (log->format) {
    case LB_WATCH_JSONL:
        *is_other = *line != '{';
        return !*is_other && lb_object_read(&log->names, line, n, record, why);
    case LB_WATCH_CSV:
        if (!log->table.separator) {
            *is_other = !lb_table_header(&log->table, &log->names, line, n);
            return *why = NULL, false;
        }
        return lb_table_row(&log->table, line, n, record, why);
    case LB_WATCH_PATTERN:
        if (lb_match_read(log->match, line, n, record, why)) return true;
        *is_other = !*why;
        return false;
    case LB_WATCH_PAIRS: {
        if (*line == '{') return lb_object_read(&log->names, line, n, record, why);
        const lb_line_answer answer = lb_pairs_read(&log->pairs, line, n, record, why);
        *is_other = answer == LB_LINE_OTHER;
        return answer == LB_LINE_RECORD;
    }
    default: {
        const lb_line_answer answer = lb_line_read(&log->line, line, n, record, why);
        *is_other = answer == LB_LINE_OTHER;
        return answer == LB_LINE_RECORD;
    }
    }
}

static void take_history(lb_watch_log *log, const char *line, const char *end)
{
    const char *why;
    lb_watch_record record;
    while (line < end) {
        const lb_history_answer answer = lb_history_read(&log->history, &log->names, &line, end, &record, &why);
        if (answer == LB_HISTORY_RECORD) lb_watch_log_give(log, &record);
        if (answer == LB_HISTORY_COMPLAINT) complain(log, why);
    }
}

/* Without the sequences that colour a terminal; in place. */
static size_t without_colours(char *line, size_t n)
{
    size_t kept = 0;
    for (size_t at = 0; at < n; at++) {
        if (line[at] == 27) {
            for (at += 2; at < n && !isalpha((unsigned char)line[at]);) at++;
            continue;
        }
        line[kept++] = line[at];
    }
    return kept;
}

static void take_line(lb_watch_log *log, const char *line, size_t n);

/* A line of colours, and one that a progress bar wrote over and over: what stands between its returns are lines. */
static bool take_terminal_line(lb_watch_log *log, const char *line, size_t n)
{
    const char *end = line + n, *back = n > 1 ? memchr(line, '\r', n - 1) : NULL;
    if (back) {
        for (; back; line = back + 1, back = line < end ? memchr(line, '\r', (size_t)(end - line)) : NULL)
            take_line(log, line, (size_t)(back - line));
        if (line < end) take_line(log, line, (size_t)(end - line));
        return true;
    }
    char *plain = n && n < LONGEST_COLOURED && memchr(line, 27, n) ? malloc(n) : NULL;
    if (!plain) return false;
    memcpy(plain, line, n);
    take_line(log, plain, without_colours(plain, n));
    free(plain);
    return true;
}

static void take_line(lb_watch_log *log, const char *line, size_t n)
{
    lb_watch_record record;
    const char *why = NULL;
    bool is_other;
    if (take_terminal_line(log, line, n)) return;
    log->counts.lines++;
    while (n && isspace((unsigned char)line[n - 1])) n--;
    if (log->format != LB_WATCH_LINE)
        while (n && isspace((unsigned char)*line)) line++, n--;
    if (!n) return;
    if (log->format == LB_WATCH_AUTO) {
        log->format = format_of(log, line, n);
        if (log->format != LB_WATCH_AUTO) {
            memset(&log->counts.names, 0, sizeof log->counts.names);
            log->names.seen = &log->counts.names; /* names of a format that it is not are none */
            memset(&log->line.known, 0, sizeof log->line.known);
        }
        if (log->format == LB_WATCH_CSV) lb_table_header(&log->table, &log->names, line, n);
        if (log->format == LB_WATCH_CSV) return; /* this was the header */
        if (log->format == LB_WATCH_AUTO) {
            if (log->counts.lines == 1) lb_table_offer(line, n, &log->counts.names);
            lb_pairs_offer(line, n < 4096 ? n : 4096, &log->counts.names);
            other_line(log, line, n);
            return;
        }
    }
    if (log->format == LB_WATCH_TRAINER) {
        take_history(log, line, line + n);
    } else if (read_line(log, line, n, &record, &is_other, &why)) {
        lb_watch_log_give(log, &record);
    } else if (is_other) {
        other_line(log, line, n);
    } else if (why) {
        /* A file that was appended to by a restarted run has the header again. */
        lb_table_reader again;
        if (log->format == LB_WATCH_CSV && lb_table_header(&again, &log->names, line, n))
            log->table = again;
        else
            complain(log, why);
    }
}

static void event_record(void *context, lb_watch_record *record)
{
    lb_watch_log_give((lb_watch_log *)context, record);
}
static void event_complaint(void *context, const char *why)
{
    complain((lb_watch_log *)context, why);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static lb_status keep(lb_watch_log *log, const char *bytes, size_t n, lb_err *err)
{
    if (log->n + n > log->room) {
        size_t room = log->room ? log->room : 4096;
        while (room < log->n + n) room *= 2;
        char *grown = realloc(log->kept, room);
        if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        log->kept = grown, log->room = room;
    }
    if (n) memcpy(log->kept + log->n, bytes, n);
    log->n += n;
    return LB_OK;
}

static lb_status take_events(lb_watch_log *log, const char *bytes, size_t n, lb_err *err)
{
    const lb_event_out out = {log, event_record, event_complaint};
    if (log->passing) return LB_OK;
    LB_TRY(keep(log, bytes, n, err));
    const size_t taken = lb_tensorboard_event_read(&log->events, (const uint8_t *)log->kept, log->n, &out);
    if (taken == SIZE_MAX) {
        complain(log, "no record of an event file begins here; the rest of the file is passed over");
        log->passing = true, log->n = 0;
        return LB_OK;
    }
    if (taken) memmove(log->kept, log->kept + taken, log->n - taken);
    log->n -= taken;
    return LB_OK;
}

/* A line whose begin was kept, and whose end is here. */
static lb_status end_kept_line(lb_watch_log *log, const char *bytes, size_t n, lb_err *err)
{
    if (log->passing) {
        log->passing = false;
        log->counts.lines++;
        complain(log, "it is longer than a megabyte");
    } else if (log->n + n > LONGEST_LINE) {
        log->counts.lines++;
        complain(log, "it is longer than a megabyte");
    } else {
        LB_TRY(keep(log, bytes, n, err));
        take_line(log, log->kept, log->n);
    }
    log->n = 0;
    return LB_OK;
}

static lb_status take_lines(lb_watch_log *log, const char *bytes, size_t n, lb_err *err)
{
    const char *end = bytes + n;
    for (const char *stop; bytes < end && (stop = memchr(bytes, '\n', (size_t)(end - bytes))); bytes = stop + 1) {
        if (log->n || log->passing)
            LB_TRY(end_kept_line(log, bytes, (size_t)(stop - bytes), err));
        else
            take_line(log, bytes, (size_t)(stop - bytes));
    }
    const size_t left = (size_t)(end - bytes);
    if (log->n + left > LONGEST_LINE) log->passing = true, log->n = 0;
    return log->passing ? LB_OK : keep(log, bytes, left, err);
}

lb_status lb_watch_log_bytes(lb_watch_log *log, const void *bytes, size_t n, lb_err *err)
{
    log->counts.bytes += n;
    if (!n) return LB_OK;
    if (log->format == LB_WATCH_EVENTS) return take_events(log, bytes, n, err);
    if (log->format != LB_WATCH_AUTO || log->counts.lines || log->passing) return take_lines(log, bytes, n, err);
    /* The first bytes decide whether there are lines at all. */
    if (log->n < FIRST_BYTES || log->counts.bytes == n) {
        LB_TRY(keep(log, bytes, n, err));
        if (log->n < FIRST_BYTES && !memchr(log->kept, '\n', log->n)) return LB_OK;
        const size_t kept = log->n;
        if (lb_tensorboard_event_begins((const uint8_t *)log->kept, kept)) {
            log->format = LB_WATCH_EVENTS;
            log->names.seen = &log->counts.names;
            return take_events(log, "", 0, err);
        }
        char *first = log->kept;
        log->kept = NULL, log->n = log->room = 0;
        const lb_status status = take_lines(log, first, kept, err);
        free(first);
        return status;
    }
    return take_lines(log, bytes, n, err);
}

lb_status lb_watch_log_end(lb_watch_log *log, lb_err *err)
{
    lb_status status = LB_OK;
    if (log->format == LB_WATCH_EVENTS) {
        const lb_event_out out = {log, event_record, event_complaint};
        if (log->n) complain(log, "the last record of the event file is cut off");
        lb_tensorboard_event_end(&log->events, &out);
    } else if (log->n || log->passing) {
        status = end_kept_line(log, "", 0, err);
    }
    if (!lb_history_is_whole(&log->history)) complain(log, "the document that began above ends here, inside of it");
    lb_watch_log_restart(log);
    return status;
}

void lb_watch_log_restart(lb_watch_log *log)
{
    log->n = 0, log->passing = false;
    log->table.separator = 0;
    lb_history_restart(&log->history);
}
