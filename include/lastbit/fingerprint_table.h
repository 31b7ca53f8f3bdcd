/* Tables of fingerprints: one row for each tensor of a checkpoint or of a recorded step, and what two sides make of
 * them.
 *
 * Simplest use:
 *
 *     lb_fingerprint_table_options options = LB_FINGERPRINT_TABLE_OPTIONS_INIT;
 *     lb_fingerprint_table *sent, *arrived;
 *     lb_fingerprint_comparison *comparison;
 *     LB_TRY(lb_fingerprint_table_open("trainer/", &options, &sent, err));
 *     LB_TRY(lb_fingerprint_table_open("server.json", &options, &arrived, err));
 *     LB_TRY(lb_fingerprint_table_compare(&sent, 1, &arrived, 1, &options, &comparison, err));
 *     printf("%u tensors did not arrive as they were sent\n", comparison->n_findings);
 *
 * What is sent is a side of one or several files, one for each sync; what arrived is the other. Tensors meet by their
 * names, wrappers' prefixes and frameworks' spellings seen through, then by their fingerprints; what is left over is
 * looked for by its numbers where both sides hold them (bisect/inspection/audit does that).
 */
#ifndef LASTBIT_FINGERPRINT_TABLE_H
#define LASTBIT_FINGERPRINT_TABLE_H

#include <lastbit/fingerprint.h>
#include <lastbit/parts.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Narrow dtypes that a wider tensor is also fingerprinted as, so that a rounded copy is known from the table alone. */
enum { LB_FINGERPRINT_NARROW = 2 };
LB_API lb_dtype lb_fingerprint_table_narrow(int which); /* bf16, f16 */

/* Of one tensor. */
typedef struct lb_fingerprint_row {
    char *name;
    lb_dtype dtype;
    lb_layout shape; /* of the whole tensor, contiguous */
    lb_fingerprint raw, numbers;
    lb_fingerprint rounded[LB_FINGERPRINT_NARROW]; /* numbers of the tensor rounded to lb_fingerprint_table_narrow */
    bool has_rounded[LB_FINGERPRINT_NARROW];
    bool constant; /* one number everywhere: its fingerprint tells no tensor from another */
    char *lacks;   /* why there is no fingerprint; NULL: there is */
    uint32_t first, pieces;
} lb_fingerprint_row;

typedef struct lb_fingerprint_table {
    char *path;
    int64_t step;             /* of a capture; INT64_MIN: of none */
    lb_fingerprint_row *rows; /* by name */
    uint32_t n;
    lb_fingerprint sum; /* of all rows that have a fingerprint, each mixed with its name */
    struct lb_fingerprint_bytes *bytes;
} lb_fingerprint_table;

typedef struct lb_fingerprint_table_options {
    size_t size;  /* sizeof(lb_fingerprint_table_options) */
    int64_t step; /* of captures; INT64_MIN: the first that was recorded */
    bool rounded; /* fill in lb_fingerprint_row.rounded */
    void (*progress)(const char *what, uint64_t done, uint64_t total); /* may be NULL */
    lb_parts *parts; /* a tensor is a unit of work (lastbit/parts.h); NULL: everything is done here */
} lb_fingerprint_table_options;
#define LB_FINGERPRINT_TABLE_OPTIONS_INIT {.size = sizeof(lb_fingerprint_table_options), .step = INT64_MIN}

/* `path`: what lb_checkpoint_open reads; a capture, of which the parameters are taken with which a step begins; or a
 * table in JSON (NAME.json), as `lastbit fingerprint --json` and lastbit.torch.fingerprint write it. LB_ERR_CORRUPT
 * where files are damaged or lack, LB_ERR_NOT_CAPTURED where a step kept no parameter. */
LB_API lb_status lb_fingerprint_table_open(const char *path, const lb_fingerprint_table_options *options,
                                           lb_fingerprint_table **table, lb_err *err);
LB_API void lb_fingerprint_table_close(lb_fingerprint_table *table);

/* X(NAME, word, finding, what a reader is told) */
#define LB_FINGERPRINT_KINDS(X)                                                                                        \
    X(SAME, "same", false, "the same bits")                                                                            \
    X(CAST, "cast", false, "the same numbers in another dtype, or rounded to it")                                      \
    X(NAME, "other_name", false, "the same numbers under another name")                                                \
    X(LAYOUT, "other_layout", false, "the same numbers in other places: transposed, fused, permuted")                  \
    X(ODD, "odd_layout", true, "laid out as its siblings in other layers are not")                                     \
    X(LATE, "late", true, "an earlier file's numbers; the right ones arrive in a later one")                           \
    X(OLD, "old", true, "an earlier file's numbers")                                                                   \
    X(NUMBERS, "other_numbers", true, "other numbers")                                                                 \
    X(MISSING, "did_not_arrive", true, "the other side does not have it")                                              \
    X(ADDED, "only_there", false, "the other side alone has it")                                                       \
    X(UNKNOWN, "unknown", false, "a side has no fingerprint of it")

typedef enum lb_fingerprint_kind {
#define LB_FINGERPRINT_ENUM(name, word, finding, text) LB_FINGERPRINT_IS_##name,
    LB_FINGERPRINT_KINDS(LB_FINGERPRINT_ENUM)
#undef LB_FINGERPRINT_ENUM
        LB_FINGERPRINT_KIND_COUNT
} lb_fingerprint_kind;
LB_API const char *lb_fingerprint_kind_name(lb_fingerprint_kind kind);
LB_API const char *lb_fingerprint_kind_text(lb_fingerprint_kind kind);
LB_API bool lb_fingerprint_kind_is_finding(lb_fingerprint_kind kind);

/* What became of one tensor. */
typedef struct lb_fingerprint_match {
    lb_fingerprint_kind kind;
    uint32_t row, other;        /* of the two tables; UINT32_MAX: there is none */
    uint32_t file, against;     /* which of the sides' tables */
    uint32_t earlier;           /* old and late: the table of which it has the numbers; UINT32_MAX */
    uint32_t later;             /* late: the other side's table in which the right ones are; UINT32_MAX */
    const char *name, *partner; /* of the rows; NULL: there is none */
    char *how;                  /* "rounded to bf16", "transposed", how numbers differ; "" */
} lb_fingerprint_match;

typedef struct lb_fingerprint_comparison {
    lb_fingerprint_match *matches; /* by pair of tables, then by row; those of the other side alone last */
    uint32_t n;
    uint32_t n_findings, n_unknown;
} lb_fingerprint_comparison;

/* With as many tables on both sides, the first is compared with the first, and so on: the syncs of a run. Else each of
 * `others` is compared with the last of `tables`. Tables before that one are what `old` numbers may be of. The
 * comparison names rows of the tables, which stay open as long. */
LB_API lb_status lb_fingerprint_table_compare(lb_fingerprint_table *const *tables, uint32_t n,
                                              lb_fingerprint_table *const *others, uint32_t n_others,
                                              const lb_fingerprint_table_options *options,
                                              lb_fingerprint_comparison **comparison, lb_err *err);
LB_API void lb_fingerprint_comparison_free(lb_fingerprint_comparison *comparison);

#ifdef __cplusplus
}
#endif
#endif
