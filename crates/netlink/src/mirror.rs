//! The mirror: a task that keeps the tables in step with the kernel and publishes them. See the
//! crate's theory.

use crate::error::Error;
use crate::message::messages;
use crate::model::Snapshot;
use crate::resync::{Resync, What};
use crate::socket::Socket;
use crate::tables::Tables;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How many datagrams are taken in before what they changed is published.
const BATCH: usize = 1024;
/// Between a change that leaves doubt and the question: the kernel tells of the cause before it has
/// removed the routes.
const DOUBT: Duration = Duration::from_millis(20);
/// Between a change that leaves doubt and the second question about what goes without a word: the
/// kernel tells of the cause before it begins to remove routes and objects, takes longer for many,
/// and works out operational states once a second.
const SECOND_LOOK: Duration = Duration::from_secs(2);
/// Between failures of the sockets.
const RETRY: Duration = Duration::from_secs(1);
/// Before the tables are asked for again that the kernel could not tell to their end, at the start,
/// and how often they are asked for: it may be out of memory for a moment.
const START_RETRY: Duration = Duration::from_millis(200);
const START_TRIES: u32 = 5;

/// Which kinds of things changed: a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// Nothing.
    pub const NONE: Kinds = Kinds(0);
    /// [`Snapshot::links`].
    pub const LINKS: Kinds = Kinds(1);
    /// [`Snapshot::addresses`].
    pub const ADDRESSES: Kinds = Kinds(2);
    /// [`Snapshot::routes`].
    pub const ROUTES: Kinds = Kinds(4);
    /// [`Snapshot::nexthops`].
    pub const NEXTHOPS: Kinds = Kinds(8);
    /// [`Snapshot::rules`].
    pub const RULES: Kinds = Kinds(16);
    /// [`Snapshot::neighbours`].
    pub const NEIGHBOURS: Kinds = Kinds(32);
    /// [`Snapshot::settings`].
    pub const SETTINGS: Kinds = Kinds(64);
    /// Everything.
    pub const ALL: Kinds = Kinds(127);

    /// Whether any of `other` is among them.
    pub fn any(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::BitOrAssign for Kinds {
    fn bitor_assign(&mut self, other: Kinds) {
        self.0 |= other.0;
    }
}

impl std::ops::BitOr for Kinds {
    type Output = Kinds;

    fn bitor(mut self, other: Kinds) -> Kinds {
        self |= other;
        self
    }
}

/// How often each kind has changed: two of them tell what changed between, however long ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Versions([u64; 7]);

impl Versions {
    fn count(&mut self, kinds: Kinds) {
        for (bit, version) in self.0.iter_mut().enumerate() {
            *version += u64::from(kinds.0 >> bit & 1);
        }
    }

    fn since(&self, before: &Versions) -> Kinds {
        let differs = |bit: usize| u8::from(self.0[bit] != before.0[bit]) << bit;
        Kinds((0..7).map(differs).sum())
    }
}

/// The tables of one network namespace, kept in step until this is dropped.
#[derive(Debug)]
pub struct Mirror {
    published: watch::Receiver<Arc<Snapshot>>,
    task: JoinHandle<()>,
}

impl Mirror {
    /// Starts to follow the namespace of the calling thread; returns when everything there is has
    /// been read. Must be called within a tokio runtime that has time and I/O enabled.
    pub async fn start() -> Result<Mirror, Error> {
        let failed = |source| Error::Socket {
            action: "read",
            source,
        };
        let mut follower = Follower::new()?;
        follower.read_all().await.map_err(failed)?;
        let (sender, published) = watch::channel(Arc::new(follower.tables.now.clone()));
        let task = tokio::spawn(follower.run(sender));
        Ok(Mirror { published, task })
    }

    /// The tables as they are now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.published.borrow().clone()
    }

    /// To be told of changes from now on.
    pub fn watch(&self) -> Watch {
        let published = self.published.clone();
        let seen = published.borrow().versions;
        Watch { published, seen }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One reader's place in the stream of snapshots.
#[derive(Clone, Debug)]
pub struct Watch {
    published: watch::Receiver<Arc<Snapshot>>,
    seen: Versions,
}

impl Watch {
    /// The tables as they are now; does not count as seen.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.published.borrow().clone()
    }

    /// Waits until something differs from what this reader saw last, however many changes that
    /// took. Can be dropped and called again: nothing is lost. Fails when the mirror is gone.
    pub async fn changed(&mut self) -> Result<(Arc<Snapshot>, Kinds), Error> {
        loop {
            let now = self.published.borrow_and_update().clone();
            let kinds = now.versions.since(&self.seen);
            if !kinds.is_empty() {
                self.seen = now.versions;
                return Ok((now, kinds));
            }
            self.published.changed().await.map_err(|_| Error::Ended)?;
        }
    }
}

/// What the task works with.
struct Follower {
    groups: Socket,
    asking: Socket,
    tables: Tables,
    resync: Option<Resync>,
    questions: Questions,
    sequence: u32,
}

/// What to ask the kernel for, and when. No clock: the caller says what time it is.
#[derive(Debug, Default)]
struct Questions {
    /// What is in doubt, soon after that began.
    first: Question,
    /// What goes without a word, once more when the last doubt is long past.
    second: Question,
}

#[derive(Debug, Default)]
struct Question {
    what: BTreeSet<What>,
    at: Option<Instant>,
}

impl Questions {
    fn add(&mut self, doubt: BTreeSet<What>, now: Instant) {
        if doubt.is_empty() {
            return;
        }
        let all = doubt.iter().copied();
        let silent: BTreeSet<What> = all.filter(|what| what.goes_silently()).collect();
        if !silent.is_empty() {
            self.second.what.extend(silent);
            self.second.at = Some(now + SECOND_LOOK);
        }
        self.first.what.extend(doubt);
        self.first.at.get_or_insert(now + DOUBT);
    }

    /// When the next one is to be asked.
    fn next(&self) -> Option<Instant> {
        self.first.at.into_iter().chain(self.second.at).min()
    }

    /// What is to be asked for now; it is not asked for again then.
    fn take(&mut self, now: Instant) -> BTreeSet<What> {
        let mut wanted = BTreeSet::new();
        for question in [&mut self.first, &mut self.second] {
            if question.at.is_some_and(|at| at <= now) {
                question.at = None;
                wanted.append(&mut question.what);
            }
        }
        wanted
    }
}

impl Follower {
    fn new() -> Result<Follower, Error> {
        Ok(Follower {
            // Subscribed first: nothing that happens during the dump is missed.
            groups: Socket::listening()?,
            asking: Socket::new()?,
            tables: Tables::default(),
            resync: None,
            questions: Questions::default(),
            sequence: 1,
        })
    }

    /// Reads everything that there is. What fails is tried a few times: nobody has any tables yet.
    async fn read_all(&mut self) -> io::Result<()> {
        for _ in 1..START_TRIES {
            let Err(error) = self.read_once().await else {
                return Ok(());
            };
            tracing::warn!("netlink: {error}; asking the kernel for everything again");
            self.give_up();
            tokio::time::sleep(START_RETRY).await;
        }
        self.read_once().await
    }

    async fn read_once(&mut self) -> io::Result<()> {
        self.begin(What::all())?;
        while self.resync.is_some() {
            self.step().await?;
        }
        Ok(())
    }

    async fn run(mut self, sender: watch::Sender<Arc<Snapshot>>) {
        loop {
            let kinds = match self.step().await {
                Ok(kinds) => kinds,
                Err(error) => {
                    tracing::warn!("netlink: {error}; asking the kernel for everything again");
                    tokio::time::sleep(RETRY).await;
                    self.recover()
                }
            };
            if kinds.is_empty() {
                continue;
            }
            sender.send_replace(Arc::new(self.tables.now.clone()));
        }
    }

    /// Waits for one thing to happen, and does what it asks for. Says what changed.
    async fn step(&mut self) -> io::Result<Kinds> {
        let question = self.questions.next().filter(|_| self.resync.is_none());
        let in_doubt = async {
            match question {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let kinds = tokio::select! {
            heard = self.groups.receive() => match heard {
                Ok(datagram) => {
                    let kinds = take(&mut self.tables, &mut self.resync, datagram);
                    kinds | self.receive_more()?
                }
                Err(error) => self.overflowed(error)?,
            },
            answer = self.asking.receive(), if self.resync.is_some() => {
                let datagram = answer?.to_vec();
                self.answered(&datagram)?
            }
            () = in_doubt => {
                let wanted = self.questions.take(Instant::now());
                if !wanted.is_empty() {
                    self.begin(wanted)?;
                }
                Kinds::NONE
            }
        };
        let doubt = std::mem::take(&mut self.tables.doubt);
        self.questions.add(doubt, Instant::now());
        self.tables.now.versions.count(kinds);
        Ok(kinds)
    }

    /// What else is there already, up to a batch.
    fn receive_more(&mut self) -> io::Result<Kinds> {
        let mut kinds = Kinds::NONE;
        for _ in 1..BATCH {
            match self.groups.try_receive() {
                Ok(Some(datagram)) => kinds |= take(&mut self.tables, &mut self.resync, datagram),
                Ok(None) => break,
                Err(error) => return Ok(kinds | self.overflowed(error)?),
            }
        }
        Ok(kinds)
    }

    /// The kernel could not keep all that it had to say: everything is in doubt.
    fn overflowed(&mut self, error: io::Error) -> io::Result<Kinds> {
        if error.raw_os_error() != Some(rustix::io::Errno::NOBUFS.raw_os_error()) {
            return Err(error);
        }
        tracing::info!(
            "netlink: more changes than could be read; asking the kernel for everything again"
        );
        self.tables.doubt = What::all();
        Ok(Kinds::NONE)
    }

    fn answered(&mut self, datagram: &[u8]) -> io::Result<Kinds> {
        let Some(resync) = &mut self.resync else {
            return Ok(Kinds::NONE);
        };
        if !resync.take(&self.asking, datagram)? {
            return Ok(Kinds::NONE);
        }
        let mut kinds = Kinds::NONE;
        if let Some(done) = self.resync.take() {
            self.sequence = done.sequence();
            if done.overflowed {
                self.tables.doubt.extend(done.wanted);
                return Ok(kinds);
            }
            for what in &done.wanted {
                kinds |= self.tables.replace(*what, &done.fresh);
            }
            for datagram in done.buffered() {
                kinds |= take(&mut self.tables, &mut None, datagram);
            }
        }
        Ok(kinds)
    }

    fn begin(&mut self, wanted: BTreeSet<What>) -> io::Result<()> {
        self.resync = Some(Resync::start(
            &self.asking,
            wanted,
            self.sequence,
            self.tables.for_dump(),
        )?);
        Ok(())
    }

    /// No more is expected of a dump; what still comes of it is no answer to the next.
    fn give_up(&mut self) {
        self.sequence = self.sequence.wrapping_add(1 << 16);
        self.resync = None;
    }

    /// New sockets would be of whatever namespace this thread is in; the old ones are kept, and
    /// everything is doubted.
    fn recover(&mut self) -> Kinds {
        self.give_up();
        self.questions.add(What::all(), Instant::now());
        Kinds::NONE
    }
}

/// Applies a datagram of the groups, and keeps it for the end of a dump that is under way.
fn take(tables: &mut Tables, resync: &mut Option<Resync>, datagram: &[u8]) -> Kinds {
    if let Some(resync) = resync {
        resync.buffer(datagram);
    }
    let mut kinds = Kinds::NONE;
    for message in messages(datagram) {
        kinds |= tables.apply(&message);
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Family;

    const ROUTES: What = What::Routes(Family::V4);
    const RULES: What = What::Rules(Family::V4);

    #[test]
    fn what_goes_without_a_word_is_asked_for_twice() {
        let start = Instant::now();
        let mut questions = Questions::default();
        questions.add(BTreeSet::from([ROUTES, RULES]), start);
        assert_eq!(questions.take(start), BTreeSet::new(), "too early");
        assert_eq!(questions.next(), Some(start + DOUBT));
        let both = BTreeSet::from([ROUTES, RULES]);
        assert_eq!(questions.take(start + DOUBT), both);
        assert_eq!(questions.next(), Some(start + SECOND_LOOK));
        let routes = BTreeSet::from([ROUTES]);
        assert_eq!(questions.take(start + SECOND_LOOK), routes);
        assert_eq!(questions.next(), None, "there is no third time");
        questions.add(BTreeSet::from([RULES]), start);
        questions.take(start + DOUBT);
        assert_eq!(questions.next(), None, "of rules the kernel tells all");
    }

    /// An interface that goes up and down all the time.
    #[test]
    fn a_hundred_doubts_are_a_hundred_and_one_questions() {
        let start = Instant::now();
        let mut questions = Questions::default();
        let mut asked = 0;
        let mut last = start;
        for flap in 0..100 {
            last = start + DOUBT * 2 * flap;
            questions.add(BTreeSet::from([ROUTES]), last);
            let now = questions.next().unwrap();
            assert_eq!(now, last + DOUBT, "the second look waits for the end");
            asked += usize::from(!questions.take(now).is_empty());
        }
        while let Some(now) = questions.next() {
            assert_eq!(now, last + SECOND_LOOK);
            asked += usize::from(!questions.take(now).is_empty());
        }
        assert_eq!(asked, 101);
    }

    /// A dump is given up amid its answers, and maybe goes on in the kernel, which then refuses the
    /// next one: all is read all the same.
    #[tokio::test]
    async fn behind_a_dump_that_failed_everything_is_read() {
        let mut follower = Follower::new().unwrap();
        follower.begin(What::all()).unwrap();
        follower.give_up();
        follower.read_all().await.unwrap();
        assert!(follower.tables.now.link_named("lo").is_some());
    }
}
