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

#include "contents/contents.h"
#include "audit/shelf.h"

/* Of one tensor of B; runs name weights of A's shelf. */
typedef struct lb_arrangement {
    lb_content_run *runs;
    uint32_t n;
    lb_content_relation relation; /* LB_CONTENT_NONE: not known */
    bool equal;                   /* number by number: it was compared when it was found */
} lb_arrangement;

typedef struct lb_arrangements {
    lb_comparison *comparison;
    lb_shelf a, b;
    lb_arrangement *list; /* by B's shelf */
} lb_arrangements;

/* What names left open. */
lb_status lb_arrangement_find(lb_comparison *comparison, lb_err *err);

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
/* Matrices whose numbers are near and not equal, by their signs; vectors by their distance. */
lb_status lb_arrangement_search_signs(lb_arrangements *arrangements, lb_err *err);
lb_status lb_arrangement_search_vectors(lb_arrangements *arrangements, lb_err *err);

/* ---- by siblings (arrangement_family.c) ---- */
lb_status lb_arrangement_family_judge(lb_arrangements *arrangements, lb_err *err);

#endif
