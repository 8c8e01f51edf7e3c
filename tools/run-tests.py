#!/usr/bin/python3
"""Builds the workspace's programs and tests once and runs the tests, several test programs side by
side.

usage: run-tests.py check|test|long|all|devices [--jobs N] [NAME...]

`check` runs what is quick and needs no guest, `test` guests and what takes minutes as well, `long`
what takes too long for both, `all` the three; `devices` what is built and booted for itself. Names
choose test programs (as in `guests` or `cli::daemon`). tests/Cargo.toml says which programs boot
guests, and which take long. Each test program runs in a network and mount namespace of its own, so
that no two of them meet: interfaces, addresses, named namespaces, abstract sockets, pinned maps.
Within a program the tests share what takes long to start, which is why a program is what runs here,
and not a test (cargo-nextest would boot the guests for each).

Prints one line a program, all that a failed one said, the slowest twenty tests, and the count of
tests. What failed is run once more with nothing beside it, and named.
"""

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Seconds after which a test program is ended: three times what the slowest takes alone.
LIMIT = 1200
SLOWEST = 20
# The last run's seconds, to begin with the longest: the order alone, and a file that may be missing
# or old.
MEMORY = os.path.join(ROOT, "target", "test-seconds.json")

# A namespace as a fresh host has it. sysfs shows the interfaces of the namespace that it was
# mounted in; named network namespaces and pinned maps are files.
ENTER = """
ip link set lo up
mount -t sysfs sysfs /sys
mount -t bpf bpf /sys/fs/bpf
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
exec "$@"
"""


class Program:
    """A test program: its name, words to start it, and where."""

    def __init__(self, name, words, folder, boots):
        self.name = name
        self.words = words
        self.folder = folder
        # Whether it boots guests.
        self.boots = boots
        self.passed = self.failed = self.ignored = 0
        self.tests = []
        # Names of the tests that failed.
        self.bad = []
        self.text = ""
        self.status = None
        self.wall = self.cpu = 0.0


def main():
    options = arguments()
    with open(f"{ROOT}/tests/Cargo.toml", "rb") as file:
        sessions = tomllib.load(file)
    metadata = sessions["package"]["metadata"]
    fetched = fetch()
    devices = metadata["devices"] if options.tier == "devices" else []
    programs = build(targets(options.tier, sessions), metadata["guests"] + devices)
    # For `check` not all are built.
    for key in ["guests", "longest", "minutes", "long"] if options.tier != "check" else []:
        unknown = set(metadata[key]) - {p.name for p in programs}
        if unknown:
            sys.exit(
                f"run-tests: tests/Cargo.toml names {', '.join(sorted(unknown))} under {key}, "
                "which no test is"
            )
    for fetching in fetched or []:
        # What could not be fetched is what go_client and go_balancer will miss, and say.
        fetching.wait()
    but = left_to_test(metadata) if options.tier == "check" else []
    doc = ["cargo", "test", "--workspace", *but, "--doc"]
    programs.append(Program("doc", doc, ROOT, False))

    def is_long(program):
        return program.name in metadata["long"]

    if options.tier == "test":
        programs = [p for p in programs if not is_long(p)]
    elif options.tier == "long":
        programs = [p for p in programs if is_long(p)]
    elif options.tier == "check":
        left_out = metadata["minutes"] + metadata["long"]
        programs = [p for p in programs if not p.boots and p.name not in left_out]
    elif options.tier == "devices":
        programs = [p for p in programs if p.name in devices]
        if len(programs) != len(devices):
            sys.exit(f"run-tests: not all of {', '.join(devices)} were built")
    if options.names:
        unknown = set(options.names) - {p.name for p in programs}
        if unknown:
            sys.exit(f"run-tests: no test program is called {', '.join(sorted(unknown))}")
        programs = [p for p in programs if p.name in options.names]
    begin = time.monotonic()
    run_all(programs, options, metadata["longest"])
    alone = again(programs, options)
    return report(programs, alone, time.monotonic() - begin)


