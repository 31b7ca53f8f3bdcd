/* lastbit show: one value of a capture: what it is, its statistics, a piece of its contents, its exponents. */
#include "cli/cmd_show.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *step_text, *rank_text, *value_text, *op_text, *layer_text, *name_text, *npy_path, *slice_text;
static int limit = 64, histogram, list_all;

static const struct poptOption options[] = {
    {"step", 0, POPT_ARG_STRING, &step_text, 0, "step (default: the first)", "N"},
    {"rank", 0, POPT_ARG_STRING, &rank_text, 0, "rank (default: the first)", "N"},
    {"value", 0, POPT_ARG_STRING, &value_text, 0, "value by number, as `ls --values` prints it", "V"},
    {"op", 0, POPT_ARG_STRING, &op_text, 0, "results of this op, by number or name", "OP"},
    {"layer", 0, POPT_ARG_STRING, &layer_text, 0, "results of ops in this layer and below", "PATH"},
    {"name", 0, POPT_ARG_STRING, &name_text, 0, "value by name: parameter, state, batch", "NAME"},
    {"slice", 's', POPT_ARG_STRING, &slice_text, 0, "a part of the value, as NumPy indexes it: 0,:,4:8", "SLICE"},
    {"limit", 'n', POPT_ARG_INT, &limit, 0, "print at most this many elements (64)", "COUNT"},
    {"histogram", 0, POPT_ARG_NONE, &histogram, 0, "histogram of binary exponents", NULL},
    {"all", 'a', POPT_ARG_NONE, &list_all, 0, "contents of every value selected, not only of a single one", NULL},
    {"npy", 0, POPT_ARG_STRING, &npy_path, 0, "write the value, or its slice, to a .npy file", "FILE"},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "show",
    .synopsis = "CAPTURE [SELECT]",
    .about = "Shows values of one step of one rank. SELECT is a value's name, a tap (lastbit.torch.tap), "
             "a layer or an op's name, whichever is found first; the options pick more exactly and are combined. "
             "Several values are listed with their\n"
             "statistics; a single one, or a slice, also shows elements. --histogram counts binary exponents. "
             "Types that\n"
             "NumPy lacks are exported as float32, which holds each of their values exactly.",
    .example = "  lastbit show run.lb model.layers.3.mlp\n  lastbit show run.lb --step 3 --name lm_head.weight "
               "--histogram\n"
               "  lastbit show run.lb --value 812 --slice 0,:,4:8\n  lastbit show run.lb --value 812 --npy x.npy",
    .options = options,
    .min_args = 1,
    .max_args = 2,
};

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

typedef struct selection {
    const lb_program *program;
    uint32_t *values, n;
    uint32_t *op_of; /* op that first gave each value of the program, or LB_NONE */
    bool *given;     /* by an op that was asked for */
} selection;

static void selection_release(selection *selection)
{
    free(selection->values);
    free(selection->op_of);
    free(selection->given);
}

/* "mm" finds "aten::mm", "add" finds "aten::add.Tensor", and the full names find themselves. */
static bool names_op(const char *text, const char *name)
{
    const char *bare = strstr(name, "::") ? strstr(name, "::") + 2 : name;
    return lb_program_name_extends(name, text) || lb_program_name_extends(bare, text);
}

/* Views count too: an op gives what it returns, though the bytes are older. */
static void mark_given(selection *selection, const char *text)
{
    const lb_program *program = selection->program;
    int64_t number;
    bool by_number = lb_command_parse_integer(text, &number);
    memset(selection->given, 0, program->n_values);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (by_number ? number != (int64_t)i : !names_op(text, lb_op_name(program, op))) continue;
        for (uint32_t r = 0; r < op->results; r++)
            if (lb_op_results(program, op)[r] != LB_NONE) selection->given[lb_op_results(program, op)[r]] = true;
        for (uint32_t r = 0; r < op->written; r++)
            if (lb_op_written(program, op)[r] != LB_NONE) selection->given[lb_op_written(program, op)[r]] = true;
    }
}

static void choose(selection *selection, const char *op, const char *layer, const char *name)
{
    const lb_program *program = selection->program;
    int64_t value = -1;
    if (value_text) lb_command_parse_integer(value_text[0] == 'v' ? value_text + 1 : value_text, &value);
    if (op) mark_given(selection, op);
    selection->n = 0;
    for (uint32_t v = 0; v < program->n_values; v++) {
        bool in = !layer || (selection->op_of[v] != LB_NONE &&
                             lb_program_name_extends(lb_op_layer(program, &program->ops[selection->op_of[v]]), layer));
        bool named = !name || strcmp(lb_program_text(program, program->values[v].name), name) == 0;
        if ((!value_text || value == v) && (!op || selection->given[v]) && in && named)
            selection->values[selection->n++] = v;
    }
}

/* A tap is a scope of its own, which the value leaves. */
static void choose_tap(selection *selection, const char *tap)
{
    const lb_program *program = selection->program;
    selection->n = 0;
    memset(selection->given, 0, program->n_values);
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        if (!lb_program_is_tap(program, boundary) ||
            strcmp(lb_program_text(program, program->scopes[boundary->scope].path), tap) ||
            selection->given[boundary->value])
            continue;
        selection->given[boundary->value] = true;
        selection->values[selection->n++] = boundary->value;
    }
}

