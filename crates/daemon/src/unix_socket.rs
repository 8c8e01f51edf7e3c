//! A unix socket that an API listens on: made with its mode, taken over from a daemon that crashed,
//! removed at the end; and who may connect.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use control::model::{Nic, SocketAccess};
use io::vhost::SocketFile;
use nix::unistd::{Gid, Group, Uid, User as Account, getgroups};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::CapabilitySet;
use sys::held_name;
use sys::socket_file::{self, Listeners};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::access::{Access, Gate, Peer, User, Who};
use crate::lock;

/// The files of sockets are another daemon's now.
static LEFT: AtomicBool = AtomicBool::new(false);

/// From now on no file goes with this process: another daemon listens on the sockets.
pub fn leave_files() {
    LEFT.store(true, Ordering::SeqCst);
}

/// What the sockets of NICs are called.
const NIC_SOCKETS: &str = "qemu-vhost-";
/// Connections that wait to be accepted, as tokio has it.
const BACKLOG: i32 = 1024;
/// For how long what was looked up is not looked up again: by then the controller was waited for.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// Between a socket's bind and its listen; it refuses connections meanwhile.
const NOT_YET: Duration = Duration::from_millis(50);

/// Whose the sockets are of NICs that do not say it themselves.
#[derive(Debug, Clone)]
pub struct NicSockets {
    said: SocketFile,
    names: Names,
}

impl NicSockets {
    /// Of the daemon's options: [`owner_of`] and [`group_of`] say what is refused.
    pub fn new(
        owner: Option<&str>,
        group: Option<&str>,
        mode: Option<u32>,
    ) -> Result<NicSockets, String> {
        let names = Names::default();
        let owner = owner.map(|name| owner_of(&names, name, &format!("--vhost-owner {name}")));
        let group = group.map(|name| group_of(&names, name, &format!("--vhost-group {name}")));
        if let Some(mode) = mode.filter(|mode| for_all(*mode)) {
            tracing::warn!("--vhost-mode {mode:03o}: {FOR_ALL}");
        }
        let said = SocketFile {
            owner: owner.transpose()?,
            group: group.transpose()?,
            mode,
        };
        Ok(NicSockets { said, names })
    }

    /// What names mean: who holds the controller is not to wait for that.
    pub fn names(&self) -> Names {
        self.names.clone()
    }

    /// Whose that of this NIC is to be: as it says itself, and else as the options say.
    pub fn of(&self, nic: &Nic) -> Result<SocketFile, String> {
        let said = &nic.socket;
        let named = |field: &str, name: &str| format!("{field} '{}'", name.escape_debug());
        let owner = said.owner.as_deref();
        let owner = owner.map(|name| owner_of(&self.names, name, &named("socket owner", name)));
        let group = said.group.as_deref();
        let group = group.map(|name| group_of(&self.names, name, &named("socket group", name)));
        if let Some(mode) = said.mode.filter(|mode| for_all(*mode)) {
            tracing::warn!("NIC '{}': socket mode '{mode:03o}': {FOR_ALL}", nic.id);
        }
        let group = group.transpose()?.or(self.said.group);
        Ok(SocketFile {
            owner: owner.transpose()?.or(self.said.owner),
            group,
            // Who names a group means its members to connect.
            mode: said.mode.or(self.said.mode).or(group.map(|_| 0o660)),
        })
    }
}

/// Ids of users and groups by name, as they were looked up last. Where they are kept is the host's
/// matter (nsswitch.conf(5)): it may be another host, which takes its time or does not answer. So a
/// request has them looked up before it waits for the controller. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Names(Arc<Mutex<BTreeMap<Named, (Instant, Found)>>>);

/// A name, and of what.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    User(String),
    Group(String),
}

/// `None`: there is none of that name.
type Found = nix::Result<Option<u32>>;

impl Names {
    /// Looks up all that these NICs' sockets are to be given to, anew, and keeps it for the change
    /// that follows.
    pub fn look_up(&self, sockets: &[SocketAccess]) {
        let owners = sockets.iter().filter_map(|socket| socket.owner.clone());
        let groups = sockets.iter().filter_map(|socket| socket.group.clone());
        let asked = owners.map(Named::User).chain(groups.map(Named::Group));
        // No lock is held: other requests have names of their own.
        let found: BTreeMap<_, _> = asked.map(|named| (named, ())).collect();
        let found = found.into_keys().map(|named| {
            let id = named.look_up();
            (named, (Instant::now(), id))
        });
        let found: Vec<_> = found.collect();
        let mut known = self.known();
        known.retain(|_, (at, _)| at.elapsed() < KNOWN_FOR);
        known.extend(found);
    }

