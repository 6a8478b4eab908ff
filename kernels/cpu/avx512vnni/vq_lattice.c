/* quip_e8p of level avx512vnni by exact integers (kernels/common/vq.h, "Lattice").
 *
 * Magnitudes of 64 codes are looked up in registers; a group of eight rows then is
 * one vector of 8 rows by 8 elements: fields of two bits spread to bytes, signs by a
 * mask that lies in memory as it is used. A dot of it with 8 digits, the same for all
 * rows, leaves two halves a row, which are added at the end of a tile. */
#include "kernels/cpu/avx512vnni/bytes.h"
#include "kernels/cpu/avx512vnni/vq_digits.h"

#define GROUPS 8   /* of a unit */
#define UNITS 4    /* of a tile */
#define AHEAD 2048 /* prefetched in a stream of codes */
#define ROWS 4     /* of x beside each other in registers */
#define E8P_BYTES 128
#define E8_BYTES 64

typedef struct points {
    byte_table low, high; /* magnitudes */
    const uint8_t *e8;
} points;

QN_INLINE points points_of(const qn_vq_lattice_call *c)
{
    points p = {.e8 = c->e8};
    table_load(&p.low, c->magnitudes);
    table_load(&p.high, c->magnitudes + 256);
    return p;
}

/* Bytes of a unit's half. */
QN_INLINE int64_t half_bytes(const int is_e8)
{
    return is_e8 ? E8_BYTES : E8P_BYTES;
}

QN_INLINE void fetch_ahead(const uint8_t *codes, const int is_e8)
{
    _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
    if (!is_e8) {
        _mm_prefetch((const char *)codes + AHEAD + 64, _MM_HINT_T0);
    }
}

/* 64 codes of E8P on their way: by lanes of 16 bytes, which are two groups of eight rows, the first ones and the
 * second ones of each. */
typedef struct e8p_unit {
    __m512i magnitudes[2], shifts[2];
    uint64_t signs[GROUPS];
} e8p_unit;

QN_INLINE void unit_load(e8p_unit *u, const points *p, const uint8_t *codes)
{
    const __m512i parity = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0));
    const __m512i index = _mm512_loadu_si512(codes), signs = _mm512_loadu_si512(codes + 64);
    const byte_quarters quarters = quarters_of(index);
    const __m512i low = look_up(&p->low, index, quarters), high = look_up(&p->high, index, quarters);
    const __m512i odd = _mm512_and_si512(_mm512_xor_si512(low, high), _mm512_set1_epi8(0x55));
    const __m512i bits = _mm512_xor_si512(odd, signs);
    const __m512i four = _mm512_and_si512(_mm512_xor_si512(bits, _mm512_srli_epi16(bits, 4)), _mm512_set1_epi8(15));
    const __m512i minus = _mm512_shuffle_epi8(parity, four);
    const __m512i shift = _mm512_sub_epi8(_mm512_set1_epi8(0x12), _mm512_add_epi8(minus, minus));
    u->magnitudes[0] = _mm512_unpacklo_epi8(low, high);
    u->magnitudes[1] = _mm512_unpackhi_epi8(low, high);
    u->shifts[0] = _mm512_unpacklo_epi8(shift, shift);
    u->shifts[1] = _mm512_unpackhi_epi8(shift, shift);
    _mm512_storeu_si512(u->signs, _mm512_xor_si512(signs, minus));
}

/* Bytes of group g, 8 rows by 8 elements: 16 + 4 m, or 12 - 4 m by turning bits over where the sign is minus, plus 2
 * where the shift is 1/4: 4 m ^ 16, 4 m ^ 12. */
QN_INLINE __m512i e8p_group(const e8p_unit *u, int g)
{
    const __m512i spread = _mm512_add_epi8(_mm512_setr_epi64(0x0100010001000100, 0x0302030203020302, 0x0504050405040504,
                                                             0x0706070607060706, 0x0908090809080908, 0x0b0a0b0a0b0a0b0a,
                                                             0x0d0c0d0c0d0c0d0c, 0x0f0e0f0e0f0e0f0e),
                                           _mm512_set1_epi8((char)(g / 2 * 16)));
    const __m512i fields = _mm512_set1_epi64(0x0c0a08060402003e); /* field i to bits 2 and 3 of byte i */
    const __m512i word = _mm512_permutexvar_epi8(spread, u->magnitudes[g % 2]);
    const __m512i bits = _mm512_multishift_epi64_epi8(fields, word);
    const __m512i shift = _mm512_permutexvar_epi8(spread, u->shifts[g % 2]);
    const __m512i flip = _mm512_mask_sub_epi8(shift, _cvtu64_mask64(u->signs[g]), shift, _mm512_set1_epi8(4));
    return _mm512_ternarylogic_epi32(bits, _mm512_set1_epi8(0x0c), flip, 0x6a); /* bits & 12 ^ flip */
}

