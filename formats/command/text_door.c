/* Streams that spell out what a terminal would obey: see text_door.h. */
#define _GNU_SOURCE /* fopencookie */
#include "command/text_door.h"

#include <lastbit/text.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { MARK = 16, PART = 4096 };

/* One stream. The bytes that a write ends with may be the beginning of a character or of a code: they wait for the
 * next. */
typedef struct door {
    int descriptor;
    size_t waiting;
    char kept[MARK + 48];
} door;

static char mark[MARK + 1];
static door out = {.descriptor = STDOUT_FILENO}, talk = {.descriptor = STDERR_FILENO};

static bool write_all(int descriptor, const char *bytes, size_t n)
{
    while (n) {
        const ssize_t written = write(descriptor, bytes, n);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return false;
        bytes += written, n -= (size_t)written;
    }
    return true;
}

/* The length of a code of ours at `at`: escape, mark, numbers, 'm'; or a carriage return in their place. 0: none.
 * *whole: it ends here. */
static size_t code_at(const char *at, size_t n, bool *whole)
{
    const size_t compared = n - 1 < MARK ? n - 1 : MARK;
    *whole = false;
    if (*at != '\033' || memcmp(at + 1, mark, compared) != 0) return 0;
    size_t length = 1 + compared;
    while (compared == MARK && length < n && (at[length] == ';' || (at[length] >= '0' && at[length] <= '9'))) length++;
    *whole = length < n && (at[length] == 'm' || at[length] == '\r');
    return length < n && !*whole ? 0 : length + *whole;
}

/* How many bytes from `at` on need no look: printable ASCII, and ends of lines. */
static size_t plain_run(const char *at, size_t n)
{
    size_t i = 0;
    while (i < n && ((at[i] >= 0x20 && at[i] < 0x7f) || at[i] == '\n')) i++;
    return i;
}

/* Spells n bytes out. Gives how many it took: what may be the beginning of more is left. `last`: nothing is. */
static size_t pass(const door *door, const char *at, size_t n, bool last, bool *written)
{
    char part[PART];
    size_t i = 0, size = 0;
    for (*written = true; i < n && *written;) {
        bool whole = false;
        int32_t character = 0;
        size_t length = plain_run(at + i, n - i < PART - 64 - size ? n - i : PART - 64 - size);
        const size_t code = length ? 0 : code_at(at + i, n - i, &whole);
        if (code && !whole && !last) break;
        if (!length) length = whole ? code : lb_text_character(at + i, n - i, &character);
        if (!whole && character == LB_TEXT_NONE && n - i < 4 && !last && (unsigned char)at[i] >= 0xc2) break;
        if (whole)
            size += (size_t)snprintf(part + size, PART - size, at[i + code - 1] == 'm' ? "\033[%.*s" : "\r",
                                     (int)(code - MARK - 1), at + i + MARK + 1);
        else
            size += lb_text_escape(LB_TEXT_SHOWN, at + i, length, part + size, PART - size);
        i += length;
        if (size + 64 > PART || i == n) *written = write_all(door->descriptor, part, size), size = 0;
    }
    if (size && *written) *written = write_all(door->descriptor, part, size);
    return i;
}

static ssize_t put(void *cookie, const char *bytes, size_t n)
{
    door *door = cookie;
    bool written = true;
    size_t at = 0;
    while (door->waiting && at < n && written) { /* the rest of what was begun, a byte at a time */
        door->kept[door->waiting++] = bytes[at++];
        const size_t took = pass(door, door->kept, door->waiting, door->waiting == sizeof door->kept, &written);
        memmove(door->kept, door->kept + took, door->waiting - took);
        door->waiting -= took;
    }
    if (written && at < n) {
        at += pass(door, bytes + at, n - at, false, &written);
        door->waiting = written ? n - at : 0;
        memcpy(door->kept, bytes + at, door->waiting);
    }
    return written ? (ssize_t)n : 0;
}

/* What waits when the program ends began no character. */
static void flush_waiting(void)
{
    bool written;
    fflush(stdout), fflush(stderr);
    pass(&out, out.kept, out.waiting, true, &written);
    pass(&talk, talk.kept, talk.waiting, true, &written);
    out.waiting = talk.waiting = 0;
}

static void make_mark(void)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEF";
    unsigned char drawn[MARK];
    if (getrandom(drawn, sizeof drawn, GRND_NONBLOCK) != (ssize_t)sizeof drawn) /* a kernel that has just started */
        for (size_t i = 0; i < MARK; i++)
            drawn[i] =
                (unsigned char)((uintptr_t)&i >> (i % 8 * 8) ^ (unsigned)clock() >> i ^ (unsigned)time(NULL) >> i);
    for (size_t i = 0; i < MARK; i++) mark[i] = letters[drawn[i] % 32];
}

void lb_text_door_open(void)
{
    const cookie_io_functions_t calls = {.write = put};
    FILE *first, *second;
    make_mark();
    fflush(NULL);
    if (!(first = fopencookie(&out, "w", calls)) || !(second = fopencookie(&talk, "w", calls))) {
        fprintf(stderr, "lastbit: out of memory\n");
        exit(128);
    }
    setvbuf(first, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
    setvbuf(second, NULL, _IONBF, 0);
    stdout = first, stderr = second;
    atexit(flush_waiting);
}

static const char *code(const char *numbers, char end)
{
    static char texts[8][MARK + 40];
    static unsigned next;
    char *text = texts[next++ % 8];
    snprintf(text, sizeof *texts, "\033%s%.32s%c", mark, numbers, end);
    return text;
}

const char *lb_text_code(const char *numbers)
{
    return code(numbers, 'm');
}

const char *lb_text_return(void)
{
    return code("", '\r');
}
