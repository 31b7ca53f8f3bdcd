/* Copying some ops of a program into another program, which gets rows of its own for the values, strings and arguments
 * that they name. A program may be put together from ops of several, with one copier for each.
 *
 *      lb_copier copier = {.from = whole, .to = part, .change = leave_out_digests, .context = …};
 *      lb_op op = lb_copier_op(&copier, &whole->ops[i]);       // then what the copy is to have besides: scope, line
 *      lb_copier_check(&copier, lb_program_add_op(part, &op));
 *      …
 *      lb_copier_release(&copier);                             // copier.failed: out of memory
 *
 * rewrite.h is for passes, whose values and strings keep their rows. */
#ifndef LB_REPLAY_COPIER_H
#define LB_REPLAY_COPIER_H

#include "base/hash.h"
#include <lastbit/program.h>

typedef struct lb_copier {
    const lb_program *from;
    lb_program *to;
    /* Changes a value's row before it is added to `to`, as row to->n_values. It has the strings and statistics of
     * `from`: what of these is kept, it has to copy. */
    void (*change)(void *context, uint32_t value, lb_value *row);
    void *context;
    uint32_t (*rows)[2]; /* a value of `from`, and its row in `to` */
    lb_hash by_value;    /* rows of `rows` */
    bool failed;         /* out of memory: what was copied since is of no use */
} lb_copier;

void lb_copier_release(lb_copier *copier);
/* Notes a failure where `row` is LB_NONE; returns `row`. */
uint32_t lb_copier_check(lb_copier *copier, uint32_t row);
/* The string's and the value's row in `to`, made when first asked for; LB_NONE stays LB_NONE. */
uint32_t lb_copier_string(lb_copier *copier, uint32_t string);
uint32_t lb_copier_value(lb_copier *copier, uint32_t value);
/* Is the value in `to` already? */
bool lb_copier_has_value(const lb_copier *copier, uint32_t value);
/* A copy of an op, not added yet: its name, arguments, results and written values. It stands outside every module, and
 * has neither an autograd node nor a line. */
lb_op lb_copier_op(lb_copier *copier, const lb_op *op);
/* Values as refs of `to`; the first. */
uint32_t lb_copier_refs(lb_copier *copier, const uint32_t *refs, uint32_t count);

#endif
