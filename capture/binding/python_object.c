/* Python objects as operands. See python_binding.h.
 *
 * A tensor is asked anew at every use, for nothing of it is bound to its Python object: storage, shape and type may all
 * be replaced (`t.data = x`). Its storage is named by the address of the StorageImpl. That address is used again as
 * soon as the storage is freed, so a weak reference per storage keeps it taken until the sweep at the end of a step; no
 * tensor and no storage is ever held. */
#include "binding/python_binding.h"

#include "base/array.h"
#include "base/hash.h"
#include <stdlib.h>
#include <string.h>

#define CHUNK 65536
#define MAX_DEPTH 8

/* ---- scratch memory ---------------------------------------------------------------------------------------------- */

struct lb_object_scratch {
    struct lb_object_scratch *next; /* smaller chunks from before */
    size_t used, size;
    PyObject **kept; /* objects made for this call */
    uint32_t n_kept, cap_kept;
    char bytes[];
};

void lb_object_scratch_free(lb_object_scratch *scratch)
{
    while (scratch) {
        lb_object_scratch *next = scratch->next;
        free(scratch->kept);
        free(scratch);
        scratch = next;
    }
}

static void no_memory(lb_binding *binding)
{
    lb_err err = LB_ERR_INIT;
    lb_fail(&err, LB_ERR_NOMEM, "out of memory in the recorder");
    lb_binding_raise(binding, &err);
}

static lb_object_scratch *scratch_new(size_t size)
{
    lb_object_scratch *scratch = malloc(sizeof *scratch + size);
    if (scratch) *scratch = (lb_object_scratch){.size = size};
    return scratch;
}

lb_object_intake lb_object_intake_begin(lb_binding *binding, lb_thread *thread)
{
    lb_object_scratch **scratch = lb_place_thread_scratch(thread);
    lb_place_thread_set_busy(thread, true);
    if (*scratch) {
        lb_object_scratch_free((*scratch)->next);
        (*scratch)->next = NULL;
        (*scratch)->used = 0;
    }
    return (lb_object_intake){.binding = binding, .thread = thread, .scratch = scratch};
}

void lb_object_intake_end(lb_object_intake *intake)
{
    lb_object_scratch *scratch = *intake->scratch;
    while (scratch && scratch->n_kept) py.Py_DecRef(scratch->kept[--scratch->n_kept]);
    lb_place_thread_set_busy(intake->thread, false);
}

/* Pointers into it stay valid until the next call begins. */
void *lb_object_intake_room(lb_object_intake *intake, size_t bytes)
{
    lb_object_scratch *scratch = *intake->scratch;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!scratch || scratch->size - scratch->used < bytes) {
        size_t size = scratch ? 2 * scratch->size : CHUNK;
        lb_object_scratch *wider = scratch_new(size > bytes ? size : bytes);
        if (!wider) {
            no_memory(intake->binding);
            return NULL;
        }
        if (scratch) { /* what is kept moves to the chunk in front */
            wider->kept = scratch->kept;
            wider->n_kept = scratch->n_kept;
            wider->cap_kept = scratch->cap_kept;
            scratch->kept = NULL;
            scratch->n_kept = scratch->cap_kept = 0;
        }
        wider->next = scratch;
        *intake->scratch = scratch = wider;
    }
    void *room = scratch->bytes + scratch->used;
    scratch->used += bytes;
    return room;
}

/* The call points into `object`, which has no other owner. */
static bool keep(lb_object_intake *intake, PyObject *object)
{
    if (!*intake->scratch && !lb_object_intake_room(intake, 1)) return false;
    lb_object_scratch *scratch = *intake->scratch;
    PyObject **kept = lb_array_fit(scratch->kept, &scratch->cap_kept, scratch->n_kept + 1, sizeof *kept);
    if (!kept) {
        no_memory(intake->binding);
        return false;
    }
    scratch->kept = kept;
    scratch->kept[scratch->n_kept++] = object;
    return true;
}

