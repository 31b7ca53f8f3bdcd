/* lastbit show: one value of a capture: what it is, its statistics, a piece of its contents, its exponents. */
#include "command_line.h"

#include <lastbit/archive.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *step_text, *rank_text, *value_text, *op_text, *layer_text, *name_text, *npy_path;
static int limit = 64, histogram, list_all;

static const struct poptOption options[] = {
    {"step", 0, POPT_ARG_STRING, &step_text, 0, "step (default: the first)", "N"},
    {"rank", 0, POPT_ARG_STRING, &rank_text, 0, "rank (default: the first)", "N"},
    {"value", 0, POPT_ARG_STRING, &value_text, 0, "value by number, as `ls --values` prints it", "V"},
    {"op", 0, POPT_ARG_STRING, &op_text, 0, "results of this op, by number or name", "OP"},
    {"layer", 0, POPT_ARG_STRING, &layer_text, 0, "results of ops in this layer and below", "PATH"},
    {"name", 0, POPT_ARG_STRING, &name_text, 0, "value by name: parameter, state, batch", "NAME"},
    {"limit", 'n', POPT_ARG_INT, &limit, 0, "print at most this many elements (64)", "COUNT"},
    {"histogram", 0, POPT_ARG_NONE, &histogram, 0, "histogram of binary exponents", NULL},
    {"all", 'a', POPT_ARG_NONE, &list_all, 0, "contents of every value selected, not of a single one only", NULL},
    {"npy", 0, POPT_ARG_STRING, &npy_path, 0, "write the value to a .npy file", "FILE"},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "show",
    .synopsis = "CAPTURE [SELECT]",
    .about = "Shows values of one step of one rank. SELECT is a value's name, a layer or an op's name, whichever is\n"
             "found first; the options pick more exactly and are combined. Several values are listed with their\n"
             "statistics; a single one also shows elements and, with --histogram, its exponents. Types that NumPy\n"
             "lacks are exported as float32, which holds each of their values exactly.",
    .example = "  lastbit show run.lb model.layers.3.mlp\n  lastbit show run.lb --step 3 --name lm_head.weight --histogram\n"
               "  lastbit show run.lb --value 812 --npy x.npy",
    .options = options,
    .min_args = 1,
    .max_args = 2,
};

/* ---- choosing ------------------------------------------------------------------------------------------------------ */

typedef struct selection {
    const lb_program *program;
    uint32_t *values, n;
    uint32_t *op_of; /* op that produced each value of the program, or LB_NONE */
} selection;

static void selection_release(selection *s)
{
    free(s->values);
    free(s->op_of);
}

static bool is_number(const char *text, int64_t *number)
{
    char *end;
    *number = strtoll(text, &end, 10);
    return *text && !*end;
}

/* "mm" finds "aten::mm", "add" finds "aten::add.Tensor", and the full names find themselves. */
static bool names_op(const char *text, const char *name)
{
    const char *bare = strstr(name, "::") ? strstr(name, "::") + 2 : name;
    size_t n = strlen(text);
    return strcmp(name, text) == 0 || strcmp(bare, text) == 0 || (strncmp(bare, text, n) == 0 && bare[n] == '.') ||
           (strncmp(name, text, n) == 0 && name[n] == '.');
}

static bool in_layer(const char *layer, const char *path)
{
    size_t n = strlen(layer);
    return strncmp(path, layer, n) == 0 && (path[n] == '\0' || path[n] == '.');
}

static bool matches(const selection *s, uint32_t v, const char *op, const char *layer, const char *name)
{
    const lb_program *p = s->program;
    const lb_op *from = s->op_of[v] == LB_NONE ? NULL : &p->ops[s->op_of[v]];
    int64_t number;
    if (name && strcmp(lb_program_text(p, p->values[v].name), name) != 0) return false;
    if (op && (!from || !(is_number(op, &number) ? number == (int64_t)s->op_of[v] : names_op(op, lb_op_name(p, from)))))
        return false;
    return !layer || (from && in_layer(layer, lb_op_layer(p, from)));
}

