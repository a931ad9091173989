//! What a caller may do.

use std::fmt;
use std::str::FromStr;

use windlass_core::Invalid;

/// One kind of thing that a caller may do. Every route needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Create jobs.
    Enqueue,
    /// Claim, renew and settle jobs, as a worker does.
    Work,
    /// Look at jobs, queues and schedules, but not into payloads.
    Read,
    /// Look into payloads, results and errors too. Includes `read`.
    ReadPayload,
    /// Change what is there: cancel, revive, pause, edit schedules, purge.
    Operate,
    /// Keys, secrets and the audit log. Includes everything else.
    Admin,
}

impl Scope {
    /// All of them, the least powerful first.
    pub const ALL: [Scope; 6] = [
        Scope::Enqueue,
        Scope::Work,
        Scope::Read,
        Scope::ReadPayload,
        Scope::Operate,
        Scope::Admin,
    ];

    /// Its name, as in `--scope enqueue,work`.
    pub const fn name(self) -> &'static str {
        match self {
            Scope::Enqueue => "enqueue",
            Scope::Work => "work",
            Scope::Read => "read",
            Scope::ReadPayload => "read-payload",
            Scope::Operate => "operate",
            Scope::Admin => "admin",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let found = Scope::ALL.into_iter().find(|scope| scope.name() == text);
        found.ok_or_else(|| {
            let names = Scope::ALL.map(Scope::name).join(", ");
            Invalid::new("scopes", format!("must be among {names}"))
        })
    }
}

/// A set of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// None at all.
    pub const NONE: Scopes = Scopes(0);
    /// Everything.
    pub const ALL: Scopes = Scopes(0b11_1111);

    /// Whether one who has these may do what needs `scope`.
    pub const fn include(self, scope: Scope) -> bool {
        let reads = matches!(scope, Scope::Read) && self.0 & Scope::ReadPayload.bit() != 0;
        self.0 & (scope.bit() | Scope::Admin.bit()) != 0 || reads
    }

    /// The same and one more.
    #[must_use]
    pub const fn with(self, scope: Scope) -> Scopes {
        Scopes(self.0 | scope.bit())
    }

    /// Reads names: `["enqueue", "work"]`. At least one is needed.
    pub fn from_names<T: AsRef<str>>(names: &[T]) -> Result<Scopes, Invalid> {
        let mut scopes = Scopes::NONE;
        for name in names {
            scopes = scopes.with(name.as_ref().trim().parse()?);
        }
        match scopes {
            Scopes::NONE => Err(Invalid::new("scopes", "must name at least one scope")),
            scopes => Ok(scopes),
        }
    }

    /// The names of those that were given, without what they include.
    pub fn names(self) -> Vec<&'static str> {
        let given = Scope::ALL.into_iter().filter(|of| self.0 & of.bit() != 0);
        given.map(Scope::name).collect()
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scopes({})", self.names().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_gives_itself_and_nothing_beside_it() {
        for given in [Scope::Enqueue, Scope::Work, Scope::Read, Scope::Operate] {
            let scopes = Scopes::NONE.with(given);
            for scope in Scope::ALL {
                assert_eq!(scopes.include(scope), scope == given, "{given} {scope}");
            }
        }
    }

    #[test]
    fn admin_includes_all_and_payloads_include_reading() {
        let admin = Scopes::NONE.with(Scope::Admin);
        assert!(Scope::ALL.into_iter().all(|scope| admin.include(scope)));
        let payloads = Scopes::NONE.with(Scope::ReadPayload);
        assert!(payloads.include(Scope::Read));
        assert!(!payloads.include(Scope::Operate));
    }

    #[test]
    fn names_are_read_back_and_unknown_ones_refused() {
        let names: Vec<_> = Scope::ALL.map(Scope::name).into();
        assert_eq!(Scopes::from_names(&names), Ok(Scopes::ALL));
        assert_eq!(Scopes::ALL.names(), names);
        let refused = Scopes::from_names(&["reed"]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "`scopes` must be among enqueue, work, read, read-payload, operate, admin"
        );
        assert!(Scopes::from_names::<&str>(&[]).is_err());
    }
}
