//! What the page is made of, inside the program. Asked for again with its ETag, it is not sent again.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

/// One file.
struct Asset {
    name: &'static str,
    kind: &'static str,
    content: &'static [u8],
    etag: String,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// The page for every path; its script knows which view a path is.
const PAGE: &str = "page.html";

macro_rules! assets {
    ($($kind:ident $name:literal),+ $(,)?) => {
        [$(Asset {
            name: $name,
            kind: $kind,
            content: include_bytes!(concat!("assets/", $name)),
            etag: String::new(),
        }),+]
    };
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let assets = assets!(
        HTML "page.html",
        SVG "icon.svg",
        CSS "page.css",
        CSS "overview.css",
        CSS "symbol.css",
        JS "app.js",
        JS "stream.js",
        JS "dom.js",
        JS "format.js",
        JS "bar.js",
        JS "spark.js",
        JS "overview.js",
        JS "verdict.js",
        JS "partitions.js",
        JS "workers.js",
        JS "feed.js",
        JS "symbols.js",
        JS "first-steps.js",
        JS "symbol.js",
        JS "chart.js",
        JS "chart-overlay.js",
        JS "candle-series.js",
        JS "rules.js",
        JS "rule-form.js",
        JS "vendor/lightweight-charts.js",
        TEXT "vendor/NOTICE.txt",
    );
    let with_etag = |asset: Asset| {
        let etag = format!("\"{:08x}-{:x}\"", crc32fast::hash(asset.content), asset.content.len());
        Asset { etag, ..asset }
    };
    assets.into_iter().map(with_etag).collect()
});

/// The page.
pub(super) async fn page(headers: HeaderMap) -> Response {
    serve(PAGE, &headers)
}

/// What a browser asks for by itself.
pub(super) async fn icon(headers: HeaderMap) -> Response {
    serve("icon.svg", &headers)
}

/// A file that the page asks for.
pub(super) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    serve(&name, &headers)
}

fn serve(name: &str, headers: &HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    let known = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let caching = [(ETAG, asset.etag.as_str()), (CACHE_CONTROL, "no-cache")];
    if known.split(',').any(|tag| tag.trim().trim_start_matches("W/") == asset.etag) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    (caching, [(CONTENT_TYPE, asset.kind)], Bytes::from_static(asset.content)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sent_once_and_then_known() {
        let first = serve("app.js", &HeaderMap::new());
        assert_eq!((first.status(), &first.headers()[CONTENT_TYPE]), (StatusCode::OK, &JS.parse().unwrap()));
        let again: HeaderMap = [(IF_NONE_MATCH, first.headers()[ETAG].clone())].into_iter().collect();
        assert_eq!(serve("app.js", &again).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(serve("page.html", &again).status(), StatusCode::OK);
        assert_eq!(serve("../mod.rs", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        for asset in ASSETS.iter().filter(|asset| !asset.name.starts_with("vendor/")) {
            let text = std::str::from_utf8(asset.content).unwrap();
            for inline in [" style=", " onclick=", "<style", "javascript:"] {
                assert!(!text.contains(inline), "{}: {inline}", asset.name);
            }
            let elsewhere = text.match_indices("https://").map(|(at, _)| &text[at..]);
            for url in elsewhere {
                assert!(url.starts_with("https://www.tradingview.com/"), "{}: {url:.60}", asset.name);
            }
        }
    }
}
