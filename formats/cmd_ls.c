/* lastbit ls: what a capture holds, and how much of it was kept. */
#include "command_line.h"

#include <lastbit/archive.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int one_step = 0, one_rank = 0, layers, ops, values;
static char *step_text, *rank_text;

static const struct poptOption options[] = {
    {"step", 0, POPT_ARG_STRING, &step_text, 0, "this step only", "N"},
    {"rank", 0, POPT_ARG_STRING, &rank_text, 0, "this rank only", "N"},
    {"layers", 'l', POPT_ARG_NONE, &layers, 0, "list layers", NULL},
    {"ops", 'o', POPT_ARG_NONE, &ops, 0, "list ops", NULL},
    {"values", 'v', POPT_ARG_NONE, &values, 0, "list values", NULL},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "ls",
    .synopsis = "CAPTURE",
    .about = "Lists the steps and ranks of a capture: ops by phase, values, and of each kind of value how many\n"
             "kept their bytes (the others are known by digest and statistics). CAPTURE is a folder NAME.lb, a\n"
             "packed file, one archive, or a safetensors, .npy or .npz file.",
    .example = "  lastbit ls run.lb\n  lastbit ls run.lb --step 3 --rank 0 --layers",
    .options = options,
    .min_args = 1,
    .max_args = 1,
};

/* Values of one level: all, those with bytes, and the bytes. */
typedef struct kept {
    uint64_t total, kept, bytes;
} kept;

enum level { SOURCES, LAYERS, OPS, LEVELS };
static const char *const level_names[] = {"sources", "layers", "ops"};
static const char *const reached[] = {"stats", "sources", "layers", "ops"};

/* The first level that keeps each value: sources, then inputs and outputs of layers, then what is left. */
static uint8_t *levels_of(const lb_program *p)
{
    uint8_t *level = malloc(p->n_values + 1u);
    if (!level) return NULL;
    memset(level, OPS, p->n_values + 1u);
    for (uint32_t i = 0; i < p->n_boundaries; i++) level[p->boundaries[i].value] = LAYERS;
    for (uint32_t i = 0; i < p->n_values; i++)
        if (p->values[i].flags & LB_VALUE_SOURCE) level[i] = SOURCES;
    return level;
}

static uint64_t bytes_of(const lb_value *value)
{
    return lb_dtype_bytes(value->dtype, (size_t)lb_layout_numel(&value->layout));
}

static bool count_levels(lb_capture *capture, const lb_program *p, kept counts[LEVELS])
{
    uint8_t *level = levels_of(p);
    if (!level) return false;
    for (uint32_t i = 0; i < p->n_values; i++) {
        kept *k = &counts[level[i]];
        k->total++;
        if (!lb_capture_has_value(capture, p, i)) continue;
        k->kept++;
        k->bytes += bytes_of(&p->values[i]);
    }
    free(level);
    return true;
}

static json_t *shape_json(const lb_layout *layout)
{
    json_t *shape = json_array();
    for (int d = 0; d < layout->ndim; d++) json_array_append_new(shape, json_integer(layout->shape[d]));
    return shape;
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------- */

typedef struct layer_count {
    uint64_t ops, by_phase[LB_PHASE_OTHER + 1];
} layer_count;

static layer_count *count_layers(const lb_program *p)
{
    layer_count *counts = calloc(p->n_scopes, sizeof *counts);
    if (!counts) return NULL;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        counts[p->ops[i].scope].ops++;
        counts[p->ops[i].scope].by_phase[p->ops[i].phase]++;
    }
    return counts;
}

static json_t *layers_json(const lb_program *p)
{
    json_t *list = json_array();
    layer_count *counts = count_layers(p);
    for (uint32_t s = 0; counts && s < p->n_scopes; s++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:I}", "layer", lb_program_text(p, p->scopes[s].path), "class",
                                              lb_program_text(p, p->scopes[s].class_name), "ops", (json_int_t)counts[s].ops,
                                              "forward", (json_int_t)counts[s].by_phase[LB_PHASE_FORWARD], "backward",
                                              (json_int_t)counts[s].by_phase[LB_PHASE_BACKWARD]));
    free(counts);
    return list;
}

