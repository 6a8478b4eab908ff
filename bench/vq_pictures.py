#!/usr/bin/env python3
"""The pictures of docs/vq.md but for the ladder, which bench/planner_grid.py draws.

    bench/vq_pictures.py count FOLDER... >counts.jsonl      # how often a quantised model's codes name each entry
    bench/vq_pictures.py access counts.jsonl >docs/vq-access.svg
    bench/vq_pictures.py placement build/quern >docs/vq-placement.svg   # what `quern explain` says, no GPU needed
    bench/vq_pictures.py split split.jsonl >docs/vq-split.svg           # microseconds by parts of K

FOLDER is what `quern quantize --weights gptvq-2 | aqlm-* | quip-2` writes. A book's entries are counted, sorted by use
and averaged over all books: `share` is that of the accesses in each of 64 steps of the entries, most frequent first;
`low` that of the quarter of entries with the lowest codes, which is what a kernel keeps where not all fit.
"""
import array
import collections
import json
import math
import os
import re
import subprocess
import sys

STEPS = 64
COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2"]
PLACES = [("registers", "#e15759"), ("shared memory", "#4e79a7"), ("global memory", "#c8c8c8")]
FORMATS = {
    "quip-2": "format=quip_e8p",
    "gptvq-2": "format=gptvq",
    "aqlm-2x8": "",
    "aqlm-3": "nbits_per_codebook=12 codes=u8",
    "2x14": "nbits_per_codebook=14",
    "aqlm-1x16": "num_codebooks=1 nbits_per_codebook=16",
}
RUNGS = ["gc", "sc", "o1", "o2", "o4"]
SHAPE = "m=16 n=11008 k=4096"


# ---- how often entries are named ----

def tensors(path):
    """Name, shape and bytes of each tensor of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                file.seek(begin + first)
                yield name, entry["shape"], file.read(last - first)


def books_of(name, shape, data):
    """Entries of a book, and for each book the numbers of the entries its codes name."""
    if name.endswith(".Qidxs"):  # bytes 0 to 3 of a word name the magnitudes of four points (docs/formats/vq.md)
        return 256, [b"".join(data[i::8] for i in range(4))]
    if name.endswith(".codes") and len(shape) == 2:  # gptvq: a book for every 256 x 256 weights, 64 codes of a row
        rows, width = shape
        lines = [data[r * width:(r + 1) * width] for r in range(rows)]
        return 256, [b"".join(row[at:at + 64] for row in lines[top:top + 256])
                     for top in range(0, rows, 256) for at in range(0, width, 64)]
    if name.endswith(".codes"):  # aqlm: [N, K / 8, books]
        codes = data if len(data) == math.prod(shape) else array.array("H", data)
        return None, [codes[i::shape[2]] for i in range(shape[2])]
    return None, []


def count(folder):
    config = json.load(open(os.path.join(folder, "config.json"), encoding="utf-8")).get("quantization_config", {})
    bits = config.get("nbits_per_codebook", 8)
    share, low, books = [0.0] * STEPS, 0.0, 0
    for name, shape, data in tensors(os.path.join(folder, "model.safetensors")):
        entries, lists = books_of(name, shape, data)
        entries = entries or 1 << bits
        for codes in lists:
            seen = collections.Counter(codes)
            named = collections.Counter()
            for code, times in seen.items():
                named[code & (entries - 1)] += times  # stored codes may be wider, and signed
            sizes = sorted(named.values(), reverse=True) + [0] * (entries - len(named))
            step, total = entries // STEPS, len(codes)
            for i in range(STEPS):
                share[i] += sum(sizes[i * step:(i + 1) * step]) / total
            low += sum(times for code, times in named.items() if code < entries // 4) / total
            books += 1
    return {"folder": os.path.basename(os.path.normpath(folder)), "books": books,
            "share": [round(s / books, 5) for s in share], "quarter": round(sum(share[:STEPS // 4]) / books, 4),
            "low": round(low / books, 4)}


# ---- pictures ----

def page(width, height, title, body):
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
          f'font-size="11"><rect width="100%" height="100%" fill="white"/>\n<text x="46" y="16" font-size="13">{title}'
          "</text>\n" + "\n".join(body) + "\n</svg>")


def text(x, y, words, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def line(x1, y1, x2, y2, colour="#dddddd"):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def curve(points, colour):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    few = points if len(points) < 9 else []
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in few)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>{dots}'


def access(path):
    """Share of the accesses, an entry of even use being 1, by the entry's place in the order of use."""
    rows = [json.loads(l) for l in open(path, encoding="utf-8")]
    left, top, wide, high = 46, 40, 480, 240
    most = max(max(r["share"]) for r in rows) * STEPS
    body = []
    for i in range(0, int(most) + 2):
        y = top + high - i / (int(most) + 1) * high
        body += [line(left, y, left + wide, y, "#999999" if i == 1 else "#dddddd"),
                 text(left - 6, y + 4, f"{i}x", "end")]
    for quarter in range(5):
        x = left + quarter / 4 * wide
        body += [line(x, top, x, top + high), text(x, top + high + 16, f"{25 * quarter} %", "middle")]
    body.append(text(left + wide / 2, top + high + 32, "entries of a book, most frequent first", "middle"))
    for i, r in enumerate(rows):
        points = [(left + (j + 0.5) / STEPS * wide, top + high - s * STEPS / (int(most) + 1) * high)
                  for j, s in enumerate(r["share"])]
        body += [curve(points, COLOURS[i]), f'<rect x="{left + wide + 20}" y="{top + 36 * i}" width="10" height="10" '
                 f'fill="{COLOURS[i]}"/>', text(left + wide + 36, top + 9 + 36 * i, r["folder"]),
                 text(left + wide + 36, top + 23 + 36 * i, f'a quarter serves {100 * r["quarter"]:.0f} %')]
    page(left + wide + 190, top + high + 44, "How often an entry is looked up, even use = 1x", body)


