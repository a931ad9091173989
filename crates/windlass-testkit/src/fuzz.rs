//! Fuzzing on stable Rust: mutates the inputs of a corpus and checks a property for each.
//!
//! A corpus is the folder `tests/fuzz/NAME` of a crate. In a file `*.txt`, each line is an input,
//! with the escapes `\r \n \t \0 \\ \" \' \xNN`; any other file is one input as it is. The check
//! returns what it saw, such as the name of an error. An input with which a check sees something new
//! is mutated further.
//!
//! A failure prints the input as a line of the corpus, and the seed that repeats the run.

mod mutation;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_core::Random;
use windlass_engine::Ids;

use crate::seeds::is_long;

/// How many times as many inputs a long run tries.
const LONG: u64 = 50;
/// An input that takes longer than this hangs. Every check takes milliseconds.
const HANG: Duration = Duration::from_secs(30);
/// The most inputs that are mutated.
const POOL_MAX: usize = 4000;
const SEED: u64 = 20_261_115;

/// What to fuzz, and with which inputs.
pub struct Fuzz {
    name: String,
    corpus: PathBuf,
    tokens: Vec<Vec<u8>>,
    inputs: u64,
    hang: Duration,
}

/// Why a run failed.
#[derive(Debug)]
struct Failure {
    input: Vec<u8>,
    what: String,
}

impl Fuzz {
    /// Fuzzes with the corpus `tests/fuzz/NAME` of a crate.
    pub fn new(crate_folder: &str, name: &str) -> Fuzz {
        Fuzz {
            name: name.to_owned(),
            corpus: Path::new(crate_folder).join("tests/fuzz").join(name),
            tokens: Vec::new(),
            inputs: 10_000,
            hang: HANG,
        }
    }

    /// Also inserts these words.
    pub fn tokens(mut self, tokens: &[&str]) -> Fuzz {
        self.tokens = tokens
            .iter()
            .map(|token| token.as_bytes().to_vec())
            .collect();
        self
    }

    /// How many mutated inputs to try; a long run tries 50 times as many.
    pub fn inputs(self, inputs: u64) -> Fuzz {
        Fuzz { inputs, ..self }
    }

    /// Checks text inputs.
    pub fn run_text(self, check: impl Fn(&str) -> String + Send + 'static) {
        self.run(move |input| check(&String::from_utf8_lossy(input)));
    }

    /// Checks inputs. Panics if the check panics or hangs.
    pub fn run(self, check: impl Fn(&[u8]) -> String + Send + 'static) {
        let given = std::env::var("WINDLASS_TEST_SEED").ok();
        let given = given.map(|seed| seed.parse().expect("WINDLASS_TEST_SEED is a number"));
        let drawn = || is_long().then(|| Ids::unpredictable().bits());
        let seed = given.or_else(drawn).unwrap_or(SEED);
        let (name, corpus) = (self.name.clone(), self.corpus.display().to_string());
        if let Err(failure) = self.search(seed, check) {
            panic!(
                "fuzzing {name}: {}\ninput: {}\nrun again with WINDLASS_TEST_SEED={seed}; then add the input to {corpus}",
                failure.what,
                escaped(&failure.input),
            );
        }
    }

    /// Looks for an input that fails, in a thread of its own, so that one that hangs is found.
    fn search(
        self,
        seed: u64,
        check: impl Fn(&[u8]) -> String + Send + 'static,
    ) -> Result<(), Failure> {
        let current = Arc::new((AtomicU64::new(0), Mutex::new(Vec::new())));
        let (report, ended) = channel();
        let (progress, hang) = (Arc::clone(&current), self.hang);
        std::thread::spawn(move || {
            let found = self.try_all(seed, &progress, check);
            let _ = report.send(found); // no one waits after a hang
        });
        let mut tried = 0;
        loop {
            match ended.recv_timeout(hang) {
                Ok(found) => return found,
                Err(RecvTimeoutError::Disconnected) => panic!("the corpus cannot be read"),
                Err(RecvTimeoutError::Timeout) => {
                    let (count, input) = &*current;
                    let before = std::mem::replace(&mut tried, count.load(Ordering::SeqCst));
                    if before == tried {
                        return Err(Failure {
                            input: input.lock().unwrap().clone(),
                            what: format!("no end after {hang:?}"),
                        });
                    }
                }
            }
        }
    }

    fn try_all(
        &self,
        seed: u64,
        (count, current): &(AtomicU64, Mutex<Vec<u8>>),
        check: impl Fn(&[u8]) -> String,
    ) -> Result<(), Failure> {
        let mut pool = read_corpus(&self.corpus);
        assert!(!pool.is_empty(), "{} is empty", self.corpus.display());
        let mut seen = BTreeSet::new();
        let mut is_new = |input: &[u8]| {
            count.fetch_add(1, Ordering::SeqCst);
            input.clone_into(&mut current.lock().unwrap());
            match catch_unwind(AssertUnwindSafe(|| check(input))) {
                Ok(label) => Ok(seen.insert(label)),
                Err(panic) => Err(Failure {
                    input: input.to_vec(),
                    what: message(&*panic),
                }),
            }
        };
        for input in &pool {
            is_new(input)?;
        }
        let inputs = if is_long() {
            self.inputs * LONG
        } else {
            self.inputs
        };
        let mut random = Random::new(seed);
        for _ in 0..inputs {
            let input = mutation::mutate(&mut random, &pool, &self.tokens);
            if is_new(&input)? && pool.len() < POOL_MAX {
                pool.push(input);
            }
        }
        Ok(())
    }
}

