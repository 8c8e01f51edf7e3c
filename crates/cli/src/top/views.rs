//! What can be looked at: a sample of counters, and rows of what moved between two of them. The
//! daemon keeps nothing for who watches.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use api::v1;
use clap::ValueEnum;
use serde_json::Value;

use crate::client::Client;
use crate::error::Error;
use crate::words::{direction_name, protocol_name, rule_words};

/// Connections that are looked at, at most.
const FLOWS_MAX: usize = 100_000;

/// What is looked at.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Nics,
    Flows,
    Rules,
    Drops,
    Workers,
    Services,
}

impl View {
    pub const ALL: [View; 6] = [
        View::Nics,
        View::Flows,
        View::Rules,
        View::Drops,
        View::Workers,
        View::Services,
    ];

    pub fn name(self) -> &'static str {
        match self {
            View::Nics => "nics",
            View::Flows => "flows",
            View::Rules => "rules",
            View::Drops => "drops",
            View::Workers => "workers",
            View::Services => "services",
        }
    }

    /// Headings; `>` before those of numbers.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            View::Nics => &[
                "NIC",
                ">IN Mbit/s",
                ">OUT Mbit/s",
                ">IN FRAMES/s",
                ">OUT FRAMES/s",
                ">IN DROPS/s",
                ">OUT DROPS/s",
            ],
            View::Flows => &[
                "NIC",
                "DIR",
                "PROTO",
                "SOURCE",
                "DESTINATION",
                "STATE",
                ">AGE s",
                ">BYTES/s",
                ">BYTES",
            ],
            View::Rules => &[
                "GROUP",
                "RULE",
                ">FLOWS/s",
                ">FRAMES/s",
                ">Mbit/s",
                ">FLOWS",
            ],
            View::Drops => &["NIC", "DIR", "REASON", ">FRAMES/s", ">FRAMES"],
            View::Workers => &[
                "WORKER",
                "CORE",
                ">BUSY %",
                ">ASLEEP %",
                ">FRAMES/s",
                ">A BATCH",
                ">CYCLES/FRAME",
                ">FLOWS",
                ">QUEUES",
            ],
            View::Services => &[
                "SERVICE",
                "SERVER",
                "HEALTH",
                ">PACKETS/s",
                ">Mbit/s",
                ">FLOWS/s",
                ">CHECK ms",
            ],
        }
    }

    /// The column that is sorted by when none is named.
    fn busiest(self) -> usize {
        match self {
            View::Nics => 3,
            View::Flows => 7,
            View::Rules | View::Drops | View::Services => 3,
            View::Workers => 2,
        }
    }
}

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Text(String),
    Number(f64, String),
}

impl Cell {
    pub fn text(&self) -> &str {
        match self {
            Cell::Text(text) | Cell::Number(_, text) => text,
        }
    }

    /// For `--json`.
    pub fn value(&self) -> Value {
        match self {
            Cell::Text(text) => Value::from(text.as_str()),
            Cell::Number(number, _) => Value::from(*number),
        }
    }

    fn compare(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Number(one, _), Cell::Number(other, _)) => one.total_cmp(other),
            _ => self.text().cmp(other.text()),
        }
    }
}

/// By which column, and which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    pub column: usize,
    pub descending: bool,
}

impl Order {
    /// The column of a heading, in any case; numbers begin with the largest. The error is a
    /// sentence.
    pub fn new(view: View, named: Option<&str>, reverse: bool) -> Result<Order, String> {
        let columns = view.columns();
        let column = match named {
            None => view.busiest(),
            Some(name) => columns
                .iter()
                .position(|column| column.trim_start_matches('>').eq_ignore_ascii_case(name))
                .ok_or_else(|| {
                    let all: Vec<&str> =
                        columns.iter().map(|c| c.trim_start_matches('>')).collect();
                    format!(
                        "view {} has no column '{name}', only {}",
                        view.name(),
                        all.join(", ")
                    )
                })?,
        };
        Ok(Order {
            column,
            descending: columns[column].starts_with('>') != reverse,
        })
    }

    /// The next column.
    pub fn next(self, view: View) -> Order {
        let columns = view.columns();
        let column = (self.column + 1) % columns.len();
        Order {
            column,
            descending: columns[column].starts_with('>'),
        }
    }
}

/// All rows of a view.
#[derive(Debug, Default)]
pub struct Rows(pub Vec<Vec<Cell>>);

