/* Muon slices: see muon.h. */
#include "muon.h"
#include "ops.h"
#include "rewrite.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding ---------------------------------------------------------------------------------------------------- */

static bool op_is(const lb_program *p, const lb_op *op, const char *base)
{
    const char *name = lb_op_known_as(lb_op_name(p, op));
    size_t n = strlen(base);
    return !strncmp(name, "aten::", 6) && !strncmp(name + 6, base, n) && (!name[6 + n] || name[6 + n] == '.');
}

static bool contains_muon(const char *text)
{
    for (; *text; text++)
        if (tolower((unsigned char)text[0]) == 'm' && tolower((unsigned char)text[1]) == 'u' &&
            tolower((unsigned char)text[2]) == 'o' && tolower((unsigned char)text[3]) == 'n')
            return true;
    return false;
}

/* b shows the same elements as a with the last two dimensions exchanged. */
static bool transposed(const lb_program *p, uint32_t a, uint32_t b)
{
    const lb_value *x = &p->values[a], *y = &p->values[b];
    const lb_layout *l = &x->layout, *m = &y->layout;
    int n = l->ndim;
    if (x->storage != y->storage || n < 2 || m->ndim != n || l->offset != m->offset) return false;
    for (int d = 0; d < n - 2; d++)
        if (l->shape[d] != m->shape[d] || l->stride[d] != m->stride[d]) return false;
    return l->shape[n - 1] == m->shape[n - 2] && l->shape[n - 2] == m->shape[n - 1] &&
           l->stride[n - 1] == m->stride[n - 2] && l->stride[n - 2] == m->stride[n - 1];
}

/* The same, where one side was made contiguous first. */
static bool transposed_copy(const lb_flow *flow, uint32_t op, uint32_t a, uint32_t b)
{
    const lb_program *p = flow->program;
    uint32_t def;
    if (transposed(p, a, b)) return true;
    if (lb_flow_defs_of(flow, op, b, &def, 1) != 1) return false;
    const lb_op *copy = &p->ops[def];
    return (op_is(p, copy, "clone") || op_is(p, copy, "_to_copy")) &&
           lb_op_args(p, copy)[0].tag == LB_ARG_VALUE && transposed(p, a, lb_op_args(p, copy)[0].u.value);
}

static bool is_gram(const lb_flow *flow, uint32_t i)
{
    const lb_program *p = flow->program;
    const lb_op *op = &p->ops[i];
    const lb_arg *args = lb_op_args(p, op);
    uint32_t first = 0;
    if (op_is(p, op, "addmm") || op_is(p, op, "baddbmm"))
        first = 1;
    else if (!op_is(p, op, "mm") && !op_is(p, op, "bmm") && !op_is(p, op, "matmul"))
        return false;
    if (op->args < first + 2 || args[first].tag != LB_ARG_VALUE || args[first + 1].tag != LB_ARG_VALUE)
        return false;
    uint32_t a = args[first].u.value, b = args[first + 1].u.value;
    return transposed_copy(flow, i, a, b) || transposed_copy(flow, i, b, a);
}

/* The first value in `storage` that an op of the slice reads. */
static uint32_t first_read(const lb_program *p, const uint32_t *ops, uint32_t n, int64_t storage)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < n && found == LB_NONE; i++) found = lb_op_reads(p, &p->ops[ops[i]], storage);
    return found;
}

/* Fills `slice` when the writes of its storage are Muon's. */
static lb_status examine(const lb_flow *flow, const uint8_t *stop, uint8_t *marks, lb_muon_slice *slice,
                         bool *found, lb_err *err)
{
    const lb_program *p = flow->program;
    uint32_t n = 0;
    *found = false;
    slice->write = LB_NONE;
    memset(marks, 0, p->n_ops);
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].phase == LB_PHASE_OPTIMIZER && lb_op_writes(p, &p->ops[i], slice->storage) != LB_NONE) {
            marks[i] = 1;
            slice->write = i;
        }
    if (slice->write == LB_NONE) return LB_OK;
    lb_slice_grow(flow, true, 1u << LB_PHASE_OPTIMIZER, stop, marks);
    slice->grams = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!marks[i]) continue;
        n++;
        if (is_gram(flow, i) && !slice->grams++) slice->first_gram = i;
    }
    if (slice->grams < 2) return LB_OK;
    slice->ops = malloc(n * sizeof *slice->ops);
    if (!slice->ops) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    slice->n_ops = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (marks[i]) slice->ops[slice->n_ops++] = i;
    slice->gradient_value = slice->gradient < 0 ? LB_NONE : first_read(p, slice->ops, n, slice->gradient);
    slice->before = first_read(p, slice->ops, n, slice->storage);
    *found = true;
    return LB_OK;
}

