/* Where an op belongs: module, call, phase, autograd node. See python_binding.h.
 *
 * Forward: a stack per thread. Backward: at each module's entry and exit the autograd sequence number is noted (a
 * mark); a node made in between carries a number of that interval, so the node that runs tells the module that made it.
 * Nodes of tensors on a device run in a thread of autograd's engine: their numbers are those of the thread that called
 * backward, and waits. */
#define _GNU_SOURCE /* syscall */
#include "binding/python_binding.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NO_NUMBER (1ull << 63) /* AccumulateGrad carries the largest number */
#define MEMO 64
#define MAX_TEXTS 4096

typedef struct mark {
    int64_t number; /* nodes from here on belong to */
    lb_place place;
} mark;

typedef struct made { /* nodes [from, next) of autograd were made for an op that was called at */
    int64_t from, next;
    uint32_t line;
} made;

typedef struct remembered {
    uint64_t number;
    PyObject *type; /* compared only */
    const char *name;
} remembered;

typedef struct outer { /* what an enclosing backward had */
    uint32_t base;
    bool ran_node;
} outer;

struct lb_thread {
    uint64_t owner; /* serial of the binding */
    int number;     /* 0: the main thread */
    lb_place *stack;
    uint32_t depth, cap; /* stack[0] is outside every module */
    mark *marks;
    uint32_t n_marks, cap_marks, kept_marks;
    made *made; /* ascending */
    uint32_t n_made, cap_made, kept_made;
    int64_t counted; /* autograd's next number when nodes were last counted; -1: not known */
    uint32_t base;   /* depth where backward began: deeper means recompute */
    bool ran_node;
    bool of_engine;      /* it runs nodes, and never called backward */
    bool updates;        /* a backward ended, or an optimizer began, and no forward in grad mode has begun since */
    int64_t next_number; /* of autograd's nodes, at the last op outside backward */
    outer *outers;
    uint32_t backward, cap_outers;
    remembered memo[MEMO];
    lb_object_scratch *scratch;
    bool busy;
    bool aside; /* what runs is part of an op that has begun */
    bool in_graph;
    lb_place graph; /* while it is */
    uint32_t graph_line;
    uint8_t graph_phase;
};

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread lb_thread *mine;

static void thread_free(void *pointer)
{
    lb_thread *thread = (lb_thread *)pointer;
    if (!thread) return;
    free(thread->stack);
    free(thread->marks);
    free(thread->made);
    free(thread->outers);
    lb_object_scratch_free(thread->scratch);
    free(thread);
}

static void make_key(void)
{
    pthread_key_create(&key, thread_free);
}

static bool reserve(void **array, uint32_t *capacity, uint32_t need, size_t size)
{
    void *grown = lb_array_fit(*array, capacity, need, size);
    if (grown) *array = grown;
    return grown;
}

static bool no_memory(lb_binding *binding)
{
    lb_err err = LB_ERR_INIT;
    lb_fail(&err, LB_ERR_NOMEM, "out of memory in the recorder");
    lb_binding_raise(binding, &err);
    return false;
}

/* As if the thread had just begun. */
static bool start(lb_binding *binding, lb_thread *thread)
{
    if (!reserve((void **)&thread->stack, &thread->cap, 1, sizeof thread->stack[0]) ||
        !reserve((void **)&thread->marks, &thread->cap_marks, 1, sizeof thread->marks[0]))
        return no_memory(binding);
    thread->owner = binding->serial;
    thread->number = syscall(SYS_gettid) == getpid() ? 0 : ++binding->n_threads < 255 ? binding->n_threads : 255;
    thread->stack[0] = (lb_place){0, 0};
    thread->marks[0] = (mark){-1, {0, 0}};
    thread->depth = thread->n_marks = thread->base = 1;
    thread->kept_marks = thread->backward = 0;
    thread->n_made = thread->kept_made = 0;
    thread->counted = -1;
    thread->ran_node = thread->busy = thread->aside = thread->in_graph = thread->updates = thread->of_engine = false;
    thread->next_number = INT64_MAX;
    memset(thread->memo, 0, sizeof thread->memo);
    return true;
}

lb_thread *lb_place_thread_get(lb_binding *binding)
{
    if (mine && mine->owner == binding->serial) return mine;
    if (!mine) {
        pthread_once(&once, make_key);
        mine = calloc(1, sizeof *mine);
        if (!mine) {
            no_memory(binding);
            return NULL;
        }
        pthread_setspecific(key, mine);
    }
    return start(binding, mine) ? mine : NULL;
}