impl Rows {
    /// Those with the text, in order. Rows that are equal there keep their order.
    pub fn shown(mut self, order: &Order, filter: &str) -> Vec<Vec<Cell>> {
        let filter = filter.to_lowercase();
        let fits = |cell: &Cell| cell.text().to_lowercase().contains(&filter);
        self.0
            .retain(|row| filter.is_empty() || row.iter().any(fits));
        self.0.sort_by(|a, b| {
            let ordering = a[order.column].compare(&b[order.column]);
            if order.descending {
                ordering.reverse()
            } else {
                ordering
            }
        });
        self.0
    }
}

/// What was counted at one moment.
pub enum Sample {
    Nics(v1::ListNicStatsResponse),
    Flows(Vec<v1::Flow>),
    Rules(Vec<v1::RuleCounter>),
    Drops(v1::ListDropsResponse),
    Workers(v1::ListWorkersResponse),
    Services(Vec<v1::ServiceStatus>),
}

impl Sample {
    /// Asks for it: all of it has to come within the timeout of one answer.
    pub async fn take(client: &mut Client, view: View) -> Result<Sample, Error> {
        let (timeout, late) = client.only_v1("top")?.patience();
        let asked = tokio::time::timeout(timeout, Sample::ask(client, view));
        asked.await.unwrap_or(Err(late))
    }

    async fn ask(client: &mut Client, view: View) -> Result<Sample, Error> {
        let nics = match view {
            View::Nics => Some(client.nics_stats(&[]).await?),
            _ => None,
        };
        if let Some(nics) = nics {
            return Ok(Sample::Nics(nics));
        }
        Ok(match view {
            View::Nics | View::Flows => {
                let client = client.only_v1("top")?;
                let mut stream = client.flows(v1::ListFlowsRequest::default()).await?;
                let mut flows = Vec::new();
                while flows.len() < FLOWS_MAX
                    && let Some(flow) = client.next(&mut stream).await?
                {
                    flows.push(flow);
                }
                Sample::Flows(flows)
            }
            View::Rules => Sample::Rules(client.rule_counters("").await?),
            View::Drops => Sample::Drops(client.drops("", false).await?),
            View::Workers => Sample::Workers(client.workers().await?),
            View::Services => Sample::Services(client.only_v1("top")?.services().await?),
        })
    }

    /// What moved since another sample of the same view, which was taken so long ago.
    pub fn since(&self, before: &Sample, time: Duration) -> Rows {
        let rates = Rates(time.as_secs_f64().max(1e-9));
        Rows(match (self, before) {
            (Sample::Nics(now), Sample::Nics(before)) => nics(now, before),
            (Sample::Flows(now), Sample::Flows(before)) => flows(now, before, rates),
            (Sample::Rules(now), Sample::Rules(before)) => rules(now, before, rates),
            (Sample::Drops(now), Sample::Drops(before)) => drops(now, before, rates),
            (Sample::Workers(now), Sample::Workers(before)) => workers(now, before),
            (Sample::Services(now), Sample::Services(before)) => services(now, before, rates),
            _ => Vec::new(),
        })
    }
}

/// Of so many seconds.
#[derive(Clone, Copy)]
struct Rates(f64);

impl Rates {
    /// A second's part of what a counter has grown by; one that began anew has nothing to say.
    fn of(self, before: u64, now: u64) -> Cell {
        whole(now.saturating_sub(before) as f64 / self.0)
    }

    fn megabits(self, before: u64, now: u64) -> Cell {
        tenth(now.saturating_sub(before) as f64 * 8.0 / 1e6 / self.0)
    }
}

fn whole(number: f64) -> Cell {
    Cell::Number(number, format!("{number:.0}"))
}

fn tenth(number: f64) -> Cell {
    Cell::Number(number, format!("{number:.1}"))
}

fn text(text: impl Into<String>) -> Cell {
    Cell::Text(text.into())
}

fn nics(now: &v1::ListNicStatsResponse, before: &v1::ListNicStatsResponse) -> Vec<Vec<Cell>> {
    let old: HashMap<&str, &v1::NicStats> = before
        .nics
        .iter()
        .map(|nic| (nic.id.as_str(), nic))
        .collect();
    let rates = Rates((now.time_ns.saturating_sub(before.time_ns)).max(1) as f64 / 1e9);
    let none = v1::NicStats::default();
    let row = |nic: &v1::NicStats| {
        let old = old.get(nic.id.as_str()).copied().unwrap_or(&none);
        vec![
            text(&nic.id),
            rates.megabits(old.ingress_bytes, nic.ingress_bytes),
            rates.megabits(old.egress_bytes, nic.egress_bytes),
            rates.of(old.ingress_frames, nic.ingress_frames),
            rates.of(old.egress_frames, nic.egress_frames),
            rates.of(old.ingress_drops, nic.ingress_drops),
            rates.of(old.egress_drops, nic.egress_drops),
        ]
    };
    now.nics.iter().map(row).collect()
}

