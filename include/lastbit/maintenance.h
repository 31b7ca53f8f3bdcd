/* Keeping captures: verify every byte, recover what a killed writer or a damaged disk left, pack into one file,
 * gather steps of ranks from several machines.
 *
 * Simplest use:
 *
 *     lb_pack_options options = LB_PACK_OPTIONS_INIT;
 *     lb_packing result;
 *     LB_TRY(lb_capture_pack("run.lb", "run.lbz", &options, &result, err));
 *
 * None of these changes its input.
 */
#ifndef LASTBIT_MAINTENANCE_H
#define LASTBIT_MAINTENANCE_H

#include <lastbit/archive.h>
#include <lastbit/parts.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- verify ------------------------------------------------------------------------------------------------------ */

typedef enum lb_damage_kind {
    LB_DAMAGE_BYTES,   /* bytes contradict their digest, or cannot be decoded */
    LB_DAMAGE_RECORD,  /* a place that is no record, or a record that contradicts its descriptor */
    LB_DAMAGE_INDEX,   /* the closing index says something else than the records */
    LB_DAMAGE_PROGRAM, /* a program that breaks a rule, or names bytes of the wrong size */
    LB_DAMAGE_MISSING  /* a program says that bytes were kept, and they are not there (also after `pack --strip`) */
} lb_damage_kind;
LB_API const char *lb_verify_damage_kind_name(lb_damage_kind kind);

typedef struct lb_damage {
    lb_damage_kind kind;
    const char *file;
    uint64_t offset;
    const char *message; /* with file, offset and field; valid during the call */
} lb_damage;

typedef struct lb_verification {
    /* `closed`: those with a whole closing record. Of the others it is not known whether there were more steps */
    uint32_t archives, closed;
    uint64_t records, blobs, programs, tables, bytes;
    uint64_t uncommitted; /* whole records after the last commit: not part of the capture, `recover` may keep them */
    uint64_t damages;     /* all but MISSING */
    uint64_t missing;
    uint32_t minor; /* the highest minor version of the format among them */
} lb_verification;

/* Reads every byte of a capture (folder, packed file, one archive), whatever its index says. `found` is called once per
 * damage; damage is no failure of this function. */
LB_API lb_status lb_capture_verify(const char *path, void (*found)(void *context, const lb_damage *damage),
                                   void *context, lb_verification *result, lb_err *err);
/* The same, an archive of a folder a unit of work; `parts`: NULL for all of it. */
LB_API lb_status lb_capture_verify_in_parts(const char *path, lb_parts *parts,
                                            void (*found)(void *context, const lb_damage *damage), void *context,
                                            lb_verification *result, lb_err *err);

/* ---- recover ----------------------------------------------------------------------------------------------------- */

typedef struct lb_recovery {
    uint64_t blobs, programs, tables;                /* written to the new archives */
    uint64_t lost_blobs, lost_programs, lost_tables; /* there, but damaged */
    uint64_t lost_packs; /* of small blobs, which ones is unknown: their directory is damaged */
    uint64_t places;     /* places that hold no record: what was there is not known */
    uint64_t salvaged;   /* whole records after the last commit that were kept */
} lb_recovery;

/* Writes a new capture with everything in the old one that is whole: a folder for a folder, one archive for one
 * archive. Ring files that were not assembled are, too. LB_ERR_EXISTS when `out` is there; it appears complete or not
 * at all. */
LB_API lb_status lb_capture_recover(const char *path, const char *out, lb_recovery *result, lb_err *err);

/* ---- the flight recorder's files --------------------------------------------------------------------------------- */

/* A flight recorder may keep its window in files besides memory, so that it outlives a process that is killed (SIGKILL,
 * the out-of-memory killer): one archive per generation of K steps, "ring-RRRRR-GGGGGGGGGG.tar", the last two of each
 * rank, each step committed as it ends. They are no part of the capture until they are assembled; a run that ends well
 * removes them. */
LB_API char *lb_ring_file_path(const char *folder, int32_t rank,
                               uint32_t generation); /* malloc'ed, NULL when out of memory */
