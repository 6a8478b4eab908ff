#!/usr/bin/env python3
"""Quern's vq_mm beside PyTorch's f16 product (cuBLAS) of the same sizes: one GPU, one run.

    bench/compare_vq.py --lib build/gpu/libquern.so [--cubins FOLDER] [bars shapes rows prefill] >results.jsonl

Every side runs as a CUDA graph of back-to-back calls over copies of the weights that the L2 cache cannot hold; the time is the
median of the replays. Codes are random (--skew as in planner_grid.py). Some rows of each result are checked against the
f32 kernel for any operands (`direct`) with the same operands, which the kernels' test checks against the reference. One
JSON line a case.
"""
import argparse
import json
import sys

from planner_grid import FORMATS, Operands
from quern_c import F16, Quern, time_graph, torch, view_of

ANCHORS = [(4096, 4096), (11008, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (28672, 8192), (8192, 28672)]
AQLM = {(4096, 4096): 11.2, (11008, 4096): 23.1, (14336, 4096): 28.1, (4096, 14336): 26.5, (8192, 8192): 35.2,
        (28672, 8192): 90.7, (8192, 28672): 91.0}  # microseconds of AQLM's own kernel of 2x8, one row, another run
TURNS = " SU=1 SV=1"
CASES = {
    "shapes": [("aqlm-2x8", "", 1, n, k) for n, k in ANCHORS],
    "bars": [(f, e, 1, 28672, 8192) for f, e in (("aqlm-1x16", ""), ("gptvq-2", ""), ("quip-2", ""), ("quip-2", TURNS), ("aqlm-3", ""))],
    "rows": [("aqlm-2x8", "", m, 28672, 8192) for m in (8, 16, 64)],
    "prefill": [(f, "", 2048, 28672, 8192) for f in ("aqlm-2x8", "gptvq-2", "quip-2", "aqlm-1x16")] +
               [("aqlm-2x8", "", 2048, 4096, 4096), ("aqlm-2x8", "", 512, 14336, 4096)],
}


def cublas(m, n, k, options):
    copies = max(2, (options.memory << 20) // (2 * n * k) + 1)
    weights = [torch.randn(n, k, device="cuda", dtype=torch.float16) * 0.05 for _ in range(copies)]
    x = torch.randn(m, k, device="cuda", dtype=torch.float16)
    return time_graph(lambda i: torch.nn.functional.linear(x, weights[i]), copies, 2 * n * k / 4e6, options.seconds * 1e6)


def result_of(plan, operands, m, n):
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    args = type(operands.args).from_buffer_copy(operands.args)
    args.outputs[0] = view_of(out, F16)
    plan.run(args)
    torch.cuda.synchronize()
    return out.double()


def text_of(case):
    format, extra, m, n, k = case
    return f"vq_mm m={m} n={n} k={k}" + FORMATS[format] + extra


def measure(q, case, options):
    format, extra, m, n, k = case
    text = text_of(case) + options.extra
    plan = q.plan(text, m)
    operands = Operands(q, plan, options.skew, options.memory << 20)
    got = result_of(plan, operands, m, n)
    direct = q.plan(text, m, "qn_vq_mm_fp_vq_fp__sm80_4x8_direct")
    want = result_of(direct, operands, m, n) if m <= 64 or n * k < 1 << 25 else got
    error = ((got - want).norm() / want.norm()).item()
    same = torch.equal(got, result_of(plan, operands, m, n))
    us = time_graph(lambda i: plan.run(operands.turns[i]), len(operands.turns), 20, options.seconds * 1e6)
    row = {"case": text, "us": round(us, 2), "error": float(f"{error:.2g}") if want is not got else None, "same_again": same,
           "code_gbps": round(operands.code_bytes / us * 1e-3)}
    if options.cublas:
        row["cublas_us"] = round(cublas(m, n, k, options), 2)
        row["over_cublas"] = round(row["cublas_us"] / us, 2)
    if format == "aqlm-2x8" and m == 1 and (n, k) in AQLM:
        row["over_aqlm"] = round(AQLM[n, k] / us, 2)
    plan.close()
    direct.close()
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", required=True)
    parser.add_argument("--cubins")
    parser.add_argument("--skew", type=float, default=1.0)
    parser.add_argument("--memory", type=int, default=250, help="MiB that the weights rotate over")
    parser.add_argument("--seconds", type=float, default=0.002, help="of a graph's calls")
    parser.add_argument("--extra", default="", help="words for every case")
    parser.add_argument("--only", default="", help="cases whose text holds the word")
    parser.add_argument("--no-cublas", dest="cublas", action="store_false")
    parser.add_argument("what", nargs="*", default=list(CASES))
    options = parser.parse_args()
    if torch is None:
        sys.exit("compare_vq: skipped, PyTorch is not installed")
    q = Quern(options.lib, options.cubins)
    torch.manual_seed(1)
    for what in options.what or list(CASES):
        for case in CASES[what]:
            if options.only not in text_of(case):
                continue
            try:
                print(json.dumps(measure(q, case, options)), flush=True)
            except RuntimeError as error:
                print(json.dumps({"case": str(case), "failed": str(error)}), flush=True)


if __name__ == "__main__":
    main()
