//! One loaded program and its maps.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

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
    /// Has the maps, and the program if it is one.
    object: Object,
    code: Code,
}

#[derive(Debug)]
enum Code {
    One(ProgramHandle),
    /// A source for both places, see [`Program::load_both`].
    Both(Box<Parts>),
}

/// The two programs of one source.
#[derive(Debug)]
struct Parts {
    xdp: Part,
    tc: Part,
}

/// One of them, which the kernel gets to see when it is first used: verifying it takes longer than
/// all else at a start, and most machines use one of the two only.
#[derive(Debug)]
struct Part {
    waiting: Mutex<Option<OpenObject>>,
    loaded: OnceLock<Program>,
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
        Self::from_open(name, open(name, object, configure)?)
    }

    /// A program for XDP and what its source is at tc ingress, over one set of maps: whatever is
    /// written to a map is for both. The maps are made here; each of the two programs is loaded
    /// when it is first used ([`xdp`](Self::xdp), [`tc`](Self::tc)). `configure` sees the objects
    /// of the maps and of both programs, one after the other. Only the chain and the constants are
    /// of each its own.
    ///
    /// # Errors
    /// As [`load`](Self::load), but for what the kernel says of the programs.
    pub fn load_both(
        name: &str,
        xdp: &[u8],
        tc: &[u8],
        mut configure: impl FnMut(&mut OpenObject) -> libbpf_rs::Result<()>,
    ) -> Result<Self, Error> {
        let mut maps = open(name, xdp, &mut configure)?;
        for mut program in maps.progs_mut() {
            program.set_autoload(false);
        }
        let maps = maps.load().map_err(|source| refused(name, source))?;
        let mut part = |object| {
            let open = open(name, object, |open| {
                configure(open)?;
                share_maps(&maps, open)
            })?;
            Ok(Part {
                waiting: Mutex::new(Some(open)),
                loaded: OnceLock::new(),
            })
        };
        let parts = Parts {
            xdp: part(xdp)?,
            tc: part(tc)?,
        };
        Ok(Program {
            name: name.to_owned(),
            object: maps,
            code: Code::Both(Box::new(parts)),
        })
    }

    /// Loads a program beside this one: maps of a name that both have are this one's.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_beside(&self, name: &str, object: &[u8]) -> Result<Self, Error> {
        let open = open(name, object, |open| share_maps(&self.object, open))?;
        Self::from_open(name, open)
    }

    fn from_open(name: &str, open: OpenObject) -> Result<Self, Error> {
        let failed = |source| refused(name, source);
        let object = open.load().map_err(failed)?;
        let only = only_program(&object).and_then(|program| ProgramHandle::try_from(&program));
        let code = Code::One(only.map_err(failed)?);
        Ok(Program {
            name: name.to_owned(),
            object,
            code,
        })
    }

    /// What runs in XDP: the program itself, or of one for both places that part. Loads it if this
    /// is its first use.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn xdp(&self) -> Result<&Program, Error> {
        match &self.code {
            Code::One(_) => Ok(self),
            Code::Both(parts) => parts.xdp.get(&self.name),
        }
    }

    /// What runs at tc ingress, likewise.
    ///
    /// # Errors
    /// As [`load`](Self::load); the program is for XDP alone.
    pub fn tc(&self) -> Result<&Program, Error> {
        match &self.code {
            Code::One(_) if self.is_tc() => Ok(self),
            Code::One(_) => Err(Error::NoTc {
                program: self.name.clone(),
            }),
            Code::Both(parts) => parts.tc.get(&self.name),
        }
    }

    /// It has a part for tc ingress.
    pub fn has_tc(&self) -> bool {
        matches!(self.code, Code::Both(_)) || self.is_tc()
    }

    /// It is one for tc ingress.
    pub(crate) fn is_tc(&self) -> bool {
        let program = only_program(&self.object);
        program.is_ok_and(|program| program.prog_type() == ProgramType::SchedCls)
    }

    /// The program's descriptor, of one for both places that of [`xdp`](Self::xdp).
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn fd(&self) -> Result<BorrowedFd<'_>, Error> {
        match &self.code {
            Code::One(handle) => Ok(handle.as_fd()),
            Code::Both(_) => self.xdp()?.fd(),
        }
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

    /// For a trial run: of one for both places, in XDP.
    pub(crate) fn program(&self) -> Result<ProgramMut<'_>, Error> {
        only_program(&self.xdp()?.object).map_err(Error::Run)
    }
}

impl Part {
    /// The program, loaded now if it was not. What the kernel has refused once it is not asked
    /// again.
    fn get(&self, name: &str) -> Result<&Program, Error> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded);
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = waiting.take() {
            let program = Program::from_open(name, open)?;
            return Ok(self.loaded.get_or_init(|| program));
        }
        let refused_before =
            || refused(name, std::io::Error::other("it was refused before").into());
        self.loaded.get().ok_or_else(refused_before)
    }
}

/// Reads an object; nothing is in the kernel yet.
fn open(
    name: &str,
    object: &[u8],
    configure: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>,
) -> Result<OpenObject, Error> {
    log_what_libbpf_says();
    let open = ObjectBuilder::default().open_memory(object);
    let configured = open.and_then(|mut open| configure(&mut open).map(|()| open));
    configured.map_err(|source| refused(name, source))
}

/// Has an object use the maps of another that have its maps' names.
fn share_maps(maps: &Object, open: &mut OpenObject) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut() {
        // A program array is of one kind of program; constants are an object's own (their maps'
        // names have a dot).
        let shared = map.name() != CHAIN && !map.name().to_string_lossy().contains('.');
        let mut others = maps.maps();
        if let Some(other) = others.find(|other| shared && other.name() == map.name()) {
            map.reuse_fd(other.as_fd())?;
        }
    }
    Ok(())
}

fn refused(name: &str, source: libbpf_rs::Error) -> Error {
    Error::Load {
        program: name.to_owned(),
        source,
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
