/* Selectors: which ops a swap applies to. Terms joined by "&", all of which must hold:
 *
 *   PATTERN        PCRE2, searched anywhere in "layer/op": "mlp/aten::(add)?mm"
 *   layer=PATTERN  PCRE2, searched anywhere in the module path unless it is anchored: layer=mlp,
 *                  layer=^model\.layers\.3(\.|$) for that module and what is in it (without the end it is layers.31,
 *                  too)
 *   op=PATTERN     the whole op name, with or without namespace and overload: op=mm, op=aten::add.Tensor
 *   class=PATTERN  the whole class name of the innermost module
 *   phase=LIST     forward, backward, optimizer, communication, other
 *   rank=LIST      numbers and ranges: 0,3-5
 *   step=LIST
 *   index=LIST     rows of ops in the recorded program: 12-40,77 (with step= and rank= beside it)
 *   block=LETTERS  residual block classes: E, AD, E,R
 *
 * "" selects everything. "\&" is a literal ampersand in a pattern.
 */
#ifndef LB_REPLAY_SELECTOR_H
#define LB_REPLAY_SELECTOR_H

#include <lastbit/program.h>

typedef struct lb_selector lb_selector; /* immutable: may be shared by threads */

/* LB_ERR_INVALID names the term and what is wrong with it. */
lb_status lb_selector_new(const char *text, lb_selector **selector, lb_err *err);
void lb_selector_free(lb_selector *selector);

/* True when the selector has a block= term: then `blocks` is needed below. */
bool lb_selector_wants_blocks(const lb_selector *selector);
/* True when it has an index= term: it names single ops, not what a module has. */
bool lb_selector_names_ops(const lb_selector *selector);
/* Sets bit `mask` in marks[i] for every op i that is selected (program->n_ops bytes). `blocks`: class letter per scope,
 * or NULL (no block is selected). `origin`: per op its row in the recorded program, for index= terms, LB_NONE: selected
 * by none; NULL: the program is the recorded one. `selected`: how many; may be NULL. LB_ERR_NOMEM, and LB_ERR_INVALID
 * where a pattern cannot be tried on a name within PCRE2's limits: that is no answer. */
lb_status lb_selector_mark(const lb_selector *selector, const lb_program *program, const char *blocks,
                           const uint32_t *origin, uint8_t *marks, uint8_t mask, int64_t *selected, lb_err *err);
/* The same question for a module as a whole: op= and phase= terms are taken as true, a plain pattern is searched in the
 * path alone. */
lb_status lb_selector_scope(const lb_selector *selector, const lb_program *program, uint32_t scope, const char *blocks,
                            bool *selected, lb_err *err);

#endif
