/* Audit: whether a checkpoint or an adapter holds what was trained.
 *
 * Simplest use:
 *
 *     lb_audit_options options = LB_AUDIT_OPTIONS_INIT;
 *     lb_audit_report *report;
 *     LB_TRY(lb_audit("checkpoint-500", &options, &report, err));
 *     printf("%u findings\n", report->n_findings - report->n_notes);
 *     lb_audit_report_free(report);
 *
 * There are three questions:
 *
 *   a checkpoint alone         is every shard there once, are no two alike, do parts tile their tensor, are the numbers
 *                              finite, do tensors look like their siblings in other layers? Siblings prevent false
 *                              alarms: a tensor is called fresh, dead or of a wrong dtype only where the same tensor of
 *                              other layers is not
 *   against another one        do both hold the same numbers, element by element, through renames, fusions and shards?
 *   an adapter                 does adding its product online give what merging it into the weights gives, in each
 *                              precision? And how was a merged checkpoint merged?
 *
 * Findings make the verdict; notes do not. Nothing in a checkpoint is executed. Tensors are read where they lie.
 */
#ifndef LASTBIT_AUDIT_H
#define LASTBIT_AUDIT_H

#include <lastbit/checkpoint.h>
#include <lastbit/compare.h>
#include <lastbit/parts.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, word): kinds of findings. Those of LB_FAULTS besides. */
#define LB_AUDIT_KINDS(X)                                                                                              \
    X(MISSING, "missing")                     /* a key that an index, --expect, config or sibling layers ask for */    \
    X(UNEXPECTED, "unexpected")               /* a key or file that nothing asks for */                                \
    X(DUPLICATE, "duplicate")                 /* one key twice */                                                      \
    X(MISPLACED, "misplaced")                 /* in another file than the index says */                                \
    X(NO_FILE, "no_file")                     /* a file that is named is not there */                                  \
    X(TRUNCATED, "truncated")                 /* a file ends too early */                                              \
    X(DAMAGED, "damaged")                     /* bytes that contradict the format */                                   \
    X(SHAPE, "shape")                         /* another shape than asked for, or than its partner needs */            \
    X(SHARDS_EQUAL, "shards_equal")           /* shards of different ranks with the same bits */                       \
    X(SHARD_MISSING, "shard_missing")         /* ranks whose shard is absent */                                        \
    X(REPLICAS_DIFFER, "replicas_differ")     /* copies that should be equal are not */                                \
    X(GAP, "gap")                             /* parts leave a region of their tensor out */                           \
    X(OVERLAP, "overlap")                     /* two parts hold one region */                                          \
    X(OUT_OF_RANGE, "out_of_range")           /* a part leaves its tensor */                                           \
    X(NONFINITE, "nonfinite")                 /* NaN or infinity */                                                    \
    X(EMPTY, "empty")                         /* a weight without elements */                                          \
    X(ZERO, "zero")                           /* all zero where siblings are not */                                    \
    X(CONSTANT, "constant")                   /* one number everywhere where siblings vary */                          \
    X(DEAD, "dead")                           /* a millionth of its siblings' size; rows of zeros */                   \
    X(OUTLIER, "outlier")                     /* a tensor, row, head or expert off its siblings */                     \
    X(FRESH, "fresh")                         /* as an initialiser left it, where siblings are trained */              \
    X(NOOP, "noop")                           /* an outgoing projection of zeros: the block does nothing */            \
    X(COPIED, "copied")                       /* two layers with the same bits */                                      \
    X(DTYPE, "dtype")                         /* another dtype than all its siblings */                                \
    X(UNTIED, "untied")                       /* tied weights that differ */                                           \
    X(SCALE_MISSING, "scale_missing")         /* fp8 numbers without their scale */                                    \
    X(SCALE_INVALID, "scale_invalid")         /* a scale that is zero, negative or no number */                        \
    X(OPTIMIZER_MISSING, "optimizer_missing") /* slots that the optimizer keeps for siblings */                        \
    X(OPTIMIZER_INVALID, "optimizer_invalid") /* a second moment below zero */                                         \
    X(RESTART_MISSING, "restart_missing")     /* state that an exact restart needs */                                  \
    X(ADAPTER_CONFIG, "adapter_config")       /* adapter_config.json and tensors contradict each other */              \
    X(ADAPTER_RANK, "adapter_rank")           /* A and B of other rank than r */                                       \
    X(ADAPTER_PARTNER, "adapter_partner")     /* A without B, or B without A */                                        \
    X(ADAPTER_TARGET, "adapter_target")       /* the base has no module of this name or shape */                       \
    X(UNMERGED, "unmerged")                   /* the merged checkpoint left the base as it was */                      \
    X(MERGE_SCALING, "merge_scaling")         /* merged with another scaling than the configuration's */               \
    X(MERGE_ROUNDED, "merge_rounded")         /* A and B were cast to a narrow dtype before they were merged */        \
    X(MERGE_DIFFERS, "merge_differs")         /* no scaling and rounding of the base and the adapter gives it */       \
    X(ARRANGED, "arranged")                   /* a layer converted as its siblings were not */                         \
    X(UNREAD, "unread")                       /* a note: quantised, so that no number of it is there */                \
    X(DIFFERS, "differs")                     /* against another checkpoint */

