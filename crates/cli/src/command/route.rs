//! `butterfly route`: the kernel's routes, and what the router makes of each.

use std::net::IpAddr;

use api::v1;
use api::v1::RouteTreatment as Treatment;
use api::v1::router_event::Kind;
use clap::{Args, Subcommand};
use ipnet::IpNet;

use super::router_changes::Changes;
use crate::error::Error;
use crate::json;
use crate::query::Alone;
use crate::session::Session;

/// `route …`.
#[derive(Subcommand, Debug)]
pub enum RouteCommand {
    /// Show routes: who forwards, fast path or kernel, and why
    #[command(visible_alias = "list")]
    Show(ShowArgs),
}

/// `route show`.
#[derive(Args, Debug)]
#[command(after_help = "\
Flags: U usable, G by a gateway, H one address, S not the kernel's own, B blackhole, R refused.
By: fast (forwarded in XDP), lookup (in XDP, to where the kernel's lookup says), kernel, drop, or
- for a route that no packet takes. With --json a line a route.

Examples:
  butterfly route show
  butterfly route show 10.0.0.0/8 --watch
  butterfly route show 2001:db8::7")]
pub struct ShowArgs {
    /// Routes of this prefix and of longer ones in it, or the one that packets to this address take
    /// [default: all but those of the table local]
    #[arg(value_name = "PREFIX|ADDRESS")]
    to: Option<String>,
    /// Routes of one table: its number, main, local or default
    #[arg(long, value_name = "TABLE", value_parser = table)]
    table: Option<u32>,
    #[command(flatten)]
    changes: Changes,
}

fn table(text: &str) -> Result<u32, String> {
    match text {
        "main" => Ok(254),
        "local" => Ok(LOCAL),
        "default" => Ok(253),
        number => number
            .parse()
            .map_err(|_| "a table is a number, main, local or default".into()),
    }
}

impl RouteCommand {
    /// Runs the chosen `route` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        session.prefer_alone(Alone::Forward).await?;
        match self {
            RouteCommand::Show(args) => args.run(session).await,
        }
    }
}

impl ShowArgs {
    /// Prints the routes piece by piece as they come, since there may be a million.
    async fn run(self, session: &mut Session) -> Result<(), Error> {
        let request = v1::ListRoutesRequest {
            to: self.to.clone().unwrap_or_default(),
            table: self.table,
        };
        let (client, out) = session.client_and_output().await?;
        let v1 = client.only_v1("route")?;
        // Listened to first, so that no change falls between the list and them.
        let changes = self.changes.begin(v1).await?;
        let mut pieces = v1.routes(request).await?;
        let mut family = None;
        while let Some(piece) = v1.next_in_time(&mut pieces).await? {
            for route in &piece.routes {
                if out.json {
                    out.value_line(&json::full("Route", route))?;
                    continue;
                }
                let six = route.prefix.contains(':');
                if family.replace(six) != Some(six) {
                    out.text(&heading(six))?;
                }
                out.text(&lines(route))?;
            }
        }
        let Some(changes) = changes else {
            return Ok(());
        };
        out.flush()?;
        let asked_for = |kind: &Kind| match kind {
            Kind::Route(change) => change
                .route
                .as_ref()
                .is_some_and(|route| self.asks_for(route)),
            Kind::ManyRoutes(many) => many.routes > 0,
            _ => false,
        };
        self.changes.print(v1, out, changes, asked_for).await
    }

    /// Whether the request asks for this route; the daemon's list decides alike.
    fn asks_for(&self, route: &v1::Route) -> bool {
        let of_table = match self.table {
            Some(table) => route.table == table,
            None => self.to.is_some() || route.table != LOCAL,
        };
        let Some(to) = &self.to else {
            return of_table;
        };
        let Ok(net) = route.prefix.parse::<IpNet>() else {
            return false;
        };
        let within = |all: IpNet| all.contains(&net);
        let takes = |address: IpAddr| net.contains(&address);
        of_table && (to.parse().is_ok_and(within) || to.parse().is_ok_and(takes))
    }
}

const LOCAL: u32 = 255;

/// Columns of a fixed width, as netmap-fwd's: lines go out before the last one is known.
fn columns(cells: [&str; 7]) -> String {
    let [to, gateway, flags, interface, by, table, why] = cells;
    let line =
        format!("{to:<20} {gateway:<18} {flags:<6} {interface:<12} {by:<7} {table:<6} {why}");
    line.trim_end().to_owned() + "\n"
}

fn heading(six: bool) -> String {
    let title = if six { "Internet6:\n" } else { "Internet:\n" };
    let names = [
        "Destination",
        "Gateway",
        "Flags",
        "Netif",
        "By",
        "Table",
        "Why",
    ];
    title.to_owned() + &columns(names)
}

