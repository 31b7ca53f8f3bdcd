/* Event files: checksums, values of every kind, and bytes that are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "watch/tensorboard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void checksums_are_those_of_rfc_3720(void **state)
{
    (void)state;
    uint8_t bytes[32] = {0};
    assert_int_equal(lb_tensorboard_crc32c(bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    assert_int_equal(lb_tensorboard_crc32c(bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    assert_int_equal(lb_tensorboard_crc32c(bytes, 32), 0x46dd794e);
    assert_int_equal(lb_tensorboard_crc32c("123456789", 9), 0xe3069283);
}

static uint32_t masked(const void *bytes, size_t n)
{
    const uint32_t crc = lb_tensorboard_crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* Puts an event into a frame; gives its length. */
static size_t framed(uint8_t *out, const void *event, size_t n)
{
    const uint64_t length = n;
    const uint32_t head = masked(&length, 8), tail = masked(event, n);
    memcpy(out, &length, 8), memcpy(out + 8, &head, 4), memcpy(out + 12, event, n), memcpy(out + 12 + n, &tail, 4);
    return n + 16;
}

typedef struct got {
    int records, complaints;
    lb_watch_record last;
} got;
static void on_record(void *context, lb_watch_record *record)
{
    ((got *)context)->records++, ((got *)context)->last = *record;
}
static void on_complaint(void *context, const char *why)
{
    (void)why;
    ((got *)context)->complaints++;
}

/* step 300 { loss, as 0.5f }: written by hand from event.proto. */
static const uint8_t EVENT[] = {0x10, 0xac, 0x02, 0x2a, 0x0d, 0x0a, 0x0b, 0x0a, 0x04,
                                'l',  'o',  's',  's',  0x15, 0,    0,    0,    0x3f};

static void an_event_written_by_hand_is_read(void **state)
{
    (void)state;
    uint8_t bytes[100];
    got got = {0};
    lb_event_reader reader = {0};
    const lb_event_out out = {&got, on_record, on_complaint};
    const size_t n = framed(bytes, EVENT, sizeof EVENT);
    assert_true(lb_tensorboard_event_begins(bytes, n));
    for (size_t part = 0; part < n; part++) assert_int_equal(lb_tensorboard_event_read(&reader, bytes, part, &out), 0);
    assert_int_equal(lb_tensorboard_event_read(&reader, bytes, n, &out), n);
    lb_tensorboard_event_end(&reader, &out);
    assert_int_equal(got.records, 1);
    assert_int_equal(got.last.step, 300);
    assert_true(got.last.number[LB_WATCH_loss] == 0.5);
}

static void damaged_bytes_are_reported_and_never_believed(void **state)
{
    (void)state;
    uint8_t whole[100], bytes[100];
    const size_t n = framed(whole, EVENT, sizeof EVENT);
    for (size_t at = 0; at < n; at++)
        for (int bit = 0; bit < 8; bit++) {
            got got = {0};
            lb_event_reader reader = {0};
            const lb_event_out out = {&got, on_record, on_complaint};
            memcpy(bytes, whole, n);
            bytes[at] ^= (uint8_t)(1 << bit);
            const size_t taken = lb_tensorboard_event_read(&reader, bytes, n, &out);
            lb_tensorboard_event_end(&reader, &out);
            assert_int_equal(got.records, 0);
            assert_true(taken == SIZE_MAX || (taken == n && got.complaints == 1));
        }
}

static void events_of_any_bytes_in_a_valid_frame_are_harmless(void **state)
{
    (void)state;
    uint8_t event[64], bytes[100];
    uint64_t seed = 1;
    for (int round = 0; round < 200000; round++) {
        got got = {0};
        lb_event_reader reader = {0};
        const lb_event_out out = {&got, on_record, on_complaint};
        memcpy(event, EVENT, sizeof EVENT);
        for (int k = 0; k < 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            event[(seed >> 33) % sizeof EVENT] = (uint8_t)(seed >> 50);
        }
        const size_t n = framed(bytes, event, sizeof EVENT);
        assert_int_equal(lb_tensorboard_event_read(&reader, bytes, n, &out), n);
        lb_tensorboard_event_end(&reader, &out);
        assert_in_range(got.records, 0, 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_are_those_of_rfc_3720),
        cmocka_unit_test(an_event_written_by_hand_is_read),
        cmocka_unit_test(damaged_bytes_are_reported_and_never_believed),
        cmocka_unit_test(events_of_any_bytes_in_a_valid_frame_are_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