QN_INLINE __m512i e8_group(const uint8_t *e8, const uint8_t *codes)
{
    const __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)codes));
    return _mm512_i32gather_epi64(index, e8, 8);
}

QN_INLINE __m512i eight(const int8_t *digits)
{
    int64_t word;
    memcpy(&word, digits, sizeof word);
    return _mm512_set1_epi64(word);
}

/* Rows of both halves of a panel, from halves of their sums. */
QN_INLINE __m512i joined(__m512i first, __m512i second)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_permutex2var_epi32(first, even, second),
                            _mm512_permutex2var_epi32(first, odd, second));
}

/* One row of x by a panel's `units` units of a tile: weights are never stored. */
QN_INLINE void one_by_panel(const points *p, const int is_e8, const uint8_t *codes, int64_t units, const int8_t *digits,
                            __m512i s[QN_VQ_PLANES])
{
    __m512i half[2][QN_VQ_PLANES];
#pragma GCC unroll 3
    for (int d = 0; d < QN_VQ_PLANES; d++) {
        half[0][d] = half[1][d] = _mm512_setzero_si512();
    }
    for (int64_t i = 0; i < units; i++, digits += QN_VQ_UNIT_K) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++, codes += half_bytes(is_e8)) {
            e8p_unit u;
            fetch_ahead(codes, is_e8);
            if (!is_e8) {
                unit_load(&u, p, codes);
            }
#pragma GCC unroll 8
            for (int g = 0; g < GROUPS; g++) {
                const __m512i w = is_e8 ? e8_group(p->e8, codes + g * 8) : e8p_group(&u, g);
#pragma GCC unroll 3
                for (int d = 0; d < QN_VQ_PLANES; d++) {
                    half[h][d] = _mm512_dpbusd_epi32(half[h][d], w, eight(digits + d * QN_VQ_TILE_K + g * 8));
                }
            }
        }
    }
#pragma GCC unroll 3
    for (int d = 0; d < QN_VQ_PLANES; d++) {
        s[d] = joined(half[0][d], half[1][d]);
    }
}

/* A panel's units of a tile as lines: [unit][group][half][64]. */
QN_INLINE void decode_panel(const points *p, const int is_e8, const uint8_t *codes, int64_t units, char *lines)
{
    for (int64_t i = 0; i < units * 2; i++, codes += half_bytes(is_e8)) {
        char *const to = lines + (i / 2 * GROUPS * 2 + i % 2) * 64;
        e8p_unit u;
        fetch_ahead(codes, is_e8);
        if (!is_e8) {
            unit_load(&u, p, codes);
        }
#pragma GCC unroll 8
        for (int g = 0; g < GROUPS; g++) {
            _mm512_store_si512(to + g * 128, is_e8 ? e8_group(p->e8, codes + g * 8) : e8p_group(&u, g));
        }
    }
}

/* `rows` rows of x by the lines of a panel. */
QN_INLINE void rows_by_lines(const qn_vq_lattice_call *c, const int rows, int64_t m, int64_t t, int64_t units, int book,
                             int64_t panel)
{
    const int64_t tiles = (c->units + UNITS - 1) / UNITS;
    const int8_t *const digits = c->digits + m * c->digit_stride + t * QN_VQ_PLANES * QN_VQ_TILE_K;
    __m512i s[ROWS][2][QN_VQ_PLANES];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
        for (int d = 0; d < QN_VQ_PLANES; d++) {
            s[r][0][d] = s[r][1][d] = _mm512_setzero_si512();
        }
    }
    for (int64_t l = 0; l < units * GROUPS; l++) {
        const __m512i first = _mm512_load_si512(c->scratch + l * 128);
        const __m512i second = _mm512_load_si512(c->scratch + l * 128 + 64);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
            for (int d = 0; d < QN_VQ_PLANES; d++) {
                const __m512i x = eight(digits + r * c->digit_stride + d * QN_VQ_TILE_K + l * 8);
                s[r][0][d] = _mm512_dpbusd_epi32(s[r][0][d], first, x);
                s[r][1][d] = _mm512_dpbusd_epi32(s[r][1][d], second, x);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        __m512i all[QN_VQ_PLANES];
#pragma GCC unroll 3
        for (int d = 0; d < QN_VQ_PLANES; d++) {
            all[d] = joined(s[r][0][d], s[r][1][d]);
        }
        add_tile(c->sums + (m + r) * QN_VQ_BLOCK + panel * QN_VQ_PANEL, all, c->offsets + ((m + r) * tiles + t) * 4,
                 c->scales[(m + r) * tiles + t] * c->unit[book]);
    }
}

