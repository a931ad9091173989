//! What surrounds every page: navigation, environment, person, theme, messages.

use std::sync::Arc;

use windlass_api::Scope;

use crate::assets;
use crate::backend::SignedIn;
use crate::failure::Failure;
use crate::markup::{self, Markup, escaped};
use crate::show::{self, Zone};
use crate::snapshot::Snapshot;
use crate::visit::{CSRF_FIELD, FLASH, THEME, UNDO, Visit};
use windlass_core::{JobId, Timestamp};

/// A section of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Jobs,
    Queues,
    Dead,
    Schedules,
    Workers,
    Lab,
    Actions,
    Audit,
    Keys,
    Settings,
    Reference,
    /// None of them.
    None,
}

/// A link of the navigation.
#[derive(Debug, Clone)]
pub(crate) struct NavLink {
    pub(crate) path: &'static str,
    pub(crate) glyph: &'static str,
    pub(crate) name: &'static str,
    pub(crate) count: Option<Markup>,
    /// Whether the count needs attention.
    pub(crate) bad: bool,
    pub(crate) current: bool,
    /// Whether a line separates this link from the one before.
    pub(crate) apart: bool,
    /// The key after `g` that leads here.
    pub(crate) key: Option<&'static str>,
}

/// What surrounds a page. Templates use it as `frame`.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) title: String,
    pub(crate) base: String,
    /// The path of the page with its query, below `base`.
    pub(crate) here: String,
    pub(crate) nav: Vec<NavLink>,
    pub(crate) theme: Option<&'static str>,
    pub(crate) environment: Option<String>,
    pub(crate) colour: &'static str,
    pub(crate) who: String,
    pub(crate) can_sign_out: bool,
    pub(crate) read_only: bool,
    pub(crate) may_operate: bool,
    /// What the person may do, as names of scopes.
    pub(crate) scopes: String,
    pub(crate) may_admin: bool,
    pub(crate) csrf: String,
    pub(crate) version: String,
    pub(crate) store: String,
    pub(crate) zone: Zone,
    pub(crate) now: Timestamp,
    pub(crate) style: &'static str,
    pub(crate) script: &'static str,
    pub(crate) glyphs: &'static str,
    pub(crate) icon: &'static str,
    /// A message of the last action: its tone and its text.
    pub(crate) flash: Option<(String, String)>,
    /// The path of the action that undoes the last one.
    pub(crate) undo: Option<String>,
    /// Whether the page follows changes.
    pub(crate) live: bool,
}

impl Frame {
    /// Returns the frame of a page, with the counts of the navigation.
    pub(crate) async fn new(
        visit: &Visit,
        title: impl Into<String>,
        section: Section,
    ) -> Result<Frame, Failure> {
        let snapshot = visit.snapshot().await?;
        let mut frame = Frame::bare(visit, title, section);
        frame.live = true;
        frame.nav = nav(visit, section, Some(&snapshot));
        Ok(frame)
    }

    /// Returns a frame that needs nothing from the store.
    pub(crate) fn bare(visit: &Visit, title: impl Into<String>, section: Section) -> Frame {
        let about = visit.site().backend().about();
        let identity = visit.identity();
        let who = match identity.signed_in {
            SignedIn::Locally => "open access, this machine only".to_owned(),
            SignedIn::WithKey | SignedIn::ByProxy => {
                format!("{} · {}", identity.name, role(visit))
            }
        };
        let theme = match visit.cookie(THEME).as_deref() {
            Some("light") => Some("light"),
            Some("dark") => Some("dark"),
            _ => None,
        };
        let flash = visit.cookie(FLASH).and_then(|flash| {
            let (tone, message) = flash.split_once(' ')?;
            Some((tone.to_owned(), show::visible(message)))
        });
        let (flash, undo) = match flash {
            Some((tone, message)) => match tone.strip_prefix(UNDO) {
                Some(undo) => (
                    Some(("ok".to_owned(), message)),
                    Some(undo.to_owned()).filter(|undo| is_inverse(undo)),
                ),
                None => (Some((tone, message)), None),
            },
            None => (None, None),
        };
        Frame {
            title: title.into(),
            base: visit.base().to_owned(),
            here: visit.here(),
            nav: nav(visit, section, None),
            theme,
            environment: about.environment.clone(),
            colour: about.colour.name(),
            who,
            can_sign_out: identity.signed_in == SignedIn::WithKey,
            read_only: about.read_only,
            may_operate: visit.may(Scope::Operate),
            scopes: identity
                .scopes
                .iter()
                .map(|scope| scope.name())
                .collect::<Vec<_>>()
                .join(", "),
            may_admin: visit.may(Scope::Admin),
            csrf: visit.csrf().to_owned(),
            version: about.version.clone(),
            store: about.store.clone(),
            zone: visit.zone().clone(),
            now: visit.now(),
            style: assets::style(),
            script: assets::script(),
            glyphs: assets::glyphs(),
            icon: assets::icon(),
            flash,
            undo,
            live: false,
        }
    }
}

