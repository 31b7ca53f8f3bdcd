/* Composites -> fused ops: see fuse.h. */
#include "fused/fuse.h"

#include "program/block.h"
#include "fused/fused.h"
#include "program/rewrite.h"
#include "program/selector.h"

#include <stdlib.h>
#include <string.h>

/* ---- texts ------------------------------------------------------------------------------------------------------- */

lb_status lb_fuse_parse(const lb_swap *swap, lb_composite_kind *kind, const char **kernel, const char **selector,
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

/* Composites of the kind that the swap's selector selects, by the op that gives output 0. */
static lb_status choose(fuse *f, const lb_swap *swap, lb_composite_kind *kind, const char **kernel, const char *letters,
                        uint8_t value, lb_err *err)
{
    const char *selector_text;
    lb_selector *selector;
    LB_TRY(lb_fuse_parse(swap, kind, kernel, &selector_text, err));
    LB_TRY(lb_selector_new(selector_text, &selector, err));
    uint8_t *marks = calloc((size_t)f->in->n_ops + 1, 1);
    lb_status status = LB_OK;
    if (!marks || lb_selector_mark(selector, f->in, letters, f->origin, marks, 1) < 0)
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; status == LB_OK && i < f->found.n; i++) {
        const lb_composite *c = &f->found.rows[i];
        if (c->kind == *kind && marks[c->ops[c->n_ops - 1]]) f->chosen[i] = value;
    }
    free(marks);
    lb_selector_free(selector);
    return status;
}

/* ---- may it be fused --------------------------------------------------------------------------------------------- */

static bool writes(const lb_program *p, const lb_op *op, int64_t storage)
{
    for (uint32_t r = 0; lb_slice_op_defines(p, op) && r < op->results + op->written; r++) {
        const uint32_t v = lb_op_outcome(p, op, r);
        if (v != LB_NONE && p->values[v].storage == storage) return true;
    }
    return false;
}

/* Contents that the composite has read are written again before its end. */
static bool overwritten(const fuse *f, const lb_composite *c, uint32_t value)
{
    const int64_t storage = f->in->values[value].storage;
    bool read = false;
    const uint32_t last = c->ops[c->n_ops - 1];
    for (uint32_t i = c->ops[0], next = 0; i < last; i++) {
        if (next < c->n_ops && c->ops[next] == i) {
            next++;
            read |= lb_op_reads(f->in, &f->in->ops[i], storage) != LB_NONE;
        }
        if (read && writes(f->in, &f->in->ops[i], storage)) return true;
    }
    return false;
}

static uint32_t maker_of_output(const fuse *f, const lb_composite *c, uint32_t value)
{
    for (uint32_t k = c->n_ops; k-- > 0;)
        if (writes(f->in, &f->in->ops[c->ops[k]], f->in->values[value].storage)) return c->ops[k];
    return LB_NONE;
}

static bool among(const lb_composite *c, uint32_t op)
{
    for (uint32_t k = 0; k < c->n_ops; k++)
        if (c->ops[k] == op) return true;
    return false;
}

/* An op outside the composite reads what an inner op made before the composite ends: then that op has to stay. */
static bool read_on_the_way(const fuse *f, const lb_composite *c)
{
    const uint32_t last = c->ops[c->n_ops - 1];
    for (uint32_t k = 0; k + 1 < c->n_ops; k++)
        for (uint32_t e = f->trace.flow->first_use[c->ops[k]]; e < f->trace.flow->first_use[c->ops[k] + 1]; e++) {
            const uint32_t user = f->trace.flow->uses[e];
            if (user < last && lb_slice_op_defines(f->in, &f->in->ops[user]) && !among(c, user)) return true;
        }
    return false;
}

