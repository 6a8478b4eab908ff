/* y = x w^T for one row of x by partial sums: aqlm with codebooks of 256 entries of VECTOR elements along K. A block
 * keeps the products of entries with the vectors of x of a slab of K, four tables of 256 a lane: the lane loads a word
 * of codes, four neighbouring ones of a row of w, and looks each up in a table of its own. A table's entry e of lane l
 * is at bank l whatever e is, so no access conflicts, and its address is made by one byte permutation. Sums of ROWS
 * rows are then exchanged so that each lane adds up one row.
 *
 * Tables are made by tf32 products (16-bit numbers are exact in them, x of f32 is taken in two parts): the vectors of x
 * are the 16-row operand, entries the 8-column one, which a warp keeps in registers. A thread's sums are those of four
 * banks times two entries; it stores them in an order turned by its place in the quad, so that no two threads of a warp
 * meet in a bank.
 *
 * CLUSTER above 1: the blocks of a cluster share rows and take slabs in turn. What a block found of a batch of rows
 * goes to the shared memory of the one that ends it while later batches are looked up; there it is added in order of
 * rank: one launch. CLUSTER 1: a block a slab, parts are added by qn_vq_finish.
 *
 * Host contract
 *   Parameters: BOOKS 1, 2 or 4; VECTOR, at most 16; X_FORMAT, BOOK_FORMAT; ROWS 16 or 32; CLUSTER; where it is above
 *   1: OUT, BIAS (format + 1, 0: none), SCALE_FORMAT (format + 1)
 *   codes: rows of groups * BOOKS bytes at multiples of 4, codebooks without gaps at multiples of 16; groups * BOOKS a
 *   multiple of 4; a row's step below 2^31
 *   Launch: block 512, grid {groups of rows * CLUSTER} or {groups of rows, slabs}; QN_VQ_SUMS_SHARED bytes and, in
 *   clusters, 16, 8 for each row of the largest group and 4 for each of CLUSTER * ROWS; not more clusters than slabs */
#include "vq_parts.h"

#define THREADS 512
#define WARPS (THREADS / 32)
#define EACH (4 / BOOKS) /* vectors of x a lane */
#define TABLE(b) (((b) / 2) * 65536 + ((b) % 2) * 128)
#define BLOCKS (256 / 8 / WARPS) /* of eight entries of a book, a warp */
#define DEPTH ((VECTOR + 7) / 8) /* products along a vector */
#define SPLIT (X_FORMAT == QN_MM_F32 ? 2 : 1)
#define X_AHEAD                                                                                                        \
    (ROWS == 16 && VECTOR <= 8 &&                                                                                      \
     X_FORMAT != QN_MM_F32) /* x of the slab after is loaded early where registers hold it */
#define EARLY_LINES 3       /* rows' codes that a thread asks for before the kernel in front is done */

extern __shared__ __align__(256) u8 tables[];

DEV u32 tf32_of(float v)
{
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return bits;
}

DEV void multiply(float *sum, const u32 *a, const u32 *b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Of the vectors of x of a slab: vector v of lane 8 q + g for q even (rows g) and odd (rows g + 8). */
struct slab_rows {
    float value[EACH][2][DEPTH][4];
};

DEV void load_slab(const qn_cuda_vq &a, int slab, int lane, slab_rows &x)
{
#pragma unroll
    for (int v = 0; v < EACH; v++) {
#pragma unroll
        for (int i = 0; i < 4; i++) { /* eight lanes at a time */
            const int group = (slab * 32 + 8 * i + lane / 4) * EACH + v;
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int j = 8 * d + 4 * half + lane % 4;
                    x.value[v][i / 2][d][i % 2 + 2 * half] =
                        j < VECTOR && group < a.groups ? load_float(a.x, (i64)group * VECTOR + j, X_FORMAT) : 0.0f;
                }
            }
        }
    }
}

