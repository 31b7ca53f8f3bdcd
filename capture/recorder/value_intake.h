/* Turns a tensor of the host into a value of the program. The value is found if it is known already, else its bytes are
 * measured; where no recorded op made these bytes, a source is added. */
#ifndef LB_VALUE_INTAKE_H
#define LB_VALUE_INTAKE_H

#include "recorder/op_site.h"

enum lb_value_intake_how {
    LB_READ_LAYOUT = 1,     /* a view is taken: bytes are not needed */
    LB_READ_OVERWRITTEN = 2 /* bytes will be overwritten unread */
};
/* Whether lb_value_intake_value is about to measure a device's value whose bytes are not kept, and what of it
 * (lb_measure_what). */
bool lb_value_intake_measures(const lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage,
                              const lb_host_tensor *seen, unsigned how, unsigned *what);
/* The value that a tensor is now, with a source before it where no recorded op made its bytes. */
lb_status lb_value_intake_value(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen, unsigned how,
                                uint32_t *row, lb_err *err);
/* What a result is recorded as: the value's flags and source; `deferred`: its bytes are still being written. */
typedef struct lb_result_kind {
    uint32_t flags;
    uint8_t source;
    bool deferred;
} lb_result_kind;
/* A result, or a written argument after its storage got its new version. */
lb_status lb_value_intake_result(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen,
                                 lb_result_kind kind, uint32_t *row, lb_err *err);
/* A view of contents that are known already. */
lb_status lb_value_intake_alias(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen, uint32_t *row,
                                lb_err *err);
/* Digest, statistics and, where the level says so, bytes of a layer's input or output. */
lb_status lb_value_intake_boundary(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen,
                                   uint32_t *row, lb_err *err);
/* Measures what ops left to be measured later. */
lb_status lb_value_intake_settle(lb_recorder *recorder, lb_tracked *storage, lb_err *err);
/* Finds or makes the storage and brings it up to date with what is seen of it. */
lb_status lb_value_intake_storage(lb_recorder *recorder, const lb_host_tensor *seen, lb_tracked **storage, lb_err *err);

#endif
