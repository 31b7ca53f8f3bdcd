/* What binds a Python process to its recorder: the objects each was given, the lock between threads, and failures on
 * their way into Python. See python_binding.h; capture/lastbit/torch/library.py is the other side. */
#include "binding/python_call.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

#define MUCH (256u << 10) /* bytes whose reading lets other threads of Python run */

/* ---- errors and locks -------------------------------------------------------------------------------------------- */

void lb_binding_lock(lb_binding *binding)
{
    if (pthread_mutex_trylock(&binding->lock) == 0) return;
    void *state = py.PyEval_SaveThread();
    pthread_mutex_lock(&binding->lock);
    py.PyEval_RestoreThread(state);
}

void *lb_binding_enter(lb_binding *binding, uint64_t bytes)
{
    if (bytes <= MUCH) {
        lb_binding_lock(binding);
        return NULL;
    }
    void *state = py.PyEval_SaveThread();
    pthread_mutex_lock(&binding->lock);
    return state;
}

void *lb_binding_enter_with(lb_binding *binding, const lb_object_intake *intake, const lb_pending *pending)
{
    lb_devices_wait(binding, intake, pending);
    return lb_binding_enter(binding, intake->n_on_devices ? UINT64_MAX : intake->bytes);
}

void lb_binding_leave(lb_binding *binding, void *state)
{
    lb_unheld unheld;
    lb_hold_take_unheld(binding, &unheld);
    pthread_mutex_unlock(&binding->lock);
    if (state) py.PyEval_RestoreThread(state);
    lb_hold(binding, &unheld);
}

void lb_binding_raise(lb_binding *binding, const lb_err *err)
{
    PyObject *status = py.PyLong_FromLongLong(err->status), *message = py.PyUnicode_FromString(err->message);
    PyObject *error =
        status && message ? py.PyObject_CallFunctionObjArgs(binding->of.failed, status, message, NULL) : NULL;
    if (error) py.PyErr_SetObject(binding->of.failed, error);
    py.Py_DecRef(error);
    py.Py_DecRef(message);
    py.Py_DecRef(status);
}

bool lb_binding_swallow(lb_binding *binding)
{
    PyObject *type, *value, *trace;
    if (!py.PyErr_Occurred()) return true;
    if (!py.PyErr_ExceptionMatches(binding->of.exception)) return false;
    py.PyErr_Fetch(&type, &value, &trace);
    py.PyErr_NormalizeException(&type, &value, &trace);
    binding->live = false;
    PyObject *done = value ? py.PyObject_CallFunctionObjArgs(binding->of.fail, value, NULL) : NULL;
    py.Py_DecRef(done);
    py.Py_DecRef(type);
    py.Py_DecRef(value);
    py.Py_DecRef(trace);
    if (!py.PyErr_Occurred()) return true;
    if (!py.PyErr_ExceptionMatches(binding->of.exception)) return false;
    py.PyErr_Clear();
    return true;
}

/* ---- the binding ------------------------------------------------------------------------------------------------- */

static void binding_free(lb_binding *binding)
{
    if (!binding) return;
    PyObject **objects = (PyObject **)&binding->of, **names = (PyObject **)&binding->names;
    for (size_t i = 0; i < sizeof binding->of / sizeof *objects; i++) py.Py_DecRef(objects[i]);
    for (size_t i = 0; i < sizeof binding->names / sizeof *names; i++) py.Py_DecRef(names[i]);
    for (size_t i = 0; i < binding->n_dtypes; i++) py.Py_DecRef(binding->dtypes[i].dtype);
    for (size_t i = 0; i < binding->n_texts; i++) free(binding->texts[i]);
    lb_dispatch_plans_release(binding);
    lb_hold_nothing(binding);
    free(binding->held);
    free(binding->dtypes);
    free(binding->texts);
    lb_object_storages_release(binding);
    lb_lines_release(binding);
    pthread_mutex_destroy(&binding->lock);
    free(binding);
}

static void destroy(PyObject *capsule)
{
    lb_binding *binding = binding_of(capsule);
    if (!binding) return;
    if (binding == lb_active)
        binding->orphan = true; /* a mode may be active still: the next binding frees this one */
    else
        binding_free(binding);
}

/* {dtype: name} -> the ones that an archive can hold. */
static bool take_dtypes(lb_binding *binding, PyObject *dtypes)
{
    PyObject *dtype, *name;
    for (Py_ssize_t at = 0; dtypes && py.PyDict_Next(dtypes, &at, &dtype, &name);) {
        const char *known = py.PyUnicode_AsUTF8AndSize(name, NULL);
        lb_dtype code = known ? lb_dtype_parse(known) : (lb_dtype)0;
        lb_dtype_entry *entries = code ? lb_array_grow(binding->dtypes, binding->n_dtypes, sizeof *entries) : NULL;
        if (code && !entries) return false;
        if (!code) continue;
        py.Py_IncRef(dtype);
        binding->dtypes = entries;
        binding->dtypes[binding->n_dtypes++] = (lb_dtype_entry){dtype, code};
    }
    return dtypes && !py.PyErr_Occurred();
}

static bool take_environment(lb_binding *binding, PyObject *environment)
{
#define TAKE_OBJECT(name)                                                                                              \
    if (!(binding->of.name = py.PyDict_GetItemString(environment, #name))) return false;                               \
    py.Py_IncRef(binding->of.name);
    LB_PYTHON_OBJECTS(TAKE_OBJECT)
#undef TAKE_OBJECT
#define TAKE_NAME(text)                                                                                                \
    if (!(binding->names.text = py.PyUnicode_InternFromString(#text))) return false;
    LB_PYTHON_NAMES(TAKE_NAME)
#undef TAKE_NAME
    return take_dtypes(binding, py.PyDict_GetItemString(environment, "dtypes"));
}

static bool add_function(PyObject *functions, PyObject *capsule, PyMethodDef *method)
{
    PyObject *function = py.PyCFunction_NewEx(method, capsule, NULL);
    bool added = function && py.PyDict_SetItemString(functions, method->name, function) == 0;
    py.Py_DecRef(function);
    return added;
}

/* Takes over `b`: it lives as long as one of the functions. NULL with an exception; then it is gone. */
static PyObject *functions_of(lb_binding *binding)
{
    PyObject *capsule = py.PyCapsule_New(binding, LB_BINDING_CAPSULE, destroy),
             *functions = capsule ? py.PyDict_New() : NULL;
    if (!capsule) binding_free(binding);
    bool fine = functions;
    for (PyMethodDef *method = lb_recording_methods; method->name && fine; method++)
        fine = add_function(functions, capsule, method);
    for (PyMethodDef *method = lb_program_methods; method->name && fine; method++)
        fine = add_function(functions, capsule, method);
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
    lb_binding *binding = calloc(1, sizeof *binding);
    if (binding) {
        binding->serial = ++serial;
        pthread_mutex_init(&binding->lock, NULL);
    }
    if (!binding || !take_environment(binding, environment)) {
        binding_free(binding);
        PyObject *class = py.PyDict_GetItemString(environment, "exception");
        if (!py.PyErr_Occurred() && class) py.PyErr_SetString(class, "the recorder was given less than it needs");
        return NULL;
    }
    PyObject *functions = functions_of(binding);
    if (!functions) return NULL;
    lb_binding *before = lb_active;
    lb_active = binding;
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
