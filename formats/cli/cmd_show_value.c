/* lastbit show: one value as text, as JSON and as a .npy file. Elements are read in pieces: memory does not grow with
 * them. */
#include "cli/cmd_show.h"
#include "cli/value_shards.h"

#include <lastbit/output.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- looking ----------------------------------------------------------------------------------------------------- */

/* Elements below a byte cannot be strided: they become float32, which holds each of them. */
static lb_status widen(shown *shown, lb_err *err)
{
    int64_t n = lb_layout_numel(&shown->tensor.layout);
    char *dense = malloc(lb_dtype_bytes(shown->tensor.dtype, (size_t)n) + 1);
    shown->widened = malloc((size_t)n * sizeof(float) + 1);
    lb_status status = dense && shown->widened ? lb_tensor_gather(&shown->tensor, dense, err)
                                               : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) {
        lb_convert(LB_F32, shown->widened, shown->tensor.dtype, dense, (size_t)n, NULL);
        shown->tensor = (lb_tensor){shown->widened, LB_F32,
                                    lb_layout_contiguous(shown->tensor.layout.ndim, shown->tensor.layout.shape)};
    }
    free(dense);
    return status;
}

static lb_status cut(shown *shown, const char *slice, lb_err *err)
{
    lb_layout part;
    if (lb_dtype_bits(shown->tensor.dtype) < 8) LB_TRY(widen(shown, err));
    LB_TRY(lb_layout_slice(&shown->tensor.layout, slice, &part, err));
    shown->tensor.data = (char *)shown->tensor.data + part.offset * (int64_t)lb_dtype_bits(shown->tensor.dtype) / 8;
    shown->tensor.layout = part;
    shown->tensor.layout.offset = 0;
    return LB_OK;
}

lb_status show_look(shown *look, lb_capture *capture, const lb_program *program, uint32_t value, uint32_t op,
                    const show_options *options, lb_err *err)
{
    const lb_value *recorded = &program->values[value];
    *look = (shown){
        .program = program, .value = value, .op = op, .has_bytes = lb_capture_has_value(capture, program, value)};
    if (look->has_bytes || options->slice) LB_TRY(lb_capture_value(capture, program, value, &look->tensor, err));
    if (options->slice) LB_TRY(cut(look, options->slice, err));
    look->has_statistics = look->has_bytes || recorded->statistics != LB_NONE;
    if (recorded->statistics != LB_NONE && !options->slice)
        look->statistics = program->statistics[recorded->statistics];
    else if (look->has_bytes)
        look->statistics = lb_statistics_of(&look->tensor);
    return LB_OK;
}

void show_release(shown *shown)
{
    free(shown->widened);
}

/* ---- elements in pieces ------------------------------------------------------------------------------------------ */

typedef struct pieces {
    char dense[4096];     /* elements as they are */
    double numbers[4096]; /* the same, complex ones as two parts each */
    size_t elements, parts;
} pieces;

/* Calls `visit` for at most `most` elements in row-major order. */
static lb_status each_piece(const lb_tensor *tensor, uint64_t most, void (*visit)(void *context, const pieces *piece),
                            void *context, lb_err *err)
{
    pieces given;
    size_t bits = lb_dtype_bits(tensor->dtype), room = sizeof given.dense * 8 / bits;
    size_t parts = lb_dtype_is_complex(tensor->dtype) ? 2 : 1;
    if (room > 4096 / parts) room = 4096 / parts;
    for (lb_rows rows = lb_rows_of(&tensor->layout); most > 0 && lb_rows_next(&rows);)
        for (int64_t at = 0; at < rows.count && most > 0; at += (int64_t)given.elements) {
            uint64_t left = (uint64_t)(rows.count - at);
            given.elements = left < room ? (size_t)left : room;
            if (given.elements > most) given.elements = (size_t)most;
            lb_tensor part = {(char *)tensor->data + (rows.offset + at * rows.stride) * (int64_t)bits / 8,
                              tensor->dtype,
                              {.ndim = 1, .shape = {(int64_t)given.elements}, .stride = {rows.stride}}};
            LB_TRY(lb_tensor_gather(&part, given.dense, err));
            given.parts = given.elements * parts;
            lb_load_f64(given.numbers, lb_dtype_part(tensor->dtype), given.dense, given.parts);
            visit(context, &given);
            most -= given.elements;
        }
    return LB_OK;
}

#define EXPONENT_LOW (-1080)
#define EXPONENTS 2200

