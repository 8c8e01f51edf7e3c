//! Which hooks of the host's firewall see packets that are forwarded: base chains of nftables that
//! can do something, tables of the older iptables, and functions that are no rules. Read whole, at
//! the start, whenever the kernel says that nftables' rules changed, and when there are others of
//! the rest, of which it tells nobody.
//!
//! By nfnetlink (linux/netfilter/nf_tables.h) and not by `nft -j`: no program has to be installed,
//! and changes are told.

use crate::dump::Dump;
use crate::error::Error;
use crate::hook_function::stranger;
use crate::message::{Message, Request};
use crate::nft_rule::{Expression, expressions};
use crate::socket::Socket;
use crate::uapi::*;
use std::collections::BTreeSet;
use std::time::Duration;
use std::{fmt, io};

/// So often rules that change meanwhile are read at once, and the pause before, longer each time.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(10);

/// Of enum nf_inet_hooks those that a forwarded packet passes: prerouting, forward, postrouting.
const PASSED: [u32; 3] = [0, 2, 4];

/// A place where forwarded packets of a family are looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hook {
    /// For packets of IPv4.
    pub v4: bool,
    /// For packets of IPv6.
    pub v6: bool,
    /// Its name as people write it: "nftables inet filter forward", "function ip_vs_out_hook of
    /// ip_vs".
    pub name: String,
    /// Rules in the chain itself; 0 of all that is none of nftables.
    pub rules: usize,
    /// What no rule accepts is dropped.
    pub drops: bool,
    /// Its rules, if it is a chain that filters what is forwarded and nothing else, in use, of a
    /// kind that was read.
    pub read: Option<Vec<Vec<Expression>>>,
}

impl Hook {
    /// What there may be where the rules cannot be read.
    pub fn unread(why: &Error) -> Hook {
        let name = format!("a firewall that cannot be read ({why})");
        Hook {
            v6: true,
            ..Hook::of_one(true, name)
        }
    }

    /// Of one family, with nothing known but its name.
    fn of_one(v4: bool, name: String) -> Hook {
        Hook {
            v4,
            v6: !v4,
            name,
            rules: 0,
            drops: false,
            read: None,
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = if self.drops { ", policy drop" } else { "" };
        match self.rules {
            0 if !self.drops => write!(f, "{}", self.name),
            rules => write!(f, "{} ({rules} rules{policy})", self.name),
        }
    }
}

/// Follows the firewall of one network namespace: the one of the thread that made it.
#[derive(Debug)]
pub struct Firewall {
    /// None on a kernel without netfilter.
    netfilter: Option<Netfilter>,
    /// What was said of that of whose changes the kernel tells nobody.
    silent: Vec<Hook>,
}

#[derive(Debug)]
struct Netfilter {
    changes: Socket,
    asking: Socket,
    sequence: u32,
    /// The kernel lists its functions.
    has_functions: bool,
}

impl Firewall {
    /// Begins to listen.
    pub fn new() -> Result<Self, Error> {
        // Asked for its protocol, the kernel loads the module where there is one.
        let unknown = rustix::io::Errno::PROTONOSUPPORT.raw_os_error();
        let changes = match Socket::listening_to_nftables() {
            Err(Error::Socket { source, .. }) if source.raw_os_error() == Some(unknown) => {
                return Ok(Firewall {
                    netfilter: None,
                    silent: Vec::new(),
                });
            }
            opened => opened?,
        };
        let netfilter = Netfilter {
            changes,
            asking: Socket::to_netfilter()?,
            sequence: 1,
            has_functions: true,
        };
        Ok(Firewall {
            netfilter: Some(netfilter),
            silent: Vec::new(),
        })
    }

    /// The hooks that can do something to a forwarded packet. Chains without rules that accept
    /// cannot.
    ///
    /// # Errors
    /// The kernel does not tell all of them, or they change whenever they are asked for.
    pub async fn hooks(&mut self) -> Result<Vec<Hook>, Error> {
        let (mut hooks, functions) = match &mut self.netfilter {
            Some(netfilter) => netfilter.hooks().await?,
            None => Default::default(),
        };
        self.silent = [iptables(), functions].concat();
        hooks.extend(self.silent.iter().cloned());
        hooks.sort();
        Ok(hooks)
    }

