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

static bool refuse(scan *s, const char *why)
{
    if (!s->why) s->why = why;
    return false;
}

static void pass_space(scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r')) s->at++;
}

static bool take(scan *s, char c)
{
    pass_space(s);
    if (s->at == s->end || *s->at != c) return false;
    s->at++;
    return true;
}

/* A string without its quotes; escapes stay as they are. */
static bool read_string(scan *s, lb_watch_word *word)
{
    pass_space(s);
    if (s->at == s->end || (*s->at != '"' && *s->at != '\'')) return refuse(s, "a name or a string is missing");
    const char quote = *s->at++;
    const char *start = s->at;
    for (; s->at < s->end && *s->at != quote; s->at++)
        if (*s->at == '\\' && s->at + 1 < s->end) s->at++;
    if (s->at == s->end) return refuse(s, "a string has no end");
    *word = (lb_watch_word){start, (uint32_t)(s->at - start)};
    s->at++;
    return true;
}

/* Passes over a list with all that is in it. */
static bool pass_list(scan *s)
{
    int depth = 0;
    lb_watch_word ignored;
    do {
        pass_space(s);
        if (s->at == s->end) return refuse(s, "a list has no end");
        const char c = *s->at;
        if (c == '"' || c == '\'') {
            if (!read_string(s, &ignored)) return false;
            continue;
        }
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        s->at++;
    } while (depth > 0);
    return true;
}

static bool read_object(scan *s, int depth);

static bool put(scan *s, lb_watch_field field, lb_watch_word value)
{
    if (field == LB_WATCH_FIELDS) return true;
    if (value.n == 4 && (!memcmp(value.text, "null", 4) || !memcmp(value.text, "None", 4))) return true;
    return lb_log_field_record_put(s->record, field, value.text, value.n) ||
           refuse(s, "a field that should be a number is none");
}

/* The field that a name means with those of the objects around it, else by itself. */
static lb_watch_field field_of(scan *s, lb_watch_word name)
{
    if (s->n && s->n + name.n < PATH) {
        memcpy(s->path + s->n, name.text, name.n);
        return lb_field_of(s->names, s->path, s->n + name.n);
    }
    return lb_field_of(s->names, name.text, name.n);
}

static bool read_inner(scan *s, lb_watch_word name, int depth)
{
    const size_t before = s->n;
    if (before + name.n + 1 < PATH) {
        memcpy(s->path + before, name.text, name.n);
        s->path[before + name.n] = '/';
        s->n = before + name.n + 1;
    }
    const bool whole = read_object(s, depth + 1);
    s->n = before;
    return whole;
}

static bool read_value(scan *s, lb_watch_word name, int depth)
{
    lb_watch_word value;
    pass_space(s);
    if (s->at == s->end) return refuse(s, "a value is missing");
    if (*s->at == '{') return read_inner(s, name, depth);
    if (*s->at == '[') {
        const char *start = s->at;
        if (!pass_list(s)) return false;
        const lb_watch_field field = field_of(s, name);
        return field != LB_WATCH_counts || put(s, field, (lb_watch_word){start, (uint32_t)(s->at - start)});
    }
    if (*s->at == '"' || *s->at == '\'') {
        if (!read_string(s, &value)) return false;
    } else {
        const char *start = s->at;
        while (s->at < s->end && *s->at != ',' && *s->at != '}' && *s->at != ' ' && *s->at != '\r') s->at++;
        value = (lb_watch_word){start, (uint32_t)(s->at - start)};
        if (!value.n) return refuse(s, "a value is missing");
    }
    return put(s, field_of(s, name), value);
}

static bool read_object(scan *s, int depth)
{
    lb_watch_word name;
    if (depth > DEPTH) return refuse(s, "objects are nested too deep");
    if (!take(s, '{')) return refuse(s, "it is not an object");
    if (take(s, '}')) return true;
    do {
        if (!read_string(s, &name)) return false;
        if (!take(s, ':')) return refuse(s, "a colon is missing");
        if (!read_value(s, name, depth)) return false;
    } while (take(s, ','));
    return take(s, '}') || refuse(s, "the object has no end");
}

bool lb_object_read(const lb_field_names *names, const char *line, size_t n, lb_watch_record *record, const char **why)
{
    scan s = {.names = names, .at = line, .end = line + n, .record = record};
    lb_log_field_record_clear(record);
    bool whole = read_object(&s, 0);
    pass_space(&s);
    if (whole && s.at != s.end) whole = refuse(&s, "something follows the object");
    *why = s.why;
    return whole;
}
