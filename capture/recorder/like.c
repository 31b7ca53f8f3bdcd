/* See like.h. */
#include "recorder/like.h"

#include <lastbit/archive.h>
#include "base/array.h"
#include "base/hash.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A place in a program: the hash of what it is, and in which of several. */
typedef struct place {
    uint64_t hash;
    uint32_t count; /* ops of this kind so far; rows of `others` have one per op instead */
    uint8_t liking;
} place;

typedef struct places {
    place *rows;
    lb_hash by_hash;
} places;

struct lb_like {
    lb_capture *capture;
    int32_t rank;
    int64_t *steps;
    uint32_t n_steps;
    places others, counts; /* ops and layers of the other program; ops of ours, by kind */
};

static lb_status no_memory(lb_err *err)
{
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for what another capture kept");
}

static place *find(const places *set, uint64_t hash)
{
    LB_HASH_EACH(row, &set->by_hash, hash)
    if (set->rows[row].hash == hash) return &set->rows[row];
    return NULL;
}

/* The row of the hash, made when new; NULL when out of memory. */
static place *take(places *set, uint64_t hash)
{
    place *known = find(set, hash), *grown;
    const uint32_t n = set->by_hash.n;
    if (known) return known;
    if (!(grown = lb_array_grow(set->rows, n, sizeof *grown))) return NULL;
    set->rows = grown;
    grown[n] = (place){.hash = hash};
    return lb_hash_add(&set->by_hash, hash, n) ? &grown[n] : NULL;
}

static void clear(places *set)
{
    lb_hash_clear(&set->by_hash);
}

static void release(places *set)
{
    free(set->rows);
    lb_hash_release(&set->by_hash);
}

static uint64_t hash_of(uint64_t seed, const char *layer, const char *op)
{
    return XXH3_64bits_withSeed(op, strlen(op), XXH3_64bits_withSeed(layer, strlen(layer), seed));
}

enum { LAYER_SEED = 1000 }; /* beyond all phases */

static uint64_t hash_of_one(uint64_t kind, uint32_t count)
{
    return XXH3_64bits_withSeed(&count, sizeof count, kind);
}

lb_status lb_like_open(const char *path, int32_t rank, lb_like **out, lb_err *err)
{
    lb_like *like = *out = calloc(1, sizeof *like);
    const int32_t *ranks;
    const int64_t *steps;
    if (!like) return no_memory(err);
    lb_status status = lb_capture_open(path, &like->capture, err);
    const uint32_t n = status == LB_OK ? lb_capture_ranks(like->capture, &ranks) : 0;
    if (status == LB_OK && (!n || !lb_capture_steps(like->capture, &steps)))
        status = lb_fail(err, LB_ERR_INVALID, "%s holds no recorded step to be like", path);
    if (status == LB_OK) {
        like->rank = ranks[0];
        for (uint32_t r = 0; r < n; r++)
            if (ranks[r] == rank) like->rank = rank;
        like->n_steps = lb_capture_steps(like->capture, &steps);
        like->steps = malloc(like->n_steps * sizeof *steps);
        if (like->steps)
            memcpy(like->steps, steps, like->n_steps * sizeof *steps);
        else
            status = no_memory(err);
    }
    if (status != LB_OK) {
        lb_like_close(like);
        *out = NULL;
    }
    return status;
}

void lb_like_close(lb_like *like)
{
    if (!like) return;
    lb_capture_close(like->capture);
    free(like->steps);
    release(&like->others);
    release(&like->counts);
    free(like);
}

/* Versions of storages whose bytes a layer asks for. */
static uint64_t hash_of_version(const lb_value *value)
{
    return hash_of_one((uint64_t)value->storage + 1, value->version);
}

/* Below level ops what a layer takes or gives is kept for the layer's sake, and a source for its own. */
static bool is_kept(places *boundaries, const lb_program *program, uint32_t value)
{
    const lb_value *v = value == LB_NONE ? NULL : &program->values[value];
    if (!v || !(v->flags & LB_VALUE_KEPT)) return false;
    if (program->level == LB_LEVEL_OPS) return true;
    if (v->flags & LB_VALUE_SOURCE) return false;
    return !find(boundaries, hash_of_version(v));
}

static lb_status mark_boundaries(places *boundaries, const lb_program *program, lb_err *err)
{
    for (uint32_t b = 0; b < program->n_boundaries; b++)
        if (program->boundaries[b].value != LB_NONE &&
            !take(boundaries, hash_of_version(&program->values[program->boundaries[b].value])))
            return no_memory(err);
    return LB_OK;
}

static bool note(places *set, uint64_t hash, bool kept)
{
    place *row = take(set, hash);
    if (row && row->liking != LB_LIKING_KEPT) row->liking = kept ? LB_LIKING_KEPT : LB_LIKING_LEFT;
    return row != NULL;
}

static lb_status read_program(lb_like *like, const lb_program *program, lb_err *err)
{
    clear(&like->others);
    clear(&like->counts);
    places boundaries = {0};
    lb_status status = mark_boundaries(&boundaries, program, err);
    for (uint32_t i = 0; i < program->n_ops && status == LB_OK; i++) {
        const lb_op *op = &program->ops[i];
        bool kept = false;
        if (lb_op_is_source(program, op)) continue;
        for (uint32_t r = 0; r < op->results && !(op->flags & LB_OP_VIEW); r++)
            kept |= is_kept(&boundaries, program, lb_op_results(program, op)[r]);
        for (uint32_t w = 0; w < op->written; w++) kept |= is_kept(&boundaries, program, lb_op_written(program, op)[w]);
        const uint64_t kind = hash_of(op->phase, lb_op_layer(program, op), lb_op_name(program, op));
        place *count = take(&like->counts, kind);
        if (!count || !note(&like->others, hash_of_one(kind, count->count++), kept)) status = no_memory(err);
    }
    release(&boundaries);
    LB_TRY(status);
    clear(&like->counts);
    for (uint32_t b = 0; b < program->n_boundaries; b++) {
        const lb_boundary *row = &program->boundaries[b];
        const uint64_t hash = hash_of(LAYER_SEED, lb_program_text(program, program->scopes[row->scope].path), "");
        if (row->value != LB_NONE &&
            !note(&like->others, hash, lb_capture_has_value(like->capture, program, row->value)))
            return no_memory(err);
    }
    return LB_OK;
}

lb_status lb_like_step(lb_like *like, int64_t step, lb_level *level, lb_err *err)
{
    const lb_program *program = NULL;
    int64_t twin = like->steps[0];
    for (uint32_t i = 0; i < like->n_steps; i++)
        if (like->steps[i] <= step) twin = like->steps[i];
    LB_TRY(lb_capture_program(like->capture, like->rank, twin, &program, err));
    *level = (lb_level)program->level;
    return read_program(like, program, err);
}

lb_liking lb_like_op(lb_like *like, uint8_t phase, const char *layer, const char *op)
{
    const uint64_t kind = hash_of(phase, layer, op);
    place *count = take(&like->counts, kind);
    const place *row = count ? find(&like->others, hash_of_one(kind, count->count++)) : NULL;
    return row ? (lb_liking)row->liking : LB_LIKING_UNKNOWN;
}

lb_liking lb_like_layer(lb_like *like, const char *layer)
{
    const place *row = find(&like->others, hash_of(LAYER_SEED, layer, ""));
    return row ? (lb_liking)row->liking : LB_LIKING_UNKNOWN;
}
