//! `butterfly forward`: the router in the foreground, without a daemon. It ends with this process,
//! and the kernel forwards on; or its programs stay for the next one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::v1::router_server::RouterServer;
use clap::Args;
use netlink::Mirror;
use router::acl::List;
use router::{AclReport, Options, Report, Router, Service, text};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tonic::service::Routes;
use xdp::Interfaces;

use super::query_options::QueryOptions;
use super::stay_options::StayOptions;
use super::xdp_mode::Mode;
use crate::error::Error;
use crate::output::say;
use crate::query::{Alone, Forward};
use crate::session::Session;
use crate::stay::Stay;

/// What stays, besides points: what interfaces have counted, and where each is counted.
const MAPS: &str = "maps";
const SLOTS: &str = "slots";
const RULES: &str = "rules";

const EXAMPLES: &str = "\
Nothing is configured here: addresses, routes, rules, neighbours and MTUs are the kernel's, and
followed as they change. What the fast path does not do itself is left to the kernel, which also
takes over when this ends, however it ends. While it runs, and where no daemon does, `butterfly
route`, `neigh`, `interface` and `router show` say what it knows. With --json a line a report.

With --acl only what its rules allow is forwarded; SIGHUP has the file read again, and a file with
a mistake changes nothing. The rules end with the process: for rules that stay, give the kernel
those of --acl-to-nftables, which this command recognises. docs/router.md has the file's words.

With --stay the programs forward on for 5 seconds when this ends, and the next one with --stay goes
on with their counters, and without a packet in between if it is there by then. Later the kernel
forwards; what --acl denies stays denied until the next one, or until its folder is removed.

Examples:
  butterfly forward eth1 eth2
  butterfly forward eth1 eth2.100 --routes --watch=5
  butterfly forward eth1 eth2 --acl /etc/butterfly/acl
  butterfly forward --acl /etc/butterfly/acl --acl-to-nftables | nft -f -";

/// `forward`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ForwardArgs {
    /// Interfaces to forward between, VLANs among them
    #[arg(required_unless_present = "acl_to_nftables", value_name = "INTERFACE")]
    interfaces: Vec<String>,
    /// Forward what the rules of this file allow, and drop what they deny
    #[arg(long, value_name = "FILE")]
    acl: Option<PathBuf>,
    /// Print the rules of --acl as a ruleset for nft, and end
    #[arg(long, requires = "acl", conflicts_with = "interfaces")]
    acl_to_nftables: bool,
    /// Print the routes and neighbours that it begins with
    #[arg(long)]
    routes: bool,
    /// Print the counters every so many seconds
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "1",
        require_equals = true,
        value_parser = clap::value_parser!(u64).range(1..))]
    watch: Option<u64>,
    /// How the program runs: in the driver, behind it, or at tc [default: tc where packets are the
    /// kernel's own buffers (veth, TAP, bridge, virtio), else native, generic where refused]
    #[arg(long, value_name = "MODE", ignore_case = true)]
    mode: Option<Mode>,
    /// Lines of 64 bytes for IPv4's table, one for one to ten prefixes
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().nodes4,
        value_parser = clap::value_parser!(u32).range(Options::NODES))]
    nodes4: u32,
    /// Lines of 64 bytes for IPv6's table, one for one to three prefixes
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().nodes6,
        value_parser = clap::value_parser!(u32).range(Options::NODES))]
    nodes6: u32,
    #[command(flatten)]
    query: QueryOptions,
    #[command(flatten)]
    stay: StayOptions,
}

