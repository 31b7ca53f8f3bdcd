/* What the parts of the stand-in for libnccl.so.2 share: where ranks meet, and calls that are to be carried out. */
#ifndef LB_TESTS_STANDIN_NCCL_H
#define LB_TESTS_STANDIN_NCCL_H
#include "nccl_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INVALID_ARGUMENT = 4, INVALID_USAGE = 5, SLOT = 4 << 20, MESSAGE = 1 << 20, MOST_RANKS = 16 };

typedef struct mailbox {
    _Atomic int full;
    char bytes[MESSAGE];
} mailbox;

typedef struct hall {
    _Atomic int arrived, round;
    struct {
        int color, key;
    } wishes[MOST_RANKS];
    char slots[MOST_RANKS][SLOT];
    mailbox boxes[MOST_RANKS][MOST_RANKS]; /* from, to */
} hall;

typedef enum verb {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    ALL_GATHER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    SEND,
    RECV
} verb;
typedef struct task {
    struct task *next;
    verb verb;
    const void *send;
    void *recv;
    size_t count;
    int dtype, op, root;
    struct ncclComm *comm;
    lb_nccl_stream stream;
    bool done;
} task;

struct ncclComm {
    hall *hall;
    char name[128];
    int rank, ranks, device, splits;
    bool later; /* non-blocking: calls run, and splits are there, when the program asks how the communicator stands */
    lb_nccl_comm *splitting, split;
    task *launched, **launched_end;
    uint64_t sequence;
    int carried_out; /* collectives */
    void *profiler;
    int wanted;
    struct {
        int dtype;
        double number;
    } premul[16];
    int premuls;
};

#endif
