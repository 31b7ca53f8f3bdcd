/* The dispatch mode's handler: sees every op below autograd, runs it, and records what it was. See python_binding.h.
 *
 * What can be known from an op's schema was worked out once, in Python (a plan). An op that writes no argument is
 * recorded after it ran; one that does is begun before, so that what it overwrites is read first. Rare things
 * (collectives, ops that inference mode leaves whole, tensors that unwrap themselves) are left to Python. */
#include "binding/python_binding.h"

#include "base/array.h"
#include "base/hash.h"
#include <stdlib.h>
#include <string.h>

lb_binding *lb_active;

/* ---- plans ------------------------------------------------------------------------------------------------------- */

lb_dispatch_plan *lb_dispatch_plan_find(const lb_binding *b, PyObject *func)
{
    LB_HASH_EACH(row, &b->plan_of_func, (uint64_t)(uintptr_t)func)
    if (b->plans[row]->func == func) return b->plans[row];
    return NULL;
}

static void plan_free(lb_dispatch_plan *p)
{
    if (!p) return;
    PyObject *owned[] = {p->func, p->callee, p->names, p->defaults};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) py.Py_DecRef(owned[i]);
    plan_free(p->writing);
    free(p->name);
    free(p->arg_flags);
    free(p);
}

void lb_dispatch_plans_release(lb_binding *b)
{
    for (uint32_t i = 0; i < b->plan_of_func.n; i++) plan_free(b->plans[i]);
    free(b->plans);
    b->plans = NULL;
    lb_hash_release(&b->plan_of_func);
}

static bool no_memory(lb_binding *b)
{
    lb_err err = LB_ERR_INIT;
    lb_fail(&err, LB_ERR_NOMEM, "out of memory in the recorder");
    lb_binding_raise(b, &err);
    return false;
}

static PyObject *owned_item(PyObject *description, const char *key)
{
    PyObject *object = py.PyDict_GetItemString(description, key);
    if (object) py.Py_IncRef(object);
    return object;
}

static long long integer_item(PyObject *description, const char *key)
{
    PyObject *object = py.PyDict_GetItemString(description, key);
    return object ? py.PyLong_AsLongLong(object) : 0;
}

/* NULL with an exception; what the description lacks is none, false or 0. */
static lb_dispatch_plan *plan_of(lb_binding *b, PyObject *description)
{
    lb_dispatch_plan *p = calloc(1, sizeof *p);
    if (!p) return no_memory(b), NULL;
    p->func = owned_item(description, "func");
    p->callee = owned_item(description, "callee");
    p->names = owned_item(description, "names");
    p->defaults = owned_item(description, "defaults");
    PyObject *name = py.PyDict_GetItemString(description, "name"),
             *flags = py.PyDict_GetItemString(description, "arg_flags");
    const char *text = name ? py.PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    char *bytes = NULL;
    Py_ssize_t n = 0;
    if (flags) py.PyBytes_AsStringAndSize(flags, &bytes, &n);
    p->flags = (uint32_t)integer_item(description, "flags");
    p->writing_switch = (int)integer_item(description, "writing_switch");
    p->chance = (int)integer_item(description, "chance");
    p->non_blocking = (int)integer_item(description, "non_blocking");
    p->ignored = integer_item(description, "ignored");
    p->collective = integer_item(description, "collective");
    p->masks = integer_item(description, "masks");
    p->two_halves = p->collective || p->flags & LB_OP_MUTABLE;
    p->decomposes = integer_item(description, "in_parts") ? 2 : -1;
    if (p->func && p->callee && p->names && p->defaults && text && bytes && !py.PyErr_Occurred() &&
        py.PyTuple_Size(p->names) == n && py.PyTuple_Size(p->defaults) == n) {
        p->name = strdup(text);
        p->arg_flags = malloc((size_t)n + 1);
        if (p->name && p->arg_flags) {
            b->negates |= strcmp(p->name, "aten::_neg_view") == 0;
            memcpy(p->arg_flags, bytes, (size_t)n);
            p->n_args = (uint32_t)n;
            return p;
        }
        no_memory(b);
    }
    if (!py.PyErr_Occurred()) py.PyErr_SetString(b->of.exception, "the description of an op is not whole");
    plan_free(p);
    return NULL;
}

