//! A scrape as text, family by family in the table's order.

use std::fmt::Error;

use api::v1;
use control::model::{GroupId, NicId};
use dataplane::drop_reason::DropReason;
use dataplane::load::{STEPS, WorkerLoad};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder,
    NoLabelSet,
};
use prometheus_client::registry::{Registry, Unit};

use super::families::{self as of, Family, Kind};
use super::gather::{NIC_REASONS_MAX, Scrape};
use crate::{flow_log, forgotten, sflow};

const EGRESS: &str = "egress";
const INGRESS: &str = "ingress";
const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

/// What the text is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

/// Writes a scrape.
pub fn encode(scrape: Scrape, format: Format) -> String {
    // A NIC takes some 700 bytes.
    let mut page = String::with_capacity((64 << 10) + scrape.nics.len() * 800);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    // Only a writer can fail, and memory does not.
    text::encode(&mut page, &registry).expect("a page is written to memory");
    match format {
        Format::OpenMetrics => page,
        Format::Text => as_text(&page),
    }
}

/// OpenMetrics names the family of a counter without its `_total`, has units, and an end; the text
/// format has neither, and names it with.
fn as_text(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut rest = page;
    while !rest.is_empty() {
        // Samples go over as they are, in one piece.
        let head = if rest.starts_with('#') {
            0
        } else {
            rest.find("\n#").map_or(rest.len(), |at| at + 1)
        };
        text.push_str(&rest[..head]);
        rest = &rest[head..];
        let mut lines = rest
            .split_inclusive('\n')
            .take_while(|line| line.starts_with('#'));
        let (help, kind) = (
            lines.next().unwrap_or_default(),
            lines.next().unwrap_or_default(),
        );
        let described: usize = [help, kind].iter().map(|line| line.len()).sum();
        let unit = lines.next().filter(|line| line.starts_with("# UNIT"));
        let units = unit.map_or(0, str::len);
        rest = &rest[described + units..];
        if help.starts_with("# EOF") || help.is_empty() {
            continue;
        }
        if kind.ends_with(" counter\n") {
            let name = help.split(' ').nth(2).unwrap_or_default();
            text.push_str(&help.replacen(name, &format!("{name}_total"), 1));
            text.push_str(&kind.replacen(name, &format!("{name}_total"), 1));
        } else {
            text.push_str(help);
            text.push_str(kind);
        }
    }
    text
}

/// The values of a family's labels, in its order.
struct Labels<'a>(&'static [&'static str], &'a [&'a str]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> Result<(), Error> {
        for label in self.0.iter().zip(self.1) {
            (*label.0, *label.1).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

/// Where rows of one family are written.
struct Rows<'a> {
    family: &'static Family,
    encoder: MetricEncoder<'a>,
}

impl Rows<'_> {
    fn add(&mut self, labels: &[&str], value: u64) -> Result<(), Error> {
        let labels = Labels(self.family.labels, labels);
        self.encoder
            .encode_family(&labels)?
            .by_kind(self.family.kind, value)
    }

    fn add_float(&mut self, labels: &[&str], value: f64) -> Result<(), Error> {
        let labels = Labels(self.family.labels, labels);
        match self.family.kind {
            Kind::Counter => self
                .encoder
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None),
            _ => self.encoder.encode_family(&labels)?.encode_gauge(&value),
        }
    }
}

/// The page, as it grows.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    /// Begins a family and has its rows written.
    fn family(
        &mut self,
        family: &'static Family,
        rows: impl FnOnce(&mut Rows) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let unit = family.unit.map(|unit| Unit::Other(unit.to_owned()));
        let (stem, help) = (family.stem(), family.help);
        let encoder = self
            .0
            .encode_descriptor(stem, help, unit.as_ref(), family.metric_type())?;
        rows(&mut Rows { family, encoder })
    }

    /// A family that counts for itself.
    fn whole(&mut self, family: &'static Family, metric: &impl EncodeMetric) -> Result<(), Error> {
        let unit = family.unit.map(|unit| Unit::Other(unit.to_owned()));
        let (stem, help) = (family.stem(), family.help);
        let encoder = self
            .0
            .encode_descriptor(stem, help, unit.as_ref(), family.metric_type())?;
        metric.encode(encoder)
    }

    /// A family of one row without labels.
    fn one(&mut self, family: &'static Family, value: u64) -> Result<(), Error> {
        self.family(family, |rows| rows.encoder.by_kind(family.kind, value))
    }

    fn one_float(&mut self, family: &'static Family, value: f64) -> Result<(), Error> {
        self.family(family, |rows| match family.kind {
            Kind::Counter => rows
                .encoder
                .encode_counter::<NoLabelSet, _, u64>(&value, None),
            _ => rows.encoder.encode_gauge(&value),
        })
    }
}

