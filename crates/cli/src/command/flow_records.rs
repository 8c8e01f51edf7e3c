//! `butterfly watch --of flows`: connections that begin and end, and what is refused, one a line.

use api::v1;
use api::v1::flow_record::Kind;
use tonic::Streaming;

use super::events::time;
use super::flows::end;
use crate::client::V1;
use crate::error::Error;
use crate::json;
use crate::output::{Output, say};
use crate::words::protocol_name;

/// Prints so many records, or all until the stream ends.
pub async fn print_records(
    v1: &V1,
    out: &mut Output,
    mut records: Streaming<v1::FlowRecords>,
    count: Option<u64>,
) -> Result<(), Error> {
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(part) = v1.next(&mut records).await? else {
            break;
        };
        if part.lost > 0 {
            say(&format!(
                "{} records were lost: they were not read in time",
                part.lost
            ));
        }
        for record in part.records.iter().take(left as usize) {
            match out.json {
                true => out.value_line(&json::full("FlowRecord", record))?,
                false => out.text(&line(record))?,
            }
            left -= 1;
        }
        out.flush()?;
    }
    Ok(())
}

/// Time, what happened, between whom, and why.
fn line(record: &v1::FlowRecord) -> String {
    let nic = |id: &str| match id {
        "" => "another host".to_owned(),
        id => id.to_owned(),
    };
    let (kind, detail) = match record.kind() {
        Kind::Begin => ("begin", rules(record)),
        Kind::End => (
            "end",
            format!(
                "{} frames={}+{} bytes={}+{}",
                record.reason,
                record.original_frames,
                record.reply_frames,
                record.original_bytes,
                record.reply_bytes
            ),
        ),
        Kind::Denied => (
            "denied",
            format!(
                "{} frames={} bytes={}",
                record.reason, record.original_frames, record.original_bytes
            ),
        ),
        Kind::Unspecified => ("unknown", String::new()),
    };
    let line = format!(
        "{} {kind} vni={} {} {} ({}) > {} ({}) {detail}",
        time(record.time_unix_nanos),
        record.vni,
        protocol_name(Some(record.protocol)),
        end(&record.source, record.source_port),
        nic(&record.nic),
        end(&record.destination, record.destination_port),
        nic(&record.peer_nic),
    );
    line.trim_end().to_owned()
}

/// The groups whose rules let it pass.
fn rules(record: &v1::FlowRecord) -> String {
    let each = [("out", &record.egress_rule), ("in", &record.ingress_rule)];
    let named = each.into_iter().filter_map(|(way, rule)| {
        let group = &rule.as_ref()?.group;
        Some(format!("{way}={group}"))
    });
    named.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_line() {
        let begin = v1::FlowRecord {
            time_unix_nanos: 1_500_000_042_000,
            kind: Kind::Begin.into(),
            vni: 7,
            nic: "vm1".into(),
            protocol: 6,
            source: "10.0.0.1".into(),
            source_port: 40000,
            destination: "10.0.0.2".into(),
            destination_port: 443,
            ingress_rule: Some(v1::FlowRule {
                group: "web".into(),
                rule: None,
            }),
            ..Default::default()
        };
        assert_eq!(
            line(&begin),
            "1500.000042 begin vni=7 tcp 10.0.0.1:40000 (vm1) > 10.0.0.2:443 (another host) in=web"
        );
        let end = v1::FlowRecord {
            kind: Kind::End.into(),
            peer_nic: "vm2".into(),
            reason: "closed".into(),
            original_frames: 5,
            reply_frames: 4,
            original_bytes: 500,
            reply_bytes: 4000,
            ..begin
        };
        assert_eq!(
            line(&end),
            "1500.000042 end vni=7 tcp 10.0.0.1:40000 (vm1) > 10.0.0.2:443 (vm2) closed frames=5+4 \
             bytes=500+4000"
        );
    }
}
