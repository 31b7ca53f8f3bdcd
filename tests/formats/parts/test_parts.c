/* Work in parts: whatever the number of workers, of parts that lack and of workers that are killed, the same records
 * are folded in the same order; and what is damaged, or of another question, is refused. */
#include "cmocka_first.h"
#include "failing_memory.h"
#include "scratch_folder.h"

#include "parts/part_file.h"
#include "parts/parts_each.h"

#include <lastbit/output.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- the work: numbers drawn from the unit's own, of every kind that a record has -------------------------- */

#define NONE UINT64_MAX

typedef struct task {
    uint64_t n, failing; /* unit `failing` fails; NONE: none does */
    const char *log;     /* a byte is appended for each unit that is made; NULL: none is */
    unsigned pause;      /* microseconds that a unit takes */
    lb_digest folded;    /* of all that was folded, in order */
    uint64_t units;
} task;

static uint64_t draw(uint64_t unit, uint64_t k)
{
    uint64_t x = (unit + 1) * UINT64_C(0x9E3779B97F4A7C15) + k * UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 31, x *= UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 29;
}

typedef struct numbers {
    int64_t whole;
    uint64_t bits;
    int32_t small;
    uint32_t word, n;
    bool truth;
    double real;
    const char *text, *none;
    uint64_t *rows;
} numbers;

static void numbers_record(lb_part_record *r, numbers *x)
{
    lb_part_record_i64(r, &x->whole), lb_part_record_u64(r, &x->bits), lb_part_record_i32(r, &x->small);
    lb_part_record_word(r, &x->word, 9), lb_part_record_bool(r, &x->truth), lb_part_record_f64(r, &x->real);
    lb_part_record_text(r, &x->text), lb_part_record_text(r, &x->none);
    x->rows = lb_part_record_rows(r, x->rows, &x->n, sizeof *x->rows);
    for (uint32_t i = 0; i < x->n; i++) lb_part_record_u64(r, &x->rows[i]);
}

static void note(const char *path)
{
    const int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (fd < 0) return;
    assert_int_equal(write(fd, "+", 1), 1);
    close(fd);
}

static lb_status work(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const task *t = context;
    uint64_t rows[8];
    char text[40];
    const uint64_t bits = draw(unit, 0);
    if (t->pause) usleep(t->pause);
    note(t->log);
    if (unit == t->failing) return lb_fail(err, LB_ERR_CORRUPT, "unit %llu is damaged", (unsigned long long)unit);
    numbers x = {.whole = (int64_t)draw(unit, 1),
                 .bits = bits,
                 .small = (int32_t)draw(unit, 2),
                 .word = (uint32_t)(draw(unit, 3) % 10),
                 .truth = bits & 1,
                 .n = (uint32_t)(draw(unit, 4) % 8),
                 .text = text,
                 .rows = rows};
    memcpy(&x.real, &bits, sizeof x.real); /* NaN among them */
    snprintf(text, sizeof text, "%.*s unit %llu", (int)(unit % 5), "äöü", (unsigned long long)unit);
    for (uint32_t i = 0; i < x.n; i++) rows[i] = draw(unit, 10 + i);
    numbers_record(record, &x);
    return LB_OK;
}

static void mix(lb_digest *sum, uint64_t x)
{
    const uint64_t all[] = {sum->hi, sum->lo, x};
    *sum = lb_digest_bytes(all, sizeof all);
}

static lb_status fold(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)err;
    task *t = context;
    numbers x = {0};
    numbers_record(record, &x);
    uint64_t bits = 0;
    assert_int_equal(unit, t->units++);
    if (record->status == LB_OK) {
        memcpy(&bits, &x.real, sizeof bits);
        assert_int_equal(bits, x.bits);
        assert_null(x.none);
        mix(&t->folded, (uint64_t)x.whole), mix(&t->folded, x.bits), mix(&t->folded, (uint64_t)x.small);
        mix(&t->folded, x.word), mix(&t->folded, x.truth);
        mix(&t->folded, lb_digest_bytes(x.text, strlen(x.text)).lo);
        for (uint32_t i = 0; i < x.n; i++) mix(&t->folded, x.rows[i]);
    }
    free(x.rows);
    return record->status;
}

/* Most units are small. */
static uint64_t weigh(void *context, uint64_t unit)
{
    (void)context;
    return draw(unit, 5) % 8 ? draw(unit, 6) % 100 : draw(unit, 6) >> 24;
}

/* Two loops, as an engine has: the second is as long as the first said. */
static lb_status run(lb_parts *parts, task *t, lb_err *err)
{
    const lb_parts_loop first = {"first", t->n, work, fold, t, t->n % 2 ? weigh : NULL};
    LB_TRY(lb_parts_each(parts, &first, err));
    t->units = 0;
    const lb_parts_loop second = {"second", t->folded.lo % 7, work, fold, t};
    return lb_parts_each(parts, &second, err);
}

static const char *const words[] = {"work", "--on", "this"};
static lb_parts_job job_of(const lb_digest *inputs)
{
    return (lb_parts_job){words, 3, "/somewhere", inputs ? *inputs : (lb_digest){1, 2}};
}

