/* quantize_nvfp4 and quantize_mxfp4: a lane eight elements, two or four lanes a block of 16 or 32.
 *
 * What bounds them is instructions. So a lane has four places, all of whose loads are in flight at once, and the lanes
 * of a block share the scales of these places: each finds one or two and gives them to the others. What is rare (no
 * number) a warp as a whole does in another way. The places are in one row or, where scales are swizzled, 32 rows apart
 * in the same columns: those rows' scales are neighbours.
 *
 * Parameters: X_FORMAT; BLOCK 16: nvfp4, 32: mxfp4; ALIGNED 1: rows of x begin at 16 bytes, of q at 4;
 *   RANGED 1: no global scale is given, a launch before left the range of x; SWIZZLED 1: scales are
 * Launch
 *   qn_quantize_fp4  block of whole warps, at most 256 threads, grid {rows, ceil(K / (8 UNROLL threads))}; SWIZZLED:
 *                    {up to 32 of each 128 rows, ceil(K / (8 threads))}; the padding of their scales is set by the host
 *   qn_fp4_range     before it, see tensor_range.h
 *   qn_quantize_fp4_once  ONCE 1, SWIZZLED 0: in the place of both, see tensor_once.h */
#define TYPE 0
#define ASYMMETRIC 0
#define BOUNDED 0
#include "rows.h"
#include "cuda_fp4.h"
#include "fp4_code.h"
#if ONCE
#define ONCE_ARGS qn_cuda_fp4
#else
#include "tensor_range.h"
#endif

#define INFINITE __int_as_float(0x7f800000)

#define LEAST 9.094947017729282e-13f /* 2^-40 */
#define LANES (BLOCK / PER)
#define UNROLL 4             /* places of a lane */
#define OWN (UNROLL / LANES) /* of which it finds the scales of so many */

#if !ONCE
/* The lane's elements at column, which is a multiple of PER; zeros where there are none. */
static __device__ inline void load_lane(const char *x, int column, int valid, uint4 *raw)
{
#pragma unroll
    for (int w = 0; w < X_WORDS; w++) {
        raw[w] = make_uint4(0, 0, 0, 0);
        if (valid) {
#if ALIGNED
#if RANGED /* read before, and not again */
            raw[w] = load_by(pass_policy(), x + column * X_BYTES + w * 16);
#else
            raw[w] = load_once(x + column * X_BYTES + w * 16);
#endif
#else
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
#if X_FORMAT == 0
                words[i] = ((const u32 *)x)[column + 4 * w + i];
#else
                const u16 *const p = (const u16 *)x + column + 2 * i;
                words[i] = (u32)p[0] | (u32)p[1] << 16;
#endif
            }
            raw[w] = make_uint4(words[0], words[1], words[2], words[3]);
#endif
        }
    }
}

extern "C" __global__ void __launch_bounds__(RANGE_THREADS)
    qn_fp4_range(const __grid_constant__ qn_cuda_fp4 a, i64 m, i64 k, i64 keep)
{
    begin_kernel();
    find_tensor_range(a.x, a.x_row, m, k, keep, ALIGNED, a.ranges);
}
#endif

#if BLOCK == 32
static __device__ inline int exponent_of(float most, int rule)
{
    if (most == 0.0f) {
        return -127;
    }
    if (most == INFINITE) {
        return 127;
    }
    const float held = most < 1.17549435e-38f ? most * 16777216.0f : most; /* subnormal ones made normal */
    const u32 bits = __float_as_uint(held), fraction = bits & 0x7fffffu;
    int e = (int)(bits >> 23) - 127 - (most < 1.17549435e-38f ? 24 : 0); /* most = 1.f * 2^e */
    if (rule == 0) {
        e = fraction <= 0x400000u ? e - 2 : e - 1;
    } else {
        e = e - 2 + (rule == 2 && fraction >= 0x600000u);
    }
    return e < -127 ? -127 : e > 127 ? 127 : e;
}

static __device__ inline float power_of_two(int e)
{
    return e >= -126 ? __uint_as_float((u32)(e + 127) << 23) : 5.877471754111438e-39f; /* -127 */
}
#endif

/* The largest magnitude of a lane's elements; NaN or infinite where one of them is. */
static __device__ inline float largest(const uint4 *raw)
{
#if X_FORMAT == 0
    float most = 0.0f, v[PER];
    unpack(raw, v);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(v[i])));
    }
    return most;
#else
    float v[2], both;
    widen(larger_pair_or_nan(larger_pair_or_nan(raw->x, raw->y), larger_pair_or_nan(raw->z, raw->w)), v);
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(both) : "f"(fabsf(v[0])), "f"(fabsf(v[1])));
    return both;
#endif
}

/* Of places' magnitudes in a lane's part of a block, those in the whole block at the places whose scales are the
 * lane's: lane t of the block's has the places from OWN t on. */
