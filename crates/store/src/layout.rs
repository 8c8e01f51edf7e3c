//! The tables of the file, and its format.

use redb::{TableDefinition, WriteTransaction};

/// The format that this version writes.
pub const FORMAT: u64 = 1;

/// Numbers by name: the format, and what `history.rs` counts.
pub(crate) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Objects by kind and key.
pub(crate) const OBJECTS: TableDefinition<(u8, &[u8]), &[u8]> = TableDefinition::new("objects");
/// Revisions by number: when, who, and how many objects.
pub(crate) const REVISIONS: TableDefinition<u64, (u64, &str, u64)> =
    TableDefinition::new("revisions");
/// Objects as they were before a revision, by its number, kind and key.
pub(crate) const BEFORE: TableDefinition<BeforeKey, Option<&[u8]>> = TableDefinition::new("before");
pub(crate) type BeforeKey = (u64, u8, &'static [u8]);

/// The revisions of who may change a part of the host alone. A version that does not know the table
/// leaves it as it is.
pub(crate) const PARTS: TableDefinition<u64, ()> = TableDefinition::new("parts");
/// Revisions that earlier ones have become one with: behind which revision they all begin. As
/// [`PARTS`] for other versions.
pub(crate) const MERGED: TableDefinition<u64, u64> = TableDefinition::new("merged");

pub(crate) const FORMAT_KEY: &str = "format";
/// The newest revision's number.
pub(crate) const NEWEST_KEY: &str = "newest";
/// Rows of [`BEFORE`].
pub(crate) const HISTORY_KEY: &str = "history_objects";

/// What an object is. The numbers are those in the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A security group.
    Group = 1,
    /// A NIC.
    Nic = 2,
    /// Another host.
    Host = 3,
    /// What is said of a VNI.
    Network = 4,
    /// What is behind another host.
    Binding = 5,
    /// A service of the load balancer.
    Service = 6,
    /// An interface that services are balanced on.
    BalancerInterface = 7,
    /// An interface that is routed between.
    RouterInterface = 8,
    /// An interface that joins this host to others.
    Uplink = 9,
    /// What the router judges packets by.
    RouterAcl = 10,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 10] = [
        Kind::Group,
        Kind::Nic,
        Kind::Host,
        Kind::Network,
        Kind::Binding,
        Kind::Service,
        Kind::BalancerInterface,
        Kind::RouterInterface,
        Kind::Uplink,
        Kind::RouterAcl,
    ];
}

/// Brings the content of a file from a format to the next.
pub type Migration = fn(&WriteTransaction) -> Result<(), redb::Error>;

/// A format, and the way to it.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Which one.
    pub format: u64,
    /// From format 1 to 2, from 2 to 3, and so on.
    pub migrations: &'static [Migration],
}

impl Layout {
    /// This version's. There is no older format.
    pub const CURRENT: Layout = Layout {
        format: FORMAT,
        migrations: &[],
    };

    pub(crate) fn migrate(
        &self,
        transaction: &WriteTransaction,
        from: u64,
    ) -> Result<(), redb::Error> {
        let from = usize::try_from(from).unwrap_or(usize::MAX) - 1;
        let steps = self.migrations.iter().skip(from);
        steps.into_iter().try_for_each(|step| step(transaction))
    }
}
