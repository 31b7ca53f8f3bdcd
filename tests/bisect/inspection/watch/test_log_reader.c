/* A log gives the same records however its bytes are cut, and survives any bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <lastbit/watch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct got {
    uint64_t records, complaints, checkpoints, sum;
} got;

static void mix(got *got, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) got->sum = (got->sum ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
}
static void on_record(void *context, const lb_watch_record *record)
{
    got *g = (got *)context;
    g->records++;
    mix(g, &record->step, sizeof record->step);
    mix(g, &record->has, sizeof record->has);
    mix(g, &record->line, sizeof record->line);
    for (int i = 0; i < LB_WATCH_N_NUMBERS; i++)
        if (record->has >> i & 1) mix(g, &record->number[i], sizeof record->number[i]);
    for (int i = 0; i < LB_WATCH_N_WORDS; i++)
        if (record->has >> (LB_WATCH_shard + i) & 1) mix(g, record->word[i].text, record->word[i].n);
}
static void on_complaint(void *context, uint64_t line, const char *why)
{
    got *g = (got *)context;
    g->complaints++;
    mix(g, &line, sizeof line);
    mix(g, why, strlen(why));
}
static void on_checkpoint(void *context, int64_t step, const char *text)
{
    got *g = (got *)context;
    g->checkpoints++;
    mix(g, &step, sizeof step);
    mix(g, text, strlen(text));
}

static uint64_t state_of_random = 1;
static uint32_t draw(uint32_t below)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state_of_random >> 33) % below;
}

/* `piece` 0: all at once; else pieces of up to so many bytes. */
static got read_log(const char *text, size_t n, uint32_t piece, lb_watch_format *format)
{
    got got = {0};
    lb_watch_log *log;
    const lb_watch_log_options options = LB_WATCH_LOG_OPTIONS_INIT;
    const lb_watch_sink sink = {&got, on_record, on_complaint, on_checkpoint};
    assert_int_equal(lb_watch_log_new(&options, &sink, &log, NULL), LB_OK);
    for (size_t at = 0; at < n;) {
        size_t k = piece ? 1 + draw(piece) : n;
        if (k > n - at) k = n - at;
        char *copy = malloc(k); /* of its own, so that a read behind its end is seen */
        memcpy(copy, text + at, k);
        assert_int_equal(lb_watch_log_bytes(log, copy, k, NULL), LB_OK);
        free(copy);
        at += k;
    }
    assert_int_equal(lb_watch_log_end(log, NULL), LB_OK);
    if (format) *format = lb_watch_log_counts(log).format;
    lb_watch_log_free(log);
    return got;
}

static const char LINES[] =
    "starting\nstep 00000/9 (0%) | loss: 4.5 | gnorm: 1.5 | shard: a.bin |\n\nsaved checkpoint step 0\r\n"
    "step 00001/9 | loss: x\nstep 00002/9 | loss: nan | tok/sec: 254,128\nstep 00003/9 | loss: 3";
static const char OBJECTS[] =
    "{\"step\": 0, \"loss\": 4.5, \"train\": {\"grad_norm\": 2}}\n{\"step\": 1\n[]\n{\"step\": 2, \"loss\": NaN}\n";
static const char TABLE[] = "step,loss,grad_norm\n0,4.5,1\n1,,2\n2,x,3\n3,4\nstep,loss,grad_norm\n4,5,6";

static void records_do_not_depend_on_where_bytes_are_cut(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        lb_watch_format format;
        uint64_t records, complaints, checkpoints;
    } cases[] = {{LINES, LB_WATCH_LINE, 3, 1, 1}, {OBJECTS, LB_WATCH_JSONL, 2, 2, 0}, {TABLE, LB_WATCH_CSV, 3, 2, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        lb_watch_format format;
        const size_t n = strlen(cases[c].text);
        const got whole = read_log(cases[c].text, n, 0, &format);
        assert_int_equal(format, cases[c].format);
        assert_int_equal(whole.records, cases[c].records);
        assert_int_equal(whole.complaints, cases[c].complaints);
        assert_int_equal(whole.checkpoints, cases[c].checkpoints);
        for (int round = 0; round < 300; round++) {
            const got pieces = read_log(cases[c].text, n, 1 + (uint32_t)round % 20, &format);
            assert_int_equal(format, cases[c].format);
            assert_true(pieces.sum == whole.sum && pieces.records == whole.records);
        }
    }
}

static void changed_bytes_are_survived(void **state)
{
    (void)state;
    static const char *const texts[] = {LINES, OBJECTS, TABLE};
    for (int round = 0; round < 30000; round++) {
        char text[400];
        const char *from = texts[round % 3];
        const size_t n = strlen(from);
        memcpy(text, from, n);
        for (uint32_t k = 1 + draw(6); k-- > 0;) {
            static const char likely[] = "\"'{}[]:,|\n\\ .-+eE0/\0\xff";
            text[draw((uint32_t)n)] = draw(2) ? likely[draw(sizeof likely - 1)] : (char)draw(256);
        }
        const got got = read_log(text, n, 64, NULL);
        assert_in_range(got.records, 0, 40);
    }
}

static void a_line_of_any_length_takes_bounded_memory(void **state)
{
    (void)state;
    got got = {0};
    lb_watch_log *log;
    const lb_watch_log_options options = LB_WATCH_LOG_OPTIONS_INIT;
    const lb_watch_sink sink = {&got, on_record, on_complaint, on_checkpoint};
    static char piece[1 << 16];
    memset(piece, 'x', sizeof piece);
    assert_int_equal(lb_watch_log_new(&options, &sink, &log, NULL), LB_OK);
    for (int i = 0; i < 1000; i++) assert_int_equal(lb_watch_log_bytes(log, piece, sizeof piece, NULL), LB_OK);
    assert_int_equal(lb_watch_log_bytes(log, "\nstep 1 | loss: 2 |\n", 20, NULL), LB_OK);
    assert_int_equal(got.records, 1);
    assert_int_equal(got.complaints, 1);
    lb_watch_log_free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_do_not_depend_on_where_bytes_are_cut),
        cmocka_unit_test(changed_bytes_are_survived),
        cmocka_unit_test(a_line_of_any_length_takes_bounded_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
