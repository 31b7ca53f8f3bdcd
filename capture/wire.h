/* The wire between a Python process and the recorder: one call per op, everything about it in one array of 64-bit words.
 * Loaded by ctypes; no struct crosses the border, so that neither side need agree on more than this page.
 *
 *   operand  NONE: 0 · INT, BOOL, DTYPE: tag, number · FLOAT: tag, bits of a double · STRING: tag, string ·
 *            LIST: tag, count, items… · COMPLEX: tag, bits, bits ·
 *            VALUE: tag, storage, data pointer, storage bytes, offset, dtype, device, ndim, shape…, stride…
 *   begin    function, phase, flags, scope, call, node, node name, thread, count of args, args…
 *   end      count of results, results…
 *
 * Functions and strings are registered once and then named by number; string 0 is "none". Tags are lb_arg_tag.
 * Every function returns a negative lb_status on failure, whose message lb_wire_message has. */
#ifndef LB_WIRE_H
#define LB_WIRE_H

#include <lastbit/capture.h>

typedef struct lb_wire lb_wire;

LB_API lb_wire *lb_wire_new(void);
LB_API void lb_wire_free(lb_wire *wire);
LB_API const char *lb_wire_message(const lb_wire *wire);

/* Opens a recorder behind the wire. Text may be NULL or "". */
LB_API int lb_wire_open(lb_wire *wire, const char *folder, const char *level, int rank, int world, const char *keep,
                        const char *layers, uint64_t budget_bytes, uint32_t ring, uint64_t ring_bytes, int overwrite);
LB_API int lb_wire_close(lb_wire *wire);
LB_API void lb_wire_abandon(lb_wire *wire);
LB_API lb_recorder *lb_wire_recorder(lb_wire *wire);

LB_API int64_t lb_wire_string(lb_wire *wire, const char *text);
/* `arg_flags`: one per arg of the schema: lb_operand_flags, and 128: an integer given here means a float. */
LB_API int64_t lb_wire_function(lb_wire *wire, const char *name, uint32_t flags, const uint8_t *arg_flags, uint32_t n_args);

enum lb_wire_mode { LB_WIRE_WHOLE = 0, LB_WIRE_BEGIN = 1, LB_WIRE_END = 2, LB_WIRE_DEFER = 3 };
/* WHOLE: begin and end in one array; returns the row of the op. BEGIN: returns a number for END, DEFER or failed. */
LB_API int64_t lb_wire_op(lb_wire *wire, int mode, int64_t begun, const int64_t *words, size_t n);
LB_API void lb_wire_failed(lb_wire *wire, int64_t begun);

/* Returns the number of this call of the scope. `words`: count of tensors, tensors… (operands). */
LB_API int64_t lb_wire_enter(lb_wire *wire, uint32_t scope, int recompute, const int64_t *words, size_t n);
LB_API int lb_wire_leave(lb_wire *wire, uint32_t scope, uint32_t call, int recompute, const int64_t *words, size_t n);
/* `words`: one tensor. */
LB_API int lb_wire_role(lb_wire *wire, int kind, uint32_t flags, const char *name, const int64_t *words, size_t n);
/* `words`: logits, ids, weights, slots, dropped (operands, NONE where there is none). */
LB_API int lb_wire_routing(lb_wire *wire, uint32_t scope, uint32_t call, const int64_t *words, size_t n);
LB_API int lb_wire_collective(lb_wire *wire, int64_t op, const char *group, const char *reduce, uint64_t sequence,
                              const int32_t *ranks, uint32_t n_ranks);
/* `words`: count of members, (name, storage, gradient)…, count of options, (name, bits of a double)…; names are strings. */
LB_API int lb_wire_group(lb_wire *wire, const char *optimizer, uint32_t index, uint32_t first_op, const int64_t *words, size_t n);

LB_API int lb_wire_step_begin(lb_wire *wire, int64_t step, const char *shard);
LB_API int lb_wire_step_end(lb_wire *wire, int complete);
LB_API int lb_wire_scalar(lb_wire *wire, const char *name, double number);
LB_API int lb_wire_notice(lb_wire *wire, const char *kind, const char *message);
LB_API int lb_wire_table(lb_wire *wire, const char *name, const char *json);
LB_API int lb_wire_trigger(lb_wire *wire, const char *why);
LB_API void lb_wire_forget(lb_wire *wire, const int64_t *storages, size_t n);

#endif
