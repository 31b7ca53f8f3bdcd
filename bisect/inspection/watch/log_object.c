/* One line that is an object: see log_object.h. */
#include "watch/log_object.h"

#include <string.h>

enum { DEPTH = 8, PATH = 160 };

typedef struct scan {
    const lb_field_names *names;
    const char *at, *end, *why;
    lb_watch_record *record;
    char path[PATH]; /* names of the objects around, each with its "/" */
    size_t n;
} scan;

static bool refuse(scan *scan, const char *why)
{
    if (!scan->why) scan->why = why;
    return false;
}

static void pass_space(scan *scan)
{
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\r')) scan->at++;
}

static bool take(scan *scan, char c)
{
    pass_space(scan);
    if (scan->at == scan->end || *scan->at != c) return false;
    scan->at++;
    return true;
}

/* A string without its quotes; escapes stay as they are. */
static bool read_string(scan *scan, lb_watch_word *word)
{
    pass_space(scan);
    if (scan->at == scan->end || (*scan->at != '"' && *scan->at != '\''))
        return refuse(scan, "a name or a string is missing");
    const char quote = *scan->at++;
    const char *start = scan->at;
    for (; scan->at < scan->end && *scan->at != quote; scan->at++)
        if (*scan->at == '\\' && scan->at + 1 < scan->end) scan->at++;
    if (scan->at == scan->end) return refuse(scan, "a string has no end");
    *word = (lb_watch_word){start, (uint32_t)(scan->at - start)};
    scan->at++;
    return true;
}

/* Passes over a list with all that is in it. */
static bool pass_list(scan *scan)
{
    int depth = 0;
    lb_watch_word ignored;
    do {
        pass_space(scan);
        if (scan->at == scan->end) return refuse(scan, "a list has no end");
        const char c = *scan->at;
        if (c == '"' || c == '\'') {
            if (!read_string(scan, &ignored)) return false;
            continue;
        }
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        scan->at++;
    } while (depth > 0);
    return true;
}

static bool read_object(scan *s, int depth);

static bool put(scan *scan, lb_watch_field field, lb_watch_word value)
{
    if (field == LB_WATCH_FIELDS) return true;
    if (value.n == 4 && (!memcmp(value.text, "null", 4) || !memcmp(value.text, "None", 4))) return true;
    return lb_log_field_record_put(scan->record, field, value.text, value.n) ||
           refuse(scan, "a field that should be a number is none");
}

/* The field that a name means with those of the objects around it, else by itself. */
static lb_watch_field field_of(scan *scan, lb_watch_word name)
{
    if (scan->n && scan->n + name.n < PATH) {
        memcpy(scan->path + scan->n, name.text, name.n);
        return lb_field_of(scan->names, scan->path, scan->n + name.n);
    }
    return lb_field_of(scan->names, name.text, name.n);
}

static bool read_inner(scan *scan, lb_watch_word name, int depth)
{
    const size_t before = scan->n;
    if (before + name.n + 1 < PATH) {
        memcpy(scan->path + before, name.text, name.n);
        scan->path[before + name.n] = '/';
        scan->n = before + name.n + 1;
    }
    const bool whole = read_object(scan, depth + 1);
    scan->n = before;
    return whole;
}

static bool read_value(scan *scan, lb_watch_word name, int depth)
{
    lb_watch_word value;
    pass_space(scan);
    if (scan->at == scan->end) return refuse(scan, "a value is missing");
    if (*scan->at == '{') return read_inner(scan, name, depth);
    if (*scan->at == '[') {
        const char *start = scan->at;
        if (!pass_list(scan)) return false;
        const lb_watch_field field = field_of(scan, name);
        return field != LB_WATCH_counts || put(scan, field, (lb_watch_word){start, (uint32_t)(scan->at - start)});
    }
    if (*scan->at == '"' || *scan->at == '\'') {
        if (!read_string(scan, &value)) return false;
    } else {
        const char *start = scan->at;
        while (scan->at < scan->end && *scan->at != ',' && *scan->at != '}' && *scan->at != ' ' && *scan->at != '\r')
            scan->at++;
        value = (lb_watch_word){start, (uint32_t)(scan->at - start)};
        if (!value.n) return refuse(scan, "a value is missing");
    }
    return put(scan, field_of(scan, name), value);
}

static bool read_object(scan *scan, int depth)
{
    lb_watch_word name;
    if (depth > DEPTH) return refuse(scan, "objects are nested too deep");
    if (!take(scan, '{')) return refuse(scan, "it is not an object");
    if (take(scan, '}')) return true;
    do {
        if (!read_string(scan, &name)) return false;
        if (!take(scan, ':')) return refuse(scan, "a colon is missing");
        if (!read_value(scan, name, depth)) return false;
    } while (take(scan, ','));
    return take(scan, '}') || refuse(scan, "the object has no end");
}

bool lb_object_read(const lb_field_names *names, const char *line, size_t n, lb_watch_record *record, const char **why)
{
    scan scan = {.names = names, .at = line, .end = line + n, .record = record};
    lb_log_field_record_clear(record);
    bool whole = read_object(&scan, 0);
    pass_space(&scan);
    if (whole && scan.at != scan.end) whole = refuse(&scan, "something follows the object");
    *why = scan.why;
    return whole;
}
