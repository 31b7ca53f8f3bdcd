/* The library that the shim stands in front of: it is chosen at the first call, and each entry point looked up in it at
 * its own first. */
#ifndef LB_CAPTURE_REAL_NCCL_H
#define LB_CAPTURE_REAL_NCCL_H

#include "nccl_abi.h"

typedef enum lb_nccl_entry {
#define LB_NCCL_ENTRY(name, parameters, arguments) LB_ENTRY_##name,
    LB_NCCL_ROWS(LB_NCCL_ENTRY) LB_NCCL_OTHERS(LB_NCCL_ENTRY)
#undef LB_NCCL_ENTRY
        LB_NCCL_ENTRIES
} lb_nccl_entry;

/* Its address, by the name pncclX and then ncclX; NULL when the library has none. Looked for in what LASTBIT_NCCL
 * names, or behind this library in the order of loading, then in a libnccl.so.2 that is loaded privately or can be.
 * Never our own. */
void *lb_nccl_real(lb_nccl_entry entry);

#endif
