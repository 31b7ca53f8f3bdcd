/* The tables of a program as data, so that growing, copying, encoding and decoding are one loop each.
 * Private to formats/program*.c. */
#ifndef LB_PROGRAM_STORE_H
#define LB_PROGRAM_STORE_H

#include "base/hash.h"
#include <lastbit/program.h>

/* X(ID, field of lb_program, row type) */
#define LB_PROGRAM_TABLES(X)                                                                                           \
    X(STRINGS, strings, char *)                                                                                        \
    X(SCOPES, scopes, lb_scope)                                                                                        \
    X(OPS, ops, lb_op)                                                                                                 \
    X(ARGS, args, lb_arg)                                                                                              \
    X(REFS, refs, uint32_t)                                                                                            \
    X(VALUES, values, lb_value)                                                                                        \
    X(STATISTICS, statistics, lb_statistics)                                                                           \
    X(BOUNDARIES, boundaries, lb_boundary)                                                                             \
    X(COLLECTIVES, collectives, lb_collective)                                                                         \
    X(ROUTINGS, routings, lb_routing)                                                                                  \
    X(SCALARS, scalars, lb_scalar)                                                                                     \
    X(GROUPS, groups, lb_group)                                                                                        \
    X(GROUP_PARAMS, group_params, lb_group_param)                                                                      \
    X(NOTICES, notices, lb_notice)                                                                                     \
    X(SHARDS, shards, lb_shard)                                                                                        \
    X(EXTENTS, extents, lb_extent)                                                                                     \
    X(PLACEMENTS, placements, lb_placement)                                                                            \
    X(MESHES, meshes, lb_mesh)                                                                                         \
    X(MESH_AXES, mesh_axes, lb_mesh_axis)                                                                              \
    X(LINES, lines, lb_line)

typedef enum lb_program_table_id {
#define LB_TABLE_ENUM(ID, field, type) LB_TABLE_##ID,
    LB_PROGRAM_TABLES(LB_TABLE_ENUM)
#undef LB_TABLE_ENUM
        LB_TABLE_COUNT
} lb_program_table_id;

typedef struct lb_program_table {
    const char *name;
    size_t array, count; /* offsets in lb_program */
    size_t row_bytes;
} lb_program_table;
extern const lb_program_table lb_program_tables[LB_TABLE_COUNT];

typedef struct text_chunk {
    struct text_chunk *next;
    size_t used, size;
    char bytes[];
} text_chunk;

typedef struct row_set {
    lb_hash rows;
    uint32_t known; /* rows entered */
} row_set;

struct lb_program_store {
    uint32_t capacity[LB_TABLE_COUNT];
    text_chunk *chunks;
    row_set strings, scopes, lines;
    /* a row or a text found no memory: the caller may have gone on without it, and so it is never written */
    bool lacking;
    /* program_shelf.h: the shelf that it is on, and where its tables lie in the file; `laid_at` NULL: in memory */
    struct lb_program_shelf *shelf;
    void *laid_at;
    size_t laid_bytes;
    uint64_t laid_from;
};

lb_program *lb_program_alloc(void);                  /* no string 0, no scope 0 yet */
void lb_program_release_tables(lb_program *program); /* and the strings' texts; their pointers are gone, counts stay */
/* The first of the new rows; LB_NONE when out of memory. */
uint32_t lb_program_append(lb_program *program, lb_program_table_id id, const void *rows, uint32_t count);
char *lb_program_keep_text(lb_program *program, const char *text, size_t n);
/* As lb_program_decode; messages name the source and offsets count from `offset` in it. */
lb_status lb_program_decode_from(const void *bytes, size_t size, const char *source, uint64_t offset,
                                 lb_program **program, lb_err *err);

#endif