/* The warp's entries of all books, its share of each, as they are in memory: nothing waits for them yet. */
DEV void load_entries(const qn_cuda_vq &a, int warp, int lane, u32 (*entries)[BLOCKS][DEPTH][2])
{
#pragma unroll
    for (int c = 0; c < BOOKS; c++) {
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            const int entry = c * 256 + (i * WARPS + warp) * 8 + lane / 4;
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int j = 8 * d + 4 * half + lane % 4;
                    const i64 at = (i64)entry * VECTOR + j;
                    entries[c][i][d][half] = 0;
                    if (j < VECTOR) {
#if BOOK_FORMAT == QN_MM_F32
                        asm volatile("ld.global.nc.u32 %0, [%1];"
                                     : "=r"(entries[c][i][d][half])
                                     : "l"(a.books + at * 4));
#else
                        u16 bits;
                        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(a.books + at * 2));
                        entries[c][i][d][half] = bits;
#endif
                    }
                }
            }
        }
    }
}

DEV float either(int second, float a, float b)
{
    return second ? b : a;
}

/* Table b = vector * BOOKS + book of the vectors of x of the lanes' words. */
DEV void build(const slab_rows &x, const u32 (*entries)[BLOCKS][DEPTH][2], u32 tables, int warp, int lane)
{
    const int t = lane % 4;
    u32 place[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        place[i] = tables + (u32)((warp * 8 + 2 * t) * 256 + (t + i) % 4 * 32 + lane / 4 * 4);
    }
#pragma unroll
    for (int v = 0; v < EACH; v++) {
        u32 rows[SPLIT][2][DEPTH][4];
#pragma unroll
        for (int p = 0; p < 2 * DEPTH * 4; p++) {
            const float value = x.value[v][p / (4 * DEPTH)][p / 4 % DEPTH][p % 4];
            u32 *const to = &rows[0][p / (4 * DEPTH)][p / 4 % DEPTH][p % 4];
            *to = tf32_of(value);
#if X_FORMAT == QN_MM_F32
            rows[1][p / (4 * DEPTH)][p / 4 % DEPTH][p % 4] = tf32_of(value - __uint_as_float(*to));
#endif
        }
#pragma unroll
        for (int c = 0; c < BOOKS; c++) {
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                float sum[2][4] = {};
#pragma unroll
                for (int s = SPLIT - 1; s >= 0; s--) {
#pragma unroll
                    for (int d = 0; d < DEPTH; d++) {
                        const u32 pair[2] = {tf32_of(load_float((const char *)&entries[c][i][d][0], 0, BOOK_FORMAT)),
                                             tf32_of(load_float((const char *)&entries[c][i][d][1], 0, BOOK_FORMAT))};
                        multiply(sum[0], rows[s][0][d], pair);
                        multiply(sum[1], rows[s][1][d], pair);
                    }
                }
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float one[4], turned[4];
#pragma unroll
                    for (int q = 0; q < 4; q++) {
                        one[q] = either(t & 1, sum[q / 2][q % 2 * 2 + e], sum[(q + 1) % 4 / 2][(q + 1) % 2 * 2 + e]);
                    }
#pragma unroll
                    for (int q = 0; q < 4; q++) {
                        turned[q] = either(t & 2, one[q], one[(q + 2) % 4]);
                        store_shared_f32(place[q] + (u32)(TABLE(v * BOOKS + c) + i * WARPS * 8 * 256 + e * 256),
                                         turned[q]);
                    }
                }
            }
        }
    }
}

/* Of 2 HALF rows a lane keeps HALF, those whose number has its own bit there. */
#define EXCHANGE(HALF)                                                                                                 \
    _Pragma("unroll") for (int i = 0; i < HALF; i++)                                                                   \
    {                                                                                                                  \
        const int upper = lane & HALF;                                                                                 \
        const float send = upper ? sum[i] : sum[i + HALF], keep = upper ? sum[i + HALF] : sum[i];                      \
        sum[i] = keep + __shfl_xor_sync(~0u, send, HALF);                                                              \
    }

DEV void load_word(u32 *word, const char *at)
{
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(*word) : "l"(at));
}

/* One addition after another: products of rows would fill the registers. */
DEV const char *next_row(const char *at, i64 step)
{
    asm volatile("add.s64 %0, %0, %1;" : "+l"(at) : "l"(step));
    return at;
}

DEV void prefetch(const char *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Words of a batch, `left` rows of which are there; others stay, and serve nobody. */
DEV void load_rows(const char *at, i64 step, int left, u32 *words)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r < left) {
            load_word(&words[r], at);
        }
        at = next_row(at, step);
    }
}

