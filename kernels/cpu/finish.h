/* Epilogue of every matmul: zero points, scales, bias, rounding to the output
 * format. Included after vec.h. Whole steps of columns are computed and only the
 * wanted part of the last one is copied out. */
#include "kernels/common/mm.h"
#include "kernels/cpu/bf16.h"
#include "kernels/cpu/name.h"

/* VL outputs from column c before rounding. */
QN_INLINE vf finish_real(const qn_mm_finish *f, const float *sums, vf scale_a, vi azp, int64_t c)
{
    vf v;
    if (f->integers) {
        vi x = vi_load(sums);
        if (f->azp_adj) {
            x = vi_sub(x, vi_mul(azp, vi_load(f->azp_adj + c)));
        }
        v = vf_from_i32(x);
    } else {
        v = vf_mul(vf_load(sums), vf_set(f->unit));
    }
    if (!f->scaled) {
        v = vf_mul(v, vf_set(f->factor));
        return f->bias ? vf_add(v, vf_load(f->bias + c)) : v;
    }
    v = vf_mul(v, vf_load(f->scale_b + c));
    return f->bias ? vf_fma(scale_a, v, vf_load(f->bias + c)) : vf_mul(scale_a, v);
}

_Static_assert(QN_MM_STEP % (2 * VL) == 0 && QN_MM_PIECE % VL == 0, "pairs of vectors");

/* QN_MM_STEP outputs from column c. */
QN_INLINE void finish_step(const qn_mm_finish *f, qn_mm_sums sums, vf scale_a, vi azp, int64_t c, qn_mm_real real,
                           void *out)
{
    const float *const first = (const float *)sums.first + c / QN_MM_PIECE * sums.piece;
    uint16_t *const half = out;
    for (int i = 0; i < QN_MM_STEP; i += 2 * VL) {
        const int j = i + VL;
        const float *const x0 = first + i / QN_MM_PIECE * sums.piece + i % QN_MM_PIECE;
        const float *const x1 = first + j / QN_MM_PIECE * sums.piece + j % QN_MM_PIECE;
        vf v0 = finish_real(f, x0, scale_a, azp, c + i), v1 = finish_real(f, x1, scale_a, azp, c + j);
        if (real == QN_MM_F32 && f->adds) {
            v0 = vf_add(vf_load((const float *)out + i), v0);
            v1 = vf_add(vf_load((const float *)out + j), v1);
        }
        if (real == QN_MM_F32) {
            vf_store((float *)out + i, v0);
            vf_store((float *)out + i + VL, v1);
        } else if (real == QN_MM_F16) {
            vf_to_f16(half + i, v0);
            vf_to_f16(half + i + VL, v1);
        } else {
            vi_store(half + i, bf16_step(v0, v1));
        }
    }
}

QN_INLINE void finish_row(const qn_mm_finish *f, qn_mm_sums sums, float scale, int32_t zero, int64_t count,
                          qn_mm_real real, char *out)
{
    const int64_t size = real == QN_MM_F32 ? 4 : 2;
    const vf scale_a = vf_set(scale);
    const vi azp = vi_set((uint32_t)zero);
    int64_t c = 0;
    for (; c + QN_MM_STEP <= count; c += QN_MM_STEP) {
        finish_step(f, sums, scale_a, azp, c, real, out + c * size);
    }
    if (c < count) {
        float last[QN_MM_STEP] = {0.0f};
        if (f->adds) {
            memcpy(last, out + c * size, (size_t)((count - c) * size));
        }
        finish_step(f, sums, scale_a, azp, c, real, last);
        memcpy(out + c * size, last, (size_t)((count - c) * size));
    }
}

static void mm_finish(const qn_mm_finish *f, qn_mm_sums sums, float scale_a, int32_t azp, int64_t count, void *out)
{
    switch (f->out) {
    case QN_MM_F32: finish_row(f, sums, scale_a, azp, count, QN_MM_F32, out); break;
    case QN_MM_F16: finish_row(f, sums, scale_a, azp, count, QN_MM_F16, out); break;
    case QN_MM_BF16: finish_row(f, sums, scale_a, azp, count, QN_MM_BF16, out); break;
    }
}