bool lb_dispatch_plan_add(lb_binding *b, PyObject *description)
{
    lb_dispatch_plan *p = plan_of(b, description);
    if (!p) return false;
    PyObject *writing = py.PyDict_GetItemString(description, "writing");
    if (writing && writing != b->of.none && !(p->writing = plan_of(b, writing))) {
        plan_free(p);
        return false;
    }
    const uint32_t n = b->plan_of_func.n;
    if (lb_dispatch_plan_find(b, p->func)) { /* two threads met the op at once */
        plan_free(p);
        return true;
    }
    lb_dispatch_plan **plans = lb_array_grow(b->plans, n, sizeof *plans);
    if (plans) b->plans = plans, plans[n] = p;
    if (plans && lb_hash_add(&b->plan_of_func, (uint64_t)(uintptr_t)p->func, n)) return true;
    plan_free(p);
    return no_memory(b);
}

/* Borrowed; Python works it out at the first sight of an op. */
static lb_dispatch_plan *plan_for(lb_binding *b, PyObject *func)
{
    lb_dispatch_plan *p = lb_dispatch_plan_find(b, func);
    if (p) return p;
    PyObject *done = py.PyObject_CallFunctionObjArgs(b->of.plan_for, func, NULL);
    py.Py_DecRef(done);
    if (!done) return NULL;
    p = lb_dispatch_plan_find(b, func);
    if (!p) py.PyErr_SetString(b->of.exception, "an op has no plan");
    return p;
}

/* ---- a call as operands ------------------------------------------------------------------------------------------ */

/* What the call gives for argument `a`, borrowed; the default where it gives nothing. NULL with an exception. */
static PyObject *argument(const lb_dispatch_plan *p, PyObject *args, Py_ssize_t n, PyObject *kwargs, Py_ssize_t a)
{
    if (a < n) return py.PyTuple_GetItem(args, a);
    PyObject *given = kwargs ? py.PyDict_GetItemWithError(kwargs, py.PyTuple_GetItem(p->names, a)) : NULL;
    if (given || py.PyErr_Occurred()) return given;
    return py.PyTuple_GetItem(p->defaults, a);
}

static bool is_true(PyObject *object)
{
    return object && py.PyObject_IsTrue(object) == 1;
}

/* Indexing with a mask makes a shape of its contents. */
static bool has_mask(const lb_recorded_operand *indices)
{
    for (uint32_t i = 0; indices->tag == LB_ARG_LIST && i < indices->count; i++) {
        const lb_recorded_operand *index = &indices->u.items[i];
        if (index->tag == LB_ARG_VALUE && (index->u.tensor->dtype == LB_BOOL || index->u.tensor->dtype == LB_U8))
            return true;
    }
    return false;
}

