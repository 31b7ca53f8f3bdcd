/* What a capture or a checkpoint comes to when all of it is read, and what writes one: for tests in which the system
 * refuses something on the way. */
#ifndef LB_TESTS_READINGS_H
#define LB_TESTS_READINGS_H

#include "capture_sample.h"
#include "scratch_folder.h"

#include <lastbit/checkpoint.h>
#include <lastbit/maintenance.h>

#include <dirent.h>
#include <fcntl.h>

/* What a reading came to: a digest of all that it saw. */
typedef struct reading {
    lb_status status;
    bool refused; /* memory or a call, somewhere on the way */
    lb_digest seen;
    lb_err err;
} reading;

static inline void see(reading *r, const void *bytes, size_t n)
{
    const lb_digest parts[2] = {r->seen, lb_digest_bytes(bytes, n)};
    r->seen = lb_digest_bytes(parts, sizeof parts);
}

static inline void see_status(reading *r, lb_status status)
{
    r->refused |= status == LB_ERR_NOMEM || status == LB_ERR_IO;
    see(r, &status, sizeof status);
}

static inline void see_tensor(reading *r, const lb_tensor *tensor)
{
    const lb_digest digest = lb_digest_tensor(tensor);
    see(r, &digest, sizeof digest);
}

static inline void see_step(reading *r, lb_capture *c, int32_t rank, int64_t step)
{
    const lb_program *p = NULL;
    lb_status status = lb_capture_program(c, rank, step, &p, NULL);
    see_status(r, status);
    for (uint32_t v = 0; status == LB_OK && v < p->n_values; v++) {
        lb_tensor t;
        const lb_status found = lb_capture_value(c, p, v, &t, NULL);
        see_status(r, found);
        if (found == LB_OK) see_tensor(r, &t);
    }
}

static inline void read_capture(const char *path, reading *r)
{
    lb_capture *c;
    const int32_t *ranks;
    const int64_t *steps;
    r->status = lb_capture_open(path, &c, &r->err);
    if (r->status != LB_OK) return;
    const uint32_t n_ranks = lb_capture_ranks(c, &ranks), n_steps = lb_capture_steps(c, &steps);
    see(r, &n_ranks, sizeof n_ranks);
    for (uint32_t i = 0; i < n_ranks; i++)
        for (uint32_t k = 0; k < n_steps; k++) see_step(r, c, ranks[i], steps[k]);
    const lb_status refusal = lb_capture_refusal(c, NULL);
    assert_int_equal(refusal,
                     r->refused ? LB_ERR_NOMEM : LB_OK); /* a caller that asked without a report is told at last */
    assert_int_equal(lb_capture_refusal(c, NULL), LB_OK);
    lb_capture_close(c);
}

static inline void read_checkpoint(const char *path, reading *r)
{
    lb_checkpoint *c;
    r->status = lb_checkpoint_open(path, &c, &r->err);
    if (r->status != LB_OK) return;
    see(r, &c->n_pieces, sizeof c->n_pieces);
    for (uint32_t i = 0; i < c->n_pieces; i++) see_tensor(r, &c->pieces[i].tensor);
    for (uint32_t i = 0; i < c->n_faults; i++) see(r, c->faults[i].message, strlen(c->faults[i].message));
    lb_checkpoint_close(c);
}

static inline void see_damage(void *context, const lb_damage *damage)
{
    see((reading *)context, damage->message, strlen(damage->message));
}

static inline void verify_capture(const char *path, reading *r)
{
    lb_verification v;
    r->status = lb_capture_verify(path, see_damage, r, &v, &r->err);
    if (r->status == LB_OK) see(r, &v.damages, sizeof v.damages);
}

typedef void (*reader)(const char *path, reading *r);

static inline void write_capture(const char *path, int32_t ranks)
{
    lb_err err = LB_ERR_INIT;
    for (int32_t rank = 0; rank < ranks; rank++) {
        lb_writer *w;
        char file[200];
        lb_writer_options options = LB_WRITER_OPTIONS_INIT;
        mkdir(path, 0700);
        snprintf(file, sizeof file, "%s/rank-%05d.tar", path, rank);
        assert_int_equal(lb_writer_open(file, &options, &w, &err), LB_OK);
        for (int64_t step = 0; step < 2; step++) assert_int_equal(sample_step(w, rank, step, &err), LB_OK);
        assert_int_equal(lb_writer_table(w, "receipt", "{\"argv\":[\"a\"]}", &err), LB_OK);
        assert_int_equal(lb_writer_close(w, &err), LB_OK);
    }
}

static inline bool is_there(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0;
}

/* Names in the scratch folder: a draft that stayed would be one more. */
static inline int count_names(void)
{
    int n = 0;
    DIR *folder = opendir(scratch);
    assert_non_null(folder);
    while (readdir(folder)) n++;
    closedir(folder);
    return n;
}

static inline lb_status pack(const char *out, lb_err *err)
{
    lb_pack_options options = LB_PACK_OPTIONS_INIT;
    lb_packing packed;
    return lb_capture_pack(in_scratch("run.lb"), out, &options, &packed, err);
}

static inline lb_status strip(const char *out, lb_err *err)
{
    lb_pack_options options = LB_PACK_OPTIONS_INIT;
    lb_packing packed;
    options.strip = LB_STRIP_DATA | LB_STRIP_PARAMS | LB_STRIP_RECEIPT;
    return lb_capture_pack(in_scratch("run.lb"), out, &options, &packed, err);
}

static inline bool wants_first(void *context, int32_t rank)
{
    (void)context;
    return rank == 0;
}

static inline lb_status gather(const char *out, lb_err *err)
{
    const char *captures[] = {in_scratch("run.lb")};
    lb_gather_options options = LB_GATHER_OPTIONS_INIT;
    lb_gathering gathered;
    options.want_rank = wants_first;
    return lb_capture_gather(captures, 1, out, &options, &gathered, err);
}

static inline lb_status recover(const char *out, lb_err *err)
{
    lb_recovery recovered;
    return lb_capture_recover(in_scratch("run.lb"), out, &recovered, err);
}

static inline void copy_kept(const char *kept, const char *name)
{
    char path[1400];
    size_t size = 0;
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", LB_SOURCE_DIR, kept);
    char *bytes = read_whole(path, &size);
    assert_non_null(bytes);
    write_whole(in_scratch(name), bytes, size);
    free(bytes);
}

static inline void write_shard(const char *name)
{
    char file[30], bytes[128];
    const int length = snprintf(bytes + 8, sizeof bytes - 8,
                                "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
    memcpy(bytes, &(uint64_t){(uint64_t)length}, 8);
    memset(bytes + 8 + length, 0, 4);
    snprintf(file, sizeof file, "%s.safetensors", name);
    write_whole(in_scratch(file), bytes, (size_t)length + 12);
}

#endif
