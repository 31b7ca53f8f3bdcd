/* What stands around ops: scopes with their inputs and outputs, scalars, routing, parameter groups, notices. See
 * lastbit/capture.h. */
#include "recorder/recorder.h"
#include "recorder/value_intake.h"

#include "base/array.h"
#include <lastbit/text.h>
#include <stdlib.h>
#include <string.h>

void lb_op_context_release(lb_op_context *context)
{
    for (uint32_t s = 0; s < context->n_scopes; s++) {
        free(context->scopes[s].path);
        free(context->scopes[s].class_name);
    }
    free(context->scopes);
    for (uint32_t l = 0; l < context->n_lines; l++) {
        free(context->lines[l].file);
        free(context->lines[l].function);
        free(context->lines[l].text);
    }
    free(context->lines);
}

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

static uint32_t enter_scope(lb_op_context *context, const char *path, const char *class_name, uint32_t parent)
{
    uint32_t number = 0;
    while (number < context->n_scopes && strcmp(context->scopes[number].path, path) != 0) number++;
    if (number == context->n_scopes) {
        lb_scope_entry *scopes = lb_array_grow(context->scopes, number, sizeof scopes[0]);
        if (!scopes) return LB_NONE;
        context->scopes = scopes;
    }
    lb_scope_entry *entry = &context->scopes[number];
    if (number == context->n_scopes) {
        *entry = (lb_scope_entry){.path = strdup(path), .parent = parent};
        if (entry->path) context->n_scopes++;
    }
    /* The first class wins, but for the outside, which gets that of the outermost module. */
    if (entry->path && class_name && !entry->class_name) entry->class_name = strdup(class_name);
    return entry->path ? number : LB_NONE;
}

uint32_t lb_recorder_scope(lb_recorder *recorder, const char *path, const char *class_name, uint32_t parent)
{
    const bool plain = lb_text_is_plain(LB_TEXT_NAME, path, strlen(path));
    char *name = plain ? NULL : lb_text_name(path, strlen(path));
    if (!plain && !name) return LB_NONE;
    pthread_mutex_lock(&recorder->lock);
    const uint32_t number = enter_scope(&recorder->context, plain ? path : name, class_name, parent);
    pthread_mutex_unlock(&recorder->lock);
    free(name);
    return number;
}

uint32_t lb_op_context_scope_row(lb_recorder *recorder, uint32_t scope)
{
    lb_op_context *context = &recorder->context;
    if (scope >= context->n_scopes) scope = 0;
    lb_scope_entry *entry = &context->scopes[scope];
    if (entry->program == recorder->serial) return entry->row;
    lb_program *program = recorder->program;
    entry->program = recorder->serial;
    entry->calls = 0;
    entry->row = 0;
    if (scope == 0) {
        if (entry->class_name) program->scopes[0].class_name = lb_program_string(program, entry->class_name);
        return 0;
    }
    uint32_t parent = entry->parent < context->n_scopes ? lb_op_context_scope_row(recorder, entry->parent) : 0;
    return entry->row = lb_program_scope(program, entry->path, entry->class_name, parent);
}

const char *lb_op_context_scope_path(const lb_op_context *context, uint32_t scope)
{
    return scope < context->n_scopes ? context->scopes[scope].path : "";
}

static uint32_t row_of_owner(lb_recorder *recorder, const char *name, uint32_t otherwise)
{
    for (size_t n = strlen(name); n > 0; n--) {
        if (name[n] != '.') continue;
        for (uint32_t s = 1; s < recorder->context.n_scopes; s++)
            if (strncmp(recorder->context.scopes[s].path, name, n) == 0 && !recorder->context.scopes[s].path[n])
                return lb_op_context_scope_row(recorder, s);
    }
    return otherwise;
}

