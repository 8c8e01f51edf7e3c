//! The daemon as a process, from /proc/self.

use std::fs;

use nix::unistd::SysconfVar;

/// See the families of these names.
#[derive(Debug, Default)]
pub struct Process {
    pub cpu_secs: f64,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    pub open_fds: u64,
    pub max_fds: u64,
    pub threads: u64,
}

impl Process {
    /// As it is now; what cannot be read is 0.
    pub fn read() -> Process {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let mut process = parse(
            &stat,
            sysconf(SysconfVar::CLK_TCK, 100) as f64,
            sysconf(SysconfVar::PAGE_SIZE, 4096),
        );
        process.open_fds = fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count() as u64);
        process.max_fds = limits.current.unwrap_or(u64::MAX);
        process
    }
}

fn sysconf(variable: SysconfVar, usual: u64) -> u64 {
    let value = nix::unistd::sysconf(variable).ok().flatten();
    value.map_or(usual, |value| value as u64)
}

/// A line of /proc/PID/stat (proc_pid_stat(5)). The name, in parentheses, may hold anything.
fn parse(stat: &str, ticks_per_sec: f64, page_bytes: u64) -> Process {
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // Fields are counted from 1 in the manual, and the first here is the third there.
    let number = |field: usize| {
        let text = fields.get(field - 3).copied().unwrap_or_default();
        text.parse::<u64>().unwrap_or(0)
    };
    Process {
        cpu_secs: (number(14) + number(15)) as f64 / ticks_per_sec,
        threads: number(20),
        virtual_bytes: number(23),
        resident_bytes: number(24) * page_bytes,
        ..Process::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 500 0 0 0 150 50 0 0 20 0 9 0 100 8192000 25 \
                    18446744073709551615";
        let process = parse(line, 100.0, 4096);
        assert_eq!(process.cpu_secs, 2.0);
        assert_eq!(
            (
                process.threads,
                process.virtual_bytes,
                process.resident_bytes
            ),
            (9, 8_192_000, 25 * 4096)
        );
    }

    #[test]
    fn we_are_a_process() {
        let process = Process::read();
        assert!(process.resident_bytes > 1 << 20 && process.threads > 0 && process.open_fds > 2);
    }
}
