/* torch's distributed checkpoints: a folder whose .metadata, one pickle, says which slice of which file holds which
 * part of which tensor. Each slice is a torch.save file of its own. Nothing in the pickle is executed, and no name in
 * it leaves the folder. What is no tensor is passed over. */
#include "foreign/foreign_torch.h"

#include "foreign/pickle_tree.h"

#include "base/array.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One part of a tensor: where it stands in the whole, and where its bytes are. */
typedef struct part {
    const lb_pickle *name; /* a text */
    const lb_pickle *index, *info;
} part;

typedef struct checkpoint {
    lb_foreign_tensors *tensors;
    const char *folder, *path; /* of .metadata */
    const lb_pickle *whole;    /* state_dict_metadata */
    struct {
        char *path;
        const char *bytes;
        size_t size;
    } *files; /* mapped so far */
    uint32_t n_files;
    lb_err *err;
} checkpoint;

static lb_status bad_part(const checkpoint *checkpoint, const part *part, const char *what)
{
    return lb_fail(checkpoint->err, LB_ERR_CORRUPT, "%s: offset 0: tensor '%.*s': %s", checkpoint->path,
                   (int)(part->name->n < 100 ? part->name->n : 100), part->name->u.text, what);
}

static int by_name(const void *a, const void *b)
{
    const lb_pickle *x = ((const part *)a)->name, *y = ((const part *)b)->name;
    int order = memcmp(x->u.text, y->u.text, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

/* File names come from a pickle: they must stay in the folder. */
static lb_status map_part_file(checkpoint *checkpoint, const part *part, const lb_pickle *name, uint32_t *file)
{
    if (!name || name->type != LB_PICKLE_TEXT || name->n == 0 || name->n > 255 || name->u.text[0] == '.' ||
        memchr(name->u.text, '/', name->n) || memchr(name->u.text, '\0', name->n))
        return bad_part(checkpoint, part, "relative_path is not a file name in this folder");
    size_t folder = strlen(checkpoint->folder);
    char *path = (char *)malloc(folder + name->n + 2);
    if (!path) return lb_fail(checkpoint->err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    sprintf(path, "%s/%.*s", checkpoint->folder, (int)name->n, name->u.text);
    for (*file = 0; *file < checkpoint->n_files; ++*file)
        if (strcmp(checkpoint->files[*file].path, path) == 0) return free(path), LB_OK;
    void *grown = lb_array_grow(checkpoint->files, checkpoint->n_files, sizeof *checkpoint->files);
    if (grown) checkpoint->files = grown;
    lb_err why = LB_ERR_INIT;
    lb_status status = grown ? lb_foreign_map(checkpoint->tensors, path, &checkpoint->files[checkpoint->n_files].bytes,
                                              &checkpoint->files[checkpoint->n_files].size, &why)
                             : lb_fail(&why, LB_ERR_NOMEM, "out of memory");
    if (status != LB_OK) {
        free(path);
        return lb_fail(checkpoint->err, status, "%s: offset 0: tensor '%.*s': %s", checkpoint->path,
                       (int)(part->name->n < 100 ? part->name->n : 100), part->name->u.text, why.message);
    }
    checkpoint->files[checkpoint->n_files++].path = path;
    return LB_OK;
}

/* The tensor that a part holds; its bytes lie in the map. */
static lb_status open_part(checkpoint *checkpoint, const part *wanted, lb_tensor *tensor, size_t *size)
{
    const lb_pickle *at = lb_pickle_get(wanted->info, "offset"), *length = lb_pickle_get(wanted->info, "length"),
                    *transforms = lb_pickle_get(wanted->info, "transform_descriptors");
    uint32_t file = 0;
    LB_TRY(map_part_file(checkpoint, wanted, lb_pickle_get(wanted->info, "relative_path"), &file));
    size_t there = checkpoint->files[file].size;
    if (!at || !length || at->type != LB_PICKLE_INT || length->type != LB_PICKLE_INT || at->u.i < 0 ||
        length->u.i < 0 || (uint64_t)length->u.i > there || (uint64_t)at->u.i > there - (uint64_t)length->u.i)
        return bad_part(checkpoint, wanted, "offset and length leave its file");
    if (transforms && transforms->type != LB_PICKLE_NONE && !(transforms->type == LB_PICKLE_LIST && transforms->n == 0))
        return lb_fail(checkpoint->err, LB_ERR_UNSUPPORTED, "%s: offset 0: compressed parts are not read",
                       checkpoint->path);
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)(wanted->name->n < 100 ? wanted->name->n : 100), wanted->name->u.text);
    const lb_torch_part part = {checkpoint->files[file].path, checkpoint->files[file].bytes, (uint64_t)at->u.i,
                                (size_t)length->u.i};
    return lb_torch_read_one(&part, name, tensor, size, checkpoint->err);
}

/* A name, by its gate. */
static char *text_of(const lb_pickle *text)
{
    return lb_text_name(text->u.text, text->n);
}

static lb_status add_whole(checkpoint *checkpoint, const part *part, lb_dtype dtype, const lb_layout *layout,
                           const void *data, size_t size)
{
    char *name = text_of(part->name);
    if (!name) return lb_fail(checkpoint->err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    lb_status status =
        lb_foreign_add(checkpoint->tensors, name, strlen(name), dtype, layout, data, size, checkpoint->err);
    free(name);
    return status;
}

/* A part's place in the whole: a strided view of it. */
static lb_status place(const checkpoint *checkpoint, const part *part, const lb_tensor *piece, lb_tensor *whole,
                       lb_tensor *view)
{
    int64_t offsets[LB_MAX_DIMS], at = 0;
    int n;
    if (!lb_pickle_integers(lb_pickle_get(part->index, "offset"), offsets, LB_MAX_DIMS, &n) ||
        n != whole->layout.ndim || n != piece->layout.ndim)
        return bad_part(checkpoint, part, "a part has as many dimensions as the whole");
    for (int d = 0; d < n; d++) {
        int64_t size = piece->layout.shape[d];
        if (offsets[d] < 0 || size > whole->layout.shape[d] || offsets[d] > whole->layout.shape[d] - size)
            return bad_part(checkpoint, part, "a part leaves the whole");
        at += offsets[d] * whole->layout.stride[d];
    }
    *view =
        (lb_tensor){(char *)whole->data + at * (int64_t)lb_dtype_bits(whole->dtype) / 8, whole->dtype, whole->layout};
    memcpy(view->layout.shape, piece->layout.shape, sizeof view->layout.shape);
    return LB_OK;
}

static lb_status copy_part(checkpoint *checkpoint, const part *part, const lb_tensor *piece, lb_tensor *whole)
{
    lb_tensor view;
    LB_TRY(place(checkpoint, part, piece, whole, &view));
    char *dense = (char *)malloc(lb_dtype_bytes(piece->dtype, (size_t)lb_layout_numel(&piece->layout)) + 1);
    if (!dense) return lb_fail(checkpoint->err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    lb_status status = lb_tensor_gather(piece, dense, checkpoint->err);
    if (status == LB_OK) status = lb_tensor_scatter(&view, dense, checkpoint->err);
    free(dense);
    return status;
}

static size_t total_bytes(const checkpoint *checkpoint)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < checkpoint->n_files; i++) bytes += checkpoint->files[i].size;
    return bytes;
}

/* Puts the parts of a tensor together; memory is asked for only when they are there to fill it. */
static lb_status join_parts(checkpoint *checkpoint, const part *parts, uint32_t n, const lb_layout *layout)
{
    lb_tensor whole = {NULL, LB_NO_DTYPE, *layout}, piece;
    uint64_t elements = (uint64_t)lb_layout_numel(layout), there = 0;
    size_t size, bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        LB_TRY(open_part(checkpoint, &parts[i], &piece, &size));
        if (i && piece.dtype != whole.dtype) return bad_part(checkpoint, &parts[i], "its parts have several dtypes");
        whole.dtype = piece.dtype;
        uint64_t held = (uint64_t)lb_layout_numel(&piece.layout);
        if (lb_dtype_bytes(piece.dtype, held) > size) return bad_part(checkpoint, &parts[i], "a part is expanded");
        if (__builtin_add_overflow(there, held, &there)) return bad_part(checkpoint, &parts[i], "its parts overflow");
    }
    if (there != elements)
        return lb_fail(checkpoint->err, LB_ERR_CORRUPT,
                       "%s: offset 0: tensor '%.*s': its %" PRIu32 " parts hold %" PRIu64 " of its %" PRIu64
                       " elements: a rank's part is missing, or there twice",
                       checkpoint->path, (int)(parts->name->n < 100 ? parts->name->n : 100), parts->name->u.text, n,
                       there, elements);
    bytes = lb_dtype_bytes(whole.dtype, elements);
    if (bytes > total_bytes(checkpoint)) return bad_part(checkpoint, parts, "its parts share bytes");
    LB_TRY(lb_decode_limit_hold(&checkpoint->tensors->limit, bytes, checkpoint->path, checkpoint->err));
    whole.data = calloc(bytes ? bytes : 1, 1);
    if (!whole.data) return lb_fail(checkpoint->err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    LB_TRY(lb_foreign_own(checkpoint->tensors, whole.data, bytes, checkpoint->err));
    for (uint32_t i = 0; i < n; i++) {
        LB_TRY(open_part(checkpoint, &parts[i], &piece, &size));
        LB_TRY(copy_part(checkpoint, &parts[i], &piece, &whole));
    }
    return add_whole(checkpoint, parts, whole.dtype, layout, whole.data, bytes);
}

/* Why a part could not be opened: its file is not there, ends before it, or holds something else. */
static lb_fault_kind fault_of(const checkpoint *checkpoint, const part *part, lb_status status)
{
    const lb_pickle *at = lb_pickle_get(part->info, "offset"), *length = lb_pickle_get(part->info, "length"),
                    *file = lb_pickle_get(part->info, "relative_path");
    if (status == LB_ERR_NOT_FOUND) return LB_FAULT_NO_FILE;
    for (uint32_t i = 0; file && file->type == LB_PICKLE_TEXT && i < checkpoint->n_files; i++) {
        const char *path = checkpoint->files[i].path + strlen(checkpoint->folder) + 1;
        if (strlen(path) == file->n && memcmp(path, file->u.text, file->n) == 0 && at && length &&
            at->type == LB_PICKLE_INT && length->type == LB_PICKLE_INT && at->u.i >= 0 && length->u.i >= 0 &&
            (uint64_t)at->u.i + (uint64_t)length->u.i > checkpoint->files[i].size)
            return LB_FAULT_TRUNCATED;
    }
    return LB_FAULT_DAMAGED;
}

/* A part by itself, at its place in the whole. */
static lb_status add_part(checkpoint *checkpoint, const part *part, const lb_layout *whole, const char *name)
{
    const lb_pickle *offset = lb_pickle_get(part->index, "offset"), *file = lb_pickle_get(part->info, "relative_path");
    int64_t start[LB_MAX_DIMS] = {0};
    char path[256] = "";
    int n = whole->ndim;
    lb_tensor tensor;
    size_t size;
    lb_err why = LB_ERR_INIT, *err = checkpoint->err;
    if (file && file->type == LB_PICKLE_TEXT) snprintf(path, sizeof path, "%.*s", (int)file->n, file->u.text);
    checkpoint->err = &why;
    lb_status status = open_part(checkpoint, part, &tensor, &size);
    if (status == LB_OK && (!offset || offset->type == LB_PICKLE_NONE))
        n = tensor.layout.ndim;
    else if (status == LB_OK && !lb_pickle_integers(offset, start, LB_MAX_DIMS, &n))
        status = bad_part(checkpoint, part, "its offset is not a list of at most 16 numbers");
    if (status == LB_OK && (n != whole->ndim || n != tensor.layout.ndim))
        status = bad_part(checkpoint, part, "a part has as many dimensions as the whole");
    checkpoint->err = err;
    if (status != LB_OK)
        return lb_foreign_fault(checkpoint->tensors, fault_of(checkpoint, part, status), name, path[0] ? path : NULL,
                                &why, err);
    LB_TRY(
        lb_foreign_add(checkpoint->tensors, name, strlen(name), tensor.dtype, &tensor.layout, tensor.data, size, err));
    return lb_foreign_set_part(checkpoint->tensors, whole, start, err);
}

static lb_status add_parts(checkpoint *checkpoint, const part *parts, uint32_t n, const lb_layout *whole)
{
    char *name = text_of(parts->name);
    lb_status status = name ? LB_OK : lb_fail(checkpoint->err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) status = add_part(checkpoint, &parts[i], whole, name);
    free(name);
    return status;
}

static lb_status tell_entry(const checkpoint *checkpoint, const lb_pickle *name)
{
    char *text = text_of(name);
    if (!text) return lb_fail(checkpoint->err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    checkpoint->tensors->listener->entry(checkpoint->tensors->listener->context, text, "");
    free(text);
    return LB_OK;
}

/* `parts` of one tensor. What is no tensor has no size. */
static lb_status read_parts(checkpoint *checkpoint, const part *parts, uint32_t n, const lb_pickle *description)
{
    int64_t shape[LB_MAX_DIMS];
    int ndim;
    lb_tensor tensor;
    size_t size;
    const lb_pickle *sizes = lb_pickle_get(description, "size");
    if (!sizes) return checkpoint->tensors->listener ? tell_entry(checkpoint, parts->name) : LB_OK;
    if (!lb_pickle_integers(sizes, shape, LB_MAX_DIMS, &ndim))
        return bad_part(checkpoint, parts, "size is not a list of at most 16 numbers");
    lb_layout layout = lb_layout_contiguous(ndim, shape);
    if (lb_layout_numel(&layout) < 0) return bad_part(checkpoint, parts, "the product of its sizes overflows");
    if (checkpoint->tensors->listener) return add_parts(checkpoint, parts, n, &layout);
    if (n > 1) return join_parts(checkpoint, parts, n, &layout);
    LB_TRY(open_part(checkpoint, parts, &tensor, &size));
    if (!lb_layout_same_shape(&tensor.layout, &layout))
        return bad_part(checkpoint, parts, "its one part has another size than it");
    return add_whole(checkpoint, parts, tensor.dtype, &tensor.layout, tensor.data, size);
}

typedef struct description {
    const lb_pickle *name, *what;
} description;

static int by_described_name(const void *a, const void *b)
{
    part part = {((const description *)a)->name, NULL, NULL}, y = {((const description *)b)->name, NULL, NULL};
    return by_name(&part, &y);
}

/* Tensors that are described and of which no file holds a part. */
static lb_status tell_partless(const checkpoint *checkpoint, const part *parts, uint32_t n, const description *whole,
                               uint32_t n_whole)
{
    for (uint32_t i = 0; i < n_whole; i++) {
        part wanted = {whole[i].name, NULL, NULL};
        if (!lb_pickle_get(whole[i].what, "size") || (n && bsearch(&wanted, parts, n, sizeof *parts, by_name)))
            continue;
        lb_err why = LB_ERR_INIT;
        char *name = text_of(whole[i].name);
        if (!name) return lb_fail(checkpoint->err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
        lb_fail(&why, LB_ERR_CORRUPT, "%s: tensor '%.100s': is described, and no file holds a part of it",
                checkpoint->path, name);
        lb_status status = lb_foreign_fault(checkpoint->tensors, LB_FAULT_MISSING, name, NULL, &why, checkpoint->err);
        free(name);
        LB_TRY(status);
    }
    return LB_OK;
}

static lb_status read_all_parts(checkpoint *checkpoint, part *parts, uint32_t n, description *whole, uint32_t n_whole)
{
    if (n) qsort(parts, n, sizeof *parts, by_name);
    if (n_whole) qsort(whole, n_whole, sizeof *whole, by_described_name);
    for (uint32_t first = 0, behind; first < n; first = behind) {
        for (behind = first + 1; behind < n && by_name(&parts[first], &parts[behind]) == 0;) behind++;
        description wanted = {parts[first].name, NULL};
        const description *found = n_whole ? bsearch(&wanted, whole, n_whole, sizeof *whole, by_described_name) : NULL;
        if (!found) return bad_part(checkpoint, &parts[first], "state_dict_metadata does not describe it");
        LB_TRY(read_parts(checkpoint, &parts[first], behind - first, found->what));
    }
    return checkpoint->tensors->listener ? tell_partless(checkpoint, parts, n, whole, n_whole) : LB_OK;
}

static lb_status read_metadata(checkpoint *checkpoint, const lb_pickle *metadata)
{
    uint32_t n, n_whole, kept = 0, kept_whole = 0;
    lb_pickle *const *stored = lb_pickle_pairs(lb_pickle_get(metadata, "storage_data"), &n);
    lb_pickle *const *described = lb_pickle_pairs(lb_pickle_get(metadata, "state_dict_metadata"), &n_whole);
    if (!lb_pickle_is_call(metadata, "torch.distributed.checkpoint.metadata", "Metadata") || !stored || !described)
        return lb_fail(checkpoint->err, LB_ERR_CORRUPT,
                       "%s: offset 0: is not metadata of a torch distributed checkpoint", checkpoint->path);
    part *parts = (part *)malloc(n * sizeof *parts);
    description *whole = (description *)malloc(n_whole * sizeof *whole);
    lb_status status =
        parts && whole ? LB_OK : lb_fail(checkpoint->err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        part p = {lb_pickle_get(stored[2 * i], "fqn"), stored[2 * i], stored[2 * i + 1]};
        if (p.name && p.name->type == LB_PICKLE_TEXT) parts[kept++] = p;
    }
    for (uint32_t i = 0; i < n_whole && status == LB_OK; i++)
        if (described[2 * i]->type == LB_PICKLE_TEXT)
            whole[kept_whole++] = (description){described[2 * i], described[2 * i + 1]};
    if (status == LB_OK) status = read_all_parts(checkpoint, parts, kept, whole, kept_whole);
    free(parts);
    free(whole);
    return status;
}

lb_status lb_distributed_read(lb_foreign_tensors *tensors, const char *folder, const char *path, lb_err *err)
{
    checkpoint checkpoint = {.tensors = tensors, .folder = folder, .path = path, .err = err};
    lb_pickle_tree tree;
    const char *bytes;
    size_t size;
    LB_TRY(lb_foreign_map(tensors, path, &bytes, &size, err));
    LB_TRY(lb_pickle_read(bytes, size, path, 0, &tree, err));
    tensors->names = LB_TEXT_ARGUMENT;
    lb_status status = read_metadata(&checkpoint, tree.root);
    tensors->names = LB_TEXT_NAME;
    for (uint32_t i = 0; i < checkpoint.n_files; i++) free(checkpoint.files[i].path);
    free(checkpoint.files);
    lb_pickle_release(&tree);
    return status;
}
