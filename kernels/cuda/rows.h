/* What the row-wise quantisers share on the device: types, 16-byte loads, ranges
 * within a warp or block, 8-bit codes, and the exact division by a scale.
 *
 * Parameters, defined before this file by the plan:
 *   X_FORMAT  of x: 0 f32, 1 f16, 2 bf16
 *   TYPE      of codes: 0 e4m3fn, 1 e4m3fnuz, 2 e5m2, 3 int8
 *   ASYMMETRIC  1: zero points; BOUNDED  1: scale_ub holds scales down
 *
 *   LOOSE     1: rows start anywhere and may end within a lane
 *
 * A lane works on PER = 8 neighbouring elements. */
#ifndef QN_CUDA_ROWS_H
#define QN_CUDA_ROWS_H

#if __CUDA_ARCH__ >= 890
#define HAS_FP8 1 /* cvt to e4m3 and e5m2 */
#else
#define HAS_FP8 0
#endif

#ifndef LOOSE
#define LOOSE 0
#endif

#define PER 8
#define X_BYTES (X_FORMAT == 0 ? 4 : 2)
#define X_WORDS (PER * X_BYTES / 16) /* 16-byte words of a lane's elements */
#define INT8 (TYPE == 3)
#define CODE_MAX (TYPE == 3 ? 127.0f : TYPE == 2 ? 57344.0f : TYPE == 1 ? 224.0f : 448.0f)

#include "ptx.h"

/* ---- loads ---- */

static __device__ inline uint4 load_once(const char *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* The same with a policy of the L2 cache: of what is read again soon, and of what is not. */
static __device__ inline u64 keep_policy()
{
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

static __device__ inline u64 pass_policy()
{
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

static __device__ inline uint4 load_by(u64 policy, const char *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(policy));
    return v;
}

static __device__ inline float from_f16(u16 bits)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}

static __device__ inline void widen(u32 word, float *v)
{
#if X_FORMAT == 1
    v[0] = from_f16((u16)word);
    v[1] = from_f16((u16)(word >> 16));
#else
    v[0] = __uint_as_float(word << 16);
    v[1] = __uint_as_float(word & 0xffff0000u);
#endif
}

/* A lane's elements as floats. */
static __device__ inline void unpack(const uint4 *raw, float *v)
{
#if X_FORMAT == 0
#pragma unroll
    for (int i = 0; i < X_WORDS; i++) {
        v[4 * i] = __uint_as_float(raw[i].x);
        v[4 * i + 1] = __uint_as_float(raw[i].y);
        v[4 * i + 2] = __uint_as_float(raw[i].z);
        v[4 * i + 3] = __uint_as_float(raw[i].w);
    }
#else
    widen(raw[0].x, v);
    widen(raw[0].y, v + 2);
    widen(raw[0].z, v + 4);
    widen(raw[0].w, v + 6);
#endif
}

static __device__ inline float load_one(const char *row, i64 i)
{
#if X_FORMAT == 0
    return ((const float *)row)[i];
#elif X_FORMAT == 1
    return from_f16(((const u16 *)row)[i]);
#else
    return __uint_as_float((u32)((const u16 *)row)[i] << 16);
#endif
}

/* A lane's elements where rows start anywhere, `there` of them, the others 0: as wide as the address allows. */
static __device__ inline void load_loose(const char *p, i64 there, uint4 *raw)
{
    u32 *const w = (u32 *)raw;
    const u32 at = (u32)(u64)p;
    if (there >= PER && at % 16 == 0) {
#pragma unroll
        for (int i = 0; i < X_WORDS; i++) {
            raw[i] = load_once(p + i * 16);
        }
    } else if (there >= PER && at % 8 == 0) {
#pragma unroll
        for (int i = 0; i < X_WORDS * 4; i += 2) {
            const uint2 v = ((const uint2 *)p)[i / 2];
            w[i] = v.x;
            w[i + 1] = v.y;
        }
    } else if (there >= PER && at % 4 == 0) {
#pragma unroll
        for (int i = 0; i < X_WORDS * 4; i++) {
            w[i] = ((const u32 *)p)[i];
        }
#if X_FORMAT != 0
    } else if (there >= PER) { /* the first and the last by themselves */
        const u32 *const inner = (const u32 *)(p + 2);
        u32 before = (u32) * (const u16 *)p << 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 next = i < 3 ? inner[i] : *(const u16 *)(inner + i);
            w[i] = __funnelshift_r(before, next, 16);
            before = next;
        }
#endif
    } else {
#pragma unroll
        for (int i = 0; i < X_WORDS * 4; i++) {
#if X_FORMAT == 0
            w[i] = i < there ? ((const u32 *)p)[i] : 0;
#else
            w[i] = 2 * i < there ? ((const u16 *)p)[2 * i] : 0;
            w[i] |= 2 * i + 1 < there ? (u32)((const u16 *)p)[2 * i + 1] << 16 : 0;
#endif
        }
    }
}

/* ---- ranges ---- */

/* NaN does not count. Zero points need both ends, which include 0; the others the largest magnitude. */
struct range {
#if ASYMMETRIC
    float low;
#endif
    float high;
};

