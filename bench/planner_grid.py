#!/usr/bin/env python3
"""How good the choice of the planner is: vq_mm over a grid of formats and shapes, every rung of the ladder beside `auto`; on
the CPU, whose kernels are not generated, every kernel of the processor that takes the format (with --ladder the rungs).

    bench/planner_grid.py --lib build/gpu/libquern.so [--cubins FOLDER] >grid.jsonl            # a GPU; needs PyTorch
    bench/planner_grid.py --lib build/release/libquern.so --threads 1 --most 6000000 --rounds 2 >grid.jsonl # the CPU
    bench/planner_grid.py --ladder ...           # not the grid: the paper's formats with 1 and 16 rows
    bench/planner_grid.py --list                 # the cases alone
    bench/planner_grid.py --summary grid.jsonl   # how many are within 5 % of the best rung, and those that are not
    bench/planner_grid.py --svg ladder.jsonl >docs/vq-ladder.svg # a chart of a ladder's rungs

One JSON line a case: microseconds by rung, the best one, and how far `auto` is from the least of all. Codes are random, low
ones more often (--skew 2: as often as a codebook's that is sorted by use, a quarter of the entries serves half; 1: evenly).
Copies of the codes rotate over more memory than caches hold. Rungs are timed in turn, --rounds times; the least median counts.
"""
import argparse
import ctypes
import json
import os
import random
import statistics
import struct
import sys
import time

from quern_c import Args, BF16, CUDA, F16, F32, I8, MAX_IN, Quern, U8, time_graph, torch

LEVELS = ["gc", "sc", "o1", "o2", "o3", "o4", "auto"]
FORMATS = {
    "aqlm-2x8": "",
    "aqlm-1x8": " num_codebooks=1",
    "aqlm-1x16": " num_codebooks=1 nbits_per_codebook=16",
    "aqlm-3": " nbits_per_codebook=12 codes=u8",
    "aqlm-1x8g4": " num_codebooks=1 in_group_size=4",
    "aqlm-4x8g16": " num_codebooks=4 in_group_size=16",
    "gptvq-2": " format=gptvq",
    "quip-2": " format=quip_e8p",
    "quip-3": " format=quip_e8p codebook=E8P12RVQ3B",
    "quip-4": " format=quip_e8p codebook=E8P12RVQ4B",
}
CPU_FORMATS = {"vptq-2": " format=vptq num_centroids=256 num_res_centroids=256 res_centroids.weight=1 weight_scale=1"}
CPU_KERNELS = ["amx_1x128_sums", "avx512vnni_1x128_sums", "amx_16x16_tiles", "avx512vnni_8x16_tiles", "amx_16x16_lattice",
               "avx512vnni_4x16_lattice", "avx512_4x4_books", "avx2_1x128_sums", "avx2_2x16_tiles", "avx2_1x16_lattice",
               "avx2_4x2_books"]
CPU_SHAPES = [(64, 576), (192, 576), (576, 576), (1536, 576), (576, 1536), (32, 4096), (128, 4096), (320, 960)]
SHAPES = [(1024, 4096), (4096, 4096), (6144, 4096), (11008, 4096), (14336, 4096), (4096, 11008), (4096, 14336), (5120, 5120),
          (8192, 8192), (13824, 5120), (1536, 8960), (2560, 6912), (28672, 8192), (8192, 28672)]
ROWS = [1, 2, 4, 8, 16, 32, 64]
WEIGHT_OF_ONE = 3  # one row of x is what runs most
LADDER = [(f, m, 11008, 4096) for f in ("quip-4", "aqlm-3", "gptvq-2", "aqlm-2x8", "quip-2") for m in (1, 16)]
FLOATS = (F32, F16, BF16)
WIDE = (12, 13)  # i16, u16
BYTES = {F32: 4, F16: 2, BF16: 2, I8: 1, U8: 1, 12: 2, 13: 2, 14: 4, 15: 4, 16: 8, 17: 8}


