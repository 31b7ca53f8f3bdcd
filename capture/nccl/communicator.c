/* Books on communicators: see communicator.h. */
#define _GNU_SOURCE
#include "communicator.h"

#include "real_nccl.h"
#include "calls/shim_settings.h"
#include "stream_copy.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MEMBERS_FILE "launch.nccl.at" /* a note to `lastbit record`, which removes it with the others */
enum { BUCKETS = 256, ASK_TRIES = 40, ASK_PAUSE_NS = 25000000 };

static lb_communicator *buckets[BUCKETS];

uint64_t lb_communicator_serial(void)
{
    static _Atomic uint64_t serial;
    const uint64_t parts[] = {(uint64_t)getpid(), ++serial};
    return lb_member_names_hash(parts, sizeof parts);
}

static unsigned bucket_of(lb_nccl_comm handle)
{
    return (unsigned)(((uintptr_t)handle >> 4) * 0x9e3779b97f4a7c15ull >> 56);
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static bool tell(const lb_joining *joining)
{
    char path[4096], line[128];
    const int length = snprintf(line, sizeof line, "%016" PRIx64 " %d %" PRId32 " %d %d\n", joining->id, joining->rank,
                                joining->place->rank, joining->color, joining->key);
    snprintf(path, sizeof path, "%s/" MEMBERS_FILE, lb_shim_settings_now()->out);
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const bool told = file >= 0 && write(file, line, (size_t)length) == length;
    if (file >= 0) close(file);
    return told;
}

bool lb_communicator_join(lb_joining *joining, const lb_communicator *parent)
{
    const lb_nccl_member member = {joining->id, joining->ranks, joining->rank, joining->device, joining->of_a_set};
    joining->place = parent ? parent->place : lb_nccl_place_join(&member);
    if (!joining->place) return false;
    lb_nccl_place_enter(joining->place);
    joining->number = joining->place->joined++;
    joining->next_pending = joining->place->pending;
    joining->place->pending = joining;
    tell(joining); /* where it cannot, members stay unknown, and the writer says so */
    return true;
}

static bool is_one_pending_before(const lb_nccl_place *place, uint64_t number)
{
    for (const lb_joining *joining = place->pending; joining; joining = joining->next_pending)
        if (joining->number < number) return true;
    return false;
}

/* The one that was joined first is so on all its members, in whichever order they are ready. */
static lb_communicator *first_of(const lb_nccl_place *place)
{
    lb_communicator *first = NULL;
    for (int i = 0; i < BUCKETS; i++)
        for (lb_communicator *comm = buckets[i]; comm; comm = comm->next)
            if (comm->place == place && (!first || comm->made < first->made)) first = comm;
    return first && !is_one_pending_before(place, first->made) ? first : NULL;
}

void lb_communicator_abandon(lb_joining *joining)
{
    lb_joining **at = &joining->place->pending;
    while (*at && *at != joining) at = &(*at)->next_pending;
    if (*at) *at = joining->next_pending;
    if (!joining->place->clock) joining->place->clock = first_of(joining->place);
}

static void enlist(const lb_joining *joining, lb_nccl_comm handle)
{
    lb_communicator *comm = lb_shim_memory(sizeof *comm);
    if (!comm) return;
    const uint64_t parts[] = {joining->id, (uint64_t)(int64_t)joining->color};
    lb_communicator_remove(handle); /* one that ended unseen: its address came again */
    lb_communicator **bucket = &buckets[bucket_of(handle)], **unnamed = &joining->place->unnamed;
    *comm = (lb_communicator){
        .next = *bucket,
        .handle = handle,
        .id = lb_member_names_hash(parts, sizeof parts),
        .joined_as = joining->id,
        .ranks = joining->ranks,
        .rank = joining->rank,
        .color = joining->color,
        .refs = 2, /* the handle, the list of those without a name */
        .place = joining->place,
        .made = joining->number,
        .messages = joining->ranks > 0 ? lb_shim_memory(2 * (size_t)joining->ranks * sizeof(uint64_t)) : NULL};
    comm->launching_end = &comm->launching;
    *bucket = comm;
    while (*unnamed && (*unnamed)->made < comm->made) unnamed = &(*unnamed)->next_unnamed;
    comm->next_unnamed = *unnamed;
    *unnamed = comm;
}

void lb_communicator_add(lb_joining *joining, lb_nccl_comm handle)
{
    if (handle) enlist(joining, handle);
    lb_communicator_abandon(joining);
}

/* What NCCL cannot say as long as it is still making the communicator is asked for again. */
static bool ask(lb_communicator *comm)
{
    int (*count)(lb_nccl_comm, int *), (*rank)(lb_nccl_comm, int *), ranks = 0;
    *(void **)&count = lb_nccl_real(LB_ENTRY_ncclCommCount);
    *(void **)&rank = lb_nccl_real(LB_ENTRY_ncclCommUserRank);
    if (!count || !rank || count(comm->handle, &ranks) != LB_NCCL_SUCCESS || ranks < 1) return false;
    if (rank(comm->handle, &comm->rank) != LB_NCCL_SUCCESS) return false;
    comm->ranks = ranks;
    comm->messages = lb_shim_memory(2 * (size_t)ranks * sizeof *comm->messages);
    return true;
}

/* Made past us (CommGrow, or before we were asked): NCCL says whose it is, and nothing says who its members are. */
static lb_communicator *adopt(lb_nccl_comm handle)
{
    lb_nccl_place *place = lb_nccl_place_here();
    if (!place || !handle) return NULL;
    lb_communicator_add(
        &(lb_joining){
            .id = LB_ID_UNTOLD, .ranks = LB_RANKS_UNTOLD, .device = -1, .place = place, .number = place->joined++},
        handle);
    return lb_communicator_find(handle);
}

lb_communicator *lb_communicator_whole(lb_nccl_comm handle)
{
    lb_communicator *comm = lb_communicator_find(handle);
    if (!comm) comm = adopt(handle);
    return comm && (comm->ranks > 0 || ask(comm)) ? comm : NULL;
}

lb_communicator *lb_communicator_find(lb_nccl_comm handle)
{
    lb_communicator *comm = buckets[bucket_of(handle)];
    while (comm && comm->handle != handle) comm = comm->next;
    return comm;
}

void lb_communicator_remove(lb_nccl_comm handle)
{
    for (lb_communicator **at = &buckets[bucket_of(handle)]; *at; at = &(*at)->next) {
        lb_communicator *comm = *at;
        if (comm->handle != handle) continue;
        *at = comm->next;
        comm->handle = NULL;
        if (comm->place->clock == comm) comm->place->clock = first_of(comm->place);
        lb_communicator_release(comm);
        return;
    }
}

void lb_communicator_release(lb_communicator *comm)
{
    if (--comm->refs) return;
    while (comm->premuls) {
        lb_premul *next = comm->premuls->next;
        free(comm->premuls);
        comm->premuls = next;
    }
    free(comm->messages);
    free(comm->members);
    free(comm);
}

const lb_premul *lb_communicator_premul(const lb_communicator *comm, lb_nccl_op op)
{
    for (const lb_premul *premul = comm->premuls; premul; premul = premul->next)
        if (premul->op == op) return premul;
    return NULL;
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

typedef struct member {
    int rank, job_rank, key;
} member;

static int by_key(const void *x, const void *y)
{
    const member *a = x, *b = y;
    return a->key != b->key ? (a->key < b->key ? -1 : 1) : (a->rank > b->rank) - (a->rank < b->rank);
}

/* True when all of them were there. */
static bool read_members(lb_communicator *comm)
{
    char path[4096], line[128];
    snprintf(path, sizeof path, "%s/" MEMBERS_FILE, lb_shim_settings_now()->out);
    FILE *file = fopen(path, "re");
    member *list = calloc((size_t)comm->ranks, sizeof *list);
    int n = 0, color;
    uint64_t id;
    while (file && list && n < comm->ranks && fgets(line, sizeof line, file)) {
        member m;
        if (sscanf(line, "%" SCNx64 " %d %d %d %d", &id, &m.rank, &m.job_rank, &color, &m.key) == 5 &&
            id == comm->joined_as && color == comm->color)
            list[n++] = m;
    }
    if (file) fclose(file);
    const bool whole = list && n == comm->ranks;
    int32_t *members = whole ? calloc((size_t)n, sizeof *members) : NULL;
    if (whole) qsort(list, (size_t)n, sizeof *list, by_key);
    for (int i = 0; members && i < n; i++) members[i] = list[i].job_rank;
    comm->members = members;
    free(list);
    return members;
}

static void name(lb_communicator *comm)
{
    const bool told = comm->joined_as != LB_ID_UNTOLD && comm->ranks > 0;
    for (int i = 0; told && i < ASK_TRIES && !read_members(comm); i++)
        nanosleep(&(struct timespec){0, ASK_PAUSE_NS}, NULL); /* a network's file system shows lines late */
    if (!comm->members) {
        snprintf(comm->name, sizeof comm->name, "%d ranks, %08x", comm->ranks, (unsigned)comm->id);
        return;
    }
    lb_member_names_give(&comm->place->names, comm->members, comm->ranks, comm->name);
}

/* The first without a name. Where an earlier one is still being made it is waited for: the other members name them in
 * the order in which they were begun. */
static lb_communicator *take_unnamed(lb_nccl_place *place, bool last_try)
{
    lb_communicator_registry_lock();
    lb_communicator *first = place->unnamed;
    if (first && !last_try && is_one_pending_before(place, first->made)) first = NULL;
    if (first) place->unnamed = first->next_unnamed;
    lb_communicator_registry_unlock();
    return first;
}

/* Of those with the same members the first joined is the first named, whichever is used first. */
void lb_communicator_resolve(lb_communicator *comm)
{
    for (int tries = 0; !comm->name[0];) {
        lb_communicator *first = take_unnamed(comm->place, tries == ASK_TRIES);
        if (!first) {
            tries++;
            nanosleep(&(struct timespec){0, ASK_PAUSE_NS}, NULL);
            continue;
        }
        name(first);
        lb_communicator_registry_lock();
        lb_communicator_release(first);
        lb_communicator_registry_unlock();
    }
}

static pthread_mutex_t books = PTHREAD_MUTEX_INITIALIZER;

void lb_communicator_registry_lock(void)
{
    pthread_mutex_lock(&books);
}

pthread_mutex_t *lb_communicator_registry_mutex(void)
{
    return &books;
}

void lb_communicator_registry_unlock(void)
{
    pthread_mutex_unlock(&books);
}

void lb_communicators_drop(void)
{
    books = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(buckets, 0, sizeof buckets);
    lb_nccl_place_drop_all();
}
