//! The other end of a pair of devices (veth, netkit), where that is in another network namespace:
//! asked for by the number that this namespace has for the other (RTM_GETLINK with
//! IFLA_TARGET_NETNSID, since Linux 4.20). The kernel tells nobody here when it changes.

use crate::change::PairKind;
use crate::decode;
use crate::error::Error;
use crate::message::{Attribute, Message, messages};
use crate::model::Link;
use crate::request::Requests;
use crate::uapi::*;

/// struct ifinfomsg: family, type, index, flags, change.
const IFINFOMSG: usize = 16;

/// A pair of devices, seen from the one that is in this namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The queueing discipline of the end that is here: "noqueue" where packets to it wait nowhere.
    pub queue: String,
    /// The end in the other namespace.
    pub far: Link,
}

/// Where the other end of a device is.
#[derive(Debug)]
struct Elsewhere {
    queue: String,
    ifindex: u32,
    namespace: i32,
}

impl Requests {
    /// The pair that a device is one end of. `None`: it is gone, has no other end, has it in this
    /// namespace, or has it in one that the caller may not look into (CAP_NET_ADMIN there).
    ///
    /// # Errors
    /// The socket fails, or the kernel does not answer.
    pub async fn pair(&self, ifindex: u32) -> Result<Option<Pair>, Error> {
        let near = self.link_message(ifindex, None).await?;
        let Some(elsewhere) = near.as_deref().and_then(|answer| first(answer, elsewhere)) else {
            return Ok(None);
        };
        let far = self
            .link_message(elsewhere.ifindex, Some(elsewhere.namespace))
            .await?;
        let far = far
            .as_deref()
            .and_then(|answer| first(answer, decode::link));
        Ok(far.map(|far| Pair {
            queue: elsewhere.queue,
            far,
        }))
    }

    /// What the kernel says of one device; `None` where it refuses.
    async fn link_message(
        &self,
        ifindex: u32,
        namespace: Option<i32>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let request = |sequence| {
            let mut body = [0; IFINFOMSG];
            body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
            let request = crate::message::Request::new(RTM_GETLINK, 0, sequence, &body);
            match namespace {
                Some(id) => request.with(IFLA_TARGET_NETNSID, &id.to_ne_bytes()),
                None => request,
            }
            .finish()
        };
        match self.ask("look at a device", request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(Error::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn first<T>(answer: &[u8], read: impl Fn(&Message) -> Option<T>) -> Option<T> {
    read(&messages(answer).next()?)
}

fn elsewhere(message: &Message) -> Option<Elsewhere> {
    let find = |kind| {
        let mut attributes = message.attributes(IFINFOMSG);
        attributes.find(move |attribute: &Attribute| attribute.kind == kind)
    };
    let info = find(IFLA_LINKINFO)?;
    let kind = info.nested().find(|inner| inner.kind == IFLA_INFO_KIND)?;
    // Others have a device below them, not at their other end.
    PairKind::of(&kind.text())?;
    Some(Elsewhere {
        queue: find(IFLA_QDISC)?.text(),
        ifindex: find(IFLA_LINK)?.u32()?,
        namespace: find(IFLA_LINK_NETNSID)?.u32()? as i32,
    })
}