    /// Whether there are other tables of iptables, or other functions, than
    /// [`hooks`](Self::hooks) has last said: to be asked once a second, since
    /// [`changed`](Self::changed) is of nftables alone.
    pub async fn silent_changed(&mut self) -> bool {
        let functions = match &mut self.netfilter {
            Some(netfilter) => netfilter.functions().await,
            None => Ok(Vec::new()),
        };
        // What cannot be read may have changed.
        !functions.is_ok_and(|functions| [iptables(), functions].concat() == self.silent)
    }

    /// Returns when something of nftables' rules has changed since the last call.
    pub async fn changed(&mut self) -> Result<(), Error> {
        match &mut self.netfilter {
            Some(netfilter) => netfilter.changed().await.map_err(unreadable),
            None => std::future::pending().await,
        }
    }
}

fn unreadable(source: io::Error) -> Error {
    Error::Socket {
        action: "read",
        source,
    }
}

impl Netfilter {
    /// Chains of nftables, and functions.
    async fn hooks(&mut self) -> Result<(Vec<Hook>, Vec<Hook>), Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.hooks_once().await {
                // Whoever changes the rules has a moment to finish.
                Err(Error::Interrupted(_)) if tries < TRIES => {
                    tokio::time::sleep(PAUSE * tries).await;
                }
                done => return done,
            }
        }
    }

    async fn hooks_once(&mut self) -> Result<(Vec<Hook>, Vec<Hook>), Error> {
        let mut dormant = Vec::new();
        self.dump_nftables(NFT_GETTABLE, |message| {
            dormant.extend(dormant_table(message))
        })
        .await?;
        let mut rules: Vec<Rule> = Vec::new();
        self.dump_nftables(NFT_GETRULE, |message| rules.extend(rule_of(message)))
            .await?;
        let mut chains = Vec::new();
        self.dump_nftables(NFT_GETCHAIN, |message| {
            chains.extend(hook_of(message, &rules, &dormant))
        })
        .await?;
        Ok((chains, self.functions().await?))
    }

    /// Functions that see forwarded packets and are neither rules nor known to do nothing. None
    /// where the kernel does not list them.
    async fn functions(&mut self) -> Result<Vec<Hook>, Error> {
        let mut hooks = BTreeSet::new();
        for (family, v4) in [(NFPROTO_IPV4, true), (NFPROTO_IPV6, false)] {
            for place in PASSED {
                if !self.has_functions {
                    return Ok(Vec::new());
                }
                let request = self
                    .request(NFNL_SUBSYS_HOOK | NFNL_MSG_HOOK_GET, family)
                    .with(NFNLA_HOOK_HOOKNUM, &place.to_be_bytes());
                let hook = |name| Hook::of_one(v4, format!("function {name}"));
                let each = |message: &Message| hooks.extend(stranger(message).map(hook));
                match self
                    .dump("list the functions of netfilter", request, each)
                    .await
                {
                    // Asked again, it would look for the module each time.
                    Err(error) if is_unknown(&error) => self.has_functions = false,
                    done => done?,
                }
            }
        }
        Ok(hooks.into_iter().collect())
    }

    async fn changed(&mut self) -> io::Result<()> {
        match self.changes.receive().await {
            Ok(_) => {}
            // More changes than could be kept are changes.
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {}
            Err(source) => return Err(source),
        }
        while let Ok(Some(_)) = self.changes.try_receive() {}
        Ok(())
    }

    async fn dump_nftables(&mut self, kind: u16, each: impl FnMut(&Message)) -> Result<(), Error> {
        let request = self.request(NFNL_SUBSYS_NFTABLES | kind, NFPROTO_UNSPEC);
        match self.dump("list the rules of nftables", request, each).await {
            // A kernel without nftables has no rules of it.
            Err(error) if is_unknown(&error) => Ok(()),
            done => done,
        }
    }

    /// Asks for a list.
    fn request(&mut self, kind: u16, family: u8) -> Request {
        self.sequence += 1;
        // struct nfgenmsg: family, version, resource.
        Request::new(kind, NLM_F_DUMP, self.sequence, &[family, 0, 0, 0])
    }

    /// Reads the list that the newest request asks for.
    async fn dump(
        &mut self,
        action: &'static str,
        request: Request,
        mut each: impl FnMut(&Message),
    ) -> Result<(), Error> {
        self.asking.send(&request.finish()).map_err(unreadable)?;
        let mut dump = Dump::new(action, self.sequence);
        loop {
            let datagram = self.asking.receive().await.map_err(unreadable)?;
            if let Some(done) = dump.read(datagram, &mut each) {
                return done;
            }
        }
    }
}

