/* Absorbed updates, counted: see update_log.h. */
#include "check/update_log.h"

#include "moved/masters.h"
#include "moved/optimizer_step.h"

#include "base/array.h"
#include "shadow/number_blocks.h"

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
    double *added;          /* NULL: no update was seen yet */
    lb_number_blocks first; /* what it began with, as it was recorded */
    lb_number_blocks now;   /* what it is, the same; not open where those bytes were not kept: */
    double *left;           /* the numbers that it was seen to be left with; NULL */
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

static bool is_decay(const lb_program *p, const lb_op *op)
{
    return lb_op_is(p, op, "aten::mul_") || lb_op_is(p, op, "aten::_foreach_mul_");
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

/* The recorded numbers of a value; false: they were not kept. */
static bool open_recorded(lb_update_log *log, uint32_t value, lb_number_blocks *blocks)
{
    lb_tensor t;
    lb_number_blocks_close(blocks);
    if (lb_program_view_value(log->run->view, value, &t, NULL) != LB_OK || !t.data || !lb_dtype_is_float(t.dtype) ||
        lb_dtype_is_complex(t.dtype))
        return false;
    if (lb_number_blocks_open(&t, blocks)) return true;
    log->failed = true;
    return false;
}

/* The numbers that the first op found where it wrote the value. */
static bool open_found(lb_update_log *log, uint32_t op, uint32_t value, lb_number_blocks *blocks)
{
    search s = {log->run->program, &log->run->program->values[value], LB_NONE};
    lb_op_each_input(log->run->program, &log->run->program->ops[op], consider, &s);
    return s.found != LB_NONE && s.found != value && open_recorded(log, s.found, blocks);
}

/* Behind the first op each finds what the one before it left. */
static void begin(lb_update_log *log, lb_update_tensor *t, uint32_t op, uint32_t value)
{
    if (t->added || t->lost) return;
    t->lost = !open_found(log, op, value, &t->first) || !open_found(log, op, value, &t->now);
    if (t->lost) return;
    t->n = t->first.n, t->added = calloc((size_t)t->n + 1, sizeof *t->added);
    log->failed |= !t->added;
}

static const double *now_at(const lb_update_tensor *t, int64_t from, int64_t n, double *room)
{
    return t->left ? t->left + from : lb_number_blocks_at(&t->now, from, n, room);
}

static void add_update(lb_update_log *log, lb_update_tensor *t, uint32_t op, const double *recorded,
                       const double *exact, int64_t from, int64_t n)
{
    const bool decay = is_decay(log->run->program, &log->run->program->ops[op]);
    double room[LB_NUMBER_BLOCK];
    const double *now = now_at(t, from, n, room);
    for (int64_t i = 0; i < n; i++) {
        const double update = exact[i] - now[i];
        t->added[from + i] += isfinite(update) ? update : 0;
        t->decays += decay & (update != 0), t->absorbed_decays += decay & (update != 0) & (recorded[i] == now[i]);
    }
    if (t->left) memcpy(t->left + from, recorded, (size_t)n * sizeof *recorded);
}

/* Where it is left behind the op: as it was recorded, or by the numbers that come by. */
static void end_update(lb_update_log *log, lb_update_tensor *t, uint32_t op, uint32_t value)
{
    t->op = op, t->read = false;
    if (open_recorded(log, value, &t->now)) {
        free(t->left);
        t->left = NULL;
    }
}

/* Before the first block of a result whose bytes were not kept: what there was is copied, to be written over. */
static void make_room(lb_update_log *log, lb_update_tensor *t, uint32_t value)
{
    lb_tensor recorded;
    if (t->left || lb_program_view_value(log->run->view, value, &recorded, NULL) == LB_OK) return;
    t->left = malloc(((size_t)t->n + 1) * sizeof *t->left);
    log->failed |= !t->left;
    double room[LB_NUMBER_BLOCK];
    for (int64_t i = 0, n; t->left && i < t->n; i += n) {
        n = lb_number_blocks_count(&t->now, i);
        memcpy(t->left + i, lb_number_blocks_at(&t->now, i, n, room), (size_t)n * sizeof *t->left);
    }
}

void lb_update_log_note(void *context, uint32_t op, uint32_t value, const double *recorded, const double *exact,
                        int64_t from, int64_t n)
{
    lb_update_log *log = context;
    const lb_program *p = log->run->program;
    if (p->ops[op].phase != LB_PHASE_OPTIMIZER) return;
    for (uint32_t i = 0; i < log->n; i++) {
        lb_update_tensor *t = &log->tensors[i];
        if (t->storage != p->values[value].storage) {
            if (from) continue;
            const bool writes = lb_op_writes(p, &p->ops[op], t->storage) != LB_NONE;
            t->read |= t->added && !writes && lb_op_reads(p, &p->ops[op], t->storage) != LB_NONE;
            continue;
        }
        t->dtype = p->values[value].dtype;
        t->copied |= lb_masters_copies(p, &p->ops[op]);
        if (t->copied) continue;
        if (!from) begin(log, t, op, value);
        if (t->lost || log->failed || lb_layout_numel(&p->values[value].layout) != t->n) continue;
        if (!from) make_room(log, t, value);
        if (!log->failed) add_update(log, t, op, recorded, exact, from, n);
        if (from + n == t->n) end_update(log, t, op, value);
    }
}

static lb_update_row *row_for(lb_update_window *w, const char *group, const char *name)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (strcmp(w->rows[i].group, group) == 0 && strcmp(w->rows[i].name, name) == 0) return &w->rows[i];
    lb_update_row *grown = lb_array_grow(w->rows, w->n, sizeof *grown);
    if (!grown) return NULL;
    w->rows = grown;
    lb_update_row *row = &grown[w->n++];
    *row = (lb_update_row){.op = LB_NONE};
    snprintf(row->group, sizeof row->group, "%s", group);
    snprintf(row->name, sizeof row->name, "%s", name);
    return row;
}

