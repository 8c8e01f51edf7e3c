//! Programs that a daemon is told to hand over to, and that are not to succeed it: what a test puts
//! in the place of the next `butterflyd`.
//!
//! A daemon starts the next program with one end of a socket as its standard input, and the two
//! speak in datagrams of one word each: a byte for the word, one for the length of a name, the
//! name, and a note (`crates/daemon/src/upgrade/words.rs`). [`text`] is a script that speaks so for
//! as long as a test wants it to, [`write`] puts any such program where a daemon may run it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::Result;

/// Has heard of everything that there is, and is prepared: the daemon has closed its store.
pub const UNTIL_STORE: &str = "wait(OFFER); say(HELLO); wait(ALL); say(READY, '9.9'); wait(STORE)";

/// Has the daemon's ports, too, and will read the memory of its connections: no frame moves.
pub const UNTIL_PORTS: &str = "wait(OFFER); say(HELLO); wait(ALL); say(READY, '9.9'); wait(STORE)
say(OPENED, 'flows=memory'); wait(PORTS)";

/// `program`, which says that it is prepared only when there is a file `go`; then there is a file
/// `prepared`, both in `folder`. Whoever waits for it waits 20 s at the most. With a file `give-up`
/// there as well it gives up instead.
pub fn held_up(program: &str, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "#!/usr/bin/env python3
import os, select, socket, sys, time
READY = 5
before = socket.socket(fileno=os.dup(0))
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.fork():
    os.wait()
    os.dup2(theirs.fileno(), 0)
    before.close(); ours.close(); theirs.close()
    os.execv('{program}', ['{program}'] + sys.argv[1:])
if os.fork():
    os._exit(0)
theirs.close()
os.close(0)
while True:
    for one in select.select([before, ours], [], [])[0]:
        other = ours if one is before else before
        said, fds, _, _ = socket.recv_fds(one, 1 << 18, 253)
        if not said: os._exit(0)
        if one is ours and said[0] == READY:
            open('{folder}/prepared', 'w').close()
            for _ in range(2000):
                if os.path.exists('{folder}/go'): break
                time.sleep(0.01)
            if os.path.exists('{folder}/give-up'): os._exit(1)
        socket.send_fds(other, [said], fds)
        for fd in fds: os.close(fd)
"
    )
}

/// Writes a program into a folder, as one that the daemon is willing to run: its owner alone may
/// write to it. Gives its path.
pub fn write(folder: &Path, name: &str, text: &str) -> Result<String> {
    let path = folder.join(name);
    let mode = PermissionsExt::from_mode(0o755);
    let written = std::fs::write(&path, text);
    let written = written.and_then(|()| std::fs::set_permissions(&path, mode));
    written.map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path.display().to_string())
}

/// A program that is the other side of a hand-over as far as `steps` goes, and ends behind them.
///
/// The steps are Python. `wait(WORD)` waits for a word and gives its note; what comes before it,
/// the items, is let go of, and their names are in `names`. `say(WORD, note)` says one. The words
/// are those of the daemon in capitals, as `HELLO` or `NO`.
pub fn text(steps: &str) -> String {
    format!(
        "#!/usr/bin/env python3
import array, socket, time
(
    OFFER, HELLO, ITEM, ALL, READY, STORE, OPENED, PORTS, TAKEN, GO, MOVING, SERVING, NO
) = range(1, 14)
s = socket.socket(fileno=0)
names = []
def wait(word):
    while True:
        m, anc, _, _ = s.recvmsg(1 << 15, socket.CMSG_SPACE(4 * 253))
        for _, _, data in anc:
            for fd in array.array('i', data): socket.close(fd)
        if not m: raise SystemExit('gone')
        names.append(m[2:2 + m[1]].decode())
        if m[0] == word: return m[2 + m[1]:].decode()
def say(word, note=''):
    s.sendall(bytes([word, 0]) + note.encode())
{steps}
"
    )
}
