/* Pieces of answers: see answer_parts.h. */
#include "report/answer_parts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void lb_answer_parts_tell(json_t *answer, const char *tone, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    json_object_set_new(answer, "finding", json_vsprintf(format, args));
    va_end(args);
    json_object_set_new(answer, "tone", json_string(tone));
}

static void add_fact(json_t *answer, const char *name, json_t *text)
{
    if (text) json_array_append_new(json_object_get(answer, "facts"), json_pack("[s, o]", name, text));
}

void lb_answer_parts_fact(json_t *answer, const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add_fact(answer, name, json_vsprintf(format, args));
    va_end(args);
}

void lb_answer_parts_fact_text(json_t *answer, const char *name, const json_t *text)
{
    if (json_string_length(text))
        add_fact(answer, name, json_stringn(json_string_value(text), json_string_length(text)));
}

const char *lb_answer_parts_text(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

double lb_answer_parts_number(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    const char *word = json_string_value(value);
    if (json_is_number(value)) return json_number_value(value);
    return word && !strcmp(word, "inf") ? INFINITY : word && !strcmp(word, "-inf") ? -INFINITY : NAN;
}

void lb_answer_parts_append(char *text, size_t size, const char *format, ...)
{
    const size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, size - n, format, args);
    va_end(args);
    if (strlen(text) + 1 < size) return;
    /* Full: it may end within a character. Back to where that began, and over it. */
    size_t end = size - 1;
    while (end > 0 && ((unsigned char)text[end - 1] & 0xc0) == 0x80) end--;
    if (end > 0 && (unsigned char)text[end - 1] >= 0xc0) end--;
    text[end] = '\0';
}
#define append(text, ...) lb_answer_parts_append(text, LB_ANSWER_PARTS_TEXT, __VA_ARGS__)

void lb_answer_parts_ranks(const json_t *row, char text[LB_ANSWER_PARTS_TEXT])
{
    enum { SHOWN = 16 };
    const json_t *ranks = json_object_get(row, "ranks"), *rank = json_object_get(row, "rank");
    const size_t n = json_array_size(ranks);
    text[0] = '\0';
    if (n) append(text, n > 1 ? "ranks" : "rank");
    for (size_t i = 0; i < n && i < SHOWN; i++)
        append(text, "%s%lld", i ? ", " : " ", (long long)json_integer_value(json_array_get(ranks, i)));
    if (n > SHOWN) append(text, " and %zu more", n - SHOWN);
    if (!n && json_is_integer(rank)) append(text, "rank %lld", (long long)json_integer_value(rank));
}

void lb_answer_parts_site(const json_t *at, char text[LB_ANSWER_PARTS_TEXT])
{
    const char *layer = lb_answer_parts_text(at, "layer"), *op = lb_answer_parts_text(at, "op");
    text[0] = '\0';
    append(text, "%s%s%s", layer, *layer && *op ? ", " : "", op);
    if (!*text) append(text, "the top level");
}

void lb_answer_parts_place(const json_t *at, char text[LB_ANSWER_PARTS_TEXT])
{
    char part[LB_ANSWER_PARTS_TEXT];
    const json_t *step = json_object_get(at, "step"), *index = json_object_get(at, "index");
    text[0] = '\0';
    if (json_is_integer(step)) append(text, "step %lld, ", (long long)json_integer_value(step));
    lb_answer_parts_ranks(at, part);
    if (*part) append(text, "%s, ", part);
    if (*lb_answer_parts_text(at, "phase")) append(text, "%s, ", lb_answer_parts_text(at, "phase"));
    lb_answer_parts_site(at, part);
    append(text, "%s", part);
    if (json_is_integer(index)) append(text, ", op %lld", (long long)json_integer_value(index));
}

static void tell_line(json_t *answer, const char *name, const json_t *line)
{
    const char *function = lb_answer_parts_text(line, "function"), *text = lb_answer_parts_text(line, "text");
    if (!json_is_object(line)) return;
    lb_answer_parts_fact(answer, name, "%s:%lld%s%s%s%s", lb_answer_parts_text(line, "file"),
                         (long long)json_integer_value(json_object_get(line, "line")), *function ? " in " : "",
                         function, *text ? ": " : "", text);
}

void lb_answer_parts_lines(json_t *answer, const json_t *at)
{
    const json_t *second = json_object_get(at, "source_b");
    tell_line(answer, json_is_object(second) ? "line, first side" : "line", json_object_get(at, "source"));
    tell_line(answer, "line, second side", second);
    const json_t *forward = json_object_get(at, "source_forward");
    if (!json_equal(forward, json_object_get(at, "source"))) tell_line(answer, "line of forward", forward);
}
