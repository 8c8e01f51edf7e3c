//! The kernel, the daemon's process and the machine.

use std::fs;
use std::path::Path;

use api::v1;

use super::{Daemon, Findings, Level};

/// With it came what the uplinks' sockets and programs use together: loops, ring buffers, links of
/// XDP programs, and CAP_BPF. Debian 12 has 6.1, Ubuntu 22.04 has 5.15.
const OLDEST: (u32, u32) = (5, 15);
/// Each guest takes some ten descriptors.
const DESCRIPTORS: u64 = 65_536;

pub fn examine(daemon: &Daemon, findings: &mut Findings) {
    kernel(findings);
    asked(daemon, findings);
    capabilities(daemon, findings);
    limits(daemon, findings);
    huge_pages(findings);
    clock(findings);
    cores(daemon, findings);
}

fn text(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    text(path)?.parse().ok()
}

fn kernel(findings: &mut Findings) {
    let release = text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0u32));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    match version >= OLDEST {
        true => findings.ok("kernel_version", "kernel", format!("Linux {release}")),
        false => findings.add(
            "kernel_version",
            Level::Problem,
            "kernel",
            format!("Linux {release} is older than {}.{}", OLDEST.0, OLDEST.1),
            "boot a newer kernel; uplinks, router and load balancer need it",
        ),
    }
    match number("/proc/sys/net/core/bpf_jit_enable") {
        Some(0) => findings.add(
            "bpf_jit",
            Level::Warning,
            "kernel",
            "net.core.bpf_jit_enable is 0: our programs are interpreted, several times slower"
                .into(),
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Some(_) => findings.ok("bpf_jit", "kernel", "BPF programs are compiled".into()),
        None => {}
    }
    let present = |path: &str| Path::new(path).exists();
    match present("/dev/net/tun") {
        true => findings.ok("tun", "kernel", "TAP devices can be made".into()),
        false => findings.add(
            "tun",
            Level::Problem,
            "kernel",
            "there is no /dev/net/tun: no TAP NIC can be made".into(),
            "modprobe tun",
        ),
    }
}

fn asked(daemon: &Daemon, findings: &mut Findings) {
    match &daemon.silent {
        None => findings.ok("daemon", "daemon", "it answers".into()),
        Some(why) => findings.add(
            "daemon",
            Level::Warning,
            "daemon",
            format!("it was not asked: {why}"),
            "systemctl status butterflyd; or name its socket with -e",
        ),
    }
    let broken = daemon.nics.iter().filter(|nic| !nic.detail.is_empty());
    for nic in broken {
        let declared = nic.nic.clone().unwrap_or_default();
        let (what, first) = match declared.kind() {
            v1::NicKind::Unspecified | v1::NicKind::VhostUser => (
                "its guest broke the protocol",
                "restart the guest or its driver",
            ),
            v1::NicKind::Tap | v1::NicKind::Bench | v1::NicKind::Veth | v1::NicKind::VmTap => {
                ("it is broken", "mend what is named")
            }
        };
        findings.add(
            "nic_broken",
            Level::Problem,
            &format!("NIC {}", declared.id),
            format!("{what}: {}", nic.detail),
            format!(
                "{first}; if it comes back, `butterfly support-bundle` has what an issue needs"
            ),
        );
    }
    for warning in &daemon.warnings {
        findings.add("warning", Level::Warning, "daemon", warning.clone(), "");
    }
}

/// Bits of capability sets (linux/capability.h).
const CAPABILITIES: [(&str, u32, &str); 4] = [
    (
        "CAP_NET_ADMIN",
        12,
        "TAP devices and programs on interfaces",
    ),
    ("CAP_NET_RAW", 13, "sockets of uplinks"),
    ("CAP_BPF", 39, "loading programs and maps"),
    ("CAP_PERFMON", 38, "having loops in programs verified"),
];
const CAP_SYS_ADMIN: u32 = 21;

/// The daemon's, else our own.
fn subject(daemon: &Daemon) -> (String, &'static str) {
    match daemon.pid {
        Some(pid) if Path::new(&format!("/proc/{pid}")).exists() => (pid.to_string(), "daemon"),
        _ => ("self".to_owned(), "this user"),
    }
}

