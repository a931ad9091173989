//! What may go wrong in a store: one variant for each thing that a caller does differently.

use windlass_core::{JobId, QueueName};

/// The cause of an error, as the driver's own library told it.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A store could not do what it was asked. Unless it says otherwise, nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A queue is at its `max_depth`. Try again when it has drained.
    #[error("queue {queue} is full: it may hold {max_depth} waiting jobs")]
    QueueFull {
        /// The queue.
        queue: QueueName,
        /// Its bound.
        max_depth: u64,
    },

    /// More was asked in one step than a store takes.
    #[error("{what} takes at most {max} in one step, got {got}: split it")]
    TooMany {
        /// The verb.
        what: &'static str,
        /// What was given.
        got: usize,
        /// The bound.
        max: usize,
    },

    /// There is no room left. What was acknowledged is safe; try again when there is room.
    #[error("the disk is full; free some space and the store resumes automatically")]
    StorageFull(#[source] Cause),

    /// The store cannot be reached now. Try again.
    #[error("the store is not available now: try again")]
    Unavailable(#[source] Cause),

    /// The store cannot be opened as it is configured. Trying again changes nothing: somebody must act first.
    #[error("{reason}; {next}")]
    CannotOpen {
        /// Why: names the host and the database, or the path, and never a password.
        reason: String,
        /// What to do.
        next: &'static str,
    },

    /// It is not known whether the step was written. Look before trying again.
    #[error("the store failed while writing: the step may or may not have happened")]
    Indeterminate(#[source] Cause),

    /// The store can no longer promise anything and answers nothing more. Restart.
    #[error("the store stopped and no longer answers; check the disk, then restart the process")]
    Stopped(#[source] Cause),

    /// What is stored is not what was written.
    #[error("the stored data is damaged ({what}): restore a backup")]
    Damaged {
        /// Which part, in words.
        what: String,
        /// What the driver's library said.
        #[source]
        cause: Option<Cause>,
    },

    /// One job cannot be read. All others can.
    #[error(
        "job {job} cannot be read ({reason}): a newer version may have written it; upgrade this node, or repair the row"
    )]
    Unreadable {
        /// Which.
        job: JobId,
        /// What is wrong with it.
        reason: String,
    },

    /// The database does not accept a row of this step, as a constraint or a trigger says. It may
    /// accept others.
    #[error(
        "the database refused the statement ({reason}); correct the row, the constraint or the trigger"
    )]
    Refused {
        /// What the database said: its code and message, without the values of the row.
        reason: String,
    },

    /// What is there is not a store. It was not touched.
    #[error("{path} is not a Windlass store: {found}; use another path")]
    NotAStore {
        /// Where it is.
        path: String,
        /// What is there instead.
        found: String,
    },

    /// A store is there already, and was not to be replaced.
    #[error("there is a store at {path} already: use another path, or replace it explicitly")]
    Exists {
        /// Where it is.
        path: String,
    },

    /// The store was written by another version.
    #[error("the schema is at version {found}, this build needs {needed}; {}", schema_step(*found, *needed))]
    WrongSchema {
        /// The version that is there.
        found: u32,
        /// The newest one that this build knows.
        needed: u32,
    },

    /// Another process has the store.
    #[error("the store at {path} is in use by process {owner}: stop it, or use another path")]
    InUse {
        /// Where the store is.
        path: String,
        /// The process id of the owner, if it is known.
        owner: String,
    },
}

/// What to do about a schema at another version.
fn schema_step(found: u32, needed: u32) -> &'static str {
    if found < needed {
        "run `windlass migrate up`"
    } else {
        "use a newer build"
    }
}