impl Frame {
    /// When the page was made, in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        self.now.as_micros() / 1000
    }

    /// A glyph. Text next to it says the same.
    pub(crate) fn glyph(&self, name: &str) -> Markup {
        let (base, glyphs, name) = (escaped(&self.base), self.glyphs, escaped(name));
        Markup(format!(
            r#"<svg class="g" aria-hidden="true"><use href="{base}/assets/{glyphs}#{name}"/></svg>"#
        ))
    }

    /// A state or an outcome: its glyph and its word.
    pub(crate) fn state(&self, look: Look) -> Markup {
        let (colour, glyph, word) = (look.colour, self.glyph(look.glyph), escaped(look.word));
        Markup(format!(
            r#"<span class="st"><span class="c-{colour}">{glyph}</span>{word}</span>"#
        ))
    }

    /// The hidden fields of every form that changes something.
    pub(crate) fn form_fields(&self) -> Markup {
        let (csrf, here) = (escaped(&self.csrf), escaped(&self.here));
        Markup(format!(
            r#"<input type="hidden" name="{CSRF_FIELD}" value="{csrf}"><input type="hidden" name="from" value="{here}">"#
        ))
    }

    /// The attributes of a control that the person may not use: it is disabled and says why.
    pub(crate) fn locked(&self) -> Markup {
        let why = match (self.may_operate, self.read_only) {
            (true, false) => return Markup::default(),
            (_, true) => "this dashboard is read only",
            (false, false) => "needs the scope operate",
        };
        Markup(format!(r#" disabled title="{why}""#))
    }

    /// The mark that says whether the page follows changes.
    pub(crate) fn live_mark(&self) -> Markup {
        Markup(
            r#"<span class="live js-only" data-live-mark><i></i><span>Live</span></span>"#
                .to_owned(),
        )
    }

    /// A command that does the same as the page, with a button that copies it.
    pub(crate) fn command(&self, text: &str) -> Markup {
        let (text, glyph) = (escaped(text), self.glyph("copy"));
        Markup(format!(
            r#"<div class="cmd"><pre><code>{text}</code></pre><button class="copy js-only" type="button" data-copy aria-label="Copy the command">{glyph}</button></div>"#
        ))
    }

    /// The commands that do the same as the page, behind a line at its end.
    pub(crate) fn commands(&self, commands: &[String]) -> Markup {
        let commands: String = commands.iter().map(|text| self.command(text).0).collect();
        Markup(format!(
            r#"<details class="section cli" id="cli"><summary>On the command line</summary><div class="stack">{commands}</div></details>"#
        ))
    }

    /// An instant relative to now, with the full time as its title. The script keeps it current.
    pub(crate) fn ago(&self, at: &Timestamp) -> Markup {
        self.time(at, &show::relative(*at, self.now), "ago")
    }

    /// An instant as far as it is needed, with the full time as its title.
    pub(crate) fn at(&self, at: &Timestamp) -> Markup {
        self.time(at, &self.zone.short(*at, self.now), "at")
    }

    /// Shows a sentence of the server: its instants in the zone of the page, its jobs as links.
    pub(crate) fn linked(&self, sentence: &str) -> Markup {
        let word = |word: &str| {
            if let Ok(at) = word.parse::<Timestamp>() {
                return self.at(&at).0;
            }
            match word.parse::<JobId>() {
                Ok(id) => format!(
                    r#"<a class="link mono" href="{}/jobs/{id}" title="{id}">{}</a>"#,
                    self.base,
                    show::id_end(id)
                ),
                Err(_) => escaped(word),
            }
        };
        let words: Vec<String> = sentence.split(' ').map(word).collect();
        Markup(words.join(" "))
    }

    fn time(&self, at: &Timestamp, text: &str, how: &str) -> Markup {
        let (full, text) = (escaped(&self.zone.full(*at)), escaped(text));
        Markup(format!(
            r#"<time datetime="{at}" title="{full}" data-time="{how}">{text}</time>"#
        ))
    }
}

/// How a state or an outcome looks: its word, its own glyph and its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) word: &'static str,
    pub(crate) glyph: &'static str,
    pub(crate) colour: &'static str,
}

