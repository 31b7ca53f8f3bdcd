/* The binary interface of NCCL as its public header states it: types, numbers and every entry point of 2.32.3, as rows
 * that are expanded wherever they are needed; headers from 2.18 on have fewer of them, and those alike. A test compares
 * each row with the header itself.
 *
 * Where nccl.h was included before this file its own types are taken, which is how that test works. Structs that are
 * only handed on (configurations) stay opaque. */
#ifndef LB_CAPTURE_NCCL_ABI_H
#define LB_CAPTURE_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef NCCL_H_
typedef ncclResult_t lb_nccl_result;
typedef ncclComm_t lb_nccl_comm;
typedef cudaStream_t lb_nccl_stream;
typedef ncclDataType_t lb_nccl_dtype;
typedef ncclRedOp_t lb_nccl_op;
typedef ncclScalarResidence_t lb_nccl_residence;
typedef ncclUniqueId lb_nccl_unique;
typedef ncclConfig_t lb_nccl_config;
typedef ncclCollConfig_t lb_nccl_coll_config;
typedef ncclSimInfo_t lb_nccl_sim;
typedef ncclWindow_t lb_nccl_window;
typedef ncclCommMemStat_t lb_nccl_mem_stat;
typedef ncclWaitSignalDesc_t lb_nccl_signal;
typedef ncclEncryptionConfig_t lb_nccl_encryption;
typedef ncclParamHandle_t lb_nccl_param;
#else
typedef int lb_nccl_result;
typedef struct ncclComm *lb_nccl_comm;
typedef struct CUstream_st *lb_nccl_stream;
typedef int lb_nccl_dtype, lb_nccl_op, lb_nccl_residence, lb_nccl_mem_stat;
typedef struct lb_nccl_unique {
    char internal[128];
} lb_nccl_unique;
typedef struct ncclConfig lb_nccl_config;
typedef struct ncclCollConfig lb_nccl_coll_config;
typedef struct ncclSimInfo lb_nccl_sim;
typedef struct ncclWindow_vidmem *lb_nccl_window;
typedef struct ncclWaitSignalDesc lb_nccl_signal;
typedef struct ncclEncryptionConfig lb_nccl_encryption;
typedef struct ncclParamHandle *lb_nccl_param;
#endif

enum { LB_NCCL_SUCCESS = 0, LB_NCCL_SYSTEM_ERROR = 2, LB_NCCL_IN_PROGRESS = 7 };
enum { LB_NCCL_SUM = 0, LB_NCCL_PROD = 1, LB_NCCL_MAX = 2, LB_NCCL_MIN = 3, LB_NCCL_AVG = 4, LB_NCCL_OPS = 5 };
enum { LB_NCCL_SCALAR_DEVICE = 0, LB_NCCL_SCALAR_HOST = 1 };
enum { LB_NCCL_NOCOLOR = -1 };

/* Element types: X(number, name in nccl.h, ours). */
#define LB_NCCL_DTYPES(X)                                                                                              \
    X(0, ncclInt8, LB_I8)                                                                                              \
    X(1, ncclUint8, LB_U8)                                                                                             \
    X(2, ncclInt32, LB_I32)                                                                                            \
    X(3, ncclUint32, LB_U32)                                                                                           \
    X(4, ncclInt64, LB_I64)                                                                                            \
    X(5, ncclUint64, LB_U64)                                                                                           \
    X(6, ncclFloat16, LB_F16)                                                                                          \
    X(7, ncclFloat32, LB_F32)                                                                                          \
    X(8, ncclFloat64, LB_F64)                                                                                          \
    X(9, ncclBfloat16, LB_BF16)                                                                                        \
    X(10, ncclFloat8e4m3, LB_E4M3FN)                                                                                   \
    X(11, ncclFloat8e5m2, LB_E5M2)

/* Calls that move or reduce: X(name, parameters, arguments). The Config form of a collective takes one argument
 * more. */
