/* The program: what one rank executed in one step, in SSA over storage versions.
 *
 * Simplest use:
 *
 *     for (uint32_t i = 0; i < program->n_ops; i++) {
 *         const lb_op *op = &program->ops[i];
 *         printf("%s %s %s\n", lb_phase_name(op->phase), lb_op_layer(program, op), lb_op_name(program, op));
 *     }
 *
 * A program is tables that name each other by index: ops call for args and results, values say where in which storage
 * their elements lie, strings are interned. It never holds tensor bytes: a value names them by digest. A decoded
 * program is valid: every index is in range, every layout's sizes multiply without overflow, ops are in execution
 * order.
 *
 *      ops[i] ── args[first, count) ──▶ value | scalar | list …
 *        │  └─── results: value ids ──▶ values[v] = (storage, version, layout, dtype, digests, flags)
 *        └────── written: value ids     the (storage, new version) pairs that the op wrote in place
 *
 * Values. Contents belong to (storage, version); a value is a window on them. A write to any alias makes a new version
 * of the storage, so a window read afterwards is a new value. Storage ids are unique in an archive and never reused,
 * and versions go on counting across steps: what step n wrote is what step n+1 reads, unless a source says otherwise.
 *
 * Sources are ops too: `lb::source` has no args and one result, whose bytes replay cannot compute: a parameter, state,
 * a batch, bytes that changed unseen. It stands just before the first op that reads them. Results of random ops and
 * outputs of collectives are marked LB_VALUE_SOURCE and stand in for their op when it cannot be run. A source marked
 * LB_SOURCE_CARRIED has exactly the bytes that an earlier recorded step of this archive left there: a chained replay
 * keeps what it computed, a replay of this step alone loads it.
 *
 * Args stand in the order of the op's schema, defaults filled in, so that arg 3 of an op is always the same parameter.
 * A sparse or nested tensor is the list of what it is made of, its numbers last; as a result it is several.
 */
#ifndef LASTBIT_PROGRAM_H
#define LASTBIT_PROGRAM_H

#include <lastbit/digest.h>
#include <lastbit/shard.h>
#include <lastbit/statistics.h>
#include <lastbit/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LB_NONE UINT32_MAX /* no such row */

typedef enum lb_phase {
    LB_PHASE_FORWARD = 0,
    LB_PHASE_BACKWARD = 1,
    LB_PHASE_OPTIMIZER = 2, /* clipping included */
    LB_PHASE_COMMUNICATION = 3,
    LB_PHASE_OTHER = 4
} lb_phase;
LB_API const char *lb_phase_name(lb_phase phase); /* "forward", … */

typedef enum lb_arg_tag {
    LB_ARG_NONE = 0,
    LB_ARG_VALUE = 1,
    LB_ARG_INT = 2,
    LB_ARG_FLOAT = 3, /* exact bits of a double */
    LB_ARG_BOOL = 4,
    LB_ARG_DTYPE = 5,
    LB_ARG_STRING = 6, /* also devices, layouts, memory formats, and the text of what cannot be recorded */
    LB_ARG_LIST = 7,   /* `count` args from `first`; lists nest */
    LB_ARG_COMPLEX = 8 /* two LB_ARG_FLOAT children from `first` */
} lb_arg_tag;

typedef struct lb_arg {
    uint8_t tag;    /* lb_arg_tag */
    uint32_t count; /* children of a list */
    union {
        int64_t i;       /* INT, BOOL, DTYPE (lb_dtype) */
        double f;        /* FLOAT */
        uint32_t value;  /* VALUE: row of values */
        uint32_t string; /* STRING: row of strings */
        uint32_t first;  /* LIST, COMPLEX: row of args */
    } u;
} lb_arg;

