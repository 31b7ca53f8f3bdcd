/* See regenerate.h. Calls of one op, dtype and layout are done by one routine of the library, in one order as a rule:
 * what served such a call before is tried first, and where nothing served twice nothing is tried any more. */
#include "machine/regenerate.h"

#include "machine/rebase.h"
#include "kernel/complex_rows.h"
#include "kernel/required_arguments.h"
#include "orders/schedule.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* What CPU libraries were seen to do (schedule.h), likely ones first; the first NARROW with 16-bit operands alone. */
static const char *const of_products[] = {"dpbf16",
                                          "tdpbf16",
                                          "tdpbf16:2",
                                          "tdpbf16:3",
                                          "tdpbf16:4",
                                          "tdpbf16:5",
                                          "tdpbf16:6",
                                          "tdpbf16:7",
                                          "tdpbf16:8",
                                          "torchdot",
                                          "halved:192",
                                          "folded:4,aligned:0,tail:after,rounded",
                                          "lanes:1",
                                          "folded:4,aligned:1,tail:after,rounded",
                                          "folded:4,aligned:2,tail:after,rounded",
                                          "folded:4,aligned:3,tail:after,rounded",
                                          "folded:4,tail:after,rounded",
                                          "torch:1",
                                          "eights",
                                          "folded:16,head:1,tail:again",
                                          "sequential",
                                          "blocked:256",
                                          "torch:2",
                                          "torch:4",
                                          "torch:8",
                                          "folded:8,pairs",
                                          "folded:4,head:1,tail:after,rounded"};
enum { NARROW = 10 };
static const char *const of_sums[] = {"torch:1",    "torch:2",   "torch:4",    "torch:8",  "cascade:8",
                                      "cascade:16", "cascade:4", "sequential", "pairwise", "numpy",
                                      "lanes:16",   "lanes:8",   "lanes:4"};
/* Blocks of k that MKL adds to what is in the result already, the addend of addmm: halved:192 and torch:1, but from
 * there on. */
static int64_t halves(int64_t left)
{
    return lb_schedule_halved(192, left);
}
static int64_t (*const onto_self[])(int64_t left) = {halves, lb_schedule_block};
static const char *const onto_self_names[] = {"halved:192 onto self", "torch:1 onto self"};
enum { ONTO_SELF = sizeof onto_self / sizeof *onto_self };
enum { PRODUCTS = sizeof of_products / sizeof *of_products, SUMS = sizeof of_sums / sizeof *of_sums };
enum { KINDS = 256, PATIENCE = 2 };

/* Calls of one kind: a row, and dtypes, shapes and strides of what it reads. */
typedef struct kind {
    uint64_t hash;
    uint8_t served; /* order + 1 that gave the recorded bits last; 0: none did so far */
    uint8_t failed; /* calls in vain since */
} kind;

struct lb_regeneration {
    lb_schedule products[PRODUCTS], sums[SUMS];
    kind kinds[KINDS]; /* by hash; another one of the same slot takes its place */
};

lb_regeneration *lb_regeneration_new(void)
{
    lb_regeneration *regeneration = calloc(1, sizeof *regeneration);
    lb_status status = regeneration ? LB_OK : LB_ERR_NOMEM;
    for (int i = 0; i < PRODUCTS && status == LB_OK; i++)
        status = lb_schedule_parse(of_products[i], &regeneration->products[i], NULL);
    for (int i = 0; i < SUMS && status == LB_OK; i++)
        status = lb_schedule_parse(of_sums[i], &regeneration->sums[i], NULL);
    LB_CHECK(status == LB_OK || status == LB_ERR_NOMEM);
    if (status == LB_OK) return regeneration;
    free(regeneration);
    return NULL;
}

void lb_regeneration_free(lb_regeneration *regeneration)
{
    free(regeneration);
}

