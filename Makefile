# make demo: the first minute. make check: what is quick. make test: that, and real guests and
# peers. `make help` lists the rest.

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)

PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR ?= /lib/systemd/system
SYSUSERSDIR ?= /usr/lib/sysusers.d
TMPFILESDIR ?= /usr/lib/tmpfiles.d
HOLD ?=

.DEFAULT_GOAL := build
.PHONY: \
	packages test-long test-packages test-upgrade test-arm64 test-libvirt test-page test-dpdk build \
	demo check test lint test-devices docs performance-page setup guest-image bench-switch \
	bench-overlay bench-containers bench-workers bench-control bench-hosts bench-neighbours \
	bench-seeing bench-restart bench-balancer bench-router soak-router soak-cni fuzz miri go-objects \
	install uninstall clean help soak-store soak-devices

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/make \1|\2/p' Makefile \
		| awk -F '|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: ## install what building and testing needs (Debian 12, as root)
	@tools/setup.sh

build: ## build butterflyd, butterfly and butterfly-cni, optimised, into target/release
	cargo build --release -p butterfly-daemon -p butterfly-cli -p butterfly-cni

guest-image: setup
	@tools/guest-image.sh

# One command, so that what the three have in common has the same features and is built once.
demo: guest-image ## two guests, a security group, a download that stops; HOLD=1 leaves it up to play with
	cargo build --profile demo -p butterfly-daemon -p butterfly-cli -p butterfly-tests --bins
	@HOLD=$(HOLD) target/demo/demo

lint:
	tools/check-docs.py
	tools/module-cycles.py
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

check: setup lint ## what is quick and needs no guest: format, lints, units, sessions, namespaces
	tools/check-unit.sh
	tools/run-tests.py check

test: guest-image lint ## all of check, and the tests with other people's daemons and real guests
	tools/check-unit.sh
	tools/run-tests.py test

test-long: guest-image ## the tests that take long, which test leaves out; continuous integration runs both
	tools/run-tests.py long

test-devices: guest-image ## router, overlay and load balancer over VLANs and bonds, a link that loses frames, netkit, in guests with Debian's kernels (ten minutes)
	@tools/guest-image.sh trixie
	tools/run-tests.py devices

# ARCH="amd64 arm64": for both kinds of machine.
ARCH ?= amd64

packages: ## .deb (and one with DPDK), .rpm, tarball and OCI image of a release, with SBOM, licences and checksums, into target/packages; ARCH="amd64 arm64" for both
	@tools/setup.sh packages
	@tools/setup.sh dpdk
	$(if $(filter arm64,$(ARCH)),@tools/setup.sh arm64)
	tools/packages.py $(addprefix --arch ,$(ARCH))

# QUICK=1: of programs that are not optimised.
test-packages: guest-image ## a Debian 12 with systemd, booted in QEMU: the .deb installed, everything tried, rebooted, removed
	@tools/setup.sh packages
	@tools/setup.sh dpdk
	tools/packages.py $(if $(QUICK),--quick --out target/packages-quick)
	cargo build --quiet --workspace --bin vhost-peer
	tools/test-packages.py $(if $(QUICK),target/packages-quick,target/packages)

# From LAST=PROGRAM, if that is built already.
test-upgrade: setup ## connections over upgrades from this program to the last release's, which packaging/last-release names, and back
	cargo build --workspace --bins
	last=$(if $(LAST),$(abspath $(LAST)),$$(tools/last-release.sh)) && \
		BUTTERFLY_LAST_RELEASE=$$last \
		cargo test --workspace --test held last_release -- --ignored --nocapture

test-arm64: ## the .deb for arm64, of programs that are not optimised: the README's quickstarts and an uplink in an emulated guest with Debian's kernel
	@tools/setup.sh arm64
	tools/packages.py --quick --arch arm64 --out target/packages-arm64
	tools/test-arm64.py target/packages-arm64

