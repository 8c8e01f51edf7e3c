//! One loaded program and its maps.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Once;

use bytemuck::Pod;
use libbpf_rs::{
    MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, ProgramHandle, ProgramMut,
    ProgramType, set_print,
};

use crate::error::Error;
use crate::table::{PerCpuTable, Table};

/// The map of the next program, which is nobody else's.
pub(crate) const CHAIN: &str = "chain";

/// A program in the kernel, with its maps. Gone when dropped and attached nowhere.
#[derive(Debug)]
pub struct Program {
    name: String,
    object: Object,
    handle: ProgramHandle,
    /// The program for tc ingress, compiled from the same source and using the same maps.
    tc: Option<Box<Program>>,
}

impl Program {
    /// Loads the one program of an object of [`objects`](crate::objects). `configure` sees the
    /// object before the kernel does: it sets the sizes of maps and the constants.
    ///
    /// # Errors
    /// The kernel lacks what the program needs, the caller lacks CAP_BPF and CAP_NET_ADMIN, or
    /// memory for the maps.
    pub fn load(
        name: &str,
        object: &[u8],
        configure: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>,
    ) -> Result<Self, Error> {
        Self::open(name, object, configure)
    }

    /// Loads a program for XDP and what its source is at tc ingress, over one set of maps: whatever
    /// is written to a map is for both. `configure` sees both objects, one after the other. Only
    /// the chain and the constants are of each its own.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_both(
        name: &str,
        xdp: &[u8],
        tc: &[u8],
        mut configure: impl FnMut(&mut OpenObject) -> libbpf_rs::Result<()>,
    ) -> Result<Self, Error> {
        let mut first = Self::open(name, xdp, &mut configure)?;
        let second = Self::open(name, tc, |open| {
            configure(open)?;
            for mut map in open.maps_mut() {
                // A program array is of one kind of program; constants are an object's own (their
                // maps' names have a dot).
                let shared = map.name() != CHAIN && !map.name().to_string_lossy().contains('.');
                let mut others = first.object.maps();
                if let Some(other) = others.find(|other| shared && other.name() == map.name()) {
                    map.reuse_fd(other.as_fd())?;
                }
            }
            Ok(())
        })?;
        first.tc = Some(Box::new(second));
        Ok(first)
    }

    fn open(
        name: &str,
        object: &[u8],
        configure: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Load {
            program: name.to_owned(),
            source,
        };
        log_what_libbpf_says();
        let mut open = ObjectBuilder::default()
            .open_memory(object)
            .map_err(failed)?;
        configure(&mut open).map_err(failed)?;
        let object = open.load().map_err(failed)?;
        let only = only_program(&object).and_then(|program| ProgramHandle::try_from(&program));
        let handle = only.map_err(failed)?;
        Ok(Program {
            name: name.to_owned(),
            object,
            handle,
            tc: None,
        })
    }

    /// The program for tc ingress, if one was loaded with [`load_both`](Self::load_both).
    pub fn tc(&self) -> Option<&Program> {
        self.tc.as_deref()
    }

    /// It is one for tc ingress.
    pub(crate) fn is_tc(&self) -> bool {
        let program = only_program(&self.object);
        program.is_ok_and(|program| program.prog_type() == ProgramType::SchedCls)
    }

    /// The name it was loaded by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A map by name, for what [`table`](Self::table) does not do: sockets, devices, programs, maps
    /// in maps.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn map(&self, name: &str) -> Result<MapHandle, Error> {
        let map = self.object.maps().find(|map| map.name() == name);
        let map = map.ok_or_else(|| Error::NoMap {
            program: self.name.clone(),
            map: name.to_owned(),
        })?;
        MapHandle::try_from(&map).map_err(|source| Error::Map {
            map: name.to_owned(),
            source,
        })
    }

    /// A map with these keys and values.
    ///
    /// # Errors
    /// There is none of this name, or its entries have other sizes.
    pub fn table<K: Pod, V: Pod>(&self, name: &str) -> Result<Table<K, V>, Error> {
        Table::new(self.map(name)?)
    }

    /// A per-CPU map with these keys and values.
    ///
    /// # Errors
    /// As [`table`](Self::table).
    pub fn per_cpu_table<K: Pod, V: Pod>(&self, name: &str) -> Result<PerCpuTable<K, V>, Error> {
        PerCpuTable::new(self.map(name)?)
    }

    /// For a trial run.
    pub(crate) fn program(&self) -> libbpf_rs::Result<ProgramMut<'_>> {
        only_program(&self.object)
    }
}

/// libbpf writes to stderr of its own accord; the verifier's complaints among it are wanted in the
/// log.
fn log_what_libbpf_says() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Debug, |level, line| match level {
            PrintLevel::Debug => tracing::trace!(target: "libbpf", "{}", line.trim_end()),
            PrintLevel::Info => tracing::debug!(target: "libbpf", "{}", line.trim_end()),
            PrintLevel::Warn => tracing::warn!(target: "libbpf", "{}", line.trim_end()),
        })));
    });
}

/// One program an object: what is attached is then never in doubt.
fn only_program(object: &Object) -> libbpf_rs::Result<ProgramMut<'_>> {
    let mut programs = object.progs_mut();
    match (programs.next(), programs.next()) {
        (Some(program), None) => Ok(program),
        _ => Err(std::io::Error::other("an object has to have one program").into()),
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}
