//! One VMM's socket: bytes in, messages to the session, replies out. Never waits.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sys::fd_message;
use sys::poll::{Interest, Poller};
use tracing::warn;

use crate::port::Port;
use crate::vhost::nic_options::NicOptions;
use crate::vhost::protocol::channel::{Channel, ChannelError};
use crate::vhost::protocol::message::{FDS_MAX, MessageError, Problem, Reader};
use crate::vhost::protocol::saved::{LeftError, Saved};
use crate::vhost::protocol::session::{Outcome, Session};
use crate::vhost::protocol::sink::PortState;

/// Reads from one VMM, of a message each at most, before the others have their turn,
const TURN: usize = 64;
/// and how long they may take together: some of what a VMM says costs milliseconds, such as a ring
/// that begins anew.
const TURN_WITHIN: Duration = Duration::from_millis(5);

pub(in crate::vhost) struct Connection {
    socket: OwnedFd,
    reader: Reader,
    /// What is still to be sent. Nothing more is read before it is empty: a VMM that does not take
    /// its replies fills its own queue and nothing of ours.
    out: Vec<u8>,
    /// What goes with the first byte of it.
    descriptor: Option<OwnedFd>,
    /// To be closed when `out` has been sent.
    closing: bool,
    /// What its socket is waited for.
    interest: Interest,
    /// Where the VMM is told of changes, if it has given a way. In the poller.
    channel: Option<Channel>,
    session: Session,
}

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vhost) enum Progress {
    /// More to read, now or later.
    Reading,
    /// Room to write.
    Writing,
    /// The session's [`try_again`](Session::try_again), at this time or at the bell.
    Parked(Instant),
    /// Nothing: the VMM has gone.
    Gone,
    /// Nothing: the VMM has broken the protocol, which has been logged.
    Broken,
}

impl Connection {
    /// A message is half read or half answered.
    pub fn is_amid(&self) -> bool {
        let is_parked = self.session.waits_until(Instant::now()).is_some();
        self.reader.is_partial() || !self.out.is_empty() || self.closing || is_parked
    }

    /// Bytes and descriptors of it that the next process needs to go on; `None`: there is a message
    /// half read or half answered, or the session does not outlive this process. `path`: where the
    /// connection was made.
    pub fn saved(
        &self,
        path: &[u8],
        network: Option<u32>,
    ) -> Option<(Vec<u8>, Vec<BorrowedFd<'_>>)> {
        if self.is_amid() {
            return None;
        }
        let channel = self.channel.as_ref().map(AsFd::as_fd);
        let saved = self.session.saved()?;
        Some(saved.encode(path, network, self.socket.as_fd(), channel))
    }

    /// Has the session set up as a process before has left it.
    pub fn prepare(&mut self, saved: Saved<OwnedFd>) -> Result<(), LeftError> {
        self.session.prepare(saved)
    }

    /// Goes on with a session that is [set up](Self::prepare): the poller is to report its socket
    /// as `token`. With the channel to its VMM, if there is one, and what that is reported as.
    pub fn go_on(
        &mut self,
        poller: &Poller,
        token: u64,
        channel: Option<(OwnedFd, u64)>,
    ) -> Result<(), LeftError> {
        let no_room = |_| LeftError("has no room here");
        poller.add(self.as_fd(), token).map_err(no_room)?;
        self.session.go_on();
        if let Some((socket, token)) = channel {
            self.open_channel(socket, poller, token);
        }
        Ok(())
    }

    pub fn new(socket: OwnedFd, session: Session) -> Self {
        let (reader, interest) = (Reader::new(), Interest::Read);
        Connection {
            socket,
            reader,
            out: Vec::new(),
            descriptor: None,
            closing: false,
            interest,
            channel: None,
            session,
        }
    }

