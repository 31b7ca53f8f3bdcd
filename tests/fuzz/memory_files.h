/* Files in memory for code that wants paths: what lies below "/memory/" never reaches a disk, and a target reads it
 * thousands of times a second.
 *
 * The program is linked with --wrap for the calls in MEMORY_FILES_WRAPPED of tests/fuzz/wrapped.cmake, which come here
 * first; any other path goes on to the system. A "map" is a copy of exactly the file's size, so that a sanitizer sees
 * the first byte behind it. */
#ifndef LB_TESTS_MEMORY_FILES_H
#define LB_TESTS_MEMORY_FILES_H
#include <stddef.h>
#include <stdint.h>

#define MEMORY_FOLDER "/memory"

/* Puts a file there, by "NAME" or "FOLDER/NAME"; gives its path, valid for the process. The bytes must stay until it is
 * put again. */
const char *memory_file(const char *name, const void *bytes, size_t size);
/* Maps that were not unmapped, and files that were not closed: 0 after each run. */
unsigned memory_files_open(void);

#endif
