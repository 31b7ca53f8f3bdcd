/* AdamW in the place of Muon: the chosen slices' ops go, one fused AdamW each comes, with state of its own. See
 * muon.h. */
#include "program/muon.h"

#include "program/rewrite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- options of a group ------------------------------------------------------------------------------------------ */

static double group_option(const lb_program *program, const lb_group *group, const char *name, double otherwise)
{
    for (uint32_t i = 0; i < group->options; i++)
        if (!strcmp(lb_program_text(program, program->scalars[group->first_option + i].name), name))
            return program->scalars[group->first_option + i].number;
    return otherwise;
}

/* A beta as the recorder names the items of a tuple, or by a name of its own. */
static double group_beta(const lb_program *program, const lb_group *group, int which, double otherwise)
{
    otherwise = group_option(program, group, which ? "beta2" : "beta1", otherwise);
    return group_option(program, group, which ? "betas.1" : "betas.0", otherwise);
}

double lb_muon_sibling_rate(const lb_program *program, uint32_t *group)
{
    *group = LB_NONE;
    for (uint32_t g = 0; g < program->n_groups; g++)
        if (strstr(lb_program_text(program, program->groups[g].optimizer), "Adam")) {
            *group = g;
            return group_option(program, &program->groups[g], "lr", NAN);
        }
    return NAN;
}

/* ---- the new ops ------------------------------------------------------------------------------------------------- */

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

/* State that the recorded run never had: storage ids below -1, the same in every step. `which`: 0 m, 1 v, 2 step
 * count. */
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

static uint32_t written_param(const lb_program *program, const lb_muon_slice *slice)
{
    const lb_op *op = &program->ops[slice->write];
    for (uint32_t r = 0; r < op->written; r++) {
        uint32_t value = lb_op_written(program, op)[r];
        if (value != LB_NONE && program->values[value].storage == slice->storage) return value;
    }
    return LB_NONE;
}

static void write_adamw(lb_rewrite *rw, const lb_muon_slice *slice, uint32_t sibling, double rate)
{
    const lb_program *program = rw->in;
    const lb_op *like = &program->ops[slice->write];
    uint32_t state[3][2], version = (uint32_t)(2 * (program->step < 0 ? 0 : program->step)) + 1;
    for (int k = 0; k < 3; k++) {
        for (uint32_t n = 0; n < 2; n++) state[k][n] = new_state(rw, slice, k, version + n);
        lb_rewrite_fill(rw, "lb::state", slice->write, state[k][0]);
        if (!rw->failed) rw->origin[rw->out->n_ops - 1] = LB_NONE;
    }
    lb_arg count[3] = {value_arg(state[2][0]), {.tag = LB_ARG_INT, .u.i = 1}, {.tag = LB_ARG_INT, .u.i = 1}};
    lb_rewrite_new(rw, &(lb_new_op){.name = "aten::add_.Tensor",
                                    .like = like,
                                    .origin = LB_NONE,
                                    .args = count,
                                    .n_args = 3,
                                    .results = &state[2][1],
                                    .n_results = 1,
                                    .written = &state[2][1],
                                    .n_written = 1});

    const lb_group *group = sibling == LB_NONE ? NULL : &program->groups[sibling];
    lb_arg args[15] = {list_of(rw, slice->before),
                       list_of(rw, slice->gradient_value),
                       list_of(rw, state[0][0]),
                       list_of(rw, state[1][0]),
                       list_of(rw, LB_NONE),
                       list_of(rw, state[2][1]),
                       number(rate),
                       number(group ? group_beta(program, group, 0, 0.9) : 0.9),
                       number(group ? group_beta(program, group, 1, 0.95) : 0.95),
                       number(group ? group_option(program, group, "weight_decay", 0) : 0),
                       number(group ? group_option(program, group, "eps", 1e-8) : 1e-8),
                       truth(false),
                       truth(false),
                       {.tag = LB_ARG_NONE},
                       {.tag = LB_ARG_NONE}};
    uint32_t written[4] = {written_param(program, slice), slice->gradient_value, state[0][1], state[1][1]};
    lb_rewrite_new(rw, &(lb_new_op){.name = "aten::_fused_adamw_",
                                    .like = like,
                                    .origin = slice->write,
                                    .args = args,
                                    .n_args = 15,
                                    .written = written,
                                    .n_written = 4});
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

/* What the chosen slices compute for themselves alone; an op with another reader stays. */
static void mark_removed(const lb_program *program, const lb_slice_flow *flow, const lb_muon *muon, const bool *chosen,
                         uint8_t *marks)
{
    for (uint32_t i = program->n_ops; i-- > 0;) {
        if (marks[i] != 1) continue;
        bool writes_param = false;
        for (uint32_t s = 0; s < muon->n; s++)
            writes_param |= chosen[s] && lb_op_writes(program, &program->ops[i], muon->slices[s].storage) != LB_NONE;
        for (uint32_t e = flow->first_use[i]; e < flow->first_use[i + 1] && !writes_param; e++)
            if (marks[flow->uses[e]] != 1 && !(program->ops[flow->uses[e]].flags & LB_OP_VIEW)) marks[i] = 2;
    }
}

lb_status lb_muon_pass_adamw(const lb_program *in, const lb_slice_flow *flow, const lb_muon *muon, const bool *chosen,
                             lb_passed *out, lb_err *err)
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
    uint8_t *marks = lb_muon_mark(in, muon, chosen, err);
    lb_status status = marks ? lb_rewrite_init(&rw, in, err) : LB_ERR_NOMEM;
    if (status == LB_OK) {
        mark_removed(in, flow, muon, chosen, marks);
        for (uint32_t i = 0; i < in->n_ops; i++) {
            lb_rewrite_begin(&rw, i);
            if (marks[i] != 1) lb_rewrite_keep(&rw, i);
            for (uint32_t s = 0; s < muon->n; s++)
                if (chosen[s] && muon->slices[s].write == i) write_adamw(&rw, &muon->slices[s], sibling, rate);
        }
        status = lb_rewrite_finish(&rw, &out->program, &out->origin, err);
    }
    free(marks);
    return status;
}
