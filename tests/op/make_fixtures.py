#!/usr/bin/env python3
"""Make tests/op/fixtures/*.safetensors: operator inputs with the outputs that
docs/operators.md asks for, computed here from that text with numpy alone.

Nothing of the library is used: formats are tables of their values, roundings
are done on exact rationals or doubles, sums of quantised products are exact.

One file an operator. Case NAME in it is the tensors NAME/case (U8: "op
key=value ..."), NAME/tol (U8[1]), NAME/in.SLOT and NAME/out.SLOT.
tol 0: every backend bit for bit (any NaN for a NaN); 1: the reference bit for
bit, others by the error model; 2: all by the error model.

    python3 tests/op/make_fixtures.py            writes the files
"""
import json
import math
import os
import struct
from fractions import Fraction

import numpy as np

f32 = np.float32
rng = np.random.default_rng(20240917)
np.seterr(all="ignore")


# ---- formats ---------------------------------------------------------------
class Small:
    """A small float: the values of its codes 0..top with the sign bit clear."""

    def __init__(self, values, nan, sign, negative_zero=True):
        self.values, self.nan, self.sign, self.negative_zero = values, nan, sign, negative_zero
        self.middles = [(Fraction(a) + Fraction(b)) / 2 for a, b in zip(values, values[1:])]

    def encode_one(self, x):
        x = float(x)
        if math.isnan(x):
            return self.nan
        if math.isinf(x):
            code = len(self.values) - 1
        else:
            a, code = Fraction(abs(x)), 0
            lo, hi = 0, len(self.middles)
            while lo < hi:  # number of middles below a
                mid = (lo + hi) // 2
                if self.middles[mid] < a:
                    lo = mid + 1
                else:
                    hi = mid
            code = lo
            if code < len(self.middles) and self.middles[code] == a and code % 2 == 1:
                code += 1  # tie to the even code
        negative = math.copysign(1.0, x) < 0
        if negative and (code or self.negative_zero):
            code |= self.sign
        return code

    def encode(self, x):
        x = np.asarray(x, dtype=f32)
        return np.array([self.encode_one(v) for v in x.ravel()], dtype=np.uint8).reshape(x.shape)

    def decode(self, codes):
        table = np.full(256, np.nan)
        for i, v in enumerate(self.values):
            table[i] = v
            table[i | self.sign] = -v
        if not self.negative_zero:
            table[self.sign] = np.nan
        return table[codes]


def float_values(exponent_bits, mantissa_bits, bias, count):
    out = []
    for code in range(count):
        e, m = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        scale = 2.0 ** ((e if e else 1) - bias - mantissa_bits)
        out.append((m + ((1 << mantissa_bits) if e else 0)) * scale)
    return out


E4M3 = Small(float_values(4, 3, 7, 0x7F), 0x7F, 0x80)
FNUZ = Small(float_values(4, 3, 8, 0x80), 0x80, 0x80, negative_zero=False)
E5M2 = Small(float_values(5, 2, 15, 0x7C), 0x7F, 0x80)
E2M1 = Small([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], 0, 0x8)
TYPES = {"e4m3fn": (E4M3, 448.0, "F8_E4M3"), "e4m3fnuz": (FNUZ, 224.0, "U8"), "e5m2": (E5M2, 57344.0, "F8_E5M2")}