fn capabilities(daemon: &Daemon, findings: &mut Findings) {
    let (process, about) = subject(daemon);
    let Some(status) = text(&format!("/proc/{process}/status")) else {
        return;
    };
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    let Some(set) = set else { return };
    let has = |bit: u32| set >> bit & 1 == 1;
    let mut missing = Vec::new();
    for (name, bit, what) in CAPABILITIES {
        // What these two allow, CAP_SYS_ADMIN allowed before they were made.
        let by_admin = bit >= 38 && has(CAP_SYS_ADMIN);
        if !has(bit) && !by_admin {
            missing.push(format!("{name} ({what})"));
        }
    }
    match missing.is_empty() {
        true => findings.ok("capabilities", about, "all capabilities are there".into()),
        false => findings.add(
            "capabilities",
            if about == "daemon" {
                Level::Problem
            } else {
                Level::Note
            },
            about,
            format!("missing: {}", missing.join(", ")),
            "run it by the unit that is shipped, or as root (AmbientCapabilities= in the unit)",
        ),
    }
}

fn limits(daemon: &Daemon, findings: &mut Findings) {
    let (process, about) = subject(daemon);
    // What a shell is given says nothing of the daemon.
    if about != "daemon" {
        return;
    }
    let Some(limits) = text(&format!("/proc/{process}/limits")) else {
        return;
    };
    let soft = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let value = line.split_whitespace().next()?;
        Some(value.parse().unwrap_or(u64::MAX))
    };
    match soft("Max open files") {
        Some(files) if files < DESCRIPTORS => findings.add(
            "open_files",
            Level::Warning,
            about,
            format!(
                "it may have {files} open files: enough for about {} guests",
                files / 10
            ),
            "LimitNOFILE=1048576 in the unit",
        ),
        Some(files) => findings.ok("open_files", about, format!("{files} open files")),
        None => {}
    }
}

pub(super) fn huge_pages(findings: &mut Findings) {
    let Some(info) = text("/proc/meminfo") else {
        return;
    };
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (total, free) = (field("HugePages_Total:"), field("HugePages_Free:"));
    match (total, free) {
        (Some(0), _) => findings.add(
            "huge_pages",
            Level::Note,
            "memory",
            "no huge pages are set aside: guests in ordinary memory cost more TLB misses".into(),
            "sysctl -w vm.nr_hugepages=N, and memory-backend-file,mem-path=/dev/hugepages,share=on \
             for the guests",
        ),
        (Some(total), Some(free)) => {
            findings.ok(
                "huge_pages",
                "memory",
                format!("{free} of {total} huge pages are free"),
            );
        }
        _ => {}
    }
}

pub(super) fn clock(findings: &mut Findings) {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match text(path).as_deref() {
        // Read without a system call.
        Some("tsc" | "arch_sys_counter" | "kvm-clock" | "hyperv_clocksource_tsc_page") => {
            findings.ok(
                "clock",
                "machine",
                "the clock is read without a system call".into(),
            );
        }
        Some(source) => findings.add(
            "clock",
            Level::Warning,
            "machine",
            format!(
                "the clock source is {source}: each reading is a system call or slow, and \
                 workers read it every turn"
            ),
            "boot with clocksource=tsc tsc=reliable, if the hypervisor or the CPU has a stable TSC",
        ),
        None => {}
    }
}

fn cores(daemon: &Daemon, findings: &mut Findings) {
    for worker in &daemon.workers {
        let about = format!("worker {}", worker.index);
        let Some(core) = worker.core else {
            findings.ok("worker_core", &about, "it is not kept on a core".into());
            continue;
        };
        let governor = format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor");
        match text(&governor).as_deref() {
            Some("powersave") | Some("conservative") => findings.add(
                "governor",
                Level::Warning,
                &about,
                format!("core {core} saves power: it takes long to reach its rate"),
                format!("echo performance > {governor}"),
            ),
            _ => findings.ok("governor", &about, format!("core {core}")),
        }
    }
}