static void choose(selection *s, const char *op, const char *layer, const char *name)
{
    int64_t value = -1;
    if (value_text) is_number(value_text[0] == 'v' ? value_text + 1 : value_text, &value);
    s->n = 0;
    for (uint32_t v = 0; v < s->program->n_values; v++)
        if ((!value_text || value == v) && matches(s, v, op, layer, name)) s->values[s->n++] = v;
}

static lb_status select_values(selection *s, const char *select, lb_err *err)
{
    const lb_program *p = s->program;
    s->values = malloc((p->n_values + 1u) * sizeof *s->values);
    s->op_of = malloc((p->n_values + 1u) * sizeof *s->op_of);
    if (!s->values || !s->op_of) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t v = 0; v < p->n_values; v++) s->op_of[v] = LB_NONE;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        for (uint32_t r = 0; r < op->results; r++)
            if (lb_op_results(p, op)[r] != LB_NONE) s->op_of[lb_op_results(p, op)[r]] = i;
        for (uint32_t r = 0; r < op->written; r++)
            if (lb_op_written(p, op)[r] != LB_NONE) s->op_of[lb_op_written(p, op)[r]] = i;
    }
    choose(s, op_text, layer_text, name_text);
    if (select) {
        choose(s, op_text, layer_text, select);
        if (s->n == 0) choose(s, op_text, select, name_text);
        if (s->n == 0) choose(s, select, layer_text, name_text);
    }
    if (s->n) return LB_OK;
    return lb_fail(err, LB_ERR_NOT_FOUND, "rank %" PRId32 ", step %" PRId64 ": no value fits; `lastbit ls --values` and `--ops` list them",
                   p->rank, p->step);
}

/* ---- one value ----------------------------------------------------------------------------------------------------- */

typedef struct shown {
    uint32_t value;
    bool has_bytes;
    lb_tensor tensor;
    lb_statistics statistics;
    bool has_statistics;
    double *elements; /* all of them, f64; complex: the parts */
    size_t n;
} shown;

static lb_status gather(const lb_tensor *tensor, double **elements, size_t *n, lb_err *err)
{
    *n = (size_t)lb_layout_numel(&tensor->layout);
    size_t parts = lb_dtype_is_complex(tensor->dtype) ? 2 : 1, size = lb_dtype_bytes(tensor->dtype, *n);
    char *dense = malloc(size + 1);
    *elements = malloc((*n * parts + 1) * sizeof **elements);
    lb_status status = dense && *elements ? lb_tensor_gather(tensor, dense, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    *n *= parts;
    if (status == LB_OK) lb_load_f64(*elements, lb_dtype_part(tensor->dtype), dense, *n);
    free(dense);
    return status;
}

static lb_status look(lb_capture *capture, const selection *s, uint32_t value, shown *look, lb_err *err)
{
    const lb_value *v = &s->program->values[value];
    memset(look, 0, sizeof *look);
    look->value = value;
    look->has_bytes = lb_capture_has_value(capture, s->program, value);
    if (look->has_bytes) {
        LB_TRY(lb_capture_value(capture, s->program, value, &look->tensor, err));
        look->statistics = lb_statistics_of(&look->tensor);
    } else if (v->statistics != LB_NONE) {
        look->statistics = s->program->statistics[v->statistics];
    }
    look->has_statistics = look->has_bytes || v->statistics != LB_NONE;
    return LB_OK;
}

#define EXPONENT_LOW (-1080)
#define EXPONENTS 2200

/* Counts by floor(log2 |x|); zeros and non-finite elements are in the statistics. */
static void count_exponents(const double *x, size_t n, uint64_t counts[EXPONENTS])
{
    memset(counts, 0, EXPONENTS * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]) && x[i] != 0) counts[ilogb(x[i]) - EXPONENT_LOW]++;
}

/* ---- as text ------------------------------------------------------------------------------------------------------- */

