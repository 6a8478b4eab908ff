#!/usr/bin/env python3
"""Quern's CUDA products beside PyTorch's (cuBLASLt) and DeepGEMM's: one GPU, one run, the same operands.

    make                                                                           # gives libquern.so
    bench/compare_torch.py --lib build/release/libquern.so [--cubins FOLDER] [gemm grouped scaled fp4] >results.jsonl

Every side runs as a CUDA graph of back-to-back calls over copies of the operands that the L2 cache cannot hold; the time
is the median of the replays, sides in turn. Some rows of each of Quern's results are checked against f32 products of
the same operands. One JSON line a case. A peer that is not installed is said to be missing; nothing of Quern needs it.
"""
import argparse
import json
import statistics
import sys

try:
    import torch
except ImportError:
    sys.exit("compare_torch: skipped, PyTorch is not installed")
try:
    import deep_gemm
except (ImportError, OSError):
    deep_gemm = None

from quern_c import Args, BF16, F16, F32, F8, I32, I8, MAX_IN, Quern, time_graph, view_of

DTYPE = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16, I8: torch.int8, I32: torch.int32, F8: torch.float8_e4m3fn}
SHAPES = [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
FP4 = [(8192, 28672), (28672, 8192)]
GROUPED = [(6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)]


def dims(shape):
    return [shape.dims[i] for i in range(shape.ndim)]


def operands(plan, given):
    """Tensors of every slot, random where not given, and the views of them."""
    tensors, args = {}, Args()
    for i in range(MAX_IN):
        shape = plan.desc.inputs[i]
        if shape.format == 0:
            continue
        if i in given:
            t = given[i]
        elif shape.format == I8:
            t = torch.randint(-128, 128, dims(shape), dtype=torch.int8, device="cuda")
        elif shape.format == I32:
            t = torch.randint(-100, 100, dims(shape), dtype=torch.int32, device="cuda")
        elif shape.format == F8:
            t = (torch.randn(dims(shape), device="cuda", dtype=torch.bfloat16) * 80).clamp(-448, 448).to(torch.float8_e4m3fn)
        else:
            t = ((torch.rand(dims(shape), device="cuda") + 0.5) * 0.01).to(DTYPE[shape.format])
        tensors[i] = t
        args.inputs[i] = view_of(t, shape.format)
    result = torch.full(dims(plan.out[0]), float("nan"), device="cuda", dtype=DTYPE[plan.out[0].format])
    args.outputs[0] = view_of(result, plan.out[0].format)
    return tensors, result, args


def expand(scale, rows, columns):
    """Block scales to one an element."""
    return scale.repeat_interleave(-(-rows // scale.shape[0]) if scale.shape[0] > 1 else rows, 0)[:rows] \
        .repeat_interleave(128, 1)[:, :columns]


def error_of(got, want):
    got, want = got.double(), want.double()
    return ((got - want).norm() / want.norm()).item()


def rows_of(text):
    return int(text.split(" m=")[1].split(" ")[0])


def report(row):
    print(json.dumps(row), flush=True)


def bench(q, text, given_of, peers_of, check, flops, moved):
    plan = q.plan(text, rows_of(text))
    size = sum(t.numel() * t.element_size() for t in operands(plan, given_of())[0].values())
    copies = max(1, min(64, int(260e6 / max(size, 1)) + 1))
    sets = [operands(plan, given_of()) for _ in range(copies)]
    plan.run(sets[0][2])
    torch.cuda.synchronize()
    row = {"case": text, "error": round(check(sets[0][0], sets[0][1]), 7)}
    guess = max(flops / 1e9, moved / 3.5e6)
    times = {"quern": time_graph(lambda i: plan.run(sets[i][2]), copies, guess)}
    for name, peer in (peers_of([s[0] for s in sets]) if q.peers else {}).items():
        try:
            times[name] = time_graph(peer, copies, guess)
        except Exception as failure:
            row[name + "_failed"] = str(failure).split("\n")[0][:120]
    row.update({name + "_us": round(us, 2) for name, us in times.items()})
    row["tflops"] = round(flops / times["quern"] * 1e-6, 1)
    row["gbps"] = round(moved / times["quern"] * 1e-3)
    for name, us in times.items():
        if name != "quern":
            row["over_" + name] = round(us / times["quern"], 3)
    plan.close()
    return row


def bench_gemm(q, rows):
    from torch.nn.functional import ScalingType, scaled_mm
    for n, k in SHAPES:
        for m in rows:
            def check(t, got):
                pick = torch.randperm(m, device="cuda")[:64]
                a = t[0][pick].float() * expand(t[1][pick], len(pick), k)
                b = t[2].float() * t[3].repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
                return error_of(got[pick], a @ b.t())

            def peers(sets):
                # cuBLASLt wants the scales of a by columns
                col = [s[1].t().contiguous().t() for s in sets]
                found = {}
                if m % 4 == 0:
                    found["cublaslt"] = lambda i: scaled_mm(
                        sets[i][0], sets[i][2].t(), col[i], ScalingType.BlockWise1x128, sets[i][3].t(),
                        ScalingType.BlockWise128x128, output_dtype=torch.bfloat16)
                return found

            report(bench(q, f"block_scaled_mm m={m} n={n} k={k}", dict, peers, check, 2.0 * m * n * k,
                         n * k + m * k + 2 * m * n))


def group_sizes(count, mean, spread=0.3):
    torch.manual_seed(1)
    return [max(0, int(mean * (1 + spread * (2 * torch.rand(1).item() - 1)))) for _ in range(count)]


def bench_grouped(q, wanted):
    for n, k in GROUPED:
        for e, mean, masked, most in [(4, 8192, 0, 0), (8, 4096, 0, 0), (32, 192, 1, 256), (6, 1024, 1, 1536), (32, 20, 1, 32),
                                      (6, 20, 1, 32), (32, 20, 1, 128), (6, 20, 1, 128)]:
            if wanted and ("masked" if masked else "offsets") not in wanted:
                continue
            sizes = group_sizes(e, mean)
            total = sum(sizes)
            counts = torch.tensor(sizes, dtype=torch.int32, device="cuda")
            offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
            text = f"grouped_block_scaled_mm m={most if masked else total} n={n} k={k} e={e}" + (" layout=masked" if masked else "")

            def check(t, got):
                worst = 0.0
                for g in sorted({0, e // 2, e - 1}):
                    first, count = (0, sizes[g]) if masked else (int(offsets[g]), sizes[g])
                    if count == 0:
                        continue
                    rows = torch.randperm(count, device="cuda")[:32] + first
                    a = (t[0][g] if masked else t[0])[rows].float() * expand((t[1][g] if masked else t[1])[rows], len(rows), k)
                    b = t[2][g].float() * t[3][g].repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
                    out = got[g] if masked else got
                    worst = max(worst, error_of(out[rows], a @ b.t()))
                    if masked and count < most and out[count:].abs().max().item() != 0:
                        worst = float("inf")
                return worst

            moved = e * n * k + total * k + 2 * (e * most if masked else total) * n
            report(bench(q, text, lambda: {5 if masked else 4: counts if masked else offsets}, lambda sets: {}, check,
                         2.0 * total * n * k, moved))


def bench_scaled(q, rows, wanted):
    for n, k in SHAPES:
        for m in rows:
            forms = [("fp8", " a=f8_e4m3 scale_a=token scale_b=channel"), ("int8", " scale_a=token scale_b=channel"),
                     ("azp", " scale_a=token scale_b=channel azp_adj=1"), ("azp_token", " scale_a=token scale_b=channel azp_adj=1 azp=1")]
            for form, words in forms:
                if wanted and form not in wanted:
                    continue

                def check(t, got):
                    pick = torch.randperm(m, device="cuda")[:64]
                    acc = t[0][pick].double() @ t[1].double().t()
                    if 5 in t:
                        acc -= t[5].double() * (t[6].double()[pick, None] if 6 in t else 1.0)
                    return error_of(got[pick], acc * t[3].double().view(1, -1) * t[2].double().view(-1, 1)[pick])

                def peers(sets):
                    if form == "fp8":
                        return {"cublaslt": lambda i: torch._scaled_mm(sets[i][0], sets[i][1].t(), sets[i][2].view(-1, 1),
                                                                       sets[i][3].view(1, -1), out_dtype=torch.bfloat16),
                                "cublaslt_fast": lambda i: torch._scaled_mm(sets[i][0], sets[i][1].t(), sets[i][2].view(-1, 1),
                                                                            sets[i][3].view(1, -1), out_dtype=torch.bfloat16,
                                                                            use_fast_accum=True)}
                    if form == "int8" and m > 16:
                        return {"int_mm": lambda i: torch._int_mm(sets[i][0], sets[i][1].t())}
                    return {}

                report(bench(q, f"scaled_mm m={m} n={n} k={k}{words}", dict, peers, check, 2.0 * m * n * k,
                             n * k + m * k + 2 * m * n))


def bench_fp4(q, rows):
    """4-bit weights times bf16; no peer here reads them. `read_pct` is of what reading reaches in the same run."""
    ceiling = read_ceiling()
    values = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], device="cuda")
    for op, unit, b in (("nvfp4_mm", 16, 4), ("mxfp4_mm", 32, 1)):
        for n, k in FP4:
            for m in rows:
                def given():
                    if unit == 16:
                        scale = (torch.rand(n, k // unit, device="cuda") * 2 + 0.01).to(torch.float8_e4m3fn)
                    else:
                        scale = torch.randint(112, 124, (n, k // unit), dtype=torch.uint8, device="cuda")  # as weights have
                    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
                    made = {0: torch.randn(m, k, device="cuda", dtype=torch.bfloat16), b: codes, b + 1: scale}
                    return {**made, 6: torch.full((1,), 3.0, device="cuda")} if unit == 16 else made

                def check(t, got):
                    pick = torch.randperm(m, device="cuda")[:64]
                    w = torch.stack((values[(t[b] & 15).long()], values[(t[b] >> 4).long()]), -1).reshape(n, k)
                    w *= (t[b + 1].float() if unit == 16 else torch.exp2(t[b + 1].float() - 127)).repeat_interleave(unit, 1)
                    return error_of(got[pick], t[0][pick].float() @ w.t() / (3.0 if unit == 16 else 1.0))

                moved = n * k // 2 + n * k // unit + 2 * m * k + 2 * m * n
                row = bench(q, f"{op} m={m} n={n} k={k} x=bf16", given, lambda sets: {}, check, 2.0 * m * n * k, moved)
                row["read_pct"] = round(100.0 * row["gbps"] / ceiling, 1)
                report(row)


def read_ceiling():
    """GB/s of a sum over 4 GB."""
    x = torch.ones(1 << 30, device="cuda", dtype=torch.float32)
    times = []
    for i in range(6):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        x.sum()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    gbps = 4 * (1 << 30) / statistics.median(times[2:]) * 1e-6
    report({"read_gbps": round(gbps)})
    return gbps


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", required=True)
    parser.add_argument("--cubins", help="kernels made ahead of time")
    parser.add_argument("--rows", default="64,128,1024,4096")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--forms", default="", help="only these of scaled (fp8,int8,azp,azp_token) or grouped (offsets,masked)")
    parser.add_argument("kinds", nargs="*", default=["gemm", "grouped", "scaled"])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("compare_torch: skipped, PyTorch sees no GPU")
    torch.zeros(1, device="cuda")
    q = Quern(options.lib, options.cubins)
    q.peers = not options.alone
    rows = [int(m) for m in options.rows.split(",")]
    report({"device": torch.cuda.get_device_name(), "torch": torch.__version__,
            "deep_gemm": getattr(deep_gemm, "__version__", "not installed")})
    for kind in options.kinds:
        try:
            wanted = options.forms.split(",") if options.forms else []
            if kind == "grouped":
                bench_grouped(q, wanted)
            elif kind == "scaled":
                bench_scaled(q, rows, wanted)
            elif kind == "fp4":
                bench_fp4(q, rows)
            else:
                bench_gemm(q, rows)
        except Exception as failure:
            report({"kind": kind, "failed": str(failure)[:300]})


if __name__ == "__main__":
    main()