impl ForwardArgs {
    /// Forwards until SIGINT or SIGTERM.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let refused = |error: router::Error| Error::Refused(error.to_string());
        let list = self.acl.as_deref().map(read_acl).transpose()?;
        if self.acl_to_nftables {
            let text = list.unwrap_or_default().to_nftables();
            return session.out.text(&text);
        }
        // Asked for first: a signal that comes while the tables are read ends it too.
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        let hangup = signal(SignalKind::hangup())?;
        let options = Options {
            nodes4: self.nodes4,
            nodes6: self.nodes6,
            ..Options::default()
        };
        let mut stay = self.stay.begin(Alone::Forward)?;
        let router = router(&options, stay.as_mut()).map_err(refused)?;
        let mirror = Mirror::start().await.map_err(|e| refused(e.into()))?;
        let service = Service::with(Arc::new(mirror), router).await;
        let mut service = service.map_err(refused)?;
        service.watch().map_err(refused)?;
        // Before the first packet.
        service.router.set_acl(list).map_err(refused)?;
        let mut attached = match &mut stay {
            None => Interfaces::new(),
            Some(stay) => Interfaces::handed(stay.take_points()),
        };
        if let Some(stay) = &stay {
            attached.keep_points(stay.point_keeper());
        }
        for name in &self.interfaces {
            let mode = self.mode.map(Mode::xdp);
            let added = service.add(name, &mut attached, mode).await;
            let hint = |e| Error::Refused(format!("{e}{}", self.stay.hint(Alone::Forward)));
            added.map_err(hint)?;
        }
        if let Some(stay) = &mut stay {
            take_over(&mut service.router, &mut attached, stay)?;
        }
        let signals = [interrupt, terminate, hangup];
        session.out.go_on_unheard("forwarding");
        let ended = self.go_on(session, &mut service, &mut attached, signals);
        let ended = ended.await;
        let all = self.interfaces.join(", ");
        let said = session.out.last_words(&match stay {
            None => format!("the kernel forwards again: {all}"),
            Some(stay) => {
                // What is dropped lets go of interfaces.
                std::mem::forget((service, attached));
                let rules = match &self.acl {
                    Some(file) => format!(", by the rules of {}", file.display()),
                    None => String::new(),
                };
                format!(
                    "the programs stay, and the kernel forwards in {} s{rules}: {all}. The next \
                     with --stay goes on; rm -r {} ends it",
                    router::layout::PATIENCE,
                    stay.folder().display()
                )
            }
        });
        ended.and(said).and(session.out.heard())
    }

    /// Follows the kernel, answers who asks, and prints as long as it can, until a signal comes or
    /// something fails.
    async fn go_on(
        &self,
        session: &mut Session,
        service: &mut Service,
        attached: &mut Interfaces,
        [mut interrupt, mut terminate, mut hangup]: [Signal; 3],
    ) -> Result<(), Error> {
        let refused = |error: router::Error| Error::Refused(error.to_string());
        let mut shown = service.router.report().map_err(refused)?;
        begin(session, service, &shown, self.routes)?;
        let (forward, mut asked) = Forward::new();
        let answers = Routes::new(RouterServer::new(forward));
        let _socket = self.query.answer(Alone::Forward, answers)?;
        let mut second = tokio::time::interval(Duration::from_secs(self.watch.unwrap_or(1)));
        second.tick().await;
        loop {
            tokio::select! {
                change = service.next() => {
                    let changed = service.take(change).await;
                    service.follow(attached);
                    if !changed {
                        continue;
                    }
                    let now = service.router.report().map_err(refused)?;
                    say_what_changed(session, &shown, &now)?;
                    shown = now;
                }
                Some(look) = asked.recv() => look(service, attached),
                _ = second.tick(), if self.watch.is_some() => {
                    show(session, service)?;
                }
                // Without a file it ends, as a terminal that has gone expects.
                _ = hangup.recv() => match &self.acl {
                    Some(file) => read_again(session, service, file)?,
                    None => break,
                },
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
            }
        }
        show(session, service)
    }
}

/// A router, which goes on counting where that of a command before does if one has left that.
fn router(options: &Options, stay: Option<&mut Stay>) -> Result<Router, router::Error> {
    let Some(stay) = stay else {
        return Router::new(options);
    };
    let (maps, slots, rules) = (stay.take(MAPS), stay.take(SLOTS), stay.take(RULES));
    let (Some(maps), Some(slots)) = (maps, slots) else {
        return Router::new(options);
    };
    let mut router = Router::handed(options, maps, &slots.note).or_else(|e| {
        say(&format!("butterfly: counters begin anew: {e}\n"));
        Router::new(options)
    })?;
    if let Some(Err(e)) = rules.map(|rules| router.take_rules(rules)) {
        say(&format!(
            "butterfly: counters of the access list's rules begin anew: {e}\n"
        ));
    }
    Ok(router)
}

/// Has this command's programs in the place of those before, and all of it stay. The timer of those
/// before, which leaves packets to the kernel when nobody follows it, stays as long as they do.
fn take_over(router: &mut Router, attached: &mut Interfaces, stay: &mut Stay) -> Result<(), Error> {
    let refused = |e: router::Error| Error::Refused(e.to_string());
    // A program that goes on is to have its timer.
    attached.hand_over().map_err(|e| refused(e.into()))?;
    let maps = router.hand_over().map_err(refused)?;
    let until_then = format!("{MAPS} of {}", std::process::id());
    stay.hold(&until_then, &maps)?;
    router.keep_slots(stay.byte_keeper(SLOTS));
    attached.take_over().map_err(|e| refused(e.into()))?;
    stay.hold(MAPS, &maps)?;
    stay.release(&until_then);
    router.keep_rules(stay.keeper(RULES));
    stay.settle();
    Ok(())
}

