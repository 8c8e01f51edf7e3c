//! `butterfly doctor`: what of this host makes Butterfly slow or keeps it from working.

use clap::Args;
use serde_json::{Value, json};

use crate::doctor::{self, Daemon, Finding, Level, Program};
use crate::error::Error;
use crate::output::Table;
use crate::session::Session;

const EXAMPLES: &str = "\
Looks at the host that it runs on; as root it sees all. The daemon is asked what it is joined to,
and in which mode; without one the rest is looked at all the same. Ends with 1 when there is a
problem. Warnings are what costs speed or may bite later.

Examples:
  butterfly doctor
  butterfly doctor eth1 eth2
  butterfly --json doctor --all | jq '.[] | select(.level == \"warning\")'";

/// `doctor`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Interfaces to look at [default: those that the daemon uses; without one, hardware that is
    /// up]
    #[arg(value_name = "INTERFACE")]
    interfaces: Vec<String>,
    /// Print also what is as it should be
    #[arg(long)]
    all: bool,
}

impl DoctorArgs {
    /// Looks, prints, and fails where there is a problem.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let daemon = ask(session).await?;
        let findings = doctor::examine(&daemon, &self.interfaces)
            .await
            .map_err(Error::Usage)?;
        let problems = findings.iter().filter(|one| one.level == Level::Problem);
        let problems = problems.count();
        let shown = findings
            .iter()
            .filter(|one| self.all || one.level > Level::Ok);
        let printed = if session.out.json {
            let all: Vec<Value> = shown.map(value).collect();
            session.out.value(&Value::from(all))
        } else {
            print(&shown.collect::<Vec<_>>(), findings.len(), session)
        };
        match problems {
            0 => printed,
            1 => Err(Error::Refused("1 problem was found".into())),
            count => Err(Error::Refused(format!("{count} problems were found"))),
        }
    }
}

/// What the daemon says of itself; why it does not is a finding.
pub async fn ask(session: &mut Session) -> Result<Daemon, Error> {
    let mut daemon = Daemon::default();
    let client = match session.client().await {
        Ok(client) => client,
        // A wrong option is no sick host.
        Err(error @ Error::Usage(_)) => return Err(error),
        Err(error) => {
            daemon.silent = Some(error.to_string());
            return Ok(daemon);
        }
    };
    let answers = async {
        let client = client.only_v1("doctor")?;
        let status = client.status().await?;
        let uplinks = client.uplinks().await?.uplinks;
        let nics = client.nics().await?;
        let router = client.router_interfaces().await?;
        let balancer = client.balancer_interfaces().await?;
        Ok::<_, Error>((status, uplinks, nics, router, balancer))
    };
    match answers.await {
        Ok((status, uplinks, nics, router, balancer)) => {
            daemon.pid = Some(status.pid);
            daemon.workers = status.workers;
            daemon.uplinks = uplinks;
            daemon.nics = nics;
            let routed = router.into_iter().map(|one| Program {
                of: "router",
                mode: one.mode(),
                interface: one.name,
                why: one.why,
            });
            let balanced = balancer.into_iter().map(|one| Program {
                of: "load balancer",
                mode: one.mode(),
                interface: one.name,
                why: one.detail,
            });
            daemon.programs = routed.chain(balanced).collect();
            daemon.warnings = status.warnings;
        }
        Err(error @ Error::Usage(_)) => return Err(error),
        Err(error) => daemon.silent = Some(error.to_string()),
    }
    Ok(daemon)
}

fn print(shown: &[&Finding], looked_at: usize, session: &mut Session) -> Result<(), Error> {
    let mut table = Table::new(&["LEVEL", "ABOUT", "WHAT"]);
    for finding in shown {
        table.row([
            finding.level.name().to_owned(),
            finding.about.clone(),
            finding.what.clone(),
        ]);
    }
    let text = table.render();
    let mut lines = text.lines();
    if let Some(heading) = lines.next() {
        session.out.text(heading)?;
    }
    for (line, finding) in lines.zip(shown) {
        session.out.text(line)?;
        if !finding.remedy.is_empty() {
            session.out.text(&format!("    -> {}", finding.remedy))?;
        }
    }
    let count = |level| shown.iter().filter(|one| one.level == level).count();
    session.out.text(&format!(
        "{looked_at} things looked at: {} problems, {} warnings, {} notes",
        count(Level::Problem),
        count(Level::Warning),
        count(Level::Note)
    ))
}

/// A finding for programs.
pub fn value(finding: &Finding) -> Value {
    json!({
        "check": finding.check,
        "level": finding.level.name(),
        "about": finding.about,
        "what": finding.what,
        "remedy": finding.remedy,
    })
}