static void print_line(const selection *s, const shown *l)
{
    const lb_program *p = s->program;
    const lb_value *v = &p->values[l->value];
    char digest[33];
    lb_digest_format(v->logical, digest);
    printf("v%" PRIu32 " %s [", l->value, lb_dtype_name(v->dtype));
    for (int d = 0; d < v->layout.ndim; d++) printf(d ? ",%" PRId64 : "%" PRId64, v->layout.shape[d]);
    printf("]");
    if (v->name != LB_NONE) printf(" %s", lb_program_text(p, v->name));
    if (v->source) printf(" (%s)", lb_source_kind_name((lb_source_kind)v->source));
    if (s->op_of[l->value] != LB_NONE) {
        const lb_op *op = &p->ops[s->op_of[l->value]];
        printf(" from op %" PRIu32 " %s in %s, %s", s->op_of[l->value], lb_op_name(p, op), *lb_op_layer(p, op) ? lb_op_layer(p, op) : "(outside)",
               lb_phase_name((lb_phase)op->phase));
    }
    printf("\n  digest %s%s%s\n", lb_digest_is_none(v->logical) ? "none" : digest, l->has_bytes ? "" : "; bytes not kept",
           v->flags & LB_VALUE_UNDEFINED ? "; some bytes were never written" : "");
    if (!l->has_statistics) return;
    const lb_statistics *t = &l->statistics;
    int64_t finite = t->elements - lb_statistics_nonfinite(t);
    double mean = finite ? t->sum / (double)finite : 0;
    printf("  %" PRId64 " elements: min %.9g, max %.9g, mean %.9g, rms %.9g, zeros %" PRId64, t->elements, t->min, t->max, mean,
           finite ? sqrt(t->sum_squares / (double)finite) : 0, t->zero);
    if (lb_statistics_nonfinite(t)) printf(", NaN %" PRId64 ", +inf %" PRId64 ", -inf %" PRId64, t->nan, t->pos_inf, t->neg_inf);
    putchar('\n');
}

static void print_elements(const lb_layout *layout, lb_dtype dtype, const double *x, size_t n)
{
    bool complex = lb_dtype_is_complex(dtype);
    size_t parts = complex ? 2 : 1, row = layout->ndim ? (size_t)layout->shape[layout->ndim - 1] : 1;
    int digits = lb_dtype_is_integer(dtype) ? 20 : lb_dtype_bits(lb_dtype_part(dtype)) > 32 ? 17 : 9;
    for (size_t i = 0; i < n / parts; i++) {
        if (i >= (size_t)limit) {
            printf("%s  … %zu more\n", i % row ? "\n" : "", n / parts - i);
            return;
        }
        printf(i % row ? " " : "  ");
        if (complex)
            printf("%.*g%+.*gi", digits, x[2 * i], digits, x[2 * i + 1]);
        else
            printf("%.*g", digits, x[i]);
        if (i % row == row - 1 || i == n / parts - 1) putchar('\n');
    }
}

static void print_histogram(const double *x, size_t n)
{
    static uint64_t counts[EXPONENTS];
    uint64_t most = 1;
    int low = EXPONENTS, high = -1;
    count_exponents(x, n, counts);
    for (int e = 0; e < EXPONENTS; e++)
        if (counts[e]) {
            low = e < low ? e : low;
            high = e;
            most = counts[e] > most ? counts[e] : most;
        }
    for (int e = high; e >= low && high >= 0; e--)
        if (counts[e]) printf("  2^%-5d %10" PRIu64 " %.*s\n", e + EXPONENT_LOW, counts[e], (int)(counts[e] * 48 / most),
               "################################################");
}

/* ---- as JSON ------------------------------------------------------------------------------------------------------- */

static json_t *number(double x)
{
    if (isfinite(x)) return json_real(x);
    return json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf"); /* JSON has no such numbers */
}

static json_t *histogram_json(const double *x, size_t n)
{
    static uint64_t counts[EXPONENTS];
    json_t *all = json_object();
    char key[16];
    count_exponents(x, n, counts);
    for (int e = 0; e < EXPONENTS; e++) {
        if (!counts[e]) continue;
        snprintf(key, sizeof key, "%d", e + EXPONENT_LOW);
        json_object_set_new(all, key, json_integer((json_int_t)counts[e]));
    }
    return all;
}

