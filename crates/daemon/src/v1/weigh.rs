//! What a v1 request takes as it comes and once it is decoded, told as it arrives: gRPC's frames (a
//! byte that says whether the message is compressed, and its length in four), and the [`Walk`] over
//! each message. tonic makes room for a whole message as soon as it knows its length.

use api::decoded::{Message, Refused, Walk};
use tonic::Status;

use super::server::REQUEST_MAX;

/// The most that one request may take, bytes: all that one daemon may be told at once, a million
/// bindings and rules among it, takes less.
pub const DECODED_MAX: usize = 1 << 30;
/// The most that one may take which is not [large](LARGE), bytes: a group with as many rules and
/// members as it may have takes a tenth.
pub const DECODED_SMALL_MAX: usize = 64 << 20;
/// Requests with everything, or with any number of bindings or connections.
const LARGE: [&str; 5] = [
    "/butterfly.v1.Butterfly/Apply",
    "/butterfly.v1.Butterfly/DeleteBindings",
    "/butterfly.v1.Butterfly/ImportNic",
    "/butterfly.v1.Butterfly/PutBindings",
    "/butterfly.v1.Butterfly/SetBindings",
];
/// Bytes before a message.
const HEADER: usize = 5;

/// A request's body on its way.
pub struct Weigher {
    message: Message,
    /// The most that it may take.
    limit: usize,
    /// What is here of the next message's header.
    header: Vec<u8>,
    walk: Option<Walk>,
    /// Of the messages before. One is asked for; tonic decodes what else there is.
    before: usize,
    /// Bytes that all messages so far say they have.
    declared: usize,
    /// tonic refuses the rest: we take nothing that is compressed.
    refused: bool,
}

impl Weigher {
    /// For the request of a method, `/butterfly.v1.Butterfly/PutNic`; none for one that is not
    /// ours. Those of gRPC's own service of health have one text.
    pub fn of_method(path: &str) -> Option<Weigher> {
        Some(Weigher {
            message: Message::of_method(path)?,
            limit: match LARGE.contains(&path) {
                true => DECODED_MAX,
                false => DECODED_SMALL_MAX,
            },
            header: Vec::with_capacity(HEADER),
            walk: None,
            before: 0,
            declared: 0,
            refused: false,
        })
    }

    /// What is taken with the next bytes, in bytes: room for the messages that begin, and what they
    /// take once they are decoded.
    pub fn add(&mut self, mut bytes: &[u8]) -> Result<usize, Status> {
        let known = self.memory();
        while !bytes.is_empty() && !self.refused {
            match &mut self.walk {
                Some(walk) => {
                    walk.over(&mut bytes).map_err(refused)?;
                    if walk.is_done() {
                        self.before += walk.memory();
                        self.walk = None;
                    }
                }
                None => self.begin(&mut bytes),
            }
        }
        Ok(self.memory() - known)
    }

    fn memory(&self) -> usize {
        self.declared + self.before + self.walk.as_ref().map_or(0, Walk::memory)
    }

    fn begin(&mut self, bytes: &mut &[u8]) {
        let more = bytes.len().min(HEADER - self.header.len());
        let (header, rest) = bytes.split_at(more);
        self.header.extend_from_slice(header);
        *bytes = rest;
        let &[compressed, a, b, c, d] = &self.header[..] else {
            return;
        };
        self.header.clear();
        self.refused = compressed != 0;
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        // tonic refuses what is longer.
        if len <= REQUEST_MAX {
            self.declared += len;
        }
        let left = self.limit.saturating_sub(self.before);
        self.walk = Some(Walk::new(self.message, len, left));
    }
}

