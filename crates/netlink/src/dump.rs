//! A list that the kernel tells in many messages: whole, or an error.

use crate::error::Error;
use crate::message::{Message, messages};
use crate::uapi::NLM_F_DUMP_INTR;

/// So often a list is asked for that changes while it is told.
pub const DUMPS_MAX: u32 = 8;

/// A dump that is being told.
#[derive(Debug)]
pub struct Dump {
    action: &'static str,
    sequence: u32,
    /// The kernel has said that what it tells changed meanwhile.
    interrupted: bool,
}

impl Dump {
    /// The answer to a request of that number; `action` says what was asked, for errors.
    pub fn new(action: &'static str, sequence: u32) -> Self {
        Dump {
            action,
            sequence,
            interrupted: false,
        }
    }

    /// Reads a datagram of it. `None`: more are to come.
    ///
    /// # Errors
    /// The kernel refuses, could not go on, or what it has told changed meanwhile
    /// ([`Error::Interrupted`]): to be asked for again.
    pub fn read(
        &mut self,
        datagram: &[u8],
        each: &mut impl FnMut(&Message<'_>),
    ) -> Option<Result<(), Error>> {
        let sequence = self.sequence;
        for message in messages(datagram).filter(|message| message.sequence == sequence) {
            self.interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
            let Some(end) = message.end_of_dump() else {
                each(&message);
                continue;
            };
            return Some(match (end, self.interrupted) {
                (Err(source), _) => Err(Error::Refused {
                    action: self.action,
                    source,
                }),
                (Ok(()), true) => Err(Error::Interrupted(self.action)),
                (Ok(()), false) => Ok(()),
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Request;
    use crate::uapi::{NLMSG_DONE, NLMSG_ERROR, RTM_NEWROUTE};

    /// The datagrams of a dump with the number 7: each message's kind, flags and body.
    fn told(datagrams: &[&[(u16, u16, i32)]]) -> (usize, Option<Result<(), Error>>) {
        let mut dump = Dump::new("list", 7);
        let mut seen = 0;
        for datagram in datagrams {
            let message = |&(kind, flags, code): &(u16, u16, i32)| {
                Request::new(kind, flags, 7, &code.to_ne_bytes()).finish()
            };
            let mut bytes: Vec<u8> = datagram.iter().flat_map(message).collect();
            bytes.extend(Request::new(NLMSG_DONE, 0, 6, &[0; 4]).finish());
            if let Some(done) = dump.read(&bytes, &mut |_| seen += 1) {
                return (seen, Some(done));
            }
        }
        (seen, None)
    }

    #[test]
    fn a_dump_is_whole_or_an_error() {
        const ROUTE: (u16, u16, i32) = (RTM_NEWROUTE, 0, 0);
        const DONE: (u16, u16, i32) = (NLMSG_DONE, 0, 0);
        assert!(matches!(told(&[&[ROUTE, ROUTE]]), (2, None)));
        assert!(matches!(
            told(&[&[ROUTE], &[ROUTE, DONE]]),
            (2, Some(Ok(())))
        ));
        // Cut off: said by any message, of any datagram, or at the end.
        let cut = (RTM_NEWROUTE, NLM_F_DUMP_INTR, 0);
        for datagrams in [
            [&[cut, ROUTE][..], &[ROUTE, DONE][..]],
            [&[ROUTE], &[cut, DONE]],
            [&[ROUTE], &[(NLMSG_DONE, NLM_F_DUMP_INTR, 0)]],
        ] {
            let (_, done) = told(&datagrams);
            assert!(
                matches!(done, Some(Err(Error::Interrupted("list")))),
                "{done:?}"
            );
        }
        for kind in [NLMSG_DONE, NLMSG_ERROR] {
            let (_, done) = told(&[&[ROUTE, (kind, 0, -12)]]);
            let Some(Err(Error::Refused { source, .. })) = done else {
                panic!("{done:?}");
            };
            assert_eq!(source.raw_os_error(), Some(12));
        }
    }
}