typedef enum lb_audit_kind {
#define LB_AUDIT_ENUM(name, word) LB_AUDIT_##name,
    LB_AUDIT_KINDS(LB_AUDIT_ENUM)
#undef LB_AUDIT_ENUM
} lb_audit_kind;
LB_API const char *lb_audit_kind_name(lb_audit_kind kind);
/* 0 is the gravest: what makes a checkpoint useless comes before what makes it suspect. Groups of findings are told in
 * this order. */
enum { LB_AUDIT_GRAVITIES = LB_AUDIT_DIFFERS + 1 };
LB_API uint32_t lb_audit_kind_gravity(lb_audit_kind kind);

typedef struct lb_audit_options {
    size_t size;             /* sizeof(lb_audit_options) */
    const char *expect;      /* a checkpoint with the names and shapes that are asked for */
    const char *against;     /* compared element by element */
    const char *const *maps; /* s/PATTERN/REPLACEMENT/ on the checkpoint's names */
    uint32_t n_maps;
    const char *table;         /* with `against`: a file that says which tensor is which (lastbit/tensor_map.h); NULL */
    const char *base, *merged; /* of an adapter */
    const char *inputs;        /* .npy or safetensors with x [rows, features]; NULL: unit normal numbers from `seed` */
    uint64_t seed;
    uint32_t rows; /* of x; 0: 16 */
    bool restart;  /* ask for everything that an exact restart needs */
    void (*progress)(const char *what, uint64_t done, uint64_t total); /* may be NULL */
    lb_parts *parts; /* a tensor of a file is a unit of work (lastbit/parts.h); NULL: everything is done here */
} lb_audit_options;
#define LB_AUDIT_OPTIONS_INIT {.size = sizeof(lb_audit_options)}

/* Strings belong to the report. */
typedef struct lb_audit_finding {
    lb_audit_kind kind;
    bool note;           /* worth knowing, nothing wrong */
    char *tensor, *file; /* NULL: of no single one */
    int32_t *ranks;
    uint32_t n_ranks;
    char *message;
    uint32_t group; /* of findings that one cause gives, from 0 on */
} lb_audit_finding;

typedef enum lb_audit_match {
    LB_AUDIT_IS_IDENTICAL,
    LB_AUDIT_IS_CAST,     /* one is the other, converted */
    LB_AUDIT_IS_ROUNDING, /* one is the other rounded to a narrower type, or one ulp apart at most */
    LB_AUDIT_IS_DIFFERENT
} lb_audit_match;
LB_API const char *lb_audit_match_name(lb_audit_match match);

/* One tensor against another. */
typedef struct lb_audit_pair {
    char *name, *other;
    char *first; /* all tensors of the first side that `other` is made of, joined by " + " */
    bool folded; /* one of the two holds the other multiplied with something else: there is no line for it in a table */
    char *how;   /* "", "transposed", "q, k, v along dimension 0 in 2 groups", … */
    lb_audit_match match;
    lb_dtype dtype, other_dtype, rounded; /* rounded: to what, LB_NO_DTYPE: one ulp apart */
    lb_difference difference;
    int64_t index[LB_MAX_DIMS]; /* of the largest difference */
    int32_t ndim;
} lb_audit_pair;

/* Online against merged: W x + s B(A x) and (W + s B A) x, both in `dtype`. `module` is NULL over all modules. */
typedef struct lb_audit_precision {
    char *module;
    lb_dtype dtype;
    /* rel_max: by the element online or the root mean square of all, whichever is larger */
    double max_abs, rel_l2, rel_max;
} lb_audit_precision;

/* A module of a merged checkpoint. */
typedef struct lb_audit_merge {
    char *module;
    const char *scaling; /* "alpha/r", …, "unmerged", "fitted" */
    double factor;
    const char *order; /* "f32, rounded once", … ; "" where none reproduces it */
    bool exact;        /* every bit; else within the error bound of an f32 product */
} lb_audit_merge;

typedef struct lb_audit_report {
    lb_audit_finding *findings;
    uint32_t n_findings, n_notes; /* n_findings counts notes, too */
    uint32_t n_groups;
    lb_audit_pair *pairs;
    uint32_t n_pairs;
    lb_audit_precision *precision;
    uint32_t n_precision;
    lb_audit_merge *merges;
    uint32_t n_merges;
    uint64_t bytes, tensors, files;
    int32_t ranks;
} lb_audit_report;

/* `path`: a checkpoint, or the folder of an adapter (adapter_config.json, or tensors named lora_A and lora_B). */
LB_API lb_status lb_audit(const char *path, const lb_audit_options *options, lb_audit_report **report, lb_err *err);
LB_API void lb_audit_report_free(lb_audit_report *report);

#ifdef __cplusplus
}
#endif
#endif
