/* Declarations of the codecs that the table in formats.c refers to: one line a
 * format. Each codec reads and writes whole blocks at any alignment; bytes are
 * little-endian. The counts were checked by the caller (qn_decode, qn_encode). */
#ifndef QN_FORMAT_CODECS_H
#define QN_FORMAT_CODECS_H

#include "format/format.h"

#define QN_DECODER(name) void qn_decode_##name(const void *source, int64_t count, float *destination)
#define QN_ENCODER(name) void qn_encode_##name(const float *source, int64_t count, void *destination)
#define QN_CODEC(name) \
    QN_DECODER(name);  \
    QN_ENCODER(name)

/* f32.c */
QN_CODEC(f32);
QN_CODEC(f64);
/* f16.c */
QN_CODEC(f16);
QN_CODEC(bf16);
/* integers.c */
QN_CODEC(i8);
QN_CODEC(u8);
QN_CODEC(i16);
QN_CODEC(u16);
QN_CODEC(i32);
QN_CODEC(u32);
QN_CODEC(i64);
QN_CODEC(u64);
QN_CODEC(bool);
/* f8.c */
QN_CODEC(f8_e4m3);
QN_CODEC(f8_e4m3fnuz);
QN_CODEC(f8_e5m2);
QN_CODEC(e8m0);
/* f4.c */
QN_CODEC(f4_e2m1);
/* gguf_blocks.c */
QN_CODEC(q4_0);
QN_CODEC(q4_1);
QN_CODEC(q5_0);
QN_CODEC(q5_1);
QN_CODEC(q8_0);
QN_DECODER(iq4_nl);
/* gguf_fp4.c */
QN_DECODER(mxfp4);
QN_DECODER(nvfp4);
/* gguf_vectors.c */
QN_DECODER(i8_k);
#define QN_VECTORS(name) \
    QN_DECODER(name);    \
    void qn_rewrite_##name(const void *blocks, int64_t count, void *out)
QN_VECTORS(tq1_0);
QN_VECTORS(tq2_0);
QN_VECTORS(iq2_xxs);
QN_VECTORS(iq2_xs);
QN_VECTORS(iq2_s);
QN_VECTORS(iq3_xxs);
QN_VECTORS(iq3_s);
QN_VECTORS(iq1_s);
QN_VECTORS(iq1_m);
/* gguf_super_blocks.c */
QN_DECODER(q2_k);
QN_DECODER(q3_k);
QN_DECODER(q4_k);
QN_DECODER(q5_k);
QN_DECODER(q6_k);
QN_DECODER(iq4_xs);

/* The values that four-bit codes stand for in IQ4_NL and IQ4_XS. */
extern const int8_t qn_iq4_values[16];

#endif
