//! Checks the WAL that a killed process left behind.
//!
//! At a start SQLite reads the WAL up to the first frame with a wrong checksum and silently ignores
//! the rest. That is right for the last transaction: a crash may have torn it, and it was never
//! acknowledged. It is wrong for damage before that: acknowledged jobs would be lost without an
//! error. So the driver reads the WAL first and refuses to open the store if more than one
//! transaction is affected.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use windlass_store::StoreError;

/// The size of the WAL file while a store is open. A shorter one was truncated from outside.
pub(crate) const BYTES_MIN: u64 = 64 * 1024 * 1024;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;

/// Refuses a WAL that was truncated, or that is damaged before its last transaction.
pub(crate) fn check(path: &Path) -> Result<(), StoreError> {
    let failed = |error: std::io::Error| StoreError::Unavailable(error.into());
    let wal = &File::open(path).map_err(failed)?;
    let bytes = wal.metadata().map_err(failed)?.len();
    let problem = if bytes < BYTES_MIN {
        Some("was truncated".to_owned())
    } else {
        let used = wal.take(used_bytes(wal, bytes));
        find_damage(BufReader::with_capacity(1 << 20, used)).map_err(failed)?
    };
    match problem {
        None => Ok(()),
        Some(problem) => {
            let path = path.display();
            let what = format!("its write-ahead log {path} {problem}; the latest writes are lost");
            Err(StoreError::Damaged { what, cause: None })
        }
    }
}

/// Returns where the data of a file ends. Most of the WAL is usually a hole that was never written,
/// and reading it would take most of the time of the check.
fn used_bytes(file: &File, bytes: u64) -> u64 {
    let mut end = 0;
    while let Ok(data) = seek(file, SeekFrom::Data(end)) {
        match seek(file, SeekFrom::Hole(data)) {
            Ok(hole) => end = hole,
            Err(_) => return bytes,
        }
    }
    let is_rewound = seek(file, SeekFrom::Start(0)).is_ok();
    if end == 0 || !is_rewound { bytes } else { end }
}

/// Returns what is wrong with a WAL, if anything.
fn find_damage(mut wal: impl Read) -> std::io::Result<Option<String>> {
    let mut header = [0; HEADER_BYTES];
    wal.read_exact(&mut header)?;
    let [magic, _, page_bytes, _, salt_1, salt_2, sum_1, sum_2] = words(&header);
    let mut sum = Sum {
        big_endian: magic & 1 == 1,
        sums: (0, 0),
    };
    sum.add(header.first_chunk::<24>().unwrap_or(&[0; 24]));
    if magic & !1 != 0x377f_0682 || sum.sums != (sum_1, sum_2) {
        return Ok(Some("has a damaged header".to_owned()));
    }
    let mut frame = vec![0; FRAME_HEADER_BYTES + page_bytes as usize];
    let mut frames = 0_u64;
    let mut damaged: Option<Damage> = None;
    while read_frame(&mut wal, &mut frame)? {
        frames += 1;
        let Some((head, page)) = frame.split_first_chunk::<FRAME_HEADER_BYTES>() else {
            break;
        };
        let [_, commit, frame_salt_1, frame_salt_2, frame_1, frame_2] = words(head);
        // After a restart the WAL is overwritten from its start. What follows the new frames is of
        // the previous WAL, and has other salts.
        let is_current = (frame_salt_1, frame_salt_2) == (salt_1, salt_2);
        if damaged.is_none() {
            sum.add(head.first_chunk::<8>().unwrap_or(&[0; 8]));
            sum.add(page);
        }
        if damaged.is_some() || !is_current || sum.sums != (frame_1, frame_2) {
            let damage = damaged.get_or_insert(Damage {
                frame: frames,
                commits: 0,
            });
            damage.commits += u32::from(is_current && commit != 0);
        }
    }
    // Only the last transaction may be torn: it was written after all others were synced.
    let damaged = damaged.filter(|damage| damage.commits > 1);
    Ok(damaged.map(|Damage { frame, commits }| {
        format!("is damaged at frame {frame}, which affects {commits} transactions")
    }))
}

/// The first damaged frame, and how many transactions commit in it or after it.
struct Damage {
    frame: u64,
    commits: u32,
}

/// SQLite's checksum of a WAL; each frame's checksum continues that of the frame before.
struct Sum {
    big_endian: bool,
    sums: (u32, u32),
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        let (pairs, _) = bytes.as_chunks::<8>();
        for [a, b, c, d, e, f, g, h] in pairs {
            let (first, second) = if self.big_endian {
                (
                    u32::from_be_bytes([*a, *b, *c, *d]),
                    u32::from_be_bytes([*e, *f, *g, *h]),
                )
            } else {
                (
                    u32::from_le_bytes([*a, *b, *c, *d]),
                    u32::from_le_bytes([*e, *f, *g, *h]),
                )
            };
            self.sums.0 = self.sums.0.wrapping_add(first).wrapping_add(self.sums.1);
            self.sums.1 = self.sums.1.wrapping_add(second).wrapping_add(self.sums.0);
        }
    }
}

/// Reads the big-endian numbers of a header.
fn words<const BYTES: usize, const WORDS: usize>(header: &[u8; BYTES]) -> [u32; WORDS] {
    let (words, _) = header.as_chunks::<4>();
    let mut numbers = [0; WORDS];
    for (number, word) in numbers.iter_mut().zip(words) {
        *number = u32::from_be_bytes(*word);
    }
    numbers
}

/// Reads a whole frame. Returns `false` at the end of the file.
fn read_frame(wal: &mut impl Read, frame: &mut [u8]) -> std::io::Result<bool> {
    match wal.read_exact(frame) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
