//! Reading files again while the daemon runs: who may do what, the TLS files, the key of v0, the
//! page's token, the audit file, the flow log and the router's access list.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::access::Access;
use crate::audit::Audit;
use crate::flow_log::FlowLog;
use crate::page::Token;
use crate::router::AclFile;
use crate::v0::key::KeyFile;
use crate::v1::tls::Certificates;

pub type OnAccess = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What can be read again.
pub struct Files {
    pub access: Access,
    pub audit: Audit,
    pub flow_log: FlowLog,
    pub certificates: Option<Arc<Certificates>>,
    pub v0_key: Option<Arc<KeyFile>>,
    /// The page's token, and its file.
    pub page_token: Option<(Token, PathBuf)>,
    pub router_acl: Option<AclFile>,
    /// What is to be done when who may connect has changed; an error says what stays as it was.
    pub on_access: Vec<OnAccess>,
}

/// Reads them again.
pub struct Reload {
    files: Files,
    /// One reads at a time: of two, the one that has read an older file could be the last.
    reading: Mutex<()>,
}

impl Reload {
    pub fn new(files: Files) -> Reload {
        Reload {
            files,
            reading: Mutex::new(()),
        }
    }

    pub fn flow_log(&self) -> &FlowLog {
        &self.files.flow_log
    }

    pub fn audit(&self) -> &Audit {
        &self.files.audit
    }

    /// Reads all; a line for each that was read. Each file that cannot be used leaves what was read
    /// of it before, and is in the error, a sentence, as is what could not be changed by it.
    pub fn now(&self) -> Result<Vec<String>, String> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let files = &self.files;
        let access = files.access.reload();
        let changed = files.on_access.iter().filter(|_| access.is_ok());
        let unchanged: Vec<String> = changed.filter_map(|change| change().err()).collect();
        let certificates = files.certificates.as_ref().map(|files| files.reload());
        let key = files.v0_key.as_ref().map(|file| file.reload());
        let token = files.page_token.as_ref();
        let token = token.map(|(token, path)| token.reload(path));
        let acl = files.router_acl.as_ref().map(AclFile::reload);
        let all = [certificates, key, token, acl].map(Option::transpose);
        let opened = [files.audit.reopen(), files.flow_log.reopen()];
        let all = [access].into_iter().chain(all).chain(opened);
        let (read, failed): (Vec<_>, Vec<_>) = all.partition(Result::is_ok);
        let read: Vec<String> = read.into_iter().flatten().flatten().collect();
        for line in &read {
            tracing::info!("read again: {line}");
        }
        let mut failed: Vec<String> = failed.into_iter().filter_map(Result::err).collect();
        for why in &failed {
            tracing::error!("not read again, what was read before stays in force: {why}");
        }
        for why in &unchanged {
            tracing::error!("{why}");
        }
        failed.extend(unchanged);
        match failed.is_empty() {
            true => Ok(read),
            false => Err(failed.join("; ")),
        }
    }
}
