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

static void skip_space(literal *l)
{
    while (l->at < l->end && (*l->at == ' ' || *l->at == '\n' || *l->at == '\t')) l->at++;
}

static bool take(literal *l, char c)
{
    skip_space(l);
    if (l->at == l->end || *l->at != c) return false;
    l->at++;
    return true;
}

static bool take_text(literal *l, char *text, size_t room)
{
    skip_space(l);
    if (l->at == l->end || (*l->at != '\'' && *l->at != '"')) return false;
    char quote = *l->at++;
    size_t n = 0;
    while (l->at < l->end && *l->at != quote && n + 1 < room) text[n++] = *l->at++;
    text[n] = '\0';
    return take(l, quote);
}

static bool take_word(literal *l, const char *word)
{
    size_t n = strlen(word);
    skip_space(l);
    if ((size_t)(l->end - l->at) < n || memcmp(l->at, word, n) != 0) return false;
    l->at += n;
    return true;
}

static bool take_size(literal *l, int64_t *number)
{
    skip_space(l);
    const char *begin = l->at;
    for (*number = 0; l->at < l->end && *l->at >= '0' && *l->at <= '9'; l->at++)
        if (__builtin_mul_overflow(*number, 10, number) || __builtin_add_overflow(*number, *l->at - '0', number))
            return false;
    if (l->at < l->end && *l->at == 'L') l->at++; /* Python 2 */
    return l->at > begin;
}

typedef struct header {
    char descr[32];
    bool fortran, has_shape;
    int64_t shape[LB_MAX_DIMS];
    int ndim;
} header;

static bool take_shape(literal *l, header *h)
{
    if (!take(l, '(')) return false;
    for (h->ndim = 0; !take(l, ')');) {
        if (h->ndim == LB_MAX_DIMS || !take_size(l, &h->shape[h->ndim++])) return false;
        if (!take(l, ',') && !(take(l, ')') && (l->at--, true))) return false;
    }
    return h->has_shape = true;
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } */
static bool take_header(literal *l, header *h)
{
    char key[32];
    memset(h, 0, sizeof *h);
    if (!take(l, '{')) return false;
    while (!take(l, '}')) {
        if (!take_text(l, key, sizeof key) || !take(l, ':')) return false;
        bool ok = strcmp(key, "descr") == 0           ? take_text(l, h->descr, sizeof h->descr)
                  : strcmp(key, "fortran_order") == 0 ? (h->fortran = take_word(l, "True")) || take_word(l, "False")
                  : strcmp(key, "shape") == 0         ? take_shape(l, h)
                                                      : false;
        if (!ok) return false;
        take(l, ',');
    }
    return h->descr[0] && h->has_shape;
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
    literal l = {bytes + begin, bytes + begin + length};
    header h;
    if (!take_header(&l, &h))
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "%s: offset %zu: '%.60s': not a header of a plain array (records and objects are not read)",
                       source, (size_t)(l.at - bytes), name);
    *array = (lb_npy_header){.dtype = lb_dtype_parse(h.descr), .begin = begin + length};
    array->no_number = h.descr[1] && strchr("OUSMmVa", h.descr[1]) != NULL;
    if (array->dtype == LB_NO_DTYPE || strchr("<|", h.descr[0]) == NULL)
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "%s: '%.60s': dtype '%s' is not read (little-endian numbers and bools are)", source, name,
                       h.descr);
    array->layout = lb_layout_contiguous(h.ndim, h.shape);
    if (h.fortran) {
        uint64_t stride = 1;
        for (int d = 0; d < h.ndim; d++) {
            array->layout.stride[d] = (int64_t)stride;
            stride *= (uint64_t)(h.shape[d] > 1 ? h.shape[d] : 1);
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
