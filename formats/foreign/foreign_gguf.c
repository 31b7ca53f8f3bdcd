/* GGUF, llama.cpp's files: a header of key-value pairs, descriptions of tensors, and their bytes behind it, aligned.
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; codes, block sizes and names of types as in ggml.h's
 * `enum ggml_type` and gguf-py's constants.py. Sizes stand there innermost first; here they are turned round.
 *
 *     "GGUF" u32 version, u64 tensors, u64 pairs
 *     pair    string key, u32 type, value          string: u64 length, bytes; array: u32 type, u64 count, values
 *     tensor  string name, u32 n, u64 sizes[n], u32 type, u64 offset from the first aligned byte behind all of these
 *
 * Tensors of numbers are read. Quantised ones are blocks of codes with scales: no number of them stands in the file, so
 * a listener is told their names, types and shapes, and without one they are refused. */
#include "foreign/foreign_tensors.h"

#include <inttypes.h>
#include <lastbit/json_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OLDEST = 2, /* version 1 had counts of 32 bits, for a few weeks of 2023 */
    NEWEST = 3,
    ALIGNMENT = 32, /* where no pair says another */
    NESTING = 8,    /* arrays of arrays */
    TYPE_U32 = 4,
    TYPE_STRING = 8,
    TYPE_ARRAY = 9
};

/* Of ggml_type: numbers have a dtype, quantised blocks a count of elements and of bytes. */
static const struct {
    uint32_t code;
    const char *name;
    lb_dtype dtype;
    uint32_t elements, bytes;
} types[] = {
    {0, "f32", LB_F32, 1, 4},
    {1, "f16", LB_F16, 1, 2},
    {2, "q4_0", LB_NO_DTYPE, 32, 18},
    {3, "q4_1", LB_NO_DTYPE, 32, 20},
    {6, "q5_0", LB_NO_DTYPE, 32, 22},
    {7, "q5_1", LB_NO_DTYPE, 32, 24},
    {8, "q8_0", LB_NO_DTYPE, 32, 34},
    {9, "q8_1", LB_NO_DTYPE, 32, 36},
    {10, "q2_k", LB_NO_DTYPE, 256, 84},
    {11, "q3_k", LB_NO_DTYPE, 256, 110},
    {12, "q4_k", LB_NO_DTYPE, 256, 144},
    {13, "q5_k", LB_NO_DTYPE, 256, 176},
    {14, "q6_k", LB_NO_DTYPE, 256, 210},
    {15, "q8_k", LB_NO_DTYPE, 256, 292},
    {16, "iq2_xxs", LB_NO_DTYPE, 256, 66},
    {17, "iq2_xs", LB_NO_DTYPE, 256, 74},
    {18, "iq3_xxs", LB_NO_DTYPE, 256, 98},
    {19, "iq1_s", LB_NO_DTYPE, 256, 50},
    {20, "iq4_nl", LB_NO_DTYPE, 32, 18},
    {21, "iq3_s", LB_NO_DTYPE, 256, 110},
    {22, "iq2_s", LB_NO_DTYPE, 256, 82},
    {23, "iq4_xs", LB_NO_DTYPE, 256, 136},
    {24, "i8", LB_I8, 1, 1},
    {25, "i16", LB_I16, 1, 2},
    {26, "i32", LB_I32, 1, 4},
    {27, "i64", LB_I64, 1, 8},
    {28, "f64", LB_F64, 1, 8},
    {29, "iq1_m", LB_NO_DTYPE, 256, 56},
    {30, "bf16", LB_BF16, 1, 2},
    {34, "tq1_0", LB_NO_DTYPE, 256, 54},
    {35, "tq2_0", LB_NO_DTYPE, 256, 66},
    {39, "mxfp4", LB_NO_DTYPE, 32, 17},
    {40, "nvfp4", LB_NO_DTYPE, 64, 36},
};

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

typedef struct cursor {
    const char *source, *bytes;
    size_t size, at;
    bool cut; /* it asked for more than there is */
} cursor;

static const char *take(cursor *cursor, uint64_t n)
{
    const char *here = cursor->bytes + cursor->at;
    cursor->cut |= n > cursor->size - cursor->at;
    if (cursor->cut) return NULL;
    cursor->at += (size_t)n;
    return here;
}

static uint32_t take_u32(cursor *cursor)
{
    uint32_t x = 0;
    const char *p = take(cursor, sizeof x);
    if (p) memcpy(&x, p, sizeof x);
    return x;
}

static uint64_t take_u64(cursor *cursor)
{
    uint64_t x = 0;
    const char *p = take(cursor, sizeof x);
    if (p) memcpy(&x, p, sizeof x);
    return x;
}

