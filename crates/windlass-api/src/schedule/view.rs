//! Schedules as a client reads them.

use schemars::JsonSchema;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use windlass_core::schedule::{
    CATCH_UP_CEILING, CATCH_UP_DEFAULT, Expression, Missed, NewSchedule, Overlap,
};
use windlass_core::{ScheduleId, ScheduleName, Timestamp};

use crate::{BoundedInt, Content, DurationText, NewJob};

/// A schedule.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Schedule {
    /// Id of the schedule.
    pub id: ScheduleId,
    /// Name of the schedule.
    pub name: ScheduleName,
    /// Cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Interval between occurrences, in real time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<DurationText>,
    /// Time at which the schedule fires once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// IANA time zone of `cron`.
    pub timezone: String,
    /// What happens to occurrences that were missed while no server ran. Absent if the default
    /// applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<Missed>,
    /// An occurrence that is later than this counts as missed.
    pub missed_after: DurationText,
    /// Most missed occurrences that fire together; older ones are skipped. Absent if the default of
    /// 100 applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up_max: Option<BoundedInt<1, { CATCH_UP_CEILING as i64 }>>,
    /// What happens to an occurrence while the job of an earlier one has not finished.
    pub overlap: Overlap,
    /// Each occurrence is delayed by a fixed part of this duration.
    pub splay: DurationText,
    /// The schedule does not fire before this time.
    pub starts_at: Option<Timestamp>,
    /// The schedule does not fire after this time.
    pub ends_at: Option<Timestamp>,
    /// Whether the schedule is paused.
    pub paused: bool,
    /// Job that each occurrence creates. Fields at their defaults are left out.
    pub job: NewJob,
    /// When the schedule was created.
    pub created_at: Timestamp,
    /// Time of the last occurrence that fired or was skipped.
    pub last_at: Option<Timestamp>,
    /// Time of the next occurrence. Null while the schedule is paused.
    pub next_at: Option<Timestamp>,
    /// True if the schedule will not fire again.
    pub finished: bool,
    /// True if the payload is left out because the key lacks the scope `read-payload`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub payload_withheld: bool,
}

/// When a schedule was created, fired last, and fires next.
#[derive(Debug, Clone, Copy)]
pub struct ScheduleTimes {
    /// When it was created.
    pub created_at: Timestamp,
    /// The last occurrence that fired or was skipped.
    pub last_at: Option<Timestamp>,
    /// When it fires next.
    pub next_at: Option<Timestamp>,
}

impl Schedule {
    /// The schedule as a caller sees it; `content` says whether the payload is shown.
    pub fn new(
        id: ScheduleId,
        definition: &NewSchedule,
        times: ScheduleTimes,
        content: Content,
    ) -> Self {
        let mut job = NewJob::from(&definition.job);
        job.payload = job.payload.filter(|_| content == Content::Shown);
        let (mut cron, mut every, mut at) = (None, None, None);
        match &definition.expression {
            Expression::Cron(expression) => cron = Some(expression.as_str().to_owned()),
            Expression::Every(period) => every = Some(DurationText(*period)),
            Expression::At(instant) => at = Some(*instant),
        }
        let catch_up_max = Some(definition.catch_up_max).filter(|most| *most != CATCH_UP_DEFAULT);
        Schedule {
            id,
            name: definition.name.clone(),
            cron,
            every,
            at,
            timezone: definition.timezone.name().to_owned(),
            missed: definition.missed,
            missed_after: DurationText(definition.missed_after),
            catch_up_max: catch_up_max.and_then(|most| BoundedInt::new(most.into())),
            overlap: definition.overlap,
            splay: DurationText(definition.splay),
            starts_at: definition.starts_at,
            ends_at: definition.ends_at,
            paused: definition.paused,
            job,
            created_at: times.created_at,
            last_at: times.last_at,
            next_at: times.next_at,
            finished: times.next_at.is_none() && !definition.paused,
            payload_withheld: content == Content::Withheld,
        }
    }
}

/// A stored schedule that the server cannot read, because a time zone was removed or a newer
/// version wrote it. It does not fire. Additional fields are shown as they were stored.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct UnreadableSchedule {
    /// Id of the schedule.
    pub id: ScheduleId,
    /// Name of the schedule.
    pub name: String,
    /// Why the server cannot read the schedule.
    pub error: String,
    /// When the schedule was created.
    pub created_at: Timestamp,
    /// Time of the last occurrence that fired or was skipped.
    pub last_at: Option<Timestamp>,
    /// Always null, because the schedule does not fire.
    pub next_at: Option<Timestamp>,
    /// Always false. Replace the schedule with PUT, and it fires again.
    pub finished: bool,
    /// True if the payload is left out because the key lacks the scope `read-payload`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub payload_withheld: bool,
    /// The other fields, as they were stored.
    #[serde(flatten)]
    pub definition: Map<String, Value>,
}

