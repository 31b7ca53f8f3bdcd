/* What of a file is read when its archive is opened: its index, however much the system likes to read around it. */
#define _DEFAULT_SOURCE /* mincore */
#include "cmocka_first.h"
#include "program_sample.h"
#include "scratch_folder.h"

#include <fcntl.h>
#include <lastbit/archive.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOBS = 8, BLOB = 2 << 20 };

static unsigned char *blob_of(unsigned seed)
{
    unsigned char *bytes = malloc(BLOB);
    uint32_t x = seed + 1;
    assert_non_null(bytes);
    for (size_t i = 0; i < BLOB; i++) x = x * 1664525 + 1013904223, bytes[i] = (unsigned char)(x >> 24);
    return bytes;
}

static void write_blobs(const char *path)
{
    lb_writer *w;
    OK(lb_writer_open(path, NULL, &w, &err));
    for (unsigned i = 0; i < BLOBS; i++) {
        unsigned char *bytes = blob_of(i);
        OK(lb_writer_blob(w, lb_digest_bytes(bytes, BLOB), LB_U8, bytes, BLOB, &err));
        free(bytes);
    }
    OK(lb_writer_close(w, &err));
}

/* Bytes of the file that are in memory. */
static size_t in_memory(int fd)
{
    const size_t size = (size_t)lseek(fd, 0, SEEK_END), page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages = calloc(size / page + 1, 1);
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    size_t n = 0;
    assert_true(map != MAP_FAILED && pages);
    assert_int_equal(mincore(map, size, pages), 0);
    for (size_t i = 0; i * page < size; i++) n += pages[i] & 1;
    munmap(map, size), free(pages);
    return n * page;
}

/* Where the disk is read in pieces of megabytes, as on clusters, most of this file was read with its index. */
static void opening_reads_the_index_alone(void **state)
{
    (void)state;
    const char *path = in_scratch("opened.tar");
    write_blobs(path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    if (in_memory(fd)) { /* a file system in memory */
        close(fd);
        skip();
    }
    lb_archive *a;
    OK(lb_archive_open(path, &a, &err));
    assert_in_range(in_memory(fd), 1, 512 << 10);
    unsigned char *bytes = blob_of(5);
    const void *at;
    size_t size;
    OK(lb_archive_blob(a, lb_digest_bytes(bytes, BLOB), &at, &size, &err));
    assert_int_equal(size, BLOB);
    assert_memory_equal(at, bytes, BLOB);
    lb_archive_close(a);
    free(bytes);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(opening_reads_the_index_alone)};
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
