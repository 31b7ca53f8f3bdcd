/* Residual streams and block classes: see block.h. */
#include "program/block.h"

#include "kernel/ops.h"

#include "base/array.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

bool lb_block_scope_within(const lb_program *program, uint32_t inner, uint32_t outer)
{
    for (uint32_t s = inner; s != LB_NONE; s = program->scopes[s].parent)
        if (s == outer) return true;
    return false;
}

/* ---- calls of a module ------------------------------------------------------------------------------------------ */

/* Boundaries stand in order of execution; entry rows of a call come before its exit rows. A module without tensor
 * arguments has no entry rows: it begins with its first op after the previous call. */
lb_status lb_block_module_calls(const lb_program *program, uint32_t scope, lb_module_call **out, uint32_t *n,
                                lb_err *err)
{
    lb_module_call *calls = NULL;
    uint32_t count = 0;
    *out = NULL, *n = 0;
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *row = &program->boundaries[i];
        if (row->scope != scope) continue;
        lb_module_call *found = NULL;
        for (uint32_t k = 0; k < count; k++)
            if (calls[k].call == row->call && calls[k].recompute == row->recompute) found = &calls[k];
        if (!found) {
            lb_module_call *more = lb_array_grow(calls, count, sizeof *more);
            if (!more) {
                free(calls);
                return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            }
            calls = more;
            found = &calls[count++];
            *found = (lb_module_call){scope, row->call, row->op, row->op, row->recompute};
            if (row->output) {
                uint32_t floor = count > 1 ? calls[count - 2].last : 0;
                while (found->first > floor &&
                       lb_block_scope_within(program, program->ops[found->first - 1].scope, scope))
                    found->first--;
            }
        }
        if (row->output)
            found->last = row->op;
        else if (row->op < found->first)
            found->first = row->op;
    }
    *out = calls;
    *n = count;
    return LB_OK;
}

/* ---- tracing the stream ----------------------------------------------------------------------------------------- */

static bool is_plain_add(const lb_program *program, const lb_op *op)
{
    if (strcmp(lb_op_name(program, op), "aten::add.Tensor") && strcmp(lb_op_name(program, op), "aten::add_.Tensor"))
        return false;
    const lb_arg *args = lb_op_args(program, op);
    if (op->args < 2 || args[0].tag != LB_ARG_VALUE || args[1].tag != LB_ARG_VALUE) return false;
    if (op->args < 3 || args[2].tag == LB_ARG_NONE) return true;
    return args[2].tag == LB_ARG_FLOAT ? args[2].u.f == 1.0 : args[2].u.i == 1;
}

/* Latest op in [lower, before) that writes into the window of `value`, or LB_NONE. */
static uint32_t def_before(const lb_slice_flow *flow, uint32_t before, uint32_t lower, uint32_t value)
{
    const lb_program *program = flow->program;
    const lb_value *v = &program->values[value];
    int64_t first, last;
    if (lb_layout_dense_range(&v->layout, &first, &last, NULL) != LB_OK) return LB_NONE;
    for (uint32_t i = before; i-- > lower;) {
        const lb_op *op = &program->ops[i];
        if (!lb_slice_op_defines(program, op)) continue;
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            uint32_t w = lb_op_outcome(program, op, r);
            if (w == LB_NONE || program->values[w].storage != v->storage) continue;
            int64_t wfirst, wlast;
            if (lb_layout_dense_range(&program->values[w].layout, &wfirst, &wlast, NULL) != LB_OK) continue;
            if (wfirst < last && first < wlast) return i;
        }
    }
    return LB_NONE;
}

typedef struct trace {
    const lb_slice_flow *flow;
    const lb_module_call *call;
    const uint32_t *inputs; /* values */
    uint32_t n_inputs;
    uint8_t *path;
} trace;

static bool same_window(const lb_program *program, uint32_t a, uint32_t b)
{
    const lb_value *x = &program->values[a], *y = &program->values[b];
    int64_t xf, xl, yf, yl;
    if (x->storage != y->storage || lb_layout_numel(&x->layout) != lb_layout_numel(&y->layout)) return false;
    return lb_layout_dense_range(&x->layout, &xf, &xl, NULL) == LB_OK &&
           lb_layout_dense_range(&y->layout, &yf, &yl, NULL) == LB_OK && xf == yf && xl == yl;
}

