/* lastbit ls --receipt: what a run was in one small JSON object, and what two of them differ in.
 *
 * The schema is lastbit.receipt/1: lane (what ran), time, code, versions, environment, precision, window, health,
 * checkpoint, data, links. Fields may be added; those that are there keep their meaning. */
#include "cli/cmd_ls.h"

#include <lastbit/decode_limit.h>
#include <lastbit/digest.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "lastbit.receipt/1"
#define SHARDS_NAMED 64

/* ---- from a capture ---------------------------------------------------------------------------------------------- */

static json_t *table_of(lb_capture *capture, int32_t rank, const char *name)
{
    const char *text = lb_capture_table(capture, rank, name);
    json_t *table = text ? json_loads(text, 0, NULL) : NULL;
    return table ? table : json_object();
}

static json_t *lane_of(const json_t *receipt)
{
    const json_t *argv = json_object_get(json_object_get(receipt, "process"), "argv"), *word;
    char lane[2048] = "";
    size_t i, n = 0;
    json_array_foreach((json_t *)(uintptr_t)argv, i, word) if (json_string_value(word) && n < sizeof lane) n +=
        (size_t)snprintf(lane + n, sizeof lane - n, "%s%s", i ? " " : "", json_string_value(word));
    return json_string(lane);
}

/* What the programs of a window say, gathered over ranks and steps. */
typedef struct window {
    uint64_t dtypes[LB_DTYPE_COUNT], nonfinite, measured, ops, parameters;
    lb_digest *digests; /* of the named parameters as the first step found them */
    json_t *shards, *losses;
    bool whole;
} window;

static void add_parameters(window *window, const lb_program *program)
{
    for (uint32_t i = 0; i < program->n_values; i++) {
        const lb_value *value = &program->values[i];
        if (!(value->flags & LB_VALUE_PARAMETER) || !(value->flags & LB_VALUE_SOURCE)) continue;
        lb_digest *grown = (lb_digest *)realloc(window->digests, (window->parameters + 1) * sizeof *grown);
        if (!grown) return;
        window->digests = grown;
        grown[window->parameters++] = value->logical;
    }
}

static void add_program(window *window, const lb_program *program, bool first)
{
    window->whole &= program->complete;
    window->ops += program->n_ops;
    for (uint32_t i = 0; i < program->n_values; i++) {
        const lb_value *value = &program->values[i];
        if (value->dtype < LB_DTYPE_COUNT) window->dtypes[value->dtype]++;
        if (value->statistics == LB_NONE) continue;
        window->measured++;
        window->nonfinite += lb_statistics_nonfinite(&program->statistics[value->statistics]) > 0;
    }
    if (program->shard != LB_NONE && json_array_size(window->shards) < SHARDS_NAMED)
        json_array_append_new(window->shards,
                              json_pack("{s:I,s:i,s:s}", "step", (json_int_t)program->step, "rank", (int)program->rank,
                                        "shard", lb_program_text(program, program->shard)));
    for (uint32_t i = 0; i < program->n_scalars; i++)
        if (strcmp(lb_program_text(program, program->scalars[i].name), "loss") == 0) {
            double loss = program->scalars[i].number;
            json_t *number = loss == loss && loss - loss == 0 ? json_real(loss) : json_string("not finite");
            json_array_append_new(window->losses, json_pack("{s:I,s:i,s:o}", "step", (json_int_t)program->step, "rank",
                                                            (int)program->rank, "loss", number));
            break;
        }
    if (first) add_parameters(window, program);
}

static json_t *dtypes_json(const window *window)
{
    json_t *all = json_object();
    for (lb_dtype d = 1; d < LB_DTYPE_COUNT; d++)
        if (window->dtypes[d]) json_object_set_new(all, lb_dtype_name(d), json_integer((json_int_t)window->dtypes[d]));
    return all;
}

