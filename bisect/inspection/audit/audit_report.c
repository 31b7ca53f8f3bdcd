/* See audit_report.h. */
#include "audit/audit_report.h"

#include "audit/gguf_names.h"

#include "base/array.h"

#include <lastbit/text.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

const char *lb_audit_kind_name(lb_audit_kind kind)
{
    static const char *const words[] = {
#define LB_AUDIT_WORD(name, word) word,
        LB_AUDIT_KINDS(LB_AUDIT_WORD)
#undef LB_AUDIT_WORD
    };
    return kind < sizeof words / sizeof *words ? words[kind] : "damaged";
}

uint32_t lb_audit_kind_gravity(lb_audit_kind kind)
{
    /* What is not listed comes last. */
    static const lb_audit_kind grave[] = {LB_AUDIT_NONFINITE,
                                          LB_AUDIT_TRUNCATED,
                                          LB_AUDIT_DAMAGED,
                                          LB_AUDIT_NO_FILE,
                                          LB_AUDIT_MISSING,
                                          LB_AUDIT_SHARD_MISSING,
                                          LB_AUDIT_SHARDS_EQUAL,
                                          LB_AUDIT_GAP,
                                          LB_AUDIT_OVERLAP,
                                          LB_AUDIT_OUT_OF_RANGE,
                                          LB_AUDIT_REPLICAS_DIFFER,
                                          LB_AUDIT_SHAPE,
                                          LB_AUDIT_DIFFERS,
                                          LB_AUDIT_ARRANGED,
                                          LB_AUDIT_UNMERGED,
                                          LB_AUDIT_MERGE_DIFFERS,
                                          LB_AUDIT_MERGE_SCALING,
                                          LB_AUDIT_MERGE_ROUNDED,
                                          LB_AUDIT_ADAPTER_PARTNER,
                                          LB_AUDIT_ADAPTER_RANK,
                                          LB_AUDIT_ADAPTER_TARGET,
                                          LB_AUDIT_ADAPTER_CONFIG,
                                          LB_AUDIT_SCALE_MISSING,
                                          LB_AUDIT_SCALE_INVALID,
                                          LB_AUDIT_ZERO,
                                          LB_AUDIT_CONSTANT,
                                          LB_AUDIT_OUTLIER,
                                          LB_AUDIT_DEAD,
                                          LB_AUDIT_OPTIMIZER_MISSING,
                                          LB_AUDIT_OPTIMIZER_INVALID};
    uint32_t i = 0;
    while (i < sizeof grave / sizeof *grave && grave[i] != kind) i++;
    return i;
}

const char *lb_audit_match_name(lb_audit_match match)
{
    static const char *const words[] = {"identical", "cast", "rounding", "differs"};
    return words[match];
}

/* Room for one more row; capacities are powers of two. */
static void *add_row(lb_audit_gathering *gathering, void **rows, uint32_t *n, size_t size)
{
    if ((*n & (*n - 1u)) == 0) {
        void *grown = realloc(*rows, (*n ? *n * 2u : 1u) * size);
        if (!grown) return gathering->failed = true, NULL;
        *rows = grown;
    }
    return memset((char *)*rows + (*n)++ * size, 0, size);
}

char *lb_audit_text(lb_audit_gathering *gathering, const char *text)
{
    char *copy = text ? lb_text_escaped(LB_TEXT_ARGUMENT, text, strlen(text)) : NULL;
    gathering->failed |= text && !copy;
    return copy;
}

/* The group of findings, or of notes, whose messages are made from one text. */
static uint32_t group_of(lb_audit_gathering *gathering, bool note, lb_audit_kind kind, const char *format)
{
    lb_audit_report *report = gathering->report;
    for (uint32_t i = 0; i < report->n_groups; i++)
        if (gathering->causes[i].note == note && gathering->causes[i].kind == kind &&
            gathering->causes[i].format == format)
            return i;
    lb_audit_cause *more = lb_array_grow(gathering->causes, report->n_groups, sizeof *more);
    gathering->failed |= !more;
    if (!more) return 0;
    gathering->causes = more, gathering->causes[report->n_groups] = (lb_audit_cause){kind, format, note};
    return report->n_groups++;
}

LB_PRINTF(5, 0)
static void add(lb_audit_gathering *gathering, bool note, lb_audit_kind kind, lb_audit_where where, const char *format,
                va_list args)
{
    char message[1200];
    lb_audit_report *report = gathering->report;
    const uint32_t group = group_of(gathering, note, kind, format);
    lb_audit_finding *finding =
        (lb_audit_finding *)add_row(gathering, (void **)&report->findings, &report->n_findings, sizeof *finding);
    if (!finding) return;
    vsnprintf(message, sizeof message, format, args);
    finding->kind = kind;
    finding->group = group;
    finding->note = note;
    report->n_notes += note;
    finding->tensor = lb_audit_text(gathering, where.tensor);
    finding->file = lb_audit_text(gathering, where.file);
    finding->message = lb_audit_text(gathering, message);
    finding->ranks = (int32_t *)malloc((where.n_ranks + 1u) * sizeof *finding->ranks);
    gathering->failed |= !finding->ranks;
    for (uint32_t i = 0; finding->ranks && i < where.n_ranks; i++)
        if (where.ranks[i] >= 0) finding->ranks[finding->n_ranks++] = where.ranks[i];
}

