/* How a builtin function of the binding is written: its arguments, its failures, and the recorder's lock. For the files
 * that hold such functions alone; they end in a table of them. */
#ifndef LB_PYTHON_CALL_H
#define LB_PYTHON_CALL_H

#include "binding/python_binding.h"

/* Builtin functions, ended by one without a name. */
extern PyMethodDef lb_recording_methods[]; /* python_recording.c */
extern PyMethodDef lb_program_methods[];   /* python_program.c */

#define LB_BINDING_CAPSULE "lastbit.binding"

static inline PyObject *nothing(const lb_binding *b)
{
    py.Py_IncRef(b->of.none);
    return b->of.none;
}

static inline PyObject *settle(lb_binding *b, lb_status status, const lb_err *err)
{
    if (status == LB_OK) return nothing(b);
    lb_binding_raise(b, err);
    return NULL;
}

static inline lb_binding *binding_of(PyObject *self)
{
    return (lb_binding *)py.PyCapsule_GetPointer(self, LB_BINDING_CAPSULE);
}

static inline int64_t integer(PyObject *object)
{
    return (int64_t)py.PyLong_AsLongLong(object);
}
static inline uint64_t natural(PyObject *object)
{
    return py.PyLong_AsUnsignedLongLongMask(object);
}
/* "" for None; NULL with an exception. */
static inline const char *text(const lb_binding *b, PyObject *object)
{
    return object == b->of.none ? "" : lb_python_text(object);
}
static inline const char *text_or_null(const lb_binding *b, PyObject *object)
{
    const char *t = text(b, object);
    return t && *t ? t : NULL;
}

/* Every builtin: `b`, `args`; the number of arguments is checked, exceptions of their conversion too. */
#define LB_PYTHON_CALL(name, count)                                                                                    \
    static PyObject *name##_taken(lb_binding *b, PyObject *const *args);                                               \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)                        \
    {                                                                                                                  \
        lb_binding *b = binding_of(self);                                                                              \
        if (!b) return NULL;                                                                                           \
        if (n != (count) || (names && py.PyTuple_Size(names) > 0)) {                                                   \
            py.PyErr_SetString(b->of.exception, #name " takes " #count " arguments");                                  \
            return NULL;                                                                                               \
        }                                                                                                              \
        if (lb_python_is_copying()) {                                                                                  \
            py.PyErr_SetString(b->of.exception, #name " was called while the recorder copies from a device");          \
            return NULL;                                                                                               \
        }                                                                                                              \
        b->inside++;                                                                                                   \
        PyObject *out = name##_taken(b, args);                                                                         \
        b->inside--;                                                                                                   \
        if (out && py.PyErr_Occurred()) {                                                                              \
            py.Py_DecRef(out);                                                                                         \
            return NULL;                                                                                               \
        }                                                                                                              \
        return out;                                                                                                    \
    }                                                                                                                  \
    static PyObject *name##_taken(lb_binding *b, PyObject *const *args)

/* A call of the recorder between conversions that may have failed and its report. */
#define LB_PYTHON_RECORDER(call)                                                                                       \
    lb_err err = LB_ERR_INIT;                                                                                          \
    lb_status status = LB_ERR_STATE;                                                                                   \
    if (py.PyErr_Occurred()) return NULL;                                                                              \
    void *state = lb_binding_enter(b, bytes);                                                                          \
    if (b->recorder)                                                                                                   \
        status = (call);                                                                                               \
    else                                                                                                               \
        lb_fail(&err, LB_ERR_STATE, "the recording is closed");                                                        \
    lb_binding_leave(b, state)

#define LB_PYTHON_METHOD(name) {#name, name, LB_PYTHON_FASTCALL, NULL}

#endif
