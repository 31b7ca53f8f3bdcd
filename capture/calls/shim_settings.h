/* What the environment asks of a shim, read once at the first call, and what the shim says to people. */
#ifndef LB_CAPTURE_SHIM_SETTINGS_H
#define LB_CAPTURE_SHIM_SETTINGS_H

#include <lastbit/error.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which shim it is; each defines its own. */
typedef struct lb_shim_library {
    const char *name;        /* of the library beneath which it stands, as people are told of it: "NCCL" */
    const char *keep, *step; /* variables: what is kept of calls, and how many make a step */
} lb_shim_library;
extern const lb_shim_library lb_shim_library_here;

typedef enum lb_shim_mode {
    LB_SHIM_UNDECIDED,
    LB_SHIM_OFF,       /* LASTBIT_DISABLE=1, no capture asked for, or something went wrong */
    LB_SHIM_RECORDING, /* calls become ops of a capture of their own */
    LB_SHIM_JOINED     /* PyTorch's recorder has the ops; the shim tells it in which order each was reduced */
} lb_shim_mode;

typedef struct lb_shim_settings {
    const char *out, *level, *steps, *ranks, *keep, *layers, *like;
    uint64_t budget_bytes, ring;
    uint64_t step_calls; /* LASTBIT_NCCL_STEP and its like: collectives that make a step */
    /* LASTBIT_NCCL_KEEP=calls and its like: false, no bytes are read, and there are neither digests nor statistics */
    bool bytes;
    const char *sync; /* NULL: as it is by default */
    uint8_t ring_files;
    int32_t rank, world; /* as the launcher says; -1: it does not */
} lb_shim_settings;

/* One atomic load once it is decided. */
lb_shim_mode lb_shim_mode_now(void);
const lb_shim_settings *lb_shim_settings_now(void);
/* PyTorch's recorder begins or ends. */
void lb_shim_join(bool joined);
/* One line on stderr, "lastbit: …". It may quote paths: bytes other than printable ASCII are written as \x1b. */
void lb_shim_say(const char *format, ...) LB_PRINTF(1, 2);
/* Recording ends for good; the first reason is said on stderr, in one line. */
void lb_shim_turn_off(const char *why);
/* What is recorded lacks something that cannot be told call by call. The first reason is said on stderr, in one line,
 * and each rank's archive has it when it is closed. */
void lb_shim_lost(const char *why);
/* That reason; NULL: nothing was lost. */
const char *lb_shim_lost_why(void);
/* Zeroed memory, of which a failure is told by lb_shim_lost; free() frees it. */
void *lb_shim_memory(size_t size);

/* Whether `text` ("3-5,8", "7-"; NULL: all) has this number. */
bool lb_shim_ranges_have(const char *text, int64_t number);

#endif