enum lb_op_flags {
    LB_OP_VIEW = 1 << 0,      /* results alias an argument: a change of layout, nothing is computed */
    LB_OP_MUTABLE = 1 << 1,   /* writes an argument */
    LB_OP_RANDOM = 1 << 2,    /* draws random numbers */
    LB_OP_DECISION = 1 << 3,  /* a result became a Python scalar, an index or a shape */
    LB_OP_UNDEFINED = 1 << 4, /* leaves (some) result bytes unwritten: empty_like, … */
    LB_OP_RECOMPUTE = 1 << 5, /* a forward op run again inside backward (activation checkpointing) */
    LB_OP_COLLECTIVE = 1 << 6,
    /* a custom op recorded whole: nothing inside was seen; or one that computes with a sparse tensor */
    LB_OP_COMPOSITE = 1 << 7,
    LB_OP_FAILED = 1 << 8 /* raised an exception; it has no results */
};

typedef struct lb_op {
    uint32_t name;  /* string: "aten::add.Tensor", "c10d::allreduce_", "lb::source" */
    uint32_t scope; /* row of scopes: innermost module, 0 = outside every module */
    uint32_t call;  /* which invocation of that scope in this step, from 0 */
    uint32_t flags; /* lb_op_flags */
    uint32_t first_arg, args;
    uint32_t first_result, results;  /* rows of refs; a missing result (None) is LB_NONE there */
    uint32_t first_written, written; /* rows of refs: values in the new version, in schema order of the written args */
    uint32_t node_name;              /* string: running autograd node ("MmBackward0"), or LB_NONE */
    int64_t node;   /* autograd sequence number: forward: next to be given; backward: the running node's; -1 */
    uint8_t phase;  /* lb_phase */
    uint8_t thread; /* 0: main thread of the program */
    uint32_t line;  /* row of lines + 1: the code that called it; 0: not known */
} lb_op;

/* A line of the recorded program's code. Of an op: the innermost caller that is no code of torch, of Python's library
 * or of lastbit. An op of backward has the line of the forward op whose gradient it computes, but where code of the
 * program calls it itself (a custom backward, a hook); the accumulation of a gradient has none. */
typedef struct lb_line {
    /* string: path below the folder that the program imports from ("transformers/models/…/modeling_llama.py") */
    uint32_t file;
    uint32_t function; /* string: "forward", or LB_NONE */
    /* string: the line itself, stripped, cut to LB_LINE_TEXT bytes; LB_NONE: its file could not be read */
    uint32_t text;
    uint32_t number; /* from 1 */
} lb_line;
#define LB_LINE_TEXT 200

/* The same as texts, which belong to the program. */
typedef struct lb_code_line {
    uint32_t number; /* 0: no line is known, and the texts are "" */
    const char *file, *function, *text;
} lb_code_line;

enum lb_value_flags {
    LB_VALUE_SOURCE = 1 << 0,    /* cannot be recomputed; replay takes the recorded bytes */
    LB_VALUE_UNDEFINED = 1 << 1, /* some bytes were never written: no digest, no finding */
    LB_VALUE_KEPT = 1 << 2,      /* blob digest names bytes that were stored */
    LB_VALUE_PARAMETER = 1 << 3,
    LB_VALUE_GRADIENT = 1 << 4, /* .grad of a parameter (name says which) */
    LB_VALUE_STATE = 1 << 5,    /* optimizer state or module buffer */
    LB_VALUE_INPUT = 1 << 6,    /* argument of the outermost forward */
    /* Views that nothing was computed for yet: an op that reads one sees the conjugates, or the opposites, of the
     * elements that lie there. Digests and statistics are those of the elements as they lie. */
    LB_VALUE_CONJUGATED = 1 << 7,
    LB_VALUE_NEGATED = 1 << 8,
    LB_VALUE_LAZY = LB_VALUE_CONJUGATED | LB_VALUE_NEGATED
};

