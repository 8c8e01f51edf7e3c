#!/usr/bin/env bash
# Makes a fresh Debian 12 ready to build, test and run the demo: packages and the Rust toolchain.
# Run as root; a second run changes nothing and takes a fraction of a second.
set -euo pipefail
cd "$(dirname "$0")/.."

RUST=1.95.0

# What is needed and why:
#   gcc libc6-dev make         link Rust programs; the tests' guest tool is linked statically
#   qemu-system-x86            guests (qemu-utils and the rest of QEMU are not needed)
#   busybox-static cpio kmod   their initramfs
#   iproute2 nftables iputils-ping iperf3 tcpdump ethtool procps util-linux
#                              peers in network namespaces, and a firewall in the router's way
#   git                        the README's test lists the tree
#   socat                      log in to the demo's guests
#   curl                       a client of the README's load balancer
#   python3-zmq python3-cryptography
#                              a client of API v0 that shares no code with ours
#   libpcap-dev                what captures are filtered by, and capture files read with
#   tshark                     reads our captures in tests
#   clang libbpf-dev linux-libc-dev libelf-dev zlib1g-dev pkg-config
#                              compile the XDP programs of bpf/, and libbpf, which loads them
#   golang-go                  the tests of clients/go, and cnitool, where no Go is installed otherwise
#   systemd                    judges the unit that is shipped (tools/check-unit.sh); its journal, which gets the log in a test
#   bird2                      a routing daemon, which tells others of the load balancer's addresses
#   frr                        another one, which is told, and feeds the router
#   dnsmasq-base               a container that serves DHCP and announces itself as a router
#   wbritish                   the words of the documentation (tools/check-docs.py)
#   prometheus                 promtool and a Prometheus, which read the metrics
#   nfdump nfdump-sflow        collectors of IPFIX and sFlow, which get the flow log and samples
#   podman crun conmon         a container runtime, whose network is ours in a test
#   tmux                       a terminal for `butterfly top`
#   qperf openssh-client dropbear-bin
#                              what hosts are measured by (bench/hosts), and a server that lets it in
#   dpdk-dev                   testpmd: guests whose driver and VMM are neither Linux nor QEMU; a peer of the benchmarks
PACKAGES="gcc libc6-dev make ca-certificates git qemu-system-x86 busybox-static cpio gzip kmod
    iproute2 nftables iputils-ping iperf3 tcpdump ethtool procps socat curl util-linux
    python3 python3-zmq python3-cryptography clang libbpf-dev linux-libc-dev libelf-dev zlib1g-dev
    libpcap-dev tshark prometheus nfdump nfdump-sflow tmux qperf openssh-client dropbear-bin
    pkg-config systemd bird2 frr dnsmasq-base wbritish dpdk-dev podman crun conmon"

if ! command -v go >/dev/null && [ ! -x /usr/local/go/bin/go ]; then PACKAGES+=" golang-go"; fi

# With the argument `bench` the benchmarks' other peer as well: OVS-DPDK.
if [ "${1:-}" = bench ]; then PACKAGES+=" openvswitch-switch-dpdk"; fi
# With `packages` what makes them, and the system that they are tried in.
if [ "${1:-}" = packages ]; then
    PACKAGES+=" mmdebstrap e2fsprogs rpm lintian rpmlint binutils xz-utils"
fi
# With `arm64` what builds and packs programs for arm64, and the emulator that they are tried in.
if [ "${1:-}" = arm64 ]; then
    PACKAGES+=" gcc-aarch64-linux-gnu libc6-dev-arm64-cross mmdebstrap e2fsprogs rpm binutils"
    PACKAGES+=" xz-utils qemu-system-arm"
fi
# With `libvirt` Debian's libvirtd, without a service of it.
if [ "${1:-}" = libvirt ]; then
    PACKAGES+=" libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients"
fi
# With `page` a browser, driven by a script.
if [ "${1:-}" = page ]; then
    PACKAGES+=" chromium chromium-driver python3-selenium fonts-dejavu-core"
fi
# With `dpdk` what a daemon is built with that has DPDK.
if [ "${1:-}" = dpdk ]; then PACKAGES+=" libdpdk-dev"; fi

