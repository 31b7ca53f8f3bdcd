/* Sites: things that can each be changed by itself, and a set of them as swaps or as command-line text. */
#ifndef LB_BISECT_SITES_H
#define LB_BISECT_SITES_H

#include "search/group_search.h"

#include <lastbit/replay.h>

/* The swap `before` BODY `after` = argument. Sites that differ in their bodies alone are changed together by one swap,
 * their bodies joined by `join` (a selector's own comma or a pattern's bar; 0: never). */
typedef struct lb_site {
    lb_swap_kind kind;
    char *argument, *before, *body, *after;
    char join;
    uint32_t rank_row; /* LB_SWAP_RANK: the rank that is left out; otherwise LB_NONE */
} lb_site;

typedef struct lb_sites {
    lb_site *rows;
    uint32_t n;
    char noun[96]; /* what they are, changed: "layers of step 2 in f32" */
} lb_sites;

/* What sites of one list share; strings are copied. */
typedef struct lb_site_form {
    lb_swap_kind kind;
    const char *argument;
    const char *before, *after;
    char join;
} lb_site_form;

lb_status lb_sites_add(lb_sites *sites, const lb_site_form *form, const char *body, lb_err *err);
/* Everywhere. */
lb_status lb_sites_add_all(lb_sites *sites, lb_swap_kind kind, const char *argument, lb_err *err);
/* Appends copies of those of `set` (NULL: all). */
lb_status lb_sites_append(lb_sites *sites, const lb_sites *more, const uint64_t *set, lb_err *err);
void lb_sites_name(lb_sites *sites, const char *format, ...) LB_PRINTF(2, 3);
void lb_sites_release(lb_sites *sites);

static inline bool lb_site_chosen(const uint64_t *set, uint32_t i)
{
    return !set || lb_site_in(set, i);
}

/* The swaps of a set (NULL: all), as few as it takes: `swaps` has room for as many as there are sites. Selectors are
 * malloc'ed, see lb_sites_swaps_free; arguments are the sites'. */
lb_status lb_sites_swaps(const lb_sites *sites, const uint64_t *set, lb_swap *swaps, uint32_t *n, lb_err *err);
void lb_sites_swaps_free(lb_swap *swaps, uint32_t n);

/* Options as one would type them, quoted for a shell: "--skip 'block=E' --muon 'f32'"; malloc'ed, NULL when out of
 * memory. */
char *lb_sites_swaps_text(const lb_swap *swaps, uint32_t n);
/* In words: "3 of 38 layers of step 2 in f32". */
void lb_sites_describe(const lb_sites *sites, const uint64_t *set, char *text, size_t size);

/* The end of a pattern that is to match a module and what is in it; it begins with "^". */
#define LB_AND_BELOW "(\\.|$)"

/* A module path as a pattern that matches it literally. */
void lb_sites_escape(const char *path, char *pattern, size_t size);

#endif
