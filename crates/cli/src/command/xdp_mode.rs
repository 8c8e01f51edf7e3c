//! What commands that have a program attached to interfaces share: the names to give back,
//! `--mode`, and how answers call it.

use api::v1;
use clap::{Args, ValueEnum};

/// One interface or more.
#[derive(Args, Debug)]
pub struct Names {
    /// The interfaces' names
    #[arg(required = true, value_name = "INTERFACE")]
    pub names: Vec<String>,
}

/// How a program is attached.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In the driver
    Native,
    /// In the kernel's stack
    Generic,
    /// At tc ingress, for interfaces whose packets are the kernel's own buffers
    Tc,
}

impl Mode {
    /// The mode's value in requests.
    pub fn of(mode: Option<Mode>) -> v1::XdpMode {
        match mode {
            None => v1::XdpMode::Unspecified,
            Some(Mode::Native) => v1::XdpMode::Native,
            Some(Mode::Generic) => v1::XdpMode::Generic,
            Some(Mode::Tc) => v1::XdpMode::Tc,
        }
    }

    /// For programs of this process.
    pub fn xdp(self) -> xdp::Mode {
        match self {
            Mode::Native => xdp::Mode::Native,
            Mode::Generic => xdp::Mode::Generic,
            Mode::Tc => xdp::Mode::Tc,
        }
    }
}

/// Its name in sentences.
pub fn mode_words(mode: v1::XdpMode) -> &'static str {
    match mode {
        v1::XdpMode::Unspecified => "",
        v1::XdpMode::Native => xdp::Mode::Native.words(),
        v1::XdpMode::Generic => xdp::Mode::Generic.words(),
        v1::XdpMode::Tc => xdp::Mode::Tc.words(),
    }
}

/// Empty for an interface that is not there at the moment.
pub fn mode_name(mode: v1::XdpMode) -> &'static str {
    match mode {
        v1::XdpMode::Unspecified => "",
        v1::XdpMode::Native => "native",
        v1::XdpMode::Generic => "generic",
        v1::XdpMode::Tc => "tc",
    }
}
