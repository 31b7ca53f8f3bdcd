/* Values of two implementations that stand for the same thing by what the step is made of, before anything is computed:
 * results of the ops that read a tensor which both sides hold, results of the outermost modules, losses, and what
 * parameters hold at the end.
 *
 *      A   q_proj ─▶ q ─┐                                B   wqkv ─▶ [ q | k | v ]        pieces: columns of B's result are A's three
 *          k_proj ─▶ k ─┼─ …                                                             results, as rows of B's weight are A's weights
 *          v_proj ─▶ v ─┘
 *
 * Each is a list of pieces: which element of which value of A an element of B's value stands for. */
#ifndef LB_BISECT_COUNTERPARTS_H
#define LB_BISECT_COUNTERPARTS_H

#include "exact/exact_side.h"
#include "sources/step_sources.h"

typedef enum lb_counterpart_kind {
    LB_COUNTERPART_ANCHOR,   /* the result of an op that reads a weight */
    LB_COUNTERPART_EXIT,     /* what leaves: results of outermost modules, values without a reader */
    LB_COUNTERPART_GRADIENT, /* of a parameter, as the optimizer reads it */
    LB_COUNTERPART_FINAL,    /* what a parameter or a state holds at the end */
    LB_COUNTERPART_SHARED,   /* found between regions: see regions.h */
    LB_COUNTERPART_TURNED,   /* was an anchor, and is none: see counterpart_orders.h */
    LB_COUNTERPART_DROPPED,  /* was found to be none, or was SHARED before a difference was put right */
    LB_COUNTERPART_TABLE,    /* a rounded image of what A computes, or the other way round: see tables.h */
    LB_COUNTERPART_SERVES    /* other numbers, from which all that follows is the same: see halfway.h */
} lb_counterpart_kind;

typedef enum lb_counterpart_state {
    LB_COUNTERPART_UNKNOWN,
    LB_COUNTERPART_SAME,
    LB_COUNTERPART_APART
} lb_counterpart_state;

/* What the numbers of both sides were to each other when they were compared; they are not compared again before one of
 * them changes. */
typedef struct lb_counterpart_compared {
    bool is_known, agree;
    uint32_t values[2];  /* the first of A's, and B's */
    uint64_t changes[2]; /* of either side by then (exact_side.h) */
    bool negated;
} lb_counterpart_compared;

typedef struct lb_counterpart {
    lb_counterpart_kind kind;
    uint32_t b;        /* value */
    uint32_t first, n; /* rows of `pieces`, whose `tensor` is a value of A */
    const char *name;  /* of a parameter; NULL */
    uint32_t of[2];    /* of an anchor in backward: the values of A and B that it is the gradient of; LB_NONE */
    bool in_parts;     /* several ranks have it in parts, on either side: see rank_parts.h */
    bool by_token;     /* of one in parts: which element is which is told by the tokens (token_map.h) */
    bool any_order;    /* of one in parts: the numbers are there, in another order than ranks stand in */
    uint32_t group;    /* of one in parts: those of one group have the same number */
    lb_counterpart_state state;
    double distance; /* relative L2, where it was compared */
    /* what the rounding of tensors that one side alone holds does to it, relative L2; 0: not measured (slack.h) */
    double slack;
    double largest; /* of A's numbers, where it was compared */
    bool unsteady;  /* rounding in f64 alone moves it as far as the sides are apart: UNKNOWN */
    bool in_doubt;  /* apart by what that rounding may do, and as much as a real difference: UNKNOWN */
    /* Its dimensions stand in another order on B, and which element is which was read off the shapes. `refuted`: the
     * numbers are A's in yet another order. */
    bool turned_by_shape, refuted;
    bool is_rebound; /* of a FINAL one: its parameter was given other memory on one side, and had `rebound` before */
    int64_t rebound;
    uint32_t until[2]; /* the last values of A and B that it could as well stand at (halfway.h); LB_NONE */
    bool nameless;     /* of a FINAL one: no name tells the states that a side keeps of its parameter */
    bool negated;      /* B's numbers are those of A with the other sign */
    lb_counterpart_compared compared;
    double shift;     /* B's numbers are those of A plus this: a norm's w, beside 1 + w */
    bool was_guessed; /* was SHARED, by ops of different names, and put nothing right */
} lb_counterpart;