static json_t *ids_json(const uint32_t *rows, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, rows[i] == LB_NONE ? json_null() : json_integer(rows[i]));
    return list;
}

static json_t *ops_json(const lb_program *p)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        json_array_append_new(list, json_pack("{s:I, s:s, s:s, s:s, s:i, s:o, s:o}", "op", (json_int_t)i, "name", lb_op_name(p, op),
                                              "layer", lb_op_layer(p, op), "phase", lb_phase_name((lb_phase)op->phase), "call",
                                              (int)op->call, "results", ids_json(lb_op_results(p, op), op->results), "written",
                                              ids_json(lb_op_written(p, op), op->written)));
    }
    return list;
}

static json_t *values_json(lb_capture *capture, const lb_program *p)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_values; i++) {
        const lb_value *v = &p->values[i];
        char digest[33];
        lb_digest_format(v->logical, digest);
        json_array_append_new(
            list, json_pack("{s:I, s:s, s:s, s:o, s:s, s:s, s:I, s:I, s:b}", "value", (json_int_t)i, "name",
                            lb_program_text(p, v->name), "dtype", lb_dtype_name(v->dtype), "shape", shape_json(&v->layout), "source",
                            lb_source_kind_name((lb_source_kind)v->source), "digest", digest, "storage", (json_int_t)v->storage,
                            "version", (json_int_t)v->version, "kept", (int)lb_capture_has_value(capture, p, i)));
    }
    return list;
}

static json_t *program_json(lb_capture *capture, const lb_program *p)
{
    kept counts[LEVELS] = {{0, 0, 0}};
    uint64_t phases[LB_PHASE_OTHER + 1] = {0};
    if (!count_levels(capture, p, counts)) return NULL;
    json_t *by_phase = json_object(), *by_level = json_object(), *scalars = json_object(), *notices = json_array();
    for (uint32_t i = 0; i < p->n_ops; i++) phases[p->ops[i].phase]++;
    for (int k = 0; k <= LB_PHASE_OTHER; k++)
        json_object_set_new(by_phase, lb_phase_name((lb_phase)k), json_integer((json_int_t)phases[k]));
    for (int k = 0; k < LEVELS; k++)
        json_object_set_new(by_level, level_names[k],
                            json_pack("{s:I, s:I, s:I}", "values", (json_int_t)counts[k].total, "kept", (json_int_t)counts[k].kept,
                                      "bytes", (json_int_t)counts[k].bytes));
    for (uint32_t i = 0; i < p->n_scalars; i++) {
        json_t *number = json_real(p->scalars[i].number); /* NULL for a NaN: JSON has none */
        json_object_set_new(scalars, lb_program_text(p, p->scalars[i].name), number ? number : json_null());
    }
    for (uint32_t i = 0; i < p->n_notices; i++)
        json_array_append_new(notices, json_pack("{s:s, s:s}", "kind", lb_program_text(p, p->notices[i].kind), "message",
                                                 lb_program_text(p, p->notices[i].message)));
    json_t *all = json_pack("{s:i, s:I, s:i, s:s, s:b, s:s, s:I, s:o, s:I, s:o, s:I, s:o, s:o}", "rank", (int)p->rank, "step",
                            (json_int_t)p->step, "world", (int)p->world, "level", reached[p->level], "complete", (int)p->complete,
                            "shard", lb_program_text(p, p->shard), "ops", (json_int_t)p->n_ops, "phases", by_phase, "values",
                            (json_int_t)p->n_values, "kept", by_level, "collectives", (json_int_t)p->n_collectives, "scalars",
                            scalars, "notices", notices);
    if (layers) json_object_set_new(all, "layers", layers_json(p));
    if (ops) json_object_set_new(all, "op_list", ops_json(p));
    if (values) json_object_set_new(all, "value_list", values_json(capture, p));
    return all;
}