/* Ops of the optimizer phase that write a gradient: clipping and unscaling are not part of the optimizer's slice. */
static void stop_at_gradients(const lb_program *p, uint8_t *stop)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t g = 0; g < p->n_group_params && p->ops[i].phase == LB_PHASE_OPTIMIZER && !stop[i]; g++)
            stop[i] = p->group_params[g].gradient >= 0 &&
                      lb_op_writes(p, &p->ops[i], p->group_params[g].gradient) != LB_NONE;
}

static lb_status append_slice(lb_muon *muon, const lb_muon_slice *slice, lb_err *err)
{
    lb_muon_slice *more = realloc(muon->slices, (muon->n + 1) * sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    muon->slices = more;
    uint32_t at = muon->n++;
    for (; at > 0 && muon->slices[at - 1].write > slice->write; at--) muon->slices[at] = muon->slices[at - 1];
    muon->slices[at] = *slice;
    return LB_OK;
}

lb_status lb_muon_find(const lb_program *p, const lb_flow *flow, lb_muon *muon, lb_err *err)
{
    *muon = (lb_muon){0};
    uint8_t *stop = calloc((size_t)p->n_ops + 1, 1), *marks = malloc((size_t)p->n_ops + 1);
    lb_status status = stop && marks ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) stop_at_gradients(p, stop);
    for (uint32_t g = 0; g < p->n_groups && status == LB_OK; g++) {
        const lb_group *group = &p->groups[g];
        for (uint32_t k = 0; k < group->params && status == LB_OK; k++) {
            const lb_group_param *param = &p->group_params[group->first_param + k];
            lb_muon_slice slice = {.name = param->name,
                                   .storage = param->storage,
                                   .gradient = param->gradient,
                                   .group = g,
                                   .scope = lb_program_owner(p, lb_program_text(p, param->name)),
                                   .confirmed = contains_muon(lb_program_text(p, group->optimizer))};
            bool found;
            status = examine(flow, stop, marks, &slice, &found, err);
            if (status == LB_OK && found && (status = append_slice(muon, &slice, err)) != LB_OK)
                free(slice.ops);
        }
    }
    free(stop);
    free(marks);
    if (status != LB_OK) lb_muon_release(muon);
    return status;
}

void lb_muon_release(lb_muon *muon)
{
    for (uint32_t i = 0; i < muon->n; i++) free(muon->slices[i].ops);
    free(muon->slices);
    *muon = (lb_muon){0};
}

static double group_option(const lb_program *p, const lb_group *group, const char *name, double otherwise)
{
    for (uint32_t i = 0; i < group->options; i++)
        if (!strcmp(lb_program_text(p, p->scalars[group->first_option + i].name), name))
            return p->scalars[group->first_option + i].number;
    return otherwise;
}

/* A beta as the recorder names the items of a tuple, or by a name of its own. */
static double group_beta(const lb_program *p, const lb_group *group, int which, double otherwise)
{
    otherwise = group_option(p, group, which ? "beta2" : "beta1", otherwise);
    return group_option(p, group, which ? "betas.1" : "betas.0", otherwise);
}

double lb_muon_sibling_rate(const lb_program *p, uint32_t *group)
{
    *group = LB_NONE;
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (strstr(lb_program_text(p, p->groups[g].optimizer), "Adam")) {
            *group = g;
            return group_option(p, &p->groups[g], "lr", NAN);
        }
    return NAN;
}

/* ---- f32 -------------------------------------------------------------------------------------------------------- */

static bool narrow(lb_dtype dtype)
{
    return lb_dtype_is_float(dtype) && lb_dtype_bits(dtype) < 32;
}

/* Marks ops of the chosen slices (1) and of the others (2). */
static uint8_t *mark_slices(const lb_program *p, const lb_muon *muon, const bool *chosen, lb_err *err)
{
    uint8_t *marks = calloc((size_t)p->n_ops + 1, 1);
    if (!marks) lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; marks && s < muon->n; s++)
        for (uint32_t i = 0; i < muon->slices[s].n_ops; i++) marks[muon->slices[s].ops[i]] |= chosen[s] ? 1 : 2;
    return marks;
}

