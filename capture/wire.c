/* See wire.h. Words come from our own Python, but from inside a foreign process: every count is checked against the array. */
#include "wire.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct function {
    char *name;
    uint32_t flags, n_args;
    uint8_t *arg_flags;
} function;

#define INT_MEANS_FLOAT 128
#define MAX_BEGUN 256

struct lb_wire {
    pthread_mutex_t lock;
    lb_recorder *recorder;
    lb_err err;
    char **strings;
    size_t n_strings, cap_strings;
    function *functions;
    size_t n_functions, cap_functions;
    lb_operand *operands; /* scratch: sized before decoding, so that pointers into it stay */
    size_t n_operands, cap_operands;
    lb_seen *seen;
    size_t n_seen, cap_seen;
    lb_pending *begun[MAX_BEGUN];
    lb_phase phase_of[MAX_BEGUN];
};

typedef struct cursor {
    const int64_t *at, *end;
} cursor;

/* ---- life-cycle ---------------------------------------------------------------------------------------------------- */

lb_wire *lb_wire_new(void)
{
    lb_wire *wire = calloc(1, sizeof *wire);
    if (!wire) return NULL;
    pthread_mutex_init(&wire->lock, NULL);
    if (lb_wire_string(wire, "") == 0) return wire;
    lb_wire_free(wire);
    return NULL;
}

void lb_wire_free(lb_wire *wire)
{
    if (!wire) return;
    for (size_t s = 0; s < wire->n_strings; s++) free(wire->strings[s]);
    for (size_t f = 0; f < wire->n_functions; f++) {
        free(wire->functions[f].name);
        free(wire->functions[f].arg_flags);
    }
    free(wire->strings);
    free(wire->functions);
    free(wire->operands);
    free(wire->seen);
    pthread_mutex_destroy(&wire->lock);
    free(wire);
}

const char *lb_wire_message(const lb_wire *wire) { return wire->err.message; }
lb_recorder *lb_wire_recorder(lb_wire *wire) { return wire->recorder; }

static void begin_call(lb_wire *wire)
{
    pthread_mutex_lock(&wire->lock);
    lb_err_clear(&wire->err);
    wire->n_operands = wire->n_seen = 0;
}

static int end_call(lb_wire *wire, lb_status status)
{
    pthread_mutex_unlock(&wire->lock);
    return status;
}

static const char *text_or_null(const char *text) { return text && *text ? text : NULL; }

int lb_wire_open(lb_wire *wire, const char *folder, const char *level, int rank, int world, const char *keep, const char *layers,
                 uint64_t budget_bytes, uint32_t ring, uint64_t ring_bytes, int overwrite)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    begin_call(wire);
    if (text_or_null(level) && !lb_level_parse(level, &options.level))
        return end_call(wire, lb_fail(&wire->err, LB_ERR_INVALID, "'%s' is no level: stats, sources, layers, ops, auto", level));
    options.rank = rank;
    options.world = world;
    options.keep = text_or_null(keep);
    options.layers = text_or_null(layers);
    options.budget_bytes = budget_bytes;
    options.ring = ring;
    options.ring_bytes = ring_bytes;
    options.overwrite = overwrite;
    return end_call(wire, lb_recorder_open(folder, &options, &wire->recorder, &wire->err));
}

int lb_wire_close(lb_wire *wire)
{
    begin_call(wire);
    lb_status status = lb_recorder_close(wire->recorder, &wire->err);
    wire->recorder = NULL;
    return end_call(wire, status);
}

void lb_wire_abandon(lb_wire *wire)
{
    /* In a forked child: another thread may have held the lock, and is gone. */
    lb_recorder_abandon(wire->recorder);
    wire->recorder = NULL;
}

/* ---- registration -------------------------------------------------------------------------------------------------- */

static bool reserve(void **array, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) return true;
    size_t cap = *capacity ? *capacity : 64;
    while (cap < need) cap *= 2;
    void *grown = realloc(*array, cap * size);
    if (!grown) return false;
    *array = grown;
    *capacity = cap;
    return true;
}

static lb_status no_memory(lb_wire *wire) { return lb_fail(&wire->err, LB_ERR_NOMEM, "out of memory in the recorder"); }

int64_t lb_wire_string(lb_wire *wire, const char *text)
{
    begin_call(wire);
    char *copy = strdup(text);
    if (!copy || !reserve((void **)&wire->strings, &wire->cap_strings, wire->n_strings + 1, sizeof copy)) {
        free(copy);
        return end_call(wire, no_memory(wire));
    }
    wire->strings[wire->n_strings] = copy;
    int64_t number = (int64_t)wire->n_strings++;
    end_call(wire, LB_OK);
    return number;
}

