/* Storages that the recorder reads while the host goes on, held until it has. See python_binding.h.
 *
 * Holding a storage keeps its bytes where they are and changes nothing that the program can ask for; a tensor is never
 * held. The recorder counts what it promised to measure and what it has: a storage may go when the second number has
 * reached what the first one was. */
#include "binding/python_binding.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct lb_held {
    PyObject *storage;
    uint64_t promised;
} lb_held;

static void let_go(lb_binding *binding, uint64_t fulfilled)
{
    while (binding->first_held < binding->n_held && binding->held[binding->first_held].promised <= fulfilled)
        py.Py_DecRef(binding->held[binding->first_held++].storage);
    if (binding->first_held == binding->n_held) binding->first_held = binding->n_held = 0;
}

static bool reserve(lb_binding *binding)
{
    if (binding->n_held < binding->cap_held) return true;
    if (2 * binding->first_held > binding->n_held) { /* mostly gone: move down */
        binding->n_held -= binding->first_held;
        memmove(binding->held, binding->held + binding->first_held, binding->n_held * sizeof binding->held[0]);
        binding->first_held = 0;
        return true;
    }
    lb_held *held = lb_array_fit(binding->held, &binding->cap_held, binding->n_held + 1, sizeof *held);
    if (!held) return false;
    binding->held = held;
    return true;
}

/* False when it could not be. */
static bool hold(lb_binding *binding, int64_t key, uint64_t promised)
{
    PyObject *address = py.PyLong_FromUnsignedLongLong((uint64_t)key);
    PyObject *storage = address ? py.PyObject_CallFunctionObjArgs(binding->of.hold, address, NULL) : NULL;
    py.Py_DecRef(address);
    if (!storage) {
        py.PyErr_Clear();
        return false;
    }
    if (!reserve(binding)) { /* behind the call, in which another thread may have held something */
        py.Py_DecRef(storage);
        return false;
    }
    binding->held[binding->n_held++] = (lb_held){storage, promised};
    return storage != binding->of.none;
}

void lb_hold(lb_binding *binding, const lb_unheld *unheld)
{
    bool all = true;
    for (uint32_t i = 0; i < unheld->n; i++) all &= hold(binding, unheld->keys[i], unheld->promised);
    let_go(binding, unheld->fulfilled);
    free(unheld->more);
    if (all) return;
    lb_binding_lock(binding);
    if (binding->recorder) lb_recorder_settle(binding->recorder, 0);
    pthread_mutex_unlock(&binding->lock);
}

void lb_hold_take_unheld(lb_binding *binding, lb_unheld *unheld)
{
    unheld->n = 0;
    unheld->more = NULL;
    unheld->keys = unheld->few;
    unheld->fulfilled = UINT64_MAX;
    if (!binding->recorder) return;
    uint32_t room = LB_FEW_UNHELD;
    for (;;) {
        unheld->n += lb_recorder_unheld(binding->recorder, unheld->keys + unheld->n, room - unheld->n,
                                        &unheld->promised, &unheld->fulfilled);
        if (unheld->n < room) return;
        int64_t *more = realloc(unheld->more, 2 * room * sizeof *more);
        if (!more) {
            lb_recorder_settle(binding->recorder, 0);
            return;
        }
        if (!unheld->more) memcpy(more, unheld->few, sizeof unheld->few);
        unheld->keys = unheld->more = more;
        room *= 2;
    }
}

void lb_hold_nothing(lb_binding *binding)
{
    let_go(binding, UINT64_MAX);
}
