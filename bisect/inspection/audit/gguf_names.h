/* Tensors of GGUF by the names that transformers has for them, and those of them that are quantised. */
#ifndef LB_BISECT_AUDIT_GGUF_NAMES_H
#define LB_BISECT_AUDIT_GGUF_NAMES_H

#include <lastbit/checkpoint.h>

/* "blk.3.attn_q.weight": "model.layers.3.self_attn.q_proj.weight"; any other name as it is. malloc'ed, NULL when out of
 * memory. */
char *lb_gguf_names_spell(const char *name);
/* Whether the checkpoint has this tensor, by either name, as a quantised one, or one in the module of this name. */
bool lb_gguf_names_is_unread(const lb_checkpoint *checkpoint, const char *name);
/* "210 q4_1, 1 q8_0": how many tensors are of which type; cut where there is no room. */
void lb_gguf_names_count(const lb_checkpoint *checkpoint, char *text, size_t room);

#endif
