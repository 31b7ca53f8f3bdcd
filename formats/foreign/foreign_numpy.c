/* .npy: see npy_header.h. */
#include "foreign/npy_header.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- .npy -------------------------------------------------------------------------------------------------------- */

typedef struct literal {
    const char *at, *end;
} literal;

static void skip_space(literal *literal)
{
    while (literal->at < literal->end && (*literal->at == ' ' || *literal->at == '\n' || *literal->at == '\t'))
        literal->at++;
}

static bool take(literal *literal, char c)
{
    skip_space(literal);
    if (literal->at == literal->end || *literal->at != c) return false;
    literal->at++;
    return true;
}

static bool take_text(literal *literal, char *text, size_t room)
{
    skip_space(literal);
    if (literal->at == literal->end || (*literal->at != '\'' && *literal->at != '"')) return false;
    char quote = *literal->at++;
    size_t n = 0;
    while (literal->at < literal->end && *literal->at != quote && n + 1 < room) text[n++] = *literal->at++;
    text[n] = '\0';
    return take(literal, quote);
}

static bool take_word(literal *literal, const char *word)
{
    size_t n = strlen(word);
    skip_space(literal);
    if ((size_t)(literal->end - literal->at) < n || memcmp(literal->at, word, n) != 0) return false;
    literal->at += n;
    return true;
}

static bool take_size(literal *literal, int64_t *number)
{
    skip_space(literal);
    const char *begin = literal->at;
    for (*number = 0; literal->at < literal->end && *literal->at >= '0' && *literal->at <= '9'; literal->at++)
        if (__builtin_mul_overflow(*number, 10, number) || __builtin_add_overflow(*number, *literal->at - '0', number))
            return false;
    if (literal->at < literal->end && *literal->at == 'L') literal->at++; /* Python 2 */
    return literal->at > begin;
}

typedef struct header {
    char descr[32];
    bool fortran, has_shape;
    int64_t shape[LB_MAX_DIMS];
    int ndim;
} header;

static bool take_shape(literal *literal, header *header)
{
    if (!take(literal, '(')) return false;
    for (header->ndim = 0; !take(literal, ')');) {
        if (header->ndim == LB_MAX_DIMS || !take_size(literal, &header->shape[header->ndim++])) return false;
        if (!take(literal, ',') && !(take(literal, ')') && (literal->at--, true))) return false;
    }
    return header->has_shape = true;
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } */
static bool take_header(literal *literal, header *header)
{
    char key[32];
    memset(header, 0, sizeof *header);
    if (!take(literal, '{')) return false;
    while (!take(literal, '}')) {
        if (!take_text(literal, key, sizeof key) || !take(literal, ':')) return false;
        bool ok = strcmp(key, "descr") == 0 ? take_text(literal, header->descr, sizeof header->descr)
                  : strcmp(key, "fortran_order") == 0
                      ? (header->fortran = take_word(literal, "True")) || take_word(literal, "False")
                  : strcmp(key, "shape") == 0 ? take_shape(literal, header)
                                              : false;
        if (!ok) return false;
        take(literal, ',');
    }
    return header->descr[0] && header->has_shape;
}

lb_status lb_foreign_npy_header_read(const lb_npy_source *from, lb_npy_header *array, lb_err *err)
{
    const char *source = from->source, *name = from->name, *bytes = from->bytes;
    uint32_t length = 0;
    size_t begin = 10;
    if (from->there < 12 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: '%.60s' has no .npy magic", source, name);
    if (bytes[6] == 1) {
        memcpy(&length, bytes + 8, 2);
    } else {
        memcpy(&length, bytes + 8, 4);
        begin = 12;
    }
    if (length > from->there - begin)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset 8: header of %" PRIu32 " bytes, %zu are there", source, length,
                       from->there);
    literal literal = {bytes + begin, bytes + begin + length};
    header header;
    if (!take_header(&literal, &header))
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "%s: offset %zu: '%.60s': not a header of a plain array (records and objects are not read)",
                       source, (size_t)(literal.at - bytes), name);
    *array = (lb_npy_header){.dtype = lb_dtype_parse(header.descr), .begin = begin + length};
    array->no_number = header.descr[1] && strchr("OUSMmVa", header.descr[1]) != NULL;
    if (array->dtype == LB_NO_DTYPE || strchr("<|", header.descr[0]) == NULL)
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "%s: '%.60s': dtype '%s' is not read (little-endian numbers and bools are)", source, name,
                       header.descr);
    array->layout = lb_layout_contiguous(header.ndim, header.shape);
    if (header.fortran) {
        uint64_t stride = 1;
        for (int d = 0; d < header.ndim; d++) {
            array->layout.stride[d] = (int64_t)stride;
            stride *= (uint64_t)(header.shape[d] > 1 ? header.shape[d] : 1);
        }
    }
    const int64_t n = lb_layout_numel(&array->layout);
    const uint64_t there = from->size - array->begin;
    array->size = n < 0 ? SIZE_MAX : lb_dtype_bytes(array->dtype, (size_t)n);
    if (array->size > there)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %zu: '%.60s': its shape needs %zu bytes, %" PRIu64 " are there",
                       source, array->begin, name, array->size, there);
    return LB_OK;
}

lb_status lb_foreign_npy_read(lb_foreign_tensors *tensors, const char *source, const char *name, const char *bytes,
                              size_t size, lb_err *err)
{
    lb_npy_header array;
    LB_TRY(lb_foreign_npy_header_read(&(lb_npy_source){source, name, bytes, size, size}, &array, err));
    return lb_foreign_add(tensors, name, strlen(name), array.dtype, &array.layout, bytes + array.begin, array.size,
                          err);
}
