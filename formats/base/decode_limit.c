/* See lastbit/decode_limit.h. Accounts are added up with atomic operations; two threads that meet at a limit may both
 * be refused. */
#include <lastbit/decode_limit.h>

#include <lastbit/json_text.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t limit_room = LB_DECODE_LIMIT_ROOM, limit_ratio = LB_DECODE_LIMIT_RATIO;
static lb_decode_limit_account everything; /* of all open accounts */

void lb_decode_limit_set(uint64_t room, uint64_t ratio)
{
    limit_room = room, limit_ratio = ratio;
}

uint64_t lb_decode_limit_room(void)
{
    return limit_room;
}

static uint64_t add(uint64_t *sum, uint64_t bytes)
{
    return __atomic_add_fetch(sum, bytes, __ATOMIC_RELAXED);
}

static void subtract(uint64_t *sum, uint64_t bytes)
{
    __atomic_sub_fetch(sum, bytes, __ATOMIC_RELAXED);
}

/* What an account may hold; UINT64_MAX where that has no end. */
static uint64_t most_of(const lb_decode_limit_account *account, uint64_t times)
{
    uint64_t stored = __atomic_load_n(&account->stored, __ATOMIC_RELAXED), most;
    if (__builtin_mul_overflow(stored, limit_ratio, &most) || __builtin_add_overflow(most, limit_room, &most) ||
        __builtin_mul_overflow(most, times, &most))
        return UINT64_MAX;
    return most;
}

void lb_decode_limit_open(lb_decode_limit_account *account, uint64_t stored)
{
    add(&account->stored, stored), add(&everything.stored, stored);
}

void lb_decode_limit_close(lb_decode_limit_account *account)
{
    subtract(&everything.held, account->held), subtract(&everything.stored, account->stored);
    *account = (lb_decode_limit_account){0, 0, 0};
}

static const char *size_text(uint64_t bytes, char text[24])
{
    const int giga = bytes >= 10ull << 30;
    snprintf(text, 24, "%.1f %s", (double)bytes / (double)(giga ? 1ull << 30 : 1ull << 20), giga ? "GB" : "MB");
    return text;
}

static lb_status refuse(lb_err *err, const char *what, const char *does, uint64_t bytes, uint64_t most)
{
    char wanted[24], limit[24];
    return lb_fail(err, LB_ERR_LIMIT,
                   "%s: %s %s, and the limit is %s (a small file that grows so much may be made to do harm): "
                   "if it is meant to be so large, --max-decoded with a larger size reads it",
                   what, does, size_text(bytes, wanted), size_text(most, limit));
}

lb_status lb_decode_limit_pass(lb_decode_limit_account *account, uint64_t bytes, const char *what, lb_err *err)
{
    const uint64_t most = most_of(account, LB_DECODE_LIMIT_PASSES);
    uint64_t passed = __atomic_load_n(&account->passed, __ATOMIC_RELAXED), after;
    if (__builtin_add_overflow(passed, bytes, &after) || after > most)
        return refuse(err, what, "with what was decoded before, this file comes to",
                      passed > UINT64_MAX - bytes ? UINT64_MAX : passed + bytes, most);
    add(&account->passed, bytes);
    return LB_OK;
}

/* Adds `bytes` to what is held unless that passes the limit. */
static bool hold(lb_decode_limit_account *account, uint64_t bytes)
{
    const uint64_t most = most_of(account, 1), held = __atomic_load_n(&account->held, __ATOMIC_RELAXED);
    if (bytes > most || held > most - bytes) return false;
    add(&account->held, bytes);
    return true;
}

lb_status lb_decode_limit_hold(lb_decode_limit_account *account, uint64_t bytes, const char *what, lb_err *err)
{
    LB_TRY(lb_decode_limit_pass(account, bytes, what, err));
    if (!hold(account, bytes)) {
        subtract(&account->passed, bytes);
        return refuse(err, what, "decoded, with what this file holds already, it takes", account->held + bytes,
                      most_of(account, 1));
    }
    if (hold(&everything, bytes)) return LB_OK;
    subtract(&account->held, bytes), subtract(&account->passed, bytes);
    return refuse(err, what, "decoded, with what all open files hold already, it takes", everything.held + bytes,
                  most_of(&everything, 1));
}

void lb_decode_limit_drop(lb_decode_limit_account *account, uint64_t bytes)
{
    subtract(&account->held, bytes), subtract(&everything.held, bytes);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

/* What this thread's document may still take; without one, as much as there is. */
static __thread uint64_t json_left = UINT64_MAX;
static __thread bool json_refused;

/* An allocation costs its size and what malloc adds. */
static uint64_t cost_of(void *memory)
{
    return memory ? malloc_usable_size(memory) + sizeof(size_t) : 0;
}

static void *counted_malloc(size_t size)
{
    if (json_left == UINT64_MAX) return malloc(size);
    if (size > json_left) return json_refused = true, NULL;
    void *memory = malloc(size);
    const uint64_t cost = cost_of(memory);
    json_left -= cost < json_left ? cost : json_left;
    return memory;
}

static void counted_free(void *memory)
{
    if (json_left != UINT64_MAX) json_left += cost_of(memory);
    free(memory);
}

void lb_decode_limit_count_json(void)
{
    json_set_alloc_funcs(counted_malloc, counted_free);
}

static void begin_json(uint64_t most)
{
    json_left = most, json_refused = false;
}

static json_t *end_json(json_t *value, uint64_t most, json_error_t *why)
{
    char limit[24];
    json_left = UINT64_MAX;
    if (!value && json_refused)
        snprintf(
            why->text, sizeof why->text,
            "its JSON holds more than %s when parsed; if it is meant to, --max-decoded with a larger size reads it",
            size_text(most, limit));
    return value;
}

json_t *lb_decode_limit_json(const char *bytes, size_t size, size_t flags, uint64_t most, json_error_t *why)
{
    begin_json(most);
    return end_json(json_loadb(bytes, size, flags, why), most, why);
}

json_t *lb_decode_limit_json_file(const char *path, size_t flags, json_error_t *why)
{
    begin_json(limit_room);
    return end_json(json_load_file(path, flags, why), limit_room, why);
}

lb_status lb_decode_limit_json_status(lb_status status)
{
    return json_refused ? LB_ERR_LIMIT : status;
}
