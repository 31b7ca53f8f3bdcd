/* What one side's step begins with, and which of it the other side has: by numbers (bisect/pairs/contents), and from
 * step to step by what it was before.
 *
 * A tensor that has its name and shape on the other side and other numbers is another tensor, and shows where it is
 * used. But where that is so of most parameters, or where the window begins in the middle of two trainings, what
 * differs came before it: sources meet by numbers that are near (near_sources.h), and the step is judged from A's.
 *
 * In the first step that is compared tensors meet by their numbers. Training moves both sides' numbers, each with its
 * own rounding, so later steps take over where each element stood in the first one; optimizer states lie as their
 * parameters do ("optimizer.exp_avg:NAME"). States without a name are known again by their memory. */
#ifndef LB_BISECT_STEP_SOURCES_H
#define LB_BISECT_STEP_SOURCES_H

#include "contents/contents.h"
#include "pair/program_view.h"

typedef struct lb_step_source {
    uint32_t op, value;
    const char *name; /* the program's; "": none */
    int64_t storage;
    uint8_t kind;     /* lb_source_kind */
    bool learnt;      /* a parameter, or a state of the optimizer */
    bool kept;        /* memory that the update alone reads: a state, or a weight in f32, whatever it is called */
    uint32_t part;    /* the rank that begins with it; each may have a part of the tensor by that name */
    lb_digest digest; /* as recorded */
} lb_step_source;
/* By its name: a state of an optimizer. */
bool lb_step_source_is_state(const lb_step_source *source);
/* The first number between the dots of a name, "7" of "h.7.down.weight": where it begins, how many digits it has, and
 * its value. No digits: there is none. */
typedef struct lb_step_source_number {
    size_t at, digits;
    int64_t value;
} lb_step_source_number;
lb_step_source_number lb_step_source_number_in(const char *name);

typedef struct lb_step_sources {
    lb_step_source *list;
    lb_content_tensor *tensors; /* of the same rows, as recorded */
    uint32_t n;
    uint32_t *row_of; /* per value: its row; LB_NONE */
    bool midway;      /* the step learns, and it is not the first of its run, or begins with states that others left */
} lb_step_sources;

lb_status lb_step_sources_list(const lb_program_view *view, lb_step_sources *out, lb_err *err);
void lb_step_sources_release(lb_step_sources *sources);

/* Where the elements of B's named tensors stood in A's, by name; kept from step to step. Zero-initialise. */
typedef struct lb_source_memory {
    struct lb_remembered *list;
    uint32_t n;
    const struct lb_content_map *map; /* what the user says of the first step's tensors; borrowed; NULL */
    char **said;                      /* where that is contradicted by their numbers, in words */
    uint32_t n_said;
    bool mapped;                /* it was asked */
    struct lb_left_value *left; /* what earlier steps left on both sides: left_values.h */
    struct lb_left_run *left_runs;
    uint32_t n_left, n_left_runs;
    const lb_program *after[2]; /* the next step of either side, as it was recorded; borrowed; NULL: not known */
} lb_source_memory;
/* Elements of B's value that are those of one of A (lb_content_run), which is known by its digest. */
typedef struct lb_left_run {
    lb_digest of_a;
    int64_t from, from_stride, to, to_stride, n;
} lb_left_run;
typedef struct lb_left_value {
    lb_digest of_b;
    uint32_t first, n; /* rows of `left_runs` */
} lb_left_value;
void lb_source_memory_release(lb_source_memory *memory);

/* What each source of B is (rows of `b`): its numbers are A's, or were when the window began. `*begins`: it begins with
 * this step. Of the `merged` adapters (merged_adapters.h) no tensor stands for the other side's of its name. */
struct lb_merged_adapter;
lb_status lb_step_sources_match(const lb_step_sources *a, const lb_step_sources *b,
                                const struct lb_merged_adapter *merged, uint32_t n_merged, lb_source_memory *memory,
                                lb_contents *out, bool *begins, lb_err *err);
/* Numbers of A's tensors where B's elements stand; malloc'ed. NULL: B's own are these very numbers, or A's were not
 * kept. */
double *lb_step_sources_taken(const lb_step_sources *a, const lb_step_sources *b, const lb_contents *contents,
                              uint32_t row);

/* Per row of one side's sources: the other side holds it. `side` 0: A's, which are `n`. Of `named` ones names alone say
 * so. malloc'ed; NULL: out of memory. */
uint8_t *lb_step_sources_held(const lb_contents *contents, int side, uint32_t n, bool named);
/* What a source of B is, told by its use where its numbers are those of several tensors of A, or of parts of them
 * (zeros, ones). Takes the place of what was matched, and is kept for later steps. */
lb_status lb_step_sources_settle(const lb_step_sources *a, const lb_step_sources *b, uint32_t row,
                                 const lb_content_run *runs, uint32_t n, lb_source_memory *memory,
                                 lb_contents *contents, lb_err *err);

#endif
