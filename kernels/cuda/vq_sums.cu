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
 * Each warp has a ring of SLOTS buffers, the codes of ROWS rows each, which the copy engine fills; where rows of codes
 * are not at multiples of 16, or there is none, copies of 4 bytes do.
 *
 * CLUSTER above 1: the blocks of a cluster share rows and take slabs in turn. What a block found of a batch of rows
 * goes to the shared memory of the one that ends it while later batches are looked up; there it is added in order of
 * rank: one launch. CLUSTER 1: a block a slab, parts are added by qn_vq_finish.
 *
 * Host contract
 *   Parameters: BOOKS 1, 2 or 4; VECTOR, at most 16; X_FORMAT, BOOK_FORMAT; SLOTS; CLUSTER; where it is above 1: OUT,
 *   BIAS (format + 1, 0: none), SCALE_FORMAT (format + 1)
 *   codes: rows of groups * BOOKS bytes at multiples of 4, codebooks without gaps at multiples of 16; groups * BOOKS a
 *   multiple of 4; a row's step below 2^31. mapped: a map of their bytes, boxes of ROWS rows of 128
 *   Launch: block 512, grid {groups of rows * CLUSTER} or {groups of rows, slabs}; QN_VQ_SUMS_SHARED bytes, for each of
 *   16 SLOTS 8 and ROWS * 128 and, in clusters, 16, 8 for each row of the largest group and 4 for each of CLUSTER *
 *   ROWS; not more clusters than slabs */
#include "vq_parts.h"

#define THREADS 512
#define WARPS (THREADS / 32)
#define EACH (4 / BOOKS) /* vectors of x a lane */
#define TABLE(b) (((b) / 2) * 65536 + ((b) % 2) * 128)
#define BESIDE (BOOKS > 1 ? 2 : 1)     /* books whose entries are columns of the same products */
#define COLUMNS (8 / BESIDE)           /* of a book */
#define BLOCKS (256 / COLUMNS / WARPS) /* of so many entries, a warp */
#define DEPTH ((VECTOR + 7) / 8)       /* products along a vector */
#define SPLIT (X_FORMAT == QN_MM_F32 ? 2 : 1)
#define X_AHEAD (VECTOR <= 8 && X_FORMAT != QN_MM_F32) /* x of the slab after is loaded early: registers hold it */
#define ROWS 16                                        /* a batch */
#define SLOT_BYTES (ROWS * 128)
#define RING_AT QN_VQ_SUMS_SHARED /* [WARPS][SLOTS] */
#define BARRIERS_AT (RING_AT + WARPS * SLOTS * SLOT_BYTES)
#define MEETING_AT (BARRIERS_AT + WARPS * SLOTS * 8)

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

/* Two neighbouring elements of a vector as they are in memory, zeros beyond it. */
template <int format> struct two {
    u32 word[format == QN_MM_F32 ? 2 : 1];
};

template <int format> DEV two<format> load_two(const char *vector, int j, bool words)
{
    two<format> v = {};
    if (format != QN_MM_F32 && words) {
        v.word[0] = j < VECTOR ? *(const u32 *)(vector + j * 2) : 0;
        return v;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (j + h < VECTOR && format == QN_MM_F32) {
            v.word[format == QN_MM_F32 ? h : 0] = ((const u32 *)vector)[j + h];
        } else if (j + h < VECTOR) {
            v.word[0] |= (u32)((const u16 *)vector)[j + h] << 16 * h;
        }
    }
    return v;
}

template <int format> DEV float element_of(const two<format> &v, int h)
{
    if (format == QN_MM_F32) {
        return __uint_as_float(v.word[format == QN_MM_F32 ? h : 0]);
    }
    const u32 bits = h ? v.word[0] >> 16 : v.word[0] & 0xffff;
    return format == QN_MM_F16 ? half_float(bits) : __uint_as_float(bits << 16);
}

/* As an operand; 16 bits are exact. */
template <int format> DEV u32 operand_of(float v)
{
    return format == QN_MM_F32 ? tf32_of(v) : __float_as_uint(v);
}

/* Products take the elements of vectors in an order of their own, two neighbours a lane. */
#define ELEMENT(d, lane) (8 * (d) + 2 * ((lane) % 4))

/* Of the vectors of x of a slab: vector v of lane 8 i + lane / 4. */
struct slab_rows {
    two<X_FORMAT> of[EACH][4][DEPTH];
};

