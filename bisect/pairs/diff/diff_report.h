/* What a diff has found so far: rows, layers, structures, and the strings they point at. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_REPORT_H
#define LB_BISECT_DIFF_REPORT_H

#include "base/array.h"
#include <lastbit/diff.h>

/* Appends a row to an array of the report; without memory the report says so, and no answer comes of it. */
#define LB_DIFF_APPEND(report, array, count, row)                                                                      \
    do {                                                                                                               \
        void *larger_ = lb_array_grow((report)->array, (report)->count, sizeof *(report)->array);                      \
        (report)->out_of_memory |= !larger_;                                                                           \
        if (!larger_) break;                                                                                           \
        (report)->array = larger_;                                                                                     \
        (report)->array[(report)->count++] = (row);                                                                    \
    } while (0)

/* Of two answers to one question: each says what both have cost. */
void lb_diff_report_share_cost(lb_diff_report *x, lb_diff_report *y);
/* A copy of `text` that lives as long as the report; "" when memory ends, which the report says. */
const char *lb_report_keep(lb_diff_report *report, const char *text);
/* The same of a line of code. */
lb_code_line lb_report_keep_line(lb_diff_report *report, const lb_code_line *line);
/* A sentence for missing[], once. */
void lb_report_missing(lb_diff_report *report, const char *text);
/* A sentence for findings[], once: worth knowing, but no verdict. */
void lb_report_finding(lb_diff_report *report, const char *text);
/* Adds an op or source to its layer and, where it is the first or the worst, to `first` and `earliest`. */
void lb_report_row(lb_diff_report *report, const lb_diff_row *row);
/* Adds an op to its layer only. */
void lb_report_layer(lb_diff_report *report, const lb_diff_row *row);

/* Adds a place that diverged by itself to `places`: once, however many steps and ranks show it. */
void lb_report_place(lb_diff_report *report, const lb_diff_difference *place);
/* Where the captures diverged, `differences` gets at least one place: where values alone named none, those of `places`.
 */
void lb_report_settle_differences(lb_diff_report *report);

#endif