lb_object_scratch **lb_place_thread_scratch(lb_thread *thread)
{
    return &thread->scratch;
}
bool lb_place_thread_is_busy(const lb_thread *thread)
{
    return thread->busy || thread->aside;
}
void lb_place_thread_set_busy(lb_thread *thread, bool busy)
{
    thread->busy = busy;
}
void lb_place_thread_set_aside(lb_thread *thread, bool aside)
{
    thread->aside = aside;
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

static bool next_number(lb_binding *binding, int64_t *number)
{
    *number = -1;
    if (binding->of.sequence == binding->of.none) return true;
    PyObject *answer = py.PyObject_CallFunctionObjArgs(binding->of.sequence, NULL);
    if (!answer) return false;
    *number = (int64_t)py.PyLong_AsUnsignedLongLongMask(answer);
    py.Py_DecRef(answer);
    return true;
}

/* Nodes that are made from now on belong to the top of the stack. */
static bool add_mark(lb_binding *binding, lb_thread *thread)
{
    int64_t number;
    if (binding->of.sequence == binding->of.none) return true;
    if (!next_number(binding, &number)) return false;
    if (thread->counted < 0) thread->counted = number;
    mark *last = &thread->marks[thread->n_marks - 1];
    if (last->number == number) { /* no node was made in between */
        last->place = thread->stack[thread->depth - 1];
        return true;
    }
    if (!reserve((void **)&thread->marks, &thread->cap_marks, thread->n_marks + 1, sizeof thread->marks[0]))
        return no_memory(binding);
    thread->marks[thread->n_marks++] = (mark){number, thread->stack[thread->depth - 1]};
    return true;
}

static bool grad_mode(lb_binding *binding, bool *enabled)
{
    PyObject *answer = py.PyObject_CallFunctionObjArgs(binding->of.grad_enabled, NULL);
    *enabled = answer == binding->of.true_;
    py.Py_DecRef(answer);
    return answer;
}

bool lb_place_enter(lb_binding *binding, lb_thread *thread, lb_place place, bool mark)
{
    bool enabled = false;
    if (thread->updates && thread->depth == 1 && !thread->backward) { /* evaluation and generation change nothing */
        if (!grad_mode(binding, &enabled)) return false;
        thread->updates = !enabled;
    }
    if (!reserve((void **)&thread->stack, &thread->cap, thread->depth + 1, sizeof thread->stack[0]))
        return no_memory(binding);
    thread->stack[thread->depth++] = place;
    return !mark || add_mark(binding, thread);
}

bool lb_place_leave(lb_binding *binding, lb_thread *thread, uint32_t depth, bool mark)
{
    if (depth >= 1 && depth < thread->depth) thread->depth = depth;
    return !mark || add_mark(binding, thread);
}

lb_place lb_place_at(const lb_thread *thread, uint32_t depth)
{
    return depth < thread->depth ? thread->stack[depth] : thread->stack[0];
}
uint32_t lb_place_depth(const lb_thread *thread)
{
    return thread->depth;
}
/* The thread whose backward this one runs: itself, or the one that waits for the engine. */
static lb_thread *caller_of(const lb_binding *binding, lb_thread *thread)
{
    return thread->of_engine && !thread->backward && binding->in_backward ? binding->in_backward : thread;
}

bool lb_place_recomputes(const lb_binding *binding, lb_thread *thread, uint32_t depth)
{
    return caller_of(binding, thread)->backward && depth >= thread->base;
}

int lb_place_backward(lb_thread *thread, lb_binding *binding, bool begins)
{
    if (begins) {
        if (!reserve((void **)&thread->outers, &thread->cap_outers, thread->backward + 1, sizeof thread->outers[0]))
            return no_memory(binding), -1;
        thread->outers[thread->backward++] = (outer){thread->base, thread->ran_node};
        thread->base = thread->depth;
        thread->ran_node = false;
        if (thread->backward == 1 && !thread->of_engine) binding->in_backward = thread;
    } else if (thread->backward) {
        const outer *before = &thread->outers[--thread->backward];
        thread->base = before->base;
        thread->ran_node = before->ran_node;
        if (thread->backward == 0) {
            if (binding->in_backward == thread) binding->in_backward = NULL;
            thread->updates = true;
            thread->next_number = INT64_MAX; /* it may have made nodes, of what it ran again */
            if (!next_number(binding, &thread->counted)) return -1;
        }
    }
    return (int)thread->backward;
}

void lb_place_graph(lb_thread *thread, int64_t scope, bool backward, uint32_t line)
{
    thread->graph_line = line;
    thread->in_graph = scope >= 0;
    thread->graph = (lb_place){scope >= 0 ? (uint32_t)scope : 0, 0};
    thread->graph_phase = backward ? LB_PHASE_BACKWARD : LB_PHASE_FORWARD;
}

void lb_place_step_closed(lb_thread *thread)
{
    uint32_t keep = thread->n_marks - thread->kept_marks; /* of this step */
    if (keep < 1) keep = 1;
    memmove(thread->marks, thread->marks + (thread->n_marks - keep), keep * sizeof thread->marks[0]);
    thread->n_marks = thread->kept_marks = keep;
    keep = thread->n_made - thread->kept_made;
    if (keep) memmove(thread->made, thread->made + thread->kept_made, keep * sizeof thread->made[0]);
    thread->n_made = thread->kept_made = keep;
    thread->counted = -1; /* between steps no op is seen */
    memset(thread->memo, 0, sizeof thread->memo);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

/* A copy that lives as long as the binding; there are a few dozen. NULL with an exception. */
static const char *text_of(lb_binding *binding, PyObject *name)
{
    const char *text = name ? lb_python_text(name) : NULL;
    if (!text) return NULL;
    for (size_t i = 0; i < binding->n_texts; i++)
        if (strcmp(binding->texts[i], text) == 0) return binding->texts[i];
    if (binding->n_texts == MAX_TEXTS) return "";
    char **texts = lb_array_grow(binding->texts, binding->n_texts, sizeof *texts);
    if (texts) binding->texts = texts;
    char *copy = texts ? strdup(text) : NULL;
    if (!copy) return no_memory(binding), NULL;
    return binding->texts[binding->n_texts++] = copy;
}

static const char *name_of(lb_binding *binding, lb_thread *thread, PyObject *node, uint64_t number)
{
    PyObject *type = py.PyObject_Type(node);
    py.Py_DecRef(type);
    remembered *known = &thread->memo[number % MEMO];
    if (known->name && known->number == number && known->type == type) return known->name;
    PyObject *name = py.PyObject_CallMethodObjArgs(node, binding->names.name, NULL);
    const char *text = text_of(binding, name);
    py.Py_DecRef(name);
    if (text && number < NO_NUMBER) *known = (remembered){number, type, text};
    return text;
}

static lb_place place_of_number(const lb_thread *thread, uint64_t number)
{
    uint32_t low = 0, high = thread->n_marks; /* the last mark that is not above it */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (thread->marks[middle].number <= (int64_t)number)
            low = middle;
        else
            high = middle;
    }
    return thread->marks[low].place;
}

/* Nodes that were made since they were last counted belong to this op: autograd makes an op's node before it runs the
 * op. */
static bool note_made(lb_binding *binding, lb_thread *thread, int64_t next, uint32_t line)
{
    const int64_t from = thread->counted;
    thread->counted = next;
    if (from < 0 || next <= from || !line) return true;
    if (!reserve((void **)&thread->made, &thread->cap_made, thread->n_made + 1, sizeof thread->made[0]))
        return no_memory(binding);
    thread->made[thread->n_made++] = (made){from, next, line};
    return true;
}

/* The line of the op that a node was made for; 0: not known. */
static uint32_t line_of_number(const lb_thread *thread, uint64_t number)
{
    uint32_t low = 0, high = thread->n_made; /* the first whose nodes end behind it */
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (thread->made[middle].next <= (int64_t)number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < thread->n_made && thread->made[low].from <= (int64_t)number ? thread->made[low].line : 0;
}

/* Code of the program that backward runs (a hook, a custom function, a module run again) has its own line. What adds a
 * gradient to those before it follows from no op of forward: it has the line that called backward. */
static bool line_in_backward(lb_binding *binding, lb_thread *thread, uint64_t number, lb_recorded_call *call)
{
    if (!lb_line_here(binding, true, &call->line)) return false;
    if (!call->line && number < NO_NUMBER) call->line = line_of_number(caller_of(binding, thread), number);
    if (!call->line && number >= NO_NUMBER && !lb_line_here(binding, false, &call->line)) return false;
    int64_t next;
    if (!(call->flags & LB_OP_RECOMPUTE)) return true;
    return next_number(binding, &next) && note_made(binding, thread, next, call->line);
}

static bool place_in_backward(lb_binding *binding, lb_thread *thread, PyObject *node, lb_recorded_call *call)
{
    PyObject *answer = py.PyObject_CallMethodObjArgs(node, binding->names._sequence_nr, NULL);
    if (!answer) return false;
    const uint64_t number = py.PyLong_AsUnsignedLongLongMask(answer);
    py.Py_DecRef(answer);
    thread->of_engine |= !thread->backward && thread != binding->in_backward && binding->in_backward;
    caller_of(binding, thread)->ran_node = thread->ran_node = true;
    call->node_name = name_of(binding, thread, node, number);
    if (!call->node_name) return false;
    call->node = number < NO_NUMBER ? (int64_t)number : -1;
    if (thread->depth > thread->base) { /* a module entered inside backward: recompute */
        call->flags |= LB_OP_RECOMPUTE;
        call->place = thread->stack[thread->depth - 1];
    } else if (number < NO_NUMBER) {
        call->place = place_of_number(caller_of(binding, thread), number);
    } else { /* a gradient is accumulated: the module that owns the parameter */
        PyObject *scope = py.PyObject_CallFunctionObjArgs(binding->of.owner, node, NULL);
        if (!scope) return false;
        call->place = (lb_place){(uint32_t)py.PyLong_AsUnsignedLongLongMask(scope), 0};
        py.Py_DecRef(scope);
    }
    return thread->in_graph || line_in_backward(binding, thread, number, call);
}

void lb_place_updates(lb_thread *thread)
{
    thread->updates = true;
}

/* Its node's number is what it would have been; autograd counted on when it made one for this op. */
static bool count_nodes(lb_binding *binding, lb_thread *thread, lb_recorded_call *call)
{
    if (!next_number(binding, &call->node)) return false;
    call->followed = call->node > thread->next_number;
    thread->next_number = call->node;
    return true;
}

static bool phase_outside_backward(lb_binding *binding, lb_thread *thread, lb_recorded_call *call)
{
    bool enabled = false;
    if (!count_nodes(binding, thread, call)) return false;
    const lb_thread *caller = caller_of(binding, thread);
    if (caller->backward) { /* DDP's last copies run when the engine ends */
        call->phase = caller->ran_node ? LB_PHASE_COMMUNICATION : LB_PHASE_BACKWARD;
    } else if (thread->depth > 1) {
        call->phase = LB_PHASE_FORWARD;
    } else if (binding->optimizer_depth &&
               thread->updates) { /* not between the forward of a closure and its backward */
        call->phase = LB_PHASE_OPTIMIZER;
    } else {
        if (!grad_mode(binding, &enabled)) return false;
        call->phase = enabled ? LB_PHASE_FORWARD : LB_PHASE_OTHER;
        call->after_backward = thread->updates;
    }
    return true;
}

bool lb_place_op(lb_binding *binding, lb_thread *thread, const lb_dispatch_plan *plan, lb_recorded_call *call)
{
    PyObject *node = NULL;
    if (binding->of.node != binding->of.none && !(node = py.PyObject_CallFunctionObjArgs(binding->of.node, NULL)))
        return false;
    call->thread = (uint8_t)thread->number;
    call->place = thread->stack[thread->depth - 1];
    bool fine;
    if (!node || node == binding->of.none) {
        fine = phase_outside_backward(binding, thread, call);
        if (fine && !thread->in_graph)
            fine = lb_line_here(binding, false, &call->line) && note_made(binding, thread, call->node, call->line);
    } else {
        call->phase = LB_PHASE_BACKWARD;
        fine = place_in_backward(binding, thread, node, call);
    }
    if (thread->in_graph) {
        call->place = thread->graph;
        call->line = thread->graph_line;
        call->phase = thread->graph_phase;
        call->flags &= ~(uint32_t)LB_OP_RECOMPUTE;
    }
    if (plan->collective) call->phase = LB_PHASE_COMMUNICATION;
    py.Py_DecRef(node);
    return fine;
}
