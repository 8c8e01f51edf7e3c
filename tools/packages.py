#!/usr/bin/python3
"""Makes the packages of a release under target/packages: .deb (and one with the symbols), a .deb
with the daemon that has DPDK, .rpm, a tarball, an OCI image, the SBOM (SPDX 2.3) and SHA256SUMS.
`make packages` runs it.

usage: packages.py [--arch amd64|arm64]... [--out DIR] [--no-build] [--quick]

All formats hold one tree, which is staged first: stripped programs, unit, user, folders,
settings, manual pages and completions made from the programs' help, licences of what is linked
in. The .deb is made by hand with dpkg-deb: debhelper and cargo-deb would bring a second
description of that tree, and the other formats a third. Two runs from one commit give equal
files: names are sorted, owners are root, times are the commit's (SOURCE_DATE_EPOCH), and the
paths of the machine are mapped away by the compiler. --quick makes the .deb alone, of programs
that are not optimised and packed in a hurry, for tests of how it installs.

Programs for arm64 are built on amd64, against Debian's packages in target/arm64/root
(tools/arm64-root.sh). They do not run here, so their manual pages and completions are those that
this machine's `butterfly` and `butterflyd` of the same commit write.

butterfly-dpdk is for amd64 and for Debian 12, whose DPDK it is linked against, and needs
libdpdk-dev here: a second daemon beside the one of `butterfly`, which its drop-in for the unit
starts in the other's place (packaging/dpdk). DPDK is linked dynamically, so that licences and SBOM
are the same.
"""

import argparse
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAME = "butterfly"
ABOUT = "data plane for cloud hosts: virtual switch, router, load balancer"
LONG = """One daemon, butterflyd, and one command, butterfly, for Linux hosts: a
virtual switch with security groups for virtual machines (vhost-user) and
containers (TAP devices), joined to other hosts by VXLAN; a router that takes
over what the kernel forwards, in XDP; and a layer-4 load balancer with direct
server return. The kernel keeps all network interfaces."""
# Who answers for a package: whoever makes it says so.
MAINTAINER = (
    os.environ.get("DEBFULLNAME", "Butterfly maintainers")
    + f" <{os.environ.get('DEBEMAIL', 'maintainers@example.org')}>"
)
# What is built and installed; lib/cni is where Debian's plugins of the CNI are.
PROGRAMS = ("usr/sbin/butterflyd", "usr/bin/butterfly", "usr/lib/cni/butterfly-cni")
# The daemon that has DPDK.
DPDK = f"{NAME}-dpdk"
DPDK_DAEMON = "usr/sbin/butterflyd-dpdk"
DPDK_ABOUT = "data plane for cloud hosts: the daemon with DPDK"
DPDK_LONG = """The daemon of butterfly, linked with DPDK: network devices that DPDK drives
may be uplinks besides those that the kernel keeps. While this package is
installed butterflyd.service runs it. It differs in nothing else, and without
--dpdk-args it uses no DPDK."""
# Bytes that a program may have where it is installed.
PROGRAM_MAX = 25 << 20
# The Debian package of each library that the programs may need. In Debian 13 and Ubuntu 24.04
# libelf1t64 provides libelf1, and libpcap0.8t64 libpcap0.8. The newest version of glibc's symbols
# that they may want: Ubuntu 22.04 has 2.35.
GLIBC_MAX = (2, 35)
LIBRARIES = {
    "libc.so.6": "libc6",
    "libm.so.6": "libc6",
    "ld-linux-x86-64.so.2": "libc6",
    "ld-linux-aarch64.so.1": "libc6",
    "libgcc_s.so.1": "libgcc-s1",
    "libelf.so.1": "libelf1",
    "libz.so.1": "zlib1g",
    "libpcap.so.0.8": "libpcap0.8",
    "librte_eal.so.23": "librte-eal23",
    "librte_ethdev.so.23": "librte-ethdev23",
    "librte_mbuf.so.23": "librte-mbuf23",
    "librte_mempool.so.23": "librte-mempool23",
    "librte_net.so.23": "librte-net23",
    "librte_ring.so.23": "librte-ring23",
}