/* ---- storages ---------------------------------------------------------------------------------------------------- */

static uint32_t storage_row(const lb_binding *binding, int64_t key)
{
    LB_HASH_EACH(row, &binding->storages.by_key, (uint64_t)key)
    if (binding->storages.rows[row] == key) return row;
    return LB_NONE;
}

/* What is in it stays as it is. */
static bool storage_add(lb_binding *binding, int64_t key)
{
    const uint32_t n = binding->storages.by_key.n;
    if (storage_row(binding, key) != LB_NONE) return true;
    int64_t *rows = lb_array_grow(binding->storages.rows, n, sizeof *rows);
    if (rows) binding->storages.rows = rows, rows[n] = key;
    if (rows && lb_hash_add(&binding->storages.by_key, (uint64_t)key, n)) return true;
    no_memory(binding);
    return false;
}

void lb_object_storages_release(lb_binding *binding)
{
    free(binding->storages.rows);
    binding->storages.rows = NULL;
    lb_hash_release(&binding->storages.by_key);
}

/* Gives one weak reference back. Until the last one of a storage is, no other storage can have its address. */
static bool free_reference(lb_binding *binding, PyObject *address)
{
    PyObject *freed = py.PyObject_CallFunctionObjArgs(binding->of.free_weak_ref, address, NULL);
    py.Py_DecRef(freed);
    return freed != NULL;
}

/* Meets a storage: from its first sight on its address is taken, by one weak reference for its row. Another thread may
 * meet it while the reference is taken, for Python runs then; the one that comes second gives its own back. */
bool lb_object_storage_key(lb_binding *binding, PyObject *storage, int64_t *key)
{
    PyObject *address = py.PyObject_GetAttr(storage, binding->names._cdata);
    if (!address) return false;
    *key = (int64_t)py.PyLong_AsUnsignedLongLongMask(address);
    py.Py_DecRef(address);
    if (*key == 0 || *key == -1) {
        if (!py.PyErr_Occurred()) py.PyErr_SetString(binding->of.exception, "a storage has no address");
        return false;
    }
    if (storage_row(binding, *key) != LB_NONE) return true;
    PyObject *reference = py.PyObject_CallFunctionObjArgs(binding->of.weak_ref, storage, NULL);
    if (!reference) return false;
    const bool first = storage_row(binding, *key) == LB_NONE, fine = first && storage_add(binding, *key);
    const bool given = fine || free_reference(binding, reference);
    py.Py_DecRef(reference);
    return first ? fine : given;
}

bool lb_object_take_storage(lb_binding *binding, PyObject *tensor, int64_t *key)
{
    PyObject *storage = py.PyObject_CallFunctionObjArgs(binding->of.untyped_storage, tensor, NULL);
    bool known = storage && lb_object_storage_key(binding, storage, key);
    py.Py_DecRef(storage);
    return known;
}

static bool is_gone(lb_binding *binding, PyObject *address)
{
    PyObject *answer = py.PyObject_CallFunctionObjArgs(binding->of.expired, address, NULL);
    int gone = answer ? py.PyObject_IsTrue(answer) : -1;
    py.Py_DecRef(answer);
    return gone == 1;
}

/* Lets the address go, here and in the recorder. */
static bool let_go(lb_binding *binding, int64_t key, PyObject *address)
{
    lb_binding_lock(binding);
    if (binding->recorder) lb_recorder_forget(binding->recorder, key);
    pthread_mutex_unlock(&binding->lock);
    return free_reference(binding, address);
}

/* Other threads meet storages meanwhile: one that stands in the new table has a reference there. */
bool lb_object_storages_sweep(lb_binding *binding)
{
    struct lb_storage_keys all = binding->storages;
    bool fine = true;
    binding->storages = (struct lb_storage_keys){0};
    for (uint32_t i = 0; i < all.by_key.n; i++) {
        PyObject *address = py.PyLong_FromUnsignedLongLong((uint64_t)all.rows[i]);
        const bool gone = address && is_gone(binding, address);
        if (address && storage_row(binding, all.rows[i]) != LB_NONE)
            fine &= free_reference(binding, address);
        else
            fine &= gone ? let_go(binding, all.rows[i], address) : storage_add(binding, all.rows[i]);
        py.Py_DecRef(address);
        fine &= address && !py.PyErr_Occurred();
    }
    free(all.rows);
    lb_hash_release(&all.by_key);
    return fine;
}

