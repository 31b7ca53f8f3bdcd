/* A report: what commands found, as one HTML page for a reader who was not there.
 *
 * Simplest use:
 *
 *     lb_report_part part = {"run.lb", "{\"schema\": \"lastbit.diff/1\"}", 28};
 *     LB_TRY(lb_report_save("page.html", &part, 1, err));
 *
 * The page is self-contained: styles, scripts, the plotting library (Chart.js) and the results lie in it, nothing is
 * fetched, and a policy in it forbids to. It opens from disk, prints, works by keyboard, in light and dark.
 *
 * Its input is what the commands print with --json; the field `schema` ("lastbit.diff/1") says which command it was.
 * Fields that are missing are left out, fields that nothing here knows are listed as they are. Results come from runs,
 * so that every text in them is taken for hostile: the page holds them as data in which no character can end its
 * element, and shows them as text.
 *
 * Large results are made smaller before they go in, and the page says by how much: numbers keep 6 digits, a list keeps
 * its 20,000 rows (and 1.5 MB) of the worst verdicts, a text its first 4,000 characters. What is said of a whole
 * (layers over all ranks, the map, histograms) is counted before that, over all rows.
 */
#ifndef LASTBIT_REPORT_H
#define LASTBIT_REPORT_H

#include <lastbit/error.h>

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One result. Borrowed while a call runs. */
typedef struct lb_report_part {
    const char *name; /* where it is from, for messages and for the page: a path, or a command */
    const char *json;
    size_t bytes;
} lb_report_part;

/* Writes the page: a section for each part, in their order. LB_ERR_INVALID: no part; LB_ERR_CORRUPT: a part is no JSON,
 * or has no schema of ours; LB_ERR_VERSION: a newer one. What was written by then stays in `to`. */
LB_API lb_status lb_report_write(FILE *to, const lb_report_part *parts, uint32_t n, lb_err *err);

/* The same into a file, whole or not at all: it is written beside `path` and then takes its place. LB_ERR_EXISTS: what
 * lies there is not a page of this function. */
LB_API lb_status lb_report_save(const char *path, const lb_report_part *parts, uint32_t n, lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