def explained(quern, attributes, rung):
    words = ["vq_mm", *SHAPE.split(), *attributes.split(), f"level={rung}"]
    said = subprocess.run([quern, "explain", *words, "--backend", "cuda", "--target", "sm_90a"], check=True,
                          capture_output=True, text=True).stdout
    found = re.search(r"entries of a book: (\d+) in registers, (\d+) in shared memory x (\d+), (\d+) in global", said)
    return tuple(map(int, found.groups()))


def placement(quern):
    bar, gap, left, top, high = 22, 26, 46, 48, 200
    body, x = [], left
    for i, (place, colour) in enumerate(PLACES):
        body += [f'<rect x="{left + 130 * i}" y="26" width="10" height="10" fill="{colour}"/>',
                 text(left + 14 + 130 * i, 35, place)]
    for name, attributes in FORMATS.items():
        for i, rung in enumerate(RUNGS):
            registers, shared, copies, far = explained(quern, attributes, rung)
            # registers hold the first of the others again: at least 2 high, so that they are seen
            parts, at = [registers, shared - registers if shared else 0, far], top + high
            for part, (place, colour) in zip(parts, PLACES):
                tall = part / (shared + far) * high
                tall = 2.0 if part and tall < 2.0 else min(tall, at - top)
                at -= tall
                body.append(f'<rect x="{x + i * bar}" y="{at:.1f}" width="{bar - 3}" height="{tall:.1f}" '
                            f'fill="{colour}"><title>{name} {rung}: {part} in {place}</title></rect>')
            if copies > 1:
                body.append(f'<text x="{x + i * bar + (bar - 3) / 2:.1f}" y="{top + high - 6}" text-anchor="middle" '
                            f'font-size="9" fill="white">x{copies}</text>')
            body.append(text(x + i * bar + (bar - 3) / 2, top + high + 14, rung, "middle"))
        body.append(text(x + len(RUNGS) * bar / 2, top + high + 30, name, "middle"))
        x += len(RUNGS) * bar + gap
    for share in range(0, 101, 25):
        y = top + high - share / 100 * high
        body.insert(0, line(left, y, x - gap, y))
        body.append(text(left - 6, y + 4, f"{share} %", "end"))
    page(x, top + high + 44, f"Where a book's entries are kept, by rung (vq_mm {SHAPE}, sm_90a)", body)


def split(path):
    """A panel a form: microseconds over parts of K, both logarithmic."""
    rows = [json.loads(l) for l in open(path, encoding="utf-8")]
    panels = list(dict.fromkeys(r["format"] for r in rows))
    wide, high, left, top, gap = 300, 220, 46, 44, 180
    body = []
    for p, name in enumerate(panels):
        mine, x0 = [r for r in rows if r["format"] == name], left + p * (wide + gap)
        least, most = min(min(r["us"].values()) for r in mine) * 0.8, max(max(r["us"].values()) for r in mine) * 1.2
        parts = sorted({int(k) for r in mine for k in r["us"]})

        def place(k, us):
            return (x0 + math.log2(k) / math.log2(max(parts)) * (wide - 20) + 10,
                    top + high - math.log(us / least) / math.log(most / least) * high)
        for us in (2, 5, 10, 20, 50, 100):
            if least < us < most:
                y = place(1, us)[1]
                body += [line(x0, y, x0 + wide, y), text(x0 - 6, y + 4, us, "end")]
        body += [text(place(k, most)[0], top + high + 16, k, "middle") for k in parts]
        body += [text(x0 + wide / 2, top + high + 32, "blocks that share K (split factor)", "middle"),
                 text(x0, top - 10, f"{name}, one row, us")]
        for i, r in enumerate(mine):
            points = [place(int(k), us) for k, us in sorted(r["us"].items(), key=lambda e: int(e[0]))]
            best = place(*min(((int(k), us) for k, us in r["us"].items()), key=lambda e: e[1]))
            colour = COLOURS[i % len(COLOURS)]
            body += [curve(points, colour),
                     f'<circle cx="{best[0]:.1f}" cy="{best[1]:.1f}" r="5" fill="none" stroke="{colour}"/>',
                     f'<rect x="{x0 + wide + 12}" y="{top + 18 * i}" width="10" height="10" fill="{colour}"/>',
                     text(x0 + wide + 26, top + 9 + 18 * i, f'{r["n"]} x {r["k"]}')]
    page(left + len(panels) * (wide + gap) - 20, top + high + 44, "The split factor of K", body)


def main():
    verbs = {"access": access, "placement": placement, "split": split}
    if len(sys.argv) < 3 or (sys.argv[1] != "count" and (sys.argv[1] not in verbs or len(sys.argv) > 3)):
        sys.exit(__doc__)
    if sys.argv[1] == "count":
        for folder in sys.argv[2:]:
            print(json.dumps(count(folder)))
    else:
        verbs[sys.argv[1]](sys.argv[2])


if __name__ == "__main__":
    main()
