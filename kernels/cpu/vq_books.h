/* Decoding runs of codes to floats (kernels/common/vq.h). Included once by a
 * folder's vq_<isa>.c after its vec.h; the loops over a vector's elements have
 * constant lengths, so that the compiler makes whole registers of them. */
#include <string.h>

#include "kernels/common/vq.h"
#include "kernels/cpu/name.h"

QN_INLINE uint32_t code_at(const uint8_t *codes, int64_t bit, int32_t bits)
{
    uint32_t word;
    memcpy(&word, codes + (bit >> 3), sizeof word);
    return word >> (bit & 7) & ((1u << bits) - 1);
}

QN_INLINE void decode_run(const qn_vq_run *run, const int32_t books, const int32_t vector, float *out)
{
    int64_t bit = run->first_bit;
    for (int64_t g = 0; g < run->groups; g++) {
        float *const to = out + g * vector;
        for (int32_t c = 0; c < books; c++) {
            const float *const from = run->table[c] + code_at(run->codes, bit, run->bits[c]) * run->stride;
            bit += run->bits[c];
            for (int32_t j = 0; j < vector; j++) {
                to[j] = c ? to[j] + from[j] : from[j];
            }
        }
    }
}

static void vq_decode(const qn_vq_run *run, float *out)
{
    if (run->vector == 8 && run->books == 1) {
        decode_run(run, 1, 8, out);
    } else if (run->vector == 8 && run->books == 2) {
        decode_run(run, 2, 8, out);
    } else if (run->vector == 4 && run->books == 1) {
        decode_run(run, 1, 4, out);
    } else if (run->vector == 1 && run->books == 1) {
        decode_run(run, 1, 1, out);
    } else {
        decode_run(run, run->books, run->vector, out);
    }
}

const qn_vq_books_set QN_NAME(vq_books) = {vq_decode};