def arguments():
    parser = argparse.ArgumentParser(description="Builds the workspace once and runs its tests.")
    parser.add_argument("tier", choices=["check", "test", "long", "all", "devices"])
    parser.add_argument(
        "--jobs", type=int, default=jobs(), help="test programs at a time (%(default)s)"
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="test programs; all of the tier if none"
    )
    return parser.parse_intermixed_args()


def jobs():
    """One more than there are cores: most of what a test program does is waiting."""
    return len(os.sched_getaffinity(0)) + 1


def fetch():
    """What the Go modules need, while the rest is built: no test has a way out."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/go/bin", "/usr/lib/go/bin"])
    go = shutil.which("go", path=path)
    folders = ["clients/go", "go/balancer"]
    return go and [
        subprocess.Popen([go, "mod", "download"], cwd=f"{ROOT}/{folder}", stdin=subprocess.DEVNULL)
        for folder in folders
    ]


def targets(tier, sessions):
    """What is to be built, as words for cargo, of which each list is one command. Never programs
    alone: a build of those has other features of tokio and others, and all that uses them is built
    again."""
    metadata = sessions["package"]["metadata"]
    everything = ["--workspace", "--lib", "--bins", "--tests"]
    if tier == "devices":
        # `--tests` leaves them out.
        return [everything, ["--workspace", *(f"--test={name}" for name in metadata["devices"])]]
    if tier != "check":
        return [everything]
    # What it does not run is not built: that is a tenth of a first run.
    not_run = metadata["guests"] + metadata["minutes"] + metadata["long"]
    tests = [test["name"] for test in sessions["test"] if test.get("test", True)]
    tests = [f"--test={name}" for name in tests if name not in not_run]
    but = left_to_test(metadata)
    units = [*everything, *but, "--exclude=butterfly-tests"]
    return [units, ["--workspace", *but, "--bins", *tests]]


def left_to_test(metadata):
    """Packages that `check` does not build, as words for cargo."""
    return [f"--exclude={package}" for package in metadata["not-of-check"]]


def build(chosen, guests):
    """Builds that, and lists the test programs."""
    programs, lines = [], []
    for words in chosen:
        command = ["cargo", "build", *words, "--message-format", "json-render-diagnostics"]
        built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if built.returncode != 0:
            sys.exit(built.returncode)
        lines += built.stdout.splitlines()
    for line in lines:
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"]:
            continue
        if any(program.words == [message["executable"]] for program in programs):
            continue
        folder = os.path.dirname(message["manifest_path"])
        package, target = os.path.basename(folder), message["target"]
        kind = "" if "test" in target["kind"] else " (units)"
        # The sessions' names are unique; others say whose they are.
        whole = package == "tests" and not kind
        name = target["name"] if whole else f"{package}::{target['name']}{kind}"
        programs.append(Program(name, [message["executable"]], folder, whole and name in guests))
    return programs


def run_all(programs, options, longest):
    remembered = {}
    try:
        remembered = json.load(open(MEMORY))
    except (OSError, ValueError):
        pass

    def seconds(program):
        is_long = program.boots or program.name in longest
        return remembered.get(program.name, 100 if is_long else 1)

    programs.sort(key=seconds, reverse=True)
    waiting = queue.SimpleQueue()
    for program in programs:
        waiting.put(program)
    printing = threading.Lock()

    def work():
        while True:
            try:
                program = waiting.get_nowait()
            except queue.Empty:
                return
            run(program, options)
            with printing:
                say(program)

    threads = [threading.Thread(target=work) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    remembered.update({p.name: round(p.wall, 1) for p in programs if p.status == 0})
    json.dump(remembered, open(MEMORY, "w"), indent=1, sort_keys=True)


def again(programs, options):
    """Runs each test that failed once more, with nothing beside it: guests under emulation, two or
    three at a time on a busy machine, outlast a patience now and then. Gives the names of those
    that passed then; their first failure is printed all the same. What fails twice has failed."""
    alone = []
    for program in [p for p in programs if p.status != 0]:
        bad = program.bad
        if len(bad) != program.failed or program.name == "doc":
            # It died, or its tests cannot be chosen by what they are called: all of it.
            bad, program.passed, program.ignored, program.tests = [None], 0, 0, []
        program.failed, program.bad, status = 0, [], 0
        for test in bad:
            print(f"{program.name}: {test or 'all of it'} once more, alone", flush=True)
            run(program, options, [test, "--exact"] if test else [])
            say(program)
            if program.status == 0:
                alone.append(f"{program.name} {test or ''}".rstrip())
            status = status or program.status
        program.status = status
    return alone


def run(program, options, more=()):
    words = [*program.words, *more]
    environment = dict(os.environ)
    if program.name != "doc":
        words = ["unshare", "--net", "--mount", "sh", "-c", ENTER, "sh"] + words
        # libtest tells how long each test took only when it is asked as a nightly one;
        # libtest-mimic does not know the option, and its lines come when a test has ended.
        if is_libtest(program):
            environment["RUSTC_BOOTSTRAP"] = "1"
            words += ["-Z", "unstable-options", "--report-time"]
    if options.tier == "check":
        # A test that boots one all the same belongs to `guests` in tests/Cargo.toml.
        environment["BUTTERFLY_NO_GUESTS"] = "1"
    begin = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            words,
            cwd=program.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        end = threading.Timer(LIMIT, lambda: os.killpg(process.pid, signal.SIGKILL))
        end.start()
        lines = []
        last = begin
        for raw in process.stdout:
            line = raw.decode(errors="replace")
            lines.append(line)
            now = time.monotonic()
            read_line(program, line, now - last)
            last = now
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = program.status = os.waitstatus_to_exitcode(status)
        end.cancel()
        errors.seek(0)
        program.text = "".join(lines) + errors.read().decode(errors="replace")
    program.wall += time.monotonic() - begin
    program.cpu += usage.ru_utime + usage.ru_stime


def is_libtest(program):
    """Sessions are libtest-mimic's; what each file says is `harness = false`."""
    with open(f"{program.folder}/Cargo.toml", "rb") as file:
        manifest = tomllib.load(file)
    target = program.name.rsplit("::", 1)[-1]
    return not any(
        t["name"] == target and t.get("harness") is False for t in manifest.get("test", [])
    )


