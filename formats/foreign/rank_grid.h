/* The files of ranks as a grid: "zero_pp_rank_2_mp_rank_01_optim_states.pt" stands at 2 on one axis and at 1 on
 * another. */
#ifndef LB_RANK_GRID_H
#define LB_RANK_GRID_H

#include <lastbit/checkpoint.h>

/* Gives every file its kind (files of one kind have one name but for the numbers of their axes), its pipeline stage
 * and, where its name has several axes, one rank: data-parallel or pipeline places before tensor-parallel ones. False
 * when out of memory. */
bool lb_rank_grid_place(lb_checkpoint *checkpoint);

/* The layer of "layer_05-model_01-model_states.pt", in which names are those of one layer; -1: a file of all of
 * them. */
long lb_rank_grid_layer(const char *path);

/* Tells each file that its kind lacks, the first 64 of a kind: places are counted from 0 to the largest on their axis,
 * or to what the files themselves state (dp_world_size, mp_world_size of DeepSpeed). */
typedef void lb_rank_grid_tell(void *context, const char *path, int32_t rank, const char *like);
void lb_rank_grid_absent(const lb_checkpoint *checkpoint, lb_rank_grid_tell *tell, void *context);

#endif