static bool trace_value(const trace *trace, uint32_t value, uint32_t at, int depth)
{
    const lb_program *program = trace->flow->program;
    uint32_t def = def_before(trace->flow, at, trace->call->first, value);
    if (def == LB_NONE) {
        for (uint32_t i = 0; i < trace->n_inputs; i++)
            if (same_window(program, trace->inputs[i], value)) return true;
        return false;
    }
    const lb_op *op = &program->ops[def];
    const lb_arg *args = lb_op_args(program, op);
    if (depth > 4096) return false;
    if (is_plain_add(program, op)) {
        int64_t n = lb_layout_numel(&program->values[value].layout);
        for (uint32_t k = 0; k < 2; k++)
            if (lb_layout_numel(&program->values[args[k].u.value].layout) == n &&
                trace_value(trace, args[k].u.value, def, depth + 1)) {
                trace->path[def - trace->call->first] = (uint8_t)(1 + k);
                return true;
            }
        return false;
    }
    if ((lb_op_known_is(program, op, "_to_copy") || lb_op_known_is(program, op, "clone") ||
         lb_op_known_is(program, op, "contiguous")) &&
        args[0].tag == LB_ARG_VALUE && trace_value(trace, args[0].u.value, def, depth + 1)) {
        trace->path[def - trace->call->first] = LB_PATH_KEPT;
        return true;
    }
    return false;
}

bool lb_block_residual_trace(const lb_slice_flow *flow, const lb_module_call *call, uint8_t *path)
{
    const lb_program *program = flow->program;
    uint32_t inputs[64], n_inputs = 0;
    bool found = false;
    memset(path, 0, call->last - call->first);
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *row = &program->boundaries[i];
        if (row->scope == call->scope && row->call == call->call && row->recompute == call->recompute && !row->output &&
            lb_dtype_is_float(program->values[row->value].dtype) && n_inputs < 64)
            inputs[n_inputs++] = row->value;
    }
    trace trace = {flow, call, inputs, n_inputs, path};
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *row = &program->boundaries[i];
        if (row->scope == call->scope && row->call == call->call && row->recompute == call->recompute && row->output &&
            lb_dtype_is_float(program->values[row->value].dtype))
            found |= trace_value(&trace, row->value, row->op, 0);
    }
    return found;
}

/* ---- classes ---------------------------------------------------------------------------------------------------- */

/* Where the last occurrence of a word ends in a text, in any case; 0: nowhere. */
static size_t last_end(const char *text, const char *word)
{
    const size_t n = strlen(word);
    size_t end = 0;
    for (size_t at = 0; text[at]; at++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)text[at + i]) == word[i]) i++;
        if (i == n) end = at + n;
    }
    return end;
}

/* Names begin with the model's and end with what the module is: Qwen3MoeAttention is attention. Of words that end
 * together the longer counts. What a mixture's model calls an MLP may be its experts or a dense layer: that name does
 * not speak, nor does a norm's. */
static char letter_of_name(const char *name)
{
    static const struct {
        char letter;
        const char *words[14];
    } table[] = {
        {'E', {"moe", "expert", "mixtureof", "sparsemlp"}},
        {'M', {"mamba", "ssm", "ssd", "selectivescan", "statespace", "hyena"}},
        {'R', {"rnn", "lstm", "recurr", "deltanet", "rwkv", "griffin", "retention", "gru"}},
        {'A', {"attention", "attn", "mla"}},
        {'D', {"mlp", "feedforward", "ffn", "feed_forward", "swiglu", "layerff", "denseact", "intermediate"}},
    };
    char letter = 0;
    size_t latest = 0, longest = 0;
    bool mixture = false;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int k = 0; k < 14 && table[i].words[k]; k++) {
            const size_t end = last_end(name, table[i].words[k]), length = strlen(table[i].words[k]);
            if (end && table[i].letter == 'E') mixture = true;
            if (!end || end < latest || (end == latest && length <= longest)) continue;
            letter = table[i].letter, latest = end, longest = length;
        }
    return last_end(name, "norm") || (letter == 'D' && mixture) ? 0 : letter;
}

