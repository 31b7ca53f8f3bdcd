/* What an op is: see op_kind.h. */
#include "pair/op_kind.h"

#include "kernel/ops.h"

#include <ctype.h>
#include <string.h>

bool lb_op_computes(const lb_program *program, const lb_op *op)
{
    if (op->flags & (LB_OP_VIEW | LB_OP_FAILED)) return false;
    const char *name = lb_op_name(program, op);
    return strncmp(name, "lb::", 4) != 0 && strncmp(name, "profiler::", 10) != 0;
}

int lb_op_name_among(const lb_program *program, const lb_op *op, const char *const *names, int n)
{
    const char *name = lb_op_name(program, op);
    for (int i = 0; i < n; i++) {
        const char *x = names[i], *y = name;
        while (*x && *x != '.' && *x == *y) x++, y++;
        if (!*x && (!*y || *y == '.')) return i;
    }
    return -1;
}

bool lb_op_same_place(const lb_program *pa, uint32_t a, const lb_program *pb, uint32_t b)
{
    const lb_op *x = &pa->ops[a], *y = &pb->ops[b];
    return x->phase == y->phase && !strcmp(lb_op_name(pa, x), lb_op_name(pb, y)) &&
           !strcmp(lb_op_layer(pa, x), lb_op_layer(pb, y));
}

/* ---- arguments ---- */

/* "tanh" or "sum", which choose what is computed; no device ("cuda:0"), layout, name of a group, or text of what cannot
 * be recorded. */
static bool is_word(const char *text)
{
    static const char *const devices[] = {"cpu", "cuda", "mps", "xpu", "hpu", "xla", "npu", "meta", "strided"};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (!strcmp(text, devices[i])) return false;
    if (strstr(text, "_format") || strstr(text, "channels_last")) return false;
    for (const char *c = text; *c; c++)
        if (!islower((unsigned char)*c) && *c != '_') return false;
    return *text;
}

static bool args_equal(const lb_program *pa, const lb_arg *a, uint32_t na, const lb_program *pb, const lb_arg *b,
                       uint32_t nb, uint32_t parts)
{
    if (na != nb) return parts;
    for (uint32_t i = 0; i < na; i++) {
        if (a[i].tag != b[i].tag) return false;
        switch ((lb_arg_tag)a[i].tag) {
        case LB_ARG_INT:
            if (a[i].u.i != b[i].u.i && !parts) return false;
            break;
        case LB_ARG_BOOL:
            if (a[i].u.i != b[i].u.i) return false;
            break;
        case LB_ARG_FLOAT:
            if (memcmp(&a[i].u.f, &b[i].u.f, sizeof(double)) != 0 && (!parts || a[i].u.f != b[i].u.f * parts))
                return false;
            break;
        case LB_ARG_LIST:
        case LB_ARG_COMPLEX:
            if (!args_equal(pa, pa->args + a[i].u.first, a[i].count, pb, pb->args + b[i].u.first, b[i].count, parts))
                return false;
            break;
        case LB_ARG_VALUE: /* a lazy conjugate is another argument, though its bytes are the same */
            if ((pa->values[a[i].u.value].flags ^ pb->values[b[i].u.value].flags) & LB_VALUE_LAZY) return false;
            break;
        case LB_ARG_STRING:
            if (strcmp(lb_program_text(pa, a[i].u.string), lb_program_text(pb, b[i].u.string)) != 0 &&
                is_word(lb_program_text(pa, a[i].u.string)) && is_word(lb_program_text(pb, b[i].u.string)))
                return false;
            break;
        default: break;
        }
    }
    return true;
}

bool lb_op_kind_same_arg(const lb_program *pa, const lb_arg *a, const lb_program *pb, const lb_arg *b)
{
    return args_equal(pa, a, 1, pb, b, 1, 0);
}

bool lb_op_same_args(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b, uint32_t parts)
{
    return args_equal(pa, lb_op_args(pa, a), a->args, pb, lb_op_args(pb, b), b->args, parts);
}

bool lb_op_same_numbers(const lb_program *program, const lb_op *x, const lb_op *y)
{
    if (x->name != y->name || x->args != y->args) return false;
    for (uint32_t i = 0; i < x->args; i++) {
        const lb_arg *a = &lb_op_args(program, x)[i], *b = &lb_op_args(program, y)[i];
        if (a->tag != b->tag) return false;
        if (a->tag == LB_ARG_FLOAT && memcmp(&a->u.f, &b->u.f, sizeof a->u.f) != 0) return false;
        if (a->tag == LB_ARG_INT && a->u.i != b->u.i) return false;
    }
    return true;
}

/* ---- name and shapes as one number ---- */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15) ^ (hash >> 29);
}

static void mix_shape(uint64_t *hash, const lb_program *program, uint32_t value)
{
    if (value == LB_NONE) return;
    const lb_layout *layout = &program->values[value].layout;
    *hash = mix(*hash, (uint64_t)layout->ndim);
    for (int32_t i = 0; i < layout->ndim; i++) *hash = mix(*hash, (uint64_t)layout->shape[i]);
    if (lb_dtype_is_complex(program->values[value].dtype)) *hash = mix(*hash, 'c');
}

