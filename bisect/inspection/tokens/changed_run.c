/* Exact runs in which whole numbers are changed: see changed_run.h. */
#include "tokens/changed_run.h"

#include "shadow/shadow_numbers.h"

#include <stdlib.h>
#include <string.h>

/* One rank of the run. */
typedef struct run {
    lb_moved_run *moved;
    const lb_changed_run *changed;
    bool leads;     /* the rank that was asked for */
    bool fed;       /* it was given the tokens that are changed */
    double *source; /* numbers of the source that was asked for last */
    uint8_t *asked; /* per value: the exact run, which is the first to ask for a source, has it */
    lb_status status;
} run;

/* The ranks that run together, the one that was asked for first. */
typedef struct ranks_run {
    lb_moved_run *const *runs;
    run *ranks; /* one for each */
    uint32_t n;
} ranks_run;

static run *run_of(const ranks_run *all, int32_t rank)
{
    return &all->ranks[lb_moved_run_of(all->runs, all->n, rank)];
}

/* Element `i` of a window, counted row by row: where it stands in its storage. */
static int64_t place_of(const lb_layout *layout, int64_t i)
{
    int64_t at = layout->offset;
    for (int d = layout->ndim - 1; d >= 0; d--) {
        at += i % layout->shape[d] * layout->stride[d];
        i /= layout->shape[d];
    }
    return at;
}

/* `numbers` are the elements of a source; those that `change` names become what it says. The window of the change may
 * be a part of the source, or begin elsewhere; what they do not share is left alone. */
static bool put_change(const lb_program *program, const lb_changed_value *change, uint32_t source, double *numbers)
{
    const lb_value *window = &program->values[change->value], *whole = &program->values[source];
    const int64_t n = lb_layout_numel(&whole->layout), m = lb_layout_numel(&window->layout);
    int64_t first, last;
    if (lb_layout_dense_range(&whole->layout, &first, &last, NULL) != LB_OK || last - first > (int64_t)1 << 32)
        return false;
    int64_t *element = malloc((size_t)(last - first + 1) * sizeof *element);
    if (!element) return false;
    for (int64_t i = 0; i < last - first; i++) element[i] = -1;
    for (int64_t i = 0; i < n; i++) element[place_of(&whole->layout, i) - first] = i;
    for (int64_t i = 0; i < m; i++) {
        const int64_t at = place_of(&window->layout, i) - first;
        if (at >= 0 && at < last - first && element[at] >= 0) numbers[element[at]] = (double)change->numbers[i];
    }
    free(element);
    return true;
}

static bool is_changed_by(const run *run, const lb_changed_value *change, uint32_t source)
{
    const lb_program *program = run->moved->program;
    const uint32_t giver = run->moved->graph.giver[change->value];
    return giver != LB_NONE && giver == run->moved->graph.giver[source] &&
           lb_op_is_source(program, &program->ops[giver]) &&
           program->values[source].storage == program->values[change->value].storage;
}

static bool take_source(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    run *run = run_of(context, rank);
    lb_tensor recorded;
    bool any = false;
    (void)step;
    if (!run->fed || value >= run->moved->program->n_values || run->asked[value]++) return false;
    for (uint32_t i = 0; i < run->changed->n_changes; i++) any |= is_changed_by(run, &run->changed->changes[i], value);
    if (!any || lb_program_view_value(run->moved->view, value, &recorded, NULL) != LB_OK) return false;
    free(run->source);
    run->source = lb_shadow_numbers_copy(&recorded);
    bool done = run->source != NULL;
    for (uint32_t i = 0; i < run->changed->n_changes && done; i++)
        if (is_changed_by(run, &run->changed->changes[i], value))
            done = put_change(run->moved->program, &run->changed->changes[i], value, run->source);
    if (!done) {
        run->status = LB_ERR_NOMEM;
        return false;
    }
    /* f64 holds whole numbers up to 2^53, and is converted to what the source is held in. */
    *tensor = (lb_tensor){run->source, LB_F64, lb_layout_contiguous(recorded.layout.ndim, recorded.layout.shape)};
    return true;
}

