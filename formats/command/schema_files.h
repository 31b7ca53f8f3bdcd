/* The JSON Schemas of what commands print with --json, include/lastbit/schema/COMMAND.json, as bytes in the program: an
 * installed binary describes its own answers, and each page of help lists the fields of its command.
 */
#ifndef LB_SCHEMA_FILES_H
#define LB_SCHEMA_FILES_H

#include <lastbit/json_text.h>
#include <stdbool.h>

/* The schema of a command, or `words`, which the others refer to, as it lies in its file. False: there is none of this
 * name. */
bool lb_schema_files_print(const char *name);
/* "verdict, first, layers[], ...": the fields of a command's answer in their order, [] behind lists; malloc'ed, NULL:
 * there is no schema. */
char *lb_schema_files_fields(const char *command);

#endif
