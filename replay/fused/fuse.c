/* Composites -> fused ops: see fuse.h. */
#include "fused/fuse.h"

#include "program/block.h"
#include "fused/fused.h"
#include "program/rewrite.h"
#include "program/selector.h"

#include <stdlib.h>
#include <string.h>

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* "KIND=KERNEL" or "SEL=KIND[:KERNEL]" as the command line splits it -> kind and kernel; on: the kernel that stands for
 * it, off and eager: NULL, nothing is fused. The kernel points into the swap, or is a constant. */
static lb_status parse_fusion(const lb_swap *swap, lb_composite_kind *kind, const char **kernel, const char **selector,
                              lb_err *err)
{
    char name[32];
    const char *argument = swap->argument;
    *selector = swap->selector ? swap->selector : "";
    if (**selector && lb_composite_kind_parse(*selector, kind)) { /* KIND=KERNEL */
        *selector = "";
        *kernel = argument;
    } else {
        const size_t n = strcspn(argument, ":");
        bool known = n < sizeof name;
        if (known) {
            memcpy(name, argument, n);
            name[n] = '\0';
            known = lb_composite_kind_parse(name, kind);
        }
        if (!known) {
            char all[256] = "";
            for (int k = 0; k < LB_COMPOSITE_KIND_COUNT; k++)
                strcat(strcat(all, k ? " " : ""), lb_composite_kind_name((lb_composite_kind)k));
            return lb_fail(err, LB_ERR_INVALID,
                           "--fuse: expected KIND=KERNEL|on|off or SEL=KIND[:KERNEL], not \"%s\"; kinds are %s",
                           argument, all);
        }
        *kernel = argument[n] ? argument + n + 1 : "on";
    }
    if (!strcmp(*kernel, "off") || !strcmp(*kernel, "eager")) {
        *kernel = NULL;
        return LB_OK;
    }
    if (!strcmp(*kernel, "on")) *kernel = lb_fused_kind_of(*kind)->usual;
    return lb_composite_check(*kind, *kernel, err);
}

/* ---- which composites -------------------------------------------------------------------------------------------- */

typedef struct fuse {
    const lb_program *in;
    const uint32_t *origin;
    lb_recogniser trace; /* for its flow */
    lb_composites found;
    uint8_t *chosen;  /* per composite */
    uint8_t *going;   /* per op: 1: goes, 2: a fused op takes its place */
    uint32_t *place;  /* per op with 2: the composite */
    uint8_t *dropped; /* per composite: bit per output that an op which stays gives */
} fuse;

/* What a swap fuses, and by which kernel; NULL: not at all. */
typedef struct fusing {
    lb_composite_kind kind;
    const char *kernel;
} fusing;

/* Composites of the kind that the swap's selector selects, by the op that gives output 0, become `value`. */
static lb_status choose(fuse *fuse, const lb_swap *swap, fusing *fusing, const char *letters, uint8_t value,
                        lb_err *err)
{
    const char *selector_text;
    lb_selector *selector;
    LB_TRY(parse_fusion(swap, &fusing->kind, &fusing->kernel, &selector_text, err));
    LB_TRY(lb_selector_new(selector_text, &selector, err));
    uint8_t *marks = calloc((size_t)fuse->in->n_ops + 1, 1);
    lb_status status = marks ? lb_selector_mark(selector, fuse->in, letters, fuse->origin, marks, 1, NULL, err)
                             : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; status == LB_OK && i < fuse->found.n; i++) {
        const lb_composite *composite = &fuse->found.rows[i];
        if (composite->kind == fusing->kind && marks[composite->ops[composite->n_ops - 1]]) fuse->chosen[i] = value;
    }
    free(marks);
    lb_selector_free(selector);
    return status;
}

/* ---- may it be fused --------------------------------------------------------------------------------------------- */

static bool writes(const lb_program *program, const lb_op *op, int64_t storage)
{
    for (uint32_t r = 0; lb_slice_op_defines(program, op) && r < op->results + op->written; r++) {
        const uint32_t v = lb_op_outcome(program, op, r);
        if (v != LB_NONE && program->values[v].storage == storage) return true;
    }
    return false;
}

/* Contents that the composite has read are written again before its end. */
static bool overwritten(const fuse *fuse, const lb_composite *composite, uint32_t value)
{
    const int64_t storage = fuse->in->values[value].storage;
    bool read = false;
    const uint32_t last = composite->ops[composite->n_ops - 1];
    for (uint32_t i = composite->ops[0], next = 0; i < last; i++) {
        if (next < composite->n_ops && composite->ops[next] == i) {
            next++;
            read |= lb_op_reads(fuse->in, &fuse->in->ops[i], storage) != LB_NONE;
        }
        if (read && writes(fuse->in, &fuse->in->ops[i], storage)) return true;
    }
    return false;
}