def grid(count, most, cpu):
    """So many of all combinations of at most `most` weights, the same every time."""
    draw, chosen = random.Random(5), []
    formats, shapes = {**FORMATS, **CPU_FORMATS} if cpu else FORMATS, CPU_SHAPES + SHAPES if cpu else SHAPES
    every = [(f, m, n, k) for f in formats for m in ROWS for n, k in shapes if n * k <= most]
    weights = [WEIGHT_OF_ONE if c[1] == 1 else 1 for c in every]
    while every and len(chosen) < count:
        i = draw.choices(range(len(every)), weights)[0]
        chosen.append(every.pop(i))
        weights.pop(i)
    return chosen


def text_of(case, level):
    format, m, n, k = case
    rung = f" level={level}" if level in LEVELS[:-1] else ""
    more = f" out_features={n} in_features={k}" if format in CPU_FORMATS else ""
    return f"vq_mm m={m} n={n} k={k}" + {**FORMATS, **CPU_FORMATS}[format] + more + rung


def kernel_of(case, level):
    """The name of a CPU kernel; None: the plan chooses."""
    word = {"g": "gptvq", "q": "quip_e8p", "v": "vptq", "a": "aqlm"}[case[0][0]]
    return f"qn_vq_mm_fp_{word}_fp__{level}" if level in CPU_KERNELS else None


def elements(shape):
    count = 1
    for i in range(shape.ndim):
        count *= shape.dims[i]
    return count


def values(format, slot):
    """Some numbers of the size that a slot has: x about 1, others about 0.05."""
    draw = random.Random(slot)
    numbers = [draw.uniform(-1, 1) * (0.05 if slot else 1.0) for _ in range(4096)]
    if format == BF16:
        return b"".join(struct.pack("f", v)[2:] for v in numbers)
    return struct.pack("4096f" if format == F32 else "4096e", *numbers)