static bool take_call(lb_object_intake *intake, const lb_dispatch_plan *p, PyObject *args, PyObject *kwargs,
                      lb_recorded_call *call)
{
    const Py_ssize_t n = py.PyTuple_Size(args);
    lb_recorded_operand *operands = lb_object_intake_room(intake, (p->n_args + 1) * sizeof *operands);
    if (n < 0 || !operands) return false;
    for (uint32_t a = 0; a < p->n_args; a++) {
        PyObject *object = argument(p, args, n, kwargs, a);
        lb_recorded_operand *o = &operands[a];
        if (!object || !lb_object_take_operand(intake, object, 0, o)) return false;
        o->flags = p->arg_flags[a] & (LB_OPERAND_WRITTEN | LB_OPERAND_OVERWRITTEN | LB_OPERAND_CHANGED);
        if (p->arg_flags[a] & LB_INT_MEANS_FLOAT && o->tag == LB_ARG_INT)
            *o = (lb_recorded_operand){.tag = LB_ARG_FLOAT, .flags = o->flags, .u.f = (double)o->u.i};
    }
    call->name = p->name;
    call->args = operands;
    call->n_args = p->n_args;
    call->flags |= p->flags;
    /* Few ops compute results of a sparse tensor again. */
    if (intake->in_parts && !(p->flags & LB_OP_VIEW)) call->flags |= LB_OP_COMPOSITE;
    if (p->chance >= 0 && is_true(argument(p, args, n, kwargs, p->chance))) call->flags |= LB_OP_RANDOM;
    call->non_blocking = p->non_blocking >= 0 && is_true(argument(p, args, n, kwargs, p->non_blocking));
    if (p->masks && p->n_args > 1 && has_mask(&operands[1])) call->flags |= LB_OP_DECISION;
    return !py.PyErr_Occurred();
}

static lb_pending *begin_taken(lb_object_intake *intake, lb_recorded_call *call)
{
    lb_binding *b = intake->binding;
    lb_err err = LB_ERR_INIT;
    lb_pending *pending = NULL;
    void *state = lb_binding_enter_with(b, intake, NULL);
    if (b->recorder)
        lb_recorder_op_begin(b->recorder, call, &pending, &err);
    else
        lb_fail(&err, LB_ERR_STATE, "the recording is closed");
    lb_binding_leave(b, state);
    if (!pending) lb_binding_raise(b, &err);
    return pending;
}

lb_pending *lb_dispatch_op_begin(lb_binding *b, lb_dispatch_plan *plan, PyObject *args, PyObject *kwargs)
{
    lb_thread *thread = lb_place_thread_get(b);
    lb_recorded_call call = LB_CALL_INIT;
    if (!thread || !lb_place_op(b, thread, plan, &call)) return NULL;
    lb_object_intake intake = lb_object_intake_begin(b, thread);
    lb_pending *pending = take_call(&intake, plan, args, kwargs, &call) ? begin_taken(&intake, &call) : NULL;
    lb_object_intake_end(&intake);
    return pending;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

typedef struct results {
    lb_recorded_operand *items;
    uint32_t n, room;
} results;

static bool add_result(lb_object_intake *intake, results *r, PyObject *object, int depth);

static bool add_sequence(lb_object_intake *intake, results *r, PyObject *sequence, bool tuple, int depth)
{
    Py_ssize_t n = tuple ? py.PyTuple_Size(sequence) : py.PyList_Size(sequence);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!add_result(intake, r, tuple ? py.PyTuple_GetItem(sequence, i) : py.PyList_GetItem(sequence, i), depth + 1))
            return false;
    return n >= 0;
}

static lb_recorded_operand *result_room(lb_object_intake *intake, results *r, uint32_t more)
{
    if (r->n + more > r->room) {
        uint32_t room = 2 * r->room + more + 8;
        lb_recorded_operand *items = lb_object_intake_room(intake, room * sizeof *items);
        if (!items) return NULL;
        if (r->n) memcpy(items, r->items, r->n * sizeof *items);
        r->items = items;
        r->room = room;
    }
    return &r->items[r->n];
}

/* Tensors and what is not there, in order; lists are flattened, as their schema has it, and sparse tensors into their
 * parts. */
static bool add_result(lb_object_intake *intake, results *r, PyObject *object, int depth)
{
    const lb_binding *b = intake->binding;
    if (!object || depth > 8) return false;
    PyObject *type = py.PyObject_Type(object);
    py.Py_DecRef(type);
    if (type == b->of.tuple || type == b->of.list) return add_sequence(intake, r, object, type == b->of.tuple, depth);
    lb_recorded_operand taken;
    if (!lb_object_take_operand(intake, object, 0, &taken)) return false;
    const bool parts = taken.tag == LB_ARG_LIST;
    lb_recorded_operand *room = result_room(intake, r, parts ? taken.count : 1);
    if (!room) return false;
    if (parts && taken.count) memcpy(room, taken.u.items, taken.count * sizeof *room);
    if (!parts) *room = taken;
    r->n += parts ? taken.count : 1;
    return true;
}

