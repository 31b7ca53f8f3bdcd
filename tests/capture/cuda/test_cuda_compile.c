/* Where the library has no machine code for a device, NVRTC makes it from the kernels' source. This program is linked
 * with a stand-in of NVRTC, which stands for one that PyTorch has loaded. */
#include "host_program.h"
#include "cuda/cuda_kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern int nvrtc_standin_minor, nvrtc_standin_compiled; /* see nvrtc_standin.c */

static const lb_kernel_image text = {
    .source = "the source", .header_names = {"a.h", "b.h"}, .headers = {"first", "second"}};

static void source_is_compiled_for_the_device(void **state)
{
    (void)state;
    void *machine_code;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_cuda_compile(&text, 90, &machine_code, &err), LB_OK);
    assert_string_equal(machine_code, "digest_kernel.cu: the source, a.h: first, b.h: second --gpu-architecture=sm_90 "
                                      "--std=c++17 --fmad=false");
    free(machine_code);
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

static char cache[] = "/tmp/lastbit-kernels-XXXXXX";

/* How often it was compiled meanwhile; what comes is right in any case. */
static int compiled(const lb_kernel_image *of, int architecture)
{
    const int before = nvrtc_standin_compiled;
    void *code;
    char is[200];
    assert_int_equal(lb_cuda_compile(of, architecture, &code, NULL), LB_OK);
    snprintf(is, sizeof is,
             "digest_kernel.cu: %s, a.h: first, b.h: %s --gpu-architecture=sm_%d --std=c++17 --fmad=false", of->source,
             of->headers[1], architecture);
    assert_string_equal(code, is);
    free(code);
    return nvrtc_standin_compiled - before;
}

static void in_cache(char *path, size_t room)
{
    char command[200];
    snprintf(command, sizeof command, "ls -d %s/kernels-*", cache);
    FILE *names = popen(command, "r");
    assert_non_null(fgets(path, (int)room, names));
    pclose(names);
    path[strcspn(path, "\n")] = 0;
}

static void empty_cache(void)
{
    char command[200];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    assert_int_equal(system(command), 0);
}

static void code_is_compiled_once_for_what_it_is_made_of(void **state)
{
    (void)state;
    lb_kernel_image other = text, renamed = text;
    other.source = "another source";
    renamed.headers[1] = "third";
    setenv("LASTBIT_CACHE", cache, 1);
    empty_cache();
    assert_int_equal(compiled(&text, 90), 1);
    assert_int_equal(compiled(&text, 90), 0);
    assert_int_equal(compiled(&text, 80), 1);
    assert_int_equal(compiled(&other, 90), 1);
    assert_int_equal(compiled(&renamed, 90), 1);
    nvrtc_standin_minor = 1;
    assert_int_equal(compiled(&text, 90), 1);
    nvrtc_standin_minor = 0;
    assert_int_equal(compiled(&text, 90) + compiled(&other, 90) + compiled(&renamed, 90), 0);
}

/* It was cut short, one of its bits is another, or another user may write it. */
static void file_that_is_not_as_it_was_written_is_not_used(void **state)
{
    (void)state;
    char path[200], byte;
    setenv("LASTBIT_CACHE", cache, 1);
    for (int damage = 0; damage < 4; damage++) {
        empty_cache();
        assert_int_equal(compiled(&text, 90), 1);
        in_cache(path, sizeof path);
        FILE *file = fopen(path, "r+");
        assert_non_null(file);
        fseek(file, -3, SEEK_END);
        if (damage == 0) assert_int_equal(ftruncate(fileno(file), ftell(file)), 0);
        if (damage == 1) assert_int_equal(ftruncate(fileno(file), 20), 0);
        if (damage == 2) {
            assert_int_equal(fread(&byte, 1, 1, file), 1);
            fseek(file, -1, SEEK_CUR);
            byte ^= 4;
            assert_int_equal(fwrite(&byte, 1, 1, file), 1);
        }
        fclose(file);
        if (damage == 3) assert_int_equal(chmod(path, 0666), 0);
        assert_int_equal(compiled(&text, 90), 1);
        assert_int_equal(compiled(&text, 90), 0); /* it was replaced */
    }
}

