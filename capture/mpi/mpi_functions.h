/* MPI's functions that are wrapped, as rows that are expanded wherever they are needed: X(name without MPI_,
 * parameters, arguments), with handles as in mpi_family.h. Status and request are pointers in every family. */
#ifndef LB_CAPTURE_MPI_FUNCTIONS_H
#define LB_CAPTURE_MPI_FUNCTIONS_H

#include "mpi/mpi_family.h"

typedef lb_mpi_handle lb_mpi_comm, lb_mpi_datatype, lb_mpi_op;

/* clang-format off */
/* That have done their work when they return. */
#define LB_MPI_BLOCKING(X) \
    X(Allreduce, (const void *send, void *recv, int count, lb_mpi_datatype type, lb_mpi_op op, lb_mpi_comm comm), (send, recv, count, type, op, comm)) \
    X(Reduce, (const void *send, void *recv, int count, lb_mpi_datatype type, lb_mpi_op op, int root, lb_mpi_comm comm), (send, recv, count, type, op, root, comm)) \
    X(Scan, (const void *send, void *recv, int count, lb_mpi_datatype type, lb_mpi_op op, lb_mpi_comm comm), (send, recv, count, type, op, comm)) \
    X(Exscan, (const void *send, void *recv, int count, lb_mpi_datatype type, lb_mpi_op op, lb_mpi_comm comm), (send, recv, count, type, op, comm)) \
    X(Reduce_scatter, (const void *send, void *recv, const int counts[], lb_mpi_datatype type, lb_mpi_op op, lb_mpi_comm comm), (send, recv, counts, type, op, comm)) \
    X(Reduce_scatter_block, (const void *send, void *recv, int count, lb_mpi_datatype type, lb_mpi_op op, lb_mpi_comm comm), (send, recv, count, type, op, comm)) \
    X(Bcast, (void *recv, int count, lb_mpi_datatype type, int root, lb_mpi_comm comm), (recv, count, type, root, comm)) \
    X(Allgather, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, int recv_count, lb_mpi_datatype recv_type, lb_mpi_comm comm), (send, send_count, send_type, recv, recv_count, recv_type, comm)) \
    X(Allgatherv, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, const int recv_counts[], const int recv_at[], lb_mpi_datatype recv_type, lb_mpi_comm comm), (send, send_count, send_type, recv, recv_counts, recv_at, recv_type, comm)) \
    X(Gather, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, int recv_count, lb_mpi_datatype recv_type, int root, lb_mpi_comm comm), (send, send_count, send_type, recv, recv_count, recv_type, root, comm)) \
    X(Gatherv, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, const int recv_counts[], const int recv_at[], lb_mpi_datatype recv_type, int root, lb_mpi_comm comm), (send, send_count, send_type, recv, recv_counts, recv_at, recv_type, root, comm)) \
    X(Scatter, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, int recv_count, lb_mpi_datatype recv_type, int root, lb_mpi_comm comm), (send, send_count, send_type, recv, recv_count, recv_type, root, comm)) \
    X(Scatterv, (const void *send, const int send_counts[], const int send_at[], lb_mpi_datatype send_type, void *recv, int recv_count, lb_mpi_datatype recv_type, int root, lb_mpi_comm comm), (send, send_counts, send_at, send_type, recv, recv_count, recv_type, root, comm)) \
    X(Alltoall, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, int recv_count, lb_mpi_datatype recv_type, lb_mpi_comm comm), (send, send_count, send_type, recv, recv_count, recv_type, comm)) \
    X(Alltoallv, (const void *send, const int send_counts[], const int send_at[], lb_mpi_datatype send_type, void *recv, const int recv_counts[], const int recv_at[], lb_mpi_datatype recv_type, lb_mpi_comm comm), (send, send_counts, send_at, send_type, recv, recv_counts, recv_at, recv_type, comm)) \
    X(Send, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm), (send, count, type, peer, tag, comm)) \
    X(Ssend, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm), (send, count, type, peer, tag, comm)) \
    X(Bsend, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm), (send, count, type, peer, tag, comm)) \
    X(Rsend, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm), (send, count, type, peer, tag, comm))

