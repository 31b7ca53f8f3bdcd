/* Bytes that lie on a device, fetched by Python: the function that is registered for every kind of device. See python_binding.h.
 *
 * It runs inside `lock`, with or without Python's global lock, and takes that. What Python does meanwhile (a finalizer, a signal
 * handler) may come back to us: such calls are refused. */
#include "python_binding.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local bool copying;

bool lb_is_copying(void)
{
    return copying;
}

/* 1 with an exception. */
static int call(lb_binding *b, int64_t storage, uint64_t first, uint64_t last, void *to)
{
    const uint64_t numbers[] = {(uint64_t)storage, first, last, (uint64_t)(uintptr_t)to};
    PyObject *made[4] = {NULL, NULL, NULL, NULL};
    bool fine = true;
    for (int i = 0; i < 4; i++) fine &= (made[i] = py.PyLong_FromUnsignedLongLong(numbers[i])) != NULL;
    PyObject *answer =
        fine ? py.PyObject_CallFunctionObjArgs(b->of.copy_bytes, made[0], made[1], made[2], made[3], NULL) : NULL;
    for (int i = 0; i < 4; i++) py.Py_DecRef(made[i]);
    const int state = answer ? (int)py.PyLong_AsLongLong(answer) : -1;
    py.Py_DecRef(answer);
    return state;
}

static int copy(void *context, int64_t storage, const void *data, uint64_t first, uint64_t last, void *to)
{
    lb_binding *b = context;
    (void)data;
    if (b->ending || copying) return 1;
    PyObject *type, *value, *trace;
    const int state = py.PyGILState_Ensure();
    py.PyErr_Fetch(&type, &value, &trace);
    copying = true;
    int answer = call(b, storage, first, last, to);
    copying = false;
    if (py.PyErr_Occurred())
        answer = py.PyErr_ExceptionMatches(b->of.exception) ? -1 : 1; /* 1: somebody pressed Ctrl-C */
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, trace);
    py.PyGILState_Release(state);
    return answer;
}

lb_status lb_devices_register(lb_binding *b, lb_err *err)
{
    const char *cuda = getenv("LASTBIT_CUDA"), *bytes = getenv("LASTBIT_DEVICE_MEMORY");
    const bool wanted = b->shortcut.works && b->shortcut.get_cuda_stream && !(cuda && strcmp(cuda, "0") == 0);
    if (wanted) LB_TRY(lb_recorder_cuda(b->recorder, bytes ? strtoull(bytes, NULL, 10) : 0, err));
    if (b->of.copy_bytes == b->of.none) return LB_OK;
    const lb_device_access access = {sizeof access, copy, b};
    LB_TRY(lb_recorder_device(b->recorder, 1, LB_EVERY_UNIT, &access, err));
    return lb_recorder_device(b->recorder, 2, LB_EVERY_UNIT, &access, err);
}
