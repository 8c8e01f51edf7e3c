//! What of the machine decides how fast it is, for `butterfly bench`: clock rates, idle states,
//! cores that are shared, memory.

use std::fs;

use super::{Finding, Findings, Level, host};

/// A core that may take longer than this to wake, microseconds, is noticed by single frames.
const WAKE_US: u64 = 20;
/// Of a hundredth of the time that the hypervisor gives to others a worker loses as much.
const STEAL_PERCENT: f64 = 1.0;

const CPUS: &str = "/sys/devices/system/cpu";

/// Looks at the machine, and at a core most of all if one is named.
pub fn examine(core: Option<u32>) -> Vec<Finding> {
    let mut findings = Findings::default();
    let looked_at = match core {
        Some(core) => vec![core],
        None => list(&text(&format!("{CPUS}/online")).unwrap_or_default()),
    };
    virtual_machine(&mut findings);
    governor(&looked_at, &mut findings);
    idle(
        looked_at.first().copied().unwrap_or_default(),
        &mut findings,
    );
    siblings(core, &mut findings);
    isolated(core, &mut findings);
    nodes(&mut findings);
    host::huge_pages(&mut findings);
    host::clock(&mut findings);
    findings.0
}

/// What was seen while it was measured: how often the worker was interrupted by other programs, and
/// what the hypervisor took, in percent.
pub fn measured(interrupted: Option<f64>, stolen: Option<f64>) -> Vec<Finding> {
    let mut findings = Findings::default();
    match interrupted {
        Some(times) if times >= 5.0 => findings.add(
            "interrupted",
            Level::Warning,
            "worker",
            format!("other programs took its core {times:.0} times a second"),
            "keep them off: isolcpus= on the kernel's command line, and butterflyd -u CORE",
        ),
        Some(times) => findings.ok(
            "interrupted",
            "worker",
            format!("other programs took its core {times:.0} times a second"),
        ),
        None => {}
    }
    match stolen {
        Some(percent) if percent >= STEAL_PERCENT => findings.add(
            "stolen",
            Level::Warning,
            "machine",
            format!("the hypervisor gave {percent:.0} % of the time to others"),
            "pin this machine's processors on its host",
        ),
        _ => {}
    }
    findings.0
}

fn text(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The numbers of a list as sysfs has it: `0-2,5`.
pub fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

fn virtual_machine(findings: &mut Findings) {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags"));
    if flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")) {
        findings.add(
            "virtual_machine",
            Level::Note,
            "machine",
            "it is a virtual one: what others on its host do is in the numbers".into(),
            "",
        );
    }
}

fn governor(cores: &[u32], findings: &mut Findings) {
    let path = |core: &u32| format!("{CPUS}/cpu{core}/cpufreq/scaling_governor");
    let governors: Vec<_> = cores.iter().filter_map(|core| text(&path(core))).collect();
    let slow = governors.iter().find(|name| *name != "performance");
    match (slow, governors.is_empty()) {
        (Some(name), _) => findings.add(
            "governor",
            Level::Warning,
            "clock rate",
            format!("the governor is {name}: a core may be slow for a while when there is work"),
            format!("echo performance | tee {CPUS}/cpu*/cpufreq/scaling_governor"),
        ),
        (None, true) => findings.ok(
            "governor",
            "clock rate",
            "firmware or hypervisor choose it".into(),
        ),
        (None, false) => findings.ok(
            "governor",
            "clock rate",
            "the governor is performance".into(),
        ),
    }
}