    /// What was looked up a moment ago, or is now.
    fn id(&self, named: Named) -> Found {
        let known = self.known().get(&named).cloned();
        if let Some((_, id)) = known.filter(|(at, _)| at.elapsed() < KNOWN_FOR) {
            return id;
        }
        // As at the start, when nobody else waits for the controller.
        let id = named.look_up();
        self.known().insert(named, (Instant::now(), id));
        id
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Named, (Instant, Found)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Named {
    fn look_up(&self) -> Found {
        let name = match self {
            Named::User(name) | Named::Group(name) => name,
        };
        // The largest number is nobody's, and no change to chown(2).
        let digits = name.bytes().all(|b| b.is_ascii_digit());
        let number = name
            .parse()
            .ok()
            .filter(|number| digits && *number != u32::MAX);
        match (self, number) {
            (_, Some(number)) => Ok(Some(number)),
            (Named::User(name), None) => {
                Ok(Account::from_name(name)?.map(|user| user.uid.as_raw()))
            }
            (Named::Group(name), None) => {
                Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
            }
        }
    }
}

const FOR_ALL: &str = "every user of this host may connect to it, as the guest; a group is for \
                       those who are meant";

/// Users may connect that neither own the socket nor are in its group.
fn for_all(mode: u32) -> bool {
    mode & 0o002 != 0
}

/// The user of a name or number, whom we may give files to: that takes CAP_CHOWN (chown(2)). Errors
/// begin with `what` it is for.
fn owner_of(names: &Names, name: &str, what: &str) -> Result<u32, String> {
    let uid = there_is(names.id(Named::User(name.to_owned())), what, "user")?;
    if uid != Uid::effective().as_raw() && !may_give() {
        return Err(format!(
            "{what}: giving files away needs CAP_CHOWN, which the daemon's unit can have \
             (docs/install.md); a group needs none that its user is in"
        ));
    }
    Ok(uid)
}

/// As [`owner_of`]: the owner of a file may give it to groups that it is in.
fn group_of(names: &Names, name: &str, what: &str) -> Result<u32, String> {
    let gid = there_is(names.id(Named::Group(name.to_owned())), what, "group")?;
    let is_it = |ours: &Gid| ours.as_raw() == gid;
    let ours = is_it(&Gid::effective()) || getgroups().is_ok_and(|all| all.iter().any(is_it));
    if !ours && !may_give() {
        return Err(format!(
            "{what}: the daemon's user is not in this group, which giving it sockets needs: \
             SupplementaryGroups={name} in the unit, or usermod -aG {name}"
        ));
    }
    Ok(gid)
}

fn there_is(found: Found, what: &str, kind: &str) -> Result<u32, String> {
    match found {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err(format!("{what}: there is no such {kind}")),
        Err(e) => Err(format!("{what}: {e}")),
    }
}

fn may_give() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::CHOWN))
}

/// The listening socket. Its file goes when this is dropped.
#[derive(Debug)]
pub struct ApiSocket {
    path: PathBuf,
    listener: UnixListener,
    /// Who has connected, and is asked for in the system's database.
    asked: JoinSet<Connected>,
}

/// Who has connected, and why it is not known which groups that is in, where it is not.
type Connected = (UnixStream, User, Option<String>);

