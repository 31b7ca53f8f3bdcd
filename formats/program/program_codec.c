/* A program as bytes: columnar MessagePack. FORMAT.md ("Program segments") has the bytes.
 *
 *   {"step": …, "rank": …, …, "strings": ["", …], "ops": {"rows": N, "name": BIN, "scope": BIN, …}, "args": {…}, …}
 *
 * One BIN per column. Integers are stored as narrow as the column allows: w = length / rows is 1, 2, 4 or 8,
 * little-endian two's complement, sign-extended to the field (so LB_NONE is -1 and costs one byte). f64 and digests are
 * not narrowed. Decoding allocates rows only after their columns were found to be there, so memory is bounded by the
 * input's size. */
#include "base/msgpack_cursor.h"
#include "program/program_store.h"

#include <lastbit/text.h>

#include <inttypes.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

typedef enum column_kind { INTEGER, FLOAT, DIGEST } column_kind;

typedef struct column {
    const char *name;
    uint16_t offset; /* in the row */
    uint8_t width;   /* of the field in memory */
    uint8_t kind;
    /* added by a minor version: 0 in every row where it is not there, and left out where it is 0 in every row */
    bool optional;
} column;

#define COLUMN(kind, type, field) {#field, offsetof(type, field), sizeof(((type *)0)->field), kind, false}
#define I(type, field) COLUMN(INTEGER, type, field)
#define F(type, field) COLUMN(FLOAT, type, field)

static const column scope_columns[] = {I(lb_scope, path), I(lb_scope, class_name), I(lb_scope, parent)};
static const column op_columns[] = {
    I(lb_op, name),         I(lb_op, scope),     I(lb_op, call),
    I(lb_op, flags),        I(lb_op, first_arg), I(lb_op, args),
    I(lb_op, first_result), I(lb_op, results),   I(lb_op, first_written),
    I(lb_op, written),      I(lb_op, node_name), I(lb_op, node),
    I(lb_op, phase),        I(lb_op, thread),    {"line", offsetof(lb_op, line), 4, INTEGER, true},
};
static const column arg_columns[] = {I(lb_arg, tag), I(lb_arg, count), {"u", offsetof(lb_arg, u), 8, INTEGER, false}};
static const column ref_columns[] = {{"row", 0, 4, INTEGER, false}};
static const column value_columns[] = {
    I(lb_value, storage),
    I(lb_value, version),
    I(lb_value, flags),
    I(lb_value, dtype),
    I(lb_value, source),
    I(lb_value, device),
    I(lb_value, name),
    I(lb_value, statistics),
    {"offset", offsetof(lb_value, layout.offset), 8, INTEGER, false},
    {"ndim", offsetof(lb_value, layout.ndim), 4, INTEGER, false},
    COLUMN(DIGEST, lb_value, logical),
    COLUMN(DIGEST, lb_value, blob),
};
static const column statistics_columns[] = {
    I(lb_statistics, elements), I(lb_statistics, nan),  I(lb_statistics, pos_inf),
    I(lb_statistics, neg_inf),  I(lb_statistics, zero), F(lb_statistics, min),
    F(lb_statistics, max),      F(lb_statistics, sum),  F(lb_statistics, sum_squares),
};
static const column boundary_columns[] = {
    I(lb_boundary, scope), I(lb_boundary, call),   I(lb_boundary, op),        I(lb_boundary, position),
    I(lb_boundary, value), I(lb_boundary, output), I(lb_boundary, recompute),
};
static const column collective_columns[] = {
    I(lb_collective, op),       I(lb_collective, group),      I(lb_collective, reduce), I(lb_collective, algorithm),
    I(lb_collective, sequence), I(lb_collective, first_rank), I(lb_collective, ranks),
};
static const column routing_columns[] = {
    I(lb_routing, scope),   I(lb_routing, call),  I(lb_routing, logits),  I(lb_routing, ids),
    I(lb_routing, weights), I(lb_routing, slots), I(lb_routing, dropped),
};
static const column scalar_columns[] = {I(lb_scalar, name), I(lb_scalar, op), F(lb_scalar, number)};
static const column group_columns[] = {
    I(lb_group, optimizer),   I(lb_group, index),  I(lb_group, first_op),     I(lb_group, ops),
    I(lb_group, first_param), I(lb_group, params), I(lb_group, first_option), I(lb_group, options),
};
static const column group_param_columns[] = {I(lb_group_param, name), I(lb_group_param, storage),
                                             I(lb_group_param, gradient)};
