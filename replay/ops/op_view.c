/* Ops that compute nothing: views, and what only the host sees. Their rows exist so that they are known, not opaque.
 *
 * The interpreter makes a view's result from the recorded layout over the storage of args[0]; whether a result really
 * aliases it is what the recording says (`_unsafe_view` does although its schema denies it, `reshape` may copy, a tap
 * copies). */
#include "kernel/ops.h"

#define VIEW(NAME, ARGS) {.name = "aten::" NAME, .args = ARGS, .flags = LB_ROW_VIEW | LB_ROW_EXACT, .samples = "view"},
#define HOST(NAME, ARGS, FLAGS) {.name = NAME, .args = ARGS, .flags = LB_ROW_HOST | (FLAGS), .samples = "host"},

/* clang-format off */
const lb_op_row lb_rows_view[] = {
    VIEW("view", "self size")
    VIEW("view.dtype", "self dtype")
    VIEW("_unsafe_view", "self size")
    VIEW("_reshape_alias", "self size stride")
    VIEW("t", "self")
    VIEW("transpose.int", "self dim0 dim1")
    VIEW("permute", "self dims")
    VIEW("expand", "self size implicit")
    VIEW("unsqueeze", "self dim")
    VIEW("squeeze", "self")
    VIEW("squeeze.dim", "self dim")
    VIEW("squeeze.dims", "self dim")
    VIEW("slice.Tensor", "self dim start end step")
    VIEW("slice_inverse", "self src dim start end step")
    VIEW("select.int", "self dim index")
    VIEW("split.Tensor", "self split_size dim")
    VIEW("split_with_sizes", "self split_sizes dim")
    VIEW("unsafe_split.Tensor", "self split_size dim")
    VIEW("unsafe_split_with_sizes", "self split_sizes dim")
    VIEW("unbind.int", "self dim")
    VIEW("as_strided", "self size stride storage_offset")
    VIEW("diagonal", "self offset dim1 dim2")
    VIEW("unfold", "self dimension size step")
    VIEW("detach", "self")
    VIEW("alias", "self")
    VIEW("lift_fresh", "self")
    VIEW("lift", "self")
    VIEW("view_as_real", "self")
    VIEW("view_as_complex", "self")
    VIEW("_fw_primal", "self level")
    /* composites that arrive whole under inference_mode where they could not be taken apart */
    VIEW("narrow", "self dim start length")
    VIEW("chunk", "self chunks dim")
    VIEW("unflatten.int", "self dim sizes")
    VIEW("movedim.int", "self source destination")
    VIEW("movedim.intlist", "self source destination")
    VIEW("view_as", "self other")
    VIEW("expand_as", "self other")
    VIEW("swapaxes", "self axis0 axis1")
    VIEW("swapdims", "self dim0 dim1")
    VIEW("moveaxis.int", "self source destination")
    VIEW("moveaxis.intlist", "self source destination")
    VIEW("numpy_T", "self")
    VIEW("mT", "self")
    VIEW("adjoint", "self")
    VIEW("broadcast_to", "self size")
    VIEW("tensor_split.sections", "self sections dim")
    VIEW("tensor_split.indices", "self indices dim")
    VIEW("split.sizes", "self split_size dim")
    VIEW("unsafe_chunk", "self chunks dim")
    VIEW("narrow.Tensor", "self dim start length")
    VIEW("data", "self")
    VIEW("real", "self")
    VIEW("imag", "self")
    /* a value marked by the recorded program: capture/lastbit/torch/taps.py */
    {.name = LB_OP_TAP, .args = "value name", .flags = LB_ROW_VIEW | LB_ROW_EXACT, .samples = "view"},

    HOST("aten::_local_scalar_dense", "self", LB_ROW_DECISION)
    HOST("aten::is_same_size", "self other", 0)
    HOST("aten::is_coalesced", "self", 0)
    HOST("aten::_nested_tensor_from_mask_left_aligned", "t mask", 0)
    HOST("aten::promote_types", "type1 type2", 0)
    HOST("aten::sym_size.int", "self dim", 0)
    HOST("aten::sym_numel", "self", 0)
    HOST("aten::sym_stride.int", "self dim", 0)
    HOST("aten::sym_storage_offset", "self", 0)
    HOST("aten::_assert_async", "self", 0)
    HOST("aten::_assert_async.msg", "self assert_msg", 0)
    HOST("aten::_assert_scalar", "self assert_msg", 0)
    HOST("aten::_linalg_check_errors", "info api_name is_matrix", 0)
    HOST("aten::_assert_tensor_metadata", "a size stride dtype device layout", 0)
    HOST("aten::_use_cudnn_rnn_flatten_weight", "", 0)
    HOST("aten::record_stream", "self s", 0)
    HOST("profiler::_record_function_enter", "name args", 0)
    HOST("profiler::_record_function_enter_new", "name args", 0)
    HOST("profiler::_record_function_exit", "handle", 0)
    HOST("profiler::_record_function_exit._RecordFunction", "record", 0)
    {NULL}
};
