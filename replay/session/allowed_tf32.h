/* Whether a recorded run let products of f32 read their factors as TF32 (10 bits of fraction): by its receipt. It
 * concerns what ran on CUDA, where torch's settings are for cuBLAS and cuDNN; cuDNN's is on by default. */
#ifndef LB_REPLAY_ALLOWED_TF32_H
#define LB_REPLAY_ALLOWED_TF32_H

#include <lastbit/archive.h>

typedef struct lb_allowed_tf32 {
    bool products, convolutions;
} lb_allowed_tf32;

/* Of that rank's receipt; nothing where it has none or cannot be read. */
lb_allowed_tf32 lb_allowed_tf32_of(lb_capture *capture, int32_t rank);

#endif
