/* Memory that no op wrote and some op read. `record --poison` fills it with NaN, which the recording shows as an op: a
 * fill by NaN right behind one that leaves its results unwritten. What is NaN later, and read from there, was never
 * written, whatever kernel was to do so. Without NaN there, it is told of a backward whose gradients are wrong. */
#include "check/check_step.h"

#include "shadow/shadow_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct search {
    const lb_check_step *check;
    const lb_program *program;
    uint32_t *made; /* per value: the op that made the memory whose unwritten numbers it holds; LB_NONE */
    uint32_t from;  /* of the op at hand: such a value among its inputs; LB_NONE */
    int64_t into;   /* a storage that it writes, and does not count as read */
} search;

static bool has_nan(const lb_program *program, uint32_t v)
{
    return program->values[v].statistics != LB_NONE && program->statistics[program->values[v].statistics].nan > 0;
}

/* The op that made the memory which this op fills with NaN; LB_NONE: it does something else. */
static uint32_t poisons(const lb_program *program, uint32_t i)
{
    const lb_op *op = &program->ops[i];
    const lb_arg *args = lb_op_args(program, op);
    if (i == 0 || op->args < 2 || !op->written || !lb_program_name_extends(lb_op_name(program, op), "aten::fill_"))
        return LB_NONE;
    if (args[1].tag != LB_ARG_FLOAT || !isnan(args[1].u.f)) return LB_NONE;
    const int64_t storage = program->values[lb_op_written(program, op)[0]].storage;
    for (uint32_t k = i; k-- > 0;) {
        const lb_op *before = &program->ops[k];
        if (before->flags & LB_OP_UNDEFINED && before->results && lb_op_results(program, before)[0] != LB_NONE &&
            program->values[lb_op_results(program, before)[0]].storage == storage)
            return k;
        if (lb_op_writes(program, before, storage) != LB_NONE) return LB_NONE;
    }
    return LB_NONE;
}

static void note_input(void *context, uint32_t v)
{
    search *search = context;
    if (v == LB_NONE || search->from != LB_NONE || search->made[v] == LB_NONE) return;
    if (search->program->values[v].storage != search->into && has_nan(search->program, v)) search->from = v;
}

/* What lies in the same memory holds what was never written there. */
static void mark_storage(search *search, int64_t storage, uint32_t maker)
{
    for (uint32_t v = 0; v < search->program->n_values; v++)
        if (search->program->values[v].storage == storage) search->made[v] = maker;
}

/* Ops that only carry numbers elsewhere, where they may still be written over. */
static bool only_carries(const lb_program *program, const lb_op *op)
{
    static const char *const names[] = {
        "aten::clone", "aten::copy_",         "aten::cat",        "aten::_to_copy", "aten::index_select",
        "aten::stack", "aten::slice_scatter", "aten::contiguous", "aten::index",    "aten::_unsafe_view"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (lb_program_name_extends(lb_op_name(program, op), names[i])) return true;
    return false;
}

/* Does what the step leaves hold a NaN: a loss, a gradient that an optimizer reads, a result of the outermost
 * module? */
static bool leaves_nan(const lb_check_step *step)
{
    const lb_program *program = step->run.program;
    for (uint32_t i = 0; i < step->run.n_roots; i++)
        if (has_nan(program, step->run.roots[i].value)) return true;
    for (uint32_t i = 0; i < step->trained.n; i++) {
        const lb_trained_row *row = &step->trained.rows[i];
        if (row->gradient != LB_NONE && has_nan(program, row->gradient)) return true;
    }
    for (uint32_t i = 0; i < program->n_boundaries && !step->run.n_roots; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        if (boundary->output && boundary->value != LB_NONE && program->scopes[boundary->scope].parent == 0 &&
            has_nan(program, boundary->value))
            return true;
    }
    return false;
}

/* Rows along the first dimension that hold NaN, as ranges; "" where bytes were not kept. */
static void list_rows(const lb_check_step *step, uint32_t value, char *text, size_t size)
{
    lb_tensor tensor;
    double *x = lb_moved_run_recorded(&step->run, value, &tensor);
    const int64_t rows = x && tensor.layout.ndim > 0 ? tensor.layout.shape[0] : 0;
    const int64_t width = rows ? lb_layout_numel(&tensor.layout) / rows : 0;
    size_t used = 0;
    int64_t from = -1;
    *text = 0;
    for (int64_t i = 0; i <= rows && used + 24 < size; i++) {
        bool any = false;
        for (int64_t k = 0; i < rows && k < width && !any; k++) any = isnan(x[i * width + k]);
        if (any && from < 0) from = i;
        if (any || from < 0) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%lld", used ? ", " : "", (long long)from);
        if (i - 1 > from) used += (size_t)snprintf(text + used, size - used, "-%lld", (long long)i - 1);
        from = -1;
    }
    free(x);
}

static bool find(lb_check_step *step, const search *search, uint32_t op)
{
    const lb_program *program = search->program;
    const lb_value *read = &program->values[search->from];
    const lb_op *maker = &program->ops[search->made[search->from]];
    const lb_code_line line = lb_op_line(program, maker);
    char rows[120], made[300];
    list_rows(step, search->from, rows, sizeof rows);
    lb_code_line_text(&line, made, sizeof made);
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_UNWRITTEN, program);
    if (!finding) return false;
    lb_proof_list_place(finding, program, op, LB_NONE, step->path);
    const int64_t nan = program->statistics[read->statistics].nan, n = lb_layout_numel(&read->layout);
    finding->effect = (double)nan / (double)n;
    snprintf(finding->message, sizeof finding->message,
             "%lld of the %lld numbers that it reads%s%s%s were never written: %s made their memory at %s, "
             "no op wrote them, and what the step leaves is NaN for it",
             (long long)nan, (long long)n, *rows ? " (rows " : "", rows, *rows ? ")" : "", lb_op_name(program, maker),
             made);
    return true;
}

