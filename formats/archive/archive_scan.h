/* Reading an archive record by record, without its index: after a kill, after damage, and to verify. Private to
 * formats/. */
#ifndef LB_ARCHIVE_SCAN_H
#define LB_ARCHIVE_SCAN_H

#include "archive/archive_index.h"

typedef struct lb_scan_entry {
    uint64_t header, data, size;
    lb_descriptor descriptor;
} lb_scan_entry;

typedef struct lb_scan {
    lb_scan_entry *entries;
    uint64_t n;
    uint64_t committed;  /* entries[0 … committed) stand before the last whole commit */
    uint64_t foreign;    /* tar entries that are no records of ours */
    uint64_t skipped;    /* places that are no tar; what a kill left behind the last commit is one */
    uint64_t damages;    /* those before the last whole commit */
    uint64_t damaged_at; /* offset of the first place skipped, UINT64_MAX: none */
    uint64_t end;        /* behind the last whole record */
} lb_scan;

/* Finds every whole record. Damage is skipped: the scan goes on at the next header that looks like one of ours.
 * LB_ERR_CORRUPT when there is no record at all, LB_ERR_VERSION when the head says so. */
lb_status lb_scan_run(const char *map, size_t size, const char *path, lb_scan *scan, lb_err *err);
void lb_scan_release(lb_scan *scan);

/* Records that are there but not whole, by kind. */
typedef struct lb_left_out {
    uint64_t packs, programs, tables, others;
} lb_left_out;

/* Rows of entries[0 … count), pack directories read. A record whose digest or directory is damaged is left out. */
lb_status lb_scan_rows(const char *map, const char *path, const lb_scan *scan, uint64_t count, lb_index_rows *rows,
                       lb_left_out *left_out, lb_err *err);

/* Does the payload of a program, table, commit, index or pack directory have its digest? Blobs: not looked at, true. */
bool lb_scan_entry_holds(const char *map, const lb_scan_entry *entry);

/* A record that holds something: neither head nor bookkeeping. */
static inline bool lb_scan_is_content(const lb_scan_entry *entry)
{
    return entry->descriptor.kind >= LB_RECORD_BLOB && entry->descriptor.kind <= LB_RECORD_TABLE;
}

#endif