/* Begun by one call and finished by another, by its request. */
#define LB_MPI_BEGUN(X) \
    X(Iallreduce, (const void *send, void *recv, int count, lb_mpi_datatype type, lb_mpi_op op, lb_mpi_comm comm, void *request), (send, recv, count, type, op, comm, request)) \
    X(Ireduce, (const void *send, void *recv, int count, lb_mpi_datatype type, lb_mpi_op op, int root, lb_mpi_comm comm, void *request), (send, recv, count, type, op, root, comm, request)) \
    X(Iscan, (const void *send, void *recv, int count, lb_mpi_datatype type, lb_mpi_op op, lb_mpi_comm comm, void *request), (send, recv, count, type, op, comm, request)) \
    X(Iexscan, (const void *send, void *recv, int count, lb_mpi_datatype type, lb_mpi_op op, lb_mpi_comm comm, void *request), (send, recv, count, type, op, comm, request)) \
    X(Ireduce_scatter, (const void *send, void *recv, const int counts[], lb_mpi_datatype type, lb_mpi_op op, lb_mpi_comm comm, void *request), (send, recv, counts, type, op, comm, request)) \
    X(Ireduce_scatter_block, (const void *send, void *recv, int count, lb_mpi_datatype type, lb_mpi_op op, lb_mpi_comm comm, void *request), (send, recv, count, type, op, comm, request)) \
    X(Ibcast, (void *recv, int count, lb_mpi_datatype type, int root, lb_mpi_comm comm, void *request), (recv, count, type, root, comm, request)) \
    X(Iallgather, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, int recv_count, lb_mpi_datatype recv_type, lb_mpi_comm comm, void *request), (send, send_count, send_type, recv, recv_count, recv_type, comm, request)) \
    X(Iallgatherv, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, const int recv_counts[], const int recv_at[], lb_mpi_datatype recv_type, lb_mpi_comm comm, void *request), (send, send_count, send_type, recv, recv_counts, recv_at, recv_type, comm, request)) \
    X(Igather, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, int recv_count, lb_mpi_datatype recv_type, int root, lb_mpi_comm comm, void *request), (send, send_count, send_type, recv, recv_count, recv_type, root, comm, request)) \
    X(Igatherv, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, const int recv_counts[], const int recv_at[], lb_mpi_datatype recv_type, int root, lb_mpi_comm comm, void *request), (send, send_count, send_type, recv, recv_counts, recv_at, recv_type, root, comm, request)) \
    X(Iscatter, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, int recv_count, lb_mpi_datatype recv_type, int root, lb_mpi_comm comm, void *request), (send, send_count, send_type, recv, recv_count, recv_type, root, comm, request)) \
    X(Iscatterv, (const void *send, const int send_counts[], const int send_at[], lb_mpi_datatype send_type, void *recv, int recv_count, lb_mpi_datatype recv_type, int root, lb_mpi_comm comm, void *request), (send, send_counts, send_at, send_type, recv, recv_count, recv_type, root, comm, request)) \
    X(Ialltoall, (const void *send, int send_count, lb_mpi_datatype send_type, void *recv, int recv_count, lb_mpi_datatype recv_type, lb_mpi_comm comm, void *request), (send, send_count, send_type, recv, recv_count, recv_type, comm, request)) \
    X(Ialltoallv, (const void *send, const int send_counts[], const int send_at[], lb_mpi_datatype send_type, void *recv, const int recv_counts[], const int recv_at[], lb_mpi_datatype recv_type, lb_mpi_comm comm, void *request), (send, send_counts, send_at, send_type, recv, recv_counts, recv_at, recv_type, comm, request)) \
    X(Isend, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *request), (send, count, type, peer, tag, comm, request)) \
    X(Issend, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *request), (send, count, type, peer, tag, comm, request)) \
    X(Ibsend, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *request), (send, count, type, peer, tag, comm, request)) \
    X(Irsend, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *request), (send, count, type, peer, tag, comm, request)) \
    X(Irecv, (void *recv, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *request), (recv, count, type, peer, tag, comm, request))

/* Made once and started again and again. */
#define LB_MPI_PERSISTENT(X) \
    X(Send_init, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *request), (send, count, type, peer, tag, comm, request)) \
    X(Ssend_init, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *request), (send, count, type, peer, tag, comm, request)) \
    X(Bsend_init, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *request), (send, count, type, peer, tag, comm, request)) \
    X(Rsend_init, (const void *send, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *request), (send, count, type, peer, tag, comm, request)) \
    X(Recv_init, (void *recv, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *request), (recv, count, type, peer, tag, comm, request))

