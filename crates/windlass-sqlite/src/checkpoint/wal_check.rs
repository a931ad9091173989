//! Whether the log that a former process left is whole.
//!
//! SQLite reads a log up to the first frame that is not as it was written, and drops the rest without a word: right for the
//! last group, which may have been torn and was not acknowledged; wrong for what lies before it.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use windlass_store::StoreError;

/// A log is never shorter than this once it is in use: a shorter one was cut.
pub(crate) const BYTES_MIN: u64 = 64 * 1024 * 1024;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;

/// Refuses a log that was cut, or that is damaged before its last group.
pub(crate) fn check(path: &Path) -> Result<(), StoreError> {
    let failed = |error: std::io::Error| StoreError::Unavailable(error.into());
    let log = File::open(path).map_err(failed)?;
    let bytes = log.metadata().map_err(failed)?.len();
    let found = if bytes < BYTES_MIN {
        Some("is shorter than it was".to_owned())
    } else {
        damage(BufReader::with_capacity(1 << 20, log)).map_err(failed)?
    };
    match found {
        None => Ok(()),
        Some(found) => {
            let path = path.display();
            let what = format!("its log {path} {found}: what was written last cannot be read");
            Err(StoreError::Damaged { what, cause: None })
        }
    }
}

/// What is wrong with a log, if anything is.
fn damage(mut log: impl Read) -> std::io::Result<Option<String>> {
    let mut header = [0; HEADER_BYTES];
    log.read_exact(&mut header)?;
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
    while fill(&mut log, &mut frame)? {
        frames += 1;
        let Some((head, page)) = frame.split_first_chunk::<FRAME_HEADER_BYTES>() else {
            break;
        };
        let [_, commit, of_1, of_2, frame_1, frame_2] = words(head);
        // Behind the end of this log lies an older one, with other salts.
        let is_ours = (of_1, of_2) == (salt_1, salt_2);
        if damaged.is_none() {
            sum.add(head.first_chunk::<8>().unwrap_or(&[0; 8]));
            sum.add(page);
        }
        if damaged.is_some() || !is_ours || sum.sums != (frame_1, frame_2) {
            let damage = damaged.get_or_insert(Damage {
                frame: frames,
                groups: 0,
            });
            damage.groups += u32::from(is_ours && commit != 0);
        }
    }
    // One group may be torn, the last: it was written when all before it were on disk.
    let found = damaged.filter(|damage| damage.groups > 1);
    Ok(found.map(|Damage { frame, groups }| {
        format!("is damaged in frame {frame}, and {groups} groups end there or behind it")
    }))
}

/// Where a log is not as it was written, and how many groups end from there on.
struct Damage {
    frame: u64,
    groups: u32,
}

/// SQLite's checksum of a log, which runs on from frame to frame.
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

/// The big-endian numbers of a header.
fn words<const BYTES: usize, const WORDS: usize>(header: &[u8; BYTES]) -> [u32; WORDS] {
    let (words, _) = header.as_chunks::<4>();
    let mut numbers = [0; WORDS];
    for (number, word) in numbers.iter_mut().zip(words) {
        *number = u32::from_be_bytes(*word);
    }
    numbers
}

/// Reads a whole frame; answers whether there was one.
fn fill(log: &mut impl Read, frame: &mut [u8]) -> std::io::Result<bool> {
    match log.read_exact(frame) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
