/* y = x w^T for one or two rows of x and E8P12 weights, in exact integers on tensor cores: weights are byte operand
 * registers of m16n8k32, and the columns of the other operand are digits of x, four a row.
 *
 * 4 w + 15 is twice a nibble: three bits of 2 |w -+ 1/4| with its sign, which an exclusive-or of all three negates, and
 * one that is set where 1/4 is added. A point is one access of 4 bytes, to a table that has each entry both ways in 32
 * copies. Even nibbles are the bytes of one operand register, odd ones, 16 times as much, of another: x of the former
 * is multiplied by 16 in front. What the 15 are too much is the same for all rows of w.
 *
 * A warp's lane owns two groups of each 64 columns; product 2 j + i of a span takes group i of the jth. Digits are made
 * by the warp that needs them: x = scale * (d0 + 256 d1 + 65536 d2 + ...) with one power of two for a span of 256
 * elements.
 *
 * PLANES 2: weights are points and a part of others, E8P12RVQ4B. Spans of the others come behind the points' own, as
 * often as x has spans, and what digits of x are to be multiplied by has the part.
 *
 * A block has `tiles` tiles of 16 rows of w and all of K: its units, TILES tiles of a span, are dealt to the warps by
 * spans, and what they find is added up in order of warps. So there are no parts, and nothing depends on M.
 *
 * TURNED 1: each block transforms x in front (vq_turn.h), while codes are on their way. FUSED 1: so too, and the blocks
 * of one cluster have all rows and transform y behind.
 *
 * Host contract
 *   Parameters: PLANES 1 or 2, TURNED, FUSED, X_FORMAT, TILES 1 or 2; OUT, BIAS, WSCALE_FORMAT (format + 1, 0: none).
 *   TURNED 1: SU_FORMAT, WH_FORMAT. FUSED 0: RAW 1 leaves the sums in a.total. FUSED 1: TURNED 1, CLUSTER, SV_FORMAT
 *   a.spans: PLANES times those of x. K a multiple of 64; rows of Qidxs at multiples of 8, PLANES 1: without gaps
 *   Launch: block 512, grid {ceil(N / 16 / tiles)}, or {CLUSTER}, tiles not below N / 16 / CLUSTER;
 *   qn_cuda_vq_points_bytes of shared memory */
#define THREADS 512
#include "vq_points.h"
#include "vq_turn.h"

#define WARPS (THREADS / 32)
#define DIGIT_BYTES (2 * 4 * DIGIT_PITCH)
#define ROWS_OF_X 2

extern __shared__ __align__(128) u8 memory[];

/* The span of x that a span of codes is multiplied by. */
DEV int span_of_x(const qn_cuda_vq &a, int span)
{
    return PLANES == 1 || span < a.spans / 2 ? span : span - a.spans / 2;
}

/* Where the lane's codes of each 64 columns of a span are from a tile's first on. */
DEV void find_blocks(const qn_cuda_vq &a, int span, int lane, i64 *at)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
#if PLANES == 1
        at[j] = (i64)span * 1024 + j * 256 + lane * 8;
#else
        const u32 columns = (u32)a.k / 32, word = (u32)(span_of_x(a, span) * 128 + j * 32 + lane);
        const u32 row = __umulhi(word, ~0u / columns + 1); /* word / columns: both are below 2^16 */
        at[j] = row * a.codes_row + (i64)(word - row * columns + (span < a.spans / 2 ? 0 : columns)) * 8;
#endif
    }
}

/* Magnitudes and signs of a span of TILES tiles of 16 rows, four points a lane in each 64 columns. Past K, where x has
 * zeros, and of rows that there are not, whose sums nobody reads, codes may be anything. */
