/* The one-line format: see log_line.h. */
#include "watch/log_line.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* How far a launcher's prefix ("[rank0]: 2026-01-01 12:00:00 ") may push the line's begin. */
enum { PREFIX = 96 };

/* Where "step 12" or "iteration 12" begins, and the number in it; NULL: nowhere. */
static const char *find_step(const char *line, size_t n, const char **number)
{
    static const struct {
        const char *word;
        size_t n;
    } words[] = {{"step", 4}, {"iteration", 9}, {"iter", 4}};
    for (size_t at = 0; at < n && at < PREFIX; at++) {
        const char c = line[at];
        if (c == '|' || (c != 's' && c != 'S' && c != 'i' && c != 'I')) {
            if (c == '|') return NULL;
            continue;
        }
        if (at > 0 && isalnum((unsigned char)line[at - 1])) continue;
        for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
            if (n - at <= words[w].n || strncasecmp(line + at, words[w].word, words[w].n) != 0) continue;
            size_t i = at + words[w].n;
            while (i < n && (line[i] == ' ' || line[i] == ':' || line[i] == '=')) i++;
            if (i == at + words[w].n) continue;
            *number = line + i;
            return line + at;
        }
    }
    return NULL;
}

static lb_watch_field field_at(lb_line_reader *reader, unsigned place, const char *name, size_t n)
{
    if (place >= LB_LINE_PARTS || n >= LB_LINE_NAME) return lb_field_of(reader->names, name, n);
    if (reader->known[place].n != n || memcmp(reader->known[place].name, name, n) != 0) {
        memcpy(reader->known[place].name, name, n);
        reader->known[place].n = (uint8_t)n;
        reader->known[place].field = (uint8_t)lb_field_of(reader->names, name, n);
    }
    return (lb_watch_field)reader->known[place].field;
}

/* "name: value", "name=value"; without either the value is what follows the last space. */
static const char *find_value(const char *part, const char *end)
{
    for (const char *at = part; at < end; at++)
        if (*at == ':' || *at == '=') return at;
    for (const char *at = end; at > part; at--)
        if (at[-1] == ' ') return at - 1;
    return NULL;
}

static const char *past_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    return at;
}
static const char *before_space(const char *at, const char *end)
{
    while (end > at && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r')) end--;
    return end;
}

static bool read_part(lb_line_reader *reader, unsigned place, const char *part, const char *end,
                      lb_watch_record *record)
{
    part = past_space(part, end), end = before_space(part, end);
    const char *mark = find_value(part, end);
    if (!mark) return true;
    const char *name_end = before_space(part, mark), *value = past_space(mark + 1, end);
    if (name_end == part || value == end) return true;
    const lb_watch_field field = field_at(reader, place, part, (size_t)(name_end - part));
    if (field == LB_WATCH_FIELDS || field == LB_WATCH_step) return true;
    return lb_log_field_record_put(record, field, value, (size_t)(end - value));
}

lb_line_answer lb_line_read(lb_line_reader *reader, const char *line, size_t n, lb_watch_record *record,
                            const char **why)
{
    const char *number, *end = line + n;
    if (!find_step(line, n, &number)) return LB_LINE_OTHER;
    const char *bar = memchr(number, '|', (size_t)(end - number));
    lb_log_field_record_clear(record);
    const bool counts = lb_log_field_record_put(record, LB_WATCH_step, number, (size_t)((bar ? bar : end) - number));
    if (!bar) return LB_LINE_OTHER; /* "step 100: saved", "step by step" */
    if (!counts) return *why = "the step is not a number", LB_LINE_BAD;
    for (unsigned place = 0; bar; place++) {
        const char *part = bar + 1;
        bar = memchr(part, '|', (size_t)(end - part));
        if (!read_part(reader, place, part, bar ? bar : end, record))
            return *why = "a field that should be a number is none", LB_LINE_BAD;
    }
    return LB_LINE_RECORD;
}
