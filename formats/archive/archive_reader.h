/* What captures, verifying and packing need of an open archive beyond lastbit/archive.h. Private to formats/. */
#ifndef LB_ARCHIVE_READER_H
#define LB_ARCHIVE_READER_H

#include "archive/archive_scan.h"

#include <lastbit/decode_limit.h>
#include <stdatomic.h>

struct lb_archive {
    char *path;
    const char *map;
    size_t size;
    lb_index index;
    bool closed;       /* the index of a closed archive was used; otherwise the file was scanned */
    uint64_t index_at; /* offset of that index */
    uint64_t damages;  /* places that were skipped, records that were left out, before the last commit */
    lb_left_out left_out;
    uint64_t places;   /* all places that were skipped */
    uint64_t salvaged; /* records after the last commit that were taken */
    uint64_t damaged_at;
    _Atomic uint8_t *checked;           /* per blob: its digest was found right */
    _Atomic(_Atomic(void *) *) decoded; /* per blob, of coded ones; NULL: none was read */
    _Atomic(void *) *packs;             /* per coded pack */
    _Atomic(lb_program *) *programs;
    char **tables;                  /* read when it is opened; NULL: damaged, or replaced by a later one */
    lb_decode_limit_account limit;  /* on what is decoded of it */
    struct lb_program_shelf *shelf; /* borrowed; NULL: programs stay in memory */
    _Atomic(lb_archive *) rescue;   /* it, scanned, once its index was found to be damaged where it was read */
};

/* `salvage`: also records after the last commit, if their digests are right. Never uses an index then. */
lb_status lb_archive_open_scanned(const char *path, bool salvage, lb_archive **archive, lb_err *err);
/* A table as JSON text, malloc'ed. */
lb_status lb_archive_read_table(lb_archive *archive, const lb_segment_row *row, char **json, lb_err *err);
/* The table of a rank (LB_NO_RANK: of the archive); NULL when there is none. */
const char *lb_archive_rank_table(const lb_archive *archive, int32_t rank, const char *name);
/* The pages of the file that were read are no longer held; what was given stays where it is. */
void lb_archive_unload(const lb_archive *archive);
/* The blob's row, LB_NO_ROW where it was not kept, and the archive in which that row is: this one, or what was scanned
 * of it because its index is damaged there. */
lb_status lb_archive_find(lb_archive *archive, lb_digest digest, lb_archive **holder, uint64_t *row, lb_err *err);
/* The one of the two of which any row can be read. */
lb_status lb_archive_sound(lb_archive *archive, lb_archive **sound, lb_err *err);
/* Blob by the number of its row, digest checked the first time. */
lb_status lb_archive_blob_row(lb_archive *archive, uint64_t number, const void **bytes, size_t *size, lb_err *err);
/* Only that check, of a blob that is not in a pack: what is decoded for it is not kept, and a large blob never whole in
 * memory. */
lb_status lb_archive_check_row(lb_archive *archive, uint64_t number, lb_err *err);
/* Frees what was decoded of a row, or of a pack. For a caller that alone uses the archive: bytes it was given are
 * gone. */
void lb_archive_drop_row(lb_archive *archive, uint64_t number);
void lb_archive_drop_pack(lb_archive *archive, uint32_t pack);
/* The same of a program that was given: it is the caller's now. NULL: it is not in memory; none is read for it. */
lb_program *lb_archive_take_program(lb_archive *archive, uint32_t index);
/* Is it this very one that stands there? None is read for the question. */
bool lb_archive_has_program(const lb_archive *archive, uint32_t index, const lb_program *program);
/* A program that the archive does not keep. */
lb_status lb_archive_read_program(lb_archive *archive, uint32_t index, lb_program **program, lb_err *err);

#endif
