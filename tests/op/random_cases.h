/* Random cases of every operator from its row of the table: sizes, formats, optional inputs and attributes meet as no
 * written list lets them. Whatever qn_op_desc_check takes is a case, in the canonical text. */
#ifndef QN_TESTS_OP_RANDOM_CASES_H
#define QN_TESTS_OP_RANDOM_CASES_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <quern/experimental.h>

#include "op/op.h"

typedef struct random_cases {
    uint64_t state;
    double most_work;    /* operations and bytes of a case */
    uint32_t most_times; /* 0, or sizes are up to so many times as large */
} random_cases;

static uint32_t random_below(random_cases *r, uint32_t n)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((r->state >> 33) % n);
}

#define RANDOM_PICK(r, ...)                                                                                            \
    ((const int[]){__VA_ARGS__})[random_below(r, sizeof((const int[]){__VA_ARGS__}) / sizeof(int))]

/* One word of "a|b|c" into word. */
static void random_word(random_cases *r, const char *words, char *word, size_t room)
{
    uint32_t count = 1;
    for (const char *p = words; *p; p++) {
        count += *p == '|';
    }
    for (uint32_t skip = random_below(r, count); skip; skip--) {
        words = strchr(words, '|') + 1;
    }
    snprintf(word, room, "%.*s", (int)strcspn(words, "|"), words);
}

/* Mostly small, around every multiple; at times many. */
static int small_size(random_cases *r, qn_op op, char letter)
{
    const int unit = RANDOM_PICK(r, 1, 1, 4, 8, 16, 32, 32, 64, 256);
    const int few = 1 + (int)random_below(r, 9), some = 1 + (int)random_below(r, 90);
    switch (letter) {
    case 'm': return random_below(r, 3) == 0 ? 1 + (int)random_below(r, 700) : random_below(r, 2) ? few : some;
    case 'n':
        return unit * (random_below(r, 8) == 0 ? 4 + (int)random_below(r, 3000) : some) / (unit > 8 ? 8 : 1) + few % 3;
    case 'k':
        if (strchr(qn_op_get_family(op)->size_names, 'e') && op != QN_OP_GROUPED_BLOCK_SCALED_MM) { /* of a head */
            return RANDOM_PICK(r, 8, 16, 24, 40, 64, 64, 80, 96, 128, 128, 192, 256);
        }
        return unit * (random_below(r, 6) == 0 ? 20 + (int)random_below(r, 200) : 1 + (int)random_below(r, 40));
    case 'g': return RANDOM_PICK(r, 1, 1, 2, 3, 4);
    default: return RANDOM_PICK(r, 1, 2, 3, 4, 6, 8, 12); /* e */
    }
}

static int random_size(random_cases *r, qn_op op, char letter)
{
    const int size = small_size(r, op, letter);
    return r->most_times && strchr("mnk", letter) ? size * (1 + (int)random_below(r, r->most_times)) : size;
}

/* A value for an attribute that is a number; 0: leave it out. */
static int random_number(random_cases *r, qn_attr attr)
{
    switch (attr) {
    case QN_ATTR_GROUP: return RANDOM_PICK(r, 0, 16, 32, 64, 100, 128, 256, 1000);
    case QN_ATTR_PAGE: return RANDOM_PICK(r, 0, 0, 1, 16, 30);
    case QN_ATTR_WINDOW: return RANDOM_PICK(r, 1, 16, 40, 64, 128);
    case QN_ATTR_NUM_CODEBOOKS: return RANDOM_PICK(r, 1, 1, 2, 3, 4, 8);
    case QN_ATTR_NBITS: return RANDOM_PICK(r, 1, 4, 5, 8, 8, 10, 12, 13, 16);
    case QN_ATTR_IN_GROUP: return RANDOM_PICK(r, 1, 2, 4, 8, 16, 32);
    case QN_ATTR_OUT_GROUP: return RANDOM_PICK(r, 1, 1, 2, 4);
    case QN_ATTR_VECTOR_LEN: return RANDOM_PICK(r, 1, 2, 4, 6, 8, 12, 16);
    case QN_ATTR_NUM_CENTROIDS: return RANDOM_PICK(r, 2, 16, 100, 256, 512, 4096, 65536);
    case QN_ATTR_NUM_RES_CENTROIDS: return RANDOM_PICK(r, 2, 16, 100, 256);
    case QN_ATTR_GROUP_NUM: return RANDOM_PICK(r, 1, 2, 3);
    case QN_ATTR_OUTLIER_SIZE: return RANDOM_PICK(r, 2, 8, 10);
    case QN_ATTR_OUTLIER_VECTOR_LEN: return RANDOM_PICK(r, 2, 4);
    case QN_ATTR_NUM_OUTLIER_CENTROIDS: return RANDOM_PICK(r, 16, 100, 256);
    case QN_ATTR_CHANNELS: return RANDOM_PICK(r, 1, 2, 2, 4, 8, 8, 16);
    case QN_ATTR_BITS: return RANDOM_PICK(r, 1, 4, 5, 6, 8, 8, 10);
    default: return -(int)random_below(r, 2); /* a flag: -1 writes 1 where its default is 0, 0 where it is 1 */
    }
}

