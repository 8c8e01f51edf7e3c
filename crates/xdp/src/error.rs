//! What can go wrong with a program, a map or an interface.

use crate::chain::Feature;

/// Each message names the thing and what the kernel said of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel or libbpf refused a program.
    #[error("cannot load program {program}: {source}")]
    Load {
        /// Name of the object.
        program: String,
        /// What libbpf says; the verifier's words are in the log.
        source: libbpf_rs::Error,
    },
    /// An object without the program or map that is asked of it: a mistake of the build.
    #[error("program {program} has no map {map}")]
    NoMap {
        /// Name of the object.
        program: String,
        /// Name of the map.
        map: String,
    },
    /// A map whose entries have other sizes than the Rust types it is opened with.
    #[error(
        "map {map} has keys of {key} and values of {value} bytes, opened with {want_key} and \
         {want_value}"
    )]
    Shape {
        /// Name of the map.
        map: String,
        /// Bytes a key.
        key: u32,
        /// Bytes a value.
        value: u32,
        /// Bytes a key as the caller has it.
        want_key: usize,
        /// Bytes a value as the caller has it.
        want_value: usize,
    },
    /// An operation on a map failed; `E2BIG` means that it is full.
    #[error("map {map}: {source}")]
    Map {
        /// Name of the map.
        map: String,
        /// What the kernel says.
        source: libbpf_rs::Error,
    },
    /// There is no such interface in the caller's network namespace.
    #[error("there is no interface {ifindex}")]
    NoInterface {
        /// The interface's index.
        ifindex: u32,
    },
    /// A filter at tc (a kernel before Linux 6.6) is its process's alone.
    #[error("interface {ifindex} runs a program by a filter of tc, which cannot be handed over")]
    OfThisProcess {
        /// The interface's index.
        ifindex: u32,
    },
    /// The interface has an XDP program of somebody else.
    #[error("interface {ifindex} has an XDP program already: {name} (id {id})")]
    Occupied {
        /// The interface's index.
        ifindex: u32,
        /// The program's name.
        name: String,
        /// The program's id, as `bpftool prog show` lists it.
        id: u32,
    },
    /// Somebody else looks at what comes in at tc.
    #[error(
        "interface {ifindex} has a program or filter at tc ingress already, which would not see \
         what is forwarded: {name}{}",
        id_of(id)
    )]
    TcOccupied {
        /// The interface's index.
        ifindex: u32,
        /// The program's name, or the filter's kind.
        name: String,
        /// The program's id, as `bpftool prog show` lists it; filters without a program have none.
        id: Option<u32>,
    },
    /// The program has no part for tc ingress.
    #[error("program {program} does not run at tc")]
    NoTc {
        /// Name of the object.
        program: String,
    },
    /// The kernel or the driver refused to attach.
    #[error("interface {ifindex} refuses a program ({mode}): {source}")]
    Attach {
        /// The interface's index.
        ifindex: u32,
        /// In which mode.
        mode: crate::Mode,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// This feature runs on this interface already.
    #[error("interface {ifindex} has the {feature} already")]
    Twice {
        /// The interface's index.
        ifindex: u32,
        /// The feature.
        feature: Feature,
    },
    /// A bond with VLANs, on which another feature runs in generic mode.
    #[error(
        "interface {ifindex} is a bond with VLANs and has the {feature} in generic mode, where \
         VLAN tags are gone before a program sees a frame: give it back, and add it after this"
    )]
    BondTaken {
        /// The interface's index.
        ifindex: u32,
        /// What runs there.
        feature: Feature,
    },
    /// A NIC that has VLANs on it and shows XDP programs no tags.
    #[error(
        "{name} takes VLAN tags out of frames and does not let go of it (ethtool -K {name} rxvlan \
         off): packets of its VLANs would be taken for untagged ones"
    )]
    Tags {
        /// The NIC.
        name: String,
    },
    /// A trial run was refused.
    #[error("cannot try a program: {0}")]
    Run(libbpf_rs::Error),
}

fn id_of(id: &Option<u32>) -> String {
    id.map(|id| format!(" (id {id})")).unwrap_or_default()
}
