/* Programs that lie in a file without a name, so that those of a thousand ranks need no memory while they are not read.
 *
 *     decoded ─▶ in memory, up to LB_SHELF_MEMORY of one capture ─▶ the rest: written to a file, and mapped
 *
 * A program that is laid down keeps its address and its rows: its tables are in the map, and the system takes their
 * pages away and brings them back. Nothing may be added to it any more. Where no file can be made or written (TMPDIR is
 * full) programs stay in memory. Any thread. */
#ifndef LB_PROGRAM_SHELF_H
#define LB_PROGRAM_SHELF_H

#include <lastbit/program.h>

enum { LB_SHELF_MEMORY = 64 << 20 };

typedef struct lb_program_shelf lb_program_shelf;

/* NULL: out of memory. `memory`: bytes of programs that stay in memory. */
lb_program_shelf *lb_program_shelf_new(size_t memory);
/* When no program of it is left; NULL is fine. */
void lb_program_shelf_free(lb_program_shelf *shelf);

/* From now on the program counts as one of the shelf's, until it is freed. */
void lb_program_shelf_put(lb_program_shelf *shelf, lb_program *program);
/* All pages are handed back; what lies there is read again when it is needed. */
void lb_program_shelf_unload(lb_program_shelf *shelf);
/* Bytes of programs in the file, for tests. */
size_t lb_program_shelf_laid(lb_program_shelf *shelf);

/* What lb_program_free does of a program on a shelf. */
void lb_program_shelf_take(lb_program *program);

#endif
