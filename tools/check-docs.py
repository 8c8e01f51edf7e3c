#!/usr/bin/python3
"""Holds the documentation to what is there: links lead somewhere, every page of docs/ is in the
book, and words are spelled as Debian's British dictionary or docs/words.txt has them. Holds lines
of source, with their comments, to 100 columns. `make lint` runs it; `check-docs.py --words` prints
the words that neither knows, for docs/words.txt, and `check-docs.py --book FOLDER` follows the
links of the site that mdBook has made.
"""

import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DICTIONARY = "/usr/share/dict/british-english"
# The table of contents lists itself least.
PARTS = ("docs/SUMMARY.md",)
COLUMNS = 100


def pages():
    """All pages, by path from the root."""
    found = glob.glob(f"{ROOT}/docs/**/*.md", recursive=True) + glob.glob(f"{ROOT}/*.md")
    found += glob.glob(f"{ROOT}/*/README.md") + glob.glob(f"{ROOT}/*/*/README.md")
    paths = {os.path.relpath(path, ROOT) for path in found}
    return sorted(path for path in paths if not path.startswith(("target/", "docs/book/")))


def read(path):
    with open(f"{ROOT}/{path}", encoding="utf-8") as file:
        return file.read()


def prose(text):
    """Without blocks of code, and without what is set as code."""
    text = re.sub(r"(?ms)^```.*?^```", "", text)
    text = re.sub(r"(?m)^    .*$", "", text)
    return re.sub(r"`[^`]*`", "", text)


def anchors(text):
    """The names of a page's headings, as GitHub and mdBook make them."""
    text = re.sub(r"(?ms)^```.*?^```", "", text)
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    names = set()
    for heading in headings:
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = "".join(c for c in heading.lower() if c.isalnum() or c in "-_ ").replace(" ", "-")
        while name in names:
            name += "-1"
        names.add(name)
    return names


def broken_links(path):
    """Links of a page that lead nowhere."""
    folder = os.path.dirname(path)
    # Code between backticks holds no links; links in blocks are not followed either.
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(read(path))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = os.path.normpath(os.path.join(folder, file)) if file else path
        if not os.path.exists(f"{ROOT}/{there}"):
            yield f"{path}: {target} is not there"
        elif anchor and there.endswith(".md") and anchor not in anchors(read(there)):
            yield f"{path}: {there} has no heading #{anchor}"


def outside_the_book(summary):
    """Pages of docs/ that the book's contents do not list."""
    for path in pages():
        if not path.startswith("docs/") or path.startswith(PARTS):
            continue
        if f"({path.removeprefix('docs/')})" not in summary:
            yield f"docs/SUMMARY.md does not list {path}"


def known_words():
    if not os.path.exists(DICTIONARY):
        sys.exit(f"check-docs: {DICTIONARY} is missing: tools/setup.sh installs wbritish")
    with open(DICTIONARY, encoding="utf-8") as file:
        words = {line.strip().lower() for line in file}
    return words | {line.strip().lower() for line in read("docs/words.txt").splitlines()}


def unknown_words(path, known):
    """Words of a page that are spelled as nothing is that we know."""
    text = re.sub(r"\]\([^)]*\)", "]", prose(read(path)))
    text = re.sub(r"https?://\S+|<[^>]+>|&\w+;", "", text)
    for word in re.findall(r"[A-Za-z][A-Za-z'’]*", text):
        plain = word.replace("’", "'").strip("'")
        # Names in capitals, of one letter, or with capitals inside are names.
        if len(plain) < 3 or plain.isupper() or re.search(r"[a-z][A-Z]|[A-Z]{2}", plain):
            continue
        lower = plain.lower()
        stem = lower.removesuffix("'s")
        if lower not in known and stem not in known and not inflected(stem, known):
            yield plain


def inflected(word, known):
    """Forms that the dictionary leaves out, of words that it has."""
    for ending in ("s", "es", "ed", "d", "ing", "er", "ers", "able", "ly"):
        if word.endswith(ending) and word.removesuffix(ending) in known:
            return True
    for beginning in ("un", "re", "non", "sub", "multi"):
        if word.startswith(beginning) and word.removeprefix(beginning) in known:
            return True
    return False


def long_lines():
    """Lines of source beyond 100 columns. Those of generated files may be, rows of tables (with `|`
    in a comment, or columns that two spaces keep apart), what is one line by its kind (the help of
    a target in the Makefile, a text in TOML), and what has no space to break it at. Of .proto and
    .yml none are looked at: comments of the first go into other languages' generated code, and
    the second are nearly all such texts."""
    kinds = ("*.rs", "*.c", "*.h", "*.py", "*.go", "*.sh", "*.toml", "Makefile", ".ci/run")
    listed = subprocess.check_output(["git", "ls-files", *kinds], cwd=ROOT, text=True)
    for path in listed.splitlines():
        if path.endswith(".pb.go"):
            continue
        for number, line in enumerate(read(path).splitlines(), 1):
            is_row = re.search(r"//[/!] \||\S  +\S", line)
            is_one = path == "Makefile" and " ## " in line or re.match(r'[a-z-]+ = "', line)
            if len(line) > COLUMNS and not is_row and not is_one and " " in line[60:]:
                yield f"{path}:{number}: {len(line)} columns, more than {COLUMNS}"


def broken_in_book(folder):
    """Links of the site's pages that lead to no file of it."""
    for page in sorted(glob.glob(f"{folder}/**/*.html", recursive=True)):
        name = os.path.relpath(page, folder)
        # The whole book on one page has links of pages in other folders.
        if name in ("print.html", "404.html"):
            continue
        with open(page, encoding="utf-8") as file:
            links = set(re.findall(r'(?:href|src)="(?![a-z]+:)([^"#]+)', file.read()))
        for link in sorted(links):
            if not os.path.exists(os.path.join(os.path.dirname(page), link)):
                yield f"{name}: {link} is not in the book"


def main():
    if sys.argv[1:2] == ["--book"]:
        broken = list(broken_in_book(sys.argv[2]))
        sys.exit("\n".join(["check-docs:"] + broken) if broken else 0)
    known = known_words()
    unknown = {path: sorted(set(unknown_words(path, known))) for path in pages()}
    if sys.argv[1:] == ["--words"]:
        print("\n".join(sorted({word.lower() for words in unknown.values() for word in words})))
        return
    wrong = [
        f"{path}: is this a word (docs/words.txt)? {', '.join(words)}"
        for path, words in unknown.items()
        if words
    ]
    wrong += [line for path in pages() for line in broken_links(path)]
    wrong += outside_the_book(read("docs/SUMMARY.md"))
    wrong += long_lines()
    if wrong:
        sys.exit("\n".join(["check-docs:"] + wrong))
    print(f"check-docs: {len(unknown)} pages, links and words are right")


if __name__ == "__main__":
    main()
