/* How sums of wide.h become results. The includer says, before:
 *
 *   EXACT      1: sums are s32, else f32
 *   arguments  what results need
 *   columns    what four sums beside each other are finished with
 *   load_columns(a, n)                  those of columns from n on, of which there is one at least
 *   store_four(a, c, row, n, sums)      four sums finished and stored, as far as there are such columns
 */
#ifndef QN_CUDA_WIDE_OUT_H
#define QN_CUDA_WIDE_OUT_H

#include "wide.h"

#define BESIDE (STRIP / 4)         /* threads of a row */
#define APART (CONSUMERS / BESIDE) /* rows that threads have at a time */

#if EXACT
#define ADD(a, b) __int_as_float(__float_as_int(a) + __float_as_int(b))
#else
#define ADD(a, b) ((a) + (b))
#endif

/* Four sums of each of `parts`, `apart` bytes from each other, added in their order. */
DEV float4 add_parts(u32 from, u32 parts, u32 apart)
{
    float4 v = load_shared_f32x4(from);
#pragma unroll 1
    for (u32 i = 1; i < parts; i++) {
        const float4 four = load_shared_f32x4(from + i * apart);
        v.x = ADD(v.x, four.x);
        v.y = ADD(v.y, four.y);
        v.z = ADD(v.z, four.z);
        v.w = ADD(v.w, four.w);
    }
    return v;
}

/* Rows of sums [rows][PITCH], of `parts` that are `apart` bytes from each other, to results. Of several blocks these
 * are every split-th eight rows of x, from the block's own on. */
DEV void finish_rows(const arguments &a, const problem *p, u32 from, int rows, u32 parts, u32 apart, u32 thread)
{
    const int column = (int)(thread % BESIDE) * 4, there = column < p->columns;
    const columns c = load_columns(a, p->column + (there ? column : 0));
    threads_sync(1, CONSUMERS);
    if (!there) {
        return;
    }
#pragma unroll 4
    for (int r = (int)(thread / BESIDE); r < rows; r += APART) {
        const int x_row = p->split > 1 ? (r / 8 * (int)p->split + (int)p->part) * 8 + r % 8 : r;
        if (x_row < p->rows) {
            const float4 four = add_parts(from + (u32)(r * PITCH + column) * 4, parts, apart);
            float v[4] = {four.x, four.y, four.z, four.w};
            store_four(a, c, p->row + x_row, p->column + column, v);
        }
    }
}

/* A block's sums through shared memory, where the ring was, as [WK][ROWS][PITCH]. */
DEV void finish_alone(const arguments &a, const problem *p, u32 row, u32 turn, u32 thread)
{
    const u32 to = p->x + turn * (ROWS * PITCH * 4) + (2 * (thread % 4) * PITCH + row) * 4;
    threads_sync(1, CONSUMERS); /* all stages are read */
    EACH(ROWS, "u", LEAVE)
    finish_rows(a, p, p->x, p->rows, WK, ROWS * PITCH * 4, thread);
}

DEV void take_sums(float *to){EACH(ROWS, "u", TAKE)}

/* Eight rows of x after the other belong to the blocks of the cluster in turn: a part's sums of them go to it, where
 * all rings were read, as [part][eight][row of b] of a lane's four. It adds them in the order of the parts. */
DEV void finish_parts(const arguments &a, const problem *p, u32 row, u32 turn, u32 thread)
{
    const u32 split = p->split, parts = split * WK, mine = (EIGHTS + split - 1 - p->part) / split;
    const u32 part_bytes = (EIGHTS + split - 1) / split * EIGHT_BYTES;
    const u32 place = (thread / (128 * WK) * 128 + thread % 128) * 16;
    if (thread == 0) {
        barrier_arrive_expect(p->given, parts * mine * EIGHT_BYTES);
    }
    float own[ROWS / 2];
    take_sums(own);
    u32 to = p->x + (p->part * WK + turn) * part_bytes + place, owner = 0;
#pragma unroll
    for (u32 j = 0; j < EIGHTS; j++) {
        send_cluster_f32x4(cluster_address(to, owner), cluster_address(p->given, owner), own[4 * j], own[4 * j + 1],
                           own[4 * j + 2], own[4 * j + 3]);
        if (++owner == split) {
            owner = 0;
            to += EIGHT_BYTES;
        }
    }
    barrier_wait(p->given, 0);
    const u32 sums = p->x + parts * part_bytes;
#pragma unroll 1
    for (u32 j = turn; j < mine; j += WK) {
        const float4 four = add_parts(p->x + j * EIGHT_BYTES + place, parts, part_bytes);
        const u32 at = sums + ((8 * j + 2 * (thread % 4)) * PITCH + row) * 4;
        store_shared_f32(at, four.x);
        store_shared_f32(at + PITCH * 4, four.y);
        store_shared_f32(at + 32, four.z);
        store_shared_f32(at + PITCH * 4 + 32, four.w);
    }
    finish_rows(a, p, sums, (int)mine * 8, 1, 0, thread);
}

/* Threads that multiplied: a strip's sums to results. */
DEV void finish_strip(const arguments &a, const problem *p, u32 row, u32 turn, u32 thread)
{
    if (p->split > 1) {
        cluster_arrive();
        cluster_wait(); /* all blocks have read their stages */
        finish_parts(a, p, row, turn, thread);
    } else {
        finish_alone(a, p, row, turn, thread);
    }
}

/* Warps that loaded, when they are done. */
DEV void leave(const problem *p)
{
    if (p->split > 1) {
        __syncwarp();
        cluster_arrive();
        cluster_wait();
    }
}

#endif
