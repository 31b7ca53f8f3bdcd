/* Texts of help: paragraphs as filled lines, tables of options, and the topics of `lastbit help TOPIC`, to which the
 * page of a command points where all that it takes would not fit on a screen (60 lines).
 */
#ifndef LB_HELP_PAGE_H
#define LB_HELP_PAGE_H

#include <popt.h>
#include <stdbool.h>

/* Empty lines part paragraphs; indented lines are of a list and stay as they are. */
void lb_help_filled(const char *text);
/* Options in rows, included tables below their headings. Of a table of swaps there is a list of names, and where more
 * is said of them; `swaps_too`: their rows, too. */
void lb_help_options(const struct poptOption *table, bool swaps_too);

/* Names and one line each, as `lastbit help` lists them. */
void lb_help_list_topics(void);
/* False: there is no such topic. */
bool lb_help_topic(const char *name);

#endif