    /// Does what can be done without waiting, within limits. A channel to the VMM that comes is to
    /// be reported by the poller as `channel`.
    pub fn serve(&mut self, poller: &Poller, channel: u64) -> Progress {
        let mut turn = Turn::new(Instant::now());
        loop {
            match self.send() {
                Ok(true) if self.closing => return Progress::Broken,
                Ok(true) => {}
                Ok(false) => return Progress::Writing,
                Err(_) => return Progress::Gone,
            }
            match self.unpark() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(progress) => return progress,
            }
            // Only here, when the reply to what was read last has gone: a VMM may wait for it and
            // say nothing before.
            if !turn.goes_on(Instant::now()) {
                return Progress::Reading;
            }
            match self.receive() {
                Ok(true) => {}
                Ok(false) => return Progress::Reading,
                Err(progress) => return progress,
            }
            if let Some(socket) = self.session.take_channel() {
                self.open_channel(socket, poller, channel);
            }
        }
    }

    /// Has the session go on with the message that it has read last. False when that waits for
    /// nothing, an error when it waits still.
    fn unpark(&mut self) -> Result<bool, Progress> {
        let now = Instant::now();
        if self.session.waits_until(now).is_none() {
            return Ok(false);
        }
        let outcome = self.session.try_again(now);
        if let Some(until) = self.session.waits_until(now) {
            // Its end is reported for as long as it is not served.
            return Err(match self.is_peer_gone() {
                true => Progress::Gone,
                false => Progress::Parked(until),
            });
        }
        self.follow(outcome);
        Ok(true)
    }

    fn follow(&mut self, outcome: Outcome) {
        self.out = outcome.reply.unwrap_or_default();
        self.descriptor = self.session.take_descriptor();
        self.closing = outcome.close;
    }

    /// True when the VMM's end is closed, whatever it left to be read.
    pub fn is_peer_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let _ = rustix::event::poll(&mut fds, Some(&now));
        fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Notes what the socket is waited for; false if it is that already.
    pub fn change_interest(&mut self, interest: Interest) -> bool {
        std::mem::replace(&mut self.interest, interest) != interest
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The NIC's options are others: tells the VMM what it is to know at once. False when there is
    /// something and it cannot be told.
    pub fn change(&mut self, nic: &NicOptions, poller: &Poller) -> bool {
        if !self.session.change(nic) {
            return true;
        }
        if !self.session.reads_config() {
            return false;
        }
        let acks = self.session.has_acks();
        self.with_channel(poller, |channel| channel.config_changed(acks));
        self.channel.is_some()
    }

    /// [`Session::take_port`].
    pub fn take_port(&mut self, pair: u16, port: Option<Port>) {
        self.session.take_port(pair, port);
    }

    /// Gives the workers what they had.
    pub fn give_ports(&mut self) {
        self.session.give_ports();
    }

    /// [`Session::pages_came`].
    pub fn pages_came(&mut self) {
        self.session.pages_came();
    }

    /// [`Session::retry`].
    pub fn retry(&mut self) -> PortState {
        self.session.retry()
    }

    /// Something has come on the channel to the VMM.
    pub fn serve_channel(&mut self, poller: &Poller) {
        self.with_channel(poller, Channel::read);
    }

    fn with_channel(
        &mut self,
        poller: &Poller,
        what: impl FnOnce(&mut Channel) -> Result<(), ChannelError>,
    ) {
        if let Some(channel) = &mut self.channel
            && let Err(error) = what(channel)
        {
            self.session.lost_channel(error);
            self.close_channel(poller);
        }
    }

    fn open_channel(&mut self, socket: OwnedFd, poller: &Poller, token: u64) {
        self.close_channel(poller);
        match poller.add(socket.as_fd(), token) {
            Ok(()) => self.channel = Some(Channel::new(socket)),
            Err(error) => warn!("vhost-user: the channel to a VMM cannot be waited for: {error}"),
        }
    }

    fn close_channel(&mut self, poller: &Poller) {
        if let Some(channel) = self.channel.take() {
            let _ = poller.remove(channel.as_fd());
        }
    }

    /// Ends it for its VMM, also where another process has the socket.
    pub fn shut(&self) {
        // One that has ended already is not connected.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Closes the sockets and ends the session.
    pub fn end(mut self, poller: &Poller) {
        self.close_channel(poller);
        let _ = poller.remove(self.socket.as_fd());
        drop(self.socket);
        self.session.end();
    }

    /// [`Session::forget`], before the poller has its socket.
    pub fn forget(self) {
        self.session.forget();
    }

    /// True when everything was sent.
    fn send(&mut self) -> Result<bool, Errno> {
        while !self.out.is_empty() {
            let descriptor = self.descriptor.as_ref().map(|fd| fd.as_fd());
            let bytes = [IoSlice::new(&self.out)];
            let flags = SendFlags::DONTWAIT;
            match fd_message::send(&self.socket, &bytes, descriptor.as_slice(), flags) {
                Ok(sent) => {
                    self.descriptor = None;
                    self.out.drain(..sent);
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads once, and handles the message if that completed one. False when there is nothing to
    /// read.
    fn receive(&mut self) -> Result<bool, Progress> {
        let (space, flags) = (self.reader.space(), RecvFlags::DONTWAIT);
        let received = match fd_message::receive(&self.socket, space, FDS_MAX, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(false),
            Err(_) => return Err(Progress::Gone),
        };
        if received.fds_lost {
            let request = self.reader.request();
            return Err(self.broken(MessageError {
                request,
                problem: Problem::DescriptorsLost,
            }));
        }
        if received.len == 0 {
            return Err(Progress::Gone);
        }
        match self.reader.filled(received.len, received.fds) {
            Ok(None) => {}
            Ok(Some(message)) => {
                let outcome = self.session.handle(message, Instant::now());
                self.follow(outcome);
            }
            Err(error) => return Err(self.broken(error)),
        }
        Ok(true)
    }

    fn broken(&mut self, error: MessageError) -> Progress {
        self.session.unreadable(error);
        Progress::Broken
    }
}

/// What is read from one VMM before the others have their turn.
struct Turn {
    began: Instant,
    reads: usize,
}

impl Turn {
    fn new(began: Instant) -> Turn {
        Turn { began, reads: 0 }
    }

    /// Whether there is to be another read; the first one always.
    fn goes_on(&mut self, now: Instant) -> bool {
        let lasts = now.duration_since(self.began) < TURN_WITHIN;
        let goes_on = self.reads == 0 || self.reads < TURN && lasts;
        self.reads += 1;
        goes_on
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_behind_so_many_reads_or_so_long() {
        let began = Instant::now();
        let mut turn = Turn::new(began);
        let reads = (0..1000).take_while(|_| turn.goes_on(began)).count();
        assert_eq!(reads, TURN);
        // One read of a kind that takes longer than a turn, and no other behind it.
        let mut turn = Turn::new(began);
        let late = began + TURN_WITHIN;
        assert!(turn.goes_on(late));
        assert!(!turn.goes_on(late));
        let mut turn = Turn::new(began);
        let at = |part: u32| began + TURN_WITHIN * part / 4;
        let reads = (1..).take_while(|part| turn.goes_on(at(*part))).count();
        assert_eq!(reads, 3);
    }
}
