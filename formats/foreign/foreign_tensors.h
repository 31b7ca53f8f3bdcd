/* The named tensors that a foreign file holds, while it is being read. Private to formats/foreign*.c. */
#ifndef LB_FOREIGN_TENSORS_H
#define LB_FOREIGN_TENSORS_H

#include <lastbit/tensor.h>

typedef struct lb_foreign_tensor {
    char *name;
    lb_tensor tensor; /* in a map or in owned memory */
    size_t size;      /* bytes of its dense range */
} lb_foreign_tensor;

/* Mapped files, or memory that an archive member was unpacked to. */
typedef struct lb_foreign_memory {
    void *bytes;
    size_t size;
    bool mapped;
} lb_foreign_memory;

typedef struct lb_foreign_tensors {
    lb_foreign_tensor *rows;
    uint32_t n;
    lb_foreign_memory *memory;
    uint32_t n_memory;
    char *metadata; /* JSON text of safetensors' __metadata__, or NULL */
} lb_foreign_tensors;

/* Maps a whole file; it is unmapped with the tensors. */
lb_status lb_foreign_map(lb_foreign_tensors *tensors, const char *path, const char **bytes, size_t *size, lb_err *err);
/* Takes malloc'ed memory over; frees it at once when that fails. */
lb_status lb_foreign_own(lb_foreign_tensors *tensors, void *bytes, size_t size, lb_err *err);
/* Copies the name. The layout's dense range must be `size` bytes from `data` on. */
lb_status lb_foreign_add(lb_foreign_tensors *tensors, const char *name, lb_dtype dtype, const lb_layout *layout,
                         const void *data, size_t size, lb_err *err);

/* One file, by kind. `source` begins messages; `offset` is where `bytes` lie in it. */
lb_status lb_safetensors_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size,
                              lb_err *err);
lb_status lb_safetensors_read_index(lb_foreign_tensors *tensors, const char *path, lb_err *err);
lb_status lb_npy_read(lb_foreign_tensors *tensors, const char *source, const char *name, const char *bytes, size_t size,
                      lb_err *err);
lb_status lb_npz_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size, lb_err *err);

#endif
