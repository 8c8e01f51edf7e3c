//! Lines for systemd's journal, by its native protocol
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>): a datagram an entry, or for one that is too
//! long a sealed file in memory, whose descriptor is sent.
//!
//! `MESSAGE` is the whole line as it is everywhere else, values included, since that is all that
//! `journalctl` prints; each value is a field of its own beside it, `BUTTERFLY_NIC=vm1`, to choose
//! lines by. (A library that is there leaves values out of the message.)

use std::fmt::{Debug, Write};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::SendFlags;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::cut;

const SOCKET: &str = "/run/systemd/journal/socket";
/// The longest value, which hardly any line of the audit log comes near. What is cut off is said.
const VALUE_MAX: usize = 1 << 20;

/// An output of the log.
pub struct Journal {
    socket: UnixDatagram,
}

impl Journal {
    /// Fails where no journal listens.
    pub fn connect() -> io::Result<Journal> {
        Self::connect_to(SOCKET)
    }

    fn connect_to(path: &str) -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Journal { socket })
    }

    fn send(&self, entry: &[u8]) -> io::Result<()> {
        match self.socket.send(entry) {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::MSGSIZE) => self.send_file(entry),
            sent => sent.map(drop),
        }
    }

    /// The journal takes what nobody can change any more.
    fn send_file(&self, entry: &[u8]) -> io::Result<()> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("butterfly-journal", flags)?);
        file.write_all(entry)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        sys::fd_message::send(&self.socket, &[], &[file.as_fd()], SendFlags::empty())?;
        Ok(())
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let meta = event.metadata();
        let mut entry = Entry::default();
        event.record(&mut entry);
        let (line, mut bytes) = (entry.line, entry.fields);
        put(&mut bytes, "MESSAGE", &line);
        put(&mut bytes, "PRIORITY", priority(*meta.level()));
        put(&mut bytes, "SYSLOG_IDENTIFIER", "butterflyd");
        put(&mut bytes, "TARGET", meta.target());
        if let (Some(file), Some(number)) = (meta.file(), meta.line()) {
            put(&mut bytes, "CODE_FILE", file);
            put(&mut bytes, "CODE_LINE", &number.to_string());
        }
        // There is nowhere to say that it could not be said.
        let _ = self.send(&bytes);
    }
}

/// As syslog numbers them (RFC 5424, section 6.2.1), and as they are in syslog.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "5",
        Level::DEBUG => "6",
        _ => "7",
    }
}

/// A line, and the fields of its values.
#[derive(Default)]
struct Entry {
    line: String,
    fields: Vec<u8>,
}

