/* The border between a Python process and the recorder, from the C side. Private to capture/python_*.c.
 *
 *     python_api.c       Python's C interface, found at run time
 *     python_object.c    a Python object as the operand that the recorder takes: what a tensor is, and where it lies
 *     python_hold.c      storages that are kept while they are read beside the run
 *     python_place.c     where the running op belongs: module, call, phase, autograd node
 *     python_line.c      the line of the program's code that called it
 *     python_device.c    bytes that lie on a device, fetched by Python
 *     python_dispatch.c  the dispatch mode's handler, the path that every op takes
 *     python_binding.c   the other calls, each a builtin function
 *
 * One binding serves one recording. Python's global lock guards it; `lock` guards the recorder, whose calls may run
 * without the global lock when they have much to read. No thread waits for `lock` with the global lock in hand, so that
 * a thread that has `lock` may take the global one: it does to have bytes copied from a device (python_device.c). No
 * other Python runs inside it. A device is waited for before, with neither lock.
 *
 * Functions that return false or NULL have set a Python exception. Of these only what the host itself raised ever
 * reaches it: the handler hands its own to `fail`, which ends the recording. */
#ifndef LB_PYTHON_BINDING_H
#define LB_PYTHON_BINDING_H

#include "binding/python_api.h"
#include "binding/python_tensor.h"

#include <lastbit/capture.h>
#include "base/hash.h"

#include <pthread.h>

/* Objects of Python that are given once, by name. */
/* clang-format off */
#define LB_PYTHON_OBJECTS(X)                                                                                    \
    X(none)                                                                                                     \
    X(true_)                                                                                                    \
    X(false_)                                                                                                   \
    X(not_implemented)                                                                                          \
    X(empty) /* () */                                                                                           \
    X(exception)                                                                                                \
    X(failed) /* classes */                                                                                     \
    X(tensor)                                                                                                   \
    X(parameter)                                                                                                \
    X(int_) X(float_) X(bool_) X(str_) X(list) X(tuple) X(dict) X(size) X(dtype) X(complex_) X(untyped_storage) \
    X(data_ptr) X(storage_offset) X(stride) X(nbytes) /* of a tensor or a storage */                            \
    X(hold) /* (address) -> the storage, or None; None where torch has none */                                  \
    X(weak_ref) X(expired) X(free_weak_ref) X(node) X(sequence) /* of autograd; None where torch has none */    \
    X(grad_enabled) X(inference_enabled) X(fail)                /* (exception): recording is over */            \
    X(plan_for)                                                 /* (func): registers its plan */                \
    X(saw)                                                      /* (func, args, kwargs): it is about to run */  \
    X(is_foreign)                                               /* (types): one of them unwraps itself */       \
    X(decompose)  /* (mode, func, args, kwargs) -> result or NotImplemented */                                  \
    X(collective) /* (func, args, kwargs) -> result */                                                          \
    X(is_fake)    /* (type) -> whether its tensors have no bytes */                                             \
    X(instead)    /* (tensor) -> a tensor that can be read, or what to note: a text */                          \
    X(plain)      /* (object) -> the same as int, float, bool, str, list */                                     \
    X(fields)     /* (object) -> what it holds as a list, or None */                                            \
    X(copy_bytes) /* (storage, first, last, address of host memory) -> 0, or 1: not now */                      \
    X(hold_bytes) /* (storage, first, last) -> a number under which graphs copy them aside; 0: not now */       \
    X(copy_held)  /* (number, bytes, address of host memory) -> 0, or 1: not now */                             \
    X(let_go)     /* (number): the graph is gone */                                                             \
    X(code_kind)  /* (code) -> lb_code_kind; None: lines are not recorded */                                    \
    X(line_of)    /* (code, number) -> (file, function, text) */                                                \
    X(owner)      /* (node) -> scope of the parameter whose gradient it accumulates */
/* clang-format on */

/* Attributes, by their name. */
#define LB_PYTHON_NAMES(X)                                                                                             \
    X(_cdata)                                                                                                          \
    X(dtype) X(shape) X(is_cpu) X(is_cuda) X(_sequence_nr) X(name) X(_can_decompose) X(is_conj) X(is_neg) X(get_device)

