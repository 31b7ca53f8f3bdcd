/* The calls of a Python process to its recorder, each a builtin function. See python_binding.h; capture/lastbit/torch/
 * library.py is the other side, and says what each takes. */
#include "python_binding.h"

#include <stdlib.h>
#include <string.h>

#define CAPSULE "lastbit.binding"
#define MUCH (256u << 10) /* bytes whose reading lets other threads of Python run */

/* ---- errors and locks ----------------------------------------------------------------------------------------------- */

void *lb_binding_enter(lb_binding *b, uint64_t bytes)
{
    void *state = bytes > MUCH ? py.PyEval_SaveThread() : NULL;
    pthread_mutex_lock(&b->lock);
    return state;
}

void lb_binding_leave(lb_binding *b, void *state)
{
    pthread_mutex_unlock(&b->lock);
    if (state) py.PyEval_RestoreThread(state);
}

void lb_binding_raise(lb_binding *b, const lb_err *err)
{
    PyObject *status = py.PyLong_FromLongLong(err->status), *message = py.PyUnicode_FromString(err->message);
    PyObject *error =
        status && message ? py.PyObject_CallFunctionObjArgs(b->of.failed, status, message, NULL) : NULL;
    if (error) py.PyErr_SetObject(b->of.failed, error);
    py.Py_DecRef(error);
    py.Py_DecRef(message);
    py.Py_DecRef(status);
}

bool lb_binding_swallow(lb_binding *b)
{
    PyObject *type, *value, *trace;
    if (!py.PyErr_Occurred()) return true;
    if (!py.PyErr_ExceptionMatches(b->of.exception)) return false;
    py.PyErr_Fetch(&type, &value, &trace);
    py.PyErr_NormalizeException(&type, &value, &trace);
    b->live = false;
    PyObject *done = value ? py.PyObject_CallFunctionObjArgs(b->of.fail, value, NULL) : NULL;
    py.Py_DecRef(done);
    py.Py_DecRef(type);
    py.Py_DecRef(value);
    py.Py_DecRef(trace);
    if (!py.PyErr_Occurred()) return true;
    if (!py.PyErr_ExceptionMatches(b->of.exception)) return false;
    py.PyErr_Clear();
    return true;
}

static PyObject *nothing(const lb_binding *b)
{
    py.Py_IncRef(b->of.none);
    return b->of.none;
}

static PyObject *settle(lb_binding *b, lb_status status, const lb_err *err)
{
    if (status == LB_OK) return nothing(b);
    lb_binding_raise(b, err);
    return NULL;
}

/* ---- reading arguments ---------------------------------------------------------------------------------------------- */

static lb_binding *binding_of(PyObject *self)
{
    return (lb_binding *)py.PyCapsule_GetPointer(self, CAPSULE);
}

static int64_t integer(PyObject *object)
{
    return (int64_t)py.PyLong_AsLongLong(object);
}
static uint64_t natural(PyObject *object)
{
    return py.PyLong_AsUnsignedLongLongMask(object);
}
/* "" for None; NULL with an exception. */
static const char *text(const lb_binding *b, PyObject *object)
{
    return object == b->of.none ? "" : py.PyUnicode_AsUTF8AndSize(object, NULL);
}
static const char *text_or_null(const lb_binding *b, PyObject *object)
{
    const char *t = text(b, object);
    return t && *t ? t : NULL;
}