int64_t lb_wire_function(lb_wire *wire, const char *name, uint32_t flags, const uint8_t *arg_flags, uint32_t n_args)
{
    begin_call(wire);
    function f = {strdup(name), flags, n_args, malloc(n_args ? n_args : 1)};
    if (!f.name || !f.arg_flags ||
        !reserve((void **)&wire->functions, &wire->cap_functions, wire->n_functions + 1, sizeof f)) {
        free(f.name);
        free(f.arg_flags);
        return end_call(wire, no_memory(wire));
    }
    if (n_args) memcpy(f.arg_flags, arg_flags, n_args);
    wire->functions[wire->n_functions] = f;
    int64_t number = (int64_t)wire->n_functions++;
    end_call(wire, LB_OK);
    return number;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------ */

static lb_status short_words(lb_wire *wire) { return lb_fail(&wire->err, LB_ERR_INVALID, "the wire's words end too soon"); }

static bool take(cursor *c, int64_t *word)
{
    if (c->at >= c->end) return false;
    *word = *c->at++;
    return true;
}

/* Every operand takes a word at least, every tensor eight. */
static bool reserve_scratch(lb_wire *wire, size_t n)
{
    return reserve((void **)&wire->operands, &wire->cap_operands, n + 1, sizeof wire->operands[0]) &&
           reserve((void **)&wire->seen, &wire->cap_seen, n / 8 + 1, sizeof wire->seen[0]);
}

static lb_status take_tensor(lb_wire *wire, cursor *c, lb_operand *operand)
{
    if (c->end - c->at < 7) return short_words(wire);
    lb_seen *seen = &wire->seen[wire->n_seen++];
    const int64_t *w = c->at;
    const int64_t ndim = w[6];
    if (ndim < 0 || ndim > LB_MAX_DIMS)
        return lb_fail(&wire->err, LB_ERR_UNSUPPORTED, "a tensor of %lld dimensions; %d can be recorded", (long long)ndim, LB_MAX_DIMS);
    if (c->end - c->at < 7 + 2 * ndim) return short_words(wire);
    memset(seen, 0, offsetof(lb_seen, layout));
    seen->storage = w[0];
    seen->data = (const void *)(uintptr_t)w[1];
    seen->storage_bytes = (uint64_t)w[2];
    seen->layout.ndim = (int32_t)ndim;
    seen->layout.offset = w[3];
    seen->dtype = (lb_dtype)w[4];
    seen->device = (uint8_t)w[5];
    for (int64_t d = 0; d < ndim; d++) {
        seen->layout.shape[d] = w[7 + d];
        seen->layout.stride[d] = w[7 + ndim + d];
    }
    for (int64_t d = ndim; d < LB_MAX_DIMS; d++) seen->layout.shape[d] = seen->layout.stride[d] = 0;
    c->at += 7 + 2 * ndim;
    operand->u.tensor = seen;
    return LB_OK;
}

static lb_status take_operand(lb_wire *wire, cursor *c, int depth, lb_operand *operand);

static lb_status take_items(lb_wire *wire, cursor *c, int64_t count, int depth, lb_operand *operand)
{
    if (count < 0 || count > c->end - c->at || depth > 8) return short_words(wire);
    lb_operand *items = &wire->operands[wire->n_operands];
    wire->n_operands += (size_t)count;
    operand->count = (uint32_t)count;
    operand->u.items = items;
    for (int64_t i = 0; i < count; i++) LB_TRY(take_operand(wire, c, depth + 1, &items[i]));
    return LB_OK;
}

static lb_status take_operand(lb_wire *wire, cursor *c, int depth, lb_operand *operand)
{
    int64_t tag, word = 0;
    memset(operand, 0, sizeof *operand);
    if (!take(c, &tag)) return short_words(wire);
    operand->tag = (uint8_t)tag;
    if (tag == LB_ARG_NONE) return LB_OK;
    if (tag == LB_ARG_VALUE) return take_tensor(wire, c, operand);
    if (tag == LB_ARG_COMPLEX) {
        if (c->end - c->at < 2) return short_words(wire);
        lb_operand *parts = &wire->operands[wire->n_operands];
        wire->n_operands += 2;
        for (int p = 0; p < 2; p++) {
            parts[p] = (lb_operand){.tag = LB_ARG_FLOAT};
            memcpy(&parts[p].u.f, c->at++, sizeof parts[p].u.f);
        }
        operand->count = 2;
        operand->u.items = parts;
        return LB_OK;
    }
    if (!take(c, &word)) return short_words(wire);
    switch (tag) {
    case LB_ARG_INT:
    case LB_ARG_BOOL:
    case LB_ARG_DTYPE: operand->u.i = word; return LB_OK;
    case LB_ARG_FLOAT: memcpy(&operand->u.f, &word, sizeof word); return LB_OK;
    case LB_ARG_STRING:
        if (word < 0 || (size_t)word >= wire->n_strings) return lb_fail(&wire->err, LB_ERR_INVALID, "no string %lld", (long long)word);
        operand->u.text = wire->strings[word];
        return LB_OK;
    case LB_ARG_LIST: return take_items(wire, c, word, depth, operand);
    }
    return lb_fail(&wire->err, LB_ERR_INVALID, "no operand has tag %lld", (long long)tag);
}

/* `count` operands, contiguous. */
static lb_status take_counted(lb_wire *wire, cursor *c, lb_operand **operands, uint32_t *n)
{
    int64_t count;
    lb_operand list = {.count = 0};
    if (!take(c, &count)) return short_words(wire);
    LB_TRY(take_items(wire, c, count, 0, &list));
    *operands = (lb_operand *)(uintptr_t)list.u.items;
    *n = list.count;
    return LB_OK;
}

/* ---- ops ----------------------------------------------------------------------------------------------------------- */

static lb_status take_call(lb_wire *wire, cursor *c, lb_call *call)
{
    if (c->end - c->at < 8) return short_words(wire);
    const int64_t *w = c->at;
    c->at += 8;
    if (w[0] < 0 || (size_t)w[0] >= wire->n_functions || w[6] < 0 || (size_t)w[6] >= wire->n_strings)
        return lb_fail(&wire->err, LB_ERR_INVALID, "no such function or string on the wire");
    const function *f = &wire->functions[w[0]];
    lb_operand *args;
    LB_TRY(take_counted(wire, c, &args, &call->n_args));
    for (uint32_t a = 0; a < call->n_args && a < f->n_args; a++) {
        args[a].flags = f->arg_flags[a] & (LB_OPERAND_WRITTEN | LB_OPERAND_OVERWRITTEN);
        if (f->arg_flags[a] & INT_MEANS_FLOAT && args[a].tag == LB_ARG_INT)
            args[a] = (lb_operand){.tag = LB_ARG_FLOAT, .u.f = (double)args[a].u.i};
    }
    call->name = f->name;
    call->phase = (uint8_t)w[1];
    call->flags = f->flags | (uint32_t)w[2];
    call->place = (lb_place){(uint32_t)w[3], (uint32_t)w[4]};
    call->node = w[5];
    call->node_name = w[6] ? wire->strings[w[6]] : NULL;
    call->thread = (uint8_t)w[7];
    call->args = args;
    return LB_OK;
}

static lb_status begin_op(lb_wire *wire, cursor *c, lb_pending **pending)
{
    lb_call call = LB_CALL_INIT;
    LB_TRY(take_call(wire, c, &call));
    return lb_recorder_op_begin(wire->recorder, &call, pending, &wire->err);
}

static lb_status end_op(lb_wire *wire, cursor *c, lb_pending *pending, bool defer, uint32_t *row)
{
    lb_operand *results = NULL;
    uint32_t n = 0;
    lb_status status = take_counted(wire, c, &results, &n);
    if (status != LB_OK) {
        lb_recorder_op_failed(wire->recorder, pending);
        return status;
    }
    LB_TRY(defer ? lb_recorder_op_defer(wire->recorder, pending, results, n, row, &wire->err)
                 : lb_recorder_op_end(wire->recorder, pending, results, n, row, &wire->err));
    for (uint32_t r = 0; r < n; r++) { /* a tensor became a number of the host's */
        if (results[r].tag == LB_ARG_FLOAT) LB_TRY(lb_recorder_scalar(wire->recorder, "item", results[r].u.f, &wire->err));
        if (results[r].tag == LB_ARG_INT || results[r].tag == LB_ARG_BOOL)
            LB_TRY(lb_recorder_scalar(wire->recorder, "item", (double)results[r].u.i, &wire->err));
    }
    return LB_OK;
}

static lb_status put_begun(lb_wire *wire, lb_pending *pending, int64_t *number)
{
    for (int64_t slot = 0; slot < MAX_BEGUN; slot++) {
        if (wire->begun[slot]) continue;
        wire->begun[slot] = pending;
        *number = slot;
        return LB_OK;
    }
    lb_recorder_op_failed(wire->recorder, pending);
    return lb_fail(&wire->err, LB_ERR_LIMIT, "more than %d ops have begun and not ended", MAX_BEGUN);
}

static lb_pending *take_begun(lb_wire *wire, int64_t number)
{
    if (number < 0 || number >= MAX_BEGUN) return NULL;
    lb_pending *pending = wire->begun[number];
    wire->begun[number] = NULL;
    return pending;
}

int64_t lb_wire_op(lb_wire *wire, int mode, int64_t begun, const int64_t *words, size_t n)
{
    begin_call(wire);
    cursor c = {words, words + n};
    lb_status status = LB_OK;
    int64_t number = 0;
    uint32_t row = LB_NONE;
    lb_pending *pending = NULL;
    if (!wire->recorder) {
        status = lb_fail(&wire->err, LB_ERR_STATE, "the wire has no recorder");
    } else if (!reserve_scratch(wire, n)) {
        status = no_memory(wire);
    } else if (mode == LB_WIRE_WHOLE || mode == LB_WIRE_BEGIN) {
        status = begin_op(wire, &c, &pending);
        if (status == LB_OK && mode == LB_WIRE_BEGIN) status = put_begun(wire, pending, &number);
    } else {
        pending = take_begun(wire, begun);
        if (!pending) status = lb_fail(&wire->err, LB_ERR_STATE, "no such op has begun");
    }
    if (status == LB_OK && mode != LB_WIRE_BEGIN) {
        status = end_op(wire, &c, pending, mode == LB_WIRE_DEFER, &row);
        number = row;
    }
    end_call(wire, status);
    return status == LB_OK ? number : status;
}

void lb_wire_failed(lb_wire *wire, int64_t begun)
{
    begin_call(wire);
    lb_pending *pending = take_begun(wire, begun);
    if (wire->recorder) lb_recorder_op_failed(wire->recorder, pending);
    end_call(wire, LB_OK);
}

/* ---- beside ops ---------------------------------------------------------------------------------------------------- */

/* The tensors of a counted list; others are left out. They are made contiguous in the scratch. */
static lb_status take_tensors(lb_wire *wire, const int64_t *words, size_t n, lb_seen **seen, uint32_t *count)
{
    cursor c = {words, words + n};
    lb_operand *operands;
    uint32_t n_operands;
    if (!reserve_scratch(wire, n)) return no_memory(wire);
    LB_TRY(take_counted(wire, &c, &operands, &n_operands));
    *seen = wire->seen; /* decoded in order, one per tensor */
    *count = (uint32_t)wire->n_seen;
    return LB_OK;
}

int64_t lb_wire_enter(lb_wire *wire, uint32_t scope, int recompute, const int64_t *words, size_t n)
{
    begin_call(wire);
    lb_seen *seen = NULL;
    uint32_t count = 0;
    lb_place place = {0, 0};
    lb_status status = take_tensors(wire, words, n, &seen, &count);
    if (status == LB_OK) status = lb_recorder_enter(wire->recorder, scope, seen, count, recompute, &place, &wire->err);
    end_call(wire, status);
    return status == LB_OK ? (int64_t)place.call : status;
}

int lb_wire_leave(lb_wire *wire, uint32_t scope, uint32_t call, int recompute, const int64_t *words, size_t n)
{
    begin_call(wire);
    lb_seen *seen = NULL;
    uint32_t count = 0;
    lb_status status = take_tensors(wire, words, n, &seen, &count);
    if (status == LB_OK)
        status = lb_recorder_leave(wire->recorder, (lb_place){scope, call}, seen, count, recompute, &wire->err);
    return end_call(wire, status);
}

int lb_wire_role(lb_wire *wire, int kind, uint32_t flags, const char *name, const int64_t *words, size_t n)
{
    begin_call(wire);
    lb_operand operand;
    cursor c = {words, words + n};
    lb_status status = reserve_scratch(wire, n) ? take_operand(wire, &c, 0, &operand) : no_memory(wire);
    if (status == LB_OK && operand.tag == LB_ARG_VALUE)
        status = lb_recorder_role(wire->recorder, operand.u.tensor, (lb_source_kind)kind, flags, name, &wire->err);
    return end_call(wire, status);
}

int lb_wire_routing(lb_wire *wire, uint32_t scope, uint32_t call, const int64_t *words, size_t n)
{
    begin_call(wire);
    cursor c = {words, words + n};
    const lb_seen *parts[5] = {NULL};
    lb_status status = reserve_scratch(wire, n) ? LB_OK : no_memory(wire);
    for (int p = 0; p < 5 && status == LB_OK; p++) {
        lb_operand operand;
        status = take_operand(wire, &c, 0, &operand);
        if (status == LB_OK && operand.tag == LB_ARG_VALUE) parts[p] = operand.u.tensor;
    }
    if (status == LB_OK)
        status = lb_recorder_routing(wire->recorder, (lb_place){scope, call}, parts[0], parts[1], parts[2], parts[3], parts[4],
                                     &wire->err);
    return end_call(wire, status);
}

int lb_wire_collective(lb_wire *wire, int64_t op, const char *group, const char *reduce, uint64_t sequence, const int32_t *ranks,
                       uint32_t n_ranks)
{
    begin_call(wire);
    return end_call(wire, lb_recorder_collective(wire->recorder, (uint32_t)op, group, text_or_null(reduce), NULL, sequence, ranks,
                                                 n_ranks, &wire->err));
}

static const char *name_of(const lb_wire *wire, int64_t string)
{
    return string >= 0 && (size_t)string < wire->n_strings ? wire->strings[string] : "";
}

static lb_status take_group(lb_wire *wire, cursor *c, const char *optimizer, uint32_t index, uint32_t first_op)
{
    int64_t n_members, n_options;
    if (!take(c, &n_members) || n_members < 0 || n_members > (c->end - c->at) / 3) return short_words(wire);
    const int64_t *member_words = c->at;
    c->at += 3 * n_members;
    if (!take(c, &n_options) || n_options < 0 || n_options > (c->end - c->at) / 2) return short_words(wire);
    lb_member *members = calloc((size_t)n_members + 1, sizeof members[0]);
    lb_option *options = calloc((size_t)n_options + 1, sizeof options[0]);
    lb_status status = members && options ? LB_OK : no_memory(wire);
    for (int64_t m = 0; m < n_members && status == LB_OK; m++) {
        const int64_t *w = member_words + 3 * m;
        members[m] = (lb_member){name_of(wire, w[0]), w[1], w[2]};
    }
    for (int64_t o = 0; o < n_options && status == LB_OK; o++) {
        options[o].name = name_of(wire, c->at[2 * o]);
        memcpy(&options[o].number, &c->at[2 * o + 1], sizeof options[o].number);
    }
    if (status == LB_OK)
        status = lb_recorder_group(wire->recorder, optimizer, index, first_op, members, (uint32_t)n_members, options,
                                   (uint32_t)n_options, &wire->err);
    free(members);
    free(options);
    return status;
}

int lb_wire_group(lb_wire *wire, const char *optimizer, uint32_t index, uint32_t first_op, const int64_t *words, size_t n)
{
    begin_call(wire);
    cursor c = {words, words + n};
    return end_call(wire, take_group(wire, &c, optimizer, index, first_op));
}

int lb_wire_step_begin(lb_wire *wire, int64_t step, const char *shard)
{
    begin_call(wire);
    return end_call(wire, lb_recorder_step_begin(wire->recorder, step, text_or_null(shard), &wire->err));
}

int lb_wire_step_end(lb_wire *wire, int complete)
{
    begin_call(wire);
    return end_call(wire, lb_recorder_step_end(wire->recorder, complete, &wire->err));
}

int lb_wire_scalar(lb_wire *wire, const char *name, double number)
{
    begin_call(wire);
    return end_call(wire, lb_recorder_scalar(wire->recorder, name, number, &wire->err));
}

int lb_wire_notice(lb_wire *wire, const char *kind, const char *message)
{
    begin_call(wire);
    return end_call(wire, lb_recorder_notice(wire->recorder, kind, message, &wire->err));
}

int lb_wire_table(lb_wire *wire, const char *name, const char *json)
{
    begin_call(wire);
    return end_call(wire, lb_recorder_table(wire->recorder, name, json, &wire->err));
}

int lb_wire_trigger(lb_wire *wire, const char *why)
{
    begin_call(wire);
    return end_call(wire, lb_recorder_trigger(wire->recorder, why, &wire->err));
}

void lb_wire_forget(lb_wire *wire, const int64_t *storages, size_t n)
{
    begin_call(wire);
    for (size_t s = 0; s < n && wire->recorder; s++) lb_recorder_forget(wire->recorder, storages[s]);
    end_call(wire, LB_OK);
}