/* The first rows' codes of a slab: batches of ROWS are the warps' in turn. */
DEV void load_batch(const qn_cuda_vq &a, const char *codes, int batch, int last, u32 *next)
{
    const char *const at = codes + (i64)batch * ROWS * a.codes_row;
    load_rows(at, a.codes_row, batch < last ? a.n - batch * ROWS : 0, next);
}

DEV const char *codes_of(const qn_cuda_vq &a, int slab, int lane)
{
    const int word = slab * 32 + lane;
    return a.codes + (i64)(word < a.groups * BOOKS / 4 ? word : 0) * 4;
}

/* Batches of ROWS rows are dealt to parts. */
DEV int first_batch(const qn_cuda_vq &a, int part, int parts)
{
    return (int)((i64)((a.n + ROWS - 1) / ROWS) * part / parts);
}

#if CLUSTER > 1
/* The blocks of a cluster end its batches in turn. Behind the tables: a barrier, what all found of the batches that
 * this block ends, [batch][rank][ROWS], and the sums of its slabs so far, [batch][ROWS]. */
#define MEETING_AT QN_VQ_SUMS_SHARED
#define FOUND_AT (MEETING_AT + 16)

/* How many of a cluster's batches a block ends. */
DEV int ended_by(u32 rank, int batches)
{
    return (batches - (int)rank + CLUSTER - 1) / CLUSTER;
}

DEV void begin_meeting(int batches)
{
    if (threadIdx.x == 0) {
        const u32 bar = shared_address(tables) + MEETING_AT;
        barrier_init(bar, 1);
        barrier_init_fence();
        barrier_arrive_expect(bar, (u32)(ended_by(cluster_rank(), batches) * (CLUSTER * ROWS * 4)));
    }
    cluster_arrive_relaxed();
}

DEV float *sums_so_far(int batches)
{
    return (float *)(tables + FOUND_AT) + ended_by(0, batches) * (CLUSTER * ROWS);
}

/* A row's sum over this block's slabs to the block that ends the batch. */
DEV void send(int batch, int row, float v)
{
    const u32 owner = (u32)batch % CLUSTER, base = shared_address(tables);
    const u32 at = ((u32)batch - owner + cluster_rank()) * ROWS + (u32)row;
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                     cluster_address(base + FOUND_AT + at * 4, owner)),
                 "f"(v), "r"(cluster_address(base + MEETING_AT, owner))
                 : "memory");
}

/* Results of the batches that this block ends. */
DEV void end_meeting(const qn_cuda_vq &a, int first, int last)
{
    const u32 rank = cluster_rank();
    const int batches = last - first;
    for (int i = (int)threadIdx.x; i < ended_by(rank, batches) * ROWS; i += THREADS) {
        const int slot = i / ROWS, n = (first + slot * CLUSTER + (int)rank) * ROWS + i % ROWS, there = n < a.n;
        const float *const found = (const float *)(tables + FOUND_AT) + slot * (CLUSTER * ROWS) + i % ROWS;
        float scale = 1.0f, bias = 0.0f;
#if SCALE_FORMAT
        scale = there ? load_float(a.scales + (i64)n * a.scales_row, 0, SCALE_FORMAT - 1) : 0.0f;
#endif
#if BIAS
        bias = there ? load_float(a.bias, n, BIAS - 1) : 0.0f;
#endif
        barrier_wait(shared_address(tables) + MEETING_AT, 0);
        float sum = found[0];
#pragma unroll
        for (int r = 1; r < CLUSTER; r++) {
            sum += found[r * ROWS];
        }
        if (there) {
            store_float(a.y, n, __fadd_rn(__fmul_rn(sum, scale), bias), OUT);
        }
    }
}
#endif

/* Look up the codes of a batch and, where all rows of the next are there (`whole`), load those, from `from` on. Returns
 * the sum of row lane % ROWS. */
DEV float look_up(u32 *next, const char *from, i64 step, int whole, int lane)
{
    const u32 base = shared_address(tables), mine = (u32)lane * 4;
    float sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const u32 w = next[r];
        /* byte b of the codes above the lane's four bits of place */
        const float s0 = load_shared_f32(base + TABLE(0) + __byte_perm(w, mine, 0x7704));
        const float s1 = load_shared_f32(base + TABLE(1) + __byte_perm(w, mine, 0x7714));
        const float s2 = load_shared_f32(base + TABLE(2) + __byte_perm(w, mine, 0x7724));
        const float s3 = load_shared_f32(base + TABLE(3) + __byte_perm(w, mine, 0x7734));
        if (whole) {
            load_word(&next[r], from);
        }
        from = next_row(from, step);
        sum[r] = (s0 + s1) + (s2 + s3);
    }