/* A tensor became a number of the host's. */
static lb_status add_numbers(lb_recorder *recorder, const results *r, lb_err *err)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const lb_recorded_operand *o = &r->items[i];
        if (o->tag == LB_ARG_FLOAT) LB_TRY(lb_recorder_scalar(recorder, "item", o->u.f, err));
        if (o->tag == LB_ARG_INT || o->tag == LB_ARG_BOOL)
            LB_TRY(lb_recorder_scalar(recorder, "item", (double)o->u.i, err));
    }
    return LB_OK;
}

/* `pending` is gone whatever happens. */
static bool end_pending(lb_object_intake *intake, lb_pending *pending, PyObject *out, bool defer, uint32_t *row)
{
    lb_binding *b = intake->binding;
    results r = {NULL, 0, 0};
    const bool taken = out == b->of.none || add_result(intake, &r, out, 0);
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_ERR_STATE;
    void *state = lb_binding_enter_with(b, intake, pending);
    if (b->recorder && !taken)
        lb_recorder_op_failed(b->recorder, pending);
    else if (b->recorder && defer)
        status = lb_recorder_op_defer(b->recorder, pending, r.items, r.n, row, &err);
    else if (b->recorder)
        status = lb_recorder_op_end(b->recorder, pending, r.items, r.n, row, &err);
    if (status == LB_OK) status = add_numbers(b->recorder, &r, &err);
    lb_binding_leave(b, state);
    if (taken && status != LB_OK) lb_binding_raise(b, &err);
    return taken && status == LB_OK;
}

bool lb_dispatch_op_end(lb_binding *b, lb_pending *pending, PyObject *result, bool defer, uint32_t *row)
{
    lb_thread *thread = lb_place_thread_get(b);
    if (!thread) return false;
    lb_object_intake intake = lb_object_intake_begin(b, thread);
    bool fine = end_pending(&intake, pending, result, defer, row);
    lb_object_intake_end(&intake);
    return fine;
}

static void op_failed(lb_binding *b, lb_pending *pending)
{
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_op_failed(b->recorder, pending);
    pthread_mutex_unlock(&b->lock);
}

/* ---- the handler ------------------------------------------------------------------------------------------------- */

typedef struct asked {
    PyObject *func, *types, *args, *kwargs; /* borrowed; kwargs NULL when there are none */
} asked;

static PyObject *call_through(PyObject *callee, const asked *a)
{
    return py.PyObject_Call(callee, a->args, a->kwargs);
}

/* An op that raised: it is noted, and the host's exception goes on. */
static void note_failed(lb_binding *b, lb_dispatch_plan *plan, const asked *a)
{
    PyObject *type, *value, *trace;
    py.PyErr_Fetch(&type, &value, &trace);
    lb_pending *pending = lb_dispatch_op_begin(b, plan, a->args, a->kwargs);
    if (pending)
        op_failed(b, pending);
    else
        lb_binding_swallow(b);
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, trace);
}

/* After a failure of ours: the host gets what the op gave, unless Ctrl-C was pressed meanwhile. */
static PyObject *despite(lb_binding *b, PyObject *out)
{
    if (lb_binding_swallow(b)) return out;
    py.Py_DecRef(out);
    return NULL;
}

static PyObject *record_by_halves(lb_binding *b, lb_dispatch_plan *plan, const asked *a)
{
    lb_pending *pending = lb_dispatch_op_begin(b, plan, a->args, a->kwargs);
    if (!pending && !lb_binding_swallow(b)) return NULL;
    PyObject *out = call_through(plan->callee, a);
    if (!pending) return out;
    if (!out) {
        op_failed(b, pending);
        return NULL;
    }
    if (!b->live) return out;
    return lb_dispatch_op_end(b, pending, out, false, NULL) ? out : despite(b, out);
}