/// The access list as the file has it now.
fn read_again(session: &mut Session, service: &mut Service, file: &Path) -> Result<(), Error> {
    let set = read_acl(file).and_then(|list| {
        let rules = list.rules.len();
        let set = service.router.set_acl(Some(list));
        set.map_err(|error| Error::Refused(error.to_string()))?;
        Ok(rules)
    });
    let said = match set {
        Ok(rules) => format!("{} was read again: {rules} rules.\n", file.display()),
        Err(error) => format!("the access list is as it was: {error}\n"),
    };
    if session.out.json {
        say(&said);
        return Ok(());
    }
    session.out.text(&said)?;
    session.out.flush()
}

/// An access list of a file.
fn read_acl(file: &Path) -> Result<List, Error> {
    List::read(file).map_err(Error::Refused)
}

/// What was taken over.
fn begin(
    session: &mut Session,
    service: &Service,
    report: &Report,
    routes: bool,
) -> Result<(), Error> {
    let snapshot = service.router.snapshot();
    let mut out = String::new();
    for (interface, shown) in service.router.interfaces().zip(&report.interfaces) {
        if let Some(link) = interface.link(snapshot) {
            out += &text::interface(link, snapshot);
        }
        out += &format!("taking over {}: {}.\n", shown.name, shown.place);
    }
    let [four, six] = report.tables;
    out += &format!(
        "{} prefixes of IPv4 and {} of IPv6 are followed.\n",
        four.prefixes, six.prefixes
    );
    for note in &report.notes {
        out += &format!("{note}\n");
    }
    if routes {
        out += &format!(
            "\n{}\n{}",
            text::routes(snapshot),
            text::neighbours(snapshot)
        );
    }
    if session.out.json {
        session.out.value_line(&json_of(report))?;
    } else {
        session.out.text(&out)?;
    }
    session.out.flush()
}

/// Reasons why packets are the kernel's that came or went.
fn say_what_changed(session: &mut Session, before: &Report, now: &Report) -> Result<(), Error> {
    if before.notes == now.notes {
        return Ok(());
    }
    if session.out.json {
        session.out.value_line(&json_of(now))?;
        return session.out.flush();
    }
    for note in before.notes.iter().filter(|note| !now.notes.contains(note)) {
        session.out.text(&format!("no longer: {note}\n"))?;
    }
    for note in now.notes.iter().filter(|note| !before.notes.contains(note)) {
        session.out.text(&format!("{note}\n"))?;
    }
    session.out.flush()
}

fn show(session: &mut Session, service: &Service) -> Result<(), Error> {
    let report = service.router.report();
    let report = report.map_err(|error| Error::Refused(error.to_string()))?;
    let acl = service.router.acl_report();
    if session.out.json {
        let mut value = json_of(&report);
        if let Some(acl) = &acl {
            value["acl"] = json_of_acl(acl);
        }
        session.out.value_line(&value)?;
    } else {
        session.out.text(&text::counters(&report))?;
        if let Some(acl) = &acl {
            session.out.text(&text::acl(acl))?;
        }
    }
    session.out.flush()
}

fn json_of_acl(acl: &AclReport) -> Value {
    let rules = acl.rules.iter().map(|(rule, count)| {
        json!({ "rule": rule.to_string(), "packets": count.packets, "bytes": count.bytes })
    });
    json!({
        "rules": rules.collect::<Vec<_>>(),
        "default": { "allow": acl.default_allows, "packets": acl.default.packets,
            "bytes": acl.default.bytes },
        "nftables": acl.hooks,
    })
}

fn json_of(report: &Report) -> Value {
    let family = |values: &[u64]| -> Value {
        let named = router::layout::Counter::ALL
            .iter()
            .map(|counter| counter.name().to_owned());
        named
            .zip(values.iter().map(|value| json!(value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let interfaces: Vec<Value> = report
        .interfaces
        .iter()
        .map(|one| {
            let [four, six] = &one.counters;
            json!({ "name": one.name, "mode": one.mode, "ipv4": family(four), "ipv6": family(six) })
        })
        .collect();
    let table = |at: usize| {
        let table = &report.tables[at];
        json!({
            "prefixes": table.prefixes, "nodes": table.nodes, "nodes_max": table.nodes_max,
        })
    };
    json!({ "interfaces": interfaces, "notes": report.notes, "ipv4": table(0), "ipv6": table(1) })
}
