//! The encryption of the v0 protocol: AES-256-CBC around a SHA-512 digest and the clear content.
//!
//! A key is 32 bytes, kept base64 encoded in a file that daemon and client share, and that nobody
//! else may read (`(umask 027; openssl rand -base64 -out FILE 32)`). [`encrypt`] and [`decrypt`]
//! work on the bytes of `Encrypted.aes256cbc_sha512`: 16 of random IV, then as one run of blocks:
//! 64 of digest, the content, PKCS#7 padding to 16.
//!
//! **The cipher runs backwards**: the sender applies AES-256-CBC *decryption* to these blocks, the
//! receiver *encryption*. The original does so, and the frames of its client (`tests/v0_vectors/`)
//! can be read in no other way (docs/v0-contract.md, "Encryption").
//!
//! The format is fixed by the clients that speak it. Its digest has no key, so whoever can tell bad
//! padding from a bad digest could learn of what they recorded: both are one error here, found
//! after the same work.

use std::fmt;
use std::path::{Path, PathBuf};

use aes::cipher::block_padding::NoPadding;
use aes::cipher::{BlockModeDecrypt, BlockModeEncrypt, KeyIvInit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha512};

const BLOCK: usize = 16;
const DIGEST: usize = 64;

/// The shared secret.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// Reads a client's key file, whoever else may read it: the daemon looks at that, whose key
    /// lets in.
    pub fn load(path: &Path) -> Result<Key, KeyError> {
        let text = std::fs::read(path).map_err(|e| KeyError {
            path: path.to_owned(),
            kind: KeyErrorKind::Unreadable(e),
        })?;
        Key::of(path, text)
    }

    /// The key in what a file has: base64 of 32 bytes, blanks and line breaks anywhere.
    pub fn of(path: &Path, text: Vec<u8>) -> Result<Key, KeyError> {
        let error = |kind| KeyError {
            path: path.to_owned(),
            kind,
        };
        let digits: Vec<u8> = text
            .into_iter()
            .filter(|byte| !byte.is_ascii_whitespace())
            .collect();
        let bytes = STANDARD
            .decode(digits)
            .map_err(|e| error(KeyErrorKind::NotBase64(e.to_string())))?;
        let length = bytes.len();
        bytes
            .try_into()
            .map(Key)
            .map_err(|_| error(KeyErrorKind::Length(length)))
    }

    /// Its 32 bytes, for a process that is to have it.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Key {
    fn from(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A key file that holds no key.
#[derive(Debug, thiserror::Error)]
#[error("key file {}: {kind}", path.display())]
pub struct KeyError {
    path: PathBuf,
    #[source]
    kind: KeyErrorKind,
}

/// How to make one that not everybody can read.
const MAKE: &str = "make one with: (umask 027; openssl rand -base64 -out FILE 32)";

/// What is wrong with a key file.
#[derive(Debug, thiserror::Error)]
enum KeyErrorKind {
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    #[error("is not base64 ({0}); {MAKE}")]
    NotBase64(String),
    #[error("holds {0} bytes, a key has 32; {MAKE}")]
    Length(usize),
}

/// Bytes that this key did not encrypt, or that were changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message cannot be decrypted: another key, or broken on its way")]
pub struct Undecipherable;

/// Encrypts `clear` under a fresh random IV.
pub fn encrypt(key: &Key, clear: &[u8]) -> Vec<u8> {
    encrypt_with(key, rand::random(), clear)
}

fn encrypt_with(key: &Key, iv: [u8; BLOCK], clear: &[u8]) -> Vec<u8> {
    let content = DIGEST + clear.len();
    let count = BLOCK - content % BLOCK;
    let mut bytes = Vec::with_capacity(BLOCK + content + count);
    bytes.extend_from_slice(&iv);
    bytes.extend_from_slice(&Sha512::digest(clear));
    bytes.extend_from_slice(clear);
    bytes.resize(BLOCK + content + count, count as u8);
    // Decryption, on purpose: see the module's comment. It takes whole blocks and leaves their
    // number.
    cbc::Decryptor::<aes::Aes256>::new(&key.0.into(), &iv.into())
        .decrypt_padded::<NoPadding>(&mut bytes[BLOCK..])
        .expect("whole blocks");
    bytes
}

/// The clear content of what [`encrypt`] made, with the same key.
pub fn decrypt(key: &Key, bytes: &[u8]) -> Result<Vec<u8>, Undecipherable> {
    let (iv, body) = bytes.split_first_chunk::<BLOCK>().ok_or(Undecipherable)?;
    if body.len() <= DIGEST || body.len() % BLOCK != 0 {
        return Err(Undecipherable);
    }
    let mut content = body.to_vec();
    let length = content.len();
    cbc::Encryptor::<aes::Aes256>::new(&key.0.into(), &(*iv).into())
        .encrypt_padded::<NoPadding>(&mut content, length)
        .map_err(|_| Undecipherable)?;
    // Bad padding is not told from a bad digest, not even by the time it takes: the digest is
    // always computed.
    let padding = padding(&content);
    let clear = content.split_off(DIGEST);
    let end = clear
        .len()
        .checked_sub(padding.unwrap_or(0))
        .ok_or(Undecipherable)?;
    let digest_fits = Sha512::digest(&clear[..end])[..] == content[..];
    if padding.is_none() || !digest_fits {
        return Err(Undecipherable);
    }
    let mut clear = clear;
    clear.truncate(end);
    Ok(clear)
}

/// Bytes of a frame that [`begins_sealed`] looks at.
pub const BEGINNING: usize = 256;

/// Whether a frame, of which these are the first bytes, begins as a `Messages` that was sealed with
/// this key. Who has another key is told from who has this one before the frame is there: a wrong
/// key makes noise, of which one in some ten million begins as a request. Whether a frame that
/// begins so is whole and sound, [`decrypt`] finds out.
pub fn begins_sealed(key: &Key, frame: &[u8]) -> bool {
    let mut bytes = &frame[..frame.len().min(BEGINNING)];
    // Messages.encrypted, and in it Encrypted.aes256cbc_sha512.
    if value(&mut bytes, 2).is_none() || value(&mut bytes, 2).is_none() {
        return false;
    }
    let Some((iv, body)) = bytes.split_first_chunk::<BLOCK>() else {
        return false;
    };
    let mut content = body[..body.len() - body.len() % BLOCK].to_vec();
    let length = content.len();
    let read = cbc::Encryptor::<aes::Aes256>::new(&key.0.into(), &(*iv).into())
        .encrypt_padded::<NoPadding>(&mut content, length);
    if read.is_err() || content.len() < DIGEST + 2 * BLOCK {
        return false;
    }
    begins_request(&content[DIGEST..]).is_some()
}

/// The beginning of a `Messages`: a `Message` with its revision and a `MessageV0`, in this order,
/// as all protobuf libraries write fields.
fn begins_request(mut bytes: &[u8]) -> Option<()> {
    use prost::encoding::{WireType, decode_key, decode_varint};
    let message = value(&mut bytes, 1)?;
    let (number, kind) = decode_key(&mut bytes).ok()?;
    if (number, kind) != (1, WireType::Varint) {
        return None;
    }
    decode_varint(&mut bytes)
        .ok()
        .filter(|revision| *revision < 1 << 16)?;
    let version = value(&mut bytes, 3)?;
    let (number, kind) = decode_key(&mut bytes).ok()?;
    let known = [1, 3].contains(&number) && kind == WireType::LengthDelimited;
    (known && version < message).then_some(())
}

/// The length of a field that has one and is this one; `bytes` then begin with its value.
fn value(bytes: &mut &[u8], field: u32) -> Option<u64> {
    use prost::encoding::{WireType, decode_key, decode_varint};
    let (number, kind) = decode_key(bytes).ok()?;
    if (number, kind) != (field, WireType::LengthDelimited) {
        return None;
    }
    decode_varint(bytes).ok()
}

/// PKCS#7 (RFC 5652, section 6.3): the last byte says how many there are, and all of them say so.
fn padding(content: &[u8]) -> Option<usize> {
    let count = usize::from(*content.last()?);
    let valid = (1..=BLOCK).contains(&count)
        && content[content.len() - count..]
            .iter()
            .all(|&b| usize::from(b) == count);
    valid.then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(fill: u8) -> Key {
        Key([fill; 32])
    }

    /// v0-contract.md 18.
    #[test]
    fn round_trip_at_every_length_around_a_block() {
        for length in 0..70 {
            let clear: Vec<u8> = (0..length).collect();
            let bytes = encrypt(&key(7), &clear);
            assert_eq!(bytes.len() % BLOCK, 0);
            assert_eq!(decrypt(&key(7), &bytes), Ok(clear));
        }
    }

    /// The bytes that `openssl enc -d -nopad -aes-256-cbc` makes of digest, content and padding
    /// with this key and IV.
    /// v0-contract.md 18 and 19.
    #[test]
    fn golden_bytes_by_openssl() {
        let expected = STANDARD
            .decode(include_str!("../tests/encrypted.golden").trim())
            .unwrap();
        assert_eq!(
            encrypt_with(&key(0x42), [0x24; BLOCK], b"butterfly"),
            expected
        );
        assert_eq!(
            decrypt(&key(0x42), &expected).as_deref(),
            Ok(&b"butterfly"[..])
        );
    }

    /// Bytes of a file of `tests/v0_vectors`, what the original's client sent.
    fn vector(name: &str) -> Vec<u8> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/v0_vectors")
            .join(name);
        let text = std::fs::read_to_string(path).unwrap();
        let digits = text.trim();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    /// v0-contract.md 18 and 19.
    #[test]
    fn what_the_original_s_client_encrypts_is_read() {
        let key = Key(std::array::from_fn(|at| at as u8));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/v0_vectors");
        let mut read = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let Some(name) = name.strip_suffix(".aes.hex") else {
                continue;
            };
            let frame =
                crate::strict::decode_reply(&vector(&format!("{name}.aes.hex")), 1).unwrap();
            let bytes = frame.encrypted.unwrap().aes256cbc_sha512.unwrap();
            let clear = vector(&format!("{name}.clear.hex"));
            assert_eq!(decrypt(&key, &bytes), Ok(clear.clone()), "{name}");
            // Encrypting is deterministic but for the IV.
            let iv = *bytes.first_chunk().unwrap();
            assert_eq!(encrypt_with(&key, iv, &clear), bytes, "{name}");
            read += 1;
        }
        assert_eq!(read, 13);
    }

    #[test]
    fn another_key_and_every_flipped_byte_are_refused() {
        let bytes = encrypt(&key(1), b"content");
        assert_eq!(decrypt(&key(2), &bytes), Err(Undecipherable));
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x10;
            // Encryption chains forward: a change anywhere changes all blocks from there on.
            assert_eq!(decrypt(&key(1), &broken), Err(Undecipherable), "byte {at}");
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = encrypt(&key(1), &[9; 40]);
        for end in 0..bytes.len() {
            assert_eq!(
                decrypt(&key(1), &bytes[..end]),
                Err(Undecipherable),
                "length {end}"
            );
        }
    }

    /// v0-contract.md 20.
    #[test]
    fn key_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let base64 = STANDARD.encode([3u8; 32]);
        std::fs::write(
            &path,
            format!("\n {}\r\n{}\n\n", &base64[..20], &base64[20..]),
        )
        .unwrap();
        assert_eq!(Key::load(&path).unwrap().0, [3; 32]);

        let message = |content: &str| {
            std::fs::write(&path, content).unwrap();
            Key::load(&path).unwrap_err().to_string()
        };
        let name = path.display().to_string();
        assert!(message("AAAA").starts_with(&format!("key file {name}: holds 3 bytes")));
        assert!(message("no key!").starts_with(&format!("key file {name}: is not base64")));
        std::fs::remove_file(&path).unwrap();
        assert!(
            Key::load(&path)
                .unwrap_err()
                .to_string()
                .contains("cannot be read")
        );
    }

    #[test]
    fn the_beginning_of_a_frame_tells_its_key() {
        use crate::v0::message_v0::{Nic, Request};
        use crate::v0::{Encrypted, Message, MessageV0, Messages, REVISION};
        use prost::Message as _;
        let nic = Nic {
            id: "n".repeat(3000),
            ..Default::default()
        };
        let message = Message {
            revision: REVISION,
            error: None,
            message_0: Some(MessageV0 {
                request: Some(Request {
                    nic_add: Some(nic),
                    ..Default::default()
                }),
                ..Default::default()
            }),
        };
        let clear = Messages {
            messages: vec![message],
            encrypted: None,
        }
        .encode_to_vec();
        let sealed = |key: &Key| {
            let sealed = Encrypted {
                error: None,
                aes256cbc_sha512: Some(encrypt(key, &clear)),
            };
            Messages {
                messages: vec![],
                encrypted: Some(sealed),
            }
            .encode_to_vec()
        };
        let key = Key::from([7; 32]);
        for _ in 0..20 {
            assert!(begins_sealed(&key, &sealed(&key)[..BEGINNING]));
        }
        for other in 0..2000_u16 {
            let mut bytes = [9; 32];
            bytes[..2].copy_from_slice(&other.to_le_bytes());
            assert!(!begins_sealed(&key, &sealed(&Key::from(bytes))), "{other}");
        }
        for cut in [0, 1, 20, 100] {
            assert!(!begins_sealed(&key, &sealed(&key)[..cut]), "{cut}");
        }
        assert!(!begins_sealed(&key, &clear));
    }
}