static lb_status select_values(selection *selection, const char *path, const char *select, lb_err *err)
{
    const lb_program *program = selection->program;
    selection->values = malloc((program->n_values + 1u) * sizeof *selection->values);
    selection->op_of = lb_program_producers(program);
    selection->given = malloc(program->n_values + 1u);
    if (!selection->values || !selection->op_of || !selection->given)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    choose(selection, op_text, layer_text, name_text);
    if (select) {
        choose(selection, op_text, layer_text, select);
        if (selection->n == 0) choose_tap(selection, select);
        if (selection->n == 0) choose(selection, op_text, select, name_text);
        if (selection->n == 0) choose(selection, select, layer_text, name_text);
    }
    if (selection->n) return LB_OK;
    return lb_fail(
        err, LB_ERR_NOT_FOUND,
        "%s: rank %" PRId32 ", step %" PRId64
        ": no value fits%s%s%s; `lastbit ls --values`, `--ops` and `--layers` list what is there, `lastbit ls` taps",
        path, program->rank, program->step, select ? " '" : "", select ? select : "", select ? "'" : "");
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static lb_status export(lb_capture *capture, const selection *selection, const show_options *how, lb_err *err)
{
    shown shown;
    if (selection->n != 1)
        return lb_fail(err, LB_ERR_INVALID, "--npy takes one value, %u fit: pick one with --value", selection->n);
    uint32_t v = selection->values[0];
    if (!lb_capture_has_value(capture, selection->program, v))
        return lb_capture_value(capture, selection->program, v, &(lb_tensor){0}, err);
    lb_status status = show_look(&shown, capture, selection->program, v, selection->op_of[v], how, err);
    if (status == LB_OK) status = show_write_npy(&shown, npy_path, err);
    show_release(&shown);
    return status;
}

static lb_status show_value(lb_capture *capture, const selection *selection, uint32_t value, const show_options *how,
                            json_t *list, lb_err *err)
{
    shown shown;
    lb_status status = show_look(&shown, capture, selection->program, value, selection->op_of[value], how, err);
    if (status == LB_OK && list) {
        json_t *json = show_json(&shown, how, err);
        if (!json) status = err->status;
        if (json) json_array_append_new(list, json);
    } else if (status == LB_OK) {
        status = show_print(&shown, how, err);
    }
    show_release(&shown);
    return status;
}

static lb_status show_selection(lb_capture *capture, const selection *selection, json_t *list, lb_err *err)
{
    show_options how = {slice_text, (uint64_t)limit, selection->n == 1 || list_all || slice_text, histogram};
    if (npy_path) LB_TRY(export(capture, selection, &how, err));
    for (uint32_t i = 0; i < selection->n; i++)
        LB_TRY(show_value(capture, selection, selection->values[i], &how, list, err));
    if (!list && !how.contents)
        printf("%" PRIu32 " values fit; --all shows their contents, --value V one of them\n", selection->n);
    return LB_OK;
}

static lb_status show(lb_capture *capture, const char *select, bool json, lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    int64_t step, rank;
    if (lb_capture_ranks(capture, &ranks) == 0 || lb_capture_steps(capture, &steps) == 0)
        return lb_capture_lacks(capture, INT64_MIN, INT64_MAX, err);
    if (!rank_text || !lb_command_parse_integer(rank_text, &rank)) rank = ranks[0];
    if (!step_text || !lb_command_parse_integer(step_text, &step)) step = steps[0];
    selection selection = {0};
    LB_TRY(lb_capture_program(capture, (int32_t)rank, step, &selection.program, err));
    json_t *list = json ? json_array() : NULL;
    lb_status status = select_values(&selection, lb_capture_path(capture), select, err);
    if (status == LB_OK) status = show_selection(capture, &selection, list, err);
    if (json && status == LB_OK)
        lb_command_print_json("show", json_pack("{s:s, s:I, s:I, s:o}", "capture", lb_capture_path(capture), "rank",
                                                (json_int_t)rank, "step", (json_int_t)step, "values", list));
    else
        json_decref(list);
    selection_release(&selection);
    return status;
}

int lb_cmd_show(int argc, const char **argv)
{
    lb_command_arguments arguments;
    lb_err err = LB_ERR_INIT;
    lb_capture *capture;
    int64_t ignored;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    if ((step_text && !lb_command_parse_integer(step_text, &ignored)) ||
        (rank_text && !lb_command_parse_integer(rank_text, &ignored)) || limit < 0)
        code = lb_command_misused("show", "--step, --rank and --limit take a number");
    else if (lb_capture_open(arguments.args[0], &capture, &err) != LB_OK)
        code = lb_command_fail("show", &err);
    else {
        char *select = lb_command_name_argument(arguments.n_args > 1 ? strdup(arguments.args[1]) : NULL);
        op_text = lb_command_name_argument(op_text), layer_text = lb_command_name_argument(layer_text);
        name_text = lb_command_name_argument(name_text);
        code = show(capture, select, arguments.json, &err) == LB_OK ? LB_EXIT_SAME : lb_command_fail("show", &err);
        free(select);
        lb_capture_close(capture);
    }
    lb_command_arguments_release(&arguments);
    return code;
}
