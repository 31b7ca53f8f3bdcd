/* The library holds the kernel, with every header that its source names. */
#include "cmocka_first.h"
#include "device/kernel_image.h"
#include "device/digest_kernel.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every #include "X" of a text is one of the headers. */
static void assert_headers_of(const lb_kernel_image *image, const char *text)
{
    for (const char *at = text; (at = strstr(at, "#include \"")) != NULL;) {
        at += strlen("#include \"");
        const size_t length = strcspn(at, "\"");
        bool found = false;
        for (int i = 0; i < LB_KERNEL_HEADERS; i++)
            found |= strlen(image->header_names[i]) == length && strncmp(image->header_names[i], at, length) == 0;
        if (!found) fail_msg("NVRTC would not find %.*s", (int)length, at);
    }
}

static void texts_are_whole(void **state)
{
    (void)state;
    const lb_kernel_image image = lb_kernel_image_get();
    assert_non_null(strstr(image.source, "__global__"));
    assert_non_null(strstr(image.source, " " LB_KERNEL_NAME "("));
    assert_non_null(strstr(image.source, " " LB_KERNEL_TURN_NAME "("));
    assert_headers_of(&image, image.source);
    for (int i = 0; i < LB_KERNEL_HEADERS; i++) {
        assert_headers_of(&image, image.headers[i]);
        char path[512];
        snprintf(path, sizeof path, "%s/capture/device/%s", LB_SOURCE_DIR, image.header_names[i]);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        assert_int_equal(fseek(file, 0, SEEK_END), 0);
        assert_int_equal(ftell(file), strlen(image.headers[i]));
        fclose(file);
    }
}

/* A fat binary begins with this word (nvcc's fatbinary.h). */
static void image_is_a_fat_binary(void **state)
{
    (void)state;
    const lb_kernel_image image = lb_kernel_image_get();
    if (!image.image) skip();
    uint32_t magic;
    assert_true(image.image_bytes > 10000);
    memcpy(&magic, image.image, sizeof magic);
    assert_int_equal(magic, 0xBA55ED50u);
}

/* Where NVRTC is (a CUDA build of PyTorch brings it), it makes PTX of the source as it lies in the library. */
static void nvrtc_compiles_the_source(void **state)
{
    (void)state;
    static const char *const names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
    static const char *const options[] = {LB_KERNEL_OPTIONS, "--gpu-architecture=compute_80"};
    const lb_kernel_image image = lb_kernel_image_get();
    void *library = NULL, *program = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) library = dlopen(names[i], RTLD_NOW);
    if (!library) skip();
    int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*compile)(void *, int, const char *const *), (*log)(void *, char *), (*destroy)(void **);
    *(void **)&create = dlsym(library, "nvrtcCreateProgram");
    *(void **)&compile = dlsym(library, "nvrtcCompileProgram");
    *(void **)&log = dlsym(library, "nvrtcGetProgramLog");
    *(void **)&destroy = dlsym(library, "nvrtcDestroyProgram");
    assert_true(create && compile && log && destroy);
    assert_int_equal(
        create(&program, image.source, "digest_kernel.cu", LB_KERNEL_HEADERS, image.headers, image.header_names), 0);
    if (compile(program, sizeof options / sizeof *options, options) != 0) {
        static char text[1 << 20];
        log(program, text);
        fail_msg("%s", text);
    }
    destroy(&program);
    dlclose(library);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_whole),
        cmocka_unit_test(image_is_a_fat_binary),
        cmocka_unit_test(nvrtc_compiles_the_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
