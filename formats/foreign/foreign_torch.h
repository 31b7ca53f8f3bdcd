/* Files of torch: what torch.save writes, and distributed checkpoints made of such. Private to formats/foreign*.c. */
#ifndef LB_FOREIGN_TORCH_H
#define LB_FOREIGN_TORCH_H

#include "foreign/foreign_tensors.h"

/* Every tensor of a .pt file. */
lb_status lb_torch_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size, lb_err *err);
/* `size` bytes at `offset` of `bytes`, which are those of the file `source`. */
typedef struct lb_torch_part {
    const char *source, *bytes;
    uint64_t offset;
    size_t size;
} lb_torch_part;
/* The one tensor that a part was saved of; it lies in `bytes`, its dense range takes `*tensor_size`. */
lb_status lb_torch_read_one(const lb_torch_part *part, const char *name, lb_tensor *tensor, size_t *tensor_size,
                            lb_err *err);
/* A folder whose .metadata is `path`. Parts of a tensor are put together in memory; whole ones stay in their files. */
lb_status lb_distributed_read(lb_foreign_tensors *tensors, const char *folder, const char *path, lb_err *err);

#endif
