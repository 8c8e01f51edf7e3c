//! One call of the program: its options, its connection (made by the first command that needs one
//! and kept for the rest of the chain) and its output.

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::options::{ENDPOINT_ENV, Global};
use crate::output::Output;

/// What the commands of a chain share.
pub struct Session {
    global: Global,
    client: Option<Client>,
    /// Where answers go.
    pub out: Output,
}

impl Session {
    /// A session without a connection yet.
    pub fn new(global: Global) -> Session {
        let out = Output::stdout(global.json);
        Session {
            global,
            client: None,
            out,
        }
    }

    /// The connection to the daemon, and where to print, for commands that print as they read.
    pub async fn client_and_output(&mut self) -> Result<(&mut Client, &mut Output), Error> {
        self.client().await?;
        let client = self.client.as_mut().expect("connected by the line above");
        Ok((client, &mut self.out))
    }

    /// A connection of its own to another daemon, with this call's TLS options and time-out.
    pub async fn connect_to(&self, endpoint: &str) -> Result<Client, Error> {
        Client::connect(Endpoint::parse(endpoint)?, &self.global).await
    }

    /// The connection to the daemon.
    pub async fn client(&mut self) -> Result<&mut Client, Error> {
        if self.client.is_none() {
            let from_env = std::env::var(ENDPOINT_ENV).ok();
            let endpoint = self.global.endpoint(from_env.as_deref())?;
            self.client = Some(Client::connect(endpoint, &self.global).await?);
        }
        Ok(self.client.as_mut().expect("set above"))
    }
}