/* Counts by floor(log2 |x|); zeros and non-finite elements are in the statistics. */
static void count_exponents(void *context, const pieces *piece)
{
    uint64_t *counts = (uint64_t *)context;
    for (size_t i = 0; i < piece->parts; i++)
        if (isfinite(piece->numbers[i]) && piece->numbers[i] != 0) counts[ilogb(piece->numbers[i]) - EXPONENT_LOW]++;
}

/* 64-bit integers do not fit a double. */
static bool integer_of(const pieces *piece, lb_dtype dtype, size_t i, char text[24])
{
    int64_t number;
    if (dtype != LB_I64 && dtype != LB_U64) return false;
    memcpy(&number, piece->dense + i * 8, 8);
    snprintf(text, 24, dtype == LB_I64 ? "%" PRId64 : "%" PRIu64, number);
    return true;
}

/* ---- as text ----------------------------------------------------------------------------------------------------- */

static void print_head(const shown *shown, const show_options *options)
{
    static const struct {
        uint32_t flag;
        const char *word;
    } roles[] = {{LB_VALUE_PARAMETER, "parameter"},
                 {LB_VALUE_GRADIENT, "gradient"},
                 {LB_VALUE_STATE, "state"},
                 {LB_VALUE_INPUT, "input"}};
    const lb_program *program = shown->program;
    const lb_value *value = &program->values[shown->value];
    char digest[33];
    lb_digest_format(value->logical, digest);
    printf("v%" PRIu32 " %s ", shown->value, lb_dtype_name(value->dtype));
    lb_command_print_shape(&value->layout);
    if (value->name != LB_NONE) printf(" %s", lb_program_text(program, value->name));
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
        if (value->flags & roles[k].flag) printf(", %s", roles[k].word);
    if (value->source) printf(", source: %s", lb_source_kind_name((lb_source_kind)value->source));
    if (value->version) printf(", version %" PRIu32, value->version);
    if (shown->op != LB_NONE) {
        const lb_op *op = &program->ops[shown->op];
        printf("\n  from op %" PRIu32 " %s in %s, %s", shown->op, lb_op_name(program, op),
               *lb_op_layer(program, op) ? lb_op_layer(program, op) : "(outside)", lb_phase_name((lb_phase)op->phase));
        char text[LB_LINE_TEXT + 200];
        const lb_code_line line = lb_op_line(program, op);
        lb_code_line_text(&line, text, sizeof text);
        if (*text) printf("\n  line %s", text);
    }
    value_shards_print(program, shown->value, "\n  part: ");
    if (value->flags & LB_VALUE_UNDEFINED)
        printf("\n  some bytes were never written");
    else if (!lb_digest_is_none(value->logical))
        printf("\n  digest %s", digest);
    puts(shown->has_bytes ? "" : "\n  bytes not kept");
    if (!options->slice) return;
    printf("  slice %s: ", options->slice);
    lb_command_print_shape(&shown->tensor.layout);
    putchar('\n');
}

static void print_statistics(const lb_statistics *statistics)
{
    int64_t finite = statistics->elements - lb_statistics_nonfinite(statistics);
    printf("  %" PRId64 " element%s:", statistics->elements, statistics->elements == 1 ? "" : "s");
    if (finite)
        printf(" min %.9g, max %.9g, mean %.9g, rms %.9g, zeros %" PRId64, statistics->min, statistics->max,
               statistics->sum / (double)finite, sqrt(statistics->sum_squares / (double)finite), statistics->zero);
    if (finite && lb_statistics_nonfinite(statistics)) putchar(',');
    if (lb_statistics_nonfinite(statistics))
        printf(" NaN %" PRId64 ", +inf %" PRId64 ", -inf %" PRId64, statistics->nan, statistics->pos_inf,
               statistics->neg_inf);
    putchar('\n');
}

typedef struct printing {
    const lb_tensor *tensor;
    uint64_t at; /* elements printed */
} printing;

/* "[1,0,8]" where a line begins: the index of its first element. */
static void print_index(const lb_layout *layout, uint64_t element)
{
    int64_t index[LB_MAX_DIMS];
    for (int d = layout->ndim - 1; d >= 0; d--) {
        index[d] = (int64_t)(element % (uint64_t)layout->shape[d]);
        element /= (uint64_t)layout->shape[d];
    }
    fputs("  [", stdout);
    for (int d = 0; d < layout->ndim; d++) printf(d ? ",%" PRId64 : "%" PRId64, index[d]);
    putchar(']');
}