static json_t *value_json(const selection *s, const shown *l)
{
    const lb_program *p = s->program;
    const lb_value *v = &p->values[l->value];
    const lb_op *op = s->op_of[l->value] == LB_NONE ? NULL : &p->ops[s->op_of[l->value]];
    char logical[33], blob[33];
    lb_digest_format(v->logical, logical);
    lb_digest_format(v->blob, blob);
    json_t *shape = json_array(), *stride = json_array(), *statistics = json_null();
    for (int d = 0; d < v->layout.ndim; d++) {
        json_array_append_new(shape, json_integer(v->layout.shape[d]));
        json_array_append_new(stride, json_integer(v->layout.stride[d]));
    }
    if (l->has_statistics) {
        const lb_statistics *t = &l->statistics;
        statistics = json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "elements", (json_int_t)t->elements, "nan", (json_int_t)t->nan,
                               "pos_inf", (json_int_t)t->pos_inf, "neg_inf", (json_int_t)t->neg_inf, "zero", (json_int_t)t->zero, "min",
                               number(t->min), "max", number(t->max), "sum", number(t->sum), "sum_squares", number(t->sum_squares));
    }
    json_t *all = json_pack("{s:I, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:s, s:s, s:s, s:b, s:o}", "value", (json_int_t)l->value, "name",
                            lb_program_text(p, v->name), "dtype", lb_dtype_name(v->dtype), "shape", shape, "stride", stride, "offset",
                            (json_int_t)v->layout.offset, "storage", (json_int_t)v->storage, "version", (json_int_t)v->version, "source",
                            lb_source_kind_name((lb_source_kind)v->source), "digest", logical, "blob", blob, "kept", (int)l->has_bytes,
                            "statistics", statistics);
    if (op) {
        json_object_set_new(all, "op", json_integer((json_int_t)s->op_of[l->value]));
        json_object_set_new(all, "op_name", json_string(lb_op_name(p, op)));
        json_object_set_new(all, "layer", json_string(lb_op_layer(p, op)));
        json_object_set_new(all, "phase", json_string(lb_phase_name((lb_phase)op->phase)));
    }
    if (l->elements) {
        json_t *elements = json_array();
        for (size_t i = 0; i < l->n && i < (size_t)limit; i++) json_array_append_new(elements, number(l->elements[i]));
        json_object_set_new(all, "elements", elements);
        if (histogram) json_object_set_new(all, "histogram", histogram_json(l->elements, l->n));
    }
    return all;
}

/* ---- .npy ---------------------------------------------------------------------------------------------------------- */

static lb_status write_npy(const lb_tensor *tensor, const char *path, lb_err *err)
{
    lb_dtype dtype = tensor->dtype, as = dtype;
    if (!*lb_dtype_numpy(dtype)) as = lb_dtype_is_complex(dtype) ? LB_C64 : LB_F32;
    size_t n = (size_t)lb_layout_numel(&tensor->layout), size = lb_dtype_bytes(dtype, n), out = lb_dtype_bytes(as, n);
    char header[512], shape[LB_MAX_DIMS * 22 + 3] = "(", *dense = malloc(size + 1), *bytes = malloc(out + 1);
    for (int d = 0; d < tensor->layout.ndim; d++) sprintf(shape + strlen(shape), "%" PRId64 ",", tensor->layout.shape[d]);
    strcat(shape, ")");
    int length = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", lb_dtype_numpy(as), shape);
    int padded = (10 + length + 1 + 63) / 64 * 64 - 10;
    memset(header + length, ' ', (size_t)(padded - length));
    header[padded - 1] = '\n';
    const unsigned char magic[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)padded, (unsigned char)(padded >> 8)};
    lb_status status = dense && bytes ? lb_tensor_gather(tensor, dense, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) {
        lb_convert(as, bytes, dtype, dense, n, NULL);
        FILE *file = fopen(path, "wbx");
        if (!file)
            status = lb_fail(err, LB_ERR_IO, "%s: cannot create it (an existing file is not replaced)", path);
        else if (fwrite(magic, 1, 10, file) != 10 || fwrite(header, 1, (size_t)padded, file) != (size_t)padded ||
                 fwrite(bytes, 1, out, file) != out)
            status = lb_fail(err, LB_ERR_IO, "%s: cannot write it", path);
        if (file && fclose(file) != 0) status = lb_fail(err, LB_ERR_IO, "%s: cannot write it", path);
    }
    free(dense);
    free(bytes);
    if (status == LB_OK && as != dtype)
        fprintf(stderr, "lastbit show: %s has no NumPy type; written as %s, every value exact\n", lb_dtype_name(dtype), lb_dtype_torch(as));
    return status;
}

