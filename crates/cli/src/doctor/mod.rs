//! What of this host makes Butterfly slow or keeps it from working, and what to do about it.
//!
//! [`host`] looks at the kernel, the process and the machine by files of /proc and /sys;
//! [`interfaces`] at the interfaces that carry our frames, by netlink, ethtool and BPF; [`keys`] at
//! the files of keys. Each check has a name that stays, for scripts. `butterfly doctor` calls
//! [`examine`], `butterfly bench` what is in [`speed`].

mod host;
mod interfaces;
mod keys;
pub mod speed;

use api::v1;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// Costs speed, or may bite later.
    Warning,
    /// Something does not work.
    Problem,
}

impl Level {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The check's name.
    pub check: &'static str,
    pub level: Level,
    /// The kernel, the daemon, an interface, …
    pub about: String,
    pub what: String,
    /// Empty where there is nothing to do.
    pub remedy: String,
}

/// What the daemon says of itself.
#[derive(Debug, Default)]
pub struct Daemon {
    /// Why it says nothing.
    pub silent: Option<String>,
    pub pid: Option<u32>,
    pub workers: Vec<v1::WorkerStatus>,
    pub uplinks: Vec<v1::Uplink>,
    pub nics: Vec<v1::NicStatus>,
    /// On interfaces of router and load balancer.
    pub programs: Vec<Program>,
    /// What keeps frames from passing, a sentence each.
    pub warnings: Vec<String>,
}

/// A program of ours on an interface.
#[derive(Debug)]
pub struct Program {
    /// The router's, or the load balancer's.
    pub of: &'static str,
    pub interface: String,
    /// UNSPECIFIED: it is not attached.
    pub mode: v1::XdpMode,
    /// Why it or a part of it is not attached, or that frames are lost; empty where all is well.
    pub why: String,
}

/// Where findings are collected.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        check: &'static str,
        level: Level,
        about: &str,
        what: String,
        remedy: impl Into<String>,
    ) {
        self.0.push(Finding {
            check,
            level,
            about: about.to_owned(),
            what,
            remedy: remedy.into(),
        });
    }

    fn ok(&mut self, check: &'static str, about: &str, what: String) {
        self.add(check, Level::Ok, about, what, "");
    }
}

/// Looks at everything. `named`: the interfaces to look at, instead of those in use. The error is a
/// sentence: an interface that is not there.
pub async fn examine(daemon: &Daemon, named: &[String]) -> Result<Vec<Finding>, String> {
    let mut findings = Findings::default();
    host::examine(daemon, &mut findings);
    keys::examine(daemon, &mut findings);
    interfaces::examine(daemon, named, &mut findings).await?;
    Ok(findings.0)
}
