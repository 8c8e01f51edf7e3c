//! One call of the program: its options, its connection (made by the first command that needs one
//! and kept for the rest of the chain) and its output.

use serde_json::{Value, json};

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::options::{ENDPOINT_ENV, Global};
use crate::output::Output;
use crate::query::{self, Alone};

/// What the commands of a chain share.
pub struct Session {
    global: Global,
    client: Option<Client>,
    /// What the command that runs has changed so far.
    done: Vec<Value>,
    /// Another command follows the one that runs.
    more: bool,
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
            done: Vec::new(),
            more: false,
            out,
        }
    }

    /// A change is in force, of the thing that the API calls `kind`: `--json` prints it.
    pub fn done(&mut self, kind: &str, name: impl Into<Value>) {
        self.done_with(json!({ kind: name.into() }));
    }

    /// See [`Session::done`], for what has more than a name.
    pub fn done_with(&mut self, change: Value) {
        self.done.push(change);
    }

    /// Prints what the command has changed. To be called behind each command, also one that failed:
    /// what it did before is done.
    pub fn finish(&mut self) -> Result<(), Error> {
        let done = std::mem::take(&mut self.done);
        if self.out.json && !done.is_empty() {
            self.out.value(&json!({ "done": done }))?;
        }
        self.out.flush()
    }

    /// To be called before each command: whether another one follows.
    pub fn goes_on(&mut self, more: bool) {
        self.more = more;
        if let Some(Client::V1(v1)) = &self.client {
            v1.goes_on(more);
        }
    }

    /// The connection to the daemon, and where to print, for commands that print as they read.
    pub async fn client_and_output(&mut self) -> Result<(&mut Client, &mut Output), Error> {
        self.client().await?;
        let client = self.client.as_mut().expect("connected by the line above");
        Ok((client, &mut self.out))
    }

    /// To be called before what a router or a load balancer is asked: where nobody has said where
    /// the daemon is, and none is where it is by default, one that runs alone is asked.
    pub async fn prefer_alone(&mut self, kind: Alone) -> Result<(), Error> {
        let from_env = std::env::var(ENDPOINT_ENV).ok();
        let named = self.global.names_an_endpoint(from_env.as_deref());
        if self.client.is_some() || named || Endpoint::default_is_there() {
            return Ok(());
        }
        let running = query::running(kind);
        match running.as_slice() {
            // Who connects to the daemon's place says that nobody is there.
            [] => Ok(()),
            [one] => {
                let endpoint = Endpoint::parse(one)?;
                self.client = Some(Client::connect(endpoint, &self.global).await?);
                Ok(())
            }
            several => Err(Error::Usage(format!(
                "{} `butterfly {kind}` run here: say which is meant by one of -e {}",
                several.len(),
                several.join(", -e ")
            ))),
        }
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
            self.goes_on(self.more);
        }
        Ok(self.client.as_mut().expect("set above"))
    }
}