static __device__ inline void share_out(const float *most, u32 t, float *mine)
{
    const u32 upper = t / (LANES / 2);
    float half[UNROLL / 2];
#pragma unroll
    for (int j = 0; j < UNROLL / 2; j++) {
        const float kept = upper ? most[UNROLL / 2 + j] : most[j], sent = upper ? most[j] : most[UNROLL / 2 + j];
        half[j] = fmaxf(kept, __shfl_xor_sync(0xffffffffu, sent, LANES / 2));
    }
#if LANES == 2
    mine[0] = half[0];
    mine[1] = half[1];
#else
    const float kept = t % 2 ? half[1] : half[0], sent = t % 2 ? half[0] : half[1];
    mine[0] = fmaxf(kept, __shfl_xor_sync(0xffffffffu, sent, 1));
#endif
}

/* The code of a block's scale, and what its elements are multiplied by; odd: of neither is this certain. */
#if BLOCK == 16
static __device__ inline u32 scale_of(float most, float global, float inverse, float *factor, int *odd)
{
    const u32 code = two_codes(global * (most * (1.0f / 6.0f)), 0.0f) & 0xff;
    const float scaled = from_f16((u16)((code & 0x7f) << 7)) * 256.0f * inverse; /* as f16, 2^-8 of its value */
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(scaled));
    r = __fmaf_rn(r, __fmaf_rn(-scaled, r, 1.0f), r); /* as division rounds, between these */
    *factor = (code & 0x7f) == 0 ? 0.0f : r;
    *odd |= (code & 0x7f) != 0 && !(scaled > 1e-36f && scaled < 1e36f);
    return code;
}

static __device__ inline float factor_of(u32 code, float inverse)
{
    const float s = from_f16((u16)((code & 0x7f) << 7)) * 256.0f;
    return s == 0.0f ? 0.0f : 1.0f / (s * inverse);
}
#else
static __device__ inline u32 scale_of(float most, int rule, float *factor)
{
    const int e = exponent_of(most, rule);
    *factor = power_of_two(-e);
    return (u32)(e + 127);
}
#endif

/* Each place's factor, from the lane that found it. */
static __device__ inline void hand_out(const float *found, float *factor)
{
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        factor[u] = __shfl_sync(0xffffffffu, found[u % OWN], u / OWN, LANES);
    }
}

/* Without a branch, so that a lane's places are worked on side by side. */
static __device__ inline void store_word(char *to, u32 word, int valid)
{
#if ALIGNED
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p st.global.u32 [%0], %1;\n}" ::"l"(to), "r"(word),
                 "r"(valid)
                 : "memory");
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (valid) {
            to[i] = (char)(word >> 8 * i);
        }
    }
#endif
}

/* q: of the lane's first place, the others `step` bytes on; place u is there while u * unit < left. numbers 0: some may
 * be none. */
static __device__ inline void store_places(const uint4 (*raw)[X_WORDS], const float *factor, char *q, i64 step,
                                           int unit, int left, int numbers)
{
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        float v[PER];
        unpack(raw[u], v);
        u32 word = 0;
        if (numbers) { /* factors are not negative */
#if X_FORMAT == 0
            const e2m1_signs signs = e2m1_signs_of(v);
#else
            const e2m1_signs signs = e2m1_signs_of_pairs(raw[u]->x, raw[u]->y, raw[u]->z, raw[u]->w);
#endif
#pragma unroll
            for (int i = 0; i < PER; i++) {
                v[i] = fabsf(v[i]) * factor[u];
            }
            word = e2m1_codes(v, signs);
        } else {
#pragma unroll
            for (int i = 0; i < PER; i++) {
                word |= e2m1_code(v[i] * factor[u]) << 4 * i;
            }
        }
        store_word(q + u * step, word, u * unit < left);
    }
}

/* Where a lane's places have their scales. */
struct scale_places {
#if ONCE
    u32 first; /* block of the first place; the others' are ONCE_THREADS / LANES on */
#else
    char *row;
    int first; /* column, of the first place */
#endif
};

static __device__ inline char *scale_at(const qn_cuda_fp4 &a, const scale_places &at, int u, int unit)
{
#if ONCE
    const u32 block = at.first + (u32)(u * unit) / LANES;
    return a.scale + block;
#else
    const int block = (int)((u32)(SWIZZLED ? at.first : at.first + u * unit) / BLOCK);
    return at.row + (SWIZZLED ? block / 4 * 512 + u * 4 + block % 4 : block); /* swizzled: a place is 4 bytes on */
#endif
}

/* Scales and codes of a lane's places. q: of the first, the others q_step bytes on; place u is there while u * unit <
 * left. */
static __device__ inline void code_places(const qn_cuda_fp4 &a, const uint4 (*raw)[X_WORDS], float global,
                                          const scale_places &at, char *q, i64 q_step, int unit, int left)
{
    const u32 t = threadIdx.x % LANES;
#if BLOCK == 16
    const float inverse = 1.0f / global;
#endif
    float most[UNROLL], mine[OWN], factor[UNROLL], found[OWN];
    int odd = 0; /* not for the ways of most */
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        most[u] = largest(raw[u]);
        odd |= !(most[u] < INFINITE);
    }
    if (odd) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) { /* NaN does not count */
            float v[PER];
            unpack(raw[u], v);
            most[u] = 0.0f;
#pragma unroll
            for (int e = 0; e < PER; e++) {
                most[u] = fmaxf(most[u], fabsf(v[e]));
            }
        }
    }
    share_out(most, t, mine);