/// Whether the kernel lacks the part of netfilter that was asked.
fn is_unknown(error: &Error) -> bool {
    let unknown = Some(rustix::io::Errno::INVAL.raw_os_error());
    matches!(error, Error::Refused { source, .. } if source.raw_os_error() == unknown)
}

/// A rule, and which chain it is of.
struct Rule {
    family: u8,
    table: String,
    chain: String,
    expressions: Vec<Expression>,
}

fn rule_of(message: &Message) -> Option<Rule> {
    let find = |kind| {
        message
            .attributes(4)
            .find(|attribute| attribute.kind == kind)
    };
    Some(Rule {
        family: *message.body.first()?,
        table: find(NFTA_RULE_TABLE)?.text(),
        chain: find(NFTA_RULE_CHAIN)?.text(),
        expressions: find(NFTA_RULE_EXPRESSIONS)
            .map(|all| expressions(&all))
            .unwrap_or_default(),
    })
}

/// Family and name of a table whose chains do nothing at the moment.
fn dormant_table(message: &Message) -> Option<(u8, String)> {
    let mut attributes = message.attributes(4);
    let flags = attributes.find(|one| one.kind == NFTA_TABLE_FLAGS);
    let dormant = flags.and_then(|flags| flags.u32_be())? & NFT_TABLE_F_DORMANT != 0;
    let name = message
        .attributes(4)
        .find(|one| one.kind == NFTA_TABLE_NAME)?;
    dormant.then_some((*message.body.first()?, name.text()))
}

/// A base chain that forwarded packets pass and that can do something.
fn hook_of(message: &Message, rules: &[Rule], dormant: &[(u8, String)]) -> Option<Hook> {
    let family = *message.body.first()?;
    let (mut table, mut chain, mut hook, mut accepts) = (String::new(), String::new(), None, true);
    let mut kind = String::new();
    for attribute in message.attributes(4) {
        match attribute.kind {
            NFTA_CHAIN_TABLE => table = attribute.text(),
            NFTA_CHAIN_NAME => chain = attribute.text(),
            NFTA_CHAIN_TYPE => kind = attribute.text(),
            NFTA_CHAIN_POLICY => accepts = attribute.u32_be()? != 0,
            NFTA_CHAIN_HOOK => {
                hook = attribute
                    .nested()
                    .find(|inner| inner.kind == NFTA_HOOK_HOOKNUM)
                    .and_then(|n| n.u32_be());
            }
            _ => {}
        }
    }
    let (word, v4, v6) = match family {
        1 => ("inet", true, true),
        2 => ("ip", true, false),
        10 => ("ip6", false, true),
        5 => ("netdev", true, true),
        // ARP and bridges are not routed.
        _ => return None,
    };
    // enum nf_inet_hooks: prerouting, input, forward, output, postrouting, ingress. All of a
    // netdev's matter.
    let passes = family == 5 || matches!(hook?, 0 | 2 | 4 | 5);
    let own = |rule: &&Rule| (rule.family, &rule.table, &rule.chain) == (family, &table, &chain);
    let own: Vec<&Rule> = rules.iter().filter(own).collect();
    let rules = own.len();
    let only_filters = hook == Some(2) && kind == "filter" && family != 5;
    let sleeps = dormant.contains(&(family, table.clone()));
    let read = own.into_iter().map(|rule| rule.expressions.clone());
    let hook = Hook {
        v4,
        v6,
        name: format!("nftables {word} {table} {chain}"),
        rules,
        drops: !accepts,
        read: (only_filters && !sleeps).then(|| read.collect()),
    };
    (hook.rules > 0 || hook.drops)
        .then_some(hook)
        .filter(|_| passes)
}

