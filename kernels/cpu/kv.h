/* Keys and values from codes (kernels/common/kv.h). Included once by a folder's
 * kv_<isa>.c after its vec.h. An entry is one load, its width known; a head's
 * codebooks are about as large as the first cache. */
#include "kernels/common/kv.h"
#include "kernels/cpu/name.h"

static void kv_decode(const uint8_t *codes, const uint16_t *books, int64_t groups, int64_t entries, int64_t channels,
                      float *out)
{
    const int64_t book = entries * channels;
    int64_t g = 0;
    switch (channels) {
    case 2:
        for (; g + 2 <= groups; g += 2) {
            vec_floats_2x2(books + g * book + 2 * codes[g], books + (g + 1) * book + 2 * codes[g + 1], out + 2 * g);
        }
        break;
    case 4:
        for (; g < groups; g++) {
            vec_floats4(books + g * book + 4 * codes[g], out + 4 * g);
        }
        break;
    case 8:
        for (; g < groups; g++) {
            vec_floats8(books + g * book + 8 * codes[g], out + 8 * g);
        }
        break;
    default: break;
    }
    for (; g < groups; g++) {
        for (int64_t j = 0; j < channels; j++) {
            out[g * channels + j] = f16_value(books[g * book + codes[g] * channels + j]);
        }
    }
}

const qn_kv_set QN_NAME(kv) = {kv_decode};