static uint32_t depth_below(const lb_program *program, uint32_t scope, uint32_t top)
{
    uint32_t depth = 0;
    for (; scope != top; scope = program->scopes[scope].parent) depth++;
    return depth;
}

/* The nearest scope below `top` whose class name speaks. */
static char letter_by_name(const lb_program *program, uint32_t top)
{
    char letter = 0;
    uint32_t nearest = UINT32_MAX;
    for (uint32_t s = 1; s < program->n_scopes; s++) {
        if (!lb_block_scope_within(program, s, top)) continue;
        char one = letter_of_name(lb_program_text(program, program->scopes[s].class_name));
        uint32_t depth = depth_below(program, s, top);
        /* At one depth experts beat the dense layers that they consist of. */
        if (one && (depth < nearest || (depth == nearest && letter == 'D'))) letter = one, nearest = depth;
    }
    return letter;
}

static char letter_by_structure(const lb_slice_flow *flow, const lb_module_call *call)
{
    const lb_program *program = flow->program;
    bool top_k = false, placed = false, softmax = false, scan = false;
    uint32_t last_gate = LB_NONE, chain = 0;
    uint8_t *after_sum = calloc(program->n_ops + 1, 1), *after_gate = calloc(program->n_ops + 1, 1);
    if (!after_sum || !after_gate) goto out;
    for (uint32_t i = call->first; i < call->last; i++) {
        const lb_op *op = &program->ops[i];
        if (!lb_block_scope_within(program, op->scope, call->scope)) continue;
        for (uint32_t e = flow->first_def[i]; e < flow->first_def[i + 1]; e++) {
            after_sum[i] |= after_sum[flow->defs[e]];
            after_gate[i] |= after_gate[flow->defs[e]];
        }
        top_k |= lb_op_known_is(program, op, "topk") || lb_op_known_is(program, op, "sort") ||
                 lb_op_known_is(program, op, "argsort");
        placed |= lb_op_known_is(program, op, "index_add") || lb_op_known_is(program, op, "index_add_") ||
                  lb_op_known_is(program, op, "index_put_") || lb_op_known_is(program, op, "scatter_add") ||
                  lb_op_known_is(program, op, "scatter_add_") || lb_op_known_is(program, op, "_grouped_mm") ||
                  lb_op_known_is(program, op, "index_copy");
        softmax |= lb_op_known_is(program, op, "_softmax") || lb_op_known_is(program, op, "_safe_softmax") ||
                   strstr(lb_op_name(program, op), "scaled_dot_product") != NULL;
        if (lb_op_known_is(program, op, "cumsum")) after_sum[i] = 1;
        scan |= (lb_op_known_is(program, op, "exp") && after_sum[i]) || strstr(lb_op_name(program, op), "scan") != NULL;
        if (lb_op_known_is(program, op, "tanh") || lb_op_known_is(program, op, "sigmoid") ||
            lb_op_known_is(program, op, "tanh_") || lb_op_known_is(program, op, "sigmoid_")) {
            if (last_gate == LB_NONE || after_gate[i]) chain++;
            last_gate = i;
            after_gate[i] = 1;
        }
    }
out:
    free(after_sum);
    free(after_gate);
    if (top_k && placed) return 'E';
    if (scan) return 'M';
    if (chain >= 3) return 'R';
    return softmax ? 'A' : 'D';
}

/* ---- blocks ----------------------------------------------------------------------------------------------------- */

typedef struct finder {
    const lb_program *program;
    const lb_slice_flow *flow;
    lb_module_call *calls; /* first forward call per scope; last == first: none */
    uint8_t *stream;       /* per op: 1 + k for an add on some stream */
    uint8_t *own;          /* per scope: has its own residual */
    lb_blocks *blocks;
} finder;