#if BLOCK == 16
    u32 code[OWN];
#endif
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        const int u = (int)t * OWN + j;
#if BLOCK == 16
        const u32 byte = code[j] = scale_of(mine[j], global, inverse, &found[j], &odd);
#else
        const u32 byte = scale_of(mine[j], a.rule, &found[j]);
#endif
        if (u * unit < left) {
            *scale_at(a, at, u, unit) = (char)byte;
        }
    }
    hand_out(found, factor);
    if (__any_sync(0xffffffffu, odd)) {
#if BLOCK == 16
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            found[j] = factor_of(code[j], inverse);
        }
        hand_out(found, factor);
#endif
        store_places(raw, factor, q, q_step, unit, left, 0);
    } else {
        store_places(raw, factor, q, q_step, unit, left, 1);
    }
}

#if BLOCK == 16
static __device__ inline float global_of(range all)
{
    return 2688.0f / fminf(fmaxf(all.high, LEAST), 3.40282347e38f);
}
#endif

#if ONCE
typedef float once_rule; /* the global scale */
#include "tensor_once.h"

static __device__ inline once_rule make_once(const qn_cuda_fp4 &a, range r)
{
    const float global = global_of(r);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *(float *)a.global = global;
    }
    return global;
}

static __device__ inline void write_once(const qn_cuda_fp4 &a, const once_rule &global, const uint4 (*raw)[X_WORDS],
                                         i64 first, u32 count)
{
    const i64 unit = first + threadIdx.x;
    const scale_places at = {(u32)(unit / LANES)};
    code_places(a, raw, global, at, a.q + unit * (PER / 2), ONCE_THREADS * (PER / 2), ONCE_THREADS,
                (int)count - (int)threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(ONCE_THREADS + 32, 1)
    qn_quantize_fp4_once(const __grid_constant__ qn_cuda_fp4 a, const __grid_constant__ qn_cuda_deal o)
{
    extern __shared__ __align__(128) char slots[];
    begin_once();
    range r = no_range();
    quantise_once(a, o, &r, slots);
}
#else
extern "C" __global__ void __launch_bounds__(256, X_FORMAT == 0 ? 3 : 5)
    qn_quantize_fp4(const __grid_constant__ qn_cuda_fp4 a)
{
    begin_kernel();
    constexpr int along = SWIZZLED ? 1 : UNROLL; /* places in a row */
    const int k = (int)a.blocks * BLOCK, first = (int)(blockIdx.y * along * blockDim.x + threadIdx.x) * PER;
#if SWIZZLED
    const int unit = 32;
    const i64 count = a.m / 128 * 32 + (a.m % 128 < 32 ? a.m % 128 : 32);
#else
    const int unit = (int)blockDim.x * PER;
    const i64 count = a.m;
#endif
#if BLOCK == 16
#if !RANGED
    const float global = *(const float *)a.given;
#endif
    const int tells = blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0; /* the global scale, of no rows too */
    if (tells && a.m == 0) {
        *(float *)a.global = RANGED ? 2688.0f / LEAST : *(const float *)a.given;
    }
#endif
    for (i64 i = blockIdx.x; i < count; i += gridDim.x) {
        const i64 item = RANGED ? count - 1 - i : i;
#if SWIZZLED
        const i64 row = item / 32 * 128 + item % 32;
        const int left = first >= k ? 0 : a.m - row < 128 ? (int)(a.m - row) : 128;
#else
        const i64 row = item;
        const int left = k - first;
#endif
        const char *x = a.x + row * a.x_row;
        asm volatile("" : "+l"(x)); /* once: the compiler would do it for every load */
        uint4 raw[UNROLL][X_WORDS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
#if SWIZZLED
            load_lane(x + u * (32 * a.x_row), first, u * unit < left, raw[u]);
#else
            load_lane(x, first + u * unit, u * unit < left, raw[u]);
#endif
        }
#if BLOCK == 16
#if RANGED
        const float global = global_of(join_tensor_range(a.ranges));
#endif
#else
        const float global = 0.0f;
#endif
#if SWIZZLED
        const scale_places at = {a.scale + row / 128 * ((a.blocks + 3) / 4) * 512 + row % 32 * 16, first};
#else
        const scale_places at = {a.scale + row * a.scale_row, first};
#endif
        char *const q = a.q + row * a.q_row + first / 2;
        code_places(a, raw, global, at, q, SWIZZLED ? 32 * a.q_row : unit / 2, unit, left);
#if BLOCK == 16
        if (tells) {
            *(float *)a.global = global;
        }
#endif
    }
}
#endif
