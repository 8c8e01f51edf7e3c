//! The socket itself: where it is, who may connect, and which of them are there.

use std::fmt;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as Probe;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;

/// Where they are, `<kind>-<pid>.sock`. Beside the daemon's folder, which goes with the daemon.
const FOLDER: &str = "/run/butterfly-alone";

/// Which command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// `butterfly forward`
    Forward,
    /// `butterfly balance`
    Balance,
}

impl fmt::Display for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Alone::Forward => "forward",
            Alone::Balance => "balance",
        })
    }
}

/// A socket that listens. Its file goes when this is dropped.
pub struct QuerySocket {
    path: PathBuf,
    listener: Option<UnixListener>,
}

impl QuerySocket {
    /// Listens where others look for it, or at `path`. Sockets that nobody listens on any more are
    /// removed.
    pub fn bind(kind: Alone, path: Option<&Path>) -> Result<QuerySocket, String> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => {
                let folder = Path::new(FOLDER);
                let mut builder = std::fs::DirBuilder::new();
                let made = builder.recursive(true).mode(0o755).create(folder);
                made.map_err(|e| format!("{FOLDER}: {e}"))?;
                for stale in sockets(kind).into_iter().filter(|path| is_stale(path)) {
                    let _ = std::fs::remove_file(stale);
                }
                folder.join(format!("{kind}-{}.sock", std::process::id()))
            }
        };
        let failed = |e: io::Error| format!("cannot listen on {}: {e}", path.display());
        if is_stale(&path) {
            std::fs::remove_file(&path).map_err(failed)?;
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let socket = QuerySocket {
            path,
            listener: Some(listener),
        };
        // Who may connect is asked of the kernel, too: this keeps others from trying.
        let ours = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&socket.path, ours)
            .map_err(|e| format!("cannot listen on {}: {e}", socket.path.display()))?;
        Ok(socket)
    }

    /// Answers from now on, on this runtime. Only root and whose the socket is are listened to.
    pub fn answer(&mut self, services: Routes) -> io::Result<()> {
        let Some(listener) = self.listener.take() else {
            return Ok(());
        };
        let owner = std::fs::metadata(&self.path)?.uid();
        let clients = UnixListenerStream::new(listener).filter(move |client| {
            client
                .as_ref()
                .map_or(true, |client| may_ask(client, owner))
        });
        // `butterfly health --wait` knows from it that packets are taken.
        let (_, health) = tonic_health::server::health_reporter();
        let server = Server::builder().add_routes(services.add_service(health));
        tokio::spawn(server.serve_with_incoming(clients));
        Ok(())
    }
}

impl Drop for QuerySocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // The last one takes the folder with it; one with sockets in it stays.
        if self.path.parent() == Some(Path::new(FOLDER)) {
            let _ = std::fs::remove_dir(FOLDER);
        }
    }
}

/// By the kernel's word (SO_PEERCRED, unix(7)).
fn may_ask(client: &UnixStream, owner: u32) -> bool {
    client
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == owner)
}

/// The sockets of all that run on this host, as `-e` takes them. One that we may not ask is among
/// them: the refusal says more than that nothing is there.
pub fn running(kind: Alone) -> Vec<String> {
    let there = sockets(kind).into_iter().filter(|path| !is_stale(path));
    there
        .map(|path| format!("unix:{}", path.display()))
        .collect()
}

fn sockets(kind: Alone) -> Vec<PathBuf> {
    let Ok(folder) = std::fs::read_dir(FOLDER) else {
        return Vec::new();
    };
    let begins = format!("{kind}-");
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&begins) && name.ends_with(".sock"))
    };
    let paths = folder.flatten().map(|entry| entry.path());
    let mut sockets: Vec<PathBuf> = paths.filter(is_one).collect();
    sockets.sort();
    sockets
}

/// A socket whose process has gone.
fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && Probe::connect(path).is_err_and(refused)
}
