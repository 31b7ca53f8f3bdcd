/* Files of every foreign format, damaged in every way of a kind: cut at each length, each byte changed to several
 * others, a byte left out, a byte put in. Whatever comes of it, the answer is about the file: read, or damaged, with a
 * message that names the file; never a refusal of the system, and of a checkpoint each tensor lies in the memory that
 * was read for it. */
#include "cmocka_first.h"
#include "readings.h"

#include <lastbit/decode_limit.h>

static bool names_others; /* the damaged file names files that it leads to: such a name may be of none */

/* What a reading may say of a damaged file. The limit is the one on what is decoded. */
static bool is_about_the_file(lb_status status)
{
    return status == LB_OK || (names_others && status == LB_ERR_NOT_FOUND) || status == LB_ERR_CORRUPT ||
           status == LB_ERR_UNSUPPORTED || status == LB_ERR_VERSION || status == LB_ERR_LIMIT;
}

static uint32_t n_read, n_damaged, n_faults;

static void check_capture(const char *path)
{
    lb_capture *c;
    lb_err err = LB_ERR_INIT;
    const lb_status status = lb_capture_open(path, &c, &err);
    if (!is_about_the_file(status)) print_error("%s: %s: %s\n", path, lb_status_name(status), err.message);
    assert_true(is_about_the_file(status));
    if (status != LB_OK) {
        n_damaged++;
        assert_non_null(strstr(err.message, scratch));
        return;
    }
    const lb_program *p;
    reading r = {.status = LB_OK};
    const lb_status programmed = lb_capture_program(c, 0, 0, &p, &err); /* what is packed is decoded by now */
    assert_true(is_about_the_file(programmed));
    n_read += programmed == LB_OK, n_damaged += programmed != LB_OK;
    for (uint32_t v = 0; programmed == LB_OK && v < p->n_values; v++) {
        lb_tensor t;
        const lb_status found = lb_capture_value(c, p, v, &t, &err);
        assert_true(is_about_the_file(found) || found == LB_ERR_NOT_CAPTURED);
        if (found == LB_OK) see_tensor(&r, &t); /* which reads every element */
    }
    lb_capture_close(c);
}

static void check_checkpoint(const char *path)
{
    lb_checkpoint *c;
    lb_err err = LB_ERR_INIT;
    const lb_status status = lb_checkpoint_open(path, &c, &err);
    if (!is_about_the_file(status)) print_error("%s: %s: %s\n", path, lb_status_name(status), err.message);
    assert_true(is_about_the_file(status));
    if (status != LB_OK) {
        assert_non_null(strstr(err.message, scratch));
        return;
    }
    reading r = {.status = LB_OK};
    for (uint32_t i = 0; i < c->n_pieces; i++) see_tensor(&r, &c->pieces[i].tensor);
    for (uint32_t i = 0; i < c->n_faults; i++) assert_true(c->faults[i].message[0]);
    n_faults += c->n_faults;
    lb_checkpoint_close(c);
}

/* `path` is what is opened, `file` what is damaged: itself, or a file that it leads to. */
static void check_damaged(const char *path, const char *file, const char *bytes, size_t size)
{
    write_whole(file, bytes, size);
    check_capture(path);
    check_checkpoint(path);
}

enum { MOST_PLACES = 60 };

static void damage(const char *path, const char *file)
{
    size_t size = 0;
    char *whole = read_whole(file, &size), *changed = malloc(size + 1);
    assert_true(whole && changed);
    const size_t step = size > MOST_PLACES ? size / MOST_PLACES : 1;
    for (size_t at = 0; at < size; at += step) {
        static const unsigned char others[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
        const unsigned char was = (unsigned char)whole[at];
        if (at) check_damaged(path, file, whole, at);
        memcpy(changed, whole, size);
        changed[at] = (char)(at % 2 ? was ^ 1 << at / 2 % 8 : others[at / 2 % 5]);
        check_damaged(path, file, changed, size);
        memmove(changed + at, whole + at + 1, size - at - 1);
        if (size > 1) check_damaged(path, file, changed, size - 1);
        memcpy(changed, whole, at + 1);
        memcpy(changed + at + 1, whole + at, size - at);
        check_damaged(path, file, changed, size + 1);
    }
    write_whole(file, whole, size);
    free(changed);
    free(whole);
}

static void one_file_that_is_damaged_says_so(void **state)
{
    (void)state;
    static const char *const formats[][2] = {
        {"safetensors", "x.safetensors"}, {"gguf", "x.gguf"}, {"npy", "x.npy"}, {"npz", "x.npz"}, {"torch", "x.pt"}};
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
        char folder[400], path[700];
        snprintf(folder, sizeof folder, "%s/tests/fuzz/corpus/%s", LB_SOURCE_DIR, formats[k][0]);
        DIR *inputs = opendir(folder);
        assert_non_null(inputs);
        n_read = n_damaged = 0;
        for (const struct dirent *entry; (entry = readdir(inputs));) {
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", formats[k][0], entry->d_name);
            copy_kept(path, formats[k][1]);
            damage(in_scratch(formats[k][1]), in_scratch(formats[k][1]));
        }
        closedir(inputs);
        assert_true(n_read > 10 && n_damaged > 100); /* of each format some are still read, and most are not */
    }
}

