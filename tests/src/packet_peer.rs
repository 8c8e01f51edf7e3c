//! A container's end of its interface, by which frames are sent and heard as they are: a packet
//! socket, in a program that runs in the container's namespace (tests/packet_peer.py).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use testkit::Result;
use testkit::netns::Namespace;
use wire::offload::{Gso, Offload};

/// The peer, and its namespace.
#[derive(Debug)]
pub struct PacketPeer {
    /// Where it is.
    pub namespace: Namespace,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl PacketPeer {
    /// By `eth0` of a namespace, whose own stack is silent.
    pub fn new(namespace: Namespace) -> Result<PacketPeer> {
        namespace.ok("sysctl -q -w net.ipv6.conf.eth0.disable_ipv6=1; ip addr flush dev eth0")?;
        PacketPeer::by("eth0", namespace)
    }

    /// By this interface of a namespace; `tap:NAME`: as a VMM has it open.
    pub fn by(interface: &str, namespace: Namespace) -> Result<PacketPeer> {
        let mut peer = PacketPeer::waiting(interface, namespace)?;
        peer.listen()?;
        Ok(peer)
    }

    /// As [`by`](PacketPeer::by), of an interface that need not be there yet: see
    /// [`listen`](PacketPeer::listen).
    pub fn waiting(interface: &str, namespace: Namespace) -> Result<PacketPeer> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packet_peer.py");
        let pid = namespace.pid().to_string();
        let mut child = Command::new("nsenter")
            .args(["-t", &pid, "-n", "python3"])
            .arg(script)
            .arg(interface)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("nsenter cannot be started: {e}"))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".into());
        };
        Ok(PacketPeer {
            namespace,
            child,
            to,
            from: BufReader::new(from),
        })
    }

    /// Goes on by the interface that has the name now, which must be there.
    pub fn listen(&mut self) -> Result<()> {
        self.say("listen\n")?;
        match self.line()?.as_str() {
            "ready" => Ok(()),
            said => Err(format!("the peer says '{said}'")),
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.from.read_line(&mut line);
        read.map_err(|e| format!("the peer says nothing: {e}"))?;
        Ok(line.trim_end().to_owned())
    }

    fn say(&mut self, text: &str) -> Result<()> {
        let done = self.to.write_all(text.as_bytes());
        done.map_err(|e| format!("the peer has ended: {e}"))
    }

    /// Sends frames, one after the other.
    pub fn send(&mut self, frames: &[Vec<u8>]) -> Result<()> {
        let lines: String = frames.iter().map(|frame| hex(frame) + "\n").collect();
        self.say(&lines)
    }

    /// As [`send`](PacketPeer::send), frames in which something is left undone.
    pub fn send_undone(&mut self, frames: &[(Vec<u8>, Offload)]) -> Result<()> {
        let line = |(frame, offload): &(Vec<u8>, Offload)| match *offload == Offload::default() {
            true => hex(frame) + "\n",
            false => format!("{} {}\n", hex(&header(frame.len(), offload)), hex(frame)),
        };
        self.say(&frames.iter().map(line).collect::<String>())
    }

    /// What has come since the last call, as [`hex`] has it.
    pub fn take(&mut self) -> Result<Vec<String>> {
        self.say("\n")?;
        let mut frames = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(frames);
            }
            frames.push(line);
        }
    }
}

impl Drop for PacketPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `struct virtio_net_hdr`, whose headers' length has room for those of TCP.
fn header(len: usize, offload: &Offload) -> Vec<u8> {
    let kind = match offload.gso {
        Gso::None => 0,
        Gso::Tcp4 => 1,
        Gso::Tcp6 => 4,
        Gso::Udp => 5,
    };
    let place = offload
        .checksum
        .map_or([0; 2], |place| [place.start, place.offset]);
    let mut header = vec![offload.checksum.is_some().into(), kind];
    for number in [len.min(128) as u16, offload.gso_size, place[0], place[1]] {
        header.extend(number.to_ne_bytes());
    }
    header
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
