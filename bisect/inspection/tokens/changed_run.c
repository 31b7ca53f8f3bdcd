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
static bool put_change(const lb_program *p, const lb_changed_value *change, uint32_t source, double *numbers)
{
    const lb_value *window = &p->values[change->value], *whole = &p->values[source];
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

static bool is_changed_by(const run *r, const lb_changed_value *change, uint32_t source)
{
    const lb_program *p = r->moved->program;
    const uint32_t giver = r->moved->graph.giver[change->value];
    return giver != LB_NONE && giver == r->moved->graph.giver[source] && lb_op_is_source(p, &p->ops[giver]) &&
           p->values[source].storage == p->values[change->value].storage;
}

static bool take_source(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    run *r = run_of(context, rank);
    lb_tensor recorded;
    bool any = false;
    (void)step;
    if (!r->fed || value >= r->moved->program->n_values || r->asked[value]++) return false;
    for (uint32_t i = 0; i < r->changed->n_changes; i++) any |= is_changed_by(r, &r->changed->changes[i], value);
    if (!any || lb_program_view_value(r->moved->view, value, &recorded, NULL) != LB_OK) return false;
    free(r->source);
    r->source = lb_shadow_numbers_copy(&recorded);
    bool done = r->source != NULL;
    for (uint32_t i = 0; i < r->changed->n_changes && done; i++)
        if (is_changed_by(r, &r->changed->changes[i], value))
            done = put_change(r->moved->program, &r->changed->changes[i], value, r->source);
    if (!done) {
        r->status = LB_ERR_NOMEM;
        return false;
    }
    /* f64 holds whole numbers up to 2^53, and is converted to what the source is held in. */
    *tensor = (lb_tensor){r->source, LB_F64, lb_layout_contiguous(recorded.layout.ndim, recorded.layout.shape)};
    return true;
}

/* A changed value that an op computed. */
static void put_computed(const run *r, const lb_event *event)
{
    const lb_program *p = r->moved->program;
    for (uint32_t i = 0; i < r->changed->n_changes; i++) {
        const lb_changed_value *change = &r->changed->changes[i];
        lb_tensor t;
        if (r->moved->graph.giver[change->value] != event->op || lb_op_is_source(p, &p->ops[event->op])) continue;
        if (!lb_event_exact(event, change->value, &t)) continue;
        const int64_t n = lb_layout_numel(&t.layout);
        double *numbers = malloc(((size_t)n + 1) * sizeof *numbers);
        for (int64_t k = 0; numbers && k < n; k++) numbers[k] = (double)change->numbers[k];
        if (numbers) lb_shadow_put(&t, numbers);
        free(numbers);
    }
}

static bool note_op(void *context, const lb_event *event)
{
    run *r = run_of(context, event->rank);
    if (r->status != LB_OK) return false;
    if (r->fed) put_computed(r, event);
    if (!r->leads) return !r->changed->look_beside || r->changed->look_beside(r->changed->context, r->moved, event);
    if (r->changed->look && !r->changed->look(r->changed->context, event)) return false;
    return event->op < r->changed->last;
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
    const run *r = run_of(context, rank);
    inputs in = {r->moved->program, false};
    (void)step;
    if (r->changed->holds) return false;
    lb_op_each_input(in.program, &in.program->ops[op], note_input, &in);
    if (in.any_float && r->changed->chose) *r->changed->chose = true;
    return !r->changed->holds_whole || in.any_float;
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
        const lb_digest a = p->values[changed->changes[i].value].logical,
                        b = q->values[changed->changes[i].value].logical;
        fed = lb_digest_equal(a, b) && !lb_digest_is_none(a);
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

lb_status lb_changed_run_run(lb_moved_run *moved, const lb_changed_run *changed, lb_err *err)
{
    lb_moved_run *alone[1] = {moved};
    ranks_run all = {.runs = moved->together ? moved->together : alone, .n = moved->together ? moved->n_together : 1};
    all.ranks = calloc(all.n, sizeof *all.ranks);
    const lb_observer observer = {.context = &all, .op = note_op, .source = take_source, .computes = computes};
    count_run(moved, changed);
    lb_status status =
        all.ranks && begin(&all, changed) ? lb_moved_run_exact(all.runs, all.n, &observer, err) : LB_ERR_NOMEM;
    for (uint32_t i = 0; all.ranks && i < all.n; i++) {
        if (status == LB_OK) status = all.ranks[i].status;
        free(all.ranks[i].source), free(all.ranks[i].asked);
    }
    free(all.ranks);
    return status == LB_ERR_NOMEM ? lb_fail(err, status, "out of memory for a run with other tokens") : status;
}
