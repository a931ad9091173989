//! The pages. Each has its routes, its data and its template.

mod actions;
mod admin;
mod dead;
mod general;
mod job;
mod jobs;
mod lab;
mod overview;
mod queues;
mod reference;
mod schedules;
mod workers;

use axum::Router;

use crate::site::Site;

/// The routes of all pages.
pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .merge(general::routes())
        .merge(overview::routes())
        .merge(jobs::routes())
        .merge(queues::routes())
        .merge(workers::routes())
        .merge(admin::routes())
        .merge(reference::routes())
        .merge(actions::routes())
        .merge(dead::routes())
        .merge(job::routes())
        .merge(lab::routes())
        .merge(schedules::routes())
}
