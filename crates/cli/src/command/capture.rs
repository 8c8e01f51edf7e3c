//! `butterfly capture`: frames of NICs and uplinks as pcapng, to standard output or a file.
//!
//! The filter is compiled here, by libpcap, and the daemon gets its instructions: the process that
//! carries the traffic parses no language, checks the program and runs it itself.

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use api::v1;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::Error;
use crate::output::say;
use crate::session::Session;

/// `capture`.
#[derive(Args, Debug)]
#[command(after_help = "\
Runs until it is interrupted, or there was enough. FILTER is libpcap's (pcap-filter(7)), one word
or several. A frame that is dropped has the reason as its comment (docs/drops.md). A reader that
is slow loses frames, which are counted in the file and at the end; nobody else notices.

Examples:
  butterfly capture vm1 'host 10.0.0.2' | wireshark -k -i -
  butterfly capture vm1 vm2 --write both.pcapng --seconds 10 -- tcp port 443
  butterfly capture vm1 --dropped | tcpdump -n -r -
  butterfly capture uplink0 --uplink --write wire.pcapng --frames 100")]
pub struct CaptureArgs {
    /// Ids of NICs, and behind them the filter; a word that is no id, or a --, begins it
    #[arg(required = true, value_name = "NIC|FILTER")]
    words: Vec<String>,
    /// The filter, where it would be taken for an id
    #[arg(last = true, value_name = "FILTER")]
    filter: Vec<String>,
    /// The first name is an interface of an uplink, not a NIC
    #[arg(long)]
    uplink: bool,
    /// Write a file, which must not exist, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// The first bytes of each frame only
    #[arg(
        short,
        long,
        value_name = "BYTES",
        default_value = "0",
        hide_default_value = true
    )]
    snap_len: u32,
    /// What enters the guest, or what leaves it [default: both]
    #[arg(long, value_name = "in|out")]
    dir: Option<Direction>,
    /// Only frames that are dropped
    #[arg(short, long)]
    dropped: bool,
    /// End after so many frames
    #[arg(short = 'n', long, visible_alias = "count", value_name = "FRAMES")]
    frames: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u32>,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

impl CaptureArgs {
    /// Writes what comes until there is no more.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        if self.write.is_none() && std::io::stdout().is_terminal() {
            let why = "a capture is no text: send it to a program, or --write a file";
            return Err(Error::Usage(why.into()));
        }
        let v1 = session.client().await?.only_v1("capture")?;
        let known: Vec<String> = match self.uplink {
            true => Vec::new(),
            false => v1
                .nics()
                .await?
                .into_iter()
                .filter_map(|status| Some(status.nic?.id))
                .collect(),
        };
        let request = self.request(&known)?;
        let mut parts = v1.capture(request).await?;
        let mut out = self.output()?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut ended = signal(SignalKind::terminate())?;
        let (mut frames, mut lost) = (0, 0);
        loop {
            let part = tokio::select! {
                part = v1.next(&mut parts) => part?,
                _ = interrupted.recv() => None,
                _ = ended.recv() => None,
            };
            let Some(part) = part else { break };
            out.write_all(&part.pcapng)?;
            out.flush()?;
            (frames, lost) = (part.frames, part.lost);
        }
        let losses = match lost {
            0 => String::new(),
            lost => format!(", {lost} lost since they were not read in time"),
        };
        say(&format!("{frames} frames captured{losses}"));
        Ok(())
    }

    /// A file for its owner alone: it has what guests say.
    fn output(&self) -> Result<Box<dyn Write>, Error> {
        use std::os::unix::fs::OpenOptionsExt;
        let Some(path) = &self.write else {
            return Ok(Box::new(std::io::stdout()));
        };
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file = made.map_err(|error| named(path, &error))?;
        Ok(Box::new(file))
    }

    fn request(&self, known: &[String]) -> Result<v1::CaptureFramesRequest, Error> {
        let (names, filter) = self.split(known);
        let (nics, uplinks) = match self.uplink {
            true => (Vec::new(), names),
            false => (names, Vec::new()),
        };
        let direction = match self.dir {
            None => v1::Direction::Unspecified,
            Some(Direction::In) => v1::Direction::Ingress,
            Some(Direction::Out) => v1::Direction::Egress,
        };
        Ok(v1::CaptureFramesRequest {
            nics,
            uplinks,
            snap_len: self.snap_len,
            filter: compile(&filter)?,
            direction: direction.into(),
            dropped_only: self.dropped,
            frames: self.frames.unwrap_or_default(),
            seconds: self.seconds.unwrap_or_default(),
        })
    }

    /// The names, and the filter behind them. The first word is always a name.
    fn split(&self, known: &[String]) -> (Vec<String>, String) {
        let is_name = |(at, word): &(usize, &String)| *at == 0 || known.contains(word);
        let names: Vec<String> = self
            .words
            .iter()
            .enumerate()
            .take_while(is_name)
            .map(|(_, word)| word.clone())
            .collect();
        let rest = self.words[names.len()..].iter().chain(&self.filter);
        let filter: Vec<&str> = rest.map(String::as_str).collect();
        (names, filter.join(" "))
    }
}

