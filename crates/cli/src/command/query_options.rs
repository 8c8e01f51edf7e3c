//! Where a command that runs without a daemon is asked what it knows ([`crate::query`]).

use std::path::{Path, PathBuf};

use clap::Args;
use tonic::service::Routes;

use crate::error::Error;
use crate::output::say;
use crate::query::{Alone, QuerySocket};

/// The options for it.
#[derive(Args, Debug)]
pub struct QueryOptions {
    /// Where others ask what it knows: a path for a unix socket, or none [default: in
    /// /run/butterfly-alone, where they look]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl QueryOptions {
    /// Answers until what is returned is dropped. Packets matter more than questions: where no
    /// socket was asked for and none can be had, that is said and it goes on without.
    pub fn answer(&self, kind: Alone, services: Routes) -> Result<Option<QuerySocket>, Error> {
        let path = self.socket.as_deref();
        if path == Some(Path::new("none")) {
            return Ok(None);
        }
        match QuerySocket::bind(kind, path) {
            Ok(mut socket) => {
                socket.answer(services)?;
                Ok(Some(socket))
            }
            Err(why) if path.is_none() => {
                say(&format!("butterfly: nobody can ask what it knows: {why}\n"));
                Ok(None)
            }
            Err(why) => Err(Error::Usage(why)),
        }
    }
}