static bool may_fuse(const fuse *f, const lb_composite *c)
{
    const uint32_t last = c->ops[c->n_ops - 1];
    if (c->outputs[0] == LB_NONE || maker_of_output(f, c, c->outputs[0]) != last) return false;
    for (uint32_t k = 0; k < c->n_ops; k++)
        if (f->in->ops[c->ops[k]].flags & (LB_OP_DECISION | LB_OP_RANDOM | LB_OP_COLLECTIVE) || f->going[c->ops[k]])
            return false;
    if (c->kind == LB_COMPOSITE_DISPATCH && read_on_the_way(f, c)) return false; /* rows and order belong together */
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++)
        if (c->inputs[i] != LB_NONE && overwritten(f, c, c->inputs[i])) return false;
    for (uint32_t i = 0; i < c->n_list; i++)
        if (overwritten(f, c, c->list[i])) return false;
    return true;
}

/* ---- what stays -------------------------------------------------------------------------------------------------- */

/* Something other than the fused op reads what op `i` made. `gives`: the fused op makes it too, so that only what comes
 * before counts. */
static bool still_read(const fuse *f, const lb_composite *c, uint32_t i, bool gives)
{
    const uint32_t last = c->ops[c->n_ops - 1];
    for (uint32_t e = f->trace.flow->first_use[i]; e < f->trace.flow->first_use[i + 1]; e++) {
        const uint32_t user = f->trace.flow->uses[e];
        if (!lb_slice_op_defines(f->in, &f->in->ops[user]) && !f->in->ops[user].args) continue;
        if (f->in->ops[user].flags & LB_OP_VIEW || f->going[user]) continue;
        if (!gives || user < last) return true;
    }
    return false;
}

static void mark_going(fuse *f, uint32_t which)
{
    const lb_composite *c = &f->found.rows[which];
    const uint32_t last = c->ops[c->n_ops - 1];
    f->going[last] = 2, f->place[last] = which;
    for (uint32_t k = c->n_ops - 1; k-- > 0;) {
        const uint32_t i = c->ops[k];
        int output = 0;
        for (int o = 1; o < LB_COMPOSITE_OUTPUTS; o++)
            if (c->outputs[o] != LB_NONE && maker_of_output(f, c, c->outputs[o]) == i) output = o;
        if (!still_read(f, c, i, output > 0))
            f->going[i] = 1;
        else if (output)
            f->dropped[which] |= (uint8_t)(1 << output);
    }
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static lb_arg value_arg(uint32_t value)
{
    return value == LB_NONE ? (lb_arg){.tag = LB_ARG_NONE} : (lb_arg){.tag = LB_ARG_VALUE, .u.value = value};
}

static void write_fused(fuse *f, lb_rewrite *rw, uint32_t op, const char *kernel)
{
    const lb_composite *c = &f->found.rows[f->place[op]];
    lb_arg args[LB_FUSED_ARGS], numbers[LB_COMPOSITE_NUMBERS];
    uint32_t outputs[LB_COMPOSITE_OUTPUTS];
    lb_arg *list = malloc((c->n_list + 1) * sizeof *list);
    if (!list) {
        rw->failed = true;
        return;
    }
    for (int i = 0; i < LB_COMPOSITE_NUMBERS; i++) numbers[i] = (lb_arg){.tag = LB_ARG_FLOAT, .u.f = c->numbers[i]};
    for (uint32_t i = 0; i < c->n_list; i++) list[i] = value_arg(c->list[i]);
    args[LB_FUSED_KERNEL] = (lb_arg){.tag = LB_ARG_STRING, .u.string = lb_program_string(rw->out, kernel)};
    args[LB_FUSED_NUMBERS] = (lb_arg){.tag = LB_ARG_LIST,
                                      .count = LB_COMPOSITE_NUMBERS,
                                      .u.first = lb_program_add_args(rw->out, numbers, LB_COMPOSITE_NUMBERS)};
    args[LB_FUSED_FLAGS] = (lb_arg){.tag = LB_ARG_INT, .u.i = c->flags};
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++) args[LB_FUSED_INPUTS + i] = value_arg(c->inputs[i]);
    args[LB_FUSED_LIST] = (lb_arg){.tag = LB_ARG_NONE};
    if (c->n_list)
        args[LB_FUSED_LIST] =
            (lb_arg){.tag = LB_ARG_LIST, .count = c->n_list, .u.first = lb_program_add_args(rw->out, list, c->n_list)};
    for (int o = 0; o < LB_COMPOSITE_OUTPUTS; o++)
        outputs[o] =
            f->dropped[f->place[op]] >> o & 1 || (o && c->outputs[o] == c->outputs[0]) ? LB_NONE : c->outputs[o];
    lb_rewrite_new(rw, &(lb_new_op){.name = lb_fused_kind_of(c->kind)->row,
                                    .like = &f->in->ops[op],
                                    .origin = op,
                                    .args = args,
                                    .n_args = LB_FUSED_ARGS,
                                    .results = outputs,
                                    .n_results = LB_COMPOSITE_OUTPUTS});
    free(list);
}