bool lb_object_storages_forget(lb_binding *binding, int64_t key)
{
    const uint32_t row = storage_row(binding, key);
    if (row == LB_NONE) return true;
    lb_hash_remove(&binding->storages.by_key, (uint64_t)key, row);
    const uint32_t end = binding->storages.by_key.n;
    if (row != end) { /* the last one takes its place */
        const int64_t last = binding->storages.rows[row] = binding->storages.rows[end];
        lb_hash_remove(&binding->storages.by_key, (uint64_t)last, end);
        lb_hash_add(&binding->storages.by_key, (uint64_t)last, row); /* there is room */
    }
    PyObject *address = py.PyLong_FromUnsignedLongLong((uint64_t)key);
    const bool fine = address && let_go(binding, key, address);
    py.Py_DecRef(address);
    return fine;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static bool take_number(PyObject *number, int64_t *value)
{
    if (!number) return false;
    *value = py.PyLong_AsLongLong(number);
    py.Py_DecRef(number);
    return *value != -1 || !py.PyErr_Occurred();
}

static bool take_sizes(PyObject *sizes, int64_t *values, int32_t *ndim)
{
    Py_ssize_t n = sizes ? py.PyTuple_Size(sizes) : -1;
    bool fine = n >= 0 && n <= LB_MAX_DIMS;
    for (Py_ssize_t d = 0; d < n && fine; d++) {
        values[d] = py.PyLong_AsLongLong(py.PyTuple_GetItem(sizes, d));
        fine = values[d] != -1 || !py.PyErr_Occurred();
    }
    py.Py_DecRef(sizes);
    *ndim = (int32_t)n;
    return fine;
}

static lb_dtype code_of(const lb_binding *binding, PyObject *dtype)
{
    for (size_t i = 0; i < binding->n_dtypes; i++)
        if (binding->dtypes[i].dtype == dtype) return binding->dtypes[i].code;
    return (lb_dtype)0;
}

static int truth(PyObject *answer)
{
    int value = answer ? py.PyObject_IsTrue(answer) : -1;
    py.Py_DecRef(answer);
    return value;
}

static bool take_layout(lb_binding *binding, PyObject *tensor, lb_host_tensor *seen)
{
    PyObject *dtype = py.PyObject_GetAttr(tensor, binding->names.dtype);
    seen->dtype = code_of(binding, dtype);
    py.Py_DecRef(dtype);
    int32_t strides;
    return seen->dtype &&
           take_sizes(py.PyObject_GetAttr(tensor, binding->names.shape), seen->layout.shape, &seen->layout.ndim) &&
           take_sizes(py.PyObject_CallFunctionObjArgs(binding->of.stride, tensor, NULL), seen->layout.stride,
                      &strides) &&
           strides == seen->layout.ndim;
}

/* torch keeps by a bit that a view is of conjugates, or of opposites. Complex tensors may be either. */
static bool take_lazy(lb_binding *binding, PyObject *tensor, lb_host_tensor *seen)
{
    const bool complex = lb_dtype_is_complex(seen->dtype);
    if (!complex && !binding->negates) return true;
    const int conjugated = complex ? truth(py.PyObject_CallMethodObjArgs(tensor, binding->names.is_conj, NULL)) : 0;
    const int negated = truth(py.PyObject_CallMethodObjArgs(tensor, binding->names.is_neg, NULL));
    if (conjugated == 1) seen->lazy |= LB_VALUE_CONJUGATED;
    if (negated == 1) seen->lazy |= LB_VALUE_NEGATED;
    return conjugated >= 0 && negated >= 0;
}

/* Tensors without memory (meta, fake) have no address. */
static bool take_device_place(lb_binding *binding, PyObject *tensor, lb_host_tensor *seen)
{
    int64_t data = 0, unit = 0;
    if (take_number(py.PyObject_CallFunctionObjArgs(binding->of.data_ptr, tensor, NULL), &data) &&
        take_number(py.PyObject_CallMethodObjArgs(tensor, binding->names.get_device, NULL), &unit)) {
        seen->data = (const void *)(uintptr_t)data;
        seen->unit = (uint8_t)(unit < 0 ? 0 : unit);
        lb_tensor_shortcut_stream(&binding->shortcut, seen);
    }
    if (py.PyErr_Occurred() && !py.PyErr_ExceptionMatches(binding->of.exception)) return false;
    py.PyErr_Clear();
    return true;
}

static bool take_place(lb_binding *binding, PyObject *tensor, lb_host_tensor *seen)
{
    int64_t bytes, data = 0;
    PyObject *storage = py.PyObject_CallFunctionObjArgs(binding->of.untyped_storage, tensor, NULL);
    bool fine = storage && lb_object_storage_key(binding, storage, &seen->storage) &&
                take_number(py.PyObject_CallFunctionObjArgs(binding->of.nbytes, storage, NULL), &bytes);
    py.Py_DecRef(storage);
    fine = fine &&
           take_number(py.PyObject_CallFunctionObjArgs(binding->of.storage_offset, tensor, NULL), &seen->layout.offset);
    if (!fine) return false;
    seen->storage_bytes = (uint64_t)bytes;
    int is_cpu = truth(py.PyObject_GetAttr(tensor, binding->names.is_cpu));
    if (is_cpu < 0) return false;
    if (is_cpu) {
        if (!take_number(py.PyObject_CallFunctionObjArgs(binding->of.data_ptr, tensor, NULL), &data)) return false;
        seen->data = (const void *)(uintptr_t)data;
        return true;
    }
    int is_cuda = truth(py.PyObject_GetAttr(tensor, binding->names.is_cuda));
    seen->device = is_cuda == 1 ? 1 : 2;
    return is_cuda >= 0 && take_device_place(binding, tensor, seen);
}

static uint64_t bytes_of(const lb_host_tensor *seen)
{
    uint64_t n = lb_dtype_bits(seen->dtype) / 8;
    for (int d = 0; d < seen->layout.ndim; d++) n *= (uint64_t)seen->layout.shape[d];
    return n;
}

/* Bytes of a text that UTF-8 has no form for: lone surrogates as theirs would be, a NUL as two bytes that no other
 * character has. */
static PyObject *odd_bytes(PyObject *text)
{
    char *bytes;
    Py_ssize_t size;
    PyObject *nul = NULL, *spelt = NULL;
    PyObject *encoded = py.PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
    if (!encoded || py.PyBytes_AsStringAndSize(encoded, &bytes, &size) != 0) return encoded;
    if (!memchr(bytes, '\0', (size_t)size)) return encoded;
    PyObject *replace = py.PyUnicode_FromString("replace");
    nul = py.PyBytes_FromStringAndSize("\0", 1), spelt = py.PyBytes_FromStringAndSize("\xc0\x80", 2);
    PyObject *replaced =
        replace && nul && spelt ? py.PyObject_CallMethodObjArgs(encoded, replace, nul, spelt, NULL) : NULL;
    py.Py_DecRef(replace), py.Py_DecRef(nul), py.Py_DecRef(spelt), py.Py_DecRef(encoded);
    return replaced;
}

const char *lb_python_text(PyObject *text)
{
    static PyObject *held[16]; /* by the thread that has the interpreter's lock */
    static unsigned next;
    char *bytes = NULL;
    Py_ssize_t size = 0;
    const char *plain = py.PyUnicode_AsUTF8AndSize(text, &size);
    if (plain && strlen(plain) == (size_t)size) return plain;
    if (!plain) py.PyErr_Clear();
    PyObject *odd = odd_bytes(text);
    if (!odd || py.PyBytes_AsStringAndSize(odd, &bytes, NULL) != 0) {
        py.Py_DecRef(odd);
        return NULL;
    }
    py.Py_DecRef(held[next % 16]);
    held[next++ % 16] = odd;
    return bytes;
}

static bool take_text(lb_object_intake *intake, PyObject *text, lb_recorded_operand *operand)
{
    const char *bytes = lb_python_text(text);
    if (!bytes) py.PyErr_Clear();
    *operand = (lb_recorded_operand){.tag = LB_ARG_STRING, .u.text = bytes ? bytes : "<text>"};
    (void)intake;
    return true;
}

/* Sparse, quantized, fake, distributed, too many dimensions …: Python says what stands in for it. (The ops that it runs
 * to find that out are none of the host's.) */
static bool take_instead(lb_object_intake *intake, PyObject *tensor, int depth, lb_recorded_operand *operand)
{
    lb_binding *binding = intake->binding;
    if (py.PyErr_Occurred()) {
        if (!py.PyErr_ExceptionMatches(binding->of.exception)) return false;
        py.PyErr_Clear();
    }
    PyObject *other = depth < MAX_DEPTH ? py.PyObject_CallFunctionObjArgs(binding->of.instead, tensor, NULL) : NULL;
    if (!other) return false;
    if (!keep(intake, other)) {
        py.Py_DecRef(other);
        return false;
    }
    if (!lb_object_take_operand(intake, other, depth + 1, operand)) return false;
    intake->in_parts |= operand->tag != LB_ARG_VALUE;
    return true;
}

/* By the short way: a plain tensor. Its storage may be a new one, and Python is told of it. */
static bool take_plain(lb_binding *binding, PyObject *tensor, lb_host_tensor *seen)
{
    PyObject *type = py.PyObject_Type(tensor);
    py.Py_DecRef(type);
    if (!binding->shortcut.works || (type != binding->of.tensor && type != binding->of.parameter)) return false;
    if (!lb_tensor_shortcut_take(&binding->shortcut, tensor, seen) || !take_lazy(binding, tensor, seen)) return false;
    if (storage_row(binding, seen->storage) != LB_NONE) return true;
    int64_t key;
    return lb_object_take_storage(binding, tensor, &key) && key == seen->storage;
}

static bool take_tensor(lb_object_intake *intake, PyObject *tensor, int depth, lb_recorded_operand *operand)
{
    lb_host_tensor *seen = lb_object_intake_room(intake, sizeof *seen);
    if (!seen) return false;
    memset(seen, 0, sizeof *seen);
    if (!take_plain(intake->binding, tensor, seen)) {
        if (py.PyErr_Occurred()) return take_instead(intake, tensor, depth, operand);
        memset(seen, 0, sizeof *seen);
        if (!take_layout(intake->binding, tensor, seen) || !take_lazy(intake->binding, tensor, seen) ||
            !take_place(intake->binding, tensor, seen))
            return take_instead(intake, tensor, depth, operand);
    }
    intake->bytes += bytes_of(seen);
    intake->binding->reads_devices |= seen->device != 0;
    if (seen->device && intake->n_on_devices < LB_MOST_ON_DEVICES) intake->on_devices[intake->n_on_devices++] = seen;
    *operand = (lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = seen};
    return true;
}

bool lb_object_take_tensor(lb_object_intake *intake, PyObject *tensor, lb_recorded_operand *operand)
{
    return take_tensor(intake, tensor, 0, operand);
}

const lb_host_tensor *lb_object_numbers(const lb_recorded_operand *operand)
{
    if (operand->tag == LB_ARG_LIST && operand->count) operand = &operand->u.items[operand->count - 1];
    return operand->tag == LB_ARG_VALUE ? operand->u.tensor : NULL;
}

/* ---- everything else --------------------------------------------------------------------------------------------- */

/* An integer that does not fit is an unsigned one of 64 bits, and keeps its bits. */
static bool take_integer(PyObject *number, lb_recorded_operand *operand)
{
    operand->tag = LB_ARG_INT;
    operand->u.i = py.PyLong_AsLongLong(number);
    if (operand->u.i != -1 || !py.PyErr_Occurred()) return true;
    py.PyErr_Clear();
    operand->u.i = (int64_t)py.PyLong_AsUnsignedLongLongMask(number);
    return !py.PyErr_Occurred();
}

static bool take_complex(lb_object_intake *intake, PyObject *number, lb_recorded_operand *operand)
{
    lb_recorded_operand *parts = lb_object_intake_room(intake, 2 * sizeof *parts);
    if (!parts) return false;
    parts[0] = (lb_recorded_operand){.tag = LB_ARG_FLOAT, .u.f = py.PyComplex_RealAsDouble(number)};
    parts[1] = (lb_recorded_operand){.tag = LB_ARG_FLOAT, .u.f = py.PyComplex_ImagAsDouble(number)};
    *operand = (lb_recorded_operand){.tag = LB_ARG_COMPLEX, .count = 2, .u.items = parts};
    return true;
}

static bool take_items(lb_object_intake *intake, PyObject *sequence, bool tuple, int depth,
                       lb_recorded_operand *operand)
{
    Py_ssize_t n = tuple ? py.PyTuple_Size(sequence) : py.PyList_Size(sequence);
    if (n < 0) return false;
    lb_recorded_operand *items = lb_object_intake_room(intake, (size_t)(n + 1) * sizeof *items);
    if (!items) return false;
    *operand = (lb_recorded_operand){.tag = LB_ARG_LIST, .count = (uint32_t)n, .u.items = items};
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = tuple ? py.PyTuple_GetItem(sequence, i) : py.PyList_GetItem(sequence, i);
        if (!item || !lb_object_take_operand(intake, item, depth + 1, &items[i])) return false;
    }
    return true;
}

