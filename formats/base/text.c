/* The gate for text: see lastbit/text.h. */
#include <lastbit/text.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Code points that are invisible or change how their neighbours are shown: Unicode's Default_Ignorable_Code_Point
 * (DerivedCoreProperties.txt, 15.1) with the separators of lines and paragraphs, the controls of annotations and
 * musical notation, and the blank of Braille. */
static const struct {
    int32_t first, last;
} HIDDEN[] = {{0x0000, 0x001f},    {0x007f, 0x009f}, {0x00ad, 0x00ad},   {0x034f, 0x034f},   {0x061c, 0x061c},
              {0x115f, 0x1160},    {0x17b4, 0x17b5}, {0x180b, 0x180f},   {0x200b, 0x200f},   {0x2028, 0x202e},
              {0x2060, 0x206f},    {0x2800, 0x2800}, {0x3164, 0x3164},   {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},
              {0xffa0, 0xffa0},    {0xfff0, 0xfffb}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
              {0x10ff00, 0x10ffff}};
enum { BYTES_OF_JSON = 0x10ff00, ESCAPE = 24 };

size_t lb_text_character(const char *text, size_t n, int32_t *character)
{
    static const int32_t least[] = {0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    const size_t more = *at < 0x80                  ? 0
                        : *at >= 0xf0 && *at < 0xf8 ? 3
                        : *at >= 0xe0 && *at < 0xf0 ? 2
                        : *at >= 0xc2 && *at < 0xe0 ? 1
                                                    : 4;
    int32_t code = more == 0 ? *at : more < 4 ? *at & (0x3f >> more) : LB_TEXT_NONE;
    for (size_t i = 1; more < 4 && code >= 0 && i <= more; i++)
        code = i < n && (at[i] & 0xc0) == 0x80 ? code << 6 | (at[i] & 0x3f) : LB_TEXT_NONE;
    if (code >= 0 && (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))) code = LB_TEXT_NONE;
    *character = code;
    return code < 0 ? 1 : more + 1;
}

bool lb_text_is_hidden(int32_t character)
{
    size_t low = 0, high = sizeof HIDDEN / sizeof *HIDDEN;
    if (character >= 0x20 && character < 0x7f) return false;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (character > HIDDEN[middle].last)
            low = middle + 1;
        else if (character < HIDDEN[middle].first)
            high = middle;
        else
            return true;
    }
    return false;
}

/* Whether what stands behind a backslash makes an escape of it. */
static bool reads_as_escape(const char *at, size_t n)
{
    return (n > 2 && *at == 'x' && isxdigit((unsigned char)at[1]) && isxdigit((unsigned char)at[2])) ||
           (n > 1 && *at == 'u' && at[1] == '{');
}

/* The escape of the character at `at`, "" for one that stays. */
static void spell(lb_text_kind kind, const char *at, size_t n, int32_t character, char escape[ESCAPE])
{
    const char *slash = kind == LB_TEXT_PATTERN ? "\\\\" : "\\";
    *escape = '\0';
    if (character == LB_TEXT_NONE)
        snprintf(escape, ESCAPE, "%sx%02x", slash, (unsigned char)*at);
    else if (kind == LB_TEXT_UTF8 || (kind == LB_TEXT_SHOWN && (character == '\n' || character == '\t')))
        return;
    else if (character >= BYTES_OF_JSON && kind == LB_TEXT_NAME) /* the character itself is four bytes */
        for (int i = 0; i < 4; i++) snprintf(escape + 4 * i, ESCAPE - 4 * (size_t)i, "\\x%02x", (unsigned char)at[i]);
    else if (character >= BYTES_OF_JSON)
        snprintf(escape, ESCAPE, "%sx%02x", slash, (unsigned)character & 0xff);
    else if (lb_text_is_hidden(character))
        snprintf(escape, ESCAPE, character < 0x80 ? "%sx%02x" : "%su{%x}", slash, (unsigned)character);
    else if ((kind == LB_TEXT_NAME || kind == LB_TEXT_CARRIED) && character == '\\' && reads_as_escape(at + 1, n - 1))
        strcpy(escape, "\\x5c");
}

/* How many bytes from `at` on are printable ASCII that every kind leaves as it is. */
static size_t plain_run(const char *at, size_t n)
{
    size_t i = 0;
    while (i < n && at[i] >= 0x20 && at[i] < 0x7f && at[i] != '\\') i++;
    return i;
}

size_t lb_text_escape(lb_text_kind kind, const char *bytes, size_t n, char *to, size_t room)
{
    size_t all = 0, written = 0;
    bool fits = true;
    for (size_t i = 0; i < n;) {
        char escape[ESCAPE] = "";
        int32_t character = 0;
        size_t length = plain_run(bytes + i, n - i);
        if (!length) {
            length = lb_text_character(bytes + i, n - i, &character);
            spell(kind, bytes + i, n - i, character, escape);
        }
        const char *put = *escape ? escape : bytes + i;
        size_t size = *escape ? strlen(escape) : length;
        if (!*escape && !character && fits && written + size >= room && room) { /* a run is cut anywhere */
            memcpy(to + written, put, room - 1 - written);
            written = room - 1, fits = false;
        }
        fits = fits && written + size < room;
        if (fits) memcpy(to + written, put, size), written += size;
        all += size, i += length;
    }
    if (room) to[written] = '\0';
    return all;
}

char *lb_text_escaped(lb_text_kind kind, const char *bytes, size_t n)
{
    const size_t size = lb_text_escape(kind, bytes, n, NULL, 0);
    char *text = malloc(size + 1);
    if (text) lb_text_escape(kind, bytes, n, text, size + 1);
    return text;
}

bool lb_text_is_plain(lb_text_kind kind, const char *bytes, size_t n)
{
    for (size_t i = plain_run(bytes, n); i < n; i += plain_run(bytes + i, n - i)) {
        char escape[ESCAPE];
        int32_t character;
        const size_t length = lb_text_character(bytes + i, n - i, &character);
        spell(kind, bytes + i, n - i, character, escape);
        if (*escape) return false;
        i += length;
    }
    return true;
}

char *lb_text_name(const char *bytes, size_t n)
{
    return lb_text_escaped(LB_TEXT_NAME, bytes, n);
}

bool lb_text_is_name(const char *text, size_t n)
{
    return lb_text_is_plain(LB_TEXT_ARGUMENT, text, n);
}
