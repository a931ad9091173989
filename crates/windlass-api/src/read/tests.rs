//! Reading bodies and reporting their problems.

use serde::Deserialize;

use super::*;
use crate::{BoundedInt, DurationText, Json, some_even_if_null};
use windlass_core::{Delivery, Kind, QueueName, Tag};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the tests only read them")]
struct Order {
    kind: Option<Kind>,
    queue: Option<QueueName>,
    priority: Option<i16>,
    limit: Option<BoundedInt<1, 10>>,
    delay: Option<DurationText>,
    delivery: Option<Delivery>,
    tags: Option<Vec<Tag>>,
    #[serde(default, deserialize_with = "some_even_if_null")]
    payload: Option<Json>,
    parts: Option<Vec<Part>>,
    flag: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Part {
    name: QueueName,
    weight: Option<u32>,
}

impl Body for Order {
    type Checked = Order;

    fn check(self, checks: &mut Checks) -> Option<Order> {
        checks.required("kind", self.kind.as_ref());
        checks.needs(
            ("delay", self.delay.is_some()),
            ("queue", self.queue.is_some()),
        );
        Some(self)
    }
}

fn read(text: &str) -> Result<Order, BodyRefused> {
    read_body::<Order>(text, Timestamp::UNIX_EPOCH)
}

fn problems(text: &str) -> Vec<String> {
    match read(text) {
        Ok(_) => Vec::new(),
        Err(BodyRefused::Invalid(problems)) => problems.iter().map(Invalid::to_string).collect(),
        Err(BodyRefused::Malformed(malformed)) => vec![malformed.to_string()],
    }
}

#[test]
fn a_good_body_is_read_to_the_byte() {
    let order = read(r#"{"kind":"a","payload":{"b":1.0,  "a":2},"tags":null,"limit":10}"#);
    let order = order.unwrap();
    assert_eq!(order.payload.unwrap().0.as_str(), r#"{"b":1.0,  "a":2}"#);
    assert_eq!((order.tags, order.limit.unwrap().get()), (None, 10));
    let null = read(r#"{"kind":"a","payload":null}"#).unwrap();
    assert_eq!(null.payload.unwrap().0.as_str(), "null");
    assert_eq!(read(r#"{"kind":"a"}"#).unwrap().payload, None);
}

#[test]
fn every_problem_is_reported_by_field_and_rule() {
    for (text, expected) in [
        (
            r#"{"kid":"a"}"#,
            &[
                "`kid` is not a known field: did you mean `kind`?",
                "`kind` is required",
            ][..],
        ),
        (
            r#"{"kind":"a b","queue":5,"priority":40000,"colour":1}"#,
            &[
                "`colour` is not a known field",
                "`kind` must be 1 to 128 characters from A-Z a-z 0-9 _ . : / -, got \"a b\"",
                "`priority` must be a whole number from -32768 to 32767, got 40000",
                "`queue` must be text, got 5",
            ],
        ),
        (
            r#"{"kind":"a","limit":11,"delay":5,"delivery":"twice","flag":"x"}"#,
            &[
                "`delay` must be text like \"30s\" (or use the `_ms` field for milliseconds), got 5",
                "`delivery` must be one of at_least_once, at_most_once, got \"twice\"",
                "`flag` must be true or false, got text",
                "`limit` must be a whole number from 1 to 10, got 11",
            ],
        ),
        (
            r#"{"kind":"a","tags":["",5,"ok",""]}"#,
            &[
                "`tags[0]` must be 1 to 64 bytes of text without control characters, got \"\"",
                "`tags[1]` must be text, got 5",
                "`tags[3]` must be 1 to 64 bytes of text without control characters, got \"\"",
            ],
        ),
        (
            r#"{"kind":"a","parts":[{"weight":1},{"name":"q","more":1},{"name":"/"}]}"#,
            &[
                "`parts[0].name` is required",
                "`parts[1].more` is not a known field",
                "`parts[2].name` must be 1 to 64 characters from A-Z a-z 0-9 _ . -, got \"/\"",
            ],
        ),
        (r#"{"kind":"a","kind":"b"}"#, &["`kind` is given twice"]),
        (
            r#"{"kind":"a","delay":"1s"}"#,
            &["`delay` is only allowed together with `queue`"],
        ),
        (
            r#"{"kind":"a","delay":"1s","queue":"/"}"#,
            &["`queue` must be 1 to 64 characters from A-Z a-z 0-9 _ . -, got \"/\""],
        ),
        (
            r#"{"kind":"a","payload":{"a":1,"a":2}}"#,
            &["`payload` must be valid JSON: the name \"a\" appears twice in one object"],
        ),
        ("[]", &["the value must be an object, got a list"]),
    ] {
        let mut reported = problems(text);
        reported.sort();
        assert_eq!(reported, expected, "{text}");
    }
    assert!(problems("{").concat().contains("must be valid JSON"));
}

#[test]
fn a_query_is_read_by_the_types_of_its_parameters() {
    let params = params::<Order>();
    let read = |text: &str| {
        let pairs = crate::query_pairs(text).unwrap();
        read_query::<Order>(&pairs, &params, Timestamp::UNIX_EPOCH)
    };
    let order = read("kind=5&limit=3&flag=true&other=1").unwrap();
    assert_eq!(order.kind.unwrap().as_str(), "5");
    assert_eq!((order.limit.unwrap().get(), order.flag), (3, Some(true)));
    let refused = read("limit=x&flag=1&queue=/").unwrap_err();
    let fields: Vec<&str> = refused.iter().map(Invalid::field).collect();
    assert_eq!(fields, ["flag", "limit", "queue", "kind"]);
}

#[test]
fn the_number_of_problems_is_bounded() {
    let many: Vec<String> = (0..300).map(|n| format!("\"x{n}\":1")).collect();
    assert_eq!(
        problems(&format!("{{{}}}", many.join(","))).len(),
        PROBLEMS_MAX
    );
}

#[test]
fn an_object_is_not_read_from_a_list_of_its_fields() {
    fn refused<B: Body>(text: &str) -> Vec<String> {
        let Err(BodyRefused::Invalid(problems)) = read_body::<B>(text, Timestamp::UNIX_EPOCH)
        else {
            panic!("not refused: {text}");
        };
        let shown = |problem: &Invalid| format!("{} {}", problem.field(), problem.rule());
        problems.iter().map(shown).collect()
    }
    let filter = r#"{"filter":["dead"],"reason":"r"}"#;
    let rule = "filter must be an object, got a list";
    assert_eq!(refused::<crate::NewReplay>(filter)[0], rule);
    let canary = r#"{"filter":{"queue":"q"},"canary":[3],"reason":"r"}"#;
    let rule = "canary must be an object, got a list";
    assert_eq!(refused::<crate::NewReplay>(canary), [rule]);
    let rate = r#"{"rate":[3,"1s"]}"#;
    let rule = "rate must be an object, got a list";
    assert_eq!(refused::<crate::QueueSettings>(rate), [rule]);
    let job = r#"{"name":"a","cron":"@daily","job":["k"]}"#;
    let rule = "job must be an object, got a list";
    assert_eq!(refused::<crate::NewSchedule>(job)[0], rule);
}
