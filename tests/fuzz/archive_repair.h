/* Puts the checksums of a broken archive right: tar headers, descriptors, locator.
 *
 * A mutation hardly ever gets past a digest, so without this nothing behind the digests would be tested. What is
 * repaired is only what says "these bytes are those that were written"; every lie about sizes, offsets and counts
 * stays. */
#ifndef LB_TESTS_ARCHIVE_REPAIR_H
#define LB_TESTS_ARCHIVE_REPAIR_H
#include "base/byte_buffer.h"
#include "archive/record.h"

#include <stdio.h>

static void repair_header(unsigned char *header)
{
    unsigned sum = 0;
    memset(header + 148, ' ', 8);
    for (int i = 0; i < 512; i++) sum += header[i];
    snprintf((char *)header + 148, 7, "%06o", sum);
    header[154] = '\0';
    header[155] = ' ';
}

static uint64_t octal(const unsigned char *digits, int n)
{
    uint64_t number = 0;
    for (int i = 0; i < n && digits[i] >= '0' && digits[i] <= '7'; i++) number = number * 8 + (digits[i] - '0');
    return number;
}

static unsigned char *find_key(unsigned char *bytes, size_t size, const char *key)
{
    return (unsigned char *)memmem(bytes, size, key, strlen(key));
}

/* The digest that locates the index, then the locator's own. */
static void repair_locator(unsigned char *file, size_t size, unsigned char *locator)
{
    uint64_t at, n;
    memcpy(&at, locator + 32, 8);
    memcpy(&n, locator + 40, 8);
    if (n <= size && at <= size - n) digest_to_bytes(lb_digest_bytes(file + at, n), (char *)locator + 48);
    digest_to_bytes(lb_digest_bytes(locator, LB_LOCATOR_BYTES - 16), (char *)locator + LB_LOCATOR_BYTES - 16);
}

/* `attribute`: the extended header's body, which holds the descriptor of the record whose payload this is. A coded blob
 * has the digest of what it decodes to, which stays as it is. */
static void repair_descriptor(unsigned char *attribute, size_t length, const unsigned char *payload, size_t size)
{
    unsigned char *digest = find_key(attribute, length,
                                     "\xa6"
                                     "digest\xc4\x10");
    unsigned char *coding = find_key(attribute, length,
                                     "\xa6"
                                     "coding"),
                  *directory = find_key(attribute, length,
                                        "\xa9"
                                        "directory");
    size_t left = (size_t)(attribute + length - (digest ? digest : attribute));
    if (!digest || left < 9 + 16) return;
    if (find_key(attribute, length,
                 "\xa4"
                 "blob") &&
        coding && coding[7] != 0)
        return;
    if (directory && directory + 15 <= attribute + length) { /* an unsigned integer of 1, 2, 3 or 5 bytes */
        const unsigned char *p = directory + 10;
        uint64_t at = p[0] < 0x80    ? p[0]
                      : p[0] == 0xcc ? p[1]
                      : p[0] == 0xcd ? p[1] * 256u + p[2]
                                     : (uint64_t)p[1] << 24 | p[2] << 16 | p[3] << 8 | p[4];
        if (at > size) return;
        payload += at;
        size -= at;
    }
    digest_to_bytes(lb_digest_bytes(payload, size), (char *)digest + 9);
}

static void repair_archive(unsigned char *file, size_t size)
{
    unsigned char *attribute = NULL;
    size_t length = 0;
    for (size_t at = 0; at + 512 <= size; at += 512) {
        unsigned char *header = file + at, *payload = header + 512;
        if (memcmp(header + 257, "ustar", 5) != 0) continue;
        uint64_t n = octal(header + 124, 11);
        bool fits = n <= size - at - 512;
        if (header[156] == 'x') {
            attribute = fits ? payload : NULL;
            length = n;
        } else if (attribute && fits) {
            if (n == LB_LOCATOR_BYTES && memcmp(payload, "lastbit-locator", 16) == 0)
                repair_locator(file, size, payload);
            repair_descriptor(attribute, length, payload, n);
            attribute = NULL;
        }
        repair_header(header);
        if (fits) at += (n + 511) / 512 * 512;
    }
}

#endif
