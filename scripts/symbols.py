#!/usr/bin/env python3
"""The exported symbols of libquern.so: cmake/quern.symbols, one name a line, sorted.

    symbols.py --check LIBRARY   the list, the QN_API declarations of the public headers
                                 and what LIBRARY exports are the same
    symbols.py --update          write the list from the headers (then review the diff)
"""
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
LIST = os.path.join(ROOT, "cmake", "quern.symbols")


def declared():
    names = set()
    for path in glob.glob(os.path.join(ROOT, "include", "quern", "*.h")):
        with open(path, encoding="utf-8") as header:
            text = re.sub(r"/\*.*?\*/", " ", header.read(), flags=re.S)
        for found in re.finditer(r"^QN_API\s+([^;{]*?)\(", text, re.M):
            names.add(found.group(1).split()[-1].lstrip("*"))
    return names


def listed():
    with open(LIST, encoding="utf-8") as file:
        return file.read().split()


def exported(library):
    text = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in text.splitlines()]
    # Absolute symbols are the version names themselves.
    return {row[-1].split("@")[0] for row in rows if len(row) == 3 and row[1] != "A"}


def check(library):
    wanted, problems = listed(), []
    if wanted != sorted(set(wanted)):
        problems.append("cmake/quern.symbols is not sorted or has duplicates")
    for title, names in (("the public headers", declared()), (os.path.basename(library), exported(library))):
        for name in sorted(names - set(wanted)):
            problems.append(f"{name} is in {title}, but not in cmake/quern.symbols")
        for name in sorted(set(wanted) - names):
            problems.append(f"{name} is in cmake/quern.symbols, but not in {title}")
    print("\n".join(problems) if problems else f"{len(wanted)} symbols: list, headers and library agree")
    return 1 if problems else 0


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        return check(sys.argv[2])
    if sys.argv[1:] == ["--update"]:
        with open(LIST, "w", encoding="utf-8") as file:
            file.write("\n".join(sorted(declared())) + "\n")
        return 0
    print(__doc__, file=sys.stderr)
    return 2


sys.exit(main())
