//! Which groups a user is in by the system's database. Where that is kept is the host's matter
//! (nsswitch.conf(5)): it may be another host, which takes its time or does not answer. So it is
//! asked in a thread for each user, once for all connections that wait for it, none of which waits
//! for long; nobody else waits at all. What is not known in time is not granted.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Uid, User as Account, getgrouplist};
use tokio::sync::watch;

/// How long a connection waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// For how long what was found is not asked for again.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// Users whose groups are kept for so long; those of others are asked for again.
const KNOWN_MAX: usize = 1024;
/// Users that are asked for at one time: one that hangs keeps its thread.
const ASKED_MAX: usize = 16;
/// Connections of one user that wait at one time.
const WAITING_MAX: usize = 16;

/// Cheap to clone.
#[derive(Clone)]
pub struct Directory(Arc<Shared>);

struct Shared {
    ask: Box<dyn Fn(u32) -> Found + Send + Sync>,
    patience: Duration,
    users: Mutex<BTreeMap<u32, User>>,
}

/// What the database says of a user. The error is a sentence.
type Found = Result<Vec<u32>, String>;

enum User {
    Asked(Arc<watch::Sender<Option<Found>>>),
    Known(Instant, Vec<u32>),
}

enum Answer {
    Known(Vec<u32>),
    /// It will be told there.
    Waiting(watch::Receiver<Option<Found>>),
}

impl Directory {
    /// As this host has it.
    pub fn of_host() -> Directory {
        Directory::by(PATIENCE, groups)
    }

    pub fn by(patience: Duration, ask: impl Fn(u32) -> Found + Send + Sync + 'static) -> Directory {
        Directory(Arc::new(Shared {
            ask: Box::new(ask),
            patience,
            users: Mutex::default(),
        }))
    }

    /// The groups of a user; the error is a sentence that says why they are not known.
    pub async fn groups(&self, uid: u32) -> Found {
        let mut answer = match self.begin(uid)? {
            Answer::Known(groups) => return Ok(groups),
            Answer::Waiting(answer) => answer,
        };
        match tokio::time::timeout(self.0.patience, answer.wait_for(Option::is_some)).await {
            Ok(Ok(found)) => found.clone().unwrap_or_else(|| Err(ended())),
            Ok(Err(_)) => Err(ended()),
            Err(_) => Err(format!(
                "the groups of uid {uid} were not found out in {} s",
                self.0.patience.as_secs_f32()
            )),
        }
    }

    fn begin(&self, uid: u32) -> Result<Answer, String> {
        let mut users = self.lock();
        users.retain(|_, user| match user {
            User::Asked(_) => true,
            User::Known(at, _) => at.elapsed() < KNOWN_FOR,
        });
        match users.get(&uid) {
            Some(User::Known(_, groups)) => return Ok(Answer::Known(groups.clone())),
            Some(User::Asked(asked)) if asked.receiver_count() < WAITING_MAX => {
                return Ok(Answer::Waiting(asked.subscribe()));
            }
            Some(User::Asked(_)) => {
                return Err(format!(
                    "{WAITING_MAX} connections of uid {uid} wait until its groups are found out"
                ));
            }
            None => (),
        }
        let asked = users.values().filter(|user| matches!(user, User::Asked(_)));
        if asked.count() >= ASKED_MAX {
            return Err(format!(
                "the groups of {ASKED_MAX} other users are being found out"
            ));
        }
        let (sender, receiver) = watch::channel(None);
        let sender = Arc::new(sender);
        let (directory, answer) = (self.clone(), sender.clone());
        // Of the runtime's own threads a hanging one would keep the daemon from ending.
        let thread = std::thread::Builder::new().name("user-groups".into());
        thread
            .spawn(move || directory.ask(uid, &answer))
            .map_err(|e| format!("the groups of uid {uid} cannot be found out: {e}"))?;
        users.insert(uid, User::Asked(sender));
        Ok(Answer::Waiting(receiver))
    }