static const char *take_text(cursor *cursor, uint64_t *n)
{
    *n = take_u64(cursor);
    return take(cursor, *n);
}

static lb_status bad(lb_err *err, const cursor *cursor, size_t at, const char *what)
{
    return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %zu: %s", cursor->source, at,
                   cursor->cut ? "the file ends within its header" : what);
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

typedef struct header {
    uint64_t tensors, alignment;
    size_t infos, data; /* where descriptions begin, and bytes of tensors */
} header;

/* A value of a pair. */
static bool skip_value(cursor *cursor, uint32_t type, int nesting)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t n;
    if (type >= sizeof sizes || !nesting) return false;
    if (type == TYPE_STRING) return take_text(cursor, &n) != NULL;
    if (type != TYPE_ARRAY) return take(cursor, sizes[type]) != NULL;
    const uint32_t of = take_u32(cursor);
    n = take_u64(cursor);
    if (cursor->cut || of >= sizeof sizes) return false;
    if (sizes[of]) {
        cursor->cut |= n > cursor->size / sizes[of];
        return !cursor->cut && take(cursor, n * sizes[of]) != NULL;
    }
    for (uint64_t i = 0; i < n; i++)
        if (!skip_value(cursor, of, nesting - 1)) return false;
    return true;
}

static bool is_power_of_two(uint64_t n)
{
    return n && !(n & (n - 1));
}

static lb_status read_pairs(cursor *cursor, uint64_t n, header *header, lb_err *err)
{
    static const char alignment[] = "general.alignment";
    for (uint64_t i = 0; i < n; i++) {
        uint64_t length;
        const size_t at = cursor->at;
        const char *key = take_text(cursor, &length);
        const uint32_t type = take_u32(cursor);
        if (!cursor->cut && type == TYPE_U32 && length == sizeof alignment - 1 && !memcmp(key, alignment, length)) {
            header->alignment = take_u32(cursor);
            if (!cursor->cut && !is_power_of_two(header->alignment))
                return bad(err, cursor, at, "general.alignment is not a power of two");
        } else if (!cursor->cut && !skip_value(cursor, type, NESTING)) {
            return bad(err, cursor, at, "a key-value pair is of no type that GGUF has");
        }
        if (cursor->cut) return bad(err, cursor, at, "");
    }
    return LB_OK;
}

static lb_status read_header(cursor *cursor, header *read, lb_err *err)
{
    const char *magic = take(cursor, 4);
    *read = (header){.alignment = ALIGNMENT};
    if (!magic || memcmp(magic, "GGUF", 4) != 0) return bad(err, cursor, 0, "does not begin with GGUF");
    const uint32_t version = take_u32(cursor);
    read->tensors = take_u64(cursor);
    const uint64_t pairs = take_u64(cursor);
    if (cursor->cut) return bad(err, cursor, 4, "");
    if (version < OLDEST || version > NEWEST)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "%s: offset 4: GGUF version %" PRIu32 "%s: %d and %d are read",
                       cursor->source, version, version & 0xffff ? "" : ", which is of a big-endian machine", OLDEST,
                       NEWEST);
    LB_TRY(read_pairs(cursor, pairs, read, err));
    read->infos = cursor->at;
    for (uint64_t i = 0; i < read->tensors && !cursor->cut; i++) {
        uint64_t length;
        take_text(cursor, &length);
        take(cursor, (uint64_t)take_u32(cursor) * 8 + 12);
    }
    if (cursor->cut) return bad(err, cursor, read->infos, "");
    const uint64_t over = cursor->at % read->alignment;
    read->data = cursor->at + (size_t)(over ? read->alignment - over : 0);
    if (read->data > cursor->size) read->data = cursor->size; /* no tensor has a byte */
    return LB_OK;
}

bool lb_foreign_gguf_is_cut(const char *bytes, size_t size)
{
    header header;
    cursor cursor = {"", bytes, size, 0, false};
    return read_header(&cursor, &header, NULL) != LB_OK && cursor.cut;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

typedef struct info {
    const char *name; /* behind its gate */
    lb_layout layout;
    uint32_t type;
    uint64_t offset;
    size_t at;
} info;

static lb_status read_shape(cursor *cursor, info *info, lb_err *err)
{
    int64_t sizes[LB_MAX_DIMS];
    const uint32_t n = take_u32(cursor);
    if (n > LB_MAX_DIMS) return bad(err, cursor, info->at, "a tensor has more than 16 dimensions");
    for (uint32_t d = 0; d < n; d++) {
        const uint64_t size = take_u64(cursor);
        if (size > INT64_MAX) return bad(err, cursor, info->at, "a tensor's size overflows");
        sizes[n - 1 - d] = (int64_t)size;
    }
    info->layout = lb_layout_contiguous((int)n, sizes);
    return lb_layout_numel(&info->layout) < 0 ? bad(err, cursor, info->at, "the product of a tensor's sizes overflows")
                                              : LB_OK;
}

static lb_status wrong(const cursor *cursor, const info *info, const char *what, lb_err *err)
{
    return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %zu: tensor '%.100s': %s", cursor->source, info->at, info->name,
                   what);
}

