/* See log_pairs.h. */
#define _GNU_SOURCE /* memmem */
#include "watch/log_pairs.h"

#include "watch/log_number.h"

#include <ctype.h>
#include <math.h>
#include <string.h>
#include <strings.h>

enum { NAME_BYTES = 64 };

void lb_pairs_reader_init(lb_pairs_reader *reader, const lb_field_names *names)
{
    *reader = (lb_pairs_reader){.names = names, .header = -1, .skipped = -1};
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '/' || c == '.' || c == '-' || c == '%';
}

/* A number stands at `at`, and what is before it may name it. */
static bool number_begins(const char *line, size_t n, size_t at)
{
    if (at == 0 || (is_name(line[at - 1]) && line[at - 1] != '/')) return false;
    lb_log_number number;
    const size_t taken = lb_log_number_read(line + at, n - at, &number);
    if (!taken) return false;
    const size_t end = at + taken;
    return end >= n || isfinite(number.number) || !is_name(line[end]); /* "info", "nano" */
}

typedef struct span {
    const char *text;
    size_t n;
} span;

/* The word that ends before `*at`; separators are passed over. `marked`: one of them was ':' or '='. */
static span word_before(const char *line, size_t *at, bool *marked)
{
    size_t end = *at;
    *marked = false;
    while (end > 0 && strchr(" \t:=[(\"'", line[end - 1])) {
        if (line[end - 1] == ':' || line[end - 1] == '=') *marked = true;
        end--;
    }
    size_t start = end;
    while (start > 0 && is_name(line[start - 1])) start--;
    *at = start;
    return (span){line + start, end - start};
}

static bool holds(span name, const char *word)
{
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= name.n; i++)
        if (!strncasecmp(name.text + i, word, n)) return true;
    return false;
}

static bool is_evaluation(span name)
{
    static const char *const words[] = {"val", "eval", "test"};
    for (size_t i = 0; i < 3; i++)
        if (holds(name, words[i]) && !holds(name, "interval")) return true;
    return false;
}

typedef struct found {
    bool step, evaluated, value, bad;
    int64_t epoch;
} found;

/* Of a number at `at`: the field that the one or two words before it name. */
static lb_watch_field field_before(const lb_pairs_reader *reader, const char *line, size_t at, bool *evaluation)
{
    bool marked, inner;
    size_t before = at;
    const span last = word_before(line, &before, &marked);
    *evaluation = false;
    if (!last.n || isdigit((unsigned char)*last.text)) return LB_WATCH_FIELDS;
    size_t first = before;
    span two = last;
    if (before > 0 && line[before - 1] == ' ') {
        const span word = word_before(line, &first, &inner);
        if (word.n && !inner && first + word.n + 1 == before && !isdigit((unsigned char)*word.text))
            two = (span){word.text, (size_t)(last.text + last.n - word.text)};
    }
    *evaluation = is_evaluation(two) && (holds(two, "loss") || two.n == last.n);
    if (is_evaluation(two)) return LB_WATCH_FIELDS;
    if (two.n < NAME_BYTES && two.n > last.n) {
        const lb_watch_field field = lb_field_of(reader->names, two.text, two.n);
        if (field != LB_WATCH_FIELDS) return field;
    }
    if (last.n == 4 && !strncasecmp(last.text, "time", 4)) return two.n == last.n ? LB_WATCH_dt : LB_WATCH_FIELDS;
    if (!marked && !lb_field_is_plain(last.text, last.n)) return LB_WATCH_FIELDS;
    return last.n < NAME_BYTES ? lb_field_of(reader->names, last.text, last.n) : LB_WATCH_FIELDS;
}

/* "lr=[0.0001, 0.0001]" is one number; "a: 1/b: 2" and a time of day are none. */
static void take_number(lb_pairs_reader *reader, const char *line, size_t n, size_t at, lb_watch_record *record,
                        found *found)
{
    bool evaluation;
    const lb_watch_field field = field_before(reader, line, at, &evaluation);
    if (evaluation) found->evaluated = true;
    if (field == LB_WATCH_FIELDS || (field >= LB_WATCH_shard && field < LB_WATCH_step)) return;
    if (lb_watch_has(record, field)) return; /* the first of a name counts */
    size_t end = at;
    while (end < n && !strchr(",|;)", line[end])) end++;
    while (end < n && line[end] == ',' && end + 3 < n && isdigit((unsigned char)line[end + 1])) {
        for (end++; end < n && !strchr(",|;)", line[end]);) end++; /* a comma between digits */
    }
    if (field == LB_WATCH_skipped) {
        lb_log_number count;
        lb_log_number_read(line + at, n - at, &count);
        if (reader->skipped >= 0)
            lb_log_field_record_put_number(record, field, count.number > reader->skipped); /* they are counted */
        reader->skipped = count.number;
        return;
    }
    if (!lb_log_field_record_put(record, field, line + at, end - at)) return;
    if (field == LB_WATCH_step)
        found->step = true;
    else if (field != LB_WATCH_rank)
        found->value = true;
}