    fn ask(&self, uid: u32, answer: &watch::Sender<Option<Found>>) {
        let found = (self.0.ask)(uid);
        let mut users = self.lock();
        match &found {
            Ok(groups) if users.len() <= KNOWN_MAX => {
                users.insert(uid, User::Known(Instant::now(), groups.clone()));
            }
            _ => drop(users.remove(&uid)),
        }
        drop(users);
        answer.send_replace(Some(found));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, User>> {
        self.0.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ended() -> String {
    "the groups were not found out".to_owned()
}

/// A user that the database does not know is in none of its groups.
fn groups(uid: u32) -> Found {
    let failed = |e: nix::Error| format!("the groups of uid {uid} cannot be found out: {e}");
    let Some(user) = Account::from_uid(Uid::from_raw(uid)).map_err(failed)? else {
        return Ok(Vec::new());
    };
    let name = CString::new(user.name).unwrap_or_default();
    let listed = getgrouplist(&name, user.gid).map_err(failed)?;
    Ok(listed.into_iter().map(Gid::as_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn groups_are_the_database_s() {
        assert!(groups(0).unwrap().contains(&0), "root is in root's group");
        assert_eq!(groups(4_000_000_000), Ok(vec![]));
    }

    const SOON: Duration = Duration::from_secs(2);

    /// A directory that does not answer for these users before it is let go on.
    fn hanging_for(hangs: impl Fn(u32) -> bool + Send + Sync + 'static) -> (Directory, Arc<Hold>) {
        let hold = Arc::new(Hold::default());
        let held = hold.clone();
        let directory = Directory::by(SOON, move |uid| {
            held.asked.fetch_add(1, Ordering::SeqCst);
            if hangs(uid) {
                let go_on = held.go_on.lock().unwrap();
                drop(held.told.wait_while(go_on, |go_on| !*go_on).unwrap());
            }
            Ok(vec![uid + 1])
        });
        (directory, hold)
    }

    #[derive(Default)]
    struct Hold {
        asked: AtomicUsize,
        go_on: Mutex<bool>,
        told: std::sync::Condvar,
    }

    impl Hold {
        fn go_on(&self) {
            *self.go_on.lock().unwrap() = true;
            self.told.notify_all();
        }
    }

    #[tokio::test]
    async fn who_is_not_answered_for_is_waited_for_so_long_and_keeps_nobody_else() {
        let (directory, hold) = hanging_for(|uid| uid == 7);
        let waiting = tokio::spawn({
            let directory = directory.clone();
            async move { directory.groups(7).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(directory.groups(8).await, Ok(vec![9]));
        let why = waiting.await.unwrap().unwrap_err();
        assert_eq!(why, "the groups of uid 7 were not found out in 2 s");
        // The next one waits for the same answer, and what comes late is known to who comes later.
        assert!(directory.groups(7).await.is_err());
        assert_eq!(hold.asked.load(Ordering::SeqCst), 2);
        hold.go_on();
        while !matches!(directory.lock().get(&7), Some(User::Known(..))) {
            std::thread::yield_now();
        }
        assert_eq!(directory.groups(7).await, Ok(vec![8]));
        assert_eq!(hold.asked.load(Ordering::SeqCst), 2);
    }

    /// Connection after connection while nothing is answered takes neither threads nor connections
    /// without end.
    #[tokio::test]
    async fn what_hangs_is_bounded() {
        let (directory, hold) = hanging_for(|_| true);
        let ask = |uid| {
            let directory = directory.clone();
            tokio::spawn(async move { directory.groups(uid).await })
        };
        let of_one: Vec<_> = (0..WAITING_MAX + 1).map(|_| ask(1)).collect();
        tokio::task::yield_now().await;
        let others: Vec<_> = (2..ASKED_MAX as u32 + 2).map(ask).collect();
        let mut refused = Vec::new();
        for asking in of_one.into_iter().chain(others) {
            let why = asking.await.unwrap().unwrap_err();
            refused.extend(Some(why).filter(|why| !why.contains("in 2 s")));
        }
        assert_eq!(
            refused,
            [
                "16 connections of uid 1 wait until its groups are found out",
                "the groups of 16 other users are being found out"
            ]
        );
        assert_eq!(hold.asked.load(Ordering::SeqCst), ASKED_MAX);
        hold.go_on();
    }

    #[tokio::test]
    async fn what_the_database_refuses_is_said_and_asked_for_again() {
        let asked = AtomicUsize::new(0);
        let directory = Directory::by(SOON, move |uid| {
            match asked.fetch_add(1, Ordering::SeqCst) {
                0 => Err("no route to host".into()),
                _ => Ok(vec![uid]),
            }
        });
        assert_eq!(directory.groups(5).await, Err("no route to host".into()));
        assert_eq!(directory.groups(5).await, Ok(vec![5]));
    }
}
