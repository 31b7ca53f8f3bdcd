/* lastbit order: the order in which a live kernel adds up, found from outside. */
#include "command/command_line.h"

#include <lastbit/input.h>
#include <lastbit/order.h>
#include <lastbit/output.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    char *python, *library, *symbol, *engine, *tree;
    char *form, *dtype, *result, *arrays, *interpreter, *output, *expect;
    int n, rows, columns, threads, seed, sample, timeout;
} options;

/* ---- what is probed ---------------------------------------------------------------------------------------------- */

static lb_status parse_dtype(const char *text, lb_dtype *dtype, lb_err *err)
{
    *dtype = lb_dtype_parse(text);
    if (*dtype == LB_F64 || *dtype == LB_F32 || *dtype == LB_BF16 || *dtype == LB_F16) return LB_OK;
    return lb_fail(err, LB_ERR_INVALID, "\"%s\": terms and sums are f64, f32, bf16 or f16", text);
}

static lb_status make_shape(const options *options, lb_probe_shape *shape, lb_err *err)
{
    *shape = (lb_probe_shape){LB_PROBE_SUM, LB_F32, LB_NO_DTYPE, (uint32_t)options->n, 1, 1};
    if (options->form && !lb_probe_form_parse(options->form, &shape->form))
        return lb_fail(err, LB_ERR_INVALID, "--as %s: a kernel is called as sum, rows, columns, dot or matmul",
                       options->form);
    if (options->dtype) LB_TRY(parse_dtype(options->dtype, &shape->dtype, err));
    if (options->result) LB_TRY(parse_dtype(options->result, &shape->result, err));
    const bool many = shape->form != LB_PROBE_SUM && shape->form != LB_PROBE_DOT;
    if (many) shape->rows = options->rows ? (uint32_t)options->rows : 64;
    if (shape->form == LB_PROBE_MATMUL) shape->columns = options->columns ? (uint32_t)options->columns : 64;
    if (options->n < 1 || options->n > (int)LB_TREE_MAX_LEAVES)
        return lb_fail(err, LB_ERR_INVALID, "-n %d: from 1 to %u terms", options->n, LB_TREE_MAX_LEAVES);
    if (options->rows < 0 || options->columns < 0 || (!many && options->rows) ||
        (shape->form != LB_PROBE_MATMUL && options->columns))
        return lb_fail(err, LB_ERR_INVALID, "--rows are of rows, columns and matmul, --columns of matmul");
    if ((uint64_t)shape->rows * shape->n > 1u << 28 || (uint64_t)shape->columns * shape->n > 1u << 28)
        return lb_fail(err, LB_ERR_INVALID,
                       "a call of that kernel takes too much memory: fewer rows, columns or terms");
    return LB_OK;
}

static lb_status make_kernel(const options *options, const lb_probe_shape *shape, lb_probe_kernel *kernel, lb_err *err)
{
    if (options->engine)
        return lb_probe_schedule(shape, strcmp(options->engine, "default") ? options->engine : "", kernel, err);
    if (options->library)
        return lb_probe_library(shape, options->library, options->symbol, options->timeout, kernel, err);
    char *folder = lb_command_python_folder();
    lb_probe_callable callable = LB_PROBE_CALLABLE_INIT;
    callable.function = options->python, callable.interpreter = options->interpreter,
    callable.folder = folder ? folder : "";
    callable.arrays = options->arrays, callable.threads = options->threads;
    const lb_status status = lb_probe_python(shape, &callable, kernel, err);
    free(folder);
    return status;
}

static const char *target(const options *options)
{
    return options->engine ? options->engine : options->python ? options->python : options->symbol;
}

/* ---- what was expected ------------------------------------------------------------------------------------------- */

static lb_sum_of sum_of(lb_probe_form form)
{
    return form == LB_PROBE_COLUMNS ? LB_SUM_COLUMN : form >= LB_PROBE_DOT ? LB_SUM_PRODUCT : LB_SUM_ROW;
}