as_root() {
    if [ "$(id -u)" != 0 ]; then
        echo "setup: $1 needs root" >&2
        exit 1
    fi
}

packages() {
    local missing=() package
    for package in $PACKAGES; do
        # `dpkg -s` succeeds for a package that was removed and left its settings; the status tells.
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
            missing+=("$package")
        fi
    done
    if [ ${#missing[@]} = 0 ]; then return; fi
    as_root "installing ${missing[*]}"
    echo "setup: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    # A Prometheus, a collector or a router that nobody asked for is not to run on this machine, now
    # or after a boot.
    local policy=/usr/sbin/policy-rc.d
    if [[ " ${missing[*]} " == *" "@(prometheus|nfdump|frr)" "* ]] && [ ! -e $policy ]; then
        printf '#!/bin/sh\ncase $1 in prometheus|nfdump*|frr) exit 101;; esac\n' >$policy
        chmod 755 $policy
        trap "rm -f $policy" EXIT
    fi
    apt-get -qq install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null
    for package in prometheus nfdump frr; do
        if [[ " ${missing[*]} " == *" $package "* ]]; then
            systemctl --quiet disable $package.service 2>/dev/null || true
        fi
    done
}

# At least $RUST, with rustfmt and clippy.
rust() {
    PATH="$HOME/.cargo/bin:$PATH"
    if command -v cargo >/dev/null && cargo clippy --version >/dev/null 2>&1 &&
        cargo fmt --version >/dev/null 2>&1; then
        local have
        have=$(rustc --version | cut -d ' ' -f 2)
        if [ "$(printf '%s\n%s\n' "$RUST" "$have" | sort -V | head -n 1)" = "$RUST" ]; then
            return
        fi
        echo "setup: rustc $have is older than $RUST"
    fi
    if ! command -v rustup >/dev/null; then
        echo "setup: Rust $RUST or newer is needed, with rustfmt and clippy. Debian 12's own is" \
            "too old: install rustup" >&2
        echo "       (https://rustup.rs says how), then run this again." >&2
        exit 1
    fi
    echo "setup: installing Rust $RUST"
    rustup toolchain install --profile minimal --component rustfmt --component clippy "$RUST"
    rustup override set "$RUST"
}

# What the CNI plugin is tried with (tests/cni.rs): the specification's own tool, and a plugin that
# gives addresses, from the Go module proxy. Debian 12's Go is too old for them: then that test is
# left out, and says so.
cni() {
    local into=$PWD/target/cni
    if [ -x "$into/cnitool" ] && [ -x "$into/host-local" ]; then return; fi
    PATH="$PATH:/usr/local/go/bin"
    echo "setup: building cnitool and host-local"
    GOBIN=$into go install github.com/containernetworking/cni/cnitool@v1.3.1 >/dev/null 2>&1 &&
        GOBIN=$into go install \
            github.com/containernetworking/plugins/plugins/ipam/host-local@v1.9.1 >/dev/null 2>&1 ||
        echo "setup: there is no cnitool: $(go version)"
}

# With `docs` mdBook, which makes a site of docs/: of all such tools the one that is a single
# program and reads plain Markdown, with search and without anything from elsewhere. It runs for a
# second, so it is not optimised.
MDBOOK=0.5.4
mdbook() {
    PATH="$HOME/.cargo/bin:$PATH"
    if command mdbook --version 2>/dev/null | grep -qx "mdbook v$MDBOOK"; then return; fi
    echo "setup: installing mdBook $MDBOOK"
    cargo install --quiet --debug --locked --no-default-features --features search \
        --version "$MDBOOK" mdbook
}

# With `arm64` Rust's standard library for it.
arm64() {
    PATH="$HOME/.cargo/bin:$PATH"
    local target=aarch64-unknown-linux-gnu
    if [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then return; fi
    echo "setup: installing Rust's standard library for $target"
    rustup --quiet target add $target
}

packages
rust
cni
if [ "${1:-}" = arm64 ]; then arm64; fi
if [ "${1:-}" = docs ]; then mdbook; fi
