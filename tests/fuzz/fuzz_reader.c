/* libFuzzer's way into one target, READER (the rows of reader_targets.h and run_targets.h): tests/fuzz.sh builds and
 * runs them. */
#define _GNU_SOURCE 1
#include "fuzz_targets.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t size, size_t most);

static const fuzz_target *target = fuzz_targets;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    while (strcmp(target->name, READER) != 0)
        if (++target == fuzz_targets + FUZZ_TARGET_COUNT) abort();
    fuzz_targets_begin();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_target_run(target, bytes, size);
    return 0;
}

/* Three of four mutations of an archive get right checksums. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    size = LLVMFuzzerMutate(bytes, size, most);
    if (target->repair && seed % 4) target->repair(bytes, size);
    return size;
}