/* A changed value that an op computed. */
static void put_computed(const run *run, const lb_event *event)
{
    const lb_program *program = run->moved->program;
    for (uint32_t i = 0; i < run->changed->n_changes; i++) {
        const lb_changed_value *change = &run->changed->changes[i];
        lb_tensor tensor;
        if (run->moved->graph.giver[change->value] != event->op || lb_op_is_source(program, &program->ops[event->op]))
            continue;
        if (!lb_event_exact(event, change->value, &tensor)) continue;
        const int64_t n = lb_layout_numel(&tensor.layout);
        double *numbers = malloc(((size_t)n + 1) * sizeof *numbers);
        for (int64_t k = 0; numbers && k < n; k++) numbers[k] = (double)change->numbers[k];
        if (numbers) lb_shadow_put(&tensor, numbers);
        free(numbers);
    }
}

static bool note_op(void *context, const lb_event *event)
{
    run *run = run_of(context, event->rank);
    if (run->status != LB_OK) return false;
    if (run->fed) put_computed(run, event);
    if (!run->leads)
        return !run->changed->look_beside || run->changed->look_beside(run->changed->context, run->moved, event);
    if (run->changed->look && !run->changed->look(run->changed->context, event)) return false;
    return event->op < run->changed->last;
}

typedef struct inputs {
    const lb_program *program;
    bool any_float;
} inputs;

static void note_input(void *context, uint32_t value)
{
    inputs *in = context;
    in->any_float |= value != LB_NONE && lb_dtype_is_float(in->program->values[value].dtype);
}

static bool computes(void *context, int32_t rank, int64_t step, uint32_t op)
{
    const run *run = run_of(context, rank);
    inputs in = {run->moved->program, false};
    (void)step;
    if (run->changed->holds) return false;
    lb_op_each_input(in.program, &in.program->ops[op], note_input, &in);
    if (in.any_float && run->changed->chose) *run->changed->chose = true;
    return !run->changed->holds_whole || in.any_float;
}

/* Beginnings of the step count by their ops: several make one run. */
static void count_run(lb_moved_run *moved, const lb_changed_run *changed)
{
    const uint32_t n = moved->program->n_ops;
    moved->begun += changed->last < n ? changed->last + 1 : n;
    if (moved->begun >= n) moved->begun -= n, moved->runs++;
}

/* Ranks that hold parts of one model are given the same tokens, and run one program. */
static bool is_fed(const lb_moved_run *lead, const lb_moved_run *other, const lb_changed_run *changed)
{
    const lb_program *p = lead->program, *q = other->program;
    bool fed = lead == other || (p->n_ops == q->n_ops && p->n_values == q->n_values);
    for (uint32_t i = 0; i < changed->n_changes && fed && lead != other; i++) {
        const lb_digest digest = p->values[changed->changes[i].value].logical,
                        b = q->values[changed->changes[i].value].logical;
        fed = lb_digest_equal(digest, b) && !lb_digest_is_none(digest);
    }
    return fed;
}

static bool begin(ranks_run *all, const lb_changed_run *changed)
{
    for (uint32_t i = 0; i < all->n; i++) {
        lb_moved_run *moved = all->runs[i], *lead = all->runs[0];
        run *r = &all->ranks[i];
        *r = (run){.moved = moved,
                   .changed = changed,
                   .leads = !i,
                   .fed = is_fed(changed->home ? changed->home : lead, moved, changed)};
        r->asked = calloc((size_t)moved->program->n_values + 1, 1);
        if (!r->asked) return false;
    }
    return true;
}

lb_status lb_changed_run_run(lb_moved_run *run, const lb_changed_run *changed, lb_err *err)
{
    lb_moved_run *alone[1] = {run};
    ranks_run all = {.runs = run->together ? run->together : alone, .n = run->together ? run->n_together : 1};
    all.ranks = calloc(all.n, sizeof *all.ranks);
    const lb_observer observer = {.context = &all, .op = note_op, .source = take_source, .computes = computes};
    count_run(run, changed);
    lb_status status =
        all.ranks && begin(&all, changed) ? lb_moved_run_exact(all.runs, all.n, &observer, err) : LB_ERR_NOMEM;
    for (uint32_t i = 0; all.ranks && i < all.n; i++) {
        if (status == LB_OK) status = all.ranks[i].status;
        free(all.ranks[i].source), free(all.ranks[i].asked);
    }
    free(all.ranks);
    return status == LB_ERR_NOMEM ? lb_fail(err, status, "out of memory for a run with other tokens") : status;
}
