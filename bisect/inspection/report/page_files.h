/* The files of page/ and the plotting library as bytes in the program, so that an installed binary needs no files.
 * CMakeLists.txt says where they are and what their hashes are.
 */
#ifndef LB_REPORT_PAGE_FILES_H
#define LB_REPORT_PAGE_FILES_H

#include <stddef.h>

/* X(name, path, hash): scripts come last, in the order in which they run. */
#define LB_PAGE_FILES(X)                                                                                               \
    X(template, LB_PAGE_FOLDER "/page.html", "")                                                                       \
    X(licence, LB_PAGE_FOLDER "/chart.licence.txt", "")                                                                \
    X(style, LB_PAGE_FOLDER "/page.css", LB_PAGE_HASH_STYLE)                                                           \
    X(chart, LB_PAGE_CHART, LB_PAGE_HASH_CHART)                                                                        \
    X(data, LB_PAGE_FOLDER "/data.js", LB_PAGE_HASH_DATA)                                                              \
    X(elements, LB_PAGE_FOLDER "/elements.js", LB_PAGE_HASH_ELEMENTS)                                                  \
    X(plots, LB_PAGE_FOLDER "/plots.js", LB_PAGE_HASH_PLOTS)                                                           \
    X(sections, LB_PAGE_FOLDER "/sections.js", LB_PAGE_HASH_SECTIONS)                                                  \
    X(page, LB_PAGE_FOLDER "/page.js", LB_PAGE_HASH_PAGE)

enum lb_page_part {
#define LB_PAGE_ENUM(name, path, hash) LB_PAGE_##name,
    LB_PAGE_FILES(LB_PAGE_ENUM)
#undef LB_PAGE_ENUM
        LB_PAGE_PARTS,
    LB_PAGE_FIRST_SCRIPT = LB_PAGE_chart
};

typedef struct lb_page_file {
    const char *bytes; /* no NUL behind them */
    size_t n;
    const char *hash; /* "sha256-…", as a policy names it; "" for files of other kinds */
} lb_page_file;

lb_page_file lb_page_file_get(enum lb_page_part part);

#endif
