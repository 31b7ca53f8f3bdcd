/* Programs that wait in a file are the same programs, at the same place, whatever was handed back in between. */
#include "cmocka_first.h"
#include "program_sample.h"

#include "program/program_shelf.h"
#include "program/program_store.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

enum { PROGRAMS = 200 };

static const float sample[6] = {1, 2, 3, 4, 5, 6};

/* Programs of different sizes, as an archive gives them. */
static lb_program *decoded(uint32_t number)
{
    void *bytes;
    size_t size;
    lb_program *p = sample_program(number, (int32_t)(number % 7), sample), *again;
    for (uint32_t i = 0; i < number * 13 % 600; i++) {
        char name[40];
        snprintf(name, sizeof name, "%u of %u", (unsigned)i, (unsigned)number);
        lb_program_string(p, name);
        lb_value value = p->values[0];
        value.storage = i;
        lb_program_add_value(p, &value);
    }
    OK(lb_program_encode(p, &bytes, &size, &err));
    OK(lb_program_decode(bytes, size, &again, &err));
    free(bytes);
    lb_program_free(p);
    return again;
}

/* What it says, row by row. */
static lb_digest said_by(const lb_program *p)
{
    void *bytes;
    size_t size;
    OK(lb_program_encode(p, &bytes, &size, &err));
    const lb_digest digest = lb_digest_bytes(bytes, size);
    free(bytes);
    return digest;
}

/* One, and what it said before it was on a shelf. */
typedef struct kept {
    lb_program *program;
    lb_digest said;
} kept;

static kept make(uint32_t number)
{
    lb_program *p = decoded(number);
    return (kept){p, said_by(p)};
}

static void assert_same(const kept *k)
{
    assert_true(lb_digest_equal(said_by(k->program), k->said));
}

static void what_is_laid_down_reads_as_before(void **state)
{
    (void)state;
    lb_program_shelf *shelf = lb_program_shelf_new(100000);
    kept all[PROGRAMS];
    uint32_t in_memory = 0;
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        all[i] = make(i);
        lb_program_shelf_put(shelf, all[i].program);
        in_memory += !all[i].program->store->laid_at;
    }
    assert_true(in_memory > 0 && in_memory < PROGRAMS / 4); /* those of the first 100,000 bytes */
    assert_true(lb_program_shelf_laid(shelf) > 1 << 20);
    for (uint32_t round = 0; round < 2; round++) {
        lb_program_shelf_unload(shelf);
        for (uint32_t i = 0; i < PROGRAMS; i++) assert_same(&all[i * 37 % PROGRAMS]);
    }
    lb_program *copy = lb_program_copy(all[PROGRAMS - 1].program); /* which can be changed */
    assert_true(lb_program_string(copy, "one more") != LB_NONE);
    lb_program_free(copy);
    /* In another order than they came; what is left stays what it is. */
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        const uint32_t k = i * 91 % PROGRAMS;
        lb_program_free(all[k].program);
        all[k].program = NULL;
        for (uint32_t other = 0; i % 50 == 0 && other < PROGRAMS; other++)
            if (all[other].program) assert_same(&all[other]);
    }
    assert_int_equal(lb_program_shelf_laid(shelf), 0);
    lb_program_shelf_free(shelf);
}

static void they_stay_in_memory_where_no_file_can_be_made(void **state)
{
    (void)state;
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    lb_program_shelf *shelf = lb_program_shelf_new(0);
    kept all[8];
    for (uint32_t i = 0; i < 8; i++) all[i] = make(i);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (uint32_t i = 0; i < 8; i++) lb_program_shelf_put(shelf, all[i].program);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(lb_program_shelf_laid(shelf), 0);
    for (uint32_t i = 0; i < 8; i++) assert_same(&all[i]), lb_program_free(all[i].program);
    lb_program_shelf_free(shelf);
}

/* No more than so many bytes may be in a file: the disk is full. */
static void they_stay_in_memory_where_the_file_is_full(void **state)
{
    (void)state;
    struct rlimit before, few;
    void (*was)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    few = before;
    few.rlim_cur = 300000;
    lb_program_shelf *shelf = lb_program_shelf_new(0);
    kept all[40];
    for (uint32_t i = 0; i < 40; i++) all[i] = make(i);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
    for (uint32_t i = 0; i < 40; i++) lb_program_shelf_put(shelf, all[i].program);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, was);
    const size_t laid = lb_program_shelf_laid(shelf);
    assert_true(laid > 0 && laid <= 300000);
    for (uint32_t i = 0; i < 40; i++) assert_same(&all[i]);
    for (uint32_t i = 0; i < 40; i++) lb_program_free(all[i].program);
    lb_program_shelf_free(shelf);
}

typedef struct sharing {
    lb_program_shelf *shelf;
    const kept *all;
    uint32_t first;
} sharing;

static void *put_and_read(void *context)
{
    const sharing *s = context;
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t i = s->first; i < s->first + 20; i++) {
            const kept *k = &s->all[i];
            lb_program *p = lb_program_copy(k->program);
            lb_program_shelf_put(s->shelf, p);
            if (i % 5 == 0) lb_program_shelf_unload(s->shelf);
            assert_same(&(kept){p, k->said});
            lb_program_free(p);
        }
    return NULL;
}

static void threads_share_one(void **state)
{
    (void)state;
    lb_program_shelf *shelf = lb_program_shelf_new(50000);
    kept all[80];
    sharing of[4];
    for (uint32_t i = 0; i < 80; i++) all[i] = make(i);
    pthread_t threads[4];
    for (uint32_t i = 0; i < 4; i++) {
        of[i] = (sharing){shelf, all, i * 20};
        assert_int_equal(pthread_create(&threads[i], NULL, put_and_read, &of[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 80; i++) lb_program_free(all[i].program);
    assert_int_equal(lb_program_shelf_laid(shelf), 0);
    lb_program_shelf_free(shelf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_laid_down_reads_as_before),
        cmocka_unit_test(they_stay_in_memory_where_no_file_can_be_made),
        cmocka_unit_test(they_stay_in_memory_where_the_file_is_full),
        cmocka_unit_test(threads_share_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