DEV void load_slab(const qn_cuda_vq &a, int slab, int lane, slab_rows &x)
{
    const bool words = VECTOR % 2 == 0 && (u64)a.x % 4 == 0;
    if (X_FORMAT != QN_MM_F32 && words && (slab + 1) * 32 * EACH <= a.groups) { /* one way for all of them */
        const u32 *const from = (const u32 *)a.x + (slab * 32 + lane / 4) * EACH * (VECTOR / 2) + lane % 4;
#pragma unroll
        for (int n = 0; n < EACH * 4 * DEPTH; n++) {
            const int v = n / (4 * DEPTH), i = n / DEPTH % 4, d = n % DEPTH;
            x.of[v][i][d].word[0] = ELEMENT(d, lane) < VECTOR ? from[(8 * i * EACH + v) * (VECTOR / 2) + 4 * d] : 0;
        }
        return;
    }
#pragma unroll
    for (int v = 0; v < EACH; v++) {
#pragma unroll
        for (int i = 0; i < 4; i++) { /* eight lanes at a time */
            const int group = (slab * 32 + 8 * i + lane / 4) * EACH + v;
            const char *const from = a.x + (i64)group * VECTOR * (X_FORMAT == QN_MM_F32 ? 4 : 2);
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                x.of[v][i][d] = {};
                if (group < a.groups) {
                    x.of[v][i][d] = load_two<X_FORMAT>(from, ELEMENT(d, lane), words);
                }
            }
        }
    }
}

/* The warp's entries of all books, its share of each, as they are in memory: nothing waits for them yet. */
struct some_entries {
    two<BOOK_FORMAT> of[BOOKS / BESIDE][BLOCKS][DEPTH];
};

DEV void load_entries(const qn_cuda_vq &a, int warp, int lane, some_entries &entries)
{
    const int column = lane / 4, book = BESIDE == 2 ? column / 2 % 2 : 0;
    const int own = book * 256 + (BESIDE == 2 ? column / 4 * 2 + column % 2 : column);
#pragma unroll
    for (int c = 0; c < BOOKS / BESIDE; c++) {
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            const int entry = c * BESIDE * 256 + (i * WARPS + warp) * COLUMNS + own;
            const char *const from = a.books + entry * (VECTOR * (BOOK_FORMAT == QN_MM_F32 ? 4 : 2));
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                entries.of[c][i][d] = load_two<BOOK_FORMAT>(from, ELEMENT(d, lane), VECTOR % 2 == 0);
            }
        }
    }
}

DEV float either(int second, float a, float b)
{
    return second ? b : a;
}

/* Table b = vector * BOOKS + book of the vectors of x of the lanes' words. */
DEV void build(const slab_rows &x, const some_entries &entries, u32 tables, int warp, int lane)
{
    const int t = lane % 4;
    const int row = warp * COLUMNS + (BESIDE == 2 ? t & 2 : 2 * t), second = BESIDE == 2 ? t & 1 : 0;
    u32 place[4];
#pragma unroll
    for (int i = 0; i < 4; i++) { /* the second book's lanes are eight banks on */
        place[i] = tables + (u32)(row * 256 + second * 128 + (t + i) % 4 * 32 + lane / 4 * 4);
    }
#pragma unroll
    for (int v = 0; v < EACH; v++) {
        u32 rows[SPLIT][2][DEPTH][4];
#pragma unroll
        for (int p = 0; p < 2 * DEPTH * 4; p++) {
            const int pair = p / (4 * DEPTH), d = p / 4 % DEPTH, q = p % 4;
            const float value = element_of<X_FORMAT>(x.of[v][2 * pair + q % 2][d], q / 2);
            rows[0][pair][d][q] = operand_of<X_FORMAT>(value);
            if (SPLIT == 2) {
                rows[SPLIT - 1][pair][d][q] = tf32_of(value - __uint_as_float(rows[0][pair][d][q]));
            }
        }
#pragma unroll
        for (int c = 0; c < BOOKS / BESIDE; c++) {
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                float sum[2][4] = {};
#pragma unroll
                for (int s = SPLIT - 1; s >= 0; s--) {
#pragma unroll
                    for (int d = 0; d < DEPTH; d++) {
                        const two<BOOK_FORMAT> &entry = entries.of[c][i][d];
                        const u32 pair[2] = {operand_of<BOOK_FORMAT>(element_of<BOOK_FORMAT>(entry, 0)),
                                             operand_of<BOOK_FORMAT>(element_of<BOOK_FORMAT>(entry, 1))};
                        multiply(sum[0], rows[s][0][d], pair);
                        multiply(sum[1], rows[s][1][d], pair);
                    }
                }
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float one[4], turned[4];
#pragma unroll
                    for (int q = 0; q < 4; q++) {
                        one[q] = sum[q / 2][q % 2 * 2 + e];
                        if (BESIDE == 1) {
                            one[q] = either(t & 1, one[q], sum[(q + 1) % 4 / 2][(q + 1) % 2 * 2 + e]);
                        }
                    }
#pragma unroll
                    for (int q = 0; q < 4; q++) {
                        turned[q] = either(t & 2, one[q], one[(q + 2) % 4]);
                        const int at = TABLE(v * BOOKS + c * BESIDE) + (i * WARPS * COLUMNS + e) * 256;
                        store_shared_f32(place[q] + (u32)at, turned[q]);
                    }
                }
            }
        }
    }
}

