#!/usr/bin/env python3
"""Quern's attention over vector-quantised and over plain keys and values beside PyTorch's: one GPU, one run.

    bench/compare_attention.py --lib build/release/libquern.so [--cubins DIR] [ladder shapes encode plain] >results.jsonl

Every side runs as a CUDA graph of back-to-back calls over copies of the caches that the L2 cache cannot hold; the time is the
median of the replays. Some heads of each of Quern's results are checked against f64 attention over the decoded cache. Codes
are as skewed as those of a trained codebook sorted by frequency: its first quarter serves 44 %. One JSON line a case.
"""
import argparse
import json
import sys

try:
    import torch
except ImportError:
    sys.exit("compare_attention: skipped, PyTorch is not installed")

from quern_c import Args, BF16, F16, F32, I32, Quern, U8, time_graph, view_of

CALLS_US = 1500  # of a graph
PLAIN = [(512, 512, 9, 3, 64, 1), (2048, 2048, 9, 3, 64, 1), (8192, 8192, 9, 3, 64, 1), (512, 512, 32, 8, 128, 1),
         (2048, 2048, 32, 8, 128, 1), (8192, 8192, 32, 8, 128, 1), (2048, 2048, 32, 32, 128, 0), (2048, 2048, 32, 8, 64, 1),
         (128, 8192, 32, 8, 128, 1), (2048, 2048, 24, 8, 96, 1)]  # queries, keys, heads, key heads, size, causal


