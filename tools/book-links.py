#!/usr/bin/python3
"""A preprocessor of mdBook, called by `make docs` (docs/book.toml): links that lead out of docs/,
to sources and to the repository's pages, become the path's name, since the site has no such page.
mdBook gives the book as JSON on standard input and takes it back on standard output.
"""

import json
import posixpath
import re
import sys


def inside(folder, target):
    """Whether a link of a page in this folder stays in the book."""
    path = target.split("#")[0]
    return bool(re.match(r"[a-z]+:", target)) or not posixpath.normpath(
        posixpath.join(folder, path)
    ).startswith("..")


def rewritten(content, folder):
    def link(found):
        text, target = found.groups()
        if inside(folder, target):
            # mdBook makes index.html of a README.md, and leaves links to it as they are.
            return found[0].replace("README.md", "index.md")
        path = posixpath.normpath(posixpath.join("docs", folder, target.split("#")[0]))
        # The text names it already, or the path is said behind it.
        return text if path in text else f"{text} (`{path}`)"

    return re.sub(r"(?<!!)\[([^][]*)\]\(([^)\s]+)\)", link, content)


def walk(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter and chapter.get("path"):
            folder = posixpath.dirname(chapter["path"])
            chapter["content"] = rewritten(chapter["content"], folder)
            walk(chapter["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    _, book = json.load(sys.stdin)
    walk(book.get("items") or book.get("sections"))
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
