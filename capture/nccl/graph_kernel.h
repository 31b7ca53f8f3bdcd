/* The node that copies in a graph, as text that CUDA's driver compiles; and what it and the host tell each other. */
#ifndef LB_CAPTURE_GRAPH_KERNEL_H
#define LB_CAPTURE_GRAPH_KERNEL_H

#include <stdint.h>

enum { LB_GRAPH_TICKETS = 256 };

/* Where a call's pinned memory begins: what the kernel writes, and the host reads. */
typedef struct lb_graph_head {
    _Atomic uint64_t ended; /* runs */
    uint64_t unused[7];
    _Atomic uint64_t tickets[LB_GRAPH_TICKETS]; /* of run r: at r modulo their number */
} lb_graph_head;

#define LB_GRAPH_KERNEL "lb_graph_copy"
/* Its parameters, in this order. */
typedef struct lb_graph_kernel_arguments {
    uint64_t from, bytes;
    uint64_t to, stride, slots; /* of slot 0; run r writes to the slot r modulo their number */
    uint64_t head;
    uint64_t ticket;   /* a counter of 64 bits in device memory, which the first node draws from; 0: another node */
    uint64_t arrived;  /* of the last node: one of 32 bits, zero between runs; 0: another node */
    uint64_t activity; /* of the last node: grows by one when the run has ended */
} lb_graph_kernel_arguments;

extern const char lb_graph_kernel_text[];

#endif