/* That make a communicator. */
#define LB_MPI_MAKING(X) \
    X(Comm_dup, (lb_mpi_comm comm, void *made), (comm, made)) \
    X(Comm_dup_with_info, (lb_mpi_comm comm, void *info, void *made), (comm, info, made)) \
    X(Comm_split, (lb_mpi_comm comm, int color, int key, void *made), (comm, color, key, made)) \
    X(Comm_split_type, (lb_mpi_comm comm, int kind, int key, void *info, void *made), (comm, kind, key, info, made)) \
    X(Comm_create, (lb_mpi_comm comm, void *group, void *made), (comm, group, made)) \
    X(Comm_create_group, (lb_mpi_comm comm, void *group, int tag, void *made), (comm, group, tag, made)) \
    X(Cart_create, (lb_mpi_comm comm, int n, const int dims[], const int periods[], int reorder, void *made), (comm, n, dims, periods, reorder, made)) \
    X(Cart_sub, (lb_mpi_comm comm, const int remain[], void *made), (comm, remain, made)) \
    X(Graph_create, (lb_mpi_comm comm, int n, const int index[], const int edges[], int reorder, void *made), (comm, n, index, edges, reorder, made)) \
    X(Dist_graph_create, (lb_mpi_comm comm, int n, const int sources[], const int degrees[], const int destinations[], const int weights[], void *info, int reorder, void *made), (comm, n, sources, degrees, destinations, weights, info, reorder, made)) \
    X(Dist_graph_create_adjacent, (lb_mpi_comm comm, int in, const int sources[], const int in_weights[], int out, const int destinations[], const int out_weights[], void *info, int reorder, void *made), (comm, in, sources, in_weights, out, destinations, out_weights, info, reorder, made)) \
    X(Intercomm_merge, (lb_mpi_comm comm, int high, void *made), (comm, high, made))

/* All others; each is written out in mpi_interpose.c. */
#define LB_MPI_OTHERS(X) \
    X(Init, (int *argc, char ***argv), (argc, argv)) \
    X(Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided)) \
    X(Finalize, (void), ()) \
    X(Abort, (lb_mpi_comm comm, int code), (comm, code)) \
    X(Comm_free, (void *comm), (comm)) \
    X(Comm_disconnect, (void *comm), (comm)) \
    X(Recv, (void *recv, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *status), (recv, count, type, peer, tag, comm, status)) \
    X(Sendrecv, (const void *send, int send_count, lb_mpi_datatype send_type, int to, int send_tag, void *recv, int recv_count, lb_mpi_datatype recv_type, int from, int recv_tag, lb_mpi_comm comm, void *status), (send, send_count, send_type, to, send_tag, recv, recv_count, recv_type, from, recv_tag, comm, status)) \
    X(Sendrecv_replace, (void *recv, int count, lb_mpi_datatype type, int to, int send_tag, int from, int recv_tag, lb_mpi_comm comm, void *status), (recv, count, type, to, send_tag, from, recv_tag, comm, status)) \
    X(Start, (void *request), (request)) \
    X(Startall, (int n, void *requests), (n, requests)) \
    X(Wait, (void *request, void *status), (request, status)) \
    X(Waitall, (int n, void *requests, void *statuses), (n, requests, statuses)) \
    X(Waitany, (int n, void *requests, int *index, void *status), (n, requests, index, status)) \
    X(Waitsome, (int n, void *requests, int *done, int *indices, void *statuses), (n, requests, done, indices, statuses)) \
    X(Test, (void *request, int *flag, void *status), (request, flag, status)) \
    X(Testall, (int n, void *requests, int *flag, void *statuses), (n, requests, flag, statuses)) \
    X(Testany, (int n, void *requests, int *index, int *flag, void *status), (n, requests, index, flag, status)) \
    X(Testsome, (int n, void *requests, int *done, int *indices, void *statuses), (n, requests, done, indices, statuses)) \
    X(Request_free, (void *request), (request))
/* clang-format on */

#define LB_MPI_FUNCTIONS(X)                                                                                            \
    LB_MPI_BLOCKING(X)                                                                                                 \
    LB_MPI_BEGUN(X) LB_MPI_PERSISTENT(X) LB_MPI_MAKING(X) LB_MPI_OTHERS(X)

typedef struct lb_mpi_functions {
#define LB_MPI_FIELD(name, parameters, arguments) int(*name) parameters;
    LB_MPI_FUNCTIONS(LB_MPI_FIELD)
#undef LB_MPI_FIELD
} lb_mpi_functions;

#endif
