/* Skip: a module is taken out of a step, with everything it gave back.
 *
 *      forward   x ──▶ [ x + f(x) ] ──▶ y      own residual: f goes, the add becomes lb::copy(x)
 *                x ──▶ [   f(x)   ] ──▶ y      else: f goes, y := 0
 *      backward  g ──▶ [ f'(g) ] ──▶ g + f'(g) f' goes, the add that joins it becomes lb::copy(g)
 *                gradients of its parameters := 0
 *      optimizer writes to its parameters and their state go; lists (`_foreach_`, `_fused_`) lose those elements; what
 *      other code
 *                writes over them stays
 *
 * Removal, not multiplication by zero: 0 x NaN would keep a failure alive that the skip should cure. An op of the
 * module is live (kept), copied or dead. What a dead op left in a storage that it made and that a live op reads,
 * becomes lb::zero; what it wrote into another owner's storage (a statistics buffer, an amax history) is not written.
 *
 * Kept although inside: sources, collectives (others wait for them) and gradient accumulation, which then adds zeros.
 */
#include "program/block.h"
#include "program/optimizer_ops.h"
#include "program/passes.h"
#include "program/rewrite.h"

#include <stdlib.h>
#include <string.h>

enum fate { LIVE = 0, DEAD = 1, COPY = 2 };

typedef struct skip {
    const lb_program *program;
    lb_slice_flow *flow;
    uint8_t *inside;    /* per scope */
    uint8_t *path;      /* per op: as lb_block_residual_trace, over all calls */
    uint8_t *fate;      /* per op */
    uint8_t *carries;   /* per op with fate COPY: arg that is copied */
    uint8_t *frozen;    /* per dense storage: its optimizer updates stop */
    uint8_t *optimizer; /* per op: an optimizer's */
    bool any_kept;      /* some path has a cast or copy on it */
} skip;

/* ---- fates ------------------------------------------------------------------------------------------------------ */

static bool is_add(const lb_program *program, const lb_op *op)
{
    const char *name = lb_op_name(program, op);
    const lb_arg *args = lb_op_args(program, op);
    return (!strcmp(name, "aten::add.Tensor") || !strcmp(name, "aten::add_.Tensor")) && op->args >= 2 &&
           args[0].tag == LB_ARG_VALUE && args[1].tag == LB_ARG_VALUE;
}

static bool always_kept(const lb_program *program, const lb_op *op)
{
    return op->flags & LB_OP_COLLECTIVE || !strncmp(lb_op_name(program, op), "lb::", 4) ||
           strstr(lb_program_text(program, op->node_name), "AccumulateGrad") != NULL ||
           (op->phase != LB_PHASE_FORWARD && op->phase != LB_PHASE_BACKWARD);
}

/* Does `op` see contents in `value` that a live op computed? */
static bool sees_live(const skip *skip, uint32_t op, uint32_t value)
{
    uint32_t defs[64], n = lb_slice_flow_defs_of(skip->flow, op, value, defs, 64);
    for (uint32_t i = 0; i < n && i < 64; i++)
        if (skip->fate[defs[i]] != DEAD) return true;
    return n == 0;
}

/* An autograd node that belongs to a kept forward op: its sequence number was the next to be given when that op ran. */
static bool of_kept_forward(const skip *skip, uint32_t op)
{
    const lb_op *backward = &skip->program->ops[op];
    for (uint32_t i = op; skip->any_kept && backward->node >= 0 && i-- > 0;)
        if (skip->path[i] == LB_PATH_KEPT && skip->program->ops[i].node == backward->node + 1) return true;
    return false;
}

static void decide(skip *skip, uint32_t i)
{
    const lb_op *op = &skip->program->ops[i];
    const lb_arg *args = lb_op_args(skip->program, op);
    if (!skip->inside[op->scope] || always_kept(skip->program, op)) return;
    skip->fate[i] = DEAD;
    bool backward = op->phase == LB_PHASE_BACKWARD && !(op->flags & LB_OP_RECOMPUTE);
    if (!backward) {
        if (skip->path[i] == LB_PATH_KEPT)
            skip->fate[i] = LIVE;
        else if (skip->path[i])
            skip->fate[i] = COPY, skip->carries[i] = (uint8_t)(skip->path[i] - 1);
        return;
    }
    if (is_add(skip->program, op)) {
        bool first = sees_live(skip, i, args[0].u.value), second = sees_live(skip, i, args[1].u.value);
        if (first && second)
            skip->fate[i] = LIVE;
        else if (first || second)
            skip->fate[i] = COPY, skip->carries[i] = second;
    } else if (of_kept_forward(skip, i))
        skip->fate[i] = LIVE;
}