/// Tables of the older iptables: what is in them is not looked at.
fn iptables() -> Vec<Hook> {
    let mut hooks = Vec::new();
    for (module, program, v4) in [
        ("ip_tables", "iptables", true),
        ("ip6_tables", "ip6tables", false),
    ] {
        let listed = std::fs::read_to_string(format!("/proc/thread-self/net/{module}_names"));
        let loaded = || std::fs::read_to_string("/proc/modules");
        let named = tables(module, listed, loaded);
        let hook = |table| Hook::of_one(v4, format!("{program} {table}"));
        hooks.extend(named.into_iter().map(hook));
    }
    hooks
}

/// The tables of one family, as a hook's name has them. The kernel lists them to root and its group
/// alone; who may not read that is told by the modules that are `loaded`, and where those cannot
/// say either there may be a table.
fn tables(
    module: &str,
    listed: io::Result<String>,
    loaded: impl FnOnce() -> io::Result<String>,
) -> BTreeSet<String> {
    match listed {
        Ok(names) => names
            .lines()
            .map(|table| format!("(legacy) table {table}"))
            .collect(),
        // There is no iptables in this kernel, or not yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
        Err(_) if loaded().is_ok_and(|loaded| has_no_table(module, &loaded)) => BTreeSet::new(),
        Err(_) => BTreeSet::from(["(legacy; only root may list its tables)".to_owned()]),
    }
}

/// Whether no namespace has a table, by what /proc/modules says: the module that keeps them is
/// there, and none that makes one. Where the first is no module but a part of the kernel, so may
/// the others be, and nothing lists those.
fn has_no_table(module: &str, loaded: &str) -> bool {
    let names = || {
        loaded
            .lines()
            .filter_map(|line| line.split_whitespace().next())
    };
    // iptable_filter, ip6table_nat and so on.
    let makes = module.replace("_tables", "table_");
    names().any(|name| name == module) && !names().any(|name| name.starts_with(&makes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: io::ErrorKind) -> io::Result<String> {
        Err(kind.into())
    }

    fn named(listed: io::Result<String>, loaded: io::Result<String>) -> Vec<String> {
        tables("ip_tables", listed, || loaded).into_iter().collect()
    }

    #[test]
    fn tables_that_are_listed_are_those() {
        let loaded = || refused(io::ErrorKind::NotFound);
        assert_eq!(
            named(Ok("nat\nfilter\nnat\n".into()), loaded()),
            ["(legacy) table filter", "(legacy) table nat"]
        );
        assert!(named(Ok(String::new()), loaded()).is_empty());
        assert!(named(refused(io::ErrorKind::NotFound), loaded()).is_empty());
    }

    #[test]
    fn tables_that_may_not_be_listed_are_none_only_if_no_module_makes_any() {
        const SEEN: [&str; 1] = ["(legacy; only root may list its tables)"];
        let by_modules = |loaded: &str| {
            let listed = refused(io::ErrorKind::PermissionDenied);
            named(listed, Ok(loaded.into()))
        };
        let keeps = "ip_tables 36864 0 - Live 0x0000000000000000\n";
        let others = "ip6table_nat 16384 1 - Live 0x0000000000000000\n\
                      ip6_tables 36864 1 ip6table_nat, Live 0x0000000000000000\n\
                      ipt_REJECT 16384 0 - Live 0x0000000000000000\n";
        assert!(by_modules(&format!("{others}{keeps}")).is_empty());
        let makes = "iptable_mangle 16384 0 - Live 0x0000000000000000\n";
        assert_eq!(by_modules(&format!("{makes}{keeps}")), SEEN);
        // A part of the kernel, or of one without modules.
        assert_eq!(by_modules(others), SEEN);
        let listed = refused(io::ErrorKind::PermissionDenied);
        assert_eq!(named(listed, refused(io::ErrorKind::NotFound)), SEEN);
    }

    #[test]
    fn a_hook_is_named_with_what_is_known_of_it() {
        let hook = |rules, drops| {
            let hook = Hook {
                v4: true,
                v6: false,
                name: "one".into(),
                rules,
                drops,
                read: None,
            };
            hook.to_string()
        };
        assert_eq!(hook(0, false), "one");
        assert_eq!(hook(0, true), "one (0 rules, policy drop)");
        assert_eq!(hook(2, false), "one (2 rules)");
    }
}
