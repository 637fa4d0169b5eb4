use std::collections::BTreeSet;

use pilot_base::Hasher64;

use crate::folder::Folder;
use crate::mesh::{Mesh, Rules};

/// Changes drawn from a seed.
pub(super) struct Turmoil {
    original: Mesh,
    mesh: Mesh,
    /// Services of the beginning that are away.
    away: BTreeSet<usize>,
    /// Services that were not there in the beginning.
    guests: BTreeSet<usize>,
    seed: u64,
    drawn: u64,
    changes: u64,
}

/// At most so many services come in addition.
const MOST_GUESTS: usize = 20;

impl Turmoil {
    pub(super) fn new(mesh: Mesh, seed: u64) -> Self {
        let (away, guests) = (BTreeSet::new(), BTreeSet::new());
        Self { original: mesh.clone(), mesh, away, guests, seed, drawn: 0, changes: 0 }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    fn draw(&mut self, below: usize) -> usize {
        self.drawn += 1;
        let drawn = Hasher64::default().write_u64(self.seed).write_u64(self.drawn).finish().0;
        usize::try_from(drawn % below.max(1) as u64).unwrap_or(0)
    }

    /// One change of one file.
    pub(super) fn change(&mut self, folder: &Folder) -> anyhow::Result<()> {
        self.changes += 1;
        let index = self.draw(self.mesh.services.len());
        // Marks of both kinds are told apart by nobody here, but each is new.
        let stamp = u32::try_from(self.mesh.services.len() as u64 + self.changes)?;
        match self.draw(100) {
            0..50 => self.mesh.services[index].address = stamp,
            50..60 => {
                let most = self.original.services[index].endpoints;
                self.mesh.services[index].endpoints = 1 + self.draw(most);
            }
            60..75 => {
                self.mesh.services[index].route = stamp;
                return folder.put_rules(&self.mesh, &self.mesh.services[index]);
            }
            75..85 => {
                let rules = [Rules::None, Rules::Policy, Rules::Split][self.draw(3)];
                let service = &mut self.mesh.services[index];
                // A VirtualService with routes of HTTP says nothing about a service of TCP.
                service.rules = if service.tcp { Rules::None } else { rules };
                return folder.put_rules(&self.mesh, &self.mesh.services[index]);
            }
            85..95 => return self.guest(folder),
            _ => return self.leave_or_return(folder, index),
        }
        // Whoever was away is back with its new endpoints.
        self.away.remove(&index);
        folder.put_entry(&self.mesh, &self.mesh.services[index])
    }

    fn guest(&mut self, folder: &Folder) -> anyhow::Result<()> {
        let index = self.draw(MOST_GUESTS);
        let guest = self.mesh.guest(index);
        if self.guests.remove(&index) {
            folder.remove_service(&guest)
        } else {
            self.guests.insert(index);
            folder.put_entry(&self.mesh, &guest)
        }
    }

    /// The rules of a service that is away stay, and lead nowhere.
    fn leave_or_return(&mut self, folder: &Folder, index: usize) -> anyhow::Result<()> {
        let service = &self.mesh.services[index];
        if self.away.remove(&index) {
            folder.put_entry(&self.mesh, service)
        } else {
            self.away.insert(index);
            folder.remove(&service.files()[0])
        }
    }

    /// Makes everything as it was in the beginning.
    pub(super) fn put_back(&self, folder: &Folder) -> anyhow::Result<()> {
        for index in &self.guests {
            folder.remove_service(&self.mesh.guest(*index))?;
        }
        for service in &self.original.services {
            folder.put_entry(&self.original, service)?;
            folder.put_rules(&self.original, service)?;
        }
        Ok(())
    }
}
