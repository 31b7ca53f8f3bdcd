/* Programs that lastbit starts by itself, without the user having typed them: python3, curl.
 *
 * Simplest use:
 *
 *     char *python = lb_executable_find("python3");
 *     if (python) puts(python);
 *     free(python);
 */
#ifndef LASTBIT_EXECUTABLE_H
#define LASTBIT_EXECUTABLE_H

#include <lastbit/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where `name` lies, malloc'ed: the first folder of PATH that holds such a program, of the folders whose path is
 * absolute. An empty or relative item of PATH means the current folder, whose files may come from strangers: nothing is
 * started from there. A name with a slash is given back as it is. NULL where there is none, or no memory. */
LB_API char *lb_executable_find(const char *name);

#ifdef __cplusplus
}
#endif
#endif
