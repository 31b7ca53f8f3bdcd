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

lb_dispatch_plan *lb_dispatch_plan_find(const lb_binding *binding, PyObject *func)
{
    LB_HASH_EACH(row, &binding->plan_of_func, (uint64_t)(uintptr_t)func)
    if (binding->plans[row]->func == func) return binding->plans[row];
    return NULL;
}

static void plan_free(lb_dispatch_plan *plan)
{
    if (!plan) return;
    PyObject *owned[] = {plan->func, plan->callee, plan->names, plan->defaults};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) py.Py_DecRef(owned[i]);
    plan_free(plan->writing);
    free(plan->name);
    free(plan->arg_flags);
    free(plan);
}

void lb_dispatch_plans_release(lb_binding *binding)
{
    for (uint32_t i = 0; i < binding->plan_of_func.n; i++) plan_free(binding->plans[i]);
    free(binding->plans);
    binding->plans = NULL;
    lb_hash_release(&binding->plan_of_func);
}

static bool no_memory(lb_binding *binding)
{
    lb_err err = LB_ERR_INIT;
    lb_fail(&err, LB_ERR_NOMEM, "out of memory in the recorder");
    lb_binding_raise(binding, &err);
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
static lb_dispatch_plan *plan_of(lb_binding *binding, PyObject *description)
{
    lb_dispatch_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return no_memory(binding), NULL;
    plan->func = owned_item(description, "func");
    plan->callee = owned_item(description, "callee");
    plan->names = owned_item(description, "names");
    plan->defaults = owned_item(description, "defaults");
    PyObject *name = py.PyDict_GetItemString(description, "name"),
             *flags = py.PyDict_GetItemString(description, "arg_flags");
    const char *text = name ? py.PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    char *bytes = NULL;
    Py_ssize_t n = 0;
    if (flags) py.PyBytes_AsStringAndSize(flags, &bytes, &n);
    plan->flags = (uint32_t)integer_item(description, "flags");
    plan->writing_switch = (int)integer_item(description, "writing_switch");
    plan->chance = (int)integer_item(description, "chance");
    plan->non_blocking = (int)integer_item(description, "non_blocking");
    plan->ignored = integer_item(description, "ignored");
    plan->collective = integer_item(description, "collective");
    plan->masks = integer_item(description, "masks");
    plan->two_halves = plan->collective || plan->flags & LB_OP_MUTABLE;
    plan->decomposes = integer_item(description, "in_parts") ? 2 : -1;
    if (plan->func && plan->callee && plan->names && plan->defaults && text && bytes && !py.PyErr_Occurred() &&
        py.PyTuple_Size(plan->names) == n && py.PyTuple_Size(plan->defaults) == n) {
        plan->name = strdup(text);
        plan->arg_flags = malloc((size_t)n + 1);
        if (plan->name && plan->arg_flags) {
            binding->negates |= strcmp(plan->name, "aten::_neg_view") == 0;
            memcpy(plan->arg_flags, bytes, (size_t)n);
            plan->n_args = (uint32_t)n;
            return plan;
        }
        no_memory(binding);
    }
    if (!py.PyErr_Occurred()) py.PyErr_SetString(binding->of.exception, "the description of an op is not whole");
    plan_free(plan);
    return NULL;
}

bool lb_dispatch_plan_add(lb_binding *binding, PyObject *description)
{
    lb_dispatch_plan *plan = plan_of(binding, description);
    if (!plan) return false;
    PyObject *writing = py.PyDict_GetItemString(description, "writing");
    if (writing && writing != binding->of.none && !(plan->writing = plan_of(binding, writing))) {
        plan_free(plan);
        return false;
    }
    const uint32_t n = binding->plan_of_func.n;
    if (lb_dispatch_plan_find(binding, plan->func)) { /* two threads met the op at once */
        plan_free(plan);
        return true;
    }
    lb_dispatch_plan **plans = lb_array_grow(binding->plans, n, sizeof *plans);
    if (plans) binding->plans = plans, plans[n] = plan;
    if (plans && lb_hash_add(&binding->plan_of_func, (uint64_t)(uintptr_t)plan->func, n)) return true;
    plan_free(plan);
    return no_memory(binding);
}

/* Borrowed; Python works it out at the first sight of an op. */
static lb_dispatch_plan *plan_for(lb_binding *binding, PyObject *func)
{
    lb_dispatch_plan *plan = lb_dispatch_plan_find(binding, func);
    if (plan) return plan;
    PyObject *done = py.PyObject_CallFunctionObjArgs(binding->of.plan_for, func, NULL);
    py.Py_DecRef(done);
    if (!done) return NULL;
    plan = lb_dispatch_plan_find(binding, func);
    if (!plan) py.PyErr_SetString(binding->of.exception, "an op has no plan");
    return plan;
}

/* ---- a call as operands ------------------------------------------------------------------------------------------ */

/* What the call gives for argument `a`, borrowed; the default where it gives nothing. NULL with an exception. */
static PyObject *argument(const lb_dispatch_plan *plan, PyObject *args, Py_ssize_t n, PyObject *kwargs, Py_ssize_t a)
{
    if (a < n) return py.PyTuple_GetItem(args, a);
    PyObject *given = kwargs ? py.PyDict_GetItemWithError(kwargs, py.PyTuple_GetItem(plan->names, a)) : NULL;
    if (given || py.PyErr_Occurred()) return given;
    return py.PyTuple_GetItem(plan->defaults, a);
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

static bool take_call(lb_object_intake *intake, const lb_dispatch_plan *plan, PyObject *args, PyObject *kwargs,
                      lb_recorded_call *call)
{
    const Py_ssize_t n = py.PyTuple_Size(args);
    lb_recorded_operand *operands = lb_object_intake_room(intake, (plan->n_args + 1) * sizeof *operands);
    if (n < 0 || !operands) return false;
    for (uint32_t a = 0; a < plan->n_args; a++) {
        PyObject *object = argument(plan, args, n, kwargs, a);
        lb_recorded_operand *operand = &operands[a];
        if (!object || !lb_object_take_operand(intake, object, 0, operand)) return false;
        operand->flags = plan->arg_flags[a] & (LB_OPERAND_WRITTEN | LB_OPERAND_OVERWRITTEN | LB_OPERAND_CHANGED);
        if (plan->arg_flags[a] & LB_INT_MEANS_FLOAT && operand->tag == LB_ARG_INT)
            *operand = (lb_recorded_operand){.tag = LB_ARG_FLOAT, .flags = operand->flags, .u.f = (double)operand->u.i};
    }
    call->name = plan->name;
    call->args = operands;
    call->n_args = plan->n_args;
    call->flags |= plan->flags;
    /* Few ops compute results of a sparse tensor again. */
    if (intake->in_parts && !(plan->flags & LB_OP_VIEW)) call->flags |= LB_OP_COMPOSITE;
    if (plan->chance >= 0 && is_true(argument(plan, args, n, kwargs, plan->chance))) call->flags |= LB_OP_RANDOM;
    call->non_blocking = plan->non_blocking >= 0 && is_true(argument(plan, args, n, kwargs, plan->non_blocking));
    if (plan->masks && plan->n_args > 1 && has_mask(&operands[1])) call->flags |= LB_OP_DECISION;
    return !py.PyErr_Occurred();
}

static lb_pending *begin_taken(lb_object_intake *intake, lb_recorded_call *call)
{
    lb_binding *binding = intake->binding;
    lb_err err = LB_ERR_INIT;
    lb_pending *pending = NULL;
    void *state = lb_binding_enter_with(binding, intake, NULL);
    if (binding->recorder)
        lb_recorder_op_begin(binding->recorder, call, &pending, &err);
    else
        lb_fail(&err, LB_ERR_STATE, "the recording is closed");
    lb_binding_leave(binding, state);
    if (!pending) lb_binding_raise(binding, &err);
    return pending;
}

lb_pending *lb_dispatch_op_begin(lb_binding *binding, lb_dispatch_plan *plan, PyObject *args, PyObject *kwargs)
{
    lb_thread *thread = lb_place_thread_get(binding);
    lb_recorded_call call = LB_CALL_INIT;
    if (!thread || !lb_place_op(binding, thread, plan, &call)) return NULL;
    lb_object_intake intake = lb_object_intake_begin(binding, thread);
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

static bool add_sequence(lb_object_intake *intake, results *results, PyObject *sequence, bool tuple, int depth)
{
    Py_ssize_t n = tuple ? py.PyTuple_Size(sequence) : py.PyList_Size(sequence);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!add_result(intake, results, tuple ? py.PyTuple_GetItem(sequence, i) : py.PyList_GetItem(sequence, i),
                        depth + 1))
            return false;
    return n >= 0;
}

static lb_recorded_operand *result_room(lb_object_intake *intake, results *results, uint32_t more)
{
    if (results->n + more > results->room) {
        uint32_t room = 2 * results->room + more + 8;
        lb_recorded_operand *items = lb_object_intake_room(intake, room * sizeof *items);
        if (!items) return NULL;
        if (results->n) memcpy(items, results->items, results->n * sizeof *items);
        results->items = items;
        results->room = room;
    }
    return &results->items[results->n];
}

/* Tensors and what is not there, in order; lists are flattened, as their schema has it, and sparse tensors into their
 * parts. */
static bool add_result(lb_object_intake *intake, results *results, PyObject *object, int depth)
{
    const lb_binding *binding = intake->binding;
    if (!object || depth > 8) return false;
    PyObject *type = py.PyObject_Type(object);
    py.Py_DecRef(type);
    if (type == binding->of.tuple || type == binding->of.list)
        return add_sequence(intake, results, object, type == binding->of.tuple, depth);
    lb_recorded_operand taken;
    if (!lb_object_take_operand(intake, object, 0, &taken)) return false;
    const bool parts = taken.tag == LB_ARG_LIST;
    lb_recorded_operand *room = result_room(intake, results, parts ? taken.count : 1);
    if (!room) return false;
    if (parts && taken.count) memcpy(room, taken.u.items, taken.count * sizeof *room);
    if (!parts) *room = taken;
    results->n += parts ? taken.count : 1;
    return true;
}

/* A tensor became a number of the host's. */
static lb_status add_numbers(lb_recorder *recorder, const results *results, lb_err *err)
{
    for (uint32_t i = 0; i < results->n; i++) {
        const lb_recorded_operand *operand = &results->items[i];
        if (operand->tag == LB_ARG_FLOAT) LB_TRY(lb_recorder_scalar(recorder, "item", operand->u.f, err));
        if (operand->tag == LB_ARG_INT || operand->tag == LB_ARG_BOOL)
            LB_TRY(lb_recorder_scalar(recorder, "item", (double)operand->u.i, err));
    }
    return LB_OK;
}

/* `pending` is gone whatever happens. */
static bool end_pending(lb_object_intake *intake, lb_pending *pending, PyObject *out, bool defer, uint32_t *row)
{
    lb_binding *binding = intake->binding;
    results results = {NULL, 0, 0};
    const bool taken = out == binding->of.none || add_result(intake, &results, out, 0);
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_ERR_STATE;
    void *state = lb_binding_enter_with(binding, intake, pending);
    if (binding->recorder && !taken)
        lb_recorder_op_failed(binding->recorder, pending);
    else if (binding->recorder && defer)
        status = lb_recorder_op_defer(binding->recorder, pending, results.items, results.n, row, &err);
    else if (binding->recorder)
        status = lb_recorder_op_end(binding->recorder, pending, results.items, results.n, row, &err);
    if (status == LB_OK) status = add_numbers(binding->recorder, &results, &err);
    lb_binding_leave(binding, state);
    if (taken && status != LB_OK) lb_binding_raise(binding, &err);
    return taken && status == LB_OK;
}

bool lb_dispatch_op_end(lb_binding *binding, lb_pending *pending, PyObject *result, bool defer, uint32_t *row)
{
    lb_thread *thread = lb_place_thread_get(binding);
    if (!thread) return false;
    lb_object_intake intake = lb_object_intake_begin(binding, thread);
    bool fine = end_pending(&intake, pending, result, defer, row);
    lb_object_intake_end(&intake);
    return fine;
}

static void op_failed(lb_binding *binding, lb_pending *pending)
{
    lb_binding_lock(binding);
    if (binding->recorder) lb_recorder_op_failed(binding->recorder, pending);
    pthread_mutex_unlock(&binding->lock);
}

/* ---- the handler ------------------------------------------------------------------------------------------------- */

typedef struct asked {
    PyObject *func, *types, *args, *kwargs; /* borrowed; kwargs NULL when there are none */
} asked;

static PyObject *call_through(PyObject *callee, const asked *asked)
{
    return py.PyObject_Call(callee, asked->args, asked->kwargs);
}

/* An op that raised: it is noted, and the host's exception goes on. */
static void note_failed(lb_binding *binding, lb_dispatch_plan *plan, const asked *asked)
{
    PyObject *type, *value, *trace;
    py.PyErr_Fetch(&type, &value, &trace);
    lb_pending *pending = lb_dispatch_op_begin(binding, plan, asked->args, asked->kwargs);
    if (pending)
        op_failed(binding, pending);
    else
        lb_binding_swallow(binding);
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, trace);
}

/* After a failure of ours: the host gets what the op gave, unless Ctrl-C was pressed meanwhile. */
static PyObject *despite(lb_binding *binding, PyObject *out)
{
    if (lb_binding_swallow(binding)) return out;
    py.Py_DecRef(out);
    return NULL;
}

static PyObject *record_by_halves(lb_binding *binding, lb_dispatch_plan *plan, const asked *asked)
{
    lb_pending *pending = lb_dispatch_op_begin(binding, plan, asked->args, asked->kwargs);
    if (!pending && !lb_binding_swallow(binding)) return NULL;
    PyObject *out = call_through(plan->callee, asked);
    if (!pending) return out;
    if (!out) {
        op_failed(binding, pending);
        return NULL;
    }
    if (!binding->live) return out;
    return lb_dispatch_op_end(binding, pending, out, false, NULL) ? out : despite(binding, out);
}

/* A tensor of a type that has no bytes: the program works out shapes by running ops on nothing. */
static bool is_fake(lb_binding *binding, PyObject *out)
{
    PyObject *type = py.PyObject_Type(out);
    py.Py_DecRef(type);
    if (type == binding->of.tensor || type == binding->of.tuple || type == binding->of.list || out == binding->of.none)
        return false;
    PyObject *answer = py.PyObject_CallFunctionObjArgs(binding->of.is_fake, type, NULL);
    const bool fake = is_true(answer);
    if (!answer) py.PyErr_Clear();
    py.Py_DecRef(answer);
    return fake;
}

static PyObject *record_whole(lb_binding *binding, lb_dispatch_plan *plan, const asked *asked)
{
    PyObject *out = call_through(plan->callee, asked);
    if (!out) {
        if (binding->live) note_failed(binding, plan, asked);
        return NULL;
    }
    if (!binding->live || is_fake(binding, out)) return out;
    lb_pending *pending = lb_dispatch_op_begin(binding, plan, asked->args, asked->kwargs);
    return pending && lb_dispatch_op_end(binding, pending, out, false, NULL) ? out : despite(binding, out);
}

/* -1 with an exception. */
static int comes_in_parts(lb_binding *binding, lb_dispatch_plan *plan, PyObject *func)
{
    if (plan->decomposes == 2) return 1;
    PyObject *inference = py.PyObject_CallFunctionObjArgs(binding->of.inference_enabled, NULL);
    py.Py_DecRef(inference);
    if (!inference) return -1;
    if (inference != binding->of.true_) return 0;
    if (plan->decomposes < 0) {
        PyObject *can = py.PyObject_CallMethodObjArgs(func, binding->names._can_decompose, NULL);
        plan->decomposes = (int8_t)is_true(can);
        py.Py_DecRef(can);
        if (!can) return -1;
    }
    return plan->decomposes;
}

/* In inference mode composite ops arrive whole, and some always do. NULL with an exception; NotImplemented: record it
 * as it is. */
static PyObject *decomposed(lb_binding *binding, lb_dispatch_plan *plan, PyObject *mode, const asked *asked)
{
    const int parts = comes_in_parts(binding, plan, asked->func);
    if (parts < 0) return NULL;
    if (!parts) {
        py.Py_IncRef(binding->of.not_implemented);
        return binding->of.not_implemented;
    }
    return py.PyObject_CallFunctionObjArgs(binding->of.decompose, mode, asked->func, asked->args,
                                           asked->kwargs ? asked->kwargs : binding->of.none, NULL);
}

static void settle_all(lb_binding *binding)
{
    lb_binding_lock(binding);
    if (binding->recorder) lb_recorder_settle(binding->recorder, 0);
    pthread_mutex_unlock(&binding->lock);
}

static PyObject *record(lb_binding *binding, PyObject *mode, const asked *asked)
{
    lb_thread *thread = lb_place_thread_get(binding);
    lb_dispatch_plan *plan = thread ? plan_for(binding, asked->func) : NULL;
    if (!plan) return lb_binding_swallow(binding) ? call_through(asked->func, asked) : NULL;
    if (plan->flags & LB_OP_COMPOSITE) settle_all(binding); /* what it writes is unknown */
    if (plan->ignored || lb_place_thread_is_busy(thread)) return call_through(plan->callee, asked);
    PyObject *out = decomposed(binding, plan, mode, asked);
    if (out != binding->of.not_implemented) return out;
    py.Py_DecRef(out);
    if (plan->collective)
        return py.PyObject_CallFunctionObjArgs(binding->of.collective, asked->func, asked->args,
                                               asked->kwargs ? asked->kwargs : binding->of.none, NULL);
    if (plan->writing) {
        Py_ssize_t n = py.PyTuple_Size(asked->args);
        if (plan->writing_switch < 0 || is_true(argument(plan, asked->args, n, asked->kwargs, plan->writing_switch)))
            plan = plan->writing;
    }
    return plan->two_halves ? record_by_halves(binding, plan, asked) : record_whole(binding, plan, asked);
}

/* 1: one of the types unwraps itself, and its inner ops come back to us; 2: one has no bytes, and there is nothing to
 * record; -1 with an exception. */
static int is_foreign(lb_binding *binding, PyObject *types)
{
    PyObject *type = py.PyObject_Type(types);
    py.Py_DecRef(type);
    if (type == binding->of.tuple && py.PyTuple_Size(types) == 0) return 0;
    PyObject *answer = py.PyObject_CallFunctionObjArgs(binding->of.is_foreign, types, NULL);
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
static PyObject *call_unrecorded(lb_binding *binding, const asked *asked)
{
    const lb_dispatch_plan *plan = lb_dispatch_plan_find(binding, asked->func);
    return call_through(plan && !(plan->flags & LB_OP_COMPOSITE) ? plan->callee : asked->func, asked);
}

/* A step may begin with this op. False with an exception that is none of ours. */
static bool tell(lb_binding *binding, const asked *asked)
{
    PyObject *told = py.PyObject_CallFunctionObjArgs(binding->of.saw, asked->func, asked->args,
                                                     asked->kwargs ? asked->kwargs : binding->of.none, NULL);
    py.Py_DecRef(told);
    return told || lb_binding_swallow(binding);
}

static PyObject *dispatch(PyObject *mode, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    lb_binding *binding = lb_active;
    asked asked;
    if (!read_arguments(args, n, names, &asked)) {
        py.PyErr_SetString(binding->of.exception, "__torch_dispatch__ without func and types");
        return NULL;
    }
    PyObject *made = NULL;
    if (!asked.args)
        made = asked.args = py.PyTuple_New(0);
    else
        py.Py_IncRef(made = asked.args);
    if (asked.kwargs == binding->of.none) asked.kwargs = NULL;
    PyObject *type = py.PyObject_Type(asked.args);
    py.Py_DecRef(type);
    if (type != binding->of.tuple) { /* torch's own Python code is not strict about it */
        PyObject *tuple = py.PySequence_Tuple(asked.args);
        py.Py_DecRef(made);
        made = asked.args = tuple;
        if (!tuple) return NULL;
    }
    PyObject *out = NULL;
    binding->inside++;
    if (binding->watching && !lb_python_is_copying() && !tell(binding, &asked)) {
        binding->inside--;
        py.Py_DecRef(made);
        return NULL;
    }
    const bool live = binding->live && !lb_python_is_copying();
    int foreign = live ? is_foreign(binding, asked.types) : 0;
    if (foreign < 0 && !lb_binding_swallow(binding)) {
        out = NULL;
    } else if (foreign == 1) {
        py.Py_IncRef(out = binding->of.not_implemented);
    } else {
        out = live && !foreign ? record(binding, mode, &asked) : call_unrecorded(binding, &asked);
    }
    binding->inside--;
    py.Py_DecRef(made);
    return out;
}

PyMethodDef lb_dispatch_method = {"__torch_dispatch__", dispatch, LB_PYTHON_FASTCALL, NULL};
