//! The scheduler form: a schedule and a URL in one flat object, such as
//! `{"schedule": "*/10 * * * * *", "api": "https://…"}`.
//!
//! [`SchedulerForm`] turns a form into a schedule of HTTP jobs. [`FormFailureLog`] logs the
//! failures of these jobs in the fixed wording that users of the form search for.

mod failure_log;
mod lines;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use windlass_core::fields::{Fields, RawFields};
use windlass_core::retry::{ATTEMPTS_CEILING, AttemptLimit};
use windlass_core::schedule::{Expression, NewSchedule, Recurrence, Zone};
use windlass_core::{
    Delivery, Invalid, NewJob, PAYLOAD_BYTES_MAX, Payload, ScheduleName, Timestamp,
};

use crate::job::{http_kind, with_defaults};
use crate::request::HttpRequest;

pub use failure_log::{FormFailureLog, failure_line};
pub use lines::{gave_up_line, next_execution_time, retry_line, status_of};

/// The entry of a job's `meta` that marks jobs of the form. It holds the fields of the form that
/// concern the schedule. Clients cannot set names that start with `windlass.`, so no other job looks
/// like one of the form.
pub const FORM_META: &str = "windlass.scheduler_form";

/// The default of `maxRetryCount`.
const MAX_RETRY_COUNT_DEFAULT: i64 = 3;

/// A valid form.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerForm {
    expression: Expression,
    recurring: bool,
    request: HttpRequest,
    job: NewJob,
}

/// Why a form is invalid: a code that users of the form know, the field and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{invalid}")]
pub struct FormError {
    /// The code, such as `INVALID_SCHEDULE`.
    pub code: &'static str,
    /// The field and the rule that it breaks.
    pub invalid: Invalid,
}

impl SchedulerForm {
    /// Reads a form from JSON text.
    ///
    /// # Errors
    ///
    /// [`FormError`] if a field breaks a rule.
    pub fn from_json(text: &str) -> Result<Self, FormError> {
        let parts = RawFields::parse(text).map_err(FormError::of)?;
        SchedulerForm::from_parts(&parts, PAYLOAD_BYTES_MAX)
    }

    /// Reads a form from the fields of an object. Its request may have at most `payload_bytes_max`
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`FormError`] if a field breaks a rule.
    pub fn from_parts(parts: &RawFields, payload_bytes_max: usize) -> Result<Self, FormError> {
        let others = parts.values_except("body").map_err(FormError::of)?;
        let mut fields = Fields::of(&others);
        let form = SchedulerForm::from_fields(&mut fields, parts.raw("body"), payload_bytes_max);
        let form = form.map_err(FormError::of)?;
        fields.finish().map_err(FormError::of)?;
        Ok(form)
    }

    fn from_fields(
        fields: &mut Fields<'_>,
        body: Option<&str>,
        payload_bytes_max: usize,
    ) -> Result<Self, Invalid> {
        let expression = fields
            .parsed("schedule", read_expression)?
            .ok_or_else(|| Invalid::new("schedule", "is required"))?;
        let delivery = fields.parsed("type", read_type)?;
        let recurring = fields.flag("isRecurring")?.unwrap_or(true);
        let retries_max = i64::from(ATTEMPTS_CEILING) - 1;
        let retries = fields.integer("maxRetryCount", 0, retries_max)?;
        let retries = retries.unwrap_or(MAX_RETRY_COUNT_DEFAULT);
        let (request, payload) = read_payload(fields, body, payload_bytes_max)?;
        let mut job = with_defaults(NewJob {
            payload,
            delivery: delivery.unwrap_or_default(),
            max_attempts: AttemptLimit::from_either(None, Some(retries))?,
            ..NewJob::new(http_kind())
        });
        let form_meta = json!({
            "schedule": fields.text("schedule")?, "isRecurring": recurring, "maxRetryCount": retries,
        });
        job.meta.insert(FORM_META.to_owned(), form_meta);
        job.check_with(payload_bytes_max)?;
        Ok(SchedulerForm {
            expression,
            recurring,
            request,
            job,
        })
    }

    /// Returns the request that each occurrence sends.
    pub fn request(&self) -> &HttpRequest {
        &self.request
    }

    /// Returns the schedule of the form, created at `now`. With `isRecurring: false` it fires once, at
    /// the next match of the expression.
    ///
    /// # Errors
    ///
    /// [`FormError`] if the expression never matches after `now`.
    pub fn into_schedule(
        self,
        name: ScheduleName,
        now: Timestamp,
    ) -> Result<NewSchedule, FormError> {
        let expression = if self.recurring {
            self.expression
        } else {
            let matches = Recurrence::new(self.expression, Zone::utc(), now);
            let next = matches.next(now).ok_or_else(|| {
                FormError::of(Invalid::new(
                    "schedule",
                    "has no future occurrence: it would never fire",
                ))
            })?;
            Expression::At(next.at)
        };
        let schedule = NewSchedule::new(name, expression, self.job);
        schedule
            .check_with(now, usize::MAX) // `from_fields` checked the payload
            .map_err(|invalid| FormError::of(Invalid::new("schedule", invalid.rule())))?;
        Ok(schedule)
    }
}