/* ---- the command ----------------------------------------------------------------------------------------------------- */

static lb_status show_value(lb_capture *capture, const selection *s, uint32_t value, json_t *list, lb_err *err)
{
    shown l;
    LB_TRY(look(capture, s, value, &l, err));
    bool contents = l.has_bytes && (s->n == 1 || list_all);
    if (contents) {
        lb_status status = gather(&l.tensor, &l.elements, &l.n, err);
        if (status != LB_OK) return free(l.elements), status;
    }
    if (list) {
        json_array_append_new(list, value_json(s, &l));
    } else {
        print_line(s, &l);
        if (contents) print_elements(&l.tensor.layout, l.tensor.dtype, l.elements, l.n);
        if (contents && histogram) print_histogram(l.elements, l.n);
    }
    free(l.elements);
    return LB_OK;
}

static lb_status show(lb_capture *capture, const char *select, bool json, lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    int64_t step, rank;
    if (lb_capture_ranks(capture, &ranks) == 0 || lb_capture_steps(capture, &steps) == 0)
        return lb_fail(err, LB_ERR_NOT_FOUND, "%s: holds no step", lb_capture_path(capture));
    if (!rank_text || !is_number(rank_text, &rank)) rank = ranks[0];
    if (!step_text || !is_number(step_text, &step)) step = steps[0];
    selection s = {0};
    LB_TRY(lb_capture_program(capture, (int32_t)rank, step, &s.program, err));
    lb_status status = select_values(&s, select, err);
    if (status == LB_OK && npy_path) {
        lb_tensor tensor;
        if (s.n != 1)
            status = lb_fail(err, LB_ERR_INVALID, "--npy takes one value, %u fit: pick one with --value", s.n);
        if (status == LB_OK) status = lb_capture_value(capture, s.program, s.values[0], &tensor, err);
        if (status == LB_OK) status = write_npy(&tensor, npy_path, err);
    }
    json_t *list = json ? json_array() : NULL;
    for (uint32_t i = 0; i < s.n && status == LB_OK; i++) status = show_value(capture, &s, s.values[i], list, err);
    if (json && status == LB_OK)
        lb_print_json("show", json_pack("{s:s, s:I, s:I, s:o}", "capture", lb_capture_path(capture), "rank", (json_int_t)rank, "step",
                                        (json_int_t)step, "values", list));
    else
        json_decref(list);
    selection_release(&s);
    return status;
}

int lb_cmd_show(int argc, const char **argv)
{
    lb_arguments arguments;
    lb_err err = LB_ERR_INIT;
    lb_capture *capture;
    int64_t ignored;
    int code = lb_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    if ((step_text && !is_number(step_text, &ignored)) || (rank_text && !is_number(rank_text, &ignored)) || limit < 0)
        code = lb_command_misused("show", "--step, --rank and --limit take a number");
    else if (lb_capture_open(arguments.args[0], &capture, &err) != LB_OK)
        code = lb_command_fail("show", &err);
    else {
        code = show(capture, arguments.n_args > 1 ? arguments.args[1] : NULL, arguments.json, &err) == LB_OK ? LB_EXIT_SAME
                                                                                                                  : lb_command_fail("show", &err);
        lb_capture_close(capture);
    }
    lb_arguments_release(&arguments);
    return code;
}