/* ---- text ---------------------------------------------------------------------------------------------------------- */

static const char *human(uint64_t bytes, char text[16])
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    double amount = (double)bytes;
    int unit = 0;
    while (amount >= 1000 && unit < 4) amount /= 1000, unit++;
    snprintf(text, 16, unit ? "%.1f %s" : "%.0f %s", amount, units[unit]);
    return text;
}

static const char *shape_text(const lb_layout *layout, char text[LB_MAX_DIMS * 21 + 3])
{
    char *at = text;
    at += sprintf(at, "[");
    for (int d = 0; d < layout->ndim; d++) at += sprintf(at, d ? ",%" PRId64 : "%" PRId64, layout->shape[d]);
    sprintf(at, "]");
    return text;
}

static void print_layers(const lb_program *p)
{
    layer_count *counts = count_layers(p);
    if (!counts) return;
    printf("    %8s %8s %8s  %s\n", "ops", "forward", "backward", "layer (class)");
    for (uint32_t s = 0; s < p->n_scopes; s++)
        printf("    %8" PRIu64 " %8" PRIu64 " %8" PRIu64 "  %s%s%s%s\n", counts[s].ops, counts[s].by_phase[LB_PHASE_FORWARD],
               counts[s].by_phase[LB_PHASE_BACKWARD], s ? lb_program_text(p, p->scopes[s].path) : "(outside)",
               p->scopes[s].class_name == LB_NONE ? "" : " (", lb_program_text(p, p->scopes[s].class_name),
               p->scopes[s].class_name == LB_NONE ? "" : ")");
    free(counts);
}

static void print_ops(const lb_program *p)
{
    char shape[LB_MAX_DIMS * 21 + 3];
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        printf("    %7" PRIu32 " %-9s %-32s %s", i, lb_phase_name((lb_phase)op->phase), lb_op_name(p, op), lb_op_layer(p, op));
        for (uint32_t r = 0; r < op->results; r++) {
            uint32_t v = lb_op_results(p, op)[r];
            if (v == LB_NONE) continue;
            printf(" v%" PRIu32 ":%s%s", v, lb_dtype_name(p->values[v].dtype), shape_text(&p->values[v].layout, shape));
        }
        putchar('\n');
    }
}

static void print_values(lb_capture *capture, const lb_program *p)
{
    char shape[LB_MAX_DIMS * 21 + 3], digest[33];
    for (uint32_t i = 0; i < p->n_values; i++) {
        const lb_value *v = &p->values[i];
        lb_digest_format(v->logical, digest);
        printf("    v%-7" PRIu32 " %-8s %-20s %.12s %-4s %-10s %s\n", i, lb_dtype_name(v->dtype), shape_text(&v->layout, shape), digest,
               lb_capture_has_value(capture, p, i) ? "kept" : "-", lb_source_kind_name((lb_source_kind)v->source),
               lb_program_text(p, v->name));
    }
}

