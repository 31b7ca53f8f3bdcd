/* Tables: a header of names, then a row a step, separated by comma, semicolon or tab. */
#ifndef LB_LOG_TABLE_H
#define LB_LOG_TABLE_H

#include "watch/log_field.h"

enum { LB_TABLE_COLUMNS = 512 };
typedef struct lb_table_reader {
    char separator; /* 0: no header has been read */
    uint32_t columns;
    uint8_t field[LB_TABLE_COLUMNS];
} lb_table_reader;

/* Whether a line names fields we know, two at least or one and the step; the reader then has its columns. */
bool lb_table_header(lb_table_reader *reader, const lb_field_names *names, const char *line, size_t n);
bool lb_table_row(const lb_table_reader *reader, const char *line, size_t n, lb_watch_record *record, const char **why);
/* Names of a first line that could be a header, though none of them is known. */
void lb_table_offer(const char *line, size_t n, lb_watch_names *seen);

#endif
