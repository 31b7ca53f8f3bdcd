/* The environment of a shim: see shim_settings.h. */
#include "calls/shim_settings.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_CALLS = 100 };

static _Atomic int mode;
static lb_shim_settings settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *text_of(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = text_of(name);
    char *end;
    const uint64_t number = text ? strtoull(text, &end, 10) : 0;
    return text && !*end && number ? number : otherwise;
}

/* The first pair of variables that launchers set. */
static void ask_launcher(void)
{
    static const char *const names[][2] = {{"RANK", "WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"}};
    settings.rank = settings.world = -1;
    for (size_t i = 0; i < sizeof names / sizeof *names && settings.world < 0; i++) {
        const char *rank = text_of(names[i][0]), *world = text_of(names[i][1]);
        if (!rank || !world || atoi(world) < 2) continue;
        settings.rank = atoi(rank);
        settings.world = atoi(world);
    }
}

static void read_settings(void)
{
    const char *disabled = text_of("LASTBIT_DISABLE"), *kept = text_of(lb_shim_library_here.keep);
    settings = (lb_shim_settings){.out = text_of("LASTBIT_OUT"),
                                  .level = text_of("LASTBIT_LEVEL"),
                                  .steps = text_of("LASTBIT_STEPS"),
                                  .ranks = text_of("LASTBIT_RANKS"),
                                  .keep = text_of("LASTBIT_KEEP"),
                                  .layers = text_of("LASTBIT_LAYERS"),
                                  .like = text_of("LASTBIT_LIKE"),
                                  .budget_bytes = number_of("LASTBIT_BUDGET", 0),
                                  .ring = number_of("LASTBIT_RING", 0),
                                  .ring_files = (uint8_t)number_of("LASTBIT_RING_FILES", 0),
                                  .sync = text_of("LASTBIT_SYNC"),
                                  .step_calls = number_of(lb_shim_library_here.step, STEP_CALLS),
                                  .bytes = !kept || strcmp(kept, "calls") != 0};
    ask_launcher();
    const bool off = !settings.out || (disabled && strcmp(disabled, "0") != 0) || (kept && !strcmp(kept, "off"));
    int undecided = LB_SHIM_UNDECIDED;
    atomic_compare_exchange_strong(&mode, &undecided, off ? LB_SHIM_OFF : LB_SHIM_RECORDING);
}

lb_shim_mode lb_shim_mode_now(void)
{
    const int now = atomic_load_explicit(&mode, memory_order_acquire);
    if (now != LB_SHIM_UNDECIDED) return (lb_shim_mode)now;
    pthread_once(&once, read_settings);
    return (lb_shim_mode)atomic_load_explicit(&mode, memory_order_acquire);
}

const lb_shim_settings *lb_shim_settings_now(void)
{
    pthread_once(&once, read_settings);
    return &settings;
}

void lb_shim_join(bool joined)
{
    int from = joined ? LB_SHIM_RECORDING : LB_SHIM_JOINED;
    lb_shim_mode_now();
    atomic_compare_exchange_strong(&mode, &from, joined ? LB_SHIM_JOINED : LB_SHIM_RECORDING);
}

void lb_shim_say(const char *format, ...)
{
    char text[1024], line[4 * sizeof text];
    size_t n = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (const char *at = text; *at; at++)
        n += (size_t)snprintf(line + n, sizeof line - n, *at >= ' ' && *at < 0x7f ? "%c" : "\\x%02x",
                              (unsigned char)*at);
    fprintf(stderr, "lastbit: %s\n", n ? line : "");
}

void lb_shim_turn_off(const char *why)
{
    if (atomic_exchange(&mode, LB_SHIM_OFF) == LB_SHIM_OFF || !why) return;
    lb_shim_say("%s calls are not recorded any more: %s", lb_shim_library_here.name, why);
}

static _Atomic(const char *) lost;

void lb_shim_lost(const char *why)
{
    const char *none = NULL;
    if (atomic_compare_exchange_strong(&lost, &none, why))
        lb_shim_say("what is recorded of %s is not complete: %s", lb_shim_library_here.name, why);
}

const char *lb_shim_lost_why(void)
{
    return atomic_load(&lost);
}

void *lb_shim_memory(size_t size)
{
    void *memory = calloc(1, size);
    if (!memory) lb_shim_lost("there was no memory left");
    return memory;
}

bool lb_shim_ranges_have(const char *text, int64_t number)
{
    for (const char *at = text; at && *at;) {
        char *end;
        const int64_t first = strtoll(at, &end, 10);
        int64_t last = first;
        if (end == at) return true; /* no list of ranges: the command line has said so already */
        if (*end == '-') last = end[1] >= '0' && end[1] <= '9' ? strtoll(end + 1, &end, 10) : (end++, INT64_MAX);
        if (number >= first && number <= last) return true;
        at = *end == ',' ? end + 1 : end + strlen(end);
    }
    return !text;
}
