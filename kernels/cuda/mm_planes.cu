/* Rows of floats, or of GGUF blocks, as planes of 16-bit floats that add up to them, for dense_mm.cu, mm_mma.cu and
 * fp4_mm.cu: products of planes are exact in the tensor core, where f32 is no type of operands.
 *
 *   bf16   no scale; each plane has the next eight bits of a number, cut off: three of them are all of an f32, but for
 *          bits below 2^-133, which no bf16 has; two are all of an f16
 *   f16    a row's numbers times a power of two that takes its largest to [2^14, 2^15): 11 bits a plane, rounded; of
 *          numbers below 2^-17 of that fewer, to 2^-39 of it
 *
 * Infinities and NaN are so in the first plane, and zeros in the others.
 *
 * Host contract
 *   Parameters: B_FORMAT of the rows (kernels/common/cuda_mm.h), blocks at addresses that their words want; PLANES; HALF
 *   1: f16
 *   Launch: block of whole warps, at most 512 threads, of blocks with 64 bytes of dynamic shared memory
 *   for each plane of each, grid {rows} */
#define ALIGNED 1
#include "mm_unpack.h"

#define MOST_THREADS 512
#if IS_GGUF
#define ITEM UNIT /* elements of a thread at a time */
#else
#define ITEM 8
#define BYTES (B_FORMAT == QN_MM_F32 ? 4 : 2)
#endif
#define HELD (32 / ITEM) /* items that it keeps from looking for the largest to writing */
#define PIECES (ITEM / 8) /* of an item, of a plane 16 bytes each */

#if IS_GGUF
typedef raw item; /* as loaded: decoding it twice takes fewer registers than keeping its numbers */

DEV item load_item(const char *row, int first, int k)
{
    item r = {};
    return first < k ? load_raw((const u8 *)row, NULL, first / UNIT, k) : r;
}

DEV void piece_of(const item &r, int j, float v[8])
{
    decode8(r, j, v);
}
#else
struct item {
    float v[ITEM];
};

/* Elements of a row from `first` on; zeros where there are none. */
DEV item load_item(const char *row, int first, int k)
{
    const char *const from = row + (i64)first * BYTES;
    item r;
    if (first + ITEM <= k && (u64)row % 16 == 0) {
        uint4 words[BYTES / 2];
#pragma unroll
        for (int i = 0; i < BYTES / 2; i++) {
            words[i] = *(const uint4 *)(from + 16 * i);
        }
#pragma unroll
        for (int i = 0; i < BYTES / 2; i++) {
            const u32 word[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
#if B_FORMAT == QN_MM_F32
                r.v[4 * i + j] = __uint_as_float(word[j]);
#elif B_FORMAT == QN_MM_F16
                half_floats(word[j], r.v + 2 * j);
#else
                r.v[2 * j] = __uint_as_float(word[j] << 16);
                r.v[2 * j + 1] = __uint_as_float(word[j] & 0xffff0000u);
#endif
            }
        }
        return r;
    }
#pragma unroll
    for (int i = 0; i < ITEM; i++) {
        r.v[i] = first + i < k ? load_float(from, i, B_FORMAT) : 0.0f;
    }
    return r;
}

DEV void piece_of(const item &r, int, float v[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = r.v[i];
    }
}
#endif

DEV u32 size_bits(float v)
{
    return __float_as_uint(v) & 0x7fffffffu;
}

DEV int is_number(float v)
{
    return size_bits(v) < 0x7f800000u;
}

/* The next plane of two numbers; what is left of them stays. */
DEV u32 take_plane(float *low, float *high)
{
    float of_low, of_high;
#if HALF
    const u32 pair = pack_f16(*low, *high);
    of_low = half_float(pair & 0xffffu);
    of_high = half_float(pair >> 16);
#else
    /* bits of a NaN may all be in its lower half */
    of_low = *low == *low ? __uint_as_float(__float_as_uint(*low) & 0xffff0000u) : __uint_as_float(0x7fc00000u);
    of_high = *high == *high ? __uint_as_float(__float_as_uint(*high) & 0xffff0000u) : __uint_as_float(0x7fc00000u);
    const u32 pair = __float_as_uint(of_low) >> 16 | __float_as_uint(of_high);
#endif
    *low = is_number(of_low) ? *low - of_low : 0.0f;
    *high = is_number(of_high) ? *high - of_high : 0.0f;
    return pair;
}

