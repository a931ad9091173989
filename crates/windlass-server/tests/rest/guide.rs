//! The commands of the guide are run as they stand, against a server of their own.

use std::process::Stdio;

use tokio::process::Command;

use crate::support::{PATIENCE, Server};

/// The commands in the blocks of shell, each with its further lines.
fn commands(guide: &str) -> Vec<String> {
    let blocks = guide.split("```sh\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split_once("```").map(|(block, _)| block));
    let mut commands: Vec<String> = Vec::new();
    for line in blocks.flat_map(str::lines) {
        match commands.last_mut() {
            Some(command) if command.ends_with('\\') => {
                command.pop();
                command.push_str(line);
            }
            _ => commands.push(line.to_owned()),
        }
    }
    commands
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_guide_works() {
    let server = Server::open().await;
    let commands = commands(include_str!("../../../../docs/rest.md"));
    assert!(commands.len() >= 7, "{commands:?}");
    let nobody = "01890a5d-ac96-774b-bcce-b302099a8057";
    for command in commands {
        let asked = command
            .replace("localhost:8080", &server.address.to_string())
            .replace("0190…", nobody);
        // A stream does not end by itself: its head is enough.
        let asked = match asked.contains("/events") {
            true => format!("{asked} --max-time 1 -o /dev/null -w '%{{http_code}}' || true"),
            false => format!("{asked} -o /dev/null -w '%{{http_code}}'"),
        };
        let run = Command::new("bash")
            .args(["-c", &asked])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let done = tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
        let status = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(status.starts_with('2'), "{command}: {status} {done:?}");
    }
}