static task plain(uint64_t n, uint64_t failing, lb_status *status, lb_err *err)
{
    task t = {.n = n, .failing = failing};
    *status = run(NULL, &t, err);
    return t;
}

/* ---- files ------------------------------------------------------------------------------------------------- */

static void save_part(const char *path, const lb_parts_job *job, uint32_t part, uint32_t of, uint64_t n,
                      uint64_t failing)
{
    lb_parts_options how = LB_PARTS_OPTIONS_INIT;
    lb_parts *parts;
    lb_err err = LB_ERR_INIT;
    task t = {.n = n, .failing = failing};
    how.job = job, how.part = part, how.of = of;
    assert_int_equal(lb_parts_open(&how, &parts, &err), LB_OK);
    const lb_status status = run(parts, &t, &err);
    assert_true(status == LB_OK || status == LB_ERR_PARTIAL || (status == LB_ERR_CORRUPT && failing != NONE));
    assert_int_equal(lb_parts_save(parts, path, NULL), LB_OK);
    lb_parts_close(parts, false);
}

static lb_status merge(const lb_parts_job *job, const char *const *files, uint32_t n_files, task *t,
                       lb_parts_tally *tally, lb_err *err)
{
    lb_parts_options how = LB_PARTS_OPTIONS_INIT;
    lb_parts *parts;
    how.job = job, how.files = files, how.n_files = n_files;
    LB_TRY(lb_parts_open(&how, &parts, err));
    const lb_status status = run(parts, t, err);
    *tally = lb_parts_count(parts);
    lb_parts_close(parts, false);
    return status;
}

static void test_any_number_of_parts_folds_the_same(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 2, 5, 17, 1023, 1024, 1025, 2500};
    const char *folder = scratch;
    const lb_parts_job job = job_of(NULL);
    uint64_t round = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint32_t of = 1; of <= 7; of += 2, round++) {
            const uint64_t n = sizes[s], failing = round % 3 ? NONE : draw(round, 7) % (n + 1);
            lb_status expected;
            lb_err why = LB_ERR_INIT, err = LB_ERR_INIT;
            const task alone = plain(n, failing, &expected, &why);
            char paths[7][300];
            const char *files[7];
            uint32_t given = 0;
            for (uint32_t i = 0; i < of; i++) {
                snprintf(paths[i], sizeof paths[i], "%s/part-%u", folder, i);
                save_part(paths[i], &job, i + 1, of, n, failing);
            }
            /* in any order, and some of them lost */
            for (uint32_t i = 0; i < of; i++)
                if (draw(round, 20 + i) % 4) files[given++] = paths[(i + round) % of];
            task merged = {.n = n, .failing = failing};
            lb_parts_tally tally;
            assert_int_equal(merge(&job, files, given, &merged, &tally, &err), expected);
            assert_string_equal(err.message, why.message);
            if (expected != LB_OK) continue;
            assert_true(lb_digest_equal(alone.folded, merged.folded));
            if (given == of) assert_true(tally.made <= 7); /* the second loop's alone, which no part could come to */
        }
}

/* ---- what is refused ---------------------------------------------------------------------------------------- */

static void write_file(const char *path, const char *bytes, size_t n)
{
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(bytes, 1, n, to), n);
    assert_int_equal(fclose(to), 0);
}

static void test_a_part_of_another_question_is_refused(void **state)
{
    (void)state;
    const char *folder = scratch;
    char path[300];
    const char *files[] = {path};
    const lb_digest changed = {1, 3};
    const lb_parts_job job = job_of(NULL), other = job_of(&changed);
    task t = {.n = 9, .failing = NONE};
    lb_parts_tally tally;
    lb_err err = LB_ERR_INIT;
    snprintf(path, sizeof path, "%s/part", folder);
    save_part(path, &job, 1, 2, 9, NONE);
    assert_int_equal(merge(&other, files, 1, &t, &tally, &err), LB_ERR_INVALID);
    assert_non_null(strstr(err.message, "another question"));
}

/* A bit of every byte of a part turned over, and lengths cut: refused, or folded to the very same. */
static void test_no_damage_is_folded(void **state)
{
    (void)state;
    const char *folder = scratch;
    char path[300];
    const char *files[] = {path};
    const lb_parts_job job = job_of(NULL);
    lb_status status;
    size_t n = 0, refused = 0, tried = 0;
    const task alone = plain(3, NONE, &status, NULL);
    snprintf(path, sizeof path, "%s/part", folder);
    save_part(path, &job, 1, 1, 3, NONE);
    char *bytes = read_whole(path, &n);
    assert_true(n > 300 && n < 4096);
    for (size_t byte = 0; byte < n; byte++, tried++) {
        const size_t bit = 8 * byte + draw(byte, 0) % 8;
        task t = {.n = 3, .failing = NONE};
        lb_parts_tally tally;
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        write_file(path, bytes, n);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        status = merge(&job, files, 1, &t, &tally, NULL);
        if (status == LB_OK) assert_true(lb_digest_equal(alone.folded, t.folded));
        refused += status != LB_OK;
    }
    assert_int_equal(refused, tried);
    for (size_t cut = 1; cut < n; cut += 3) {
        task t = {.n = 3, .failing = NONE};
        lb_parts_tally tally;
        write_file(path, bytes, cut);
        status = merge(&job, files, 1, &t, &tally, NULL);
        if (status == LB_OK) assert_true(lb_digest_equal(alone.folded, t.folded)); /* cut between two frames */
    }
    free(bytes);
}

