/* crash_states LOG SCRATCH [start=FOLDER] [states=N] [seed=N] [keep=N] [end=FOLDER] [capture=PATH]... [whole=PATH]...
 *
 * Cuts the power at every event of a log of writes (write_log.h), in as many ways as asked for, and looks at what is
 * left (disk_model.h):
 *
 *   capture  each step that the disk held before the power went, with all that is permanent by fsync alone, is there
 *            and whole; a step that is listed is the step that was recorded, bit for bit, or `verify` says what it
 *            lacks; what `recover` makes of it has no fewer steps, and none that is wrong. The window of a flight
 *            recorder counts as part of its capture.
 *   whole    the file is what it was at the start, or what it was at the end, never anything between.
 *
 * With end=FOLDER the whole log must give what is there now: a write that passed by the log would make all of this
 * worthless.
 *
 * Prints one JSON object with what was tried. Exit code 1 with the state left in SCRATCH where something was lost or
 * wrong. */
#include "disk_model.h"
#include "step_list.h"

#include <lastbit/archive.h>
#include <lastbit/maintenance.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_PATHS = 8, MOST_PENDING = 65536 };

typedef struct content {
    char *bytes; /* NULL: there is no such file */
    size_t size;
} content;

typedef struct tally {
    uint64_t states, durable, listed, partial, unreadable, recovered, kept;
} tally;

static struct {
    disk_model *model;
    const char *captures[MOST_PATHS], *wholes[MOST_PATHS];
    int n_captures, n_wholes;
    char state[PATH_MAX], out[PATH_MAX], keep[PATH_MAX];
    step_list recorded[MOST_PATHS]; /* all that any prefix of the log holds */
    content begin[MOST_PATHS], end[MOST_PATHS];
    tally tally;
    uint64_t random;
} run;

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void violate(const disk_state *s, const char *path, const char *what, int64_t number)
{
    fprintf(stderr,
            "power cut before event %zu of %zu (%zu pending, unwritten %d, seed %" PRIu32 "): %s: %s (step %" PRId64
            "); the disk is in %s\n",
            s->at, disk_model_events(run.model), disk_model_pending(run.model, s->at), s->unwritten, s->seed, path,
            what, number, run.state);
    exit(1);
}

static bool list_steps(const disk_state *s, const char *path, step_list *found)
{
    const char *wrong = NULL;
    const bool opened = step_list_read(path, found, &wrong);
    if (wrong) violate(s, path, wrong, found->n);
    return opened;
}

/* The capture, and behind it what the files of its flight recorder give. */
static bool look_at(const disk_state *s, int c, step_list *found)
{
    char path[PATH_MAX + 256];
    uint32_t from_ring = 0;
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", run.state, run.captures[c]);
    found->n = 0;
    const bool opened = list_steps(s, path, found);
    found->own = found->n;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return opened;
    mkdir(run.out, 0700);
    if (lb_ring_files_assemble(path, run.out, "power cut", &from_ring, NULL, NULL) == LB_OK && from_ring)
        list_steps(s, run.out, found);
    return opened;
}