static const column notice_columns[] = {I(lb_notice, kind), I(lb_notice, op), I(lb_notice, value),
                                        I(lb_notice, message)};
static const column shard_columns[] = {
    I(lb_shard, value),      I(lb_shard, name),         I(lb_shard, mesh),    I(lb_shard, first_placement),
    I(lb_shard, placements), I(lb_shard, first_extent), I(lb_shard, extents), I(lb_shard, at),
};
static const column extent_columns[] = {I(lb_extent, dim), I(lb_extent, whole), I(lb_extent, from), I(lb_extent, size)};
static const column placement_columns[] = {I(lb_placement, kind), I(lb_placement, dim), I(lb_placement, reduce)};
static const column mesh_columns[] = {I(lb_mesh, first_axis), I(lb_mesh, axes), I(lb_mesh, first_rank),
                                      I(lb_mesh, ranks)};
static const column mesh_axis_columns[] = {I(lb_mesh_axis, name), I(lb_mesh_axis, size)};
static const column line_columns[] = {I(lb_line, file), I(lb_line, function), I(lb_line, text), I(lb_line, number)};

#define MAX_COLUMNS 16
static const struct {
    const column *columns;
    uint32_t count;
} columns_of[LB_TABLE_COUNT] = {
#define COLUMNS(ID, array) [LB_TABLE_##ID] = {array, sizeof array / sizeof array[0]}
    COLUMNS(SCOPES, scope_columns),
    COLUMNS(OPS, op_columns),
    COLUMNS(ARGS, arg_columns),
    COLUMNS(REFS, ref_columns),
    COLUMNS(VALUES, value_columns),
    COLUMNS(STATISTICS, statistics_columns),
    COLUMNS(BOUNDARIES, boundary_columns),
    COLUMNS(COLLECTIVES, collective_columns),
    COLUMNS(ROUTINGS, routing_columns),
    COLUMNS(SCALARS, scalar_columns),
    COLUMNS(GROUPS, group_columns),
    COLUMNS(GROUP_PARAMS, group_param_columns),
    COLUMNS(NOTICES, notice_columns),
    COLUMNS(SHARDS, shard_columns),
    COLUMNS(EXTENTS, extent_columns),
    COLUMNS(PLACEMENTS, placement_columns),
    COLUMNS(MESHES, mesh_columns),
    COLUMNS(MESH_AXES, mesh_axis_columns),
    COLUMNS(LINES, line_columns),
};

/* Tables whose columns lie outside their rows. */
static const char shape_column[] = "shape", stride_column[] = "stride";

/* ---- one integer, of any width ----------------------------------------------------------------------------------- */

static inline int64_t load_signed(const char *p, unsigned width)
{
    int8_t a;
    int16_t b;
    int32_t c;
    int64_t d;
    switch (width) {
    case 1: return memcpy(&a, p, 1), a;
    case 2: return memcpy(&b, p, 2), b;
    case 4: return memcpy(&c, p, 4), c;
    default: return memcpy(&d, p, 8), d;
    }
}

/* Little-endian machines only: the low bytes come first. */
static inline void store_low(char *p, int64_t number, unsigned width)
{
    switch (width) {
    case 1: memcpy(p, &number, 1); break;
    case 2: memcpy(p, &number, 2); break;
    case 4: memcpy(p, &number, 4); break;
    default: memcpy(p, &number, 8); break;
    }
}

static unsigned narrowest(int64_t low, int64_t high)
{
    if (low >= INT8_MIN && high <= INT8_MAX) return 1;
    if (low >= INT16_MIN && high <= INT16_MAX) return 2;
    if (low >= INT32_MIN && high <= INT32_MAX) return 4;
    return 8;
}

