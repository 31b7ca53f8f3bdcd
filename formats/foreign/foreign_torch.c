/* What torch.save writes: a zip whose data.pkl holds the objects, and data/N the bytes of storage N as they are.
 *
 * The pickle is read as a tree (pickle_tree.h): nothing is executed. A tensor is what
 * `torch._utils._rebuild_tensor_v2(storage, offset, size, stride, …)` says; dicts give names, joined by dots. What is
 * no tensor (step counts, options) is passed over. */
#include "foreign/foreign_torch.h"

#include "base/byte_buffer.h"
#include "foreign/pickle_tree.h"
#include "foreign/zip_directory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32 /* of dicts in dicts; an object may hold itself */

/* ---- one torch.save file ----------------------------------------------------------------------------------------- */

typedef struct saved {
    const char *source;
    uint64_t offset; /* of the zip in it */
    lb_zip zip;
    lb_pickle_tree tree;
} saved;

static void saved_close(saved *saved)
{
    lb_pickle_release(&saved->tree);
    lb_zip_release(&saved->zip);
}

static lb_status saved_open(saved *opened, const lb_torch_part *part, lb_err *err)
{
    const char *source = part->source, *bytes = part->bytes;
    const uint64_t offset = part->offset;
    const size_t size = part->size;
    *opened = (saved){.source = source, .offset = offset};
    if (size > 2 && (uint8_t)bytes[offset] == 0x80 && memcmp(bytes + offset, "PK", 2) != 0)
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "%s: offset %" PRIu64 ": a torch.save file of before torch 1.6: load it and save it again",
                       source, offset);
    LB_TRY(lb_zip_open(bytes + offset, size, source, offset, &opened->zip, err));
    const lb_zip_member *pickle = lb_zip_find(&opened->zip, "data.pkl", 8),
                        *order = lb_zip_find(&opened->zip, "byteorder", 9);
    lb_status status = LB_OK;
    if (!pickle || pickle->method != 0)
        status =
            lb_fail(err, LB_ERR_CORRUPT,
                    "%s: offset %" PRIu64 ": zip: has no stored data.pkl: torch.save did not write it", source, offset);
    else if (order && (order->size != 6 || memcmp(order->bytes, "little", 6) != 0))
        status = lb_fail(err, LB_ERR_UNSUPPORTED,
                         "%s: offset %" PRIu64 ": byteorder: only little-endian files are read", source, offset);
    else
        status =
            lb_pickle_read(pickle->bytes, pickle->size, source, (uint64_t)(pickle->bytes - bytes), &opened->tree, err);
    if (status != LB_OK) saved_close(opened);
    return status;
}

/* "FloatStorage" and its kin; LB_NO_DTYPE: bytes of a type that is told elsewhere. */
static bool dtype_of_storage(const lb_pickle *class_name, lb_dtype *dtype)
{
    static const struct {
        const char *name;
        lb_dtype dtype;
    } storages[] = {{"DoubleStorage", LB_F64},      {"FloatStorage", LB_F32},        {"HalfStorage", LB_F16},
                    {"BFloat16Storage", LB_BF16},   {"LongStorage", LB_I64},         {"IntStorage", LB_I32},
                    {"ShortStorage", LB_I16},       {"CharStorage", LB_I8},          {"ByteStorage", LB_U8},
                    {"BoolStorage", LB_BOOL},       {"ComplexFloatStorage", LB_C64}, {"ComplexDoubleStorage", LB_C128},
                    {"UntypedStorage", LB_NO_DTYPE}};
    if (class_name->type != LB_PICKLE_GLOBAL) return false;
    for (size_t i = 0; i < sizeof storages / sizeof *storages; i++)
        if (lb_pickle_is_text(class_name->u.items[1], storages[i].name)) return *dtype = storages[i].dtype, true;
    return false;
}

static lb_status bad_tensor(const saved *saved, const char *name, const char *what, lb_err *err)
{
    return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": tensor '%.100s': %s", saved->source, saved->offset,
                   name, what);
}

/* ("storage", class, key, device, elements) gives the bytes of data/KEY. */
static lb_status find_storage(const saved *saved, const char *name, const lb_pickle *id, lb_dtype *dtype,
                              const lb_zip_member **member, lb_err *err)
{
    char path[64];
    const lb_pickle *tuple = id->type == LB_PICKLE_PERSISTENT ? id->u.items[0] : NULL;
    if (!tuple || tuple->type != LB_PICKLE_LIST || tuple->n < 5 || tuple->u.items[2]->type != LB_PICKLE_TEXT)
        return bad_tensor(saved, name, "its storage is not what torch.save writes", err);
    if (!dtype_of_storage(tuple->u.items[1], dtype))
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "%s: offset %" PRIu64 ": tensor '%.100s': a storage of a class that is not read", saved->source,
                       saved->offset, name);
    const lb_pickle *key = tuple->u.items[2];
    int n = snprintf(path, sizeof path, "data/%.*s", (int)(key->n < 40 ? key->n : 40), key->u.text);
    *member = lb_zip_find(&saved->zip, path, (size_t)n);
    return *member && (*member)->method == 0
               ? LB_OK
               : bad_tensor(saved, name, "its storage is not in the zip, or compressed", err);
}

