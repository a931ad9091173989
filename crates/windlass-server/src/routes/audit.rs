//! The audit log.

use axum::http::{Method, StatusCode};
use serde_json::json;
use windlass_api::Cursor;
use windlass_api::schema::{Field, Schema};

use super::Route;
use crate::access::Scope;
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

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
            .says("audit", "Lists what operators did, the oldest first.")
            .params([
                Field::maybe("cursor", Schema::text()),
                Field::maybe("limit", Schema::integer(1, 1000)),
            ])
            .answers(
                200,
                "A page.",
                Schema::page(Schema::named("AuditRecord"), vec![]),
            ),
        Route::new(Method::GET, "/api/v1/audit/verify", Scope::Admin, verify)
            .says(
                "audit",
                "Checks that no record was changed, removed or slipped in.",
            )
            .params([Field::maybe(
                "known",
                Schema::text().about("A hash that was kept elsewhere."),
            )])
            .answers(200, "What was found.", verified()),
    ]
}

async fn list(call: Call) -> Result<Answer, Problem> {
    let after = call.query().parsed("cursor", Cursor::place)?.unwrap_or(0);
    let limit = call.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let records = call.app.audit.list(after, limit).await?;
    let full = records.len() == limit;
    let last = records.last().filter(|_| full).map(|record| record.number);
    let next = last.map(|number| Cursor::Place(number).to_string());
    let link = call.link(next.as_ref());
    let answer = Answer::ok(&json!({"data": records, "next_cursor": next}))?;
    Ok(answer.next(link))
}

async fn verify(call: Call) -> Result<Answer, Problem> {
    let known = call.query().text("known")?.map(str::to_owned);
    Answer::json(
        StatusCode::OK,
        &call.app.audit.verify(known.as_deref()).await?,
    )
}
