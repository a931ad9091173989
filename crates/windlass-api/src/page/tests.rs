use proptest::prelude::*;

use super::*;

/// Checks that a cursor comes back from its text. Returns the text.
fn comes_back<C: Position + PartialEq>(position: C) -> String {
    let text = PageCursor(position.clone()).to_string();
    assert_eq!(text.parse(), Ok(PageCursor(position)), "{text}");
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    assert!(text.bytes().all(is_plain), "{text} needs no escapes");
    text
}

fn group(queue: &str, bits: u64) -> GroupKey {
    GroupKey {
        queue: queue.parse().unwrap(),
        kind: "k".parse().unwrap(),
        fingerprint: Fingerprint::from_bits(bits),
    }
}

/// One cursor of each list.
fn one_of_each() -> Vec<String> {
    let (name, action) = ("a/b:é".to_owned(), ActionId::from_u128(7));
    let job = JobPosition {
        finished_at: None,
        id: JobId::from_u128(7),
    };
    let groups = [group("a", 1), group("b", 2)];
    vec![
        comes_back(job),
        comes_back(QueuePosition(name.clone())),
        comes_back(SchedulePosition(name.clone())),
        comes_back(WorkerPosition(name)),
        comes_back(OccurrencePosition(3)),
        comes_back(AuditPosition(u64::MAX)),
        comes_back(ReplayPosition(action)),
        comes_back(BulkActionPosition(action)),
        comes_back(GroupCursor::behind_first(groups.iter())),
    ]
}

fn readable<C: Position>(texts: &[String]) -> Vec<usize> {
    let read = |text: &String| text.parse::<PageCursor<C>>().is_ok();
    let texts = texts.iter().enumerate();
    let read = texts.filter(|(_, text)| read(text));
    read.map(|(position, _)| position).collect()
}

#[test]
fn a_list_refuses_the_cursors_of_all_other_lists() {
    let texts = one_of_each();
    assert_eq!(readable::<JobPosition>(&texts), [0]);
    assert_eq!(readable::<QueuePosition>(&texts), [1]);
    assert_eq!(readable::<SchedulePosition>(&texts), [2]);
    assert_eq!(readable::<WorkerPosition>(&texts), [3]);
    assert_eq!(readable::<OccurrencePosition>(&texts), [4]);
    assert_eq!(readable::<AuditPosition>(&texts), [5]);
    assert_eq!(readable::<ReplayPosition>(&texts), [6]);
    assert_eq!(readable::<BulkActionPosition>(&texts), [7]);
    assert_eq!(readable::<GroupCursor>(&texts), [8]);
}

#[test]
fn positions_of_jobs_come_back() {
    let times = [Timestamp::UNIX_EPOCH, Timestamp::MIN, Timestamp::MAX];
    for finished_at in times.map(Some).into_iter().chain([None]) {
        for bits in [0, 7, u128::MAX] {
            let id = JobId::from_u128(bits);
            comes_back(JobPosition { finished_at, id });
        }
    }
}

#[test]
fn the_cursor_of_failure_groups_is_short_enough_for_a_url() {
    let groups: Vec<GroupKey> = (0..FIRST_GROUPS_MAX as u64)
        .map(|bits| group("a", bits))
        .collect();
    let first = GroupCursor::behind_first(groups.iter());
    assert_eq!(first.first.len(), FIRST_GROUPS_MAX, "all differ");
    let text = comes_back(first.behind(&group(&"q".repeat(64), u64::MAX)));
    assert!(text.len() < 2000, "{}", text.len());
}

#[test]
fn other_texts_are_refused() {
    for text in [
        "",
        "a",
        "a1",
        "x00",
        "a+00000000000001",
        "a' or 1=1 --     ",
        "é",
        "aé",
    ] {
        assert!(text.parse::<PageCursor<AuditPosition>>().is_err(), "{text}");
    }
    for text in ["j", "jj", "j7", "q1", "qff"] {
        assert!(text.parse::<PageCursor<JobPosition>>().is_err(), "{text}");
        assert!(text.parse::<PageCursor<QueuePosition>>().is_err(), "{text}");
    }
    for text in [
        "fA",
        "f.",
        "f.61.61",
        "f.61.61.0",
        "f.61.61.0000000000000000.",
        "fAAAAAAAA==",
    ] {
        assert!(text.parse::<PageCursor<GroupCursor>>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_panics_and_what_is_read_is_what_was_written(text in "[jqaf]?[0-9a-fA-FxX+é.-]{0,50}") {
        let lower = text.to_lowercase();
        if let Ok(cursor) = text.parse::<PageCursor<JobPosition>>() {
            prop_assert_eq!(cursor.to_string(), &*lower);
        }
        if let Ok(cursor) = text.parse::<PageCursor<QueuePosition>>() {
            prop_assert_eq!(cursor.to_string(), &*lower);
        }
        if let Ok(cursor) = text.parse::<PageCursor<AuditPosition>>() {
            prop_assert_eq!(cursor.to_string(), &*lower);
        }
        let _ = text.parse::<PageCursor<GroupCursor>>();
    }
}