LB_API bool lb_ring_file_parse(const char *name, int32_t *rank, uint32_t *generation);
/* `rank`: -1 removes those of all ranks. */
LB_API void lb_ring_files_remove(const char *folder, int32_t rank);
/* Writes the window of each rank as its archive rank-RRRRR.tar in `out` (which may be `folder`, and is there), `why` as
 * the trigger in its coverage, and complete or not at all. *steps: written, over all ranks. The files stay: they may be
 * removed where *whole (may be NULL) says that every byte that was committed in them was read. LB_OK also where there
 * are none, or where damage is passed over; a file that cannot be opened or read for lack of memory, descriptors or a
 * working disk is a failure. */
LB_API lb_status lb_ring_files_assemble(const char *folder, const char *out, const char *why, uint32_t *steps,
                                        bool *whole, lb_err *err);

/* ---- pack -------------------------------------------------------------------------------------------------------- */

/* Bytes are left out of all steps and ranks, also where the same bytes lie under another name, and with them whatever
 * shares their storage. Copies that ops made of them (a cast, an embedding) are results. */
typedef enum lb_strip {
    LB_STRIP_DATA = 1,    /* bytes of batches and of what the outermost forward was given */
    LB_STRIP_PARAMS = 2,  /* bytes of parameters */
    LB_STRIP_STATE = 4,   /* bytes of optimizer state and buffers */
    LB_STRIP_RESULTS = 8, /* bytes of everything that is no source */
    LB_STRIP_RECEIPT = 16 /* the receipt: no bytes of tensors, but what the run was */
} lb_strip;

typedef struct lb_pack_options {
    size_t size;    /* sizeof(lb_pack_options) */
    int level;      /* zstd, 1 to 19 */
    uint32_t strip; /* lb_strip */
    bool overwrite;
    /* NULL: all. Otherwise decides what goes in. */
    bool (*want)(void *context, int32_t rank, int64_t step);
    void *context;
    void (*progress)(void *context, uint64_t done, uint64_t total); /* programs; may be NULL */
} lb_pack_options;
#define LB_PACK_OPTIONS_INIT {.size = sizeof(lb_pack_options), .level = 9}

typedef struct lb_packing {
    uint64_t programs, blobs, blob_bytes, stripped_blobs, stripped_bytes, file_bytes;
} lb_packing;

/* One compressed file with every rank, equal bytes stored once. Only bytes that a packed program names go in. The file
 * appears complete or not at all: what stood there before stays until then. LB_ERR_EXISTS, too, where `out` is the
 * capture or a file in it. */
LB_API lb_status lb_capture_pack(const char *path, const char *out, const lb_pack_options *options, lb_packing *result,
                                 lb_err *err);

/* ---- gather ------------------------------------------------------------------------------------------------------ */

typedef struct lb_gather_options {
    size_t size; /* sizeof(lb_gather_options) */
    /* NULL: all. Of a folder only the archives of the ranks that are wanted are read. */
    bool (*want_rank)(void *context, int32_t rank);
    bool (*want_step)(void *context, int64_t step);
    /* A step that is wanted, that another rank recorded, and this one not. May be NULL. */
    void (*lacks)(void *context, int32_t rank, int64_t step);
    void (*progress)(void *context, uint64_t done, uint64_t total); /* programs; may be NULL */
    void *context;
    bool overwrite; /* replace a capture that is there */
} lb_gather_options;
#define LB_GATHER_OPTIONS_INIT {.size = sizeof(lb_gather_options)}

typedef struct lb_gathering {
    uint32_t ranks;
    uint64_t programs, blobs, blob_bytes;
    uint64_t missing; /* values whose bytes were kept once and are in none of the captures */
    uint64_t lacking; /* calls of `lacks` */
    uint64_t file_bytes;
} lb_gathering;

/* Brings steps of ranks together in one capture, the folder `out`: of the captures at `paths`, which may be folders of
 * several machines. Bytes that the steps need come with them, those that several ranks hold once. LB_ERR_EXISTS: `out`
 * is there, or is one of them. LB_ERR_INVALID: two of them hold the same step of the same rank, and not alike.
 * LB_ERR_NOT_FOUND: nothing is wanted of what there is. `out` appears complete or not at all. */
LB_API lb_status lb_capture_gather(const char *const *paths, uint32_t n, const char *out,
                                   const lb_gather_options *options, lb_gathering *result, lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
