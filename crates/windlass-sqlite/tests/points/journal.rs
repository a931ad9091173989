//! What a disk holds after a crash: replays recorded calls, and drops what was not synced.
//!
//! The model is the weakest disk that POSIX allows, except that a sector of 512 bytes is written
//! whole or not at all:
//!
//! - A write is durable once its file was synced. Before that, any subset of the writes of a file
//!   may survive a power loss, and of each any subset of its sectors.
//! - A name is durable once its folder was synced. Before that, changes of names survive in order.

use std::collections::BTreeMap;
use std::path::Path;

use windlass_core::Random;

use crate::disk::{CREATE, FAILED_SYNC, SYNC, TRUNCATE, UNLINK, WRITE};

const SECTOR_BYTES: u64 = 512;

/// A call that changed a file.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) kind: u64,
    /// The name of the file; empty for the folder itself.
    pub(crate) name: String,
    /// Where the data was written, or the new size.
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

/// Reads what `disk.c` recorded.
pub(crate) fn parse(mut bytes: &[u8]) -> Vec<Record> {
    fn take<'a>(bytes: &mut &'a [u8], count: u64) -> &'a [u8] {
        let count = usize::try_from(count).expect("a small number");
        let (taken, rest) = bytes.split_at(count);
        *bytes = rest;
        taken
    }
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let mut number = || {
            let bytes = take(&mut bytes, 8);
            u64::from_ne_bytes(*bytes.first_chunk().expect("8 bytes"))
        };
        let [kind, name_bytes, offset, data_bytes] = [number(), number(), number(), number()];
        let name = take(&mut bytes, name_bytes).to_vec();
        records.push(Record {
            kind,
            name: String::from_utf8(name).expect("a name that is text"),
            offset,
            data: take(&mut bytes, data_bytes).to_vec(),
        });
    }
    records
}

/// The content of a file. What follows `bytes` is zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content {
    bytes: Vec<u8>,
    size: u64,
}

/// Files by name, as a restarted machine finds them.
pub(crate) type Image = BTreeMap<String, Content>;

/// Which of the calls that were not synced survive a power loss.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Survivors {
    None,
    /// All, but the last write of each file is torn.
    LastIsTorn,
    /// Each with an even chance.
    Some,
    /// Each with an even chance, and each of its sectors too.
    SomeSectors,
}

/// The files of a folder, and what of them is durable.
#[derive(Default)]
pub(crate) struct Files<'r> {
    files: Vec<RecordedFile<'r>>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
}

#[derive(Default)]
struct RecordedFile<'r> {
    current: Content,
    durable: Content,
    unsynced: Vec<&'r Record>,
}

#[derive(Clone)]
enum NameChange {
    Added(String, usize),
    Removed(String),
}

impl<'r> Files<'r> {
    /// Starts from files that are durable.
    pub(crate) fn from_image(image: &Image) -> Self {
        let mut files = Files::default();
        for (number, (name, content)) in image.iter().enumerate() {
            files.durable_names.insert(name.clone(), number);
            files.files.push(RecordedFile {
                current: content.clone(),
                durable: content.clone(),
                unsynced: Vec::new(),
            });
        }
        files.names = files.durable_names.clone();
        files
    }

    pub(crate) fn apply(&mut self, record: &'r Record) {
        let name = &record.name;
        if record.kind == UNLINK {
            self.names.remove(name);
            self.unsynced_names.push(NameChange::Removed(name.clone()));
            return;
        }
        if record.kind == SYNC && name.is_empty() {
            for change in self.unsynced_names.drain(..) {
                change.apply(&mut self.durable_names);
            }
            return;
        }
        if record.kind == FAILED_SYNC && name.is_empty() {
            return; // the names may still become durable
        }
        let number = self.file_number(name, record.kind == CREATE);
        let file = self.files.get_mut(number).expect("a file");
        match record.kind {
            SYNC => {
                for record in file.unsynced.drain(..) {
                    file.durable.apply(record);
                }
            }
            // The kernel may drop what it could not sync. A later sync does not bring it back.
            FAILED_SYNC => file.unsynced.clear(),
            WRITE | TRUNCATE => {
                file.current.apply(record);
                file.unsynced.push(record);
            }
            _ => {}
        }
    }

    fn file_number(&mut self, name: &str, is_new: bool) -> usize {
        if let Some(number) = self.names.get(name).filter(|_| !is_new) {
            return *number;
        }
        let number = self.files.len();
        self.files.push(RecordedFile::default());
        self.names.insert(name.to_owned(), number);
        let added = NameChange::Added(name.to_owned(), number);
        self.unsynced_names.push(added);
        number
    }

    /// What is there after the process was killed: the kernel still has every write.
    pub(crate) fn after_kill(&self) -> Image {
        let content = |number: &usize| self.files.get(*number).expect("a file").current.clone();
        let named = self.names.iter();
        named
            .map(|(name, number)| (name.clone(), content(number)))
            .collect()
    }