/* A tensor of a type that has no bytes: the program works out shapes by running ops on nothing. */
static bool is_fake(lb_binding *b, PyObject *out)
{
    PyObject *type = py.PyObject_Type(out);
    py.Py_DecRef(type);
    if (type == b->of.tensor || type == b->of.tuple || type == b->of.list || out == b->of.none) return false;
    PyObject *answer = py.PyObject_CallFunctionObjArgs(b->of.is_fake, type, NULL);
    const bool fake = is_true(answer);
    if (!answer) py.PyErr_Clear();
    py.Py_DecRef(answer);
    return fake;
}

static PyObject *record_whole(lb_binding *b, lb_dispatch_plan *plan, const asked *a)
{
    PyObject *out = call_through(plan->callee, a);
    if (!out) {
        if (b->live) note_failed(b, plan, a);
        return NULL;
    }
    if (!b->live || is_fake(b, out)) return out;
    lb_pending *pending = lb_dispatch_op_begin(b, plan, a->args, a->kwargs);
    return pending && lb_dispatch_op_end(b, pending, out, false, NULL) ? out : despite(b, out);
}

/* -1 with an exception. */
static int comes_in_parts(lb_binding *b, lb_dispatch_plan *plan, PyObject *func)
{
    if (plan->decomposes == 2) return 1;
    PyObject *inference = py.PyObject_CallFunctionObjArgs(b->of.inference_enabled, NULL);
    py.Py_DecRef(inference);
    if (!inference) return -1;
    if (inference != b->of.true_) return 0;
    if (plan->decomposes < 0) {
        PyObject *can = py.PyObject_CallMethodObjArgs(func, b->names._can_decompose, NULL);
        plan->decomposes = (int8_t)is_true(can);
        py.Py_DecRef(can);
        if (!can) return -1;
    }
    return plan->decomposes;
}

/* In inference mode composite ops arrive whole, and some always do. NULL with an exception; NotImplemented: record it
 * as it is. */
static PyObject *decomposed(lb_binding *b, lb_dispatch_plan *plan, PyObject *mode, const asked *a)
{
    const int parts = comes_in_parts(b, plan, a->func);
    if (parts < 0) return NULL;
    if (!parts) {
        py.Py_IncRef(b->of.not_implemented);
        return b->of.not_implemented;
    }
    return py.PyObject_CallFunctionObjArgs(b->of.decompose, mode, a->func, a->args, a->kwargs ? a->kwargs : b->of.none,
                                           NULL);
}

static void settle_all(lb_binding *b)
{
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_settle(b->recorder, 0);
    pthread_mutex_unlock(&b->lock);
}

static PyObject *record(lb_binding *b, PyObject *mode, const asked *a)
{
    lb_thread *thread = lb_place_thread_get(b);
    lb_dispatch_plan *plan = thread ? plan_for(b, a->func) : NULL;
    if (!plan) return lb_binding_swallow(b) ? call_through(a->func, a) : NULL;
    if (plan->flags & LB_OP_COMPOSITE) settle_all(b); /* what it writes is unknown */
    if (plan->ignored || lb_place_thread_is_busy(thread)) return call_through(plan->callee, a);
    PyObject *out = decomposed(b, plan, mode, a);
    if (out != b->of.not_implemented) return out;
    py.Py_DecRef(out);
    if (plan->collective)
        return py.PyObject_CallFunctionObjArgs(b->of.collective, a->func, a->args, a->kwargs ? a->kwargs : b->of.none,
                                               NULL);
    if (plan->writing) {
        Py_ssize_t n = py.PyTuple_Size(a->args);
        if (plan->writing_switch < 0 || is_true(argument(plan, a->args, n, a->kwargs, plan->writing_switch)))
            plan = plan->writing;
    }
    return plan->two_halves ? record_by_halves(b, plan, a) : record_whole(b, plan, a);
}

