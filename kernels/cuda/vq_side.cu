/* What stands in front of and behind the products of vector-quantised weights.
 *
 *   qn_vq_rows    rows of x as the operands of vq_tensor.cu: f16 in chunks of 8 elements along K. A span of 256
 * elements is 8 steps of 32, four chunks each, one a lane of a quad: chunk (step s, t) is elements 64 t + 8 s on
 *                 (LAYOUT 0) or 64 (s / 2) + 16 t + 8 (s % 2) on (LAYOUT 1, quip).
 * Chunks lie [tile of x][span][step][8 rows][row % 8][t]. NATURAL 1: words of a quad's chunks are transposed, for
 * products through shared memory. WIDE 1: for vq_wide.cu, [tile of x][span][pair of steps][row], in a row's 128 bytes
 * the transposed words of both steps, their 16-byte pieces swizzled as matrix descriptors say. PLAIN 1: rows as they
 * are, or in the order of vptq's columns (PERM 1), of whole spans, for dense_mm.cu; any K. SCALED 1: a row is
 * multiplied by a power of two that brings its largest element to 2^13. WIDE 1 clears `ready`, where it is given. Grid
 * {rows with padding}, block 256.
 *   qn_vq_finish  y = sum of parts * scale + bias; RAW 1: total = sum of parts. Grid {ceil(N / 256), M}, block 256.
 *
 * Parameters: ENTRY 0 rows, 1 finish: which of them; X_FORMAT (of what it reads), OUT, BIAS; SCALE_FORMAT,
 * WSCALE_FORMAT (format + 1, 0: none) */
#include "vq_parts.h"

#define THREADS 256

#if ENTRY == 0
DEV float block_max(float v)
{
    __shared__ float most[THREADS / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
    }
    if (threadIdx.x % 32 == 0) {
        most[threadIdx.x / 32] = v;
    }
    __syncthreads();
    v = most[0];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++) {
        v = fmaxf(v, most[i]);
    }
    return v;
}

#if PLAIN
/* Column of x that stands at place i of K. */
DEV int column_of(const qn_cuda_vq &a, int i)
{
    return PERM ? min((int)((const u16 *)a.perm)[i], a.k - 1) : i;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_vq_rows(const __grid_constant__ qn_cuda_vq a)
{
    release_next();
    wait_before();
    const int m = (int)blockIdx.x, valid = m < a.m;
#if WIDE
    for (int i = m * THREADS + (int)threadIdx.x; a.ready && i < a.pieces; i += (int)gridDim.x * THREADS) {
        a.ready[i] = 0;
    }
#endif
    const char *const row = a.x + (i64)(valid ? m : 0) * a.x_row;
    const int whole = valid && ((u64)row & 15) == 0; /* K is a multiple of 64 */
    float scale = 1.0f;
#if SCALED
    float most = 0.0f;
    for (int i = (int)threadIdx.x; i < a.k && valid; i += THREADS) {
        most = fmaxf(most, fabsf(load_float(row, i, X_FORMAT)));
    }
    most = block_max(most);
    /* 2^(13 - exponent); of zeros, infinities and numbers too small to bring there: 1 */
    const int exponent = (int)(__float_as_uint(most) >> 23);
    const int usable = exponent > 20 && exponent < 255;
    scale = usable ? __uint_as_float((u32)(267 - exponent) << 23) : 1.0f;
    if (valid && threadIdx.x == 0) {
        a.row_scale[m] = usable ? __uint_as_float((u32)(exponent - 13) << 23) : 1.0f;
    }
#endif
#if PLAIN
    for (int i = (int)threadIdx.x; i < a.spans * (QN_VQ_SPAN / 2); i += THREADS) {
        const float low = 2 * i < a.k ? load_float(row, column_of(a, 2 * i), X_FORMAT) : 0.0f;
        const float high = 2 * i + 1 < a.k ? load_float(row, column_of(a, 2 * i + 1), X_FORMAT) : 0.0f;
        a.halves[(i64)m * (a.spans * (QN_VQ_SPAN / 2)) + i] = pack_f16(low * scale, high * scale);
    }
#else
    const int chunks = a.spans * 32, tile = m / a.tokens, token = m % a.tokens;
    for (int i = (int)threadIdx.x; i < chunks; i += THREADS) {
        const int span = i / 32, chunk = i % 32;
#if LAYOUT == 0
        const int t = chunk / 8, s = chunk % 8;
#else
        const int t = chunk % 8 / 2, s = chunk / 8 * 2 + chunk % 2;
#endif
        u32 word[4] = {0, 0, 0, 0};
#if X_FORMAT == QN_MM_F16 && !SCALED
        if (whole && i * 8 < a.k) { /* as they are */
            const uint4 v = ((const uint4 *)row)[i];
            word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
        } else
#endif
            if (valid && i * 8 < a.k) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float low = load_float(row, i * 8 + 2 * j, X_FORMAT);
                const float high = load_float(row, i * 8 + 2 * j + 1, X_FORMAT);
                word[j] = pack_f16(low * scale, high * scale);
            }
        }
#if WIDE
        const i64 line = (((i64)tile * a.spans + span) * 4 + s / 2) * a.tokens + token;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            a.halves[line * 32 + ((s % 2 * 4 + j) ^ (token % 8)) * 4 + t] = word[j];
        }
#else
        const i64 group = (((i64)tile * a.spans + span) * 8 + s) * (a.tokens / 8) + token / 8;
        u32 *const to = a.halves + (group * 32 + token % 8 * 4) * 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
#if NATURAL
            to[j * 4 + t] = word[j];
#else
            to[t * 4 + j] = word[j];
#endif
        }
#endif
    }
#endif
}

#else
extern "C" __global__ void __launch_bounds__(THREADS, 4) qn_vq_finish(const __grid_constant__ qn_cuda_vq a)
{
    const int n = (int)(blockIdx.x * THREADS + threadIdx.x), m = (int)blockIdx.y;
    release_next();
#if RAW
    wait_before();
    if (n < a.n) {
        a.total[(i64)m * a.n + n] = sum_parts(a, m, n);
    }
#else
    const int row = min(n, a.n - 1);
    float scale = 1.0f, bias = 0.0f;
    if (!a.early) { /* or scales may be read while the kernel in front works */
        wait_before();
    }
#if SCALE_FORMAT
    scale = load_float(a.scales + (i64)row * a.scales_row, 0, SCALE_FORMAT - 1);
#endif
#if WSCALE_FORMAT
    scale *= load_float(a.wscale, 0, WSCALE_FORMAT - 1);
#endif
    if (a.early) {
        wait_before();
    }
#if BIAS
    bias = load_float(a.bias, row, BIAS - 1);
#endif
    if (n < a.n) {
        store_float(a.y + (i64)m * a.y_row, n, __fadd_rn(__fmul_rn(sum_parts(a, m, n), scale), bias), OUT);
    }
#endif
}

#endif