trait ByKind {
    fn by_kind(&mut self, kind: Kind, value: u64) -> Result<(), Error>;
}

impl ByKind for MetricEncoder<'_> {
    fn by_kind(&mut self, kind: Kind, value: u64) -> Result<(), Error> {
        match kind {
            Kind::Counter => self.encode_counter::<NoLabelSet, _, u64>(&value, None),
            _ => self.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX)),
        }
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut page = Page(encoder);
        self.host(&mut page)?;
        self.nics(&mut page)?;
        self.rules(&mut page)?;
        self.workers(&mut page)?;
        self.uplinks(&mut page)?;
        self.services(&mut page)?;
        if let Some(router) = &self.router {
            routed(router, &mut page)?;
        }
        self.daemon(&mut page)
    }
}

impl Scrape {
    fn host(&self, page: &mut Page) -> Result<(), Error> {
        let status = &self.status;
        page.family(&of::BUILD, |rows| rows.add(&[env!("CARGO_PKG_VERSION")], 1))?;
        page.one(&of::NICS, status.nics as u64)?;
        page.one(&of::GROUPS, status.groups as u64)?;
        page.one(&of::RULES, status.rules as u64)?;
        page.one(&of::NETWORKS, status.vnis as u64)?;
        page.one(&of::ENDPOINTS, status.hosts as u64)?;
        page.one(&of::BINDINGS, status.bindings as u64)?;
        // All workers have one table.
        page.one(
            &of::FLOWS,
            self.workers.first().map_or(0, |load| load.flows),
        )?;
        page.one(&of::FLOWS_MAX, self.max_flows.into())?;
        let [kernel, kernel_max, kernel_refused] = self.kernel_flows;
        page.one(&of::KERNEL_FLOWS, kernel)?;
        page.one(&of::KERNEL_FLOWS_MAX, kernel_max)?;
        page.one(&of::KERNEL_FLOWS_REFUSED, kernel_refused)?;
        page.one(&of::EPOCH, status.epoch)
    }

    fn nics(&self, page: &mut Page) -> Result<(), Error> {
        page.family(&of::NIC_INFO, |rows| {
            self.nics.iter().try_for_each(|nic| {
                rows.add(&[nic.stats.id.as_str(), &nic.vni.to_string(), nic.kind], 1)
            })
        })?;
        page.family(&of::NIC_UP, |rows| {
            self.nics
                .iter()
                .try_for_each(|nic| rows.add(&[nic.stats.id.as_str()], nic.up.into()))
        })?;
        page.family(&of::NIC_KERNEL, |rows| {
            self.nics
                .iter()
                .try_for_each(|nic| rows.add(&[nic.stats.id.as_str()], nic.stats.kernel_out))
        })?;
        for (family, of) in [
            (&of::NIC_MIRRORED, (|(all, _)| all) as fn((u64, u64)) -> u64),
            (&of::NIC_MIRROR_LOST, |(_, lost)| lost),
        ] {
            page.family(family, |rows| {
                let mirrored =
                    |nic: &super::gather::Nic| Some((nic.stats.id.clone(), nic.stats.mirrored?));
                let mut mirrors = self.nics.iter().filter_map(mirrored);
                mirrors.try_for_each(|(id, counts)| rows.add(&[id.as_str()], of(counts)))
            })?;
        }
        let mut both = |family, of: fn(&control::NicStats) -> [u64; 2]| {
            page.family(family, |rows| {
                self.nics.iter().try_for_each(|nic| {
                    let [egress, ingress] = of(&nic.stats);
                    rows.add(&[nic.stats.id.as_str(), EGRESS], egress)?;
                    rows.add(&[nic.stats.id.as_str(), INGRESS], ingress)
                })
            })
        };
        both(&of::NIC_FRAMES, |nic| [nic.frames_out, nic.frames_in])?;
        both(&of::NIC_BYTES, |nic| [nic.bytes_out, nic.bytes_in])?;
        both(&of::NIC_DROPPED, |nic| {
            [&nic.drops_out, &nic.drops_in]
                .map(|drops| drops.iter().map(|(_, frames)| frames).sum())
        })?;
        page.family(&of::NIC_DROPPED_BY, |rows| {
            self.nic_reasons().take(NIC_REASONS_MAX).try_for_each(
                |(nic, direction, reason, frames)| {
                    rows.add(&[nic.as_str(), direction, reason.name()], frames)
                },
            )
        })?;
        page.family(&of::DROPPED, |rows| {
            [EGRESS, INGRESS]
                .iter()
                .zip(&self.drops)
                .try_for_each(|(direction, drops)| {
                    DropReason::ALL
                        .iter()
                        .zip(drops)
                        .try_for_each(|(reason, frames)| {
                            rows.add(&[direction, reason.name()], *frames)
                        })
                })
        })
    }

