/* The part of Python's C interface that the recorder calls, found at run time in the interpreter that loaded us.
 *
 * No Python header is compiled in: a build serves every CPython from 3.9 on, and a C program that uses the recorder has
 * no Python at all. Everything here is a function that every CPython from 3.9 on exports: no macro of a header looks
 * into an object. */
#ifndef LB_PYTHON_API_H
#define LB_PYTHON_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct _object PyObject;
typedef ptrdiff_t Py_ssize_t;

/* A builtin function: METH_FASTCALL | METH_KEYWORDS. `names`: those of the last arguments, or NULL. */
typedef PyObject *(*lb_python_function)(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);

typedef struct PyMethodDef {
    const char *name;
    lb_python_function function;
    int flags;
    const char *doc;
} PyMethodDef;
#define LB_PYTHON_FASTCALL (0x0080 | 0x0002)

/* X(result, name, parameters) */
#define LB_PYTHON_API(X)                                                                                               \
    X(PyObject *, PyObject_Call, (PyObject * function, PyObject * args, PyObject * kwargs))                            \
    X(PyObject *, PyObject_CallFunctionObjArgs, (PyObject * function, ...))                                            \
    X(PyObject *, PyObject_CallMethodObjArgs, (PyObject * object, PyObject * name, ...))                               \
    X(PyObject *, PyObject_GetAttr, (PyObject * object, PyObject * name))                                              \
    X(PyObject *, PyObject_Type, (PyObject * object))                                                                  \
    X(int, PyObject_IsInstance, (PyObject * object, PyObject * type))                                                  \
    X(int, PyObject_IsTrue, (PyObject * object))                                                                       \
    X(PyObject *, PyTuple_New, (Py_ssize_t n))                                                                         \
    X(Py_ssize_t, PyTuple_Size, (PyObject * tuple))                                                                    \
    X(PyObject *, PyTuple_GetItem, (PyObject * tuple, Py_ssize_t i))                                                   \
    X(Py_ssize_t, PyList_Size, (PyObject * list))                                                                      \
    X(PyObject *, PyList_GetItem, (PyObject * list, Py_ssize_t i))                                                     \
    X(PyObject *, PyDict_New, (void))                                                                                  \
    X(PyObject *, PyDict_GetItemWithError, (PyObject * dict, PyObject * key))                                          \
    X(PyObject *, PyDict_GetItemString, (PyObject * dict, const char *key))                                            \
    X(int, PyDict_SetItemString, (PyObject * dict, const char *key, PyObject *value))                                  \
    X(int, PyDict_Next, (PyObject * dict, Py_ssize_t * at, PyObject * *key, PyObject * *value))                        \
    X(PyObject *, PySequence_Tuple, (PyObject * sequence))                                                             \
    X(long long, PyLong_AsLongLong, (PyObject * number))                                                               \
    X(unsigned long long, PyLong_AsUnsignedLongLongMask, (PyObject * number))                                          \
    X(PyObject *, PyLong_FromLongLong, (long long number))                                                             \
    X(PyObject *, PyLong_FromUnsignedLongLong, (unsigned long long number))                                            \
    X(double, PyFloat_AsDouble, (PyObject * number))                                                                   \
    X(double, PyComplex_RealAsDouble, (PyObject * number))                                                             \
    X(double, PyComplex_ImagAsDouble, (PyObject * number))                                                             \
    X(const char *, PyUnicode_AsUTF8AndSize, (PyObject * text, Py_ssize_t * size))                                     \
    X(PyObject *, PyUnicode_AsEncodedString, (PyObject * text, const char *encoding, const char *errors))              \
    X(PyObject *, PyUnicode_FromString, (const char *text))                                                            \
    X(PyObject *, PyUnicode_InternFromString, (const char *text))                                                      \
    X(PyObject *, PyBytes_FromStringAndSize, (const char *bytes, Py_ssize_t size))                                     \
    X(int, PyBytes_AsStringAndSize, (PyObject * object, char **bytes, Py_ssize_t *size))                               \
    X(PyObject *, PyErr_Occurred, (void))                                                                              \
    X(void, PyErr_Fetch, (PyObject * *type, PyObject * *value, PyObject * *trace))                                     \
    X(void, PyErr_Restore, (PyObject * type, PyObject * value, PyObject * trace))                                      \
    X(void, PyErr_NormalizeException, (PyObject * *type, PyObject * *value, PyObject * *trace))                        \
    X(void, PyErr_Clear, (void))                                                                                       \
    X(void, PyErr_SetObject, (PyObject * type, PyObject * value))                                                      \
    X(void, PyErr_SetString, (PyObject * type, const char *message))                                                   \
    X(int, PyErr_ExceptionMatches, (PyObject * type))                                                                  \
    X(int, PyGILState_Ensure, (void))                                                                                  \
    X(void, PyGILState_Release, (int state))                                                                           \
    X(void *, PyEval_SaveThread, (void))                                                                               \
    X(void, PyEval_RestoreThread, (void *thread))                                                                      \
    X(void, Py_IncRef, (PyObject * object))                                                                            \
    X(void, Py_DecRef, (PyObject * object))                                                                            \
    X(PyObject *, PyEval_GetFrame, (void))                                                                             \
    X(PyObject *, PyFrame_GetBack, (PyObject * frame))                                                                 \
    X(PyObject *, PyFrame_GetCode, (PyObject * frame))                                                                 \
    X(int, PyFrame_GetLineNumber, (PyObject * frame))                                                                  \
    X(PyObject *, PyCFunction_NewEx, (PyMethodDef * method, PyObject * self, PyObject * module))                       \
    X(PyObject *, PyCapsule_New, (void *pointer, const char *name, void (*destroy)(PyObject *)))                       \
    X(void *, PyCapsule_GetPointer, (PyObject * capsule, const char *name))

typedef struct lb_python_api {
#define LB_PYTHON_MEMBER(result, name, parameters) result(*name) parameters;
    LB_PYTHON_API(LB_PYTHON_MEMBER)
#undef LB_PYTHON_MEMBER
    int (*PyFrame_GetLasti)(PyObject *frame); /* from 3.11 on; NULL */
} lb_python_api;

/* Constant once lb_python_find has returned true. */
extern lb_python_api py;

/* Fills `py` from the running process. False when this is no CPython that we know; *missing is the name that lacks. */
bool lb_python_find(const char **missing);

#endif
