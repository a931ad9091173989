//! Why a page or an action failed, and the page that says so.

use askama::Template;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use windlass_api::Problem;

use crate::backend::Answer;
use crate::frame::{Frame, Section};
use crate::headers::html;
use crate::visit::Visit;

/// Why a page or an action failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) code: String,
    pub(crate) detail: String,
    pub(crate) hint: Option<String>,
    pub(crate) request_id: Option<String>,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Failure {
            status,
            code: code.to_owned(),
            detail: detail.into(),
            hint: None,
            request_id: None,
        }
    }

    /// The failure of a path that no page has.
    pub(crate) fn no_page() -> Self {
        let detail = "There is no page at this address.";
        Failure::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// The failure of a form with an invalid field.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
    }

    /// The problem that a route answered with.
    pub(crate) fn of(answer: &Answer) -> Self {
        let Ok(problem) = serde_json::from_slice::<Problem>(&answer.body) else {
            let detail = "the server returned an answer that the dashboard cannot read";
            return Failure::new(answer.status, "unreadable", detail);
        };
        let fields = problem
            .errors
            .iter()
            .map(|error| format!("{}: {}", error.pointer.trim_start_matches("/"), error.rule));
        let fields: Vec<_> = fields.collect();
        let detail = match fields.is_empty() {
            true => problem.detail,
            false => fields.join("; "),
        };
        Failure {
            status: answer.status,
            code: problem.code,
            detail,
            hint: problem.hint,
            request_id: problem.request_id,
        }
    }

    /// The failure of JSON that does not have the expected shape.
    pub(crate) fn unreadable(error: &serde_json::Error) -> Self {
        let detail = format!("the server returned an unexpected answer: {error}");
        Failure::new(StatusCode::BAD_GATEWAY, "unreadable", detail)
    }

    /// Returns the page that shows the failure. It needs nothing from the store.
    pub(crate) fn page(&self, visit: &Visit) -> Response<Body> {
        let title = match self.status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::SERVICE_UNAVAILABLE => "The store does not answer",
            status if status.is_client_error() => "This did not work",
            _ => "Something failed",
        };
        let page = FailurePage {
            frame: Frame::bare(visit, title, Section::None),
            failure: self,
        };
        let mut response = html(page.render().unwrap_or_default());
        *response.status_mut() = self.status;
        response
    }

    /// What still works, and what to do next.
    fn next_step(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => {
                "It may have been removed, or the address has a typing error. The search above finds jobs by id."
            }
            StatusCode::FORBIDDEN => {
                "Sign in with a key that has the scope, or ask an administrator for it. All other pages still work."
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                "Jobs that are running continue. No new attempt starts until the store answers again. This page works again as soon as it does."
            }
            status if status.is_client_error() => {
                "Nothing was changed. Go back, correct it and try again."
            }
            _ => {
                "Nothing was changed. Try again; if it fails again, look for the request id in the log of the server."
            }
        }
    }
}

#[derive(Template)]
#[template(path = "failure.html")]
struct FailurePage<'a> {
    frame: Frame,
    failure: &'a Failure,
}