typedef struct lb_dtype_entry {
    PyObject *dtype;
    lb_dtype code;
} lb_dtype_entry;

typedef struct lb_thread lb_thread; /* python_place.c */

/* What a schema tells about an op; made by Python. */
typedef struct lb_dispatch_plan {
    PyObject *func;   /* the overload; owned */
    PyObject *callee; /* what to call for it; owned */
    char *name;
    uint32_t flags;
    uint32_t n_args;
    uint8_t *arg_flags;               /* lb_operand_flags, LB_INT_MEANS_FLOAT */
    PyObject *names;                  /* tuple of argument names; owned */
    PyObject *defaults;               /* tuple; owned */
    struct lb_dispatch_plan *writing; /* the plan that holds when argument `writing_switch` (-1: always) is true */
    int writing_switch;
    int chance;       /* the argument without which nothing is drawn; -1 */
    int non_blocking; /* the argument so called; -1 */
    bool ignored, collective, two_halves, masks;
    int8_t decomposes; /* in inference mode; -1: not asked yet, 2: always */
} lb_dispatch_plan;
#define LB_INT_MEANS_FLOAT 128

typedef struct lb_binding {
    uint64_t serial;      /* no two are the same */
    bool orphan;          /* Python has let it go */
    pthread_mutex_t lock; /* of `recorder` */
    lb_recorder *recorder;
    bool live;           /* ops are recorded now */
    bool watching;       /* `saw` is told of each op before it runs: a step may begin with it */
    bool ending;         /* a signal is about to end the process: no Python any more */
    int optimizer_depth; /* inside optimizer steps or clipping */
    struct {
#define LB_PYTHON_OBJECT(name) PyObject *name;
        LB_PYTHON_OBJECTS(LB_PYTHON_OBJECT)
#undef LB_PYTHON_OBJECT
    } of; /* owned */
    struct {
#define LB_PYTHON_NAME(text) PyObject *text;
        LB_PYTHON_NAMES(LB_PYTHON_NAME)
#undef LB_PYTHON_NAME
    } names; /* owned */
    lb_dtype_entry *dtypes;
    size_t n_dtypes;
    struct lb_storage_keys {
        int64_t *rows; /* addresses that a weak reference of ours keeps taken */
        lb_hash by_key;
    } storages;
    struct lb_held *held; /* oldest first */
    uint32_t first_held, n_held, cap_held;
    lb_tensor_shortcut shortcut;
    bool reads_devices; /* a tensor was met that lies on one */
    bool negates;       /* a view whose numbers are to be negated was made: Python is asked of every tensor */
    lb_dispatch_plan **plans;
    lb_hash plan_of_func; /* rows of `plans` by the address of func */
    char **texts;         /* names of autograd nodes, each once */
    size_t n_texts;
    lb_thread *in_backward;      /* the thread that called backward and waits for it; NULL: none does */
    int n_threads;               /* numbered so far */
    struct lb_line_cache *lines; /* python_line.c; NULL: none yet */
    int inside;                  /* calls that have begun and not ended, in all threads */
#define LB_MAX_BEGUN 256
    lb_pending *begun[LB_MAX_BEGUN]; /* ops that Python code has begun and not ended */
} lb_binding;

/* The binding whose dispatch modes record; the last one there was, when none does. NULL before the first. */
extern lb_binding *lb_active;

/* ---- python_binding.c */
/* With Python's lock, which others may have meanwhile. */
void lb_binding_lock(lb_binding *binding);
/* Waits for the recorder. `bytes`: what is to be read; much of it is read without Python's global lock. */
void *lb_binding_enter(lb_binding *binding, uint64_t bytes);
/* The same for what was taken in. Devices that the call would wait for are waited for before, with no lock; `pending`:
 * the call is about to end this op. Python runs meanwhile wherever a device is read. */
