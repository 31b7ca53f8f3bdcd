/* What Python tells of the run as it goes: a recording opens and closes, steps begin and end, modules are entered and
 * left. Each a builtin function; capture/lastbit/torch/ calls them. See python_call.h. */
#include "binding/python_call.h"
#include "flight/crash.h"
#include "measure/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- life-cycle -------------------------------------------------------------------------------------------------- */

/* folder, level, rank, world, keep, layers, budget, ring, like, sync, close_each */
LB_PYTHON_CALL(open_recorder, 11)
{
    lb_output_sync sync = LB_OUTPUT_SYNC_CLOSE;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_err err = LB_ERR_INIT;
    const char *folder = text(b, args[0]), *level = text_or_null(b, args[1]);
    options.rank = (int32_t)integer(args[2]);
    options.world = (int32_t)integer(args[3]);
    options.keep = text_or_null(b, args[4]);
    options.layers = text_or_null(b, args[5]);
    options.budget_bytes = natural(args[6]);
    options.ring = (uint32_t)natural(args[7]);
    options.like = text_or_null(b, args[8]);
    const char *when = text_or_null(b, args[9]);
    options.close_each = (uint32_t)natural(args[10]);
    options.ring_files =
        getenv("LASTBIT_RING_FILES") ? 2 : 1; /* set by `lastbit record`, which waits for the process */
    if (py.PyErr_Occurred()) return NULL;
    lb_status status = LB_OK;
    if (level && !lb_keep_level_parse(level, &options.level))
        status = lb_fail(&err, LB_ERR_INVALID, "'%s' is not a level: stats, sources, layers, ops, auto", level);
    if (when && !lb_output_sync_parse(when, &sync))
        status = lb_fail(&err, LB_ERR_INVALID, "sync '%s' is none of close, step, never", when);
    options.sync = (uint8_t)sync;
    lb_binding_lock(b);
    if (status == LB_OK && b->recorder) status = lb_fail(&err, LB_ERR_STATE, "the recording is open");
    if (status == LB_OK) status = lb_recorder_open(folder, &options, &b->recorder, &err);
    if (status == LB_OK) status = lb_devices_register(b, &err);
    pthread_mutex_unlock(&b->lock);
    return settle(b, status, &err);
}

LB_PYTHON_CALL(close_recorder, 0)
{
    (void)args;
    lb_err err = LB_ERR_INIT;
    b->live = false;
    lb_devices_wait_at_end(b);
    void *state = lb_binding_enter(b, UINT64_MAX);
    lb_status status = lb_recorder_close(b->recorder, &err);
    b->recorder = NULL;
    lb_binding_leave(b, state);
    return settle(b, status, &err);
}

/* In a forked child: another thread may have held the lock, and is gone. */
LB_PYTHON_CALL(abandon, 0)
{
    (void)args;
    b->live = false;
    lb_recorder_abandon(b->recorder);
    b->recorder = NULL;
    lb_hold_nothing(b);
    return nothing(b);
}