typedef enum lb_source_kind {
    LB_SOURCE_NOT = 0,
    LB_SOURCE_PARAMETER = 1,
    LB_SOURCE_STATE = 2,
    LB_SOURCE_BATCH = 3,
    LB_SOURCE_RANDOM = 4,
    LB_SOURCE_COLLECTIVE = 5,
    LB_SOURCE_OPAQUE = 6,  /* result of an op that replay cannot compute */
    LB_SOURCE_UNSEEN = 7,  /* bytes changed and no recorded op did it: a finding */
    LB_SOURCE_CARRIED = 8, /* equal to what the last recorded step left there */
    LB_SOURCE_OTHER = 9    /* constants built in Python, work done before step 0 */
} lb_source_kind;
LB_API const char *lb_source_kind_name(lb_source_kind kind);

typedef struct lb_value {
    int64_t storage;
    uint32_t version;
    uint32_t flags; /* lb_value_flags */
    lb_layout layout;
    lb_dtype dtype;
    uint8_t source;          /* lb_source_kind */
    uint8_t device;          /* 0 cpu, 1 cuda, 2 other: where it lived, not where it must be replayed */
    uint32_t name;           /* string: parameter name, "optimizer.exp_avg:NAME", …; LB_NONE */
    uint32_t statistics;     /* row of statistics or LB_NONE */
    lb_digest logical, blob; /* blob: of the dense range, see lb_layout_dense_range */
} lb_value;

/* A module path and its class; row 0 is "" (outside). */
typedef struct lb_scope {
    uint32_t path;       /* string, without wrapper prefixes: "model.layers.3.mlp" */
    uint32_t class_name; /* string: "LlamaMLP", or LB_NONE */
    uint32_t parent;     /* row of scopes; of row 0: LB_NONE */
} lb_scope;

/* What went into and came out of a module's forward. */
typedef struct lb_boundary {
    uint32_t scope, call;
    uint32_t op;       /* index of the next op when the module was entered or left */
    uint32_t position; /* which tensor of the flattened arguments or results */
    uint32_t value;
    uint8_t output;    /* 0: argument at entry, 1: result at exit */
    uint8_t recompute; /* entered inside backward */
} lb_boundary;

typedef struct lb_collective {
    uint32_t op;                /* row of ops */
    uint32_t group;             /* string: group name */
    uint32_t reduce;            /* string: "sum", "avg", "max", …, or LB_NONE */
    uint32_t algorithm;         /* string: where known, or LB_NONE */
    uint64_t sequence;          /* per group, from 0 */
    uint32_t first_rank, ranks; /* rows of refs: global ranks in group order */
} lb_collective;

/* An MoE decision. LB_NONE where the module does not show it. */
typedef struct lb_routing {
    uint32_t scope, call;
    uint32_t logits, ids, weights, slots, dropped; /* values */
} lb_routing;

typedef struct lb_scalar {
    uint32_t name; /* string: "loss", "grad_norm", "lr.0" … */
    uint32_t op;   /* index of the next op when it was seen */
    double number;
} lb_scalar;

/* One parameter group of one optimizer, as it was when it stepped. */
typedef struct lb_group {
    uint32_t optimizer;             /* string: class name */
    uint32_t index;                 /* of the group in its optimizer */
    uint32_t first_op, ops;         /* the ops of its step */
    uint32_t first_param, params;   /* rows of group_params */
    uint32_t first_option, options; /* rows of scalars: lr, weight_decay, … */
} lb_group;
typedef struct lb_group_param {
    uint32_t name;             /* string */
    int64_t storage, gradient; /* storage of the parameter and of its gradient (-1: none) */
} lb_group_param;

/* Something the recorder noticed: an unseen write, a thread not covered, bytes over budget. */
typedef struct lb_notice {
    uint32_t kind;    /* string: "unseen_write", "thread", "budget", "degraded", "skipped" … */
    uint32_t op;      /* row of ops or LB_NONE */
    uint32_t value;   /* row of values or LB_NONE */
    uint32_t message; /* string */
} lb_notice;

