//! The overview.

use askama::Template;
use axum::Router;

use crate::frame::{Frame, Section};
use crate::site::{PageResult, Site, page};
use crate::visit::Visit;

pub(super) fn routes() -> Router<Site> {
    Router::new().route("/", page(show))
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
}

async fn show(visit: Visit) -> PageResult {
    let frame = Frame::new(&visit, "Overview", Section::Overview).await?;
    visit.page(&OverviewPage { frame })
}