static lb_status add_block(finder *finder, uint32_t scope, bool own, lb_err *err)
{
    lb_blocks *blocks = finder->blocks;
    for (uint32_t i = 0; i < blocks->n; i++)
        if (blocks->rows[i].scope == scope) return LB_OK;
    lb_block *more = lb_array_grow(blocks->rows, blocks->n, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    blocks->rows = more;
    char letter = letter_by_name(finder->program, scope);
    lb_block row = {scope, letter, own, !letter};
    if (!letter) row.letter = letter_by_structure(finder->flow, &finder->calls[scope]);
    blocks->rows[blocks->n++] = row;
    return LB_OK;
}

static lb_status find_streams(finder *finder, lb_err *err)
{
    const lb_program *program = finder->program;
    uint8_t *path = malloc((size_t)program->n_ops + 1);
    if (!path) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = LB_OK;
    for (uint32_t s = 1; s < program->n_scopes && status == LB_OK; s++) {
        lb_module_call *calls;
        uint32_t n;
        status = lb_block_module_calls(program, s, &calls, &n, err);
        for (uint32_t c = 0; c < n; c++) {
            if (calls[c].recompute || calls[c].last <= calls[c].first) continue;
            finder->calls[s] = calls[c];
            if (!lb_block_residual_trace(finder->flow, &calls[c], path)) break;
            for (uint32_t i = calls[c].first; i < calls[c].last; i++)
                if (path[i - calls[c].first] && path[i - calls[c].first] != LB_PATH_KEPT) {
                    finder->own[s] = 1;
                    finder->stream[i] = path[i - calls[c].first];
                }
            break;
        }
        free(calls);
    }
    free(path);
    return status;
}

/* Where no module has its own residual, the parent does all adds: the longest chain of adds of one shape is the
 * stream. */
static lb_status find_chain(finder *finder, lb_err *err)
{
    const lb_program *program = finder->program;
    uint32_t *length = calloc((size_t)program->n_ops + 1, sizeof *length),
             *from = malloc(((size_t)program->n_ops + 1) * sizeof *from);
    uint8_t *arg = calloc((size_t)program->n_ops + 1, 1);
    uint32_t best = LB_NONE;
    lb_status status = length && from && arg ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < program->n_ops && status == LB_OK; i++) {
        const lb_op *op = &program->ops[i];
        if (op->phase != LB_PHASE_FORWARD || (op->flags & LB_OP_RECOMPUTE) || !is_plain_add(program, op)) continue;
        const lb_arg *args = lb_op_args(program, op);
        length[i] = 1, from[i] = LB_NONE, arg[i] = 1;
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t def;
            if (lb_slice_flow_defs_of(finder->flow, i, args[k].u.value, &def, 1) == 0 || !length[def] ||
                length[def] + 1 <= length[i] ||
                !lb_layout_same_shape(&program->values[args[0].u.value].layout,
                                      &program->values[args[1].u.value].layout))
                continue;
            length[i] = length[def] + 1, from[i] = def, arg[i] = (uint8_t)(1 + k);
        }
        if (best == LB_NONE || length[i] > length[best]) best = i;
    }
    if (best != LB_NONE && length[best] >= 2)
        for (uint32_t i = best; i != LB_NONE; i = from[i]) finder->stream[i] = arg[i];
    free(length);
    free(from);
    free(arg);
    return status;
}

/* The outermost module strictly inside `parent` whose output is what arg `branch` of the add shows; casts, clones and
 * products with a mask or a scale are passed. */
