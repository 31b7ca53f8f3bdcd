/* What a rehearsal consists of: a program for each rank that has a part in it. rehearsal.c makes them, performance.c runs them. */
#ifndef LB_BISECT_VOICE_H
#define LB_BISECT_VOICE_H

#include "prepared.h"
#include "rehearsal.h"

/* The ops of one rank. */
typedef struct lb_voice {
    lb_program *program;
    lb_prepared *prepared;
} lb_voice;

/* A value of a voice's program. */
typedef struct lb_spot {
    uint32_t voice, row;
} lb_spot;

struct lb_rehearsal {
    lb_voice *voices;
    uint32_t n_voices;
    lb_spot *leaves, *outputs;
    uint32_t n_leaves, n_outputs;
};

#endif