    fn nic_reasons(&self) -> impl Iterator<Item = (&NicId, &'static str, DropReason, u64)> {
        self.nics.iter().flat_map(|nic| {
            let directions = [
                (EGRESS, &nic.stats.drops_out),
                (INGRESS, &nic.stats.drops_in),
            ];
            directions.into_iter().flat_map(move |(direction, drops)| {
                drops
                    .iter()
                    .map(move |(reason, frames)| (&nic.stats.id, direction, *reason, *frames))
            })
        })
    }

    fn rules(&self, page: &mut Page) -> Result<(), Error> {
        let all = self.groups.iter();
        let all = all.flat_map(|(group, rules)| rules.iter().map(move |rule| (&group.id, rule)));
        let all: Vec<(&GroupId, String, [u64; 3])> = all
            .map(|(group, stats)| {
                (
                    group,
                    stats.rule.to_string(),
                    [stats.frames, stats.bytes, stats.flows],
                )
            })
            .collect();
        let families = [&of::RULE_FRAMES, &of::RULE_BYTES, &of::RULE_FLOWS];
        for (at, family) in families.into_iter().enumerate() {
            page.family(family, |rows| {
                all.iter().try_for_each(|(group, rule, counts)| {
                    rows.add(&[group.as_str(), rule], counts[at])
                })
            })?;
        }
        Ok(())
    }

    fn workers(&self, page: &mut Page) -> Result<(), Error> {
        let names: Vec<String> = (0..self.workers.len())
            .map(|index| index.to_string())
            .collect();
        let each = || names.iter().map(String::as_str).zip(&self.workers);
        let mut counted = |family, of: fn(&WorkerLoad) -> u64| {
            page.family(family, |rows| {
                each().try_for_each(|(name, load)| rows.add(&[name], of(load)))
            })
        };
        counted(&of::WORKER_TURNS, |load| load.turns)?;
        counted(&of::WORKER_SLEEPS, |load| load.sleeps)?;
        counted(&of::WORKER_QUEUES, |load| load.queues)?;
        counted(&of::WORKER_EVICTED, |load| load.flows_evicted)?;
        counted(&of::WORKER_HANDED_OVER, |load| load.handed_over)?;
        counted(&of::WORKER_TAKEN_OVER, |load| load.taken_over)?;
        counted(&of::WORKER_WAITING, |load| load.waiting_frames)?;
        counted(&of::WORKER_FRAGMENTS, |load| load.held_fragments)?;
        counted(&of::WORKER_MACS, |load| load.learned_macs)?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        page.family(&of::WORKER_BUSY, |rows| {
            each().try_for_each(|(name, load)| rows.add_float(&[name], seconds(load.busy_ns)))
        })?;
        page.family(&of::WORKER_ASLEEP, |rows| {
            each().try_for_each(|(name, load)| rows.add_float(&[name], seconds(load.asleep_ns)))
        })?;
        page.family(&of::WORKER_BATCH, |rows| {
            each().try_for_each(|(name, load)| {
                let labels = Labels(of::WORKER_BATCH.labels, &[name]);
                let classes = load.batches.iter().enumerate();
                let mut buckets: Vec<(f64, u64)> = classes
                    .map(|(class, batches)| (f64::from(1 << class), *batches))
                    .collect();
                buckets.push((f64::INFINITY, 0));
                let count = load.batches.iter().sum();
                rows.encoder
                    .encode_family(&labels)?
                    .encode_histogram::<NoLabelSet>(load.frames as f64, count, &buckets, None)
            })
        })?;
        let mut steps = |family, of: fn(&dataplane::load::StepLoad) -> u64| {
            page.family(family, |rows| {
                each().try_for_each(|(name, load)| {
                    STEPS
                        .iter()
                        .zip(&load.steps)
                        .try_for_each(|(step, cost)| rows.add(&[name, step], of(cost)))
                })
            })
        };
        steps(&of::WORKER_STEP_CYCLES, |step| step.cycles)?;
        steps(&of::WORKER_STEP_FRAMES, |step| step.frames)
    }

