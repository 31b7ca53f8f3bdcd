/* Headers of tar entries: see tar_entry.h. */
#include "archive/tar_entry.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char attribute_key[] = "SCHILY.xattr." LB_RECORD_ATTRIBUTE;

/* The fields of a ustar header, by their offsets. */
enum {
    NAME = 0,
    NAME_BYTES = 100,
    MODE = 100,
    OWNER = 108,
    GROUP = 116,
    SIZE = 124,
    TIME = 136,
    CHECKSUM = 148,
    TYPE = 156,
    MAGIC = 257,
    DEVICE_MAJOR = 329,
    DEVICE_MINOR = 337,
    PREFIX = 345,
    PREFIX_BYTES = 155
};
#define LARGEST_OCTAL ((uint64_t)1 << 33) /* eleven octal digits hold less */

/* ---- pax records ------------------------------------------------------------------------------------------------- */

/* Length of "LENGTH KEY=VALUE\n", which counts its own digits. */
static size_t pax_length(size_t key, size_t value)
{
    size_t rest = 1 + key + 1 + value + 1, digits = 1;
    for (size_t power = 10; rest + digits >= power; power *= 10) digits++;
    return rest + digits;
}

static char *put_pax(char *to, const char *key, const void *value, size_t n)
{
    to += sprintf(to, "%zu %s=", pax_length(strlen(key), n), key);
    memcpy(to, value, n);
    to[n] = '\n';
    return to + n + 1;
}

static size_t size_digits(uint64_t payload)
{
    char digits[24];
    return payload < LARGEST_OCTAL ? 0 : (size_t)snprintf(digits, sizeof digits, "%" PRIu64, payload);
}

/* ---- ustar headers ----------------------------------------------------------------------------------------------- */

/* Where a name is cut in two: at the last slash that leaves at most NAME_BYTES behind it. 0: it fits as it is;
 * SIZE_MAX: it does not fit. */
static size_t split_at(const char *name)
{
    const size_t n = strlen(name);
    if (n <= NAME_BYTES) return 0;
    const char *slash = strchr(name + n - NAME_BYTES - 1, '/');
    return slash && slash[1] && (size_t)(slash - name) <= PREFIX_BYTES ? (size_t)(slash - name) : SIZE_MAX;
}

static void put_octal(char *to, int digits, uint64_t number, const char *end)
{
    for (int d = digits - 1; d >= 0; d--, number >>= 3) to[d] = (char)('0' + (number & 7));
    memcpy(to + digits, end, strlen(end));
}

static void put_ustar(char block[LB_TAR_BLOCK], const char *name, uint64_t size, char type)
{
    const size_t split = split_at(name);
    memset(block, 0, LB_TAR_BLOCK);
    if (split && split != SIZE_MAX) memcpy(block + PREFIX, name, split), name += split + 1;
    memcpy(block + NAME, name, strnlen(name, NAME_BYTES));
    put_octal(block + MODE, 6, 0600, " ");
    put_octal(block + OWNER, 6, 0, " ");
    put_octal(block + GROUP, 6, 0, " ");
    if (size < LARGEST_OCTAL)
        put_octal(block + SIZE, 11, size, " ");
    else
        put_octal(block + SIZE, 12, size, ""); /* the pax record says it */
    put_octal(block + TIME, 11, 0, " ");
    block[TYPE] = type;
    memcpy(block + MAGIC,
           "ustar\0"
           "00",
           8);
    put_octal(block + DEVICE_MAJOR, 6, 0, " ");
    put_octal(block + DEVICE_MINOR, 6, 0, " ");
    unsigned sum = 8 * ' ';
    for (int i = 0; i < LB_TAR_BLOCK; i++)
        if (i < CHECKSUM || i >= CHECKSUM + 8) sum += (unsigned char)block[i];
    put_octal(block + CHECKSUM, 6, sum, "");
    block[CHECKSUM + 7] = ' ';
}

/* "commit/PaxHeader/00000000.msgpack", cut to what ustar has room for: it is for tools that know no pax. */
static void put_pax_name(char to[NAME_BYTES + 1], const char *name)
{
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    snprintf(to, NAME_BYTES + 1, "%.*sPaxHeader/%s", (int)(file - name), name, file);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

size_t lb_tar_entry_header(const char *name, const void *attribute, size_t attribute_bytes, uint64_t payload,
                           char bytes[LB_TAR_HEADER_MAX])
{
    LB_CHECK(attribute_bytes <= LB_TAR_ATTRIBUTE_MAX && strlen(name) <= LB_TAR_NAME_MAX);
    char pax_name[NAME_BYTES + 1], digits[24];
    char *const body = bytes + LB_TAR_BLOCK, *at = body;
    if (split_at(name) == SIZE_MAX) at = put_pax(at, "path", name, strlen(name));
    at = put_pax(at, attribute_key, attribute, attribute_bytes);
    if (payload >= LARGEST_OCTAL)
        at = put_pax(at, "size", digits, (size_t)snprintf(digits, sizeof digits, "%" PRIu64, payload));
    const size_t written = (size_t)(at - body), padding = lb_tar_entry_padding(written);
    memset(at, 0, padding);
    put_pax_name(pax_name, name);
    put_ustar(bytes, pax_name, written, 'x');
    put_ustar(at + padding, name, payload, '0');
    return 2 * LB_TAR_BLOCK + written + padding;
}

size_t lb_tar_entry_page_attribute(uint64_t offset, size_t attribute_bytes, uint64_t payload)
{
    static const size_t key = sizeof attribute_key - 1;
    const size_t digits = size_digits(payload), other = digits ? pax_length(4, digits) : 0;
    size_t room = (LB_RECORD_PAGE - (size_t)((offset + 2 * LB_TAR_BLOCK) % LB_RECORD_PAGE)) % LB_RECORD_PAGE;
    if (room < other + pax_length(key, attribute_bytes)) room += LB_RECORD_PAGE;
    size_t value = room - LB_TAR_BLOCK + 1 > other + key ? room - LB_TAR_BLOCK - other - key : 0;
    if (value < attribute_bytes) value = attribute_bytes;
    while (other + pax_length(key, value) <= room - LB_TAR_BLOCK) value++;
    return value;
}