struct lb_object_intake;
void *lb_binding_enter_with(lb_binding *binding, const struct lb_object_intake *intake, const lb_pending *pending);
void lb_binding_leave(lb_binding *binding, void *state);
/* Raises the recorder's report. */
void lb_binding_raise(lb_binding *binding, const lb_err *err);
/* Hands the exception that is set to `fail`. False when it is none of ours to swallow (KeyboardInterrupt): it is set
 * again. */
bool lb_binding_swallow(lb_binding *binding);

/* ---- python_device.c */

/* Tensors of all devices are recorded as the host's are. */
lb_status lb_devices_register(lb_binding *binding, lb_err *err);
/* What a call of the recorder would wait for has been done when it returns. No lock is held meanwhile, nor Python's. */
void lb_devices_wait(lb_binding *binding, const struct lb_object_intake *intake, const lb_pending *pending);
/* The same for the end of a step, or of the recording. */
void lb_devices_wait_at_end(lb_binding *binding);
/* This thread is copying for the recorder, which must not be called now. */
bool lb_python_is_copying(void);

/* ---- python_hold.c */

/* What a call of the recorder leaves to be held. */
#define LB_FEW_UNHELD 16
typedef struct lb_unheld {
    uint32_t n;
    int64_t *keys, few[LB_FEW_UNHELD], *more;
    uint64_t promised, fulfilled;
} lb_unheld;
/* Inside `lock`; then outside, with Python's global lock. */
void lb_hold_take_unheld(lb_binding *binding, lb_unheld *unheld);
void lb_hold(lb_binding *binding, const lb_unheld *unheld);
/* The recorder is gone, and reads nothing. */
void lb_hold_nothing(lb_binding *binding);

/* ---- python_object.c */

/* The bytes of a text, as UTF-8 where it has any: those of what Python took for bytes of no text, and of a NUL, pass no
 * gate for names (lastbit/text.h) unspelt. Valid until the 16th call after it, or as long as the text where that is
 * plain. NULL with an exception. */
const char *lb_python_text(PyObject *text);

/* Memory for one call, freed all at once; and the Python objects that it points into. */
typedef struct lb_object_scratch lb_object_scratch;
void lb_object_scratch_free(lb_object_scratch *scratch);

typedef struct lb_object_intake lb_object_intake;
struct lb_object_intake {
    lb_binding *binding;
    lb_thread *thread;
    lb_object_scratch **scratch;
    uint64_t bytes; /* of the tensors taken */
#define LB_MOST_ON_DEVICES 16
    const lb_host_tensor *on_devices[LB_MOST_ON_DEVICES]; /* the first of those that lie on devices */
    uint32_t n_on_devices;
    bool in_parts; /* one of them was taken as something else: the list of its parts, or a text */
};
/* Begins a call: what the last one took is gone. An op that runs before its end (called by Python code that we call) is
 * not recorded: lb_place_thread_is_busy says so. */
lb_object_intake lb_object_intake_begin(lb_binding *binding, lb_thread *thread);
void lb_object_intake_end(lb_object_intake *intake); /* drops the objects that were made meanwhile */
void *lb_object_intake_room(lb_object_intake *intake, size_t bytes);

bool lb_object_take_operand(lb_object_intake *intake, PyObject *object, int depth, lb_recorded_operand *operand);
/* A tensor; operand->tag is LIST for a sparse one (its parts, the numbers last), STRING for one whose bytes cannot be
 * had. */
bool lb_object_take_tensor(lb_object_intake *intake, PyObject *tensor, lb_recorded_operand *operand);
/* The one that holds the numbers of what lb_object_take_tensor gave, NULL when nothing does. */
const lb_host_tensor *lb_object_numbers(const lb_recorded_operand *operand);
/* The tensors in nested arguments, in order, at most LB_MAX_TENSORS. */
#define LB_MAX_TENSORS 64
bool lb_object_take_tensors(lb_object_intake *intake, PyObject *const *objects, int n, lb_host_tensor **seen,
                            uint32_t *count);