def bf16_bits(x):
    u = np.asarray(x, dtype=f32).view(np.uint32).astype(np.uint64)
    r = (u + 0x7FFF + ((u >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    nan = np.isnan(np.asarray(x, dtype=f32))
    return np.where(nan, 0x7FC0, r).astype(np.uint16)


def bf16_value(bits):
    return (bits.astype(np.uint32) << 16).view(f32)


def as_type(x, dtype):
    """Stored bits and the f32 values they stand for."""
    x = np.asarray(x, dtype=f32)
    if dtype == "F16":
        h = x.astype(np.float16)
        return h, h.astype(f32)
    if dtype == "BF16":
        b = bf16_bits(x)
        return b, bf16_value(b)
    return x, x


def round_fraction(value, mantissa, lowest, limit):
    """The nearest (even) float with `mantissa` stored bits and lowest exponent, as a double."""
    if value == 0:
        return 0.0
    a = abs(value)
    e = a.numerator.bit_length() - a.denominator.bit_length()
    if Fraction(2) ** e > a:
        e -= 1
    quantum = Fraction(2) ** (max(e, lowest) - mantissa)
    q = a / quantum
    n = q.numerator // q.denominator
    rest = q - n
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and n % 2):
        n += 1
    r = float(n * quantum)
    if r > limit:
        r = math.inf
    return math.copysign(r, value)


OUT = {"bf16": (7, -126, 3.3895313892515355e38, "BF16"), "f16": (10, -14, 65504.0, "F16"),
       "f32": (23, -126, 3.4028234663852886e38, "F32")}


def store(values, out):
    """Doubles (or Fractions) rounded once to the output type."""
    m, low, limit, dtype = OUT[out]
    shape = np.shape(values)
    flat = []
    for v in np.asarray(values, dtype=object).ravel():
        if not isinstance(v, Fraction):
            v = float(v)
            if math.isnan(v) or math.isinf(v) or v == 0:
                flat.append(v)
                continue
            v = Fraction(v)
        flat.append(round_fraction(v, m, low, limit))
    r = np.array(flat, dtype=np.float64).reshape(shape)
    if dtype == "F32":
        return ("F32", r.astype(f32))
    if dtype == "F16":
        return ("F16", r.astype(np.float16))
    return ("BF16", bf16_bits(r.astype(f32)))


# ---- files -----------------------------------------------------------------
files = {}
seen = {}


def case(text, tol, ins, outs):
    op = text.split()[0]
    seen[text] = seen.get(text, 0) + 1
    if op == "dequantize" and seen[text] > 2:  # every quantize case comes with its way back: two a kind are enough
        return
    tensors = files.setdefault(op, {})
    number = sum(1 for n in tensors if n.endswith("/case"))
    prefix = "%03d" % number
    tensors[prefix + "/case"] = ("U8", np.frombuffer(text.encode(), dtype=np.uint8))
    tensors[prefix + "/tol"] = ("U8", np.array([tol], dtype=np.uint8))
    for slot, t in ins.items():
        tensors[prefix + "/in." + slot] = t
    for slot, t in outs.items():
        tensors[prefix + "/out." + slot] = t


def write(path, tensors):
    header, parts, at = {}, [], 0
    order = sorted(tensors, key=lambda n: (-tensors[n][1].dtype.itemsize, n))  # aligned without padding
    for name in order:
        dtype, array = tensors[name]
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


# ---- values ----------------------------------------------------------------
def normal(*shape):
    return rng.standard_normal(shape).astype(f32)


def attrs(**kw):
    return "".join(" %s=%s" % (k, v) for k, v in kw.items() if v is not None)


def regions(m, k, granularity, group):
    """(rows, columns, index of the scale) of every region."""
    if granularity == "tensor":
        return [(slice(0, m), slice(0, k), (0,))]
    if granularity == "token":
        return [(slice(i, i + 1), slice(0, k), (i, 0)) for i in range(m)]
    rows, columns = (1, group) if granularity == "group" else (128, 128)
    return [(slice(i, min(m, i + rows)), slice(j, min(k, j + columns)), (i // rows, j // columns))
            for i in range(0, m, rows) for j in range(0, k, columns)]


def scale_shape(m, k, granularity, group):
    if granularity == "tensor":
        return (1,)
    if granularity == "token":
        return (m, 1)
    rows, columns = (1, group) if granularity == "group" else (128, 128)
    return (-(-m // rows), -(-k // columns))


def amax_of(x):
    a = np.abs(x[~np.isnan(x)])
    return f32(a.max()) if a.size else f32(0)


def pow2_ceil(s):
    m, e = math.frexp(float(s))
    return f32(2.0 ** (e - 1 if m == 0.5 else e))


# ---- quantize_fp8 ----------------------------------------------------------
def quantize_fp8(x, granularity, group, type_, ub, ue8m0, static):
    codec, most, dtype = TYPES[type_]
    m, k = x.shape
    scale = np.zeros(scale_shape(m, k, granularity, group), dtype=f32)
    q = np.zeros((m, k), dtype=np.uint8)
    for rows, columns, at in regions(m, k, granularity, group):
        part = x[rows, columns]
        if static is not None:
            s = static[at]
        else:
            amax = amax_of(part)
            if ub and amax > f32(ub):
                amax = f32(ub)
            if granularity in ("group", "block"):
                s = max(amax, f32(1e-10)) / f32(most)
            else:
                s = max(amax / f32(most), f32(1) / f32(most * 512))
            if ue8m0 and not np.isinf(s):
                s = pow2_ceil(max(s, f32(1e-10)))
        scale[at] = s
        if static is not None or granularity == "tensor":
            v = part * (f32(1) / f32(s))
        else:
            v = part / f32(s)
        v = np.where(np.isnan(v), v, np.clip(v, f32(-most), f32(most)))
        q[rows, columns] = codec.encode(v)
    return (dtype, q), ("F32", scale)


def add_fp8(x, tol, granularity=None, group=None, type=None, scale_ub=None, scale_format=None, scale_layout=None,
            static=None, dtype="F32"):
    stored, x = as_type(x, dtype)
    q, scale = quantize_fp8(x, granularity or "tensor", group or 128, type or "e4m3fn", scale_ub,
                            scale_format == "ue8m0", static)
    col = scale_layout == "col"
    turn = (lambda a: np.ascontiguousarray(a.T)) if col else (lambda a: a)
    ins = {"x": (dtype, stored)}
    if static is not None:
        ins["scale"] = ("F32", turn(static))
    text = "quantize_fp8" + attrs(granularity=granularity, group=group, mode="static" if static is not None else None,
                                  type=type, scale_ub=scale_ub, scale_format=scale_format, scale_layout=scale_layout)
    outs = {"q": q, "scale": ("F32", turn(scale[1]))}
    case(text, tol, ins, outs)
    # and back
    dq = np.zeros(x.shape, dtype=f32)
    codec = TYPES[type or "e4m3fn"][0]
    for rows, columns, at in regions(x.shape[0], x.shape[1], granularity or "tensor", group or 128):
        dq[rows, columns] = codec.decode(q[1][rows, columns]).astype(f32) * scale[1][at]
    case("dequantize" + text[len("quantize_fp8"):], 0 if tol == 0 else 1, outs, {"x": ("F32", dq)})


def special_rows(k):
    """Rows that meet the edges: zeros, NaN, infinities, tiny, huge, ties."""
    x = normal(8, k)
    x[0] = 0
    x[1, k // 2] = np.nan
    x[2, 0] = np.inf
    x[3, k - 1] = -np.inf
    x[4] *= f32(1e-38)
    x[5] = np.linspace(-3e38, 3e38, k, dtype=f32)
    x[6] = np.nan
    x[7] = -x[7] * 0
    return x


def make_fp8():
    for k in (1, 2, 17, 63, 64, 65, 100, 127, 128, 129, 200, 255):
        add_fp8(normal(3, k), 1, "token")
        add_fp8(normal(3, k) * f32(50), 1, "group", dtype="BF16")
    for k in (1, 31, 129):
        add_fp8(normal(5, k), 1, dtype="F16")
        add_fp8(normal(130 if k == 31 else 3, k), 1, "block")
        add_fp8(normal(3, k), 1, "group", group=16)
    for type_ in ("e4m3fnuz", "e5m2"):
        for g in (None, "token", "group", "block"):
            add_fp8(normal(3, 130), 1, g, type=type_)
        add_fp8(special_rows(33), 0, "token", type=type_)
        grid = np.array([[240, 232, 224, 220, -240, -224, 57344, 1e6, 0.5, -0.001, 0, -0.0]], dtype=f32)
        add_fp8(grid, 0, type=type_, static=np.array([1], dtype=f32))
    for m in (0, 1):
        for g in ("token", "group", "block"):
            add_fp8(normal(m, 40), 1, g)
    add_fp8(normal(3, 0), 0, "token")
    add_fp8(np.zeros((3, 40)), 0)
    for g in ("token", "group", "block"):
        add_fp8(np.zeros((3, 40)), 0, g)
        add_fp8(special_rows(40), 0, g)
        add_fp8(special_rows(40), 0, g, scale_format="ue8m0")
    for i in range(7):
        add_fp8(special_rows(20)[i:i + 1], 0)
    add_fp8(np.zeros((2, 130)), 0, "group", scale_format="ue8m0")
    add_fp8(np.full((1, 128), 672.0), 0, "group", scale_format="ue8m0")
    for g in ("token", "group", "block", None):
        add_fp8(normal(4, 200), 1, g, scale_format="ue8m0")
        add_fp8(normal(4, 200) * f32(3), 0, g, scale_ub=0.75)
    add_fp8(normal(4, 200), 1, "token", scale_ub=100.0)
    add_fp8(normal(5, 300), 1, "group", scale_layout="col")
    add_fp8(normal(1, 300), 1, "group", scale_layout="col", scale_format="ue8m0")
    add_fp8(normal(5, 70), 0, "group", group=32, scale_layout="col", static=np.abs(normal(5, 3)) * f32(0.01))
    ties = np.array([[2.0 ** -10, 3 * 2.0 ** -10, 17, 19, 464, 448, 465, -464, 1e30, -1e30, 2.0 ** -9, 0]], dtype=f32)
    add_fp8(ties, 0, static=np.array([1], dtype=f32))
    add_fp8(special_rows(24), 0, static=np.array([0.25], dtype=f32))
    add_fp8(special_rows(24), 0, static=np.array([0], dtype=f32))
    add_fp8(normal(3, 77), 0, "token", static=np.abs(normal(3, 1)) * f32(0.02))
    add_fp8(normal(3, 177), 0, "group", static=np.abs(normal(3, 2)) * f32(0.02))
    add_fp8(normal(130, 131), 0, "block", static=np.abs(normal(2, 2)) * f32(0.02), dtype="BF16")


# ---- quantize_int8 ---------------------------------------------------------
def rint32(v):
    r = np.rint(v.astype(np.float64))
    r = np.where(np.isnan(r), 0, r)
    return np.clip(r, -2.0 ** 31, 2.0 ** 31 - 1).astype(np.int64)


def sat8(v):
    return np.clip(v, -128, 127).astype(np.int8)


def int8_asymmetric(low, high):
    low, high = min(f32(low), f32(0)), max(f32(high), f32(0))
    s = (high - low) / f32(255)
    if s == 0:
        return f32(1), 0
    return s, int(np.clip(rint32(np.array(f32(-128) - low / s))[()], -128, 127))


def quantize_int8_part(x, granularity, symmetric, static, azp):
    if symmetric:
        if static is not None:
            return static, 0, sat8(rint32(x / f32(static)))
        amax = amax_of(x)
        if granularity == "group":
            s = max(amax, f32(1e-10)) / f32(127)
            return s, 0, sat8(rint32(x / s))
        s = amax / f32(127)
        return s, 0, sat8(rint32(x * (f32(0) if amax == 0 else f32(127) / amax)))
    if static is not None:
        s, z = f32(static), int(azp)
    else:
        good = x[~np.isnan(x)]
        s, z = int8_asymmetric(good.min() if good.size else 0, good.max() if good.size else 0)
    return s, z, sat8(rint32(x * (f32(1) / s)) + z)


def add_int8(x, tol, granularity=None, group=None, symmetric=None, static=None, azp=None, dtype="F32"):
    stored, x = as_type(x, dtype)
    m, k = x.shape
    shape = scale_shape(m, k, granularity or "tensor", group or 128)
    scale, zero = np.zeros(shape, dtype=f32), np.zeros(shape, dtype=np.int32)
    q, dq = np.zeros((m, k), dtype=np.int8), np.zeros((m, k), dtype=f32)
    for rows, columns, at in regions(m, k, granularity or "tensor", group or 128):
        s, z, codes = quantize_int8_part(x[rows, columns], granularity, symmetric != 0,
                                         None if static is None else static[at], None if azp is None else azp[at])
        scale[at], zero[at], q[rows, columns] = s, z, codes
        dq[rows, columns] = (codes.astype(np.int64) - z).astype(f32) * f32(s)
    ins, outs = {"x": (dtype, stored)}, {"q": ("I8", q), "scale": ("F32", scale)}
    if static is not None:
        ins["scale"] = ("F32", static)
        if azp is not None:
            ins["azp"] = ("I32", azp)
    if symmetric == 0:
        outs["azp"] = ("I32", zero)
    text = attrs(granularity=granularity, group=group, mode="static" if static is not None else None,
                 symmetric=symmetric)
    case("quantize_int8" + text, tol, ins, outs)
    case("dequantize format=int8" + text, 0 if tol == 0 else 1, outs, {"x": ("F32", dq)})


def make_int8():
    for symmetric in (None, 0):
        for k in (1, 2, 17, 64, 100, 127, 128, 129, 255):
            add_int8(normal(3, k), 1, "token", symmetric=symmetric)
            add_int8(normal(3, k), 1, "group", group=64, symmetric=symmetric, dtype="BF16")
        for m, k in ((1, 40), (0, 40), (5, 77)):
            add_int8(normal(m, k), 1, None if m else "token", symmetric=symmetric, dtype="F16")
        for g in ("token", "group"):
            add_int8(special_rows(40), 0, g, symmetric=symmetric)
            add_int8(np.zeros((3, 40)), 0, g, symmetric=symmetric)
            add_int8(np.full((2, 40), 3.5), 0, g, symmetric=symmetric)   # constant rows: the range includes 0
            add_int8(np.full((2, 40), -3.5), 0, g, symmetric=symmetric)
            add_int8(np.abs(normal(2, 40)) + f32(5), 0, g, symmetric=symmetric)
        for i in range(7):
            add_int8(special_rows(20)[i:i + 1], 0, symmetric=symmetric)
    scale = np.array([0.05], dtype=f32)
    limits = np.array([[0, 6.4, -6.4, 6.375, 1e9, -1e9, 1e38, -1e38, 0.025, 0.075, 0.125, -0.025, np.nan, np.inf,
                        -np.inf, 1.0737418e8]], dtype=f32)
    add_int8(limits, 0, static=scale)
    for z in (-128, 127, 0, 54, -255, 2 ** 31 - 1, -2 ** 31):
        add_int8(limits, 0, static=scale, azp=np.array([z], dtype=np.int32), symmetric=0)
    add_int8(normal(3, 70), 0, "token", static=np.abs(normal(3, 1)) * f32(0.05))
    add_int8(normal(3, 70), 0, "token", static=np.abs(normal(3, 1)) * f32(0.05), symmetric=0,
             azp=np.array([[-128], [127], [5]], dtype=np.int32))
    add_int8(normal(3, 70), 0, "group", group=32, static=np.abs(normal(3, 3)) * f32(0.05), symmetric=0,
             azp=rng.integers(-128, 128, (3, 3)).astype(np.int32))


# ---- NVFP4, MXFP4 ----------------------------------------------------------
def pack4(codes):
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def swizzle(scale):
    m, kb = scale.shape
    rows, columns = -(-m // 128) * 128, -(-kb // 4) * 4
    out = np.zeros(rows * columns, dtype=np.uint8)
    for i in range(m):
        for b in range(kb):
            out[((i // 128) * (columns // 4) + b // 4) * 512 + (i % 32) * 16 + (i % 128) // 32 * 4 + b % 4] = scale[i, b]
    return out.reshape(rows, columns)


def quantize_nvfp4(x, given=None):
    m, k = x.shape
    amax = min(max(amax_of(x), f32(2.0 ** -40)), np.finfo(f32).max)
    g = f32(2688) / amax if given is None else f32(given)
    scale, codes = np.zeros((m, k // 16), dtype=np.uint8), np.zeros((m, k), dtype=np.uint8)
    for i in range(m):
        for b in range(k // 16):
            part = x[i, b * 16:b * 16 + 16]
            scale[i, b] = E4M3.encode_one(g * (amax_of(part) * (f32(1) / f32(6))))
            s = f32(E4M3.decode(scale[i, b]))
            r = f32(0) if s == 0 else f32(1) / (s * (f32(1) / g))
            codes[i, b * 16:b * 16 + 16] = E2M1.encode(part * r)
    return codes, scale, g


def add_nvfp4(x, tol, swizzled=None, given=None, dtype="F32"):
    stored, x = as_type(x, dtype)
    codes, scale, g = quantize_nvfp4(x, given)
    ins = {"x": (dtype, stored)}
    if given is not None:
        ins["global_scale"] = ("F32", np.array([given], dtype=f32))
    outs = {"q": ("U8", pack4(codes)), "scale": ("U8", swizzle(scale)) if swizzled else ("F8_E4M3", scale),
            "global_scale": ("F32", np.array([g], dtype=f32))}
    case("quantize_nvfp4" + attrs(swizzled=swizzled), tol, ins, outs)
    dq = (E2M1.decode(codes).astype(f32) * np.repeat(E4M3.decode(scale), 16, axis=1).astype(f32)) / g
    case("dequantize format=nvfp4" + attrs(swizzled=swizzled), 0 if tol == 0 else 1, outs, {"x": ("F32", dq)})


def mx_exponent(amax, rule):
    if amax == 0:
        return -127
    if np.isinf(amax):
        return 127
    a = Fraction(float(amax))
    if rule == "ceil":
        e = -150
        while 6 * Fraction(2) ** e < a:
            e += 1
    else:
        e = -150
        while Fraction(2) ** (e + 1) <= a:
            e += 1
        if rule == "even" and a >= Fraction(7, 4) * Fraction(2) ** e:
            e += 1
        e -= 2
    return max(-127, min(127, e))


def quantize_mxfp4(x, rule):
    m, k = x.shape
    scale, codes = np.zeros((m, k // 32), dtype=np.uint8), np.zeros((m, k), dtype=np.uint8)
    for i in range(m):
        for b in range(k // 32):
            part = x[i, b * 32:b * 32 + 32]
            e = mx_exponent(amax_of(part), rule)
            scale[i, b] = e + 127
            codes[i, b * 32:b * 32 + 32] = E2M1.encode(np.ldexp(part, -e).astype(f32))
    return codes, scale


def add_mxfp4(x, tol, rule=None, dtype="F32"):
    stored, x = as_type(x, dtype)
    codes, scale = quantize_mxfp4(x, rule or "ceil")
    outs = {"q": ("U8", pack4(codes)), "scale": ("U8", scale)}
    case("quantize_mxfp4" + attrs(rule=rule), tol, {"x": (dtype, stored)}, outs)
    dq = (E2M1.decode(codes) * np.repeat(2.0 ** (scale.astype(np.float64) - 127), 32, axis=1)).astype(f32)
    case("dequantize format=mxfp4" + attrs(rule=rule), 0 if tol == 0 else 1, outs, {"x": ("F32", dq)})


def make_fp4():
    for m, k in ((1, 16), (3, 32), (5, 176), (0, 64), (2, 0), (130, 32)):
        for s in (None, 1):
            add_nvfp4(normal(m, k), 1, s, dtype="F32" if m != 5 else "BF16")
    add_nvfp4(normal(4, 80), 1, given=100.0, dtype="F16")
    add_nvfp4(normal(33, 80), 1, 1, given=700.0)
    for i in range(8):
        add_nvfp4(special_rows(48)[i:i + 1], 0)
    add_nvfp4(special_rows(48), 0, given=32.0)
    add_nvfp4(normal(2, 64) * f32(1e-26), 0)
    steps = np.array([[0, .25, .2500001, .75, 1.25, 1.75, 2.5, 3.5, 5, 5.0001, 6, 7, -.25, -.75, -5, -6]], dtype=f32)
    add_nvfp4(steps, 0, given=448.0)
    for rule in (None, "ocp", "even"):
        for m, k in ((1, 32), (3, 96), (0, 64), (2, 0)):
            add_mxfp4(normal(m, k), 1, rule, dtype="F32" if m != 3 else "BF16")
        add_mxfp4(special_rows(64), 0, rule)
        edge = np.zeros((12, 32), dtype=f32)
        edge[:, 0] = [6, np.nextafter(f32(6), f32(7)), 7, np.nextafter(f32(7), f32(6)), 8, 4, 3.5, 1.75, 1e-45, 2.0 ** -126,
                      3.4e38, 0.75]
        edge[:, 1] = [5, 3.5, 2.5, 1.75, 1.25, .75, .25, -.25, 0, 0, 0, 0]
        add_mxfp4(edge, 0, rule)


# ---- scaled_mm -------------------------------------------------------------
def fma32(a, t, c):
    return round_fraction(Fraction(float(a)) * Fraction(float(t)) + Fraction(float(c)), *OUT["f32"][:3])


def grid_fp8(*shape):
    return E4M3.encode(rng.integers(-4, 5, shape).astype(f32))


def random_fp8(*shape):
    return E4M3.encode(normal(*shape) * f32(60))


def add_scaled(m, n, k, int8, tol, token=0, channel=0, out=None, bias=None, adj=0, azp=0, extremes=0, scale=1.0):
    if int8:
        a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (n, k)))
        if extremes:
            a[:], b[:] = -128, rng.choice(np.array([-128, 127], dtype=np.int8), (n, k))
        av, bv = a.astype(np.int64), b.astype(np.int64)
    else:
        a, b = (grid_fp8(m, k), grid_fp8(n, k)) if tol == 0 else (random_fp8(m, k), random_fp8(n, k))
        av, bv = E4M3.decode(a), E4M3.decode(b)
    sa = (np.abs(normal(m, 1)) + f32(0.1)) * f32(0.01 * scale) if token else np.array([0.0173 * scale], dtype=f32)
    sb = (np.abs(normal(n, 1)) + f32(0.1)) * f32(0.01) if channel else np.array([0.0031], dtype=f32)
    if channel and n > 2:
        sb[1], sb[2] = -sb[1], 0  # plain arithmetic: sign kept
    dt = "I8" if int8 else "F8_E4M3"
    ins = {"a": (dt, a), "b": (dt, b), "scale_a": ("F32", sa), "scale_b": ("F32", sb)}
    acc = av @ bv.T if k else np.zeros((m, n))
    if adj:
        colsum = bv.sum(axis=1).astype(np.int64)
        z = rng.integers(-128, 128, m)
        if azp:
            if m > 1:
                z[0], z[1] = -128, 127
            ins["azp"], ins["azp_adj"] = ("I32", z.astype(np.int32)), ("I32", colsum.astype(np.int32))
            acc = acc - z[:, None] * colsum[None, :]
        else:
            ins["azp_adj"] = ("I32", (colsum * -7).astype(np.int32))
            acc = acc + 7 * colsum[None, :]
    if bias:
        stored, bvals = as_type(normal(n), bias)
        ins["bias"] = (bias, stored)
    t = np.asarray(acc, dtype=np.float64).astype(f32) * sb.reshape(1, -1)
    if bias:
        r = np.array([[fma32(sa.ravel()[i if token else 0], t[i, j], bvals[j]) for j in range(n)] for i in range(m)],
                     dtype=np.float64).reshape(m, n)
    else:
        r = (t * sa.reshape(-1, 1)).astype(np.float64)
    case("scaled_mm" + attrs(out=out), 1 if int8 else (1 if tol else 0), ins, {"d": store(r, out or "bf16")})


def make_scaled():
    for int8 in (1, 0):
        for m, n, k in ((1, 1, 1), (3, 17, 33), (2, 64, 64), (4, 127, 127), (1, 129, 63), (5, 2, 100), (3, 31, 16),
                        (0, 8, 16), (3, 0, 16), (2, 5, 0), (16, 16, 129)):
            add_scaled(m, n, k, int8, 1, token=m % 2, channel=n % 2)
            add_scaled(m, n, k, int8, 0, token=n % 2, channel=1, out=("f32", "f16")[k % 2])
        for token in (0, 1):
            for channel in (0, 1):
                add_scaled(3, 9, 40, int8, 1, token, channel, out="f32", bias="F32")
                add_scaled(3, 9, 40, int8, 1, token, channel, bias=("BF16", "F16")[token])
        add_scaled(2, 5, 0, int8, 0, bias="F32", out="f32")
    for token in (0, 1):
        add_scaled(4, 7, 65, 1, 0, 1, 1, adj=1, azp=token)
        add_scaled(4, 7, 65, 1, 0, token, 1, bias="F32", adj=1, azp=1, out="f32")
        add_scaled(2, 3, 300, 1, 0, token, 1, adj=1, azp=token, extremes=1, out="f32")
    add_scaled(2, 3, 2048, 1, 0, extremes=1, out="f32")
    # int32 wraps: 131072 * 16384 = 2^31, with a zero-point term that wraps back
    ins = {"a": ("I8", np.full((1, 1), -128, dtype=np.int8)), "b": ("I8", np.full((2, 1), -128, dtype=np.int8)),
           "scale_a": ("F32", np.array([1], dtype=f32)), "scale_b": ("F32", np.array([1], dtype=f32)),
           "azp_adj": ("I32", np.array([-2 ** 31, 2 ** 31 - 1], dtype=np.int32)),
           "azp": ("I32", np.array([255], dtype=np.int32))}
    wrap = [(16384 - 255 * v + 2 ** 31) % 2 ** 32 - 2 ** 31 for v in (-2 ** 31, 2 ** 31 - 1)]
    case("scaled_mm out=f32", 0, ins, {"d": ("F32", np.array([wrap], dtype=np.float64).astype(f32))})
    nan = E4M3.encode(np.array([[1, np.nan, 2], [1, 1, 1]], dtype=f32))
    ins = {"a": ("F8_E4M3", nan), "b": ("F8_E4M3", E4M3.encode(np.ones((2, 3)))),
           "scale_a": ("F32", np.array([1], dtype=f32)), "scale_b": ("F32", np.array([[1], [np.inf]], dtype=f32))}
    case("scaled_mm out=f32", 0, ins, {"d": ("F32", np.array([[np.nan, np.nan], [3, np.inf]], dtype=f32))})


# ---- block_scaled_mm, grouped ----------------------------------------------
def block_scaled(a, sa, b, sb):
    """Doubles; a[M,K], sa[M,KB], b[N,K], sb[NB,KB] as values."""
    m, k = a.shape
    n = b.shape[0]
    d = np.zeros((m, n))
    for kb in range(-(-k // 128)):
        cut = slice(kb * 128, min(k, kb * 128 + 128))
        partial = a[:, cut] @ b[:, cut].T
        d += sa[:, kb:kb + 1].astype(np.float64) * np.repeat(sb[:, kb], 128)[:n].astype(np.float64) * partial
    return d


def scales(exact, *shape):
    if exact:
        return (2.0 ** rng.integers(-3, 4, shape)).astype(f32)
    return ((np.abs(normal(*shape)) + f32(0.1)) * f32(0.01)).astype(f32)


def add_block(m, n, k, tol, out=None, col=0):
    kb, nb = -(-k // 128), -(-n // 128)
    make = grid_fp8 if tol == 0 else random_fp8
    a, b, sa, sb = make(m, k), make(n, k), scales(tol == 0, m, kb), scales(tol == 0, nb, kb)
    d = block_scaled(E4M3.decode(a), sa, E4M3.decode(b), sb)
    ins = {"a": ("F8_E4M3", a), "scale_a": ("F32", np.ascontiguousarray(sa.T) if col else sa), "b": ("F8_E4M3", b),
           "scale_b": ("F32", sb)}
    case("block_scaled_mm" + attrs(out=out, scale_layout="col" if col else None), tol, ins,
         {"d": store(d, out or "bf16")})


def add_grouped(counts, first, after, n, k, tol, out=None, col=0, masked=0, most=0):
    experts, kb, nb = len(counts), -(-k // 128), -(-n // 128)
    make = grid_fp8 if tol == 0 else random_fp8
    b, sb = make(experts, n, k), scales(tol == 0, experts, nb, kb)
    if masked:
        a, sa = make(experts, most, k), scales(tol == 0, experts, most, kb)
        d = np.zeros((experts, most, n))
        for e, rows in enumerate(counts):
            d[e, :rows] = block_scaled(E4M3.decode(a[e, :rows]), sa[e, :rows], E4M3.decode(b[e]), sb[e])
            sa[e, rows:] = np.nan  # padding is never read
            a[e, rows:] = 0x7F
        sa = np.ascontiguousarray(sa.transpose(0, 2, 1)) if col else sa
        ins = {"masked_m": ("I32", np.array(counts, dtype=np.int32))}
    else:
        offsets = np.cumsum([first] + list(counts)).astype(np.int32)
        total = int(offsets[-1]) + after
        a, sa = make(total, k), scales(tol == 0, total, kb)
        d = np.zeros((total, n))
        for e in range(experts):
            cut = slice(offsets[e], offsets[e + 1])
            d[cut] = block_scaled(E4M3.decode(a[cut]), sa[cut], E4M3.decode(b[e]), sb[e])
        for i in list(range(first)) + list(range(int(offsets[-1]), total)):
            sa[i], a[i] = np.nan, 0x7F
        sa = np.ascontiguousarray(sa.T) if col else sa
        ins = {"offsets": ("I32", offsets)}
    ins.update({"a": ("F8_E4M3", a), "scale_a": ("F32", sa), "b": ("F8_E4M3", b), "scale_b": ("F32", sb)})
    case("grouped_block_scaled_mm" + attrs(layout="masked" if masked else None, out=out,
                                           scale_layout="col" if col else None), tol, ins,
         {"d": store(d, out or "bf16")})


def make_block():
    for m, n, k in ((1, 1, 1), (3, 17, 33), (2, 127, 127), (2, 129, 129), (1, 128, 128), (3, 63, 255), (4, 130, 65),
                    (1, 100, 300), (2, 31, 160), (0, 16, 16), (3, 0, 16), (3, 8, 0), (17, 33, 200)):
        add_block(m, n, k, 0, ("f32", "f16", None)[k % 3])
        add_block(m, n, k, 1, (None, "f32")[m % 2], col=n % 2)
    add_block(5, 140, 257, 0, "f32", col=1)
    add_block(5, 140, 257, 1, "f16", col=1)
    for masked in (0, 1):
        add_grouped((3, 0, 2), 0, 0, 20, 40, 0, "f32", masked=masked, most=4)
        add_grouped((0, 0, 0), 0, 0, 20, 40, 0, masked=masked, most=2)
        add_grouped((1, 5, 0, 2), 2, 3, 33, 130, 0, "f32", masked=masked, most=5)
        add_grouped((1, 5, 0, 2), 0, 1, 130, 257, 1, masked=masked, most=6)
        add_grouped((2, 3), 1, 0, 129, 150, 1, "f16", col=1, masked=masked, most=3)
        add_grouped((4,), 0, 0, 9, 127, 1, masked=masked, most=4)
        add_grouped((2, 1), 0, 0, 9, 0, 0, masked=masked, most=3)
        add_grouped((), 0, 3, 9, 16, 0, masked=masked, most=3)


# ---- nvfp4_mm, mxfp4_mm, dense_mm ------------------------------------------
def fp4_weight(n, k, block, exact):
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    if exact:
        codes = rng.choice(np.array([0, 2, 4, 10, 12], dtype=np.uint8), (n, k))
    if block == 16:
        raw = 2.0 ** rng.integers(-1, 2, (n, k // 16)) if exact else np.abs(normal(n, k // 16)) * 60
        scale = E4M3.encode(raw)
        factor = E4M3.decode(scale)
    else:
        scale = rng.integers(125, 130, (n, k // 32)).astype(np.uint8)
        factor = 2.0 ** (scale.astype(np.float64) - 127)
    return codes, scale, E2M1.decode(codes) * np.repeat(factor, block, axis=1)


def add_fp4_mm(m, n, k, block, tol, out=None, dtype="F32", quantised=0, bias=None):
    exact = tol == 0
    codes, scale, w = fp4_weight(n, k, block, exact)
    g = f32(4.0 if exact else 1234.5)
    ins = {"b": ("U8", pack4(codes)), "b_scale": ("F8_E4M3" if block == 16 else "U8", scale)}
    total = 1.0
    if block == 16:
        ins["b_global"] = ("F32", np.array([g], dtype=f32))
        total = float(g)
    if quantised:
        acodes, ascale, x = fp4_weight(m, k, 16, exact)
        ag = f32(0.5 if exact else 77.25)
        ins.update({"a": ("U8", pack4(acodes)), "a_scale": ("F8_E4M3", ascale),
                    "a_global": ("F32", np.array([ag], dtype=f32))})
        total *= float(ag)
    else:
        stored, x = as_type(rng.integers(-3, 4, (m, k)) if exact else normal(m, k), dtype)
        ins["x"] = (dtype, stored)
    d = x.astype(np.float64) @ w.T / total if k else np.zeros((m, n))
    if bias:
        stored, b = as_type(rng.integers(-3, 4, n) if exact else normal(n), bias)
        ins["bias"] = (bias, stored)
        d = d + b.astype(np.float64)
    case(("nvfp4_mm" if block == 16 else "mxfp4_mm") + attrs(out=out), 0 if exact else 2, ins,
         {"d": store(d, out or "bf16")})


def make_fp4_mm():
    for block in (16, 32):
        for m, n, k in ((1, 1, block), (3, 17, 2 * block), (2, 127, 5 * block), (5, 31, 3 * block), (1, 65, 9 * block),
                        (0, 8, block), (2, 0, block), (2, 5, 0)):
            add_fp4_mm(m, n, k, block, 0, ("f32", None)[m % 2])
            add_fp4_mm(m, n, k, block, 1, ("f16", "f32")[m % 2], dtype=("BF16", "F16")[m % 2], bias=(None, "F32")[n % 2])
            if block == 16:
                add_fp4_mm(m, n, k, block, 0, "f32", quantised=1)
                add_fp4_mm(m, n, k, block, 1, None, quantised=1, bias=("BF16", None)[n % 2])
    for dtype in ("F32", "F16", "BF16"):
        for m, n, k in ((1, 1, 1), (3, 17, 33), (2, 127, 129), (0, 3, 4), (2, 3, 0)):
            for tol in (0, 2):
                xs, x = as_type(rng.integers(-3, 4, (m, k)) if tol == 0 else normal(m, k), "F32")
                bs, b = as_type(rng.integers(-3, 4, (n, k)) if tol == 0 else normal(n, k), dtype)
                zs, z = as_type(rng.integers(-3, 4, n), "F32")
                d = x.astype(np.float64) @ b.astype(np.float64).T + z
                case("dense_mm out=f32", tol, {"x": ("F32", xs), "b": (dtype, bs), "bias": ("F32", zs)},
                     {"d": store(d, "f32")})


# ---- silu_mul_quant --------------------------------------------------------
def add_silu(x, tol, type=None, group=None, scale_layout=None, scale_ub=None, symmetric=None, dtype="BF16"):
    stored, x = as_type(x, dtype)
    t, h = x.shape[0], x.shape[1] // 2
    gate, up = x[:, :h].astype(np.float64), x[:, h:].astype(np.float64)
    v = (gate / (1 + np.exp(-gate)) * up).astype(f32)
    g = 128 if group is None else group or max(h, 1)
    groups = -(-h // g) if group != 0 else 1
    scale, zero = np.zeros((t, groups), dtype=f32), np.zeros((t, groups), dtype=np.int32)
    q = np.zeros((t, h), dtype=np.int8 if type == "int8" else np.uint8)
    for i in range(t):
        for j in range(groups):
            part = v[i, j * g:j * g + g]
            good = part[~np.isnan(part)]
            if symmetric == 0:
                s, z = int8_asymmetric(good.min() if good.size else 0, good.max() if good.size else 0)
                q[i, j * g:j * g + g] = sat8(rint32(part * (f32(1) / s)) + z)
                scale[i, j], zero[i, j] = s, z
                continue
            most = 127.0 if type == "int8" else TYPES[type or "e4m3fn"][1]
            s = amax_of(part) / f32(most)
            if scale_ub and s > f32(scale_ub):
                s = f32(scale_ub)
            s = max(s, np.finfo(f32).eps if type == "int8" else f32(1) / f32(most * 512))
            scale[i, j] = s
            r = part / s
            if type == "int8":
                q[i, j * g:j * g + g] = sat8(rint32(r))
            else:
                r = np.where(np.isnan(r), r, np.clip(r, f32(-most), f32(most)))
                q[i, j * g:j * g + g] = TYPES[type or "e4m3fn"][0].encode(r)
    turn = (lambda a: np.ascontiguousarray(a.T)) if scale_layout == "col" else (lambda a: a)
    dt = "I8" if type == "int8" else TYPES[type or "e4m3fn"][2]
    outs = {"q": (dt, q), "scale": ("F32", turn(scale))}
    if symmetric == 0:
        outs["azp"] = ("I32", turn(zero))
    case("silu_mul_quant" + attrs(type=type, group=group, scale_layout=scale_layout, scale_ub=scale_ub,
                                  symmetric=symmetric), tol, {"x": (dtype, stored)}, outs)


def exact_gate_up(t, h):
    return np.concatenate([32 * rng.integers(0, 3, (t, h)), rng.integers(-4, 5, (t, h))], axis=1)


def make_silu():
    for h in (1, 17, 64, 127, 128, 129, 200, 256):
        add_silu(normal(3, 2 * h) * f32(2), 2)
        add_silu(normal(3, 2 * h) * f32(2), 2, group=64, dtype="F16")
        add_silu(exact_gate_up(2, h), 0, type=("int8", "e4m3fnuz")[h % 2])
    for type_ in (None, "e4m3fnuz", "e5m2", "int8"):
        add_silu(normal(3, 400), 2, type=type_)
        add_silu(normal(3, 400), 2, type=type_, scale_layout="col", group=64)
        add_silu(np.zeros((2, 300)), 0, type=type_)
        add_silu(exact_gate_up(3, 150), 0, type=type_, group=0)
        add_silu(exact_gate_up(3, 150), 0, type=type_, scale_ub=0.01)
        x = exact_gate_up(6, 70).astype(f32)
        x[0, 3], x[1, 75], x[2, 4], x[3, 100], x[4, 0] = np.nan, np.nan, np.inf, np.inf, -np.inf
        x[2, 74] = x[3, 30] = x[4, 70] = 2
        add_silu(x, 0, type=type_)
    add_silu(normal(0, 256), 0)
    add_silu(normal(3, 0), 0)
    add_silu(normal(3, 256), 2, dtype="F32")
    for layout in (None, "col"):
        add_silu(exact_gate_up(3, 150), 0, type="int8", symmetric=0, scale_layout=layout)
        add_silu(normal(3, 300), 2, type="int8", symmetric=0, group=0, scale_layout=layout)


# ---- the model's own operators ---------------------------------------------
def add_rope(style, factors=None):
    x, pos = normal(3, 2, 8), np.array([0, 1, 777], dtype=np.int32)
    y = np.zeros(x.shape)
    for t in range(3):
        for i in range(4):
            angle = pos[t] * 10000.0 ** (-2 * i / 8) / (1.0 if factors is None else float(factors[i]))
            a, b = (2 * i, 2 * i + 1) if style else (i, i + 4)
            xa, xb = x[t, :, a].astype(np.float64), x[t, :, b].astype(np.float64)
            y[t, :, a] = xa * math.cos(angle) - xb * math.sin(angle)
            y[t, :, b] = xb * math.cos(angle) + xa * math.sin(angle)
    inputs = {"x": ("F32", x), "pos": ("I32", pos)}
    if factors is not None:
        inputs["factors"] = ("F32", factors)
    case("rope" + attrs(style=style), 2, inputs, {"y": store(y, "f32")})


def make_model_ops():
    for out in (None, "f16", "f32"):
        stored, x = as_type(normal(3, 74), "F32")
        gate, up = x[:, :37].astype(np.float64), x[:, 37:].astype(np.float64)
        case("silu_mul" + attrs(out=out), 2, {"x": ("F32", stored)},
             {"y": store(gate / (1 + np.exp(-gate)) * up, out or "bf16")})
    for k in (1, 17, 64):
        x, w = normal(3, k), normal(k)
        y = x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + f32(1e-5)) * w
        case("rmsnorm", 2, {"x": ("F32", x), "w": ("F32", w)}, {"y": store(y, "f32")})
    for style in (None, "interleaved"):
        add_rope(style)
    for causal, queries, keys in ((None, 3, 5), (0, 3, 5), (None, 4, 2), (None, 1, 9)):
        q, k, v = normal(queries, 4, 6), normal(keys, 2, 6), normal(keys, 2, 6)
        o = np.zeros(q.shape)
        for t in range(queries):
            seen = keys if causal == 0 else max(0, keys - queries + t + 1)
            for h in range(4):
                if seen:
                    s = k[:seen, h // 2].astype(np.float64) @ q[t, h].astype(np.float64) / math.sqrt(6)
                    p = np.exp(s - s.max())
                    o[t, h] = p / p.sum() @ v[:seen, h // 2].astype(np.float64)
        case("attention" + attrs(causal=causal), 2, {"q": ("F32", q), "k": ("F32", k), "v": ("F32", v)},
             {"o": store(o, "f32")})
    for style in (None, "interleaved"):
        add_rope(style, np.array([1.0, 1.25, 3.7, 8.0], dtype=np.float32))


make_fp8()
make_int8()
make_fp4()
make_scaled()
make_block()
make_fp4_mm()
make_silu()
make_model_ops()
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
os.makedirs(folder, exist_ok=True)
total = 0
for op, tensors in sorted(files.items()):
    count = sum(1 for n in tensors if n.endswith("/case"))
    path = os.path.join(folder, op + ".safetensors")
    write(path, tensors)
    total += count
    print("%-26s %4d cases %8d bytes" % (op, count, os.path.getsize(path)))
print("%d cases" % total)