/* A record's fields say more than there is, or less: a failure, and no memory for it. */
static void test_counts_are_not_believed(void **state)
{
    (void)state;
    lb_part_record r = {0};
    uint32_t many = 4000000000u, n = 0;
    lb_err err = LB_ERR_INIT;
    lb_part_record_u32(&r, &many);
    lb_part_record back = lb_part_record_reader(r.written.bytes, r.written.size, "test", 0, &err);
    uint64_t *rows = lb_part_record_rows(&back, NULL, &n, sizeof *rows);
    assert_int_equal(n, 0);
    assert_int_equal(lb_part_record_end(&back, &err), LB_ERR_CORRUPT);
    free(rows);
    back = lb_part_record_reader(r.written.bytes, r.written.size, "test", 0, NULL);
    assert_int_equal(lb_part_record_end(&back, NULL), LB_ERR_CORRUPT); /* more than was asked for */
    lb_part_record_release(&r);
}

/* What stands in a record for a number, a place or a name is asked whether it is one. */
static void test_numbers_and_names_have_bounds(void **state)
{
    (void)state;
    static const int64_t places[] = {-2, -1, 0, INT64_C(1) << 48, (INT64_C(1) << 48) + 1, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        lb_part_record r = {0};
        int64_t place = places[i];
        uint64_t total = 77;
        const bool is_place = place >= -1 && place <= INT64_C(1) << 48;
        lb_err err = LB_ERR_INIT;
        lb_part_record_i64(&r, &place);
        lb_part_record back = lb_part_record_reader(r.written.bytes, r.written.size, "dir/part", 1000, &err);
        lb_part_record_tally(&back, &place, -1);
        assert_int_equal(lb_part_record_end(&back, &err), is_place ? LB_OK : LB_ERR_CORRUPT);
        assert_int_equal(place, is_place ? places[i] : 0);
        if (!is_place) assert_ptr_equal(strstr(err.message, "dir/part: offset 10"), err.message);
        back = lb_part_record_reader(r.written.bytes, r.written.size, "dir/part", 1000, NULL);
        lb_part_record_total(&back, &total);
        assert_int_equal(lb_part_record_end(&back, NULL), is_place && places[i] >= 0 ? LB_OK : LB_ERR_CORRUPT);
        lb_part_record_release(&r);
    }
    lb_part_record r = {0};
    const char *none = NULL, *name = "before";
    lb_err err = LB_ERR_INIT;
    lb_part_record_text(&r, &none);
    lb_part_record back = lb_part_record_reader(r.written.bytes, r.written.size, "part", 0, &err);
    lb_part_record_name(&back, &name);
    assert_string_equal(name, "");
    assert_int_equal(lb_part_record_end(&back, &err), LB_ERR_CORRUPT);
    lb_part_record_release(&r);
}

/* Rows of a kilobyte, of which a part of a hundred bytes holds none: no memory is asked for. */
static void test_rows_that_a_part_cannot_hold_get_no_room(void **state)
{
    (void)state;
    lb_part_record r = {0};
    uint32_t n = 90;
    const int64_t zero = 0;
    lb_part_record_rows(&r, NULL, &n, 1024);
    for (int i = 0; i < 100; i++) lb_part_record_i64(&r, &(int64_t){zero});
    for (int size = 8; size <= 1024; size *= 128) {
        lb_err err = LB_ERR_INIT;
        lb_part_record back = lb_part_record_reader(r.written.bytes, r.written.size, "part", 0, &err);
        void *rows = lb_part_record_rows(&back, NULL, &n, (size_t)size);
        assert_int_equal(n, size == 8 ? 90 : 0);
        assert_int_equal(back.status, size == 8 ? LB_OK : LB_ERR_CORRUPT);
        if (size > 8) assert_non_null(strstr(err.message, "90 rows in 100 bytes"));
        free(rows);
    }
    lb_part_record_release(&r);
}

/* A part with one chunk of one unit, which has this status and says this. */
static void write_lie(const char *path, const lb_parts_job *job, const lb_part_chunk *chunk, int32_t status,
                      const char *message)
{
    byte_buffer file = {0};
    lb_part_record body = {0};
    lb_part_file_job(&file, job);
    lb_part_file_chunk(&body, lb_parts_job_digest(job), chunk);
    lb_part_record_i32(&body, &status);
    if (status == LB_OK) {
        const void *bytes = message;
        size_t n = strlen(message);
        lb_part_record_bytes(&body, &bytes, &n);
    } else {
        lb_part_record_text(&body, &message);
    }
    lb_part_file_frame(&file, &body.written);
    write_file(path, file.bytes, file.size);
    lb_part_record_release(&body), buffer_release(&file);
}

