/* Instructions by which the lanes of a warp exchange registers: shuffles, votes, reductions, products of matrices. */
#include "backend/fake/ptx_state.h"

void ptx_do_shuffle(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a, b, c;
    uint64_t old[LANES], got[LANES];
    int good[LANES];
    take(r, w, &i->operand[1], &a);
    take(r, w, &i->operand[2], &b);
    take(r, w, &i->operand[3], &c);
    for (int l = 0; l < LANES; l++) {
        old[l] = mask >> l & 1 ? A(l) : UINT32_MAX;
    }
    for (int l = 0; l < LANES; l++) {
        const int limit = (int)(C(l) & 31), segment = (int)(C(l) >> 8 & 31), by = (int)(B(l) & 31);
        const int most = (l & segment) | (limit & ~segment & 31), least = l & segment;
        int from = ptx_has(i, PTX_W_BFLY)   ? l ^ by
                   : ptx_has(i, PTX_W_IDX)  ? least | (by & ~segment & 31)
                   : ptx_has(i, PTX_W_DOWN) ? l + by
                                            : l - by;
        good[l] = ptx_has(i, PTX_W_UP) ? from >= most : from <= most;
        got[l] = old[good[l] ? from : l];
    }
    EACH(D(l, got[l]); put(r, w, i->operand[0].second, l, (uint64_t)good[l]))
}

void ptx_do_vote(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a;
    uint32_t yes = 0;
    take(r, w, &i->operand[1], &a);
    EACH(yes |= (uint32_t)((A(l) & 1) != (uint64_t)i->operand[1].negated) << l)
    const uint64_t out = ptx_has(i, PTX_W_BALLOT) ? yes : ptx_has(i, PTX_W_ANY) ? yes != 0 : yes == mask;
    EACH(D(l, out))
}

void ptx_do_reduce(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a;
    uint64_t all = 0;
    int first = 1;
    take(r, w, &i->operand[1], &a);
    EACH(all = first ? A(l) : ptx_exchanged(r, i, all, A(l), 0) & UINT32_MAX; first = 0)
    EACH(D(l, all))
}

double ptx_element(uint64_t word, int e, ptx_type type)
{
    switch (type) {
    case PTX_F16: return f16_of(word >> 16 * e & 0xffff);
    case PTX_BF16: return bf16_of(word >> 16 * e & 0xffff);
    case PTX_TF32: return f32_of(word & ~UINT64_C(0x1fff));
    case PTX_S8: return (double)signed_of(word >> 8 * e, 1);
    case PTX_U8: return (double)(word >> 8 * e & 255);
    case PTX_E4M3: return e4m3_of(word >> 8 * e & 255);
    default: return e5m2_of(word >> 8 * e & 255);
    }
}

/* d = a b + c of 16 x 8: types are those of d, a, b, c. Sums of a step are exact, then rounded. */
void ptx_do_mma(run *r, warp *w, const ptx_instruction *i)
{
    const ptx_type of_a = i->types[1], of_b = i->types[2], of_d = i->types[0];
    const int depth = ptx_has(i, PTX_W_M16N8K32) ? 32 : ptx_has(i, PTX_W_M16N8K16) ? 16 : 8;
    const int per = of_a == PTX_TF32 ? 1 : of_a == PTX_F16 || of_a == PTX_BF16 ? 2 : 4;
    double a[16][32], b[32][8];
    const ptx_operand *o = i->operand;
    if (o[1].count * per * 32 != 16 * depth || o[2].count * per * 32 != 8 * depth || o[0].count != 4 ||
        (of_d != PTX_F32 && of_d != PTX_S32)) {
        ptx_fail(r, i, "no such product of matrices");
        return;
    }
    for (int l = 0; l < LANES; l++) {
        const int g = l / 4, t = l % 4;
        for (int k = 0; k < o[1].count; k++) {
            for (int e = 0; e < per; e++) {
                a[g + k % 2 * 8][k / 2 * 4 * per + t * per + e] = ptx_element(lane_value(w, o[1].parts[k], l), e, of_a);
            }
        }
        for (int k = 0; k < o[2].count; k++) {
            for (int e = 0; e < per; e++) {
                b[k * 4 * per + t * per + e][g] = ptx_element(lane_value(w, o[2].parts[k], l), e, of_b);
            }
        }
    }
    for (int l = 0; l < LANES; l++) {
        uint64_t out[4];
        for (int k = 0; k < 4; k++) {
            const int row = l / 4 + k / 2 * 8, column = l % 4 * 2 + k % 2;
            const uint64_t c = lane_value(w, o[3].parts[k], l);
            double sum = 0.0;
            for (int d = 0; d < depth; d++) {
                sum += a[row][d] * b[d][column];
            }
            out[k] = of_d == PTX_F32 ? f32_bits((float)(sum + f32_of(c))) : (uint64_t)((int64_t)sum + signed_of(c, 4));
        }
        for (int k = 0; k < 4; k++) {
            put(r, w, o[0].parts[k], l, out[k]);
        }
    }
}
