//! When schedules will fire.

use windlass_api::{CheckedPreview, Firing, Page, Preview, PreviewParams};

use super::named;
use crate::call::Call;
use crate::endpoint::{JsonBody, Params, Reply};
use crate::problem::Problem;

/// Shows when a rule would fire, without storing it.
pub(super) async fn rule(
    _: Call,
    JsonBody(preview): JsonBody<Preview>,
) -> Result<Reply<Page<Firing>>, Problem> {
    let CheckedPreview {
        recurrence,
        after,
        count,
    } = preview;
    let firings = recurrence.after(after).take(count);
    let firings = firings.map(|firing| Firing::new(&firing, &recurrence.zone));
    Ok(Reply::ok(Page::single(firings.collect())))
}

/// Shows the next occurrences of a stored schedule.
pub(super) async fn stored(
    call: Call,
    Params(params): Params<PreviewParams>,
) -> Result<Reply<Page<Firing>>, Problem> {
    let definition = named(&call).await?.readable()?.definition;
    let client = &call.app.client;
    let firings = client
        .preview_schedule(definition.name.as_str(), params.count())
        .await?;
    let firings = firings.iter();
    let firings = firings.map(|firing| Firing::new(firing, &definition.timezone));
    Ok(Reply::ok(Page::single(firings.collect())))
}