fn idle(core: u32, findings: &mut Findings) {
    let folder = format!("{CPUS}/cpu{core}/cpuidle");
    let states = fs::read_dir(&folder).into_iter().flatten().flatten();
    let deepest = states.filter_map(|state| {
        let of = |name: &str| text(&state.path().join(name).display().to_string());
        let is_on = of("disable").as_deref() != Some("1");
        let latency: u64 = of("latency")?.parse().ok()?;
        is_on.then(|| (latency, of("name").unwrap_or_default()))
    });
    match deepest.max() {
        Some((latency, name)) if latency > WAKE_US => findings.add(
            "idle_states",
            Level::Note,
            "idle states",
            format!(
                "a core takes up to {latency} us to wake ({name}), which the first frame waits for"
            ),
            "butterflyd --wake-us 10, which bounds it for the workers' cores",
        ),
        Some((latency, _)) => findings.ok(
            "idle_states",
            "idle states",
            format!("a core wakes within {latency} us"),
        ),
        None => findings.ok(
            "idle_states",
            "idle states",
            "the kernel knows none: a hypervisor may have its own".into(),
        ),
    }
}

fn siblings(core: Option<u32>, findings: &mut Findings) {
    let active = text(&format!("{CPUS}/smt/active")).as_deref() == Some("1");
    let path = |core: u32| format!("{CPUS}/cpu{core}/topology/thread_siblings_list");
    let beside = core.map(|core| {
        let all = list(&text(&path(core)).unwrap_or_default());
        let others = all.iter().filter(|one| **one != core);
        others.map(u32::to_string).collect::<Vec<_>>().join(",")
    });
    match (active, beside.as_deref()) {
        (false, _) | (_, Some("")) => {
            findings.ok(
                "smt",
                "cores",
                "no core is shared by two threads (SMT)".into(),
            );
        }
        (true, Some(others)) => findings.add(
            "smt",
            Level::Note,
            "cores",
            format!("the core is one with CPU {others} (SMT): work there makes it slower"),
            format!("leave CPU {others} idle, or a worker of its own there"),
        ),
        (true, None) => findings.add(
            "smt",
            Level::Note,
            "cores",
            "two CPUs are one core (SMT): two workers on one share it".into(),
            "butterflyd -u CORE,CORE with cores of their own",
        ),
    }
}

fn isolated(core: Option<u32>, findings: &mut Findings) {
    let cores = list(&text(&format!("{CPUS}/isolated")).unwrap_or_default());
    let fits = match core {
        Some(core) => cores.contains(&core),
        None => !cores.is_empty(),
    };
    match fits {
        true => findings.ok(
            "isolcpus",
            "cores",
            "cores are set aside for workers".into(),
        ),
        false => findings.add(
            "isolcpus",
            Level::Note,
            "cores",
            match core {
                Some(core) => {
                    format!("core {core} is not set aside: the scheduler puts others there")
                }
                None => "none is set aside: the scheduler puts others where workers are".into(),
            },
            "isolcpus=managed_irq,domain,N nohz_full=N on the kernel's command line, and \
             butterflyd -u N",
        ),
    }
}

fn nodes(findings: &mut Findings) {
    let nodes = list(&text("/sys/devices/system/node/online").unwrap_or_default()).len();
    match nodes {
        0 | 1 => findings.ok("numa", "memory", "all memory is near all cores".into()),
        count => findings.add(
            "numa",
            Level::Note,
            "memory",
            format!("{count} NUMA nodes: memory of another node costs more"),
            "keep workers, guests' memory and the physical NIC on one node (numactl, host-nodes= \
             of QEMU)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_sysfs_writes_them() {
        assert_eq!(list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(list(""), [0; 0]);
    }

    #[test]
    fn what_takes_the_core_is_a_warning() {
        let levels = |found: Vec<Finding>| found.iter().map(|one| one.level).collect::<Vec<_>>();
        assert_eq!(
            levels(measured(Some(100.0), Some(3.0))),
            [Level::Warning, Level::Warning]
        );
        assert_eq!(levels(measured(Some(0.0), Some(0.1))), [Level::Ok]);
        assert!(measured(None, None).is_empty());
    }

    #[test]
    fn each_thing_is_looked_at_once() {
        let found = examine(None);
        for check in ["governor", "idle_states", "smt", "isolcpus", "numa"] {
            let count = found.iter().filter(|one| one.check == check).count();
            assert_eq!(count, 1, "{check}");
        }
    }
}
