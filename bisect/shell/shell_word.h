/* Text as one word of a POSIX shell, so that every command that is printed can be pasted. */
#ifndef LB_BISECT_SHELL_WORD_H
#define LB_BISECT_SHELL_WORD_H

#include <stdio.h>
#include <string.h>

/* Quoted where it needs quotes. */
static inline void lb_shell_word(FILE *out, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,@%+";
    if (*text && strspn(text, plain) == strlen(text)) {
        fputs(text, out);
        return;
    }
    fputc('\'', out);
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fputc(*text, out);
    fputc('\'', out);
}

#endif
