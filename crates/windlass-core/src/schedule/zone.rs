//! Time zones, from data that is compiled in, so that every node computes the same.

use std::fmt;
use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::invalid::shown;
use crate::{Invalid, Timestamp};

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A time zone of the IANA database.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone {
    name: String,
    zone: TimeZone,
}

impl Zone {
    /// Finds a zone by its IANA name, such as `Europe/Berlin`; case does not matter.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        const NAME_BYTES_MAX: usize = 64;
        let unknown = || {
            let rule = format!(
                "must be an IANA time zone name like Europe/Berlin, got {}",
                shown(name)
            );
            Invalid::new("timezone", rule)
        };
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(unknown());
        }
        let zone = ZONES.get(name).map_err(|_| unknown())?;
        if zone.is_unknown() || zone.iana_name() == Some("Factory") {
            return Err(unknown()); // placeholders for a zone that is not set
        }
        let name = zone.iana_name().unwrap_or("UTC").to_owned();
        Ok(Zone { name, zone })
    }

    /// Coordinated universal time.
    pub fn utc() -> Self {
        Zone {
            name: "UTC".to_owned(),
            zone: TimeZone::UTC,
        }
    }

    /// The IANA name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An instant in this zone's local time with its UTC offset: `2026-03-08T03:00:00-04:00`.
    pub fn local(&self, at: Timestamp) -> String {
        let at = at.to_jiff();
        at.display_with_offset(self.zone.to_offset(at)).to_string()
    }

    pub(super) fn jiff(&self) -> &TimeZone {
        &self.zone
    }
}

impl Default for Zone {
    fn default() -> Self {
        Zone::utc()
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;
    use proptest::prelude::*;

    #[test]
    fn zones_are_found_by_name() {
        assert_eq!(
            Zone::new("america/new_york").unwrap().to_string(),
            "America/New_York"
        );
        assert_eq!(Zone::new("UTC").unwrap(), Zone::utc());
        assert_eq!(Zone::default().name(), "UTC");
        assert_eq!(format!("{:?}", Zone::utc()), "UTC");
        let long = "a".repeat(65);
        for name in [
            "",
            "Mars/Olympus",
            "../etc/passwd",
            "Europe/Berlin\0",
            "+01:00",
            "Etc/Unknown",
            "Factory",
            &long,
        ] {
            assert_eq!(Zone::new(name).unwrap_err().field(), "timezone", "{name}");
        }
    }

    #[test]
    fn an_instant_is_shown_as_the_clocks_there_show_it() {
        let new_york = Zone::new("America/New_York").unwrap();
        let instant = at("2026-03-08T07:00:00Z");
        assert_eq!(new_york.local(instant), "2026-03-08T03:00:00-04:00");
        assert_eq!(Zone::utc().local(instant), "2026-03-08T07:00:00+00:00");
    }

    proptest! {
        #[test]
        fn no_name_panics(name in any::<String>()) {
            let _ = Zone::new(&name);
        }
    }
}