class Architecture:
    """A kind of machine: what Debian, RPM and Rust call it, and where its libraries are."""

    def __init__(self, deb, rpm, root, target=None):
        self.deb, self.rpm, self.root, self.target = deb, rpm, root, target
        self.triple = f"{rpm}-linux-gnu"
        # Of binutils and gcc.
        self.prefix = f"{self.triple}-" if target else ""

    def built(self, quick):
        """The folder of its programs."""
        if self.target:
            return f"{ROOT}/target/arm64/cargo/{self.target}/{'demo' if quick else 'release'}"
        return f"{ROOT}/target/{'debug' if quick else 'release'}"

    def built_with_dpdk(self, quick):
        """The folder of the daemon that has DPDK; None: there is none for it."""
        return None if self.target else f"{ROOT}/target/dpdk/{'debug' if quick else 'release'}"


AMD64 = Architecture("amd64", "x86_64", "")
ARM64 = Architecture(
    "arm64", "aarch64", f"{ROOT}/target/arm64/root", target="aarch64-unknown-linux-gnu"
)


def main():
    parser = argparse.ArgumentParser(description="Makes the packages of a release.")
    parser.add_argument("--out", default=f"{ROOT}/target/packages")
    parser.add_argument("--no-build", action="store_true", help="take the programs that are there")
    parser.add_argument(
        "--quick", action="store_true", help="the .deb alone, of programs that are not optimised"
    )
    kinds = {"amd64": AMD64, "arm64": ARM64}
    parser.add_argument("--arch", action="append", choices=kinds, help="[default: amd64]")
    options = parser.parse_args()
    os.environ.setdefault("SOURCE_DATE_EPOCH", output("git", "log", "-1", "--format=%ct").strip())
    os.environ["LC_ALL"], os.environ["TZ"] = "C.UTF-8", "UTC"
    os.umask(0o022)
    kinds = [kinds[name] for name in options.arch or ["amd64"]]
    if not options.no_build:
        # Those of this machine speak for the others (speaker).
        for kind in dict.fromkeys([AMD64] + kinds):
            build(kind, options.quick)
    with open(f"{ROOT}/Cargo.toml", "rb") as file:
        version = tomllib.load(file)["workspace"]["package"]["version"]
    options.out = os.path.abspath(options.out)
    shutil.rmtree(options.out, ignore_errors=True)
    for kind in kinds:
        pack(kind, options.out, version, options.quick)
    names = sorted(os.listdir(options.out))
    if not options.quick:
        lint([f"{options.out}/{name}" for name in names])
    write(
        f"{options.out}/SHA256SUMS",
        "".join(f"{digest(f'{options.out}/{n}')}  {n}\n" for n in names),
    )
    for name in names:
        print(f"{os.path.getsize(f'{options.out}/{name}') / 1e6:8.1f} MB  {name}")


def pack(kind, out, version, quick):
    """All packages of one kind of machine."""
    work = f"{out}/work"
    os.makedirs(work)
    crates = linked_crates(kind)
    sbom = f"{out}/{NAME}-{version}-{kind.deb}.spdx.json"
    write(sbom, json.dumps(spdx(kind, version, crates), indent=1) + "\n")
    tree, symbols = f"{work}/tree", f"{work}/symbols"
    if kind.built_with_dpdk(quick):
        deb_dpdk(kind, out, work, version, quick)
    stage(kind, tree, symbols, crates, sbom, quick)
    deb(kind, out, work, tree, version, quick)
    if not quick:
        others(kind, out, work, tree, symbols, version)
    shutil.rmtree(work)


def lint(paths):
    """What lintian and rpmlint say, warnings too, is a mistake; what is none is in packaging/, with
    its reason.
    """
    debs = [path for path in paths if path.endswith(".deb")]
    run("lintian", "--allow-root", "--fail-on", "error,warning", *debs)
    config = f"{ROOT}/packaging/rpmlint.toml"
    run("rpmlint", "--strict", "--config", config, *(p for p in paths if p.endswith(".rpm")))


