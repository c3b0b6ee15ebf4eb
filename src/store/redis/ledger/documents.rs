//! The document that a fleet shares, in Redis.

use std::{iter, sync::Arc};

use redis::{Cmd, Value};

use crate::store::{
    Document, StoreError, StoreFuture,
    ledger::{MAX_HISTORY, MAX_VERSIONS, check_document},
    redis::{
        backend::Backend,
        counters::Call,
        reply::unexpected,
        scripts::{DOCUMENT, REPLACE_DOCUMENT},
    },
};

impl Backend {
    /// Reads a version of the document, or the newest.
    async fn version(&self, version: Option<u64>) -> Result<Option<Document>, StoreError> {
        let mut command = DOCUMENT.call(iter::once(&*self.scheme().document()));
        match version {
            Some(version) => command.arg(version),
            None => command.arg(""),
        };
        let script = Arc::clone(&DOCUMENT);
        let reply = self.ask_script(Call { command, script }).await?;
        let read = match &reply {
            Value::Nil => Some(None),
            Value::Array(values) => document(values).map(Some),
            _ => None,
        };
        read.ok_or_else(|| unexpected("document.lua", &reply))
    }

    /// The numbers of the newest version and of the oldest one that is kept; 0 if there is none.
    async fn versions(&self) -> Result<[u64; 2], StoreError> {
        let mut command = Cmd::new();
        command.arg("HMGET").arg(self.scheme().document());
        command.arg("newest").arg("oldest");
        let reply = self.send(command).await?;
        let number = |value: &Value| match value {
            Value::Nil => Some(0),
            Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        };
        let read = match &reply {
            Value::Array(values) => match values.as_slice() {
                [newest, oldest] => number(newest).zip(number(oldest)),
                _ => None,
            },
            _ => None,
        };
        let (newest, oldest) = read.ok_or_else(|| unexpected("HMGET", &reply))?;
        Ok([newest, oldest])
    }

    pub(super) fn read_document(&self, version: Option<u64>) -> StoreFuture<Option<Document>> {
        let backend = self.clone();
        StoreFuture::pending(async move { backend.version(version).await })
    }

    pub(super) fn read_version(&self) -> StoreFuture<u64> {
        let backend = self.clone();
        StoreFuture::pending(async move {
            let [newest, _] = backend.versions().await?;
            Ok(newest)
        })
    }

    pub(super) fn read_documents(&self) -> StoreFuture<Vec<Document>> {
        let backend = self.clone();
        StoreFuture::pending(async move {
            let [newest, oldest] = backend.versions().await?;
            let (newest, oldest) = (newest, oldest.max(1));
            let mut documents = Vec::new();
            // One by one, as they may be long.
            for version in (oldest..=newest).rev().take(MAX_VERSIONS) {
                documents.extend(backend.version(Some(version)).await?);
            }
            Ok(documents)
        })
    }

    pub(super) fn write_document(
        &self,
        expected: u64,
        text: &str,
    ) -> StoreFuture<Result<u64, Option<Document>>> {
        if let Err(error) = check_document(text) {
            return StoreFuture::ready(Err(error));
        }
        let mut command = REPLACE_DOCUMENT.call(iter::once(&*self.scheme().document()));
        command.arg(expected).arg(text);
        command.arg(MAX_VERSIONS).arg(MAX_HISTORY);
        command.arg(self.channel());
        let (backend, script) = (self.clone(), Arc::clone(&REPLACE_DOCUMENT));
        StoreFuture::pending(async move {
            let reply = backend.ask_script(Call { command, script }).await?;
            let read = match &reply {
                Value::Array(values) => match values.as_slice() {
                    [Value::Int(1), Value::Int(version)] => u64::try_from(*version).ok().map(Ok),
                    [Value::Int(0)] => Some(Err(None)),
                    [Value::Int(0), values @ ..] => document(values).map(|found| Err(Some(found))),
                    _ => None,
                },
                _ => None,
            };
            read.ok_or_else(|| unexpected("replace_document.lua", &reply))
        })
    }
}

/// Reads a version and its text.
fn document(values: &[Value]) -> Option<Document> {
    let [Value::Int(version), Value::BulkString(text)] = values else {
        return None;
    };
    let text = String::from_utf8(text.clone()).ok()?;
    Some(Document::new(u64::try_from(*version).ok()?, text))
}
