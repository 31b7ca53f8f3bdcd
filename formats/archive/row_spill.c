/* See row_spill.h. The file is a row of chunks: two counts, then the rows as they lie in memory. */
#include "archive/row_spill.h"

#include "base/array.h"
#include <lastbit/output.h>

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

enum { MANY_ROWS = 4096 };

typedef struct chunk {
    uint64_t n_blobs, n_programs;
} chunk;

static bool put(lb_row_spill *spill, const void *bytes, size_t size, uint64_t *end)
{
    for (const char *at = bytes; size > 0;) {
        const ssize_t done = pwrite(fileno(spill->file), at, size, (off_t)*end);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done, size -= (size_t)done, *end += (uint64_t)done;
    }
    return true;
}

static bool get(const lb_row_spill *spill, void *bytes, size_t size, uint64_t *from)
{
    for (char *at = bytes; size > 0;) {
        const ssize_t done = pread(fileno(spill->file), at, size, (off_t)*from);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done, size -= (size_t)done, *from += (uint64_t)done;
    }
    return true;
}

void lb_row_spill_out(lb_row_spill *spill, const char *path, lb_index_rows *rows)
{
    if (spill->refused || rows->n_packs || rows->n_blobs + rows->n_programs < MANY_ROWS) return;
    if (!spill->file) spill->file = lb_output_scratch(path, NULL);
    const chunk head = {rows->n_blobs, rows->n_programs};
    uint64_t end = spill->end;
    if (!spill->file || !put(spill, &head, sizeof head, &end) ||
        !put(spill, rows->blobs, rows->n_blobs * sizeof *rows->blobs, &end) ||
        !put(spill, rows->programs, rows->n_programs * sizeof *rows->programs, &end)) {
        spill->refused = true; /* what was spilled before is still there */
        return;
    }
    spill->end = end;
    spill->n_blobs += rows->n_blobs;
    spill->n_programs += rows->n_programs;
    free(rows->blobs);
    free(rows->programs);
    rows->blobs = NULL, rows->programs = NULL;
    rows->n_blobs = rows->n_programs = 0;
}

/* `rows` with room for `more` rows before its `n`, which move up. */
static void *make_room(void *rows, uint64_t n, uint64_t more, size_t width)
{
    char *grown = lb_array_reserve(rows, n, more, width);
    if (grown && n) memmove(grown + more * width, grown, n * width);
    return grown;
}

lb_status lb_row_spill_back(lb_row_spill *spill, const char *path, lb_index_rows *rows, lb_err *err)
{
    if (spill->end == 0) return LB_OK;
    if (rows->n_programs + spill->n_programs > UINT32_MAX)
        return lb_fail(err, LB_ERR_LIMIT, "%s: %" PRIu64 " programs", path, spill->n_programs);
    lb_blob_row *blobs = make_room(rows->blobs, rows->n_blobs, spill->n_blobs, sizeof *blobs);
    if (blobs) rows->blobs = blobs;
    lb_segment_row *programs = make_room(rows->programs, rows->n_programs, spill->n_programs, sizeof *programs);
    if (programs) rows->programs = programs;
    if (!blobs || !programs) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory for its index", path);
    uint64_t at = 0;
    while (at < spill->end) {
        chunk head;
        if (!get(spill, &head, sizeof head, &at) || !get(spill, blobs, head.n_blobs * sizeof *blobs, &at) ||
            !get(spill, programs, head.n_programs * sizeof *programs, &at))
            return lb_fail(err, LB_ERR_IO, "%s: rows of its index cannot be read back: %s", path,
                           errno ? strerror(errno) : "they end early");
        blobs += head.n_blobs, programs += head.n_programs;
    }
    rows->n_blobs += spill->n_blobs;
    rows->n_programs += (uint32_t)spill->n_programs;
    lb_row_spill_close(spill);
    return LB_OK;
}

void lb_row_spill_close(lb_row_spill *spill)
{
    if (spill->file) fclose(spill->file);
    *spill = (lb_row_spill)LB_ROW_SPILL_INIT;
}