impl Entry {
    fn value(&mut self, field: &Field, text: &str, shown: &str) {
        let gap = if self.line.is_empty() { "" } else { " " };
        if field.name() == "message" {
            self.line.insert_str(0, text);
            // Values that came first are behind it.
            if self.line.len() > text.len() && !self.line[text.len()..].starts_with(' ') {
                self.line.insert(text.len(), ' ');
            }
            return;
        }
        // Writing to a string does not fail.
        let _ = write!(self.line, "{gap}{}={shown}", field.name());
        put(&mut self.fields, &field_name(field.name()), text);
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.value(field, value, &format!("{value:?}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        self.value(field, &text, &text);
    }
}

/// Letters, digits and underscores, 64 at the most.
fn field_name(name: &str) -> String {
    let fits = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    let name = name.chars().map(fits).take(54);
    "BUTTERFLY_".chars().chain(name).collect()
}

fn put(bytes: &mut Vec<u8>, name: &str, value: &str) {
    let value = cut(value, VALUE_MAX);
    let value = value.as_bytes();
    bytes.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        bytes.push(b'\n');
        bytes.extend((value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend_from_slice(value);
    bytes.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Peer;
    use crate::audit::Audit;
    use rustix::fs::fcntl_get_seals;
    use rustix::net::RecvFlags;
    use std::os::unix::fs::FileExt;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn a_line_has_its_values_and_fields_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::connect_to(path.to_str().unwrap()).unwrap();
        let registry = tracing_subscriber::registry().with(journal);
        let _guard = tracing::subscriber::set_default(registry);
        tracing::warn!(target: "t", nic = "vm1", mtu = 1500, "a VMM\nhas {}", "connected");
        let mut bytes = [0; 4096];
        let len = listener.recv(&mut bytes).unwrap();
        let entry = bytes[..len].to_vec();
        let message = b"a VMM\nhas connected nic=\"vm1\" mtu=1500";
        let mut expected = b"BUTTERFLY_NIC=vm1\nBUTTERFLY_MTU=1500\nMESSAGE\n".to_vec();
        expected.extend((message.len() as u64).to_le_bytes());
        expected.extend(message);
        expected.extend(b"\nPRIORITY=4\nSYSLOG_IDENTIFIER=butterflyd\nTARGET=t\nCODE_FILE=");
        assert_eq!(
            String::from_utf8_lossy(&entry[..expected.len()]),
            String::from_utf8_lossy(&expected)
        );
    }

    #[test]
    fn names_are_such_as_the_journal_takes() {
        assert_eq!(field_name("ring.index"), "BUTTERFLY_RING_INDEX");
        assert_eq!(field_name(&"x".repeat(100)).len(), 64);
        let mut bytes = Vec::new();
        put(&mut bytes, "A", &"ä".repeat(VALUE_MAX));
        let end = format!("ä… (cut: {} bytes in all)\n", 2 * VALUE_MAX);
        assert!(bytes.ends_with(end.as_bytes()));
        assert_eq!(bytes.len(), 2 + VALUE_MAX + end.len() - "ä".len());
    }

    /// Whoever asks for much at once is not to have what he changed cut out of the record.
    #[test]
    fn a_line_of_the_audit_log_is_whole_however_much_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::connect_to(path.to_str().unwrap()).unwrap();
        // The longer one is too long for it, whatever this host's default is.
        let socket = socket2::SockRef::from(&journal.socket);
        socket.set_send_buffer_size(64 << 10).unwrap();
        let registry = tracing_subscriber::registry().with(journal);
        let _guard = tracing::subscriber::set_default(registry);
        for (length, is_file) in [(60 << 10, false), (250 << 10, true)] {
            let record = Audit::none().begin("v1", &Peer::unknown(), "PutGroup");
            let members = "x".repeat(length);
            record.arguments(Some(serde_json::json!({ "members": members })), 60 << 10);
            record.takes_effect();
            record.detail("a change".into());
            record.ended("ok", "");
            drop(record);
            let mut bytes = vec![0; 1 << 20];
            let received =
                sys::fd_message::receive(&listener, &mut bytes, 1, RecvFlags::empty()).unwrap();
            bytes.truncate(received.len);
            assert_eq!(
                (received.fds.len(), bytes.is_empty()),
                (usize::from(is_file), is_file)
            );
            if let Some(fd) = received.fds.into_iter().next() {
                let seals = fcntl_get_seals(&fd).unwrap();
                assert!(seals.contains(SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK));
                let file = File::from(fd);
                bytes.resize(file.metadata().unwrap().len() as usize, 0);
                file.read_exact_at(&mut bytes, 0).unwrap();
            }
            let entry = String::from_utf8(bytes).unwrap();
            let message = entry.lines().find_map(|line| line.strip_prefix("MESSAGE="));
            let message = message.unwrap();
            let line: serde_json::Value = serde_json::from_str(message).unwrap();
            assert_eq!(line["result"], "ok");
            assert_eq!(line["details"][0], "a change");
            assert_eq!(line["arguments"]["members"], *members);
            // What cuts lines off elsewhere takes the arguments.
            let arguments = message.find("\"arguments\"").unwrap();
            for before in ["\"request\"", "\"result\"", "\"details\""] {
                assert!(message.find(before).unwrap() < arguments, "{before}");
            }
            assert!(entry.contains("\nPRIORITY=5\n"));
        }
    }
}
