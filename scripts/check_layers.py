#!/usr/bin/env python3
"""Checks that every #include follows the layer order of docs/design.md.

    check_layers.py [ROOT]      check the tree; exit 1 with one line per violation
    check_layers.py --self-test prove on a made-up tree that violations are found

A layer includes itself and the layers its row names. Standard headers are free;
other people's headers only where the table THIRD_PARTY says.
"""
import os
import re
import sys
import tempfile

# Folder under src/ -> folders under src/ it may include, besides itself.
LAYERS = {
    "base": "",
    "format": "base",
    "ref": "format base",
    "exec": "base",
    "op": "format ref base",
    "vq": "op ref format base",
    "backend": "vq exec op ref format base",
    "plan": "backend vq exec op ref format base",
    "text": "base",
    "io": "format exec base",
    "model": "plan backend vq exec op ref format base io text",
    "quant": "plan backend vq exec op ref format base io text model",
}
# Single headers allowed beyond the rows.
EXTRA = {"io": {"text/source.h"}}
# Layers that may include kernels/common/.
COMMON = {"backend", "plan", "model", "quant"}
# Headers of other libraries -> layers that may include them.
THIRD_PARTY = {
    "jansson.h": "io text model quant",
    "pcre2.h": "text io",
    "utf8proc.h": "text io",
    "xxhash.h": "base io backend plan quant",
}
# Public headers every client may use; the experimental one is for tools and for the layers that implement it.
EXPERIMENTAL = "quern/experimental.h"

STANDARD = re.compile(r"^(sys/|linux/|arpa/|netinet/|asm/)?[a-z0-9_]+\.h$")


def includes(path):
    with open(path, encoding="utf-8", errors="replace") as source:
        text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), source.read(), flags=re.S)
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if found:
            yield number, found.group(1), found.group(2)


def resolve(root, path, quote, name):
    """The include as a path from the root ("src/base/x.h"), or None when it is not in the tree."""
    places = [os.path.dirname(path)] if quote == '"' else []
    for place in places + [os.path.join(root, "include"), os.path.join(root, "src"), root]:
        full = os.path.normpath(os.path.join(place, name))
        if os.path.isfile(full):
            return os.path.relpath(full, root)
    return None


def verdict(where, target, name):
    """Why this include is wrong, or None. where: path parts of the including file."""
    area = where[0]
    layer = where[1] if area == "src" else None
    if target is None:
        if name in THIRD_PARTY:
            if layer and layer in THIRD_PARTY[name].split():
                return None
            return f"{'src/' + layer if layer else area}/ may not use <{name}>"
        if STANDARD.match(name):
            return None
        if area == "kernels" and "cuda" in where:
            return None  # the CUDA toolkit's headers
        return f"<{name}> is neither in the tree nor a standard header"
    parts = target.split(os.sep)
    if parts[0] == "include":
        if area == "include" or area in ("cli", "examples", "src", "kernels"):
            if area == "include" and target.endswith(EXPERIMENTAL) and where[-1] == "quern.h":
                return "quern.h holds the stable headers only"
            return None
    if area == "include":
        return f"a public header may include public headers only, not {target}"
    if area in ("cli", "examples"):
        return None if parts[0] == area else f"{area}/ may use public headers only, not {target}"
    if area == "kernels":
        if parts[0] == "kernels" and (parts[1] == "common" or parts[:3] == where[:3] or parts[:2] == where[:2] == ["kernels", "cuda"]):
            return None
        # A wider CPU level may build on the fragments of a narrower one.
        if where[:2] == ["kernels", "cpu"] and parts[:2] == ["kernels", "cpu"]:
            return None
        return f"kernels/ may use kernels/common/ and public headers only, not {target}"
    if parts[0] == "kernels":
        if parts[1] == "common" and layer in COMMON:
            return None
        return f"src/{layer}/ may not include {target}"
    if parts[0] != "src":
        return f"src/{layer}/ may not include {target}"
    if layer not in LAYERS:
        return f"src/{layer}/ is not a layer of the table in scripts/check_layers.py"
    inside = "/".join(parts[1:])
    if parts[1] == layer or parts[1] in LAYERS[layer].split() or inside in EXTRA.get(layer, ()):
        return None
    return f"src/{layer}/ may not include {inside}"