impl ApiSocket {
    /// Binds to `path`; makes the directory when missing. Needs a tokio runtime.
    pub fn bind(path: &Path, access: &Access) -> Result<ApiSocket, String> {
        let failed =
            |e: &dyn std::fmt::Display| format!("cannot listen on {}: {e}", path.display());
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(|e| failed(&e))?;
        }
        remove_stale(path)?;
        let listener = UnixListener::bind(path).map_err(|e| failed(&e))?;
        let socket = ApiSocket {
            path: path.to_owned(),
            listener,
            asked: JoinSet::new(),
        };
        // Until here the umask keeps others out; a peer's credentials are checked in any case.
        open_to(path, access).map_err(|e| failed(&e))?;
        Ok(socket)
    }

    /// The socket that a daemon which gives way to this one listens on. Needs a tokio runtime.
    pub fn handed(path: &Path, socket: OwnedFd) -> Result<ApiSocket, String> {
        let failed =
            |e: std::io::Error| format!("cannot go on listening on {}: {e}", path.display());
        // Once more, by this process: whoever connects is told who listens.
        rustix::net::listen(&socket, BACKLOG).map_err(|e| failed(e.into()))?;
        let listener = UnixListener::from_std(socket.into()).map_err(failed)?;
        Ok(ApiSocket {
            path: path.to_owned(),
            listener,
            asked: JoinSet::new(),
        })
    }

    /// [`bind`](ApiSocket::bind), or [`handed`](ApiSocket::handed) where there is something.
    pub fn at(path: &Path, handed: Option<OwnedFd>, access: &Access) -> Result<ApiSocket, String> {
        match handed {
            Some(socket) => ApiSocket::handed(path, socket),
            None => ApiSocket::bind(path, access),
        }
    }

    /// Another of its descriptors.
    pub fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next client that may do anything at all, and who it is; others are turned away. One
    /// whose groups take time to be found out keeps no other one waiting.
    pub async fn accept(
        &mut self,
        api: &'static str,
        access: &Access,
        gate: &Gate,
    ) -> std::io::Result<(UnixStream, User)> {
        let shown = self.path.display();
        loop {
            let (stream, user, unknown) = tokio::select! {
                accepted = self.listener.accept() => {
                    let (stream, _) = accepted?;
                    let user = match stream.peer_cred() {
                        Ok(peer) => User::of(&peer),
                        Err(e) => {
                            tracing::warn!(
                                "turned a client of unknown identity away on {shown}: {e}"
                            );
                            continue;
                        }
                    };
                    if access.asks_for_groups(&user) {
                        let access = access.clone();
                        self.asked.spawn(async move {
                            let (user, unknown) = access.with_groups(user).await;
                            (stream, user, unknown)
                        });
                        continue;
                    }
                    (stream, user, None)
                }
                Some(asked) = self.asked.join_next() => match asked {
                    Ok(connected) => connected,
                    Err(_) => continue,
                },
            };
            if let Some(why) = &unknown {
                tracing::warn!("uid {} has no right by a group on {shown}: {why}", user.uid);
            }
            let who = Who::Local(user.clone());
            if access.rights(&who).role().is_some() {
                return Ok((stream, user));
            }
            tracing::warn!("turned away uid {} on {shown}", user.uid);
            let why = match unknown {
                None => "it has no role".to_owned(),
                Some(why) => format!("it has no role of its own, and {why}"),
            };
            gate.turned_away(api, &Peer::local(user), "connect", &why);
        }
    }
}

/// Gives a socket's file to who may connect. What else is there by that name, as a link that leads
/// elsewhere, is given to nobody: the file is opened once, and what is opened is changed.
pub fn open_to(path: &Path, access: &Access) -> std::io::Result<()> {
    let (group, mode) = access.socket();
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    let is_ours = found.st_uid == Uid::effective().as_raw();
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket || !is_ours {
        return Err(std::io::Error::other("what is there is no socket of ours"));
    }
    let group = group.map(|gid| rustix::fs::Gid::from_raw(gid.as_raw()));
    rustix::fs::chownat(&file, "", None, group, AtFlags::EMPTY_PATH)?;
    // chmod(2) takes no such descriptor but by this name, which is no link to the path.
    let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(by_number, PermissionsExt::from_mode(mode))
}