def others(kind, out, work, tree, symbols, version):
    """All that is not the .deb."""
    deb_symbols(kind, out, work, symbols, version)
    rpm(kind, out, work, tree, version)
    tarball(f"{out}/{NAME}-{version}-linux-{kind.deb}.tar.xz", tree)
    # Its files are compressed.
    write(f"{out}/{NAME}-{version}-linux-{kind.deb}-symbols.tar", tar_of(symbols))
    image(kind, f"{out}/{NAME}-{version}-oci-{kind.deb}.tar", work, tree, version)


def epoch():
    return int(os.environ["SOURCE_DATE_EPOCH"])


def output(*words, **options):
    return subprocess.run(
        words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, **options
    ).stdout


def run(*words, **options):
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode != 0:
        sys.exit(f"packages: {' '.join(words)} ended with {done.returncode}:\n{done.stdout}")


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    os.chmod(path, mode)


def read(path):
    with open(f"{ROOT}/{path}", encoding="utf-8") as file:
        return file.read()


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def zipped(data):
    data = data if isinstance(data, bytes) else data.encode()
    return gzip.compress(data, 9, mtime=0)


def build(kind, quick):
    """The programs, without a word of where they were built."""
    cargo_home = os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo"))
    paths = {} if quick else {cargo_home: "/cargo", ROOT: "/butterfly"}
    environment = dict(os.environ)
    rust = [f"--remap-path-prefix={here}={there}" for here, there in paths.items()]
    c = [f"-ffile-prefix-map={here}={there}" for here, there in paths.items()]
    words = ["cargo", "build", "--locked"]
    if quick and kind is AMD64:
        # As the tests build them: one build serves both.
        words += ["--workspace", "--bins"]
    else:
        words += ["-p", "butterfly-daemon", "-p", "butterfly-cli", "-p", "butterfly-cni"]
        words += ["--profile", "demo" if quick else "release"]
    if kind.target:
        subprocess.run([f"{ROOT}/tools/arm64-root.sh"], check=True)
        name, folder = kind.target.replace("-", "_"), f"{ROOT}/target/arm64/cargo"
        words += ["--target", kind.target, "--target-dir", folder]
        rust.append(f"-Clink-arg=--sysroot={kind.root}")
        c.append(f"--sysroot={kind.root}")
        environment |= {
            f"CC_{name}": f"{kind.prefix}gcc",
            f"AR_{name}": f"{kind.prefix}ar",
            f"CARGO_TARGET_{name.upper()}_LINKER": f"{kind.prefix}gcc",
            "LIBPCAP_LIBDIR": f"{kind.root}/usr/lib/{kind.triple}",
            "PKG_CONFIG_ALLOW_CROSS": "1",
        }
    if rust:
        environment["CARGO_ENCODED_RUSTFLAGS"] = "\x1f".join(rust)
    if c:
        environment[f"CFLAGS_{name}" if kind.target else "CFLAGS"] = " ".join(c)
    subprocess.run(words, cwd=ROOT, env=environment, check=True)
    if kind.built_with_dpdk(quick):
        # As `make test-dpdk` does.
        words = ["cargo", "build", "--locked", "--target-dir", f"{ROOT}/target/dpdk"]
        if quick:
            words += ["--workspace", "--bins", "--features", "butterfly-daemon/dpdk"]
        else:
            words += ["-p", "butterfly-daemon", "--features", "dpdk", "--release"]
        subprocess.run(words, cwd=ROOT, env=environment, check=True)


def linked_crates(kind):
    """The packages that the programs are linked from, ours first; what only builds or tests
    need is not in it.
    """
    machine = kind.target or re.search("^host: (.*)$", output("rustc", "-vV"), re.M)[1]
    words = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", machine]
    metadata = json.loads(output(*words))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    programs = ("butterfly-daemon", "butterfly-cli", "butterfly-cni")
    roots = [i for i, p in packages.items() if p["name"] in programs]
    seen, todo = set(), roots
    while todo:
        package = todo.pop()
        if package in seen:
            continue
        seen.add(package)
        for dependency in nodes[package]["deps"]:
            kinds = dependency["dep_kinds"]
            is_macro = any(
                "proc-macro" in t["kind"] for t in packages[dependency["pkg"]]["targets"]
            )
            if any(kind["kind"] is None for kind in kinds) and not is_macro:
                todo.append(dependency["pkg"])
    return sorted(
        (packages[i] for i in seen),
        key=lambda p: (p["source"] is not None, p["name"], p["version"]),
    )


