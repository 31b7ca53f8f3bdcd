/* Keeps the modules (scopes) and lines of code that the host has named. Each has a number that stays valid for the life
 * of the recorder; a program gets a row for it when the first op in that program refers to it. */
#ifndef LB_OP_CONTEXT_H
#define LB_OP_CONTEXT_H

#include <lastbit/capture.h>

typedef struct lb_scope_entry {
    char *path, *class_name;
    uint32_t parent;
    uint64_t program; /* serial of the program that row and calls belong to */
    uint32_t row, calls;
} lb_scope_entry;

typedef struct lb_line_entry {
    char *file, *function, *text;
    uint32_t number;
    uint64_t program; /* serial of the program that `line` belongs to */
    uint32_t line;    /* as lb_op has it */
} lb_line_entry;

typedef struct lb_op_context {
    lb_scope_entry *scopes;
    uint32_t n_scopes;
    lb_line_entry *lines;
    uint32_t n_lines;
} lb_op_context;

void lb_op_context_release(lb_op_context *context);

uint32_t lb_op_context_scope_row(lb_recorder *recorder, uint32_t scope);
/* What lb_op.line is for a number of lb_recorder_line; 0 for 0, and when out of memory: an op without its line is an
 * op. */
uint32_t lb_op_context_line_row(lb_recorder *recorder, uint32_t line);
const char *lb_op_context_scope_path(const lb_op_context *context, uint32_t scope);
/* The row of the innermost known module that owns this name ("layers.0.up.weight",
 * "optimizer.exp_avg:layers.0.up.weight"); `otherwise` where there is none. */
uint32_t lb_op_context_owner_row(lb_recorder *recorder, const char *name, uint32_t otherwise);

#endif