static uint32_t branch_module(const finder *finder, uint32_t add, uint32_t branch, uint32_t parent)
{
    const lb_program *program = finder->program;
    uint32_t value = lb_op_args(program, &program->ops[add])[branch].u.value, at = add,
             floor = finder->calls[parent].first;
    for (int hop = 0; hop < 8; hop++) {
        uint32_t best = LB_NONE;
        for (uint32_t i = 0; i < program->n_boundaries; i++) {
            const lb_boundary *row = &program->boundaries[i];
            if (!row->output || row->recompute || row->op > add || row->op < floor || row->scope == parent) continue;
            if (!lb_block_scope_within(program, row->scope, parent) || !same_window(program, row->value, value))
                continue;
            if (best == LB_NONE || lb_block_scope_within(program, best, row->scope)) best = row->scope;
        }
        if (best != LB_NONE) return best;
        uint32_t def = def_before(finder->flow, at, floor, value);
        if (def == LB_NONE) return LB_NONE;
        const lb_op *op = &program->ops[def];
        if (!lb_op_known_is(program, op, "_to_copy") && !lb_op_known_is(program, op, "clone") &&
            !lb_op_known_is(program, op, "mul") && !lb_op_known_is(program, op, "div") &&
            !lb_op_known_is(program, op, "native_dropout") && !lb_op_known_is(program, op, "mul_") &&
            !lb_op_known_is(program, op, "div_"))
            return LB_NONE;
        if (lb_op_args(program, op)[0].tag != LB_ARG_VALUE) return LB_NONE;
        value = lb_op_args(program, op)[0].u.value;
        at = def;
    }
    return LB_NONE;
}

static lb_status collect(finder *finder, lb_err *err)
{
    const lb_program *program = finder->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!finder->stream[i]) continue;
        uint32_t parent = program->ops[i].scope, adds = 0;
        for (uint32_t k = finder->calls[parent].first; k < finder->calls[parent].last; k++)
            adds += finder->stream[k] && program->ops[k].scope == parent;
        if (adds == 1 && finder->own[parent]) {
            LB_TRY(add_block(finder, parent, true, err));
            continue;
        }
        uint32_t module = branch_module(finder, i, 2 - finder->stream[i], parent);
        if (module != LB_NONE) LB_TRY(add_block(finder, module, false, err));
    }
    return LB_OK;
}

/* Every scope inside a block has its letter; scopes beside it that feed only this block (its norm) too. */
static void paint(finder *finder)
{
    const lb_program *program = finder->program;
    char *letters = finder->blocks->letters;
    for (uint32_t b = finder->blocks->n; b-- > 0;)
        for (uint32_t scope = 1; scope < program->n_scopes; scope++)
            if (lb_block_scope_within(program, scope, finder->blocks->rows[b].scope))
                letters[scope] = finder->blocks->rows[b].letter;
    for (uint32_t scope = 1; scope < program->n_scopes; scope++) {
        const lb_module_call *call = &finder->calls[scope];
        if (letters[scope] || call->last <= call->first || !program->scopes[scope].parent ||
            !finder->own[program->scopes[scope].parent])
            continue;
        char only = 0;
        for (uint32_t i = call->first; i < call->last; i++)
            for (uint32_t e = finder->flow->first_use[i]; e < finder->flow->first_use[i + 1]; e++) {
                const lb_op *user = &program->ops[finder->flow->uses[e]];
                if (user->phase != LB_PHASE_FORWARD || lb_block_scope_within(program, user->scope, scope)) continue;
                char one = letters[user->scope] ? letters[user->scope] : '?';
                only = !only || only == one ? one : '?';
            }
        if (only && only != '?') letters[scope] = only;
    }
}

lb_status lb_blocks_find(const lb_program *program, const lb_slice_flow *flow, lb_blocks *blocks, lb_err *err)
{
    finder finder = {.program = program, .flow = flow, .blocks = blocks};
    *blocks = (lb_blocks){.letters = calloc(program->n_scopes + 1, 1)};
    finder.calls = calloc(program->n_scopes + 1, sizeof *finder.calls);
    finder.own = calloc(program->n_scopes + 1, 1);
    finder.stream = calloc((size_t)program->n_ops + 1, 1);
    lb_status status = blocks->letters && finder.calls && finder.own && finder.stream
                           ? LB_OK
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = find_streams(&finder, err);
    if (status == LB_OK) status = collect(&finder, err);
    if (status == LB_OK && !blocks->n) status = find_chain(&finder, err);
    if (status == LB_OK && !blocks->n) status = collect(&finder, err);
    if (status == LB_OK)
        paint(&finder);
    else
        lb_blocks_release(blocks);
    free(finder.calls);
    free(finder.own);
    free(finder.stream);
    return status;
}

void lb_blocks_release(lb_blocks *blocks)
{
    free(blocks->rows);
    free(blocks->letters);
    *blocks = (lb_blocks){0};
}
