/* See flight_ring.h. */
#include "flight/flight_ring.h"

#include "base/array.h"
#include "base/hash.h"
#include <lastbit/maintenance.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct blob {
    lb_digest digest;
    size_t size;
    lb_dtype dtype;
    uint32_t generation; /* the last that needs it */
    unsigned char bytes[];
} blob;

typedef struct step {
    lb_program *program;
    uint32_t generation;
} step;

struct lb_flight_ring {
    uint32_t steps; /* K */
    uint64_t max_bytes, bytes;
    uint32_t generation, in_generation;
    bool begun;
    blob **blobs;
    lb_hash by_digest; /* of them */
    step *kept;
    uint32_t n_kept;
    /* Files: of the generation at hand. */
    char *folder; /* NULL: none */
    int32_t rank;
    uint8_t sync;
    lb_writer *file;
    uint32_t file_generation;
    lb_err failed;
};

lb_flight_ring *lb_flight_ring_new(uint32_t steps, uint64_t max_bytes)
{
    lb_flight_ring *ring = calloc(1, sizeof *ring);
    if (!ring) return NULL;
    ring->steps = steps ? steps : 1;
    ring->max_bytes = max_bytes;
    return ring;
}

/* Forgets generations before `oldest`. */
static void drop(lb_flight_ring *ring, uint32_t oldest)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ring->n_kept; i++) {
        if (ring->kept[i].generation < oldest)
            lb_program_free(ring->kept[i].program);
        else
            ring->kept[n++] = ring->kept[i];
    }
    ring->n_kept = n;
    const uint32_t n_blobs = ring->by_digest.n;
    lb_hash_clear(&ring->by_digest);
    for (uint32_t i = 0; i < n_blobs; i++) {
        blob *blob = ring->blobs[i];
        if (blob->generation < oldest) {
            ring->bytes -= blob->size;
            free(blob);
        } else {
            ring->blobs[ring->by_digest.n] = blob;
            lb_hash_add(&ring->by_digest, blob->digest.lo, ring->by_digest.n); /* there is room: it held all of them */
        }
    }
}

void lb_flight_ring_free(lb_flight_ring *ring)
{
    if (!ring) return;
    drop(ring, UINT32_MAX);
    lb_writer_abandon(ring->file);
    free(ring->folder);
    free(ring->kept);
    free(ring->blobs);
    lb_hash_release(&ring->by_digest);
    free(ring);
}

bool lb_flight_ring_step(lb_flight_ring *ring)
{
    bool base = !ring->begun || ring->in_generation == ring->steps;
    if (base) {
        if (ring->begun) ring->generation++;
        ring->begun = true;
        ring->in_generation = 0;
        if (ring->generation >= 2) drop(ring, ring->generation - 1);
    }
    ring->in_generation++;
    return base;
}

static blob *find(const lb_flight_ring *ring, lb_digest digest)
{
    LB_HASH_EACH(row, &ring->by_digest, digest.lo)
    if (lb_digest_equal(ring->blobs[row]->digest, digest)) return ring->blobs[row];
    return NULL;
}

bool lb_flight_ring_has_blob(const lb_flight_ring *ring, lb_digest digest)
{
    return find(ring, digest) != NULL;
}

