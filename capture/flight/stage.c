/* See stage.h. */
#include "stage.h"

#include <stdlib.h>
#include <string.h>

typedef struct held {
    lb_digest digest;
    void *bytes; /* NULL: dropped */
    size_t size;
    lb_dtype dtype;
    lb_level level;
} held;

struct lb_stage {
    held *rows;
    size_t n, room;
    uint32_t *slots; /* open addressing: row + 1, 0 is free */
    size_t n_slots;  /* a power of two */
    uint64_t bytes[LB_LEVEL_AUTO];
};

lb_stage *lb_stage_new(void)
{
    return calloc(1, sizeof(lb_stage));
}

void lb_stage_free(lb_stage *stage)
{
    if (!stage) return;
    for (size_t i = 0; i < stage->n; i++) free(stage->rows[i].bytes);
    free(stage->rows);
    free(stage->slots);
    free(stage);
}

/* The slot of the digest, or the free one where it belongs. */
static uint32_t *slot_of(const lb_stage *stage, lb_digest digest)
{
    size_t i = (size_t)digest.lo;
    for (;; i++) {
        uint32_t *slot = &stage->slots[i & (stage->n_slots - 1)];
        if (!*slot || lb_digest_equal(stage->rows[*slot - 1].digest, digest)) return slot;
    }
}

static held *find(const lb_stage *stage, lb_digest digest)
{
    const uint32_t row = stage->n_slots ? *slot_of(stage, digest) : 0;
    return row ? &stage->rows[row - 1] : NULL;
}

bool lb_stage_has(const lb_stage *stage, lb_digest digest)
{
    const held *row = find(stage, digest);
    return row && row->bytes;
}

static bool grow(lb_stage *stage)
{
    const size_t room = stage->room ? 2 * stage->room : 256;
    held *rows = realloc(stage->rows, room * sizeof *rows);
    if (!rows) return false;
    stage->rows = rows;
    uint32_t *slots = calloc(2 * room, sizeof *slots);
    if (!slots) return false;
    free(stage->slots);
    stage->slots = slots;
    stage->n_slots = 2 * room;
    stage->room = room;
    for (size_t i = 0; i < stage->n; i++) *slot_of(stage, rows[i].digest) = (uint32_t)i + 1;
    return true;
}

void lb_stage_lower(lb_stage *stage, lb_digest digest, lb_level level)
{
    held *row = find(stage, digest);
    if (!row || !row->bytes || level >= row->level) return;
    stage->bytes[row->level] -= row->size;
    stage->bytes[level] += row->size;
    row->level = level;
}

lb_status lb_stage_blob(lb_stage *stage, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                        lb_level level, bool *fresh, lb_err *err)
{
    held *row = find(stage, digest);
    *fresh = !row || !row->bytes;
    if (!*fresh) {
        lb_stage_lower(stage, digest, level);
        return LB_OK;
    }
    if (!row && stage->n == stage->room && !grow(stage))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory in the recorder");
    void *copy = malloc(size ? size : 1);
    if (!copy) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu bytes of a result", size);
    memcpy(copy, bytes, size);
    if (!row) {
        *slot_of(stage, digest) = (uint32_t)stage->n + 1;
        row = &stage->rows[stage->n++];
    }
    *row = (held){digest, copy, size, dtype, level};
    stage->bytes[level] += size;
    return LB_OK;
}

uint64_t lb_stage_bytes(const lb_stage *stage, lb_level level)
{
    return stage->bytes[level];
}

void lb_stage_drop(lb_stage *stage, lb_level above)
{
    for (size_t i = 0; i < stage->n; i++) {
        held *row = &stage->rows[i];
        if (row->level <= above || !row->bytes) continue;
        stage->bytes[row->level] -= row->size;
        free(row->bytes);
        row->bytes = NULL;
    }
}

lb_status lb_stage_each(const lb_stage *stage,
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
