/* The page's files as bytes: see page_files.h. The assembler reads them; CMake gives paths and hashes as LB_PAGE_*. */
#include "report/page_files.h"

#define EMBED(name, path, hash)                                                                                        \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".globl lb_page_bytes_" #name ", lb_page_end_" #name "\n"                                                  \
            ".hidden lb_page_bytes_" #name ", lb_page_end_" #name "\n"                                                 \
            "lb_page_bytes_" #name ":\n"                                                                               \
            ".incbin \"" path "\"\n"                                                                                   \
            "lb_page_end_" #name ":\n"                                                                                 \
            ".byte 0\n"                                                                                                \
            ".popsection\n");                                                                                          \
    extern const char lb_page_bytes_##name[], lb_page_end_##name[];
LB_PAGE_FILES(EMBED)
#undef EMBED

lb_page_file lb_page_file_get(enum lb_page_part part)
{
    switch (part) {
#define FILE_OF(name, path, hash)                                                                                      \
    case LB_PAGE_##name:                                                                                               \
        return (lb_page_file){lb_page_bytes_##name, (size_t)(lb_page_end_##name - lb_page_bytes_##name), hash};
        LB_PAGE_FILES(FILE_OF)
#undef FILE_OF
    case LB_PAGE_PARTS: break;
    }
    return (lb_page_file){"", 0, ""};
}