static void print_piece(void *context, const pieces *piece)
{
    enum { LINE = 8 };
    printing *out = (printing *)context;
    const lb_layout *layout = &out->tensor->layout;
    lb_dtype dtype = out->tensor->dtype;
    uint64_t row = layout->ndim ? (uint64_t)layout->shape[layout->ndim - 1] : 1;
    int digits = lb_dtype_is_integer(dtype) ? 20 : lb_dtype_bits(lb_dtype_part(dtype)) > 32 ? 17 : 9;
    char integer[24];
    for (size_t i = 0; i < piece->elements; i++, out->at++) {
        if (out->at % row % LINE == 0) {
            if (out->at) putchar('\n');
            print_index(layout, out->at);
        }
        if (integer_of(piece, dtype, i, integer))
            printf(" %s", integer);
        else if (lb_dtype_is_complex(dtype))
            printf(" %.*g%+.*gi", digits, piece->numbers[2 * i], digits, piece->numbers[2 * i + 1]);
        else
            printf(" %.*g", digits, piece->numbers[i]);
    }
}

static lb_status print_histogram(const lb_tensor *tensor, lb_err *err)
{
    static uint64_t counts[EXPONENTS];
    memset(counts, 0, sizeof counts);
    LB_TRY(each_piece(tensor, UINT64_MAX, count_exponents, counts, err));
    uint64_t most = 1;
    int low = EXPONENTS, high = -1;
    for (int e = 0; e < EXPONENTS; e++) {
        if (!counts[e]) continue;
        low = e < low ? e : low;
        high = e;
        most = counts[e] > most ? counts[e] : most;
    }
    for (int e = high; e >= low && high >= 0; e--)
        if (counts[e])
            printf("  2^%-5d %10" PRIu64 " %.*s\n", e + EXPONENT_LOW, counts[e], (int)(counts[e] * 48 / most),
                   "################################################");
    return LB_OK;
}

lb_status show_print(const shown *shown, const show_options *options, lb_err *err)
{
    print_head(shown, options);
    if (shown->has_statistics) print_statistics(&shown->statistics);
    if (!shown->has_bytes) return LB_OK;
    if (options->contents) {
        printing out = {&shown->tensor, 0};
        LB_TRY(each_piece(&shown->tensor, options->limit, print_piece, &out, err));
        if (out.at) putchar('\n');
        uint64_t n = (uint64_t)lb_layout_numel(&shown->tensor.layout);
        if (n > out.at) printf("  … %" PRIu64 " more\n", n - out.at);
    }
    return options->histogram ? print_histogram(&shown->tensor, err) : LB_OK;
}

/* ---- as JSON ----------------------------------------------------------------------------------------------------- */

static json_t *number(double x)
{
    if (isfinite(x)) return json_real(x);
    return json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf"); /* JSON has no such numbers */
}

typedef struct listing {
    json_t *elements;
    lb_dtype dtype;
} listing;

static void list_piece(void *context, const pieces *piece)
{
    listing *l = (listing *)context;
    char text[24];
    for (size_t i = 0; i < piece->parts; i++) {
        bool wide = integer_of(piece, l->dtype, i, text);
        int64_t integer = wide ? strtoll(text, NULL, 10) : 0;
        bool fits = wide && (l->dtype == LB_I64 || integer < INT64_MAX);
        json_array_append_new(l->elements, !wide  ? number(piece->numbers[i])
                                           : fits ? json_integer(integer)
                                                  : json_string(text));
    }
}

static json_t *statistics_json(const lb_statistics *statistics)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "elements", (json_int_t)statistics->elements,
                     "nan", (json_int_t)statistics->nan, "pos_inf", (json_int_t)statistics->pos_inf, "neg_inf",
                     (json_int_t)statistics->neg_inf, "zero", (json_int_t)statistics->zero, "min",
                     number(statistics->min), "max", number(statistics->max), "sum", number(statistics->sum),
                     "sum_squares", number(statistics->sum_squares));
}

static lb_status add_contents(json_t *all, const shown *shown, const show_options *options, lb_err *err)
{
    if (options->contents) {
        listing listing = {json_array(), shown->tensor.dtype};
        json_object_set_new(all, "elements", listing.elements);
        LB_TRY(each_piece(&shown->tensor, options->limit, list_piece, &listing, err));
    }
    if (!options->histogram) return LB_OK;
    static uint64_t counts[EXPONENTS];
    json_t *exponents = json_object();
    json_object_set_new(all, "histogram", exponents);
    memset(counts, 0, sizeof counts);
    LB_TRY(each_piece(&shown->tensor, UINT64_MAX, count_exponents, counts, err));
    for (int e = 0; e < EXPONENTS; e++) {
        char key[16];
        if (!counts[e]) continue;
        snprintf(key, sizeof key, "%d", e + EXPONENT_LOW);
        json_object_set_new(exponents, key, json_integer((json_int_t)counts[e]));
    }
    return LB_OK;
}

