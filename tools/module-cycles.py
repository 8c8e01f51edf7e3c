#!/usr/bin/env python3
"""Finds files of a crate that import each other in a circle, and fails when there are any.

    tools/module-cycles.py [CRATE ...]      default: dataplane and io

An import is a `use` or a path that begins with `crate::`, outside of comments and of tests. A name
that a module passes on (`pub use`) counts as an import of the module that defines it. A module and
the folder of its own parts are one thing in two files: that a part imports what it is a part of
makes no circle.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CRATES = ["dataplane", "io"]


def modules(source):
    """All modules of a crate by their path, as tuples; tests left out."""
    found = {}
    for file in sorted(source.rglob("*.rs")):
        path = file.relative_to(source).with_suffix("").parts
        if path[-1] == "mod":
            path = path[:-1]
        if path[-1:] == ("tests",):
            continue
        found[() if path in (("lib",), ("main",)) else path] = stripped(file.read_text())
    return found


def stripped(text):
    """The code of a file without its comments, its tests and who may see what."""
    text = re.sub(r"//.*", "", text)
    text = re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", text)[0]
    return re.sub(r"pub\(in [^)]*\)", "pub", text)


def spread(path):
    """`a::{b, c::{d, e as f}}` as `a::b`, `a::c::d`, `a::c::e as f`."""
    opening = path.find("{")
    if opening < 0:
        return [path]
    prefix, inside, depth, parts = path[:opening], path[opening + 1 : path.rindex("}")], 0, [""]
    for letter in inside:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [one for part in parts if part.strip() for one in spread(prefix + part.strip())]


def uses(text):
    """What a file imports: whether it passes it on, the path, and the name it has here."""
    for public, path in re.findall(r"(?m)^[ \t]*(pub(?:\([^)]*\))? )?use\s+([^;]+);", text):
        for one in spread(" ".join(path.split())):
            path, _, name = one.partition(" as ")
            parts = tuple(path.replace(" ", "").split("::"))
            if parts[-1] == "self":
                parts = parts[:-1]
            yield bool(public), parts, name or parts[-1]


def absolute(module, parts, known):
    """A path from the crate's root; `None` for another crate's."""
    if parts[0] == "crate":
        return parts[1:]
    if parts[0] == "self":
        return module + parts[1:]
    base = module
    if parts[0] != "super":
        return module + parts if module + parts[:1] in known else None
    while parts[:1] == ("super",):
        base, parts = base[:-1], parts[1:]
    return base + parts


def imports(crate):
    """Which modules each module imports."""
    known = modules(ROOT / "crates" / crate / "src")
    passed_on = {}
    for module, text in known.items():
        for public, parts, name in uses(text):
            path = absolute(module, parts, known)
            if public and path is not None:
                passed_on[module, name] = path

    def defined_in(path):
        for _ in range(8):
            length = next(n for n in range(len(path), -1, -1) if path[:n] in known)
            module, rest = path[:length], path[length:]
            if not rest:
                return module
            if (module, rest[0]) in passed_on:
                path = passed_on[module, rest[0]] + rest[1:]
            elif (module, "*") in passed_on and not re.search(rf"\b{rest[0]}\b", known[module]):
                path = passed_on[module, "*"][:-1] + rest
            else:
                return module
        return module

    graph = {}
    for module, text in known.items():
        code = re.sub(r"\buse\s+[^;]+;", "", text)
        paths = [absolute(module, parts, known) for public, parts, _ in uses(text) if not public]
        paths += [tuple(path.split("::")[1:]) for path in re.findall(r"\bcrate(?:::\w+)+", code)]
        targets = {defined_in(path) for path in paths if path is not None}
        # What it is a part of, and the crate's own page.
        graph[module] = {one for one in targets if one and one != module[: len(one)]}
    return graph


def circles(graph):
    """Sets of modules each of which reaches every other one."""
    def reached(begin):
        seen, todo = set(), [begin]
        while todo:
            for one in graph.get(todo.pop(), ()):
                if one not in seen:
                    seen.add(one)
                    todo.append(one)
        return seen

    all_reached = {module: reached(module) for module in graph}
    found = []
    for module in graph:
        circle = {one for one in all_reached[module] if module in all_reached[one]}
        if circle and circle not in found:
            found.append(circle)
    return found


def main(crates):
    status = 0
    for crate in crates:
        graph = imports(crate)
        if len(graph) < 10:
            sys.exit(
                f"{crate}: only {len(graph)} modules found: this script looks in the wrong place"
            )
        for circle in circles(graph):
            status = 1
            print(f"{crate}: {len(circle)} files import each other in a circle:")
            for module in sorted(circle):
                targets = sorted("::".join(one) for one in graph[module] & circle)
                print(f"    {'::'.join(module)} imports {', '.join(targets)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or CRATES))
