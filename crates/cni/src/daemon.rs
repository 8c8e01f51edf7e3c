//! The daemon, by API v1: NICs of one network.

use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::call::{is_interface, is_name};
use crate::error::Error;

/// How long one call may take: an answer takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a NIC's id.
const ID_MAX: usize = 128;
/// Bytes of the digest in an id whose parts would be too long.
const DIGEST_BYTES: usize = 16;
/// A list of all of a host's NICs is longer than tonic takes by itself.
const ANSWER_MAX: usize = 256 << 20;

/// A connection.
pub struct Daemon {
    grpc: ButterflyClient<Channel>,
    shown: String,
}

impl Daemon {
    /// Connects.
    pub async fn connect(socket: &str) -> Result<Daemon, Error> {
        Daemon::connect_within(socket, PATIENCE).await
    }

    /// Connects; no answer takes longer than this.
    async fn connect_within(socket: &str, patience: Duration) -> Result<Daemon, Error> {
        let endpoint = Endpoint::from_shared(socket.to_owned());
        let endpoint = endpoint.map_err(|e| Error::config(format!("socket '{socket}': {e}")))?;
        let channel = endpoint
            .timeout(patience)
            .connect_timeout(patience)
            .connect()
            .await;
        let why = |e: tonic::transport::Error| {
            let cause = std::error::Error::source(&e).map_or(e.to_string(), ToString::to_string);
            Error::later(format!("cannot reach butterflyd at {socket}: {cause}"))
        };
        let grpc = ButterflyClient::new(channel.map_err(why)?);
        Ok(Daemon {
            grpc: grpc.max_decoding_message_size(ANSWER_MAX),
            shown: socket.to_owned(),
        })
    }

    /// Makes a NIC; one of the same values is made already.
    pub async fn put(&mut self, nic: v1::Nic) -> Result<v1::NicStatus, Error> {
        let request = v1::PutNicRequest {
            nic: Some(nic),
            create_only: true,
        };
        let answer = self.grpc.put_nic(request).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|e| self.told(&e))
    }

    /// A NIC; `None`: there is none.
    pub async fn nic(&mut self, id: &str) -> Result<Option<v1::NicStatus>, Error> {
        let answer = self
            .grpc
            .get_nic(v1::GetNicRequest { id: id.to_owned() })
            .await;
        match answer {
            Ok(answer) => Ok(Some(answer.into_inner())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(self.told(&status)),
        }
    }

    /// Ids of all NICs of a network that are containers'. Whoever may make NICs may call them as
    /// they like, other kinds too.
    pub async fn ids(&mut self, network: &str) -> Result<Vec<String>, Error> {
        let answer = self.grpc.list_nics(v1::ListNicsRequest {}).await;
        let answer = answer.map_err(|e| self.told(&e))?.into_inner();
        Ok(own_ids(network, answer))
    }

    /// Nothing passes by a NIC from now on; one that is not there lets nothing pass already.
    pub async fn silence(&mut self, id: &str) -> Result<(), Error> {
        let update = v1::UpdateNicRequest {
            id: id.to_owned(),
            link_down: Some(true),
            ..Default::default()
        };
        match self.grpc.update_nic(update).await {
            Err(status) if status.code() != Code::NotFound => Err(self.told(&status)),
            _ => Ok(()),
        }
    }

    /// Deletes a NIC; one that is not there is deleted already.
    pub async fn delete(&mut self, id: &str) -> Result<(), Error> {
        let answer = self
            .grpc
            .delete_nic(v1::DeleteNicRequest { id: id.to_owned() })
            .await;
        answer.map(drop).map_err(|e| self.told(&e))
    }

    /// Whether it works.
    pub async fn is_there(&mut self) -> Result<(), Error> {
        let answer = self.grpc.get_status(v1::GetStatusRequest::default()).await;
        answer.map(drop).map_err(|e| self.told(&e))
    }

    fn told(&self, status: &Status) -> Error {
        let why = status.message();
        match status.code() {
            // Cancelled: tonic's word for an answer that took too long.
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                Error::later(format!("butterflyd at {}: {why}", self.shown))
            }
            _ => Error::refused(format!("butterflyd refuses: {why}")),
        }
    }
}

/// The id of a container's NIC: its parts where they fit, else a digest of them behind the network.
pub fn id(network: &str, container: &str, ifname: &str) -> String {
    let whole = format!("{}{container}:{ifname}", prefix(network));
    if whole.len() <= ID_MAX {
        return whole;
    }
    format!(
        "{}{}",
        prefix(network),
        hex(&digest(&whole)[..DIGEST_BYTES])
    )
}