fn named(path: &Path, error: &std::io::Error) -> Error {
    Error::Usage(format!("{}: {error}", path.display()))
}

/// By libpcap, for Ethernet. An empty filter is none.
pub fn compile(filter: &str) -> Result<Vec<v1::BpfInstruction>, Error> {
    if filter.trim().is_empty() {
        return Ok(Vec::new());
    }
    let wrong = |error: pcap::Error| Error::Usage(format!("filter '{filter}': {error}"));
    let capture = pcap::Capture::dead(pcap::Linktype::ETHERNET).map_err(wrong)?;
    let program = capture.compile(filter, true).map_err(wrong)?;
    let each = program.get_instructions().iter().map(|instruction| {
        // The crate shows its fields only so: code, jt, jf and k.
        let words = instruction.to_string();
        let numbers = words.split_whitespace().map(str::parse::<u32>);
        match numbers.collect::<Result<Vec<_>, _>>().as_deref() {
            Ok(&[code, jt, jf, k]) => Ok(v1::BpfInstruction { code, jt, jf, k }),
            _ => Err(Error::Usage(format!(
                "filter '{filter}': instruction '{words}' is none"
            ))),
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CaptureArgs,
    }

    fn request(words: &[&str]) -> Result<v1::CaptureFramesRequest, Error> {
        let words = ["capture"].iter().chain(words);
        let known = ["vm1", "vm2"].map(String::from);
        Line::try_parse_from(words).unwrap().args.request(&known)
    }

    #[test]
    fn names_come_first_and_the_filter_behind_them() {
        let alone = request(&["vm1"]).unwrap();
        assert_eq!((alone.nics.len(), alone.filter.len()), (1, 0));
        let filter = compile("tcp port 443").unwrap();
        for words in [
            &["vm1", "vm2", "tcp", "port", "443"][..],
            &["vm1", "vm2", "tcp port 443"],
            &["vm1", "vm2", "--", "tcp", "port", "443"],
        ] {
            let asked = request(words).unwrap();
            assert_eq!(asked.nics, ["vm1", "vm2"], "{words:?}");
            assert_eq!(asked.filter, filter, "{words:?}");
        }
        // One that is not known is the daemon's to refuse.
        assert_eq!(request(&["vm3"]).unwrap().nics, ["vm3"]);
        let wire = request(&["eth0", "--uplink", "udp"]).unwrap();
        assert_eq!(
            (wire.nics.len(), wire.uplinks),
            (0, vec!["eth0".to_string()])
        );
    }

    #[test]
    fn libpcap_compiles_and_says_what_is_wrong() {
        let program = compile("ip").unwrap();
        let first = v1::BpfInstruction {
            code: 0x28,
            jt: 0,
            jf: 0,
            k: 12,
        };
        assert_eq!(program[0], first, "{program:?}");
        let error = compile("tcp prot 443").unwrap_err().to_string();
        assert!(error.starts_with("filter 'tcp prot 443': "), "{error}");
        assert_eq!(compile(" ").unwrap(), []);
    }
}
