/* A tensor in one piece, whatever it was cut into. */
#ifndef LB_BISECT_AUDIT_WHOLE_TENSOR_H
#define LB_BISECT_AUDIT_WHOLE_TENSOR_H

#include "audit/inventory.h"

typedef struct lb_whole {
    lb_tensor tensor;
    void *owned; /* NULL: it lies in its file */
} lb_whole;

/* Placed parts go to their places. Shards of ranks' files are laid side by side along dimension `dim`; dim < 0: the
 * first is taken. LB_ERR_CORRUPT when parts do not fit. */
lb_status lb_whole_init(const lb_inventory *inventory, const lb_inventory_name *name, int dim, lb_whole *whole,
                        lb_err *err);
/* Dense f32, row-major, malloc'ed. */
float *lb_whole_numbers(const lb_whole *whole, lb_err *err);
void lb_whole_release(lb_whole *whole);

#endif