impl Look {
    pub(crate) const fn new(word: &'static str, glyph: &'static str, colour: &'static str) -> Self {
        Look {
            word,
            glyph,
            colour,
        }
    }
}

/// Whether a path is an action that undoes another one. A cookie names it, so nothing else counts.
fn is_inverse(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let names = match parts[..] {
        ["", "queues" | "schedules", name, "pause" | "resume"] => [name, "-"],
        ["", "actions", "replays" | "bulk", id, "pause" | "resume"] => [id, "-"],
        ["", "workers" | "all-queues", name, "resume"] => [name, "-"],
        ["", "jobs", id, run_at, "uncancel"] => [id, run_at],
        _ => return false,
    };
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "%-_.~".contains(letter);
    names
        .iter()
        .all(|name| !name.is_empty() && name.chars().all(is_plain))
}

/// What the person may do, in one word.
fn role(visit: &Visit) -> &'static str {
    let roles = [
        (Scope::Admin, "admin"),
        (Scope::Operate, "operator"),
        (Scope::Read, "viewer"),
    ];
    let role = roles.into_iter().find(|(scope, _)| visit.may(*scope));
    role.map_or("no access", |(_, role)| role)
}

fn nav(visit: &Visit, current: Section, snapshot: Option<&Arc<Snapshot>>) -> Vec<NavLink> {
    let number = |count: u64| (count > 0).then(|| markup::count(count));
    let of = |count: fn(&Snapshot) -> u64| snapshot.and_then(|snapshot| number(count(snapshot)));
    let link = |section, path, glyph, name, key| NavLink {
        path,
        glyph,
        name,
        count: None,
        bad: false,
        current: section == current,
        apart: false,
        key,
    };
    let mut nav = vec![
        link(Section::Overview, "/", "overview", "Overview", Some("o")),
        link(Section::Jobs, "/jobs", "jobs", "Jobs", Some("j")),
        NavLink {
            count: of(|snapshot| snapshot.queues.len() as u64),
            ..link(Section::Queues, "/queues", "queues", "Queues", Some("q"))
        },
        NavLink {
            count: of(|snapshot| snapshot.total(|counts| counts.dead)),
            bad: snapshot.is_some_and(|snapshot| snapshot.dead_grew),
            ..link(Section::Dead, "/dead", "letters", "Dead letters", Some("d"))
        },
        NavLink {
            count: of(|snapshot| snapshot.schedules),
            ..link(
                Section::Schedules,
                "/schedules",
                "schedules",
                "Schedules",
                Some("s"),
            )
        },
        NavLink {
            count: of(|snapshot| snapshot.workers.len() as u64),
            ..link(
                Section::Workers,
                "/workers",
                "workers",
                "Workers",
                Some("w"),
            )
        },
        link(Section::Lab, "/lab", "lab", "Policy lab", Some("l")),
        NavLink {
            count: of(|snapshot| snapshot.active_actions),
            apart: true,
            ..link(
                Section::Actions,
                "/actions",
                "actions",
                "Bulk actions",
                None,
            )
        },
    ];
    if visit.may(Scope::Admin) {
        nav.push(link(Section::Audit, "/audit", "audit", "Audit", None));
        nav.push(link(Section::Keys, "/keys", "keys", "Keys", None));
        nav.push(link(
            Section::Settings,
            "/settings",
            "settings",
            "Settings",
            None,
        ));
    }
    nav.push(link(
        Section::Reference,
        "/reference",
        "reference",
        "API",
        None,
    ));
    nav
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inverses_of_actions_can_undo() {
        for path in [
            "/queues/mail/resume",
            "/workers/node%20a/resume",
            "/schedules/nightly/pause",
            "/all-queues/17-18/resume",
            "/actions/replays/0199/resume",
            "/jobs/0199/1773709964000000/uncancel",
            "/jobs/selected/0199.1773709964000000~019a.1773709964000000/uncancel",
        ] {
            assert!(is_inverse(path), "{path}");
        }
        for path in [
            "",
            "/queues/mail/purge",
            "/queues//resume",
            "//evil.example/queues/resume",
            "/keys/x/revoke",
            "/queues/a/b/resume",
            "/queues/a\"x/resume",
            "/workers/a/stop",
            "/all-queues/17-18/pause",
            "/actions/replays/0199/abort",
            "/actions/keys/0199/resume",
            "/jobs/0199/delete",
        ] {
            assert!(!is_inverse(path), "{path}");
        }
    }
}
