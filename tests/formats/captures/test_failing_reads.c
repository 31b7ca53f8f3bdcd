/* Captures and checkpoints of every format on a host without memory: each allocation fails in turn, alone and with
 * all after it. What is read then is what is read otherwise, or LB_ERR_NOMEM; nothing is taken for missing or for
 * damage. */
#include "cmocka_first.h"
#include "failing_memory.h"
#include "readings.h"

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