def codes(size, slot, wide, skew):
    """Random codes, the low ones more often; of codes of two bytes the high one decides."""
    draw, piece = random.Random(slot), min(size, 1 << 20)
    even = draw.randbytes(piece)
    low = even.translate(bytes(int(256 * (i / 256) ** skew) for i in range(256)))
    if wide:
        both = bytearray(even)
        both[1::2] = low[1::2]
        low = bytes(both)
    starts = [draw.randrange(0, piece // 2 + 1) // 8 * 8 for _ in range(size // max(piece, 1) + 1)]
    return b"".join(low[s:] + low[:s] for s in starts)[:size]


def view(v, shape, at):
    v.data, v.shape, step = at, shape, BYTES[shape.format]
    for i in reversed(range(shape.ndim)):
        v.strides[i] = step
        step *= shape.dims[i]


class Operands:
    """Of a case, by the shapes that a plan names; copies of the codes are in rotation."""

    def __init__(self, q, plan, skew, memory):
        self.q, self.keep, self.args, code_slots = q, [], Args(), []
        self.code_bytes = 0
        for slot in range(MAX_IN):
            shape = plan.desc.inputs[slot]
            if shape.format == 0:
                continue
            bytes = elements(shape) * BYTES[shape.format]
            if shape.format in FLOATS:
                part = values(shape.format, slot)
                view(self.args.inputs[slot], shape, self.place((part * (bytes // len(part) + 1))[:bytes]))
            else:
                even = 1 if shape.ndim == 4 else skew
                view(self.args.inputs[slot], shape, self.place_codes(bytes, slot, shape.format in WIDE, even))
                code_slots.append((slot, bytes))
                self.code_bytes += bytes
        shape = plan.out[0]
        view(self.args.outputs[0], shape, self.place(b"\0" * (elements(shape) * BYTES[shape.format])))
        self.copies = max(2, min(400, memory // max(self.code_bytes, 1) + 1))
        self.turns = [self.args]
        for _ in range(self.copies - 1 if q.backend == CUDA else 0):
            a = Args.from_buffer_copy(self.args)
            for slot, bytes in code_slots:
                a.inputs[slot].data = self.place_codes(bytes, slot, a.inputs[slot].shape.format in WIDE, skew)
            self.turns.append(a)

    def place(self, data):
        raw, at = self.q.place(data)
        self.keep.append(raw)
        return at

    def place_codes(self, bytes, slot, wide, skew):
        if self.q.backend != CUDA:
            return self.place(codes(bytes, slot, wide, skew))
        raw = (torch.rand(bytes, device="cuda") ** skew * 256).clamp_(max=255).to(torch.uint8)
        if wide:
            raw[0::2] = torch.randint(0, 256, (bytes // 2,), device="cuda", dtype=torch.uint8)
        self.keep.append(raw)
        return raw.data_ptr()

    def packed(self, q, plan):
        """Copies of packed weights, for a plan that has any."""
        bytes = q.lib.qn_plan_pack_bytes(plan.handle)
        if not bytes:
            return self.turns
        turns, plan.packed = [], []
        for i in range(max(2, min(400, self.copies))):
            raw, at = q.room(bytes)
            if i == 0:
                q.must(q.lib.qn_pack, plan.handle, ctypes.byref(self.args), ctypes.c_void_p(at), ctypes.c_size_t(bytes))
            else:
                ctypes.memmove(at, turns[0].packed, bytes)
            plan.packed.append(raw)
            turns.append(Args.from_buffer_copy(self.args))
            turns[i].packed = at
        return turns


def time_calls(plan, turns, seconds, threads):
    """The least of single calls, as other work only makes a call longer; of one thread its processor time."""
    clock = time.process_time if threads == 1 else time.perf_counter
    times, i, end = [], 0, clock() + seconds
    plan.run(turns[0])
    while len(times) < 5 or clock() < end:
        i = (i + 1) % len(turns)
        before = clock()
        plan.run(turns[i])
        times.append((clock() - before) * 1e6)
    return min(times)


def measure(q, case, options):
    operands, us, chosen = None, {}, None
    by_kernel = q.backend != CUDA and not options.ladder
    for pass_ in range(options.rounds):
        for level in ["auto"] + CPU_KERNELS if by_kernel else options.levels.split(","):
            try:
                plan = q.plan(text_of(case, level), case[1], kernel_of(case, level))
            except RuntimeError as error:
                if pass_ == 0 and q.backend == CUDA:
                    print(f"{text_of(case, level)}: {error}", file=sys.stderr)
                continue
            operands = operands or Operands(q, plan, options.skew, options.memory << 20)
            if q.backend == CUDA:
                t = time_graph(lambda i: plan.run(operands.turns[i]), len(operands.turns), None, options.seconds * 1e6, 5)
            else:
                kernel = q.lib.qn_plan_kernel(plan.handle).decode()
                if by_kernel and level == "auto": # which of the kernels that is; they are timed by name
                    chosen = kernel.split("__")[1]
                    plan.close()
                    continue
                t = time_calls(plan, operands.packed(q, plan), options.seconds, options.threads)
            us[level] = min(t, us.get(level, t))
            plan.close()
    if by_kernel:
        us["auto"] = us[chosen]
    rungs = {level: t for level, t in us.items() if level != "auto"}
    row = {"case": text_of(case, "auto"), "format": case[0], "m": case[1], "n": case[2], "k": case[3],
           "us": {level: round(t, 2) for level, t in us.items()}}
    if rungs and "auto" in us:
        row["best"] = min(rungs, key=rungs.get)
        row["auto_over_best"] = round(us["auto"] / min(us.values()), 4)
    return row


def summary(path):
    rows = [r for r in map(json.loads, open(path, encoding="utf-8")) if "auto_over_best" in r]
    good = [r for r in rows if r["auto_over_best"] <= 1.05]
    print(f"{len(good)} of {len(rows)} cases ({100 * len(good) / max(len(rows), 1):.1f} %) within 5 % of the best")
    for r in sorted(rows, key=lambda r: -r["auto_over_best"]):
        if r["auto_over_best"] > 1.05:
            print(f"  {r['auto_over_best']:6.3f}  {r['case']}: auto {r['us']['auto']}, {r['best']} {r['us'][r['best']]}")
    gained = [1 - min(r["us"].values()) / r["us"]["gc"] for r in rows if "gc" in r["us"]]
    if gained:
        print(f"from gc to the best: mean {100 * statistics.mean(gained):.1f} % less time, most {100 * max(gained):.1f} %")


COLOURS = {"gc": "#8c8c8c", "sc": "#b07aa1", "o1": "#edc948", "o2": "#f28e2b", "o3": "#76b7b2", "o4": "#4e79a7",
           "auto": "#59a14f"}


def chart(path):
    """Bars of a case's rungs, microseconds, side by side."""
    rows = list(map(json.loads, open(path, encoding="utf-8")))
    most, bar, gap, left, top, high = max(max(r["us"].values()) for r in rows), 11, 18, 46, 46, 240
    width, foot = left + len(rows) * (len(LEVELS) * bar + gap) + 10, top + high
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{foot + 50}" font-family="sans-serif" '
           'font-size="11"><rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="16" font-size="13">vq_mm, {rows[0]["n"]} x {rows[0]["k"]}: microseconds by rung</text>']
    for i, level in enumerate(LEVELS):
        out.append(f'<rect x="{left + 60 * i}" y="24" width="10" height="10" fill="{COLOURS[level]}"/>'
                   f'<text x="{left + 60 * i + 14}" y="33">{level}</text>')
    for us in range(0, int(most) + 1, 25):
        y = foot - us / most * high
        out.append(f'<line x1="{left}" x2="{width - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
                   f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{us}</text>')
    for i, r in enumerate(rows):
        x = left + gap / 2 + i * (len(LEVELS) * bar + gap)
        for j, level in enumerate(LEVELS):
            tall = r["us"].get(level, 0) / most * high
            out.append(f'<rect x="{x + j * bar:.1f}" y="{foot - tall:.1f}" width="{bar - 1}" height="{tall:.1f}" '
                       f'fill="{COLOURS[level]}"><title>{level} {r["us"].get(level, 0)}</title></rect>')
        middle = x + len(LEVELS) * bar / 2
        out.append(f'<text x="{middle:.1f}" y="{foot + 16}" text-anchor="middle">{r["format"]}</text>'
                   f'<text x="{middle:.1f}" y="{foot + 30}" text-anchor="middle">M={r["m"]}</text>')
    print("\n".join(out + ["</svg>"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib")
    parser.add_argument("--cubins")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU backend; 0: the CUDA backend")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--only", default="", help="cases whose text holds the word")
    parser.add_argument("--most", type=int, default=1 << 30, help="weights of a case")
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--skew", type=float, default=2.0)
    parser.add_argument("--memory", type=int, default=150, help="MiB that the codes rotate over")
    parser.add_argument("--seconds", type=float, default=0.001, help="of a graph's calls, or of timing a rung on the CPU")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ladder", action="store_true")
    parser.add_argument("--skip", type=int, default=0, help="cases to leave out at the front")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--summary", metavar="FILE")
    parser.add_argument("--svg", metavar="FILE")
    options = parser.parse_args()
    if options.svg:
        return chart(options.svg)
    if options.summary:
        return summary(options.summary)
    cases = [c for c in (LADDER if options.ladder else grid(options.cases, options.most, options.threads > 0)) if options.only in text_of(c, "auto")]
    if options.list:
        return print("\n".join(text_of(c, "auto") for c in cases))
    if not options.lib:
        parser.error("--lib says which libquern.so")
    if options.threads == 0 and torch is None:
        sys.exit("planner_grid: skipped, PyTorch is not installed")
    q = Quern(options.lib, options.cubins, options.threads)
    for case in cases[options.skip:]:
        print(json.dumps(measure(q, case, options)), flush=True)


if __name__ == "__main__":
    main()
