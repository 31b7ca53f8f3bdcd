/* What the fuzzers start from and what they found, run in every test: each input as it is, cut off, with bits flipped and
 * with numbers that lie, the same ones every time. The readers may refuse it, and must say where; they never hold more than
 * 64 MiB. */
#define _GNU_SOURCE 1
#include "cmocka_first.h"
#include "archive_repair.h"
#include "held_memory.h"
#include "lying_numbers.h"
#include "reader_targets.h"
#include "scratch_folder.h"

#include <dirent.h>

enum { CHANGES = 250 }; /* of each kind, for one input */

typedef struct input {
    size_t target;
    const char *name;
    const char *bytes;
    size_t size;
} input;

static void read_one(const input *in, uint8_t *bytes, size_t size)
{
    forget_memory();
    reader_targets[in->target].read(bytes, size);
    if (memory_used() > MEMORY_LIMIT)
        fail_msg("%s/%s: %ld bytes were held", reader_targets[in->target].name, in->name, memory_used());
}

/* Both as it is, and with the checksums put right. */
static void read_changed(const input *in, uint8_t *bytes, size_t size)
{
    read_one(in, bytes, size);
    if (!reader_targets[in->target].repaired) return;
    repair_archive(bytes, size);
    read_one(in, bytes, size);
}

static void read_changes(const input *in)
{
    uint8_t *bytes = malloc(in->size + 1);
    memcpy(bytes, in->bytes, in->size);
    read_one(in, bytes, in->size);
    for (unsigned k = 0; k < CHANGES && in->size; k++) {
        size_t cut = k < 32 ? (in->size > k ? in->size - k - 1 : 0) : (uint64_t)in->size * (k - 32) / (CHANGES - 32);
        memcpy(bytes, in->bytes, in->size);
        read_changed(in, bytes, cut);
        size_t at = in->size <= CHANGES ? k % in->size : (size_t)rand() % in->size;
        memcpy(bytes, in->bytes, in->size);
        bytes[at] ^= (uint8_t)(1 << rand() % 8);
        read_changed(in, bytes, in->size);
        memcpy(bytes, in->bytes, in->size);
        lie(bytes + at, in->size - at, k);
        read_changed(in, bytes, in->size);
    }
    free(bytes);
}

static int is_input(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void read_corpus(size_t target)
{
    const char *name = reader_targets[target].name;
    char folder[512], path[1024];
    snprintf(folder, sizeof folder, "%s/tests/fuzz/corpus/%s", LB_SOURCE_DIR,
             strcmp(name, "damaged") == 0 ? "archive" : name);
    struct dirent **entries; /* sorted, so that the changes are the same everywhere */
    int n = scandir(folder, &entries, is_input, alphasort);
    if (n < 0) fail_msg("%s is missing", folder);
    accepted_readings = refused_readings = 0;
    srand(1);
    for (int i = 0; i < n; i++) {
        size_t size = 0;
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        char *bytes = read_whole(path, &size);
        read_changes(&(input){target, entries[i]->d_name, bytes, size});
        free(bytes);
        free(entries[i]);
    }
    free(entries);
    assert_true(n > 0 && accepted_readings > 0 && refused_readings > 0);
}

static void every_input_is_read_or_refused(void **state)
{
    strcpy(target_folder, scratch);
    read_corpus(*(size_t *)*state);
}

int main(void)
{
    static size_t targets[READER_TARGET_COUNT];
    struct CMUnitTest tests[READER_TARGET_COUNT];
    for (size_t t = 0; t < READER_TARGET_COUNT; t++) {
        targets[t] = t;
        tests[t] = (struct CMUnitTest){reader_targets[t].name, every_input_is_read_or_refused, NULL, NULL, &targets[t]};
    }
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