impl Drop for ApiSocket {
    fn drop(&mut self) {
        if LEFT.load(Ordering::SeqCst) {
            return;
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A socket that nobody listens on is what a crash left. Anything else is somebody's, and stays; a
/// daemon that was killed a moment ago is waited for.
fn remove_stale(path: &Path) -> Result<(), String> {
    let Ok(file) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !file.file_type().is_socket() {
        return Err(format!(
            "cannot listen on {}: it is there and no socket",
            path.display()
        ));
    }
    if !lock::within(lock::PATIENCE, || nobody_listens(path)) {
        let owner = SocketAddrUnix::new(path)
            .ok()
            .and_then(|address| held_name::listener(&address));
        return Err(format!(
            "cannot listen on {}: {} does already; stop it first, or give this daemon another path",
            path.display(),
            owner.map_or_else(
                || "another process".to_owned(),
                |peer| format!("process {}", peer.pid)
            )
        ));
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!(
            "cannot remove the stale socket {}: {e}",
            path.display()
        )),
        _ => Ok(()),
    }
}

/// Whether a socket's file is all that is left of it. Does not wait.
fn nobody_listens(path: &Path) -> bool {
    matches!(ask(path), Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// What connect(2) says at a socket.
fn ask(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&probe, &SocketAddrUnix::new(path)?)
}

/// Removes the sockets of NICs that a killed daemon of our user has left in this folder; how many.
/// Ours are those that are still our user's, and, where nobody else could have put any there, also
/// those that were given away. Those of other daemons are listened on; one that is bound meanwhile
/// is left alone. Waits a moment, which no NIC is to wait for: one that is made anew here replaces
/// its own.
pub fn remove_nic_sockets(folder: &Path) -> usize {
    let only_ours = socket_file::only_ours(folder);
    // Inodes are used again: another file has another time.
    let ours = |path: &Path| {
        let file = std::fs::symlink_metadata(path).ok()?;
        let ours = only_ours || file.uid() == Uid::effective().as_raw();
        let ours = ours && file.file_type().is_socket();
        ours.then(|| (file.ino(), file.ctime(), file.ctime_nsec()))
    };
    let is_left = |path: &Path, listeners: &Listeners| match ask(path) {
        // Whom it was given to may connect, and we may not.
        Err(Errno::ACCESS) if only_ours => listeners.has(path).is_ok_and(|listened| !listened),
        answer => matches!(answer, Err(Errno::CONNREFUSED | Errno::NOENT)),
    };
    // Read once for all files, of which there are thousands.
    let (Ok(entries), Ok(listeners)) = (std::fs::read_dir(folder), Listeners::now()) else {
        return 0;
    };
    let stale = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?;
        // This daemon's own are asked nothing.
        if listeners.has_spelt(&path) {
            return None;
        }
        let file = ours(&path).filter(|_| name.starts_with(NIC_SOCKETS))?;
        is_left(&path, &listeners).then_some((path, file))
    });
    let mut stale: Vec<_> = stale.collect();
    if !stale.is_empty() {
        // Another daemon may have been about to listen.
        std::thread::sleep(NOT_YET);
        let Ok(listeners) = Listeners::now() else {
            return 0;
        };
        stale.retain(|(path, file)| {
            let still_left = ours(path) == Some(*file) && is_left(path, &listeners);
            still_left && std::fs::remove_file(path).is_ok()
        });
    }
    stale.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Directory;

    #[tokio::test]
    async fn made_for_the_owner_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/api.sock");
        let access = Access::new(None, None).unwrap();
        let mut socket = ApiSocket::bind(&path, &access).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let _client = UnixStream::connect(&path).await.unwrap();
        let (_, user) = socket.accept("v1", &access, &Gate::open()).await.unwrap();
        assert_eq!(user.uid, Uid::effective().as_raw());
        let error = ApiSocket::bind(&path, &access).unwrap_err();
        let owner = format!("process {} does already", std::process::id());
        assert!(error.contains(&owner), "{error}");
        drop(socket);
        assert!(!path.exists());
    }

