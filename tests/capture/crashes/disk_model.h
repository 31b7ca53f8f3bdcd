/* What a disk may hold after a power cut, by a log of what processes did (write_log.h).
 *
 * The model is that of POSIX, harsher than any one file system. fsync of a file makes its contents permanent, fsync of
 * a folder its names; syncs of everything do both. Whatever happened since may have reached the disk or not, each thing
 * by itself, in any order: a write as a whole or some of its sectors of 512 bytes, a new size without the bytes (which
 * then are zeros, or what the disk held before), a name without the file's contents, contents without the name. */
#ifndef LB_TESTS_DISK_MODEL_H
#define LB_TESTS_DISK_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SECTOR = 512 };

typedef struct disk_model disk_model;

/* `start`: a folder with what was there, and on the disk, before the log begins; NULL: nothing. Exits with a message
 * where the log cannot be read. */
disk_model *disk_model_load(const char *log, const char *start);
size_t disk_model_events(const disk_model *model);
size_t disk_model_syncs(const disk_model *model);

/* How many things had happened before event `at` that no sync has made permanent. */
size_t disk_model_pending(disk_model *model, size_t at);
/* Of the pending things of that call these come first: new names, and names that are gone. */
size_t disk_model_pending_names(const disk_model *model);

typedef enum disk_unwritten { DISK_SHORT, DISK_ZEROS, DISK_STALE } disk_unwritten;

typedef struct disk_state {
    size_t at;                /* the power goes before this event */
    const uint8_t *reached;   /* of each pending thing: 0 lost, 1 there, 2 torn: of a write some sectors are there */
    disk_unwritten unwritten; /* of writes that were lost: nothing, or their size with zeros or old bytes of the disk */
    uint32_t seed;            /* says which sectors */
} disk_state;

/* Writes such a disk into `folder`, which is emptied first. */
void disk_model_write(disk_model *model, const disk_state *state, const char *folder);
/* Removes all that is in a folder. */
void disk_model_empty(const char *folder);

#endif
