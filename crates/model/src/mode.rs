//! How a feature is attached to an interface.

use std::fmt;

/// How a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel has made anything of a packet.
    Native,
    /// Behind the driver, for drivers that know nothing of XDP: slower, and every packet costs an
    /// skb.
    Generic,
    /// At tc ingress, where a packet is a buffer of the kernel's: for interfaces whose packets
    /// never were anything else. Checksums that are only begun and segments that are not cut yet
    /// stay whole.
    Tc,
}

impl Mode {
    /// At tc ingress, and not in XDP.
    pub fn is_tc(self) -> bool {
        self == Mode::Tc
    }

    /// Its name in sentences.
    pub fn words(self) -> &'static str {
        match self {
            Mode::Native => "native XDP",
            Mode::Generic => "generic XDP",
            Mode::Tc => "at tc ingress",
        }
    }

    /// As [`Mode::words`], with what makes packets of the interface the kernel's buffers ("veth")
    /// where that is the reason.
    pub fn words_on(self, buffers: Option<&str>) -> String {
        match (self, buffers) {
            (Mode::Tc, Some(kind)) => format!("{} ({kind})", self.words()),
            _ => self.words().to_owned(),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
            Mode::Tc => "tc",
        })
    }
}