bool lb_op_gives_complex(const lb_program *program, const lb_op *op)
{
    for (uint32_t i = 0; i < op->results; i++) {
        const uint32_t v = lb_op_results(program, op)[i];
        if (v != LB_NONE && lb_dtype_is_complex(program->values[v].dtype)) return true;
    }
    return false;
}

typedef struct mixer {
    uint64_t hash;
    const lb_program *program;
} mixer;

static void mix_input(void *context, uint32_t value)
{
    mixer *mixer = context;
    mix_shape(&mixer->hash, mixer->program, value);
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (; *text; text++) hash = mix(hash, (uint8_t)*text);
    return hash;
}

/* Which number a loop asks for: `expert_ids == 3` is another op than `expert_ids == 2`. */
static void mix_sought(uint64_t *hash, const lb_program *program, const lb_op *op)
{
    if (strcmp(lb_op_name(program, op), "aten::eq.Scalar") && strcmp(lb_op_name(program, op), "aten::ne.Scalar"))
        return;
    for (uint32_t i = 0; i < op->args; i++)
        if (lb_op_args(program, op)[i].tag == LB_ARG_INT) *hash = mix(*hash, (uint64_t)lb_op_args(program, op)[i].u.i);
}

uint64_t lb_op_kind(const lb_program *program, const lb_op *op, uint64_t role)
{
    mixer mixer = {hash_of(lb_op_name(program, op)), program};
    lb_op_each_input(program, op, mix_input, &mixer);
    mix_sought(&mixer.hash, program, op);
    for (uint32_t i = 0; i < op->results; i++) mix_shape(&mixer.hash, program, lb_op_results(program, op)[i]);
    return mix(mixer.hash, role);
}

uint64_t lb_op_name_kind(const lb_program *program, const lb_op *op, uint64_t role)
{
    return mix(hash_of(lb_op_name(program, op)), role);
}

static void count_input(void *context, uint32_t value)
{
    *(uint32_t *)context += value != LB_NONE;
}

bool lb_op_counts_anew(const lb_program *program, const lb_op *op)
{
    uint32_t inputs = 0;
    lb_op_each_input(program, op, count_input, &inputs);
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
        const uint32_t v = lb_op_outcome(program, op, i);
        if (v != LB_NONE && lb_dtype_is_float(program->values[v].dtype)) return false;
    }
    return !inputs && !(op->flags & LB_OP_RANDOM);
}

bool lb_op_any_backward(const lb_program *program)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].phase == LB_PHASE_BACKWARD) return true;
    return false;
}

bool lb_op_only_infers(const lb_program *program)
{
    bool infers = !program->n_collectives;
    for (uint32_t i = 0; i < program->n_ops && infers; i++)
        infers = program->ops[i].phase != LB_PHASE_BACKWARD && program->ops[i].phase != LB_PHASE_OPTIMIZER;
    return infers;
}

bool lb_op_is_of_forward(const lb_op *op, bool trains)
{
    return op->phase == LB_PHASE_FORWARD || (op->phase == LB_PHASE_OTHER && !trains);
}

uint32_t lb_op_last_number(const lb_program *program, uint32_t op, bool trains)
{
    const lb_op *o = &program->ops[op];
    uint32_t inputs = 0;
    if (!lb_op_is_of_forward(o, trains) || !lb_op_computes(program, o) || !lb_op_outcomes(o)) return LB_NONE;
    const uint32_t outcome = lb_op_outcome(program, o, 0);
    if (outcome == LB_NONE || !lb_dtype_is_float(program->values[outcome].dtype) ||
        lb_layout_numel(&program->values[outcome].layout) != 1)
        return LB_NONE;
    lb_op_each_input(program, o, count_input, &inputs);
    for (uint32_t i = op + 1; i < program->n_ops && inputs; i++) {
        const lb_op *later = &program->ops[i];
        if (lb_op_is_of_forward(later, trains) && lb_op_computes(program, later) && !(later->flags & LB_OP_DECISION) &&
            lb_op_reads(program, later, program->values[outcome].storage) != LB_NONE)
            return LB_NONE;
    }
    return inputs ? outcome : LB_NONE;
}

bool lb_op_kind_is_memory_of_update(const lb_program *program, const lb_op *source)
{
    const lb_value *value = &program->values[lb_op_results(program, source)[0]];
    const uint8_t kind = value->source;
    return source->phase == LB_PHASE_OPTIMIZER && lb_dtype_is_float(value->dtype) &&
           lb_layout_numel(&value->layout) > 1 &&
           (kind == LB_SOURCE_PARAMETER || kind == LB_SOURCE_STATE || kind == LB_SOURCE_CARRIED ||
            kind == LB_SOURCE_OTHER);
}

bool lb_op_kind_is_discontinuous(const lb_program *program, const lb_op *op)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(lb_op_name(program, op), &form);
    return row && row->flags & LB_ROW_DISCONTINUOUS;
}
