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
    const lb_program *program = run->program;
    *log = (lb_update_log){.run = run};
    for (uint32_t g = 0; g < program->n_groups; g++)
        for (uint32_t k = 0; k < program->groups[g].params; k++) {
            const lb_group_param *param = &program->group_params[program->groups[g].first_param + k];
            if (is_listed(log, param->storage)) continue;
            lb_update_tensor *grown = lb_array_grow(log->tensors, log->n, sizeof *grown);
            if (!grown) return false;
            log->tensors = grown;
            grown[log->n++] = (lb_update_tensor){.name = lb_program_text(program, param->name),
                                                 .storage = param->storage,
                                                 .group = &program->groups[g],
                                                 .op = LB_NONE};
        }
    return true;
}

static bool is_decay(const lb_program *program, const lb_op *op)
{
    return lb_op_is(program, op, "aten::mul_") || lb_op_is(program, op, "aten::_foreach_mul_");
}

typedef struct search {
    const lb_program *program;
    const lb_value *like;
    uint32_t found;
} search;

static void consider(void *context, uint32_t v)
{
    search *search = context;
    if (v == LB_NONE) return;
    const lb_value *value = &search->program->values[v];
    if (value->storage == search->like->storage && lb_layout_same_shape(&value->layout, &search->like->layout))
        search->found = v;
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
    search search = {log->run->program, &log->run->program->values[value], LB_NONE};
    lb_op_each_input(log->run->program, &log->run->program->ops[op], consider, &search);
    return search.found != LB_NONE && search.found != value && open_recorded(log, search.found, blocks);
}

/* Behind the first op each finds what the one before it left. */
static void begin(lb_update_log *log, lb_update_tensor *tensor, uint32_t op, uint32_t value)
{
    if (tensor->added || tensor->lost) return;
    tensor->lost = !open_found(log, op, value, &tensor->first) || !open_found(log, op, value, &tensor->now);
    if (tensor->lost) return;
    tensor->n = tensor->first.n, tensor->added = calloc((size_t)tensor->n + 1, sizeof *tensor->added);
    log->failed |= !tensor->added;
}

static const double *now_at(const lb_update_tensor *tensor, int64_t from, int64_t n, double *room)
{
    return tensor->left ? tensor->left + from : lb_number_blocks_at(&tensor->now, from, n, room);
}

static void add_update(lb_update_log *log, lb_update_tensor *tensor, uint32_t op, const double *recorded,
                       const double *exact, int64_t from, int64_t n)
{
    const bool decay = is_decay(log->run->program, &log->run->program->ops[op]);
    double room[LB_NUMBER_BLOCK];
    const double *now = now_at(tensor, from, n, room);
    for (int64_t i = 0; i < n; i++) {
        const double update = exact[i] - now[i];
        tensor->added[from + i] += isfinite(update) ? update : 0;
        tensor->decays += decay & (update != 0),
            tensor->absorbed_decays += decay & (update != 0) & (recorded[i] == now[i]);
    }
    if (tensor->left) memcpy(tensor->left + from, recorded, (size_t)n * sizeof *recorded);
}

/* Where it is left behind the op: as it was recorded, or by the numbers that come by. */
static void end_update(lb_update_log *log, lb_update_tensor *tensor, uint32_t op, uint32_t value)
{
    tensor->op = op, tensor->read = false;
    if (open_recorded(log, value, &tensor->now)) {
        free(tensor->left);
        tensor->left = NULL;
    }
}

/* Before the first block of a result whose bytes were not kept: what there was is copied, to be written over. */
static void make_room(lb_update_log *log, lb_update_tensor *tensor, uint32_t value)
{
    lb_tensor recorded;
    if (tensor->left || lb_program_view_value(log->run->view, value, &recorded, NULL) == LB_OK) return;
    tensor->left = malloc(((size_t)tensor->n + 1) * sizeof *tensor->left);
    log->failed |= !tensor->left;
    double room[LB_NUMBER_BLOCK];
    for (int64_t i = 0, n; tensor->left && i < tensor->n; i += n) {
        n = lb_number_blocks_count(&tensor->now, i);
        memcpy(tensor->left + i, lb_number_blocks_at(&tensor->now, i, n, room), (size_t)n * sizeof *tensor->left);
    }
}