static kind *kind_of(lb_regeneration *regeneration, const lb_execution *execution)
{
    uint64_t hash = (uint64_t)(uintptr_t)execution->prepared->row;
    for (uint32_t a = 0; a < execution->n_args; a++) {
        if (execution->args[a].tag != LB_OPERAND_TENSOR) continue;
        const lb_tensor *tensor = &execution->args[a].tensor;
        const size_t bytes = (size_t)tensor->layout.ndim * sizeof tensor->layout.shape[0];
        hash = XXH3_64bits_withSeed(tensor->layout.shape, bytes, hash + tensor->dtype);
        hash = XXH3_64bits_withSeed(tensor->layout.stride, bytes, hash);
    }
    kind *k = &regeneration->kinds[hash % KINDS];
    if (k->hash != hash) *k = (kind){.hash = hash};
    return k;
}

/* Whether results differ from the recording; *unkept: some from a digest whose bytes are not there. */
static bool differs(lb_machine *machine, const lb_execution *execution, bool *unkept)
{
    bool different = false;
    *unkept = false;
    for (uint32_t i = 0; i < execution->outputs.n; i++) {
        lb_tensor recorded;
        const uint32_t v = execution->outputs.values[i];
        if (v == LB_NONE) continue;
        const bool kept = lb_rebase_recorded(machine, v, &recorded);
        if (lb_rebase_compare(machine, v, kept ? &recorded : NULL) != LB_LIKE_DIFFERENT) continue;
        different = true;
        *unkept |= !kept;
    }
    return different;
}

bool lb_regenerate_is_possible(lb_machine *machine, const lb_execution *execution)
{
    const lb_plan *plan = machine->run->plan;
    bool unkept;
    if (plan->mode != LB_REPLAY_ISOLATED || plan->shadow || machine->is_shadow || plan->n_swaps ||
        !execution->inputs.exact || !execution->units)
        return false;
    return differs(machine, execution, &unkept) && unkept;
}

static lb_status call(lb_machine *machine, lb_execution *execution, const lb_schedule *schedule)
{
    lb_err local = LB_ERR_INIT;
    for (uint32_t u = 0; u < execution->units; u++) {
        if (execution->unit != execution->args)
            lb_operands_split(execution->args, execution->n_args, execution->units, u, execution->unit);
        lb_call one = {execution->prepared->row,
                       execution->unit,
                       execution->n_args,
                       execution->outputs.tensors + (size_t)u * execution->per_unit,
                       execution->per_unit,
                       lb_machine_choice(machine)->method,
                       &local};
        one.method.schedule = schedule;
        lb_status status = lb_required_arguments_are_there(&one);
        if (status == LB_OK) status = lb_row_run(&one);
        if (status == LB_ERR_NOMEM || status == LB_ERR_LIMIT) return lb_fail(machine->err, status, "%s", local.message);
        if (status != LB_OK) return status;
    }
    return LB_OK;
}

/* self + a b with both factors 1, in f32: numbers lie in the result as they are added up. */
static bool adds_onto_self(const lb_execution *execution)
{
    const lb_operand *args = execution->args;
    const char *name = execution->prepared->row->name;
    if (strcmp(name, "aten::addmm") || execution->units != 1 || execution->outputs.n != 1 || execution->n_args < 3)
        return false;
    for (uint32_t a = 3; a < execution->n_args && a < 5; a++) {
        if (args[a].tag == LB_OPERAND_INT && args[a].i != 1) return false;
        if (args[a].tag == LB_OPERAND_FLOAT && args[a].f != 1) return false;
    }
    return args[0].tag == LB_OPERAND_TENSOR && args[1].tag == LB_OPERAND_TENSOR && args[2].tag == LB_OPERAND_TENSOR &&
           execution->outputs.tensors[0].dtype == LB_F32 && args[1].tensor.layout.ndim == 2;
}

