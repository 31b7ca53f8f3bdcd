/* Which of the rows is the first, as a table: rows as they are met in, the one that is named out. */
#include "cmocka_first.h"

#include "diff/diff_report.h"

#include <stdlib.h>

enum { ROWS = 3 };

typedef struct meeting {
    const char *what;
    lb_diff_row rows[ROWS];
    uint32_t first; /* row of `rows` */
    lb_verdict verdict;
} meeting;

#define PLACE(at) .layer = "", .why = "", .step = (at) / 10, .order = (at) % 10
#define ROW(at, is, ...) {PLACE(at), .verdict = LB_VERDICT_##is, .local = LB_VERDICT_##is, __VA_ARGS__}
#define INHERITED(at) {PLACE(at), .verdict = LB_VERDICT_ROUNDING, .inherited = LB_VERDICT_ROUNDING}

static const meeting table[] = {
    {"the earlier of two", {ROW(1, ROUNDING), ROW(2, ROUNDING), ROW(3, IDENTICAL)}, 0, LB_VERDICT_ROUNDING},
    {"one that is met late", {ROW(2, ROUNDING), ROW(1, ROUNDING), ROW(3, IDENTICAL)}, 1, LB_VERDICT_ROUNDING},
    {"one of its own before what inherits", {INHERITED(1), ROW(2, ROUNDING), ROW(3, ROUNDING)}, 1, LB_VERDICT_ROUNDING},
    {"a cast that loses most, behind others",
     {ROW(1, ROUNDING), ROW(2, ROUNDING, .lossy = true), ROW(3, ROUNDING)},
     1,
     LB_VERDICT_ROUNDING},
    {"a cast that loses most, steps later",
     {ROW(1, ROUNDING), ROW(2, ROUNDING), ROW(21, ROUNDING, .lossy = true)},
     2,
     LB_VERDICT_ROUNDING},
    {"another order met after a cast that loses most",
     {ROW(2, ROUNDING, .lossy = true), ROW(1, ROUNDING), ROW(3, IDENTICAL)},
     0,
     LB_VERDICT_ROUNDING},
    {"the earlier of two casts that lose",
     {ROW(3, ROUNDING, .lossy = true), ROW(1, ROUNDING), ROW(2, ROUNDING, .lossy = true)},
     2,
     LB_VERDICT_ROUNDING},
    {"a divergence before any rounding",
     {ROW(1, ROUNDING, .lossy = true), ROW(2, DIVERGED), ROW(3, ROUNDING, .lossy = true)},
     1,
     LB_VERDICT_DIVERGED},
};

static void the_row_that_says_most_is_first(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        lb_diff_report *report = calloc(1, sizeof *report);
        assert_non_null(report);
        for (int k = 0; k < ROWS; k++) lb_report_row(report, &table[i].rows[k]);
        const lb_diff_row *wanted = &table[i].rows[table[i].first];
        if (report->first.step != wanted->step || report->first.order != wanted->order ||
            report->verdict != table[i].verdict)
            fail_msg("%s: step %lld, order %u, %s", table[i].what, (long long)report->first.step, report->first.order,
                     lb_verdict_name(report->verdict));
        lb_diff_report_free(report);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_row_that_says_most_is_first)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
