//! What bench NICs that send see, on stdout as the original printed it: once a second a line in the
//! form of ping(8)'s. A thread for each, which ends with the NIC.

use std::io::Write;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use io::bench::BenchReport;

/// How often a line is printed.
const INTERVAL: Duration = Duration::from_secs(1);

/// Prints what the sender sees of its pings to `target` until its port is gone.
pub fn print(target: IpAddr, report: &Arc<BenchReport>) -> std::io::Result<()> {
    let report = Arc::downgrade(report);
    std::thread::Builder::new()
        .name("bench-report".to_owned())
        .stack_size(64 << 10)
        .spawn(move || follow(target, &report))
        .map(drop)
}

fn follow(target: IpAddr, report: &Weak<BenchReport>) {
    let (mut answers, mut lost) = (0, 0);
    loop {
        std::thread::sleep(INTERVAL);
        let Some(report) = report.upgrade() else {
            return;
        };
        let text = match report.answers() {
            now if now > answers => answered(target, report.last()),
            _ => format!(
                "no answer from {target}: {} requests lost",
                report.lost() - lost
            ),
        };
        (answers, lost) = (report.answers(), report.lost());
        // Nobody need read it.
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

fn answered(target: IpAddr, (sequence, round_trip_ns): (u16, u64)) -> String {
    let ms = round_trip_ns as f64 / 1e6;
    format!("64 bytes from {target}: icmp_seq={sequence} time={ms:.3} ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_ping_prints_it() {
        let target = "42.0.0.2".parse().unwrap();
        assert_eq!(
            answered(target, (7, 31_400)),
            "64 bytes from 42.0.0.2: icmp_seq=7 time=0.031 ms"
        );
    }
}
