/* Other forms of the help pages, from the same tables of options: man pages, completions of shells, and a reference in
 * Markdown. `lastbit help --man NAME`, `--complete bash|zsh|fish`, `--markdown`.
 */
#ifndef LB_REFERENCE_H
#define LB_REFERENCE_H

#include "command/command_line.h"

typedef enum lb_help_form {
    LB_HELP_PAGE,
    LB_HELP_MAN,
    LB_HELP_BASH,
    LB_HELP_ZSH,
    LB_HELP_FISH,
    LB_HELP_MARKDOWN
} lb_help_form;

/* The form in which a command that is asked for --help prints itself. */
void lb_reference_choose(lb_help_form form);
lb_help_form lb_reference_form(void);

/* A command in the chosen form (not LB_HELP_PAGE); `table` has all of its options. `text`: its line in `lastbit
 * --help`. */
void lb_reference_command(const lb_command *command, const char *text, const struct poptOption *table);
/* What stands before and behind all commands. */
void lb_reference_begin(void);
void lb_reference_end(void);
/* lastbit(1), with names and lines of the commands. */
void lb_reference_main_man(const char *const *names, const char *const *texts, int n);

#endif