uint32_t lb_op_context_owner_row(lb_recorder *recorder, const char *name, uint32_t otherwise)
{
    const char *colon = strrchr(name, ':');
    name = colon ? colon + 1 : name;
    if (lb_text_is_plain(LB_TEXT_NAME, name, strlen(name))) return row_of_owner(recorder, name, otherwise);
    char *spelt = lb_text_name(name, strlen(name)); /* as the scopes are */
    const uint32_t row = spelt ? row_of_owner(recorder, spelt, otherwise) : otherwise;
    free(spelt);
    return row;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

uint32_t lb_recorder_line(lb_recorder *recorder, const char *file, uint32_t number, const char *function,
                          const char *text)
{
    pthread_mutex_lock(&recorder->lock);
    lb_op_context *context = &recorder->context;
    lb_line_entry *lines = lb_array_grow(context->lines, context->n_lines, sizeof lines[0]);
    uint32_t line = 0;
    if (lines) {
        context->lines = lines;
        lb_line_entry *entry = &lines[context->n_lines];
        *entry = (lb_line_entry){.file = strdup(file), .function = strdup(function), .text = strdup(text)};
        entry->number = number;
        context->n_lines++; /* its texts are freed with the others, as many of them as there are */
        if (entry->file && entry->function && entry->text) line = context->n_lines;
    }
    pthread_mutex_unlock(&recorder->lock);
    return line;
}

uint32_t lb_op_context_line_row(lb_recorder *recorder, uint32_t line)
{
    if (line == 0 || line > recorder->context.n_lines) return 0;
    lb_line_entry *entry = &recorder->context.lines[line - 1];
    if (entry->program == recorder->serial) return entry->line;
    lb_program *program = recorder->program;
    const lb_line row = {.file = lb_program_string(program, entry->file),
                         .function = *entry->function ? lb_program_string(program, entry->function) : LB_NONE,
                         .text = *entry->text ? lb_program_string(program, entry->text) : LB_NONE,
                         .number = entry->number};
    const uint32_t made = row.file == LB_NONE ? LB_NONE : lb_program_line(program, &row);
    if (made == LB_NONE) return 0;
    entry->program = recorder->serial;
    return entry->line = made;
}

static lb_status add_boundary(lb_recorder *recorder, lb_place place, const lb_host_tensor *tensors, uint32_t n,
                              bool output, bool recompute, lb_err *err)
{
    lb_op_site at = {.name = "a module boundary",
                     .layer = lb_op_context_scope_path(&recorder->context, place.scope),
                     .scope = lb_op_context_scope_row(recorder, place.scope),
                     .call = place.call,
                     .phase = LB_PHASE_FORWARD};
    for (uint32_t t = 0; t < n; t++) {
        lb_boundary row = {.scope = at.scope, .call = at.call, .position = t, .output = output, .recompute = recompute};
        LB_TRY(lb_value_intake_boundary(recorder, &at, &tensors[t], &row.value, err));
        row.op = recorder->program->n_ops;
        if (lb_program_add_boundary(recorder->program, &row) == LB_NONE) return lb_recorder_no_memory(err);
    }
    return LB_OK;
}

lb_status lb_recorder_wrap(lb_recorder *recorder, uint32_t scope, lb_place *place, lb_err *err)
{
    *place = (lb_place){scope, 0};
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status == LB_OK && !lb_recorder_between_steps(recorder) && scope < recorder->context.n_scopes)
        place->call = recorder->context.scopes[scope].calls;
    return lb_recorder_unlock(recorder, status);
}

lb_status lb_recorder_enter(lb_recorder *recorder, uint32_t scope, const lb_host_tensor *inputs, uint32_t n,
                            bool recompute, lb_place *place, lb_err *err)
{
    *place = (lb_place){scope, 0};
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status == LB_OK && lb_graph_takes(recorder, inputs, n)) {
        lb_graph_enter(recorder, scope, inputs, n, recompute, place);
        return lb_recorder_unlock(recorder, LB_OK);
    }
    if (status != LB_OK || lb_recorder_between_steps(recorder)) return lb_recorder_unlock(recorder, status);
    lb_err cause = LB_ERR_INIT;
    if (lb_op_context_scope_row(recorder, scope) == LB_NONE)
        return lb_recorder_settled(recorder, lb_recorder_no_memory(&cause), &cause, err);
    if (scope < recorder->context.n_scopes) place->call = recorder->context.scopes[scope].calls++;
    status = add_boundary(recorder, *place, inputs, n, false, recompute, &cause);
    return lb_recorder_settled(recorder, status, &cause, err);
}

lb_status lb_recorder_leave(lb_recorder *recorder, lb_place place, const lb_host_tensor *outputs, uint32_t n,
                            bool recompute, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status == LB_OK && recorder->graphs.captured && place.call & LB_TAPED_PLACE) {
        lb_graph_leave(recorder, place, outputs, n, recompute);
        return lb_recorder_unlock(recorder, LB_OK);
    }
    if (status != LB_OK || lb_recorder_between_steps(recorder)) return lb_recorder_unlock(recorder, status);
    lb_err cause = LB_ERR_INIT;
    status = add_boundary(recorder, place, outputs, n, true, recompute, &cause);
    return lb_recorder_settled(recorder, status, &cause, err);
}

/* ---- beside ops -------------------------------------------------------------------------------------------------- */

lb_status lb_recorder_scalar(lb_recorder *recorder, const char *name, double number, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status != LB_OK || lb_recorder_between_steps(recorder)) return lb_recorder_unlock(recorder, status);
    lb_program *program = recorder->program;
    lb_scalar row = {lb_program_name(program, name), program->n_ops, number};
    lb_err cause = LB_ERR_INIT;
    if (lb_program_add_scalar(program, &row) == LB_NONE) status = lb_recorder_no_memory(&cause);
    return lb_recorder_settled(recorder, status, &cause, err);
}

