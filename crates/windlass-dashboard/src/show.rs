//! Numbers, durations and times as people read them.
//!
//! No value breaks between the number and its unit: the spaces inside do not break.

use std::time::Duration;

use jiff::tz::TimeZone;
use windlass_core::{JobId, Timestamp};

/// A space that does not break.
pub const SPACE: char = '\u{a0}';

/// Formats a count: `20,356`, from a million on `8.41 M`.
pub fn count(number: u64) -> String {
    match number {
        0..1_000_000 => grouped(number),
        1_000_000..1_000_000_000 => scaled(number as f64 / 1e6, 'M'),
        _ => scaled(number as f64 / 1e9, 'G'),
    }
}

fn scaled(number: f64, unit: char) -> String {
    let digits = if number < 10.0 {
        2
    } else {
        usize::from(number < 100.0)
    };
    format!("{number:.digits$}{SPACE}{unit}")
}

/// Formats a count with all its digits: `8,412,007`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a change of a count with its sign: `+4,902`, `−17`, `0`.
pub fn change(number: i64) -> String {
    match number {
        0 => "0".to_owned(),
        1.. => format!("+{}", count(number.unsigned_abs())),
        _ => format!("−{}", count(number.unsigned_abs())),
    }
}

/// Formats a share of 1 in percent: `68.4 %`, `100 %`. No share is a dash.
pub fn percent(share: Option<f64>) -> String {
    match share {
        None => "–".to_owned(),
        Some(share) if share <= 0.0 => format!("0{SPACE}%"),
        Some(share) if share >= 0.9995 => format!("100{SPACE}%"),
        Some(share) => format!("{:.1}{SPACE}%", share * 100.0),
    }
}

/// Formats a rate in events per second: `152/s`, `1.4/s`, `3/min`. Zero is `0`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate <= 0.0 => "0".to_owned(),
        rate if rate >= 10.0 => format!("{}/s", grouped(rate.round() as u64)),
        rate if rate >= 1.0 => format!("{rate:.1}/s"),
        rate if rate * 60.0 >= 1.0 => format!("{:.0}/min", rate * 60.0),
        rate => format!("{:.0}/h", (rate * 3600.0).max(1.0)),
    }
}

/// Formats a duration with at most two units: `46 ms`, `2.10 s`, `1 m 42 s`, `23 h 17 m`.
pub fn duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let seconds = duration.as_secs();
    let two = |large: u64, unit: char, small: u64, small_unit: char| match small {
        0 => format!("{large}{SPACE}{unit}"),
        _ => format!("{large}{SPACE}{unit}{SPACE}{small:02}{SPACE}{small_unit}"),
    };
    match seconds {
        0 if millis == 0 => match duration.as_micros() {
            0 => format!("0{SPACE}ms"),
            _ => format!("{:.1}{SPACE}ms", duration.as_secs_f64() * 1000.0),
        },
        0 => format!("{millis}{SPACE}ms"),
        1..10 if millis.is_multiple_of(1000) => format!("{seconds}{SPACE}s"),
        1..10 => format!("{:.2}{SPACE}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}{SPACE}s"),
        60..3600 => two(seconds / 60, 'm', seconds % 60, 's'),
        3600..86_400 => two(seconds / 3600, 'h', seconds % 3600 / 60, 'm'),
        _ => two(seconds / 86_400, 'd', seconds % 86_400 / 3600, 'h'),
    }
}

/// Formats a duration roughly, for ages and countdowns: `now`, `14 s`, `19 m`, `2 h`, `3 d`.
pub fn roughly(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("0{SPACE}s"),
        1..60 => format!("{seconds}{SPACE}s"),
        60..3600 => format!("{}{SPACE}m", seconds / 60),
        3600..172_800 => format!("{}{SPACE}h", seconds / 3600),
        _ => format!("{}{SPACE}d", seconds / 86_400),
    }
}

/// Formats milliseconds as [`duration`] does.
pub fn millis(millis: f64) -> String {
    duration(Duration::from_micros((millis * 1000.0).max(0.0) as u64))
}

/// Formats an instant relative to `now`: `14 m ago`, `in 31 s`, `now`.
pub fn relative(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        let left = at.since(now);
        return if left.as_secs() == 0 {
            "now".to_owned()
        } else {
            format!("in{SPACE}{}", roughly(left))
        };
    }
    let age = now.since(at);
    if age.as_secs() == 0 {
        "now".to_owned()
    } else {
        format!("{}{SPACE}ago", roughly(age))
    }
}

/// Returns who did something: the name, and the key if it has another one.
pub fn person(text: &str) -> String {
    let text = visible(text);
    let parts = text
        .strip_suffix(')')
        .and_then(|text| text.split_once(" ("));
    match parts {
        Some((name, key)) if name == key => name.to_owned(),
        _ => text,
    }
}

/// Returns the end of an id, where ids of the same time differ: `…bb5f6a8b8`.
pub fn id_end(id: JobId) -> String {
    let id = id.to_string();
    let (_, end) = id.split_at_checked(id.len() - 9).unwrap_or_default();
    format!("…{end}")
}

/// A time zone in which a page shows instants.
#[derive(Debug, Clone)]
pub struct Zone {
    zone: TimeZone,
    name: String,
}

impl Default for Zone {
    fn default() -> Self {
        Zone {
            zone: TimeZone::UTC,
            name: "UTC".to_owned(),
        }
    }
}

