/* What an audit gathers. Running out of memory is remembered and told once, at the end. */
#ifndef LB_BISECT_AUDIT_REPORT_H
#define LB_BISECT_AUDIT_REPORT_H

#include "base/hash.h"

#include <lastbit/audit.h>
#include <lastbit/checkpoint.h>

/* What the findings of a group have in common: the text that their messages are made from. */
typedef struct lb_audit_cause {
    lb_audit_kind kind;
    const char *format;
    bool note;
} lb_audit_cause;

typedef struct lb_audit_gathering {
    lb_audit_report *report;
    const lb_audit_options *options;
    bool failed;
    lb_audit_cause *causes; /* by group */
    /* Of these, quantised tensors are neither missing nor unexpected; NULL. */
    const lb_checkpoint *own, *other;
    lb_hash found; /* the first n_looked findings that are a tensor's, by its name */
    uint32_t n_looked;
    bool pattern_told; /* that a pattern of adapter_config.json tries too much, once */
} lb_audit_gathering;

/* Where a finding is; all of it may be left out. */
typedef struct lb_audit_where {
    const char *tensor, *file;
    const int32_t *ranks; /* negative ones are left out */
    uint32_t n_ranks;
} lb_audit_where;

void lb_audit_find(lb_audit_gathering *g, lb_audit_kind kind, lb_audit_where where, const char *format, ...)
    LB_PRINTF(4, 5);
void lb_audit_note(lb_audit_gathering *g, lb_audit_kind kind, lb_audit_where where, const char *format, ...)
    LB_PRINTF(4, 5);
/* Whether something was found, not only noted, of this tensor. */
bool lb_audit_is_found(lb_audit_gathering *gathering, const char *tensor);
/* What was found of this tensor turned out to be as it should: it becomes a note. */
void lb_audit_excuse(lb_audit_gathering *gathering, lb_audit_kind kind, const char *tensor);
/* Rows that are zero but for what the caller fills in; NULL when out of memory. */
lb_audit_pair *lb_audit_add_pair(lb_audit_gathering *gathering);
lb_audit_precision *lb_audit_add_precision(lb_audit_gathering *gathering);
lb_audit_merge *lb_audit_add_merge(lb_audit_gathering *gathering);
char *lb_audit_text(lb_audit_gathering *gathering, const char *text);
void lb_audit_progress(const lb_audit_gathering *gathering, const char *what, uint64_t done, uint64_t total);

#endif