DEV void load_codes(const qn_cuda_vq &a, int tile, int end, int span, int lane, u32 (*codes)[2][4])
{
    const int blocks = min(a.k / 64 - span_of_x(a, span) * 4, 4);
    const i64 step = 16 * a.codes_row;
    const char *from = a.codes + tile * step;
    i64 at[4];
    find_blocks(a, span, lane, at);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (blocks == 4) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                load_block(from + at[j], codes[t], j);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 3; j++) {
                if (j < blocks) {
                    load_block(from + at[j], codes[t], j);
                }
            }
        }
        from += tile + t + 1 < end ? step : 0;
    }
}

/* ---- a unit ---- */

/* part[row] += of TILES tiles and a span. scale, excess: of the row of x whose digits this lane's sums are of, the
 * latter in front of the scale; keeps: whether the lane is the one of its pair that adds. */
DEV void unit(u32 entry, u32 (*codes)[2][4], u32 digits, float scale, float excess, int keeps, int lane, float *part)
{
    const u32 x = digits + (u32)(lane / 4) * DIGIT_PITCH + (u32)(lane % 4) * 8; /* zeros where no second row is */
    int sums[TILES][4] = {};
    unit_sums(entry, codes, x, sums, [] {});
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        float v[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float low = (float)sums[tile][2 * half], high = (float)sums[tile][2 * half + 1];
            v[half] = __fmaf_rn(high, 256.0f, low) * (lane & 1 ? 65536.0f : 1.0f);
            v[half] = v[half] + __shfl_xor_sync(~0u, v[half], 1) - excess;
        }
        if (keeps) {
            float2 *const to = (float2 *)(part + 16 * tile) + lane / 4;
            *to = make_float2(__fmaf_rn(v[0], scale, to->x), __fmaf_rn(v[1], scale, to->y));
        }
    }
}

#if TURNED

/* Behind the parts: a row in front of its transform, rows behind it; FUSED: what the block found, the bases' signs. */
struct turned_rows {
    float *before, *after, *found;
    u32 *signs, *signs_out;
    int longest, rows;
};

DEV turned_rows turned_rows_at(const qn_cuda_vq &a, const qn_cuda_turn &in, float *at, int rows)
{
    turned_rows f;
    f.longest = FUSED ? max(a.k, a.n) : a.k;
    f.rows = rows;
    f.before = at;
    f.after = at + f.longest;
    f.found = f.after + a.m * f.longest;
    f.signs = (u32 *)(f.found + (FUSED ? a.m * rows : 0));
    f.signs_out = f.signs + in.base * TURN_WORDS(in.base);
    return f;
}

#if FUSED
/* turn_row of what is so far behind `memory`. Not inlined: long, and twice in the kernel. */
static __device__ __noinline__ void turn_within(int base, int columns, u32 from, u32 to, u32 signs)
{
    turn_row(qn_cuda_turn{base}, (const float *)(memory + from), (float *)(memory + to), columns,
             (const u32 *)(memory + signs));
}

DEV void transform(const qn_cuda_turn &t, const float *from, float *to, const u32 *signs)
{
    turn_within(t.base, t.fast, (u32)((const u8 *)from - memory), (u32)((u8 *)to - memory),
                (u32)((const u8 *)signs - memory));
}
#else
DEV void transform(const qn_cuda_turn &t, const float *from, float *to, const u32 *signs)
{
    turn_row(t, from, to, t.fast, signs);
}
#endif

/* Rows of x are transformed, but for their scale. */
DEV void transform_x(const qn_cuda_vq &a, const qn_cuda_turn &in, const turned_rows &f)
{
    for (int m = 0; m < a.m; m++) {
        __syncthreads();
#pragma unroll 1
        for (int k = (int)threadIdx.x * 8; k < a.k; k += THREADS * 8) {
            float v[8], by[8];
            load_eight(a.x + (i64)m * a.x_row, k, a.k, X_FORMAT, v);
            load_eight(a.su, k, a.k, SU_FORMAT - 1, by);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                v[e] *= by[e];
            }
#if WH_FORMAT
            load_eight(a.scale_wh, k, a.k, WH_FORMAT - 1, by);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                v[e] /= by[e];
            }
#endif
            *(float4 *)(f.before + k) = make_float4(v[0], v[1], v[2], v[3]);
            *(float4 *)(f.before + k + 4) = make_float4(v[4], v[5], v[6], v[7]);
        }
        __syncthreads();
        transform(in, f.before, f.after + m * f.longest, f.signs);
    }
}