static __device__ inline range no_range()
{
    range r;
#if ASYMMETRIC
    r.low = 0.0f;
#endif
    r.high = 0.0f;
    return r;
}

static __device__ inline void widen_range(range *r, float v)
{
#if ASYMMETRIC
    r->low = fminf(r->low, v);
    r->high = fmaxf(r->high, v);
#else
    r->high = fmaxf(r->high, fabsf(v));
#endif
}

#if X_FORMAT == 1
#define PAIR_TYPE "f16x2"
#else
#define PAIR_TYPE "bf16x2"
#endif

/* The larger magnitudes of two pairs of 16 bits, their signs any; NaN does not count. */
static __device__ inline u32 larger_pair(u32 a, u32 b)
{
    u32 most;
#if __CUDA_ARCH__ >= 860
    asm("max.xorsign.abs." PAIR_TYPE " %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
#else
    asm("max." PAIR_TYPE " %0, %1, %2;" : "=r"(most) : "r"(a & 0x7fff7fffu), "r"(b & 0x7fff7fffu));
#endif
    return most;
}

/* The same, where one is NaN NaN. */
static __device__ inline u32 larger_pair_or_nan(u32 a, u32 b)
{
    u32 most;
#if __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs." PAIR_TYPE " %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
#else
    asm("max.NaN." PAIR_TYPE " %0, %1, %2;" : "=r"(most) : "r"(a & 0x7fff7fffu), "r"(b & 0x7fff7fffu));
#endif
    return most;
}

/* A lane's elements as loaded, of 16 bits by pairs. */
static __device__ inline void widen_by_lane(range *r, const uint4 *raw)
{
#if X_FORMAT == 0
    float v[PER];
    unpack(raw, v);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        widen_range(r, v[i]);
    }
#elif ASYMMETRIC
    const u32 words[4] = {raw->x, raw->y, raw->z, raw->w};
    u32 most = words[0], least = words[0];
#pragma unroll
    for (int i = 1; i < 4; i++) {
        asm("max." PAIR_TYPE " %0, %0, %1;" : "+r"(most) : "r"(words[i]));
        asm("min." PAIR_TYPE " %0, %0, %1;" : "+r"(least) : "r"(words[i]));
    }
    float v[4];
    widen(most, v);
    widen(least, v + 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        widen_range(r, v[i]);
    }
#else
    float v[2];
    widen(larger_pair(larger_pair(raw->x, raw->y), larger_pair(raw->z, raw->w)), v);
    widen_range(r, v[0]);
    widen_range(r, v[1]);
#endif
}

/* Over LANES neighbouring lanes, a power of two. */
static __device__ inline void reduce_lanes(range *r, int lanes)
{
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) {
#if ASYMMETRIC
        r->low = fminf(r->low, __shfl_xor_sync(0xffffffffu, r->low, step));
#endif
        r->high = fmaxf(r->high, __shfl_xor_sync(0xffffffffu, r->high, step));
    }
}

/* Over the whole block, a multiple of 32 threads. */
static __device__ inline void reduce_block(range *r)
{
    __shared__ range parts[32];
    reduce_lanes(r, 32);
    if (blockDim.x <= 32) {
        return;
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = *r;
    }
    __syncthreads();
    const unsigned int lane = threadIdx.x % 32;
    *r = lane < blockDim.x / 32 ? parts[lane] : no_range();
    reduce_lanes(r, 32);
}

/* Wait for the kernel before in the stream, then let the next one start its blocks: in the other order the blocks of
 * several kernels would wait together, in the place of those that work. */
static __device__ inline void begin_kernel()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* ---- codes ---- */

/* v / s, rounded correctly, for many v: a reciprocal within an ulp and one correction. */
struct divisor {
    float s, r;
};

static __device__ inline divisor divide_by(float s)
{
    divisor d;
    asm("rcp.approx.f32 %0, %1;" : "=f"(d.r) : "f"(s));
    d.r = __fmaf_rn(d.r, __fmaf_rn(-s, d.r, 1.0f), d.r);
    d.s = s;
    if (!(s < __int_as_float(0x7f800000))) { /* finite / infinite is 0, infinite / infinite NaN */
        d.r = 0.0f;
        d.s = 1.0f;
    }
    return d;
}

/* The signs make a negative zero stay one. */
static __device__ inline float quotient(float v, divisor d)
{
    const float q = v * d.r;
    const float exact = __fmaf_rn(-__fmaf_rn(q, d.s, -v), d.r, q);
#if BOUNDED
    return fabsf(q) < 1e30f ? exact : q; /* only a bound makes a scale smaller than its values ask for */
#else
    return exact;
#endif
}

/* most / limit, rounded correctly, limit a constant; for most too small for that the floors of scales decide. */
static __device__ inline float ratio(float most, float limit)
{
    const float r = 1.0f / limit, q = most * r;
    const float exact = __fmaf_rn(-__fmaf_rn(q, limit, -most), r, q);
    return most < __int_as_float(0x7f800000) ? exact : most;
}

