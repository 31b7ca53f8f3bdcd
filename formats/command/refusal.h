/* What a command does when the system refuses it memory, or a read: it says so and ends with 128 (LB_EXIT_FAILED),
 * wherever that happened, and delivers no answer.
 *
 * Of reads, lastbit/input.h remembers the first that was refused. As for memory, our libraries return LB_ERR_NOMEM, as
 * a process that is recorded wants it. A command needs more: JSON, regular expressions, tar, options and OpenMP are the
 * work of other libraries, of which some leave out what they found no room for, some say that a file is damaged, and
 * some call exit(1), which would read as "found". So the program stands between all of them and the allocator.
 *
 *   small (below LB_LARGE_ALLOCATION)   the process ends at once: there is no memory to go on with
 *   large                               the caller is told, and may name the file, the op or the value that it was for;
 *                                       but whatever it goes on to answer, the exit code is 128
 *
 * A child between fork and exec, and a stranger's kernel that `lastbit order` runs in one, are told and go on. */
#ifndef LB_REFUSAL_H
#define LB_REFUSAL_H

#include <lastbit/error.h>

#include <stdbool.h>

enum { LB_LARGE_ALLOCATION = 1 << 20 };

/* From here on. `command` is what messages begin with; it lives as long as the program. Also holds a library that calls
 * exit() to the same code, and a page of a mapped file that cannot be read (SIGBUS): only lb_refusal_end ends the
 * process with another one. */
void lb_refusal_begin(const char *command);
/* The exit code from here on is this one: the program that `record` ran has ended, and its code is passed on whatever
 * happens to us. */
void lb_refusal_pass_on(int code);
/* LB_OK, or what was refused since, of memory or reads. */
lb_status lb_refusal_so_far(lb_err *err);
/* The exit code of an answer that ends with `code`. */
int lb_refusal_end(int code);

#endif
