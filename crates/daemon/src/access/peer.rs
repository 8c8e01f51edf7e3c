//! Who asks: a process of this host by the kernel's word, or a certificate.

use nix::unistd::Uid;
use tokio::net::unix::UCred;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Who asks, and from where. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub who: Who,
    /// Address and port, of who is not on a unix socket.
    pub address: Option<String>,
}

/// What a grant can be for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// A process of this host (unix(7), SO_PEERCRED).
    Local(User),
    /// Who has a certificate by the authority of `--tls-ca`: the common names of its subject, and
    /// what its subjectAltName says of DNS names, addresses of mail and URIs.
    Certificate { names: Vec<String> },
    /// Who reached v0 over TCP: who has the key, or anybody where clear text is allowed.
    V0Tcp,
    /// Who has the token of `--page-token`.
    PageToken,
    /// Nothing is known.
    Unknown,
}

/// A user of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub pid: Option<i32>,
    /// Its process's group, and those that the system's database has the user in.
    pub groups: Vec<u32>,
}

impl User {
    /// As whom the connection was made, by the kernel's word alone: of its groups its process's
    /// is known.
    pub fn of(peer: &UCred) -> User {
        User {
            uid: peer.uid(),
            gid: peer.gid(),
            pid: peer.pid(),
            groups: vec![peer.gid()],
        }
    }

    /// Root, or the daemon's own user.
    pub fn is_ours(&self) -> bool {
        let uid = Uid::from_raw(self.uid);
        uid.is_root() || uid == Uid::effective()
    }

    pub fn is_in(&self, gid: u32) -> bool {
        self.groups.contains(&gid)
    }
}

impl Who {
    /// A user of this host whose process is of this group, and of no other.
    pub fn local(uid: u32, gid: u32) -> Who {
        Who::Local(User {
            uid,
            gid,
            pid: None,
            groups: vec![gid],
        })
    }
}

impl Peer {
    pub fn local(user: User) -> Peer {
        Peer {
            who: Who::Local(user),
            address: None,
        }
    }

    /// Nothing is known of who asks.
    pub fn unknown() -> Peer {
        Peer {
            who: Who::Unknown,
            address: None,
        }
    }

    /// Root, or the daemon's own user, on this host.
    pub fn is_ours(&self) -> bool {
        matches!(&self.who, Who::Local(user) if user.is_ours())
    }

    /// As which of this host's users, where there may be several beside root and the daemon's own.
    pub fn user(&self) -> Option<String> {
        (matches!(self.who, Who::Local(_)) && !self.is_ours()).then(|| self.shown())
    }

    /// For the log, and for refusals.
    pub fn shown(&self) -> String {
        let who = match &self.who {
            Who::Local(user) => format!("uid {}", user.uid),
            Who::Certificate { names } if names.is_empty() => "a certificate without names".into(),
            Who::Certificate { names } => format!("the certificate of {}", names.join(", ")),
            Who::V0Tcp => "a client of v0 over TCP".into(),
            Who::PageToken => "a client with the page token".into(),
            Who::Unknown => "a client of unknown identity".into(),
        };
        // Names are the certificate's maker's: they are to break no line of a log.
        who.escape_debug().to_string()
    }
}

/// The names that a certificate's subject has; none where it cannot be read.
pub fn certificate_names(der: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return Vec::new();
    };
    let subject = certificate.subject().iter_common_name();
    let mut names: Vec<String> = subject
        .filter_map(|name| name.as_str().ok())
        .map(str::to_owned)
        .collect();
    if let Ok(Some(alternative)) = certificate.subject_alternative_name() {
        for name in &alternative.value.general_names {
            if let GeneralName::DNSName(text)
            | GeneralName::RFC822Name(text)
            | GeneralName::URI(text) = name
                && !names.iter().any(|known| known == text)
            {
                names.push((*text).to_owned());
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    #[test]
    fn names_are_the_subject_s_and_the_alternative_ones() {
        let mut params = CertificateParams::new(vec!["blue.example.com".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "blue");
        let uri = "spiffe://example.com/blue".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        assert_eq!(
            certificate_names(certificate.der()),
            ["blue", "blue.example.com", "spiffe://example.com/blue"]
        );
        assert_eq!(certificate_names(b"not one"), Vec::<String>::new());
    }

    #[test]
    fn a_name_breaks_no_line() {
        let peer = Peer {
            who: Who::Certificate {
                names: vec!["a\nroot: ok".into()],
            },
            address: None,
        };
        assert_eq!(peer.shown(), "the certificate of a\\nroot: ok");
    }
}
