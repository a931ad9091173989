//! Signing in and out.

use askama::Template;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::SET_COOKIE;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Response, StatusCode};

use crate::assets;
use crate::backend::{Credential, Refusal, Visitor};
use crate::fields::{Fields, escaped};
use crate::headers::html;
use crate::site::Site;
use crate::visit::{CSRF_FIELD, Submit, THEME, base, cookie, form, same, see_other};

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    base: String,
    style: &'static str,
    glyphs: &'static str,
    theme: Option<String>,
    environment: Option<String>,
    colour: &'static str,
    csrf: String,
    next: String,
    /// A single-use link that only needs a confirmation.
    link: Option<String>,
    problem: Option<String>,
}

#[derive(Template)]
#[template(path = "reload.html")]
struct ReloadPage {
    to: String,
}

fn page(site: &Site, parts: &Parts, csrf: &str, problem: Option<String>) -> SignInPage {
    let about = site.backend().about();
    let query = Fields::parse(parts.uri.query().unwrap_or_default());
    let theme = cookie(&parts.headers, THEME).filter(|theme| theme == "light" || theme == "dark");
    SignInPage {
        base: base(parts),
        style: assets::style(),
        glyphs: assets::glyphs(),
        theme,
        environment: about.environment.clone(),
        colour: about.colour.name(),
        csrf: csrf.to_owned(),
        next: own_path(query.get("next").unwrap_or("/")).to_owned(),
        link: query.get("link").map(str::to_owned),
        problem,
    }
}

/// Returns a path of this site, so that signing in never leads to another one.
fn own_path(path: &str) -> &str {
    let is_own = path.starts_with('/')
        && !path.starts_with("//")
        && !path.contains(['\\', '\r', '\n', '\t']);
    if is_own { path } else { "/" }
}

fn with_cookie(mut response: Response<Body>, cookie: Option<HeaderValue>) -> Response<Body> {
    if let Some(cookie) = cookie {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

/// The response to someone who must sign in first.
pub(crate) fn required(site: &Site, parts: &Parts, visitor: &Visitor) -> Response<Body> {
    let asks = parts
        .headers
        .get("sec-fetch-site")
        .is_some_and(|from| from == "cross-site");
    if asks && parts.method == Method::GET {
        // The browser does not send the cookie when a page of another site leads here. Loading the
        // page again from here sends it.
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let page = ReloadPage {
            to: format!("{}{}", base(parts), own_path(path)),
        };
        return html(page.render().unwrap_or_default());
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let is_page = parts.method == Method::GET && parts.uri.path() != "/live";
    if !is_page {
        let detail = "The session has ended: sign in again.".to_owned();
        let status = StatusCode::UNAUTHORIZED;
        let response = failed(site, parts, &visitor.csrf, &Refusal { status, detail });
        return with_cookie(response, visitor.cookie.clone());
    }
    let next = if path == "/" {
        String::new()
    } else {
        format!("?next={}", escaped(path))
    };
    with_cookie(
        see_other(&format!("{}/login{next}", base(parts))),
        visitor.cookie.clone(),
    )
}

/// The response to a request that the server refuses.
pub(crate) fn refused(site: &Site, parts: &Parts, refusal: &Refusal) -> Response<Body> {
    failed(site, parts, "", refusal)
}

fn failed(site: &Site, parts: &Parts, csrf: &str, refusal: &Refusal) -> Response<Body> {
    let page = page(site, parts, csrf, Some(refusal.detail.clone()));
    let mut response = html(page.render().unwrap_or_default());
    *response.status_mut() = refusal.status;
    response
}

/// Shows the form.
pub(crate) async fn show(State(site): State<Site>, request: Request) -> Response<Body> {
    let (parts, _) = request.into_parts();
    let visitor = match site.backend().visitor(&parts).await {
        Ok(visitor) => visitor,
        Err(refusal) => return refused(&site, &parts, &refusal),
    };
    let page = page(&site, &parts, &visitor.csrf, None);
    if visitor.identity.is_some() && page.link.is_none() {
        return with_cookie(
            see_other(&format!("{}{}", page.base, page.next)),
            visitor.cookie,
        );
    }
    with_cookie(html(page.render().unwrap_or_default()), visitor.cookie)
}

/// Starts a session.
pub(crate) async fn submit(State(site): State<Site>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    match signed_in(&site, &parts, body).await {
        Ok(response) => response,
        Err((csrf, refusal)) => failed(&site, &parts, &csrf, &refusal),
    }
}

async fn signed_in(
    site: &Site,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>, (String, Refusal)> {
    let backend = site.backend();
    let visitor = backend
        .visitor(parts)
        .await
        .map_err(|refusal| (String::new(), refusal))?;
    let csrf = visitor.csrf.clone();
    let refuse = |refusal| (csrf.clone(), refusal);
    backend.check_origin(parts).map_err(refuse)?;
    let fields = form(body).await.map_err(|failure| {
        refuse(Refusal {
            status: failure.status,
            detail: failure.detail,
        })
    })?;
    if !same(fields.get(CSRF_FIELD).unwrap_or_default(), &csrf) {
        let detail =
            "This form is out of date, or your browser does not accept cookies: try again.";
        let status = StatusCode::FORBIDDEN;
        return Err(refuse(Refusal {
            status,
            detail: detail.to_owned(),
        }));
    }
    let credential = match fields.get("link") {
        Some(link) => Credential::Link(link),
        None => Credential::Key(fields.get("key").unwrap_or_default().trim()),
    };
    let cookie = backend.sign_in(parts, credential).await.map_err(refuse)?;
    let next = own_path(fields.get("next").unwrap_or("/"));
    Ok(with_cookie(
        see_other(&format!("{}{next}", base(parts))),
        Some(cookie),
    ))
}

/// Ends the session.
pub(crate) async fn sign_out(State(site): State<Site>, request: Request) -> Response<Body> {
    use axum::extract::FromRequest as _;
    let (parts, body) = request.into_parts();
    let checked = Request::from_parts(parts.clone(), body);
    if let Err(refused) = Submit::from_request(checked, &site).await {
        return refused;
    }
    let cookie = site.backend().sign_out(&parts).await;
    with_cookie(see_other(&format!("{}/login", base(&parts))), Some(cookie))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signing_in_leads_only_to_pages_of_this_site() {
        for path in ["/", "/jobs?state=dead", "/queues/a%20b"] {
            assert_eq!(own_path(path), path);
        }
        for path in [
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "",
            "/\t/evil",
        ] {
            assert_eq!(own_path(path), "/", "{path}");
        }
    }
}