/// What the ids of a network's NICs begin with. No name has a colon.
pub fn prefix(network: &str) -> String {
    format!("{network}:")
}

/// Whose NIC it is, by an id of [`id`]: a container and its interface. `None`: the id is none, or
/// has a digest in their place.
pub fn whose<'a>(network: &str, id: &'a str) -> Option<(&'a str, &'a str)> {
    let (container, ifname) = id.strip_prefix(&prefix(network))?.split_once(':')?;
    (is_name(container) && is_interface(ifname)).then_some((container, ifname))
}

/// Ids of a network's NICs that ADD makes. One that the daemon could not make when it started may
/// be made at the next start, with addresses that others have by then.
fn own_ids(network: &str, all: v1::ListNicsResponse) -> Vec<String> {
    let made = all.nics.into_iter().filter_map(|status| status.nic);
    let own = made.chain(all.unmade).filter(|nic| is_own(network, nic));
    own.map(|nic| nic.id).collect()
}

/// Whether a NIC is what ADD makes.
fn is_own(network: &str, nic: &v1::Nic) -> bool {
    let is_digest = |text: &str| {
        let digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        text.len() == 2 * DIGEST_BYTES && text.bytes().all(digit)
    };
    let rest = nic.id.strip_prefix(&prefix(network));
    nic.kind() == v1::NicKind::Veth
        && (whose(network, &nic.id).is_some() || rest.is_some_and(is_digest))
}

/// A MAC for a NIC of this id: locally administered, and the same each time.
pub fn mac(id: &str) -> String {
    let digest = digest(id);
    let mut mac = "02".to_owned();
    for byte in &digest[..5] {
        let _ = write!(mac, ":{byte:02x}");
    }
    mac
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_does_not_answer_is_tried_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        // The kernel accepts for it, and nobody reads.
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let socket = format!("unix:{}", path.display());
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let asked = runtime.block_on(async {
            let patience = Duration::from_millis(200);
            let mut daemon = Daemon::connect_within(&socket, patience).await?;
            daemon.nic("pods:c1:eth0").await
        });
        let error = asked.unwrap_err();
        assert!(error.message.contains("Timeout expired"), "{error:?}");
        assert_eq!(error.code, 11, "{error:?}");
    }

    #[test]
    fn ids_fit_and_differ() {
        assert_eq!(id("pods", "c1", "eth0"), "pods:c1:eth0");
        let (network, container) = ("n".repeat(64), "c".repeat(64));
        let long = id(&network, &container, "eth0");
        assert!(
            long.len() <= ID_MAX && long.starts_with(&prefix(&network)),
            "{long}"
        );
        assert_ne!(long, id(&network, &container, "eth1"));
        assert_eq!(whose("pods", "pods:c1:eth0"), Some(("c1", "eth0")));
        for other in [
            "pods:c1",
            "pod:c1:eth0",
            "pods:../c1:eth0",
            "pods:c1:",
            "pods:c1:a:b",
        ] {
            assert_eq!(whose("pods", other), None, "{other}");
        }
        let of = |id: &str, kind: v1::NicKind| v1::Nic {
            id: id.to_owned(),
            kind: kind.into(),
            ..Default::default()
        };
        for (id, is_ours) in [
            (&*long, true),
            ("pods:c1", false),
            ("pods:../c1:eth0", false),
        ] {
            let network = if is_ours { &*network } else { "pods" };
            assert_eq!(is_own(network, &of(id, v1::NicKind::Veth)), is_ours, "{id}");
            assert!(!is_own(network, &of(id, v1::NicKind::VhostUser)), "{id}");
        }
        let all = v1::ListNicsResponse {
            nics: vec![v1::NicStatus {
                nic: Some(of("pods:c1:eth0", v1::NicKind::Veth)),
                ..Default::default()
            }],
            unmade: vec![
                of("pods:c2:eth0", v1::NicKind::Veth),
                of("other:c3:eth0", v1::NicKind::Veth),
            ],
        };
        assert_eq!(own_ids("pods", all), ["pods:c1:eth0", "pods:c2:eth0"]);
        let mac = mac("pods:c1:eth0");
        assert!(mac.len() == 17 && mac.starts_with("02:"), "{mac}");
    }
}
