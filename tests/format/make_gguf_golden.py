#!/usr/bin/env python3
"""Make gguf_golden.bin: block formats as the public `gguf` Python package reads and writes them.

Usage: make_gguf_golden.py OUT   (needs numpy and gguf; made with gguf 0.19.0)

Little-endian records, each: i32 kind (1 decode, 2 encode), i32 ggml type, i32 blocks, i32 bytes a block,
i32 elements a block, then the block bytes and the floats. Kind 1: random bytes with chosen scales, and what
they decode to. Kind 2: floats, and the bytes they encode to. The file ends with kind 0.
"""
import struct
import sys

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
SMALL = [Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0]
SUPER = [Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K]
TABLE = [Q.IQ4_NL, Q.IQ4_XS]
FP4 = [Q.MXFP4, Q.NVFP4]
VECTORS = [Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS, Q.IQ3_S, Q.IQ1_S, Q.IQ1_M, Q.TQ1_0, Q.TQ2_0]
# Where the f16 fields (d, then m or dmin) of a block are.
F16_FIELDS = {Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0], Q.Q2_K: [80, 82], Q.Q3_K: [108],
              Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208],
              Q.IQ4_NL: [0], Q.IQ4_XS: [0], Q.MXFP4: [], Q.NVFP4: [],
              Q.IQ2_XXS: [0], Q.IQ2_XS: [0], Q.IQ2_S: [0], Q.IQ3_XXS: [0], Q.IQ3_S: [0], Q.IQ1_S: [0], Q.IQ1_M: [],
              Q.TQ1_0: [52], Q.TQ2_0: [64]}
SCALES = [1.0, -0.0123, 6.1e-5, 5.96e-8, 65504.0, 0.0, -0.0, 3.14159e-3]


def record(out, kind, q, blocks, elements, codes, floats):
    out.write(struct.pack("<5i", kind, q.value, blocks, codes.size // blocks, elements))
    out.write(codes.astype(np.uint8).tobytes())
    out.write(floats.astype("<f4").tobytes())


def inputs(rng):
    rows = [np.zeros(32), np.full(32, 1.5), np.full(32, -2.25), np.arange(32) - 16.0, np.arange(32) / 4 - 3.5,
            np.r_[np.zeros(31), -7.0], np.r_[8.0, np.full(31, -8.0)], np.r_[-8.0, np.full(31, 8.0)],
            np.linspace(-127.5, 127, 32), np.r_[127.0, np.arange(31) + 0.5], np.full(32, 1e-9),
            np.linspace(1e6, 2e6, 32)]
    rows += [rng.standard_normal(32) * 2.0 ** rng.integers(-18, 10) + rng.integers(-1, 2) for _ in range(36)]
    return np.array(rows, dtype=np.float32)


def main():
    rng = np.random.default_rng(20250801)
    x = inputs(rng)
    with open(sys.argv[1], "wb") as out, np.errstate(all="ignore"):
        for q in SMALL + SUPER + TABLE + FP4 + VECTORS:
            elements, size = gguf.GGML_QUANT_SIZES[q]
            blocks = 8 if q in SMALL or q in VECTORS else 4
            codes = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
            for i, at in enumerate(F16_FIELDS[q]):
                for b in range(blocks):
                    scale = np.float16(SCALES[(b + 3 * i) % len(SCALES)])
                    codes[b, at:at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
            if q == Q.MXFP4:
                codes[:, 0] = [0, 1, 127, 252]  # beyond, the package's floats overflow where a scale of 2^128 is NaN here
            if q == Q.IQ1_M:
                for b in range(blocks):  # the nibbles of d are the upper ones of four words
                    scale = int(np.float16(SCALES[b]).view(np.uint16))
                    for i in range(4):
                        codes[b, 49 + 2 * i] = codes[b, 49 + 2 * i] & 15 | (scale >> 4 * i & 15) << 4
            if q == Q.NVFP4:
                codes[:, :4] &= 127  # signs that no file has
                codes[0, :4] = [0, 1, 126, 127]
            record(out, 1, q, blocks, elements, codes, gguf.quants.dequantize(codes, q))
        for q in SMALL:
            record(out, 2, q, len(x), 32, gguf.quants.quantize(x, q), x)
        out.write(struct.pack("<5i", 0, 0, 0, 0, 0))


main()
