/* What leads from one part of a dependency slice to another: steps by storages, ranks by collectives, and blocks around
 * layers. Only dependency_*.c include it: dependency_reach.c goes forward from the culprit, dependency_keep.c back from
 * the failure. */
#ifndef LB_BISECT_DEPENDENCY_PARTS_H
#define LB_BISECT_DEPENDENCY_PARTS_H

#include "reproduce/dependency_slice.h"

/* What a source op gives. */
const lb_value *lb_dependency_slice_source(const lb_program *program, uint32_t op);
/* The ops that write a storage: rows [first, *last) of writers. */
uint32_t lb_dependency_slice_writers_of(const lb_dependency_slice_part *part, int64_t storage, uint32_t *last);
/* The collective that an op is; NULL. */
const lb_collective *lb_dependency_slice_collective(const lb_program *program, uint32_t op);
/* The op with which `other` takes part in that collective, LB_NONE when it does not. */
uint32_t lb_dependency_slice_partner(const lb_program *program, const lb_collective *collective,
                                     const lb_program *other);
/* Path of the residual block around a layer; the layer itself when there is none. LB_ERR_NOMEM is the only failure. */
lb_status lb_dependency_slice_block_around(const lb_dependency_slice_part *part, const char *layer, char *path,
                                           size_t size, lb_err *err);
/* Is a path that layer, or inside it? Nothing is inside the layer without a name. */
bool lb_dependency_layer_is_within(const char *path, const char *layer);

#endif
