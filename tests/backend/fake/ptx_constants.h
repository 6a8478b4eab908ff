/* Constants as texts of PTX have them: numbers, and expressions of integers behind an address. */
#ifndef QN_TESTS_FAKE_PTX_CONSTANTS_H
#define QN_TESTS_FAKE_PTX_CONSTANTS_H

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline int is_number(const char *s)
{
    return isdigit((unsigned char)*s) || (*s == '-' && isdigit((unsigned char)s[1]));
}

static inline uint64_t number(const char *s)
{
    if (s[0] == '0' && (s[1] == 'f' || s[1] == 'F' || s[1] == 'd' || s[1] == 'D') && strlen(s) >= 10) {
        return strtoull(s + 2, NULL, 16);
    }
    return *s == '-' ? (uint64_t)strtoll(s, NULL, 0) : strtoull(s, NULL, 0);
}

static inline int64_t constant_value(char **at);

static inline int64_t constant_factor(char **at)
{
    *at += strspn(*at, " ");
    const int group = **at == '(';
    *at += group;
    const int64_t v = group ? constant_value(at) : strtoll(*at, at, 0);
    *at += strspn(*at, " ");
    *at += group && **at == ')';
    *at += strspn(*at, " ");
    return v;
}

static inline int64_t constant_sum(char **at)
{
    int64_t sum = 0;
    for (;;) {
        int64_t product = constant_factor(at);
        while (**at == '*') {
            ++*at;
            product *= constant_factor(at);
        }
        sum += product;
        if (**at != '+') {
            return sum;
        }
        ++*at;
    }
}

/* A constant expression of numbers, products, sums, groups and whether two are unequal; *at: what is behind it. */
static inline int64_t constant_value(char **at)
{
    const int64_t v = constant_sum(at);
    if (strncmp(*at, "!=", 2) != 0) {
        return v;
    }
    *at += 2;
    return v != constant_sum(at);
}

#endif