static lb_status trace_calls(skip *skip, uint32_t scope, lb_err *err)
{
    lb_module_call *calls;
    uint32_t n;
    LB_TRY(lb_block_module_calls(skip->program, scope, &calls, &n, err));
    uint8_t *path = malloc((size_t)skip->program->n_ops + 1);
    for (uint32_t c = 0; path && c < n; c++) {
        if (calls[c].last <= calls[c].first || !lb_block_residual_trace(skip->flow, &calls[c], path)) continue;
        for (uint32_t i = calls[c].first; i < calls[c].last; i++)
            if (path[i - calls[c].first]) {
                skip->path[i] = path[i - calls[c].first];
                skip->any_kept |= skip->path[i] == LB_PATH_KEPT;
            }
    }
    free(calls);
    free(path);
    return path ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

/* ---- what is frozen --------------------------------------------------------------------------------------------- */

/* "layers.3.mlp.down.weight" lies below "layers.3". */
static bool name_below(const char *name, const char *path)
{
    size_t n = strlen(path);
    return !strncmp(name, path, n) && name[n] == '.';
}

static bool name_inside(const skip *skip, const char *name, const uint32_t *scopes, uint32_t n)
{
    const char *owner = strrchr(name, ':'); /* "optimizer.exp_avg:NAME" */
    for (uint32_t i = 0; i < n; i++)
        if (name_below(owner ? owner + 1 : name, lb_program_text(skip->program, skip->program->scopes[scopes[i]].path)))
            return true;
    return false;
}

static void find_frozen(skip *skip, const uint32_t *scopes, uint32_t n)
{
    const lb_program *program = skip->program;
    for (uint32_t i = 0; i < program->n_values; i++)
        if (program->values[i].name != LB_NONE && program->values[i].flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE) &&
            name_inside(skip, lb_program_text(program, program->values[i].name), scopes, n))
            skip->frozen[skip->flow->storage_of[i]] = 1;
    for (uint32_t i = 0; i < program->n_group_params; i++) {
        uint32_t storage = lb_slice_flow_storage(skip->flow, program->group_params[i].storage);
        if (storage != LB_NONE && name_inside(skip, lb_program_text(program, program->group_params[i].name), scopes, n))
            skip->frozen[storage] = 1;
    }
}

static bool value_frozen(const skip *skip, uint32_t value)
{
    return value != LB_NONE && skip->frozen[skip->flow->storage_of[value]];
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* Elements of a list op that stay; a list of another length is taken over whole. */
static uint32_t filtered_list(lb_rewrite *rw, const lb_arg *list, const uint8_t *gone, uint32_t n, lb_arg *out)
{
    *out = *list;
    if (list->tag != LB_ARG_LIST || list->count != n) return 0;
    uint32_t kept = 0, first = LB_NONE;
    for (uint32_t i = 0; i < n; i++) {
        if (gone[i]) continue;
        lb_arg copy = rw->out->args[list->u.first + i];
        uint32_t row = lb_program_add_args(rw->out, &copy, 1);
        if (row == LB_NONE) rw->failed = true;
        if (!kept++) first = row;
    }
    out->count = kept;
    out->u.first = kept ? first : 0;
    return kept;
}

static uint32_t filtered_refs(lb_rewrite *rw, const uint32_t *refs, uint32_t count, const uint8_t *gone, uint32_t n,
                              uint32_t *kept)
{
    uint32_t first = rw->out->n_refs;
    *kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (count % n == 0 && gone[i % n]) continue;
        uint32_t ref = refs[i];
        if (lb_program_add_refs(rw->out, &ref, 1) == LB_NONE) rw->failed = true;
        ++*kept;
    }
    return first;
}

/* `_foreach_*` and `_fused_*`: element i goes when what it writes first is frozen. */
static void write_list_op(skip *skip, lb_rewrite *rw, uint32_t i, const lb_arg *list)
{
    const lb_program *program = skip->program;
    lb_op op = program->ops[i];
    uint32_t n = list->count, left = n;
    uint8_t *gone = calloc(n, 1);
    lb_arg *args = malloc((op.args + 1) * sizeof *args);
    if (!gone || !args)
        rw->failed = true;
    else {
        for (uint32_t k = 0; k < n; k++) {
            const lb_arg *element = &program->args[list->u.first + k];
            gone[k] = element->tag == LB_ARG_VALUE && value_frozen(skip, element->u.value);
            left -= gone[k];
        }
        if (left == n)
            lb_rewrite_keep(rw, i);
        else if (left) {
            const uint32_t *results = lb_op_results(program, &program->ops[i]),
                           *written = lb_op_written(program, &program->ops[i]);
            for (uint32_t a = 0; a < op.args; a++)
                filtered_list(rw, &lb_op_args(program, &program->ops[i])[a], gone, n, &args[a]);
            op.first_result = filtered_refs(rw, results, op.results, gone, n, &op.results);
            op.first_written = filtered_refs(rw, written, op.written, gone, n, &op.written);
            op.first_arg = lb_program_add_args(rw->out, args, op.args);
            lb_rewrite_op(rw, &op, i);
        }
    }
    free(gone);
    free(args);
}