typedef struct lb_program {
    int64_t step;
    int32_t rank, world;
    uint8_t level;    /* lb_level reached, see capture.h: 0 stats 1 sources 2 layers 3 ops */
    uint8_t complete; /* the step was closed in order */
    uint32_t shard;   /* string: data shard given by the program, or LB_NONE */

    char **strings;
    uint32_t n_strings; /* NUL-terminated UTF-8 */
    lb_scope *scopes;
    uint32_t n_scopes;
    lb_op *ops;
    uint32_t n_ops;
    lb_arg *args;
    uint32_t n_args;
    uint32_t *refs;
    uint32_t n_refs;
    lb_value *values;
    uint32_t n_values;
    lb_statistics *statistics;
    uint32_t n_statistics;
    lb_boundary *boundaries;
    uint32_t n_boundaries;
    lb_collective *collectives;
    uint32_t n_collectives;
    lb_routing *routings;
    uint32_t n_routings;
    lb_scalar *scalars;
    uint32_t n_scalars;
    lb_group *groups;
    uint32_t n_groups;
    lb_group_param *group_params;
    uint32_t n_group_params;
    lb_notice *notices;
    uint32_t n_notices;
    lb_shard *shards; /* by value */
    uint32_t n_shards;
    lb_extent *extents;
    uint32_t n_extents;
    lb_placement *placements;
    uint32_t n_placements;
    lb_mesh *meshes;
    uint32_t n_meshes;
    lb_mesh_axis *mesh_axes;
    uint32_t n_mesh_axes;
    lb_line *lines;
    uint32_t n_lines;

    struct lb_program_store *store; /* growth and interning; private to formats/program/program.c */
} lb_program;

/* ---- life-cycle ------------------------------------------------------------------------------------------------ */

/* An empty program with string 0 = "" and scope 0 = outside. NULL when out of memory. */
LB_API lb_program *lb_program_new(void);
LB_API void lb_program_free(lb_program *program);
/* A deep copy, which passes may change. */
LB_API lb_program *lb_program_copy(const lb_program *program);

/* ---- building -------------------------------------------------------------------------------------------------- *
 * Each `add` appends one row and returns its index, or LB_NONE when out of memory or over LB_PROGRAM_MAX_ROWS.       */

#define LB_PROGRAM_MAX_ROWS (1u << 28)

/* Interned; NULL gives LB_NONE. `text` comes from another program or from us, or is no name (a line, a message): what
 * may not stand in one line of UTF-8 is spelt, and nothing else (lastbit/text.h). */
LB_API uint32_t lb_program_string(lb_program *program, const char *text);
/* The same of a name that a recorded program or another file gave, by its gate. */
LB_API uint32_t lb_program_name(lb_program *program, const char *name);
LB_API uint32_t lb_program_scope(lb_program *program, const char *path, const char *class_name,
                                 uint32_t parent); /* interned by path */
LB_API uint32_t lb_program_add_value(lb_program *program, const lb_value *value);
LB_API uint32_t lb_program_add_statistics(lb_program *program, const lb_statistics *statistics);
LB_API uint32_t lb_program_add_args(lb_program *program, const lb_arg *args,
                                    uint32_t count); /* contiguous; returns first */
/* Args of `from`, lists entered, with the rows of values and strings that `rename` gives for theirs; LB_NONE when out
 * of memory. */
typedef struct lb_arg_rename {
    uint32_t (*value)(void *context, uint32_t value);
    uint32_t (*string)(void *context, uint32_t string);
    void *context;
} lb_arg_rename;
LB_API uint32_t lb_program_copy_args(lb_program *program, const lb_program *from, const lb_arg *args, uint32_t count,
                                     const lb_arg_rename *rename);