/* Tile t by a book. */
QN_INLINE void tile_by_book(const qn_vq_lattice_call *c, int64_t t, int book, const int is_e8)
{
    const points p = points_of(c);
    const int64_t left = c->units - t * UNITS, units = left < UNITS ? left : UNITS;
    const uint8_t *codes = c->codes[book] + t * UNITS * c->panels * 2 * half_bytes(is_e8);
    for (int64_t panel = 0; panel < c->panels; panel++, codes += units * 2 * half_bytes(is_e8)) {
        int64_t m = 0;
        if (c->rows == 1) {
            __m512i s[QN_VQ_PLANES];
            one_by_panel(&p, is_e8, codes, units, c->digits + t * QN_VQ_PLANES * QN_VQ_TILE_K, s);
            add_tile(c->sums + panel * QN_VQ_PANEL, s, c->offsets + t * 4, c->scales[t] * c->unit[book]);
            continue;
        }
        decode_panel(&p, is_e8, codes, units, c->scratch);
        for (; m + ROWS <= c->rows; m += ROWS) {
            rows_by_lines(c, ROWS, m, t, units, book, panel);
        }
        for (; m < c->rows; m++) {
            rows_by_lines(c, 1, m, t, units, book, panel);
        }
    }
}

static void lattice_mm(const qn_vq_lattice_call *c)
{
    memset(c->sums, 0, (size_t)c->rows * QN_VQ_BLOCK * sizeof *c->sums);
    for (int64_t t = 0; t * UNITS < c->units; t++) {
        for (int book = 0; book < c->books; book++) {
            if (c->last_is_e8 && book == c->books - 1) {
                tile_by_book(c, t, book, 1);
            } else {
                tile_by_book(c, t, book, 0);
            }
        }
    }
}

static int lattice_digits(const float *x, int8_t *planes, float *scale, int32_t offsets[4])
{
    return digits_of(x, _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), QN_VQ_LATTICE_BIAS,
                     planes, scale, offsets);
}

/* ---- Hadamard transforms ---- */

QN_INLINE __mmask16 first_lanes(int64_t count)
{
    return (__mmask16)(count < 16 ? (1u << count) - 1u : 0xffffu);
}

QN_INLINE __m512 butterfly(__m512 v, const int half)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i bit = _mm512_set1_epi32(half);
    const __m512 other = _mm512_permutexvar_ps(_mm512_xor_si512(lane, bit), v);
    return _mm512_mask_sub_ps(_mm512_add_ps(v, other), _mm512_test_epi32_mask(lane, bit), other, v);
}

/* Walsh-Hadamard transforms of x[n], n a power of two, times a scale that comes first: no sum is then larger than the
 * norm of x. */
static void walsh(float *x, int64_t n, float scale)
{
    const __mmask16 some = first_lanes(n);
    for (int64_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, x + i), _mm512_set1_ps(scale));
        v = n > 1 ? butterfly(v, 1) : v;
        v = n > 2 ? butterfly(v, 2) : v;
        v = n > 4 ? butterfly(v, 4) : v;
        v = n > 8 ? butterfly(v, 8) : v;
        _mm512_mask_storeu_ps(x + i, some, v);
    }
    for (int64_t half = 16; half < n; half *= 2) {
        for (int64_t i = 0; i < n; i += 2 * half) {
            for (int64_t j = i; j < i + half; j += 16) {
                const __m512 a = _mm512_loadu_ps(x + j), b = _mm512_loadu_ps(x + j + half);
                _mm512_storeu_ps(x + j, _mm512_add_ps(a, b));
                _mm512_storeu_ps(x + j + half, _mm512_sub_ps(a, b));
            }
        }
    }
}

/* out[base][fast] = mix x; bases are multiples of four. */
static void multiply(const float *x, int64_t base, int64_t fast, const float *mix, float *out)
{
    for (int64_t f = 0; f < fast; f += 16) {
        const __mmask16 some = first_lanes(fast - f);
        for (int64_t i = 0; i < base; i += 4) {
            __m512 s[4];
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                s[r] = _mm512_setzero_ps();
            }
            for (int64_t j = 0; j < base; j++) {
                const __m512 v = _mm512_maskz_loadu_ps(some, x + j * fast + f);
#pragma GCC unroll 4
                for (int r = 0; r < 4; r++) {
                    s[r] = _mm512_fmadd_ps(_mm512_set1_ps(mix[(i + r) * base + j]), v, s[r]);
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                _mm512_mask_storeu_ps(out + (i + r) * fast + f, some, s[r]);
            }
        }
    }
}

static void turn(float *x, int64_t n, int64_t base, const float *mix, float *scratch)
{
    const int64_t fast = n / base;
    const float scale = (float)(1.0 / __builtin_sqrt((double)n));
    for (int64_t i = 0; i < base; i++) {
        walsh(x + i * fast, fast, scale);
    }
    if (base > 1) {
        multiply(x, base, fast, mix, scratch);
        memcpy(x, scratch, (size_t)n * sizeof *x);
    }
}

const qn_vq_lattice_set qn_vq_lattice__avx512vnni = {lattice_mm, lattice_digits, turn};