fn read_expression(text: &str) -> Result<Expression, Invalid> {
    if text.trim_start().starts_with("at ") {
        return Err(Invalid::new("", "must be a cron expression"));
    }
    let parsed: Result<Expression, Invalid> = text.parse();
    parsed.map_err(|invalid| Invalid::new("", format!("is not a valid schedule: {invalid}")))
}

fn read_type(text: &str) -> Result<Delivery, Invalid> {
    match text {
        "AT_LEAST_ONCE" => Ok(Delivery::AtLeastOnce),
        "AT_MOST_ONCE" => Ok(Delivery::AtMostOnce),
        _ => Err(Invalid::new("", "must be AT_LEAST_ONCE or AT_MOST_ONCE")),
    }
}

/// Reads the payload of the HTTP job, with the body byte for byte. Errors name the fields of the
/// form, not of the payload.
fn read_payload(
    fields: &mut Fields<'_>,
    body: Option<&str>,
    payload_bytes_max: usize,
) -> Result<(HttpRequest, Payload), Invalid> {
    let mut request = serde_json::Map::new();
    let api = fields
        .text("api")?
        .ok_or_else(|| Invalid::new("api", "is required"))?;
    request.insert("url".to_owned(), api.into());
    for name in ["method", "headers", "sign"] {
        if let Some(value) = fields.value(name) {
            request.insert(name.to_owned(), value.clone());
        }
    }
    let text = match body {
        None => Value::Object(request).to_string(),
        Some(body) => with_body(&request, body)?,
    };
    let request = HttpRequest::from_json(&text).map_err(|invalid| {
        let field = invalid.field();
        let form_field = match field.strip_prefix("url") {
            Some(rest) => format!("api{rest}"),
            None => field.to_owned(),
        };
        Invalid::new(form_field, invalid.rule())
    })?;
    let payload = Payload::parse(&text, payload_bytes_max);
    Ok((request, payload.map_err(|invalid| invalid.within("body"))?))
}

fn with_body(request: &serde_json::Map<String, Value>, body: &str) -> Result<String, Invalid> {
    #[derive(serde::Serialize)]
    struct Request<'a> {
        #[serde(flatten)]
        others: &'a serde_json::Map<String, Value>,
        body: Box<RawValue>,
    }
    let bad = |error: serde_json::Error| Invalid::new("body", format!("must be JSON: {error}"));
    let body = RawValue::from_string(body.to_owned()).map_err(bad)?;
    let others = request;
    serde_json::to_string(&Request { others, body }).map_err(bad)
}

impl FormError {
    /// Adds the code that belongs to the invalid field.
    pub fn of(invalid: Invalid) -> Self {
        let field = invalid.field().split(['.', '[']).next().unwrap_or("");
        let code = match field {
            "schedule" => "INVALID_SCHEDULE",
            "api" => "INVALID_API",
            "type" => "INVALID_JOB_TYPE",
            "isRecurring" => "INVALID_IS_RECURRING",
            "maxRetryCount" | "max_retries" | "max_attempts" => "INVALID_MAX_RETRY_COUNT",
            "method" => "INVALID_METHOD",
            "headers" => "INVALID_HEADERS",
            "body" | "payload" => "INVALID_BODY",
            "sign" => "INVALID_SIGN",
            _ if invalid.rule().starts_with("is not a known field") => "UNKNOWN_FIELD",
            _ => "INVALID_REQUEST",
        };
        FormError { code, invalid }
    }