/* Every builtin: `b`, `args`; the number of arguments is checked, exceptions of their conversion too. */
#define CALL(name, count)                                                                                      \
    static PyObject *name##_taken(lb_binding *b, PyObject *const *args);                                       \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)                \
    {                                                                                                          \
        lb_binding *b = binding_of(self);                                                                      \
        if (!b) return NULL;                                                                                   \
        if (n != (count) || (names && py.PyTuple_Size(names) > 0)) {                                           \
            py.PyErr_SetString(b->of.exception, #name " takes " #count " arguments");                          \
            return NULL;                                                                                       \
        }                                                                                                      \
        b->inside++;                                                                                           \
        PyObject *out = name##_taken(b, args);                                                                 \
        b->inside--;                                                                                           \
        if (out && py.PyErr_Occurred()) {                                                                      \
            py.Py_DecRef(out);                                                                                 \
            return NULL;                                                                                       \
        }                                                                                                      \
        return out;                                                                                            \
    }                                                                                                          \
    static PyObject *name##_taken(lb_binding *b, PyObject *const *args)

/* A call of the recorder between conversions that may have failed and its report. */
#define RECORDER(call)                                                                                         \
    lb_err err = LB_ERR_INIT;                                                                                  \
    lb_status status = LB_ERR_STATE;                                                                           \
    if (py.PyErr_Occurred()) return NULL;                                                                      \
    void *state = lb_binding_enter(b, bytes);                                                                  \
    if (b->recorder)                                                                                           \
        status = (call);                                                                                       \
    else                                                                                                       \
        lb_fail(&err, LB_ERR_STATE, "the recording is closed");                                                \
    lb_binding_leave(b, state)

/* ---- life-cycle ----------------------------------------------------------------------------------------------------- */

/* folder, level, rank, world, keep, layers, budget, ring */
CALL(open_recorder, 8)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_err err = LB_ERR_INIT;
    const char *folder = text(b, args[0]), *level = text_or_null(b, args[1]);
    options.rank = (int32_t)integer(args[2]);
    options.world = (int32_t)integer(args[3]);
    options.keep = text_or_null(b, args[4]);
    options.layers = text_or_null(b, args[5]);
    options.budget_bytes = natural(args[6]);
    options.ring = (uint32_t)natural(args[7]);
    if (py.PyErr_Occurred()) return NULL;
    lb_status status = LB_OK;
    if (level && !lb_level_parse(level, &options.level))
        status = lb_fail(&err, LB_ERR_INVALID, "'%s' is no level: stats, sources, layers, ops, auto", level);
    pthread_mutex_lock(&b->lock);
    if (status == LB_OK && b->recorder) status = lb_fail(&err, LB_ERR_STATE, "the recording is open");
    if (status == LB_OK) status = lb_recorder_open(folder, &options, &b->recorder, &err);
    pthread_mutex_unlock(&b->lock);
    return settle(b, status, &err);
}

CALL(close_recorder, 0)
{
    (void)args;
    lb_err err = LB_ERR_INIT;
    b->live = false;
    void *state = lb_binding_enter(b, UINT64_MAX);
    lb_status status = lb_recorder_close(b->recorder, &err);
    b->recorder = NULL;
    lb_binding_leave(b, state);
    return settle(b, status, &err);
}

/* In a forked child: another thread may have held the lock, and is gone. */
CALL(abandon, 0)
{
    (void)args;
    b->live = false;
    lb_recorder_abandon(b->recorder);
    b->recorder = NULL;
    return nothing(b);
}

