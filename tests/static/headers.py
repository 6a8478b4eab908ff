#!/usr/bin/env python3
"""Every public header compiles alone, twice included, as C11 and as C++17, with gcc and clang, without a warning."""
import glob
import shutil
import subprocess
import sys

FLAGS = ["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Iinclude"]
LANGUAGES = [
    (["gcc", "clang"], ["-x", "c", "-std=c11", "-Wshadow", "-Wstrict-prototypes"]),
    (["g++", "clang++"], ["-x", "c++", "-std=c++17"]),
]


def main():
    headers, runs, failures = sorted(glob.glob("include/quern/*.h")), 0, 0
    for compilers, language in LANGUAGES:
        for compiler in compilers:
            if not shutil.which(compiler):
                print(f"skipped {compiler}: it is not installed")
                continue
            for header in headers:
                name = header[len("include/"):]
                text = f"#include <{name}>\n#include <{name}>\nint unit_is_not_empty;\n"
                run = subprocess.run([compiler, *language, *FLAGS, "-"], input=text, text=True, capture_output=True)
                runs += 1
                if run.returncode:
                    failures += 1
                    print(f"{header} alone with {compiler} {' '.join(language)}:\n{run.stderr}")
    print(f"{len(headers)} headers, {runs} compilations, {failures} failures")
    return 1 if failures or not runs else 0


sys.exit(main())