/* The key of a storage, or of a tensor's. From its first sight on its address is taken. */
bool lb_object_storage_key(lb_binding *binding, PyObject *storage, int64_t *key);
bool lb_object_take_storage(lb_binding *binding, PyObject *tensor, int64_t *key);
/* Forgets storages that are gone, or one that is named. */
void lb_object_storages_release(lb_binding *binding); /* the set; the references are the caller's */
bool lb_object_storages_sweep(lb_binding *binding);
bool lb_object_storages_forget(lb_binding *binding, int64_t key);

/* ---- python_place.c */

/* The calling thread's state in this recording; NULL when out of memory (an exception is set). */
lb_thread *lb_place_thread_get(lb_binding *binding);
lb_object_scratch **lb_place_thread_scratch(lb_thread *thread);
bool lb_place_thread_is_busy(const lb_thread *thread);
void lb_place_thread_set_busy(lb_thread *thread, bool busy);
/* What runs now is part of an op that has begun, and no op by itself: the thread is busy until it is over. */
void lb_place_thread_set_aside(lb_thread *thread, bool aside);
/* Phase, flags, place, node and thread of the op that runs now. */
bool lb_place_op(lb_binding *binding, lb_thread *thread, const lb_dispatch_plan *plan, lb_recorded_call *call);
/* A module is entered or left; `depth` counts modules from 1. */
bool lb_place_enter(lb_binding *binding, lb_thread *thread, lb_place place, bool mark);
bool lb_place_leave(lb_binding *binding, lb_thread *thread, uint32_t depth, bool mark);
lb_place lb_place_at(const lb_thread *thread, uint32_t depth);
uint32_t lb_place_depth(const lb_thread *thread);
bool lb_place_recomputes(const lb_binding *binding, lb_thread *thread, uint32_t depth);
/* Backward begins or ends in this thread; returns how many are nested now, -1 with an exception. */
int lb_place_backward(lb_thread *thread, lb_binding *binding, bool begins);
/* Ops of a graph that is run op by op: where they belong does not follow from the stack. Scope -1: no more of them. */
void lb_place_graph(lb_thread *thread, int64_t scope, bool backward, uint32_t line);
/* An optimizer's step or clipping begins: what runs outside modules is of it, until a forward in grad mode (of a
 * closure) begins. */
void lb_place_updates(lb_thread *thread);
/* Marks of two steps stay: a graph may live on into the next. */
void lb_place_step_closed(lb_thread *thread);

/* ---- python_line.c */

/* What a code object is to the search for the line of an op; Python says it. */
typedef enum lb_code_kind {
    LB_CODE_PROGRAM = 0, /* its line is the answer */
    LB_CODE_LIBRARY = 1, /* of torch, of Python's library, of lastbit: its caller is asked */
    LB_CODE_ENGINE = 2,  /* the same; and here autograd's engine was called */
    LB_CODE_MADE = 3     /* bytecode that a compiler made of the program's: its lines are not certain */
} lb_code_kind;
/* The line that runs now, in the innermost frame of the program's code, for lb_recorded_call.line; 0: there is none.
 * `in_backward`: frames that called autograd's engine are not asked. */
bool lb_line_here(lb_binding *binding, bool in_backward, uint32_t *line);
/* A line that Python found by itself. 0: out of memory. */
uint32_t lb_line_add(lb_binding *binding, const char *file, uint32_t number, const char *function, const char *text);
void lb_lines_release(lb_binding *binding);

/* ---- python_dispatch.c */
extern PyMethodDef lb_dispatch_method; /* self: the mode */
bool lb_dispatch_plan_add(lb_binding *binding, PyObject *description);
lb_dispatch_plan *lb_dispatch_plan_find(const lb_binding *binding, PyObject *func);
void lb_dispatch_plans_release(lb_binding *binding);
/* An op as a whole or by halves, for Python code that runs it itself. NULL with an exception. */
lb_pending *lb_dispatch_op_begin(lb_binding *binding, lb_dispatch_plan *plan, PyObject *args, PyObject *kwargs);
bool lb_dispatch_op_end(lb_binding *binding, lb_pending *pending, PyObject *result, bool defer, uint32_t *row);

#endif
