/* Units of vector-quantised weights, whose codes are read first and then turned into the floats that codebooks have for
 * them. All of it may be done before x is there.
 *
 * Parameters
 *   STAGED   bytes of codebooks that a block copies into shared memory, for columns that all use the same; 0: entries
 *            are read where they lie (gptvq's always)
 *   aqlm     BOOKS of 2^BITS entries of eight elements; STORED bits of a code in memory; BOOK_FORMAT; SCALE_FORMAT of
 *            a row's scale, which its sum is multiplied by
 *   gptvq    a book and a scale a tile of 256 x 256, books of a row of tiles side by side
 *   vptq     BOOKS 1 or 2 (residuals) of ENTRIES and RES_ENTRIES, BITS and RES_BITS; entries are eight rows of a
 *            column, of which a warp has COLUMNS, 4 or 8; BOOK_FORMAT, RES_FORMAT; SCALE_FORMAT, SHIFT_FORMAT of
 *            columns of x (format + 1, 0: none); PERM 1: places of columns are given
 * A unit is eight elements of a row, of vptq a column of COLUMNS rows. Its codes are whole bytes, 4 at most, and lie at
 * a multiple of their number, if that is 2 or 4; entries of 16 bytes lie at a multiple of that, so do gptvq's books. */
#ifndef QN_CUDA_MM_VECTORS_H
#define QN_CUDA_MM_VECTORS_H

#define ACROSS (B_FORMAT == QN_MM_VPTQ) /* a unit has all of a warp's columns */
#if B_FORMAT == QN_MM_AQLM
#define UNIT 8
#define UNIT_BYTES (BOOKS * STORED / 8)
#define BOOK_BYTES (16 << BITS)
#elif B_FORMAT == QN_MM_GPTVQ
#define UNIT 8
#define UNIT_BYTES 2
#define BOOK_BYTES 1024
#define TILE_UNITS 32
#else
#define UNIT 1
#define UNIT_BYTES ((BITS + RES_BITS) / 8)
#define BOOK_BYTES (16 * ENTRIES)
#endif

struct codes {
    u32 word;
#if B_FORMAT != QN_MM_AQLM
    float scale;
#endif
#if ACROSS
    float shift;
    int column; /* of x */
#endif
};

struct raw {
#if ACROSS
    float v[COLUMNS];
    int column;
#else
    float v[8];
#endif
};

/* Codebooks of a row: where the first lies and how far the next, or in shared memory without gaps. */
#if STAGED
typedef u32 address;
#define LOAD_ENTRY(type, at) load_shared_##type(at)
#define BOOK(b, i) ((b).at + (u32)(i) * BOOK_BYTES)
#else
typedef const u8 *address;
#define LOAD_ENTRY(type, at) load_constant_##type(at)
#define BOOK(b, i) ((b).at + (i) * (b).step)
#endif

struct books {
    address at;
    i64 step;
};

DEV float load_early(const void *data, i64 i, int format)
{
    if (format == QN_MM_F32) {
        return __uint_as_float(load_constant_u32((const u32 *)data + i));
    }
    const u32 bits = load_constant_u16((const u16 *)data + i);
    return format == QN_MM_F16 ? half_float(bits) : __uint_as_float(bits << 16);
}

/* The codes of a unit of a row that begins there. */
DEV codes load_codes(const qn_cuda_mm_part &p, const u8 *row, const u8 *scales, int unit)
{
    const u8 *const at = row + (i64)unit * UNIT_BYTES;
    codes c;
#if UNIT_BYTES == 4
    c.word = load_constant_u32(at);
#elif UNIT_BYTES == 2
    c.word = load_constant_u16(at);
#else
    c.word = load_constant_u8(at);
#pragma unroll
    for (int i = 1; i < UNIT_BYTES; i++) {
        c.word |= load_constant_u8(at + i) << 8 * i;
    }
#endif
#if B_FORMAT == QN_MM_GPTVQ
    c.scale = load_early(scales, unit / TILE_UNITS, QN_MM_F32);
#elif ACROSS
    c.column = PERM ? (int)load_constant_u16((const u16 *)p.perm + unit) : unit;
#endif
    return c;
}

