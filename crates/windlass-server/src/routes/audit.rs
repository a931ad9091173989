//! The audit log.

use axum::http::{Method, StatusCode};
use serde_json::json;
use windlass_api::Cursor;
use windlass_api::schema::{Field, Schema};
use windlass_engine::AuditFilter;

use super::Route;
use crate::access::Scope;
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

const TAG: &str = "audit";

/// Rows of a page of the audit log, at most and unless it is said.
const PAGE_MAX: usize = 1000;
const PAGE_DEFAULT: usize = 100;

pub(super) fn routes() -> Vec<Route> {
    let verified = || {
        Schema::object(vec![
            Field::always("records", Schema::count()),
            Field::always(
                "hash",
                Schema::text().about("Of the newest record: keep it elsewhere."),
            ),
            Field::always("broken", Schema::text().or_null()),
        ])
    };
    vec![
        Route::new(Method::GET, "/api/v1/audit", Scope::Admin, list)
            .says(
                TAG,
                "Lists what operators did and which dead jobs were removed, newest first. \
                 A page may be empty and have a next one.",
            )
            .params(list_params())
            .answers(
                200,
                "A page.",
                Schema::page(Schema::named("AuditRecord"), scan_fields()),
            ),
        Route::new(Method::GET, "/api/v1/audit/verify", Scope::Admin, verify)
            .says(
                TAG,
                "Checks that no record was changed, removed or slipped in.",
            )
            .params([Field::maybe(
                "known",
                Schema::text().about("A hash that was kept elsewhere."),
            )])
            .answers(200, "What was found.", verified()),
    ]
}

fn list_params() -> Vec<Field> {
    let action = "An action such as `job.edit`, or a prefix that ends in a dot, such as `job.`.";
    vec![
        Field::maybe(
            "key",
            Schema::text().about("Who acted: the id or the name of a key."),
        ),
        Field::maybe("action", Schema::text().about(action)),
        Field::maybe("target", Schema::text()),
        Field::maybe("from", Schema::instant().about("At this instant or later.")),
        Field::maybe("before", Schema::instant().about("Before this instant.")),
        Field::maybe("cursor", Schema::text()),
        Field::maybe("limit", Schema::integer(1, 1000)),
    ]
}

/// How far a page got.
fn scan_fields() -> Vec<Field> {
    vec![
        Field::always(
            "scanned",
            Schema::count().about("How many records it looked at."),
        ),
        Field::always("scanned_until", Schema::instant().or_null()),
    ]
}

async fn list(call: Call) -> Result<Answer, Problem> {
    let cursor = call.query().parsed("cursor", Cursor::place)?;
    let limit = call.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let page = call
        .app
        .audit
        .list(&read_filter(&call)?, cursor, limit)
        .await?;
    let next = page.next.map(|next| Cursor::Place(next).to_string());
    let link = call.link(next.as_ref());
    let answer = Answer::ok(&json!({
        "data": page.records, "next_cursor": next,
        "scanned": page.scanned, "scanned_until": page.scanned_until,
    }))?;
    Ok(answer.next(link))
}

fn read_filter(call: &Call) -> Result<AuditFilter, Problem> {
    let mut query = call.query();
    Ok(AuditFilter {
        key: query.text("key")?.map(str::to_owned),
        action: query.text("action")?.map(str::to_owned),
        target: query.text("target")?.map(str::to_owned),
        from: query.timestamp("from")?,
        before: query.timestamp("before")?,
    })
}

async fn verify(call: Call) -> Result<Answer, Problem> {
    let known = call.query().text("known")?.map(str::to_owned);
    Answer::json(
        StatusCode::OK,
        &call.app.audit.verify(known.as_deref()).await?,
    )
}