#endif

#if FUSED

/* What all blocks found is transformed by each, which stores its share of y. */
DEV void transform_y(const qn_cuda_vq &a, const qn_cuda_turn &out, const turned_rows &f)
{
    const u32 of_block = shared_address(f.found);
#if WSCALE_FORMAT
    const float wscale = load_float(a.wscale, 0, WSCALE_FORMAT - 1);
#endif
    const int share0 = a.n * (int)blockIdx.x / CLUSTER, share1 = a.n * ((int)blockIdx.x + 1) / CLUSTER;
    const u32 rows = (u32)f.rows, block0 = threadIdx.x / rows, row0 = threadIdx.x % rows;
    const u32 blocks = THREADS / rows, over = THREADS % rows; /* from one of a thread's rows to the next */
    cluster_arrive();
    cluster_wait();
    for (int m = 0; m < a.m; m++) {
        u32 block = block0, row = row0;
        __syncthreads();
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < a.n; i += THREADS) {
            asm volatile("ld.shared::cluster.f32 %0, [%1];"
                         : "=f"(f.before[i])
                         : "r"(cluster_address(of_block + ((u32)m * rows + row) * 4, block))
                         : "memory");
            row += over;
            block += blocks + (row >= rows);
            row -= row >= rows ? rows : 0;
        }
        __syncthreads();
        transform(out, f.before, f.after, f.signs_out);
        __syncthreads();
#pragma unroll 1
        for (int i = share0 + (int)threadIdx.x; i < share1; i += THREADS) {
            float v = f.after[i] * out.scale * load_float(a.sv, i, SV_FORMAT - 1);
#if WSCALE_FORMAT
            v *= wscale;
#endif
#if BIAS
            v += load_float(a.bias, i, BIAS - 1);
#endif
            store_float(a.y + (i64)m * a.y_row, i, v, OUT);
        }
    }
    cluster_arrive_relaxed(); /* nobody leaves while its memory is read */
    cluster_wait();
}

#else

