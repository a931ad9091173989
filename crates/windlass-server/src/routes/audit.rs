//! The audit log.

use windlass_api::{
    AuditPage, AuditParams, AuditPosition, AuditRecord, PageCursor, PageParams, VerifiedAudit,
    VerifyParams,
};
use windlass_engine::AuditFilter;

use super::Route;
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{Params, Reply};
use crate::problem::Problem;

const TAG: &str = "audit";

/// The number of records on a page if the request gives no limit.
const PAGE_DEFAULT: usize = 100;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/v1/audit", Scope::Admin, list)
            .summary(
                TAG,
                "Lists the audit log, newest first: changes by operators, and automatic removals of dead jobs. \
                 A page can be empty although there is a next page.",
            )
            .status(200, "A page of records."),
        Route::get("/api/v1/audit/verify", Scope::Admin, verify)
            .summary(
                TAG,
                "Verifies that no record of the audit log was changed, removed or inserted.",
            )
            .status(200, "The result of the verification."),
    ]
}

async fn list(
    call: Call,
    Params(params): Params<AuditParams>,
    Params(page): Params<PageParams<AuditPosition>>,
) -> Result<Reply<AuditPage>, Problem> {
    let filter = AuditFilter {
        key: params.key,
        action: params.action,
        target: params.target,
        from: params.from,
        before: params.before,
    };
    let (limit, after) = (page.limit_or(PAGE_DEFAULT), page.after());
    let after = after.map(|after| after.0);
    let page = call.app.audit.list(&filter, after, limit).await?;
    let next_cursor = page
        .next
        .map(|next| PageCursor(AuditPosition(next)).to_string());
    let link = call.link(next_cursor.as_ref());
    let page = AuditPage {
        data: page.records.into_iter().map(record).collect(),
        next_cursor,
        scanned: u64::try_from(page.scanned).unwrap_or(u64::MAX),
        scanned_until: page.scanned_until,
    };
    Ok(Reply::ok(page).next(link))
}

fn record(record: windlass_engine::AuditRecord) -> AuditRecord {
    AuditRecord {
        number: record.number,
        at: record.at,
        key: record.key,
        name: record.name,
        action: record.action,
        target: record.target,
        detail: record.detail,
        previous: record.previous,
        hash: record.hash,
    }
}

async fn verify(
    call: Call,
    Params(params): Params<VerifyParams>,
) -> Result<Reply<VerifiedAudit>, Problem> {
    let verified = call.app.audit.verify(params.known.as_deref()).await?;
    Ok(Reply::ok(VerifiedAudit {
        records: verified.records,
        hash: verified.hash,
        broken: verified.broken,
    }))
}
