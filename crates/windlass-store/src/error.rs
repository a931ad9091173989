//! Errors of a store: one variant for each case that callers handle differently.

use windlass_core::{JobId, QueueName};

/// The cause of an error, from the driver's library.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The error of a store. Unless a variant says otherwise, nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A queue has reached its `max_depth`. Try again when jobs have left it.
    #[error(
        "queue {queue} is full: it holds its limit of {max_depth} waiting jobs; try again later"
    )]
    QueueFull {
        /// The queue.
        queue: QueueName,
        /// The most jobs that may wait in it.
        max_depth: u64,
    },

    /// A batch is larger than the store accepts.
    #[error("`{what}` takes at most {max} items at once, got {got}; split the batch")]
    TooMany {
        /// The verb.
        what: &'static str,
        /// The size of the batch.
        got: usize,
        /// The limit.
        max: usize,
    },

    /// The disk is full. Acknowledged data is safe; try again when there is space.
    #[error("the disk is full; free some space and the store resumes automatically")]
    StorageFull(#[source] Cause),

    /// The store cannot be reached. Try again.
    #[error("the store is unavailable; try again")]
    Unavailable(#[source] Cause),

    /// The store cannot be opened with this configuration. Trying again does not help until a
    /// person changes something.
    #[error("{reason}; {next}")]
    CannotOpen {
        /// Why. Names the host and database, or the path, and never a password.
        reason: String,
        /// What to do next.
        next: &'static str,
    },

    /// It is unknown whether the write took effect. Check before trying again.
    #[error(
        "the store failed during a write, which may or may not have taken effect; check before you try again"
    )]
    Indeterminate(#[source] Cause),

    /// The store cannot guarantee anything any longer and refuses every call. Restart the process.
    #[error("the store stopped and no longer answers; check the disk, then restart the process")]
    Stopped(#[source] Cause),

    /// The stored data is damaged.
    #[error("the stored data is damaged ({what}); restore a backup")]
    Damaged {
        /// What is damaged, in words.
        what: String,
        /// The error of the driver's library.
        #[source]
        cause: Option<Cause>,
    },

    /// This version cannot read one job. All others can be read.
    #[error(
        "cannot read job {job} ({reason}); a newer version may have written it: upgrade this node, or repair the row"
    )]
    Unreadable {
        /// The job.
        job: JobId,
        /// What is wrong with the stored job.
        reason: String,
    },

    /// A constraint or trigger of the database refuses a row of this step. It may accept other
    /// rows.
    #[error(
        "the database refused the statement ({reason}); correct the row, the constraint or the trigger"
    )]
    Refused {
        /// The code and message of the database, without the values of the row.
        reason: String,
    },

    /// The path is not a store. Nothing was changed there.
    #[error("{path} is not a Windlass store: {found}; use another path")]
    NotAStore {
        /// The path.
        path: String,
        /// What is there instead.
        found: String,
    },

    /// A store already exists at the path and is not replaced.
    #[error(
        "a store already exists at {path}; use another path, or restore with `Existing::Replace`"
    )]
    Exists {
        /// The path.
        path: String,
    },

    /// The schema of the store has another version than this build needs.
    #[error("the schema is at version {found}, this build needs {needed}; {}", schema_step(*found, *needed))]
    WrongSchema {
        /// The version of the store.
        found: u32,
        /// The version that this build needs.
        needed: u32,
    },

    /// Another process has opened the store.
    #[error(
        "the store at {path} is in use by process {owner}; stop that process, or use another path"
    )]
    InUse {
        /// The path of the store.
        path: String,
        /// The process id of the owner, if known.
        owner: String,
    },
}

/// What to do about a different schema version.
fn schema_step(found: u32, needed: u32) -> &'static str {
    if found < needed {
        "run `windlass migrate up`"
    } else {
        "use a newer build"
    }
}
