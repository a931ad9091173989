//! Time zones, from data that is compiled in: every node agrees on them.

use std::fmt;
use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::Invalid;
use crate::invalid::shown;

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
                "must be an IANA time zone like Europe/Berlin, got {}",
                shown(name)
            );
            Invalid::new("timezone", rule)
        };
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(unknown());
        }
        let zone = ZONES.get(name).map_err(|_| unknown())?;
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

    /// Its IANA name.
    pub fn name(&self) -> &str {
        &self.name
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
            &long,
        ] {
            assert_eq!(Zone::new(name).unwrap_err().field(), "timezone", "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_name_panics(name in any::<String>()) {
            let _ = Zone::new(&name);
        }
    }
}
