//! Sessions of a process before that this one goes on with: each has a connection made of what was
//! left, is made ready, and runs its rings. The first two can be done while that process serves
//! it still.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sys::poll::Poller;

use crate::vhost::protocol::connection::Connection;
use crate::vhost::protocol::saved::{LeftError, Saved};
use crate::vhost::protocol::sink::PortKey;

/// Threads that go on with sessions at once, and how many each is to have.
const THREADS_MAX: usize = 8;
const SESSIONS_OF_A_THREAD: usize = 8;

/// A session that is to go on.
pub(in crate::vhost) struct Left {
    pub key: PortKey,
    pub connection: Connection,
    /// The channel to its VMM.
    pub channel: Option<OwnedFd>,
    /// Its record, where what the keeper has of it stays valid.
    pub held: Option<Vec<u8>>,
    /// What its connection is still to be made ready with.
    pub saved: Option<Saved<OwnedFd>>,
}

impl Left {
    /// Makes it ready: what is left to be done is to run its rings.
    pub fn prepare(&mut self) -> Result<(), LeftError> {
        match self.saved.take() {
            Some(saved) => self.connection.prepare(saved),
            None => Ok(()),
        }
    }

    /// Its guest is here before its memory. To be asked before it is made ready.
    pub fn is_arriving(&self) -> bool {
        self.saved.as_ref().is_some_and(|saved| saved.arriving)
    }

    fn go_on(mut self, poller: &Poller, tokens: Tokens) -> WentOn {
        let (token, channel) = tokens(self.key);
        let how = self.prepare().and_then(|()| {
            let connection = &mut self.connection;
            connection.go_on(poller, token, self.channel.map(|socket| (socket, channel)))
        });
        WentOn {
            key: self.key,
            connection: Some(self.connection),
            held: self.held,
            how,
        }
    }
}

/// What has come of one.
pub(in crate::vhost) struct WentOn {
    pub key: PortKey,
    pub connection: Option<Connection>,
    /// As in [`Left`].
    pub held: Option<Vec<u8>>,
    pub how: Result<(), LeftError>,
}

impl WentOn {
    /// Which one it is, and why, if it does not go on.
    pub fn failed(&self) -> Option<(PortKey, LeftError)> {
        self.how.err().map(|why| (self.key, why))
    }

    pub fn no_further(key: PortKey, why: LeftError) -> WentOn {
        WentOn {
            key,
            connection: None,
            held: None,
            how: Err(why),
        }
    }
}

/// What the poller is to say of a session's connection, and of its channel.
pub(in crate::vhost) type Tokens = fn(PortKey) -> (u64, u64);

/// Goes on with all of these, on several threads: their guests stand still meanwhile.
pub(in crate::vhost) fn go_on_all(left: Vec<Left>, poller: &Poller, tokens: Tokens) -> Vec<WentOn> {
    let threads = threads_for(left.len());
    let done = Mutex::new(Vec::with_capacity(left.len()));
    let queue = Mutex::new(left.into_iter());
    let next = || lock(&queue).next();
    let go_on = || {
        while let Some(one) = next() {
            let went_on = one.go_on(poller, tokens);
            lock(&done).push(went_on);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let thread = std::thread::Builder::new().name("sessions".into());
            // What others cannot be had for this thread does.
            let _ = thread.spawn_scoped(scope, go_on);
        }
        go_on();
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// How many threads are to go on with so many sessions.
fn threads_for(sessions: usize) -> usize {
    let wanted = (sessions / SESSIONS_OF_A_THREAD).clamp(1, THREADS_MAX);
    if wanted == 1 {
        // How many processors there are takes reading files.
        return 1;
    }
    wanted.min(std::thread::available_parallelism().map_or(1, usize::from))
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