void lb_update_log_note(void *context, uint32_t op, uint32_t value, const double *recorded, const double *exact,
                        int64_t from, int64_t n)
{
    lb_update_log *log = context;
    const lb_program *program = log->run->program;
    if (program->ops[op].phase != LB_PHASE_OPTIMIZER) return;
    for (uint32_t i = 0; i < log->n; i++) {
        lb_update_tensor *tensor = &log->tensors[i];
        if (tensor->storage != program->values[value].storage) {
            if (from) continue;
            const bool writes = lb_op_writes(program, &program->ops[op], tensor->storage) != LB_NONE;
            tensor->read |=
                tensor->added && !writes && lb_op_reads(program, &program->ops[op], tensor->storage) != LB_NONE;
            continue;
        }
        tensor->dtype = program->values[value].dtype;
        tensor->copied |= lb_masters_copies(program, &program->ops[op]);
        if (tensor->copied) continue;
        if (!from) begin(log, tensor, op, value);
        if (tensor->lost || log->failed || lb_layout_numel(&program->values[value].layout) != tensor->n) continue;
        if (!from) make_room(log, tensor, value);
        if (!log->failed) add_update(log, tensor, op, recorded, exact, from, n);
        if (from + n == tensor->n) end_update(log, tensor, op, value);
    }
}

static lb_update_row *row_for(lb_update_window *window, const char *group, const char *name)
{
    for (uint32_t i = 0; i < window->n; i++)
        if (strcmp(window->rows[i].group, group) == 0 && strcmp(window->rows[i].name, name) == 0)
            return &window->rows[i];
    lb_update_row *grown = lb_array_grow(window->rows, window->n, sizeof *grown);
    if (!grown) return NULL;
    window->rows = grown;
    lb_update_row *row = &grown[window->n++];
    *row = (lb_update_row){.op = LB_NONE};
    snprintf(row->group, sizeof row->group, "%s", group);
    snprintf(row->name, sizeof row->name, "%s", name);
    return row;
}

static void add_step(lb_update_window *window, const lb_program *program, const lb_update_tensor *tensor)
{
    char group[sizeof window->rows->group], name[sizeof window->rows->name];
    snprintf(group, sizeof group, "%s group %u", lb_program_text(program, tensor->group->optimizer),
             tensor->group->index);
    snprintf(name, sizeof name, "%s", tensor->name);
    lb_update_row *row = row_for(window, group, name);
    window->failed |= !row;
    if (!row) return;
    row->dtype = tensor->dtype, row->step = program->step, row->op = tensor->op;
    row->last_updates = row->last_absorbed = 0;
    double rooms[2][LB_NUMBER_BLOCK];
    for (int64_t i = 0, n; i < tensor->n; i += n) {
        n = lb_number_blocks_count(&tensor->first, i);
        const double *first = lb_number_blocks_at(&tensor->first, i, n, rooms[0]),
                     *now = now_at(tensor, i, n, rooms[1]);
        for (int64_t k = 0; k < n; k++) {
            const bool updated = tensor->added[i + k] != 0;
            row->last_updates += updated, row->last_absorbed += updated & (now[k] == first[k]);
        }
    }
    row->updates += row->last_updates, row->absorbed += row->last_absorbed;
    row->decays += tensor->decays, row->absorbed_decays += tensor->absorbed_decays;
}

void lb_update_log_close(lb_update_log *log, lb_update_window *window)
{
    window->failed |= log->failed;
    for (uint32_t i = 0; i < log->n; i++) {
        lb_update_tensor *tensor = &log->tensors[i];
        window->carried += tensor->copied || (tensor->added && tensor->read);
        window->lost += tensor->lost;
        if (tensor->added && !tensor->copied && !tensor->read && !log->failed)
            add_step(window, log->run->program, tensor);
        lb_number_blocks_close(&tensor->first), lb_number_blocks_close(&tensor->now);
        free(tensor->added), free(tensor->left);
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
