/* What `lastbit ls` counts, as text (cmd_ls_text.c) and as JSON (cmd_ls_json.c). Private to the command. */
#ifndef LB_CMD_LS_H
#define LB_CMD_LS_H

#include "command/command_line.h"

#include <lastbit/archive.h>

typedef struct ls_options {
    bool layers, ops, values;
} ls_options;

const char *ls_plural(uint64_t n); /* "s" or "" */

/* Values of one kind: all, those with bytes, and the bytes. */
typedef struct ls_kept {
    uint64_t total, kept, bytes;
} ls_kept;

/* The first level that keeps a value: sources, then inputs and outputs of layers, then what else ops gave. */
enum ls_level { LS_SOURCES, LS_LAYERS, LS_OPS, LS_LEVELS };
extern const char *const ls_level_names[LS_LEVELS]; /* "sources", "layers", "ops" */
extern const char *const ls_levels_reached[4];      /* by lb_program.level: "stats", "sources", … */

/* Rows of a program seen from where `ls` needs them; malloc'ed arrays. */
typedef struct ls_view {
    lb_capture *capture;
    const lb_program *p;
    bool *kept;      /* of each value */
    uint32_t *op_of; /* the op that gave it, LB_NONE */
    ls_kept levels[LS_LEVELS];
    uint64_t phases[LB_PHASE_OTHER + 1];
} ls_view;

typedef struct ls_layer {
    uint64_t ops, by_phase[LB_PHASE_OTHER + 1];
    ls_kept results;
} ls_layer;

bool ls_view_make(ls_view *view, lb_capture *capture, const lb_program *program);
void ls_view_release(ls_view *view);
/* Counts by row of scopes; malloc'ed, NULL when out of memory. */
ls_layer *ls_count_layers(const ls_view *view);

/* In full, with the lists asked for; in one line, below a heading. */
void ls_print_program(const ls_view *view, const ls_options *options);
void ls_print_line(const ls_view *view, bool heading);

json_t *ls_program_json(const ls_view *view, const ls_options *options);
/* Every table of a rank by name. */
json_t *ls_tables_json(lb_capture *capture, int32_t rank);
/* `ls --receipt` of one capture or receipt, or of two; returns the exit code. */
int ls_receipt(const lb_command_arguments *arguments);

#endif
