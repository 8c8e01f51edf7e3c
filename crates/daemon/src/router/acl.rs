//! The access list of `--router-acl`, which is a file's: read at the start, and again when the
//! daemon is told to.

use std::path::PathBuf;
use std::sync::Arc;

use router::acl::List;

use super::control::Control;

/// The file, and the router that goes by it.
pub struct AclFile {
    path: PathBuf,
    control: Arc<Control>,
}

impl AclFile {
    pub fn new(path: PathBuf, control: Arc<Control>) -> AclFile {
        AclFile { path, control }
    }

    /// Reads it again; packets are judged by what it says when this returns. A sentence that says
    /// what was read; the error is one, too, and the rules in force stay. Waits: not for a
    /// runtime's thread.
    pub fn reload(&self) -> Result<String, String> {
        let file = self.path.display();
        let list = List::read(&self.path)?;
        let rules = list.rules.len();
        let set = self.control.set_acl(Some(list));
        set.map_err(|why| format!("{file}: {why}"))?;
        Ok(format!("{file}: {rules} rules of the access list"))
    }
}
