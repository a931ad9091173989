//! `windlass top`: queues, failures, workers and replays, live in the terminal.

mod keys;
mod snapshot;
mod table;
mod terminal;
mod view;

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use windlass_core::{Invalid, format_duration, parse_duration};

use crate::backend::{Api, ApiArgs, block_on};
use crate::clock;

use keys::{Flow, Look};
use snapshot::Snapshot;
use terminal::{Input, Terminal};
use view::Screen;

/// The shortest and the longest interval between two reads.
const EVERY_MIN: Duration = Duration::from_millis(500);
const EVERY_MAX: Duration = Duration::from_secs(60);
/// How often the screen is drawn without new data, so that ages stay current.
const DRAW_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = "\
Keys: q quits. The arrows left and right choose the column that sorts the queues, up and down scroll.
Tab shows failures, workers or replays below the queues. p pauses.")]
pub(crate) struct TopCommand {
    /// How often to read the data, 500ms to 60s.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    every: String,

    #[command(flatten)]
    api: ApiArgs,
}

impl TopCommand {
    fn every(&self) -> Result<Duration, Invalid> {
        let every = parse_duration(&self.every);
        let every = every.map_err(|error| Invalid::new("--every", error.rule()))?;
        if (EVERY_MIN..=EVERY_MAX).contains(&every) {
            return Ok(every);
        }
        let (min, max) = (format_duration(EVERY_MIN), format_duration(EVERY_MAX));
        Err(Invalid::new("--every", format!("must be {min} to {max}")))
    }
}

pub(crate) fn run(command: &TopCommand) -> anyhow::Result<()> {
    let every = command.every()?;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let rule = "must be a terminal; `windlass queues list` and `windlass stats` print once";
        return Err(Invalid::new("the standard input and output", rule).into());
    }
    block_on(async {
        let api = command.api.connect().await?;
        let done = show(&api, every).await;
        api.close().await;
        done
    })
}

async fn show(api: &Api, every: Duration) -> anyhow::Result<()> {
    let mut terminal = Terminal::open()?;
    let mut screen = Screen::new(every);
    let mut look = Look::default();
    let mut reading = Box::pin(Snapshot::read(api.client(), Duration::ZERO));
    let mut ticks = tokio::time::interval(DRAW_EVERY);
    loop {
        terminal.draw(&screen, &look, clock::now())?;
        tokio::select! {
            read = &mut reading, if !look.paused => {
                match read {
                    Ok(snapshot) => screen.update(snapshot),
                    // A wrong key or URL does not become right by itself.
                    Err(error) if screen.is_empty() && !error.is_temporary() => {
                        return Err(error.into());
                    }
                    Err(error) => screen.fail(error.to_string()),
                }
                reading = Box::pin(Snapshot::read(api.client(), every));
            }
            input = terminal.next() => match input? {
                Input::Key(key) => {
                    if look.press(key) == Flow::Quit {
                        return Ok(());
                    }
                }
                Input::Resized => {}
                Input::Stop => return Ok(()),
            },
            _ = ticks.tick() => {}
        }
    }
}