class Cache:
    """Codes [sequence, token, head, group]; in memory tokens of a head, or heads of a token, lie side by side."""

    def __init__(self, b, t, h, d, c, by_heads):
        outer, inner = (h, t) if by_heads else (t, h)
        skew = lambda: (torch.rand(b, outer, inner, d // c, device="cuda").pow_(1.7) * 256).clamp_(max=255).to(torch.uint8)
        self.k, self.v = (x.transpose(1, 2) if by_heads else x for x in (skew(), skew()))


def attention(q, b, hq, h, t, d, c, level, sets, extra=""):
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
    plan.run(args[0])
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
    us = time_graph(lambda i: plan.run(args[i]), len(args), 30, CALLS_US)
    plan.close()
    return {"case": text, "us": round(us, 2), "error": float(f"{worst:.2g}"),
            "gbps": round((2 * b * t * h * d // c + 2 * kb.numel() * 2) / us * 1e-3)}


def sdpa(b, hq, h, t, d):
    bytes = 2 * b * h * t * d * 2
    copies = max(2, int(300e6 / bytes) + 1)
    kv = [torch.randn(2, b, h, t, d, device="cuda", dtype=torch.float16) for _ in range(copies)]
    x = torch.randn(b, hq, 1, d, device="cuda", dtype=torch.float16)
    call = lambda i: torch.nn.functional.scaled_dot_product_attention(x, kv[i][0], kv[i][1], enable_gqa=hq != h)
    us = time_graph(call, copies, bytes / 4e6, CALLS_US)
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
                "caches": [Cache(b, t, h, d, c, False) for _ in range(copies)]}
        for level in levels:
            row = attention(q, b, hq, h, t, d, c, level, sets)
            row["over_sdpa"] = round(base["us"] / row["us"], 2)
            print(json.dumps(row), flush=True)
        if "auto" in levels:
            row = attention(q, b, hq, h, t, d, c, "auto", sets, " rope_theta=1e+04")
            row["over_sdpa"] = round(base["us"] / row["us"], 2)
            print(json.dumps(row), flush=True)
            sets["caches"] = [Cache(b, t, h, d, c, True) for _ in range(copies)]
            row = attention(q, b, hq, h, t, d, c, "auto", sets)
            row.update({"layout": "by heads", "over_sdpa": round(base["us"] / row["us"], 2)})
            print(json.dumps(row), flush=True)


def encode(q, b, t, h, d, c):
    text = f"vq_encode m={t} n={b} k={d} e={h}" + (f" channels={c}" if c != 4 else "") + " x=f16"
    plan = q.plan(text, t)
    x = torch.randn(b, t, h, d, device="cuda", dtype=torch.float16)
    book = torch.randn(h, d // c, 256, c, device="cuda", dtype=torch.float16)
    codes = torch.zeros(b, t, h, d // c, device="cuda", dtype=torch.uint8)
    a = Args()
    a.inputs[0], a.inputs[1], a.outputs[0] = view_of(x, F16), view_of(book, F16), view_of(codes, U8)
    plan.run(a)
    torch.cuda.synchronize()
    want = torch.cdist(x[0, 0].reshape(h * (d // c), 1, c).float(), book.reshape(h * (d // c), 256, c).float()).argmin(-1)
    same = (want.reshape(-1) == codes[0, 0].reshape(-1)).float().mean().item()
    us = time_graph(lambda i: plan.run(a), 1, 5, CALLS_US)
    print(json.dumps({"case": text, "us": round(us, 2), "same_as_cdist": round(same, 5)}), flush=True)
    plan.close()


def plain(q, m, n, hq, h, d, causal, name):
    """attention of m queries on n keys in that format; queries and heads as a model's projections leave them."""
    dtype, format = {"f32": (torch.float32, F32), "f16": (torch.float16, F16), "bf16": (torch.bfloat16, BF16)}[name]
    text = f"attention m={m} n={n} k={d} e={hq} g={h} causal={causal} q={name} k={name} v={name} out={name}"
    plan = q.plan(text, m)
    copies = max(2, int(200e6 / ((2 * m * hq + 2 * n * h) * d * 2)) + 1)
    sets, args = [], []
    for _ in range(min(copies, 12)):
        x, k, v = (torch.randn(rows, heads, d, device="cuda", dtype=dtype) for rows, heads in ((m, hq), (n, h), (n, h)))
        out = torch.full((m, hq, d), float("nan"), device="cuda", dtype=dtype)
        a = Args()
        for i, tensor in enumerate((x, k, v)):
            a.inputs[i] = view_of(tensor, format)
        a.outputs[0] = view_of(out, format)
        sets.append((x, k, v, out))
        args.append(a)
    plan.run(args[0])
    torch.cuda.synchronize()
    x, k, v, out = sets[0]
    worst = 0.0
    for head in (0, hq - 1):
        kv = head * h // hq
        scores = x[:, head].double() @ k[:, kv].double().T / d ** 0.5
        if causal:
            scores.masked_fill_(torch.ones(m, n, device="cuda").tril(n - m) == 0, float("-inf"))
        want = torch.softmax(scores, -1) @ v[:, kv].double()
        worst = max(worst, ((out[:, head].double() - want).norm() / want.norm()).item())
    row = {"case": text, "error": float(f"{worst:.2g}")}
    row["us"] = round(time_graph(lambda i: plan.run(args[i]), len(args), None, 4000), 2)
    plan.close()
    if name != "f32" and m == n:
        heads = [tuple(t.transpose(0, 1)[None] for t in s[:3]) for s in sets]
        call = lambda i: torch.nn.functional.scaled_dot_product_attention(*heads[i], is_causal=bool(causal), enable_gqa=hq != h)
        row["sdpa_us"] = round(time_graph(call, len(heads), None, 4000), 2)
        row["over_sdpa"] = round(row["sdpa_us"] / row["us"], 2)
    print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", required=True)
    parser.add_argument("--cubins")
    parser.add_argument("--levels", default="auto")
    parser.add_argument("--formats", default="f32,f16,bf16", help="of plain attention")
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
    if "plain" in what:
        for m, n, hq, h, d, causal in PLAIN:
            for name in options.formats.split(","):
                plain(q, m, n, hq, h, d, causal, name)
    if "encode" in what:
        for b, t, h in [(1, 1, 32), (8, 1, 32), (1, 1, 8), (1, 1024, 32), (1, 1024, 8)]:
            for c in (2, 4):
                encode(q, b, t, h, 128, c)


if __name__ == "__main__":
    main()
