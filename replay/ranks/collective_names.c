/* Names of collectives, each with what it moves and where its arguments stand: see collective_names.h. */
#include "ranks/collective_names.h"

#include "orders/collective_sum.h"

#include <string.h>

static const lb_collective_name NAMES[] = {
    {"c10d::allreduce_", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"c10d::allreduce_coalesced_", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, true},
    {"c10d::reduce_", LB_EXCHANGE_REDUCE, 0, 3, -1, false},
    {"c10d::broadcast_", LB_EXCHANGE_BROADCAST, 0, 2, -1, false},
    {"c10d::allgather_", LB_EXCHANGE_ALL_GATHER, 1, -1, -1, false},
    {"c10d::_allgather_base_", LB_EXCHANGE_ALL_GATHER, 1, -1, -1, false},
    {"c10d::allgather_into_tensor_coalesced_", LB_EXCHANGE_ALL_GATHER, 1, -1, -1, false},
    {"c10d::allgather_coalesced_", LB_EXCHANGE_ALL_GATHER, 1, -1, -1, true},
    {"c10d::gather_", LB_EXCHANGE_GATHER, 1, 3, -1, false},
    {"c10d::scatter_", LB_EXCHANGE_SCATTER, 1, 3, -1, false},
    {"c10d::reduce_scatter_", LB_EXCHANGE_REDUCE_SCATTER, 1, -1, -1, true},
    {"c10d::_reduce_scatter_base_", LB_EXCHANGE_REDUCE_SCATTER, 1, -1, -1, false},
    {"c10d::reduce_scatter_tensor_coalesced_", LB_EXCHANGE_REDUCE_SCATTER, 1, -1, -1, false},
    {"c10d::alltoall_", LB_EXCHANGE_ALL_TO_ALL, 1, -1, -1, true},
    {"c10d::alltoall_base_", LB_EXCHANGE_ALL_TO_ALL, 1, -1, 3, false},
    {"c10d::barrier", LB_EXCHANGE_NOTHING, -1, -1, -1, false},
    {"c10d::monitored_barrier_", LB_EXCHANGE_NOTHING, -1, -1, -1, false},
    {"_c10d_functional::all_reduce", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"_c10d_functional::all_reduce_", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"_c10d_functional::all_reduce_coalesced", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"_c10d_functional::all_reduce_coalesced_", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"_c10d_functional::broadcast", LB_EXCHANGE_BROADCAST, 0, 1, -1, false},
    {"_c10d_functional::broadcast_", LB_EXCHANGE_BROADCAST, 0, 1, -1, false},
    {"_c10d_functional::all_gather_into_tensor", LB_EXCHANGE_ALL_GATHER, 0, -1, -1, false},
    {"_c10d_functional::all_gather_into_tensor_out", LB_EXCHANGE_ALL_GATHER, 0, -1, -1, false},
    {"_c10d_functional::all_gather_into_tensor_coalesced", LB_EXCHANGE_ALL_GATHER, 0, -1, -1, false},
    {"_c10d_functional::reduce_scatter_tensor", LB_EXCHANGE_REDUCE_SCATTER, 0, -1, -1, false},
    {"_c10d_functional::reduce_scatter_tensor_out", LB_EXCHANGE_REDUCE_SCATTER, 0, -1, -1, false},
    {"_c10d_functional::reduce_scatter_tensor_coalesced", LB_EXCHANGE_REDUCE_SCATTER, 0, -1, -1, false},
    {"_c10d_functional::all_to_all_single", LB_EXCHANGE_ALL_TO_ALL, 0, -1, 1, false},
    /* vllm/distributed/parallel_state.py, csrc/torch_bindings.cpp, csrc/cpu/torch_bindings.cpp of vllm-project/vllm */
    {"vllm::all_reduce", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"vllm::inplace_all_reduce", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"vllm::outplace_all_reduce", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"vllm::all_gather", LB_EXCHANGE_ALL_GATHER, 0, -1, -1, false, .dim = 1},
    {"vllm::reduce_scatter", LB_EXCHANGE_REDUCE_SCATTER, 0, -1, -1, false, .dim = 1},
    {"_C_custom_ar::all_reduce", LB_EXCHANGE_ALL_REDUCE, 1, -1, -1, false, .shared_memory = true},
    {"_C::shm_allreduce", LB_EXCHANGE_ALL_REDUCE, 1, -1, -1, false},
    /* python/sglang/srt/distributed/parallel_state.py, sgl-kernel/csrc/common_extension.cc of sgl-project/sglang */
    {"sglang::inplace_all_reduce", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"sglang::outplace_all_reduce", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"sglang::reg_all_gather_into_tensor", LB_EXCHANGE_ALL_GATHER, 1, -1, -1, false},
    {"sglang::reg_reduce_scatter_tensor", LB_EXCHANGE_REDUCE_SCATTER, 1, -1, -1, false},
    {"sgl_kernel::all_reduce", LB_EXCHANGE_ALL_REDUCE, 1, -1, -1, false, .shared_memory = true},
    {"sgl_kernel::mscclpp_allreduce", LB_EXCHANGE_ALL_REDUCE, 1, -1, -1, false},
    {"sgl_kernel::shm_allreduce", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"sgl_kernel::shm_allgather", LB_EXCHANGE_ALL_GATHER, 0, -1, -1, false, .dim = 1},
    /* cpp/tensorrt_llm/thop of NVIDIA/TensorRT-LLM; an all-reduce that does more than that has more results, which do
     * not fit */
    {"trtllm::allreduce", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false},
    {"trtllm::allgather", LB_EXCHANGE_ALL_GATHER, 0, -1, -1, false},
    {"trtllm::reducescatter", LB_EXCHANGE_REDUCE_SCATTER, 0, -1, -1, false},
    /* capture/nccl/call_writer.h */
    {"nccl::all_reduce", LB_EXCHANGE_ALL_REDUCE, 0, -1, -1, false, .nccl = true},
    {"nccl::reduce", LB_EXCHANGE_REDUCE, 0, 2, -1, false, .nccl = true},
    {"nccl::broadcast", LB_EXCHANGE_BROADCAST, 0, 2, -1, false, .nccl = true},
    {"nccl::all_gather", LB_EXCHANGE_ALL_GATHER, 0, -1, -1, false, .nccl = true},
    {"nccl::reduce_scatter", LB_EXCHANGE_REDUCE_SCATTER, 0, -1, -1, false, .nccl = true},
    {"nccl::all_to_all", LB_EXCHANGE_ALL_TO_ALL, 0, -1, -1, false, .nccl = true},
    {"nccl::gather", LB_EXCHANGE_GATHER, 0, 2, -1, false, .nccl = true},
    {"nccl::scatter", LB_EXCHANGE_SCATTER, 0, 2, -1, false, .nccl = true},
};

