//! What a caller may do.

use std::fmt;

use windlass_api::Scope;
use windlass_core::Invalid;

/// A set of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

const fn bit(scope: Scope) -> u8 {
    1 << scope as u8
}

impl Scopes {
    /// No scope.
    pub const NONE: Scopes = Scopes(0);
    /// All scopes.
    pub const ALL: Scopes = Scopes(0b11_1111);

    /// Whether the set grants `scope`: directly, or through a scope that includes it.
    pub const fn include(self, scope: Scope) -> bool {
        let reads = matches!(scope, Scope::Read) && self.0 & bit(Scope::ReadPayload) != 0;
        self.0 & (bit(scope) | bit(Scope::Admin)) != 0 || reads
    }

    /// Parses names like `["enqueue", "work"]`. The list must not be empty.
    pub fn from_names<T: AsRef<str>>(names: &[T]) -> Result<Scopes, Invalid> {
        let scopes = names.iter().map(|name| name.as_ref().trim().parse());
        let scopes: Result<_, Invalid> = scopes.collect();
        match scopes.map_err(|error| error.within("scopes"))? {
            Scopes::NONE => Err(Invalid::new("scopes", "must name at least one scope")),
            scopes => Ok(scopes),
        }
    }

    /// Returns the scopes of the set, without the scopes that they include.
    pub fn given(self) -> Vec<Scope> {
        let given = Scope::ALL.into_iter();
        given.filter(|scope| self.0 & bit(*scope) != 0).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Scopes(scopes.into_iter().fold(0, |bits, scope| bits | bit(scope)))
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.given().into_iter().map(Scope::name);
        write!(f, "Scopes({})", names.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_gives_itself_and_no_other() {
        for given in [Scope::Enqueue, Scope::Work, Scope::Read, Scope::Operate] {
            let scopes = Scopes::from_iter([given]);
            for scope in Scope::ALL {
                assert_eq!(scopes.include(scope), scope == given, "{given} {scope}");
            }
        }
    }

    #[test]
    fn admin_includes_all_and_payloads_include_reading() {
        let admin = Scopes::from_iter([Scope::Admin]);
        assert!(Scope::ALL.into_iter().all(|scope| admin.include(scope)));
        let payloads = Scopes::from_iter([Scope::ReadPayload]);
        assert!(payloads.include(Scope::Read));
        assert!(!payloads.include(Scope::Operate));
    }

    #[test]
    fn names_are_read_back_and_unknown_ones_refused() {
        let names: Vec<_> = Scope::ALL.map(Scope::name).into();
        assert_eq!(Scopes::from_names(&names), Ok(Scopes::ALL));
        assert_eq!(Scopes::ALL.given(), Scope::ALL);
        let refused = Scopes::from_names(&["reed"]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "`scopes` must be one of enqueue, work, read, read-payload, operate, admin, got \"reed\""
        );
        assert!(Scopes::from_names::<&str>(&[]).is_err());
    }
}