/* torch counts two elements of four bits as one. */
static lb_status count_halves(const saved *saved, const char *name, lb_layout *layout, lb_err *err)
{
    int last = layout->ndim - 1;
    if (last < 0 || layout->stride[last] != 1 || !lb_layout_is_contiguous(layout) ||
        layout->shape[last] > INT64_MAX / 2)
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "%s: offset %" PRIu64 ": tensor '%.100s': elements of 4 bits must be dense", saved->source,
                       saved->offset, name);
    int64_t offset = layout->offset;
    layout->shape[last] *= 2;
    *layout = lb_layout_contiguous(layout->ndim, layout->shape);
    return __builtin_mul_overflow(offset, 2, &layout->offset) ? bad_tensor(saved, name, "its offset overflows", err)
                                                              : LB_OK;
}

/* `args`: storage, offset, size, stride, requires_grad, hooks, and in v3 the dtype. */
static lb_status read_tensor(const saved *saved, const char *name, const lb_pickle *args, lb_tensor *tensor,
                             size_t *size, lb_err *err)
{
    int64_t stride[LB_MAX_DIMS], shape[LB_MAX_DIMS], first, last;
    int n_sizes, n_strides;
    const lb_zip_member *member = NULL;
    lb_dtype dtype = LB_NO_DTYPE;
    if (args->type != LB_PICKLE_LIST || args->n < 4 || args->u.items[1]->type != LB_PICKLE_INT)
        return bad_tensor(saved, name, "is not rebuilt as torch.save does it", err);
    LB_TRY(find_storage(saved, name, args->u.items[0], &dtype, &member, err));
    if (dtype == LB_NO_DTYPE && args->n > 6 && args->u.items[6]->type == LB_PICKLE_GLOBAL) {
        const lb_pickle *word = args->u.items[6]->u.items[1];
        char text[40] = "";
        memcpy(text, word->u.text, word->n < sizeof text - 1 ? word->n : sizeof text - 1);
        dtype = lb_dtype_parse(text);
    }
    if (dtype == LB_NO_DTYPE)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "%s: offset %" PRIu64 ": tensor '%.100s': its dtype is not known",
                       saved->source, saved->offset, name);
    if (!lb_pickle_integers(args->u.items[2], shape, LB_MAX_DIMS, &n_sizes) ||
        !lb_pickle_integers(args->u.items[3], stride, LB_MAX_DIMS, &n_strides) || n_sizes != n_strides)
        return bad_tensor(saved, name, "has no size and stride of at most 16 numbers", err);
    tensor->dtype = dtype;
    tensor->layout = lb_layout_contiguous(n_sizes, shape);
    memcpy(tensor->layout.stride, stride, (size_t)n_sizes * sizeof *stride);
    tensor->layout.offset = args->u.items[1]->u.i;
    if (lb_dtype_bits(dtype) < 8) LB_TRY(count_halves(saved, name, &tensor->layout, err));
    if (tensor->layout.offset < 0 || lb_layout_dense_range(&tensor->layout, &first, &last, NULL) != LB_OK)
        return bad_tensor(saved, name, "its size and stride overflow, or reach before its storage", err);
    if (last > INT64_MAX / 16 || lb_dtype_bytes(dtype, (size_t)last) > member->size)
        return bad_tensor(saved, name, "leaves its storage", err);
    if (first != tensor->layout.offset && last > first) return bad_tensor(saved, name, "has negative strides", err);
    tensor->data = (char *)(uintptr_t)member->bytes + lb_dtype_bytes(dtype, (size_t)first);
    tensor->layout.offset = 0;
    *size = lb_dtype_bytes(dtype, (size_t)(last - first));
    return LB_OK;
}

/* The args of a rebuilt tensor, or NULL. A parameter is one around a tensor. */
static const lb_pickle *tensor_args(const lb_pickle *node)
{
    static const char module[] = "torch._utils";
    bool parameter = lb_pickle_is_call(node, module, "_rebuild_parameter") ||
                     lb_pickle_is_call(node, module, "_rebuild_parameter_with_state");
    if (parameter && node->u.items[1]->type == LB_PICKLE_LIST && node->u.items[1]->n > 0)
        node = node->u.items[1]->u.items[0];
    bool tensor =
        lb_pickle_is_call(node, module, "_rebuild_tensor_v2") || lb_pickle_is_call(node, module, "_rebuild_tensor_v3");
    return tensor ? node->u.items[1] : NULL;
}

