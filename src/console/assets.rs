//! The files of the page, which the program contains.

use std::{collections::HashMap, sync::LazyLock};

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};

pub(super) const SHELL: &str = include_str!("assets/index.html");
pub(super) const LOGIN: &str = include_str!("assets/login.html");

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

struct File {
    kind: &'static str,
    text: &'static str,
    /// A hash of the text, so that a browser loads a file once per version of this crate.
    tag: String,
}

macro_rules! files {
    ($($kind:ident $name:literal),+ $(,)?) => {
        [$(($name, $kind, include_str!(concat!("assets/", $name)))),+]
    };
}

static FILES: LazyLock<HashMap<&str, File>> = LazyLock::new(|| {
    let files = files![
        STYLE "console.css",
        STYLE "login.css",
        IMAGE "icon.svg",
        SCRIPT "api.js",
        SCRIPT "app.js",
        SCRIPT "attempts.js",
        SCRIPT "chart.js",
        SCRIPT "dialog.js",
        SCRIPT "dom.js",
        SCRIPT "format.js",
        SCRIPT "live.js",
        SCRIPT "login.js",
        SCRIPT "table.js",
        SCRIPT "theme.js",
        SCRIPT "words.js",
        SCRIPT "blocks.js",
        SCRIPT "events.js",
        SCRIPT "overview.js",
        SCRIPT "policy.js",
        SCRIPT "policy-form.js",
        SCRIPT "policy-preview.js",
        SCRIPT "rules.js",
        SCRIPT "subject.js",
    ];
    let files = files.into_iter().map(|(name, kind, text)| {
        let tag = format!("\"{}\"", &blake3::hash(text.as_bytes()).to_hex()[..16]);
        (name, File { kind, text, tag })
    });
    files.collect()
});

/// A file by its path below the console.
pub(super) fn serve(path: &str, request: &HeaderMap) -> Response {
    let file = path.strip_prefix("/assets/");
    let Some(file) = file.and_then(|name| FILES.get(name)) else {
        return (StatusCode::NOT_FOUND, "not found").into_response();
    };
    let headers = [
        (header::ETAG, &*file.tag),
        // Kept, and asked for again: a page is never made of files of two versions.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_TYPE, file.kind),
    ];
    let known = request.get_all(header::IF_NONE_MATCH).iter();
    let mut known = known.filter_map(|tags| tags.to_str().ok());
    if known.any(|tags| tags.contains(&*file.tag)) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, file.text).into_response()
}