static bool take_stranger(lb_object_intake *intake, PyObject *object, int depth, lb_recorded_operand *operand)
{
    lb_binding *binding = intake->binding;
    int is_tensor = py.PyObject_IsInstance(object, binding->of.tensor);
    if (is_tensor < 0) return false;
    if (is_tensor) return take_tensor(intake, object, depth, operand);
    PyObject *other = py.PyObject_CallFunctionObjArgs(binding->of.plain, object, NULL);
    if (!other) return false;
    if (!keep(intake, other)) {
        py.Py_DecRef(other);
        return false;
    }
    return lb_object_take_operand(intake, other, depth + 1, operand);
}

bool lb_object_take_operand(lb_object_intake *intake, PyObject *object, int depth, lb_recorded_operand *operand)
{
    lb_binding *binding = intake->binding;
    PyObject *type = py.PyObject_Type(object);
    py.Py_DecRef(type); /* the object keeps it */
    memset(operand, 0, sizeof *operand);
    if (depth > MAX_DEPTH) {
        py.PyErr_SetString(binding->of.exception, "an argument nests too deeply");
        return false;
    }
    if (type == binding->of.tensor || type == binding->of.parameter) return take_tensor(intake, object, depth, operand);
    if (object == binding->of.none) return true;
    if (type == binding->of.int_) return take_integer(object, operand);
    if (type == binding->of.float_) {
        *operand = (lb_recorded_operand){.tag = LB_ARG_FLOAT, .u.f = py.PyFloat_AsDouble(object)};
        return true;
    }
    if (type == binding->of.bool_) {
        *operand = (lb_recorded_operand){.tag = LB_ARG_BOOL, .u.i = object == binding->of.true_};
        return true;
    }
    if (type == binding->of.list) return take_items(intake, object, false, depth, operand);
    if (type == binding->of.tuple || type == binding->of.size) return take_items(intake, object, true, depth, operand);
    if (type == binding->of.dtype) {
        *operand = (lb_recorded_operand){.tag = LB_ARG_DTYPE, .u.i = code_of(binding, object)};
        return operand->u.i ? true : take_stranger(intake, object, depth, operand);
    }
    if (type == binding->of.str_) return take_text(intake, object, operand);
    if (type == binding->of.complex_) return take_complex(intake, object, operand);
    return take_stranger(intake, object, depth, operand);
}