def spdx(kind, version, crates):
    with open(f"{ROOT}/Cargo.lock", "rb") as file:
        locked = {
            (p["name"], p["version"]): p.get("checksum") for p in tomllib.load(file)["package"]
        }
    created = output("date", "-u", "-d", f"@{epoch()}", "+%Y-%m-%dT%H:%M:%SZ").strip()

    def package(crate):
        name = f"{crate['name']}-{crate['version']}"
        ours = crate["source"] is None
        entry = {
            "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name),
            "name": crate["name"],
            "versionInfo": crate["version"],
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": (crate["license"] or "NOASSERTION").replace("/", " OR "),
            "copyrightText": "NOASSERTION",
        }
        if not ours:
            purl = f"pkg:cargo/{crate['name']}@{crate['version']}"
            reference = {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": purl,
            }
            entry["externalRefs"] = [reference]
            if checksum := locked.get((crate["name"], crate["version"])):
                entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
        return entry

    packages = [package(crate) for crate in crates]
    whole = {
        "SPDXID": "SPDXRef-butterfly",
        "name": NAME,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "Apache-2.0",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION",
    }
    links = [("SPDXRef-DOCUMENT", "DESCRIBES", whole["SPDXID"])]
    links += [(whole["SPDXID"], "CONTAINS", entry["SPDXID"]) for entry in packages]
    keys = ("spdxElementId", "relationshipType", "relatedSpdxElement")
    names = "".join(f"{p['name']} {p['versionInfo']}\n" for p in packages)
    fingerprint = hashlib.sha256(names.encode()).hexdigest()[:16]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{NAME}-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/{NAME}-{version}-{kind.deb}-{fingerprint}",
        "creationInfo": {"created": created, "creators": ["Tool: butterfly-packages"]},
        "packages": [whole] + packages,
        "relationships": [dict(zip(keys, link)) for link in links],
    }


def licences(crates):
    """The licence texts that come with the crates, each once, under the names of those that have
    it.
    """
    texts = {}
    for crate in crates:
        if crate["source"] is None:
            continue
        folder = os.path.dirname(crate["manifest_path"])
        found = [
            n
            for n in sorted(os.listdir(folder))
            if re.match(r"(?i)(licen[cs]e|copying|notice|copyright)", n)
        ]
        for name in found:
            if os.path.isfile(f"{folder}/{name}"):
                with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
                    texts.setdefault(file.read().strip(), []).append(
                        f"{crate['name']} {crate['version']}"
                    )
        if not found:
            texts.setdefault(f"(no text of its own; declared: {crate['license']})", []).append(
                crate["name"]
            )
    parts = [f"{', '.join(dict.fromkeys(names))}:\n\n{text}\n" for text, names in texts.items()]
    return f"\n{'=' * 80}\n\n".join(parts)