impl Zone {
    /// Returns the zone with an IANA name, or `None` if there is none.
    pub fn named(name: &str) -> Option<Zone> {
        let zone = TimeZone::get(name).ok()?;
        let name = zone.iana_name()?.to_owned();
        Some(Zone { zone, name })
    }

    /// Returns its name: `Europe/Berlin`.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn zoned(&self, at: Timestamp) -> jiff::Zoned {
        let at = jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or_default();
        at.to_zoned(self.zone.clone())
    }

    /// Formats an instant in full: `2026-03-17 02:58:07 Europe/Berlin`.
    pub fn full(&self, at: Timestamp) -> String {
        format!(
            "{} {}",
            self.zoned(at).strftime("%Y-%m-%d %H:%M:%S"),
            self.name
        )
    }

    /// Formats an instant as far as it is needed: today `02:58:07`, this week `Mon 21:04`, else
    /// `12 Mar` or `12 Mar 2025`.
    pub fn short(&self, at: Timestamp, now: Timestamp) -> String {
        let (then, today) = (self.zoned(at), self.zoned(now));
        let format = if then.date() == today.date() {
            "%H:%M:%S"
        } else if at.since(now).max(now.since(at)) < Duration::from_secs(6 * 86_400) {
            "%a %H:%M"
        } else if then.year() == today.year() {
            "%-d %b"
        } else {
            "%-d %b %Y"
        };
        then.strftime(format).to_string().replace(' ', "\u{a0}")
    }

    /// Formats the time of an axis label: `02:12`, or with `days` `12 Mar`.
    pub fn axis(&self, at: Timestamp, days: bool) -> String {
        let format = if days { "%-d %b" } else { "%H:%M" };
        self.zoned(at).strftime(format).to_string()
    }
}

/// Returns text with control and direction characters made visible, so that it cannot disguise
/// itself.
pub fn visible(text: &str) -> String {
    let shown = |letter: char| match letter {
        '\n' | '\t' => letter.to_string(),
        '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + letter as u32)
            .unwrap_or('␦')
            .to_string(),
        '\u{7f}'..='\u{9f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => format!("‹U+{:04X}›", letter as u32),
        _ => letter.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Returns the first `chars` characters of a text, with `…` if something is left out.
pub fn clipped(text: &str, chars: usize) -> String {
    let line = visible(text.lines().next().unwrap_or_default());
    match line.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        text.replace(SPACE, " ")
    }

    #[test]
    fn numbers_have_separators_and_large_ones_a_unit() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (20_356, "20,356"),
            (999_999, "999,999"),
            (8_412_007, "8.41 M"),
        ] {
            assert_eq!(plain(&count(number)), text);
        }
        assert_eq!(plain(&count(84_120_070)), "84.1 M");
        assert_eq!(plain(&count(3_000_000_000)), "3.00 G");
        assert_eq!(change(-1_234), "−1,234");
        assert_eq!(change(4_902), "+4,902");
    }

    #[test]
    fn durations_have_at_most_two_units() {
        for (micros, text) in [
            (0, "0 ms"),
            (400, "0.4 ms"),
            (46_000, "46 ms"),
            (2_100_000, "2.10 s"),
            (5_000_000, "5 s"),
            (18_400_000, "18 s"),
            (102_000_000, "1 m 42 s"),
            (120_000_000, "2 m"),
            (83_820_000_000, "23 h 17 m"),
            (266_400_000_000, "3 d 02 h"),
        ] {
            assert_eq!(plain(&duration(Duration::from_micros(micros))), text);
        }
    }

    #[test]
    fn shares_and_rates_have_one_digit_where_it_helps() {
        assert_eq!(plain(&percent(Some(0.684))), "68.4 %");
        assert_eq!(plain(&percent(Some(1.0))), "100 %");
        assert_eq!(percent(None), "–");
        assert_eq!(rate(152.4), "152/s");
        assert_eq!(rate(1.44), "1.4/s");
        assert_eq!(rate(0.05), "3/min");
        assert_eq!(rate(0.0), "0");
    }

    #[test]
    fn times_name_their_zone_and_short_ones_leave_out_what_is_clear() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let zone = Zone::named("Europe/Berlin").unwrap();
        let now = at("2026-03-17T02:12:30Z");
        assert_eq!(
            zone.full(at("2026-03-17T01:58:07Z")),
            "2026-03-17 02:58:07 Europe/Berlin"
        );
        assert_eq!(zone.short(at("2026-03-17T01:58:07Z"), now), "02:58:07");
        assert_eq!(
            plain(&zone.short(at("2026-03-16T20:04:00Z"), now)),
            "Mon 21:04"
        );
        assert_eq!(plain(&zone.short(at("2026-03-02T20:04:00Z"), now)), "2 Mar");
        assert_eq!(
            plain(&zone.short(at("2025-03-02T20:04:00Z"), now)),
            "2 Mar 2025"
        );
        assert!(Zone::named("Mars/Olympus").is_none());
    }

    #[test]
    fn a_person_is_named_once() {
        assert_eq!(person("local (local)"), "local");
        assert_eq!(person("mara (proxy 10.0.0.5)"), "mara (proxy 10.0.0.5)");
    }

    #[test]
    fn invisible_characters_become_visible() {
        assert_eq!(visible("a\u{202e}b\u{0}c"), "a‹U+202E›b␀c");
        assert_eq!(clipped("one two three\nfour", 7), "one two…");
    }
}