static content read_whole(const char *folder, const char *name)
{
    char path[PATH_MAX + 256];
    content c = {NULL, 0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *in = fopen(path, "rb");
    if (!in) return c;
    fseek(in, 0, SEEK_END);
    c.size = (size_t)ftell(in);
    rewind(in);
    c.bytes = malloc(c.size + 1);
    if (!c.bytes || fread(c.bytes, 1, c.size, in) != c.size) abort();
    fclose(in);
    return c;
}

static bool is_same(const content *a, const content *b)
{
    return !a->bytes == !b->bytes && a->size == b->size && (!a->bytes || memcmp(a->bytes, b->bytes, a->size) == 0);
}

/* ---- judging ----------------------------------------------------------------------------------------------------- */

static void remove_out(void)
{
    if (unlink(run.out) == 0) return;
    disk_model_empty(run.out);
    rmdir(run.out);
}

/* What is called whole is whole. */
static void check_honesty(const disk_state *s, const char *path, const step_list *found, int from, int to)
{
    lb_verification v;
    const lb_status status = lb_capture_verify(path, NULL, NULL, &v, NULL);
    int partial = 0;
    for (int i = from; i < to; i++) partial += !found->list[i].whole;
    run.tally.partial += partial > 0;
    if (partial && status == LB_OK && !v.damages && !v.missing)
        violate(s, path, "verify calls it whole, and bytes are missing", partial);
}

static void check_recovered(const disk_state *s, int c, const char *path, const step_list *found)
{
    static step_list again;
    lb_recovery r;
    lb_err err = LB_ERR_INIT;
    remove_out();
    if (lb_capture_recover(path, run.out, &r, &err) != LB_OK) {
        if (found->n) violate(s, path, err.message, found->list[0].number);
        return;
    }
    again.n = 0;
    list_steps(s, run.out, &again);
    for (int i = 0; i < again.n; i++) {
        const step *real = step_list_find(&run.recorded[c], again.list[i].rank, again.list[i].number);
        if (!real || !lb_digest_equal(real->program, again.list[i].program))
            violate(s, path, "a wrong step is recovered", again.list[i].number);
    }
    for (int i = 0; i < found->n; i++) {
        const step *one = step_list_find(&again, found->list[i].rank, found->list[i].number);
        if (found->list[i].whole && (!one || !one->whole))
            violate(s, path, "a whole step is not recovered", found->list[i].number);
    }
    run.tally.recovered++;
}

/* `durable`: what the disk holds by fsync alone. A window moves on: of it the newest steps are wanted. */
static void check_capture(const disk_state *s, int c, const step_list *durable, bool window)
{
    static step_list found;
    char path[PATH_MAX + 256];
    snprintf(path, sizeof path, "%s/%s", run.state, run.captures[c]);
    remove_out();
    const bool opened = look_at(s, c, &found);
    int64_t newest = INT64_MIN;
    for (int i = 0; i < durable->n; i++)
        if (durable->list[i].number > newest) newest = durable->list[i].number;
    for (int i = 0; i < durable->n; i++) {
        const step *one = step_list_find(&found, durable->list[i].rank, durable->list[i].number);
        if (window && durable->list[i].number < newest) continue;
        if (!one) violate(s, path, "a step was on the disk and is lost", durable->list[i].number);
        if (durable->list[i].whole && !one->whole)
            violate(s, path, "bytes of a step were on the disk and are lost", durable->list[i].number);
    }
    for (int i = 0; i < found.n; i++) {
        const step *real = step_list_find(&run.recorded[c], found.list[i].rank, found.list[i].number);
        if (!real || !lb_digest_equal(real->program, found.list[i].program))
            violate(s, path, "a step that was never recorded", found.list[i].number);
    }
    run.tally.durable += (uint64_t)durable->n, run.tally.listed += (uint64_t)found.n, run.tally.unreadable += !opened;
    if (opened) check_honesty(s, path, &found, 0, found.own);
    if (found.n > found.own) check_honesty(s, run.out, &found, found.own, found.n);
    if (opened && run.tally.states % 8 == 0) check_recovered(s, c, path, &found);
}

static void check_whole(const disk_state *s, int k, bool ended)
{
    const content now = read_whole(run.state, run.wholes[k]);
    const bool old = is_same(&now, &run.begin[k]), new = is_same(&now, &run.end[k]);
    if (!old && !new)
        violate(s, run.wholes[k], now.bytes ? "neither the old file nor the new one" : "the file is gone",
                (int64_t)now.size);
    if (ended && !new) violate(s, run.wholes[k], "it was on the disk and is not the new one", (int64_t)now.size);
    free(now.bytes);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static uint32_t draw(uint32_t below)
{
    run.random = run.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((run.random >> 33) % below);
}

static uint8_t reached[MOST_PENDING];

/* The n-th way in which `pending` things may have reached the disk: all subsets where they are few, and then draws. */
static void choose(disk_state *s, size_t pending, uint64_t n)
{
    s->seed = (uint32_t)(run.random >> 32) + (uint32_t)n;
    s->unwritten = (disk_unwritten)(n % 3);
    s->reached = reached;
    if (pending <= 12 && n / 3 < (UINT64_C(1) << pending)) {
        for (size_t i = 0; i < pending; i++) reached[i] = (uint8_t)(n / 3 >> i & 1);
        return;
    }
    const uint32_t share = draw(5), torn = draw(4), lone = draw((uint32_t)pending + 1);
    const size_t names = draw(4) ? disk_model_pending_names(run.model)
                                 : 0; /* more often than not names are there, or little is left to read */
    memset(reached, 1, names);
    for (size_t i = names; i < pending; i++) {
        reached[i] = share == 0 ? i != lone : share == 1 ? i == lone : share == 2 ? i < lone : draw(8) < share * 2;
        if (reached[i] && (torn == 0 || i + 1 == lone) && draw(2)) reached[i] = 2;
    }
}

static void keep_state(uint64_t most)
{
    char to[PATH_MAX + 32];
    if (run.tally.kept >= most) return;
    snprintf(to, sizeof to, "%s/keep-%" PRIu64, run.keep, run.tally.kept++);
    if (rename(run.state, to) != 0) abort();
}

/* What is permanent when the power goes before event `at`, and what a kill there would leave: also a state each. */
static void survey(size_t at, uint8_t what, step_list *found)
{
    memset(reached, what, MOST_PENDING);
    const disk_state s = {at, reached, DISK_SHORT, 0};
    disk_model_write(run.model, &s, run.state);
    run.tally.states++;
    for (int c = 0; c < run.n_captures; c++) {
        remove_out();
        look_at(&s, c, &found[c]);
    }
}

static void record_all(void)
{
    static step_list found[MOST_PATHS];
    for (size_t at = 0; at <= disk_model_events(run.model); at++) {
        survey(at, 1, found);
        const disk_state s = {at, reached, DISK_SHORT, 0};
        for (int c = 0; c < run.n_captures; c++)
            for (int i = 0; i < found[c].n; i++) {
                const step *one = &found[c].list[i], *before = step_list_find(&run.recorded[c], one->rank, one->number);
                if (!before)
                    step_list_add(&run.recorded[c], one);
                else if (!lb_digest_equal(before->program, one->program))
                    violate(&s, run.captures[c], "a step changed after it was committed", one->number);
            }
        for (int k = 0; k < run.n_wholes && (at == 0 || at == disk_model_events(run.model)); k++)
            *(at == 0 ? &run.begin[k] : &run.end[k]) = read_whole(run.state, run.wholes[k]);
    }
}

/* Nothing passed by the log: what all of it gives is what the program left. */
static void compare_end(const char *folder)
{
    static step_list left;
    memset(reached, 1, MOST_PENDING);
    const disk_state s = {disk_model_events(run.model), reached, DISK_SHORT, 0};
    for (int k = 0; k < run.n_wholes; k++) {
        const content real = read_whole(folder, run.wholes[k]);
        if (!is_same(&real, &run.end[k]))
            violate(&s, run.wholes[k], "the log of its writes does not give the file", (int64_t)real.size);
        free(real.bytes);
    }
    for (int c = 0; c < run.n_captures; c++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, run.captures[c]);
        left.n = 0;
        list_steps(&s, path, &left);
        for (int i = 0; i < left.n; i++)
            if (!step_list_find(&run.recorded[c], left.list[i].rank, left.list[i].number))
                violate(&s, path, "the log of its writes lacks a step", left.list[i].number);
    }
}

/* Ways number `from` and on in which the power may go before event `at`; false: there is but one disk, and it was
 * looked at. */
static bool cut_before(size_t at, uint64_t from, uint64_t states, uint64_t keep)
{
    static step_list durable[MOST_PATHS];
    survey(at, 0, durable);
    const size_t pending = disk_model_pending(run.model, at);
    const bool ended = at == disk_model_events(run.model) && !pending;
    if (pending > MOST_PENDING) abort();
    if (!pending && from) return false;
    for (uint64_t n = from; n < from + (pending ? states : 1); n++) {
        disk_state s = {.at = at};
        choose(&s, pending, n);
        disk_model_write(run.model, &s, run.state);
        run.tally.states++;
        for (int c = 0; c < run.n_captures; c++) check_capture(&s, c, &durable[c], true);
        for (int k = 0; k < run.n_wholes; k++) check_whole(&s, k, ended);
        if (n == 1) keep_state(keep);
    }
    return true;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int count_whole(const step_list *in)
{
    int n = 0;
    for (int i = 0; i < in->n; i++) n += in->list[i].whole;
    return n;
}

int main(int argc, char **argv)
{
    uint64_t states = 1000, keep = 0;
    const char *start = NULL, *end = NULL;
    if (argc < 3) return 129;
    for (int i = 3; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        if (!value) return 129;
        value++;
        if (!strncmp(argv[i], "start=", 6)) start = value;
        if (!strncmp(argv[i], "end=", 4)) end = value;
        if (!strncmp(argv[i], "states=", 7)) states = strtoull(value, NULL, 10);
        if (!strncmp(argv[i], "seed=", 5)) run.random = strtoull(value, NULL, 10);
        if (!strncmp(argv[i], "keep=", 5)) keep = strtoull(value, NULL, 10);
        if (!strncmp(argv[i], "capture=", 8) && run.n_captures < MOST_PATHS) run.captures[run.n_captures++] = value;
        if (!strncmp(argv[i], "whole=", 6) && run.n_wholes < MOST_PATHS) run.wholes[run.n_wholes++] = value;
    }
    mkdir(argv[2], 0700);
    snprintf(run.state, sizeof run.state, "%s/state", argv[2]);
    snprintf(run.out, sizeof run.out, "%s/out", argv[2]);
    snprintf(run.keep, sizeof run.keep, "%s", argv[2]);
    run.model = disk_model_load(argv[1], start);
    const size_t events = disk_model_events(run.model);
    record_all();
    if (end) compare_end(end);
    uint64_t ways = 0;
    for (bool more = true; more && run.tally.states < states;) { /* where little is pending there are few ways */
        const uint64_t next = (states - run.tally.states) / (events + 1) + 1;
        more = false;
        for (size_t at = 0; at <= events; at++)
            more = cut_before(at, ways, next, at * keep / (events + 1) >= run.tally.kept ? keep : 0) || more;
        ways += next;
    }
    static step_list durable[MOST_PATHS];
    survey(events, 0, durable);
    uint64_t recorded = 0, permanent = 0;
    for (int c = 0; c < run.n_captures; c++)
        recorded += (uint64_t)run.recorded[c].n, permanent += (uint64_t)count_whole(&durable[c]);
    printf("{\"events\": %zu, \"syncs\": %zu, \"states\": %" PRIu64 ", \"recorded\": %" PRIu64
           ", \"permanent\": %" PRIu64 ", \"wanted\": %" PRIu64 ", \"listed\": %" PRIu64 ", \"partial\": %" PRIu64
           ", \"unreadable\": %" PRIu64 ", \"recovered\": %" PRIu64 ", \"kept\": %" PRIu64 "}\n",
           events, disk_model_syncs(run.model), run.tally.states, recorded, permanent, run.tally.durable,
           run.tally.listed, run.tally.partial, run.tally.unreadable, run.tally.recovered, run.tally.kept);
    return 0;
}
