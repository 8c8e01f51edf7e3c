//! Interfaces as messages name them: what the services of the load balancer and of the router
//! share.

use api::v1;
use xdp::Mode;

/// 1..15 bytes, as the kernel takes them. The error is a sentence.
pub fn name(name: &str) -> Result<String, String> {
    let fits = (1..=15).contains(&name.len())
        && !name.contains(['/', ':'])
        && !name.contains(char::is_whitespace);
    match fits {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "interface: name '{}' is no name of an interface",
            name.escape_debug()
        )),
    }
}

/// The mode that is asked of an interface; none: whichever there is. The error is a sentence.
pub fn mode(name: &str, mode: i32) -> Result<Option<Mode>, String> {
    match v1::XdpMode::try_from(mode) {
        Ok(v1::XdpMode::Unspecified) => Ok(None),
        Ok(v1::XdpMode::Native) => Ok(Some(Mode::Native)),
        Ok(v1::XdpMode::Generic) => Ok(Some(Mode::Generic)),
        Ok(v1::XdpMode::Tc) => Ok(Some(Mode::Tc)),
        Err(_) => Err(format!("interface {name}: mode '{mode}' is not known")),
    }
}

/// A mode as answers say it.
pub fn mode_of(mode: Option<Mode>) -> v1::XdpMode {
    match mode {
        None => v1::XdpMode::Unspecified,
        Some(Mode::Native) => v1::XdpMode::Native,
        Some(Mode::Generic) => v1::XdpMode::Generic,
        Some(Mode::Tc) => v1::XdpMode::Tc,
    }
}