lb_status lb_recorder_routing(lb_recorder *recorder, lb_place place, const lb_host_tensor *logits,
                              const lb_host_tensor *ids, const lb_host_tensor *weights, const lb_host_tensor *slots,
                              const lb_host_tensor *dropped, lb_err *err)
{
    const lb_host_tensor *seen[5] = {logits, ids, weights, slots, dropped};
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status == LB_OK && recorder->graphs.captured && place.call & LB_TAPED_PLACE) {
        lb_graph_routing(recorder, place, seen);
        return lb_recorder_unlock(recorder, LB_OK);
    }
    if (status != LB_OK || lb_recorder_between_steps(recorder)) return lb_recorder_unlock(recorder, status);
    uint32_t rows[5];
    lb_op_site at = {.name = "routing",
                     .layer = lb_op_context_scope_path(&recorder->context, place.scope),
                     .scope = lb_op_context_scope_row(recorder, place.scope),
                     .call = place.call,
                     .phase = LB_PHASE_FORWARD};
    lb_err cause = LB_ERR_INIT;
    for (int i = 0; i < 5 && status == LB_OK; i++) {
        rows[i] = LB_NONE;
        if (seen[i]) status = lb_value_intake_boundary(recorder, &at, seen[i], &rows[i], &cause);
    }
    lb_routing row = {at.scope, at.call, rows[0], rows[1], rows[2], rows[3], rows[4]};
    if (status == LB_OK && lb_program_add_routing(recorder->program, &row) == LB_NONE)
        status = lb_recorder_no_memory(&cause);
    return lb_recorder_settled(recorder, status, &cause, err);
}

static int64_t storage_id(const lb_recorder *recorder, int64_t key)
{
    const lb_tracked *storage = key < 0 ? NULL : lb_tracked_set_find(&recorder->storages, key);
    return storage ? storage->id : -1;
}

lb_status lb_recorder_group(lb_recorder *recorder, const char *optimizer, uint32_t index, uint32_t first_op,
                            const lb_member *members, uint32_t n_members, const lb_option *options, uint32_t n_options,
                            lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status == LB_OK && lb_graph_is_captured(recorder)) {
        const lb_taped_group told = {
            optimizer, (lb_member *)(uintptr_t)members, (lb_option *)(uintptr_t)options, index, n_members, n_options};
        lb_graph_group(recorder, first_op, &told);
        return lb_recorder_unlock(recorder, LB_OK);
    }
    if (status != LB_OK || lb_recorder_between_steps(recorder)) return lb_recorder_unlock(recorder, status);
    lb_program *program = recorder->program;
    if (first_op > program->n_ops) first_op = program->n_ops;
    lb_group row = {.optimizer = lb_program_name(program, optimizer),
                    .index = index,
                    .first_op = first_op,
                    .ops = program->n_ops - first_op,
                    .first_param = program->n_group_params,
                    .params = n_members,
                    .first_option = program->n_scalars,
                    .options = n_options};
    lb_err cause = LB_ERR_INIT;
    for (uint32_t m = 0; m < n_members && status == LB_OK; m++) {
        lb_group_param param = {lb_program_name(program, members[m].name), storage_id(recorder, members[m].storage),
                                storage_id(recorder, members[m].gradient)};
        if (lb_program_add_group_param(program, &param) == LB_NONE) status = lb_recorder_no_memory(&cause);
    }
    for (uint32_t o = 0; o < n_options && status == LB_OK; o++) {
        lb_scalar option = {lb_program_name(program, options[o].name), program->n_ops, options[o].number};
        if (lb_program_add_scalar(program, &option) == LB_NONE) status = lb_recorder_no_memory(&cause);
    }
    if (status == LB_OK && lb_program_add_group(program, &row) == LB_NONE) status = lb_recorder_no_memory(&cause);
    return lb_recorder_settled(recorder, status, &cause, err);
}

lb_status lb_recorder_notice(lb_recorder *recorder, const char *kind, const char *message, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status != LB_OK) return lb_recorder_unlock(recorder, status);
    lb_recorder_note(recorder, kind, message);
    lb_err cause = LB_ERR_INIT;
    if (recorder->program) {
        lb_program *program = recorder->program;
        lb_notice row = {lb_program_string(program, kind), LB_NONE, LB_NONE, lb_program_string(program, message)};
        if (lb_program_add_notice(program, &row) == LB_NONE) status = lb_recorder_no_memory(&cause);
    }
    return lb_recorder_settled(recorder, status, &cause, err);
}
