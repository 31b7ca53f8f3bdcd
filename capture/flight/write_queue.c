/* See write_queue.h. Blobs lie in the ring of bytes in the order of the queue: what is written first leaves first. */
#include "flight/write_queue.h"

#include "measure/thread.h"

#include "base/digest_set.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_RECORDS 1024

typedef enum kind { BLOB, STAGE, PROGRAM, TABLE, COMMIT, TURN } kind;

typedef struct record {
    kind kind;
    /* blob */
    lb_digest digest;
    lb_dtype dtype;
    size_t first, size, end; /* in the ring; end: where the next one may begin */
    /* stage, program, table, turn; ours */
    lb_flight_stage *stage;
    lb_program *program;
    char *name, *json;
} record;

struct lb_write_queue {
    pid_t owner;
    lb_writer *writer;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, moved;
    record records[MOST_RECORDS]; /* a ring too */
    size_t first_record, n_records, n_blobs, n_commits;
    unsigned char *ring;
    size_t room, head, tail; /* bytes [tail, head) are taken, around the end */
    bool ending;
    lb_err failure;
    lb_digest_memory given; /* the callers' alone */
};

/* ---- what was given ---------------------------------------------------------------------------------------------- */

/* Without memory it is forgotten: the writer knows it still. */
static void note_given(lb_write_queue *s, lb_digest digest, size_t size)
{
    lb_digest_memory_add(&s->given, digest, size);
}

bool lb_write_queue_has(lb_write_queue *s, lb_digest digest)
{
    return lb_digest_memory_has(&s->given, digest);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static lb_status put_staged(void *context, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                            lb_err *err)
{
    return lb_writer_blob(context, digest, dtype, bytes, size, err);
}

static lb_status write_record(const lb_write_queue *s, const record *r, lb_err *err)
{
    switch (r->kind) {
    case BLOB: return lb_writer_blob(s->writer, r->digest, r->dtype, s->ring + r->first, r->size, err);
    case STAGE: return lb_flight_stage_each(r->stage, put_staged, s->writer, err);
    case PROGRAM: return lb_writer_program(s->writer, r->program, err);
    case TABLE: return lb_writer_table(s->writer, r->name, r->json, err);
    case COMMIT: return lb_writer_commit(s->writer, err);
    case TURN: return lb_writer_turn(s->writer, r->name, err);
    }
    return LB_OK;
}

static void drop_record(const record *r)
{
    lb_flight_stage_free(r->stage);
    lb_program_free(r->program);
    free(r->name);
    free(r->json);
}

static void *write_records(void *argument)
{
    lb_write_queue *s = (lb_write_queue *)argument;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->n_records == 0 && !s->ending) pthread_cond_wait(&s->wake, &s->lock);
        if (s->n_records == 0) break;
        const record r = s->records[s->first_record];
        const bool failed = s->failure.status != LB_OK;
        pthread_mutex_unlock(&s->lock);
        lb_err err = LB_ERR_INIT;
        if (!failed) write_record(s, &r, &err);
        drop_record(&r);
        pthread_mutex_lock(&s->lock);
        if (!failed && err.status != LB_OK) s->failure = err;
        s->first_record = (s->first_record + 1) % MOST_RECORDS;
        s->n_records--;
        s->n_commits -= r.kind == COMMIT;
        if (r.kind == BLOB) {
            s->n_blobs--;
            s->tail = r.end;
        }
        pthread_cond_broadcast(&s->moved);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

lb_write_queue *lb_write_queue_new(lb_writer *writer, size_t room_bytes)
{
    lb_write_queue *s = calloc(1, sizeof *s);
    unsigned char *ring = s ? malloc(room_bytes) : NULL;
    if (!ring) {
        free(s);
        return NULL;
    }
    s->owner = getpid();
    s->writer = writer;
    s->ring = ring;
    s->room = room_bytes;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->moved, NULL);
    if (!lb_thread_start(&s->thread, "lastbit-write", write_records, s)) {
        free(ring);
        free(s);
        return NULL;
    }
    return s;
}

bool lb_write_queue_free(lb_write_queue *s)
{
    if (!s) return true;
    if (s->owner != getpid()) return false;
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->moved);
    free(s->ring);
    lb_digest_memory_release(&s->given);
    free(s);
    return true;
}

static lb_status failure_of(const lb_write_queue *s, lb_err *err)
{
    return s->failure.status == LB_OK ? LB_OK : lb_fail(err, s->failure.status, "%s", s->failure.message);
}

