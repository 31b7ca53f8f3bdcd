/* See kernel_image.h. The assembler reads the files; CMake gives their folder and the path of the binary. */
#include "device/kernel_image.h"

#define LB_KERNEL_FILES(X)                                                                                             \
    X(parameters, "digest_kernel.h")                                                                                   \
    X(machine, "kernel_machine.cuh")                                                                                   \
    X(hash, "kernel_hash.cuh")                                                                                         \
    X(read, "kernel_read.cuh")                                                                                         \
    X(numbers, "kernel_numbers.cuh")

#define EMBED(name, path)                                                                                              \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".balign 16\n"                                                                                             \
            ".globl lb_kernel_bytes_" #name ", lb_kernel_end_" #name "\n"                                              \
            ".hidden lb_kernel_bytes_" #name ", lb_kernel_end_" #name "\n"                                             \
            "lb_kernel_bytes_" #name ":\n"                                                                             \
            ".incbin \"" path "\"\n"                                                                                   \
            "lb_kernel_end_" #name ":\n"                                                                               \
            ".byte 0\n"                                                                                                \
            ".popsection\n");                                                                                          \
    extern const char lb_kernel_bytes_##name[], lb_kernel_end_##name[];
#define EMBED_FILE(name, file) EMBED(name, LB_KERNEL_FOLDER "/" file)
EMBED_FILE(source, "digest_kernel.cu")
LB_KERNEL_FILES(EMBED_FILE)
#ifdef LB_KERNEL_BINARY
EMBED(binary, LB_KERNEL_BINARY)
EMBED(compiled, LB_KERNEL_BINARY ".of")
#endif

lb_kernel_image lb_kernel_image_get(void)
{
#define NAME_OF(name, file) file,
#define TEXT_OF(name, file) lb_kernel_bytes_##name,
    lb_kernel_image image = {.source = lb_kernel_bytes_source,
                             .header_names = {LB_KERNEL_FILES(NAME_OF)},
                             .headers = {LB_KERNEL_FILES(TEXT_OF)}};
#ifdef LB_KERNEL_BINARY
    image.image = lb_kernel_bytes_binary;
    image.image_bytes = (size_t)(lb_kernel_end_binary - lb_kernel_bytes_binary);
    image.compiled = lb_kernel_bytes_compiled;
#endif
    return image;
}
