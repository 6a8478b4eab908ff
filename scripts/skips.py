#!/usr/bin/env python3
"""Passes CTest's output on and puts every skip reason before its closing summary.

    ctest ... | skips.py LastTest.log

A test says why it skips in a line that holds the word "skip"; cmocka's own
"[  SKIPPED ]" lines name the test function and are shown with it.
"""
import re
import sys


def reasons(path):
    test, found = "?", []
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            start = re.match(r"\d+/\d+ Test: (\S+)", line)
            if start:
                test = start.group(1)
            elif re.search(r"\bskip(ped|ping|s)?\b", line, re.I) and not re.match(r"\[  SKIPPED \] \d+ test|Command:", line):
                found.append(f"  {test}: {line.strip()}")
    return found


def main():
    held = []
    sys.stdin.reconfigure(errors="replace")
    for line in iter(sys.stdin.readline, ""):
        if held or re.match(r"\d+% tests passed", line):
            held.append(line)
        else:
            print(line, end="", flush=True)
    found = reasons(sys.argv[1])
    print("\n".join(["\nSkipped, with reasons:", *found] if found else ["\nNothing was skipped."]))
    summary = [line for line in held if re.match(r"\d+% tests passed", line)]
    print("\n" + "".join(line for line in held if line not in summary).strip() + "\n\n" + "".join(summary), end="", flush=True)


main()
