/* Residual blocks: what adds to the residual stream, and what kind of thing it is.
 *
 *      x ──┬──────────────(+)──┬─────────────(+)── …      the stream: what an add passes on unchanged
 *          └─ norm ─ attn ──┘  └─ norm ─ mlp ─┘           the branches
 *
 * A module has its own residual when its output traces back to its input through adds alone (casts and views allowed).
 * A block is such a module when it adds one branch (`x + f(x)`), otherwise each child whose output is added is a block.
 *
 * Classes: A attention, D dense MLP, E mixture of experts, M Mamba/SSM, R recurrent. By class names, from the block
 * downwards, nearest first; where no name speaks, by structure: top-k with gather and index_add: E; softmax or sdpa: A;
 * exp of a cumulative sum, or a scan: M; a tanh or gate chain unrolled in time: R; else D.
 */
#ifndef LB_REPLAY_BLOCK_H
#define LB_REPLAY_BLOCK_H

#include "program/slice.h"

typedef struct lb_block {
    uint32_t scope;
    char letter;       /* 'A' 'D' 'E' 'M' 'R' */
    bool own_residual; /* skip makes it the identity; otherwise its parent adds it, and skip makes it 0 */
    bool by_structure; /* no class name spoke */
} lb_block;

typedef struct lb_blocks {
    lb_block *rows; /* in order of first execution */
    uint32_t n;
    char *letters; /* per scope of the program; 0: in no block */
} lb_blocks;

/* Looks at the forward ops of the first call of each module. A program without forward ops or boundaries has no
 * blocks. */
lb_status lb_blocks_find(const lb_program *program, const lb_slice_flow *flow, lb_blocks *blocks, lb_err *err);
void lb_blocks_release(lb_blocks *blocks);

/* True when scope `inner` is `outer` or below it. */
bool lb_block_scope_within(const lb_program *program, uint32_t inner, uint32_t outer);

/* One call of a module: its ops are those in [first, last) whose scope lies within. */
typedef struct lb_module_call {
    uint32_t scope, call;
    uint32_t first, last;
    bool recompute; /* run again inside backward */
} lb_module_call;

/* All calls of `scope` in order of execution; malloc'ed. */
lb_status lb_block_module_calls(const lb_program *program, uint32_t scope, lb_module_call **calls, uint32_t *n,
                                lb_err *err);

/* Traces the outputs of one call back to its inputs. path[op - first] (last - first bytes, cleared here) becomes
 *   1 + k  for an add whose arg k carries the stream,
 *   LB_PATH_KEPT  for a cast or copy on the stream.
 * Returns true when some output reaches an input. */
#define LB_PATH_KEPT 255
bool lb_block_residual_trace(const lb_slice_flow *flow, const lb_module_call *call, uint8_t *path);

#endif