/// The text of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("panicked").to_owned()
}

/// Reads the inputs of a corpus, in the order of file names.
fn read_corpus(folder: &Path) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder);
    let files = files.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    let mut inputs = Vec::new();
    for path in paths {
        let bytes = std::fs::read(&path).unwrap();
        if path.extension().is_some_and(|extension| extension == "txt") {
            inputs.extend(bytes.split(|byte| *byte == b'\n').map(unescaped));
        } else {
            inputs.push(bytes);
        }
    }
    inputs
}

/// Writes an input as a line of a corpus.
fn escaped(input: &[u8]) -> String {
    input.escape_ascii().to_string()
}

/// Reads a line of a corpus.
fn unescaped(line: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = line;
    while let [first, after @ ..] = rest {
        let (byte, left) = match (first, after) {
            (b'\\', [b'r', left @ ..]) => (b'\r', left),
            (b'\\', [b'n', left @ ..]) => (b'\n', left),
            (b'\\', [b't', left @ ..]) => (b'\t', left),
            (b'\\', [b'0', left @ ..]) => (b'\0', left),
            (b'\\', [b'x', high, low, left @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).expect("two hexadecimal digits");
                let byte = u8::from_str_radix(digits, 16).expect("two hexadecimal digits");
                (byte, left)
            }
            (b'\\', [quoted, left @ ..]) => (*quoted, left),
            (byte, left) => (*byte, left),
        };
        bytes.push(byte);
        rest = left;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fuzz(folder: &tempfile::TempDir) -> Fuzz {
        let corpus = folder.path().join("tests/fuzz/words");
        std::fs::create_dir_all(&corpus).unwrap();
        std::fs::write(corpus.join("a.txt"), "one two\nthree\\x21").unwrap();
        std::fs::write(corpus.join("b.json"), "{\"a\\n\": 1}").unwrap();
        let fuzz = Fuzz::new(folder.path().to_str().unwrap(), "words");
        fuzz.tokens(&["four", "five"]).inputs(20_000)
    }

    fn text(input: &[u8]) -> String {
        String::from_utf8_lossy(input).into_owned()
    }

    #[test]
    fn a_corpus_has_lines_and_whole_files() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = read_corpus(&fuzz(&folder).corpus);
        let inputs: Vec<String> = inputs.iter().map(|input| text(input)).collect();
        assert_eq!(inputs, ["one two", "three!", "{\"a\\n\": 1}"]);
        for bytes in [b"a\r\n\t\0\"'\\\x7f\xff".as_slice(), b"\\x41"] {
            assert_eq!(unescaped(escaped(bytes).as_bytes()), bytes);
        }
    }

    #[test]
    fn a_check_that_panics_is_found_with_its_input() {
        let folder = tempfile::tempdir().unwrap();
        // Two steps from the corpus: only an input that shows something new leads there.
        let check = |input: &[u8]| {
            let input = text(input);
            let steps = ["five", "fivefour"].map(|step| input.contains(step));
            assert!(!steps[1], "both words");
            format!("{steps:?}")
        };
        let failure = fuzz(&folder).search(1, check).unwrap_err();
        assert!(text(&failure.input).contains("fivefour"), "{failure:?}");
        assert!(failure.what.starts_with("both words"), "{failure:?}");
        let again = fuzz(&folder).search(1, check).unwrap_err();
        assert_eq!(again.input, failure.input, "a seed repeats its run");
    }

    #[test]
    fn a_check_that_hangs_is_found_with_its_input() {
        let folder = tempfile::tempdir().unwrap();
        let check = |input: &[u8]| {
            while input.ends_with(b"three!five") {
                std::thread::yield_now();
                if is_over() {
                    break;
                }
            }
            String::new()
        };
        let hang = Duration::from_millis(300);
        let failure = Fuzz {
            hang,
            ..fuzz(&folder)
        };
        let failure = failure.search(1, check).unwrap_err();
        OVER.store(1, Ordering::SeqCst);
        assert!(text(&failure.input).ends_with("three!five"), "{failure:?}");
        assert_eq!(failure.what, "no end after 300ms");
    }

    static OVER: AtomicU64 = AtomicU64::new(0);

    fn is_over() -> bool {
        OVER.load(Ordering::SeqCst) > 0
    }

    #[test]
    #[should_panic(expected = "run again with WINDLASS_TEST_SEED=")]
    fn a_failure_names_its_seed() {
        let folder = tempfile::tempdir().unwrap();
        fuzz(&folder).run_text(|text| {
            assert!(!text.contains('3'), "a digit that no input has");
            String::new()
        });
    }
}