/* ---- the ring ---- */

/* What a warp asks for next: codes of a batch of its rows, of one slab after the other. */
struct cursor {
    int slab, row;
};

struct ring {
    u32 slots, bars; /* addresses */
    int slot;
    u32 parity;
};

DEV void pass_slot(ring *r)
{
    r->slot++;
    if (r->slot == SLOTS) {
        r->slot = 0;
        r->parity ^= 1;
    }
}

/* Codes beyond K or the last row are any: tables are zeros there, or nobody wants the row. */
DEV void bring(const qn_cuda_vq &a, const tensor_map *map, int slab, int row, u32 to, u32 bar, int lane)
{
#if __CUDA_ARCH__ >= 900
    if (a.mapped) {
        if (warp_elect()) {
            barrier_arrive_expect(bar, SLOT_BYTES);
            tensor_load_3d(to, map, bar, slab * 128, row, 0, L2_EVICT_FIRST);
        }
        return;
    }
#endif
    const int word = slab * 32 + lane, there = word < a.groups * BOOKS / 4;
    const char *at = a.codes + (i64)row * a.codes_row + (i64)(there ? word : 0) * 4;
#pragma unroll 4
    for (int r = 0; r < ROWS; r++) {
        copy_async_4(to + (u32)(r * 128 + lane * 4), at, there && row + r < a.n);
        at += a.codes_row;
    }
    barrier_arrive_copies(bar);
}

DEV void begin_ring(const qn_cuda_vq &a, const ring &r, int lane)
{
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            barrier_init(r.bars + (u32)i * 8, a.mapped ? 1 : 32);
        }
#if __CUDA_ARCH__ >= 900
        barrier_init_fence();
#endif
    }
    __syncwarp();
}

DEV void wait_slot(const ring &r)
{
    const u32 bar = r.bars + (u32)r.slot * 8;
#if __CUDA_ARCH__ >= 900
    barrier_wait(bar, r.parity);
#else
    while (!barrier_test(bar, r.parity)) {
    }
#endif
}

/* Of all rows the first of a part. With clusters by 32 bits, which begins 0.2 us sooner; without by 64, of which the
 * compiler makes a loop of 96 registers instead of 105 and of 7 % less time (docs/experiments/cuda-vq-mm.md). */
DEV int first_row(int rows, int part, int parts)
{
#if CLUSTER > 1
    return first_dealt(rows, part, parts);
#else
    return (int)((i64)rows * part / parts);
#endif
}

#if CLUSTER > 1
/* The blocks of a cluster end batches of its rows in turn. Behind the ring: a barrier, what all found of the rows that
 * this block ends, [batch][rank][ROWS], and the sums of its slabs so far, [row]. */
#define FOUND_AT (MEETING_AT + 16)

/* How many of a cluster's rows a block ends; of batches in front of the first where `rows` is a multiple of ROWS. */
DEV int ended_by(u32 rank, int rows)
{
    const int whole = rows / ROWS;
    return (whole - (int)rank + CLUSTER - 1) / CLUSTER * ROWS + (whole % CLUSTER == (int)rank ? rows % ROWS : 0);
}

DEV void begin_meeting(int row0, int rows)
{
    if (threadIdx.x == 0) {
        *(int2 *)(tables + MEETING_AT + 8) = make_int2(row0, rows); /* registers are few */
        const u32 bar = shared_address(tables) + MEETING_AT;
        barrier_init(bar, 1);
        barrier_init_fence();
        barrier_arrive_expect(bar, (u32)(ended_by(cluster_rank(), rows) * (CLUSTER * 4)));
    }
    cluster_arrive_relaxed();
}

