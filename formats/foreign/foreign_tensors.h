/* The named tensors that a foreign file holds, while it is being read. Private to formats/foreign. */
#ifndef LB_FOREIGN_TENSORS_H
#define LB_FOREIGN_TENSORS_H

#include <lastbit/checkpoint.h>
#include <lastbit/decode_limit.h>
#include <lastbit/digest.h>
#include <lastbit/text.h>

/* Where a part of a distributed checkpoint stands in the whole tensor. */
typedef struct lb_foreign_part {
    lb_layout whole;
    int64_t start[LB_MAX_DIMS];
} lb_foreign_part;

/* Where a tensor's bytes lie as long as they were not asked for: foreign_npz.c knows what is in it. */
typedef struct lb_foreign_packed lb_foreign_packed;

typedef struct lb_foreign_tensor {
    char *name;
    lb_tensor tensor;          /* in a map or in owned memory; while it is packed without data, and contiguous */
    size_t size;               /* bytes of its dense range */
    uint32_t memory;           /* the last that there was when it got its bytes: theirs, most often */
    lb_foreign_part *part;     /* NULL: all of it */
    lb_foreign_packed *packed; /* NULL: its bytes are there */
} lb_foreign_tensor;

/* Mapped files, or memory that an archive member was unpacked to. */
typedef struct lb_foreign_memory {
    void *bytes;
    size_t size;
    char *path; /* NULL: not mapped, owned */
} lb_foreign_memory;

/* Is told of faults in a file, and of entries that are no tensors; reading goes on. Texts are valid during the call. */
typedef struct lb_foreign_listener {
    void *context;
    void (*fault)(void *context, lb_fault_kind kind, const char *tensor, const char *file, const char *message);
    void (*entry)(void *context, const char *name, const char *text);
    void (*unread)(void *context, const char *name, const char *type, const lb_layout *shape); /* a tensor of codes */
} lb_foreign_listener;

typedef struct lb_foreign_tensors {
    lb_foreign_tensor *rows;
    uint32_t n;
    lb_foreign_memory *memory;
    uint32_t n_memory;
    /* LB_TEXT_CARRIED while a file is read whose names JSON carries, LB_TEXT_ARGUMENT where they have passed the
     * gate */
    lb_text_kind names;
    char *metadata; /* JSON text of safetensors' __metadata__, or NULL */
    /* NULL: the first fault ends the reading, and parts of a tensor are put together. Otherwise parts stay apart. */
    const lb_foreign_listener *listener;
    lb_decode_limit_account limit; /* on what is unpacked and put together of all its files */
    uint64_t shown;                /* bytes of all tensors that lie in its files as they are */
} lb_foreign_tensors;

bool lb_foreign_ends_with(const char *text, const char *end);

/* Maps a whole file; it is unmapped with the tensors. */
lb_status lb_foreign_map(lb_foreign_tensors *tensors, const char *path, const char **bytes, size_t *size, lb_err *err);
/* Takes malloc'ed memory over; frees it at once when that fails. */
lb_status lb_foreign_own(lb_foreign_tensors *tensors, void *bytes, size_t size, lb_err *err);
/* Keeps the name, of n bytes as the file has them, by its gate. The layout's dense range must be `size` bytes from
 * `data` on. Tensors whose bytes are
 * more than the files', because one is expanded or lies over others, count against the limit. */
lb_status lb_foreign_add(lb_foreign_tensors *tensors, const char *name, size_t n, lb_dtype dtype,
                         const lb_layout *layout, const void *data, size_t size, lb_err *err);
/* The tensor added last is a part; only where there is a listener. */
lb_status lb_foreign_set_part(lb_foreign_tensors *tensors, const lb_layout *whole, const int64_t *start, lb_err *err);
/* Where a tensor's bytes lie: a mapped file (its path is set) or owned memory. */
const lb_foreign_memory *lb_foreign_file(const lb_foreign_tensors *tensors, const lb_foreign_tensor *row);
/* A failure goes to the listener, and LB_OK comes back; without one it goes on to `err`, as does
 * a refusal of the system (lb_is_refusal). */
lb_status lb_foreign_fault(const lb_foreign_tensors *tensors, lb_fault_kind kind, const char *tensor, const char *file,
                           const lb_err *why, lb_err *err);
/* What is wrong with a file that could not be read: not there, cut off, or something else. */
lb_fault_kind lb_foreign_damage(lb_status status, const char *path, const char *bytes, size_t size);
/* One file of any kind that its name tells. */
lb_status lb_foreign_read_file(lb_foreign_tensors *tensors, const char *path, lb_err *err);
void lb_foreign_tensors_release(lb_foreign_tensors *tensors);

/* One file, by kind. `source` begins messages; `offset` is where `bytes` lie in it. */
lb_status lb_safetensors_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size,
                              lb_err *err);
lb_status lb_safetensors_read_index(lb_foreign_tensors *tensors, const char *path, lb_err *err);
lb_status lb_foreign_npy_read(lb_foreign_tensors *tensors, const char *source, const char *name, const char *bytes,
                              size_t size, lb_err *err);
lb_status lb_foreign_gguf_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size,
                               lb_err *err);
bool lb_foreign_gguf_is_cut(const char *bytes, size_t size); /* it ends within its header */
/* Arrays stay packed where there is no listener. */
lb_status lb_npz_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size, lb_err *err);
/* Of a packed tensor: both digests, its bytes held at no time; its bytes into memory, after which it is packed no
 * more. */
lb_status lb_npz_digests(lb_foreign_tensors *tensors, lb_foreign_tensor *row, lb_digest *logical, lb_digest *blob,
                         lb_err *err);
lb_status lb_npz_unpack(lb_foreign_tensors *tensors, lb_foreign_tensor *row, lb_err *err);

/* `*path`: "FOLDER/.metadata", malloc'ed, where that is a file: a distributed checkpoint; NULL where it is not.
 * LB_ERR_IO: the system refuses to say. */
lb_status lb_foreign_find_metadata(const char *folder, char **path, lb_err *err);

#endif
