/* Tensors of two sides matched by the numbers they hold, whatever their names and layouts.
 *
 *      A   q_proj.weight (32, 64)      B   attn.qkv.weight (64, 64)        rows of B are rows of A's three: `fused`
 *          k_proj.weight (16, 64)          mlp.fc_1.weight (96, 64)        all of gate_proj under another name:
 *          `renamed` v_proj.weight (16, 64)          wte.weight      (104, 64)       the first 100 rows are A's:
 *          `padded` gate_proj.weight (96, 64)       c_attn.weight   (64, 192)       columns of B are rows of A:
 *          `transposed`
 *
 * The unit is a vector: a row of a matrix, or a column of it. A vector of B is looked up among all vectors of A by a
 * hash of its numbers and compared number by number, so that a match is exact. A tensor whose vectors are all found is
 * known to hold A's numbers and where each of them stands; that list (runs of elements) is what a tensor of B is made
 * from again when A's numbers have changed. Vectors that A holds several times (zeros, ones, tied tensors) are told
 * apart by what stands before them, then by name. Numbers are compared as numbers: of two dtypes that both hold them
 * exactly, and where that fails after rounding A's to B's dtype (`cast`).
 *
 * Numbers are read where they lie and never copied: of each vector of A its place and a hash stay in memory, some 40
 * bytes (measured: 2 billion parameters in 0.2 GB beside the mapped files).
 *
 * It knows no programs: tensors of a checkpoint will do. */
#ifndef LB_BISECT_CONTENTS_H
#define LB_BISECT_CONTENTS_H

#include <lastbit/tensor.h>

typedef struct lb_content_tensor {
    const char *name; /* "": none */
    lb_tensor tensor; /* data NULL: its bytes are not known; it matches by name and shape alone, if at all */
} lb_content_tensor;

/* Elements [to + i * to_stride] of a tensor of B hold the elements [from + i * from_stride] of tensor `tensor` of A, 0
 * <= i < n, both counted in row-major order. */
typedef struct lb_content_run {
    uint32_t tensor;
    int64_t from, from_stride, to, to_stride, n;
} lb_content_run;

typedef enum lb_content_relation {
    LB_CONTENT_NONE,       /* A does not hold these numbers */
    LB_CONTENT_SAME,       /* one tensor of A, name and shape alike */
    LB_CONTENT_RENAMED,    /* one tensor of A by another name */
    LB_CONTENT_RESHAPED,   /* one of A, in another shape, in the same order */
    LB_CONTENT_TRANSPOSED, /* columns of B are rows of A, or the other way round */
    LB_CONTENT_PERMUTED,   /* vectors of one tensor of A in another order */
    LB_CONTENT_FUSED,      /* several of A */
    LB_CONTENT_SPLIT,      /* a part of one of A */
    LB_CONTENT_PADDED,     /* some of B is A's, and the rest is one number all over */
    LB_CONTENT_NAMED,      /* name and shape alike, the numbers are not */
    LB_CONTENT_MOVED /* A's numbers plus `shift`: a norm that stores w, beside one of 1 + w; step_sources.c says so */
} lb_content_relation;
const char *lb_content_relation_name(lb_content_relation relation);

/* What one tensor of B is. */
typedef struct lb_content {
    lb_content_relation relation;
    bool cast;          /* after rounding to B's dtype */
    uint32_t tensor;    /* of A: the one, or of several the first; LB_NONE */
    uint32_t first, n;  /* rows of `runs` */
    int64_t found, all; /* elements */
    bool by_use;        /* told by the rows of the matrix that it goes with */
    double shift;       /* of LB_CONTENT_MOVED: B's numbers are A's plus this; else 0 */
} lb_content;

typedef struct lb_contents {
    lb_content *list; /* per tensor of B */
    uint32_t n;
    lb_content_run *runs;
    uint32_t n_runs;
} lb_contents;

/* LB_ERR_NOMEM is the only failure. */
lb_status lb_contents_match(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t n_b,
                            lb_contents *out, lb_err *err);
/* Those alone whose numbers were rounded differently, to dtypes of which neither is the other: of floats, in vectors
 * of some length. `roundings`: as many may lie between two numbers, each of both dtypes. */
lb_status lb_contents_match_roundings(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b,
                                      uint32_t n_b, double roundings, lb_contents *out, lb_err *err);
/* Those alone whose vectors are vectors of A times a positive number each, rounded to B's dtype: codes, and weights
 * that were made of them and of scales. Each vector is a run of its own; A's numbers may be whole ones. */
lb_status lb_contents_match_scaled(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t n_b,
                                   double roundings, lb_contents *out, lb_err *err);
/* Adds a run to those from row `first` on, or lengthens the last one that it goes on from. False: out of memory. */
bool lb_contents_add_run(lb_contents *contents, uint32_t first, lb_content_run run);
void lb_contents_release(lb_contents *contents);

#endif
