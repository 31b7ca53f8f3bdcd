/* Requests: see mpi_request.h. */
#include "mpi/mpi_request.h"

#include "calls/shim_settings.h"
#include "mpi/mpi_queue.h"
#include "mpi/real_mpi.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024 };

struct lb_mpi_request {
    struct lb_mpi_request *next;
    uintptr_t key;
    lb_mpi_call *call; /* NULL: a persistent one that is not started */
    bool persistent;
    lb_mpi_given given;
};

static lb_mpi_request *buckets[BUCKETS];
static _Atomic int n_requests;

bool lb_mpi_request_any(void)
{
    return n_requests > 0;
}

static uintptr_t key_of(const void *request)
{
    uintptr_t key = 0;
    memcpy(&key, request, lb_mpi_real_family()->request_bytes); /* the lower half comes first */
    return key;
}

/* Locked, all of these. */
static lb_mpi_request **place_of(uintptr_t key)
{
    lb_mpi_request **at = &buckets[((uint64_t)key * 0x9e3779b97f4a7c15ull) >> 54];
    while (*at && (*at)->key != key) at = &(*at)->next;
    return at;
}

static lb_mpi_request *unlink_request(uintptr_t key)
{
    lb_mpi_request **at = place_of(key), *request = *at;
    if (request) *at = request->next, n_requests--;
    return request;
}

static void link_request(lb_mpi_request *request)
{
    lb_mpi_request **at = place_of(request->key);
    while (*at) at = &(*at)->next;
    request->next = NULL;
    *at = request;
    n_requests++;
}

/* ---- what begins ------------------------------------------------------------------------------------------------- */

static void put(lb_mpi_request *made)
{
    lb_mpi_communicators_lock();
    lb_mpi_request *old = unlink_request(made->key);
    link_request(made);
    lb_mpi_communicators_unlock();
    if (old) lb_mpi_request_drop(old);
}

void lb_mpi_request_put(const void *request, lb_mpi_call *call)
{
    lb_mpi_request *made = call ? lb_shim_memory(sizeof *made) : NULL;
    if (!made) {
        lb_mpi_queue_abandon(call);
        return;
    }
    *made = (lb_mpi_request){.key = key_of(request), .call = call};
    put(made);
}

void lb_mpi_request_put_persistent(const void *request, const lb_mpi_given *given)
{
    lb_mpi_request *made = lb_shim_memory(sizeof *made);
    if (!made) return;
    *made = (lb_mpi_request){.key = key_of(request), .persistent = true, .given = *given};
    put(made);
}

bool lb_mpi_request_given(const void *request, lb_mpi_given *given)
{
    lb_mpi_communicators_lock();
    const lb_mpi_request *found = *place_of(key_of(request));
    const bool known = found && found->persistent;
    if (known) *given = found->given;
    lb_mpi_communicators_unlock();
    return known;
}

void lb_mpi_request_started(const void *request, lb_mpi_call *call)
{
    lb_mpi_communicators_lock();
    lb_mpi_request *found = *place_of(key_of(request));
    lb_mpi_call *old = found ? found->call : call;
    if (found) found->call = call;
    lb_mpi_communicators_unlock();
    lb_mpi_queue_abandon(old);
}

/* ---- what ends --------------------------------------------------------------------------------------------------- */

lb_mpi_request *lb_mpi_request_take(const void *request)
{
    if (!lb_mpi_request_any()) return NULL;
    lb_mpi_communicators_lock();
    lb_mpi_request *found = unlink_request(key_of(request));
    lb_mpi_communicators_unlock();
    return found;
}

void lb_mpi_request_back(lb_mpi_request *request)
{
    if (!request) return;
    lb_mpi_communicators_lock();
    link_request(request);
    lb_mpi_communicators_unlock();
}

void lb_mpi_request_done(lb_mpi_request *request, const lb_mpi_message *message)
{
    if (!request) return;
    lb_mpi_call *call = request->call;
    request->call = NULL;
    if (call) lb_mpi_queue_end(call, !message, call->kind == LB_MPI_RECEIVE ? message : NULL);
    if (request->persistent)
        lb_mpi_request_back(request);
    else
        free(request);
}

void lb_mpi_request_drop(lb_mpi_request *request)
{
    if (!request) return;
    lb_mpi_queue_abandon(request->call);
    free(request);
}
