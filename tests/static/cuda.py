#!/usr/bin/env python3
"""Every CUDA source under kernels/cuda/ compiles for sm_90a.

    cuda.py BUILD_FOLDER      cubins go to BUILD_FOLDER/cuda/
"""
import glob
import os
import shutil
import subprocess
import sys

TARGET = "sm_90a"


def main():
    sources = sorted(glob.glob("kernels/cuda/**/*.cu", recursive=True))
    if not sources:
        print("skipped: there is no CUDA source under kernels/cuda yet")
        return 77
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if not nvcc:
        print(f"skipped: nvcc is not installed, so {len(sources)} CUDA sources were not compiled")
        return 77
    out = os.path.join(sys.argv[1], "cuda")
    os.makedirs(out, exist_ok=True)
    failures = 0
    for source in sources:
        cubin = os.path.join(out, os.path.basename(source)[:-3] + "." + TARGET + ".cubin")
        command = [nvcc, f"-arch={TARGET}", "-cubin", "-Werror", "all-warnings", "-I.", "-Iinclude", "-o", cubin, source]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            failures += 1
            print(f"{source}:\n{run.stdout}{run.stderr}")
    print(f"{len(sources)} CUDA sources compiled for {TARGET}, {failures} failures")
    return 1 if failures else 0


sys.exit(main())
