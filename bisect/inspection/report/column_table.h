/* JSON made small: lists of like objects become columns, numbers keep 6 digits, long texts are cut.
 *
 *     [{"layer": "a", "ulp": 1}, {"layer": "a", "ulp": 2}, …]
 * -> {"rows": 2, "of": 2, "columns": {"layer": {"words": ["a"], "at": [0, 0]}, "ulp": [1, 2]}}
 *
 * `of` counts what the list had before rows were left out. A list becomes columns from LB_COLUMN_ROWS objects on;
 * shorter ones stay. page/data.js reads both alike.
 */
#ifndef LB_REPORT_COLUMN_TABLE_H
#define LB_REPORT_COLUMN_TABLE_H

#include <lastbit/json_text.h>
#include <stdbool.h>
#include <stdint.h>

enum { LB_COLUMN_ROWS = 32, LB_ROWS_KEPT = 20000, LB_ROW_BYTES_KEPT = 1500000, LB_TEXT_KEPT = 4000 };

/* A new value; NULL when out of memory. `budget`: bytes that rows of lists may still take, in all; counted down. */
json_t *lb_column_compact(const json_t *value, size_t *budget);

/* The first LB_TEXT_KEPT characters of a text, and how many there were; new. */
json_t *lb_column_text_cut(const json_t *text);

/* How bad a word of a verdict is: 0 identical … 7 diverged; -1: no verdict. Worse rows are kept before others. */
int lb_column_verdict_rank(const char *word);
enum { LB_VERDICT_RANKS = 8 };
extern const char *const lb_verdict_words[LB_VERDICT_RANKS];

#endif
