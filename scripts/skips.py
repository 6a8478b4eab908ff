#!/usr/bin/env python3
"""Prints every skip reason found in a CTest log: `skips.py LastTest.log`.

A test says why it skips in a line that holds the word "skip"; cmocka's own
"[  SKIPPED ]" lines name the test function and are shown with it.
"""
import re
import sys


def main():
    test, found = "?", []
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        for line in log:
            start = re.match(r"\d+/\d+ Test: (\S+)", line)
            if start:
                test = start.group(1)
            elif re.search(r"\bskip(ped|ping|s)?\b", line, re.I) and not re.match(r"\[  SKIPPED \] \d+ test|Command:", line):
                found.append((test, line.strip()))
    if found:
        print("\nSkipped, with reasons:")
        for name, reason in found:
            print(f"  {name}: {reason}")
    else:
        print("\nNothing was skipped.")


main()