    fn uplinks(&self, page: &mut Page) -> Result<(), Error> {
        let mut each = |family, of: fn(&v1::Uplink) -> u64| {
            page.family(family, |rows| {
                self.uplinks
                    .iter()
                    .try_for_each(|uplink| rows.add(&[&uplink.interface], of(uplink)))
            })
        };
        each(&of::UPLINK_JOINED, |uplink| uplink.joined.into())?;
        each(&of::UPLINK_UP, |uplink| uplink.up.into())?;
        each(&of::UPLINK_LOST, |uplink| uplink.lost_by_kernel)?;
        each(&of::UPLINK_KERNEL, |uplink| uplink.received_kernel_frames)?;
        let mut both = |family, of: fn(&v1::Uplink) -> [u64; 2]| {
            page.family(family, |rows| {
                self.uplinks.iter().try_for_each(|uplink| {
                    let [ingress, egress] = of(uplink);
                    rows.add(&[&uplink.interface, INGRESS], ingress)?;
                    rows.add(&[&uplink.interface, EGRESS], egress)
                })
            })
        };
        both(&of::UPLINK_FRAMES, |uplink| {
            [uplink.received_frames, uplink.sent_frames]
        })?;
        both(&of::UPLINK_BYTES, |uplink| {
            [uplink.received_bytes, uplink.sent_bytes]
        })?;
        page.family(&of::UPLINK_DROPPED, |rows| {
            self.uplinks.iter().try_for_each(|uplink| {
                uplink.drops.iter().try_for_each(|drop| {
                    let direction = match drop.direction() {
                        v1::Direction::Egress => EGRESS,
                        _ => INGRESS,
                    };
                    rows.add(&[&uplink.interface, direction, &drop.reason], drop.frames)
                })
            })
        })
    }

