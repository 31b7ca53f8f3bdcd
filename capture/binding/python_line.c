/* The line of the program that called an op: see python_binding.h.
 *
 * The innermost frame is nearly always torch's (a functional, a module's call), so some frames are walked per op. What
 * a code object is and what its line says are asked of Python once each; after that a frame costs a look-up by address.
 * The code objects that were asked about are held, so that an address means one of them for good. */
#include "binding/python_binding.h"

#include "base/array.h"
#include <stdlib.h>

enum { MOST_CODES = 1 << 16, MOST_SITES = 1 << 18 };

typedef struct known_code {
    PyObject *code; /* owned */
    lb_code_kind kind;
} known_code;

typedef struct known_site { /* an instruction of a code object */
    PyObject *code;
    int at;
    uint32_t line;
} known_site;

struct lb_line_cache {
    known_code *codes;
    known_site *sites;
    lb_hash by_code, by_site;
};

void lb_lines_release(lb_binding *binding)
{
    struct lb_line_cache *cache = binding->lines;
    if (!cache) return;
    for (uint32_t i = 0; i < cache->by_code.n; i++) py.Py_DecRef(cache->codes[i].code);
    free(cache->codes);
    free(cache->sites);
    lb_hash_release(&cache->by_code);
    lb_hash_release(&cache->by_site);
    free(cache);
    binding->lines = NULL;
}

static bool no_memory(lb_binding *binding)
{
    lb_err err = LB_ERR_INIT;
    lb_fail(&err, LB_ERR_NOMEM, "out of memory in the recorder");
    lb_binding_raise(binding, &err);
    return false;
}

static uint64_t site_hash(const PyObject *code, int at)
{
    return (uint64_t)(uintptr_t)code * 31 + (uint64_t)at;
}

/* ---- what is asked of Python ------------------------------------------------------------------------------------- */

static bool ask_kind(lb_binding *binding, PyObject *code, lb_code_kind *kind)
{
    struct lb_line_cache *cache = binding->lines;
    *kind = LB_CODE_LIBRARY;
    if (cache->by_code.n >= MOST_CODES) return true; /* a program that makes code without end */
    PyObject *answer = py.PyObject_CallFunctionObjArgs(binding->of.code_kind, code, NULL);
    if (!answer) return false;
    *kind = (lb_code_kind)py.PyLong_AsLongLong(answer);
    py.Py_DecRef(answer);
    known_code *codes = lb_array_grow(cache->codes, cache->by_code.n,
                                      sizeof *codes); /* Python has run: another thread may have grown it */
    if (!codes) return no_memory(binding);
    cache->codes = codes;
    codes[cache->by_code.n] = (known_code){code, *kind};
    if (!lb_hash_add(&cache->by_code, (uint64_t)(uintptr_t)code, cache->by_code.n)) return no_memory(binding);
    py.Py_IncRef(code);
    return true;
}

uint32_t lb_line_add(lb_binding *binding, const char *file, uint32_t number, const char *function, const char *text)
{
    lb_binding_lock(binding);
    const uint32_t line = binding->recorder ? lb_recorder_line(binding->recorder, file, number, function, text) : 0;
    pthread_mutex_unlock(&binding->lock);
    return line;
}

static bool ask_line(lb_binding *binding, PyObject *code, int number, uint32_t *line)
{
    const char *texts[3];
    PyObject *where = py.PyLong_FromLongLong(number);
    PyObject *answer = where ? py.PyObject_CallFunctionObjArgs(binding->of.line_of, code, where, NULL) : NULL;
    py.Py_DecRef(where);
    bool fine = answer && py.PyTuple_Size(answer) == 3;
    for (int i = 0; i < 3 && fine; i++) fine = (texts[i] = lb_python_text(py.PyTuple_GetItem(answer, i))) != NULL;
    if (fine && *texts[0]) *line = lb_line_add(binding, texts[0], (uint32_t)number, texts[1], texts[2]);
    py.Py_DecRef(answer);
    return fine;
}

/* ---- one op ------------------------------------------------------------------------------------------------------ */

static bool kind_of(lb_binding *binding, PyObject *code, lb_code_kind *kind)
{
    struct lb_line_cache *cache = binding->lines;
    LB_HASH_EACH(row, &cache->by_code, (uint64_t)(uintptr_t)code)
    if (cache->codes[row].code == code) return *kind = cache->codes[row].kind, true;
    return ask_kind(binding, code, kind);
}

static bool line_of(lb_binding *binding, PyObject *frame, PyObject *code, uint32_t *line)
{
    struct lb_line_cache *cache = binding->lines;
    const int at = py.PyFrame_GetLasti ? py.PyFrame_GetLasti(frame) : py.PyFrame_GetLineNumber(frame);
    const uint64_t hash = site_hash(code, at);
    LB_HASH_EACH(row, &cache->by_site, hash)
    if (cache->sites[row].code == code && cache->sites[row].at == at) return *line = cache->sites[row].line, true;
    if (cache->by_site.n >= MOST_SITES || !binding->recorder) return true;
    if (!ask_line(binding, code, py.PyFrame_GetLineNumber(frame), line)) return false;
    known_site *sites = lb_array_grow(cache->sites, cache->by_site.n, sizeof *sites);
    if (!sites) return no_memory(binding);
    cache->sites = sites;
    sites[cache->by_site.n] = (known_site){code, at, *line};
    return lb_hash_add(&cache->by_site, hash, cache->by_site.n) || no_memory(binding);
}

bool lb_line_here(lb_binding *binding, bool in_backward, uint32_t *line)
{
    *line = 0;
    if (binding->of.code_kind == binding->of.none) return true;
    if (!binding->lines && !(binding->lines = calloc(1, sizeof *binding->lines))) return no_memory(binding);
    PyObject *frame = py.PyEval_GetFrame();
    bool fine = true, more = frame;
    py.Py_IncRef(frame);
    while (fine && more) {
        PyObject *code = py.PyFrame_GetCode(frame);
        lb_code_kind kind = LB_CODE_LIBRARY;
        fine = kind_of(binding, code, &kind);
        more = fine && (kind == LB_CODE_LIBRARY || (kind == LB_CODE_ENGINE && !in_backward));
        if (fine && kind == LB_CODE_PROGRAM) fine = line_of(binding, frame, code, line);
        py.Py_DecRef(code);
        PyObject *caller = more ? py.PyFrame_GetBack(frame) : NULL;
        py.Py_DecRef(frame);
        frame = caller;
        more = frame;
    }
    return fine;
}