    /// A directory that hangs for one user: he connects again and again, and others come in.
    #[tokio::test]
    async fn who_is_asked_for_keeps_nobody_waiting_and_has_no_right_by_a_group_meanwhile() {
        const HANGS: u32 = 60_003;
        const MEMBER: u32 = 60_004;
        const STRANGER: u32 = 60_005;
        const GROUP: u32 = 77;
        if !Uid::effective().is_root() {
            eprintln!("skipped: to be another user takes root");
            return;
        }
        let (let_go, hanging) = std::sync::mpsc::channel::<()>();
        let hanging = Mutex::new(hanging);
        let directory = Directory::by(Duration::from_secs(5), move |uid| {
            if uid == HANGS {
                let _ = hanging.lock().unwrap().recv();
            }
            Ok(if uid == STRANGER { vec![] } else { vec![GROUP] })
        });
        let access = Access::of_group(GROUP, directory);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let mut socket = ApiSocket::bind(&path, &access).unwrap();
        for (path, mode) in [(dir.path(), 0o755), (&path, 0o666)] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        let connect = |id: u32| {
            let path = path.clone();
            let connecting = std::thread::spawn(move || {
                let gid = rustix::fs::Gid::from_raw(id);
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                let uid = rustix::fs::Uid::from_raw(id);
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                std::os::unix::net::UnixStream::connect(path).unwrap()
            });
            connecting.join().unwrap()
        };
        let gate = Gate::open();
        let hanging: Vec<_> = (0..20).map(|_| connect(HANGS)).collect();
        let (stranger, _member) = (connect(STRANGER), connect(MEMBER));
        let (_root, began) = (connect(0), Instant::now());
        let mut came = Vec::new();
        for _ in 0..2 {
            let (_, user) = socket.accept("v1", &access, &gate).await.unwrap();
            came.push(user.uid);
        }
        came.sort();
        assert_eq!(came, [0, MEMBER]);
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "{:?}",
            began.elapsed()
        );
        // Whoever is in no group is hung up on, and he too whose groups nobody tells.
        let turned_away = tokio::time::timeout(Duration::from_secs(7), async {
            let _ = socket.accept("v1", &access, &gate).await;
        });
        turned_away.await.unwrap_err();
        for stream in hanging.iter().chain([&stranger]) {
            stream.set_nonblocking(true).unwrap();
            let read = std::io::Read::read(&mut &*stream, &mut [0]);
            assert_eq!(read.unwrap(), 0);
        }
        drop(let_go);
        let _late = connect(HANGS);
        let (_, user) = socket.accept("v1", &access, &gate).await.unwrap();
        assert_eq!(user.uid, HANGS);
    }

    /// Who may write to the folder puts a link to a file of root's in the socket's place, and has
    /// the daemon read its files again.
    #[tokio::test]
    async fn a_link_in_the_socket_s_place_gives_nothing_away() {
        let dir = tempfile::tempdir().unwrap();
        let (path, precious) = (dir.path().join("api"), dir.path().join("precious"));
        std::fs::write(&precious, "precious").unwrap();
        let only_ours = PermissionsExt::from_mode(0o640);
        std::fs::set_permissions(&precious, only_ours).unwrap();
        let access = Access::new(None, None).unwrap();
        let socket = ApiSocket::bind(&path, &access).unwrap();
        open_to(&path, &access).unwrap();
        for is_hard in [false, true] {
            std::fs::remove_file(&path).unwrap();
            match is_hard {
                false => std::os::unix::fs::symlink(&precious, &path).unwrap(),
                true => std::fs::hard_link(&precious, &path).unwrap(),
            }
            open_to(&path, &access).unwrap_err();
            let mode = std::fs::metadata(&precious).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o640);
        }
        drop(socket);
    }

    #[tokio::test]
    async fn what_a_crash_left_is_taken_over_and_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(ApiSocket::bind(&path, &Access::new(None, None).unwrap()).unwrap());
        std::fs::write(&path, "precious").unwrap();
        let error = ApiSocket::bind(&path, &Access::new(None, None).unwrap()).unwrap_err();
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn sockets_of_nics_that_nobody_listens_on_go() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let _alive = std::os::unix::net::UnixListener::bind(at("qemu-vhost-alive")).unwrap();
        for stale in ["qemu-vhost-stale", "another"] {
            drop(std::os::unix::net::UnixListener::bind(at(stale)).unwrap());
        }
        std::fs::write(at("qemu-vhost-file"), "precious").unwrap();
        std::os::unix::fs::symlink(at("another"), at("qemu-vhost-link")).unwrap();
        assert_eq!(remove_nic_sockets(dir.path()), 1);
        let mut left: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "another",
                "qemu-vhost-alive",
                "qemu-vhost-file",
                "qemu-vhost-link"
            ]
        );
        assert_eq!(remove_nic_sockets(&at("missing")), 0);
    }

    #[test]
    fn a_socket_that_is_given_up_within_moments_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let dying = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let killed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(dying);
        });
        remove_stale(&path).unwrap();
        assert!(!path.exists());
        killed.join().unwrap();
    }
}