typedef struct lb_counterparts {
    lb_counterpart *list;
    uint32_t n;
    lb_content_run *pieces;
    uint32_t n_pieces;
    double most_slack;            /* of all: that of counterparts which were found later */
    bool from_place_to_place;     /* slack was measured where B goes on from A's numbers at every counterpart before */
    double resolution;            /* of the last comparison: a difference of that size, relative L2, may hide in it */
    uint32_t *lone[2], n_lone[2]; /* values that leave on one side and have no counterpart */
} lb_counterparts;

/* `sides`: A, B. */
lb_status lb_counterparts_find(const lb_exact_side *a, const lb_exact_side *b, const lb_step_sources *sources_a,
                               const lb_step_sources *sources_b, const lb_contents *contents, lb_counterparts *out,
                               lb_err *err);
void lb_counterparts_release(lb_counterparts *counterparts);
/* Piece by piece, then the value of B that they make up: `first` is how many pieces there were before. False, NULL: out
 * of memory. */
bool lb_counterparts_add_piece(lb_counterparts *counterparts, lb_content_run piece);
lb_counterpart *lb_counterparts_close(lb_counterparts *counterparts, lb_counterpart_kind kind, uint32_t b,
                                      uint32_t first);
/* One value of A against one of B, element by element in row-major order. False when out of memory. */
bool lb_counterparts_add(lb_counterparts *counterparts, lb_counterpart_kind kind, uint32_t a, uint32_t b,
                         int64_t elements);

/* The same, where the shapes may say that dimensions are exchanged: (batch, time, width) against (time, batch,
 * width). */
bool lb_counterparts_add_values(lb_counterparts *counterparts, lb_counterpart_kind kind, const lb_exact_side *a,
                                uint32_t va, const lb_exact_side *b, uint32_t vb);

/* The numbers that B's value should have, made of what A's run kept; `known` (malloc'ed, too) says of which elements.
 * NULL: not all of A's were kept. */
double *lb_counterpart_expected(const lb_counterparts *all, const lb_counterpart *one, const lb_exact_side *a,
                                int64_t elements, uint8_t **known, double *noise);
/* The same for one run of B, which keeps its own numbers where A has none (lb_exact_side_own). malloc'ed. */
double *lb_counterpart_forced(const lb_counterparts *all, const lb_counterpart *one, const lb_exact_side *a,
                              int64_t elements);
/* The same, with those that B had in its last run where A has none: what B begins with. malloc'ed. */
double *lb_counterpart_taken(const lb_counterparts *all, const lb_counterpart *one, const lb_exact_side *a,
                             const lb_exact_side *b);
/* Numbers that rounding of tensors which one side alone holds may explain (implementations/slack.h) are at most so many
 * times as far apart as it was measured to move them. */
#define LB_COUNTERPARTS_SLACK_TIMES 8
/* Can B go on from A's numbers there? It computes the value itself, and which element is which is known. */
bool lb_counterpart_can_be_put(const lb_counterparts *all, const lb_counterpart *one, const lb_exact_side *a,
                               const lb_exact_side *b);
/* The root of the squares of x - y over that of x; masked and non-finite elements are left out. */
double lb_counterparts_distance(const double *x, const double *y, int64_t n);
/* Behind a comparison. Two norms whose weights are all ones hold the same numbers, and an anchor may stand beside the
 * wrong one: where one is apart and either side's numbers are those of another value on the other side (`met`:
 * lb_regions_meet of both), it is dropped. Were there any? */
bool lb_counterparts_drop_wrong(lb_counterparts *all, uint32_t *const met[2], const lb_exact_side *a,
                                const lb_exact_side *b);
/* Behind free runs. Each side may begin with a tensor by an op of its own (a square, a quotient by its norm): where the
 * numbers are apart, and other ops gave them, what either side makes of that tensor alone stands for nothing. */
void lb_counterparts_drop_remade(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b);
/* Compares what both runs kept. */
void lb_counterparts_compare(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b);

#endif
