/* .npz: a zip of .npy files. An array stays packed until its bytes are asked for: names, shapes and digests need it in
 * memory at no time, so that `ls` of a small file that unpacks to gigabytes takes no more than of any other. */
#include "foreign/npy_header.h"
#include "foreign/zip_member.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A member whose header was read. */
struct lb_foreign_packed {
    lb_zip_member member;
    uint64_t offset; /* of its bytes in the file */
    size_t begin;    /* of the elements in the .npy */
    char source[];   /* path of the file */
};

/* The reader stands behind the header. */
static lb_status open_elements(const lb_foreign_packed *packed, lb_zip_reader *reader, lb_err *err)
{
    char skipped[4096];
    lb_status status = lb_zip_reader_open(reader, &packed->member, packed->source, packed->offset, err);
    for (size_t left = packed->begin, got; left > 0 && status == LB_OK; left -= got) {
        status = lb_zip_reader_next(reader, skipped, left < sizeof skipped ? left : sizeof skipped, &got, err);
        if (status == LB_OK && got == 0) status = lb_fail(err, LB_ERR_CORRUPT, "%s: ends in its header", reader->where);
    }
    return status;
}

/* To the end of the member, where its CRC is checked; what stands behind the array is passed over. */
static lb_status finish(lb_zip_reader *reader, lb_err *err)
{
    char rest[4096];
    size_t got;
    do LB_TRY(lb_zip_reader_next(reader, rest, sizeof rest, &got, err));
    while (got == sizeof rest);
    return LB_OK;
}

static lb_status cut_short(const lb_zip_reader *reader, lb_err *err)
{
    return lb_fail(err, LB_ERR_CORRUPT, "%s: ends before its array does", reader->where);
}

/* Leaf by leaf. */
static lb_status hash_leaves(lb_zip_reader *reader, uint64_t size, uint64_t *leaves, char *leaf, lb_err *err)
{
    for (uint64_t at = 0, number = 0; at < size; at += LB_DIGEST_LEAF, number++) {
        const size_t wanted = size - at < LB_DIGEST_LEAF ? (size_t)(size - at) : LB_DIGEST_LEAF;
        size_t got;
        LB_TRY(lb_zip_reader_next(reader, leaf, wanted, &got, err));
        if (got < wanted) return cut_short(reader, err);
        leaves[number] = lb_digest_leaf(leaf, got, number);
    }
    return finish(reader, err);
}

lb_status lb_npz_digests(lb_foreign_tensors *tensors, lb_foreign_tensor *row, lb_digest *logical, lb_digest *blob,
                         lb_err *err)
{
    const uint64_t n = (row->size + LB_DIGEST_LEAF - 1) / LB_DIGEST_LEAF;
    lb_zip_reader reader;
    lb_status status = open_elements(row->packed, &reader, err);
    if (status == LB_OK) status = lb_decode_limit_pass(&tensors->limit, row->size, reader.where, err);
    uint64_t *leaves = status == LB_OK ? (uint64_t *)malloc((n + 1) * sizeof *leaves) : NULL;
    char *leaf = status == LB_OK ? (char *)malloc(LB_DIGEST_LEAF) : NULL;
    if (status == LB_OK)
        status = leaves && leaf ? hash_leaves(&reader, row->size, leaves, leaf, err)
                                : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", reader.where);
    if (status == LB_OK) {
        *logical = lb_digest_of_leaves(leaves, n, &row->tensor);
        *blob = lb_digest_of_byte_leaves(leaves, n, row->size);
    }
    lb_zip_reader_close(&reader);
    free(leaves), free(leaf);
    return status;
}

/* Unpacked bytes of the array, malloc'ed. */
static lb_status read_elements(lb_zip_reader *reader, size_t size, char **bytes, lb_err *err)
{
    *bytes = (char *)malloc(size ? size : 1);
    if (!*bytes) return lb_fail(err, LB_ERR_NOMEM, "%s: no memory for %zu bytes", reader->where, size);
    for (size_t at = 0, got; at < size; at += got) {
        LB_TRY(lb_zip_reader_next(reader, *bytes + at, size - at < 1u << 30 ? size - at : 1u << 30, &got, err));
        if (got == 0) return cut_short(reader, err);
    }
    return finish(reader, err);
}

lb_status lb_npz_unpack(lb_foreign_tensors *tensors, lb_foreign_tensor *row, lb_err *err)
{
    lb_zip_reader reader;
    char *bytes = NULL;
    lb_status status = open_elements(row->packed, &reader, err);
    const bool held =
        status == LB_OK && (status = lb_decode_limit_hold(&tensors->limit, row->size, reader.where, err)) == LB_OK;
    if (held) status = read_elements(&reader, row->size, &bytes, err);
    lb_zip_reader_close(&reader);
    if (status == LB_OK) {
        LB_TRY(lb_foreign_own(tensors, bytes, row->size, err));
        row->tensor.data = bytes, row->memory = tensors->n_memory - 1;
        free(row->packed);
        row->packed = NULL;
        return LB_OK;
    }
    if (held) lb_decode_limit_drop(&tensors->limit, row->size);
    free(bytes);
    return status;
}

