//! `butterfly nic show`: all that can be seen of a NIC, down to its rings.

use api::v1;
use clap::Args;
use serde_json::json;

use super::nic_details;
use super::nic_how;
use crate::error::Error;
use crate::json;
use crate::session::Session;
use crate::words::{direction_name, span};

/// `nic show`.
#[derive(Args, Debug)]
#[command(after_help = "\
What was counted since the NIC was created; for a vhost-user NIC how far the virtual machine
monitor is; then each queue pair as it stands, with the worker that has it. On a transmitq (the
guest sends) `waiting` are chains that the worker has not taken yet; on a receiveq they are the
buffers that the guest has given: with 0 the next frame for it is dropped, ring_full. Looking
stops no frame. API v0 knows the values alone.

Example:
  butterfly nic show vnic_1")]
pub struct ShowArgs {
    /// Ids of NICs [default: all]
    #[arg(value_name = "NIC")]
    nics: Vec<String>,
    /// Print what a guest or a container needs to use them, instead
    #[arg(long)]
    how: bool,
}

/// All of one NIC.
struct Seen {
    nic: v1::NicStatus,
    stats: v1::NicStats,
    drops: Vec<v1::Drop>,
    queues: v1::NicQueues,
}

impl ShowArgs {
    /// Prints all that can be seen of NICs.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let client = session.client().await?;
        let nics = match self.nics.is_empty() {
            true => client.nic_ids().await?,
            false => self.nics,
        };
        if self.how {
            let mut lines = Vec::new();
            for id in &nics {
                lines.push(nic_how::lines(&client.nic(id).await?));
            }
            return session.out.text(lines.join("\n").trim_end());
        }
        if !client.is_v1() {
            return nic_details::run(nics, session).await;
        }
        let mut seen = Vec::new();
        for id in &nics {
            seen.push(Seen {
                queues: client.nic_queues(id).await?,
                nic: client.nic(id).await?,
                stats: client.nic_stats(id).await?,
                drops: client.drops(id, false).await?.drops,
            });
        }
        if session.out.json {
            let value = |seen: &Seen| {
                let drops = seen.drops.iter().map(|drop| json::full("Drop", drop));
                json!({
                    "nic": json::full("NicStatus", &seen.nic),
                    "stats": json::full("NicStats", &seen.stats),
                    "drops": drops.collect::<Vec<_>>(),
                    "queues": json::full("NicQueues", &seen.queues),
                })
            };
            return session.out.value(&seen.iter().map(value).collect());
        }
        for (index, seen) in seen.iter().enumerate() {
            if index > 0 {
                session.out.text("\n")?;
            }
            nic_details::print(std::slice::from_ref(&seen.nic), &mut session.out)?;
            let is_mirrored = seen
                .nic
                .nic
                .as_ref()
                .is_some_and(|nic| nic.mirror.is_some());
            session.out.text(&counted(&seen.stats, &seen.drops))?;
            if is_mirrored {
                let (all, lost) = (seen.stats.mirrored_frames, seen.stats.mirror_lost_frames);
                let copies = format!("{all} frames, {lost} lost");
                session.out.text(&line("mirrored", &copies))?;
            }
            session.out.text(&pairs(&seen.queues))?;
        }
        Ok(())
    }
}

fn line(name: &str, value: &str) -> String {
    format!("{:<19} {value}\n", format!("{name}:"))
}

fn counted(stats: &v1::NicStats, drops: &[v1::Drop]) -> String {
    let way = |frames: u64, bytes: u64, drops: u64| {
        format!("{frames} frames, {bytes} bytes, {drops} dropped")
    };
    let mut text = line(
        "in",
        &way(
            stats.ingress_frames,
            stats.ingress_bytes,
            stats.ingress_drops,
        ),
    );
    text += &line(
        "out",
        &way(stats.egress_frames, stats.egress_bytes, stats.egress_drops),
    );
    for drop in drops {
        let direction = direction_name(drop.direction());
        text += &line(
            "dropped",
            &format!(
                "{} {direction}, {}: {}",
                drop.frames, drop.reason, drop.description
            ),
        );
    }
    text + &line("flows", &stats.flows.to_string())
}

fn session(session: &v1::VhostSession) -> String {
    let driver = match session.features {
        None => "no driver has come yet",
        Some(_) => "the driver has taken its features",
    };
    let mut text = line(
        "session",
        &format!("connected, {driver}, MTU {}", session.mtu),
    );
    text += &line("  protocol", &session.protocol_feature_names.join(" "));
    for ring in &session.rings {
        let started = if ring.started {
            "started"
        } else {
            "not started"
        };
        let enabled = if ring.enabled {
            "enabled"
        } else {
            "not enabled"
        };
        let words = match (ring.size, ring.fault.as_str()) {
            (0, _) => "not described yet".to_owned(),
            (size, "") => format!("{size} entries, {started}, {enabled}"),
            (size, fault) => format!("{size} entries, {started}, {enabled}: {fault}"),
        };
        text += &line(&format!("  ring {}", ring.index), &words);
    }
    text
}