#define LB_NCCL_MOVING(X)                                                                                              \
    X(ncclAllReduce,                                                                                                   \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, lb_nccl_op op, lb_nccl_comm comm,              \
       lb_nccl_stream stream),                                                                                         \
      (send, recv, count, dtype, op, comm, stream))                                                                    \
    X(ncclReduce,                                                                                                      \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, lb_nccl_op op, int root, lb_nccl_comm comm,    \
       lb_nccl_stream stream),                                                                                         \
      (send, recv, count, dtype, op, root, comm, stream))                                                              \
    X(ncclBcast, (void *recv, size_t count, lb_nccl_dtype dtype, int root, lb_nccl_comm comm, lb_nccl_stream stream),  \
      (recv, count, dtype, root, comm, stream))                                                                        \
    X(ncclBroadcast,                                                                                                   \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, int root, lb_nccl_comm comm,                   \
       lb_nccl_stream stream),                                                                                         \
      (send, recv, count, dtype, root, comm, stream))                                                                  \
    X(ncclReduceScatter,                                                                                               \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, lb_nccl_op op, lb_nccl_comm comm,              \
       lb_nccl_stream stream),                                                                                         \
      (send, recv, count, dtype, op, comm, stream))                                                                    \
    X(ncclAllGather,                                                                                                   \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, lb_nccl_comm comm, lb_nccl_stream stream),     \
      (send, recv, count, dtype, comm, stream))                                                                        \
    X(ncclAlltoAll,                                                                                                    \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, lb_nccl_comm comm, lb_nccl_stream stream),     \
      (send, recv, count, dtype, comm, stream))                                                                        \
    X(ncclGather,                                                                                                      \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, int root, lb_nccl_comm comm,                   \
       lb_nccl_stream stream),                                                                                         \
      (send, recv, count, dtype, root, comm, stream))                                                                  \
    X(ncclScatter,                                                                                                     \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, int root, lb_nccl_comm comm,                   \
       lb_nccl_stream stream),                                                                                         \
      (send, recv, count, dtype, root, comm, stream))                                                                  \
    X(ncclAllReduceConfig,                                                                                             \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, lb_nccl_op op, lb_nccl_comm comm,              \
       lb_nccl_stream stream, const lb_nccl_coll_config *config),                                                      \
      (send, recv, count, dtype, op, comm, stream, config))                                                            \
    X(ncclReduceConfig,                                                                                                \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, lb_nccl_op op, int root, lb_nccl_comm comm,    \
       lb_nccl_stream stream, const lb_nccl_coll_config *config),                                                      \
      (send, recv, count, dtype, op, root, comm, stream, config))                                                      \
    X(ncclBroadcastConfig,                                                                                             \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, int root, lb_nccl_comm comm,                   \
       lb_nccl_stream stream, const lb_nccl_coll_config *config),                                                      \
      (send, recv, count, dtype, root, comm, stream, config))                                                          \
    X(ncclReduceScatterConfig,                                                                                         \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, lb_nccl_op op, lb_nccl_comm comm,              \
       lb_nccl_stream stream, const lb_nccl_coll_config *config),                                                      \
      (send, recv, count, dtype, op, comm, stream, config))                                                            \
    X(ncclAllGatherConfig,                                                                                             \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, lb_nccl_comm comm, lb_nccl_stream stream,      \
       const lb_nccl_coll_config *config),                                                                             \
      (send, recv, count, dtype, comm, stream, config))                                                                \
    X(ncclAlltoAllConfig,                                                                                              \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, lb_nccl_comm comm, lb_nccl_stream stream,      \
       const lb_nccl_coll_config *config),                                                                             \
      (send, recv, count, dtype, comm, stream, config))                                                                \
    X(ncclGatherConfig,                                                                                                \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, int root, lb_nccl_comm comm,                   \
       lb_nccl_stream stream, const lb_nccl_coll_config *config),                                                      \
      (send, recv, count, dtype, root, comm, stream, config))                                                          \
    X(ncclScatterConfig,                                                                                               \
      (const void *send, void *recv, size_t count, lb_nccl_dtype dtype, int root, lb_nccl_comm comm,                   \
       lb_nccl_stream stream, const lb_nccl_coll_config *config),                                                      \
      (send, recv, count, dtype, root, comm, stream, config))                                                          \
    X(ncclSend,                                                                                                        \
      (const void *send, size_t count, lb_nccl_dtype dtype, int root, lb_nccl_comm comm, lb_nccl_stream stream),       \
      (send, count, dtype, root, comm, stream))                                                                        \
    X(ncclRecv, (void *recv, size_t count, lb_nccl_dtype dtype, int root, lb_nccl_comm comm, lb_nccl_stream stream),   \
      (recv, count, dtype, root, comm, stream))