#if ROWS == 32
    EXCHANGE(16)
#endif
    EXCHANGE(8)
    EXCHANGE(4)
    EXCHANGE(2)
    EXCHANGE(1)
#if ROWS == 16
    sum[0] += __shfl_xor_sync(~0u, sum[0], 16);
#endif
    return sum[0];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_vq_sums(const __grid_constant__ qn_cuda_vq a)
{
    const int lane = (int)threadIdx.x % 32, warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0); /* the same register */
    const int slabs = (a.groups * BOOKS / 4 + 31) / 32;
#if CLUSTER > 1
    const int part = (int)blockIdx.x / CLUSTER, parts = (int)gridDim.x / CLUSTER, step = CLUSTER;
    int slab = (int)cluster_rank();
#else
    const int part = (int)blockIdx.x, parts = (int)gridDim.x, step = (int)gridDim.y;
    int slab = (int)blockIdx.y;
#endif
    const int first = first_batch(a, part, parts), last = first_batch(a, part + 1, parts);
    const u32 base = shared_address(tables);
    u32 next[ROWS] = {}, entries[BOOKS][BLOCKS][DEPTH][2];
    slab_rows x;
    release_next();
#if CLUSTER > 1
    begin_meeting(last - first);
#endif
    if (a.early && slab < slabs) { /* weights stay: they may be read while the kernel in front works */
        load_entries(a, warp, lane, entries);
        load_batch(a, codes_of(a, slab, lane), first + warp, last, next);
        const char *const line = codes_of(a, slab, 0);
        for (int i = 0; i < EARLY_LINES; i++) {
            const int n = (first + WARPS) * ROWS + i * THREADS + (int)threadIdx.x;
            if (n < last * ROWS && n < a.n) {
                prefetch(line + (i64)n * a.codes_row);
            }
        }
    }
    wait_before();
    if (!a.early && slab < slabs) {
        load_entries(a, warp, lane, entries);
        load_batch(a, codes_of(a, slab, lane), first + warp, last, next);
    }
    if (X_AHEAD && slab < slabs) {
        load_slab(a, slab, lane, x);
    }
#pragma unroll 1
    for (; slab < slabs; slab += step) {
        const char *const codes = codes_of(a, slab, lane);
        const char *const after = codes_of(a, slab + step < slabs ? slab + step : slab, lane);
        if (!X_AHEAD) {
            load_slab(a, slab, lane, x);
        }
        build(x, entries, base, warp, lane);
        __syncthreads();
#if CLUSTER > 1
        if (slab < CLUSTER) {
            cluster_wait(); /* the other blocks' barriers are there */
        }
#endif
        if (X_AHEAD && slab + step < slabs) {
            load_slab(a, slab + step, lane, x);
        }
#pragma unroll 1
        for (int batch = first + warp; batch < last; batch += WARPS) {
            /* the next codes: of the batch after, or the first of the slab after */
            const int over = batch + WARPS >= last, ahead = over ? first + warp : batch + WARPS;
            const char *const from = (over ? after : codes) + (i64)ahead * ROWS * a.codes_row;
            const int left = over && slab + step >= slabs ? 0 : a.n - ahead * ROWS;
            const float found = look_up(next, from, a.codes_row, left >= ROWS, lane);
            if (left < ROWS) {
                load_rows(from, a.codes_row, left, next);
            }
            if (lane < ROWS) {
#if CLUSTER > 1
                float *const total = sums_so_far(last - first) + (batch - first) * ROWS + lane;
                const float sum = slab < CLUSTER ? found : *total + found;
                if (slab + step < slabs) {
                    *total = sum;
                } else {
                    send(batch - first, lane, sum);
                }
#else
                if (batch * ROWS + lane < a.n) {
                    a.parts[(i64)blockIdx.y * a.n + batch * ROWS + lane] = found;
                }
#endif
            }
        }
        if (slab + step < slabs) {
            __syncthreads();
        }
    }
#if CLUSTER > 1
    int again; /* found again: registers are few */
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(again));
    end_meeting(a, first_batch(a, again / CLUSTER, parts), first_batch(a, again / CLUSTER + 1, parts));
#endif
}
