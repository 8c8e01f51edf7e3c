//! Whose a vhost-user socket is, and who may connect to it.

use super::{Nic, NicKind, VhostMode};
use crate::error::Error;

/// The longest name of a user or group: what useradd(8) and groupadd(8) make is shorter.
const NAME_MAX: usize = 256;

/// Whose the socket is that the daemon makes for a NIC. What is not said is as the daemon's options
/// say (`--vhost-owner`, `--vhost-group`, `--vhost-mode`).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SocketAccess {
    /// A user, by name or number.
    pub owner: Option<String>,
    /// A group, by name or number.
    pub group: Option<String>,
    /// Permissions, as chmod(2) takes them.
    pub mode: Option<u32>,
}

impl SocketAccess {
    /// What is said of it, each with the field's name.
    pub fn said(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        [
            ("socket owner", self.owner.clone()),
            ("socket group", self.group.clone()),
            ("socket mode", self.mode_text()),
        ]
        .into_iter()
        .filter_map(|(field, value)| Some((field, value?)))
    }

    /// The permissions as they are written: three octal digits.
    pub fn mode_text(&self) -> Option<String> {
        self.mode.map(|mode| format!("{mode:03o}"))
    }

    /// Fails for a NIC whose socket is not the daemon's to make, and for what is no name.
    pub(super) fn in_bounds(&self, nic: &Nic) -> Result<(), Error> {
        let owner = nic.owner();
        let made = nic.kind == NicKind::VhostUser && nic.vhost_mode == VhostMode::Server;
        if let Some((field, value)) = self.said().next().filter(|_| !made) {
            let why = match nic.kind {
                NicKind::VhostUser => {
                    "is for a socket that the daemon makes: this one is its VMM's (vhost mode \
                     client), which says itself whose it is"
                }
                _ => "goes with a vhost-user NIC alone",
            };
            return Err(Error::value(&owner, field, &value, why));
        }
        for (field, name) in [("socket owner", &self.owner), ("socket group", &self.group)] {
            let cannot_be = |name: &&String| {
                !(1..=NAME_MAX).contains(&name.len())
                    || name.contains(|c: char| c.is_control() || c.is_whitespace() || c == ':')
            };
            if let Some(name) = name.as_ref().filter(cannot_be) {
                let why = "cannot be a name or a number";
                return Err(Error::value(&owner, field, name, why));
            }
        }
        Ok(())
    }
}

/// Permissions of a socket: octal digits, as `660`. `None`: they are none.
pub fn parse_mode(text: &str) -> Option<u32> {
    let digits = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| digits)?;
    (mode <= 0o777).then_some(mode)
}