/* Calls that make, end or order what the shim keeps books on. */
#define LB_NCCL_KEEPING(X)                                                                                             \
    X(ncclCommInitRank, (lb_nccl_comm * comm, int ranks, lb_nccl_unique id, int rank), (comm, ranks, id, rank))        \
    X(ncclCommInitRankConfig, (lb_nccl_comm * comm, int ranks, lb_nccl_unique id, int rank, lb_nccl_config *config),   \
      (comm, ranks, id, rank, config))                                                                                 \
    X(ncclCommInitRankScalable,                                                                                        \
      (lb_nccl_comm * comm, int ranks, int rank, int n_ids, lb_nccl_unique *ids, lb_nccl_config *config),              \
      (comm, ranks, rank, n_ids, ids, config))                                                                         \
    X(ncclCommInitAll, (lb_nccl_comm * comms, int n, const int *devices), (comms, n, devices))                         \
    X(ncclCommSplit, (lb_nccl_comm comm, int color, int key, lb_nccl_comm *made, lb_nccl_config *config),              \
      (comm, color, key, made, config))                                                                                \
    X(ncclCommShrink,                                                                                                  \
      (lb_nccl_comm comm, int *excluded, int n_excluded, lb_nccl_comm *made, lb_nccl_config *config, int flags),       \
      (comm, excluded, n_excluded, made, config, flags))                                                               \
    X(ncclCommFinalize, (lb_nccl_comm comm), (comm))                                                                   \
    X(ncclCommDestroy, (lb_nccl_comm comm), (comm))                                                                    \
    X(ncclCommAbort, (lb_nccl_comm comm), (comm))                                                                      \
    X(ncclCommRevoke, (lb_nccl_comm comm, int flags), (comm, flags))                                                   \
    X(ncclCommGetAsyncError, (lb_nccl_comm comm, lb_nccl_result * error), (comm, error))                               \
    X(ncclRedOpCreatePreMulSum,                                                                                        \
      (lb_nccl_op * op, void *scalar, lb_nccl_dtype dtype, lb_nccl_residence residence, lb_nccl_comm comm),            \
      (op, scalar, dtype, residence, comm))                                                                            \
    X(ncclRedOpDestroy, (lb_nccl_op op, lb_nccl_comm comm), (op, comm))                                                \
    X(ncclGroupStart, (void), ())                                                                                      \
    X(ncclGroupEnd, (void), ())                                                                                        \
    X(ncclGroupSimulateEnd, (lb_nccl_sim * info), (info))

/* Calls that are handed on as they are. One-sided ones (PutSignal, Signal, WaitSignal) are among them: they are not
 * recorded. */