DEV float *sums_so_far(int rows)
{
    return (float *)(tables + FOUND_AT) + (rows / (CLUSTER * ROWS) + 1) * (CLUSTER * ROWS);
}

/* A row's sum over this block's slabs to the block that ends it. */
DEV void send(int row, float v)
{
    const u32 batch = (u32)row / ROWS, owner = batch % CLUSTER, base = shared_address(tables);
    const u32 at = (batch - owner + cluster_rank()) * ROWS + (u32)row % ROWS;
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                     cluster_address(base + FOUND_AT + at * 4, owner)),
                 "f"(v), "r"(cluster_address(base + MEETING_AT, owner))
                 : "memory");
}

/* Row i of those that this block ends, of a cluster's from `first` on. */
DEV int ended_row(int first, int i)
{
    return first + (i / ROWS * CLUSTER + (int)cluster_rank()) * ROWS + i % ROWS;
}

/* What a row's sum is multiplied by, and what is added, as they are in memory: nothing waits for them yet. */
struct finish {
    u32 scale, bias;
};

DEV u32 bits_of(const char *at, int format)
{
    return format == QN_MM_F32 ? *(const u32 *)at : *(const u16 *)at;
}

DEV finish finish_of(const qn_cuda_vq &a, int n)
{
    finish f = {};
#if SCALE_FORMAT
    f.scale = bits_of(a.scales + (i64)n * a.scales_row, SCALE_FORMAT - 1);
#endif
#if BIAS
    f.bias = bits_of(a.bias + (i64)n * (BIAS - 1 == QN_MM_F32 ? 4 : 2), BIAS - 1);
#endif
    return f;
}

DEV float finished(float sum, const finish &f)
{
    const float scale = SCALE_FORMAT ? load_float((const char *)&f.scale, 0, SCALE_FORMAT - 1) : 1.0f;
    const float bias = BIAS ? load_float((const char *)&f.bias, 0, BIAS - 1) : 0.0f;
    return __fadd_rn(__fmul_rn(sum, scale), bias);
}

/* Results of the rows that this block ends; f: of the thread's first. */
DEV void end_meeting(const qn_cuda_vq &a, int first, int rows, finish f)
{
    const int all = ended_by(cluster_rank(), rows);
    for (int i = (int)threadIdx.x; i < all; i += THREADS) {
        const int n = ended_row(first, i);
        const float *const found = (const float *)(tables + FOUND_AT) + i / ROWS * (CLUSTER * ROWS) + i % ROWS;
        if (i >= THREADS) {
            f = finish_of(a, n);
        }
        barrier_wait(shared_address(tables) + MEETING_AT, 0);
        float sum = found[0];
#pragma unroll
        for (int r = 1; r < CLUSTER; r++) {
            sum += found[r * ROWS];
        }
        store_float(a.y, n, finished(sum, f), OUT);
    }
}
#endif

/* The next codes of the warp into that slot, if there are any: of its rows from `first` on, below `end`. none: 0. */
DEV void ask(const qn_cuda_vq &a, const tensor_map *map, cursor *c, int slabs, int step, int first, int end,
             const ring &r, int slot, int lane, int none)
{
    if (c->slab < slabs) {
        bring(a, map, c->slab, c->row + none, r.slots + (u32)slot * SLOT_BYTES, r.bars + (u32)slot * 8, lane);
        c->row += ROWS;
        if (c->row >= end) {
            c->row = first;
            c->slab += step;
        }
    }
}

/* Sum over the lane's four codes of a row. An address: the code, byte b, above the lane's bits of place, of which a
 * second book has others. */
#define AT(b) (*(const float *)(tables + TABLE(b) + __byte_perm(word, mine, 0x7704 | (b) << 4 | (b) % BESIDE)))

DEV float look_up(u32 word, u32 mine)
{
    return (AT(0) + AT(1)) + (AT(2) + AT(3));
}

/* Sums over all lanes' codes of the first `count` rows of a batch: a lane has row lane % ROWS. */
DEV float sum_batch(const u32 *words, int count, int lane)
{
    const u32 mine = (u32)(lane * 4 | (lane + 8) % 32 * 4 << 8);
    float sum[ROWS];
    if (count >= ROWS) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sum[r] = look_up(words[r], mine);
        }
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sum[r] = 0.0f;
        }
