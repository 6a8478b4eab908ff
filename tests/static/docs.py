#!/usr/bin/env python3
"""The documents agree with the tree: one version number everywhere, links that lead somewhere, to headings too, make
targets that exist, a description for every public function, text files with plain line ends."""
import glob
import os
import re
import sys

problems = []


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def version():
    header = read("include/quern/version.h")
    parts = [re.search(rf"#define QN_VERSION_{p} (\d+)", header).group(1) for p in ("MAJOR", "MINOR", "PATCH")]
    number = ".".join(parts)
    if f'#define QN_VERSION_STRING "{number}"' not in header:
        problems.append(f"include/quern/version.h: QN_VERSION_STRING is not {number}")
    if f"project(quern VERSION {number} " not in read("CMakeLists.txt"):
        problems.append(f"CMakeLists.txt: the project's version is not {number}")
    top = re.search(r"^## (\S+)", read("CHANGELOG.md"), re.M)
    if not top or top.group(1) not in (number, "Unreleased"):
        problems.append(f"CHANGELOG.md: the first entry is not {number} or Unreleased")


def anchors(path):
    """What a heading of a document is called in a link: its words in small letters, joined by dashes."""
    found, text = set(), re.sub(r"^```.*?^```", "", read(path), flags=re.M | re.S)
    for heading in re.findall(r"^#+ +(.*)$", text, re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        found.add(next(n for n in [name] + [f"{name}-{i}" for i in range(1, 1000)] if n not in found))
    return found


def links(path, text):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        there = os.path.join(os.path.dirname(path), target) if target else path
        if not os.path.exists(there):
            problems.append(f"{path}: the link {target} leads nowhere")
        elif anchor and there.endswith(".md") and anchor not in anchors(there):
            problems.append(f"{path}: {target} has no heading {anchor}")


def make_targets(path, text):
    phony = set(re.search(r"^\.PHONY:(.*)$", read("Makefile"), re.M).group(1).split())
    for target in re.findall(r"`make ([a-z-]+)`", text):
        if target not in phony:
            problems.append(f"{path}: make {target} is not a target of the Makefile")


def public_functions():
    """Each exported function follows a comment directly, or another function of the same group."""
    for path in sorted(glob.glob("include/quern/*.h")):
        lines = read(path).split("\n")
        for number, line in enumerate(lines):
            if not line.startswith("QN_API "):
                continue
            before = number - 1
            while before > 0 and lines[before].strip() and not lines[before].rstrip().endswith(("*/", "}")) and \
                    not lines[before].startswith("#"):
                before -= 1
            declaration = line
            if not lines[before].rstrip().endswith("*/") and "*/" not in declaration:
                name = re.search(r"(qn_\w+)\(", line)
                if name and not obvious(name.group(1)):
                    problems.append(f"{path}:{number + 1}: {name.group(1)} has no description")


def obvious(name):
    """Families whose meaning the header's file comment or the struct beside them gives."""
    return name.endswith(("_options_init", "_get_info", "_destroy", "_close", "_create", "_desc", "_cost", "_name",
                          "_parse", "_kernel", "_backend", "_capacity", "_length", "_tokenizer", "_tensor"))


def plain_text(path, text):
    if "\r" in text:
        problems.append(f"{path}: has CR line ends")
    if text and not text.endswith("\n"):
        problems.append(f"{path}: the last line has no line end")
    if not path.startswith("data/"):
        for number, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip():
                problems.append(f"{path}:{number}: blanks at the end of the line")


def main():
    version()
    documents = sorted(glob.glob("*.md") + glob.glob("docs/**/*.md", recursive=True) + glob.glob("data/*.md") +
                       glob.glob("bench/**/*.md", recursive=True))
    for path in documents:
        text = read(path)
        links(path, text)
        make_targets(path, text)
        plain_text(path, text)
    for pattern in ("src/**/*.[ch]", "include/**/*.h", "kernels/**/*.[ch]", "cli/*.[ch]", "examples/*", "scripts/*.*",
                    "data/*.txt", "cmake/*", "tests/**/*.[ch]", "CMakeLists.txt", "Makefile"):
        for path in sorted(glob.glob(pattern, recursive=True)):
            if os.path.isfile(path):
                plain_text(path, read(path))
    public_functions()
    for required in ("README.md", "CHANGELOG.md", "LICENSE", "CONTRIBUTING.md", "SECURITY.md", "docs/design.md"):
        if not os.path.isfile(required):
            problems.append(f"{required} is missing")
    print("\n".join(problems) if problems else f"{len(documents)} documents agree with the tree")
    return 1 if problems else 0


sys.exit(main())