static void swap_digest(const char *from, char *to)
{
    uint64_t words[2];
    memcpy(words, from, 16);
    words[0] = __builtin_bswap64(words[0]);
    words[1] = __builtin_bswap64(words[1]);
    memcpy(to, words, 16);
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

typedef struct encoder {
    msgpack_packer packer;
    char *scratch; /* one column */
    size_t scratch_bytes;
    bool failed;
} encoder;

static void put_text(encoder *encoder, const char *text)
{
    size_t n = strlen(text);
    encoder->failed |=
        n > UINT32_MAX || msgpack_pack_str(&encoder->packer, n) || msgpack_pack_str_body(&encoder->packer, text, n);
}

static void put_int(encoder *encoder, const char *key, int64_t number)
{
    put_text(encoder, key);
    encoder->failed |= msgpack_pack_int64(&encoder->packer, number) != 0;
}

static void put_bin(encoder *encoder, const char *key, const void *bytes, size_t n)
{
    put_text(encoder, key);
    encoder->failed |= n > UINT32_MAX || msgpack_pack_bin(&encoder->packer, n) ||
                       (n && msgpack_pack_bin_body(&encoder->packer, bytes, n));
}

static char *scratch(encoder *encoder, size_t bytes)
{
    if (bytes <= encoder->scratch_bytes) return encoder->scratch;
    char *grown = (char *)realloc(encoder->scratch, bytes);
    if (!grown) return NULL;
    encoder->scratch = grown;
    encoder->scratch_bytes = bytes;
    return grown;
}

/* `stride` bytes from row to row. */
static void put_integers(encoder *encoder, const char *key, const char *rows, uint32_t n, size_t stride, unsigned width)
{
    int64_t low = 0, high = 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t number = load_signed(rows + i * stride, width);
        low = number < low ? number : low;
        high = number > high ? number : high;
    }
    unsigned stored = narrowest(low, high);
    char *out = scratch(encoder, (size_t)n * stored + 1);
    if (!out) {
        encoder->failed = true;
        return;
    }
    for (uint32_t i = 0; i < n; i++) store_low(out + (size_t)i * stored, load_signed(rows + i * stride, width), stored);
    put_bin(encoder, key, out, (size_t)n * stored);
}

static void put_fixed(encoder *encoder, const column *column, const char *rows, uint32_t n, size_t stride)
{
    char *out = scratch(encoder, (size_t)n * column->width + 1);
    if (!out) {
        encoder->failed = true;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (column->kind == DIGEST)
            swap_digest(rows + i * stride, out + (size_t)i * 16);
        else
            memcpy(out + (size_t)i * 8, rows + i * stride, 8);
    }
    put_bin(encoder, column->name, out, (size_t)n * column->width);
}

/* Shapes and strides of all values, one after the other. */
static void put_dims(encoder *encoder, const lb_program *program)
{
    uint64_t total = 0, at = 0;
    for (uint32_t i = 0; i < program->n_values; i++) total += (uint32_t)program->values[i].layout.ndim;
    int64_t *dims = (int64_t *)malloc((total + 1) * sizeof *dims);
    if (!dims || total > UINT32_MAX) {
        encoder->failed = true;
        free(dims);
        return;
    }
    for (int strides = 0; strides < 2; strides++, at = 0) {
        for (uint32_t i = 0; i < program->n_values; i++) {
            const lb_layout *layout = &program->values[i].layout;
            size_t n = (size_t)layout->ndim;
            memcpy(dims + at, strides ? layout->stride : layout->shape, n * sizeof *dims);
            at += n;
        }
        put_integers(encoder, strides ? stride_column : shape_column, (const char *)dims, (uint32_t)total, sizeof *dims,
                     8);
    }
    free(dims);
}

static bool is_left_out(const column *column, const char *rows, uint32_t n, size_t stride)
{
    if (!column->optional) return false;
    for (uint32_t i = 0; i < n; i++)
        if (load_signed(rows + column->offset + i * stride, column->width)) return false;
    return true;
}

static void put_table(encoder *encoder, const lb_program *program, lb_program_table_id id)
{
    const lb_program_table *table = &lb_program_tables[id];
    const char *rows = *(char *const *)((const char *)program + table->array);
    uint32_t n = *(const uint32_t *)((const char *)program + table->count);
    bool dims = id == LB_TABLE_VALUES;
    uint32_t pairs = 1u + (dims ? 2u : 0u);
    for (uint32_t c = 0; c < columns_of[id].count; c++)
        pairs += !is_left_out(&columns_of[id].columns[c], rows, n, table->row_bytes);
    put_text(encoder, table->name);
    encoder->failed |= msgpack_pack_map(&encoder->packer, pairs) != 0;
    put_int(encoder, "rows", n);
    for (uint32_t c = 0; c < columns_of[id].count; c++) {
        const column *column = &columns_of[id].columns[c];
        const char *first = rows ? rows + column->offset : NULL;
        if (is_left_out(column, rows, n, table->row_bytes)) continue;
        if (column->kind == INTEGER)
            put_integers(encoder, column->name, first, n, table->row_bytes, column->width);
        else
            put_fixed(encoder, column, first, n, table->row_bytes);
    }
    if (dims) put_dims(encoder, program);
}

