/* What Python tells of the program itself: plans of ops, ops that it runs by itself, what tensors are. Each a builtin
 * function; capture/lastbit/torch/ calls them. See python_call.h. */
#include "binding/python_call.h"

#include <stdlib.h>

/* ---- ops that Python runs itself --------------------------------------------------------------------------------- */

/* see lb_dispatch_plan */
LB_PYTHON_CALL(plan, 1)
{
    return lb_dispatch_plan_add(b, args[0]) ? nothing(b) : NULL;
}

/* func, args, kwargs or None -> number of the op that has begun */
LB_PYTHON_CALL(begin, 3)
{
    lb_dispatch_plan *plan = lb_dispatch_plan_find(b, args[0]);
    if (!plan) {
        py.PyErr_SetString(b->of.exception, "an op has no plan");
        return NULL;
    }
    lb_pending *pending = lb_dispatch_op_begin(b, plan, args[1], args[2] == b->of.none ? NULL : args[2]);
    if (!pending) return NULL;
    for (int i = 0; i < LB_MAX_BEGUN; i++) {
        if (b->begun[i]) continue;
        b->begun[i] = pending;
        return py.PyLong_FromLongLong(i);
    }
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_op_failed(b->recorder, pending);
    pthread_mutex_unlock(&b->lock);
    py.PyErr_SetString(b->of.exception, "too many ops have begun and not ended");
    return NULL;
}

static lb_pending *take_begun(lb_binding *binding, PyObject *number)
{
    int64_t i = integer(number);
    lb_pending *pending = i >= 0 && i < LB_MAX_BEGUN ? binding->begun[i] : NULL;
    if (pending)
        binding->begun[i] = NULL;
    else if (!py.PyErr_Occurred())
        py.PyErr_SetString(binding->of.exception, "no such op has begun");
    return pending;
}

/* number, result, whether it completes later -> row */
LB_PYTHON_CALL(end, 3)
{
    uint32_t row = LB_NONE;
    lb_pending *pending = take_begun(b, args[0]);
    return pending && lb_dispatch_op_end(b, pending, args[1], args[2] == b->of.true_, &row)
               ? py.PyLong_FromLongLong(row)
               : NULL;
}

