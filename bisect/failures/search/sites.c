/* Sites: see sites.h. */
#include "search/sites.h"

#include "base/array.h"
#include <lastbit/program.h>
#include <lastbit/text_stream.h>

#include "shell/shell_word.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

lb_status lb_sites_add(lb_sites *sites, const lb_site_form *form, const char *body, lb_err *err)
{
    lb_site *more = lb_array_grow(sites->rows, sites->n, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    sites->rows = more;
    lb_site *site = &sites->rows[sites->n++];
    *site = (lb_site){.kind = form->kind,
                      .argument = strdup(form->argument),
                      .before = strdup(form->before),
                      .body = strdup(body),
                      .after = strdup(form->after),
                      .join = form->join,
                      .rank_row = LB_NONE};
    return site->argument && site->before && site->body && site->after ? LB_OK
                                                                       : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

lb_status lb_sites_add_all(lb_sites *sites, lb_swap_kind kind, const char *argument, lb_err *err)
{
    lb_site_form form = {kind, argument, "", "", ','};
    return lb_sites_add(sites, &form, "", err);
}

lb_status lb_sites_append(lb_sites *sites, const lb_sites *more, const uint64_t *set, lb_err *err)
{
    for (uint32_t i = 0; i < more->n; i++) {
        const lb_site *site = &more->rows[i];
        lb_site_form form = {site->kind, site->argument, site->before, site->after, site->join};
        if (!lb_site_chosen(set, i)) continue;
        LB_TRY(lb_sites_add(sites, &form, site->body, err));
        sites->rows[sites->n - 1].rank_row = site->rank_row;
    }
    return LB_OK;
}

void lb_sites_name(lb_sites *sites, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(sites->noun, sizeof sites->noun, format, args);
    va_end(args);
}

void lb_sites_release(lb_sites *sites)
{
    for (uint32_t i = 0; i < sites->n; i++) {
        free(sites->rows[i].argument);
        free(sites->rows[i].before);
        free(sites->rows[i].body);
        free(sites->rows[i].after);
    }
    free(sites->rows);
    *sites = (lb_sites){0};
}

/* ---- as swaps ---------------------------------------------------------------------------------------------------- */

static bool same_form(const lb_site *a, const lb_site *b)
{
    return a->join && a->kind == b->kind && a->join == b->join && !strcmp(a->argument, b->argument) &&
           !strcmp(a->before, b->before) && !strcmp(a->after, b->after);
}

/* The selector of site `first` and all chosen ones of its form, which are then done. */
static char *joined_selector(const lb_sites *sites, const uint64_t *set, uint32_t first, bool *done)
{
    const lb_site *site = &sites->rows[first];
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    fprintf(out, "%s%s", site->before, site->body);
    for (uint32_t k = first + 1; k < sites->n; k++)
        if (lb_site_chosen(set, k) && !done[k] && same_form(site, &sites->rows[k])) {
            fprintf(out, "%c%s", site->join, sites->rows[k].body);
            done[k] = true;
        }
    fputs(site->after, out);
    fclose(out);
    return text;
}

lb_status lb_sites_swaps(const lb_sites *sites, const uint64_t *set, lb_swap *swaps, uint32_t *n, lb_err *err)
{
    bool *done = calloc(sites->n + 1, sizeof *done);
    lb_status status = done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    *n = 0;
    for (uint32_t i = 0; i < sites->n && status == LB_OK; i++) {
        if (!lb_site_chosen(set, i) || done[i]) continue;
        char *selector = joined_selector(sites, set, i, done);
        if (!selector)
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
        else
            swaps[(*n)++] = (lb_swap){sites->rows[i].kind, selector, sites->rows[i].argument};
    }
    free(done);
    return status;
}

void lb_sites_swaps_free(lb_swap *swaps, uint32_t n)
{
    for (uint32_t i = 0; swaps && i < n; i++) free((char *)swaps[i].selector);
    free(swaps);
}

/* ---- as text ----------------------------------------------------------------------------------------------------- */

static const char *option_of(lb_swap_kind kind)
{
    switch (kind) {
    case LB_SWAP_PRECISION: return "--precision";
    case LB_SWAP_KERNEL: return "--kernel";
    case LB_SWAP_ORDER: return "--order";
    case LB_SWAP_ROUNDING: return "--rounding";
    case LB_SWAP_SKIP: return "--skip";
    case LB_SWAP_MUON: return "--muon";
    case LB_SWAP_RANK: return "--contribution";
    case LB_SWAP_SOURCE: return "--source";
    case LB_SWAP_ROUTING: return "--routing";
    case LB_SWAP_ACCUMULATE: return "--accumulate";
    case LB_SWAP_UPDATE: return "--update";
    case LB_SWAP_FUSE: return "--fuse";
    }
    return "--unknown";
}

char *lb_sites_swaps_text(const lb_swap *swaps, uint32_t n)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    for (uint32_t i = 0; out && i < n; i++) {
        char *word = NULL;
        size_t length = 0;
        FILE *both = lb_text_stream_open(&word, &length);
        if (both) {
            bool equals = *swaps[i].selector && *swaps[i].argument;
            fprintf(both, "%s%s%s", swaps[i].selector, equals ? "=" : "", swaps[i].argument);
            fclose(both);
        }
        if (!word) { /* the others alone are another answer */
            fclose(out), free(text);
            return NULL;
        }
        fprintf(out, "%s%s ", i ? " " : "", option_of(swaps[i].kind));
        lb_shell_word(out, word);
        free(word);
    }
    if (out) fclose(out);
    return text;
}

static void put_plain(FILE *out, const char *pattern)
{
    for (; *pattern; pattern++)
        if (*pattern != '\\') fputc(*pattern, out);
}

void lb_sites_describe(const lb_sites *sites, const uint64_t *set, char *text, size_t size)
{
    uint32_t n = 0, shown = 0;
    for (uint32_t i = 0; i < sites->n; i++) n += lb_site_chosen(set, i);
    FILE *out = fmemopen(text, size, "w");
    if (!out) return;
    if (n == sites->n)
        fprintf(out, "%s%s", n > 1 ? "all " : "", sites->noun);
    else
        fprintf(out, "%u of %u %s", n, sites->n, sites->noun);
    for (uint32_t i = 0; i < sites->n && n <= 2 && sites->n > 1; i++) {
        if (!lb_site_chosen(set, i) || !*sites->rows[i].body) continue;
        fputs(shown++ ? ", " : ": ", out);
        put_plain(out, sites->rows[i].body);
    }
    fputc('\0', out);
    fclose(out);
    text[size - 1] = '\0';
}

void lb_sites_escape(const char *path, char *pattern, size_t size)
{
    size_t n = 0;
    for (; *path && n + 3 < size; path++) {
        if (strchr("\\^$.[|()?*+{}&", *path)) pattern[n++] = '\\';
        pattern[n++] = *path;
    }
    pattern[n] = '\0';
}