/* Normal codes: add just under half of the last kept bit and the tie's parity. Subnormal ones: an
 * addition whose last bit is the step of the codes rounds. */
static __device__ inline u32 soft_code(float v, int mantissa, u32 bias, float magic, u32 most)
{
    const u32 bits = __float_as_uint(v), size = bits & 0x7fffffffu;
    const int drop = 23 - mantissa;
    const u32 normal = ((size + (1u << (drop - 1)) - 1 + (size >> drop & 1)) >> drop) - (bias << mantissa);
    const u32 tiny = __float_as_uint(fabsf(v) + magic) - __float_as_uint(magic);
    u32 code = size < (bias + 1) << 23 ? tiny : normal;
    code = code > most ? most : code;
    code |= bits >> 24 & 0x80;
    return size > 0x7f800000u ? 0x7fu : code;
}

/* Scale and zero point of a range for int8. */
struct zero_point {
    float scale;
    int azp;
};

#if ASYMMETRIC
static __device__ inline zero_point find_zero_point(range r)
{
    zero_point z;
    z.scale = (r.high - r.low) / 255.0f;
    z.azp = 0;
    if (z.scale == 0.0f) {
        z.scale = 1.0f;
    } else {
        const int azp = __float2int_rn(-128.0f - r.low / z.scale); /* NaN is 0 */
        z.azp = azp < -128 ? -128 : azp > 127 ? 127 : azp;
    }
    return z;
}
#endif

/* A value already divided, moved by its zero point; NaN is the zero point. */
static __device__ inline float with_zero_point(float t, int azp)
{
    return t == t ? fminf(fmaxf(rintf(t), -1e6f), 1e6f) + (float)azp : (float)azp;
}

/* Two codes of e4m3fn, the first in the low byte. */
#if HAS_FP8
static __device__ inline u32 two_e4m3(float a, float b)
{
    u16 codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
    return codes;
}
#else
static __device__ inline u32 two_e4m3(float a, float b)
{
    return soft_code(a, 3, 120, 16384.0f, 0x7e) | soft_code(b, 3, 120, 16384.0f, 0x7e) << 8;
}
#endif

/* Two codes, the first in the low byte. */
static __device__ inline u32 two_codes(float a, float b)
{
#if TYPE == 3
    int i, j;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(i) : "f"(a));
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(j) : "f"(b));
    return (u32)(i & 0xff) | (u32)(j & 0xff) << 8;
#elif TYPE == 1
    /* e4m3fnuz is e4m3fn of twice the value, without a negative zero; NaN is 0x80 */
    const u32 codes = two_e4m3(a * 2.0f, b * 2.0f);
    u32 i = codes & 0xff, j = codes >> 8;
    i = i == 0x7fu ? 0x80u : i == 0x80u ? 0u : i;
    j = j == 0x7fu ? 0x80u : j == 0x80u ? 0u : j;
    return i | j << 8;
#elif TYPE == 0
    return two_e4m3(a, b);
#elif HAS_FP8
    u16 codes;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
    return codes;
#else
    return soft_code(a, 2, 112, 128.0f, 0x7b) | soft_code(b, 2, 112, 128.0f, 0x7b) << 8;
#endif
}

/* A lane's PER codes of values already divided. */
static __device__ inline uint2 codes_of(const float *v)
{
    uint2 out;
    out.x = two_codes(v[0], v[1]) | two_codes(v[2], v[3]) << 16;
    out.y = two_codes(v[4], v[5]) | two_codes(v[6], v[7]) << 16;
    return out;
}

static __device__ inline void store_codes(char *q, const float *v)
{
    *(uint2 *)q = codes_of(v);
}

/* The same where rows start anywhere and `there` codes are left of one. */
static __device__ inline void store_loose(char *q, i64 there, const float *v)
{
    const uint2 out = codes_of(v);
    const u32 at = (u32)(u64)q;
    if (there >= PER && at % 8 == 0) {
        *(uint2 *)q = out;
    } else if (there >= PER && at % 4 == 0) {
        ((u32 *)q)[0] = out.x;
        ((u32 *)q)[1] = out.y;
    } else if (there >= PER && at % 2 == 0) {
        *(u16 *)q = (u16)out.x;
        *(u32 *)(q + 2) = __funnelshift_r(out.x, out.y, 16);
        *(u16 *)(q + 6) = (u16)(out.y >> 16);
    } else if (there >= PER) {
        const int odd = at % 4 == 1; /* 1, 2, 4 and 1 bytes, or 1, 4, 2 and 1 */
        *q = (char)out.x;
        *(u16 *)(q + (odd ? 1 : 5)) = (u16)(odd ? out.x >> 8 : out.y >> 8);
        *(u32 *)(q + (odd ? 3 : 1)) = odd ? __funnelshift_r(out.x, out.y, 24) : __funnelshift_r(out.x, out.y, 8);
        q[7] = (char)(out.y >> 24);
    } else {
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (i < there) {
                q[i] = (char)((i < 4 ? out.x : out.y) >> i % 4 * 8);
            }
        }
    }
}

#endif