/* Storages that chosen slices alone define, and that are no parameter's, gradient's or state's (those have a source). */
static uint8_t *internal_storages(const lb_program *p, const lb_flow *flow, const uint8_t *marks, lb_err *err)
{
    uint8_t *inside = calloc(flow->n_storages + 1, 1), *outside = calloc(flow->n_storages + 1, 1);
    if (!inside || !outside) {
        free(inside);
        free(outside);
        lb_fail(err, LB_ERR_NOMEM, "out of memory");
        return NULL;
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (!lb_op_defines(p, op)) continue;
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            uint32_t value = r < op->results ? lb_op_results(p, op)[r] : lb_op_written(p, op)[r - op->results];
            if (value != LB_NONE) (marks[i] & 1 ? inside : outside)[flow->storage_of[value]] = 1;
        }
    }
    for (uint32_t s = 0; s < flow->n_storages; s++) inside[s] &= !outside[s];
    for (uint32_t v = 0; v < p->n_values;
         v++) /* a view that reads before any write: contents from an earlier step */
        if (p->values[v].flags & (LB_VALUE_PARAMETER | LB_VALUE_GRADIENT | LB_VALUE_STATE))
            inside[flow->storage_of[v]] = 0;
    free(outside);
    return inside;
}

static void write_wide_op(lb_rewrite *rw, uint32_t i)
{
    lb_op op = rw->in->ops[i];
    lb_arg *args = malloc((op.args + 1) * sizeof *args);
    if (!args) {
        rw->failed = true;
        return;
    }
    memcpy(args, lb_op_args(rw->in, &op), op.args * sizeof *args);
    bool changed = false;
    for (uint32_t a = 0; a < op.args; a++)
        if (args[a].tag == LB_ARG_DTYPE && narrow((lb_dtype)args[a].u.i)) args[a].u.i = LB_F32, changed = true;
    if (changed) op.first_arg = lb_program_add_args(rw->out, args, op.args);
    free(args);
    lb_rewrite_op(rw, &op, i);
}

lb_status lb_pass_muon_wide(const lb_program *in, const lb_flow *flow, const lb_muon *muon, const bool *chosen,
                            lb_program **out, uint32_t **origin, lb_err *err)
{
    lb_rewrite rw = {0};
    uint8_t *marks = mark_slices(in, muon, chosen, err), *inside = NULL;
    lb_status status = marks ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK) status = (inside = internal_storages(in, flow, marks, err)) ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK) status = lb_rewrite_init(&rw, in, err);
    if (status == LB_OK) {
        for (uint32_t v = 0; v < in->n_values; v++) {
            lb_value *value = &rw.out->values[v];
            if (!inside[flow->storage_of[v]] || !narrow(value->dtype)) continue;
            value->dtype = LB_F32;
            value->flags &= ~(uint32_t)LB_VALUE_KEPT;
            value->statistics = LB_NONE;
            value->logical = value->blob = (lb_digest){0, 0};
        }
        for (uint32_t i = 0; i < in->n_ops; i++) {
            const lb_op *op = &in->ops[i];
            uint32_t first = op->results ? lb_op_results(in, op)[0] : LB_NONE;
            lb_rewrite_begin(&rw, i);
            if (marks[i] & 1 && first != LB_NONE && inside[flow->storage_of[first]])
                write_wide_op(&rw, i);
            else
                lb_rewrite_keep(&rw, i);
        }
        status = lb_rewrite_finish(&rw, out, origin, err);
    }
    free(marks);
    free(inside);
    return status;
}

/* ---- AdamW ------------------------------------------------------------------------------------------------------ */

static lb_arg number(double x)
{
    return (lb_arg){.tag = LB_ARG_FLOAT, .u.f = x};
}

static lb_arg truth(bool x)
{
    return (lb_arg){.tag = LB_ARG_BOOL, .u.i = x};
}

static lb_arg value_arg(uint32_t value)
{
    return (lb_arg){.tag = LB_ARG_VALUE, .u.value = value};
}

static lb_arg list_of(lb_rewrite *rw, uint32_t value)
{
    lb_arg element = value_arg(value), list = {.tag = LB_ARG_LIST};
    list.count = value == LB_NONE ? 0 : 1;
    if (list.count) list.u.first = lb_program_add_args(rw->out, &element, 1);
    if (list.count && list.u.first == LB_NONE) rw->failed = true;
    return list;
}

/* State that the recorded run never had: storage ids below -1, the same in every step. `which`: 0 m, 1 v, 2 step count. */
static uint32_t new_state(lb_rewrite *rw, const lb_muon_slice *slice, int which, uint32_t version)
{
    const lb_value *param = &rw->in->values[slice->before];
    lb_value value = {.storage = -(4 * slice->storage + 4 + which),
                      .version = version,
                      .flags = LB_VALUE_STATE,
                      .dtype = which == 2 ? LB_F32 : param->dtype,
                      .device = param->device,
                      .name = LB_NONE,
                      .statistics = LB_NONE};
    value.layout = lb_layout_contiguous(which == 2 ? 0 : param->layout.ndim, param->layout.shape);
    uint32_t row = lb_program_add_value(rw->out, &value);
    if (row == LB_NONE) rw->failed = true;
    return row;
}

