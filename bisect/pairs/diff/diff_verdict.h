/* The local verdict of one aligned pair of ops whose results differ: a function of the evidence alone. Private to
 * diff*.c. */
#ifndef LB_DIFF_VERDICT_H
#define LB_DIFF_VERDICT_H

#include "shadow/shadow_pair.h"

typedef struct lb_evidence {
    bool inputs_differ; /* some input has different bits */
    bool inputs_apart;  /* some input differs in exact arithmetic already, and leads to this */
    bool leads;         /* this difference leads to what leaves the step */
    bool same_args;     /* all arguments that are no tensors */
    bool args_follow;   /* … which Python may have computed from numbers that differ */
    bool irregular;     /* the layer is computed by different ops around it: the pair may be no pair */
    bool swapped;       /* A is the second side: for words */
    bool random;        /* draws random numbers */
    bool decides;       /* the results that differ are integers or bools */
    bool replayed;      /* the fields below are filled */
    lb_agreement agreement;
    lb_verdict own[2]; /* of each side against its own recording */
    /* of a reduction over ranks: the order that gave that side's bits, where it is not replay's own; "" or NULL */
    const char *order[2];
} lb_evidence;

/* `*why`: a sentence that lives as long as the program. */
lb_verdict lb_diff_verdict_of_pair(const lb_evidence *evidence, const char **why);

#endif