/* why */
LB_PYTHON_CALL(stop, 1)
{
    const char *why = text(b, args[0]);
    if (!why) return NULL;
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_stop(b->recorder, why);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* Both run in a thread of their own while the process is about to end: another thread may never let go of the lock. */
/* The binding, locked, when a signal is about to end the process; NULL when another thread does not let go of it. */
static lb_binding *last_hold(void)
{
    lb_binding *binding = lb_active;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    return binding && pthread_mutex_timedlock(&binding->lock, &until) == 0 ? binding : NULL;
}

static void rescue_window(int signal)
{
    lb_binding *binding = last_hold();
    if (!binding) return;
    binding->live = false;
    binding->ending = true;
    if (binding->recorder) {
        char why[32];
        snprintf(why, sizeof why, "signal %d", signal);
        lb_recorder_trigger(binding->recorder, why, NULL);
        lb_recorder_step_end(binding->recorder, false, NULL);
        if (lb_recorder_close(binding->recorder, NULL) == LB_OK)
            dprintf(STDERR_FILENO, "lastbit: the flight recorder wrote its steps: %s\n", why);
        binding->recorder = NULL;
    }
    pthread_mutex_unlock(&binding->lock);
}

static void rescue_steps(int signal)
{
    (void)signal;
    lb_binding *binding = last_hold();
    if (!binding) return;
    binding->ending = true;
    if (binding->recorder) lb_recorder_flush(binding->recorder);
    pthread_mutex_unlock(&binding->lock);
}

/* The flight recorder gets to disk also when a signal ends the process. */
LB_PYTHON_CALL(watch_crashes, 0)
{
    (void)args;
    lb_crash_watch(rescue_window);
    return nothing(b);
}

/* True when steps that have ended are on their way to disk, in a thread of ours: is_saved says when they are there. */
LB_PYTHON_CALL(save_steps, 0)
{
    (void)b, (void)args;
    return py.PyLong_FromLongLong(lb_crash_leave());
}

LB_PYTHON_CALL(is_saved, 0)
{
    (void)b, (void)args;
    return py.PyLong_FromLongLong(lb_crash_is_over());
}

/* Objects that know us are let go, so that neither keeps the other alive. */
LB_PYTHON_CALL(release, 0)
{
    (void)args;
    b->live = b->watching = false;
    PyObject **back[] = {&b->of.saw,       &b->of.fail,       &b->of.plan_for,  &b->of.is_foreign,
                         &b->of.decompose, &b->of.collective, &b->of.instead,   &b->of.plain,
                         &b->of.fields,    &b->of.owner,      &b->of.copy_bytes};
    if (b->inside > 1) return nothing(b); /* another thread is in the middle of something: they stay */
    for (size_t i = 0; i < sizeof back / sizeof *back; i++) {
        PyObject *object = *back[i];
        *back[i] = b->of.none;
        py.Py_IncRef(b->of.none);
        py.Py_DecRef(object);
    }
    lb_dispatch_plans_release(b);
    for (uint32_t i = 0; i < b->storages.by_key.n; i++) {
        PyObject *address = py.PyLong_FromUnsignedLongLong((uint64_t)b->storages.rows[i]);
        PyObject *freed = address ? py.PyObject_CallFunctionObjArgs(b->of.free_weak_ref, address, NULL) : NULL;
        py.Py_DecRef(freed);
        py.Py_DecRef(address);
    }
    lb_object_storages_release(b);
    return nothing(b);
}

/* Whether ops are recorded from now on. */
LB_PYTHON_CALL(set_live, 1)
{
    b->live = args[0] == b->of.true_;
    return nothing(b);
}

/* Whether `saw` is told of ops from now on. */
LB_PYTHON_CALL(set_watching, 1)
{
    b->watching = args[0] == b->of.true_;
    return nothing(b);
}

/* How deep in optimizer steps and clipping the program is. */
LB_PYTHON_CALL(set_optimizer_depth, 1)
{
    const int depth = (int)integer(args[0]);
    lb_thread *thread = depth > b->optimizer_depth ? lb_place_thread_get(b) : NULL;
    if (thread) lb_place_updates(thread);
    b->optimizer_depth = depth;
    return nothing(b);
}

/* How many threads may read along: as many as the host computes with, and one beside the run when a core is left for
 * it. */
LB_PYTHON_CALL(set_threads, 1)
{
    const int64_t threads = integer(args[0]);
    lb_pool_use(threads > 0 ? (unsigned)threads : 1);
    lb_binding_lock(b);
    if (b->recorder && lb_recorder_async(b->recorder, b->of.hold != b->of.none && lb_pool_has_room()))
        lb_crash_watch(rescue_steps);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* storage or None: no byte of it, or of any, is being read when it returns */
LB_PYTHON_CALL(settle_bytes, 1)
{
    int64_t key = 0;
    if (args[0] != b->of.none && !lb_object_storage_key(b, args[0], &key)) return NULL;
    const uint64_t bytes = 0;
    void *state = lb_binding_enter(b, bytes);
    if (b->recorder) lb_recorder_settle(b->recorder, key);
    lb_binding_leave(b, state);
    return nothing(b);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* step, shard */
LB_PYTHON_CALL(step_begin, 2)
{
    const uint64_t bytes = 0;
    int64_t step = integer(args[0]);
    const char *shard = text_or_null(b, args[1]);
    LB_PYTHON_RECORDER(lb_recorder_step_begin(b->recorder, step, shard, &err));
    return settle(b, status, &err);
}

#define MOST_PARTIAL 4096

/* What storages hold that were written in parts, of those that are still there. */
static void remember_partial(lb_binding *binding)
{
    int64_t *keys = binding->of.hold == binding->of.none ? NULL : malloc(MOST_PARTIAL * sizeof *keys);
    if (!keys) return;
    lb_binding_lock(binding);
    const uint32_t n = binding->recorder ? lb_recorder_partial(binding->recorder, keys, MOST_PARTIAL) : 0;
    pthread_mutex_unlock(&binding->lock);
    for (uint32_t i = 0; i < n; i++) {
        PyObject *address = py.PyLong_FromUnsignedLongLong((uint64_t)keys[i]);
        PyObject *storage = address ? py.PyObject_CallFunctionObjArgs(binding->of.hold, address, NULL) : NULL;
        py.Py_DecRef(address);
        if (!storage) py.PyErr_Clear();
        if (storage && storage != binding->of.none) {
            void *state = lb_binding_enter(binding, UINT64_MAX);
            if (binding->recorder) lb_recorder_remember(binding->recorder, keys[i]);
            lb_binding_leave(binding, state);
        }
        py.Py_DecRef(storage);
    }
    free(keys);
}

/* complete */
LB_PYTHON_CALL(step_end, 1)
{
    const uint64_t bytes = UINT64_MAX;
    bool complete = args[0] == b->of.true_;
    lb_devices_wait_at_end(b);
    remember_partial(b);
    LB_PYTHON_RECORDER(lb_recorder_step_end(b->recorder, complete, &err));
    return settle(b, status, &err);
}

LB_PYTHON_CALL(step_skip, 0)
{
    (void)args;
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_step_skip(b->recorder);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

/* After a step: marks of older ones are forgotten, and storages that are gone. */
LB_PYTHON_CALL(sweep, 0)
{
    (void)args;
    lb_thread *thread = lb_place_thread_get(b);
    if (!thread) return NULL;
    lb_place_step_closed(thread);
    return lb_object_storages_sweep(b) ? nothing(b) : NULL;
}

/* graph: what comes is captured into it, until graph_end */
LB_PYTHON_CALL(graph_begin, 1)
{
    const uint64_t bytes = 0;
    const int64_t graph = integer(args[0]);
    LB_PYTHON_RECORDER(lb_recorder_graph_begin(b->recorder, graph, &err));
    return settle(b, status, &err);
}

/* whether it was captured */
LB_PYTHON_CALL(graph_end, 1)
{
    const uint64_t bytes = 0;
    const bool whole = args[0] == b->of.true_;
    LB_PYTHON_RECORDER(lb_recorder_graph_end(b->recorder, whole, &err));
    return settle(b, status, &err);
}

/* graph, stream: it is about to be launched there */
LB_PYTHON_CALL(graph_run, 2)
{
    const uint64_t bytes = UINT64_MAX;
    const int64_t graph = integer(args[0]);
    void *stream = (void *)(uintptr_t)natural(args[1]);
    LB_PYTHON_RECORDER(lb_recorder_graph_run(b->recorder, graph, stream, &err));
    return settle(b, status, &err);
}

/* graph, whether it was launched, stream */
LB_PYTHON_CALL(graph_ran, 3)
{
    const uint64_t bytes = UINT64_MAX;
    const int64_t graph = integer(args[0]);
    const bool launched = args[1] == b->of.true_;
    void *stream = (void *)(uintptr_t)natural(args[2]);
    LB_PYTHON_RECORDER(lb_recorder_graph_ran(b->recorder, graph, launched, stream, &err));
    return settle(b, status, &err);
}

/* graph: it is gone */
LB_PYTHON_CALL(graph_drop, 1)
{
    const int64_t graph = integer(args[0]);
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_graph_drop(b->recorder, graph);
    pthread_mutex_unlock(&b->lock);
    return nothing(b);
}

LB_PYTHON_CALL(next_op, 0)
{
    (void)args;
    lb_binding_lock(b);
    uint32_t op = b->recorder ? lb_recorder_next_op(b->recorder) : 0;
    pthread_mutex_unlock(&b->lock);
    return py.PyLong_FromLongLong(op);
}

/* -> gradients, parameters and states of the open step that are not finite */
LB_PYTHON_CALL(nonfinite, 0)
{
    (void)args;
    lb_binding_lock(b);
    uint64_t n = b->recorder ? lb_recorder_nonfinite(b->recorder) : 0;
    pthread_mutex_unlock(&b->lock);
    return py.PyLong_FromUnsignedLongLong(n);
}

/* -> bytes written, or held by the flight recorder */
LB_PYTHON_CALL(bytes_so_far, 0)
{
    (void)args;
    lb_binding_lock(b);
    uint64_t n = b->recorder ? lb_recorder_bytes(b->recorder) : 0;
    pthread_mutex_unlock(&b->lock);
    return py.PyLong_FromUnsignedLongLong(n);
}

/* name, number */
LB_PYTHON_CALL(scalar, 2)
{
    const uint64_t bytes = 0;
    const char *name = text(b, args[0]);
    double number = py.PyFloat_AsDouble(args[1]);
    LB_PYTHON_RECORDER(lb_recorder_scalar(b->recorder, name, number, &err));
    return settle(b, status, &err);
}

/* kind, message */
LB_PYTHON_CALL(notice, 2)
{
    const uint64_t bytes = 0;
    const char *kind = text(b, args[0]), *message = text(b, args[1]);
    LB_PYTHON_RECORDER(lb_recorder_notice(b->recorder, kind, message, &err));
    return settle(b, status, &err);
}

/* name, JSON */
LB_PYTHON_CALL(table, 2)
{
    const uint64_t bytes = 0;
    const char *name = text(b, args[0]), *json = text(b, args[1]);
    LB_PYTHON_RECORDER(lb_recorder_table(b->recorder, name, json, &err));
    return settle(b, status, &err);
}

/* why */
LB_PYTHON_CALL(trigger, 1)
{
    const uint64_t bytes = UINT64_MAX;
    const char *why = text(b, args[0]);
    LB_PYTHON_RECORDER(lb_recorder_trigger(b->recorder, why, &err));
    return settle(b, status, &err);
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* path, class or None, parent -> scope */
LB_PYTHON_CALL(scope, 3)
{
    const char *path = text(b, args[0]), *class_name = text_or_null(b, args[1]);
    uint32_t parent = (uint32_t)natural(args[2]), number = LB_NONE;
    if (py.PyErr_Occurred()) return NULL;
    lb_binding_lock(b);
    if (b->recorder) number = lb_recorder_scope(b->recorder, path, class_name, parent);
    pthread_mutex_unlock(&b->lock);
    if (number != LB_NONE) return py.PyLong_FromLongLong(number);
    lb_err err = LB_ERR_INIT;
    lb_fail(&err, LB_ERR_NOMEM, "no memory for a scope");
    lb_binding_raise(b, &err);
    return NULL;
}

/* scope of a module that another one of its path is within: the call is that one's */
LB_PYTHON_CALL(wrap, 1)
{
    lb_thread *thread = lb_place_thread_get(b);
    const uint32_t number = (uint32_t)natural(args[0]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_place place = {0, 0};
    lb_err err = LB_ERR_INIT;
    void *state = lb_binding_enter(b, 0);
    const lb_status status = b->recorder ? lb_recorder_wrap(b->recorder, number, &place, &err)
                                         : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
    lb_binding_leave(b, state);
    if (status == LB_OK && !lb_place_enter(b, thread, place, true)) return NULL;
    return settle(b, status, &err);
}

/* scope, positional arguments, keyword arguments or None -> call. A scope of -1 is not noted. */
LB_PYTHON_CALL(enter, 3)
{
    lb_thread *thread = lb_place_thread_get(b);
    const int64_t number = integer(args[0]);
    lb_place place = {0, 0};
    if (!thread || py.PyErr_Occurred()) return NULL;
    if (number < 0) return lb_place_enter(b, thread, place, false) ? py.PyLong_FromLongLong(0) : NULL;
    lb_host_tensor *seen = NULL;
    uint32_t count = 0;
    const bool again = lb_place_recomputes(b, thread, lb_place_depth(thread));
    lb_object_intake intake = lb_object_intake_begin(b, thread);
    bool fine = lb_object_take_tensors(&intake, args + 1, 2, &seen, &count);
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    if (fine) {
        void *state = lb_binding_enter_with(b, &intake, NULL);
        status = b->recorder ? lb_recorder_enter(b->recorder, (uint32_t)number, seen, count, again, &place, &err)
                             : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        lb_binding_leave(b, state);
    }
    lb_object_intake_end(&intake);
    if (status != LB_OK) lb_binding_raise(b, &err);
    fine = fine && status == LB_OK && lb_place_enter(b, thread, place, true);
    return fine ? py.PyLong_FromLongLong(place.call) : NULL;
}

/* depth of the module (from 1), output, whether it is recorded -> its call */
LB_PYTHON_CALL(leave, 3)
{
    lb_thread *thread = lb_place_thread_get(b);
    const uint32_t depth = (uint32_t)natural(args[0]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    const lb_place place = lb_place_at(thread, depth);
    const bool recorded = args[2] == b->of.true_;
    bool fine = lb_place_leave(b, thread, depth, recorded);
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    if (recorded && fine) {
        lb_host_tensor *seen = NULL;
        uint32_t count = 0;
        lb_object_intake intake = lb_object_intake_begin(b, thread);
        fine = lb_object_take_tensors(&intake, args + 1, 1, &seen, &count);
        if (fine) {
            void *state = lb_binding_enter_with(b, &intake, NULL);
            status = b->recorder ? lb_recorder_leave(b->recorder, place, seen, count,
                                                     lb_place_recomputes(b, thread, depth), &err)
                                 : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
            lb_binding_leave(b, state);
        }
        lb_object_intake_end(&intake);
    }
    if (status != LB_OK) lb_binding_raise(b, &err);
    return fine && status == LB_OK ? py.PyLong_FromLongLong(place.call) : NULL;
}

/* scope, value: a place of its own */
LB_PYTHON_CALL(tap, 2)
{
    lb_thread *thread = lb_place_thread_get(b);
    const uint32_t number = (uint32_t)natural(args[0]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_host_tensor *seen = NULL;
    uint32_t count = 0;
    lb_place place;
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    lb_object_intake intake = lb_object_intake_begin(b, thread);
    bool fine = lb_object_take_tensors(&intake, args + 1, 1, &seen, &count);
    if (fine) {
        void *state = lb_binding_enter_with(b, &intake, NULL);
        status = b->recorder ? lb_recorder_enter(b->recorder, number, NULL, 0, false, &place, &err)
                             : lb_fail(&err, LB_ERR_STATE, "the recording is closed");
        if (status == LB_OK) status = lb_recorder_leave(b->recorder, place, seen, count, false, &err);
        lb_binding_leave(b, state);
    }
    lb_object_intake_end(&intake);
    return fine ? settle(b, status, &err) : NULL;
}

/* file, number, function, text -> what `graph` takes for a line */
LB_PYTHON_CALL(line, 4)
{
    const char *file = text(b, args[0]), *function = text(b, args[2]), *words = text(b, args[3]);
    const int64_t number = integer(args[1]);
    if (py.PyErr_Occurred()) return NULL;
    return py.PyLong_FromLongLong(lb_line_add(b, file, (uint32_t)number, function, words));
}

/* scope of the ops of a compiled function's graph, or -1, whether it is of backward, line or 0 */
LB_PYTHON_CALL(graph, 3)
{
    lb_thread *thread = lb_place_thread_get(b);
    const int64_t scope = integer(args[0]), backward = integer(args[1]);
    const uint32_t line = (uint32_t)natural(args[2]);
    if (!thread || py.PyErr_Occurred()) return NULL;
    lb_place_graph(thread, scope, backward != 0, line);
    return nothing(b);
}

/* whether backward begins (or ends) in this thread -> how many run in it now */
LB_PYTHON_CALL(backward, 1)
{
    lb_thread *thread = lb_place_thread_get(b);
    int nested = thread ? lb_place_backward(thread, b, args[0] == b->of.true_) : -1;
    return nested < 0 ? NULL : py.PyLong_FromLongLong(nested);
}

PyMethodDef lb_recording_methods[] = {
    LB_PYTHON_METHOD(open_recorder), LB_PYTHON_METHOD(close_recorder),
    LB_PYTHON_METHOD(abandon),       LB_PYTHON_METHOD(watch_crashes),
    LB_PYTHON_METHOD(save_steps),    LB_PYTHON_METHOD(is_saved),
    LB_PYTHON_METHOD(stop),          LB_PYTHON_METHOD(release),
    LB_PYTHON_METHOD(set_live),      LB_PYTHON_METHOD(set_optimizer_depth),
    LB_PYTHON_METHOD(set_threads),   LB_PYTHON_METHOD(settle_bytes),
    LB_PYTHON_METHOD(step_begin),    LB_PYTHON_METHOD(step_end),
    LB_PYTHON_METHOD(step_skip),     LB_PYTHON_METHOD(sweep),
    LB_PYTHON_METHOD(next_op),       LB_PYTHON_METHOD(nonfinite),
    LB_PYTHON_METHOD(bytes_so_far),  LB_PYTHON_METHOD(scalar),
    LB_PYTHON_METHOD(notice),        LB_PYTHON_METHOD(table),
    LB_PYTHON_METHOD(trigger),       LB_PYTHON_METHOD(scope),
    LB_PYTHON_METHOD(wrap),          LB_PYTHON_METHOD(enter),
    LB_PYTHON_METHOD(leave),         LB_PYTHON_METHOD(tap),
    LB_PYTHON_METHOD(backward),      LB_PYTHON_METHOD(graph),
    LB_PYTHON_METHOD(graph_begin),   LB_PYTHON_METHOD(graph_end),
    LB_PYTHON_METHOD(graph_run),     LB_PYTHON_METHOD(graph_ran),
    LB_PYTHON_METHOD(graph_drop),    LB_PYTHON_METHOD(line),
    LB_PYTHON_METHOD(set_watching),  {NULL, NULL, 0, NULL},
};
