/* bench_archive [FOLDER]: what the archive costs, as ratios.
 *
 *   write   the same bytes by write(2) and through a writer, interleaved, best of rounds
 *   open    captures of 10,000, 100,000 and 1,000,000 values: open; open and read one value; reach random ones; decode
 *           the program. `of hashing`: against one pass of the digest over as many bytes as the index has
 *   pass    digest and statistics of a tensor, in GB/s
 * bench_archive.py compares with torch and NumPy. */
#include <lastbit/archive.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ELEMENTS = 16, ROW_BYTES = 46 };
#define MIB (1u << 20)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(lb_status status, const lb_err *err)
{
    if (status == LB_OK) return;
    fprintf(stderr, "bench_archive: %s\n", err->message);
    exit(1);
}

static const char *path_in(const char *folder, const char *name)
{
    static char path[4200];
    snprintf(path, sizeof path, "%.4000s/%s", folder, name);
    return path;
}

/* ---- write ------------------------------------------------------------------------------------------------------- */

static double write_raw(const char *path, char **blobs, unsigned n, size_t size)
{
    unlink(path);
    double begin = now();
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    for (unsigned i = 0; i < n; i++)
        if (write(fd, blobs[i], size) != (ssize_t)size) exit(1);
    close(fd);
    return now() - begin;
}

static double write_archive(const char *path, char **blobs, const lb_digest *digests, unsigned n, size_t size)
{
    lb_err err = LB_ERR_INIT;
    lb_writer *w;
    unlink(path);
    double begin = now();
    must(lb_writer_open(path, NULL, &w, &err), &err);
    for (unsigned i = 0; i < n; i++)
        must(lb_writer_blob(w, digests ? digests[i] : lb_digest_bytes(blobs[i], size), LB_F32, blobs[i], size, &err),
             &err);
    must(lb_writer_close(w, &err), &err);
    return now() - begin;
}

static void bench_write(const char *folder, size_t size, unsigned n)
{
    char **blobs = malloc(n * sizeof *blobs);
    lb_digest *digests = malloc(n * sizeof *digests);
    for (unsigned i = 0; i < n; i++) {
        blobs[i] = malloc(size);
        for (size_t k = 0; k < size; k += 8)
            memcpy(blobs[i] + k, &(uint64_t){(i + 1) * 0x9e3779b97f4a7c15u * (k + 1)}, 8);
        digests[i] = lb_digest_bytes(blobs[i], size);
    }
    double raw = 1e9, archive = 1e9, hashed = 1e9, total = (double)n * (double)size;
    for (int round = 0; round < 5; round++) {
        double t = write_raw(path_in(folder, "raw"), blobs, n, size);
        raw = t < raw ? t : raw;
        t = write_archive(path_in(folder, "archive.tar"), blobs, digests, n, size);
        archive = t < archive ? t : archive;
        t = write_archive(path_in(folder, "archive.tar"), blobs, NULL, n, size);
        hashed = t < hashed ? t : hashed;
    }
    printf("write %8zu B x %6u: raw %.2f GB/s, archive %.2f GB/s (%.2f of raw), with digests %.2f GB/s (%.2f of raw)\n",
           size, n, total / raw / 1e9, total / archive / 1e9, raw / archive, total / hashed / 1e9, raw / hashed);
    for (unsigned i = 0; i < n; i++) free(blobs[i]);
    free(blobs), free(digests);
    unlink(path_in(folder, "raw"));
    unlink(path_in(folder, "archive.tar"));
}

/* ---- open and reach ---------------------------------------------------------------------------------------------- */

static void make_values(const char *folder, uint32_t n)
{
    lb_err err = LB_ERR_INIT;
    lb_writer *w;
    lb_program *p = lb_program_new();
    float data[ELEMENTS];
    mkdir(path_in(folder, "values.lb"), 0700);
    must(lb_writer_open(path_in(folder, "values.lb/rank-00000.tar"),
                        &(lb_writer_options){.size = sizeof(lb_writer_options), .overwrite = true}, &w, &err),
         &err);
    for (uint32_t i = 0; i < n; i++) {
        for (int k = 0; k < ELEMENTS; k++) data[k] = (float)i * 0x1p-10f + (float)k;
        lb_value v = {.storage = i + 1,
                      .layout = lb_layout_contiguous(1, (int64_t[]){ELEMENTS}),
                      .dtype = LB_F32,
                      .name = LB_NONE,
                      .flags = LB_VALUE_SOURCE | LB_VALUE_KEPT,
                      .source = LB_SOURCE_OTHER};
        lb_tensor t = {data, LB_F32, v.layout};
        lb_statistics s = lb_statistics_of(&t);
        v.statistics = lb_program_add_statistics(p, &s);
        v.logical = lb_digest_tensor(&t);
        v.blob = lb_digest_bytes(data, sizeof data);
        uint32_t row = lb_program_add_value(p, &v);
        lb_op op = {.name = lb_program_string(p, "lb::source"), .node_name = LB_NONE, .node = -1, .results = 1};
        op.first_result = lb_program_add_refs(p, &row, 1);
        lb_program_add_op(p, &op);
        must(lb_writer_blob(w, v.blob, LB_F32, data, sizeof data, &err), &err);
    }
    must(lb_writer_program(w, p, &err), &err);
    must(lb_writer_close(w, &err), &err);
    lb_program_free(p);
}

/* As a killed writer leaves it: without the last 1536 bytes there is no index. */
static void take_index_away(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0 || truncate(path, st.st_size - 1536) != 0) exit(1);
}