static json_t *checkpoint_json(const window *window)
{
    char digest[33] = "";
    if (window->parameters)
        lb_digest_format(lb_digest_bytes(window->digests, window->parameters * sizeof *window->digests), digest);
    return json_pack("{s:I,s:s}", "parameters", (json_int_t)window->parameters, "digest", digest);
}

static lb_status read_window(lb_capture *capture, window *window, lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    const uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps);
    for (uint32_t s = 0; s < n_steps; s++)
        for (uint32_t r = 0; r < n_ranks; r++) {
            const lb_program *program;
            lb_err why = LB_ERR_INIT;
            lb_status status = lb_capture_program(capture, ranks[r], steps[s], &program, &why);
            if (status == LB_ERR_NOT_FOUND) continue; /* not every rank records every step */
            if (status != LB_OK) return lb_fail(err, status, "%s", why.message);
            add_program(window, program, s == 0);
        }
    return LB_OK;
}

static json_t *window_json(lb_capture *capture)
{
    const int32_t *ranks;
    const int64_t *steps;
    const uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps);
    return json_pack("{s:I,s:I,s:i,s:i}", "first", (json_int_t)(n_steps ? steps[0] : 0), "last",
                     (json_int_t)(n_steps ? steps[n_steps - 1] : 0), "steps", (int)n_steps, "ranks", (int)n_ranks);
}

static json_t *taken(json_t *from, const char *key)
{
    json_t *value = json_object_get(from, key);
    return value ? json_incref(value) : json_object();
}

static lb_status make_receipt(lb_capture *capture, json_t **receipt, lb_err *err)
{
    const int32_t *ranks;
    window window = {.shards = json_array(), .losses = json_array(), .whole = true};
    const int32_t rank = lb_capture_ranks(capture, &ranks) ? ranks[0] : 0;
    json_t *said = table_of(capture, rank, "receipt"), *coverage = table_of(capture, rank, "coverage");
    lb_status status = read_window(capture, &window, err);
    if (status == LB_OK) {
        json_t *health = json_pack(
            "{s:b,s:I,s:I,s:I,s:I,s:I,s:o}", "whole", window.whole, "ops", (json_int_t)window.ops, "measured_values",
            (json_int_t)window.measured, "nonfinite_values", (json_int_t)window.nonfinite, "unseen_writes",
            json_integer_value(json_object_get(coverage, "unseen_writes")), "skipped_values",
            json_integer_value(json_object_get(coverage, "skipped_values")), "losses", json_incref(window.losses));
        json_t *code = json_object_get(json_object_get(said, "code"), "sha256");
        *receipt = json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:{s:O},s:{s:s}}", "schema", SCHEMA, "lane",
                             lane_of(said), "time", json_real(json_number_value(json_object_get(said, "time"))), "code",
                             code ? json_incref(code) : json_string(""), "versions", taken(said, "versions"),
                             "environment", taken(said, "environment"), "precision",
                             json_pack("{s:o,s:o}", "dtypes", dtypes_json(&window), "flags", taken(said, "torch")),
                             "window", window_json(capture), "health", health, "checkpoint", checkpoint_json(&window),
                             "data", "shards", window.shards, "links", "capture", lb_capture_path(capture));
        if (!*receipt) status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", lb_capture_path(capture));
    }
    json_decref(window.shards);
    json_decref(window.losses);
    json_decref(said);
    json_decref(coverage);
    free(window.digests);
    return status;
}

