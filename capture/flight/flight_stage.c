/* See flight_stage.h. */
#include "flight/flight_stage.h"

#include "base/array.h"
#include "base/hash.h"
#include <stdlib.h>
#include <string.h>

typedef struct held {
    lb_digest digest;
    void *bytes; /* NULL: dropped */
    size_t size;
    lb_dtype dtype;
    lb_level level;
} held;

struct lb_flight_stage {
    held *rows;
    uint32_t n;
    lb_hash by_digest;
    uint64_t bytes[LB_LEVEL_AUTO];
};

lb_flight_stage *lb_flight_stage_new(void)
{
    return calloc(1, sizeof(lb_flight_stage));
}

void lb_flight_stage_free(lb_flight_stage *stage)
{
    if (!stage) return;
    for (size_t i = 0; i < stage->n; i++) free(stage->rows[i].bytes);
    free(stage->rows);
    lb_hash_release(&stage->by_digest);
    free(stage);
}

static held *find(const lb_flight_stage *stage, lb_digest digest)
{
    LB_HASH_EACH(row, &stage->by_digest, digest.lo)
    if (lb_digest_equal(stage->rows[row].digest, digest)) return &stage->rows[row];
    return NULL;
}

bool lb_flight_stage_has(const lb_flight_stage *stage, lb_digest digest)
{
    const held *row = find(stage, digest);
    return row && row->bytes;
}

void lb_flight_stage_lower(lb_flight_stage *stage, lb_digest digest, lb_level level)
{
    held *row = find(stage, digest);
    if (!row || !row->bytes || level >= row->level) return;
    stage->bytes[row->level] -= row->size;
    stage->bytes[level] += row->size;
    row->level = level;
}

lb_status lb_flight_stage_blob(lb_flight_stage *stage, const lb_blob_bytes *blob, lb_level level, bool *fresh,
                               lb_err *err)
{
    const lb_digest digest = blob->digest;
    const size_t size = blob->size;
    held *row = find(stage, digest);
    *fresh = !row || !row->bytes;
    if (!*fresh) {
        lb_flight_stage_lower(stage, digest, level);
        return LB_OK;
    }
    void *copy = malloc(size ? size : 1);
    if (!copy) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu bytes of a result", size);
    memcpy(copy, blob->bytes, size);
    if (!row) {
        held *rows = lb_array_grow(stage->rows, stage->n, sizeof *rows);
        if (rows) stage->rows = rows;
        if (!rows || !lb_hash_add(&stage->by_digest, digest.lo, stage->n)) {
            free(copy);
            return lb_fail(err, LB_ERR_NOMEM, "out of memory in the recorder");
        }
        row = &stage->rows[stage->n++];
    }
    *row = (held){digest, copy, size, blob->dtype, level};
    stage->bytes[level] += size;
    return LB_OK;
}

uint64_t lb_flight_stage_bytes(const lb_flight_stage *stage, lb_level level)
{
    return stage->bytes[level];
}

void lb_flight_stage_drop(lb_flight_stage *stage, lb_level above)
{
    for (size_t i = 0; i < stage->n; i++) {
        held *row = &stage->rows[i];
        if (row->level <= above || !row->bytes) continue;
        stage->bytes[row->level] -= row->size;
        free(row->bytes);
        row->bytes = NULL;
    }
}

lb_status lb_flight_stage_each(const lb_flight_stage *stage,
                               lb_status (*put)(void *context, lb_digest digest, lb_dtype dtype, const void *bytes,
                                                size_t size, lb_err *err),
                               void *context, lb_err *err)
{
    for (size_t i = 0; i < stage->n; i++) {
        const held *row = &stage->rows[i];
        if (row->bytes) LB_TRY(put(context, row->digest, row->dtype, row->bytes, row->size, err));
    }
    return LB_OK;
}
