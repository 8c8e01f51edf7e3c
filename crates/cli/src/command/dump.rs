//! `butterfly dump`: the configuration as requests of API v0, which `butterfly request` (and the
//! original's) sends.

use api::text_format;
use serde_json::json;

use crate::error::Error;
use crate::output::say;
use crate::session::Session;
use crate::translate::requests;

/// Shown behind the help.
pub const EXAMPLE: &str = "\
What the format cannot say is left out, with a warning on stderr; a rule that it cannot say makes
the dump fail. Over API v0 the daemon tells neither ICMP types nor SCTP ports: dump over API v1.
`butterfly config` loses nothing.

Example:
  butterfly dump > saved; butterfly request saved";

/// Prints the configuration as requests of API v0.
pub async fn run(session: &mut Session) -> Result<(), Error> {
    let config = session.client().await?.config().await?;
    let (messages, warnings) = requests::from_config(&config).map_err(|what| {
        Error::Usage(format!(
            "{} cannot be said in API v0: use `butterfly config`",
            what.0
        ))
    })?;
    for warning in warnings {
        say(&format!(
            "butterfly: warning: {warning}: left out of the dump\n"
        ));
    }
    let text = text_format::print(&messages);
    match session.out.json {
        true => session.out.value(&json!({ "messages": text })),
        false => session.out.text(&text),
    }
}
