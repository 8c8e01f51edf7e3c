//! Interfaces as messages name them: what the services of the load balancer and of the router
//! share.

use api::v1;
use control::Error;
use control::model::{Interface, Mode};

/// An interface that a feature is to work on.
pub fn wanted(name: &str, mode: i32) -> Result<Interface, Error> {
    Interface::new(name, self::mode(name, mode)?)
}

/// The name of an interface.
pub fn name(name: &str) -> Result<String, Error> {
    Ok(Interface::new(name, None)?.name)
}

/// The mode that is asked of an interface; none: whichever there is.
fn mode(name: &str, mode: i32) -> Result<Option<Mode>, Error> {
    match v1::XdpMode::try_from(mode) {
        Ok(v1::XdpMode::Unspecified) => Ok(None),
        Ok(v1::XdpMode::Native) => Ok(Some(Mode::Native)),
        Ok(v1::XdpMode::Generic) => Ok(Some(Mode::Generic)),
        Ok(v1::XdpMode::Tc) => Ok(Some(Mode::Tc)),
        Err(_) => {
            let why = format!("interface {name}: mode '{mode}' is not known");
            Err(Error::Invalid(why))
        }
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
