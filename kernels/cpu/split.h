/* f32 rows as exact sums of bf16 terms (kernels/common/panel.h, QN_PANEL_ROWS_BF16).
 * Each term is the upper half of what the terms before left; infinities and NaN
 * are whole in the first. Included after vec.h. */
#include "kernels/common/mm.h"
#include "kernels/cpu/name.h"

static void mm_split(const float *x, int64_t count, int32_t terms, uint16_t *out)
{
    for (int64_t i = 0; i < count; i += QN_MM_PAD) {
        float left[QN_MM_PAD];
        memcpy(left, x + i, sizeof left);
        for (int32_t t = 0; t < terms; t++) {
            uint16_t *const to = out + i * terms + t * QN_MM_PAD;
            for (int j = 0; j < QN_MM_PAD; j++) {
                uint32_t bits, high;
                memcpy(&bits, &left[j], 4);
                const uint32_t magnitude = bits & 0x7fffffffu;
                high = bits & 0xffff0000u;
                high |= magnitude > 0x7f800000u ? 0x00400000u : 0; /* stays NaN */
                to[j] = (uint16_t)(high >> 16);
                float head;
                memcpy(&head, &high, 4);
                left[j] = magnitude >= 0x7f800000u ? 0.0f : left[j] - head;
            }
        }
    }
}
