/* The rank that a file's name, or that of its folder, tells. Private to formats/. */
#ifndef LB_RANK_NAME_H
#define LB_RANK_NAME_H

#include <stdint.h>

/* "mp_rank_01/model.pt", "tp_rank_1", "rank-1.safetensors", "rank_1", "__1_0.distcp", "adapter_model-00001-of-00004":
 * 1, and -1 where nothing of that kind is in the path. `*stated`: the count behind "-of-", else 0. The innermost name
 * speaks first. */
int32_t lb_rank_in_name(const char *path, int32_t *stated);

#endif