/* What can be read of a column of x once its place is known. */
DEV void load_column(const qn_cuda_mm_part &p, int k, codes *c)
{
#if ACROSS
    c->column = c->column < k ? c->column : k - 1;
#if SCALE_FORMAT
    c->scale = load_early(p.b_scale, c->column, SCALE_FORMAT - 1);
#endif
#if SHIFT_FORMAT
    c->shift = load_early(p.shift, c->column, SHIFT_FORMAT - 1);
#endif
#endif
}

DEV void floats_of(u32 pair, int format, float *v)
{
    if (format == QN_MM_F16) {
        half_floats(pair, v);
    } else {
        v[0] = __uint_as_float(pair << 16);
        v[1] = __uint_as_float(pair & 0xffff0000u);
    }
}

#if B_FORMAT == QN_MM_GPTVQ
/* Signed byte j of four whose highest bits are turned: the low bits of 2^23. A conversion has a quarter of the rate. */
DEV float byte_float(u32 turned, int j)
{
    return __uint_as_float(__byte_perm(turned, 0x4b000000u, 0x7440u | (u32)j)) - 8388736.0f;
}

DEV raw look_up(const codes &c, const books &b, int unit, int first)
{
    raw r;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 entry = LOAD_ENTRY(u32, BOOK(b, unit / TILE_UNITS) + (c.word >> 8 * i & 0xff) * 4) ^ 0x80808080u;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            r.v[4 * i + j] = c.scale * byte_float(entry, j);
        }
    }
    return r;
}
#else
/* The 16-bit floats of book i that a unit has: pairs in 4 words, or 2. */
DEV void load_pairs(const codes &c, const books &b, int i, int first, u32 *pairs)
{
#if ACROSS
    const u32 code = i ? c.word >> BITS : c.word & (u32)((1ull << BITS) - 1), last = i ? RES_ENTRIES - 1 : ENTRIES - 1;
    const address at = BOOK(b, i) + ((code < last ? code : last) * 16 + (u32)first * 2);
#else
    const address at = BOOK(b, i) + (c.word >> i * STORED & ((1u << BITS) - 1)) * 16;
#endif
#if ACROSS && COLUMNS == 4
    const uint2 v = LOAD_ENTRY(u32x2, at);
#else
    const uint4 v = LOAD_ENTRY(u32x4, at);
    pairs[2] = v.z, pairs[3] = v.w;
#endif
    pairs[0] = v.x, pairs[1] = v.y;
}

/* first: of vptq the warp's first row in a vector. */
DEV raw look_up(const codes &c, const books &b, int unit, int first)
{
    const int count = ACROSS ? COLUMNS : 8;
    raw r;
#pragma unroll
    for (int i = 0; i < BOOKS; i++) {
        u32 pairs[4];
        load_pairs(c, b, i, first, pairs);
#pragma unroll
        for (int j = 0; j < count; j += 2) {
            float two[2];
#if ACROSS
            floats_of(pairs[j / 2], i ? RES_FORMAT : BOOK_FORMAT, two);
#else
            floats_of(pairs[j / 2], BOOK_FORMAT, two);
#endif
            r.v[j] = i ? r.v[j] + two[0] : two[0];
            r.v[j + 1] = i ? r.v[j + 1] + two[1] : two[1];
        }
    }
#if ACROSS
    r.column = c.column;
#pragma unroll
    for (int j = 0; j < count; j++) {
#if SCALE_FORMAT
        r.v[j] = r.v[j] * c.scale;
#endif
#if SHIFT_FORMAT
        r.v[j] = r.v[j] + c.shift;
#endif
    }
#endif
    return r;
}
#endif

#if !ACROSS
DEV void decode8(const raw &r, int j, float *v)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = r.v[i];
    }
}
#endif

/* Where row n's codes begin, and its codebooks. */
DEV const u8 *codes_of(const qn_cuda_mm_part &p, int n)
{
    return (const u8 *)p.b + (i64)(ACROSS ? n / 8 : n) * p.b_row;
}

DEV const u8 *books_of(const qn_cuda_mm_part &p, int n)
{
    return (const u8 *)p.books + (B_FORMAT == QN_MM_GPTVQ ? n / 256 * p.books_row : 0);
}

#endif
