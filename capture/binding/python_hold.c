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

static void let_go(lb_binding *b, uint64_t fulfilled)
{
    while (b->first_held < b->n_held && b->held[b->first_held].promised <= fulfilled)
        py.Py_DecRef(b->held[b->first_held++].storage);
    if (b->first_held == b->n_held) b->first_held = b->n_held = 0;
}

static bool reserve(lb_binding *b)
{
    if (b->n_held < b->cap_held) return true;
    if (2 * b->first_held > b->n_held) { /* mostly gone: move down */
        b->n_held -= b->first_held;
        memmove(b->held, b->held + b->first_held, b->n_held * sizeof b->held[0]);
        b->first_held = 0;
        return true;
    }
    lb_held *held = lb_array_fit(b->held, &b->cap_held, b->n_held + 1, sizeof *held);
    if (!held) return false;
    b->held = held;
    return true;
}

/* False when it could not be. */
static bool hold(lb_binding *b, int64_t key, uint64_t promised)
{
    PyObject *address = py.PyLong_FromUnsignedLongLong((uint64_t)key);
    PyObject *storage = address ? py.PyObject_CallFunctionObjArgs(b->of.hold, address, NULL) : NULL;
    py.Py_DecRef(address);
    if (!storage) {
        py.PyErr_Clear();
        return false;
    }
    if (!reserve(b)) { /* behind the call, in which another thread may have held something */
        py.Py_DecRef(storage);
        return false;
    }
    b->held[b->n_held++] = (lb_held){storage, promised};
    return storage != b->of.none;
}

void lb_hold(lb_binding *b, const lb_unheld *unheld)
{
    bool all = true;
    for (uint32_t i = 0; i < unheld->n; i++) all &= hold(b, unheld->keys[i], unheld->promised);
    let_go(b, unheld->fulfilled);
    free(unheld->more);
    if (all) return;
    lb_binding_lock(b);
    if (b->recorder) lb_recorder_settle(b->recorder, 0);
    pthread_mutex_unlock(&b->lock);
}

void lb_hold_take_unheld(lb_binding *b, lb_unheld *unheld)
{
    unheld->n = 0;
    unheld->more = NULL;
    unheld->keys = unheld->few;
    unheld->fulfilled = UINT64_MAX;
    if (!b->recorder) return;
    uint32_t room = LB_FEW_UNHELD;
    for (;;) {
        unheld->n += lb_recorder_unheld(b->recorder, unheld->keys + unheld->n, room - unheld->n, &unheld->promised,
                                        &unheld->fulfilled);
        if (unheld->n < room) return;
        int64_t *more = realloc(unheld->more, 2 * room * sizeof *more);
        if (!more) {
            lb_recorder_settle(b->recorder, 0);
            return;
        }
        if (!unheld->more) memcpy(more, unheld->few, sizeof unheld->few);
        unheld->keys = unheld->more = more;
        room *= 2;
    }
}

void lb_hold_nothing(lb_binding *b)
{
    let_go(b, UINT64_MAX);
}
