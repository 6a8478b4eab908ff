/* Rows of the case table (cases.c) for the vector-quantised operators: every
 * format with its options, tails and empty sizes; bench rows of Llama 8B. */
#include <stddef.h>

#include "op/op.h"

static const struct {
    const char *text;
    int32_t bench;
} cases[] = {
    {"vq_dequantize n=19 k=64", 0},
    {"vq_dequantize n=7 k=48 num_codebooks=1 nbits_per_codebook=16 codebooks=bf16", 0},
    {"vq_dequantize n=5 k=40 num_codebooks=1", 0},
    {"vq_dequantize n=6 k=64 num_codebooks=3 nbits_per_codebook=5 in_group_size=4", 0},
    {"vq_dequantize n=9 k=72 nbits_per_codebook=12 codes=u8", 0},
    {"vq_dequantize n=9 k=72 nbits_per_codebook=12", 0},
    {"vq_dequantize n=8 k=32 num_codebooks=8 in_group_size=32", 0},
    {"vq_dequantize n=12 k=24 out_group_size=4 codebooks=f32", 0},
    {"vq_dequantize n=0 k=64", 0},
    {"vq_dequantize n=4 k=0", 0},
    {"vq_dequantize n=32 k=64 format=quip_e8p", 0},
    {"vq_dequantize n=32 k=128 format=quip_e8p SU=1 SV=1", 0},
    {"vq_dequantize n=48 k=128 format=quip_e8p codebook=E8P12RVQ4B SU=1", 0},
    {"vq_dequantize n=16 k=192 format=quip_e8p codebook=E8P12RVQ3B", 0},
    {"vq_dequantize n=112 k=448 format=quip_e8p SU=1 SV=f32 Wscale=1 scaleWH=1 codebook_id=1", 0},
    {"vq_dequantize n=19 k=40 format=vptq in_features=40 out_features=19", 0},
    {"vq_dequantize n=16 k=50 format=vptq num_centroids=512 num_res_centroids=16"
     " res_centroids.weight=1 perm=1 weight_scale=1 weight_bias=1",
     0},
    {"vq_dequantize n=26 k=70 format=vptq vector_len=6 num_centroids=100 group_num=3"
     " outlier_size=10 out_features=26 outlier_centroids.weight=1 outlier_indices=1 perm=1",
     0},
    {"vq_dequantize n=300 k=520 format=gptvq", 0},
    {"vq_dequantize n=3 k=4 format=gptvq", 0},
    {"vq_mm m=1 n=19 k=64", 0},
    {"vq_mm m=1 n=130 k=320", 0},
    {"vq_mm m=1 n=257 k=1032 out=f32 x=bf16 codebooks=bf16", 0},
    {"vq_mm m=1 n=300 k=520 format=gptvq", 0},
    {"vq_mm m=1 n=64 k=256 format=gptvq out=f32 x=bf16", 0},
    {"vq_mm m=3 n=19 k=64", 0},
    {"vq_mm m=3 n=130 k=320", 0},
    {"vq_mm m=3 n=257 k=1032 out=f32 x=bf16 codebooks=bf16", 0},
    {"vq_mm m=3 n=300 k=520 format=gptvq", 0},
    {"vq_mm m=3 n=64 k=256 format=gptvq out=f32 x=bf16", 0},
    {"vq_mm m=8 n=19 k=64", 0},
    {"vq_mm m=8 n=130 k=320", 0},
    {"vq_mm m=8 n=257 k=1032 out=f32 x=bf16 codebooks=bf16", 0},
    {"vq_mm m=8 n=300 k=520 format=gptvq", 0},
    {"vq_mm m=8 n=64 k=256 format=gptvq out=f32 x=bf16", 0},
    {"vq_mm m=17 n=19 k=64", 0},
    {"vq_mm m=17 n=130 k=320", 0},
    {"vq_mm m=17 n=257 k=1032 out=f32 x=bf16 codebooks=bf16", 0},
    {"vq_mm m=17 n=300 k=520 format=gptvq", 0},
    {"vq_mm m=17 n=64 k=256 format=gptvq out=f32 x=bf16", 0},
    {"vq_mm m=1 n=70 k=136 num_codebooks=1 nbits_per_codebook=16", 0},
    {"vq_mm m=5 n=33 k=40 num_codebooks=1 out=bf16 x=bf16 bias=1", 0},
    {"vq_mm m=2 n=33 k=64 num_codebooks=3 nbits_per_codebook=5 in_group_size=4 out=f32", 0},
    {"vq_mm m=2 n=9 k=72 nbits_per_codebook=12 out=f32 codes=u8", 0},
    {"vq_mm m=3 n=8 k=64 num_codebooks=8 in_group_size=32 x=f32 codes=u8", 0},
    {"vq_mm m=3 n=12 k=24 out_group_size=4 out=f32", 0},
    {"vq_mm m=9 n=64 k=128 out=f32 x=f32 bias=f16", 0},
    {"vq_mm m=0 n=8 k=16", 0},
    {"vq_mm m=2 n=3 k=0 bias=1", 0},
    {"vq_mm m=2 n=0 k=16", 0},
    {"vq_mm m=2 n=5 k=4 format=gptvq out=f32 x=f32 bias=1", 0},
    {"vq_mm m=1 n=1 k=2048 out=f32", 0},
    {"vq_mm m=2 n=1100 k=24 out=f32 x=f32", 0},
    {"vq_mm m=1 n=32 k=64 format=quip_e8p out=f32", 0},
    {"vq_mm m=3 n=32 k=128 format=quip_e8p SU=1 SV=1", 0},
    {"vq_mm m=5 n=48 k=128 format=quip_e8p codebook=E8P12RVQ4B out=f32 SU=1", 0},
    {"vq_mm m=2 n=16 k=192 format=quip_e8p codebook=E8P12RVQ3B out=f32", 0},
    {"vq_mm m=4 n=112 k=448 format=quip_e8p out=f32 x=bf16 SU=1 SV=1 Wscale=1 scaleWH=1 bias=1", 0},
    {"vq_mm m=1 n=19 k=40 format=vptq out_features=19 out=f32", 0},
    {"vq_mm m=3 n=16 k=50 format=vptq num_centroids=512 num_res_centroids=16 out=f32"
     " res_centroids.weight=1 perm=1 weight_scale=1 weight_bias=1",
     0},
    {"vq_mm m=6 n=26 k=70 format=vptq vector_len=6 num_centroids=100 group_num=3"
     " outlier_size=10 out_features=26 x=bf16 outlier_centroids.weight=1 outlier_indices=1 perm=1 bias=1",
     0},
    {"vq_encode m=5 n=2 k=16 e=3", 0},
    {"vq_encode m=1 n=1 k=12 e=2 channels=2 bits=5 x=bf16", 0},
    {"vq_encode m=3 n=1 k=16 e=1 channels=8 bits=10 x=f16 codebook=bf16", 0},
    {"vq_encode m=0 n=1 k=8 e=2", 0},
    {"vq_encode m=2 n=0 k=8 e=2", 0},
    {"vq_attention m=2 n=9 k=16 e=4 g=2", 0},
    {"vq_attention m=1 n=130 k=64 e=6 g=2 channels=2", 0},
    {"vq_attention m=3 n=33 k=16 e=2 g=2 rope_theta=1e+04", 0},
    {"vq_attention m=2 n=20 k=24 e=4 g=1 scale=0.5 rope_theta=1e+04 rope_style=interleaved"
     " channels=8 bits=6 q=bf16",
     0},
    {"vq_attention m=2 n=7 k=16 e=1 g=1 channels=8 bits=10", 0},
    {"vq_attention m=2 n=0 k=8 e=2 g=1", 0},
    {"vq_attention m=3 n=200 k=16 e=4 g=2 rope_theta=1e+04 window=40", 0},
    {"vq_attention m=2 n=130 k=64 e=3 g=1 channels=2 window=64 k_recent=f32 v_recent=bf16", 0},
    {"vq_attention m=0 n=4 k=8 e=2 g=1", 0},
    {"vq_mm m=1 n=4096 k=14336 x=bf16", 1},
    {"vq_mm m=1 n=4096 k=14336 format=gptvq x=bf16", 1},
    {"vq_mm m=2 n=4096 k=14336 x=bf16", 2},
    {"vq_mm m=2 n=4096 k=14336 format=gptvq x=bf16", 2},
    {"vq_mm m=4 n=4096 k=14336 x=bf16", 2},
    {"vq_mm m=4 n=4096 k=14336 format=gptvq x=bf16", 2},
    {"vq_mm m=8 n=4096 k=14336 x=bf16", 1},
    {"vq_mm m=8 n=4096 k=14336 format=gptvq x=bf16", 1},
    {"vq_mm m=16 n=4096 k=14336 x=bf16", 2},
    {"vq_mm m=16 n=4096 k=14336 format=gptvq x=bf16", 2},
    {"vq_mm m=64 n=4096 k=14336 x=bf16", 2},
    {"vq_mm m=64 n=4096 k=14336 format=gptvq x=bf16", 2},
    {"vq_mm m=512 n=4096 k=14336 x=bf16", 2},
    {"vq_mm m=512 n=4096 k=14336 format=gptvq x=bf16", 2},
    {"vq_mm m=1 n=4096 k=4096 x=bf16", 2},
    {"vq_mm m=1 n=4096 k=4096 format=gptvq x=bf16", 2},
    {"vq_mm m=8 n=4096 k=4096 x=bf16", 2},
    {"vq_mm m=8 n=4096 k=4096 format=gptvq x=bf16", 2},
    {"vq_mm m=1 n=14336 k=4096 x=bf16", 2},
    {"vq_mm m=1 n=14336 k=4096 format=gptvq x=bf16", 2},
    {"vq_mm m=8 n=14336 k=4096 x=bf16", 2},
    {"vq_mm m=8 n=14336 k=4096 format=gptvq x=bf16", 2},
    {"vq_mm m=1 n=4096 k=14336 num_codebooks=1 nbits_per_codebook=16 x=bf16", 2},
    {"vq_mm m=1 n=4096 k=14336 nbits_per_codebook=12 x=bf16 codes=u8", 2},
    {"vq_mm m=1 n=4096 k=14336 format=quip_e8p x=bf16 SU=1 SV=1", 2},
    {"vq_mm m=1 n=4096 k=14336 format=vptq num_centroids=65536 x=bf16", 2},
    {"vq_attention m=1 n=4096 k=128 e=32 g=32", 2},
    {"vq_attention m=1 n=4096 k=128 e=32 g=32 channels=2", 2},
    {"vq_encode m=1 n=1 k=128 e=32", 2},
};

const char *qn_vq_case_at(int32_t i, int32_t *bench)
{
    if (i < 0 || (size_t)i >= sizeof cases / sizeof *cases) {
        return NULL;
    }
    if (bench) {
        *bench = cases[i].bench;
    }
    return cases[i].text;
}