/* A capture's, or one that was written to a .json before. */
static lb_status load_receipt(const char *path, json_t **receipt, lb_err *err)
{
    const size_t n = strlen(path);
    *receipt = NULL;
    if (n > 5 && strcmp(path + n - 5, ".json") == 0 && !strstr(path, ".index.json")) {
        json_error_t why;
        *receipt = lb_decode_limit_json_file(path, 0, &why);
        if (!*receipt) return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %d: %s", path, why.position, why.text);
        const char *schema = json_string_value(json_object_get(*receipt, "schema"));
        if (schema && strcmp(schema, SCHEMA) == 0) return LB_OK;
        lb_fail(err, LB_ERR_VERSION, "%s: offset 0: schema is '%.60s', %s is read: write it again from its capture",
                path, schema ? schema : "", SCHEMA);
        json_decref(*receipt); /* which the message named */
        *receipt = NULL;
        return LB_ERR_VERSION;
    }
    lb_capture *capture;
    LB_TRY(lb_capture_open(path, &capture, err));
    lb_status status = make_receipt(capture, receipt, err);
    lb_capture_close(capture);
    return status;
}

/* ---- two of them ------------------------------------------------------------------------------------------------- */

/* Which run it is, not what it was. */
static bool is_identity(const char *field)
{
    return strcmp(field, "time") == 0 || strncmp(field, "links", 5) == 0;
}

static void add_difference(json_t *list, const char *field, json_t *a, json_t *b)
{
    if (!is_identity(field))
        json_array_append_new(list, json_pack("{s:s,s:O?,s:O?}", "field", field, "first", a, "second", b));
}

static void differ(json_t *list, const char *field, json_t *a, json_t *b)
{
    char below[600];
    const char *key;
    json_t *value;
    if (!json_is_object(a) || !json_is_object(b)) {
        if (!a || !b || !json_equal(a, b)) add_difference(list, field, a, b);
        return;
    }
    json_object_foreach(a, key, value)
    {
        snprintf(below, sizeof below, "%s%s%s", field, *field ? "." : "", key);
        differ(list, below, value, json_object_get(b, key));
    }
    json_object_foreach(b, key, value)
    {
        snprintf(below, sizeof below, "%s%s%s", field, *field ? "." : "", key);
        if (!json_object_get(a, key)) add_difference(list, below, NULL, value);
    }
}

static void print_differences(const json_t *list)
{
    size_t i;
    const json_t *row;
    json_array_foreach((json_t *)(uintptr_t)list, i, row)
    {
        char *a = json_dumps(json_object_get(row, "first"), JSON_COMPACT | JSON_ENCODE_ANY),
             *b = json_dumps(json_object_get(row, "second"), JSON_COMPACT | JSON_ENCODE_ANY);
        printf("%s: %s -> %s\n", json_string_value(json_object_get(row, "field")), a && strcmp(a, "null") ? a : "-",
               b && strcmp(b, "null") ? b : "-");
        free(a);
        free(b);
    }
    if (!json_array_size(list)) printf("no difference but in time and links\n");
}

int ls_receipt(const lb_command_arguments *arguments)
{
    lb_err err = LB_ERR_INIT;
    json_t *receipts[2] = {NULL, NULL};
    int code = LB_EXIT_SAME;
    for (int i = 0; i < arguments->n_args && code == LB_EXIT_SAME; i++)
        if (load_receipt(arguments->args[i], &receipts[i], &err) != LB_OK) code = lb_command_fail("ls", &err);
    if (code == LB_EXIT_SAME && arguments->n_args == 2) {
        json_t *list = json_array();
        differ(list, "", receipts[0], receipts[1]);
        code = json_array_size(list) ? LB_EXIT_DIFFERENT : LB_EXIT_SAME;
        if (arguments->json)
            lb_command_print_json(
                "ls", json_pack("{s:[O,O],s:O}", "receipts", receipts[0], receipts[1], "differences", list));
        else
            print_differences(list);
        json_decref(list);
    } else if (code == LB_EXIT_SAME && arguments->json) {
        lb_command_print_json("ls", json_pack("{s:O}", "receipt", receipts[0]));
    } else if (code == LB_EXIT_SAME) {
        json_dumpf(receipts[0], stdout, JSON_COMPACT);
        putchar('\n');
    }
    json_decref(receipts[0]);
    json_decref(receipts[1]);
    return code;
}
