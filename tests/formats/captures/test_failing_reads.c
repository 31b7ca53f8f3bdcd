/* Captures and checkpoints of every format on a host without memory: each allocation fails in turn, alone and with
 * all after it. What is read then is what is read otherwise, or LB_ERR_NOMEM; nothing is taken for missing or for
 * damage. */
#include "capture_sample.h"
#include "cmocka_first.h"
#include "failing_memory.h"
#include "scratch_folder.h"

#include <lastbit/checkpoint.h>
#include <lastbit/maintenance.h>

#include <dirent.h>
#include <fcntl.h>

/* What a reading came to: a digest of all that it saw. */
typedef struct reading {
    lb_status status;
    bool refused; /* memory, somewhere on the way */
    lb_digest seen;
    lb_err err;
} reading;

static void see(reading *r, const void *bytes, size_t n)
{
    const lb_digest parts[2] = {r->seen, lb_digest_bytes(bytes, n)};
    r->seen = lb_digest_bytes(parts, sizeof parts);
}

static void see_status(reading *r, lb_status status)
{
    r->refused |= status == LB_ERR_NOMEM;
    see(r, &status, sizeof status);
}

static void see_tensor(reading *r, const lb_tensor *tensor)
{
    const lb_digest digest = lb_digest_tensor(tensor);
    see(r, &digest, sizeof digest);
}

static void see_step(reading *r, lb_capture *c, int32_t rank, int64_t step)
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

static void read_capture(const char *path, reading *r)
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

static void read_checkpoint(const char *path, reading *r)
{
    lb_checkpoint *c;
    r->status = lb_checkpoint_open(path, &c, &r->err);
    if (r->status != LB_OK) return;
    see(r, &c->n_pieces, sizeof c->n_pieces);
    for (uint32_t i = 0; i < c->n_pieces; i++) see_tensor(r, &c->pieces[i].tensor);
    for (uint32_t i = 0; i < c->n_faults; i++) see(r, c->faults[i].message, strlen(c->faults[i].message));
    lb_checkpoint_close(c);
}

static void see_damage(void *context, const lb_damage *damage)
{
    see((reading *)context, damage->message, strlen(damage->message));
}

static void verify_capture(const char *path, reading *r)
{
    lb_verification v;
    r->status = lb_capture_verify(path, see_damage, r, &v, &r->err);
    if (r->status == LB_OK) see(r, &v.damages, sizeof v.damages);
}

typedef void (*reader)(const char *path, reading *r);

/* Of many allocations each at the beginning, and some of all the others. */
static long next_call(long n)
{
    return n < 1000 ? n + 1 : n + 1 + n / 20;
}

static void fails_in_turn(const char *path, reader read)
{
    reading whole = {.status = LB_OK};
    read(path, &whole);
    assert_false(whole.refused);
    bool failed = true;
    for (long n = 1; failed; n = next_call(n)) {
        for (int for_good = 0; for_good < 2; for_good++) {
            reading now = {.status = LB_OK};
            fail_memory_until(n, for_good ? 1 << 30 : n);
            read(path, &now);
            failed = memory_failed();
            const bool same = now.status == whole.status && lb_digest_equal(now.seen, whole.seen);
            const bool refused = now.status == LB_ERR_NOMEM ? now.err.message[0] != 0 : now.refused;
            if (!same && !refused)
                print_error("%s: allocation %ld%s: %s: %s\n", path, n, for_good ? " and all after it" : "",
                            lb_status_name(now.status), now.err.message);
            assert_true(same || refused);
        }
    }
}

static void write_capture(const char *path, int32_t ranks)
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

static void captures_are_whole_or_refused(void **state)
{
    (void)state;
    if (!failing_memory) skip();
    lb_err err = LB_ERR_INIT;
    lb_pack_options options = LB_PACK_OPTIONS_INIT;
    lb_packing packed;
    write_capture(in_scratch("run.lb"), 2);
    assert_int_equal(lb_capture_pack(in_scratch("run.lb"), in_scratch("run.lbz"), &options, &packed, &err), LB_OK);
    static const reader readers[] = {read_capture, verify_capture};
    for (size_t i = 0; i < 2; i++) {
        fails_in_turn(in_scratch("run.lb"), readers[i]);
        fails_in_turn(in_scratch("run.lbz"), readers[i]);
    }
}

static bool is_there(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0;
}

/* Names in the scratch folder: a draft that stayed would be one more. */
static int count_names(void)
{
    int n = 0;
    DIR *folder = opendir(scratch);
    assert_non_null(folder);
    while (readdir(folder)) n++;
    closedir(folder);
    return n;
}

static lb_status pack(const char *out, lb_err *err)
{
    lb_pack_options options = LB_PACK_OPTIONS_INIT;
    lb_packing packed;
    return lb_capture_pack(in_scratch("run.lb"), out, &options, &packed, err);
}

static lb_status strip(const char *out, lb_err *err)
{
    lb_pack_options options = LB_PACK_OPTIONS_INIT;
    lb_packing packed;
    options.strip = LB_STRIP_DATA | LB_STRIP_PARAMS | LB_STRIP_RECEIPT;
    return lb_capture_pack(in_scratch("run.lb"), out, &options, &packed, err);
}

