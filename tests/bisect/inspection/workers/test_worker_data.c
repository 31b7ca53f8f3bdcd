/* Findings about what workers read and drew: a table of small runs, each with what it is to be told of. */
#include "cmocka_first.h"

#include "worker_sample.h"

/* `batch[s][r]`, `draw[s][r]`, `backwards[s][r]` of rank r in step s. */
typedef struct row {
    const char *name;
    int ranks, steps;
    int batch[SAMPLE_STEPS][SAMPLE_RANKS], draw[SAMPLE_STEPS][SAMPLE_RANKS], backwards[SAMPLE_STEPS][SAMPLE_RANKS];
    const char *found; /* "kind step [note] ranks; …" in the report's order */
} row;

static const row rows[] = {
    {"batches and draws of their own", 3, 2, {{1, 2, 3}, {4, 5, 6}}, {{1, 2, 3}, {4, 5, 6}}, {{0}}, ""},
    {"two read one batch", 3, 2, {{1, 2, 1}, {4, 5, 6}}, {{0}}, {{0}}, "tokens 0 0,2; "},
    {"all read one batch, step after step", 3, 2, {{1, 1, 1}, {4, 4, 4}}, {{0}}, {{0}}, "tokens 0 0,1,2; "},
    {"two pairs", 4, 1, {{1, 2, 1, 2}}, {{0}}, {{0}}, "tokens 0 0,2; tokens 0 1,3; "},
    {"the same draws for other data", 3, 1, {{1, 2, 3}}, {{7, 8, 7}}, {{0}}, "seed 0 0,2; "},
    {"the same draws for the same data", 2, 1, {{1, 1}}, {{7, 7}}, {{0}}, "tokens 0 0,1; "},
    {"the same draws, data unknown", 2, 1, {{0, 0}}, {{7, 7}}, {{0}}, ""},
    {"one repeats its batch", 3, 2, {{1, 2, 3}, {4, 2, 6}}, {{0}}, {{0}}, "batch 1 1; "},
    {"one repeats a batch of long ago", 3, 3, {{1, 2, 3}, {4, 5, 6}, {7, 2, 9}}, {{0}}, {{0}}, "batch 2 note 1; "},
    {"all repeat theirs", 3, 2, {{1, 2, 3}, {1, 2, 3}}, {{0}}, {{0}}, ""},
    {"one reads what another read", 2, 2, {{1, 2}, {2, 4}}, {{0}}, {{0}}, "batch 1 note 0; "},
    {"one runs fewer micro-batches", 3, 1, {{1, 2, 3}}, {{0}}, {{4, 4, 3}}, "batch 0 2; "},
    {"of two ranks the shorter one is told", 2, 1, {{1, 2}}, {{0}}, {{2, 4}}, "batch 0 0; "},
    {"all run as many", 3, 1, {{1, 2, 3}}, {{0}}, {{4, 4, 4}}, ""},
    {"half run fewer: nobody is the odd one",
     4,
     1,
     {{1, 2, 3, 4}},
     {{0}},
     {{2, 2, 4, 4}},
     "batch 0 0; batch 0 1; batch 0 2; batch 0 3; "},
};

static void describe(const lb_ranks_report *report, char *text, size_t room)
{
    size_t n = 0;
    *text = '\0';
    for (uint32_t i = 0; i < report->n_findings; i++) {
        const lb_ranks_finding *f = &report->findings[i];
        n += (size_t)snprintf(text + n, room - n, "%s %lld %s", lb_ranks_finding_name(f->kind), (long long)f->step,
                              f->note ? "note " : "");
        for (uint32_t r = 0; r < f->n_ranks; r++)
            n += (size_t)snprintf(text + n, room - n, "%s%d", r ? "," : "", f->ranks[r]);
        n += (size_t)snprintf(text + n, room - n, "; ");
    }
}

static worker_run run_of(const row *x)
{
    worker_run run = {.ranks = x->ranks, .steps = x->steps};
    for (int s = 0; s < x->steps; s++)
        for (int r = 0; r < x->ranks; r++) {
            worker_deed *d = &run.deeds[s][r];
            *d = (worker_deed){
                .loss = 1, .batch = x->batch[s][r], .draw = x->draw[s][r], .backwards = x->backwards[s][r]};
            for (int k = 0; k < SAMPLE_KEYS; k++) d->gradients[k][r] = (float)(s + 1);
        }
    return run;
}

static void each_run_is_told_what_it_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char found[1000];
        const worker_run run = run_of(&rows[i]);
        lb_ranks_report *report = worker_report(&run);
        describe(report, found, sizeof found);
        if (strcmp(found, rows[i].found)) fail_msg("%s: \"%s\" is not \"%s\"", rows[i].name, found, rows[i].found);
        lb_ranks_report_free(report);
    }
}

static void a_finding_of_several_steps_counts_them(void **state)
{
    (void)state;
    const row all = {"", 2, 3, {{1, 1}, {2, 2}, {3, 3}}, {{0}}, {{0}}, NULL};
    const worker_run run = run_of(&all);
    lb_ranks_report *report = worker_report(&run);
    assert_int_equal(report->n_findings, 1);
    assert_int_equal(report->findings[0].steps, 3);
    assert_non_null(strstr(report->findings[0].message, "ranks 0,1 read the same batch"));
    lb_ranks_report_free(report);
}

/* 0 … 7 are positions, which are the same everywhere: no batch. */
static void counted_positions_are_no_batch(void **state)
{
    (void)state;
    worker_run run = {.ranks = 2, .steps = 1};
    for (int r = 0; r < 2; r++)
        run.deeds[0][r] = (worker_deed){.loss = 1, .batch = SAMPLE_POSITIONS, .gradients = {{1}, {1}, {1}}};
    lb_ranks_report *report = worker_report(&run);
    assert_int_equal(report->n_findings, 0);
    lb_ranks_report_free(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_run_is_told_what_it_is),
        cmocka_unit_test(a_finding_of_several_steps_counts_them),
        cmocka_unit_test(counted_positions_are_no_batch),
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
