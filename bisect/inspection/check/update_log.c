/* Absorbed updates, counted: see update_log.h. */
#include "check/update_log.h"

#include "base/array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct lb_update_tensor {
    const char *name;
    int64_t storage;
    const lb_group *group;
    uint32_t op;
    lb_dtype dtype;
    int64_t n;
    double *first, *added, *now; /* NULL: no update was seen yet */
    int64_t decays, absorbed_decays;
    bool copied; /* a copy writes it */
    bool lost;   /* what it began with was not kept */
    bool read;   /* behind its last update the optimizer reads it */
} lb_update_tensor;

void lb_update_window_release(lb_update_window *window)
{
    free(window->rows);
    *window = (lb_update_window){0};
}

/* ---- one step ---- */

static bool is_listed(const lb_update_log *log, int64_t storage)
{
    for (uint32_t i = 0; i < log->n; i++)
        if (log->tensors[i].storage == storage) return true;
    return false;
}

bool lb_update_log_open(const lb_moved_run *run, lb_update_log *log)
{
    const lb_program *p = run->program;
    *log = (lb_update_log){.run = run};
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t k = 0; k < p->groups[g].params; k++) {
            const lb_group_param *param = &p->group_params[p->groups[g].first_param + k];
            if (is_listed(log, param->storage)) continue;
            lb_update_tensor *grown = lb_array_grow(log->tensors, log->n, sizeof *grown);
            if (!grown) return false;
            log->tensors = grown;
            grown[log->n++] = (lb_update_tensor){.name = lb_program_text(p, param->name),
                                                 .storage = param->storage,
                                                 .group = &p->groups[g],
                                                 .op = LB_NONE};
        }
    return true;
}

static bool is_copy(const char *name)
{
    return strncmp(name, "aten::copy_", 11) == 0 || strncmp(name, "aten::_foreach_copy_", 20) == 0;
}

static bool is_decay(const char *name)
{
    return strncmp(name, "aten::mul_", 10) == 0 || strncmp(name, "aten::_foreach_mul_", 19) == 0;
}

typedef struct search {
    const lb_program *program;
    const lb_value *like;
    uint32_t found;
} search;

static void consider(void *context, uint32_t v)
{
    search *s = context;
    if (v == LB_NONE) return;
    const lb_value *x = &s->program->values[v];
    if (x->storage == s->like->storage && lb_layout_same_shape(&x->layout, &s->like->layout)) s->found = v;
}

/* The numbers that the first op found where it wrote the value, malloc'ed; NULL: they were not kept. */
static double *found_before(const lb_moved_run *run, uint32_t op, uint32_t value)
{
    search s = {run->program, &run->program->values[value], LB_NONE};
    lb_tensor t;
    lb_op_each_input(run->program, &run->program->ops[op], consider, &s);
    return s.found == LB_NONE || s.found == value ? NULL : lb_moved_run_recorded(run, s.found, &t);
}

/* Behind the first op each finds what the one before it left. */
static bool begin(lb_update_log *log, lb_update_tensor *t, uint32_t op, uint32_t value, int64_t n)
{
    if (t->first) return n == t->n;
    t->first = found_before(log->run, op, value), t->n = n;
    t->lost |= !t->first;
    if (!t->first) return false;
    t->added = calloc((size_t)n + 1, sizeof *t->added), t->now = malloc(((size_t)n + 1) * sizeof *t->now);
    log->failed |= !t->added || !t->now;
    if (!log->failed) memcpy(t->now, t->first, (size_t)n * sizeof *t->now);
    return !log->failed;
}

static void add_update(lb_update_log *log, lb_update_tensor *t, uint32_t op, const double *recorded,
                       const double *exact)
{
    const bool decay = is_decay(lb_op_name(log->run->program, &log->run->program->ops[op]));
    for (int64_t i = 0; i < t->n; i++) {
        const double update = exact[i] - t->now[i];
        if (isfinite(update)) t->added[i] += update;
        t->decays += decay && update != 0, t->absorbed_decays += decay && update != 0 && recorded[i] == t->now[i];
        t->now[i] = recorded[i];
    }
    t->op = op, t->read = false;
}

void lb_update_log_note(void *context, uint32_t op, uint32_t v, const double *recorded, const double *exact, int64_t n)
{
    lb_update_log *log = context;
    const lb_program *p = log->run->program;
    if (p->ops[op].phase != LB_PHASE_OPTIMIZER) return;
    for (uint32_t i = 0; i < log->n; i++) {
        lb_update_tensor *t = &log->tensors[i];
        if (t->storage != p->values[v].storage) {
            const bool writes = lb_op_writes(p, &p->ops[op], t->storage) != LB_NONE;
            t->read |= t->first && !writes && lb_op_reads(p, &p->ops[op], t->storage) != LB_NONE;
            continue;
        }
        t->dtype = p->values[v].dtype;
        t->copied |= is_copy(lb_op_name(p, &p->ops[op]));
        if (!t->copied && begin(log, t, op, v, n)) add_update(log, t, op, recorded, exact);
    }
}

static lb_update_row *row_for(lb_update_window *w, const lb_program *p, const lb_update_tensor *t)
{
    char group[sizeof w->rows->group];
    snprintf(group, sizeof group, "%s group %u", lb_program_text(p, t->group->optimizer), t->group->index);
    for (uint32_t i = 0; i < w->n; i++)
        if (strcmp(w->rows[i].group, group) == 0 && strcmp(w->rows[i].name, t->name) == 0) return &w->rows[i];
    lb_update_row *grown = lb_array_grow(w->rows, w->n, sizeof *grown);
    if (!grown) return NULL;
    w->rows = grown;
    lb_update_row *row = &grown[w->n++];
    *row = (lb_update_row){.op = LB_NONE};
    snprintf(row->group, sizeof row->group, "%s", group);
    snprintf(row->name, sizeof row->name, "%s", t->name);
    return row;
}

static void add_step(lb_update_window *w, const lb_program *p, const lb_update_tensor *t)
{
    lb_update_row *row = row_for(w, p, t);
    w->failed |= !row;
    if (!row) return;
    row->dtype = t->dtype, row->step = p->step, row->op = t->op;
    row->last_updates = row->last_absorbed = 0;
    for (int64_t i = 0; i < t->n; i++) {
        if (t->added[i] == 0) continue;
        row->last_updates++, row->last_absorbed += t->now[i] == t->first[i];
    }
    row->updates += row->last_updates, row->absorbed += row->last_absorbed;
    row->decays += t->decays, row->absorbed_decays += t->absorbed_decays;
}

void lb_update_log_close(lb_update_log *log, lb_update_window *window)
{
    window->failed |= log->failed;
    for (uint32_t i = 0; i < log->n; i++) {
        lb_update_tensor *t = &log->tensors[i];
        window->carried += t->copied || (t->first && t->read);
        window->lost += t->lost;
        if (t->first && !t->copied && !t->read && !log->failed) add_step(window, log->run->program, t);
        free(t->first), free(t->added), free(t->now);
    }
    free(log->tensors);
    *log = (lb_update_log){0};
}
