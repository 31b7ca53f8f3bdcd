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
static void note_given(lb_write_queue *queue, lb_digest digest, size_t size)
{
    lb_digest_memory_add(&queue->given, digest, size);
}

bool lb_write_queue_has(lb_write_queue *queue, lb_digest digest)
{
    return lb_digest_memory_has(&queue->given, digest);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static lb_status put_staged(void *context, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                            lb_err *err)
{
    return lb_writer_blob(context, digest, dtype, bytes, size, err);
}

static lb_status write_record(const lb_write_queue *queue, const record *record, lb_err *err)
{
    switch (record->kind) {
    case BLOB:
        return lb_writer_blob(queue->writer, record->digest, record->dtype, queue->ring + record->first, record->size,
                              err);
    case STAGE: return lb_flight_stage_each(record->stage, put_staged, queue->writer, err);
    case PROGRAM: return lb_writer_program(queue->writer, record->program, err);
    case TABLE: return lb_writer_table(queue->writer, record->name, record->json, err);
    case COMMIT: return lb_writer_commit(queue->writer, err);
    case TURN: return lb_writer_turn(queue->writer, record->name, err);
    }
    return LB_OK;
}

static void drop_record(const record *record)
{
    lb_flight_stage_free(record->stage);
    lb_program_free(record->program);
    free(record->name);
    free(record->json);
}

static void *write_records(void *argument)
{
    lb_write_queue *queue = (lb_write_queue *)argument;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        while (queue->n_records == 0 && !queue->ending) pthread_cond_wait(&queue->wake, &queue->lock);
        if (queue->n_records == 0) break;
        const record record = queue->records[queue->first_record];
        const bool failed = queue->failure.status != LB_OK;
        pthread_mutex_unlock(&queue->lock);
        lb_err err = LB_ERR_INIT;
        if (!failed) write_record(queue, &record, &err);
        drop_record(&record);
        pthread_mutex_lock(&queue->lock);
        if (!failed && err.status != LB_OK) queue->failure = err;
        queue->first_record = (queue->first_record + 1) % MOST_RECORDS;
        queue->n_records--;
        queue->n_commits -= record.kind == COMMIT;
        if (record.kind == BLOB) {
            queue->n_blobs--;
            queue->tail = record.end;
        }
        pthread_cond_broadcast(&queue->moved);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

lb_write_queue *lb_write_queue_new(lb_writer *writer, size_t room_bytes)
{
    lb_write_queue *queue = calloc(1, sizeof *queue);
    unsigned char *ring = queue ? malloc(room_bytes) : NULL;
    if (!ring) {
        free(queue);
        return NULL;
    }
    queue->owner = getpid();
    queue->writer = writer;
    queue->ring = ring;
    queue->room = room_bytes;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->wake, NULL);
    pthread_cond_init(&queue->moved, NULL);
    if (!lb_thread_start(&queue->thread, "lastbit-write", write_records, queue)) {
        free(ring);
        free(queue);
        return NULL;
    }
    return queue;
}

bool lb_write_queue_free(lb_write_queue *queue)
{
    if (!queue) return true;
    if (queue->owner != getpid()) return false;
    pthread_mutex_lock(&queue->lock);
    queue->ending = true;
    pthread_cond_signal(&queue->wake);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->wake);
    pthread_cond_destroy(&queue->moved);
    free(queue->ring);
    lb_digest_memory_release(&queue->given);
    free(queue);
    return true;
}

static lb_status failure_of(const lb_write_queue *queue, lb_err *err)
{
    return queue->failure.status == LB_OK ? LB_OK : lb_fail(err, queue->failure.status, "%s", queue->failure.message);
}

/* A place for `size` bytes in one piece; false when there is none now. */
static bool place(lb_write_queue *queue, size_t size, size_t *first)
{
    if (queue->n_blobs == 0) queue->head = queue->tail = 0;
    const bool around = queue->n_blobs > 0 && queue->head <= queue->tail; /* what is taken goes around the end */
    if (around) {
        *first = queue->head;
        return queue->head + size <= queue->tail;
    }
    if (queue->head + size <= queue->room) {
        *first = queue->head;
        return true;
    }
    *first = 0;
    return size <= queue->tail;
}