/* Tables that most programs leave empty were added by a minor version, and are left out where they are. */
static bool is_stored(const lb_program *program, int id)
{
    return id < LB_TABLE_SHARDS || *(const uint32_t *)((const char *)program + lb_program_tables[id].count);
}

lb_status lb_program_encode(const lb_program *program, void **bytes, size_t *size, lb_err *err)
{
    if (program->store->lacking)
        return lb_fail(err, LB_ERR_NOMEM, "step %lld: out of memory for its program", (long long)program->step);
    msgpack_sbuffer buffer;
    msgpack_sbuffer_init(&buffer);
    encoder encoder = {.scratch = NULL};
    msgpack_packer_init(&encoder.packer, &buffer, msgpack_sbuffer_write);
    uint32_t tables = 1; /* strings */
    for (int id = LB_TABLE_SCOPES; id < LB_TABLE_COUNT; id++) tables += is_stored(program, id);
    encoder.failed = msgpack_pack_map(&encoder.packer, 6 + tables) != 0;
    put_int(&encoder, "step", program->step);
    put_int(&encoder, "rank", program->rank);
    put_int(&encoder, "world", program->world);
    put_int(&encoder, "level", program->level);
    put_int(&encoder, "complete", program->complete);
    put_int(&encoder, "shard", program->shard == LB_NONE ? -1 : (int64_t)program->shard);
    put_text(&encoder, "strings");
    encoder.failed |= msgpack_pack_array(&encoder.packer, program->n_strings) != 0;
    for (uint32_t i = 0; i < program->n_strings; i++) put_text(&encoder, program->strings[i]);
    for (int id = LB_TABLE_SCOPES; id < LB_TABLE_COUNT && !encoder.failed; id++)
        if (is_stored(program, id)) put_table(&encoder, program, (lb_program_table_id)id);
    free(encoder.scratch);
    if (encoder.failed) {
        msgpack_sbuffer_destroy(&buffer);
        return lb_fail(err, LB_ERR_NOMEM, "program of step %" PRId64 ": out of memory while encoding %" PRIu32 " ops",
                       program->step, program->n_ops);
    }
    *size = buffer.size;
    *bytes = msgpack_sbuffer_release(&buffer);
    return LB_OK;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

typedef struct stored_column {
    const char *bytes;
    size_t size;
} stored_column;

typedef struct decoder {
    lb_cursor cursor;
    lb_program *program;
} decoder;

static lb_status column_failed(const decoder *decoder, const char *table, const char *name, const char *what,
                               uint64_t found, uint64_t expected)
{
    char field[64];
    snprintf(field, sizeof field, "%s.%s", table, name);
    return lb_cursor_fail(&decoder->cursor, field, "%s: found %" PRIu64 ", expected %" PRIu64, what, found, expected);
}

/* The width of a stored integer column; 0 when its length fits no width up to that of the field. */
static unsigned stored_width(const stored_column *stored, uint64_t rows, unsigned field_width)
{
    for (unsigned w = 1; w <= field_width; w *= 2)
        if (stored->size == rows * w) return w;
    return 0;
}

/* Finds the width of a stored column, or fails. */
static lb_status check_column(const decoder *decoder, const lb_program_table *table, const column *column,
                              const stored_column *stored, uint32_t n, unsigned *width)
{
    *width = 0;
    if (!stored->bytes && column->optional) return LB_OK;
    if (!stored->bytes) return column_failed(decoder, table->name, column->name, "the column is missing, rows", 0, n);
    *width = column->kind == INTEGER ? stored_width(stored, n, column->width) : column->width;
    if (*width == 0 || stored->size != (uint64_t)n * *width)
        return column_failed(decoder, table->name, column->name, "bytes for the rows", stored->size, n);
    return LB_OK;
}

#define SPREAD_AS(from_type, to_type)                                                                                  \
    for (uint32_t i = 0; i < n; i++, from += sizeof(from_type), to += stride) {                                        \
        from_type small;                                                                                               \
        memcpy(&small, from, sizeof small);                                                                            \
        to_type number = (to_type)small;                                                                               \
        memcpy(to, &number, sizeof number);                                                                            \
    }                                                                                                                  \
    return
#define SPREAD(to_type)                                                                                                \
    do {                                                                                                               \
        if (width == 1) {                                                                                              \
            SPREAD_AS(int8_t, to_type);                                                                                \
        }                                                                                                              \
        if (width == 2) {                                                                                              \
            SPREAD_AS(int16_t, to_type);                                                                               \
        }                                                                                                              \
        if (width == 4) {                                                                                              \
            SPREAD_AS(int32_t, to_type);                                                                               \
        }                                                                                                              \
        SPREAD_AS(int64_t, to_type);                                                                                   \
    } while (0)

/* `n` numbers of `width` bytes to one field of `n` rows. */
static void spread(const char *from, unsigned width, char *to, size_t stride, const column *column, uint32_t n)
{
    if (column->kind == DIGEST) {
        for (uint32_t i = 0; i < n; i++, from += 16, to += stride) swap_digest(from, to);
        return;
    }
    switch (column->width) {
    case 1: SPREAD(int8_t);
    case 2: SPREAD(int16_t);
    case 4: SPREAD(int32_t);
    default: SPREAD(int64_t);
    }
}

/* Some rows at a time, all columns of them: a row of values is five lines of the cache, and there are fourteen
 * columns. */
static void fill_rows(lb_program_table_id id, const stored_column *found, const unsigned *width, uint32_t rows,
                      char *array)
{
    enum { STRIP = 64 };
    const lb_program_table *table = &lb_program_tables[id];
    const column *columns = columns_of[id].columns;
    for (uint32_t first = 0; first < rows; first += STRIP) {
        uint32_t n = rows - first < STRIP ? rows - first : STRIP;
        for (uint32_t k = 0; k < columns_of[id].count; k++) {
            if (!found[k].bytes) continue; /* one that may be left out: 0 */
            spread(found[k].bytes + (size_t)first * width[k], width[k],
                   array + first * table->row_bytes + columns[k].offset, table->row_bytes, &columns[k], n);
        }
    }
}

/* Shapes and strides of all values. */
static lb_status fill_dims(const decoder *decoder, const stored_column *shapes, const stored_column *strides)
{
    lb_program *program = decoder->program;
    uint64_t total = 0, at = 0;
    for (uint32_t i = 0; i < program->n_values; i++) {
        int32_t ndim = program->values[i].layout.ndim;
        if (ndim < 0 || ndim > LB_MAX_DIMS)
            return column_failed(decoder, "values", "ndim", "dimensions", (uint64_t)ndim, LB_MAX_DIMS);
        total += (uint32_t)ndim;
    }
    unsigned v = shapes->bytes ? stored_width(shapes, total, 8) : 0,
             w = strides->bytes ? stored_width(strides, total, 8) : 0;
    if (v == 0) return column_failed(decoder, "values", shape_column, "bytes for the dimensions", shapes->size, total);
    if (w == 0)
        return column_failed(decoder, "values", stride_column, "bytes for the dimensions", strides->size, total);
    for (uint32_t i = 0; i < program->n_values; i++) {
        lb_layout *layout = &program->values[i].layout;
        for (int32_t k = 0; k < layout->ndim; k++, at++) {
            layout->shape[k] = load_signed(shapes->bytes + at * v, v);
            layout->stride[k] = load_signed(strides->bytes + at * w, w);
        }
    }
    return LB_OK;
}

/* Pointers to the columns of one table, in the order of columns_of, then shape and stride. */
static lb_status read_columns(decoder *decoder, lb_program_table_id id, uint32_t *rows, stored_column *found)
{
    lb_cursor *cursor = &decoder->cursor;
    const char *table = lb_program_tables[id].name;
    uint32_t pairs, n = columns_of[id].count;
    int64_t number = -1;
    LB_TRY(lb_cursor_map(cursor, table, &pairs));
    for (uint32_t i = 0; i < pairs; i++) {
        const char *key;
        uint32_t length, k = 0;
        LB_TRY(lb_cursor_str(cursor, table, &key, &length));
        if (lb_text_is(key, length, "rows")) {
            LB_TRY(lb_cursor_int_in(cursor, table, 0, LB_PROGRAM_MAX_ROWS, &number));
            continue;
        }
        while (k < n && !lb_text_is(key, length, columns_of[id].columns[k].name)) k++;
        if (k == n && lb_text_is(key, length, stride_column)) k = n + 1;
        if (k == n && !lb_text_is(key, length, shape_column)) k = n + 2;
        if (k == n + 2) {
            LB_TRY(lb_cursor_skip(cursor, table)); /* a later minor version added it */
            continue;
        }
        const void *bytes;
        LB_TRY(lb_cursor_bin(cursor, table, &bytes, &found[k].size));
        found[k].bytes = (const char *)bytes;
    }
    if (number < 0) return lb_cursor_fail(cursor, table, "has no \"rows\"");
    *rows = (uint32_t)number;
    return LB_OK;
}

static lb_status read_table(decoder *decoder, lb_program_table_id id)
{
    const lb_program_table *table = &lb_program_tables[id];
    stored_column found[MAX_COLUMNS + 2] = {{NULL, 0}};
    char **array = (char **)((char *)decoder->program + table->array);
    uint32_t rows = 0, n = columns_of[id].count;
    unsigned width[MAX_COLUMNS];
    if (*array) return lb_cursor_fail(&decoder->cursor, table->name, "stands there twice");
    LB_TRY(read_columns(decoder, id, &rows, found));
    /* A row costs at least a byte per column on disk: nothing is allocated for rows that are only claimed. */
    for (uint32_t k = 0; k < n; k++)
        LB_TRY(check_column(decoder, table, &columns_of[id].columns[k], &found[k], rows, &width[k]));
    *array = (char *)calloc((size_t)rows + 1, table->row_bytes);
    if (!*array)
        return lb_fail(decoder->cursor.err, LB_ERR_NOMEM, "program: no memory for %" PRIu32 " %s", rows, table->name);
    decoder->program->store->capacity[id] = rows + 1;
    *(uint32_t *)((char *)decoder->program + table->count) = rows;
    fill_rows(id, found, width, rows, *array);
    return id == LB_TABLE_VALUES ? fill_dims(decoder, &found[n], &found[n + 1]) : LB_OK;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool are_different(char **texts, uint32_t n)
{
    bool different = true;
    qsort(texts, n, sizeof *texts, compare_texts);
    for (uint32_t i = 1; i < n && different; i++) different = strcmp(texts[i - 1], texts[i]) != 0;
    return different;
}

/* The strings of a writer that let them through as they were: they pass the gate now. Where that would make two of them
 * one, all of the program are taken for names as they were given, of which no two have one form. */
static lb_status pass_gate(decoder *decoder, const char **texts, const uint32_t *sizes)
{
    lb_program *program = decoder->program;
    char **sorted = malloc((size_t)program->n_strings * sizeof *sorted + 1);
    bool kept = sorted != NULL, different = false;
    for (int kind = LB_TEXT_ARGUMENT; kept && !different; kind = LB_TEXT_NAME) {
        for (uint32_t i = 0; i < program->n_strings && kept; i++) {
            char *spelt = lb_text_escaped((lb_text_kind)kind, texts[i], sizes[i]);
            kept = spelt && (sorted[i] = program->strings[i] = lb_program_keep_text(program, spelt, strlen(spelt)));
            free(spelt);
        }
        different = kind == LB_TEXT_NAME || (kept && are_different(sorted, program->n_strings));
    }
    free(sorted);
    return kept ? LB_OK : lb_fail(decoder->cursor.err, LB_ERR_NOMEM, "program: no memory for strings");
}

static lb_status read_texts(decoder *decoder, uint32_t count, const char **texts, uint32_t *sizes)
{
    lb_program *program = decoder->program;
    bool are_names = true;
    for (uint32_t i = 0; i < count; i++) {
        LB_TRY(lb_cursor_str(&decoder->cursor, "strings", &texts[i], &sizes[i]));
        are_names = are_names && lb_text_is_name(texts[i], sizes[i]);
    }
    program->n_strings = count;
    if (!are_names) return pass_gate(decoder, texts, sizes);
    for (uint32_t i = 0; i < count; i++)
        if (!(program->strings[i] = lb_program_keep_text(program, texts[i], sizes[i])))
            return lb_fail(decoder->cursor.err, LB_ERR_NOMEM, "program: no memory for strings");
    return LB_OK;
}

static lb_status read_strings(decoder *decoder)
{
    lb_program *program = decoder->program;
    uint32_t count;
    if (program->strings) return lb_cursor_fail(&decoder->cursor, "strings", "stands there twice");
    LB_TRY(lb_cursor_array(&decoder->cursor, "strings", &count));
    if (count > LB_PROGRAM_MAX_ROWS)
        return lb_cursor_fail(&decoder->cursor, "strings", "%" PRIu32 " are too many", count);
    program->strings = (char **)calloc((size_t)count + 1, sizeof *program->strings);
    if (!program->strings)
        return lb_fail(decoder->cursor.err, LB_ERR_NOMEM, "program: no memory for %" PRIu32 " strings", count);
    program->store->capacity[LB_TABLE_STRINGS] = count + 1;
    const char **texts = calloc((size_t)count + 1, sizeof *texts);
    uint32_t *sizes = calloc((size_t)count + 1, sizeof *sizes);
    lb_status status = texts && sizes ? read_texts(decoder, count, texts, sizes)
                                      : lb_fail(decoder->cursor.err, LB_ERR_NOMEM, "program: no memory for strings");
    free(texts), free(sizes);
    return status;
}

static lb_status read_pair(decoder *decoder)
{
    lb_cursor *cursor = &decoder->cursor;
    lb_program *program = decoder->program;
    const char *key;
    uint32_t n;
    int64_t number;
    LB_TRY(lb_cursor_str(cursor, "key", &key, &n));
    if (lb_text_is(key, n, "strings")) return read_strings(decoder);
    for (int id = LB_TABLE_SCOPES; id < LB_TABLE_COUNT; id++)
        if (lb_text_is(key, n, lb_program_tables[id].name)) return read_table(decoder, (lb_program_table_id)id);
    if (lb_text_is(key, n, "step")) return lb_cursor_int(cursor, "step", &program->step);
    if (lb_text_is(key, n, "rank")) {
        LB_TRY(lb_cursor_int_in(cursor, "rank", 0, INT32_MAX, &number));
        program->rank = (int32_t)number;
    } else if (lb_text_is(key, n, "world")) {
        LB_TRY(lb_cursor_int_in(cursor, "world", 0, INT32_MAX, &number));
        program->world = (int32_t)number;
    } else if (lb_text_is(key, n, "level")) {
        LB_TRY(lb_cursor_int_in(cursor, "level", 0, 3, &number));
        program->level = (uint8_t)number;
    } else if (lb_text_is(key, n, "complete")) {
        LB_TRY(lb_cursor_int_in(cursor, "complete", 0, 1, &number));
        program->complete = (uint8_t)number;
    } else if (lb_text_is(key, n, "shard")) {
        LB_TRY(lb_cursor_int_in(cursor, "shard", -1, LB_PROGRAM_MAX_ROWS, &number));
        program->shard = (uint32_t)number;
    } else {
        return lb_cursor_skip(cursor, "key"); /* a later minor version added it */
    }
    return LB_OK;
}

lb_status lb_program_decode_from(const void *bytes, size_t size, const char *source, uint64_t offset,
                                 lb_program **program, lb_err *err)
{
    decoder decoder = {lb_cursor_of(bytes, size, source, offset, err), lb_program_alloc()};
    if (!decoder.program) return lb_fail(err, LB_ERR_NOMEM, "program: out of memory");
    uint32_t pairs = 0;
    lb_status status = lb_cursor_map(&decoder.cursor, "program", &pairs);
    for (uint32_t i = 0; i < pairs && status == LB_OK; i++) status = read_pair(&decoder);
    if (status == LB_OK) {
        lb_err rule = LB_ERR_INIT;
        status = lb_program_validate(decoder.program, &rule);
        if (status != LB_OK) lb_fail(err, status, "%s: offset %" PRIu64 ": %s", source, offset, rule.message);
    }
    if (status == LB_OK)
        *program = decoder.program;
    else
        lb_program_free(decoder.program);
    return status;
}

lb_status lb_program_decode(const void *bytes, size_t size, lb_program **program, lb_err *err)
{
    return lb_program_decode_from(bytes, size, "program", 0, program, err);
}
