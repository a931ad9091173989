//! The running process that owns an embedded store, and how a command reaches it.
//!
//! A server, or a program with an admin listener, writes its address and a token into the lock file
//! of its store. A command that cannot open the store sends its requests there.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use windlass_client::{Client, Error};
use windlass_server::standalone::config::Config;
use windlass_sqlite::{Owner, owner};
use windlass_store::StoreError;

use crate::config::{store_in_use, store_path};

/// What a program must do so that commands can reach it.
const HOW_TO_ADD: &str = "if it is your own program, add these lines to it:

    let admin = windlass_server::admin(&client).bind(\"127.0.0.1:0\").await?; // before its worker runs
    admin.stop().await?; // after its worker has stopped

if it is another `windlass` command, wait until it ends";

/// Returns a client of the process that owns the store, if `error` says that the store is in use.
/// Other errors are returned, with the next step if the store belongs to another user.
pub(crate) async fn client_of_owner(
    config: &Config,
    error: anyhow::Error,
) -> anyhow::Result<Client> {
    let Some(StoreError::InUse { path, owner: pid }) = store_in_use(&error) else {
        let path = store_path(config).filter(|path| belongs_to_another_user(path));
        return Err(match path {
            Some(path) => anyhow!("{error:#}; {}", of_another_user(&path)),
            None => error,
        });
    };
    let store = Path::new(path);
    let in_use = format!("the store at {path} is in use by process {pid}");
    match owner(store) {
        Ok(Owner {
            url: Some(url),
            token: Some(token),
            ..
        }) => connect(&url, &token).await.context(in_use),
        Ok(Owner { url: Some(url), .. }) => bail!(
            "{in_use}, which serves it at {url} with TLS; use `--url https://…` with a name of its certificate, and an API key in WINDLASS_KEY"
        ),
        Ok(Owner { url: None, .. }) => {
            bail!("{in_use}, which does not serve it to commands; {HOW_TO_ADD}")
        }
        Err(denied) if denied.kind() == ErrorKind::PermissionDenied => {
            bail!("{in_use}; {}", of_another_user(store))
        }
        Err(unreadable) => Err(unreadable).with_context(|| {
            format!("{in_use}, and its lock file cannot be read; stop that process, or use `--url`")
        }),
    }
}

/// Connects to the owner, and checks that it accepts the token.
async fn connect(url: &str, token: &str) -> anyhow::Result<Client> {
    let client = Client::builder(url).key(token).retries(0).build()?;
    match client.policies().await {
        Ok(_) => Ok(client),
        Err(error @ Error::Connect { .. }) => Err(error).context(format!(
            "its lock file names {url}, but nothing accepts connections there: the process is starting, stopping or hanging; retry, or stop it"
        )),
        Err(Error::Refused(problem)) if problem.status == 401 => bail!(
            "its lock file names {url}, but the process there refuses the token: the owner has just restarted; retry"
        ),
        Err(error) => Err(error.into()),
    }
}

/// Whether this process may not read the lock file of a store.
fn belongs_to_another_user(store: &Path) -> bool {
    owner(store).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

fn of_another_user(store: &Path) -> String {
    format!(
        "only the user that owns {} can read its lock file: run the command as that user, or use `--url` with an API key in WINDLASS_KEY",
        store.display()
    )
}
