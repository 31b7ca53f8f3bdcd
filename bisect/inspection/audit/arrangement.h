/* Tensors whose names say nothing, matched by their numbers (bisect/pairs/contents), and layers that are arranged as
 * their siblings are not.
 *
 * An arrangement says of each element of a tensor of B where it stands in A. What one layer's tensor is made of, its
 * siblings are made of, with their own layers' numbers in the names: the arrangement that most of them share is applied
 * to the others. One whose numbers it does not give, and another arrangement does, was converted as no other layer was:
 * gate and up exchanged, a matrix not transposed, another layer's weights. One that nothing gave is compared under it,
 * element by element. */
#ifndef LB_BISECT_AUDIT_ARRANGEMENT_H
#define LB_BISECT_AUDIT_ARRANGEMENT_H

#include "contents/content_transform.h"
#include "contents/contents.h"
#include "audit/shelf.h"

/* What was done to the numbers of one weight of A, to make them B's. */
typedef struct lb_arrangement_change {
    uint32_t of; /* of A's shelf */
    lb_content_transform is;
    uint32_t vector;     /* whose numbers are the factors; of B's shelf, or of A's; LB_NONE */
    bool of_b, plus_one; /* the factors are 1 + its numbers */
    bool divided;        /* the reciprocals of these */
    uint8_t *rows;       /* of those that A's weight gave, in B's order: it was scaled; NULL: as `is` says */
} lb_arrangement_change;

/* Of one tensor of B; runs name weights of A's shelf. */
typedef struct lb_arrangement {
    lb_content_run *runs;
    uint32_t n;
    lb_content_relation relation;   /* LB_CONTENT_NONE: not known */
    bool equal;                     /* number by number: it was compared when it was found */
    lb_arrangement_change *changes; /* by parts, in the order in which they appear first; NULL: none was looked for */
    uint32_t n_changes;
} lb_arrangement;

typedef struct lb_arrangements {
    lb_comparison *comparison;
    lb_shelf a, b;
    lb_arrangement *list; /* by B's shelf */
} lb_arrangements;

/* What names left open. `other_weights`: numbers differ throughout, as two checkpoints of a run do, so that names say
 * what meets. */
lb_status lb_arrangement_find(lb_comparison *comparison, bool other_weights, lb_err *err);

/* What the user says, before anything else. LB_ERR_INVALID: it cannot be obeyed. */
struct lb_content_map;
lb_status lb_arrangement_take_map(lb_comparison *comparison, const struct lb_content_map *map, lb_err *err);

/* The tensors of both sides, with nothing known of them; to be closed in any case. */
lb_status lb_arrangements_open(lb_comparison *comparison, lb_arrangements *arrangements, lb_err *err);
void lb_arrangements_close(lb_arrangements *arrangements);
/* False when out of memory. */
bool lb_arrangement_add(lb_arrangement *arrangement, lb_content_run run);
/* A's numbers where B's stand, in A's dtype; what no run reaches is B's own, since nothing is said of it. malloc'ed. */
lb_status lb_arrangement_gather(lb_arrangements *arrangements, const lb_arrangement *arrangement, const lb_tensor *b,
                                lb_tensor *out, lb_err *err);
/* Compares B's tensor with what its arrangement makes of A's, and tells. */
lb_status lb_arrangement_tell(lb_arrangements *arrangements, uint32_t b, lb_err *err);
/* "3 parts in 2 groups: q_proj, k_proj, v_proj"; "" for one tensor as it is. */
void lb_arrangement_text(const lb_arrangements *arrangements, const lb_arrangement *arrangement, char how[256]);

/* ---- by numbers (arrangement_search.c): each fills in what it finds of what is not known yet ---- */
/* B's tensors in A's; backward: A's in B's, where B's are wider. */
lb_status lb_arrangement_search_contents(lb_arrangements *arrangements, bool backward, lb_err *err);
/* Vectors of one number that neither their use nor their name told: any that holds it. */
lb_status lb_arrangement_search_constants(lb_arrangements *arrangements, lb_err *err);
/* Matrices whose numbers are near and not equal, by their signs; vectors by their distance. */
lb_status lb_arrangement_search_signs(lb_arrangements *arrangements, lb_err *err);
lb_status lb_arrangement_search_vectors(lb_arrangements *arrangements, lb_err *err);

/* ---- by what a conversion does to numbers (arrangement_transform.c, arrangement_vectors.c) ---- */
/* Whether B's tensor is `made` (A's numbers in B's places) but for scales, shifts and factors of columns. Then the
 * arrangement has them, and `*match` is a rounding. */
lb_status lb_arrangement_explain(lb_arrangements *arrangements, uint32_t b, const lb_tensor *made,
                                 lb_value_match *match, lb_err *err);
/* Tensors that a name has led to, and that are not equal. */
lb_status lb_arrangement_search_named(lb_arrangements *arrangements, lb_err *err);
/* Norms of 1 + w, biases of matrices that were scaled, or that a norm was folded into. */
lb_status lb_arrangement_search_shifts(lb_arrangements *arrangements, lb_err *err);
lb_status lb_arrangement_search_beside(lb_arrangements *arrangements, lb_err *err);
/* Vectors that are nowhere by themselves because they were multiplied into a matrix. */
void lb_arrangement_tell_folded(lb_arrangements *arrangements);
/* ", times 0.125", ", each column times norm.weight"; "" where nothing was done. */
void lb_arrangement_change_text(const lb_arrangements *arrangements, const lb_arrangement *arrangement, char text[256]);
/* Siblings that were scaled as the others were not, and scales that no conversion folds in. */
void lb_arrangement_judge_changes(lb_arrangements *arrangements, const uint32_t *members, uint32_t n);
/* Row-major numbers; NULL: out of memory. */
double *lb_arrangement_numbers(const lb_tensor *tensor);
/* B's tensor as the one of A that its name has led to; false: out of memory. Without runs where there is none. */
bool lb_arrangement_by_name(lb_arrangements *arrangements, uint32_t b, bool turned);
void lb_arrangement_forget_changes(lb_arrangement *arrangement);

/* ---- by siblings (arrangement_family.c) ---- */
lb_status lb_arrangement_family_judge(lb_arrangements *arrangements, lb_err *err);

#endif