fn refused(why: Refused) -> Status {
    match why {
        Refused::Malformed { .. } => Status::invalid_argument(format!("the request is {why}")),
        Refused::TooMuch { .. } => {
            tracing::warn!("a v1 request is refused: {why}");
            Status::resource_exhausted(format!("the request is too large: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tonic::Code;

    use super::*;

    const APPLY: &str = "/butterfly.v1.Butterfly/Apply";

    fn framed(message: &[u8]) -> Vec<u8> {
        let len = u32::try_from(message.len()).unwrap();
        [&[0][..], &len.to_be_bytes(), message].concat()
    }

    fn apply(nics: usize) -> Vec<u8> {
        let config = api::v1::Config {
            nics: vec![api::v1::Nic::default(); nics],
            ..Default::default()
        };
        api::v1::ApplyRequest {
            config: Some(config),
            dry_run: false,
        }
        .encode_to_vec()
    }

    #[test]
    fn messages_are_weighed_wherever_they_are_cut() {
        let bytes = [framed(&apply(3)), framed(&[]), framed(&apply(1))].concat();
        let weight = |piece: usize| {
            let mut weigher = Weigher::of_method(APPLY).unwrap();
            let pieces = bytes.chunks(piece);
            pieces
                .map(|piece| weigher.add(piece).unwrap())
                .sum::<usize>()
        };
        let whole = weight(bytes.len());
        let least = 4 * size_of::<api::v1::Nic>();
        assert!(whole > least && whole < 5 * least, "{whole} {least}");
        for piece in 1..bytes.len() {
            assert_eq!(weight(piece), whole, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_takes_too_much_is_refused_as_soon_as_that_is_known() {
        let mut weigher = Weigher::of_method(APPLY).unwrap();
        let nics = [0x0a, 0].repeat(8 << 20);
        let len = u32::try_from(nics.len()).unwrap();
        // Of config, field 1, with 16 MiB: a length in four bytes.
        let mut bytes = [&[0][..], &(len + 5).to_be_bytes(), &[0x0a]].concat();
        bytes.extend([0x80, 0x80, 0x80, 0x08]);
        bytes.extend(&nics);
        let mut pieces = bytes.chunks(16 << 10);
        let refused = pieces.find_map(|piece| weigher.add(piece).err()).unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let why = refused.message();
        assert!(
            why.ends_with("once decoded, 1073741824 are allowed"),
            "{why}"
        );
        assert!(
            pieces.len() > 512,
            "{} pieces were not looked at",
            pieces.len()
        );
        // One that nobody needs large ends sooner.
        let mut weigher = Weigher::of_method("/butterfly.v1.Butterfly/ListFlows").unwrap();
        bytes[5] = 0x12;
        bytes[10..].fill(0);
        bytes[10..]
            .iter_mut()
            .step_by(2)
            .for_each(|key| *key = 0x1a);
        let mut pieces = bytes.chunks(16 << 10);
        let refused = pieces.find_map(|piece| weigher.add(piece).err()).unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let why = refused.message();
        assert!(why.ends_with("once decoded, 67108864 are allowed"), "{why}");
        // Nor as much in many messages, all of which tonic decodes.
        let mut weigher = Weigher::of_method(APPLY).unwrap();
        let message = framed(&apply(100_000));
        let refused = (0..100).find_map(|_| weigher.add(&message).err()).unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }

    #[test]
    fn what_is_large_by_its_name_is_a_method() {
        for path in LARGE {
            assert!(Weigher::of_method(path).is_some(), "{path}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused_and_what_is_compressed_is_not_looked_at() {
        let mut weigher = Weigher::of_method(APPLY).unwrap();
        let refused = weigher.add(&framed(b"\x0a\x05hello there")).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        let why = "the request is not a protobuf message: \
                   a wire type that the protocol does not have at byte 5";
        assert_eq!(refused.message(), why);
        let mut weigher = Weigher::of_method(APPLY).unwrap();
        let mut compressed = framed(b"hello");
        compressed[0] = 1;
        assert!(weigher.add(&compressed).is_ok());
        assert!(Weigher::of_method("/grpc.health.v1.Health/Check").is_none());
    }
}
