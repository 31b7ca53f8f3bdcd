/* Communicators that a rank joins in two threads: whichever is ready first, all members name them alike, and count
 * steps by the same one. */
#include "cmocka_first.h"

#include "communicator.h"

#include "real_nccl.h"
#include "calls/shim_settings.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 2, SECOND_IS_READY_AFTER_NS = 60000000 };

static char folder[] = "/tmp/test_communicatorXXXXXX";
static lb_shim_settings settings = {.rank = -1, .world = -1, .out = folder};

const lb_shim_settings *lb_shim_settings_now(void)
{
    return &settings;
}

void *lb_shim_memory(size_t size)
{
    static void *made[64]; /* the shim keeps its books: they are not leaks */
    static size_t n;
    return made[n++ % (sizeof made / sizeof *made)] = calloc(1, size);
}

bool lb_shim_ranges_have(const char *text, int64_t number)
{
    return !text && number >= 0;
}

void *lb_nccl_real(lb_nccl_entry entry)
{
    (void)entry;
    return NULL;
}

static lb_joining begin(uint64_t id, int rank)
{
    lb_joining joining = {.id = id, .ranks = RANKS, .rank = rank, .device = rank};
    return joining;
}

static lb_nccl_comm handle_of(uint64_t id, int rank)
{
    return (lb_nccl_comm)(uintptr_t)(0x1000 * (16 * id + (uint64_t)rank + 1));
}

static lb_communicator *end(lb_joining *joining)
{
    lb_communicator_registry_lock();
    lb_communicator_add(joining, handle_of(joining->id, joining->rank));
    lb_communicator *comm = lb_communicator_find(handle_of(joining->id, joining->rank));
    lb_communicator_registry_unlock();
    return comm;
}

static void *end_later(void *joining)
{
    nanosleep(&(struct timespec){0, SECOND_IS_READY_AFTER_NS}, NULL);
    end(joining);
    return NULL;
}

static void begin_both(lb_joining first[RANKS], lb_joining second[RANKS], uint64_t id)
{
    lb_communicator_registry_lock();
    for (int r = 0; r < RANKS; r++) {
        first[r] = begin(id, r);
        second[r] = begin(id + 1, r);
        assert_true(lb_communicator_join(&first[r], NULL));
        assert_true(lb_communicator_join(&second[r], NULL));
        assert_ptr_equal(first[r].place, second[r].place);
    }
    assert_ptr_not_equal(first[0].place, first[1].place);
    lb_communicator_registry_unlock();
}

/* Of rank 0 the first is ready first; of rank 1 the second, and is asked for its name before the other is there. */
static void names_and_clocks_are_in_the_order_in_which_they_were_begun(void **state)
{
    lb_joining first[RANKS], second[RANKS];
    pthread_t thread;
    (void)state;
    begin_both(first, second, 1);
    lb_communicator *whole = end(&first[0]), *other = end(&second[0]);
    assert_ptr_equal(first[0].place->clock, whole);
    lb_communicator *early = end(&second[1]);
    assert_null(first[1].place->clock);
    assert_int_equal(pthread_create(&thread, NULL, end_later, &first[1]), 0);
    lb_communicator_resolve(other);
    lb_communicator_resolve(early);
    pthread_join(thread, NULL);
    assert_string_equal(whole->name, "0-1");
    assert_string_equal(other->name, "0-1#2");
    assert_string_equal(early->name, "0-1#2");
    assert_ptr_equal(first[1].place->clock, lb_communicator_find(handle_of(1, 1)));
}

/* What NCCL refused is waited for no more. */
static void one_that_was_not_made_leaves_its_place_to_the_next(void **state)
{
    lb_joining first[RANKS], second[RANKS];
    (void)state;
    lb_communicators_drop();
    begin_both(first, second, 3);
    lb_communicator *made = end(&second[1]);
    lb_communicator_registry_lock();
    lb_communicator_abandon(&first[1]);
    lb_communicator_registry_unlock();
    assert_ptr_equal(second[1].place->clock, made);
    lb_communicator_resolve(made);
    assert_string_equal(made->name, "0-1");
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state)
{
    char path[sizeof folder + 32];
    (void)state;
    snprintf(path, sizeof path, "%s/launch.nccl.at", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_and_clocks_are_in_the_order_in_which_they_were_begun),
                                       cmocka_unit_test(one_that_was_not_made_leaves_its_place_to_the_next)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