/* Digests are right, and what they are of cannot be: each ends in a refusal that names the file. */
static void test_a_lie_is_refused_by_the_name_of_its_file(void **state)
{
    (void)state;
    static const struct {
        lb_part_chunk chunk;
        int32_t status;
        const char *message, *why;
    } lies[] = {
        {{"0-first", 0, 1, 0, 1}, LB_OK, "\x01\xff", "number"},
        {{"0-first", 0, 1, 0, 1}, LB_OK, "", "the end"},
        {{"0-first", 0, 1, 0, 2}, LB_OK, "", "other units"},
        {{"0-first", 0, 1, 1, 1}, LB_OK, "", "other units"},
        {{"0-first", 0, 2, 0, 1}, LB_OK, "", "other units"},
        {{"0-first", 3, 3, 0, 1}, LB_OK, "", "3 of 3"},
        {{NULL, 0, 1, 0, 1}, LB_OK, "", "there is none"},
        {{"0-first", 0, 1, 0, 1}, LB_ERR_NOMEM, "out of memory", "-2 is none of a record"},
        {{"0-first", 0, 1, 0, 1}, LB_ERR_IO, "it cannot be read", "-1 is none of a record"},
        {{"0-first", 0, 1, 0, 1}, LB_ERR_PARTIAL, "partial", "-12 is none of a record"},
        {{"0-first", 0, 1, 0, 1}, 1, "success", "1 is none of a record"},
        {{"0-first", 0, 1, 0, 1}, INT32_MIN, "failure", "is none of a record"},
        {{"0-first", 0, 1, 0, 1}, LB_ERR_CORRUPT, "", "without a reason"},
        {{"0-first", 0, 1, 0, 1}, LB_ERR_CORRUPT, NULL, "there is none"},
        {{"0-a loop whose name is longer than a file of a folder can be, which no loop of lastbit's is, and no engine "
          "has",
          0, 1, 0, 1},
         LB_OK,
         "",
         "a name of more than"},
    };
    const char *folder = scratch;
    char path[300];
    const char *files[] = {path};
    const lb_parts_job job = job_of(NULL);
    snprintf(path, sizeof path, "%s/part", folder);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        task t = {.n = 1, .failing = NONE};
        lb_parts_tally tally;
        lb_err err = LB_ERR_INIT;
        write_lie(path, &job, &lies[i].chunk, lies[i].status, lies[i].message);
        assert_int_equal(merge(&job, files, 1, &t, &tally, &err), LB_ERR_CORRUPT);
        if (!strstr(err.message, path) || !strstr(err.message, lies[i].why)) fail_msg("%zu: %s", i, err.message);
    }
}

/* An answer of a folder ends with a code that a program can end with. */
static void test_an_answer_has_an_exit_code(void **state)
{
    (void)state;
    static const int32_t codes[] = {0, 1, 255, 256, -1, INT32_MAX};
    const char *folder = scratch;
    char path[300];
    snprintf(path, sizeof path, "%s/answer", folder);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        byte_buffer file = {0};
        lb_part_record body = {0};
        int32_t code = codes[i];
        const void *bytes = "answer";
        size_t n = 6;
        void *answer = NULL;
        int read = 77;
        lb_err err = LB_ERR_INIT;
        lb_part_record_i32(&body, &code), lb_part_record_bytes(&body, &bytes, &n);
        lb_part_file_frame(&file, &body.written);
        write_file(path, file.bytes, file.size);
        const lb_status status = lb_parts_answer_read(folder, &answer, &n, &read, &err);
        assert_int_equal(status, i < 3 ? LB_OK : LB_ERR_CORRUPT);
        assert_int_equal(read, i < 3 ? codes[i] : 77);
        if (i >= 3) assert_non_null(strstr(err.message, path));
        free(answer);
        lb_part_record_release(&body), buffer_release(&file);
    }
}

/* Of a file with very many chunks, of a loop that nobody asks for, each is looked up at once. */
static void test_very_many_chunks_of_another_question_are_passed_over(void **state)
{
    (void)state;
    enum { MANY = 20000 };
    const char *folder = scratch;
    char path[300];
    const char *files[] = {path};
    const lb_parts_job job = job_of(NULL);
    byte_buffer file = {0};
    lb_status status;
    lb_parts_tally tally;
    task t = {.n = 5, .failing = NONE};
    const task alone = plain(5, NONE, &status, NULL);
    lb_part_file_job(&file, &job);
    for (uint64_t i = 0; i < MANY; i++) {
        lb_part_record body = {0};
        const lb_part_chunk chunk = {"9-other", i, MANY, i, 1};
        lb_part_file_chunk(&body, lb_parts_job_digest(&job), &chunk);
        lb_part_file_frame(&file, &body.written);
        lb_part_record_release(&body);
    }
    snprintf(path, sizeof path, "%s/part", folder);
    write_file(path, file.bytes, file.size);
    buffer_release(&file);
    assert_int_equal(merge(&job, files, 1, &t, &tally, NULL), LB_OK);
    assert_true(lb_digest_equal(alone.folded, t.folded));
    assert_int_equal(tally.taken, 0);
}

/* ---- a folder ----------------------------------------------------------------------------------------------- */

enum { WORKERS = 4 };