/* ---- tensors in whatever a module takes and gives ---------------------------------------------------------------- */

typedef struct found {
    lb_host_tensor *seen;
    uint32_t n;
} found;

static bool find(lb_object_intake *intake, PyObject *object, int depth, found *f);

static bool find_in_sequence(lb_object_intake *intake, PyObject *sequence, bool tuple, int depth, found *found)
{
    Py_ssize_t n = tuple ? py.PyTuple_Size(sequence) : py.PyList_Size(sequence);
    bool fine = n >= 0;
    for (Py_ssize_t i = 0; i < n && fine; i++) {
        PyObject *item = tuple ? py.PyTuple_GetItem(sequence, i) : py.PyList_GetItem(sequence, i);
        fine = item && find(intake, item, depth + 1, found);
    }
    return fine;
}

static bool find_in_dict(lb_object_intake *intake, PyObject *dict, int depth, found *found)
{
    PyObject *key, *value;
    bool fine = true;
    for (Py_ssize_t at = 0; fine && py.PyDict_Next(dict, &at, &key, &value);)
        fine = find(intake, value, depth + 1, found);
    return fine;
}

/* Named tuples, output classes, data classes, what unwraps itself. */
static bool find_in_stranger(lb_object_intake *intake, PyObject *object, int depth, found *found)
{
    PyObject *held = py.PyObject_CallFunctionObjArgs(intake->binding->of.fields, object, NULL);
    if (!held) return false;
    bool fine = held == intake->binding->of.none || find_in_sequence(intake, held, false, depth, found);
    py.Py_DecRef(held); /* what it lists is held by `object` */
    return fine;
}

