/* Which rank of the job a member of a communicator is, over programs that are drawn: threads that are a rank each, and
 * one of them that joins for all, on devices of their own, on one device, and without any. */
#include "cmocka_first.h"

#include "nccl_place.h"

#include "calls/shim_settings.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PROGRAMS = 400, MOST_RANKS = 6, COMMUNICATORS = 8 };

/* ---- what the shim's settings would be --------------------------------------------------------------------------- */

static lb_shim_settings settings;
static void *taken[1024]; /* by a program */
static int n_taken;

const lb_shim_settings *lb_shim_settings_now(void)
{
    return &settings;
}

void *lb_shim_memory(size_t size)
{
    assert_true(n_taken < (int)(sizeof taken / sizeof *taken));
    return taken[n_taken++] = calloc(1, size);
}

bool lb_shim_ranges_have(const char *text, int64_t number)
{
    return !text && number >= 0;
}

/* ---- threads that join when they are told to --------------------------------------------------------------------- */

typedef struct worker {
    pthread_t thread;
    const lb_nccl_member *member; /* NULL: nothing to do */
    lb_nccl_place *place;
    bool over;
} worker;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static worker workers[MOST_RANKS];

static void *work(void *of)
{
    worker *w = of;
    pthread_mutex_lock(&lock);
    while (!w->over) {
        if (w->member) w->place = lb_nccl_place_join(w->member);
        w->member = NULL;
        pthread_cond_broadcast(&turn);
        pthread_cond_wait(&turn, &lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static lb_nccl_place *join(int thread, const lb_nccl_member *member)
{
    worker *w = &workers[thread];
    pthread_mutex_lock(&lock);
    w->member = member;
    pthread_cond_broadcast(&turn);
    while (w->member) pthread_cond_wait(&turn, &lock);
    pthread_mutex_unlock(&lock);
    assert_non_null(w->place);
    return w->place;
}

static void start(int ranks)
{
    memset(workers, 0, sizeof workers);
    for (int i = 0; i < ranks; i++) assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
}

static void stop(int ranks)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ranks; i++) workers[i].over = true;
    pthread_cond_broadcast(&turn);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < ranks; i++) pthread_join(workers[i].thread, NULL);
    lb_nccl_place_drop_all();
    while (n_taken) free(taken[--n_taken]);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static uint64_t seed;

static int draw(int below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)(seed >> 33) % below;
}

static void shuffle(int *list, int n)
{
    for (int i = n - 1; i > 0; i--) {
        const int with = draw(i + 1), kept = list[i];
        list[i] = list[with];
        list[with] = kept;
    }
}

typedef enum devices { EACH_ITS_OWN, ONE_FOR_ALL, NOT_KNOWN, N_DEVICES } devices;

typedef struct program {
    int ranks;
    devices devices;
    lb_nccl_place *places[MOST_RANKS]; /* by rank of the job */
    uint64_t id;
} program;

static int device_of(const program *p, int rank)
{
    return p->devices == EACH_ITS_OWN ? (rank + 3) % p->ranks : p->devices == ONE_FOR_ALL ? 0 : -1;
}

/* Members by their numbers; each joins in its thread, or all in `driver`'s. */
static void make_communicator(program *p, const int *members, int n, int driver, bool as_a_set)
{
    int order[MOST_RANKS];
    lb_nccl_place *joined[MOST_RANKS];
    p->id++;
    for (int i = 0; i < n; i++) order[i] = i;
    if (driver < 0) shuffle(order, n);
    for (int i = 0; i < n; i++) {
        const int number = order[i], rank = members[number];
        /* a set of communicators says its devices, which are not the one that is current */
        const int device = as_a_set && p->devices == ONE_FOR_ALL ? rank : device_of(p, rank);
        const lb_nccl_member member = {p->id, n, number, device, as_a_set};
        joined[i] = join(driver < 0 ? rank : driver, &member);
        for (int other = 0; other < i; other++) assert_ptr_not_equal(joined[i], joined[other]);
        if (!p->places[rank]) p->places[rank] = joined[i];
        assert_ptr_equal(joined[i], p->places[rank]);
        assert_ptr_equal(join(driver < 0 ? rank : driver, &member), joined[i]); /* it tries once more */
    }
}

/* The job's ranks, or some of them in any order. */
static int draw_members(const program *p, int *members, bool all)
{
    for (int r = 0; r < p->ranks; r++) members[r] = r;
    if (all) return p->ranks;
    shuffle(members, p->ranks);
    return 1 + draw(p->ranks);
}

static void run(program *p)
{
    int members[MOST_RANKS];
    start(p->ranks);
    make_communicator(p, members, draw_members(p, members, true), -1, false);
    for (int r = 0; r < p->ranks; r++) assert_int_equal(p->places[r]->rank, r);
    for (int c = 0; c < COMMUNICATORS; c++) {
        const bool driven = draw(3) == 0, tells = p->devices == EACH_ITS_OWN;
        const int n = draw_members(p, members, driven && !tells);
        make_communicator(p, members, n, driven ? draw(p->ranks) : -1, driven);
    }
    stop(p->ranks);
}

static void members_of_one_communicator_are_different_ranks_and_each_stays_who_it_is(void **state)
{
    (void)state;
    for (int i = 0; i < PROGRAMS; i++) {
        seed = (uint64_t)i + 1;
        settings = (lb_shim_settings){.rank = -1, .world = -1};
        program p = {.ranks = 2 + draw(MOST_RANKS - 1), .devices = (devices)draw(N_DEVICES), .id = 1000u * (unsigned)i};
        run(&p);
    }
}

/* As a launcher started it: its rank is what the launcher says, in every communicator. */
static void process_of_one_rank_is_that_rank_wherever_it_joins(void **state)
{
    (void)state;
    settings = (lb_shim_settings){.rank = 5, .world = 8};
    start(2);
    lb_nccl_place *place = join(0, &(lb_nccl_member){1, 8, 5, 0, false});
    assert_int_equal(place->rank, 5);
    assert_int_equal(place->world, 8);
    assert_ptr_equal(join(1, &(lb_nccl_member){2, 2, 1, -1, false}), place);
    assert_ptr_equal(join(0, &(lb_nccl_member){3, 8, 2, 1, false}), place);
    stop(2);
}

/* Whose number another rank of the process has already. */
static void rank_whose_number_is_taken_is_a_rank_all_the_same(void **state)
{
    (void)state;
    settings = (lb_shim_settings){.rank = 1, .world = 2};
    start(2);
    lb_nccl_place *first = join(0, &(lb_nccl_member){1, 2, 0, 0, false});
    lb_nccl_place *second = join(1, &(lb_nccl_member){1, 2, 1, 1, false});
    assert_int_equal(first->rank, 1);
    assert_int_equal(second->rank, 0);
    stop(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_of_one_communicator_are_different_ranks_and_each_stays_who_it_is),
        cmocka_unit_test(process_of_one_rank_is_that_rank_wherever_it_joins),
        cmocka_unit_test(rank_whose_number_is_taken_is_a_rank_all_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
