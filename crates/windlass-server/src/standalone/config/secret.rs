//! Secret values, which are never printed. A setting contains the secret itself or, better, refers
//! to a file or a variable.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use toml_edit::Value;
use zeroize::Zeroizing;

use super::value::{BrokenRule, Environment, SettingValue, wrong_type};

/// A secret value. `Debug` does not print it.
#[derive(Clone)]
pub struct Secret {
    text: Zeroizing<String>,
    source: SecretSource,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SecretSource {
    WrittenOut,
    File(String),
    Variable(String),
}

impl Secret {
    /// Returns the secret.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// Reads a secret from a file that only its owner may read.
    pub(super) fn from_file(path: &str) -> Result<Self, BrokenRule> {
        check_private(Path::new(path))?;
        let unreadable =
            |error: std::io::Error| format!("names the file {path}, which cannot be read: {error}");
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(unreadable)?);
        Ok(Secret {
            text: Zeroizing::new(text.trim().to_owned()),
            source: SecretSource::File(path.to_owned()),
        })
    }
}

/// Refuses a file that other users may read, if this process could change that.
fn check_private(path: &Path) -> Result<(), BrokenRule> {
    match privacy(path) {
        Privacy::Exposed => Err(Privacy::refusal(path)),
        Privacy::Private | Privacy::ExposedByEnvironment => Ok(()),
    }
}

/// Whether other users may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Privacy {
    /// Only the owner may read it.
    Private,
    /// Others may read it, and the user of this process can change that.
    Exposed,
    /// Others may read it, and the user of this process cannot change that: the file has another
    /// owner or is read-only, like the files that containers mount under `/run/secrets`.
    ExposedByEnvironment,
}

impl Privacy {
    fn from_mode(mode: u32, own: bool, writable: bool) -> Self {
        match (mode & 0o077 != 0, own && writable) {
            (false, _) => Privacy::Private,
            (true, true) => Privacy::Exposed,
            (true, false) => Privacy::ExposedByEnvironment,
        }
    }

    pub(super) fn refusal(path: &Path) -> BrokenRule {
        let path = path.display();
        format!("names the file {path}, which other users may read: run `chmod 600 {path}`")
    }

    pub(super) fn warning(key: &str, path: &Path) -> String {
        let path = path.display();
        format!(
            "`{key}` names the file {path}, which other users of this machine may read, and this user cannot change its permissions"
        )
    }
}

/// Returns who may read a file. A missing file counts as private.
pub(super) fn privacy(path: &Path) -> Privacy {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(metadata) = std::fs::metadata(path) else {
        return Privacy::Private;
    };
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    let read_only =
        statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY));
    Privacy::from_mode(metadata.mode(), own, !read_only)
}

impl SettingValue for Secret {
    const KIND: &'static str = "a secret: { file = \"path\" }, { env = \"NAME\" } or text";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        Ok(Secret {
            text: Zeroizing::new(text.to_owned()),
            source: SecretSource::WrittenOut,
        })
    }

    fn from_toml(value: &Value, environment: &Environment) -> Result<Self, BrokenRule> {
        let table = match value {
            Value::String(text) => return Secret::from_text(text.value()),
            Value::InlineTable(table) => table,
            other => return Err(wrong_type(Self::KIND, other)),
        };
        let one = table.iter().next().filter(|_| table.len() == 1);
        match one.and_then(|(name, value)| Some((name, value.as_str()?))) {
            Some(("file", path)) => Secret::from_file(path),
            Some(("env", name)) => {
                let text = environment.get(name);
                let text =
                    text.ok_or_else(|| format!("names the variable {name}, which is not set"))?;
                Ok(Secret {
                    text: Zeroizing::new(text.clone()),
                    source: SecretSource::Variable(name.to_owned()),
                })
            }
            _ => Err(format!("must be {}", Self::KIND)),
        }
    }

    fn show(&self) -> String {
        match &self.source {
            SecretSource::WrittenOut => "\"(hidden)\"".to_owned(),
            SecretSource::File(path) => format!("{{ file = {path:?} }}"),
            SecretSource::Variable(name) => format!("{{ env = {name:?} }}"),
        }
    }

    fn secrets_written_out(&self) -> bool {
        self.source == SecretSource::WrittenOut
    }

    fn secret_files(&self) -> Vec<PathBuf> {
        match &self.source {
            SecretSource::File(path) => vec![path.into()],
            SecretSource::WrittenOut | SecretSource::Variable(_) => Vec::new(),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.show())
    }
}