const lb_collective_name *lb_collective_name_find(const char *op_name)
{
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (!strcmp(NAMES[i].name, op_name)) return &NAMES[i];
    return NULL;
}

bool lb_collective_run_knows(const char *op_name)
{
    return lb_collective_name_find(op_name) != NULL;
}

lb_exchange_kind lb_collective_run_kind(const char *op_name)
{
    const lb_collective_name *name = lb_collective_name_find(op_name);
    return name ? name->kind : LB_EXCHANGE_NOTHING;
}

const lb_arg *lb_collective_run_input(const lb_program *program, const lb_op *op)
{
    const lb_collective_name *name = lb_collective_name_find(lb_op_name(program, op));
    return name && name->inputs >= 0 && (uint32_t)name->inputs < op->args ? &lb_op_args(program, op)[name->inputs]
                                                                          : NULL;
}

uint32_t lb_collective_name_root(const lb_collective_name *name, const lb_program *program, const lb_op *op)
{
    if (name->root < 0 || (uint32_t)name->root >= op->args) return 0;
    const lb_arg *arg = &lb_op_args(program, op)[name->root];
    return arg->tag == LB_ARG_INT && arg->u.i >= 0 && arg->u.i < LB_COLLECTIVE_MAX_RANKS ? (uint32_t)arg->u.i : 0;
}

bool lb_collective_name_is_received(const lb_collective_name *name, uint32_t root, uint32_t who)
{
    return (name->kind != LB_EXCHANGE_GATHER && name->kind != LB_EXCHANGE_REDUCE) || who == root;
}

uint32_t lb_collective_run_root(const lb_program *program, const lb_op *op)
{
    const lb_collective_name *name = lb_collective_name_find(lb_op_name(program, op));
    return name ? lb_collective_name_root(name, program, op) : 0;
}

bool lb_collective_run_receives(const lb_program *program, const lb_op *op, uint32_t who)
{
    const lb_collective_name *name = lb_collective_name_find(lb_op_name(program, op));
    return name && lb_collective_name_is_received(name, lb_collective_name_root(name, program, op), who);
}