LB_API uint32_t lb_program_add_refs(lb_program *program, const uint32_t *refs, uint32_t count);
LB_API uint32_t lb_program_add_op(lb_program *program, const lb_op *op);
/* Interned. What lb_op.line holds for it, which is the row + 1; LB_NONE when out of memory. */
LB_API uint32_t lb_program_line(lb_program *program, const lb_line *line);
/* The same for the line that an op of another program has; 0 stays 0. */
LB_API uint32_t lb_program_copy_line(lb_program *program, const lb_program *from, uint32_t line);
LB_API uint32_t lb_program_add_boundary(lb_program *program, const lb_boundary *row);
LB_API uint32_t lb_program_add_collective(lb_program *program, const lb_collective *row);
LB_API uint32_t lb_program_add_routing(lb_program *program, const lb_routing *row);
LB_API uint32_t lb_program_add_scalar(lb_program *program, const lb_scalar *row);
LB_API uint32_t lb_program_add_group(lb_program *program, const lb_group *row);
LB_API uint32_t lb_program_add_group_param(lb_program *program, const lb_group_param *row);
LB_API uint32_t lb_program_add_notice(lb_program *program, const lb_notice *row);
/* Rows of shards are valid once lb_program_sort_shards has put them in order. */
LB_API uint32_t lb_program_add_shard(lb_program *program, const lb_shard *row);
LB_API void lb_program_sort_shards(lb_program *program);
/* A row of another program for a value of this one, with all that it names. */
LB_API uint32_t lb_program_copy_shard(lb_program *program, const lb_program *from, const lb_shard *shard,
                                      uint32_t value);
/* Contiguous; return the first. Rows that already stand together are found again. */
LB_API uint32_t lb_program_add_extents(lb_program *program, const lb_extent *rows, uint32_t count);
LB_API uint32_t lb_program_add_placements(lb_program *program, const lb_placement *rows, uint32_t count);
/* The mesh of these axes and ranks; the row of one that is like it where there is one. */
LB_API uint32_t lb_program_mesh(lb_program *program, const lb_mesh_axis *axes, uint32_t n_axes, const uint32_t *ranks,
                                uint32_t n_ranks);

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* LB_NONE gives "". */
LB_API const char *lb_program_text(const lb_program *program, uint32_t string);
LB_API const char *lb_op_name(const lb_program *program, const lb_op *op);
LB_API const char *lb_op_layer(const lb_program *program, const lb_op *op); /* scope path */
/* Is the op the one that `base` names, whatever its overload? "aten::add" is "aten::add.Tensor", not "aten::add_". */
LB_API bool lb_op_is(const lb_program *program, const lb_op *op, const char *base);
/* The same of an op of aten that may be in place or over lists: "add" is "aten::_foreach_add_.Scalar", too. */
LB_API bool lb_op_is_in_any_form(const lb_program *program, const lb_op *op, const char *base);
/* "aten::_to_copy": another dtype, device or layout. */
LB_API bool lb_op_is_cast(const lb_program *program, const lb_op *op);
/* `_foreach_` and `_fused_`: element i of what it gives follows from element i of its lists. */
LB_API bool lb_op_is_over_lists(const lb_program *program, const lb_op *op);
/* The op by which a gradient scaler divides by its scale, and looks for what is not finite. */
LB_API bool lb_op_is_unscaling(const lb_program *program, const lb_op *op);
/* "lb::source": its one result is recorded, no op gives it. */
LB_API bool lb_op_is_source(const lb_program *program, const lb_op *op);
LB_API const char *lb_op_class(const lb_program *program, const lb_op *op); /* class of the scope, "" when unknown */
LB_API lb_code_line lb_op_line(const lb_program *program, const lb_op *op);
/* "modeling_llama.py:214 in forward: hidden_states = …", the file by its last part; as much of it as there is room for.
 * "" for no line. */
LB_API void lb_code_line_text(const lb_code_line *line, char *text, size_t size);
/* A copy whose texts are its own, and what frees them; without a line nothing is held. */
LB_API lb_code_line lb_code_line_copy(const lb_code_line *line);
LB_API void lb_code_line_release(lb_code_line *line);
/* NULL in a program that has no args, or no refs, at all. */
static inline const lb_arg *lb_op_args(const lb_program *program, const lb_op *op)
{
    return program->args ? program->args + op->first_arg : NULL;
}
static inline const uint32_t *lb_op_results(const lb_program *program, const lb_op *op)
{
    return program->refs ? program->refs + op->first_result : NULL;
}
static inline const uint32_t *lb_op_written(const lb_program *program, const lb_op *op)
{
    return program->refs ? program->refs + op->first_written : NULL;
}
/* Results, then written values, as one list. */
static inline uint32_t lb_op_outcomes(const lb_op *op)
{
    return op->results + op->written;
}
static inline uint32_t lb_op_outcome(const lb_program *program, const lb_op *op, uint32_t i)
{
    return i < op->results ? lb_op_results(program, op)[i] : lb_op_written(program, op)[i - op->results];
}
/* Calls `visit` for every value among the args of an op, lists entered, in schema order. */
LB_API void lb_op_each_input(const lb_program *program, const lb_op *op, void (*visit)(void *context, uint32_t value),
                             void *context);