/* why */
CALL(stop, 1)
{
    const char *why = text(b, args[0]);
    if (!why) return NULL;
    pthread_mutex_lock(&b->lock);
    if (b->recorder) lb_recorder_stop(b->recorder, why);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* Objects that know us are let go, so that nobody keeps the other alive. */
CALL(release, 0)
{
    (void)args;
    b->live = false;
    PyObject **back[] = {&b->of.fail,      &b->of.plan_for,   &b->of.is_foreign,
                         &b->of.decompose, &b->of.collective, &b->of.instead,
                         &b->of.plain,     &b->of.fields,     &b->of.owner};
    if (b->inside > 1) return nothing(b); /* another thread is in the middle of something: they stay */
    for (size_t i = 0; i < sizeof back / sizeof *back; i++) {
        PyObject *object = *back[i];
        *back[i] = b->of.none;
        py.Py_IncRef(b->of.none);
        py.Py_DecRef(object);
    }
    lb_plans_release(b);
    for (size_t i = 0; i < b->size_storages; i++) {
        PyObject *address = b->storages[i] ? py.PyLong_FromUnsignedLongLong((uint64_t)b->storages[i]) : NULL;
        PyObject *freed = address ? py.PyObject_CallFunctionObjArgs(b->of.free_weak_ref, address, NULL) : NULL;
        py.Py_DecRef(freed);
        py.Py_DecRef(address);
    }
    free(b->storages);
    b->storages = NULL;
    b->n_storages = b->size_storages = 0;
    return nothing(b);
}

/* Whether ops are recorded from now on. */
CALL(set_live, 1)
{
    b->live = args[0] == b->of.true_;
    return nothing(b);
}

/* How deep in optimizer steps and clipping the program is. */
CALL(set_optimizer_depth, 1)
{
    b->optimizer_depth = (int)integer(args[0]);
    return nothing(b);
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

/* step, shard */
CALL(step_begin, 2)
{
    const uint64_t bytes = 0;
    int64_t step = integer(args[0]);
    const char *shard = text_or_null(b, args[1]);
    RECORDER(lb_recorder_step_begin(b->recorder, step, shard, &err));
    return settle(b, status, &err);
}

/* complete */
CALL(step_end, 1)
{
    const uint64_t bytes = UINT64_MAX;
    bool complete = args[0] == b->of.true_;
    RECORDER(lb_recorder_step_end(b->recorder, complete, &err));
    return settle(b, status, &err);
}

CALL(step_skip, 0)
{
    (void)args;
    pthread_mutex_lock(&b->lock);
    if (b->recorder) lb_recorder_step_skip(b->recorder);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* After a step: marks of older ones are forgotten, and storages that are gone. */
CALL(sweep, 0)
{
    (void)args;
    lb_thread *thread = lb_thread_get(b);
    if (!thread) return NULL;
    lb_place_step_closed(thread);
    return lb_storages_sweep(b) ? nothing(b) : NULL;
}

CALL(next_op, 0)
{
    (void)args;
    pthread_mutex_lock(&b->lock);
    uint32_t op = b->recorder ? lb_recorder_next_op(b->recorder) : 0;
    pthread_mutex_unlock(&b->lock);
    return py.PyLong_FromLongLong(op);
}

/* -> gradients, parameters and states of the open step that are not finite */
CALL(nonfinite, 0)
{
    (void)args;
    pthread_mutex_lock(&b->lock);
    uint64_t n = b->recorder ? lb_recorder_nonfinite(b->recorder) : 0;
    pthread_mutex_unlock(&b->lock);
    return py.PyLong_FromUnsignedLongLong(n);
}

/* -> bytes written, or held by the flight recorder */
CALL(bytes_so_far, 0)
{
    (void)args;
    pthread_mutex_lock(&b->lock);
    uint64_t n = b->recorder ? lb_recorder_bytes(b->recorder) : 0;
    pthread_mutex_unlock(&b->lock);
    return py.PyLong_FromUnsignedLongLong(n);
}

/* name, number */
CALL(scalar, 2)
{
    const uint64_t bytes = 0;
    const char *name = text(b, args[0]);
    double number = py.PyFloat_AsDouble(args[1]);
    RECORDER(lb_recorder_scalar(b->recorder, name, number, &err));
    return settle(b, status, &err);
}

/* kind, message */
CALL(notice, 2)
{
    const uint64_t bytes = 0;
    const char *kind = text(b, args[0]), *message = text(b, args[1]);
    RECORDER(lb_recorder_notice(b->recorder, kind, message, &err));
    return settle(b, status, &err);
}

/* name, JSON */
CALL(table, 2)
{
    const uint64_t bytes = 0;
    const char *name = text(b, args[0]), *json = text(b, args[1]);
    RECORDER(lb_recorder_table(b->recorder, name, json, &err));
    return settle(b, status, &err);
}

/* why */
CALL(trigger, 1)
{
    const uint64_t bytes = UINT64_MAX;
    const char *why = text(b, args[0]);
    RECORDER(lb_recorder_trigger(b->recorder, why, &err));
    return settle(b, status, &err);
}

/* ---- modules -------------------------------------------------------------------------------------------------------- */

/* path, class or None, parent -> scope */
CALL(scope, 3)
{
    const char *path = text(b, args[0]), *class_name = text_or_null(b, args[1]);
    uint32_t parent = (uint32_t)natural(args[2]), number = LB_NONE;
    if (py.PyErr_Occurred()) return NULL;
    pthread_mutex_lock(&b->lock);
    if (b->recorder) number = lb_recorder_scope(b->recorder, path, class_name, parent);
    pthread_mutex_unlock(&b->lock);
    if (number != LB_NONE) return py.PyLong_FromLongLong(number);
    lb_err err = LB_ERR_INIT;
    lb_fail(&err, LB_ERR_NOMEM, "no memory for a scope");
    lb_binding_raise(b, &err);
    return NULL;
}

/* scope, positional arguments, keyword arguments or None -> call. A scope of -1 is noted by nobody. */
CALL(enter, 3)
{
    lb_thread *thread = lb_thread_get(b);
    const int64_t number = integer(args[0]);
    lb_place place = {0, 0};
    if (!thread || py.PyErr_Occurred()) return NULL;
    if (number < 0) return lb_place_enter(b, thread, place, false) ? py.PyLong_FromLongLong(0) : NULL;
    lb_seen *seen = NULL;
    uint32_t count = 0;
    const bool again = lb_place_recomputes(thread, lb_place_depth(thread));
    lb_taking taking = lb_taking_begin(b, thread);
    bool fine = lb_take_tensors(&taking, args + 1, 2, &seen, &count);
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    if (fine) {
        void *state = lb_binding_enter(b, taking.bytes);
        status = b->recorder
                     ? lb_recorder_enter(b->recorder, (uint32_t)number, seen, count, again, &place, &err)
                     : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        lb_binding_leave(b, state);
    }
    lb_taking_end(&taking);
    if (status != LB_OK) lb_binding_raise(b, &err);
    fine = fine && status == LB_OK && lb_place_enter(b, thread, place, true);
    return fine ? py.PyLong_FromLongLong(place.call) : NULL;
}

/* depth of the module (from 1), output, whether it is recorded -> its call */
CALL(leave, 3)
{
    lb_thread *thread = lb_thread_get(b);
    const uint32_t depth = (uint32_t)natural(args[0]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    const lb_place place = lb_place_at(thread, depth);
    const bool recorded = args[2] == b->of.true_;
    bool fine = lb_place_leave(b, thread, depth, recorded);
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    if (recorded && fine) {
        lb_seen *seen = NULL;
        uint32_t count = 0;
        lb_taking taking = lb_taking_begin(b, thread);
        fine = lb_take_tensors(&taking, args + 1, 1, &seen, &count);
        if (fine) {
            void *state = lb_binding_enter(b, taking.bytes);
            status = b->recorder ? lb_recorder_leave(b->recorder, place, seen, count,
                                                     lb_place_recomputes(thread, depth), &err)
                                 : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
            lb_binding_leave(b, state);
        }
        lb_taking_end(&taking);
    }
    if (status != LB_OK) lb_binding_raise(b, &err);
    return fine && status == LB_OK ? py.PyLong_FromLongLong(place.call) : NULL;
}

/* scope, value: a place of its own */
CALL(tap, 2)
{
    lb_thread *thread = lb_thread_get(b);
    const uint32_t number = (uint32_t)natural(args[0]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_seen *seen = NULL;
    uint32_t count = 0;
    lb_place place;
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    lb_taking taking = lb_taking_begin(b, thread);
    bool fine = lb_take_tensors(&taking, args + 1, 1, &seen, &count);
    if (fine) {
        void *state = lb_binding_enter(b, taking.bytes);
        status = b->recorder ? lb_recorder_enter(b->recorder, number, NULL, 0, false, &place, &err)
                             : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        if (status == LB_OK) status = lb_recorder_leave(b->recorder, place, seen, count, false, &err);
        lb_binding_leave(b, state);
    }
    lb_taking_end(&taking);
    return fine ? settle(b, status, &err) : NULL;
}

/* whether backward begins (or ends) in this thread -> how many run in it now */
CALL(backward, 1)
{
    lb_thread *thread = lb_thread_get(b);
    int nested = thread ? lb_place_backward(thread, b, args[0] == b->of.true_) : -1;
    return nested < 0 ? NULL : py.PyLong_FromLongLong(nested);
}

/* ---- ops that Python runs itself ------------------------------------------------------------------------------------ */

/* see lb_plan */
CALL(plan, 1)
{
    return lb_plan_add(b, args[0]) ? nothing(b) : NULL;
}

/* func, args, kwargs or None -> number of the op that has begun */
CALL(begin, 3)
{
    lb_plan *p = lb_plan_find(b, args[0]);
    if (!p) {
        py.PyErr_SetString(b->of.exception, "an op has no plan");
        return NULL;
    }
    lb_pending *pending = lb_op_begin(b, p, args[1], args[2] == b->of.none ? NULL : args[2]);
    if (!pending) return NULL;
    for (int i = 0; i < LB_MAX_BEGUN; i++) {
        if (b->begun[i]) continue;
        b->begun[i] = pending;
        return py.PyLong_FromLongLong(i);
    }
    pthread_mutex_lock(&b->lock);
    if (b->recorder) lb_recorder_op_failed(b->recorder, pending);
    pthread_mutex_unlock(&b->lock);
    py.PyErr_SetString(b->of.exception, "too many ops have begun and not ended");
    return NULL;
}

static lb_pending *take_begun(lb_binding *b, PyObject *number)
{
    int64_t i = integer(number);
    lb_pending *pending = i >= 0 && i < LB_MAX_BEGUN ? b->begun[i] : NULL;
    if (pending)
        b->begun[i] = NULL;
    else if (!py.PyErr_Occurred())
        py.PyErr_SetString(b->of.exception, "no such op has begun");
    return pending;
}

/* number, result, whether it completes later -> row */
CALL(end, 3)
{
    uint32_t row = LB_NONE;
    lb_pending *pending = take_begun(b, args[0]);
    return pending && lb_op_end(b, pending, args[1], args[2] == b->of.true_, &row) ? py.PyLong_FromLongLong(row)
                                                                                   : NULL;
}

/* number */
CALL(failed_op, 1)
{
    lb_pending *pending = take_begun(b, args[0]);
    if (!pending) return NULL;
    pthread_mutex_lock(&b->lock);
    if (b->recorder) lb_recorder_op_failed(b->recorder, pending);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* row, group, reduction or None, sequence number, list of ranks */
CALL(collective, 5)
{
    const uint64_t bytes = 0;
    const uint32_t row = (uint32_t)natural(args[0]);
    const char *group = text(b, args[1]), *reduce = text_or_null(b, args[2]);
    const uint64_t sequence = natural(args[3]);
    Py_ssize_t n = py.PyList_Size(args[4]);
    int32_t *ranks = malloc((size_t)(n > 0 ? n : 1) * sizeof *ranks);
    for (Py_ssize_t i = 0; ranks && i < n; i++) ranks[i] = (int32_t)integer(py.PyList_GetItem(args[4], i));
    if (!ranks || py.PyErr_Occurred()) {
        free(ranks);
        if (!py.PyErr_Occurred()) py.PyErr_SetString(b->of.exception, "out of memory in the recorder");
        return NULL;
    }
    RECORDER(lb_recorder_collective(b->recorder, row, group, reduce, NULL, sequence, ranks, (uint32_t)n, &err));
    free(ranks);
    return settle(b, status, &err);
}

/* ---- what tensors are ----------------------------------------------------------------------------------------------- */

/* tensor, kind of source, flags, name */
CALL(role, 4)
{
    lb_thread *thread = lb_thread_get(b);
    const int kind = (int)integer(args[1]);
    const uint32_t flags = (uint32_t)natural(args[2]);
    const char *name = text(b, args[3]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_operand operand;
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    lb_taking taking = lb_taking_begin(b, thread);
    bool fine = lb_take_operand(&taking, args[0], 0, &operand);
    if (fine && operand.tag == LB_ARG_VALUE) {
        void *state = lb_binding_enter(b, 0);
        status = b->recorder
                     ? lb_recorder_role(b->recorder, operand.u.tensor, (lb_source_kind)kind, flags, name, &err)
                     : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        lb_binding_leave(b, state);
    }
    lb_taking_end(&taking);
    return fine ? settle(b, status, &err) : NULL;
}

/* scope, call, logits, ids, weights, slots, dropped; each a tensor or None */
CALL(routing, 7)
{
    lb_thread *thread = lb_thread_get(b);
    const lb_place place = {(uint32_t)natural(args[0]), (uint32_t)natural(args[1])};
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_operand parts[5];
    const lb_seen *seen[5] = {NULL};
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    lb_taking taking = lb_taking_begin(b, thread);
    bool fine = true;
    for (int i = 0; i < 5 && fine; i++) {
        fine = lb_take_operand(&taking, args[2 + i], 0, &parts[i]);
        if (fine && parts[i].tag == LB_ARG_VALUE) seen[i] = parts[i].u.tensor;
    }
    if (fine) {
        void *state = lb_binding_enter(b, taking.bytes);
        status = b->recorder ? lb_recorder_routing(b->recorder, place, seen[0], seen[1], seen[2], seen[3],
                                                   seen[4], &err)
                             : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        lb_binding_leave(b, state);
    }
    lb_taking_end(&taking);
    return fine ? settle(b, status, &err) : NULL;
}

/* The members of a group: [(name, tensor, gradient or None)]. */
static bool take_members(lb_binding *b, PyObject *list, lb_member *members, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *member = py.PyList_GetItem(list, i),
                 *gradient = member ? py.PyTuple_GetItem(member, 2) : NULL;
        if (!gradient) return false;
        members[i] = (lb_member){text(b, py.PyTuple_GetItem(member, 0)), -1, -1};
        if (!members[i].name || !lb_take_storage(b, py.PyTuple_GetItem(member, 1), &members[i].storage))
            return false;
        if (gradient != b->of.none && !lb_take_storage(b, gradient, &members[i].gradient)) return false;
    }
    return true;
}

static bool take_options(lb_binding *b, PyObject *list, lb_option *options, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *option = py.PyList_GetItem(list, i), *number = option ? py.PyTuple_GetItem(option, 1) : NULL;
        if (!number) return false;
        options[i] = (lb_option){text(b, py.PyTuple_GetItem(option, 0)), py.PyFloat_AsDouble(number)};
        if (!options[i].name || py.PyErr_Occurred()) return false;
    }
    return true;
}

/* optimizer, index, first op, members, [(option, number)] */
CALL(group, 5)
{
    lb_thread *thread = lb_thread_get(b);
    const char *optimizer = text(b, args[0]);
    const uint32_t index = (uint32_t)natural(args[1]), first = (uint32_t)natural(args[2]);
    const Py_ssize_t n_members = py.PyList_Size(args[3]), n_options = py.PyList_Size(args[4]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    lb_taking taking = lb_taking_begin(b, thread);
    lb_member *members = lb_taking_room(&taking, (size_t)(n_members + 1) * sizeof *members);
    lb_option *options = lb_taking_room(&taking, (size_t)(n_options + 1) * sizeof *options);
    bool fine = members && options && take_members(b, args[3], members, n_members) &&
                take_options(b, args[4], options, n_options);
    if (fine) {
        void *state = lb_binding_enter(b, 0);
        status = b->recorder ? lb_recorder_group(b->recorder, optimizer, index, first, members,
                                                 (uint32_t)n_members, options, (uint32_t)n_options, &err)
                             : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        lb_binding_leave(b, state);
    }
    lb_taking_end(&taking);
    return fine ? settle(b, status, &err) : NULL;
}

/* tensor: its storage is shared with something whose writes are not seen */
CALL(escaped, 1)
{
    int64_t key;
    if (!lb_take_storage(b, args[0], &key)) return NULL;
    pthread_mutex_lock(&b->lock);
    if (b->recorder) lb_recorder_escaped(b->recorder, key);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* storage: what is known of it is no longer known */
CALL(forget, 1)
{
    int64_t key;
    return lb_storage_key(b, args[0], &key) && lb_storages_forget(b, key) ? nothing(b) : NULL;
}

/* mode -> its handler */
CALL(handler, 1)
{
    (void)b;
    return py.PyCFunction_NewEx(&lb_dispatch_method, args[0], NULL);
}

/* ---- the binding ---------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
#define METHOD(name)                                                                                           \
    {                                                                                                          \
#name, name, LB_PYTHON_FASTCALL, NULL                                                                  \
    }
    METHOD(open_recorder),
    METHOD(close_recorder),
    METHOD(abandon),
    METHOD(stop),
    METHOD(release),
    METHOD(set_live),
    METHOD(set_optimizer_depth),
    METHOD(step_begin),
    METHOD(step_end),
    METHOD(step_skip),
    METHOD(sweep),
    METHOD(next_op),
    METHOD(nonfinite),
    METHOD(bytes_so_far),
    METHOD(scalar),
    METHOD(notice),
    METHOD(table),
    METHOD(trigger),
    METHOD(scope),
    METHOD(enter),
    METHOD(leave),
    METHOD(tap),
    METHOD(backward),
    METHOD(plan),
    METHOD(begin),
    METHOD(end),
    METHOD(failed_op),
    METHOD(collective),
    METHOD(role),
    METHOD(routing),
    METHOD(group),
    METHOD(escaped),
    METHOD(forget),
    METHOD(handler),
#undef METHOD
};

static void binding_free(lb_binding *b)
{
    if (!b) return;
    PyObject **objects = (PyObject **)&b->of, **names = (PyObject **)&b->names;
    for (size_t i = 0; i < sizeof b->of / sizeof *objects; i++) py.Py_DecRef(objects[i]);
    for (size_t i = 0; i < sizeof b->names / sizeof *names; i++) py.Py_DecRef(names[i]);
    for (size_t i = 0; i < b->n_dtypes; i++) py.Py_DecRef(b->dtypes[i].dtype);
    for (size_t i = 0; i < b->n_texts; i++) free(b->texts[i]);
    lb_plans_release(b);
    free(b->dtypes);
    free(b->texts);
    free(b->storages);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static void destroy(PyObject *capsule)
{
    lb_binding *b = binding_of(capsule);
    if (!b) return;
    if (b == lb_active)
        b->orphan = true; /* a mode may be active still: the next binding frees this one */
    else
        binding_free(b);
}

/* {dtype: name} -> the ones that an archive can hold. */
static bool take_dtypes(lb_binding *b, PyObject *dtypes)
{
    PyObject *dtype, *name;
    for (Py_ssize_t at = 0; dtypes && py.PyDict_Next(dtypes, &at, &dtype, &name);) {
        const char *known = py.PyUnicode_AsUTF8AndSize(name, NULL);
        lb_dtype code = known ? lb_dtype_parse(known) : (lb_dtype)0;
        lb_dtype_entry *entries = code ? realloc(b->dtypes, (b->n_dtypes + 1) * sizeof *entries) : NULL;
        if (code && !entries) return false;
        if (!code) continue;
        py.Py_IncRef(dtype);
        b->dtypes = entries;
        b->dtypes[b->n_dtypes++] = (lb_dtype_entry){dtype, code};
    }
    return dtypes && !py.PyErr_Occurred();
}

static bool take_environment(lb_binding *b, PyObject *environment)
{
#define TAKE_OBJECT(name)                                                                                      \
    if (!(b->of.name = py.PyDict_GetItemString(environment, #name))) return false;                             \
    py.Py_IncRef(b->of.name);
    LB_PYTHON_OBJECTS(TAKE_OBJECT)
#undef TAKE_OBJECT
#define TAKE_NAME(text)                                                                                        \
    if (!(b->names.text = py.PyUnicode_InternFromString(#text))) return false;
    LB_PYTHON_NAMES(TAKE_NAME)
#undef TAKE_NAME
    return take_dtypes(b, py.PyDict_GetItemString(environment, "dtypes"));
}

/* Takes over `b`: it lives as long as one of the functions. NULL with an exception; then it is gone. */
static PyObject *functions_of(lb_binding *b)
{
    PyObject *capsule = py.PyCapsule_New(b, CAPSULE, destroy), *functions = capsule ? py.PyDict_New() : NULL;
    if (!capsule) binding_free(b);
    bool fine = functions;
    for (size_t m = 0; m < sizeof methods / sizeof *methods && fine; m++) {
        PyObject *function = py.PyCFunction_NewEx(&methods[m], capsule, NULL);
        fine = function && py.PyDict_SetItemString(functions, methods[m].name, function) == 0;
        py.Py_DecRef(function);
    }
    if (!fine) {
        py.Py_DecRef(functions);
        functions = NULL;
    }
    py.Py_DecRef(capsule);
    return functions;
}

/* Called once per recording, with Python's lock held. NULL with an exception. */
LB_API PyObject *lb_python_bind(PyObject *environment);
PyObject *lb_python_bind(PyObject *environment)
{
    static uint64_t serial;
    lb_binding *b = calloc(1, sizeof *b);
    if (b) {
        b->serial = ++serial;
        pthread_mutex_init(&b->lock, NULL);
    }
    if (!b || !take_environment(b, environment)) {
        binding_free(b);
        PyObject *class = py.PyDict_GetItemString(environment, "exception");
        if (!py.PyErr_Occurred() && class)
            py.PyErr_SetString(class, "the recorder was given less than it needs");
        return NULL;
    }
    PyObject *functions = functions_of(b);
    if (!functions) return NULL;
    lb_binding *before = lb_active;
    lb_active = b;
    if (before && before->orphan) binding_free(before);
    return functions;
}

/* "" when Python's interface was found, else the function that lacks. */
LB_API const char *lb_python_start(void);
const char *lb_python_start(void)
{
    const char *missing = "";
    lb_python_find(&missing);
    return missing;
}
