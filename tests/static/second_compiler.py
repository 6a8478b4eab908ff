#!/usr/bin/env python3
"""Every C file of the build passes clang's front end with the build's own warnings as errors.

    second_compiler.py BUILD_FOLDER      reads its compile_commands.json
"""
import concurrent.futures
import json
import os
import shlex
import shutil
import subprocess
import sys

# What only gcc's code generator or linker knows, or what needs no second look.
DROPPED = ("-fsanitize", "-fno-sanitize", "-fno-omit-frame-pointer", "--param=asan", "-Wno-maybe-uninitialized", "-O", "-g", "-o", "-c", "-M")
COMPILER = "clang"


def check(entry):
    words = shlex.split(entry["command"])[1:] if "command" in entry else entry["arguments"][1:]
    kept, skip_next = [], False
    for word in words:
        if skip_next:
            skip_next = False
        elif word in ("-o", "-MF", "-MT", "-MQ"):
            skip_next = True
        elif not word.startswith(DROPPED) or word == "-march":
            kept.append(word)
    command = [COMPILER, "-fsyntax-only", "-Werror", *kept]
    run = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True)
    return entry["file"], run.returncode, run.stderr


def main():
    if not shutil.which(COMPILER):
        print("skipped: clang is not installed")
        return 77
    with open(os.path.join(sys.argv[1], "compile_commands.json"), encoding="utf-8") as commands:
        entries = [e for e in json.load(commands) if e["file"].endswith(".c")]
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, status, text in pool.map(check, entries):
            if status:
                failures += 1
                print(f"{os.path.relpath(file)}:\n{text}")
    print(f"{len(entries)} files, {failures} with findings")
    return 1 if failures or not entries else 0


sys.exit(main())