/* A worker of a folder; its exit code says whether it folded what one process folds. */
static pid_t start_worker(const char *folder, const lb_parts_job *job, uint32_t number, const task *how,
                          lb_digest expected)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child) return child;
    lb_parts_options o = LB_PARTS_OPTIONS_INIT;
    lb_parts *parts = NULL;
    task t = *how;
    bool mine = false, same = false;
    o.job = job, o.folder = folder, o.worker = number, o.workers = WORKERS;
    if (lb_parts_open(&o, &parts, NULL) == LB_OK && run(parts, &t, NULL) == LB_OK &&
        lb_parts_answer(parts, "answer", 6, 1, &mine, NULL) == LB_OK)
        same = lb_digest_equal(t.folded, expected);
    lb_parts_close(parts, false);
    _exit(same ? mine ? 2 : 0 : 1);
}

static size_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (size_t)st.st_size : 0;
}

static void test_workers_of_a_folder_do_each_unit_once(void **state)
{
    (void)state;
    char folder[300], log[300];
    const lb_parts_job job = job_of(NULL);
    lb_status status;
    snprintf(folder, sizeof folder, "%s/work", scratch), snprintf(log, sizeof log, "%s/log", scratch);
    const task alone = plain(60, NONE, &status, NULL), how = {.n = 60, .failing = NONE, .log = log, .pause = 500};
    int answered = 0;
    for (uint32_t i = 0; i < WORKERS; i++) start_worker(folder, &job, i, &how, alone.folded);
    for (uint32_t i = 0; i < WORKERS; i++) {
        int code;
        assert_true(wait(&code) > 0);
        assert_true(WIFEXITED(code) && WEXITSTATUS(code) != 1);
        answered += WEXITSTATUS(code) == 2;
    }
    assert_int_equal(answered, 1);
    assert_int_equal(size_of(log), 60 + alone.units);
    /* one that comes late does nothing again, and leaves the answer to the one that gave it */
    int code;
    start_worker(folder, &job, 9, &how, alone.folded);
    assert_true(wait(&code) > 0 && WIFEXITED(code));
    assert_int_equal(WEXITSTATUS(code), 0);
    assert_int_equal(size_of(log), 60 + alone.units);
    void *answer;
    size_t n;
    assert_int_equal(lb_parts_answer_read(folder, &answer, &n, &code, NULL), LB_OK);
    assert_int_equal(code, 1);
    assert_memory_equal(answer, "answer", 6);
    free(answer);
}

/* Workers are killed at any time, and others begun: in the end there is one answer, and it is that of one process. */
static void test_killed_workers_are_taken_over_from(void **state)
{
    (void)state;
    const lb_parts_job job = job_of(NULL);
    lb_status status;
    uint64_t cut_short = 0;
    const task alone = plain(40, NONE, &status, NULL), how = {.n = 40, .failing = NONE, .pause = 1500};
    for (uint64_t round = 0; round < 8; round++) {
        char folder[300];
        pid_t workers[WORKERS];
        snprintf(folder, sizeof folder, "%s/work-%d", scratch, (int)round);
        for (uint32_t i = 0; i < WORKERS; i++) workers[i] = start_worker(folder, &job, i, &how, alone.folded);
        for (uint32_t i = 0; i + 1 < WORKERS; i++) {
            usleep((useconds_t)(draw(round, i) % 3000));
            kill(workers[i], SIGKILL);
        }
        bool right = false;
        for (uint32_t i = 0; i < WORKERS; i++) {
            int code;
            const pid_t ended = wait(&code);
            if (ended == workers[WORKERS - 1]) right = WIFEXITED(code) && WEXITSTATUS(code) != 1;
            cut_short += WIFSIGNALED(code);
        }
        assert_true(right);
    }
    assert_true(cut_short > 8);
}

/* A chunk that a power cut left empty or torn is made again. */
static void test_a_torn_chunk_is_made_again(void **state)
{
    (void)state;
    const char *root = scratch;
    char folder[300], torn[400];
    const lb_parts_job job = job_of(NULL);
    lb_status status;
    int code;
    const task alone = plain(12, NONE, &status, NULL), how = {.n = 12, .failing = NONE};
    snprintf(folder, sizeof folder, "%s/work", root);
    start_worker(folder, &job, 0, &how, alone.folded);
    assert_true(wait(&code) > 0 && WIFEXITED(code) && WEXITSTATUS(code) == 2);
    for (int length = 0; length < 80; length += 79) {
        snprintf(torn, sizeof torn, "%s/0-first-000005.part", folder);
        assert_true(size_of(torn) > 80);
        assert_int_equal(truncate(torn, length), 0);
        start_worker(folder, &job, 1, &how, alone.folded);
        assert_true(wait(&code) > 0 && WIFEXITED(code));
        assert_int_equal(WEXITSTATUS(code), 0);
        if (length) break;
        unlink(torn);
        start_worker(folder, &job, 1, &how, alone.folded);
        assert_true(wait(&code) > 0 && WIFEXITED(code) && WEXITSTATUS(code) == 0);
    }
}

