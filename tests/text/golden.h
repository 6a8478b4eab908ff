/* Reading lines.txt and *.golden, written by make_golden.py. */
#ifndef QN_TESTS_GOLDEN_H
#define QN_TESTS_GOLDEN_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quern/text.h>

#define GOLDEN_LINES 10000

typedef struct golden_lines {
    char *data;
    char *line[GOLDEN_LINES];
    size_t bytes[GOLDEN_LINES];
    int count;
} golden_lines;

static inline char *read_whole(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        return NULL;
    }
    fseek(f, 0, SEEK_END);
    const long n = ftell(f);
    rewind(f);
    char *data = calloc(1, (size_t)n + 1);
    *bytes = fread(data, 1, (size_t)n, f);
    fclose(f);
    return data;
}

static inline int golden_lines_open(const char *path, golden_lines *g)
{
    size_t bytes;
    g->count = 0;
    g->data = read_whole(path, &bytes);
    if (!g->data) {
        return 1;
    }
    char *p = g->data;
    while (*p && g->count < GOLDEN_LINES) {
        char *out = p;
        g->line[g->count] = p;
        for (; *p != '\n'; p++) {
            if (*p != '\\') {
                *out++ = *p;
            } else if (*++p == 'x') {
                char hex[3] = {p[1], p[2], 0};
                *out++ = (char)strtol(hex, NULL, 16);
                p += 2;
            } else {
                *out++ = *p == 'n' ? '\n' : *p == 'r' ? '\r' : *p;
            }
        }
        g->bytes[g->count] = (size_t)(out - g->line[g->count]);
        g->count++;
        p++;
    }
    return 0;
}

static inline uint64_t golden_fnv(uint64_t h, const int32_t *ids, size_t count)
{
    for (size_t i = 0; i <= count; i++) {
        const uint32_t id = i < count ? (uint32_t)ids[i] : 0xFFFFFFFFu;
        for (int k = 0; k < 4; k++) {
            h = (h ^ (id >> (8 * k) & 0xFF)) * 0x100000001B3u;
        }
    }
    return h;
}

/* Encode every line and compare with the golden file's lines that begin with prefix. Returns the number of
 * differences, each printed. */
static inline int golden_compare(const qn_tokenizer *t, const golden_lines *g, const char *golden_path,
                                 const char *prefix, uint32_t flags)
{
    static int32_t ids[100000];
    size_t bytes;
    char *golden = read_whole(golden_path, &bytes);
    if (!golden) {
        printf("cannot read %s\n", golden_path);
        return 1;
    }
    uint64_t total = 0xCBF29CE484222325u, block = total;
    uint64_t blocks[GOLDEN_LINES / 100] = {0};
    size_t tokens = 0;
    int bad = 0;
    for (int i = 0; i < g->count; i++) {
        size_t count = 0;
        qn_error error = {0};
        if (qn_tokenizer_encode(t, g->line[i], g->bytes[i], flags, ids, 100000, &count, &error) != QN_OK) {
            printf("line %d: %s\n", i, error.text);
            bad++;
        }
        tokens += count;
        total = golden_fnv(total, ids, count);
        block = golden_fnv(i % 100 == 0 ? 0xCBF29CE484222325u : block, ids, count);
        blocks[i / 100] = block;
        char want[32];
        snprintf(want, sizeof want, "\n%sids %d ", prefix, i);
        const char *row = i < 200 ? strstr(golden, want) : NULL;
        if (row) {
            const char *p = row + strlen(want) - 1;
            size_t n = 0;
            int same = 1;
            while (*p == ' ') {
                char *end;
                const long id = strtol(p, &end, 10);
                same = same && n < count && ids[n] == id;
                n++;
                p = end;
            }
            if (!same || n != count) {
                printf("line %d has other ids (%zu of them, expected %zu): %s\n", i, count, n, g->line[i]);
                bad++;
            }
        }
    }
    for (int i = 0; i * 100 < g->count; i++) {
        char want[64];
        snprintf(want, sizeof want, "\n%sblock %d %016llx\n", prefix, i, (unsigned long long)blocks[i]);
        if (!strstr(golden, want)) {
            printf("lines %d to %d have other ids than %s\n", i * 100, i * 100 + 99, golden_path);
            bad++;
        }
    }
    char want[80];
    snprintf(want, sizeof want, "\n%stotal %016llx %zu\n", prefix, (unsigned long long)total, tokens);
    if (!strstr(golden, want)) {
        printf("expected a line '%s' in %s\n", want + 1, golden_path);
        bad++;
    }
    free(golden);
    return bad;
}

#endif