/* 1: one of the types unwraps itself, and its inner ops come back to us; 2: one has no bytes, and there is nothing to
 * record; -1 with an exception. */
static int is_foreign(lb_binding *b, PyObject *types)
{
    PyObject *type = py.PyObject_Type(types);
    py.Py_DecRef(type);
    if (type == b->of.tuple && py.PyTuple_Size(types) == 0) return 0;
    PyObject *answer = py.PyObject_CallFunctionObjArgs(b->of.is_foreign, types, NULL);
    int foreign = answer ? (int)py.PyLong_AsLongLong(answer) : -1;
    py.Py_DecRef(answer);
    return foreign;
}

/* func, types, args=(), kwargs=None: by position as torch gives them, or by name. False: too few. */
static bool read_arguments(PyObject *const *args, Py_ssize_t n, PyObject *names, asked *a)
{
    static const char *const known[] = {"func", "types", "args", "kwargs"};
    PyObject *found[4] = {NULL, NULL, NULL, NULL};
    for (Py_ssize_t i = 0; i < n && i < 4; i++) found[i] = args[i];
    for (Py_ssize_t i = 0; names && i < py.PyTuple_Size(names); i++) {
        const char *name = py.PyUnicode_AsUTF8AndSize(py.PyTuple_GetItem(names, i), NULL);
        for (int k = 0; name && k < 4; k++)
            if (strcmp(name, known[k]) == 0) found[k] = args[n + i];
    }
    *a = (asked){found[0], found[1], found[2], found[3]};
    return a->func && a->types;
}

/* Between steps, too, a frame less where the op is known. */
static PyObject *call_unrecorded(lb_binding *b, const asked *a)
{
    const lb_dispatch_plan *plan = lb_dispatch_plan_find(b, a->func);
    return call_through(plan && !(plan->flags & LB_OP_COMPOSITE) ? plan->callee : a->func, a);
}

/* A step may begin with this op. False with an exception that is none of ours. */
static bool tell(lb_binding *b, const asked *a)
{
    PyObject *told =
        py.PyObject_CallFunctionObjArgs(b->of.saw, a->func, a->args, a->kwargs ? a->kwargs : b->of.none, NULL);
    py.Py_DecRef(told);
    return told || lb_binding_swallow(b);
}

static PyObject *dispatch(PyObject *mode, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    lb_binding *b = lb_active;
    asked a;
    if (!read_arguments(args, n, names, &a)) {
        py.PyErr_SetString(b->of.exception, "__torch_dispatch__ without func and types");
        return NULL;
    }
    PyObject *made = NULL;
    if (!a.args)
        made = a.args = py.PyTuple_New(0);
    else
        py.Py_IncRef(made = a.args);
    if (a.kwargs == b->of.none) a.kwargs = NULL;
    PyObject *type = py.PyObject_Type(a.args);
    py.Py_DecRef(type);
    if (type != b->of.tuple) { /* torch's own Python code is not strict about it */
        PyObject *tuple = py.PySequence_Tuple(a.args);
        py.Py_DecRef(made);
        made = a.args = tuple;
        if (!tuple) return NULL;
    }
    PyObject *out = NULL;
    b->inside++;
    if (b->watching && !lb_python_is_copying() && !tell(b, &a)) {
        b->inside--;
        py.Py_DecRef(made);
        return NULL;
    }
    const bool live = b->live && !lb_python_is_copying();
    int foreign = live ? is_foreign(b, a.types) : 0;
    if (foreign < 0 && !lb_binding_swallow(b)) {
        out = NULL;
    } else if (foreign == 1) {
        py.Py_IncRef(out = b->of.not_implemented);
    } else {
        out = live && !foreign ? record(b, mode, &a) : call_unrecorded(b, &a);
    }
    b->inside--;
    py.Py_DecRef(made);
    return out;
}

PyMethodDef lb_dispatch_method = {"__torch_dispatch__", dispatch, LB_PYTHON_FASTCALL, NULL};
