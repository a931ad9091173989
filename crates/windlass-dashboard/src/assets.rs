//! The style sheet, the script and the glyphs. They are part of the program.
//!
//! The URL of an asset contains a hash of its bytes, so browsers may keep it forever.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Response, StatusCode};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// An asset.
struct Asset {
    /// The name in URLs, with the hash: `app-0123456789abcdef.css`.
    name: String,
    content_type: &'static str,
    bytes: &'static [u8],
}

impl Asset {
    fn new(stem: &str, ending: &str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        let hash: String = HEXLOWER
            .encode(&Sha256::digest(bytes))
            .chars()
            .take(16)
            .collect();
        Asset {
            name: format!("{stem}-{hash}.{ending}"),
            content_type,
            bytes,
        }
    }
}

static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "app",
        "css",
        "text/css; charset=utf-8",
        concat!(
            include_str!("../assets/app.css"),
            include_str!("../assets/evidence.css"),
            include_str!("../assets/phone.css")
        )
        .as_bytes(),
    )
});
static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = concat!(
        include_str!("../assets/app.js"),
        include_str!("../assets/evidence.js")
    )
    .as_bytes();
    Asset::new("app", "js", "text/javascript; charset=utf-8", bytes)
});
static GLYPHS: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "glyphs",
        "svg",
        "image/svg+xml",
        include_bytes!("../assets/glyphs.svg"),
    )
});

static ICON: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "icon",
        "svg",
        "image/svg+xml",
        include_bytes!("../assets/icon.svg"),
    )
});

/// The file name of the icon of the tab.
pub(crate) fn icon() -> &'static str {
    &ICON.name
}

/// The file name of the style sheet.
pub(crate) fn style() -> &'static str {
    &STYLE.name
}

/// The file name of the script.
pub(crate) fn script() -> &'static str {
    &SCRIPT.name
}

/// The file name of the glyphs.
pub(crate) fn glyphs() -> &'static str {
    &GLYPHS.name
}

/// Returns the response with an asset, or 404.
pub(crate) fn serve(name: &str) -> Response<Body> {
    let assets = [&*STYLE, &*SCRIPT, &*GLYPHS, &*ICON];
    let Some(asset) = assets.into_iter().find(|asset| asset.name == name) else {
        let mut response = Response::new(Body::from("no such asset\n"));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    };
    let mut response = Response::new(Body::from(asset.bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    headers.insert(CACHE_CONTROL, forever);
    response
}
