/* Captures made on the spot, for the tests of readers and commands: every dtype, sizes on both sides of every border,
 * several ranks and steps, all of it predictable from (rank, step, k). */
#ifndef LB_TESTS_CAPTURE_SAMPLE_H
#define LB_TESTS_CAPTURE_SAMPLE_H
#include "program_sample.h"

#include <lastbit/archive.h>
#include <stdio.h>
#include <sys/stat.h>

/* Numbers of elements a value takes in turn; with 1 to 16 bytes each they cross 64, 16384 and 65536. */
static const int64_t sample_sizes[] = {1, 3, 16, 100, 4096, 5000, 20000};

static inline unsigned char sample_byte(unsigned seed, size_t i)
{
    return (unsigned char)(seed * 37 + i * 13 + (i >> 9));
}

/* One value as a source of `p`, its bytes stored. Values of step-independent seeds are equal across steps: stored
 * once. */
static inline lb_status sample_source(lb_writer *w, lb_program *p, lb_dtype dtype, unsigned seed, int64_t n,
                                      const char *name, lb_err *err)
{
    size_t size = lb_dtype_bytes(dtype, (size_t)n);
    unsigned char *bytes = malloc(size + 1);
    for (size_t i = 0; i < size; i++) bytes[i] = dtype == LB_BOOL ? sample_byte(seed, i) & 1 : sample_byte(seed, i);
    lb_value v;
    memset(&v, 0, sizeof v);
    v.storage = (int64_t)p->n_values + 1;
    v.layout = lb_layout_contiguous(1, &n);
    v.dtype = dtype;
    v.name = lb_program_string(p, name);
    v.flags = LB_VALUE_SOURCE | LB_VALUE_KEPT | LB_VALUE_PARAMETER;
    v.source = LB_SOURCE_PARAMETER;
    v.blob = lb_digest_bytes(bytes, size);
    lb_tensor t = {bytes, dtype, v.layout};
    v.logical = lb_digest_tensor(&t);
    lb_statistics s = lb_statistics_of(&t);
    v.statistics = lb_program_add_statistics(p, &s);
    uint32_t row = lb_program_add_value(p, &v);
    sample_source_op(p, row);
    lb_status status = lb_writer_blob(w, v.blob, dtype, bytes, size, err);
    free(bytes);
    return status;
}

/* A step: the sample program and one source of every dtype. */
static inline lb_status sample_step(lb_writer *w, int32_t rank, int64_t step, lb_err *err)
{
    float data[6] = {1.5f, -2, 0, (float)rank, (float)step, 1e-3f};
    lb_program *p = sample_program(step, rank, data);
    lb_status status = lb_writer_blob(w, lb_digest_bytes(data, 24), LB_F32, data, 24, err);
    if (status == LB_OK) status = lb_writer_blob(w, lb_digest_bytes(data + 1, 16), LB_F32, data + 1, 16, err);
    for (lb_dtype dtype = 1; dtype < LB_DTYPE_COUNT && status == LB_OK; dtype++) {
        char name[40];
        snprintf(name, sizeof name, "source.%s", lb_dtype_name(dtype));
        unsigned seed = dtype % 2 ? dtype : (unsigned)(dtype + 100 * rank + 1000 * step);
        status = sample_source(w, p, dtype, seed, sample_sizes[(size_t)dtype % 7], name, err);
    }
    if (status == LB_OK) status = lb_writer_program(w, p, err);
    lb_program_free(p);
    return status == LB_OK ? lb_writer_commit(w, err) : status;
}

/* A folder of `ranks` archives of `steps` steps. `close` false: as after a kill. */
static inline lb_status sample_capture(const char *folder, int32_t ranks, int64_t steps, bool close, lb_err *err)
{
    mkdir(folder, 0700);
    for (int32_t rank = 0; rank < ranks; rank++) {
        char *path = lb_capture_archive_path(folder, rank), table[80];
        lb_writer *w;
        lb_status status = lb_writer_open(path, NULL, &w, err);
        free(path);
        if (status != LB_OK) return status;
        for (int64_t step = 0; step < steps && status == LB_OK; step++) status = sample_step(w, rank, step, err);
        snprintf(table, sizeof table, "{\"rank\":%d,\"levels\":[\"stats\",null,2.5]}", (int)rank);
        if (status == LB_OK) status = lb_writer_table(w, "receipt", table, err);
        if (status == LB_OK) status = lb_writer_commit(w, err);
        if (close && status == LB_OK)
            status = lb_writer_close(w, err);
        else
            lb_writer_abandon(w);
        if (status != LB_OK) return status;
    }
    return LB_OK;
}

#endif
