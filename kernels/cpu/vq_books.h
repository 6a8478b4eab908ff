/* Decoding runs of codes to floats (kernels/common/vq.h). Included once by a
 * folder's vq_<isa>.c after its vec.h; the loops over a vector's elements have
 * constant lengths, so that the compiler makes whole registers of them. */
#include <string.h>

#include "kernels/common/vq.h"
#include "kernels/cpu/name.h"

QN_INLINE uint32_t word_at(const uint8_t *codes, int64_t bit)
{
    uint32_t word;
    memcpy(&word, codes + (bit >> 3), sizeof word);
    return word >> (bit & 7);
}

/* Element i of a table. */
QN_INLINE float entry_at(const void *table, const qn_vq_entry entry, int64_t i)
{
    if (entry == QN_VQ_ENTRY_F32) {
        return ((const float *)table)[i];
    }
    const uint16_t half = ((const uint16_t *)table)[i];
    if (entry == QN_VQ_ENTRY_F16) {
        return f16_value(half);
    }
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Sums go through an array of their own: elements of tables and of results might be the same for all a compiler knows.
 */
QN_INLINE void decode_run(const qn_vq_run *run, const int32_t books, const int32_t vector, const qn_vq_entry entry,
                          const int bytes, float *out)
{
    const int64_t stride = run->stride, groups = run->groups;
    const uint8_t *const codes = run->codes;
    const void *table[QN_VQ_BOOKS];
    uint32_t masks[QN_VQ_BOOKS];
    int64_t bit = run->first_bit;
    for (int32_t c = 0; c < books; c++) {
        table[c] = run->table[c];
        masks[c] = (1u << run->bits[c]) - 1;
    }
    for (int64_t g = 0; g < groups; g++) {
        float sum[QN_VQ_VECTOR];
#pragma GCC unroll 4
        for (int32_t c = 0; c < books; c++) {
            const uint32_t code = bytes ? codes[bit >> 3] : word_at(codes, bit) & masks[c];
            const int64_t from = code * stride;
            bit += bytes ? 8 : run->bits[c];
            for (int32_t j = 0; j < vector; j++) {
                const float value = entry_at(table[c], entry, from + j);
                sum[j] = c ? sum[j] + value : value;
            }
        }
        memcpy(out + g * vector, sum, (size_t)vector * sizeof *sum);
    }
}

static void vq_decode(const qn_vq_run *run, float *out)
{
#ifndef VQ_EIGHTS
    if (run->entry == QN_VQ_ENTRY_F16) {
        decode_run(run, run->books, 8, QN_VQ_ENTRY_F16, 0, out);
        return;
    }
    if (run->entry == QN_VQ_ENTRY_BF16) {
        decode_run(run, run->books, 8, QN_VQ_ENTRY_BF16, 0, out);
        return;
    }
#endif
    int bytes = 1; /* codes are */
    for (int32_t c = 0; c < run->books; c++) {
        bytes &= run->bits[c] == 8;
    }
#define RUN(length, count, bytes_)                                                                                     \
    if (run->vector == (length) && run->books == (count) && bytes >= (bytes_)) {                                       \
        decode_run(run, count, length, QN_VQ_ENTRY_F32, bytes_, out);                                                  \
        return;                                                                                                        \
    }
    RUN(4, 1, 1)
    RUN(4, 2, 1)
    RUN(16, 1, 1)
    RUN(16, 2, 1)
    RUN(16, 4, 1)
    RUN(4, 1, 0)
    RUN(8, 1, 0)
    RUN(8, 2, 0)
    RUN(1, 1, 0)
    RUN(4, run->books, 0)
    RUN(8, run->books, 0)
    RUN(16, run->books, 0)
#undef RUN
    decode_run(run, run->books, run->vector, QN_VQ_ENTRY_F32, 0, out);
}

#define ACROSS 16 /* groups turned over at a time */

/* `some` groups from bit on. */
QN_INLINE void turn_run(const qn_vq_run *run, const int32_t books, const int32_t vector, const qn_vq_entry entry,
                        int64_t bit, const int64_t some, float *out, int64_t stride)
{
    float lines[ACROSS][QN_VQ_ACROSS];
    for (int64_t g = 0; g < some; g++) {
        float sum[QN_VQ_ACROSS];
        for (int32_t c = 0; c < books; c++) {
            const int64_t from = (word_at(run->codes, bit) & ((1u << run->bits[c]) - 1)) * run->stride;
            bit += run->bits[c];
            for (int32_t j = 0; j < vector; j++) {
                const float value = entry_at(run->table[c], entry, from + j);
                sum[j] = c ? sum[j] + value : value;
            }
        }
        memcpy(lines[g], sum, (size_t)vector * sizeof *sum);
    }
    for (int32_t j = 0; j < vector; j++) {
        for (int64_t g = 0; g < some; g++) {
            out[j * stride + g] = lines[g][j];
        }
    }
}

QN_INLINE void across_run(const qn_vq_run *run, const int32_t books, const int32_t vector, const qn_vq_entry entry,
                          float *out, int64_t stride)
{
    int64_t g = 0, bit = run->first_bit, bits = 0;
    for (int32_t c = 0; c < books; c++) {
        bits += run->bits[c];
    }
    for (; g + ACROSS <= run->groups; g += ACROSS) {
        turn_run(run, books, vector, entry, bit + g * bits, ACROSS, out + g, stride);
    }
    turn_run(run, books, vector, entry, bit + g * bits, run->groups - g, out + g, stride);
}

static void vq_across(const qn_vq_run *run, float *out, int64_t stride)
{
#ifndef VQ_EIGHTS
    if (run->entry == QN_VQ_ENTRY_F16) {
        across_run(run, run->books, run->vector, QN_VQ_ENTRY_F16, out, stride);
        return;
    }
    if (run->entry == QN_VQ_ENTRY_BF16) {
        across_run(run, run->books, run->vector, QN_VQ_ENTRY_BF16, out, stride);
        return;
    }
#endif
    if (run->vector == 8 && run->books == 1) {
        across_run(run, 1, 8, QN_VQ_ENTRY_F32, out, stride);
    } else if (run->vector == 8 && run->books == 2) {
        across_run(run, 2, 8, QN_VQ_ENTRY_F32, out, stride);
    } else {
        across_run(run, run->books, run->vector, QN_VQ_ENTRY_F32, out, stride);
    }
}

#ifdef VQ_EIGHTS
#include "kernels/cpu/vq_eights.h"
const qn_vq_books_set QN_NAME(vq_books) = {
    .chunks = 1, .decode = vq_decode_eights, .across = vq_across_eights, .dot = vq_dot, .dot_across = vq_dot_across};
#else
const qn_vq_books_set QN_NAME(vq_books) = {.decode = vq_decode, .across = vq_across};
#endif