    /// Returns the code, the field and the rule as JSON.
    pub fn to_json(&self) -> Value {
        json!({"code": self.code, "field": self.invalid.field(), "rule": self.invalid.rule()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T12:00:03Z".parse().unwrap()
    }

    fn read(text: &str) -> NewSchedule {
        let name = ScheduleName::new("form").unwrap();
        let form = SchedulerForm::from_json(text).unwrap();
        form.into_schedule(name, now()).unwrap()
    }

    fn next(schedule: &NewSchedule) -> String {
        schedule
            .recurrence(now())
            .next(now())
            .unwrap()
            .at
            .to_string()
    }

    #[test]
    fn the_three_known_forms_are_accepted() {
        let first = read(
            r#"{"schedule": "*/10 * * * * *", "api": "https://unreliable-api.com/webhook",
            "type": "AT_LEAST_ONCE", "isRecurring": true, "maxRetryCount": 3}"#,
        );
        assert_eq!(next(&first), "2026-01-01T12:00:10Z");
        assert_eq!(first.job.kind, http_kind());
        assert_eq!(first.job.delivery, Delivery::AtLeastOnce);
        assert_eq!(first.job.max_attempts.unwrap().get(), 4);
        let request = HttpRequest::check_payload(&first.job.payload, first.job.delivery).unwrap();
        assert_eq!(request.url, "https://unreliable-api.com/webhook");
        assert_eq!((request.method.as_str(), request.body.len()), ("POST", 0));
        let second = read(
            r#"{"schedule": "0 0 12 * * *", "api": "https://critical-api.com/notification",
            "type": "AT_MOST_ONCE", "isRecurring": false, "maxRetryCount": 5}"#,
        );
        let at = "2026-01-02T12:00:00Z".parse().unwrap();
        assert_eq!(second.expression, Expression::At(at));
        assert_eq!(second.job.delivery, Delivery::AtMostOnce);
        let third = read(
            r#"{"schedule": "*/5 * * * * *", "api": "https://sometimes-down.com/api",
            "type": "AT_LEAST_ONCE", "isRecurring": true, "maxRetryCount": 2}"#,
        );
        assert_eq!(third.job.max_attempts.unwrap().get(), 3);
    }

    #[test]
    fn missing_fields_have_defaults_and_the_others_are_used() {
        let plain = read(r#"{"schedule": "* * * * *", "api": "https://a.example"}"#);
        assert_eq!(plain.job.delivery, Delivery::AtLeastOnce);
        assert_eq!(plain.job.max_attempts.unwrap().get(), 4);
        assert!(matches!(plain.expression, Expression::Cron(_)));
        assert_eq!(plain.job.meta[FORM_META]["schedule"], "* * * * *");
        let full = read(
            r#"{"schedule": "@every 90s", "api": "https://a.example", "maxRetryCount": 0, "method": "PUT",
            "headers": {"x-a": "1"}, "body": {"b": 1.0,  "a": 2}}"#,
        );
        assert_eq!(full.job.max_attempts.unwrap().get(), 1);
        let request = HttpRequest::check_payload(&full.job.payload, full.job.delivery).unwrap();
        assert_eq!(request.method, "PUT");
        assert_eq!(request.headers["x-a"], "1");
        assert_eq!(request.body, r#"{"b": 1.0,  "a": 2}"#);
    }

    #[test]
    fn errors_have_the_codes_that_users_know() {
        let with = |more: &str| {
            format!(r#"{{"schedule": "* * * * *", "api": "https://a.example"{more}}}"#)
        };
        for (code, field, text) in [
            ("INVALID_REQUEST", "", "[]".to_owned()),
            (
                "INVALID_SCHEDULE",
                "schedule",
                r#"{"api": "https://a.example"}"#.to_owned(),
            ),
            (
                "INVALID_API",
                "api",
                r#"{"schedule": "* * * * *"}"#.to_owned(),
            ),
            (
                "INVALID_API",
                "api",
                r#"{"schedule": "* * * * *", "api": "ftp://x"}"#.to_owned(),
            ),
            (
                "INVALID_API",
                "api",
                r#"{"schedule": "* * * * *", "api": "http://x:22/"}"#.to_owned(),
            ),
            ("INVALID_JOB_TYPE", "type", with(r#", "type": "SOMETIMES""#)),
            ("INVALID_JOB_TYPE", "type", with(r#", "type": 5"#)),
            (
                "INVALID_IS_RECURRING",
                "isRecurring",
                with(r#", "isRecurring": "yes""#),
            ),
            (
                "INVALID_MAX_RETRY_COUNT",
                "maxRetryCount",
                with(r#", "maxRetryCount": -1"#),
            ),
            (
                "INVALID_MAX_RETRY_COUNT",
                "maxRetryCount",
                with(r#", "maxRetryCount": 1000"#),
            ),
            ("INVALID_METHOD", "method", with(r#", "method": "TRACE""#)),
            (
                "INVALID_HEADERS",
                "headers.host",
                with(r#", "headers": {"host": "x"}"#),
            ),
            (
                "INVALID_BODY",
                "body",
                with(r#", "method": "GET", "body": "x""#),
            ),
            ("UNKNOWN_FIELD", "maxRetries", with(r#", "maxRetries": 3"#)),
        ] {
            let refusal = SchedulerForm::from_json(&text).expect_err(&text);
            assert_eq!(
                (refusal.code, refusal.invalid.field()),
                (code, field),
                "{text}: {refusal}"
            );
        }
        for schedule in [
            "",
            "invalid cron",
            "0 0 25 * * *",
            "60 * * * * *",
            "*/0 * * * * *",
            "0 0 0 30 2 *",
            "at 2027-01-01T00:00:00Z",
        ] {
            let text = format!(r#"{{"schedule": "{schedule}", "api": "https://a.example"}}"#);
            let refusal = SchedulerForm::from_json(&text).expect_err(schedule);
            assert_eq!(refusal.code, "INVALID_SCHEDULE", "{schedule}: {refusal}");
        }
        let past = r#"{"schedule": "0 0 0 1 1 * 2020", "api": "https://a.example"}"#;
        let name = ScheduleName::new("form").unwrap();
        let refusal = SchedulerForm::from_json(past).map(|form| form.into_schedule(name, now()));
        let refusal = refusal.map_or_else(|refusal| refusal, |made| made.unwrap_err());
        assert_eq!(refusal.code, "INVALID_SCHEDULE");
        assert_eq!(refusal.to_json()["field"], "schedule");
    }
}