    fn services(&self, page: &mut Page) -> Result<(), Error> {
        let keyed: Vec<([String; 3], &v1::ServiceStatus)> = self
            .services
            .iter()
            .map(|status| (key(status), status))
            .collect();
        let mut each = |family, of: fn(&v1::ServiceStatus) -> u64| {
            page.family(family, |rows| {
                keyed
                    .iter()
                    .try_for_each(|([vip, protocol, port], status)| {
                        rows.add(&[vip, protocol, port], of(status))
                    })
            })
        };
        each(&of::SERVICE_IN_SERVICE, |status| status.in_service.into())?;
        each(&of::SERVICE_ANNOUNCED, |status| status.announced.into())?;
        each(&of::SERVICE_SERVERS, |status| status.servers.len() as u64)?;
        each(&of::SERVICE_HEALTHY, |status| status.healthy.into())?;
        type Of = fn(&v1::ServerStatus) -> Option<u64>;
        let mut servers = |family, of: Of| {
            page.family(family, |rows| {
                keyed
                    .iter()
                    .try_for_each(|([vip, protocol, port], status)| {
                        status.servers.iter().try_for_each(|server| {
                            let address =
                                server.server.as_ref().map_or("", |server| &server.address);
                            of(server).map_or(Ok(()), |value| {
                                rows.add(&[vip, protocol, port, address], value)
                            })
                        })
                    })
            })
        };
        servers(&of::SERVER_HEALTHY, |server| match server.health() {
            v1::Health::Healthy => Some(1),
            v1::Health::Unhealthy => Some(0),
            _ => None,
        })?;
        servers(&of::SERVER_REACHABLE, |server| {
            Some((!server.mac.is_empty()).into())
        })?;
        servers(&of::SERVER_PACKETS, |server| {
            server.counters.map(|counters| counters.packets)
        })?;
        servers(&of::SERVER_BYTES, |server| {
            server.counters.map(|counters| counters.bytes)
        })?;
        servers(&of::SERVER_FLOWS, |server| {
            server.counters.map(|counters| counters.flows)
        })?;
        page.family(&of::SERVER_CHECK, |rows| {
            keyed
                .iter()
                .try_for_each(|([vip, protocol, port], status)| {
                    let checked = status.servers.iter().filter(|server| server.check_us > 0);
                    checked.into_iter().try_for_each(|server| {
                        let address = server.server.as_ref().map_or("", |server| &server.address);
                        rows.add_float(
                            &[vip, protocol, port, address],
                            server.check_us as f64 / 1e6,
                        )
                    })
                })
        })?;
        for (family, drops) in [(&of::BALANCER_DROPPED, true), (&of::BALANCER_NOTED, false)] {
            page.family(family, |rows| {
                let reasons = self.balancer_reasons.iter();
                let mut its = reasons.filter(|(reason, _)| reason.is_drop() == drops);
                its.try_for_each(|(reason, packets)| rows.add(&[reason.name()], *packets))
            })?;
        }
        page.family(&of::BALANCER_LOSES, |rows| {
            let mut all = self.balancer_losing.iter();
            all.try_for_each(|(name, loses)| rows.add(&[name], u64::from(*loses)))
        })?;
        page.family(&of::BGP_SESSION, |rows| {
            let mut all = self.bgp_sessions.iter();
            all.try_for_each(|(neighbour, state)| {
                rows.add(&[&neighbour.to_string()], u64::from(state.number()))
            })
        })
    }

    fn daemon(&self, page: &mut Page) -> Result<(), Error> {
        page.whole(&of::API_REQUESTS, &self.requests.counts)?;
        page.whole(&of::API_DURATION, &self.requests.durations)?;
        page.one(&of::AUDIT_LOST, self.audit_lines_lost)?;
        page.one(&of::TRACE_LOST, self.trace_frames_lost)?;
        page.family(&of::FORGOTTEN, |rows| {
            let mut all = forgotten::NAMES.iter().zip(self.forgotten);
            all.try_for_each(|(what, count)| rows.add(&[what], count))
        })?;
        page.family(&of::FLOW_RECORDS, |rows| {
            let mut all = flow_log::KINDS.iter().zip(self.flow_records);
            all.try_for_each(|(kind, count)| rows.add(&[kind], count))
        })?;
        page.family(&of::FLOW_RECORDS_LOST, |rows| {
            let mut all = flow_log::PLACES.iter().zip(self.flow_records_lost);
            all.try_for_each(|(place, count)| rows.add(&[place], count))
        })?;
        page.family(&of::SFLOW_SAMPLES, |rows| {
            let mut all = sflow::KINDS.iter().zip(self.samples);
            all.try_for_each(|(kind, count)| rows.add(&[kind], count))
        })?;
        page.family(&of::SFLOW_LOST, |rows| {
            let mut all = sflow::PLACES.iter().zip(self.samples_lost);
            all.try_for_each(|(place, count)| rows.add(&[place], count))
        })?;
        page.family(&of::LEFT_OUT, |rows| {
            let reasons = self.nic_reasons().count().saturating_sub(NIC_REASONS_MAX);
            rows.add(&["butterfly_rule"], self.rules_left_out as u64)?;
            rows.add(&[of::NIC_DROPPED_BY.name], reasons as u64)
        })?;
        let process = &self.process;
        page.one_float(&of::PROCESS_CPU, process.cpu_secs)?;
        page.one(&of::PROCESS_RESIDENT, process.resident_bytes)?;
        page.one(&of::PROCESS_VIRTUAL, process.virtual_bytes)?;
        page.one(&of::PROCESS_FDS, process.open_fds)?;
        page.one(&of::PROCESS_FDS_MAX, process.max_fds)?;
        page.one(&of::PROCESS_THREADS, process.threads)?;
        page.one(&of::PROCESS_START, self.status.started_unix_secs)
    }
}