static json_t *sizes_json(const int64_t *sizes, int n)
{
    json_t *list = json_array();
    for (int d = 0; d < n; d++) json_array_append_new(list, json_integer(sizes[d]));
    return list;
}

json_t *show_json(const shown *shown, const show_options *options, lb_err *err)
{
    const lb_program *program = shown->program;
    const lb_value *value = &program->values[shown->value];
    char logical[33], blob[33];
    lb_digest_format(value->logical, logical);
    lb_digest_format(value->blob, blob);
    json_t *all = json_pack("{s:I, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:s, s:s, s:s, s:b, s:o}", "value",
                            (json_int_t)shown->value, "name", lb_program_text(program, value->name), "dtype",
                            lb_dtype_name(value->dtype), "shape", sizes_json(value->layout.shape, value->layout.ndim),
                            "stride", sizes_json(value->layout.stride, value->layout.ndim), "offset",
                            (json_int_t)value->layout.offset, "storage", (json_int_t)value->storage, "version",
                            (json_int_t)value->version, "source", lb_source_kind_name((lb_source_kind)value->source),
                            "digest", logical, "blob", blob, "kept", (int)shown->has_bytes, "statistics",
                            shown->has_statistics ? statistics_json(&shown->statistics) : json_null());
    if (shown->op != LB_NONE) {
        const lb_op *op = &program->ops[shown->op];
        json_object_set_new(all, "op", json_integer((json_int_t)shown->op));
        json_object_set_new(all, "op_name", json_string(lb_op_name(program, op)));
        json_object_set_new(all, "layer", json_string(lb_op_layer(program, op)));
        json_object_set_new(all, "phase", json_string(lb_phase_name((lb_phase)op->phase)));
        const lb_code_line line = lb_op_line(program, op);
        json_object_set_new(all, "source_line", lb_command_json_line(&line));
    }
    json_t *shards = value_shards_json(program, shown->value);
    if (shards) json_object_set_new(all, "shards", shards);
    if (options->slice) {
        json_object_set_new(all, "slice", json_string(options->slice));
        json_object_set_new(all, "slice_shape", sizes_json(shown->tensor.layout.shape, shown->tensor.layout.ndim));
    }
    if (shown->has_bytes && add_contents(all, shown, options, err) != LB_OK) {
        json_decref(all);
        return NULL;
    }
    return all;
}

/* ---- .npy -------------------------------------------------------------------------------------------------------- */

typedef struct npy {
    lb_output *file;
    lb_dtype from, as;
} npy;

static void write_piece(void *context, const pieces *piece)
{
    npy *out = (npy *)context;
    char bytes[4096 * 8]; /* a piece is at most 4096 bytes, and grows from 4 bits to 32 at most */
    lb_convert(out->as, bytes, out->from, piece->dense, piece->elements, NULL);
    size_t size = lb_dtype_bytes(out->as, piece->elements);
    lb_output_write(out->file, bytes, size);
}

/* https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1.0 */
static void write_npy_header(lb_output *file, lb_dtype dtype, const lb_layout *layout)
{
    char header[512], shape[LB_MAX_DIMS * 22 + 3] = "(";
    for (int d = 0; d < layout->ndim; d++) sprintf(shape + strlen(shape), "%" PRId64 ",", layout->shape[d]);
    strcat(shape, ")");
    int length = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                          lb_dtype_numpy(dtype), shape);
    int padded = (10 + length + 1 + 63) / 64 * 64 - 10;
    memset(header + length, ' ', (size_t)(padded - length));
    header[padded - 1] = '\n';
    const unsigned char magic[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)padded, (unsigned char)(padded >> 8)};
    lb_output_write(file, magic, 10);
    lb_output_write(file, header, (size_t)padded);
}

lb_status show_write_npy(const shown *shown, const char *path, lb_err *err)
{
    npy out = {NULL, shown->tensor.dtype, shown->tensor.dtype};
    if (!*lb_dtype_numpy(out.from)) out.as = lb_dtype_is_complex(out.from) ? LB_C64 : LB_F32;
    LB_TRY(lb_output_open(path, NULL, &out.file, err)); /* an existing file is not replaced; values are private */
    write_npy_header(out.file, out.as, &shown->tensor.layout);
    lb_status status = each_piece(&shown->tensor, UINT64_MAX, write_piece, &out, err);
    if (status == LB_OK)
        status = lb_output_close(out.file, err);
    else
        lb_output_abandon(out.file);
    if (status == LB_OK && out.as != shown->program->values[shown->value].dtype)
        fprintf(stderr, "lastbit show: NumPy has no %s; written as %s, every value exact\n",
                lb_dtype_name(shown->program->values[shown->value].dtype), lb_dtype_torch(out.as));
    return status;
}
