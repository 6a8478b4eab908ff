#!/usr/bin/env python3
"""Quern's attention over vector-quantised keys and values beside PyTorch's over f16 ones: one GPU, one run.

    bench/compare_attention.py --lib build/release/libquern.so [--cubins FOLDER] [ladder shapes encode] >results.jsonl

Every side runs as a CUDA graph of back-to-back calls over copies of the caches that the L2 cache cannot hold; the time is the
median of the replays. Some heads of each of Quern's results are checked against f64 attention over the decoded cache. Codes
are as skewed as those of a trained codebook sorted by frequency: its first quarter serves 44 %. One JSON line a case.
"""
import argparse
import ctypes
import json
import statistics
import sys

try:
    import torch
except ImportError:
    sys.exit("compare_attention: skipped, PyTorch is not installed")

MAX_IN, MAX_OUT, ATTRS = 20, 4, 37
F32, F16, U8, I32 = 1, 2, 11, 14
LEVELS = ["gc", "sc", "o1", "o2", "o3", "o4", "auto"]


class Shape(ctypes.Structure):
    _fields_ = [("format", ctypes.c_int32), ("ndim", ctypes.c_int32), ("dims", ctypes.c_int64 * 4)]


class View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", Shape), ("strides", ctypes.c_int64 * 4)]


class Desc(ctypes.Structure):
    _fields_ = [("op", ctypes.c_int32), ("attr", ctypes.c_int32 * ATTRS), ("inputs", Shape * MAX_IN)]


class Args(ctypes.Structure):
    _fields_ = [("inputs", View * MAX_IN), ("outputs", View * MAX_OUT), ("packed", ctypes.c_void_p)]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32), ("text", ctypes.c_char * 500)]


class PlanOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("backend", ctypes.c_int32), ("isa", ctypes.c_int32), ("batch_invariant", ctypes.c_int32),
                ("kernel", ctypes.c_char_p)]


class CtxOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("allocator", ctypes.c_void_p * 3), ("log", ctypes.c_void_p * 2), ("isa", ctypes.c_int32),
                ("jit", ctypes.c_int32), ("cache_dir", ctypes.c_char_p), ("cubin_dir", ctypes.c_char_p), ("device", ctypes.c_int32),
                ("cuda", ctypes.c_char_p), ("nvrtc", ctypes.c_char_p)]


class Exec(ctypes.Structure):
    _fields_ = [("pool", ctypes.c_void_p), ("parallel", ctypes.c_void_p * 2), ("threads", ctypes.c_int32), ("stream", ctypes.c_void_p)]


def view_of(tensor, format):
    v = View(data=tensor.data_ptr())
    v.shape.format, v.shape.ndim = format, tensor.dim()
    for i in range(4):
        v.shape.dims[i] = tensor.shape[i] if i < tensor.dim() else 1
        v.strides[i] = tensor.stride(i) * tensor.element_size() if i < tensor.dim() else 0
    return v


class Quern:
    def __init__(self, lib, cubins):
        self.lib = ctypes.CDLL(lib)
        self.lib.qn_plan_workspace_bytes.restype = ctypes.c_size_t
        self.lib.qn_plan_workspace_bytes.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
        self.ctx = ctypes.c_void_p()
        options = CtxOptions()
        self.lib.qn_ctx_options_init(ctypes.byref(options))
        options.cubin_dir = cubins.encode() if cubins else None
        self.must(self.lib.qn_ctx_create, ctypes.byref(options), ctypes.byref(self.ctx))

    def must(self, call, *arguments):
        error = Error()
        if call(*arguments, ctypes.byref(error)) != 0:
            raise RuntimeError(error.text.decode())

    def plan(self, text, rows):
        desc, options, plan = Desc(), PlanOptions(), ctypes.c_void_p()
        self.must(self.lib.qn_op_desc_parse, text.encode(), ctypes.byref(desc))
        self.lib.qn_plan_options_init(ctypes.byref(options))
        options.backend = 3
        self.must(self.lib.qn_plan_create, self.ctx, ctypes.byref(desc), ctypes.byref(options), ctypes.byref(plan))
        bytes = self.lib.qn_plan_workspace_bytes(plan, rows, 1)
        return plan, torch.empty(max(bytes, 64), dtype=torch.uint8, device="cuda"), bytes

    def run(self, plan, args):
        run = Exec(stream=torch.cuda.current_stream().cuda_stream)
        self.must(self.lib.qn_run, plan[0], ctypes.byref(args), ctypes.c_void_p(plan[1].data_ptr()), ctypes.c_size_t(plan[2]),
                  ctypes.byref(run))


def time_graph(call, copies, guess):
    """Microseconds a call, by replays of a graph of calls over the copies."""
    count = max(copies, min(200, int(1500 / max(guess, 5.0))))
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            call(i % copies)
    times = []
    for _ in range(6):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / count)
    return statistics.median(times[1:])


