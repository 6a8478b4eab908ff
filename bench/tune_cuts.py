#!/usr/bin/env python3
"""Measures the candidate cuts of block_scaled_mm on this GPU and writes the best ones as tuned-cuts.txt.

    make                                                                           # gives libquern.so
    bench/tune_cuts.py --lib build/release/libquern.so --shapes 4096x7168,7168x2048 --rows 64,128,1024 >tuned-cuts.txt

The lines are for the kernel cache's folder (~/.cache/quern, or --cache-dir of the command), where a context reads them
before those that the library brings (data/tuned-cuts.txt), or for that file. A line is written only where a cut is at
least --gain times as fast as the one chosen without any. Each candidate runs as a CUDA graph of back-to-back calls over
copies of the operands that the L2 cache cannot hold, and its result is checked. Needs PyTorch, and NVRTC for cuts that no
cubin is shipped for.
"""
import argparse
import itertools
import os
import sys
import tempfile

try:
    import torch
except ImportError:
    sys.exit("tune_cuts: skipped, PyTorch is not installed")

from compare_torch import error_of, expand, operands
from quern_c import Quern, time_graph

SMS = None


def strips(m, n, k):
    """Candidate strips: those whose blocks fill the card at least by half, once or, two a multiprocessor, twice."""
    blocks = -(-k // 128)
    for groups, pair, split, unroll, occupancy, parts, teams in itertools.product(
            (1, 2, 3, 4), (1, 2, 4), (1, 2, 3, 4, 6), (1, 2), (1, 2), (1, 2), (1, 2, 3)):
        launched = -(-n // (64 * groups * pair)) * pair * split
        if SMS / 2 <= launched <= SMS * occupancy * 1.05 and blocks // split >= max(2, 2 * unroll * teams):
            stages = max(2, min(13, -(-blocks // split) // unroll))
            yield f"strip {groups} {pair} {split} {unroll} {stages} {occupancy} {parts} 0 {teams}"


def tiles(m, n, k):
    if m > 128:
        return [f"tile {bm} {bn} {store}" for bm, bn, store in
                ((256, 128, 0), (192, 128, 0), (192, 128, 1), (128, 192, 1), (128, 160, 0), (128, 128, 0),
                 (128, 64, 0))]
    if m <= 32:
        return []
    bm = 64 if m <= 64 else 128
    found = [f"tile {bm} {bn} {store}" for bn in (32, 48, 64, 80, 96, 112, 128, 192) for store in (0, 1)]
    for bn, split in itertools.product((32, 48, 64, 80, 96, 112, 128, 144, 160, 192), (2, 3, 4, 6)):
        if bn % (8 * split) == 0 and SMS / 2 <= -(-n // bn) * split <= SMS and -(-k // 128) >= 4 * split:
            found.append(f"tile {bm} {bn} 0 1 {split}")
    return found


class Tuner:
    def __init__(self, options):
        self.options, self.name = options, torch.cuda.get_device_name()

    def measure(self, m, n, k, cut, sets):
        """Microseconds a call with that cut, or as chosen with cut None; None: there is no such cut."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tuned-cuts.txt")
            if cut:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(f"{self.name} | {n} {k} {m} | {cut}\n")
            try:
                q = Quern(self.options.lib, self.options.cubins, cache=folder)
                plan = q.plan(f"block_scaled_mm m={m} n={n} k={k}", m)
            except RuntimeError as failure:
                print(f"# {cut}: {str(failure)[:100]}", file=sys.stderr)
                return None
            if cut and f"tuned for {self.name}" not in plan.explain():
                return None
            if sets == []:
                size = n * k + m * k + 2 * m * n
                sets += [operands(plan, {}) for _ in range(max(1, min(64, int(260e6 / size) + 1)))]
            t, got, _ = sets[0]
            got.fill_(float("nan"))
            plan.run(sets[0][2])
            rows = torch.randperm(m, device="cuda")[:32]
            a = t[0][rows].float() * expand(t[1][rows], len(rows), k)
            b = t[2].float() * t[3].repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
            error = error_of(got[rows], a @ b.t())
            if not error < 3e-3:
                sys.exit(f"tune_cuts: {cut} at M={m}, N={n}, K={k} is wrong by {error}")
            us = time_graph(lambda i: plan.run(sets[i][2]), len(sets), max(2.0 * m * n * k / 1e9, n * k / 3.5e6),
                            20000 if m > 128 else 4000)
            plan.close()
            q.close()
            return us

    def tune(self, m, n, k):
        sets = []
        plain = min(self.measure(m, n, k, None, sets) for _ in range(2))
        found = []
        for cut in tiles(m, n, k) + (list(strips(m, n, k)) if m <= 128 else []):
            us = self.measure(m, n, k, cut, sets)
            if us:
                found.append((us, cut))
        if not found:
            return
        us, cut = min((min(us, self.measure(m, n, k, cut, sets)), cut) for us, cut in sorted(found)[:3])
        print(f"# {m} rows of {n} x {k}: chosen {plain:.2f} us, {cut} {us:.2f} us", file=sys.stderr, flush=True)
        if plain >= self.options.gain * us:
            print(f"{self.name} | {n} {k} {m} | {cut}", flush=True)


def main():
    global SMS
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", required=True)
    parser.add_argument("--cubins", help="kernels made ahead of time")
    parser.add_argument("--shapes", required=True, help="NxK,NxK,...")
    parser.add_argument("--rows", default="64,128,1024,4096")
    parser.add_argument("--gain", type=float, default=1.03)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("tune_cuts: skipped, PyTorch sees no GPU")
    torch.zeros(1, device="cuda")
    SMS = torch.cuda.get_device_properties(0).multi_processor_count
    tuner = Tuner(options)
    for shape in options.shapes.split(","):
        n, k = (int(v) for v in shape.split("x"))
        for m in options.rows.split(","):
            tuner.tune(int(m), n, k)


if __name__ == "__main__":
    main()