static void print_program(lb_capture *capture, const lb_program *p)
{
    kept counts[LEVELS] = {{0, 0, 0}};
    uint64_t phases[LB_PHASE_OTHER + 1] = {0};
    char text[16];
    count_levels(capture, p, counts);
    for (uint32_t i = 0; i < p->n_ops; i++) phases[p->ops[i].phase]++;
    printf("rank %" PRId32 " of %" PRId32 ", step %" PRId64 ": level %s%s%s%s\n", p->rank, p->world, p->step, reached[p->level],
           p->complete ? "" : ", incomplete", p->shard == LB_NONE ? "" : ", shard ", lb_program_text(p, p->shard));
    printf("  %" PRIu32 " ops:", p->n_ops);
    for (int k = 0; k <= LB_PHASE_OTHER; k++)
        if (phases[k]) printf(" %" PRIu64 " %s", phases[k], lb_phase_name((lb_phase)k));
    printf("; %" PRIu32 " layers; %" PRIu32 " values:", p->n_scopes - 1, p->n_values);
    for (int k = 0; k < LEVELS; k++)
        printf("%s %" PRIu64 "/%" PRIu64 " %s kept (%s)", k ? "," : "", counts[k].kept, counts[k].total, level_names[k],
               human(counts[k].bytes, text));
    putchar('\n');
    for (uint32_t i = 0; i < p->n_scalars; i++)
        printf("%s%s %.9g", i ? ", " : "  ", lb_program_text(p, p->scalars[i].name), p->scalars[i].number);
    if (p->n_scalars) putchar('\n');
    for (uint32_t i = 0; i < p->n_notices; i++)
        printf("  %s: %s\n", lb_program_text(p, p->notices[i].kind), lb_program_text(p, p->notices[i].message));
    if (layers) print_layers(p);
    if (ops) print_ops(p);
    if (values) print_values(capture, p);
}

/* ---- the command ----------------------------------------------------------------------------------------------------- */

static bool number_of(const char *text, int64_t *number)
{
    char *end;
    *number = strtoll(text, &end, 10);
    return *text && !*end;
}

static int list(lb_capture *capture, int64_t step, int64_t rank, bool json, lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps), shown = 0;
    json_t *programs = json_array();
    if (!json) printf("%s: %u rank%s, %u step%s\n", lb_capture_path(capture), n_ranks, n_ranks == 1 ? "" : "s", n_steps, n_steps == 1 ? "" : "s");
    for (uint32_t s = 0; s < n_steps; s++)
        for (uint32_t r = 0; r < n_ranks; r++) {
            const lb_program *p;
            if ((one_step && steps[s] != step) || (one_rank && ranks[r] != rank)) continue;
            lb_status status = lb_capture_program(capture, ranks[r], steps[s], &p, err);
            if (status == LB_ERR_NOT_FOUND) {
                lb_err_clear(err);
                continue;
            }
            if (status != LB_OK) return json_decref(programs), lb_command_fail("ls", err);
            shown++;
            if (json)
                json_array_append_new(programs, program_json(capture, p));
            else
                print_program(capture, p);
        }
    if (shown == 0 && (one_step || one_rank)) {
        lb_fail(err, LB_ERR_NOT_FOUND, "%s: no such step or rank was recorded", lb_capture_path(capture));
        return json_decref(programs), lb_command_fail("ls", err);
    }
    if (json) {
        json_t *all = json_pack("{s:s, s:[], s:[], s:o}", "capture", lb_capture_path(capture), "ranks", "steps", "programs", programs);
        for (uint32_t r = 0; r < n_ranks; r++) json_array_append_new(json_object_get(all, "ranks"), json_integer(ranks[r]));
        for (uint32_t s = 0; s < n_steps; s++) json_array_append_new(json_object_get(all, "steps"), json_integer(steps[s]));
        lb_print_json("ls", all);
    } else {
        json_decref(programs);
    }
    return LB_EXIT_SAME;
}

int lb_cmd_ls(int argc, const char **argv)
{
    lb_arguments arguments;
    lb_err err = LB_ERR_INIT;
    lb_capture *capture;
    int64_t step = 0, rank = 0;
    int code = lb_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    one_step = step_text != NULL;
    one_rank = rank_text != NULL;
    if ((one_step && !number_of(step_text, &step)) || (one_rank && !number_of(rank_text, &rank)))
        code = lb_command_misused("ls", "--step and --rank take a number");
    else if (lb_capture_open(arguments.args[0], &capture, &err) != LB_OK)
        code = lb_command_fail("ls", &err);
    else {
        code = list(capture, step, rank, arguments.json, &err);
        lb_capture_close(capture);
    }
    lb_arguments_release(&arguments);
    return code;
}