fn pairs(queues: &v1::NicQueues) -> String {
    let mut text = queues.session.as_ref().map(session).unwrap_or_default();
    if queues.pairs.is_empty() {
        text += &line("queue pairs", "none: no guest's driver runs");
    }
    for pair in &queues.pairs {
        text.push('\n');
        let polled = if pair.polled { "polled" } else { "parked" };
        text += &line(
            &format!("queue pair {}", pair.pair),
            &format!(
                "worker {}, {polled}, quiet for {}",
                pair.worker,
                span(pair.quiet_ns)
            ),
        );
        let state = match (pair.broken.as_str(), pair.up) {
            ("", true) => "up".to_owned(),
            ("", false) => "down".to_owned(),
            (why, _) => format!("broken: {why}"),
        };
        text += &line("  backend", &format!("{} {state}", pair.backend));
        let (from, to) = (pair.frames_received, pair.frames_transmitted);
        text += &line("  frames", &format!("{from} from the guest, {to} to it"));
        text += &line(
            "  wake-ups",
            &format!("{} kicks, {} calls", pair.kicks, pair.calls),
        );
        for (name, ring) in [
            ("  transmitq", &pair.transmitq),
            ("  receiveq", &pair.receiveq),
        ] {
            text += &ring
                .as_ref()
                .map(|ring| line(name, &ring_words(ring)))
                .unwrap_or_default();
        }
        if let Some(ring) = pair.transmitq.as_ref().or(pair.receiveq.as_ref()) {
            text += &line("  features", &ring.feature_names.join(" "));
        }
    }
    text
}

fn ring_words(ring: &v1::Ring) -> String {
    let format = if ring.packed { "packed" } else { "split" };
    let waiting = ring.waiting.map(|waiting| format!(", {waiting} waiting"));
    let interrupts = if ring.interrupts_off { "off" } else { "on" };
    format!(
        "{format}, {} entries{}, {} in flight; next {}, used {}; interrupts {interrupts}, {} calls",
        ring.size,
        waiting.unwrap_or_default(),
        ring.in_flight,
        ring.next_avail,
        ring.used_index,
        ring.calls
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_and_why_frames_were_dropped() {
        let stats = v1::NicStats {
            ingress_frames: 3,
            ingress_bytes: 180,
            egress_frames: 2,
            egress_bytes: 120,
            ingress_drops: 4,
            flows: 1,
            ..Default::default()
        };
        let drop = v1::Drop {
            direction: v1::Direction::Ingress.into(),
            reason: "ring_full".into(),
            description: "Why.".into(),
            frames: 4,
            ..Default::default()
        };
        let expected = "\
in:                 3 frames, 180 bytes, 4 dropped
out:                2 frames, 120 bytes, 0 dropped
dropped:            4 in, ring_full: Why.
flows:              1
";
        assert_eq!(counted(&stats, &[drop]), expected);
    }

    #[test]
    fn a_queue_pair_and_its_rings() {
        let transmitq = v1::Ring {
            size: 256,
            avail_index: 12,
            next_avail: 10,
            used_index: 9,
            waiting: Some(2),
            in_flight: 1,
            interrupts_off: true,
            calls: 4,
            feature_names: vec!["CSUM".into(), "VERSION_1".into()],
            ..Default::default()
        };
        let receiveq = v1::Ring {
            size: 1024,
            packed: true,
            waiting: None,
            in_flight: 0,
            interrupts_off: false,
            ..transmitq.clone()
        };
        let pair = v1::QueuePair {
            worker: 1,
            backend: "vhost-user".into(),
            up: true,
            polled: true,
            quiet_ns: 2_500_000,
            frames_received: 9,
            frames_transmitted: 7,
            kicks: 2,
            calls: 8,
            transmitq: Some(transmitq),
            receiveq: Some(receiveq),
            ..Default::default()
        };
        let queues = v1::NicQueues {
            id: "a".into(),
            pairs: vec![pair],
            session: None,
        };
        let expected = "
queue pair 0:       worker 1, polled, quiet for 2 ms
  backend:          vhost-user up
  frames:           9 from the guest, 7 to it
  wake-ups:         2 kicks, 8 calls
  transmitq:        split, 256 entries, 2 waiting, 1 in flight; next 10, used 9; interrupts off, 4 calls
  receiveq:         packed, 1024 entries, 0 in flight; next 10, used 9; interrupts on, 4 calls
  features:         CSUM VERSION_1
";
        assert_eq!(pairs(&queues), expected);
        let ring = |index, size, fault: &str| v1::VhostRing {
            index,
            size,
            started: size > 0,
            enabled: false,
            fault: fault.into(),
        };
        let waiting = v1::NicQueues {
            session: Some(v1::VhostSession {
                features: Some(1),
                protocol_feature_names: vec!["MQ".into(), "REPLY_ACK".into()],
                mtu: 1500,
                rings: vec![ring(0, 256, ""), ring(1, 256, "Why."), ring(2, 0, "")],
                ..Default::default()
            }),
            ..Default::default()
        };
        let expected = "\
session:            connected, the driver has taken its features, MTU 1500
  protocol:         MQ REPLY_ACK
  ring 0:           256 entries, started, not enabled
  ring 1:           256 entries, started, not enabled: Why.
  ring 2:           not described yet
queue pairs:        none: no guest's driver runs
";
        assert_eq!(pairs(&waiting), expected);
        let none = "queue pairs:        none: no guest's driver runs\n";
        assert_eq!(pairs(&v1::NicQueues::default()), none);
    }
}