def stage(kind, tree, symbols, crates, sbom, quick):
    """Everything as it is installed."""
    for path in PROGRAMS:
        program = os.path.basename(path)
        os.makedirs(f"{tree}/{os.path.dirname(path)}", exist_ok=True)
        strip(kind, f"{kind.built(quick)}/{program}", f"{tree}/{path}", symbols)
        if not quick:
            inspect(f"{tree}/{path}")
    # The programs of this machine say what both say of themselves.
    speaker = AMD64.built(quick)
    for service in ("butterflyd.service", "butterfly-keeper.service"):
        unit = (
            read(f"packaging/{service}").replace("@PREFIX@", "/usr").replace("@SYSCONFDIR@", "/etc")
        )
        write(f"{tree}/usr/lib/systemd/system/{service}", unit)
    write(f"{tree}/usr/lib/sysusers.d/butterfly.conf", read("packaging/butterfly.sysusers"))
    write(f"{tree}/usr/lib/tmpfiles.d/butterfly.conf", read("packaging/butterfly.tmpfiles"))
    write(f"{tree}/etc/butterfly/butterflyd.ini", settings())
    for script in ("balance-hook", "libvirt-hook", "libvirt-move"):
        write(f"{tree}/usr/share/butterfly/{script}", read(f"packaging/{script}"), 0o755)
    for name in ("prometheus/butterfly.rules.yml", "grafana/butterfly.json"):
        write(f"{tree}/usr/share/butterfly/{name}", read(f"packaging/{name}"))
    pages = f"{tree}/man"
    os.makedirs(pages)
    run(f"{speaker}/butterfly", "man", pages)
    for page in sorted(os.listdir(pages)):
        write(f"{tree}/usr/share/man/man1/{page}.gz", zipped(open(f"{pages}/{page}", "rb").read()))
    shutil.rmtree(pages)
    write(
        f"{tree}/usr/share/man/man8/butterflyd.8.gz",
        zipped(output(f"{speaker}/butterflyd", "--man")),
    )
    completions = {
        "bash": "bash-completion/completions/butterfly",
        "zsh": "zsh/vendor-completions/_butterfly",
        "fish": "fish/vendor_completions.d/butterfly.fish",
    }
    for shell, place in completions.items():
        write(f"{tree}/usr/share/{place}", output(f"{speaker}/butterfly", "completion", shell))
    docs = f"{tree}/usr/share/doc/{NAME}"
    write(f"{docs}/third-party-licenses.gz", zipped(licences(crates)))
    write(f"{docs}/{NAME}.spdx.json.gz", zipped(open(sbom, "rb").read()))
    shutil.copy(f"{ROOT}/LICENSE", f"{docs}/LICENSE")


def inspect(path):
    """A program of a release is of its commit, and not too large."""
    program, size = os.path.basename(path), os.path.getsize(path)
    # A plugin of the CNI speaks of the specification's versions alone.
    if program != "butterfly-cni":
        # A report of a user's names it.
        commit = output("git", "rev-parse", "--short=12", "HEAD").strip()
        with open(path, "rb") as file:
            if f"({commit})".encode() not in file.read():
                sys.exit(f"packages: {program} is not of the commit, which is {commit}")
    if size > PROGRAM_MAX:
        sys.exit(f"packages: {program} has {size} bytes, and at most {PROGRAM_MAX} are wanted")


def settings():
    """The settings file as packages install it: what the unit's confinement asks for is set."""
    text = read("packaging/butterflyd.ini")
    for key, value in (
        ("trace-dir", "/var/lib/butterfly/traces"),
        ("api-group", "butterfly"),
        ("keeper", "/run/butterfly-keeper/socket"),
    ):
        text, count = re.subn(rf"(?m)^;{key} = .*$", f"{key} = {value}", text)
        if count != 1:
            sys.exit(f"packages: packaging/butterflyd.ini says nothing of {key}")
    return text.replace("/usr/local/share/", "/usr/share/")


def strip(kind, program, to, symbols):
    """A program without symbols, and the symbols where gdb looks for them."""
    found = re.search(r"Build ID: ([0-9a-f]+)", output("readelf", "-n", program))
    if not found:
        sys.exit(f"packages: {program} has no build ID")
    build_id = found[1]
    debug = f"{symbols}/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
    os.makedirs(os.path.dirname(debug), exist_ok=True)
    objcopy, strip_program = f"{kind.prefix}objcopy", f"{kind.prefix}strip"
    run(objcopy, "--only-keep-debug", "--compress-debug-sections", program, debug)
    os.chmod(debug, 0o644)
    run(strip_program, "--strip-all", "--remove-section=.comment", "-o", to, program)
    os.chmod(to, 0o755)


def settle(tree):
    """Gives all files the commit's time."""
    for folder, folders, files in os.walk(tree):
        for name in folders + files:
            os.utime(f"{folder}/{name}", (epoch(), epoch()), follow_symlinks=False)
    os.utime(tree, (epoch(), epoch()))