/* --expect: a named order, or the file of a tree. */
static lb_status expected_tree(const options *options, const lb_probe_shape *shape, lb_sum_tree **tree, lb_err *err)
{
    struct stat st;
    *tree = NULL;
    if (!options->expect) return LB_OK;
    if (lb_input_look(options->expect, &st, NULL) == LB_OK) return lb_sum_tree_read(options->expect, tree, err);
    return lb_sum_tree_named(options->expect, shape->n, sum_of(shape->form), shape->dtype, tree, err);
}

static bool as_expected(const lb_probe_report *report, const lb_sum_tree *tree)
{
    bool same = report->n_groups == 1 && report->outcome == LB_PROBE_TREE;
    if (same && report->sample) {
        lb_sum_tree *cut = lb_sum_tree_sampled(tree, report->sample, report->n_sample);
        same = cut && lb_sum_tree_equal(cut, report->groups[0].tree);
        lb_sum_tree_free(cut);
    } else if (same)
        same = lb_sum_tree_equal(tree, report->groups[0].tree);
    return same;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

enum { SHORT_TEXT = 2000 };

static void print_group(const lb_probe_group *group, const lb_probe_report *report, const lb_probe_shape *shape)
{
    if (report->n_groups > 1)
        printf("%s%u of %u results (row %u, column %u, …)\n", group == report->groups ? "" : "\n", group->positions,
               shape->rows * shape->columns, group->row, group->column);
    if (group->outcome != LB_PROBE_TREE) {
        printf("no tree:     %s: %s\n", lb_probe_outcome_name(group->outcome), group->reason);
        return;
    }
    printf("order:       %s\n", *group->names ? group->names : "unnamed");
    if (*group->arithmetic)
        printf("additions:   %s (%u of %u sums of random terms have these bits)\n", group->arithmetic, group->confirmed,
               group->tried);
    else
        printf("additions:   of no known kind: at best %u of %u sums of random terms have the bits\n", group->confirmed,
               group->tried);
    char *text = lb_sum_tree_print(group->tree);
    if (text && strlen(text) <= SHORT_TEXT)
        printf("tree:        %s\n", text);
    else if (text)
        printf("tree:        %.*s … (%zu characters: -o FILE stores it, --json prints it)\n", SHORT_TEXT, text,
               strlen(text));
    free(text);
}

static void print_text(const options *options, const lb_probe_shape *shape, const lb_probe_report *report)
{
    printf("kernel:      %s, %s of %u %s", target(options), lb_probe_form_name(shape->form), shape->n,
           lb_dtype_name(shape->dtype));
    if (shape->rows > 1) printf(", %u rows", shape->rows);
    if (shape->columns > 1) printf(" by %u columns", shape->columns);
    printf("\nprobes:      %llu sums in %llu calls, %.2f s\n", (unsigned long long)report->probes,
           (unsigned long long)report->calls, report->seconds);
    if (report->sample)
        printf("sample:      %u of the terms; the tree is numbered by them, a name stands for all\n", report->n_sample);
    for (uint32_t i = 0; i < report->n_groups; i++) print_group(&report->groups[i], report, shape);
    if (report->groups_left_out) printf("\n%u more orders at other results\n", report->groups_left_out);
}

static json_t *tree_json(const lb_sum_tree *tree, const char *name)
{
    char *text = tree ? lb_sum_tree_to_json(tree, name && *name ? name : NULL) : NULL;
    json_t *json = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return json ? json : json_null();
}

static json_t *name_json(const char *names)
{
    const char *end = strstr(names, " = ");
    return *names ? json_stringn(names, end ? (size_t)(end - names) : strlen(names)) : json_null();
}

static json_t *names_json(const char *names)
{
    json_t *list = json_array();
    while (*names) {
        const char *end = strstr(names, " = ");
        json_array_append_new(list, json_stringn(names, end ? (size_t)(end - names) : strlen(names)));
        names = end ? end + 3 : "";
    }
    return list;
}

static json_t *group_json(const lb_probe_group *group)
{
    return json_pack("{s:s, s:s?, s:o, s:o, s:s?, s:i, s:i, s:i, s:i, s:i, s:o}", "outcome",
                     lb_probe_outcome_name(group->outcome), "reason", *group->reason ? group->reason : NULL, "name",
                     name_json(group->names), "names", names_json(group->names), "arithmetic",
                     *group->arithmetic ? group->arithmetic : NULL, "confirmed", (int)group->confirmed, "tried",
                     (int)group->tried, "row", (int)group->row, "column", (int)group->column, "positions",
                     (int)group->positions, "tree", tree_json(group->tree, group->names));
}

static json_t *report_json(const options *options, const lb_probe_shape *shape, const lb_probe_report *report,
                           const bool *same)
{
    json_t *groups = json_array(), *sample = report->sample ? json_array() : json_null();
    for (uint32_t i = 0; i < report->n_groups; i++) json_array_append_new(groups, group_json(&report->groups[i]));
    for (uint32_t i = 0; i < report->n_sample; i++) json_array_append_new(sample, json_integer(report->sample[i]));
    json_t *all = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:o, s:i, s:o, s:I, s:I, s:f}", "kernel",
                            target(options), "form", lb_probe_form_name(shape->form), "dtype",
                            lb_dtype_name(shape->dtype), "n", (int)shape->n, "rows", (int)shape->rows, "columns",
                            (int)shape->columns, "outcome", lb_probe_outcome_name(report->outcome), "groups", groups,
                            "groups_left_out", (int)report->groups_left_out, "sample", sample, "probes",
                            (json_int_t)report->probes, "calls", (json_int_t)report->calls, "seconds", report->seconds);
    if (options->expect) json_object_set_new(all, "expected", json_string(options->expect));
    if (same) json_object_set_new(all, "as_expected", json_boolean(*same));
    return all;
}

