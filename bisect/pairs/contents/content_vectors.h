/* The vectors of a tensor: rows, columns, or all of it. They are read where they lie, hashed, and compared as they are
 * or but for what rounded them.
 *
 *      ROWS (2, 3)      COLUMNS            WHOLE
 *      ─▶ a b c         a │ b │ c │        ─▶ a b c d e f
 *      ─▶ d e f         d ▼ e ▼ f ▼
 *
 * Equal vectors have one hash. Of vectors that are compared nearly the hash is of the signs: what rounds a number, or
 * multiplies a vector with a positive factor, keeps these. */
#ifndef LB_BISECT_CONTENT_VECTORS_H
#define LB_BISECT_CONTENT_VECTORS_H

#include <lastbit/tensor.h>

/* The ways a tensor is cut into vectors: rows along its last dimension or all others, columns along the one before the
 * last or the first, and along those in between. Of stacked weights that are transposed, (layers, inputs, 3, heads,
 * size), the rows of one layer's weight run along the second. */
typedef enum lb_content_cut {
    LB_VECTORS_WHOLE,
    LB_VECTORS_ROWS,
    LB_VECTORS_FLAT_ROWS,
    LB_VECTORS_COLUMNS,
    LB_VECTORS_FLAT_COLUMNS,
    LB_VECTORS_ALONG_SECOND,
    LB_VECTORS_ALONG_THIRD,
    LB_VECTORS_ALONG_FOURTH,
    LB_VECTORS_CUTS
} lb_content_cut;

typedef struct lb_content_vector {
    uint32_t tensor;
    uint8_t cut;
    int64_t start, stride, n; /* elements, row-major */
} lb_content_vector;

typedef struct lb_content_vectors {
    int64_t count, n; /* how many, and numbers of each */
} lb_content_vectors;

lb_content_vectors lb_content_vectors_of(const lb_layout *layout, lb_content_cut how);
lb_content_vector lb_content_vectors_at(uint32_t tensor, const lb_layout *layout, lb_content_cut how, int64_t i);

/* A tensor whose numbers are read where they lie, a portion at a time, in row-major order; floats rounded to `as`, if
 * that is given. */
typedef struct lb_content_numbers {
    const lb_tensor *t;
    const char *bytes; /* dense */
    void *owned;       /* a dense copy of a tensor that is not; NULL; to be freed */
    lb_dtype as;       /* LB_NO_DTYPE: as they are */
    lb_dtype digits;   /* of a near match: the coarsest dtype that holds all of its numbers; else LB_NO_DTYPE */
    double roundings;  /* of a near match: how many of them may lie between the numbers */
    bool scaled;       /* of a near match: vectors are compared but for a factor of each */
} lb_content_numbers;

enum { LB_CONTENT_PORTION = 512 };

/* False: out of memory. */
bool lb_content_vectors_open(lb_content_numbers *numbers, const lb_tensor *tensor, const lb_dtype *as);
/* `n` numbers from element `first` on, `stride` elements apart; n is at most LB_CONTENT_PORTION. */
void lb_content_vectors_load(const lb_content_numbers *numbers, int64_t first, int64_t stride, int64_t n, double *x);
/* The hashes of all vectors of a cut. */
void lb_content_vectors_hash(const lb_content_numbers *numbers, lb_content_cut how, uint64_t *out);
bool lb_content_vectors_is_constant(const lb_content_numbers *numbers, const lb_content_vector *vector);
double lb_content_vectors_first(const lb_content_numbers *numbers, const lb_content_vector *vector);
/* The coarsest dtype that holds all numbers: a checkpoint that was saved in 16 bits may be loaded in 32. */
lb_dtype lb_content_vectors_digits(const lb_content_numbers *numbers);
/* Of two roundings of one number to different dtypes: how far apart, relative to it. */
double lb_content_vectors_room(const lb_content_numbers *a, const lb_content_numbers *b);
/* Nearly, where A's and B's digits are told and differ; of `scaled` ones of A but for a factor. */
bool lb_content_vectors_are_equal(const lb_content_numbers *a, const lb_content_vector *v, const lb_content_numbers *b,
                                  const lb_content_vector *w);

#endif