/// Address, protocol and port of a service; port "all" for one of all ports.
fn key(status: &v1::ServiceStatus) -> [String; 3] {
    let key = status
        .service
        .as_ref()
        .and_then(|service| service.key.clone())
        .unwrap_or_default();
    let protocol = match key.protocol {
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        number => number.to_string(),
    };
    let port = match key.all_ports {
        true => "all".to_owned(),
        false => key.port.to_string(),
    };
    [key.vip, protocol, port]
}

fn routed(router: &v1::RouterStatus, page: &mut Page) -> Result<(), Error> {
    use v1::router_reason::Fate;
    let mut all = Vec::new();
    for status in &router.interfaces {
        let name = status
            .interface
            .as_ref()
            .map_or("", |interface| &interface.name);
        for (family, counters) in FAMILIES.iter().zip([&status.ipv4, &status.ipv6]) {
            all.extend(counters.iter().map(|counters| (name, *family, counters)));
        }
    }
    let mut each = |family, of: fn(&v1::RouterCounters) -> u64| {
        page.family(family, |rows| {
            all.iter()
                .try_for_each(|(name, ip, counters)| rows.add(&[name, ip], of(counters)))
        })
    };
    each(&of::ROUTER_FORWARDED, |counters| counters.forwarded)?;
    each(&of::ROUTER_FORWARDED_BYTES, |counters| {
        counters.forwarded_bytes
    })?;
    each(&of::ROUTER_SENT, |counters| counters.sent)?;
    for (family, fate) in [
        (&of::ROUTER_DROPPED, Fate::Dropped),
        (&of::ROUTER_KERNEL, Fate::Kernel),
    ] {
        page.family(family, |rows| {
            all.iter().try_for_each(|(name, ip, counters)| {
                let reasons = counters
                    .reasons
                    .iter()
                    .filter(|reason| reason.fate() == fate);
                reasons
                    .into_iter()
                    .try_for_each(|reason| rows.add(&[name, ip, &reason.reason], reason.packets))
            })
        })?;
    }
    let mut tables = |family, of: fn(&v1::RouterTable) -> u64| {
        page.family(family, |rows| {
            FAMILIES
                .iter()
                .zip([&router.ipv4, &router.ipv6])
                .try_for_each(|(ip, table)| rows.add(&[ip], table.as_ref().map_or(0, of)))
        })
    };
    tables(&of::ROUTER_PREFIXES, |table| table.prefixes)?;
    tables(&of::ROUTER_NODES, |table| table.nodes)?;
    tables(&of::ROUTER_NODES_MAX, |table| table.nodes_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format_names_counters_as_their_samples() {
        let open = "# HELP a_bytes Bytes.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                    a_bytes_total{x=\"1\"} 5\n\
                    # HELP empty Nothing.\n# TYPE empty gauge\n\
                    # HELP b Gauge.\n# TYPE b gauge\n# UNIT b b\nb 2\nb{l=\"# no comment\"} 3\n\
                    # EOF\n";
        let text = "# HELP a_bytes_total Bytes.\n# TYPE a_bytes_total counter\n\
                    a_bytes_total{x=\"1\"} 5\n\
                    # HELP empty Nothing.\n# TYPE empty gauge\n\
                    # HELP b Gauge.\n# TYPE b gauge\nb 2\nb{l=\"# no comment\"} 3\n";
        assert_eq!(as_text(open), text);
    }
}
