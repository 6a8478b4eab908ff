/* UTF-8 by the table of well-formed byte sequences (Unicode chapter 3, D92). Used by all of src/text. */
#include "text/bpe.h"

size_t qn_utf8_next(const char *p, size_t bytes, uint32_t *code)
{
    const unsigned char *s = (const unsigned char *)p;
    if (!bytes) {
        return 0;
    }
    if (s[0] < 0x80) {
        *code = s[0];
        return 1;
    }
    size_t n;
    unsigned low = 0x80, high = 0xBF;
    if (s[0] >= 0xC2 && s[0] <= 0xDF) {
        n = 2;
    } else if (s[0] >= 0xE0 && s[0] <= 0xEF) {
        n = 3;
        low = s[0] == 0xE0 ? 0xA0 : 0x80;
        high = s[0] == 0xED ? 0x9F : 0xBF;
    } else if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        n = 4;
        low = s[0] == 0xF0 ? 0x90 : 0x80;
        high = s[0] == 0xF4 ? 0x8F : 0xBF;
    } else {
        return 0;
    }
    if (bytes < n || s[1] < low || s[1] > high) {
        return 0;
    }
    uint32_t c = s[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            return 0;
        }
        c = c << 6 | (s[i] & 0x3F);
    }
    *code = c;
    return n;
}

size_t qn_utf8_put(char *out, uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

int qn_utf8_valid(const char *p, size_t bytes)
{
    uint32_t code;
    for (size_t i = 0; i < bytes;) {
        const size_t n = qn_utf8_next(p + i, bytes - i, &code);
        if (!n) {
            return 0;
        }
        i += n;
    }
    return 1;
}

/* The property White_Space: unchanged since Unicode 6.3. */
int qn_is_white_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

qn_shown qn_show(const char *data, size_t bytes)
{
    qn_shown s;
    size_t n = 0;
    for (; n < bytes && n < sizeof s.text - 5 && data[n]; n++) {
        s.text[n] = data[n];
    }
    if (n < bytes && data[n]) {
        while (n > 0 && ((unsigned char)s.text[n - 1] & 0xC0) == 0x80) { /* no half character */
            n--;
        }
        if (n > 0 && (unsigned char)s.text[n - 1] >= 0xC0) {
            n--;
        }
        s.text[n++] = '.';
        s.text[n++] = '.';
        s.text[n++] = '.';
    }
    s.text[n] = 0;
    return s;
}