#pragma unroll
        for (int some = 0; some < ROWS; some += 4) {
            if (some >= count) {
                break;
            }
#pragma unroll
            for (int r = some; r < some + 4; r++) {
                sum[r] = look_up(words[r], mine);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 15; i++) { /* eight of sixteen, four of eight, two of four, one */
        const int half = i < 8 ? 8 : i < 12 ? 4 : i < 14 ? 2 : 1, at = i % 8 % half, upper = lane & half;
        const float send = either(upper, sum[at + half], sum[at]);
        sum[at] = either(upper, sum[at], sum[at + half]) + __shfl_xor_sync(~0u, send, half);
    }
    return sum[0] + __shfl_xor_sync(~0u, sum[0], 16);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_vq_sums(const __grid_constant__ qn_cuda_vq a, const __grid_constant__ tensor_map map)
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
    const int row0 = first_row(a.n, part, parts), rows = first_row(a.n, part + 1, parts) - row0;
    const int first = row0 + first_dealt(rows, warp, WARPS), end = row0 + first_dealt(rows, warp + 1, WARPS);
    const u32 base = shared_address(tables);
    ring r = {base + RING_AT + (u32)(warp * SLOTS * SLOT_BYTES), base + BARRIERS_AT + (u32)(warp * SLOTS * 8), 0, 0};
    cursor next = {first < end ? slab : slabs, first};
    some_entries entries;
    slab_rows x;
    begin_ring(a, r, lane);
#if CLUSTER > 1
    begin_meeting(row0, rows);
#endif
    if (!a.early) { /* or weights may be read while the kernel in front works */
        wait_before();
    }
    if (slab < slabs) {
        load_entries(a, warp, lane, entries);
    }
    if (a.early) {
        wait_before();
    }
    if (X_AHEAD && slab < slabs) {
        load_slab(a, slab, lane, x);
    }
#if CLUSTER > 1
    finish own = {};
    if ((int)threadIdx.x < ended_by(cluster_rank(), rows)) {
        own = finish_of(a, ended_row(row0, (int)threadIdx.x));
    }
#endif
#pragma unroll 1
    for (int i = 0; i < SLOTS; i++) { /* behind x, which all wait for */
        ask(a, &map, &next, slabs, step, first, end, r, i, lane, 0);
    }
#pragma unroll 1
    for (; slab < slabs; slab += step) {
        if (!X_AHEAD) {
            load_slab(a, slab, lane, x);
        }
        build(x, entries, base, warp, lane);
        __syncthreads();
        if (SLOTS == 1) {
            release_next();
        }
#if CLUSTER > 1
        if (slab < CLUSTER) {
            cluster_wait(); /* the other blocks' barriers are there */
        }
#endif
        if (X_AHEAD && slab + step < slabs) {
            load_slab(a, slab + step, lane, x);
        }
#pragma unroll 1
        for (int row = first; row < end; row += ROWS) {
            wait_slot(r);
            const u8 *const codes = tables + RING_AT + (warp * SLOTS + r.slot) * SLOT_BYTES + lane * 4;
            u32 words[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                words[i] = *(const u32 *)(codes + i * 128);
            }
            /* Or the copy engine could be ahead of the last of these loads, which nothing else awaits: the row it is
             * asked for is made of that load. threadIdx.z is 0, which the compiler does not know. */
            const int none = (int)(words[ROWS - 1] & threadIdx.z);
            __syncwarp();
            ask(a, &map, &next, slabs, step, first, end, r, r.slot, lane, none);
            pass_slot(&r);
            const float found = sum_batch(words, end - row, lane);
            if (lane < min(ROWS, end - row)) {
#if CLUSTER > 1
                const int place = row - row0 + lane;
                float *const total = sums_so_far(rows) + place;
                const float all = slab < CLUSTER ? found : *total + found;
                if (slab + step < slabs) {
                    *total = all;
                } else {
                    send(place, all);
                }
#else
                a.parts[(i64)blockIdx.y * a.n + row + lane] = found;
#endif
            }
        }
        if (slab + step < slabs) {
            __syncthreads();
        }
    }
    if (SLOTS > 1) { /* what the next kernel asks for would come between this one's slabs */
        release_next();
    }
#if CLUSTER > 1
    const int2 range = *(const int2 *)(tables + MEETING_AT + 8);
    end_meeting(a, range.x, range.y, own);
#endif
}