static lb_status store(const options *options, const lb_probe_group *group, lb_err *err)
{
    const char *inputs[3] = {NULL};
    int n = 0;
    if (options->library) inputs[n++] = options->library;
    if (options->expect) inputs[n] = options->expect; /* the file of a tree, or the name of an order */
    char *text = group->tree ? lb_sum_tree_to_json(group->tree, *group->names ? group->names : NULL) : NULL;
    if (!text) return lb_fail(err, LB_ERR_INVALID, "there is no tree to store in %s", options->output);
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.replace = how.shared = true;
    how.inputs = inputs;
    lb_output *out;
    lb_status status = lb_output_open(options->output, &how, &out, err);
    if (status == LB_OK) {
        lb_output_write(out, text, strlen(text));
        lb_output_write(out, "\n", 1);
        status = lb_output_close(out, err);
    }
    free(text);
    return status;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static void progress(void *context, uint64_t done, uint64_t total)
{
    (void)context;
    lb_command_progress("probing", done, total);
}

/* --tree: names and prints one that was stored. */
static int show_tree(const options *given, bool json)
{
    lb_err err = LB_ERR_INIT;
    lb_sum_tree *tree;
    lb_probe_shape shape;
    options plain = *given;
    plain.n = 1;
    char names[256];
    if (make_shape(&plain, &shape, &err) != LB_OK) return lb_command_misused("order", "%s", err.message);
    if (lb_sum_tree_read(given->tree, &tree, &err) != LB_OK) return lb_command_fail("order", &err);
    lb_sum_tree_name(tree, sum_of(shape.form), shape.dtype, names, sizeof names);
    if (json) {
        lb_command_print_json("order", json_pack("{s:s, s:o, s:o, s:o}", "outcome", "tree", "name", name_json(names),
                                                 "names", names_json(names), "tree", tree_json(tree, names)));
    } else {
        char *text = lb_sum_tree_print(tree);
        printf("order:       %s\ntree:        %s\n", *names ? names : "unnamed", text ? text : "");
        free(text);
    }
    lb_sum_tree_free(tree);
    return LB_EXIT_SAME;
}

static int exit_code(const lb_probe_report *report, const bool *same)
{
    if (report->outcome != LB_PROBE_TREE) return LB_EXIT_UNTESTABLE;
    return (same && !*same) || report->n_groups > 1 || report->groups_left_out ? LB_EXIT_DIFFERENT : LB_EXIT_SAME;
}

static int run(const options *given, const lb_probe_shape *shape, bool json)
{
    lb_err err = LB_ERR_INIT;
    lb_probe_kernel kernel = {0};
    lb_probe_report report = {0};
    lb_sum_tree *expected = NULL;
    lb_probe_options options = LB_PROBE_OPTIONS_INIT;
    options.seed = (uint64_t)given->seed;
    options.sample = (uint32_t)given->sample;
    options.progress = progress;
    if (expected_tree(given, shape, &expected, &err) != LB_OK)
        return err.status == LB_ERR_INVALID ? lb_command_misused("order", "--expect: %s", err.message)
                                            : lb_command_fail("order", &err);
    lb_status status = make_kernel(given, shape, &kernel, &err);
    if (status == LB_OK) status = lb_probe_run(&kernel, &options, &report, &err);
    lb_command_progress_end();
    int code = LB_EXIT_FAILED;
    if (status == LB_OK) {
        const bool same = expected && as_expected(&report, expected);
        if (json)
            lb_command_print_json("order", report_json(given, shape, &report, expected ? &same : NULL));
        else
            print_text(given, shape, &report);
        if (expected && !json) printf("expected:    %s: %s\n", given->expect, same ? "the same" : "another order");
        code = exit_code(&report, expected ? &same : NULL);
        if (given->output) status = store(given, &report.groups[0], &err);
    }
    if (status == LB_ERR_INVALID && given->engine)
        code = lb_command_misused("order", "--engine: %s", err.message);
    else if (status != LB_OK)
        code = lb_command_fail("order", &err);
    lb_sum_tree_free(expected);
    lb_probe_report_release(&report);
    lb_probe_kernel_release(&kernel);
    return code;
}

int lb_cmd_order(int argc, const char **argv)
{
    static options options = {.seed = 1, .timeout = LB_PROBE_SECONDS}; /* popt's texts are its own until the end */
    const struct poptOption table[] = {
        {"python", 0, POPT_ARG_STRING, &options.python, 0,
         "a Python callable, with literal keyword arguments: numpy:sum, 'torch:sum(dim=1)'", "MODULE:FUNCTION"},
        {"so", 0, POPT_ARG_STRING, &options.library, 0, "a shared object; its function is named by --symbol", "FILE"},
        {"symbol", 0, POPT_ARG_STRING, &options.symbol, 0, "the function of the shared object", "NAME"},
        {"engine", 0, POPT_ARG_STRING, &options.engine, 0, "lastbit's own sums and products in an order, or default",
         "ORDER"},
        {"tree", 0, POPT_ARG_STRING, &options.tree, 0, "probe nothing: name and print a stored tree", "FILE"},
        {"as", 0, POPT_ARG_STRING, &options.form, 0, "how it is called: sum, rows, columns, dot, matmul", "FORM"},
        {NULL, 'n', POPT_ARG_INT, &options.n, 0, "terms of a sum (k of a product)", "N"},
        {"rows", 0, POPT_ARG_INT, &options.rows, 0, "rows, columns or m of the matrix (64)", "M"},
        {"columns", 0, POPT_ARG_INT, &options.columns, 0, "n of a product (64)", "N"},
        {"dtype", 0, POPT_ARG_STRING, &options.dtype, 0, "f64, f32 (default), bf16, f16", "DTYPE"},
        {"result", 0, POPT_ARG_STRING, &options.result, 0, "dtype of the sums, if it is a different one", "DTYPE"},
        {"arrays", 0, POPT_ARG_STRING, &options.arrays, 0, "give a Python callable numpy or torch arrays", "KIND"},
        {"interpreter", 0, POPT_ARG_STRING, &options.interpreter, 0, "the Python to call it by (python3)", "PATH"},
        {"threads", 0, POPT_ARG_INT, &options.threads, 0, "threads of the Python process", "N"},
        {"timeout", 0, POPT_ARG_INT, &options.timeout, 0,
         "seconds that one call of a shared object's function may take (60)", "SECONDS"},
        {"sample", 0, POPT_ARG_INT, &options.sample, 0,
         "probe no more than this many of the terms (1024 where there are over 4096)", "N"},
        {"seed", 0, POPT_ARG_INT, &options.seed, 0, "of pivots and random terms (1)", "N"},
        {"expect", 0, POPT_ARG_STRING, &options.expect, 0, "exit with 1 if the order is not this one", "ORDER|FILE"},
        {"output", 'o', POPT_ARG_STRING, &options.output, 0,
         "store the tree as JSON: `lastbit replay --order SEL=tree:FILE` sums along it", "FILE"},
        POPT_TABLEEND,
    };
    static const char about[] =
        "Finds the order in which a kernel adds up, from outside: "
        "what a sum of huge and small terms loses tells which\n"
        "terms meet first. Prints the order as a tree, the names of orders that make this tree, "
        "and the arithmetic of the\n"
        "additions as random terms confirm it.\n"
        "\n"
        "A function of a shared object is, with T float, double or the bits of a 16-bit float,\n"
        "  sum      T f(const T *x, int64_t n)\n"
        "  rows     void f(const T *x, int64_t rows, int64_t n, T *out)\n"
        "  columns  void f(const T *x, int64_t n, int64_t columns, T *out)\n"
        "  dot      T f(const T *x, const T *y, int64_t n)\n"
        "  matmul   void f(const T *a, const T *b, T *c, int64_t m, int64_t n, int64_t k)\n"
        "and runs in a process of its own: if it crashes or does not return, that is what is said.\n"
        "\n"
        "Exits with 0 for one tree, 1 if results have different orders or an order that is not the expected one, "
        "125 if it is not a tree.";
    static const char example[] =
        "  lastbit order --python numpy:sum -n 1000\n"
        "  lastbit order --python 'torch:matmul' --as matmul -n 512 --dtype bf16 -o tree.json\n"
        "  lastbit order --so ./mysum.so --symbol mysum -n 300 --expect pairwise";
    const lb_command command = {.name = "order", .synopsis = "", .about = about, .example = example, .options = table};
    lb_command_arguments arguments;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    lb_err err = LB_ERR_INIT;
    lb_probe_shape shape;
    const int targets = !!options.python + !!options.library + !!options.engine + !!options.tree;
    if (targets != 1)
        code = lb_command_misused("order", "one of --python, --so, --engine and --tree says what to probe");
    else if (!!options.library != !!options.symbol)
        code = lb_command_misused("order", "--so and --symbol belong together");
    else if (options.timeout < 1 || options.timeout > LB_PROBE_LONGEST ||
             (options.timeout != LB_PROBE_SECONDS && !options.library))
        code = lb_command_misused("order", "--timeout %d: a number of seconds from 1 to %d, with --so", options.timeout,
                                  LB_PROBE_LONGEST);
    else if (options.tree)
        code = show_tree(&options, arguments.json);
    else if (make_shape(&options, &shape, &err) != LB_OK)
        code = lb_command_misused("order", "%s", err.message);
    else
        code = run(&options, &shape, arguments.json);
    lb_command_arguments_release(&arguments);
    return code;
}