def check(root):
    problems, files = [], 0
    for area in ("include", "src", "kernels", "cli", "examples"):
        for folder, folders, names in os.walk(os.path.join(root, area)):
            folders.sort()
            for file in sorted(names):
                if not file.endswith((".c", ".h", ".cu", ".cuh", ".inc")):
                    continue
                path = os.path.join(folder, file)
                where = os.path.relpath(path, root).split(os.sep)
                files += 1
                for number, quote, name in includes(path):
                    why = verdict(where, resolve(root, path, quote, name), name)
                    if why:
                        problems.append(f"{'/'.join(where)}:{number}: {why}")
    return problems, files


def self_test():
    cases = [  # file, include line, whether it is allowed
        ("src/base/a.c", '#include "base/b.h"', True),
        ("src/base/a.c", '#include "format/f.h"', False),
        ("src/format/a.c", '#include "base/b.h"', True),
        ("src/format/a.c", '#include "../plan/p.h"', False),
        ("src/io/a.c", '#include "text/source.h"', True),
        ("src/io/a.c", '#include "text/t.h"', False),
        ("src/io/a.c", "#include <jansson.h>", True),
        ("src/op/a.c", "#include <jansson.h>", False),
        ("src/op/a.c", "#include <string.h>", True),
        ("src/op/a.c", "#include <sys/mman.h>", True),
        ("src/op/a.c", '#include "missing/x.h"', False),
        ("src/backend/cpu/a.c", '#include "kernels/common/k.h"', True),
        ("src/backend/cuda/a.c", '#include "vq/g.h"', True),
        ("src/vq/a.c", '#include "backend/b.h"', False),
        ("src/ref/a.c", '#include "kernels/common/k.h"', False),
        ("src/plan/a.c", "#include <quern/quern.h>", True),
        ("src/plan/a.c", '/* #include "model/m.h" */', True),
        ("src/new/a.c", '#include "base/b.h"', False),
        ("kernels/cpu/avx2/a.c", '#include "kernels/common/k.h"', True),
        ("kernels/cpu/avx2/a.c", '#include "base/b.h"', False),
        ("cli/a.c", "#include <quern/quern.h>", True),
        ("cli/a.c", '#include "base/b.h"', False),
        ("cli/a.c", "#include <jansson.h>", False),
        ("include/quern/a.h", '#include "base/b.h"', False),
    ]
    failures = 0
    for file, line, allowed in cases:
        with tempfile.TemporaryDirectory() as root:
            for header in ("src/vq/g.h", "src/backend/b.h", "src/base/b.h", "src/format/f.h", "src/plan/p.h", "src/text/source.h", "src/text/t.h",
                           "src/model/m.h", "kernels/common/k.h", "include/quern/quern.h"):
                os.makedirs(os.path.join(root, os.path.dirname(header)), exist_ok=True)
                open(os.path.join(root, header), "w").close()
            os.makedirs(os.path.join(root, os.path.dirname(file)), exist_ok=True)
            with open(os.path.join(root, file), "w") as out:
                out.write("/* made up */\n" + line + "\n")
            problems, _ = check(root)
            if bool(problems) == allowed:
                failures += 1
                print(f"self-test: {file} with {line}: expected {'no' if allowed else 'a'} violation, got {problems}")
    print(f"self-test: {len(cases)} cases, {failures} failures")
    return failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(1 if self_test() else 0)
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    problems, files = check(os.path.abspath(root))
    print("\n".join(problems) if problems else f"{files} files follow the layer order")
    sys.exit(1 if problems or not files else 0)


main()