/* ---- a whole .pt ------------------------------------------------------------------------------------------------- */

/* What is no tensor, as text: a number, a word. */
static lb_status tell_entry(const lb_foreign_listener *listener, const lb_pickle *node, const byte_buffer *name,
                            lb_err *err)
{
    char text[64] = "", *shown = lb_text_name(name->bytes, name->size);
    if (!shown) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (node->type == LB_PICKLE_INT)
        snprintf(text, sizeof text, "%" PRId64, node->u.i);
    else if (node->type == LB_PICKLE_FLOAT)
        snprintf(text, sizeof text, "%.17g", node->u.f);
    else if (node->type == LB_PICKLE_TEXT)
        lb_text_escape(LB_TEXT_UTF8, node->u.text, node->n, text, 61);
    listener->entry(listener->context, shown, text);
    free(shown);
    return LB_OK;
}

/* `visits` bounds the walk: shared objects could name each other into billions of paths. */
typedef struct tensor_walk {
    lb_foreign_tensors *tensors;
    const saved *saved;
    byte_buffer name; /* of the node at hand, as the file has it; a NUL stands behind it */
    uint32_t visits;
} tensor_walk;

/* The name cut to its first `length` bytes, and this behind it. */
static bool set_name(tensor_walk *walk, size_t length, const char *more, size_t n)
{
    walk->name.size = length;
    if (length && n) buffer_add(&walk->name, ".", 1);
    buffer_add(&walk->name, more, n);
    buffer_add(&walk->name, "", 1);
    walk->name.size--;
    return !walk->name.failed;
}

/* `length` of the node's name. */
static lb_status walk(tensor_walk *at, const lb_pickle *node, size_t length, int depth, lb_err *err)
{
    lb_foreign_tensors *tensors = at->tensors;
    const saved *saved = at->saved;
    const lb_pickle *args = tensor_args(node);
    if (args) {
        lb_tensor tensor;
        size_t size;
        lb_err why = LB_ERR_INIT;
        if (read_tensor(saved, at->name.bytes, args, &tensor, &size, &why) != LB_OK)
            return lb_foreign_fault(tensors, LB_FAULT_DAMAGED, at->name.bytes, saved->source, &why, err);
        return lb_foreign_add(tensors, at->name.bytes, length, tensor.dtype, &tensor.layout, tensor.data, size, err);
    }
    if (tensors->listener && length) LB_TRY(tell_entry(tensors->listener, node, &at->name, err));
    uint32_t n;
    lb_pickle *const *pairs = lb_pickle_pairs(node, &n);
    bool list = node->type == LB_PICKLE_LIST;
    if (list) n = node->n;
    for (uint32_t i = 0; i < n; i++) {
        const lb_pickle *key = list ? NULL : pairs[2 * i], *child = list ? node->u.items[i] : pairs[2 * i + 1];
        const bool number = list || key->type == LB_PICKLE_INT;
        char digits[24];
        if (depth == MAX_DEPTH || ++at->visits > 1u << 20)
            return bad_tensor(saved, at->name.bytes, "dicts in it go too deep, or are too many", err);
        if (!number && (key->type != LB_PICKLE_TEXT || (!key->n && !length))) continue; /* not a name */
        const int more = snprintf(digits, sizeof digits, "%" PRId64, list ? (int64_t)i : number ? key->u.i : 0);
        if (!set_name(at, length, number ? digits : key->u.text, number ? (size_t)more : key->n))
            return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", saved->source);
        LB_TRY(walk(at, child, at->name.size, depth + 1, err));
        set_name(at, length, "", 0);
    }
    return LB_OK;
}

lb_status lb_torch_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size, lb_err *err)
{
    saved saved;
    LB_TRY(saved_open(&saved, &(lb_torch_part){source, bytes, 0, size}, err));
    const uint32_t before = tensors->n;
    tensor_walk w = {.tensors = tensors, .saved = &saved};
    lb_status status = set_name(&w, 0, "", 0) ? walk(&w, saved.tree.root, 0, 0, err)
                                              : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", source);
    buffer_release(&w.name);
    if (status == LB_OK && tensors->n == before)
        status = lb_fail(err, LB_ERR_UNSUPPORTED,
                         "%s: offset 0: holds no dicts or lists of tensors: a pickled module is not taken apart, "
                         "save its state_dict()",
                         source);
    saved_close(&saved);
    return status;
}

lb_status lb_torch_read_one(const lb_torch_part *part, const char *name, lb_tensor *tensor, size_t *tensor_size,
                            lb_err *err)
{
    saved saved;
    LB_TRY(saved_open(&saved, part, err));
    const lb_pickle *args = tensor_args(saved.tree.root);
    lb_status status = args ? read_tensor(&saved, name, args, tensor, tensor_size, err)
                            : bad_tensor(&saved, name, "this part holds no tensor", err);
    saved_close(&saved);
    return status;
}
