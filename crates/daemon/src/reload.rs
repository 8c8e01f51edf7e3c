//! Reading files again while the daemon runs: who may do what, the TLS files, the audit file, the
//! flow log and the router's access list.

use std::sync::{Arc, Mutex, PoisonError};

use crate::access::Access;
use crate::audit::Audit;
use crate::flow_log::FlowLog;
use crate::router::AclFile;
use crate::v1::tls::Certificates;

/// What can be read again.
pub struct Reload {
    access: Access,
    audit: Audit,
    flow_log: FlowLog,
    certificates: Option<Arc<Certificates>>,
    router_acl: Option<AclFile>,
    /// What is to be done when who may connect has changed.
    on_access: Vec<Box<dyn Fn() + Send + Sync>>,
    /// One reads at a time: of two, the one that has read an older file could be the last.
    reading: Mutex<()>,
}

impl Reload {
    pub fn new(
        access: Access,
        audit: Audit,
        flow_log: FlowLog,
        certificates: Option<Arc<Certificates>>,
        router_acl: Option<AclFile>,
        on_access: Vec<Box<dyn Fn() + Send + Sync>>,
    ) -> Reload {
        Reload {
            access,
            audit,
            flow_log,
            certificates,
            router_acl,
            on_access,
            reading: Mutex::new(()),
        }
    }

    pub fn flow_log(&self) -> &FlowLog {
        &self.flow_log
    }

    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Reads all; a line for each that was read. Each file that cannot be used leaves what was read
    /// of it before, and is in the error, a sentence.
    pub fn now(&self) -> Result<Vec<String>, String> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let access = self.access.reload();
        if access.is_ok() {
            self.on_access.iter().for_each(|changed| changed());
        }
        let certificates = self.certificates.as_ref().map(|files| files.reload());
        let files = [self.audit.reopen(), self.flow_log.reopen()];
        let acl = self.router_acl.as_ref().map(AclFile::reload);
        let all = [access, certificates.transpose(), acl.transpose()];
        let all = all.into_iter().chain(files);
        let (read, failed): (Vec<_>, Vec<_>) = all.partition(Result::is_ok);
        let read: Vec<String> = read.into_iter().flatten().flatten().collect();
        for line in &read {
            tracing::info!("read again: {line}");
        }
        let failed: Vec<String> = failed.into_iter().filter_map(Result::err).collect();
        for why in &failed {
            tracing::error!("not read again, what was read before stays in force: {why}");
        }
        match failed.is_empty() {
            true => Ok(read),
            false => Err(failed.join("; ")),
        }
    }
}
