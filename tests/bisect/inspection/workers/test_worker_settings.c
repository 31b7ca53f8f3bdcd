/* Findings about optimizers' options, libraries, settings and code: a table of values by rank, and who is outvoted. */
#include "cmocka_first.h"

#include "worker_sample.h"

typedef struct row {
    const char *name;
    int ranks;
    double lr[SAMPLE_RANKS]; /* 0: that rank has no optimizer */
    const char *receipts[SAMPLE_RANKS];
    const char *found; /* "kind [note] tensor ranks; …" */
} row;

#define TORCH(version) "{\"versions\":{\"torch\":\"" version "\"}}"

static const row rows[] = {
    {"all alike", 3, {1e-3, 1e-3, 1e-3}, {TORCH("2.1"), TORCH("2.1"), TORCH("2.1")}, ""},
    {"one rate is another", 3, {1e-3, 2e-3, 1e-3}, {NULL}, "option lr of group 0 of AdamW 1; "},
    {"two rates without a majority", 2, {1e-3, 2e-3}, {NULL}, "option lr of group 0 of AdamW 0,1; "},
    {"half against half", 4, {1, 2, 2, 1}, {NULL}, "option lr of group 0 of AdamW 0,1,2,3; "},
    {"two of five", 5, {1, 2, 1, 3, 1}, {NULL}, "option lr of group 0 of AdamW 1,3; "},
    {"most have no optimizer: those that have agree", 4, {0, 1, 1, 0}, {NULL}, ""},
    {"another library", 3, {0}, {TORCH("2.1"), TORCH("2.1"), TORCH("2.2")}, "version versions.torch 2; "},
    {"a library that one lacks",
     3,
     {0},
     {TORCH("2.1"), "{\"versions\":{}}", TORCH("2.1")},
     "version versions.torch 1; "},
    {"a rank that says nothing", 3, {0}, {TORCH("2.1"), NULL, TORCH("2.1")}, ""},
    {"a part that one leaves out", 3, {0}, {TORCH("2.1"), "{}", TORCH("2.1")}, ""},
    {"another setting",
     3,
     {0},
     {"{\"torch\":{\"tf32\":true}}", "{\"torch\":{\"tf32\":true}}", "{\"torch\":{\"tf32\":false}}"},
     "version torch.tf32 2; "},
    {"threads are a note",
     3,
     {0},
     {"{\"torch\":{\"num_threads\":1}}", "{\"torch\":{\"num_threads\":1}}", "{\"torch\":{\"num_threads\":8}}"},
     "version note torch.num_threads 2; "},
    {"machines are a note",
     3,
     {0},
     {"{\"machine\":{\"cpu\":\"a\"}}", "{\"machine\":{\"cpu\":\"a\"}}", "{\"machine\":{\"cpu\":\"b\"}}"},
     "version note machine.cpu 2; "},
    {"each rank has processors of its own",
     2,
     {0},
     {"{\"machine\":{\"affinity\":[0]}}", "{\"machine\":{\"affinity\":[1]}}"},
     ""},
    {"other code",
     3,
     {0},
     {"{\"code\":{\"sha256\":\"a\",\"path\":\"x\"}}", "{\"code\":{\"sha256\":\"b\",\"path\":\"y\"}}",
      "{\"code\":{\"sha256\":\"a\",\"path\":\"z\"}}"},
     "version code.sha256 1; "},
    {"order of keys is no difference",
     2,
     {0},
     {"{\"torch\":{\"x\":{\"a\":1,\"b\":2}}}", "{\"torch\":{\"x\":{\"b\":2,\"a\":1}}}"},
     ""},
};

static void each_run_is_told_what_differs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *row = &rows[i];
        worker_run run = {.ranks = row->ranks, .steps = 1};
        char found[600] = "";
        size_t n = 0;
        for (int r = 0; r < row->ranks; r++) {
            run.receipts[r] = row->receipts[r];
            run.deeds[0][r] = (worker_deed){.loss = 1, .lr = row->lr[r], .gradients = {{1}, {1}, {1}}};
        }
        lb_ranks_report *report = worker_report(&run);
        for (uint32_t k = 0; k < report->n_findings; k++) {
            const lb_ranks_finding *f = &report->findings[k];
            n += (size_t)snprintf(found + n, sizeof found - n, "%s %s%s ", lb_ranks_finding_name(f->kind),
                                  f->note ? "note " : "", f->tensor);
            for (uint32_t r = 0; r < f->n_ranks; r++)
                n += (size_t)snprintf(found + n, sizeof found - n, "%s%d", r ? "," : "", f->ranks[r]);
            n += (size_t)snprintf(found + n, sizeof found - n, "; ");
        }
        if (strcmp(found, row->found)) fail_msg("%s: \"%s\" is not \"%s\"", row->name, found, row->found);
        lb_ranks_report_free(report);
    }
}

static void a_message_tells_both_values(void **state)
{
    (void)state;
    worker_run run = {.ranks = 3, .steps = 2};
    for (int s = 0; s < 2; s++)
        for (int r = 0; r < 3; r++)
            run.deeds[s][r] = (worker_deed){.loss = 1, .lr = r == 2 ? 0.25 : 0.5, .gradients = {{1}, {1}, {1}}};
    lb_ranks_report *report = worker_report(&run);
    assert_int_equal(report->n_findings, 1);
    assert_int_equal(report->findings[0].steps, 2);
    assert_string_equal(report->findings[0].message, "lr of group 0 of AdamW is 0.25 on rank 2 and 0.5 on rank 0");
    lb_ranks_report_free(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_run_is_told_what_differs),
        cmocka_unit_test(a_message_tells_both_values),
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
