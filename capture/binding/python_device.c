/* Bytes that lie on a device, fetched by Python: the function that is registered for every kind of device. See
 * python_binding.h.
 *
 * It runs inside `lock`, with or without Python's global lock, and takes that. What Python does meanwhile (a finalizer,
 * a signal handler) may come back to us: such calls are refused. */
#include "binding/python_binding.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local bool copying;

bool lb_python_is_copying(void)
{
    return copying;
}

#define MOST_NUMBERS 4

/* -1 with an exception. */
static int64_t call(PyObject *function, const uint64_t *numbers, int n)
{
    PyObject *made[MOST_NUMBERS] = {NULL, NULL, NULL, NULL};
    bool fine = true;
    for (int i = 0; i < n; i++) fine &= (made[i] = py.PyLong_FromUnsignedLongLong(numbers[i])) != NULL;
    PyObject *answer =
        fine ? py.PyObject_CallFunctionObjArgs(function, made[0], made[1], made[2], made[3], NULL) : NULL;
    for (int i = 0; i < n; i++) py.Py_DecRef(made[i]);
    const int64_t state = answer ? py.PyLong_AsLongLong(answer) : -1;
    py.Py_DecRef(answer);
    return state;
}

/* What it answers; `failed` where it raised, `not_now` where it cannot be asked. */
static int64_t ask(lb_binding *binding, PyObject *function, const uint64_t *numbers, int n, int64_t failed,
                   int64_t not_now)
{
    if (binding->ending || copying) return not_now;
    PyObject *type, *value, *trace;
    const int state = py.PyGILState_Ensure();
    py.PyErr_Fetch(&type, &value, &trace);
    copying = true;
    int64_t answer = call(function, numbers, n);
    copying = false;
    if (py.PyErr_Occurred())
        answer = py.PyErr_ExceptionMatches(binding->of.exception) ? failed : not_now; /* not now: Ctrl-C was pressed */
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, trace);
    py.PyGILState_Release(state);
    return answer;
}

static int copy(void *context, int64_t storage, const void *data, uint64_t first, uint64_t last, void *to)
{
    lb_binding *binding = context;
    (void)data;
    const uint64_t numbers[] = {(uint64_t)storage, first, last, (uint64_t)(uintptr_t)to};
    return (int)ask(binding, binding->of.copy_bytes, numbers, 4, -1, 1);
}

static uint64_t hold(void *context, int64_t storage, const void *data, uint64_t first, uint64_t last)
{
    lb_binding *binding = context;
    (void)data;
    const uint64_t numbers[] = {(uint64_t)storage, first, last};
    return (uint64_t)ask(binding, binding->of.hold_bytes, numbers, 3, 0, 0);
}

static int copy_held(void *context, uint64_t held, uint64_t bytes, void *to)
{
    lb_binding *binding = context;
    const uint64_t numbers[] = {held, bytes, (uint64_t)(uintptr_t)to};
    return (int)ask(binding, binding->of.copy_held, numbers, 3, -1, 1);
}

static void let_go(void *context, uint64_t held)
{
    lb_binding *binding = context;
    ask(binding, binding->of.let_go, &held, 1, 0, 0);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

void lb_devices_wait(lb_binding *binding, const lb_object_intake *intake, const lb_pending *pending)
{
    if (copying || !binding->reads_devices || !(intake->n_on_devices || pending)) return;
    lb_device_wait wait;
    uint8_t byte;
    lb_binding_lock(binding);
    const bool waits =
        binding->recorder && lb_recorder_waits(binding->recorder, intake->on_devices, intake->n_on_devices, pending,
                                               binding->optimizer_depth > 0, &wait);
    pthread_mutex_unlock(&binding->lock);
    if (!waits) return;
    if (wait.copies) {
        copy(binding, wait.storage, NULL, 0, 1, &byte); /* what it cannot do is found out, and noted, by the call */
    } else {
        void *state = py.PyEval_SaveThread();
        lb_device_wait_for(&wait);
        py.PyEval_RestoreThread(state);
    }
}

#define MOST_STREAMS 16

void lb_devices_wait_at_end(lb_binding *binding)
{
    if (!binding->reads_devices) return;
    lb_device_wait list[MOST_STREAMS];
    void *state = py.PyEval_SaveThread();
    pthread_mutex_lock(&binding->lock);
    const uint32_t n = binding->recorder ? lb_recorder_waits_at_end(binding->recorder, list, MOST_STREAMS) : 0;
    pthread_mutex_unlock(&binding->lock);
    for (uint32_t i = 0; i < n; i++) lb_device_wait_for(&list[i]);
    py.PyEval_RestoreThread(state);
}

lb_status lb_devices_register(lb_binding *binding, lb_err *err)
{
    const char *cuda = getenv("LASTBIT_CUDA"), *bytes = getenv("LASTBIT_DEVICE_MEMORY");
    const bool wanted =
        binding->shortcut.works && binding->shortcut.get_cuda_stream && !(cuda && strcmp(cuda, "0") == 0);
    if (wanted) LB_TRY(lb_recorder_cuda(binding->recorder, bytes ? strtoull(bytes, NULL, 10) : 0, err));
    if (binding->of.copy_bytes == binding->of.none) return LB_OK;
    const lb_device_access access = {.size = sizeof access,
                                     .copy = copy,
                                     .context = binding,
                                     .hold = hold,
                                     .copy_held = copy_held,
                                     .let_go = let_go,
                                     .device_bytes = bytes ? strtoull(bytes, NULL, 10) : 0};
    LB_TRY(lb_recorder_device(binding->recorder, 1, LB_EVERY_UNIT, &access, err));
    return lb_recorder_device(binding->recorder, 2, LB_EVERY_UNIT, &access, err);
}