static void a_checkpoint_of_several_files_says_which_is_damaged(void **state)
{
    (void)state;
    names_others = true;
    assert_int_equal(mkdir(in_scratch("ck"), 0700), 0);
    copy_kept("parts.distcp", "ck/__0_0.distcp");
    static const char *const distributed[] = {"distributed/whole", "distributed/joined"};
    for (size_t i = 0; i < 2; i++) {
        copy_kept(distributed[i], "ck/.metadata");
        damage(in_scratch("ck"), in_scratch("ck/.metadata"));
        damage(in_scratch("ck"), in_scratch("ck/__0_0.distcp"));
    }
    write_shard("a"), write_shard("b");
    copy_kept("shards/index", "x.safetensors.index.json");
    damage(in_scratch("x.safetensors.index.json"), in_scratch("x.safetensors.index.json"));
    damage(in_scratch("x.safetensors.index.json"), in_scratch("a.safetensors"));
    names_others = false;
    assert_true(n_faults > 100);
}

/* One entry of a safetensors header, as text. */
static lb_status open_header(const char *header, lb_err *err)
{
    char bytes[400];
    const int length = snprintf(bytes + 8, sizeof bytes - 24, "%s", header);
    memcpy(bytes, &(uint64_t){(uint64_t)length}, 8);
    memset(bytes + 8 + length, 0, 16);
    write_whole(in_scratch("x.safetensors"), bytes, (size_t)length + 24);
    lb_capture *c;
    const lb_status status = lb_capture_open(in_scratch("x.safetensors"), &c, err);
    if (status == LB_OK) lb_capture_close(c);
    return status;
}

/* Every field of an entry, replaced by every kind of value. */
static void an_entry_of_a_header_is_taken_for_what_it_says_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *field, *good;
    } fields[] = {{"dtype", "\"F32\""}, {"shape", "[2,2]"}, {"data_offsets", "[0,16]"}};
    static const char *const values[] = {"null",
                                         "true",
                                         "1",
                                         "-1",
                                         "1.5",
                                         "\"\"",
                                         "\"F33\"",
                                         "{}",
                                         "[]",
                                         "[null]",
                                         "[\"2\",2]",
                                         "[-2,-2]",
                                         "[2,-2]",
                                         "[2.0,2]",
                                         "[16,0]",
                                         "[-4,12]",
                                         "[0,15]",
                                         "[0,17]",
                                         "[0,16,16]",
                                         "[4294967296,4294967296,4294967296]",
                                         "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
                                         "[0,9223372036854775807]",
                                         "[9223372036854775807,9223372036854775807]"};
    lb_err err = LB_ERR_INIT;
    char header[400];
    assert_int_equal(open_header("{\"t\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", &err), LB_OK);
    for (size_t f = 0; f < 3; f++)
        for (size_t v = 0; v <= sizeof values / sizeof *values; v++) {
            size_t n = (size_t)snprintf(header, sizeof header, "{\"t\":{");
            for (size_t k = 0; k < 3; k++) {
                if (k == f && v == sizeof values / sizeof *values) continue; /* it is not there at all */
                n += (size_t)snprintf(header + n, sizeof header - n, "%s\"%s\":%s", header[n - 1] == '{' ? "" : ",",
                                      fields[k].field, k == f ? values[v] : fields[k].good);
            }
            snprintf(header + n, sizeof header - n, "}}");
            lb_err_clear(&err);
            const lb_status status = open_header(header, &err);
            const bool other_dtype = f == 0 && v < sizeof values / sizeof *values && values[v][0] == '"';
            if (status != LB_ERR_CORRUPT && !other_dtype) print_error("%s: %s\n", header, lb_status_name(status));
            assert_int_equal(status, other_dtype ? LB_ERR_UNSUPPORTED : LB_ERR_CORRUPT);
            assert_non_null(strstr(err.message, "x.safetensors: offset "));
        }
    static const char *const headers[] = {"", "[]", "null", "{\"t\":1}", "{\"t\":null}", "{", "{\"t\":{}}"};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        lb_err_clear(&err);
        assert_int_equal(open_header(headers[i], &err), LB_ERR_CORRUPT);
        assert_non_null(strstr(err.message, "x.safetensors: offset "));
    }
}

int main(void)
{
    lb_decode_limit_set(1 << 20, 100); /* a size that was changed is often a large one */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_file_that_is_damaged_says_so, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(a_checkpoint_of_several_files_says_which_is_damaged, make_scratch,
                                        drop_scratch),
        cmocka_unit_test_setup_teardown(an_entry_of_a_header_is_taken_for_what_it_says_or_refused, make_scratch,
                                        drop_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
