/* What the fuzzers start from and what they found, run in every suite: each input as it is, then a fixed number of
 * mutations of them, the same ones every time. The readers may refuse an input, and must say why; they never hold more
 * than 64 MiB. */
#define _GNU_SOURCE 1
#include "cmocka_first.h"
#include "fuzz_targets.h"
#include "held_memory.h"
#include "lying_numbers.h"

#include <dirent.h>
#include <time.h>

/* Mutations of each target; LASTBIT_FULL: ten times as many. */
enum { RUNS = 10000, INPUTS = 400, MOST_BYTES = 1 << 16 };

typedef struct input {
    char name[256];
    uint8_t *bytes;
    size_t size;
} input;

/* xorshift64: the same numbers on every machine. */
static uint64_t random_state;
static size_t random_below(size_t n)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return n ? (size_t)(random_state % n) : 0;
}

static void read_one(const fuzz_target *target, const char *name, const uint8_t *bytes, size_t size)
{
    forget_memory();
    fuzz_target_run(target, bytes, size);
    if (memory_used() > MEMORY_LIMIT) fail_msg("%s/%s: %ld bytes were held", target->name, name, memory_used());
}

/* What a text may hold in place of what was meant. */
static const char *const TEXTS[] = {"1e999",
                                    "-1",
                                    "99999999999999999999",
                                    "9007199254740993",
                                    "nan",
                                    "null",
                                    "{}",
                                    "[]",
                                    "[[[[[[[[",
                                    "\"",
                                    "\\",
                                    "\\u0000",
                                    "\\ud800",
                                    "\xff\xfe",
                                    "\xc3",
                                    "\n",
                                    ",",
                                    ":",
                                    "=",
                                    "%s%n",
                                    "(",
                                    "*",
                                    "/"};

/* One change of `bytes`, which have room for MOST_BYTES; `other` is an input to take a part of. */
static size_t change(uint8_t *bytes, size_t size, const input *other)
{
    const size_t at = random_below(size), kind = random_below(7);
    if (kind == 0) return at; /* cut off */
    if (kind == 1 && size) bytes[at] ^= (uint8_t)(1u << random_below(8));
    if (kind == 2 && size) lie(bytes + at, size - at, (unsigned)random_below(8));
    if (kind == 3 && size) bytes[at] = (uint8_t)random_below(256);
    if (kind == 4) { /* a text put in */
        const char *text = TEXTS[random_below(sizeof TEXTS / sizeof *TEXTS)];
        const size_t n = strlen(text);
        if (size + n > MOST_BYTES) return size;
        memmove(bytes + at + n, bytes + at, size - at);
        memcpy(bytes + at, text, n);
        return size + n;
    }
    if (kind == 5 && size) { /* a part taken out */
        const size_t n = random_below(size - at < 64 ? size - at : 64);
        memmove(bytes + at, bytes + at + n, size - at - n);
        return size - n;
    }
    if (kind == 6 && other->size) { /* a part of another one */
        const size_t from = random_below(other->size),
                     n = random_below(other->size - from < 4096 ? other->size - from : 4096);
        if (at + n > MOST_BYTES) return size;
        memcpy(bytes + at, other->bytes + from, n);
        return at + n > size ? at + n : size;
    }
    return size;
}

static int read_changes(const fuzz_target *target, const input *inputs, int n)
{
    static uint8_t bytes[MOST_BYTES];
    const char *full = getenv("LASTBIT_FULL");
    const int runs = full && *full && *full != '0' ? 10 * RUNS : RUNS;
    random_state = 88172645463325252u;
    for (int run = 0; run < runs; run++) {
        const input *in = &inputs[run % n];
        size_t size = in->size;
        memcpy(bytes, in->bytes, size);
        for (size_t changes = 1 + random_below(3); changes > 0; changes--)
            size = change(bytes, size, &inputs[random_below((size_t)n)]);
        if (target->repair && random_below(4)) target->repair(bytes, size);
        uint8_t *exact = malloc(size + !size); /* a sanitizer sees the byte behind it */
        memcpy(exact, bytes, size);
        read_one(target, in->name, exact, size);
        free(exact);
    }
    return runs;
}

static int is_input(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Sorted, so that the changes are the same everywhere. */
static int read_inputs(const char *name, input *inputs)
{
    char folder[512], path[1024];
    snprintf(folder, sizeof folder, "%s/tests/fuzz/corpus/%s", LB_SOURCE_DIR,
             strcmp(name, "damaged") == 0 ? "archive" : name);
    struct dirent **entries;
    const int n = scandir(folder, &entries, is_input, alphasort);
    if (n <= 0 || n > INPUTS) fail_msg("%s is missing, or holds more than %d inputs", folder, INPUTS);
    for (int i = 0; i < n; i++) {
        input *in = &inputs[i];
        snprintf(in->name, sizeof in->name, "%s", entries[i]->d_name);
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        in->bytes = malloc(MOST_BYTES + 1);
        in->size = fread(in->bytes, 1, MOST_BYTES + 1, file);
        assert_true(in->size <= MOST_BYTES);
        in->bytes = realloc(in->bytes, in->size + !in->size);
        fclose(file);
        free(entries[i]);
    }
    free(entries);
    return n;
}

static void every_input_is_read_or_refused(void **state)
{
    static input inputs[INPUTS];
    const fuzz_target *target = &fuzz_targets[*(size_t *)*state];
    struct timespec begin, end;
    const int n = read_inputs(target->name, inputs);
    accepted_readings = refused_readings = run_answered = run_refused = 0;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    every_way = true;
    for (int i = 0; i < n; i++) read_one(target, inputs[i].name, inputs[i].bytes, inputs[i].size);
    every_way = false;
    const int runs = read_changes(target, inputs, n);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    const double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    print_message("%s: %d inputs, %d mutations, %.2f s\n", target->name, n, runs, seconds);
    for (int i = 0; i < n; i++) free(inputs[i].bytes);
    assert_true(accepted_readings + run_answered > 0 && refused_readings + run_refused > 0);
}

int main(int argc, char **argv)
{
    static size_t targets[FUZZ_TARGET_COUNT];
    struct CMUnitTest tests[FUZZ_TARGET_COUNT];
    for (size_t t = 0; t < FUZZ_TARGET_COUNT; t++) {
        targets[t] = t;
        tests[t] = (struct CMUnitTest){fuzz_targets[t].name, every_input_is_read_or_refused, NULL, NULL, &targets[t]};
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    fuzz_targets_begin();
    return _cmocka_run_group_tests("readers", tests, FUZZ_TARGET_COUNT, NULL, NULL);
}