DEV void store_sum(const qn_cuda_vq &a, int m, int n, float sum)
{
#if RAW
    a.total[(i64)m * a.n + n] = sum;
#else
#if WSCALE_FORMAT
    sum *= load_float(a.wscale, 0, WSCALE_FORMAT - 1);
#endif
#if BIAS
    sum += load_float(a.bias, n, BIAS - 1);
#endif
    store_float(a.y + (i64)m * a.y_row, n, sum, OUT);
#endif
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_vq_points(const __grid_constant__ qn_cuda_vq a, const __grid_constant__ qn_cuda_turn in,
                 const __grid_constant__ qn_cuda_turn out)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int first = (int)blockIdx.x * a.tiles, end = min(first + a.tiles, a.n / 16);
    const int rows = (a.tiles + TILES - 1) / TILES * TILES * 16; /* of sums: units are whole */
    const int groups = max((end - first + TILES - 1) / TILES, 0), units = groups * a.spans;
    int at = units * warp / WARPS;
    const int last = units * (warp + 1) / WARPS;
    const u32 digits = shared_address(memory) + TABLE_BYTES + (u32)warp * DIGIT_BYTES;
    float *const parts = (float *)(memory + TABLE_BYTES + WARPS * DIGIT_BYTES); /* [warp][m][rows] */
    float *const mine = parts + warp * a.m * rows;
    int span = groups > 0 ? at / groups : 0, group = groups > 0 ? at % groups : 0, made = -1;
    u32 next[TILES][2][4] = {};
    release_next();
    if (a.early && at < last) { /* weights stay: they may be read while the kernel in front works */
        load_codes(a, first + group * TILES, end, span, lane, next);
    }
    fill(shared_address(memory));
#pragma unroll 1
    for (int i = lane; i < DIGIT_BYTES / 4; i += 32) {
        store_shared_i32(digits + (u32)i * 4, 0);
    }
#pragma unroll 1
    for (int i = lane; i < a.m * rows; i += 32) {
        mine[i] = 0.0f;
    }
#if TURNED
    const turned_rows turned = turned_rows_at(a, in, parts + WARPS * a.m * rows, rows);
    if (a.early) {
        turn_prefetch(a.su, a.k, SU_FORMAT - 1, 0, 1);
    }
#endif
#if FUSED
    turn_signs(in, turned.signs);
    turn_signs(out, turned.signs_out);
    if (a.early) {
        turn_prefetch(a.sv, a.n, SV_FORMAT - 1, 0, 1);
    }
#endif
    wait_before();
#if TURNED
    transform_x(a, in, turned);
#endif
    __syncthreads();
    if (!a.early && at < last) {
        load_codes(a, first + group * TILES, end, span, lane, next);
    }
    float scale = 0.0f, excess = 0.0f;
    const int keeps = lane % 2 == 0 && lane % 4 / 2 < a.m;
    const u32 entry = entry_of_lane(memory, lane);
#if !TURNED
    float ahead[ROWS_OF_X][8];
#pragma unroll
    for (int m = 0; m < ROWS_OF_X; m++) {
        load_eight(a.x + (i64)m * a.x_row, span_of_x(a, span) * QN_VQ_SPAN + lane * 8,
                   m < a.m && at < last ? a.k : 0, X_FORMAT, ahead[m]);
    }
#endif
#pragma unroll 1
    for (; at < last; at++) {
        u32 codes[TILES][2][4];
        const int over = group + 1 == groups, span_after = span + over, group_after = over ? 0 : group + 1;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                codes[tile][i / 4][i % 4] = next[tile][i / 4][i % 4];
            }
        }
        if (at + 1 < last) {
            load_codes(a, first + group_after * TILES, end, span_after, lane, next);
        }
        if (made != span) {
            made = span;
            __syncwarp();
#pragma unroll
            for (int m = 0; m < ROWS_OF_X; m++) {
                if (m < a.m) {
#if TURNED
                    float v[8];
                    const int k = span_of_x(a, span) * QN_VQ_SPAN + lane * 8;
#pragma unroll
                    for (int e = 0; e < 8; e += 4) {
                        const float4 part = k < a.k ? *(const float4 *)(turned.after + m * turned.longest + k + e)
                                                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                        v[e] = part.x * in.scale, v[e + 1] = part.y * in.scale;
                        v[e + 2] = part.z * in.scale, v[e + 3] = part.w * in.scale;
                    }
#else
                    float *const v = ahead[m];
#endif
                    float all;
                    const float of_row = put_digits(v, largest_of(v), digits + (u32)m * (4 * DIGIT_PITCH), lane, &all);
                    if (lane % 4 / 2 == m) {
                        scale = 0.03125f * of_row; /* of sums of nibbles times 16 x */
#if PLANES == 2
                        scale *= span < a.spans / 2 ? 1.0f : a.resid_inverse;
#endif
                        excess = 120.0f * all;
                    }
#if !TURNED
                    load_eight(a.x + (i64)m * a.x_row, span_of_x(a, span + 1) * QN_VQ_SPAN + lane * 8, a.k, X_FORMAT,
                               v);
#endif
                }
            }
            __syncwarp();
        }
        unit(entry, codes, digits, scale, excess, keeps, lane,
             mine + (keeps ? lane % 4 / 2 * rows : 0) + group * (16 * TILES));
        span = span_after;
        group = group_after;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < a.m * rows; i += THREADS) {
        float sum = parts[i];
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            sum += parts[w * a.m * rows + i];
        }
#if FUSED
        turned.found[i] = sum;
#else
        const int m = i / rows, n = first * 16 + i % rows;
        if (n < end * 16) {
            store_sum(a, m, n, sum);
        }
#endif
    }
#if FUSED
    transform_y(a, out, turned);
#endif
}
