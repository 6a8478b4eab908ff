/* y = x w^T for one row of x by partial sums: aqlm with codebooks of 256 entries of VECTOR elements along K. A block
 * keeps the products of entries with the vectors of x of a slab of K, four tables of 256 a lane: the lane loads a word
 * of codes, four neighbouring ones of a row of w, and looks each up in a table of its own. A table's entry e of lane l
 * is at bank l whatever e is, so no access conflicts, and its address is made by one byte permutation. Sums of 32 rows
 * are then exchanged so that each lane adds up one row. Parts of K are added by qn_vq_finish.
 *
 * Host contract
 *   Parameters: BOOKS 1, 2 or 4; VECTOR; X_FORMAT, BOOK_FORMAT
 *   codes: rows of groups * BOOKS bytes at multiples of 4, codebooks without gaps at multiples of 16; groups * BOOKS a
 *   multiple of 4
 *   Launch: block 512, grid {parts of N, slabs}, QN_VQ_SUMS_SHARED bytes and 4 an element of the codebooks */
#include "vq_parts.h"

#define THREADS 512
#define WARPS (THREADS / 32)
#define EACH (4 / BOOKS) /* vectors of x a lane */
#define ROWS QN_VQ_SUMS_ROWS
#define TABLE(b) (((b) / 2) * 65536 + ((b) % 2) * 128)

/* All entries as f32, in the order of memory; two at a time where their type allows. */
DEV void load_books(const qn_cuda_vq &a, float *books)
{
    for (int i = (int)threadIdx.x * 2; i < 256 * BOOKS * VECTOR; i += THREADS * 2) {
#if BOOK_FORMAT == QN_MM_F32
        *(float2 *)(books + i) = *(const float2 *)(a.books + (i64)i * 4);
#else
        const u32 two = *(const u32 *)(a.books + (i64)i * 2);
#if BOOK_FORMAT == QN_MM_F16
        *(float2 *)(books + i) = make_float2(half_float(two & 0xffffu), half_float(two >> 16));
#else
        *(float2 *)(books + i) = make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
#endif
#endif
    }
}

/* Table b = vector * BOOKS + book of the vectors of x of the lane's word. */
DEV void build(const float (*x)[VECTOR], const float *books, u8 *tables, int warp, int lane)
{
#pragma unroll 4
    for (int e = warp; e < 256 * BOOKS; e += WARPS) {
        const int book = e / 256, entry = e % 256;
        const float *const c = books + e * VECTOR;
#pragma unroll
        for (int v = 0; v < EACH; v++) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                sum = __fmaf_rn(x[v][j], c[j], sum);
            }
            const int b = v * BOOKS + book;
            *(float *)(tables + TABLE(b) + entry * 256 + lane * 4) = sum;
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

DEV u32 load_code(const char *p)
{
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_vq_sums(const __grid_constant__ qn_cuda_vq a)
{
    extern __shared__ __align__(256) u8 tables[];
    float *const books = (float *)(tables + QN_VQ_SUMS_SHARED);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int word = (int)blockIdx.y * 32 + lane, words = a.groups * BOOKS / 4, valid = word < words;
    const int batches = (a.n + ROWS - 1) / ROWS, parts = (int)gridDim.x;
    const int first = (int)((i64)batches * (int)blockIdx.x / parts);
    const int last = (int)((i64)batches * ((int)blockIdx.x + 1) / parts);
    const char *const codes = a.codes + (i64)(valid ? word : 0) * 4;
    release_next();
    wait_before();
    u32 next[ROWS];
    int batch = first + warp;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int n = batch * ROWS + r;
        next[r] = batch < last && n < a.n ? load_code(codes + (i64)n * a.codes_row) : 0;
    }
    float x[EACH][VECTOR];
#pragma unroll
    for (int v = 0; v < EACH; v++) {
        const int group = word * EACH + v;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            x[v][j] = group < a.groups ? load_float(a.x, (i64)group * VECTOR + j, X_FORMAT) : 0.0f;
        }
    }
    load_books(a, books);
    __syncthreads();
    build(x, books, tables, warp, lane);
    __syncthreads();
    const u32 base = shared_address(tables), mine = (u32)lane * 4;
    for (; batch < last; batch += WARPS) {
        float sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const u32 w = next[r];
            const int n = (batch + WARPS) * ROWS + r;
            next[r] = batch + WARPS < last && n < a.n ? load_code(codes + (i64)n * a.codes_row) : 0;
            /* byte b of the codes above the lane's four bits of place */
            const float s0 = load_shared_f32(base + TABLE(0) + __byte_perm(w, mine, 0x7704));
            const float s1 = load_shared_f32(base + TABLE(1) + __byte_perm(w, mine, 0x7714));
            const float s2 = load_shared_f32(base + TABLE(2) + __byte_perm(w, mine, 0x7724));
            const float s3 = load_shared_f32(base + TABLE(3) + __byte_perm(w, mine, 0x7734));
            sum[r] = (s0 + s1) + (s2 + s3);
        }
        EXCHANGE(16)
        EXCHANGE(8)
        EXCHANGE(4)
        EXCHANGE(2)
        EXCHANGE(1)
        const int n = batch * ROWS + lane;
        if (n < a.n) {
            a.parts[(i64)blockIdx.y * a.n + n] = sum[0];
        }
    }
}