static bool look_at(lb_check_step *step, search *search, uint32_t i, bool harms, bool *done)
{
    const lb_program *program = search->program;
    const lb_op *op = &program->ops[i];
    if (op->flags & (LB_OP_VIEW | LB_OP_UNDEFINED) || lb_op_is_source(program, op) || !lb_op_outcomes(op)) return true;
    search->from = LB_NONE, search->into = op->written ? program->values[lb_op_written(program, op)[0]].storage : -1;
    lb_op_each_input(program, op, note_input, search);
    if (search->from == LB_NONE) return true;
    for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
        const uint32_t v = lb_op_outcome(program, op, k);
        if (v == LB_NONE || !has_nan(program, v)) continue;
        if (only_carries(program, op)) {
            mark_storage(search, program->values[v].storage, search->made[search->from]);
            continue;
        }
        *done = true;
        return !harms || find(step, search, i);
    }
    return true;
}

/* ---- without NaN ---- */

/* The op that made memory without writing it, where no op before `end` wrote any of it; LB_NONE. */
static uint32_t maker_of(const lb_program *program, int64_t storage, uint32_t end)
{
    for (uint32_t i = end; i-- > 0;) {
        const lb_op *op = &program->ops[i];
        const uint32_t v = op->results ? lb_op_results(program, op)[0] : LB_NONE;
        if (lb_op_writes(program, op, storage) != LB_NONE) return LB_NONE;
        if (op->flags & LB_OP_UNDEFINED && v != LB_NONE && program->values[v].storage == storage) return i;
    }
    return LB_NONE;
}

typedef struct reader {
    const lb_program *program;
    uint32_t op, maker; /* LB_NONE: it reads nothing of that kind */
} reader;

static void note_unwritten(void *context, uint32_t v)
{
    reader *reader = context;
    const lb_value *value = v == LB_NONE ? NULL : &reader->program->values[v];
    if (!value || reader->maker != LB_NONE || !(value->flags & LB_VALUE_UNDEFINED) || !lb_layout_numel(&value->layout))
        return;
    if (lb_op_writes(reader->program, &reader->program->ops[reader->op], value->storage) != LB_NONE) return;
    reader->maker = maker_of(reader->program, value->storage, reader->op);
}

uint32_t lb_check_step_reads_unwritten(const lb_check_step *step, uint64_t roots, uint32_t *maker)
{
    const lb_program *program = step->run.program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(program, op, 0) : LB_NONE;
        reader reader = {program, i, LB_NONE};
        if (op->phase != LB_PHASE_BACKWARD || v == LB_NONE || !lb_value_graph_computes(program, op)) continue;
        if (op->flags & (LB_OP_VIEW | LB_OP_UNDEFINED) || !(lb_trained_from(&step->run, &step->trained, v) & roots))
            continue;
        lb_op_each_input(program, op, note_unwritten, &reader);
        *maker = reader.maker;
        if (reader.maker != LB_NONE) return i;
    }
    return LB_NONE;
}

bool lb_check_step_unwritten(lb_check_step *step, bool *poisoned)
{
    const lb_program *program = step->run.program;
    search search = {
        .check = step, .program = program, .made = malloc(((size_t)program->n_values + 1) * sizeof *search.made)};
    uint32_t filled = 0;
    bool fine = search.made != NULL, done = false;
    const bool harms = leaves_nan(step);
    if (fine) memset(search.made, 0xFF, ((size_t)program->n_values + 1) * sizeof *search.made);
    for (uint32_t i = 0; i < program->n_ops && fine && !done; i++) {
        const uint32_t maker = poisons(program, i);
        if (maker != LB_NONE)
            filled++,
                mark_storage(&search, program->values[lb_op_written(program, &program->ops[i])[0]].storage, maker);
        else
            fine = look_at(step, &search, i, harms, &done);
    }
    free(search.made);
    *poisoned = filled > 0;
    if (fine && filled && !(done && harms))
        fine = lb_proof_list_prove(step->report,
                                   "step %lld: what %u ops left unwritten reached nothing that the step leaves",
                                   (long long)program->step, filled);
    return fine;
}