TEST = re.compile(r"^test (\S.*?)\s+\.\.\. (ok|FAILED|ignored)(?:.*<([0-9.]+)s>)?")
RESULT = re.compile(r"^test result: .*?(\d+) passed; (\d+) failed; (\d+) ignored")


def read_line(program, line, elapsed):
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    if found := TEST.match(line):
        name, how, seconds = found.groups()
        program.tests.append((float(seconds) if seconds else elapsed, name))
        if how == "FAILED":
            program.bad.append(name)
    elif found := RESULT.match(line):
        # The examples in comments have a line for each crate.
        program.passed += int(found[1])
        program.failed += int(found[2])
        program.ignored += int(found[3])


def say(program):
    counts = f"{program.passed} passed"
    if program.failed:
        counts += f", {program.failed} FAILED"
    if program.ignored:
        counts += f", {program.ignored} ignored"
    for line in program.text.splitlines():
        if line.startswith("skipped"):
            print(f"{program.name}: {line}")
    print(
        f"{program.name}: {counts} in {program.wall:.1f} s ({program.cpu:.1f} s of processor time)",
        flush=True,
    )
    if program.status != 0:
        print(f"---- {program.name} ended with {program.status}:\n{program.text}\n----", flush=True)
        # One that died has not counted what failed.
        program.failed = max(program.failed, 1)


def report(programs, alone, wall):
    slowest = sorted(((s, p.name, t) for p in programs for s, t in p.tests), reverse=True)[:SLOWEST]
    print(f"\nThe slowest {len(slowest)} tests:")
    for seconds, name, test in slowest:
        print(f"{seconds:8.1f} s  {name}  {test}")
    cpu = sum(p.cpu for p in programs)
    print(f"\n{len(programs)} test programs in {wall:.0f} s, {cpu:.0f} s of processor time")
    if alone:
        print(f"passed only alone: {', '.join(alone)}")
    bad = [p.name for p in programs if p.status != 0]
    if bad:
        print(f"failed: {', '.join(bad)}")
    passed, failed = sum(p.passed for p in programs), sum(p.failed for p in programs)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or bad else 0


if __name__ == "__main__":
    sys.exit(main())
