/* .npy and .npz. A .npy header is a Python literal of three keys; only what numpy.save writes is taken, and nothing is ever
 * unpickled. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. The zip is read with libarchive. */
#include "foreign_tensors.h"

#include <archive.h>
#include <archive_entry.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- .npy ------------------------------------------------------------------------------------------------------------- */

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

lb_status lb_npy_read(lb_foreign_tensors *tensors, const char *source, const char *name, const char *bytes, size_t size,
                      lb_err *err)
{
    uint32_t length = 0;
    size_t begin = 10;
    if (size < 12 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: '%.60s' has no .npy magic", source, name);
    if (bytes[6] == 1) {
        memcpy(&length, bytes + 8, 2);
    } else {
        memcpy(&length, bytes + 8, 4);
        begin = 12;
    }
    if (length > size - begin)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset 8: header of %" PRIu32 " bytes, %zu are there", source, length,
                       size);
    literal l = {bytes + begin, bytes + begin + length};
    header h;
    if (!take_header(&l, &h))
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "%s: offset %zu: '%.60s': not a header of a plain array (records and objects are not read)",
                       source, (size_t)(l.at - bytes), name);
    lb_dtype dtype = lb_dtype_parse(h.descr);
    if (dtype == LB_NO_DTYPE || strchr("<|", h.descr[0]) == NULL)
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "%s: '%.60s': dtype '%s' is not read (little-endian numbers and bools are)", source, name,
                       h.descr);
    lb_layout layout = lb_layout_contiguous(h.ndim, h.shape);
    if (h.fortran) {
        uint64_t stride = 1;
        for (int d = 0; d < h.ndim; d++) {
            layout.stride[d] = (int64_t)stride;
            stride *= (uint64_t)(h.shape[d] > 1 ? h.shape[d] : 1);
        }
    }
    int64_t n = lb_layout_numel(&layout);
    size_t claimed = n < 0 ? SIZE_MAX : lb_dtype_bytes(dtype, (size_t)n), there = size - begin - length;
    if (claimed > there)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %zu: '%.60s': its shape needs %zu bytes, %zu are there", source,
                       begin + length, name, claimed, there);
    return lb_foreign_add(tensors, name, strlen(name), dtype, &layout, bytes + begin + length, claimed, err);
}

/* ---- .npz ------------------------------------------------------------------------------------------------------------- */

/* Unpacks the member at hand; memory grows with what really comes out, whatever the header claims. */
static lb_status unpack(struct archive *zip, const char *source, const char *name, char **bytes, size_t *size,
                        lb_err *err)
{
    size_t room = 1 << 16;
    *size = 0;
    *bytes = (char *)malloc(room);
    for (la_ssize_t got = 1; *bytes && got != 0;) {
        if (room - *size < 1 << 15) {
            char *grown = (char *)realloc(*bytes, room *= 2);
            if (!grown) break;
            *bytes = grown;
        }
        got = archive_read_data(zip, *bytes + *size, room - *size);
        if (got < 0) {
            free(*bytes);
            return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %lld: member '%.60s': %s", source,
                           (long long)archive_read_header_position(zip), name,
                           archive_error_string(zip) ? archive_error_string(zip) : "cannot be unpacked");
        }
        *size += (size_t)got;
        if (got == 0) return LB_OK;
    }
    free(*bytes);
    return lb_fail(err, LB_ERR_NOMEM, "%s: member '%.60s': out of memory", source, name);
}

/* Texts, dates, raw bytes and Python's objects: what a writer puts beside its numbers. What is none of numpy's is for the reader to refuse. */
static bool is_no_number(const char *bytes, size_t size)
{
    uint16_t length = 0;
    header h;
    if (size < 12 || memcmp(bytes, "\x93NUMPY\x01", 7) != 0) return false;
    memcpy(&length, bytes + 8, 2);
    literal l = {bytes + 10, bytes + 10 + length};
    return length <= size - 10 && take_header(&l, &h) && h.descr[1] && strchr("OUSMmVa", h.descr[1]) != NULL;
}

static lb_status read_member(lb_foreign_tensors *tensors, struct archive *zip, struct archive_entry *entry,
                             const char *source, bool *passed_over, lb_err *err)
{
    char *bytes;
    size_t size;
    const char *path = archive_entry_pathname(entry);
    size_t n = path ? strlen(path) : 0;
    if (n < 5 || strcmp(path + n - 4, ".npy") != 0) return LB_OK; /* not one of numpy's */
    char *name = strndup(path, n - 4);
    if (!name) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", source);
    lb_status status = unpack(zip, source, name, &bytes, &size, err);
    if (status == LB_OK && is_no_number(bytes, size)) {
        free(bytes);
        *passed_over = true;
    } else if (status == LB_OK) {
        status = lb_foreign_own(tensors, bytes, size, err);
        if (status == LB_OK) status = lb_npy_read(tensors, source, name, bytes, size, err);
    }
    free(name);
    return status;
}

lb_status lb_npz_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size, lb_err *err)
{
    struct archive *zip = archive_read_new();
    struct archive_entry *entry;
    if (!zip) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", source);
    archive_read_support_format_zip_seekable(zip);
    lb_status status = LB_OK;
    const uint32_t before = tensors->n;
    bool passed_over = false;
    int got = archive_read_open_memory(zip, bytes, size);
    while (status == LB_OK && got == ARCHIVE_OK) {
        got = archive_read_next_header(zip, &entry);
        if (got == ARCHIVE_OK || got == ARCHIVE_WARN) {
            status = read_member(tensors, zip, entry, source, &passed_over, err);
            got = ARCHIVE_OK;
        }
    }
    if (status == LB_OK && got != ARCHIVE_EOF)
        status =
            lb_fail(err, LB_ERR_CORRUPT, "%s: offset %lld: %s", source, (long long)archive_read_header_position(zip),
                    archive_error_string(zip) ? archive_error_string(zip) : "is no zip file");
    if (status == LB_OK && passed_over && tensors->n == before)
        status = lb_fail(err, LB_ERR_UNSUPPORTED, "%s: holds texts, dates or objects, and no array of numbers", source);
    archive_read_free(zip);
    return status;
}