lb_status lb_flight_ring_blob(lb_flight_ring *ring, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                              lb_err *err)
{
    blob *held = find(ring, digest);
    if (held) {
        held->generation = ring->generation;
        return LB_OK;
    }
    if (ring->max_bytes && ring->bytes + size > ring->max_bytes)
        return lb_fail(err, LB_ERR_LIMIT, "the ring would need more than its %llu bytes",
                       (unsigned long long)ring->max_bytes);
    const uint32_t row = ring->by_digest.n;
    blob **blobs = lb_array_grow(ring->blobs, row, sizeof *blobs);
    if (blobs) ring->blobs = blobs;
    held = blobs ? malloc(sizeof *held + size) : NULL;
    if (!held || !lb_hash_add(&ring->by_digest, digest.lo, row)) {
        free(held);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu bytes of the ring", size);
    }
    held->digest = digest;
    held->size = size;
    held->dtype = dtype;
    held->generation = ring->generation;
    memcpy(held->bytes, bytes, size);
    blobs[row] = held;
    ring->bytes += size;
    return LB_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

bool lb_flight_ring_keep_files(lb_flight_ring *ring, const char *folder, int32_t rank, uint8_t sync)
{
    ring->rank = rank;
    ring->sync = sync;
    ring->folder = strdup(folder);
    return ring->folder;
}

const char *lb_ring_files_failed(const lb_flight_ring *ring)
{
    return ring->failed.status != LB_OK ? ring->failed.message : NULL;
}

static lb_status flush_step(lb_flight_ring *ring, const lb_program *program, lb_writer *writer, lb_err *err);

/* A generation begins with a base, so that its file needs no other; the one before the last goes. */
static lb_status open_file(lb_flight_ring *ring, lb_err *err)
{
    if (ring->file && ring->file_generation == ring->generation) return LB_OK;
    lb_writer_options options = LB_WRITER_OPTIONS_INIT;
    options.overwrite = true;
    options.sync = ring->sync;
    lb_writer_abandon(ring->file);
    ring->file = NULL;
    char *path = lb_ring_file_path(ring->folder, ring->rank, ring->generation);
    char *old = ring->generation >= 2 ? lb_ring_file_path(ring->folder, ring->rank, ring->generation - 2) : NULL;
    const lb_status status =
        path ? lb_writer_open(path, &options, &ring->file, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    ring->file_generation = ring->generation;
    if (old) unlink(old);
    free(path);
    free(old);
    return status;
}

/* Memory has it whatever happens here. */
static void write_file(lb_flight_ring *ring, const lb_program *program)
{
    if (!ring->folder || ring->failed.status != LB_OK) return;
    lb_err err = LB_ERR_INIT;
    lb_status status = open_file(ring, &err);
    if (status == LB_OK) status = flush_step(ring, program, ring->file, &err);
    if (status == LB_OK) return;
    lb_writer_abandon(ring->file);
    ring->file = NULL;
    ring->failed = err;
    lb_ring_files_remove(ring->folder, ring->rank); /* a window with a hole, on a disk that may be full */
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

void lb_flight_ring_drop_step(lb_flight_ring *ring)
{
    drop(ring, UINT32_MAX);
    if (ring->folder) lb_ring_files_remove(ring->folder, ring->rank);
    ring->generation++;
    ring->in_generation = 1;
}

lb_status lb_flight_ring_program(lb_flight_ring *ring, lb_program *program, lb_err *err)
{
    step *kept = lb_array_grow(ring->kept, ring->n_kept, sizeof kept[0]);
    if (!kept) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    ring->kept = kept;
    ring->kept[ring->n_kept++] = (step){program, ring->generation};
    write_file(ring, program);
    return LB_OK;
}

static lb_status flush_step(lb_flight_ring *ring, const lb_program *program, lb_writer *writer, lb_err *err)
{
    for (uint32_t v = 0; v < program->n_values; v++) {
        const lb_value *value = &program->values[v];
        blob *blob = value->flags & LB_VALUE_KEPT ? find(ring, value->blob) : NULL;
        if (blob) LB_TRY(lb_writer_blob(writer, blob->digest, blob->dtype, blob->bytes, blob->size, err));
    }
    LB_TRY(lb_writer_program(writer, program, err));
    return lb_writer_commit(writer, err);
}

lb_status lb_flight_ring_flush(lb_flight_ring *ring, lb_writer *writer, lb_err *err)
{
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < ring->n_kept && status == LB_OK; i++)
        status = flush_step(ring, ring->kept[i].program, writer, err);
    drop(ring, UINT32_MAX);
    ring->begun = false;
    if (status == LB_OK && ring->folder) {
        lb_writer_abandon(ring->file);
        ring->file = NULL;
        lb_ring_files_remove(ring->folder, ring->rank);
    }
    return status;
}

uint64_t lb_flight_ring_bytes(const lb_flight_ring *ring)
{
    return ring->bytes;
}