static uint32_t maker_of_output(const fuse *fuse, const lb_composite *composite, uint32_t value)
{
    for (uint32_t k = composite->n_ops; k-- > 0;)
        if (writes(fuse->in, &fuse->in->ops[composite->ops[k]], fuse->in->values[value].storage))
            return composite->ops[k];
    return LB_NONE;
}

static bool among(const lb_composite *composite, uint32_t op)
{
    for (uint32_t k = 0; k < composite->n_ops; k++)
        if (composite->ops[k] == op) return true;
    return false;
}

/* An op outside the composite reads what an inner op made before the composite ends: then that op has to stay. */
static bool read_on_the_way(const fuse *fuse, const lb_composite *composite)
{
    const uint32_t last = composite->ops[composite->n_ops - 1];
    for (uint32_t k = 0; k + 1 < composite->n_ops; k++)
        for (uint32_t e = fuse->trace.flow->first_use[composite->ops[k]];
             e < fuse->trace.flow->first_use[composite->ops[k] + 1]; e++) {
            const uint32_t user = fuse->trace.flow->uses[e];
            if (user < last && lb_slice_op_defines(fuse->in, &fuse->in->ops[user]) && !among(composite, user))
                return true;
        }
    return false;
}

static bool may_fuse(const fuse *fuse, const lb_composite *composite)
{
    const uint32_t last = composite->ops[composite->n_ops - 1];
    if (composite->outputs[0] == LB_NONE || maker_of_output(fuse, composite, composite->outputs[0]) != last)
        return false;
    for (uint32_t k = 0; k < composite->n_ops; k++)
        if (fuse->in->ops[composite->ops[k]].flags & (LB_OP_DECISION | LB_OP_RANDOM | LB_OP_COLLECTIVE) ||
            fuse->going[composite->ops[k]])
            return false;
    if (composite->kind == LB_COMPOSITE_DISPATCH && read_on_the_way(fuse, composite))
        return false; /* rows and order belong together */
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++)
        if (composite->inputs[i] != LB_NONE && overwritten(fuse, composite, composite->inputs[i])) return false;
    for (uint32_t i = 0; i < composite->n_list; i++)
        if (overwritten(fuse, composite, composite->list[i])) return false;
    return true;
}

/* ---- what stays -------------------------------------------------------------------------------------------------- */

/* Something other than the fused op reads what op `i` made. `gives`: the fused op makes it too, so that only what comes
 * before counts. */
static bool still_read(const fuse *fuse, const lb_composite *composite, uint32_t i, bool gives)
{
    const uint32_t last = composite->ops[composite->n_ops - 1];
    for (uint32_t e = fuse->trace.flow->first_use[i]; e < fuse->trace.flow->first_use[i + 1]; e++) {
        const uint32_t user = fuse->trace.flow->uses[e];
        if (!lb_slice_op_defines(fuse->in, &fuse->in->ops[user]) && !fuse->in->ops[user].args) continue;
        if (fuse->in->ops[user].flags & LB_OP_VIEW || fuse->going[user]) continue;
        if (!gives || user < last) return true;
    }
    return false;
}

