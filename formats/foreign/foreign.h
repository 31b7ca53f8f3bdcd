/* Files of other programs as captures: safetensors (one file, or an index over shards), .npy, .npz, .pt, GGUF of
 * numbers, and torch's distributed checkpoints.
 *
 * They become one program, rank 0, step 0: an `lb::source` per tensor, named. Digests are computed when the program is
 * first asked for, not when the file is opened. Private to formats/. */
#ifndef LB_FOREIGN_H
#define LB_FOREIGN_H

#include <lastbit/archive.h>

typedef struct lb_foreign lb_foreign;

/* By name alone: *.safetensors, *.safetensors.index.json, *.npy, *.npz, *.pt, *.pth, *.gguf, a folder with a
 * .metadata, or one that holds safetensors and no archive. LB_ERR_IO, LB_ERR_NOMEM: a folder that could not be read is
 * neither. */
lb_status lb_foreign_recognises(const char *path, bool folder, bool *foreign, lb_err *err);
lb_status lb_foreign_open(const char *path, lb_foreign **foreign, lb_err *err);
void lb_foreign_close(lb_foreign *foreign);
/* JSON text, or NULL. */
const char *lb_foreign_metadata(const lb_foreign *foreign);
lb_status lb_foreign_program(lb_foreign *foreign, const lb_program **program, lb_err *err);
bool lb_foreign_has_blob(lb_foreign *foreign, lb_digest digest);
lb_status lb_foreign_blob(lb_foreign *foreign, lb_digest digest, const void **bytes, size_t *size, lb_err *err);

#endif
