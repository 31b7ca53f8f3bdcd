/* Steps as one program: see joined_steps.h. */
#include "joined/joined_steps.h"

#include "joined/join.h"
#include "pair/op_kind.h"

#include <stdlib.h>
#include <string.h>

/* What earlier steps have of some memory. */
typedef struct memory {
    int64_t id, first, last; /* elements [first, last) were there */
    bool computed;           /* an op gave some of it */
} memory;

typedef struct joiner {
    lb_join join;
    memory *list;
    uint32_t n;
} joiner;

static memory *find_memory(const joiner *joiner, int64_t id)
{
    uint32_t low = 0, high = joiner->n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (joiner->list[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < joiner->n && joiner->list[low].id == id ? &joiner->list[low] : NULL;
}

static int by_id(const void *x, const void *y)
{
    const memory *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}

static bool list_memories(joiner *joiner)
{
    const lb_program *program = joiner->join.p;
    uint32_t kept = 0;
    joiner->list = calloc((size_t)program->n_values + 1, sizeof *joiner->list);
    if (!joiner->list) return false;
    for (uint32_t v = 0; v < program->n_values; v++) joiner->list[v].id = program->values[v].storage;
    if (program->n_values) qsort(joiner->list, program->n_values, sizeof *joiner->list, by_id);
    for (uint32_t v = 0; v < program->n_values; v++)
        if (!kept || joiner->list[kept - 1].id != joiner->list[v].id) joiner->list[kept++] = joiner->list[v];
    joiner->n = kept;
    return true;
}

static bool range_of(const lb_value *value, int64_t *first, int64_t *last)
{
    return lb_layout_dense_range(&value->layout, first, last, NULL) == LB_OK;
}

/* What an op gives is there for the steps behind it. */
static void note_results(joiner *joiner, const lb_op *op)
{
    const lb_program *program = joiner->join.p;
    for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
        const uint32_t v = lb_op_outcome(program, op, k);
        int64_t first, last;
        memory *memory = v == LB_NONE ? NULL : find_memory(joiner, program->values[v].storage);
        if (!memory || !range_of(&program->values[v], &first, &last)) continue;
        if (memory->first == memory->last) memory->first = first, memory->last = last;
        if (first < memory->first) memory->first = first;
        if (last > memory->last) memory->last = last;
        memory->computed |= !(op->flags & LB_OP_VIEW) && !lb_op_is_source(program, op);
    }
}

/* Does the memory hold what the source begins with, as an earlier step left it? */
static bool is_left(const joiner *joiner, const lb_op *op)
{
    const lb_program *program = joiner->join.p;
    const uint32_t v = lb_op_is_source(program, op) && op->results == 1 ? lb_op_results(program, op)[0] : LB_NONE;
    if (v == LB_NONE) return false;
    const lb_value *value = &program->values[v];
    const memory *memory = find_memory(joiner, value->storage);
    int64_t first, last;
    if (!memory || memory->first == memory->last || !range_of(value, &first, &last) || first < memory->first ||
        last > memory->last)
        return false;
    if (value->source == LB_SOURCE_UNSEEN || value->source == LB_SOURCE_RANDOM) return false;
    return memory->computed
               ? value->source == LB_SOURCE_CARRIED && lb_dtype_is_float(value->dtype)
               : value->source == LB_SOURCE_CARRIED || value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE);
}

static void write_steps(joiner *joiner)
{
    lb_join *join = &joiner->join;
    for (uint32_t k = 0; k < join->view->n_parts && !join->failed; k++) {
        const uint32_t end = lb_join_end_of(join, k);
        join->part = k;
        for (uint32_t i = join->view->parts[k].first_op; i < end && !join->failed; i++) {
            join->new_of[i] = join->n_ops;
            if (!k || !is_left(joiner, &join->p->ops[i])) lb_join_append(join, join->p->ops[i]);
        }
        for (uint32_t i = join->view->parts[k].first_op; i < end; i++) note_results(joiner, &join->p->ops[i]);
    }
}

lb_status lb_joined_steps_view(lb_capture *capture, const lb_program *const *programs, uint32_t n,
                               lb_program_view *view, lb_err *err)
{
    if (n < 2) return lb_program_view_init(capture, programs, n, view, err);
    LB_TRY(lb_program_view_init_merged(capture, programs, n, view, err));
    joiner joiner = {.join = {.view = view, .p = view->merged, .called = LB_NONE}};
    lb_join *join = &joiner.join;
    join->new_of = malloc(((size_t)join->p->n_ops + 1) * sizeof *join->new_of);
    join->failed = !join->new_of || !list_memories(&joiner);
    if (!join->failed) write_steps(&joiner);
    if (!join->failed) lb_join_hand_over(join);
    free(joiner.list), free(join->ops), free(join->part_of), free(join->ranks), free(join->new_of);
    if (!join->failed) return LB_OK;
    lb_program_view_release(view);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for the ops of %u steps", n);
}

bool lb_joined_steps_is_cache(const lb_value *value)
{
    return value->source == LB_SOURCE_CARRIED &&
           !(value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE | LB_VALUE_GRADIENT)) &&
           lb_dtype_is_float(value->dtype) && lb_layout_numel(&value->layout) > 1;
}