static void write_optimizer_op(skip *skip, lb_rewrite *rw, uint32_t i)
{
    const lb_program *program = skip->program;
    const lb_op *op = &program->ops[i];
    bool frozen = false;
    for (uint32_t r = 0; r < op->written; r++) frozen |= value_frozen(skip, lb_op_written(program, op)[r]);
    if (!frozen)
        lb_rewrite_keep(rw, i);
    else if (lb_op_is_over_lists(program, op) && op->args && lb_op_args(program, op)[0].tag == LB_ARG_LIST &&
             lb_op_args(program, op)[0].count)
        write_list_op(skip, rw, i, &lb_op_args(program, op)[0]);
}

/* Did anything outside the module leave contents in this storage before op i? */
static bool storage_is_older(const skip *skip, uint32_t i, uint32_t value)
{
    const lb_program *program = skip->program;
    for (uint32_t k = i; k-- > 0;) {
        const lb_op *op = &program->ops[k];
        if (skip->fate[k] == DEAD || !lb_slice_op_defines(program, op)) continue;
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            uint32_t w = lb_op_outcome(program, op, r);
            if (w != LB_NONE && program->values[w].storage == program->values[value].storage) return true;
        }
    }
    return false;
}

static bool read_by_living(const skip *skip, uint32_t i)
{
    const lb_program *program = skip->program;
    for (uint32_t e = skip->flow->first_use[i]; e < skip->flow->first_use[i + 1]; e++) {
        uint32_t user = skip->flow->uses[e];
        if (skip->fate[user] == LIVE && !(program->ops[user].flags & LB_OP_VIEW)) return true;
    }
    for (uint32_t r = 0; r < program->ops[i].results; r++) {
        uint32_t value = lb_op_results(program, &program->ops[i])[r];
        if (value != LB_NONE && program->values[value].flags & LB_VALUE_GRADIENT) return true;
    }
    return false;
}

static void write_dead_op(skip *skip, lb_rewrite *rw, uint32_t i)
{
    const lb_program *program = skip->program;
    const lb_op *op = &program->ops[i];
    if (!lb_slice_op_defines(program, op) || !read_by_living(skip, i)) return;
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        uint32_t value = lb_op_outcome(program, op, r);
        if (value == LB_NONE || storage_is_older(skip, i, value)) continue;
        bool twice = false;
        for (uint32_t k = 0; k < r && k < op->results; k++) twice |= lb_op_results(program, op)[k] == value;
        if (!twice) lb_rewrite_fill(rw, "lb::zero", i, value);
    }
}

static void write_op(skip *skip, lb_rewrite *rw, uint32_t i)
{
    const lb_op *op = &skip->program->ops[i];
    lb_rewrite_begin(rw, i);
    if (skip->fate[i] == COPY)
        lb_rewrite_copy(rw, i, lb_op_args(skip->program, op)[skip->carries[i]].u.value,
                        lb_op_results(skip->program, op)[0]);
    else if (skip->fate[i] == DEAD)
        write_dead_op(skip, rw, i);
    else if (skip->optimizer[i])
        write_optimizer_op(skip, rw, i);
    else
        lb_rewrite_keep(rw, i);
}

lb_status lb_pass_skip(const lb_program *in, const uint32_t *scopes, uint32_t n_scopes, lb_program **out,
                       uint32_t **origin, lb_err *err)
{
    skip skip = {.program = in};
    lb_rewrite rw = {0};
    lb_status status = lb_slice_flow_new(in, &skip.flow, err);
    if (status != LB_OK) return status;
    skip.inside = calloc(in->n_scopes + 1, 1);
    skip.path = calloc((size_t)in->n_ops + 1, 1);
    skip.fate = calloc((size_t)in->n_ops + 1, 1);
    skip.carries = calloc((size_t)in->n_ops + 1, 1);
    skip.frozen = calloc(skip.flow->n_storages + 1, 1);
    skip.optimizer = lb_optimizer_ops(skip.flow);
    if (!skip.inside || !skip.path || !skip.fate || !skip.carries || !skip.frozen || !skip.optimizer)
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t k = 0; k < n_scopes && status == LB_OK; k++) {
        for (uint32_t i = 1; i < in->n_scopes; i++) skip.inside[i] |= lb_block_scope_within(in, i, scopes[k]);
        status = trace_calls(&skip, scopes[k], err);
    }
    if (status == LB_OK) status = lb_rewrite_init(&rw, in, err);
    if (status == LB_OK) {
        find_frozen(&skip, scopes, n_scopes);
        for (uint32_t i = 0; i < in->n_ops; i++) decide(&skip, i);
        for (uint32_t i = 0; i < in->n_ops; i++) write_op(&skip, &rw, i);
        status = lb_rewrite_finish(&rw, out, origin, err);
    }
    free(skip.inside);
    free(skip.path);
    free(skip.fate);
    free(skip.carries);
    free(skip.frozen);
    free(skip.optimizer);
    lb_slice_flow_free(skip.flow);
    return status;
}
