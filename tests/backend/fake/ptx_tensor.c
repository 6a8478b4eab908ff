/* Copies of boxes of tensors, and products of warpgroups, whose operands in shared memory these leave: rows of 128
 * bytes, swizzled. Both are done when they are asked for. */
#include <string.h>

#include "backend/fake/ptx_state.h"

/* Where a byte is that would be at `at`: 16 bytes of a line change places by its number. */
static uint64_t swizzled(uint64_t at, uint32_t swizzle)
{
    return at ^ (at >> 7 & ((1u << swizzle) - 1)) << 4;
}

/* A box, one way or the other, of elements inside the tensor; what is outside reads as zeros. */
static void copy_box(run *r, warp *w, const ptx_instruction *i, const ptx_tensor *t, const int32_t *at, uint64_t shared,
                     int outward)
{
    uint64_t place = shared;
    for (uint32_t z = 0; z < t->box[2]; z++) {
        for (uint32_t y = 0; y < t->box[1]; y++) {
            for (uint32_t x = 0; x < t->box[0]; x++, place += t->bytes) {
                const int64_t c[3] = {(int64_t)at[0] + x, (int64_t)at[1] + y, (int64_t)at[2] + z};
                const int inside = c[0] >= 0 && c[1] >= 0 && c[2] >= 0 && c[0] < (int64_t)t->dims[0] &&
                                   c[1] < (int64_t)t->dims[1] && c[2] < (int64_t)t->dims[2];
                char *const s = ptx_shared_at(r, w, i, swizzled(place, t->swizzle), t->bytes);
                const uint64_t from = t->data + (uint64_t)c[0] * t->bytes + (uint64_t)c[1] * t->strides[0] +
                                      (uint64_t)c[2] * t->strides[1];
                char *const g = inside ? ptx_global_at(r, i, from, t->bytes) : NULL;
                if (!s || (inside && !g)) {
                    return;
                }
                if (!outward) {
                    inside ? memcpy(s, g, t->bytes) : memset(s, 0, t->bytes);
                } else if (inside) {
                    memcpy(g, s, t->bytes);
                }
            }
        }
    }
}

/* cp.async.bulk.tensor: [to], [map, {x, y, z}], [barrier], of all blocks of a mask where it says so; [map, {x, y, z}],
 * [from]. */
void ptx_do_tensor(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const int outward = !ptx_has(i, PTX_W_CLUSTER_SHARED);
    const ptx_operand *const of = &i->operand[!outward];
    source blocks = {.p = NULL};
    if (ptx_has(i, PTX_W_PREFETCHES)) {
        return;
    }
    if (!ptx_has(i, PTX_W_RANK_3) || i->count < 2 || of->count != 3) {
        ptx_fail(r, i, "a copy of tensors that is not emulated");
        return;
    }
    if (ptx_has(i, PTX_W_MULTICAST)) {
        take(r, w, &i->operand[3], &blocks);
    }
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        ptx_tensor t;
        int32_t at[3];
        memcpy(&t, (const void *)(uintptr_t)address_of(r, w, of, l), sizeof t);
        for (int k = 0; k < 3; k++) {
            at[k] = (int32_t)lane_value(w, of->parts[k], l);
        }
        const uint64_t shared = address_of(r, w, &i->operand[outward], l);
        if (t.kind != PTX_TENSOR || shared % (t.swizzle ? 128 : 16) != 0) {
            ptx_fail(r, i, t.kind == PTX_TENSOR ? "a box that is not aligned" : "no map of a tensor");
            return;
        }
        if (outward) {
            copy_box(r, w, i, &t, at, shared, 1);
            continue;
        }
        const uint64_t bar = address_of(r, w, &i->operand[2], l);
        const int32_t bytes = (int32_t)(t.box[0] * t.box[1] * t.box[2] * t.bytes);
        for (uint32_t k = 0; k < w->of->of->count && !r->failed; k++) {
            const uint64_t rank = blocks.p ? (uint64_t)(k + 1) << 24 : 0;
            if (blocks.p ? blocks.p[l * blocks.step] >> k & 1 : k == 0) {
                copy_box(r, w, i, &t, at, shared | rank, 0);
                ptx_complete(r, w, i, bar | rank, bytes);
            }
        }
    }
}