static void test_another_question_finds_no_folder(void **state)
{
    (void)state;
    const char *root = scratch;
    char folder[300];
    const lb_digest changed = {1, 3};
    const lb_parts_job job = job_of(NULL), other = job_of(&changed);
    lb_parts_options o = LB_PARTS_OPTIONS_INIT;
    lb_parts *parts;
    lb_err err = LB_ERR_INIT;
    snprintf(folder, sizeof folder, "%s/work", root);
    o.job = &job, o.folder = folder;
    assert_int_equal(lb_parts_open(&o, &parts, NULL), LB_OK);
    lb_parts_close(parts, false);
    o.job = &other;
    assert_int_equal(lb_parts_open(&o, &parts, &err), LB_ERR_INVALID);
    assert_non_null(strstr(err.message, "name another folder"));
    lb_parts_job there;
    assert_int_equal(lb_parts_job_read(folder, &there, NULL), LB_OK);
    assert_int_equal(there.n, 3);
    assert_string_equal(there.words[2], "this");
    lb_parts_job_release(&there);
}

/* ---- a folder, by workers of this process -------------------------------------------------------------------- */

static lb_parts *join_folder(const char *folder, const lb_parts_job *job, uint32_t worker, uint32_t workers)
{
    lb_parts_options o = LB_PARTS_OPTIONS_INIT;
    lb_parts *parts = NULL;
    lb_err err = LB_ERR_INIT;
    o.job = job, o.folder = folder, o.worker = worker, o.workers = workers;
    if (lb_parts_open(&o, &parts, &err) != LB_OK) fail_msg("%s", err.message);
    return parts;
}

/* One after the other: the second finds all of it, does not give the answer, and takes what is theirs with it. */
static void test_the_last_worker_takes_the_folder_with_it(void **state)
{
    (void)state;
    char folder[300], foreign[340];
    const lb_parts_job job = job_of(NULL);
    lb_status status;
    bool mine = false;
    void *answer = NULL;
    size_t n;
    int code;
    lb_err err = LB_ERR_INIT;
    const task alone = plain(30, NONE, &status, NULL);
    snprintf(folder, sizeof folder, "%s/work", scratch);
    for (int foreigners = 0; foreigners < 2; foreigners++) {
        for (uint32_t worker = 0; worker < 2; worker++) {
            task t = {.n = 30, .failing = NONE};
            lb_parts *parts = join_folder(folder, &job, worker, 2);
            if (worker == 0) assert_int_equal(lb_parts_answer_read(folder, &answer, &n, &code, NULL), LB_ERR_NOT_FOUND);
            assert_int_equal(run(parts, &t, NULL), LB_OK);
            assert_true(lb_digest_equal(t.folded, alone.folded));
            const lb_parts_tally tally = lb_parts_count(parts);
            assert_int_equal(worker ? tally.made : tally.taken, 0);
            assert_int_equal(lb_parts_answer(parts, "answer", 6, 125, &mine, NULL), LB_OK);
            assert_int_equal(mine, worker == 0);
            assert_int_equal(lb_parts_answer_read(folder, &answer, &n, &code, NULL), LB_OK);
            assert_int_equal(code, 125);
            free(answer);
            snprintf(foreign, sizeof foreign, "%s/notes.txt", folder);
            if (foreigners) write_file(foreign, "somebody's", 10);
            lb_parts_close(parts, true);
            assert_int_equal(access(folder, F_OK), worker == 0 || foreigners ? 0 : -1);
        }
        if (foreigners) { /* a file that is none of theirs stays, alone */
            assert_int_equal(unlink(foreign), 0);
            assert_int_equal(rmdir(folder), 0);
        }
    }
    task t = {.n = 30, .failing = NONE};
    lb_parts *parts = join_folder(folder, &job, 0, 2);
    char command[340];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(run(parts, &t, &err), LB_ERR_PARTIAL);
    assert_non_null(strstr(err.message, "the other workers are done"));
    lb_parts_close(parts, true);
}

/* Claims that no worker stands behind: of a process that is gone, and of one that was not touched for long. */
static void test_claims_of_the_dead_are_taken_over(void **state)
{
    (void)state;
    static const char *const loops[] = {"0-first-000002.claim", "0-first-000003.claim"};
    char folder[300], claim[360];
    const lb_parts_job job = job_of(NULL);
    lb_status status;
    const task alone = plain(9, NONE, &status, NULL);
    task t = {.n = 9, .failing = NONE};
    snprintf(folder, sizeof folder, "%s/work", scratch);
    lb_parts *parts = join_folder(folder, &job, 0, 1);
    for (int i = 0; i < 2; i++) {
        const struct timespec old[2] = {{1, 0}, {1, 0}};
        snprintf(claim, sizeof claim, "%s/%s", folder, loops[i]);
        write_file(claim, i ? "elsewhere-0 17\n" : "", i ? 15 : 0);
        assert_int_equal(utimensat(AT_FDCWD, claim, old, 0), 0);
    }
    assert_int_equal(run(parts, &t, NULL), LB_OK);
    assert_true(lb_digest_equal(t.folded, alone.folded));
    for (int i = 0; i < 2; i++) {
        snprintf(claim, sizeof claim, "%s/%s", folder, loops[i]);
        assert_int_equal(access(claim, F_OK), -1);
    }
    lb_parts_close(parts, true);
    assert_int_equal(access(folder, F_OK), -1);
}

