/* libFuzzer's way into one reader, READER (reader_targets.h names them): fuzz_READER CORPUS_FOLDER, see CMakeLists.txt. */
#define _GNU_SOURCE 1
#include "archive_repair.h"
#include "reader_targets.h"

static const char *const reader = READER;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t size, size_t most);

static size_t target;

static void drop_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", target_folder);
    if (system(command) != 0) perror(target_folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    while (strcmp(reader_targets[target].name, reader) != 0)
        if (++target == READER_TARGET_COUNT) abort();
    strcpy(target_folder, access("/dev/shm", W_OK) == 0 ? "/dev/shm/lastbit-fuzz-XXXXXX" : "/tmp/lastbit-fuzz-XXXXXX");
    if (!mkdtemp(target_folder)) abort();
    atexit(drop_folder);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    reader_targets[target].read(bytes, size);
    return 0;
}

/* Three of four mutations of an archive get right checksums. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    size = LLVMFuzzerMutate(bytes, size, most);
    if (reader_targets[target].repaired && seed % 4) repair_archive(bytes, size);
    return size;
}