/* ---- products of warpgroups ---- */

/* Element k of row `row` of an operand that a descriptor names: rows of 128 bytes, eight of them 1024. */
static double operand_element(run *r, warp *w, const ptx_instruction *i, uint64_t descriptor, int row, int k,
                              ptx_type type)
{
    const int bytes = ptx_types[type].bytes;
    const uint64_t at = (descriptor & 0x3fff) * 16 + (uint64_t)(row / 8 * 1024 + row % 8 * 128 + k * bytes);
    uint64_t v = 0;
    const char *p = ptx_shared_at(r, w, i, swizzled(at, 3), (size_t)bytes);
    if (p) {
        memcpy(&v, p, (size_t)bytes);
    }
    return ptx_element(v, 0, type);
}

/* d = a b' or d += a b', of a warp's 16 rows: a of registers or shared memory, b of shared memory. Sums of an
 * instruction are exact, then rounded. */
void ptx_do_wgmma(run *r, warp *w, const ptx_instruction *i)
{
    const ptx_operand *const o = i->operand;
    const ptx_type of_d = i->types[0], of_a = i->types[1], of_b = i->types[2];
    const int per = 4 / ptx_types[of_a].bytes, first = (int)(w - w->of->warps) % 4 * 16, n = i->columns;
    double a[16][32], b[32][256];
    source of[4];
    if (i->count < 4 || o[0].count != n / 2 || n > 256 || i->depth > 32 || i->depth != 8 * per ||
        (of_d != PTX_F32 && of_d != PTX_S32)) {
        ptx_fail(r, i, "no such product of warpgroups");
        return;
    }
    for (int k = 6; k < i->count; k++) {
        if (o[k].kind != PTX_NUMBER || o[k].value) {
            ptx_fail(r, i, "an operand that lies across its rows");
            return;
        }
    }
    for (int k = 1; k < 4; k++) {
        if (o[k].kind != PTX_VECTOR) {
            take(r, w, &o[k], &of[k]);
        }
    }
    const uint64_t b_descriptor = of[2].p[0], a_descriptor = o[1].kind == PTX_VECTOR ? 0 : of[1].p[0];
    if (b_descriptor >> 62 != 1 || (o[1].kind != PTX_VECTOR && a_descriptor >> 62 != 1)) {
        ptx_fail(r, i, "an operand that is not swizzled by 128 bytes");
        return;
    }
    for (int l = 0; l < LANES && o[1].kind == PTX_VECTOR; l++) {
        for (int k = 0; k < 4; k++) {
            for (int e = 0; e < per; e++) {
                a[l / 4 + k % 2 * 8][k / 2 * 4 * per + l % 4 * per + e] =
                    ptx_element(lane_value(w, o[1].parts[k], l), e, of_a);
            }
        }
    }
    for (int k = 0; k < i->depth && !r->failed; k++) {
        for (int m = 0; m < 16 && o[1].kind != PTX_VECTOR; m++) {
            a[m][k] = operand_element(r, w, i, a_descriptor, first + m, k, of_a);
        }
        for (int c = 0; c < n; c++) {
            b[k][c] = operand_element(r, w, i, b_descriptor, c, k, of_b);
        }
    }
    const int adds = (of[3].p[0] & 1) != (uint64_t)o[3].negated;
    for (int l = 0; l < LANES; l++) {
        for (int v = 0; v < n / 2; v++) {
            const int row = l / 4 + v / 2 % 2 * 8, column = v / 4 * 8 + l % 4 * 2 + v % 2;
            const uint64_t c = adds ? lane_value(w, o[0].parts[v], l) : 0;
            double sum = 0.0;
            for (int k = 0; k < i->depth; k++) {
                sum += a[row][k] * b[k][column];
            }
            put(r, w, o[0].parts[v], l,
                of_d == PTX_F32 ? f32_bits((float)(sum + f32_of(c))) : (uint64_t)((int64_t)sum + signed_of(c, 4)));
        }
    }
}