#define LB_NCCL_FORWARDED(X)                                                                                           \
    X(ncclMemAlloc, (void **pointer, size_t size), (pointer, size))                                                    \
    X(ncclMemFree, (void *pointer), (pointer))                                                                         \
    X(ncclGetVersion, (int *version), (version))                                                                       \
    X(ncclGetUniqueId, (lb_nccl_unique * id), (id))                                                                    \
    X(ncclCommGetUniqueId, (lb_nccl_comm comm, lb_nccl_unique * id), (comm, id))                                       \
    X(ncclCommGrow,                                                                                                    \
      (lb_nccl_comm comm, int ranks, const lb_nccl_unique *id, int rank, lb_nccl_comm *made, lb_nccl_config *config),  \
      (comm, ranks, id, rank, made, config))                                                                           \
    X(ncclCommCount, (const lb_nccl_comm comm, int *count), (comm, count))                                             \
    X(ncclCommCuDevice, (const lb_nccl_comm comm, int *device), (comm, device))                                        \
    X(ncclCommUserRank, (const lb_nccl_comm comm, int *rank), (comm, rank))                                            \
    X(ncclCommRegister, (const lb_nccl_comm comm, void *buffer, size_t size, void **handle),                           \
      (comm, buffer, size, handle))                                                                                    \
    X(ncclCommDeregister, (const lb_nccl_comm comm, void *handle), (comm, handle))                                     \
    X(ncclCommSuspend, (lb_nccl_comm comm, int flags), (comm, flags))                                                  \
    X(ncclCommResume, (lb_nccl_comm comm), (comm))                                                                     \
    X(ncclCommMemStats, (lb_nccl_comm comm, lb_nccl_mem_stat stat, uint64_t * value), (comm, stat, value))             \
    X(ncclCommWindowRegister, (lb_nccl_comm comm, void *buffer, size_t size, lb_nccl_window *window, int flags),       \
      (comm, buffer, size, window, flags))                                                                             \
    X(ncclCommWindowDeregister, (lb_nccl_comm comm, lb_nccl_window window), (comm, window))                            \
    X(ncclWinGetUserPtr, (lb_nccl_comm comm, lb_nccl_window window, void **pointer), (comm, window, pointer))          \
    X(ncclPutSignal,                                                                                                   \
      (const void *buffer, size_t count, lb_nccl_dtype dtype, int peer, lb_nccl_window window, size_t offset,          \
       int signal, int context, unsigned int flags, lb_nccl_comm comm, lb_nccl_stream stream),                         \
      (buffer, count, dtype, peer, window, offset, signal, context, flags, comm, stream))                              \
    X(ncclSignal, (int peer, int signal, int context, unsigned int flags, lb_nccl_comm comm, lb_nccl_stream stream),   \
      (peer, signal, context, flags, comm, stream))                                                                    \
    X(ncclWaitSignal, (int n, lb_nccl_signal *signals, lb_nccl_comm comm, lb_nccl_stream stream),                      \
      (n, signals, comm, stream))                                                                                      \
    X(ncclSetEncryption, (const lb_nccl_encryption *config), (config))                                                 \
    X(ncclParamBind, (lb_nccl_param * out, const char *key), (out, key))                                               \
    X(ncclParamGetI8, (lb_nccl_param handle, int8_t * out), (handle, out))                                             \
    X(ncclParamGetI16, (lb_nccl_param handle, int16_t * out), (handle, out))                                           \
    X(ncclParamGetI32, (lb_nccl_param handle, int32_t * out), (handle, out))                                           \
    X(ncclParamGetI64, (lb_nccl_param handle, int64_t * out), (handle, out))                                           \
    X(ncclParamGetU8, (lb_nccl_param handle, uint8_t * out), (handle, out))                                            \
    X(ncclParamGetU16, (lb_nccl_param handle, uint16_t * out), (handle, out))                                          \
    X(ncclParamGetU32, (lb_nccl_param handle, uint32_t * out), (handle, out))                                          \
    X(ncclParamGetU64, (lb_nccl_param handle, uint64_t * out), (handle, out))                                          \
    X(ncclParamGetStr, (lb_nccl_param handle, const char **out), (handle, out))                                        \
    X(ncclParamGet, (lb_nccl_param handle, void *out, int room, int *length), (handle, out, room, length))             \
    X(ncclParamGetParameter, (const char *key, const char **value, int *length), (key, value, length))                 \
    X(ncclParamGetAllParameterKeys, (const char ***table, int *length), (table, length))

/* All that give a result, then those that give something else. */
#define LB_NCCL_ROWS(X) LB_NCCL_MOVING(X) LB_NCCL_KEEPING(X) LB_NCCL_FORWARDED(X)
#define LB_NCCL_OTHERS(X)                                                                                              \
    X(ncclGetErrorString, (lb_nccl_result result), (result))                                                           \
    X(ncclGetLastError, (lb_nccl_comm comm), (comm))                                                                   \
    X(ncclResetDebugInit, (void), ())                                                                                  \
    X(ncclParamDumpAll, (void), ())

#endif
