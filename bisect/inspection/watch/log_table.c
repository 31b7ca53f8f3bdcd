/* Tables: see log_table.h. */
#include "watch/log_table.h"

#include <ctype.h>
#include <string.h>

/* The next cell, without its quotes; sets *at behind its separator, to NULL behind the last one. A doubled quote stays
 * doubled. */
static lb_watch_word next_cell(char separator, const char **at, const char *end)
{
    const char *start = *at, *stop;
    while (start < end && *start == ' ') start++;
    if (start < end && *start == '"') {
        stop = ++start;
        while (stop < end && !(*stop == '"' && !(stop + 1 < end && stop[1] == '"'))) stop += *stop == '"' ? 2 : 1;
        if (stop > end) stop = end;
        const char *behind = memchr(stop, separator, (size_t)(end - stop));
        *at = behind ? behind + 1 : NULL;
    } else {
        stop = memchr(start, separator, (size_t)(end - start));
        *at = stop ? stop + 1 : NULL;
        if (!stop) stop = end;
        while (stop > start && (stop[-1] == ' ' || stop[-1] == '\r')) stop--;
    }
    return (lb_watch_word){start, (uint32_t)(stop - start)};
}

static uint32_t read_header(lb_table_reader *reader, const lb_field_names *names, char separator, const char *line,
                            size_t n)
{
    uint32_t known = 0;
    const char *at = line;
    reader->columns = 0;
    while (at && reader->columns < LB_TABLE_COLUMNS) {
        const lb_watch_word name = next_cell(separator, &at, line + n);
        const lb_watch_field field = lb_field_of(names, name.text, name.n);
        reader->field[reader->columns++] = (uint8_t)field;
        known += field != LB_WATCH_FIELDS;
    }
    return known;
}

bool lb_table_header(lb_table_reader *reader, const lb_field_names *names, const char *line, size_t n)
{
    static const char separators[] = ",;\t";
    for (size_t i = 0; separators[i]; i++) {
        if (!memchr(line, separators[i], n) || read_header(reader, names, separators[i], line, n) < 2) continue;
        reader->separator = separators[i];
        return true;
    }
    reader->separator = 0;
    return false;
}

static bool is_name(const lb_watch_word *cell)
{
    bool name = cell->n > 0 && isalpha((unsigned char)*cell->text);
    for (size_t i = 0; i < cell->n && name; i++)
        name = isalnum((unsigned char)cell->text[i]) || strchr("_/.-", cell->text[i]);
    return name;
}

void lb_table_offer(const char *line, size_t n, lb_watch_names *seen)
{
    const char separator = memchr(line, ',', n) ? ',' : memchr(line, ';', n) ? ';' : '\t', *at = line;
    bool names = memchr(line, separator, n) != NULL;
    while (at && names) {
        const lb_watch_word cell = next_cell(separator, &at, line + n);
        names = is_name(&cell);
    }
    for (at = line; at && names;) {
        const lb_watch_word cell = next_cell(separator, &at, line + n);
        lb_field_offer(seen, cell.text, cell.n);
    }
}

bool lb_table_row(const lb_table_reader *reader, const char *line, size_t n, lb_watch_record *record, const char **why)
{
    const char *at = line;
    uint32_t column = 0;
    lb_log_field_record_clear(record);
    for (; at && column < reader->columns; column++) {
        const lb_watch_word cell = next_cell(reader->separator, &at, line + n);
        const lb_watch_field field = (lb_watch_field)reader->field[column];
        if (field == LB_WATCH_FIELDS || cell.n == 0) continue;
        if (!lb_log_field_record_put(record, field, cell.text, cell.n))
            return *why = "a field that should be a number is none", false;
    }
    if (at && reader->columns < LB_TABLE_COLUMNS) return *why = "more cells than the header has names", false;
    if (column < reader->columns) return *why = "fewer cells than the header has names", false;
    return true;
}