# QUICK=1 keeps each of them under five minutes.
QUICK_FLAG = $(if $(QUICK),--quick)

test-page: ## the daemon's page in Debian's Chromium, with traffic; makes the pictures of docs/page.md
	@tools/setup.sh page
	cargo build --quiet --workspace --bins
	tools/test-page.py target/debug --pictures docs/pictures

test-libvirt: guest-image ## Debian's libvirtd makes and deletes NICs with their domains, by the hook; a domain is saved, restored, and moved to another host with its connections
	@tools/setup.sh libvirt
	cargo build --quiet --workspace --bins
	tools/test-libvirt.py

test-dpdk: ## uplinks that DPDK drives, over its virtual devices, with a daemon that is built with it in target/dpdk
	@tools/setup.sh dpdk
	cargo build --quiet --workspace --bins --features butterfly-daemon/dpdk --target-dir target/dpdk
	cargo test --quiet --workspace --features butterfly-daemon/dpdk --target-dir target/dpdk \
		--test dpdk

# The whole run writes its data and plot to docs/performance, for the regime that held; a short one
# to target/performance.
BENCH_OUT = $(if $(QUICK),target/performance,docs/performance)
PAGE = $(if $(QUICK),,$(MAKE) --no-print-directory performance-page)

bench-switch: ## rates, connections, round trips beside testpmd and OVS-DPDK, in one run (25 minutes at the most); QUICK=1 for a short one
	@tools/setup.sh bench
	cargo build --quiet --release -p butterfly-daemon -p butterfly-cli -p butterfly-bench
	target/release/butterfly-bench switch $(QUICK_FLAG) --out $(BENCH_OUT)
	$(PAGE)

bench-overlay: ## rates to another host and from there beside OVS-DPDK and the kernel, over veth (10 minutes); QUICK=1 for a short one
	@tools/setup.sh bench
	cargo build --quiet --release -p butterfly-daemon -p butterfly-cli -p butterfly-bench
	! pkg-config --exists libdpdk || \
		cargo build --quiet --release -p butterfly-daemon --features dpdk --target-dir target/dpdk
	target/release/butterfly-bench overlay $(QUICK_FLAG) --out $(BENCH_OUT)
	$(PAGE)

bench-containers: ## two containers under a hundred rules beside OVS-DPDK, the kernel's bridge, nftables, a bare veth pair, and on two hosts its vxlan (15 minutes); QUICK=1 for a short one
	@tools/setup.sh bench
	cargo build --quiet --release -p butterfly-daemon -p butterfly-cli -p butterfly-bench
	target/release/butterfly-bench containers $(QUICK_FLAG) --out $(BENCH_OUT)
	$(PAGE)

performance-page: ## docs/performance.md from the data that the benchmarks have left
	cargo run --quiet -p butterfly-bench -- page

docs: ## the manual as a site, from docs/ into target/book, offline once mdBook is installed
	@tools/setup.sh docs
	tools/check-docs.py
	mdbook build docs
	tools/check-docs.py --book target/book

bench-workers: setup ## what two workers cost each other, with flows of their own and with the same; one against two where there are three processors; QUICK=1 for a short one
	cargo build --quiet --release -p butterfly-daemon -p butterfly-cli -p butterfly-bench
	target/release/butterfly-bench workers $(QUICK_FLAG)

bench-control: setup ## a change in force at 16,000 NICs and 10,000 rules, and the pause it makes; a request at 1,000 NICs; 2,000 TAP NICs that go; QUICK=1 for a short one
	cargo build --quiet --release -p butterfly-daemon -p butterfly-bench
	target/release/butterfly-bench control $(QUICK_FLAG)

bench-neighbours: ## what is left of a worker to two guests beside one that does its worst, beside OVS-DPDK; QUICK=1 for a short one
	tools/setup.sh bench
	cargo build --quiet --release -p butterfly-daemon -p butterfly-cli -p butterfly-bench
	target/release/butterfly-bench neighbours $(QUICK_FLAG)