static void mark_going(fuse *fuse, uint32_t which)
{
    const lb_composite *composite = &fuse->found.rows[which];
    const uint32_t last = composite->ops[composite->n_ops - 1];
    fuse->going[last] = 2, fuse->place[last] = which;
    for (uint32_t k = composite->n_ops - 1; k-- > 0;) {
        const uint32_t i = composite->ops[k];
        int output = 0;
        for (int o = 1; o < LB_COMPOSITE_OUTPUTS; o++)
            if (composite->outputs[o] != LB_NONE && maker_of_output(fuse, composite, composite->outputs[o]) == i)
                output = o;
        if (!still_read(fuse, composite, i, output > 0))
            fuse->going[i] = 1;
        else if (output)
            fuse->dropped[which] |= (uint8_t)(1 << output);
    }
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static lb_arg value_arg(uint32_t value)
{
    return value == LB_NONE ? (lb_arg){.tag = LB_ARG_NONE} : (lb_arg){.tag = LB_ARG_VALUE, .u.value = value};
}

static void write_fused(fuse *fuse, lb_rewrite *rw, uint32_t op, const char *kernel)
{
    const lb_composite *composite = &fuse->found.rows[fuse->place[op]];
    lb_arg args[LB_FUSED_ARGS], numbers[LB_COMPOSITE_NUMBERS];
    uint32_t outputs[LB_COMPOSITE_OUTPUTS];
    lb_arg *list = malloc((composite->n_list + 1) * sizeof *list);
    if (!list) {
        rw->failed = true;
        return;
    }
    for (int i = 0; i < LB_COMPOSITE_NUMBERS; i++)
        numbers[i] = (lb_arg){.tag = LB_ARG_FLOAT, .u.f = composite->numbers[i]};
    for (uint32_t i = 0; i < composite->n_list; i++) list[i] = value_arg(composite->list[i]);
    args[LB_FUSED_KERNEL] = (lb_arg){.tag = LB_ARG_STRING, .u.string = lb_program_string(rw->out, kernel)};
    args[LB_FUSED_NUMBERS] = (lb_arg){.tag = LB_ARG_LIST,
                                      .count = LB_COMPOSITE_NUMBERS,
                                      .u.first = lb_program_add_args(rw->out, numbers, LB_COMPOSITE_NUMBERS)};
    args[LB_FUSED_FLAGS] = (lb_arg){.tag = LB_ARG_INT, .u.i = composite->flags};
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++) args[LB_FUSED_INPUTS + i] = value_arg(composite->inputs[i]);
    args[LB_FUSED_LIST] = (lb_arg){.tag = LB_ARG_NONE};
    if (composite->n_list)
        args[LB_FUSED_LIST] = (lb_arg){.tag = LB_ARG_LIST,
                                       .count = composite->n_list,
                                       .u.first = lb_program_add_args(rw->out, list, composite->n_list)};
    for (int o = 0; o < LB_COMPOSITE_OUTPUTS; o++)
        outputs[o] = fuse->dropped[fuse->place[op]] >> o & 1 || (o && composite->outputs[o] == composite->outputs[0])
                         ? LB_NONE
                         : composite->outputs[o];
    lb_rewrite_new(rw, &(lb_new_op){.name = lb_fused_kind_of(composite->kind)->row,
                                    .like = &fuse->in->ops[op],
                                    .origin = op,
                                    .args = args,
                                    .n_args = LB_FUSED_ARGS,
                                    .results = outputs,
                                    .n_results = LB_COMPOSITE_OUTPUTS});
    free(list);
}

static lb_status rewrite(fuse *fuse, const char *kernel, lb_passed *out, lb_err *err)
{
    lb_rewrite rw;
    LB_TRY(lb_rewrite_init(&rw, fuse->in, err));
    for (uint32_t i = 0; i < fuse->in->n_ops; i++) {
        lb_rewrite_begin(&rw, i);
        if (fuse->going[i] == 2)
            write_fused(fuse, &rw, i, kernel);
        else if (!fuse->going[i])
            lb_rewrite_keep(&rw, i);
    }
    return lb_rewrite_finish(&rw, &out->program, &out->origin, err);
}

static lb_status find_letters(const fuse *fuse, lb_blocks *blocks, lb_err *err)
{
    return lb_blocks_find(fuse->in, fuse->trace.flow, blocks, err);
}

lb_status lb_fuse_pass(const lb_program *in, const uint32_t *given, const lb_plan *plan, uint32_t which, lb_passed *out,
                       lb_err *err)
{
    const lb_swap *swaps = plan->swaps;
    fuse fuse = {.in = in, .origin = given, .trace = {.program = in}};
    lb_blocks blocks = {0};
    fusing wanted = {0};
    *out = (lb_passed){0};
    lb_status status = lb_slice_flow_new(in, &fuse.trace.flow, err);
    if (status == LB_OK) status = lb_composites_find(in, &fuse.found, err);
    fuse.chosen = calloc(fuse.found.n + 1, 1), fuse.dropped = calloc(fuse.found.n + 1, 1);
    fuse.going = calloc((size_t)in->n_ops + 1, 1), fuse.place = calloc((size_t)in->n_ops + 1, sizeof *fuse.place);
    if (status == LB_OK && (!fuse.chosen || !fuse.dropped || !fuse.going || !fuse.place))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = find_letters(&fuse, &blocks, err);
    if (status == LB_OK) status = choose(&fuse, &swaps[which], &wanted, blocks.letters, 1, err);
    for (uint32_t s = which + 1; status == LB_OK && s < plan->n_swaps; s++) {
        fusing other;
        const char *selector;
        if (swaps[s].kind != LB_SWAP_FUSE) continue;
        status = parse_fusion(&swaps[s], &other.kind, &other.kernel, &selector, err);
        if (status == LB_OK && other.kind == wanted.kind)
            status = choose(&fuse, &swaps[s], &other, blocks.letters, 0, err);
    }
    for (uint32_t i = 0; status == LB_OK && wanted.kernel && i < fuse.found.n; i++)
        if (fuse.chosen[i] && may_fuse(&fuse, &fuse.found.rows[i])) mark_going(&fuse, i), out->touched++;
    if (status == LB_OK) status = rewrite(&fuse, wanted.kernel ? wanted.kernel : "", out, err);
    lb_blocks_release(&blocks);
    free(fuse.chosen);
    free(fuse.dropped);
    free(fuse.going);
    free(fuse.place);
    lb_composites_release(&fuse.found);
    lb_slice_flow_free(fuse.trace.flow);
    return status;
}