fn flows(now: &[v1::Flow], before: &[v1::Flow], rates: Rates) -> Vec<Vec<Cell>> {
    type Key<'a> = (&'a str, u32, &'a str, u32, &'a str, u32);
    fn key(flow: &v1::Flow) -> Key<'_> {
        let (source, destination) = (&flow.source, &flow.destination);
        (
            &flow.nic,
            flow.protocol,
            source,
            flow.source_port,
            destination,
            flow.destination_port,
        )
    }
    let bytes = |flow: &v1::Flow| flow.original_bytes + flow.reply_bytes;
    let old: HashMap<Key, u64> = before.iter().map(|flow| (key(flow), bytes(flow))).collect();
    let end = |address: &str, port: u32| match (address.contains(':'), port) {
        (_, 0) => address.to_owned(),
        (true, port) => format!("[{address}]:{port}"),
        (false, port) => format!("{address}:{port}"),
    };
    let row = |flow: &v1::Flow| {
        let bytes = bytes(flow);
        let old = old.get(&key(flow)).copied().unwrap_or(0);
        vec![
            text(&flow.nic),
            text(direction_name(flow.direction())),
            text(protocol_name(Some(flow.protocol))),
            text(end(&flow.source, flow.source_port)),
            text(end(&flow.destination, flow.destination_port)),
            text(&flow.state),
            whole(flow.age_secs as f64),
            rates.of(old, bytes),
            whole(bytes as f64),
        ]
    };
    now.iter().map(row).collect()
}

fn rules(now: &[v1::RuleCounter], before: &[v1::RuleCounter], rates: Rates) -> Vec<Vec<Cell>> {
    let key = |counter: &v1::RuleCounter| {
        let rule = counter
            .rule
            .as_ref()
            .map(|rule| rule_words(rule).join(" "))
            .unwrap_or_default();
        (counter.group.clone(), rule)
    };
    let old: HashMap<_, &v1::RuleCounter> = before.iter().map(|one| (key(one), one)).collect();
    let none = v1::RuleCounter::default();
    let row = |counter: &v1::RuleCounter| {
        let key = key(counter);
        let old = old.get(&key).copied().unwrap_or(&none);
        vec![
            text(key.0),
            text(key.1),
            rates.of(old.flows, counter.flows),
            rates.of(old.frames, counter.frames),
            rates.megabits(old.bytes, counter.bytes),
            whole(counter.flows as f64),
        ]
    };
    now.iter().map(row).collect()
}

fn drops(
    now: &v1::ListDropsResponse,
    before: &v1::ListDropsResponse,
    rates: Rates,
) -> Vec<Vec<Cell>> {
    let key = |drop: &v1::Drop| (drop.nic.clone(), drop.direction, drop.reason.clone());
    let old: HashMap<_, u64> = before
        .drops
        .iter()
        .map(|one| (key(one), one.frames))
        .collect();
    let row = |drop: &v1::Drop| {
        vec![
            text(&drop.nic),
            text(direction_name(drop.direction())),
            text(&drop.reason),
            rates.of(old.get(&key(drop)).copied().unwrap_or(0), drop.frames),
            whole(drop.frames as f64),
        ]
    };
    now.drops.iter().map(row).collect()
}

fn workers(now: &v1::ListWorkersResponse, before: &v1::ListWorkersResponse) -> Vec<Vec<Cell>> {
    let none = v1::WorkerStatus::default();
    let row = |worker: &v1::WorkerStatus| {
        let old = before
            .workers
            .iter()
            .find(|old| old.index == worker.index)
            .unwrap_or(&none);
        let passed = worker.time_ns.saturating_sub(old.time_ns).max(1) as f64;
        let share =
            |before: u64, now: u64| tenth(now.saturating_sub(before) as f64 * 100.0 / passed);
        let batches = worker.busy_turns.saturating_sub(old.busy_turns);
        let frames = worker.frames.saturating_sub(old.frames);
        let mut cost = 0.0;
        for step in &worker.steps {
            let then = old.steps.iter().find(|then| then.name == step.name);
            let (cycles, frames) = then.map_or((0, 0), |then| (then.cycles, then.frames));
            let frames = step.frames.saturating_sub(frames).max(1) as f64;
            cost += step.cycles.saturating_sub(cycles) as f64 / frames;
        }
        vec![
            text(worker.index.to_string()),
            text(worker.core.map_or("-".to_owned(), |core| core.to_string())),
            share(old.busy_ns, worker.busy_ns),
            share(old.asleep_ns, worker.asleep_ns),
            Rates(passed / 1e9).of(old.frames, worker.frames),
            tenth(frames as f64 / batches.max(1) as f64),
            whole(cost),
            whole(worker.flows as f64),
            whole(worker.queues.len() as f64),
        ]
    };
    now.workers.iter().map(row).collect()
}

