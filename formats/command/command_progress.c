/* How far a command is: a bar on a terminal, now and then a line in a log; see command_line.h. */
#include "command/command_line.h"

#include "command/text_door.h"

#include <lastbit/clock.h>

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static bool progress_shown, progress_hidden;

/* "lastbit: explaining, 12 of 80" for a log; nothing for what ends sooner. */
static void write_progress_line(const char *what, uint64_t done, uint64_t total)
{
    static const double EVERY = 5;
    static double last;
    const double now = lb_clock_seconds();
    if (!last) last = now;
    if (now - last < EVERY) return;
    last = now;
    if (total)
        fprintf(stderr, "lastbit: %s, %" PRIu64 " of %" PRIu64 "\n", what, done, total);
    else if (done)
        fprintf(stderr, "lastbit: %s, %" PRIu64 "\n", what, done);
    else
        fprintf(stderr, "lastbit: %s\n", what);
}

/* A bar; where no total is known, how much was done. */
static void draw_progress(const char *what, uint64_t done, uint64_t total, int width, int filled)
{
    if (total)
        fprintf(stderr, "%s%-24.24s [%.*s%*s] %3d %%", lb_text_return(), what, filled,
                "################################", width - filled, "", (int)(done * 100 / total));
    else
        fprintf(stderr, "%s%-24.24s %-44" PRIu64, lb_text_return(), what, done);
    fflush(stderr);
    progress_shown = true;
}

/* Nothing of what ends within two seconds; then where something moves, and ten times a second at most. */
static void show_progress(const char *what, uint64_t done, uint64_t total)
{
    enum { WIDTH = 32 };
    static const double AFTER = 2, EVERY = 0.1;
    static double begun, last;
    static const char *last_what;
    static int last_filled;
    const double now = lb_clock_seconds();
    const int filled = total ? (int)(done * WIDTH / total) : 0;
    if (!begun) begun = now;
    if (now - begun < AFTER || now - last < EVERY) return;
    if (progress_shown && total && what == last_what && filled == last_filled) return;
    last = now, last_what = what, last_filled = filled;
    draw_progress(what, done, total, WIDTH, filled);
}

void lb_command_progress(const char *what, uint64_t done, uint64_t total)
{
    static int terminal = -1;
    if (progress_hidden) return;
    if (terminal < 0) terminal = isatty(STDERR_FILENO);
    if (terminal)
        show_progress(what, done, total);
    else
        write_progress_line(what, done, total);
}

void lb_command_progress_hide(void)
{
    progress_hidden = true;
}

void lb_command_progress_end(void)
{
    if (!progress_shown) return;
    fprintf(stderr, "%s%*s%s", lb_text_return(), 70, "", lb_text_return());
    progress_shown = false;
}