impl UnreadableSchedule {
    /// A schedule with the stored definition `text`, which cannot be read because of `error`.
    pub fn new(
        (id, name): (ScheduleId, &str),
        (text, error): (&str, &str),
        times: ScheduleTimes,
        content: Content,
    ) -> Self {
        let mut definition: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
        let own = [
            "id",
            "name",
            "error",
            "created_at",
            "last_at",
            "next_at",
            "finished",
            "payload_withheld",
        ];
        definition.retain(|field, _| !own.contains(&field.as_str()));
        if content != Content::Shown {
            let job = definition.remove("job");
            if let Some(Value::Object(mut job)) = job {
                job.remove("payload");
                definition.insert("job".to_owned(), job.into());
            }
        }
        UnreadableSchedule {
            id,
            name: name.to_owned(),
            error: error.to_owned(),
            created_at: times.created_at,
            last_at: times.last_at,
            next_at: None,
            finished: false,
            payload_withheld: content == Content::Withheld,
            definition,
        }
    }
}

/// A stored schedule. Only a schedule that the server cannot read has `error`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ScheduleView {
    /// A schedule that the server can read.
    Readable(Box<Schedule>),
    /// A schedule that the server cannot read.
    Unreadable(Box<UnreadableSchedule>),
}

impl ScheduleView {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            ScheduleView::Readable(schedule) => schedule.name.as_str(),
            ScheduleView::Unreadable(schedule) => &schedule.name,
        }
    }
}

impl<'de> Deserialize<'de> for ScheduleView {
    /// Reads from `serde_json` only, as the payload is kept byte for byte.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Marker {
            error: Option<IgnoredAny>,
        }
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let marker: Marker = serde_json::from_str(raw.get()).map_err(D::Error::custom)?;
        let view = if marker.error.is_some() {
            serde_json::from_str(raw.get()).map(ScheduleView::Unreadable)
        } else {
            serde_json::from_str(raw.get()).map(ScheduleView::Readable)
        };
        view.map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TIMES: ScheduleTimes = ScheduleTimes {
        created_at: Timestamp::UNIX_EPOCH,
        last_at: None,
        next_at: None,
    };

    #[test]
    fn a_payload_that_the_caller_may_not_see_is_left_out() {
        let text = concat!(
            r#"{"name":"nightly","cron":"0 2 * * *","job":{"kind":"report","max_attempts":3,"#,
            r#""unique_key":"u","retry":"webhook","payload":{"b":1.0,  "a":2}}}"#,
        );
        let definition = NewSchedule::from_json(text).unwrap();
        let id = ScheduleId::from_u128(1);
        let shown = Schedule::new(id, &definition, TIMES, Content::Shown);
        let shown = serde_json::to_string(&shown).unwrap();
        assert!(shown.contains(r#""payload":{"b":1.0,  "a":2}"#), "{shown}");
        let read: ScheduleView = serde_json::from_str(&shown).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), shown);
        assert_eq!(read.name(), "nightly");
        let withheld = Schedule::new(id, &definition, TIMES, Content::Withheld);
        let withheld = serde_json::to_value(withheld).unwrap();
        let job = json!({
            "kind": "report", "max_attempts": 3, "unique_key": "u", "on_duplicate": "keep",
            "retry": "webhook",
        });
        assert_eq!(withheld["job"], job);
        assert_eq!(
            (&withheld["payload_withheld"], &withheld["finished"]),
            (&json!(true), &json!(true))
        );
    }

    #[test]
    fn an_unreadable_schedule_is_shown_as_it_was_written() {
        let view = |text: &str, content| {
            let named = (ScheduleId::from_u128(1), "s");
            let view = UnreadableSchedule::new(named, (text, "timezone: unknown"), TIMES, content);
            let text = serde_json::to_string(&view).unwrap();
            let read: ScheduleView = serde_json::from_str(&text).unwrap();
            assert!(matches!(&read, ScheduleView::Unreadable(_)), "{read:?}");
            serde_json::to_value(read).unwrap()
        };
        let text = r#"{"name":"s","timezone":"Mars","job":{"kind":"a","payload":1}}"#;
        let shown = view(text, Content::Shown);
        assert_eq!(
            (
                &shown["timezone"],
                &shown["next_at"],
                &shown["job"]["payload"]
            ),
            (&json!("Mars"), &Value::Null, &json!(1))
        );
        assert_eq!(
            (&shown["error"], &shown["finished"]),
            (&json!("timezone: unknown"), &json!(false))
        );
        assert_eq!(view(text, Content::Withheld)["job"], json!({"kind": "a"}));
        assert_eq!(view("not JSON", Content::Shown)["name"], "s");
    }
}