/* A claim of the future, for a clock was ahead: of one that lives and touches it, and of one that ended. */
static void test_claims_of_clocks_that_are_ahead(void **state)
{
    (void)state;
    char folder[300], claim[360], log[300];
    const lb_parts_job job = job_of(NULL);
    lb_status status;
    int code;
    enum { LIVES_FOR = 5 };
    const task alone = plain(3, NONE, &status, NULL), how = {.n = 3, .failing = NONE, .log = log};
    snprintf(folder, sizeof folder, "%s/work", scratch), snprintf(log, sizeof log, "%s/log", scratch);
    lb_parts_close(join_folder(folder, &job, 0, 0), false);
    snprintf(claim, sizeof claim, "%s/0-first-000001.claim", folder);
    write_file(claim, "", 0); /* a quarter of the patience */
    time_t ahead = time(NULL) + 3600;
    const time_t began = time(NULL);
    const pid_t worker = start_worker(folder, &job, 0, &how, alone.folded);
    while (time(NULL) < began + LIVES_FOR) {
        const struct timespec touched[2] = {{++ahead, 0}, {ahead, 0}};
        assert_int_equal(utimensat(AT_FDCWD, claim, touched, 0), 0);
        usleep(300000);
        assert_int_equal(waitpid(worker, &code, WNOHANG), 0); /* its owner lives */
    }
    assert_int_equal(waitpid(worker, &code, 0), worker);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 2);
    assert_true(time(NULL) < began + LIVES_FOR + 60);
    assert_int_equal(size_of(log), 3 + alone.units);
}

static lb_status refuse_all(lb_err *err)
{
    return lb_fail(err, LB_ERR_IO, "a read was refused");
}

/* What a process makes once it was refused a read may lack what that would have given: no other worker finds it. */
static void test_what_is_made_behind_a_refusal_is_not_kept(void **state)
{
    (void)state;
    char folder[300], part[360];
    const lb_parts_job job = job_of(NULL);
    lb_status status;
    lb_err err = LB_ERR_INIT;
    const task alone = plain(4, NONE, &status, NULL);
    task t = {.n = 4, .failing = NONE};
    snprintf(folder, sizeof folder, "%s/work", scratch);
    for (int files = 0; files < 2; files++) {
        lb_parts_options o = LB_PARTS_OPTIONS_INIT;
        lb_parts *parts;
        o.job = &job, o.refusal = refuse_all;
        o.folder = files ? NULL : folder, o.part = (uint32_t)files, o.of = (uint32_t)files;
        assert_int_equal(lb_parts_open(&o, &parts, NULL), LB_OK);
        lb_err_clear(&err);
        assert_int_equal(run(parts, &t, &err), LB_ERR_IO);
        assert_string_equal(err.message, "a read was refused");
        lb_parts_close(parts, false);
    }
    for (int i = 0; i < 4; i++) {
        snprintf(part, sizeof part, "%s/0-first-%06d.part", folder, i);
        assert_int_equal(access(part, F_OK), -1);
    }
    lb_parts *parts = join_folder(folder, &job, 0, 0);
    t = (task){.n = 4, .failing = NONE};
    assert_int_equal(run(parts, &t, NULL), LB_OK);
    assert_true(lb_digest_equal(t.folded, alone.folded));
    lb_parts_close(parts, false);
}

/* A chunk in the folder that is torn is made again; one whose digest is right and that lies is refused by its name. */
static void test_a_lie_in_a_folder_is_refused(void **state)
{
    (void)state;
    char folder[300], chunk[360];
    const lb_parts_job job = job_of(NULL);
    lb_status status;
    const task alone = plain(9, NONE, &status, NULL);
    task t = {.n = 9, .failing = NONE}, again = {.n = 9, .failing = NONE};
    lb_err err = LB_ERR_INIT;
    snprintf(folder, sizeof folder, "%s/work", scratch),
        snprintf(chunk, sizeof chunk, "%s/0-first-000004.part", folder);
    lb_parts *parts = join_folder(folder, &job, 0, 1);
    assert_int_equal(run(parts, &t, NULL), LB_OK);
    lb_parts_close(parts, false);
    write_file(chunk, "torn", 4);
    parts = join_folder(folder, &job, 0, 1);
    assert_int_equal(run(parts, &again, NULL), LB_OK);
    assert_true(lb_digest_equal(again.folded, alone.folded));
    lb_parts_close(parts, false);
    const lb_part_chunk other = {"0-first", 4, 9, 0, 1};
    write_lie(chunk, &job, &other, LB_OK, "");
    size_t n = 0;
    char *bytes = read_whole(chunk, &n); /* a folder's file is the chunk alone */
    size_t at = 0, length = 0;
    const char *body;
    assert_int_equal(lb_part_file_next(bytes, n, &at, chunk, &body, &length, NULL), LB_OK);
    write_file(chunk, bytes + at, n - at);
    free(bytes);
    parts = join_folder(folder, &job, 0, 1);
    task lied = {.n = 9, .failing = NONE};
    assert_int_equal(run(parts, &lied, &err), LB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, chunk));
    lb_parts_close(parts, false);
}