/* A place for `size` bytes in one piece; false when there is none now. */
static bool place(lb_write_queue *s, size_t size, size_t *first)
{
    if (s->n_blobs == 0) s->head = s->tail = 0;
    const bool around = s->n_blobs > 0 && s->head <= s->tail; /* what is taken goes around the end */
    if (around) {
        *first = s->head;
        return s->head + size <= s->tail;
    }
    if (s->head + size <= s->room) {
        *first = s->head;
        return true;
    }
    *first = 0;
    return size <= s->tail;
}

/* With the lock held, as soon as the queue has room. */
static lb_status append(lb_write_queue *s, const record *r, lb_err *err)
{
    while (s->failure.status == LB_OK && s->n_records == MOST_RECORDS) pthread_cond_wait(&s->moved, &s->lock);
    LB_TRY(failure_of(s, err));
    s->records[(s->first_record + s->n_records) % MOST_RECORDS] = *r;
    s->n_records++;
    s->n_blobs += r->kind == BLOB;
    s->n_commits += r->kind == COMMIT;
    pthread_cond_signal(&s->wake);
    return LB_OK;
}

lb_status lb_write_queue_blob(lb_write_queue *s, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                              lb_err *err)
{
    if (lb_write_queue_has(s, digest)) return LB_OK;
    note_given(s, digest, size);
    if (size > s->room) {
        LB_TRY(lb_write_queue_drain(s, err));
        return lb_writer_blob(s->writer, digest, dtype, bytes, size, err);
    }
    record r = {.kind = BLOB, .digest = digest, .dtype = dtype, .size = size};
    pthread_mutex_lock(&s->lock);
    while (s->failure.status == LB_OK && !place(s, size, &r.first)) pthread_cond_wait(&s->moved, &s->lock);
    lb_status status = failure_of(s, err);
    pthread_mutex_unlock(&s->lock);
    if (status != LB_OK) return status;
    memcpy(s->ring + r.first, bytes, size); /* no other thread looks at this place yet */
    r.end = r.first + size;
    pthread_mutex_lock(&s->lock);
    s->head = r.end;
    status = append(s, &r, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static lb_status note_staged(void *context, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                             lb_err *err)
{
    (void)dtype, (void)bytes, (void)err;
    note_given(context, digest, size);
    return LB_OK;
}

lb_status lb_write_queue_stage(lb_write_queue *s, lb_flight_stage *stage, lb_err *err)
{
    lb_flight_stage_each(stage, note_staged, s, NULL);
    const record r = {.kind = STAGE, .stage = stage};
    pthread_mutex_lock(&s->lock);
    const lb_status status = append(s, &r, err);
    pthread_mutex_unlock(&s->lock);
    if (status != LB_OK) drop_record(&r);
    return status;
}

lb_status lb_write_queue_program(lb_write_queue *s, lb_program *program, lb_err *err)
{
    const record r = {.kind = PROGRAM, .program = program};
    pthread_mutex_lock(&s->lock);
    lb_status status = append(s, &r, err);
    pthread_mutex_unlock(&s->lock);
    if (status != LB_OK) drop_record(&r);
    return status;
}

lb_status lb_write_queue_table(lb_write_queue *s, const char *name, const char *json, lb_err *err)
{
    const record r = {.kind = TABLE, .name = strdup(name), .json = strdup(json)};
    lb_status status = r.name && r.json ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "no memory for table %s", name);
    pthread_mutex_lock(&s->lock);
    if (status == LB_OK) status = append(s, &r, err);
    pthread_mutex_unlock(&s->lock);
    if (status != LB_OK) drop_record(&r);
    return status;
}

lb_status lb_write_queue_commit(lb_write_queue *s, lb_err *err)
{
    const record r = {.kind = COMMIT};
    lb_digest_memory_turn(&s->given);
    pthread_mutex_lock(&s->lock);
    while (s->failure.status == LB_OK && s->n_commits > 0) pthread_cond_wait(&s->moved, &s->lock);
    lb_status status = append(s, &r, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

lb_status lb_write_queue_turn(lb_write_queue *s, const char *next, lb_err *err)
{
    const record r = {.kind = TURN, .name = strdup(next)};
    if (!r.name) return lb_fail(err, LB_ERR_NOMEM, "no memory for the name of an archive");
    lb_digest_memory_release(&s->given); /* the next archive holds none of them */
    memset(&s->given, 0, sizeof s->given);
    pthread_mutex_lock(&s->lock);
    const lb_status status = append(s, &r, err);
    pthread_mutex_unlock(&s->lock);
    if (status != LB_OK) drop_record(&r);
    return status;
}

lb_status lb_write_queue_drain(lb_write_queue *s, lb_err *err)
{
    if (!s) return LB_OK;
    pthread_mutex_lock(&s->lock);
    while (s->n_records > 0) pthread_cond_wait(&s->moved, &s->lock);
    lb_status status = failure_of(s, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}
