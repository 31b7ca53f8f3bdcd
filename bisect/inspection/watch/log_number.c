/* Numbers as logs print them: see log_number.h. A log has ten numbers a line and a million lines, and strtod wants an
 * end and a locale. */
#include "watch/log_number.h"

#include <math.h>
#include <stdint.h>
#include <strings.h>

enum { DIGITS_KEPT = 18, EXACT_POWER = 22, LARGEST_EXPONENT = 400 };

static const double POWERS[EXACT_POWER + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                               1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static bool is_digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

static double scaled(uint64_t digits, int power)
{
    if (power >= -EXACT_POWER && power <= 0) return (double)digits / POWERS[-power];
    if (power > 0 && power <= EXACT_POWER) return (double)digits * POWERS[power];
    return (double)((long double)digits * powl(10, power));
}

static size_t read_word(const char *text, size_t n, double *number)
{
    static const struct {
        const char *word;
        size_t n;
        double number;
    } words[] = {{"nan", 3, NAN}, {"infinity", 8, INFINITY}, {"inf", 3, INFINITY}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (n >= words[i].n && !strncasecmp(text, words[i].word, words[i].n)) {
            *number = words[i].number;
            return words[i].n;
        }
    return 0;
}

typedef struct mantissa {
    uint64_t digits;
    int kept, power; /* digits kept; the power of ten that they stand for */
    bool any, fraction;
} mantissa;

static void add_digit(mantissa *mantissa, char c)
{
    mantissa->any = true;
    if (mantissa->kept < DIGITS_KEPT) {
        mantissa->digits = mantissa->digits * 10 + (uint64_t)(c - '0');
        mantissa->kept += mantissa->digits != 0;
        mantissa->power -= mantissa->fraction;
    } else {
        mantissa->power += !mantissa->fraction;
    }
}

/* A comma counts between three digits and what stands before: "254,128". */
static bool is_group(const char *text, size_t at, size_t n)
{
    return at > 0 && is_digit(text[at - 1]) && n - at > 3 && is_digit(text[at + 1]) && is_digit(text[at + 2]) &&
           is_digit(text[at + 3]) && (n - at == 4 || !is_digit(text[at + 4]));
}

static size_t read_exponent(const char *text, size_t at, size_t n, int *exponent)
{
    size_t i = at + 1;
    const bool minus = i < n && text[i] == '-';
    if (i < n && (text[i] == '-' || text[i] == '+')) i++;
    if (i >= n || !is_digit(text[i])) return at;
    int e = 0;
    for (; i < n && is_digit(text[i]); i++)
        if (e < LARGEST_EXPONENT) e = e * 10 + (text[i] - '0');
    *exponent = minus ? -e : e;
    return i;
}

size_t lb_log_number_read(const char *text, size_t n, lb_log_number *out)
{
    size_t at = 0;
    mantissa mantissa = {0};
    int exponent = 0;
    const bool minus = n && text[0] == '-';
    if (n && (text[0] == '-' || text[0] == '+')) at++;
    const size_t start = at;
    for (; at < n; at++) {
        if (is_digit(text[at]))
            add_digit(&mantissa, text[at]);
        else if (text[at] == '.' && !mantissa.fraction)
            mantissa.fraction = true;
        else if (!(text[at] == ',' && !mantissa.fraction && is_group(text, at, n)))
            break;
    }
    *out = (lb_log_number){0};
    if (!mantissa.any) {
        const size_t word = read_word(text + start, n - start, &out->number);
        if (minus) out->number = -out->number;
        return word ? start + word : 0;
    }
    if (at < n && (text[at] == 'e' || text[at] == 'E')) {
        const size_t end = read_exponent(text, at, n, &exponent);
        out->is_integer = end == at && !mantissa.fraction;
        at = end;
    } else {
        out->is_integer = !mantissa.fraction;
    }
    out->number = mantissa.digits ? scaled(mantissa.digits, mantissa.power + exponent) : 0;
    if (minus) out->number = -out->number;
    out->decimals = -(mantissa.power + exponent);
    return at;
}