static void without_a_folder_code_is_compiled_each_time(void **state)
{
    static const char *const folders[] = {"", "/dev/null/nothing"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        setenv("LASTBIT_CACHE", folders[i], 1);
        assert_int_equal(compiled(&text, 90), 1);
        assert_int_equal(compiled(&text, 90), 1);
    }
}

static void folder_of_the_user_is_made_where_it_is_missing(void **state)
{
    (void)state;
    struct stat made;
    char path[200];
    empty_cache();
    assert_int_equal(mkdir(cache, 0700), 0);
    unsetenv("LASTBIT_CACHE");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", cache, 1);
    assert_int_equal(compiled(&text, 90), 1);
    assert_int_equal(compiled(&text, 90), 0);
    snprintf(path, sizeof path, "%s/.cache/lastbit", cache);
    assert_int_equal(stat(path, &made), 0);
    assert_int_equal(made.st_mode & 0777, 0700);
    setenv("LASTBIT_CACHE", "", 1);
}

static int begin(void **state)
{
    (void)state;
    setenv("LASTBIT_CACHE", "", 1);
    return mkdtemp(cache) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    empty_cache();
    return 0;
}

/* ---- without it -------------------------------------------------------------------------------------------------- */

static void source_that_does_not_compile_says_why(void **state)
{
    (void)state;
    const lb_kernel_image bad = {.source = "#error", .header_names = {"", ""}, .headers = {"", ""}};
    void *machine_code;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_cuda_compile(&bad, 90, &machine_code, &err), LB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "digest_kernel.cu(1): #error is there"));
}

/* Without an image, and with one that the driver refuses: it has no code for this device, or is of a toolkit that the
 * driver does not know. */
static void device_is_read_by_what_was_compiled(void **state)
{
    static const CUresult refusals[] = {CUDA_SUCCESS, CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                                        CUDA_ERROR_INVALID_IMAGE};
    (void)state;
    for (int i = 0; i < 4; i++) {
        host_begin(1, 1, 0);
        lb_kernel_image code = text;
        if (i) code.image = "of another device";
        const lb_cuda_options options = {
            .device_bytes = 1 << 20, .pinned_bytes = 1 << 20, .replays = 1, .unit = -1, .code = &code};
        if (i) standin_fail("cuModuleLoadData", 0, refusals[i]);
        lb_device *reader;
        lb_err err = LB_ERR_INIT;
        assert_int_equal(lb_cuda_open(&reader, &options, &err), LB_OK);
        assert_int_equal(standin_calls("cuModuleLoadData"), i ? 2 : 1);
        value *v = value_dense(host_memory(4000, 1), LB_F32, 1000, true);
        submit_values(reader, &v, 1, NULL, true);
        reader->ops->collect(reader, NULL, true);
        value_assert_same(v);
        value_free(v);
        host_end(reader);
    }
}

static void both_refusals_are_said(void **state)
{
    (void)state;
    host_begin(1, 1, 0);
    const lb_kernel_image bad = {.image = "of another driver", .source = "#error"};
    const lb_cuda_options options = {
        .device_bytes = 1 << 20, .pinned_bytes = 1 << 20, .replays = 1, .unit = -1, .code = &bad};
    lb_device *reader;
    lb_err err = LB_ERR_INIT;
    standin_fail("cuModuleLoadData", 0, CUDA_ERROR_INVALID_IMAGE);
    assert_int_equal(lb_cuda_open(&reader, &options, &err), LB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "CUDA_ERROR_INVALID_IMAGE"));
    assert_non_null(strstr(err.message, "#error is there"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(source_is_compiled_for_the_device),
        cmocka_unit_test(code_is_compiled_once_for_what_it_is_made_of),
        cmocka_unit_test(file_that_is_not_as_it_was_written_is_not_used),
        cmocka_unit_test(without_a_folder_code_is_compiled_each_time),
        cmocka_unit_test(folder_of_the_user_is_made_where_it_is_missing),
        cmocka_unit_test(source_that_does_not_compile_says_why),
        cmocka_unit_test(device_is_read_by_what_was_compiled),
        cmocka_unit_test(both_refusals_are_said),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