/* Of a tensor that is blocks of codes, or of a type that is not known. */
static lb_status tell_unread(const lb_foreign_tensors *tensors, const cursor *cursor, const info *info,
                             const char *type, lb_err *err)
{
    if (tensors->listener)
        return tensors->listener->unread(tensors->listener->context, info->name, type, &info->layout), LB_OK;
    return lb_fail(err, LB_ERR_UNSUPPORTED,
                   "%s: offset %zu: tensor '%.100s' is quantised (%s): its numbers are not in the file; "
                   "read the one it was made from",
                   cursor->source, info->at, info->name, type);
}

static lb_status add_tensor(lb_foreign_tensors *tensors, const cursor *cursor, const header *header, const info *info,
                            lb_err *err)
{
    size_t k = 0;
    while (k < sizeof types / sizeof *types && types[k].code != info->type) k++;
    if (k == sizeof types / sizeof *types) {
        char type[32];
        snprintf(type, sizeof type, "type %" PRIu32, info->type);
        return tell_unread(tensors, cursor, info, type, err);
    }
    const uint64_t n = (uint64_t)lb_layout_numel(&info->layout);
    const int64_t row = info->layout.ndim ? info->layout.shape[info->layout.ndim - 1] : 1;
    uint64_t bytes;
    if (row % types[k].elements) return wrong(cursor, info, "its rows are no whole blocks", err);
    if (__builtin_mul_overflow(n / types[k].elements, types[k].bytes, &bytes))
        return wrong(cursor, info, "its size overflows", err);
    if (info->offset % header->alignment) return wrong(cursor, info, "its bytes are not aligned", err);
    if (info->offset > cursor->size - header->data || bytes > cursor->size - header->data - info->offset) {
        lb_err why = LB_ERR_INIT;
        wrong(cursor, info, "its bytes leave the file", &why);
        return lb_foreign_fault(tensors, LB_FAULT_TRUNCATED, info->name, cursor->source, &why, err);
    }
    if (types[k].dtype == LB_NO_DTYPE) return tell_unread(tensors, cursor, info, types[k].name, err);
    return lb_foreign_add(tensors, info->name, strlen(info->name), types[k].dtype, &info->layout,
                          cursor->bytes + header->data + info->offset, (size_t)bytes, err);
}

static lb_status read_tensor(lb_foreign_tensors *tensors, cursor *cursor, const header *header, json_t *names,
                             lb_err *err)
{
    uint64_t length;
    info info = {.at = cursor->at};
    lb_err why = LB_ERR_INIT;
    const char *bytes = take_text(cursor, &length);
    char *name = bytes ? lb_text_name(bytes, (size_t)length) : NULL;
    if (!name) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", cursor->source);
    info.name = name;
    lb_status status = read_shape(cursor, &info, &why);
    if (status == LB_OK) info.type = take_u32(cursor), info.offset = take_u64(cursor);
    if (status == LB_OK && json_object_get(names, name)) {
        wrong(cursor, &info, "there are two of this name", &why);
        status = lb_foreign_fault(tensors, LB_FAULT_DUPLICATE, name, cursor->source, &why, err);
    } else if (status == LB_OK) {
        json_object_set_new(names, name, json_true());
        status = add_tensor(tensors, cursor, header, &info, &why);
        if (status != LB_OK) status = lb_foreign_fault(tensors, LB_FAULT_DAMAGED, name, cursor->source, &why, err);
    } else {
        lb_fail(err, status, "%s", why.message); /* where the next one begins is not known */
    }
    free(name);
    return status;
}

lb_status lb_foreign_gguf_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size,
                               lb_err *err)
{
    header header;
    cursor cursor = {source, bytes, size, 0, false};
    LB_TRY(read_header(&cursor, &header, err));
    json_t *names = json_object();
    lb_status status = names ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", source);
    cursor.at = header.infos, tensors->names = LB_TEXT_ARGUMENT;
    for (uint64_t i = 0; i < header.tensors && status == LB_OK; i++)
        status = read_tensor(tensors, &cursor, &header, names, err);
    tensors->names = LB_TEXT_NAME;
    json_decref(names);
    return status;
}
