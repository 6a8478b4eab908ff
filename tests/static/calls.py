#!/usr/bin/env python3
"""The library neither prints, exits, aborts, reads the environment nor allocates
behind the context's back: names of such libc calls may not appear in src/ and kernels/.

`--self-test` proves that the check finds what it looks for.
"""
import os
import re
import sys

BANNED = {
    "allocation goes through qn_alloc, qn_calloc and qn_free":
        "malloc calloc realloc reallocarray free strdup strndup asprintf vasprintf aligned_alloc posix_memalign "
        "memalign valloc alloca getline",
    "the library does not print": "printf fprintf vprintf vfprintf dprintf puts fputs putchar putc fputc perror psignal",
    "the library does not end the process": "exit _exit _Exit quick_exit abort atexit raise kill",
    "the environment is for the command to read": "getenv secure_getenv setenv putenv",
    "no process-wide state": "setlocale signal sigaction chdir umask srand rand strtok system popen fork",
}
REASON = {word: why for why, words in BANNED.items() for word in words.split()}

# file -> names allowed there, each with its reason.
ALLOWED = {
    "src/base/context.c": {
        "aligned_alloc": "the default allocator",
        "posix_memalign": "the default allocator",
        "malloc": "the default allocator",
        "free": "the default allocator",
    },
    "src/base/commit.c": {"free": "what realpath allocated"},
    "src/quant/folder.c": {"free": "what realpath and json_dumps allocated"},
    "src/io/safetensors_writer.c": {"free": "texts that json_dumps allocated"},
    "src/text/template.h": {"signal": "a field of that name"},
}

# Comments, strings, character constants and the printf attribute, which hold words but no calls.
BLANK = re.compile(r'/\*.*?\*/|//[^\n]*|format\s*\(\s*printf|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
# A name as a whole identifier that is called or has its address taken, not a member (x->free, x.free) and not declared as one.
CALL = re.compile(r"(?<![\w.>])(" + "|".join(sorted(REASON)) + r")\s*(?=[(,;)])")


def scan(text):
    text = BLANK.sub(lambda m: "\n" * m.group().count("\n") or " ", text)
    for found in CALL.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found.group(1)


def self_test():
    cases = [
        ("p = malloc(4);", 1), ("x->free(p);", 0), ("qn_free(ctx, p);", 0), ("/* free(p) */", 0), ('f("exit(1)");', 0),
        ("a = (t){malloc, free};", 1), ("if (x) abort ();", 1), ("snprintf(a, 1, b);", 0), ("fprintf(stderr, x);", 1),
        ("// getenv(x)\n exit(1);", 1), ("int raised(void);", 0), ("use(free);", 1),
        ("__attribute__((format(printf, 1, 2))) void f(void);", 0),
    ]
    bad = [line for line, wanted in cases if bool(list(scan(line))) != bool(wanted)]
    for line in bad:
        print(f"self-test: wrong verdict for: {line}")
    print(f"self-test: {len(cases)} cases, {len(bad)} failures")
    return 1 if bad else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    problems, files = 0, 0
    for area in ("src", "kernels"):
        for folder, _, names in os.walk(area):
            for name in names:
                if not name.endswith((".c", ".h", ".inc")):
                    continue
                path = os.path.join(folder, name).replace(os.sep, "/")
                files += 1
                with open(path, encoding="utf-8") as source:
                    for line, word in scan(source.read()):
                        if word not in ALLOWED.get(path, ()):
                            problems += 1
                            print(f"{path}:{line}: {word}: {REASON[word]}")
    print(f"{files} files, {problems} calls that are not allowed")
    return 1 if problems or not files else 0


sys.exit(main())