/// One a next hop.
fn lines(route: &v1::Route) -> String {
    let none = [v1::RouteHop::default()];
    let hops = match route.hops.as_slice() {
        [] => none.as_slice(),
        hops => hops,
    };
    let line = |hop: &v1::RouteHop| {
        let by = by(route, hop);
        let weight = match route.hops.len() {
            0 | 1 => String::new(),
            _ => format!("weight {} ", hop.weight),
        };
        let why = match (route.treatment(), hop.fast) {
            (Treatment::Fast, false) => {
                "this next hop's address is not known yet, or it is not the router's"
            }
            _ => &route.why,
        };
        columns([
            &route.prefix,
            &hop.gateway,
            &flags(route, hop),
            &hop.interface,
            by,
            &table_name(route.table),
            &format!("{weight}{why}"),
        ])
    };
    hops.iter().map(line).collect()
}

fn by(route: &v1::Route, hop: &v1::RouteHop) -> &'static str {
    match route.treatment() {
        Treatment::Fast if hop.fast => "fast",
        Treatment::Fast | Treatment::Kernel => "kernel",
        Treatment::Lookup => "lookup",
        Treatment::Drop => "drop",
        Treatment::Unused | Treatment::Unspecified => "-",
    }
}

fn flags(route: &v1::Route, hop: &v1::RouteHop) -> String {
    let host = route.prefix.ends_with("/32") && !route.prefix.contains(':')
        || route.prefix.ends_with("/128");
    let kind = route.kind.as_str();
    let flags = [
        (true, 'U'),
        (!hop.gateway.is_empty(), 'G'),
        (host, 'H'),
        (route.protocol != "kernel", 'S'),
        (kind == "blackhole", 'B'),
        (matches!(kind, "unreachable" | "prohibit"), 'R'),
    ];
    let on = flags.iter().filter(|(on, _)| *on);
    on.map(|(_, letter)| *letter).collect()
}

fn table_name(table: u32) -> String {
    match table {
        253 => "default".into(),
        254 => "main".into(),
        LOCAL => "local".into(),
        number => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_next_hop() {
        let hop = |gateway: &str, fast| v1::RouteHop {
            gateway: gateway.into(),
            interface: "eth2".into(),
            weight: 2,
            fast,
            mac: String::new(),
        };
        let route = v1::Route {
            prefix: "10.2.0.0/16".into(),
            table: 254,
            kind: "unicast".into(),
            protocol: "bgp".into(),
            hops: vec![hop("192.0.2.1", true), hop("192.0.2.2", false)],
            treatment: Treatment::Fast.into(),
            ..Default::default()
        };
        let text = heading(false) + &lines(&route);
        assert_eq!(
            text,
            "\
Internet:
Destination          Gateway            Flags  Netif        By      Table  Why
10.2.0.0/16          192.0.2.1          UGS    eth2         fast    main   weight 2
10.2.0.0/16          192.0.2.2          UGS    eth2         kernel  main   weight 2 this next hop's address is not known yet, or it is not the router's
"
        );
        let hole = v1::Route {
            prefix: "2001:db8::1/128".into(),
            table: 7,
            kind: "blackhole".into(),
            protocol: "static".into(),
            treatment: Treatment::Unused.into(),
            why: "no rule leads to table 7".into(),
            ..Default::default()
        };
        assert_eq!(
            lines(&hole),
            "2001:db8::1/128                         UHSB                -       7      no rule \
             leads to table 7\n"
        );
    }

    #[test]
    fn changes_are_those_of_what_was_asked_for() {
        let asks = |to: Option<&str>, table: Option<u32>| {
            let args = ShowArgs {
                to: to.map(str::to_owned),
                table,
                changes: Changes::default(),
            };
            let route = |prefix: &str, table| v1::Route {
                prefix: prefix.into(),
                table,
                ..Default::default()
            };
            [
                ("10.9.0.0/16", 254),
                ("10.9.1.1/32", 255),
                ("2001:db8::/32", 7),
            ]
            .map(|(prefix, table)| args.asks_for(&route(prefix, table)))
        };
        assert_eq!(asks(None, None), [true, false, true]);
        assert_eq!(asks(None, Some(255)), [false, true, false]);
        assert_eq!(asks(Some("10.0.0.0/8"), None), [true, true, false]);
        assert_eq!(asks(Some("10.9.1.0/24"), None), [false, true, false]);
        assert_eq!(asks(Some("10.9.2.1"), None), [true, false, false]);
        assert_eq!(asks(Some("2001:db8::1"), Some(254)), [false, false, false]);
    }

    #[test]
    fn tables_have_names() {
        assert_eq!((table("main"), table("7")), (Ok(254), Ok(7)));
        assert!(table("x").is_err());
    }
}