static bool find(lb_object_intake *intake, PyObject *object, int depth, found *found)
{
    const lb_binding *binding = intake->binding;
    PyObject *type = py.PyObject_Type(object);
    py.Py_DecRef(type);
    if (found->n == LB_MAX_TENSORS || depth > 6 || object == binding->of.none || type == binding->of.int_ ||
        type == binding->of.float_ || type == binding->of.bool_ || type == binding->of.str_)
        return true;
    int is_tensor = type == binding->of.tensor || type == binding->of.parameter ? 1 : -2;
    if (is_tensor < 0) {
        if (type == binding->of.tuple) return find_in_sequence(intake, object, true, depth, found);
        if (type == binding->of.list) return find_in_sequence(intake, object, false, depth, found);
        if (type == binding->of.dict) return find_in_dict(intake, object, depth, found);
        is_tensor = py.PyObject_IsInstance(object, binding->of.tensor);
    }
    if (is_tensor < 0) return false;
    if (!is_tensor) return find_in_stranger(intake, object, depth, found);
    lb_recorded_operand operand;
    if (!take_tensor(intake, object, 0, &operand)) return false;
    if (operand.tag == LB_ARG_VALUE) found->seen[found->n++] = *operand.u.tensor;
    for (uint32_t i = 0; operand.tag == LB_ARG_LIST && i < operand.count && found->n < LB_MAX_TENSORS; i++)
        if (operand.u.items[i].tag == LB_ARG_VALUE) found->seen[found->n++] = *operand.u.items[i].u.tensor;
    return true;
}

bool lb_object_take_tensors(lb_object_intake *intake, PyObject *const *objects, int n, lb_host_tensor **seen,
                            uint32_t *count)
{
    found found = {lb_object_intake_room(intake, LB_MAX_TENSORS * sizeof(lb_host_tensor)), 0};
    bool fine = found.seen != NULL;
    for (int i = 0; i < n && fine; i++) fine = find(intake, objects[i], 0, &found);
    *seen = found.seen;
    *count = found.n;
    return fine;
}