/* An item's planes to a row's place; `first` is the lane's. A warp's items are neighbours, and so are what its lanes store
 * at once. Rows of planes are padded to whole pieces. */
DEV void store_planes(const qn_cuda_planes &p, char *row, int first, float up, const item &r)
{
#if PIECES > 1
    extern __shared__ uint4 turned[]; /* pieces of eight lanes at other banks */
    const int lane = (int)threadIdx.x % 32;
    uint4 *const own = turned + threadIdx.x / 32 * (32 * PIECES * PLANES);
    __syncwarp();
#endif
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        float v[8];
        piece_of(r, j, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] *= up;
        }
#pragma unroll
        for (int plane = 0; plane < PLANES; plane++) {
            u32 word[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                word[i] = take_plane(v + 2 * i, v + 2 * i + 1);
            }
            const uint4 four = make_uint4(word[0], word[1], word[2], word[3]);
#if PIECES > 1
            own[(plane * 32 + lane) * PIECES + (j ^ lane * PIECES / 8 % PIECES)] = four;
#else
            if (first < p.k) {
                *(uint4 *)(row + plane * p.to_plane + first * 2) = four;
            }
#endif
        }
    }
#if PIECES > 1
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int piece = i * 32 + lane, of = piece / PIECES, at = first - lane * ITEM + piece * 8;
        const int from = of * PIECES + (piece % PIECES ^ of * PIECES / 8 % PIECES);
#pragma unroll
        for (int plane = 0; plane < PLANES && at < p.k; plane++) {
            *(uint4 *)(row + plane * p.to_plane + at * 2) = own[plane * 32 * PIECES + from];
        }
    }
#endif
}

#if HALF
/* Of numbers; what is none does not count. */
DEV u32 larger_size(u32 top, const item &r)
{
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        float v[8];
        piece_of(r, j, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            top = max(top, is_number(v[i]) ? size_bits(v[i]) : 0);
        }
    }
    return top;
}

DEV u32 largest_of_warp(u32 top)
{
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        top = max(top, __shfl_xor_sync(~0u, top, lane));
    }
    return top;
}

/* The power of two of a row whose largest magnitude is the largest top, in all threads; what takes it back goes to
 * *scale. */
DEV float row_power(u32 top, float *scale)
{
    __shared__ u32 tops[MOST_THREADS / 32];
    top = largest_of_warp(top);
    if (threadIdx.x % 32 == 0) {
        tops[threadIdx.x / 32] = top;
    }
    __syncthreads();
    top = largest_of_warp(threadIdx.x % 32 < blockDim.x / 32 ? tops[threadIdx.x % 32] : 0);
    const u32 exponent = max(top >> 23, 15u); /* both powers are normal numbers */
    if (threadIdx.x == 0) {
        *scale = __uint_as_float((exponent - 14) << 23);
    }
    return __uint_as_float((268 - exponent) << 23);
}
#endif

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 2)
    qn_mm_planes(const __grid_constant__ qn_cuda_planes p)
{
    const char *const row = p.from + (i64)blockIdx.x * p.from_row;
    char *const to = p.to + (i64)blockIdx.x * p.to_row;
    const int own = (int)threadIdx.x * ITEM, step = (int)blockDim.x * ITEM;
    const int rest = (int)threadIdx.x / 32 * 32 * ITEM + HELD * step; /* the warp's first element beyond what it holds */
    item held[HELD];
    float up = 1.0f;
    release_next();
    wait_before();
    if (p.odd && blockIdx.x == 0 && threadIdx.x == 0) {
        *p.odd = 0;
    }
    if (blockIdx.x == gridDim.x - 1) {
        for (int i = (int)threadIdx.x; i < p.pad; i += (int)blockDim.x) {
            p.scales[gridDim.x + i] = 1.0f;
        }
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        held[i] = load_item(row, own + i * step, p.k);
    }
#if HALF
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        top = larger_size(top, held[i]);
    }
#pragma unroll 1
    for (int first = rest; first < p.k; first += step) {
        top = larger_size(top, load_item(row, first + own % (32 * ITEM), p.k));
    }
    up = row_power(top, p.scales + blockIdx.x);
#endif
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        store_planes(p, to, own + i * step, up, held[i]);
    }
#pragma unroll 1
    for (int first = rest; first < p.k; first += step) {
        const int mine = first + own % (32 * ITEM);
        store_planes(p, to, mine, up, load_item(row, mine, p.k));
    }
}