/* The first bytes of a member, which hold its header. */
static lb_status read_head(const lb_zip_member *member, const char *source, uint64_t offset, char *head, size_t *there,
                           lb_err *err)
{
    lb_zip_reader reader;
    const size_t wanted = member->unpacked < LB_NPY_HEADER_MOST ? (size_t)member->unpacked : LB_NPY_HEADER_MOST;
    lb_status status = lb_zip_reader_open(&reader, member, source, offset, err);
    /* Deflate gives at most 1,032 bytes for one. */
    if (status == LB_OK && member->method != 0 && member->unpacked / 1032 > member->size)
        status = lb_fail(err, LB_ERR_CORRUPT, "%s: %" PRIu64 " bytes cannot hold the %" PRIu64 " that it claims",
                         reader.where, member->size, member->unpacked);
    if (status == LB_OK) status = lb_zip_reader_next(&reader, head, wanted, there, err);
    if (status == LB_OK && *there < wanted) status = cut_short(&reader, err);
    lb_zip_reader_close(&reader);
    return status;
}

static lb_status add_array(lb_foreign_tensors *tensors, const lb_zip_member *member, const char *source,
                           uint64_t offset, const char *name, const lb_npy_header *array, lb_err *err)
{
    lb_foreign_packed *packed = (lb_foreign_packed *)malloc(sizeof *packed + strlen(source) + 1);
    if (!packed) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", source);
    *packed = (lb_foreign_packed){*member, offset, array->begin};
    strcpy(packed->source, source);
    lb_status status =
        lb_foreign_add(tensors, name, strlen(name), array->dtype, &array->layout, NULL, array->size, err);
    if (status != LB_OK) {
        free(packed);
        return status;
    }
    lb_foreign_tensor *row = &tensors->rows[tensors->n - 1];
    row->packed = packed;
    if (!tensors->listener && lb_layout_is_contiguous(&array->layout)) return LB_OK;
    status = lb_npz_unpack(tensors, row, err);
    if (status == LB_OK) return LB_OK;
    free(row->name), free(row->packed); /* a listener reads on: of this member there is nothing */
    tensors->n--;
    return status;
}

typedef struct npz {
    lb_foreign_tensors *tensors;
    const char *source, *bytes;
    char *head;       /* LB_NPY_HEADER_MOST bytes */
    bool passed_over; /* texts, dates, objects: what a writer puts beside its numbers */
} npz;

static lb_status read_array(npz *npz, const lb_zip_member *member, const char *name, lb_err *err)
{
    const uint64_t offset = (uint64_t)(member->bytes - npz->bytes);
    size_t there;
    lb_npy_header array = {.no_number = false};
    LB_TRY(read_head(member, npz->source, offset, npz->head, &there, err));
    const lb_npy_source from = {npz->source, name, npz->head, there, member->unpacked};
    lb_err why = LB_ERR_INIT;
    const lb_status status = lb_foreign_npy_header_read(&from, &array, &why);
    if (array.no_number) {
        npz->passed_over = true;
        return LB_OK;
    }
    if (status != LB_OK) return lb_fail(err, status, "%s", why.message);
    return add_array(npz->tensors, member, npz->source, offset, name, &array, err);
}

static lb_status read_member(npz *npz, const lb_zip_member *member, lb_err *err)
{
    const size_t n = member->name_size;
    if (n < 5 || memcmp(member->name + n - 4, ".npy", 4) != 0) return LB_OK; /* none of numpy's */
    char *name = strndup(member->name, n - 4);
    if (!name) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", npz->source);
    const lb_status status = read_array(npz, member, name, err);
    free(name);
    return status;
}

/* Members that share bytes would let a small file unpack to any size. */
static int by_bytes(const void *a, const void *b)
{
    const lb_zip_member *x = (const lb_zip_member *)a, *y = (const lb_zip_member *)b;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static lb_status check_apart(const npz *npz, const lb_zip *zip, lb_err *err)
{
    if (zip->n) qsort(zip->members, zip->n, sizeof *zip->members, by_bytes);
    for (uint32_t i = 1; i < zip->n; i++)
        if (zip->members[i].bytes < zip->members[i - 1].bytes + zip->members[i - 1].size)
            return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %zu: zip: two members share bytes", npz->source,
                           (size_t)(zip->members[i].bytes - npz->bytes));
    return LB_OK;
}

lb_status lb_npz_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size, lb_err *err)
{
    npz npz = {tensors, source, bytes, (char *)malloc(LB_NPY_HEADER_MOST), false};
    lb_zip zip;
    const uint32_t before = tensors->n;
    lb_status status = npz.head ? lb_zip_open(bytes, size, source, 0, &zip, err)
                                : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", source);
    if (status == LB_OK) {
        status = check_apart(&npz, &zip, err);
        for (uint32_t i = 0; i < zip.n && status == LB_OK; i++) status = read_member(&npz, &zip.members[i], err);
        lb_zip_release(&zip);
    }
    if (status == LB_OK && npz.passed_over && tensors->n == before)
        status = lb_fail(err, LB_ERR_UNSUPPORTED, "%s: holds texts, dates or objects, and no array of numbers", source);
    free(npz.head);
    return status;
}