static void add_step(lb_update_window *w, const lb_program *p, const lb_update_tensor *t)
{
    char group[sizeof w->rows->group], name[sizeof w->rows->name];
    snprintf(group, sizeof group, "%s group %u", lb_program_text(p, t->group->optimizer), t->group->index);
    snprintf(name, sizeof name, "%s", t->name);
    lb_update_row *row = row_for(w, group, name);
    w->failed |= !row;
    if (!row) return;
    row->dtype = t->dtype, row->step = p->step, row->op = t->op;
    row->last_updates = row->last_absorbed = 0;
    double rooms[2][LB_NUMBER_BLOCK];
    for (int64_t i = 0, n; i < t->n; i += n) {
        n = lb_number_blocks_count(&t->first, i);
        const double *first = lb_number_blocks_at(&t->first, i, n, rooms[0]), *now = now_at(t, i, n, rooms[1]);
        for (int64_t k = 0; k < n; k++) {
            const bool updated = t->added[i + k] != 0;
            row->last_updates += updated, row->last_absorbed += updated & (now[k] == first[k]);
        }
    }
    row->updates += row->last_updates, row->absorbed += row->last_absorbed;
    row->decays += t->decays, row->absorbed_decays += t->absorbed_decays;
}

void lb_update_log_close(lb_update_log *log, lb_update_window *window)
{
    window->failed |= log->failed;
    for (uint32_t i = 0; i < log->n; i++) {
        lb_update_tensor *t = &log->tensors[i];
        window->carried += t->copied || (t->added && t->read);
        window->lost += t->lost;
        if (t->added && !t->copied && !t->read && !log->failed) add_step(window, log->run->program, t);
        lb_number_blocks_close(&t->first), lb_number_blocks_close(&t->now);
        free(t->added), free(t->left);
    }
    free(log->tensors);
    *log = (lb_update_log){0};
}

bool lb_update_window_add(lb_update_window *window, const lb_update_window *step)
{
    window->lost += step->lost, window->carried += step->carried, window->failed |= step->failed;
    for (uint32_t i = 0; i < step->n; i++) {
        const lb_update_row *from = &step->rows[i];
        lb_update_row *row = row_for(window, from->group, from->name);
        if (!row) return false;
        row->dtype = from->dtype, row->step = from->step, row->op = from->op;
        row->last_updates = from->last_updates, row->last_absorbed = from->last_absorbed;
        row->updates += from->updates, row->absorbed += from->absorbed;
        row->decays += from->decays, row->absorbed_decays += from->absorbed_decays;
    }
    return true;
}