static bool wants_first(void *context, int32_t rank)
{
    (void)context;
    return rank == 0;
}

static lb_status gather(const char *out, lb_err *err)
{
    const char *captures[] = {in_scratch("run.lb")};
    lb_gather_options options = LB_GATHER_OPTIONS_INIT;
    lb_gathering gathered;
    options.want_rank = wants_first;
    return lb_capture_gather(captures, 1, out, &options, &gathered, err);
}

static lb_status recover(const char *out, lb_err *err)
{
    lb_recovery recovered;
    return lb_capture_recover(in_scratch("run.lb"), out, &recovered, err);
}

/* An output is whole, or neither it nor its draft is there. */
static void outputs_are_whole_or_not_there(void **state)
{
    (void)state;
    if (!failing_memory) skip();
    lb_status (*const writers[])(const char *out, lb_err *err) = {pack, strip, recover, gather};
    write_capture(in_scratch("run.lb"), 2);
    const int names = count_names();
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        reading whole = {.status = LB_OK};
        bool failed = true;
        for (long n = 1; failed; n = next_call(n)) {
            lb_err err = LB_ERR_INIT;
            char out[160];
            snprintf(out, sizeof out, "%s", i < 2 ? in_scratch("out.lbz") : in_scratch("out.lb"));
            fail_memory(n);
            const lb_status status = writers[i](out, &err);
            failed = memory_failed();
            assert_true(status == LB_OK || (failed && status == LB_ERR_NOMEM && err.message[0]));
            assert_int_equal(is_there(out), status == LB_OK);
            assert_int_equal(count_names(), names + (status == LB_OK));
            if (status != LB_OK) continue;
            reading now = {.status = LB_OK};
            read_capture(out, &now);
            if (lb_digest_is_none(whole.seen)) whole = now;
            assert_true(lb_digest_equal(now.seen, whole.seen));
            char command[200];
            snprintf(command, sizeof command, "rm -r '%s'", out);
            assert_int_equal(system(command), 0);
        }
    }
}

/* Kept inputs of the fuzzers, under the names that say their format. */
static void checkpoints_are_whole_or_refused(void **state)
{
    (void)state;
    if (!failing_memory) skip();
    static const char *const kinds[][2] = {
        {"safetensors", "x.safetensors"}, {"gguf", "x.gguf"}, {"npy", "x.npy"}, {"npz", "x.npz"}, {"torch", "x.pt"}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char folder[400], path[700];
        snprintf(folder, sizeof folder, "%s/tests/fuzz/corpus/%s", LB_SOURCE_DIR, kinds[k][0]);
        DIR *inputs = opendir(folder);
        assert_non_null(inputs);
        for (const struct dirent *entry; (entry = readdir(inputs));) {
            size_t size = 0;
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            char *bytes = read_whole(path, &size);
            write_whole(in_scratch(kinds[k][1]), bytes, size);
            free(bytes);
            fails_in_turn(in_scratch(kinds[k][1]), read_capture);
            fails_in_turn(in_scratch(kinds[k][1]), read_checkpoint);
        }
        closedir(inputs);
    }
}

static void copy_kept(const char *kept, const char *name)
{
    char path[700];
    size_t size = 0;
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", LB_SOURCE_DIR, kept);
    char *bytes = read_whole(path, &size);
    assert_non_null(bytes);
    write_whole(in_scratch(name), bytes, size);
    free(bytes);
}

static void write_shard(const char *name)
{
    char file[30], bytes[128];
    const int length = snprintf(bytes + 8, sizeof bytes - 8,
                                "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
    memcpy(bytes, &(uint64_t){(uint64_t)length}, 8);
    memset(bytes + 8 + length, 0, 4);
    snprintf(file, sizeof file, "%s.safetensors", name);
    write_whole(in_scratch(file), bytes, (size_t)length + 12);
}

static void checkpoints_of_several_files_are_whole_or_refused(void **state)
{
    (void)state;
    if (!failing_memory) skip();
    assert_int_equal(mkdir(in_scratch("ck"), 0700), 0);
    copy_kept("parts.distcp", "ck/__0_0.distcp");
    static const char *const distributed[] = {"distributed/whole", "distributed/joined"};
    for (size_t i = 0; i < 2; i++) {
        copy_kept(distributed[i], "ck/.metadata");
        fails_in_turn(in_scratch("ck"), read_capture);
        fails_in_turn(in_scratch("ck"), read_checkpoint);
    }
    write_shard("a"), write_shard("b");
    copy_kept("shards/index", "x.safetensors.index.json");
    fails_in_turn(in_scratch("x.safetensors.index.json"), read_capture);
    fails_in_turn(in_scratch("x.safetensors.index.json"), read_checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(captures_are_whole_or_refused, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(outputs_are_whole_or_not_there, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(checkpoints_are_whole_or_refused, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(checkpoints_of_several_files_are_whole_or_refused, make_scratch, drop_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