static lb_status rewrite(fuse *f, const char *kernel, lb_passed *out, lb_err *err)
{
    lb_rewrite rw;
    LB_TRY(lb_rewrite_init(&rw, f->in, err));
    for (uint32_t i = 0; i < f->in->n_ops; i++) {
        lb_rewrite_begin(&rw, i);
        if (f->going[i] == 2)
            write_fused(f, &rw, i, kernel);
        else if (!f->going[i])
            lb_rewrite_keep(&rw, i);
    }
    return lb_rewrite_finish(&rw, &out->program, &out->origin, err);
}

static lb_status find_letters(const fuse *f, lb_blocks *blocks, lb_err *err)
{
    return lb_blocks_find(f->in, f->trace.flow, blocks, err);
}

lb_status lb_fuse_pass(const lb_program *in, const uint32_t *given, const lb_swap *swaps, uint32_t n_swaps,
                       uint32_t which, lb_passed *out, lb_err *err)
{
    fuse f = {.in = in, .origin = given, .trace = {.program = in}};
    lb_blocks blocks = {0};
    lb_composite_kind kind;
    const char *kernel, *ignored;
    *out = (lb_passed){0};
    lb_status status = lb_slice_flow_new(in, &f.trace.flow, err);
    if (status == LB_OK) status = lb_composites_find(in, &f.found, err);
    f.chosen = calloc(f.found.n + 1, 1), f.dropped = calloc(f.found.n + 1, 1);
    f.going = calloc((size_t)in->n_ops + 1, 1), f.place = calloc((size_t)in->n_ops + 1, sizeof *f.place);
    if (status == LB_OK && (!f.chosen || !f.dropped || !f.going || !f.place))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = find_letters(&f, &blocks, err);
    if (status == LB_OK) status = choose(&f, &swaps[which], &kind, &kernel, blocks.letters, 1, err);
    for (uint32_t s = which + 1; status == LB_OK && s < n_swaps; s++) {
        lb_composite_kind other;
        if (swaps[s].kind != LB_SWAP_FUSE) continue;
        status = lb_fuse_parse(&swaps[s], &other, &ignored, &ignored, err);
        if (status == LB_OK && other == kind) status = choose(&f, &swaps[s], &other, &ignored, blocks.letters, 0, err);
    }
    for (uint32_t i = 0; status == LB_OK && kernel && i < f.found.n; i++)
        if (f.chosen[i] && may_fuse(&f, &f.found.rows[i])) mark_going(&f, i), out->touched++;
    if (status == LB_OK) status = rewrite(&f, kernel ? kernel : "", out, err);
    lb_blocks_release(&blocks);
    free(f.chosen);
    free(f.dropped);
    free(f.going);
    free(f.place);
    lb_composites_release(&f.found);
    lb_slice_flow_free(f.trace.flow);
    return status;
}