static uint32_t written_param(const lb_program *p, const lb_muon_slice *slice)
{
    const lb_op *op = &p->ops[slice->write];
    for (uint32_t r = 0; r < op->written; r++) {
        uint32_t value = lb_op_written(p, op)[r];
        if (value != LB_NONE && p->values[value].storage == slice->storage) return value;
    }
    return LB_NONE;
}

static void write_adamw(lb_rewrite *rw, const lb_muon_slice *slice, uint32_t sibling, double rate)
{
    const lb_program *p = rw->in;
    const lb_op *like = &p->ops[slice->write];
    uint32_t state[3][2], version = (uint32_t)(2 * (p->step < 0 ? 0 : p->step)) + 1;
    for (int k = 0; k < 3; k++) {
        for (uint32_t n = 0; n < 2; n++) state[k][n] = new_state(rw, slice, k, version + n);
        lb_rewrite_fill(rw, "lb::state", slice->write, state[k][0]);
        if (!rw->failed) rw->origin[rw->out->n_ops - 1] = LB_NONE;
    }
    lb_arg count[3] = {value_arg(state[2][0]), {.tag = LB_ARG_INT, .u.i = 1}, {.tag = LB_ARG_INT, .u.i = 1}};
    lb_rewrite_new(rw, "aten::add_.Tensor", like, LB_NONE, count, 3, &state[2][1], 1, &state[2][1], 1);

    const lb_group *group = sibling == LB_NONE ? NULL : &p->groups[sibling];
    lb_arg args[15] = {list_of(rw, slice->before),
                       list_of(rw, slice->gradient_value),
                       list_of(rw, state[0][0]),
                       list_of(rw, state[1][0]),
                       list_of(rw, LB_NONE),
                       list_of(rw, state[2][1]),
                       number(rate),
                       number(group ? group_beta(p, group, 0, 0.9) : 0.9),
                       number(group ? group_beta(p, group, 1, 0.95) : 0.95),
                       number(group ? group_option(p, group, "weight_decay", 0) : 0),
                       number(group ? group_option(p, group, "eps", 1e-8) : 1e-8),
                       truth(false),
                       truth(false),
                       {.tag = LB_ARG_NONE},
                       {.tag = LB_ARG_NONE}};
    uint32_t written[4] = {written_param(p, slice), slice->gradient_value, state[0][1], state[1][1]};
    lb_rewrite_new(rw, "aten::_fused_adamw_", like, slice->write, args, 15, NULL, 0, written, 4);
}

/* What the chosen slices compute for themselves alone; an op that somebody else reads stays. */
static void mark_removed(const lb_program *p, const lb_flow *flow, const lb_muon *muon, const bool *chosen,
                         uint8_t *marks)
{
    for (uint32_t i = p->n_ops; i-- > 0;) {
        if (marks[i] != 1) continue;
        bool writes_param = false;
        for (uint32_t s = 0; s < muon->n; s++)
            writes_param |= chosen[s] && lb_op_writes(p, &p->ops[i], muon->slices[s].storage) != LB_NONE;
        for (uint32_t e = flow->first_use[i]; e < flow->first_use[i + 1] && !writes_param; e++)
            if (marks[flow->uses[e]] != 1 && !(p->ops[flow->uses[e]].flags & LB_OP_VIEW)) marks[i] = 2;
    }
}

lb_status lb_pass_muon_adamw(const lb_program *in, const lb_flow *flow, const lb_muon *muon, const bool *chosen,
                             lb_program **out, uint32_t **origin, lb_err *err)
{
    lb_rewrite rw = {0};
    uint32_t sibling;
    double rate = lb_muon_sibling_rate(in, &sibling);
    if (!(rate > 0)) rate = 3e-4;
    for (uint32_t s = 0; s < muon->n; s++)
        if (chosen[s] && (muon->slices[s].gradient_value == LB_NONE || muon->slices[s].before == LB_NONE))
            return lb_fail(err, LB_ERR_UNSUPPORTED,
                           "Muon on %s: the recording does not say which value is its gradient",
                           lb_program_text(in, muon->slices[s].name));
    uint8_t *marks = mark_slices(in, muon, chosen, err);
    lb_status status = marks ? lb_rewrite_init(&rw, in, err) : LB_ERR_NOMEM;
    if (status == LB_OK) {
        mark_removed(in, flow, muon, chosen, marks);
        for (uint32_t i = 0; i < in->n_ops; i++) {
            lb_rewrite_begin(&rw, i);
            if (marks[i] != 1) lb_rewrite_keep(&rw, i);
            for (uint32_t s = 0; s < muon->n; s++)
                if (chosen[s] && muon->slices[s].write == i) write_adamw(&rw, &muon->slices[s], sibling, rate);
        }
        status = lb_rewrite_finish(&rw, out, origin, err);
    }
    free(marks);
    return status;
}
