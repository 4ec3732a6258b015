//! Who may call the page: no foreign site, neither by a name of its own that leads here nor by a form or a script.

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Shared;

/// A header that the page sends along with a change. A form of another site cannot, a script of another site has to
/// ask first and is not answered.
pub(super) const WRITE_HEADER: HeaderName = HeaderName::from_static("x-tickwatch");

/// Nothing from elsewhere, nothing inline; in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Refuses what comes under a foreign name, and changes from elsewhere; puts the policy on all answers.
pub(super) async fn guard(State(shared): State<std::sync::Arc<Shared>>, request: Request, next: Next) -> Response {
    let refusal = host_problem(request.headers(), &shared.config.dashboard.hosts)
        .or_else(|| (request.method() != Method::GET).then(|| write_problem(request.headers())).flatten());
    let mut response = match refusal {
        Some(problem) => refuse(problem),
        None => next.run(request).await,
    };
    for (name, value) in
        [(CONTENT_SECURITY_POLICY, POLICY), (X_CONTENT_TYPE_OPTIONS, "nosniff"), (REFERRER_POLICY, "no-referrer")]
    {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// 403 with its reason.
pub(super) fn refuse(problem: impl Into<String>) -> Response {
    (StatusCode::FORBIDDEN, problem.into() + "\n").into_response()
}

/// A name is only an address in disguise: whoever owns it can let it lead here. An address cannot be pointed elsewhere.
fn host_problem(headers: &HeaderMap, hosts: &[String]) -> Option<String> {
    let text = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let Ok(authority) = text.parse::<Authority>() else {
        return Some("the request names no host".to_owned());
    };
    let host = authority.host();
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    let known = address
        || host.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(host));
    (!known)
        .then(|| format!("this page is not served as {host:?}; if that is its name, add it to [dashboard] hosts"))
}

/// A change has to come from a page of this very origin.
fn write_problem(headers: &HeaderMap) -> Option<String> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if !headers.contains_key(WRITE_HEADER) {
        return Some(format!("a change needs the header {WRITE_HEADER}: 1"));
    }
    if let Some(site) = text(HeaderName::from_static("sec-fetch-site")).filter(|site| *site != "same-origin") {
        return Some(format!("changes are taken from this page only, not from {site}"));
    }
    let here = text(HOST).unwrap_or_default();
    let origin = text(ORIGIN).map(|origin| origin.split_once("://").map_or(origin, |(_, host)| host));
    origin
        .filter(|origin| !origin.eq_ignore_ascii_case(here))
        .map(|origin| format!("changes are taken from this page only, not from {origin}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
        };
        pairs.iter().map(header).collect()
    }

    #[test]
    fn only_addresses_and_known_names_are_served() {
        let hosts = ["tickwatch.example".to_owned()];
        for host in ["127.0.0.1:8080", "[::1]:8080", "10.0.3.17", "localhost:8080", "Tickwatch.example"] {
            assert_eq!(host_problem(&headers(&[("host", host)]), &hosts), None, "{host}");
        }
        for host in ["evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
            assert!(host_problem(&headers(&[("host", host)]), &hosts).is_some(), "{host}");
        }
        assert!(host_problem(&HeaderMap::new(), &hosts).is_some());
    }

    #[test]
    fn a_change_comes_from_the_page_itself_or_from_no_browser() {
        let own = [("host", "127.0.0.1:1"), ("x-tickwatch", "1")];
        assert_eq!(write_problem(&headers(&own)), None);
        let from_page = [own[0], own[1], ("origin", "http://127.0.0.1:1"), ("sec-fetch-site", "same-origin")];
        assert_eq!(write_problem(&headers(&from_page)), None);
        for foreign in [
            vec![own[0]],
            vec![own[0], own[1], ("origin", "http://evil.example")],
            vec![own[0], own[1], ("origin", "null")],
            vec![own[0], own[1], ("origin", "http://127.0.0.1:2")],
            vec![own[0], own[1], ("sec-fetch-site", "cross-site")],
            vec![own[0], own[1], ("sec-fetch-site", "same-site")],
        ] {
            assert!(write_problem(&headers(&foreign)).is_some(), "{foreign:?}");
        }
    }
}