/* Folders and jobs that cannot be: what stands there is named, and why it is none. */
static void test_a_folder_that_cannot_be_is_refused(void **state)
{
    (void)state;
    char path[300], job_file[340];
    const lb_parts_job job = job_of(NULL);
    lb_parts_options o = LB_PARTS_OPTIONS_INIT;
    lb_parts *parts = NULL;
    lb_parts_job there;
    lb_err err = LB_ERR_INIT;
    o.job = &job, o.folder = path;
    snprintf(path, sizeof path, "%s/file", scratch);
    write_file(path, "x", 1);
    assert_int_equal(lb_parts_open(&o, &parts, &err), LB_ERR_EXISTS);
    assert_non_null(strstr(err.message, "is not a folder"));
    snprintf(path, sizeof path, "%s/no/such/folder", scratch);
    lb_err_clear(&err);
    assert_int_equal(lb_parts_open(&o, &parts, &err), LB_ERR_IO);
    assert_non_null(strstr(err.message, "cannot be made"));
    snprintf(path, sizeof path, "%s/work", scratch), snprintf(job_file, sizeof job_file, "%s/job", path);
    lb_parts_close(join_folder(path, &job, 0, 1), false);
    write_file(job_file, "LBPART1\n and more that is none", 30);
    lb_err_clear(&err);
    assert_int_equal(lb_parts_open(&o, &parts, &err), LB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, job_file));
    assert_int_equal(lb_parts_job_read(path, &there, NULL), LB_ERR_CORRUPT);
    assert_null(parts);
    o.folder = NULL, o.part = 3, o.of = 2;
    assert_int_equal(lb_parts_open(&o, &parts, NULL), LB_ERR_INVALID);
    o.part = 1, o.of = 0;
    assert_int_equal(lb_parts_open(&o, &parts, NULL), LB_ERR_INVALID);
    o.job = NULL, o.part = 0;
    assert_int_equal(lb_parts_open(&o, &parts, NULL), LB_ERR_INVALID);
}

/* ---- without memory -------------------------------------------------------------------------------------------- */

/* By a part, or, where that is NULL, in a folder. */
static lb_status merge_or_meet(const char *part, const char *folder, lb_digest *folded, bool *failed)
{
    const lb_parts_job job = job_of(NULL);
    lb_parts_options o = LB_PARTS_OPTIONS_INIT;
    lb_parts *parts = NULL;
    lb_err err = LB_ERR_INIT;
    task t = {.n = 5, .failing = NONE};
    bool mine = false;
    o.job = &job, o.worker = 0, o.workers = 1;
    if (part)
        o.files = &part, o.n_files = 1;
    else
        o.folder = folder;
    lb_status status = lb_parts_open(&o, &parts, &err);
    if (status == LB_OK) status = run(parts, &t, &err);
    if (status == LB_OK) status = lb_parts_answer(parts, "answer", 6, 0, &mine, &err);
    lb_parts_close(parts, true);
    *folded = t.folded;
    *failed = memory_failed();
    if (status != LB_OK) assert_true(err.message[0]);
    return status;
}

/* Each allocation fails once, of a merge and of a worker of a folder: the same is folded, or there was no memory. */
static void test_without_memory_nothing_else_is_folded(void **state)
{
    (void)state;
    if (!failing_memory) skip();
    char part[300], folder[300];
    const lb_parts_job job = job_of(NULL);
    lb_status status;
    const task alone = plain(5, NONE, &status, NULL);
    snprintf(part, sizeof part, "%s/part", scratch), snprintf(folder, sizeof folder, "%s/work", scratch);
    save_part(part, &job, 1, 2, 5, NONE);
    for (int meet = 0; meet < 2; meet++) {
        uint32_t refused = 0;
        bool failed = true;
        for (long n = 1; failed; n++) {
            lb_digest folded;
            char command[340];
            fail_memory(n);
            status = merge_or_meet(meet ? NULL : part, folder, &folded, &failed);
            if (status == LB_OK) assert_true(lb_digest_equal(folded, alone.folded));
            if (status != LB_OK) assert_int_equal(status, LB_ERR_NOMEM);
            refused += status == LB_ERR_NOMEM;
            snprintf(command, sizeof command, "rm -rf '%s'", folder);
            assert_int_equal(system(command), 0);
        }
        assert_true(refused > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_any_number_of_parts_folds_the_same, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_a_part_of_another_question_is_refused, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_no_damage_is_folded, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_counts_are_not_believed, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_numbers_and_names_have_bounds, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_rows_that_a_part_cannot_hold_get_no_room, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_a_lie_is_refused_by_the_name_of_its_file, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_an_answer_has_an_exit_code, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_very_many_chunks_of_another_question_are_passed_over, make_scratch,
                                        drop_scratch),
        cmocka_unit_test_setup_teardown(test_workers_of_a_folder_do_each_unit_once, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_killed_workers_are_taken_over_from, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_a_torn_chunk_is_made_again, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_another_question_finds_no_folder, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_the_last_worker_takes_the_folder_with_it, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_claims_of_the_dead_are_taken_over, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_claims_of_clocks_that_are_ahead, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_what_is_made_behind_a_refusal_is_not_kept, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_a_lie_in_a_folder_is_refused, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_a_folder_that_cannot_be_is_refused, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(test_without_memory_nothing_else_is_folded, make_scratch, drop_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