/* A quantised tensor is there, and its numbers are not. */
static bool is_quantised(const lb_audit_gathering *gathering, lb_audit_kind kind, const char *tensor)
{
    if (kind != LB_AUDIT_MISSING && kind != LB_AUDIT_UNEXPECTED) return false;
    return lb_gguf_names_is_unread(gathering->own, tensor) || lb_gguf_names_is_unread(gathering->other, tensor);
}

void lb_audit_find(lb_audit_gathering *gathering, lb_audit_kind kind, lb_audit_where where, const char *format, ...)
{
    va_list args;
    if (is_quantised(gathering, kind, where.tensor)) return;
    va_start(args, format);
    add(gathering, false, kind, where, format, args);
    va_end(args);
}

void lb_audit_note(lb_audit_gathering *gathering, lb_audit_kind kind, lb_audit_where where, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(gathering, true, kind, where, format, args);
    va_end(args);
}

static uint64_t name_hash(const char *name)
{
    return XXH3_64bits(name, strlen(name));
}

static bool is_known(const lb_audit_gathering *gathering, const char *tensor)
{
    LB_HASH_EACH(row, &gathering->found, name_hash(tensor))
    if (strcmp(gathering->report->findings[row].tensor, tensor) == 0) return true;
    return false;
}

void lb_audit_excuse(lb_audit_gathering *gathering, lb_audit_kind kind, const char *tensor)
{
    for (uint32_t i = 0; i < gathering->report->n_findings; i++) {
        lb_audit_finding *finding = &gathering->report->findings[i];
        if (finding->kind != kind || finding->note || !finding->tensor || strcmp(finding->tensor, tensor)) continue;
        const uint32_t group = group_of(gathering, true, kind, gathering->causes[finding->group].format);
        if (!gathering->failed) finding->note = true, finding->group = group, gathering->report->n_notes++;
    }
}

bool lb_audit_is_found(lb_audit_gathering *gathering, const char *tensor)
{
    for (; gathering->n_looked < gathering->report->n_findings; gathering->n_looked++) {
        const lb_audit_finding *finding = &gathering->report->findings[gathering->n_looked];
        if (finding->note || !finding->tensor || is_known(gathering, finding->tensor)) continue;
        if (!lb_hash_add(&gathering->found, name_hash(finding->tensor), gathering->n_looked))
            return gathering->failed = true, false;
    }
    return is_known(gathering, tensor);
}

lb_audit_pair *lb_audit_add_pair(lb_audit_gathering *gathering)
{
    return (lb_audit_pair *)add_row(gathering, (void **)&gathering->report->pairs, &gathering->report->n_pairs,
                                    sizeof *gathering->report->pairs);
}

lb_audit_precision *lb_audit_add_precision(lb_audit_gathering *gathering)
{
    return (lb_audit_precision *)add_row(gathering, (void **)&gathering->report->precision,
                                         &gathering->report->n_precision, sizeof *gathering->report->precision);
}

lb_audit_merge *lb_audit_add_merge(lb_audit_gathering *gathering)
{
    return (lb_audit_merge *)add_row(gathering, (void **)&gathering->report->merges, &gathering->report->n_merges,
                                     sizeof *gathering->report->merges);
}

void lb_audit_progress(const lb_audit_gathering *gathering, const char *what, uint64_t done, uint64_t total)
{
    if (gathering->options->progress) gathering->options->progress(what, done, total);
}

void lb_audit_report_free(lb_audit_report *report)
{
    if (!report) return;
    for (uint32_t i = 0; i < report->n_findings; i++) {
        free(report->findings[i].tensor);
        free(report->findings[i].file);
        free(report->findings[i].ranks);
        free(report->findings[i].message);
    }
    for (uint32_t i = 0; i < report->n_pairs; i++) {
        free(report->pairs[i].name);
        free(report->pairs[i].other);
        free(report->pairs[i].how), free(report->pairs[i].first);
    }
    for (uint32_t i = 0; i < report->n_precision; i++) free(report->precision[i].module);
    for (uint32_t i = 0; i < report->n_merges; i++) free(report->merges[i].module);
    free(report->findings);
    free(report->pairs);
    free(report->precision);
    free(report->merges);
    free(report);
}
