//! Reads an export of jobs.

use std::fmt;

use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use windlass_api::{ExportEnd, ExportFormat, ExportParams, JobFilter};

use crate::client::{Call, Client, Method};
use crate::connection::Connection;
use crate::error::Error;

/// How the last line of an export as NDJSON begins. No job begins like this.
const END: &[u8] = b"{\"export\":";

impl Client {
    /// Exports all jobs that match a filter, newest first. The server streams them, so the number of
    /// jobs has no limit.
    ///
    /// ```no_run
    /// # use windlass_client::{Client, Error, api::{ExportFormat, JobFilter}};
    /// # async fn example(client: &Client) -> Result<(), Error> {
    /// let mut export = client.export_jobs(&JobFilter::default(), ExportFormat::Ndjson).await?;
    /// while let Some(line) = export.next().await? {
    ///     print!("{}", String::from_utf8_lossy(&line));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn export_jobs(
        &self,
        filter: &JobFilter,
        format: ExportFormat,
    ) -> Result<Export, Error> {
        let params = ExportParams {
            format: Some(format),
        };
        let call = Call::new(Method::Get, &["jobs", "export"]);
        let call = call.query(filter).query(&params);
        let (connection, response) = self.open_stream(&call, None).await?;
        Ok(Export {
            client: self.clone(),
            call,
            format,
            body: response.into_body(),
            buffer: Vec::new(),
            searched: 0,
            is_complete: false,
            _connection: connection,
        })
    }
}

/// An export of jobs, from [`Client::export_jobs`].
pub struct Export {
    client: Client,
    call: Call,
    format: ExportFormat,
    body: Incoming,
    /// The bytes that were not returned yet.
    buffer: Vec<u8>,
    /// The bytes of the buffer before this index have no line end.
    searched: usize,
    is_complete: bool,
    /// The connection ends when this is dropped.
    _connection: Connection,
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({:?}, {:?})", self.client, self.format)
    }
}

impl Export {
    /// Returns the next part: one job with its line end as NDJSON, or a piece of text as CSV. Returns
    /// `None` only if the export is complete.
    ///
    /// # Errors
    ///
    /// Returns an error if the export is not complete. What it returned before is only a part of the
    /// jobs.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(line) = self.buffered() {
                if self.format == ExportFormat::Csv || !line.starts_with(END) {
                    return Ok(Some(line));
                }
                let end: ExportEnd = self.client.parse(&line)?;
                self.is_complete = end.export.complete;
            }
            let Some(piece) = self.piece().await? else {
                let is_complete = self.is_complete || self.format == ExportFormat::Csv;
                let incomplete = || self.client.broken("the export has no end".into());
                return is_complete.then_some(None).ok_or_else(incomplete);
            };
            let max = self.client.answer_bytes_max();
            if self.buffer.len() + piece.len() > max {
                return Err(Error::TooLarge { max });
            }
            self.buffer.extend_from_slice(&piece);
        }
    }

    /// Takes the next line out of the buffer, or all of it from a table.
    fn buffered(&mut self) -> Option<Bytes> {
        let end = match self.format {
            ExportFormat::Csv => self.buffer.len(),
            ExportFormat::Ndjson => {
                let rest = self.buffer.get(self.searched..)?;
                let end = rest.iter().position(|byte| *byte == b'\n');
                let Some(end) = end else {
                    self.searched = self.buffer.len();
                    return None;
                };
                self.searched + end + 1
            }
        };
        self.searched = 0;
        let rest = self.buffer.split_off(end);
        let line = std::mem::replace(&mut self.buffer, rest);
        (!line.is_empty()).then(|| line.into())
    }

    /// Reads from the connection; `None` at the end of the response.
    async fn piece(&mut self) -> Result<Option<Bytes>, Error> {
        let (client, body) = (&self.client, &mut self.body);
        let read = async {
            match body.frame().await {
                Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
                Some(Err(error)) => Err(client.broken(error.into())),
                None => Ok(None),
            }
        };
        client.with_timeout(&self.call, read).await
    }
}
