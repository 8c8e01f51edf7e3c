//! The two halves of the configuration's maps: write what differs to the one that is not in force,
//! switch, wait until nobody uses the other one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytemuck::Pod;
use xdp::{Program, Table};

use crate::compile::Image;
use crate::error::Error;
use crate::layout::{self, Maglev};

/// The maps, and what each half of them holds.
#[derive(Debug)]
pub(crate) struct Halves {
    half: Table<u32, u32>,
    vips: Table<u32, layout::Vip>,
    ports: Table<u32, layout::Port>,
    maglevs: Table<u32, Maglev>,
    servers: Table<u32, layout::Server>,
    settings: layout::ProgramSettings,
    in_force: u32,
    written: [Image; 2],
    /// A write to the half that is not in force failed: `written` has its keys, not its values.
    torn: bool,
}

impl Halves {
    /// Of a program just loaded: half 0 is in force and empty.
    pub(crate) fn new(program: &Program, settings: layout::ProgramSettings) -> Result<Self, Error> {
        Ok(Halves {
            half: program.table("half")?,
            vips: program.table("vips")?,
            ports: program.table("ports")?,
            maglevs: program.table("maglevs")?,
            servers: program.table("servers")?,
            settings,
            in_force: 0,
            written: [Image::default(), Image::default()],
            torn: false,
        })
    }

    /// What is in force.
    pub(crate) fn image(&self) -> &Image {
        &self.written[self.in_force as usize]
    }

    /// Puts an image in force. When it returns, every packet is judged by it.
    pub(crate) fn publish(&mut self, image: Image) -> Result<(), Error> {
        let other = 1 - self.in_force;
        let mut was = std::mem::take(&mut self.written[other as usize]);
        if let Err(error) = self.write(other, &was, &image) {
            was.absorb(image);
            self.written[other as usize] = was;
            self.torn = true;
            return Err(error);
        }
        self.written[other as usize] = image;
        self.torn = false;
        self.half.set(&0, &other)?;
        self.in_force = other;
        sys::bpf::wait_for_programs();
        Ok(())
    }

    fn write(&self, half: u32, was: &Image, now: &Image) -> Result<(), Error> {
        let settings = &self.settings;
        let all = self.torn;
        write_changes(
            &self.servers,
            half * settings.max_servers,
            &was.servers,
            &now.servers,
            all,
        )?;
        write_tables(&self.maglevs, half * settings.max_services, was, now, all)?;
        write_changes(
            &self.ports,
            half * settings.ports,
            &was.ports,
            &now.ports,
            all,
        )?;
        write_changes(&self.vips, half * settings.vips, &was.vips, &now.vips, all)
    }
}

/// Sets what is new or other, or `all`; zeroes what is gone.
fn write_changes<V: Pod + PartialEq>(
    table: &Table<u32, V>,
    base: u32,
    was: &BTreeMap<u32, V>,
    now: &BTreeMap<u32, V>,
    all: bool,
) -> Result<(), Error> {
    let either: BTreeSet<u32> = was.keys().chain(now.keys()).copied().collect();
    let changed: Vec<u32> = either
        .into_iter()
        .filter(|key| all || was.get(key) != now.get(key))
        .collect();
    let values: Vec<V> = changed
        .iter()
        .map(|key| now.get(key).copied().unwrap_or_else(V::zeroed))
        .collect();
    let keys: Vec<u32> = changed.iter().map(|key| base + key).collect();
    Ok(table.set_all(&keys, &values)?)
}

/// Tables are shared between images while they stay the same. One that is gone is left: no service
/// has its number.
fn write_tables(
    table: &Table<u32, Maglev>,
    base: u32,
    was: &Image,
    now: &Image,
    all: bool,
) -> Result<(), Error> {
    for (number, new) in &now.maglevs {
        if !all
            && was
                .maglevs
                .get(number)
                .is_some_and(|old| Arc::ptr_eq(old, new))
        {
            continue;
        }
        let mut value: Box<Maglev> = bytemuck::zeroed_box();
        value.slot.copy_from_slice(&new.slots);
        table.set(&(base + number), &value)?;
    }
    Ok(())
}
