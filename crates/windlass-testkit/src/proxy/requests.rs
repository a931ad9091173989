//! Reads which prepared statements a PostgreSQL client runs.

use std::collections::HashMap;

/// The protocol version in the message that ends the start of a connection. Requests for TLS come
/// before it.
const VERSION_3: u32 = 196_608;

/// The bytes that a client has sent, and the statements that it has prepared.
#[derive(Default)]
pub(super) struct Requests {
    bytes: Vec<u8>,
    started: bool,
    texts: HashMap<Vec<u8>, Vec<u8>>,
}

impl Requests {
    /// Adds bytes. Returns the texts of the statements that these run.
    pub(super) fn read(&mut self, part: &[u8]) -> Vec<Vec<u8>> {
        self.bytes.extend_from_slice(part);
        let mut run = Vec::new();
        while let Some((kind, body)) = self.next_message() {
            let mut strings = body.split(|byte| *byte == 0);
            let mut string = || strings.next().unwrap_or_default().to_vec();
            match kind {
                b'P' => {
                    let name = string();
                    self.texts.insert(name, string());
                }
                b'B' => {
                    let _portal = string();
                    run.extend(self.texts.get(&string()).cloned());
                }
                _ => {}
            }
        }
        run
    }

    /// Takes the next complete message: its type (0 at the start of a connection) and its content.
    fn next_message(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = usize::from(self.started);
        let bytes = self.bytes.get(head..head + 4)?;
        let length = u32::from_be_bytes(*bytes.first_chunk()?);
        let end = head + usize::try_from(length).ok()?.max(4);
        let body = self.bytes.get(head + 4..end)?.to_vec();
        let kind = if self.started {
            *self.bytes.first()?
        } else {
            0
        };
        self.bytes.drain(..end);
        self.started |= body.first_chunk().copied().map(u32::from_be_bytes) == Some(VERSION_3);
        Some((kind, body))
    }
}
