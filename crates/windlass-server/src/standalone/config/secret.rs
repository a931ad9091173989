//! Values that are not shown: written out, or better, referred to by a file or a variable.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use toml_edit::Value;
use zeroize::Zeroizing;

use super::value::{Broken, Environment, Readable, wrong_type};

/// A value that is not shown.
#[derive(Clone)]
pub struct Secret {
    text: Zeroizing<String>,
    from: From,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    WrittenOut,
    File(String),
    Variable(String),
}

impl Secret {
    /// What it is.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// From a file that nobody else may read.
    pub(super) fn from_file(path: &str) -> Result<Self, Broken> {
        check_private(Path::new(path))?;
        let unreadable =
            |error: std::io::Error| format!("names the file {path}, which cannot be read: {error}");
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(unreadable)?);
        Ok(Secret {
            text: Zeroizing::new(text.trim().to_owned()),
            from: From::File(path.to_owned()),
        })
    }
}

/// Refuses a file that others than its owner may read, where that can be changed.
fn check_private(path: &Path) -> Result<(), Broken> {
    match privacy(path) {
        Privacy::Open => Err(Privacy::refusal(path)),
        Privacy::Kept | Privacy::OpenByOthers => Ok(()),
    }
}

/// Whether others than its owner may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Privacy {
    /// They may not.
    Kept,
    /// They may, and whoever runs this can change that.
    Open,
    /// They may, and whoever runs this cannot change it: the file has another owner or cannot be written, as those that
    /// containers mount under `/run/secrets`.
    OpenByOthers,
}

impl Privacy {
    fn of(mode: u32, own: bool, writable: bool) -> Self {
        match (mode & 0o077 != 0, own && writable) {
            (false, _) => Privacy::Kept,
            (true, true) => Privacy::Open,
            (true, false) => Privacy::OpenByOthers,
        }
    }

    pub(super) fn refusal(path: &Path) -> Broken {
        let path = path.display();
        format!("names the file {path}, which others may read: `chmod 600 {path}`")
    }

    pub(super) fn warning(key: &str, path: &Path) -> String {
        let path = path.display();
        format!(
            "`{key}` names the file {path}, which others on this machine may read, and which was given so"
        )
    }
}

/// Who may read a file; one that is not there is nobody's.
pub(super) fn privacy(path: &Path) -> Privacy {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(about) = std::fs::metadata(path) else {
        return Privacy::Kept;
    };
    let own = about.uid() == rustix::process::geteuid().as_raw();
    let read_only = statvfs(path).is_ok_and(|on| on.f_flag.contains(StatVfsMountFlags::RDONLY));
    Privacy::of(about.mode(), own, !read_only)
}

impl Readable for Secret {
    const KIND: &'static str = "a secret: { file = \"path\" }, { env = \"NAME\" } or text";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Broken> {
        Ok(Secret {
            text: Zeroizing::new(text.to_owned()),
            from: From::WrittenOut,
        })
    }

    fn from_toml(value: &Value, environment: &Environment) -> Result<Self, Broken> {
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
                    from: From::Variable(name.to_owned()),
                })
            }
            _ => Err(format!("must be {}", Self::KIND)),
        }
    }

    fn show(&self) -> String {
        match &self.from {
            From::WrittenOut => "\"(hidden)\"".to_owned(),
            From::File(path) => format!("{{ file = {path:?} }}"),
            From::Variable(name) => format!("{{ env = {name:?} }}"),
        }
    }

    fn secrets_written_out(&self) -> bool {
        self.from == From::WrittenOut
    }

    fn secret_files(&self) -> Vec<PathBuf> {
        match &self.from {
            From::File(path) => vec![path.into()],
            From::WrittenOut | From::Variable(_) => Vec::new(),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.show())
    }
}

/// The URL of a store, which may have a password in it.
#[derive(Clone, Debug)]
pub struct StoreUrl(Secret);

impl StoreUrl {
    /// The whole of it.
    pub fn reveal(&self) -> &str {
        self.0.reveal()
    }

    /// Where the password is: up to the last `@`, since one that was not escaped may have every letter in it.
    fn password(&self) -> Option<(usize, usize)> {
        let url = self.reveal();
        let start = url.find("://")? + 3;
        let rest = url.get(start..)?;
        let at = rest.rfind('@')?;
        let colon = rest.get(..at)?.find(':')?;
        Some((start + colon + 1, start + at))
    }

    /// The URL without its password.
    pub fn shown(&self) -> String {
        let url = self.reveal();
        let parts = self
            .password()
            .and_then(|(from, to)| Some((url.get(..from)?, url.get(to..)?)));
        // A password may also be among the parameters.
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

impl Readable for StoreUrl {
    const KIND: &'static str = "a URL: \"sqlite:path\", \"postgres://user@host/database\" or \"memory:\"; or { file = \"path\" }, { env = \"NAME\" }";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Broken> {
        checked(Secret::from_text(text)?)
    }

    fn from_toml(value: &Value, environment: &Environment) -> Result<Self, Broken> {
        checked(Secret::from_toml(value, environment)?)
    }

    fn show(&self) -> String {
        match self.0.from {
            From::WrittenOut => format!("{:?}", self.shown()),
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

fn checked(secret: Secret) -> Result<StoreUrl, Broken> {
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
            (0o600, true, true, Privacy::Kept),
            (0o400, false, false, Privacy::Kept),
            (0o640, true, true, Privacy::Open),
            (0o604, true, true, Privacy::Open),
            (0o444, false, true, Privacy::OpenByOthers),
            (0o444, true, false, Privacy::OpenByOthers),
        ] {
            assert_eq!(Privacy::of(mode, own, writable), privacy, "{mode:o}");
        }
        let own = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(privacy(own.path()), Privacy::Kept);
        assert_eq!(privacy(Path::new("/nowhere")), Privacy::Kept);
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