/* " 10/100 [00:01<00:09" behind a bar: the step, counted on over epochs. */
static void take_bar(const char *line, size_t n, lb_watch_record *record, found *found)
{
    const char *bar = memmem(line, n, "%|", 2), *end = line + n;
    if (!bar || found->step) return;
    const char *at = memchr(bar + 2, '|', (size_t)(end - bar - 2));
    lb_log_number done, total;
    if (!at) return;
    for (at++; at < end && *at == ' ';) at++;
    const size_t taken = lb_log_number_read(at, (size_t)(end - at), &done);
    if (!taken || at + taken >= end || at[taken] != '/' || !done.is_integer) return;
    if (!lb_log_number_read(at + taken + 1, (size_t)(end - at) - taken - 1, &total) || !(total.number > 0)) return;
    const char *epoch = memmem(line, (size_t)(bar - line), "poch ", 5);
    lb_log_number number;
    const bool counted =
        epoch && lb_log_number_read(epoch + 5, (size_t)(bar - epoch - 5), &number) && number.number >= 0;
    lb_log_field_record_put_number(record, LB_WATCH_step, done.number + (counted ? number.number * total.number : 0));
    if (!counted) record->steps = (int64_t)fmin(total.number, 0x1p53);
    found->step = true;
}

/* "loss: ---": a name whose value is no number. */
static bool names_without_number(const lb_pairs_reader *reader, const char *line, size_t n)
{
    for (size_t at = 1; at + 1 < n; at++) {
        if (line[at] != ':' && line[at] != '=') continue;
        bool marked, evaluation;
        size_t value = at + 1, before = at + 1;
        while (value < n && line[value] == ' ') value++;
        if (value == n || number_begins(line, n, value)) continue;
        const span name = word_before(line, &before, &marked);
        const lb_watch_field field = name.n ? field_before(reader, line, at + 1, &evaluation) : LB_WATCH_FIELDS;
        if (field == LB_WATCH_loss || field == LB_WATCH_gnorm)
            return line[value] != '[' && !isupper((unsigned char)line[value]);
    }
    return false;
}

void lb_pairs_offer(const char *line, size_t n, lb_watch_names *seen)
{
    enum { MOST = 16 };
    span names[MOST];
    uint32_t found = 0;
    for (size_t at = 1; at < n && found < MOST; at++) {
        bool marked;
        size_t before = at;
        lb_log_number number;
        if (!number_begins(line, n, at)) continue;
        names[found] = word_before(line, &before, &marked);
        if (marked && names[found].n && isalpha((unsigned char)*names[found].text)) found++;
        at += lb_log_number_read(line + at, n - at, &number) - 1;
    }
    for (uint32_t i = 0; found > 1 && i < found; i++) lb_field_offer(seen, names[i].text, names[i].n);
}

lb_line_answer lb_pairs_read(lb_pairs_reader *reader, const char *line, size_t n, lb_watch_record *record,
                             const char **why)
{
    found found = {0};
    lb_log_field_record_clear(record);
    if (n > 1 << 14) n = 1 << 14;
    for (size_t at = 1; at < n; at++) {
        if (!number_begins(line, n, at)) continue;
        lb_log_number number;
        take_number(reader, line, n, at, record, &found);
        at += lb_log_number_read(line + at, n - at, &number) - 1;
    }
    take_bar(line, n, record, &found);
    if (found.step && !found.value) { /* a header, whose numbers follow */
        reader->header = record->step, reader->headers_total = record->steps;
        return LB_LINE_OTHER;
    }
    const uint32_t training = 1u << LB_WATCH_gnorm | 1u << LB_WATCH_dt | 1u << LB_WATCH_lr | 1u << LB_WATCH_tok_sec;
    /* "step 250: train loss 2.1, val loss 2.2" stands between the lines of steps; a line an epoch has nothing beside
     * it. */
    if (found.evaluated && found.step && !(record->has & training)) return LB_LINE_OTHER;
    if (!found.value) {
        *why = "the loss or the norm that it names is not a number";
        return names_without_number(reader, line, n) ? LB_LINE_BAD : LB_LINE_OTHER;
    }
    if (found.step) {
        reader->header = -1;
    } else if (reader->header >= 0) {
        lb_log_field_record_put_number(record, LB_WATCH_step, (double)reader->header);
        record->steps = reader->headers_total;
    }
    return LB_LINE_RECORD;
}