def depends(tree, programs=PROGRAMS):
    needed, glibc = set(), (0,)
    for program in programs:
        dynamic = output("readelf", "-dV", f"{tree}/{program}")
        for library in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
            if library not in LIBRARIES:
                sys.exit(f"packages: of which Debian package is {library}? (LIBRARIES)")
            needed.add(LIBRARIES[library])
        versions = re.findall(r"GLIBC_([0-9.]+)", dynamic)
        glibc = max([glibc] + [tuple(map(int, v.split("."))) for v in versions])
    if glibc > GLIBC_MAX:
        sys.exit(f"packages: {glibc} of glibc is newer than what {GLIBC_MAX} of Ubuntu 22.04 has")
    versioned = {"libc6": f"libc6 (>= {'.'.join(map(str, glibc))})"}
    return sorted(versioned.get(name, name) for name in needed)


def installed_kib(tree):
    sizes = (
        os.lstat(f"{folder}/{name}").st_size for folder, _, files in os.walk(tree) for name in files
    )
    return sum((size + 1023) // 1024 for size in sizes)


def deb(kind, out, work, tree, version, quick):
    root = f"{work}/deb"
    shutil.copytree(tree, root)
    docs = f"{root}/usr/share/doc/{NAME}"
    os.remove(f"{docs}/LICENSE")
    write(f"{docs}/changelog.gz", changelog(version, NAME))
    write(f"{docs}/copyright", read("packaging/debian/copyright"))
    write(f"{root}/usr/share/lintian/overrides/{NAME}", read("packaging/debian/lintian-overrides"))
    fields = {
        "Package": NAME,
        "Version": version,
        "Architecture": kind.deb,
        "Maintainer": MAINTAINER,
        "Installed-Size": installed_kib(root),
        # iproute2: the pair of interfaces of health checks. sysusers: postinst.
        "Depends": ", ".join(
            depends(tree) + ["iproute2", "systemd | systemd-standalone-sysusers | systemd-sysusers"]
        ),
        "Recommends": "systemd",
        "Suggests": "bird2, libvirt-daemon-system, python3",
        "Section": "net",
        "Priority": "optional",
        "Description": ABOUT + "".join(f"\n {line}" for line in LONG.splitlines()),
    }
    control(root, fields)
    write(f"{root}/DEBIAN/conffiles", "/etc/butterfly/butterflyd.ini\n")
    for script in ("postinst", "prerm", "postrm"):
        write(f"{root}/DEBIAN/{script}", read(f"packaging/debian/{script}"), 0o755)
    pack_deb(root, f"{out}/{NAME}_{version}_{kind.deb}.deb", "-Zgzip" if quick else "-Zxz")


def deb_dpdk(kind, out, work, version, quick):
    root, symbols = f"{work}/deb-dpdk", f"{work}/symbols-dpdk"
    program = f"{root}/{DPDK_DAEMON}"
    os.makedirs(os.path.dirname(program))
    strip(kind, f"{kind.built_with_dpdk(quick)}/butterflyd", program, symbols)
    if not quick:
        inspect(program)
    drop_in = read("packaging/dpdk/butterflyd.conf")
    write(f"{root}/usr/lib/systemd/system/butterflyd.service.d/dpdk.conf", drop_in)
    pages = f"{root}/usr/share/man/man8"
    os.makedirs(pages)
    os.symlink("butterflyd.8.gz", f"{pages}/butterflyd-dpdk.8.gz")
    docs = f"{root}/usr/share/doc/{DPDK}"
    write(f"{docs}/changelog.gz", changelog(version, DPDK))
    write(f"{docs}/copyright", read("packaging/debian/copyright"))
    overrides = read("packaging/dpdk/lintian-overrides")
    write(f"{root}/usr/share/lintian/overrides/{DPDK}", overrides)
    # A driver that DPDK finds by itself: every pool of buffers is made by it.
    libraries = sorted(depends(root, [DPDK_DAEMON]) + ["librte-mempool-ring23"])
    libraries = [f"{name} (>= 22.11)" if name.startswith("librte-") else name for name in libraries]
    fields = {
        "Package": DPDK,
        "Source": NAME,
        "Version": version,
        "Architecture": kind.deb,
        "Maintainer": MAINTAINER,
        "Installed-Size": installed_kib(root),
        "Depends": ", ".join([f"{NAME} (= {version})"] + libraries),
        # Its drivers, and the tool that gives it a device.
        "Recommends": "dpdk",
        "Suggests": "librte-meta-net",
        "Enhances": NAME,
        "Section": "net",
        "Priority": "optional",
        "Description": DPDK_ABOUT + "".join(f"\n {line}" for line in DPDK_LONG.splitlines()),
    }
    control(root, fields)
    for script in ("postinst", "prerm", "postrm"):
        write(f"{root}/DEBIAN/{script}", read(f"packaging/dpdk/{script}"), 0o755)
    pack_deb(root, f"{out}/{DPDK}_{version}_{kind.deb}.deb", "-Zgzip" if quick else "-Zxz")
    if not quick:
        deb_symbols(kind, out, work, symbols, version, DPDK)


def deb_symbols(kind, out, work, symbols, version, of=NAME):
    root = f"{work}/deb-symbols-{of}"
    shutil.copytree(symbols, root)
    docs = f"{root}/usr/share/doc/{of}-dbgsym"
    write(f"{docs}/copyright", read("packaging/debian/copyright"))
    write(f"{docs}/changelog.gz", changelog(version, of))
    fields = {
        "Package": f"{of}-dbgsym",
        "Version": version,
        "Architecture": kind.deb,
        "Maintainer": MAINTAINER,
        "Installed-Size": installed_kib(root),
        "Depends": f"{of} (= {version})",
        "Section": "debug",
        "Priority": "optional",
        "Description": f"debug symbols for {of}",
    }
    control(root, fields)
    # Its files are compressed.
    pack_deb(root, f"{out}/{of}-dbgsym_{version}_{kind.deb}.deb", "-Zgzip", "-z1")


def changelog(version, of):
    date = output("date", "-u", "-R", "-d", f"@{epoch()}").strip()
    head = f"{of} ({version}) unstable; urgency=medium"
    return zipped(f"{head}\n\n  * See the project's history.\n\n -- {MAINTAINER}  {date}\n")


def control(root, fields):
    write(f"{root}/DEBIAN/control", "".join(f"{key}: {value}\n" for key, value in fields.items()))
    sums = []
    for folder, _, files in os.walk(root):
        for name in files:
            path = os.path.relpath(f"{folder}/{name}", root)
            if not path.startswith("DEBIAN/") and not os.path.islink(f"{root}/{path}"):
                with open(f"{root}/{path}", "rb") as file:
                    sums.append(f"{hashlib.file_digest(file, 'md5').hexdigest()}  {path}\n")
    write(f"{root}/DEBIAN/md5sums", "".join(sorted(sums, key=lambda line: line[34:])))


def pack_deb(root, to, *how):
    settle(root)
    run("dpkg-deb", "--root-owner-group", *how, "--build", root, to)


def rpm(kind, out, work, tree, version):
    top = f"{work}/rpm"
    files = []
    for folder, _, names in os.walk(tree):
        for name in sorted(names):
            path = os.path.relpath(f"{folder}/{name}", tree)
            config = "%config(noreplace) " if path.startswith("etc/") else ""
            files.append(f"{config}/{path}")
    spec = read("packaging/butterfly.spec")
    date = output("date", "-u", "-d", f"@{epoch()}", "+%a %b %d %Y").strip()
    values = {"VERSION": version, "ABOUT": ABOUT[0].upper() + ABOUT[1:], "LONG": LONG}
    values |= {"TREE": tree, "MAINTAINER": MAINTAINER, "DATE": date}
    for key, value in values.items():
        spec = spec.replace(f"@{key}@", value)
    settle(tree)
    write(f"{top}/butterfly.spec", spec.replace("@FILES@", "\n".join(sorted(files))))
    run(
        "rpmbuild",
        "-bb",
        "--target",
        kind.rpm,
        "--define",
        f"_topdir {top}",
        f"{top}/butterfly.spec",
    )
    made = f"{top}/RPMS/{kind.rpm}/{NAME}-{version}-1.{kind.rpm}.rpm"
    shutil.copy(made, f"{out}/{os.path.basename(made)}")


def tar_of(tree):
    """A tar of a tree: sorted, root's, of one time."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:

        def add(path):
            member = tar.gettarinfo(f"{tree}/{path}", arcname=f"./{path}" if path else ".")
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            member.mtime = epoch()
            if member.isreg():
                with open(f"{tree}/{path}", "rb") as file:
                    tar.addfile(member, file)
            else:
                tar.addfile(member)
            if member.isdir():
                for name in sorted(os.listdir(f"{tree}/{path}")):
                    add(os.path.join(path, name) if path else name)

        add("")
    return data.getvalue()


def tarball(to, tree):
    write(to, lzma.compress(tar_of(tree), preset=6))


def libraries(kind, program):
    """The shared libraries that a program is run with, by where it looks for them: paths below the
    root of its kind of machine.
    """
    folders = [f"/lib/{kind.triple}", f"/usr/lib/{kind.triple}"]
    interpreter = re.search(r"program interpreter: (.*)\]", output("readelf", "-l", program))
    found, todo = {interpreter[1]}, [program]
    while todo:
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", todo.pop())):
            if name == os.path.basename(interpreter[1]):
                continue
            places = [f"{f}/{name}" for f in folders if os.path.exists(f"{kind.root}{f}/{name}")]
            if not places:
                sys.exit(f"packages: {name}, which {program} needs, is not in {folders}")
            if places[0] not in found:
                found.add(places[0])
                todo.append(kind.root + places[0])
    return sorted(found)


def owner(library):
    """The Debian package that a library is of. Both kinds of machine have the same."""
    name = os.path.basename(library)
    if name.startswith("ld-linux"):
        return "libc6"
    return output("dpkg", "-S", f"*/{AMD64.triple}/{name}").split(":")[0]


def image(kind, to, work, tree, label):
    """An OCI image layout (image-spec 1.0) of one layer: the tree, ip(8), and the libraries of
    both, as they are on the building machine or in the root of its kind, with their packages'
    copyright files.
    """
    root, layout = f"{work}/image", f"{work}/oci"
    shutil.copytree(tree, root)
    ip = f"{kind.root}/bin/ip"
    shutil.copy(ip, f"{root}/usr/sbin/ip")
    needed = set()
    for program in [f"{tree}/usr/sbin/butterflyd", f"{tree}/usr/bin/butterfly", ip]:
        needed.update(libraries(kind, program))
    for library in sorted(needed):
        os.makedirs(os.path.dirname(root + library), exist_ok=True)
        shutil.copy(os.path.realpath(kind.root + library), root + library)
    for package in sorted({owner(library) for library in needed} | {"iproute2"}):
        with open(f"{kind.root}/usr/share/doc/{package}/copyright", "rb") as file:
            write(f"{root}/usr/share/doc/{package}/copyright", file.read())
    write(f"{root}/etc/passwd", "root:x:0:0:root:/:/sbin/nologin\n")
    write(f"{root}/etc/group", "root:x:0:\n")
    os.makedirs(f"{root}/tmp")
    os.chmod(f"{root}/tmp", 0o1777)
    write(f"{root}/etc/butterfly/butterflyd.ini", read("packaging/butterflyd.ini"))
    layer = tar_of(root)
    packed = zipped(layer)

    def blob(data, kind):
        name = hashlib.sha256(data).hexdigest()
        write(f"{layout}/blobs/sha256/{name}", data)
        return {"mediaType": kind, "digest": f"sha256:{name}", "size": len(data)}

    def text(value):
        return json.dumps(value, sort_keys=True).encode()

    created = output("date", "-u", "-d", f"@{epoch()}", "+%Y-%m-%dT%H:%M:%SZ").strip()
    labels = {
        "org.opencontainers.image.title": NAME,
        "org.opencontainers.image.version": label,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }
    config = {
        "created": created,
        "architecture": kind.deb,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/sbin/butterflyd", "--no-syslog"],
            "Labels": labels,
            "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    oci = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": blob(text(config), f"{oci}.config.v1+json"),
        "layers": [blob(packed, f"{oci}.layer.v1.tar+gzip")],
    }
    entry = blob(text(manifest), f"{oci}.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": label}
    write(f"{layout}/index.json", text({"schemaVersion": 2, "manifests": [entry]}))
    write(f"{layout}/oci-layout", text({"imageLayoutVersion": "1.0.0"}))
    write(to, tar_of(layout))


if __name__ == "__main__":
    main()
