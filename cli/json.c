/* A small JSON writer: one value after another on one line, strings escaped,
 * bytes that are not UTF-8 replaced by U+FFFD, numbers that JSON lacks as null. */
#include <math.h>
#include <string.h>

#include "cli.h"

int cli_utf8_length(const unsigned char *s, size_t n)
{
    if (n == 0)
        return 0;
    unsigned char c = s[0];
    if (c < 0x80)
        return 1;
    int length = c >= 0xC2 && c <= 0xDF ? 2 : c >= 0xE0 && c <= 0xEF ? 3 : c >= 0xF0 && c <= 0xF4 ? 4 : -1;
    if (length < 0)
        return -1;
    for (size_t i = 1; i < (size_t)length; i++) {
        if (i >= n)
            return 0;
        unsigned char low = 0x80, high = 0xBF;
        if (i == 1) {
            low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
            high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        }
        if (s[i] < low || s[i] > high)
            return -1;
    }
    return length;
}

static void write_string(FILE *out, const char *value, size_t bytes)
{
    const unsigned char *s = (const unsigned char *)value;
    fputc('"', out);
    for (size_t i = 0; i < bytes;) {
        int length = cli_utf8_length(s + i, bytes - i);
        if (length <= 0) {
            fputs("\xEF\xBF\xBD", out);
            i++;
            continue;
        }
        if (s[i] == '"' || s[i] == '\\')
            fprintf(out, "\\%c", s[i]);
        else if (s[i] == '\n')
            fputs("\\n", out);
        else if (s[i] == '\t')
            fputs("\\t", out);
        else if (s[i] < 0x20 || s[i] == 0x7F)
            fprintf(out, "\\u%04x", (unsigned)s[i]);
        else
            fwrite(s + i, 1, (size_t)length, out);
        i += (size_t)length;
    }
    fputc('"', out);
}

static void start_value(json *j, const char *key)
{
    if (j->filled[j->depth])
        fputc(',', j->out);
    j->filled[j->depth] = 1;
    if (key) {
        write_string(j->out, key, strlen(key));
        fputc(':', j->out);
    }
}

json json_begin(FILE *out)
{
    json j = {.out = out};
    return j;
}

void json_open(json *j, const char *key, char bracket)
{
    start_value(j, key);
    fputc(bracket, j->out);
    if (j->depth < (int)sizeof j->filled - 1)
        j->depth++;
    j->filled[j->depth] = 0;
}

void json_close(json *j, char bracket)
{
    fputc(bracket, j->out);
    if (j->depth > 0)
        j->depth--;
    if (j->depth == 0) {
        fputc('\n', j->out);
        j->filled[0] = 0;
    }
}

void json_bytes(json *j, const char *key, const char *value, size_t bytes)
{
    start_value(j, key);
    if (value)
        write_string(j->out, value, bytes);
    else
        fputs("null", j->out);
}

void json_text(json *j, const char *key, const char *value)
{
    json_bytes(j, key, value, value ? strlen(value) : 0);
}

void json_int(json *j, const char *key, int64_t value)
{
    start_value(j, key);
    fprintf(j->out, "%lld", (long long)value);
}

void json_number(json *j, const char *key, double value, int digits)
{
    start_value(j, key);
    if (isfinite(value))
        fprintf(j->out, "%.*g", digits, value);
    else
        fputs("null", j->out);
}

void json_bool(json *j, const char *key, int value)
{
    start_value(j, key);
    fputs(value ? "true" : "false", j->out);
}