static double hash_seconds(size_t size)
{
    char *bytes = calloc(1, size);
    double best = 1e9;
    if (!bytes) exit(1);
    for (int round = 0; round < 7; round++) {
        const double begin = now();
        volatile lb_digest d = lb_digest_bytes(bytes, size);
        (void)d;
        best = now() - begin < best ? now() - begin : best;
    }
    free(bytes);
    return best;
}

/* Seconds until one value can be read whose program is known. */
static double read_one(const char *path, const lb_digest *blob)
{
    lb_err err = LB_ERR_INIT;
    lb_capture *c;
    const void *bytes;
    size_t size;
    const double begin = now();
    must(lb_capture_open(path, &c, &err), &err);
    must(lb_capture_blob(c, 0, *blob, &bytes, &size, &err), &err);
    const double seconds = now() - begin;
    lb_capture_close(c);
    return seconds;
}

static void bench_open(const char *folder, uint32_t values)
{
    lb_err err = LB_ERR_INIT;
    make_values(folder, values);
    double open_s = 1e9, decode_s = 1e9, reach_s = 1e9, scan_s = 1e9, one_s = 1e9;
    const double hash_s = hash_seconds((size_t)values * ROW_BYTES);
    lb_digest middle = {0, 0};
    for (int round = 0; round < 7; round++) {
        lb_capture *c;
        const lb_program *p;
        double begin = now();
        must(lb_capture_open(path_in(folder, "values.lb"), &c, &err), &err);
        double opened = now();
        must(lb_capture_program(c, 0, 0, &p, &err), &err);
        double decoded = now();
        float sum = 0;
        uint32_t row = 12345;
        for (int k = 0; k < 20000; k++) {
            lb_tensor t;
            row = (row * 1103515245u + 12345u) % values;
            must(lb_capture_value(c, p, row, &t, &err), &err);
            sum += *(float *)t.data;
        }
        double reached = now();
        middle = p->values[values / 2].blob;
        lb_capture_close(c);
        if (sum == 0) printf("?");
        open_s = opened - begin < open_s ? opened - begin : open_s;
        decode_s = decoded - opened < decode_s ? decoded - opened : decode_s;
        reach_s = reached - decoded < reach_s ? reached - decoded : reach_s;
    }
    for (int round = 0; round < 7; round++) {
        const double one = read_one(path_in(folder, "values.lb"), &middle);
        one_s = one < one_s ? one : one_s;
    }
    take_index_away(path_in(folder, "values.lb/rank-00000.tar"));
    for (int round = 0; round < 3; round++) {
        lb_archive *a;
        double begin = now();
        must(lb_archive_open(path_in(folder, "values.lb/rank-00000.tar"), &a, &err), &err);
        scan_s = now() - begin < scan_s ? now() - begin : scan_s;
        lb_archive_close(a);
    }
    printf("open  %7u values: open %.3f ms (%.2f of hashing), and read one %.3f ms (%.2f), decode the program %.1f ms, "
           "reach a random value %.2f us; opened by scanning %.1f ms\n",
           values, open_s * 1e3, open_s / hash_s, one_s * 1e3, one_s / hash_s, decode_s * 1e3, reach_s / 20000 * 1e6,
           scan_s * 1e3);
}

/* ---- one pass ---------------------------------------------------------------------------------------------------- */

static void bench_pass(void)
{
    int64_t n = 16 * 1024 * 1024 / 4;
    char *bytes = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) ((float *)bytes)[i] = (float)(i % 1000) * 0.25f - 100;
    static const lb_dtype dtypes[] = {LB_F32, LB_BF16, LB_F16, LB_F64, LB_E4M3FN, LB_I64};
    double best_digest = 1e9;
    for (int round = 0; round < 7; round++) {
        double begin = now();
        volatile lb_digest d = lb_digest_bytes(bytes, (size_t)n * 4);
        (void)d;
        best_digest = now() - begin < best_digest ? now() - begin : best_digest;
    }
    printf("pass  digest %.1f GB/s; statistics", (double)n * 4 / best_digest / 1e9);
    for (int k = 0; k < 6; k++) {
        int64_t elements = n * 32 / (int64_t)lb_dtype_bits(dtypes[k]);
        lb_tensor t = {bytes, dtypes[k], lb_layout_contiguous(1, &elements)};
        double best = 1e9;
        for (int round = 0; round < 7; round++) {
            double begin = now();
            volatile lb_statistics s = lb_statistics_of(&t);
            (void)s;
            best = now() - begin < best ? now() - begin : best;
        }
        printf("%s %s %.1f", k ? "," : "", lb_dtype_name(dtypes[k]), (double)n * 4 / best / 1e9);
    }
    printf(" GB/s\n");
    /* A transposed matrix: every element of a row lies in another page. */
    lb_tensor t = {bytes, LB_F32, {.ndim = 2, .shape = {2048, 2048}, .stride = {1, 2048}}};
    double begin = now();
    lb_digest_tensor(&t);
    double digest = now() - begin;
    begin = now();
    lb_statistics_of(&t);
    printf("pass  transposed 2048 x 2048 f32: digest %.2f GB/s, statistics %.2f GB/s\n",
           2048. * 2048 * 4 / digest / 1e9, 2048. * 2048 * 4 / (now() - begin) / 1e9);
    free(bytes);
}

int main(int argc, char **argv)
{
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/lastbit-bench-XXXXXX", argc > 1 ? argv[1] : "/tmp");
    if (!mkdtemp(folder)) return 1;
    bench_write(folder, 4 * MIB, 64);
    bench_write(folder, 64 * 1024, 4096);
    bench_write(folder, 2048, 40000);
    for (uint32_t values = 10000; values <= 1000000; values *= 10) bench_open(folder, values);
    bench_pass();
    char command[4200];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}