bench-hosts: setup ## qperf, iperf3 and ping of containers on one host and on two, over namespaces (30 minutes); QUICK=1 five minutes. bench/hosts/hosts.py does it over ssh
	cargo build --quiet --release -p butterfly-daemon -p butterfly-cli
	bench/hosts/hosts.py --namespaces --programs target/release $(QUICK_FLAG)

bench-seeing: setup ## what metrics, a log of connections, a capture, a live trace and samples cost a stream; QUICK=1 for a short one
	cargo build --quiet --release -p butterfly-daemon -p butterfly-cli -p butterfly-bench
	target/release/butterfly-bench seeing $(QUICK_FLAG)

bench-restart: ## how long no frame passes, and which connections are lost, when the switch is killed, upgraded or restarted, beside OVS-DPDK (25 minutes at the most); QUICK=1 for a short one
	@tools/setup.sh bench
	cargo build --quiet --release -p butterfly-daemon -p butterfly-cli -p butterfly-bench
	target/release/butterfly-bench restart $(QUICK_FLAG) --out $(BENCH_OUT)
	$(PAGE)

# Real-time priority, where it is allowed, keeps what else runs out of the numbers.
REAL_TIME = $(shell chrt -r 1 true 2>/dev/null && echo chrt -r 1)

bench-balancer: setup ## the load balancer's ns a packet: all rows of its tests; beside an empty program, the usual design and nftables, live frames (15 minutes); QUICK=1 for a short one
	cargo bench --quiet -p butterfly-balancer --bench rows --bench packets --no-run
	$(REAL_TIME) cargo bench --quiet -p butterfly-balancer --bench rows -- \
		$(QUICK_FLAG) --out $(abspath $(BENCH_OUT))
	$(REAL_TIME) cargo bench --quiet -p butterfly-balancer --bench packets -- \
		$(QUICK_FLAG) --out $(abspath $(BENCH_OUT))
	$(PAGE)

bench-router: setup ## the router beside the kernel: ns a packet by routes and destinations, live frames; QUICK=1 for a short one
	cargo bench --quiet -p butterfly-router --bench packets --no-run
	$(REAL_TIME) cargo bench --quiet -p butterfly-router --bench packets -- \
		$(QUICK_FLAG) --out $(abspath $(BENCH_OUT))
	$(PAGE)

soak-router: setup ## a million routes by ip -batch, and routes by BGP from FRR, followed by the router
	cargo test -p butterfly-router --test router -- --ignored --nocapture --test-threads 1

# Of programs as they are shipped: the others are not optimised, and take twice as long.
soak-cni: build ## a thousand containers added and deleted by the CNI plugin; fails where 99 in 100 take 50 ms (CNI_P99_MS) or more
	BUTTERFLY_PROGRAMS=$(abspath target/release) BUTTERFLY_CNI_ROUNDS=1000 \
		BUTTERFLY_CNI_P99_MS=$(or $(CNI_P99_MS),50) \
		cargo test --workspace --test cni many_come_and_go -- --nocapture

soak-devices: setup ## 2,000 TAP NICs removed by one request, others' requests meanwhile, a stop with all of them; fails where it takes 3 s, 50 ms or 2 s
	cargo build --quiet --release -p butterfly-daemon -p butterfly-bench
	target/release/butterfly-bench control --devices

soak-store: ## 20,000 crashes of the store's disk, with writes lost and torn, and 1,000 of the daemon (20 minutes)
	BUTTERFLY_CRASHES=20000 cargo test --release -p butterfly-store --test crash \
		what_was_answered -- --nocapture
	BUTTERFLY_KILLS=1000 cargo test --workspace --test store what_was_answered -- --nocapture

fuzz: ## hostile inputs, FUZZ_SECONDS (60) for each target; needs a nightly compiler, installs cargo-fuzz
	@FUZZ_SECONDS=$(or $(FUZZ_SECONDS),60) fuzz/run.sh