class Cache:
    def __init__(self, b, t, h, d, c):
        skew = lambda: (torch.rand(b, t, h, d // c, device="cuda").pow_(1.7) * 256).clamp_(max=255).to(torch.uint8)
        self.k, self.v = skew(), skew()


def attention(q, b, hq, h, t, d, c, level, sets, extra=""):
    text = f"vq_attention m={b} n={t} k={d} e={hq} g={h} q=f16{extra}"
    text = f"vq_attention m={b} n={t} k={d} e={hq} g={h}{extra}" + (f" channels={c}" if c != 4 else "") + \
        (f" level={level}" if level != "auto" else "") + " q=f16"
    plan = q.plan(text, b)
    kb, vb = sets["books"]
    x, lens = sets["q"], sets["lens"]
    out = torch.full((b, hq, d), float("nan"), device="cuda")
    lse = torch.full((b, hq), float("nan"), device="cuda")
    args = []
    for s in sets["caches"]:
        a = Args()
        for i, (tensor, format) in enumerate([(x, F16), (s.k, U8), (s.v, U8), (kb, F16), (vb, F16), (lens, I32)]):
            a.inputs[i] = view_of(tensor, format)
        a.outputs[0], a.outputs[1] = view_of(out, F32), view_of(lse, F32)
        args.append(a)
    q.run(plan, args[0])
    torch.cuda.synchronize()
    worst = 0.0
    if not extra:
        for bi, hi in [(0, 0), (b - 1, hq - 1)]:
            kv = hi * h // hq
            at = torch.arange(d // c, device="cuda")
            k = kb[kv][at, sets["caches"][0].k[bi, :, kv].long()].reshape(t, d).double()
            v = vb[kv][at, sets["caches"][0].v[bi, :, kv].long()].reshape(t, d).double()
            p = torch.softmax(k @ x[bi, hi].double() / d ** 0.5, 0)
            worst = max(worst, ((out[bi, hi].double() - p @ v).norm() / (p @ v).norm()).item())
    us = time_graph(lambda i: q.run(plan, args[i]), len(args), 30)
    q.lib.qn_plan_destroy(plan[0])
    return {"case": text, "us": round(us, 2), "error": float(f"{worst:.2g}"),
            "gbps": round((2 * b * t * h * d // c + 2 * kb.numel() * 2) / us * 1e-3)}


def sdpa(b, hq, h, t, d):
    bytes = 2 * b * h * t * d * 2
    copies = max(2, int(300e6 / bytes) + 1)
    kv = [torch.randn(2, b, h, t, d, device="cuda", dtype=torch.float16) for _ in range(copies)]
    x = torch.randn(b, hq, 1, d, device="cuda", dtype=torch.float16)
    call = lambda i: torch.nn.functional.scaled_dot_product_attention(x, kv[i][0], kv[i][1], enable_gqa=hq != h)
    us = time_graph(call, copies, bytes / 4e6)
    return {"case": f"sdpa f16 m={b} n={t} k={d} e={hq} g={h}", "us": round(us, 2), "gbps": round(bytes / us * 1e-3)}


def bench(q, b, hq, h, t, d, levels):
    base = sdpa(b, hq, h, t, d)
    print(json.dumps(base), flush=True)
    for c in (2, 4):
        bytes = 2 * b * t * h * d // c
        copies = max(2, min(40, int(200e6 / bytes) + 1))
        sets = {"books": [torch.randn(h, d // c, 256, c, device="cuda", dtype=torch.float16) for _ in range(2)],
                "q": torch.randn(b, hq, d, device="cuda", dtype=torch.float16),
                "lens": torch.full((b,), t, device="cuda", dtype=torch.int32),
                "caches": [Cache(b, t, h, d, c) for _ in range(copies)]}
        for level in levels:
            row = attention(q, b, hq, h, t, d, c, level, sets)
            row["over_sdpa"] = round(base["us"] / row["us"], 2)
            print(json.dumps(row), flush=True)
        if "auto" in levels:
            row = attention(q, b, hq, h, t, d, c, "auto", sets, " rope_theta=1e+04")
            row["over_sdpa"] = round(base["us"] / row["us"], 2)
            print(json.dumps(row), flush=True)


def encode(q, b, t, h, d, c):
    text = f"vq_encode m={t} n={b} k={d} e={h}" + (f" channels={c}" if c != 4 else "") + " x=f16"
    plan = q.plan(text, t)
    x = torch.randn(b, t, h, d, device="cuda", dtype=torch.float16)
    book = torch.randn(h, d // c, 256, c, device="cuda", dtype=torch.float16)
    codes = torch.zeros(b, t, h, d // c, device="cuda", dtype=torch.uint8)
    a = Args()
    a.inputs[0], a.inputs[1], a.outputs[0] = view_of(x, F16), view_of(book, F16), view_of(codes, U8)
    q.run(plan, a)
    torch.cuda.synchronize()
    want = torch.cdist(x[0, 0].reshape(h * (d // c), 1, c).float(), book.reshape(h * (d // c), 256, c).float()).argmin(-1)
    same = (want.reshape(-1) == codes[0, 0].reshape(-1)).float().mean().item()
    us = time_graph(lambda i: q.run(plan, a), 1, 5)
    print(json.dumps({"case": text, "us": round(us, 2), "same_as_cdist": round(same, 5)}), flush=True)
    q.lib.qn_plan_destroy(plan[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", required=True)
    parser.add_argument("--cubins")
    parser.add_argument("--levels", default="auto")
    parser.add_argument("what", nargs="*", default=["ladder", "shapes", "encode"])
    options = parser.parse_args()
    q = Quern(options.lib, options.cubins)
    torch.manual_seed(1)
    what = options.what
    if "ladder" in what:
        for b in (1, 8):
            for t in (1024, 4096):
                bench(q, b, 32, 32, t, 128, options.levels.split(","))
    if "bar" in what:
        bench(q, 8, 32, 32, 4096, 128, ["auto"])
    if "shapes" in what:
        for b, hq, h, t, d in [(16, 32, 8, 4096, 128), (1, 32, 8, 32768, 128), (8, 32, 32, 4096, 64), (3, 32, 32, 3001, 128)]:
            bench(q, b, hq, h, t, d, ["auto"])
    if "encode" in what:
        for b, t, h in [(1, 1, 32), (8, 1, 32), (1, 1, 8), (1, 1024, 32), (1, 1024, 8)]:
            for c in (2, 4):
                encode(q, b, t, h, 128, c)


if __name__ == "__main__":
    main()