/* number */
LB_PYTHON_CALL(failed_op, 1)
{
    lb_pending *pending = take_begun(b, args[0]);
    if (!pending) return NULL;
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_op_failed(b->recorder, pending);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* whether what this thread runs from now on is part of an op that has begun */
LB_PYTHON_CALL(aside, 1)
{
    lb_thread *thread = lb_place_thread_get(b);
    if (!thread) return NULL;
    lb_place_thread_set_aside(thread, args[0] == b->of.true_);
    return nothing(b);
}

/* row, group, reduction or None, sequence number, list of ranks, order or None */
LB_PYTHON_CALL(collective, 6)
{
    const uint64_t bytes = 0;
    const uint32_t row = (uint32_t)natural(args[0]);
    const char *group = text(b, args[1]), *reduce = text_or_null(b, args[2]), *order = text_or_null(b, args[5]);
    const uint64_t sequence = natural(args[3]);
    Py_ssize_t n = py.PyList_Size(args[4]);
    int32_t *ranks = malloc((size_t)(n > 0 ? n : 1) * sizeof *ranks);
    for (Py_ssize_t i = 0; ranks && i < n; i++) ranks[i] = (int32_t)integer(py.PyList_GetItem(args[4], i));
    if (!ranks || py.PyErr_Occurred()) {
        free(ranks);
        if (!py.PyErr_Occurred()) py.PyErr_SetString(b->of.exception, "out of memory in the recorder");
        return NULL;
    }
    LB_PYTHON_RECORDER(
        lb_recorder_collective(b->recorder, row, group, reduce, order, sequence, ranks, (uint32_t)n, &err));
    free(ranks);
    return settle(b, status, &err);
}

/* ---- what tensors are -------------------------------------------------------------------------------------------- */

/* tensor, kind of source, flags, name */
LB_PYTHON_CALL(role, 4)
{
    lb_thread *thread = lb_place_thread_get(b);
    const int kind = (int)integer(args[1]);
    const uint32_t flags = (uint32_t)natural(args[2]);
    const char *name = text(b, args[3]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_recorded_operand operand;
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    lb_object_intake intake = lb_object_intake_begin(b, thread);
    bool fine = lb_object_take_operand(&intake, args[0], 0, &operand);
    const lb_host_tensor *numbers = fine ? lb_object_numbers(&operand) : NULL;
    if (numbers) {
        void *state = lb_binding_enter(b, 0);
        status = b->recorder ? lb_recorder_role(b->recorder, numbers, (lb_source_kind)kind, flags, name, &err)
                             : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        lb_binding_leave(b, state);
    }
    lb_object_intake_end(&intake);
    return fine ? settle(b, status, &err) : NULL;
}

/* A tuple of (dimension, whole, from, size). */
static bool take_extent(PyObject *tuple, lb_extent *extent)
{
    if (!tuple) return false;
    extent->dim = (int32_t)integer(py.PyTuple_GetItem(tuple, 0));
    extent->whole = integer(py.PyTuple_GetItem(tuple, 1));
    extent->from = integer(py.PyTuple_GetItem(tuple, 2));
    extent->size = integer(py.PyTuple_GetItem(tuple, 3));
    return !py.PyErr_Occurred();
}

/* A tuple of (name or None, ranks, placement, dimension, reduction or None). */
static bool take_axis(lb_binding *binding, PyObject *tuple, lb_sharding_axis *axis)
{
    if (!tuple) return false;
    axis->name = text_or_null(binding, py.PyTuple_GetItem(tuple, 0));
    axis->size = (uint32_t)natural(py.PyTuple_GetItem(tuple, 1));
    axis->kind = (uint8_t)natural(py.PyTuple_GetItem(tuple, 2));
    axis->dim = (int32_t)integer(py.PyTuple_GetItem(tuple, 3));
    axis->reduce = text_or_null(binding, py.PyTuple_GetItem(tuple, 4));
    return !py.PyErr_Occurred();
}

/* Of lists of extents, axes and ranks. */
static bool take_sharding(lb_object_intake *intake, PyObject *const *lists, lb_sharding *sharding)
{
    lb_binding *binding = intake->binding;
    const Py_ssize_t n[] = {py.PyList_Size(lists[0]), py.PyList_Size(lists[1]), py.PyList_Size(lists[2])};
    if (py.PyErr_Occurred()) return false;
    lb_extent *extents = lb_object_intake_room(intake, (size_t)(n[0] + 1) * sizeof *extents);
    lb_sharding_axis *axes = lb_object_intake_room(intake, (size_t)(n[1] + 1) * sizeof *axes);
    int32_t *ranks = lb_object_intake_room(intake, (size_t)(n[2] + 1) * sizeof *ranks);
    bool fine = extents && axes && ranks;
    for (Py_ssize_t i = 0; i < n[0] && fine; i++) fine = take_extent(py.PyList_GetItem(lists[0], i), &extents[i]);
    for (Py_ssize_t i = 0; i < n[1] && fine; i++) fine = take_axis(binding, py.PyList_GetItem(lists[1], i), &axes[i]);
    for (Py_ssize_t i = 0; i < n[2] && fine; i++) ranks[i] = (int32_t)integer(py.PyList_GetItem(lists[2], i));
    sharding->extents = extents, sharding->n_extents = (uint32_t)n[0];
    sharding->axes = axes, sharding->n_axes = (uint32_t)n[1];
    sharding->ranks = ranks, sharding->n_ranks = (uint32_t)n[2];
    return fine && !py.PyErr_Occurred();
}

/* tensor, name of the whole or None, element where the part begins, extents, axes of the mesh, its ranks */
LB_PYTHON_CALL(shard, 6)
{
    lb_thread *thread = lb_place_thread_get(b);
    lb_sharding said = LB_SHARDING_INIT;
    said.name = text_or_null(b, args[1]);
    said.at = integer(args[2]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_recorded_operand operand;
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    lb_object_intake intake = lb_object_intake_begin(b, thread);
    bool fine = lb_object_take_operand(&intake, args[0], 0, &operand) && take_sharding(&intake, args + 3, &said);
    const lb_host_tensor *numbers = fine ? lb_object_numbers(&operand) : NULL;
    if (numbers) {
        void *state = lb_binding_enter(b, 0);
        status = b->recorder ? lb_recorder_shard(b->recorder, numbers, &said, &err)
                             : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        lb_binding_leave(b, state);
    }
    lb_object_intake_end(&intake);
    return fine ? settle(b, status, &err) : NULL;
}

static bool same_seen(const lb_host_tensor *a, const lb_host_tensor *b)
{
    bool same = a->storage == b->storage && a->data == b->data && a->storage_bytes == b->storage_bytes &&
                a->dtype == b->dtype && a->device == b->device && a->layout.ndim == b->layout.ndim &&
                a->layout.offset == b->layout.offset;
    for (int d = 0; same && d < a->layout.ndim; d++)
        same = a->layout.shape[d] == b->layout.shape[d] && a->layout.stride[d] == b->layout.stride[d];
    return same;
}

/* Whether the short way gives what Python gives, for every one of these: [(tensor, its address, its storage's)]. */
static bool shortcut_holds(lb_object_intake *intake, lb_tensor_shortcut *found, PyObject *samples, size_t object_bytes)
{
    const Py_ssize_t n = py.PyList_Size(samples);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *sample = py.PyList_GetItem(samples, i), *tensor = sample ? py.PyTuple_GetItem(sample, 0) : NULL;
        lb_recorded_operand asked;
        lb_host_tensor seen = {0};
        if (!tensor || !lb_object_take_operand(intake, tensor, 0, &asked) || asked.tag != LB_ARG_VALUE) return false;
        if (i == 0 && !lb_tensor_shortcut_find(found, tensor, object_bytes, natural(py.PyTuple_GetItem(sample, 1)),
                                               natural(py.PyTuple_GetItem(sample, 2))))
            return false;
        if (!lb_tensor_shortcut_learn(found, tensor, asked.u.tensor->dtype) ||
            !lb_tensor_shortcut_take(found, tensor, &seen) || !same_seen(&seen, asked.u.tensor))
            return false;
    }
    return n > 0;
}

/* samples, bytes of a tensor's object -> whether the short way to what tensors are is taken from now on */
LB_PYTHON_CALL(shortcut, 2)
{
    lb_thread *thread = lb_place_thread_get(b);
    const size_t object_bytes = (size_t)natural(args[1]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_tensor_shortcut found = {0};
    lb_object_intake intake = lb_object_intake_begin(b, thread);
    found.works = shortcut_holds(&intake, &found, args[0], object_bytes);
    lb_object_intake_end(&intake);
    if (py.PyErr_Occurred()) return NULL;
    b->shortcut = found;
    PyObject *works = found.works ? b->of.true_ : b->of.false_;
    py.Py_IncRef(works);
    return works;
}

/* scope, call, logits, ids, weights, slots, dropped; each a tensor or None */
LB_PYTHON_CALL(routing, 7)
{
    lb_thread *thread = lb_place_thread_get(b);
    const lb_place place = {(uint32_t)natural(args[0]), (uint32_t)natural(args[1])};
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_recorded_operand parts[5];
    const lb_host_tensor *seen[5] = {NULL};
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    lb_object_intake intake = lb_object_intake_begin(b, thread);
    bool fine = true;
    for (int i = 0; i < 5 && fine; i++) {
        fine = lb_object_take_operand(&intake, args[2 + i], 0, &parts[i]);
        if (fine && parts[i].tag == LB_ARG_VALUE) seen[i] = parts[i].u.tensor;
    }
    if (fine) {
        void *state = lb_binding_enter_with(b, &intake, NULL);
        status = b->recorder
                     ? lb_recorder_routing(b->recorder, place, seen[0], seen[1], seen[2], seen[3], seen[4], &err)
                     : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        lb_binding_leave(b, state);
    }
    lb_object_intake_end(&intake);
    return fine ? settle(b, status, &err) : NULL;
}

/* The storage that holds its numbers; -1: none does. */
static bool take_key(lb_object_intake *intake, PyObject *tensor, int64_t *key)
{
    lb_recorded_operand operand;
    *key = -1;
    if (tensor == intake->binding->of.none) return true;
    if (!lb_object_take_tensor(intake, tensor, &operand)) return false;
    const lb_host_tensor *numbers = lb_object_numbers(&operand);
    if (numbers) *key = numbers->storage;
    return true;
}

/* The members of a group: [(name, tensor, gradient or None)]. */
static bool take_members(lb_object_intake *intake, PyObject *list, lb_member *members, Py_ssize_t n)
{
    lb_binding *binding = intake->binding;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *member = py.PyList_GetItem(list, i), *gradient = member ? py.PyTuple_GetItem(member, 2) : NULL;
        if (!gradient) return false;
        members[i] = (lb_member){text(binding, py.PyTuple_GetItem(member, 0)), -1, -1};
        if (!members[i].name || !take_key(intake, py.PyTuple_GetItem(member, 1), &members[i].storage) ||
            !take_key(intake, gradient, &members[i].gradient))
            return false;
    }
    return true;
}

static bool take_options(lb_binding *binding, PyObject *list, lb_option *options, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *option = py.PyList_GetItem(list, i), *number = option ? py.PyTuple_GetItem(option, 1) : NULL;
        if (!number) return false;
        options[i] = (lb_option){text(binding, py.PyTuple_GetItem(option, 0)), py.PyFloat_AsDouble(number)};
        if (!options[i].name || py.PyErr_Occurred()) return false;
    }
    return true;
}

/* optimizer, index, first op, members, [(option, number)] */
LB_PYTHON_CALL(group, 5)
{
    lb_thread *thread = lb_place_thread_get(b);
    const char *optimizer = text(b, args[0]);
    const uint32_t index = (uint32_t)natural(args[1]), first = (uint32_t)natural(args[2]);
    const Py_ssize_t n_members = py.PyList_Size(args[3]), n_options = py.PyList_Size(args[4]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    lb_object_intake intake = lb_object_intake_begin(b, thread);
    lb_member *members = lb_object_intake_room(&intake, (size_t)(n_members + 1) * sizeof *members);
    lb_option *options = lb_object_intake_room(&intake, (size_t)(n_options + 1) * sizeof *options);
    bool fine = members && options && take_members(&intake, args[3], members, n_members) &&
                take_options(b, args[4], options, n_options);
    if (fine) {
        void *state = lb_binding_enter(b, 0);
        status = b->recorder ? lb_recorder_group(b->recorder, optimizer, index, first, members, (uint32_t)n_members,
                                                 options, (uint32_t)n_options, &err)
                             : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        lb_binding_leave(b, state);
    }
    lb_object_intake_end(&intake);
    return fine ? settle(b, status, &err) : NULL;
}

/* tensor: its storage is shared with something whose writes are not seen */
LB_PYTHON_CALL(escaped, 1)
{
    int64_t key;
    if (!lb_object_take_storage(b, args[0], &key)) return NULL;
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_escaped(b->recorder, key);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* tensor: unseen code has written it, if no recorded op has */
LB_PYTHON_CALL(vouch, 1)
{
    int64_t key;
    if (!lb_object_take_storage(b, args[0], &key)) return NULL;
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_vouch(b->recorder, key);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* storage, address, bytes: it was resized */
LB_PYTHON_CALL(resized, 3)
{
    int64_t key;
    if (!lb_object_storage_key(b, args[0], &key)) return NULL;
    const uint64_t address = py.PyLong_AsUnsignedLongLongMask(args[1]),
                   bytes = py.PyLong_AsUnsignedLongLongMask(args[2]);
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_resized(b->recorder, key, (const void *)(uintptr_t)address, bytes);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* storage: what is known of it is forgotten */
LB_PYTHON_CALL(forget, 1)
{
    int64_t key;
    return lb_object_storage_key(b, args[0], &key) && lb_object_storages_forget(b, key) ? nothing(b) : NULL;
}

/* mode -> its handler */
LB_PYTHON_CALL(handler, 1)
{
    (void)b;
    return py.PyCFunction_NewEx(&lb_dispatch_method, args[0], NULL);
}

PyMethodDef lb_program_methods[] = {
    LB_PYTHON_METHOD(plan),       LB_PYTHON_METHOD(begin),   LB_PYTHON_METHOD(end),   LB_PYTHON_METHOD(failed_op),
    LB_PYTHON_METHOD(collective), LB_PYTHON_METHOD(role),    LB_PYTHON_METHOD(aside), LB_PYTHON_METHOD(shard),
    LB_PYTHON_METHOD(shortcut),   LB_PYTHON_METHOD(routing), LB_PYTHON_METHOD(group), LB_PYTHON_METHOD(escaped),
    LB_PYTHON_METHOD(forget),     LB_PYTHON_METHOD(resized), LB_PYTHON_METHOD(vouch), LB_PYTHON_METHOD(handler),
    {NULL, NULL, 0, NULL},
};
