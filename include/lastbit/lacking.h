/* Which bytes a verdict would have needed and did not have, and the command that records them.
 *
 * Simplest use:
 *
 *     lb_lack lack = {0};
 *     lb_lack_add(&lack, program, 7);                        // for each op that could not be judged
 *     char *text = lb_lack_sentence(&lack, capture, "the second side", NULL);
 *     if (text) puts(text);
 *     free(text);
 *
 * gives, in two lines,
 *
 *     the second side lacks bytes of 12 ops of steps 3-4 (it reached level layers)
 *       to record them: lastbit record -o again.lb --level ops --steps 3-4 --layers '^(layers\.1\.mlp)$' -- python
 *       train.py
 */
#ifndef LASTBIT_LACKING_H
#define LASTBIT_LACKING_H

#include <lastbit/archive.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LB_LACK_LAYERS 8

/* Zeroed: nothing is lacking. Names of layers are the programs'. */
typedef struct lb_lack {
    uint64_t ops;
    int64_t first_step, last_step;
    int32_t first_rank, last_rank;
    uint32_t world;
    uint8_t level; /* the lowest that those steps reached */
    const char *layers[LB_LACK_LAYERS];
    uint32_t n_layers; /* above LB_LACK_LAYERS: too many to be named */
} lb_lack;

/* `op`: a row of the program; LB_NONE: the step as a whole. */
LB_API void lb_lack_add(lb_lack *lack, const lb_program *program, uint32_t op);
/* The command, ready to be pasted; malloc'ed, NULL when nothing is lacking. `capture` NULL: the program is not known.
 * `like`: the path of a capture that is to be kept alike (the other side of a comparison), or NULL. */
LB_API char *lb_lack_command(const lb_lack *lack, lb_capture *capture, const char *like);
/* The lines above; malloc'ed, NULL when nothing is lacking. `who`: "the second side"; NULL: there is one only. */
LB_API char *lb_lack_sentence(const lb_lack *lack, lb_capture *capture, const char *who, const char *like);

#ifdef __cplusplus
}
#endif
#endif
