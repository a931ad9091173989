//! Spans of time that count from now.

use windlass_core::fields::{Fields, refuse_both};
use windlass_core::{Invalid, Timestamp};

/// An instant under `at`, or so long from now under `span`.
pub(crate) fn instant_or_span(
    fields: &mut Fields<'_>,
    at: &str,
    span: &str,
    now: Timestamp,
) -> Result<Option<Timestamp>, Invalid> {
    let instant = fields.timestamp(at)?;
    let after = fields.duration(span)?;
    refuse_both(instant.is_some() && after.is_some(), span, at)?;
    Ok(instant.or(after.map(|after| now.saturating_add(after))))
}
