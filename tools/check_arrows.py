#!/usr/bin/env python3
"""Holds the tree to its drawing (docs/design/architecture.md): an arrow goes down only, the framework
knows no fault, a file fits in a head, and no flag gives the compiler leave to change arithmetic.
Prints what breaks a rule as file:line, or one line with counts."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 500

# What a room may include directly; whatever lies below that comes with it.
BELOW = {
    "core": [],
    "kernels": ["core"],
    "sim": ["kernels"],
    "autograd": ["kernels"],
    "nn": ["autograd"],
    "optim": ["autograd"],
    "dist": ["nn", "optim", "sim"],
    "io": ["nn"],
    "data": ["io"],
    "train": ["dist", "data", "io"],
    "diagnose": ["train"],
    "lab": ["diagnose"],
}
ROOMS = list(BELOW)
PROGRAMS = ["cli", "examples", "bench", "tests", "tools"]  # on top of everything
FRAMEWORK = {"core", "kernels", "autograd", "nn", "optim", "dist"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([a-z_]+)/[^"]*"', re.M)
IF = re.compile(r"\bif\s*(?:constexpr\s*)?\(|^[ \t]*#[ \t]*(?:el)?if[^\n]*", re.M)
FAULT = re.compile(r"(?<!de)(?<!seg)fault(?!line)", re.I)
UNSAFE = re.compile(r"-ffast-math|-Ofast|-funsafe-math-optimizations|-fassociative-math")
UNSAFE_IN_CPP = re.compile(r"^.*(?:#\s*pragma|__attribute__|gnu::optimize).*(?:fast-math|Ofast|unsafe-math).*$", re.M)
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def reach(room):
    found = {room}
    for below in BELOW[room]:
        found |= reach(below)
    return found


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def without_comments_and_strings(text):
    return NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def condition(text, start):
    """The parenthesis that opens at or after `start`, to its end; a preprocessor line as it is."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return text[start:i + 1]
    return text[start:]


def check_cpp(name, text, problems):
    room = name.split("/")[0]
    includes = list(INCLUDE.finditer(text))
    if room in BELOW:
        allowed = reach(room)
        for m in includes:
            target = m.group(1)
            if (target in BELOW or target in PROGRAMS) and target not in allowed:
                below = ", ".join(r for r in ROOMS if r in allowed and r != room) or "no other room"
                problems.append(f"{name}:{line_of(text, m.start())}: {room}/ must not include {target}/; it may include {below}")
    elif room != "tests":
        for m in includes:
            if m.group(1) == "tests":
                problems.append(f"{name}:{line_of(text, m.start())}: only tests/ includes tests/")
    if room in FRAMEWORK:
        code = without_comments_and_strings(text)
        for m in IF.finditer(code):
            asked = m.group() if "#" in m.group() else condition(code, m.end() - 1)
            if FAULT.search(asked):
                problems.append(f"{name}:{line_of(code, m.start())}: the framework asks no `if (fault)`; swap the behaviour at a seam")
    for m in UNSAFE_IN_CPP.finditer(text):
        problems.append(f"{name}:{line_of(text, m.start())}: no -ffast-math and nothing like it, here neither")
    return len(includes)


def check_script(name, text, problems):
    for number, line in enumerate(text.splitlines(), 1):
        if UNSAFE.search(line.split("#")[0]):
            problems.append(f"{name}:{number}: -ffast-math and its like remove NaN checks and reorder sums")


def files():
    for folder in ROOMS + PROGRAMS + ["cmake", ".ci"]:
        yield from sorted(p for p in (ROOT / folder).rglob("*") if p.is_file())
    for name in ("CMakeLists.txt", "CMakePresets.json", "x"):
        yield ROOT / name


def main():
    problems, count, includes = [], 0, 0
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        cpp = path.suffix in (".h", ".cpp", ".cu", ".cuh", ".inc", ".def")
        script = path.suffix in (".cmake", ".py", ".sh", ".in") or name in (
            "CMakePresets.json", "x", ".ci/run") or path.name == "CMakeLists.txt"
        if not (cpp or script):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        count += 1
        lines = len(text.splitlines())
        if lines > MAX_LINES:
            problems.append(f"{name}:{MAX_LINES + 1}: {lines} lines; a file has at most {MAX_LINES}")
        if cpp:
            includes += check_cpp(name, text, problems)
        elif path != pathlib.Path(__file__).resolve():
            check_script(name, text, problems)
    for problem in problems:
        print(problem)
    if problems:
        return 1
    print(f"arrows: {count} files, {includes} includes between rooms, none goes up")
    return 0


sys.exit(main())