/* With the lock held, as soon as the queue has room. */
static lb_status append(lb_write_queue *queue, const record *record, lb_err *err)
{
    while (queue->failure.status == LB_OK && queue->n_records == MOST_RECORDS)
        pthread_cond_wait(&queue->moved, &queue->lock);
    LB_TRY(failure_of(queue, err));
    queue->records[(queue->first_record + queue->n_records) % MOST_RECORDS] = *record;
    queue->n_records++;
    queue->n_blobs += record->kind == BLOB;
    queue->n_commits += record->kind == COMMIT;
    pthread_cond_signal(&queue->wake);
    return LB_OK;
}

lb_status lb_write_queue_blob(lb_write_queue *queue, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                              lb_err *err)
{
    if (lb_write_queue_has(queue, digest)) return LB_OK;
    note_given(queue, digest, size);
    if (size > queue->room) {
        LB_TRY(lb_write_queue_drain(queue, err));
        return lb_writer_blob(queue->writer, digest, dtype, bytes, size, err);
    }
    record record = {.kind = BLOB, .digest = digest, .dtype = dtype, .size = size};
    pthread_mutex_lock(&queue->lock);
    while (queue->failure.status == LB_OK && !place(queue, size, &record.first))
        pthread_cond_wait(&queue->moved, &queue->lock);
    lb_status status = failure_of(queue, err);
    pthread_mutex_unlock(&queue->lock);
    if (status != LB_OK) return status;
    memcpy(queue->ring + record.first, bytes, size); /* no other thread looks at this place yet */
    record.end = record.first + size;
    pthread_mutex_lock(&queue->lock);
    queue->head = record.end;
    status = append(queue, &record, err);
    pthread_mutex_unlock(&queue->lock);
    return status;
}

static lb_status note_staged(void *context, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                             lb_err *err)
{
    (void)dtype, (void)bytes, (void)err;
    note_given(context, digest, size);
    return LB_OK;
}

lb_status lb_write_queue_stage(lb_write_queue *queue, lb_flight_stage *stage, lb_err *err)
{
    lb_flight_stage_each(stage, note_staged, queue, NULL);
    const record record = {.kind = STAGE, .stage = stage};
    pthread_mutex_lock(&queue->lock);
    const lb_status status = append(queue, &record, err);
    pthread_mutex_unlock(&queue->lock);
    if (status != LB_OK) drop_record(&record);
    return status;
}

lb_status lb_write_queue_program(lb_write_queue *queue, lb_program *program, lb_err *err)
{
    const record record = {.kind = PROGRAM, .program = program};
    pthread_mutex_lock(&queue->lock);
    lb_status status = append(queue, &record, err);
    pthread_mutex_unlock(&queue->lock);
    if (status != LB_OK) drop_record(&record);
    return status;
}

lb_status lb_write_queue_table(lb_write_queue *queue, const char *name, const char *json, lb_err *err)
{
    const record record = {.kind = TABLE, .name = strdup(name), .json = strdup(json)};
    lb_status status = record.name && record.json ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "no memory for table %s", name);
    pthread_mutex_lock(&queue->lock);
    if (status == LB_OK) status = append(queue, &record, err);
    pthread_mutex_unlock(&queue->lock);
    if (status != LB_OK) drop_record(&record);
    return status;
}

lb_status lb_write_queue_commit(lb_write_queue *queue, lb_err *err)
{
    const record record = {.kind = COMMIT};
    lb_digest_memory_turn(&queue->given);
    pthread_mutex_lock(&queue->lock);
    while (queue->failure.status == LB_OK && queue->n_commits > 0) pthread_cond_wait(&queue->moved, &queue->lock);
    lb_status status = append(queue, &record, err);
    pthread_mutex_unlock(&queue->lock);
    return status;
}

lb_status lb_write_queue_turn(lb_write_queue *queue, const char *next, lb_err *err)
{
    const record record = {.kind = TURN, .name = strdup(next)};
    if (!record.name) return lb_fail(err, LB_ERR_NOMEM, "no memory for the name of an archive");
    lb_digest_memory_release(&queue->given); /* the next archive holds none of them */
    memset(&queue->given, 0, sizeof queue->given);
    pthread_mutex_lock(&queue->lock);
    const lb_status status = append(queue, &record, err);
    pthread_mutex_unlock(&queue->lock);
    if (status != LB_OK) drop_record(&record);
    return status;
}

lb_status lb_write_queue_drain(lb_write_queue *queue, lb_err *err)
{
    if (!queue) return LB_OK;
    pthread_mutex_lock(&queue->lock);
    while (queue->n_records > 0) pthread_cond_wait(&queue->moved, &queue->lock);
    lb_status status = failure_of(queue, err);
    pthread_mutex_unlock(&queue->lock);
    return status;
}
