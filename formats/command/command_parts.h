/* A command that several workers share: --part, --merge, --parts, and what a launcher's environment says. What the
 * engine does with it is lastbit/parts.h; this is which parts there are, and who gives the answer.
 *
 * While parts are open stdout leads to a file without a name: a worker that is not the one to answer says nothing, and
 * an answer goes out whole. */
#ifndef LB_COMMAND_PARTS_H
#define LB_COMMAND_PARTS_H

#include "command/command_line.h"

#include <lastbit/parts.h>

/* To be included in the table of a command that has parts; ended by POPT_TABLEEND. */
const struct poptOption *lb_command_parts_table(void);
/* Whether argv[*i] is an option that says only how the work is shared or how the answer is to look, and not what is
 * asked; *i moves to the last word of it. */
bool lb_command_parts_is_how(int argc, const char **argv, int *i);
/* After the options were read. -1: go on; otherwise the exit code. `again` reads a line in the place of what was typed:
 * --merge finds there what its parts are of. */
int lb_command_parts_begin(const char *command, int argc, const char **argv, lb_command_arguments *arguments,
                           int (*again)(const void *context, int argc, const char **argv,
                                        lb_command_arguments *arguments),
                           const void *context);
bool lb_command_parts_is_merge(void);
/* Before that: -1, or the exit code where -o names what one of `words`, options' values, does. */
int lb_command_parts_check(const char *command, const char *const *words);
/* The engine has ended with LB_ERR_PARTIAL: others have the rest. */
int lb_command_parts_partial(void);
/* For the engine; NULL: all is done here. */
lb_parts *lb_command_parts(void);
/* An answer before it is printed: all that --json says, and the text for a person, malloc'ed. */
typedef struct lb_command_answer {
    int code;
    json_t *object; /* NULL: the command has failed, and has said why */
    char *text;
} lb_command_answer;
/* Prints it, as JSON or as text, and writes the page, if one is asked for by `html`; frees it. The exit code. */
int lb_command_answer_print(const char *command, lb_command_answer *answer, bool json, const char *html);
typedef lb_command_answer lb_command_run(const lb_command_arguments *arguments, const void *options);
/* A command whose answer is one unit of work: `run` is called in one of the workers, and all print what it gave. The
 * exit code; `html`: where a page goes, or NULL. */
int lb_command_parts_once(const char *command, lb_command_run *run, const lb_command_arguments *arguments,
                          const void *options, const char *html);
/* The command has ended with `code` and its answer is flushed: saves the part, or gives the answer, or leaves that to
 * another worker. The exit code. */
int lb_command_parts_end(const char *command, int code);

#endif