fn services(
    now: &[v1::ServiceStatus],
    before: &[v1::ServiceStatus],
    rates: Rates,
) -> Vec<Vec<Cell>> {
    let name = |status: &v1::ServiceStatus| {
        let key = status
            .service
            .as_ref()
            .and_then(|service| service.key.clone());
        let key = key.unwrap_or_default();
        let port = if key.all_ports {
            "all".to_owned()
        } else {
            key.port.to_string()
        };
        format!(
            "{} {} port {port}",
            protocol_name(Some(key.protocol)),
            key.vip
        )
    };
    let address = |server: &v1::ServerStatus| {
        server
            .server
            .as_ref()
            .map(|server| server.address.clone())
            .unwrap_or_default()
    };
    let mut old = HashMap::new();
    for status in before {
        for server in &status.servers {
            old.insert(
                (name(status), address(server)),
                server.counters.unwrap_or_default(),
            );
        }
    }
    let mut rows = Vec::new();
    for status in now {
        for server in &status.servers {
            let counters = server.counters.unwrap_or_default();
            let old = old
                .get(&(name(status), address(server)))
                .copied()
                .unwrap_or_default();
            let health = match server.health() {
                v1::Health::Healthy => "healthy",
                v1::Health::Unhealthy => "unhealthy",
                _ => "unknown",
            };
            rows.push(vec![
                text(name(status)),
                text(address(server)),
                text(health),
                rates.of(old.packets, counters.packets),
                rates.megabits(old.bytes, counters.bytes),
                rates.of(old.flows, counters.flows),
                tenth(server.check_us as f64 / 1e3),
            ]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(id: &str, frames: u64) -> v1::NicStats {
        v1::NicStats {
            id: id.into(),
            ingress_frames: frames,
            ingress_bytes: frames * 125,
            ..Default::default()
        }
    }

    fn sample(time_ns: u64, nics: Vec<v1::NicStats>) -> Sample {
        Sample::Nics(v1::ListNicStatsResponse { time_ns, nics })
    }

    #[test]
    fn rows_are_rates_by_the_daemon_s_clock_sorted_and_filtered() {
        let before = sample(0, vec![stats("a", 100), stats("b", 0), stats("again", 50)]);
        let now = || {
            sample(
                2_000_000_000,
                vec![stats("a", 300), stats("b", 4000), stats("again", 7)],
            )
        };
        let order = Order::new(View::Nics, None, false).unwrap();
        let rows = now()
            .since(&before, Duration::from_secs(9))
            .shown(&order, "");
        let names: Vec<&str> = rows.iter().map(|row| row[0].text()).collect();
        assert_eq!(names, ["b", "a", "again"]);
        assert_eq!((rows[0][3].text(), rows[0][1].text()), ("2000", "2.0"));
        assert_eq!(rows[2][3].text(), "0", "one that was made anew");
        let by_name = Order::new(View::Nics, Some("nic"), true).unwrap();
        let rows = now()
            .since(&before, Duration::from_secs(9))
            .shown(&by_name, "A");
        let names: Vec<&str> = rows.iter().map(|row| row[0].text()).collect();
        assert_eq!(names, ["again", "a"]);
    }

    #[test]
    fn every_view_has_a_column_to_sort_by() {
        for view in View::ALL {
            let order = Order::new(view, None, false).unwrap();
            assert!(view.columns()[order.column].starts_with('>'), "{view:?}");
            let mut next = order;
            for _ in view.columns() {
                next = next.next(view);
            }
            assert_eq!(next.column, order.column);
        }
        let error = Order::new(View::Drops, Some("size"), false).unwrap_err();
        assert_eq!(
            error,
            "view drops has no column 'size', only NIC, DIR, REASON, FRAMES/s, FRAMES"
        );
    }
}