/* The first value among them that lies in `storage`, and the value that the op writes there; LB_NONE for none. */
LB_API uint32_t lb_op_reads(const lb_program *program, const lb_op *op, int64_t storage);
LB_API uint32_t lb_op_writes(const lb_program *program, const lb_op *op, int64_t storage);
/* Does the op write a value that has one of these flags: LB_VALUE_PARAMETER, …? */
LB_API bool lb_op_writes_flagged(const lb_program *program, const lb_op *op, uint32_t flags);

/* Is a name `base` itself, or does it go on behind `base` and a dot? "layers.1.mlp" lies in "layers.1" and "layers.10"
 * does not; "aten::sum.dim_IntList" is an overload of "aten::sum". */
LB_API bool lb_program_name_extends(const char *name, const char *base);
/* The optimizer's group that steps the parameter in this storage; NULL. */
LB_API const lb_group *lb_program_group_of(const lb_program *program, int64_t storage);
/* Is a row of `scalars` an option of an optimizer's group, and so no measurement? */
LB_API bool lb_program_is_option(const lb_program *program, uint32_t scalar);

/* The scope of the module that a parameter of this name belongs to ("model.norm" of "model.norm.weight"); 0 when there
 * is none. */
LB_API uint32_t lb_program_owner(const lb_program *program, const char *parameter);

/* The op that first gave each value as a result or wrote it, LB_NONE for none; malloc'ed, NULL when out of memory. */
LB_API uint32_t *lb_program_producers(const lb_program *program);

/* Whether it is a value that the program marked under a name (lastbit.torch.tap), which is the path of its scope, not
 * what a module took or gave. */
LB_API bool lb_program_is_tap(const lb_program *program, const lb_boundary *boundary);

/* The shards that say what a value is part of, NULL where none does. A flat parameter has one for each parameter in
 * it. */
LB_API const lb_shard *lb_program_shards_of(const lb_program *program, uint32_t value, uint32_t *n);
/* The whole, and the part of it that the value holds (of one that is flat: one dimension), both contiguous. */
LB_API lb_layout lb_shard_whole(const lb_program *program, const lb_shard *shard);
LB_API lb_layout lb_shard_part(const lb_program *program, const lb_shard *shard);
LB_API bool lb_shard_is_flat(const lb_program *program, const lb_shard *shard);
/* "tp 1 of 2 shard(0)" for each axis of the mesh, then "[8:16, :] of [16, 6]"; as much of it as there is room for. */
LB_API void lb_shard_text(const lb_program *program, const lb_shard *shard, char *text, size_t size);
/* Where this rank stands along an axis of the mesh; -1: it is no member. */
LB_API int64_t lb_program_mesh_coordinate(const lb_program *program, const lb_mesh *mesh, uint32_t axis, int32_t rank);

/* Checks every rule stated above; a decoded program has passed it. */
LB_API lb_status lb_program_validate(const lb_program *program, lb_err *err);

/* ---- as bytes (columnar MessagePack, see formats/FORMAT.md) ------------------------------------------------------ */

/* `*bytes` is malloc'ed and the caller's. */
LB_API lb_status lb_program_encode(const lb_program *program, void **bytes, size_t *size, lb_err *err);
/* Untrusted bytes: sizes are checked before anything is allocated; fails with LB_ERR_CORRUPT naming table and row. */
LB_API lb_status lb_program_decode(const void *bytes, size_t size, lb_program **program, lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
