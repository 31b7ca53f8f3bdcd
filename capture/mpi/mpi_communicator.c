/* Communicators: see mpi_communicator.h. */
#include "mpi/mpi_communicator.h"

#include "calls/shim_settings.h"
#include "mpi/real_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 64 };

static lb_mpi_communicator *buckets[BUCKETS];
static lb_member_names names;
static lb_mpi_place place = {.rank = -1, .world = -1};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void lb_mpi_communicators_lock(void)
{
    pthread_mutex_lock(&lock);
}

void lb_mpi_communicators_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

pthread_mutex_t *lb_mpi_communicators_mutex(void)
{
    return &lock;
}

lb_mpi_place *lb_mpi_communicator_place(void)
{
    return &place;
}

static uintptr_t key_of(lb_mpi_handle handle)
{
    return (uintptr_t)handle & lb_mpi_real_family()->handle_mask;
}

static lb_mpi_communicator **bucket_of(uintptr_t key)
{
    return &buckets[((uint64_t)key * 0x9e3779b97f4a7c15ull) >> 58];
}

/* Locked. */
static lb_mpi_communicator *find(uintptr_t key)
{
    lb_mpi_communicator *comm = *bucket_of(key);
    while (comm && comm->handle != key) comm = comm->next;
    return comm;
}

static void find_place(void)
{
    lb_mpi_members world = {0};
    const lb_mpi_family *family = lb_mpi_real_family();
    if (place.rank >= 0 || !family->members(family->world, &world)) return;
    char library[sizeof place.library];
    family->library(library, sizeof library);
    lb_mpi_communicators_lock();
    if (place.rank < 0) {
        place.world = world.size;
        place.rank = world.rank;
        memcpy(place.library, library, sizeof library);
        snprintf(place.threads, sizeof place.threads, "%s", family->threads());
        place.wanted = lb_shim_ranges_have(lb_shim_settings_now()->ranks, world.rank);
    }
    lb_mpi_communicators_unlock();
    free(world.world);
}

static void name(lb_mpi_communicator *comm)
{
    if (comm->members)
        lb_member_names_give(&names, comm->members, comm->size, comm->name);
    else
        snprintf(comm->name, sizeof comm->name, "%d ranks, not all of this job", comm->size);
}

static lb_mpi_communicator *make(uintptr_t key, lb_mpi_handle handle)
{
    lb_mpi_members members = {0};
    lb_mpi_communicator *comm = lb_shim_memory(sizeof *comm);
    if (!comm) return NULL;
    const bool intra = lb_mpi_real_family()->members(handle, &members);
    *comm = (lb_mpi_communicator){.handle = key,
                                  .rank = members.rank,
                                  .size = members.size,
                                  .members = members.world,
                                  .inter = !intra,
                                  .refs = 1};
    return comm;
}

/* With a reference. */
static lb_mpi_communicator *add(lb_mpi_handle handle)
{
    const uintptr_t key = key_of(handle);
    find_place();
    lb_mpi_communicator *made = make(key, handle);
    lb_mpi_communicators_lock();
    lb_mpi_communicator *comm = find(key);
    if (!comm && made) { /* no other thread was faster */
        comm = made;
        made = NULL;
        comm->whole = comm->members && comm->size == place.world;
        if (!comm->inter) name(comm);
        comm->next = *bucket_of(key);
        *bucket_of(key) = comm;
    }
    if (comm) comm->refs++;
    if (made) lb_mpi_communicator_release(made);
    lb_mpi_communicators_unlock();
    return comm;
}

lb_mpi_communicator *lb_mpi_communicator_of(lb_mpi_handle handle)
{
    lb_mpi_communicators_lock();
    lb_mpi_communicator *comm = find(key_of(handle));
    if (comm) comm->refs++;
    lb_mpi_communicators_unlock();
    return comm ? comm : add(handle);
}

void lb_mpi_communicator_add(lb_mpi_handle handle)
{
    lb_mpi_communicator_remove(handle); /* one that ended unseen: its handle came again */
    lb_mpi_communicator *comm = add(handle);
    lb_mpi_communicators_lock();
    if (comm) lb_mpi_communicator_release(comm);
    lb_mpi_communicators_unlock();
}

void lb_mpi_communicator_remove(lb_mpi_handle handle)
{
    const uintptr_t key = key_of(handle);
    lb_mpi_communicators_lock();
    for (lb_mpi_communicator **at = bucket_of(key); *at; at = &(*at)->next) {
        lb_mpi_communicator *comm = *at;
        if (comm->handle != key) continue;
        *at = comm->next;
        lb_mpi_communicator_release(comm);
        break;
    }
    lb_mpi_communicators_unlock();
}

void lb_mpi_communicator_release(lb_mpi_communicator *comm)
{
    if (--comm->refs) return;
    free(comm->members);
    free(comm);
}