static lb_status try_onto_self(lb_machine *machine, lb_execution *execution, int64_t (*block)(int64_t left),
                               bool *serves)
{
    const int64_t k = execution->args[1].tensor.layout.shape[1];
    lb_tensor *out = &execution->outputs.tensors[0], sum = {NULL, LB_F32, lb_layout_contiguous(2, out->layout.shape)};
    lb_operand args[5];
    lb_err local = LB_ERR_INIT;
    *serves = false;
    if (block(k) >= k) return LB_OK; /* one block: as without it */
    sum.data = lb_machine_scratch(machine, lb_dtype_bytes(LB_F32, (size_t)lb_layout_numel(&out->layout)));
    if (!sum.data) return LB_ERR_LIMIT;
    memcpy(args, execution->args, (execution->n_args < 5 ? execution->n_args : 5) * sizeof *args);
    for (int64_t at = 0, terms; at < k; at += terms) {
        terms = block(k - at);
        lb_tensor *a = &args[1].tensor, *b = &args[2].tensor;
        *a = execution->args[1].tensor, *b = execution->args[2].tensor;
        a->data = (char *)a->data + at * a->layout.stride[1] * (int64_t)(lb_dtype_bits(a->dtype) / 8);
        b->data = (char *)b->data + at * b->layout.stride[0] * (int64_t)(lb_dtype_bits(b->dtype) / 8);
        a->layout.shape[1] = b->layout.shape[0] = terms;
        lb_call one = {execution->prepared->row,           args,  execution->n_args < 5 ? execution->n_args : 5, out, 1,
                       lb_machine_choice(machine)->method, &local};
        lb_status status = lb_required_arguments_are_there(&one);
        if (status == LB_OK) status = lb_row_run(&one);
        if (status == LB_ERR_NOMEM || status == LB_ERR_LIMIT) return lb_fail(machine->err, status, "%s", local.message);
        if (status != LB_OK) return LB_OK;
        lb_memory_tensor_copy(&sum, out, NULL);
        args[0].tensor = sum;
    }
    bool unkept;
    *serves = !differs(machine, execution, &unkept);
    return LB_OK;
}

static bool reads_16_bits(const lb_execution *execution)
{
    for (uint32_t a = 0; a < execution->n_args; a++)
        if (execution->args[a].tag == LB_OPERAND_TENSOR && lb_dtype_bits(execution->args[a].tensor.dtype) == 16)
            return true;
    return false;
}

static lb_status try_order(lb_machine *machine, lb_execution *execution, const lb_schedule *schedule, bool *serves)
{
    const lb_status status = call(machine, execution, schedule);
    bool unkept;
    *serves = status == LB_OK && !differs(machine, execution, &unkept);
    return status == LB_ERR_NOMEM || status == LB_ERR_LIMIT ? status : LB_OK;
}

lb_status lb_regenerate(lb_machine *machine, lb_execution *execution)
{
    lb_regeneration *regeneration = machine->run->regeneration;
    const uint32_t flags = execution->prepared->row->flags;
    const bool product = flags & LB_ROW_MATMUL;
    execution->order = NULL;
    if (!regeneration || !execution->prepared->row->kernel || !(product || flags & LB_ROW_REDUCTION)) return LB_OK;
    kind *kind = kind_of(regeneration, execution);
    if (kind->failed >= PATIENCE) return LB_OK;
    const lb_schedule *schedules = product ? regeneration->products : regeneration->sums;
    const char *const *names = product ? of_products : of_sums;
    const int n = product ? PRODUCTS : SUMS;
    bool serves = false;
    const int first = product && !reads_16_bits(execution) ? NARROW : 0;
    for (int i = first - 1; i < n && !serves; i++) {
        const int at = i < first ? kind->served - 1 : i;
        if (at < 0 || (i >= first && i == kind->served - 1)) continue;
        LB_TRY(try_order(machine, execution, &schedules[at], &serves));
        if (!serves) continue;
        execution->order = names[at];
        kind->served = (uint8_t)(at + 1);
        kind->failed = 0;
    }
    for (int i = 0; i < ONTO_SELF && !serves && adds_onto_self(execution); i++) {
        LB_TRY(try_onto_self(machine, execution, onto_self[i], &serves));
        if (serves) execution->order = onto_self_names[i];
    }
    if (serves) return LB_OK;
    kind->failed++;
    const lb_status status = call(machine, execution, NULL); /* our own bits again */
    return status == LB_ERR_NOMEM || status == LB_ERR_LIMIT ? status : LB_OK;
}