    /// What is there after the machine lost its power.
    pub(crate) fn after_power_loss(&self, survivors: Survivors, random: &mut Random) -> Image {
        let mut names = self.durable_names.clone();
        let kept_names = match survivors {
            Survivors::None => 0,
            Survivors::LastIsTorn => self.unsynced_names.len(),
            _ => below(self.unsynced_names.len() as u64 + 1, random) as usize,
        };
        for change in self.unsynced_names.iter().take(kept_names) {
            change.clone().apply(&mut names);
        }
        let mut image = Image::new();
        for (name, number) in names {
            let file = self.files.get(number).expect("a file");
            image.insert(name, file.after_power_loss(survivors, random));
        }
        image
    }
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            NameChange::Added(name, number) => names.insert(name, number),
            NameChange::Removed(name) => names.remove(&name),
        };
    }
}

impl RecordedFile<'_> {
    fn after_power_loss(&self, survivors: Survivors, random: &mut Random) -> Content {
        let mut content = self.durable.clone();
        for (position, record) in (1..).zip(&self.unsynced) {
            let is_last = position == self.unsynced.len();
            match survivors {
                Survivors::None => {}
                Survivors::LastIsTorn if is_last => content.tear(record, random),
                Survivors::LastIsTorn => content.apply(record),
                _ if below(2, random) == 0 => {}
                Survivors::Some => content.apply(record),
                Survivors::SomeSectors => content.tear(record, random),
            }
        }
        content
    }
}

impl Content {
    fn apply(&mut self, record: &Record) {
        match record.kind {
            TRUNCATE => {
                let size = usize::try_from(record.offset).unwrap_or(usize::MAX);
                self.bytes.truncate(size);
                self.size = record.offset;
            }
            _ => self.write(record.offset, &record.data),
        }
    }

    /// Writes some sectors of a write.
    fn tear(&mut self, record: &Record, random: &mut Random) {
        if record.kind == TRUNCATE {
            return self.apply(record);
        }
        let mut offset = record.offset;
        let mut rest = record.data.as_slice();
        while !rest.is_empty() {
            let until_boundary = SECTOR_BYTES - offset % SECTOR_BYTES;
            let bytes = rest.len().min(until_boundary as usize);
            let (sector, after) = rest.split_at(bytes);
            if below(2, random) == 0 {
                self.write(offset, sector);
            }
            offset += bytes as u64;
            rest = after;
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let start = usize::try_from(offset).expect("a small file");
        let end = start + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let space = self.bytes.get_mut(start..end).expect("it was resized");
        space.copy_from_slice(data);
        self.size = self.size.max(end as u64);
    }
}

/// A number smaller than `limit`.
fn below(limit: u64, random: &mut Random) -> u64 {
    random.bits() % limit
}

/// Writes the files of an image into an empty folder.
pub(crate) fn write_image(image: &Image, folder: &Path) {
    for (name, content) in image {
        let path = folder.join(name);
        std::fs::write(&path, &content.bytes).expect("a file");
        let file = std::fs::File::options().write(true).open(&path);
        file.and_then(|file| file.set_len(content.size))
            .expect("its size");
    }
}

/// Reads the files of a folder, except those whose content does not count.
pub(crate) fn read_image(folder: &Path) -> Image {
    let mut image = Image::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("a file");
        let name = entry
            .file_name()
            .into_string()
            .expect("a name that is text");
        if name.ends_with("-shm") || name.ends_with("-reserve") {
            continue;
        }
        let mut bytes = std::fs::read(entry.path()).expect("a file");
        let size = bytes.len() as u64;
        bytes.truncate(used_bytes(&bytes));
        image.insert(name, Content { bytes, size });
    }
    image
}

/// Returns where the zeros at the end begin, rounded up to whole blocks. Most of a WAL is zeros.
fn used_bytes(bytes: &[u8]) -> usize {
    const BLOCK: [u8; 4096] = [0; 4096];
    let mut blocks = bytes.chunks(BLOCK.len());
    let last = blocks.rposition(|block| !BLOCK.starts_with(block));
    let used = last.map_or(0, |last| (last + 1) * BLOCK.len());
    used.min(bytes.len())
}

/// Compares images by what they mean: the zeros at the end of a file may or may not be stored.
pub(crate) fn is_same(one: &Image, other: &Image) -> bool {
    one.keys().eq(other.keys())
        && one.values().zip(other.values()).all(|(one, other)| {
            let common = one.bytes.len().min(other.bytes.len());
            let (start, rest) = one.bytes.split_at(common);
            let (other_start, other_rest) = other.bytes.split_at(common);
            one.size == other.size
                && start == other_start
                && used_bytes(rest) + used_bytes(other_rest) == 0
        })
}