static int random_tenths(random_cases *r, qn_attr attr)
{
    switch (attr) {
    case QN_ATTR_THETA:
    case QN_ATTR_ROPE_THETA: return RANDOM_PICK(r, 100000, 5000000);
    case QN_ATTR_EPS: return 1;
    default: return RANDOM_PICK(r, 1, 5, 15);
    }
}

static size_t random_attribute(random_cases *r, const qn_attr_info *attr, char *text, size_t room)
{
    if (attr->kind == QN_ATTR_KIND_CHOICE) {
        char word[32];
        random_word(r, attr->values, word, sizeof word);
        return (size_t)snprintf(text, room, " %s=%s", attr->name, word);
    }
    if (attr->kind == QN_ATTR_KIND_FLOAT) {
        const int tenths = random_tenths(r, attr->attr);
        return (size_t)snprintf(text, room, " %s=%d.%d", attr->name, tenths / 10, tenths % 10);
    }
    const int number = random_number(r, attr->attr);
    return number == 0 ? 0 : (size_t)snprintf(text, room, " %s=%d", attr->name, number < 0 ? !attr->initial.i : number);
}

static size_t random_slot(random_cases *r, qn_op op, int32_t slot, const qn_slot_info *info, char *text, size_t room)
{
    char word[32] = "1";
    if (op == QN_OP_SCALED_MM && (slot == QN_SMM_SCALE_A || slot == QN_SMM_SCALE_B)) {
        random_word(r, slot == QN_SMM_SCALE_A ? "tensor|token" : "tensor|channel", word, sizeof word);
    } else if (slot == qn_op_x_scale_slot(op)) {
        random_word(r, "tensor|token", word, sizeof word);
    } else if (!info->optional || random_below(r, 2)) {
        random_word(r, info->formats, word, sizeof word);
    }
    return (size_t)snprintf(text, room, " %s=%s", info->name, word);
}

/* Words that qn_op_desc_check may refuse; one in `rare` of those that can be left out is there. */
static void random_words(random_cases *r, qn_op op, uint32_t rare, const char *first, char *text, size_t room)
{
    const qn_op_info *info = qn_op_get_info(op);
    size_t at = (size_t)snprintf(text, room, "%s", info->name);
    for (const char *letter = qn_op_get_family(op)->size_names; *letter; letter++) {
        at += (size_t)snprintf(text + at, room - at, " %c=%d", *letter, random_size(r, op, *letter));
    }
    at += (size_t)snprintf(text + at, room - at, "%s", first);
    for (int32_t i = 0; i < info->attr_count; i++) {
        if (random_below(r, rare) == 0 && !(*first && info->attrs[i].attr == QN_ATTR_FORMAT)) {
            at += random_attribute(r, &info->attrs[i], text + at, room - at);
        }
    }
    for (int32_t i = 0; i < info->in_count; i++) {
        if (random_below(r, rare) == 0) {
            at += random_slot(r, op, i, &info->in[i], text + at, room - at);
        }
    }
}

/* The next case of an operator: how full and of which format is drawn first, so that what is seldom taken is met too.
 */
static void random_case(random_cases *r, qn_op op, char *text, size_t room)
{
    for (;;) {
        const uint32_t rare = (uint32_t)RANDOM_PICK(r, 2, 3, 6, 12);
        char first[32] = "";
        if (op == QN_OP_VQ_MM || op == QN_OP_VQ_DEQUANTIZE) {
            memcpy(first, " format=", sizeof " format=");
            random_word(r, "aqlm|aqlm|quip_e8p|vptq|gptvq", first + 8, sizeof first - 8);
        }
        for (int tries = 0; tries < 300; tries++) {
            char words[1024];
            qn_op_desc desc;
            qn_case_cost cost;
            random_words(r, op, rare, first, words, sizeof words);
            if (qn_op_desc_parse(words, &desc, NULL) == QN_OK && qn_case_get_cost(&desc, NULL, &cost, NULL) == QN_OK &&
                cost.flops <= r->most_work && cost.bytes <= r->most_work) {
                qn_op_desc_print(&desc, text, room);
                return;
            }
        }
    }
}

#endif
