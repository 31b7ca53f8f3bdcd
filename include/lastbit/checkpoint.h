/* Checkpoint: every tensor that the files of a checkpoint hold, where it lies, and what is wrong with the files.
 *
 * Simplest use:
 *
 *     lb_checkpoint *checkpoint;
 *     LB_TRY(lb_checkpoint_open("checkpoint-500", &checkpoint, err));
 *     printf("%u pieces, %u faults\n", checkpoint->n_pieces, checkpoint->n_faults);
 *     lb_checkpoint_close(checkpoint);
 *
 * A capture (archive.h) answers what a checkpoint means: one value per name. This answers what is in its files: parts
 * of a sharded tensor stay apart, each with its place in the whole, its file, its offset and its rank; what contradicts
 * itself is gathered as faults, and reading goes on. Nothing is executed and nothing copied: tensors lie in mapped
 * files.
 *
 *   one file           .safetensors, .safetensors.index.json, .pt, .pth, .bin, .npy, .npz, .gguf
 *   a folder           with an index; with a .metadata (torch.distributed.checkpoint); else every such file in it
 *   ranks' files       mp_rank_00…, tp_rank_01…, rank-0…, zero_pp_rank_1_mp_rank_00…, layer_03-model_01…,
 *                      X-00000-of-00002 whose files share names, or folders of such names
 */
#ifndef LASTBIT_CHECKPOINT_H
#define LASTBIT_CHECKPOINT_H

#include <lastbit/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, word, meaning) */
#define LB_FAULTS(X)                                                                                                   \
    X(MISSING, "missing", "an index or a description names a tensor that no file holds")                               \
    X(UNEXPECTED, "unexpected", "a file holds a tensor that the index does not name")                                  \
    X(DUPLICATE, "duplicate", "two files, or one header twice, hold a tensor of this name")                            \
    X(MISPLACED, "misplaced", "a tensor lies in another file than the index says")                                     \
    X(NO_FILE, "no_file", "a file that is named is not there")                                                         \
    X(TRUNCATED, "truncated", "a file ends before what its header announces")                                          \
    X(DAMAGED, "damaged", "bytes that contradict the format")

typedef enum lb_fault_kind {
#define LB_FAULT_ENUM(name, word, text) LB_FAULT_##name,
    LB_FAULTS(LB_FAULT_ENUM)
#undef LB_FAULT_ENUM
} lb_fault_kind;
LB_API const char *lb_checkpoint_fault_kind_name(lb_fault_kind kind);

typedef struct lb_checkpoint_fault {
    lb_fault_kind kind;
    char *tensor, *file; /* may be NULL */
    int32_t rank;        /* of the file; -1: none */
    char *message;
} lb_checkpoint_fault;

typedef struct lb_checkpoint_file {
    char *path; /* below the checkpoint's folder */
    int32_t rank;
    uint64_t size;
    int32_t stage; /* of the pipeline; -1: its name tells none */
    uint32_t kind; /* the first file whose name differs in numbers of ranks alone */
} lb_checkpoint_file;

/* A tensor as one file holds it. */
typedef struct lb_checkpoint_piece {
    const char *name;
    uint32_t file;
    int32_t rank;    /* that wrote it; -1: the file is of no rank */
    uint64_t offset; /* of its bytes in the file; in a compressed member 0 */
    lb_tensor tensor;
    bool placed;                /* the next two are known: a distributed checkpoint says them */
    lb_layout whole;            /* the tensor it is a part of */
    int64_t start[LB_MAX_DIMS]; /* where the part begins in it */
} lb_checkpoint_piece;

/* What is no tensor: a step count, an option, a schedule. Text of numbers and words, "" for others. */
typedef struct lb_checkpoint_entry {
    char *name, *text;
    uint32_t file;
} lb_checkpoint_entry;

/* A tensor whose numbers do not stand in the file: quantised, blocks of codes with scales. */
typedef struct lb_checkpoint_unread {
    char *name, *type; /* "q4_k" */
    lb_layout shape;
    uint32_t file;
} lb_checkpoint_unread;

typedef struct lb_checkpoint {
    char *path;
    lb_checkpoint_piece *pieces; /* by name, rank, place */
    uint32_t n_pieces;
    lb_checkpoint_file *files;
    uint32_t n_files;
    lb_checkpoint_fault *faults;
    uint32_t n_faults;
    lb_checkpoint_entry *entries;
    uint32_t n_entries;
    lb_checkpoint_unread *unread;
    uint32_t n_unread;
    int32_t ranks;        /* that wrote it, counting absent ones between; 0: files are of no rank */
    int32_t ranks_stated; /* as file names say ("of-00004"); 0: they do not */
    bool rank_files;      /* each rank's files hold a shard of everything */
    bool distributed;     /* a .metadata says where every part belongs */
    struct lb_foreign_tensors *tensors;
} lb_checkpoint;

/* Fails when nothing can be read at all; a file that cannot is a fault where others can. */
LB_API lb_status lb_checkpoint_open(const char *path, lb_checkpoint **checkpoint, lb_err *err);
LB_API void lb_checkpoint_close(lb_checkpoint *checkpoint);

#ifdef __cplusplus
}
#endif
#endif