/// The URL of a store. It may contain a password.
#[derive(Clone, Debug)]
pub struct StoreUrl(Secret);

impl StoreUrl {
    /// Returns the URL with its password.
    pub fn reveal(&self) -> &str {
        self.0.reveal()
    }

    /// Returns the start and end of the password. It ends at the last `@`, because a password that
    /// is not escaped may itself contain any character.
    fn password(&self) -> Option<(usize, usize)> {
        let url = self.reveal();
        let start = url.find("://")? + 3;
        let rest = url.get(start..)?;
        let at = rest.rfind('@')?;
        let colon = rest.get(..at)?.find(':')?;
        Some((start + colon + 1, start + at))
    }

    /// Returns the URL without its password.
    pub fn shown(&self) -> String {
        let url = self.reveal();
        let parts = self
            .password()
            .and_then(|(from, to)| Some((url.get(..from)?, url.get(to..)?)));
        // The password can also be a query parameter.
        let shown = parts.map_or_else(
            || url.to_owned(),
            |(before, after)| format!("{before}…{after}"),
        );
        match shown.find("password=") {
            Some(at) => format!("{}password=…", shown.get(..at).unwrap_or_default()),
            None => shown,
        }
    }
}

impl SettingValue for StoreUrl {
    const KIND: &'static str = "a URL: \"sqlite:path\", \"postgres://user@host/database\" or \"memory:\"; or { file = \"path\" }, { env = \"NAME\" }";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        check_scheme(Secret::from_text(text)?)
    }

    fn from_toml(value: &Value, environment: &Environment) -> Result<Self, BrokenRule> {
        check_scheme(Secret::from_toml(value, environment)?)
    }

    fn show(&self) -> String {
        match self.0.source {
            SecretSource::WrittenOut => format!("{:?}", self.shown()),
            _ => self.0.show(),
        }
    }

    fn secrets_written_out(&self) -> bool {
        self.0.secrets_written_out() && self.shown() != self.reveal()
    }

    fn secret_files(&self) -> Vec<PathBuf> {
        self.0.secret_files()
    }
}

const SCHEMES: [&str; 4] = ["memory:", "sqlite:", "postgres://", "postgresql://"];

fn check_scheme(secret: Secret) -> Result<StoreUrl, BrokenRule> {
    if !SCHEMES
        .iter()
        .any(|scheme| secret.reveal().starts_with(scheme))
    {
        return Err("must begin with `sqlite:`, `postgres://` or `memory:`".to_owned());
    }
    Ok(StoreUrl(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_refused_where_its_owner_runs_this_and_could_close_it() {
        // Containers mount secrets with mode 0444, of another owner or on a read-only mount.
        for (mode, own, writable, privacy) in [
            (0o600, true, true, Privacy::Private),
            (0o400, false, false, Privacy::Private),
            (0o640, true, true, Privacy::Exposed),
            (0o604, true, true, Privacy::Exposed),
            (0o444, false, true, Privacy::ExposedByEnvironment),
            (0o444, true, false, Privacy::ExposedByEnvironment),
        ] {
            assert_eq!(Privacy::from_mode(mode, own, writable), privacy, "{mode:o}");
        }
        let own = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(privacy(own.path()), Privacy::Private);
        assert_eq!(privacy(Path::new("/nowhere")), Privacy::Private);
    }

    #[test]
    fn a_password_in_a_url_is_not_shown() {
        for (url, shown) in [
            ("postgres://ann:s3cret@db/jobs", "postgres://ann:…@db/jobs"),
            (
                "postgres://ann:s@3:x@db:5432/jobs?a=b",
                "postgres://ann:…@db:5432/jobs?a=b",
            ),
            ("postgres://ann@db/jobs", "postgres://ann@db/jobs"),
            ("postgres://ann@db:5432/jobs", "postgres://ann@db:5432/jobs"),
            (
                "postgres://ann:s3cret/x?y#z@db/jobs",
                "postgres://ann:…@db/jobs",
            ),
            (
                "postgres://ann:/s3cret@x@db/jobs",
                "postgres://ann:…@db/jobs",
            ),
            (
                "postgres://db/jobs?user=x&password=s3cret",
                "postgres://db/jobs?user=x&password=…",
            ),
            ("sqlite:a:b@c", "sqlite:a:b@c"),
        ] {
            let read = StoreUrl::from_text(url).unwrap();
            assert_eq!(read.shown(), shown);
            assert_eq!(read.secrets_written_out(), url != shown);
            assert!(!format!("{read:?}").contains("s3cret"));
        }
        assert!(StoreUrl::from_text("mysql://x").is_err());
    }
}