# Miri reads memory as the language defines it: the crates without unsafe as a check of their
# arithmetic, and of io what needs no file, mapping or ring of a guest.
miri: ## the pure parts under Miri; needs a nightly compiler with the miri component
	@tools/miri.sh

go-objects: ## the compiled BPF programs that go/balancer embeds, after a change of bpf/
	go/balancer/objects/build.sh

install: build ## copy programs, service file, settings and completions under $(DESTDIR)$(PREFIX)
	install -D -m 755 target/release/butterflyd $(DESTDIR)$(PREFIX)/sbin/butterflyd
	install -D -m 755 target/release/butterfly $(DESTDIR)$(PREFIX)/bin/butterfly
	install -D -m 755 target/release/butterfly-cni $(DESTDIR)$(PREFIX)/lib/cni/butterfly-cni
	install -D -m 755 packaging/balance-hook $(DESTDIR)$(PREFIX)/share/butterfly/balance-hook
	install -D -m 755 packaging/libvirt-hook $(DESTDIR)$(PREFIX)/share/butterfly/libvirt-hook
	install -D -m 755 packaging/libvirt-move $(DESTDIR)$(PREFIX)/share/butterfly/libvirt-move
	install -D -m 644 packaging/prometheus/butterfly.rules.yml $(DESTDIR)$(PREFIX)/share/butterfly/prometheus/butterfly.rules.yml
	install -D -m 644 packaging/grafana/butterfly.json $(DESTDIR)$(PREFIX)/share/butterfly/grafana/butterfly.json
	install -d $(DESTDIR)$(UNITDIR)
	sed 's|@PREFIX@|$(PREFIX)|; s|@SYSCONFDIR@|$(SYSCONFDIR)|' packaging/butterflyd.service \
		> $(DESTDIR)$(UNITDIR)/butterflyd.service
	sed 's|@PREFIX@|$(PREFIX)|' packaging/butterfly-keeper.service \
		> $(DESTDIR)$(UNITDIR)/butterfly-keeper.service
	@# The unit's user and folders. Packages make them when they are installed.
	install -D -m 644 packaging/butterfly.sysusers $(DESTDIR)$(SYSUSERSDIR)/butterfly.conf
	install -D -m 644 packaging/butterfly.tmpfiles $(DESTDIR)$(TMPFILESDIR)/butterfly.conf
	@# Settings that somebody has changed stay.
	test -e $(DESTDIR)$(SYSCONFDIR)/butterfly/butterflyd.ini || \
		install -D -m 640 packaging/butterflyd.ini $(DESTDIR)$(SYSCONFDIR)/butterfly/butterflyd.ini
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	target/release/butterfly completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/butterfly
	target/release/butterfly completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_butterfly
	target/release/butterfly completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/butterfly.fish
	@# Into this system, not into a folder that becomes a package.
	$(if $(DESTDIR),,systemd-sysusers butterfly.conf && systemd-tmpfiles --create butterfly.conf)

uninstall: ## remove what install copied, but the settings
	rm -f $(DESTDIR)$(PREFIX)/sbin/butterflyd $(DESTDIR)$(PREFIX)/bin/butterfly \
		$(DESTDIR)$(PREFIX)/lib/cni/butterfly-cni \
		$(DESTDIR)$(PREFIX)/share/butterfly/prometheus/butterfly.rules.yml \
		$(DESTDIR)$(PREFIX)/share/butterfly/grafana/butterfly.json \
		$(DESTDIR)$(PREFIX)/share/butterfly/{balance-hook,libvirt-hook,libvirt-move} \
		$(DESTDIR)$(UNITDIR)/butterflyd.service \
		$(DESTDIR)$(UNITDIR)/butterfly-keeper.service \
		$(DESTDIR)$(SYSUSERSDIR)/butterfly.conf $(DESTDIR)$(TMPFILESDIR)/butterfly.conf \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/butterfly \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_butterfly \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/butterfly.fish

clean: ## remove target/
	cargo clean
